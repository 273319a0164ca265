"""What ``mm2py stream`` counts, how its lanes share a rate, and which lanes it deals before partitions are reserved."""

from dataclasses import replace

import pytest

from mm2py.mirror.backfills import NO_END, Lease, LeaseState
from mm2py.types import TopicPartition
from mm2py_jobs.copy.backfill_lane import BackfillLane, dealt_lanes, run_backfill_lane
from mm2py_jobs.copy.lanes import Term
from mm2py_jobs.copy.stream_copy import CopyTotals

RATE = "flow.max.bytes.per.second"
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
CONFIG = {
    "name": "MirrorSourceConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:1",
    "target.cluster.bootstrap.servers": "b:1",
}
COMMON = BackfillLane(
    source="A", target="B", job="j", run=1, worker={}, connector=CONFIG, task={"x": "y"}
)


def lease(target_end: int, size_bytes: int, target_start: int = 0) -> Lease:
    return Lease(
        topic="t",
        partition=0,
        job="j",
        run=1,
        state=LeaseState.COPYING,
        start=0,
        end=NO_END,
        position=0,
        target_start=target_start,
        target_end=target_end,
        bytes=size_bytes,
    )


def test_totals_are_what_arrived_whether_a_term_ended_or_not() -> None:
    totals = CopyTotals()
    totals.begin({ONE: lease(100, 1_000)})  # of the driver before
    totals.note({ONE: lease(100, 1_000)})
    assert (totals.records, totals.bytes) == (0, 0)
    totals.note({ONE: lease(130, 1_300), TWO: lease(5, 50)})
    totals.note({ONE: lease(140, 1_400), TWO: lease(5, 50)})
    assert (totals.records, totals.bytes) == (45, 450)
    # Its partition went and came again, in a lease of its own.
    totals.note({TWO: lease(-1, 0, target_start=-1)})
    totals.note({TWO: lease(8, 30, target_start=5)})
    assert (totals.records, totals.bytes) == (48, 480)


@pytest.mark.parametrize(
    ("flow", "asked", "share"), [("0", 0, None), ("3000", 0, "1500"), ("3000", 5_001, "2500")]
)
def test_lanes_share_the_rate_of_the_flow_or_the_one_asked_for(
    flow: str, asked: int, share: str | None
) -> None:
    common = replace(COMMON, connector={**CONFIG, RATE: flow}, term=Term(1, 30.0, 40_000))
    lanes = dealt_lanes(common, [[ONE], [TWO]], rate_limit=asked)
    assert [it["lane"] for it in lanes] == [0, 1]
    assert [it["partitions"] for it in lanes] == [[("t", 0)], [("t", 1)]]
    rate = {} if share is None else {RATE: share}
    assert [it["task"] for it in lanes] == [{"x": "y", **rate}] * 2


def test_a_lane_without_partitions_ends_at_once_with_a_row_that_counts_nothing() -> None:
    (lane,) = dealt_lanes(COMMON, [[]])
    answer = run_backfill_lane(lane)
    assert [(it["topic"], it["records"]) for it in answer["parts"]] == [("", 0)]  # type: ignore[attr-defined]
