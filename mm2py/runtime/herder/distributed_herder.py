"""A herder that shares its group's work with others: the ``Herder`` Protocol over the loop.

Flow: REST and ``/flows`` -> reads from the stores, or requests into the queue -> the loop; ``run`` is the
whole life of the node's part. It holds no state of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from mm2py.clock import Clock
from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.herder.api import (
    ConnectorInfo,
    ConnectorState,
    Health,
    HerderParts,
    OffsetEntry,
    PutResult,
    WorkState,
)
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.runtime.herder.changes import HerderChanges
from mm2py.runtime.herder.errors import (
    ForbiddenError,
    ForwardError,
    HerderTimeoutError,
    NotFoundError,
    RebalanceExpectedError,
)
from mm2py.runtime.herder.loop import HerderLoop
from mm2py.runtime.herder.queue import HEALTH_TIMEOUT_S, HerderQueue
from mm2py.runtime.herder.task_publication import TaskPublication
from mm2py.runtime.herder.work_states import connector_info, connector_state, work_state
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.types import FlowName, TargetState, TaskId

__all__ = ["DistributedHerder"]


@final
class DistributedHerder:
    """One flow, or one ordinary worker, on one node; implements ``Herder`` and ``RunnableHerder``."""

    def __init__(self, parts: HerderParts, *, clock: Clock) -> None:
        self._parts = parts
        self._queue = HerderQueue(clock)
        self._publication = TaskPublication(
            parts, self._queue, self._membership_in_doubt, clock=clock
        )
        self._work = AssignedWork(
            parts, self._publication.publish, clock=clock, on_change=self._note_state
        )
        self._loop = HerderLoop(parts, self._queue, self._work, clock=clock)
        self._changes = HerderChanges(parts, self._queue, self._loop, self._work)

    # ---- life

    async def run(self) -> None:
        """Run; returns after ``stop``, or when it failed for good (``error``)."""
        await self._loop.run()

    def stop(self) -> None:
        """Begin an orderly stop."""
        self._loop.stop()

    @property
    def error(self) -> Exception | None:
        """Why it ended by itself."""
        return self._loop.error

    def problems(self) -> Sequence[str]:
        """What is wrong on this node now, one line each."""
        return (str(self.error),) if self.error is not None else self._work.problems()

    # ---- at once

    @property
    def worker_id(self) -> str:
        """Name of this worker in statuses."""
        return self._parts.worker_id

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that holds the internal topics."""
        return self._parts.cluster_id()

    @property
    def flow(self) -> FlowName | None:
        """The flow; None on an ordinary worker."""
        return self._parts.flow

    def connectors(self) -> tuple[str, ...]:
        """Return the names of all connectors."""
        return tuple(sorted(self._parts.config.snapshot().connectors))

    def info_now(self, name: str) -> ConnectorInfo | None:
        """Return a connector as this node knows it."""
        return connector_info(name, self._parts)

    def status(self, name: str) -> ConnectorState:
        """Return all states of a connector."""
        state = connector_state(name, self._parts)
        if state is None:
            raise NotFoundError(f"No status found for connector {name}")
        return state

    def task_status(self, task: TaskId) -> WorkState:
        """Return the state of a task."""
        stored = self._parts.status.get(task)
        if stored is None:
            raise NotFoundError(f"No status found for task {task}")
        return work_state(stored)

    def topics(self, name: str) -> tuple[str, ...]:
        """Return the topics a connector uses."""
        self._need_tracking()
        return tuple(sorted(self._parts.status.topics(name)))

    async def reset_topics(self, name: str) -> None:
        """Forget which topics a connector uses."""
        self._need_tracking()
        if not self._setting("topic_tracking_allow_reset"):
            raise ForbiddenError("Topic tracking reset is disabled.")
        self._parts.status.delete_topics(name)

    def session_key(self) -> SessionKey | None:
        """Return the key that verifies requests between workers."""
        return self._parts.config.snapshot().session_key

    def node_snapshot(self) -> NodeSnapshot:
        """Return lag and rates of the partitions that this node copies, and what connectors report."""
        snapshot = self._parts.meter.node_snapshot(self._parts.worker_id)
        return replace(snapshot, problems=self._work.reported())

    def member_urls(self) -> tuple[str, ...]:
        """Return where all members listen; leader only."""
        membership = self._parts.membership
        if not membership.is_leader:
            raise ForwardError(membership.leader_url)
        return membership.member_urls()

    async def apply_holds(self) -> None:
        """Read paused topics and partitions again and hand them to the hosts."""
        overrides = self._parts.overrides
        if overrides is not None:
            self._work.hold(overrides.held())

    # ---- through the queue

    async def health(self) -> Health:
        """Return whether the loop answers."""
        try:
            await self._queue.submit(self._answer, timeout_s=HEALTH_TIMEOUT_S)
        except HerderTimeoutError:
            if not self._loop.started:
                return Health(
                    "starting", f"Worker is still starting up. {self._queue.stage_summary}"
                )
            return Health(
                "unhealthy",
                "Worker was unable to handle this request and may be unable to handle other requests."
                f" {self._queue.stage_summary}",
            )
        return Health("healthy", "Worker has completed startup and is ready to handle requests.")

    async def info(self, name: str) -> ConnectorInfo:
        """Return a connector."""

        async def read() -> ConnectorInfo:
            self._need_calm()
            return self._known(name)

        return await self._queue.submit(read)

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, ConnectorConfig]]:
        """Return the task configs of a connector in order."""

        async def read() -> Sequence[tuple[TaskId, ConnectorConfig]]:
            self._need_calm()
            configs = self._parts.config.snapshot().task_configs
            return [(task, configs[task]) for task in self._known(name).tasks]

        return await self._queue.submit(read)

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        """Return the stored positions of a connector."""

        async def check() -> None:
            self._known(name)

        await self._queue.submit(check)
        return await self._parts.editor.read(name)

    # ---- changes

    async def create(
        self, name: str, config: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        """Create a connector; leader only."""
        return await self._changes.create(name, config, target, actor=actor)

    async def put_config(self, name: str, config: ConnectorConfig, *, actor: str) -> PutResult:
        """Create a connector or replace its config; leader only."""
        return await self._changes.put_config(name, config, actor=actor)

    async def patch_config(self, name: str, patch: ConnectorConfig, *, actor: str) -> ConnectorInfo:
        """Change single keys of a config; leader only."""
        return await self._changes.patch_config(name, patch, actor=actor)

    async def delete(self, name: str, *, actor: str) -> None:
        """Remove a connector; leader only."""
        await self._changes.delete(name, actor=actor)

    async def stop_connector(self, name: str, *, actor: str) -> None:
        """Make a connector STOPPED; leader only."""
        await self._changes.stop_connector(name, actor=actor)

    async def restart(self, name: str, *, only_failed: bool, include_tasks: bool) -> ConnectorState:
        """Ask every worker for a restart; leader only."""
        return await self._changes.restart(
            name, only_failed=only_failed, include_tasks=include_tasks
        )

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Write positions of a STOPPED connector; leader only."""
        return await self._changes.alter_offsets(name, entries)

    async def reset_offsets(self, name: str) -> str:
        """Remove all positions of a STOPPED connector; leader only."""
        return await self._changes.reset_offsets(name)

    async def put_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Take the task configs that a connector's owner made; leader only."""
        await self._queue.submit(lambda: self._publication.store(name, configs))

    async def fence(self, name: str) -> None:
        """Fence the producers of earlier tasks; leader only."""
        await self._changes.fence(name)

    async def pause(self, name: str, *, actor: str) -> None:
        """Make a connector PAUSED; any worker."""
        await self._changes.set_target(name, TargetState.PAUSED, actor=actor)

    async def resume(self, name: str, *, actor: str) -> None:
        """Make a connector run; any worker."""
        await self._changes.set_target(name, TargetState.STARTED, actor=actor)

    async def set_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level on every worker; any worker."""
        await self._parts.config.put_logger_level(namespace, level)

    async def restart_connector(self, name: str) -> None:
        """Restart the connector instance; owner only."""
        await self._changes.restart_connector(name)

    async def restart_task(self, task: TaskId) -> None:
        """Restart one task; owner only."""
        await self._changes.restart_task(task)

    # ---- what they need

    def _note_state(self) -> None:
        self._loop.note_state()

    def _membership_in_doubt(self) -> bool:
        return self._loop.suspended

    async def _answer(self) -> None:
        return

    def _need_calm(self) -> None:
        if self._loop.rebalance_expected:
            raise RebalanceExpectedError

    def _known(self, name: str) -> ConnectorInfo:
        info = connector_info(name, self._parts)
        if info is None:
            raise NotFoundError(f"Connector {name} not found")
        return info

    def _need_tracking(self) -> None:
        if not self._setting("topic_tracking_enable"):
            raise ForbiddenError("Topic tracking is disabled.")

    def _setting(self, name: str) -> bool:
        """Return a switch of the worker config, true (Java's default) where it does not know it."""
        value: object = getattr(self._parts.settings, name, True)
        return value is not False
