"""The metrics of ``GET /metrics``: names, labels, and how a reading of this worker becomes samples.

Flow: ``WorkerReading`` (plain data) -> ``families`` of prometheus_client, one at a time, so that
few objects exist at once. docs/reference/metrics.md lists ``OWN_METRICS`` and ``COMPAT_METRICS``.
It shares nothing with the event loop and may run in a thread.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from mm2py.api.context import EventKind, PartitionState
from mm2py.flows.states import DEGRADED, DISABLED
from mm2py.mirror.backfills import JobState, Lease, LeaseState
from mm2py.mirror.checkpoints import GROUP_STATES
from mm2py.observability.ages import Ages
from mm2py.observability.metrics import UNKNOWN, LifeCounts, NodeSnapshot, PartitionSnapshot
from mm2py.observability.processes import ProcessReading
from mm2py.rest.jmx_values import jmx_value
from mm2py.rest.worker_reading import (
    CHECKPOINT_LABELS,
    RunningWork,
    Series,
    WorkerReading,
    number_of,
)
from mm2py.types import State

WORK_STATES: Final = tuple(state.value for state in State)
FLOW_STATES: Final = (*WORK_STATES, DEGRADED, DISABLED, "SUSPENDED", "WAITING")
WORKER_STATES: Final = (
    *(it.value for it in (State.RUNNING, State.FAILED, State.RESTARTING, State.UNASSIGNED)),
    *(DEGRADED, "SUSPENDED", "WAITING"),
)
PARTITION_STATES: Final = (*(state.value for state in PartitionState), "PAUSED")
JOB_STATES: Final = tuple(state.value for state in JobState)
LEASE_STATES: Final = tuple(state.value for state in LeaseState)
RESTARTED: Final = ("flow", "connector", "task")
EVENT_KINDS: Final = tuple(kind.value for kind in EventKind)
MS_PER_S: Final = 1000


class Compat(StrEnum):
    """Products whose metric names are also exported."""

    STRIMZI = "strimzi"
    REDPANDA = "redpanda"


Samples = Iterator[tuple[tuple[str, ...], float]]
"""Label values, in the order of the metric's labels, and the value."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric; a name that ends in ``_total`` is a counter, any other a gauge."""

    name: str
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[WorkerReading], Samples]

    def family(self, reading: WorkerReading) -> CounterMetricFamily | GaugeMetricFamily:
        counter = self.name.endswith("_total")
        kind = CounterMetricFamily if counter else GaugeMetricFamily
        family = kind(self.name, self.meaning, labels=self.labels)
        for labels, value in self.samples(reading):
            family.add_metric(labels, value)
        return family


# -- samples by flow, by partition, by connector and task ------------------------------------------

_T = TypeVar("_T")
_Samples = Callable[[WorkerReading], Samples]
_Items = Callable[[WorkerReading], Iterable[_T]]
_Labels = Callable[[_T], tuple[str, ...] | None]
"""None where an item has no series."""


def _one(items: _Items[_T], labels: _Labels[_T], value: Callable[[_T], float | None]) -> _Samples:
    """Return a sample of each item, but none while its value is not known."""

    def samples(reading: WorkerReading) -> Samples:
        for item in items(reading):
            known, values = value(item), labels(item)
            if known is not None and values is not None:
                yield values, known

    return samples


def _one_hot(
    items: _Items[_T], labels: _Labels[_T], state: Callable[[_T], str], states: Sequence[str]
) -> _Samples:
    """Return a sample of each state for each item: 1 for the one that it is in."""

    def samples(reading: WorkerReading) -> Samples:
        for item in items(reading):
            own, values = state(item), labels(item) or ()
            # A worker of another version may report a state that this one does not know.
            for each in states if own in states else (*states, own):
                yield (*values, each), float(each == own)

    return samples


def _counts(
    items: _Items[_T],
    flow: Callable[[_T], object],
    counts: Callable[[_T], Mapping[str, float]],
    always: Sequence[str] = (),
) -> _Samples:
    """Return a sample for each word that an item counts, and for those of ``always``."""

    def samples(reading: WorkerReading) -> Samples:
        for item in items(reading):
            counted = counts(item)
            # Counters begin at 0: `increase` does not see one that appears as 1.
            for word in dict.fromkeys((*always, *counted)):
                yield (str(flow(item)), word), counted.get(word, 0)

    return samples


def _of_node(value: Callable[[NodeSnapshot], float | None]) -> _Samples:
    return _one(lambda it: it.nodes, lambda node: (str(node.flow),), value)


