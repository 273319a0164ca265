"""A member of a classic group: joining, heartbeats, and the permit to write that they prove.

Flow: ``join`` -> ``Joined`` -> ``sync`` -> bytes of our assignment -> heartbeats -> ``changed`` -> ``join`` ...
Each confirmed heartbeat grants the permit for a session timeout from its sending. No answer lets it run out;
the next one renews it (a coordinator that was away expired no member). Expired where no other worker was given
work meanwhile: revoked until the next round; else the membership is over and the permit's term with it.
It knows no assignments; its bytes are ``protocol.connect_group``'s.
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
from mm2py.client.group.rejoin_rule import EXPIRY_AND_OURS, why_not_empty
from mm2py.client.permit import Permit
from mm2py.clock import Clock
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
"""A stop does not wait longer for the coordinator: the session ends by itself soon after."""

_LEAVE_UNREACHABLE_S: Final = 1.0
"""The same where the coordinator did not answer lately."""

_GATHER_S: Final = 1.5
"""Workers that were expired together look at the group within a heartbeat's retry of each other; who joins
before the others have looked takes their work."""

_RETRY_MS: Final = 100
_RETRY_MAX_MS: Final = 1_000
_INCONSISTENT_GROUP_PROTOCOL: Final = 23


@final
class GroupMember:
    """This process in one group; used by one task at a time.

    Args:
        coordinator: of the group.
        permit: granted, revoked and abandoned here alone.
        session_timeout_ms: after so long without a heartbeat the coordinator expires us.
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
        self._confirmed_at = self._stable_at = float("-inf")
        self._joining = False  # the next answer of a join or sync says more than a heartbeat's
        self._expired = False  # and the group was not looked at since
        self._ended: int | None = (
            None  # our last generation, while the next round has to continue it
        )
        self._alone = False  # there was no other member in the last round
        self._silent = False  # was logged
        self._changed: asyncio.Future[str] | None = None
        self._beating: asyncio.Task[None] | None = None

    @property
    def member_id(self) -> str:
        """The coordinator's name for us, empty before the first join."""
        return self._member_id

    @property
    def over(self) -> str:
        """Why there is no membership, empty while there is one."""
        if self._generation >= 0 or self._expired:
            return ""
        changed = self._changed
        return changed.result() if changed is not None and changed.done() else "not a member"

    async def join(self, offers: Sequence[GroupProtocol]) -> Joined:
        """Take part in one join round; call ``sync`` next, or ``leave``.

        Raises:
            RetriableError: the coordinator is away; what is owned stays owned.
            MembershipEndedError: nothing that was owned before may be claimed any more.
            InconsistentProtocolError: the members speak something else.
            ServerError: the group may not be used.
        """
        self._joining = True
        backoff = Backoff(_RETRY_MS, _RETRY_MAX_MS)
        while True:
            if self._expired:
                await self._stop_beating()
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
            if code == MEMBER_ID_REQUIRED:
                self._member_id = result.member_id
                continue
            if code == UNKNOWN_MEMBER_ID:
                self._forget_id()
                if self._expired:
                    continue
            elif code != REBALANCE_IN_PROGRESS:
                raise server_error(code, f"joining group {self.coordinator.group_id}")
            await self._clock.sleep(backoff.next_s())

    async def sync(self, joined: Joined, assignments: Mapping[str, bytes]) -> bytes | None:
        """Hand out or get the work of a generation; None when that is over: join again.

        Raises:
            RetriableError: the coordinator is away.
            ServerError: the group may not be used.
        """
        sent_at = self._clock.monotonic()
        result = await self.coordinator.sync(
            joined.member_id, joined.generation, joined.protocol, assignments
        )
        code = result.error_code
        if code == NONE:
            self._ended, self._joining = None, False
            self._confirm(sent_at, stable=True)
            return result.assignment
        if code == UNKNOWN_MEMBER_ID:
            self._forget_id()
        elif code not in (REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION):
            raise server_error(code, f"syncing with group {self.coordinator.group_id}")
        return None

    async def changed(self) -> str:
        """Wait until a new round is due (``""``) or the membership is over (the reason)."""
        if self._changed is None:
            return "not a member"
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
        if self._ended is not None and result.generation_id - self._ended != EXPIRY_AND_OURS:
            # rejoin_rule: the group was seen empty, so these rounds are the empty one and ours, or
            # another worker had a round and may have been given what we owned.
            rounds = result.generation_id - self._ended
            await self.coordinator.leave(self._member_id, _LEAVE_TIMEOUT_S)
            self._member_id = ""
            self._over(
                f"it was expired, and another worker may have run its work meanwhile ({rounds} rounds)"
            )
            self._raise_if_over()
        self._generation = result.generation_id
        self._alone = len(result.members) == 1  # a follower gets none
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        if self._beating is None or self._beating.done():
            if self._ended is None:
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
        """Our id is unknown: an expiry where a generation stood, else one that was never used."""
        self._member_id = ""
        if self._generation < 0:
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
        """Decide, after an expiry, whether the next round can continue what we have."""
        reason = why_not_empty(group.state, len(group.members))
        if reason:
            self._over(f"the coordinator answered {error_name(UNKNOWN_MEMBER_ID)}, and {reason}")
            return
        self._ended, self._expired = self._generation, False

    # ---- staying ----

    async def _keep(self) -> None:
        end_watch = self.permit.watch(self._permit_changed)
        try:
            await self._beat()
        finally:
            end_watch()

    def _beats_ended(self, task: "asyncio.Task[None]") -> None:
        """Without heartbeats there is no membership, whatever broke them (a listener of ours)."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("heartbeats failed group=%s", self.coordinator.group_id, exc_info=error)
            self._over(f"heartbeats failed: {error}")

    async def _beat(self) -> None:
        """Send heartbeats, also while the caller stops its work or waits in a join."""
        backoff = Backoff(_RETRY_MS, _RETRY_MAX_MS)
        pause_s = interval_s = self.heartbeat_interval_ms / 1000
        while True:
            await self._clock.sleep(pause_s)
            # An unanswered one is repeated sooner: what is left of the session is short.
            pause_s = min(interval_s, backoff.next_s())
            sent_at, generation, joining = self._clock.monotonic(), self._generation, self._joining
            try:
                code = await self.coordinator.heartbeat(
                    self._member_id, generation, self.session_timeout_ms
                )
            except RetriableError:
                continue  # the permit counts the time
            except Mm2pyError as error:
                self._over(str(error))
                return
            # What an answer says of a generation that we are leaving, its join's answer says better.
            stale = joining or self._joining or generation != self._generation
            if code in (NONE, REBALANCE_IN_PROGRESS):
                backoff.reset()
                self._confirm(sent_at, stable=code == NONE)
                # A slow answer leaves little of the session it proves: ask again before that is over.
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
        if self._ended is not None:
            if not self._alone:
                await self._clock.sleep(_GATHER_S)
            self._complete("")

    def _permit_changed(self) -> None:
        """Log when the permit ran out by itself: the broker may have ended the membership silently."""
        if self.permit.valid or self._silent or self._expired or self._generation < 0:
            return
        self._silent = True
        log.warning(
            "group coordinator is silent, the flow is suspended: it keeps what it holds and sends"
            " nothing group=%s unanswered_ms=%d",
            self.coordinator.group_id,
            (self._clock.monotonic() - self._confirmed_at) * 1000,
        )

    def _left_s(self) -> float:
        """Return for how long the answered heartbeats still prove the membership.

        That is a session after the last one. While a round waits for our join they prove it only until the
        coordinator removes members that have not joined: a rebalance timeout after the round began.
        """
        return self._proven_until() - self._clock.monotonic()

    def _proven_until(self) -> float:
        session_end = self._confirmed_at + self.session_timeout_ms / 1000
        round_end = self._stable_at + self._rebalance_timeout_ms / 1000
        return min(session_end, round_end)

    def _confirm(self, sent_at: float, *, stable: bool) -> None:
        if self._expired or self._ended is not None:
            return  # what we own is ours again only when the round is done
        silent_s = self._clock.monotonic() - self._confirmed_at
        self._confirmed_at = max(self._confirmed_at, sent_at)
        if stable:
            self._stable_at = max(self._stable_at, sent_at)
        # An answer that took a session timeout proves nothing about now.
        self.permit.grant(self._proven_until())
        if self._silent and self.permit.valid:
            self._silent = False
            log.info(
                "group membership is confirmed, the flow continues group=%s unanswered_ms=%d",
                self.coordinator.group_id,
                silent_s * 1000,
            )

    def _over(self, reason: str) -> None:
        """Another worker may own our work by now: nothing more is sent while the caller stops."""
        self._reset(reason)  # first: the permit's end is no silence of the coordinator's
        self.permit.abandon()

    def _raise_if_over(self) -> None:
        if self.over:
            raise MembershipEndedError(self.over)

    def _reset(self, reason: str) -> None:
        self._generation, self._ended = -1, None
        self._expired = self._joining = False
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
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
