"""Fakes of what the runtime leans on: a clock, a Sender, tasks, a store, a connector."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from mm2py.api.context import ConnectorContext, TaskContext
from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.api.task import BatchSourceTask, Delivery, Outgoing, SourceTask
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.tail import CopiedSoFar
from mm2py.clock import Clock
from mm2py.mirror.source_offsets import source_offset
from mm2py.protocol.record_batch import RecordBatch
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.target_sender import OnDelivered, OnDoubt, OnFailed, OnStalled
from mm2py.storage.memory import MemoryOffsetBackingStore
from mm2py.types import TopicPartition


class EagerClock:
    """A clock whose sleeps take no time but move it."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.sleeps: list[float] = []

    def now_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds
        await asyncio.sleep(0)


def a_batch(
    first: int, count: int = 1, *, size: int = 100, runs: tuple[tuple[int, int], ...] | None = None
) -> RecordBatch:
    return RecordBatch(
        bytearray(size),
        base_offset=first,
        last_offset=first + count - 1,
        count=count,
        max_timestamp=5_000 + first,
        leader_epoch=0,
        attributes=0,
        runs=runs or ((first, count),),
        lease=None,
    )


def outgoing(topic: str, first: int, count: int = 1, *, size: int = 100) -> Outgoing:
    source = TopicPartition(topic, 0)
    return Outgoing(source, TopicPartition(f"A.{topic}", 0), [a_batch(first, count, size=size)])


class Statuses(list[Status]):
    """Collects states; call it as a listener."""

    def __call__(self, status: Status) -> None:
        self.append(status)

    @property
    def words(self) -> list[str]:
        return [status.state.value for status in self]


class Waiting(NamedTuple):
    """One batch in the sender's hands."""

    source: TopicPartition
    target: TopicPartition
    batch: RecordBatch


