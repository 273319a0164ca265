"""The context of one task: stored positions in, partition states, lag and loss events out.

Flow: task -> ``WorkerTaskContext`` -> meters, log and ledger; failed partitions -> the worker task.
No Kafka client is used here.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, Protocol, final

from mm2py.api.context import EventKind, EventSink, LossEvent, PartitionState, SourceGap
from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.client.send.tail import Behind
from mm2py.clock import Clock
from mm2py.config.framework import LossPolicies
from mm2py.errors import (
    FatalError,
    FatalServerError,
    OversizedRecordError,
    PartitionError,
    ProtocolError,
    ServerError,
)
from mm2py.mirror.ledger import SET_PAST
from mm2py.mirror.offset_map import TargetLoss
from mm2py.mirror.source_offsets import (
    WRITE_OFFSET,
    committed_epoch,
    committed_topic_id,
    mirrored_partition,
    next_offset,
    parse_source_offset_value,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.observability.checkpoint_ages import CheckpointKey
from mm2py.observability.metrics import (
    KEPT_OUT,
    Figure,
    Finding,
    FlowMeter,
    Forecast,
    Oversized,
    PartitionMeter,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.types import FlowName, TopicPartition

log = logging.getLogger(__name__)

HEADLINES: Final = {
    EventKind.TRUNCATION: "the source lost records that were copied",
    EventKind.RECREATED: "source topic was recreated, what was not copied of the old one is lost",
}
NO_POSITION: Final = (
    "the topic was deleted and created again before a position of it was "
    "stored: what had been read of it and was not copied is gone"
)
LATER_TOPIC: Final = "the topic was deleted and created again, records of the new one are copied"
MAY_BE_BEHIND: Final = (
    "; whether that is so of the first {records} of them is not known, their copies may be on the "
    "target"
)
NOT_READ: Final = "; some of the first of them may be on the target, whose log was not read"
BEHIND: Final = "; the {records} records before them had been copied by a task that was killed"
NOTED_BEFORE: Final = "deleted before it was copied, as a task noticed that has ended since"
LOST_BEFORE: Final = "lost by the target, as a task noticed that has ended since"
WITHOUT_LOSS: Final = {
    EventKind.TRUNCATION: "the source's log was cut, nothing that was copied is known to be gone",
    EventKind.RECREATED: "source topic was recreated, nothing of the old one is known to be lost",
}
LIMITS_EVERY_S: Final = 10.0
"""Between two looks of a worker at the limits that failed partitions wait for; rarely is there
one."""

TOO_LARGE: Final = frozenset({codes.MESSAGE_TOO_LARGE, codes.RECORD_LIST_TOO_LARGE})


def policy_of(policies: LossPolicies, kind: EventKind) -> str:
    """Return the property that decides what follows such an event, with its value: the ledger
    records both."""
    if kind.stops:
        return f"partition.failure.policy={policies.partition_failure_policy}"
    if kind in (EventKind.MAY_BE_DOUBLED, EventKind.TARGET_LOST, EventKind.SKIPPED):
        return ""
    if kind is EventKind.RECREATED and policies.gap_policy != "fail":
        return f"recreate.policy={policies.recreate_policy}"
    return f"gap.policy={policies.gap_policy}"


class NoLedger(EventSink):
    """For tasks whose records are not copies: every event is new, and none is kept."""

    def report(self, event: LossEvent) -> bool:
        return True  # the caller logs it

    def unwritten(self) -> Collection[TopicPartition]:
        return ()

    async def flush(self, timeout_s: float) -> bool:
        return True

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return {}

    def note_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Nothing is kept."""


class PartitionListener(Protocol):
    """Handles what a task reports of its partitions."""

    def partition_failed(self, partition: TopicPartition, error: Exception) -> None: ...
    def partition_covered(self, partition: TopicPartition, offset: int) -> None: ...
    def gap_refused(self, partition: TopicPartition, error: Exception) -> None: ...
    def gap_asked(self, partition: TopicPartition) -> None: ...


