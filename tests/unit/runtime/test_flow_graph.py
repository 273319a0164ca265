"""Which sets of flows copy a topic in a circle."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from itertools import permutations
from types import FrameType
from typing import cast

import pytest

from mm2py.errors import ConfigError, Mm2pyError, RequestTimedOutError, RetriableError
from mm2py.flows import graph
from mm2py.flows.edits import created, deleted, patched
from mm2py.flows.fleet import SAMPLE_LOOKS, SAMPLES, FleetParts, FlowFleet
from mm2py.flows.graph import CircleGuard, Cycle, FlowNode, check_connectors, new_cycles
from mm2py.mirror.flow_overrides import Presence
from mm2py.mirror.flow_state import FlowPicture
from mm2py.runtime.errors import BadRequestError, ForwardError, HerderError
from mm2py.runtime.herder.api import AskPeer
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName
from tests.unit.rest.flow_fakes import AB, BA, IDENTITY, NAME, Leader, Peers, config
from tests.unit.rest.rest_fakes import PLACEHOLDER, SOURCE, FakeHerder, flow

SINK = {"connector.class": "org.apache.kafka.connect.mirror.MirrorSinkConnector"}
TRANSFORMS = "org.apache.kafka.connect.transforms."
MARKS = {
    "transforms": "drop,mark",
    "transforms.drop.type": TRANSFORMS + "Filter",
    "transforms.drop.predicate": "marked",
    "transforms.mark.type": "InsertHeader",
    "transforms.mark.header": "mirrored",
    "transforms.mark.value.literal": "yes",
    "predicates": "marked",
    "predicates.marked.type": TRANSFORMS + "predicates.HasHeaderKey",
    "predicates.marked.name": "mirrored",
}


STRIPPED = "transforms.strip.replacement"
Flows = dict[FlowName, list[dict[str, str]]]


def flow_of(text: str) -> FlowName:
    source, target = text.split("->")
    return FlowName(ClusterAlias(source), ClusterAlias(target))


def same(topics: str, suppression: str = "off", **more: str) -> dict[str, str]:
    return {
        "replication.policy.class": IDENTITY,
        "topics": topics,
        "loop.suppression": suppression,
        **more,
    }


def flows(**configs: dict[str, str]) -> Flows:
    return {flow_of("->".join(name)): [config] for name, config in configs.items()}


def same_name_cycles(configs: Flows, topics: Sequence[str] = ()) -> tuple[Cycle, ...]:
    return new_cycles({}, configs, topics)


def two(there: dict[str, str], back: dict[str, str] | None = None) -> Flows:
    """Flows of two clusters in both directions."""
    return flows(AB=there, BA=there if back is None else back)


def each(names: str, topics: str, suppression: str) -> Flows:
    return flows(**{name: same(topics, suppression) for name in names.split()})


def stripping(source: str, topics: str = "orders", **more: str) -> dict[str, str]:
    """A flow whose router takes the prefix of the default policy away, and that suppresses nothing."""
    return {
        "topics": topics,
        "loop.suppression": "off",
        "transforms": "strip",
        "transforms.strip.type": TRANSFORMS + "RegexRouter",
        "transforms.strip.regex": rf"{source}\.(.*)",
        "transforms.strip.replacement": "$1",
        **more,
    }


ONLY_ORDERS = {
    "transforms.strip.predicate": "some",
    "predicates": "some",
    "predicates.some.type": TRANSFORMS + "predicates.TopicNameMatches",
    "predicates.some.pattern": ".*orders",
}


ROUTED = stripping("A")
LONGER = {"topics": ".*", "replication.policy.separator": ""}
KEEPS = {"topics": "t", "loop.suppression": "off", "replication.policy.separator": ""}
MARKED = same("t", **SINK, **MARKS)
NO_CIRCLE: Mapping[str, Flows] = {
    "other topics": two(same("orders"), same("payments")),
    "patterns that do not meet": two(same("orders.*"), same("payments.*")),
    "lists that do not meet": two(same("eu-.*"), same("us-.*, asia-.*")),
    "no topic": two(same(""), same(".*")),
    "excludes open it": two(same(".*"), same(".*", **{"topics.exclude": ".*"})),
    "names with provenance": two({"topics": ".*"}),
    "names with provenance one way": two(same(".*"), {"topics": ".*"}),
    "an empty separator gives no name twice": two(LONGER),
    "both suppress loops by default": two(same(".*", "")),
    "both suppress loops with auto": two(same(".*", "auto")),
    "both suppress loops with on": two(same(".*", "on")),
    "both suppress loops with all": two(same(".*", "all")),
    "a hub passes records on and none of them back": each("AB BA BC CB", "t", "on"),
    "three that are all connected with all": each("AB BA BC CB CA AC", "t", "all"),
    "routed there, with provenance back": two(
        ROUTED, {"topics": "orders", "loop.suppression": "on"}
    ),
    "routed there, other topics back": two(ROUTED, same("bills")),
    "another prefix is taken away": two(ROUTED, stripping("C")),
    "another name is given": two(ROUTED, stripping("B", **{STRIPPED: "copy-$1"})),
    "no such group in the pattern": two(ROUTED, stripping("B", **{STRIPPED: "$7"})),
    "a negated predicate": two(
        ROUTED, stripping("B", **ONLY_ORDERS, **{"transforms.strip.negate": "true"})
    ),
    "a predicate that is not about names": two(
        ROUTED, stripping("B", **{**ONLY_ORDERS, "predicates.some.type": "RecordIsTombstone"})
    ),
    "both drop what the other one marks": two(MARKED),
    "one drops what is marked, both suppress": two(MARKED, same("t", "on", **MARKS)),
    # What A->B has marked does not come back, and B's own records end on A.
    "one marks and the other one drops": two(
        MARKED | {"transforms": "mark"}, MARKED | {"transforms": "drop"}
    ),
}
ONE_CIRCLE: Mapping[str, Flows] = {
    "a name in a list of patterns": two(same("orders"), same("a|orders")),
    "a dot that is escaped": two(same("orders\\.eu"), same("orders.*")),
    "a class of letters": two(same("[a-z]+"), same("x.*")),
    "a class of digits": two(same("t-\\d+"), same("t-.*")),
    "the way back publishes nothing": two(same(".*", "on"), same(".*", "off")),
    "the way there publishes nothing": two(same(".*", "off"), same(".*", "on")),
    "a ring of three that drops what came from its target alone": each("AB BC CA", "t", "on"),
    "routed there, names kept back": two(ROUTED, same("orders")),
    "an empty alias and separator keep names": two(KEEPS | {"source.cluster.alias": ""}),
}


@pytest.mark.parametrize("why", NO_CIRCLE)
def test_these_flows_run_in_no_circle(why: str) -> None:
    assert same_name_cycles(NO_CIRCLE[why]) == ()


@pytest.mark.parametrize("why", ONE_CIRCLE)
def test_these_flows_run_in_a_circle(why: str) -> None:
    assert len(same_name_cycles(ONE_CIRCLE[why])) == 1


def test_a_known_topic_shows_where_odd_patterns_meet() -> None:
    odd = flows(AB=same("(?=o)orders[0-9]{3}"), BA=same("orders12.*"))
    assert len(same_name_cycles(odd, ["orders123"])) == 1


def test_only_circles_that_a_change_closes_are_its_fault() -> None:
    before = flows(AB=same(".*"), BA=same(".*"), BC=same("t"))
    after = {**before, flow_of("C->B"): [same("t")]}
    assert [set(cycle.flows) for cycle in new_cycles(before, after)] == [
        {flow_of("B->C"), flow_of("C->B")}
    ]
    assert new_cycles(before, before) == ()


def test_more_topics_in_a_circle_are_a_new_one() -> None:
    before = flows(AB=same(".*"), BA=same("payments"))
    after = flows(AB=same(".*"), BA=same("payments, orders"))
    assert [cycle.topic for cycle in new_cycles(before, after)] == ["orders"]
    assert new_cycles(after, before) == ()


def test_a_pattern_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError):
        same_name_cycles(flows(AB=same("["), BA=same(".*")))


def test_patterns_that_are_slow_on_every_name_are_given_a_bounded_time() -> None:
    # Each match stays below the limit of one; 5,000 of them would hold the event loop for minutes.
    slow = same("(a|aa)+$b?")
    names = [f"{'a' * 20}x{number}" for number in range(5_000)]
    with pytest.raises(ConfigError, match=r"more than 0.5 s|needs more than 0.1 s"):
        same_name_cycles(flows(AB=slow, BA=slow), names)


class Paced:
    """A filter that takes every name, each after some time of the processor."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._seconds = float(config["pace"])

    def should_replicate_topic(self, topic: str) -> bool:
        del topic
        cast("Spent", vars(graph)["CPU_S"]).seconds += self._seconds
        return True


