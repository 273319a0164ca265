"""Verify: proves that what a flow has copied is equal to its source, or names each record that is not.

Flow: ``plan_verify`` on the driver -> lanes of whole partitions -> each task reads both clusters and compares (``compare``) -> one
report. Tier 0 looks at ends and the offset map; 1 compares batches by their bytes and decodes only those that differ; 2 decodes
every record of both sides and reports a digest of each; 3 is 2 with all differences instead of the first ones.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, cast, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.range_reader import RangeReader, log_ends
from mm2py.errors import FatalError, PartitionError
from mm2py.protocol.log_batches import LogBatch
from mm2py.spark.compare import CompareRules, Comparison, Difference, Gone, Kind, compare
from mm2py.spark.dealing import answers_of
from mm2py.spark.flow_sides import FlowSides
from mm2py.spark.log_entries import LogSide, OffsetRange, entries_of, fields_of
from mm2py.spark.reading import connected
from mm2py.spark.session import OpenSession
from mm2py.spark.verify_plan import PartitionPlan, VerifyPlan, plan_verify
from mm2py.types import TopicPartition

__all__ = ["DEFAULT_TIER", "TIERS", "verify_flow"]

TIERS: Final = (0, 1, 2, 3)
DEFAULT_TIER: Final = 1

_FEW: Final = 1_000
_ALL: Final = 100_000
"""Differences of one partition that are named, below tier 3 and with it; memory is bounded by it."""

_GONE: Final = "gone"
"""In the answer about a partition: what was deleted while it was compared."""

_TRIES: Final = 3

Lane = Mapping[str, object]


def verify_flow(
    flow: FlowSides, tier: int, open_spark: Callable[[], OpenSession]
) -> dict[str, object]:
    """Compare both sides of a flow, and return the report. Blocks until it is done; tier 0 needs no Spark.

    Raises:
        Mm2pyError: a cluster cannot be asked or read, or Spark failed.
    """
    plan = asyncio.run(_plan(flow))
    if tier == 0:
        return _report(flow, tier, plan, [_by_the_map(it) for it in plan.partitions])
    answers: list[dict[str, object]] = []
    waiting = plan.partitions
    if waiting:
        with open_spark() as opened:
            for last in (*[False] * (_TRIES - 1), True):
                found = _compare_all(opened, flow, tier, waiting)
                answers += (it for it in found if _GONE not in it)
                gone = {(it["topic"], it["partition"]): it[_GONE] for it in found if _GONE in it}
                if not gone:
                    break
                if last:
                    raise FatalError(
                        f"records are deleted faster than compared: {min(map(str, gone.values()))}"
                    )
                # Retention was ahead of us: what is left is compared.
                again = asyncio.run(_plan(flow)).partitions
                waiting = [it for it in again if (it.topic, it.partition) in gone]
    return _report(flow, tier, plan, answers)


def _compare_all(
    opened: OpenSession, flow: FlowSides, tier: int, partitions: Sequence[PartitionPlan]
) -> list[dict[str, object]]:
    return answers_of(
        opened,
        run_lane,
        partitions,
        lambda it: it.offsets,
        lambda lane: _lane(flow, tier, lane),
        name=f"verify {flow.flow}",
    )


async def _plan(flow: FlowSides) -> VerifyPlan:
    async with (
        connected(flow.source, alias=flow.flow.source) as source,
        connected(flow.target, alias=flow.flow.target) as target,
    ):
        return await plan_verify(flow, source, target)


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
    return _answer(plan, Comparison(), _lost(plan))


def _lost(plan: PartitionPlan) -> list[Difference]:
    first, end = plan.lost
    return [Difference(Kind.MISSING, it, -1) for it in range(first, min(end, first + _FEW))]


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
            ours = _Log(source, plan.source, read_committed=bool(lane["read_committed"]))
            theirs = _Log(target, plan.target, read_committed=True)
            try:
                answers.append(await _compare(plan, int(str(lane["tier"])), ours, theirs))
            except PartitionError as error:
                place = {"topic": plan.topic, "partition": plan.partition}
                answers.append({**place, _GONE: str(error)})
    return {"partitions": answers}


@final
class _Log:
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

    async def not_excused(self, gone: Mapping[bytes, Gone]) -> list[int]:
        """Return the offsets of records that compaction does not explain: no later record of their key, no tombstone."""
        waiting = {key: it for key, it in gone.items() if not it.is_tombstone}
        if not waiting:
            return []
        ends = await log_ends(self._cluster, [self._tp], read_committed=self._read_committed)
        start, end = ends[self._tp].start, ends[self._tp].end
        first = min(end, max(start, min(it.position for it in waiting.values())))
        async for _, batches in self.read([OffsetRange(first, end)]):
            for entry in (it for batch in batches for it in entries_of(batch)):
                key = fields_of(entry.body).key
                if key in waiting and entry.offset >= waiting[key].position:
                    del waiting[key]
        return sorted(it.offset for it in waiting.values())


async def _compare(plan: PartitionPlan, tier: int, source: _Log, target: _Log) -> dict[str, object]:
    digests = tier > 1
    ours = LogSide(source.read(plan.source_ranges), digests=digests)
    theirs = LogSide(target.read(plan.target_ranges), digests=digests)
    rules = CompareRules(
        covered=plan.covered,
        source_compacts=plan.source_compacts,
        target_compacts=plan.target_compacts,
        expected=plan.expected,
        most=_ALL if tier == max(TIERS) else _FEW,
    )
    found = await compare(ours, theirs, rules)
    missing = await target.not_excused(found.gone_on_target)
    extra = await source.not_excused(found.gone_on_source)
    differences = [
        *found.differences,
        *(Difference(Kind.MISSING, it, -1) for it in missing),
        *(Difference(Kind.EXTRA, -1, it) for it in extra),
    ]
    answer = _answer(plan, found, differences)
    if ours.digest is not None and theirs.digest is not None:
        answer["digests"] = [str(ours.digest), str(theirs.digest)]
    return answer


# ---- report


def _answer(
    plan: PartitionPlan, found: Comparison, differences: Sequence[Difference]
) -> dict[str, object]:
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
