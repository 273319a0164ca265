"""Verify: proves that what a flow has copied is equal to its source, or names each record that is not.

Flow: ``plan_verify`` on the driver -> partitions, large ones in parts -> lanes -> each task reads both clusters and finds what one
side has alone (``compare``) -> parts are joined and classified (``differences``) -> one report. Tier 0 looks at ends and the offset map;
1 compares batches by their bytes and decodes only those that differ; 2 decodes every record of both sides and reports a digest of
each; 3 is 2 with all differences instead of the first ones.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.range_reader import RangeReader, log_ends
from mm2py.errors import FatalError, PartitionError
from mm2py.protocol.log_batches import LogBatch
from mm2py.spark.compare import find
from mm2py.spark.dealing import LANES_PER_SLOT, answers_of
from mm2py.spark.differences import (
    CompareRules,
    Comparison,
    Difference,
    Findings,
    Gone,
    Kind,
    classify,
    join,
)
from mm2py.spark.digests import SequenceDigest, part_hash
from mm2py.spark.flow_sides import FlowSides
from mm2py.spark.log_entries import LogSide, OffsetRange, entries_of, fields_of
from mm2py.spark.reading import connected
from mm2py.spark.repair_advice import advice
from mm2py.spark.session import OpenSession
from mm2py.spark.verify_plan import PartitionPlan, VerifyPlan, plan_verify
from mm2py.types import TopicPartition

__all__ = ["DEFAULT_TIER", "TIERS", "PartitionLog", "find_differences", "outcome", "verify_flow"]

TIERS: Final = (0, 1, 2, 3)
DEFAULT_TIER: Final = 1

_FEW: Final = 1_000
_ALL: Final = 100_000
"""Differences of one partition that are named, below tier 3 and with it; memory is bounded by it."""

_GONE: Final = "gone"
"""In the answer about a partition: what was deleted while it was compared."""

_TRIES: Final = 3

PART_OFFSETS: Final = 500_000
"""Of both sides together; a partition is not cut into smaller parts: each costs a task."""

Lane = Mapping[str, object]


def verify_flow(
    flow: FlowSides,
    tier: int,
    open_spark: Callable[[], OpenSession],
    only: Collection[TopicPartition] | None = None,
) -> dict[str, object]:
    """Compare both sides of a flow, of ``only`` these source partitions, and return the report.

    Blocks until it is done; tier 0 needs no Spark.

    Raises:
        Mm2pyError: a cluster cannot be asked or read, or Spark failed.
    """
    plan = asyncio.run(_plan(flow, only))
    if tier == 0:
        return _report(flow, tier, plan, [_by_the_map(it) for it in plan.partitions])
    answers: list[dict[str, object]] = []
    waiting = plan.partitions
    if waiting:
        with open_spark() as opened:
            for last in (*[False] * (_TRIES - 1), True):
                found = _compare_all(opened, flow, tier, waiting)
                answers += (
                    _answer_of(it, found[it.source], tier)
                    for it in waiting
                    if not found[it.source].gone
                )
                gone = {tp: it.gone for tp, it in found.items() if it.gone}
                if not gone:
                    break
                if last:
                    raise FatalError(
                        f"records are deleted faster than compared: {min(gone.values())}"
                    )
                # Retention was ahead of us: what is left is compared.
                waiting = asyncio.run(_plan(flow, gone)).partitions
    return _report(flow, tier, plan, answers)


@final
@dataclass(slots=True)
class _Compared:
    """The answers about one partition, in the order of its parts."""

    findings: list[Findings]
    missing: list[int]
    extra: list[int]
    digests: list[tuple[SequenceDigest, SequenceDigest]]
    gone: str = ""


def _compare_all(
    opened: OpenSession, flow: FlowSides, tier: int, partitions: Sequence[PartitionPlan]
) -> dict[TopicPartition, _Compared]:
    share = sum(it.offsets for it in partitions) // (opened.slots * LANES_PER_SLOT)
    answers = answers_of(
        opened,
        run_lane,
        [part for it in partitions for part in it.parts(max(PART_OFFSETS, share))],
        lambda it: it.offsets,
        lambda lane: _lane(flow, tier, lane),
        name=f"verify {flow.flow}",
    )
    compared = {it.source: _Compared([], [], [], []) for it in partitions}
    for answer in sorted(answers, key=lambda it: int(str(it["part"]))):
        found = compared[TopicPartition(str(answer["topic"]), int(str(answer["partition"])))]
        if _GONE in answer:
            found.gone = str(answer[_GONE])
            continue
        found.findings.append(Findings.from_json(cast("Mapping[str, object]", answer["findings"])))
        found.missing += cast("list[int]", answer["missing"])
        found.extra += cast("list[int]", answer["extra"])
        if "digests" in answer:
            one, other = cast("Sequence[str]", answer["digests"])
            found.digests.append((SequenceDigest.parse(one), SequenceDigest.parse(other)))
    return compared


def _answer_of(plan: PartitionPlan, compared: _Compared, tier: int) -> dict[str, object]:
    found = outcome(plan, join(compared.findings), compared.missing, compared.extra, _most(tier))
    answer = _answer(plan, found)
    if compared.digests:
        sides = zip(*compared.digests, strict=True)
        answer["digests"] = [str(sum(side, SequenceDigest())) for side in sides]
    return answer


def outcome(
    plan: PartitionPlan,
    findings: Findings,
    missing: Sequence[int],
    extra: Sequence[int],
    most: int = _FEW,
) -> Comparison:
    """Return what differs; ``missing`` and ``extra`` are what compaction does not explain."""
    found = classify(findings, _rules(plan, most))
    found.differences += (Difference(Kind.MISSING, it, -1) for it in missing)
    found.differences += (Difference(Kind.EXTRA, -1, it) for it in extra)
    return found


def _most(tier: int) -> int:
    return _ALL if tier == max(TIERS) else _FEW


def _rules(plan: PartitionPlan, most: int) -> CompareRules:
    return CompareRules(
        covered=plan.covered,
        source_compacts=plan.source_compacts,
        target_compacts=plan.target_compacts,
        expected=plan.expected,
        most=most,
    )


async def _plan(flow: FlowSides, only: Collection[TopicPartition] | None) -> VerifyPlan:
    async with (
        connected(flow.source, alias=flow.flow.source) as source,
        connected(flow.target, alias=flow.flow.target) as target,
    ):
        plan = await plan_verify(flow, source, target)
    if only is None:
        return plan
    chosen = [it for it in plan.partitions if it.source in only]
    return plan._replace(partitions=chosen, not_compared=[])


def _lane(flow: FlowSides, tier: int, partitions: Sequence[PartitionPlan]) -> dict[str, object]:
    return {
        "source": flow.source,
        "target": flow.target,
        "aliases": list(flow.flow),
        "read_committed": flow.read_committed,
        "tier": tier,
        "partitions": [it.to_json() for it in partitions],
    }


def _by_the_map(plan: PartitionPlan) -> dict[str, object]:
    first, end = plan.lost
    lost = [Difference(Kind.MISSING, it, -1) for it in range(first, min(end, first + _FEW))]
    return _answer(plan, Comparison(differences=lost, tail=first if lost else -1))


# ---- in a task


def run_lane(lane: Lane) -> dict[str, object]:
    """Compare the partitions of a lane; runs in a Spark task."""
    return asyncio.run(_run_lane(lane))


async def _run_lane(lane: Lane) -> dict[str, object]:
    source_alias, target_alias = cast("Sequence[str]", lane["aliases"])
    source_properties = cast("Mapping[str, str]", lane["source"])
    target_properties = cast("Mapping[str, str]", lane["target"])
    plans = cast("Sequence[Mapping[str, object]]", lane["partitions"])
    answers: list[dict[str, object]] = []
    async with (
        connected(source_properties, alias=source_alias) as source,
        connected(target_properties, alias=target_alias) as target,
    ):
        for found in plans:
            plan = PartitionPlan.from_json(found)
            ours = PartitionLog(source, plan.source, read_committed=bool(lane["read_committed"]))
            theirs = PartitionLog(target, plan.target, read_committed=True)
            answer: dict[str, object] = {
                "topic": plan.topic,
                "partition": plan.partition,
                "part": plan.part,
            }
            try:
                answer |= await _compare(plan, int(str(lane["tier"])), ours, theirs)
            except PartitionError as error:
                answer[_GONE] = str(error)
            answers.append(answer)
    return {"partitions": answers}


@final
class PartitionLog:
    """One partition on one cluster."""

    def __init__(self, cluster: Cluster, tp: TopicPartition, *, read_committed: bool) -> None:
        self._cluster, self._tp, self._read_committed = cluster, tp, read_committed

    async def read(
        self, ranges: Sequence[OffsetRange]
    ) -> AsyncGenerator[tuple[OffsetRange, list[LogBatch]]]:
        """Yield the batches of ranges, in their order."""
        reader = RangeReader(self._cluster, read_committed=self._read_committed)
        for wanted in ranges:
            async for batches in reader.read(self._tp, *wanted):
                yield wanted, batches

    async def not_excused(self, gone: Mapping[int, Gone]) -> list[int]:
        """Return the offsets of records that compaction does not explain: no later record of their key, no tombstone."""
        waiting = {key: it for key, it in gone.items() if not it.is_tombstone}
        if not waiting:
            return []
        ends = await log_ends(self._cluster, [self._tp], read_committed=self._read_committed)
        start, end = ends[self._tp].start, ends[self._tp].end
        first = min(end, max(start, min(it.position for it in waiting.values())))
        async for _, batches in self.read([OffsetRange(first, end)]):
            for entry in (it for batch in batches for it in entries_of(batch)):
                key = part_hash(fields_of(entry.body).key)
                if key in waiting and entry.offset >= waiting[key].position:
                    del waiting[key]
        return sorted(it.offset for it in waiting.values())


async def _compare(
    plan: PartitionPlan, tier: int, source: PartitionLog, target: PartitionLog
) -> dict[str, object]:
    ours = LogSide(source.read(plan.source_ranges), digests=tier > 1)
    theirs = LogSide(target.read(plan.target_ranges), digests=tier > 1)
    found, missing, extra = await find_differences(
        plan, (ours, theirs), (source, target), _most(tier)
    )
    answer: dict[str, object] = {
        "findings": found.to_json(),
        "missing": missing,
        "extra": extra,
    }
    if ours.digest is not None and theirs.digest is not None:
        answer["digests"] = [str(ours.digest), str(theirs.digest)]
    return answer


async def find_differences(
    plan: PartitionPlan,
    sides: tuple[LogSide, LogSide],
    logs: tuple[PartitionLog, PartitionLog],
    most: int = _FEW,
) -> tuple[Findings, list[int], list[int]]:
    """Compare a plan's records; return what one side has alone, and what compaction does not explain of each.

    Raises:
        PartitionError: records were deleted meanwhile.
        Mm2pyError: a side cannot be read.
    """
    found = await find(*sides, _rules(plan, most))
    source, target = logs
    missing = await target.not_excused(found.gone_on_target)
    extra = await source.not_excused(found.gone_on_source)
    found.gone_on_target, found.gone_on_source = {}, {}
    return found, missing, extra


# ---- report


def _answer(plan: PartitionPlan, found: Comparison) -> dict[str, object]:
    differences = found.differences
    source_end = plan.source_ranges[-1].end if plan.source_ranges else 0
    return {
        "topic": plan.topic,
        "partition": plan.partition,
        "target_topic": plan.target_topic,
        "equal": not differences,
        "complete": found.complete,
        "checked_records": found.matched,
        "source_ranges": plan.source_ranges,
        "target_ranges": plan.target_ranges,
        "not_copied_from": found.behind,
        "not_copied_offsets": source_end - found.behind if found.behind >= 0 else 0,
        "notes": plan.notes,
        **({"repair": advice(plan, found)._asdict()} if differences else {}),
        "differences": [
            {
                "topic": plan.topic,
                "partition": plan.partition,
                "kind": it.kind.value,
                "source_offset": it.source_offset if it.source_offset >= 0 else None,
                "target_offset": it.target_offset if it.target_offset >= 0 else None,
                **({"fields": list(it.fields)} if it.fields else {}),
            }
            for it in differences
        ],
    }


def _report(
    flow: FlowSides, tier: int, plan: VerifyPlan, answers: Sequence[dict[str, object]]
) -> dict[str, object]:
    ordered = sorted(answers, key=lambda it: (str(it["topic"]), int(str(it["partition"]))))
    differences = [
        it for answer in ordered for it in cast("list[object]", answer.pop("differences"))
    ]
    return {
        "flow": str(flow.flow),
        "tier": tier,
        "source_cluster": plan.clusters[0],
        "target_cluster": plan.clusters[1],
        "equal": not differences,
        "checked_records": sum(int(str(it["checked_records"])) for it in ordered),
        "differences": differences,
        "not_compared": plan.not_compared,
        "partitions": ordered,
    }
