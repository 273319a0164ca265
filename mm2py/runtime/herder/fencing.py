"""Zombies of earlier task configs are fenced before tasks with exactly-once support start (kcr 4.6).

Flow: a task's producer -> ``fence`` -> the leader: one round per connector and commit of task configs: InitProducerId on
every transactional id of the tasks before -> task count record -> the task gets its producer -> ``verify``: are its
configs still in force, and is it still assigned here? A round is skipped where the record is newer than the commit.

Invariants (tests of the same names):

1. The task count record of a commit is written only when all producers of the tasks before it are fenced.
2. A record is not written for another commit than the one its round was for.
3. A task whose configs were replaced before its producer was made does not start.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from mm2py.errors import FatalServerError, Mm2pyError, RetriableError
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.errors import (
    BadRequestError,
    ConflictError,
    ForwardError,
    NotFoundError,
)
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.types import TaskId, Work

__all__ = ["Fencing"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Round:
    """What one round is for: the commit by its generation, its tasks, and those of the record before."""

    generation: int
    tasks: int
    fenced: int | None


@final
class Fencing(StartGuard):
    """Fences as the leader, asks the leader otherwise.

    Args:
        parts: the herder's.
        queue: where the leader writes.
        running: the work that is assigned to this worker.
    """

    def __init__(self, parts: HerderParts, queue: HerderQueue, running: Callable[[], Work]) -> None:
        self._parts, self._queue, self._running = parts, queue, running
        self._rounds: dict[str, asyncio.Task[None]] = {}

    # ---- tasks of this worker

    async def fence(self, task: TaskId) -> None:
        """Return when the leader has fenced the producers of earlier configs of a connector here."""
        try:
            if self._parts.membership.is_leader:
                await self.fence_connector(task.connector)
                return
            await self._ask_leader(task.connector)
        except (RetriableError, FatalServerError):
            raise
        except Mm2pyError as error:
            raise RetriableError(
                f"producers of earlier tasks are not fenced yet: {error.message}",
                remedy=error.remedy,
            ) from error

    async def _ask_leader(self, connector: str) -> None:
        url = self._parts.membership.leader_url
        key = self._parts.config.snapshot().session_key
        if url is None or key is None:
            raise RetriableError("the leader of the group is not known yet")
        await self._parts.peers.put_fence(url, connector, key)

    async def verify(self, task: TaskId, generation: int) -> None:
        """Return when a task that has its producer may still start here (3)."""
        parts = self._parts
        await parts.config.refresh(parts.settings.worker_sync_timeout_ms / 1000)
        if parts.config.snapshot().generations.get(task.connector, -1) != generation:
            raise RetriableError(
                f"Cannot start source task {task} with exactly-once support as the connector has already"
                " generated a new set of task configs"
            )
        if not parts.membership.permit.valid or task not in self._running().tasks:
            raise RetriableError(
                f"Cannot start source task {task} with exactly-once support as it has already been"
                " revoked from this worker"
            )

    # ---- the leader

    async def fence_connector(self, name: str) -> None:
        """Fence the producers of earlier task configs; calls for one connector share a round.

        Raises:
            ForwardError: another worker leads.
            NotFoundError: no such connector.
            BadRequestError: it is not a source connector.
            ConflictError: new task configs were written meanwhile.
        """
        running = self._rounds.get(name)
        if running is None:
            running = self._rounds[name] = asyncio.create_task(self._round(name), name="fencing")
            running.add_done_callback(lambda _: self._rounds.pop(name, None))
        await asyncio.shield(running)

    async def _round(self, name: str) -> None:
        async def look() -> _Round | None:
            await self._refresh()
            return self._pending(name)

        pending = await self._queue.submit(look)
        if pending is None:
            return
        before = pending.fenced
        # One producer before and one now have the same id: the new one fences the old one by itself.
        if before is not None and not before == pending.tasks == 1:
            await self.fence_tasks(name, before)
            log.info("producers of earlier tasks are fenced connector=%s count=%d", name, before)

        async def note() -> None:
            await self._refresh()
            now = self._pending(name)
            if now is None:
                return
            if now.generation != pending.generation:
                raise ConflictError(
                    "Fencing failed because new task configurations were generated for the connector"
                )
            await self._parts.config.put_fenced(name, now.tasks)

        await self._queue.submit(note)

    async def fence_tasks(self, name: str, count: int) -> None:
        """Fence the producers of the first ``count`` tasks of a connector."""
        group = self._parts.settings.group_id
        await self._parts.fence_producers([f"{group}-{name}-{number}" for number in range(count)])

    async def _refresh(self) -> None:
        self._need_leader()
        parts = self._parts
        await parts.config.refresh(parts.settings.worker_sync_timeout_ms / 1000)
        self._need_leader()

    def _need_leader(self) -> None:
        membership = self._parts.membership
        if not membership.permit.valid:
            raise ForwardError(None)  # another worker may lead by now
        if not membership.is_leader:
            raise ForwardError(membership.leader_url)

    def _pending(self, name: str) -> _Round | None:
        snapshot = self._parts.config.snapshot()
        config = snapshot.connectors.get(name)
        if config is None:
            raise NotFoundError(f"Connector {name} not found")
        if self._parts.node.catalog.connector_type(config) == "sink":
            raise BadRequestError(f"Connector {name} is not a source connector")
        if name not in snapshot.pending_fencing:
            return None
        return _Round(
            snapshot.generations.get(name, -1),
            snapshot.task_counts.get(name, 0),
            snapshot.task_count_records.get(name),
        )
