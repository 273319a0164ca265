"""States and log lines on their way out of a task host: made there, read by the worker.

Flow: ``Status`` -> ``status_message`` -> pipe -> ``status_of``; ``LogRecord`` -> ``PipeLogHandler`` -> pipe
-> ``write_line``. Errors keep their class, text and causes; stack frames stay in the host unless it debugs.
"""

import logging
import traceback
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Final, final

from mm2py import errors
from mm2py.errors import Mm2pyError, PartitionError, ServerError
from mm2py.observability.logging import SecretMask, current_scope, log_scope
from mm2py.runtime.hosts.messages import LogLine, TaskStatus
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.types import TaskId

__all__ = ["PipeLogHandler", "status_message", "status_of", "write_line"]

MOST_CAUSES: Final = 10


class _HostTraceError(Mm2pyError):
    """The stack of an error in a task host."""


def status_message(task: TaskId, status: Status) -> TaskStatus:
    """Return the message of a state; its trace has one line per cause of the error."""
    error = status.cause
    if error is None:
        return TaskStatus(task=task, state=status.state)
    causes: list[str] = []
    cause = error.__cause__
    while cause is not None and len(causes) < MOST_CAUSES:
        causes.append(f"{type(cause).__name__}: {_flat(cause)}")
        cause = cause.__cause__
    return TaskStatus(
        task=task,
        state=status.state,
        error_kind=type(error).__name__,
        error_message=_flat(error),
        trace="\n".join(causes),
    )


def status_of(message: TaskStatus) -> Status:
    """Return the state, with an error of the same class, text and causes."""
    if not message.error_kind:
        return Status(message.state)
    lines = [line.partition(": ") for line in message.trace.split("\n") if line]
    chain = [_error(message.error_kind, message.error_message)]
    chain += [_error(kind, text) for kind, _, text in lines]
    for error, cause in pairwise(chain):
        error.__cause__ = cause
    return Status(message.state, chain[0])


def _error(kind: str, text: str) -> Exception:
    found: object = getattr(errors, kind, None)
    if not isinstance(found, type) or not issubclass(found, Mm2pyError):
        return _foreign(kind)(text)
    # Past the class's own constructor: what it was made from stays in the host, its text is complete.
    error = found.__new__(found)
    Mm2pyError.__init__(error, text)
    if isinstance(error, PartitionError):
        error.topic, error.partition, error.offset = "", -1, -1
    elif isinstance(error, ServerError):
        error.code, error.name = -1, ""
    return error


@cache
def _foreign(kind: str) -> type[Exception]:
    """Return a class of that name: half of a foreign error's message is its class."""
    return type(kind, (Exception,), {"__module__": __name__})


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())


@final
class PipeLogHandler(logging.Handler):
    """Sends every log line of the host to the worker.

    Args:
        post: sends a line, or leaves it out when the pipe is clogged.
        mask: what must never appear.
        debug: send stack traces too.
    """

    def __init__(
        self, post: Callable[[LogLine], None], mask: SecretMask, *, debug: bool = False
    ) -> None:
        super().__init__()
        self._post = post
        self._mask = mask
        self._debug = debug

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line; never raises into the code that logs, which may be a plug-in's."""
        try:
            text = record.getMessage()
        except Exception as failure:  # noqa: BLE001 - its arguments are a plug-in's
            text = f"{record.msg!r} cannot be formatted: {type(failure).__name__}: {failure}"
        trace = ""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            kind = "" if isinstance(error, Mm2pyError) else f"{type(error).__name__}: "
            text = f"{text}: {kind}{_flat(error)}"
            if self._debug:
                trace = "".join(traceback.format_exception(error))
        self._post(
            LogLine(
                level=record.levelname,
                logger=record.name,
                scope=self._clean(current_scope()),
                text=self._clean(text),
                trace=self._clean(trace),
            )
        )

    def _clean(self, text: str) -> str:
        # A plug-in's text may hold halves of characters, which no frame can.
        return self._mask.apply(text).encode("utf-8", "backslashreplace").decode()


def write_line(line: LogLine) -> None:
    """Log a host's line here, under its own scope; the worker's handlers mask it once more."""
    level = logging.getLevelNamesMapping().get(line.level, logging.INFO)
    logger = logging.getLogger(line.logger)
    if not logger.isEnabledFor(level):
        return
    scope = line.scope.strip().removeprefix("[").removesuffix("]")
    trace = _HostTraceError(line.trace) if line.trace else None
    with log_scope(*([scope] if scope else [])):
        logger.log(level, "%s", line.text, exc_info=trace)
