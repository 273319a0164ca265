"""The C kernel and its twins in Python agree on everything, damaged bytes included."""

import random
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.errors import ProtocolError
from mm2py.protocol.batch_stage import plain_scan, plain_sign
from mm2py.protocol.kernel import Kernel, native
from mm2py.protocol.record_batch import RecordBatch, choose_crc
from mm2py.protocol.record_bytes import (
    plain_borders,
    plain_join,
    plain_renumber,
    plain_same,
    varint,
)
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from tests.kit.fakes.batches import CountedLease, sealed
from tests.property.effort import examples

Result = TypeVar("Result")
relaxed = settings(max_examples=examples(50))
crc = choose_crc()
EDGES = (0, 1, 63, 64, 8191, 8192, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
longs = st.integers(-300, 300) | st.sampled_from(EDGES) | st.sampled_from(EDGES).map(lambda n: ~n)


class Piece(NamedTuple):
    """What ``join`` reads."""

    data: bytearray
    runs: tuple[tuple[int, int], ...]


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    if native is None:
        pytest.skip("the C kernel is switched off or was not built")
    return native


def record(attributes: int, stamp: int, delta: int, body: bytes, excess: int) -> bytes:
    """Encode one record; ``excess`` bytes make its length wrong, or a varint longer than needed."""
    front = bytes([attributes]) + varint(stamp) + padded(varint(delta), abs(excess) // 3 % 3) + body
    return varint(len(front) + (excess if abs(excess) < 3 else 0)) + front


def padded(raw: bytes, more: int) -> bytes:
    return raw[:-1] + bytes([raw[-1] | 0x80]) + b"\x80" * (more - 1) + b"\0" if more else raw


def longs_of(rng: random.Random) -> int:
    if rng.random() < 0.8:
        return rng.randint(-300, 300)
    return rng.choice(EDGES) if rng.random() < 0.7 else ~rng.choice(EDGES)


def payload_from(rng: random.Random) -> tuple[bytes, int, int]:
    """Payload, number of records, last delta; sometimes cut, flipped or counted wrong.

    Drawn from a seed: hypothesis would need seconds for as many choices.
    """
    delta, parts = -1, list[bytes]()
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 12])):
        step = rng.choice([1] * 9 + [2, 70, 5000, 2**31, 2**62])
        delta = min(2**63 - 1, delta + step)
        body = rng.randbytes(rng.choice([1, 3, 30, 61, 130, 9000]))
        excess = rng.choice([0] * 40 + [-1, 1, 3, 6])
        parts.append(record(rng.randint(0, 255), longs_of(rng), delta, body, excess))
    payload = bytearray(b"".join(parts))
    count = len(parts) + rng.choice([0] * 20 + [-1, 1, 2**31 - 13])
    if payload and rng.random() < 0.1:
        payload[rng.randrange(min(200, len(payload)))] ^= rng.randint(1, 255)
    cut = len(payload) - rng.choice([0] * 20 + [1, 5])
    last = delta + rng.choice([0] * 12 + [3, -1])
    return bytes(payload[: max(0, cut)]), max(0, count), max(0, min(last, 2**31 - 1))


seeds = st.integers(0, 2**62)
payloads = seeds.map(lambda seed: payload_from(random.Random(seed)))


def batch_of(
    payload: bytes,
    count: int,
    last_delta: int,
    stamps: tuple[int, int],
    flags: int = 0,
    base: int = 0,
) -> bytearray:
    size = 61 + len(payload)
    data = bytearray(size)
    struct.pack_into(">qiib", data, 0, base, size - 12, 5, 2)
    struct.pack_into(">hiqqqhii", data, 21, flags, last_delta, *stamps, 9, 1, 7, count)
    data[61:] = payload
    struct.pack_into(">I", data, 17, crc(memoryview(data)[21:]))
    return data


def outcome(call: Callable[[], Result]) -> Result | None:
    """Return the result, None where the input is called damaged."""
    try:
        return call()
    except (ProtocolError, ValueError):
        return None


@relaxed
@given(payloads, longs, longs, st.booleans(), st.sampled_from([0, 61]))
def test_records_are_renumbered_alike(
    kernel: Kernel,
    drawn: tuple[bytes, int, int],
    base: int,
    wanted: int,
    retime: bool,
    reserve: int,
) -> None:
    payload, count, last = drawn
    args = (payload, count, base, last, wanted, retime, reserve)
    assert outcome(lambda: kernel.renumber(*args)) == outcome(lambda: plain_renumber(*args))


@relaxed
@given(payloads)
def test_borders_are_found_alike(kernel: Kernel, drawn: tuple[bytes, int, int]) -> None:
    payload, count, _ = drawn
    expected = outcome(lambda: plain_borders(payload, count))
    assert outcome(lambda: kernel.borders(payload, count)) == expected


