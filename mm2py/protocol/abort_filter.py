"""Finds the batches of aborted transactions while a log is walked in offset order, as Java's
``CompletedFetch`` does.

Flow: the aborted list of a Fetch answer under read_committed -> ``AbortFilter`` -> ``enter`` and
``covers`` per batch, ``passed_marker`` per transaction marker. No I/O.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, final

from mm2py.protocol.record_batch import HEADER_BYTES
from mm2py.protocol.record_bytes import damaged, read_varint, walk

_MARKER: Final = Struct(">hh")  # version, type
ABORT: Final = 0
"""Type of the marker that ends an aborted transaction."""


@final
class AbortFilter:
    """The producers with an aborted transaction at the current offset; ``aborted`` is (producer id,
    first offset)."""

    __slots__ = ("_inside", "_waiting")

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        # By first offset, as Java's ``CompletedFetch`` queues them, whatever order a broker has.
        self._waiting = sorted(aborted, key=lambda pair: pair[1], reverse=True)
        self._inside: set[int] = set()

    def enter(self, last_offset: int) -> None:
        """Start the aborted transactions that begin up to ``last_offset``."""
        waiting = self._waiting
        # Sorted backwards: the transaction that begins first is at the end.
        while waiting and waiting[-1][1] <= last_offset:
            self._inside.add(waiting.pop()[0])

    def covers(self, producer_id: int) -> bool:
        """Whether a batch of this producer here was aborted."""
        return producer_id in self._inside

    def passed_marker(self, view: memoryview, producer_id: int, count: int) -> None:
        """End a producer's transaction at its abort marker.

        Markers match by producer id only: a coordinator that fences writes them under a higher
        epoch, and with KIP-890 every transaction ends under an epoch of its own.

        Raises:
            ProtocolError: the marker is damaged.
        """
        if marker_type(view, count) == ABORT:
            self.ended(producer_id)

    def ended(self, producer_id: int) -> None:
        """End a producer's transaction, whichever way: a commit is of none that was aborted."""
        self._inside.discard(producer_id)


def marker_type(view: memoryview, count: int) -> int:
    """Return the type of a transaction marker (0 abort, 1 commit); its batch is uncompressed.

    Raises:
        ProtocolError: the marker is damaged.
    """
    # Control batches are never compressed, and have one record.
    payload = view[HEADER_BYTES:]
    record = walk(payload, count)[0]
    try:
        size, position = read_varint(payload, record.start)
    except IndexError:
        raise damaged("a control record ends before its key") from None
    if not _MARKER.size <= size <= record.end - position:
        raise damaged(f"a control record has a key of {size} bytes")
    kind: int = _MARKER.unpack_from(payload, position)[1]
    return kind
