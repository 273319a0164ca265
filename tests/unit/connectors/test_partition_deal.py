"""Rules on partitions: how they are dealt to tasks, the ends of a job's ranges, when a position counts, and which writes of two regions are in conflict."""

import random
import struct

import pytest

from mm2py.errors import ConfigError
from mm2py.protocol.record_batch import HEADER_BYTES, Codec, RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_connectors import conflicts
from mm2py_connectors.conflicts import KEPT_S, ConflictWatch
from mm2py_connectors.covered_positions import CoveredPositions
from mm2py_connectors.partition_deal import PartitionDeal, format_partitions, parse_partitions
from mm2py_connectors.range_ends import SHORT_S, RangeEnds


def parts(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("t", number) for number in numbers]


def numbers(deal: PartitionDeal, tasks: int) -> list[list[int]]:
    return [[tp.partition for tp in hand] for hand in deal.deal(tasks)]


def test_partition_k_goes_to_task_k_mod_n() -> None:
    deal = PartitionDeal()
    assert deal.update(parts(0, 1, 2, 3, 4))
    assert numbers(deal, 2) == [[0, 2, 4], [1, 3]]
    assert not deal.update(parts(4, 3, 2, 1, 0))
    assert numbers(deal, 9) == [[0], [1], [2], [3], [4]]
    assert numbers(PartitionDeal(), 3) == []


def test_a_partition_taken_out_leaves_the_others_where_they_are() -> None:
    deal = PartitionDeal()
    deal.update(parts(*range(9)))
    deal.update(parts(0, 2, 3, 4, 5, 6, 7, 8))
    assert numbers(deal, 3) == [[0, 3, 6], [4, 7], [2, 5, 8]]
    deal.update(parts(0, 2, 3, 4, 5, 6, 7, 8, 50))
    assert numbers(deal, 3) == [[0, 3, 6], [50, 4, 7], [2, 5, 8]]


@pytest.mark.parametrize(
    ("published", "kept"),
    [
        pytest.param([(3, 1), (0, 2)], True, id="the-same-set"),
        pytest.param([(3, 1, 0), (2,)], True, id="uneven"),
        pytest.param([(3, 1), (0,)], False, id="one-is-missing"),
        pytest.param([(3, 1), (0, 2, 4)], False, id="one-is-gone"),
        pytest.param([(3, 1), (0, 2, 3)], False, id="one-has-two-tasks"),
        pytest.param([], False, id="none-is-published"),
    ],
)
def test_what_tasks_have_is_kept_if_the_same(published: list[tuple[int, ...]], kept: bool) -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2, 3))
    deal.continue_with([parts(*hand) for hand in published])
    assert numbers(deal, 2) == ([[*hand] for hand in published] if kept else [[0, 2], [1, 3]])


def test_names_with_dashes_survive_the_property() -> None:
    partitions = (TopicPartition("topic-1", 2), TopicPartition("a", 10), TopicPartition("-", 0))
    text = format_partitions(partitions)
    assert text == "topic-1-2,a-10,--0"
    assert parse_partitions(text.split(",")) == partitions


@pytest.mark.parametrize("item", ["t", "-1", "t-", "t-x", "t-1.0", "t-\u0663"])
def test_what_is_no_partition_is_refused(item: str) -> None:
    with pytest.raises(ConfigError):
        parse_partitions([item])


def rates(*bytes_per_s: float) -> dict[TopicPartition, float]:
    return dict(zip(parts(*range(len(bytes_per_s))), bytes_per_s, strict=True))


def weighed(deal: PartitionDeal, tasks: int, *bytes_per_s: float) -> list[list[int]]:
    return [[tp.partition for tp in hand] for hand in deal.deal(tasks, rates(*bytes_per_s))]


def test_heavy_partitions_of_one_task_are_spread_and_stay_where_they_came() -> None:
    deal = PartitionDeal()
    deal.update(parts(0, 1, 2, 3))
    assert weighed(deal, 2, 9, 1, 9, 1) == [[0, 3], [2, 1]]
    assert numbers(deal, 2) == [[0, 3], [2, 1]], "without rates it stays"
    assert weighed(deal, 2, 9, 1, 9, 1) == [[0, 3], [2, 1]]


