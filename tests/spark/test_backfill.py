"""Backfills beside a running flow, on real brokers: one exact seam per partition, nothing lost, nothing doubled.

Then what one refuses, with topic, partition and numbers, and nothing changed; how one ends that is a child process of a worker.
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mm2py.mirror.backfills import LANE_LOST, Order
from mm2py.types import ClusterAlias, FlowName
from mm2py_jobs.copy import backfill_spark
from mm2py_jobs.copy.backfill_children import BackfillChildren
from mm2py_jobs.spark import session
from tests.integration.active_active import check_sides, wait_until_quiet, write_pair
from tests.integration.cluster_changes import configs_of, delete_topic, topics_of
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.flow_questions import Asked, path_of
from tests.integration.ledger_scenes import Entry, entries
from tests.integration.mirror_process import (
    GROUPS,
    SHORT_SESSION,
    Flow,
    Mirror,
    running,
    until,
    write_file,
)
from tests.integration.setups import Setup
from tests.integration.test_exactly_once_faults import check_groups, commit_groups, there
from tests.integration.traffic import (
    Load,
    Record,
    Sent,
    assert_equal,
    committed_positions,
    copied,
    ends,
    producer,
    read,
    wait_for_copy,
    wait_for_markers,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark import lane_functions
from tests.spark.backfill_process import (
    SLOW_FLOW,
    BackfillProcess,
    attempts,
    command,
    command_line,
    executors_below,
    here,
    signal_process,
)

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(900)]

OLD_MS = 1_600_000_000_000


def history(topic_partitions: int, records: int, size: int = 200) -> list[Sent]:
    return [
        Sent(
            i % topic_partitions,
            b"%d-" % i + b"x" * size,
            b"k%d" % i,
            (("n", b"%d" % i),),
            OLD_MS + i,
        )
        for i in range(records)
    ]


@pytest.fixture
def old_orders(setup: Setup) -> tuple[Flow, str]:
    """A flow, and a topic with 9 MB of history from 2020 on its source."""
    topic = setup.topic("orders", 3, config={"retention.ms": "-1"})
    write(setup.a, topic, history(3, 40_000))
    return setup.flow(topic, SLOW_FLOW), topic


@pytest.mark.faults
@pytest.mark.usefixtures("lanes_session")
def test_a_running_flow_continues_behind_a_backfill_whose_worker_and_driver_are_killed(
    old_orders: tuple[Flow, str],
) -> None:
    flow, topic = old_orders
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with BackfillProcess(flow, "--rate-limit", "200000") as first:
            mirror.wait_for_log("left_to_backfill=3", 300)
            before = copied(flow, topic)
            until(lambda: copied(flow, topic) > before + 3_000, 240, "progress of the lanes")
            assert first.signal_worker(signal.SIGKILL)
            before = copied(flow, topic)
            until(lambda: copied(flow, topic) > before + 3_000, 240)
            write(flow.source, topic, history(3, 300))  # behind the end of the backfill
            first.kill()
        stopped_at = copied(flow, topic)
        assert stopped_at < 40_000
        ended = command(flow, "run", "--master", "local[2]", "--rate-limit", "100000000")
        assert ended.code == 0, ended.err
        assert ended.report["state"] == "DONE"
        for partition in ended.partitions:
            # The source is dense and nothing else writes: the offsets of both sides are the same.
            assert partition["target_from"] == partition["from"]
            assert partition["target_to"] == partition["to"] >= 13_333
        write(flow.source, topic, history(3, 30))
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert mirror.lines("partitions of a backfill are copied from here on")
        assert not mirror.lines("Traceback")
    status = command(flow, "status")
    assert status.report["state"] == "DONE"


@pytest.mark.faults
def test_a_flow_that_is_exactly_once_doubles_nothing_of_a_backfill_that_was_killed_and_cancelled(
    setup: Setup,
) -> None:
    """Lanes write without transactions; killed, they have stored where they began and no more: their copies are recognised in the log."""
    topic = setup.topic("once", 3, config={"retention.ms": "-1"})
    write(setup.a, topic, history(3, 9_000))
    late = {"{target}.offset.flush.interval.ms": "600000"}
    flow = setup.flow(topic, {**ENABLED, **late})
    with BackfillProcess(flow, "--rate-limit", "60000") as run:
        until(lambda: run.is_running and copied(flow, topic) > 1_000, 240, "progress of the lanes")
        run.kill()
    assert committed_positions(flow, topic) == dict.fromkeys(range(3), -1)
    assert 1_000 < copied(flow, topic) < 9_000
    assert command(flow, "cancel").report["state"] == "CANCELLED"
    with Mirror(flow.file) as mirror:
        assert assert_each_once(mirror, flow, topic) == 9_000
        mirror.check_defects()


@pytest.mark.chaos
def test_under_the_same_names_both_ways_a_killed_backfill_starts_no_loop_and_no_group_skips(
    setup: Setup,
) -> None:
    """Clients write into the copy beside its lanes, and the worker copies that back."""
    topic, marks, count = setup.unique("both-ways"), (b"one", b"two"), 20_000
    for region in (setup.a, setup.b):
        setup.create_topic(region, topic, 2, config={"retention.ms": "-1"})
    write(setup.a, topic, [Sent(n % 2, b"%d:%d:one" % (n % 2, n)) for n in range(count)])
    both = write_pair(setup.folder, setup.a, setup.b, topic, {**SHORT_SESSION, **GROUPS})
    flow, groups = replace(both, keeps_names=True), dict[str, int]()
    commit_groups(flow, topic, groups)
    with BackfillProcess(flow, "--rate-limit", "60000") as run:
        run.wait_copying()
        with Mirror(flow.file) as mirror, Load(setup.b, topic, 2, rate=100, mark=marks[1]) as load:
            for records in (2_000, 5_000):
                until(lambda: copied(flow, topic) > records, 240, "progress", alive=mirror)  # noqa: B023 - called here
                commit_groups(flow, topic, groups)
                if records < 5_000:
                    assert run.signal_worker(signal.SIGKILL)
            run.kill()
            check_groups(flow, topic, groups)
            assert command(flow, "run").code == 0
            commit_groups(flow, topic, groups)
            load.stop()
            logs = wait_until_quiet(mirror, setup.a, setup.b, topic, count + load.acked)
            sides = check_sides(*logs, marks, (count, load.acked))
            assert (sides.loops, sides.doubled) == (0, 0)
            newest = list(groups)[-1]
            until(lambda: there(flow, topic, newest) > 0, 90, "the newest group", alive=mirror)
            check_groups(flow, topic, groups)


def create_again(region: KafkaAddress, create_topic: CreateTopic, topic: str, records: int) -> None:
    """Delete a topic of one partition, and create it with other records."""
    delete_topic(region, topic)
    until(lambda: topic not in topics_of(region), 90, f"the end of {topic}")
    create_topic(region, topic, 1, config={"retention.ms": "-1"})
    write(region, topic, [Sent(0, b"new-%d" % i) for i in range(records)])


def lost_of(flow: Flow, topic: str) -> Entry | None:
    """Return the only event of a topic that names records, once it is in the ledger."""
    found = [it for it in entries(flow) if it.topic == topic and it.last >= it.first]
    assert len(found) < 2, found
    return found[0] if found else None


def assert_new_one_copied(mirror: Mirror, flow: Flow, topic: str, records: int) -> int:
    """Wait for all of a topic that was created again, behind what was copied of the old one; return where that ended."""
    truth = read(flow.source, topic)[0].records
    assert len(truth) == records

    def copy() -> list[Record]:
        return read(flow.target, flow.remote(topic))[0].records

    until(lambda: copy()[-1:] == truth[-1:], 120, f"the copy of {topic}", alive=mirror)
    there = copy()
    assert there[-records:] == truth
    old = [it.key for it in there[:-records]]
    assert old == [b"k%d" % i for i in range(len(old))]
    return len(old)


@pytest.mark.chaos
def test_a_topic_that_is_created_again_ends_its_part_of_a_backfill_and_the_flow_copies_the_new_one(
    setup: Setup,
) -> None:
    """While lanes read: once with fewer records than it had, once with more; a third topic stays."""
    mark = setup.unique("again")
    renewed = {f"{mark}-fewer": 100, f"{mark}-more": 8_000}
    kept = f"{mark}-kept"
    forever = {"retention.ms": "-1"}
    for topic, records in ((kept, 500), *((it, 6_000) for it in renewed)):
        setup.create_topic(setup.a, topic, 1, config=forever)
        write(setup.a, topic, history(1, records))
    pieces = {"{source}.consumer.max.partition.fetch.bytes": "20000"}
    flow = setup.flow(f"{mark}-.*", pieces)
    with BackfillProcess(flow, "--rate-limit", "30000") as run:  # 90 s for each
        until(lambda: run.is_running and all(copied(flow, topic) > 500 for topic in renewed), 240)
        for topic, records in renewed.items():
            create_again(setup.a, setup.create_topic, topic, records)
        ended = run.wait()
    assert (ended.code, ended.report["state"]) == (1, "FAILED"), ended.err
    rows = {str(it["topic"]): it for it in ended.rows("partitions")}
    assert rows[kept]["state"] == "HANDED_OVER"
    for topic in renewed:
        assert rows[topic]["state"] == "RELEASED", rows
        assert "deleted and created again" in str(rows[topic]["cause"])
        assert "mm2py backfill run" in str(rows[topic]["cause"])
    with Mirror(flow.file) as mirror:
        for topic, records in renewed.items():
            lost = assert_new_one_copied(mirror, flow, topic, records)
            entry = until(partial(lost_of, flow, topic), 90, f"what {topic} lost", alive=mirror)
            assert (entry.kind, entry.first, entry.last) == ("recreated", lost, 5_999)
        mirror.check_defects()
    again = command_line(flow, "run", "--master", "local[2]")
    assert (again.code, again.report["state"]) == (0, "DONE"), again.err


@pytest.mark.faults
@pytest.mark.usefixtures("lanes_session")
def test_a_transaction_that_is_open_ends_the_range_and_the_flow_copies_it_once_it_is_committed(
    setup: Setup,
) -> None:
    """Of committed records alone; others are written above it meanwhile."""
    topic = setup.topic("open", 1, config={"retention.ms": "-1"})
    write(setup.a, topic, history(1, 500))
    flow = setup.flow(topic, {"{source}.consumer.isolation.level": "read_committed"})
    client = producer(setup.a, transactional_id=f"tx-{topic}", transaction_timeout_ms=600_000)
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(topic, b"open", b"k", 0)
    client.flush(30)
    write(setup.a, topic, [Sent(0, b"above-%d" % i) for i in range(100)])
    ended = command(flow, "run", "--master", "local[2]")
    assert (ended.code, ended.report["state"]) == (0, "DONE"), ended.err
    (row,) = ended.partitions
    assert (row["from"], row["to"], row["records"]) == (0, 500, 500)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        assert copied(flow, topic) == 500
        client.commit_transaction(30)
        until(lambda: copied(flow, topic) >= 601, 90, "the rest", alive=mirror)
        assert_equal(
            read(setup.a, topic, committed=True), read(setup.b, flow.remote(topic), committed=True)
        )
        mirror.check_defects()


@pytest.mark.usefixtures("lanes_session")
def test_odd_topics_are_backfilled_whole_and_changed_settings_are_put_back(setup: Setup) -> None:
    """Short retention before records of years ago, transactions, a compacted topic, 200 partitions: one run, no flow beside it."""
    mark = setup.unique("odd")
    old, committed, compacted, many = (f"{mark}-{it}" for it in ("old", "txn", "compact", "many"))
    forever = {"retention.ms": "-1"}
    setup.create_topic(setup.a, old, 2, config=forever)
    write(setup.a, old, history(2, 2_000))
    setup.create_topic(setup.a, committed, 1, config=forever)
    _transactions(setup.a, committed)
    setup.create_topic(setup.a, compacted, 1, config={"cleanup.policy": "compact"})
    write(setup.a, compacted, [Sent(0, b"v%d" % i, b"k%d" % (i % 7)) for i in range(500)])
    setup.create_topic(setup.a, many, 200, config=forever)
    write(setup.a, many, [Sent(i % 200, b"v%d" % i, b"k", (), OLD_MS) for i in range(600)])
    flow = setup.flow(
        f"{mark}-.*",
        {
            "{source}.consumer.isolation.level": "read_committed",
            "sync.topic.configs.enabled": "false",
        },
    )
    hour = {"retention.ms": "3600000"}
    setup.create_topic(setup.b, flow.remote(old), 2, config=hour)
    # Records of years ago in a topic that keeps an hour: the broker would delete them at the end.
    for refused in (command(flow, "plan"), command(flow, "run", "--master", "local[2]")):
        rows = refused.rows("refused")
        assert refused.code == 3
        assert {(it["topic"], it["partition"]) for it in rows} == {(old, 0), (old, 1)}
        assert "about 1,000 records are more than retention.ms=3600000" in str(rows[0]["reason"])
    plan = command(flow, "plan", "--accept-expiry")
    assert plan.code == 0, plan.err
    assert [
        (it["topic"], it["property"], it["from"], it["to"]) for it in plan.rows("settings")
    ] == [(flow.remote(old), "retention.ms", "3600000", "-1")]
    ended = command(flow, "run", "--master", "local[2]", "--accept-expiry")
    assert ended.code == 0, ended.err
    assert ended.report["state"] == "DONE"
    assert len(ended.partitions) == 204
    for topic in (old, committed, compacted, many):
        truth = read(setup.a, topic, committed=True)
        assert_equal(truth, read(setup.b, flow.remote(topic), committed=True))
    assert configs_of(setup.b, flow.remote(old))["retention.ms"] == "3600000"
    again = command(flow, "run", "--master", "local[2]")
    assert again.code == 0, again.err
    assert again.report["records"] == 0  # nothing is left
    # With config sync the copy has its source's retention, during the run and after it.
    kept = f"kept-{mark}"
    setup.create_topic(setup.a, kept, 2, config=forever)
    write(setup.a, kept, history(2, 9_000))
    synced = setup.flow(kept)
    setup.create_topic(setup.b, synced.remote(kept), 2, config=hour)
    ended = command(synced, "run", "--master", "local[2]")
    assert (ended.code, ended.report["state"]) == (0, "DONE"), ended.err
    assert configs_of(setup.b, synced.remote(kept))["retention.ms"] == "-1"
    assert_equal(read(setup.a, kept), read(setup.b, synced.remote(kept)))
    wrong = command(synced, "plan", "--topics", "orders[")
    assert wrong.code == 2
    assert "--topics" in wrong.err


@pytest.mark.usefixtures("lanes_session")
def test_a_partition_that_each_process_of_its_lane_dies_of_keeps_no_other_from_its_end(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = setup.topic("deadly", 4, config={"retention.ms": "-1"})
    write(setup.a, topic, history(4, 400))
    flow = setup.flow(topic)
    with monkeypatch.context() as patched:
        patched.setattr(backfill_spark, "run_backfill_lane", lane_functions.copy_and_die_of_one)
        ended = command(flow, "run", "--master", "local[2]", "--lanes", "1")
    assert ended.code == 1, ended
    assert ended.out, ended.err
    rows = ended.rows("partitions")
    states = {it["partition"]: (it["state"], it["cause"]) for it in rows}
    lost = f"{LANE_LOST} (exit code -9)"
    assert states.pop(1) == ("RELEASED", lost), ended.err
    assert set(states.values()) == {("HANDED_OVER", "")}
    assert (ended.code, ended.report["state"]) == (1, "FAILED")
    again = command(flow, "run", "--master", "local[2]")
    assert again.code == 0, again.err
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


def _transactions(region: KafkaAddress, topic: str) -> None:
    """Three transactions, the second one aborted, markers at the end."""
    client = producer(region, transactional_id=f"tx-{topic}")
    client.init_transactions(30)
    for number in range(3):
        client.begin_transaction()
        for i in range(50):
            client.produce(topic, b"%d-%d" % (number, i), b"k", 0)
        client.flush(30)
        if number == 1:
            client.abort_transaction(30)
        else:
            client.commit_transaction(30)
    wait_for_markers(region, topic)


def test_targets_that_cannot_take_history_are_refused_by_plan_and_by_run(setup: Setup) -> None:
    mark = setup.unique("refused")
    full, short, good = f"{mark}-full", f"{mark}-short", f"{mark}-good"
    for topic in (full, short, good):
        setup.create_topic(setup.a, topic, 3)
        write(setup.a, topic, [Sent(i % 3, b"v%d" % i) for i in range(30)])
    flow = setup.flow(f"{mark}-.*")
    setup.create_topic(setup.b, flow.remote(full), 3)
    write(setup.b, flow.remote(full), [Sent(1, b"of another program")])
    setup.create_topic(setup.b, flow.remote(short), 2, config={"max.message.bytes": "2000"})

    plan = command_line(flow, "plan")
    assert plan.code == 3
    refused = {
        (str(it["topic"]), it["partition"]): str(it["reason"]) for it in plan.rows("refused")
    }
    assert refused.keys() == {(full, 1), (short, 2)}
    assert "is not empty (its log ends at 1)" in refused[full, 1]
    assert "has 2 partitions" in refused[short, 2]
    small = f"{flow.remote(short)} has max.message.bytes=2000, its source "
    assert small in str(plan.report["notes"])
    assert {(str(it["topic"]), it["to"]) for it in plan.rows("partitions")} == {
        (full, 10),
        (short, 10),
        (good, 10),
    }

    run = command(flow, "run", "--master", "local[2]")
    assert (run.code, run.report["state"]) == (3, "REFUSED")
    assert ends(setup.b, flow.remote(good)) == {}  # not even created
    assert command(flow, "status").report["state"] is None

    narrowed = command(
        flow, "plan", "--topics", f"{mark}-good", "--from", "offset:4", "--to", "offset:7"
    )
    assert narrowed.code == 0, narrowed.err
    assert {(it["from"], it["to"]) for it in narrowed.rows("partitions")} == {(4, 7)}

    missing = command(flow, "plan", "--topics", "no-such-topic")
    assert missing.code == 3
    assert missing.rows("refused")[0]["topic"] == "no-such-topic"
    assert command(flow, "pause").code == 3
    usage = command(flow, "plan", "--from", "yesterday")
    assert usage.code == 2
    assert "--from 'yesterday' is not understood" in usage.err
    assert command(flow, "plan", "--skip-refused").code == 0
    skipping = command(flow, "run", "--master", "local[2]", "--skip-refused")
    assert (skipping.code, skipping.report["state"]) == (3, "DONE")
    left = {(it["topic"], it["partition"]) for it in skipping.rows("refused")}
    # The run adds the partition that is missing, and copies it where it is seen in time.
    assert {(full, 1)} <= left <= refused.keys()
    topics = full, short, good
    copied = {topic: sum(ends(setup.b, flow.remote(topic)).values()) for topic in topics}
    assert copied == {full: 21, short: 20 if (short, 2) in left else 30, good: 30}
    flow.file.write_text(flow.file.read_text().replace("enabled = true", "enabled = false"))
    disabled = command(flow, "plan")
    assert disabled.code == 1
    assert "is not enabled" in disabled.err
    assert command(flow, "status").code == 0


@pytest.mark.faults
@pytest.mark.usefixtures("lanes_session")
@pytest.mark.parametrize("option", [(), ("--skip-refused",)], ids=["without", "with"])
def test_a_run_that_continues_one_that_skipped_partitions_names_them_and_copies_the_others(
    setup: Setup, option: tuple[str, ...]
) -> None:
    """Its driver was killed, and the copies that the checks had passed are not empty any more."""
    topic = setup.topic("skipping", 3, config={"retention.ms": "-1"})
    write(setup.a, topic, history(3, 30_000))
    flow = setup.flow(topic)
    setup.create_topic(setup.b, flow.remote(topic), 3, config={"retention.ms": "-1"})
    write(setup.b, flow.remote(topic), [Sent(1, b"of another program")])
    with BackfillProcess(flow, "--skip-refused", "--rate-limit", "200000") as run:
        until(lambda: run.is_running and copied(flow, topic) > 3_000, 240, "progress of the lanes")
        run.kill()
    again = command(flow, "run", "--master", "local[2]", *option)
    assert (again.code, again.report["state"]) == (3, "DONE"), again.err
    assert [(it["topic"], it["partition"]) for it in again.rows("refused")] == [(topic, 1)]
    assert "is not empty (its log ends at 1)" in str(again.rows("refused")[0]["reason"])
    assert ends(setup.b, flow.remote(topic)) == {0: 10_000, 1: 1, 2: 10_000}
    truth, copy = read(setup.a, topic), read(setup.b, flow.remote(topic))
    assert_equal({it: truth[it] for it in (0, 2)}, {it: copy[it] for it in (0, 2)})


@pytest.mark.faults
def test_what_is_paused_alone_is_left_out_and_copied_by_the_flow_once_it_is_resumed(
    setup: Setup,
) -> None:
    mark = setup.unique("paused")
    whole, part, other = f"{mark}-whole", f"{mark}-part", f"{mark}-other"
    for topic in (whole, part, other):
        setup.create_topic(setup.a, topic, 2)
    flow = setup.flow(f"{mark}-.*")
    with running(flow.file) as mirror:
        asked = Asked(mirror)
        asked.done("POST", f"{path_of(flow)}/pause", topic=whole)
        asked.done("POST", f"{path_of(flow)}/pause", topic=part, partition=1)
    for topic in (whole, part, other):
        write(setup.a, topic, [Sent(i % 2, b"v%d" % i) for i in range(20)])
    run = command(flow, "run", "--master", "local[2]")
    assert run.code == 0, run.err
    assert {(it["topic"], it["partition"]) for it in run.rows("partitions")} == {
        (part, 0), (other, 0), (other, 1),
    }  # fmt: skip
    plan = command(flow, "plan")
    assert f"left out: {part}-1, {whole} (paused alone" in str(plan.report["notes"])
    with running(flow.file) as mirror:
        asked = Asked(mirror)
        assert_equal(*wait_for_copy(mirror, flow, other))
        assert ends(setup.b, flow.remote(whole)) == {0: 0, 1: 0}
        assert ends(setup.b, flow.remote(part)) == {0: 10, 1: 0}
        asked.done("POST", f"{path_of(flow)}/resume", all_topics=True)
        for topic in (whole, part):
            assert_equal(*wait_for_copy(mirror, flow, topic))


def test_a_source_or_a_spark_master_that_does_not_answer_is_named(setup: Setup) -> None:
    topic = setup.topic("named")
    write(setup.a, topic, [Sent(0, b"v")])
    flow = setup.flow(topic)
    ended = command_line(flow, "run", "--master", "spark://127.0.0.1:9")
    assert ended.code == 1
    assert "Spark master spark://127.0.0.1:9 does not accept connections" in ended.err
    assert command(flow, "status").report["state"] is None
    flow.file.write_text(flow.file.read_text().replace(setup.a.bootstrap_servers, "127.0.0.1:9"))
    silent = command(flow, "plan")
    assert silent.code == 1
    assert "127.0.0.1:9" in silent.err


@pytest.mark.faults
@pytest.mark.parametrize("words", [("backfill", "run"), ("archive",)], ids=" ".join)
def test_a_jvm_that_dies_ends_a_job_with_one_line_and_the_same_command_continues_it(
    old_orders: tuple[Flow, str], setup: Setup, words: Sequence[str]
) -> None:
    flow, _ = old_orders
    folder = ("--to", str(setup.folder / "archive")) if words == ("archive",) else ()
    with BackfillProcess(flow, *folder, "--rate-limit", "200000", words=words) as run:
        if folder:
            until(run.workers, 240, "a lane that has begun")
        else:
            run.wait_copying()
        run.kill_jvm()
        ended = run.wait()
    assert ended.code == 1
    assert ended.err.splitlines()[-1].startswith("mm2py: ")
    assert "Spark's JVM has ended" in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
    done = here(flow, words, *folder, "--master", "local[2]", "--rate-limit", "100000000")
    assert done.code == 0, done.err


@pytest.mark.chaos
def test_a_lane_whose_executor_dies_each_time_ends_the_run_and_the_same_command_continues_it(
    setup: Setup,
) -> None:
    topic = setup.topic("executors", 1, config={"retention.ms": "-1"})
    write(setup.a, topic, history(1, 20_000))
    flow = setup.flow(topic)
    killed = set[int]()

    def kill_each() -> bool:
        for pid in executors_below(run.pid):
            if pid not in killed and any(attempts(flow, it) for it in run.workers()):
                signal_process(pid, signal.SIGKILL)
                killed.add(pid)
        return not run.is_running

    slow = "--rate-limit", "50000"
    with BackfillProcess(flow, *slow, master="local-cluster[1,1,1024]") as run:
        until(kill_each, 500, "the end of the run")
        ended = run.wait()
    assert ended.code == 1
    assert "ExecutorLostFailure" in ended.err.splitlines()[-1]
    assert 0 < copied(flow, topic) < 20_000
    done = here(flow, ("backfill", "run"), "--master", "local[2]")
    assert (done.code, done.report["state"]) == (0, "DONE"), done.err
    assert_equal(read(setup.a, topic), read(setup.b, flow.remote(topic)))


FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
ORDER = Order(id="j", master="local[2]")


@pytest.fixture
def children(tmp_path: Path) -> BackfillChildren:
    """A worker whose clusters do not answer."""
    file = tmp_path / "mm2.properties"
    dead = {f"{alias}.bootstrap.servers": "127.0.0.1:9" for alias in "AB"}
    write_file(file, {"clusters": "A, B", "A->B.enabled": "true", **dead})
    return BackfillChildren(file)


async def test_why_a_command_failed_is_its_last_word(children: BackfillChildren) -> None:
    planned = await children.plan(FLOW, ORDER)
    assert (planned.code, planned.out) == (1, "")
    assert "127.0.0.1:9" in planned.cause
    usage = await children.run(FLOW, Order(id="j", start="yesterday", wait_executors_s=600))
    assert usage.code == 2
    assert "--from 'yesterday' is not understood" in usage.cause
    for option, order in {
        "--wait-executors": Order(id="j", wait_executors_s=-1),
        "--max-lanes-per-broker": Order(id="j", max_lanes_per_broker=-1),
    }.items():
        refused = await children.run(FLOW, order)
        assert option in " ".join(refused.log)


async def test_a_child_that_ends_with_its_worker_leaves_nothing(children: BackfillChildren) -> None:
    running = asyncio.create_task(children.run(FLOW, ORDER))
    await asyncio.sleep(0)
    async with asyncio.timeout(120):
        while not children.running:  # noqa: ASYNC110 - a process is started
            await asyncio.sleep(0.01)
        await children.close()
        ended = await running
    assert ended.code != 0
    assert not children.running


async def test_a_missing_extra_or_java_is_named(
    children: BackfillChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await children.missing("") == ""
    monkeypatch.setenv("MM2PY_JAVA", "/nowhere/java")
    assert "no Java 17" in await children.missing("local[2]")
    assert await children.missing("sc://host") == ""  # its server has one

    def nothing(name: str) -> None:
        del name

    monkeypatch.setattr(session, "find_spec", nothing)
    assert "pip install 'mm2py[spark]'" in await children.missing("")
