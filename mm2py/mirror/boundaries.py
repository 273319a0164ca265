"""Where a backfill begins and ends, as people write it: ``earliest``, ``now``, a timestamp, ``offset:N``."""

from dataclasses import dataclass
from datetime import UTC, datetime

from mm2py.errors import UsageError

__all__ = ["Boundary", "parse_boundary"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """``--from`` or ``--to``: the log's own end (both None), a timestamp in ms, or an offset."""

    timestamp: int | None = None
    offset: int | None = None


def parse_boundary(text: str, name: str, edge: str) -> Boundary:
    """Read ``earliest`` (``now``), a timestamp in ms since the epoch or ISO 8601, or ``offset:N``.

    Raises:
        UsageError: it is none of them.
    """
    if text == edge:
        return Boundary()
    number = text.removeprefix("offset:")
    if number.isascii() and number.isdecimal() and int(number) < 1 << 63:
        return Boundary(timestamp=int(text)) if number == text else Boundary(offset=int(number))
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return Boundary(timestamp=int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name} {text!r} is not understood",
            remedy=f"write {edge}, a timestamp (2026-01-31T00:00:00Z or ms since the epoch) or offset:N",
        ) from None
