"""Several workers of a flow: who has what, changes while leaders die, kills, freezes and rolling restarts."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.group.coordinator import CoordinatorLink
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, parse_bootstrap_servers
from mm2py.protocol.connect_group import WorkerMetadata, decode_metadata, encode_metadata
from mm2py.protocol.groups import DescribedGroup, GroupProtocol, JoinResult, SyncResult
from mm2py.types import TaskId, Work
from tests.integration.mirror_process import Flow, Mirror, until
from tests.integration.setups import Setup
from tests.integration.several_workers import CALM, TASKS, Answer, Workers, assert_nothing_lost
from tests.integration.traffic import Load, assert_equal, committed_positions, read, wait_for_copy
from tests.kit.kafka.region import Region
from tests.unit.runtime.membership_rig import Configs, Worker, configs, working

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(480)]

COUNTS = {"source": 5, "beat": 1}
EVERYTHING = Work(
    frozenset(COUNTS),
    frozenset(TaskId(name, n) for name, count in COUNTS.items() for n in range(count)),
)
SESSION_MS = 6_000
BEAT_MS = 200
DELAY_MS = 600


class FreezableLink:
    """A ``CoordinatorLink`` whose process can stand still: nothing is sent, nothing is taken in."""

    def __init__(self, link: CoordinatorLink) -> None:
        self._link = link
        self.moves = asyncio.Event()
        self.moves.set()

    @property
    def group_id(self) -> str:
        return self._link.group_id

    async def join(
        self,
        member_id: str,
        offers: Sequence[GroupProtocol],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> JoinResult:
        await self.moves.wait()
        return await self._link.join(member_id, offers, session_timeout_ms, rebalance_timeout_ms)

    async def sync(
        self, member_id: str, generation: int, protocol: str, assignments: Mapping[str, bytes]
    ) -> SyncResult:
        await self.moves.wait()
        return await self._link.sync(member_id, generation, protocol, assignments)

    async def heartbeat(self, member_id: str, generation: int, timeout_ms: int) -> int:
        await self.moves.wait()
        code = await self._link.heartbeat(member_id, generation, timeout_ms)
        await self.moves.wait()
        return code

    async def leave(self, member_id: str, timeout_s: float) -> None:
        await self._link.leave(member_id, timeout_s)

    async def describe(self) -> DescribedGroup:
        await self.moves.wait()
        return await self._link.describe()


class Process:
    """One worker with a cluster client of its own."""

    def __init__(self, address: str, group: str, name: str) -> None:
        self.cluster = _cluster(address, name)
        self.link = FreezableLink(CoordinatorLink(self.cluster, group))
        self.worker = Worker(
            self.link,
            name,
            Configs(configs(COUNTS)),
            SYSTEM_CLOCK,
            session_ms=SESSION_MS,
            heartbeat_ms=BEAT_MS,
            max_delay_ms=DELAY_MS,
        )


class Stage:
    def __init__(self, address: str, group: str) -> None:
        self.address, self.group = address, group
        self.stack = AsyncExitStack()
        self.processes: dict[str, Process] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            process = self.processes[name] = Process(self.address, self.group, name)
            self.stack.push_async_callback(process.cluster.close)
            self.stack.push_async_callback(process.worker.membership.leave)
            self.tasks[name] = await self.stack.enter_async_context(working(process.worker))

    async def die(self, name: str) -> None:
        """Say nothing any more, as a killed process; its client is closed without leaving."""
        self.processes[name].link.moves.clear()
        self.tasks[name].cancel()
        await self.processes[name].cluster.close()

    def worker(self, name: str) -> Worker:
        return self.processes[name].worker

    def shared(self, *names: str) -> bool:
        """Whether all work runs once, evenly, on these workers."""
        together, counts = Work(), list[int]()
        for name in names:
            owned = self.worker(name).owned
            if together & owned:
                return False
            together |= owned
            counts.append(len(owned.tasks))
        return together == EVERYTHING and max(counts) - min(counts) <= 1

    def leader(self) -> str:
        (name,) = (n for n, p in self.processes.items() if p.worker.membership.is_leader)
        return name

    async def until_shared(self, *names: str) -> None:
        await reached(lambda: self.shared(*names), f"all work shared by {names}")


def _cluster(address: str, name: str) -> Cluster:
    settings = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(address), client_id=name
    )
    return Cluster(settings, alias="t")


async def reached(condition: Callable[[], bool], what: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + 90
    while not condition():
        assert loop.time() < end, f"not reached: {what}"
        await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def members_region() -> Iterator[Region]:
    with Region(
        "members",
        properties={
            "group.min.session.timeout.ms": "500",
            "group.initial.rebalance.delay.ms": "2000",
        },
    ) as region:
        yield region


@asynccontextmanager
async def staged(region: Region, group: str) -> AsyncGenerator[Stage]:
    stage = Stage(region.bootstrap_servers, group)
    async with stage.stack:
        yield stage


async def test_three_workers_share_and_the_work_of_one_that_dies_moves_alone(
    members_region: Region, unique: Callable[[str], str]
) -> None:
    async with staged(members_region, unique("share")) as stage:
        await stage.start("a", "b", "c")
        await stage.until_shared("a", "b", "c")
        group = await stage.processes["a"].link.describe()
        assert (group.state, group.protocol_type) == ("Stable", "connect")
        assert group.protocol_name == "mm2py-sessioned"
        urls = {decode_metadata(member.metadata).url for member in group.members}
        assert urls == {"http://a/", "http://b/", "http://c/"}
        leader = stage.leader()
        victim = next(name for name in ("a", "b", "c") if name != leader)
        rest = [name for name in ("a", "b", "c") if name != victim]
        before = {name: stage.worker(name).owned for name in rest}
        await stage.die(victim)
        await stage.until_shared(*rest)
        for name in rest:
            assert not before[name] - stage.worker(name).owned, "nothing that ran was moved"
        await stage.start("d")
        await stage.until_shared(*rest, "d")
        assert not any(stage.worker(name).lost for name in (*rest, "d"))


async def test_a_worker_that_froze_runs_nothing_twice_and_gets_work_again(
    members_region: Region, unique: Callable[[str], str]
) -> None:
    async with staged(members_region, unique("freeze")) as stage:
        await stage.start("a", "b", "c")
        await stage.until_shared("a", "b", "c")
        frozen = next(name for name in ("a", "b", "c") if name != stage.leader())
        rest = [name for name in ("a", "b", "c") if name != frozen]
        stage.processes[frozen].link.moves.clear()
        await reached(lambda: stage.worker(frozen).suspended, "suspended")
        await stage.until_shared(*rest)
        stage.processes[frozen].link.moves.set()
        await stage.until_shared("a", "b", "c")
        assert len(stage.worker(frozen).lost) == 1
        await reached(lambda: not stage.worker(frozen).suspended, "resumed")


async def test_when_the_leader_leaves_another_one_leads(
    members_region: Region, unique: Callable[[str], str]
) -> None:
    async with staged(members_region, unique("leader")) as stage:
        await stage.start("a", "b", "c")
        await stage.until_shared("a", "b", "c")
        first = stage.leader()
        rest = [name for name in ("a", "b", "c") if name != first]
        stage.tasks[first].cancel()
        await asyncio.wait({stage.tasks[first]})
        await stage.worker(first).membership.leave()
        await stage.until_shared(*rest)
        second = stage.leader()
        assert second in rest
        for name in rest:
            assert stage.worker(name).membership.leader_url == f"http://{second}/"


async def test_workers_go_on_with_what_they_have_when_the_broker_was_frozen_for_longer_than_a_session(
    members_region: Region, unique: Callable[[str], str]
) -> None:
    async with staged(members_region, unique("frozen")) as stage:
        await stage.start("a", "b")
        await stage.until_shared("a", "b")
        before = [stage.worker(name).owned for name in ("a", "b")]
        members_region.freeze()
        try:
            await reached(
                lambda: all(stage.worker(name).suspended for name in ("a", "b")), "suspended"
            )
            assert [stage.worker(name).owned for name in ("a", "b")] == before
            await asyncio.sleep(2 * SESSION_MS / 1000)
        finally:
            members_region.thaw()
        await reached(
            lambda: not any(stage.worker(name).suspended for name in ("a", "b")), "resumed"
        )
        await stage.until_shared("a", "b")
        lost = [lost for name in ("a", "b") for lost in stage.worker(name).lost]
        if lost:
            # A heartbeat that lay in the broker's socket through the freeze may have been read before
            # its member was expired: the coordinator kept that member and expired the other, which must
            # then stop its work, for the one in the group may have been given it.
            assert len(lost) == 1
            assert "another worker is in the group" in lost[0].reason
        else:  # connectors may go with the leadership
            after = [stage.worker(name).owned for name in ("a", "b")]
            assert [work.tasks for work in after] == [work.tasks for work in before]


@asynccontextmanager
async def java_worker(stage: Stage) -> AsyncGenerator[None, None]:
    """A member that offers Java's name only, and stays."""
    offers = (GroupProtocol("sessioned", encode_metadata(WorkerMetadata(2, "http://java/", 7))),)
    cluster = _cluster(stage.address, "java")
    link = CoordinatorLink(cluster, stage.group)
    who = (await link.join("", offers, 10_000, 10_000)).member_id

    async def stay() -> None:
        while True:
            joined = await link.join(who, offers, 10_000, 10_000)
            assert joined.protocol_name == "sessioned"
            told = {who: b""} if joined.leader == who else {}
            synced = await link.sync(who, joined.generation_id, "sessioned", told)
            while not synced.error_code:
                if await link.heartbeat(who, joined.generation_id, 5_000):
                    break
                await asyncio.sleep(0.1)

    task = asyncio.create_task(stay())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.leave(who, 3.0)
        await cluster.close()


