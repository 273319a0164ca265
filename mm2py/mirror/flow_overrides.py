"""What people changed of a flow over REST: entries of the topic ``mm2py-flows.<source>.internal``.

Flow: one record of the topic <-> one entry; a tombstone takes an entry back, and the file counts again.
Secrets never stand in it. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Change",
    "ConnectorEntry",
    "FlowEntry",
    "FlowOverrideEntry",
    "HistoryEntry",
    "HoldEntry",
    "OverrideEntry",
    "Presence",
    "Revision",
]


class Presence(StrEnum):
    """Whether a flow or connector was made or removed, beside what the file says."""

    ADDED = "added"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """Which change an entry comes from: its number, who made it and when."""

    number: int
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEntry:
    """Key ``flow``: the flow was made or removed."""

    state: Presence
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideEntry:
    """Key ``override:<connector>:<property>``: another value than the file's, None for removed."""

    connector: str
    property: str
    value: str | None
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorEntry:
    """Key ``connector:<name>``: a connector beyond the file's, or one of the file's that was removed."""

    name: str
    state: Presence
    config: Mapping[str, str]
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEntry:
    """Key ``hold:<topic>`` or ``hold:<topic>:<partition>``: paused; ``partition`` -1 is the whole topic."""

    topic: str
    partition: int = -1
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key of the topic before and after; None is absent."""

    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """Key ``history:<revision, 12 digits>``: what one change did."""

    action: str
    target: str
    changes: tuple[Change, ...]
    revision: Revision


FlowOverrideEntry = FlowEntry | OverrideEntry | ConnectorEntry | HoldEntry | HistoryEntry
"""Every kind of entry."""
