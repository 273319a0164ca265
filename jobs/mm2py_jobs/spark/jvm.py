"""The driver's JVM, and that it has ended by itself: one line instead of those of py4j and pyspark,
which have a traceback for each call and connection that was under way.

Flow: a call of Spark raises -> ``has_ended`` names the cause
(``mm2py_jobs.spark.session.cause_of``); what is only cleaned up is passed over (``unless_ended``).
"""

import logging
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from socket import socket
from socketserver import BaseServer
from typing import Final, Protocol

JVM_ENDED: Final = "Spark's JVM has ended, or does not answer any more"

_SAID_TWICE: Final = "Exception while sending command."


class Jvm(Protocol):
    """Spark's JVM by py4j, which names whatever is asked for."""

    def __getattr__(self, name: str) -> "Jvm": ...
    def __call__(self, *arguments: object) -> "Jvm": ...
    def __iter__(self) -> Iterator[int]: ...
    def __int__(self) -> int: ...


def has_ended(error: Exception) -> bool:
    """Whether an error of Spark means that its JVM does not answer: py4j itself failed, not what it
    called."""
    if "py4j" not in sys.modules:  # Spark Connect does without
        return False
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError)


@contextmanager
def unless_ended() -> Generator[None]:
    """Clean up what ends with the JVM, too: that it is gone already is no error."""
    try:
        yield
    except Exception as error:
        if not has_ended(error):
            raise


def say_it_once() -> None:
    """Let py4j not log what it raises, with a traceback, to the root logger; nor pyspark print one
    where the JVM closes the connection over which it has told of ended tasks."""
    logging.getLogger().addFilter(_is_news)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer

    for server in (AccumulatorTCPServer, AccumulatorUnixServer):
        # mypy takes the class for an instance.
        server.handle_error = _unless_closed  # type: ignore[assignment, method-assign]


def _unless_closed(
    server: BaseServer, request: socket | tuple[bytes, socket], client_address: object
) -> None:
    if not isinstance(sys.exception(), (EOFError, ConnectionError)):
        BaseServer.handle_error(server, request, client_address)


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != _SAID_TWICE
