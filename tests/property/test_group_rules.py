"""Rules of the group on generated histories: the assignor, and when a member may rejoin."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.client.group.rejoin_rule import why_not_empty, why_not_the_same
from mm2py.runtime.group.assignor import (
    FRESH,
    NO_WORK,
    AssignorState,
    MemberView,
    RoundPlan,
    assign,
)
from mm2py.types import TaskId, Work
from tests.property.effort import examples

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
