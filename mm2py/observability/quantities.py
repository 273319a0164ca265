"""Quantities as people read them, in displays and in findings."""

from typing import Final

UNKNOWN: Final = "-"
"""What is not known, in a table."""


def duration_text(milliseconds: int | None) -> str:
    """Say how long."""
    if milliseconds is None:
        return UNKNOWN
    seconds = milliseconds / 1000
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.1f} {unit}"
    return f"{seconds / 86_400:,.0f} d"


def size_text(value: float | None) -> str:
    """Say how many bytes."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
