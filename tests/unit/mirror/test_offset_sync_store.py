"""The 64 slots of a reader of offset syncs: Java's rule, by vectors of an independent implementation."""

import random

import pytest

from mm2py.mirror.offset_syncs import SLOTS, OffsetSync, OffsetSyncStore, SyncSlots
from mm2py.types import TopicPartition

TP = TopicPartition("topic1", 2)


def sync(upstream: int, downstream: int | None = None) -> OffsetSync:
    return OffsetSync(TP, upstream, upstream if downstream is None else downstream)


def slots_of(*upstreams: int) -> SyncSlots:
    slots = SyncSlots(sync(upstreams[0]))
    for upstream in upstreams[1:]:
        slots.add(sync(upstream))
    return slots


def distinct(slots: SyncSlots) -> list[int]:
    return list(dict.fromkeys(slots.upstreams()))


def store(*syncs: OffsetSync, keeps_backlog: bool = True) -> OffsetSyncStore:
    made = OffsetSyncStore(keeps_backlog=keeps_backlog)
    for each in syncs:
        made.add(each)
    return made


def test_an_offset_is_translated_by_the_newest_sync_at_or_below_it() -> None:
    made = store()
    made.read_to_end()
    for upstream, downstream, translations in (
        (100, 200, {150: 201}),
        (150, 251, {150: 251, 5: -1}),
        (200, 10, {200: 10}),
        (20, 20, {20: 20}),
    ):
        made.add(sync(upstream, downstream))
        assert {it: made.translate(TP, it) for it in translations} == translations


def test_nothing_is_translated_before_the_backlog_is_read() -> None:
    made = store(keeps_backlog=False)
    assert made.translate(TP, 0) is None
    made.add(sync(100, 200))
    assert made.translate(TP, 100) is None
    made.read_to_end()
    assert [made.translate(TP, it) for it in (0, 100, 200)] == [-1, 200, 201]
    assert made.translate(TopicPartition("other", 0), 5) is None


def test_of_a_backlog_whose_checkpoints_are_unknown_only_the_last_sync_is_used() -> None:
    made = store(*map(sync, range(0, 1001, 10)), keeps_backlog=False)
    made.read_to_end()
    assert [made.translate(TP, it) for it in (999, 1000, 1001)] == [-1, 1000, 1001]
    for upstream in range(1010, 10_001, 10):
        made.add(sync(upstream))
    kept = [10000, 9990, 9970, 9940, 9880, 9640, 9160, 8680, 6760, 4840, 1000]
    assert_translates(made, kept)
    assert made.translate(TP, 999) == -1


def test_of_a_backlog_whose_checkpoints_are_known_all_syncs_are_used() -> None:
    made = store(*map(sync, range(0, 1001, 10)))
    made.read_to_end()
    assert_translates(made, [1000, 990, 960, 900, 840, 720, 480, 0])
    for upstream in range(1000, 10_001, 10):
        made.add(sync(upstream))
    assert_translates(made, [10000, 9990, 9960, 9900, 9840, 9600, 9120, 8640, 7680, 3840, 0])


def assert_translates(made: OffsetSyncStore, kept: list[int]) -> None:
    older = [*kept[1:], None]
    for newer, next_older in zip(kept, older, strict=True):
        assert made.translate(TP, newer) == newer
        assert made.translate(TP, newer + 1) == made.translate(TP, newer + 2) == newer + 1
        if next_older is not None:
            assert made.translate(TP, newer - 1) == next_older + 1


@pytest.mark.parametrize(
    ("step", "end", "kept"),
    [
        (100, 100_000, [100000, 99900, 99800, 99600, 99200, 97600, 96000, 89600, 76800, 51200, 0]),
        (1, 1_000, [1000, 999, 998, 996, 992, 976, 960, 896, 768, 512, 0]),
    ],
)
def test_even_syncs_are_kept_at_doubling_distances(step: int, end: int, kept: list[int]) -> None:
    assert distinct(slots_of(*range(0, end + 1, step))) == kept


