"""A sink task from its spec: put together, run on its thread, and seen by its host."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest

from mm2py.api.records import SinkRecord
from mm2py.api.sink import SinkTaskContext
from mm2py.clock import SystemClock
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig, SinkFrameworkConfig
from mm2py.errors import FatalError, RefusedRecordError, RetriableError
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.runtime.plugins.converters.converter import DataError
from mm2py.runtime.plugins.transforms.chain import TransformChain, steps_of
from mm2py.runtime.tasks import task_assembly, worker_sink_task
from mm2py.runtime.tasks.errant_records import DeadLetterQueue, ErrantRecords, Stage
from mm2py.runtime.tasks.sink_loop import AssignmentListener, ConsumerFactory
from mm2py.runtime.tasks.task_assembly import SinkClients, TaskAssembly
from mm2py.runtime.tasks.task_host import InProcessTaskHost, TaskSpec
from mm2py.testing.waiting import eventually
from mm2py.types import State, TaskId, TopicPartition
from tests.unit.runtime.runtime_fakes import (
    FLOW,
    T0,
    EagerClock,
    Events,
    FakeConsumer,
    FakeGroup,
    HostStage,
    RecordingTask,
    a_record,
    spec_of,
)
from tests.unit.runtime.test_validation import MIRROR, WORKER, errors, infos

TASK = TaskId("Fake", 0)


def _breathe() -> None:
    """Let the event loop's thread run: a fake poll does not wait for a broker."""
    threading.Event().wait(0.001)


class Clients(SinkClients):
    def __init__(self, group: FakeGroup) -> None:
        self.group = group
        self.consumers: list[FakeConsumer] = []
        self.sources: list[Mapping[str, str] | None] = []

    def consumer(self, spec: TaskSpec, source: Mapping[str, str] | None) -> ConsumerFactory:
        self.sources.append(source)

        def open_it(listener: AssignmentListener) -> FakeConsumer:
            consumer = FakeConsumer(self.group, listener)
            consumer.give(T0)
            consumer.on_poll = _breathe
            self.consumers.append(consumer)
            return consumer

        return open_it

    def dead_letters(self, spec: TaskSpec, config: SinkFrameworkConfig) -> DeadLetterQueue:
        raise AssertionError("no dead letter queue is configured")


class SinkStage(HostStage):
    """A host whose task is a sink on a thread, by the real clock."""

    def __init__(self, *, in_child: bool = True) -> None:
        super().__init__()
        self.sink, self.group = RecordingTask(), FakeGroup(p0=10)
        self.clients, self.contexts = Clients(self.group), list[SinkTaskContext]()
        stage = self

        class Factory:
            java_class: ClassVar[str] = "org.example.FileSinkConnector"
            plugin_type: ClassVar[str] = "sink"

            def __init__(self, config: Mapping[str, str]) -> None:
                self.config = config

            def open_sink_task(
                self, config: Mapping[str, str], context: SinkTaskContext
            ) -> RecordingTask:
                stage.contexts.append(context)
                return stage.sink

        self.parts.plugins._loaded["FakeConnector"] = Factory  # type: ignore[assignment]  # a factory in the shape of a class
        clock = SystemClock()
        self.meter = Metrics(clock).flow(FLOW)
        self.parts = replace(
            self.parts,
            clock=clock,
            meter=self.meter,
            offset_flush_interval_ms=20,
            sinks=self.clients if in_child else None,
        )
        self.host = InProcessTaskHost(TaskAssembly(self.parts), self.changed, graceful_s=5)

    async def start(self, **connector: str) -> None:
        await super().start(topics="t", **connector)


async def test_a_sink_task_reads_commits_is_measured_and_ends_in_order() -> None:
    stage = SinkStage()
    await stage.start()
    await eventually(lambda: stage.group.committed == {T0: 10})
    await eventually(lambda: stage.meter.partition(T0).lag_records == 0)
    assert stage.clients.sources == [None]
    assert stage.clients.consumers[0].subscribed == ("t",)
    assert stage.meter.partition(T0).records == 10
    assert stage.meter.partition(T0).task == "Fake-0"
    assert stage.topics == [(TASK, "t")]
    await stage.host.stop_task(TASK, 5.0)
    assert stage.words() == ["RUNNING", "UNASSIGNED"]
    assert stage.sink.calls == ["start", "open t-0", "close t-0", "stop"]
    assert stage.clients.consumers[0].closed
    assert stage.meter.partitions == ()


