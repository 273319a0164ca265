"""The loss ledger: format of its records, and which events are in it already
(docs/reference/formats.md).

It also keeps which incarnation of a topic the offsets of a partition belong to.

Flow: ``LossEvent`` -> ``KnownEvents.unrecorded`` -> ``encode_ledger_record`` ->
``mm2py-ledger.<source>.internal`` -> ``decode_ledger_record``. No I/O. A record of a version that
we do not know is kept as it is, never refused.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from dataclasses import dataclass, replace
from typing import Final, final

from mm2py.api.context import EventKind, LossEvent
from mm2py.errors import ProtocolError
from mm2py.mirror.offset_ranges import outside
from mm2py.mirror.versioned_json import Members, decode, encode
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import TopicPartition

_INCARNATION: Final = "incarnation"
_UNDER_WAY: Final = (
    "; a task had read it up to the end of this range, and ended before it was "
    "known what of that was delivered"
)
SET_PAST: Final = "the stored position was set past them or removed, and no program copied them"
"""The cause of what is ``SKIPPED``."""
_KINDS: Final = frozenset(kind.value for kind in EventKind)


def ledger_topic(source_alias: str) -> str:
    """Return the name of the ledger on the target; no mirror replicates it (``mm2*.internal``)."""
    return f"mm2py-ledger.{source_alias}.internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRecord:
    """One event with the flow it happened in and when it was noticed."""

    event: LossEvent
    flow: str
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncarnationRecord:
    """From here on positions and events of a partition belong to the topic with this id
    (KIP-516)."""

    partition: TopicPartition
    topic_id: bytes
    flow: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class UnknownLedgerRecord:
    """A record that this version cannot read: what it is kept as, and why."""

    key: bytes
    value: bytes
    reason: str


def encode_ledger_record(record: LedgerRecord | IncarnationRecord) -> tuple[bytes, bytes]:
    """Return key (``topic-partition``) and value (version byte, then JSON in a fixed member
    order; topic ids in Kafka's text form)."""
    if isinstance(record, IncarnationRecord):
        return _incarnation(record)
    event = record.event
    members: dict[str, str | int] = {
        "kind": event.kind.value,
        "topic": event.partition.topic,
        "partition": event.partition.partition,
        "first": event.first_offset,
        "last": event.last_offset,
        "policy": event.policy,
        "cause": event.cause,
        "time": record.time_ms,
        "flow": record.flow,
        "task": event.task,
    }
    return _encoded(event.partition, members)


def _incarnation(record: IncarnationRecord) -> tuple[bytes, bytes]:
    members: dict[str, str | int] = {
        "kind": _INCARNATION,
        "topic": record.partition.topic,
        "partition": record.partition.partition,
        "id": topic_id_text(record.topic_id),
        "time": record.time_ms,
        "flow": record.flow,
    }
    return _encoded(record.partition, members)


def _encoded(partition: TopicPartition, members: dict[str, str | int]) -> tuple[bytes, bytes]:
    return str(partition).encode(), encode(members, in_order=True)


def decode_ledger_record(
    key: bytes | None, value: bytes | None
) -> LedgerRecord | IncarnationRecord | UnknownLedgerRecord:
    """Read a record; members it does not know are ignored, what it cannot read is kept as bytes."""
    raw = value or b""
    try:
        return _decoded(decode(raw))
    except ProtocolError as error:
        return UnknownLedgerRecord(key or b"", raw, error.message)


def _decoded(members: Members) -> LedgerRecord | IncarnationRecord:
    word = members.text("kind")
    if word != _INCARNATION and word not in _KINDS:
        raise ProtocolError(f"kind {word!r} is not known")
    partition = TopicPartition(members.text("topic"), members.number("partition"))
    flow, time_ms = members.text("flow"), members.number("time")
    if word == _INCARNATION:
        # A bad id makes the whole record unknown: a wrong incarnation would tie offsets to the
        # wrong topic.
        topic_id = topic_id_of(members.text("id"))
        if not topic_id:
            raise ProtocolError("member id is not a topic id")
        return IncarnationRecord(partition=partition, topic_id=topic_id, flow=flow, time_ms=time_ms)
    event = LossEvent(
        kind=EventKind(word),
        partition=partition,
        first_offset=members.number("first"),
        last_offset=members.number("last"),
        policy=members.text("policy"),
        cause=members.text("cause"),
        task=members.text("task"),
    )
    return LedgerRecord(event=event, flow=flow, time_ms=time_ms)


def topic_id_text(topic_id: bytes) -> str:
    """Return an id in Kafka's text form: unpadded URL-safe base64 (``Uuid.toString``)."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=")


def topic_id_of(text: str) -> bytes:
    """Return the id in Kafka's text form, empty where it is none."""
    try:
        topic_id = urlsafe_b64decode(text + "==")
    except (ValueError, Base64Error):
        return b""
    return topic_id if len(topic_id) == len(NO_TOPIC_ID) else b""


@final
class QuarantinedRanges:
    """What failovers have kept in quarantine of the present incarnations, from the ledger in its
    order: first offset and exclusive end."""

    def __init__(self) -> None:
        self.ranges: dict[TopicPartition, list[tuple[int, int]]] = {}

    def take(self, record: LedgerRecord | IncarnationRecord) -> None:
        if isinstance(record, IncarnationRecord):
            self.ranges.pop(record.partition, None)
        elif record.event.kind is EventKind.QUARANTINED:
            it = record.event
            self.ranges.setdefault(it.partition, []).append((it.first_offset, it.last_offset + 1))


@final
class ReportedEvents:
    """The ranges that were reported in one term, so that none is taken twice."""

    def __init__(self) -> None:
        self._ranges: set[tuple[EventKind, TopicPartition, int, int]] = set()

    def take(self, event: LossEvent) -> bool:
        """Note an event; False when the same range was reported before."""
        key = (event.kind, event.partition, event.first_offset, event.last_offset)
        if event.kind is EventKind.RECREATED:
            # Offsets start over: the same numbers are other records from now on.
            self._ranges = {known for known in self._ranges if known[1] != event.partition}
        elif key in self._ranges and (event.again or not event.kind.may_repeat):
            return False
        self._ranges.add(key)
        return True

    def clear(self) -> None:
        """Forget everything: another term begins."""
        self._ranges.clear()


@final
class KnownEvents:
    """What a ledger has already, so that an event found again is not written again.

    A restart finds a range again when the position after it was not committed; the source may have
    lost more meanwhile, so the part that is new is left. Per partition and kind the last range
    counts, with those joined to it. A recreated topic starts its offsets over, which ends the
    ranges before it.
    """

    def __init__(self) -> None:
        self._ranges: dict[TopicPartition, dict[EventKind, tuple[int, int]]] = {}
        self._noted: set[TopicPartition] = set()
        """Recreated as another process had noted, and not found again yet: only there offset 0 may
        be a position of the old one."""

    def note(self, event: LossEvent) -> None:
        """Add an event that is in the ledger; in ledger order."""
        kinds = self._ranges.setdefault(event.partition, {})
        if event.kind is EventKind.RECREATED:
            kinds.clear()
            self._noted.add(event.partition)
        # Adjacent ranges are joined: retention removes segment after segment, and each restart
        # finds the next piece.
        first, last = event.first_offset, event.last_offset
        known = kinds.get(event.kind)
        if known is not None and first <= known[1] + 1 and last >= known[0] - 1:
            first, last = min(first, known[0]), max(last, known[1])
        kinds[event.kind] = (first, last)

    def copied(self, partition: TopicPartition) -> None:
        """Note that a stored position belongs to a new incarnation, which may end as the one before
        it."""
        self._ranges.get(partition, {}).pop(EventKind.RECREATED, None)

    def take(self, event: LossEvent) -> tuple[LossEvent, ...]:
        """Return the parts of a new event that are not known; they are known from now on."""
        kinds = self._ranges.setdefault(event.partition, {})
        # Read before the clear below: whether this is a second sighting depends on it.
        known = kinds.get(event.kind)
        first, last = event.first_offset, event.last_offset
        if event.kind is EventKind.RECREATED:
            kinds.clear()
            lowest = 0 if event.partition in self._noted else 1
            self._noted.discard(event.partition)
            if known is not None and not event.count and lowest <= first < known[0]:
                # A task that was killed had read the old one further than its stored position: what
                # was under way is gone.
                event = replace(
                    event, last_offset=max(known[0] - 1, known[1]), cause=event.cause + _UNDER_WAY
                )
                last = event.last_offset
            # Nothing of a new incarnation was copied yet: the old one is found again with its
            # stored position, or the new one has ended in turn, with nothing known to be in it.
            again = known is not None and event.count == 0
            kinds[event.kind] = known if again and known is not None else (first, last)
            return () if again else (event,)
        self.note(event)
        # Such an event happens at one offset any number of times; that it is known proves nothing.
        if event.kind.may_repeat and not event.again:
            return (event,)
        ranges = [known]
        if event.kind is EventKind.SKIPPED:  # the failover that kept a range set the position
            ranges.append(kinds.get(EventKind.QUARANTINED))
        within = [it for it in ranges if it is not None and it[0] <= last and first <= it[1]]
        if not within:
            return (event,)
        return tuple(
            replace(event, first_offset=low, last_offset=end - 1)
            for low, end in outside(first, last + 1, ((low, high + 1) for low, high in within))
        )