def changed_from(rng: random.Random, payload: bytes) -> bytes:
    """The payload with at most a few bytes flipped, cut or added."""
    raw = bytearray(payload)
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        if raw:
            raw[rng.randrange(len(raw))] ^= rng.randint(1, 255)
    return bytes(raw[: len(raw) - rng.choice([0, 0, 0, 3])]) + rng.randbytes(rng.choice([0, 0, 2]))


@relaxed
@given(payloads, seeds, longs, longs, st.integers(0, 3), st.integers(-1, 20))
def test_equal_records_are_counted_alike(
    kernel: Kernel,
    drawn: tuple[bytes, int, int],
    seed: int,
    stamp: int,
    other_stamp: int,
    untimed: int,
    count: int,
) -> None:
    payload, rng = drawn[0], random.Random(seed)
    changed = changed_from(rng, payload)
    ends = plain_borders(payload, drawn[1]) if outcome(lambda: plain_borders(*drawn[:2])) else [0]
    at, other_at = rng.choice([*ends, 1]), rng.choice([*ends, 1, len(payload) + 9])
    for one, other in ((at, at), (at, other_at)):
        for stamps in ((stamp, stamp), (stamp, other_stamp)):
            args = (payload, one, stamps[0], changed, other, stamps[1], count, untimed)
            found = kernel.same(*args)
            assert found == plain_same(*args)
            assert found[0] <= max(0, count)


def test_equal_records_end_where_a_timestamp_or_a_byte_differs(kernel: Kernel) -> None:
    rows = [NewRecord(b"k", b"v%d" % n, timestamp=1_000 + n) for n in range(5)]
    payload = bytes(encode_batch(rows))[61:]
    other = bytes(encode_batch([*rows[:3], replace(rows[3], value=b"v9"), rows[4]]))[61:]
    later = bytes(encode_batch(rows[1:]))[61:]
    border = plain_borders(payload, 5)
    for same in (kernel.same, plain_same):
        assert same(payload, 0, 0, payload, 0, 0, 9, 0) == (5, len(payload), len(payload))
        assert same(payload, 0, 0, other, 0, 0, 9, 0) == (3, border[3], border[3])
        assert same(payload, border[1], 1_000, later, 0, 1_001, 9, 0) == (
            4,
            len(payload),
            len(later),
        )
        assert same(payload, 0, 0, payload, 0, 1, 9, 0) == (0, 0, 0)
        assert same(payload, 0, 7, payload, 0, 7, 9, 3) == (5, len(payload), len(payload))
        assert same(payload, 0, 7, payload, 0, 7, 9, 1) == (1, border[1], border[1])


@relaxed
@given(
    st.lists(
        st.tuples(payloads, longs, longs, st.sampled_from([0, 0, 0, 8, 1, 4]), st.integers(0, 3)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([0, 61]),
)
def test_batches_are_joined_alike(
    kernel: Kernel, drawn: list[tuple[tuple[bytes, int, int], int, int, int, int]], reserve: int
) -> None:
    pieces, offset = list[Piece](), 0
    for (payload, count, last), base, newest, flags, hole in drawn:
        data = batch_of(payload, count, last, (base, newest), flags)
        pieces.append(Piece(data, ((offset + hole, count),) if count else ()))
        offset += hole + count

    def inflate(data: bytes | bytearray | memoryview) -> memoryview:
        return memoryview(data)[61:]

    expected = outcome(lambda: plain_join(pieces, inflate, reserve))
    assert outcome(lambda: kernel.join(pieces, inflate, reserve)) == expected


PRODUCERS = (0, 7, 2**63 - 1)


def slots(batch: RecordBatch) -> list[object]:
    return [getattr(batch, name) for name in RecordBatch.__slots__]


@relaxed
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # hole
            st.integers(1, 4) | st.just(2**31 - 1),
            st.sampled_from([0] * 30 + [1, 2, 3, 4, 5, 0x08, 0x10, 0x20, 0x40, -1]),
            st.binary(max_size=40),
            longs,
        ),
        max_size=6,
    ),
    st.integers(0, 12) | st.just(2**62),
    st.integers(-1, 9),
    st.booleans(),
    st.data(),
)
def test_record_sets_are_scanned_alike(
    kernel: Kernel,
    drawn: list[tuple[int, int, int, bytes, int]],
    wanted: int,
    floor: int,
    with_lease: bool,
    pick: st.DataObject,
) -> None:
    raw, base = bytearray(), pick.draw(st.integers(0, 10) | st.just(2**63 - 2))
    for hole, count, flags, payload, stamp in drawn:
        base += hole
        if base > 2**63 - 1:
            break
        data = batch_of(payload, count, count - 1, (0, stamp), flags, base)
        struct.pack_into(">q", data, 43, pick.draw(st.sampled_from([-1, -1, *PRODUCERS])))
        struct.pack_into(">I", data, 17, crc(memoryview(data)[21:]))
        raw += data
        base += count
    raw = raw[: len(raw) - pick.draw(st.sampled_from([0, 0, 0, 1, 60]))]
    if raw and pick.draw(st.booleans()):
        raw[pick.draw(st.integers(0, len(raw) - 1))] ^= pick.draw(st.integers(1, 255))
    start = pick.draw(st.sampled_from([0, 0, 0, 1, len(raw)]))
    passing = pick.draw(st.none() | st.sets(st.sampled_from([*PRODUCERS, -1])))
    found: list[object] = []
    for scan in (kernel.scan, plain_scan):
        lease = CountedLease() if with_lease else None
        out: list[RecordBatch] = []
        ends = scan(memoryview(raw), start, wanted, floor, RecordBatch, lease, out, passing)
        assert not any(memoryview(one.data).readonly for one in out)
        assert lease is None or lease.count == 1 + sum(one.lease is lease for one in out)
        for one in out:
            one.lease = None
        found.append((ends, [slots(one) for one in out]))
    assert found[0] == found[1]


