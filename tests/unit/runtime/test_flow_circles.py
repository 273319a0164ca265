"""Every change of a flow's configs is checked for circles, whatever its way and whoever leads the other flow."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from mm2py.errors import RequestTimedOutError
from mm2py.flows.graph import CircleGuard, FlowNode, check_connectors
from mm2py.mirror.flow_state import FlowPicture
from mm2py.runtime.errors import BadRequestError
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.types import FlowName
from tests.unit.rest.flow_fakes import AB, BA, IDENTITY, NAME, Leader, Peers, config

SAME = {"replication.policy.class": IDENTITY, "loop.suppression": "off"}


def texts(**more: str) -> dict[str, str]:
    return {key: text for key, text in config(**more).items() if text is not None}


def a_store(topic: MemoryTopic) -> FlowOverridesStore:
    file = {NAME: texts(topics="none", **SAME)}
    return FlowOverridesStore(MemoryTable(topic), file, clock=FakeClock())


class Worker:
    """One process: both flows, their changes read from topics that all workers share."""

    def __init__(self, topics: Mapping[FlowName, MemoryTopic]) -> None:
        self.nodes: dict[FlowName, FlowNode] = {}
        for name, topic in topics.items():
            store = a_store(topic)
            store.guarded_by(CircleGuard(name, lambda: self.nodes, {}))
            self.nodes[name] = FlowNode(Leader(flow=name), store, Peers())

    async def start(self) -> "Worker":
        for node in self.nodes.values():
            await node.overrides.start()
        return self

    async def put(self, name: FlowName, topics: str, connector: str = NAME) -> None:
        """Replace a connector's config as the Connect dialect does."""
        store = self.nodes[name].overrides
        await store.record(
            connector, None, texts(topics=topics, **SAME) | {"name": connector}, actor="t"
        )

    def topics(self, name: FlowName) -> str:
        return self.nodes[name].overrides.effective()[NAME]["topics"]


def a_flow_each() -> dict[FlowName, MemoryTopic]:
    return {AB: MemoryTopic("ab"), BA: MemoryTopic("ba")}


def test_a_put_of_connect_that_closes_a_circle_is_refused_and_writes_nothing() -> None:
    async def play() -> None:
        topics = a_flow_each()
        worker = await Worker(topics).start()
        await worker.put(AB, "loop")
        with pytest.raises(BadRequestError, match="in a circle: A->B, B->A"):
            await worker.put(BA, "loop")
        assert topics[BA].records == []
        await worker.put(BA, "other")

    asyncio.run(play())


def test_a_second_source_connector_under_another_name_closes_a_circle_too() -> None:
    async def play() -> None:
        worker = await Worker(a_flow_each()).start()
        await worker.put(AB, "loop")
        with pytest.raises(BadRequestError, match="in a circle"):
            await worker.put(BA, "loop", "Mine")

    asyncio.run(play())


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_leaders_of_two_flows_never_keep_the_two_halves_of_a_circle(behind: int) -> None:
    async def play() -> None:
        topics = a_flow_each()
        first, second = await Worker(topics).start(), await Worker(topics).start()

        async def late() -> None:
            for _ in range(behind):
                await asyncio.sleep(0)
            await second.put(BA, "loop")

        outcomes = await asyncio.gather(first.put(AB, "loop"), late(), return_exceptions=True)
        for worker in (first, second):
            for node in worker.nodes.values():
                await node.overrides.refresh(1)
            assert {worker.topics(AB), worker.topics(BA)} != {"loop"}
        assert any(isinstance(it, BadRequestError) for it in outcomes)

    asyncio.run(play())


def test_a_change_that_is_taken_back_is_never_acted_on() -> None:
    async def play() -> None:
        topics = a_flow_each()
        worker, other = await Worker(topics).start(), await Worker(topics).start()
        acted_on: list[str] = []
        store = worker.nodes[AB].overrides
        store.listen(lambda: acted_on.append(worker.topics(AB)))
        results = await asyncio.gather(
            worker.put(AB, "loop"), other.put(BA, "loop"), return_exceptions=True
        )
        assert isinstance(results[0], BadRequestError)
        assert [line.action for line in store.history()] == ["undo", "create"]
        assert acted_on == ["none"]

    asyncio.run(play())


SINK = "org.apache.kafka.connect.mirror.MirrorSinkConnector"


def a_sink(source: str, target: str, topics: str = "t", **more: str) -> dict[str, str | None]:
    return {
        "connector.class": SINK, "source.cluster.alias": source, "target.cluster.alias": target,
        "topics": topics, "replication.policy.class": IDENTITY, **more,
    }  # fmt: skip


def test_connectors_of_an_ordinary_worker_that_close_a_circle_are_refused() -> None:
    there, back = a_sink("A", "B"), a_sink("B", "A")
    check_connectors({}, {"there": there})
    with pytest.raises(BadRequestError, match=r"A->B, B->A .*set copy.connector=source for A->B"):
        check_connectors({"there": there}, {"there": there, "back": back})
    files: dict[str, str | None] = {"connector.class": "com.example.Files", "topics": "t"}
    other = a_sink("B", "A", "other", enabled="true")
    check_connectors({"there": there}, {"there": there, "back": other, "files": files})
    # It was there before, and one that cannot be used says nothing of the others.
    both = {"there": there, "back": back}
    check_connectors(both, {**both, "files": files, "broken": a_sink("C", "A", "[")})


def test_another_flow_that_cannot_be_read_now_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        worker = await Worker(a_flow_each()).start()

        async def away(timeout_s: float) -> None:
            raise RequestTimedOutError(f"not within {timeout_s:g} s")

        monkeypatch.setattr(worker.nodes[BA].overrides, "refresh", away)
        await worker.put(AB, "loop")

    with caplog.at_level(logging.WARNING):
        asyncio.run(play())
    assert "other=B->A" in caplog.text


def test_a_dry_run_refuses_the_same_circle() -> None:
    async def play() -> None:
        worker = await Worker(a_flow_each()).start()
        await worker.put(AB, "loop")

        def edit(now: FlowPicture) -> FlowPicture:
            return now.with_config(NAME, texts(topics="loop", **SAME))

        with pytest.raises(BadRequestError, match="in a circle"):
            worker.nodes[BA].overrides.preview(edit)

    asyncio.run(play())