def _findings(node: NodeSnapshot) -> Counter[str]:
    counts: Counter[str] = Counter()
    for finding in node.findings:
        counts[finding.what] += finding.count
    return counts


def _overtaken_s(node: NodeSnapshot) -> float | None:
    soonest = min((it.forecast.at_ms for it in node.partitions if it.forecast), default=None)
    return None if soonest is None else max(0.0, (soonest - node.at_ms) / MS_PER_S)


_Value = Callable[[PartitionSnapshot], float | None]
"""A number of a partition, None while it is not known."""


def _of_partition(name: str, meaning: str, value: _Value) -> MetricSpec:
    samples = _one(lambda it: it.partitions, lambda it: it.own, lambda it: value(it.part))
    return MetricSpec(name, _PARTITION, meaning, samples)


def _lag_records(part: PartitionSnapshot) -> float | None:
    return None if part.lag_records == UNKNOWN else part.lag_records


def _rpo_s(part: PartitionSnapshot) -> float | None:
    age_ms = part.age_ms
    return None if age_ms is None else age_ms / MS_PER_S


def _works(*, tasks: bool) -> _Items[RunningWork]:
    return lambda reading: [it for it in reading.works if (it.task is not None) is tasks]


def _number(work: RunningWork) -> str:
    assert work.task is not None
    return str(work.task.number)


def _of_leases(value: Callable[[Lease], int]) -> _Samples:
    return _one(
        lambda it: it.backfills, lambda it: (str(it.flow),), lambda it: sum(map(value, it.leases))
    )


def _of_life(value: Callable[[LifeCounts], int]) -> _Samples:
    return _one(lambda it: it.lives, lambda life: (life.flow,), lambda life: value(life.counts))


def _groups(reading: WorkerReading) -> Samples:
    for node in reading.nodes:
        groups: Counter[tuple[str, str]] = Counter()
        for figure in node.figures:
            kind, _, state = figure.name.rpartition("s ")
            if state in GROUP_STATES and figure.value is not None:
                groups[kind, state] += figure.value
        for (kind, state), count in groups.items():
            yield (str(node.flow), kind, state), count


def _of_process(
    name: str, meaning: str, value: Callable[[ProcessReading], float | None]
) -> MetricSpec:
    samples = _one(lambda it: [] if it.process is None else [it.process], lambda _: (), value)
    return MetricSpec(name, (), meaning, samples)


_FLOW: Final = ("flow",)
_PARTITION: Final = ("flow", "topic", "partition")

