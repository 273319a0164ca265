"""Lets a task that returns ordinary records run in the batch loop.

Flow: ``SourceTask.poll`` -> records grouped by target partition -> one batch each -> ``Outgoing``;
acknowledgement -> ``SourceTask.delivered`` per record. Numbers records itself, since a foreign source
offset need not be a number; a position is committed when every earlier record of its source partition
is acknowledged (Connect's ``SubmittedRecords``).
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final, final

from mm2py.api.records import SourceOffset, SourcePartition, SourceRecord
from mm2py.api.task import Delivery, Outgoing, SourceTask
from mm2py.clock import Clock
from mm2py.errors import FatalError
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition

__all__ = ["RecordTaskAdapter"]

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 512 << 10
"""Below the default ``max.message.bytes``, so that one record decides whether a batch is too large."""

IDLE_PAUSE_S: Final = 0.1
"""After an empty answer: a task that does not block must not spin the loop."""

BATCH_OVERHEAD_BYTES: Final = 32


class _Submitted:
    """Records of one source partition that are sent and not yet committed, oldest first."""

    __slots__ = ("acknowledged", "key", "offsets", "partition")

    def __init__(self, key: TopicPartition, partition: SourcePartition) -> None:
        self.key = key
        self.partition = partition
        self.offsets: dict[int, SourceOffset] = {}
        self.acknowledged: set[int] = set()


@final
class RecordTaskAdapter:
    """Implements ``BatchSourceTask`` over a ``SourceTask``, and knows its positions.

    A source partition's records that go to several target partitions travel in several lanes; each
    lane has a made-up source ``TopicPartition``, so that the worker sees one order per lane.
    """

    def __init__(self, task: SourceTask, clock: Clock) -> None:
        self._task = task
        self._clock = clock
        self._commit: Callable[[TopicPartition, int], None] | None = None
        self._sources: dict[frozenset[tuple[str, str | int]], _Submitted] = {}
        self._by_key: dict[TopicPartition, _Submitted] = {}
        self._lanes: dict[TopicPartition, dict[int, SourceRecord]] = {}
        self._lane_source: dict[TopicPartition, _Submitted] = {}
        self._committed: dict[TopicPartition, SourceOffset] = {}
        self._next = 0

    def commit_through(self, acknowledged: Callable[[TopicPartition, int], None]) -> None:
        """Name the committer that takes finished positions."""
        self._commit = acknowledged

    async def start(self) -> None:
        """Start the task."""
        await self._task.start()

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        """Return the task's next records as batches; the budget is the task's own affair, as in Java."""
        records = await self._task.poll()
        if not records:
            await self._clock.sleep(IDLE_PAUSE_S)
            return ()
        lanes: dict[TopicPartition, list[tuple[int, SourceRecord]]] = {}
        for record in records:
            lane = self._lane_of(record)
            lanes.setdefault(lane, []).append((self._number(lane, record), record))
        return [self._batches(lane, numbered) for lane, numbered in lanes.items()]

    def acknowledged(self, lane: TopicPartition, position: int) -> None:
        """Take an acknowledgement of a lane; passes on what became a finished prefix."""
        submitted = self._lane_source[lane]
        waiting = self._lanes[lane]
        for number in [number for number in waiting if number <= position]:
            submitted.acknowledged.add(number)
        last = -1
        for number in list(submitted.offsets):
            if number not in submitted.acknowledged:
                break
            submitted.acknowledged.discard(number)
            self._committed[submitted.key] = submitted.offsets.pop(number)
            last = number
        if last >= 0 and self._commit is not None:
            self._commit(submitted.key, last)

    def delivered(self, delivery: Delivery) -> None:
        """Tell the task about each record."""
        waiting = self._lanes[delivery.source]
        for run in delivery.runs:
            numbers = [
                n for n in waiting if run.source_offset <= n < run.source_offset + run.records
            ]
            for shift, number in enumerate(numbers):
                self._task.delivered(waiting.pop(number), run.target_offset + shift)

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        """Return the task's own source partition behind a committed key."""
        return self._by_key[partition].partition

    def source_offset(self, partition: TopicPartition, position: int) -> SourceOffset:
        """Return the task's own source offset of the newest finished record."""
        return self._committed[partition]

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Records cannot be held per partition: ``buffer.memory`` bounds what the task may add."""

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing was held."""

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """Nothing to give up: a refused record fails a record task as a whole (Connect's rule)."""

    async def commit(self) -> None:
        """Pass the commit on."""
        await self._task.commit()

    async def stop(self) -> None:
        """Stop the task."""
        await self._task.stop()

    def _lane_of(self, record: SourceRecord) -> TopicPartition:
        identity = frozenset(record.source_partition.items())
        submitted = self._sources.get(identity)
        if submitted is None:
            key = TopicPartition(f"source partition {dict(record.source_partition)}", 0)
            submitted = self._sources[identity] = _Submitted(key, record.source_partition)
            self._by_key[key] = submitted
        lane = TopicPartition(f"{submitted.key.topic} to {record.topic}", record.partition)
        if lane not in self._lanes:
            self._lanes[lane] = {}
            self._lane_source[lane] = submitted
        return lane

    def _number(self, lane: TopicPartition, record: SourceRecord) -> int:
        number = self._next
        self._next += 1
        # In the order the task returned them, whatever lane they travel in.
        self._lane_source[lane].offsets[number] = record.source_offset
        self._lanes[lane][number] = record
        return number

    def _batches(self, lane: TopicPartition, numbered: list[tuple[int, SourceRecord]]) -> Outgoing:
        target = TopicPartition(numbered[0][1].topic, numbered[0][1].partition)
        batches: list[list[tuple[int, SourceRecord]]] = []
        size = BATCH_BYTES
        for number, record in numbered:
            weight = _weight(record)
            if size + weight > BATCH_BYTES:
                batches.append([])
                size = 0
            batches[-1].append((number, record))
            size += weight
        return Outgoing(lane, target, [self._encoded(batch) for batch in batches])

    def _encoded(self, numbered: list[tuple[int, SourceRecord]]) -> RecordBatch:
        now_ms = self._clock.now_ms()
        stamps = [r.timestamp_ms if r.timestamp_ms >= 0 else now_ms for _, r in numbered]
        records = [
            NewRecord(record.key, record.value, record.headers, stamp)
            for (_, record), stamp in zip(numbered, stamps, strict=True)
        ]
        try:
            data = encode_batch(records)
        except (TypeError, ValueError) as error:
            topic = numbered[0][1].topic
            raise FatalError(
                f"the task returned a record for {topic} that cannot be encoded: {error}"
            ) from error
        runs = _runs([number for number, _ in numbered])
        return RecordBatch(
            data=data,
            base_offset=numbered[0][0],
            last_offset=numbered[-1][0],
            count=len(numbered),
            max_timestamp=max(stamps),
            leader_epoch=-1,
            attributes=0,
            runs=runs,
            lease=None,
        )


def _weight(record: SourceRecord) -> int:
    return (
        BATCH_OVERHEAD_BYTES
        + len(record.key or b"")
        + len(record.value or b"")
        + sum(len(key) + len(value or b"") + 8 for key, value in record.headers)
    )


def _runs(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Group ascending numbers into stretches without holes: ``(first, count)``."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][0] + runs[-1][1] == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return tuple(runs)
