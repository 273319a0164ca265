"""All flows of a process as one herder: the root of the dedicated mode.

Flow: a name ``A->B.Connector`` -> the herder of ``A->B`` and its own name of the connector -> that herder's
answer under the long name. It holds no state of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar, final

from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.herder.api import (
    ConnectorInfo,
    ConnectorState,
    Health,
    Herder,
    OffsetEntry,
    PutResult,
    WorkState,
)
from mm2py.runtime.herder.errors import BadRequestError, ForwardError, NotFoundError
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.types import FlowName, TargetState, TaskId

__all__ = ["AggregatedHerder", "FlowForwardError", "flow_of_name"]

T = TypeVar("T")

NAME: Final = "name"
SEVERITY: Final = ("healthy", "starting", "unhealthy")


class FlowForwardError(ForwardError):
    """Another worker of one flow has to answer; ``herder`` is that flow's on this node."""

    def __init__(self, url: str | None, herder: Herder) -> None:
        super().__init__(url)
        self.herder = herder


def flow_of_name(name: str, flows: Mapping[FlowName | None, Herder]) -> tuple[Herder, str] | None:
    """Return the herder that a long name means and the connector's own name, None for no flow's.

    An alias may hold a dot, so that two flows may fit: the one that has the connector is meant, else the
    longer one.
    """
    fits = [
        (herder, name.removeprefix(f"{flow}."))
        for flow, herder in sorted(flows.items(), key=lambda item: -len(str(item[0])))
        if flow is not None and name.startswith(f"{flow}.")
    ]
    there = [(herder, own) for herder, own in fits if own in herder.connectors()]
    return next(iter(there or fits), None)


