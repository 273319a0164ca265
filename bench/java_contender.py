"""Java MirrorMaker 2 in the bench: one JVM for the whole run, warmed up before each measured topic.

Flow: ``warm_up`` (rounds until the CPU per record settles) -> ``wait_for_a_refresh`` -> the caller fills a topic
-> ``copy``. Dedicated mode cannot be told about a topic, it looks for new ones every ``refresh_s``: a topic
created right after such a look is complete before the next one, so the copy is a pure catch-up.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.java_mm2 import start_java
from bench.measure import CopyCost, CopyFailedError, ProcessTree, measure_copy
from bench.topics import Topics
from bench.workloads import Workload, fill

SOURCE_ALIAS: Final = "J"
TARGET_ALIAS: Final = "B"
START_DEADLINE_S: Final = 120.0
COPY_DEADLINE_S: Final = 180.0
ROUNDS: Final = range(4, 12)  # of warming up: at least, at most
QUICK_ROUNDS: Final = range(3, 6)
_POLL_S: Final = 0.05
_SETTLED: Final = 0.05  # two rounds in a row within 5 % of the one before


@final
class JavaContender:
    """The Java mirror ``J->B``; a context manager that stops it."""

    def __init__(self, clusters: Clusters, folder: Path, *, quick: bool, tls: bool = False) -> None:
        source, target = clusters.source, clusters.target
        self._source = source
        self._family = "tls-bench" if tls else "bench"
        self._refresh_s = 12 if quick else 45  # longer than the slowest fill
        self._rounds = QUICK_ROUNDS if quick else ROUNDS
        self._at_source = Topics(source.bootstrap_servers)
        self._at_target = Topics(target.bootstrap_servers)
        self._probes = 0
        file = folder / f"java-{self._family}.properties"
        write_flow_file(
            file,
            source=(SOURCE_ALIAS, clusters.source_endpoint(tls=tls)),
            target=(TARGET_ALIAS, clusters.target_endpoint(tls=tls)),
            topics=rf"{self._family}\..*",
            refresh_s=self._refresh_s,
        )
        self._process = start_java(file, file.with_suffix(".log"), clusters=[TARGET_ALIAS])
        self._tree = ProcessTree(self._process.pid)

    def warm_up(self, workload: Workload) -> list[float]:
        """Copy rounds of the workload's records until the CPU per record settles; return it per round."""
        topic = f"{self._family}.warm-up-{workload.name}"
        self._at_source.create(topic, workload.partitions)
        counted = self._counter(topic, workload)
        per_round: list[float] = []
        done = calm = 0
        while len(per_round) < self._rounds.stop and (
            calm < 2 or len(per_round) < self._rounds.start
        ):
            cpu_s = self._tree.cpu_s()
            fill(self._source.bootstrap_servers, topic, workload, workload.warm_up_records)
            done += workload.warm_up_records
            _wait(lambda: counted() >= done, COPY_DEADLINE_S, f"{topic} on the target")  # noqa: B023 - called at once
            per_round.append((self._tree.cpu_s() - cpu_s) * 1e6 / workload.warm_up_records)
            if len(per_round) > 1:
                change = abs(per_round[-1] / per_round[-2] - 1)
                calm = calm + 1 if change <= _SETTLED else 0
            self._at_source.empty(topic, workload.partitions)
            self._at_target.empty(f"{SOURCE_ALIAS}.{topic}", workload.partitions)
        return per_round

    def wait_for_a_refresh(self) -> None:
        """Return right after the mirror has looked for new topics."""
        self._probes += 1
        topic = f"{self._family}.probe-{self._probes}"
        self._at_source.create(topic, 1)
        found = self._process.counting(
            lambda: int(self._at_target.exists(f"{SOURCE_ALIAS}.{topic}"))
        )
        deadline_s = START_DEADLINE_S + self._refresh_s
        _wait(lambda: found() == 1, deadline_s, f"{topic} on the target")

    def copy(self, topic: str, workload: Workload, records: int) -> CopyCost:
        """Measure the copy of a topic that was filled since ``wait_for_a_refresh``."""
        cost = measure_copy(
            self._tree, self._counter(topic, workload), records, deadline_s=COPY_DEADLINE_S
        )
        self._at_target.empty(f"{SOURCE_ALIAS}.{topic}", workload.partitions)
        return cost

    def _counter(self, topic: str, workload: Workload) -> Callable[[], int]:
        name = f"{SOURCE_ALIAS}.{topic}"
        return self._process.counting(lambda: self._at_target.count(name, workload.partitions))

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.__exit__(kind, error, traceback)


def _wait(is_true: Callable[[], bool], deadline_s: float, what: str) -> None:
    give_up_at = time.monotonic() + deadline_s
    while not is_true():
        if time.monotonic() > give_up_at:
            raise CopyFailedError(f"not there after {deadline_s:.0f} s: {what}")
        time.sleep(_POLL_S)
