"""Offset syncs: the record, Java's rule when to write one, the queue that writes them, and
translation with them.

Flow: delivered ``Run`` -> ``OffsetSyncState`` (which records) -> ``OffsetSyncEmitter`` (queue per
partition, one request in flight) -> the offset-syncs topic, partition 0 -> ``OffsetSyncStore.add``
-> 64 slots per source partition -> ``translate``. Java: ``OffsetSync``, ``OffsetSyncWriter``,
``PartitionState``, ``OffsetSyncStore``.
"""

import asyncio
import math
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, final

from mm2py.api.task import Run
from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.protocol.records import NewRecord
from mm2py.protocol.wire import read_record_string, record_string
from mm2py.types import TopicPartition

SYNCS_PER_REQUEST: Final = 200
"""At most 56 KB even with the longest topic names, below any reasonable ``max.message.bytes``."""

MIN_SPACING_S: Final = 0.5
"""Java has no such pause: it sends one request per sync, at most ten at a time, and drops syncs in
between."""

REFUSED_S: Final = 5.0
"""How long the next request waits after one that the broker refused."""

EVERY_SYNC: Final = 64
"""Syncs by lag of one partition that are written without being thinned out."""

MOST_WAITING: Final = 4096
"""Limit of the syncs for gaps and rewinds that wait per partition while the topic cannot be
written."""

MOST_WAITING_IN_ALL: Final = 100_000
"""The same of all partitions of a task, about 15 MB: each marker of a transaction at the source is
a gap."""

LEAST_WAITING: Final = 8
"""Of one partition."""

_PARTITION: Final = struct.Struct(">i")
_OFFSETS: Final = struct.Struct(">qq")
_NONE: Final = -1


class OffsetSync(NamedTuple):
    """``upstream`` of a source partition is ``downstream`` of its copy."""

    partition: TopicPartition
    upstream: int
    downstream: int


def encode_offset_sync(sync: OffsetSync) -> tuple[bytes, bytes]:
    """Return key and value."""
    key = record_string(sync.partition.topic) + _PARTITION.pack(sync.partition.partition)
    return key, _OFFSETS.pack(sync.upstream, sync.downstream)


def decode_offset_sync(key: bytes, value: bytes) -> OffsetSync:
    """Read a sync; ``ProtocolError`` for short records."""
    topic, position = read_record_string(key, 0)
    if len(key) < position + _PARTITION.size or len(value) < _OFFSETS.size:
        raise ProtocolError(f"offset sync is short: key={len(key)} value={len(value)} bytes")
    (partition,) = _PARTITION.unpack_from(key, position)
    upstream, downstream = _OFFSETS.unpack_from(value)
    return OffsetSync(TopicPartition(topic, partition), upstream, downstream)


class OffsetSyncState:
    """Java's emission rule for one source partition and task lifetime, in closed form for a run of
    equal shift.

    A record gets a sync when it is the first, at a gap or rewind of either side, and
    ``offset.lag.max`` + 1 target offsets after the last sync; beyond Java, also where the shift
    changes, which is where translation would lose precision.
    """

    __slots__ = ("_downstream", "_step", "_synced", "_upstream")

    def __init__(self, lag_max: int) -> None:
        self._step = lag_max + 1
        self._upstream = _NONE
        self._downstream = _NONE
        self._synced = _NONE

    def observe_run(self, run: Run) -> tuple[bool, range]:
        """Note a run; return whether its first record gets a sync for what it is, and the indexes
        by lag."""
        first, count, downstream = run
        # With a continuous upstream, any downstream step other than one is a rewind or a new shift.
        breaks = (
            self._synced == _NONE
            or first - self._upstream != 1
            or downstream - self._downstream != 1
        )
        if breaks:
            self._synced = downstream
        # Inside a run both offsets grow by one, so only the lag rule is left.
        # Java: downstream - (last + 1) >= offset.lag.max, because translation is exact one past the
        # last sync; so the step is lag.max + 1.
        by_lag = range(self._synced + self._step - downstream, count, self._step)
        if by_lag:
            self._synced = downstream + by_lag[-1]
        self._upstream = first + count - 1
        self._downstream = downstream + count - 1
        return breaks, by_lag


class _DueSyncs(NamedTuple):
    """A number of ``syncs``, each ``offset.lag.max`` + 1 offsets after the one before."""

    upstream: int
    downstream: int
    syncs: int
    by_lag: bool
    """Required by the lag alone: may be left out in the middle of a run."""