@final
class AggregatedHerder:
    """The ``Herder`` of the root; ``flows`` is asked each time, for flows come and go."""

    def __init__(self, flows: Callable[[], Mapping[FlowName | None, Herder]]) -> None:
        self._flows = flows

    @property
    def worker_id(self) -> str:
        """Name of this worker in statuses."""
        return next((herder.worker_id for herder in self._flows().values()), "")

    @property
    def cluster_id(self) -> str:
        """Ids of the target clusters, sorted."""
        return ",".join(sorted({herder.cluster_id for herder in self._flows().values()}))

    @property
    def flow(self) -> FlowName | None:
        """None: it is none of the flows."""
        return None

    def locate(self, name: str) -> tuple[Herder, str]:
        """Return the herder of a long name and the connector's own name; ``NotFoundError`` for no flow's."""
        found = flow_of_name(name, self._flows())
        if found is None:
            raise NotFoundError(f"Connector {name} not found")
        return found

    def find(self, name: str) -> tuple[Herder, str] | None:
        """Return the same, None for no flow's."""
        return flow_of_name(name, self._flows())

    # At once.

    def connectors(self) -> tuple[str, ...]:
        """Return long names of all connectors."""
        return tuple(
            f"{flow}.{name}"
            for flow, herder in self._flows().items()
            for name in herder.connectors()
        )

    def info_now(self, name: str) -> ConnectorInfo | None:
        """Return a connector as this node knows it."""
        found = flow_of_name(name, self._flows())
        info = None if found is None else found[0].info_now(found[1])
        return None if info is None else _long_info(info, name)

    def status(self, name: str) -> ConnectorState:
        """Return all states of a connector."""
        found = flow_of_name(name, self._flows())
        if found is None:
            raise NotFoundError(f"No status found for connector {name}")
        return replace(found[0].status(found[1]), name=name)

    def task_status(self, task: TaskId) -> WorkState:
        """Return the state of a task."""
        found = flow_of_name(task.connector, self._flows())
        if found is None:
            raise NotFoundError(f"No status found for task {task}")
        return found[0].task_status(TaskId(found[1], task.number))

    def topics(self, name: str) -> tuple[str, ...]:
        """Return the topics a connector uses, none for one that does not exist."""
        found = flow_of_name(name, self._flows())
        return () if found is None else found[0].topics(found[1])

    async def reset_topics(self, name: str) -> None:
        """Forget which topics a connector uses."""
        found = flow_of_name(name, self._flows())
        if found is not None:
            await found[0].reset_topics(found[1])

    def session_key(self) -> SessionKey | None:
        """Return None: each flow has its own."""
        return None

    # Through the flows' queues.

    async def health(self) -> Health:
        """Return the worst health of all flows."""
        flows = list(self._flows().items())
        said = await asyncio.gather(*(herder.health() for _, herder in flows))
        if not said:
            return Health("starting", "Worker is still starting up.")
        worst = max((health.status for health in said), key=SEVERITY.index)
        texts = [
            f"{flow}: {health.message}"
            for (flow, _), health in zip(flows, said, strict=True)
            if health.status == worst
        ]
        return Health(worst, said[0].message if worst == SEVERITY[0] else " ".join(texts))

    async def info(self, name: str) -> ConnectorInfo:
        """Return a connector."""
        herder, own = self.locate(name)
        return _long_info(await _asked(herder, herder.info(own)), name)

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, ConnectorConfig]]:
        """Return the task configs of a connector."""
        herder, own = self.locate(name)
        configs = await _asked(herder, herder.task_configs(own))
        return [(TaskId(name, task.number), config) for task, config in configs]

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        """Return the stored positions of a connector."""
        herder, own = self.locate(name)
        return await _asked(herder, herder.offsets(own))

    # Of the flow's leader.

    async def create(
        self, name: str, config: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        """Create a connector in the flow that its name begins with."""
        herder, own = self._locate_new(name)
        config = _own_config(config, own)
        return _long_info(
            await _asked(herder, herder.create(own, config, target, actor=actor)), name
        )

    async def put_config(self, name: str, config: ConnectorConfig, *, actor: str) -> PutResult:
        """Create a connector or replace its config."""
        herder, own = self._locate_new(name)
        put = await _asked(herder, herder.put_config(own, _own_config(config, own), actor=actor))
        return PutResult(put.created, _long_info(put.info, name))

    async def patch_config(self, name: str, patch: ConnectorConfig, *, actor: str) -> ConnectorInfo:
        """Change single keys of a config."""
        herder, own = self.locate(name)
        patched = herder.patch_config(own, _own_config(patch, own), actor=actor)
        return _long_info(await _asked(herder, patched), name)

    async def delete(self, name: str, *, actor: str) -> None:
        """Remove a connector."""
        herder, own = self.locate(name)
        await _asked(herder, herder.delete(own, actor=actor))

    async def stop_connector(self, name: str, *, actor: str) -> None:
        """Make a connector STOPPED."""
        herder, own = self._locate_known(name)
        await _asked(herder, herder.stop_connector(own, actor=actor))

    async def restart(self, name: str, *, only_failed: bool, include_tasks: bool) -> ConnectorState:
        """Ask the flow's workers for a restart."""
        herder, own = self._locate_known(name)
        restarted = herder.restart(own, only_failed=only_failed, include_tasks=include_tasks)
        return replace(await _asked(herder, restarted), name=name)

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Write positions of a STOPPED connector."""
        herder, own = self.locate(name)
        return await _asked(herder, herder.alter_offsets(own, entries))

    async def reset_offsets(self, name: str) -> str:
        """Remove all positions of a STOPPED connector."""
        herder, own = self.locate(name)
        return await _asked(herder, herder.reset_offsets(own))

    async def put_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Take task configs."""
        herder, own = self.locate(name)
        await _asked(herder, herder.put_task_configs(own, configs))

    async def fence(self, name: str) -> None:
        """Fence producers."""
        herder, own = self.locate(name)
        await _asked(herder, herder.fence(own))

    # Any worker.

    async def pause(self, name: str, *, actor: str) -> None:
        """Make a connector PAUSED."""
        herder, own = self._locate_known(name)
        await _asked(herder, herder.pause(own, actor=actor))

    async def resume(self, name: str, *, actor: str) -> None:
        """Make a connector run."""
        herder, own = self._locate_known(name)
        await _asked(herder, herder.resume(own, actor=actor))

    async def set_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level on every worker of every flow."""
        for herder in self._flows().values():
            await _asked(herder, herder.set_logger_level(namespace, level))

    async def restart_connector(self, name: str) -> None:
        """Restart the connector instance."""
        herder, own = self._locate_known(name)
        await _asked(herder, herder.restart_connector(own))

    async def restart_task(self, task: TaskId) -> None:
        """Restart one task."""
        herder, own = self._locate_known(task.connector)
        await _asked(herder, herder.restart_task(TaskId(own, task.number)))

    # Each flow has its own.

    def node_snapshot(self) -> NodeSnapshot:
        """Refuse: snapshots are per flow."""
        raise NotFoundError("A node snapshot belongs to one flow; ask under /{source}/{target}/")

    def member_urls(self) -> tuple[str, ...]:
        """Refuse: members are per flow."""
        raise NotFoundError("Members belong to one flow; ask under /{source}/{target}/")

    async def apply_holds(self) -> None:
        """Read the paused partitions of every flow again."""
        for herder in self._flows().values():
            await herder.apply_holds()

    def _locate_new(self, name: str) -> tuple[Herder, str]:
        found = flow_of_name(name, self._flows())
        if found is None or not found[1]:
            flows = ", ".join(sorted(f"{flow}." for flow in self._flows())) or "none yet"
            raise BadRequestError(
                f"Connector name {name} has to begin with the replication flow it belongs to, one of"
                f" {flows}; or create it under /{{source}}/{{target}}/connectors"
            )
        return found

    def _locate_known(self, name: str) -> tuple[Herder, str]:
        found = flow_of_name(name, self._flows())
        if found is None:
            raise NotFoundError(f"Unknown connector {name}")
        return found


async def _asked(herder: Herder, answer: Awaitable[T]) -> T:
    try:
        return await answer
    except ForwardError as error:
        raise FlowForwardError(error.url, herder) from error


def _own_config(config: ConnectorConfig, own: str) -> ConnectorConfig:
    return {**config, NAME: own} if NAME in config else config


def _long_info(info: ConnectorInfo, name: str) -> ConnectorInfo:
    tasks = tuple(TaskId(name, task.number) for task in info.tasks)
    config = {**info.config, NAME: name} if NAME in info.config else info.config
    return replace(info, name=name, config=config, tasks=tasks)
