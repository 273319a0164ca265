"""What ``mm2py restore`` does: an archive into the target, as a backfill whose source is the
archive.

Flow: archive -> ``Restore.plan`` for copies of the flow, and for topics under other names ->
refused, or topics are made and ``SparkRun`` runs the lanes -> report. The source cluster is not
asked: it may be gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.java_regex import PatternList
from mm2py.errors import ConfigError, Mm2pyError, UsageError
from mm2py.mirror.backfills import Job, JobState, Lease
from mm2py.mirror.filters import TopicSelection
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.producer_ids import suppression_of
from mm2py.mirror.start_positions import Boundary, age_ms, parse_boundary
from mm2py.observability.logging import some_of
from mm2py.observability.quantities import utc_text
from mm2py.protocol.topics import is_another_topic
from mm2py.storage.job_claim import BackfillRefusedError
from mm2py.types import FlowName, TopicPartition
from mm2py_cli.output import FAILED, OK, Column, Printer, say
from mm2py_jobs.archive.archive import archive_root
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.restore import ArchivedLog, Rename, Restore, read_archive
from mm2py_jobs.archive.restore_ends import UNKNOWN
from mm2py_jobs.copy.archive_order import ARCHIVE, ArchivedCopy, TaskArchive
from mm2py_jobs.copy.backfill import STOPPED, new_job
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.backfill_runs import refuse, show_limited
from mm2py_jobs.copy.backfill_spark import SparkRun
from mm2py_jobs.copy.plan import Plan, Refusal
from mm2py_jobs.copy.restored_flows import renamed_plan
from mm2py_jobs.job_options import RestoreOptions
from mm2py_jobs.open_flow import flow_plan, refuse_transforms
from mm2py_workers.answers import count_of

_ALL: Final = "now"
_COLUMNS: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("INTO", "target_topic"),
    Column.count("RECORDS", "records"),
    Column.count("RESTORED NOW", "restored_records"),
    Column.count("TO", "target_to"),
    Column.text("CAUSE", "cause"),
)
_END_COLUMNS: Final = (
    Column.count("ENDS BEFORE", "source_to"),
    Column.count("LEFT OUT", "left_out"),
)
"""With ``--to``."""

_SHOWN: Final = 5
_SOURCE_S: Final = 10.0
"""How long the source may take to say what it still has: it may be gone."""


def job_of(options: RestoreOptions, root: str, end: str = "") -> Job:
    """Return a job as its record keeps it: another run continues it only with the same arguments.
    ``end`` is what ``--to`` means, where that is counted from now."""
    archive = f"{root} as {options.rename}" if options.rename else root
    if options.topics:
        archive += f", topics {options.topics}"
    if options.end != _ALL:
        archive += f", to {options.end}"
    return new_job("", topics=options.topics or "", end=end or options.end, archive=archive)


def end_of(
    options: RestoreOptions, archive: str, jobs: Iterable[Job | None]
) -> tuple[str, Boundary]:
    """Return ``--to`` as the job's record keeps it, and what it means.

    An age is counted once: runs that continue one of ``jobs`` end where that was to end.

    Raises:
        UsageError: it is not understood, or is a time to come.
    """
    end = parse_boundary(options.end, "--to", _ALL)
    if end.timestamp is None or age_ms(options.end) < 0:
        text = options.end
    else:
        begun = (it for it in jobs if it is not None and not it.state.is_over)
        text = next(
            (it.end for it in begun if it.archive == archive), f"{utc_text(end.timestamp)}Z"
        )
        end = parse_boundary(text, "--to", _ALL)
    if end.timestamp is not None and end.timestamp > SYSTEM_CLOCK.now_ms():
        raise UsageError(
            f"--to {options.end} is a time to come",
            remedy="correct it, or leave it out: all that is archived is restored",
        )
    return text, end


def check_end(logs: Sequence[ArchivedLog], to: Boundary, text: str) -> None:
    """Refuse an end that no partition has; ``ConfigError``: it lies before or behind all that is
    archived."""
    there = [it for it in logs if not it.broken and (it.end > it.begins or it.left_out)]
    if not there or to == Boundary():
        return
    if all(it.end <= it.begins for it in there):
        log = there[0]
        raise ConfigError(
            f"the archive has nothing before --to {text}",
            remedy=f"correct it; {log.source} begins at offset {log.begins}",
        )
    if to.offset is not None and not any(it.is_cut for it in there):
        log = max(there, key=lambda it: it.end)
        raise ConfigError(
            f"--to {text} is behind all that is archived: {log.source} ends at offset {log.end}",
            remedy="archive what is missing first, or leave --to out: all that is archived is "
            "restored",
        )


def end_notes(logs: Sequence[ArchivedLog], to: Boundary) -> list[str]:
    """Return which partitions do not end where ``--to`` says, and why."""
    if to == Boundary():
        return []
    early = [str(it.source) for it in logs if not it.is_cut and not it.broken]
    nothing = [str(it.source) for it in logs if it.is_cut and it.end <= it.begins]
    notes: list[str] = []
    if early:
        notes.append(
            f"{some_of(early, _SHOWN)}: the archive ends before --to, all that it has is "
            "restored; what came later and is not archived is missing"
        )
    if nothing:
        notes.append(f"{some_of(nothing, _SHOWN)}: the archive has nothing before --to")
    return notes


def as_begun(new: Job, before: Job | None) -> Job:
    """Return a job that continues ``before`` as its record names it, where a build that had no
    topics in ``archive`` began it with the same arguments."""
    if before is None or before.state.is_over or before.topics != new.topics:
        return new
    earlier = new.archive.removesuffix(f", topics {new.topics}")
    return replace(new, archive=earlier) if before.archive == earlier else new


async def show_restore_plan(options: RestoreOptions, printer: Printer) -> int:
    """Print what would be restored, and what the checks refuse; return the exit code; raises as
    ``run_restore``."""
    async with _planned(options, printer) as (session, _, runs):
        empty = Plan(flow=options.flow, partitions=())
        plan = _joined([run.checked for run in runs]) if runs else empty
        target = {"target": session.clusters["target"]}
        return await show_limited(plan, target, options, printer)


async def run_restore(options: RestoreOptions, printer: Printer) -> int:
    """Restore, print the report, and return the exit code; ``Mm2pyError``: the archive cannot be
    restored, or a cluster does not answer."""
    async with _planned(options, printer) as (session, root, runs):
        if any(run.checked.refused for run in runs):
            return refuse(_joined([run.checked for run in runs]), printer)
        for note in (note for run in runs for note in run.checked.notes):
            say(f"note: {note}")
        ended = await run_each([run.run for run in runs])
    rows = [row for run in runs for row in run.rows()]
    report = {
        "flow": str(session.name),
        "path": root,
        "to": runs[0].to if runs else options.end,
        "state": _state(ended),
        "records": sum(count_of(row, "records") or 0 for row in rows),
        "restored_records": sum(count_of(row, "restored_records") or 0 for row in rows),
        "partitions": rows,
    }
    columns = _COLUMNS if options.end == _ALL else (*_COLUMNS[:-1], *_END_COLUMNS, _COLUMNS[-1])
    printer.rows(report, rows, columns, "the archive has no records of these topics")
    for cause in filter(None, (job.cause for job in ended)):
        say(f"restore: {cause}")
    for row in rows:
        if row["lost_in_archive"]:
            say(
                f"{row['topic']}-{row['partition']}: the archive lacks {row['lost_in_archive']} "
                "offsets"
            )
        if row["archived_ahead"]:
            say(
                f"{row['topic']}-{row['partition']}: {row['archived_ahead']} records that a "
                "killed run has archived are not restored:"
                " what lies before them is not archived; mm2py archive completes it from the source"
            )
    say(
        f"restored {report['restored_records']:,} records; topics that were made here keep all "
        "records (retention.ms=-1)"
    )
    return OK if report["state"] == JobState.DONE.value else FAILED


@asynccontextmanager
async def _planned(
    options: RestoreOptions, printer: Printer
) -> AsyncGenerator[tuple[BackfillSession, str, list["_RestoreRun"]]]:
    """Open the flow, and plan: copies of it, and topics under other names, whose positions another
    flow keeps; changes nothing."""
    rename = Rename(options.rename or None)
    end_of(options, "", ())
    async with BackfillSession(flow_plan(options.file, options.flow)) as session:
        refuse_transforms(
            session.name,
            session.flow.connector,
            "an archive has them as they are on the source, with what the transforms drop",
        )
        names = _CopyNames(session.name, session.flow.connector)
        root = archive_root(options.folder, session.name)
        async with BackfillSession(
            renamed_plan(session.flow.plan, session.flow.connector)
        ) as renamed:
            for it in (session, renamed):
                await it.open_if_there()
            jobs = session.store.job, renamed.store.job
            text, to = end_of(options, job_of(options, root).archive, jobs)
            logs = await asyncio.to_thread(
                read_archive,
                ArchiveStore(root),
                PatternList.of(options.topics or ".*").matches,
                lambda topic: names.checked(topic, rename.name(topic, names.copy_of(topic))),
                to,
            )
            check_end(logs, to, options.end)
            target = await session.flow.admin("target")
            runs: list[_RestoreRun] = []
            for opened in (session, renamed):
                own = [
                    log
                    for log in logs
                    if (log.target_topic == names.copy_of(log.topic.topic)) is (opened is session)
                ]
                if own:
                    job = job_of(options, root, text)
                    runs.append(_RestoreRun(options, job, to, root, opened, target, own, printer))
            for run in runs:
                await run.plan()
            yield session, root, runs


async def run_each(runs: Sequence[Callable[[], Awaitable[Job]]]) -> list[Job]:
    """Run one after the other; a stop or cancel of one ends all."""
    ended: list[Job] = []
    for run in runs:
        ended.append(await run())
        if ended[-1].state is JobState.CANCELLED or ended[-1].cause == STOPPED:
            break
    return ended


def _state(jobs: Sequence[Job]) -> str:
    return next((job.state.value for job in jobs if job.state is not JobState.DONE), "DONE")


def _joined(plans: Sequence[Plan]) -> Plan:
    return replace(
        plans[0],
        partitions=tuple(partition for plan in plans for partition in plan.partitions),
        refused=tuple(it for plan in plans for it in plan.refused),
        notes=tuple(it for plan in plans for it in plan.notes),
    )


@final
class _CopyNames:
    """Names of copies, and which names the flow uses by itself."""

    def __init__(self, flow: FlowName, connector: Mapping[str, str]) -> None:
        self._flow = flow
        self._policy = policy_from_config(connector)
        self._selection = TopicSelection.of(flow, connector)
        self.copy_of: Final = self._selection.copy_of

    def checked(self, topic: str, name: str) -> str:
        """Return a new name of a topic, if it is not that of another topic's copy."""
        source = self._policy.upstream_topic(name) or name
        if source != topic and self.copy_of(source) == name and self._selection.replicate(source):
            raise ConfigError(
                f"--rename gives {topic} the name {name}, which is the copy of {source} in the "
                f"flow {self._flow}",
                remedy="give it a name that the flow does not write to",
            )
        return name


