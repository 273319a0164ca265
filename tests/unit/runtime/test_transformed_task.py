"""Transforms on a flow of batches: what is sent, under which offsets, and when a position moves."""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from mm2py.api.context import EventKind, SourceGap
from mm2py.api.records import SinkRecord
from mm2py.api.task import Delivery, Outgoing, Run
from mm2py.client.send.tail import Identical
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import RetriableError
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.offset_map_pages import Mark, Segment
from mm2py.mirror.source_offsets import source_offset
from mm2py.protocol.record_batch import CONTROL_FLAG, HEADER_BYTES, Codec, RecordBatch
from mm2py.protocol.records import NewRecord, Record, decode_batches
from mm2py.runtime.plugins.converters.registry import BYTES_ONLY
from mm2py.runtime.plugins.transforms import chain as plugins
from mm2py.runtime.plugins.transforms.chain import TransformChain, TransformStep, steps_of
from mm2py.runtime.tasks import record_task, transformed_task
from mm2py.runtime.tasks.arrivals import MOST_PARTS, Arrivals, Part, SourceOrder
from mm2py.runtime.tasks.errant_records import ErrantRecords
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.runtime.tasks.record_task import new_batch
from mm2py.runtime.tasks.task_transactions import TaskTransactions
from mm2py.runtime.tasks.transformed_task import TransformedTask
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.testing.waiting import until
from mm2py.types import State, TopicPartition
from tests.kit.fakes.batches import a_batch
from tests.unit.mirror.test_offset_map import translated
from tests.unit.runtime.runtime_fakes import BareTransform, EagerClock, FakeTask
from tests.unit.runtime.test_worker_task import Bench

S, T = TopicPartition("orders", 0), TopicPartition("bills", 0)
HOME = TopicPartition("A.orders", 0)
DROP_TOMBSTONES = {
    "transforms": "drop",
    "transforms.drop.type": "Filter",
    "transforms.drop.predicate": "gone",
    "predicates": "gone",
    "predicates.gone.type": "RecordIsTombstone",
}
MARK = {
    "transforms": "mark",
    "transforms.mark.type": "InsertHeader",
    "transforms.mark.header": "copied",
    "transforms.mark.value.literal": "yes",
}
WITHOUT_PREFIX = {
    "transforms": "route",
    "transforms.route.type": "RegexRouter",
    "transforms.route.regex": "A\\.(.*)",
    "transforms.route.replacement": "$1",
}


class Copies(FakeTask):
    """A batch task over logs, as MirrorSource."""

    def __init__(self, *rounds: Sequence[Outgoing] | Exception) -> None:
        super().__init__(*rounds)
        self.taken_over: list[TopicPartition] = []
        self.taken_back: list[tuple[TopicPartition, int, int]] = []

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        self.taken_over.extend(partitions)

    def read_again(self, partition: TopicPartition, offset: int, records: int) -> bool:
        self.taken_back.append((partition, offset, records))
        return True

    is_short = False

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(f"A.{partition.topic}", partition.partition)


def _records(first: int, values: Sequence[bytes | None]) -> list[NewRecord]:
    return [
        NewRecord(b"k%d" % offset, value, [(b"n", b"%d" % offset), (b"\xff", None)], 1_000 + offset)
        for offset, value in enumerate(values, first)
    ]


def _batch(
    first: int, *values: bytes | None, offsets: Sequence[int] = (), codec: Codec = Codec.NONE
) -> RecordBatch:
    numbers = offsets or range(first, first + len(values))
    return new_batch(list(numbers), _records(first, values), codec)


def _from(source: TopicPartition, *batches: RecordBatch) -> Sequence[Outgoing]:
    return [Outgoing(source, TopicPartition(f"A.{source.topic}", 0), list(batches))]


