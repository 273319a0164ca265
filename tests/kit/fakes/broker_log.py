"""A partition's log and producer state as a real broker keeps them.

Flow: produced bytes -> ``append`` -> (error code, base offset, append time) -> ``read``.
Holds the rules that a Sender can meet: five remembered batches, sequence checks, epochs, first batch
without state. No compression checks, no transactions.
"""

from collections import deque
from struct import Struct
from typing import Final, NamedTuple, final

from mm2py.protocol.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)
from mm2py.protocol.record_batch import HEADER, HEADER_BYTES, crc_matches

REMEMBERED_BATCHES: Final = 5
"""``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``."""

_SEQUENCE_MASK: Final = 0x7FFFFFFF
_FRONT: Final = Struct(">qii")  # base offset, length, leader epoch: outside the CRC


class AppendResult(NamedTuple):
    """What a broker answers; ``append_time`` other than -1 marks a recognised duplicate."""

    error_code: int
    base_offset: int = -1
    append_time: int = -1


class StoredBatch(NamedTuple):
    """A batch in the log: its bytes with base offset and leader epoch as the broker wrote them."""

    data: bytes
    base_offset: int
    last_offset: int


class _Remembered(NamedTuple):
    first_sequence: int
    last_sequence: int
    base_offset: int


class _Producer:
    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[_Remembered] = deque(maxlen=REMEMBERED_BATCHES)


@final
class PartitionLog:
    """One partition."""

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.start = 0
        self.end = 0
        self.leader_epoch = 0
        self.open_transaction_at = -1
        self.max_message_bytes = 1_048_588
        self.refusal = NONE
        """Why no batch is taken."""
        self._producers: dict[int, _Producer] = {}

    def append(self, data: bytes, now_ms: int) -> AppendResult:
        """Check one produced batch as a leader does and store it."""
        code = self.refusal or self._problem(data)
        if code:
            return AppendResult(code)
        header = HEADER.unpack_from(data)
        producer_id, epoch, sequence, count = header[9], header[10], header[11], header[12]
        if producer_id >= 0:
            last_sequence = (sequence + count - 1) & _SEQUENCE_MASK
            verdict = self._check_producer(producer_id, epoch, (sequence, last_sequence))
            if isinstance(verdict, _Remembered):
                return AppendResult(NONE, verdict.base_offset, now_ms)
            if verdict:
                return AppendResult(verdict)
            state = self._producers[producer_id]
            state.batches.append(_Remembered(sequence, last_sequence, self.end))
        base_offset = self.end
        self.put(data, base_offset)
        return AppendResult(NONE, base_offset)

    def put(self, data: bytes, base_offset: int) -> None:
        """Store a batch at an offset of the caller's choice, unchecked: holes, foreign batches."""
        stored = bytearray(data)
        _FRONT.pack_into(stored, 0, base_offset, len(data) - 12, self.leader_epoch)
        last_offset = base_offset + HEADER.unpack_from(data)[6]
        self.batches.append(StoredBatch(bytes(stored), base_offset, last_offset))
        self.end = last_offset + 1

    @property
    def stable_end(self) -> int:
        """Last stable offset: where an open transaction begins, else the end."""
        return self.end if self.open_transaction_at < 0 else self.open_transaction_at

    def first_since(self, timestamp_ms: int) -> int:
        """Return the base offset of the first batch with a record of that time or later, -1 for none; a real broker names the record."""
        return next(
            (
                it.base_offset
                for it in self.batches
                if HEADER.unpack_from(it.data)[8] >= timestamp_ms
            ),
            -1,
        )

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the latest epoch up to ``epoch``; (-1, -1) if it is newer."""
        if epoch > self.leader_epoch:
            return -1, -1
        if epoch == self.leader_epoch:
            return epoch, self.end
        known, end = -1, self.start
        for batch in self.batches:
            own = HEADER.unpack_from(batch.data)[2]
            if own > epoch:
                return known, batch.base_offset
            known, end = own, batch.last_offset + 1
        return known, end

    def read(
        self, offset: int, max_bytes: int, *, before: int = -1, at_least_one: bool = True
    ) -> bytes:
        """Return whole batches below ``before`` from the one that contains ``offset`` on."""
        out = bytearray()
        for batch in self.batches:
            if batch.last_offset < offset:
                continue
            if -1 < before <= batch.last_offset:
                break
            if (out or not at_least_one) and len(out) + len(batch.data) > max_bytes:
                break
            out += batch.data
        return bytes(out)

    def expire_producers(self) -> None:
        """Forget all producer state, as after ``producer.id.expiration.ms``."""
        self._producers.clear()

    def abort(self, producer_id: int, epoch: int) -> int:
        """Take a marker of an epoch, which ends the earlier ones of its producer."""
        state = self._producers.get(producer_id)
        if state is None or state.epoch < epoch:
            self._producers[producer_id] = _Producer(epoch)
        return INVALID_PRODUCER_EPOCH if state is not None and state.epoch > epoch else NONE

    def delete_before(self, offset: int) -> None:
        """Move the log start (retention, DeleteRecords)."""
        self.start = max(self.start, offset)
        self.end = max(self.end, self.start)
        self.batches = [batch for batch in self.batches if batch.last_offset >= self.start]

    def truncate_to(self, offset: int) -> None:
        """Drop batches from ``offset`` on, as after an unclean leader election."""
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.end = min(self.end, offset)
        self._producers.clear()

    def _problem(self, data: bytes) -> int:
        if len(data) < HEADER_BYTES:
            return CORRUPT_MESSAGE
        header = HEADER.unpack_from(data)
        if header[3] != 2 or header[1] != len(data) - 12:
            return INVALID_RECORD
        if not crc_matches(memoryview(data)):
            return CORRUPT_MESSAGE
        if header[0] != 0 or header[12] <= 0 or header[12] != header[6] + 1:
            return INVALID_RECORD
        if header[9] >= 0 and header[11] < 0:
            return INVALID_RECORD
        return MESSAGE_TOO_LARGE if len(data) > self.max_message_bytes else NONE

    def _check_producer(
        self, producer_id: int, epoch: int, sequences: tuple[int, int]
    ) -> _Remembered | int:
        state = self._producers.get(producer_id)
        if state is None:
            self._producers[producer_id] = _Producer(epoch)
            return NONE
        if epoch < state.epoch:
            return INVALID_PRODUCER_EPOCH
        if epoch > state.epoch:
            if sequences[0] != 0:
                return OUT_OF_ORDER_SEQUENCE_NUMBER
            self._producers[producer_id] = _Producer(epoch)
            return NONE
        for known in state.batches:
            if known[:2] == sequences:
                return known
        expected = 0
        if state.batches:
            expected = (state.batches[-1].last_sequence + 1) & _SEQUENCE_MASK
        return NONE if sequences[0] == expected else OUT_OF_ORDER_SEQUENCE_NUMBER
