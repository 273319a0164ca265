"""Fakes of what the runtime leans on: a clock, a Sender, tasks, a store, a connector."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import ClassVar, NamedTuple

from mm2py.api.context import ConnectorContext, EventSink, LossEvent, SourceGap, TaskContext
from mm2py.api.records import SinkRecord, SourceOffset, SourcePartition
from mm2py.api.task import BatchSourceTask, Delivery, Outgoing, SourceTask
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.tail import CopiedSoFar
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import producer_settings
from mm2py.config.framework import LossPolicies
from mm2py.errors import RetriableError
from mm2py.mirror.ledger import KnownEvents
from mm2py.mirror.source_offsets import mirror_source_partition, source_offset
from mm2py.observability.metrics import FlowMeter
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.offset_committer import OffsetCommitter
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.runtime.tasks.sink_loop import AssignmentListener, SinkProgress
from mm2py.runtime.tasks.sink_places import StoredPosition
from mm2py.runtime.tasks.target_sender import OnDelivered, OnDoubt, OnFailed, OnStalled
from mm2py.runtime.tasks.task_assembly import FlowReports, TaskAssembly, TaskParts
from mm2py.runtime.tasks.task_context import NoLedger, WorkerTaskContext
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec, TaskWatcher
from mm2py.testing.waiting import until
from mm2py.types import EARLIEST, ClusterAlias, FlowName, State, TaskId, TopicPartition
from tests.kit.fakes.batches import a_batch
from tests.kit.fakes.stores import MemoryOffsetBackingStore


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


async def turns(number: int) -> None:
    """Let the loop turn."""
    for _ in range(number):
        await asyncio.sleep(0)


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
        self.sent: list[Waiting] = []
        self._queues: dict[TopicPartition, list[Waiting]] = {}
        self._backlog = Counter[TopicPartition]()
        self.start_errors: list[Exception] = []
        self.closed = 0
        self.started = 0
        self.flush_result: bool | None = None
        self._next: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.ids: dict[str, bytes] = {}
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
    def waiting(self) -> Sequence[Waiting]:
        """What was not acknowledged yet, target by target."""
        return [item for queue in self._queues.values() for item in queue]

    @property
    def targets(self) -> Collection[TopicPartition]:
        """What anything was handed over for, also nothing, until it is acknowledged."""
        return self._queues.keys()

    @property
    def buffered_bytes(self) -> int:
        return self._backlog.total()

    async def start(self) -> None:
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.started += 1

    async def log_starts(self, targets: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {it: self.starts[it] for it in targets if it in self.starts}

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        return {it: self.ids[it] for it in topics if it in self.ids}

    def enqueue_all(self, handed_over: Sequence[Outgoing]) -> None:
        for it in handed_over:
            self.enqueue(*it)

    def enqueue(
        self, source: TopicPartition, target: TopicPartition, batches: Sequence[RecordBatch]
    ) -> None:
        new = [Waiting(source, target, batch) for batch in batches]
        self.sent += new
        self._queues.setdefault(target, []).extend(new)
        self._backlog[target] += sum(len(batch.data) for batch in batches)
        if self.acknowledge and self.permit.valid and target not in self.stuck:
            self._acknowledge(target)

    def cut(self, target: TopicPartition, end: int) -> None:
        """Let a target partition lose what is behind ``end``."""
        self._next[target] = end

    def acknowledge_all(self) -> None:
        for target in tuple(self._queues):
            if target not in self.stuck:
                self._acknowledge(target)

    def acknowledge_first(self) -> None:
        self._acknowledge(self.waiting[0].target, 1)

    def _acknowledge(self, target: TopicPartition, most: int | None = None) -> None:
        for source, _, batch in self._taken(target, most):
            base = self._next.get(target, 0)
            self._next[target] = base + batch.count
            self.on_delivered(source, target, batch, base)

    def _taken(self, target: TopicPartition, most: int | None = None) -> Sequence[Waiting]:
        """Take from the queue of a target."""
        queue = self._queues.pop(target, [])
        taken, left = queue[:most], [] if most is None else queue[most:]
        if left:
            self._queues[target] = left
        self._backlog[target] -= sum(len(item.batch.data) for item in taken)
        return taken

    def refuse(self, source: TopicPartition, error: Exception) -> None:
        target = next(item.target for item in self.sent if item.source == source)
        self._taken(target)
        self.on_failed(source, target, error)

    def backlog_bytes(self, target: TopicPartition) -> int:
        return self._backlog[target]

    def returnable(self, target: TopicPartition) -> tuple[int, int] | None:
        batches = [item.batch for item in self._queues.get(target, ())]
        if not batches:
            return None
        return batches[0].base_offset, sum(batch.count for batch in batches)

    def give_back(self, target: TopicPartition) -> None:
        self._taken(target)

    def _permit_changed(self) -> None:
        if self.acknowledge and self.permit.valid:
            self.acknowledge_all()

    def let_create(self, topics: Collection[str]) -> None:
        self.asked_for.update(topics)

    def watch_throttles(self, changed: Callable[[Mapping[int, float]], None]) -> None:
        """No broker throttles here."""

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


class BareTransform:
    """A transform that a test supplies; it may route."""

    keeps_partition: ClassVar[bool] = False

    def __init__(self, call: Callable[[SinkRecord], SinkRecord | None]) -> None:
        self._call = call
        self.closed = False

    def apply(self, record: SinkRecord) -> SinkRecord | None:
        return self._call(record)

    def close(self) -> None:
        self.closed = True


class FakeStore:
    """A memory store that can be told to fail, and that remembers every write."""

    def __init__(self) -> None:
        self.inner = MemoryOffsetBackingStore()
        self.writes: list[Mapping[bytes, bytes | None]] = []
        self.errors: list[Exception] = []
        self.started = 0
        self.stopped = 0
        self.hangs = self.is_unanswered = False

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
        if self.is_unanswered:
            raise TimeoutError

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
        self.stop_error: Exception | None = None
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
        return self.task

    def problems(self) -> Mapping[str, str]:
        return {}

    async def stop(self) -> None:
        self.stopped += 1
        if self.stop_error is not None:
            raise self.stop_error


FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


class Events(NoLedger):
    """What was reported; ``written`` is what a ledger has of it, and nothing at all while it is ``slow``."""

    def __init__(self) -> None:
        self.reported: list[LossEvent] = []
        self.known = KnownEvents()
        self.written: list[LossEvent] = []
        self.slow = False

    def report(self, event: LossEvent) -> bool:
        new = event not in self.reported
        self.written += self.known.take(event)
        self.reported.append(event)
        return new

    def unwritten(self) -> Collection[TopicPartition]:
        return [it.partition for it in self.reported] if self.slow else ()

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.known.copied(partition)


def a_context(
    events: EventSink | None = None,
    policies: LossPolicies | None = None,
    *,
    store: FakeStore | None = None,
    maps: TaskOffsetMaps | None = None,
    clock: EagerClock | None = None,
    meter: FlowMeter | None = None,
) -> WorkerTaskContext:
    """Return what a task of MirrorSource is given."""
    clock = clock or EagerClock()
    return WorkerTaskContext(
        "MirrorSourceConnector",
        "MirrorSourceConnector-0",
        store=store or FakeStore(),
        meter=meter or FlowMeter(FLOW, clock),
        clock=clock,
        events=events,
        policies=policies,
        maps=maps,
    )


def a_committer(
    store: FakeStore,
    maps: TaskOffsetMaps | None = None,
    *,
    epoch: int = -1,
    timeout_ms: int | None = 5_000,
    withheld: Callable[[], Collection[TopicPartition]] = tuple,
    on_failure: Callable[[str], None] = lambda _: None,
) -> OffsetCommitter:
    """Return the committer of a task of MirrorSource."""
    return OffsetCommitter(
        store,
        "MirrorSourceConnector",
        source_partition=partial(mirror_source_partition, "A"),
        source_offset=lambda _partition, position: source_offset(position, epoch),
        timeout_ms=timeout_ms,
        withheld=withheld,
        maps=maps,
        on_failure=on_failure,
    )


# ---- sinks


FIRST_ID, SECOND_ID = bytes(15) + b"1", bytes(15) + b"2"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def a_record(place: TopicPartition, offset: int, value: bytes = b"v") -> SinkRecord:
    return SinkRecord(place.topic, place.partition, b"k", value, (), 1_000 + offset, offset, *place)


class FakeGroup:
    """Logs and committed positions of a cluster, for any number of members."""

    def __init__(self, **lengths: int) -> None:
        self.ends = {TopicPartition("t", int(name[1:])): end for name, end in lengths.items()}
        self.starts = dict.fromkeys(self.ends, 0)
        self.committed: dict[TopicPartition, int] = {}
        self.committed_ids: dict[TopicPartition, bytes] = {}
        self.ids = {"t": FIRST_ID}

    def recreate(self, topic_id: bytes, **lengths: int) -> None:
        """Delete the topic and create it again, with records; a broker that forgets no positions of it."""
        self.ids["t"] = topic_id
        self.ends |= {TopicPartition("t", int(name[1:])): end for name, end in lengths.items()}
        self.starts = dict.fromkeys(self.ends, 0)


class FakeConsumer:
    """One member; ``give``, ``take`` and ``lose`` change what it has at the next poll."""

    def __init__(self, group: FakeGroup, listener: AssignmentListener, *, most: int = 3) -> None:
        self.group, self.listener, self.most = group, listener, most
        self.away: set[TopicPartition] = set()
        """Partitions whose broker does not answer."""
        self.subscribed: tuple[str, ...] = ()
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.events: list[tuple[str, tuple[TopicPartition, ...]]] = []
        self.commits: list[dict[TopicPartition, int]] = []
        self.commit_errors: list[Exception | bool] = []
        self.id_errors: list[Exception] = []
        self.markers: dict[TopicPartition, int] = {}
        """How many control records end each log: their offsets are read over."""
        self.before: list[SinkRecord] = []
        """What the next poll has read before its events."""
        self.resets_to_end = False
        """``auto.offset.reset=latest``."""
        self.was_set: set[TopicPartition] = set()
        """Partitions whose position was outside of the log, or was set, until the end of the log is told."""
        self.refusals: dict[TopicPartition, str] = {}
        self.denied: dict[str, str] = {}
        """Topics that may not be read."""
        self.polls: list[float] = []
        self.closed = False
        self.heard: dict[TopicPartition, int] = {}
        self.on_poll: Callable[[], None] = lambda: None
        self.known: Collection[str] = ("t", "other")

    def give(self, *places: TopicPartition) -> None:
        self.events.append(("assigned", places))

    def take(self, *places: TopicPartition) -> None:
        self.events.append(("revoked", places))

    def lose(self, *places: TopicPartition) -> None:
        self.events.append(("lost", places))

    def subscribe(self, topics: Sequence[str]) -> None:
        self.subscribed = tuple(topics)

    def topics(self) -> Collection[str]:
        return self.known

    def poll(self, timeout_s: float) -> Sequence[SinkRecord]:
        self.polls.append(timeout_s)
        self.on_poll()
        events, self.events = self.events, []
        for what, places in events:
            if what == "assigned":
                self.positions |= {it: self.group.committed.get(it, 0) for it in places}
                self.paused.difference_update(places)
                self.listener.assigned(places)
            else:
                (self.listener.revoked if what == "revoked" else self.listener.lost)(places)
                for place in places:
                    del self.positions[place]
        records, self.before = self.before, []
        for place, position in self.positions.items():
            if place not in self.paused | self.away:
                last = self.group.ends[place] - self.markers.get(place, 0)
                start = self.group.starts[place]
                is_inside = start <= position <= self.group.ends[place]
                reset = self.group.ends[place] if self.resets_to_end else start
                first = position if is_inside else reset
                if not is_inside:
                    self.was_set.add(place)
                end = max(first, min(last, first + self.most))
                records += [a_record(place, offset) for offset in range(first, end)]
                self.positions[place] = end
        return records

    def reached(self) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for place, position in self.positions.items():
            markers = self.markers.get(place, 0)
            if markers and position == self.group.ends[place] - markers:
                self.positions[place] = found[place] = self.group.ends[place]
            elif place in self.was_set and position == self.group.ends[place]:
                found[place] = position
        self.was_set.difference_update(found)
        return found

    def refused(self) -> Mapping[str, str]:
        return dict(self.denied)

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        if self.id_errors:
            raise self.id_errors.pop(0)
        return {it: self.group.ids[it] for it in topics if it in self.group.ids}

    def start(self, partition: TopicPartition) -> int:
        return self.group.starts[partition]

    def commit(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, bytes]
    ) -> Mapping[TopicPartition, str]:
        answer = self.commit_errors.pop(0) if self.commit_errors else True
        if isinstance(answer, Exception):
            raise answer
        if not answer:
            return dict.fromkeys(positions, "the group has changed")
        refused = {it: self.refusals[it] for it in positions if it in self.refusals}
        taken = {it: offset for it, offset in positions.items() if it not in refused}
        self.commits.append(taken)
        self.group.committed.update(taken)
        self.group.committed_ids.update((it, topic_ids[it]) for it in taken)
        return refused

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) <= self.positions.keys()
        self.paused.update(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        assert set(partitions) <= self.positions.keys()
        self.paused.difference_update(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.positions[partition] = self.group.starts[partition] if offset == EARLIEST else offset
        self.was_set.add(partition)

    def end(self, partition: TopicPartition) -> int:
        if partition not in self.paused | self.away:
            self.heard[partition] = self.group.ends[partition]
        return self.heard.get(partition, -1)

    def ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {it: self.group.ends[it] for it in partitions if it not in self.away}

    def committed(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredPosition]:
        ids = self.group.committed_ids
        return {
            it: StoredPosition(self.group.committed[it], ids.get(it, NO_TOPIC_ID))
            for it in partitions
            if it in self.group.committed
        }

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeLoggers:
    """Levels as they were set."""

    levels: dict[str, tuple[str, int | None]] = field(
        default_factory=lambda: {"root": ("INFO", None), "a.b": ("DEBUG", 5)}
    )

    def all(self) -> Mapping[str, tuple[str, int | None]]:
        return self.levels

    def get(self, name: str) -> tuple[str, int | None] | None:
        return self.levels.get(name)

    def set(self, namespace: str, level: str) -> list[str]:
        self.levels[namespace] = (level, 7)
        return [namespace]


class RecordingTask:
    """Takes records; what it has taken is acknowledged when ``pre_commit`` is asked, unless ``stuck``."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.taken: list[tuple[TopicPartition, int]] = []
        self.put_errors: list[Exception] = []
        self.start_errors: list[Exception] = []
        self.commit_errors: list[Exception] = []
        self.answer: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]] = (
            lambda offsets: offsets
        )

    def start(self) -> None:
        self.calls.append("start")
        if self.start_errors:
            raise self.start_errors.pop(0)

    def open(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(f"open {','.join(map(str, sorted(partitions)))}")

    def put(self, records: Sequence[SinkRecord]) -> None:
        if self.put_errors:
            raise self.put_errors.pop(0)
        self.taken += [
            (TopicPartition(it.original_topic, it.original_partition), it.offset) for it in records
        ]

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return self.answer(offsets)

    def close(self, partitions: Collection[TopicPartition]) -> None:
        self.calls.append(f"close {','.join(map(str, sorted(partitions)))}")

    def stop(self) -> None:
        self.calls.append("stop")


class Observed:
    """States and progress that were reported."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.made: list[Mapping[TopicPartition, SinkProgress]] = []
        self.standstills: list[str] = []
        self.gaps: list[SourceGap] = []
        self.off_record: set[TopicPartition] = set()
        self.ids: dict[TopicPartition, bytes] = {}

    def state(self, state: State) -> None:
        self.states.append(state.value)

    def progress(self, made: Mapping[TopicPartition, SinkProgress]) -> None:
        self.made.append(made)

    def standstill(self, cause: str) -> None:
        self.standstills.append(cause)

    def unwritten(self) -> Collection[TopicPartition]:
        return self.off_record

    def lost(self, gap: SourceGap) -> None:
        self.gaps.append(gap)

    def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return self.ids

    def began(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.ids[partition] = topic_id


def not_now(text: str = "not now") -> RetriableError:
    return RetriableError(text)


# ---- task hosts


EMPTY: Mapping[str, str] = {}


def spec_of(
    number: int, *, paused: bool = False, connector: Mapping[str, str] = EMPTY, **config: str
) -> TaskSpec:
    """The spec of a task of ``FakeConnector``."""
    return TaskSpec(
        id=TaskId("Fake", number),
        connector_config={"connector.class": "FakeConnector", **connector},
        config=config,
        paused=paused,
    )


class AskingTask(FakeTask):
    """Asks for its positions as a mirror task does."""

    def __init__(self, context: TaskContext, partitions: tuple[TopicPartition, ...]) -> None:
        super().__init__()
        self.context = context
        self.partitions = partitions
        self.started = 0
        self.taken_over: list[TopicPartition] = []
        self.take_over_errors: list[Exception] = []
        self.take_overs = 0
        self.readable = asyncio.Event()
        """Whether the positions of what is taken over can be read."""
        self.readable.set()

    async def start(self) -> None:
        await super().start()
        kept_out = self.context.kept_out
        asked = [p for p in self.partitions if p not in kept_out]
        await self.context.committed_offsets([self.source_partition(p) for p in asked])
        self.context.leave_out([p for p in self.partitions if p in kept_out])
        self.started += 1

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        self.take_overs += 1
        await self.context.committed_offsets([self.source_partition(p) for p in partitions])
        await self.readable.wait()
        if self.take_over_errors:
            raise self.take_over_errors.pop(0)
        self.taken_over += partitions


class _Connector(FakeConnector):
    def __init__(self, stage: "HostStage") -> None:
        super().__init__()
        self._stage = stage

    def open_task(
        self, config: Mapping[str, str], context: TaskContext
    ) -> BatchSourceTask | SourceTask:
        if self._stage.task is not None:
            return self._stage.task
        partitions = tuple(TopicPartition(t, 0) for t in config.get("topics", "orders").split(","))
        self._stage.tasks.append(AskingTask(context, partitions))
        return self._stage.tasks[-1]


class HostStage:
    """The host, and what its tasks did: ``task`` alone, or one that asks for its positions each."""

    def __init__(
        self,
        reports: FlowReports | None = None,
        watcher: TaskWatcher | None = None,
        *,
        permit: Permit | None = None,
        task: BatchSourceTask | SourceTask | None = None,
        acknowledge: bool = True,
    ) -> None:
        self.task, self.acknowledge = task, acknowledge
        self.reports = reports
        self.watcher = watcher
        self.clock = EagerClock()
        self.store = FakeStore()
        self.tasks: list[AskingTask] = []
        self.senders: list[FakeSender] = []
        self.statuses: list[tuple[TaskId, str]] = []
        self.topics: list[tuple[TaskId, str]] = []
        self.meter = FlowMeter(FLOW, self.clock) if reports is None else reports.meter
        self.permit = permit or Permit(SYSTEM_CLOCK, until_s=inf)
        self.closed = 0
        stage = self

        class Factory:
            java_class: ClassVar[str] = "org.example.FakeConnector"

            def __new__(cls, config: Mapping[str, str]) -> _Connector:  # type: ignore[misc]  # a factory in the shape of a class
                return _Connector(stage)

        plugins = Plugins([])
        plugins._entries["FakeConnector"] = None  # type: ignore[assignment]  # never loaded: it is in the cache
        plugins._loaded["FakeConnector"] = Factory  # type: ignore[assignment]  # a factory in the shape of a class
        self.parts = TaskParts(
            plugins=plugins,
            store=self.store,
            meter=self.meter,
            clock=self.clock,
            sender=self._sender,
            producer=lambda spec: producer_settings(
                {"bootstrap.servers": "b:9092", "buffer.memory": str(1 << 20)}
            ),
            offset_flush_interval_ms=1_000,
            offset_flush_timeout_ms=5_000,
            graceful_timeout_ms=5_000,
            target_name="target cluster B",
            events=NoLedger() if reports is None else reports.events,
            on_topic=self._topic,
            permit=self.permit,
        )
        self.host = InProcessTaskHost(TaskAssembly(self.parts), self.changed, graceful_s=5)

    async def started(self, number: int = 0, **config: str) -> AskingTask:
        """Start a task, and return it when it runs."""
        await self.host.start_task(spec_of(number, paused=False, connector=EMPTY, **config))
        await until(lambda: self.words(number) == ["RUNNING"])
        return self.tasks[-1]

    async def start(self, **connector: str) -> None:
        """Start the task with these keys of its connector."""
        keys = {key.replace("_", "."): text for key, text in connector.items()}
        await self.host.start_task(spec_of(0, connector=keys))

    def words(self, number: int = 0) -> list[str]:
        return [word for task, word in self.statuses if task.number == number]

    def _sender(self, spec: TaskSpec) -> FakeSender:
        self.senders.append(FakeSender(acknowledge=self.acknowledge, permit=self.permit))
        return self.senders[-1]

    async def close(self) -> None:
        """As a hosted flow."""
        self.closed += 1

    def changed(self, task: TaskId, status: Status) -> None:
        self.statuses.append((task, status.state.value))
        if self.watcher is not None:
            self.watcher(task, status)

    def _topic(self, task: TaskId, topic: str) -> None:
        self.topics.append((task, topic))
        if self.reports is not None:
            self.reports.on_topic(task, topic)