async def test_a_position_behind_a_loss_is_committed_once_the_ledger_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_assembly, "MIRROR_SINK_CONNECTOR", "FakeConnector")
    stage, ledger = SinkStage(), Events()
    ledger.slow = True
    stage.parts = replace(stage.parts, events=ledger)
    stage.host = InProcessTaskHost(TaskAssembly(stage.parts), stage.changed, graceful_s=5)
    stage.group.committed, stage.group.starts = {T0: 2}, {T0: 5}
    await stage.start()
    await eventually(lambda: len(stage.sink.taken) == 5)
    polls = len(stage.clients.consumers[0].polls)
    await eventually(lambda: len(stage.clients.consumers[0].polls) > polls + 200)
    assert [(it.first_offset, it.last_offset) for it in ledger.reported] == [(2, 4)]
    assert stage.group.committed == {T0: 2}
    ledger.slow = False
    await eventually(lambda: stage.group.committed == {T0: 10})
    await stage.host.stop_task(TASK, 5.0)


async def test_a_sink_task_that_fails_says_why_and_leaves_its_group() -> None:
    stage = SinkStage()
    stage.sink.put_errors = [FatalError("disk full")]
    await stage.start()
    await eventually(lambda: "FAILED" in stage.words())
    status = stage.host.status(TASK)
    assert status is not None
    assert str(status.cause) == "disk full"
    assert stage.clients.consumers[0].closed
    assert stage.group.committed == {}
    await stage.host.stop_task(TASK, 5.0)
    assert stage.words()[-1] == "FAILED"


async def test_a_sink_task_that_is_paused_before_its_start_opens_nothing() -> None:
    stage = SinkStage()
    await stage.host.start_task(spec_of(0, paused=True, connector={"topics": "t"}))
    await eventually(lambda: stage.words() == ["PAUSED"])
    await stage.host.stop_task(TASK, 5.0)
    assert stage.sink.calls == []
    assert stage.clients.consumers == []


async def test_a_plug_in_that_does_not_come_back_is_given_up_after_its_time() -> None:
    stuck, entered = threading.Event(), threading.Event()
    stage = SinkStage()

    def put(_records: object) -> None:
        entered.set()
        stuck.wait(100)

    stage.sink.put = put  # type: ignore[method-assign,assignment]
    await stage.start()
    await eventually(entered.is_set)
    await stage.host.stop_task(TASK, 0.1)
    assert stage.words()[-1] == State.UNASSIGNED.value
    stuck.set()


