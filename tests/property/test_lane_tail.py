"""What a predecessor wrote is recognised record by record, however it was batched and whoever wrote between."""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2py.client.send import tail as tail_module
from mm2py.client.send.tail import LaneTail
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import TRANSACTIONAL_FLAG, Codec, RecordBatch
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.types import TopicPartition

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
        data = encode_batch([record for _, record in part], codec)
        data[:8] = part[0][0].to_bytes(8)
        runs: list[tuple[int, int]] = []
        for offset, _ in part:
            if runs and offset == runs[-1][0] + runs[-1][1]:
                runs[-1] = runs[-1][0], runs[-1][1] + 1
            else:
                runs.append((offset, 1))
        newest = max(record.timestamp for _, record in part)
        yield RecordBatch(
            data, part[0][0], part[-1][0], len(part), newest, 0, int(codec), tuple(runs), None
        )


class Target:
    """A log in memory."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.data: list[tuple[int, bytes]] = []

    def append(self, data: bytearray, count: int) -> int:
        data[:8] = self.end.to_bytes(8)
        base, self.end = self.end, self.end + count
        self.data.append((base, bytes(data)))
        return base

    async def read(self, position: int) -> FetchedPartition:
        found = next(data for base, data in reversed(self.data) if base <= position)
        return FetchedPartition(
            topic=TARGET.topic,
            topic_id=bytes(16),
            partition=0,
            error_code=0,
            high_watermark=self.end,
            last_stable_offset=self.end,
            log_start_offset=0,
            aborted=[],
            preferred_read_replica=-1,
            records=memoryview(found),
        )


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


async def test_records_of_others_in_transactions_end_the_look_for_copies_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail_module, "AHEAD_BYTES", 1_000)
    target, reads = Target(0), list[int]()
    source = [(number, a_record(number, 40)) for number in range(10)]
    copies, more = list(batches(source, [5], Codec.NONE))
    target.append(bytearray(copies.data), copies.count)
    for _ in range(100):
        data = encode_batch([NewRecord(b"foreign", b"x" * 50, (), 5)])
        attributes = int.from_bytes(data[21:23]) | TRANSACTIONAL_FLAG
        data[21:23] = attributes.to_bytes(2)
        target.append(data, 1)

    def read(position: int) -> Awaitable[FetchedPartition]:
        reads.append(position)
        return target.read(position)

    tail = LaneTail(TARGET, 0, target.end, read)
    found, sent = await compare(tail, [copies, more], source)
    assert (len(found), sent) == (5, list(range(5, 10)))
    assert tail.is_over
    assert len(reads) < 20


async def compare(
    tail: LaneTail, offered: list[RecordBatch], source: list[tuple[int, NewRecord]]
) -> tuple[dict[int, int], list[int]]:
    """Return where records were found, and those that are left to send, whose bytes are checked."""
    found: dict[int, int] = {}
    sent: list[int] = []
    for batch in offered:
        parts, rest = await tail.compare(batch)
        for part in parts:
            at = part.base_offset
            for first, count in part.batch.runs:
                found |= {first + step: at + step for step in range(count)}
                at += count
        if rest is not None:
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