@final
class _WaitingSyncs:
    """Syncs of one partition that are not sent yet, in order."""

    __slots__ = ("_due", "_partition", "_step")

    def __init__(self, partition: TopicPartition, step: int) -> None:
        self._partition = partition
        self._step = step
        self._due: list[_DueSyncs] = []

    def add(self, new: _DueSyncs, most: int) -> None:
        """Add a sync; of more than ``most`` every second one is left out, never the first, the
        newest, or one where offsets go back."""
        due = self._due
        # A long backlog at even spacing is one entry, whatever its length: a topic that cannot be
        # written for hours costs no memory.
        if due and due[-1].by_lag and new.by_lag:
            upstream, downstream, count, _ = due[-1]
            ahead = count * self._step
            if (upstream + ahead, downstream + ahead) == new[:2]:
                due[-1] = _DueSyncs(upstream, downstream, count + new.syncs, by_lag=True)
                return
        due.append(new)
        if len(due) > most:
            last = len(due) - 1
            self._due = [
                it
                for at, it in enumerate(due)
                if not at % 2
                or at == last
                # A rewind empties the reader's slots (``OffsetSyncStore``); without it the reader
                # would translate with syncs of a history that is gone.
                or it.upstream < due[at - 1].upstream
                or it.downstream < due[at - 1].downstream
            ]

    def take(self, most: int) -> list[OffsetSync]:
        chosen = self._chosen()
        self._due = chosen[most:]
        return [OffsetSync(self._partition, due.upstream, due.downstream) for due in chosen[:most]]

    def __bool__(self) -> bool:
        return bool(self._due)

    def _chosen(self) -> list[_DueSyncs]:
        """Thin out syncs by lag, the more the further they are from the newest.

        Readers keep only syncs whose distance to the newest doubles from slot to slot; here the
        distance grows by an eighth from one to the next, so every sync that a reader would keep has
        one close to it.
        """
        step = self._step
        every = sum(due.syncs for due in self._due if due.by_lag) <= EVERY_SYNC
        newest = self._due[-1].upstream + (self._due[-1].syncs - 1) * step
        kept: list[_DueSyncs] = []
        distance = -math.inf
        # From the newest back, as the reader's slots are filled.
        for upstream, downstream, count, by_lag in reversed(self._due):
            index = count - 1
            while index >= 0:
                at = index * step
                behind = abs(newest - upstream - at)
                if every or not by_lag or abs(behind - distance) > behind // 8:
                    kept.append(_DueSyncs(upstream + at, downstream + at, 1, by_lag))
                    distance = behind
                index -= 1 if every else max(1, behind // 8 // step)
        kept.reverse()
        return kept


class SyncWriter(Protocol):
    """The method of ``RecordWriter`` that the emitter needs."""

    def post(
        self,
        tp: TopicPartition,
        records: Sequence[NewRecord],
        done: Callable[[int | Exception], None],
    ) -> object:
        """Write without waiting; ``done`` gets the base offset or the error."""
        ...


@final
class OffsetSyncEmitter:
    """Queues and writes the syncs of one task.

    Syncs are written in order, including those observed before ``open``; only in the middle of long
    runs some are left out while they wait for the previous request. Requests begin at least
    ``MIN_SPACING_S`` apart, so that a backlog does not turn every batch into a request. Of syncs
    that the broker refuses, the newest of each partition is kept and sent again; Java drops it.
    ``on_refusal`` gets each refusal, and None once syncs are written again.
    """

    def __init__(
        self,
        writer: SyncWriter,
        topic: str,
        *,
        lag_max: int,
        clock: Clock,
        on_refusal: Callable[[Exception | None], None],
    ) -> None:
        self._writer = writer
        self._on_refusal = on_refusal
        self._to = TopicPartition(topic, 0)
        self._lag_max = lag_max
        self._clock = clock
        self._states: dict[TopicPartition, OffsetSyncState] = {}
        self._waiting: dict[TopicPartition, _WaitingSyncs] = {}
        self._delayed: dict[TopicPartition, Run] = {}
        self._in_flight: list[OffsetSync] = []
        self._next_send = -math.inf
        self._refused = False
        self._open = False
        self._closed = False
        self._free = asyncio.Event()
        """Set while no request is in flight."""

    def observe(self, partition: TopicPartition, runs: Sequence[Run]) -> None:
        """Observe acknowledged runs of ``partition``, in source order, and send what is due."""
        # Acknowledgements may arrive after ``close``: the Sender is closed later than the task.
        # Where the broker did not say where records are (-1), no sync can.
        runs = [it for it in runs if it.target_offset >= 0]
        if self._closed or not runs:
            return
        state = self._states.get(partition)
        if state is None:
            state = self._states[partition] = OffsetSyncState(self._lag_max)
        run, last = runs[0], -1
        for run in runs:
            breaks, by_lag = state.observe_run(run)
            last = by_lag[-1] if by_lag else 0 if breaks else -1
            if breaks:
                self._wait(partition, run, range(1), by_lag=False)
            if by_lag:
                self._wait(partition, run, by_lag, by_lag=True)
        # Java's ``delayedOffsetSyncs``: the exact end of a partition that went quiet is sent at the
        # task's next commit (KAFKA-15906).
        if last == run.records - 1:
            self._delayed.pop(partition, None)
        else:
            self._delayed[partition] = run
        if self._waiting and self._clock.monotonic() >= self._next_send:
            self._send()

    def open(self) -> None:
        """Send what waits: the writer is ready."""
        self._open = True
        self._send()

    def promote_delayed(self) -> None:
        """Send the exact last offset of every partition whose newest sync is older (task
        commit)."""
        if self._closed:
            return
        for partition, run in self._delayed.items():
            self._wait(partition, run, range(run.records - 1, run.records), by_lag=True)
        self._delayed.clear()
        # While the topic refuses, a commit only queues: the next request waits for REFUSED_S.
        if not self._refused or self._clock.monotonic() >= self._next_send:
            self._send()

    async def flush(self, timeout_s: float) -> None:
        """Write everything that waits, for at most ``timeout_s`` and until a refusal; nothing
        before ``open``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._open and (self._waiting or self._in_flight):
                    # A loop, not one send: a full request leaves the rest waiting.
                    self._send()
                    await self._free.wait()
                    if self._refused:
                        return

    def close(self) -> None:
        """Drop what waits and ignore what follows."""
        self._closed = True
        self._waiting.clear()
        self._delayed.clear()

    def _wait(self, partition: TopicPartition, run: Run, indexes: range, *, by_lag: bool) -> None:
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = _WaitingSyncs(partition, self._lag_max + 1)
        first = indexes[0]
        waiting.add(
            _DueSyncs(run.source_offset + first, run.target_offset + first, len(indexes), by_lag),
            min(MOST_WAITING, max(LEAST_WAITING, MOST_WAITING_IN_ALL // len(self._waiting))),
        )

    def _send(self) -> None:
        """Send the next request, unless one is in flight."""
        if not self._open or self._in_flight or not self._waiting:
            return
        syncs: list[OffsetSync] = []
        while self._waiting and len(syncs) < SYNCS_PER_REQUEST:
            # A dict keeps insertion order: partitions take turns, so a busy one does not starve the
            # rest.
            partition = next(iter(self._waiting))
            waiting = self._waiting.pop(partition)
            syncs += waiting.take(SYNCS_PER_REQUEST - len(syncs))
            if waiting:
                self._waiting[partition] = waiting  # after the other partitions
        self._in_flight = syncs
        self._free.clear()
        self._next_send = self._clock.monotonic() + MIN_SPACING_S
        now_ms = self._clock.now_ms()
        records = [NewRecord(*encode_offset_sync(sync), timestamp=now_ms) for sync in syncs]
        self._writer.post(self._to, records, self._answered)

    def _answered(self, result: int | Exception) -> None:
        sent, self._in_flight = self._in_flight, []
        self._free.set()
        # The request was in flight while the task ended: nothing may be queued again.
        if self._closed:
            return
        if isinstance(result, Exception):
            self._refused = True
            self._next_send = self._clock.monotonic() + REFUSED_S
            self._keep_newest(sent)
            self._on_refusal(result)
        elif self._refused:
            self._refused = False
            self._on_refusal(None)
        # More may wait, and no later batch need come to trigger it; after a refusal the pause of
        # REFUSED_S counts.
        if len(sent) == SYNCS_PER_REQUEST and not self._refused:
            self._send()

    def _keep_newest(self, refused: Sequence[OffsetSync]) -> None:
        for partition, sync in {it.partition: it for it in refused}.items():
            # As a sync by lag, so that it may be thinned out with the others once newer ones
            # arrive.
            if partition not in self._waiting:  # else a newer one
                run = Run(sync.upstream, 1, sync.downstream)
                self._wait(partition, run, range(1), by_lag=True)


SLOTS: Final = 64
BEFORE_ALL_SYNCS: Final = -1
"""What an offset below every usable sync is translated to."""


def _is_recent(newer: OffsetSync, older: OffsetSync, slot: int) -> bool:
    """Whether B holds for ``newer`` in the slot before ``slot`` and ``older`` in ``slot``."""
    # B of ``SyncSlots``, 2^slot - 2^(slot - 1) written as 2^(slot - 1).
    return newer.upstream <= older.upstream + (1 << (slot - 1))


def _is_apart(newer: OffsetSync, older: OffsetSync, slot: int) -> bool:
    """Whether C holds for ``newer`` in ``slot`` and ``older`` in a later one; identity, not
    equality, counts."""
    # One sync may fill several slots; Java compares references, and two equal syncs are two there
    # too.
    return newer is older or newer.upstream >= older.upstream + (1 << max(slot - 2, 0))


@final
class SyncSlots:
    """The syncs of one source partition, as Java's ``OffsetSyncStore`` keeps them.

    Slots hold the newest sync, the oldest one that may be used, and between them ones whose
    distance about doubles. With upstream offsets up[i] of *different* syncs in slots i < j: A slot
    0 holds the newest; B up[i] <= up[j] + 2^j - 2^i; C up[i] >= up[j] + 2^max(i-2, 0); D slot 63
    holds the oldest. Where a sum leaves 64 bits Java guards against the wrap and decides as the
    unbounded numbers here do.
    """

    __slots__ = ("_slots",)

    def __init__(self, first: OffsetSync) -> None:
        self._slots = [first] * SLOTS

    def add(self, new: OffsetSync) -> None:
        """Keep the newest sync; one below the newest so far is a rewind and replaces all."""
        old = self._slots
        # Java's ``upstreamRewind``: what was copied before the source was cut or set back
        # translates nothing any more.
        if new.upstream < old[0].upstream:
            self._slots = [new] * SLOTS
            return
        kept = old.copy()
        kept[0] = candidate = new
        at = 0
        for slot in range(1, SLOTS):
            before = kept[slot - 1]
            # Java's do-while of ``updateSyncArray``: promote the next old value that is recent and
            # apart enough, skip those that never can be.
            while True:
                offered = old[at]
                is_apart = _is_apart(before, offered, slot - 1)
                is_promoted = (
                    is_apart
                    and _is_recent(before, offered, slot)
                    and (slot == SLOTS - 1 or _is_apart(offered, kept[slot + 1], slot))
                )
                is_discarded = not is_apart or (at < SLOTS - 1 and offered is old[at + 1])
                if is_promoted:
                    candidate = offered
                if is_promoted or is_discarded:
                    at += 1
                if at >= slot or not is_discarded:
                    break
            if _is_recent(before, kept[slot], slot):
                break  # the rest is consistent already
            kept[slot] = candidate
        self._slots = kept

    def translate(self, upstream: int) -> int:
        """Return where a group at ``upstream`` can continue without skipping a record, or
        ``BEFORE_ALL_SYNCS``."""
        # From the newest: the first that is not above the group gives the best precision.
        sync = next((slot for slot in self._slots if slot.upstream <= upstream), self._slots[-1])
        if sync.upstream > upstream:
            return BEFORE_ALL_SYNCS
        # Between two syncs only the order is known: the next record is after the sync's.
        return sync.downstream + (sync.upstream < upstream)

    @property
    def newest(self) -> OffsetSync:
        return self._slots[0]

    def upstreams(self) -> list[int]:
        return [sync.upstream for sync in self._slots]


@final
class OffsetSyncStore:
    """The syncs of all partitions of a source.

    Args:
        keeps_backlog: False when earlier checkpoints were not read: then only the last sync of the
            backlog is used, because older ones could move checkpoints back.
    """

    def __init__(self, *, keeps_backlog: bool) -> None:
        self._keeps_backlog = keeps_backlog
        self._slots: dict[TopicPartition, SyncSlots] = {}
        self._is_read = False

    def add(self, sync: OffsetSync) -> None:
        """Add the next sync of the topic; beyond Java, one that is lower on the target replaces
        those of a copy that is gone."""
        slots = self._slots.get(sync.partition)
        is_first = slots is None or sync.downstream < slots.newest.downstream
        # Java's ``onlyLoadLastOffset`` while it reads the backlog, lifted where checkpoints were
        # read (KAFKA-15905): with an older sync a group could go back.
        if slots is None or is_first or not (self._is_read or self._keeps_backlog):
            self._slots[sync.partition] = SyncSlots(sync)
        else:
            slots.add(sync)

    def read_to_end(self) -> None:
        """Note that the backlog was read: offsets can be translated from now on."""
        self._is_read = True

    def translate(self, partition: TopicPartition, upstream: int) -> int | None:
        """Return the target offset of a group at ``upstream``.

        None without a sync of the partition, ``BEFORE_ALL_SYNCS`` for an offset below all of them.
        """
        slots = self._slots.get(partition) if self._is_read else None
        return None if slots is None else slots.translate(upstream)

    def newest(self, partition: TopicPartition) -> int:
        """Return the source offset of the newest sync of a partition, -1 for none."""
        slots = self._slots.get(partition)
        return -1 if slots is None else slots.newest.upstream
