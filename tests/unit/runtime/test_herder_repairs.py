"""What a herder repairs, starts again and keeps waiting."""

import asyncio
import json
import re
from dataclasses import replace

import pytest

from mm2py.errors import ConnectionFailedError, FatalError, Mm2pyError
from mm2py.protocol.error_codes import MESSAGE_TOO_LARGE, server_error
from mm2py.runtime.errors import HerderError, HerderFailedError, HerderTimeoutError, NotFoundError
from mm2py.runtime.group.membership import Lost, Rejoin
from mm2py.runtime.herder.herder import CHANGE_S
from mm2py.runtime.herder.loop import QUIET_S
from mm2py.runtime.herder.queue import HEALTH_TIMEOUT_S, REQUEST_TIMEOUT_S, HerderQueue
from mm2py.storage.connect_json import Commit, encode_config_record
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import State, TargetState, TaskId
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node

C0, C1 = TaskId("c", 0), TaskId("c", 1)


async def test_an_incomplete_commit_does_not_stop_the_tasks_that_run(cluster: Cluster) -> None:
    await cluster.pair()
    for node in cluster.nodes.values():
        node.host.events.clear()
    cluster.configs.append(*encode_config_record(Commit("c", 5)))
    node = cluster.nodes["n1"]
    await until(lambda: len(node.config.snapshot().tasks("c")) == 4)
    await cluster.clock.settle()
    assert [event for node in cluster.nodes.values() for event in node.host.events] == []


