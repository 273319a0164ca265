"""A backfill that is paused, resumed, cancelled and watched from a second terminal, on real brokers."""

import pytest

from tests.integration.mirror_process import Flow, Mirror, running, until
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, assert_equal, copied, wait_for_copy, write
from tests.spark.backfill_process import SLOW_FLOW, BackfillProcess, command, command_line

pytestmark = [
    pytest.mark.faults,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("lanes_session"),
]


RATE = ("--rate-limit", "60000")
PARTITIONS = 2


@pytest.fixture
def history(setup: Setup) -> tuple[Flow, str]:
    """A flow, and a topic with 9 MB of history on its source."""
    topic = setup.topic("history", PARTITIONS)
    write(setup.a, topic, [Sent(i % PARTITIONS, b"%d-" % i + b"x" * 200) for i in range(40_000)])
    return setup.flow(topic, SLOW_FLOW), topic


def state_of(flow: Flow) -> object:
    """What ``status`` shows outside of the run."""
    ended = command(flow, "status")
    assert ended.code == 0, ended.err
    return ended.report["state"]


def wait_for_lanes(mirror: Mirror, run: BackfillProcess, flow: Flow, topic: str) -> None:
    """Wait until the running flow has left its partitions to lanes, and these copy."""

    def left() -> bool:
        run.check_running()
        return bool(mirror.lines(f"left_to_backfill={PARTITIONS}"))

    until(left, 300, "a running flow that leaves its partitions")
    before = copied(flow, topic)

    def copies() -> bool:
        run.check_running()
        return copied(flow, topic) > before + 1_000

    until(copies, 240, "progress of the lanes")


def copied_when_it_rests(flow: Flow, topic: str) -> int:
    """Return how much is on the target once a whole command finds no more."""
    before = copied(flow, topic)

    def rests() -> bool:
        nonlocal before
        assert command_line(flow, "status").code == 0
        then, before = before, copied(flow, topic)
        return before == then

    until(rests, 240, "the end of the copy")
    return before


def test_a_paused_backfill_rests_and_goes_on_at_the_next_record(history: tuple[Flow, str]) -> None:
    flow, topic = history
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with BackfillProcess(flow, *RATE) as run:
            wait_for_lanes(mirror, run, flow, topic)
            assert state_of(flow) == "RUNNING"
            paused = command(flow, "pause")
            assert (paused.code, paused.report["state"]) == (0, "PAUSED"), paused.err
            rested = copied_when_it_rests(flow, topic)
            assert rested < 40_000
            assert state_of(flow) == "PAUSED"
            assert copied(flow, topic) == rested
            second = command(flow, "run", "--master", "local[2]")
            assert (second.code, second.out) == (3, "")
            assert "is running" in second.err
            resumed = command(flow, "resume")
            assert (resumed.code, resumed.report["state"]) == (0, "RUNNING"), resumed.err
            until(lambda: copied(flow, topic) > rested, 240, "a record behind the pause")
            cancelled = command(flow, "cancel")
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
        again = command(flow, "run", "--master", "local[2]", "--rate-limit", "100000000")
        assert (again.code, again.report["state"]) == (0, "DONE"), again.err
        assert again.report["id"] != cancelled.report["id"]
        for partition in again.partitions:
            assert partition["target_from"] == partition["from"] > 0
            assert partition["target_to"] == partition["to"] == 20_000
        write(flow.source, topic, [Sent(i % PARTITIONS, b"live-%d" % i) for i in range(20)])
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert not mirror.lines("Traceback")


@pytest.mark.chaos
def test_a_backfill_whose_driver_died_in_a_pause_is_shown_as_failed_and_cancelled_without_it(
    history: tuple[Flow, str],
) -> None:
    flow, topic = history
    with running(flow.file) as mirror:
        with BackfillProcess(flow, *RATE) as run:
            wait_for_lanes(mirror, run, flow, topic)
            assert command(flow, "pause").report["state"] == "PAUSED"
            run.kill()
        status = command(flow, "status")
        assert status.report["state"] == "FAILED"
        assert "its driver is gone" in str(status.report["cause"])
        for name in ("pause", "resume"):
            refused = command(flow, name)
            assert refused.code == 3
            assert "its driver is gone" in refused.err
        left = copied(flow, topic)
        ended = command(flow, "cancel")
        assert (ended.code, ended.report["state"]) == (0, "CANCELLED"), ended.err
        assert {str(it["state"]) for it in ended.rows("partitions")} == {"RELEASED"}
        assert command(flow, "cancel").code == 3  # nothing is unfinished
        until(lambda: copied(flow, topic) > left, 90, "a record of the running flow")
    flow.file.write_text(flow.file.read_text().replace("20000", "100000000"))
    with Mirror(flow.file) as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic))
