"""The loop of a task with transforms: what it does besides ``WorkerTask``, because records are dropped or sent to other target partitions.

Flow: acknowledgement -> ``SourceOrder`` -> ``Arrivals``; after each hand-over: what is done without a copy, topics that a
transform has named, source partitions that wait for another one's target.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, final

from mm2py.api.task import Outgoing
from mm2py.clock import or_stop
from mm2py.errors import FatalError, Mm2pyError
from mm2py.observability.logging import cause_text
from mm2py.protocol.record_batch import RecordBatch
from mm2py.runtime.tasks.source_order import SourceOrder
from mm2py.runtime.tasks.task_transactions import TaskTransactions
from mm2py.runtime.tasks.worker_task import WorkerTask
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

REST_S: Final = 10.0
"""How long a record that ends the task is waited with, for those before it."""

PART_WAIT_S: Final = 1.0
PART_PAUSE_S: Final = 0.05
"""How often it is looked at whether waiting for the rest still makes sense, and whether a permit is there."""


@final
class OrderedWorkerTask(WorkerTask):
    """Over a ``TransformedTask``; ``follow`` comes before ``start``."""

    _order: SourceOrder
    _sends: asyncio.Event
    """Cleared while a transaction waits for the rest of what is in it."""
    _stuck: dict[TopicPartition, Exception]
    """Target partitions that take nothing now."""

    def follow(self, order: SourceOrder) -> None:
        """Name what learns of each source batch; it reports what is done."""
        self._order = order
        order.follow(self._arrivals)
        self._sends = asyncio.Event()
        self._sends.set()
        self._stuck = {}

    async def _poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        try:
            outgoing = await super()._poll(budget_bytes)
        except FatalError:
            await self._finish()
            raise
        if not self._sends.is_set():
            await or_stop(self._sends.wait(), self._stop)
        return outgoing

    async def _finish(self) -> None:
        """Store the position before a record that ends the task, unless the target does not take what is left of it."""
        until_s = self._clock.monotonic() + REST_S
        while (
            not (self._order.is_done or self._stop.is_set()) and self._clock.monotonic() < until_s
        ):
            await self._clock.sleep(PART_PAUSE_S)
        if self._commits is None or not self._order.is_done:
            return  # outside of transactions every task commits at its end
        try:
            await self._commits.finish(REST_S)
        except Exception as error:  # noqa: BLE001 - the task ends here anyway, of another cause
            log.warning("last commit failed cause=%s", cause_text(error))

    def _send(self, outgoing: Sequence[Outgoing]) -> None:
        super()._send(outgoing)
        routed: set[str] = set()
        for source, target, _ in outgoing:
            known = self._sources.setdefault(target, set())
            if not known:
                if self._transactions is not None:
                    self._transactions.check_target(target.topic)
                routed.add(target.topic)
            if source not in known:
                known.add(source)
                if target in self._stuck:
                    self._show_stall(source, target, self._stuck[target])
            self._order.advance(source)
        if routed:
            self._sender.let_create(routed)
        for source, target in self._order.overdue():
            self._holds.hold_stalled(source, target)

    def _delivered(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        if not self._order.arrived(source, target, batch, base_offset):
            self._first_record(target.topic)
            meter = self._meters[source]
            meter.records += batch.count
            meter.bytes += len(batch.data)
            meter.newest_ms = max(meter.newest_ms, batch.max_timestamp)
        if self._held:
            self._holds.drained_at(target)
        if self._starved and self._has_room():
            self._room.set()

    def _stalled(self, target: TopicPartition, error: Exception | None) -> None:
        if error is None:
            self._stuck.pop(target, None)
        else:
            self._stuck[target] = error
        super()._stalled(target, error)

    def _show_stall(
        self, source: TopicPartition, target: TopicPartition, error: Exception | None
    ) -> None:
        if error is None:  # it may wait for another one
            waits = (it for it in self._stuck if source in self._sources.get(it, ()))
            target = next(waits, target)
            error = self._stuck.get(target)
        if error is not None and target != self._meters[source].target:
            error = Mm2pyError(
                f"a transform sends records to {target}, which takes none: {error}",
                remedy="where it does not exist create the topic, or add the partition",
            )
        super()._show_stall(source, target, error)

    async def _settle(self, parts: TaskTransactions) -> None:
        """Wait until all that was handed over is acknowledged: no position is inside of what transforms made of one batch."""
        self._sends.clear()
        try:
            while not parts.transactions.broken and not await self._sender.flush(PART_WAIT_S):
                if self._error is not None:
                    raise self._error
                await self._clock.sleep(PART_PAUSE_S)
        finally:
            self._sends.set()
        await super()._settle(parts)