@pytest.mark.parametrize(
    ("tasks", "rates", "hands"),
    [(2, (10, 9, 10, 8), [[0, 2], [1, 3]]), (3, (1000, 1, 1), [[0], [1], [2]])],
    ids=["about even", "one outweighs all"],
)
def test_what_another_deal_would_not_even_out_is_left_alone(
    tasks: int, rates: tuple[int, ...], hands: list[list[int]]
) -> None:
    deal = PartitionDeal()
    deal.update(parts(*range(len(rates))))
    assert weighed(deal, tasks, *rates) == hands


def test_what_nobody_measured_counts_as_the_mean_and_idle_ones_are_spread() -> None:
    deal = PartitionDeal()
    deal.update(parts(*range(42)))
    measured = {TopicPartition("t", 0): 50.0, TopicPartition("t", 2): 50.0}
    hands = deal.deal(2, measured | dict.fromkeys(parts(*range(3, 42)), 0.0))
    assert sorted(len(hand) for hand in hands) != [0, 42]
    assert all(10 < len(hand) < 32 for hand in hands)


# ---- the ends of a job's partitions; the names are the invariants of ``mm2py_connectors.range_ends``


T = TopicPartition("t", 0)


def batch(first: int, count: int) -> RecordBatch:
    runs = ((first, count),)
    return RecordBatch(bytearray(), first, first + count - 1, count, 0, 0, 0, runs, None)


class Range:
    """The range up to offset 100 of one partition."""

    def __init__(self) -> None:
        self.clock, self.covered = FakeClock(), CoveredPositions()
        self.ends = RangeEnds({T: 100}, self.covered, self.clock)

    def hand_out(self, *batches: RecordBatch) -> list[int]:
        """Return the first offsets of what is handed out."""
        out = self.ends.below_end(T, list(batches))
        self.covered.handed_out(T, sum(it.count for it in out))
        return [it.base_offset for it in out]

    def store(self) -> list[str]:
        """Store positions once; return why partitions are given up behind that."""
        self.ends.committed()
        return [str(error) for _, error in self.ends.take_gone()]


def test_what_is_read_up_is_covered_to_its_end_once_all_of_it_is_delivered() -> None:
    it = Range()
    assert it.hand_out(batch(80, 10), batch(95, 10), batch(105, 1)) == [80, 95]
    assert it.ends.take_drops() == [T]
    assert not it.ends.take_ended()
    it.covered.delivered(T, 20, 104)
    assert it.ends.take_ended() == [(T, 99)]
    it.ends.lost(T, 0, "created again")
    assert not it.ends.take_ended()


def test_a_loss_behind_the_end_is_none_of_the_range() -> None:
    it = Range()
    it.hand_out(batch(90, 10))
    it.ends.lost(T, 0, "created again")
    assert not it.ends.is_gone(T)
    assert it.ends.is_over(T)


def test_nothing_is_handed_out_of_a_log_that_is_not_the_one_that_the_end_was_in() -> None:
    it = Range()
    assert it.hand_out(batch(0, 10)) == [0]
    it.ends.lost(T, 15, "created again")
    assert it.hand_out(batch(10, 10)) == [10]
    assert not it.ends.take_drops()
    assert it.hand_out(batch(20, 5), batch(0, 50), batch(50, 50)) == [20]
    assert it.hand_out(batch(100, 50)) == []
    assert set(it.ends.take_drops()) == {T}
    assert it.ends.is_gone(T)


def test_a_partition_is_given_up_when_what_was_read_is_delivered_and_its_position_stored() -> None:
    it = Range()
    it.hand_out(batch(0, 10))
    it.ends.lost(T, 0, "created again")
    assert not it.store()
    it.covered.delivered(T, 10, 9)
    assert not it.ends.take_gone()
    assert not it.store()  # it may have begun before
    (cause,) = it.store()
    assert cause.startswith("t-0: what was left of the range is gone: created again; ")
    assert not it.store()
    assert not it.store()


