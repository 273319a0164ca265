"""Records of ``mm2py-backfill.<source>.internal``: what Spark copies of a flow, and which workers
have noticed (docs/reference/formats.md).

Flow: ``Job``, ``Lease``, ``Wish``, ``Notice``, ``Progress`` -> ``encode_backfill`` -> the topic on
the target -> ``decode_backfill``; the newest record of a key counts. No I/O, no decisions.

Each key has one kind of writer, so that no record overwrites another program's: the job is its
driver's, a lease the driver's before and after a run and its lane's during one, the requested state
the operator's (a run takes a pause back), a notice to one worker of the live flow, an order to the
worker that leads it, a progress to the command that makes it.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pydantic import TypeAdapter

from mm2py.errors import ProtocolError
from mm2py.mirror.versioned_json import VERSION, decode_as, encode
from mm2py.observability.quantities import utc_text
from mm2py.types import TopicPartition

BEAT_S: Final = 2.0
"""How often a driver writes that it lives."""

ALIVE_S: Final = 4 * BEAT_S
"""A driver whose beat does not rise for this long is dead, or frozen: the next one fences it."""

LEASE_S: Final = 6.0
"""How long a lane may send after its lease was renewed. Long enough for a slow broker, as a session
of the running flow is; a retry after a kill waits this long."""

LANE_LOST: Final = "the process of its lane ended in each attempt"
"""Begins the cause of a partition that a lane's process dies of, as of a batch that its memory does
not hold."""

PROGRESS_S: Final = 5.0
"""How often a job without a claim writes how far it is."""

PROGRESS_ALIVE_S: Final = 4 * PROGRESS_S
"""One whose record does not change for this long has no process any more, or one that cannot
write."""

NO_END: Final = 2**63 - 1
"""The end of a partition that a stream copies."""

RANGE_GONE: Final = "what was left of the range is gone"
"""In the cause of a partition whose source was cut or created again: its end was in a log that is
not there any more."""
NO_DRIVER: Final = (
    "its driver is gone and nothing copies what is left: run the same command again, or cancel it"
)


def backfill_topic(source_alias: str) -> str:
    """Return the name of the topic on the target; no mirror replicates it (``mm2*.internal``)."""
    return f"mm2py-backfill.{source_alias}.internal"


def driver_id(flow: str) -> str:
    """Return the transactional id of the driver of a flow (``A->B``)."""
    return f"mm2py-backfill-{flow}-driver"


def lane_id(flow: str, lane: int) -> str:
    """Return the transactional id of a lane's lease."""
    return f"mm2py-backfill-{flow}-{lane}"


def new_id(now_ms: int) -> str:
    """Return an id of a job or an order: ids sort by time."""
    return f"{now_ms}-{secrets.token_hex(2)}"


class JobKind(StrEnum):
    """What is copied."""

    BACKFILL = "BACKFILL"
    """History up to an end, where the live flow continues."""
    STREAM = "STREAM"
    """Everything, until the stream is stopped."""


