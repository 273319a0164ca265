"""What the commands of ``mm2py backfill`` do: survey, Spark session, driver, progress, report.

Flow: ``BackfillOptions`` -> ``BackfillSession`` -> ``Survey.plan`` -> refused, or ``SparkRun`` with
a ``BackfillDriver`` -> report.
"""

import asyncio
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Final, final

from mm2py.config.java_regex import PatternList
from mm2py.errors import ConfigError, UsageError
from mm2py.mirror.backfills import Job, JobState, Wanted, without_driver
from mm2py.mirror.start_positions import parse_boundary
from mm2py.storage.job_claim import BackfillRefusedError
from mm2py_cli.output import FAILED, OK, Printer, say
from mm2py_connectors.partition_deal import ASSIGNED_PARTITIONS, parse_partitions
from mm2py_jobs.copy.backfill import new_job
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.backfill_report import cause_of, order_report
from mm2py_jobs.copy.backfill_spark import SparkRun
from mm2py_jobs.copy.backfill_views import (
    print_plan,
    print_report,
    print_status,
    say_refused,
)
from mm2py_jobs.copy.live_flow import workers_of
from mm2py_jobs.copy.plan import Plan, Refusal
from mm2py_jobs.copy.restored_flows import renamed_plan
from mm2py_jobs.copy.survey import Survey
from mm2py_jobs.job_options import REFUSED, BackfillOptions, FlowOptions, RestoreOptions
from mm2py_jobs.open_flow import flow_plan

_CORES: Final = re.compile(r"local\[(\d+)")


def check_continues(options: BackfillOptions, job: Job) -> None:
    """Refuse to continue an unfinished job for other partitions: it would end as done without them.

    Raises:
        BackfillRefusedError: it was begun with other arguments, and not all of them are left out.
    """
    begun = job.topics, job.start, job.end
    given = options.topics, options.start, options.end
    if given not in (begun, ("", "earliest", "now")):
        raise BackfillRefusedError(
            f"backfill {job.id} of {options.flow} is unfinished and was begun with --topics "
            f"'{job.topics}' --from '{job.start}' --to '{job.end}'",
            remedy="run it with these to its end first, or end it with mm2py backfill cancel",
        )


async def _planned(options: BackfillOptions, survey: Survey, job: Job | None = None) -> Plan:
    """Return the plan, of an unfinished job by what it was begun with."""
    given: BackfillOptions | Job = options if job is None else job
    return await survey.plan(
        given.topics,
        parse_boundary(given.start, "--from", "earliest"),
        parse_boundary(given.end, "--to", "now"),
        accepts_expiry=options.accepts_expiry or job is not None,
    )


async def show_plan(options: BackfillOptions, printer: Printer) -> int:
    """Print the plan; return the exit code."""
    _begin(options)
    async with BackfillSession(flow_plan(options.file, options.flow)) as session:
        plan = await _planned(options, await session.survey())
        code = await show_limited(plan, session.clusters, options, printer)
    return OK if options.skips_refused and plan.partitions else code


async def show_limited(
    plan: Plan,
    clusters: Mapping[str, Mapping[str, str]],
    options: BackfillOptions | RestoreOptions,
    printer: Printer,
) -> int:
    """Print a plan whose lanes are dealt by the leaders of the ``clusters``, where so few may be at
    one broker; return the exit code."""
    place = options.place
    if most := place.lanes_per_broker:
        plan, _ = await asyncio.to_thread(plan.limited, most, clusters)
    document = plan.document(slots_of(place.master), options.rate_limit, place.lanes)
    return show_document(plan, document, printer)


def slots_of(master: str) -> int:
    """Return how many lanes of a run would work at the same time, by its Spark master; a cluster's
    are not known before."""
    cores = _CORES.match(master)
    return int(cores[1]) if cores else len(os.sched_getaffinity(0))


def show_document(plan: Plan, document: Mapping[str, object], printer: Printer) -> int:
    """Print a plan; return the exit code."""
    if printer.is_table:
        print_plan(printer, plan, document)
    else:
        printer.document(document)
    return REFUSED if plan.refused else OK


async def run_backfill(options: BackfillOptions, printer: Printer) -> int:
    """Run a backfill; return the exit code."""
    _begin(options)
    session = BackfillSession(flow_plan(options.file, options.flow))
    return await _BackfillRun(options, session, printer).run()


@asynccontextmanager
async def _newest(what: str, options: FlowOptions) -> AsyncGenerator[BackfillSession]:
    """Open the flow of the newest job; that of a restore may be the one that restores under other
    names."""
    async with BackfillSession(flow_plan(options.file, options.flow)) as session:
        await session.open_if_there()
        job = session.store.job
        if what != "restore" or (job is not None and job.archive and not job.state.is_over):
            yield session
            return
        async with BackfillSession(
            renamed_plan(session.flow.plan, session.flow.connector)
        ) as renamed:
            await renamed.open_if_there()
            yield renamed if renamed.store.job is not None else session


