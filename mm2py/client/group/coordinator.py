"""What a ``GroupMember`` asks of its group's coordinator, and what it makes of the answers.

Flow: ``GroupMember`` -> ``GroupCoordinator`` (``CoordinatorLink``, or a group in memory) -> codes -> ``Joined``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mm2py.errors import RetriableError
from mm2py.protocol.groups import DescribedGroup, GroupProtocol, JoinResult, SyncResult


class MembershipEndedError(RetriableError):
    """The coordinator dropped us; what we owned may have another owner by now."""


class InconsistentProtocolError(RetriableError):
    """The group speaks none of the protocols that we offer."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A generation of the group; ``members`` with their metadata are known to its leader only."""

    member_id: str
    generation: int
    leader_id: str
    protocol: str
    members: Mapping[str, bytes]

    @property
    def leads(self) -> bool:
        """Whether this member hands out the work."""
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
        """Join, answered when all members have; heartbeats may be sent meanwhile."""
        ...

    async def sync(
        self, member_id: str, generation: int, protocol: str, assignments: Mapping[str, bytes]
    ) -> SyncResult:
        """Hand in the leader's assignments (followers: none), answered when the leader has."""
        ...

    async def heartbeat(self, member_id: str, generation: int, timeout_ms: int) -> int:
        """Return the error code."""
        ...

    async def leave(self, member_id: str, timeout_s: float) -> None:
        """Drop what is under way and leave; an empty id only does the former. Raises nothing retriable."""
        ...

    async def describe(self) -> DescribedGroup:
        """Return who is in the group."""
        ...
