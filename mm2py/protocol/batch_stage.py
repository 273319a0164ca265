"""Decides for each fetched batch: forward as it is, splice, or drop with a reason; and signs what
is sent.

Flow: one partition's record set -> ``classify`` -> batches to send, what was dropped, next offset
-> ``sign``. Verify, then sign: every CRC is verified here, first, so that a batch that was damaged
on the source's disk or in memory never gets a fresh one. Only what the source's header decides is
handled here: control and empty batches, aborted transactions, loops, holes of compaction,
LOG_APPEND_TIME, old formats, unknown magics and codecs. Size limits and codecs of the target are
the Sender's. A problem stops the walk.
"""

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from enum import Enum
from struct import Struct
from typing import Final, Generic, NamedTuple, TypeVar, final

from mm2py.errors import ProtocolError
from mm2py.protocol.abort_filter import AbortFilter
from mm2py.protocol.kernel import native
from mm2py.protocol.legacy import legacy_to_v2
from mm2py.protocol.record_batch import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    CONTROL_FLAG,
    CRC,
    CRC_OFFSET,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_FLAG,
    TRANSACTIONAL_FLAG,
    BufferLease,
    Codec,
    RecordBatch,
    crc32c,
)
from mm2py.protocol.record_bytes import MAX_INT64
from mm2py.protocol.splice import merge, rewrite

Made = TypeVar("Made")

_LOG_OVERHEAD: Final = 12
_MIN_LENGTH: Final = HEADER_BYTES - _LOG_OVERHEAD
_SPECIAL: Final = LOG_APPEND_FLAG | CONTROL_FLAG
_ATTRIBUTES: Final = Struct(">h")
_FRONT: Final = Struct(">qii")  # baseOffset, batchLength, partitionLeaderEpoch
_PRODUCER: Final = Struct(">qhi")
_PRODUCER_OFFSET: Final = 43

_TINY_BYTES: Final = 2048
"""Uncompressed batches below it become one where ``_GATHER_LEAST`` or more follow each other: what
sparse producers and ``linger.ms=0`` make costs more per batch than per byte."""

_GATHERED_BYTES: Final = 128 * 1024
_GATHER_LEAST: Final = 4


class DropReason(Enum):
    """Why a batch is not copied."""

    CONTROL = "control"
    EMPTY = "empty"
    ABORTED = "aborted"
    LOOP = "loop"


class Dropped(NamedTuple):
    """A batch that is not copied, by its source offsets."""

    first_offset: int
    last_offset: int
    reason: DropReason


class Origins(NamedTuple):
    """Producer ids of a cluster by origin; both sets grow while batches are classified.

    ``looping``: mirrors whose batches are not copied. ``passing``: all others whose origin is
    known. The walk stops at a batch whose id is in neither.
    """

    passing: Set[int]
    looping: Set[int]


class ProblemKind(Enum):
    """Why a batch cannot be copied; only CRC is worth another fetch."""

    CRC = "crc"
    MAGIC = "magic"
    CODEC = "codec"
    LENGTH = "length"
    OVERLAP = "overlap"
    RECORDS = "records"


class StageProblem(NamedTuple):
    """The batch that the walk stopped at; ``offset`` is its base offset as in the header."""

    kind: ProblemKind
    offset: int
    text: str


@final
class StageResult:
    """The content of one record set; ``last_epoch`` is the last whole batch's leader epoch or -1.

    ``looped`` are the whole batches that were dropped as loops; ``unknown`` the producer ids whose
    origin must be looked up before the walk can continue.
    """

    __slots__ = (
        "batches",
        "dropped",
        "last_epoch",
        "looped",
        "next_offset",
        "problem",
        "unknown",
    )

    def __init__(self, next_offset: int) -> None:
        self.batches: list[RecordBatch] = []
        self.dropped: list[Dropped] = []
        self.next_offset = next_offset
        self.last_epoch = -1
        self.looped: list[memoryview] = []
        self.unknown: frozenset[int] = frozenset()
        self.problem: StageProblem | None = None