class JobState(StrEnum):
    """What a backfill or a stream as a whole does."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    DONE = "DONE"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    """It ended early: another run continues it, or a cancel returns its partitions."""

    @property
    def is_copied(self) -> bool:
        """Whether lanes are to work on it."""
        return self in (JobState.RUNNING, JobState.PAUSED)

    @property
    def is_over(self) -> bool:
        """Whether none of its partitions is kept from the live flow any more."""
        return self in (JobState.DONE, JobState.CANCELLED)


class LeaseState(StrEnum):
    """Which side copies a partition."""

    RESERVED = "RESERVED"
    """For a lane; the live flow does not copy it."""
    COPYING = "COPYING"
    """A lane does."""
    HANDED_OVER = "HANDED_OVER"
    """Everything below the end is copied, and the position is stored: the live flow continues
    there."""
    RELEASED = "RELEASED"
    """Cancelled or failed: the live flow continues at the stored position."""

    @property
    def keeps_live_out(self) -> bool:
        """Whether the live flow must not copy the partition."""
        return self in (LeaseState.RESERVED, LeaseState.COPYING)


class Wanted(StrEnum):
    """The requested state of a running job."""

    RUN = "RUN"
    PAUSE = "PAUSE"
    CANCEL = "CANCEL"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A property of a target topic that is another one during the run; ``before`` is None where it
    was a default."""

    topic: str
    name: str
    before: str | None
    during: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One backfill or stream; ``run`` counts its drivers, ``beat`` rises while one lives, ``lanes``
    were used at most so far.

    A stream deals its partitions to lanes anew as soon as ``turn`` rises, to as many as run at the
    same time now (``slots``). ``driver`` is the process that works on it or did last. ``archive``
    is what a restore reads in place of the source, empty for a backfill. ``first_stream_ms`` is
    when the first stream of the flow began that had a partition, 0 before.
    """

    id: str
    state: JobState
    run: int
    lanes: int
    kind: JobKind = JobKind.BACKFILL
    turn: int = 0
    slots: int = 0
    beat: int = 0
    topics: str = ""
    start: str = "earliest"
    end: str = "now"
    started_ms: int = 0
    settings: tuple[SettingChange, ...] = ()
    cause: str = ""
    driver: str = ""
    archive: str = ""
    first_stream_ms: int = 0


def without_driver(job: Job) -> Job:
    """Return a job whose driver is gone as it is shown: nothing copies its partitions."""
    return replace(job, state=JobState.FAILED, cause=NO_DRIVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyAgain:
    """A copy that is made again from the start of its lease on: its target topic, and where that
    log ended when it was compared.

    ``below`` is where that log ended when the first step was about to be done, -1 before;
    ``deletes``: its records below that are deleted.
    """

    topic: str
    compared_to: int
    deletes: bool = False
    below: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One source partition in a job; ``end`` is the source offset after its last record,
    ``position`` the next one to copy.

    ``attempt`` is the process that copies it or did last. ``target_start`` and ``target_end`` are
    where its records begin and end on the target so far, -1 before the first; ``lag`` is how far
    its copy was behind the source when the record was written, in offsets, -1 where that is not
    known.
    """

    topic: str
    partition: int
    job: str
    run: int
    state: LeaseState
    start: int
    end: int
    position: int
    lane: int = -1
    attempt: str = ""
    target_start: int = -1
    target_end: int = -1
    bytes: int = 0
    lag: int = -1
    cause: str = ""
    again: CopyAgain | None = None

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def copy(self) -> TopicPartition:
        """The target partition of a copy that is made again."""
        return TopicPartition("" if self.again is None else self.again.topic, self.partition)

    @property
    def is_gone(self) -> bool:
        """Whether its source was cut or created again: no later run has anything to copy of it."""
        return self.state is LeaseState.RELEASED and RANGE_GONE in self.cause

    @property
    def left(self) -> int:
        """Source offsets that a lane has still to copy."""
        return max(0, self.end - self.position) if self.state.keeps_live_out else 0

    @property
    def records(self) -> int:
        """Records on the target: its partition has no other writer meanwhile."""
        return max(0, self.target_end - self.target_start) if self.target_start >= 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The requested state of a job."""

    job: str
    wanted: Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A worker of the live flow copies nothing that was kept from it below ``offset`` of this
    topic."""

    worker: str
    offset: int


