"""What is gone from a source partition, told apart: retention, truncation, another incarnation.

Flow: a cursor whose position the source does not serve -> ends of its log, its epochs, its topic id ->
``SourceGap`` with the exact range, new position. Compaction holes, markers and aborted data never come
here: they are dropped batches inside the log (protocol/batch_stage.py).
"""

from collections.abc import Callable
from typing import final

from mm2py.api.context import SourceGap
from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster, Leader
from mm2py.client.fetch.cursor import NO_TOPIC_ID, Cursor
from mm2py.clock import Clock
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError, PartitionError, ProtocolError
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.log_offsets import EpochEnd, EpochQuery
from mm2py.protocol.messages import offset_for_leader_epoch
from mm2py.types import EARLIEST, LATEST, TopicPartition

__all__ = ["FetchLosses"]


@final
class FetchLosses:
    """Finds out what was lost and moves the cursor behind it."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        clock: Clock,
        on_gap: Callable[[SourceGap], None],
        on_failed: Callable[[TopicPartition, Exception], None],
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._admin = Admin(cluster)
        self._on_gap = on_gap
        self._on_failed = on_failed

    def give_up(self, cursor: Cursor, cause: str) -> None:
        """End one partition."""
        cursor.failed = True
        error = PartitionError(
            cause,
            topic=cursor.tp.topic,
            partition=cursor.tp.partition,
            offset=cursor.position,
            remedy="repair or skip the record on the source, then restart the flow",
        )
        if cursor.damaged:
            error.__cause__ = ProtocolError(cause)
        self._on_failed(cursor.tp, error)

    def skipped(self, cursor: Cursor) -> None:
        """The log start passed our position while the answer was made."""
        first, last = cursor.lost
        self._on_gap(
            SourceGap(cursor.tp, first, last, "retention", "deleted while it was being read")
        )

    def truncated(self, cursor: Cursor, cut: int) -> None:
        """The source's log was cut to ``cut``, below our position, and may have grown again."""
        gap = SourceGap(
            cursor.tp,
            cut,
            cursor.position - 1,
            "truncation",
            "the source lost records that were copied already (unclean leader election)",
        )
        cursor.seek(cut)
        if gap.count:
            self._on_gap(gap)

    async def find_out(self, cursor: Cursor) -> None:
        """OFFSET_OUT_OF_RANGE: find out on which side of the log the position is, and why.

        Returns when the cursor may look for its leader again, or has failed; asks until it knows.
        """
        settings = self._cluster.settings
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        while not cursor.failed:
            try:
                if await self._found_out(cursor):
                    return
            except Mm2pyError:
                self._cluster.leader_moved(cursor.tp)
            await self._clock.sleep(backoff.next_s())

    async def incarnation_ended(self, cursor: Cursor, leader: Leader) -> bool:
        """The topic was deleted and created again: copy the new one from its beginning (KIP-516).

        False when its beginning is not known yet.
        """
        try:
            start = (await self._admin.list_offsets({cursor.tp: EARLIEST}))[cursor.tp]
        except Mm2pyError:
            return False
        if start.error is not None or cursor.failed:
            return False
        self._begin_again(
            cursor, start.offset, leader.topic_id, "the new one is copied from its beginning"
        )
        return True

    def without_partition(self, cursor: Cursor, topic_id: bytes) -> None:
        """The topic was created again with fewer partitions: nothing may ever come under this number."""
        self._begin_again(cursor, 0, topic_id, "the new one has no partition of this number")
        cursor.absent = True

    async def epoch_end(self, cursor: Cursor) -> EpochEnd:
        """Ask the leader where our last epoch ends in its log; -1 where it does not know.

        Raises:
            Mm2pyError: there is no answer now.
        """
        tp = cursor.tp
        query = EpochQuery(tp.topic, tp.partition, cursor.last_epoch)
        (found,) = await self._cluster.call_leader(
            tp,
            offset_for_leader_epoch([query]),
            code_of=lambda ends: ends[0].error_code,
        )
        if found.error_code:
            raise server_error(found.error_code, f"OffsetForLeaderEpoch of {tp}")
        return found

    async def check_epoch(self, cursor: Cursor) -> None:
        """Compare our history with the leader's, as Fetch itself does from v12 on (KIP-320).

        Raises:
            Mm2pyError: there is no answer now.
        """
        while cursor.last_epoch >= 0:
            asked = cursor.last_epoch
            found = await self.epoch_end(cursor)
            if cursor.failed or cursor.last_epoch != asked:
                return
            if found.end_offset < 0:
                cursor.forget_epochs()
                return
            cut = cursor.diverged(found.leader_epoch, found.end_offset)
            if cut >= cursor.position:
                return
            self.truncated(cursor, cut)

    # -- inside -----------------------------------------------------------------------------------

    def left_behind(self, cursor: Cursor, first: int) -> None:
        """Nobody here reads on, and the topic is another one: what was known from ``first`` on is gone."""
        self._on_gap(_old_tail(cursor, first, "a later reader copies the new one"))

    def _begin_again(self, cursor: Cursor, start: int, topic_id: bytes, news: str) -> None:
        gap = None if cursor.absent else _old_tail(cursor, cursor.position, news)
        cursor.restart(start, topic_id)
        if gap is not None:  # where nothing was, nothing is lost: its end was told when it went
            self._on_gap(gap)

    async def _found_out(self, cursor: Cursor) -> bool:
        tp = cursor.tp
        self._cluster.leader_moved(tp)
        leader = await self._cluster.leader(tp)
        if cursor.topic_id not in (NO_TOPIC_ID, leader.topic_id):
            return True  # another incarnation: that is seen again where the leader is taken
        start = (await self._admin.list_offsets({tp: EARLIEST}))[tp]
        end = (await self._admin.list_offsets({tp: LATEST}))[tp]
        if start.error is not None or end.error is not None:
            return False
        if cursor.failed:
            return True
        if start.offset <= cursor.position <= end.offset:
            # The broker we asked was behind, or it does not know our last epoch.
            await self.check_epoch(cursor)
        else:
            self._reset_to(cursor, start.offset, end.offset)
        return True

    def _reset_to(self, cursor: Cursor, start: int, end: int) -> None:
        position = cursor.position
        if position > end and (cursor.identified or cursor.last_epoch >= 0):
            # The same incarnation, for sure: its log was cut.
            self.truncated(cursor, max(start, end))
            return
        if self._settings.auto_offset_reset == "none":
            self.give_up(
                cursor,
                f"offset {position} is outside the source log {start}-{end} "
                "and auto.offset.reset=none",
            )
            return
        if position < start:
            gap = SourceGap(
                cursor.tp, position, start - 1, "retention", "deleted before it was copied"
            )
        else:
            # What lies below the position was copied; nobody knows what was behind it.
            gap = SourceGap(
                cursor.tp,
                position,
                position - 1,
                "recreated",
                f"the source log ends at {end}, before offset {position}: the topic was recreated or "
                "truncated; its present content is copied from its beginning",
            )
        cursor.seek(start)
        self._on_gap(gap)


def _old_tail(cursor: Cursor, first: int, news: str) -> SourceGap:
    return SourceGap(
        cursor.tp,
        first,
        max(first, cursor.high_watermark) - 1,
        "recreated",
        f"the topic was deleted and created again; what lay behind offset {first} of the "
        f"old one is gone, {news}",
    )
