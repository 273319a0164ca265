"""A mirror that runs: start to first record, memory after a copy, latency, a new topic, idle CPU.

Flow: ``measure_steady(tool, …)`` -> one process per start, the last one stays for the rest -> ``Steady``.
Everything with the tools' defaults; only Java's look for new topics is asked for each second, in a process of
its own, because its default is ten minutes.
"""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.java_mm2 import start_java
from bench.latency import BYTES_PER_S, OTHER_RATES, Latency, measure_latency
from bench.measure import CopyFailedError, ProcessTree
from bench.mirror_process import MirrorProcess
from bench.mm2py_worker import start_mm2py
from bench.topics import Topics
from bench.workloads import PARTITIONS, WORKLOADS, fill

MEASURES: Final = ("start", "memory", "latency", "rates", "new-topic", "idle")
DEADLINE_S: Final = 120.0
NEW_TOPICS: Final = 3
TARGET_ALIAS: Final = "B"
_POLL_S: Final = 0.02
_SETTLE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Tool:
    """One of the two mirrors."""

    name: str
    start: Callable[[Path, Path], MirrorProcess]
    starts: int
    new_topics_refresh_s: int | None = None  # None: its default, in the process that runs


JAVA: Final = Tool("java", lambda file, log: start_java(file, log, clusters=[TARGET_ALIAS]), 1, 1)
MM2PY: Final = Tool("mm2py", lambda file, log: start_mm2py(file, log, clusters=[TARGET_ALIAS]), 3)


@dataclass(slots=True)
class Steady:
    """What was measured; None or empty where it was not asked for."""

    starts_s: list[float] = field(default_factory=list[float])
    pss_bytes: int | None = None
    latency: Latency | None = None
    direct: Latency | None = None  # producer to consumer of the source, while the mirror copies
    latency_cpu_percent: float | None = None
    rates: dict[int, tuple[Latency, float]] = field(
        default_factory=dict[int, tuple[Latency, float]]
    )
    """By bytes per second: latency, and CPU in percent of a core."""
    new_topics_s: list[float] = field(default_factory=list[float])
    idle_cpu_percent: float | None = None


def measure_steady(
    tool: Tool, clusters: Clusters, folder: Path, measures: Collection[str], *, quick: bool
) -> Steady:
    """Measure one tool; ``measures`` are some of ``MEASURES``.

    Raises:
        CopyFailedError: Something did not arrive in time.
    """
    run = _SteadyRun(tool, clusters, folder, quick=quick)
    found = Steady()
    run.create_topics()
    starts = tool.starts if "start" in measures else 1
    for number in range(1, starts + 1):
        process, took_s = run.start(f"{number}", None)
        with process:
            if "start" in measures:
                found.starts_s.append(took_s)
            if number == starts:
                run.measure_running(process, measures, found)
    if "new-topic" in measures and not found.new_topics_s:
        process, _ = run.start("refresh", tool.new_topics_refresh_s)
        with process:
            found.new_topics_s = run.new_topics(process)
    run.remove_data()
    return found