def test_what_was_read_of_the_old_log_may_reach_the_end_all_the_same() -> None:
    it = Range()
    it.ends.lost(T, 20, "created again")
    assert it.hand_out(batch(80, 20), batch(0, 10)) == [80]
    it.covered.delivered(T, 20, 99)
    assert it.ends.take_ended() == [(T, 99)]
    assert not any((it.store(), it.store(), it.store()))


async def test_a_log_that_stays_below_its_end_is_given_up_and_one_that_comes_back_is_not() -> None:
    it = Range()
    it.ends.look(T, 60)
    await it.clock.advance(SHORT_S - 1)
    it.ends.look(T, 100)
    it.ends.look(T, 60)
    await it.clock.advance(SHORT_S - 1)
    it.ends.look(T, 60)
    assert not it.ends.is_gone(T)
    await it.clock.advance(1)
    it.ends.look(T, 60)
    it.ends.take_gone()
    assert not it.store()
    (cause,) = it.store()
    assert "the source's log ends at 60, below 100" in cause


# -- when a position may be committed although its last offset is no record ------------------------


def resumed_at(position: int) -> CoveredPositions:
    covered = CoveredPositions()
    covered.start({T: position})
    return covered


def test_a_held_partition_says_nothing_and_starts_over_when_released() -> None:
    covered = resumed_at(10)
    covered.look(T, 20)
    covered.held([T], on=True)
    assert [covered.look(T, 20) for _ in range(3)] == [-1, -1, -1]
    covered.held([T], on=False)
    assert [covered.look(T, 20) for _ in range(2)] == [-1, 19]


def test_without_a_stored_position_the_first_one_seen_is_no_news() -> None:
    covered = CoveredPositions()
    covered.start({T: -2})
    assert [covered.look(T, -2), covered.look(T, 50), covered.look(T, 50)] == [-1, -1, -1]
    assert [covered.look(T, 51) for _ in range(2)] == [-1, 50]


def test_offsets_that_start_over_are_counted_from_the_start() -> None:
    covered = resumed_at(100)
    covered.handed_out(T, 3)
    covered.restarted(T)
    covered.handed_out(T, 4)
    covered.delivered(T, 4, 3)
    assert [covered.look(T, 6) for _ in range(3)] == [-1, -1, -1], "three of the old ones"
    covered.delivered(T, 3, 3)
    assert covered.look(T, 6) == 5


def test_a_position_counts_once_at_the_second_look_also_one_that_never_rests() -> None:
    """What a mirror writes to the source is read and dropped without end."""
    covered = resumed_at(10)
    assert [covered.look(T, position) for position in (14, 18, 22, 22, 22)] == [-1, 13, 17, 21, -1]
    covered.handed_out(T, 1)
    assert [covered.look(T, position) for position in (30, 30)] == [-1, -1], "a record is under way"
    covered.delivered(T, 1, 25)
    assert [covered.look(T, position) for position in (34, 34)] == [29, 33]
    covered.handed_out(T, 5)
    covered.delivered(T, 5, 38)
    assert [covered.look(T, 39) for _ in range(3)] == [-1, -1, -1], "the last record is no news"


# ---- writes of two regions in conflict: by hand, and against a model of both logs


COMPACTED = TopicPartition("compacted", 0)
OTHER = TopicPartition("plain", 0)