def classify(
    record_set: memoryview,
    wanted_offset: int,
    lease: BufferLease | None,
    *,
    aborted: Sequence[tuple[int, int]] = (),
    origins: Origins | None = None,
) -> StageResult:
    """Walk one partition's record set of a Fetch answer.

    ``aborted`` is the response's list of (producer id, first offset) under read_committed;
    ``origins`` is for flows that suppress loops. Each returned batch that views the buffer takes
    one reference of ``lease``. A partial batch at the end is normal (a broker cuts a record set at
    ``max_bytes``) and ignored; batches before a problem are returned with it. An error gives the
    references back.
    """
    result = StageResult(wanted_offset)
    passing = None if origins is None else origins.passing
    walker: _Walk | None = None  # most record sets need none
    position, total, floor = 0, len(record_set), -1
    try:
        while position < total:
            # Under read_committed with aborted transactions each batch is examined by itself, in
            # order.
            if not aborted:
                begin = position
                # All ordinary batches in one call, in C where it was built.
                position, floor, epoch = scan(
                    record_set,
                    position,
                    wanted_offset,
                    floor,
                    RecordBatch,
                    lease,
                    result.batches,
                    passing,
                )
                if position > begin:
                    result.last_epoch, result.next_offset = epoch, floor + 1
            if total - position < HEADER_BYTES or record_set[position + 16] != 2:
                break
            walker = walker or _Walk(result, wanted_offset, lease, aborted, origins)
            end = walker.step(record_set, position, floor)
            if end is None:
                return result
            position, floor = end
        if position < total:
            walker = walker or _Walk(result, wanted_offset, lease, aborted, origins)
            walker.foreign(record_set, position, floor)
    # MemoryError, for instance: each batch holds a reference that no owner would give back.
    except BaseException:
        for batch in result.batches:
            if batch.lease is not None:
                batch.lease.release()
        raise
    return result


def plain_scan(
    record_set: memoryview,
    position: int,
    wanted_offset: int,
    floor: int,
    make: Callable[..., Made],
    lease: BufferLease | None,
    out: list[Made],
    passing: Set[int] | None = None,
    /,
) -> tuple[int, int, int]:
    """Append the ordinary batches from ``position`` on: those of which only the header will change.

    With ``passing`` a batch with a producer id is ordinary only if the id is in that set.

    Consecutive tiny uncompressed batches are joined, in bytes of their own and without a CRC, which
    ``sign`` writes. ``floor`` is the last offset before them. Each batch that views ``record_set``
    takes one reference of ``lease``. Returns the position of the first batch that is not ordinary,
    whole and undamaged, the new floor, and the leader epoch of the last ordinary batch or -1.
    """
    unpack, crc, total, last_epoch = HEADER.unpack_from, crc32c, len(record_set), -1
    tiny = _Tiny(make, out)
    while total - position >= HEADER_BYTES and record_set[position + 16] == 2:
        header = unpack(record_set, position)
        base, length, epoch, _, stored, attributes, last_delta, _, stamp, producer, _, _, count = (
            header
        )
        end, last = position + _LOG_OVERHEAD + length, base + last_delta
        if (
            # Holes of compaction: a broker refuses them in
            # Produce (LogValidator), so they are spliced.
            not 0 < count == last_delta + 1
            or not _MIN_LENGTH <= length <= total - position - _LOG_OVERHEAD
            # A Fetch returns the batch that contains the position, from its beginning.
            or base < wanted_offset
            # Offsets that do not rise: the log or the response is damaged.
            or base <= floor
            # Markers are of the source's transactions; LOG_APPEND_TIME is written into each record.
            or attributes & _SPECIAL
            or attributes & CODEC_MASK > Codec.ZSTD
            or not 0 <= base <= last <= MAX_INT64
            # Without a producer id it is no mirror's: ours are always idempotent.
            or (passing is not None and producer >= 0 and producer not in passing)
        ):
            break
        view = record_set[position:end]
        if crc(view[ATTRIBUTES_OFFSET:]) != stored:
            break
        runs = ((base, count),)
        tiny.take(RecordBatch(view, base, last, count, stamp, epoch, attributes, runs, lease))
        position, floor, last_epoch = end, last, epoch
    tiny.flush()
    return position, floor, last_epoch


