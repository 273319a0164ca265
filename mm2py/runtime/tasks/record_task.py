"""Adapts a task that returns ordinary records to the batch loop.

Flow: ``SourceTask.poll`` -> transforms -> converters -> records grouped by target partition -> one
batch each -> ``Outgoing``; acknowledgement -> ``SourceTask.delivered`` per record. It numbers the
records itself, since a connector's source offset need not be a number; a position is committed once
every earlier record of its source partition is acknowledged (Connect's ``SubmittedRecords``).
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile
from typing import Final, NamedTuple, TypeVar, final

from mm2py.api.records import SinkRecord, SourceOffset, SourcePartition, SourceRecord
from mm2py.api.task import LEFT_OUT, Delivery, Outgoing, Run, SourceTask
from mm2py.client.parts import parts_of
from mm2py.clock import Clock
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import FatalError
from mm2py.protocol.record_batch import Codec, RecordBatch
from mm2py.protocol.record_bytes import join_runs
from mm2py.protocol.records import NewRecord, Record, pack_batch, record_body
from mm2py.runtime.plugins.converters.converter import DataError
from mm2py.runtime.plugins.converters.registry import (
    BYTES_ONLY,
    RecordConverters,
    record_converters,
)
from mm2py.runtime.plugins.transforms.chain import TransformChain, seen_headers
from mm2py.types import TopicPartition, is_topic_name

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_BYTES: Final = 512 << 10
"""Below the default ``max.message.bytes``, so that a batch is too large only if a single record
is."""

IDLE_PAUSE_S: Final = 0.1
"""After an empty answer: a task that does not block must not spin the loop."""

WORK_S: Final = 1.0
"""The contract of ``poll``: transforms that take longer are waited for by the next one."""

END_S: Final = 1.0
"""How long a running transform may delay the end of its task."""

SHOWN_RECORD_CHARS: Final = 2_000
"""Of a record in the log (``errors.log.include.messages``)."""

BATCH_OVERHEAD_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a connector's records become bytes, and what happens to one that cannot
    (``errors.*``)."""

    converters: RecordConverters = BYTES_ONLY
    errors: FrameworkConfig = field(default_factory=FrameworkConfig)

    @classmethod
    def of(cls, worker: Mapping[str, str], connector: Mapping[str, str]) -> "Conversion":
        """Read it from the configs of worker and connector; ``ConfigError``: a converter, or one of
        its keys, is wrong."""
        return cls(record_converters(worker, connector), parse_config(FrameworkConfig, connector))


class _Transformed(NamedTuple):
    """A record of the task, and what transforms made of it; None: nothing."""

    record: SourceRecord
    made: SourceRecord | None


class _Numbered(NamedTuple):
    """A record under way: its number, where it goes, and its bytes."""

    number: int
    target: TopicPartition
    record: NewRecord


@dataclass(slots=True, eq=False)
class _Submitted:
    """Records of one source partition that are sent and not yet committed, oldest first."""

    key: TopicPartition
    partition: SourcePartition
    offsets: dict[int, SourceOffset] = field(default_factory=dict[int, SourceOffset])
    acknowledged: set[int] = field(default_factory=set[int])


class _UnderWay(NamedTuple):
    """A record of a lane that is not acknowledged, and whose position it moves."""

    record: SourceRecord
    submitted: _Submitted


