"""The control plane on random courses: the invariants of the model, changes of a herder, and the rules of its group."""

import asyncio
import random
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.client.group.rejoin_rule import why_not_empty, why_not_the_same
from mm2py.errors import Mm2pyError
from mm2py.runtime.group.assignor import (
    FRESH,
    NO_WORK,
    AssignorState,
    MemberView,
    RoundPlan,
    assign,
)
from mm2py.testing.waiting import until
from mm2py.types import TargetState, TaskId, Work
from tests.kit.fakes.group_coordinator import MemoryGroup
from tests.property.control_plane_model import FilePlay, Play
from tests.property.effort import examples
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node, Stage


@pytest.mark.timeout(600)
@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32))
def test_the_invariants_of_the_control_plane_hold_in_every_play(seed: int) -> None:
    Play(seed).run()


@pytest.mark.timeout(600)
@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_no_task_starts_with_what_a_former_file_said_in_any_play(seed: int) -> None:
    FilePlay(seed).run()


NAMES = ("a", "b", "c")
TURNS = 200
OPERATIONS = ("put", "put", "put", "pause", "resume", "stop", "delete", "join", "leave", "lose")


@dataclass
class Model:
    """What the last successful operations asked for."""

    work: dict[str, str] = field(default_factory=dict[str, str])
    target: dict[str, TargetState] = field(default_factory=dict[str, TargetState])

    def tasks(self) -> dict[TaskId, str]:
        return {
            TaskId(name, number): word
            for name, words in self.work.items()
            if self.target[name] is TargetState.STARTED
            for number, word in enumerate(words.split())
        }


