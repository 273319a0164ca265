"""Verify: proves that what a flow has copied is equal to its source, or names each record that is
not.

Flow: ``plan_verify`` on the driver -> partitions, large ones in parts -> lanes -> each task reads
both clusters and finds what one side has alone (``compare``) -> parts are joined and classified
(``differences``) -> one report. Tier 0 reads ends and the offset map; 1 compares batches by their
bytes and decodes only those that differ; 2 decodes every record of both sides and reports a digest
of each; 3 is 2 with all differences instead of the first ones.

A task begins where the logs begin when it comes to a partition: at the first record that both still
have. A partition that cannot be compared is a line of the report, which does not count as equal.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, cast, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.pacing import ByteRate
from mm2py.errors import FatalServerError, PartitionError, ProtocolError
from mm2py.protocol.topics import is_another_topic
from mm2py.types import FlowName, TopicPartition
from mm2py_jobs.copy.dealing import DealtWork, ProgressSink, answers_of, offsets_of_part, rate_of
from mm2py_jobs.copy.leaders import LedPartition
from mm2py_jobs.copy.rate_desk import part_of_rate
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.log.log_ends import LogEnds, log_ends
from mm2py_jobs.log.range_reader import RangeReader
from mm2py_jobs.spark.session import OpenSession, log_without_secrets
from mm2py_jobs.verify.compare import find
from mm2py_jobs.verify.differences import (
    CompareRules,
    Comparison,
    Difference,
    DifferenceKind,
    Findings,
    classify,
    join,
)
from mm2py_jobs.verify.digests import SequenceDigest, part_hash
from mm2py_jobs.verify.log_entries import LogSide, OffsetRange, entries_of, fields_of
from mm2py_jobs.verify.open_keys import SpillError
from mm2py_jobs.verify.repair_advice import advice
from mm2py_jobs.verify.verify_plan import NOTHING, Stretch, VerifyPartition, VerifyPlan, plan_verify

TIERS: Final = (0, 1, 2, 3)
DEFAULT_TIER: Final = 1

_FEW: Final = 1_000
_ALL: Final = 100_000
"""Differences of one partition that are named, below tier 3 and with it; memory is bounded by
it."""

_CAUSE: Final = "cause"
"""In the answer about a partition: why it could not be compared."""

_TRIES: Final = 10
"""Of a partition whose records are deleted in the moment they are read."""

Lane = Mapping[str, object]


def verify_flow(
    flow: FlowSides,
    tier: int,
    open_spark: Callable[[], OpenSession],
    only: Collection[TopicPartition] | None = None,
    *,
    rate_limit: int = 0,
    from_map: bool = False,
    progress: ProgressSink | None = None,
) -> dict[str, object]:
    """Compare both sides of a flow, of ``only`` these source partitions, and return the report;
    ``from_map``: only what the map vouches for.

    Blocks until it is done; tier 0 needs no Spark. Lanes read at most ``rate_limit`` bytes per
    second of each cluster, 0: as fast as they can; ``progress`` gets how far they are.

    Raises:
        Mm2pyError: a cluster cannot be asked or read, or Spark failed.
    """
    plan = asyncio.run(planned(flow, only))
    if from_map:
        plan = plan._replace(partitions=[it.from_map() for it in plan.partitions])
    if tier == 0:
        return report_of(
            flow.flow, tier, plan, [by_the_map(partition) for partition in plan.partitions]
        )
    answers: list[dict[str, object]] = []
    if plan.partitions:
        with open_spark() as opened:
            compared = _compare_all(opened, flow, tier, plan.partitions, rate_limit, progress)
        answers = [
            _answer_of(partition, compared[partition.source], tier) for partition in plan.partitions
        ]
    return report_of(flow.flow, tier, plan, answers)


@final
@dataclass(slots=True)
class _Compared:
    """The answers about one partition, in the order of its parts."""

    findings: list[Findings]
    stretches: list[Stretch]
    digests: list[tuple[SequenceDigest, SequenceDigest]]
    cause: str = ""
    stable_end: int = -1


def _compare_all(
    opened: OpenSession,
    flow: FlowSides,
    tier: int,
    partitions: Sequence[VerifyPartition],
    rate_limit: int,
    progress: ProgressSink | None,
) -> dict[TopicPartition, _Compared]:
    size = offsets_of_part(sum(partition.offsets for partition in partitions), opened)
    answers = answers_of(
        opened,
        run_lane,
        DealtWork(
            [part for partition in partitions for part in partition.parts(size)],
            lambda it: it.offsets,
            lambda it: (LedPartition("source", it.source), LedPartition("target", it.target)),
            {"source": flow.source, "target": flow.target},
        ),
        lambda lane: _lane(flow, tier, lane),
        name=f"verify {flow.flow}",
        rate_limit=rate_limit,
        progress=progress,
    )
    compared = {partition.source: _Compared([], [], []) for partition in partitions}
    for answer in sorted(answers, key=lambda it: int(str(it["part"]))):
        findings = compared[TopicPartition(str(answer["topic"]), int(str(answer["partition"])))]
        findings.stable_end = max(findings.stable_end, int(str(answer["stable_end"])))
        if _CAUSE in answer:
            findings.cause = str(answer[_CAUSE])
            continue
        rows = cast("Sequence[Sequence[Sequence[int]]]", answer["stretches"])
        findings.stretches += (Stretch(*(OffsetRange(*it) for it in row)) for row in rows)
        findings.findings.append(
            Findings.from_json(cast("Mapping[str, object]", answer["findings"]))
        )
        if "digests" in answer:
            one, other = cast("Sequence[str]", answer["digests"])
            findings.digests.append((SequenceDigest.parse(one), SequenceDigest.parse(other)))
    return compared


def _answer_of(plan: VerifyPartition, compared: _Compared, tier: int) -> dict[str, object]:
    if compared.stable_end >= plan.unstable.end:
        plan = replace(plan, unstable=NOTHING)
    if compared.cause:
        return _answer(plan, Comparison(), compared.cause)
    comparison = classify(join(compared.findings), rules_of(plan, tier))
    plan, cause = replace(plan, stretches=_joined(compared.stretches)), ""
    both = (
        plan.source_log.first < plan.source_log.end and plan.target_log.first < plan.target_log.end
    )
    # Under the same name all of it may be other writers' records.
    none_of_ours = plan.covered is not None and plan.topic == plan.target_topic
    if both and not none_of_ours and not comparison.matched and not comparison.differences:
        cause = (
            "no record is known to be on both sides (source offsets "
            f"{_text(plan.source_log)}, target offsets {_text(plan.target_log)})"
        )
    elif plan.covered is None and comparison.behind >= 0 and not comparison.matched:
        cause = f"nothing of it is on the target (source offsets {_text(plan.source_log)})"
    answer = _answer(plan, comparison, cause)
    if compared.digests:
        sides = zip(*compared.digests, strict=True)
        answer["digests"] = [str(sum(side, SequenceDigest())) for side in sides]
    return answer


def _text(offsets: OffsetRange) -> str:
    return f"{offsets.first} to {offsets.end}"


def _joined(stretches: Sequence[Stretch]) -> tuple[Stretch, ...]:
    """Return stretches as if they had not been read in parts."""
    found: list[Stretch] = []
    for source, target in stretches:
        before = found[-1] if found else None
        if before is not None and (before.source.end, before.target.end) == (
            source.first,
            target.first,
        ):
            found[-1] = Stretch(
                OffsetRange(before.source.first, source.end),
                OffsetRange(before.target.first, target.end),
            )
        else:
            found.append(Stretch(source, target))
    return tuple(found)


def rules_of(plan: VerifyPartition, tier: int = DEFAULT_TIER) -> CompareRules:
    """Return how a partition is compared."""
    return CompareRules(
        covered=plan.covered,
        source_compacts=plan.source_compacts,
        target_compacts=plan.target_compacts,
        expected=plan.expected,
        most=_ALL if tier == max(TIERS) else _FEW,
    )


async def planned(flow: FlowSides, only: Collection[TopicPartition] | None) -> VerifyPlan:
    """Return what is compared, of ``only`` these source partitions; raises as ``plan_verify``."""
    async with (
        Cluster.of(flow.source, alias=flow.flow.source) as source,
        Cluster.of(flow.target, alias=flow.flow.target) as target,
    ):
        plan = await plan_verify(flow, source, target)
    if only is None:
        return plan
    chosen = [partition for partition in plan.partitions if partition.source in only]
    return plan._replace(partitions=chosen, not_compared=[])


def _lane(flow: FlowSides, tier: int, partitions: Sequence[VerifyPartition]) -> dict[str, object]:
    return {
        "source": flow.source,
        "target": flow.target,
        "aliases": list(flow.flow),
        "read_committed": flow.read_committed,
        "tier": tier,
        "partitions": [partition.to_json() for partition in partitions],
    }


def by_the_map(plan: VerifyPartition) -> dict[str, object]:
    """Return the answer about a partition of which nothing is read."""
    if plan.covered is None:
        return _answer(
            plan, Comparison(), "there is no exact offset map, which tier 0 compares with"
        )
    lost = [
        Difference(DifferenceKind.MISSING, it, -1)
        for first, end in (*plan.lost_before, plan.lost)
        for it in range(first, min(end, first + _FEW))
    ]
    ends_early = plan.lost != NOTHING and not plan.lost_before
    end = plan.source_ranges[-1].end if plan.source_ranges else 0
    return _answer(
        plan,
        Comparison(
            differences=lost,
            behind=plan.covered if plan.covered < end else -1,
            tail=plan.lost.first if ends_early else -1,
        ),
    )


# ---- in a task


def run_lane(lane: Lane) -> dict[str, object]:
    """Compare the partitions of a lane; runs in a Spark task."""
    return asyncio.run(_run_lane(lane))


async def _run_lane(lane: Lane) -> dict[str, object]:
    source_alias, target_alias = cast("Sequence[str]", lane["aliases"])
    source_properties = cast("Mapping[str, str]", lane["source"])
    target_properties = cast("Mapping[str, str]", lane["target"])
    parts = cast("Sequence[Mapping[str, object]]", lane["partitions"])
    plans = [VerifyPartition.from_json(part) for part in parts]
    log_without_secrets(source_properties, target_properties)
    answers: list[dict[str, object]] = []
    async with (
        Cluster.of(source_properties, alias=source_alias) as source,
        Cluster.of(target_properties, alias=target_alias) as target,
    ):
        rates = [rate_of(lane, it.clock) for it in (source, target)]
        async with part_of_rate(lane, rates):
            committed = bool(lane["read_committed"])
            for plan in plans:
                ours = PartitionLog(source, plan.source, read_committed=committed, rate=rates[0])
                theirs = PartitionLog(target, plan.target, read_committed=True, rate=rates[1])
                answer: dict[str, object] = {
                    "topic": plan.topic,
                    "partition": plan.partition,
                    "part": plan.part,
                }
                answer |= await _compared(plan, int(str(lane["tier"])), ours, theirs)
                # After the comparison: a transaction that has ended since is not reported as open.
                stable = plan.unstable != NOTHING
                answers.append(answer | {"stable_end": (await ours.ends()).end if stable else -1})
            # After all comparisons: what was read may be of another topic than the plan is.
            replaced = await _replaced(plans, source, target)
            for plan, answer in zip(plans, answers, strict=True):
                if plan.topic in replaced:
                    answer |= {_CAUSE: replaced[plan.topic], "stable_end": -1}
    return {"partitions": answers}


async def _replaced(
    plans: Sequence[VerifyPartition], source: Cluster, target: Cluster
) -> Mapping[str, str]:
    """Return the source topics of which either side is not the one of the plan any more, and which
    that is."""
    causes: dict[str, str] = {}
    for cluster, named in (
        (source, [(it.topic, it.topic, it.topic_id) for it in plans]),
        (target, [(it.topic, it.target_topic, it.target_id) for it in plans]),
    ):
        there = await Admin(cluster).describe_topics({topic for _, topic, _ in named})
        for source_topic, topic, planned in named:
            now = there.get(topic)
            if now is None or is_another_topic(bytes.fromhex(planned), now.topic_id):
                text = f"{topic} of {cluster} was deleted or created again while it was compared"
                causes.setdefault(source_topic, text)
    return causes


@final
class PartitionLog:
    """One partition on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        *,
        read_committed: bool,
        rate: ByteRate | None = None,
    ) -> None:
        self._cluster, self._tp, self._read_committed = cluster, tp, read_committed
        self._rate = rate

    async def read(
        self, ranges: Sequence[OffsetRange]
    ) -> AsyncGenerator[tuple[OffsetRange, list[LogBatch]]]:
        """Yield the batches of ranges, in their order."""
        reader = RangeReader(self._cluster, read_committed=self._read_committed, rate=self._rate)
        for offsets in ranges:
            async with aclosing(reader.read(self._tp, *offsets)) as pieces:
                async for batches in pieces:
                    yield offsets, batches

    async def ends(self) -> LogEnds:
        """Return where the log begins and ends now."""
        ends = await log_ends(self._cluster, [self._tp], read_committed=self._read_committed)
        return ends[self._tp]

    async def first_stamp(self, offsets: OffsetRange) -> tuple[int, bool] | None:
        """Return the timestamp of the first record of a range, and whether the broker stamped it;
        None: there is no record."""
        async with aclosing(self.read([offsets])) as pieces:
            async for _, batches in pieces:
                for batch in batches:
                    for entry in entries_of(batch):
                        if offsets.first <= entry.offset < offsets.end:
                            return entry.timestamp, batch.is_log_append
        return None

    async def offset_at(self, timestamp: int, log: OffsetRange) -> int:
        """Return the offset of the first record that is not older, the end if there is none."""
        offset = (await Admin(self._cluster).offsets([self._tp], timestamp))[self._tp]
        return min(max(offset, log.first), log.end) if offset >= 0 else log.end

    async def keys(self, first: int, end: int) -> AsyncGenerator[tuple[int, int]]:
        """Yield offset and hashed key of the records with a key that the log has now."""
        log = await self.ends()
        wanted = OffsetRange(max(first, log.start), min(end, log.end))
        async with aclosing(self.read([wanted])) as pieces:
            async for offsets, batches in pieces:
                for entry in (it for batch in batches for it in entries_of(batch)):
                    key = part_hash(fields_of(entry.body).key)
                    if key is not None and offsets.first <= entry.offset < offsets.end:
                        yield entry.offset, key