async def test_a_task_that_fails_while_it_is_stopped_is_not_started_again(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    host, stop = node.host, node.host.stop_task

    async def stop_task(task: TaskId, timeout_s: float) -> None:
        if task == C0:  # its host process is killed meanwhile
            host.running.pop(C0)
            host.say(C0, State.FAILED, FatalError("task host 77 ended with signal 9"))
            host.states.pop(C0)
        else:  # a slow target, within task.shutdown.graceful.timeout.ms
            await cluster.clock.sleep(4.5)
            await stop(task, timeout_s)

    host.stop_task = stop_task  # type: ignore[method-assign]
    await node.herder.delete("c", actor="t")
    for _ in range(60):
        await cluster.clock.advance(0.1)
    assert (host.running, host.events.count("start c-0 0")) == ({}, 1)


async def test_a_stray_task_is_stopped_and_a_lost_one_started(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    stray = TaskId("gone", 7)
    node.host.running[stray] = node.host.running[C0]
    node.host.running.pop(C1)
    await cluster.clock.advance(61)
    await node.runs("c-0", "c-1")
    assert "stop gone-7" in node.host.events


async def test_a_config_that_cannot_be_written_leaves_the_stored_one(cluster: Cluster) -> None:
    node = await cluster.on_file()
    assert node.overrides is not None
    put = node.config.put_connector

    async def refused(name: str, config: dict[str, str], target: TargetState | None = None) -> None:
        if "large" in config:
            raise server_error(MESSAGE_TOO_LARGE, "writing to topic c")
        await put(name, config, target)

    node.config.put_connector = refused  # type: ignore[method-assign, assignment]
    node.overrides.wanted["c"] = CONFIG | {"name": "c", "large": "x"}
    node.overrides.changed()
    await until(lambda: any("config of connector c" in line for line in node.herder.problems()))
    assert (node.herder.failure, sorted(map(str, node.host.running))) == (None, ["c-0", "c-1"])
    node.overrides.wanted["c"] = CONFIG | {"name": "c", "work": "7"}
    node.overrides.changed()
    await until(lambda: [s.config["p"] for s in node.host.running.values()] == ["7"])
    assert list(node.herder.problems()) == []


async def test_the_leader_writes_again_what_the_topic_of_changes_has_lost(cluster: Cluster) -> None:
    first, second = await cluster.on_file(), cluster.node("n2", effective={}).start()
    await cluster.clock.advance(10)
    assert first.overrides is not None
    assert second.overrides is not None
    before = first.overrides.restored
    for node in (first, second):
        assert node.overrides is not None
        node.overrides.changed()
    await until(lambda: first.overrides is not None and first.overrides.restored > before)
    assert second.overrides.restored == 0


async def test_a_config_topic_created_again_is_named_where_one_worker_alone_starts_again(
    cluster: Cluster,
) -> None:
    first, second = await cluster.pair()
    kept = dict(cluster.running())
    await second.stop()
    del cluster.nodes[second.name]
    cluster.configs.recreate()
    await first.config.put_logger_level("x", "INFO")
    alone = cluster.node("n3").start()
    for node in (first, alone):
        for _ in range(3):  # what lasts no longer than ``QUIET_S`` is not told
            await cluster.clock.advance(QUIET_S)
        told = node.herder.node_snapshot().problems["flow"]
        assert "created again" in told
        assert "restart all workers of the flow, not one alone" in told
    assert not alone.host.running
    assert {it for it, name in kept.items() if name == "n1"} <= cluster.running().keys()


async def test_a_state_that_cannot_be_read_is_a_problem_of_the_flow(cluster: Cluster) -> None:
    node = await cluster.leader(effective={})
    cluster.configs.append(b"target-state-c", b"{}")
    await node.config.refresh(1)
    assert "target-state-c" in node.herder.node_snapshot().problems[f"topic {cluster.configs.name}"]


async def test_a_config_that_fits_no_record_is_refused_unwritten(cluster: Cluster) -> None:
    node = await cluster.leader(effective={})
    before = len(cluster.configs.records)
    with pytest.raises(Exception, match="at most 900000 fit"):
        await node.herder.put_config("c", CONFIG | {it: it * 400_000 for it in "xyz"}, actor="t")
    assert node.overrides is not None
    assert (node.overrides.records, len(cluster.configs.records)) == ([], before)


async def test_states_of_the_owner_before_and_of_a_task_that_is_gone_are_repaired_within_a_minute(
    cluster: Cluster,
) -> None:
    node = await cluster.with_tasks()
    right, late = node.status.get(C1), TaskId("c", 7)
    assert right is not None
    node.status.put(C1, replace(right, state=State.FAILED, worker_id="gone:8083", trace="x"))
    node.status.put(late, replace(right, state=State.UNASSIGNED))
    await until(lambda: (node.state(C1), node.state(late)) == ("FAILED", "UNASSIGNED"))
    await cluster.clock.advance(61)
    await until(lambda: (node.state(C1), node.state(late)) == ("RUNNING", ""))
    again = node.status.get(C1)
    assert again is not None
    assert (again.worker_id, again.trace) == ("n1:8083", None)


async def test_what_a_killed_process_wrote_last_does_not_run_before_it_has_started_again(
    cluster: Cluster,
) -> None:
    node = await cluster.with_tasks()
    running = [it for it in cluster.statuses.records if b"RUNNING" in (it.value or b"")]
    await node.stop()
    for it in running:  # it was not stopped in order
        cluster.statuses.append(it.key, it.value)
    written = len(cluster.statuses.records)
    again = cluster.node("n1").start()
    await again.runs("c-0", "c-1")
    await until(lambda: {again.state(it) for it in ("c", C0, C1)} == {"RUNNING"})
    said: dict[bytes | None, list[str]] = {}
    for it in cluster.statuses.records[written:]:
        said.setdefault(it.key, []).append(json.loads(it.value or b"{}")["state"])
    assert list(said.values()) == [["UNASSIGNED", "RUNNING"]] * 3


async def test_a_setting_of_a_newer_version_makes_the_flow_wait(cluster: Cluster) -> None:
    """As with a Java member in the group: nothing is copied by half of what people have set."""
    node = await cluster.on_file()
    assert node.overrides is not None
    node.overrides.newer = True
    node.overrides.changed()
    await until(lambda: not node.host.running)
    assert node.herder.problems() == ("a setting of a newer version",)
    node.overrides.newer = False
    await node.cluster.clock.advance(2)
    await node.runs("c-0", "c-1")


# ---- start, failure and end


GROUP_AUTHORIZATION_FAILED = 30


def refused() -> Mm2pyError:
    return server_error(GROUP_AUTHORIZATION_FAILED, "joining group A-mm2")


async def fails(node: Node, times: int = 1) -> None:
    """Let the next rounds be refused for a reason that is not retriable."""
    node.membership.rejoin_errors = [refused()] * times  # type: ignore[list-item]  # any error of a join
    node.membership.tell(Rejoin("a worker joined"))
    await until(lambda: node.herder.failure is not None)


async def test_a_flow_runs_again_when_the_cause_of_a_failure_is_gone(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    await fails(node)
    await until(lambda: not node.host.running)
    assert node.meter.state == "FAILED"
    assert "joining group A-mm2" in node.herder.problems()[0]
    assert node.host.closed is False
    await cluster.clock.advance(1.1)
    await node.runs("c-0", "c-1")
    await until(lambda: node.meter.state == "RUNNING")
    assert (node.herder.failure, list(node.herder.problems())) == (None, [])
    assert len(node.hosts) == 1
    assert node.herder.life_counts.restarts == {"flow": 1}
    await node.stop()
    assert node.meter.state == "STOPPED"
    assert node.herder.life_counts.restarts == {"flow": 1}


async def test_a_failed_flow_refuses_requests_with_its_error(cluster: Cluster) -> None:
    node = await cluster.with_tasks()
    await fails(node)
    herder = node.herder
    for asked in (
        herder.info("c"),
        herder.put_config("c", CONFIG, actor="t"),
        herder.pause("c", actor="t"),
        herder.stop_connector("c", actor="t"),
    ):
        with pytest.raises(HerderFailedError, match="joining group A-mm2") as caught:
            await asked
        assert caught.value.status == 503
    with pytest.raises(HerderFailedError):
        herder.member_urls()
    health = await herder.health()
    assert (health.status, "joining group A-mm2" in health.message) == ("unhealthy", True)
    assert herder.connectors() == ("c",)


async def test_a_flow_that_waits_for_a_cluster_says_so_everywhere(cluster: Cluster) -> None:
    node = cluster.node()
    node.errors["target"] = [ConnectionFailedError("user mm is refused")] * 3
    node.start()
    herder = node.herder
    await until(lambda: "user mm is refused" in herder.not_ready)
    asked = [herder.node_snapshot().problems["flow"], (await herder.health()).message]
    for ask in (herder.member_urls, herder.member_urls):
        with pytest.raises(HerderError, match="user mm is refused") as caught:
            ask()
        assert (type(caught.value), caught.value.status) == (HerderError, 503)
    assert all("waits for target cluster B at b1:9092" in text for text in asked)
    assert (await herder.health()).status == "starting"
    await cluster.clock.advance(5)
    await until(lambda: node.meter.state == "STANDBY")
    assert (herder.not_ready, dict(herder.node_snapshot().problems)) == ("", {})
    node.membership.tell(Lost("no heartbeat for 10 s"))
    await until(lambda: "no heartbeat for 10 s" in herder.not_ready)
    await until(lambda: not herder.not_ready)


async def test_the_pauses_between_two_starts_grow_to_a_minute(cluster: Cluster) -> None:
    node = cluster.node().start()
    await until(lambda: node.meter.state == "STANDBY")
    await fails(node, times=100)
    tries: list[int] = []
    for _ in range(9):
        left = len(node.membership.rejoin_errors)
        seconds = 0
        while len(node.membership.rejoin_errors) == left:
            await cluster.clock.advance(1)
            seconds += 1
        tries.append(seconds)
    assert tries == [1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_a_change_of_the_overrides_starts_a_failed_flow_at_once(cluster: Cluster) -> None:
    node = await cluster.on_file()
    await fails(node, times=5)
    await cluster.clock.advance(8)
    assert node.herder.failure is not None
    node.membership.rejoin_errors.clear()
    assert node.overrides is not None
    node.overrides.wanted["c"] = CONFIG | {"name": "c", "work": "5"}
    node.overrides.changed()
    await until(lambda: [s.config["p"] for s in node.host.running.values()] == ["5"])
    assert node.overrides.started == 1, "it stays open while the flow starts again"


async def test_a_failed_flow_takes_changes_while_its_group_is_empty(cluster: Cluster) -> None:
    node = cluster.node().start()
    await until(lambda: node.meter.state == "STANDBY")
    await fails(node, times=5)
    valid = [node.membership.permit.valid]
    await node.herder.accept_changes()
    valid.append(node.membership.permit.valid)
    await cluster.clock.advance(CHANGE_S)
    valid.append(node.membership.permit.valid)
    assert valid == [False, True, False]
    other = cluster.node("n2").start()
    await until(lambda: other.meter.state == "STANDBY")
    with pytest.raises(HerderFailedError):
        await node.herder.accept_changes()


# ---- the queue


class Stage:
    """A queue and what ran in it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.queue = HerderQueue(self.clock)
        self.ran: list[str] = []

    async def note(self, name: str) -> str:
        self.ran.append(name)
        return name.upper()

    async def fail(self) -> None:
        raise NotFoundError("Connector c not found")


async def test_requests_run_in_the_order_of_submission_and_answer_their_callers() -> None:
    stage = Stage()
    callers = [
        asyncio.create_task(stage.queue.submit(lambda n=n: stage.note(n)))  # type: ignore[misc]  # mypy: lambda defaults
        for n in ("a", "b", "c")
    ]
    await stage.clock.settle()
    await stage.queue.run_due()
    assert stage.ran == ["a", "b", "c"]
    assert await asyncio.gather(*callers) == ["A", "B", "C"]


async def test_a_blocked_herder_lets_requests_fail_with_the_stage_it_is_in() -> None:
    """The timeout text names the stage and the instant it began."""

    stage = Stage()
    with stage.queue.stage("ensuring membership in the cluster"):
        caller = asyncio.create_task(stage.queue.submit(lambda: stage.note("a")))
        await stage.clock.advance(REQUEST_TIMEOUT_S)
        with pytest.raises(HerderTimeoutError) as caught:
            await caller
    assert re.fullmatch(
        r"Request timed out\. The worker is currently ensuring membership in the cluster, which began"
        r" at 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ\.",
        caught.value.message,
    )
    await stage.queue.run_due()
    assert stage.ran == [], "what was refused is not done later"


async def test_a_caller_with_less_patience_is_told_what_was_done_last() -> None:
    stage = Stage()
    with stage.queue.stage("shutting down"):
        await stage.clock.advance(1.5)
    caller = asyncio.create_task(
        stage.queue.submit(lambda: stage.note("a"), timeout_s=HEALTH_TIMEOUT_S)
    )
    await stage.clock.advance(HEALTH_TIMEOUT_S)
    with pytest.raises(
        HerderTimeoutError,
        match=r"The last operation the worker completed was shutting down, .* completed at .*\.500Z\.",
    ):
        await caller


async def test_the_queue_knows_for_how_long_its_oldest_request_waits() -> None:
    stage = Stage()
    await stage.clock.advance(100)
    assert stage.queue.waits_s == 0
    stage.queue.post(lambda: stage.clock.sleep(4), delay_s=1)
    assert stage.queue.waits_s == 0, "it is not due"
    caller = asyncio.create_task(stage.queue.submit(lambda: stage.note("a"), timeout_s=2))
    await stage.clock.advance(3)
    with pytest.raises(HerderTimeoutError):
        await caller
    assert stage.queue.waits_s == 3
    running = asyncio.create_task(stage.queue.run_due())
    await stage.clock.advance(3)
    assert stage.queue.waits_s == 6, "what is running has not been answered"
    await stage.clock.advance(1)
    await running
    assert (stage.queue.waits_s, stage.ran) == (0, [])


async def test_a_new_request_and_a_wake_up_end_the_wait() -> None:
    stage = Stage()
    for wake in (stage.queue.wake, lambda: stage.queue.post(stage.fail)):
        await stage.queue.run_due()
        waiting = asyncio.create_task(stage.queue.wait())
        await stage.clock.settle()
        assert not waiting.done()
        wake()
        await waiting
    stage.queue.close(HerderError("Worker is shutting down"))


async def test_a_request_that_is_cut_off_with_the_loop_is_refused() -> None:
    stage = Stage()
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    caller = asyncio.create_task(stage.queue.submit(endless))
    await stage.clock.settle()
    loop = asyncio.create_task(stage.queue.run_due())
    await begun.wait()
    loop.cancel()
    with pytest.raises(HerderError, match="shutting down"):
        await caller
