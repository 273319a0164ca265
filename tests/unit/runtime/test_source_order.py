"""Acknowledgements of several target partitions, back in source order; names are the invariants of the module."""

from collections.abc import Mapping

from mm2py.protocol.record_batch import RecordBatch
from mm2py.runtime.tasks.arrivals import MOST_PARTS, Part, SourceOrder
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import a_batch

S = TopicPartition("orders", 0)
HOME = TopicPartition("A.orders", 0)
OTHER = TopicPartition("audit", 0)


class Taken(list[tuple[str, int, int]]):
    """What was passed on: copies with first source offset and target offset, records without a copy with their last offset."""

    def add(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        assert (source, target) == (S, HOME)
        self.append(("copies", batch.base_offset, base_offset))

    def passes(
        self, source: TopicPartition, target: TopicPartition, records: int, through: int
    ) -> None:
        assert (source, target) == (S, HOME)
        self.append(("passed", records, through))


def _order(*parts: tuple[Mapping[TopicPartition, int], int, int]) -> tuple[SourceOrder, Taken]:
    taken, order = Taken(), SourceOrder()
    order.follow(taken)
    for part in parts:
        order.handed_out(S, HOME, Part(*part))
    return order, taken


def test_1_a_part_is_done_when_its_records_and_all_parts_before_it_are() -> None:
    order, taken = _order(({HOME: 2, OTHER: 1}, 1, 2), ({HOME: 3}, 0, 5))
    assert order.arrived(S, HOME, a_batch(0, 2), 70)
    assert order.arrived(S, HOME, a_batch(3, 3), 72)
    assert taken == [], "a record that went elsewhere has not arrived"
    assert not order.arrived(S, OTHER, a_batch(2), 0)
    assert taken == [("copies", 0, 70), ("passed", 1, 2), ("copies", 3, 72)]


def test_what_is_dropped_waits_for_what_is_before_it_and_for_nothing_else() -> None:
    order, taken = _order(({}, 4, 3))
    order.advance(S)
    assert taken == [("passed", 4, 3)]
    order.handed_out(S, HOME, Part({HOME: 1}, 0, 4))
    order.handed_out(S, HOME, Part({}, 2, 6))
    order.advance(S)
    assert len(taken) == 1
    order.arrived(S, HOME, a_batch(4), 9)
    assert taken[1:] == [("copies", 4, 9), ("passed", 2, 6)]


def test_2_records_are_counted_so_that_another_incarnation_may_begin_at_0() -> None:
    order, taken = _order(({HOME: 2}, 0, 1_001), ({HOME: 1, OTHER: 1}, 1, 1))
    order.arrived(S, HOME, a_batch(1_000, 2), 0)
    order.arrived(S, HOME, a_batch(0), 2)
    assert taken == [("copies", 1_000, 0)]
    order.arrived(S, OTHER, a_batch(1), 0)
    assert taken[1:] == [("copies", 0, 2), ("passed", 1, 1)]


def test_3_a_batch_of_several_parts_counts_with_the_last_of_them() -> None:
    order, taken = _order(({HOME: 2}, 1, 2), ({HOME: 2, OTHER: 1}, 1, 5))
    order.arrived(S, HOME, a_batch(0, 4, runs=((0, 2), (3, 2))), 10)
    assert taken == [], "not even the first part: its copies are in a batch with unfinished ones"
    order.arrived(S, OTHER, a_batch(5), 0)
    assert taken == [("copies", 0, 10), ("passed", 2, 5)]


def test_a_batch_that_the_sender_cut_is_passed_on_when_its_part_is_done() -> None:
    order, taken = _order(({HOME: 4}, 1, 4))
    order.arrived(S, HOME, a_batch(0, 3), 0)
    assert taken == []
    order.arrived(S, HOME, a_batch(3, 1), 3)
    assert taken == [("copies", 0, 0), ("copies", 3, 3), ("passed", 1, 4)]


def test_a_partition_far_ahead_of_a_target_that_takes_nothing_is_named_with_it() -> None:
    order, _ = _order(({OTHER: 1}, 1, 0))
    for offset in range(1, MOST_PARTS):
        assert not list(order.overdue())
        order.handed_out(S, HOME, Part({HOME: 1}, 0, offset))
    assert list(order.overdue()) == [(S, OTHER)]