class Flow(Bench):
    """A worker task with transforms, on fakes."""

    def __init__(
        self,
        config: Mapping[str, str] | Sequence[TransformStep],
        *rounds: Sequence[Outgoing],
        acknowledge: bool = True,
        errors: Mapping[str, str] | None = None,
        fail_on_gap: bool = False,
    ) -> None:
        self.copies, self.order = Copies(*rounds), SourceOrder()
        super().__init__(
            self.copies, acknowledge=acknowledge, fail_on_gap=fail_on_gap, order=self.order
        )
        options = parse_config(FrameworkConfig, dict(errors or {}))
        self.errant = ErrantRecords("m", 0, options, clock=self.clock)
        steps = steps_of(config) if isinstance(config, Mapping) else config
        self.chain = TransformChain(steps, self.errant.transformed)
        self.transformed = TransformedTask(
            self.copies,
            self.chain,
            converters=BYTES_ONLY,
            errant=self.errant,
            order=self.order,
            context=self.context,
            is_internal=lambda topic: topic.startswith("mm2-"),
        )
        self.use(self.transformed)

    def written(self, target: TopicPartition = HOME) -> list[Record]:
        """What was sent to a target partition, in this order."""
        return [
            record
            for item in self.sender.sent
            if item.target == target
            for batch in decode_batches(memoryview(item.batch.data))
            for record in batch.records
        ]

    def runs(self, target: TopicPartition = HOME) -> list[tuple[int, int]]:
        """Return the source offsets of what was sent."""
        return [
            run for item in self.sender.sent if item.target == target for run in item.batch.runs
        ]

    @property
    def done(self) -> int:
        """The last source offset that the task was told of."""
        return self.copies.deliveries[-1].last if self.copies.deliveries else -1

    def segments(self, source: TopicPartition = S) -> tuple[Segment, ...]:
        found = self.context.maps.of(source)
        found.again()  # its pages were taken when the task ended
        return found.take()[-1].segments


def _poisoned(**made: object) -> tuple[TransformStep, ...]:
    """A transform that cannot read a value ``x``, and changes these fields of all other records."""

    def poisoned(record: SinkRecord) -> SinkRecord:
        if record.value == b"x":
            raise ValueError("no number")
        return SinkRecord(*cast("Any", {**record._asdict(), **made}.values()))

    return _step(poisoned)


def _step(call: Callable[[SinkRecord], SinkRecord | None]) -> tuple[TransformStep, ...]:
    return (TransformStep("T", BareTransform(call), None, negate=False),)


class Second:
    """Chooses every second record that it is asked about."""

    java_class: ClassVar[str] = "Second"
    made: ClassVar[list["Second"]] = []

    def __init__(self, _config: Mapping[str, str]) -> None:
        self.asked = self.closed = 0
        self.made.append(self)

    def test(self, _record: SinkRecord) -> bool:
        self.asked += 1
        return self.asked % 2 == 0

    def close(self) -> None:
        self.closed += 1


async def test_each_steps_own_predicate_is_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(kind: str) -> Sequence[object]:
        return plugins.TRANSFORMS if kind == "transforms" else [Second]

    monkeypatch.setattr(plugins, "installed", installed)
    config = {"transforms": "a,b", "predicates": "p,q"}
    config |= {f"predicates.{it}.type": "Second" for it in "pq"}
    for alias in "ab":
        for key, text in (("type", "InsertHeader"), ("header", alias), ("value.literal", "1"), ("predicate", "p")):  # fmt: skip
            config[f"transforms.{alias}.{key}"] = text
    flow = Flow(config, _from(S, _batch(0, b"a", b"b")))
    await flow.run(lambda: flow.done == 1)
    assert [len(it.headers) for it in flow.written()] == [2, 4]
    made, Second.made = Second.made, []
    assert [it.closed for it in made] == [1, 1, 1], "also that of q, which no step uses"


