"""The protocol on generated and damaged bytes: readers, codecs, splices."""

import contextlib
import struct
from collections.abc import Callable
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.client.connect.wire import FrameReceiver
from mm2py.errors import ProtocolError
from mm2py.protocol import group_messages, messages
from mm2py.protocol.batch_stage import classify, sign
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.call import Call
from mm2py.protocol.fetch import decode_fetch
from mm2py.protocol.produce import decode_produce
from mm2py.protocol.record_batch import Codec, RecordBatch, crc32c
from mm2py.protocol.record_bytes import read_varint, varint
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.protocol.splice import SplitResult, merge, recompress, repack, split
from mm2py.protocol.topics import EpochQuery, OffsetQuery
from tests.property.effort import examples

bodies = st.binary(max_size=300).map(lambda raw: memoryview(bytearray(raw)))
fields = st.none() | st.binary(max_size=50)
new_records = st.builds(
    NewRecord,
    fields,
    fields,
    st.lists(st.tuples(st.binary(max_size=5), fields), max_size=3),
    st.integers(-1, 2**50),
)
relaxed = settings(max_examples=examples(35))
CALLS: list[Call[object]] = [
    messages.api_versions(),
    messages.metadata(None),
    messages.list_offsets([OffsetQuery("t", 0, -1)]),
    messages.offset_for_leader_epoch([EpochQuery("t", 0, 1)]),
    group_messages.find_coordinator("g"),
    group_messages.describe_groups(["g"]),
    group_messages.offset_fetch("g"),
]


DECODERS: list[tuple[int, int, Callable[[int, memoryview], object]]] = [
    (4, 18, decode_fetch),
    (3, 13, decode_produce),
    *((it.min_version, it.max_version, it.decode) for it in CALLS),
]


@settings(max_examples=examples(150))
@given(st.sampled_from(DECODERS), st.data(), bodies)
def test_answers_of_any_bytes(
    decoder: tuple[int, int, Callable[[int, memoryview], object]],
    pick: st.DataObject,
    body: memoryview,
) -> None:
    first, last, decode = decoder
    with contextlib.suppress(ProtocolError):
        decode(pick.draw(st.integers(first, last)), body)


@relaxed
@given(bodies, st.integers(0, 2**62))
def test_record_sets_of_any_bytes(body: memoryview, wanted: int) -> None:
    result = classify(body, wanted, None)
    assert result.next_offset >= wanted
    with contextlib.suppress(ProtocolError):
        list(decode_batches(body))


@relaxed
@given(
    st.lists(new_records, min_size=1, max_size=4),
    st.sampled_from(list(Codec)),
    st.integers(8, 400),
    st.integers(0, 255),
    st.integers(0, 5),
)
@example([NewRecord(None, None)], Codec.NONE, 61, 0, 0)
def test_damage_under_a_right_crc_is_a_problem_or_harmless(
    rows: list[NewRecord], codec: Codec, position: int, byte: int, wanted: int
) -> None:
    raw = encode_batch(rows, codec)
    position %= len(raw)
    raw[position] = byte
    struct.pack_into(">I", raw, 17, crc32c(memoryview(raw)[21:]))
    classify(memoryview(raw), wanted, None)
    classify(memoryview(raw), 0, None, aborted=[(-1, 0)])
    for batch in classify(memoryview(raw), 0, None).batches:
        # What the target makes us do with it.
        forms: list[Callable[[RecordBatch], RecordBatch | SplitResult]] = [
            lambda one: merge([one, one]),
            lambda one: split(one, 80),
            repack,
            lambda one: recompress(one, Codec.LZ4),
            lambda one: recompress(one, Codec.NONE),
        ]
        for form in forms:
            with contextlib.suppress(ProtocolError):
                form(batch)
    with contextlib.suppress(ProtocolError):
        list(decode_batches(raw))


@relaxed
@given(st.lists(new_records, min_size=1, max_size=20), st.sampled_from(list(Codec)))
def test_records_read_back_as_written(rows: list[NewRecord], codec: Codec) -> None:
    (batch,) = decode_batches(encode_batch(rows, codec))
    assert [(r.key, r.value, list(r.headers), r.timestamp) for r in batch.records] == [
        (r.key, r.value, list(r.headers), r.timestamp) for r in rows
    ]


@relaxed
@given(st.integers(-(2**63), 2**63 - 1))
def test_varints_read_back(value: int) -> None:
    raw = varint(value)
    assert read_varint(raw, 0) == (value, len(raw))


@relaxed
@given(st.lists(st.integers(0, 40_000), max_size=8), st.lists(st.integers(1, 70_000), max_size=30))
def test_frames_survive_any_chunking(sizes: list[int], chunks: list[int]) -> None:
    sent = [(n, bytes([n]) * size) for n, size in enumerate(sizes)]
    stream = b"".join(struct.pack(">ii", len(body) + 4, n) + body for n, body in sent)
    received: list[tuple[int, bytes]] = []
    pool = BufferPool()
    receiver = FrameReceiver(pool)
    position = 0
    while position < len(stream):
        buffer = receiver.get_buffer()
        most = chunks[position % len(chunks)] if chunks else 1 << 20
        piece = stream[position : position + min(most, len(buffer))]
        buffer[: len(piece)] = piece
        receiver.take(len(piece), lambda number, body, _: received.append((number, bytes(body))))
        position += len(piece)
    assert received == sent
    assert pool.leased_bytes == 0


