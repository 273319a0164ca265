"""The driver of a backfill: takes partitions from the live flow, has lanes copy them, and restores
what it changed.

Flow: ``claim`` (one driver at a time) -> former lanes are fenced -> partitions are reserved ->
every worker of the live flow has confirmed that it copies none of them -> topic settings -> copies
that are made again go back -> lanes on Spark -> each lane hands its partitions over -> settings put
back. Everything that a later driver needs is in the backfill topic before it is done, so that
another run continues after a crash.

Invariants, tests of the same names (those of the claim: ``mm2py.storage.job_claim``):

1. A setting is changed only after its former value is in the job record, and the job is over only
   after it was put back.
2. Lanes start only after every member of the live flow's group has confirmed the reservation.
3. A partition that is not handed over stays reserved until a run continues or a cancel releases it.
4. A run copies, whatever was wanted of the one before it.
5. Partitions whose copies have begun to go back (``mm2py_jobs.copy.copy_again``) are given back
   only when that is done.
6. Of two restores that have a target topic in common, whichever flows they belong to, one at most
   has lanes.
7. Nothing is reserved beside a failover that has begun (8 of ``mm2py_jobs.failover.driver``); what
   a former run has reserved is given back.
8. A job whose driver died before it had reserved anything is begun as a new one: it has copied
   nothing.
9. What a former run of a restore has reserved stays so where a later one is refused, except by a
   failover: the flow would copy on where the archive is not restored.
10. A job does not continue behind copies that the target has lost.
11. Lanes end where another program joins the flow's group: it would copy each of their records,
    too.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, final

from mm2py.client.connect.admin import ConfigOp
from mm2py.clock import SYSTEM_CLOCK, Clock, cancelled
from mm2py.errors import FatalError, FatalServerError, Mm2pyError
from mm2py.mirror.backfills import (
    ALIVE_S,
    NO_DRIVER,
    Job,
    JobKind,
    JobState,
    Lease,
    LeaseState,
    SettingChange,
    Wanted,
    Wish,
    new_id,
)
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.job_claim import (
    LOOK_S,
    BackfillRefusedError,
    DriverSupersededError,
    JobClaim,
)
from mm2py.types import TopicPartition
from mm2py_jobs.copy.copy_again import begun, go_back, is_begun
from mm2py_jobs.copy.live_flow import (
    BackfillFlow,
    another_program,
    first_answer,
    refuse_beside_failover,
    wait_until_released,
)
from mm2py_jobs.copy.plan import PartitionPlan, Plan, deal_lanes

log = logging.getLogger(__name__)

FOLLOW_S: Final = 90.0
"""How long a driver that lives may take to apply a requested state: its lanes deliver what they
have read."""

STOPPED: Final = "stopped; run the same command again to continue"
_FOLLOWED: Final = {Wanted.PAUSE: JobState.PAUSED, Wanted.RUN: JobState.RUNNING}


def new_job(
    key: str,
    *,
    topics: str,
    start: str = "earliest",
    end: str = "now",
    lanes: int = 1,
    archive: str = "",
) -> Job:
    """Return a job as it was requested, with a new id where ``key`` is empty; ``archive`` is that
    of a restore."""
    return Job(
        id=key or new_id(SYSTEM_CLOCK.now_ms()),
        state=JobState.RUNNING,
        run=1,
        lanes=lanes,
        topics=topics,
        start=start,
        end=end,
        archive=archive,
    )


class Lanes(Protocol):
    """Runs lanes on Spark."""

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None: ...


@final
class BackfillDriver:
    """Drives the newest backfill of a flow, or begins one.

    Args:
        claim: of the flow, shared with nothing.
        store: the backfill topic, open.
        flow: the target.
        name: ``A->B``.
    """

    def __init__(
        self,
        claim: JobClaim,
        store: BackfillStore,
        flow: BackfillFlow,
        *,
        name: str,
        clock: Clock,
    ) -> None:
        self._claim, self._store, self._flow = claim, store, flow
        self._name, self._clock = name, clock
        self._stopped_by = STOPPED

    # ---- one run

    async def claim(self, archive: str | None = None) -> Job | None:
        """Become the only driver; return the job that another run left unfinished, None for none.

        Args:
            archive: of the restore that is to be run, empty for a backfill; None for any job.

        Raises:
            BackfillRefusedError: another driver works on it, or what is unfinished is another job.
        """
        return await self._claim.claim(JobKind.BACKFILL, archive)

    @property
    def has_reserved(self) -> bool:
        """Whether the newest job has partitions; a driver writes them after its own record, so that
        one that died between has none."""
        return bool(self._store.leases)

    async def run(self, plan: Plan, new: Job, lanes: Lanes) -> Job:
        """Run the unfinished job, or ``new`` by ``plan``, to its end; return the job as it ended.

        Raises:
            BackfillRefusedError: the live flow does not let go of the partitions, or another driver
                was faster.
            Mm2pyError: it failed; what is copied is kept, and another run continues.
        """
        job, leases = self._take_up(plan, new)
        claim = self._claim
        if self._store.job is not None and self._store.job.id != job.id:
            await self._store.forget_notices()
        job = replace(job, lanes=max(job.lanes, new.lanes))
        # Who starts a run wants it to copy, whatever was wanted of the one before.
        await claim.begin(job, Wish(job=job.id, wanted=Wanted.RUN))
        return await claim.while_beating(self._copy(job, leases, plan, new, lanes))

    async def _copy(
        self, job: Job, leases: Sequence[Lease], plan: Plan, new: Job, lanes: Lanes
    ) -> Job:
        gives_back = True
        try:
            self._check_stopped()
            await self._claim.insist(partial(refuse_beside_failover, self._name, self._flow))
            gives_back = not (new.archive and self.has_reserved)
            await self._reserve(leases)
            if new.archive:
                await self._refuse_second_restore(plan)
            await self._refuse_lost_copies(plan)
            self._check_stopped()
            await self._change(job.settings)
            if plan.forgotten:
                await self._flow.set_positions(dict.fromkeys(plan.forgotten, -1))
            await self._place(leases)
            dealt = self._dealt(plan, new.lanes)
            self._check_stopped()
            if dealt:
                await self._while_alone(lanes.run(job, dealt))
        except BaseException as error:
            await self._close_after(error, gives_back=gives_back)
            raise
        return await self._close()

    async def _while_alone(self, copying: Awaitable[None]) -> None:
        """Let lanes copy; they end in order where another program joins the flow's group (11)."""
        watching = asyncio.create_task(self._yield_to_another())
        try:
            await copying
        finally:
            await cancelled(watching)

    async def _yield_to_another(self) -> None:
        refusal = await first_answer(self._clock, partial(another_program, self._name, self._flow))
        log.warning("lanes end cause=%s", refusal)
        await self.stop(f"{refusal.message}; {refusal.remedy}")

    def _check_stopped(self) -> None:
        """End a run that was stopped before its lanes began: it beats no more."""
        if self._claim.stopped:
            raise FatalError(STOPPED)

    async def _reserve(self, leases: Sequence[Lease]) -> None:
        """Keep the live flow out; returns when none of its workers copies these any more."""
        await self._claim.write(leases)
        await wait_until_released(self._name, self._flow, self._store, leases, self._clock)

    async def _refuse_second_restore(self, plan: Plan) -> None:
        """Refuse topics that another restore writes; checked after the reservation: of two that
        begin at once each sees the other (6)."""
        others = await self._flow.restored_elsewhere()
        for partition in plan.partitions:
            if partition.target_topic in others:
                raise BackfillRefusedError(
                    f"topic {partition.target_topic} is written by "
                    f"{others[partition.target_topic]}, which is not ended",
                    remedy="run that one to its end first, or restore into another topic with "
                    "--rename",
                )

    async def _refuse_lost_copies(self, plan: Plan) -> None:
        """Refuse to continue behind copies of a former run that the target has lost since (10)."""
        leases = self._store.leases
        copied = {
            TopicPartition(it.target_topic, it.partition): leases[it.source].target_end
            for it in plan.partitions
            if it.source in leases and leases[it.source].records and it.source not in plan.forgotten
        }
        if not copied:
            return
        ends = await self._claim.insist(partial(self._flow.log_ends, copied))
        for copy, end in copied.items():
            if ends[copy] < end:
                raise BackfillRefusedError(
                    f"{copy} ended at {end} when it was copied last and ends at {ends[copy]} now: "
                    "the target has lost copies, and the job would not make them again",
                    remedy="mm2py verify --repair makes copies of a backfill again; cancel a "
                    "restore, and begin it anew into an empty topic",
                )

    async def cancel(self) -> Job:
        """Give what is not handed over back to the live flow; for a job without a driver, after
        ``claim``.

        Raises:
            BackfillRefusedError: copies have begun to go back, and the live flow does not let go of
                them.
        """
        job = self._store.job
        assert job is not None
        job = replace(job, run=job.run + 1, state=JobState.RUNNING, cause="")
        await self._claim.begin(job)
        return await self._claim.while_beating(self._cancelled())

    async def _cancelled(self) -> Job:
        try:
            return await self._release("cancelled")
        except BaseException as error:
            await self._note_end(error)
            raise

    async def stop(self, cause: str = STOPPED) -> None:
        """End the run before its time: lanes stop in order, and another run continues."""
        claim, self._stopped_by = self._claim, cause
        claim.stopped = True
        if claim.job is not None:
            await claim.write([replace(claim.job, state=JobState.FAILED, cause=cause)])

    async def request(self, wanted: Wanted) -> Job:
        """Record a requested state of the newest job, wait until its driver has applied it, and
        return the job as it is then.

        A job without a driver can be cancelled only, which is done here.

        Raises:
            BackfillRefusedError: no job is unfinished, or none has a driver that could be paused or
                resumed.
            FatalError: the driver lives and has not applied it within ``FOLLOW_S``.
        """
        await self._store.refresh()
        job = self._store.job
        if job is None or job.state.is_over or job.kind is not JobKind.BACKFILL:
            raise BackfillRefusedError(f"no backfill of {self._name} is unfinished")
        driven = job.state.is_copied and await self._claim.is_driven()
        if not driven and wanted is not Wanted.CANCEL:
            raise BackfillRefusedError(f"backfill {job.id} of {self._name}: {NO_DRIVER}")
        await self._store.post([Wish(job=job.id, wanted=wanted)])
        followed = await self._followed(job, wanted) if driven else None
        if followed is not None:
            return followed
        left = await self.claim()
        return await self.cancel() if left is not None else self._store.job or job

    async def _followed(self, asked: Job, wanted: Wanted) -> Job | None:
        """Return the job once its driver has applied the request, None where it ended before."""
        deadline, beaten_s = self._clock.monotonic() + FOLLOW_S, self._clock.monotonic()
        before = asked
        while True:
            await self._store.refresh()
            job, now_s = self._store.job, self._clock.monotonic()
            if job is None or job.id != asked.id or job.state.is_over:
                return job
            if job.state is _FOLLOWED.get(wanted):
                return job
            beaten_s = now_s if job.beat != before.beat else beaten_s
            before = job
            if not job.state.is_copied or now_s - beaten_s > ALIVE_S:
                if wanted is Wanted.CANCEL:
                    return None
                raise BackfillRefusedError(f"backfill {job.id} of {self._name}: {NO_DRIVER}")
            if now_s > deadline:
                raise FatalError(
                    f"the driver of backfill {job.id} has not done it within {FOLLOW_S:.0f} s",
                    remedy="look at its log; the request is stored: the driver or its next run "
                    "applies it",
                )
            await self._clock.sleep(LOOK_S)

    # ---- begin

    def _take_up(self, plan: Plan, new: Job) -> tuple[Job, list[Lease]]:
        before = self._store.job
        if before is not None and not before.state.is_over:
            job = replace(before, run=before.run + 1, state=JobState.RUNNING, cause="")
            if self.has_reserved:
                left = [
                    lease
                    for lease in self._store.leases.values()
                    if lease.state is not LeaseState.HANDED_OVER and not lease.is_gone
                ]
                return job, [
                    replace(it, state=LeaseState.RESERVED, run=job.run, cause="") for it in left
                ]
            job = replace(job, settings=plan.settings)
        else:
            job = replace(new, started_ms=self._clock.now_ms(), settings=plan.settings)
        return job, [
            Lease(
                topic=partition.topic,
                partition=partition.partition,
                job=job.id,
                run=job.run,
                state=LeaseState.RESERVED,
                start=partition.start,
                end=partition.end,
                position=partition.start,
                again=partition.again,
            )
            for partition in plan.partitions
        ]

    async def _place(self, leases: Sequence[Lease]) -> None:
        """Let each partition begin where its copy is now: the live flow continued until it let
        go."""
        if any(it.again is not None for it in leases):
            try:
                leases = await self._claim.insist(partial(begun, self._flow, leases))
            except FatalServerError as error:
                raise BackfillRefusedError(error.message, remedy=error.remedy) from error
            await self._claim.write(leases)
            leases = await self._claim.insist(partial(go_back, self._flow, leases))
        known = await self._flow.known([it.source for it in leases])
        placed: list[Lease] = []
        positions: dict[TopicPartition, int] = {}
        for lease in leases:
            if not lease.state.keeps_live_out:
                placed.append(lease)
                continue
            position = known.resume(lease.source)
            if position < 0:
                positions[lease.source] = lease.start
            at = max(position, lease.position) if position < 0 else position
            done = at >= lease.end
            has_copies, target_end = lease.target_start >= 0, known.target_end(lease.source)
            placed.append(
                replace(
                    lease,
                    start=lease.start if has_copies else at,
                    end=max(lease.end, at) if done else lease.end,
                    position=at,
                    target_start=lease.target_start if has_copies else target_end,
                    target_end=max(lease.target_end, target_end),
                    state=LeaseState.HANDED_OVER if done else lease.state,
                )
            )
        if positions:
            await self._flow.set_positions(positions)
        await self._claim.write(placed)
        await self._store.refresh()

    def _dealt(self, plan: Plan, lanes: int) -> list[list[TopicPartition]]:
        sizes = {partition.source: partition.bytes for partition in plan.partitions}
        brokers = {partition.source: partition.brokers for partition in plan.partitions}
        left = [
            PartitionPlan(
                topic=it.topic,
                partition=it.partition,
                target_topic="",
                start=it.position,
                end=it.end,
                bytes=sizes.get(it.source, it.end - it.position),
                brokers=brokers.get(it.source, frozenset()),
            )
            for it in self._store.kept_out().values()
        ]
        return [[it.source for it in lane] for lane in deal_lanes(left, lanes)]

    # ---- end

    async def _close(self) -> Job:
        await self._store.refresh()
        job = self._claim.mine
        left = [lease for lease in self._store.leases.values() if lease.state.keeps_live_out]
        if left and self._store.wanted is Wanted.CANCEL:
            return await self._release("cancelled")
        stopped = [
            lease
            for lease in self._store.leases.values()
            # What is gone fails the run that noticed it; another one ends the job.
            if lease.state is LeaseState.RELEASED and not (lease.is_gone and lease.run < job.run)
        ]
        if left or stopped:
            first = next((it for it in (*stopped, *left) if it.cause), (*stopped, *left)[0])
            cause = (
                self._stopped_by
                if self._claim.stopped
                else (
                    f"{len(left) + len(stopped)} partitions are not copied to their end, "
                    f"{first.source}: {first.cause}"
                )
            )
            job = replace(job, state=JobState.FAILED, cause=cause)
        else:
            if self._claim.stopped and job.settings:
                # Everything was copied all the same; what was written last has ended the permit.
                await self._claim.write([replace(job, state=JobState.RUNNING)])
            await self._restore(job.settings)
            job = replace(job, state=JobState.DONE, cause="")
        await self._claim.write([job])
        return job

    async def _close_after(self, error: BaseException, *, gives_back: bool) -> None:
        """Note why the run ended; a refusal has changed nothing, but what has begun to go back, and
        what a former run has restored (9)."""
        if isinstance(error, BackfillRefusedError) and gives_back and not self._going_back():
            if not isinstance(error, DriverSupersededError):
                await self._release(str(error))
            return
        await self._note_end(error)

    async def _note_end(self, error: BaseException) -> None:
        if isinstance(error, DriverSupersededError):
            return
        job = self._claim.mine
        cause = str(error) or type(error).__name__
        try:
            await self._claim.write([replace(job, state=JobState.FAILED, cause=cause)])
        except DriverSupersededError:
            return
        except Mm2pyError as second:
            log.warning("the end of the run cannot be noted cause=%s", second)

    async def _release(self, cause: str) -> Job:
        """Put settings back, give partitions back to the live flow, end the job; what has begun to
        go back is done first (5)."""
        run = self._claim.mine.run
        going = [replace(it, state=LeaseState.RESERVED, run=run) for it in self._going_back()]
        if going:
            await self._reserve(going)
            await self._claim.write(await self._claim.insist(partial(go_back, self._flow, going)))
        await self._restore(self._claim.mine.settings)
        return await self._claim.release(JobState.CANCELLED, cause)

    def _going_back(self) -> list[Lease]:
        return [it for it in self._store.kept_out().values() if is_begun(it)]

    # ---- settings of target topics

    async def _change(self, settings: Sequence[SettingChange]) -> None:
        await self._alter(
            {setting: ConfigOp(setting.name, "SET", setting.during) for setting in settings}
        )

    async def _restore(self, settings: Sequence[SettingChange]) -> None:
        await self._alter(
            {
                setting: ConfigOp(setting.name, "DELETE")
                if setting.before is None
                else ConfigOp(setting.name, "SET", setting.before)
                for setting in settings
            }
        )

    async def _alter(self, operations: Mapping[SettingChange, ConfigOp]) -> None:
        changes: dict[str, list[ConfigOp]] = {}
        for setting, operation in operations.items():
            changes.setdefault(setting.topic, []).append(operation)
        altered = await self._claim.insist(partial(self._flow.alter_topic_configs, changes))
        for topic, error in altered.items():
            # A topic that was deleted meanwhile has no settings.
            if error is not None and error.code != UNKNOWN_TOPIC_OR_PARTITION:
                names = ", ".join(change.name for change in changes[topic])
                raise BackfillRefusedError(
                    f"{names} of target topic {topic} cannot be changed: {error}",
                    remedy="grant AlterConfigs on it, or change them by hand for the time of the "
                    "backfill",
                )