class Spent:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("pace_s", "is_refused"), [(0.0001, False), (0.003, True)])
def test_patterns_are_given_time_to_backtrack_whatever_the_number_of_flows_and_names(
    monkeypatch: pytest.MonkeyPatch, pace_s: float, *, is_refused: bool
) -> None:
    monkeypatch.setattr(graph, "CPU_S", Spent())
    paced = {"topic.filter.class": f"{__name__}:Paced", "pace": str(pace_s)}
    stores = {flow_of(f"S{number}->H"): [same(".*", **paced)] for number in range(20)}
    refused = pytest.raises(ConfigError, match=r"need more than 0\.5 s on")
    with refused if is_refused else nullcontext():
        assert same_name_cycles(stores, [f"t{number}" for number in range(300)]) == ()


def test_names_that_no_changed_flow_copies_are_not_tried_on_the_others() -> None:
    """A hundred flows with 5,000 topics held the event loop for a minute, longer than a membership lives."""
    asked = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal asked
        asked += event == "call" and frame.f_code.co_name == "carries"

    others = {flow_of(f"S{number}->H"): [same(".*")] for number in range(20)}
    before, after = ({**others, flow_of("H->S1"): [same(it)]} for it in ("a", "orders"))
    names = [f"t{number}" for number in range(100)]
    sys.setprofile(count)
    try:
        (cycle,) = new_cycles(before, after, [*names, "orders"])
    finally:
        sys.setprofile(None)
    assert (set(cycle.flows), cycle.topic) == ({flow_of("H->S1"), flow_of("S1->H")}, "orders")
    assert asked < 3 * len(names)