Key = bytes | None
BASE = 1_000_000


class Row(NamedTuple):
    """What must survive."""

    offset: int
    timestamp: int
    key: Key
    value: Key
    headers: tuple[tuple[str, Key], ...]


data = st.none() | st.binary(max_size=40) | st.binary(max_size=3).map(lambda part: part * 900)
rows = st.lists(
    st.tuples(
        st.integers(0, 3) | st.just(5000),  # hole before the record
        st.integers(0, 2**41),  # aiokafka writes -1 as "not set yet"
        data,
        data,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)
spliced = settings(max_examples=examples(30))
codecs = st.sampled_from(list(Codec))


def number(drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], base: int) -> list[Row]:
    found: list[Row] = []
    offset = base - 1
    for hole, timestamp, key, value, headers in drawn:
        offset += 1 + (hole if found else 0)
        found.append(Row(offset, timestamp, key, value, tuple(headers)))
    return found


def build(wanted: list[Row], codec: Codec, *, append_time: int | None = None) -> bytearray:
    base = wanted[0].offset
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, 7, 3, 9, 10**9)
    for row in wanted:
        builder.append(
            row.offset - base, row.timestamp, row.key, row.value, headers=list(row.headers)
        )
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    struct.pack_into(">i", batch, 12, 5)
    if append_time is not None:
        batch[22] |= 0x08
        struct.pack_into(">q", batch, 35, append_time)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def read(batch: RecordBatch) -> list[Row]:
    """Sign as the Sender does, read with aiokafka, and map offsets back through the runs."""
    raw = bytearray(batch.data)
    sign(raw, producer_id=1, producer_epoch=2, base_sequence=3)
    theirs = DefaultRecordBatch(bytes(raw))
    assert theirs.validate_crc()
    assert theirs.attributes == int(batch.codec)
    assert (
        struct.unpack_from(">i", raw, 57)[0]
        == batch.count
        == struct.unpack_from(">i", raw, 23)[0] + 1
    )
    offsets = [offset for first, n in batch.runs for offset in range(first, first + n)]
    found = list(theirs)
    assert [record.offset for record in found] == list(range(batch.count))
    assert theirs.max_timestamp == max(record.timestamp for record in found) == batch.max_timestamp
    assert batch.base_offset == offsets[0]
    assert batch.last_offset >= offsets[-1]
    return [
        Row(offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for offset, record in zip(offsets, found, strict=True)
    ]


def stage(raw: bytearray, wanted_offset: int) -> RecordBatch:
    result = classify(memoryview(raw), wanted_offset, None)
    assert result.problem is None
    assert result.last_epoch == 5
    (batch,) = result.batches
    return batch


@spliced
@given(rows, codecs, st.data())
def test_renumber_and_cut_keep_what_is_wanted(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], codec: Codec, pick: st.DataObject
) -> None:
    source = number(drawn, BASE)
    wanted_offset = pick.draw(st.integers(0, source[-1].offset - BASE)) + BASE
    batch = stage(build(source, codec), wanted_offset)
    assert read(batch) == [row for row in source if row.offset >= wanted_offset]
    assert batch.last_offset == source[-1].offset


@spliced
@given(rows, codecs, st.integers(0, 2**41))
def test_log_append_time_goes_into_every_record(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], codec: Codec, append_time: int
) -> None:
    source = number(drawn, BASE)
    batch = stage(build(source, codec, append_time=append_time), 0)
    assert read(batch) == [row._replace(timestamp=append_time) for row in source]


@spliced
@given(rows, codecs, st.integers(150, 4000))
def test_split_parts_fit_and_hold_everything_in_order(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], codec: Codec, most: int
) -> None:
    source = number(drawn, BASE)
    batch = stage(build(source, codec), 0)
    parts, too_large = split(batch, most)
    assert all(part.size <= most for part in parts)
    found = [row for part in parts for row in read(part)]
    assert found == source[: len(found)]
    if too_large is None:
        assert found == source
        assert parts[-1].last_offset == batch.last_offset
        following = [part.base_offset for part in parts[1:]]
        assert [part.last_offset + 1 for part in parts[:-1]] == following
    else:
        assert too_large.offset == source[len(found)].offset
        assert too_large.size_bytes > most


@spliced
@given(st.lists(st.tuples(rows, codecs), min_size=1, max_size=5))
def test_merge_joins_everything_in_order(
    drawn: list[tuple[list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], Codec]],
) -> None:
    batches: list[RecordBatch] = []
    source: list[Row] = []
    for one, codec in drawn:
        more = number(one, source[-1].offset + 1 if source else BASE)
        batches.append(stage(build(more, codec), 0))
        source += more
    merged = merge(batches)
    assert read(merged) == source
    assert merged.codec in {batch.codec for batch in batches}
    assert (merged.base_offset, merged.last_offset) == (BASE, source[-1].offset)


@spliced
@given(rows, codecs, codecs)
def test_recompress_changes_nothing_but_the_codec(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], before: Codec, after: Codec
) -> None:
    source = number(drawn, BASE)
    batch = stage(build(source, before), 0)
    changed = recompress(batch, after)
    assert changed.codec is after
    assert (changed.runs, changed.last_offset) == (batch.runs, batch.last_offset)
    assert read(changed) == source