@final
class WorkerTaskContext:
    """Implements ``mm2py.api.context.TaskContext`` for one task."""

    def __init__(
        self,
        connector: str,
        task_id: str,
        *,
        store: OffsetStore,
        meter: FlowMeter,
        clock: Clock,
        events: EventSink | None = None,
        policies: LossPolicies | None = None,
        maps: TaskOffsetMaps | None = None,
    ) -> None:
        self._connector = connector
        self.flow: FlowName | None = None
        """As of ``TaskOfFlow``."""
        self.task_id: Final = task_id
        """``<connector>-<index>``."""
        self._store = store
        self._meter = meter
        self.clock: Final = clock
        self._events: EventSink = events or NoLedger()
        self._policies = policies or LossPolicies()
        self.maps = maps or TaskOffsetMaps(NoMapStore())
        """Where the records of the task's partitions are on the target."""
        self.maps.on_loss, self.maps.on_skip = self.report_target_loss, self.report_skip
        self._gaps: dict[TopicPartition, SourceGap] = {}
        """Losses of which a task that was killed may have copied a part, until that is known."""
        self.maps.waits, self.maps.on_count = self._gaps.__contains__, self._settle
        self._covered: dict[TopicPartition, int] = {}
        """Covered offsets of these partitions, which wait for them."""
        self.maps.on_refusal = partial(self.report_finding, "offset map")
        self._stopped_by_gap: set[TopicPartition] = set()
        self._listener: PartitionListener | None = None
        self._begun: dict[TopicPartition, bytes] = {}
        """Incarnations that began since the last position was stored."""
        self._states: dict[TopicPartition, PartitionState] = {}
        self._causes: dict[TopicPartition, str] = {}
        """Of states that are not RUNNING."""
        self._refusals: dict[TopicPartition, str] = {}
        """Why the target takes nothing now: the source may not answer besides, and each ends
        without the other."""
        self._asked: set[TopicPartition] = set()
        self._stored: dict[TopicPartition, tuple[bytes, bytes]] = {}
        """Key and value of positions, as they were when they were asked for."""
        self.kept_out: frozenset[TopicPartition] = frozenset()
        self.buffer_bytes = self.linger_ms = 0
        self.commit_s = 0.0
        self.left_out: set[TopicPartition] = set()
        """Partitions that were kept out when the task asked, and are not taken over since."""
        self._metered: set[TopicPartition] = set()
        self._found: dict[str, str] = {}

    @property
    def restart(self) -> str:
        """The command that starts the flow's tasks again."""
        return f"mm2py flow restart '{self._meter.flow}'"

    @property
    def partitions(self) -> int:
        """How many source partitions the task has, as far as it named them."""
        return max(len(self._asked), len(self._states))

    @property
    def known(self) -> frozenset[TopicPartition]:
        """Source partitions that the task asked positions for, or worked on."""
        return frozenset(self._states).union(self._asked)

    @property
    def failed(self) -> int:
        return sum(state is PartitionState.FAILED for state in self._states.values())

    def without_ledger(self) -> None:
        """Keep failures out of the ledger: the task's records are not copies of a partition."""
        self._events = NoLedger()

    def listen(self, listener: PartitionListener) -> None:
        self._listener = listener

    def seen(self, partition: TopicPartition) -> None:
        """Count a partition the task works on; one that it did not name itself is RUNNING."""
        self._states.setdefault(partition, PartitionState.RUNNING)

    async def committed_offsets(
        self, partitions: Sequence[SourcePartition]
    ) -> Sequence[SourceOffset | None]:
        """Return stored offsets; that of a Kafka partition is empty, with a warning, where it is no
        JSON object. ``FatalError``: that of another source is none."""
        asked = tuple(map(mirrored_partition, partitions))
        keys = [source_offset_key(self._connector, partition) for partition in partitions]
        mirrored = [partition for partition in asked if partition is not None]
        self._asked.update(mirrored)
        # Together: thousands of partitions start with two reads instead of two in a row.
        values, _ = await asyncio.gather(self._store.get(keys), self.maps.load(mirrored))
        for partition, key, value in zip(asked, keys, values, strict=True):
            if partition is not None:
                self._stored.pop(partition, None)
                if value is not None:
                    self._stored[partition] = key, value
        offsets = [
            _parsed(key, value, fails=partition is None)
            for partition, key, value in zip(asked, keys, values, strict=True)
        ]
        return [
            offset if partition is None else self._resumed(partition, offset)
            for partition, offset in zip(asked, offsets, strict=True)
        ]

    def stored(self) -> Mapping[bytes, bytes]:
        """Return the stored positions that the task began with, of what it copies."""
        return dict(at for it, at in self._stored.items() if it not in self.left_out)

    def leave_out(self, partitions: Collection[TopicPartition]) -> None:
        """Note what the task does not copy because it is kept out; it is shown as HELD."""
        self.left_out = set(partitions)
        for partition in partitions:
            meter = self.meter(partition)
            meter.state, meter.cause = PartitionState.HELD.value, KEPT_OUT

    def taken_over(self, partitions: Collection[TopicPartition]) -> None:
        """The task copies partitions that it had left out."""
        self.left_out.difference_update(partitions)
        for partition in partitions:
            meter = self.meter(partition)
            meter.state, meter.cause = PartitionState.RUNNING.value, ""

    def _resumed(
        self, partition: TopicPartition, stored: SourceOffset | None
    ) -> SourceOffset | None:
        """Return the position after everything that is known to be copied: the map may be ahead of
        the stored position, never behind."""
        self._gaps.pop(partition, None)  # it is found again
        position = next_offset(stored)
        if stored is not None and position < 0:
            return stored  # not a position: the map must not be set back for it
        offset_map, topic_id = self.maps.of(partition), committed_topic_id(stored)
        epoch = committed_epoch(stored)
        # The map does not wait for the ledger, and has the end of the log as it is now.
        if (lost := offset_map.target_loss) is not None:
            self._report(EventKind.TARGET_LOST, partition, *lost, LOST_BEFORE, again=True)
        if (skipped := offset_map.skipped) is not None:
            self._report(EventKind.SKIPPED, partition, *skipped, SET_PAST, again=True)
        # A crash between the map's write and the position's: the stored position names the topic
        # before.
        if offset_map.follows(position, topic_id):
            # The ledger may not have it: positions wait for that, maps do not.
            self._report(
                EventKind.RECREATED, partition, position, max(position - 1, -1), LATER_TOPIC
            )
            self._report_again(partition, 0)
            resumed = self.maps.resume(partition, offset_map.covered)
            # Still the former one's: a map that is written before the next position is stored must
            # say so.
            offset_map.position = position
            return source_offset(resumed - 1, offset_map.epoch, offset_map.source_id)
        if not (was_set := offset_map.is_set(position, topic_id, epoch)):
            self._report_again(partition, position)
        is_late = not was_set and offset_map.is_set(position)
        # Before ``resume``, which compares with the map of this incarnation.
        offset_map.identify(topic_id)
        resumed = self.maps.resume(partition, position, topic_id, epoch)
        if resumed == position:
            return stored
        if is_late:
            log.warning(
                "stored position came late from a former task, it is ignored partition=%s "
                "position=%d continued_at=%d",
                partition,
                position,
                resumed,
            )
        offset = source_offset(resumed - 1, offset_map.epoch, offset_map.source_id)
        # It is stored in place of the lower one (``overwrite_late``), but where it waits for the
        # ledger, as every position does.
        value = source_offset_value(offset)
        if value and partition in self._stored and not offset_map.lost_from(position):
            self._stored[partition] = self._stored[partition][0], value
        return offset

    def _report_again(self, partition: TopicPartition, position: int) -> None:
        """Report what was lost behind the stored position: the ledger may not have it, and
        positions wait for that, but maps do not."""
        for lost in self.maps.of(partition).lost_from(position):
            self._report(
                EventKind.RETENTION, partition, lost.source, lost.source_end - 1, NOTED_BEFORE
            )

    def partition_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> None:
        """Take a state that the task reports; the log gets one line per change."""
        # One ledger entry per failure, not per report.
        if self.note_state(partition, state, cause) and state is PartitionState.FAILED:
            error = cause or PartitionError(
                "failed without a cause", topic=partition.topic, partition=partition.partition
            )
            if isinstance(error, PartitionError) and error.offset >= 0:
                self.report_failure(partition, error)
            if self._listener is not None:
                self._listener.partition_failed(partition, error)

    def note_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> bool:
        """Record and log a state; False when it is the one known already. A failure keeps its first
        cause."""
        before, text = self._states.get(partition), "" if cause is None else str(cause)
        if before is state and (
            state is PartitionState.FAILED or text == self._causes.get(partition, "")
        ):
            return False
        self._states[partition], self._causes[partition] = state, text
        self._show(partition)
        if state is PartitionState.FAILED:
            log.error("partition failed, the others go on partition=%s cause=%s", partition, cause)
        elif before is PartitionState.FAILED:
            log.info("partition works again partition=%s state=%s", partition, state.value)
        return True

    def note_refusal(self, partition: TopicPartition, error: Exception | None) -> None:
        """Note why the target takes nothing of a partition now; None: it does again."""
        self._refusals.pop(partition, None)
        if error is not None:
            self._refusals[partition] = str(error)
        self._show(partition)

    def _show(self, partition: TopicPartition) -> None:
        state = self._states.get(partition, PartitionState.RUNNING)
        cause, refusal = self._causes.get(partition, ""), self._refusals.get(partition)
        if state is PartitionState.RUNNING and refusal is not None:
            state, cause = PartitionState.HELD, refusal
        meter = self.meter(partition)
        meter.state, meter.cause = state.value, cause

    def shows_cause(self, partition: TopicPartition) -> bool:
        meter = self.meter(partition)
        return meter.paused or meter.state != PartitionState.RUNNING.value

    def report_gap(self, gap: SourceGap) -> None:
        """Log a loss with its exact range; with ``gap.policy=fail`` it also stops the partition.

        Of one that ``returns`` only the topic id is kept: positions from here on belong to it.
        """
        kind = EventKind(gap.cause)
        if self._defers(kind, gap):
            return
        if kind is EventKind.RECREATED:
            offset_map, begun = self.maps.of(gap.partition), self._begun.get(gap.partition)
            # Recreated again before a position of the last one was stored.
            if begun is not None and offset_map.source_id == begun and not offset_map.is_empty:
                # The end of an incarnation is above its beginning in the ledger, else it would be
                # written twice.
                self.note_topic_id(gap.partition, begun)
            if gap.topic_id != NO_TOPIC_ID:
                self._begun[gap.partition] = gap.topic_id
        # Also for one that ``returns``: the map must know its incarnation.
        self.maps.note_gap(gap)
        if gap.returns:
            return
        fails = self._policies.gap_policy == "fail"
        # ``report_failure`` follows for the same range: it must not be in the ledger twice.
        if fails or (kind is EventKind.RECREATED and self._policies.recreate_policy == "stop"):
            self._stopped_by_gap.add(gap.partition)
        # False: found again after a restart, and in the ledger already.
        if self._report(kind, gap.partition, gap.first_offset, gap.last_offset, gap.detail):
            log_gap(gap)
        if fails and self._listener is not None:
            error = PartitionError(
                f"{gap.count} offsets up to {gap.last_offset} are gone ({gap.cause}: {gap.detail})",
                topic=gap.partition.topic,
                partition=gap.partition.partition,
                offset=gap.first_offset,
                remedy="set gap.policy=continue to go on behind the gap, or raise the source's"
                " retention",
            )
            self._listener.gap_refused(gap.partition, error)

    def _defers(self, kind: EventKind, gap: SourceGap) -> bool:
        """Whether a loss is reported later, when it is known what of it a task that was killed had
        copied."""
        partition, is_deleted = gap.partition, kind is EventKind.RETENTION
        before = self._gaps.get(partition)
        if before is not None:
            if is_deleted and not gap.under_way and gap.first_offset == before.last_offset + 1:
                before.last_offset = gap.last_offset
                return True
            self._settle(partition, Behind(0, is_known=False))
        fails = self._policies.gap_policy == "fail"
        if not is_deleted or fails or self._listener is None or not self.maps.may_be_behind(gap):
            return False
        self._gaps[partition] = gap
        log.warning(
            "the source has deleted records behind the last known copy, the target is asked which "
            "of them it has partition=%s first_offset=%d last_offset=%d",
            partition,
            gap.first_offset,
            gap.last_offset,
        )
        self._listener.gap_asked(partition)
        return True

    def _settle(self, partition: TopicPartition, behind: Behind) -> None:
        """Report a deferred loss without what is on the target."""
        gap = self._gaps.pop(partition, None)
        if gap is None:
            return  # another loss came before the answer
        copied = min(behind.records, gap.count)
        first, last = gap.first_offset, gap.last_offset
        # No place in the map: which of them has which offset there is not known.
        self.maps.note_passed(partition, first, copied)
        if behind.is_known:
            first += copied
        text = gap.detail
        if not behind.is_known:
            text += MAY_BE_BEHIND.format(records=copied) if copied else NOT_READ
        elif copied:
            text += BEHIND.format(records=copied)
        lost = SourceGap(partition, gap.first_offset + copied, last, gap.cause, text)
        self.maps.note_gap(lost)
        if copied:
            log.info(
                "records that the source has lost since are on the target partition=%s records=%d",
                partition,
                copied,
            )
        lost.first_offset = first
        if lost.count and self._report(EventKind.RETENTION, partition, first, last, text):
            log_gap(lost)
        if self._listener is not None:
            covered = max(last, self._covered.pop(partition, -1))
            self._listener.partition_covered(partition, covered)

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        """Return which topic id positions belong to that are stored without one, as far as that is
        known."""
        return await self._events.incarnations()

    def report_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Keep which topic id a partition's stored position belongs to.

        Where the map says that the copy began in another one, no position was stored that would
        have made this a gap.
        """
        offset_map = self.maps.of(partition)
        # The process was killed after it had written the map of the new topic's copies and before
        # any position.
        if is_another_topic(offset_map.source_id, topic_id):
            end = offset_map.covered
            gap = SourceGap(partition, end, end - 1, EventKind.RECREATED.value, NO_POSITION)
            if self._report(EventKind.RECREATED, partition, end, end - 1, NO_POSITION):
                log_gap(gap)
        self.maps.identify(partition, topic_id)
        self._events.note_incarnation(partition, topic_id)

    def note_topic_id(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Keep that a position in the topic with this id is stored, the first one."""
        if self._begun.get(partition) == topic_id:
            del self._begun[partition]
        self._events.note_incarnation(partition, topic_id)

    def report_covered(
        self, partition: TopicPartition, offset: int, *, begins: bool = False
    ) -> None:
        """Move the position past records that need no copy."""
        if begins:
            self.maps.begin_at(partition, offset + 1)
        if partition in self._gaps:
            self._covered[partition] = max(offset, self._covered.get(partition, -1))
            return
        if self._listener is not None:
            self._listener.partition_covered(partition, offset)

    def report_failure(self, partition: TopicPartition, error: Exception) -> None:
        """Put the record that a partition stopped at into the ledger; the state is logged
        already."""
        if partition in self._stopped_by_gap:
            return  # the gap is in the ledger
        offset = error.offset if isinstance(error, PartitionError) else -1
        self._report(_kind_of(error), partition, offset, offset, str(error))

    def retry_note(self, error: Exception) -> str:
        """Return when a failed partition is tried again without a restart; empty where it is
        not."""
        if (
            isinstance(error, OversizedRecordError)
            and error.limit_bytes
            and self._meter.on_oversized is not None
        ):
            return (
                f"within {2 * LIMITS_EVERY_S:.0f} s of that its task is started again, or at "
                "once with"
            )
        return ""

    def report_oversized(
        self, partition: TopicPartition, target: TopicPartition, error: OversizedRecordError
    ) -> None:
        """Let the worker watch the limit that a partition failed for, after its state is noted."""
        if self._meter.on_oversized is not None:
            self._meter.on_oversized(
                Oversized(
                    task=self.task_id,
                    source=partition,
                    target=target.topic,
                    needed_bytes=error.needed_bytes,
                    limit_bytes=error.limit_bytes,
                )
            )

    def report_doubt(
        self, partition: TopicPartition, first_offset: int, last_offset: int, cause: Exception
    ) -> None:
        """Log records that are sent again although the first attempt may have been written."""
        kind, text = EventKind.MAY_BE_DOUBLED, str(cause)
        if isinstance(cause, FatalServerError):
            text = f"the target's log may not be read: {cause}"
        if self._report(kind, partition, first_offset, last_offset, text):
            log.warning(
                "records may be doubled partition=%s first_offset=%d last_offset=%d cause=%s",
                partition,
                first_offset,
                last_offset,
                text,
            )

    def report_target_loss(self, partition: TopicPartition, loss: TargetLoss) -> None:
        """Log records that the target had acknowledged and lost; they are not copied again."""
        text = f"the target lost its offsets {loss.first_target} to {loss.last_target}"
        if not loss.first_target:
            text += (
                ": its topic was deleted or created again, or the replication policy names it anew"
            )
        first, last = loss.first_source, loss.last_source
        if self._report(EventKind.TARGET_LOST, partition, first, last, text):
            log.error(
                "the target lost records that it had acknowledged partition=%s first_offset=%d "
                "last_offset=%d cause=%s; to copy them again, stop the connector and set the "
                "partition's offset back",
                partition,
                first,
                last,
                text,
            )

    def report_skip(self, partition: TopicPartition, first: int, last: int) -> None:
        """Log source offsets that the stored position was set past, of which the target has
        nothing."""
        if self._report(EventKind.SKIPPED, partition, first, last, SET_PAST):
            log.warning(
                "records are not copied partition=%s first_offset=%d last_offset=%d cause=%s; to "
                "copy them, stop the connector and set the partition's offset back",
                partition,
                first,
                last,
                SET_PAST,
            )

    def withheld(self) -> Collection[TopicPartition]:
        """Return the partitions whose positions wait for the ledger, or for what it is to have."""
        unwritten = self._events.unwritten()
        return {*unwritten, *self._gaps} if self._gaps else unwritten

    async def flush_events(self, timeout_s: float) -> bool:
        """Wait until every event is in the ledger; False when time ran out."""
        return await self._events.flush(timeout_s)

    def _report(
        self,
        kind: EventKind,
        partition: TopicPartition,
        first: int,
        last: int,
        cause: str,
        *,
        again: bool = False,
    ) -> bool:
        event = LossEvent(
            kind=kind,
            partition=partition,
            first_offset=first,
            last_offset=last,
            policy=policy_of(self._policies, kind),
            cause=cause,
            task=self.task_id,
            again=again,
        )
        return self._events.report(event)

    def report_looped(self, partition: TopicPartition, records: int, conflicts: int) -> None:
        """Count in the partition's meter what is not copied because a mirror wrote it."""
        meter = self.meter(partition)
        meter.looped += records
        meter.conflicts += conflicts

    def report_lag(
        self, partition: TopicPartition, lag_records: int, newest_ms: int, end: int = -1
    ) -> None:
        self.meter(partition).report_lag(lag_records, newest_ms, self.clock.now_ms(), end)

    def report_forecast(self, partition: TopicPartition, forecast: Forecast | None) -> None:
        self.meter(partition).forecast = forecast

    def report_finding(self, what: str, text: str, *, count: int = 1, harms: bool = True) -> None:
        """Pass a finding to the flow's meter; the log gets one line per change of what harms."""
        before = self._found.get(what, "")
        if harms and text != before:
            if text:
                log.warning("%s: %s", what, text)
            else:
                log.info("solved: %s", what)
        self._found[what] = text if harms else ""
        self._meter.note_finding(
            Finding(task=self.task_id, what=what, text=text, count=count, harms=harms)
        )

    def report_figure(self, name: str, value: int) -> None:
        self._meter.note_figure(Figure(task=self.task_id, name=name, value=value))

    def report_checkpoint(self, group: str, partition: TopicPartition, latency_ms: int) -> None:
        self._meter.checkpoints.note(CheckpointKey(self.task_id, group, partition), latency_ms)

    def meter(self, partition: TopicPartition) -> PartitionMeter:
        """Return the meter of one of the task's partitions; it ends with the task."""
        meter = self._meter.partition(partition)
        if partition not in self._metered:
            self._metered.add(partition)
            meter.task = self.task_id
        return meter

    def close(self) -> None:
        """Take the task's partitions out of the meters: another task may own them next."""
        for partition in self._metered:
            self._meter.forget(partition)
        self._meter.forget_findings(self.task_id)
        self._found.clear()
        self._metered.clear()
        for by_partition in (self._states, self._causes, self._refusals):
            by_partition.clear()


