"""Jobs beside others: rights that are taken, heartbeats that are written, another writer of the target.

A right that a job lacks is named, none calls it done, and it is made up for once the right is there. ``heartbeats``, which the
default ``.*`` chooses, grow by a record each second while they are read. Records of another writer are there once, as ours.
"""

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin._acl import AclOperation

from tests.integration.cluster_changes import (
    configs_of,
    forbid_configuring,
    forbid_creating,
    forbid_deleting,
    forbid_describing,
    forbid_group,
    forbid_reading,
    forbid_writing,
    permit_configuring,
    permit_creating,
    permit_deleting,
    permit_describing,
    permit_group,
    permit_reading,
    permit_writing,
)
from tests.integration.mirror_process import Flow, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.test_failover import wait_for_heartbeats, with_heartbeats
from tests.integration.traffic import (
    Load,
    Logs,
    Sent,
    assert_equal,
    copied,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.kafka.region import KafkaAddress, Region
from tests.spark.backfill_process import (
    SLOW_FLOW,
    BackfillProcess,
    Ended,
    command,
    here,
    leases_of,
    taken_over,
    thaw,
)
from tests.spark.test_archive import old_records
from tests.spark.test_stream import BEGUN, ON_SPARK, stream_of

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("lanes_session"),
]

LOCAL = ("--master", "local[2]")
COUNT = 100
NO_SYNC = {"sync.topic.configs.enabled": "false"}


def two_topics(setup: Setup, source: KafkaAddress, target: KafkaAddress) -> tuple[str, str, Flow]:
    """Write two topics that a flow names."""
    mark = setup.unique("rights")
    one, two = f"{mark}-one", f"{mark}-two"
    for topic in (one, two):
        setup.create_topic(source, topic, config={"retention.ms": "-1"})
        write_more(source, topic)
    return one, two, setup.flow(f"{one}, {two}", NO_SYNC, source=source, target=target)


def write_more(region: KafkaAddress, *topics: str) -> None:
    for topic in topics:
        write(region, topic, [Sent(0, b"%d" % number) for number in range(COUNT)])


def archive(flow: Flow, folder: Path) -> Ended:
    return here(flow, ("archive",), *LOCAL, "--to", str(folder))


def records_of(ended: Ended) -> dict[str, object]:
    return {str(it["topic"]): it["records"] for it in ended.rows("partitions")}


def test_a_source_topic_that_may_not_be_seen_or_read_is_named_and_no_job_passes_it_for_done(
    setup: Setup, guarded: Region
) -> None:
    one, two, flow = two_topics(setup, guarded, setup.b)
    folder = setup.folder / "archive"
    assert archive(flow, folder).report["records"] == 2 * COUNT
    filled = command(flow, "run", *LOCAL)
    assert (filled.code, filled.report["state"]) == (0, "DONE"), filled.err
    write_more(guarded, one, two)
    forbid_describing(guarded, two)
    for name in (("backfill", "plan"), ("backfill", "run")):
        refused = here(flow, name)
        assert refused.code == 3
        assert [it["topic"] for it in refused.rows("refused")] == [two]
    planned = here(flow, ("failover",), "--plan")
    assert planned.code == 1
    assert f"may not Describe topic {two}" in planned.err
    is_named_and_the_other_done(flow, folder, one, two)
    permit_describing(guarded, two)
    write_more(guarded, one, two)
    forbid_reading(guarded, two)
    is_named_and_the_other_done(flow, folder, one, two)
    permit_reading(guarded, two)
    assert command(flow, "run", *LOCAL).code == 0
    assert records_of(archive(flow, folder)) == {two: 2 * COUNT}
    proof = here(flow, ("verify",), *LOCAL)
    assert (proof.code, proof.report["checked_records"]) == (0, 6 * COUNT), proof.err


def is_named_and_the_other_done(flow: Flow, folder: Path, one: str, two: str) -> None:
    verified = here(flow, ("verify",), *LOCAL)
    assert verified.code == 3
    (named,) = verified.rows("not_compared")
    assert str(named).startswith(two)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(named)
    archived = archive(flow, folder)
    assert archived.code == 1
    assert records_of(archived) == {one: COUNT, two: 0}
    assert "TOPIC_AUTHORIZATION_FAILED" in archived.err