class FakeSender:
    """Acknowledges when told, or at once."""

    def __init__(self, *, acknowledge: bool = True, permit: Permit = UNLIMITED) -> None:
        self.acknowledge = acknowledge
        self.permit = permit
        self._end_watch = permit.watch(self._permit_changed)
        self.stuck: set[TopicPartition] = set()
        """Targets that take nothing, so that nothing of them is acknowledged."""
        self.waiting: list[Waiting] = []
        self.sent: list[Waiting] = []
        self.start_errors: list[Exception] = []
        self.closed = 0
        self.started = 0
        self.flush_result: bool | None = None
        self._next: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.asked_for: set[str] = set()

    def __call__(
        self,
        on_delivered: OnDelivered,
        on_failed: OnFailed,
        on_stalled: OnStalled,
        on_doubt: OnDoubt,
        copied: CopiedSoFar | None = None,
    ) -> "FakeSender":
        self.on_delivered, self.on_failed, self.on_stalled = on_delivered, on_failed, on_stalled
        self.on_doubt, self.copied = on_doubt, copied
        return self

    @property
    def buffered_bytes(self) -> int:
        return sum(len(item.batch.data) for item in self.waiting)

    async def start(self) -> None:
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.started += 1

    async def log_starts(self, targets: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {it: self.starts[it] for it in targets if it in self.starts}

    def enqueue(
        self, source: TopicPartition, target: TopicPartition, batches: Sequence[RecordBatch]
    ) -> None:
        self.waiting += [Waiting(source, target, batch) for batch in batches]
        self.sent += [Waiting(source, target, batch) for batch in batches]
        if self.acknowledge and self.permit.valid:
            self.acknowledge_all()

    def cut(self, target: TopicPartition, end: int) -> None:
        """Let a target partition lose what is behind ``end``."""
        self._next[target] = end

    def acknowledge_all(self) -> None:
        moving = [item for item in self.waiting if item.target not in self.stuck]
        self.waiting = [item for item in self.waiting if item.target in self.stuck]
        for item in moving:
            self._acknowledge(item)

    def acknowledge_first(self) -> None:
        self._acknowledge(self.waiting.pop(0))

    def _acknowledge(self, item: Waiting) -> None:
        source, target, batch = item
        base = self._next.get(target, 0)
        self._next[target] = base + batch.count
        self.on_delivered(source, target, batch, base)

    def refuse(self, source: TopicPartition, error: Exception) -> None:
        target = next(item.target for item in self.sent if item.source == source)
        self.waiting = [item for item in self.waiting if item.source != source]
        self.on_failed(source, target, error)

    def backlog_bytes(self, target: TopicPartition) -> int:
        return sum(len(item.batch.data) for item in self.waiting if item.target == target)

    def returnable(self, target: TopicPartition) -> tuple[int, int] | None:
        batches = [item.batch for item in self.waiting if item.target == target]
        if not batches:
            return None
        return batches[0].base_offset, sum(batch.count for batch in batches)

    def give_back(self, target: TopicPartition) -> None:
        self.waiting = [item for item in self.waiting if item.target != target]

    def _permit_changed(self) -> None:
        if self.acknowledge and self.permit.valid:
            self.acknowledge_all()

    def let_create(self, topics: Collection[str]) -> None:
        self.asked_for.update(topics)

    def drop_unopened(self) -> None:
        """Everything is open here."""

    async def flush(self, timeout_s: float) -> bool:
        if self.flush_result is not None:
            return self.flush_result
        if not self.permit.valid:
            return not self.waiting
        self.acknowledge_all()
        return True

    async def close(self) -> None:
        self.closed += 1
        self._end_watch()


class FakeTask:
    """A batch task fed by the test."""

    def __init__(self, *rounds: Sequence[Outgoing] | Exception) -> None:
        self.rounds = list(rounds)
        self.start_errors: list[Exception] = []
        self.budgets: list[int] = []
        self.deliveries: list[Delivery] = []
        self.held: list[TopicPartition] = []
        self.released: list[TopicPartition] = []
        self.given_up: list[TopicPartition] = []
        self.commits = 0
        self.stopped = 0
        self.polls = 0

    async def start(self) -> None:
        if self.start_errors:
            raise self.start_errors.pop(0)

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        self.budgets.append(budget_bytes)
        self.polls += 1
        await asyncio.sleep(0)
        if not self.rounds:
            return ()
        answer = self.rounds.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def delivered(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        self.held.extend(partitions)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self.released.extend(partitions)

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        self.given_up.append(partition)

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        return {"cluster": "A", "partition": partition.partition, "topic": partition.topic}

    def source_offset(self, partition: TopicPartition, position: int) -> SourceOffset:
        return source_offset(position)

    async def commit(self) -> None:
        self.commits += 1

    async def stop(self) -> None:
        self.stopped += 1


class FakeStore:
    """A memory store that can be told to fail, and that remembers every write."""

    def __init__(self) -> None:
        self.inner = MemoryOffsetBackingStore()
        self.writes: list[Mapping[bytes, bytes | None]] = []
        self.errors: list[Exception] = []
        self.started = 0
        self.stopped = 0
        self.hangs = False

    async def start(self) -> None:
        self.started += 1

    async def stop(self) -> None:
        self.stopped += 1

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return await self.inner.get(keys)

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        self.writes.append(dict(values))
        await self.inner.set(values)

    def written(self) -> dict[bytes, bytes | None]:
        return {key: value for write in self.writes for key, value in write.items()}


class FakeConnector:
    """A connector whose tasks the test supplies."""

    java_class = "org.example.FakeConnector"

    def __init__(self, configs: Sequence[Mapping[str, str]] = ()) -> None:
        self.configs: Sequence[Mapping[str, str]] = list(configs)
        self.start_errors: list[Exception] = []
        self.context: ConnectorContext | None = None
        self.stopped = 0
        self.opened: list[Mapping[str, str]] = []
        self.troubles: dict[str, str] = {}
        self.task: BatchSourceTask | SourceTask = FakeTask()

    async def start(self, context: ConnectorContext) -> None:
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.context = context

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return self.configs

    def open_task(
        self, config: Mapping[str, str], context: TaskContext
    ) -> BatchSourceTask | SourceTask:
        self.opened.append(config)
        return self.task

    def problems(self) -> Mapping[str, str]:
        return self.troubles

    async def stop(self) -> None:
        self.stopped += 1


def as_clock(clock: EagerClock) -> Clock:
    """Prove to the type checker that the fake is a clock."""
    return clock