OWN_METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec(
        "mm2py_build_info",
        ("version",),
        "Version of this worker; always 1.",
        lambda reading: iter([((reading.version,), 1.0)]),
    ),
    MetricSpec(
        "mm2py_flow_state",
        ("flow", "state"),
        "1 for the flow's state as this worker sees it, else 0.",
        _one_hot(lambda it: it.flows, lambda it: (str(it.flow),), lambda it: it.state, FLOW_STATES),
    ),
    MetricSpec(
        "mm2py_worker_state",
        ("state",),
        "1 for the state of a Connect worker and its connectors, else 0.",
        _one_hot(lambda it: filter(None, [it.state]), lambda _: (), str, WORKER_STATES),
    ),
    MetricSpec(
        "mm2py_flow_problems",
        _FLOW,
        "Problems of the flow that this worker knows.",
        _one(lambda it: it.flows, lambda it: (str(it.flow),), lambda it: it.problems),
    ),
    MetricSpec(
        "mm2py_flow_findings",
        ("flow", "finding"),
        "What tasks of this worker report beside their partitions, such as groups in use on the "
        "target.",
        _counts(lambda it: it.nodes, lambda node: node.flow, _findings),
    ),
    MetricSpec(
        "mm2py_partitions",
        ("flow", "state"),
        "Source partitions of this worker by state.",
        _counts(
            lambda it: it.nodes,
            lambda node: node.flow,
            lambda node: Counter(part.state for part in node.partitions),
            PARTITION_STATES,
        ),
    ),
    MetricSpec(
        "mm2py_failed_partitions",
        _FLOW,
        "Source partitions of this worker that failed.",
        _of_node(
            lambda it: sum(part.state == PartitionState.FAILED.value for part in it.partitions)
        ),
    ),
    MetricSpec(
        "mm2py_retention_overtakes_seconds",
        _FLOW,
        "When the source deletes the first record of this worker's partitions that is not "
        "copied; absent while they keep up.",
        _of_node(_overtaken_s),
    ),
    MetricSpec(
        "mm2py_partition_state",
        (*_PARTITION, "state"),
        "1 for the partition's current state.",
        _one(lambda it: it.partitions, lambda it: (*it.own, it.part.state), lambda _: 1),
    ),
    _of_partition(
        "mm2py_records_replicated_total",
        "Records that the target acknowledged.",
        lambda part: part.records,
    ),
    _of_partition(
        "mm2py_bytes_replicated_total",
        "Bytes of batches that the target acknowledged.",
        lambda part: part.size_bytes,
    ),
    _of_partition(
        "mm2py_records_looped_total",
        "Records that were not copied because another mirror wrote them to the source.",
        lambda part: part.looped,
    ),
    _of_partition(
        "mm2py_write_conflicts_total",
        "Records of mirrors that are in conflict with a local record of the same key.",
        lambda part: part.conflicts,
    ),
    _of_partition(
        "mm2py_source_lag_records",
        "Records between the position and the end of the source partition.",
        _lag_records,
    ),
    _of_partition(
        "mm2py_rpo_seconds",
        "Largest possible age of the oldest record not yet copied; 0 without lag.",
        _rpo_s,
    ),
    _of_partition(
        "mm2py_newest_record_timestamp_seconds",
        "Largest record timestamp copied, since the epoch.",
        lambda part: None if part.newest_ms == UNKNOWN else part.newest_ms / MS_PER_S,
    ),
    MetricSpec(
        "mm2py_ledger_events_total",
        ("flow", "kind"),
        "Events of the loss ledger that this worker noticed.",
        _counts(lambda it: it.nodes, lambda node: node.flow, lambda it: it.events, EVENT_KINDS),
    ),
    MetricSpec(
        "mm2py_records_lost_total",
        _FLOW,
        "Source offsets of the loss ledger that are not on the target.",
        _of_node(lambda node: node.records_lost),
    ),
    MetricSpec(
        "mm2py_records_maybe_doubled_total",
        _FLOW,
        "Source offsets of the loss ledger that may be on the target twice.",
        _of_node(lambda node: node.records_may_be_doubled),
    ),
    MetricSpec(
        "mm2py_backfill_state",
        ("flow", "state"),
        "1 for the state of the newest backfill of a flow that this worker leads, else 0.",
        _one_hot(
            lambda it: it.backfills,
            lambda it: (str(it.flow),),
            lambda it: it.job.state.value,
            JOB_STATES,
        ),
    ),
    MetricSpec(
        "mm2py_backfill_records",
        _FLOW,
        "Records that the newest backfill has copied.",
        _of_leases(lambda lease: lease.records),
    ),
    MetricSpec(
        "mm2py_backfill_bytes",
        _FLOW,
        "Bytes of batches that the newest backfill has copied.",
        _of_leases(lambda lease: lease.bytes),
    ),
    MetricSpec(
        "mm2py_backfill_offsets_left",
        _FLOW,
        "Source offsets that the newest backfill has still to copy.",
        _of_leases(lambda lease: lease.left),
    ),
    MetricSpec(
        "mm2py_backfill_partitions",
        ("flow", "state"),
        "Source partitions of the newest backfill by state.",
        _counts(
            lambda it: it.backfills,
            lambda it: it.flow,
            lambda it: Counter(lease.state.value for lease in it.leases),
            LEASE_STATES,
        ),
    ),
    MetricSpec(
        "mm2py_connector_state",
        ("flow", "connector", "state"),
        "1 for the state of a connector of this worker, else 0.",
        _one_hot(
            _works(tasks=False),
            lambda it: (it.flow, it.connector),
            lambda it: it.state,
            WORK_STATES,
        ),
    ),
    MetricSpec(
        "mm2py_task_state",
        ("flow", "connector", "task", "state"),
        "1 for the state of a task of this worker, else 0.",
        _one_hot(
            _works(tasks=True),
            lambda it: (it.flow, it.connector, _number(it)),
            lambda it: it.state,
            WORK_STATES,
        ),
    ),
    MetricSpec(
        "mm2py_groups",
        ("flow", "kind", "state"),
        "Groups with a checkpoint by whether their offsets are on the target.",
        _groups,
    ),
    MetricSpec(
        "mm2py_rebalances_total",
        _FLOW,
        "Rounds of the flow's group that this worker completed.",
        _of_life(lambda life: life.rebalances),
    ),
    MetricSpec(
        "mm2py_memberships_lost_total",
        _FLOW,
        "Times that this worker lost its membership in the flow's group.",
        _of_life(lambda life: life.memberships_lost),
    ),
    MetricSpec(
        "mm2py_restarts_total",
        ("flow", "what"),
        "Flows, connectors and tasks that this worker started again.",
        _counts(lambda it: it.lives, lambda it: it.flow, lambda it: it.counts.restarts, RESTARTED),
    ),
    MetricSpec(
        "mm2py_broker_errors_total",
        ("cluster", "address", "error"),
        "Times that a broker was unreachable, refused the login, or was lost with requests under "
        "way.",
        lambda reading: ((tuple(error), it) for error, it in reading.broker_errors.items()),
    ),
    MetricSpec(
        "mm2py_certificate_expiry_timestamp_seconds",
        ("owner", "cluster", "address"),
        "Until when a certificate is valid, since the epoch.",
        lambda reading: ((tuple(shown), it) for shown, it in reading.certificates.items()),
    ),
    _of_process(
        "process_cpu_seconds_total",
        "CPU time of the worker's process, without its children.",
        lambda it: it.cpu_s,
    ),
    _of_process(
        "process_resident_memory_bytes",
        "Resident memory of the worker's process.",
        lambda it: it.resident_bytes,
    ),
    _of_process(
        "process_virtual_memory_bytes",
        "Virtual memory of the worker's process.",
        lambda it: it.virtual_bytes,
    ),
    _of_process(
        "process_start_time_seconds",
        "Start of the worker's process, since the epoch.",
        lambda it: it.started_s,
    ),
    _of_process(
        "process_open_fds",
        "Open file descriptors of the worker's process.",
        lambda it: it.open_files,
    ),
    _of_process(
        "process_max_fds",
        "File descriptors that the worker's process may open.",
        lambda it: it.most_files,
    ),
    _of_process(
        "mm2py_child_processes",
        "Processes below the worker: task hosts and drivers of jobs.",
        lambda it: it.children,
    ),
    _of_process(
        "mm2py_child_processes_cpu_seconds_total",
        "CPU time of the processes below the worker, ended ones included.",
        lambda it: it.children_cpu_s,
    ),
    _of_process(
        "mm2py_child_processes_resident_memory_bytes",
        "Resident memory of the processes below the worker.",
        lambda it: it.children_resident_bytes,
    ),
)


