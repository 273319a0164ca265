"""Each case that the source's batch header decides."""

import struct
from collections.abc import Sequence

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from mm2py.protocol import batch_stage
from mm2py.protocol.batch_stage import Dropped, DropReason, ProblemKind, classify
from mm2py.protocol.record_batch import Codec, crc32c
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch
from tests.kit.fakes.seal import sealed

CONTROL, TRANSACTIONAL, LOG_APPEND, HORIZON = 0x20, 0x10, 0x08, 0x40


class Lease:
    """Counts references."""

    held_bytes = 1 << 22

    def __init__(self) -> None:
        self.count = 1

    def retain(self) -> None:
        self.count += 1

    def release(self) -> None:
        self.count -= 1

    def copied(self, size_bytes: int) -> "Lease":
        return Lease()


def resign(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def batch(
    base: int,
    count: int = 1,
    *,
    codec: Codec = Codec.NONE,
    flags: int = 0,
    producer: int = -1,
    epoch: int = 3,
    key: bytes = b"k",
) -> bytearray:
    data = encode_batch(
        [NewRecord(key, b"%d" % (base + n), timestamp=1000 + n) for n in range(count)], codec
    )
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, 12, epoch)
    data[22] |= flags
    struct.pack_into(">q", data, 43, producer)
    return resign(data)


def marker(base: int, producer: int, kind: int) -> bytearray:
    key = struct.pack(">hh", 0, kind)
    return batch(base, flags=CONTROL | TRANSACTIONAL, producer=producer, key=key)


def gaps(data: bytearray, deltas: Sequence[int], last_delta: int) -> bytearray:
    """Give an uncompressed batch of one-byte deltas the holes that a cleaner leaves."""
    position = 61
    for delta in deltas:
        size = data[position] >> 1
        data[position + 3] = delta << 1
        position += 1 + size
    struct.pack_into(">i", data, 23, last_delta)
    return resign(data)


def records(raw: bytes | bytearray | memoryview) -> list[Record]:
    return [record for one in decode_batches(sealed(raw)) for record in one.records]


def test_ordinary_batches_are_forwarded_as_views_with_one_reference_each() -> None:
    raw = batch(10, 3) + batch(13, 2, codec=Codec.ZSTD) + batch(15, flags=HORIZON, epoch=4)
    lease = Lease()
    result = classify(memoryview(raw), 10, lease)
    assert [(b.base_offset, b.last_offset, b.count, b.runs) for b in result.batches] == [
        (10, 12, 3, ((10, 3),)),
        (13, 14, 2, ((13, 2),)),
        (15, 15, 1, ((15, 1),)),
    ]
    assert (result.next_offset, result.last_epoch, result.problem) == (16, 4, None)
    assert result.batches[1].codec is Codec.ZSTD
    assert result.batches[0].max_timestamp == 1002
    assert lease.count == 4
    result.batches[0].detach()
    assert lease.count == 3
    assert result.batches[0].lease is not lease, "it has a copy"
    assert b"".join(b.data for b in result.batches) == raw


def test_an_error_gives_back_the_references_of_the_batches_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_large(_data: object) -> int:
        raise MemoryError

    monkeypatch.setattr(batch_stage, "crc32c", too_large)
    raw = batch(10, 3, codec=Codec.ZSTD) + marker(13, 7, 1)
    lease = Lease()
    with pytest.raises(MemoryError):
        classify(memoryview(raw), 10, lease)
    assert lease.count == 1


def test_tiny_batches_that_follow_each_other_become_one_with_bytes_of_its_own() -> None:
    raw = batch(10, 1) + batch(11, 2) + batch(13, 1) + batch(17, 1, flags=TRANSACTIONAL)
    lease = Lease()
    result = classify(memoryview(raw), 10, lease)
    (joined,) = result.batches
    assert joined.runs == ((10, 4), (17, 1))
    assert (joined.base_offset, joined.last_offset, joined.count) == (10, 17, 5)
    assert (joined.attributes, joined.leader_epoch, joined.max_timestamp) == (0, 3, 1001)
    assert (lease.count, joined.lease, result.next_offset) == (1, None, 18)
    assert [r.value for r in records(joined.data)] == [b"10", b"11", b"12", b"13", b"17"]


def test_few_or_large_or_compressed_batches_stay_as_they_are() -> None:
    large = encode_batch([NewRecord(None, bytes(3000))])
    struct.pack_into(">q", large, 0, 13)
    raw = batch(10) + batch(11) + batch(12) + resign(large) + batch(14, codec=Codec.LZ4) + batch(15)
    result = classify(memoryview(raw), 10, None)
    assert b"".join(one.data for one in result.batches) == raw


