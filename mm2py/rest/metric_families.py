"""The metrics of ``GET /metrics``: names, labels, and how a reading of this worker becomes samples.

Flow: ``WorkerReading`` (plain data) -> ``WorkerCollector.collect`` -> families of prometheus_client.
docs/metrics.md lists ``OWN_METRICS`` and ``COMPAT_METRICS``. The collector shares nothing with the event loop and
may run in a thread.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from mm2py.api.context import EventKind, PartitionState
from mm2py.observability.metrics import UNKNOWN, NodeSnapshot, PartitionSnapshot
from mm2py.types import FlowName, State, TaskId

__all__ = [
    "COMPAT_METRICS",
    "FLOW_STATES",
    "OWN_METRICS",
    "Compat",
    "FlowReading",
    "MetricSpec",
    "RunningWork",
    "WorkerCollector",
    "WorkerReading",
]

FLOW_STATES: Final = (*(state.value for state in State), "DEGRADED", "SUSPENDED", "WAITING")
"""Words for the state of a flow, one of which is 1 at any time."""

PARTITION_STATES: Final = (*(state.value for state in PartitionState), "PAUSED")
MS_PER_S: Final = 1000


class Compat(StrEnum):
    """Whose dashboards get their names beside our own."""

    STRIMZI = "strimzi"
    REDPANDA = "redpanda"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric; a name that ends in ``_total`` is a counter, any other a gauge."""

    name: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def type(self) -> str:
        """The type in the exposition."""
        return "counter" if self.name.endswith("_total") else "gauge"


_FLOW: Final = ("flow",)
_PARTITION: Final = ("flow", "topic", "partition")

OWN_METRICS: Final = (
    MetricSpec("mm2py_build_info", ("version",), "Version of this worker; always 1."),
    MetricSpec(
        "mm2py_flow_state",
        ("flow", "state"),
        "1 for the flow's state as this worker sees it, else 0.",
    ),
    MetricSpec("mm2py_flow_problems", _FLOW, "Problems of the flow that this worker reports."),
    MetricSpec("mm2py_partitions", ("flow", "state"), "Source partitions of this worker by state."),
    MetricSpec("mm2py_failed_partitions", _FLOW, "Source partitions of this worker that failed."),
    MetricSpec(
        "mm2py_partition_state", (*_PARTITION, "state"), "1 for the partition's current state."
    ),
    MetricSpec("mm2py_records_replicated_total", _PARTITION, "Records the target acknowledged."),
    MetricSpec(
        "mm2py_bytes_replicated_total", _PARTITION, "Bytes of batches the target acknowledged."
    ),
    MetricSpec(
        "mm2py_source_lag_records", _PARTITION, "Records between the position and the source's end."
    ),
    MetricSpec(
        "mm2py_rpo_seconds", _PARTITION, "Age of the oldest record not yet copied; 0 without lag."
    ),
    MetricSpec(
        "mm2py_newest_record_timestamp_seconds",
        _PARTITION,
        "Newest record timestamp copied, since the epoch.",
    ),
    MetricSpec(
        "mm2py_ledger_events_total",
        ("flow", "kind"),
        "Events this worker wrote to the loss ledger.",
    ),
    MetricSpec(
        "mm2py_records_lost_total", _FLOW, "Source offsets in the loss ledger that were not copied."
    ),
    MetricSpec(
        "mm2py_records_maybe_doubled_total",
        _FLOW,
        "Source offsets in the loss ledger that may be on the target twice.",
    ),
    MetricSpec(
        "mm2py_connector_state",
        ("flow", "connector", "state"),
        "1 for the state of a connector of this worker, else 0.",
    ),
    MetricSpec(
        "mm2py_task_state",
        ("flow", "connector", "task", "state"),
        "1 for the state of a task of this worker, else 0.",
    ),
)