def test_the_first_slots_after_each_of_nine_syncs() -> None:
    expected = ["00000", "10000", "21000", "32000", "43200", "54200", "65400", "76400", "87640"]
    for last, digits in enumerate(expected):
        slots = slots_of(*range(last + 1)).upstreams()
        assert slots[:5] == [int(digit) for digit in digits]
        assert set(slots[5:]) == {0}


def test_syncs_that_are_not_the_identity_are_translated_by_what_is_kept() -> None:
    slots = SyncSlots(sync(11, 4))
    translated: list[int] = []
    for upstream in range(11, 18):
        slots.add(sync(upstream, upstream - 7))
        translated.append(slots.translate(13))
    assert translated == [5, 6, 6, 6, 6, 6, 5]
    assert distinct(slots) == [17, 16, 15, 11]


def test_a_restart_keeps_what_the_backlog_shows() -> None:
    first = store(*map(sync, (100, 200, 300)))
    first.read_to_end()
    assert first.translate(TP, 250) == 201
    second = store(*map(sync, (175, 275, 375, 475)))
    second.read_to_end()
    assert [second.translate(TP, it) for it in (250, 370, 400)] == [176, 176, 376]
    assert distinct(slots_of(175, 275, 375, 475)) == [475, 375, 175]


def test_irregular_syncs_and_equal_and_lower_ones() -> None:
    slots = slots_of(0, 1, 2, 3, 1000, 1001, 1002, 5000, 5001, 1_000_000, 1_000_001)
    kept = [1_000_001] + [1_000_000] * 20 + [0] * 43
    assert slots.upstreams() == kept
    slots.add(sync(1_000_001, 7))
    assert slots.upstreams() == kept
    assert slots.translate(1_000_001) == 7
    slots.add(sync(10, 8))
    assert slots.upstreams() == [10] * SLOTS


def test_pseudo_random_syncs() -> None:
    number, upstream = 42, 0
    slots = SyncSlots(sync(0))
    for _ in range(500):
        number = (1103515245 * number + 12345) % 2**31
        upstream += number % 1000 + 1
        slots.add(sync(upstream))
    single = [256159, 255212, 253255, 249748, 243466, 216913, 160116, 106856]
    assert slots.upstreams() == [256718] * 11 + single + [0] * 45


def test_offsets_at_the_edge_of_64_bits() -> None:
    slots = slots_of(0, 2**62, 2**62 + 2**61, 2**63 - 1)
    assert slots.upstreams() == [2**63 - 1] * 62 + [2**62 + 2**61, 2**62]


@pytest.mark.parametrize("first", range(0, 30, 7))
def test_even_steps_of_any_size_drop_at_most_one_sync_each(first: int) -> None:
    step = 1
    while step < 2**63 // 100:
        slots = SyncSlots(sync(first))
        for number in range(1, 101):
            known = set(slots.upstreams())
            slots.add(sync(first + number * step))
            now = slots.upstreams()
            assert len(known - set(now)) <= 1
            assert (now[0], now[-1]) == (first + number * step, first)
        step = step * 2 + 1


@pytest.mark.parametrize("bits", range(1, 54, 4))
@pytest.mark.parametrize("least", [0, 65_536])
def test_random_steps_drop_few_syncs_at_once(bits: int, least: int) -> None:
    chance = random.Random(bits)
    upstream = 0
    slots = SyncSlots(sync(0))
    for _ in range(1024):
        known = set(slots.upstreams())
        upstream += least + chance.randrange(2**bits)
        slots.add(sync(upstream))
        assert len(known - set(slots.upstreams())) <= bits + 2


def test_steps_of_one_or_two_hundred_drop_at_most_two() -> None:
    chance = random.Random(1)
    upstream = 0
    slots = SyncSlots(sync(0))
    for _ in range(10_000):
        known = set(slots.upstreams())
        upstream += chance.choice((100, 200))
        slots.add(sync(upstream))
        assert len(known - set(slots.upstreams())) <= 2