async def test_a_java_worker_in_the_group_makes_all_wait(
    members_region: Region, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(members_region, unique("java")) as stage:
        await stage.start("a", "b")
        await stage.until_shared("a", "b")
        async with java_worker(stage):
            await reached(
                lambda: not any(stage.worker(name).owned for name in ("a", "b")), "all stopped"
            )
            await reached(
                lambda: caplog.text.count("waiting for the other members of the group") >= 2,
                "both wait",
            )
            await stage.start("c")
            await reached(lambda: bool(stage.worker("c").log), "the newcomer sees it from outside")
            described = await stage.processes["c"].link.describe()
            assert [member.client_id for member in described.members] == ["java"]
            assert not any(stage.worker(name).owned for name in ("a", "b", "c"))
        await stage.until_shared("a", "b", "c")


PARTITIONS: Final = 6
RATE: Final = 500
NAMES: Final = ("one", "two", "three")
MARK: Final = "refresh.topics.interval.seconds"
"""A property whose change starts the connector and its tasks anew."""
GONE: Final = "IO Error trying to forward REST request"


@pytest.fixture
def topic(setup: Setup) -> str:
    return setup.topic("changed", PARTITIONS)


@pytest.fixture
def flow(setup: Setup, topic: str) -> Flow:
    return setup.flow(topic, {"tasks.max": "3", **CALM})


def test_every_worker_takes_changes_for_the_leader_and_the_owners(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE), Workers(flow) as workers:
        workers.settle(*NAMES)
        for number, worker in enumerate(workers.running, 11):
            assert workers.calmly(worker, "/pause", "PUT") == 202
            workers.until_states("PAUSED")
            assert workers.calmly(worker, "/resume", "PUT") == 202
            workers.until_states("RUNNING")
            change = {MARK: str(number)}
            assert workers.calmly(worker, "/config", "PATCH", change) == 200
            until_marked(workers, str(number))
            assert workers.calmly(worker, "/restart?includeTasks=true", "POST") == 202
            workers.until_spread()
            for task in range(3):  # one of them is the asked worker's own
                assert workers.calmly(worker, f"/tasks/{task}/restart", "POST") == 204
            workers.until_spread()
        workers.wait_for_copy_everywhere(topic)
        for worker in workers.running:
            assert not worker.complaints()
        workers.stop()


def test_a_change_whose_leader_is_killed_is_made_whole_or_not_at_all(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        workers.settle(*NAMES)
        for tasks, accepted_first in (("6", True), ("4", False)):
            leader = workers.leader()
            asked = next(worker for worker in workers.running if worker is not leader)
            before = workers.config(asked)["tasks.max"]
            answers: list[int] = []
            change = threading.Thread(
                target=lambda: answers.append(  # noqa: B023 - joined in this round
                    workers.patch(asked, {"tasks.max": tasks})  # noqa: B023
                )
            )
            change.start()
            if accepted_first:  # the tasks of the new config are still to be made
                change.join()
                assert answers == [200]
            workers.kill(leader)
            change.join()
            # The round without the leader begins with what the config topic holds by then.
            workers.until_spread(tasks=lambda: int(workers.config(asked)["tasks.max"]))  # noqa: B023 - called here
            until_same_config(workers)
            now = workers.config(asked)["tasks.max"]
            assert now in ({tasks} if answers == [200] else {tasks, before})
            workers.wait_for_copy_everywhere(topic)
        (asked,) = workers.running
        assert workers.patch(asked, {"tasks.max": "2"}) == 200
        workers.until_spread(tasks=2)
        load.stop()
        assert_nothing_lost(flow, topic, asked)
        workers.stop()


def test_a_change_during_a_rebalance_is_answered_409_or_made(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        workers.settle(*NAMES)
        changes = Changes(workers)
        changes.make(3)
        assert changes.refused == []
        workers.kill(workers.leader())
        changes.make(8)
        workers.start("again")
        changes.make(8)
        workers.stop(workers.running[0])
        changes.make(8)
        workers.until_spread()
        until_marked(workers, changes.last)
        # As in Connect: no answer of a leader that is gone is 500 until the others know it.
        unexpected = [it for it in changes.refused if it[0] != 409 and GONE not in str(it[1])]
        assert not unexpected, unexpected
        changes.refused.clear()
        changes.make(3)
        assert changes.refused == [], "a calm group takes every change"
        until_marked(workers, changes.last)
        workers.wait_for_copy_everywhere(topic)
        load.stop()
        assert_nothing_lost(flow, topic, workers.running[0])
        workers.stop()


class Changes:
    """Asks one worker after the other for a change, and knows the last one that was accepted."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._number = 100
        self.last = workers.config(workers.running[0]).get(MARK, "")
        self.refused: list[Answer] = []

    def make(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            asked = self._workers.running[self._number % len(self._workers.running)]
            answer = self._workers.ask(asked, "/config", "PATCH", {MARK: str(self._number)})
            if answer[0] == 200:
                self.last = str(self._number)
                self._until_seen_by(asked)
            else:
                self.refused.append(answer)
                assert not self._seen_by(asked, str(self._number)), "a refused change was made"

    def _until_seen_by(self, worker: Mirror) -> None:
        until(lambda: self._seen_by(worker), 90, f"{worker.name} to see {self.last}")

    def _seen_by(self, worker: Mirror, value: str | None = None) -> bool:
        return self._workers.config(worker).get(MARK, "") == (value or self.last)


def until_marked(workers: Workers, value: str) -> None:
    """Wait until every worker has read a change."""
    until(
        lambda: all(workers.config(worker).get(MARK) == value for worker in workers.running),
        90,
        lambda: f"{value} everywhere: {[workers.config(w).get(MARK) for w in workers.running]}",
    )


def until_same_config(workers: Workers) -> None:
    """Wait until every worker returns the same config."""
    until(
        lambda: len({tuple(workers.config(worker).items()) for worker in workers.running}) == 1,
        90,
        "every worker to have read the same config",
    )


log = logging.getLogger(__name__)


@pytest.mark.parametrize("killed", ["the leader", "a follower"])
def test_only_the_tasks_of_a_killed_worker_move_and_one_that_comes_back_stops_no_other(
    killed: str, flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        owners = workers.settle(*NAMES)
        workers.wait_for_copy_everywhere(topic)
        leader = workers.leader()
        victim = next(w for w in workers.running if (w is leader) == (killed == "the leader"))
        (lost,) = [task for task, owner in owners.items() if owner is victim]
        started = {worker.name: workers.starts(worker) for worker in workers.running}
        stopped = {worker.name: workers.stops(worker) for worker in workers.running}
        workers.kill(victim)
        committed = committed_positions(flow, topic)
        resumed_s = workers.wait_for_copy_everywhere(topic)
        log.info("every partition is copied on %.1f s after SIGKILL of %s", resumed_s, killed)
        now = workers.until_spread()
        assert now == owners | {lost: now[lost]}, "only the killed one's task moved"
        started[now[lost].name].append(lost)
        assert_history(workers, started, stopped)
        workers.start("again")
        last = workers.until_spread()
        (moved,) = [task for task in now if last[task] is not now[task]]
        started["again"], stopped["again"] = [moved], []
        stopped[now[moved].name].append(moved)
        assert_history(workers, started, stopped)
        workers.wait_for_copy_everywhere(topic)
        load.stop()
        for partition, steps in assert_nothing_lost(flow, topic, now[lost]).items():
            # What was not committed is there twice, where the killed one copied; nothing else.
            assert steps in ([], [committed.get(partition, -1) + 1])
        workers.stop()


def test_a_frozen_worker_gives_its_task_up_and_comes_back_without_a_second_owner(
    flow: Flow, topic: str
) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        owners = workers.settle(*NAMES)
        workers.wait_for_copy_everywhere(topic)
        frozen = next(worker for worker in workers.running if worker is not workers.leader())
        (lost,) = [task for task, owner in owners.items() if owner is frozen]
        with workers.frozen(frozen):
            committed = committed_positions(flow, topic)
            now = workers.until_spread()
            assert now == owners | {lost: now[lost]}, "only the frozen one's task moved"
            workers.wait_for_copy_everywhere(topic)
        workers.until_spread()
        workers.wait_for_copy_everywhere(topic)
        load.stop()
        for partition, steps in assert_nothing_lost(flow, topic, now[lost]).items():
            assert steps in ([], [committed.get(partition, -1) + 1])
        workers.stop()


def test_a_rolling_restart_doubles_nothing(flow: Flow, topic: str) -> None:
    with Load(flow.source, topic, PARTITIONS, rate=RATE) as load, Workers(flow) as workers:
        workers.settle(*NAMES)
        for old in workers.running:
            workers.stop(old)
            workers.start(f"{old.name}-new")
            workers.until_spread()
            workers.wait_for_copy_everywhere(topic)
        load.stop()
        assert_equal(*wait_for_copy(workers.running[-1], flow, topic))
        complaints = {worker.name: worker.complaints() for worker in workers.running}
        assert not any(complaints.values()), complaints
        workers.stop()


def assert_history(
    workers: Workers, started: dict[str, list[int]], stopped: dict[str, list[int]]
) -> None:
    """The running workers have started and given up exactly these tasks."""
    running = workers.running
    assert {w.name: workers.starts(w) for w in running} == {
        w.name: started[w.name] for w in running
    }
    assert {w.name: workers.stops(w) for w in running} == {w.name: stopped[w.name] for w in running}


def test_a_leader_that_stops_right_after_the_others_leaves_javas_task_configs(setup: Setup) -> None:
    """Within one heartbeat its last plan has the others still."""
    topic, rate = setup.topic("left", PARTITIONS), 3_000_000
    limit = {"{source}->{target}.flow.max.bytes.per.second": str(rate)}
    flow = setup.flow(topic, CALM | limit | {"tasks.max": str(TASKS)})
    name = f"mm2-configs.{flow.source_alias}.internal"

    def published() -> list[str]:
        keys = {b"task-MirrorSourceConnector-%d" % number for number in range(TASKS)}
        records = read(flow.target, name)[0].records
        values = {it.key: it.value for it in records if it.key in keys}
        configs = [json.loads(value or b"{}")["properties"] for value in values.values()]
        return [it["flow.max.bytes.per.second"] for it in configs]

    with Workers(flow) as workers:
        workers.settle("one", "two")
        assert published() == [str(rate // TASKS)] * TASKS
        leaders = [it for it in workers.running if it.lines("this worker leads the group")]
        workers.stop(*(it for it in workers.running if it not in leaders), leaders[-1])
    assert published() == [str(rate)] * TASKS
