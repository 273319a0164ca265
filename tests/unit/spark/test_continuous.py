"""A continuous proof over two logs in memory that grow, lose and change records between rounds: invariants by their names."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mm2py.client.fetch.range_reader import LogEnds
from mm2py.errors import PartitionError
from mm2py.mirror.offset_map import Page, Segment
from mm2py.mirror.proofs import Proof, proofs_of, to_commit
from mm2py.protocol.groups import FetchedOffset
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_jobs.verify.continuous import ContinuousProof, Round
from mm2py_jobs.verify.differences import Comparison, Difference, Kind
from mm2py_jobs.verify.verify_plan import KnownMap, PartitionPlan, VerifyPlan, plan_partition

SOURCE, COPY = TopicPartition("t", 0), TopicPartition("a.t", 0)
NO_ID = bytes(16)


class Logs:
    """A source and its copy, whose target offsets are five higher."""

    def __init__(self) -> None:
        self.source: dict[int, int] = {}
        self.target: dict[int, int] = {}
        self.source_end, self.copied, self.mapped = 0, 0, 0
        self.source_start = self.target_start = 0
        self.kept: dict[TopicPartition, Proof] = {}
        self.compared: set[int] = set()
        self.gone = False

    def write(self, count: int) -> None:
        for offset in range(self.source_end, self.source_end + count):
            self.source[offset] = offset
        self.source_end += count

    def copy(self, count: int) -> None:
        for offset in range(self.copied, min(self.copied + count, self.source_end)):
            self.target[offset + 5] = self.source[offset]
            self.copied = offset + 1

    async def plan(self) -> VerifyPlan:
        known = None
        if self.mapped:
            known = KnownMap()
            segments = (Segment(0, self.mapped, 5),)
            known.put(Page(0, NO_ID, NO_ID, self.mapped, self.mapped, -1, -1, -1, segments))
        plans: list[PartitionPlan] = []
        if known is not None:
            source = LogEnds(self.source_start, self.source_end)
            target = LogEnds(max(5, self.target_start), self.copied + 5)
            plans = [plan_partition(SOURCE, COPY, source, target, known)]
        return VerifyPlan(plans, [], ("1", "2"))

    async def compare(self, plan: PartitionPlan) -> Comparison:
        if self.gone:
            self.gone = False
            self.source_start = min(self.source_end, self.source_start + 7)
            raise PartitionError("deleted", topic="t", partition=0, offset=0, remedy="none")
        ((source, target),) = plan.stretches
        copies = {offset - 5: value for offset, value in self.target.items() if target.first <= offset < target.end}  # fmt: skip
        truth = {offset: it for offset, it in self.source.items() if source.first <= offset < source.end}  # fmt: skip
        covered = plan.covered or 0
        found = Comparison()
        for offset in sorted(truth.keys() | copies.keys()):
            if truth.get(offset) == copies.get(offset):
                found.matched += 1
                self.compared.add(offset)
            elif offset not in copies and offset >= covered:
                found.behind = offset
                break
            else:
                kind = Kind.ALTERED if offset in copies else Kind.MISSING
                found.differences.append(Difference(kind, offset, offset + 5))
        return found

    async def load(self) -> Mapping[TopicPartition, Proof]:
        return {it.source: it for it in self.kept.values()}

    async def save(self, proofs: Mapping[TopicPartition, Proof]) -> None:
        self.kept |= proofs


async def rounds_until_idle(proof: ContinuousProof) -> Round:
    for _ in range(100):
        found = await proof.round()
        if not found.waiting_offsets:
            return found
    raise AssertionError("it never ends")


@pytest.mark.parametrize("seed", range(60))
async def test_1_a_proof_grows_only_over_records_that_were_compared(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm2py_jobs.verify.continuous.PIECE_OFFSETS", 20)
    chance, logs, clock = random.Random(seed), Logs(), FakeClock()
    proof = ContinuousProof(logs, clock=clock)
    for _ in range(40):
        match chance.randrange(7):
            case 0 | 1:
                logs.write(chance.randrange(60))
            case 2 | 3:
                logs.copy(chance.randrange(60))
            case 4:
                logs.mapped = logs.copied
            case 5:
                proof = ContinuousProof(logs, clock=clock)
                await proof.start()
            case _:
                logs.gone = chance.random() < 0.3
        found = await proof.round()
        for it in found.proofs:
            assert it.equal
            assert it.source_to <= logs.copied
            skipped = set(range(it.source_from, it.source_to)) - logs.compared
            assert len(skipped) <= it.skipped
    logs.mapped = logs.copied
    last = await rounds_until_idle(proof)
    if logs.copied:
        assert [(it.source_to, it.target_to) for it in last.proofs] == [
            (logs.copied, logs.copied + 5)
        ]


async def test_2_a_proof_does_not_grow_behind_a_difference_and_a_new_start_compares_again() -> None:
    logs, clock = Logs(), FakeClock()
    logs.write(100)
    logs.copy(50)
    logs.mapped = 50
    proof = ContinuousProof(logs, clock=clock)
    assert (await proof.round()).proofs[0].source_to == 50
    logs.copy(50)
    logs.mapped = 100
    logs.target[75] = -1
    found = await proof.round()
    assert [it for _, it in found.differences] == [Difference(Kind.ALTERED, 70, 75)]
    logs.write(10)
    logs.copy(10)
    (state,) = (await proof.round()).proofs
    assert (state.source_to, state.differences, state.equal) == (50, 1, False)
    assert "altered source offset 70" in state.first
    again = ContinuousProof(logs, clock=clock)
    await again.start()
    assert (await again.round()).proofs[0].differences == 1
    logs.target[75] = 70
    healed = ContinuousProof(logs, clock=clock)
    await healed.start()
    (state,) = (await healed.round()).proofs
    assert (state.source_from, state.source_to, state.equal) == (0, 110, True)


async def test_3_what_is_not_copied_yet_is_neither_proved_nor_a_difference() -> None:
    logs, clock = Logs(), FakeClock()
    logs.write(100)
    logs.copy(30)
    logs.mapped = 20
    found = await ContinuousProof(logs, clock=clock).round()
    assert not found.differences
    assert (found.proofs[0].source_to, found.proofs[0].target_to) == (30, 35)


async def test_a_target_that_lost_what_was_proved_is_compared_from_its_start() -> None:
    logs, clock = Logs(), FakeClock()
    logs.write(100)
    logs.copy(100)
    logs.mapped = 100
    proof = ContinuousProof(logs, clock=clock)
    await proof.round()
    logs.copied = 60
    logs.target = {offset: it for offset, it in logs.target.items() if offset < 65}
    found = await proof.round()
    assert {it.source_offset for _, it in found.differences} == set(range(60, 100))


def test_proofs_are_the_same_behind_the_group_s_offsets() -> None:
    proof = Proof(
        topic="t", partition=0, source_from=1, source_to=5, target_to=9, at_ms=7, differences=2, first="é" * 900
    )  # fmt: skip
    (commit,) = to_commit({COPY: proof})
    kept = FetchedOffset(commit.topic, commit.partition, commit.offset, -1, commit.metadata, 0)
    assert proofs_of({COPY: kept}) == {SOURCE: replace(proof, first="é" * 500)}
    assert len(commit.metadata) < 4_096
    for metadata in ("", "x", "[]", '{"v": 2}', '{"v": 1}'):
        assert not proofs_of({COPY: replace(kept, metadata=metadata)})
    assert not proofs_of({COPY: replace(kept, offset=8)})
