"""One lane: a source task over its partitions, under a lease, until each is handed over, or to the
end of its term in a stream.

Flow: ``LaneLease.claim`` -> the task host of this process copies -> stored positions -> ``renew``
with progress -> a partition whose position reached its end is handed over in the next record -> the
live flow continues there. Knows neither Spark nor sockets.

Invariants, tests of the same names:

1. A partition is handed over only when the stored position, and with it the offset map, has reached
   its end.
2. What is not handed over when a lane ends stays reserved, at its stored position.
3. A lane that is cancelled or superseded has stopped its task before it returns.
4. A lane that has a term keeps every partition reserved, failed ones too, and returns when the term
   is over: by time, by bytes, or because the partitions are dealt anew.
5. A partition that fails is released only when its task has stopped: at the position of its last
   acknowledged record.
6. The lanes that run share a rate: one that waits for a slot, has ended or renews its lease no more
   has no part of it.
7. A lane that has a term and whose task fails as a whole starts it again until the term is over:
   Spark would end all other lanes with it.
8. A lane that fails gives its partitions back, with the cause.
9. A partition of a stream that is held for a moment as its lane ends does not stand still.
10. An attempt whose partitions another one of the same run has stands by until that has ended: with
    speculation Spark runs two, counts one that raises as failed, and ends all lanes when one has
    failed too often.
11. Where that one has ended before its time, its machine with it, the lane is left to be tried
    again.
12. A partition of a stream whose source did not answer when the term was planned stands still with
    that cause until its lane has begun, however short terms are.
"""

import logging
import math
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

from mm2py.clock import Clock
from mm2py.errors import FatalError, Mm2pyError, PartitionError, RetriableError
from mm2py.mirror.backfills import LEASE_S, Job, Lease, LeaseState, Wanted
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.types import State, TopicPartition
from mm2py_jobs.copy.lease import RENEW_S, LaneSupersededError

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""How often a lane checks its task."""

STOP_S: Final = 10.0
SETTLE_S: Final = 4.0
"""How long a task of which a partition failed may take to store positions; within a lease, which is
not renewed meanwhile."""

TASK_STARTS: Final = 5
"""How often a task that failed as a whole is started before the attempt of the lane counts as
failed."""

HOLD_S: Final = 30.0
"""A partition that is held for less, and was not held before, waits for a leader or two: it does
not stand still."""

PAUSE_S: Final = 1.0
LEAST_PART: Final = 1 / 3


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """How far one partition is: what is stored, and what stops it."""

    position: int = -1
    target_start: int = -1
    target_end: int = -1
    records: int = 0
    bytes: int = 0
    lag: int = -1
    failed: bool = False
    cause: str = ""


class LaneCopy(Protocol):
    """The data plane of a lane: one source task and its stores."""

    @property
    def is_limited(self) -> bool: ...
    async def start(self, ends: Mapping[TopicPartition, int], sharing: int) -> None: ...
    def share(self, sharing: int) -> None:
        """Read with one of so many parts of the run's rate from now on."""
        ...

    async def pause(self, *, paused: bool) -> None: ...
    def status(self) -> Status | None: ...
    def progress(self, partition: TopicPartition) -> CopyProgress: ...
    async def stop(self, timeout_s: float) -> None: ...


class ShowsRequests(Protocol):
    """What a lane needs of ``mm2py.storage.backfill_store.BackfillStore``."""

    @property
    def job(self) -> Job | None: ...
    @property
    def leases(self) -> Mapping[TopicPartition, Lease]: ...
    @property
    def wanted(self) -> Wanted: ...
    def silent_s(self, lease: Lease) -> float: ...


class RenewsLeases(Protocol):
    """What a lane needs of ``mm2py_jobs.copy.lease.LaneLease``."""

    def claim(
        self, partitions: Collection[TopicPartition]
    ) -> Awaitable[Mapping[TopicPartition, Lease]]: ...
    def renew(self, leases: Sequence[Lease]) -> Awaitable[None]: ...
    def release(self, leases: Sequence[Lease]) -> Awaitable[None]: ...


