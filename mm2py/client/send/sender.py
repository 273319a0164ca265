"""Idempotent Sender: batches to partition leaders, in order, acknowledged, retried without
duplicates.

Flow: ``enqueue`` -> lane (lane.py decides) -> Produce request per leader -> response ->
``on_delivered``. One batch per partition per request, many partitions per request; partitions that
lag on a distant broker are spread over several connections, each partition on one. opening.py finds
leaders and log ends, recovery.py pauses, reads the target's log and splits, limits.py caches topic
limits. Records are never decoded here.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.lane import MAX_EPOCH, LaneState, SenderLane, Sent
from mm2py.client.send.limits import LaneLimits, TargetLimits, fitting
from mm2py.client.send.node import ProduceNode
from mm2py.client.send.opening import LaneOpening
from mm2py.client.send.owner import MirrorIds
from mm2py.client.send.recovery import PATIENT_RETRIES, LaneRecovery
from mm2py.client.send.repair import refusal
from mm2py.client.send.resume import LaneResume
from mm2py.client.send.tail import (
    CopiedSoFar,
    Identical,
    Recognised,
    not_identical,
    producer_at,
)
from mm2py.client.send.transactions import ENDS_TRANSACTION, Transactions
from mm2py.clock import Clock, cancelled, set_within, tick
from mm2py.config.clients import ProducerSettings
from mm2py.errors import Mm2pyError, PartitionError, ProtocolError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.protocol.record_batch import CODEC_MASK, Codec, RecordBatch
from mm2py.protocol.splice import recompress
from mm2py.protocol.topics import named_id
from mm2py.types import NO_PRODUCER_ID, TopicPartition

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
FOREIGN_LOOK_S: Final = 60.0
"""Interval at which another writer of a partition is identified, until one is reported that is not
a mirror."""

DEAL_BYTES: Final = 256 * 1024
"""Backlog of a partition from which one connection is too slow over a long round trip: a broker's
receive buffer (``socket.receive.buffer.bytes``, 100 KiB by default) limits the bytes in flight of a
connection."""

CODECS: Final = {
    "none": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Values of ``producer.compression.type`` that select another codec than the source's."""

OnDelivered = Callable[[TopicPartition, TopicPartition, RecordBatch, int], None]
OnFailed = Callable[[TopicPartition, TopicPartition, Exception], None]
OnStalled = Callable[[TopicPartition, Exception | None], None]


OnDoubt = Callable[[TopicPartition, int, int, Exception], None]


def _ignore_stall(_target: TopicPartition, _error: Exception | None) -> None:
    """The caller does not listen."""


def _ignore_doubt(_source: TopicPartition, _first: int, _last: int, _error: Exception) -> None:
    """The caller does not listen."""


def _ignore_throttles(_left_s: Mapping[int, float]) -> None:
    """The caller does not listen."""