def log_gap(gap: SourceGap) -> None:
    """Write the line of a loss with its exact range."""
    headlines = HEADLINES if gap.count else WITHOUT_LOSS
    log.log(
        logging.ERROR if gap.count else logging.WARNING,
        "%s partition=%s first_offset=%d last_offset=%d offsets=%d cause=%s detail=%s",
        headlines.get(EventKind(gap.cause), "records lost before they could be copied"),
        gap.partition,
        gap.first_offset,
        gap.last_offset,
        gap.count,
        gap.cause,
        gap.detail,
    )


def _parsed(key: bytes, value: bytes | None, *, fails: bool) -> SourceOffset | None:
    try:
        return parse_source_offset_value(value)
    except ProtocolError as error:
        name = key.decode(errors="replace")
        if fails:
            raise FatalError(
                f"the stored offset of {name} cannot be read: {error.message}", remedy=WRITE_OFFSET
            ) from error
        log.warning("stored offset cannot be read key=%s cause=%s", name, error)
        return {}


def _kind_of(error: Exception) -> EventKind:
    """Classify a failure by its type and its causes."""
    cause = error.__cause__
    if isinstance(error, ProtocolError) or isinstance(cause, ProtocolError):
        return EventKind.POISONED
    if isinstance(cause, ServerError) and cause.code in TOO_LARGE:
        return EventKind.TOO_LARGE
    return EventKind.REFUSED
