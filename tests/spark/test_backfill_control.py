"""A backfill that is paused, resumed, cancelled and watched from a second terminal, on real brokers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import Sent, assert_equal, copied, wait_for_copy, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic
from tests.spark.backfill_process import BackfillProcess, command_line

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(500),
]

SLOW_FLOW = {"flow.max.bytes.per.second": "20000"}
"""The live flow gets nowhere by itself."""

RATE = ("--rate-limit", "100000")
PARTITIONS = 2


@pytest.fixture
def history(
    tmp_path: Path,
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    create_topic: CreateTopic,
    unique: Callable[[str], str],
) -> tuple[Flow, str]:
    """A flow, and a topic with 9 MB of history on its source."""
    topic = unique("history")
    create_topic(region_a, topic, PARTITIONS)
    write(region_a, topic, [Sent(i % PARTITIONS, b"%d-" % i + b"x" * 200) for i in range(40_000)])
    return write_flow(tmp_path, region_a, region_b, topic, SLOW_FLOW), topic


def state_of(flow: Flow) -> object:
    """What ``status`` shows in a second terminal."""
    ended = command_line(flow, "status")
    assert ended.code == 0, ended.err
    return ended.report["state"]


def wait_for_lanes(mirror: Mirror, run: BackfillProcess, flow: Flow, topic: str) -> None:
    """Wait until the running flow has left its partitions to lanes, and these copy."""

    def left() -> bool:
        run.check_running()
        return bool(mirror.lines(f"left_to_backfill={PARTITIONS}"))

    until(left, 120, "a running flow that leaves its partitions")
    before = copied(flow, topic)

    def copies() -> bool:
        run.check_running()
        return copied(flow, topic) > before + 1_000

    until(copies, 120, "progress of the lanes")


def copied_when_it_rests(flow: Flow, topic: str) -> int:
    """Return how much is on the target once a whole command finds no more."""
    before = copied(flow, topic)

    def rests() -> bool:
        nonlocal before
        state_of(flow)
        then, before = before, copied(flow, topic)
        return before == then

    until(rests, 60, "the end of the copy")
    return before


def test_a_paused_backfill_copies_nothing_and_continues_at_the_next_record(
    history: tuple[Flow, str],
) -> None:
    flow, topic = history
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with BackfillProcess(flow, *RATE) as run:
            wait_for_lanes(mirror, run, flow, topic)
            assert state_of(flow) == "RUNNING"
            paused = command_line(flow, "pause")
            assert (paused.code, paused.report["state"]) == (0, "PAUSED"), paused.err
            rested = copied_when_it_rests(flow, topic)
            assert rested < 40_000
            assert state_of(flow) == "PAUSED"
            assert copied(flow, topic) == rested
            second = command_line(flow, "run", "--master", "local[2]")
            assert (second.code, second.out) == (3, "")
            assert "is running" in second.err
            resumed = command_line(flow, "resume")
            assert (resumed.code, resumed.report["state"]) == (0, "RUNNING"), resumed.err
            until(lambda: copied(flow, topic) > rested, 60, "a record behind the pause")
            cancelled = command_line(flow, "cancel")
            assert (cancelled.code, cancelled.report["state"]) == (0, "CANCELLED"), cancelled.err
            assert {str(it["state"]) for it in cancelled.rows("partitions")} == {"RELEASED"}
            ended = run.wait()
        assert (ended.code, ended.report["state"]) == (1, "CANCELLED"), ended.err
        assert "backfill is paused: " in ended.err
        assert "is CANCELLED: cancelled" in ended.err
        left = copied(flow, topic)
        assert rested < left < 40_000
        until(lambda: copied(flow, topic) > left, 90, "a record of the running flow")
        # A new one takes over from the running flow, wherever it is by now.
        again = command_line(flow, "run", "--master", "local[2]", "--rate-limit", "100000000")
        assert (again.code, again.report["state"]) == (0, "DONE"), again.err
        assert again.report["id"] != cancelled.report["id"]
        for partition in again.partitions:
            assert partition["target_from"] == partition["from"] > 0
            assert partition["target_to"] == partition["to"] == 20_000
        write(flow.source, topic, [Sent(i % PARTITIONS, b"live-%d" % i) for i in range(20)])
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert not mirror.lines("Traceback")


def test_a_backfill_whose_driver_died_in_a_pause_is_shown_as_failed_and_cancelled_without_it(
    history: tuple[Flow, str],
) -> None:
    flow, topic = history
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with BackfillProcess(flow, *RATE) as run:
            wait_for_lanes(mirror, run, flow, topic)
            assert command_line(flow, "pause").report["state"] == "PAUSED"
            run.kill()
        status = command_line(flow, "status")
        assert status.report["state"] == "FAILED"
        assert "its driver is gone" in str(status.report["cause"])
        for name in ("pause", "resume"):
            refused = command_line(flow, name)
            assert refused.code == 3
            assert "its driver is gone" in refused.err
        left = copied(flow, topic)
        ended = command_line(flow, "cancel")
        assert (ended.code, ended.report["state"]) == (0, "CANCELLED"), ended.err
        assert {str(it["state"]) for it in ended.rows("partitions")} == {"RELEASED"}
        assert command_line(flow, "cancel").code == 3  # nothing is unfinished
        until(lambda: copied(flow, topic) > left, 90, "a record of the running flow")
        assert mirror.stop() == 0
    flow.file.write_text(flow.file.read_text().replace("20000", "100000000"))
    with Mirror(flow.file) as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
