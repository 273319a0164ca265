"""States of connectors and tasks, as a transition table.

::

    from / to      UNASSIGNED RUNNING PAUSED STOPPED FAILED RESTARTING DESTROYED
    UNASSIGNED       -         x       x      c       x       x          x
    RUNNING          x         -       x      c       x       x          x
    PAUSED           x         x       -      c       x       x          x
    STOPPED          x         x       x      -       x       x          x
    FAILED           x         -       -      c       -       x          x
    RESTARTING       x         x       x      c       x       -          x

``c``: connectors only. FAILED ends only by a restart or by giving the work up (Connect's rule).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, final

from mm2py.types import State

log = logging.getLogger(__name__)


_ENDS: Final = frozenset({State.UNASSIGNED, State.DESTROYED, State.STOPPED})

_ALLOWED: Final[Mapping[State, frozenset[State]]] = {
    State.UNASSIGNED: frozenset(State) - {State.UNASSIGNED},
    State.RUNNING: frozenset(State) - {State.RUNNING},
    State.PAUSED: frozenset(State) - {State.PAUSED},
    State.STOPPED: frozenset(State) - {State.STOPPED},
    State.FAILED: _ENDS | {State.RESTARTING},
    State.RESTARTING: frozenset(State) - {State.RESTARTING},
    State.DESTROYED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Status:
    """State of one connector or task, with the error that caused it where it is FAILED."""

    state: State
    cause: Exception | None = None


@final
class Lifecycle:
    """The state of one connector or task; logs each change once and tells its listener.

    Args:
        what: ``connector`` or ``task``, for the log and for the STOPPED rule.
        on_change: called after each change.
    """

    def __init__(self, what: str, on_change: Callable[[Status], None]) -> None:
        self._what = what
        self._on_change = on_change
        self._status = Status(State.UNASSIGNED)

    @property
    def status(self) -> Status:
        """The current state."""
        return self._status

    def allows(self, state: State) -> bool:
        """Whether the table has a way from the current state to ``state``."""
        if state is State.STOPPED and self._what != "connector":
            return False
        return state in _ALLOWED[self._status.state]

    def to(self, state: State, cause: Exception | None = None) -> bool:
        """Change the state; False, and nothing happens, where the table has no way there.

        A FAILED task therefore stays FAILED with its first cause whatever is reported later.
        """
        if not self.allows(state):
            return False
        self._status = Status(state, cause)
        if state is State.FAILED:
            log.error("%s failed", self._what, exc_info=cause)
        else:
            log.info("%s state=%s", self._what, state.value)
        self._on_change(self._status)
        return True


def trace_of(error: BaseException) -> str:
    """Write an error and what caused it, one line each; stack frames would show this machine's paths."""
    lines: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(lines) < 10:
        name = type(cause).__qualname__
        lines.append(f"{'Caused by: ' if lines else ''}{name}: {' '.join(str(cause).split())}")
        cause = cause.__cause__
    return "\n".join(lines)
