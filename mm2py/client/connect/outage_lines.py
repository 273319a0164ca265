"""Log lines about unreachable brokers, shared by a process's clients: one per address and 10 s.

Flow: ``ConnectionPool`` fails -> ``outage_s``: whether a line is due, and the outage's duration ->
``back``.
"""

from dataclasses import dataclass
from typing import Final, final

from mm2py.clock import PerClock

REPEAT_S: Final = 10.0
"""Interval at which an unreachable broker is logged again."""
_FORGET_S: Final = 60.0
"""An outage that no client has met for longer is over: its clients were closed."""


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage of one cluster's clients at one address; ``refusal`` of a login, or empty."""

    cluster: str
    host: str
    port: int
    refusal: str = ""


@dataclass(slots=True)
class _Course:
    since: float
    seen_at: float
    due_at: float


@final
class OutageLines:
    """Times at which outages were logged; instants are ``Clock.monotonic``."""

    def __init__(self) -> None:
        self._courses: dict[Outage, _Course] = {}

    def outage_s(self, outage: Outage, lost_at: float, now: float) -> float | None:
        """Return for how long it lasts, None where the line of another client is younger than 10
        s."""
        self._courses = {
            it: each for it, each in self._courses.items() if now - each.seen_at < _FORGET_S
        }
        course = self._courses.setdefault(outage, _Course(lost_at, now, now))
        course.since, course.seen_at = min(course.since, lost_at), now
        if now < course.due_at:
            return None
        course.due_at = now + REPEAT_S
        return now - course.since

    def due_at(self, outage: Outage) -> float:
        """Return when the next line is due."""
        return self._courses[outage].due_at

    def back(self, outage: Outage) -> None:
        """End an outage: the next one is logged at once."""
        self._courses.pop(outage, None)


lines_of: Final = PerClock(OutageLines)
"""Shared by all clients with a clock."""