def test_clusters_that_are_all_connected_are_refused_with_one_ring() -> None:
    """Twelve have 300 million."""
    pairs = permutations("ABCDEFGHIJKL", 2)
    (cycle,) = same_name_cycles({flow_of("->".join(it)): [same("t", "on")] for it in pairs})
    assert list(map(str, cycle.flows)) == ["A->B", "B->C", "C->A"]


def test_each_store_of_a_hub_is_looked_at_a_few_times() -> None:
    """As a file with 300 of them was refused for its patterns: the looks for circles had taken the time."""
    stores, asked = 100, 0
    pairs = [way for number in range(stores) for way in (f"S{number}->H", f"H->S{number}")]

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal asked
        asked += event == "call" and frame.f_code.co_name == "passes_on"

    sys.setprofile(count)
    try:
        found = new_cycles({}, {flow_of(it): [same("t", "on")] for it in pairs})
    finally:
        sys.setprofile(None)
    assert found == ()
    assert stores <= asked <= 10 * stores


def test_a_circle_that_visits_a_cluster_twice_is_found() -> None:
    # V hands on what Y brought to X and what X brought to Y; both send everything back.
    knot = flows(VX=same("t", "on"), VY=same("t", "on"), XV=same("t", "all"), YV=same("t", "all"))
    assert same_name_cycles(knot) == ()
    knot = flows(
        VX=same("t", "on"), VY=same("t", "on"), XV=same("t", "on"), YV=same("t", "on"),
        YX=same("t", "on"),
    )  # fmt: skip
    (cycle,) = same_name_cycles(knot)
    assert {flow_of("V->Y"), flow_of("Y->X"), flow_of("X->V")} <= set(cycle.flows)


