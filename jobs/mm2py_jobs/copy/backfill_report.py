"""A backfill as it is shown: the report of ``mm2py backfill`` and of ``GET /backfills``.

Flow: ``Job`` and its leases -> ``report`` -> JSON members. ``to`` and ``target_to`` are exclusive.
"""

from collections.abc import Collection
from typing import Final

from typing_extensions import TypedDict

from mm2py.mirror.backfills import NO_DRIVER, Job, JobState, Lease, LeaseState, Order

GONE: Final = "the worker that started it is gone: start it again"

PLANNED: Final = "PLANNED"
STARTING: Final = "STARTING"
"""States before there is a job."""

OrderReport = TypedDict(
    "OrderReport",
    {
        "id": str,
        "state": str,
        "topics": str,
        "from": str,
        "to": str,
        "rate_limit": int,
        "master": str,
        "by": str,
        "worker": str,
        "at_ms": int,
        "cause": str,
    },
)
"""What was planned over REST and has no job yet; ``worker`` is empty until it is started."""

PartitionReport = TypedDict(
    "PartitionReport",
    {
        "topic": str,
        "partition": int,
        "state": str,
        "from": int,
        "to": int,
        "position": int,
        "target_from": int | None,
        "target_to": int | None,
        "records": int,
        "bytes": int,
        "cause": str,
    },
)
"""One source partition; ``position`` is the next source offset to copy."""


class JobReport(TypedDict):
    """One backfill."""

    id: str
    state: str
    records: int
    bytes: int
    partitions: list[PartitionReport]
    cause: str


def held_text(leases: Collection[Lease]) -> str:
    """Return why partitions stand still that lanes copy, by the first one; empty where none
    does."""
    held = [it for it in leases if it.cause and it.state.keeps_live_out]
    if not held:
        return ""
    first = min(held, key=lambda it: it.source)
    what = "1 partition stands" if len(held) == 1 else f"{len(held)} partitions stand"
    return f"{what} still, {first.source}: {first.cause}"


def cause_of(job: Job, order: Order | None, leases: Collection[Lease] = ()) -> str:
    """Return why a job ended before its time, or what holds one that runs.

    Of a driver that wrote no cause it is what the worker that started it has noted.
    """
    if job.state.is_copied:
        return held_text(leases)
    noted = order.cause if order is not None and order.id == job.id else ""
    if noted and job.state is JobState.FAILED and job.cause in ("", NO_DRIVER):
        return f"{noted}; {NO_DRIVER}"
    return job.cause


def order_report(
    order: Order | None, job: Job | None, workers: Collection[str]
) -> OrderReport | None:
    """Return what was planned over REST last, None where nothing was or its job was begun;
    ``workers`` are those of the flow."""
    if order is None or (job is not None and job.id == order.id):
        return None
    gone = GONE if order.worker and order.worker not in workers else ""
    cause, state = order.cause or gone, STARTING if order.worker else PLANNED
    return {
        "id": order.id,
        "state": JobState.FAILED.value if cause else state,
        "topics": order.topics,
        "from": order.start,
        "to": order.end,
        "rate_limit": order.rate_limit,
        "master": order.master,
        "by": order.by,
        "worker": order.worker,
        "at_ms": order.at_ms,
        "cause": cause,
    }


def report(job: Job, leases: Collection[Lease]) -> JobReport:
    """Return a job and its partitions."""
    shown = sorted(leases, key=lambda it: it.source)
    return {
        "id": job.id,
        "state": job.state.value,
        "records": sum(it.records for it in shown),
        "bytes": sum(it.bytes for it in shown),
        "partitions": [_partition(it) for it in shown],
        "cause": job.cause,
    }


def _partition(lease: Lease) -> PartitionReport:
    return {
        "topic": lease.topic,
        "partition": lease.partition,
        "state": lease.state.value,
        "from": lease.start,
        "to": lease.position if lease.state is LeaseState.HANDED_OVER else lease.end,
        "position": lease.position,
        "target_from": None if lease.target_start < 0 else lease.target_start,
        "target_to": None if lease.target_end < 0 else lease.target_end,
        "records": lease.records,
        "bytes": lease.bytes,
        "cause": lease.cause,
    }
