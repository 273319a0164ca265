"""A classic group in memory, as Kafka's coordinator keeps it: generations, votes, leader, sessions, what is stored of it.

``MemoryGroup`` is the group; ``MemoryCoordinator`` is one member's connection to it, which can be cut.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from mm2py.errors import ConnectionFailedError
from mm2py.protocol.error_codes import (
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from mm2py.protocol.groups import (
    DescribedGroup,
    DescribedMember,
    GroupProtocol,
    JoinedMember,
    JoinResult,
    SyncResult,
)
from mm2py.testing.clock import FakeClock

INCONSISTENT_GROUP_PROTOCOL: Final = 23
TICK_S: Final = 0.25


@dataclass
class _Member:
    client: str
    offers: Sequence[GroupProtocol] = ()
    session_s: float = 6.0
    rebalance_s: float = 60.0
    heard_s: float = 0.0
    joins: "asyncio.Future[JoinResult] | None" = None
    syncs: "asyncio.Future[SyncResult] | None" = None
    assignment: bytes = b""


@dataclass
class MemoryGroup:
    """The group; ``state`` as DescribeGroups names it."""

    clock: FakeClock
    state: str = "Empty"
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: dict[str, _Member] = field(default_factory=dict[str, _Member])
    pending: dict[str, str] = field(default_factory=dict[str, str])
    born: int = 0
    since_s: float = 0.0
    gather_s: float = 0.0
    """How long an empty group waits for more members (``group.initial.rebalance.delay.ms``)."""
    first: bool = True
    stored: "MemoryGroup | None" = None
    """The group as ``__consumer_offsets`` has it: of its last round with assignments, or empty."""

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["MemoryGroup", None]:
        """Let time pass for the group while the block runs."""
        ticker = asyncio.create_task(self._tick())
        try:
            yield self
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await self.clock.sleep(TICK_S)
            self.expire()

    def expire(self) -> None:
        """Drop who was silent for a session, or did not join within the rebalance timeout."""
        now = self.clock.monotonic()
        for who, member in list(self.members.items()):
            silent = member.joins is None and now - member.heard_s > member.session_s
            late = (
                self.state == "PreparingRebalance"
                and member.joins is None
                and now - self.since_s > member.rebalance_s
            )
            if silent or late:
                self.remove(who)
        self.complete()

    def remove(self, who: str) -> None:
        """Take a member out."""
        member = self.members.pop(who, None)
        if member is None:
            return
        for waiter in (member.joins, member.syncs):
            if waiter is not None and not waiter.done():
                waiter.cancel()
        self.rebalance()

    def rebalance(self) -> None:
        """Begin a round."""
        if self.state == "PreparingRebalance":
            return
        self.first = self.state == "Empty"
        self.state, self.since_s = "PreparingRebalance", self.clock.monotonic()
        for member in self.members.values():
            if member.syncs is not None and not member.syncs.done():
                member.syncs.set_result(SyncResult(REBALANCE_IN_PROGRESS, b""))

    def complete(self) -> None:
        """End the round in which everybody has joined."""
        if self.state != "PreparingRebalance":
            return
        if any(member.joins is None for member in self.members.values()):
            return
        if self.members and self.first and self.clock.monotonic() - self.since_s < self.gather_s:
            return
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = "Empty", "", ""
            self.store()
            return
        self.state, self.protocol = "CompletingRebalance", self._vote()
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for who, member in self.members.items():
            member.heard_s = self.clock.monotonic()
            waiter, member.joins, member.assignment = member.joins, None, b""
            if waiter is not None and not waiter.done():
                waiter.set_result(self.answer(who))

    def store(self) -> None:
        """Write the group, as after a SyncGroup of the leader and when the last member has left."""
        members = {who: replace(member) for who, member in self.members.items()}
        self.stored = replace(self, members=members, stored=None)

    def reload(self) -> None:
        """Lose what is not stored, as a coordinator that moves or is elected again."""
        waiters = [w for m in self.members.values() for w in (m.joins, m.syncs)]
        for waiter in waiters:
            if waiter is not None and not waiter.done():
                waiter.set_exception(ConnectionFailedError("the coordinator moved"))
        stored = self.stored or MemoryGroup(self.clock)
        self.state, self.generation = stored.state, stored.generation
        self.protocol, self.leader = stored.protocol, stored.leader
        now = self.clock.monotonic()
        self.members = {
            who: replace(member, heard_s=now, joins=None, syncs=None)
            for who, member in stored.members.items()
        }
        self.pending.clear()

    def common(self) -> set[str]:
        """Return the protocols that every member offers."""
        names = [{offer.name for offer in m.offers} for m in self.members.values()]
        return set[str].intersection(*names) if names else set()

    def _vote(self) -> str:
        common = self.common()
        votes = Counter(
            next(o.name for o in m.offers if o.name in common) for m in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def answer(self, who: str) -> JoinResult:
        """Answer the join of one member."""
        listed = (
            tuple(
                JoinedMember(name, next(o.metadata for o in m.offers if o.name == self.protocol))
                for name, m in self.members.items()
            )
            if who == self.leader
            else ()
        )
        return JoinResult(NONE, self.generation, self.protocol, self.leader, who, listed)


class MemoryCoordinator:
    """One client's way to the group; ``cut`` loses every request, ``calls`` says what was asked."""

    def __init__(self, group: MemoryGroup, client: str) -> None:
        self.group, self.client = group, client
        self.cut = False
        self.calls: list[str] = []
        self.beat_answer: int | Exception | None = None
        self.beat_gate = asyncio.Event()
        """Heartbeats are answered only while it is set."""
        self.beat_gate.set()

    @property
    def group_id(self) -> str:
        """Name of the group."""
        return "g"

    def _reach(self, call: str) -> None:
        self.calls.append(call)
        if self.cut:
            raise ConnectionFailedError(f"{self.client} is cut off")

    async def join(
        self,
        member_id: str,
        offers: Sequence[GroupProtocol],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> JoinResult:
        """Join; the answer comes when the round is complete."""
        self._reach("join")
        group = self.group
        if not member_id:
            group.born += 1
            member_id = f"{self.client}-{group.born}"
            group.pending[member_id] = self.client
            return _refused(MEMBER_ID_REQUIRED, member_id)
        if member_id not in group.members and member_id not in group.pending:
            return _refused(UNKNOWN_MEMBER_ID)
        others = [m for who, m in group.members.items() if who != member_id]
        names = {offer.name for offer in offers}
        if any(not names & {offer.name for offer in m.offers} for m in others):
            return _refused(INCONSISTENT_GROUP_PROTOCOL)
        known = group.members.get(member_id)
        unchanged = known is not None and known.offers == offers
        if unchanged and group.state == "Stable" and member_id != group.leader:
            return group.answer(member_id)  # as Kafka: nothing new, so no new round
        group.pending.pop(member_id, None)
        member = group.members.setdefault(member_id, _Member(self.client))
        member.offers = offers
        member.session_s, member.rebalance_s = (
            session_timeout_ms / 1000,
            rebalance_timeout_ms / 1000,
        )
        member.heard_s = group.clock.monotonic()
        waiter: asyncio.Future[JoinResult] = asyncio.get_running_loop().create_future()
        member.joins = waiter
        group.rebalance()
        group.complete()
        try:
            result = await waiter
        except asyncio.CancelledError:
            if member.joins is waiter:
                member.joins = None
            raise
        self._reach("joined")
        return result

    async def sync(
        self, member_id: str, generation: int, protocol: str, assignments: Mapping[str, bytes]
    ) -> SyncResult:
        """Return this member's part of the leader's plan."""
        self._reach("sync")
        group = self.group
        code = self._code(member_id, generation)
        if code:
            return SyncResult(code, b"")
        assert protocol == group.protocol
        member = group.members[member_id]
        member.heard_s = group.clock.monotonic()
        if group.state == "Stable":
            return SyncResult(NONE, member.assignment)
        if member_id != group.leader:
            waiter: asyncio.Future[SyncResult] = asyncio.get_running_loop().create_future()
            member.syncs = waiter
            return await waiter
        group.state = "Stable"
        for who, other in group.members.items():
            other.assignment = assignments.get(who, b"")
            if other.syncs is not None and not other.syncs.done():
                other.syncs.set_result(SyncResult(NONE, other.assignment))
        group.store()
        return SyncResult(NONE, member.assignment)

    async def heartbeat(self, member_id: str, generation: int, timeout_ms: int) -> int:
        """Return an error code."""
        self._reach("heartbeat")
        await self.beat_gate.wait()
        if isinstance(self.beat_answer, Exception):
            raise self.beat_answer
        if self.beat_answer is not None:
            return self.beat_answer
        code = self._code(member_id, generation)
        if code in (NONE, REBALANCE_IN_PROGRESS):
            self.group.members[member_id].heard_s = self.group.clock.monotonic()
        return code

    async def leave(self, member_id: str, timeout_s: float) -> None:
        """Leave the group."""
        self.calls.append("leave")
        if not self.cut:
            self.group.remove(member_id)
            self.group.complete()

    async def describe(self) -> DescribedGroup:
        """Return the state as an admin client sees it."""
        self._reach("describe")
        group = self.group
        name = group.protocol if group.state == "Stable" else ""
        members = tuple(
            DescribedMember(who, m.client, "/h", b"", b"") for who, m in group.members.items()
        )
        return DescribedGroup("g", NONE, "", group.state, "connect", name, members)

    def _code(self, member_id: str, generation: int) -> int:
        group = self.group
        if member_id not in group.members:
            return UNKNOWN_MEMBER_ID
        if generation != group.generation:
            return ILLEGAL_GENERATION
        return REBALANCE_IN_PROGRESS if group.state == "PreparingRebalance" else NONE


def _refused(code: int, member_id: str = "") -> JoinResult:
    return JoinResult(code, -1, "", "", member_id, ())
