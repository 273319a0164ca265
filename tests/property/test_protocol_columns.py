"""Records as columns and back: the C kernel and its twins agree, and what is packed again is the same, damage included."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2py.protocol.columns import murmur2, partition_of, plain_columns, plain_pack, plain_spread
from mm2py.protocol.kernel import Columns, Filled, Given, Kernel, Part, native
from mm2py.protocol.record_bytes import append_record
from mm2py.protocol.records import record_body
from tests.property.test_protocol_kernel import longs_of, outcome, relaxed, seeds

MAX = 2**63 - 1


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    if native is None:
        pytest.skip("the C kernel is switched off or was not built")
    return native


def text(rng: random.Random) -> bytes | None:
    size = rng.choice([None, 0, 1, 3, 4, 7, 63, 64, 300, 9000])
    return None if size is None else rng.randbytes(size)


def part_from(rng: random.Random) -> Part:
    """Records of a batch; sometimes cut, flipped or counted wrong, and some from old formats."""
    payload, delta, count = bytearray(), -1, rng.choice([0, 1, 1, 2, 5, 20])
    is_old = rng.random() < 0.2
    for _number in range(count):
        delta += 1 if is_old else rng.choice([1] * 9 + [2, 5000])
        headers = [(rng.choice([b"", b"h", b"\xff", b"name"]), text(rng)) for _ in range(rng.choice([0, 0, 1, 3]))]  # fmt: skip
        append_record(payload, record_body(text(rng), text(rng), headers), longs_of(rng), delta)
    if payload and rng.random() < 0.15:
        payload[rng.randrange(min(200, len(payload)))] ^= rng.randint(1, 255)
    cut = len(payload) - rng.choice([0] * 20 + [1, 5])
    named = count + rng.choice([0] * 20 + [-1, 1, 2**31 - 13])
    gap = rng.choice([0, 1, 40])
    first = rng.choice([0, 7, MAX - 3]) if is_old else 0
    second = min(MAX, first + count // 2 + gap)
    runs = ((first, count // 2), (second, count - count // 2)) if is_old else ()
    base = rng.choice([0, 5, 2**40, MAX - 3])
    wanted = rng.choice([0, 0, 3, base + 1])
    return bytes(payload[:cut]), max(0, named), base, longs_of(rng), rng.random() < 0.3, wanted, runs  # fmt: skip


def given_of(filled: Filled, rng: random.Random) -> Given:
    """Return a column as Arrow hands it over; sometimes a slice of it, or one that is too short."""
    ends, bits, data = filled
    rows = len(ends) // 4 - 1
    first = rng.randint(0, rows) if rng.random() < 0.1 else 0
    more = rng.choice([0] * 20 + [1, 9])
    return None if rng.random() < 0.1 else bits, ends, data, first, rows - first + more


@relaxed
@given(seeds)
def test_records_are_columns_alike(kernel: Kernel, seed: int) -> None:
    rng = random.Random(seed)
    parts = [part_from(rng) for _ in range(rng.randint(0, 4))]
    end = rng.choice([MAX, MAX, 12, 2**40 + 3])
    assert outcome(lambda: kernel.columns(parts, end)) == outcome(lambda: plain_columns(parts, end))


def pack_args(rng: random.Random) -> tuple[object, ...]:
    found: Columns | None = None
    while found is None:
        parts = [part_from(rng)]
        found = outcome(lambda parts=parts: plain_columns(parts, MAX))  # type: ignore[misc]
    rows = len(found[0]) // 8
    order = [*range(rows)]
    rng.shuffle(order)
    order += [rows + 3] * (rng.random() < 0.05)
    lists = (None, found[5], None, 0, rows) if rng.random() < 0.8 else None
    names = given_of(found[6], rng) if lists or rng.random() < 0.5 else None
    return (
        array("Q", order).tobytes(),
        rng.choice([0, 0, rows // 2]),
        rng.choice([0, 100, 10_000, MAX]),
        rng.choice([0, 61]),
        None if rng.random() < 0.2 else given_of(found[3], rng),
        given_of(found[4], rng),
        lists,
        names,
        None if names is None else given_of(found[7], rng),
    )


@relaxed
@given(seeds)
def test_rows_are_packed_alike(kernel: Kernel, seed: int) -> None:
    args = pack_args(random.Random(seed))
    assert outcome(lambda: kernel.pack(*args)) == outcome(lambda: plain_pack(*args))  # type: ignore[arg-type]


@relaxed
@given(seeds, st.sampled_from([0, 1, 3, 8, 2**31 - 1]))
def test_keys_are_spread_alike_and_as_single_ones(
    kernel: Kernel, seed: int, partitions: int
) -> None:
    rng = random.Random(seed)
    keys = [text(rng) for _ in range(20)]
    payload = bytearray()
    for delta, key in enumerate(keys):
        append_record(payload, record_body(key, None, ()), 0, delta)
    ends, bits, data = plain_columns([(payload, 20, 0, 0, False, 0, ())], MAX)[3]
    column = (bits, ends, data, 0, 20)
    found = outcome(lambda: kernel.spread(column, partitions))
    assert found == outcome(lambda: plain_spread(column, partitions))
    if partitions:
        assert array("i", bytes(found or b"")).tolist() == [
            -1 if it is None else partition_of(it, partitions) for it in keys
        ]


@relaxed
@given(seeds)
def test_what_is_packed_from_columns_is_the_same_records(kernel: Kernel, seed: int) -> None:
    rng = random.Random(seed)
    payload = bytearray()
    for delta in range(30):
        headers = [(b"h%d" % n, text(rng)) for n in range(rng.choice([0, 2]))]
        append_record(payload, record_body(text(rng), text(rng), headers), 0, delta)
    found = kernel.columns([(payload, 30, 0, 0, False, 0, ())], MAX)
    columns = [(bits, ends, data, 0, len(ends) // 4 - 1) for ends, bits, data in (found[3], found[4], found[6], found[7])]  # fmt: skip
    keys, values, names, texts = columns
    lists = (None, found[5], None, 0, 30)
    order = array("Q", range(30)).tobytes()
    packed, taken = kernel.pack(order, 0, MAX, 3, keys, values, lists, names, texts)
    assert (packed[3:], taken) == (payload, 30)
    least, one = kernel.pack(order, 29, 0, 0, keys, values, lists, names, texts)
    assert one == 1
    assert len(least) < len(payload)
    assert murmur2(b"") == 275646681