_ORDER_OPTIONS: Final = (
    "accept_expiry",
    "skip_refused",
    "wait_executors_s",
    "lanes",
    "max_lanes_per_broker",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A backfill that was planned over REST; its job, if one was begun, has the same id.

    ``worker`` is the one whose child process drives it or did last, empty before the first start;
    ``cause`` and ``log`` are why that process ended early, and the last lines it wrote.
    """

    id: str
    topics: str = ""
    start: str = "earliest"
    end: str = "now"
    rate_limit: int = 0
    master: str = ""
    by: str = ""
    at_ms: int = 0
    worker: str = ""
    cause: str = ""
    log: tuple[str, ...] = ()
    accept_expiry: bool = False
    skip_refused: bool = False
    wait_executors_s: int = 0
    lanes: int = 0
    max_lanes_per_broker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a job without a claim, for display alone: nothing is decided by it.

    ``kind`` is the job's name in capitals, also one of another package; ``state`` is RUNNING, DONE
    or FAILED; ``beat`` rises while it runs; ``done`` of ``total`` offsets are behind it (a verify
    reads both sides), ``total`` is -1 while it is planned.
    ``equal``, ``differences`` and ``not_compared`` (partitions) are those of a verify that has
    ended; ``result`` is its last line, or that of another kind.
    """

    id: str
    kind: str
    state: JobState = JobState.RUNNING
    beat: int = 0
    topics: str = ""
    started_ms: int = 0
    at_ms: int = 0
    done: int = 0
    total: int = -1
    records: int = 0
    bytes: int = 0
    equal: bool | None = None
    differences: int = 0
    not_compared: int = 0
    result: str = ""
    cause: str = ""
    driver: str = ""


def without_process(progress: Progress) -> Progress:
    """Return a job whose record does not change any more as it is shown; one that is over stays."""
    if progress.state is not JobState.RUNNING:
        return progress
    cause = (
        f"not heard of since {utc_text(progress.at_ms)} UTC: its process is gone, or cannot "
        "reach the target and still runs"
    )
    return replace(progress, state=JobState.FAILED, cause=cause)


BackfillRecord = Job | Lease | Wish | Notice | Order | Progress

_ADAPTERS: Final[Mapping[str, TypeAdapter[BackfillRecord]]] = {
    "job": TypeAdapter(Job),
    "lease": TypeAdapter(Lease),
    "notice": TypeAdapter(Notice),
    "order": TypeAdapter(Order),
    "progress": TypeAdapter(Progress),
    "wish": TypeAdapter(Wish),
}


def lease_key(partition: TopicPartition) -> str:
    """Return the key of a source partition's lease."""
    return f"lease:{partition.topic}:{partition.partition}"


def backfill_key(record: BackfillRecord) -> str:
    """Return ``job``, ``wish``, ``order``, ``lease:<topic>:<partition>``, ``notice:<worker>`` or
    ``progress:<kind>:<id>``."""
    match record:
        case Lease(source=partition):
            return lease_key(partition)
        case Notice(worker=worker):
            return f"notice:{worker}"
        case Progress(kind=kind, id=identifier):
            return f"progress:{kind.lower()}:{identifier}"
        case Job() | Wish() | Order():
            return type(record).__name__.lower()


def unknown_kind(key: bytes) -> str:
    """Return what kind of record a key is of that this version does not know; empty for a known
    one."""
    kind = key.decode(errors="replace").partition(":")[0]
    return "" if kind in _ADAPTERS else kind


def encode_backfill(record: BackfillRecord) -> tuple[bytes, bytes]:
    """Return key and value: the version byte, then ASCII JSON with sorted members."""
    key = backfill_key(record)
    members = _ADAPTERS[key.partition(":")[0]].dump_python(record, mode="json")
    if isinstance(record, Order):
        for name in _ORDER_OPTIONS:
            if not members[name]:
                del members[name]  # as versions before it wrote
    if isinstance(record, Job) and not record.first_stream_ms:
        del members["first_stream_ms"]
    return key.encode(), encode(members)


def decode_backfill(key: bytes | None, value: bytes) -> BackfillRecord:
    """Read a record that is no tombstone; members that it does not know are ignored.
    ``ProtocolError``: it is damaged, or of a version that this program does not know."""
    text = (key or b"").decode(errors="replace")
    adapter = _ADAPTERS.get(text.partition(":")[0])
    if adapter is None or not value or value[0] != VERSION:
        raise ProtocolError(f"key {text!r} is no record of version 1 of the backfill topic")
    record = decode_as(adapter, value[1:], f"{text!r} of the backfill topic")
    # Key and value disagree only where another program wrote: folding such a lease would change
    # another partition.
    if backfill_key(record) != text:
        raise ProtocolError(f"record {text!r} of the backfill topic has the value of another key")
    return record