@dataclass(frozen=True, slots=True)
class Term:
    """How long a lane of a stream copies: ``seconds`` at most, until a moment.

    ``bytes`` is what all lanes of the job may have copied, those of former terms included (0: no
    limit). ``turn`` is the job's; the lane ends when it rises. ``waits``: why the source did not
    answer when the term was planned.
    """

    turn: int
    seconds: float
    until_ms: int
    bytes: int = 0
    waits: str = ""

    def left_s(self, now_ms: int) -> float:
        """Return how long a lane copies that starts now: one that starts late gets a part of the
        term, or it would copy nothing."""
        left_s = (self.until_ms - now_ms) / 1000
        return min(self.seconds, max(left_s, self.seconds * LEAST_PART))


@dataclass(frozen=True, slots=True)
class TermPart:
    """What a lane copied of one partition in its term: source offsets ``start`` to ``end``
    (exclusive), -1 where none is stored."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    bytes: int
    lag: int
    cause: str
    failed: bool = False
    """Whether its lane has ended without an answer, or with a task that fails again and again."""


NO_PART: Final = TermPart("", -1, -1, -1, 0, 0, -1, "")
"""The row of a lane without partitions: Spark's first row costs far more than each later one."""


@dataclass(frozen=True, slots=True)
class LaneResult:
    """How a lane ended: partitions by state; ``parts`` has them by name where the lane has a
    term."""

    handed_over: int
    released: int
    left: int
    parts: tuple[TermPart, ...] = ()


