"""Changes made to a flow over REST: entries of the topic ``mm2py-flows.<source>.internal``.

Flow: one record of the topic <-> one entry (docs/reference/formats.md); a tombstone takes an entry
back, and the file counts again. Secrets never stand in it. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from mm2py.errors import ProtocolError
from mm2py.mirror.versioned_json import VERSION, Members, decode, encode
from mm2py.types import TopicPartition

_PARTITIONS: Final = range(1 << 31)
REVISIONS: Final = range(10**15)
"""What ``If-Match`` takes, and a browser's numbers hold."""
_TEXT: Final = b" "
"""What begins with this byte or a higher one is a stray line of text, and of no version."""


def flows_topic(source_alias: str) -> str:
    """Return the name of the topic on the target; no mirror replicates it (``mm2*.internal``)."""
    return f"mm2py-flows.{source_alias}.internal"


class Presence(StrEnum):
    """Whether a flow or connector was made or removed, beside the file."""

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
    """Key ``connector:<name>``: a connector beyond the file's, or one of the file's that was
    removed."""

    name: str
    state: Presence
    config: Mapping[str, str]
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldEntry:
    """Key ``hold:<topic>`` or ``hold:<topic>:<partition>``: paused; ``partition`` -1 is the whole
    topic."""

    topic: str
    partition: int = -1
    revision: Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key of the topic, and what was in force under it before and after; None is absent.

    For ``override:`` these are the texts of the property, whether from the file or not. ``state:``
    is a connector's or task's state; the topic holds none, it is in the history alone.
    """

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


@dataclass(frozen=True, slots=True)
class UnknownFlowRecord:
    """A record that this version cannot read, and why; ``newer``: a setting (no history) of a newer
    version."""

    key: bytes
    reason: str
    newer: bool = False


# -- keys ------------------------------------------------------------------------------------------


def override_key(connector: str, property_name: str) -> str:
    """Return ``override:<connector>:<property>``; a colon in the connector's name is ``%3A``."""
    return f"override:{_segment(connector)}:{property_name}"


def connector_key(name: str) -> str:
    """Return ``connector:<name>``."""
    return f"connector:{name}"


def hold_key(topic: str, partition: int = -1) -> str:
    """Return ``hold:<topic>`` or ``hold:<topic>:<partition>``."""
    return f"hold:{topic}" if partition < 0 else f"hold:{topic}:{partition}"


def state_key(work: str) -> str:
    """Return ``state:<connector or task>``."""
    return f"state:{work}"


def history_key(number: int) -> str:
    """Return ``history:<revision, 12 digits>``."""
    return f"history:{number:012d}"


def is_setting(key: str) -> bool:
    """Return whether a key holds a setting of the flow: no line of the history, no unknown key."""
    return key.partition(":")[0] in ("flow", "override", "connector", "hold")


def parse_override_key(key: str) -> tuple[str, str]:
    """Return connector and property of ``override:<connector>:<property>``."""
    connector, colon, name = key.partition(":")[2].partition(":")
    # A stray key must not be taken for an override of the empty property.
    if not colon:
        raise ProtocolError(f"key {key!r} names no property")
    return unquote(connector), name


def parse_hold_key(rest: str) -> TopicPartition:
    """Return the partition (-1: the topic) of what follows ``hold:``."""
    topic, colon, number = rest.partition(":")
    # Ten digits hold every partition number; more would reach ``int`` from bytes that anybody may
    # have written.
    whole = number.isascii() and number.isdigit() and len(number) <= 10
    if not topic or (colon and not (whole and int(number) in _PARTITIONS)):
        raise ProtocolError(f"key 'hold:{rest}' names no topic or partition")
    return TopicPartition(topic, int(number) if colon else -1)


def flow_record_key(entry: FlowOverrideEntry) -> str:
    """Return the key of an entry's record."""
    match entry:
        case FlowEntry():
            return "flow"
        case OverrideEntry():
            return override_key(entry.connector, entry.property)
        case ConnectorEntry():
            return connector_key(entry.name)
        case HoldEntry():
            return hold_key(entry.topic, entry.partition)
        case HistoryEntry():
            return history_key(entry.revision.number)


def _segment(text: str) -> str:
    # The percent sign first, or the escape of the colon would be escaped again.
    return text.replace("%", "%25").replace(":", "%3A")


# -- records ---------------------------------------------------------------------------------------


def encode_flow_record(entry: FlowOverrideEntry) -> tuple[bytes, bytes]:
    """Return key and value: the version byte, then ASCII JSON with sorted members."""
    revision = entry.revision
    members: dict[str, object] = {
        "at": revision.at_ms,
        "by": revision.by,
        "revision": revision.number,
        **_members(entry),
    }
    return flow_record_key(entry).encode(), encode(members)


def _members(entry: FlowOverrideEntry) -> dict[str, object]:
    match entry:
        case FlowEntry():
            return {"state": entry.state.value}
        case OverrideEntry():
            return {"value": entry.value}
        case ConnectorEntry():
            return {"state": entry.state.value, "config": dict(entry.config)}
        case HoldEntry():
            return {}
        case HistoryEntry():
            changes = [
                {"key": change.key, "before": change.before, "after": change.after}
                for change in entry.changes
            ]
            return {"action": entry.action, "target": entry.target, "changes": changes}


def decode_flow_record(key: bytes | None, value: bytes) -> FlowOverrideEntry | UnknownFlowRecord:
    """Read a record that is no tombstone; members it does not know are ignored."""
    try:
        return _decoded((key or b"").decode(), decode(value))
    except (ProtocolError, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, ProtocolError) else "the key is not UTF-8"
        # A newer setting refuses all changes, as it may say how the flow is to be; an unreadable
        # line of the history only shortens that.
        setting = not (key or b"").startswith(b"history:")
        newer = setting and value[:1] > bytes((VERSION,)) and value[:1] < _TEXT
        return UnknownFlowRecord(key or b"", reason, newer=newer)


def _decoded(key: str, members: Members) -> FlowOverrideEntry:
    number = members.number("revision")
    if number not in REVISIONS:
        raise ProtocolError(f"revision {number} is none")
    revision = Revision(number=number, by=members.text("by"), at_ms=members.number("at"))
    kind, _, rest = key.partition(":")
    if key == "flow":
        return FlowEntry(state=_presence(members), revision=revision)
    if kind == "override":
        connector, name = parse_override_key(key)
        value = members.nullable("value")
        return OverrideEntry(connector=connector, property=name, value=value, revision=revision)
    if kind == "connector":
        config = members.texts("config")
        return ConnectorEntry(name=rest, state=_presence(members), config=config, revision=revision)
    if kind == "hold":
        return _hold(rest, revision)
    # The number stands in key and value; where they differ the line may belong to another change.
    if kind == "history" and key == history_key(revision.number):
        return HistoryEntry(
            action=members.text("action"),
            target=members.text("target"),
            changes=tuple(map(_change, members.objects("changes"))),
            revision=revision,
        )
    raise ProtocolError(f"key {key!r} is not known")


def _hold(rest: str, revision: Revision) -> HoldEntry:
    held = parse_hold_key(rest)
    return HoldEntry(topic=held.topic, partition=held.partition, revision=revision)


def _change(members: Members) -> Change:
    before, after = members.nullable("before"), members.nullable("after")
    return Change(key=members.text("key"), before=before, after=after)


def _presence(members: Members) -> Presence:
    word = members.text("state")
    try:
        return Presence(word)
    except ValueError:
        raise ProtocolError(f"state {word!r} is not known") from None
