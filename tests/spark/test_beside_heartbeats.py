"""Jobs of a flow whose topics include ``heartbeats``, as the default ``.*`` does: a log that grows by a record each second while it is read."""

import pytest

from tests.integration.mirror_process import Flow, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.test_failover import wait_for_heartbeats, with_heartbeats
from tests.integration.traffic import (
    Sent,
    assert_equal,
    ends,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.spark.backfill_process import command, here
from tests.spark.test_backfill import SLOW_FLOW
from tests.spark.test_stream import BEGUN, ON_SPARK, stream_of

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("lanes_session"),
]

HEARTBEATS = "heartbeats"
LOCAL = ("--master", "local[2]")


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
