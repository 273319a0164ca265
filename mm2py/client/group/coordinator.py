"""The coordinator of a group: the requests of a ``GroupMember``, one try each, over connections of
their own.

Flow: ``GroupMember`` -> ``GroupCoordinator`` (``CoordinatorLink``, or a group in memory) -> codes
-> ``Joined``; ``RetriableError`` when the coordinator is unreachable or moved. A JoinGroup that
waits in the broker blocks its connection (brokers answer in order), so heartbeats have another one.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar, final

from mm2py.client.connect.admin import described
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.errors import RetriableError
from mm2py.protocol.call import Call
from mm2py.protocol.connect_group import PROTOCOL_TYPE
from mm2py.protocol.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    NONE,
    NOT_COORDINATOR,
    server_error,
)
from mm2py.protocol.group_messages import (
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    sync_group,
)
from mm2py.protocol.groups import DescribedGroup, GroupProtocol, JoinResult, SyncResult


class MembershipEndedError(RetriableError):
    """The coordinator ended the membership; the work may have another owner by now."""


class InconsistentProtocolError(RetriableError):
    """The group uses none of the protocols that this member offers."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A generation of the group; only its leader gets ``members`` with their metadata."""

    member_id: str
    generation: int
    leader_id: str
    protocol: str
    members: Mapping[str, bytes]

    @property
    def leads(self) -> bool:
        return self.leader_id == self.member_id


class GroupCoordinator(Protocol):
    """One group at its coordinator: one try per call, codes stay codes.

    Every method raises ``RetriableError`` when there is no coordinator now, but for ``leave``.
    """

    @property
    def group_id(self) -> str:
        """Name of the group."""
        ...

    async def join(
        self,
        member_id: str,
        offers: Sequence[GroupProtocol],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> JoinResult:
        """Join; answered when all members have joined, at the latest after the rebalance
        timeout."""
        ...

    async def sync(
        self, member_id: str, generation: int, protocol: str, assignments: Mapping[str, bytes]
    ) -> SyncResult:
        """Send the leader's assignments (followers: none); answered when the leader has sent
        them."""
        ...

    async def heartbeat(self, member_id: str, generation: int, timeout_ms: int) -> int:
        """Return the error code, within ``timeout_ms``."""
        ...

    async def leave(self, member_id: str, timeout_s: float) -> None:
        """Cancel requests in flight and leave; an empty id only does the former. Raises nothing
        retriable."""
        ...

    async def describe(self) -> DescribedGroup:
        """Return state and members of the group."""
        ...


log = logging.getLogger(__name__)

R = TypeVar("R")

_MOVED: Final = frozenset(
    {COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR}
)


@final
class CoordinatorLink:
    """A ``GroupCoordinator`` over the connections of a cluster."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._rounds: BrokerConnection | None = None
        self._beats: BrokerConnection | None = None

    @property
    def group_id(self) -> str:
        return self._group_id

    async def join(
        self,
        member_id: str,
        offers: Sequence[GroupProtocol],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> JoinResult:
        call = join_group(
            self._group_id,
            member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=offers,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        # The broker answers when all members have joined:
        # request.timeout.ms alone would end the wait.
        wait_ms = rebalance_timeout_ms + self._cluster.settings.request_timeout_ms
        result = await self._in_round(call, wait_ms)
        self._check(result.error_code, "JoinGroup")
        return result

    async def sync(
        self, member_id: str, generation: int, protocol: str, assignments: Mapping[str, bytes]
    ) -> SyncResult:
        call = sync_group(
            self._group_id,
            generation,
            member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=protocol,
            assignments=assignments,
        )
        result = await self._in_round(call, None)
        # Rounds are rare: an idle connection would only be closed by the broker.
        self._drop_rounds("the round is done")
        self._check(result.error_code, "SyncGroup")
        return result

    async def heartbeat(self, member_id: str, generation: int, timeout_ms: int) -> int:
        try:
            # A purpose per group: groups of one worker
            # would block each other on a shared connection.
            self._beats = await self._cluster.coordinator(self._group_id, f"group {self._group_id}")
            code = await self._beats.call(
                heartbeat(self._group_id, generation, member_id), timeout_ms=timeout_ms
            )
        except RetriableError:
            self._cluster.coordinator_moved(self._group_id)
            raise
        self._check(code, "Heartbeat")
        return code

    async def leave(self, member_id: str, timeout_s: float) -> None:
        self._drop_rounds("left the group")
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.discard("left the group")
        if not member_id:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._cluster.call_coordinator(
                    self._group_id,
                    leave_group(self._group_id, member_id),
                    # Anything else, UNKNOWN_MEMBER_ID for
                    # instance, means that we are no member: done.
                    code_of=lambda code: code if code in _MOVED else NONE,
                )
        except (RetriableError, TimeoutError) as error:
            log.warning(
                "the group was left without an answer, its session ends by itself group=%s "
                "cause=%s",
                self._group_id,
                str(error) or f"no answer within {timeout_s:.0f} s",
            )

    async def describe(self) -> DescribedGroup:
        """Return state, protocol and members of the group.

        Raises:
            RetriableError: the coordinator is unreachable.
            ServerError: it may not be described.
        """
        try:
            connection = await self._cluster.coordinator(self._group_id)
            (group,) = await connection.call(describe_groups([self._group_id]))
        except RetriableError:
            self._cluster.coordinator_moved(self._group_id)
            raise
        self._check(group.error_code, "DescribeGroups")
        return described(group)

    async def _in_round(self, call: Call[R], timeout_ms: int | None) -> R:
        try:
            self._rounds = await self._cluster.coordinator(
                self._group_id, f"group {self._group_id} rounds"
            )
            return await self._rounds.call(call, timeout_ms=timeout_ms)
        except RetriableError:
            self._cluster.coordinator_moved(self._group_id)
            raise
        except asyncio.CancelledError:
            # The request that waits in the broker would
            # block everything after it on this connection.
            self._drop_rounds("the round was given up")
            raise

    def _drop_rounds(self, reason: str) -> None:
        connection, self._rounds = self._rounds, None
        if connection is not None:
            connection.discard(reason)

    def _check(self, code: int, what: str) -> None:
        denied = self._cluster.denied(code, "Read", self._group_id)
        if denied is not None:
            raise denied
        if code in _MOVED:
            self._cluster.coordinator_moved(self._group_id)
            raise server_error(code, f"{what} of group {self._group_id}")
