"""The loss ledger of one flow, read from its target: what ``/flows/{flow}/ledger`` and ``mm2py ledger`` show.

Flow: ledger topic of a connected target -> ``Ledger`` -> sums by topic, views. A ledger that does not exist yet is an empty one.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import final

from mm2py.api.context import EventKind, LossEvent
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import SYSTEM_CLOCK
from mm2py.flows.view_models import LedgerEventView, LedgerTopicView, LedgerView
from mm2py.mirror.ledger import (
    LedgerRecord,
    UnknownLedgerRecord,
    decode_ledger_record,
    ledger_topic,
)
from mm2py.protocol.records import Record
from mm2py.types import FlowName


@final
@dataclass(slots=True)
class Ledger:
    """The records of one flow, oldest first."""

    flow: FlowName
    records: list[LedgerRecord] = field(default_factory=list[LedgerRecord])
    unknown: list[tuple[int, UnknownLedgerRecord]] = field(
        default_factory=list[tuple[int, UnknownLedgerRecord]]
    )
    """Offset in the ledger, and what this program cannot read."""


@final
@dataclass(slots=True)
class TopicSum:
    """Sums of one source topic in one flow, in source offsets."""

    flow: str
    topic: str
    events: int = 0
    lost: int = 0
    refused: int = 0
    truncated: int = 0
    may_be_doubled: int = 0

    def add(self, event: LossEvent) -> None:
        """Count one event."""
        self.events += 1
        if event.kind.is_loss:
            self.lost += event.count
        elif event.kind.stops:
            self.refused += 1
        elif event.kind is EventKind.TRUNCATION:
            self.truncated += event.count
        else:
            self.may_be_doubled += event.count


def topic_sums(records: Iterable[LedgerRecord]) -> list[TopicSum]:
    """Return sums by flow and topic, in that order."""
    sums: dict[tuple[str, str], TopicSum] = {}
    for record in records:
        name = (record.flow, record.event.partition.topic)
        sums.setdefault(name, TopicSum(*name)).add(record.event)
    return [sums[name] for name in sorted(sums)]


async def read_ledger(cluster: Cluster, flow: FlowName) -> Ledger:
    """Read the ledger of one flow from its connected target."""
    ledger = Ledger(flow)
    topic = ledger_topic(flow.source)
    if topic not in await Admin(cluster).describe_topics([topic]):
        return ledger

    def take(_partition: int, record: Record) -> None:
        decoded = decode_ledger_record(record.key, record.value)
        if isinstance(decoded, UnknownLedgerRecord):
            ledger.unknown.append((record.offset, decoded))
        elif isinstance(decoded, LedgerRecord) and decoded.flow == str(flow):
            ledger.records.append(decoded)

    reader = LogReader(cluster, topic, clock=SYSTEM_CLOCK)
    try:
        await reader.read_to_end(take)
    finally:
        await reader.close()
    return ledger


def ledger_view(ledger: Ledger, most: int, mask: Callable[[str], str]) -> LedgerView:
    """Return the newest ``most`` events, and sums of all of them."""
    newest = list(reversed(ledger.records))
    return LedgerView(
        flow=str(ledger.flow),
        total=len(newest),
        unreadable=len(ledger.unknown),
        topics=tuple(LedgerTopicView(**asdict(it)) for it in topic_sums(newest)),
        events=tuple(_event_view(it, mask) for it in newest[:most]),
    )


def _event_view(record: LedgerRecord, mask: Callable[[str], str]) -> LedgerEventView:
    event = record.event
    return LedgerEventView(
        flow=record.flow,
        at_ms=record.time_ms,
        topic=event.partition.topic,
        partition=event.partition.partition,
        kind=event.kind.value,
        first=event.first_offset if event.first_offset >= 0 else None,
        last=event.last_offset if event.count else None,
        offsets=event.count,
        policy=event.policy,
        cause=mask(event.cause),
        task=event.task,
    )
