"""Backfills beside a running flow, on real brokers: one exact seam per partition, nothing lost, nothing doubled."""

import signal
from functools import partial

import pytest

from tests.integration.cluster_changes import configs_of, delete_topic, topics_of
from tests.integration.exactly_once import ENABLED, assert_each_once
from tests.integration.ledger_scenes import Entry, entries
from tests.integration.mirror_process import Flow, Mirror, until
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Record,
    Sent,
    assert_equal,
    committed_positions,
    copied,
    producer,
    read,
    wait_for_copy,
    wait_for_markers,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import BackfillProcess, command, command_line

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(900)]

OLD_MS = 1_600_000_000_000
SLOW_FLOW = {"flow.max.bytes.per.second": "20000"}
"""The live flow gets nowhere by itself."""


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
            until(
                lambda: copied(flow, topic) > before + 3_000, 240, "progress of the second attempt"
            )
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
        until(
            lambda: run.is_running and all(copied(flow, topic) > 500 for topic in renewed),
            240,
            "progress of the lanes",
        )
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
            read(setup.a, topic, committed=True),
            read(setup.b, flow.remote(topic), committed=True),
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