# -- names of MirrorMaker 2 dashboards -------------------------------------------------------------


def _rate(per_s: float) -> float | None:
    return per_s if per_s >= 0 else None


def _mirror(
    prefix: str, labels: tuple[str, ...], values_of: _Labels[Series]
) -> tuple[MetricSpec, ...]:
    """Return Java's metrics of a copied partition."""
    values: Sequence[tuple[str, str, _Value]] = (
        ("record_count", "Records that the target acknowledged.", lambda part: part.records),
        (
            "record_rate",
            "Records per second, mean of the last seconds.",
            lambda part: _rate(part.records_per_s),
        ),
        ("byte_count", "Bytes that the target acknowledged.", lambda part: part.size_bytes),
        (
            "byte_rate",
            "Bytes per second, mean of the last seconds.",
            lambda part: _rate(part.bytes_per_s),
        ),
        *(
            (name + end, meaning + suffix, _age(ages, number))
            for name, meaning, ages in _AGES
            for end, suffix, number in _OF_WINDOW
        ),
    )

    def of_copies(value: _Value) -> _Samples:
        return _one(lambda it: it.copies, values_of, lambda it: value(it.part))

    return tuple(
        MetricSpec(f"{prefix}_{name}", labels, meaning, of_copies(value))
        for name, meaning, value in values
    )


_AGES: Final[Sequence[tuple[str, str, Callable[[PartitionSnapshot], Ages | None]]]] = (
    ("record_age_ms", "Age of the newest record of what was read", lambda part: part.age),
    (
        "replication_latency_ms",
        "Age of the newest record of what the target acknowledged",
        lambda part: part.latency,
    ),
)
_OF_WINDOW: Final[Sequence[tuple[str, str, Callable[[Ages], float | None]]]] = (
    ("", " last.", lambda ages: ages.last),
    ("_min", ", least of a minute.", lambda ages: ages.least),
    ("_max", ", greatest of a minute.", lambda ages: ages.greatest),
    ("_avg", ", mean of a minute.", lambda ages: ages.mean),
)


