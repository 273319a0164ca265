"""A worker on its own: everything is its own at once, and nobody is told to try again."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from mm2py.runtime.errors import AlreadyExistsError, BadRequestError, NotFoundError
from mm2py.runtime.group.membership import SoloMembership
from mm2py.runtime.herder.herder import Herder
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import TargetState, TaskId, Work
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node

T = TypeVar("T")
URL = "http://127.0.0.1:1/"


class Alone:
    """A standalone herder on fakes; time goes on while somebody waits."""

    def __init__(self) -> None:
        self.node: Node = Cluster().node("n1")
        self.clock: FakeClock = self.node.cluster.clock
        parts = replace(
            self.node.parts,
            flow=None,
            membership=SoloMembership(self.node.config, url=URL),
        )
        self.herder = Herder(parts, clock=self.clock)

    async def said(self, asked: Awaitable[T]) -> T:
        waiting = asyncio.ensure_future(asked)
        for _ in range(3_000):
            if waiting.done():
                break
            await self.clock.advance(0.005)
        return await waiting

    def state(self, name: str) -> str:
        try:
            return self.herder.status(name).connector.state.value
        except NotFoundError:
            return ""


@pytest.fixture
@asynccontextmanager
async def alone() -> AsyncGenerator[Alone]:
    alone = Alone()
    running = asyncio.create_task(alone.herder.run())
    yield alone
    alone.herder.stop()
    await alone.said(running)
    assert alone.herder.failure is None


async def test_a_connector_is_there_with_its_tasks_as_soon_as_it_was_made(alone: Alone) -> None:
    made = await alone.said(alone.herder.create("c", CONFIG, None, actor="x"))
    assert made.name == "c"
    info = await alone.said(alone.herder.info("c"))
    assert info.type == "source"
    await until(lambda: len(alone.node.host.running) == 2)
    assert {str(task) for task in alone.node.host.running} == {"c-0", "c-1"}
    assert len(await alone.said(alone.herder.task_configs("c"))) == 2
    assert alone.herder.status("c").connector.worker_id == "n1:8083"
    assert alone.herder.flow is None
    assert alone.herder.session_key() is None
    with pytest.raises(AlreadyExistsError):
        await alone.said(alone.herder.create("c", CONFIG, None, actor="x"))


async def test_restarts_wait_for_the_work_instead_of_being_sent_elsewhere(alone: Alone) -> None:
    await alone.said(alone.herder.create("c", CONFIG, None, actor="x"))
    await alone.said(alone.herder.restart_connector("c"))
    await until(lambda: len(alone.node.host.running) == 2)
    await alone.said(alone.herder.restart_task(TaskId("c", 1)))
    assert alone.node.host.events.count("start c-1 1") == 2
    await alone.said(alone.herder.restart("c", only_failed=False, include_tasks=True))
    await until(lambda: alone.node.host.events.count("start c-0 0") >= 2)
    with pytest.raises(NotFoundError):
        await alone.said(alone.herder.restart_connector("d"))


async def test_states_positions_and_deletion(alone: Alone) -> None:
    herder = alone.herder
    await alone.said(herder.create("c", CONFIG, TargetState.PAUSED, actor="x"))
    await until(lambda: alone.state("c") == "PAUSED")
    await alone.said(herder.resume("c", actor="x"))
    await until(lambda: alone.state("c") == "RUNNING")
    with pytest.raises(BadRequestError, match="STOPPED"):
        await alone.said(herder.reset_offsets("c"))
    await alone.said(herder.stop_connector("c", actor="x"))
    await until(lambda: alone.state("c") == "STOPPED")
    assert await alone.said(herder.reset_offsets("c")) == "reset"
    changed = await alone.said(herder.patch_config("c", {"work": "0"}, actor="x"))
    assert changed.config["work"] == "0"
    await alone.said(herder.delete("c", actor="x"))
    assert herder.connectors() == ()
    await until(lambda: alone.state("c") == "")


async def test_one_round_gives_all_that_is_configured_and_takes_what_is_not() -> None:
    membership = SoloMembership(Cluster().node("n1").config, url=URL)
    assert (membership.is_leader, membership.generation) == (False, -1)
    gone = Work(frozenset({"gone"}), frozenset({TaskId("gone", 0)}))
    done = await membership.rejoin(gone, 3)
    assert (done.assigned, done.revoked, done.config_offset) == (Work(), gone, 3)
    assert (membership.is_leader, membership.generation) == (True, 0)
    assert membership.member_urls() == (membership.owner_url("c"),) == (URL,)
    waiting = asyncio.create_task(membership.signal())
    await asyncio.sleep(0)
    assert not waiting.done()
    membership.request_rejoin()
    await waiting
    await membership.leave()
    assert membership.leader_url is None
