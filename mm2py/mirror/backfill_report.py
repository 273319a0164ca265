"""A backfill as people see it: the report of ``mm2py backfill`` and of ``GET /backfills``.

Flow: ``Job`` and its leases -> ``report`` -> JSON members. ``to`` and ``target_to`` are exclusive.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from typing_extensions import TypedDict

from mm2py.mirror.backfills import Job, JobState, Lease, LeaseState

__all__ = ["NO_DRIVER", "JobReport", "PartitionReport", "report", "without_driver"]

NO_DRIVER: Final = (
    "its driver is gone and nothing copies what is left: run the same command again, or cancel it"
)

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


def without_driver(job: Job) -> Job:
    """Return a job whose driver is gone as it is shown: nothing copies its partitions."""
    return replace(job, state=JobState.FAILED, cause=NO_DRIVER)


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
