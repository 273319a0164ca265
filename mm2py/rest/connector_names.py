"""Names of connectors at the root of the dedicated mode, where all flows are shown as one.

Flow: ``A->B.Connector`` in a request -> ``locate`` -> the herder of ``A->B`` and the connector's
own name -> its answer under the long name. Below a pair, and on an ordinary worker, both names are
the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, final

from mm2py.runtime.errors import BadRequestError
from mm2py.runtime.herder.api import ConnectorInfo, ConnectorState
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName, TaskId

NAME: Final = "name"


@final
@dataclass(frozen=True, slots=True)
class NamedConnector:
    """A connector that a request names: its herder, its name there, and the caller's name of it."""

    herder: Herder
    own: str
    shown: str

    def task(self, number: int) -> TaskId:
        return TaskId(self.own, number)

    def own_config(self, config: ConnectorConfig) -> ConnectorConfig:
        return {**config, NAME: self.own} if NAME in config else config

    def shown_config(self, config: ConnectorConfig) -> ConnectorConfig:
        """Return a config of the herder as the caller knows it."""
        return {**config, NAME: self.shown} if NAME in config else config

    def shown_task(self, task: TaskId) -> TaskId:
        return TaskId(self.shown, task.number)

    def shown_info(self, info: ConnectorInfo) -> ConnectorInfo:
        tasks = tuple(map(self.shown_task, info.tasks))
        config = self.shown_config(info.config)
        return replace(info, name=self.shown, config=config, tasks=tasks)

    def shown_state(self, state: ConnectorState) -> ConnectorState:
        return replace(state, name=self.shown)


def long_name(flow: FlowName | None, own: str) -> str:
    """Return the name of a connector at the root."""
    return f"{flow}.{own}"


def locate(name: str, herders: Mapping[FlowName | None, Herder]) -> NamedConnector | None:
    """Return the connector of a long name, None for one of no flow.

    An alias may hold a dot, so that two flows may fit: the one that has the connector is meant,
    else the longer one.
    """
    fits = [
        NamedConnector(herder, name.removeprefix(f"{flow}."), name)
        for flow, herder in sorted(herders.items(), key=lambda item: -len(str(item[0])))
        if flow is not None and name.startswith(f"{flow}.")
    ]
    existing = (each for each in fits if each.own in each.herder.connectors())
    return next(existing, next(iter(fits), None))


def locate_new(name: str, herders: Mapping[FlowName | None, Herder]) -> NamedConnector:
    """Return where a connector of a long name is to be created; ``BadRequestError``: it is the name
    of no flow."""
    connector = locate(name, herders)
    if connector is None or not connector.own:
        flows = ", ".join(sorted(f"{flow}." for flow in herders)) or "none yet"
        raise BadRequestError(
            f"Connector name {name} has to begin with the replication flow it belongs to, one of"
            f" {flows}; or create it under /{{source}}/{{target}}/connectors"
        )
    return connector
