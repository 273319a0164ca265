"""What drivers of backfills and streams work on, in memory, and what they ask of a flow's target."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TypeVar

from mm2py.client.connect.admin import ConfigOp
from mm2py.errors import ServerError
from mm2py.mirror.backfills import Job, Lease, LeaseState
from mm2py.mirror.failovers import Failover, FailoverKind, Step
from mm2py.protocol.connect_group import WorkerMetadata, encode_metadata
from mm2py.protocol.groups import DescribedGroup, DescribedMember
from mm2py.storage.backfill_store import BackfillStore
from mm2py.storage.job_claim import JobClaim
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.table import Entry
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition
from mm2py_jobs.copy.plan import PartitionPlan
from mm2py_jobs.copy.survey import Known

T = TypeVar("T")
ONE, TWO, THREE = (TopicPartition("t", number) for number in range(3))
COPY_OF_ONE = TopicPartition("A.t", 0)
FAILOVER = Failover(id="f", flow="A->B", kind=FailoverKind.FAILOVER, step=Step.DRAIN, run=1)


def part(partition: TopicPartition, start: int = 0, end: int = 10) -> PartitionPlan:
    topic, number = partition
    return PartitionPlan(
        topic=topic, partition=number, target_topic="A.t", start=start, end=end, bytes=100
    )


def lease_of(
    partition: TopicPartition,
    state: LeaseState = LeaseState.RESERVED,
    *,
    job: str = "j",
    start: int = 0,
    end: int = 10,
    position: int | None = None,
) -> Lease:
    """Return a lease of run 1, at its start unless ``position`` says otherwise."""
    return Lease(
        topic=partition.topic,
        partition=partition.partition,
        job=job,
        run=1,
        state=state,
        start=start,
        end=end,
        position=start if position is None else position,
    )


class TopicWriter:
    """A ``PrivilegedWriter`` straight into the topic."""

    def __init__(self, topic: MemoryTopic) -> None:
        self._topic = topic
        self.claimed = False
        self.claims: Callable[[], object] = lambda: None

    async def claim(self) -> None:
        self.claims()
        self.claimed = True

    async def write(self, entries: Sequence[Entry]) -> None:
        if not entries:
            raise ValueError("a batch needs at least one record")
        for key, value in entries:
            self._topic.append(key, value)

    async def close(self) -> None:
        self.claimed = False


class Flow:
    def __init__(self) -> None:
        self.members: list[str] = []
        self.protocol = "mm2py-sessioned"
        self.positions: dict[TopicPartition, int] = {}
        self.set: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.leaderless: set[TopicPartition] = set()
        self.deleted: dict[TopicPartition, int] = {}
        self.refuses_deletion: Exception | None = None
        self.denies_deletion: Exception | None = None
        """Also one that deletes nothing."""
        self.cuts: dict[TopicPartition, tuple[int, int]] = {}
        self.fenced: list[str] = []
        self.failover: Failover | None = None
        self.elsewhere: dict[str, str] = {}
        self.altered: list[tuple[str, str, str | None]] = []

    async def group(self) -> DescribedGroup:
        members = tuple(
            DescribedMember(
                name, name, "h", encode_metadata(WorkerMetadata(0, f"http://{name}/", 0)), b""
            )
            for name in self.members
        )
        return DescribedGroup("A-mm2", 0, "", "Stable", "connect", self.protocol, members)

    async def known(self, partitions: Collection[TopicPartition]) -> Known:
        return Known({it: self.positions[it] for it in partitions if it in self.positions}, {})

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        self.set |= positions
        self.positions |= positions

    async def log_ends(self, copies: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {it: self.ends[it] for it in copies}

    async def source_starts(
        self, sources: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {it: self.starts.get(it, 0) for it in sources}

    async def known_starts(
        self, sources: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {it: self.starts.get(it, 0) for it in sources if it not in self.leaderless}

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        refusal = (any(ends.values()) and self.refuses_deletion) or self.denies_deletion
        if refusal:
            raise refusal
        self.deleted |= ends

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        self.cuts |= places

    async def unfinished_failover(self) -> Failover | None:
        return self.failover

    async def restored_elsewhere(self) -> Mapping[str, str]:
        return self.elsewhere

    async def fence(self, transactional_ids: Sequence[str]) -> None:
        self.fenced += transactional_ids

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> Mapping[str, ServerError | None]:
        self.altered += [(it.op, it.name, it.value) for ops in changes.values() for it in ops]
        return dict.fromkeys(changes)


class JobStage:
    """What the driver of a job has: its topic, its store, its claim and the flow."""

    def __init__(self, topic: MemoryTopic | None = None) -> None:
        self.topic = topic or MemoryTopic("backfill")
        self.clock, self.flow = FakeClock(), Flow()
        self.store = BackfillStore(MemoryTable(self.topic))
        self.writer = TopicWriter(self.topic)
        self.claim = JobClaim(
            self.store, self.writer, self.flow.fence, name="A->B", clock=self.clock
        )

    @property
    def job(self) -> Job:
        job = self.store.job
        assert job is not None
        return job

    async def passing(self, work: Coroutine[None, None, T]) -> T:
        """Let time pass until ``work`` is done."""
        task = asyncio.ensure_future(work)
        for _ in range(600):
            if task.done():
                break
            await self.clock.advance(0.3)
        return await task
