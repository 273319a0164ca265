"""Tasks in child processes under load: a host that dies, a worker that dies, freezes and comes back."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import SHORT_SESSION, Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    assert_equal,
    assert_resumed,
    committed_positions,
    ends,
    wait_for_copy,
    wait_for_progress,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_500
Unique = Callable[[str], str]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Unique, create_topic: CreateTopic) -> str:
    name = unique("hosts")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    properties = {"task.host.processes": "2", "tasks.max": "2", **SHORT_SESSION}
    return write_flow(tmp_path, region_a, region_b, topic, properties)


def started(mirror: Mirror) -> list[int]:
    """Process ids of all hosts that were started, in that order."""
    lines = mirror.lines("task host started pid=")
    return [int(match[1]) for line in lines if (match := re.search(r"pid=(\d+)", line))]


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def proportional_bytes(pid: int) -> int:
    """Memory of a process, shared pages divided among who shares them."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    match = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    assert match is not None
    return int(match[1]) << 10


def wait_for_both(mirror: Mirror) -> list[int]:
    """Wait until two tasks copy in two hosts."""
    until(lambda: len(mirror.lines("source task started")) >= 2, 90, "two tasks", alive=mirror)
    hosts = started(mirror)
    assert len(hosts) == 2
    return hosts


def test_a_killed_host_takes_its_tasks_alone_and_nothing_is_lost(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Mirror(flow.file) as mirror:
        first, second = wait_for_both(mirror)
        wait_for_progress(mirror, flow, topic)
        os.kill(first, signal.SIGKILL)
        mirror.wait_for_log(f"task host ended with signal 9 pid={first}")
        until(lambda: len(started(mirror)) == 3, 90, "a third host", alive=mirror)
        until(
            lambda: len(mirror.lines("source task started")) == 3, 60, "it runs again", alive=mirror
        )
        assert runs(second)
        load.wait_acked(2 * RATE)
        load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_resumed(truth, copy, rewinds=1)
        assert len(mirror.lines("source task started")) == 3, "the other task went on"
        assert mirror.stop() == 0
        assert not any(map(runs, started(mirror))), "hosts end before their worker"


def test_hosts_end_with_a_killed_worker_and_commit_what_they_wrote(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        with Mirror(flow.file, name="killed") as mirror:
            hosts = wait_for_both(mirror)
            wait_for_progress(mirror, flow, topic)
            load.wait_acked(RATE)
            os.kill(mirror.pid, signal.SIGKILL)
            until(lambda: not any(map(runs, hosts)), 90, "hosts end")
        load.stop()
        with Mirror(flow.file, name="next") as mirror:
            truth, copy = wait_for_copy(mirror, flow, topic)
            assert_equal(truth, copy)
            assert mirror.stop() == 0


def test_a_host_that_thaws_behind_its_permit_writes_nothing_until_its_worker_renews_it(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Mirror(flow.file) as mirror:
        hosts = wait_for_both(mirror)
        wait_for_progress(mirror, flow, topic)
        os.kill(mirror.pid, signal.SIGSTOP)
        for pid in hosts:
            os.kill(pid, signal.SIGSTOP)
        # Behind the session timeout somebody else might own the tasks; what is under way is there by then.
        load.wait_acked(4 * RATE)
        before, committed = ends(flow.target, flow.remote(topic)), committed_positions(flow, topic)
        for pid in hosts:
            os.kill(pid, signal.SIGCONT)
        load.wait_acked(3 * RATE)
        assert ends(flow.target, flow.remote(topic)) == before
        assert committed_positions(flow, topic) == committed
        os.kill(mirror.pid, signal.SIGCONT)
        wait_for_progress(mirror, flow, topic)
        load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_resumed(truth, copy, rewinds=1)
        assert started(mirror) == hosts
        assert mirror.stop() == 0


def test_a_host_that_was_frozen_alone_goes_on_without_a_trace_in_the_copy(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Mirror(flow.file) as mirror:
        hosts = wait_for_both(mirror)
        wait_for_progress(mirror, flow, topic)
        os.kill(hosts[0], signal.SIGSTOP)
        load.wait_acked(4 * RATE)
        os.kill(hosts[0], signal.SIGCONT)
        load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert started(mirror) == hosts
        assert mirror.stop() == 0


def test_worker_and_host_are_small(flow: Flow, topic: str) -> None:
    with Mirror(flow.file) as mirror:
        hosts = wait_for_both(mirror)
        assert proportional_bytes(mirror.pid) + proportional_bytes(hosts[0]) <= 150 << 20
        assert mirror.stop() == 0
