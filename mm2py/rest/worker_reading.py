"""What one scrape of ``GET /metrics`` shows of this worker, as plain data.

Flow: herders and meters -> ``WorkerReading`` -> ``metric_families``. ``by_topic`` joins the partitions of a topic to one series.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from mm2py.api.context import PartitionState
from mm2py.client.connect.broker_errors import BrokerError
from mm2py.client.connect.certificates import Shown
from mm2py.mirror.backfills import Job, Lease
from mm2py.observability.ages import joined
from mm2py.observability.metrics import (
    UNKNOWN,
    LifeCounts,
    NodeSnapshot,
    PartitionSnapshot,
    TopicCounts,
)
from mm2py.observability.processes import ProcessReading
from mm2py.types import FlowName, TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class RunningWork:
    """A connector (``task`` is None) or task of this worker; ``connector`` is its name at the root."""

    flow: str
    connector: str
    task: TaskId | None
    state: str


@dataclass(frozen=True, slots=True)
class FlowReading:
    """A flow of the dedicated mode as this worker sees it."""

    flow: FlowName
    state: str
    problems: int


@dataclass(frozen=True, slots=True)
class BackfillReading:
    """The newest backfill of a flow that this worker leads."""

    flow: FlowName
    job: Job
    leases: Collection[Lease]


@dataclass(frozen=True, slots=True)
class LifeReading:
    """What happened to the work of one herder; ``flow`` is empty on an ordinary worker."""

    flow: str
    counts: LifeCounts


@dataclass(frozen=True, kw_only=True)  # no slots: it keeps what it has joined
class WorkerReading:
    """Everything that one scrape shows, read on the event loop."""

    version: str
    nodes: list[NodeSnapshot] = field(default_factory=list[NodeSnapshot])
    flows: list[FlowReading] = field(default_factory=list[FlowReading])
    works: list[RunningWork] = field(default_factory=list[RunningWork])
    backfills: list[BackfillReading] = field(default_factory=list[BackfillReading])
    lives: list[LifeReading] = field(default_factory=list[LifeReading])
    certificates: Mapping[Shown, float] = field(default_factory=dict[Shown, float])
    broker_errors: Mapping[BrokerError, int] = field(default_factory=dict[BrokerError, int])
    process: ProcessReading | None = None
    by_topic: bool = False
    """Whether a series is of a topic: sums of its partitions, the largest RPO, with an empty label `partition`."""

    @cached_property
    def partitions(self) -> list[tuple[FlowName, PartitionSnapshot]]:
        """What has a series of its own."""
        if not self.by_topic:
            return [(node.flow, part) for node in self.nodes for part in node.partitions]
        topics: dict[tuple[FlowName, str], list[PartitionSnapshot]] = {}
        for node in self.nodes:
            for part in node.partitions:
                topics.setdefault((node.flow, part.source.topic), []).append(part)
        gone = {(node.flow, topic): it for node in self.nodes for topic, it in node.gone.items()}
        return [
            (flow, _topic(parts, gone.get((flow, topic))))
            for (flow, topic), parts in topics.items()
        ]


EVERY_PARTITION: Final = -1


def _topic(parts: Sequence[PartitionSnapshot], gone: TopicCounts | None) -> PartitionSnapshot:
    """Return one series for all partitions of a topic; what is not known of each is not known."""

    def total(value: Callable[[PartitionSnapshot], float]) -> float:
        values = [value(part) for part in parts]
        return UNKNOWN if any(it < 0 for it in values) else sum(values)

    first, gone = parts[0], gone or TopicCounts()
    dated = all(part.age_ms is not None for part in parts)
    copy = next((part.target for part in parts if part.target is not None), None)
    return replace(
        first,
        source=TopicPartition(first.source.topic, EVERY_PARTITION),
        target=None if copy is None else TopicPartition(copy.topic, EVERY_PARTITION),
        task="",
        state=min((part.state for part in parts), key=_worst_first),
        records=gone.records + sum(part.records for part in parts),
        size_bytes=gone.size_bytes + sum(part.size_bytes for part in parts),
        lag_records=int(total(lambda part: part.lag_records)),
        lag_ms=max(part.lag_ms for part in parts) if dated else 0,
        newest_ms=max(part.newest_ms for part in parts) if dated else UNKNOWN,
        records_per_s=total(lambda part: part.records_per_s),
        bytes_per_s=total(lambda part: part.bytes_per_s),
        looped=gone.looped + sum(part.looped for part in parts),
        conflicts=gone.conflicts + sum(part.conflicts for part in parts),
        age=joined(part.age for part in parts),
        latency=joined(part.latency for part in parts),
    )


_BAD_FIRST: Final = (PartitionState.FAILED.value, PartitionState.HELD.value, "PAUSED")


def _worst_first(state: str) -> int:
    return _BAD_FIRST.index(state) if state in _BAD_FIRST else len(_BAD_FIRST)


def number_of(of: TopicPartition) -> str:
    """Return the value of the label ``partition``; Prometheus takes an empty one as absent."""
    return "" if of.partition == EVERY_PARTITION else str(of.partition)
