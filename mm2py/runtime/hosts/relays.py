"""What a task host reports to its worker about one flow: losses and meters.

Flow: task -> ``LedgerRelay`` -> worker's ledger -> ``acknowledged`` -> positions may pass; ``FlowMeter`` ->
``MeterRelay.tell`` each second -> what changed -> worker's meters.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import Final, final

from mm2py.api.context import EventKind, EventSink, LossEvent
from mm2py.clock import Clock
from mm2py.observability.metrics import FlowMeter, PartitionMeter, PartitionSnapshot
from mm2py.runtime.hosts.messages import (
    Incarnation,
    IncarnationsQuestion,
    LedgerEntry,
    Meters,
)
from mm2py.types import TopicPartition

__all__ = ["LedgerRelay", "MeterRelay"]

log = logging.getLogger(__name__)

ANSWER_WITHIN_S: Final = 10.0
"""The worker itself waits up to 5 s for its ledger to be read."""


@final
class LedgerRelay(EventSink):
    """Implements ``EventSink`` over the pipe; the worker writes.

    Args:
        post: sends a message of this flow.
    """

    def __init__(
        self, post: Callable[[LedgerEntry | IncarnationsQuestion | Incarnation], None]
    ) -> None:
        self._post = post
        self._numbers = count(1)
        self._reported: set[tuple[EventKind, TopicPartition, int, int]] = set()
        self._waiting: dict[int, TopicPartition] = {}
        self._unwritten: Counter[TopicPartition] = Counter()
        self._idle = asyncio.Event()
        self._idle.set()
        self._questions: dict[int, asyncio.Future[Mapping[TopicPartition, bytes]]] = {}
        self._noted: dict[TopicPartition, bytes] = {}

    def report(self, event: LossEvent) -> bool:
        """Send an event; False when the same range was reported before (rules of ``LedgerStore``)."""
        key = (event.kind, event.partition, event.first_offset, event.last_offset)
        if event.kind is EventKind.RECREATED:
            # Offsets start over: the same numbers are other records from now on.
            self._reported = {known for known in self._reported if known[1] != event.partition}
        elif key in self._reported and event.kind is not EventKind.TRUNCATION:
            return False
        self._reported.add(key)
        number = next(self._numbers)
        self._waiting[number] = event.partition
        self._unwritten[event.partition] += 1
        self._idle.clear()
        self._post(LedgerEntry(number, event))
        return True

    def acknowledged(self, number: int) -> None:
        """The worker wrote an event."""
        partition = self._waiting.pop(number, None)
        if partition is None:
            return
        self._unwritten[partition] -= 1
        if not self._unwritten[partition]:
            del self._unwritten[partition]
        if not self._waiting:
            self._idle.set()

    def unwritten(self) -> Collection[TopicPartition]:
        """Source partitions with events that the worker has not written."""
        return self._unwritten

    async def flush(self, timeout_s: float) -> bool:
        """Wait until the worker wrote every event; False when time ran out."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        """Ask the worker which topic ids stored positions belong to."""
        number = next(self._numbers)
        answer: asyncio.Future[Mapping[TopicPartition, bytes]]
        answer = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._post(IncarnationsQuestion(number))
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                known = dict(await answer)
        except TimeoutError:
            log.warning("the worker does not answer, a recreated topic may go unnoticed")
            known = {}
        finally:
            self._questions.pop(number, None)
        return known | self._noted

    def answered(self, number: int, known: Mapping[TopicPartition, bytes]) -> None:
        """The worker answered ``incarnations``."""
        question = self._questions.get(number)
        if question is not None and not question.done():
            question.set_result(known)

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Send which topic id a stored position belongs to."""
        if self._noted.get(partition) != topic_id:
            self._noted[partition] = topic_id
            self._post(Incarnation(partition, topic_id))


@final
class MeterRelay:
    """Finds what changed in a flow's meters since it was told.

    Args:
        meter: the flow's meter in this process.
        post: sends a message of this flow.
    """

    def __init__(self, meter: FlowMeter, clock: Clock, post: Callable[[Meters], None]) -> None:
        self._meter = meter
        self._clock = clock
        self._post = post
        self._told: dict[TopicPartition, tuple[object, ...]] = {}
        self._gone: list[PartitionSnapshot] = []
        meter.on_forget = self._forgotten

    def tell(self) -> bool:
        """Send what changed; whether there was anything."""
        now_ms = self._clock.now_ms()
        changed: list[PartitionSnapshot] = []
        for meter in self._meter.partitions:
            # Times and rates move by themselves; the worker reckons its own.
            lasting: tuple[object, ...] = (
                meter.records,
                meter.lag_records,
                meter.newest_ms,
                meter.state,
                meter.cause,
                meter.paused,
                meter.target,
                meter.task,
            )
            if self._told.get(meter.source) != lasting:
                self._told[meter.source] = lasting
                changed.append(meter.snapshot(now_ms))
        gone, self._gone = self._gone, []
        if changed or gone:
            self._post(Meters(tuple(changed), tuple(gone)))
        return bool(changed or gone)

    def _forgotten(self, meter: PartitionMeter) -> None:
        self._told.pop(meter.source, None)
        self._gone.append(meter.snapshot(self._clock.now_ms()))
