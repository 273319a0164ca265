"""Membership of a Connect group, as its only member (the guard against copying everything twice).

Flow: ``acquire`` (wait for an empty group, join, be alone, sync) -> heartbeats -> ``lost`` -> ``release``.
No answer for a session timeout suspends; the next one resumes it (a coordinator that was away expired
nobody), or it is joined again and resumed where nobody else was a member meanwhile (``rejoin_rule``), or lost.
Invariant: nobody sends without a membership that was confirmed within a session timeout.
Speaks Connect's protocol, so Java workers see a worker; it never joins a group that has members.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, final

from mm2py.client.admin import Admin
from mm2py.client.backoff import Backoff
from mm2py.client.cluster import Cluster
from mm2py.client.connection import BrokerConnection
from mm2py.client.rejoin_rule import why_not_empty, why_not_the_same
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.protocol.call import Call
from mm2py.protocol.connect_group import (
    PROTOCOL_TYPE,
    PROTOCOL_VERSIONS,
    Assignment,
    ConnectorTasks,
    WorkerMetadata,
    encode_assignment,
    encode_metadata,
)
from mm2py.protocol.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    NONE,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    error_name,
    server_error,
)
from mm2py.protocol.group_messages import heartbeat, join_group, leave_group, sync_group
from mm2py.protocol.groups import DescribedGroup, GroupMember, GroupProtocol, JoinResult

__all__ = ["SoleMembership"]

log = logging.getLogger(__name__)

R = TypeVar("R")

_REPORT_S: Final = 10.0
"""How often the others are named while we wait for them."""

_LEAVE_TIMEOUT_S: Final = 3.0
"""A stop does not wait longer for the coordinator: the session ends by itself soon after."""

_LEAVE_UNREACHABLE_S: Final = 1.0
"""The same where the coordinator did not answer lately."""

_FREE: Final = frozenset({"Empty", "Dead"})
_INCONSISTENT_GROUP_PROTOCOL: Final = 23
_COORDINATOR_MOVED: Final = frozenset(
    {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR}
)
_EXPIRED: Final = error_name(UNKNOWN_MEMBER_ID)
_GENERATION_CODES: Final = frozenset(
    {NONE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION}
)
_CONFIG_OFFSET: Final = -1  # nothing of a shared config topic was read


def _nobody_asks(_: Sequence[GroupMember]) -> None:
    return


def _nobody_listens() -> None:
    return


def _no_work() -> Sequence[ConnectorTasks]:
    return ()


@final
class SoleMembership:
    """One flow's place in its group.

    ``url`` is what the group metadata advertises. ``work`` is asked for the connectors and tasks to
    put into our assignment, for tools that show it. ``on_waiting`` gets the members that we wait for.
    """

    def __init__(  # noqa: PLR0913 - keyword arguments, Java's names
        self,
        cluster: Cluster,
        admin: Admin,
        group_id: str,
        *,
        url: str,
        session_timeout_ms: int,
        heartbeat_interval_ms: int,
        rebalance_timeout_ms: int,
        clock: Clock,
        work: Callable[[], Sequence[ConnectorTasks]] = _no_work,
        on_waiting: Callable[[Sequence[GroupMember]], None] = _nobody_asks,
    ) -> None:
        self._cluster, self._admin, self._group_id = cluster, admin, group_id
        self._url, self._clock = url, clock
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._work, self._on_waiting = work, on_waiting
        self._member_id = ""
        self._generation = -1
        self._confirmed_at = 0.0
        self._connection: BrokerConnection | None = None
        self._suspended = False
        self._in_touch = asyncio.Event()
        self._suspend: Callable[[], None] = _nobody_listens
        self._resume: Callable[[], None] = _nobody_listens
        self._lost: asyncio.Future[str] | None = None
        self._beating: asyncio.Task[None] | None = None

    async def acquire(self) -> None:
        """Wait until this worker is the group's only member.

        After an error or cancellation call ``release``, which also ends a half-done join.

        Raises:
            RetriableError: the coordinator could not be reached for ``default.api.timeout.ms``.
            ServerError: the group may not be used.
        """
        await self.release()
        backoff = Backoff(self._heartbeat_interval_ms, self._heartbeat_interval_ms)
        while True:
            await self._until_empty()
            if await self._join_alone():
                break
            await self._leave()
            await self._clock.sleep(backoff.next_s())
        self._lost = asyncio.get_running_loop().create_future()
        self._beating = asyncio.create_task(self._keep(self._lost))
        log.info(
            "group joined as its only member group=%s member=%s generation=%d",
            self._group_id,
            self._member_id,
            self._generation,
        )

    def listen(self, suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        """Name who stops and goes on sending, until ``release``; suspended at once where that is due.

        ``suspend`` is called when no heartbeat was answered for a session timeout, and before ``lost``
        completes because the membership is over already.
        """
        self._suspend, self._resume = suspend, resume
        if self._suspended:
            suspend()

    async def lost(self) -> str:
        """Return why the membership ended, or is about to: somebody else joins.

        A coordinator that is silent ends nothing: see ``listen``.
        """
        if self._lost is None:
            return "not a member"
        return await asyncio.shield(self._lost)

    async def release(self) -> None:
        """Leave the group; safe at any time and twice."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result("released")
        self._lost = None
        self._suspend = self._resume = _nobody_listens
        await self._leave()
        self._suspended = False

    # ---- joining ----

    async def _until_empty(self) -> None:
        report_at = float("-inf")
        while True:
            group = await self._admin.describe_group(self._group_id)
            if group.state in _FREE and not group.members:
                return
            now = self._clock.monotonic()
            if now >= report_at:
                report_at = now + _REPORT_S
                self._report(group)
            await self._clock.sleep(self._heartbeat_interval_ms / 1000)

    def _report(self, group: DescribedGroup) -> None:
        members = ", ".join(f"{m.client_id} at {m.client_host}" for m in group.members)
        log.warning(
            "waiting for the other members of the group to leave: only one worker may run this flow "
            "group=%s state=%s protocol=%s members=[%s]",
            self._group_id,
            group.state,
            group.protocol_type or "none",
            members,
        )
        self._on_waiting(group.members)

    async def _join_alone(self) -> bool:
        """Join; returns whether we are alone, after giving simultaneous starters one rebalance."""
        joined = await self._join()
        if joined is None or joined.leader != self._member_id:
            return False
        if len(joined.members) == 1:
            return await self._sync(joined)
        log.info(
            "others joined the group at the same time, one rebalance for them to leave "
            "group=%s members=%d",
            self._group_id,
            len(joined.members),
        )
        if not await self._sync(joined) or not await self._rebalance_starts():
            return False
        joined = await self._join()
        if joined is None or len(joined.members) != 1:
            return False
        return await self._sync(joined)

    async def _join(self) -> JoinResult | None:
        """Join and wait for the rebalance; None when the group is used in another way."""
        protocols = [
            GroupProtocol(name, encode_metadata(WorkerMetadata(version, self._url, _CONFIG_OFFSET)))
            for name, version in PROTOCOL_VERSIONS.items()
        ]
        backoff = self._backoff()
        while True:
            call = join_group(
                self._group_id,
                self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=protocols,
                session_timeout_ms=self._session_timeout_ms,
                rebalance_timeout_ms=self._rebalance_timeout_ms,
            )
            self._confirmed_at = self._clock.monotonic()
            # Answered when all members have joined, at the latest after the rebalance timeout.
            wait_ms = self._rebalance_timeout_ms + self._cluster.settings.request_timeout_ms
            result = await self._ask(call, wait_ms)
            code = result.error_code
            if code == NONE:
                self._member_id, self._generation = result.member_id, result.generation_id
                return result
            if code == MEMBER_ID_REQUIRED:
                self._member_id = result.member_id
                continue
            if code == _INCONSISTENT_GROUP_PROTOCOL:
                return None
            if code == UNKNOWN_MEMBER_ID:
                self._member_id = ""
            elif code in _COORDINATOR_MOVED:
                self._cluster.coordinator_moved(self._group_id)
            elif code != REBALANCE_IN_PROGRESS:
                raise server_error(code, f"joining group {self._group_id}")
            await self._clock.sleep(backoff.next_s())

    async def _sync(self, joined: JoinResult) -> bool:
        """Hand out the work, all of it to us; returns whether the generation stood."""
        version = PROTOCOL_VERSIONS[joined.protocol_name]

        def assignment(member_id: str) -> bytes:
            work = tuple(self._work()) if member_id == self._member_id else ()
            return encode_assignment(
                Assignment(version, self._member_id, self._url, _CONFIG_OFFSET, work)
            )

        call = sync_group(
            self._group_id,
            self._generation,
            self._member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments={m.member_id: assignment(m.member_id) for m in joined.members},
        )
        self._confirmed_at = self._clock.monotonic()
        code = (await self._ask(call)).error_code
        if code in _COORDINATOR_MOVED:
            self._cluster.coordinator_moved(self._group_id)
        elif code not in _GENERATION_CODES:
            raise server_error(code, f"syncing with group {self._group_id}")
        return code == NONE

    async def _rebalance_starts(self) -> bool:
        """Return whether somebody left or joined within a session timeout."""
        end = self._clock.monotonic() + self._session_timeout_ms / 1000
        while self._clock.monotonic() < end:
            code = await self._ask(heartbeat(self._group_id, self._generation, self._member_id))
            if code == REBALANCE_IN_PROGRESS:
                return True
            if code != NONE:
                return False
            await self._clock.sleep(self._cluster.settings.retry_backoff_ms / 1000)
        return False

    # ---- staying ----

    async def _keep(self, lost: "asyncio.Future[str]") -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            await self._beat(lost)
            watching.cancel()

    async def _beat(self, lost: "asyncio.Future[str]") -> None:
        """Send heartbeats, also while the caller stops its work: the rebalance waits for us."""
        backoff = self._backoff()
        pause_s = interval_s = self._heartbeat_interval_ms / 1000
        while True:
            await self._clock.sleep(pause_s)
            # An unanswered one is repeated sooner: what is left of the session is short.
            pause_s = min(interval_s, backoff.next_s())
            sent_at = self._clock.monotonic()
            try:
                code = await self._ask_once(
                    heartbeat(self._group_id, self._generation, self._member_id),
                    self._session_timeout_ms,
                )
            except RetriableError:
                continue  # _watch counts the time
            except Mm2pyError as error:
                self._over(lost, str(error))
                return
            if code in (NONE, REBALANCE_IN_PROGRESS):
                backoff.reset()
                self._confirm(sent_at)
                # A slow answer leaves little of the session it proves: ask again before that is over.
                pause_s = min(interval_s, max(pause_s, self._left_s() / 2))
                if code == REBALANCE_IN_PROGRESS:
                    _complete(lost, "another worker is joining the group")
            elif code in _COORDINATOR_MOVED:
                self._cluster.coordinator_moved(self._group_id)
            elif code != UNKNOWN_MEMBER_ID:
                self._over(lost, f"the coordinator answered {error_name(code)}")
                return
            elif not await self._rejoined(lost):
                return
            else:
                backoff.reset()
                pause_s = min(interval_s, max(backoff.next_s(), self._left_s() / 2))

    async def _watch(self) -> None:
        """Suspend when the broker may have ended the membership and cannot say so."""
        while True:
            left_s = self._left_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
                continue
            self._suspended = True
            self._in_touch.clear()
            log.warning(
                "group coordinator is silent, the flow is suspended: it keeps what it holds and sends"
                " nothing group=%s unanswered_ms=%d",
                self._group_id,
                (self._clock.monotonic() - self._confirmed_at) * 1000,
            )
            self._suspend()
            await self._in_touch.wait()

    async def _rejoined(self, lost: "asyncio.Future[str]") -> bool:
        """Be the only member again after the coordinator expired us; False when the flow is lost.

        The caller is suspended meanwhile. Only a group that nobody else was a working member of since
        lets it go on with what it has in flight (``rejoin_rule``).
        """
        ended, confirmed_at = self._generation, self._confirmed_at
        self._member_id = ""
        self._suspended = True
        self._in_touch.clear()
        log.warning(
            "the coordinator expired the membership, the flow is suspended and joins again"
            " group=%s generation=%d",
            self._group_id,
            ended,
        )
        self._suspend()
        backoff = self._backoff()
        while True:
            try:
                reason = await self._join_again(ended)
            except RetriableError:
                # A join whose answer was lost counts as a round: the next try is then refused.
                await self._clock.sleep(backoff.next_s())
                continue
            except Mm2pyError as error:
                reason = str(error)
            break
        if reason:
            await self._leave()
            self._over(lost, f"the coordinator answered {_EXPIRED}, and {reason}")
            return False
        log.info(
            "group joined again, nobody else was its member group=%s member=%s generation=%d",
            self._group_id,
            self._member_id,
            self._generation,
        )
        joined_at, self._confirmed_at = self._confirmed_at, confirmed_at
        self._confirm(joined_at)
        return True

    async def _join_again(self, ended: int) -> str:
        """Join after generation ``ended``; returns why that does not continue it, "" when it does."""
        group = await self._admin.describe_group(self._group_id)
        reason = why_not_empty(group.state, len(group.members))
        if reason:
            return reason
        joined = await self._join()
        reason = why_not_the_same(ended, joined, self._member_id)
        if reason or joined is None:
            return reason
        return "" if await self._sync(joined) else "another worker is joining the group"

    def _left_s(self) -> float:
        """Return for how long the last answered heartbeat still proves the membership."""
        return self._confirmed_at + self._session_timeout_ms / 1000 - self._clock.monotonic()

    def _confirm(self, sent_at: float) -> None:
        silent_s = self._clock.monotonic() - self._confirmed_at
        self._confirmed_at = sent_at
        # An answer that took a session timeout proves nothing about now.
        if self._suspended and self._left_s() > 0:
            self._suspended = False
            self._in_touch.set()
            log.info(
                "group membership is confirmed, the flow goes on group=%s unanswered_ms=%d",
                self._group_id,
                silent_s * 1000,
            )
            self._resume()

    def _over(self, lost: "asyncio.Future[str]", reason: str) -> None:
        """Somebody else may be the member by now: nothing more is sent while the caller stops."""
        self._suspend()
        _complete(lost, reason)

    async def _leave(self) -> None:
        member_id, self._member_id = self._member_id, ""
        connection, self._connection = self._connection, None
        silent = self._suspended or connection is None or connection.closed
        timeout_s = _LEAVE_UNREACHABLE_S if silent else _LEAVE_TIMEOUT_S
        if connection is not None:
            # A JoinGroup that waits in the broker would hold up everything behind it.
            connection.discard("left the group")
        if not member_id:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._cluster.call_coordinator(
                    self._group_id,
                    leave_group(self._group_id, member_id),
                    code_of=_coordinator_code,
                )
        except (RetriableError, TimeoutError) as error:
            log.warning(
                "the group was left without an answer, its session ends by itself group=%s cause=%s",
                self._group_id,
                str(error) or f"no answer within {timeout_s:.0f} s",
            )

    # ---- asking the coordinator ----

    def _backoff(self) -> Backoff:
        settings = self._cluster.settings
        return Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)

    async def _ask(self, call: Call[R], timeout_ms: int | None = None) -> R:
        """Ask on our own connection; lost connections are retried until the API timeout."""
        backoff = self._backoff()
        end = self._clock.monotonic() + self._cluster.settings.default_api_timeout_ms / 1000
        while True:
            try:
                return await self._ask_once(call, timeout_ms)
            except RetriableError:
                if self._clock.monotonic() >= end:
                    raise
            await self._clock.sleep(backoff.next_s())

    async def _ask_once(self, call: Call[R], timeout_ms: int | None = None) -> R:
        try:
            # A waiting JoinGroup blocks its connection, so the group has one of its own.
            self._connection = await self._cluster.coordinator(
                self._group_id, f"group {self._group_id}"
            )
            return await self._connection.call(call, timeout_ms=timeout_ms)
        except RetriableError:
            self._cluster.coordinator_moved(self._group_id)
            raise


def _complete(lost: "asyncio.Future[str]", reason: str) -> None:
    if not lost.done():
        lost.set_result(reason)


def _coordinator_code(code: int) -> int:
    return code if code in _COORDINATOR_MOVED else NONE
