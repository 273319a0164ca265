"""New lanes of a Sender: their leaders, the ends of their logs and what their topics take, many at a time.

Flow: ``add`` -> metadata, limits -> ListOffsets of each leader -> what a predecessor wrote behind the last known copy
(tail.py) -> ``SenderLane.opened`` -> ``LaneOwner.ready``. A target that does not answer is asked without end, with back-off;
``LaneOwner.stalled`` reports it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin, ListedOffset
from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.fetch.partition_fetch import fetch_partition
from mm2py.client.send.lane import LaneState, SenderLane
from mm2py.client.send.limits import LaneLimits
from mm2py.client.send.owner import LaneOwner
from mm2py.client.send.tail import CopiedSoFar, LaneTail
from mm2py.clock import Clock
from mm2py.errors import FatalServerError, Mm2pyError, ProtocolError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.log_offsets import EpochQuery
from mm2py.types import LATEST, TopicPartition

__all__ = ["LaneOpening"]

log = logging.getLogger(__name__)

FETCH_BYTES: Final = 4 * 1024 * 1024


@final
class LaneOpening:
    """Opens lanes, all that wait with one request per broker."""

    def __init__(
        self,
        cluster: Cluster,
        limits: LaneLimits,
        *,
        clock: Clock,
        owner: LaneOwner,
        copied: CopiedSoFar | None = None,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._clock = clock
        self._owner = owner
        self._copied = copied
        self._tails: dict[TopicPartition, asyncio.Event] = {}
        """Lanes whose first batches are compared with the log; set when more were offered."""
        self._admin = Admin(cluster)
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, 1000)
        self._waiting: list[SenderLane] = []
        self._refused: list[SenderLane] = []
        self._opener: asyncio.Task[None] | None = None
        self._pause: asyncio.Task[None] | None = None

    def add(self, lane: SenderLane) -> None:
        """Open a lane soon."""
        self._waiting.append(lane)
        if self._opener is None or self._opener.done():
            self._opener = self._owner.spawn(self._open_all())

    def offered(self, lane: SenderLane) -> None:
        """A lane that is not open yet has more batches."""
        more = self._tails.get(lane.target)
        if more is not None:
            more.set()

    async def _open_all(self) -> None:
        while self._waiting:
            lanes, self._waiting = self._waiting, []
            topics = {lane.target.topic for lane in lanes}
            try:
                # One question for all: leaders asked for one by one would each refresh the metadata.
                await self._cluster.metadata(sorted(topics))
                await self._limits.learn(topics)
            except Mm2pyError as error:
                for lane in lanes:
                    self._later(lane, error)
                continue
            by_leader: dict[int, list[SenderLane]] = {}
            for lane in lanes:
                leader = self._cluster.known_leader(lane.target)
                if leader is None:
                    self._later(lane, self._cluster.no_leader(lane.target))
                else:
                    by_leader.setdefault(leader.node_id, []).append(lane)
            for node_id, led in by_leader.items():
                self._owner.spawn(self._open_at(node_id, led))

    async def _open_at(self, node_id: int, lanes: list[SenderLane]) -> None:
        """Open the lanes that one broker leads; a broker that is silent delays no other's."""
        try:
            ends = await self._admin.list_offsets_at(
                node_id, {lane.target: LATEST for lane in lanes}
            )
            tails = await self._look_for_tails(node_id, lanes, ends)
        except Mm2pyError as error:
            for lane in lanes:
                self._later(lane, error)
            return
        for lane in lanes:
            end = ends[lane.target]
            if lane.target in tails:
                self._owner.spawn(self._compare(lane, node_id, tails[lane.target]))
            elif end.error is None:
                self._open(lane, node_id, end.offset)
            elif end.error.code == codes.TOPIC_AUTHORIZATION_FAILED:
                self._open(lane, node_id, -1)  # it may be written all the same
            else:
                self._later(lane, end.error)

    async def _look_for_tails(
        self, node_id: int, lanes: list[SenderLane], ends: Mapping[TopicPartition, ListedOffset]
    ) -> dict[TopicPartition, LaneTail]:
        """Return what has to be compared before lanes are opened; the others' beginnings are durable then."""
        if self._copied is None:
            return {}
        readable = [lane for lane in lanes if ends[lane.target].error is None]
        known = {lane.target: self._copied.target_end(lane.source) for lane in readable}
        begun = [tp for tp, end in known.items() if end >= 0]
        log_ends = await self._log_ends(node_id, begun) if begun else {}
        await self._copied.begin(
            {lane.source: log_ends.get(lane.target, ends[lane.target].offset) for lane in readable}
        )
        return {
            tp: LaneTail(tp, known[tp], end, partial(self._read, tp))
            for tp, end in log_ends.items()
            if end > known[tp]
        }

    async def _log_ends(
        self, node_id: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return where logs end, which the high watermark may hide: a broker may still be storing a predecessor's batch."""
        leaders = {tp: self._cluster.known_leader(tp) for tp in partitions}
        queries = [
            EpochQuery(tp.topic, tp.partition, leader.epoch, leader.epoch)
            for tp, leader in leaders.items()
            if leader is not None
        ]
        connection = await self._cluster.connection(node_id, ADMIN)
        answers = await connection.call(messages.offset_for_leader_epoch(queries))
        for end in answers:
            if end.error_code or end.end_offset < 0:
                tp = TopicPartition(end.topic, end.partition)
                self._cluster.leader_moved(tp)
                code = end.error_code or codes.FENCED_LEADER_EPOCH
                raise codes.server_error(code, f"log end of {tp}")
        return {TopicPartition(it.topic, it.partition): it.end_offset for it in answers}

    async def _compare(self, lane: SenderLane, node_id: int, tail: LaneTail) -> None:
        """Compare a lane's first batches with the tail of its log; open it behind that."""
        more = self._tails[lane.target] = asyncio.Event()
        try:
            while lane.state is LaneState.OPENING and not tail.is_over:
                if not lane.queue:
                    more.clear()
                    await more.wait()
                    continue
                await self._compare_first(lane, tail)
        except ProtocolError as error:
            self._owner.failed(lane, error)
        finally:
            del self._tails[lane.target]
        if tail.recognised:
            log.info(
                "records of a predecessor were found in the target's log partition=%s records=%d",
                lane.target,
                tail.recognised,
            )
        self._open(lane, node_id, tail.end)

    async def _compare_first(self, lane: SenderLane, tail: LaneTail) -> None:
        source, batch = lane.queue[0]
        try:
            parts, rest = await tail.compare(batch)
        except FatalServerError as error:
            # It may be written, not read: what a predecessor wrote of this cannot be known.
            self._owner.doubted(source, batch.base_offset, batch.last_offset, error)
            tail.is_over = True
            return
        if lane.queue and lane.queue[0][1] is batch:  # else it was given up meanwhile
            self._owner.recognised(lane, parts, rest)

    async def _read(self, tp: TopicPartition, position: int) -> FetchedPartition:
        """Read a piece of a target's log, however long it takes."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while True:
            try:
                return await fetch_partition(self._cluster, tp, position, max_bytes=FETCH_BYTES)
            except RetriableError as error:
                log.debug("log of %s cannot be read yet cause=%s", tp, error)
                await self._clock.sleep(backoff.next_s())

    def _open(self, lane: SenderLane, node_id: int, log_end: int) -> None:
        self._backoff.reset()
        if lane.state is LaneState.OPENING:
            self._limits.apply(lane)
            lane.opened(node_id, log_end)
            self._owner.ready(lane)

    def _later(self, lane: SenderLane, error: Exception) -> None:
        if lane.state is not LaneState.OPENING:
            return
        self._owner.stalled(lane, error)
        self._refused.append(lane)
        if self._pause is None or self._pause.done():
            self._pause = self._owner.spawn(self._retry())

    async def _retry(self) -> None:
        await self._clock.sleep(self._backoff.next_s())
        refused, self._refused, self._pause = self._refused, [], None
        for lane in refused:
            self.add(lane)
