"""Batches that mirrors wrote to the source are dropped right after Fetch, by their producer ids."""

import struct
from dataclasses import dataclass, field

import pytest

from mm2py.protocol import batch_stage
from mm2py.protocol.batch_stage import Dropped, DropReason, Origins, ProblemKind, classify
from mm2py.protocol.record_batch import crc32c
from mm2py.protocol.records import NewRecord, encode_batch

APPLICATION, MIRROR, STRANGER, TINY = 7, 8, 9, 1
CONTROL, TRANSACTIONAL = 0x20, 0x10


@dataclass
class Known:
    passing: set[int] = field(default_factory=lambda: {APPLICATION})
    looping: set[int] = field(default_factory=lambda: {MIRROR})

    def origins(self) -> Origins:
        return Origins(self.passing, self.looping)


@pytest.fixture(params=["kernel", "python"])
def scan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(batch_stage, "scan", batch_stage.plain_scan)


def batch(
    base: int, producer: int, count: int = 2, *, flags: int = 0, pad: int = 3000
) -> bytearray:
    rows = [NewRecord(b"k", bytes(pad), timestamp=1000) for _ in range(count)]
    data = encode_batch(rows)
    struct.pack_into(">q", data, 0, base)
    data[22] |= flags
    struct.pack_into(">q", data, 43, producer)
    return signed(data)


def signed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


@pytest.mark.usefixtures("scan")
def test_a_mirrors_batch_is_dropped_and_the_position_moves_behind_it() -> None:
    raw = batch(10, APPLICATION) + batch(12, MIRROR) + batch(14, -1) + batch(16, MIRROR, 3)
    result = classify(memoryview(raw), 10, None, origins=Known().origins())
    assert [it.base_offset for it in result.batches] == [10, 14]
    assert result.dropped == [
        Dropped(12, 13, DropReason.LOOP),
        Dropped(16, 18, DropReason.LOOP),
    ]
    assert [len(it) for it in result.looped] == [len(batch(12, MIRROR)), len(batch(16, MIRROR, 3))]
    assert (result.next_offset, result.unknown, result.problem) == (19, frozenset(), None)


@pytest.mark.usefixtures("scan")
def test_the_walk_stops_at_an_unknown_producer_and_names_all_that_follow() -> None:
    raw = batch(0, APPLICATION) + batch(2, STRANGER) + batch(4, MIRROR) + batch(6, 55)
    result = classify(memoryview(raw), 0, None, origins=Known().origins())
    assert [it.base_offset for it in result.batches] == [0]
    assert (result.next_offset, sorted(result.unknown)) == (2, [STRANGER, 55])
    assert (result.dropped, result.problem) == ([], None)


@pytest.mark.usefixtures("scan")
def test_ids_of_damaged_batches_are_not_named() -> None:
    damaged = batch(2, 0)
    struct.pack_into(">q", damaged, 43, 2**40)
    raw = batch(0, STRANGER) + damaged + batch(4, 55)
    assert classify(memoryview(raw), 0, None, origins=Known().origins()).unknown == {STRANGER}


@pytest.mark.usefixtures("scan")
def test_without_suppression_nothing_is_asked_and_nothing_dropped() -> None:
    raw = batch(0, MIRROR) + batch(2, STRANGER)
    result = classify(memoryview(raw), 0, None)
    assert [it.base_offset for it in result.batches] == [0, 2]
    assert (result.unknown, result.looped) == (frozenset(), [])


@pytest.mark.usefixtures("scan")
def test_a_damaged_batch_is_never_dropped_as_a_loop() -> None:
    raw = batch(0, APPLICATION)
    struct.pack_into(">q", raw, 43, MIRROR)  # one bit of the producer id was turned
    result = classify(memoryview(raw), 0, None, origins=Known().origins())
    assert result.problem is not None
    assert result.problem.kind is ProblemKind.CRC
    assert (result.dropped, result.next_offset) == ([], 0)


@pytest.mark.usefixtures("scan")
def test_tiny_batches_are_joined_with_no_mirrors_between_them() -> None:
    raw = bytearray()
    for base, producer in enumerate([APPLICATION] * 4 + [MIRROR] + [APPLICATION] * 4 + [-1] * 4):
        raw += batch(base, producer, TINY, pad=10)
    result = classify(memoryview(raw), 0, None, origins=Known().origins())
    assert [(it.base_offset, it.count) for it in result.batches] == [(0, 4), (5, 8)]
    assert result.dropped == [Dropped(4, 4, DropReason.LOOP)]


def test_aborted_control_and_empty_batches_need_no_origin() -> None:
    key = struct.pack(">hh", 0, 0)
    marker = encode_batch([NewRecord(key, b"", timestamp=0)])
    struct.pack_into(">q", marker, 0, 2)
    marker[22] |= CONTROL | TRANSACTIONAL
    struct.pack_into(">q", marker, 43, APPLICATION)
    empty = batch(3, STRANGER)
    del empty[61:]
    struct.pack_into(">i", empty, 8, 49)
    struct.pack_into(">i", empty, 57, 0)
    raw = batch(0, APPLICATION, flags=TRANSACTIONAL) + signed(marker) + signed(empty)
    raw += batch(5, MIRROR, flags=TRANSACTIONAL) + batch(7, APPLICATION)
    result = classify(
        memoryview(raw), 0, None, aborted=[(APPLICATION, 0)], origins=Known().origins()
    )
    assert [it.reason for it in result.dropped] == [
        DropReason.ABORTED,
        DropReason.CONTROL,
        DropReason.EMPTY,
        DropReason.LOOP,
    ]
    assert [it.base_offset for it in result.batches] == [7]


def test_a_position_inside_a_mirrors_batch_counts_only_what_is_behind_it() -> None:
    result = classify(memoryview(batch(10, MIRROR, 4)), 12, None, origins=Known().origins())
    assert result.dropped == [Dropped(12, 13, DropReason.LOOP)]
    assert result.next_offset == 14


def test_what_is_learned_between_two_walks_counts_at_the_second() -> None:
    known, raw = Known(), batch(0, STRANGER)
    origins = known.origins()
    assert classify(memoryview(raw), 0, None, origins=origins).unknown == {STRANGER}
    known.passing.add(STRANGER)
    (copied,) = classify(memoryview(raw), 0, None, origins=origins).batches
    assert copied.base_offset == 0
