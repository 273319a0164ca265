"""``python -m bench.sizing``: what a worker, a partition, a round and a megabyte cost, fitted to runs and checked with others.

Flow: regions -> topics -> for each number of partitions a worker: idle, then at steady rates -> CPU and memory -> a fit -> the runs that were
not fitted beside what it says -> bench/results/sizing.md. It fails where a cost grows faster than the partitions. docs/sizing.md and
``mm2py_jobs.doctor.load`` have the figures of one quiet run.
"""

import argparse
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from rich.console import Console

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.latency import RECORD_BYTES, TICK_S, produce_steadily
from bench.measure import CopyFailedError, ProcessTree
from bench.mirror_process import MirrorProcess
from bench.mm2py_worker import public_url, start_mm2py
from bench.topics import Topics
from bench.workspace import RESULTS, bench_folder, room_and_load
from mm2py_jobs.doctor.load import MANY, MB, Costs, Load

TARGET: Final = "B"
START_S: Final = 600.0
SETTLE_S: Final = 30.0
WARM_UP_S: Final = 4.0
MOST_GROWTH: Final = 1.5
"""So many times what fewer partitions let expect is no straight line any more."""

HOT: Final = ("hot", 8)
WIDE: Final = ("wide", 300)
COLD: Final = {"a": 200, "b": 600, "c": 1_200}
"""Topics of ``COLD_PARTITIONS`` that nobody writes to."""
COLD_PARTITIONS: Final = 5


class Run(NamedTuple):
    """A worker of the ``cold`` topics besides the two that are written to, and the rates: topic, MB/s."""

    cold: str
    rates: Sequence[tuple[tuple[str, int], float]]
    is_fitted: bool


RUNS: Final = (
    Run("", [(HOT, 0.2), (HOT, 2), (HOT, 20), (HOT, 50), (WIDE, 2)], is_fitted=True),
    Run("a", [(HOT, 2)], is_fitted=True),
    Run("ab", [(HOT, 10), (WIDE, 5)], is_fitted=False),
    Run("abc", [(HOT, 2)], is_fitted=True),
)


class Point(NamedTuple):
    """What was measured: shares of a core, and bytes."""

    load: Load
    cores: float
    memory_bytes: float
    is_fitted: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, fit, write; return the exit code, 1 where something grows faster than a straight line."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizing", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    if room_and_load(console, 8 << 30) is None:
        return 1
    points: list[Point] = []
    with bench_folder(console) as folder, Clusters(folder) as clusters:
        _create(clusters)
        for run in RUNS:
            points += _measure(run, clusters, folder, options.seconds)
            console.print(f"{points[-1].load.partitions} partitions are measured")
    fit = fitted([it for it in points if it.is_fitted])
    text = _text(points, fit)
    sys.stdout.write(text)
    (RESULTS / "sizing.md").write_text(text, encoding="utf-8")
    steep = steeper(points)
    for line in steep:
        console.print(f"bench: {line}", style="red", markup=False)
    return 1 if steep else 0


def fitted(points: Sequence[Point]) -> Costs:
    """Return the least squares: memory and idle workers by partitions, then what records add."""
    idle = [it for it in points if not it.load.records_per_s]
    partitions = np.array([[1.0, it.load.partitions] for it in idle])
    worker, a_partition = _solved(partitions, [it.cores for it in idle])
    worker_bytes, partition_bytes = _solved(partitions, [it.memory_bytes for it in idle])
    busy = [it for it in points if 0 < it.load.written <= MANY]
    terms = np.array([[it.load.rounds_per_s, it.load.bytes_per_s / MB] for it in busy])
    rest = [it.cores - worker - a_partition * it.load.partitions for it in busy]
    a_round, a_megabyte = _solved(terms, rest)
    return Costs(worker, a_partition, a_round, a_megabyte, worker_bytes, partition_bytes)


def steeper(points: Sequence[Point]) -> list[str]:
    """Return what the most partitions cost more than ``MOST_GROWTH`` times of what fewer let expect, without records."""
    *fewer, last = sorted(
        (it for it in points if not it.load.records_per_s), key=lambda it: it.load.partitions
    )
    counts = np.array([[1.0, it.load.partitions] for it in fewer])
    found: list[str] = []
    for what, of_fewer, of_last in (
        ("CPU", [it.cores for it in fewer], last.cores),
        ("memory", [it.memory_bytes for it in fewer], last.memory_bytes),
    ):
        at_all, of_one = _solved(counts, of_fewer)
        expected = max(at_all + of_one * last.load.partitions, *of_fewer)
        if of_last > MOST_GROWTH * expected:
            found.append(f"{what} of {last.load.partitions} partitions grows faster than they do")
    return found


