"""Answers of a worker's REST API: paths of flows, and members of objects by their type.

Workers load it too, because their failovers ask their own flows: nothing of the command line is
here.
"""

from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import quote

from pydantic import BaseModel

Row = Mapping[str, object]
"""One JSON object of an answer; members that a newer worker adds are ignored."""

Shown = Row | BaseModel
"""What a table shows in one row: an object, or the model that it was read into."""


def flow_path(flow: str, *rest: str) -> str:
    """Return the path of a flow, or of what is below it."""
    return "/".join(["/flows", quote(flow, safe=""), *rest])


def member_of(row: Shown, key: str) -> object:
    """Return a member; None where an object does not have it."""
    return row.get(key) if isinstance(row, Mapping) else getattr(row, key)


def text_of(row: Shown, key: str) -> str:
    """Return a member as a text; absent and null are empty."""
    value = member_of(row, key)
    return "" if value is None else str(value)


def count_of(row: Shown, key: str) -> int | None:
    """Return a number; None if it is not known."""
    value = member_of(row, key)
    return int(value) if isinstance(value, int | float) else None


def rows_of(row: Row, key: str) -> list[Row]:
    """Return a member's objects."""
    return [cast("Row", it) for it in _items(row.get(key)) if isinstance(it, Mapping)]


def texts_of(row: Shown, key: str) -> list[str]:
    """Return a member's texts."""
    return [str(it) for it in _items(member_of(row, key))]


def _items(value: object) -> Sequence[object]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return cast("Sequence[object]", value) if is_list else ()
