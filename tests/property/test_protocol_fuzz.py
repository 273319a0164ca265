"""Nothing a peer sends makes the decoders raise anything but ``ProtocolError``."""

import contextlib
import struct
from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.client.connect.wire import FrameReceiver
from mm2py.errors import ProtocolError
from mm2py.protocol import group_messages, messages
from mm2py.protocol.batch_stage import classify
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

relaxed = settings(max_examples=examples(100))
CALLS: list[Call[object]] = [
    messages.api_versions(),
    messages.metadata(None),
    messages.list_offsets([OffsetQuery("t", 0, -1)]),
    messages.offset_for_leader_epoch([EpochQuery("t", 0, 1)]),
    group_messages.find_coordinator("g"),
    group_messages.describe_groups(["g"]),
    group_messages.offset_fetch("g"),
]


@relaxed
@given(st.integers(4, 18), bodies)
def test_fetch_answers_of_any_bytes(version: int, body: memoryview) -> None:
    with contextlib.suppress(ProtocolError):
        decode_fetch(version, body)


@relaxed
@given(st.integers(3, 13), bodies)
def test_produce_answers_of_any_bytes(version: int, body: memoryview) -> None:
    with contextlib.suppress(ProtocolError):
        decode_produce(version, body)


@relaxed
@given(st.sampled_from(CALLS), st.data(), bodies)
def test_other_answers_of_any_bytes(
    call: Call[object], pick: st.DataObject, body: memoryview
) -> None:
    version = pick.draw(st.integers(call.min_version, call.max_version))
    with contextlib.suppress(ProtocolError):
        call.decode(version, body)


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
        received += [(number, bytes(body)) for number, body, _ in receiver.take(len(piece))]
        position += len(piece)
    assert received == sent
    assert pool.leased_bytes == 0
