"""Tasks in processes of their own: kills, permits, memory; what REST shows of them."""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast, final

import pytest

from tests.integration.cluster_changes import delete_records
from tests.integration.ledger_scenes import wait_for_entries
from tests.integration.mirror_process import (
    SHORT_SESSION,
    SHORT_SESSION_S,
    Flow,
    Mirror,
    running,
    until,
)
from tests.integration.rest_asking import ask, public_url
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Load,
    Sent,
    assert_equal,
    assert_resumed,
    committed_positions,
    ends,
    wait_for_copy,
    wait_for_progress,
    write,
)
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 4
RATE = 1_500
HOSTS = {"task.host.processes": "2", "tasks.max": "2"}


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("hosts", PARTITIONS)


@pytest.fixture
def flow(setup: Setup, topic: str) -> Flow:
    return setup.flow(topic, HOSTS)


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
        until(lambda: len(mirror.lines("source task started")) >= 3, alive=mirror)
        assert runs(second)
        load.wait_acked(2 * RATE)
        load.stop()
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_resumed(truth, copy, rewinds=1)
        assert len(mirror.lines("source task started")) == 3, "the other task went on"
        assert mirror.stop() == 0
        assert not any(map(runs, started(mirror))), "hosts end before their worker"


@pytest.mark.faults
def test_hosts_end_with_a_killed_worker_and_commit_what_they_wrote(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load:
        with Mirror(flow.file, name="killed") as mirror:
            hosts = wait_for_both(mirror)
            wait_for_progress(mirror, flow, topic)
            load.wait_acked(RATE)
            os.kill(mirror.pid, signal.SIGKILL)
            until(lambda: not any(map(runs, hosts)), 90, "hosts end")
        load.stop()
        with running(flow.file, name="next", ready=False) as mirror:
            assert_equal(*wait_for_copy(mirror, flow, topic))


@pytest.mark.faults
def test_a_host_that_thaws_behind_its_permit_writes_nothing_until_its_worker_renews_it(
    setup: Setup, topic: str
) -> None:
    flow = setup.flow(topic, HOSTS | SHORT_SESSION)
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Mirror(flow.file) as mirror:
        hosts = wait_for_both(mirror)
        wait_for_progress(mirror, flow, topic)
        os.kill(mirror.pid, signal.SIGSTOP)
        for pid in hosts:
            os.kill(pid, signal.SIGSTOP)
        # Behind the session timeout somebody else might own the tasks; what is under way is there by then.
        frozen_s = time.monotonic()
        load.wait_acked(4 * RATE)
        until(lambda: time.monotonic() - frozen_s > SHORT_SESSION_S, 90, "the end of the session")
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


@pytest.mark.faults
def test_a_host_that_was_frozen_alone_goes_on_without_a_trace(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Mirror(flow.file) as mirror:
        hosts = wait_for_both(mirror)
        wait_for_progress(mirror, flow, topic)
        os.kill(hosts[0], signal.SIGSTOP)
        load.wait_acked(4 * RATE)
        os.kill(hosts[0], signal.SIGCONT)
        load.stop()
        assert_equal(*wait_for_copy(mirror, flow, topic))
        assert started(mirror) == hosts
        assert mirror.stop() == 0


def test_worker_and_host_are_small(flow: Flow, topic: str) -> None:
    with Mirror(flow.file, fresh=True) as mirror:
        hosts = wait_for_both(mirror)
        assert proportional_bytes(mirror.pid) + proportional_bytes(hosts[0]) <= 150 << 20
        assert mirror.stop() == 0


REST_RATE: Final = 1_000
WAIT_S: Final = 90.0
SOURCE: Final = "connectors/MirrorSourceConnector"
MakeFlow = Callable[..., Flow]


@final
class Rest:
    """REST of one process, for its flow."""

    def __init__(self, mirror: Mirror, flow: Flow) -> None:
        self._root = f"{public_url(mirror, WAIT_S).rstrip('/')}/"
        self._pair = f"{flow.source_alias}/{flow.target_alias}/"

    def ask(
        self, path: str, method: str = "GET", body: object = None, *, pair: bool = True
    ) -> tuple[int, object]:
        """Return status and decoded body."""
        return ask(f"{self._root}{self._pair if pair else ''}{path}", method, body)

    def tasks(self) -> dict[int, tuple[str, str]]:
        """Return state and trace of each task."""
        status, found = self.ask(f"{SOURCE}/status")
        if status != 200:
            return {}
        listed = cast("dict[str, list[dict[str, str | int]]]", found)["tasks"]
        return {
            int(task["id"]): (str(task["state"]), str(task.get("trace", ""))) for task in listed
        }

    def until_states(self, *states: str) -> dict[int, tuple[str, str]]:
        """Wait until the tasks have these states in any order."""

        def there() -> dict[int, tuple[str, str]] | None:
            now = self.tasks()
            return now if sorted(state for state, _ in now.values()) == sorted(states) else None

        return until(there, WAIT_S, lambda: f"{states}: {self.tasks()}")

    def rates(self, topic: str) -> dict[int, float]:
        """Return bytes per second by partition, where they are known."""
        pair = self._pair.rstrip("/").replace("/", "-%3E")
        status, found = self.ask(f"flows/{pair}/partitions", pair=False)
        if status != 200:
            return {}
        listed = cast("list[dict[str, object]]", found)
        return {
            cast("int", it["partition"]): float(str(it["bytes_per_s"]))
            for it in listed
            if it["topic"] == topic and it["bytes_per_s"] is not None
        }

    def dealt(self) -> dict[str, int]:
        """Return which task has which partition."""
        status, found = self.ask(f"{SOURCE}/tasks")
        if status != 200:
            return {}
        listed = cast("list[dict[str, Mapping[str, object]]]", found)
        return {
            name: cast("int", task["id"]["task"])
            for task in listed
            for name in str(task["config"]["task.assigned.partitions"]).split(",")
        }


@pytest.fixture
def make_flow(setup: Setup, topic: str) -> MakeFlow:
    def make(topics: str = topic, **properties: str) -> Flow:
        given = {name.replace("_", "."): text for name, text in properties.items()}
        return setup.flow(topics, HOSTS | given)

    return make


@pytest.mark.faults
def test_a_killed_host_shows_in_the_status_and_its_task_waits_for_a_restart_where_none_is_automatic(
    make_flow: MakeFlow, topic: str
) -> None:
    flow = make_flow(task_auto_restart="false")
    with Load(flow.source, topic, PARTITIONS, rate=REST_RATE) as load, Mirror(flow.file) as mirror:
        rest = Rest(mirror, flow)
        rest.until_states("RUNNING", "RUNNING")
        wait_for_progress(mirror, flow, topic)
        victim = started(mirror)[0]
        os.kill(victim, signal.SIGKILL)
        tasks = rest.until_states("FAILED", "RUNNING")
        (trace,) = [trace for state, trace in tasks.values() if state == "FAILED"]
        assert f"task host {victim} ended with signal 9" in trace
        wait_for_progress(mirror, flow, topic, more=REST_RATE)
        assert rest.until_states("FAILED", "RUNNING") == tasks, "nobody restarted it"
        status, plan = rest.ask(f"{SOURCE}/restart?onlyFailed=true&includeTasks=true", "POST")
        assert status == 202, plan
        restarted = cast("dict[str, list[dict[str, str | int]]]", plan)["tasks"]
        assert {task["id"]: task["state"] for task in restarted} == {
            number: "RESTARTING" if state == "FAILED" else state
            for number, (state, _) in tasks.items()
        }
        assert {trace for _, trace in rest.until_states("RUNNING", "RUNNING").values()} == {""}
        load.stop()
        assert_resumed(*wait_for_copy(mirror, flow, topic), rewinds=1)
        assert len(mirror.lines("source task started")) == 3, "only the failed one began again"
        assert mirror.stop() == 0


@pytest.mark.faults
def test_a_level_set_over_rest_is_the_hosts_level_too(make_flow: MakeFlow, topic: str) -> None:
    flow = make_flow(tasks_max="1")
    with running(flow.file, ready=False) as mirror:
        rest = Rest(mirror, flow)
        rest.until_states("RUNNING")

        def restarted(level: str) -> int:
            """Set a level, restart the task, return how often the host has reported a start."""
            begun = len(mirror.lines("task-0] task state=RUNNING"))
            status, found = rest.ask(
                "admin/loggers/mm2py_connectors", "PUT", {"level": level}, pair=False
            )
            assert status == 200, found
            assert rest.ask(f"{SOURCE}/tasks/0/restart", "POST")[0] == 204
            until(
                lambda: len(mirror.lines("task-0] task state=RUNNING")) > begun,
                WAIT_S,
                alive=mirror,
            )
            return len(mirror.lines("source task started"))

        assert restarted("WARN") == 1
        assert restarted("INFO") == 2


@pytest.mark.faults
def test_what_a_host_counts_and_loses_the_worker_knows(make_flow: MakeFlow, topic: str) -> None:
    flow = make_flow()
    sent = [Sent(n % PARTITIONS, b"%d" % n) for n in range(40)]
    write(flow.source, topic, sent)
    with running(flow.file, name="first", ready=False) as mirror:
        rest = Rest(mirror, flow)
        wait_for_copy(mirror, flow, topic)
        name = f"{flow.source_alias}-%3E{flow.target_alias}"

        def counted() -> int:
            status, found = rest.ask(f"flows/{name}/partitions", pair=False)
            assert status == 200, found
            return json.dumps(found).count(f'"{topic}"')

        until(lambda: counted() >= PARTITIONS, WAIT_S, "the partitions over REST", alive=mirror)
    write(flow.source, topic, [Sent(1, b"lost %d" % n) for n in range(5)])
    delete_records(flow.source, topic, 1, 13)
    with running(flow.file, name="second", ready=False) as mirror:
        (event,) = wait_for_entries(flow, 1, mirror)
        assert (event.partition, event.first, event.last) == (1, 10, 12)


@pytest.mark.faults
def test_busy_partitions_go_to_different_hosts_when_a_deal_is_due(
    make_flow: MakeFlow, topic: str, create_topic: CreateTopic
) -> None:
    flow = make_flow(f"{topic}.*")
    # Round robin gives both to the first task.
    busy = [Sent(n % 2 * 2, b"." * 2_000) for n in range(400)]
    with running(flow.file, ready=False) as mirror:
        rest = Rest(mirror, flow)
        rest.until_states("RUNNING", "RUNNING")
        first = rest.dealt()
        assert first[f"{topic}-0"] == first[f"{topic}-2"]

        def uneven() -> bool:
            """Whether it was measured that two of four are busy."""
            write(flow.source, topic, busy)
            found = rest.rates(topic)
            return len(found) == PARTITIONS and min(found[0], found[2]) > 1_000 > max(
                found[1], found[3]
            )

        until(uneven, WAIT_S, lambda: f"rates: {rest.rates(topic)}", alive=mirror)
        assert rest.dealt() == first, "no partition moves for balance alone"
        create_topic(flow.source, f"{topic}-new", 1)

        def dealt_anew() -> dict[str, int] | None:
            write(flow.source, topic, busy)
            now = rest.dealt()
            return now if f"{topic}-new-0" in now else None

        now = until(dealt_anew, WAIT_S, lambda: f"a new deal: {rest.dealt()}", alive=mirror)
        assert now[f"{topic}-0"] != now[f"{topic}-2"]
        wait_for_copy(mirror, flow, topic)