async def _compared(
    plan: VerifyPartition, tier: int, source: PartitionLog, target: PartitionLog
) -> dict[str, object]:
    """Compare what both logs have now, again where retention was ahead."""
    cause = ""
    for attempt in range(_TRIES):
        # Where records are deleted all the time: each time further from the beginning.
        skipped = 2**attempt - 1
        try:
            theirs, ours = await target.ends(), await source.ends()
            starts = ours.start and ours.start + skipped, theirs.start and theirs.start + skipped
            if plan.covered is None and any(starts):
                return await _compare_without_map(plan, tier, (source, target), starts)
            return await _compare(plan.held_from(*starts), tier, source, target)
        except PartitionError as error:
            cause = str(error)
        except (ProtocolError, FatalServerError, SpillError) as error:
            return {_CAUSE: str(error)}
    return {_CAUSE: cause}


async def _compare_without_map(
    plan: VerifyPartition,
    tier: int,
    sides: tuple[PartitionLog, PartitionLog],
    starts: tuple[int, int],
) -> dict[str, object]:
    """Compare from the first record on that both logs have, which is found by its timestamp.

    What the log that goes back further has before it is history that the other side has deleted.
    """
    logs = [
        OffsetRange(min(start, planned.end), planned.end)
        for start, planned in zip(starts, plan.stretches[0], strict=True)
    ]
    stamps = [await side.first_stamp(log) for side, log in zip(sides, logs, strict=True)]
    ours, theirs = stamps
    if ours is None or theirs is None:
        # What the source has alone is not copied; what the target has alone the source has deleted.
        left = () if ours is None else (Stretch(*logs),)
        return await _compare(replace(plan, stretches=left), tier, *sides)
    by_broker = ours[1] or theirs[1]
    if logs[0].first and logs[1].first and not by_broker:
        older = int(ours[0] >= theirs[0])
    else:
        older = int(logs[0].first >= logs[1].first)
    if by_broker:
        at = logs[1 - older].first  # a copy of the whole log has its offsets
    else:
        at = await sides[older].offset_at((theirs, ours)[older][0], logs[older])
    logs[older] = OffsetRange(min(max(at, logs[older].first), logs[older].end), logs[older].end)
    plan = replace(plan, stretches=(Stretch(*logs),))
    return await _compare(plan, tier, *sides, older)