@final
class _SteadyRun:
    def __init__(self, tool: Tool, clusters: Clusters, folder: Path, *, quick: bool) -> None:
        self._tool, self._clusters, self._folder, self._quick = tool, clusters, folder, quick
        self._family = f"steady-{tool.name}"
        self._first, self._stream = f"{self._family}.first", f"{self._family}.stream"
        self._servers = clusters.source.bootstrap_servers
        self._at_source = Topics(self._servers)
        self._at_target = Topics(clusters.target.bootstrap_servers)
        self._alias = ""

    def create_topics(self) -> None:
        self._at_source.create(self._first, 1)
        self._at_source.create(self._stream, PARTITIONS)
        self._at_source.append(self._first)

    def start(self, mark: str, refresh_s: int | None) -> tuple[MirrorProcess, float]:
        """Start under a new alias; return the process and the seconds to its first record."""
        self._alias = f"{self._tool.name}-{mark}"
        file = self._folder / f"{self._alias}.properties"
        write_flow_file(
            file,
            source=(self._alias, self._clusters.source_endpoint()),
            target=(TARGET_ALIAS, self._clusters.target_endpoint()),
            topics=rf"{self._family}\..*",
            refresh_s=refresh_s,
        )
        begun = time.monotonic()
        process = self._tool.start(file, file.with_suffix(".log"))
        try:
            self._wait_for(process, self._first, 1, 1)
        except BaseException:
            process.__exit__()
            raise
        return process, time.monotonic() - begun

    def measure_running(
        self, process: MirrorProcess, measures: Collection[str], found: Steady
    ) -> None:
        tree = ProcessTree(process.pid)
        if not {"memory", "latency", "rates", "idle"}.isdisjoint(measures):
            workload = WORKLOADS["1k"]
            records = workload.warm_up_records * (1 if self._quick else 4)
            fill(self._servers, self._stream, workload, records)
            self._wait_for(process, self._stream, PARTITIONS, records)
        if "memory" in measures:
            time.sleep(_SETTLE_S)  # buffers that the copy needed are given back soon behind it
            found.pss_bytes = tree.memory()[1]
        if "latency" in measures:
            found.latency, found.latency_cpu_percent = self._latency(tree)
            found.direct = self._direct()
        if "rates" in measures:
            found.rates = {rate: self._latency(tree, rate) for rate in OTHER_RATES}
        if "new-topic" in measures and self._tool.new_topics_refresh_s is None:
            found.new_topics_s = self.new_topics(process)
        if "idle" in measures:
            time.sleep(_SETTLE_S)
            span_s = 5.0 if self._quick else 15.0
            cpu_s, at = tree.cpu_s(), time.monotonic()
            time.sleep(span_s)
            found.idle_cpu_percent = (tree.cpu_s() - cpu_s) / (time.monotonic() - at) * 100
        process.check_running()

    def new_topics(self, process: MirrorProcess) -> list[float]:
        """Return the seconds from the creation of a topic to its first record, for a few in turn."""
        found: list[float] = []
        for number in range(1, NEW_TOPICS + 1):
            topic = f"{self._family}.new-{number}"
            begun = time.monotonic()
            self._at_source.create(topic, 1)
            self._at_source.append(topic)
            self._wait_for(process, topic, 1, 1)
            found.append(time.monotonic() - begun)
        return found

    def remove_data(self) -> None:
        self._at_source.empty(self._stream, PARTITIONS)
        for name in self._at_target.names():
            if name.endswith(f".{self._stream}"):
                self._at_target.empty(name, PARTITIONS)

    def _latency(self, tree: ProcessTree, bytes_per_s: int = BYTES_PER_S) -> tuple[Latency, float]:
        name = f"{self._alias}.{self._stream}"
        marks: list[tuple[float, float]] = []
        latency = measure_latency(
            (self._servers, self._stream),
            (self._clusters.target.bootstrap_servers, name),
            begin_at=self._at_target.end_offsets(name, PARTITIONS),
            warm_up_s=3.0 if self._quick else 8.0,
            measured_s=6.0 if self._quick else 20.0,
            on_measured=lambda: marks.append((tree.cpu_s(), time.monotonic())),
            bytes_per_s=bytes_per_s,
        )
        (cpu_from_s, begun), (cpu_to_s, ended) = marks
        return latency, (cpu_to_s - cpu_from_s) / (ended - begun) * 100

    def _direct(self) -> Latency:
        return measure_latency(
            (self._servers, self._stream),
            (self._servers, self._stream),
            begin_at=self._at_source.end_offsets(self._stream, PARTITIONS),
            warm_up_s=3.0,
            measured_s=6.0 if self._quick else 20.0,
            on_measured=lambda: None,
        )

    def _wait_for(self, process: MirrorProcess, topic: str, partitions: int, records: int) -> None:
        name = f"{self._alias}.{topic}"
        counted = process.counting(lambda: self._at_target.count(name, partitions))
        wait_until(lambda: counted() >= records, f"{name} with {records} records on the target")


def wait_until(is_true: Callable[[], bool], what: str, *, poll_s: float = _POLL_S) -> None:
    """Wait for a condition.

    Raises:
        CopyFailedError: It was not there in time.
    """
    give_up_at = time.monotonic() + DEADLINE_S
    while not is_true():
        if time.monotonic() > give_up_at:
            raise CopyFailedError(f"not there after {DEADLINE_S:.0f} s: {what}")
        time.sleep(poll_s)