async def test_a_batch_of_which_all_is_dropped_moves_position_and_lag() -> None:
    flow = Flow(
        DROP_TOMBSTONES, _from(S, _batch(0, b"a"), _batch(1, None, None)), _from(S, _batch(3, None))
    )
    await flow.run(lambda: flow.done == 3)
    assert flow.runs() == [(0, 1)]
    assert sum(it.passed for it in flow.copies.deliveries) == 3
    assert flow.position("orders") == b'{"offset":3}'
    assert flow.context.maps.of(S).covered == 4


async def test_a_batch_that_nothing_changes_is_forwarded_as_it_is() -> None:
    batch = _batch(5, b"a", b"b", codec=Codec.LZ4)
    before = bytes(batch.data)
    flow = Flow(DROP_TOMBSTONES, _from(S, batch))
    await flow.run(lambda: flow.done == 6)
    assert flow.sender.sent[0].batch is batch
    assert bytes(batch.data)[HEADER_BYTES:] == before[HEADER_BYTES:]


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_changed_batch_keeps_its_codec_and_the_holes_of_its_source(codec: Codec) -> None:
    batch = _batch(4, b"a" * 50, None, b"b" * 50, offsets=(4, 9, 11), codec=codec)
    flow = Flow(MARK, _from(S, batch))
    await flow.run(lambda: flow.done == 11)
    assert flow.runs() == [(4, 1), (9, 1), (11, 1)]
    assert flow.sender.sent[0].batch.codec is codec
    assert [it.headers[-1] for it in flow.written()] == [(b"copied", b"yes")] * 3
    assert [it.value for it in flow.written()] == [b"a" * 50, None, b"b" * 50]
    assert not int.from_bytes(flow.sender.sent[0].batch.data[21:23]) & CONTROL_FLAG


async def test_transforms_see_the_name_of_the_copy_and_the_place_in_the_source() -> None:
    seen: list[SinkRecord] = []

    def look(record: SinkRecord) -> SinkRecord:
        seen.append(record)
        return record

    flow = Flow(_step(look), _from(S, _batch(7, b"a")))
    await flow.run(lambda: flow.done == 7)
    (record,) = seen
    assert (record.topic, record.partition) == ("A.orders", 0)
    assert (record.original_topic, record.original_partition, record.offset) == ("orders", 0, 7)


async def test_a_routed_record_keeps_positions_and_map_back_until_it_has_arrived() -> None:
    def route(record: SinkRecord) -> SinkRecord:
        return record._replace(topic="audit") if record.value == b"x" else record

    flow = Flow(_step(route), _from(S, _batch(0, b"a", b"x", b"b"), _batch(3, b"c")))
    audit = TopicPartition("audit", 0)
    flow.sender.stuck.add(audit)
    await flow.begin(lambda: len(flow.sender.sent) == 3)
    await until(lambda: not [it for it in flow.sender.waiting if it.target == HOME])
    assert flow.context.maps.of(S).is_empty, "a restart now copies all of it again"
    assert not flow.copies.deliveries
    assert flow.sender.asked_for == {"audit"}
    flow.sender.stuck.clear()
    flow.sender.acknowledge_all()
    await until(lambda: flow.done == 3)
    await flow.running.stop(5)
    assert flow.runs(audit) == [(1, 1)]
    runs = [run for it in flow.copies.deliveries for run in it.runs]
    assert runs == [Run(0, 1, 0), Run(2, 1, 1), Run(3, 1, 2)], "no sync is about the routed one"
    assert flow.position("orders") == b'{"offset":3}'
    assert flow.segments() == (Segment(0, 1, 0), Segment(2, 2, 1))
    assert flow.meter.partition(S).records == 0, "the task has ended"