async def show_status(what: str, options: FlowOptions, printer: Printer) -> int:
    """Print the newest job; return the exit code."""
    async with _newest(what, options) as session:
        store = session.store
        job = store.job
        if job is not None and job.state.is_copied:
            driven = await session.claim.is_driven()
            await store.refresh()
            job = store.job
            if job is not None and job.state.is_copied and not driven:
                job = without_driver(job)
        workers = workers_of(await session.group()) if store.order is not None else ()
        planned = order_report(store.order, job, workers)
        if job is None and planned is None and printer.is_table:
            say(f"there was no {what} of {session.name}")
        if job is not None:
            job = replace(job, cause=cause_of(job, store.order, store.leases.values()))
        print_status(printer, job, list(store.leases.values()), planned)
        return OK


async def steer(what: str, wanted: Wanted, options: FlowOptions, printer: Printer) -> int:
    """Pause, resume or cancel the newest job; return the exit code."""
    async with _newest(what, options) as session:
        if not session.store.live:
            raise BackfillRefusedError(f"there was no {what} of {session.name}")
        job = await session.driver.request(wanted)
        store = session.store
        await store.refresh()
        print_report(printer, job, list(store.leases.values()))
        return OK


@final
class _BackfillRun:
    """One ``mm2py backfill run``."""

    def __init__(
        self, options: BackfillOptions, session: BackfillSession, printer: Printer
    ) -> None:
        self._options, self._session, self._printer = options, session, printer

    async def run(self) -> int:
        async with self._session as session:
            survey = await session.survey()
            plan = await _planned(self._options, survey)
            await session.open_topic()
            driver = session.driver
            job = await driver.claim(archive="")
            if job is not None and session.store.wanted is Wanted.CANCEL:
                await driver.cancel()
                say(f"backfill {job.id} was to be cancelled, which is done; a new one begins")
                job = None
            begins = job is None or not driver.has_reserved
            if job is not None:
                check_continues(self._options, job)
                of = f" of {job.topics}" if job.topics else ""
                say(f"backfill {job.id}{of} is unfinished, it is continued")
                plan = await _planned(self._options, survey, job)
            if not begins:
                plan = self._left_out(plan)
            elif self._refuses(plan):
                return refuse(plan, self._printer)
            task = await session.prepare_topics()
            if begins:
                # Topics that were just created have configs to look at.
                plan = _without_copies(await _planned(self._options, survey, job), task)
                if self._refuses(plan):
                    return refuse(plan, self._printer)
                for note in plan.notes:
                    say(f"note: {note}")
            return await self._copy(plan, task)

    def _left_out(self, plan: Plan) -> Plan:
        """Return the plan of a run that continues another one: of the job's own partitions the
        checks were passed.

        The others it leaves out as the run before it did, and names them, with the option and
        without.
        """
        leases = self._session.store.leases
        left = (it for it in plan.refused if (it.topic, it.partition) not in leases)
        return replace(plan, refused=tuple(left))

    def _refuses(self, plan: Plan) -> bool:
        return bool(plan.refused) and not (self._options.skips_refused and plan.partitions)

    async def _copy(self, plan: Plan, task: Mapping[str, str]) -> int:
        session, options = self._session, self._options
        job = await SparkRun(session, self._printer).run(
            plan,
            task,
            new_job(options.id, topics=options.topics, start=options.start, end=options.end),
            place=options.place,
            rate_limit=options.rate_limit,
        )
        lost = await session.lost()
        leases = list(session.store.leases.values())
        print_report(self._printer, job, leases, refused=plan.refused, lost=lost)
        if job.state is not JobState.DONE:
            say(f"backfill {job.id} is {job.state.value}: {job.cause}")
            return FAILED
        return REFUSED if plan.refused else OK


def _without_copies(plan: Plan, task: Mapping[str, str]) -> Plan:
    """Refuse what the flow would not copy now either: its copy could not be created."""
    copied = set(parse_partitions(task[ASSIGNED_PARTITIONS].split(",")))
    refused = (
        Refusal(*it.source, f"{it.target_topic} could not be created, or not with this partition")
        for it in plan.partitions
        if it.source not in copied
    )
    there = tuple(it for it in plan.partitions if it.source in copied)
    return replace(plan, partitions=there, refused=(*plan.refused, *refused))


def _begin(options: BackfillOptions) -> None:
    """Refuse wrong arguments before anything is opened; end with the worker that started this
    process."""
    parse_boundary(options.start, "--from", "earliest")
    parse_boundary(options.end, "--to", "now")
    check_pattern(options.topics)
    if options.id:
        threading.Thread(target=_end_with_input, daemon=True).start()


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    # The worker is gone, and with it the reader of what is written here.
    nothing = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nothing, output)
    os.kill(os.getpid(), signal.SIGTERM)


def check_pattern(topics: str) -> None:
    """Refuse wrong patterns of ``--topics``; ``UsageError``: one of them is none of Java."""
    try:
        PatternList.of(topics)
    except ConfigError as error:
        raise UsageError(f"--topics: {error.message}", remedy=error.remedy) from error


def refuse(plan: Plan, printer: Printer) -> int:
    """Print what the checks refuse; return the exit code."""
    if printer.is_table:
        say_refused(plan.refused)
    else:
        printer.document({"state": "REFUSED", "refused": [asdict(it) for it in plan.refused]})
    return REFUSED
