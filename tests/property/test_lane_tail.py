"""What a predecessor wrote is recognised record by record, however it was batched and whoever wrote between."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Collection, Iterator, Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.client.send import tail as tail_module
from mm2py.client.send.tail import LaneTail
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import TRANSACTIONAL_FLAG, Codec, RecordBatch, build_batch
from mm2py.protocol.record_bytes import append_record
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch, record_body
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import source_batch
from tests.property.effort import examples

TARGET = TopicPartition("A.orders", 0)
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=12)
CODECS = st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP])


def a_record(number: int, kinds: int) -> NewRecord:
    """Return one of few different records: equal ones follow each other."""
    kind = number % kinds
    return NewRecord(b"k%d" % kind, b"v%d" % kind, ((b"h", None),), 1000 + kind)


def batches(
    records: Sequence[tuple[int, NewRecord]], sizes: Sequence[int], codec: Codec
) -> Iterator[RecordBatch]:
    """Cut records with their source offsets into batches."""
    at = turn = 0
    while at < len(records):
        part = records[at : at + sizes[turn % len(sizes)]]
        at, turn = at + len(part), turn + 1
        batch = source_batch([offset for offset, _ in part], [it for _, it in part], codec)
        batch.data[:8] = part[0][0].to_bytes(8)
        yield batch


class Target:
    """A log in memory."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.log_start = 0
        self.data: list[tuple[int, bytes]] = []

    def append(self, data: bytearray, count: int) -> int:
        data[:8] = self.end.to_bytes(8)
        base, self.end = self.end, self.end + count
        self.data.append((base, bytes(data)))
        return base

    async def read(self, position: int) -> FetchedPartition:
        position = max(position, self.log_start)
        ahead = [data for _, data in self.data if _last_offset(data) >= position]
        found = ahead[0] if ahead else None
        return FetchedPartition(
            topic=TARGET.topic,
            topic_id=bytes(16),
            partition=0,
            error_code=0,
            high_watermark=self.end,
            last_stable_offset=self.end,
            log_start_offset=self.log_start,
            aborted=[],
            preferred_read_replica=-1,
            records=None if found is None else memoryview(found),
        )

    def clean(self, left: Collection[int]) -> None:
        """Leave records at these offsets alone, as compaction does: a batch keeps its offsets, an empty one is gone."""
        batches: list[tuple[int, bytes]] = []
        for base, data in self.data:
            (decoded,) = decode_batches(memoryview(data))
            kept = [it for it in decoded.records if it.offset in left]
            if kept:
                batches.append((base, with_holes(data, base, kept)))
        self.data = batches


def with_holes(data: bytes, base: int, kept: Sequence[Record]) -> bytes:
    """Return a batch with some of its records, at their offsets."""
    payload, first = bytearray(), kept[0].timestamp
    for it in kept:
        body = record_body(it.key, it.value, it.headers)
        append_record(payload, body, it.timestamp - first, it.offset - base)
    newest = max(it.timestamp for it in kept)
    batch = build_batch(
        payload,
        base_offset=base,
        count=len(kept),
        base_timestamp=first,
        max_timestamp=newest,
        attributes=0,
    )
    batch[23:27] = data[23:27]
    return bytes(batch)


def _last_offset(data: bytes) -> int:
    return int.from_bytes(data[:8]) + int.from_bytes(data[23:27])


@settings(max_examples=examples(100))
@given(
    holes=st.lists(st.booleans(), min_size=1, max_size=40),
    kinds=st.integers(1, 40),
    copied=st.integers(0, 40),
    before=SIZES,
    now=SIZES,
    codecs=st.tuples(CODECS, CODECS),
    foreign=st.sets(st.integers(0, 12), max_size=3),
    start=st.integers(0, 1 << 40),
)
def test_nothing_that_is_there_is_sent_and_everything_else_is(
    holes: list[bool],
    kinds: int,
    copied: int,
    before: list[int],
    now: list[int],
    codecs: tuple[Codec, Codec],
    foreign: set[int],
    start: int,
) -> None:
    source: list[tuple[int, NewRecord]] = []
    offset = 100
    for number, hole in enumerate(holes):
        offset += 1 + hole
        source.append((offset, a_record(number, kinds)))
    target, place = Target(start), dict[int, int]()
    for turn, batch in enumerate(batches(source[:copied], before, codecs[0])):
        if turn in foreign:
            target.append(encode_batch([NewRecord(b"foreign", b"x", (), 5)]), 1)
        base = target.append(bytearray(batch.data), batch.count)
        for first, count in batch.runs:
            place |= {first + at: base + at for at in range(count)}
            base += count
    tail = LaneTail(TARGET, start, target.end, target.read)
    found, sent = asyncio.run(compare(tail, list(batches(source, now, codecs[1])), source))
    assert sorted([*found, *sent]) == [offset for offset, _ in source]
    assert found == place
    assert tail.recognised == len(place)


