"""Membership of a worker in its group: rounds of assignment, and the leader.

Flow: ``rejoin`` -> one ``Round`` -> the herder starts and stops work -> ``signal`` returns when the
next round is due or the membership is over. It starts and stops no work itself. ``SoloMembership``
has no group at all.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

from mm2py.client.permit import UNLIMITED, Permit
from mm2py.errors import RetriableError
from mm2py.runtime.group.assignor import configured_work
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import ConfigSnapshot
from mm2py.types import TaskId, Work

Unwritten = Callable[[ConfigSnapshot], bool]
"""Whether this worker, leading a round, has to write its file's configs before a task starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Outcome of one rebalance for this worker.

    ``assigned`` is only what is new, with the eager protocol everything (the caller stopped all
    before). ``failed``: nothing may start, as not all have read the same configs or the leader has
    some to write; refresh and rejoin.
    """

    member_id: str
    generation: int
    leader: bool
    leader_url: str
    config_offset: int
    assigned: Work
    revoked: Work
    delay_ms: int
    failed: bool
    incremental: bool
    signed: bool


@dataclass(frozen=True, slots=True)
class Rejoin:
    """A new round is due: a worker joined or left, one was requested, or a delay is over."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The membership is over: stop all work, write nothing more, then join with nothing owned."""

    reason: str


class MembershipLostError(RetriableError):
    """The membership ended while joining: act on ``lost`` as if ``signal`` had returned it."""

    def __init__(self, lost: Lost) -> None:
        super().__init__(f"the membership of the group is over: {lost.reason}")
        self.lost = lost


class WorkerMembership(Protocol):
    """This worker's place in the group."""

    @property
    def solo(self) -> bool:
        """Whether no other worker can ever join: requests wait for rounds, nothing is signed."""
        ...

    async def rejoin(self, owned: Work, config_offset: int, unwritten: Unwritten) -> Round:
        """Take part in one round; heartbeats continue meanwhile.

        ``unwritten`` is asked where this worker plans the round for others too: it then assigns
        nothing.

        Raises:
            MembershipLostError: the membership is over, and ``owned`` may have another owner.
            RetriableError: the coordinator is unreachable; work stays owned, and the caller
                retries.
            ForeignMemberError: not all members are ours; stop all work, then ``until_ours``.
        """
        ...

    async def is_empty(self) -> bool:
        """Return whether the group has no member, not even this one; raises as a call does."""
        ...

    async def is_alone(self) -> bool:
        """Return whether this worker is the only member now; raises as a call does."""
        ...

    async def until_ours(self) -> None:
        """Leave, and wait until the group has no foreign member; logs them every 10 s."""
        ...

    async def signal(self) -> Rejoin | Lost:
        """Return the next reason to act."""
        ...

    @property
    def permit(self) -> Permit:
        """The right to write that this membership proves."""
        ...

    @property
    def generation(self) -> int:
        """Generation of the last round, -1 before the first."""
        ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def leader_url(self) -> str | None:
        """Where the leader listens; None while joining or unknown."""
        ...

    def owner_url(self, work: str | TaskId) -> str | None:
        """Return where the owner of a connector or task listens; known to the leader only."""
        ...

    def member_urls(self) -> tuple[str, ...]:
        """Return where all members listen; known to the leader only."""
        ...

    async def leave(self) -> None:
        """Leave the group; safe twice."""
        ...


# ---- a worker on its own


@final
class SoloMembership:
    """Implements ``WorkerMembership`` without a group: one member, which leads."""

    def __init__(self, store: ConfigBackingStore, *, url: str) -> None:
        self._store = store
        self._url = url
        self._joined = False

    async def rejoin(self, owned: Work, config_offset: int, unwritten: Unwritten) -> Round:
        """Give out what is configured and not owned yet, take away what is not configured."""
        # ``StandaloneHerder`` runs whatever it has, whichever class.
        configured = configured_work(self._store.snapshot(), lambda _: True)
        self._joined = True
        return Round(
            member_id="standalone",
            generation=0,
            leader=True,
            leader_url=self._url,
            config_offset=config_offset,
            assigned=configured - owned,
            revoked=owned - configured,
            delay_ms=0,
            failed=False,
            incremental=True,
            signed=False,
        )

    async def is_empty(self) -> bool:
        return True

    async def is_alone(self) -> bool:
        return True

    async def until_ours(self) -> None:
        """Return at once: there is no other member."""

    async def signal(self) -> Rejoin | Lost:
        # A future that is never completed, rather than a long sleep: it ends with its cancel.
        return await asyncio.Future[Rejoin | Lost]()  # nothing happens to a group of one

    @property
    def permit(self) -> Permit:
        return UNLIMITED

    @property
    def solo(self) -> bool:
        return True

    @property
    def generation(self) -> int:
        """0 as in Java; -1 before the first round."""
        return 0 if self._joined else -1

    @property
    def is_leader(self) -> bool:
        return self._joined

    @property
    def leader_url(self) -> str | None:
        return self._url if self._joined else None

    def owner_url(self, work: str | TaskId) -> str | None:
        return self._url

    def member_urls(self) -> tuple[str, ...]:
        return (self._url,)

    async def leave(self) -> None:
        self._joined = False
