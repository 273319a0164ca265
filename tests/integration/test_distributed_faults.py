"""Three workers on one file: they share the work, and what happens to one of them costs no record.

Flow: load -> three processes -> a fault, or a change over REST -> compare; states as REST tells them.
"""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest

from mm2py.embedded.region import KafkaAddress
from tests.integration.conftest import CreateTopic
from tests.integration.mirror_process import Flow, Mirror, until, write_flow
from tests.integration.traffic import (
    Load,
    assert_equal,
    read,
    wait_for_copy,
    wait_for_progress,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

PARTITIONS: Final = 6
RATE: Final = 1_000
NAMES: Final = ("one", "two", "three")
Json = dict[str, object] | list[object]


@pytest.fixture
def topic(region_a: KafkaAddress, unique: Callable[[str], str], create_topic: CreateTopic) -> str:
    name = unique("shared")
    create_topic(region_a, name, PARTITIONS)
    return name


@pytest.fixture
def flow(region_a: KafkaAddress, region_b: KafkaAddress, topic: str, tmp_path: Path) -> Flow:
    return write_flow(tmp_path, region_a, region_b, topic, {"tasks.max": "3"})


@contextmanager
def three_workers(flow: Flow) -> Generator[dict[str, Mirror]]:
    """Start three processes and wait until each has a task."""
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Mirror(flow.file, name=name)) for name in NAMES}
        for worker in workers.values():
            worker.wait_ready(60)
        yield workers


def url_of(worker: Mirror) -> str:
    """Return where a worker serves its users."""
    return worker.wait_for_log("public=http").split("public=")[1].split()[0].split(",")[0]


def ask(worker: Mirror, path: str, method: str = "GET", body: object = None) -> tuple[int, object]:
    """Ask one worker's REST; return status and decoded body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - http to ourselves
        url_of(worker) + path, data, {"Content-Type": "application/json"}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=100) as reply:  # noqa: S310 - as above
            text = reply.read()
            return reply.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def owners(worker: Mirror, flow: Flow) -> dict[int, tuple[str, str]]:
    """Return state and worker of each task of the source connector, as one worker tells."""
    path = f"{flow.source_alias}/{flow.target_alias}/connectors/MirrorSourceConnector/status"
    status, found = ask(worker, path)
    assert status == 200
    assert isinstance(found, dict)
    tasks = cast("list[dict[str, Any]]", found["tasks"])
    return {task["id"]: (task["state"], task["worker_id"]) for task in tasks}


def until_spread(worker: Mirror, flow: Flow, workers: int) -> None:
    """Wait until three tasks run on that many workers."""

    def spread() -> bool:
        found = list(owners(worker, flow).values())
        running = [state for state, _ in found] == ["RUNNING"] * 3
        return running and len({owner for _, owner in found}) == workers

    until(spread, 60, lambda: f"{workers} workers to share: {owners(worker, flow)}", alive=worker)


def assert_nothing_lost(flow: Flow, topic: str, worker: Mirror) -> None:
    """Every record of the source is in the copy, the order of first arrivals kept."""
    last = {p: log.records[-1].value for p, log in read(flow.source, topic).items()}
    until(
        lambda: all(
            any(r.value == last[p] for r in log.records[-200:])
            for p, log in read(flow.target, flow.remote(topic)).items()
        ),
        60,
        "the end of the source on the target",
        alive=worker,
    )
    copy = read(flow.target, flow.remote(topic))
    for partition, log in read(flow.source, topic).items():
        first_seen = dict.fromkeys(record.value for record in copy[partition].records)
        assert list(first_seen) == [record.value for record in log.records]


def test_three_workers_share_a_flow_and_a_killed_ones_task_moves(flow: Flow, topic: str) -> None:
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        three_workers(flow) as workers,
    ):
        one, two, three = workers.values()
        until_spread(one, flow, 3)
        wait_for_progress(one, flow, topic)
        kept = {task: at for task, at in owners(one, flow).items() if _is(one, at[1])}
        two.kill()
        until_spread(one, flow, 2)
        now = owners(one, flow)
        assert all(now[task] == at for task, at in kept.items()), "only the killed one's task moved"
        load.wait_acked(RATE)
        with Mirror(flow.file, name="again") as again:
            again.wait_ready(60)
            until_spread(three, flow, 3)
            load.wait_acked(RATE)
            load.stop()
            assert_nothing_lost(flow, topic, one)
            assert [again.stop(), one.stop(), three.stop()] == [0, 0, 0]


def test_a_frozen_worker_gives_its_task_up_and_comes_back_without_a_second_owner(
    flow: Flow, topic: str
) -> None:
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        three_workers(flow) as workers,
    ):
        one, two, three = workers.values()
        until_spread(one, flow, 3)
        two.send(signal.SIGSTOP)
        try:
            until_spread(one, flow, 2)
        finally:
            two.send(signal.SIGCONT)
        until_spread(three, flow, 3)
        load.wait_acked(RATE)
        load.stop()
        assert_nothing_lost(flow, topic, one)
        assert [worker.stop() for worker in (one, two, three)] == [0, 0, 0]


def test_a_rolling_restart_doubles_nothing(flow: Flow, topic: str) -> None:
    with (
        Load(flow.source, topic, PARTITIONS, rate=RATE) as load,
        three_workers(flow) as workers,
    ):
        running = dict(workers)
        with ExitStack() as stack:
            for name in NAMES:
                assert running.pop(name).stop() == 0
                new = stack.enter_context(Mirror(flow.file, name=f"{name}-new"))
                new.wait_ready(60)
                running[f"{name}-new"] = new
                until_spread(new, flow, 3)
                load.wait_acked(RATE // 2)
            load.stop()
            last = running["three-new"]
            assert_equal(*wait_for_copy(last, flow, topic))
            assert [worker.stop() for worker in running.values()] == [0, 0, 0]


def test_every_worker_takes_changes_for_the_leader_and_forwards_them(
    flow: Flow, topic: str
) -> None:
    pair = f"{flow.source_alias}/{flow.target_alias}/connectors/MirrorSourceConnector"
    with Load(flow.source, topic, PARTITIONS, rate=RATE), three_workers(flow) as workers:
        one = workers["one"]
        until_spread(one, flow, 3)
        for worker in workers.values():
            assert ask(worker, f"{pair}/pause", "PUT")[0] == 202
            until(lambda: _states(one, flow) == {"PAUSED"}, 30, "all paused")
            assert ask(worker, f"{pair}/resume", "PUT")[0] == 202
            until(lambda: _states(one, flow) == {"RUNNING"}, 30, "all running")
            status, _ = ask(worker, f"{pair}/restart?includeTasks=true", "POST")
            assert status == 202
            until_spread(worker, flow, 3)
            assert ask(worker, f"{pair}/tasks/0/restart", "POST")[0] == 204
            until_spread(worker, flow, 3)
        wait_for_progress(one, flow, topic)
        assert [worker.stop() for worker in workers.values()] == [0, 0, 0]


def _states(worker: Mirror, flow: Flow) -> set[str]:
    return {state for state, _ in owners(worker, flow).values()}


def _is(worker: Mirror, owner: str) -> bool:
    internal = worker.wait_for_log("internal=http").split("internal=")[1].split()[0]
    return f"//{owner}/" in internal