@settings(max_examples=examples(100))
@given(
    records=st.integers(1, 40),
    copied=st.integers(0, 40),
    before=SIZES,
    now=SIZES,
    source_left=st.sets(st.integers(0, 39)),
    removed=st.sets(st.integers(0, 39)),
    cut=st.integers(0, 40),
    offered_at_once=st.integers(1, 12),
)
def test_what_was_before_a_record_of_the_tail_is_not_sent_though_its_copy_is_gone(
    records: int,
    copied: int,
    before: list[int],
    now: list[int],
    source_left: set[int],
    removed: set[int],
    cut: int,
    offered_at_once: int,
) -> None:
    source = [(number, a_record(number, 40)) for number in range(records)]
    target, copied = Target(100), min(copied, records)
    for batch in batches(source[:copied], before, Codec.NONE):
        target.append(bytearray(batch.data), batch.count)
    left = [number for number in range(copied) if number not in removed and number >= cut]
    target.clean([100 + number for number in left])
    target.log_start = 100 + min(cut, copied)
    tail = LaneTail(TARGET, 100, target.end, target.read)
    whole = list(batches(source, now, Codec.NONE))
    found, sent = asyncio.run(compare(tail, whole, source, at_once=len(whole)))
    known = max(left, default=-1) + 1
    assert sent == list(range(known, records))
    assert found == {number: 100 + number for number in range(known)}
    # The source too has lost some: nothing that was not copied is passed over, whatever else is sent.
    lost = [it for it in source if it[0] in source_left]
    tail = LaneTail(TARGET, 100, target.end, target.read)
    some = list(batches(lost, now, Codec.NONE))
    found, sent = asyncio.run(compare(tail, some, source, at_once=offered_at_once))
    assert sorted([*found, *sent]) == [offset for offset, _ in lost]
    assert all(number < copied for number in found)


async def test_others_transactions_end_the_look_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "AHEAD_BYTES", 1_000)
    target, reads = Target(0), list[int]()
    source = [(number, a_record(number, 40)) for number in range(10)]
    copies, more = list(batches(source, [5], Codec.NONE))
    target.append(bytearray(copies.data), copies.count)
    for _ in range(100):
        target.append(in_a_transaction(), 1)

    def read(position: int) -> Awaitable[FetchedPartition]:
        reads.append(position)
        return target.read(position)

    tail = LaneTail(TARGET, 0, target.end, read)
    found, sent = await compare(tail, [copies, more], source)
    assert (len(found), sent) == (5, list(range(5, 10)))
    assert tail.is_over
    assert len(reads) < 20


async def test_4_transactions_and_others_between_copies_are_no_holes() -> None:
    target = Target(7)
    source = [(number, a_record(number, 40)) for number in range(30)]
    copies = list(batches(source, [3, 1, 6], Codec.NONE))
    for copy in copies:
        target.append(in_a_transaction(), 1)
        target.append(bytearray(copy.data), copy.count)
        target.append(encode_batch([NewRecord(b"foreign", b"x", (), 5)]), 1)
    tail = LaneTail(TARGET, 7, target.end, target.read)
    for copy in copies:
        assert not await tail.hole()
        parts, rest = await tail.compare(copy)
        assert (sum(part.batch.count for part in parts), rest) == (copy.count, None)
        assert not tail.has_holes


def in_a_transaction() -> bytearray:
    data = encode_batch([NewRecord(b"foreign", b"x" * 50, (), 5)])
    attributes = int.from_bytes(data[21:23]) | TRANSACTIONAL_FLAG
    data[21:23] = attributes.to_bytes(2)
    return data


async def compare(
    tail: LaneTail,
    offered: list[RecordBatch],
    source: list[tuple[int, NewRecord]],
    *,
    at_once: int = 1,
) -> tuple[dict[int, int], list[int]]:
    """Return where records were found, and those that are left to send, whose bytes are checked."""
    found: dict[int, int] = {}
    sent: list[int] = []
    queue = deque(offered)
    while queue:
        hole = await tail.hole()
        if hole and not tail.align(list(islice(queue, at_once)), hole):
            tail.give_up()
        batch = queue.popleft()
        parts, rest = await tail.compare(batch)
        for part in parts:
            at = part.base_offset
            for first, count in part.batch.runs:
                found |= {first + step: at + step for step in range(count)}
                at += count
        if rest is not None and not tail.is_over:
            queue.appendleft(rest)
        elif rest is not None:
            offsets = [first + step for first, count in rest.runs for step in range(count)]
            (decoded,) = decode_batches(memoryview(_resigned(rest)))
            wanted = [record for offset, record in source if offset in offsets]
            assert [(it.timestamp, it.key, it.value, it.headers) for it in decoded.records] == [
                (it.timestamp, it.key, it.value, tuple(it.headers)) for it in wanted
            ]
            sent += offsets
    return found, sent


def _resigned(batch: RecordBatch) -> bytearray:
    """Return the batch with its right CRC, as it leaves."""
    data = bytearray(batch.data)
    sign(data, producer_id=1, producer_epoch=0, base_sequence=0)
    return data
