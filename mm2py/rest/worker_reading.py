"""What one scrape of ``GET /metrics`` shows of this worker, as plain data.

Flow: herders and meters -> ``WorkerReading`` -> ``metric_families``. ``by_topic`` joins the
partitions of a topic to one series.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple, final

from mm2py.api.context import PartitionState
from mm2py.client.connect.broker_errors import BrokerError
from mm2py.client.connect.certificates import Shown
from mm2py.mirror.backfills import Job, Lease
from mm2py.observability.ages import Ages, joined
from mm2py.observability.checkpoint_ages import CheckpointAges
from mm2py.observability.metrics import (
    UNKNOWN,
    LifeCounts,
    NodeSnapshot,
    PartitionSnapshot,
    TopicCounts,
)
from mm2py.observability.processes import ProcessReading
from mm2py.rest.jmx_values import jmx_value
from mm2py.types import FlowName, TaskId, TopicPartition, names_a_topic


@dataclass(frozen=True, slots=True)
class RunningWork:
    """A connector (``task`` is None) or task of this worker; the name is that at the root."""

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
    checkpoint_ages: list[tuple[FlowName, CheckpointAges]] = field(
        default_factory=list[tuple[FlowName, CheckpointAges]]
    )
    lives: list[LifeReading] = field(default_factory=list[LifeReading])
    certificates: Mapping[Shown, float] = field(default_factory=dict[Shown, float])
    broker_errors: Mapping[BrokerError, int] = field(default_factory=dict[BrokerError, int])
    process: ProcessReading | None = None
    state: str = ""
    """Of a Connect worker; empty in the dedicated mode, where each flow has one."""
    pairs: Mapping[str, FlowName] = field(default_factory=dict[str, FlowName])
    """By mirror connector of a Connect worker: its config's aliases, for Java's names."""
    by_topic: bool = False
    """Whether a series is of a topic: sums, the largest RPO, with an empty label `partition`."""

    @cached_property
    def partitions(self) -> "list[Series]":
        """What has a series of its own: each flow has one node here, each partition one meter."""
        if not self.by_topic:
            return [
                Series(node.flow, part, self._pair(node.flow, part.task))
                for node in self.nodes
                for part in node.partitions
            ]
        found: dict[tuple[FlowName, str], list[PartitionSnapshot]] = {}
        for node in self.nodes:
            for part in node.partitions:
                found.setdefault((node.flow, part.source.topic), []).append(part)
        gone = {(node.flow, topic): it for node in self.nodes for topic, it in node.gone.items()}
        return [Series(at[0], _topic(parts, gone.get(at))) for at, parts in found.items()]

    @cached_property
    def copies(self) -> "list[Series]":
        """What has a series under names that know the copy alone, one for each copy."""
        place = _whole if self.by_topic else _itself
        found: dict[tuple[FlowName, TopicPartition], list[PartitionSnapshot]] = {}
        gone: dict[tuple[FlowName, TopicPartition], TopicCounts] = {}
        for node in self.nodes:
            for part in node.partitions:
                # Known with the first record; what a connector makes by itself is no copy.
                if part.target is not None and names_a_topic(part.source.topic):
                    found.setdefault((node.flow, place(part.target)), []).append(part)
            for copy, it in node.gone_copies.items():
                at = node.flow, place(copy)
                gone[at] = it.plus(gone.get(at, TopicCounts()))
        # Two samples of one series would make the whole scrape invalid.
        return [
            Series(
                at[0],
                replace(_with(_joined(parts), gone.get(at)), target=at[1]),
                self._pair(at[0], parts[0].task),
            )
            for at, parts in found.items()
        ]

    def _pair(self, flow: FlowName, task: str) -> FlowName:
        return self.pairs.get(task.rpartition("-")[0], flow)

    @cached_property
    def checkpoints(self) -> "Mapping[CheckpointSeries, Ages]":
        """How long checkpoints took; a group that moves from task to task has one series, and with
        ``by_topic`` one for each topic."""
        found: dict[CheckpointSeries, list[Ages]] = {}
        for flow, (key, ages) in self.checkpoint_ages:
            partition = _whole(key.partition) if self.by_topic else key.partition
            of = CheckpointSeries(self._pair(flow, key.task), key.group, partition)
            found.setdefault(of, []).append(ages)
        joint = {of: joined(several) for of, several in found.items()}
        return {of: ages for of, ages in joint.items() if ages is not None}


CHECKPOINT_LABELS: Final = ("source", "target", "group", "topic", "partition")


class CheckpointSeries(NamedTuple):
    """Whose checkpoints; ``partition`` as the target names it."""

    flow: FlowName
    group: str
    partition: TopicPartition

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the values of its labels under Java's names."""
        names = (*self.flow, self.group, self.partition.topic)
        return *map(jmx_value, names), number_of(self.partition)