@pytest.mark.parametrize("torn", [False, True])
async def test_a_commit_leaves_out_what_is_not_taken_unless_that_tears_a_batch(torn: bool) -> None:
    def route(record: SinkRecord) -> SinkRecord:
        return record._replace(topic="audit") if record.value == b"x" else record

    left: list[int] = []

    async def settle() -> None:
        left.append(flow.sender.buffered_bytes)

    batches = _from(S, _batch(0, b"a", *[b"x"] * torn)), _from(T, _batch(0, b"x"))
    flow = Flow(_step(route), *batches)
    audit = TopicPartition("audit", 0)
    flow.sender.stuck.add(audit)
    await flow.begin(lambda: len(flow.sender.sent) == 2 + torn)
    flow.sender.on_stalled(audit, RetriableError("no audit"))
    flow.sender.flush_result = False
    transactions = SimpleNamespace(broken=False, settle=settle)
    parts = cast("TaskTransactions", SimpleNamespace(transactions=transactions))
    settling = asyncio.ensure_future(flow.running._settle(parts))  # pyright: ignore[reportPrivateUsage]
    sleeps = len(flow.clock.sleeps)
    await until(lambda: settling.done() or len(flow.clock.sleeps) > sleeps + 50)
    assert settling.done() is not torn
    flow.sender.stuck.clear()
    flow.sender.acknowledge_all()
    flow.sender.flush_result = None
    await settling
    assert bool(left[0]) is not torn
    await flow.running.stop(5)


async def test_what_a_target_takes_nothing_of_is_given_back_whole_and_made_again() -> None:
    def read() -> Sequence[Outgoing]:
        return _from(S, _batch(10, b"a", None, b"b"), _batch(13, None), _batch(14, b"c"))

    flow = Flow(DROP_TOMBSTONES, read(), acknowledge=False)
    await flow.begin(lambda: len(flow.sender.sent) == 2)
    assert not flow.transformed.read_again(S, 10, 2), "something of it has left"
    assert flow.transformed.read_again(S, 10, 3)
    assert flow.copies.taken_back == [(S, 10, 5)], "with what was dropped"
    flow.sender.give_back(HOME)
    assert not flow.transformed.read_again(S, 10, 3), "nothing is left"
    flow.copies.rounds.append(read())
    await until(lambda: len(flow.sender.sent) == 4)
    flow.sender.acknowledge_all()
    await until(lambda: flow.done == 14)
    await flow.running.stop(5)
    assert sum(run.records for it in flow.copies.deliveries for run in it.runs) == 3
    assert sum(it.passed for it in flow.copies.deliveries) == 2
    assert flow.position("orders") == b'{"offset":14}'


async def test_what_a_transform_may_have_sent_elsewhere_is_not_given_back() -> None:
    flow = Flow(_step(lambda record: record), _from(S, _batch(0, b"a")), acknowledge=False)
    await flow.begin(lambda: len(flow.sender.sent) == 1)
    assert not flow.transformed.read_again(S, 0, 1)
    flow.sender.acknowledge_all()
    await flow.running.stop(5)


async def test_a_poisoned_record_ends_the_task_also_where_the_target_takes_nothing() -> None:
    flow = Flow(_poisoned(topic="audit"), _from(S, _batch(0, b"a", b"x")))
    flow.sender.stuck.add(TopicPartition("audit", 0))
    await flow.run(lambda: flow.statuses and flow.statuses[-1].state is State.FAILED)
    assert flow.position("orders") is None


