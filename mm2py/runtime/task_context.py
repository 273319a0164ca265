"""What one task is lent: stored positions in, partition states, lag and losses out.

Flow: task -> ``WorkerTaskContext`` -> meters and log; failed partitions -> the worker task.
It knows nothing of Kafka.
"""

import logging
from collections.abc import Sequence
from typing import Protocol, final

from mm2py.api.context import PartitionState, SourceGap
from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.clock import Clock
from mm2py.errors import PartitionError, ProtocolError
from mm2py.mirror.source_offsets import parse_source_offset_value, source_offset_key
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.offset_committer import OffsetStore
from mm2py.types import TopicPartition

__all__ = ["PartitionListener", "WorkerTaskContext"]

log = logging.getLogger(__name__)


class PartitionListener(Protocol):
    """Who acts when a task reports a failed partition."""

    def partition_failed(self, partition: TopicPartition, error: Exception) -> None:
        """The task cannot go on with this partition."""
        ...

    def gap_refused(self, partition: TopicPartition, error: Exception) -> None:
        """The partition lost records and ``gap.policy=fail`` stops it there."""
        ...


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
        fail_on_gap: bool = False,
    ) -> None:
        self._connector = connector
        self._task_id = task_id
        self._store = store
        self._meter = meter
        self._clock = clock
        self._fail_on_gap = fail_on_gap
        self._listener: PartitionListener | None = None
        self._states: dict[TopicPartition, PartitionState] = {}
        self._asked = 0

    @property
    def clock(self) -> Clock:
        """Time."""
        return self._clock

    @property
    def task_id(self) -> str:
        """``<connector>-<index>``."""
        return self._task_id

    @property
    def partitions(self) -> int:
        """How many source partitions the task has, as far as it said."""
        return max(self._asked, len(self._states))

    @property
    def failed(self) -> int:
        """How many of them are FAILED."""
        return sum(state is PartitionState.FAILED for state in self._states.values())

    def listen(self, listener: PartitionListener) -> None:
        """Name the worker task that acts on failures."""
        self._listener = listener

    def seen(self, partition: TopicPartition) -> None:
        """Count a partition the task works on; one that it did not name itself is RUNNING."""
        self._states.setdefault(partition, PartitionState.RUNNING)

    async def committed_offsets(
        self, partitions: Sequence[SourcePartition]
    ) -> Sequence[SourceOffset | None]:
        """Return stored offsets; an entry that is not a JSON object counts as none, with a warning."""
        self._asked = len(partitions)
        keys = [source_offset_key(self._connector, partition) for partition in partitions]
        values = await self._store.get(keys)
        return [_parsed(key, value) for key, value in zip(keys, values, strict=True)]

    def partition_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> None:
        """Take a state that the task reports; the log gets one line per change."""
        if self.note_state(partition, state, cause) and state is PartitionState.FAILED:
            error = cause or PartitionError(
                "failed without a cause", topic=partition.topic, partition=partition.partition
            )
            if self._listener is not None:
                self._listener.partition_failed(partition, error)

    def note_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> bool:
        """Record and log a state; False when it is the one known already."""
        before = self._states.get(partition)
        if before is state:
            return False
        self._states[partition] = state
        meter = self._meter.partition(partition)
        meter.state = state.value
        meter.cause = str(cause) if cause is not None else ""
        if state is PartitionState.FAILED:
            log.error("partition failed, the others go on partition=%s cause=%s", partition, cause)
        elif before is PartitionState.FAILED:
            log.info("partition works again partition=%s state=%s", partition, state.value)
        return True

    def report_gap(self, gap: SourceGap) -> None:
        """Log a loss with its exact range; with ``gap.policy=fail`` it also stops the partition."""
        log.error(
            "records lost before they could be copied partition=%s first_offset=%d last_offset=%d"
            " offsets=%d cause=%s detail=%s",
            gap.partition,
            gap.first_offset,
            gap.last_offset,
            gap.count,
            gap.cause,
            gap.detail,
        )
        if self._fail_on_gap and self._listener is not None:
            error = PartitionError(
                f"{gap.count} offsets up to {gap.last_offset} are gone ({gap.cause}: {gap.detail})",
                topic=gap.partition.topic,
                partition=gap.partition.partition,
                offset=gap.first_offset,
                remedy="set gap.policy=continue to go on behind the gap, or raise the source's"
                " retention",
            )
            self._listener.gap_refused(gap.partition, error)

    def report_lag(self, partition: TopicPartition, lag_records: int, newest_ms: int) -> None:
        """Pass a lag to the partition's meter."""
        meter = self._meter.partition(partition)
        meter.report_lag(lag_records, newest_ms, self._clock.now_ms())

    def close(self) -> None:
        """Take the task's partitions out of the meters: another task may own them next."""
        for partition in self._states:
            self._meter.forget(partition)
        self._states.clear()


def _parsed(key: bytes, value: bytes | None) -> SourceOffset | None:
    try:
        return parse_source_offset_value(value)
    except ProtocolError as error:
        log.warning(
            "stored offset is ignored, the partition starts as if nothing was stored key=%s cause=%s",
            key.decode(errors="replace"),
            error,
        )
        return None