@final
class Series:
    """A partition, or a topic, with the values of its labels."""

    def __init__(
        self, flow: FlowName, part: PartitionSnapshot, pair: FlowName | None = None
    ) -> None:
        self.flow, self.part = flow, part
        self.pair = pair or flow
        """Its aliases under Java's names."""

    @cached_property
    def own(self) -> tuple[str, ...]:
        """Under our own names."""
        return str(self.flow), self.part.source.topic, number_of(self.part.source)

    @cached_property
    def copy(self) -> tuple[str, ...]:
        """Under Java's names; empty where the copy is not known."""
        target = self.part.target
        if target is None:
            return ()
        return *map(jmx_value, (*self.pair, target.topic)), number_of(target)

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """Under Redpanda's names of Java's: ``destination`` repeats the target."""
        return (*self.copy, jmx_value(self.pair.target)) if self.copy else ()


EVERY_PARTITION: Final = -1


def _whole(one: TopicPartition) -> TopicPartition:
    return TopicPartition(one.topic, EVERY_PARTITION)


def _itself(one: TopicPartition) -> TopicPartition:
    return one


def _topic(parts: Sequence[PartitionSnapshot], gone: TopicCounts | None) -> PartitionSnapshot:
    """Return one series for a topic, with what its partitions counted on this node before."""
    whole = _with(_joined(parts), gone)
    copy = next((part.target for part in parts if part.target is not None), None)
    copy = None if copy is None else _whole(copy)
    return replace(whole, source=_whole(whole.source), target=copy, task="")


def _with(part: PartitionSnapshot, gone: TopicCounts | None) -> PartitionSnapshot:
    """Return it with what others counted that are this node's no more."""
    if gone is None:
        return part
    return replace(
        part,
        records=gone.records + part.records,
        size_bytes=gone.size_bytes + part.size_bytes,
        looped=gone.looped + part.looped,
        conflicts=gone.conflicts + part.conflicts,
    )


def _joined(parts: Sequence[PartitionSnapshot]) -> PartitionSnapshot:
    """Return several as one, under the name of the first: sums, the worst state, the largest age;
    what is not known of each is not known."""
    if len(parts) == 1:
        return parts[0]

    def total(value: Callable[[PartitionSnapshot], float]) -> float:
        values = [value(part) for part in parts]
        # A sum of the known ones would show less lag than there is.
        return UNKNOWN if any(it < 0 for it in values) else sum(values)

    dated = all(part.age_ms is not None for part in parts)
    return replace(
        parts[0],
        state=min((part.state for part in parts), key=_worst_first),
        records=sum(part.records for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
        lag_records=int(total(lambda part: part.lag_records)),
        lag_ms=max(part.lag_ms for part in parts) if dated else 0,
        newest_ms=max(part.newest_ms for part in parts) if dated else UNKNOWN,
        records_per_s=total(lambda part: part.records_per_s),
        bytes_per_s=total(lambda part: part.bytes_per_s),
        looped=sum(part.looped for part in parts),
        conflicts=sum(part.conflicts for part in parts),
        age=joined(part.age for part in parts),
        latency=joined(part.latency for part in parts),
    )


_BAD_FIRST: Final = (PartitionState.FAILED.value, PartitionState.HELD.value, "PAUSED")


def _worst_first(state: str) -> int:
    return _BAD_FIRST.index(state) if state in _BAD_FIRST else len(_BAD_FIRST)


def number_of(of: TopicPartition) -> str:
    """Return the value of the label ``partition``; Prometheus takes an empty one as absent."""
    return "" if of.partition == EVERY_PARTITION else str(of.partition)
