"""One flow: the order of its start, waiting, losing the group, stopping."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from mm2py.errors import ConfigError, ConnectionFailedError
from mm2py.observability.metrics import Metrics
from mm2py.runtime.herder import FlowParts, Herder
from mm2py.runtime.mirror_maker import MirrorMaker
from mm2py.runtime.plugins import Plugins
from mm2py.runtime.task_host import InProcessTaskHost, TaskSpec, TaskWatcher
from mm2py.runtime.worker import Worker, WorkerSettings
from mm2py.runtime.worker_task import WorkerTask
from mm2py.types import ClusterAlias, FlowName
from tests.unit.runtime.runtime_fakes import EagerClock, FakeStore, until

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


class FakeMembership:
    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.hangs = False
        self.gone = asyncio.Event()
        self.suspend: Callable[[], None] | None = None
        self.resume: Callable[[], None] | None = None

    async def acquire(self) -> None:
        if self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.events.append("acquire cancelled")
        self.events.append("acquire")

    def listen(self, suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        self.suspend, self.resume = suspend, resume

    async def lost(self) -> str:
        await self.gone.wait()
        self.gone.clear()
        return "another member joined"

    async def release(self) -> None:
        self.events.append("release")


class Stage:
    """A herder on fakes, without connectors."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.clock = EagerClock()
        self.errors: dict[str, list[Exception]] = {"target": [], "source": [], "prepare": []}
        self.membership = FakeMembership(self.events)
        self.store = FakeStore()
        self.metrics = Metrics(self.clock)
        self.meter = self.metrics.flow(FLOW)
        parts = FlowParts(
            clusters={
                "target cluster B at b1:9092": lambda: self._step("target"),
                "source cluster A at a1:9092": lambda: self._step("source"),
            },
            prepare=lambda: self._step("prepare"),
            membership=self.membership,
            store=self.store,
            worker=self._worker,
            connectors={"unknown": {"connector.class": "Nope"}},
            close=lambda: self._step("close"),
        )
        self.herder = Herder(parts, meter=self.meter, clock=self.clock)

    async def _step(self, name: str) -> None:
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        self.events.append(name)

    def _worker(self, on_change: object) -> Worker:
        self.events.append("worker")

        def host(watcher: TaskWatcher) -> InProcessTaskHost:
            return InProcessTaskHost(_never_built, watcher, graceful_s=1)

        return Worker(
            Plugins([]), host, settings=WorkerSettings(), clock=self.clock, on_change=lambda: None
        )


def _never_built(spec: TaskSpec, on_status: object) -> WorkerTask:
    raise AssertionError(f"no task was expected: {spec}")


def test_a_flow_starts_in_order_and_stops_in_order() -> None:
    async def scenario() -> None:
        stage = Stage()
        running = asyncio.create_task(stage.herder.run())
        await until(lambda: stage.herder.worker is not None)
        assert stage.events[:2] == ["target", "source"]
        assert set(stage.events[2:4]) == {"prepare", "acquire"}
        assert stage.events[4:] == ["worker"]
        assert stage.store.started == 1
        stage.herder.stop()
        await running
        assert stage.events[5:] == ["release", "close"]
        assert stage.herder.error is None
        assert stage.meter.state == "STOPPED"

    asyncio.run(scenario())


def test_an_unreachable_cluster_is_waited_for_and_named(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.errors["source"] = [ConnectionFailedError("refused")] * 3
        running = asyncio.create_task(stage.herder.run())
        await until(lambda: stage.herder.worker is not None)
        stage.herder.stop()
        await running

    caplog.set_level(logging.INFO)
    asyncio.run(scenario())
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("waiting")]
    assert len(lines) == 1
    assert "source cluster A at a1:9092" in lines[0]


def test_lost_membership_stops_the_work_and_waits_again() -> None:
    async def scenario() -> None:
        stage = Stage()
        running = asyncio.create_task(stage.herder.run())
        await until(lambda: stage.herder.worker is not None)
        first = stage.herder.worker
        stage.membership.gone.set()
        await until(lambda: stage.herder.worker is not None and stage.herder.worker is not first)
        assert stage.events.count("acquire") == 2
        assert stage.events.count("release") == 1
        stage.herder.stop()
        await running
        assert stage.store.stopped == 2

    asyncio.run(scenario())


def test_a_membership_in_doubt_suspends_the_flow_and_its_positions_until_it_is_confirmed() -> None:
    async def scenario() -> None:
        stage = Stage()
        running = asyncio.create_task(stage.herder.run())
        await until(lambda: stage.herder.worker is not None and bool(stage.membership.suspend))
        first = stage.herder.worker
        assert stage.membership.suspend is not None
        assert stage.membership.resume is not None
        stage.membership.suspend()
        assert (stage.meter.state, stage.store.suspended) == ("SUSPENDED", True)
        stage.membership.resume()
        assert stage.meter.state != "SUSPENDED"
        assert not stage.store.suspended
        assert stage.herder.worker is first
        assert "release" not in stage.events
        stage.herder.stop()
        await running

    asyncio.run(scenario())


def test_positions_are_committed_when_a_membership_in_doubt_is_lost() -> None:
    async def scenario() -> None:
        stage = Stage()
        running = asyncio.create_task(stage.herder.run())
        await until(lambda: stage.herder.worker is not None and bool(stage.membership.suspend))
        first = stage.herder.worker
        assert stage.membership.suspend is not None
        stage.membership.suspend()
        stage.membership.gone.set()
        await until(lambda: stage.herder.worker is not None and stage.herder.worker is not first)
        assert not stage.store.suspended
        assert stage.events.count("acquire") == 2
        stage.herder.stop()
        await running

    asyncio.run(scenario())


def test_a_stop_while_waiting_ends_at_once() -> None:
    async def scenario() -> None:
        stage = Stage()

        stage.membership.hangs = True
        running = asyncio.create_task(stage.herder.run())
        await until(lambda: "prepare" in stage.events)
        stage.herder.stop()
        await running
        assert stage.events[-3:] == ["acquire cancelled", "release", "close"]

    asyncio.run(scenario())


def test_a_join_under_way_ends_when_the_topics_cannot_be_used() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.membership.hangs = True
        stage.errors["prepare"] = [ConfigError("topic is not compacted")]
        await stage.herder.run()
        assert isinstance(stage.herder.error, ConfigError)
        assert stage.events == ["target", "source", "release", "close"] or (
            stage.events[2:] == ["acquire cancelled", "release", "close"]
        )

    asyncio.run(scenario())


def test_a_flow_that_cannot_run_fails_and_the_others_go_on() -> None:
    async def scenario() -> None:
        bad, good = Stage(), Stage()
        bad.errors["prepare"] = [ConfigError("topic is not compacted", remedy="alter it")]
        other = FlowName(ClusterAlias("B"), ClusterAlias("A"))
        maker = MirrorMaker({FLOW: bad.herder, other: good.herder})
        maker.start()
        await until(lambda: bad.herder.error is not None and good.herder.worker is not None)
        assert bad.meter.state == "FAILED"
        assert maker.problems(FLOW) == ("topic is not compacted; alter it",)
        assert maker.problems(other) == []
        assert await maker.stop(5.0)
        failed = await maker.wait()
        assert list(failed) == [FLOW]

    asyncio.run(scenario())
