"""Idempotent Sender: batches to partition leaders, in order, acknowledged, retried without doubling.

Flow: ``enqueue`` -> lane (sender_lane.py decides) -> Produce request per leader -> answer -> ``on_delivered``.
One batch per partition per request, many partitions per request. It does the I/O that the lanes ask for:
finding leaders, pauses, reading the target's log (sender_resolve.py), splitting. It never decodes records.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, final

from mm2py.client.admin import Admin
from mm2py.client.backoff import Backoff
from mm2py.client.cluster import ADMIN, Cluster
from mm2py.client.sender_lane import MAX_EPOCH, LaneState, SenderLane, Sent
from mm2py.client.sender_node import NodeEvents, ProduceNode
from mm2py.client.sender_repair import refusal, repaired
from mm2py.client.sender_resolve import batches_of_producer
from mm2py.client.target_limits import TargetLimits, fitting
from mm2py.clock import Clock
from mm2py.config.clients import ProducerSettings
from mm2py.errors import (
    FatalServerError,
    Mm2pyError,
    PartitionError,
    ProtocolError,
    RetriableServerError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.protocol.record_batch import CODEC_MASK, Codec, RecordBatch
from mm2py.protocol.splice import recompress
from mm2py.types import LATEST, TopicPartition

__all__ = ["Sender"]

log = logging.getLogger(__name__)

STANDSTILL_S: Final = 1.0

CODECS: Final = {
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Values of ``producer.compression.type`` that ask for another codec than the source's."""

OnDelivered = Callable[[TopicPartition, TopicPartition, RecordBatch, int], None]
OnFailed = Callable[[TopicPartition, TopicPartition, Exception], None]
OnStalled = Callable[[TopicPartition, Exception | None], None]


OnDoubt = Callable[[TopicPartition, int, int, Exception], None]


def _ignore_stall(_target: TopicPartition, _error: Exception | None) -> None:
    """Nobody asked to be told."""


def _ignore_doubt(_source: TopicPartition, _first: int, _last: int, _error: Exception) -> None:
    """Nobody asked to be told."""


