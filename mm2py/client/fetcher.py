"""Fetcher: record batches from partition leaders, with positions, leader moves and losses told apart.

Flow: ``assign`` -> leaders -> one FetchNode per broker -> ``fetch`` returns what has arrived.
Per partition the batches are in offset order. Control, empty and aborted batches never leave here
(protocol/batch_stage.py). What the source lost is reported as a ``SourceGap``, never skipped in silence.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Final, final

from mm2py.api.context import SourceGap
from mm2py.client.admin import Admin
from mm2py.client.backoff import Backoff
from mm2py.client.cluster import Cluster, Leader
from mm2py.client.fetch_cursor import NO_TOPIC_ID, Cursor, Verdict
from mm2py.client.fetch_node import FetchNode
from mm2py.clock import Clock
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError, PartitionError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import BufferLease, RecordBatch
from mm2py.types import EARLIEST, LATEST, TopicPartition

__all__ = ["Fetched", "Fetcher"]

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 32 * 1024 * 1024
"""Java's ``buffer.memory``: receive buffers that may be handed out before the next Fetch must wait."""

Fetched = tuple[TopicPartition, list[RecordBatch]]


def _ignore_stall(_tp: TopicPartition, _error: Exception | None) -> None:
    """Nobody asked to be told."""


@final
class Fetcher:
    """Reads a set of partitions of one cluster.

    ``on_gap`` reports records that are gone; ``on_failed`` ends one partition; ``on_stalled(tp, error)``
    says that a partition cannot be read now but is tried again, ``None`` that it can. All on the loop.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        clock: Clock,
        buffer_bytes: int = BUFFER_BYTES,
        on_gap: Callable[[SourceGap], None],
        on_failed: Callable[[TopicPartition, Exception], None],
        on_stalled: Callable[[TopicPartition, Exception | None], None] = _ignore_stall,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._on_gap = on_gap
        self._on_failed = on_failed
        self._on_stalled = on_stalled
        self._admin = Admin(cluster)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._nodes: dict[int, FetchNode] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._homeless: dict[Cursor, None] = {}
        self._router: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._batches: list[Fetched] = []
        self._buffer_bytes = buffer_bytes
        self._room = 0
        cluster.pool.on_release = self._wake_nodes

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Replace the assignment; EARLIEST and LATEST are looked up, in the background where needed."""
        for cursor in self._cursors.values():
            self._leave(cursor)
        self._cursors = {tp: Cursor(tp, position) for tp, position in positions.items()}
        for cursor in self._cursors.values():
            self._seek_leader(cursor)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Leave these out of the next Fetch."""
        for tp in partitions:
            cursor = self._cursors.get(tp)
            if cursor is not None:
                cursor.paused = True

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these again."""
        for tp in partitions:
            cursor = self._cursors.get(tp)
            if cursor is not None and cursor.paused:
                cursor.paused = False
        self._wake_nodes()

    async def fetch(self, *, max_wait_ms: int, max_bytes: int) -> list[Fetched]:
        """Return what has arrived, after at most ``max_wait_ms``; empty when nothing has.

        ``max_bytes`` is the room left for data that is read but not yet delivered; at zero no Fetch follows
        this answer. Each batch holds a reference to its receive buffer.
        """
        self._room = max_bytes
        if not self._batches:
            self._arrived.clear()
            self._wake_nodes()
            try:
                async with asyncio.timeout(max_wait_ms / 1000):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        batches, self._batches = self._batches, []
        return batches

    def position(self, tp: TopicPartition) -> int:
        """Next offset wanted of ``tp``; negative while unknown."""
        cursor = self._cursors.get(tp)
        return cursor.position if cursor is not None else -1

    def lag(self, tp: TopicPartition) -> int:
        """Offsets between our position and the end that may be read; -1 while unknown."""
        cursor = self._cursors.get(tp)
        if cursor is None or cursor.position < 0 or cursor.high_watermark < 0:
            return -1
        committed = self._settings.isolation_level == "read_committed"
        end = cursor.last_stable_offset if committed else cursor.high_watermark
        return max(0, end - cursor.position)

    def drop(self, tp: TopicPartition) -> None:
        """Give one partition up; nothing of it is returned any more."""
        cursor = self._cursors.pop(tp, None)
        if cursor is not None:
            cursor.failed = True
            self._leave(cursor)

    async def close(self) -> None:
        """Stop fetching; safe twice."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._nodes.clear()
        self._cluster.pool.on_release = None
        for _, batches in self._batches:
            for batch in batches:
                if batch.lease is not None:
                    batch.lease.release()
        self._batches = []

    # -- answers ----------------------------------------------------------------------------------

    def _free(self) -> int:
        return min(self._room, self._buffer_bytes - self._cluster.pool.leased_bytes)

    def _fetched(self, cursor: Cursor, part: FetchedPartition, lease: BufferLease) -> None:
        verdict, result = cursor.take(part, lease)
        if result is not None and result.batches:
            self._batches.append((cursor.tp, result.batches))
            self._arrived.set()
        if verdict is not Verdict.GO_ON:
            self._follow(cursor, verdict, part.error_code)

    def _follow(self, cursor: Cursor, verdict: Verdict, code: int) -> None:
        if verdict is Verdict.MOVE:
            self._seek_leader(cursor)
        elif verdict is Verdict.RESET:
            self._leave(cursor)
            self._spawn(self._reset(cursor))
        elif verdict is Verdict.TRUNCATED:
            self._truncated(cursor)
        elif verdict is Verdict.RECREATED:
            self._seek_leader(cursor)
        elif verdict is Verdict.REFUSED:
            cursor.refused = True
            self._on_stalled(cursor.tp, codes.server_error(code, f"reading {cursor.tp}"))
            self._seek_leader(cursor)
        else:
            self._give_up(cursor, cursor.cause)

    def _give_up(self, cursor: Cursor, cause: str) -> None:
        cursor.failed = True
        self._leave(cursor)
        error = PartitionError(
            cause,
            topic=cursor.tp.topic,
            partition=cursor.tp.partition,
            offset=cursor.position,
            remedy="repair or skip the record on the source, then restart the flow",
        )
        self._on_failed(cursor.tp, error)

    def _truncated(self, cursor: Cursor) -> None:
        gap = SourceGap(
            cursor.tp,
            cursor.diverged_to,
            cursor.position - 1,
            "truncation",
            "the source lost records that were copied already (unclean leader election)",
        )
        cursor.position = cursor.diverged_to
        cursor.last_epoch = -1
        self._on_gap(gap)

    async def _reset(self, cursor: Cursor) -> None:
        """OFFSET_OUT_OF_RANGE: find out on which side of the log the position is (real-broker.md 6)."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while not cursor.failed:
            try:
                start = (await self._admin.list_offsets({cursor.tp: EARLIEST}))[cursor.tp]
                end = (await self._admin.list_offsets({cursor.tp: LATEST}))[cursor.tp]
            except Mm2pyError:
                await self._clock.sleep(backoff.next_s())
                continue
            if start.error is not None or end.error is not None:
                await self._clock.sleep(backoff.next_s())
                continue
            self._reset_to(cursor, start.offset, end.offset)
            return

    def _reset_to(self, cursor: Cursor, start: int, end: int) -> None:
        if start <= cursor.position <= end:
            self._seek_leader(cursor)  # the leader we asked was behind
            return
        if self._settings.auto_offset_reset == "none":
            self._give_up(
                cursor,
                f"offset {cursor.position} is outside the source log {start}-{end} "
                "and auto.offset.reset=none",
            )
            return
        if cursor.position < start:
            gap = SourceGap(
                cursor.tp, cursor.position, start - 1, "retention", "deleted before it was copied"
            )
        else:
            gap = SourceGap(
                cursor.tp,
                end,
                cursor.position - 1,
                "recreated",
                f"the source log ends at {end}: the topic was recreated or truncated; "
                "its present content is copied from its beginning",
            )
        cursor.position = start
        cursor.last_epoch = -1
        self._on_gap(gap)
        self._seek_leader(cursor)

    # -- leaders ----------------------------------------------------------------------------------

    def _leave(self, cursor: Cursor) -> None:
        node = self._nodes.get(cursor.leader)
        if node is not None:
            node.cursors.pop(cursor, None)
        cursor.leader = -1
        self._homeless.pop(cursor, None)

    def _seek_leader(self, cursor: Cursor) -> None:
        """Take the cursor from its broker and find out who leads now."""
        moved = cursor.leader >= 0
        self._leave(cursor)
        if moved:
            self._cluster.leader_moved(cursor.tp)
        self._homeless[cursor] = None
        if self._router is None or self._router.done():
            self._router = self._spawn(self._route())

    def _lost(self, cursors: list[Cursor], error: Exception) -> None:
        for cursor in cursors:
            self._on_stalled(cursor.tp, error)
            cursor.refused = True
            self._seek_leader(cursor)

    async def _route(self) -> None:
        """Give every homeless cursor its leader and position, until none is left."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while self._homeless:
            waiting = list(self._homeless)
            if any(cursor.refused for cursor in waiting) or backoff.failures:
                await self._clock.sleep(backoff.next_s())
            await self._prefetch(waiting)
            await self._look_up_positions([c for c in waiting if c.position < 0])
            for cursor in waiting:
                if cursor in self._homeless and cursor.position >= 0:
                    await self._settle(cursor)
            backoff.failures += 1

    async def _prefetch(self, cursors: list[Cursor]) -> None:
        """Ask for all leaders at once; one by one each would refresh the metadata."""
        try:
            await self._cluster.metadata(sorted({cursor.tp.topic for cursor in cursors}))
        except Mm2pyError as error:
            for cursor in cursors:
                self._on_stalled(cursor.tp, error)

    async def _look_up_positions(self, cursors: list[Cursor]) -> None:
        if not cursors:
            return
        try:
            answers = await self._admin.list_offsets({c.tp: c.position for c in cursors})
        except Mm2pyError as error:
            for cursor in cursors:
                self._on_stalled(cursor.tp, error)
            return
        for cursor in cursors:
            answer = answers[cursor.tp]
            if answer.error is None:
                cursor.position = answer.offset
            else:
                self._on_stalled(cursor.tp, answer.error)

    async def _settle(self, cursor: Cursor) -> None:
        try:
            leader = await self._cluster.leader(cursor.tp)
        except Mm2pyError as error:
            self._on_stalled(cursor.tp, error)
            return
        if cursor not in self._homeless:
            return
        if cursor.topic_id not in (NO_TOPIC_ID, leader.topic_id):
            await self._new_incarnation(cursor, leader)
            return
        del self._homeless[cursor]
        cursor.topic_id = leader.topic_id
        cursor.leader, cursor.leader_epoch = leader.node_id, leader.epoch
        cursor.refused = False
        self._on_stalled(cursor.tp, None)
        node = self._node(leader.node_id)
        node.cursors[cursor] = None
        node.wake()

    async def _new_incarnation(self, cursor: Cursor, leader: Leader) -> None:
        """The topic was deleted and created again: copy the new one from its beginning (KIP-516)."""
        gap = SourceGap(
            cursor.tp,
            cursor.position,
            cursor.position - 1,
            "recreated",
            f"the topic was deleted and created again; what lay behind offset {cursor.position} of the "
            "old one is gone, the new one is copied from its beginning",
        )
        try:
            start = (await self._admin.list_offsets({cursor.tp: EARLIEST}))[cursor.tp]
        except Mm2pyError:
            return  # still homeless: the next round asks again
        if start.error is None:
            cursor.topic_id = leader.topic_id
            cursor.position = start.offset
            cursor.last_epoch = -1
            self._on_gap(gap)

    def _node(self, node_id: int) -> FetchNode:
        node = self._nodes.get(node_id)
        if node is None:
            node = FetchNode(
                node_id,
                self._cluster,
                self._settings,
                clock=self._clock,
                room=self._free,
                on_fetched=self._fetched,
                on_lost=self._lost,
            )
            self._nodes[node_id] = node
            self._spawn(node.run())
        return node

    def _wake_nodes(self) -> None:
        for node in self._nodes.values():
            node.wake()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A defect in the Fetcher itself must not look like a quiet source."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("fetcher stopped by a defect", exc_info=error)
            for cursor in list(self._cursors.values()):
                if not cursor.failed:
                    self._give_up(cursor, f"internal error: {error!r}")
