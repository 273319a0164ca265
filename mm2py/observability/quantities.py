"""Quantities formatted for displays and findings."""

from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "-"
"""What is not known, in a table."""


def duration_text(milliseconds: int | None) -> str:
    """Format a duration."""
    if milliseconds is None:
        return UNKNOWN
    seconds = milliseconds / 1000
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.1f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def size_text(value: float | None) -> str:
    """Format a number of bytes."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def utc_text(time_ms: int) -> str:
    """Format milliseconds since the epoch; a number that is no time is shown as it is."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