@final
class RecordTaskAdapter:
    """Implements ``BatchSourceTask`` over a ``SourceTask``, and knows its positions.

    All records for one target partition travel in one lane, so that records of many source
    partitions share batches; each lane has a made-up source ``TopicPartition``, so that the worker
    sees one order per lane.
    """

    def __init__(
        self,
        task: SourceTask,
        clock: Clock,
        conversion: Conversion | None = None,
        *,
        chain: TransformChain | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self._task, self._chain = task, chain
        self._stopping = stopping or threading.Event()
        self._working: asyncio.Future[list[_Transformed]] | None = None
        self._clock = clock
        self._conversion = conversion or Conversion()
        self._left_out = 0
        self._commit: Callable[[TopicPartition, int], None] | None = None
        self._sources: dict[frozenset[tuple[str, str | int]], _Submitted] = {}
        self._by_key: dict[TopicPartition, _Submitted] = {}
        self._lanes: dict[TopicPartition, dict[int, _UnderWay]] = {}
        self._committed: dict[TopicPartition, SourceOffset] = {}
        self._next = 0

    def commit_through(self, acknowledged: Callable[[TopicPartition, int], None]) -> None:
        """Name the committer that takes finished positions."""
        self._commit = acknowledged

    async def start(self) -> None:
        await self._task.start()

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        """Return the task's next records as batches; the budget is the task's own affair, as in
        Java."""
        working = self._working
        if working is None:
            records = await self._task.poll()
            # Java accepts null and an empty list alike (``SourceTask.poll``).
            if not records:
                await self._clock.sleep(IDLE_PAUSE_S)
                return ()
            await asyncio.sleep(
                0
            )  # a task that never waits must not keep what it returned from leaving
            if self._chain is None:
                return self._grouped([_Transformed(it, it) for it in records])
            # A transform may block.
            working = self._working = asyncio.ensure_future(
                asyncio.to_thread(self._transform_all, records)
            )
        # Not cancelled at the time-out: a thread cannot be, and its records would be lost.
        await asyncio.wait({working}, timeout=WORK_S)
        if not working.done():
            return ()
        self._working = None
        return self._grouped(working.result())

    def _grouped(self, records: Sequence[_Transformed]) -> Sequence[Outgoing]:
        lanes: dict[TopicPartition, list[_Numbered]] = {}
        for record, made in records:
            encoded = None if made is None else self._encode(made)
            topic, partition = (made or record).topic, (made or record).partition
            lane = TopicPartition(f"records for {topic}", partition)
            number = self._number(lane, record)
            # Dropped or left out: its position counts as done, and the task hears of it (Java calls
            # ``commitRecord`` without metadata).
            if encoded is None:
                self._skip(lane, number)
            else:
                target = TopicPartition(topic, partition)
                lanes.setdefault(lane, []).append(_Numbered(number, target, encoded))
        return [self._batches(lane, numbered) for lane, numbered in lanes.items()]

    def acknowledged(self, lane: TopicPartition, position: int) -> None:
        """Take an acknowledgement of a lane; passes on what became a finished prefix of a source
        partition."""
        moved: dict[int, _Submitted] = {}
        # A dict keeps the order of sending, so the first number beyond ends the search.
        for number, (_, submitted) in self._lanes[lane].items():
            if number > position:
                break
            submitted.acknowledged.add(number)
            moved[id(submitted)] = submitted
        for submitted in moved.values():
            self._advance(submitted)

    def _advance(self, submitted: _Submitted) -> None:
        """Commit the newest position before which everything is done."""
        last = -1
        # Connect's ``SubmittedRecords``: the longest prefix of acknowledged records decides, in the
        # order the task returned them.
        for number in list(submitted.offsets):
            if number not in submitted.acknowledged:
                break
            submitted.acknowledged.discard(number)
            self._committed[submitted.key] = submitted.offsets.pop(number)
            last = number
        if last >= 0 and self._commit is not None:
            self._commit(submitted.key, last)

    def delivered(self, delivery: Delivery) -> None:
        waiting = self._lanes[delivery.source]
        for run in delivery.runs:
            numbers = list(
                dropwhile(run.source_offset.__gt__, takewhile(_end_of(run).__gt__, waiting))
            )
            for shift, number in enumerate(numbers):
                # A broker that has forgotten where a batch is says so of the whole batch.
                offset = run.target_offset + shift if run.target_offset >= 0 else LEFT_OUT
                self._task.delivered(waiting.pop(number).record, offset)

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        return self._by_key[partition].partition

    def source_offset(self, partition: TopicPartition, position: int) -> SourceOffset:
        """Return the task's own source offset of the newest finished record."""
        return self._committed[partition]

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Records cannot be held per partition: ``buffer.memory`` bounds what the task may add."""

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing was held."""

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """Do nothing: a rejected record fails the whole task (Connect's rule)."""

    async def commit(self) -> None:
        await self._task.commit()

    async def stop(self) -> None:
        self._stopping.set()
        working, self._working = self._working, None
        if working is not None:
            await end_work(working)
        if self._chain is not None:
            self._chain.close()
        await self._task.stop()

    def _submitted(self, record: SourceRecord) -> _Submitted:
        # A source partition is a map: two tasks may give its members in another order.
        identity = frozenset(record.source_partition.items())
        submitted = self._sources.get(identity)
        if submitted is None:
            key = TopicPartition(f"source partition {dict(record.source_partition)}", 0)
            submitted = self._sources[identity] = _Submitted(key, record.source_partition)
            self._by_key[key] = submitted
        return submitted

    def _number(self, lane: TopicPartition, record: SourceRecord) -> int:
        number = self._next
        self._next += 1
        submitted = self._submitted(record)
        # In the order the task returned them, whatever lane they travel in.
        submitted.offsets[number] = record.source_offset
        self._lanes.setdefault(lane, {})[number] = _UnderWay(record, submitted)
        return number

    def _transform_all(self, records: Sequence[SourceRecord]) -> list[_Transformed]:
        done = self._stopping.is_set  # after the end of the task the result counts no more
        return [_Transformed(it, None if done() else self._transformed(it)) for it in records]

    def _transformed(self, record: SourceRecord) -> SourceRecord | None:
        """Return what transforms make of a record, None where they drop it; a part that they leave
        keeps its schema."""
        assert self._chain is not None, "it is what this is about"
        # One record type for transforms of sources and sinks; a source's record has no offset of
        # Kafka (-1).
        given = SinkRecord(
            record.topic,
            record.partition,
            record.key,
            record.value,
            seen_headers(record.headers),
            record.timestamp_ms,
            -1,
            record.topic,
            record.partition,
        )
        left = self._chain.apply(given)
        if left is None or left is given:
            return None if left is None else record
        return replace(
            record,
            topic=left.topic,
            partition=left.partition,
            key=left.key,
            # A value that a transform has replaced does not fit the schema that the task declared.
            key_schema=record.key_schema if left.key is record.key else None,
            value=left.value,
            value_schema=record.value_schema if left.value is record.value else None,
            headers=tuple(left.headers),
            timestamp_ms=left.timestamp_ms,
        )

    def _encode(self, record: SourceRecord) -> NewRecord | None:
        """Return a record's bytes; None where it cannot be converted and may be left out."""
        # As Java's producer: a record without a timestamp gets the time of its sending.
        stamp = record.timestamp_ms if record.timestamp_ms >= 0 else self._clock.now_ms()
        try:
            # Java's producer throws InvalidTopicException for such a name.
            _check_name(record.topic)
            encoded = self._conversion.converters.encoded(record)
        except DataError as error:
            where, errors = f"record for {record.topic}", self._conversion.errors
            if errors.errors_tolerance != "all":
                raise FatalError(
                    f"the task returned a {where} of which {error.message}",
                    remedy=error.remedy
                    or "name a converter that fits, or set errors.tolerance=all to leave it out",
                ) from error
            # The first one always: silence would hide that records are missing.
            if errors.errors_log_enable or not self._left_out:
                if errors.errors_log_include_messages:
                    where = f"{where} {_described(record)}"
                log.warning("record is left out (errors.tolerance=all) %s cause=%s", where, error)
            self._left_out += 1
            return None
        return NewRecord(encoded.key, encoded.value, encoded.headers, stamp)

    def _skip(self, lane: TopicPartition, number: int) -> None:
        record, submitted = self._lanes[lane].pop(number)
        submitted.acknowledged.add(number)
        self._advance(submitted)
        self._task.delivered(record, LEFT_OUT)

    def _batches(self, lane: TopicPartition, numbered: list[_Numbered]) -> Outgoing:
        batches = parts_of(numbered, lambda it: _weight(it.record), BATCH_BYTES)
        return Outgoing(lane, numbered[0].target, [_encoded(batch) for batch in batches])


async def end_work(working: "asyncio.Future[T]") -> None:
    """Wait for transforms at the end of their task, but not for long; what they made counts no
    more."""
    if not (await asyncio.wait({working}, timeout=END_S))[0]:
        log.warning("a transform is still running; abandoned")
    # Reads the exception: asyncio would report it as never retrieved.
    working.add_done_callback(lambda it: it.cancelled() or it.exception())


def new_batch(
    numbers: Sequence[int], records: Sequence[NewRecord | Record], codec: Codec = Codec.NONE
) -> RecordBatch:
    """Return a batch of records with these ascending source offsets, or sequence numbers in their
    place."""
    bodies = [record_body(record.key, record.value, record.headers) for record in records]
    return packed_batch(numbers, [record.timestamp for record in records], bodies, codec)


def packed_batch(
    numbers: Sequence[int], stamps: Sequence[int], bodies: Sequence[bytes], codec: Codec
) -> RecordBatch:
    """As ``new_batch``, from what ``pack_batch`` takes."""
    return RecordBatch(
        data=pack_batch(stamps, bodies, codec),
        base_offset=numbers[0],
        last_offset=numbers[-1],
        count=len(numbers),
        max_timestamp=max(stamps),
        leader_epoch=-1,
        attributes=int(codec),
        runs=join_runs((number, 1) for number in numbers),
        lease=None,
    )


def _check_name(topic: str) -> None:
    """Refuse what a broker answers with for ever: the record would wait."""
    if not is_topic_name(topic):
        text = "no topic can have this name"
        raise DataError(text, remedy="use letters, digits, . _ and -, at most 249")


def _encoded(numbered: list[_Numbered]) -> RecordBatch:
    try:
        return new_batch([each.number for each in numbered], [each.record for each in numbered])
    except (TypeError, ValueError) as error:
        topic = numbered[0].target.topic
        raise FatalError(
            f"the task returned a record for {topic} that cannot be encoded: {error}"
        ) from error


def _end_of(run: Run) -> int:
    return run.source_offset + run.records


def _weight(record: NewRecord) -> int:
    return (
        BATCH_OVERHEAD_BYTES
        + len(record.key or b"")
        + len(record.value or b"")
        + sum(len(key) + len(value or b"") + 8 for key, value in record.headers)
    )


def _described(record: SourceRecord) -> str:
    text = (
        f"source_partition={record.source_partition} source_offset={record.source_offset}"
        f" timestamp_ms={record.timestamp_ms} key={record.key!r} value={record.value!r} "
        f"headers={record.headers!r}"
    )
    return text if len(text) <= SHOWN_RECORD_CHARS else f"{text[:SHOWN_RECORD_CHARS]}..."