_STRIMZI: Final = "kafka_connect_mirror_mirrorsourceconnector"
_REDPANDA: Final = "kafka_connect_mirror_source_connector"
_COPY: Final = ("source", "target", "topic", "partition")
_PREFIXES: Final[Mapping[Compat, tuple[str, tuple[str, ...]]]] = {
    Compat.STRIMZI: (_STRIMZI, _COPY),
    Compat.REDPANDA: (_REDPANDA, (*_COPY, "destination")),
}


def _mirror_specs(prefix: str, labels: tuple[str, ...]) -> tuple[MetricSpec, ...]:
    return (
        MetricSpec(f"{prefix}_record_count", labels, "Records the target acknowledged."),
        MetricSpec(f"{prefix}_record_rate", labels, "Records per second, mean of the last 10 s."),
        MetricSpec(f"{prefix}_byte_count", labels, "Bytes the target acknowledged."),
        MetricSpec(f"{prefix}_byte_rate", labels, "Bytes per second, mean of the last 10 s."),
    )


_LAG: Final = "kafka_consumer_fetch_manager_records_lag"
_STATUS: Final = "kafka_connect_connector_status"
_CONNECTORS: Final = "kafka_connect_worker_connector_count"
_TASKS: Final = "kafka_connect_worker_task_count"
_WORKER_SPECS: Final = (
    MetricSpec(_CONNECTORS, (), "Connectors of this worker."),
    MetricSpec(_TASKS, (), "Tasks of this worker."),
    MetricSpec(_STATUS, ("connector", "task", "status"), "1 for the status of a task."),
)

