"""The errors that cross the product's layers, as one tree; one that a single package raises is
defined beside its module.

::

    Mm2pyError
    |-- ConfigError             what the user wrote cannot be run: refuse to start (exit code 1)
    |   `-- UsageError          the command line itself is wrong (exit code 2)
    |-- RetriableError          try again after a pause; the worker owns the back-off
    |   |-- ConnectionFailedError   no connection, or it was lost: outcome of requests unknown
    |   |-- RequestTimedOutError    no answer in time: outcome unknown
    |   |-- RetriableServerError    the broker said "not now" (carries its code)
    |   |-- TargetMovedError        a predecessor's late write moved a target log: read it again
    |   `-- TransactionAbortedError nothing of a transaction counts: its task starts again where it began
    |-- FatalError              trying again changes nothing: the task or flow fails
    |   |-- AuthenticationError
    |   |-- ProducerFencedError     a newer producer has our transactional id
    |   |-- RefusedRecordError      a record ends its task, which is not started again by itself
    |   |-- UnsupportedVersionError
    |   |-- UnsendableError         no request can carry this name or value: the callers of many leave it out
    |   `-- FatalServerError        the broker refused (carries its code)
    |-- PartitionError          one partition fails with its cause; the others continue
    `-- ProtocolError           a peer sent bytes that are not Kafka's protocol

The class answers who is at fault and what happens next; the message has what and where; ``remedy``
is one sentence that the operator can act on.

An error reaches displays as its text, through task hosts, other workers and Connect's statuses:
``is_away`` and ``command_in`` say there what it is about.
"""

import re
import shlex
from typing import Final

NO_ANSWER: Final = "does not answer"
UNREACHABLE: Final = "can be reached"
NO_CONNECTION: Final = "no connection to"
SILENT: Final = "has answered for"
"""Words of the causes that a cluster or broker is away; whoever writes such a cause takes them from
here."""

_QUOTED: Final = r"""'[^']*'|"[^"]*\""""
_COMMAND: Final = re.compile(rf"kafka-[a-z-]+\.sh --(?:{_QUOTED}|[^;'\"])*(?:{_QUOTED}|[^;'\".\s])")
"""A command of Kafka's own tools with its options, names quoted; a text has it at its end, or
before a semicolon."""


def is_away(cause: str) -> bool:
    """Tell whether a cause is a cluster or broker that cannot be reached."""
    return any(words in cause for words in (NO_ANSWER, UNREACHABLE, NO_CONNECTION, SILENT))


def command_in(cause: str) -> str:
    """Return the command in a cause's remedy that mends it, empty where there is none.

    It is copied into a shell, and before it the cause has names of others: it is the last one, and
    nothing in it is more than a word.
    """
    found = _COMMAND.findall(cause)
    try:
        return found[-1] if found and shlex.join(shlex.split(found[-1])) == found[-1] else ""
    except ValueError:  # a quote that is not closed
        return ""


class Mm2pyError(Exception):
    """Base of all errors that this product raises on purpose.

    ``str(error)`` is one line: the message, then the remedy where there is one.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class ConfigError(Mm2pyError):
    """A property, file or pattern that cannot be run; names property, file and line."""


class UsageError(ConfigError):
    """The command line is wrong; the process ends with exit code 2."""


class RetriableError(Mm2pyError):
    """Try again after a pause."""


class ConnectionFailedError(RetriableError):
    """No connection to a broker, or it was lost; what was in flight has an unknown outcome."""


class RequestTimedOutError(RetriableError):
    """The broker did not answer in time; the outcome of the request is unknown."""


class TargetMovedError(RetriableError):
    """A late write of a predecessor moved a target partition's log; what it holds has to be read
    again."""


class TransactionAbortedError(RetriableError):
    """A transaction was aborted: none of its records count, and they are copied again from where it
    began."""


class FatalError(Mm2pyError):
    """Trying again changes nothing."""


class AuthenticationError(FatalError):
    """The broker refused who we are."""


class ProducerFencedError(FatalError):
    """A newer producer has taken our transactional id over; nothing of ours is written any more."""


class RefusedRecordError(FatalError):
    """A record is refused for good and may not be left out.

    Its task stays FAILED: each start would send those beside it, which have no position yet, once
    more.
    """


class UnsupportedVersionError(FatalError):
    """The broker speaks no version of a request that we can use."""


class UnsendableError(FatalError):
    """No request can carry a name or value, whatever cluster it came from; nothing was sent."""


class ServerError(Mm2pyError):
    """A broker answered with an error code (``org.apache.kafka.common.protocol.Errors``)."""

    def __init__(self, code: int, name: str, message: str = "", *, remedy: str = "") -> None:
        super().__init__(f"{name} ({code}){': ' + message if message else ''}", remedy=remedy)
        self.code = code
        self.name = name


class RetriableServerError(ServerError, RetriableError):
    """An error code that Kafka marks as retriable."""


class FatalServerError(ServerError, FatalError):
    """An error code that stays an error however often the request is sent."""


class PartitionError(Mm2pyError):
    """One partition cannot continue; the others are not touched.

    ``topic`` and ``partition`` are the source's. ``offset`` is the source offset that could not be
    copied, -1 where none is known.
    """

    def __init__(
        self, message: str, *, topic: str, partition: int, offset: int = -1, remedy: str = ""
    ) -> None:
        where = f"{topic}-{partition}" + (f" at offset {offset}" if offset >= 0 else "")
        super().__init__(f"{where}: {message}", remedy=remedy)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class OversizedRecordError(PartitionError):
    """A record is larger than the target's topic takes; the partition continues when that takes
    more.

    ``needed_bytes`` is the size of the smallest batch that holds it, ``limit_bytes`` what the topic
    took then, 0 where that may not be read.
    """

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int,
        offset: int = -1,
        remedy: str = "",
        needed_bytes: int = 0,
        limit_bytes: int = 0,
    ) -> None:
        super().__init__(message, topic=topic, partition=partition, offset=offset, remedy=remedy)
        self.needed_bytes = needed_bytes
        self.limit_bytes = limit_bytes


class ProtocolError(Mm2pyError):
    """A peer sent bytes that are not Kafka's protocol; the connection is closed."""