def test_a_tiny_batch_that_is_damaged_inside_leaves_its_neighbours_as_they_are() -> None:
    bad = batch(12)
    bad[61] ^= 0x40
    raw = batch(10) + batch(11) + resign(bad) + batch(13) + batch(14)
    result = classify(memoryview(raw), 10, None)
    assert (len(result.batches), result.problem) == (5, None)
    assert b"".join(one.data for one in result.batches) == raw


def test_a_partial_batch_at_the_end_is_ignored() -> None:
    whole, tail = batch(0, 2), batch(2, 2)
    for size in range(len(tail)):
        result = classify(memoryview(whole + tail[:size]), 0, None)
        assert (len(result.batches), result.next_offset, result.problem) == (1, 2, None)


def test_holes_of_compaction_are_renumbered_and_mapped_exactly() -> None:
    raw = gaps(batch(100, 4), [0, 2, 3, 9], 12)
    lease = Lease()
    result = classify(memoryview(raw), 100, lease)
    (spliced,) = result.batches
    assert spliced.runs == ((100, 1), (102, 2), (109, 1))
    assert (spliced.base_offset, spliced.last_offset, spliced.count) == (100, 112, 4)
    assert result.next_offset == 113
    assert (lease.count, spliced.lease) == (1, None)
    assert [(r.offset, r.value) for r in records(spliced.data)] == [
        (100, b"100"), (101, b"101"), (102, b"102"), (103, b"103"),
    ]  # fmt: skip


def test_the_first_batch_is_cut_below_the_wanted_offset() -> None:
    result = classify(memoryview(batch(10, 5) + batch(15)), 13, None)
    first, second = result.batches
    assert (first.runs, first.base_offset, first.last_offset) == (((13, 2),), 13, 14)
    assert [r.value for r in records(first.data)] == [b"13", b"14"]
    assert second.base_offset == 15


def test_a_batch_below_the_wanted_offset_is_passed_without_a_word() -> None:
    result = classify(memoryview(batch(10, 2)), 15, None)
    assert (result.batches, result.dropped, result.next_offset) == ([], [], 15)


def test_a_cut_that_leaves_no_record_is_dropped_as_empty() -> None:
    raw = gaps(batch(10, 2), [0, 1], 9)
    result = classify(memoryview(raw), 15, None)
    assert result.dropped == [Dropped(15, 19, DropReason.EMPTY)]
    assert (result.batches, result.next_offset) == ([], 20)


def test_empty_and_control_batches_are_dropped_with_their_reason() -> None:
    empty = bytearray(batch(5)[:61])
    struct.pack_into(">i", empty, 8, 49)
    struct.pack_into(">i", empty, 57, 0)
    result = classify(memoryview(resign(empty) + marker(6, 9, 1) + batch(7)), 5, None)
    assert result.dropped == [
        Dropped(5, 5, DropReason.EMPTY),
        Dropped(6, 6, DropReason.CONTROL),
    ]
    assert ([b.base_offset for b in result.batches], result.next_offset) == ([7], 8)


def test_log_append_time_goes_into_every_record() -> None:
    raw = batch(0, 3, flags=LOG_APPEND)
    struct.pack_into(">q", raw, 35, 77_000)
    (spliced,) = classify(memoryview(resign(raw)), 0, None).batches
    assert spliced.attributes == 0
    assert {r.timestamp for r in records(spliced.data)} == {77_000}
    assert spliced.max_timestamp == 77_000


@pytest.mark.parametrize(
    "payload",
    [
        bytes([8, 0, 0x80, 1, 0]),  # no byte is left for the key's length
        bytes([10, 0, 0, 0, 8, 0]),  # a key that is longer than its record
        bytes([10, 0, 0, 0, 0x80, 0x80]),  # a length that does not end
    ],
)
def test_a_marker_that_is_cut_off_is_a_damaged_batch(payload: bytes) -> None:
    data = batch(10, flags=CONTROL | TRANSACTIONAL, producer=7)[:61] + payload
    struct.pack_into(">i", data, 8, len(data) - 12)
    result = classify(memoryview(resign(data)), 10, None, aborted=[(7, 5)])
    assert result.problem is not None
    assert result.problem.kind is ProblemKind.RECORDS
    assert result.next_offset == 10


def test_aborted_transactions_are_dropped_until_their_marker() -> None:
    raw = b"".join(
        [
            batch(0, flags=TRANSACTIONAL, producer=1),  # committed later
            batch(1, flags=TRANSACTIONAL, producer=2),  # aborted
            batch(2, producer=2),  # same producer, not transactional
            batch(3, flags=TRANSACTIONAL, producer=1),
            batch(4, 2, flags=TRANSACTIONAL, producer=2),
            marker(6, 2, 0),
            batch(7, flags=TRANSACTIONAL, producer=2),  # a new transaction
            marker(8, 2, 1),
            marker(9, 1, 1),
            batch(10, flags=TRANSACTIONAL, producer=2),  # aborted again
        ]
    )
    result = classify(memoryview(bytearray(raw)), 0, None, aborted=[(2, 10), (2, 1)])
    assert [b.base_offset for b in result.batches] == [0, 2, 3, 7]
    aborted = [
        (d.first_offset, d.last_offset) for d in result.dropped if d.reason is DropReason.ABORTED
    ]
    assert aborted == [(1, 1), (4, 5), (10, 10)]
    assert result.next_offset == 11