async def _compare(
    plan: VerifyPartition,
    tier: int,
    source: PartitionLog,
    target: PartitionLog,
    older: int | None = None,
) -> dict[str, object]:
    ours = LogSide(source.read(plan.source_ranges), digests=tier > 1)
    theirs = LogSide(target.read(plan.target_ranges), digests=tier > 1)
    findings = await find(ours, theirs, rules_of(plan, tier), (source.keys, target.keys))
    if older is not None and not findings.matched:
        findings = Findings()  # which record is the copy of which is not known
    elif older is not None and findings.from_start:
        first = findings.regions[0]
        (first.source, first.target)[older].clear()
    answer: dict[str, object] = {"findings": findings.to_json(), "stretches": plan.stretches}
    if ours.digest is not None and theirs.digest is not None:
        answer["digests"] = [str(ours.digest), str(theirs.digest)]
    return answer


# ---- report


def _answer(plan: VerifyPartition, comparison: Comparison, cause: str = "") -> dict[str, object]:
    differences = comparison.differences
    if plan.unstable != NOTHING:
        above = (
            f"source offsets {_text(plan.unstable)} are from an open transaction on and "
            "cannot be read as committed records yet"
        )
        cause = cause or above
    if plan.hidden != NOTHING:
        above = (
            f"source offsets {_text(plan.hidden)} have copies above an open transaction on "
            f"{plan.target}, which cannot be read as committed records yet"
        )
        cause = f"{cause}; {above}" if cause else above
    if plan.unvouched:
        ranges = ", ".join(map(_text, plan.unvouched))
        left = (
            f"source offsets {ranges} were copied by another program or passed: the offset map "
            "does not say where they are on"
            f" {plan.target}; compare them by other means, or leave them out with --from map"
        )
        cause = f"{cause}; {left}" if cause else left
    source_end = plan.source_ranges[-1].end if plan.source_ranges else 0
    return {
        "topic": plan.topic,
        "partition": plan.partition,
        "target_topic": plan.target_topic,
        "equal": not differences and not cause,
        "not_compared": cause,
        "complete": comparison.complete,
        "checked_records": comparison.matched,
        "source_ranges": plan.source_ranges,
        "target_ranges": plan.target_ranges,
        "not_copied_from": comparison.behind,
        "not_copied_offsets": source_end - comparison.behind if comparison.behind >= 0 else 0,
        "notes": plan.notes,
        **({"repair": advice(plan, comparison)._asdict()} if differences else {}),
        "differences": [
            {
                "topic": plan.topic,
                "partition": plan.partition,
                "kind": difference.kind.value,
                "source_offset": difference.source_offset
                if difference.source_offset >= 0
                else None,
                "target_offset": difference.target_offset
                if difference.target_offset >= 0
                else None,
                **({"fields": list(difference.fields)} if difference.fields else {}),
            }
            for difference in differences
        ],
    }


def report_of(
    flow: FlowName, tier: int, plan: VerifyPlan, answers: Sequence[dict[str, object]]
) -> dict[str, object]:
    """Return the report of answers about partitions."""
    ordered = sorted(answers, key=lambda it: (str(it["topic"]), int(str(it["partition"]))))
    differences = [
        it for answer in ordered for it in cast("list[object]", answer.pop("differences"))
    ]
    not_compared = [
        *plan.not_compared,
        *(
            f"{it['topic']}-{it['partition']}: {it['not_compared']}"
            for it in ordered
            if it["not_compared"]
        ),
    ]
    return {
        "flow": str(flow),
        "tier": tier,
        "source_cluster": plan.clusters[0],
        "target_cluster": plan.clusters[1],
        "equal": not differences and not not_compared,
        "checked_records": sum(int(str(it["checked_records"])) for it in ordered),
        "differences": differences,
        "not_compared": not_compared,
        "partitions": ordered,
    }