def _solved(
    terms: "np.ndarray[tuple[int, int], np.dtype[np.float64]]", values: Sequence[float]
) -> list[float]:
    # Relative errors count: a worker that does little is as interesting as one that does much.
    weights = 1 / np.array(values)
    solution = np.linalg.lstsq(terms * weights[:, None], np.ones(len(values)), rcond=None)[0]
    return [float(it) for it in solution]


def _create(clusters: Clusters) -> None:
    topics = Topics(clusters.source.bootstrap_servers)
    for name, partitions in (HOT, WIDE):
        topics.create(name, partitions)
    for group, count in COLD.items():
        for begin in range(0, count, 100):
            names = [f"cold.{group}.{number:04d}" for number in range(begin, begin + 100)]
            topics.create_all(names, COLD_PARTITIONS)


def _measure(run: Run, clusters: Clusters, folder: Path, seconds: float) -> list[Point]:
    alias = f"A{run.cold}"
    file = folder / f"{alias}.properties"
    write_flow_file(
        file,
        source=(alias, clusters.source_endpoint()),
        target=(TARGET, clusters.target_endpoint()),
        topics="|".join(("hot", "wide", *(rf"cold\.{it}\..*" for it in run.cold))),
    )
    with file.open("a", encoding="latin-1") as more:
        more.write("listeners = http://127.0.0.1:0\n")
    partitions = HOT[1] + WIDE[1] + sum(COLD[it] * COLD_PARTITIONS for it in run.cold)
    points: list[Point] = []
    with start_mm2py(file, file.with_suffix(".log"), clusters=[TARGET]) as worker:
        _wait(worker, alias, partitions)
        time.sleep(SETTLE_S)
        tree = ProcessTree(worker.pid)
        cores = _cores(tree, seconds)
        idle = Load(partitions=partitions)
        points.append(Point(idle, cores, tree.memory()[1], run.is_fitted))
        for (topic, written), rate in run.rates:
            load = Load(
                partitions=partitions,
                written=written,
                records_per_s=rate * MB / RECORD_BYTES,
                bytes_per_s=rate * MB,
            )
            cores = _under(load, (clusters.source.bootstrap_servers, topic), tree, seconds)
            points.append(Point(load, cores, tree.memory()[1], run.is_fitted))
    return points


def _under(load: Load, source: tuple[str, str], tree: ProcessTree, seconds: float) -> float:
    """Return the share of a core while the load comes."""
    per_tick = round(load.records_per_s * TICK_S)
    total = per_tick * round((WARM_UP_S + seconds + 1) / TICK_S)
    writes = (source, load.written, time.monotonic_ns(), per_tick, total)
    writer = threading.Thread(target=produce_steadily, args=writes, daemon=True)
    writer.start()
    time.sleep(WARM_UP_S)
    cores = _cores(tree, seconds)
    writer.join()
    return cores


def _cores(tree: ProcessTree, seconds: float) -> float:
    before_s, began = tree.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return (tree.cpu_s() - before_s) / (time.monotonic() - began)


def _wait(worker: MirrorProcess, alias: str, partitions: int) -> None:
    """Wait until the flow copies all partitions and nothing lags."""
    url, give_up = public_url(worker), time.monotonic() + START_S
    shown: dict[str, object] = {}
    while time.monotonic() < give_up:
        worker.check_running()
        with urllib.request.urlopen(f"{url}flows/{alias}-%3E{TARGET}", timeout=60) as answer:  # noqa: S310 - http to ourselves
            shown = json.loads(answer.read())
        # Those of the heartbeats' topic come on top.
        if int(str(shown["partitions"])) >= partitions and shown["lag_records"] == 0:
            return
        time.sleep(1)
    raise CopyFailedError(f"not all of {partitions} partitions are copied: {shown}")


def _text(points: Sequence[Point], fit: Costs) -> str:
    lines = [
        "# What a load costs a worker",
        "",
        "| partitions | written to | MB/s of 1 KB records | of a core | fitted | memory | fitted |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for it in points:
        least, most = fit.cores(it.load), fit.most_cores(it.load)
        said = f"{least:.1%}" if least == most else f"{least:.1%} to {most:.1%}"
        note = "" if it.is_fitted and least == most else ", not fitted"
        lines.append(
            f"| {it.load.partitions:,} | {it.load.written} | {it.load.bytes_per_s / MB:g} | {it.cores:.1%} | {said}{note}"
            f" | {it.memory_bytes / MB:.0f} MB | {fit.memory_bytes(it.load) / MB:.0f} MB |"
        )
    lines += [
        "",
        f"A worker {fit.worker:.2%} of a core, 1,000 partitions {fit.partition * 1000:.2%}, a round {fit.a_round * 1e6:.0f} us,"
        f" a megabyte {fit.a_megabyte * 1e6:.0f} us.",
        f"A worker {fit.worker_bytes / MB:.0f} MB, a partition {fit.partition_bytes / 1000:.1f} KB.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
