"""A worker's membership with Connect's group protocol (KIP-415, KIP-507), with other mm2py workers
only.

Flow: owned work and config offset -> ``GroupMember`` -> (as leader: ``RoundLeader`` -> ``assign``)
-> ``Round``; then ``signal``. The protocol name that the broker selects reveals a foreign member
(Java's, or an older mm2py). Such a round is not synced: the foreign leader then waits in SyncGroup
until the caller has stopped its work and left, so that no partition is ever copied by both.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, final

from mm2py.client.group.coordinator import InconsistentProtocolError, Joined, MembershipEndedError
from mm2py.client.group.member import GroupMember
from mm2py.client.permit import Permit
from mm2py.clock import Clock
from mm2py.errors import ProtocolError, RetriableError
from mm2py.protocol.connect_group import (
    CONFIG_MISMATCH,
    PROTOCOL_TYPE,
    Assignment,
    WorkerMetadata,
    connector_tasks,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    is_ours,
    offers,
    version_of,
    work_of,
)
from mm2py.protocol.groups import DescribedGroup, GroupProtocol
from mm2py.runtime.errors import ForeignMemberError
from mm2py.runtime.group.assignor import (
    FRESH,
    NO_WORK,
    AssignorState,
    MemberView,
    assign,
    assign_eager,
    configured_work,
)
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin, Round, Unwritten
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import TaskId, Work

log = logging.getLogger(__name__)


_REPORT_S: Final = 10.0
"""How often foreign members are logged while this worker waits for them."""

_FREE: Final = frozenset({"Empty", "Dead"})
_REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance"})
_UNFINISHED: Final = "the last round did not complete"


@final
class ConnectMembership:
    """The ``WorkerMembership`` of real groups; used by one task, properties by any.

    ``url`` is what other workers reach us at. ``runnable`` decides by a connector's class whether
    it is to be assigned at all (the dedicated mode leaves out what it does not have).
    """

    def __init__(
        self,
        member: GroupMember,
        store: ConfigBackingStore,
        *,
        url: str,
        connect_protocol: str,
        max_delay_ms: int,
        clock: Clock,
        runnable: Callable[[str], bool],
    ) -> None:
        self._member = member
        self._url = url
        self._connect_protocol = connect_protocol.strip().lower()
        self._clock = clock
        self._leader = RoundLeader(
            store, url=url, max_delay_ms=max_delay_ms, clock=clock, runnable=runnable
        )
        self._last: Round | None = None
        self._leader_url: str | None = None
        self._unfinished = False
        self._due_at: float | None = None
        self._end: Lost | None = None

    @property
    def solo(self) -> bool:
        return False

    @property
    def generation(self) -> int:
        return -1 if self._last is None else self._last.generation

    @property
    def is_leader(self) -> bool:
        return self._last is not None and self._last.leader

    @property
    def leader_url(self) -> str | None:
        return self._leader_url

    def owner_url(self, work: str | TaskId) -> str | None:
        return self._leader.owner_url(work) if self.is_leader else None

    def member_urls(self) -> tuple[str, ...]:
        return self._leader.member_urls() if self.is_leader else ()

    @property
    def permit(self) -> Permit:
        return self._member.permit

    async def rejoin(self, owned: Work, config_offset: int, unwritten: Unwritten) -> Round:
        # The group may have given this work away already: nothing of it may be offered again.
        if owned and self._member.over:
            raise MembershipLostError(self._lost(self._member.over))
        # Before ``_round``, whose join clears it.
        outside = bool(self._member.over)
        # Nothing is forwarded during a round: the former leader may lead no more.
        self._unfinished, self._leader_url = True, None
        try:
            if outside:
                await self._look_from_outside()
            done = await self._round(owned, config_offset, unwritten)
        except MembershipEndedError as error:
            raise MembershipLostError(self._lost(error.message)) from error
        # INCONSISTENT_GROUP_PROTOCOL: a member of another type (a consumer) has the group.
        except (InconsistentProtocolError, ProtocolError) as error:
            raise ForeignMemberError(
                f"group {self._group_id} has a member that is not an mm2py worker: {error.message}",
                remedy="give every Connect cluster, and every flow, a group.id of its own",
            ) from error
        self._unfinished, self._last, self._leader_url = False, done, done.leader_url
        self._end = None
        # ``scheduled.rebalance.max.delay.ms`` (KIP-415): all members rejoin when it ends, as in
        # Java's ``DistributedHerder``.
        self._due_at = self._clock.monotonic() + done.delay_ms / 1000 if done.delay_ms > 0 else None
        log.info(
            "%s group=%s member=%s generation=%d leader=%s assigned=%d revoked=%d delay_ms=%d",
            "group joined" if outside else "group round done",
            self._group_id,
            done.member_id,
            done.generation,
            done.leader_url,
            len(done.assigned),
            len(done.revoked),
            done.delay_ms,
        )
        return done

    async def signal(self) -> Rejoin | Lost:
        """Wait for the next reason to act; it stays until the ``rejoin`` that answers it."""
        over = self._member.over
        if over:
            return self._lost(over)
        # A cancelled or failed rejoin: the broker may wait for a JoinGroup or SyncGroup.
        if self._unfinished:
            return Rejoin(_UNFINISHED)
        reasons = {asyncio.create_task(self._round_due()): "a worker joined or left the group"}
        if self._due_at is not None:
            delay = asyncio.create_task(self._clock.sleep(self._due_at - self._clock.monotonic()))
            reasons[delay] = "the delay for a departed worker is over"
        try:
            done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The losers too: they would stay in the loop until the membership ends.
            for waiting in reasons:
                waiting.cancel()
        # Once more after the wait: the end of the membership wakes it as well.
        over = self._member.over
        return self._lost(over) if over else Rejoin(next(reasons[task] for task in done))

    async def is_empty(self) -> bool:
        group = await self._member.coordinator.describe()
        return not group.members and group.state in _FREE

    async def is_alone(self) -> bool:
        group = await self._member.coordinator.describe()
        ours = None if self._last is None else self._last.member_id
        return [member.member_id for member in group.members] == [ours]

    async def until_ours(self) -> None:
        await self.leave()
        reported_at = self._clock.monotonic()
        named = False  # a group that is still rebalancing may turn out to be ours
        while True:
            try:
                group = await self._member.coordinator.describe()
            except RetriableError as error:
                log.debug("the group cannot be seen now group=%s cause=%s", self._group_id, error)
            else:
                # The foreign members have left.
                if not group.members and group.state in _FREE:
                    return
                # Workers of ours have formed a group meanwhile: joining it is safe.
                if group.state == "Stable" and not _foreign(group):
                    return
                now = self._clock.monotonic()
                if now >= reported_at + _REPORT_S or (_foreign(group) and not named):
                    reported_at, named = now, True
                    self._report(group)
            await self._clock.sleep(self._member.heartbeat_interval_ms / 1000)

    async def leave(self) -> None:
        # Before the request leaves: from here on nothing may be forwarded to a leader of the past.
        self._gone()
        self._end = None
        await self._member.leave()

    # ---- one round ----

    @property
    def _group_id(self) -> str:
        return self._member.coordinator.group_id

    async def _look_from_outside(self) -> None:
        """Refuse to join a settled group with foreign members; in one that is still rebalancing the
        answer to the join shows them."""
        # A join would stop (eager) or plan again the tasks of Java's workers.
        group = await self._member.coordinator.describe()
        if _foreign(group):
            raise self._foreign_members(group)

    async def _round(self, owned: Work, config_offset: int, unwritten: Unwritten) -> Round:
        # SyncGroup: a newer rebalance has begun (``data`` None); join with the same work.
        while True:
            joined = await self._member.join(self._offers(owned, config_offset))
            # No SyncGroup is sent: the round cannot complete, so that the foreign leader assigns
            # nothing while our work still runs.
            if not is_ours(joined.protocol):
                raise self._foreign_members(await self._described())
            plan: Mapping[str, bytes] = {}
            # Only the leader, whom the coordinator chooses, gets the members' metadata.
            if joined.leads:
                plan = await self._leader.plan(joined, unwritten)
            else:
                # Another worker leads: a plan kept from before would be taken for the last round's,
                # if this one leads again.
                self._leader.forget()
            data = await self._member.sync(joined, plan)
            if data is not None:
                break
        # Only now: members got the plan through SyncGroup. Java clears its view by comparing
        # generations instead (``previousGenerationId``).
        if joined.leads:
            self._leader.completed()
        ours = decode_assignment(data)
        return Round(
            member_id=joined.member_id,
            generation=joined.generation,
            leader=ours.leader == joined.member_id,
            leader_url=ours.leader_url,
            config_offset=ours.config_offset,
            assigned=work_of(ours.assigned),
            revoked=work_of(ours.revoked),
            delay_ms=ours.delay_ms,
            failed=ours.error != 0,
            incremental=ours.version > 0,
            signed=ours.version > 1,
        )

    def _offers(self, owned: Work, config_offset: int) -> tuple[GroupProtocol, ...]:
        allocation = None
        # Version 0 (eager) carries no allocation; ``encode_metadata`` leaves it out there.
        if owned:
            last = self._last
            allocation = Assignment(
                0,  # each offer writes its own
                last.member_id if last is not None else self._member.member_id,
                last.leader_url if last is not None else self._url,
                config_offset,
                connector_tasks(owned),
            )
        return offers(
            self._connect_protocol, WorkerMetadata(0, self._url, config_offset, allocation)
        )

    async def _described(self) -> DescribedGroup | None:
        try:
            return await self._member.coordinator.describe()
        except RetriableError:
            return None  # only the names of the others are missing

    def _foreign_members(self, group: DescribedGroup | None) -> ForeignMemberError:
        return ForeignMemberError(
            f"group {self._group_id} has a member that is not an mm2py worker of this version:"
            f" {'unknown' if group is None else self._named(group)}",
            remedy="stop it, or give the two different groups; this flow waits for it meanwhile",
        )

    def _named(self, group: DescribedGroup) -> str:
        others = [m for m in group.members if m.member_id != self._member.member_id]
        return ", ".join(f"{m.client_id} at {m.client_host}" for m in others)

    def _report(self, group: DescribedGroup) -> None:
        log.warning(
            "waiting for the other members of the group to leave: not all of them are mm2py workers"
            " group=%s state=%s protocol=%s members=[%s]",
            self._group_id,
            group.state,
            group.protocol_name or group.protocol_type or "none",
            self._named(group),
        )

    async def _round_due(self) -> None:
        await self._member.changed()

    # ---- the end ----

    def _lost(self, reason: str) -> Lost:
        """Return the end of the membership; its first reason is kept."""
        if self._end is None:
            self._gone()
            self._end = Lost(reason)
        return self._end

    def _gone(self) -> None:
        self._last = self._leader_url = self._due_at = None
        self._unfinished = False
        self._leader.forget()


def _foreign(group: DescribedGroup) -> bool:
    """Whether a stable group has members that are not mm2py workers."""
    # Empty groups keep the protocol type of their last members.
    if group.state in _FREE or not group.members:
        return False
    if group.protocol_type not in ("", PROTOCOL_TYPE):
        return True
    # While a round is running the broker names no protocol yet.
    return group.state not in _REBALANCING and not is_ours(group.protocol_name)


# ---- the leader's part of a round


_REFRESH_S: Final = 3.0
"""How long a leader that has read less than its members reads the config topic
(``worker.sync.timeout.ms``)."""


@final
class RoundLeader:
    """Plans rounds while this worker is the group's leader: metadata of all members -> ``assign``
    -> bytes per member.

    It keeps the last completed plan, for the next round and for requests that need the owner of
    some work. No group I/O.
    """

    def __init__(
        self,
        store: ConfigBackingStore,
        *,
        url: str,
        max_delay_ms: int,
        clock: Clock,
        runnable: Callable[[str], bool],
    ) -> None:
        self._store = store
        self._url = url
        self._max_delay_ms = max_delay_ms
        self._clock = clock
        self._runnable = runnable
        self._state = FRESH
        self._planned = FRESH
        self._urls: Mapping[str, str] = {}
        self._owners: Mapping[str, Work] = {}

    async def plan(self, joined: Joined, unwritten: Unwritten) -> Mapping[str, bytes]:
        """Return the assignments for SyncGroup; call ``completed`` once it succeeded.
        ``ProtocolError``: a member's metadata is not Connect's."""
        views = {member: _view(decode_metadata(data)) for member, data in joined.members.items()}
        version = version_of(joined.protocol)
        self._urls = {member: view.url for member, view in views.items()}
        # Java's ``maxOffset``: an older snapshot lacks work that a member has read of.
        needed = max(view.config_offset for view in views.values())
        snapshot = await self._snapshot_at(needed)
        # As ``IncrementalCooperativeAssignor.ensureLeaderConfig``: CONFIG_MISMATCH, nobody starts
        # anything, all rejoin.
        if snapshot is None:
            log.warning(
                "the leader cannot read the config topic as far as its members, the round assigns"
                " nothing needed_offset=%d own_offset=%d",
                needed,
                self._store.snapshot().offset,
            )
        elif missed_commit(snapshot, views):
            log.info(
                "task configs were committed while the members joined, the round assigns nothing "
                "and another one follows commit_offset=%d",
                snapshot.commit_offset,
            )
            # Beyond Java: its members start a changed task while another may still run the former
            # one. The commit is past the end of a topic that was created again since: its members
            # find that out by this offset.
            needed, snapshot = max(snapshot.offset, snapshot.commit_offset), None
        elif len(views) > 1 and unwritten(snapshot):
            # A follower would start tasks of the file before it has read these writes.
            log.info(
                "configs differ from this worker's file, the round assigns nothing and another "
                "one follows"
            )
            needed, snapshot = snapshot.offset, None
        if snapshot is None:
            # The generation counts on, or the next plan would take all work for lost
            # (``previous_generation``).
            self._planned = replace(self._state, previous_generation=joined.generation)
            refusal = Assignment(
                version, joined.leader_id, self._url, needed, error=CONFIG_MISMATCH
            )
            # The same bytes for all, the leader included.
            return dict.fromkeys(views, encode_assignment(refusal))
        base = Assignment(version, joined.leader_id, self._url, snapshot.offset)
        work = configured_work(snapshot, self._runnable)
        # An assignment carries the offset it was planned on; a member that is behind reads up to it
        # before it starts work.
        return {
            member: encode_assignment(assignment)
            for member, assignment in self._dealt(base, joined, views, work).items()
        }

    def completed(self) -> None:
        """Keep the last plan: SyncGroup succeeded, so any member may have received it."""
        self._state = self._planned

    def forget(self) -> None:
        """Discard the last plan: this worker does not lead any more."""
        self._state = self._planned = FRESH
        self._urls, self._owners = {}, {}

    def owner_url(self, work: str | TaskId) -> str | None:
        """Return where the owner of a connector or task listens, by the last plan."""
        requested = (
            Work(tasks=frozenset({work}))
            if isinstance(work, TaskId)
            else Work(connectors=frozenset({work}))
        )
        for member, owned in self._owners.items():
            if owned & requested:
                return self._urls.get(member)
        return None

    def member_urls(self) -> tuple[str, ...]:
        """Return where the members of the last plan listen."""
        return tuple(sorted(self._urls.values()))

    def _dealt(
        self, base: Assignment, joined: Joined, views: Mapping[str, MemberView], work: Work
    ) -> dict[str, Assignment]:
        leader, generation = joined.leader_id, joined.generation
        # Eager: all members have stopped everything before they joined.
        if base.version == 0:
            self._owners = assign_eager(views, work, leader=leader)
            self._planned = AssignorState(previous_generation=generation)
            return {
                member: replace(base, assigned=connector_tasks(owned))
                for member, owned in self._owners.items()
            }
        plan = assign(
            self._state,
            views,
            work,
            leader=leader,
            generation=generation,
            # Not the wall clock, which may be set back during the delay.
            now_ms=int(self._clock.monotonic() * 1000),
            max_delay_ms=self._max_delay_ms,
        )
        self._owners, self._planned = plan.owners, plan.state
        log.info(
            "round planned generation=%d members=%d assigned=%d revoked=%d delay_ms=%d",
            generation,
            len(views),
            sum(map(len, plan.assigned.values())),
            sum(map(len, plan.revoked.values())),
            plan.delay_ms,
        )
        return {
            member: replace(
                base,
                assigned=connector_tasks(plan.assigned[member]),
                revoked=connector_tasks(plan.revoked[member]),
                delay_ms=plan.delay_ms,
            )
            for member in views
        }

    async def _snapshot_at(self, offset: int) -> ConfigSnapshot | None:
        """Return a snapshot at least as new as every member's, None where the config topic cannot
        be read that far."""
        if self._store.snapshot().offset < offset:
            try:
                # Shorter than a rebalance timeout: the members wait in SyncGroup meanwhile.
                await self._store.refresh(_REFRESH_S)
            except RetriableError as error:
                log.warning("reading the config topic on failed cause=%s", error)
        snapshot = self._store.snapshot()
        return snapshot if snapshot.offset >= offset else None


def missed_commit(snapshot: ConfigSnapshot, views: Mapping[str, MemberView]) -> bool:
    """Return whether a member joined before it had read the newest commit of task configs.

    It may still run tasks that the commit has changed: a partition that the commit moved to another
    task would be started by its next owner before that member has stopped it. Every member of a
    refused round reads, stops its stale tasks and joins again.
    """
    return min(view.config_offset for view in views.values()) < snapshot.commit_offset


def _view(metadata: WorkerMetadata) -> MemberView:
    allocation = metadata.allocation
    # A new member, or version 0.
    owned = NO_WORK if allocation is None else work_of(allocation.assigned)
    return MemberView(metadata.url, metadata.config_offset, owned)