def test_a_job_without_a_right_on_the_target_keeps_nothing_and_copies_once_it_is_given(
    setup: Setup, guarded: Region
) -> None:
    one, two, flow = two_topics(setup, setup.a, guarded)
    copy, group = flow.remote(two), f"{flow.source_alias}-mm2"
    forbid_creating(guarded, copy)
    ended = command(flow, "run", *LOCAL)
    assert ended.code == 3
    assert f"{copy} could not be created" in ended.out
    permit_creating(guarded, copy)
    setup.create_topic(guarded, copy, config={"retention.ms": "100000000000"})
    forbid_group(guarded, group, AclOperation.DESCRIBE)
    refused(flow, f"--group {group}")
    permit_group(guarded, group, AclOperation.DESCRIBE)
    forbid_configuring(guarded, copy)
    refused(flow, f"retention.ms of target topic {copy} cannot be changed")
    permit_configuring(guarded, copy)
    forbid_writing(guarded, copy)
    # A partition that waits for the right continues once it is given.
    with ThreadPoolExecutor(1) as other:
        given = other.submit(permit_once_named, flow, guarded, copy)
        filled = command(flow, "run", *LOCAL)
        given.result()
    assert (filled.code, filled.report["state"]) == (0, "DONE"), filled.err
    assert configs_of(guarded, copy)["retention.ms"] == "100000000000"
    for topic in (one, two):
        assert_equal(read(setup.a, topic), read(guarded, flow.remote(topic)))
    write(guarded, copy, [Sent(0, b"of another program")])
    forbid_deleting(guarded, copy)
    repair = ("--repair", "--delete-copies")
    refused(flow, f"records of {copy}-0", ("verify",), *repair)
    assert copied(flow, two) == COUNT + 1
    permit_deleting(guarded, copy)
    assert here(flow, ("verify",), *LOCAL, *repair).code == 0


def refused(
    flow: Flow, cause: str, words: Sequence[str] = ("backfill", "run"), *options: str
) -> None:
    """Run what is refused, and leaves every partition to the flow."""
    ended = here(flow, words, *LOCAL, *options)
    assert ended.code == 3
    assert cause in ended.err
    status = command(flow, "status")
    assert status.report["state"] == "CANCELLED"
    assert {it["state"] for it in status.rows("partitions")} == {"RELEASED"}


def permit_once_named(flow: Flow, region: KafkaAddress, copy: str) -> None:
    """Give the right to write a copy when the record of its partition names it."""
    named = f"may not Write topic {copy}"
    until(lambda: any(named in it.cause for it in leases_of(flow)), 90, named)
    permit_writing(region, copy)


HEARTBEATS = "heartbeats"


def assert_heartbeats_once(flow: Flow) -> None:
    """What was copied of them is what the source has, from its first one on, in order and once."""
    truth, copies = read(flow.source, HEARTBEATS), read(flow.target, flow.remote(HEARTBEATS))
    for partition, copy in copies.items():
        assert copy.records == truth[partition].records[: len(copy.records)]
    assert any(copy.records for copy in copies.values())


def wait_for_copied_heartbeat(flow: Flow, mirror: Mirror) -> None:
    wait_for_heartbeats(flow.source, mirror)
    # Not until the copy has all of them: there is another one each second.
    remote = flow.remote(HEARTBEATS)
    until(lambda: any(ends(flow.target, remote).values()), 90, "a heartbeat's copy", alive=mirror)


def test_a_backfill_a_verify_and_an_archive_of_all_topics_end_while_heartbeats_are_written(
    setup: Setup,
) -> None:
    topic = setup.topic("orders", 2, config={"retention.ms": "-1"})
    flow = setup.flow(topic, {**with_heartbeats(topic), **SLOW_FLOW})
    with running(flow.file) as mirror:
        wait_for_copied_heartbeat(flow, mirror)
        write(setup.a, topic, [Sent(n % 2, b"%d" % n + bytes(500)) for n in range(4_000)])
        filled = command(flow, "run", *LOCAL)
        assert filled.code == 0, filled.err
        assert filled.report["state"] == "DONE"
        assert_equal(*wait_for_copy(mirror, flow, topic))
        wait_for_copied_heartbeat(flow, mirror)
        verified = here(flow, ("verify",), *LOCAL)
        assert verified.code == 0, (verified.out, verified.err)
        assert {row["topic"] for row in verified.rows("partitions")} == {topic, HEARTBEATS}
        kept = here(flow, ("archive",), "--to", str(setup.folder / "archive"), *LOCAL)
        assert kept.code == 0, kept.err
        wait_for_copied_heartbeat(flow, mirror)
    assert_heartbeats_once(flow)