@final
class _RestoreRun:
    """The part of a restore whose positions one flow keeps."""

    def __init__(
        self,
        options: RestoreOptions,
        job: Job,
        to: Boundary,
        root: str,
        session: BackfillSession,
        target: Admin,
        logs: Sequence[ArchivedLog],
        printer: Printer,
    ) -> None:
        self._options, self._session, self._printer = options, session, printer
        self._restore = Restore(
            session.name,
            logs,
            target,
            ArchiveStore(root),
            SYSTEM_CLOCK,
            suppression_of(session.flow.connector),
            session.flow.held,
        )
        self._root, self._new, self._end = root, job, to
        self.to: Final = job.end
        self._begun: Mapping[TopicPartition, int] = {}
        self.checked = Plan(flow=str(session.name), partitions=())
        self._leases: Mapping[TopicPartition, Lease] = {}

    async def plan(self) -> None:
        """Check everything; changes nothing."""
        known = await self._session.known(self._restore.logs, whole=True)
        plan = await self._restore.plan(known, accepts_expiry=self._options.accepts_expiry)
        if plan.refused and await self._is_unfinished():
            # What a restore has written that was killed before it stored a position: its lanes find
            # it in the log.
            plan = replace(plan, refused=tuple(filter(self._is_lost, plan.refused)))
        elif self._is_done():
            # The flow has continued behind the end.
            left = (it for it in plan.refused if it.source not in self._restore.beyond)
            plan = replace(plan, refused=tuple(left))
        notes = end_notes(list(self._restore.logs.values()), self._end)
        if not self._restore.is_renamed:
            notes += await self._behind(plan)
        self.checked = replace(plan, notes=(*plan.notes, *notes))

    def _is_done(self) -> bool:
        job = self._session.store.job
        return job is not None and job.state is JobState.DONE and job.archive == self._new.archive

    async def _behind(self, plan: Plan) -> list[str]:
        """Return what the running flow does behind ends that were asked for, and what its source
        has no longer."""
        logs = {it.source: self._restore.logs[it.source] for it in plan.partitions}
        cut = {tp: log for tp, log in logs.items() if log.is_cut}
        if not cut:
            return []
        notes = [
            "the running flow copies from the source what comes after these ends; --rename keeps a "
            "copy of the past"
        ]
        try:
            async with asyncio.timeout(_SOURCE_S):
                source = await self._session.flow.admin("source")
                topics = await source.describe_topics({it.topic for it in cut})
                starts = await self._session.known_starts(
                    [
                        it
                        for it in cut
                        if it.topic in topics and it.partition in topics[it.topic].partitions
                    ]
                )
        except (Mm2pyError, TimeoutError) as error:
            cause = str(error) or "no answer"
            return [*notes, f"what the source has behind these ends is not known: {cause}"]
        gone = [
            f"{tp} from {log.end} to {starts[tp]}"
            for tp, log in cut.items()
            if starts.get(tp, -1) > log.end
        ]
        absent = [
            str(tp)
            for tp, log in cut.items()
            if tp not in starts
            or is_another_topic(bytes.fromhex(log.topic.topic_id), topics[tp.topic].topic_id)
        ]
        if gone:
            notes.append(
                "missing behind these ends, as the source has deleted them: "
                f"{some_of(gone, _SHOWN)} (exclusive)"
            )
        if absent:
            notes.append(
                "missing behind these ends, as the source does not show such a partition, or has "
                f"another topic of that name: {some_of(absent, _SHOWN)}"
            )
        return notes

    def _is_lost(self, refused: Refusal) -> bool:
        """Whether what a former run has restored, or what comes next, is gone, or was passed by
        hand: another one would continue behind it."""
        key = refused.source
        lease = self._session.store.leases.get(key)
        is_emptied = key in self._restore.emptied and lease is not None and lease.records > 0
        return is_emptied or key in self._restore.cut_off | self._restore.passed

    async def _is_unfinished(self) -> bool:
        await self._session.open_if_there()
        job = self._session.store.job
        self._new = as_begun(self._new, job)
        if job is None or job.state.is_over or job.archive != self._new.archive:
            return False
        return bool(self._session.store.leases)  # else it died before it began

    async def run(self) -> Job:
        """Make the topics and restore; continues an unfinished restore of the same archive."""
        session, restore = self._session, self._restore
        await session.open_topic()
        self._new = as_begun(self._new, session.store.job)
        driver = session.driver
        job = await driver.claim(archive=None if restore.is_renamed else self._new.archive)
        if job is not None and job.archive != self._new.archive:
            say(f"restore {job.id} of {job.archive} is unfinished and is cancelled")
            await driver.cancel()  # its topics keep what they have, and no flow waits for them
            job = None
        if job is not None:
            say(f"restore {job.id} is unfinished, it is continued")
        await restore.make_topics()
        known = await session.known(restore.logs, whole=True)
        plan = await restore.plan(known, accepts_expiry=True)  # it was asked for above
        if job is None and restore.is_renamed and restore.beyond:
            # Lanes of a run that was killed have sent more since.
            reasons = (it.reason for it in plan.refused if it.source in restore.beyond)
            raise BackfillRefusedError(next(reasons))
        stale = restore.stale(plan, known)
        plan = replace(plan, forgotten=tuple(stale))
        ends = {log: known.target_end(log) for log in restore.logs if log not in stale}
        # Without a map, as behind a position of Java, what the target has was not restored either.
        self._begun = {it: restore.ends.get(it, 0) if end < 0 else end for it, end in ends.items()}
        ended = await SparkRun(session, self._printer).run(
            plan,
            self._task(),
            self._new,
            place=self._options.place,
            rate_limit=self._options.rate_limit,
        )
        self._leases = dict(session.store.leases)
        return ended

    def _task(self) -> Mapping[str, str]:
        topics = {
            key.topic: ArchivedCopy(log.topic.topic, log.topic.topic_id, log.target_topic)
            for key, log in self._restore.logs.items()
        }
        begins = {key: log.begins for key, log in self._restore.logs.items()}
        archive = TaskArchive(self._root, topics, {}, begins)
        return {**self._session.flow.connector, ARCHIVE: archive.to_text()}

    def rows(self) -> list[dict[str, object]]:
        """Return the partitions of the report; ``target_to`` is exclusive."""
        found: list[dict[str, object]] = []
        for key, log in self._restore.logs.items():
            lease = self._leases.get(key)
            end = lease.target_end if lease is not None else self._begun.get(key, 0)
            found.append(
                {
                    "topic": log.topic.topic,
                    "partition": log.partition,
                    "target_topic": log.target_topic,
                    "state": "" if lease is None else lease.state.value,
                    "records": max(0, end),
                    "restored_records": max(0, end - self._begun.get(key, 0)),
                    "target_from": 0,
                    "target_to": max(0, end),
                    "source_to": log.end,
                    "lost_in_archive": log.lost,
                    "archived_ahead": log.ahead,
                    "left_out": None if log.left_out == UNKNOWN else log.left_out,
                    "cause": "" if lease is None else lease.cause,
                }
            )
        return found
