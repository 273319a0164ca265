"""What the runtime lends to connectors and tasks, in memory: for tests of connectors, ours and
others'.

Flow: a test stores positions -> the task reads them in ``start`` -> what the task reports is kept
in lists.
"""

import json
from collections.abc import Collection, Mapping, Sequence

from mm2py.api.context import PartitionState, SourceGap
from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.observability.metrics import Forecast
from mm2py.testing.clock import FakeClock
from mm2py.types import TopicPartition


class FakeConnectorContext:
    """A ``ConnectorContext`` with a fake clock; counts and keeps what it is asked."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.reconfigurations = 0
        self.failures: list[Exception] = []
        self.published: Sequence[Mapping[str, str]] = ()

    def published_tasks(self) -> Sequence[Mapping[str, str]]:
        return self.published

    def request_reconfiguration(self) -> None:
        self.reconfigurations += 1

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class FakeTaskContext:
    """A ``TaskContext`` with a fake clock; ``store`` sets a position as the runtime does."""

    def __init__(self, task_id: str = "connector-0") -> None:
        self.clock = FakeClock()
        self.task_id = task_id
        self.states: list[tuple[TopicPartition, PartitionState, str]] = []
        self.gaps: list[SourceGap] = []
        self.lags: dict[TopicPartition, tuple[int, int]] = {}
        self.lag_reports = 0
        self.conflicts = 0
        self.looped: dict[TopicPartition, int] = {}
        self.covered: list[tuple[TopicPartition, int]] = []
        self.known_ids: dict[TopicPartition, bytes] = {}
        self.ids: list[tuple[TopicPartition, bytes]] = []
        self.findings: dict[str, tuple[str, int, bool]] = {}
        self.figures: dict[str, int] = {}
        self.checkpoints: dict[tuple[str, TopicPartition], int] = {}
        self.forecasts: dict[TopicPartition, Forecast | None] = {}
        self.kept_out: frozenset[TopicPartition] = frozenset()
        self.buffer_bytes = 32 << 20
        self.linger_ms = 0
        self.commit_s = 0.0
        self.left_out: set[TopicPartition] = set()
        self.shown: set[TopicPartition] = set()
        self._positions: dict[str, SourceOffset] = {}

    def store(self, partition: SourcePartition, offset: SourceOffset) -> None:
        self._positions[json.dumps(dict(partition), sort_keys=True)] = dict(offset)

    def leave_out(self, partitions: Collection[TopicPartition]) -> None:
        """Keep what the task left out."""
        self.left_out.update(partitions)

    async def committed_offsets(
        self, partitions: Sequence[SourcePartition]
    ) -> Sequence[SourceOffset | None]:
        keys = [json.dumps(dict(partition), sort_keys=True) for partition in partitions]
        return [self._positions.get(key) for key in keys]

    def partition_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> None:
        self.states.append((partition, state, str(cause) if cause else ""))

    def shows_cause(self, partition: TopicPartition) -> bool:
        """Whether the test put it into ``shown``."""
        return partition in self.shown

    def report_gap(self, gap: SourceGap) -> None:
        self.gaps.append(gap)

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return self.known_ids

    def report_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        self.ids.append((partition, topic_id))

    def report_covered(
        self, partition: TopicPartition, offset: int, *, begins: bool = False
    ) -> None:
        self.covered.append((partition, offset))

    def report_looped(self, partition: TopicPartition, records: int, conflicts: int) -> None:
        self.looped[partition] = self.looped.get(partition, 0) + records
        self.conflicts += conflicts

    def report_lag(
        self, partition: TopicPartition, lag_records: int, newest_ms: int, end: int = -1
    ) -> None:
        self.lag_reports += 1
        self.lags[partition] = (lag_records, newest_ms)

    def report_forecast(self, partition: TopicPartition, forecast: Forecast | None) -> None:
        self.forecasts[partition] = forecast

    def report_finding(self, what: str, text: str, *, count: int = 1, harms: bool = True) -> None:
        if text:
            self.findings[what] = (text, count, harms)
        else:
            self.findings.pop(what, None)

    def report_figure(self, name: str, value: int) -> None:
        self.figures[name] = value

    def report_checkpoint(self, group: str, partition: TopicPartition, latency_ms: int) -> None:
        self.checkpoints[group, partition] = latency_ms
