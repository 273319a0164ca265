"""Assignment of work to members: Connect's incremental cooperative protocol (KIP-415), and the
eager one.

Flow: last ``AssignorState``, members with what they own, configured work -> ``assign`` ->
``RoundPlan`` with the next state. Pure: the leader of a group calls it in each round and keeps the
state only when that completed. Tasks as Java spreads them (``IncrementalCooperativeAssignor``,
``EagerAssignor``). Connectors all run on the leader: it alone writes task configs, so no worker
needs another one over HTTP to copy.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, cycle
from typing import Final, TypeVar

from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import TaskId, Work

T = TypeVar("T", str, TaskId)

_REVOCATION_FACTOR: Final = 40
"""Rounds that revoke for balance, one after the other, are 1 ms, 40 ms, 1.6 s ... apart."""

_MAX_EXPONENT: Final = 16


NO_WORK: Final = Work()


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member's metadata in JoinGroup."""

    url: str
    config_offset: int
    owned: Work


@dataclass(frozen=True, slots=True)
class AssignorState:
    """What a leader remembers from one round to the next.

    ``previous`` is all tasks that had or wait for an owner after round ``previous_generation``.
    ``candidates`` were seen without work while the delay ran. ``revocations`` counts the rounds in
    a row that revoked for balance.
    """

    previous: Work = NO_WORK
    previous_generation: int = -1
    delay_ends_ms: int | None = None
    candidates: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    revocations: int = 0
    next_revocation_ms: int = 0


FRESH: Final = AssignorState()
"""State of a worker that did not lead the previous round."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The plan of one round: ``assigned`` is new work; ``owners`` all work after it, by member."""

    assigned: Mapping[str, Work]
    revoked: Mapping[str, Work]
    delay_ms: int
    owners: Mapping[str, Work]
    state: AssignorState


def assign(
    state: AssignorState,
    members: Mapping[str, MemberView],
    configured: Work,
    *,
    leader: str,
    generation: int,
    now_ms: int,
    max_delay_ms: int,
) -> RoundPlan:
    """Plan one round of the incremental protocols.

    ``state`` is the last completed plan's; it counts only where that was the round before
    ``generation``. ``now_ms`` is of any clock that never goes back. ``leader`` gets every
    connector, without a delay; one that another member runs is revoked there first.
    """
    # As Java, which compares with ``lastCompletedGenerationId``: without the previous view nothing
    # counts as lost, only as created.
    if state.previous_generation != generation - 1:
        # Another worker led a round meanwhile, or our last plan was not completed.
        state = replace(state, previous=NO_WORK, members=frozenset(members))
    active = _union(view.owned for view in members.values())
    # Java's deleted and duplicated assignments. A duplicate is revoked from all of its owners and
    # assigned in the round that follows.
    unwanted = (active - configured) | _shared(view.owned for view in members.values())
    # Unlike Java, which spreads connectors too: a new leader takes them over from the former one.
    for who, view in members.items():
        if who != leader:
            unwanted |= Work(connectors=view.owned.connectors)
    revoked = {who: view.owned & unwanted for who, view in members.items()}
    # What a member keeps runs on through the round: that is the point of KIP-415.
    kept = {who: view.owned - unwanted for who, view in members.items()}

    tasks = Work(tasks=configured.tasks)
    # What is revoked now is active, neither created nor lost: the next round assigns it.
    created = tasks - state.previous - active
    lost = (state.previous & tasks) - active
    returned, waiting, state = _lost_work(
        state, lost, kept, now_ms=now_ms, max_delay_ms=max_delay_ms
    )

    delay_ms = 0 if state.delay_ends_ms is None else state.delay_ends_ms - now_ms
    # No balancing while lost work waits: its owner may be back soon (rolling restart).
    if state.delay_ends_ms is None:
        surplus = _surplus(kept, len(configured.tasks))
        delay_ms, state = _revocation_round(
            state, surplus=any(surplus.values()), now_ms=now_ms, max_delay_ms=max_delay_ms
        )
        if not delay_ms:
            revoked = {who: revoked[who] | surplus[who] for who in members}
            kept = {who: kept[who] - surplus[who] for who in members}

    owners = {who: kept[who] | returned[who] for who in members}
    # A connector that another member still runs is given in the next round, after its revocation.
    owners[leader] |= Work(connectors=configured.connectors - active.connectors)
    owners = _fill(owners, (created | lost) - waiting - _union(returned.values()))
    assigned = {who: owners[who] - kept[who] for who in members}
    state = replace(
        state,
        # Waiting work counts as assigned, or the next round would assign it as created.
        previous=Work(tasks=_union(owners.values()).tasks) | waiting,
        previous_generation=generation,
        members=frozenset(members),
    )
    return RoundPlan(assigned, revoked, delay_ms, owners, state)


def assign_eager(members: Collection[str], configured: Work, *, leader: str) -> Mapping[str, Work]:
    """Deal all tasks round robin over sorted members; the leader gets the connectors."""
    dealt = _dealt(members, configured)
    dealt[leader] |= Work(connectors=configured.connectors)
    return dealt


