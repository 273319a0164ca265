"""Commands of jobs: how a verification ends, which offsets a rerun copies, what a stream counts and how its lanes share."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from mm2py.client.connect.admin import Admin, TopicDescription
from mm2py.errors import FatalError, UsageError
from mm2py.mirror.backfills import NO_END, Job, JobState, Lease, LeaseState
from mm2py.mirror.offset_map_pages import Page, Segment
from mm2py.mirror.start_positions import Boundary
from mm2py.protocol.record_batch import Codec
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.storage.job_claim import BackfillRefusedError
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_cli.output import NOT_EQUAL, OK, UNHEALTHY
from mm2py_jobs.archive.restore_runs import as_begun, job_of
from mm2py_jobs.copy.backfill_lane import BackfillLane, dealt_lanes, run_backfill_lane
from mm2py_jobs.copy.backfill_runs import check_continues
from mm2py_jobs.copy.known_maps import KnownMap
from mm2py_jobs.copy.lanes import Term
from mm2py_jobs.copy.plan import PartitionPlan
from mm2py_jobs.copy.rerun import LandedRecords, check_topic, original_of
from mm2py_jobs.copy.stream_copy import CopyTotals
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.job_options import BackfillOptions, RestoreOptions, VerifyOptions
from mm2py_jobs.log.log_batches import cut, log_batch, records_in
from mm2py_jobs.log.log_ends import LogEnds
from mm2py_jobs.spark.place import SparkPlace
from mm2py_jobs.verify.repair_run import lost_of, repaired_report
from mm2py_jobs.verify.verify_runs import exit_code, verdict
from tests.kit.fakes.batches import sealed
from tests.unit.rest.job_fakes import LEASE
from tests.unit.rest.paper_worker import CONFIG

TP = TopicPartition("t", 0)

# -- a second run of a job is about the same partitions ---------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "continues"),
    [
        (("a,b", "earliest", "now"), True),
        (("", "earliest", "now"), True),  # what messages and the guide name
        (("a", "earliest", "now"), False),
        (("a,b", "earliest", "offset:7"), False),
    ],
)
def test_a_run_with_other_arguments_does_not_end_an_unfinished_backfill_as_its_own(
    arguments: tuple[str, str, str], *, continues: bool
) -> None:
    topics, start, end = arguments
    options = BackfillOptions(
        file=Path("f"), flow="A->B", topics=topics, start=start, end=end, place=SparkPlace()
    )
    job = Job(id="j", state=JobState.FAILED, run=1, lanes=1, topics="a,b")
    if continues:
        check_continues(options, job)
        return
    with pytest.raises(BackfillRefusedError, match="was begun with --topics 'a,b'"):
        check_continues(options, job)


def test_a_restore_of_other_topics_is_another_one() -> None:
    one, other, every = (
        RestoreOptions(file=Path("f"), flow="A->B", folder="/d", place=SparkPlace(), topics=topics)
        for topics in ("a", "b", "")
    )
    jobs = [job_of(it, "/d/A-B") for it in (one, other, every)]
    assert len({it.archive for it in jobs}) == 3
    # As an earlier build named it, which had the topics beside it alone.
    begun = replace(jobs[0], archive="/d/A-B", state=JobState.FAILED)
    assert as_begun(jobs[0], begun).archive == begun.archive
    assert as_begun(jobs[1], begun) == jobs[1]


# -- verify: a flow that copies nothing does not pass ----------------------------------------------


@pytest.mark.parametrize(
    ("differences", "not_compared", "checked", "waiting", "code", "said"),
    [
        (0, 0, 10, [0], OK, "equal: 10 records are the same on both sides"),
        (0, 0, 10, [5], OK, "equal: 10 "),
        (0, 0, 0, [0], OK, "equal: 0 "),  # an empty topic
        (0, 0, 0, [0, 7], UNHEALTHY, "nothing was compared: 7 source offsets are not copied"),
        (0, 0, 0, [], UNHEALTHY, "nothing was compared"),
        (0, 1, 10, [0, 5], UNHEALTHY, "equal: 10 records are the same on both sides; 1 partitions"),
        (1, 0, 10, [0], NOT_EQUAL, "NOT equal: 1 differences"),
        (1, 1, 10, [0], NOT_EQUAL, "NOT equal: 1 differences"),
    ],
)
def test_the_exit_code_is_that_of_what_was_compared(
    differences: int, not_compared: int, checked: int, waiting: list[int], code: int, said: str
) -> None:
    found = [{"kind": "missing"}] * differences
    report: dict[str, object] = {
        "tier": 1,
        "equal": not differences and not not_compared,
        "differences": found,
        "not_compared": ["t-0: cannot be read"] * not_compared,
        "checked_records": checked,
        "partitions": [{"not_copied_offsets": it} for it in waiting],
    }
    assert exit_code(report) == code
    assert verdict(report, found).startswith(said)
    if report["equal"]:
        report["repairs"] = [{"lost": [[0, 7], [9, 10]]}]
        assert exit_code(report) == NOT_EQUAL
        assert verdict(report, []).startswith("NOT equal: neither side has 8 offsets")


def options(
    *, flow: str = "A->B", tier: int = 1, master: str = "", repairs: bool = False, deletes: bool = False,
    begins: str = "",
) -> VerifyOptions:  # fmt: skip
    return VerifyOptions(
        file=Path("f"), flow=flow, topics=None, tier=tier, place=SparkPlace(master), repairs=repairs, deletes=deletes,
        begins=begins,
    )  # fmt: skip


@pytest.mark.parametrize(
    "wrong",
    [options(flow=""), options(deletes=True), options(repairs=True, tier=0), options(begins="5")],
)
def test_options_that_contradict_each_other_are_refused_and_others_taken(
    wrong: VerifyOptions,
) -> None:
    options(repairs=True, deletes=True).check()
    with pytest.raises(UsageError):
        wrong.check()


def test_the_report_of_a_repair_has_what_was_found_and_what_is_true_now() -> None:
    def row(number: int, equal: bool, records: int) -> dict[str, object]:
        return {"topic": "t", "partition": number, "equal": equal, "checked_records": records}

    def difference(number: int) -> dict[str, object]:
        return {"topic": "t", "partition": number, "kind": "missing"}

    before: dict[str, object] = {
        "flow": "A->B",
        "equal": False,
        "checked_records": 8,
        "differences": [difference(0), difference(1)],
        "not_compared": [],
        "partitions": [row(0, False, 3), row(1, False, 4), row(2, True, 1)],
    }
    nothing: dict[str, object] = {"differences": [], "not_compared": []}
    after = nothing | {"partitions": [row(0, True, 5)]}
    found = repaired_report(before, after, [{"partition": 0, "done": True}])
    assert found["equal"] is False
    assert found["differences"] == [difference(1)]
    assert found["checked_records"] == 10
    assert found["partitions"] == [row(0, True, 5), row(1, False, 4), row(2, True, 1)]
    assert found["before"] == {
        "equal": False,
        "checked_records": 8,
        "differences": [difference(0), difference(1)],
    }
    whole = nothing | {"partitions": [row(0, True, 5), row(1, True, 4)]}
    assert repaired_report(before, whole, [])["equal"] is True
    left_out = repaired_report(before, whole | {"not_compared": ["t-1: cannot be read"]}, [])
    assert left_out["equal"] is False
    above = ["t-1: above an open transaction", "t-2: damaged"]
    again = repaired_report(before | {"not_compared": above}, whole, [])
    assert again["not_compared"] == ["t-2: damaged"], "t-1 was compared again, and whole"


def test_what_the_source_lost_before_a_repair_copied_anything_is_lost() -> None:
    part = PartitionPlan(topic="t", partition=0, target_topic="A.t", start=3, end=10, bytes=1)
    copied = KnownMap()
    copied.put(Page(0, bytes(16), bytes(16), 10, 10, -1, -1, -1, (Segment(5, 5, 0),)))
    for known, starts, lost in (
        ({TP: copied}, 5, [(3, 5)]),
        ({}, 10, [(3, 10)]),  # nothing was copied, so there is no map
        ({}, 3, None),
    ):
        assert lost_of([part], {TP: starts}, known).get(TP) == lost


# -- rerun: which offsets, and what of a batch -----------------------------------------------------

LOG = LogEnds(10, 20)


@pytest.mark.parametrize(
    ("landed", "found"),
    [
        ([(0, 5), (5, 1), (6, 2)], False),
        ([(0, 5), (-1, 1), (6, 2)], False),  # not said
        ([(0, 5), (7, 1)], True),
        ([(3, 5)], True),  # another run was first
    ],
)
def test_a_second_run_into_a_topic_is_found(landed: list[tuple[int, int]], *, found: bool) -> None:
    for start in (0, 40):
        records = LandedRecords({TP: start} if start else None)
        errors = [records.note(TP, at + start if at >= 0 else at, count) for at, count in landed]
        assert any(errors) is found


@pytest.mark.parametrize(("now", "refused"), [(b"1" * 16, False), (b"2" * 16, True), (None, True)])
async def test_a_range_of_two_topics_of_the_same_name_is_not_done(
    now: bytes | None, *, refused: bool
) -> None:
    class Source:
        async def describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicDescription]:
            there = {} if now is None else dict.fromkeys(names, now)
            return {it: TopicDescription(it, id_, (0,), internal=False) for it, id_ in there.items()}  # fmt: skip

    checked = check_topic(cast("Admin", Source()), "t", b"1" * 16, "t-again")
    if not refused:
        await checked
        return
    with pytest.raises(FatalError, match="t-again may have records of two topics"):
        await checked


@pytest.mark.parametrize(
    ("names", "into", "original"),
    [
        ({}, "A.orders", "orders"),
        ({}, "A.pay", "pay"),
        ({}, "A.left-out", "left-out"),  # what is asked for
        ({}, "A.other", ""),  # the flow leaves it out
        ({}, "pay", ""),
        ({"replication.policy.class": "IdentityReplicationPolicy"}, "pay", "pay"),
        ({"replication.policy.class": "IdentityReplicationPolicy"}, "again", ""),
    ],
)
def test_a_rerun_into_the_copy_of_any_topic_of_the_flow_is_refused(
    names: dict[str, str], into: str, original: str
) -> None:
    aliases = {"source.cluster.alias": "A", "target.cluster.alias": "B"}
    servers = {"source.cluster.bootstrap.servers": "a:9092"}
    connector = {**aliases, **servers, **names, "topics": "orders|pay|again"}
    sides = FlowSides(FlowName(ClusterAlias("A"), ClusterAlias("B")), connector, {})
    assert original_of(into, "left-out", sides, ["orders", "other", "pay"]) == original


@pytest.mark.parametrize(
    ("boundary", "by_time", "edge", "offset"),
    [
        (Boundary(), -1, LOG.start, 10),
        (Boundary(), -1, LOG.end, 20),
        (Boundary(offset=15), -1, LOG.start, 15),
        (Boundary(offset=3), -1, LOG.start, 10),
        (Boundary(offset=99), -1, LOG.end, 20),
        (Boundary(timestamp=5), 12, LOG.start, 12),
        (Boundary(timestamp=5), 25, LOG.start, 20),  # above the last stable offset
        (Boundary(timestamp=5), -1, LOG.start, 20),
    ],
)
def test_a_range_is_what_the_log_has_of_it(
    boundary: Boundary, by_time: int, edge: int, offset: int
) -> None:
    assert boundary.placed(by_time, LOG.start, LOG.end, edge) == offset


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("log", "values"),
    [
        (LogEnds(0, 100), [b"0", b"1", b"2", b"3"]),
        (LogEnds(12, 13), [b"2"]),
        (LogEnds(11, 100), [b"1", b"2", b"3"]),
        (LogEnds(0, 12), [b"0", b"1"]),
        (LogEnds(14, 20), []),
    ],
)
def test_a_batch_is_cut_where_the_range_ends_and_keeps_its_codec(
    log: LogEnds, values: list[bytes], codec: Codec
) -> None:
    records = [NewRecord(b"k", b"%d" % n, ((b"h", None),), 1_000 + n) for n in range(4)]
    data = bytearray(sealed(encode_batch(records, codec)))
    data[0:8] = (10).to_bytes(8, "big")
    batch = log_batch(memoryview(data))
    assert records_in(batch, log.start, log.end) == len(values)
    found = cut(TP, batch, log.start, log.end)
    kept = [
        it for batch in found for one in decode_batches(sealed(batch.data)) for it in one.records
    ]
    assert [it.value for it in kept] == values
    assert [it.timestamp for it in kept] == [1_000 + int(value) for value in values]
    assert all(it.headers == ((b"h", None),) for it in kept)
    assert {batch.codec for batch in found} <= {codec}


# -- stream: totals, and lanes that are dealt before partitions are reserved -----------------------

RATE = "flow.max.bytes.per.second"
ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)
COMMON = BackfillLane(
    source="A", target="B", job="j", run=1, worker={}, connector=CONFIG, task={"x": "y"}
)


def lease(target_end: int, size_bytes: int, target_start: int = 0) -> Lease:
    return replace(
        LEASE,
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


def test_positions_are_said_to_be_stored_only_where_all_lanes_have_ended_in_order() -> None:
    totals, ended = CopyTotals(), replace(lease(9, 90), state=LeaseState.RESERVED)
    totals.note({ONE: ended, TWO: lease(5, 50)})
    assert totals.summary().startswith("ended, lanes of 1 partitions were cut off")
    totals.note({ONE: ended, TWO: ended})
    assert totals.summary() == "ended, positions are stored: 18 records in 0 terms"
    totals.note({ONE: replace(ended, cause="too large"), TWO: ended})
    assert totals.summary().endswith("; 1 partitions stood still: t-0: too large")
    assert totals.standing == {ONE: "too large"}


@pytest.mark.parametrize(
    ("flow", "asked", "rate"), [("0", 0, 0), ("3000", 0, 3_000), ("3000", 5_001, 5_001)]
)
def test_lanes_share_the_rate_of_the_flow_or_of_the_run(flow: str, asked: int, rate: int) -> None:
    common = replace(COMMON, connector={**CONFIG, RATE: flow}, term=Term(1, 30.0, 40_000))
    lanes = dealt_lanes(common, [[ONE], [TWO]], rate_limit=asked)
    assert [it["lane"] for it in lanes] == [0, 1]
    assert [it["partitions"] for it in lanes] == [[("t", 0)], [("t", 1)]]
    assert [it["rate"] for it in lanes] == [rate] * 2


def test_a_lane_without_partitions_ends_at_once_with_a_row_that_counts_nothing() -> None:
    (lane,) = dealt_lanes(COMMON, [[]])
    answer = run_backfill_lane(lane)
    assert [(it["topic"], it["records"]) for it in answer["parts"]] == [("", 0)]  # type: ignore[attr-defined]


def test_a_lane_writes_no_secret_into_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(root, "handlers", [])  # those of pytest
    secret = {"source.cluster.ssl.key.password": "canary-of-a"}
    (lane,) = dealt_lanes(replace(COMMON, connector={**CONFIG, **secret}), [[]])
    run_backfill_lane(lane)
    logging.getLogger("mm2py").warning("refused canary-of-a")
    assert capsys.readouterr().err.endswith("WARNING refused [hidden]\n")
