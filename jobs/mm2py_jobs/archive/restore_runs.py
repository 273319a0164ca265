"""What ``mm2py restore`` does: an archive into the target, as a backfill whose source is the
archive.

Flow: archive -> ``Restore.plan`` for copies of the flow, and for topics under other names ->
refused, or topics are made and ``SparkRun`` runs the lanes -> report. The source cluster is not
asked: it may be gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.java_regex import PatternList
from mm2py.errors import ConfigError
from mm2py.mirror.backfills import Job, JobState, Lease
from mm2py.mirror.filters import TopicSelection
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.producer_ids import suppression_of
from mm2py.types import FlowName, TopicPartition
from mm2py_cli.output import FAILED, OK, Column, Printer, say
from mm2py_jobs.archive.archive import archive_root
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.restore import ArchivedLog, Rename, Restore, read_archive
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

_COLUMNS: Final = (
    Column.text("TOPIC", "topic"),
    Column.count("PARTITION", "partition"),
    Column.text("INTO", "target_topic"),
    Column.count("RECORDS", "records"),
    Column.count("RESTORED NOW", "restored_records"),
    Column.count("TO", "target_to"),
    Column.text("CAUSE", "cause"),
)


def job_of(options: RestoreOptions, root: str) -> Job:
    """Return a job as its record keeps it: another run continues it only with the same
    arguments."""
    archive = f"{root} as {options.rename}" if options.rename else root
    if options.topics:
        archive += f", topics {options.topics}"
    return new_job("", topics=options.topics or "", archive=archive)


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
        "state": _state(ended),
        "records": sum(count_of(row, "records") or 0 for row in rows),
        "restored_records": sum(count_of(row, "restored_records") or 0 for row in rows),
        "partitions": rows,
    }
    printer.rows(report, rows, _COLUMNS, "the archive has no records of these topics")
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
    async with BackfillSession(flow_plan(options.file, options.flow)) as session:
        refuse_transforms(
            session.name,
            session.flow.connector,
            "an archive has them as they are on the source, with what the transforms drop",
        )
        names = _CopyNames(session.name, session.flow.connector)
        root = archive_root(options.folder, session.name)
        logs = await asyncio.to_thread(
            read_archive,
            ArchiveStore(root),
            PatternList.of(options.topics or ".*").matches,
            lambda topic: names.checked(topic, rename.name(topic, names.copy_of(topic))),
        )
        copies = [log for log in logs if log.target_topic == names.copy_of(log.topic.topic)]
        others = [log for log in logs if log.target_topic != names.copy_of(log.topic.topic)]
        target = await session.flow.admin("target")
        runs: list[_RestoreRun] = []
        if copies:
            runs.append(_RestoreRun(options, root, session, target, copies, printer))
        async with BackfillSession(
            renamed_plan(session.flow.plan, session.flow.connector)
        ) as renamed:
            if others:
                runs.append(_RestoreRun(options, root, renamed, target, others, printer))
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
        self._root, self._new = root, job_of(options, root)
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
        self.checked = plan

    def _is_lost(self, refused: Refusal) -> bool:
        """Whether what a former run has restored, or what comes next, is gone, or was passed by
        hand: another one would continue behind it."""
        key = TopicPartition(refused.topic, refused.partition)
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
                    "cause": "" if lease is None else lease.cause,
                }
            )
        return found