def configured_work(snapshot: ConfigSnapshot, runnable: Callable[[str], bool]) -> Work:
    """Return all connectors whose class (``connector.class``) is ``runnable``, and their tasks."""
    connectors = frozenset(
        name
        for name, config in snapshot.connectors.items()
        if runnable(config.get("connector.class") or "")
    )
    tasks = chain.from_iterable(snapshot.tasks(name) for name in connectors)
    return Work(connectors, frozenset(tasks))


def _lost_work(
    state: AssignorState, lost: Work, kept: Mapping[str, Work], *, now_ms: int, max_delay_ms: int
) -> tuple[Mapping[str, Work], Work, AssignorState]:
    """Decide on work whose owner is gone: what candidates get, what keeps waiting, and the next
    state.

    As in Java a departed worker's tasks wait for ``scheduled.rebalance.max.delay.ms``, so that a
    rolling restart moves nothing.
    """
    nothing = dict.fromkeys(kept, NO_WORK)
    calm = replace(state, delay_ends_ms=None, candidates=frozenset())
    if not lost:
        return nothing, NO_WORK, calm
    # All are there: SyncGroup did not reach a member. As in Java the tasks are reassigned.
    if state.delay_ends_ms is None and (max_delay_ms <= 0 or state.members <= kept.keys()):
        return nothing, NO_WORK, calm
    # Java's ``candidateWorkersForReassignment``: a member without work was probably restarted.
    empty = frozenset(who for who, owned in kept.items() if not owned.tasks)
    if state.delay_ends_ms is not None and now_ms >= state.delay_ends_ms:
        # Members that came back in time get the lost work; without any, all do.
        present = sorted(state.candidates & kept.keys())
        return {**nothing, **_dealt(present, lost)}, NO_WORK, calm
    # The first departure begins the delay; later ones do not prolong it.
    ends_ms = state.delay_ends_ms
    if ends_ms is None:
        ends_ms = now_ms + max_delay_ms
    state = replace(state, delay_ends_ms=ends_ms, candidates=state.candidates | empty)
    return nothing, lost, state


def _revocation_round(
    state: AssignorState, *, surplus: bool, now_ms: int, max_delay_ms: int
) -> tuple[int, AssignorState]:
    """Return how long revocation for balance waits (0: revoke now), so that a changing group does
    not flap (KIP-415, KAFKA-12495)."""
    if not surplus:
        return 0, replace(state, revocations=0, next_revocation_ms=0)
    # KAFKA-12495: a group that keeps changing would revoke in each round; the exponential pause is
    # Java's ``ExponentialBackoff(1, 40, max, 0)``.
    if state.revocations and now_ms < state.next_revocation_ms:
        return state.next_revocation_ms - now_ms, state
    pause_ms = min(max_delay_ms, _REVOCATION_FACTOR ** min(state.revocations, _MAX_EXPONENT))
    return 0, replace(
        state, revocations=state.revocations + 1, next_revocation_ms=now_ms + pause_ms
    )


def _surplus(kept: Mapping[str, Work], total: int) -> dict[str, Work]:
    """Return the tasks that each member has above its even share."""
    floor, remainder = divmod(total, len(kept))
    above: dict[str, Work] = {}
    # The longest lists may keep the one more.
    for who, owned in sorted(kept.items(), key=lambda item: (-len(item[1].tasks), item[0])):
        share = floor
        if remainder and len(owned.tasks) > floor:
            share, remainder = floor + 1, remainder - 1
        # Tasks are revoked from the end of the order: which ones are the same in each round.
        above[who] = Work(tasks=frozenset(sorted(owned.tasks)[share:]))
    return above


def _fill(owners: Mapping[str, Work], unowned: Work) -> dict[str, Work]:
    """Give each task to the member with the fewest, then with the least work of all."""
    filled = dict(owners)
    for task in sorted(unowned.tasks):
        # The member id decides last, so that the plan depends on nothing but its input.
        who = min(filled, key=lambda m: (len(filled[m].tasks), len(filled[m]), m))
        filled[who] |= Work(tasks=frozenset({task}))
    return filled


def _dealt(members: Collection[str], work: Work) -> dict[str, Work]:
    dealt = dict.fromkeys(sorted(members), NO_WORK)
    for who, task in zip(cycle(tuple(dealt)), sorted(work.tasks), strict=False) if dealt else ():
        dealt[who] |= Work(tasks=frozenset({task}))
    return dealt


def _union(works: Iterable[Work]) -> Work:
    total = NO_WORK
    for work in works:
        total |= work
    return total


def _shared(works: Iterable[Work]) -> Work:
    """Return work with several owners, such as a member that came back after it was replaced."""
    parts = tuple(works)
    return Work(
        _repeated(part.connectors for part in parts), _repeated(part.tasks for part in parts)
    )


def _repeated(groups: Iterable[frozenset[T]]) -> frozenset[T]:
    counts = Counter(chain.from_iterable(groups))
    return frozenset(item for item, count in counts.items() if count > 1)
