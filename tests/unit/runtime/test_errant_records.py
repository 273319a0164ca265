"""``errors.*`` of a sink: what is tried again, left out, logged and kept."""

import logging
from collections.abc import Callable

import pytest

from mm2py.api.records import SinkRecord
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import FatalError, RetriableError
from mm2py.runtime.plugins.converters.converter import DataError
from mm2py.runtime.tasks.errant_records import ErrantRecords, Stage
from tests.unit.runtime.runtime_fakes import EagerClock
from tests.unit.runtime.sink_fakes import T0, a_record

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
    def __init__(self, *, headers: bool = True, **texts: str) -> None:
        props = {name.replace("_", "."): text for name, text in texts.items()}
        self.queue, self.clock = Queue(), EagerClock()
        self.errant = ErrantRecords(
            "files",
            3,
            parse_config(FrameworkConfig, props),
            clock=self.clock,
            queue=self.queue,
            context_headers=headers,
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
    assert stand.errant.counters.total_records_skipped == 0


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
    counters = stand.errant.counters
    assert (counters.total_record_failures, counters.total_record_errors) == (1, 1)
    assert (counters.total_records_skipped, counters.total_errors_logged) == (1, 0)
    assert counters.deadletterqueue_produce_requests == 1
    assert counters.last_error_timestamp == stand.clock.now_ms()


def test_what_was_read_is_kept_not_what_became_of_it() -> None:
    stand = Stand(headers=False, errors_tolerance="all")
    read = a_record(T0, 4, b"raw")
    stand.errant.put_failed(read._replace(value="made", raw=read), FatalError("no"))
    assert stand.queue.kept == [(read, {})]


def test_a_retriable_error_is_tried_again_for_the_retry_timeout_with_connects_pauses() -> None:
    stand = Stand(
        errors_tolerance="all", errors_retry_timeout="2000", errors_retry_delay_max_ms="1000"
    )
    assert stand.attempt(failing(*(RetriableError("busy") for _ in range(9)))) is None
    # 300 doubled; beyond the longest a random part of it; cut at the end of the time.
    assert stand.pauses.waits == [0.3, 0.6, 0.5, 0.5, 0.1]
    assert stand.errant.counters.total_retries == 5


def test_a_retry_that_succeeds_leaves_no_error() -> None:
    stand = Stand(errors_retry_timeout="-1")
    assert stand.attempt(failing(*(RetriableError("busy") for _ in range(3)))) == 4
    assert stand.errant.counters.total_record_errors == 0
    assert stand.errant.counters.total_record_failures == 3


def test_retries_end_when_the_task_stops() -> None:
    stand = Stand(errors_retry_timeout="-1")
    stand.pauses.stopped = True
    with pytest.raises(FatalError, match="busy"):
        stand.attempt(failing(RetriableError("busy")))


def test_without_a_timeout_nothing_is_tried_again() -> None:
    stand = Stand(errors_tolerance="all")
    assert stand.attempt(failing(RetriableError("busy"))) is None
    assert stand.pauses.waits == []


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
    assert stand.errant.counters.total_errors_logged == 1


def test_a_commit_waits_until_what_was_left_out_is_kept() -> None:
    stand = Stand()
    stand.errant.flush()
    assert stand.queue.flushed == 1
