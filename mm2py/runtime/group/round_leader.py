"""The leader's part of a round: from the metadata of all members to the assignment of each.

Flow: metadata of all members -> config snapshot that is new enough -> ``assign`` -> bytes per member.
Remembers the last completed plan, for the next round and for requests that need the owner of some work. No group I/O.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, final

from mm2py.client.group.coordinator import Joined
from mm2py.clock import Clock
from mm2py.errors import RetriableError
from mm2py.protocol.connect_group import (
    CONFIG_MISMATCH,
    Assignment,
    WorkerMetadata,
    connector_tasks,
    decode_metadata,
    encode_assignment,
    version_of,
    work_of,
)
from mm2py.runtime.group.assignor import (
    FRESH,
    NO_WORK,
    AssignorState,
    MemberView,
    assign,
    assign_eager,
    configured_work,
)
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import TaskId, Work

log = logging.getLogger(__name__)

_REFRESH_S: Final = 3.0
"""How long a leader that is behind its members reads the config topic (``worker.sync.timeout.ms``)."""


@final
class RoundLeader:
    """Plans rounds while this worker is the group's leader."""

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

    async def plan(self, joined: Joined) -> Mapping[str, bytes]:
        """Return what to hand out; call ``completed`` when that was done.

        Raises:
            ProtocolError: a member's metadata is not Connect's.
        """
        views = {member: _view(decode_metadata(data)) for member, data in joined.members.items()}
        version = version_of(joined.protocol)
        self._urls = {member: view.url for member, view in views.items()}
        needed = max(view.config_offset for view in views.values())
        snapshot = await self._snapshot_at(needed)
        if snapshot is None:
            log.warning(
                "the leader cannot read the config topic as far as its members, the round assigns"
                " nothing needed_offset=%d own_offset=%d",
                needed,
                self._store.snapshot().offset,
            )
        elif missed_commit(snapshot, views):
            log.info(
                "task configs were committed while the members joined, the round assigns nothing and"
                " another one follows commit_offset=%d",
                snapshot.commit_offset,
            )
            needed, snapshot = snapshot.offset, None
        if snapshot is None:
            self._planned = replace(self._state, previous_generation=joined.generation)
            refusal = Assignment(
                version, joined.leader_id, self._url, needed, error=CONFIG_MISMATCH
            )
            return dict.fromkeys(views, encode_assignment(refusal))
        base = Assignment(version, joined.leader_id, self._url, snapshot.offset)
        work = configured_work(snapshot, self._runnable)
        return {
            member: encode_assignment(assignment)
            for member, assignment in self._dealt(base, joined, views, work).items()
        }

    def completed(self) -> None:
        """Note that every member can have got the last plan."""
        self._state = self._planned

    def forget(self) -> None:
        """This worker does not lead any more: the last plan is stale."""
        self._state = self._planned = FRESH
        self._urls, self._owners = {}, {}

    def owner_url(self, work: str | TaskId) -> str | None:
        """Return where the owner of a connector or task listens, by the last plan."""
        wanted = (
            Work(tasks=frozenset({work}))
            if isinstance(work, TaskId)
            else Work(connectors=frozenset({work}))
        )
        for member, owned in self._owners.items():
            if owned & wanted:
                return self._urls.get(member)
        return None

    def member_urls(self) -> tuple[str, ...]:
        """Return where the members of the last plan listen."""
        return tuple(sorted(self._urls.values()))

    def _dealt(
        self, base: Assignment, joined: Joined, views: Mapping[str, MemberView], work: Work
    ) -> dict[str, Assignment]:
        leader, generation = joined.leader_id, joined.generation
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
        """Return a snapshot that holds at least what each member has read, None where that fails."""
        if self._store.snapshot().offset < offset:
            try:
                await self._store.refresh(_REFRESH_S)
            except RetriableError as error:
                log.warning("reading the config topic on failed cause=%s", error)
        snapshot = self._store.snapshot()
        return snapshot if snapshot.offset >= offset else None


def missed_commit(snapshot: ConfigSnapshot, views: Mapping[str, MemberView]) -> bool:
    """Return whether a member joined before it had read the newest commit of task configs.

    It may still run tasks that the commit has changed: a partition that the commit moved to another task
    would be started by its next owner before that member has stopped it. Every member of a refused round
    reads, stops its stale tasks and joins again.
    """
    return min(view.config_offset for view in views.values()) < snapshot.commit_offset


def _view(metadata: WorkerMetadata) -> MemberView:
    allocation = metadata.allocation
    owned = NO_WORK if allocation is None else work_of(allocation.assigned)
    return MemberView(metadata.url, metadata.config_offset, owned)