async def test_a_source_is_held_as_long_as_one_of_its_targets_takes_nothing() -> None:
    def route(record: SinkRecord) -> SinkRecord:
        return record._replace(topic=f"{cast('bytes', record.key).decode()}-topic")

    def keyed(first: int, *keys: bytes) -> RecordBatch:
        records = [NewRecord(key, b"v", (), 1_000) for key in keys]
        return new_batch(list(range(first, first + len(keys))), records)

    later = _from(T, keyed(0, b"a"))
    flow = Flow(_step(route), _from(S, keyed(0, b"a", b"b")))
    one, two = TopicPartition("a-topic", 0), TopicPartition("b-topic", 0)
    flow.sender.stuck |= {one, two}
    await flow.begin(lambda: len(flow.sender.sent) == 2)
    for target in (one, two):
        flow.sender.on_stalled(target, RetriableError(f"no {target}"))
    first, second = (flow.meter.partition(it) for it in (S, T))
    flow.sender.stuck.discard(one)
    flow.sender.on_stalled(one, None)
    assert (first.state, "no b-topic-0" in first.cause) == ("HELD", True)
    flow.sender.on_stalled(one, RetriableError("again"))
    flow.copies.rounds.append(later)
    await until(lambda: len(flow.sender.sent) == 3)
    assert (second.state, "again" in second.cause) == ("HELD", True), "it came when it was stuck"
    flow.sender.stuck.clear()
    for target in (one, two):
        flow.sender.on_stalled(target, None)
    flow.sender.acknowledge_all()
    assert (first.state, second.state) == ("RUNNING", "RUNNING")
    await until(lambda: len(flow.copies.deliveries) == 2)
    await flow.running.stop(5)


async def test_with_tolerance_a_poisoned_record_is_left_out_and_counted() -> None:
    flow = Flow(
        _poisoned(timestamp_ms=5),
        _from(S, _batch(0, b"a", b"x", b"c")),
        errors={"errors.tolerance": "all"},
    )
    await flow.run(lambda: flow.done == 2)
    assert [(it.value, it.timestamp) for it in flow.written()] == [(b"a", 5), (b"c", 5)]
    assert flow.errant.skipped == 1


@pytest.mark.parametrize(
    ("made", "text"),
    [
        ({"value": 5}, "ByteArrayConverter"),
        ({"headers": (("h", "text"),)}, "a header cannot be converted"),
        ({"headers": (("\ud800", b""),)}, "surrogates not allowed"),
        ({"topic": ""}, "topic=''"),
        ({"topic": "bad name!"}, "topic='bad name!'"),
        ({"topic": ".."}, r"topic='..'"),
        ({"topic": "a" * 250}, "at most 249"),
        ({"topic": "mm2-offsets.A.internal"}, "holds the state of a mirror"),
        ({"partition": None}, "partition=None"),
        ({"partition": -1}, "partition=-1"),
        ({"timestamp_ms": None}, "timestamp=None"),
    ],
)
async def test_what_is_no_record_of_bytes_is_an_error_of_its_record(
    made: dict[str, object], text: str
) -> None:
    flow = Flow(_poisoned(**made), _from(S, _batch(0, b"a")))
    await flow.run(lambda: flow.statuses and flow.statuses[-1].state is State.FAILED)
    assert text in str(flow.statuses[-1].cause)
    assert flow.position("orders") is None


async def test_a_transform_that_routes_and_says_that_it_does_not_is_refused() -> None:
    liar = BareTransform(lambda it: it._replace(topic="elsewhere"))
    liar.__class__ = type("Liar", (BareTransform,), {"keeps_partition": True})
    flow = Flow((TransformStep("T", liar, None, negate=False),), _from(S, _batch(0, b"a")))
    await flow.run(lambda: flow.statuses and flow.statuses[-1].state is State.FAILED)
    assert "keeps_partition" in str(flow.statuses[-1].cause)
    assert not flow.sender.sent


async def test_a_batch_that_cannot_be_read_stops_its_partition_alone() -> None:
    damaged = _batch(2, b"b" * 40, codec=Codec.GZIP)
    damaged.data[HEADER_BYTES:] = b"?" * (len(damaged.data) - HEADER_BYTES)
    flow = Flow(
        MARK,
        [
            *_from(S, _batch(0, b"a", b"b"), damaged, _batch(3, b"c")),
            *_from(T, _batch(0, b"d")),
            *_from(S, _batch(4, b"e")),  # of a second answer that came before the poll
        ],
    )
    await flow.context.committed_offsets([flow.copies.source_partition(it) for it in (S, T)])
    await flow.run(lambda: S in flow.copies.given_up and len(flow.copies.deliveries) == 2)
    assert flow.position("orders") == b'{"offset":1}'
    assert flow.position("bills") == b'{"offset":0}'
    assert flow.runs() == [(0, 2)]
    (event,) = flow.events
    assert (event.kind, event.partition, event.first_offset) == (EventKind.POISONED, S, 2)
    assert flow.statuses[-1].state is State.UNASSIGNED, "the task itself went on to its end"


