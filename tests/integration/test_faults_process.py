"""The mirror's own process dies, stops, or is started twice: nothing is lost, what is doubled is bounded."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from mm2py.embedded.region import KafkaAddress
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    assert_resumed,
    committed_positions,
    read,
    wait_for_copy,
    wait_for_progress,
    write,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PARTITIONS = 4
RATE = 1_500
COMMIT_INTERVAL_S = 1
# What a commit may take on a machine under load, beside its interval.
SLACK_S = 3
Unique = Callable[[str], str]


class CreateTopic(Protocol):
    def __call__(self, region: KafkaAddress, topic: str, partitions: int = ...) -> None: ...


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("process")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic)


def test_a_kill_under_load_loses_nothing_and_doubles_what_was_not_committed(
    flow: Flow, topic: str
) -> None:
    doubled_by_kills = 0
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for turn in range(2):
            with Mirror(flow.file, name=f"killed-{turn}") as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(2 * RATE)
                mirror.kill()
            at_kill = read(flow.target, flow.remote(topic))
            position = committed_positions(flow, topic)
            assert sorted(position) == list(range(PARTITIONS))
            for partition, log in at_kill.items():
                # The copy has no holes, so what is behind the position is what will be doubled.
                number = int((log.records[-1].value or b"").split(b":")[1]) // PARTITIONS
                tail = number - position[partition]
                assert 0 <= tail <= RATE * (COMMIT_INTERVAL_S + SLACK_S) / PARTITIONS
                doubled_by_kills += tail
    with Mirror(flow.file, name="last") as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert assert_resumed(truth, copy, rewinds=2) == doubled_by_kills
        assert mirror.stop() == 0


def test_a_stop_under_load_ends_with_0_and_the_next_start_doubles_nothing(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        for number in (signal.SIGTERM, signal.SIGINT):
            with Mirror(flow.file, name=number.name) as mirror:
                mirror.wait_ready()
                wait_for_progress(mirror, flow, topic)
                load.wait_acked(RATE)
                mirror.send(number)
                assert mirror.wait() == 0
    with Mirror(flow.file, name="last") as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert mirror.stop() == 0
        assert not mirror.complaints()


def test_a_second_process_waits_names_the_first_and_takes_over_when_it_ends(
    flow: Flow, topic: str
) -> None:
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        Mirror(flow.file, name="first") as first,
    ):
        first.wait_ready()
        with Mirror(flow.file, name="second") as second:
            said = second.wait_for_log("waiting for the other members")
            assert f"{flow.source_alias}->{flow.target_alias} at /127.0.0.1" in said
            load.wait_acked(RATE)
            assert not second.lines("flow starts")
            assert first.stop() == 0
            second.wait_ready()
            load.wait_acked(RATE)
            # What the first finds when it comes back is a group with a member.
            with Mirror(flow.file, name="third") as third:
                third.wait_for_log("waiting for the other members")
                assert third.stop() == 0
            load.wait_acked(RATE // 4)
            load.stop()
            truth, copy = wait_for_copy(second, flow, topic)
            assert_equal(truth, copy)
            assert second.stop() == 0


def test_two_processes_started_together_copy_everything_once(flow: Flow, topic: str) -> None:
    write(flow.source, topic, (Sent(n % PARTITIONS, b"%d" % n) for n in range(2_000)))
    with Mirror(flow.file, name="one") as one, Mirror(flow.file, name="two") as two:
        both = (one, two)
        # Either joins first and the other waits, or the first makes room for a second that had looked before.
        loser = until(
            lambda: next((m for m in both if m.lines("waiting for the other members")), None),
            60,
            lambda: one.tail() + two.tail(),
        )
        winner = two if loser is one else one
        truth, copy = wait_for_copy(winner, flow, topic)
        assert_equal(truth, copy)
        last = 2_000 // PARTITIONS - 1
        until(
            lambda: committed_positions(flow, topic) == dict.fromkeys(range(PARTITIONS), last),
            30,
            "the commit of everything",
        )
        winner.kill()
        # The killed member is in the group until its session of 6 s ends.
        write(flow.source, topic, (Sent(n % PARTITIONS, b"more %d" % n) for n in range(500)))
        truth, copy = wait_for_copy(loser, flow, topic)
        assert_equal(truth, copy)
        assert loser.stop() == 0
