"""Three workers in one group of a real broker: even shares, a silent death, a freeze, another leader, Java.

Flow: workers of the unit tests' rig, each with its own cluster client -> the broker's group coordinator.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.group.coordinator import CoordinatorLink
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, parse_bootstrap_servers
from mm2py.protocol.connect_group import WorkerMetadata, decode_metadata, encode_metadata
from mm2py.protocol.groups import DescribedGroup, GroupProtocol, JoinResult, SyncResult
from mm2py.types import TaskId, Work
from tests.kit.kafka.region import Region
from tests.unit.runtime.membership_rig import Configs, Worker, configs, working

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

COUNTS = {"source": 5, "beat": 1}
EVERYTHING = Work(
    frozenset(COUNTS),
    frozenset(TaskId(name, n) for name, count in COUNTS.items() for n in range(count)),
)
SESSION_MS = 1_500
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
        await until(lambda: self.shared(*names), f"all work shared by {names}")


def _cluster(address: str, name: str) -> Cluster:
    settings = ConnectionSettings(
        bootstrap_servers=parse_bootstrap_servers(address), client_id=name
    )
    return Cluster(settings, alias="t")


async def until(condition: Callable[[], bool], what: str) -> None:
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
        await until(lambda: stage.worker(frozen).suspended, "suspended")
        await stage.until_shared(*rest)
        stage.processes[frozen].link.moves.set()
        await stage.until_shared("a", "b", "c")
        assert len(stage.worker(frozen).lost) == 1
        await until(lambda: not stage.worker(frozen).suspended, "resumed")


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
            await until(
                lambda: all(stage.worker(name).suspended for name in ("a", "b")), "suspended"
            )
            assert [stage.worker(name).owned for name in ("a", "b")] == before
            await asyncio.sleep(2 * SESSION_MS / 1000)
        finally:
            members_region.thaw()
        await until(lambda: not any(stage.worker(name).suspended for name in ("a", "b")), "resumed")
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
            await until(
                lambda: not any(stage.worker(name).owned for name in ("a", "b")), "all stopped"
            )
            await until(
                lambda: caplog.text.count("waiting for the other members of the group") >= 2,
                "both wait",
            )
            await stage.start("c")
            await until(lambda: bool(stage.worker("c").log), "the newcomer sees it from outside")
            described = await stage.processes["c"].link.describe()
            assert [member.client_id for member in described.members] == ["java"]
            assert not any(stage.worker(name).owned for name in ("a", "b", "c"))
        await stage.until_shared("a", "b", "c")
