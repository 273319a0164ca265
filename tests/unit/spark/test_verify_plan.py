"""Which ranges verify compares: what the map has copied, as far as both logs still have it, and what is behind it."""

import json

from mm2py.client.fetch.range_reader import LogEnds
from mm2py.mirror.offset_map import Mark, Page, Segment
from mm2py.spark.dealing import deal
from mm2py.spark.verify_plan import KnownMap, PartitionPlan, plan_partition
from mm2py.types import TopicPartition

SOURCE, COPY = TopicPartition("t", 0), TopicPartition("a.t", 0)
NO_ID = bytes(16)


def known(*segments: Segment, covered: int) -> KnownMap:
    found = KnownMap()
    found.put(Page(0, NO_ID, NO_ID, covered, covered, -1, -1, -1, segments))
    return found


def plan(
    source: LogEnds, target: LogEnds, kept: KnownMap | None, copy: TopicPartition = COPY
) -> PartitionPlan:
    return plan_partition(SOURCE, copy, source, target, kept)


def test_holes_are_read_too_and_the_ends_are_those_of_the_logs() -> None:
    kept = known(Segment(0, 0, 5), Segment(0, 10, 5), Segment(12, 8, 16), covered=21)
    found = plan(LogEnds(0, 30), LogEnds(0, 25), kept)
    assert found.source_ranges == ((0, 30),)
    assert found.target_ranges == ((5, 25),)
    assert found.covered == 21
    assert [found.expected(it) for it in (0, 9, 10, 12, 19, 20)] == [5, 14, -1, 16, 23, -1]


def test_what_either_side_has_deleted_is_left_out_on_both() -> None:
    kept = known(Segment(0, 100, 1_000), covered=100)
    assert plan(LogEnds(30, 100), LogEnds(1_000, 1_100), kept).target_ranges == ((1_030, 1_100),)
    assert plan(LogEnds(0, 100), LogEnds(1_040, 1_100), kept).source_ranges == ((40, 100),)


def test_what_was_copied_again_is_compared_again() -> None:
    kept = known(Segment(0, 50, 0), Segment(30, 40, 50), covered=70)
    found = plan(LogEnds(0, 70), LogEnds(0, 90), kept)
    assert found.source_ranges == ((0, 50), (30, 70))
    assert found.target_ranges == ((0, 50), (50, 90))


def test_a_history_that_the_source_cut_is_not_compared() -> None:
    kept = known(
        Segment(0, 50, 0), Segment(40, 0, 0, Mark.SOURCE_CUT), Segment(40, 20, 50), covered=60
    )
    found = plan(LogEnds(0, 60), LogEnds(0, 70), kept)
    assert found.pieces == ((0, 40, 0), (40, 20, 50))


def test_what_another_program_copied_is_left_out_and_named() -> None:
    kept = known(
        Segment(0, 50, 0), Segment(50, 30, 50, Mark.UNKNOWN), Segment(80, 20, 80), covered=100
    )
    found = plan(LogEnds(0, 100), LogEnds(0, 100), kept)
    assert found.source_ranges == ((0, 50), (80, 100))
    assert found.target_ranges == ((0, 50), (80, 100))
    assert found.notes[0].startswith("source offsets 50 to 80 were passed by another program")


def test_copies_behind_the_end_of_the_target_s_log_are_lost() -> None:
    found = plan(LogEnds(0, 100), LogEnds(0, 60), known(Segment(0, 100, 0), covered=100))
    assert found.lost == (60, 100)
    assert found.source_ranges == ((0, 100),)
    assert found.target_ranges == ((0, 60),)


def test_under_the_same_name_only_what_was_copied_is_compared() -> None:
    kept = known(Segment(0, 10, 0), Segment(20, 10, 30), covered=40)
    found = plan(LogEnds(0, 90), LogEnds(0, 90), kept, copy=SOURCE)
    assert found.source_ranges == ((0, 10), (20, 30))
    assert found.target_ranges == ((0, 10), (30, 40))


def test_without_a_map_the_first_common_offset_is_taken_to_be_the_same_record() -> None:
    found = plan(LogEnds(20, 100), LogEnds(50, 90), None)
    assert (found.source_ranges, found.target_ranges) == (((50, 100),), ((50, 90),))
    assert found.covered is None
    assert "no exact offset map" in found.notes[0]


def test_a_plan_is_the_same_behind_json() -> None:
    kept = known(Segment(0, 10, 5), Segment(12, 8, 16), covered=20)
    found = plan(LogEnds(0, 30), LogEnds(0, 24), kept)
    assert PartitionPlan.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_the_largest_partitions_are_dealt_first() -> None:
    assert deal([1, 9, 5, 4], 2, lambda it: it) == [[9, 1], [5, 4]]
    assert deal([0, 0, 0], 2, lambda it: it) == [[0, 0], [0]]
    nothing: list[int] = []
    assert deal(nothing, 4, lambda it: it) == []
