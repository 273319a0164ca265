"""States of connectors and tasks, and which changes of state are valid.

Any state may follow any other (a status topic is read by every worker, and a rebalance may come
between any two steps), but for these rules:

1. A state is never entered twice in a row: the listener writes a record per change.
2. DESTROYED is final.
3. STOPPED is a state of connectors only (KIP-875); the tasks of a stopped connector do not exist.
4. FAILED ends only by RESTARTING, or when the work is taken away or stopped. As in Connect nothing
   restarts a failed task by itself, and the first cause is the one that is shown: what fails later
   is usually its consequence.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from mm2py.types import State

log = logging.getLogger(__name__)

LONGEST_TEXT: Final = 8_192
"""Characters of an error that are passed on: a plug-in's may quote a whole record, which no record
of the status topic holds."""

_AFTER_FAILURE: Final = frozenset(
    {State.UNASSIGNED, State.RESTARTING, State.STOPPED, State.DESTROYED}
)


@dataclass(frozen=True, slots=True)
class Status:
    """State of one connector or task, with the error that caused it where it is FAILED."""

    state: State
    cause: Exception | None = None


@final
class Lifecycle:
    """The state of one connector or task; logs each change and calls ``on_change``.

    Args:
        what: ``connector`` or ``task``, for the log and for rule 3.
        on_change: called after each change.
    """

    def __init__(self, what: str, on_change: Callable[[Status], None]) -> None:
        self._what = what
        self._on_change = on_change
        self._status = Status(State.UNASSIGNED)

    @property
    def status(self) -> Status:
        return self._status

    def to(self, state: State, cause: Exception | None = None) -> bool:
        """Change the state; return False, and change nothing, where the rules forbid it."""
        current = self._status.state
        if (
            state is current
            or current is State.DESTROYED
            or (state is State.STOPPED and self._what != "connector")
            or (current is State.FAILED and state not in _AFTER_FAILURE)
        ):
            return False
        self._status = Status(state, cause)
        if state is State.FAILED:
            log.error("%s failed", self._what, exc_info=cause)
        else:
            log.info("%s state=%s", self._what, state.value)
        self._on_change(self._status)
        return True


def one_line(error: BaseException) -> str:
    """Return the text of an exception without line breaks, ``shortened``."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - it is a plug-in's, and its task has failed all the same
        text = f"no text: {type(failure).__name__}"
    return shortened(" ".join(text.split()))


def shortened(text: str) -> str:
    """Return at most ``LONGEST_TEXT`` of a text, without a word that is cut: masks do not match
    half of a secret."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT].rpartition(' ')[0]} ..."


def trace_of(error: BaseException) -> str:
    """Return an error and its causes, one line each; stack frames would show this machine's
    paths."""
    lines: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(lines) < 10:
        name = type(cause).__qualname__
        lines.append(f"{'Caused by: ' if lines else ''}{name}: {one_line(cause)}")
        cause = cause.__cause__
    return "\n".join(lines)