class HerderPlay:
    """One play of random operations."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.model = Model()
        self.doubled: list[str] = []
        self.born = 0

    async def run(self, steps: int) -> None:
        self.join()
        for _ in range(steps):
            await self.step(self.random.choice(OPERATIONS))
            for _ in range(self.random.choice((0, 1, 3, 10, 50))):
                await asyncio.sleep(0)
        await self.end()

    async def end(self) -> None:
        """Wait until all is as the model says: publications are tried again, delays pass."""
        for _ in range(600):
            if self.settled():
                break
            await self.cluster.clock.advance(0.25)
        assert self.settled(), (self.cluster.running(), self.model)
        assert self.doubled == []
        for node in list(self.cluster.nodes.values()):
            await self.passes(node.stop())

    async def passes(self, work: Coroutine[object, object, None]) -> None:
        """Let time pass until ``work`` is done, where it is not done without."""
        doing = asyncio.ensure_future(work)
        for _ in range(TURNS):
            if doing.done():
                break
            await asyncio.sleep(0)
        while not doing.done():
            await self.cluster.clock.advance(0.25)
        await doing

    def join(self) -> None:
        self.born += 1
        node = self.cluster.node(f"n{self.born}")
        node.host.on_start = lambda task: self.look(node, task)
        node.start()

    def look(self, node: Node, task: TaskId) -> None:
        if not node.permit.valid:
            return
        self.doubled += [
            f"{task} on {node.name} and {other.name}"
            for other in self.cluster.nodes.values()
            if other is not node and other.permit.valid and task in other.host.running
        ]

    async def step(self, operation: str) -> None:
        nodes = list(self.cluster.nodes.values())
        node = self.random.choice(nodes)
        if operation == "join":
            if len(nodes) < 4:
                self.join()
        elif operation == "leave":
            if len(nodes) > 1:
                await self.passes(node.stop())
                del self.cluster.nodes[node.name]
        elif operation == "lose":
            node.membership.lose("expired")
        else:
            await self.change(operation, self.random.choice(NAMES))

    async def change(self, operation: str, name: str) -> None:
        await self.passes(until(lambda: bool(self.leaders())))
        await self.passes(self.ask(self.leaders()[0], operation, name))

    def leaders(self) -> list[Node]:
        nodes = self.cluster.nodes.values()
        return [n for n in nodes if n.parts.membership.is_leader and n.permit.valid]

    async def ask(self, leader: Node, operation: str, name: str) -> None:
        herder, model = leader.herder, self.model
        try:
            if operation == "put":
                words = " ".join(
                    str(self.random.randrange(9)) for _ in range(self.random.randrange(4))
                )
                await herder.put_config(name, CONFIG | {"work": words}, actor="t")
                model.work[name] = words
                model.target.setdefault(name, TargetState.STARTED)
            elif operation == "delete":
                await herder.delete(name, actor="t")
                del model.work[name], model.target[name]
            elif operation == "stop":
                await herder.stop_connector(name, actor="t")
                model.target[name] = TargetState.STOPPED
            elif operation == "pause":
                await herder.pause(name, actor="t")
                model.target[name] = TargetState.PAUSED
            else:
                await herder.resume(name, actor="t")
                model.target[name] = TargetState.STARTED
        except Mm2pyError:
            return  # refused, and nothing was written

    def settled(self) -> bool:
        running = [
            (task, spec.config["p"])
            for node in self.cluster.nodes.values()
            for task, spec in node.host.running.items()
            if not spec.paused
            and node.permit.valid
            and self.model.target.get(task.connector) is TargetState.STARTED
        ]
        leaders = self.leaders()
        if len(leaders) != 1 or sorted(running) != sorted(self.model.tasks().items()):
            return False
        herder = leaders[0].herder
        return set(herder.connectors()) == set(self.model.work) and all(
            self.state_of(leaders[0], name) for name in self.model.work
        )

    def state_of(self, node: Node, name: str) -> bool:
        wanted = {"STARTED": "RUNNING"}.get(self.model.target[name], self.model.target[name].value)
        return node.state(name) == wanted


class GroupPlay(HerderPlay):
    """The same with the real membership: nodes are cut off from the coordinator and come back."""

    def __init__(self, seed: int, group: MemoryGroup, cluster: Cluster) -> None:
        super().__init__(seed)
        self.cluster = cluster
        self.stage = Stage(group, cluster)

    def join(self) -> None:
        self.born += 1
        node = self.stage.node(f"n{self.born}", effective=None)
        node.host.on_start = lambda task: self.look(node, task)

    async def run(self, steps: int) -> None:
        self.join()
        await self.cluster.clock.advance(1)
        for _ in range(steps):
            await self.step(self.random.choice((*OPERATIONS[:-1], "cut", "uncut", "uncut")))
            await self.cluster.clock.advance(self.random.choice((0, 0.25, 1, 3, 8)))
        await self.step("uncut")
        await self.end()

    async def step(self, operation: str) -> None:
        nodes = list(self.cluster.nodes.values())
        if operation == "cut":
            self.stage.links[self.random.choice(nodes).name].cut = True
        elif operation == "uncut":
            for node in nodes:
                self.stage.links[node.name].cut = False
        elif operation in ("join", "leave"):
            await super().step(operation)
        else:
            reachable = [n for n in self.leaders() if not self.stage.links[n.name].cut]
            for leader in reachable[:1]:
                await self.passes(self.ask(leader, operation, self.random.choice(NAMES)))


@settings(max_examples=examples(60, share=0.5))
@given(st.integers(0, 2**32))
@example(399)  # a membership that is lost while the config is read
@example(39_418)
@example(1019)  # both nodes wait a moment before they join again
@example(7028)  # a stop right after a membership was lost
@example(2609)  # a membership that is lost just after its round
def test_random_changes_end_as_the_model_says_and_nothing_runs_twice(seed: int) -> None:
    asyncio.run(HerderPlay(seed).run(steps=14))


@settings(max_examples=examples(40, share=0.5))
@given(st.integers(0, 2**32))
@example(1)  # a connector that starts again on a worker in doubt
def test_nodes_that_are_cut_off_and_come_back_never_share_a_task(seed: int) -> None:
    async def play() -> None:
        cluster = Cluster()
        async with MemoryGroup(cluster.clock).running() as group:
            await GroupPlay(seed, group, cluster).run(steps=14)

    asyncio.run(play())


# ---- rules of the group: the assignor, and when a member may rejoin


MAX_DELAY_MS = 3_000
DELAYS = st.sampled_from([0, MAX_DELAY_MS])
WORK = st.dictionaries(st.sampled_from("abc"), st.integers(0, 6))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 4)),
        st.tuples(st.just("leave"), st.integers(0, 4)),
        st.tuples(st.just("bounce"), st.integers(0, 4)),
        st.tuples(st.just("leader"), st.integers(0, 4)),
        st.tuples(st.just("half"), st.integers(0, 4)),
        st.tuples(st.just("wait"), st.sampled_from([1, 50, 2_000, MAX_DELAY_MS])),
        st.tuples(st.just("config"), WORK),
    ),
    max_size=12,
)


def work_of(counts: Mapping[str, int]) -> Work:
    return Work(
        frozenset(counts),
        frozenset(TaskId(name, n) for name, count in counts.items() for n in range(count)),
    )


@dataclass
class Group:
    """Members that do what the plan says, as workers do."""

    max_delay_ms: int
    configured: Work
    owned: dict[str, Work] = field(default_factory=dict[str, Work])
    state: AssignorState = FRESH
    generation: int = 0
    now_ms: int = 1_000
    born: int = 0
    leader: str = ""

    def plan(self) -> RoundPlan:
        self.generation += 1
        if self.leader not in self.owned:
            self.leader, self.state = next(iter(self.owned)), FRESH
        members = {who: MemberView("u", 0, owned) for who, owned in self.owned.items()}
        return assign(
            self.state,
            members,
            self.configured,
            leader=self.leader,
            generation=self.generation,
            now_ms=self.now_ms,
            max_delay_ms=self.max_delay_ms,
        )

    def round(self) -> RoundPlan:
        plan = self.plan()
        for who, owned in self.owned.items():
            assert not plan.assigned[who] & owned, "only new work is assigned"
            assert not plan.revoked[who] - owned, "only what it has is revoked"
            self.owned[who] = (owned - plan.revoked[who]) | plan.assigned[who]
            assert self.owned[who] == plan.owners[who]
        self.state = plan.state
        self.check()
        return plan

    def check(self) -> None:
        running = [item for owned in self.owned.values() for item in owned.connectors | owned.tasks]
        assert len(running) == len(set(running)), "no work twice"

    def event(self, what: str, value: object) -> None:
        names = sorted(self.owned)
        chosen = names[value % len(names)] if isinstance(value, int) and names else ""
        if what in ("leave", "bounce") and chosen:
            del self.owned[chosen]
        if what in ("join", "bounce"):
            self.born += 1
            self.owned[f"m{self.born}"] = NO_WORK
        if what == "leader" and chosen:
            self.leader, self.state = chosen, FRESH
        if what == "half" and names:
            self.plan()  # a round that nobody heard of
        if what == "wait" and isinstance(value, int):
            self.now_ms += value
        if what == "config" and isinstance(value, dict):
            counts: dict[str, int] = value  # pyright: ignore[reportUnknownVariableType] - of WORK
            self.configured = work_of(counts)

    def settle(self) -> None:
        """Hold rounds as workers do: at once after a revocation, and when a delay is over."""
        for _ in range(30):
            plan = self.round()
            if plan.delay_ms:
                self.now_ms += plan.delay_ms
            elif not any(plan.revoked.values()) and not any(plan.assigned.values()):
                return
        raise AssertionError("the group does not come to rest")


@settings(max_examples=examples(60))
@given(events=EVENTS, max_delay_ms=DELAYS, counts=WORK)
def test_after_any_events_all_work_runs_once_and_is_evenly_shared(
    events: list[tuple[str, object]], max_delay_ms: int, counts: dict[str, int]
) -> None:
    group = Group(max_delay_ms, work_of(counts))
    group.event("join", 0)
    for what, value in events:
        group.event(what, value)
        if group.owned and what != "half":
            group.round()
    if not group.owned:
        group.event("join", 0)
    group.settle()
    everything = NO_WORK
    for owned in group.owned.values():
        everything |= owned
    assert everything == group.configured
    assert group.owned[group.leader].connectors == group.configured.connectors
    shares = [len(owned.tasks) for owned in group.owned.values()]
    assert max(shares) - min(shares) <= 1


@settings(max_examples=examples(60))
@given(counts=WORK, members=st.integers(2, 4))
def test_a_worker_that_bounces_gets_its_own_back(counts: dict[str, int], members: int) -> None:
    group = Group(MAX_DELAY_MS, work_of(counts))
    for _ in range(members):
        group.event("join", 0)
    group.settle()
    leaver = sorted(group.owned.keys() - {group.leader})[-1]
    had = group.owned.pop(leaver)
    before = dict(group.owned)
    group.round()
    group.now_ms += MAX_DELAY_MS // 2
    group.owned["back"] = NO_WORK
    group.round()
    group.now_ms += MAX_DELAY_MS
    group.round()
    for who, owned in before.items():
        assert not owned - group.owned[who], "nobody else loses work"
    if had and all(owned.tasks for owned in before.values()):
        assert group.owned["back"] == had


ME = "me"
AGAIN = "me again"
OTHERS = ("a", "b")


class ClassicGroup:
    """A classic group as Kafka's coordinator keeps it: members, who has joined, completed rounds, what is stored."""

    def __init__(self) -> None:
        self.generation = 5
        self.members = {ME}
        self.joined: set[str] = set()
        self.rebalancing = False
        self.workers: list[str] = []
        """Who else was assigned work since our last assignment."""
        self.answered: int | None = None
        """The generation of the round in which we are after our expiry, until the group is in another."""
        self._stored = (self.generation, set(self.members))

    @property
    def state(self) -> str:
        if self.rebalancing:
            return "PreparingRebalance"
        return "Stable" if self.members else "Empty"

    def join(self, who: str) -> None:
        self.members.add(who)
        self.joined.add(who)
        self.rebalancing, self.answered = True, None

    def remove(self, who: str) -> None:
        """Left or expired: the others need not wait for it any more."""
        if who in self.members:
            self.members.discard(who)
            self.joined.discard(who)
            if not self.rebalancing or self.members <= self.joined:
                self.rebalancing, self.answered = True, None
                if not self.members:
                    self.complete()

    def complete(self) -> None:
        """All have joined, or the rebalance timeout removes those who have not."""
        if not self.rebalancing:
            return
        self.members = set(self.joined)
        self.generation += 1
        self.joined.clear()
        self.rebalancing = False
        if AGAIN in self.members:
            self.answered = self.generation
        elif not self.members:
            self._store()

    def sync(self) -> None:
        """The leader of others' round assigns work; that of ours is not stored yet."""
        if not self.rebalancing and AGAIN not in self.members:
            self.workers += sorted(self.members - {ME})
            self._store()

    def move(self) -> None:
        """The coordinator moves: what it did not store is lost."""
        self.generation, members = self._stored
        self.members, self.joined = set(members), set()
        self.rebalancing, self.answered = False, None

    def play(self, step: tuple[str, str]) -> None:
        what, who = step
        if what == "join":
            self.join(who)
        elif what == "remove":
            self.remove(who)
        elif what == "sync":
            self.sync()
        elif what == "move":
            self.move()
        else:
            self.complete()

    def _store(self) -> None:
        self._stored = (self.generation, set(self.members))