@relaxed
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),  # hole
            st.sampled_from([0, 0, 0, 0, 9, 3000]),  # size of the value
            st.sampled_from([3] * 9 + [4]),  # leader epoch
            st.sampled_from([0] * 9 + [0x10, 0x40]),
            st.integers(1, 3),
            st.integers(-5, 2**40),
        ),
        max_size=40,
    ),
    st.none() | st.integers(0, 39),
)
def test_tiny_batches_are_joined_alike_and_keep_their_records(
    kernel: Kernel, drawn: list[tuple[int, int, int, int, int, int]], damaged: int | None
) -> None:
    raw, base = bytearray(), 7
    expected: list[tuple[int, bytes | None, int]] = []
    for number, (hole, size, epoch, flags, count, stamp) in enumerate(drawn):
        base += hole
        rows = [
            NewRecord(b"k", b"%d" % (base + n) + bytes(size), timestamp=stamp + 100 * n)
            for n in range(count)
        ]
        data = encode_batch(rows)
        struct.pack_into(">q", data, 0, base)
        struct.pack_into(">i", data, 12, epoch)
        data[22] |= flags
        if number == damaged:
            data[61] ^= 0x40  # the length of its first record
        raw += sealed(data)
        expected += [(base + n, row.value, row.timestamp) for n, row in enumerate(rows)]
        base += count
    found: list[object] = []
    for scan in (kernel.scan, plain_scan):
        lease, out = CountedLease(), list[RecordBatch]()
        ends = scan(memoryview(raw), 0, 0, -1, RecordBatch, lease, out)
        assert lease.count == 1 + sum(one.lease is lease for one in out)
        for one in out:
            one.lease = None
        found.append((ends, [slots(one) for one in out]))
        tiny = [len(one.data) < 2048 for one in out]
        if (
            damaged is None
            and len({epoch for _, _, epoch, *_ in drawn}) == 1
            and sum(tiny) == len(tiny)
        ):
            assert len(out) < 4 or any(flags & 0x40 for _, _, _, flags, *_ in drawn)
        if damaged is None:
            offsets = [first + n for one in out for first, many in one.runs for n in range(many)]
            copied = [
                row for one in out for b in decode_batches(sealed(one.data)) for row in b.records
            ]
            assert [
                (offset, row.value, row.timestamp)
                for offset, row in zip(offsets, copied, strict=True)
            ] == expected
    assert found[0] == found[1]


@relaxed
@given(
    st.binary(max_size=300),
    longs,
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
)
def test_batches_are_signed_alike(
    kernel: Kernel, payload: bytes, producer: int, epoch: int, sequence: int, transactional: bool
) -> None:
    signed: list[bytearray | None] = []
    for sign in (kernel.sign, plain_sign):
        data = batch_of(payload, 1, 0, (1, 2), 0x4F)

        def apply(data: bytearray = data, sign: Callable[..., None] = sign) -> bytearray:
            sign(
                data,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            )
            return data

        signed.append(outcome(apply))
    assert signed[0] == signed[1]


@relaxed
@given(st.integers(0, 60_000), st.integers(0, 9))
def test_the_crc_is_that_of_another_implementation(kernel: Kernel, size: int, skip: int) -> None:
    data = memoryview(random.Random(size).randbytes(size + skip))[skip:]
    assert kernel.crc32c(data) == crc(data)


@relaxed
@given(st.binary(max_size=400), st.integers(-3, 300), longs, longs, st.booleans())
def test_garbage_is_refused_or_read_within_its_bounds(
    kernel: Kernel, garbage: bytes, count: int, first: int, second: int, retime: bool
) -> None:
    exact = bytes(bytearray(garbage))
    outcome(lambda: kernel.borders(exact, count))
    outcome(lambda: kernel.renumber(exact, count, first, second, 0, retime, 0))
    outcome(lambda: kernel.same(exact, abs(count), first, exact, 0, second, 2**40, count & 3))
    outcome(lambda: kernel.join([Piece(bytearray(exact), ((0, 1),))], bytes, 0))
    view = memoryview(bytearray(exact))
    out: list[object] = []
    outcome(lambda: kernel.scan(view, abs(count), first, second, RecordBatch, None, out))
    outcome(lambda: kernel.sign(view, producer_id=first, producer_epoch=0, base_sequence=0))
