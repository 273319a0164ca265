"""What can be done about a partition whose copy is not equal: nothing in place, for a log is only
appended to and cut at its start.

Flow: plan and outcome of one partition -> ``advice`` -> in the report; ``verify --repair`` follows
it.

Two repairs are possible in Kafka. APPEND: the copy ends too early and nothing is behind, so the
missing end is copied again. RENEW: the copies are deleted up to the end of the log (DeleteRecords)
and copied again after it; target offsets rise, the offset map and the groups' positions follow. It
destroys what only the target has, so that it needs ``--delete-copies``, and is refused where the
source does not have the records any more or others write to the partition.
"""

from enum import StrEnum
from typing import NamedTuple

from mm2py_jobs.verify.differences import Comparison, DifferenceKind
from mm2py_jobs.verify.verify_plan import NOTHING, VerifyPartition


class RepairKind(StrEnum):
    """What ``--repair`` can do."""

    APPEND = "append"
    """Copy the missing end again; deletes nothing."""
    RENEW = "renew"
    """Delete the copies and copy again; only with ``--delete-copies``."""
    NONE = "none"


class Advice(NamedTuple):
    """What to do about a partition: ``source_offset`` of the topic with ``topic_id`` is where
    copying begins again, ``target_end`` where the target's log ended."""

    action: RepairKind
    source_offset: int
    target_end: int
    text: str
    topic_id: str


def advice(plan: VerifyPartition, comparison: Comparison) -> Advice:
    """Return what can be done about a partition with differences."""
    end, tail = plan.target_log.end, comparison.tail
    missing = [
        difference.source_offset
        for difference in comparison.differences
        if difference.kind is DifferenceKind.MISSING
    ]
    if (
        comparison.complete
        and plan.hidden == NOTHING
        and len(missing) == len(comparison.differences)
        and 0 <= tail <= min(missing)
    ):
        text = (
            f"the copy ends before source offset {tail}, nothing is behind: --repair copies it "
            "again from there;"
            " a flow that copies on before that makes this a gap, which cannot be filled"
        )
        return Advice(RepairKind.APPEND, tail, end, text, plan.topic_id)
    if plan.renew_from < 0:
        return Advice(RepairKind.NONE, -1, end, plan.not_renewable, plan.topic_id)
    text = (
        "records of a log cannot be replaced or put between others: --repair --delete-copies "
        "deletes the records of"
        f" {plan.target} up to offset {end} and copies again from source offset {plan.renew_from}"
    )
    return Advice(RepairKind.RENEW, plan.renew_from, end, text, plan.topic_id)