WHAT = st.sampled_from(["join", "remove", "complete", "sync", "move"])
STEPS = st.lists(st.tuples(WHAT, st.sampled_from(OTHERS)), max_size=6)
ATTEMPTS = st.lists(st.tuples(STEPS, STEPS, STEPS), min_size=1, max_size=3)


def rejoin(
    group: ClassicGroup,
    assigned: int,
    before: list[tuple[str, str]],
    while_joining: list[tuple[str, str]],
) -> str:
    """Join once more, as a member does after an expiry; return why its work is not continued."""
    for step in before:
        group.play(step)
    reason = why_not_empty(group.state, len(group.members))
    if reason:
        return reason
    group.join(AGAIN)
    for step in while_joining:
        if AGAIN in group.joined:
            group.play(step)
    if AGAIN in group.joined:
        group.complete()
    # Without an answer its coordinator has moved, and the member joins again.
    return "" if group.answered is None else why_not_the_same(assigned, group.answered)


@settings(max_examples=examples(100))
@given(before=STEPS, attempts=ATTEMPTS)
def test_whoever_goes_on_knows_that_nobody_else_was_given_its_work(
    before: list[tuple[str, str]],
    attempts: list[tuple[list[tuple[str, str]], list[tuple[str, str]], list[tuple[str, str]]]],
) -> None:
    group = ClassicGroup()
    assigned = group.generation
    for step in before:
        group.play(step)
    for after, while_joining, while_syncing in attempts:
        group.remove(ME)
        group.remove(AGAIN)
        if rejoin(group, assigned, after, while_joining):
            return
        for step in while_syncing:
            group.play(step)
        if group.answered is not None:
            assert group.workers == []
            return


