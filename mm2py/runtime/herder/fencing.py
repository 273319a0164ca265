"""Zombies of earlier task configs are fenced before tasks with exactly-once support start, as
Connect's ``ZombieFencing`` does (KIP-618).

Flow: commit of task configs -> every worker stops the tasks before, a round of the group ->
``compare`` on the leader: InitProducerId on every transactional id of the tasks before -> task
count record -> each worker reads it, ``fence`` returns -> the task gets its producer -> ``verify``:
are its configs still in force, and is it still assigned here? Workers ask each other for nothing.

Invariants (tests of the same names):

1. The task count record of a commit is written only when all producers of the tasks before it are
   fenced.
2. A record is not written for another commit than the one its round was for.
3. A task whose configs were replaced before its producer was made does not start.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import FatalServerError, Mm2pyError, RetriableError
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import TaskId, Work

log = logging.getLogger(__name__)

FENCED_S: Final = 30.0
"""How long a task waits for the leader before it fails, and is started again."""
LOOK_EVERY_S: Final = 0.1
RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _FencingRound:
    """One round of fencing: the commit by its generation, its number of tasks, and that of the task
    count record before."""

    generation: int
    tasks: int
    fenced: int | None


@final
class Fencing(StartGuard):
    """Fences as the leader, waits for the leader's record everywhere.

    Args:
        parts: the herder's.
        queue: where the leader writes.
        running: the work that is assigned to this worker.
        clock: time.
    """

    def __init__(
        self, parts: HerderParts, queue: HerderQueue, running: Callable[[], Work], *, clock: Clock
    ) -> None:
        self._parts, self._queue, self._running, self._clock = parts, queue, running, clock
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, Mm2pyError] = {}

    # ---- tasks of this worker

    async def fence(self, task: TaskId) -> None:
        """Return when the leader has fenced the producers of a connector's earlier configs."""
        until_s = self._clock.monotonic() + FENCED_S
        # Polled: the record comes through the config topic, and waiting tasks are rare.
        while task.connector in self._parts.config.snapshot().pending_fencing:
            error = self._failed.get(task.connector)
            # A missing ACL does not go away; its tasks fail at once.
            if isinstance(error, FatalServerError):
                raise error
            if self._clock.monotonic() >= until_s:
                cause = (
                    (
                        f"the leader of the group at {self._parts.membership.leader_url} has not "
                        "done it"
                    )
                    if error is None
                    else str(error)
                )
                raise RetriableError(f"producers of earlier tasks are not fenced yet: {cause}")
            await self._clock.sleep(LOOK_EVERY_S)

    async def verify(self, task: TaskId, generation: int) -> None:
        """Return when a task that has its producer may still start here (3)."""
        parts = self._parts
        # Java's ``verifyTaskGenerationAndOwnership`` reads to the end here as well.
        await parts.config.refresh(parts.settings.worker_sync_timeout_ms / 1000)
        if parts.config.snapshot().generations.get(task.connector, -1) != generation:
            raise RetriableError(
                f"Cannot start source task {task} with exactly-once support as the connector has "
                "already generated a new set of task configs"
            )
        # Running here is what was assigned in the last round; without a permit that may be over.
        if not parts.membership.permit.valid or task not in self._running().tasks:
            raise RetriableError(
                f"Cannot start source task {task} with exactly-once support as it has already been"
                " revoked from this worker"
            )

    # ---- the leader

    def problems(self) -> Mapping[str, str]:
        pending = self._parts.config.snapshot().pending_fencing
        return {
            f"{name}: producers of earlier tasks are not fenced": str(error)
            for name, error in self._failed.items()
            if name in pending
        }

    def compare(self, snapshot: ConfigSnapshot) -> None:
        """As the leader, begin a round for every connector whose tasks wait for one.

        To be called after a round of the group: every member has stopped the tasks before then, so
        that only zombies are fenced.
        """
        if not self._parts.settings.leader_writes_in_transactions or not self._leads():
            return
        # One round per connector at a time, as Java's ``activeZombieFencings``.
        for name in snapshot.pending_fencing - self._rounds.keys():
            pending = self._pending(name, snapshot)
            if pending is not None:
                running = asyncio.create_task(self._follow(name, pending), name="fencing")
                self._rounds[name] = running
                running.add_done_callback(partial(self._ended, name))

    def resign(self) -> None:
        """Another worker leads by now, or soon: fence nothing more."""
        # A former leader's fence would hit the producers of the next leader's tasks.
        for running in self._rounds.values():
            running.cancel()
        self._failed.clear()

    async def fence_tasks(self, name: str, count: int) -> None:
        """Fence the producers of the first ``count`` tasks of a connector."""
        group = self._parts.settings.group_id
        # ``<group.id>-<connector>-<task>``: the ids of KIP-618 fence Java's tasks alike.
        await self._parts.fence_producers([f"{group}-{name}-{number}" for number in range(count)])

    async def _follow(self, name: str, pending: _FencingRound) -> None:
        try:
            await self._round(name, pending)
        except Mm2pyError as error:
            # Tried every second; logged when the cause changes.
            if str(self._failed.get(name)) != str(error):
                log.warning(
                    "producers of earlier tasks are not fenced yet, tried again connector=%s "
                    "cause=%s",
                    name,
                    error,
                )
            self._failed[name] = error
            await self._clock.sleep(RETRY_S)
        else:
            self._failed.pop(name, None)

    def _ended(self, name: str, _: asyncio.Task[None]) -> None:
        del self._rounds[name]
        self._queue.wake()  # the loop compares again

    async def _round(self, name: str, pending: _FencingRound) -> None:
        async def is_due() -> bool:
            parts = self._parts
            await parts.config.refresh(parts.settings.worker_sync_timeout_ms / 1000)
            # With other task configs by now, the round of the group that they need comes first.
            return self._leads() and self._pending(name, parts.config.snapshot()) == pending

        # In the queue, so that no change of the connector is half written.
        if not await self._queue.submit(is_due):
            return
        before = pending.fenced
        # One producer before and after have one id: the new one fences the old itself.
        if before is not None and not before == pending.tasks == 1:
            await self.fence_tasks(name, before)
            log.info("producers of earlier tasks are fenced connector=%s count=%d", name, before)

        async def note() -> None:
            # Fencing took time: this record could release tasks of a newer commit (2).
            if await is_due():
                await self._parts.config.put_fenced(name, pending.tasks)

        await self._queue.submit(note)

    def _leads(self) -> bool:
        membership = self._parts.membership
        return membership.permit.valid and membership.is_leader

    def _pending(self, name: str, snapshot: ConfigSnapshot) -> _FencingRound | None:
        """Return the round that a connector waits for; a sink, or one without tasks, waits for
        none."""
        config = snapshot.connectors.get(name)
        if (
            config is None
            or name not in snapshot.pending_fencing
            # Nothing to fence or count without tasks, as of STOPPED connectors (KIP-875).
            or not snapshot.tasks(name)
            or self._parts.node.catalog.connector_type(config) == "sink"
        ):
            return None
        return _FencingRound(
            snapshot.generations.get(name, -1),
            snapshot.task_counts.get(name, 0),
            snapshot.task_count_records.get(name),
        )
