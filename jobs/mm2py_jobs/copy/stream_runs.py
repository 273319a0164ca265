"""What ``mm2py stream`` does: the flow as its workers run it, a Spark session, one copy after the
other where its config changes.

Flow: ``StreamOptions`` -> ``BackfillSession`` -> ``StreamTopics`` -> ``open_session`` ->
``StreamCopy`` -> the summary.
"""

import asyncio
import logging
import os
from dataclasses import replace
from typing import final

from mm2py.clock import SYSTEM_CLOCK, Clock, cancelled, closing
from mm2py.config.secret_names import secrets_in
from mm2py.errors import RetriableError
from mm2py.mirror.backfills import JobKind
from mm2py.mirror.flow_state import engine
from mm2py.mirror.start_positions import Boundary
from mm2py.observability.logging import SecretMask, some_of
from mm2py.storage.job_claim import BackfillRefusedError, unfinished
from mm2py_cli.output import FAILED, OK, Printer, say
from mm2py_connectors.mirror_source import begins_at_end
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.backfill_runs import show_document, slots_of
from mm2py_jobs.copy.stream import CopyEnd
from mm2py_jobs.copy.stream_copy import CONFIG_LOOK_S, CopyTotals, StreamCopy, config_changes
from mm2py_jobs.copy.stream_topics import StreamTopics
from mm2py_jobs.job_options import FlowOptions, StreamOptions
from mm2py_jobs.open_flow import flow_plan, refuse_transforms
from mm2py_jobs.spark.session import OpenSession, open_session
from mm2py_workers.signals import StopSignal

log = logging.getLogger(__name__)


async def run_stream(options: StreamOptions, printer: Printer, mask: SecretMask) -> int:
    """Copy until a stop signal; return the exit code; ``mask`` gets the secrets of the flow.

    Raises:
        BackfillRefusedError: the flow's engine is not spark, or is worker again, or something else
            copies it; the master is one of Spark Connect.
        Mm2pyError: Spark or a cluster cannot be used.
    """
    if options.master.startswith("sc://") or "SPARK_REMOTE" in os.environ:
        raise BackfillRefusedError(
            "a stream plans its terms in the process of its driver, which over Spark Connect is "
            "elsewhere",
            remedy="run it with --master spark://host:7077, yarn or local[*], or by spark-submit",
        )
    return await _StreamRun(options, printer, mask, SYSTEM_CLOCK).run()


async def show_stream_plan(options: FlowOptions, printer: Printer) -> int:
    """Print what a stream would copy from now on, and what refuses it; return the exit code."""
    async with BackfillSession(flow_plan(options.file, options.flow)) as session:
        check_engine(session)
        survey = await session.survey()
        plan = await survey.plan("", Boundary(), Boundary(), accepts_expiry=True, has_end=False)
        await session.open_if_there()
        job = session.store.job
        if job is not None and not job.state.is_over and job.kind is not JobKind.STREAM:
            raise unfinished(job, str(session.name))
    plan = replace(plan, settings=())  # a stream has no end after which they could be put back
    slots = slots_of("")
    return show_document(plan, plan.document(slots, 0, slots), printer)


def check_engine(session: BackfillSession) -> None:
    """Refuse a flow that its workers copy, that nothing is to copy, and one with transforms.

    Raises:
        BackfillRefusedError: flow.engine is not spark, or the flow is not enabled.
        ConfigError: records pass transforms.
    """
    chosen = engine(session.flow.connector)
    if chosen != "spark":
        raise BackfillRefusedError(
            f"flow.engine of {session.name} is {chosen}: its workers copy it",
            remedy=f"set {session.name}.flow.engine = spark in the file (or over REST), and run "
            "this again",
        )
    if not session.flow.copies:
        raise BackfillRefusedError(
            f"flow {session.name} is not enabled, or was deleted over REST: nothing is to copy it",
            remedy=f"set {session.name}.enabled = true, or create it with POST /flows",
        )
    refuse_transforms(
        session.name,
        session.flow.connector,
        "Spark copies whole batches, which would arrive as they are",
    )


async def cancel_stream(options: FlowOptions, printer: Printer) -> int:
    """End a stream whose driver is gone: the flow's workers continue its partitions; return the
    exit code.

    Raises:
        BackfillRefusedError: no stream is unfinished, or its driver lives.
        Mm2pyError: the target does not answer.
    """
    async with BackfillSession(flow_plan(options.file, options.flow)) as session:
        await session.open_if_there()
        store = session.store
        job = store.job
        if job is None or job.kind is not JobKind.STREAM or job.state.is_over:
            raise BackfillRefusedError(f"no stream of {session.name} is unfinished")
        await session.claim.claim(JobKind.STREAM)
        partitions = store.kept_out()
        await session.claim.take_back(
            f"ended with mm2py stream FILE --flow '{session.name}' --cancel"
        )
        known = await session.known(partitions)
        unplaced = [
            str(partition)
            for partition in partitions
            if partition not in known.positions and known.resume(partition) < 0
        ]
        if unplaced and begins_at_end(session.flow.connector, SYSTEM_CLOCK):
            say(
                f"{len(unplaced)} partitions have no stored position ({some_of(unplaced, 3)}): "
                "the workers begin at the ends of their logs"
                " (auto.offset.reset or start.positions is latest), and what was written before "
                "is not copied; to copy it, store positions:"
                " stop the connector, then PATCH "
                f"/connectors/{session.name}.MirrorSourceConnector/offsets"
            )
        if not printer.is_table:
            printer.document({"flow": str(session.name), "state": "ENDED", "job": job.id})
        say(f"stream {job.id} of {session.name} is ended, its workers continue where it was")
        return OK


