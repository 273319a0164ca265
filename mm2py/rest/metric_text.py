"""One metric of ``GET /metrics`` in the text format of Prometheus, version 0.0.4.

Flow: ``MetricSpec`` (few samples, labels as values) or ``SeriesMetric`` (a sample of each ``Series``, whose labels are text already) ->
``text`` -> lines. Ten thousand partitions make half a million samples, so no object is made for one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mm2py.observability.metrics import PartitionSnapshot
from mm2py.rest.worker_reading import Series, WorkerReading, labels_text

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterator[tuple[tuple[str, ...], float]]
"""Label values, in the order of the metric's labels, and the value."""
Value = Callable[[PartitionSnapshot], float | None]
"""A number of a partition, None while it is not known."""


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric; a name that ends in ``_total`` is a counter, any other a gauge."""

    name: str
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[WorkerReading], Samples]

    def text(self, reading: WorkerReading) -> str:
        """Return its lines, also where it has no sample."""
        lines = [_head(self.name, self.meaning)]
        for values, value in self.samples(reading):
            labels = labels_text(self.labels, values)
            lines.append(
                f"{self.name}{{{labels}}} {value}\n" if labels else f"{self.name} {value}\n"
            )
        return "".join(lines)


@dataclass(frozen=True, slots=True)
class SeriesMetric:
    """One metric with a sample of each partition; ``of`` returns the text of its labels, empty where it has none."""

    name: str
    labels: tuple[str, ...]
    meaning: str
    of: Callable[[Series], str]
    value: Value
    is_of_copies: bool = False
    """Whether its series are those of copies: source partitions that are copied into one are one."""

    def text(self, reading: WorkerReading) -> str:
        """Return its lines, also where it has no sample."""
        name, of, value = self.name, self.of, self.value
        lines = [_head(name, self.meaning)]
        for series in reading.copies if self.is_of_copies else reading.partitions:
            known, labels = value(series.part), of(series)
            if known is not None and labels:
                lines.append(f"{name}{{{labels}}} {known}\n")
        return "".join(lines)


def _head(name: str, meaning: str) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"
