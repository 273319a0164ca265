"""Which flows a node runs: the file's, those that people add, and not those that they delete."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import Mm2pyError, RetriableError
from mm2py.flows.edits import created, deleted
from mm2py.flows.fleet import FleetParts, FlowFleet
from mm2py.mirror.flow_overrides import FlowEntry, Presence, Revision, encode_flow_record
from mm2py.runtime.errors import ForwardError, HerderError
from mm2py.runtime.herder.api import PeerClient
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.types import FlowName
from tests.unit.rest.flow_fakes import AB, BA, NAME, Leader, Peers
from tests.unit.rest.rest_fakes import SOURCE, flow

AC = flow("A", "C")
FILE = {NAME: {"name": NAME, "connector.class": SOURCE, "topics": "x", "enabled": "false"}}


class Runner(Leader):
    """Runs until it is stopped, and has its store open meanwhile."""

    def __init__(
        self,
        flow: FlowName,
        *,
        elsewhere: HerderError | None,
        failed: Mm2pyError | None,
        store: FlowOverridesStore,
    ) -> None:
        super().__init__(flow, elsewhere=elsewhere, store=store)
        self.failed = failed
        self.stopped = asyncio.Event()

    async def run(self) -> None:
        assert self.store is not None
        await self.store.start()
        self.derive()
        if self.failed is None:
            await self.stopped.wait()
        await self.store.stop()

    def stop(self) -> None:
        self.stopped.set()

    @property
    def failure(self) -> Mm2pyError | None:
        return self.failed

    def problems(self) -> Sequence[str]:
        return [] if self.failed is None else [str(self.failed)]


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.topics: dict[FlowName, MemoryTopic] = {}
        self.runners: list[Runner] = []
        self.elsewhere: HerderError | None = None
        self.failed: Mm2pyError | None = None
        self.added: Collection[FlowName] = ()
        parts = FleetParts(
            pairs=[AB, BA, AC], by_file=[AB], build=self._build, file=lambda _: FILE, added=self._asked
        )  # fmt: skip
        self.fleet = FlowFleet(parts, clock=self.clock)

    async def _asked(self, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        return [pair for pair in pairs if pair in self.added]

    def _build(self, name: FlowName) -> tuple[Herder, FlowOverridesStore, PeerClient]:
        topic = self.topics.setdefault(name, MemoryTopic("mm2py-flows"))
        store = FlowOverridesStore(MemoryTable(topic), FILE, clock=self.clock, by_file=name == AB)
        runner = Runner(flow=name, elsewhere=self.elsewhere, failed=self.failed, store=store)
        store.listen(runner.derive)
        self.runners.append(runner)
        return runner, store, Peers()

    async def looks(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            await self.clock.advance(1)


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    stage = Stage()
    stage.fleet.start()
    await stage.looks(1)
    yield stage
    assert await stage.fleet.stop(1)


async def test_the_files_flows_run_and_others_start_when_somebody_adds_them(stage: Stage) -> None:
    assert list(stage.fleet.nodes) == [AB]
    there = FlowEntry(state=Presence.ADDED, revision=Revision(number=1, by="anna", at_ms=1))
    stage.topics[BA] = MemoryTopic("mm2py-flows")
    stage.topics[BA].append(*encode_flow_record(there))
    stage.added = [BA]
    await stage.looks(8)
    assert list(stage.fleet.nodes) == list(stage.fleet.herders) == [AB, BA]


async def test_a_flow_that_was_deleted_stops_when_its_connectors_are_gone(stage: Stage) -> None:
    node = await stage.fleet.open(BA)
    runner = stage.runners[-1]
    await stage.looks(1)
    await node.overrides.edit("create", "x", created(FILE, {}), actor="anna")
    assert runner.connectors() == (NAME,)
    await stage.looks(70)
    assert BA in stage.fleet.nodes
    since = stage.fleet.since(BA)
    assert since is not None
    assert since.state == "RUNNING"
    # Its leader died between the two: the next one completes it.
    await node.overrides.edit("delete", "x", deleted(FILE), actor="anna")
    assert node.overrides.presence is Presence.DELETED
    await stage.looks(4)
    assert runner.connectors() == ()
    assert BA not in stage.fleet.nodes
    assert (AB in stage.fleet.nodes, runner.stopped.is_set()) == (True, True)
    again = await stage.fleet.open(BA)
    assert again.herder is not runner


async def test_a_flow_of_the_file_stays_known_when_it_is_deleted(stage: Stage) -> None:
    node = stage.fleet.nodes[AB]
    await node.overrides.edit("delete", "x", deleted(FILE), actor="anna")
    await stage.looks(3)
    assert (stage.runners[0].connectors(), AB in stage.fleet.nodes) == ((), True)


async def test_what_never_becomes_a_flow_is_stopped_after_a_while(stage: Stage) -> None:
    await stage.fleet.open(AC)
    await stage.looks(30)
    assert AC in stage.fleet.nodes
    await stage.looks(40)
    assert AC not in stage.fleet.nodes


async def test_opening_waits_until_it_is_known_who_leads(stage: Stage) -> None:
    stage.elsewhere = ForwardError(None)
    opening = asyncio.ensure_future(stage.fleet.open(BA))
    await stage.looks(2)
    assert not opening.done()
    stage.runners[-1].waits = "waits for target cluster B"
    stage.runners[-1].elsewhere = HerderError("B->A waits for target cluster B", status=503)
    await stage.looks(2)
    assert not opening.done()
    stage.runners[-1].waits = ""
    stage.runners[-1].elsewhere = ForwardError("http://other:1/")
    await stage.looks(1)
    assert (await opening).herder is stage.runners[-1]


@pytest.mark.parametrize("failed", [None, RetriableError("no such user; grant it")])
async def test_opening_gives_up_where_a_cluster_is_away(
    stage: Stage, failed: Mm2pyError | None
) -> None:
    stage.elsewhere, stage.failed = ForwardError(None), failed
    opening = asyncio.ensure_future(stage.fleet.open(BA))
    await stage.looks(50)
    with pytest.raises(RetriableError, match=r"cannot be run now.*try again") as caught:
        await opening
    assert failed is None or str(failed) in caught.value.message
    stage.elsewhere, stage.failed = None, None
    await stage.looks(30)
    assert (await stage.fleet.open(BA)).herder is stage.runners[-1]
