"""The loss ledger of one flow, read from its target: what ``/flows/{flow}/ledger`` and
``mm2py ledger`` show.

Flow: ledger topic of a connected target -> ``Ledger`` for the command, ``KeptLedger`` for a worker,
which reads on from where it was -> sums by topic, views. A ledger that does not exist yet is an
empty one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Final, final

from mm2py.api.context import EventKind, LossEvent
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import SYSTEM_CLOCK
from mm2py.flows.view_models import LedgerEventView, LedgerTopicView, LedgerView
from mm2py.mirror.ledger import (
    LedgerRecord,
    QuarantinedRanges,
    UnknownLedgerRecord,
    decode_ledger_record,
    ledger_topic,
)
from mm2py.protocol.records import Record
from mm2py.types import FlowName

KEPT: Final = 1_000
"""Events of a flow that a worker keeps, about a megabyte; who asks for more of them makes it read
the whole ledger."""


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
    quarantined: QuarantinedRanges = field(default_factory=QuarantinedRanges)


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

    def take(_partition: int, record: Record) -> None:
        decoded = decode_ledger_record(record.key, record.value)
        if isinstance(decoded, UnknownLedgerRecord):
            ledger.unknown.append((record.offset, decoded))
        elif decoded.flow == str(flow):
            ledger.quarantined.take(decoded)
            if isinstance(decoded, LedgerRecord):
                ledger.records.append(decoded)

    topic = ledger_topic(flow.source)
    if topic in await Admin(cluster).describe_topics([topic]):
        await LogReader(cluster, topic, clock=SYSTEM_CLOCK).read_to_end(take)
    return ledger


@final
class KeptLedger:
    """What a worker has read of one flow's ledger: each look reads only what is new, from the first
    of this process on.

    Sums are of all events; of these the newest ``most`` are kept. Records deleted from the topic by
    hand are shown until the worker ends, or the topic is created again.
    """

    def __init__(self, flow: FlowName, most: int = KEPT) -> None:
        self._flow, self._most = flow, most
        self._reading = asyncio.Lock()
        self._topic_id = b""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._next: dict[int, int] = {}
        self._sums: dict[str, TopicSum] = {}
        self._newest: deque[LedgerRecord] = deque(maxlen=self._most)
        self._unreadable = 0

    async def read(self, cluster: Cluster) -> None:
        """Read on to the end of now, over the connected target."""
        topic = ledger_topic(self._flow.source)
        async with self._reading:
            described = (await Admin(cluster).describe_topics([topic])).get(topic)
            topic_id = b"" if described is None else described.topic_id
            if topic_id != self._topic_id:
                self._begin_anew()
            self._topic_id = topic_id
            if described is not None:
                reader = LogReader(cluster, topic, clock=SYSTEM_CLOCK, begin=dict(self._next))
                await reader.read_to_end(self._take)

    def _take(self, partition: int, record: Record) -> None:
        if record.offset < self._next.get(partition, 0):
            self._begin_anew()  # the log was cut, and is read from its start
        self._next[partition] = record.offset + 1
        decoded = decode_ledger_record(record.key, record.value)
        if isinstance(decoded, UnknownLedgerRecord):
            self._unreadable += 1
        elif isinstance(decoded, LedgerRecord) and decoded.flow == str(self._flow):
            topic = decoded.event.partition.topic
            self._sums.setdefault(topic, TopicSum(decoded.flow, topic)).add(decoded.event)
            self._newest.append(decoded)

    @property
    def total(self) -> int:
        return sum(it.events for it in self._sums.values())

    def has(self, most: int) -> bool:
        return min(most, self.total) <= len(self._newest)

    def view(self, most: int, mask: Callable[[str], str]) -> LedgerView:
        """Return the newest ``most`` events of those that are kept, and sums of all."""
        newest = islice(reversed(self._newest), most)
        return LedgerView(
            flow=str(self._flow),
            total=self.total,
            unreadable=self._unreadable,
            topics=tuple(LedgerTopicView(**asdict(it)) for _, it in sorted(self._sums.items())),
            events=tuple(_event_view(it, mask) for it in newest),
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