@pytest.mark.parametrize("call", ["put", "commit"])
async def test_while_a_call_does_not_return_the_lag_is_unknown_and_the_flow_says_so(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(worker_sink_task, "STANDSTILL_S", 0.2)
    stage, stuck, back = SinkStage(), threading.Event(), threading.Event()

    def held(*_arguments: object) -> Mapping[TopicPartition, str]:
        stuck.set()
        back.wait(100)
        return {}

    await stage.start()
    await eventually(lambda: stage.meter.partition(T0).lag_records == 0)
    with monkeypatch.context() as patch:
        patch.setattr(stage.sink if call == "put" else stage.clients.consumers[0], call, held)
        stage.group.ends[T0] = 20
        await eventually(stuck.is_set)
        await eventually(lambda: [it.what for it in stage.meter.findings] == ["thread"])
        assert stage.meter.partition(T0).lag_records == -1
    back.set()
    await eventually(lambda: stage.meter.partition(T0).lag_records == 0)
    assert stage.meter.findings == ()
    await stage.host.stop_task(TASK, 5.0)


async def test_a_sink_needs_a_process_of_its_own() -> None:
    stage = SinkStage(in_child=False)
    await stage.start()
    status = stage.host.status(TASK)
    assert status is not None
    assert "set task.host.processes to at least 1" in str(status.cause)


async def test_records_that_are_left_out_are_counted_where_the_flow_is_shown() -> None:
    stage = SinkStage()

    def put(records: Sequence[SinkRecord]) -> None:
        for record in records:
            stage.contexts[0].report(record, FatalError("too large"))

    stage.sink.put = put  # type: ignore[method-assign]
    await stage.start(errors_tolerance="all")
    await eventually(lambda: stage.group.committed == {T0: 10})
    await eventually(lambda: [it.count for it in stage.meter.findings] == [10])
    (finding,) = stage.meter.findings
    assert "10 records are left out" in finding.text
    assert not finding.harms
    await stage.host.stop_task(TASK, 5.0)
    assert stage.meter.findings == ()


# ---- sinks with exactly-once support


@pytest.mark.parametrize(
    ("own", "enabled", "key"),
    [
        ({"copy.connector": "sink"}, True, "copy.connector"),
        ({"exactly.once.support": "required"}, True, "exactly.once.support"),
        ({"exactly.once.support": "required"}, False, "exactly.once.support"),
        ({}, True, ""),
        ({"copy.connector": "sink"}, False, ""),
    ],
)
def test_it_is_refused_at_the_key_that_asks_for_it(
    own: dict[str, str], enabled: bool, key: str
) -> None:
    worker = WORKER | {"exactly.once.source.support": "enabled" if enabled else "disabled"}
    found = infos(MIRROR | own, worker)
    wrong = errors(found)
    assert list(wrong) == ([key] if key else [])
    assert found.error_count == len(wrong)
    for (text,) in wrong.values():
        assert "at least once" in text
        assert "copy.connector=source" in text


# ---- errant records


CONVERTER = "com.example.Converter"


class Queue:
    def __init__(self) -> None:
        self.kept: list[tuple[SinkRecord, dict[str, str]]] = []
        self.flushed = 0

    async def create(self) -> None:
        pass

    def send(self, record: SinkRecord, headers: tuple[tuple[str, bytes], ...]) -> None:
        self.kept.append((record, {name: text.decode() for name, text in headers}))

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        pass


class Pauses:
    """Stands in place of the stop event: waiting takes no time but moves the clock."""

    def __init__(self, clock: EagerClock) -> None:
        self.clock, self.waits = clock, list[float]()
        self.stopped = False

    def is_set(self) -> bool:
        return self.stopped

    def wait(self, seconds: float) -> bool:
        self.waits.append(round(seconds, 3))
        self.clock.seconds += seconds
        return False


class Stand:
    def __init__(self, *, headers: bool = True, keeps: bool = True, **texts: str) -> None:
        props = {name.replace("_", "."): text for name, text in texts.items()}
        self.queue, self.clock = Queue(), EagerClock()
        self.errant = ErrantRecords(
            "files",
            3,
            parse_config(FrameworkConfig, props),
            clock=self.clock,
            queue=self.queue if keeps else None,
            context_headers=headers,
            mask=SecretMask(["hunter2-secret"]),
            chance=lambda: 0.5,
        )
        self.pauses = Pauses(self.clock)
        self.errant.stopping = self.pauses  # type: ignore[assignment]

    def attempt(
        self, call: Callable[[SinkRecord], object], record: SinkRecord | None = None
    ) -> object:
        record = record or a_record(T0, 4)
        return self.errant.attempt(Stage.VALUE_CONVERTER, CONVERTER, record, call)


def failing(*errors: Exception) -> Callable[[SinkRecord], object]:
    left = list(errors)

    def call(record: SinkRecord) -> object:
        if left:
            raise left.pop(0)
        return record.offset

    return call


def test_without_tolerance_the_record_is_kept_and_the_task_fails_with_its_place() -> None:
    stand = Stand()
    with pytest.raises(
        FatalError, match=r"t-0 offset 4: Tolerance exceeded in error handler .*VALUE_CONVERTER"
    ):
        stand.attempt(failing(DataError("no JSON")))
    assert len(stand.queue.kept) == 1
    assert stand.errant.skipped == 0


@pytest.mark.parametrize(
    ("keeps", "is_put", "ends"),
    [
        (False, True, RefusedRecordError),
        (True, False, RefusedRecordError),
        (False, False, FatalError),
    ],
    ids=["refused by the target", "kept already", "not converted"],
)
def test_what_each_start_would_send_once_more_ends_the_task_for_good(
    *, keeps: bool, is_put: bool, ends: type[FatalError]
) -> None:
    stand, error = Stand(keeps=keeps), DataError("too large")
    put = partial(stand.errant.put_failed, a_record(T0, 4), error)
    with pytest.raises(FatalError) as caught:
        (put if is_put else partial(stand.attempt, failing(error)))()
    assert type(caught.value) is ends


def test_with_tolerance_it_is_left_out_counted_and_kept_with_connects_headers() -> None:
    stand = Stand(errors_tolerance="all")
    assert stand.attempt(failing(DataError("no JSON"))) is None
    ((record, headers),) = stand.queue.kept
    assert record == a_record(T0, 4)
    assert headers.pop("__connect.errors.exception.stacktrace").startswith("DataError: no JSON")
    assert headers == {
        "__connect.errors.topic": "t",
        "__connect.errors.partition": "0",
        "__connect.errors.offset": "4",
        "__connect.errors.connector.name": "files",
        "__connect.errors.task.id": "3",
        "__connect.errors.stage": "VALUE_CONVERTER",
        "__connect.errors.class.name": "com.example.Converter",
        "__connect.errors.exception.class.name": "org.apache.kafka.connect.errors.DataException",
        "__connect.errors.exception.message": "no JSON",
    }
    assert (stand.errant.skipped, stand.errant.kept) == (1, 1)


def test_what_an_error_says_is_kept_without_secrets_and_with_any_character() -> None:
    stand = Stand(errors_tolerance="all")
    stand.attempt(failing(DataError("\udcff at https://u:hunter2-secret@registry")))
    ((_, headers),) = stand.queue.kept
    assert headers["__connect.errors.exception.message"] == "\\udcff at https://u:[hidden]@registry"
    assert "hunter2" not in headers["__connect.errors.exception.stacktrace"]


def test_what_was_read_is_kept_not_what_became_of_it() -> None:
    stand = Stand(headers=False, errors_tolerance="all")
    read = a_record(T0, 4, b"raw")
    stand.errant.put_failed(read._replace(value="made", raw=read), FatalError("no"))
    assert stand.queue.kept == [(read, {})]


def test_an_error_of_a_later_step_keeps_the_record_as_it_was_read() -> None:
    stand = Stand(headers=False, errors_tolerance="all")
    config = {
        "transforms": "a,b", "transforms.a.type": "InsertHeader", "transforms.a.header": "n",
        "transforms.a.value.literal": "1", "transforms.b.type": "TimestampRouter",
    }  # fmt: skip
    bare = a_record(T0, 3)._replace(timestamp_ms=-1)
    assert TransformChain(steps_of(config), stand.errant.transformed).apply(bare) is None
    assert stand.queue.kept == [(bare, {})]


def test_a_retriable_error_is_tried_again_for_the_retry_timeout_with_connects_pauses() -> None:
    stand = Stand(
        errors_tolerance="all", errors_retry_timeout="2000", errors_retry_delay_max_ms="1000"
    )
    assert stand.attempt(failing(*(RetriableError("busy") for _ in range(9)))) is None
    # 300 doubled; beyond the longest a random part of it; cut at the end of the time.
    assert stand.pauses.waits == [0.3, 0.6, 0.5, 0.5, 0.1]


def test_a_retry_that_succeeds_leaves_no_error() -> None:
    stand = Stand(errors_retry_timeout="-1")
    assert stand.attempt(failing(*(RetriableError("busy") for _ in range(3)))) == 4
    assert (stand.errant.skipped, len(stand.pauses.waits)) == (0, 3)


@pytest.mark.parametrize("place", [False, True])
def test_each_error_is_logged_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture, *, place: bool
) -> None:
    stand = Stand(
        errors_tolerance="all",
        errors_log_enable="true",
        errors_log_include_messages="true" if place else "false",
    )
    with caplog.at_level(logging.ERROR):
        stand.attempt(failing(DataError("no JSON")))
    (line,) = [it.getMessage() for it in caplog.records]
    assert line.startswith(
        "Error encountered in task files-3. Executing stage 'VALUE_CONVERTER' with class 'com.example.Converter'"
    )
    assert ("{topic='t', partition=0, offset=4, timestamp=1004}" in line) is place


def test_a_commit_waits_until_what_was_left_out_is_kept() -> None:
    stand = Stand()
    stand.errant.flush()
    assert stand.queue.flushed == 1
