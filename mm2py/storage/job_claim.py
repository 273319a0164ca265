"""The right to copy a flow with Spark: one driver at a time, its beats, its records, and the live
flow kept out.

Flow: ``claim`` -> ``begin`` of a run -> ``write`` of its leases -> ``beat`` while lanes copy ->
``release``; ``take_back`` on a worker of the flow, where the driver of a stream is gone. Shared by
``mm2py_jobs.copy.backfill`` and ``mm2py_jobs.copy.stream``, which have one topic, one driver's id
and one set of lanes' ids per flow, so that neither starts beside the other.

Invariants, tests of the same names:

1. A job that another driver is working on is left alone; of two drivers that begin at the same
   moment one is refused.
2. Nothing is written after another driver's claim.
3. What a former run kept is dealt or given back only after its lanes can claim nothing more and
   their leases have run out.
4. What a driver does beside its records leaves only while its ``permit`` is valid: for ``LEASE_S``
   from before the record that was confirmed last. Another one begins only when no record was
   confirmed for ``ALIVE_S``, or after a record that ended the permit.
"""

import asyncio
import logging
import math
import os
import platform
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Final, Generic, Protocol, TypeVar, final

from mm2py.client.permit import Permit
from mm2py.clock import Clock, cancelled
from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import (
    ALIVE_S,
    BEAT_S,
    LEASE_S,
    BackfillRecord,
    Job,
    JobKind,
    JobState,
    LeaseState,
    Wanted,
    encode_backfill,
    lane_id,
)
from mm2py.mirror.versioned_json import unreadable
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.privileged_writer import Claim, PrivilegedWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S: Final = 0.3
WRITE_S: Final = 60.0

FenceProducers = Callable[[Sequence[str]], Awaitable[None]]
"""Fences transactional ids on the target."""


class BackfillRefusedError(FatalError):
    """A check refuses to begin; nothing was changed, or it was put back."""


class DriverSupersededError(BackfillRefusedError):
    """Another driver has taken the job over; it is that one's to end."""


class DriverRecord(Protocol):
    """A job's record, as far as it names its driver: its id, the run's number, the driver."""

    @property
    def id(self) -> str: ...
    @property
    def run(self) -> int: ...
    @property
    def driver(self) -> str: ...


R = TypeVar("R", bound=DriverRecord)


@final
class DriverClaim(Generic[R]):
    """The right of one driver to write the newest record of a job: of a bulk job, a stream, or a
    failover.

    A claim alone does not say enough: it is lost with each write that fails, and taken again. So
    the driver remembers the record that it took over or wrote last; where the newest one is
    another, another driver has claimed and written in between (2).

    Args:
        writer: writes the topic under the transactional id of the flow's drivers.
        refresh: reads the topic to its end.
        newest: returns the newest record that was read.
    """

    def __init__(
        self,
        writer: PrivilegedWriter,
        refresh: Callable[[], Awaitable[None]],
        newest: Callable[[], R | None],
    ) -> None:
        self._claim, self._refresh, self._newest = Claim(writer), refresh, newest
        self.me: Final = f"{platform.node()}/{os.getpid()}/{secrets.token_hex(3)}"
        self.known: R | None = None

    @property
    def holds(self) -> bool:
        """Whether the claim is current, as far as known, and what was written before it is read."""
        return self._claim.holds

    async def take(self) -> R | None:
        """Fence the driver before and read what it has written; return and remember the newest
        record. ``RetriableError``: not now."""
        await self._claim.take(self._refresh)
        self.known = self._newest()
        return self.known

    async def is_superseded(self, writes: R | None = None) -> bool:
        """Read to the end, with a new claim where this one was lost; return whether another driver
        has written since.

        The record that this one ``writes`` may be in the topic already. ``RetriableError``: not
        now.
        """
        await (self._refresh() if self.holds else self._claim.take(self._refresh))
        newest, known = self._newest(), self.known
        mine = [drive_of(it) for it in (known, writes) if it is not None and it.driver == self.me]
        # Also the driver before this one may have claimed again, and continued.
        return newest is not None and newest != known and drive_of(newest) not in mine


def drive_of(record: DriverRecord | None) -> tuple[str, int, str] | None:
    """Return what identifies one driver's run of a job."""
    return None if record is None else (record.id, record.run, record.driver)


