"""The driver of a backfill: takes partitions from the live flow, has lanes copy them, and leaves nothing behind that it changed.

Flow: ``claim`` (one driver at a time) -> former lanes are fenced -> partitions are reserved -> every worker of the live flow has
confirmed that it copies none of them -> topic settings -> lanes on Spark -> each lane hands its partitions over -> settings put back.
Everything that a later driver needs is in the backfill topic before it is done, so that another run continues after a crash.

Invariants, tests of the same names:

1. Lanes start only after every member of the live flow's group has confirmed the reservation.
2. A setting is changed only after its former value is in the job record, and the job is over only after it was put back.
3. A job that another driver is working on is left alone.
4. A partition that is not handed over stays reserved until a run continues or a cancel releases it.
5. Of two drivers that begin at the same moment one is refused, and has changed nothing.
6. A run copies, whatever was wanted of the one before it.
"""

import asyncio
import logging
import os
import platform
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, final
from urllib.parse import urlsplit

from mm2py.client.connect.admin import ConfigOp
from mm2py.clock import Clock
from mm2py.errors import FatalError, Mm2pyError, ProtocolError, RetriableError, ServerError
from mm2py.mirror.backfill_report import NO_DRIVER
from mm2py.mirror.backfills import (
    ALIVE_S,
    BEAT_S,
    BackfillRecord,
    Job,
    JobState,
    Lease,
    LeaseState,
    SettingChange,
    Wanted,
    Wish,
    encode_backfill,
)
from mm2py.protocol.connect_group import decode_metadata, is_ours
from mm2py.protocol.groups import DescribedGroup
from mm2py.spark.copy_again import CopiesAgain, go_back, with_log_ends
from mm2py.spark.lease import LEASE_S, lane_id
from mm2py.spark.plan import PartitionPlan, Plan, deal_lanes
from mm2py.spark.survey import Known
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.privileged_writer import PrivilegedWriter
from mm2py.types import TopicPartition

__all__ = [
    "BackfillDriver",
    "BackfillFlow",
    "BackfillRefusedError",
    "DriverSupersededError",
    "Lanes",
    "Request",
    "driver_id",
]

log = logging.getLogger(__name__)

LET_GO_S: Final = 90.0
"""How long workers of the live flow may take to stop copying what was reserved."""

LOOK_S: Final = 0.3
FOLLOW_S: Final = 90.0
"""How long a driver that lives may take to do what people want: its lanes deliver what they have read."""

STOPPED: Final = "stopped; run the same command again to continue"
WRITE_S: Final = 60.0
_FOLLOWED: Final = {Wanted.PAUSE: JobState.PAUSED, Wanted.RUN: JobState.RUNNING}


def driver_id(flow: str) -> str:
    """Return the transactional id of a flow's driver."""
    return f"mm2py-backfill-{flow}-driver"


class BackfillRefusedError(FatalError):
    """A check refuses the backfill; nothing was changed, or it was put back."""


class DriverSupersededError(BackfillRefusedError):
    """Another driver has taken the backfill over; it is that one's to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What people asked for, as the job record keeps it; ``archive`` is that of a restore."""

    id: str
    topics: str
    start: str = "earliest"
    end: str = "now"
    lanes: int = 1
    archive: str = ""


class BackfillFlow(CopiesAgain, Protocol):
    """What a driver asks of the flow's target."""

    async def group(self) -> DescribedGroup:
        """Return the group of the live flow's workers."""
        ...

    async def known(self, partitions: Collection[TopicPartition]) -> Known:
        """Return stored positions and maps."""
        ...

    async def fence(self, transactional_ids: Sequence[str]) -> None:
        """Fence producers."""
        ...

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> Mapping[str, ServerError | None]:
        """Change topic configs of the target; None or the refusal per topic."""
        ...


class Lanes(Protocol):
    """Runs lanes on Spark."""

    async def run(self, job: Job, lanes: Sequence[Sequence[TopicPartition]]) -> None:
        """Run every lane to its end; raises what Spark or a lane raised."""
        ...