@final
class _StreamRun:
    """One ``mm2py stream``."""

    def __init__(
        self, options: StreamOptions, printer: Printer, mask: SecretMask, clock: Clock
    ) -> None:
        self._options, self._printer, self._clock = options, printer, clock
        self._mask = mask
        self._totals = CopyTotals()
        self._opened: OpenSession | None = None
        self._name = ""
        self._has_begun = False

    async def run(self) -> int:
        """Copy; a changed config begins anew with it."""
        with StopSignal() as stop:
            try:
                ended = await self._with_config_of_now(stop)
                while ended is CopyEnd.CHANGED:
                    ended = await self._again(stop)
            finally:
                if self._opened is not None:
                    await asyncio.to_thread(_close, self._opened)
        if ended is CopyEnd.RECALLED:
            raise BackfillRefusedError(
                f"flow.engine of {self._name} is worker for its workers: they take over",
                remedy="set flow.engine = spark for them, too (their file, or over REST)",
            )
        if ended is CopyEnd.FAILOVER:
            raise BackfillRefusedError(
                f"a failover of {self._name} has begun: its workers copy what is left",
                remedy="start it again once that has ended: mm2py failover FILE --flow "
                f"'{self._name}' --status shows it",
            )
        if ended is CopyEnd.ANOTHER_PROGRAM:
            raise BackfillRefusedError(
                f"workers of another program have joined the group of {self._name}: they copy, "
                "and leave nothing to Spark",
                remedy="stop its workers, and start the stream again; it continues where they were",
            )
        totals = self._totals
        report = {
            "flow": self._name,
            "state": "ENDED",
            "terms": totals.terms,
            "records": totals.records,
            "bytes": totals.bytes,
            "cause": totals.failure,
            "stood_still": [
                {"topic": tp.topic, "partition": tp.partition, "cause": cause}
                for tp, cause in totals.standing.items()
            ],
        }
        if not self._printer.is_table:
            self._printer.document(report)
        say(totals.summary())
        return FAILED if totals.standing or totals.failure else OK

    async def _again(self, stop: StopSignal) -> CopyEnd:
        """Copy with a changed config, as soon as both clusters answer."""
        self._has_begun = False
        try:
            return await self._with_config_of_now(stop)
        except RetriableError as error:
            if self._has_begun:
                raise  # what it has reserved is another run's to give back
            log.warning("the changed flow cannot be begun now, tried again cause=%s", error)
        await self._clock.sleep(CONFIG_LOOK_S)
        return CopyEnd.STOPPED if stop.asked else CopyEnd.CHANGED

    async def _with_config_of_now(self, stop: StopSignal) -> CopyEnd:
        async with BackfillSession(flow_plan(self._options.file, self._options.flow)) as session:
            self._name = str(session.name)
            self._mask.add(secrets_in(session.flow.connector) | secrets_in(session.flow.plan.props))
            check_engine(session)
            await session.open_topic()
            async with closing(StreamTopics(session, self._clock)) as topics:
                if (early := await self._first_partition(session, topics, stop)) is not None:
                    return early
                if self._opened is None:
                    name = f"mm2py stream {session.name}"
                    self._opened = await asyncio.to_thread(
                        open_session, self._options.master, name=name
                    )
                self._has_begun = True
                return await StreamCopy(
                    self._options, session, topics, self._opened, self._totals, stop, self._clock
                ).run()

    async def _first_partition(
        self, session: BackfillSession, topics: StreamTopics, stop: StopSignal
    ) -> CopyEnd | None:
        """Wait for the first partition; return what ends the copy before."""
        starting = asyncio.ensure_future(topics.start(stop))
        changing = asyncio.ensure_future(config_changes(session, self._clock))
        try:
            await asyncio.wait({starting, changing}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                return CopyEnd.CHANGED
            return None if starting.result() else CopyEnd.STOPPED
        finally:
            await cancelled(starting, changing)


def _close(opened: OpenSession) -> None:
    """Close Spark; a service manager that signals every process of a service has ended its JVM
    already."""
    try:
        opened.close()
    except Exception as error:  # noqa: BLE001 - py4j raises what it likes, and the copy has ended
        log.debug("Spark is not closed in order cause=%s", error)
