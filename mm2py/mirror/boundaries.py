"""Where a copy begins and ends, as people write it: ``earliest``, ``now``, a timestamp, ``24 hours ago``, ``offset:N``."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.errors import UsageError


@dataclass(frozen=True, slots=True)
class Boundary:
    """``--from`` or ``--to``: the log's own end (both None), a timestamp in ms, or an offset."""

    timestamp: int | None = None
    offset: int | None = None


_AGO: Final = re.compile(r"(\d{1,9}) *(second|minute|hour|day|week)s? +ago", re.IGNORECASE)
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}


def parse_boundary(text: str, name: str, edge: str, *, clock: Clock = SYSTEM_CLOCK) -> Boundary:
    """Read ``earliest`` (``now``), a timestamp in ms since the epoch or ISO 8601, ``N hours ago``, or ``offset:N``.

    Raises:
        UsageError: it is none of them.
    """
    if text == edge:
        return Boundary()
    number = text.removeprefix("offset:")
    if number.isascii() and number.isdecimal() and int(number) < 1 << 63:
        return Boundary(timestamp=int(text)) if number == text else Boundary(offset=int(number))
    ago = _AGO.fullmatch(text)
    if ago is not None:
        age_ms = int(ago[1]) * _SECONDS[ago[2].lower()] * 1000
        return Boundary(timestamp=max(0, clock.now_ms() - age_ms))
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return Boundary(timestamp=int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name} {text!r} is not understood",
            remedy=f"write {edge}, a timestamp (2026-01-31T00:00:00Z or ms since the epoch), 24 hours ago, or offset:N",
        ) from None
