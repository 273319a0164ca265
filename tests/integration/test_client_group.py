import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from mm2py.client.admin import Admin
from mm2py.client.cluster import Cluster
from mm2py.client.group_membership import SoleMembership
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, parse_bootstrap_servers
from mm2py.embedded.region import KafkaAddress, Region
from mm2py.protocol.connect_group import ConnectorTasks, decode_assignment, decode_metadata
from mm2py.protocol.group_messages import describe_groups
from mm2py.protocol.groups import GroupMember

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

URL = "http://nowhere:0/"
Waited = list[Sequence[GroupMember]]


class NewRegion(Protocol):
    def __call__(
        self, name: str = ..., *, nodes: int = ..., properties: dict[str, str] | None = ...
    ) -> Region: ...


class Worker:
    """One process: its own cluster client and membership."""

    def __init__(
        self, address: str, group: str, name: str, *, session_ms: int = 6000, api_ms: int = 20_000
    ) -> None:
        settings = ConnectionSettings(
            bootstrap_servers=parse_bootstrap_servers(address),
            client_id=name,
            default_api_timeout_ms=api_ms,
        )
        self.cluster = Cluster(settings, alias="t")
        self.admin = Admin(self.cluster)
        self.waited: Waited = []
        self.waits = asyncio.Event()
        self.membership = SoleMembership(
            self.cluster,
            self.admin,
            group,
            url=URL,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=100,
            rebalance_timeout_ms=10_000,
            clock=SYSTEM_CLOCK,
            work=lambda: (ConnectorTasks("MirrorSourceConnector", (-1, 0)),),
            on_waiting=self._note,
        )

    def _note(self, members: Sequence[GroupMember]) -> None:
        self.waited.append(members)
        self.waits.set()

    async def close(self) -> None:
        await self.membership.release()
        await self.cluster.close()


def run_workers(
    address: str, group: str, body: Callable[[Worker, Worker], Awaitable[None]]
) -> None:
    async def run() -> None:
        one, two = Worker(address, group, "one"), Worker(address, group, "two")
        try:
            await body(one, two)
        finally:
            await one.close()
            await two.close()

    asyncio.run(run())


@asynccontextmanager
async def running(work: Awaitable[None]) -> AsyncGenerator["asyncio.Task[None]", None]:
    async def call() -> None:
        await work

    task = asyncio.create_task(call())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _wait_for(reason: Awaitable[str]) -> None:
    await reason


def test_the_only_member_is_seen_as_a_connect_worker(
    region_a: KafkaAddress, unique: Callable[[str], str]
) -> None:
    group = unique("sole")

    async def body(one: Worker, _: Worker) -> None:
        await one.membership.acquire()
        described = await one.admin.describe_group(group)
        assert (described.state, described.protocol_type) == ("Stable", "connect")
        (raw,) = await one.cluster.call_coordinator(group, describe_groups([group]))
        assert raw.protocol_name == "sessioned"
        (member,) = raw.members
        assert member.client_id == "one"
        assert decode_metadata(member.metadata).url == URL
        assignment = decode_assignment(member.assignment)
        assert assignment.leader == member.member_id
        assert assignment.assigned == (ConnectorTasks("MirrorSourceConnector", (-1, 0)),)
        await one.membership.release()
        assert (await one.admin.describe_group(group)).members == ()

    run_workers(region_a.bootstrap_servers, group, body)


def test_a_second_worker_waits_names_the_first_and_takes_over(
    region_a: KafkaAddress, unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mm2py.client")

    async def body(one: Worker, two: Worker) -> None:
        await one.membership.acquire()
        async with running(two.membership.acquire()) as second, asyncio.timeout(30):
            await two.waits.wait()
            assert [member.client_id for member in two.waited[0]] == ["one"]
            assert not second.done()
            await one.membership.release()
            await second
        waiting = [line for line in caplog.messages if line.startswith("waiting for the other")]
        assert len(waiting) == 1
        assert "members=[one at /127.0.0.1]" in waiting[0]

    run_workers(region_a.bootstrap_servers, unique("second"), body)


def test_of_two_that_start_together_exactly_one_gets_the_group(
    new_region: NewRegion, unique: Callable[[str], str]
) -> None:
    # The delay gathers both in the first generation.
    region = new_region(properties={"group.initial.rebalance.delay.ms": "1500"})

    async def body(one: Worker, two: Worker) -> None:
        async with (
            running(one.membership.acquire()) as first,
            running(two.membership.acquire()) as second,
            asyncio.timeout(60),
        ):
            await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
            winner, loser = (one, two) if first.done() else (two, one)
            await loser.waits.wait()
            assert not (first.done() and second.done())
            await winner.membership.release()
            await asyncio.gather(first, second)

    run_workers(region.bootstrap_servers, unique("together"), body)


def test_membership_is_lost_when_another_worker_joins(
    region_a: KafkaAddress, unique: Callable[[str], str]
) -> None:
    async def body(one: Worker, two: Worker) -> None:
        await one.membership.acquire()
        # A Java worker does not look whether the group is empty: it joins.
        joining = two.membership._join()  # pyright: ignore[reportPrivateUsage]

        async def join() -> None:
            await joining

        async with running(join()) as other, asyncio.timeout(30):
            assert await one.membership.lost() == "another worker is joining the group"
            await one.membership.release()
            await other

    run_workers(region_a.bootstrap_servers, unique("lost"), body)


def test_membership_is_suspended_after_a_session_without_an_answer_until_one_comes(
    new_region: NewRegion, unique: Callable[[str], str]
) -> None:
    region = new_region(properties={"group.min.session.timeout.ms": "500"})

    async def run() -> None:
        worker = Worker(region.bootstrap_servers, unique("frozen"), "one", session_ms=1000)
        await worker.membership.acquire()
        suspended, resumed = asyncio.Event(), asyncio.Event()
        worker.membership.listen(suspended.set, resumed.set)
        region.freeze()
        try:
            async with asyncio.timeout(10):
                await suspended.wait()
        finally:
            region.thaw()
        # A broker that slept may have expired us or not: it says so, and we are a member again.
        async with asyncio.timeout(30), running(_wait_for(worker.membership.lost())) as lost:
            back = asyncio.ensure_future(resumed.wait())
            await asyncio.wait((lost, back), return_when=asyncio.FIRST_COMPLETED)
            back.cancel()
            await worker.membership.acquire()
        await worker.close()

    asyncio.run(run())


def test_a_cancelled_wait_leaves_nothing_behind(
    region_a: KafkaAddress, unique: Callable[[str], str]
) -> None:
    group = unique("cancelled")

    async def body(one: Worker, two: Worker) -> None:
        await one.membership.acquire()
        async with running(two.membership.acquire()):
            await two.waits.wait()
        await two.membership.release()
        assert len((await one.admin.describe_group(group)).members) == 1
        assert await two.membership.lost() == "not a member"

    run_workers(region_a.bootstrap_servers, group, body)