@final
class Sender:
    """Sends batches to one cluster under one producer id.

    ``on_delivered(source, target, batch, base_offset)`` is called in the order of ``enqueue`` per
    target partition. ``on_failed(source, target, error)`` ends a partition.
    ``on_stalled(target, error)`` reports a partition that is refused and retried, with ``None``
    that it makes progress again. ``on_doubt(source, first, last, error)`` reports source offsets
    that are sent again although they may be in the log (rule 7). All on the event loop. Each
    producer id is announced to ``mirror_ids`` before anything is sent under it.

    Nothing is sent unless ``permit`` allows it in the term in which the Sender was created; lanes
    keep their states meanwhile. With ``owns_cluster`` the connections are opened and closed with
    the Sender. With ``whole_batches`` no batch is joined or cut: one that is too large ends its
    partition. With ``copied`` records that a predecessor wrote are recognised in the target's log
    (tail.py). With ``transactions`` a lane sends only while they admit it, and an unknown outcome
    or a lost producer state ends the transaction instead of a read of the log; with ``sends_last``
    this Sender is for the records that go last in each transaction. With ``shares_partitions``
    other writers of a partition are nothing to report.
    """

    def __init__(  # noqa: PLR0913 - one keyword per event and per rule of sending
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        *,
        clock: Clock,
        on_delivered: OnDelivered,
        on_failed: OnFailed,
        on_stalled: OnStalled = _ignore_stall,
        on_doubt: OnDoubt = _ignore_doubt,
        mirror_ids: MirrorIds | None = None,
        permit: Permit = UNLIMITED,
        whole_batches: bool = False,
        owns_cluster: bool = False,
        copied: CopiedSoFar | None = None,
        transactions: Transactions | None = None,
        sends_last: bool = False,
        shares_partitions: bool = False,
    ) -> None:
        self.transactions, self._sends_last = transactions, sends_last
        self._cluster, self._owns_cluster = cluster, owns_cluster
        self._settings = settings
        self._clock = clock
        self._on_delivered = on_delivered
        self._on_failed = on_failed
        self._on_stalled = on_stalled
        self._on_doubt = on_doubt
        self._on_throttled: Callable[[Mapping[int, float]], None] = _ignore_throttles
        self._mirror_ids, self._shares_partitions = mirror_ids, shares_partitions
        self._permit, self._term = permit, permit.term
        self._whole_batches = whole_batches
        self._end_watch = permit.watch(self._permit_changed)
        self._lanes: dict[TopicPartition, SenderLane] = {}
        self._last_epochs: dict[TopicPartition, tuple[int, int]] = {}
        self._nodes: dict[tuple[int, int], ProduceNode] = {}
        self._dealt = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._limits = LaneLimits(
            self._lanes,
            TargetLimits(cluster, clock),
            owner=self,
            cuts=not whole_batches,
            most_bytes=0 if whole_batches else settings.max_request_size,
        )
        self._opening = LaneOpening(
            cluster,
            self._limits,
            clock=clock,
            owner=self,
            resume=None if copied is None else LaneResume(cluster, copied, clock=clock, owner=self),
        )
        self._recovery = LaneRecovery(cluster, self._limits, clock=clock, owner=self, copied=copied)
        self._stalled: set[TopicPartition] = set()
        self._foreign: dict[TopicPartition, float] = {}
        """Targets with another writer: when it may be identified again, never once it was
        reported."""
        self._stirred, self._rests = asyncio.Event(), True
        self._drained: asyncio.Event | None = None  # what ``flush`` waits for
        self._copied = copied
        self._is_seamless = copied is not None and copied.identical is Identical.REQUIRE
        self._announced: set[int] = set()
        self._producer_id = NO_PRODUCER_ID
        self._epoch = -1
        self._closed = False
        self._codec = CODECS.get(settings.compression_type)
        self.buffered_bytes = 0

    async def start(self) -> None:
        """Get a producer id (InitProducerId); ``RetriableError`` when the target cannot give one
        now."""
        if self._owns_cluster:
            await self._cluster.connect()
        if self.transactions is not None:
            await self.transactions.start()
        else:
            self._producer_id, self._epoch = await self.new_producer()
        self.spawn(self._look_after())

    async def new_producer(self) -> tuple[int, int]:
        """Return a new producer id and its epoch, announced: the one place where an id becomes
        ours.

        Raises:
            Mm2pyError: the target gives none now, or it cannot be announced.
        """
        # Any broker gives an id that has no transactional
        # id; a repeated request just costs another one.
        answer = await self._cluster.call_any(messages.init_producer_id())
        await self.announce(answer.producer_id)
        return answer.producer_id, answer.producer_epoch

    async def announce(self, producer_id: int) -> None:
        if self._mirror_ids is not None and producer_id not in self._announced:
            await self._mirror_ids.announce(producer_id)
            self._announced.add(producer_id)

    def enqueue_all(
        self,
        handed_over: Iterable[tuple[TopicPartition, TopicPartition, Sequence[RecordBatch]]],
    ) -> None:
        """Queue as ``enqueue`` does, and send at once what may be sent."""
        try:
            for source, target, batches in handed_over:
                self.enqueue(source, target, batches, later=False)
        finally:
            # A copy: a lane that has moved opens the node of its leader.
            for node in tuple(self._nodes.values()):
                node.pump()

    def enqueue(
        self,
        source: TopicPartition,
        target: TopicPartition,
        batches: Sequence[RecordBatch],
        *,
        later: bool = True,
    ) -> None:
        """Queue batches for ``target``; each holds its buffer until it is delivered or dropped.

        They are sent with others of this turn of the loop, at its end; not ``later``: by the
        caller's ``pump``.
        """
        lane = self._lanes.get(target) or self._new_lane(target)
        if self._is_seamless:
            self._fail_at_hole(lane, batches)
        if lane.state is LaneState.FAILED:
            for batch in batches:
                _release(batch)
            return
        # Before the cut: limits apply to the bytes that are sent.
        if self._codec is not None:
            batches = [self._in_codec(batch, self._codec) for batch in batches]
        if lane.limit_bytes:
            whole, batches = batches, fitting(batches, lane.limit_bytes)
            # Cutting hides that the limit was raised
            # meanwhile: no error of the broker would show it.
            if batches is not whole and self._limits.is_old(target.topic):
                self.spawn(self._limits.learn_again(target.topic))
        if self._rests:
            self._rests = False
            self._stirred.set()
        self.buffered_bytes += lane.offer(source, batches)
        if lane.state is LaneState.FLOWING:
            self.ready(lane, later=later)
        elif lane.state is LaneState.OPENING:
            self._opening.offered(lane)

    def _fail_at_hole(self, lane: SenderLane, batches: Sequence[RecordBatch]) -> None:
        """End a partition whose offsets must be identical at the first source offset without a
        record."""
        hole = lane.hole_before(batches)
        if hole is not None and lane.state is not LaneState.FAILED:
            text = (
                f"source offset {hole} has no record to copy (compaction, a transaction, or lost)"
            )
            self.failed(lane, not_identical(lane, text))

    def backlog_bytes(self, target: TopicPartition) -> int:
        """Return the bytes of one target partition that are not acknowledged yet."""
        lane = self._lanes.get(target)
        return lane.queued_bytes if lane is not None else 0

    def returnable(self, target: TopicPartition) -> tuple[int, int] | None:
        """Return the first source offset and the number of the records that ``give_back`` would
        drop, None for none."""
        lane = self._lanes.get(target)
        # Batches that are compared with the log may turn out to be in it.
        if lane is None or (lane.state is LaneState.OPENING and self._opening.needs_queue(lane)):
            return None
        batches = lane.returnable()
        if not batches:
            return None
        return batches[0].base_offset, sum(batch.count for batch in batches)

    def give_back(self, target: TopicPartition) -> None:
        """Drop batches of a partition that are certainly not in its log: the source is read again
        from there."""
        lane = self._lanes[target]
        before = lane.queued_bytes
        for batch in lane.give_back():
            _release(batch)
        self.resized(lane.queued_bytes - before)
        self._note_drained()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or in flight; False when that takes longer than
        ``timeout_s``.

        Without a permit it does not wait: nothing is sent, and no position may be written either.
        """
        if self.buffered_bytes and self._permit.was_valid:
            self._drained = drained = self._drained or asyncio.Event()
            await set_within(drained, timeout_s)
        return self.buffered_bytes == 0

    def _note_drained(self) -> None:
        if self._drained is not None and (self.buffered_bytes == 0 or not self.allowed()):
            drained, self._drained = self._drained, None
            drained.set()

    async def log_starts(self, targets: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """As ``Admin.log_starts`` of the target."""
        return await Admin(self._cluster).log_starts(targets)

    async def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        """Return the ``named_id`` of the target's topics, never one of before; a topic that does
        not exist, or may not be described, is left out."""
        described = await Admin(self._cluster).describe_topics(topics)
        return {
            topic: named_id(topic, self._cluster.known_topic_id(topic))
            for topic, it in described.items()
            if it.error is None
        }

    def let_create(self, topics: Collection[str]) -> None:
        """Request metadata as Java's producer does: brokers with ``auto.create.topics.enable``
        create missing topics."""
        self.spawn(self._let_create(sorted(topics)))

    async def _let_create(self, topics: Sequence[str]) -> None:
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, 1000)
        while True:
            try:
                await self._cluster.call_any(
                    messages.metadata(topics, allow_auto_topic_creation=True)
                )
            except RetriableError as error:
                log.debug("topics cannot be requested yet topics=%s cause=%s", topics, error)
                await self._clock.sleep(backoff.next_s())
            except Mm2pyError as error:
                log.warning("topics cannot be requested topics=%s cause=%s", topics, error)
                return
            else:
                return

    def watch_throttles(self, changed: Callable[[Mapping[int, float]], None]) -> None:
        """As ``TaskSender.watch_throttles``."""
        self._on_throttled = changed

    def drop_unopened(self) -> None:
        """Drop, at a stop, the queues of partitions in OPENING.

        Nothing of them is on the target, so there is no reason to wait: they are read again from
        their position.
        """
        for lane in self._lanes.values():
            if lane.state is LaneState.OPENING:
                self._drop(lane)

    def abandon(self, target: TopicPartition) -> None:
        """Forget one partition: nothing of it is sent or delivered any more.

        Later batches are sent under a new epoch: under the old one their first sequences would be
        duplicates of batches in the log, and a batch that is still in flight could be stored after
        them.
        """
        self._stalled.discard(target)
        lane = self._lanes.pop(target, None)
        if lane is None:
            return
        self._last_epochs[target] = (lane.producer_id, lane.epoch)
        if lane.under_way:
            for node in self._nodes.values():
                if node.carries(lane):
                    # A request cannot be recalled, but what the kernel
                    # still holds is dropped with its connection.
                    node.reset(f"what was sent to {target} is taken back")
        self._drop(lane)

    def renew(self) -> None:
        """Forget everything, and send what is queued from now on in the permit's current term."""
        for target in tuple(self._lanes):
            self.abandon(target)
        self._term = self._permit.term

    async def close(self) -> None:
        """Stop at once; what is not acknowledged is dropped."""
        self._closed = True
        self._end_watch()
        await cancelled(*self._tasks)
        for lane in list(self._lanes.values()):
            self._drop(lane)
        self._lanes.clear()
        if self._owns_cluster:
            await self._cluster.close()

    # -- LaneOwner: sending ------------------------------------------------------------------------

    def ready(self, lane: SenderLane, *, later: bool = True) -> None:
        if not lane.admitted and not self._is_admitted(lane):
            return
        key = lane.leader, lane.channel
        node = self._nodes.get(key)
        if node is None:
            node = ProduceNode(
                *key,
                self._cluster,
                # A quota mutes the connection of the data; a commit does not wait for that.
                purpose="last" if self._sends_last else "produce",
                clock=self._clock,
                owner=self,
                merges=not self._whole_batches,
                most_bytes=self._settings.max_request_size,
                transactions=self.transactions,
            )
            self._nodes[key] = node
        node.ready(lane, later=later)

    def answered(
        self,
        lane: SenderLane,
        sent: Sent,
        code: int,
        base_offset: int,
        text: str = "",
        bad_record: int = -1,
    ) -> None:
        if lane.state is LaneState.FAILED:
            _release(sent.batch)  # the lane failed while this was in flight
            return
        try:
            if code == 0:
                self.delivered(lane, lane.acknowledged(sent, base_offset))
                if lane.foreign is not None:
                    self._note_foreign(lane)
                # The ordinary case goes past ``follow``: this runs for every acknowledged batch.
                if lane.state is LaneState.FLOWING:
                    if lane.queue:
                        self.ready(lane)
                    return
            else:
                if self.transactions is not None:
                    # Before ``lane.refused``: the lane must not
                    # recover a batch of a broken transaction.
                    if code in ENDS_TRANSACTION:
                        self.transactions.refused(code, f"{lane.target} {text}".strip())
                    self.transactions.progressed()
                lane.refused(sent, code, text, bad_record)
            self.follow(lane)
        except Exception as error:  # noqa: BLE001 - this partition fails, the others of the answer do not
            self._broken(lane, error)

    def lost(self, lane: SenderLane, sent: Sent, error: Exception) -> None:
        if lane.state is LaneState.FAILED:
            _release(sent.batch)
            return
        lane.lost(sent, str(error))
        self.follow(lane)

    def delivered(self, lane: SenderLane, delivered: Sequence[Sent]) -> None:
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
        if delivered and self.transactions is not None:
            self.transactions.landed()
        if self._drained is not None:
            self._note_drained()

    def recognised(
        self, lane: SenderLane, parts: Sequence[Recognised], rest: RecordBatch | None
    ) -> None:
        source, before = lane.queue[0][0], lane.queued_bytes
        batch = lane.recognised(rest)
        self.buffered_bytes += lane.queued_bytes - before
        for part in parts:
            self._on_delivered(source, lane.target, part.batch, part.base_offset)
        # A cut batch has bytes of its own; an uncut one keeps its receive buffer.
        if rest is not batch:
            _release(batch)
        self._note_drained()

    def allowed(self) -> bool:
        transactions = self.transactions
        if transactions is not None and transactions.broken:
            return False
        return self._permit.allows(self._term)

    def _permit_changed(self) -> None:
        if self.allowed():
            for node in self._nodes.values():
                node.permitted()
            return
        for node in self._nodes.values():
            # What the kernel has not sent yet must not leave any more (Permit, invariant 1).
            node.reset("the permit to write ended")
        self._note_drained()

    def follow(self, lane: SenderLane) -> None:
        state = lane.state
        if state is LaneState.FLOWING or state is LaneState.RETRYING:
            if lane.can_send() or (lane.queue and not lane.admitted):
                self.ready(lane)
        elif state is LaneState.RESOLVING and self.transactions is not None:
            # An outcome or our sequence is in doubt: the
            # whole transaction is aborted and sent again.
            code, text = lane.error
            self.transactions.refused(code, f"{lane.target} {text}".strip())
        elif state is LaneState.BACKOFF or state is LaneState.RESOLVING:
            self.spawn(self._recover(lane, self._recovery.revive))
        elif state is LaneState.REPAIRING:
            self.spawn(self._recover(lane, self._recovery.repair))
        elif state is LaneState.FAILED and lane.unsettled:  # else it was abandoned meanwhile
            self.failed(lane, refusal(lane.first_unsettled(), lane.target))

    async def _recover(
        self, lane: SenderLane, step: Callable[[SenderLane], Awaitable[None]]
    ) -> None:
        try:
            await step(lane)
        except Exception as error:  # noqa: BLE001 - it fails this partition alone
            self._broken(lane, error)

    def _new_lane(self, target: TopicPartition) -> SenderLane:
        producer_id, epoch = self._producer_id, self._epoch
        if target in self._last_epochs:
            producer_id, last = self._last_epochs[target]
            # After the last epoch the broker refuses epoch 0, and the lane gets a new producer id.
            # A new epoch without InitProducerId, as Java's idempotent producer bumps its
            # own (KIP-360): the broker takes any higher one that begins at sequence 0.
            epoch = last + 1 if last < MAX_EPOCH else 0
        lane = self._lanes[target] = SenderLane(
            target,
            producer_id=producer_id,
            epoch=epoch,
            max_in_flight=self._settings.max_in_flight_requests_per_connection,
            transactional=self.transactions is not None,
        )
        self._opening.add(lane)
        return lane

    def _is_admitted(self, lane: SenderLane) -> bool:
        """Whether a lane may send: retries belong to the open transaction, new batches must be
        admitted."""
        if self.transactions is None or lane.state is LaneState.RETRYING:
            return True
        if lane.state is not LaneState.FLOWING or not lane.queue:
            return False
        return self.transactions.admits(lane, self, last=self._sends_last)

    def resized(self, by_bytes: int) -> None:
        self.buffered_bytes += by_bytes

    def withdraw(self, lane: SenderLane) -> None:
        # Transient errors are waited for, and positions: records are
        # never committed without them. CONCURRENT_TRANSACTIONS passes
        # when the markers of the last transaction are written (KIP-890).
        is_lasting = lane.retries > PATIENT_RETRIES
        if is_lasting and not self._sends_last and lane.error[0] != codes.CONCURRENT_TRANSACTIONS:
            self.resized(lane.withdraw())

    # -- LaneOwner: reports ------------------------------------------------------------------------

    def stalled(self, lane: SenderLane, error: Exception) -> None:
        if self.transactions is not None:
            self.transactions.progressed()  # a commit may leave it out now
        # Reported once per stall; each retry of thousands of partitions would be a line otherwise.
        if lane.target not in self._stalled and not self._closed:
            self._stalled.add(lane.target)
            self._on_stalled(lane.target, error)

    def _moving(self, lane: SenderLane) -> None:
        if lane.target in self._stalled:
            self._stalled.discard(lane.target)
            self._on_stalled(lane.target, None)

    def throttled(self) -> None:
        left: dict[int, float] = {}
        for node in self._nodes.values():
            left[node.node_id] = max(left.get(node.node_id, 0.0), node.throttled_s)
        self._on_throttled(left)

    def doubted(self, source: TopicPartition, first: int, last: int, error: Exception) -> None:
        self._on_doubt(source, first, last, error)

    def failed(self, lane: SenderLane, error: Exception) -> None:
        self._drop(lane)
        source = lane.source
        if isinstance(error, PartitionError):  # with transforms several share the target partition
            source = TopicPartition(error.topic, error.partition)
        self._on_failed(source, lane.target, error)

    async def name_writer(
        self, target: TopicPartition, producer_id: int, first: int, last: int, *, may_be_own: bool
    ) -> None:
        if may_be_own and self._mirror_ids is None:
            return
        if await self._is_mirror(producer_id):
            self._foreign[target] = self._clock.monotonic() + FOREIGN_LOOK_S
            return
        if self._foreign.get(target) == math.inf:
            return
        self._foreign[target] = math.inf
        # With identical names in both directions applications of the target are expected writers.
        log.log(
            logging.WARNING if self._mirror_ids is None else logging.INFO,
            "another program writes to a target partition, offsets are not the same on both "
            "clusters from here on partition=%s producer_id=%d first_offset=%d last_offset=%d",
            target,
            producer_id,
            first,
            last,
        )

    async def _is_mirror(self, producer_id: int) -> bool:
        if self._mirror_ids is None or producer_id == NO_PRODUCER_ID:
            return False
        try:
            return await self._mirror_ids.includes(producer_id)
        except Mm2pyError as error:
            log.debug(
                "mirrors of the target are not known producer_id=%d cause=%s", producer_id, error
            )
            return False

    def _note_foreign(self, lane: SenderLane) -> None:
        """Identify another writer between our batches; end the partition if offsets must be
        identical."""
        assert lane.foreign is not None
        (first, end), lane.foreign = lane.foreign, None
        if self._shares_partitions:
            return
        required = self._is_seamless
        now = self._clock.monotonic()
        if required or self._foreign.get(lane.target, now) <= now:
            self._foreign[lane.target] = now + FOREIGN_LOOK_S
            self.spawn(self._name_foreign(lane, first, end, required=required))

    async def _name_foreign(
        self, lane: SenderLane, first: int, end: int, *, required: bool
    ) -> None:
        try:
            producer_id = await producer_at(self._cluster, lane.target, first)
            name = f"with producer id {producer_id}"
        except Mm2pyError as error:
            producer_id, name = NO_PRODUCER_ID, f"(its batch cannot be read: {error})"
        if not required:
            await self.name_writer(lane.target, producer_id, first, end - 1, may_be_own=False)
        elif lane.state is not LaneState.FAILED:
            self.failed(
                lane,
                not_identical(lane, f"another program {name} wrote offsets {first} to {end - 1}"),
            )

    def _drop(self, lane: SenderLane) -> None:
        self.buffered_bytes -= lane.queued_bytes
        under_way = lane.under_way
        for batch in lane.fail():
            _release(batch)
        if self.transactions is not None:
            if under_way and not self._closed:
                # A batch in flight may be stored, and would be committed without its position.
                self.transactions.refused(codes.NETWORK_EXCEPTION, f"{lane.target} was dropped")
            self.transactions.progressed()
        self._note_drained()

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    @staticmethod
    def _in_codec(batch: RecordBatch, codec: Codec) -> RecordBatch:
        if batch.attributes & CODEC_MASK == codec:
            return batch
        try:
            packed = recompress(batch, codec)
        except ProtocolError:
            return batch  # damaged: the target refuses it, and its partition alone
        if batch.lease is not None:
            packed.lease = batch.lease.copied(len(packed.data))
        _release(batch)
        return packed

    async def _look_after(self) -> None:
        while True:
            await self._stirred.wait()
            await tick(self._clock, LOOK_S)
            for lane in self._lanes.values():
                lane.look_after()
                self._deal(lane)
            for node in self._nodes.values():
                node.look_after(self._lanes.values())
            if all(lane.resting for lane in self._lanes.values()):
                self._rests = True
                self._stirred.clear()

    def _deal(self, lane: SenderLane) -> None:
        """Assign an additional connection to a partition that lags on a distant broker."""
        first = self._nodes.get((lane.leader, 0))
        most = self._settings.produce_connections_max
        if first is None or not first.is_distant or most == 1:
            lane.deal(0)
        # Round robin, and only once: a partition that changes its connection has to drain first.
        elif not lane.channel and lane.queued_bytes >= DEAL_BYTES:
            channel = 1 + self._dealt % (most - 1)
            self._dealt += 1
            node = self._nodes.get((lane.leader, channel))
            if node is None or not node.rests:
                lane.deal(channel)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all partitions after a defect in the Sender: otherwise they would wait for ever."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            for lane in list(self._lanes.values()):
                self._broken(lane, error)

    def _broken(self, lane: SenderLane, error: Exception) -> None:
        """Fail a partition after a defect, or for lack of memory."""
        if lane.state is not LaneState.FAILED:
            log.error("partition cannot be sent target=%s", lane.target, exc_info=error)
            self.failed(lane, Mm2pyError(f"internal error: {error!r}", remedy="report it"))


def _release(batch: RecordBatch) -> None:
    if batch.lease is not None:
        batch.lease.release()
        batch.lease = None