async def test_a_retriable_error_is_tried_again_and_holds_no_event_loop() -> None:
    threads: set[int] = set()
    attempts = iter([RetriableError("not yet"), RetriableError("not yet")])

    def sometimes(record: SinkRecord) -> SinkRecord:
        threads.add(threading.get_ident())
        error = next(attempts, None)
        if error is not None:
            raise error
        return record._replace(key=b"")

    flow = Flow(
        _step(sometimes),
        _from(S, _batch(0, b"a")),
        errors={"errors.retry.timeout": "-1", "errors.retry.delay.max.ms": "1"},
    )
    await flow.run(lambda: flow.done == 0)
    assert next(attempts, None) is None, "both errors"
    assert threading.get_ident() not in threads


async def test_slow_transforms_are_named_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformed_task, "WORK_S", 0.01)
    is_away = threading.Event()
    is_away.set()

    def look_up(record: SinkRecord) -> SinkRecord:
        flow.clock.seconds += 20
        if is_away.is_set():
            raise RetriableError("the registry is away")
        return record

    errors = {"errors.retry.timeout": "-1", "errors.retry.delay.max.ms": "1"}
    flow = Flow(_step(look_up), _from(S, _batch(0, b"a")), errors=errors)
    await flow.begin(lambda: any(it.harms for it in flow.meter.findings))
    (found,) = flow.meter.findings
    assert found.what == "transforms at work"
    assert found.text == "orders-0 offset 0 is tried again: the registry is away"
    is_away.clear()
    await until(lambda: flow.done == 0)
    assert not flow.meter.findings
    await flow.running.stop(5)


async def test_a_slow_transform_sees_no_further_record_after_the_end_of_its_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in ((transformed_task, "WORK_S"), (record_task, "END_S")):
        monkeypatch.setattr(module, name, 0.01)
    seen: list[SinkRecord] = []
    go = threading.Event()

    def slow(record: SinkRecord) -> SinkRecord:
        seen.append(record)
        go.wait(100)
        return record

    flow = Flow(_step(slow), _from(S, _batch(0, b"a", b"b", b"c"), _batch(3, b"d")))
    await flow.begin(lambda: len(seen) == 1)
    await flow.running.stop(5)
    thread = next(it for it in threading.enumerate() if it.name.startswith("transforms"))
    go.set()
    thread.join(90)
    assert not thread.is_alive()
    assert len(seen) == 1
    assert flow.position("orders") is None


