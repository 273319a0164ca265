"""A member of a classic group: joining, heartbeats, and the permit to write that they prove.

Flow: ``join`` -> ``Joined`` -> ``sync`` -> bytes of our assignment -> heartbeats -> ``changed`` ->
``join`` ... Each confirmed heartbeat grants the permit for a session timeout from the time it was
sent: the coordinator cannot expire us earlier. Without a response the permit expires; the next one
renews it (a coordinator that was unreachable expired no member). After an expiry during which no
other worker was assigned work the permit is revoked until the next round; otherwise the membership
is over and the permit's term with it. Assignments are opaque bytes here
(``protocol.connect_group``).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.group.coordinator import (
    GroupCoordinator,
    InconsistentProtocolError,
    Joined,
    MembershipEndedError,
)
from mm2py.client.group.rejoin_rule import why_not_empty, why_not_the_same
from mm2py.client.permit import Permit
from mm2py.clock import Clock, cancelled
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.protocol.error_codes import (
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    error_name,
    server_error,
)
from mm2py.protocol.groups import DescribedGroup, GroupProtocol, JoinResult

log = logging.getLogger(__name__)

_LEAVE_TIMEOUT_S: Final = 3.0
"""Longest wait of a stop for the coordinator: the session expires soon anyway."""

_LEAVE_UNREACHABLE_S: Final = 1.0
"""The same if the coordinator has not answered recently."""

_GATHER_S: Final = 1.5
"""Pause before rejoining: members that expired together describe the group within a heartbeat's
retry of each other, and a member that joined before the others have seen the empty group would end
their memberships."""

_RETRY_MS: Final = 100
_RETRY_MAX_MS: Final = 1_000
_INCONSISTENT_GROUP_PROTOCOL: Final = 23


@final
class GroupMember:
    """This process in one group; used by one task at a time.

    Args:
        coordinator: of the group.
        permit: granted, revoked and abandoned only here.
        session_timeout_ms: after this time without a heartbeat the coordinator expires the member.
        heartbeat_interval_ms: time between two heartbeats.
        rebalance_timeout_ms: longest wait for the others in one round.
        clock: time.
    """

    def __init__(
        self,
        coordinator: GroupCoordinator,
        permit: Permit,
        *,
        session_timeout_ms: int,
        heartbeat_interval_ms: int,
        rebalance_timeout_ms: int,
        clock: Clock,
    ) -> None:
        self.coordinator, self.permit = coordinator, permit
        self.session_timeout_ms = session_timeout_ms
        self.heartbeat_interval_ms = heartbeat_interval_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._clock = clock
        self._member_id = ""
        self._generation = -1
        self._assigned = -1  # the last generation in which a SyncGroup of ours succeeded
        self._confirmed_at = self._stable_at = float("-inf")
        self._joining = False  # heartbeat errors are ignored: the response to the join decides
        self._expired = False  # and the group was not described since
        self._continues = (
            False  # after an expiry, and the next round must continue what was assigned
        )
        self._alone = False  # no other member was in the last round
        self._silent = False  # was logged
        self._changed: asyncio.Future[str] | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def member_id(self) -> str:
        """Member id given by the coordinator, empty before the first join."""
        return self._member_id

    @property
    def over(self) -> str:
        """Why there is no membership, empty while there is one."""
        if self._generation >= 0 or self._expired:
            return ""
        changed = self._changed
        return changed.result() if changed is not None and changed.done() else "not a member"

    async def join(self, offers: Sequence[GroupProtocol]) -> Joined:
        """Take part in one rebalance; call ``sync`` next, or ``leave``.

        Raises:
            RetriableError: the coordinator is unreachable; assigned work stays assigned.
            MembershipEndedError: work assigned before may belong to another worker now.
            InconsistentProtocolError: the other members use another protocol.
            ServerError: the group may not be used.
        """
        self._joining = True
        backoff = Backoff(_RETRY_MS, _RETRY_MAX_MS)
        while True:
            if self._expired:
                await self._stop_beating()
                # Before the join: our own JoinGroup makes
                # the group non-empty, and the proof is gone.
                self._look_at(await self.coordinator.describe())
                self._raise_if_over()
            result = await self.coordinator.join(
                self._member_id, offers, self.session_timeout_ms, self._rebalance_timeout_ms
            )
            code = result.error_code
            if code == NONE:
                return await self._adopted(result)
            if code == _INCONSISTENT_GROUP_PROTOCOL:
                raise InconsistentProtocolError(
                    f"group {self.coordinator.group_id} speaks another protocol than Connect's"
                )
            # KIP-394: the first JoinGroup gets an id, the second one joins with it.
            if code == MEMBER_ID_REQUIRED:
                self._member_id = result.member_id
                continue
            if code == UNKNOWN_MEMBER_ID:
                self._forget_id()
                if self._expired:
                    continue
            # The coordinator has given up all pending joins: join again.
            elif code != REBALANCE_IN_PROGRESS:
                raise server_error(code, f"joining group {self.coordinator.group_id}")
            await self._clock.sleep(backoff.next_s())

    async def sync(self, joined: Joined, assignments: Mapping[str, bytes]) -> bytes | None:
        """Assign or receive the work of a generation; None when the generation is over: join again.

        Raises:
            RetriableError: the coordinator is unreachable.
            ServerError: the group may not be used.
        """
        # From the time of sending: the coordinator's session timer starts at the arrival, later.
        sent_at = self._clock.monotonic()
        result = await self.coordinator.sync(
            joined.member_id, joined.generation, joined.protocol, assignments
        )
        code = result.error_code
        if code == NONE:
            self._assigned, self._continues, self._joining = joined.generation, False, False
            self._confirm(sent_at, stable=True)
            return result.assignment
        if code == UNKNOWN_MEMBER_ID:
            self._forget_id()
        # Another member joined, or left, between our JoinGroup and SyncGroup.
        elif code not in (REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION):
            raise server_error(code, f"syncing with group {self.coordinator.group_id}")
        return None

    async def changed(self) -> str:
        """Wait until a rebalance is due (``""``) or the membership is over (the reason)."""
        if self._changed is None:
            return "not a member"
        # The future is shared with the heartbeats; a cancelled waiter must not cancel it.
        return await asyncio.shield(self._changed)

    async def leave(self) -> None:
        """Leave the group; safe at any time and twice."""
        await self._stop_beating()
        member_id, silent = self._member_id, not self.permit.valid
        self.permit.abandon()
        self._reset("the group was left")
        self._member_id = ""
        await self.coordinator.leave(
            member_id, _LEAVE_UNREACHABLE_S if silent else _LEAVE_TIMEOUT_S
        )

    # ---- joining ----

    async def _adopted(self, result: JoinResult) -> Joined:
        self._member_id = result.member_id
        reason = ""
        if self._continues:
            reason = why_not_the_same(self._assigned, result.generation_id)
        if reason:
            # We will not sync: without leaving, the round would wait until our session ends.
            await self.coordinator.leave(self._member_id, _LEAVE_TIMEOUT_S)
            self._member_id = ""
            self._over(f"it was expired, and {reason}")
            self._raise_if_over()
        self._generation = result.generation_id
        self._alone = len(result.members) == 1  # a follower gets none
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        if self._beating is None or self._beating.done():
            if not self._continues:
                # Nothing is owned yet.
                self._confirmed_at = self._stable_at = self._clock.monotonic()
            self._beating = asyncio.create_task(self._keep())
            self._beating.add_done_callback(self._beats_ended)
        return Joined(
            result.member_id,
            result.generation_id,
            result.leader,
            result.protocol_name,
            {member.member_id: member.metadata for member in result.members},
        )

    def _forget_id(self) -> None:
        """Handle UNKNOWN_MEMBER_ID: an expiry if work was assigned, else an id that was never
        used."""
        self._member_id = ""
        if self._assigned < 0:
            return
        self._expired = True
        self.permit.revoke()
        log.warning(
            "the coordinator expired the membership, the flow is suspended and joins again"
            " group=%s generation=%d",
            self.coordinator.group_id,
            self._generation,
        )

    def _look_at(self, group: DescribedGroup) -> None:
        """Decide, after an expiry, whether the next round can continue the membership."""
        reason = why_not_empty(group.state, len(group.members))
        if reason:
            self._over(f"the coordinator answered {error_name(UNKNOWN_MEMBER_ID)}, and {reason}")
            return
        self._continues, self._expired = True, False

    # ---- staying ----

    async def _keep(self) -> None:
        end_watch = self.permit.watch(self._permit_changed)
        try:
            await self._beat()
        finally:
            end_watch()

    def _beats_ended(self, task: "asyncio.Task[None]") -> None:
        """End the membership if heartbeats ended with an error, for instance of a watcher of the
        permit."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("heartbeats failed group=%s", self.coordinator.group_id, exc_info=error)
            self._over(f"heartbeats failed: {error}")

    async def _beat(self) -> None:
        """Send heartbeats, also while the caller stops tasks or waits in a join."""
        backoff = Backoff(_RETRY_MS, _RETRY_MAX_MS)
        pause_s = interval_s = self.heartbeat_interval_ms / 1000
        while True:
            await self._clock.sleep(pause_s)
            # An unanswered heartbeat is repeated sooner, because little of the session is left.
            pause_s = min(interval_s, backoff.next_s())
            sent_at, generation, joining = self._clock.monotonic(), self._generation, self._joining
            try:
                code = await self.coordinator.heartbeat(
                    self._member_id, generation, self.session_timeout_ms
                )
            except RetriableError as error:
                self.permit.cause = str(error)
                continue  # it expires by itself
            except Mm2pyError as error:
                self._over(str(error))
                return
            self.permit.cause = ""
            # A response about an old generation, or during a
            # join, is stale: the response to the join decides.
            stale = joining or self._joining or generation != self._generation
            # Both prove the membership: REBALANCE_IN_PROGRESS is answered to members alone.
            if code in (NONE, REBALANCE_IN_PROGRESS):
                backoff.reset()
                self._confirm(sent_at, stable=code == NONE)
                # A slow response leaves little of the session
                # that it proves: repeat before that is over.
                pause_s = min(interval_s, max(pause_s, self._left_s() / 2))
                if code == REBALANCE_IN_PROGRESS and not stale:
                    self._complete("")
            elif not stale:
                await self._refused(code)
                return

    async def _refused(self, code: int) -> None:
        if code != UNKNOWN_MEMBER_ID:
            self._over(f"the coordinator answered {error_name(code)}")
            return
        self._forget_id()
        backoff = Backoff(_RETRY_MS, _RETRY_MAX_MS)
        while True:
            try:
                self._look_at(await self.coordinator.describe())
            except RetriableError:
                await self._clock.sleep(backoff.next_s())
            except Mm2pyError as error:
                self._over(str(error))
                return
            else:
                break
        if self._continues:
            if not self._alone:
                await self._clock.sleep(_GATHER_S)
            self._complete("")

    def _permit_changed(self) -> None:
        """Log when the permit expires by itself: the coordinator may have ended the membership
        meanwhile."""
        if self.permit.valid or self._silent or self._expired or self._generation < 0:
            return
        self._silent = True
        log.warning(
            "group coordinator is silent, the flow is suspended: it keeps what it holds and sends"
            " nothing group=%s unanswered_ms=%d cause=%s",
            self.coordinator.group_id,
            (self._clock.monotonic() - self._confirmed_at) * 1000,
            self.permit.cause or "no answer",
        )

    def _left_s(self) -> float:
        """Return for how long the confirmed heartbeats prove the membership.

        That is a session timeout after the last one. While a rebalance waits for our join they
        prove it only until the coordinator removes members that have not joined: a rebalance
        timeout after the rebalance began.
        """
        return self._proven_until() - self._clock.monotonic()

    def _proven_until(self) -> float:
        session_end = self._confirmed_at + self.session_timeout_ms / 1000
        # Heartbeats are answered during a rebalance, too: without this bound one
        # that never ends would keep the permit while the coordinator removes us.
        round_end = self._stable_at + self._rebalance_timeout_ms / 1000
        return min(session_end, round_end)

    def _confirm(self, sent_at: float, *, stable: bool) -> None:
        if self._expired or self._continues:
            return  # assigned work may be continued only after the round is complete
        silent_s = self._clock.monotonic() - self._confirmed_at
        self._confirmed_at = max(self._confirmed_at, sent_at)
        if stable:
            self._stable_at = max(self._stable_at, sent_at)
        # A response that took a session timeout proves nothing about now.
        self.permit.grant(self._proven_until())
        if self._silent and self.permit.valid:
            self._silent = False
            log.info(
                "group membership is confirmed, the flow continues group=%s unanswered_ms=%d",
                self.coordinator.group_id,
                silent_s * 1000,
            )

    def _over(self, reason: str) -> None:
        """End the membership: another worker may own our work, so nothing more is sent while the
        caller stops."""
        self._reset(reason)  # first, so that the permit's end is not logged as a silent coordinator
        self.permit.abandon()

    def _raise_if_over(self) -> None:
        if self.over:
            raise MembershipEndedError(self.over)

    def _reset(self, reason: str) -> None:
        self._generation = self._assigned = -1
        self._expired = self._continues = self._joining = False
        self._complete(reason)

    def _complete(self, reason: str) -> None:
        if self._changed is None:
            return
        if self._changed.done():
            if not reason:
                return
            self._changed = asyncio.get_running_loop().create_future()
        self._changed.set_result(reason)

    async def _stop_beating(self) -> None:
        beating, self._beating = self._beating, None
        await cancelled(beating)
