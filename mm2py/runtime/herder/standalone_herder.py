"""A worker on its own (``ConnectStandalone``): no group, configs and states in memory, generation 0.

Flow: request -> ``DistributedHerder`` over ``SoloMembership``, which gives this worker everything that is
configured -> the same loop, the same tasks. Where another worker would answer "rebalance, try again", the answer
waits for the round, which nobody else takes part in.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar, final

from mm2py.client.permit import UNLIMITED, Permit
from mm2py.clock import Clock
from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.group.assignor import configured_work
from mm2py.runtime.group.membership import Lost, Rejoin, Round
from mm2py.runtime.herder.api import (
    ConnectorInfo,
    ConnectorState,
    Health,
    HerderParts,
    OffsetEntry,
    PutResult,
    WorkState,
)
from mm2py.runtime.herder.distributed_herder import DistributedHerder
from mm2py.runtime.herder.errors import ConflictError, ForwardError, RebalanceExpectedError
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConnectorConfig, SessionKey
from mm2py.types import FlowName, TargetState, TaskId, Work

__all__ = ["SoloMembership", "StandaloneHerder"]

CALM_WITHIN_S: Final = 10.0
"""Starting what a round brings takes no longer, or the request is refused as in a group."""

LOOK_EVERY_S: Final = 0.02

T = TypeVar("T")


def _everything(_connector_class: str) -> bool:
    return True


@final
class SoloMembership:
    """Implements ``WorkerMembership`` without a group: one member, which leads."""

    def __init__(
        self,
        store: ConfigBackingStore,
        *,
        url: str,
        runnable: Callable[[str], bool] = _everything,
    ) -> None:
        self._store = store
        self._url = url
        self._runnable = runnable
        self._requested = asyncio.Event()
        self._joined = False

    async def rejoin(self, owned: Work, config_offset: int) -> Round:
        """Give out what is configured and not owned yet, take away what is not configured any more."""
        self._requested.clear()
        configured = configured_work(self._store.snapshot(), self._runnable)
        self._joined = True
        return Round(
            member_id="standalone",
            generation=0,
            leader=True,
            leader_url=self._url,
            config_offset=config_offset,
            assigned=configured - owned,
            revoked=owned - configured,
            delay_ms=0,
            failed=False,
            incremental=True,
            signed=False,
        )

    async def until_ours(self) -> None:
        """Return at once: nobody else is there."""

    async def signal(self) -> Rejoin | Lost:
        """Wait until a round is asked for."""
        await self._requested.wait()
        return Rejoin("a round was requested")

    def request_rejoin(self) -> None:
        """Make ``signal`` ask for a round."""
        self._requested.set()

    @property
    def permit(self) -> Permit:
        """This membership is never in doubt."""
        return UNLIMITED

    @property
    def generation(self) -> int:
        """0 as in Java; -1 before the first round."""
        return 0 if self._joined else -1

    @property
    def is_leader(self) -> bool:
        """Whether the first round was."""
        return self._joined

    @property
    def leader_url(self) -> str | None:
        """This worker."""
        return self._url if self._joined else None

    def owner_url(self, work: str | TaskId) -> str | None:
        """Return this worker, whatever is asked for."""
        return self._url

    def member_urls(self) -> tuple[str, ...]:
        """Return this worker."""
        return (self._url,)

    async def leave(self) -> None:
        """Forget that there was a round."""
        self._joined = False


@final
class StandaloneHerder:
    """Implements ``Herder`` and ``RunnableHerder``; its parts hold a ``SoloMembership``."""

    def __init__(self, parts: HerderParts, *, clock: Clock) -> None:
        self._herder = DistributedHerder(parts, clock=clock)
        self._clock = clock

    async def run(self) -> None:
        """Run; returns after ``stop``, or when it failed for good (``error``)."""
        await self._herder.run()

    def stop(self) -> None:
        """Begin an orderly stop."""
        self._herder.stop()

    @property
    def error(self) -> Exception | None:
        """Why it ended by itself."""
        return self._herder.error

    def problems(self) -> Sequence[str]:
        """What is wrong now, one line each."""
        return self._herder.problems()

    # ---- at once

    @property
    def worker_id(self) -> str:
        """Name of this worker in statuses."""
        return self._herder.worker_id

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that connectors write to."""
        return self._herder.cluster_id

    @property
    def flow(self) -> FlowName | None:
        """None: an ordinary worker."""
        return self._herder.flow

    def connectors(self) -> tuple[str, ...]:
        """Return the names of all connectors."""
        return self._herder.connectors()

    def info_now(self, name: str) -> ConnectorInfo | None:
        """Return a connector."""
        return self._herder.info_now(name)

    def status(self, name: str) -> ConnectorState:
        """Return all states of a connector."""
        return self._herder.status(name)

    def task_status(self, task: TaskId) -> WorkState:
        """Return the state of a task."""
        return self._herder.task_status(task)

    def topics(self, name: str) -> tuple[str, ...]:
        """Return the topics a connector uses."""
        return self._herder.topics(name)

    async def reset_topics(self, name: str) -> None:
        """Forget which topics a connector uses."""
        await self._herder.reset_topics(name)

    def session_key(self) -> SessionKey | None:
        """Return none: no other worker may ask anything."""
        return None

    def node_snapshot(self) -> NodeSnapshot:
        """Return lag and rates of the partitions that are copied."""
        return self._herder.node_snapshot()

    def member_urls(self) -> tuple[str, ...]:
        """Return this worker."""
        return self._herder.member_urls()

    async def apply_holds(self) -> None:
        """Nothing is held: there are no overrides."""
        await self._herder.apply_holds()

    # ---- through the queue

    async def health(self) -> Health:
        """Return whether the loop answers."""
        return await self._herder.health()

    async def info(self, name: str) -> ConnectorInfo:
        """Return a connector."""
        return await self._calm(lambda: self._herder.info(name))

    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, ConnectorConfig]]:
        """Return the task configs of a connector in order."""
        return await self._calm(lambda: self._herder.task_configs(name))

    async def offsets(self, name: str) -> Sequence[OffsetEntry]:
        """Return the stored positions of a connector."""
        return await self._calm(lambda: self._herder.offsets(name))

    # ---- changes

    async def create(
        self, name: str, config: ConnectorConfig, target: TargetState | None, *, actor: str
    ) -> ConnectorInfo:
        """Create a connector."""
        return await self._calm(lambda: self._herder.create(name, config, target, actor=actor))

    async def put_config(self, name: str, config: ConnectorConfig, *, actor: str) -> PutResult:
        """Create a connector or replace its config."""
        return await self._calm(lambda: self._herder.put_config(name, config, actor=actor))

    async def patch_config(self, name: str, patch: ConnectorConfig, *, actor: str) -> ConnectorInfo:
        """Change single keys of a config."""
        return await self._calm(lambda: self._herder.patch_config(name, patch, actor=actor))

    async def delete(self, name: str, *, actor: str) -> None:
        """Remove a connector."""
        await self._calm(lambda: self._herder.delete(name, actor=actor))

    async def stop_connector(self, name: str, *, actor: str) -> None:
        """Make a connector STOPPED."""
        await self._calm(lambda: self._herder.stop_connector(name, actor=actor))

    async def restart(self, name: str, *, only_failed: bool, include_tasks: bool) -> ConnectorState:
        """Restart a connector, its tasks, or what of both failed."""
        return await self._calm(
            lambda: self._herder.restart(name, only_failed=only_failed, include_tasks=include_tasks)
        )

    async def alter_offsets(self, name: str, entries: Sequence[OffsetEntry]) -> str:
        """Write positions of a STOPPED connector."""
        return await self._calm(lambda: self._herder.alter_offsets(name, entries))

    async def reset_offsets(self, name: str) -> str:
        """Remove all positions of a STOPPED connector."""
        return await self._calm(lambda: self._herder.reset_offsets(name))

    async def put_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Take task configs; nobody can sign such a request here."""
        await self._herder.put_task_configs(name, configs)

    async def fence(self, name: str) -> None:
        """Fence the producers of earlier tasks."""
        await self._calm(lambda: self._herder.fence(name))

    async def pause(self, name: str, *, actor: str) -> None:
        """Make a connector PAUSED."""
        await self._herder.pause(name, actor=actor)

    async def resume(self, name: str, *, actor: str) -> None:
        """Make a connector run."""
        await self._herder.resume(name, actor=actor)

    async def set_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level."""
        await self._herder.set_logger_level(namespace, level)

    async def restart_connector(self, name: str) -> None:
        """Restart the connector instance."""
        await self._calm(lambda: self._herder.restart_connector(name))

    async def restart_task(self, task: TaskId) -> None:
        """Restart one task."""
        await self._calm(lambda: self._herder.restart_task(task))

    async def _calm(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask; where a round is due first, or has not started the work yet, wait for it."""
        until = self._clock.monotonic() + CALM_WITHIN_S
        while True:
            try:
                return await ask()
            except (RebalanceExpectedError, ConflictError, ForwardError):
                if self._clock.monotonic() > until:
                    raise
            await self._clock.sleep(LOOK_EVERY_S)
