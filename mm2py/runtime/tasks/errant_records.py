"""What happens to a record that cannot be processed: retried, skipped, sent to the dead letter
queue, or fatal (``errors.*``).

Flow: operation on a record -> ``ErrantRecords.attempt`` -> its result, or ``None`` for a record
that is skipped; it is counted, logged and sent to the dead letter queue (Java's
``RetryWithToleranceOperator``, ``LogReporter``, ``DeadLetterQueueReporter``; KIP-298, KIP-610).
Runs on the task's thread.
"""

import logging
import random
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeVar, final

from mm2py.api.records import SinkRecord
from mm2py.clock import Clock
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import FatalError, RefusedRecordError, RetriableError
from mm2py.observability.logging import SecretMask, cause_text
from mm2py.runtime.plugins.converters.converter import DataError
from mm2py.runtime.plugins.converters.registry import RecordConverters
from mm2py.runtime.tasks.lifecycle import trace_of

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_DELAY_MS: Final = 300
"""Java's ``RETRIES_DELAY_MIN_MS``."""

LONG_S: Final = 10.0
"""A record that has been tried again for so long is reported."""

SINK_TASK: Final = "org.apache.kafka.connect.sink.SinkTask"
"""What Java names for a record that a task has reported itself."""

_HEADER: Final = "__connect.errors."
_JAVA_NAMES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (DataError, "org.apache.kafka.connect.errors.DataException"),
    (RetriableError, "org.apache.kafka.connect.errors.RetriableException"),
)


class TaskEndsError(FatalError):
    """A record was to be tried again when its task ended: it is neither processed nor left out, and
    the next owner reads it again.

    Java leaves it out there, and commits past it.
    """


class Stage(StrEnum):
    """Where a record was (Java's class of the same name)."""

    TASK_PUT = "TASK_PUT"
    TRANSFORMATION = "TRANSFORMATION"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"


class Operation(NamedTuple):
    """What was done with a record, and by which class."""

    stage: Stage
    class_name: str


