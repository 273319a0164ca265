"""One lane of a backfill: a source task over its partitions, under a lease, until each is handed over.

Flow: ``LaneLease.claim`` -> the task host of this process copies -> stored positions -> ``renew`` with progress -> a partition whose
position reached its end is handed over in the next record -> the live flow continues there. Knows neither Spark nor sockets.

Invariants, tests of the same names:

1. A partition is handed over only when the stored position, and with it the offset map, has reached its end.
2. What is not handed over when a lane ends stays reserved, at its stored position.
3. A lane that is cancelled or superseded has stopped its task before it returns.
"""

import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

from mm2py.clock import Clock
from mm2py.errors import FatalError, PartitionError
from mm2py.mirror.backfills import Job, Lease, LeaseState, Wanted
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.spark.lease import RENEW_S, LaneSupersededError
from mm2py.types import State, TopicPartition

__all__ = ["CopyProgress", "LaneCopy", "LaneResult", "LaneRun", "RenewsLeases", "ShowsWishes"]

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""How often a lane looks at its task."""

STOP_S: Final = 10.0
TASK_STARTS: Final = 5
"""How often a task that failed as a whole is started before the attempt of the lane counts as failed."""

PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far one partition is: what is stored, and what stops it."""

    position: int = -1
    target_start: int = -1
    target_end: int = -1
    bytes: int = 0
    failed: bool = False
    cause: str = ""


