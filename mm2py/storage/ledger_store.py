"""The loss ledger of one flow, on the target: events in, acknowledged records out.

Flow: ``report`` -> (the ledger was read: what is known is left out) -> counted -> written in order,
retried until the target takes it -> acknowledged. Everything happens beside the data: a target
without a ledger delays positions of the partitions concerned, never records.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count, islice
from typing import Final, final

from mm2py.api.context import EventKind, EventSink, LossEvent
from mm2py.client.backoff import Backoff
from mm2py.clock import Clock, set_within
from mm2py.errors import Mm2pyError
from mm2py.mirror.ledger import (
    IncarnationRecord,
    KnownEvents,
    LedgerRecord,
    ReportedEvents,
    UnknownLedgerRecord,
    decode_ledger_record,
    encode_ledger_record,
)
from mm2py.observability.metrics import Finding, FlowMeter
from mm2py.protocol.records import Record
from mm2py.storage.table import Table
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

FIRST_RETRY_MS: Final = 200
LONGEST_RETRY_MS: Final = 30_000
LOOK_S: Final = 5.0
"""How long a task waits for the ledger to be read, without which it may miss recreated topics."""
STOP_FLUSH_S: Final = 1.0
MAX_RECORDS: Final = 500
"""Most events of one batch: a thousand broken partitions must not make one too large."""


@final
class LedgerStore(EventSink):
    """Implements ``mm2py.api.context.EventSink`` over Kafka.

    Args:
        table: the ledger topic; it is read once, not followed.
        meter: counts events, and names the flow.
    """

    def __init__(self, table: Table, *, meter: FlowMeter, clock: Clock) -> None:
        self._table, self._topic = table, table.topic
        self._meter = meter
        self._clock = clock
        self._reported = ReportedEvents()
        self._known: KnownEvents | None = None
        self._early: dict[int, LedgerRecord] = {}
        """Events that wait until the ledger was read, by number and in their order."""
        self._queue: dict[int, LedgerRecord | IncarnationRecord] = {}
        """Records to be written, likewise."""
        self._numbers = count()
        self._newest: dict[TopicPartition, int] = {}
        """The number of each partition's last record, which grows while it is there."""
        self._incarnations: dict[TopicPartition, bytes] = {}
        self._looked = asyncio.Event()
        self._unwritten: dict[TopicPartition, int] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open the ledger in the background; events may be reported from now on."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=f"ledger {self._topic}")
            self._running.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Close it; safe twice. A restart notices events again that are not acknowledged."""
        running, self._running = self._running, None
        if running is not None:
            if self._known is not None:
                await self.flush(STOP_FLUSH_S)
            running.cancel()
            # Not ``await running``: its CancelledError would look like ours.
            await asyncio.wait({running})
        if self._unwritten:
            log.warning(
                "ledger was not written to its end, what is left will be noticed again topic=%s "
                "events=%d",
                self._topic,
                sum(self._unwritten.values()),
            )
        self._forget()

    # -- EventSink --------------------------------------------------------------------------------

    def report(self, event: LossEvent) -> bool:
        if not self._reported.take(event):
            return False
        now_ms = self._clock.now_ms()
        # Another worker may have written it since the ledger was opened.
        if self._known is None or event.again:
            self._append(self._early, event, now_ms)
        else:
            self._accept(self._known, event, now_ms)
        self._work.set()
        return True

    def unwritten(self) -> Collection[TopicPartition]:
        return self._unwritten

    async def flush(self, timeout_s: float) -> bool:
        return await set_within(self._idle, timeout_s)

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        try:
            async with asyncio.timeout(LOOK_S):
                await self._looked.wait()
                if self._known is not None:
                    await self._table.read_to_end(LOOK_S)
        except (TimeoutError, Mm2pyError):
            log.warning(
                "ledger is not read yet, a topic that was recreated meanwhile may go unnoticed "
                "topic=%s",
                self._topic,
            )
        return dict(self._incarnations)

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        if self._incarnations.get(partition) == topic_id:
            return
        self._incarnations[partition] = topic_id
        if self._known is not None:
            self._known.copied(partition)
        self._newest.pop(partition, None)
        self._queue[next(self._numbers)] = IncarnationRecord(
            partition=partition,
            topic_id=topic_id,
            flow=str(self._meter.flow),
            time_ms=self._clock.now_ms(),
        )
        self._idle.clear()
        self._work.set()

    def _learn(self, record: LedgerRecord | IncarnationRecord | UnknownLedgerRecord) -> None:
        """Take what was written since the ledger was opened: incarnations, unless a newer one is
        still to be written, and events that a start reports again."""
        if isinstance(record, LedgerRecord) and record.flow == str(self._meter.flow):
            kind = record.event.kind
            of_failover = kind is EventKind.QUARANTINED
            if self._known is not None and (kind.may_repeat or of_failover):
                self._known.note(record.event)
            return
        if isinstance(record, IncarnationRecord) and record.flow == str(self._meter.flow):
            queued = {
                it.partition for it in self._queue.values() if isinstance(it, IncarnationRecord)
            }
            if record.partition not in queued:
                self._incarnations[record.partition] = record.topic_id

    # -- bookkeeping ------------------------------------------------------------------------------

    def _wait_for(self, partition: TopicPartition) -> None:
        self._unwritten[partition] = self._unwritten.get(partition, 0) + 1
        self._idle.clear()

    def _settled(self, partition: TopicPartition) -> None:
        left = self._unwritten.pop(partition) - 1
        if left:
            self._unwritten[partition] = left

    def _accept(self, known: KnownEvents, event: LossEvent, now_ms: int) -> None:
        for part in known.take(event):
            doubled = part.kind is EventKind.MAY_BE_DOUBLED
            self._meter.count_event(
                part.kind.value,
                lost=part.count if part.kind.is_loss else 0,
                may_be_doubled=part.count if doubled else 0,
            )
            self._append(self._queue, part, now_ms)

    def _append(
        self,
        queue: dict[int, LedgerRecord] | dict[int, LedgerRecord | IncarnationRecord],
        event: LossEvent,
        now_ms: int,
    ) -> None:
        """Append an event, or extend the range before it: retention goes faster than the ledger."""
        number = self._newest.get(event.partition, -1)
        before = queue.get(number)
        if isinstance(before, LedgerRecord) and _follows(before.event, event):
            grown = replace(before.event, last_offset=event.last_offset)
            queue[number] = replace(before, event=grown)
            return
        self._newest[event.partition] = number = next(self._numbers)
        queue[number] = LedgerRecord(event=event, flow=str(self._meter.flow), time_ms=now_ms)
        self._wait_for(event.partition)

    def _forget(self) -> None:
        self._reported.clear()
        self._known = None
        self._early.clear()
        self._queue.clear()
        self._newest.clear()
        self._unwritten.clear()
        self._incarnations.clear()
        self._looked.clear()
        self._idle.set()
        self._show("")

    # -- the writing side -------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(FIRST_RETRY_MS, LONGEST_RETRY_MS)
        is_open = failing = False
        try:
            while True:
                try:
                    if not is_open:
                        try:
                            await self._open()
                            is_open = True
                        finally:
                            # Also after a failure: a task starts
                            # without the ledger rather than never.
                            self._looked.set()
                    if self._early:
                        await self._table.read_to_end(LOOK_S)
                        self._accept_early()
                    await self._write_all()
                except Mm2pyError as error:
                    if not failing:
                        self._complain(error)
                    failing = True
                    self._show(str(error))
                    await self._clock.sleep(backoff.next_s())
                    continue
                if failing:
                    log.info("ledger works again topic=%s", self._topic)
                    self._show("")
                failing = False
                backoff.reset()
                await self._work.wait()
                self._work.clear()
        finally:
            await self._table.stop()

    async def _open(self) -> None:
        known, flow = KnownEvents(), str(self._meter.flow)
        events = strange = 0
        incarnations: dict[TopicPartition, bytes] = {}

        def take(_partition: int, record: Record) -> None:
            nonlocal events, strange
            decoded = decode_ledger_record(record.key, record.value)
            if self._known is known:  # what this process has written itself, or a failover
                self._learn(decoded)
            elif isinstance(decoded, UnknownLedgerRecord):
                strange += 1
            elif isinstance(decoded, IncarnationRecord):
                if decoded.flow == flow:
                    incarnations[decoded.partition] = decoded.topic_id
                    known.copied(decoded.partition)
            else:
                events += 1
                if decoded.flow == flow:
                    known.note(decoded.event)

        await self._table.start(take)
        if strange:
            log.warning(
                "ledger holds records of a version that this program does not know, they are kept"
                " topic=%s records=%d",
                self._topic,
                strange,
            )
        log.info("ledger read topic=%s events=%d", self._topic, events)
        # Queued since the task could not wait any longer: newer than what was read.
        newer = tuple(self._incarnations)
        self._incarnations = incarnations | self._incarnations
        self._known = known
        self._accept_early()
        for partition in newer:
            known.copied(partition)

    def _accept_early(self) -> None:
        assert self._known is not None
        early, self._early = self._early, {}
        for record in early.values():
            self._accept(self._known, record.event, record.time_ms)
            self._settled(record.event.partition)

    async def _write_all(self) -> None:
        while self._queue:
            # A copy: what is queued while the write is awaited goes into the next batch.
            batch = dict(islice(self._queue.items(), MAX_RECORDS))
            await self._table.post([encode_ledger_record(record) for record in batch.values()])
            for number, record in batch.items():
                # The queue is not locked: ``report`` may have
                # let an event grow while the batch was written.
                now = self._queue[number]
                if isinstance(now, LedgerRecord) and isinstance(record, LedgerRecord):
                    # It may have grown meanwhile; what was queued later comes after it.
                    if now != record:
                        rest = replace(now.event, first_offset=record.event.last_offset + 1)
                        self._queue[number] = replace(now, event=rest)
                        continue
                    self._settled(record.event.partition)
                del self._queue[number]
        if not self._early:
            self._idle.set()

    def _ended(self, running: asyncio.Task[None]) -> None:
        error = None if running.cancelled() else running.exception()
        if error is not None:
            log.error("ledger stopped by a defect topic=%s", self._topic, exc_info=error)

    def _show(self, cause: str) -> None:
        """Count in the flow's findings what is in no ledger yet; without a cause none is."""
        events = sum(self._unwritten.values()) if cause else 0
        text = f"{events} events are not in {self._topic} yet: {cause}" if events else ""
        self._meter.note_finding(
            Finding(task="ledger", what="unwritten events", text=text, count=events, harms=True)
        )

    def _complain(self, error: Mm2pyError) -> None:
        if not self._unwritten:
            log.info("ledger write is repeated topic=%s cause=%s", self._topic, error)
            return
        log.error(
            "ledger cannot be written, retried without end; positions behind lost ranges are not"
            " committed meanwhile topic=%s events=%d cause=%s",
            self._topic,
            sum(self._unwritten.values()),
            error,
        )


def _follows(before: LossEvent, event: LossEvent) -> bool:
    """Whether two events are one range."""
    return (
        min(before.count, event.count) > 0
        and event.first_offset == before.last_offset + 1
        and replace(event, first_offset=0, last_offset=0)
        == replace(before, first_offset=0, last_offset=0)
    )
