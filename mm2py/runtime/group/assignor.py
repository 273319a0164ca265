"""Who runs what: Connect's incremental cooperative assignment, and the eager one.

Flow: last ``AssignorState``, members with what they own, configured work -> ``assign`` -> ``Plan`` with the
next state. Pure: the leader of a group calls it in each round and keeps the state only when that completed.
Java: ``IncrementalCooperativeAssignor``, ``EagerAssignor`` (kafka-connect-runtime.md 4.3, 4.4).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, cycle
from typing import Final, TypeVar

from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import TaskId, Work

__all__ = [
    "FRESH",
    "NO_WORK",
    "AssignorState",
    "MemberView",
    "Plan",
    "assign",
    "assign_eager",
    "configured_work",
]

T = TypeVar("T", str, TaskId)

_REVOCATION_FACTOR: Final = 40
"""Rounds that revoke for balance, one after the other, are 1 ms, 40 ms, 1.6 s ... apart."""

_MAX_EXPONENT: Final = 16


NO_WORK: Final = Work()


@dataclass(frozen=True, slots=True)
class MemberView:
    """What a member said of itself when it joined."""

    url: str
    config_offset: int
    owned: Work


@dataclass(frozen=True, slots=True)
class AssignorState:
    """What a leader remembers from one round to the next.

    ``previous`` is all work that had or waits for an owner after round ``previous_generation``.
    ``candidates`` were seen without work while the delay ran. ``revocations`` counts the rounds in a
    row that revoked for balance.
    """

    previous: Work = NO_WORK
    previous_generation: int = -1
    delay_ends_ms: int | None = None
    candidates: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    revocations: int = 0
    next_revocation_ms: int = 0


FRESH: Final = AssignorState()
"""Of a leader that was none in the round before."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One round: ``assigned`` is new work only; ``owners`` is who runs what when it is done."""

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
    generation: int,
    now_ms: int,
    max_delay_ms: int,
) -> Plan:
    """Plan one round of the incremental protocols.

    ``state`` is the last completed plan's; it counts only where that was the round before
    ``generation``. ``now_ms`` is of any clock that never goes back.
    """
    if state.previous_generation != generation - 1:
        # Somebody else led a round meanwhile, or ours did not complete.
        state = replace(state, previous=NO_WORK, members=frozenset(members))
    active = _union(view.owned for view in members.values())
    shared = _shared(view.owned for view in members.values())
    unwanted = (active - configured) | shared
    revoked = {who: view.owned & unwanted for who, view in members.items()}
    kept = {who: view.owned - unwanted for who, view in members.items()}

    created = configured - state.previous - active
    lost = (state.previous & configured) - active
    returned, waiting, state = _lost_work(
        state, lost, kept, now_ms=now_ms, max_delay_ms=max_delay_ms
    )

    delay_ms = 0 if state.delay_ends_ms is None else state.delay_ends_ms - now_ms
    if state.delay_ends_ms is None:
        surplus = _surplus(kept, configured)
        delay_ms, state = _revocation_round(
            state, wanted=any(surplus.values()), now_ms=now_ms, max_delay_ms=max_delay_ms
        )
        if not delay_ms:
            revoked = {who: revoked[who] | surplus[who] for who in members}
            kept = {who: kept[who] - surplus[who] for who in members}

    owners = {who: kept[who] | returned[who] for who in members}
    owners = _fill(owners, (created | lost) - waiting - _union(returned.values()))
    assigned = {who: owners[who] - kept[who] for who in members}
    state = replace(
        state,
        previous=_union(owners.values()) | waiting,
        previous_generation=generation,
        members=frozenset(members),
    )
    return Plan(assigned, revoked, delay_ms, owners, state)