class LaneCopy(Protocol):
    """The data plane of a lane: one source task and its stores."""

    async def start(self, ends: Mapping[TopicPartition, int]) -> None:
        """Copy these partitions up to their ends, from their stored positions on; a task that runs is replaced."""
        ...

    async def pause(self, *, paused: bool) -> None:
        """Read nothing, or continue."""
        ...

    def status(self) -> Status | None:
        """State of the task."""
        ...

    def progress(self, partition: TopicPartition) -> CopyProgress:
        """Return how far a partition is."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """Deliver what was read, store positions, close; safe twice."""
        ...


class ShowsWishes(Protocol):
    """What a lane looks at in ``mm2py.storage.backfill_store.BackfillStore``."""

    @property
    def job(self) -> Job | None:
        """The newest backfill."""
        ...

    @property
    def wanted(self) -> Wanted:
        """What people want of it."""
        ...


class RenewsLeases(Protocol):
    """What a lane needs of ``mm2py.spark.lease.LaneLease``."""

    def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Awaitable[Mapping[TopicPartition, Lease]]:
        """Take partitions over; return those that are left to copy."""
        ...

    def renew(self, leases: Sequence[Lease]) -> Awaitable[None]:
        """Write leases; ``LaneSupersededError`` where they are not ours any more."""
        ...

    def release(self, leases: Sequence[Lease]) -> Awaitable[None]:
        """Write the last leases."""
        ...


@dataclass(frozen=True, slots=True)
class LaneResult:
    """How a lane ended: partitions by state."""

    handed_over: int
    released: int
    left: int


@final
class LaneRun:
    """Runs one attempt of one lane.

    Args:
        partitions: of the lane, done or not.
        lease: of this attempt.
        copy: copies; stopped in any case.
        topic: what people want.
        given_up: state of a partition that cannot be copied further.
    """

    def __init__(
        self,
        partitions: Collection[TopicPartition],
        lease: RenewsLeases,
        copy: LaneCopy,
        topic: ShowsWishes,
        *,
        run: int,
        clock: Clock,
        given_up: LeaseState = LeaseState.RELEASED,
    ) -> None:
        self._given_up = given_up
        self._partitions = tuple(partitions)
        self._lease, self._copy, self._topic = lease, copy, topic
        self._run, self._clock = run, clock
        self._left: dict[TopicPartition, Lease] = {}
        self._before: dict[TopicPartition, int] = {}
        """Bytes that former attempts had copied."""
        self._ended: list[Lease] = []
        self._starts = 0
        self._paused = False
        self._written_s = 0.0

    async def run(self) -> LaneResult:
        """Copy until every partition is handed over, released, or the lane is cancelled.

        Raises:
            LaneSupersededError: another attempt has the partitions.
            FatalError: the task failed again and again.
        """
        self._left = dict(await self._lease.claim(self._partitions))
        self._before = {tp: lease.bytes for tp, lease in self._left.items()}
        try:
            if self._left:
                await self._start()
            while self._left and self._topic.wanted is not Wanted.CANCEL and self._is_current():
                await self._clock.sleep(LOOK_S)
                await self._follow_wish()
                await self._look()
        except LaneSupersededError:
            # What is sent is under the permit's rules; positions are another attempt's.
            await self._copy.stop(0)
            raise
        except BaseException:
            await self._copy.stop(STOP_S)
            raise
        await self._copy.stop(STOP_S)
        left = [self._with_progress(it) for it in self._left.values()]
        await self._lease.release([replace(it, state=LeaseState.RESERVED) for it in left])
        handed_over = sum(it.state is LeaseState.HANDED_OVER for it in self._ended)
        return LaneResult(handed_over, len(self._ended) - handed_over, len(self._left))

    def _is_current(self) -> bool:
        job = self._topic.job
        return job is not None and job.run == self._run and job.state.is_copied

    async def _start(self) -> None:
        self._starts += 1
        await self._copy.start({tp: lease.end for tp, lease in self._left.items()})

    async def _follow_wish(self) -> None:
        paused = self._topic.wanted is Wanted.PAUSE
        if paused is not self._paused:
            self._paused = paused
            await self._copy.pause(paused=paused)

    async def _look(self) -> None:
        """Look at the task, and write what changed when it is time."""
        progress = {tp: self._with_progress(lease) for tp, lease in self._left.items()}
        ended = [it for it in map(self._outcome, progress.values()) if it is not None]
        if ended or self._clock.monotonic() - self._written_s >= RENEW_S:
            self._written_s = self._clock.monotonic()
            over = {it.source for it in ended}
            await self._lease.renew([it for tp, it in progress.items() if tp not in over] + ended)
            self._ended += ended
            self._left = {tp: it for tp, it in progress.items() if tp not in over}
        await self._mend()

    async def _mend(self) -> None:
        """Start a task again that failed as a whole; its next start finds the positions in the target's log."""
        status = self._copy.status()
        if not self._left or status is None or status.state is not State.FAILED:
            return
        cause = status.cause
        if isinstance(cause, PartitionError):  # of its last partition that could be copied
            stopped = self._left.pop(TopicPartition(cause.topic, cause.partition), None)
            if stopped is not None:
                last = replace(stopped, state=self._given_up, cause=str(cause))
                await self._lease.renew([last])
                self._ended.append(last)
                self._starts -= 1
            if not self._left:
                return
        if self._starts >= TASK_STARTS:
            raise FatalError(
                f"the lane's task failed {self._starts} times, the last cause: {cause}"
            )
        log.warning("task of a lane is started again cause=%s", cause)
        await self._clock.sleep(PAUSE_S * self._starts)
        await self._start()

    def _with_progress(self, lease: Lease) -> Lease:
        found = self._copy.progress(lease.source)
        started = lease.target_start if lease.target_start >= 0 else found.target_start
        return replace(
            lease,
            position=max(lease.position, found.position),
            target_start=started,
            target_end=max(lease.target_end, found.target_end, started),
            bytes=self._before[lease.source] + found.bytes,
            cause=found.cause,
        )

    def _outcome(self, lease: Lease) -> Lease | None:
        """Return the last record of a partition, None while it is copied."""
        if lease.position >= lease.end:
            return replace(lease, state=LeaseState.HANDED_OVER, cause="")
        if self._copy.progress(lease.source).failed:
            return replace(lease, state=self._given_up)
        return None