def test_counted_from_a_round_without_assignment_another_worker_would_go_unnoticed() -> None:
    group = ClassicGroup()
    assigned = group.generation
    group.remove(ME)
    group.join(AGAIN)
    group.complete()
    forgotten = group.generation
    for step in ("move", "join", "complete", "sync", "remove"):
        group.play((step, "a"))
    assert why_not_empty(group.state, len(group.members)) == ""
    group.join(AGAIN)
    group.complete()
    assert group.workers == ["a"]
    assert group.answered is not None
    assert why_not_the_same(assigned, group.answered) != ""
    assert why_not_the_same(forgotten, group.answered) == "", "why rule 4 is needed"


def test_without_having_seen_the_group_empty_the_rounds_alone_would_deceive() -> None:
    group = ClassicGroup()
    assigned = group.generation
    group.join("a")
    group.remove(ME)
    group.complete()
    group.sync()
    assert why_not_empty(group.state, len(group.members)) != ""
    group.join(AGAIN)
    group.remove("a")
    group.complete()
    assert group.workers == ["a"]
    assert group.answered is not None
    assert why_not_the_same(assigned, group.answered) == "", "why rule 3 is needed"


def test_a_deleted_group_counts_from_nothing_and_is_refused() -> None:
    assert "Dead" in why_not_empty("Dead", 0)