def test_a_second_connector_of_a_flow_counts_by_its_own_config() -> None:
    both = flows(AB=same("t", "on"), BA=same("t", "on"))
    both[flow_of("A->B")].append(same("t", "off"))
    assert len(same_name_cycles(both)) == 1


@pytest.mark.parametrize("back", ["on", "all", "auto"])
def test_a_flow_copied_by_a_group_cannot_be_recognised_by_the_flow_back(back: str) -> None:
    by_group = same("t", "on", **SINK)
    for other in (same("t", back), same("t", back, **SINK)):
        (cycle,) = same_name_cycles(flows(AB=by_group, BA=other))
        assert "copy.connector=source for A->B" in cycle.remedy
        assert "let each of them suppress loops" not in cycle.remedy
    (cycle,) = same_name_cycles(flows(AB=same("t"), BA=same("t", back)))
    assert "let each of them suppress loops" in cycle.remedy


@pytest.mark.parametrize("topics", ["orders", ".*", ".*ers"])
@pytest.mark.parametrize("more", [{}, ONLY_ORDERS])
def test_routers_that_take_the_prefix_away_in_both_directions_close_a_circle(
    topics: str, more: dict[str, str]
) -> None:
    (cycle,) = same_name_cycles(
        flows(AB=stripping("A", topics, **more), BA=stripping("B", topics, **more))
    )
    assert cycle.flows == (flow_of("A->B"), flow_of("B->A"))
    assert "loop.suppression=on" in cycle.remedy


@pytest.mark.parametrize("chosen", ["on", "auto", "all"])
def test_flows_with_such_routers_suppress_loops_by_themselves(chosen: str) -> None:
    own = {"loop.suppression": chosen}
    assert same_name_cycles(flows(AB=stripping("A", **own), BA=stripping("B", **own))) == ()
    assert same_name_cycles(flows(AB=stripping("A", **own), BA=stripping("B")))
    assert same_name_cycles(flows(AB=stripping("A", **own), BA=same("orders", chosen))) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"transforms": "mark"},
        {"transforms": "drop"},
        {"transforms.drop.negate": "true"},
        {"transforms.drop.predicate": ""},
        {"transforms.mark.predicate": "marked"},
        {"transforms.mark.header": "other"},
        {"predicates.marked.type": "RecordIsTombstone"},
        {"transforms": "drop,mark,bare", "transforms.bare.type": "DropHeaders", "transforms.bare.headers": "mirrored"},
        {"transforms": "drop,mark,own", "transforms.own.type": "com.example.Anything"},
        {"transforms": "own,drop,mark", "transforms.own.type": "com.example.Filter"},
    ],
)  # fmt: skip
def test_marks_that_are_not_on_every_copy_stop_no_circle(change: dict[str, str]) -> None:
    changed = same("t", **SINK, **(MARKS | change))
    assert len(same_name_cycles(flows(AB=changed, BA=changed))) == 1


# ---- circles that a file or a change would make


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
        written: dict[FlowName, Sequence[Mapping[str, str]]] = {}
        for name, topic in topics.items():
            store = a_store(topic)
            store.guarded_by(CircleGuard(name, lambda: self.nodes, {}, being_written=written))
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


@pytest.mark.parametrize("connector", [NAME, "Mine"])
async def test_a_put_of_connect_that_closes_a_circle_writes_nothing(connector: str) -> None:
    topics = a_flow_each()
    worker = await Worker(topics).start()
    await worker.put(AB, "loop")
    with pytest.raises(BadRequestError, match="in a circle: A->B, B->A"):
        await worker.put(BA, "loop", connector)
    assert topics[BA].records == []
    await worker.put(BA, "other", connector)


