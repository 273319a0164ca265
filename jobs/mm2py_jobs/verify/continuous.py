"""Proves beside a running flow that its copies are equal, and keeps how far: no Spark, one process, a limited byte rate.

Flow: offset map and log ends of both clusters -> per partition what lies behind its ``Proof``, in pieces -> both sides read and compared
(``verify.find_differences``) -> ``Proof`` committed on the target -> what is new to the caller. The copy is read back from the target's log and
compared with the source's log itself, so that nothing is recorded while copying and the data plane pays nothing.

Invariants, tests of the same names:

1. A proof grows only over records that were compared, in the order of the target's log; what could not be compared is counted as skipped.
2. A proof does not grow behind a difference; a new start compares again from the last place that was proved.
3. What is not copied yet is neither proved nor a difference.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, PartitionError, RetriableError
from mm2py.mirror.proofs import Proof, proof_group, proofs_of, to_commit
from mm2py.protocol.log_batches import LogBatch
from mm2py.types import TopicPartition
from mm2py_jobs.verify.compare import compare
from mm2py_jobs.verify.differences import Comparison, Difference
from mm2py_jobs.verify.log_entries import LogSide, OffsetRange
from mm2py_jobs.verify.verify import PartitionLog, rules_of
from mm2py_jobs.verify.verify_plan import FlowMaps, PartitionPlan, VerifyPlan, plan_verify
from mm2py_workers.flow_sides import FlowSides

log = logging.getLogger(__name__)

PIECE_OFFSETS: Final = 200_000
"""Of both sides together: a proof is kept after each piece, and partitions take turns."""

COMMIT_S: Final = 30.0
"""A proof that was only confirmed is committed so often; one that grew at once."""


class ProvesPartitions(Protocol):
    """What is asked of both clusters."""

    async def plan(self) -> VerifyPlan:
        """Return what could be compared now."""
        ...

    async def compare(self, plan: PartitionPlan) -> Comparison:
        """Compare a part of a partition; ``PartitionError`` where it was deleted meanwhile."""
        ...

    async def load(self) -> Mapping[TopicPartition, Proof]:
        """Return the proofs that were kept."""
        ...

    async def save(self, proofs: Mapping[TopicPartition, Proof]) -> None:
        """Keep proofs, by target partition."""
        ...


@final
@dataclass(frozen=True, slots=True)
class Round:
    """What one round found: all proofs, new differences, and whether there is more to compare at once."""

    proofs: Sequence[Proof]
    differences: Sequence[tuple[TopicPartition, Difference]]
    not_compared: Sequence[str]
    waiting_offsets: int


@final
class ContinuousProof:
    """Follows the copies of one flow."""

    def __init__(self, sides: ProvesPartitions, *, clock: Clock) -> None:
        self._sides, self._clock = sides, clock
        self._proofs: dict[TopicPartition, Proof] = {}
        self._cursors: dict[TopicPartition, tuple[int, int]] = {}
        """Where comparing continues, which is behind the proof where a difference was found."""
        self._saved: dict[TopicPartition, tuple[Proof, float]] = {}

    async def start(self) -> None:
        """Take the proofs of an earlier process up; what differed is compared again."""
        self._proofs = {
            tp: replace(it, differences=0, first="")
            for tp, it in (await self._sides.load()).items()
        }
        self._cursors = {tp: (it.source_to, it.target_to) for tp, it in self._proofs.items()}

    async def round(self) -> Round:
        """Compare the next piece of each partition that has one.

        Raises:
            Mm2pyError: a cluster cannot be asked or read.
        """
        plan = await self._sides.plan()
        found: list[tuple[TopicPartition, Difference]] = []
        waiting = 0
        current = {it.source for it in plan.partitions}
        for tp in [tp for tp in self._proofs if tp not in current]:
            del self._proofs[tp]
            self._cursors.pop(tp, None)
        for partition in plan.partitions:
            differences, left = await self._advance(partition)
            found += ((partition.source, it) for it in differences)
            waiting += left
        await self._save({it.source: it.target for it in plan.partitions})
        proofs = [self._proofs[tp] for tp in sorted(self._proofs)]
        return Round(proofs, found, plan.not_compared, waiting)

    async def _advance(self, plan: PartitionPlan) -> tuple[Sequence[Difference], int]:
        """Compare the next piece of a partition; return what differs, and how many offsets are left."""
        tp = plan.source
        left = self._left(plan)
        if not left.stretches:
            return (), 0
        part, *rest = left.parts(PIECE_OFFSETS)
        part = replace(part, pieces=left.pieces)
        proof = self._proofs.get(tp) or self._new(left)
        try:
            compared = await self._sides.compare(part)
        except PartitionError as error:
            log.info("records were deleted before they were compared cause=%s", error)
            return (), 1  # planned again at once
        source, target = part.stretches[-1].source.end, part.stretches[-1].target.end
        if compared.behind >= 0:
            source = compared.behind
        self._cursors[tp] = source, target
        first = next(iter(compared.differences), None)
        proof = replace(proof, at_ms=self._clock.now_ms(), records=proof.records + compared.matched)
        if first is not None:
            named = f"{first.kind.value} source offset {first.source_offset} target offset {first.target_offset}"
            proof = replace(
                proof,
                differences=proof.differences + len(compared.differences),
                first=proof.first or named,
            )
        elif proof.equal:
            proof = replace(proof, source_to=source, target_to=target)
        self._proofs[tp] = proof
        return compared.differences, sum(it.offsets for it in rest)

    def _left(self, plan: PartitionPlan) -> PartitionPlan:
        """Return what is not compared yet; from the start where the target's log has become shorter than its proof."""
        tp = plan.source
        cursor = self._cursors.get(tp)
        left = plan if cursor is None else plan.behind(*cursor)
        if left is None or cursor is None:
            self._proofs.pop(tp, None)
            return plan
        if left.stretches and left.stretches[0].source.first > cursor[0]:
            deleted = left.stretches[0].source.first - cursor[0]
            self._proofs[tp] = replace(self._proofs[tp], skipped=self._proofs[tp].skipped + deleted)
            self._cursors[tp] = left.stretches[0].source.first, left.stretches[0].target.first
        return left

    def _new(self, plan: PartitionPlan) -> Proof:
        (source, _), (target, _) = plan.stretches[0]
        return Proof(
            topic=plan.topic,
            partition=plan.partition,
            source_from=source,
            source_to=source,
            target_to=target,
            at_ms=self._clock.now_ms(),
        )

    async def _save(self, copies: Mapping[TopicPartition, TopicPartition]) -> None:
        now_s = self._clock.monotonic()
        due: dict[TopicPartition, Proof] = {}
        for tp, proof in self._proofs.items():
            saved, at_s = self._saved.get(tp, (None, 0.0))
            same = saved is not None and replace(saved, at_ms=proof.at_ms) == proof
            if not same or now_s - at_s >= COMMIT_S:
                due[copies[tp]] = proof
                self._saved[tp] = proof, now_s
        if due:
            await self._sides.save(due)


