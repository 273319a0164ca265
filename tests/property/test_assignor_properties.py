"""Whatever members and connectors come and go: no work twice, none lost, tasks shared evenly, connectors on the leader."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=examples(150))
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
def test_a_worker_that_bounces_within_the_delay_gets_its_own_back(
    counts: dict[str, int], members: int
) -> None:
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