@final
class LaneRun:
    """Runs one attempt of one lane.

    Args:
        partitions: of the lane, done or not.
        lease: of this attempt.
        copy: copies; stopped in any case.
        topic: which state is requested.
        given_up: state of a partition of a backfill that cannot be copied further.
        term: of a stream; None for a backfill.
    """

    def __init__(
        self,
        partitions: Collection[TopicPartition],
        lease: RenewsLeases,
        copy: LaneCopy,
        topic: ShowsRequests,
        *,
        run: int,
        clock: Clock,
        given_up: LeaseState = LeaseState.RELEASED,
        term: Term | None = None,
    ) -> None:
        self._sharing = 1
        self._given_up = given_up if term is None else LeaseState.RESERVED
        self._partitions = tuple(partitions)
        self._term = term
        self._deadline_s = 0.0
        self._lease, self._copy, self._topic = lease, copy, topic
        self._run, self._clock = run, clock
        self._left: dict[TopicPartition, Lease] = {}
        self._begun: Mapping[TopicPartition, Lease] = {}
        self._before: dict[TopicPartition, int] = {}
        """Bytes that former attempts had copied."""
        self._ended: list[Lease] = []
        self._starts = 0
        self._started_s = 0.0
        self._task_cause = ""
        """Why the task fails again and again."""
        self._waits = "" if term is None else term.waits
        """Why the task has not begun, where that was known before (12)."""
        self._held_since: dict[TopicPartition, float] = {}
        self._paused = False
        self._written_s = 0.0

    async def run(self) -> LaneResult:
        """Copy until every partition is handed over, released, or the lane is cancelled.

        Raises:
            LaneSupersededError: another attempt has the partitions.
            FatalError: the task failed again and again.
        """
        if self._term is None and self._has_missed_it():
            return LaneResult(0, 0, len(self._partitions))
        begun = self._begun = self._left = dict(await self._lease.claim(self._partitions))
        if self._term is not None:
            self._deadline_s = self._clock.monotonic() + self._term.left_s(self._clock.now_ms())
        self._before = {tp: lease.bytes for tp, lease in self._left.items()}
        try:
            if self._left and not self._is_over():
                await self._start()
            while not self._is_over():
                await self._clock.sleep(self._until_look_s())
                await self._follow_request()
                self._share()
                await self._look()
        except LaneSupersededError as error:
            # What is sent is under the permit's rules; positions are another attempt's.
            await self._copy.stop(0)
            if await self._stood_by():
                return LaneResult(0, 0, len(self._left))
            if self._is_current() and self._is_anything_left():
                # What may be tried again is, also in Spark's last attempt, which counts those that
                # were lost with their machines (11).
                raise RetriableError(f"{error}, and that one has ended before its time") from error
            raise
        except Exception as error:
            await self._copy.stop(STOP_S)
            with suppress(Mm2pyError):
                await self._give_back(str(error))
            raise
        except BaseException:
            await self._copy.stop(STOP_S)
            raise
        self._note_begun()
        await self._copy.stop(STOP_S)
        await self._give_back()
        handed_over = sum(it.state is LeaseState.HANDED_OVER for it in self._ended)
        parts = () if self._term is None else map(self._part, begun.values())
        return LaneResult(
            handed_over, len(self._ended) - handed_over, len(self._left), tuple(parts)
        )

    async def give_up(self, cause: str) -> LaneResult:
        """Copy nothing, and give up the partitions, of which the lane's process dies each time."""
        left = await self._lease.claim(self._partitions)
        await self._lease.release(
            [replace(it, state=self._given_up, cause=cause) for it in left.values()]
        )
        parts = (
            TermPart(*tp, it.position, it.position, 0, 0, -1, cause, failed=True)
            for tp, it in left.items()
        )
        return LaneResult(0, len(left), 0, tuple(parts))

    async def _stood_by(self) -> bool:
        """Wait while another attempt of this lane copies; return whether that one has ended in
        order (10)."""
        while self._is_current():
            known = self._topic.leases
            theirs = [known[it] for it in self._partitions if it in known]
            copying = [it for it in theirs if it.state is LeaseState.COPYING]
            if not copying:
                left = any(it.state.keeps_live_out for it in theirs)
                return bool(theirs) and (self._term is not None or not left)
            if self._topic.silent_s(copying[0]) >= 2 * LEASE_S:
                return False
            await self._clock.sleep(LOOK_S)
        return False

    def _is_anything_left(self) -> bool:
        known = self._topic.leases
        return any(known[it].state.keeps_live_out for it in self._partitions if it in known)

    async def _give_back(self, failure: str = "") -> None:
        """Let others have what is left; ``failure``: why the lane ends before its time (8)."""
        left = [self._with_progress(it) for it in self._left.values()]
        await self._lease.release(
            [
                replace(it, state=LeaseState.RESERVED, cause=failure or self._lasting(it))
                for it in left
            ]
        )

    def _lasting(self, lease: Lease) -> str:
        """Return why a partition stands still, empty where it is held for a moment (9)."""
        before = self._begun.get(lease.source)
        stood = before is not None and before.cause and before.position == lease.position
        held_s = self._clock.monotonic() - self._held_since.get(lease.source, math.inf)
        failed = self._task_cause or self._copy.progress(lease.source).failed
        lasts = self._term is None or failed or stood or held_s >= HOLD_S or bool(self._waits)
        return lease.cause if lasts else ""

    def _part(self, begun: Lease) -> TermPart:
        now = self._copy.progress(begun.source)
        return TermPart(
            *begun.source,
            begun.position,
            max(begun.position, now.position),
            now.records,
            now.bytes,
            now.lag,
            now.cause or self._task_cause or self._waits,
            failed=bool(self._task_cause),
        )

    def _until_look_s(self) -> float:
        """Return when the task is checked next; the lanes of a term end at the same moment, as the
        next one waits for all of them."""
        if self._term is None:
            return LOOK_S
        return min(LOOK_S, max(0.0, self._deadline_s - self._clock.monotonic()))

    def _is_over(self) -> bool:
        if self._topic.wanted is Wanted.CANCEL or not self._is_current():
            return True
        return not self._left if self._term is None else self._is_term_over(self._term)

    def _has_missed_it(self) -> bool:
        """Whether its run was ended while it waited for a slot: nothing is wrong, and nothing is
        left to do."""
        job, wanted = self._topic.job, self._topic.wanted
        if job is None or job.run != self._run:
            return False  # the lease has the reason
        return wanted is Wanted.CANCEL or not job.state.is_copied

    def _is_term_over(self, term: Term) -> bool:
        job = self._topic.job
        if self._clock.monotonic() >= self._deadline_s or job is None or job.turn != term.turn:
            return True
        # All lanes end for it within a renewal: one alone would leave its partitions until the
        # others end, too.
        return 0 < term.bytes <= sum(lease.bytes for lease in self._topic.leases.values())

    def _is_current(self) -> bool:
        job = self._topic.job
        return job is not None and job.run == self._run and job.state.is_copied

    async def _start(self) -> None:
        self._starts += 1
        self._started_s = self._clock.monotonic()
        self._sharing = self._sharing_now()
        await self._copy.start({tp: it.end for tp, it in self._left.items()}, self._sharing)
        if self._paused:
            await self._copy.pause(paused=True)

    async def _follow_request(self) -> None:
        paused = self._topic.wanted is Wanted.PAUSE
        if paused is not self._paused:
            self._paused = paused
            await self._copy.pause(paused=paused)

    async def _look(self) -> None:
        """Look at the task, and write what changed when it is time."""
        self._note_begun()
        failed = self._failed()
        if failed:
            # What was sent before the failure may still be acknowledged: released now, the live
            # flow would continue before it (5).
            await self._copy.stop(SETTLE_S)
        progress = {tp: self._with_progress(lease) for tp, lease in self._left.items()}
        self._note_held(progress)
        outcomes = (self._outcome(it, failed.get(it.source)) for it in progress.values())
        ended = [outcome for outcome in outcomes if outcome is not None]
        if progress and (ended or self._clock.monotonic() - self._written_s >= RENEW_S):
            self._written_s = self._clock.monotonic()
            over = {it.source for it in ended}
            left = {tp: it for tp, it in progress.items() if tp not in over}
            changed = [it for tp, it in left.items() if it != self._left[tp]]
            # One record renews the lease of them all.
            await self._lease.renew(changed + ended or list(left.values())[:1])
            self._ended += ended
            self._left = left
        if self._left and failed:
            # What is left of a task that was stopped for a partition: no start of a task that
            # failed.
            self._starts -= 1
            await self._start()
        await self._mend()

    def _note_begun(self) -> None:
        status = self._copy.status()
        if status is not None and status.state is not State.UNASSIGNED:
            self._waits = ""

    def _note_held(self, progress: Mapping[TopicPartition, Lease]) -> None:
        now_s = self._clock.monotonic()
        held = (tp for tp, lease in progress.items() if lease.cause)
        self._held_since = {tp: self._held_since.get(tp, now_s) for tp in held}

    def _share(self) -> None:
        """Take another part of the rate as soon as lanes come or end (6)."""
        sharing = self._sharing_now()
        if sharing != self._sharing:
            log.info("lane takes a part of the rate lanes=%d before=%d", sharing, self._sharing)
            self._sharing = sharing
            self._copy.share(sharing)

    def _sharing_now(self) -> int:
        """Return how many lanes run, this one too: those that hold partitions and have renewed them
        within their lease."""
        if not self._copy.is_limited:
            return 1
        running = {lease.lane for lease in self._left.values()}
        for lease in self._topic.leases.values():
            holds = lease.state is LeaseState.COPYING and lease.run == self._run
            if holds and lease.lane not in running and self._topic.silent_s(lease) < LEASE_S:
                running.add(lease.lane)
        return max(1, len(running))

    def _failed(self) -> dict[TopicPartition, str]:
        """Return partitions that cannot be copied further, with the cause."""
        failed: dict[TopicPartition, str] = {}
        if self._term is None:
            progress = {tp: self._copy.progress(tp) for tp in self._left}
            failed |= {tp: it.cause for tp, it in progress.items() if it.failed}
        status = self._copy.status()
        cause = None if status is None or status.state is not State.FAILED else status.cause
        if isinstance(cause, PartitionError):  # of its last partition that could be copied
            partition = TopicPartition(cause.topic, cause.partition)
            if partition in self._left:
                failed[partition] = str(cause)
        return failed

    async def _mend(self) -> None:
        """Start a task again that failed as a whole; its next start finds the positions in the
        target's log."""
        status = self._copy.status()
        if not self._left or status is None or status.state is not State.FAILED:
            if self._clock.monotonic() - self._started_s >= HOLD_S:
                self._task_cause = ""
            return
        cause = status.cause
        if self._starts >= TASK_STARTS:
            self._task_cause = (
                f"the lane's task failed {self._starts} times, the last cause: {cause}"
            )
            if self._term is None:
                raise FatalError(self._task_cause)
        log.warning("task of a lane is started again cause=%s", cause)
        await self._clock.sleep(PAUSE_S * min(self._starts, TASK_STARTS))
        await self._start()

    def _with_progress(self, lease: Lease) -> Lease:
        progress = self._copy.progress(lease.source)
        started = lease.target_start if lease.target_start >= 0 else progress.target_start
        return replace(
            lease,
            position=max(lease.position, progress.position),
            target_start=started,
            target_end=max(lease.target_end, progress.target_end, started),
            bytes=self._before[lease.source] + progress.bytes,
            lag=progress.lag,
            cause=progress.cause or self._task_cause or self._waits,
        )

    def _outcome(self, lease: Lease, failure: str | None) -> Lease | None:
        """Return the last record of a partition, None while it is copied; ``failure`` is why it
        cannot be copied further."""
        if lease.position >= lease.end:
            return replace(lease, state=LeaseState.HANDED_OVER, cause="")
        if failure is not None:
            return replace(lease, state=self._given_up, cause=failure)
        return None