class Log:
    """Batches of one partition as they are classified."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.watch = ConflictWatch({"compacted"}, self.clock)
        self.end = 0

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def local(self, *keys: bytes | None, codec: Codec = Codec.NONE) -> RecordBatch:
        """A batch that was written here."""
        first, self.end = self.end, self.end + len(keys)
        data = encode_batch([NewRecord(key, b"v", timestamp=self.now_ms()) for key in keys], codec)
        return RecordBatch(
            data, first, self.end - 1, len(keys), 0, 0, codec, ((first, len(keys)),), None
        )

    def mirrored(self, *records: tuple[bytes | None, int]) -> memoryview:
        """A batch that the other region wrote at these times."""
        data = encode_batch([NewRecord(key, b"w", timestamp=stamp) for key, stamp in records])
        struct.pack_into(">q", data, 0, self.end)
        self.end += len(records)
        return memoryview(data)


def test_a_conflict_is_counted_once_and_other_topics_not_at_all() -> None:
    log = Log()
    log.watch.classified(COMPACTED, [log.local(b"a", codec=Codec.LZ4)], [])
    assert log.watch.classified(COMPACTED, [], [log.mirrored((b"a", 0), (b"a", 1))]) == 1
    assert log.watch.classified(OTHER, [log.local(b"a")], [log.mirrored((b"a", 0))]) == 0


async def test_keys_are_forgotten_when_they_arrived_long_ago_and_not_before() -> None:
    log = Log()
    log.watch.classified(COMPACTED, [log.local(b"a", b"b")], [])
    await log.clock.advance(2 * KEPT_S)
    log.watch.delivered(COMPACTED, 0)
    assert log.watch.classified(COMPACTED, [log.local(b"c")], [log.mirrored((b"b", 0))]) == 1
    assert log.watch.classified(COMPACTED, [], [log.mirrored((b"a", 0))]) == 0


async def test_memory_and_work_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicts, "MOST_KEYS", 10)
    monkeypatch.setattr(conflicts, "MOST_RECORDS_PER_S", 40)
    log = Log()
    log.watch.classified(COMPACTED, [log.local(*(b"%d" % n for n in range(30)))], [])
    assert log.watch.classified(COMPACTED, [], [log.mirrored((b"0", 0), (b"29", 0))]) == 1
    assert log.watch.classified(COMPACTED, [], [log.mirrored(*((b"28", 0),) * 20)]) == 0, "enough"
    await log.clock.advance(1)
    assert log.watch.classified(COMPACTED, [], [log.mirrored((b"28", 0))]) == 1


def test_offsets_of_another_incarnation_are_not_compared() -> None:
    log = Log()
    log.watch.classified(COMPACTED, [log.local(b"a")], [])
    log.watch.restarted(COMPACTED)
    assert log.watch.classified(COMPACTED, [], [log.mirrored((b"a", 0))]) == 0


def test_damaged_records_are_no_conflict_and_no_error() -> None:
    log = Log()
    batch = log.local(b"a")
    batch.data[HEADER_BYTES] = 0xFF
    assert log.watch.classified(COMPACTED, [batch], [log.mirrored((b"a", 0))]) == 0


def orders_of_keys(log: list[tuple[bytes, str]]) -> dict[bytes, list[str]]:
    return {key: [mark for found, mark in log if found == key] for key, _ in log}


@pytest.mark.parametrize("course", range(20))
async def test_two_logs_differ_in_the_order_of_a_key_exactly_where_a_conflict_is_counted(  # noqa: C901 - a branch per event
    course: int,
) -> None:
    """Two regions that copy to each other with a random delay; clocks agree and tick 200 ms a step."""
    chance = random.Random(course)
    log = Log()
    logs: tuple[list[tuple[bytes, str]], list[tuple[bytes, str]]] = ([], [])
    there: list[tuple[bytes, int, str]] = []  # written there, on the way to us
    ours: list[tuple[bytes, int, str]] = []  # written here, on the way there
    counted = 0

    def arrive() -> None:
        key, offset, mark = ours.pop(0)
        logs[1].append((key, mark))
        log.watch.delivered(COMPACTED, offset)

    def come() -> int:
        key, stamp, mark = there.pop(0)
        logs[0].append((key, mark))
        return log.watch.classified(COMPACTED, [], [log.mirrored((key, stamp))])

    for step in range(60):
        await log.clock.advance(0.2)
        event = chance.choice(["here", "there", "arrive", "come"])
        if event == "here":
            key = b"%d" % step
            logs[0].append((key, "one"))
            batch = log.local(key)
            ours.append((key, batch.base_offset, "one"))
            counted += log.watch.classified(COMPACTED, [batch], [])
        elif event == "there":
            key = b"%d" % chance.randrange(60)
            if (key, "two") not in logs[1]:
                logs[1].append((key, "two"))
                there.append((key, log.now_ms(), "two"))
        elif event == "arrive" and ours:
            arrive()
        elif event == "come" and there:
            counted += come()
    while ours:
        await log.clock.advance(0.2)
        arrive()
    while there:
        counted += come()
    orders = [orders_of_keys(side) for side in logs]
    assert counted == sum(orders[0][key] != orders[1][key] for key in orders[0])
