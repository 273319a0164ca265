"""Starts tasks again whose partitions failed for the size of a record, once the target topic takes
it.

Flow: ``FlowMeter.on_oversized`` -> every ``LIMITS_EVERY_S``, while there is one, the limits of
those topics -> restart of the task on the herder's loop. Nothing is asked while no partition waits
for a limit.

Invariants, tests of the same names:

1. A task is started again only for a limit that is higher than the one that its partition failed
   at, and holds the record.
2. No limit is tried twice for a record: a partition that fails again waits for a higher one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, final

from mm2py.clock import Clock, cancelled
from mm2py.observability.metrics import FlowMeter, Oversized
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.runtime.tasks.task_context import LIMITS_EVERY_S
from mm2py.types import State, TaskId, TopicPartition

log = logging.getLogger(__name__)

Limits = Callable[[Collection[str]], Awaitable[Mapping[str, int]]]
"""Returns ``max.message.bytes`` of topics, 0 or nothing where it is not known."""

FAILED: Final = State.FAILED.value


@final
class LimitWatch:
    """Watches the limits that failed partitions of this worker wait for.

    Args:
        meter: the flow's; partitions that wait are reported there.
        work: what runs on this worker.
        limits: asks the target.
        restart: starts tasks again on the herder's loop.
    """

    def __init__(
        self,
        meter: FlowMeter,
        work: AssignedWork,
        limits: Limits,
        restart: Callable[[frozenset[TaskId]], None],
        *,
        clock: Clock,
    ) -> None:
        self._meter, self._work, self._limits, self._restart = meter, work, limits, restart
        self._clock = clock
        self._waiting: dict[TopicPartition, Oversized] = {}
        self._tried: dict[TopicPartition, tuple[int, int]] = {}
        """The size for which a limit was tried, and the limit."""
        self._running: asyncio.Task[None] | None = None
        # Set, not added: a flow has one watch.
        meter.on_oversized = self._note

    async def close(self) -> None:
        """Watch no more; safe twice."""
        running, self._running = self._running, None
        await cancelled(running)
        self._waiting.clear()

    def _note(self, partition: Oversized) -> None:
        self._waiting[partition.source] = partition
        # No timer without a partition that waits: asking 1,000 topics for nothing costs the target.
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run(), name="limit watch")

    async def _run(self) -> None:
        while self._waiting:
            await self._clock.sleep(LIMITS_EVERY_S)
            # After the pause: its task may have been restarted by hand.
            self._drop_others()
            topics = {it.target for it in self._waiting.values()}
            limits: Mapping[str, int] = await self._limits(topics) if topics else {}
            raised = [
                it for it in self._waiting.values() if self._is_raised(it, limits.get(it.target, 0))
            ]
            for it in raised:
                del self._waiting[it.source]
                self._tried[it.source] = it.needed_bytes, limits[it.target]
                log.info(
                    "the target takes larger records, the task is started again task=%s partition=%s topic=%s limit=%d needed=%d",
                    it.task, it.source, it.target, limits[it.target], it.needed_bytes,
                )  # fmt: skip
            # One restart for all partitions of a task.
            names = {it.task for it in raised}
            tasks = frozenset(task for task in self._work.running.tasks if str(task) in names)
            if tasks:
                self._restart(tasks)

    def _is_raised(self, it: Oversized, limit_bytes: int) -> bool:
        needed, tried = self._tried.get(it.source, (0, 0))
        least = max(it.needed_bytes, it.limit_bytes + 1)
        return limit_bytes >= (max(least, tried + 1) if needed == it.needed_bytes else least)

    def _drop_others(self) -> None:
        """Forget partitions that wait no more: their task restarted or is another worker's."""
        failed = {
            str(task) for task, it in self._work.task_status().items() if it.state is State.FAILED
        }
        states = {it.source: (it.state, it.task) for it in self._meter.partitions}
        self._waiting = {
            source: it
            for source, it in self._waiting.items()
            if it.task in failed or states.get(source) == (FAILED, it.task)
        }