async def test_of_two_changes_at_once_on_one_worker_the_second_sees_the_first() -> None:
    topics = a_flow_each()
    worker = await Worker(topics).start()
    outcomes = await asyncio.gather(
        worker.put(AB, "loop"), worker.put(BA, "loop"), return_exceptions=True
    )
    assert (outcomes[0], type(outcomes[1])) == (None, BadRequestError)
    assert (worker.topics(AB), topics[BA].records) == ("loop", [])
    await worker.put(AB, "other")
    await worker.put(BA, "loop")


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
async def test_leaders_of_two_flows_never_keep_the_two_halves_of_a_circle(behind: int) -> None:
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


async def test_a_change_that_is_taken_back_is_never_acted_on() -> None:
    topics = a_flow_each()
    worker, other = await Worker(topics).start(), await Worker(topics).start()
    acted_on: list[str] = []
    store = worker.nodes[AB].overrides
    store.listen(lambda: acted_on.append(worker.topics(AB)))
    results = await asyncio.gather(
        worker.put(AB, "loop"), other.put(BA, "loop"), return_exceptions=True
    )
    assert isinstance(results[0], BadRequestError)
    assert [line.action for line in store.state.history()] == ["undo", "create"]
    assert acted_on == ["none"]


def a_sink(source: str, target: str, topics: str = "t", **more: str) -> dict[str, str | None]:
    return {
        **SINK, "source.cluster.alias": source, "target.cluster.alias": target,
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
    # What is behind a placeholder counts.
    named = a_sink("B", "A", PLACEHOLDER)
    behind = {"there": a_sink("A", "B", "bills"), "back": named}
    with pytest.raises(BadRequestError, match="A->B, B->A"):
        check_connectors({}, behind, FakeHerder().resolved)
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


async def test_a_dry_run_refuses_the_same_circle() -> None:
    worker = await Worker(a_flow_each()).start()
    await worker.put(AB, "loop")

    def edit(now: FlowPicture) -> FlowPicture:
        return now.with_config(NAME, texts(topics="loop", **SAME), FILE)

    with pytest.raises(BadRequestError, match="in a circle"):
        worker.nodes[BA].overrides.preview(edit)


# ---- herders of flows that come and go


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
        self.runner = Runner
        self.elsewhere: HerderError | None = None
        self.failed: Mm2pyError | None = None
        self.added: Collection[FlowName] = ()
        parts = FleetParts(
            pairs=[AB, BA, AC], by_file=[AB], build=self._build, file=lambda _: FILE, added=self._asked
        )  # fmt: skip
        self.fleet = FlowFleet(parts, clock=self.clock)

    async def _asked(self, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        return [pair for pair in pairs if pair in self.added]

    def _build(self, name: FlowName) -> tuple[Herder, FlowOverridesStore, AskPeer]:
        topic = self.topics.setdefault(name, MemoryTopic("mm2py-flows"))
        store = FlowOverridesStore(MemoryTable(topic), FILE, clock=self.clock, by_file=name == AB)
        runner = self.runner(flow=name, elsewhere=self.elsewhere, failed=self.failed, store=store)
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


async def test_a_flow_that_was_deleted_stops_when_its_connectors_are_gone(stage: Stage) -> None:
    node = await stage.fleet.open(BA)
    runner = stage.runners[-1]
    await stage.looks(1)
    await node.overrides.edit("create", "x", created(FILE, {}), actor="anna")
    assert runner.connectors() == (NAME,)
    await stage.looks(70)
    assert BA in stage.fleet.nodes
    # Its leader died between the two: the next one completes it.
    await node.overrides.edit("delete", "x", deleted(FILE), actor="anna")
    assert node.overrides.state.presence is Presence.DELETED
    await stage.looks(4)
    assert runner.connectors() == ()
    assert BA not in stage.fleet.nodes
    assert (AB in stage.fleet.nodes, runner.stopped.is_set()) == (True, True)
    again = await stage.fleet.open(BA)
    assert again.herder is not runner


class Recreated(Runner):
    """Somebody creates the flow again before its connectors are gone."""

    async def delete(
        self, name: str, *, actor: str, only_if: Callable[[], bool] = lambda: True
    ) -> None:
        assert self.store is not None
        await self.store.edit("create", "x", created(FILE, {}), actor="anna")
        await super().delete(name, actor=actor, only_if=only_if)


async def test_what_is_left_of_a_deletion_takes_nothing_of_a_flow_made_again(stage: Stage) -> None:
    stage.runner = Recreated
    node = await stage.fleet.open(BA)
    await node.overrides.edit("create", "x", created(FILE, {}), actor="anna")
    await stage.looks(70)
    await node.overrides.edit("delete", "x", deleted(FILE), actor="anna")
    await stage.looks(4)
    assert node.overrides.state.presence is Presence.ADDED
    assert node.herder.connectors() == (NAME,)


async def test_a_state_is_shown_since_it_began_or_was_first_looked_at(stage: Stage) -> None:
    def age_s(state: str) -> int:
        return (stage.clock.now_ms() - stage.fleet.since(AB, state).at_ms) // 1000

    await stage.looks(20)
    assert age_s("DISABLED") >= 20, "that of its work"
    assert age_s("DEGRADED") == 0
    await stage.looks(5)
    assert age_s("DEGRADED") == 5
    assert age_s("DISABLED") == 0, "it was something else meanwhile"


async def test_samples_are_those_of_the_last_hour_and_end_with_their_flow(stage: Stage) -> None:
    await stage.looks(SAMPLES * SAMPLE_LOOKS + 100)
    assert len(stage.fleet.samples(AB)) == SAMPLES
    assert stage.fleet.samples(BA) == ()


async def test_a_flow_of_the_file_stays_known_when_it_is_deleted_and_the_log_says_why_it_rests(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    node = stage.fleet.nodes[AB]
    await node.overrides.edit("delete", "x", deleted(FILE), actor="anna")
    await stage.looks(5)
    assert (stage.runners[0].connectors(), AB in stage.fleet.nodes) == ((), True)
    assert caplog.text.count("was deleted over REST and does nothing") == 1


async def test_changes_of_a_connector_that_the_file_has_no_more_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    topic = stage.topics[AB]
    former = FlowOverridesStore(
        MemoryTable(topic), {"MirrorSinkConnector": FILE[NAME]}, clock=stage.clock
    )
    await former.start()
    changed = patched({"MirrorSinkConnector": {"topics": "orders"}}, {})
    await former.edit("change", "x", changed, actor="anna")
    stage.fleet.start()
    await stage.looks(4)
    assert caplog.text.count("properties=MirrorSinkConnector.topics") == 1
    assert await stage.fleet.stop(1)


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


async def test_opening_a_flow_that_cannot_be_run_is_the_callers_error(stage: Stage) -> None:
    stage.elsewhere, stage.failed = ForwardError(None), ConfigError("A and B are one cluster")
    with pytest.raises(ConfigError, match="one cluster"):
        await stage.fleet.open(BA)


@pytest.mark.parametrize("failed", [None, RetriableError("no such user; grant it")])
async def test_opening_ends_if_a_cluster_is_away(stage: Stage, failed: Mm2pyError | None) -> None:
    stage.elsewhere, stage.failed = ForwardError(None), failed
    opening = asyncio.ensure_future(stage.fleet.open(BA))
    await stage.looks(50)
    with pytest.raises(RetriableError, match=r"cannot be run now.*try again") as caught:
        await opening
    assert failed is None or str(failed) in caught.value.message
    stage.elsewhere, stage.failed = None, None
    await stage.looks(30)
    assert (await stage.fleet.open(BA)).herder is stage.runners[-1]