@final
class RealSides:
    """Implements ``ProvesPartitions`` over both clusters.

    Args:
        bytes_per_s: of both sides together; 0: no limit.
    """

    def __init__(
        self, flow: FlowSides, source: Cluster, target: Cluster, *, bytes_per_s: int, clock: Clock
    ) -> None:
        self._flow, self._source, self._target = flow, source, target
        self._rate, self._clock = bytes_per_s, clock
        self._maps = FlowMaps(target, flow.flow.source)
        self._group = proof_group(flow.flow)

    async def plan(self) -> VerifyPlan:
        """Return what could be compared now."""
        return await plan_verify(self._flow, self._source, self._target, self._maps)

    async def compare(self, plan: PartitionPlan) -> Comparison:
        """Compare a part of a partition.

        Raises:
            PartitionError: records were deleted meanwhile.
            Mm2pyError: a side cannot be read.
        """
        logs = (
            PartitionLog(self._source, plan.source, read_committed=self._flow.read_committed),
            PartitionLog(self._target, plan.target, read_committed=True),
        )
        sides = (
            LogSide(self._paced(logs[0].read(plan.source_ranges)), digests=False),
            LogSide(self._paced(logs[1].read(plan.target_ranges)), digests=False),
        )
        return await compare(*sides, rules_of(plan), (logs[0].keys, logs[1].keys))

    async def load(self) -> Mapping[TopicPartition, Proof]:
        """Return the proofs that were kept."""
        committed = (await GroupAdmin(self._target).committed([self._group]))[self._group]
        if isinstance(committed, Mm2pyError):
            raise committed
        return proofs_of(committed)

    async def save(self, proofs: Mapping[TopicPartition, Proof]) -> None:
        """Keep proofs, by target partition; a coordinator that is gone for a moment has them with the next round.

        Raises:
            ServerError: the group's offsets may not be written.
        """
        try:
            answers = await GroupAdmin(self._target).commit(self._group, to_commit(proofs))
        except RetriableError as error:
            log.warning("proofs are not kept now cause=%s", error)
            return
        for refusal in answers.values():
            if refusal is not None:
                raise refusal

    async def close(self) -> None:
        """Stop reading the map."""
        await self._maps.close()

    async def _paced(
        self, pieces: AsyncIterator[tuple[OffsetRange, list[LogBatch]]]
    ) -> AsyncIterator[tuple[OffsetRange, list[LogBatch]]]:
        async for wanted, batches in pieces:
            yield wanted, batches
            if self._rate:
                await self._clock.sleep(sum(len(it.data) for it in batches) / self._rate)


async def rounds(proof: ContinuousProof, every_s: float, *, clock: Clock) -> AsyncGenerator[Round]:
    """Yield rounds without end; a cluster that does not answer is asked again.

    Raises:
        Mm2pyError: a cluster refuses, or cannot be compared.
    """
    started = False
    while True:
        try:
            if not started:
                await proof.start()
                started = True
            found = await proof.round()
        except RetriableError as error:
            log.warning("compared again after a pause cause=%s", error)
            await clock.sleep(every_s)
            continue
        yield found
        if not found.waiting_offsets:
            await clock.sleep(every_s)
