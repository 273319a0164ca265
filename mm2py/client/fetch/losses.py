"""Losses of a source partition, by cause: retention, truncation, another incarnation. No I/O.

Flow: a cursor and the answer to its ``Lookup`` (ends of the log, end of an epoch, beginning of
another incarnation) -> ``SourceGap`` with the exact range, new position. Compaction holes, markers
and aborted data never come here: they are dropped batches inside the log (protocol/batch_stage.py).
"""

from typing import final

from mm2py.api.context import SourceGap
from mm2py.client.fetch.cursor import Cursor, Lookup
from mm2py.client.fetch.owner import FetchOwner
from mm2py.errors import PartitionError, ProtocolError
from mm2py.protocol.topics import NO_TOPIC_ID


@final
class FetchLosses:
    """Determines what was lost and moves the cursor after it."""

    def __init__(self, auto_offset_reset: str, *, owner: FetchOwner) -> None:
        self._auto_offset_reset = auto_offset_reset
        self._owner = owner

    def give_up(self, cursor: Cursor, cause: str) -> None:
        """End one partition."""
        cursor.fail()
        error = PartitionError(
            cause,
            topic=cursor.tp.topic,
            partition=cursor.tp.partition,
            offset=cursor.position,
            remedy="repair or skip the record on the source, then restart the flow",
        )
        if cursor.damaged:
            error.__cause__ = ProtocolError(cause)
        self._owner.failed(cursor.tp, error)

    def skipped(self, cursor: Cursor) -> None:
        """Report a log start that passed the position while the response was made."""
        first, last = cursor.lost
        gap = SourceGap(cursor.tp, first, last, "retention", "deleted while it was being read")
        self._owner.gap(gap)

    def truncated(self, cursor: Cursor, cut: int) -> None:
        """Report a log that was truncated to ``cut``, below the position, and may have grown
        again."""
        gap = SourceGap(
            cursor.tp,
            cut,
            cursor.position - 1,
            "truncation",
            "the source lost records that were copied already (unclean leader election)",
        )
        # Before the report: the owner may drop the partition in answer to it.
        cursor.seek(cut)
        # An empty range: only records that were not read yet are gone.
        if gap.count:
            self._owner.gap(gap)

    def offset_found(self, cursor: Cursor, offset: int) -> None:
        """Apply the offset of START, or of the BEGINNING of a new incarnation (KIP-516)."""
        if cursor.lookup is Lookup.BEGINNING:
            # At 0, also where its log begins later: what it has lost by then is a gap of its own,
            # which the first Fetch finds.
            self._begin_again(cursor, cursor.next_id, "the new one is copied from its beginning")
        else:
            cursor.start_at(offset)

    def ends_found(self, cursor: Cursor, start: int, end: int) -> None:
        """Handle OFFSET_OUT_OF_RANGE: determine on which side of the log the position is, and
        why."""
        position = cursor.position
        if start <= position <= end:
            # The broker that refused was behind, or it does not know our last epoch.
            cursor.compare()
        # A log of the same topic id never ends before what was read of it, unless it was truncated.
        elif position > end and cursor.identified:
            # Certainly the same incarnation: its log was truncated.
            self.truncated(cursor, max(start, end))
        elif self._auto_offset_reset == "none":
            self.give_up(
                cursor,
                f"offset {position} is outside the source log {start}-{end} "
                "and auto.offset.reset=none",
            )
        else:
            # Java's consumer resets in silence (MM2: to the
            # earliest offset); here the range is reported.
            gap = _outside(cursor, start, end)
            cursor.seek(start)
            self._owner.gap(gap)

    def epoch_found(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """Compare our epochs with the leader's, as Fetch itself does from v12 on (KIP-320)."""
        # UNDEFINED_EPOCH_OFFSET: the leader's epoch cache does
        # not reach back to ours, for instance after retention.
        if end_offset < 0:
            cursor.forget_epochs()
        else:
            cut = cursor.diverged(epoch, end_offset)
            if cut < cursor.position:
                self.truncated(cursor, cut)
                cursor.compare()  # an earlier epoch of ours may end before that too
                if cursor.lookup is Lookup.EPOCH:
                    return
        cursor.validated()

    def without_partition(self, cursor: Cursor, topic_id: bytes) -> None:
        """Handle a topic that was recreated with fewer partitions: this partition does not exist in
        it."""
        self._begin_again(
            cursor, topic_id, "the new one has no partition of this number", absent=True
        )

    def left_behind(self, cursor: Cursor, first: int) -> None:
        """Report, at the end of a reader, a recreated topic: the old records from ``first`` on are
        gone."""
        self._owner.gap(_old_tail(cursor, first, NO_TOPIC_ID, "a later reader copies the new one"))

    def _begin_again(
        self, cursor: Cursor, topic_id: bytes, then: str, *, absent: bool = False
    ) -> None:
        gap = _old_tail(cursor, cursor.position, topic_id, then)
        cursor.restart(0, topic_id, absent=absent)
        self._owner.gap(gap)


def _outside(cursor: Cursor, start: int, end: int) -> SourceGap:
    """Return the gap of a position outside of the log."""
    position = cursor.position
    if position < start:
        return SourceGap(
            cursor.tp, position, start - 1, "retention", "deleted before it was copied"
        )
    # Records below the position were copied; how many were after it is unknown.
    return SourceGap(
        cursor.tp,
        position,
        position - 1,
        "recreated",
        f"the source log ends at {end}, before offset {position}: the topic was recreated or "
        "truncated; its present content is copied from its beginning",
        cursor.topic_id,
    )


def _old_tail(cursor: Cursor, first: int, topic_id: bytes, then: str) -> SourceGap:
    return SourceGap(
        cursor.tp,
        first,
        max(first, cursor.high_watermark) - 1,
        "recreated",
        f"the topic was deleted and created again; what lay behind offset {first} of the "
        f"old one is gone, {then}",
        topic_id,
        returns=cursor.absent,
    )