async def test_what_the_chain_has_when_a_gap_stops_its_partition_is_copied_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was read before the gap; of a topic that was created again it cannot be read again."""
    monkeypatch.setattr(transformed_task, "WORK_S", 0.01)
    seen, go = threading.Event(), threading.Event()

    def slow(record: SinkRecord) -> SinkRecord:
        seen.set()
        go.wait(100)
        return record

    flow = Flow(
        _step(slow),
        [*_from(S, _batch(0, b"a", b"b")), *_from(T, _batch(0, b"c"))],
        fail_on_gap=True,
    )
    await flow.context.committed_offsets([flow.copies.source_partition(it) for it in (S, T)])
    await flow.begin(seen.is_set)
    flow.context.report_gap(SourceGap(S, 2, 9, "recreated", "it is another topic"))
    assert flow.copies.given_up == [S]
    go.set()
    await flow.run(lambda: len(flow.copies.deliveries) == 2 or flow.position("bills"))
    assert flow.runs() == [(0, 2)]
    assert flow.position("orders") == b'{"offset":1}'


async def test_a_loss_that_waits_for_the_targets_log_begins_the_lane_without_a_record() -> None:
    flow = Flow(DROP_TOMBSTONES, acknowledge=False)
    await flow.begin(lambda: flow.copies.polls > 0)
    flow.running.gap_asked(S)
    await until(lambda: HOME in flow.sender.targets)
    await flow.running.stop(1.0)
    assert flow.running.status.state.value == "UNASSIGNED"


async def test_a_mark_of_the_source_stays_behind_the_records_that_were_under_way() -> None:
    flow = Flow(DROP_TOMBSTONES, _from(S, _batch(0, b"a", None, None)), _from(S, _batch(100, b"b")))
    landed = flow.context.maps.of(S)
    landed.anchor(0, 0)
    landed.note(Segment(3, 97, 0, Mark.SOURCE_LOST), under_way=3)
    await flow.run(lambda: flow.done == 100)
    assert [it.source for it in flow.segments()] == [0, 3, 100]


async def test_what_was_dropped_and_routed_is_a_note_of_the_flow() -> None:
    def both(record: SinkRecord) -> SinkRecord | None:
        return record._replace(topic="audit") if record.value == b"x" else None

    flow = Flow(_step(both), _from(S, _batch(0, b"a", b"x", b"c")))
    await flow.begin(lambda: flow.done == 2)
    await flow.transformed.commit()
    (note,) = flow.meter.findings
    assert (note.what, note.harms, note.count) == ("transforms", False, 3)
    assert "2 records were dropped" in note.text
    assert "audit" in note.text
    await flow.running.stop(5)


async def test_it_is_paused_taken_over_and_asked_as_the_task_inside() -> None:
    flow = Flow(MARK)
    await flow.transformed.take_over([S])
    flow.transformed.hold([S])
    flow.transformed.release([T])
    assert (flow.copies.taken_over, flow.copies.held, flow.copies.released) == ([S], [S], [T])
    assert flow.transformed.target_of(S) == HOME
    assert await flow.transformed.log_starts([S]) == {S: 0}
    assert flow.transformed.source_offset(S, 3) == source_offset(3)


def test_only_chains_that_keep_partitions_let_predecessors_be_recognised() -> None:
    errant = ErrantRecords("m", 0, FrameworkConfig(), clock=EagerClock())
    assert not TransformChain(steps_of(MARK), errant.transformed).routes
    assert TransformChain(steps_of(WITHOUT_PREFIX), errant.transformed).routes
    assert TransformChain(_step(lambda it: it), errant.transformed).routes
    shared = TaskOffsetMaps(NoMapStore(), Identical.PREFER, shares_targets=True)
    assert shared.copied is None


# ---- the order of source partitions: names are the invariants of ``SourceOrder``


OTHER = TopicPartition("audit", 0)


class Taken(list[tuple[str, int, int]]):
    """What was passed on: copies with first source offset and target offset, records without a copy with their last offset."""

    def add(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        assert (source, target) == (S, HOME)
        self.append(("copies", batch.base_offset, base_offset))

    def passes(
        self, source: TopicPartition, target: TopicPartition, records: int, through: int
    ) -> None:
        assert (source, target) == (S, HOME)
        self.append(("passed", records, through))


def _order(*parts: tuple[Mapping[TopicPartition, int], int, int]) -> tuple[SourceOrder, Taken]:
    taken, order = Taken(), SourceOrder()
    order.follow(taken)
    for part in parts:
        order.handed_out(S, HOME, Part(*part))
    return order, taken


def test_1_a_part_is_done_when_its_records_and_all_parts_before_it_are() -> None:
    order, taken = _order(({HOME: 2, OTHER: 1}, 1, 2), ({HOME: 3}, 0, 5))
    assert order.arrived(S, HOME, a_batch(0, 2), 70)
    assert order.arrived(S, HOME, a_batch(3, 3), 72)
    assert taken == [], "a record that went elsewhere has not arrived"
    assert not order.arrived(S, OTHER, a_batch(2), 0)
    assert taken == [("copies", 0, 70), ("passed", 1, 2), ("copies", 3, 72)]


def test_2_records_are_counted_so_that_another_incarnation_may_begin_at_0() -> None:
    order, taken = _order(({HOME: 2}, 0, 1_001), ({HOME: 1, OTHER: 1}, 1, 1))
    order.arrived(S, HOME, a_batch(1_000, 2), 0)
    order.arrived(S, HOME, a_batch(0), 2)
    assert taken == [("copies", 1_000, 0)]
    order.arrived(S, OTHER, a_batch(1), 0)
    assert taken[1:] == [("copies", 0, 2), ("passed", 1, 1)]


@pytest.mark.parametrize(("base", "then"), [(10, 12), (-1, -1)])
def test_3_a_batch_of_several_parts_counts_part_by_part(base: int, then: int) -> None:
    """Also where the broker did not say where it is (-1)."""
    order, taken = _order(({HOME: 2}, 1, 2), ({HOME: 2, OTHER: 1}, 1, 5))
    order.arrived(S, HOME, a_batch(0, 4, runs=((0, 2), (3, 2))), base)
    assert taken == [("copies", 0, base), ("passed", 1, 2)]
    order.arrived(S, OTHER, a_batch(5), 0)
    assert taken[2:] == [("copies", 3, then), ("passed", 1, 5)]


@pytest.mark.parametrize(
    ("mark", "first", "place"),
    [(bytes(15) + b"2", 0, 0), (Segment(5, 0, 0, Mark.SOURCE_CUT), 5, 5)],
)
def test_3_a_mark_of_the_source_stays_between_parts_that_one_batch_has_joined(
    mark: Segment | bytes, first: int, place: int
) -> None:
    """Of ten records three were dropped; behind them the topic was created again, or its log was cut."""
    landed = PartitionMap()

    def report(delivery: Delivery) -> None:
        for run in delivery.runs:
            landed.add(*run)
        landed.passed(delivery.passed, delivery.last + 1)

    order, arrivals = SourceOrder(), Arrivals(report, by_itself=False)
    order.follow(arrivals)
    landed.identify(bytes(15) + b"1")
    landed.note(mark, under_way=10)
    order.handed_out(S, HOME, Part({HOME: 7}, 3, 9))
    order.handed_out(S, HOME, Part({HOME: 5}, 0, first + 4))
    order.arrived(S, HOME, a_batch(3, 12, runs=((3, 7), (first, 5))), 0)
    arrivals.flush()
    assert translated(landed, place)[0][1] == 7


def test_4_what_has_arrived_of_a_part_with_one_target_is_passed_on_when_that_is_asked() -> None:
    order, taken = _order(({HOME: 2}, 1, 2), ({HOME: 3}, 1, 6), ({HOME: 1, OTHER: 1}, 0, 8))
    order.arrived(S, HOME, a_batch(0, 3, runs=((0, 2), (3, 1))), 10)
    assert taken == [("copies", 0, 10), ("passed", 1, 2)]
    order.pass_on()
    assert taken[2:] == [("copies", 3, 12)]
    order.arrived(S, HOME, a_batch(4, 2), 13)
    assert taken[3:] == [("copies", 4, 13), ("passed", 1, 6)]
    order.arrived(S, HOME, a_batch(7), 15)
    order.pass_on()
    assert len(taken) == 5, "a position after it would pass what went elsewhere"


def test_a_partition_far_ahead_of_a_target_that_takes_nothing_is_named_with_it() -> None:
    order, _ = _order(({OTHER: 1}, 1, 0))
    for offset in range(1, MOST_PARTS):
        assert not list(order.overdue())
        order.handed_out(S, HOME, Part({HOME: 1}, 0, offset))
    assert list(order.overdue()) == [(S, OTHER)]
