"""One metric of ``GET /metrics`` in the text format of Prometheus, version 0.0.4.

Flow: ``MetricSpec`` (few samples, labels as values) or ``SeriesMetric`` (a sample of each partition, labels as text) -> ``text`` -> lines.
Ten thousand partitions make a third of a million samples, so no object is made for one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mm2py.rest.worker_reading import WorkerReading, labels_text

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterator[tuple[tuple[str, ...], float]]
"""Label values, in the order of the metric's labels, and the value."""
SeriesSamples = Iterator[tuple[str, float]]
"""Labels as they are between the braces, and the value."""


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
    """One metric with many samples, whose labels are text already."""

    name: str
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[WorkerReading], SeriesSamples]

    def text(self, reading: WorkerReading) -> str:
        """Return its lines, also where it has no sample."""
        name, lines = self.name, [_head(self.name, self.meaning)]
        lines += [f"{name}{{{labels}}} {value}\n" for labels, value in self.samples(reading)]
        return "".join(lines)


def _head(name: str, meaning: str) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"
