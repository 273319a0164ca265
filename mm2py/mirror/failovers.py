"""Records of ``mm2py-failover.<alias>.internal``: a change of sides, and who is kept from writing
meanwhile (docs/reference/formats.md).

Flow: ``Failover``, ``Fence`` -> ``encode_failover`` -> the topic -> ``decode_failover``; the newest
record of a key counts. No I/O, no decisions: those are of ``mm2py_jobs.failover.driver``.

The topic of ``A->B`` is on B and carries A's alias: the failover of ``A->B`` is there, and the
fence on B that a failover of ``B->A`` has made. So a fence is known where it is in force, also when
the other cluster is gone.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from typing import Final

from pydantic import TypeAdapter

from mm2py.errors import ProtocolError
from mm2py.mirror.versioned_json import VERSION, decode_as, encode
from mm2py.observability.quantities import utc_text
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.types import LONGEST_TOPIC_NAME, NO_PRODUCER_ID, TopicPartition

MOST_LOSS: Final = (1 << 53) - 1
"""The largest number of offsets that can be accepted: what JSON holds exactly."""
HANGS_MS: Final = 15 * 60_000
"""Kafka's ``transaction.max.timeout.ms``: no coordinator of its defaults leaves a transaction open
for longer."""
_COMPRESSED: Final = 2
_LONGEST_PLAIN: Final = 64 * 1024


def failover_topic(source_alias: str) -> str:
    """Return the name of the topic on the target; no mirror replicates it (``mm2*.internal``)."""
    return f"mm2py-failover.{source_alias}.internal"


def is_failover_topic(name: str) -> bool:
    """Whether this is the failover topic of any flow."""
    return name.startswith("mm2py-failover.") and name.endswith(".internal")


def failover_driver_id(flow: str) -> str:
    """Return the transactional id of the driver of a flow (``A->B``)."""
    return f"mm2py-failover-{flow}-driver"


def quarantine_topic(source_alias: str, topic: str) -> str:
    """Return the topic on the target that keeps records of a source topic which were not copied
    before a failover.

    It ends in ``.internal`` too: no mirror carries it further.
    """
    name = f"mm2py-quarantine.{source_alias}.{topic}.internal"
    # Kafka allows 249 characters; the hash keeps two long names apart that share their beginning.
    if len(name) <= LONGEST_TOPIC_NAME:
        return name
    mark = sha256(topic.encode()).hexdigest()[:12]
    return f"mm2py-quarantine.{source_alias[:100]}.{mark}.internal"


class FailoverKind(StrEnum):
    """Which command began it; both do the same."""

    FAILOVER = "failover"
    FAILBACK = "failback"


class Step(StrEnum):
    """What is being done; each step may be done again."""

    FENCE = "FENCE"
    """Writers are kept from the source, where ACLs allow."""
    DRAIN = "DRAIN"
    """What is on the source is copied."""
    GROUPS = "GROUPS"
    """Consumer groups get their exact offsets on the target."""
    VERIFY = "VERIFY"
    """The ends of the source's logs stand still."""
    SWITCH = "SWITCH"
    """Clients may write to the target; the flow stops."""
    TAIL = "TAIL"
    """What was not copied is listed and kept; waits for a source that is gone."""
    REVERSE = "REVERSE"
    """The flow back begins where both clusters part."""
    DONE = "DONE"
    CANCELLED = "CANCELLED"

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self in (Step.DONE, Step.CANCELLED)

    @property
    def is_switched(self) -> bool:
        """Whether clients may have written to the target: there is no cancel any more."""
        return self in (Step.SWITCH, Step.TAIL, Step.REVERSE, Step.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """An offset of a partition."""

    topic: str
    partition: int
    offset: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Source offsets ``start <= offset < end`` that were not copied; ``records`` of them are in the
    quarantine topic.

    ``gone``: ranges (exclusive ends) that the source had deleted before they were kept.
    """

    topic: str
    partition: int
    start: int
    end: int
    records: int = 0
    gone: tuple[tuple[int, int], ...] = ()

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that holds back the last stable offset of a source partition: it begins at
    ``offset``, ``since_ms``.

    -1, and an empty name, for what the source's brokers do not disclose; ``coordinator`` is a
    broker's id.
    """

    topic: str
    partition: int
    offset: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = -1
    transactional_id: str = ""
    coordinator: int = -1
    since_ms: int = -1

    def hangs(self, now_ms: int) -> bool:
        """Whether it is open for longer than brokers allow by default: none of its producers is
        expected to end it."""
        # -1 (brokers without KIP-664's DescribeTransactions) is no age.
        return now_ms - self.since_ms > HANGS_MS and self.since_ms >= 0

    def __str__(self) -> str:
        name = self.transactional_id or "a transaction (transactional id not disclosed)"
        producer = (
            f"producer {self.producer_id}, epoch {self.epoch}"
            if self.producer_id != NO_PRODUCER_ID
            else "producer not disclosed"
        )
        if self.coordinator >= 0:
            producer += f", coordinator broker {self.coordinator}"
        since = ""
        if self.since_ms >= 0:
            since = f", since {utc_text(self.since_ms)} UTC"
        return (
            f"{name} ({producer}) is open in {self.topic}-{self.partition} from offset "
            f"{self.offset}{since}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMove:
    """What the group syncs of a failover did with a group: partitions whose offset was written, and
    what was left alone and why."""

    group: str
    moved: int
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An ACL that keeps one principal from writing to one topic."""

    topic: str
    principal: str

    @property
    def acl(self) -> Acl:
        """The rule as a cluster has it: denied from any host."""
        return Acl(
            AclResourceType.TOPIC,
            self.topic,
            PatternType.LITERAL,
            self.principal,
            "*",
            AclOperation.WRITE,
            AclPermission.DENY,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Rules that were made on the cluster that has this record, or are about to be; none: the fence
    is lifted."""

    by: str
    rules: tuple[Rule, ...] = ()

    @property
    def acls(self) -> frozenset[Acl]:
        return frozenset(rule.acl for rule in self.rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """When a step began and ended (ms since the epoch), ``ended_ms`` 0 while it lasts; if it was
    repeated after another one, the last time."""

    step: Step
    began_ms: int
    ended_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """One change of sides of a flow; ``run`` counts its drivers, ``driver`` is the newest.

    ``accept_loss`` is the most source offsets that may stay behind, -1 for none. ``unplanned``:
    begun without the source. ``ends`` are where the source's logs stood still; ``ends_there`` where
    those of their copies ended then; ``starts`` where the flow back begins. ``stopped_at`` is the
    offset of the record in Connect's config topic that its flow was stopped by, -1 unknown.
    ``transactions`` are those that the drain waits for, or that were open when it went past them.
    ``fence_note`` names who could not be kept from writing, ``cause`` is the cause of the last
    driver's failure. ``steps`` in the order in which they began; with those of a driver that ended
    early, the time until another one continued.
    """

    id: str
    flow: str
    kind: FailoverKind
    step: Step
    run: int
    driver: str = ""
    accept_loss: int = -1
    unplanned: bool = False
    started_ms: int = 0
    at_ms: int = 0
    switched_ms: int = 0
    missing: int = -1
    fenced: bool = False
    fence_note: str = ""
    ends: tuple[LogPlace, ...] = ()
    ends_there: tuple[LogPlace, ...] = ()
    groups: tuple[GroupMove, ...] = ()
    tail: tuple[Tail, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()
    starts: tuple[LogPlace, ...] = ()
    stopped_at: int = -1
    cause: str = ""
    steps: tuple[StepTime, ...] = ()

    def recorded(self, now_ms: int) -> "Failover":
        """Return the record of a moment: the step that it is at has begun, and the one before has
        ended."""
        latest = self.steps[-1] if self.steps else None
        # The same step again, by this driver or its successor: its time continues.
        if latest is not None and latest.step is self.step:
            return replace(self, at_ms=now_ms)
        steps = self.steps
        if latest is not None and not latest.ended_ms:
            # Two drivers on two machines: a clock that is behind must not end a step before it
            # began.
            steps = (*steps[:-1], replace(latest, ended_ms=max(now_ms, latest.began_ms)))
        if not self.step.is_over:
            # A step that is repeated counts once, with its last run.
            before = tuple(it for it in steps if it.step is not self.step)
            steps = (*before, StepTime(step=self.step, began_ms=now_ms))
        return replace(self, at_ms=now_ms, steps=steps)

    def goes_on(self, *, unplanned: bool) -> bool:
        """Whether a run continues it as it was accepted: its clients wait. One that is to continue
        without its source is checked again."""
        return not self.step.is_over and (not unplanned or self.unplanned or self.step.is_switched)

    def is_undone(self, back: "Failover | None") -> bool:
        """Whether its clients write to the source again: it was cancelled, or they have returned by
        ``back``."""
        returned_ms = 0 if back is None else back.switched_ms
        return self.step is Step.CANCELLED or 0 < self.switched_ms < returned_ms


FailoverRecord = Failover | Fence

_ADAPTERS: Final[Mapping[str, TypeAdapter[FailoverRecord]]] = {
    "failover": TypeAdapter(Failover),
    "fence": TypeAdapter(Fence),
}


def encode_failover(record: FailoverRecord) -> tuple[bytes, bytes]:
    """Return key (``failover`` or ``fence``) and value: the version byte, then ASCII JSON with
    sorted members.

    One of thousands of partitions is compressed (version 2): no topic takes it otherwise.
    """
    key = type(record).__name__.lower()
    members = _ADAPTERS[key].dump_python(record, mode="json")
    plain = encode(members)
    if len(plain) - 1 <= _LONGEST_PLAIN:
        return key.encode(), plain
    return key.encode(), bytes((_COMPRESSED,)) + zlib.compress(plain[1:])


def decode_failover(key: bytes | None, value: bytes) -> FailoverRecord:
    """Read a record that is no tombstone; members that it does not know are ignored.
    ``ProtocolError``: it is damaged, or of a version that this program does not know."""
    text = (key or b"").decode(errors="replace")
    adapter = _ADAPTERS.get(text)
    if adapter is None or not value or value[0] not in (VERSION, _COMPRESSED):
        raise ProtocolError(f"key {text!r} is no record of version 1 or 2 of the failover topic")
    try:
        plain = value[1:] if value[0] == VERSION else zlib.decompress(value[1:])
    except zlib.error as error:
        raise ProtocolError(f"damaged record {text!r} of the failover topic: {error}") from None
    return decode_as(adapter, plain, f"{text!r} of the failover topic")
