"""Offset syncs as a reader keeps them, and what they make of a group's offset (Java's ``OffsetSyncStore``).

Flow: the offset-syncs topic -> ``add`` -> 64 slots per source partition -> ``translate``.
Slots keep the newest sync, the oldest one that may be used, and between them ones whose distance about doubles.
With upstream offsets up[i] of *different* syncs in slots i < j: A slot 0 holds the newest; B up[i] <= up[j] + 2^j -
2^i; C up[i] >= up[j] + 2^max(i-2, 0); D slot 63 holds the oldest. Where a sum leaves
64 bits Java guards against the wrap and decides as the unbounded numbers here do.
"""

from typing import Final, final

from mm2py.mirror.offset_syncs import OffsetSync
from mm2py.types import TopicPartition

SLOTS: Final = 64
BEFORE_ALL_SYNCS: Final = -1
"""What an offset below every usable sync is translated to."""


def _is_recent(newer: OffsetSync, older: OffsetSync, slot: int) -> bool:
    """Tell whether B holds for ``newer`` in the slot before ``slot`` and ``older`` in ``slot``."""
    return newer.upstream <= older.upstream + (1 << (slot - 1))


def _is_apart(newer: OffsetSync, older: OffsetSync, slot: int) -> bool:
    """Tell whether C holds for ``newer`` in ``slot`` and ``older`` in a later one; identity, not equality, counts."""
    return newer is older or newer.upstream >= older.upstream + (1 << max(slot - 2, 0))


@final
class SyncSlots:
    """The syncs of one source partition."""

    __slots__ = ("_slots",)

    def __init__(self, first: OffsetSync) -> None:
        self._slots = [first] * SLOTS

    def add(self, new: OffsetSync) -> None:
        """Keep the newest sync; one below the newest so far is a rewind and replaces all."""
        old = self._slots
        if new.upstream < old[0].upstream:
            self._slots = [new] * SLOTS
            return
        kept = old.copy()
        kept[0] = candidate = new
        at = 0
        for slot in range(1, SLOTS):
            before = kept[slot - 1]
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
        """Return where a group at ``upstream`` may continue without skipping a record, or ``BEFORE_ALL_SYNCS``."""
        sync = next((it for it in self._slots if it.upstream <= upstream), self._slots[-1])
        if sync.upstream > upstream:
            return BEFORE_ALL_SYNCS
        # All that is known of later records is that they are behind the sync.
        return sync.downstream + (sync.upstream < upstream)

    def upstreams(self) -> list[int]:
        """Return the upstream offset of each slot."""
        return [sync.upstream for sync in self._slots]


@final
class OffsetSyncStore:
    """The syncs of all partitions of a source.

    Args:
        keeps_backlog: False when the checkpoints written before are not known: then only the last sync of
            the backlog is usable, because older ones could move checkpoints back.
    """

    def __init__(self, *, keeps_backlog: bool) -> None:
        self._keeps_backlog = keeps_backlog
        self._slots: dict[TopicPartition, SyncSlots] = {}
        self._is_read = False

    def add(self, sync: OffsetSync) -> None:
        """Take the next sync of the topic."""
        slots = self._slots.get(sync.partition)
        if slots is None or not (self._is_read or self._keeps_backlog):
            self._slots[sync.partition] = SyncSlots(sync)
        else:
            slots.add(sync)

    def read_to_end(self) -> None:
        """The backlog was read: offsets may be translated from now on."""
        self._is_read = True

    def translate(self, partition: TopicPartition, upstream: int) -> int | None:
        """Return the target offset of a group at ``upstream``.

        None while nothing is known of the partition, ``BEFORE_ALL_SYNCS`` for an offset that is older than what is
        known.
        """
        slots = self._slots.get(partition) if self._is_read else None
        return None if slots is None else slots.translate(upstream)
