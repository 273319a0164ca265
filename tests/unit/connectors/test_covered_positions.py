"""When a reader's position may be committed although its last offset is no record."""

from mm2py.types import TopicPartition
from mm2py_connectors.covered_positions import CoveredPositions

T = TopicPartition("t", 0)


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