def _age(
    of: Callable[[PartitionSnapshot], Ages | None], number: Callable[[Ages], float | None]
) -> _Value:
    def value(part: PartitionSnapshot) -> float | None:
        ages = of(part)
        return None if ages is None else number(ages)

    return value


def _checkpoints(prefix: str, more: tuple[str, ...] = ()) -> tuple[MetricSpec, ...]:
    """Return Java's ``MirrorCheckpointMetrics``; ``more`` labels repeat the target."""

    def latency(number: Callable[[Ages], float | None]) -> _Samples:
        return _one(
            lambda it: it.checkpoints.items(),
            lambda it: (*it[0].labels, *[jmx_value(it[0].flow.target)] * len(more)),
            lambda it: number(it[1]),
        )

    return tuple(
        MetricSpec(
            f"{prefix}_checkpoint_latency_ms{end}",
            (*CHECKPOINT_LABELS, *more),
            "From the poll of a checkpoint until the target acknowledged it" + of,
            latency(number),
        )
        for end, of, number in _OF_WINDOW
    )


def _of_consumer(series: Series) -> tuple[str, ...] | None:
    part = series.part
    if not part.task:
        return None
    client = jmx_value(f"{series.pair}|{part.task}|replication-consumer")
    return client, part.source.topic, number_of(part.source)


def _task_count(state: State | None) -> _Samples:
    def samples(reading: WorkerReading) -> Samples:
        counts: Counter[str] = Counter()
        for work in reading.works:
            if work.task is not None:
                # Zeros are shown: an alert compares with them.
                counts[work.connector] += state is None or work.state == state.value
        for connector, count in counts.items():
            yield (jmx_value(connector),), count

    return samples


_TASK_COUNTS: Final[Mapping[str, State | None]] = {
    "total": None,
    "running": State.RUNNING,
    "paused": State.PAUSED,
    "failed": State.FAILED,
    "unassigned": State.UNASSIGNED,
    "destroyed": State.DESTROYED,
    "restarting": State.RESTARTING,
}
"""Java's ``connect-worker-metrics`` of a connector (KIP-475)."""
_WORKER: Final = (
    MetricSpec(
        "kafka_connect_worker_connector_count",
        (),
        "Connectors of this worker.",
        lambda reading: iter([((), float(sum(it.task is None for it in reading.works)))]),
    ),
    MetricSpec(
        "kafka_connect_worker_task_count",
        (),
        "Tasks of this worker.",
        lambda reading: iter([((), float(sum(it.task is not None for it in reading.works)))]),
    ),
    MetricSpec(
        "kafka_connect_connector_status",
        ("connector", "task", "status"),
        "1 for the status of a task of this worker.",
        _one(
            _works(tasks=True),
            lambda it: (jmx_value(it.connector), _number(it), it.state.lower()),
            lambda _: 1,
        ),
    ),
    *(
        MetricSpec(
            f"kafka_connect_worker_connector_{word}_task_count",
            ("connector",),
            f"Tasks of a connector on this worker: {word}.",
            _task_count(state),
        )
        for word, state in _TASK_COUNTS.items()
    ),
)
_COPY: Final = ("source", "target", "topic", "partition")
_CONSUMED: Final = ("clientid", "topic", "partition")

COMPAT_METRICS: Final[Mapping[Compat, tuple[MetricSpec, ...]]] = {
    Compat.STRIMZI: (
        *_mirror("kafka_connect_mirror_mirrorsourceconnector", _COPY, lambda it: it.copy),
        *_checkpoints("kafka_connect_mirror_mirrorcheckpointconnector"),
        MetricSpec(
            "kafka_consumer_fetch_manager_records_lag",
            _CONSUMED,
            "Records between the position and the end of the source partition.",
            _one(lambda it: it.partitions, _of_consumer, lambda it: _lag_records(it.part)),
        ),
        *_WORKER,
    ),
    Compat.REDPANDA: (
        *_mirror(
            "kafka_connect_mirror_source_connector", (*_COPY, "destination"), lambda it: it.moved
        ),
        *_checkpoints("kafka_connect_mirror_checkpoint_connector", ("destination",)),
        *_WORKER,
    ),
}


def families(
    reading: WorkerReading, compat: Collection[Compat]
) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
    """Return one scrape, metric by metric: ours, and those of ``compat``, with samples or not."""
    metrics = [
        *OWN_METRICS,
        *(it for each in Compat if each in compat for it in COMPAT_METRICS[each]),
    ]
    for metric in {it.name: it for it in metrics}.values():
        yield metric.family(reading)
