"""From a task's spec to a running task: assembly, adapter and host."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.api.records import SinkRecord, SourceRecord
from mm2py.api.schema import Schema, SchemaType
from mm2py.api.task import Delivery, Outgoing, Run
from mm2py.clock import SystemClock
from mm2py.config.framework import STRING_CONVERTER, FrameworkConfig
from mm2py.errors import FatalError, RetriableError
from mm2py.protocol.records import decode_batches
from mm2py.runtime.plugins.transforms.chain import TransformChain, TransformStep
from mm2py.runtime.tasks import record_task, task_assembly
from mm2py.runtime.tasks.errant_records import ErrantRecords
from mm2py.runtime.tasks.record_task import BATCH_BYTES, Conversion, RecordTaskAdapter
from mm2py.runtime.tasks.task_assembly import TaskAssembly
from mm2py.runtime.tasks.task_host import InProcessTaskHost
from mm2py.testing.waiting import until
from mm2py.types import TaskId, TopicPartition
from tests.unit.runtime.runtime_fakes import (
    AskingTask,
    BareTransform,
    EagerClock,
    FakeTask,
    HostStage,
    outgoing,
    spec_of,
    turns,
)

ORDERS = TopicPartition("orders", 0)
FIRST = TaskId("Fake", 0)


FILE = {"file": "a.txt"}


class Script:
    """A record task that returns what the test says."""

    def __init__(self, *rounds: Sequence[SourceRecord]) -> None:
        self.rounds = list(rounds)
        self.landed: list[tuple[object, int]] = []
        self.commits = 0
        self.stopped = False

    async def start(self) -> None:
        pass

    async def poll(self) -> Sequence[SourceRecord]:
        return self.rounds.pop(0) if self.rounds else ()

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        self.landed.append((record.value, target_offset))

    async def commit(self) -> None:
        self.commits += 1

    async def stop(self) -> None:
        self.stopped = True


def _record(line: int, topic: str = "t", *, value: bytes | None = None) -> SourceRecord:
    return SourceRecord(
        source_partition=FILE,
        source_offset={"line": line},
        topic=topic,
        partition=0,
        key=None,
        value=value if value is not None else str(line).encode(),
        headers=((b"h", None), (b"h", b"2")),
        timestamp_ms=-1 if line == 0 else 1_000 + line,
    )


def _lines() -> Script:
    return Script([_record(1), _record(2)])


async def test_a_refused_record_fails_a_record_task() -> None:
    task = _lines()
    stage = HostStage(task=task, acknowledge=False)
    await stage.start()
    await until(lambda: len(stage.senders[0].sent) == 1)
    stage.senders[0].refuse(stage.senders[0].sent[0].source, FatalError("too large"))
    await until(lambda: "FAILED" in stage.words())
    await stage.host.stop_task(FIRST, 1.0)


@pytest.mark.parametrize(("policy", "fails"), [("isolate", False), ("fail", True)])
async def test_the_partition_failure_policy_counts(policy: str, *, fails: bool) -> None:
    stage = HostStage(
        task=FakeTask([outgoing("orders", 0), outgoing("bills", 0)]), acknowledge=False
    )
    await stage.start(partition_failure_policy=policy)
    await until(lambda: len(stage.senders[0].sent) == 2)
    stage.senders[0].refuse(TopicPartition("orders", 0), FatalError("too large"))
    await turns(50)
    assert ("FAILED" in stage.words()) is fails
    await stage.host.stop_task(FIRST, 1.0)


async def test_starting_a_task_again_stops_the_old_one_first() -> None:
    task = FakeTask([outgoing("orders", 0)])
    stage = HostStage(task=task)
    await stage.start()
    await until(lambda: "RUNNING" in stage.words())
    await stage.start()
    assert task.stopped == 1
    await until(lambda: stage.words() == ["RUNNING", "UNASSIGNED", "RUNNING"])
    await stage.host.stop_task(FIRST, 1.0)


MARK = {"transforms": "m", "transforms.m.type": "Filter"}
CAST = MARK | {"transforms.m.type": "Cast$Value"}


@pytest.mark.parametrize(
    ("task", "connector", "text"),
    [
        (FakeTask(), {"gap.policy": "maybe"}, "gap.policy=maybe"),
        (FakeTask(), {"partition.failure.policy": "maybe"}, "partition.failure.policy=maybe"),
        (FakeTask(), MARK, "moves whole batches"),
        (_lines(), CAST, "transforms.m.type=Cast$Value: Class Cast$Value changes fields of struct"),
        (_lines(), {"exactly.once.support": "required"}, "this worker does not have exactly-once"),
    ],
)
async def test_a_task_that_cannot_be_put_together_is_failed_with_the_cause(
    task: FakeTask | Script, connector: dict[str, str], text: str
) -> None:
    stage = HostStage(task=task)
    await stage.start(**connector)
    status = stage.host.status(FIRST)
    assert status is not None
    assert text in str(status.cause)
    assert stage.words() == ["FAILED"]
    await stage.host.stop_task(FIRST, 1.0)
    assert stage.host.status(FIRST) is None


async def test_a_plug_in_that_fails_when_it_is_built_fails_its_task_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_config: object) -> Sequence[TransformStep]:
        raise KeyError("registry.url")

    monkeypatch.setattr(task_assembly, "steps_of", broken)
    stage = HostStage(task=_lines())
    await stage.start(**MARK)
    assert stage.words() == ["FAILED"]
    status = stage.host.status(FIRST)
    assert status is not None
    assert "registry.url" in str(status.cause)


async def test_a_commit_that_fails_in_a_task_is_only_logged_as_in_connect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(Script):
        async def commit(self) -> None:
            await super().commit()
            raise OSError("no acknowledgement upstream")

    task = Stubborn([_record(1)], [_record(2)])
    stage = HostStage(task=task)
    await stage.start()
    await until(lambda: task.commits > 0)
    await turns(20)
    assert stage.words() == ["RUNNING"]
    assert "no acknowledgement upstream" in caplog.text
    await stage.host.stop_task(FIRST, 5.0)


async def test_transforms_that_fail_at_the_end_keep_nothing_else_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stubborn(BareTransform):
        def close(self) -> None:
            super().close()
            raise OSError("it was open already")

    transforms = [Stubborn(lambda it: it), Stubborn(lambda it: it)]
    steps = [TransformStep("T", it, None, negate=False) for it in transforms]
    errant = ErrantRecords("c", 0, FrameworkConfig(), clock=EagerClock())
    script = Script([_record(1)])
    chain = TransformChain(steps, errant.transformed)
    adapter = RecordTaskAdapter(script, EagerClock(), chain=chain)
    await adapter.stop()
    assert script.stopped
    assert all(it.closed for it in transforms)
    assert caplog.text.count("it was open already") == 2


# ---- tasks that return ordinary records


def _adapter(
    script: Script, conversion: Conversion | None = None, chain: TransformChain | None = None
) -> tuple[RecordTaskAdapter, dict[TopicPartition, int]]:
    committed: dict[TopicPartition, int] = {}
    adapter = RecordTaskAdapter(script, EagerClock(), conversion, chain=chain)
    adapter.commit_through(committed.__setitem__)
    return adapter, committed


def _acknowledge(adapter: RecordTaskAdapter, item: Outgoing, base: int) -> None:
    (batch,) = item.batches
    adapter.acknowledged(item.source, batch.runs[-1][0] + batch.runs[-1][1] - 1)
    runs: list[Run] = []
    for first, count in batch.runs:
        runs.append(Run(first, count, base))
        base += count
    adapter.delivered(Delivery(item.source, item.target, tuple(runs), batch.size, 0))


async def test_records_become_one_batch_with_their_fields() -> None:
    adapter, _ = _adapter(Script([_record(0), _record(1)]))
    (item,) = await adapter.poll(1 << 20)
    assert item.target == TopicPartition("t", 0)
    (packed,) = item.batches
    (batch,) = decode_batches(packed.data)
    assert [record.value for record in batch.records] == [b"0", b"1"]
    assert [record.timestamp for record in batch.records] == [1_000_000, 1_001], "-1 is stamped"
    assert list(batch.records[0].headers) == [(b"h", None), (b"h", b"2")]


@pytest.mark.parametrize(("base", "landed"), [(70, [70, 71]), (-1, [-1, -1])])
async def test_each_record_is_told_where_it_landed(base: int, landed: list[int]) -> None:
    """-1: the broker has forgotten where the batch is."""
    script = Script([_record(1), _record(2)])
    adapter, committed = _adapter(script)
    (item,) = await adapter.poll(1 << 20)
    _acknowledge(adapter, item, base)
    assert script.landed == [*zip((b"1", b"2"), landed, strict=True)]
    ((key, position),) = committed.items()
    assert adapter.source_partition(key) == FILE
    assert adapter.source_offset(key, position) == {"line": 2}


async def test_a_position_waits_for_every_earlier_record_whatever_its_topic() -> None:
    script = Script([_record(1, "t"), _record(2, "u"), _record(3, "t")])
    adapter, committed = _adapter(script)
    to_t, to_u = await adapter.poll(1 << 20)
    assert to_t.batches[0].runs == ((0, 1), (2, 1))
    _acknowledge(adapter, to_t, 0)
    ((key, position),) = committed.items()
    assert adapter.source_offset(key, position) == {"line": 1}
    _acknowledge(adapter, to_u, 0)
    assert adapter.source_offset(key, committed[key]) == {"line": 3}


async def test_source_partitions_that_share_a_target_share_its_batches() -> None:
    records = [replace(_record(n), source_partition={"file": f"{n % 5}.txt"}) for n in range(1, 21)]
    script = Script(records)
    adapter, committed = _adapter(script)
    (item,) = await adapter.poll(1 << 20)
    (batch,) = item.batches
    assert batch.count == 20
    first = batch.runs[0][0]
    adapter.acknowledged(item.source, first + 9)
    adapter.delivered(Delivery(item.source, item.target, (Run(first, 10, 70),), 0, 0))
    assert script.landed == [(str(n).encode(), 69 + n) for n in range(1, 11)]
    lines = {
        str(adapter.source_partition(key)["file"]): adapter.source_offset(key, position)["line"]
        for key, position in committed.items()
    }
    assert lines == {"1.txt": 6, "2.txt": 7, "3.txt": 8, "4.txt": 9, "0.txt": 10}
    adapter.acknowledged(item.source, first + 19)
    assert adapter.source_offset(next(iter(committed)), 0) == {"line": 16}


async def test_large_rounds_are_split_into_batches_and_behind_an_empty_one_is_a_pause() -> None:
    big = b"x" * (BATCH_BYTES // 2)
    clock = EagerClock()
    adapter = RecordTaskAdapter(Script([_record(n, value=big) for n in range(1, 5)]), clock)
    items = await adapter.poll(1 << 20)
    assert [batch.count for item in items for batch in item.batches] == [1, 1, 1, 1]
    assert len({item.source for item in items}) == 1, "one lane, one order"
    assert not clock.sleeps
    assert await adapter.poll(1) == ()
    assert clock.sleeps, "a task that does not block does not spin"


def _conversion(**connector: str) -> Conversion:
    return Conversion.of(
        {"value.converter": "LongConverter"}, {"errors.tolerance": "none"} | connector
    )


def _number(line: int, value: object) -> SourceRecord:
    return replace(_record(line), value=value)


async def test_a_record_that_cannot_be_converted_fails_the_task() -> None:
    adapter = RecordTaskAdapter(Script([_number(1, "x")]), EagerClock(), _conversion())
    with pytest.raises(
        FatalError, match=r"record for t .*the value cannot be converted.*tolerance"
    ):
        await adapter.poll(1 << 20)


@pytest.mark.parametrize("tolerance", ["none", "all"])
async def test_a_name_that_no_topic_can_have_is_an_error_of_its_record(tolerance: str) -> None:
    script = Script([_record(1, "my topic"), _record(2, "")])
    adapter, committed = _adapter(script, _conversion(**{"errors.tolerance": tolerance}))
    if tolerance == "all":
        assert await adapter.poll(1 << 20) == []
        assert len(committed) == 1
        return
    with pytest.raises(FatalError, match=r"record for my topic .*no topic can have this name"):
        await adapter.poll(1 << 20)


async def test_a_tolerated_record_is_left_out_and_its_position_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script([_number(1, 1), _number(2, "x"), _number(3, "y")], [_number(4, "z")])
    adapter, committed = _adapter(script, _conversion(**{"errors.tolerance": "all"}))
    (item,) = await adapter.poll(1 << 20)
    assert committed == {}, "the one before is under way"
    _acknowledge(adapter, item, 0)
    ((key, last),) = committed.items()
    assert adapter.source_offset(key, last) == {"line": 3}
    assert await adapter.poll(1 << 20) == []
    assert adapter.source_offset(key, last) == {"line": 4}
    assert script.landed == [("x", -1), ("y", -1), (1, 0), ("z", -1)]
    assert len([it for it in caplog.messages if "left out" in it]) == 1, "never per record"


async def test_each_record_that_is_left_out_is_logged_itself_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = {
        "errors.tolerance": "all",
        "errors.log.enable": "true",
        "errors.log.include.messages": "true",
    }
    script = Script([_number(1, "x"), _number(2, "y" * 3_000)])
    adapter = RecordTaskAdapter(script, EagerClock(), _conversion(**asked))
    assert await adapter.poll(1 << 20) == []
    first, second = (it for it in caplog.messages if "left out" in it)
    assert "{'line': 1}" in first
    assert "value='x'" in first
    assert "..." in second
    assert len(second) < 2_500


def _chain(call: Callable[[SinkRecord], SinkRecord | None]) -> TransformChain:
    errant = ErrantRecords("c", 0, FrameworkConfig(), clock=EagerClock())
    return TransformChain(
        (TransformStep("T", BareTransform(call), None, negate=False),), errant.transformed
    )


async def test_transforms_drop_and_route_records_and_each_is_told_as_it_was() -> None:
    def change(record: SinkRecord) -> SinkRecord | None:
        if record.value == b"2":
            return None
        return record._replace(topic="u", value=b"new") if record.value == b"3" else record

    script = Script([_record(1), _record(2), _record(3)])
    adapter, committed = _adapter(script, chain=_chain(change))
    to_t, to_u = await adapter.poll(1 << 20)
    assert (to_t.target.topic, to_u.target.topic) == ("t", "u")
    (batch,) = decode_batches(to_u.batches[0].data)
    assert [(it.value, list(it.headers)) for it in batch.records] == [
        (b"new", [(b"h", None), (b"h", b"2")])
    ]
    _acknowledge(adapter, to_u, 5)
    assert not committed, "the first one is under way"
    _acknowledge(adapter, to_t, 0)
    ((key, position),) = committed.items()
    assert adapter.source_offset(key, position) == {"line": 3}
    assert script.landed == [(b"2", -1), (b"3", 5), (b"1", 0)], "as its task knows it"


async def test_a_task_of_records_ends_while_a_transform_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_task, "WORK_S", 0.01)
    asked = threading.Event()

    def busy(_record: SinkRecord) -> SinkRecord:
        asked.set()
        raise RetriableError("no registry")

    transform = BareTransform(busy)
    steps = (TransformStep("T", transform, None, negate=False),)

    def made(_config: object) -> Sequence[TransformStep]:
        return steps

    monkeypatch.setattr(task_assembly, "steps_of", made)
    stage = HostStage(task=_lines())
    parts = replace(stage.parts, clock=SystemClock())
    stage.host = InProcessTaskHost(TaskAssembly(parts), stage.changed, graceful_s=5)
    await stage.start(errors_retry_timeout="20000", errors_tolerance="all")
    await until(asked.is_set)
    await stage.host.stop_task(FIRST, 2.0)
    assert stage.words() == ["RUNNING", "UNASSIGNED"]
    assert "cut off" not in caplog.text
    assert "abandoned" not in caplog.text
    assert transform.closed
    assert not stage.store.written(), "the record is read again"


async def test_a_schema_stays_with_a_part_that_transforms_leave() -> None:
    schema = Schema(type=SchemaType.STRING)
    record = replace(_record(1), key="k", key_schema=schema, value="v", value_schema=schema)
    conversion = Conversion.of({}, {f"{it}.converter": STRING_CONVERTER for it in ("key", "value")})
    adapter, _ = _adapter(
        Script([record]), conversion, _chain(lambda it: it._replace(value=b"raw"))
    )
    (item,) = await adapter.poll(1 << 20)
    (batch,) = decode_batches(item.batches[0].data)
    assert [(it.key, it.value) for it in batch.records] == [(b"k", b"raw")]


# ---- the host in this process


BILLS = TopicPartition("bills", 0)
KEY = b'["Fake",{"cluster":"A","partition":0,"topic":"orders"}]'


@pytest.fixture
@asynccontextmanager
async def stage() -> AsyncGenerator[HostStage]:
    stage = HostStage()
    yield stage
    await stage.host.close()


async def quiet(stage: HostStage) -> None:
    """Let the loop turn long enough for several polls and commits."""
    before = len(stage.clock.sleeps)
    await until(lambda: len(stage.clock.sleeps) > before + 6)


async def test_a_paused_task_commits_what_it_sent_and_polls_no_more(stage: HostStage) -> None:
    task = await stage.started()
    sender = stage.senders[0]
    sender.acknowledge = False
    task.rounds.append([outgoing("orders", 0, 3)])
    await until(lambda: bool(sender.waiting))
    await stage.host.pause_task(FIRST, paused=True)
    await until(lambda: stage.words() == ["RUNNING", "PAUSED"])
    sender.acknowledge_all()
    polls = task.polls
    await until(lambda: stage.store.written().get(KEY) == b'{"offset":2}')
    await quiet(stage)
    assert task.polls == polls
    task.rounds.append([outgoing("orders", 3)])
    sender.acknowledge = True
    await stage.host.pause_task(FIRST, paused=False)
    await until(lambda: stage.store.written().get(KEY) == b'{"offset":3}')
    assert stage.words() == ["RUNNING", "PAUSED", "RUNNING"]


async def test_a_task_that_starts_paused_opens_nothing_until_it_goes_on(stage: HostStage) -> None:
    await stage.host.start_task(spec_of(0, paused=True))
    await until(lambda: stage.words() == ["PAUSED"])
    await turns(20)
    assert (stage.senders[0].started, stage.tasks[0].started) == (0, 0)
    await stage.host.pause_task(FIRST, paused=False)
    await until(lambda: stage.words() == ["PAUSED", "RUNNING"])
    assert (stage.senders[0].started, stage.tasks[0].started) == (1, 1)


async def test_a_task_that_waits_for_room_pauses_too(stage: HostStage) -> None:
    await stage.started()
    stage.senders[0].acknowledge = False
    stage.tasks[0].rounds.append([outgoing("orders", 0, size=1 << 20)])
    await until(lambda: bool(stage.senders[0].waiting))
    await stage.host.pause_task(FIRST, paused=True)
    await until(lambda: stage.words() == ["RUNNING", "PAUSED"])


async def test_pauses_hold_exactly_what_they_name_now_and_later(stage: HostStage) -> None:
    await stage.started(topics="orders,bills")
    stage.host.hold(frozenset({TopicPartition("orders", -1), BILLS, TopicPartition("x", 3)}))
    assert set(stage.tasks[0].held) == {ORDERS, BILLS}
    assert stage.meter.node_snapshot("me").partitions[0].state == "PAUSED"
    stage.host.hold(frozenset({BILLS}))
    assert stage.tasks[0].released == [ORDERS]
    await stage.started(1, topics="orders,bills")
    assert stage.tasks[1].held == [BILLS]
    stage.host.hold(frozenset())
    assert stage.tasks[1].released == [BILLS]
    assert {p.state for p in stage.meter.node_snapshot("me").partitions} == {"RUNNING"}


async def test_a_full_partition_that_is_paused_waits_for_both_to_end(stage: HostStage) -> None:
    task = await stage.started()
    sender = stage.senders[0]
    sender.acknowledge = False
    task.rounds.append([outgoing("orders", 0, size=5 << 20)])
    await until(lambda: task.held == [ORDERS])
    stage.host.hold(frozenset({ORDERS}))
    sender.acknowledge_all()
    assert task.released == []
    stage.host.hold(frozenset())
    assert task.released == [ORDERS]


async def test_a_task_starts_again_without_what_a_backfill_copies(stage: HostStage) -> None:
    await stage.started(topics="orders,bills")
    await stage.started(1, topics="other")
    stage.tasks[0].rounds.append([outgoing("orders", 0, 3)])
    await stage.host.keep_out(frozenset({ORDERS}))
    assert stage.tasks[0].stopped == 1
    assert stage.store.written().get(KEY) == b'{"offset":2}'  # committed before it let go
    assert stage.tasks[1].stopped == 0
    await until(lambda: stage.words() == ["RUNNING", "UNASSIGNED", "RUNNING"])
    again = stage.tasks[2]
    await stage.host.keep_out(frozenset({ORDERS}))  # nothing copies it: nothing happens
    assert again.stopped == 0
    again.take_over_errors.append(RetriableError("not now"))
    await stage.host.keep_out(frozenset())
    await until(lambda: again.taken_over == [ORDERS])
    assert again.stopped == 0


async def test_a_task_that_fails_lets_go_when_it_writes_nothing_more(
    stage: HostStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await stage.started()
    flushing, flushed = asyncio.Event(), asyncio.Event()

    async def flush(_timeout_s: float) -> bool:
        flushing.set()
        return await flushed.wait()

    monkeypatch.setattr(stage.senders[0], "flush", flush)
    task.rounds += [[outgoing("orders", 0, 3)], FatalError("no")]
    await flushing.wait()
    assert stage.words() == ["RUNNING", "FAILED"]
    letting_go = asyncio.create_task(stage.host.keep_out(frozenset({ORDERS})))
    await turns(20)
    assert not letting_go.done(), "a lane would write beside what is flushed"
    flushed.set()
    await letting_go
    assert stage.senders[0].closed == 1
    assert len(stage.tasks) == 1


async def taking_over(stage: HostStage) -> AskingTask:
    """Start a task and give a partition back to it, the position of which cannot be read yet."""
    await stage.host.keep_out(frozenset({ORDERS}))
    await stage.started(topics="orders,bills")
    task = stage.tasks[0]
    task.readable.clear()
    await stage.host.keep_out(frozenset())
    await until(lambda: task.take_overs == 1)
    return task


async def test_what_is_taken_over_holds_no_other_up_and_may_be_kept_out_again_meanwhile(
    stage: HostStage,
) -> None:
    task = await taking_over(stage)
    task.rounds.append([outgoing("bills", 0, 3)])
    polls = task.polls
    await until(lambda: not task.rounds and task.polls > polls + 3)
    await stage.host.keep_out(frozenset({ORDERS}))
    assert task.stopped == 1, "it would have copied what a lane copies"
    assert task.taken_over == []
    await stage.host.keep_out(frozenset())
    await until(lambda: stage.tasks[1].taken_over == [ORDERS])


async def test_what_is_paused_while_it_is_taken_over_is_not_read(stage: HostStage) -> None:
    task = await taking_over(stage)
    stage.host.hold(frozenset({ORDERS}))
    task.held.clear()
    task.readable.set()
    await until(lambda: task.taken_over == [ORDERS])
    assert task.held == [ORDERS]


async def test_a_task_that_starts_later_leaves_out_what_a_backfill_copies(stage: HostStage) -> None:
    await stage.host.keep_out(frozenset({ORDERS}))
    await stage.started(topics="orders,bills")
    states = {it.source: it.state for it in stage.meter.node_snapshot("me").partitions}
    assert states[ORDERS] == "HELD"
    await stage.host.keep_out(frozenset())
    await until(lambda: stage.tasks[0].taken_over == [ORDERS])
    assert len(stage.tasks) == 1