@final
class JobClaim:
    """Drives the newest bulk job or stream of a flow.

    Args:
        store: the backfill topic, open.
        writer: writes it under the driver's transactional id.
        fence: of the target.
        name: ``A->B``.
    """

    def __init__(
        self,
        store: BackfillStore,
        writer: PrivilegedWriter,
        fence: FenceProducers,
        *,
        name: str,
        clock: Clock,
    ) -> None:
        self._store, self._writer, self._fence = store, writer, fence
        self._name, self._clock = name, clock
        self._turn = asyncio.Lock()
        self._lost: DriverSupersededError | None = None
        self._driver = DriverClaim[Job](writer, store.refresh, lambda: store.job)
        self.permit = Permit(clock)
        """For positions, maps, deletions and settings that only the driver may write."""
        self._asked_s = math.inf
        self.job: Job | None = None
        """The job as this driver wrote it last."""
        self.stopped = False
        """Whether this run ends before its time: it beats no more."""

    @property
    def is_unconfirmed(self) -> bool:
        """Whether the target has left a record of this driver unconfirmed for ``ALIVE_S``: others
        take it for dead."""
        return self._clock.monotonic() - self._asked_s > ALIVE_S

    @property
    def mine(self) -> Job:
        """The job that this driver has written."""
        assert self.job is not None
        return self.job

    async def claim(self, kind: JobKind, archive: str | None = None) -> Job | None:
        """Become the only driver; return the job that another run left unfinished, None for none.

        Args:
            kind: of the job that is to be run.
            archive: of the restore that is to be run, empty for a backfill; None for any job of
                that kind.

        Raises:
            BackfillRefusedError: another driver works on it, or another job is unfinished.
            FatalError: the newest job is of a version that this program cannot read.
        """
        await self._store.refresh()
        self._check_readable()
        job = seen = self._store.job
        if job is not None and job.state.is_copied and await self.is_driven():
            raise _running(job, self._name)
        is_another = job is not None and (
            job.kind is not kind or archive not in (None, job.archive)
        )
        if job is not None and is_another and not job.state.is_over:
            raise unfinished(job, self._name)
        job = await self._take()
        # Between the look and the claim another driver
        # began: it was fenced, and its record came first.
        if drive_of(job) != drive_of(seen):
            raise self._superseded(job)
        if job is not None and job.state.is_copied and job != seen:
            raise _running(job, self._name)  # its beat came late
        return None if job is None or job.state.is_over else job

    async def _take(self) -> Job | None:
        job = await self.insist(self._driver.take)
        self._check_readable()
        return job

    def _check_readable(self) -> None:
        if self._store.unreadable is not None:
            raise unreadable(f"the jobs of {self._name}", self._store.unreadable)

    async def is_driven(self) -> bool:
        """Return whether a driver works on the newest job: its beat rises within ``ALIVE_S``."""
        job, deadline = self._store.job, self._clock.monotonic() + ALIVE_S
        while self._clock.monotonic() < deadline:
            await self._clock.sleep(LOOK_S)
            await self._store.refresh()
            newer = self._store.job
            # By the number of the beat, not by its time: clocks of two machines differ.
            if job is None or newer is None or (newer.run, newer.beat) != (job.run, job.beat):
                return newer is not None and newer.state.is_copied
        return False

    async def begin(self, job: Job, *beside: BackfillRecord) -> None:
        """Write a run of this driver; returns when no lane of a former one copies any more (3).

        The record comes first: an attempt of a former lane that claims after it is refused by it,
        one before it is fenced.
        """
        first_ms = self._store.first_stream_ms
        begun = replace(job, driver=self._driver.me, first_stream_ms=first_ms)
        await self.write([begun, *beside])
        # After the record: a lane claims in a transaction under its id, which this aborts.
        await self._fence([lane_id(self._name, number) for number in range(job.lanes)])
        await self._store.refresh()
        if self._store.copying:
            log.info("lanes of a former run may still write, their leases run out")
            # A fenced lane learns it with its next write; the
            # permit of what it does besides ends with its lease.
            await self._clock.sleep(LEASE_S)
            await self.write([replace(self.mine, beat=self.mine.beat + 1)])
            await self._store.refresh()

    async def beat(self) -> None:
        """Show that the driver lives, until it is cancelled or ``stopped``;
        ``DriverSupersededError``: another driver has taken over."""
        while True:
            await self._clock.sleep(BEAT_S)
            async with self._turn:
                if self.stopped or not self.mine.state.is_copied:
                    return  # the last record may have been written while this one waited
                paused = self._store.wanted is Wanted.PAUSE
                job = replace(
                    self.mine,
                    beat=self.mine.beat + 1,
                    state=JobState.PAUSED if paused else JobState.RUNNING,
                )
                try:
                    await self._write([job])
                except RetriableError as error:
                    log.warning("driver's beat is not written cause=%s", error)

    async def while_beating(self, work: Coroutine[object, object, T]) -> T:
        """Do ``work`` as the driver that lives; it ends as soon as another one has taken over.
        ``DriverSupersededError``: another driver has taken over."""
        beats, working = asyncio.create_task(self.beat()), asyncio.create_task(work)
        try:
            await asyncio.wait({beats, working}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await beats  # ``stopped``, or superseded
            return await working
        finally:
            await cancelled(beats, working)

    async def release(self, state: JobState, cause: str) -> Job:
        """End the job: what it keeps from the live flow is copied by it again."""
        await self._store.refresh()
        released = [
            replace(lease, state=LeaseState.RELEASED, run=self.mine.run, cause=cause)
            for lease in self._store.leases.values()
            if lease.state.keeps_live_out
        ]
        await self.write([*released, replace(self.mine, state=state, cause=cause)])
        return self.mine

    async def take_back(self, cause: str) -> None:
        """End a stream whose driver is gone: the live flow copies its partitions again.
        ``RetriableError``: not now."""
        job = await self._take()
        if job is None or job.kind is not JobKind.STREAM or job.state.is_over:
            return
        await self.begin(replace(job, run=job.run + 1, state=JobState.FAILED, cause=cause))
        await self.release(JobState.DONE, cause)

    async def write(self, records: Sequence[BackfillRecord]) -> None:
        """Write records, if there are any, in one transaction; after a failure only if no other
        driver has taken over. ``DriverSupersededError``: one has."""
        async with self._turn:
            await self._write(records)

    async def _write(self, records: Sequence[BackfillRecord]) -> None:
        if self._lost is not None:
            raise self._lost
        if not records:
            return
        entries = [encode_backfill(record) for record in records]
        self._asked_s = min(self._asked_s, self._clock.monotonic())
        mine = next((record for record in reversed(records) if isinstance(record, Job)), None)
        self.job = mine or self.job
        if mine is not None and not mine.state.is_copied:
            self.permit.abandon()  # the next driver does not wait for it

        async def write() -> None:
            # A lost claim is no takeover yet: a time-out of the coordinator loses it, too.
            if not self._driver.holds and (
                await self._driver.is_superseded(self.job)
                # The topic was deleted with the record of this job.
                or (self._store.job is None and self._driver.known is not None)
            ):
                raise self._superseded(self._store.job)
            # From before the write: other drivers wait from when they could read the record.
            began_s = self._clock.monotonic()
            await self._writer.write(entries)
            self._asked_s = math.inf
            self._driver.known = mine or self._driver.known
            if mine is not None and mine.state.is_copied:
                # Shorter than ``ALIVE_S``: this one has stopped before another may begin (4).
                self.permit.grant(began_s + LEASE_S)

        await self.insist(write)

    def _superseded(self, newest: Job | None) -> DriverSupersededError:
        what = "backfill" if newest is None else f"{newest.kind.value.lower()} {newest.id}"
        self.permit.abandon()
        self._lost = DriverSupersededError(f"another driver has taken {what} of {self._name} over")
        return self._lost

    async def insist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step, with retries for up to ``WRITE_S``; ``RetriableError``: it still does."""
        deadline = self._clock.monotonic() + WRITE_S
        while True:
            try:
                return await step()
            except RetriableError as error:
                if self._lost is not None:
                    raise self._lost from error
                if self._clock.monotonic() > deadline:
                    raise
                log.debug("a step of the driver is done again cause=%s", error)
                await self._clock.sleep(LOOK_S)


def _running(job: Job, flow: str) -> BackfillRefusedError:
    if job.kind is JobKind.STREAM:
        return BackfillRefusedError(
            f"mm2py stream copies {flow} already",
            remedy="end it with SIGTERM, where it runs; where that machine is gone, try again in "
            "a few seconds",
        )
    return BackfillRefusedError(
        f"{_named(job)} of {flow} is running",
        remedy=f"watch it with mm2py backfill status FILE --flow '{flow}', or end it with mm2py "
        f"backfill cancel FILE --flow '{flow}'",
    )


def unfinished(job: Job, flow: str) -> BackfillRefusedError:
    """Return the refusal of a command beside a job that is not over."""
    if job.kind is JobKind.STREAM:
        return BackfillRefusedError(
            f"mm2py stream copied {flow} and was not ended in order",
            remedy=f"end it with mm2py stream FILE --flow '{flow}' --cancel, or start it again; "
            "with flow.engine=worker the flow's workers take over",
        )
    command = (
        "its command again"
        if job.archive
        else f"mm2py backfill run FILE --flow '{flow}', which also continues a repair,"
    )
    return BackfillRefusedError(
        f"{_named(job)} of {flow} is unfinished",
        remedy=f"run {command} or end it with mm2py backfill cancel FILE --flow '{flow}'",
    )


def _named(job: Job) -> str:
    return f"restore {job.id} of {job.archive}" if job.archive else f"backfill {job.id}"
