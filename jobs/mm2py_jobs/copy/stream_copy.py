"""The copy of a flow by Spark under one config: a driver, and one query after the other where one
fails.

Flow: ``StreamCopy.run`` -> ``StreamDriver.begin`` -> ``StreamQuery``, whose first batch only warms
Spark's processes up -> partitions are reserved -> terms, until a stop signal, a recall by the
flow's workers, a failover, or a changed config -> ``StreamDriver.end``.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, final

from mm2py.client.backoff import Backoff
from mm2py.clock import Clock, cancelled
from mm2py.errors import FatalError, Mm2pyError, RetriableError
from mm2py.mirror.backfills import Lease, LeaseState, new_id
from mm2py.storage.job_claim import BackfillRefusedError
from mm2py.types import TopicPartition
from mm2py_cli.output import say
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.backfill_lane import run_backfill_lane
from mm2py_jobs.copy.stream import CopyEnd, StreamDriver, standing_still, standing_text
from mm2py_jobs.copy.stream_terms import StreamSpec, plan_term
from mm2py_jobs.copy.stream_topics import StreamTopics
from mm2py_jobs.job_options import StreamOptions
from mm2py_jobs.spark.session import OpenSession
from mm2py_workers.signals import StopSignal

if TYPE_CHECKING:
    from mm2py_jobs.spark.stream_query import StreamQuery

log = logging.getLogger(__name__)

CONFIG_LOOK_S: Final = 5.0
"""How often changes made over REST are looked for; flow.engine=worker comes sooner, from the flow's
workers."""

END_S: Final = 15.0
"""How long lanes may take to end in order before Spark kills them."""

NOTE_S: Final = 40.0
"""How long the driver may take to tell them: a target that refuses it cannot be waited for."""

MOST_FAILURES: Final = 6
LOOK_S: Final = 0.5
FIRST_RETRY_MS: Final = 1_000
LONGEST_RETRY_MS: Final = 60_000


@final
class CopyTotals:
    """What a command has copied: terms that ended, and records and bytes by the leases of its
    stream, whether a term ended or not."""

    def __init__(self) -> None:
        self.terms = self.records = self.bytes = 0
        self._cut_off = 0
        """Partitions whose lanes have not given them back."""
        self.failure = ""
        """Why the last query failed, or lanes of the last term."""
        self.standing: dict[TopicPartition, str] = {}
        """Why partitions were not copied when this was noted last."""
        self._seen: dict[TopicPartition, tuple[int, int]] = {}

    def begin(self, leases: Mapping[TopicPartition, Lease]) -> None:
        """Count from here on: these are what former drivers have copied."""
        self._seen = {tp: (lease.records, lease.bytes) for tp, lease in leases.items()}

    def note(self, leases: Mapping[TopicPartition, Lease]) -> None:
        """Count what came since the last call."""
        self._cut_off = sum(lease.state is LeaseState.COPYING for lease in leases.values())
        self.standing = standing_still(leases)
        for tp, lease in leases.items():
            records, size_bytes = self._seen.get(tp, (0, 0))
            self.records += max(0, lease.records - records)
            self.bytes += max(0, lease.bytes - size_bytes)
            self._seen[tp] = lease.records, lease.bytes

    def summary(self) -> str:
        """Return how the copy ended; a lane that did not give its partitions back may have copied
        more than it stored."""
        ended = (
            (
                f"lanes of {self._cut_off} partitions were cut off, what they copied last is "
                "recognised in the target's log"
            )
            if self._cut_off
            else "positions are stored"
        )
        copied = f"{self.records:,} records in {self.terms:,} terms"
        failed = f"; Spark failed: {self.failure}" if self.failure else ""
        return f"ended, {ended}: {copied}{standing_text(self.standing)}{failed}"


def failure_of(progress: Mapping[str, object]) -> str:
    """Return which lanes of a term have failed, empty for none; the next one deals their partitions
    again. ``FatalError``: all of them."""
    failed, cause = progress["failed_partitions"], progress["failure"]
    if failed == progress["partitions"]:
        raise FatalError(f"every lane failed: {cause}")
    return f"lanes of {failed} partitions failed, the others go on: {cause}" if failed else ""


async def config_changes(session: BackfillSession, clock: Clock) -> None:
    """Return when the flow's config is another one than at the begin, or it is not to be copied any
    more."""
    while True:
        await clock.sleep(CONFIG_LOOK_S)
        try:
            if not await session.flow.is_unchanged():
                return
        except Mm2pyError as error:
            log.debug("the flow's config cannot be read now cause=%s", error)


@final
class StreamCopy:
    """The copy under one config: a driver, and one query after the other where one fails."""

    def __init__(
        self,
        options: StreamOptions,
        session: BackfillSession,
        topics: StreamTopics,
        opened: OpenSession,
        totals: CopyTotals,
        stop: StopSignal,
        clock: Clock,
    ) -> None:
        self._options, self._session, self._topics, self._opened = options, session, topics, opened
        self._totals, self._stop, self._clock = totals, stop, clock
        self._driver = StreamDriver(
            session.claim, session.store, session, name=str(session.name), clock=clock
        )
        self._backoff = Backoff(FIRST_RETRY_MS, LONGEST_RETRY_MS)
        self._failures = 0
        self._warm = asyncio.Event()

    async def run(self) -> CopyEnd:
        """Copy until it ends for another reason than a failed query."""
        driver, store = self._driver, self._session.store
        await driver.begin(self._opened.slots, job=new_id(self._clock.now_ms()))
        self._totals.begin(store.leases)
        try:
            ended = await self._beside(self._queries())
            await store.refresh()
            self._totals.note(store.leases)
        except BaseException:
            await driver.close()
            raise
        await driver.end()
        return ended

    async def _beside(self, queries: Coroutine[object, object, None]) -> CopyEnd:
        """Run queries until something ends them in order."""
        others = asyncio.ensure_future(self._driver.wait_others())
        ends: dict[asyncio.Task[object], CopyEnd | None] = {
            asyncio.ensure_future(self._stop.wait()): CopyEnd.STOPPED,
            asyncio.ensure_future(self._driver.wait_recalled()): CopyEnd.RECALLED,
            others: None,  # it says itself which
            asyncio.ensure_future(config_changes(self._session, self._clock)): CopyEnd.CHANGED,
        }
        copying: asyncio.Task[object] = asyncio.ensure_future(queries)
        following: asyncio.Task[object] = asyncio.ensure_future(self._follow())
        try:
            await asyncio.wait({*ends, copying, following}, return_when=asyncio.FIRST_COMPLETED)
            if not self._driver.dealing:
                # It was refused, and gives everything back: the beats and the query end by that,
                # and are no cause.
                await asyncio.wait({following})
            for task in (following, copying, *ends):
                if task.done():
                    task.result()
            ended = next(why or others.result() for task, why in ends.items() if task.done())
            log.info("stream ends in order cause=%s", ended.value)
            following.cancel()
            await self._end_term()
            await asyncio.wait({copying}, timeout=END_S)
            return ended
        finally:
            await cancelled(*ends, copying, following)

    async def _end_term(self) -> None:
        """Ask lanes to end; ``RetriableError``: the target does not take that: Spark kills them,
        and another run, or the flow's workers, fence them."""
        try:
            async with asyncio.timeout(NOTE_S):
                await self._driver.end_term()
        except TimeoutError:
            raise RetriableError(
                f"ended, which is not noted: {self._session.trouble}",
                remedy="start it again, or let the flow's workers take over (flow.engine = worker)",
            ) from None

    async def _queries(self) -> None:
        """Run a query; where it fails, another one after a new run, with growing pauses.

        Raises:
            FatalError: ``MOST_FAILURES`` in a row failed before a term was over: Spark itself may
                be gone.
        """
        cause = ""
        while True:
            try:
                if cause:
                    await self._driver.again(cause)
                await self._query()
            except RetriableError as error:
                pause_s = self._backoff.next_s()
                log.warning(
                    "the run is not begun, tried again pause_s=%.0f cause=%s", pause_s, error
                )
            except FatalError as error:
                if not self._driver.dealing:
                    log.info("the query failed as the stream ended cause=%s", error)
                    return
                self._failures += 1
                if isinstance(error, BackfillRefusedError) or self._failures >= MOST_FAILURES:
                    raise
                self._totals.failure = cause = str(error)
                pause_s = self._backoff.next_s()
                log.warning(
                    "query failed, another one begins pause_s=%.0f cause=%s", pause_s, error
                )
            else:
                return
            await self._clock.sleep(pause_s)

    async def _query(self) -> None:
        """Run one query until it fails, or the driver lets it end; ``FatalError``: it failed."""
        from mm2py_jobs.spark.stream_query import StreamQuery  # it loads pyspark

        session = self._session
        await self._driver.follow_slots(self._opened.slots)
        spec = StreamSpec(
            lane=session.lane(self._driver.job, self._topics.task), seconds=self._options.term_s
        )
        query = StreamQuery(self._opened, f"mm2py {session.name}", self._options.checkpoint)
        try:
            await asyncio.to_thread(
                query.start,
                partial(plan_term, spec),
                run_backfill_lane,
                most_bytes=self._options.most_bytes,
            )
            ended = False
            while not ended and self._driver.dealing:
                ended = await asyncio.to_thread(query.wait, LOOK_S)
                await self._note(query)
                self._driver.check_lanes()
                await self._driver.follow_slots(await asyncio.to_thread(lambda: self._opened.slots))
            while not ended and session.store.copying:
                ended = await asyncio.to_thread(query.wait, LOOK_S)
            await self._note(query)
        finally:
            await asyncio.to_thread(query.stop)
        if self._driver.dealing:
            raise FatalError("the query was stopped from outside")

    async def _note(self, query: "StreamQuery") -> None:
        if not self._warm.is_set():
            has_run = self._driver.has_partitions or await asyncio.to_thread(query.has_run)
            if has_run:
                self._warm.set()
        self._totals.note(self._session.store.leases)
        for progress in await asyncio.to_thread(query.new_progress):
            failure = failure_of(progress)
            self._backoff.reset()
            self._failures = 0
            await self._driver.proven(failure)
            self._totals.terms += 1
            self._totals.failure = failure
            if failure:
                log.warning("%s", failure)
            log.info("term ended %s", " ".join(f"{key}={it}" for key, it in progress.items()))

    async def _follow(self) -> None:
        """Reserve partitions once Spark can copy them; then let the stream copy those that come,
        and no more those that go."""
        await self._warm.wait()
        pauses = Backoff(FIRST_RETRY_MS, LONGEST_RETRY_MS)
        while True:
            partitions = self._topics.partitions()
            try:
                await self._driver.follow(partitions)
            except RetriableError as error:
                if not self._driver.dealing:
                    raise  # not everything was given back: another run does
                log.warning("partitions are dealt again after a pause cause=%s", error)
                await self._clock.sleep(pauses.next_s())
                self._topics.request_reconfiguration()
            else:
                pauses.reset()
                lanes = min(self._opened.slots, len(partitions.chosen))
                say(
                    f"copying {self._session.name}: {len(partitions.chosen)} partitions, {lanes} "
                    "lanes"
                )
            await self._clock.sleep(LOOK_S)
            await self._topics.changed()