class DeadLetterQueue(Protocol):
    """A topic that keeps what could not be processed."""

    async def create(self) -> None:
        """Create the topic with one partition where it is missing; ``RetriableError``: not now."""
        ...

    def send(self, record: SinkRecord, headers: tuple[tuple[str, bytes], ...]) -> None:
        """Send the raw bytes of a record with its own headers and these."""
        ...

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged; ``FatalError``: it was refused."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@final
class ErrantRecords:
    """The errors of one task's records.

    Args:
        connector, task: whose they are, for headers.
        queue: where such records are kept, None without a dead letter queue.
        context_headers: ``errors.deadletterqueue.context.headers.enable``.
        mask: hides secrets of the task's configs in those headers.
        chance: a number from 0 to 1, for the pauses beyond the longest one.
    """

    def __init__(
        self,
        connector: str,
        task: int,
        errors: FrameworkConfig,
        *,
        clock: Clock,
        queue: DeadLetterQueue | None = None,
        context_headers: bool = False,
        mask: SecretMask | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._errors = errors
        self._connector, self._task, self._clock = connector, task, clock
        self._queue, self._context_headers, self._chance = queue, context_headers, chance
        self._mask = mask or SecretMask()
        self.skipped = self.kept = 0
        """Records that were left out, and that were sent to the dead letter queue."""
        self.tried_again = ""
        """Why a record has been tried again for ``LONG_S``, empty where none has; for other
        threads."""
        self.stopping: threading.Event = threading.Event()
        """Ends the pauses between attempts; the loop's own."""
        self._all = errors.errors_tolerance == "all"

    async def open(self) -> None:
        """Create the dead letter queue's topic; ``RetriableError``: not now."""
        if self._queue is not None:
            await self._queue.create()

    def attempt(
        self,
        stage: Stage,
        class_name: str,
        record: SinkRecord,
        call: Callable[[SinkRecord], T],
    ) -> T | None:
        """Return what a class makes of a record at a stage, None where the record is left out. Once
        per record and step.

        Raises:
            FatalError: it cannot be processed and ``errors.tolerance=none``.
            TaskEndsError: the task ends before that is known.
        """
        # The usual way, without a loop or a deadline: it is called per record.
        try:
            return call(record)
        except Exception as error:  # noqa: BLE001 - transforms and converters are plug-ins: tolerance decides
            first = error
        try:
            return self._retried(record, call, first)
        except TaskEndsError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(Operation(stage, class_name), record, error)
            return None
        finally:
            self.tried_again = ""

    def transformed(
        self,
        class_name: str,
        record: SinkRecord,
        call: Callable[[SinkRecord], SinkRecord | None],
    ) -> SinkRecord | None:
        """Return what a transform makes of a record, None where it drops it or ``errors.tolerance``
        does."""
        return self.attempt(Stage.TRANSFORMATION, class_name, record, call)

    def converted(self, converters: RecordConverters, record: SinkRecord) -> SinkRecord | None:
        """Return a record with key, value and headers converted, None where ``errors.tolerance``
        leaves it out."""
        current: SinkRecord | None = record
        for stage, converter, call in (
            (Stage.KEY_CONVERTER, converters.key, converters.decoded_key),
            (Stage.VALUE_CONVERTER, converters.value, converters.decoded_value),
            (Stage.HEADER_CONVERTER, converters.header, converters.decoded_headers),
        ):
            if current is None:
                return None
            current = self.attempt(stage, converter.java_class, current, call)
            if current is not None and current is not record:
                # What the dead letter queue gets is the record as it was read (KIP-298).
                current = current._replace(raw=record)
        return current

    def put_failed(self, record: SinkRecord, error: Exception) -> None:
        """Take a record that the task itself could not deliver; ``RefusedRecordError`` with
        ``errors.tolerance=none``."""
        self._failed(Operation(Stage.TASK_PUT, SINK_TASK), record, error)

    def flush(self) -> None:
        """Wait until skipped records are in the dead letter queue: no position after them may be
        committed before."""
        if self._queue is not None:
            self._queue.flush()

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()

    def _retried(self, record: SinkRecord, call: Callable[[SinkRecord], T], error: Exception) -> T:
        """Retry after a first failure until ``errors.retry.timeout``, or raise it."""
        limit_ms = self._errors.errors_retry_timeout
        began_s = self._clock.monotonic()
        deadline_s = began_s + limit_ms / 1000
        delay_ms = float(FIRST_DELAY_MS)
        while True:
            left_ms = (deadline_s - self._clock.monotonic()) * 1000
            # Java's ``execAndRetry``: only RetriableException is retried, up to
            # ``errors.retry.timeout``; -1 is without end.
            if not isinstance(error, RetriableError) or (limit_ms >= 0 and left_ms <= 0):
                raise error
            if self.stopping.is_set():
                text = f"{_place(record)}: the task ends while it is tried again"
                raise TaskEndsError(text) from error
            longest_ms = self._errors.errors_retry_delay_max_ms
            # Java's ``backoff``: doubling from 300 ms, beyond the limit a random part of it.
            pause_ms = delay_ms if delay_ms <= longest_ms else self._chance() * longest_ms
            if limit_ms >= 0:
                pause_ms = min(pause_ms, left_ms)
            if self._clock.monotonic() - began_s >= LONG_S:
                self.tried_again = f"{_place(record)} is tried again: {cause_text(error)}"
            self.stopping.wait(pause_ms / 1000)
            delay_ms *= 2
            try:
                return call(record)
            except Exception as again:  # noqa: BLE001 - as the first one
                error = again

    def _failed(self, operation: Operation, record: SinkRecord, error: Exception) -> None:
        raw = record.raw or record
        # Java's order of reporters: log, then dead letter queue, also where the tolerance then
        # fails the task.
        if self._errors.errors_log_enable:
            log.error("%s", self._described(operation, raw, error))
        if self._queue is not None:
            self.kept += 1
            self._queue.send(raw, self._headers(operation, raw, error))
        if not self._all:
            # Where it is in the queue each start would put it there again.
            is_final = operation.stage is Stage.TASK_PUT or self._queue is not None
            raise (RefusedRecordError if is_final else FatalError)(
                f"{_place(raw)}: Tolerance exceeded in error"
                f" handler ({operation.stage} by {operation.class_name}): {error}",
                remedy="cure the cause and restart the task, or set errors.tolerance=all to leave "
                "such records out",
            ) from error
        self.skipped += 1
        if self.skipped == 1 and not self._errors.errors_log_enable:
            log.warning(
                "a record is left out (errors.tolerance=all), later ones are only counted cause=%s",
                error,
            )

    def _described(self, operation: Operation, raw: SinkRecord, error: Exception) -> str:
        text = (
            f"Error encountered in task {self._connector}-{self._task}. Executing stage "
            f"'{operation.stage}' with class '{operation.class_name}'"
        )
        if self._errors.errors_log_include_messages:
            text += (
                f", where consumed record is {{topic='{raw.original_topic}', "
                f"partition={raw.original_partition},"
                f" offset={raw.offset}, timestamp={raw.timestamp_ms}}}"
            )
        return f"{text}. cause={error}"

    def _headers(
        self, operation: Operation, raw: SinkRecord, error: Exception
    ) -> tuple[tuple[str, bytes], ...]:
        if not self._context_headers:
            return ()
        texts = {
            "topic": raw.original_topic,
            "partition": str(raw.original_partition),
            "offset": str(raw.offset),
            "connector.name": self._connector,
            "task.id": str(self._task),
            "stage": operation.stage.value,
            "class.name": operation.class_name,
            "exception.class.name": next(
                (name for kind, name in _JAVA_NAMES if isinstance(error, kind)),
                f"{type(error).__module__}.{type(error).__qualname__}",
            ),
            "exception.message": self._mask.apply(str(error)),
            "exception.stacktrace": self._mask.apply(trace_of(error)),
        }
        return tuple((_HEADER + name, text.encode()) for name, text in texts.items())


def _place(record: SinkRecord) -> str:
    read = record.raw or record
    return f"{read.original_topic}-{read.original_partition} offset {read.offset}"
