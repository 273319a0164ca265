"""The ends of a job's partitions; the names are the invariants of ``mm2py_connectors.range_ends``. And when a reader's position counts."""

from mm2py.protocol.record_batch import RecordBatch
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_connectors.covered_positions import CoveredPositions
from mm2py_connectors.range_ends import SHORT_S, RangeEnds

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


def test_a_position_counts_at_the_second_look_and_once() -> None:
    covered = resumed_at(10)
    assert [covered.look(T, 14) for _ in range(4)] == [-1, 13, -1, -1]


def test_the_last_record_alone_is_no_news() -> None:
    covered = resumed_at(10)
    covered.handed_out(T, 5)
    covered.delivered(T, 5, 14)
    assert [covered.look(T, 15) for _ in range(3)] == [-1, -1, -1]


def test_nothing_counts_while_records_are_under_way() -> None:
    covered = resumed_at(10)
    covered.handed_out(T, 5)
    assert [covered.look(T, 20) for _ in range(3)] == [-1, -1, -1]
    covered.delivered(T, 5, 14)
    assert covered.look(T, 20) == 19


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


def test_a_position_that_never_rests_is_covered_one_look_later() -> None:
    """What a mirror writes to the source is read and dropped without end."""
    covered = CoveredPositions()
    covered.start({T: 10})
    assert [covered.look(T, position) for position in (14, 18, 22)] == [-1, 13, 17]
    covered.handed_out(T, 1)
    assert covered.look(T, 30) == -1, "a record is under way"
    covered.delivered(T, 1, 25)
    assert [covered.look(T, position) for position in (34, 34)] == [29, 33]
