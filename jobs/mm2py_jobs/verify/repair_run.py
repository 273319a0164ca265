"""``mm2py verify --repair``: partitions that are not equal are copied again where that is possible,
and compared again.

Flow: report -> advice of each partition (``mm2py_jobs.verify.repair_advice``) -> ``BackfillDriver``
over those that can be repaired -> both in one report: what was found, what was done, what is true
now.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

from mm2py.mirror.backfills import CopyAgain, Lease
from mm2py.storage.job_claim import unfinished
from mm2py.types import TopicPartition
from mm2py_cli.output import Printer
from mm2py_jobs.copy.backfill import new_job
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.backfill_spark import SparkRun
from mm2py_jobs.copy.known_maps import KnownMap, known_maps, not_copied
from mm2py_jobs.copy.plan import PartitionPlan
from mm2py_jobs.copy.survey import BeginsAgain
from mm2py_jobs.job_options import VerifyOptions
from mm2py_jobs.open_flow import flow_plan
from mm2py_jobs.verify.repair_advice import RepairKind
from mm2py_workers.answers import Row, rows_of


def repair(
    options: VerifyOptions, report: Mapping[str, object], printer: Printer
) -> list[dict[str, object]]:
    """Repair what can be repaired; return what was done about each partition that is not equal.

    Raises:
        BackfillRefusedError: a backfill of the flow is unfinished, or the flow does not let go of
            the partitions.
        Mm2pyError: it failed; ``mm2py backfill run`` continues it.
    """
    rows = [row for row in rows_of(report, "partitions") if "repair" in row]
    again = {
        _source(row): _begins_again(row)
        for row in rows
        if _advice(row)["action"] in allowed_actions(options)
    }
    causes, lost = asyncio.run(_copy(options, again, printer)) if again else ({}, {})
    return [
        {
            "topic": row["topic"],
            "partition": row["partition"],
            "action": _advice(row)["action"],
            "from": _advice(row)["source_offset"],
            "done": _source(row) in again and not causes[_source(row)],
            "cause": causes.get(
                _source(row), "" if _source(row) in again else _advice(row)["text"]
            ),
            "lost": lost.get(_source(row), []),
        }
        for row in rows
    ]


def _lines(report: Mapping[str, object]) -> Sequence[str]:
    return cast("Sequence[str]", report["not_compared"])


def allowed_actions(options: VerifyOptions) -> Sequence[RepairKind]:
    """Return what may be done."""
    return (RepairKind.APPEND, RepairKind.RENEW) if options.deletes else (RepairKind.APPEND,)


def repaired_report(
    before: Mapping[str, object],
    after: Mapping[str, object],
    repairs: Sequence[Mapping[str, object]],
) -> dict[str, object]:
    """Return the report of all partitions as they are now; ``before`` has what was found first."""
    now = {_source(row): row for row in rows_of(after, "partitions")}
    partitions = [now.get(_source(row), row) for row in rows_of(before, "partitions")]
    differences = [
        *(row for row in rows_of(before, "differences") if _source(row) not in now),
        *rows_of(after, "differences"),
    ]
    old = tuple(f"{source}: " for source in now)
    not_compared = [it for it in _lines(before) if not it.startswith(old)] + [*_lines(after)]
    return {
        **before,
        "equal": not differences and not not_compared,
        "not_compared": not_compared,
        "checked_records": sum(int(str(row["checked_records"])) for row in partitions),
        "differences": differences,
        "partitions": partitions,
        "repairs": list(repairs),
        "before": {name: before[name] for name in ("equal", "checked_records", "differences")},
    }


async def _copy(
    options: VerifyOptions,
    again: Mapping[TopicPartition, BeginsAgain],
    printer: Printer,
) -> tuple[dict[TopicPartition, str], dict[TopicPartition, list[tuple[int, int]]]]:
    """Copy partitions again; return why one was not, or an empty text, and what the source lost
    before it was copied."""
    async with BackfillSession(flow_plan(options.file, options.flow)) as session:
        plan = await (await session.survey()).plan_again(again)
        refused = {TopicPartition(it.topic, it.partition): it.reason for it in plan.refused}
        await session.open_topic()
        driver = session.driver
        job = await driver.claim()
        if job is not None and driver.has_reserved:
            raise unfinished(job, str(session.name))
        if not plan.partitions:
            return refused, {}
        task = await session.prepare_topics()
        topics = "|".join(sorted({partition.topic for partition in plan.partitions}))
        job = await SparkRun(session, printer).run(
            plan,
            task,
            new_job("", topics=topics),
            place=options.place,
            rate_limit=options.rate_limit,
        )
        leases: Mapping[TopicPartition, Lease] = session.store.leases
        causes = {
            partition.source: leases[partition.source].cause if partition.source in leases else ""
            for partition in plan.partitions
        }
        if job.cause:
            causes = {tp: cause or job.cause for tp, cause in causes.items()}
        lost = await _lost(session, plan.partitions)
        return refused | causes, lost


async def _lost(
    session: BackfillSession, partitions: Sequence[PartitionPlan]
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return what of each range is neither copied nor on the source any more."""
    starts = await session.source_starts({it.source for it in partitions})
    maps = await known_maps(session.flow.target.cluster, session.name.source)
    return lost_of(partitions, starts, maps)


def lost_of(
    partitions: Sequence[PartitionPlan],
    starts: Mapping[TopicPartition, int],
    maps: Mapping[TopicPartition, KnownMap],
) -> dict[TopicPartition, list[tuple[int, int]]]:
    """Return what lies below the starts of the source's logs and is in no map; without one nothing
    was copied."""
    return {
        it.source: [
            *not_copied(it.start, min(it.end, start), maps.get(it.source, KnownMap()).segments())
        ]
        for it in partitions
        if (start := starts[it.source]) > it.start
    }


def _source(row: Row) -> TopicPartition:
    return TopicPartition(str(row["topic"]), int(str(row["partition"])))


def _advice(row: Row) -> Row:
    return cast("Row", row["repair"])


def _begins_again(row: Row) -> BeginsAgain:
    advice = _advice(row)
    again = CopyAgain(
        topic=str(row["target_topic"]),
        compared_to=int(str(advice["target_end"])),
        deletes=advice["action"] == RepairKind.RENEW,
    )
    return BeginsAgain(
        int(str(advice["source_offset"])), bytes.fromhex(str(advice["topic_id"])), again
    )