@final
class BackfillDriver:
    """Drives the newest backfill of a flow, or begins one.

    Args:
        store: the backfill topic, open.
        writer: writes it under the driver's transactional id.
        flow: the target.
        name: ``A->B``.
    """

    def __init__(
        self,
        store: BackfillStore,
        writer: PrivilegedWriter,
        flow: BackfillFlow,
        *,
        name: str,
        clock: Clock,
    ) -> None:
        self._store, self._writer, self._flow = store, writer, flow
        self._name, self._clock = name, clock
        self._job: Job | None = None
        self._known: Job | None = None
        """The job record that this driver took over, or wrote last; behind it another driver has written."""
        self._me = f"{platform.node()}/{os.getpid()}/{secrets.token_hex(3)}"
        self._stopped = False
        self._turn = asyncio.Lock()

    # ---- one run

    async def claim(self, archive: str | None = None) -> Job | None:
        """Become the only driver; return the job that another run left unfinished, None for none.

        Args:
            archive: of the restore that is to be run, empty for a backfill; None for any job.

        Raises:
            BackfillRefusedError: another driver works on it, or what is unfinished is another job.
        """
        await self._store.refresh()
        job = self._store.job
        if job is not None and job.state.is_copied and await self.is_driven():
            raise BackfillRefusedError(
                f"backfill {job.id} of {self._name} is running",
                remedy="watch it with mm2py backfill status, or end it with mm2py backfill cancel",
            )
        seen = _drive(self._store.job)
        await self._insist(self._writer.claim)
        await self._store.refresh()
        job = self._known = self._store.job
        if _drive(job) != seen:
            raise self._superseded(job)
        if job is None or job.state.is_over:
            return None
        if archive not in (None, job.archive):
            what = f"restore of {job.archive}" if job.archive else "backfill"
            raise BackfillRefusedError(
                f"the {what} {job.id} of {self._name} is unfinished",
                remedy="run its command again, or end it with mm2py backfill cancel",
            )
        return job

    async def is_driven(self) -> bool:
        """Return whether a driver works on the newest job: its beat rises within ``ALIVE_S``."""
        job, deadline = self._store.job, self._clock.monotonic() + ALIVE_S
        while self._clock.monotonic() < deadline:
            await self._clock.sleep(LOOK_S)
            await self._store.refresh()
            newer = self._store.job
            if job is None or newer is None or (newer.run, newer.beat) != (job.run, job.beat):
                return newer is not None and newer.state.is_copied
        return False

    async def run(self, plan: Plan, request: Request, lanes: Lanes) -> Job:
        """Run the unfinished job, or a new one by ``plan``, to its end; return the job as it ended.

        Raises:
            BackfillRefusedError: the live flow does not let go of the partitions, or another driver was faster.
            Mm2pyError: it failed; what is copied is kept, and another run continues.
        """
        job, leases = self._take_up(plan, request)
        await self._fence_lanes(max(job.lanes, request.lanes), leases)
        if self._store.job is not None and self._store.job.id != job.id:
            await self._store.forget_notices()
        job = self._job = replace(job, lanes=max(job.lanes, request.lanes), driver=self._me)
        # Who starts a run wants it to copy, whatever was wanted of the one before.
        await self._write([job, *leases, Wish(job=job.id, wanted=Wanted.RUN)])
        beats = asyncio.create_task(self._beat(), name="backfill driver")
        try:
            await self._live_flow_lets_go(leases)
            await self._change(job.settings)
            await self._place(leases)
            dealt = self._dealt(plan, request.lanes)
            if dealt:
                await lanes.run(job, dealt)
        except BaseException as error:
            beats.cancel()
            await self._close_after(error)
            raise
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)
        return await self._close()

    async def cancel(self) -> Job:
        """Give what is not handed over back to the live flow; for a job without a driver, after ``claim``."""
        job = self._store.job
        assert job is not None
        leases = list(self._store.leases.values())
        await self._fence_lanes(job.lanes, leases)
        self._job = replace(job, run=job.run + 1, driver=self._me)
        return await self._release("cancelled")

    async def stop(self) -> None:
        """End the run before its time: lanes stop in order, and another run continues."""
        self._stopped = True
        if self._job is not None:
            await self._write([replace(self._job, state=JobState.FAILED, cause=STOPPED)])

    async def wish(self, wanted: Wanted) -> Job:
        """Write what people want of the newest job, wait until its driver has done it, and return the job as it is then.

        A job without a driver can be cancelled only, which is done here.

        Raises:
            BackfillRefusedError: no job is unfinished, or none has a driver that could be paused or resumed.
            FatalError: the driver lives and has not done it within ``FOLLOW_S``.
        """
        await self._store.refresh()
        job = self._store.job
        if job is None or job.state.is_over:
            raise BackfillRefusedError(f"no backfill of {self._name} is unfinished")
        driven = job.state.is_copied and await self.is_driven()
        if not driven and wanted is not Wanted.CANCEL:
            raise BackfillRefusedError(f"backfill {job.id} of {self._name}: {NO_DRIVER}")
        await self._store.post([Wish(job=job.id, wanted=wanted)])
        followed = await self._followed(job, wanted) if driven else None
        if followed is not None:
            return followed
        left = await self.claim()
        return job if left is None else await self.cancel()

    async def _followed(self, asked: Job, wanted: Wanted) -> Job | None:
        """Return the job once its driver has done what is wanted, None where it ended before."""
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
                    remedy="look at its log; what is wanted is stored, it follows later, or its next run does",
                )
            await self._clock.sleep(LOOK_S)

    # ---- begin

    def _take_up(self, plan: Plan, request: Request) -> tuple[Job, list[Lease]]:
        before = self._store.job
        if before is not None and not before.state.is_over:
            job = replace(before, run=before.run + 1, state=JobState.RUNNING, cause="")
            left = [
                it for it in self._store.leases.values() if it.state is not LeaseState.HANDED_OVER
            ]
            return job, [
                replace(it, state=LeaseState.RESERVED, run=job.run, cause="") for it in left
            ]
        job = Job(
            id=request.id,
            state=JobState.RUNNING,
            run=1,
            lanes=request.lanes,
            topics=request.topics,
            start=request.start,
            end=request.end,
            started_ms=self._clock.now_ms(),
            settings=plan.settings,
            archive=request.archive,
        )
        return job, [
            Lease(
                topic=it.topic,
                partition=it.partition,
                job=job.id,
                run=1,
                state=LeaseState.RESERVED,
                start=it.start,
                end=it.end,
                position=it.start,
                again=it.again,
            )
            for it in plan.partitions
        ]

    async def _fence_lanes(self, lanes: int, leases: Sequence[Lease]) -> None:
        """Let no lane of a former run renew; wait for what it was granted."""
        await self._flow.fence([lane_id(self._name, number) for number in range(lanes)])
        await self._store.refresh()
        known = self._store.leases
        if any(
            it.source in known and known[it.source].state is LeaseState.COPYING for it in leases
        ):
            log.info("lanes of a former run may still write, their leases run out")
            await self._clock.sleep(LEASE_S)

    async def _live_flow_lets_go(self, leases: Sequence[Lease]) -> None:
        """Wait until every worker of the live flow has confirmed that it copies none of the partitions."""
        if not leases:
            return
        await self._store.refresh()
        reserved, deadline = self._store.reserved, self._clock.monotonic() + LET_GO_S
        while True:
            group = await self._flow.group()
            if group.members and group.protocol_name and not is_ours(group.protocol_name):
                raise BackfillRefusedError(
                    f"the flow {self._name} is run by another program (group {group.group_id}), which does not leave"
                    " partitions to a backfill",
                    remedy="stop its workers, run the backfill, and start them again",
                )
            await self._store.refresh()
            pending = [it for it in _workers(group) if self._store.noticed(it) < reserved]
            if not pending:
                return
            if self._clock.monotonic() > deadline:
                raise BackfillRefusedError(
                    f"workers of the flow {self._name} have not let go of the partitions within {LET_GO_S:.0f} s:"
                    f" {', '.join(pending)}",
                    remedy="look at their logs; a worker that does not answer leaves the group after its session timeout",
                )
            await self._clock.sleep(LOOK_S)

    async def _place(self, leases: Sequence[Lease]) -> None:
        """Let each partition begin where its copy is now: the live flow went on until it let go."""
        if any(it.again is not None for it in leases):
            leases = await with_log_ends(self._flow, leases)
            await self._write(leases)
            leases = await go_back(self._flow, leases)
        known = await self._flow.known([it.source for it in leases])
        placed: list[Lease] = []
        positions: dict[TopicPartition, int] = {}
        for lease in leases:
            if not lease.state.keeps_live_out:
                placed.append(lease)
                continue
            position = known.resume(lease.source)
            if position < 0 and lease.start > 0:
                positions[lease.source] = lease.start
            at = max(position, lease.position) if position < 0 else position
            done = at >= lease.end
            begun = lease.target_start >= 0
            placed.append(
                replace(
                    lease,
                    start=lease.start if begun else at,
                    end=max(lease.end, at) if done else lease.end,
                    position=at,
                    target_end=max(lease.target_end, known.target_end(lease.source))
                    if begun
                    else -1,
                    state=LeaseState.HANDED_OVER if done else lease.state,
                )
            )
        if positions:
            await self._flow.set_positions(positions)
        await self._write(placed)
        await self._store.refresh()

    def _dealt(self, plan: Plan, lanes: int) -> list[list[TopicPartition]]:
        sizes = {it.source: it.bytes for it in plan.partitions}
        left = [
            PartitionPlan(
                topic=it.topic,
                partition=it.partition,
                target_topic="",
                start=it.position,
                end=it.end,
                bytes=sizes.get(it.source, it.end - it.position),
            )
            for it in self._store.kept_out().values()
        ]
        return [[it.source for it in lane] for lane in deal_lanes(left, lanes)]

    # ---- end

    async def _close(self) -> Job:
        await self._store.refresh()
        job = self._mine()
        left = [it for it in self._store.leases.values() if it.state.keeps_live_out]
        if left and self._store.wanted is Wanted.CANCEL:
            return await self._release("cancelled")
        stopped = [it for it in self._store.leases.values() if it.state is LeaseState.RELEASED]
        if left or stopped:
            first = next((it for it in (*stopped, *left) if it.cause), (*stopped, *left)[0])
            cause = (
                STOPPED
                if self._stopped
                else f"{len(left) + len(stopped)} partitions are not copied to their end, {first.source}: {first.cause}"
            )
            job = replace(job, state=JobState.FAILED, cause=cause)
        else:
            await self._restore(job.settings)
            job = replace(job, state=JobState.DONE, cause="")
        await self._write([job])
        self._job = job
        return job

    async def _close_after(self, error: BaseException) -> None:
        """Note why the run ended; a refusal leaves nothing behind."""
        if isinstance(error, DriverSupersededError):
            return
        if isinstance(error, BackfillRefusedError):
            await self._release(str(error))
            return
        job = self._mine()
        cause = str(error) or type(error).__name__
        try:
            await self._write([replace(job, state=JobState.FAILED, cause=cause)])
        except Mm2pyError as second:
            log.warning("the end of the run cannot be noted cause=%s", second)

    async def _release(self, cause: str) -> Job:
        """Give partitions back to the live flow, put settings back, end the job."""
        await self._store.refresh()
        job = self._mine()
        released = [
            replace(it, state=LeaseState.RELEASED, run=job.run, cause=cause)
            for it in self._store.leases.values()
            if it.state.keeps_live_out
        ]
        await self._restore(job.settings)
        job = replace(job, state=JobState.CANCELLED, cause=cause)
        await self._write([*released, job])
        self._job = job
        return job

    # ---- settings of target topics

    async def _change(self, settings: Sequence[SettingChange]) -> None:
        await self._alter({it: ConfigOp(it.name, "SET", it.during) for it in settings})

    async def _restore(self, settings: Sequence[SettingChange]) -> None:
        await self._alter(
            {
                it: ConfigOp(it.name, "DELETE")
                if it.before is None
                else ConfigOp(it.name, "SET", it.before)
                for it in settings
            }
        )

    async def _alter(self, operations: Mapping[SettingChange, ConfigOp]) -> None:
        changes: dict[str, list[ConfigOp]] = {}
        for setting, operation in operations.items():
            changes.setdefault(setting.topic, []).append(operation)
        for topic, error in (await self._flow.alter_topic_configs(changes)).items():
            if error is not None:
                names = ", ".join(it.name for it in changes[topic])
                raise BackfillRefusedError(
                    f"{names} of target topic {topic} cannot be changed: {error}",
                    remedy="grant AlterConfigs on it, or change them by hand for the time of the backfill",
                )

    # ---- records

    def _superseded(self, newest: Job | None) -> DriverSupersededError:
        identifier = "" if newest is None else f" {newest.id}"
        return DriverSupersededError(
            f"another driver has taken backfill{identifier} of {self._name} over"
        )

    def _mine(self) -> Job:
        assert self._job is not None
        return self._job

    async def _beat(self) -> None:
        while True:
            await self._clock.sleep(BEAT_S)
            if self._stopped:
                return
            job = self._mine()
            state = JobState.PAUSED if self._store.wanted is Wanted.PAUSE else JobState.RUNNING
            self._job = replace(job, beat=job.beat + 1, state=state)
            try:
                await self._write([self._job])
            except RetriableError as error:
                log.warning("driver's beat is not written cause=%s", error)

    async def _write(self, records: Sequence[BackfillRecord]) -> None:
        """Write records in one transaction; behind a failure only if no other driver has taken over.

        Raises:
            DriverSupersededError: one has.
        """
        entries = [encode_backfill(record) for record in records]
        mine = next((it for it in records if isinstance(it, Job)), None)

        async def write() -> None:
            if not self._writer.claimed:
                await self._writer.claim()
                await self._store.refresh()
                newest = self._store.job
                if newest is not None and _drive(newest) not in (_drive(self._known), _drive(mine)):
                    raise self._superseded(newest)
            await self._writer.write(entries)
            self._known = mine or self._known

        async with self._turn:
            await self._insist(write)

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        deadline = self._clock.monotonic() + WRITE_S
        while True:
            try:
                await step()
            except RetriableError as error:
                if self._clock.monotonic() > deadline:
                    raise
                log.debug("backfill topic cannot be written now cause=%s", error)
                await self._clock.sleep(LOOK_S)
            else:
                return


def _drive(job: Job | None) -> tuple[str, int, str] | None:
    """Return what differs between two drivers' records of one job."""
    return None if job is None else (job.id, job.run, job.driver)


def _workers(group: DescribedGroup) -> list[str]:
    """Return the workers of a group, by the addresses in their metadata; members join meanwhile have none yet."""
    workers: list[str] = []
    for member in group.members:
        try:
            workers.append(urlsplit(decode_metadata(member.metadata).url).netloc)
        except ProtocolError:
            workers.append(member.client_id or member.member_id)
    return workers
