"""The driver of a stream: keeps the partitions of a flow for Spark, as long as it lives, and gives
them back at its end.

Flow: ``begin`` -> Spark gets ready -> ``follow``: partitions are reserved, the live flow lets go of
them -> terms of lanes (``mm2py_jobs.spark.stream_query``) -> ``follow`` for topics that come and go
-> ``end`` -> the live flow, or the next stream, continues at the stored positions.

A lane copies for a term of tens of seconds, with its connections, producers and fetch sessions
open, and its records are on their way within milliseconds of their arrival, as those of a worker's
task. A micro-batch for each few hundred milliseconds of records would open all of them anew each
time: Spark gives a task any executor, so nothing can be kept from one to the next. What Spark plans
and shows is the term; positions, offset map and offset syncs are written by the lanes while they
copy, and Kafka's count.

Invariants, tests of the same names:

1. A partition is dealt to a lane only after every worker of the live flow has confirmed that it
   does not copy it.
2. Lanes of a former run are fenced, and their leases have run out, before partitions are dealt
   again.
3. A partition that is given back is copied by no lane any more.
4. A partition that is found later begins at its first record, whatever ``auto.offset.reset`` is.
5. A lane that renews no more is replaced, by a new run; a target that takes nothing now ends no
   run.
6. Nothing is reserved beside a failover that has begun (8 of ``mm2py_jobs.failover.driver``):
   everything is given back, and the stream ends.
7. It ends likewise where another program joins the flow's group: that would copy each of its
   records, too.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Final, final

from mm2py.clock import Clock, cancelled
from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import (
    BEAT_S,
    LANE_LOST,
    NO_END,
    Job,
    JobKind,
    JobState,
    Lease,
    LeaseState,
    Wanted,
    Wish,
)
from mm2py.observability.logging import some_of
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.job_claim import LOOK_S, BackfillRefusedError, JobClaim
from mm2py.types import TopicPartition
from mm2py_jobs.copy.dealing import deal
from mm2py_jobs.copy.live_flow import (
    BackfillFlow,
    another_program,
    first_answer,
    refuse_beside_failover,
    wait_until_released,
)
from mm2py_jobs.copy.plan import LEAST_BYTES

log = logging.getLogger(__name__)

_UNCONFIRMED: Final = 0
"""In place of the run in a lease: workers of the live flow may still copy the partition."""

_ENDED: Final = "mm2py stream was ended"

_SHOWN: Final = 5
LOST_TERMS: Final = 8

STUCK_BEATS: Final = 45
"""Beats of the driver, which the target took, without a renewal by a lane that copies: it is
frozen. A retry of Spark takes less."""


class CopyEnd(Enum):
    """Why a copy ended in order."""

    STOPPED = "stopped"
    RECALLED = "recalled"
    CHANGED = "changed"
    FAILOVER = "failover"
    ANOTHER_PROGRAM = "another program"


@dataclass(frozen=True, slots=True)
class StreamPartitions:
    """What a flow copies now; ``late`` were found after the first start of the flow."""

    chosen: frozenset[TopicPartition]
    late: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class PlannedTerm:
    """The lanes of a term as JSON, and where the source's logs end: topic -> partition ->
    offset."""

    lanes: Sequence[Mapping[str, object]] = ()
    ends: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])


TermPlanner = Callable[[int, int], PlannedTerm]
"""Plans a term: its number, and how many bytes it may copy (0: no limit); without lanes nothing can
be copied now. Pickled."""


def deal_term(
    leases: Mapping[TopicPartition, Lease],
    ends: Mapping[TopicPartition, int],
    lanes: int,
    terms: int,
) -> list[list[TopicPartition]]:
    """Deal the partitions that the source still has to lanes: by the bytes that wait and those that
    came in a former term.

    Args:
        leases: of the stream; those that workers of the live flow have not confirmed yet are left
            out.
        ends: where the source's logs end.
        lanes: as many as run at the same time: one that waits for another would copy nothing
            meanwhile.
        terms: how many there were.

    A lane of its own has those of which a lane's process died, in each ``LOST_TERMS`` th term
    alone: in others, all that it has would stand still again.
    """

    def weight(partition: TopicPartition) -> int:
        lease = leases[partition]
        mean = lease.bytes // lease.records if lease.records else 1
        waiting = max(0, ends[partition] - lease.position)
        return LEAST_BYTES + mean * waiting + lease.bytes // max(1, terms)

    ready = sorted(tp for tp, it in leases.items() if it.run != _UNCONFIRMED and tp in ends)
    lost = [tp for tp in ready if is_lost(leases[tp])]
    well = [tp for tp in ready if tp not in lost]
    if not lost or (well and terms % LOST_TERMS):
        return deal(well, max(1, lanes), weight)
    if lanes < 2:
        return [ready]
    return [*deal(well, lanes - 1, weight), lost]


def is_lost(lease: Lease) -> bool:
    """Whether the process of its lane died of a partition."""
    return lease.cause.startswith(LANE_LOST)


def standing_still(leases: Mapping[TopicPartition, Lease]) -> dict[TopicPartition, str]:
    """Return why partitions of a stream are not copied now."""
    return {
        tp: it.cause for tp, it in sorted(leases.items()) if it.cause and it.state.keeps_live_out
    }


def standing_text(standing: Mapping[TopicPartition, str]) -> str:
    """Return a part of the last line of a stream, empty where nothing stood still."""
    if not standing:
        return ""
    causes = [f"{tp}: {cause}" for tp, cause in standing.items()]
    return f"; {len(causes)} partitions stood still: {some_of(causes, _SHOWN, '; ')}"


@final
class StreamDriver:
    """Drives the stream of a flow.

    Args:
        claim: of the flow, shared with nothing.
        store: the backfill topic, open and followed.
        flow: the target.
        name: ``A->B``.
    """

    def __init__(
        self, claim: JobClaim, store: BackfillStore, flow: BackfillFlow, *, name: str, clock: Clock
    ) -> None:
        self._claim, self._store, self._flow, self._name = claim, store, flow, name
        self._clock = clock
        self._beats: asyncio.Task[None] | None = None
        self._renewed: dict[int, tuple[int, int]] = {}
        """Lane that copies -> its newest record, and the driver's beat when that was seen first."""
        self._asked_back: set[TopicPartition] = set()
        """Partitions that the flow copies no more, and whose lanes were told to end."""

    @property
    def job(self) -> Job:
        return self._claim.mine

    @property
    def dealing(self) -> bool:
        """Whether terms are to be planned: ``end_term`` was not called."""
        return not self._claim.stopped

    @property
    def has_partitions(self) -> bool:
        """Whether partitions were reserved: lanes copy them, and the live flow does not."""
        return self.job.turn > 0

    async def begin(self, lanes: int, *, job: str) -> None:
        """Begin a stream named ``job``, which reserves nothing yet; one that died is continued,
        with the partitions it had.

        Raises:
            BackfillRefusedError: another stream or a backfill has the flow, or a failover of it has
                begun.
        """
        before = await self._claim.claim(JobKind.STREAM)
        if before is None:
            await self._store.forget_notices()
            begun = Job(
                id=job,
                state=JobState.RUNNING,
                run=1,
                lanes=lanes,
                kind=JobKind.STREAM,
                started_ms=self._clock.now_ms(),
            )
            await self._claim.begin(begun)
        else:
            log.info("a stream was not ended in order, it is continued run=%d", before.run + 1)
            await self._take_up(before, lanes)
        await self._yield_to_failover()
        self._beats = asyncio.create_task(self._claim.beat(), name="stream driver")

    async def again(self, cause: str) -> None:
        """Begin a new run after a query that failed; ``cause`` is shown meanwhile.
        ``BackfillRefusedError``: another driver has taken over."""
        self._renewed.clear()
        await self._take_up(replace(self.job, cause=cause), self.job.lanes)

    def check_lanes(self) -> None:
        """Find a lane that is frozen: Spark would wait for it for ever, and every other lane for
        the end of its term (5); ``FatalError``: there is one."""
        job = self._store.job
        beat = 0 if job is None else job.beat
        leases = self._store.kept_out().values()
        renewed: dict[int, tuple[int, int]] = {}
        for lane in {lease.lane for lease in leases if lease.state is LeaseState.COPYING}:
            newest = self._store.renewed(lane)
            record, since = self._renewed.get(lane, (newest, beat))
            renewed[lane] = (record, since) if record == newest else (newest, beat)
            if beat - renewed[lane][1] >= STUCK_BEATS:
                raise FatalError(
                    f"lane {lane} has not renewed its lease for {STUCK_BEATS * BEAT_S:.0f} s"
                )
        self._renewed = renewed

    async def follow_slots(self, slots: int) -> None:
        """Note how many lanes are dealt from now on, before they are: as many as ever were are
        fenced by who comes next (2)."""
        job = self.job
        if slots != job.slots:
            await self._claim.write([replace(job, lanes=max(job.lanes, slots), slots=slots)])

    async def follow(self, partitions: StreamPartitions) -> None:
        """Reserve partitions that are new, give back those that are gone, and let lanes be dealt
        anew.

        Raises:
            BackfillRefusedError: the live flow does not let go, or a failover has begun; everything
                is given back.
            RetriableError: not now, or not yet for the partitions that it names.
        """
        await self._yield_to_failover()
        await self._store.refresh()
        kept = self._store.kept_out()
        new = [self._new(it) for it in sorted(partitions.chosen - kept.keys())]
        gone = [
            replace(it, state=LeaseState.RELEASED, cause="the flow copies it no more")
            for tp, it in kept.items()
            if tp not in partitions.chosen and it.state is LeaseState.RESERVED
        ]
        await self._claim.write([*new, *gone])
        new += [it for tp, it in kept.items() if it.run == _UNCONFIRMED and tp in partitions.chosen]
        try:
            await wait_until_released(self._name, self._flow, self._store, new, self._clock)
        except BackfillRefusedError as error:
            await self._close(str(error))
            raise
        waiting = await self._place(new, partitions.late)
        copied = {
            tp
            for tp, it in kept.items()
            if tp not in partitions.chosen and it.state is LeaseState.COPYING
        }
        is_first = not self.has_partitions and not waiting
        if is_first or len(waiting) < len(new) or copied - self._asked_back:
            await self._claim.write([replace(self.job, turn=self.job.turn + 1)])
            log.info(
                "partitions of the stream partitions=%d new=%d",
                len(partitions.chosen),
                len(new) - len(waiting),
            )
        self._asked_back = copied
        if copied:
            raise RetriableError(
                f"the flow copies {some_of(sorted(map(str, copied)), _SHOWN)} no more: given "
                "back when their lanes have ended"
            )
        if waiting:
            raise RetriableError(
                f"where the source's logs begin is not known now of {some_of(waiting, _SHOWN)}: "
                "they wait, all others are copied"
            )

    async def proven(self, failure: str = "") -> None:
        """Forget why the last query failed: this one copies; ``failure``: why some of its lanes do
        not."""
        if self.job.cause != failure:
            await self._claim.write([replace(self.job, cause=failure)])

    async def wait_recalled(self) -> str:
        """Return why the flow's workers are to copy again, once they ask for it;
        ``BackfillRefusedError``: another driver has taken over."""
        beats = self._beats
        assert beats is not None
        while self._store.wanted is not Wanted.CANCEL:
            if beats.done():
                beats.result()
                raise FatalError("the stream's driver beats no more")
            await self._clock.sleep(LOOK_S)
        return "flow.engine is worker again: the flow's workers take over"

    async def wait_others(self) -> CopyEnd:
        """Return why the stream is to end once others copy the flow: a failover has begun, which
        waits for that (6), or workers of another program run it (7)."""
        return await first_answer(self._clock, self._failover_has_begun, self._another_has_joined)

    async def _failover_has_begun(self) -> CopyEnd | None:
        try:
            failover = await self._flow.unfinished_failover()
        except RetriableError as error:
            log.debug("whether a failover has begun is not known now cause=%s", error)
            return None
        return None if failover is None else CopyEnd.FAILOVER

    async def _another_has_joined(self) -> CopyEnd | None:
        refusal = await another_program(self._name, self._flow)
        return None if refusal is None else CopyEnd.ANOTHER_PROGRAM

    async def end_term(self) -> None:
        """Let lanes store what is copied and end; none is dealt after that."""
        self._claim.stopped = True
        await self._claim.write([replace(self.job, state=JobState.FAILED, cause=_ENDED)])

    async def end(self) -> None:
        """Give everything back, after the query has ended."""
        await self._store.refresh()
        await self._close(_ENDED + standing_text(standing_still(self._store.leases)))

    async def close(self) -> None:
        """End the beats; what is reserved stays so."""
        beats, self._beats = self._beats, None
        await cancelled(beats)

    async def _yield_to_failover(self) -> None:
        """Give everything back where a failover has begun (6)."""
        try:
            await self._claim.insist(partial(refuse_beside_failover, self._name, self._flow))
        except BackfillRefusedError as error:
            await self._close(str(error))
            raise

    async def _close(self, cause: str) -> None:
        self._claim.stopped = True
        await self._claim.begin(replace(self.job, state=JobState.FAILED, cause=cause))
        await self._claim.release(JobState.DONE, cause)
        await self.close()

    async def _take_up(self, before: Job, lanes: int) -> None:
        """Begin another run of a stream (2)."""
        run = before.run + 1
        job = replace(before, run=run, state=JobState.RUNNING, lanes=max(before.lanes, lanes))
        await self._claim.begin(job, Wish(job=job.id, wanted=Wanted.RUN))
        left = [
            replace(it, state=LeaseState.RESERVED, run=run if it.run else _UNCONFIRMED)
            for it in self._store.kept_out().values()
        ]
        await self._claim.write(left)
        await self._place([it for it in left if it.run], frozenset())

    def _new(self, partition: TopicPartition) -> Lease:
        return Lease(
            topic=partition.topic,
            partition=partition.partition,
            job=self.job.id,
            run=_UNCONFIRMED,
            state=LeaseState.RESERVED,
            start=0,
            end=NO_END,
            position=-1,
        )

    async def _place(self, leases: Sequence[Lease], late: Collection[TopicPartition]) -> list[str]:
        """Note where each copy is; what was found late and has no position begins at its first
        record (4).

        Returns those whose first record is not known now: without a leader, or deleted meanwhile.
        """
        if not leases:
            return []
        known = await self._flow.known([lease.source for lease in leases])
        first = [
            lease.source for lease in leases if lease.source in late and not known.has(lease.source)
        ]
        starts: Mapping[TopicPartition, int] = {}
        if first:
            starts = await self._flow.known_starts(first)
        if starts:
            await self._flow.set_positions(starts)
        waiting = set(first) - starts.keys()
        placed = [
            replace(
                lease,
                run=self.job.run,
                position=known.resume(lease.source),
                start=known.resume(lease.source) if lease.position < 0 else lease.start,
                target_start=known.target_end(lease.source)
                if lease.target_start < 0
                else lease.target_start,
                target_end=known.target_end(lease.source),
            )
            for lease in leases
            if lease.source not in waiting
        ]
        await self._claim.write(placed)
        await self._store.refresh()
        return sorted(map(str, waiting))
