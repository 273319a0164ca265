"""MirrorSource task: forwards record batches from a source cluster, bytes unchanged.

Flow: ``Fetcher.fetch`` -> rename the topic -> ``Outgoing`` -> the worker sends it -> ``delivered``
-> offset syncs. Batches are never decoded. One task owns its partitions; positions and sending are
the worker's.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, final

from mm2py.api.context import PartitionState, SourceGap, TaskContext
from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.api.task import BatchSourceTask, Delivery, Outgoing
from mm2py.client.backoff import Backoff
from mm2py.client.pacing import throttle_note
from mm2py.client.stall_log import SOURCE, StallLog
from mm2py.clock import cancelled, look_each
from mm2py.config.client_properties import ClientKind, Side, effective_client_properties
from mm2py.config.definitions import parse_config
from mm2py.errors import (
    NO_ANSWER,
    ConnectionFailedError,
    Mm2pyError,
    PartitionError,
    RequestTimedOutError,
    RetriableError,
)
from mm2py.mirror.offset_syncs import OffsetSyncEmitter
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.producer_ids import PRODUCERS_TOPIC, ProducerOrigins, Suppression, suppression_of
from mm2py.mirror.source_offsets import (
    committed_epoch,
    committed_topic_id,
    mirror_source_partition,
    next_offset,
    not_a_position,
    source_offset,
)
from mm2py.mirror.start_positions import StartPositions
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import EARLIEST, LATEST, TopicPartition, start_at_offset
from mm2py_connectors.clients import (
    AdminFactory,
    AdminSession,
    LogFactory,
    ReaderEvents,
    ReaderFactory,
    ReaderSession,
    ReaderTuning,
    SourceReader,
    WriterFactory,
    WriterSession,
    open_admin,
    open_log,
    open_reader,
    open_writer,
)
from mm2py_connectors.conflicts import ConflictWatch
from mm2py_connectors.covered_positions import CoveredPositions
from mm2py_connectors.internal_topics import no_offset_syncs
from mm2py_connectors.loop_suppression import LoopFilter, compacted_topics, find_suppression
from mm2py_connectors.mirror_source_config import MirrorSourceTaskConfig
from mm2py_connectors.partition_deal import parse_ends, parse_partitions
from mm2py_connectors.range_ends import RangeEnds
from mm2py_connectors.retention_watch import RetentionWatch

log = logging.getLogger(__name__)

LAG_REPORT_S: Final = 1.0
HELD_LAG_S: Final = 5.0
"""How often the source is asked where partitions end that are paused: one request per broker."""

UNKNOWN_AFTER_S: Final = 10.0
"""A lag is not known any more once its broker has not answered for longer."""
CURRENT_S: Final = 2.0
"""A partition whose broker has not answered for longer does not count as copied up to now."""

ALL_REPORTS: Final = 5
"""Seconds between checks of all partitions, also those without reads and deliveries."""

NEWS_REPORTS: Final = 3
"""How often a partition is checked after a change of it; the last check finds what is covered."""

SYNC_FLUSH_S: Final = 1.0
"""How long the last offset syncs may take when a task stops."""

THROTTLE: Final = "quota of the source"

LAST_LOOK_S: Final = 1.0
"""How long a task that stops may ask whether its topics are still the same."""

MAX_POLL_MS: Final = 1000
"""The contract of ``poll``, for any ``consumer.poll.timeout.ms``."""


@final
class MirrorSourceTask(BatchSourceTask):
    """Copies a fixed set of partitions; restart-safe."""

    def __init__(
        self,
        config: Mapping[str, str],
        context: TaskContext,
        *,
        readers: ReaderFactory = open_reader,
        writers: WriterFactory = open_writer,
        logs: LogFactory = open_log,
        admins: AdminFactory = open_admin,
    ) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorSourceTaskConfig, config)
        self._context = context
        self._readers, self._writers = readers, writers
        self._logs, self._admins = logs, admins
        self._loops: LoopFilter | None = None
        self._policy = policy = policy_from_config(config)
        alias = self._config.source_cluster_alias
        self._targets = {
            # Once: the policy may be a plug-in, and its answer must not change while the task runs.
            tp: self.target_of(tp)
            for tp in parse_partitions(self._config.task_assigned_partitions)
        }
        self._covered = CoveredPositions()
        self._ends = RangeEnds(
            parse_ends(self._config.task_end_offsets), self._covered, context.clock
        )
        at_source = self._config.offset_syncs_topic_location == "source"
        self._sync_side: Side = "source" if at_source else "target"
        # The name carries the alias of the cluster that does not host the topic.
        self._sync_topic = policy.offset_syncs_topic(
            self._config.target_cluster_alias if at_source else alias
        )
        self._poll_ms = min(self._config.consumer_poll_timeout_ms, MAX_POLL_MS)
        self._reader: ReaderSession | None = None
        self._bytes_per_s = self._config.flow_max_bytes_per_second
        self._writer: WriterSession | None = None
        self._syncs: OffsetSyncEmitter | None = None
        self._sync_start: asyncio.Task[None] | None = None
        # Of those whose lag is displayed, one that is not known any more is reported as such once.
        # A failed partition has with it where its log ended when it was asked last, -1 while that
        # is not known.
        self._failed, self._lag_known = dict[TopicPartition, int](), set[TopicPartition]()
        self._to_drop: list[TopicPartition] = []
        self._stalled: dict[TopicPartition, str] = {}
        self._stalls = StallLog(SOURCE, context.clock)
        self._handed: dict[TopicPartition, int] = {}
        self._delivered: dict[TopicPartition, int] = {}
        self._newest_ms: dict[TopicPartition, int] = {}
        self._resumed: dict[TopicPartition, int] = {}
        self._to_begin: set[TopicPartition] = set()
        self._ids: dict[TopicPartition, bytes] = {}
        self._before_gap: dict[TopicPartition, int] = {}
        """Records under way that were read before something was lost: they cannot be read again."""
        self._next_report = 0.0
        self._rounds = 0
        self._reports_left: dict[TopicPartition, int] = {}
        self._held: set[TopicPartition] = set()
        self._polled_at = -inf
        self._end_watch: asyncio.Task[None] | None = None
        self._retention_watch: asyncio.Task[None] | None = None
        self._ending = False

    async def start(self) -> None:
        """Resume after the stored positions; partitions without one start as start.positions and
        auto.offset.reset say."""
        kept_out = self._context.kept_out
        left_out = [tp for tp in self._targets if tp in kept_out]
        partitions = [tp for tp in self._targets if tp not in kept_out]
        # One request for all; a missing position is an answer, an unreadable one fails alone.
        stored = await self._context.committed_offsets(
            [self.source_partition(tp) for tp in partitions]
        )
        self._context.leave_out(left_out)
        props = self._client_props("source", "consumer", "replication-consumer")
        context = self._context
        tuning = ReaderTuning(context.buffer_bytes, self._bytes_per_s, context.linger_ms)
        alias = self._config.source_cluster_alias
        # Before the reader, whose first batch is judged by these ids (ARCHITECTURE, 12).
        loops = await self._open_loop_filter()
        events = ReaderEvents(self._on_gap, self._on_failed, self._on_stalled, loops)
        opened = self._readers(props, alias, self._context.clock, events, tuning)
        try:
            await opened.session.connect()
            # A start that failed half way may have filled them.
            self._to_begin.clear()
            self._ids.clear()
            positions = await self._resume(opened.reader, partitions, stored)
        # A cancel as well: the worker calls ``start`` again, with new connections.
        except BaseException:
            await opened.reader.close()
            await opened.session.close()
            raise
        self._reader = opened
        watch_ends = partial(self._watch_ends, opened.reader)
        looks = look_each(
            self._context.clock, HELD_LAG_S, watch_ends, log, "ends of logs cannot be watched"
        )
        self._end_watch = asyncio.create_task(looks)
        watch = RetentionWatch(
            self._open_source_admin, self._progress, self._why_stalled, self._context
        )
        self._retention_watch = asyncio.create_task(watch.run(self._targets.keys))
        if self._config.emit_offset_syncs_enabled and self._targets:
            self._open_syncs()
        log.info(
            "source task started partitions=%d resumed=%d left_to_backfill=%d",
            len(partitions),
            sum(position >= 0 for position in positions.values()),
            len(left_out),
        )

    async def take_over(self, partitions: Collection[TopicPartition]) -> None:
        if self._reader is None:
            return
        new = [tp for tp in self._targets if tp in partitions]
        stored = await self._context.committed_offsets([self.source_partition(tp) for tp in new])
        positions = await self._resume(self._reader.reader, new, stored)
        log.info(
            "partitions of a backfill are copied from here on positions=%s",
            ",".join(f"{tp}@{position}" for tp, position in positions.items()),
        )

    async def poll(self, budget_bytes: int) -> Sequence[Outgoing]:
        if self._reader is None:
            return ()
        reader = self._reader.reader
        if self._to_drop or self._ends.are_set:
            self._follow_ends(reader)
        fetched = await reader.fetch(max_wait_ms=self._poll_ms, max_bytes=budget_bytes)
        if self._to_begin:
            self._report_begun(reader)
        self._polled_at = now = self._context.clock.monotonic()
        due = self._due_reports(reader, now) if now >= self._next_report else ()
        if due:
            self._report_lag(due)
        if self._failed or self._ends.are_set:
            fetched = self._to_copy(fetched)
        outgoing: list[Outgoing] = []
        for source, batches in fetched:
            outgoing.append(Outgoing(source, self._targets[source], batches))
            if batches:
                self._hand_out(reader, source, batches)
        # After the hand-over: what this fetch returned counts as under way by now.
        if due:
            self._report_covered(due)
        return outgoing

    def _hand_out(
        self, reader: SourceReader, source: TopicPartition, batches: Sequence[RecordBatch]
    ) -> None:
        # With the first batch, before any position of it can be stored.
        if source not in self._ids:
            self._identify(reader, source)
        # The first run, not the batch: dropped or compacted records before it are not ours.
        before = batches[0].runs[0][0] - 1
        if self._delivered.setdefault(source, before) > before:
            self._delivered[source] = before  # the log was cut, or is another one
        first, count = batches[-1].runs[-1]
        self._handed[source] = first + count - 1
        records = 0
        for batch in batches:
            records += batch.count
        self._covered.handed_out(source, records)

    def delivered(self, delivery: Delivery) -> None:
        """Note where records landed, and what transforms left without a copy; called in source
        order per partition."""
        runs, passed = delivery.runs, delivery.passed
        if not (runs or passed):
            return
        self._reports_left[delivery.source] = NEWS_REPORTS
        last = delivery.last
        self._delivered[delivery.source] = last
        records = passed
        for run in runs:
            records += run.records
        self._covered.delivered(delivery.source, records, last)
        if self._loops is not None:
            self._loops.conflicts.delivered(delivery.source, last)
        if delivery.source in self._before_gap:
            self._before_gap[delivery.source] -= records
        if not runs:
            return
        self._newest_ms[delivery.source] = delivery.max_timestamp_ms
        # Java's ``commitRecord``: a sync may be due for each acknowledged record.
        if self._syncs is not None:
            self._syncs.observe(delivery.source, runs)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        self._covered.held(partitions, on=True)
        self._held.update(partitions)
        if self._reader is not None:
            self._reader.reader.pause(partitions)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        self._covered.held(partitions, on=False)
        self._held.difference_update(partitions)
        if self._reader is not None:
            self._reader.reader.resume(partitions)

    def pace(self, bytes_per_s: int) -> None:
        """Read at another rate than the config's; only where that has one."""
        self._bytes_per_s = self._bytes_per_s and bytes_per_s
        if self._reader is not None:
            self._reader.reader.pace(bytes_per_s)

    def read_again(self, partition: TopicPartition, offset: int, records: int) -> bool:
        """Go back to ``offset``, unless what was read since has gaps in the log."""
        if (
            self._reader is None
            or partition in self._failed
            or self._ends.is_over(partition)
            # Records of a log that is gone cannot be read a second time.
            or self._before_gap.get(partition, 0) > 0
            or not self._reader.reader.rewind(partition, offset)
        ):
            return False
        self._handed[partition] = offset - 1
        self._covered.taken_back(partition, records)
        if self._loops is not None:
            self._loops.conflicts.restarted(partition)
        return True

    @property
    def is_short(self) -> bool:
        return self._reader is not None and self._reader.reader.is_short

    def failed(self, partition: TopicPartition, error: Exception) -> None:
        """Read nothing of it any more; the worker gave it up."""
        log.debug("partition is not read any more partition=%s cause=%s", partition, error)
        self._give_up(partition)

    def source_partition(self, partition: TopicPartition) -> SourcePartition:
        return mirror_source_partition(self._config.source_cluster_alias, partition)

    def source_offset(self, partition: TopicPartition, position: int) -> SourceOffset:
        """Return its stored form; the leader epoch shows a cut log at the next start."""
        reader = self._reader
        # KIP-320: at the next start the epoch tells whether the log was cut below it.
        return source_offset(
            position, -1 if reader is None else reader.reader.epoch_at(partition, position)
        )

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {} if self._reader is None else await self._reader.reader.log_starts(partitions)

    def target_of(self, partition: TopicPartition) -> TopicPartition:
        name = self._policy.remote_topic(self._config.source_cluster_alias, partition.topic)
        return TopicPartition(name, partition.partition)

    async def commit(self) -> None:
        """Write the exact last offset of partitions that went quiet (Java's delayed syncs)."""
        # Called after positions were stored (``SourceTask.commit``).
        self._ends.committed()
        if self._syncs is not None:
            self._syncs.promote_delayed()

    async def stop(self) -> None:
        """Close connections; the last offset syncs get a moment to arrive."""
        watches = self._sync_start, self._end_watch, self._retention_watch
        self._sync_start = self._end_watch = self._retention_watch = None
        await cancelled(*watches)
        # Offset syncs first: the source may not answer, and its close must not use up their moment.
        writer, self._writer = self._writer, None
        if writer is not None:
            if self._syncs is not None:
                await self._syncs.flush(SYNC_FLUSH_S)
                self._syncs.close()
            await writer.writer.close()
            await writer.session.close()
        # From here on a gap is reported for the ledger alone: nothing is read again.
        self._ending = True
        opened, self._reader = self._reader, None
        if opened is not None:
            with suppress(TimeoutError, Mm2pyError):
                # Best effort: a cluster that does not answer delays no end.
                async with asyncio.timeout(LAST_LOOK_S):
                    # A topic created again during the last poll: its loss would stay unnoticed.
                    await opened.reader.look_back()
            await opened.reader.close()
            await opened.session.close()
        await self._close_loop_filter()
        self._stalls.close()

    # -- start ------------------------------------------------------------------------------------

    async def _resume(
        self,
        reader: SourceReader,
        partitions: Sequence[TopicPartition],
        stored: Sequence[SourceOffset | None],
    ) -> Mapping[TopicPartition, int]:
        """Read partitions from their stored positions on; return these."""
        props = self._client_props("source", "consumer", "replication-consumer")
        positions = self._positions(partitions, stored, props["auto.offset.reset"])
        self._covered.start(positions)
        self._resumed |= positions
        self._to_begin.update(tp for tp, position in positions.items() if position < 0)
        self._ids |= {
            tp: topic_id
            for tp, offset in zip(partitions, stored, strict=True)
            if (topic_id := committed_topic_id(offset)) != NO_TOPIC_ID
        }
        # Without a stored position any incarnation is read from its beginning.
        resumed = [tp for tp, position in positions.items() if position >= 0]
        known = self._ids
        if not known.keys() >= set(resumed):  # stored by an earlier build, by Java, or by hand
            known = {**await self._context.incarnations(), **known}
        ids = {tp: known[tp] for tp in resumed if tp in known}
        epochs = dict(zip(partitions, map(committed_epoch, stored), strict=True))
        reader.add(positions, topic_ids=ids, epochs=epochs)
        return positions

    def _positions(
        self,
        partitions: Sequence[TopicPartition],
        stored: Sequence[SourceOffset | None],
        reset: str,
    ) -> dict[TopicPartition, int]:
        late = frozenset(parse_partitions(self._config.task_late_partitions))
        ended = parse_ends(self._config.task_first_ends)
        starts = StartPositions.parse(
            self._config.start_positions, self._context.clock, self._config.task_first_start_ms
        )
        positions: dict[TopicPartition, int] = {}
        for tp, offset in zip(partitions, stored, strict=True):
            # Java seeks behind the stored offset, the last copied record.
            position = next_offset(offset)
            rule = starts.of(tp)
            start = rule or (LATEST if reset == "latest" else EARLIEST)
            # Java starts partitions that are created later at ``latest`` too (KAFKA-13988), and
            # skips what was written before they were found.
            if start == LATEST and tp in late:
                start = EARLIEST
            elif start == LATEST and tp in ended:
                start = start_at_offset(ended[tp])
            # As if none was stored would copy everything again, or skip it.
            if position < 0 and offset is not None:
                self._on_failed(tp, not_a_position(tp))
            # It fails alone; Java logs NoOffsetForPartitionException and copies nothing.
            elif position < 0 and rule is None and reset == "none":
                error = PartitionError(
                    "no position is stored and auto.offset.reset=none",
                    topic=tp.topic,
                    partition=tp.partition,
                    remedy="set auto.offset.reset=earliest or latest for the source consumer",
                )
                self._on_failed(tp, error)
            else:
                positions[tp] = position if position >= 0 else start
        return positions

    async def _open_loop_filter(self) -> LoopFilter | None:
        """Know all mirrors of the source before its first batch is read."""
        config = self._config
        chosen = await self._find_suppression()
        if chosen is Suppression.OFF:
            return None
        await self._close_loop_filter()  # of an earlier start that failed
        props = self._client_props("source", "consumer", "producer-ids-consumer")
        opened = self._logs(
            props, config.source_cluster_alias, PRODUCERS_TOPIC, self._context.clock
        )
        origins = ProducerOrigins(
            everything=chosen is Suppression.ALL,
            target=config.target_cluster_alias,
            target_cluster=config.task_target_cluster_id,
        )
        watch = ConflictWatch(await self._compacted_topics(), self._context.clock)
        self._loops = LoopFilter(
            opened.session, opened.log.read_to_end, origins, self._context, watch
        )
        await self._loops.open()
        return self._loops

    async def _find_suppression(self) -> Suppression:
        """Return what is in force: what our connector found; where Java's made the config, it is
        found here."""
        chosen = suppression_of(self._props)
        if chosen is not Suppression.AUTO:
            return chosen
        opened = self._open_source_admin("loops-admin")
        try:
            await opened.session.connect()
            factor = self._config.offset_syncs_topic_replication_factor
            found, cause = await find_suppression(
                self._props, opened.admin, replication_factor=factor
            )
            if cause:
                log.warning("%s", cause)
            return found
        finally:
            await opened.session.close()

    def _open_source_admin(self, role: str = "retention-admin") -> AdminSession:
        props = self._client_props("source", "admin", role)
        return self._admins(props, self._config.source_cluster_alias, self._context.clock)

    async def _compacted_topics(self) -> frozenset[str]:
        opened = self._open_source_admin("conflicts-admin")
        try:
            await opened.session.connect()
            return await compacted_topics(opened.admin, {tp.topic for tp in self._targets})
        finally:
            await opened.session.close()

    async def _close_loop_filter(self) -> None:
        loops, self._loops = self._loops, None
        if loops is not None:
            await loops.close()

    def _client_props(self, side: Side, kind: ClientKind, role: str) -> dict[str, str]:
        return effective_client_properties(
            self._props, side, kind, role=role, task_index=self._config.task_index
        )

    # -- events of the reader ---------------------------------------------------------------------

    def _on_gap(self, gap: SourceGap) -> None:
        if self._ending:
            self._on_gap_at_end(gap)
            return
        waiting = 0 if self._reader is None else self._reader.reader.waiting(gap.partition)
        # The map and the positions of what is under way belong to the log before the gap.
        gap.under_way = self._covered.under_way(gap.partition) + waiting
        if waiting and self._stops_at(gap):
            gap.first_offset = self._first_waiting(gap)
        self._before_gap[gap.partition] = gap.under_way
        # Offsets start over or go back; after retention they continue.
        if gap.cause != "retention":
            self._covered.restarted(gap.partition)
            if self._loops is not None:
                self._loops.conflicts.restarted(gap.partition)
        if gap.cause == "recreated":
            self._ids[gap.partition] = gap.topic_id
        # With gap.policy=fail the context answers with ``failed``.
        # First the ledger: positions behind the gap wait for it (invariant 7).
        self._context.report_gap(gap)
        if self._config.recreate_policy == "stop" and self._stops_at(gap):
            error = PartitionError(
                f"the source topic was recreated or truncated ({gap.detail})",
                topic=gap.partition.topic,
                partition=gap.partition.partition,
                offset=max(gap.first_offset, 0),
                remedy="set recreate.policy=continue to copy the new topic from its beginning",
            )
            self._on_failed(gap.partition, error)
        if gap.cause != "retention" and gap.partition not in self._failed:
            self._ends.lost(gap.partition, waiting, gap.detail)

    def _stops_at(self, gap: SourceGap) -> bool:
        stops = self._config.recreate_policy == "stop"
        fails = self._props.get("gap.policy", "").strip().lower() == "fail"
        return gap.cause == "recreated" and not gap.returns and (stops or fails)

    def _first_waiting(self, gap: SourceGap) -> int:
        """Return where a loss begins of a partition that stops: what was read and not handed out
        goes with it, and cannot be read again."""
        source = gap.partition
        first = (
            self._handed[source] + 1 if source in self._handed else self._resumed.get(source, -1)
        )
        if first < 0 and self._reader is not None:
            first = self._reader.reader.began_at(source)
        return min(first, gap.first_offset) if first >= 0 else gap.first_offset

    def _on_gap_at_end(self, gap: SourceGap) -> None:
        if gap.returns:
            return  # nothing of it was delivered
        if self._covered.under_way(gap.partition):  # it arrives no more
            first = self._delivered[gap.partition] + 1
            gap = SourceGap(gap.partition, first, gap.last_offset, gap.cause, gap.detail)
        self._context.report_gap(gap)

    def _on_failed(self, partition: TopicPartition, error: Exception) -> None:
        self._give_up(partition)
        self._context.partition_state(partition, PartitionState.FAILED, error)

    def _give_up(self, partition: TopicPartition) -> None:
        # Reader, worker and context may all report it.
        if partition in self._failed:
            return
        self._failed[partition] = -1
        # The reader may be in its own bookkeeping: the partition is dropped at the next poll.
        self._to_drop.append(partition)
        self._stalls.forget(partition)
        if self._reader is not None:
            # Its lag of before counts what was read as copied.
            self._report_uncopied(
                partition, self._uncopied(partition), self._reader.reader.end(partition)
            )

    def _on_stalled(self, partition: TopicPartition, error: Exception | None) -> None:
        known = self._stalled.get(partition)
        cause = None if error is None else str(error)
        # One report per cause: a broker that is down makes one per retry.
        if partition in self._failed or cause == known:
            return
        if error is None:
            del self._stalled[partition]
            self._stalls.moving(partition)
            self._context.partition_state(partition, PartitionState.RUNNING)
            return
        self._stalled[partition] = str(error)
        self._stalls.stalled(partition, error)
        if partition in self._lag_known:
            # Its former lag is stale; the next answer about its end renews it.
            self._lag_known.discard(partition)
            self._context.report_lag(partition, -1, self._newest_ms.get(partition, -1))
        self._context.partition_state(partition, PartitionState.HELD, self._shown(error))

    def _shown(self, error: Exception) -> Exception:
        """Return a cause that names the cluster: a lost connection names only an address."""
        if not isinstance(error, ConnectionFailedError | RequestTimedOutError):
            return error
        alias = self._config.source_cluster_alias
        text = f"a broker of the source {alias} {NO_ANSWER}: {error.message}"
        return ConnectionFailedError(text, remedy=error.remedy)

    def _to_copy(
        self, fetched: list[tuple[TopicPartition, list[RecordBatch]]]
    ) -> list[tuple[TopicPartition, list[RecordBatch]]]:
        """Leave out what is behind an end, and partitions that failed during the fetch."""
        kept: list[tuple[TopicPartition, list[RecordBatch]]] = []
        for source, batches in fetched:
            if source not in self._failed:
                if below := self._ends.below_end(source, batches):
                    kept.append((source, below))
                continue
            for batch in batches:
                if batch.lease is not None:
                    batch.lease.release()
        return kept

    # -- the ends of a job ------------------------------------------------------------------------

    def _follow_ends(self, reader: SourceReader) -> None:
        """Release partitions that are read up to their end, those whose end is gone, and those that
        failed."""
        # Covered up to the end even where its last offsets hold no record.
        for source, end in self._ends.take_ended():
            del self._targets[source]
            self._context.report_covered(source, max(self._handed.get(source, -1), end))
        for source, error in self._ends.take_gone():
            del self._targets[source]
            self._on_failed(source, error)
        for source in self._ends.take_drops():
            reader.drop(source)
        # Here, not in the callback that found the failure: the reader may have been in the middle
        # of a response.
        while self._to_drop:
            reader.drop(self._to_drop.pop())

    def _due_reports(self, reader: SourceReader, now: float) -> Collection[TopicPartition]:
        """Return partitions with a new lag or covered position: reading one takes microseconds."""
        self._next_report = now + LAG_REPORT_S
        # A thousand idle partitions would otherwise be looked at every second.
        for source in reader.take_answered():
            self._reports_left[source] = NEWS_REPORTS
        due = [source for source in self._reports_left if source in self._targets]
        self._reports_left = {it: left - 1 for it, left in self._reports_left.items() if left > 1}
        self._rounds += 1
        # Some changes no response shows (incarnations).
        return due if self._rounds % ALL_REPORTS else self._targets.keys()

    def _report_lag(self, partitions: Collection[TopicPartition], *, polled: bool = True) -> None:
        if self._reader is None:
            return
        reader = self._reader.reader
        for source in partitions:
            silent_s = reader.silent_s(source)
            # The last known end of a broker that is silent says nothing of now.
            behind = reader.lag(source) if silent_s <= UNKNOWN_AFTER_S else -1
            if source in self._failed or (behind < 0 and source not in self._lag_known):
                continue
            (self._lag_known.discard if behind < 0 else self._lag_known.add)(source)
            if behind >= 0:
                self._ends.look(source, reader.end(source))
            delivered = self._delivered.get(source, -1)
            if behind >= 0 and delivered < self._handed.get(source, -1):
                # Read but not acknowledged is lag too; offsets without records count only here.
                behind = max(behind, reader.end(source) - (delivered + 1))
            elif behind >= 0 and not polled and source not in self._held:
                behind += reader.waiting(source)
            if not behind and silent_s > CURRENT_S:
                continue  # a report without lag says that all up to now is copied
            end = reader.end(source) if silent_s <= CURRENT_S else -1
            self._context.report_lag(source, behind, self._newest_ms.get(source, -1), end)

    def _progress(self, source: TopicPartition) -> tuple[int, int, int] | None:
        """Return the first offset to copy, the log's end, and the newest copied timestamp."""
        if self._reader is None:
            return None
        if source in self._failed:
            # Retention continues while the partition is failed.
            first, end = self._uncopied(source), self._failed[source]
            return (first, end, self._newest_ms.get(source, -1)) if 0 <= first <= end else None
        reader = self._reader.reader
        behind, end = reader.lag(source), reader.end(source)
        if behind < 0 or reader.silent_s(source) > UNKNOWN_AFTER_S:
            return None
        delivered = self._delivered.get(source, -1)
        is_under_way = delivered < self._handed.get(source, -1)
        # What is under way may have to be copied again: it is not safe from retention yet.
        position = min(end - behind, delivered + 1) if is_under_way else end - behind
        return position, end, self._newest_ms.get(source, -1)

    def _why_stalled(self, source: TopicPartition) -> tuple[str, bool]:
        """Return why a partition is not copied, and whether that may last.

        Empty where its state shows the cause, or it is not known.
        """
        known_otherwise = source in self._failed or source in self._stalled
        if self._reader is None or known_otherwise or self._context.shows_cause(source):
            return "", True
        target = self._config.target_cluster_alias
        if self._delivered.get(source, -1) < self._handed.get(source, -1):
            return (
                f"cluster {target} has not acknowledged what was sent; see its brokers (mm2py "
                "doctor)",
                False,
            )
        # By the worker, until its target has room: a pause of the user is shown.
        if source in self._held:
            return f"it is not read until cluster {target} has taken what was read of it", False
        if self._reader.reader.waiting(source):
            return (
                "what was read is not sent: other partitions or flow.max.bytes.per.second take "
                "all there is; see mm2py lag",
                False,
            )
        return (
            f"cluster {self._config.source_cluster_alias} answers without records, most likely "
            "because a transaction is open: readers of"
            " committed records wait for its end; see kafka-transactions.sh find-hanging",
            True,
        )

    async def _watch_ends(self, reader: SourceReader) -> None:
        """Keep lags true of held, throttled and failed partitions, and while no poll comes, as
        without a permit."""
        polled = self._context.clock.monotonic() - self._polled_at < HELD_LAG_S
        alias = self._config.source_cluster_alias
        text = throttle_note(
            "what is read", f"cluster {alias}", reader.throttled_s(), "consumer_byte_rate"
        )
        self._context.report_finding(THROTTLE, text, harms=False)
        await self._ask_ends(reader)
        if self._held or not polled:
            self._report_lag(self._targets.keys(), polled=polled)

    async def _ask_ends(self, reader: SourceReader) -> None:
        try:
            async with asyncio.timeout(HELD_LAG_S):
                await reader.refresh_ends()
                if self._failed:
                    await self._report_failed(reader)
        except (Mm2pyError, TimeoutError) as error:
            log.debug("ends of logs are not known cause=%r", error)

    async def _report_failed(self, reader: SourceReader) -> None:
        """What a failed partition does not copy any more is lag, too."""
        positions = {source: self._uncopied(source) for source in self._failed}
        begins = [source for source, position in positions.items() if position == EARLIEST]
        if begins:
            positions |= await reader.log_starts(begins)
        # Others may have failed meanwhile.
        for source, end in (await reader.log_ends(tuple(positions))).items():
            self._report_uncopied(source, positions[source], end)

    def _uncopied(self, source: TopicPartition) -> int:
        """Return the first offset of a failed partition that is not copied, ``EARLIEST`` where
        nothing of it was."""
        if source in self._delivered:
            return self._delivered[source] + 1
        return self._resumed.get(source, EARLIEST)

    def _report_uncopied(self, source: TopicPartition, first: int, end: int) -> None:
        self._failed[source] = end
        behind = end - first if 0 <= first <= end else -1
        self._context.report_lag(source, behind, self._newest_ms.get(source, -1))

    def _report_begun(self, reader: SourceReader) -> None:
        """Take where partitions without a position begin; ``latest`` and ages count from the first
        start, what comes later is copied, also after a restart."""
        for source in tuple(self._to_begin):
            position = reader.began_at(source)
            if position < 0:
                continue
            self._to_begin.discard(source)
            # Else a log in which nothing has to be copied (markers, what mirrors wrote) would look
            # as if nothing of it were read.
            self._covered.began(source, position)
            # Stored at once: a kill before the first record must not begin at another "latest".
            if self._resumed[source] != EARLIEST:
                log.info("partition begins partition=%s offset=%d", source, position)
                self._context.report_covered(source, position - 1, begins=True)

    def _identify(self, reader: SourceReader, source: TopicPartition) -> None:
        """Report the incarnation that is read, unless it is known already or began after a gap."""
        topic_id, known = reader.incarnation(source), self._ids.get(source)
        if known is not None and (self._covered.under_way(source) or reader.waiting(source)):
            return  # what is under way may be of the one before
        if topic_id not in (known, NO_TOPIC_ID):
            self._context.report_incarnation(source, topic_id)
            self._ids[source] = topic_id

    def _report_covered(self, partitions: Collection[TopicPartition]) -> None:
        if self._reader is None:
            return
        reader = self._reader.reader
        for source in partitions:
            if self._ends.is_gone(source):
                continue
            self._identify(reader, source)
            if source not in self._failed:
                offset = self._covered.look(source, reader.position(source))
                if offset >= 0:
                    self._context.report_covered(source, offset)

    # -- offset syncs -----------------------------------------------------------------------------

    def _open_syncs(self) -> None:
        role = f"offset-syncs-{self._sync_side}-producer"
        config = self._config
        alias = config.source_cluster_alias
        if self._sync_side == "target":
            alias = config.target_cluster_alias
        props = self._client_props(self._sync_side, "producer", role)
        self._writer = self._writers(props, alias, self._context.clock)
        self._syncs = OffsetSyncEmitter(
            self._writer.writer,
            self._sync_topic,
            lag_max=config.offset_lag_max,
            clock=self._context.clock,
            on_refusal=self._note_refusal,
        )
        self._sync_start = asyncio.create_task(self._start_syncs(self._writer, self._syncs))

    async def _start_syncs(self, writer: WriterSession, syncs: OffsetSyncEmitter) -> None:
        """Get the writer going beside the data: as in Java records need no syncs."""
        backoff = Backoff(100, 10_000)
        while True:
            try:
                await writer.session.connect()
                await writer.writer.start()
                # Reported also for a flow that has nothing to write yet.
                for refusal in (await writer.rights.unwritable([self._sync_topic])).values():
                    raise refusal
            except Mm2pyError as error:
                log.debug("offset-sync writer cannot start yet cause=%s", error)
                if not isinstance(error, RetriableError):
                    self._note_refusal(error)
                await self._context.clock.sleep(backoff.next_s())
            else:
                self._note_refusal(None)
                syncs.open()
                return

    def _note_refusal(self, error: Exception | None) -> None:
        """Report that offset syncs are not written; the copy goes on, as in Java."""
        text = "" if error is None else no_offset_syncs(self._sync_topic, error, self._sync_side)
        self._context.report_finding("offset syncs", text)