@final
class Sender:
    """Sends batches to one cluster under one producer id.

    ``on_delivered(source, target, batch, base_offset)`` is called in the order of ``enqueue`` per target
    partition. ``on_failed(source, target, error)`` ends a partition. ``on_stalled(target, error)`` says that
    a partition is refused but retried, ``None`` that it moves again. ``on_doubt(source, first, last, error)``
    names source offsets that are sent again although they may be there (rule 7). All on the event loop.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        *,
        clock: Clock,
        on_delivered: OnDelivered,
        on_failed: OnFailed,
        on_stalled: OnStalled = _ignore_stall,
        on_doubt: OnDoubt = _ignore_doubt,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._on_delivered = on_delivered
        self._on_failed = on_failed
        self._on_stalled = on_stalled
        self._on_doubt = on_doubt
        self._admin = Admin(cluster)
        self._limits = TargetLimits(cluster, clock)
        self._lanes: dict[TopicPartition, SenderLane] = {}
        self._nodes: dict[int, ProduceNode] = {}
        self._opening: list[SenderLane] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._opener: asyncio.Task[None] | None = None
        self._stalled: set[TopicPartition] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._producer_id = -1
        self._epoch = -1
        self._closed = False
        self._suspended = False
        self._codec = CODECS.get(settings.compression_type)
        self.buffered_bytes = 0

    async def start(self) -> None:
        """Get a producer id (InitProducerId); ``RetriableError`` when the target cannot give one now."""
        answer = await self._cluster.call_any(messages.init_producer_id())
        self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
        self._spawn(self._look_after())

    def enqueue(
        self, source: TopicPartition, target: TopicPartition, batches: Sequence[RecordBatch]
    ) -> None:
        """Queue batches for ``target``; each keeps its buffer until it is delivered or dropped."""
        lane = self._lanes.get(target)
        if lane is None:
            lane = SenderLane(
                target,
                producer_id=self._producer_id,
                epoch=self._epoch,
                max_in_flight=self._settings.max_in_flight_requests_per_connection,
            )
            self._lanes[target] = lane
            self._open(lane)
        if lane.state is LaneState.FAILED:
            for batch in batches:
                _release(batch)
            return
        if self._codec is not None:
            batches = [self._in_codec(batch, self._codec) for batch in batches]
        if lane.limit_bytes:
            whole, batches = batches, fitting(batches, lane.limit_bytes)
            if batches is not whole and self._limits.is_old(target.topic):
                self._spawn(self._learn_again(target.topic))
        self.buffered_bytes += lane.offer(source, batches)
        if not self._suspended:
            self._idle.clear()
        if lane.state is LaneState.FLOWING:
            self._ready(lane)

    def backlog_bytes(self, target: TopicPartition) -> int:
        """Bytes of one target partition that are not acknowledged yet."""
        lane = self._lanes.get(target)
        return lane.queued_bytes if lane is not None else 0

    def suspend(self) -> None:
        """Send nothing from now on, retries included; answers under way are taken, lanes keep their states."""
        self._suspended = True
        for node in self._nodes.values():
            node.suspended = True
        self._note_quiet()

    def resume(self) -> None:
        """Send again, from where ``suspend`` stopped it."""
        if not self._suspended:
            return
        self._suspended = False
        if self.buffered_bytes:
            self._idle.clear()
        for node in self._nodes.values():
            node.resume()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or under way; False when that takes longer than ``timeout_s``.

        While the Sender is suspended it waits for the answers under way alone, and then finds out from the
        target's log which batches of unknown outcome are there.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
                if self._suspended:
                    doubtful = [lane for lane in self._lanes.values() if _in_doubt(lane)]
                    await asyncio.gather(*(self._look_up(lane) for lane in doubtful))
        except TimeoutError:
            return False
        return self.buffered_bytes == 0

    def abandon(self, target: TopicPartition) -> None:
        """Forget one partition: nothing of it is sent or delivered any more."""
        lane = self._lanes.pop(target, None)
        if lane is not None:
            self._drop(lane)

    async def close(self) -> None:
        """Stop at once; what is not acknowledged is dropped."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in list(self._lanes.values()):
            self._drop(lane)
        self._lanes.clear()

    # -- sending ----------------------------------------------------------------------------------

    def _ready(self, lane: SenderLane) -> None:
        node = self._nodes.get(lane.leader)
        if node is None:
            node = ProduceNode(
                lane.leader,
                self._cluster,
                clock=self._clock,
                events=NodeEvents(self._answered, self._lost, self._stall, self._ready),
                spawn=self._spawn,
            )
            node.suspended = self._suspended
            self._nodes[lane.leader] = node
        node.ready(lane)

    def _answered(
        self,
        lane: SenderLane,
        sent: Sent,
        code: int,
        base_offset: int,
        text: str = "",
        bad_record: int = -1,
    ) -> None:
        if lane.state is LaneState.FAILED:
            _release(sent.batch)  # given up while this was under way
            return
        if code == 0:
            self._delivered(lane, lane.acknowledged(sent, base_offset))
            if lane.state is LaneState.FLOWING:  # the ordinary case
                if lane.queue:
                    self._ready(lane)
                return
        else:
            lane.refused(sent, code, text, bad_record)
        self._follow(lane)

    def _lost(self, lane: SenderLane, sent: Sent) -> None:
        if lane.state is LaneState.FAILED:
            _release(sent.batch)
            return
        lane.lost(sent)
        self._follow(lane)

    def _delivered(self, lane: SenderLane, delivered: Sequence[Sent]) -> None:
        on_delivered, target = self._on_delivered, lane.target
        for sent in delivered:
            batch = sent.batch
            self.buffered_bytes -= sent.counted
            on_delivered(sent.source, target, batch, sent.base_offset)
            lease = batch.lease
            if lease is not None:
                batch.lease = None
                lease.release()
        if delivered and self._stalled:
            self._moving(lane)
        if self.buffered_bytes == 0:
            self._idle.set()
        elif self._suspended:
            self._note_quiet()

    def _note_quiet(self) -> None:
        """Suspended and nothing under way: who flushes need not wait, nothing will change."""
        under_way = any(
            lane.under_way for lane in self._lanes.values() if lane.state is not LaneState.FAILED
        )
        if self._suspended and not under_way:
            self._idle.set()

    def _follow(self, lane: SenderLane) -> None:
        """Carry out what the lane's new state asks for."""
        if self._suspended:
            self._note_quiet()
        state = lane.state
        if state is LaneState.FLOWING or state is LaneState.RETRYING:
            if lane.can_send():
                self._ready(lane)
        elif state is LaneState.BACKOFF or state is LaneState.RESOLVING:
            self._spawn(self._revive(lane))
        elif state is LaneState.REPAIRING:
            self._spawn(self._repair(lane))
        elif state is LaneState.FAILED:
            self._fail(lane, refusal(lane.first_unsettled(), lane.target))

    # -- what lanes wait for ----------------------------------------------------------------------

    def _open(self, lane: SenderLane) -> None:
        self._opening.append(lane)
        if self._opener is None or self._opener.done():
            self._opener = self._spawn(self._open_lanes())

    async def _open_lanes(self) -> None:
        """Find leaders and log ends of new lanes, all of them at a time, until none is left."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while self._opening:
            lanes, self._opening = self._opening, []
            try:
                # One question for all: leaders asked for one by one would each refresh the metadata.
                await self._cluster.metadata(sorted({lane.target.topic for lane in lanes}))
                ends = await self._admin.list_offsets({lane.target: LATEST for lane in lanes})
                await self._learn_sizes({lane.target.topic for lane in lanes})
            except Mm2pyError as error:
                self._opening.extend(lanes)
                for lane in lanes:
                    self._stall(lane, error)
                await self._clock.sleep(backoff.next_s())
                continue
            for lane in lanes:
                end = ends[lane.target]
                unreadable = (
                    end.error is not None and end.error.code == codes.TOPIC_AUTHORIZATION_FAILED
                )
                if end.error is not None and not unreadable:
                    self._stall(lane, end.error)
                    self._opening.append(lane)
                    continue
                await self._open_lane(lane, -1 if unreadable else end.offset)
            if self._opening:
                await self._clock.sleep(backoff.next_s())

    async def _open_lane(self, lane: SenderLane, log_end: int) -> None:
        try:
            leader = await self._cluster.leader(lane.target)
        except Mm2pyError as error:
            self._stall(lane, error)
            self._opening.append(lane)
            return
        if lane.state is LaneState.OPENING:
            self._limit(lane)
            lane.opened(leader.node_id, log_end)
            self._ready(lane)

    async def _revive(self, lane: SenderLane) -> None:
        """After a refusal or a lost connection: pause, find the leader, read its log where needed."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        backoff.failures = lane.retries
        lane.retries += 1
        code, text = lane.error
        if code and lane.retries > 3:
            self._stall(lane, codes.server_error(code, text))
        while lane.state in (LaneState.BACKOFF, LaneState.RESOLVING):
            await self._clock.sleep(backoff.next_s())
            try:
                self._cluster.leader_moved(lane.target)
                leader = await self._cluster.leader(lane.target)
                if lane.state is LaneState.RESOLVING or await self._forgotten(lane, leader.node_id):
                    lane.state = LaneState.RESOLVING
                    await self._resolve(lane)
                if lane.state in (LaneState.BACKOFF, LaneState.RESOLVING, LaneState.RETRYING):
                    lane.resumed(leader.node_id)
            except Mm2pyError as error:
                self._stall(lane, error)
        self._follow(lane)

    async def _forgotten(self, lane: SenderLane, node_id: int) -> bool:
        """Whether a resend would be stored again, because the leader need not know the batch any more (5)."""
        if not lane.has_unknown():
            return False
        remembered_ms = await self._limits.remembered_ms(node_id)
        return lane.must_read_first(self._clock.now_ms() - remembered_ms)

    async def _resolve(self, lane: SenderLane) -> None:
        """Find out from the target's log which batches of unknown outcome are in it (rules 6 and 7)."""
        found: dict[int, int] = {}
        if lane.has_unknown():
            try:
                found = await batches_of_producer(
                    self._cluster, lane.target, lane.producer_id, lane.epoch, lane.acked_end
                )
            except FatalServerError as error:
                doubtful = [sent for sent in lane.unsettled if sent.unknown_before]
                first, last = doubtful[0].batch.base_offset, doubtful[-1].batch.last_offset
                self._on_doubt(doubtful[0].source, first, last, error)
        try:
            self._delivered(lane, lane.resolved(found))
        except ValueError as error:
            self._fail(lane, Mm2pyError(f"order on the target is broken: {error}"))
            return
        if lane.bump_wanted:
            await self._bump(lane)

    async def _look_up(self, lane: SenderLane) -> None:
        """Deliver what is in the target's log of a lane that may not send its unknown batches again."""
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while _in_doubt(lane):
            try:
                # One attempt to connect first: a call would repeat it until the API timeout.
                self._cluster.leader_moved(lane.target)
                leader = await self._cluster.leader(lane.target)
                await self._cluster.connection(leader.node_id, ADMIN)
                found = await batches_of_producer(
                    self._cluster, lane.target, lane.producer_id, lane.epoch, lane.acked_end
                )
                if _in_doubt(lane):
                    self._delivered(lane, lane.resolved(found))
            except RetriableServerError:
                await self._clock.sleep(backoff.next_s())  # no leader just now
            except (Mm2pyError, ValueError):
                return  # nobody to ask: the doubt stays

    async def _bump(self, lane: SenderLane) -> None:
        if lane.epoch < MAX_EPOCH and lane.error[0] != codes.INVALID_PRODUCER_EPOCH:
            lane.new_epoch(lane.producer_id, lane.epoch + 1)
        else:
            answer = await self._cluster.call_any(messages.init_producer_id())
            lane.new_epoch(answer.producer_id, answer.producer_epoch)
        log.info(
            "producer state renewed partition=%s producer=%d epoch=%d cause=%s",
            lane.target, lane.producer_id, lane.epoch, codes.error_name(lane.error[0]),
        )  # fmt: skip

    async def _repair(self, lane: SenderLane) -> None:
        """The target definitely refused this form of the records: send them in another."""
        sent = lane.first_unsettled()
        try:
            repair = await repaired(sent, lane.target, self._max_message_bytes)
        except (PartitionError, ProtocolError) as error:
            if lane.state is LaneState.REPAIRING:
                self._fail(lane, error)
            return
        if lane.state is not LaneState.REPAIRING:
            return  # given up while the limit was asked for
        lane.limit_bytes = repair.limit_bytes or lane.limit_bytes
        lane.replaced(sent, repair.batches)
        _release(sent.batch)
        self._ready(lane)

    async def _learn_again(self, topic: str) -> None:
        """The limit may have been raised since: cutting is work for nothing then."""
        await self._learn_sizes({topic})
        self._apply_limits({topic})

    async def _max_message_bytes(self, topic: str) -> int:
        """Return what the target topic takes, 0 when it does not say; what waits is cut by it."""
        await self._limits.learn_sizes([topic])
        self._apply_limits({topic})
        return self._limits.max_message_bytes(topic)

    async def _learn_sizes(self, topics: set[str]) -> None:
        """Ask for the limits of topics where they are unknown or old."""
        await self._limits.learn_sizes({topic for topic in topics if self._limits.is_old(topic)})

    def _apply_limits(self, topics: set[str]) -> None:
        for lane in self._lanes.values():
            if lane.target.topic in topics and lane.state is not LaneState.FAILED:
                self._limit(lane)

    def _limit(self, lane: SenderLane) -> None:
        """Cut what waits for its first sending by the topic's limit."""
        limit = lane.limit_bytes = self._limits.max_message_bytes(lane.target.topic)
        if limit and any(len(batch.data) > limit for _, batch in lane.queue):
            waiting, before = list(lane.queue), lane.queued_bytes
            lane.queue.clear()
            for source, batch in waiting:
                lane.queued_bytes -= len(batch.data)
                lane.offer(source, fitting([batch], limit))
            self.buffered_bytes += lane.queued_bytes - before

    # -- reports ----------------------------------------------------------------------------------

    def _stall(self, lane: SenderLane, error: Exception) -> None:
        if lane.target not in self._stalled and not self._closed:
            self._stalled.add(lane.target)
            self._on_stalled(lane.target, error)

    def _moving(self, lane: SenderLane) -> None:
        if lane.target in self._stalled:
            self._stalled.discard(lane.target)
            self._on_stalled(lane.target, None)

    def _fail(self, lane: SenderLane, error: Exception) -> None:
        source = lane.unsettled[0].source if lane.unsettled else lane.target
        self._drop(lane)
        self._on_failed(source, lane.target, error)

    def _drop(self, lane: SenderLane) -> None:
        self.buffered_bytes -= lane.queued_bytes
        for batch in lane.fail():
            _release(batch)
        if self.buffered_bytes == 0:
            self._idle.set()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @staticmethod
    def _in_codec(batch: RecordBatch, codec: Codec) -> RecordBatch:
        if batch.attributes & CODEC_MASK == codec:
            return batch
        packed = recompress(batch, codec)
        _release(batch)
        return packed

    async def _look_after(self) -> None:
        """Look at partitions that stood still for a second.

        Waiting batches are copied out of the receive buffers; a lane without work has to confirm itself again.
        """
        seen: dict[TopicPartition, int] = {}
        while True:
            await self._clock.sleep(STANDSTILL_S)
            for target, lane in self._lanes.items():
                if seen.get(target) == lane.progress:
                    if lane.queue:
                        lane.copy_out()
                    elif lane.idle:
                        lane.rested()
                seen[target] = lane.progress

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A defect in the Sender itself must not leave partitions waiting for ever."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("sender stopped by a defect", exc_info=error)
            for lane in list(self._lanes.values()):
                if lane.state is not LaneState.FAILED:
                    self._fail(lane, Mm2pyError(f"internal error: {error!r}", remedy="report it"))


def _in_doubt(lane: SenderLane) -> bool:
    waiting = lane.state in (LaneState.BACKOFF, LaneState.RESOLVING, LaneState.RETRYING)
    return waiting and not lane.under_way and lane.has_unknown()


def _release(batch: RecordBatch) -> None:
    if batch.lease is not None:
        batch.lease.release()
        batch.lease = None