def test_a_marker_that_ends_inside_its_record_is_a_problem_of_its_batch() -> None:
    payload = bytes([8, 0, 0x80, 1, 0])  # a timestamp delta of two bytes leaves no room for a key
    data = marker(3, 5, 0)[:61] + payload
    struct.pack_into(">i", data, 8, len(data) - 12)
    result = classify(memoryview(resign(data)), 0, None, aborted=[(5, 1)])
    assert result.problem is not None
    assert result.problem.kind is ProblemKind.RECORDS


def test_without_a_list_of_aborted_transactions_all_data_is_forwarded() -> None:
    raw = batch(0, flags=TRANSACTIONAL, producer=2) + marker(1, 2, 0)
    result = classify(memoryview(raw), 0, None)
    assert [b.base_offset for b in result.batches] == [0]


def test_holes_inside_a_committed_transaction_are_spliced_under_read_committed() -> None:
    raw = gaps(batch(0, 2, flags=TRANSACTIONAL, producer=1), [0, 3], 4)
    (spliced,) = classify(memoryview(raw), 0, None, aborted=[(9, 0)]).batches
    assert spliced.runs == ((0, 1), (3, 1))
    assert spliced.attributes == 0


def damaged_crc() -> bytearray:
    raw = batch(5)
    raw[-1] ^= 1
    return raw


def field(offset: int, layout: str, value: int) -> bytearray:
    raw = batch(5, 2)
    struct.pack_into(layout, raw, offset, value)
    return resign(raw) if offset > 20 else raw


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (damaged_crc(), ProblemKind.CRC),
        (field(16, "b", 3), ProblemKind.MAGIC),
        (field(16, "b", -1), ProblemKind.MAGIC),
        (field(22, "b", 5), ProblemKind.CODEC),
        (field(22, "b", 7), ProblemKind.CODEC),
        (field(8, ">i", -5), ProblemKind.LENGTH),
        (field(8, ">i", 48), ProblemKind.LENGTH),
        (field(23, ">i", -1), ProblemKind.LENGTH),
        (field(57, ">i", -1), ProblemKind.LENGTH),
        (field(57, ">i", 3), ProblemKind.LENGTH),
        (field(57, ">i", 1), ProblemKind.RECORDS),
        (field(0, ">q", 4), ProblemKind.OVERLAP),
        (field(22, "b", 0x21), ProblemKind.RECORDS),
    ],
)
def test_what_cannot_be_read_stops_the_walk_and_keeps_what_was_before(
    raw: bytearray, kind: ProblemKind
) -> None:
    lease = Lease()
    aborted = [(99, 0)] if raw[22] == 0x21 else []
    result = classify(memoryview(batch(3, 2) + raw + batch(9)), 3, lease, aborted=aborted)
    assert [b.base_offset for b in result.batches] == [3]
    assert result.next_offset == 5
    assert result.problem is not None
    assert result.problem.kind is kind
    assert result.problem.offset == (4 if kind is ProblemKind.OVERLAP else 5)
    assert "offset" in result.problem.text
    assert lease.count == 2


def test_a_compressed_payload_that_is_garbage_is_a_problem_only_when_it_must_be_opened() -> None:
    raw = batch(0, 2, codec=Codec.LZ4)
    raw[70] ^= 0xFF
    resign(raw)
    assert classify(memoryview(raw), 0, None).problem is None
    result = classify(memoryview(raw), 1, None)
    assert result.problem is not None
    assert result.problem.kind is ProblemKind.RECORDS


def test_an_old_message_behind_a_newer_offset_is_an_overlap() -> None:
    builder = LegacyRecordBatchBuilder(1, 0, 1000)
    builder.append(1, 5, b"k", b"v")
    result = classify(memoryview(batch(0, 3) + builder.build()), 0, None)
    assert result.problem is not None
    assert result.problem.kind is ProblemKind.OVERLAP
    assert [b.base_offset for b in result.batches] == [0]


def test_an_offset_above_what_the_header_covers_is_a_problem() -> None:
    problem = classify(memoryview(gaps(batch(100, 3), [0, 1, 9], 5)), 100, None).problem
    assert problem is not None
    assert "offset delta 9 is above the last, 5" in problem.text
