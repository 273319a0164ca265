"""Flows as people see and change them: what ``/flows`` answers, and what it makes of a change.

Flow: request -> every check -> herder of the flow (leader only: ``ForwardError`` elsewhere) -> config topic and
``mm2py-flows``. A refused change and a dry run have written nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import urlsplit

from mm2py.observability.logging import HIDDEN, SecretMask
from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.flow_connectors import runnable, source_connector, state_of, topics_of, works_of
from mm2py.runtime.flow_graph import new_cycles
from mm2py.runtime.flow_views import (
    ChangeView,
    ConfigView,
    FlowView,
    HistoryView,
    Members,
    PartitionView,
    PropertyView,
    TopicView,
    flow_view,
    history_view,
    partition_views,
    shown_value,
    topic_views,
)
from mm2py.runtime.herder_api import Herder, PeerClient, Validator
from mm2py.runtime.herder_errors import BadRequestError, HerderError, NotFoundError
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import FlowName, TopicPartition

__all__ = ["ChangeResult", "FlowNode", "FlowParts", "FlowService", "Patches"]

MEMBER_S: Final = 1.0
"""How long a member may take to say what it copies; who takes longer is named as missing."""

Patches = Mapping[str, ConnectorConfig]
"""Connector -> properties; None removes one."""


@dataclass(frozen=True, slots=True)
class FlowNode:
    """One flow on this node; ``peers`` asks its other members."""

    herder: Herder
    overrides: FlowOverridesStore
    peers: PeerClient


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowParts:
    """What the service needs.

    ``flows`` is asked at each request. ``remote_refusal(flow, connector, properties)`` says why properties may
    not come from outside; ``names_a_secret`` looks at a key alone.
    """

    flows: Callable[[], Mapping[FlowName, FlowNode]]
    validator: Validator
    mask: SecretMask
    names_a_secret: Callable[[str], bool]
    remote_refusal: Callable[[FlowName | None, str, ConnectorConfig], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeResult:
    """What a change did, or with ``dry_run`` would do; ``revision`` is its number in the history."""

    flow: str
    action: str
    dry_run: bool
    revision: int | None
    changes: tuple[ChangeView, ...]


@final
class FlowService:
    """Reads and changes the flows of this process."""

    def __init__(self, parts: FlowParts) -> None:
        self._parts = parts
        # Two changes that are safe each may close a circle together.
        self._changing = asyncio.Lock()

    def flows(self) -> Mapping[FlowName, FlowNode]:
        """Return the flows of this node by name."""
        return self._parts.flows()

    def find(self, name: str) -> FlowName:
        """Return the flow that is written ``A->B``.

        Raises:
            NotFoundError: there is none.
        """
        for flow in self.flows():
            if str(flow) == name:
                return flow
        known = ", ".join(sorted(str(flow) for flow in self.flows())) or "none"
        raise NotFoundError(f"No flow {name}; flows of this worker: {known}")

    # ---- reading; numbers of all members are the leader's to collect

    async def describe(self, flow: FlowName) -> FlowView:
        """Return one flow; ``ForwardError`` where another worker leads it."""
        return self._view(flow, await self._members(flow))

    def describe_here(self, flow: FlowName, missing: str) -> FlowView:
        """Return one flow with the numbers of this node alone, and why there are no others."""
        own = self._node(flow).herder.node_snapshot()
        return self._view(flow, Members(snapshots=(own,), incomplete=(missing,)))

    async def partitions(self, flow: FlowName) -> list[PartitionView]:
        """Return every partition; ``ForwardError`` where another worker leads the flow."""
        return partition_views(flow, await self._members(flow), self._parts.mask)

    async def topics(self, flow: FlowName) -> list[TopicView]:
        """Return lag and rates by topic; ``ForwardError`` where another worker leads the flow."""
        return topic_views(flow, await self._members(flow))

    def topics_here(self, flow: FlowName) -> list[TopicView]:
        """Return lag and rates by topic of this node alone."""
        own = self._node(flow).herder.node_snapshot()
        return topic_views(flow, Members(snapshots=(own,)))

    def history(self, flow: FlowName) -> list[HistoryView]:
        """Return who changed what, newest first."""
        return [
            history_view(entry, self._parts.mask) for entry in self._node(flow).overrides.history()
        ]

    def config(self, flow: FlowName) -> list[ConfigView]:
        """Return every property in force and where it comes from; secrets are hidden."""
        herder = self._node(flow).herder
        infos = (herder.info_now(name) for name in sorted(herder.connectors()))
        return [self._config_view(flow, it.name, it.config) for it in infos if it is not None]

    def _view(self, flow: FlowName, members: Members) -> FlowView:
        node = self._node(flow)
        return flow_view(flow, node.herder, members, node.overrides.held(), self._parts.mask)

    def _config_view(self, flow: FlowName, name: str, config: ConnectorConfig) -> ConfigView:
        store = self._node(flow).overrides
        file, changed = store.file_config(name) or {}, store.overrides(name)
        properties: list[PropertyView] = []
        for key in sorted({*config, *changed}):
            entry = changed.get(key)
            properties.append(
                PropertyView(
                    key=key,
                    value=self._shown(key, config.get(key)),
                    file_value=self._shown(key, file.get(key)),
                    changed_by=None if entry is None else entry.revision.by,
                    changed_at_ms=None if entry is None else entry.revision.at_ms,
                    revision=None if entry is None else entry.revision.number,
                )
            )
        return ConfigView(connector=name, properties=tuple(properties))

    async def _members(self, flow: FlowName) -> Members:
        herder, peers = self._node(flow).herder, self._node(flow).peers
        urls = [url for url in herder.member_urls() if urlsplit(url).netloc != herder.worker_id]
        key = herder.session_key()
        own = herder.node_snapshot()
        if key is None:
            return Members(snapshots=(own,), incomplete=tuple(urls))

        async def ask(url: str) -> NodeSnapshot | str:
            try:
                async with asyncio.timeout(MEMBER_S):
                    return await peers.node_snapshot(url, key)
            except (TimeoutError, HerderError):
                return url

        answers = await asyncio.gather(*(ask(url) for url in urls))
        found = {own.worker: own}
        for answer in answers:
            if not isinstance(answer, str):
                found.setdefault(answer.worker, answer)
        missing = tuple(answer for answer in answers if isinstance(answer, str))
        return Members(snapshots=tuple(found.values()), incomplete=missing)

    # ---- changing; the leader's to do

    async def patch(
        self, flow: FlowName, patches: Patches, *, actor: str, dry_run: bool
    ) -> ChangeResult:
        """Change properties of connectors; all of it is checked before any of it is written.

        Raises:
            HerderError: a refusal, or ``ForwardError`` where another worker leads the flow.
            ConfigError: a value cannot be used.
        """
        node = self._led(flow)
        async with self._changing:
            wanted: dict[str, dict[str, str]] = {}
            changes: list[ChangeView] = []
            for name, patch in patches.items():
                before = self._texts(flow, name)
                after = self._merged(flow, name, before, patch)
                if after != before:
                    wanted[name] = after
                    changes += self._differences(name, before, after)
            for name, after in wanted.items():
                node.overrides.refuse_secrets(name, after)
                refusal = (await self._parts.validator.validate(dict(after))).refusal()
                if refusal is not None:
                    raise BadRequestError(f"{name} of {flow}: {refusal}")
            self._need_safe_graph(flow, wanted)
            if not dry_run:
                for name, after in wanted.items():
                    patch = {key: after.get(key) for key in patches[name] if key != "name"}
                    await node.herder.patch_config(name, patch, actor=actor)
            done = bool(wanted) and not dry_run
        return self._result(flow, "change", changes, dry_run=dry_run, done=done)

    async def set_state(
        self, flow: FlowName, action: str, *, actor: str, dry_run: bool
    ) -> ChangeResult:
        """Pause, resume or stop every connector of a flow."""
        node = self._led(flow)
        herder = node.herder
        names = runnable(herder)
        steps: dict[str, Callable[[str], Awaitable[None]]] = {
            "pause": lambda name: herder.pause(name, actor=actor),
            "resume": lambda name: herder.resume(name, actor=actor),
            "stop": lambda name: herder.stop_connector(name, actor=actor),
        }
        words = {"pause": "PAUSED", "resume": "RUNNING", "stop": "STOPPED"}
        changes = [
            ChangeView(key=name, before=state_of(herder, name), after=words[action])
            for name in names
        ]
        if not dry_run:
            for name in names:
                await steps[action](name)
            await node.overrides.note(action, str(flow), actor=actor)
        return self._result(flow, action, changes, dry_run=dry_run, done=not dry_run)

    async def hold(
        self,
        flow: FlowName,
        partition: TopicPartition,
        *,
        paused: bool,
        actor: str,
        dry_run: bool,
    ) -> ChangeResult:
        """Pause or resume one source topic (partition -1) or partition; the others go on."""
        node = self._led(flow)
        held = node.overrides.held()
        if not paused and partition not in held and partition._replace(partition=-1) in held:
            raise BadRequestError(
                f"Partition {partition} is paused with its whole topic; resume topic"
                f" {partition.topic}"
            )
        there = partition in held
        if partition.partition < 0 and not paused:
            there = any(it.topic == partition.topic for it in held)
        changes: list[ChangeView] = []
        if there != paused:
            words = ("running", "paused") if paused else ("paused", "running")
            name = partition.topic if partition.partition < 0 else str(partition)
            changes.append(ChangeView(key=name, before=words[0], after=words[1]))
        if changes and not dry_run:
            await node.overrides.hold(partition, paused=paused, actor=actor)
            await node.herder.apply_holds()
        action = "pause" if paused else "resume"
        return self._result(
            flow, action, changes, dry_run=dry_run, done=bool(changes) and not dry_run
        )

    async def restart(
        self, flow: FlowName, *, only_failed: bool, actor: str, dry_run: bool
    ) -> ChangeResult:
        """Restart connectors and tasks of a flow, or those that failed."""
        node = self._led(flow)
        herder, changes = node.herder, list[ChangeView]()
        names = [name for name in runnable(herder) if state_of(herder, name) is not None]
        for name in names:
            for work, state in works_of(herder, name):
                if state == "FAILED" or not only_failed:
                    changes.append(ChangeView(key=work, before=state, after="RESTARTING"))
        if not dry_run:
            for name in names:
                await herder.restart(name, only_failed=only_failed, include_tasks=True)
            await node.overrides.note("restart", str(flow), actor=actor)
        return self._result(flow, "restart", changes, dry_run=dry_run, done=not dry_run)

    # ---- what changes need

    def _node(self, flow: FlowName) -> FlowNode:
        node = self.flows().get(flow)
        if node is None:
            raise NotFoundError(f"No flow {flow}")
        return node

    def _led(self, flow: FlowName) -> FlowNode:
        """Return a flow that this worker leads; ``ForwardError`` elsewhere."""
        node = self._node(flow)
        node.herder.member_urls()
        return node

    def _texts(self, flow: FlowName, name: str) -> dict[str, str]:
        info = self._node(flow).herder.info_now(name)
        if info is None:
            raise NotFoundError(f"Connector {name} not found in flow {flow}")
        return {key: text for key, text in info.config.items() if text is not None}

    def _merged(
        self, flow: FlowName, name: str, before: Mapping[str, str], patch: ConnectorConfig
    ) -> dict[str, str]:
        if patch.get("name", name) != name:
            raise BadRequestError(f"name of connector {name} in flow {flow} cannot be changed")
        given = {key: text for key, text in patch.items() if text is not None}
        for key, text in given.items():
            if HIDDEN in text:
                if text != self._shown(key, before.get(key)):
                    raise BadRequestError(
                        f"{key} of connector {name} holds {HIDDEN}, which stands for a stored secret,"
                        " but no such secret is stored under this key"
                    )
                given[key] = before[key]
        refusal = self._parts.remote_refusal(flow, name, given)
        if refusal is not None:
            raise BadRequestError(refusal)
        kept = {key: text for key, text in before.items() if key not in patch or key == "name"}
        return {**kept, **given}

    def _differences(
        self, name: str, before: Mapping[str, str], after: Mapping[str, str]
    ) -> list[ChangeView]:
        return [
            ChangeView(
                key=f"{name}.{key}",
                before=self._shown(key, before.get(key)),
                after=self._shown(key, after.get(key)),
            )
            for key in sorted({*before, *after})
            if before.get(key) != after.get(key)
        ]

    def _need_safe_graph(self, flow: FlowName, wanted: Mapping[str, Mapping[str, str]]) -> None:
        before: dict[FlowName, Mapping[str, str]] = {}
        after: dict[FlowName, Mapping[str, str]] = {}
        topics: set[str] = set()
        for other, node in self.flows().items():
            name = source_connector(node.herder)
            if name is not None:
                topics.update(topics_of(node.herder, name))
                before[other] = self._texts(other, name)
                after[other] = wanted.get(name, before[other]) if other == flow else before[other]
        cycles = new_cycles(before, after, topics) if before != after else ()
        if cycles:
            raise BadRequestError(
                f"The change would copy records in a circle: {cycles[0]}; exclude the topic in one of"
                " these flows, or use a replication policy that renames topics"
            )

    def _shown(self, key: str, value: str | None) -> str | None:
        return shown_value(key, value, self._parts.names_a_secret, self._parts.mask)

    def _result(
        self,
        flow: FlowName,
        action: str,
        changes: Sequence[ChangeView],
        *,
        dry_run: bool,
        done: bool,
    ) -> ChangeResult:
        lines = self._node(flow).overrides.history() if done else ()
        return ChangeResult(
            flow=str(flow),
            action=action,
            dry_run=dry_run,
            revision=lines[0].revision.number if lines else None,
            changes=tuple(changes),
        )