COMPAT_METRICS: Final[Mapping[Compat, tuple[MetricSpec, ...]]] = {
    Compat.STRIMZI: (
        *_mirror_specs(*_PREFIXES[Compat.STRIMZI]),
        MetricSpec(_LAG, ("clientid", "topic", "partition"), "Records behind the source's end."),
        *_WORKER_SPECS,
    ),
    Compat.REDPANDA: (*_mirror_specs(*_PREFIXES[Compat.REDPANDA]), *_WORKER_SPECS),
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReading:
    """Everything that one scrape shows, read on the event loop."""

    version: str
    nodes: list[NodeSnapshot] = field(default_factory=list[NodeSnapshot])
    flows: list[FlowReading] = field(default_factory=list[FlowReading])
    works: list[RunningWork] = field(default_factory=list[RunningWork])


@final
class _Families:
    """Samples by metric name."""

    def __init__(self, specs: Collection[MetricSpec]) -> None:
        self._by_name: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for spec in specs:
            family = CounterMetricFamily if spec.type == "counter" else GaugeMetricFamily
            self._by_name[spec.name] = family(spec.name, spec.meaning, labels=spec.labels)

    def add(self, name: str, labels: Sequence[str], value: float) -> None:
        """Add one sample; label values are in the order of the metric's labels."""
        self._by_name[name].add_metric(labels, value)

    def one_hot(self, name: str, labels: Sequence[str], states: Sequence[str], state: str) -> None:
        """Add one sample per state, 1 for ``state``."""
        for each in states if state in states else (*states, state):
            self.add(name, (*labels, each), float(each == state))

    def all(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return the families in the order of their specs."""
        return iter(self._by_name.values())


@final
class WorkerCollector(Collector):
    """Collector of one scrape: our own names, and those of ``compat``."""

    def __init__(self, reading: WorkerReading, compat: Collection[Compat]) -> None:
        self._reading = reading
        self._compat = [each for each in Compat if each in compat]

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Return all families, also those without a sample."""
        reading = self._reading
        specs = [*OWN_METRICS, *(spec for it in self._compat for spec in COMPAT_METRICS[it])]
        families = _Families(specs)
        families.add("mm2py_build_info", (reading.version,), 1)
        for flow in reading.flows:
            _add_flow(families, flow)
        for node in reading.nodes:
            _add_node(families, node)
            for part in node.partitions:
                _add_partition(families, str(node.flow), part)
                self._add_copy(families, node.flow, part)
        for work in reading.works:
            _add_work(families, work)
        if self._compat:
            _add_worker(families, reading.works)
        return families.all()

    def _add_copy(self, families: _Families, flow: FlowName, part: PartitionSnapshot) -> None:
        if Compat.STRIMZI in self._compat and part.lag_records != UNKNOWN:
            # Java's client id, in the quotes that JMX puts around it.
            client = f'"{flow}|{part.task}|replication-consumer"'
            source = (client, part.source.topic, str(part.source.partition))
            families.add(_LAG, source, part.lag_records)
        if part.target is None:  # not known before the first record
            return
        copy = (flow.source, flow.target, part.target.topic, str(part.target.partition))
        for each in self._compat:
            prefix, names = _PREFIXES[each]
            labels = (*copy, flow.target)[: len(names)]
            families.add(f"{prefix}_record_count", labels, part.records)
            families.add(f"{prefix}_byte_count", labels, part.size_bytes)
            if part.records_per_s >= 0:
                families.add(f"{prefix}_record_rate", labels, part.records_per_s)
                families.add(f"{prefix}_byte_rate", labels, part.bytes_per_s)


def _add_flow(families: _Families, flow: FlowReading) -> None:
    families.one_hot("mm2py_flow_state", (str(flow.flow),), FLOW_STATES, flow.state)
    families.add("mm2py_flow_problems", (str(flow.flow),), flow.problems)


def _add_node(families: _Families, node: NodeSnapshot) -> None:
    flow = str(node.flow)
    states = Counter(part.state for part in node.partitions)
    for state in dict.fromkeys((*PARTITION_STATES, *states)):
        families.add("mm2py_partitions", (flow, state), states[state])
    failed = states[PartitionState.FAILED.value]
    families.add("mm2py_failed_partitions", (flow,), failed)
    for kind in dict.fromkeys((*(kind.value for kind in EventKind), *node.events)):
        families.add("mm2py_ledger_events_total", (flow, kind), node.events.get(kind, 0))
    families.add("mm2py_records_lost_total", (flow,), node.records_lost)
    families.add("mm2py_records_maybe_doubled_total", (flow,), node.records_may_be_doubled)


def _add_partition(families: _Families, flow: str, part: PartitionSnapshot) -> None:
    labels = (flow, part.source.topic, str(part.source.partition))
    families.add("mm2py_partition_state", (*labels, part.state), 1)
    families.add("mm2py_records_replicated_total", labels, part.records)
    families.add("mm2py_bytes_replicated_total", labels, part.size_bytes)
    if part.lag_records != UNKNOWN:
        families.add("mm2py_source_lag_records", labels, part.lag_records)
        # A lag of unknown age has 0 ms as well.
        if part.lag_records == 0 or part.lag_ms > 0 or part.newest_ms != UNKNOWN:
            families.add("mm2py_rpo_seconds", labels, part.lag_ms / MS_PER_S)
    if part.newest_ms != UNKNOWN:
        families.add("mm2py_newest_record_timestamp_seconds", labels, part.newest_ms / MS_PER_S)


def _add_work(families: _Families, work: RunningWork) -> None:
    states = [state.value for state in State]
    labels = (work.flow, work.connector)
    if work.task is None:
        families.one_hot("mm2py_connector_state", labels, states, work.state)
    else:
        task = str(work.task.number)
        families.one_hot("mm2py_task_state", (*labels, task), states, work.state)


def _add_worker(families: _Families, works: Sequence[RunningWork]) -> None:
    tasks = [work for work in works if work.task is not None]
    families.add(_CONNECTORS, (), len(works) - len(tasks))
    families.add(_TASKS, (), len(tasks))
    for work in tasks:
        assert work.task is not None
        families.add(_STATUS, (work.connector, str(work.task.number), work.state.lower()), 1)
