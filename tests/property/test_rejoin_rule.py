"""The rule by which an expired member goes on, against a coordinator model under every interleaving of others."""

from hypothesis import given
from hypothesis import strategies as st

from mm2py.client.group.rejoin_rule import why_not_empty, why_not_the_same
from mm2py.protocol.groups import JoinedMember, JoinResult

ME = "me"
AGAIN = "me again"
OTHERS = ("a", "b")


class Group:
    """A classic group as Kafka's coordinator keeps it: members, who has joined, completed rounds."""

    def __init__(self) -> None:
        self.generation = 5
        self.members = {ME}
        self.joined: set[str] = set()
        self.rebalancing = False
        self.workers: list[str] = []
        """Who was in a completed round since we were expired or before, and so was given work."""
        self.answer: JoinResult | None = None

    @property
    def state(self) -> str:
        if self.rebalancing:
            return "PreparingRebalance"
        return "Stable" if self.members else "Empty"

    def join(self, who: str) -> None:
        self.members.add(who)
        self.joined.add(who)
        self.rebalancing = True

    def remove(self, who: str) -> None:
        """Left or expired: the others need not wait for it any more."""
        if who in self.members:
            self.members.discard(who)
            self.joined.discard(who)
            if not self.rebalancing or self.members <= self.joined:
                self.rebalancing = True
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
        self.workers += sorted(self.members - {AGAIN})
        if AGAIN in self.members:
            ordered = (AGAIN, *sorted(self.members - {AGAIN}))
            joined = tuple(JoinedMember(who, None, b"") for who in ordered)
            self.answer = JoinResult(
                0, self.generation, "compatible", AGAIN, AGAIN, joined, skip_assignment=False
            )

    def play(self, step: tuple[str, str]) -> None:
        what, who = step
        if what == "join":
            self.join(who)
        elif what == "remove":
            self.remove(who)
        else:
            self.complete()


STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "remove", "complete"]), st.sampled_from(OTHERS)), max_size=6
)


@given(before=STEPS, after=STEPS, while_joining=STEPS)
def test_whoever_goes_on_knows_that_nobody_else_was_given_work(
    before: list[tuple[str, str]],
    after: list[tuple[str, str]],
    while_joining: list[tuple[str, str]],
) -> None:
    group = Group()
    ended = group.generation
    for step in before:
        group.play(step)
    group.remove(ME)
    for step in after:
        group.play(step)
    if why_not_empty(group.state, len(group.members)):
        return
    group.join(AGAIN)
    for step in while_joining:
        if group.answer is None:
            group.play(step)
    group.complete()
    if not why_not_the_same(ended, group.answer, AGAIN):
        assert group.workers == []
        assert group.members == {AGAIN}


def test_a_member_that_was_expired_alone_goes_on() -> None:
    group = Group()
    ended = group.generation
    group.remove(ME)
    assert why_not_empty(group.state, len(group.members)) == ""
    group.join(AGAIN)
    group.complete()
    assert why_not_the_same(ended, group.answer, AGAIN) == ""


def test_without_having_seen_the_group_empty_the_rounds_alone_would_deceive() -> None:
    group = Group()
    ended = group.generation
    group.join("a")
    group.remove(ME)
    group.complete()
    assert why_not_empty(group.state, len(group.members)) != ""
    group.join(AGAIN)
    group.remove("a")
    group.complete()
    assert group.workers == ["a"]
    assert why_not_the_same(ended, group.answer, AGAIN) == "", "why rule 3 is needed"


def test_a_deleted_group_counts_from_nothing_and_is_refused() -> None:
    assert "Dead" in why_not_empty("Dead", 0)
