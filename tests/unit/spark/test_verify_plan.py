"""Which ranges verify compares: what the map has copied, as far as both logs still have it, and what is behind it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from mm2py.mirror.offset_map_pages import Mark, Page, Segment
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.protocol.topics import named_id
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_cli.output import OK, UNHEALTHY
from mm2py_jobs.copy.dealing import deal
from mm2py_jobs.copy.known_maps import KnownMap
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.log.log_ends import LogEnds
from mm2py_jobs.verify import open_keys
from mm2py_jobs.verify.differences import Comparison, Difference, DifferenceKind
from mm2py_jobs.verify.log_entries import OffsetRange
from mm2py_jobs.verify.repair_advice import RepairKind, advice
from mm2py_jobs.verify.verify import by_the_map, report_of, run_lane
from mm2py_jobs.verify.verify_plan import VerifyPartition, VerifyPlan, created_again, plan_partition
from mm2py_jobs.verify.verify_runs import exit_code
from tests.kit.fakes.broker import FakeBroker

SOURCE, COPY = TopicPartition("t", 0), TopicPartition("a.t", 0)
NO_ID = bytes(16)
OLD_ID, NEW_ID, COPY_ID = (bytes([it]) * 16 for it in (1, 2, 3))


def known(*segments: Segment, covered: int) -> KnownMap:
    found = KnownMap()
    found.put(Page(0, NO_ID, NO_ID, covered, covered, -1, -1, -1, segments))
    return found


def plan(
    source: LogEnds, target: LogEnds, kept: KnownMap | None, copy: TopicPartition = COPY
) -> VerifyPartition:
    return plan_partition(SOURCE, copy, source, target, kept)


def test_holes_are_read_too_and_the_ends_are_those_of_the_logs() -> None:
    kept = known(Segment(0, 0, 5), Segment(0, 10, 5), Segment(12, 8, 16), covered=21)
    found = plan(LogEnds(0, 30), LogEnds(0, 25), kept)
    assert found.source_ranges == [(0, 30)]
    assert found.target_ranges == [(5, 25)]
    assert found.covered == 21
    assert [found.expected(it) for it in (0, 9, 10, 12, 19, 20)] == [5, 14, -1, 16, 23, -1]


def test_what_either_side_has_deleted_is_left_out_on_both() -> None:
    kept = known(Segment(0, 100, 1_000), covered=100)
    assert plan(LogEnds(30, 100), LogEnds(1_000, 1_100), kept).target_ranges == [(1_030, 1_100)]
    assert plan(LogEnds(0, 100), LogEnds(1_040, 1_100), kept).source_ranges == [(40, 100)]


def test_what_was_copied_again_is_compared_again() -> None:
    kept = known(Segment(0, 50, 0), Segment(30, 40, 50), covered=70)
    found = plan(LogEnds(0, 70), LogEnds(0, 90), kept)
    assert found.source_ranges == [(0, 50), (30, 70)]
    assert found.target_ranges == [(0, 50), (50, 90)]


def test_a_history_that_the_source_cut_is_not_compared() -> None:
    kept = known(
        Segment(0, 50, 0), Segment(40, 0, 0, Mark.SOURCE_CUT), Segment(40, 20, 50), covered=60
    )
    found = plan(LogEnds(0, 60), LogEnds(0, 70), kept)
    assert found.pieces == ((0, 40, 0), (40, 20, 50))


@pytest.mark.parametrize(
    ("ids", "log", "said", "copy_id"),
    [
        ((OLD_ID, COPY_ID), LogEnds(0, 50), "", COPY_ID),
        # The map's copies are of another topic; by the map alone they were equal.
        ((NEW_ID, COPY_ID), LogEnds(0, 50), "t was created again on the source", COPY_ID),
        ((NEW_ID, COPY_ID), LogEnds(7, 7), "", COPY_ID),
        ((OLD_ID, NEW_ID), LogEnds(0, 50), "a.t was created again, its copy begins anew", COPY_ID),
        ((NO_ID, COPY_ID), LogEnds(0, 50), "", COPY_ID),  # a cluster without ids
        # A target without ids, where a copy has its name alone: another policy names it anew.
        ((OLD_ID, NO_ID), LogEnds(0, 50), "a.t was created again", named_id("b.t", NO_ID)),
        ((OLD_ID, NO_ID), LogEnds(0, 50), "", named_id("a.t", NO_ID)),
    ],
)
def test_a_topic_that_was_created_again_on_either_side_is_not_compared_by_the_map_of_the_former(
    ids: tuple[bytes, bytes], log: LogEnds, said: str, copy_id: bytes
) -> None:
    former = Page(0, OLD_ID, copy_id, 100, 100, -1, -1, -1, (Segment(0, 100, 0),))
    reason = created_again(SOURCE, COPY, log, former, ids)
    assert reason.startswith(said)
    assert bool(reason) == bool(said)


def test_what_another_program_copied_is_left_out_and_named() -> None:
    kept = known(
        Segment(0, 50, 0), Segment(50, 30, 50, Mark.UNKNOWN), Segment(80, 20, 80), covered=100
    )
    found = plan(LogEnds(0, 100), LogEnds(0, 100), kept)
    assert found.source_ranges == [(0, 50), (80, 100)]
    assert found.target_ranges == [(0, 50), (80, 100)]
    assert found.unvouched == ((50, 80),)
    by_map = by_the_map(found)
    assert (by_map["equal"], found.notes) == (False, ())
    assert "source offsets 50 to 80 were copied by another program" in str(by_map["not_compared"])
    of_failover = found.without_quarantined([(60, 70), (75, 90)], "the quarantine")
    assert of_failover.unvouched == ((50, 60), (70, 75))
    assert [it.partition(" were")[0] for it in of_failover.notes] == [
        "source offsets 60 to 70, 75 to 80"
    ]
    assert by_the_map(of_failover)["equal"] is False
    whole = found.without_quarantined([(50, 80)], "the quarantine")
    assert by_the_map(whole)["equal"] is True, "what has no copies, as was accepted, is known"
    limited = found.from_map()
    assert (by_the_map(limited)["equal"], limited.stretches) == (True, found.stretches)
    assert limited.notes == ("source offsets 50 to 80 are left out (--from map)",)
    assert not plan(LogEnds(80, 100), LogEnds(80, 100), kept).unvouched


@pytest.mark.parametrize("position", [80, 100, 120])
def test_a_position_that_was_set_forward_counts_before_a_task_has_started_there(
    position: int,
) -> None:
    """What another program copied up to there is not waiting to be copied."""
    kept = known(Segment(0, 50, 0), covered=50)
    found = plan_partition(SOURCE, COPY, LogEnds(0, 100), LogEnds(0, 80), kept, position=position)
    assert (found.unvouched, found.stretches[0]) == (
        ((50, min(position, 100)),),
        ((0, 50), (0, 50)),
    )
    answer = by_the_map(found)
    assert (answer["not_copied_offsets"], answer["differences"]) == (max(0, 100 - position), [])
    assert "were copied by another program" in str(answer["not_compared"])
    assert plan_partition(SOURCE, COPY, LogEnds(0, 100), LogEnds(0, 50), kept, position=50) == plan(
        LogEnds(0, 100), LogEnds(0, 50), kept
    )


def test_what_lies_below_the_beginning_of_the_map_is_not_equal_where_the_copy_has_records() -> None:
    for kept in (
        known(Segment(50, 50, 50), covered=100),
        known(Segment(50, 0, 50), Segment(52, 48, 52), covered=100),
    ):
        found = plan(LogEnds(0, 100), LogEnds(0, 100), kept)
        assert found.source_ranges[0][1] == found.target_ranges[0][1] == 100
        assert found.source_ranges[0][0] == kept.pages[0].segments[0].source
        for copy in COPY, SOURCE:
            found = plan(LogEnds(0, 100), LogEnds(0, 100), kept, copy=copy)
            assert found.unvouched == ((0, 50),)
            assert by_the_map(found)["equal"] is False
    gone = plan(LogEnds(50, 100), LogEnds(0, 100), kept)
    assert (gone.unvouched, by_the_map(gone)["equal"]) == ((), True)
    assert gone.notes[0].startswith("target offsets 0 to 50 lie below the beginning")
    # The flow began at the end of the source's log: nothing below was to be copied.
    latest = known(Segment(50, 50, 0), covered=100)
    found = plan(LogEnds(0, 100), LogEnds(0, 50), latest)
    assert (found.unvouched, by_the_map(found)["equal"]) == ((), True)
    assert found.notes[0].startswith("source offsets 0 to 50 lie below the beginning")


def test_copies_behind_the_end_of_the_target_s_log_are_lost() -> None:
    found = plan(LogEnds(0, 100), LogEnds(0, 60), known(Segment(0, 100, 0), covered=100))
    assert found.lost == (60, 100)
    assert found.source_ranges == [(0, 100)]
    assert found.target_ranges == [(0, 60)]


def lost(source: int, records: int, target: int) -> Segment:
    return Segment(source, records, target, Mark.TARGET_LOST)


def test_what_the_target_lost_before_its_first_copy_is_missing() -> None:
    """Its topic was deleted and created again, or has another name since: the copies begin anew."""
    kept = known(lost(0, 300, 0), Segment(300, 10, 0), covered=310)
    found = plan(LogEnds(0, 310), LogEnds(0, 10), kept)
    assert found.lost_before == ((0, 300),)
    assert found.source_ranges == [(0, 300), (300, 310)]
    assert found.target_ranges == [(0, 10)]
    assert found.held_from(0, 0) == found
    missing = [Difference(DifferenceKind.MISSING, it, -1) for it in range(300)]
    assert advice(found, Comparison(10, differences=missing))[:2] == (RepairKind.RENEW, 0)
    by_map = by_the_map(found)
    assert by_map["equal"] is False
    assert cast("dict[str, object]", by_map["repair"])["action"] == RepairKind.RENEW
    # What neither log would have any more is not missing.
    assert plan(LogEnds(40, 310), LogEnds(0, 10), kept).lost_before == ((40, 300),)
    assert plan(LogEnds(300, 310), LogEnds(0, 10), kept).lost_before == ()
    assert plan(LogEnds(0, 310), LogEnds(5, 10), kept).lost_before == ()


def test_what_the_target_lost_between_copies_is_missing_by_the_map_too() -> None:
    kept = known(Segment(0, 60, 0), lost(60, 40, 60), Segment(100, 10, 60), covered=110)
    found = plan(LogEnds(0, 110), LogEnds(0, 70), kept)
    assert (found.lost_before, found.source_ranges) == (((60, 100),), [(0, 110)])
    same = plan(LogEnds(0, 110), LogEnds(0, 70), kept, copy=SOURCE)
    assert same.source_ranges == [(0, 60), (60, 100), (100, 110)]
    assert same.target_ranges == [(0, 60), (60, 70)]


def test_what_was_lost_and_copied_again_is_not_missing() -> None:
    kept = known(lost(0, 300, 0), Segment(0, 100, 0), Segment(200, 100, 100), covered=300)
    found = plan(LogEnds(0, 300), LogEnds(0, 200), kept)
    assert found.lost_before == ((100, 200),)
    whole = known(lost(0, 300, 0), Segment(0, 300, 0), covered=300)
    found = plan(LogEnds(0, 300), LogEnds(0, 300), whole)
    assert (found.lost_before, found.source_ranges) == ((), [(0, 300)])


@pytest.mark.parametrize("segments", [(Segment(0, 100, 0),), (Segment(0, 50, 0), Segment(50, 50, 50))])  # fmt: skip
def test_copies_above_an_open_transaction_on_the_target_are_neither_compared_nor_missing(
    segments: tuple[Segment, ...],
) -> None:
    kept = known(*segments, covered=100)
    log = LogEnds(0, 40)  # of committed records
    found = plan_partition(SOURCE, COPY, LogEnds(0, 120), log, kept, watermarks=(120, 101))
    assert (found.source_ranges, found.target_ranges) == ([(0, 40)], [(0, 40)])
    assert (found.hidden, found.covered, found.lost) == ((40, 100), 40, (0, 0))
    answer = by_the_map(found)
    assert (answer["equal"], answer["differences"]) == (False, [])
    assert "source offsets 40 to 100 have copies above" in str(answer["not_compared"])
    missing = Comparison(differences=[Difference(DifferenceKind.MISSING, 39, -1)], tail=39)
    assert advice(found, missing).action is RepairKind.NONE
    assert plan_partition(SOURCE, COPY, LogEnds(0, 120), log, kept, watermarks=(120, 90)).lost == (90, 100)  # fmt: skip
    assert VerifyPartition.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("segment", "covered", "target_end", "waiting", "code"),
    [
        (Segment(0, 0, 0), 0, 0, 120, UNHEALTHY),  # a flow that has copied nothing
        (Segment(0, 50, 0), 50, 50, 70, OK),
        (Segment(0, 120, 0), 120, 120, 0, OK),
    ],
)
def test_what_is_not_copied_yet_is_counted_by_the_map_too(
    segment: Segment, covered: int, target_end: int, waiting: int, code: int
) -> None:
    found = plan(LogEnds(0, 120), LogEnds(0, target_end), known(segment, covered=covered))
    answer = by_the_map(found)
    assert (answer["not_copied_offsets"], answer["differences"]) == (waiting, [])
    plans = VerifyPlan([found], [], ("a", "b"))
    flow = FlowName(ClusterAlias("A"), ClusterAlias("B"))
    assert exit_code(report_of(flow, 0, plans, [by_the_map(found)])) == code


def test_under_the_same_name_only_what_was_copied_is_compared() -> None:
    kept = known(Segment(0, 10, 0), Segment(20, 10, 30), covered=40)
    found = plan(LogEnds(0, 90), LogEnds(0, 90), kept, copy=SOURCE)
    assert found.source_ranges == [(0, 10), (20, 30)]
    assert found.target_ranges == [(0, 10), (30, 40)]
    # Records of clients are between them, which no repair may delete.
    assert (found.renew_from, "other programs write" in found.not_renewable) == (-1, True)


def test_without_a_map_the_first_common_offset_is_taken_to_be_the_same_record() -> None:
    found = plan(LogEnds(20, 100), LogEnds(50, 90), None)
    assert (found.source_ranges, found.target_ranges) == ([(50, 100)], [(50, 90)])
    assert found.covered is None
    assert "no exact offset map" in found.notes[0]


@pytest.mark.parametrize("size", [1, 1_000])
def test_a_task_begins_at_the_first_record_that_both_logs_still_have(size: int) -> None:
    kept = known(Segment(0, 50 * size, 0), Segment(60 * size, 40 * size, 50 * size), covered=100 * size)  # fmt: skip
    found = plan(LogEnds(0, 110 * size), LogEnds(0, 95 * size), kept)
    assert found.held_from(0, 0) == found

    def held(source: int, target: int) -> list[tuple[int, int]]:
        return [
            (it.source.first, it.target.first)
            for part in found.parts(40 * size)
            for it in part.held_from(source * size, target * size).stretches
        ]

    parts = [(ours.first, theirs.first) for part in found.parts(40 * size) for ours, theirs in part.stretches]  # fmt: skip
    assert len(parts) > 3
    assert held(0, 0) == parts
    # Of the source more is gone, of the target more, and more than was copied.
    assert held(30, 0)[0] == (30 * size, 30 * size)
    assert held(55, 0)[0] == (60 * size, 50 * size)
    assert held(0, 70)[0] == (80 * size, 70 * size)
    assert held(30, 70)[0] == (80 * size, 70 * size)
    assert held(30, 0)[1:] == [it for it in parts if it[0] > 30 * size]
    assert held(100, 0) == []


def test_a_plan_is_the_same_behind_json() -> None:
    kept = known(Segment(0, 10, 5), Segment(12, 8, 16), covered=20)
    found = replace(plan(LogEnds(0, 30), LogEnds(0, 24), kept), lost_before=(OffsetRange(1, 2),))
    assert VerifyPartition.from_json(json.loads(json.dumps(found.to_json()))) == found


async def answers_about(
    plans: Sequence[VerifyPartition], source: FakeBroker, target: FakeBroker
) -> list[dict[str, object]]:
    lane = {
        **{at: {"bootstrap.servers": f"127.0.0.1:{broker.port}"} for at, broker in (("source", source), ("target", target))},
        "aliases": ["A", "B"],
        "read_committed": False,
        "tier": 1,
        "partitions": [it.to_json() for it in plans],
        "rate": 0,
    }  # fmt: skip
    return cast("list[dict[str, object]]", (await asyncio.to_thread(run_lane, lane))["partitions"])


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_topic_that_is_created_again_while_it_is_read_is_not_compared(side: str) -> None:
    async with FakeBroker(topics={"t": 1}) as one, FakeBroker(topics={"a.t": 1}) as other:
        brokers = (one, "t"), (other, "a.t")
        ids = [broker.cluster.topics[name].topic_id.hex() for broker, name in brokers]
        both = plan(LogEnds(0, 1), LogEnds(0, 1), known(Segment(0, 1, 0), covered=1))
        if side == "source":
            one.create_topic("t")
        else:
            other.create_topic("a.t")
        for broker, name in brokers:
            batch = encode_batch([NewRecord(b"k", name.encode())])
            broker.append(TopicPartition(name, 0), bytes(batch))
        planned = replace(both, topic_id=ids[0], target_id=ids[1])
        (answer,) = await answers_about([planned], one, other)
    assert "was deleted or created again while it was compared" in str(answer["cause"])


async def test_a_partition_whose_open_keys_the_disk_does_not_take_is_not_compared_the_others_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    monkeypatch.setattr(open_keys, "OPEN_KEYS", 2)
    monkeypatch.setattr(open_keys, "_BUFFER", 1)
    async with FakeBroker(topics={"t": 1, "u": 1}) as one, FakeBroker(topics={"t": 1, "u": 1}) as other:  # fmt: skip
        keys = [b"k%d" % n for n in range(8)]
        for broker, topic, kept in ((one, "t", keys), (other, "t", keys[-1:]), (one, "u", keys), (other, "u", keys)):  # fmt: skip
            batch = encode_batch([NewRecord(key, b"v") for key in kept])
            broker.append(TopicPartition(topic, 0), bytes(batch))
        plans = [
            replace(plan(LogEnds(0, 8), LogEnds(0, size), None), topic=topic, target_topic=topic, target_compacts=True)
            for topic, size in (("t", 1), ("u", 8))
        ]  # fmt: skip
        first, second = await answers_about(plans, one, other)
    assert "No such file or directory" in str(first["cause"])
    assert cast("dict[str, object]", second["findings"])["matched"] == 8


def test_a_large_partition_is_cut_at_records_whose_copies_the_map_has() -> None:
    kept = known(Segment(0, 400, 0), Segment(500, 500, 400), covered=1_000)
    found = plan(LogEnds(0, 1_200), LogEnds(0, 1_100), kept)
    parts = found.parts(500)
    assert [it.stretches for it in parts] == [
        (((0, 250), (0, 250)),),
        (((250, 600), (250, 500)),),
        (((600, 850), (500, 750)),),
        (((850, 1_200), (750, 1_100)),),
    ]
    assert [it.part for it in parts] == [0, 1, 2, 3]
    for before, behind in pairwise(parts):
        source, target = behind.stretches[0]
        assert (source.first, target.first) == (
            before.source_ranges[-1].end,
            before.target_ranges[-1].end,
        )
        assert found.expected(source.first) == target.first
        assert before.covered == source.first
    assert parts[-1].covered == 1_000


def test_what_was_copied_again_is_cut_in_its_own_place() -> None:
    kept = known(Segment(0, 500, 0), Segment(300, 400, 500), covered=700)
    found = plan(LogEnds(0, 700), LogEnds(0, 900), kept)
    parts = found.parts(400)
    assert sum(it.offsets for it in parts) == found.offsets
    for part in parts[1:]:
        source, target = part.stretches[0]
        assert source.first == (target.first if target.first < 500 else target.first - 200)


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_what_compacts_and_what_has_no_map_is_not_cut(policy: str) -> None:
    kept = known(Segment(0, 1_000, 0), covered=1_000)
    ends = LogEnds(0, 1_000)
    assert (
        len(plan_partition(SOURCE, COPY, ends, ends, kept, cleanup=("delete", policy)).parts(10))
        == 1
    )
    assert len(plan_partition(SOURCE, COPY, ends, ends, None).parts(10)) == 1


def test_copies_are_made_again_only_if_the_source_has_all_and_nothing_else_is_there() -> None:
    kept = known(Segment(10, 90, 50), covered=100)

    def renewable(
        source: LogEnds, target: LogEnds, policy: str = "delete", copy: TopicPartition = COPY
    ) -> tuple[int, str]:
        found = plan_partition(SOURCE, copy, source, target, kept, cleanup=("delete", policy))
        return found.renew_from, found.not_renewable

    assert renewable(LogEnds(0, 100), LogEnds(50, 140)) == (10, "")
    assert renewable(LogEnds(30, 100), LogEnds(80, 140)) == (40, "")
    assert "only copies" in renewable(LogEnds(30, 100), LogEnds(50, 140))[1]
    assert "another writer" in renewable(LogEnds(0, 100), LogEnds(0, 140))[1]
    assert "does not let" in renewable(LogEnds(0, 100), LogEnds(50, 140), "compact")[1]
    assert "other programs" in renewable(LogEnds(0, 100), LogEnds(50, 140), copy=SOURCE)[1]
    assert "no exact offset map" in plan(LogEnds(0, 9), LogEnds(0, 9), None).not_renewable


def test_only_an_end_that_is_missing_can_be_repaired_without_deleting() -> None:
    kept = known(Segment(0, 100, 0), covered=100)
    found = plan(LogEnds(0, 100), LogEnds(0, 60), kept)
    lost = [Difference(DifferenceKind.MISSING, it, -1) for it in range(60, 100)]
    assert advice(found, Comparison(60, differences=lost, tail=60))[:3] == (
        RepairKind.APPEND,
        60,
        60,
    )
    other = Difference(DifferenceKind.ALTERED, 5, 5, ("value",))
    assert advice(found, Comparison(59, differences=[other, *lost], tail=60))[:2] == (
        RepairKind.RENEW,
        0,
    )
    assert (
        advice(found, Comparison(60, differences=lost, tail=60, complete=False)).action
        is RepairKind.RENEW
    )
    gone = plan(LogEnds(5, 100), LogEnds(0, 60), kept)
    assert advice(gone, Comparison(59, differences=[other])).action is RepairKind.NONE


def test_copies_whose_offsets_must_be_those_of_the_source_are_not_deleted() -> None:
    """What is copied behind them has other offsets: the partition would stop with its copies gone."""
    kept = known(Segment(0, 100, 0), covered=100)
    found = plan(LogEnds(0, 100), LogEnds(0, 60), kept)
    altered = Difference(DifferenceKind.ALTERED, 5, 5, ("value",))
    lost = [Difference(DifferenceKind.MISSING, it, -1) for it in range(60, 100)]
    assert advice(found, Comparison(59, differences=[altered])).action is RepairKind.RENEW
    required = found.keeping_offsets()
    refused = advice(required, Comparison(59, differences=[altered]))
    assert refused.action is RepairKind.NONE
    assert "offsets.identical=require" in refused.text
    assert advice(required, Comparison(60, differences=lost, tail=60)).action is RepairKind.APPEND


@pytest.mark.parametrize(("said", "keeps"), [("require", True), ("prefer", False), ("", False)])
def test_a_flow_whose_offsets_must_be_identical_is_known_as_such(said: str, *, keeps: bool) -> None:
    flow = FlowName(ClusterAlias("a"), ClusterAlias("b"))
    connector = {
        "source.cluster.alias": "a",
        "target.cluster.alias": "b",
        "source.cluster.bootstrap.servers": "a:1",
        "offsets.identical": said,
    }
    assert FlowSides(flow, connector, {}).keeps_offsets is keeps


def test_the_largest_partitions_are_dealt_first() -> None:
    assert deal([1, 9, 5, 4], 2, lambda it: it) == [[9, 1], [5, 4]]
    assert deal([0, 0, 0], 2, lambda it: it) == [[0, 0], [0]]
    nothing: list[int] = []
    assert deal(nothing, 4, lambda it: it) == []


@pytest.mark.parametrize(("watermark", "unstable"), [(100, False), (101, True), (90_000, True)])
def test_what_is_above_an_open_transaction_is_not_compared(watermark: int, unstable: bool) -> None:
    kept = known(Segment(0, 100, 0), covered=100)
    ends = LogEnds(0, 100)
    found = plan_partition(SOURCE, COPY, ends, ends, kept, watermarks=(watermark, -1))
    assert VerifyPartition.from_json(json.loads(json.dumps(found.to_json()))) == found
    plans = VerifyPlan([found], [], ("1", "2"))
    report = report_of(
        FlowName(ClusterAlias("A"), ClusterAlias("B")), 0, plans, [by_the_map(found)]
    )
    assert report["equal"] is not unstable
    named = f"t-0: source offsets 100 to {watermark} are from an open transaction on"
    assert (named in str(report["not_compared"])) is unstable
    assert exit_code(report) == (UNHEALTHY if unstable else OK)