@final
class _Tiny(Generic[Made]):
    """Tiny batches that wait to be joined."""

    def __init__(self, make: Callable[..., Made], out: list[Made]) -> None:
        self._make, self._out = make, out
        self._waiting: list[RecordBatch] = []
        self._bytes = 0

    def take(self, batch: RecordBatch) -> None:
        """Append a batch, or keep it for ``flush``."""
        view, epoch, attributes = batch.data, batch.leader_epoch, batch.attributes
        # Transactional ones count, too: ``sign`` clears the flag.
        is_tiny = len(view) < _TINY_BYTES and not attributes & ~TRANSACTIONAL_FLAG
        waiting = self._waiting
        if waiting and (
            not is_tiny
            or self._bytes + len(view) > _GATHERED_BYTES
            # A batch has one leader epoch, and the cursor keeps them for KIP-320.
            or epoch != waiting[-1].leader_epoch
        ):
            self.flush()
        self._waiting.append(batch)
        self._bytes += len(view)
        if not is_tiny:
            self.flush()

    def flush(self) -> None:
        """Append what waits, as one batch where that pays."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if len(waiting) >= _GATHER_LEAST:
            # Damaged records are not joined: the target then refuses the damaged batch alone.
            with suppress(ProtocolError):
                waiting = [merge(waiting)]
        for batch in waiting:
            if batch.lease is not None:
                batch.lease.retain()
            self._out.append(
                self._make(
                    batch.data, batch.base_offset, batch.last_offset, batch.count,
                    batch.max_timestamp, batch.leader_epoch, batch.attributes, batch.runs, batch.lease,
                )
            )  # fmt: skip


scan: Final = plain_scan if native is None else native.scan


@final
class _Walk:
    """Handles the batches at which ``scan`` stops, with the same result object."""

    __slots__ = ("_aborted", "_aborts", "_lease", "_origins", "_result", "_wanted")

    def __init__(
        self,
        result: StageResult,
        wanted_offset: int,
        lease: BufferLease | None,
        aborted: Sequence[tuple[int, int]],
        origins: Origins | None,
    ) -> None:
        self._result = result
        self._wanted = wanted_offset
        self._lease = lease
        self._aborted = aborted
        self._aborts = AbortFilter(aborted) if aborted else None
        self._origins = origins

    def step(self, record_set: memoryview, position: int, floor: int) -> tuple[int, int] | None:
        """Take one v2 batch; return its end and last offset, None at a problem or a partial
        batch."""
        header = HEADER.unpack_from(record_set, position)
        base, length, epoch, _, stored, _, last_delta, _, _, _, _, _, count = header
        end, last, result = position + _LOG_OVERHEAD + length, base + last_delta, self._result
        # Before the CRC, which covers neither base offset
        # nor length: they lead out of the record set.
        if length < _MIN_LENGTH or not 0 <= base <= last <= MAX_INT64 or count < 0:
            text = f"length {length}, last offset delta {last_delta}, {count} records"
            result.problem = StageProblem(ProblemKind.LENGTH, base, text)
            return None
        # A broker cuts the last batch at max_bytes (KIP-74).
        if end > len(record_set):
            return None
        view = record_set[position:end]
        if crc32c(view[ATTRIBUTES_OFFSET:]) != stored:
            text = f"the batch at offset {base} does not match its CRC"
            result.problem = StageProblem(ProblemKind.CRC, base, text)
            return None
        # The walk stops before it: the origin of its
        # producer is looked up, then it is fetched again.
        if self._is_unknown(header):
            result.unknown = _unknown_producers(record_set, position, self._origins)
            return None
        if not self._special(view, header, floor):
            return None
        result.last_epoch = epoch
        if last >= self._wanted:
            result.next_offset = last + 1
        return end, last

    def _is_unknown(self, header: tuple[int, ...]) -> bool:
        """Whether the origin of the batch must be looked up first."""
        attributes, producer, count = header[5], header[9], header[12]
        return (
            self._origins is not None
            and producer >= 0
            and count > 0
            and not attributes & CONTROL_FLAG
            and producer not in self._origins.passing
            and producer not in self._origins.looping
        )

    def _special(self, view: memoryview, header: tuple[int, ...], floor: int) -> bool:
        """Handle one whole batch with a correct CRC; False stops the walk with a problem."""
        base, _, _, _, _, attributes, last_delta, _, _, producer, _, _, count = header
        last = base + last_delta
        if base <= floor:
            return self._problem(ProblemKind.OVERLAP, base, f"offset {floor} was there before")
        codec = attributes & CODEC_MASK
        if codec > Codec.ZSTD:
            return self._problem(ProblemKind.CODEC, base, f"codec {codec} is not known")
        # More records than offsets: no compaction makes that.
        if count > last_delta + 1:
            return self._problem(
                ProblemKind.LENGTH, base, f"{count} records with last offset delta {last_delta}"
            )
        try:
            reason = self._drop_reason(view, last, producer, attributes, count)
            if reason is None and last >= self._wanted:
                self._keep(view, header)
        except ProtocolError as error:
            return self._problem(ProblemKind.RECORDS, base, error.message)
        if reason is not None and last >= self._wanted:
            # Only the part from the position on: what lies before was reported by an earlier fetch.
            self._result.dropped.append(Dropped(max(base, self._wanted), last, reason))
            if reason is DropReason.LOOP:
                self._result.looped.append(view)
        return True

    def _drop_reason(
        self, view: memoryview, last: int, producer: int, attributes: int, count: int
    ) -> DropReason | None:
        aborts = self._aborts
        if aborts is not None:
            # First: the list of aborted transactions is by
            # first offset, and this batch may begin one.
            aborts.enter(last)
        if attributes & CONTROL_FLAG:
            if aborts is not None and count:
                aborts.passed_marker(view, producer, count)
            return DropReason.CONTROL
        # LogCleaner keeps an emptied batch while it is its producer's last one, for the sequence.
        if count == 0:
            return DropReason.EMPTY
        if attributes & TRANSACTIONAL_FLAG and aborts is not None and aborts.covers(producer):
            return DropReason.ABORTED
        if self._origins is not None and producer in self._origins.looping:
            return DropReason.LOOP
        return None

    def _keep(self, view: memoryview, header: tuple[int, ...]) -> None:
        base, _, epoch, _, _, attributes, last_delta, _, stamp, _, _, _, count = header
        batches, lease = self._result.batches, self._lease
        if count == last_delta + 1 and base >= self._wanted and not attributes & LOG_APPEND_FLAG:
            runs = ((base, count),)
            last = base + last_delta
            batches.append(
                RecordBatch(view, base, last, count, stamp, epoch, attributes, runs, lease)
            )
            if lease is not None:
                lease.retain()
            return
        spliced = rewrite(view, self._wanted)
        if spliced is None:
            dropped = Dropped(max(base, self._wanted), base + last_delta, DropReason.EMPTY)
            self._result.dropped.append(dropped)
        else:
            batches.append(spliced)

    def foreign(self, record_set: memoryview, position: int, floor: int) -> None:
        """Handle what follows the last v2 batch: old formats, an unknown one, or a partial tail."""
        total = len(record_set)
        # The magic byte is at 16 in all formats.
        if total - position <= 16 or record_set[position + 16] == 2:
            return
        magic = record_set[position + 16]
        offset = int.from_bytes(record_set[position : position + 8])
        if magic > 2:
            self._problem(ProblemKind.MAGIC, offset, f"record format {magic} is not known")
            return
        try:
            batches, end = legacy_to_v2(record_set, position, self._wanted)
        except ProtocolError as error:
            self._problem(ProblemKind.RECORDS, offset, error.message)
            return
        result = self._result
        if batches and batches[0].base_offset <= floor:
            self._problem(ProblemKind.OVERLAP, offset, f"offset {floor} was there before")
            return
        result.batches += batches
        if batches:
            result.next_offset = batches[-1].last_offset + 1
        if end < total:
            # A log that was upgraded continues with v2 batches.
            self._append(
                classify(
                    record_set[end:],
                    result.next_offset,
                    self._lease,
                    aborted=self._aborted,
                    origins=self._origins,
                )
            )

    def _append(self, rest: StageResult) -> None:
        result = self._result
        result.batches += rest.batches
        result.dropped += rest.dropped
        result.looped += rest.looped
        result.unknown = rest.unknown
        result.next_offset = rest.next_offset
        result.last_epoch = rest.last_epoch
        result.problem = rest.problem

    def _problem(self, kind: ProblemKind, offset: int, text: str) -> bool:
        self._result.problem = StageProblem(kind, offset, f"the batch at offset {offset}: {text}")
        return False


def _unknown_producers(
    record_set: memoryview, position: int, origins: Origins | None
) -> frozenset[int]:
    """Return the producer ids from ``position`` on whose origin is not known.

    Only of undamaged batches: a damaged header may name an id that no producer has yet, which would
    be judged before it is published, and a judgement is final (``mm2py.mirror.producer_ids``).
    """
    producers: set[int] = set()
    total = len(record_set)
    while total - position >= HEADER_BYTES and record_set[position + 16] == 2:
        header = HEADER.unpack_from(record_set, position)
        end, producer = position + _LOG_OVERHEAD + header[1], header[9]
        view = record_set[position:end]
        if (
            not position + HEADER_BYTES <= end <= total
            or crc32c(view[ATTRIBUTES_OFFSET:]) != header[4]
        ):
            break
        if producer >= 0:
            producers.add(producer)
        position = end
    known = producers if origins is None else producers & (origins.passing | origins.looping)
    return frozenset(producers - known)


def plain_sign(
    data: memoryview | bytearray,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool = False,
) -> None:
    """Make a verified batch ours, in place: producer fields, clean attributes, new CRC.

    Only the codec bits stay: a timestamp type of LOG_APPEND_TIME would be refused or undone, and a
    delete horizon (KIP-534) would start the target's log cleaner with the source's clock.
    """
    if transactional and producer_id < 0:
        # ProducerStateManager is asked only for batches with a
        # producer id: a broker would store this one unchecked.
        raise ValueError("a transactional batch needs a producer id")
    # Base offset and leader epoch are outside the CRC; the broker sets both when it appends.
    _FRONT.pack_into(data, 0, 0, len(data) - 12, -1)
    # The low byte of the int16: all flags and the codec are in it.
    attributes = data[22] & CODEC_MASK
    _ATTRIBUTES.pack_into(
        data, ATTRIBUTES_OFFSET, attributes | TRANSACTIONAL_FLAG if transactional else attributes
    )
    _PRODUCER.pack_into(data, _PRODUCER_OFFSET, producer_id, producer_epoch, base_sequence)
    CRC.pack_into(data, CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))


sign: Final = plain_sign if native is None else native.sign