def test_a_stream_copies_heartbeats_and_the_flow_is_in_order(setup: Setup) -> None:
    topic = setup.topic("orders", 2, config={})
    flow = setup.flow(topic, {**with_heartbeats(topic), **ON_SPARK})
    with Mirror(flow.file) as mirror, stream_of(flow, "--term", "8") as stream:
        stream.wait_for_log(BEGUN, 300)
        wait_for_heartbeats(setup.a, mirror)
        write(setup.a, topic, [Sent(n % 2, b"%d" % n) for n in range(2_000)])
        wait_for_progress(stream, flow, topic, 1_000, before=0)
        wait_for_copied_heartbeat(flow, mirror)
        write(setup.a, topic, [Sent(n % 2, b"%d" % n) for n in range(2_000)])
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert stream.stop() == 0, stream.tail()
        until(lambda: stream.wait(60) == 0, 60, "its end")
    assert_heartbeats_once(flow)


IDENTITY = {
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "{source}.consumer.isolation.level": "read_committed",
}
FOREIGN = b"foreign"
RECORDS = 20_000


def values(logs: Logs, *, foreign: bool) -> dict[int, list[bytes | None]]:
    """Return the values of a topic by partition, the other program's or ours."""
    return {
        partition: [it.value for it in log.records if (FOREIGN in (it.value or b"")) is foreign]
        for partition, log in logs.items()
    }


@pytest.mark.chaos
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_stream_that_lacks_a_right_copies_all_else_and_makes_up_for_it_once_it_is_given(
    setup: Setup, guarded: Region, side: str
) -> None:
    a, b = (setup.a, guarded) if side == "target" else (guarded, setup.b)
    denied, other = [setup.topic(name, on=a, config={}) for name in ("denied", "other")]
    flow = setup.flow(f"{denied},{other}", ON_SPARK, source=a, target=b)
    with (
        Load(a, denied, 1, rate=200) as first,
        Load(a, other, 1, rate=100) as second,
        running(flow.file),
        stream_of(flow, "--term", "6") as stream,
    ):
        stream.wait_for_log(BEGUN, 300)
        wait_for_progress(stream, flow, denied, 300)
        if side == "target":
            forbid_writing(guarded, flow.remote(denied))
        else:
            forbid_reading(guarded, denied)
        until(lambda: stream.lines("AUTHORIZATION|may not"), 90, "its name", alive=stream)
        before = copied(flow, denied)
        wait_for_progress(stream, flow, other, 1_000)  # longer than a term
        assert copied(flow, denied) == before
        if side == "target":
            permit_writing(guarded, flow.remote(denied))
        else:
            permit_reading(guarded, denied)
        wait_for_progress(stream, flow, denied, 500)
        for load in (first, second):
            load.stop()
        for topic in (denied, other):
            assert_equal(*wait_for_copy(stream, flow, topic, timeout_s=150))
        assert stream.stop() == 0, stream.tail()


def test_another_writer_of_the_target_neither_loses_nor_doubles_a_record_under_kill_and_zombie(
    setup: Setup,
) -> None:
    topic = setup.topic_on_both("shared", 2, config={"retention.ms": "-1"})
    write(setup.a, topic, [*old_records(RECORDS, 0), *old_records(RECORDS, 1)], batch_size=500)
    flow = setup.flow(topic, IDENTITY)

    other = Load(setup.b, topic, 2, rate=100, value_bytes=40, mark=FOREIGN)

    def ours() -> int:
        return sum(ends(setup.b, topic).values()) - other.acked

    def moved() -> None:
        before = ours()
        until(lambda: ours() > before + 500, 240, "progress of the lanes")

    with BackfillProcess(flow, "--rate-limit", "60000") as running:
        running.wait_copying()
        # Not before: a target that is not empty is refused.
        with other:
            moved()
            killed = running.signal_worker(signal.SIGKILL)
            assert killed
            taken_over(flow, killed)
            moved()
            zombie = running.orphan()
            taken_over(flow, zombie)
            moved()
            thaw(zombie)
            running.kill()
            ended = command(flow, "run", "--master", "local[2]")
            assert ended.code == 0, ended.err
    truth, copy = read(setup.a, topic), read(setup.b, topic)
    assert values(copy, foreign=False) == values(truth, foreign=False)
    assert sum(len(it) for it in values(copy, foreign=True).values()) == other.acked
