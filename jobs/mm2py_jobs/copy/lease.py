"""The right of one process to copy a lane's partitions: claimed from former attempts, renewed with
its progress.

Flow: ``claim`` -> InitProducerId of the lane's transactional id (a former attempt can renew no
more) -> what it may still send has run out -> first renewal -> the permit of the data plane;
``renew`` each few seconds, until the lane ends.

A Spark task may run twice at the same time: a stalled executor's worker continues beside its retry,
a cancelled job's worker for seconds, and a driver that was killed leaves its workers running for a
moment.

Invariants (tests/property/test_lane_lease.py has the model, which crashes and freezes attempts
between any two steps):

1. Data leaves only while the permit is valid, and it is valid for ``LEASE_S`` from before the
   renewal that was committed last.
2. An attempt is granted a permit only when every other attempt's has run out: it fences them, and
   where one of them may have been granted one waits ``LEASE_S`` from there.
3. An attempt that was fenced gets no permit any more once another one has written its name.
4. Nothing is handed over by an attempt whose record is not the newest one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, final

from mm2py.client.permit import Permit
from mm2py.clock import Clock
from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import LEASE_S, Job, Lease, LeaseState, encode_backfill
from mm2py.storage.privileged_writer import Claim, PrivilegedWriter
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

RENEW_S: Final = 2.0
_RETRY_S: Final = 0.5


class LaneSupersededError(FatalError):
    """Another attempt, run or job has the lane's partitions; this one ends without another
    record."""


class LeaseTopic(Protocol):
    """What a lease needs of ``mm2py.storage.backfill_store.BackfillStore``."""

    @property
    def job(self) -> Job | None: ...
    @property
    def leases(self) -> Mapping[TopicPartition, Lease]: ...
    def refresh(self) -> Awaitable[None]: ...


@final
class LaneLease:
    """The lease of one attempt of one lane.

    Args:
        topic: the records; read to their end after each claim.
        writer: writes them in transactions of the lane's id.
        permit: of the data plane of this process.
        job, run, lane: what the attempt was started for.
        attempt: unlike that of any other process.
    """

    def __init__(
        self,
        topic: LeaseTopic,
        writer: PrivilegedWriter,
        permit: Permit,
        *,
        job: str,
        run: int,
        lane: int,
        attempt: str,
        clock: Clock,
    ) -> None:
        self._topic, self._writer, self._permit = topic, writer, permit
        self._job, self._run, self._lane, self._attempt = job, run, lane, attempt
        self._clock = clock
        self._partitions: frozenset[TopicPartition] = frozenset()
        self._claim = Claim(writer)
        self._written = False

    async def claim(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Lease]:
        """Take the partitions over from former attempts; return those that are left to copy, by
        source. ``LaneSupersededError``: another run or job has them."""
        self._partitions = frozenset(partitions)
        copying: dict[TopicPartition, Lease] = {}

        async def step() -> None:
            # The whole of it again where a write failed: another attempt may have been granted a
            # permit meanwhile.
            nonlocal copying
            left = await self._claim.take(self._own)
            fenced_s = self._clock.monotonic()
            if any(
                it.state is LeaseState.COPYING and it.attempt != self._attempt
                for it in left.values()
            ):
                log.info("a former attempt may still write, its lease runs out lane=%d", self._lane)
                await self._clock.sleep(max(0.0, fenced_s + LEASE_S - self._clock.monotonic()))
            copying = {
                tp: replace(it, state=LeaseState.COPYING, lane=self._lane, attempt=self._attempt)
                for tp, it in left.items()
            }
            if copying:
                await self._write(list(copying.values()))

        await self._insist(step)
        return copying

    async def renew(self, leases: Sequence[Lease]) -> None:
        """Write leases and progress, and with that prolong the permit.

        A write that failed is repeated after a new claim, which another attempt's record ends.

        Raises:
            LaneSupersededError: another attempt, run or job has the partitions.
        """

        async def step() -> None:
            if not self._claim.holds:
                await self._claim.take(self._own)
            await self._write(leases)

        await self._insist(step)

    async def _write(self, leases: Sequence[Lease]) -> None:
        asked_s = self._clock.monotonic()
        await self._writer.write([encode_backfill(lease) for lease in leases])
        self._written = True
        self._permit.grant(asked_s + LEASE_S)

    async def release(self, leases: Sequence[Lease]) -> None:
        """Write the last leases and end the permit; the data plane has stopped in order."""
        if leases:
            await self.renew(leases)
        self._permit.abandon()

    async def _own(self) -> Mapping[TopicPartition, Lease]:
        """Return what is left of our partitions, by the newest records; ``LaneSupersededError``:
        they are not ours."""
        await self._topic.refresh()
        job, known = self._topic.job, self._topic.leases
        if job is None or (job.id, job.run) != (self._job, self._run) or not job.state.is_copied:
            self._permit.abandon()
            raise LaneSupersededError(
                f"lane {self._lane} of backfill {self._job}, run {self._run}: the backfill has "
                "ended or runs anew"
            )
        ours = {tp: it for tp, it in known.items() if tp in self._partitions}
        others = {it.attempt for it in ours.values() if it.attempt and it.attempt != self._attempt}
        if self._written and others:
            self._permit.abandon()
            raise LaneSupersededError(
                f"lane {self._lane} of backfill {self._job}: another attempt has its partitions"
            )
        return {tp: it for tp, it in ours.items() if it.state.keeps_live_out}

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat what the target cannot do now: the permit runs out meanwhile, so nothing is
        copied."""
        said = ""
        while True:
            try:
                await step()
            except LaneSupersededError:
                raise
            except (RetriableError, TimeoutError) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("lease is not renewed, tried again cause=%s", error)
                await asyncio.sleep(0)
                await self._clock.sleep(_RETRY_S)
            else:
                return
