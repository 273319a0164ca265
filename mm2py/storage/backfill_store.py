"""Backfills of one flow, as every process sees them (``mm2py-backfill.<source>.internal``).

Flow: ``start`` -> the topic is read to its end, then followed -> ``job``, ``leases``, ``kept_out``
-> ``listen``; ``post`` -> acknowledged. A fold over a ``Table``; which process may write a key is
in ``mm2py.mirror.backfills``.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import newest_values
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.errors import ProtocolError
from mm2py.mirror.backfills import (
    ALIVE_S,
    NO_END,
    PROGRESS_ALIVE_S,
    BackfillRecord,
    Job,
    JobKind,
    JobState,
    Lease,
    LeaseState,
    Notice,
    Order,
    Progress,
    Wanted,
    Wish,
    backfill_key,
    backfill_topic,
    decode_backfill,
    encode_backfill,
    lease_key,
    unknown_kind,
    without_driver,
    without_process,
)
from mm2py.mirror.start_positions import FIRST_START, STREAMED_PARTITIONS
from mm2py.mirror.versioned_json import unreadable
from mm2py.protocol.records import Record
from mm2py.storage.table import Table
from mm2py.types import FlowName, TopicPartition

log = logging.getLogger(__name__)

READ_S: Final = 60.0
"""Longest read to the end of the topic (``default.api.timeout.ms``)."""

_JOB: Final = b"job"

KEPT: Final = 4
"""How many jobs without a claim are kept of each kind, beside one that begins; the newest."""

SILENT_MS: Final = 3_600_000
"""A running one without progress for so long is removed; more than clocks of machines differ."""


@final
class BackfillStore:
    """The newest record of each key.

    Args:
        table: the topic; followed, or read by ``refresh``.
    """

    def __init__(self, table: Table, clock: Clock = SYSTEM_CLOCK) -> None:
        self._table, self._clock = table, clock
        self._records: dict[bytes, BackfillRecord] = {}
        self._renewed: dict[int, int] = {}
        self._lease_heard: dict[bytes, float] = {}
        self._lane_heard: dict[int, float] = {}
        self._changed: Callable[[], None] | None = None
        self.offset = 0
        """Offset after the last record that was read."""
        self.reserved = 0
        """Offset after the newest record that reserves a partition for a lane."""
        self._heard_s = 0.0
        self.progress_heard: dict[bytes, float] = {}
        """Times at which records of ``progress`` were read, in seconds of the monotonic clock."""
        self._unknown: set[str] = set()
        """Kinds of records of newer versions, which are logged once each."""
        self.live = False
        """Whether the topic has been read."""
        self.unreadable: ProtocolError | None = None
        """Why the newest job record cannot be read: no driver may take up ``job``, an older one."""

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError``: not now; a later call starts over."""
        self._records.clear()
        for known in (self._renewed, self._lease_heard, self._lane_heard, self.progress_heard):
            known.clear()
        self.offset = self.reserved = 0
        self.live, self.unreadable = False, None
        await self._table.start(self._take)
        self.live = True

    async def stop(self) -> None:
        """Stop reading; safe before ``start`` and safe twice."""
        self.live = False
        await self._table.stop()

    async def refresh(self) -> None:
        await self._table.read_to_end(READ_S)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` after each record that is read later."""
        self._changed = changed

    # ---- what is known

    @property
    def job(self) -> Job | None:
        """The newest backfill, None if there was none."""
        record = self._records.get(_JOB)
        return record if isinstance(record, Job) else None

    @property
    def shown_job(self) -> Job | None:
        """The newest backfill as followers of the topic show it: FAILED once its driver's beat has
        not risen for ``ALIVE_S``."""
        job = self.job
        if job is None or not job.state.is_copied:
            return job
        # By our own clock since the record was read, not by its time: clocks of machines differ.
        return without_driver(job) if self._clock.monotonic() - self._heard_s > ALIVE_S else job

    @property
    def order(self) -> Order | None:
        """The last plan made over REST, None if there is none."""
        record = self._records.get(b"order")
        return record if isinstance(record, Order) else None

    @property
    def wanted(self) -> Wanted:
        wish, job = self._records.get(b"wish"), self.job
        # A request of an earlier job stays in the topic; it must not pause or end a later one.
        if isinstance(wish, Wish) and job is not None and wish.job == job.id:
            return wish.wanted
        return Wanted.RUN

    @property
    def leases(self) -> Mapping[TopicPartition, Lease]:
        """Partitions of the newest backfill, by source partition."""
        job = self.job
        return {
            record.source: record
            for record in self._records.values()
            if isinstance(record, Lease) and job is not None and record.job == job.id
        }

    @property
    def first_stream_ms(self) -> int:
        """When the first stream began that had a partition, 0 for none: carried from job to job, as
        a later one has other leases, or none if it ends before it reserves any."""
        job = self.job
        if job is None or job.first_stream_ms:
            return 0 if job is None else job.first_stream_ms
        # Without its run a driver was killed before it had placed the partition.
        is_begun = any(
            isinstance(it, Lease) and it.run and it.end == NO_END for it in self._records.values()
        )
        return job.started_ms if is_begun else 0

    def streamed(self) -> Sequence[Mapping[str, str]]:
        """Return what a connector is told of the flow's streams, beside published task configs:
        what came after they began is no first start's; none before a stream."""
        first_ms = self.first_stream_ms
        # Of every job: a backfill after a stream has taken leases over, and stored positions.
        had = sorted(it.source for it in self._records.values() if isinstance(it, Lease) and it.run)
        told = {STREAMED_PARTITIONS: ",".join(map(str, had)), FIRST_START: str(first_ms)}
        return (told,) if first_ms else ()

    def kept_out(self) -> Mapping[TopicPartition, Lease]:
        """Return what the live flow must not copy: reserved for lanes, or copied by one."""
        job = self.job
        if job is None or job.state.is_over:
            return {}
        return {tp: lease for tp, lease in self.leases.items() if lease.state.keeps_live_out}

    def renewed(self, lane: int) -> int:
        """Return the offset of the newest record of a lane that copies, -1 for none."""
        return self._renewed.get(lane, -1)

    def lease_of(self, partition: TopicPartition) -> Lease | None:
        """Return a partition's lease in the newest job, None where it is not in it."""
        record, job = self._records.get(lease_key(partition).encode()), self.job
        if not isinstance(record, Lease) or job is None or record.job != job.id:
            return None
        return record

    def silent_s(self, lease: Lease) -> float:
        """Return for how long nothing was heard of a lease: where it waits for a lane of any of
        them, else of its own."""
        heard = [self._lease_heard.get(lease_key(lease.source).encode(), 0.0)]
        if lease.state is LeaseState.RESERVED:
            # Reserved, not begun: any lane of the job that renews its lease may take it next.
            heard += self._lane_heard.values()
        elif lease.state is LeaseState.COPYING:
            heard.append(self._lane_heard.get(lease.lane, 0.0))
        return self._clock.monotonic() - max(heard)

    @property
    def copying(self) -> bool:
        """Whether a lane has not given its partitions back yet."""
        return any(lease.state is LeaseState.COPYING for lease in self.leases.values())

    def in_backfill(self) -> Mapping[TopicPartition, Lease]:
        """Return which of them a backfill copies: a stream does not change the copies' configs."""
        job = self.job
        return {} if job is not None and job.kind is JobKind.STREAM else self.kept_out()

    def noticed(self, worker: str) -> int:
        """Return below which offset of the topic a worker has acted on all records, -1 for none."""
        record = self._records.get(f"notice:{worker}".encode())
        return record.offset if isinstance(record, Notice) else -1

    @property
    def progress(self) -> Sequence[Progress]:
        """Jobs without a claim, the newest first; one that runs is FAILED once its record has not
        changed for ``PROGRESS_ALIVE_S``."""
        now_s = self._clock.monotonic()
        found = [
            without_process(it) if now_s - self.progress_heard[key] > PROGRESS_ALIVE_S else it
            for key, it in self._records.items()
            if isinstance(it, Progress)
        ]
        return sorted(found, key=lambda it: it.started_ms, reverse=True)

    # ---- changes

    async def post(self, records: Sequence[BackfillRecord]) -> int:
        """Write records as one batch; return the offset of the first once all are acknowledged."""
        return await self._table.post([encode_backfill(record) for record in records])

    async def notice(self, worker: str, offset: int) -> None:
        """Write that a worker of the live flow copies nothing reserved below ``offset``."""
        await self.post([Notice(worker=worker, offset=offset)])

    async def forget_notices(self) -> None:
        """Remove the workers' notices, which are used during one start only."""
        keys = [key for key, record in self._records.items() if isinstance(record, Notice)]
        if keys:
            await self._table.post([(key, None) for key in keys])

    async def forget_progress(self, kind: str) -> None:
        """Remove all but the newest ``KEPT`` of a kind; one that may still run stays."""
        silent_ms = self._clock.now_ms() - SILENT_MS
        # ``progress`` is sorted, the newest first.
        older = [it for it in self.progress if it.kind == kind][KEPT:]
        old = [it for it in older if it.state is not JobState.RUNNING or it.at_ms < silent_ms]
        if old:
            await self._table.post([(backfill_key(it).encode(), None) for it in old])

    def _take(self, _partition: int, record: Record) -> None:
        self.offset = record.offset + 1
        key = bytes(record.key or b"")
        if record.value is None:
            self._records.pop(key, None)
            self.progress_heard.pop(key, None)
            self._lease_heard.pop(key, None)
        else:
            try:
                taken = self._records[key] = decode_backfill(key, bytes(record.value))
            except ProtocolError as error:
                kind = unknown_kind(key)
                # One line per unknown kind: a newer version may write thousands of them.
                if not kind or kind not in self._unknown:
                    log.warning("record is ignored offset=%d cause=%s", record.offset, error)
                self._unknown.add(kind)
                # The older job stays readable for displays; no driver may act on it.
                if key == _JOB:
                    self.unreadable = error
                return
            if isinstance(taken, Progress):
                self.progress_heard[key] = self._clock.monotonic()
            if isinstance(taken, Job):
                self.unreadable = None
                self._heard_s = self._clock.monotonic()
            if isinstance(taken, Lease):
                self._hear(key, taken)
        if self._changed is not None:
            self._changed()

    def _hear(self, key: bytes, lease: Lease) -> None:
        """Note when a lease was heard of; one record of a lane that copies renews all of its."""
        now_s = self._lease_heard[key] = self._clock.monotonic()
        if lease.state is LeaseState.RESERVED:
            self.reserved = self.offset
        elif lease.state is LeaseState.COPYING:
            self._renewed[lease.lane] = self.offset - 1
            self._lane_heard[lease.lane] = now_s


async def newest_backfills(
    cluster: Cluster, topic: str, clock: Clock
) -> Mapping[bytes, BackfillRecord]:
    """Return the newest record of each key of a backfill topic, with what is committed until now.

    Raises:
        FatalError: as ``decoded_backfills``.
        RetriableError: the cluster does not answer.
    """
    return decoded_backfills(topic, await newest_values(cluster, topic, clock))


def decoded_backfills(topic: str, values: Mapping[bytes, bytes]) -> Mapping[bytes, BackfillRecord]:
    """Return the records that this version knows; ``FatalError``: the job is not one of them, so
    whether it is over is not known."""
    newest: dict[bytes, BackfillRecord] = {}
    for key, value in values.items():
        try:
            newest[key] = decode_backfill(key, value)
        except ProtocolError as error:
            if key == _JOB:
                raise unreadable(topic, error) from error
    return newest


async def unfinished_job(target: Cluster, flow: FlowName, clock: Clock) -> str:
    """Return what to call the unfinished job of a flow, its state, and the command that ends it;
    empty where there is none.

    Raises:
        FatalError: its newest job is of a version that this program cannot read.
        RetriableError: the target does not answer.
    """
    records = await newest_backfills(target, backfill_topic(flow.source), clock)
    job = records.get(_JOB)
    if not isinstance(job, Job) or job.state.is_over:
        return ""
    again = any(
        isinstance(record, Lease) and record.job == job.id and record.again
        for record in records.values()
    )
    return describe_unfinished(job, str(flow), repairs=again)


def describe_unfinished(job: Job, flow: str, *, repairs: bool = False) -> str:
    """Return what to call a job that is not over, its state, and the command that ends it."""
    if job.kind is JobKind.STREAM:
        return (
            f"stream {job.id} of {flow} is {job.state.value}: end it with SIGTERM where it runs,"
            f" or where its driver is gone with mm2py stream FILE --flow '{flow}' --cancel"
        )
    kind = "repair" if repairs else "backfill"
    name = f"restore {job.id} of {job.archive}" if job.archive else f"{kind} {job.id}"
    return (
        f"{name} of {flow} is {job.state.value}: wait for its end (mm2py backfill status FILE "
        f"--flow '{flow}'), or end it with mm2py backfill cancel FILE --flow '{flow}'"
    )
