"""The right to copy a flow with Spark: one driver at a time, its beats, its records, and the live flow kept out.

Flow: ``claim`` -> ``begin`` of a run -> ``write`` of its leases -> ``beat`` while lanes copy -> ``release``;
``take_back`` on a worker of the flow, where the driver of a stream is gone. Shared by ``mm2py.spark.backfill`` and
``mm2py.spark.stream``, which have one topic, one driver's id and one set of lanes' ids per flow, so that neither starts
beside the other.

Invariants, tests of the same names:

1. A job that another driver is working on is left alone; of two drivers that begin at the same moment one is refused.
2. Nothing is written behind another driver's claim.
3. What a former run kept is dealt or given back only after its lanes can claim nothing more and their leases have run out.
"""

import asyncio
import logging
import os
import platform
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, final

from mm2py.clock import Clock
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
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.privileged_writer import PrivilegedWriter

__all__ = ["LOOK_S", "BackfillRefusedError", "DriverSupersededError", "FenceProducers", "JobClaim"]

log = logging.getLogger(__name__)

LOOK_S: Final = 0.3
WRITE_S: Final = 60.0

FenceProducers = Callable[[Sequence[str]], Awaitable[None]]
"""Fences transactional ids on the target."""


class BackfillRefusedError(FatalError):
    """A check refuses to begin; nothing was changed, or it was put back."""


class DriverSupersededError(BackfillRefusedError):
    """Another driver has taken the job over; it is that one's to end."""


@final
class JobClaim:
    """Drives the newest job of a flow.

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
        self._known: Job | None = None
        """The job record that this driver took over, or wrote last; behind it another driver has written."""
        self._me = f"{platform.node()}/{os.getpid()}/{secrets.token_hex(3)}"
        self.job: Job | None = None
        """The job as this driver wrote it last."""
        self.stopped = False
        """Whether this run ends before its time: it beats no more."""

    @property
    def mine(self) -> Job:
        """The job that this driver has written."""
        assert self.job is not None
        return self.job

    async def claim(self, kind: JobKind) -> Job | None:
        """Become the only driver; return the job of that kind that another run left unfinished, None for none.

        Raises:
            BackfillRefusedError: another driver works on it, or a job of the other kind is unfinished.
        """
        await self._store.refresh()
        job = self._store.job
        if job is not None and job.state.is_copied and await self.is_driven():
            raise _running(job, self._name)
        if job is not None and job.kind is not kind and not job.state.is_over:
            raise _unfinished(job, self._name)
        seen = _drive(self._store.job)
        await self._insist(self._writer.claim)
        await self._store.refresh()
        job = self._known = self._store.job
        if _drive(job) != seen:
            raise self._superseded(job)
        return None if job is None or job.state.is_over else job

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

    async def begin(self, job: Job, *beside: BackfillRecord) -> None:
        """Write a run of this driver; returns when no lane of a former one copies any more (3).

        The record comes first: an attempt of a former lane that claims behind it is refused by it, one before it is fenced.
        """
        await self.write([replace(job, driver=self._me), *beside])
        await self._fence([lane_id(self._name, number) for number in range(job.lanes)])
        await self._store.refresh()
        if self._store.copying:
            log.info("lanes of a former run may still write, their leases run out")
            await self._clock.sleep(LEASE_S)
            await self._store.refresh()

    async def beat(self) -> None:
        """Show that the driver lives, until it is cancelled or ``stopped``.

        Raises:
            DriverSupersededError: another driver has taken over.
        """
        while True:
            await self._clock.sleep(BEAT_S)
            async with self._turn:
                if self.stopped:
                    return
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

    async def release(self, state: JobState, cause: str) -> Job:
        """End the job: what it keeps from the live flow is copied by it again."""
        await self._store.refresh()
        released = [
            replace(it, state=LeaseState.RELEASED, run=self.mine.run, cause=cause)
            for it in self._store.leases.values()
            if it.state.keeps_live_out
        ]
        await self.write([*released, replace(self.mine, state=state, cause=cause)])
        return self.mine

    async def take_back(self, cause: str) -> None:
        """End a stream whose driver is gone: the live flow copies its partitions again.

        Raises:
            RetriableError: not now.
        """
        await self._insist(self._writer.claim)
        await self._store.refresh()
        job = self._known = self._store.job
        if job is None or job.kind is not JobKind.STREAM or job.state.is_over:
            return
        await self.begin(replace(job, run=job.run + 1, state=JobState.FAILED, cause=cause))
        await self.release(JobState.DONE, cause)

    async def write(self, records: Sequence[BackfillRecord]) -> None:
        """Write records in one transaction; behind a failure only if no other driver has taken over.

        Raises:
            DriverSupersededError: one has.
        """
        async with self._turn:
            await self._write(records)

    async def _write(self, records: Sequence[BackfillRecord]) -> None:
        entries = [encode_backfill(record) for record in records]
        mine = next((it for it in reversed(records) if isinstance(it, Job)), None)
        self.job = mine or self.job

        async def write() -> None:
            if not self._writer.claimed:
                await self._writer.claim()
                await self._store.refresh()
                newest = self._store.job
                if newest is not None and _drive(newest) not in (_drive(self._known), _drive(mine)):
                    raise self._superseded(newest)
            await self._writer.write(entries)
            self._known = mine or self._known

        await self._insist(write)

    def _superseded(self, newest: Job | None) -> DriverSupersededError:
        what = "backfill" if newest is None else f"{newest.kind.value.lower()} {newest.id}"
        return DriverSupersededError(f"another driver has taken {what} of {self._name} over")

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


def _running(job: Job, flow: str) -> BackfillRefusedError:
    if job.kind is JobKind.STREAM:
        return BackfillRefusedError(
            f"mm2py stream copies {flow} already", remedy="end it with SIGTERM, where it runs"
        )
    return BackfillRefusedError(
        f"{'restore' if job.archive else 'backfill'} {job.id} of {flow} is running",
        remedy="watch it with mm2py backfill status, or end it with mm2py backfill cancel",
    )


def _unfinished(job: Job, flow: str) -> BackfillRefusedError:
    if job.kind is JobKind.STREAM:
        return BackfillRefusedError(
            f"mm2py stream copied {flow} and was not ended in order",
            remedy="start it again and end it with SIGTERM, or set flow.engine=worker and let the flow's workers take over",
        )
    return BackfillRefusedError(
        f"backfill {job.id} of {flow} is unfinished",
        remedy="run it to its end, or cancel it: mm2py backfill run, mm2py backfill cancel",
    )
