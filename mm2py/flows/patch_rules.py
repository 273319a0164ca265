"""Which properties a change over ``/flows`` may set, and of which connectors.

Flow: ``FlowChanges`` -> ``PatchRules``: the flow's properties go to the connectors that read them,
``[hidden]`` is what is stored, and what is not accepted over REST is refused ->
``mm2py.flows.edits``.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.config.class_names import SINK_NAME, SOURCE_NAME
from mm2py.flows.edits import ENABLED, Patches, switched
from mm2py.flows.service import FlowServiceParts
from mm2py.flows.views import shown_value
from mm2py.mirror.flow_state import FlowPicture
from mm2py.observability.logging import HIDDEN
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import FlowName

FLOW: Final = ""
"""In place of a connector's name: properties of the flow, for the connectors that read them."""

_POLICY: Final = "replication.policy."


@final
class PatchRules:
    """The rules of patches of this process's flows."""

    def __init__(self, parts: FlowServiceParts) -> None:
        self._parts = parts

    def allowed(
        self, flow: FlowName, store: FlowOverridesStore, now: FlowPicture, patches: Patches
    ) -> Patches:
        """Return patches whose ``[hidden]`` texts are what is stored; refuse properties that are
        not accepted over REST."""
        allowed: dict[str, ConnectorConfig] = {}
        for name, patch in self._by_connector(flow, now, patches).items():
            before = now.configs.get(name)
            if before is None:
                raise NotFoundError(f"Connector {name} not found in flow {flow}")
            if patch.get("name", name) != name:
                raise BadRequestError(f"name of connector {name} in flow {flow} cannot be changed")
            given = {key: self._unhidden(name, key, text, before) for key, text in patch.items()}
            self._refuse_remote(flow, name, given)
            known = {*before, *(store.state.file.get(name) or {})}
            problems = [
                f"{key} of connector {name} {problem}"
                for key, text in given.items()
                if (key not in known if text is None else text != before.get(key))
                if (problem := self._problem(name, key, known=key in known))
            ]
            if problems:
                raise BadRequestError("; ".join(problems))
            allowed[name] = given
        return allowed

    def check_return(self, flow: FlowName, now: FlowPicture, then: FlowPicture) -> None:
        """Refuse a return to properties that REST does not accept now, from a former file."""
        for name, config in then.configs.items():
            before = now.configs.get(name, {})
            given = {it: config.get(it) for it in {*before, *config}}
            differing = {key: text for key, text in given.items() if text != before.get(key)}
            self._refuse_remote(flow, name, differing)

    def _refuse_remote(self, flow: FlowName, name: str, given: ConnectorConfig) -> None:
        refusal = self._parts.remote_refusal(flow, name, given)
        if refusal is not None:
            raise BadRequestError(refusal)

    def _problem(self, name: str, key: str, *, known: bool) -> str:
        readers = self._parts.readers(key)
        if readers and name not in readers:
            return f"has no effect there: set it on {' and '.join(readers)}"
        return "" if known else self._parts.property_problem(key)

    def _by_connector(self, flow: FlowName, now: FlowPicture, patches: Patches) -> Patches:
        """Give each of the flow's properties to the connectors that read it, as ``A->B.`` lines."""
        by_connector = {name: dict(patch) for name, patch in patches.items() if name != FLOW}
        for key, text in patches.get(FLOW, {}).items():
            readers = [name for name in self._readers(flow, key) if name in now.configs]
            for name in readers or [SOURCE_NAME if SOURCE_NAME in now.configs else SINK_NAME]:
                # A connector's own property wins over the flow's, as in the file.
                by_connector.setdefault(name, {}).setdefault(key, text)
        return by_connector

    def _readers(self, flow: FlowName, key: str) -> Sequence[str]:
        """Return the connectors that a property is for, none where each may have its own; whether a
        flow copies, and the names of topics, are one thing."""
        file = self._parts.fleet.file(flow)
        if key == ENABLED:
            return switched(file)
        return (*file,) if key.startswith(_POLICY) else self._parts.readers(key)

    def of_all(
        self, flow: FlowName, now: FlowPicture, config: Mapping[str, str], patch: Mapping[str, str]
    ) -> Patches:
        """Give a patch of the connector that copies to the others too, but to those with lists of
        their own."""
        return {
            name: given
            for name, given in self._by_connector(flow, now, {FLOW: patch}).items()
            if all(now.configs[name].get(key) == config.get(key) for key in given)
        }

    def _unhidden(
        self, name: str, key: str, text: str | None, before: Mapping[str, str]
    ) -> str | None:
        if text is None or HIDDEN not in text:
            return text
        stored = before.get(key)
        # Text that was edited around a hidden part cannot be joined with the secret again.
        if text != shown_value(key, stored, self._parts.mask):
            raise BadRequestError(
                f"{key} of connector {name} holds {HIDDEN}, which stands for a stored secret,"
                " but no such secret is stored under this key"
            )
        return stored