def assign_eager(members: Collection[str], configured: Work) -> Mapping[str, Work]:
    """Deal all work round robin over sorted members: connectors, then on with the tasks."""
    dealt = dict.fromkeys(sorted(members), NO_WORK)
    work = chain(_single(sorted(configured.connectors)), _single(sorted(configured.tasks)))
    for who, item in zip(cycle(tuple(dealt)), work, strict=False) if dealt else ():
        dealt[who] |= item
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
    state: AssignorState,
    lost: Work,
    kept: Mapping[str, Work],
    *,
    now_ms: int,
    max_delay_ms: int,
) -> tuple[Mapping[str, Work], Work, AssignorState]:
    """Decide on work whose owner is gone: what candidates get, what waits on, and the state after it."""
    nothing = dict.fromkeys(kept, NO_WORK)
    calm = replace(state, delay_ends_ms=None, candidates=frozenset())
    if not lost:
        return nothing, NO_WORK, calm
    if state.delay_ends_ms is None and (max_delay_ms <= 0 or state.members <= kept.keys()):
        return nothing, NO_WORK, calm
    empty = frozenset(who for who, owned in kept.items() if not owned)
    if state.delay_ends_ms is not None and now_ms >= state.delay_ends_ms:
        # Who came back within the delay finds its work again; nobody did: everybody takes a share.
        present = sorted(state.candidates & kept.keys())
        return {**nothing, **assign_eager(present, lost)}, NO_WORK, calm
    ends_ms = state.delay_ends_ms
    if ends_ms is None:
        ends_ms = now_ms + max_delay_ms
    state = replace(state, delay_ends_ms=ends_ms, candidates=state.candidates | empty)
    return nothing, lost, state


def _revocation_round(
    state: AssignorState, *, wanted: bool, now_ms: int, max_delay_ms: int
) -> tuple[int, AssignorState]:
    """Return for how long balance waits (0: revoke now), so that a changing group does not flap."""
    if not wanted:
        return 0, replace(state, revocations=0, next_revocation_ms=0)
    if state.revocations and now_ms < state.next_revocation_ms:
        return state.next_revocation_ms - now_ms, state
    pause_ms = min(max_delay_ms, _REVOCATION_FACTOR ** min(state.revocations, _MAX_EXPONENT))
    return 0, replace(
        state, revocations=state.revocations + 1, next_revocation_ms=now_ms + pause_ms
    )


def _surplus(kept: Mapping[str, Work], configured: Work) -> dict[str, Work]:
    """Return what each member has above its even share, connectors and tasks on their own."""
    connectors = _above({who: w.connectors for who, w in kept.items()}, len(configured.connectors))
    tasks = _above({who: w.tasks for who, w in kept.items()}, len(configured.tasks))
    return {who: Work(connectors[who], tasks[who]) for who in kept}


def _above(kept: Mapping[str, frozenset[T]], total: int) -> dict[str, frozenset[T]]:
    floor, remainder = divmod(total, len(kept)) if kept else (0, 0)
    above: dict[str, frozenset[T]] = {}
    # The longest lists may keep the one more.
    for who, items in sorted(kept.items(), key=lambda item: (-len(item[1]), item[0])):
        share = floor
        if remainder and len(items) > floor:
            share, remainder = floor + 1, remainder - 1
        above[who] = frozenset(sorted(items)[share:])
    return above


def _fill(owners: Mapping[str, Work], unowned: Work) -> dict[str, Work]:
    """Give each piece to the member with the fewest of its kind, then the fewest of all."""
    filled = dict(owners)
    if not filled:
        return filled
    for name in sorted(unowned.connectors):
        who = min(filled, key=lambda m: (len(filled[m].connectors), len(filled[m]), m))
        filled[who] |= Work(connectors=frozenset({name}))
    for task in sorted(unowned.tasks):
        who = min(filled, key=lambda m: (len(filled[m].tasks), len(filled[m]), m))
        filled[who] |= Work(tasks=frozenset({task}))
    return filled


def _union(works: Iterable[Work]) -> Work:
    total = NO_WORK
    for work in works:
        total |= work
    return total


def _shared(works: Iterable[Work]) -> Work:
    """Return what more than one member says it owns."""
    parts = tuple(works)
    return Work(
        _repeated(part.connectors for part in parts), _repeated(part.tasks for part in parts)
    )


def _repeated(groups: Iterable[frozenset[T]]) -> frozenset[T]:
    counts = Counter(chain.from_iterable(groups))
    return frozenset(item for item, count in counts.items() if count > 1)


def _single(items: Iterable[str | TaskId]) -> Iterable[Work]:
    for item in items:
        if isinstance(item, TaskId):
            yield Work(tasks=frozenset({item}))
        else:
            yield Work(connectors=frozenset({item}))
