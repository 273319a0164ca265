"""Exceptions on their way through the pipe: as plain data, never pickled.

Flow: exception -> ``Failure.of`` -> pipe -> ``Failure.error`` -> an exception of the same class, text and causes.
Stack frames stay where they were raised.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Final, final

from mm2py import errors
from mm2py.errors import FatalError, Mm2pyError, PartitionError, ServerError

MOST_CAUSES: Final = 10


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """Class name, text and remedy of an exception, and class name and text of each of its causes."""

    kind: str
    message: str
    remedy: str = ""
    causes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Take an exception down."""
        causes: list[tuple[str, str]] = []
        cause = error.__cause__
        while cause is not None and len(causes) < MOST_CAUSES:
            causes.append((type(cause).__name__, one_line(cause)))
            cause = cause.__cause__
        if isinstance(error, Mm2pyError):
            return cls(type(error).__name__, error.message, error.remedy, tuple(causes))
        return cls(type(error).__name__, one_line(error), "", tuple(causes))

    def error(self) -> Exception:
        """Return the exception; a foreign one has a class of the same name."""
        chain = [_error(self.kind, self.message, self.remedy)]
        chain += [_error(kind, text) for kind, text in self.causes]
        for error, cause in pairwise(chain):
            error.__cause__ = cause
        return chain[0]

    def own_error(self) -> Mm2pyError:
        """Return the exception, a ``FatalError`` in place of a foreign one."""
        error = self.error()
        if isinstance(error, Mm2pyError):
            return error
        fatal = FatalError(f"{self.kind}: {self.message}")
        fatal.__cause__ = error.__cause__
        return fatal


def one_line(error: BaseException) -> str:
    """Return the text of an exception without line breaks."""
    return " ".join(str(error).split())


def _error(kind: str, message: str, remedy: str = "") -> Exception:
    found: object = getattr(errors, kind, None)
    if not isinstance(found, type) or not issubclass(found, Mm2pyError):
        return _foreign(kind)(message)
    # Not through the class's own constructor: the text is complete, what it was made from was not sent.
    error = found.__new__(found)
    Mm2pyError.__init__(error, message, remedy=remedy)
    if isinstance(error, PartitionError):
        error.topic, error.partition, error.offset = "", -1, -1
    elif isinstance(error, ServerError):
        error.code, error.name = -1, ""
    return error


@cache
def _foreign(kind: str) -> type[Exception]:
    """Return a class of that name: half of a foreign error's message is its class."""
    return type(kind, (Exception,), {"__module__": __name__})
