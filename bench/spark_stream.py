"""``python -m bench.spark_stream``: ``mm2py stream`` beside the worker runtime, on the same topics in one run.

Flow: two one-node regions -> full topics, copied by a worker, then by a stream: rate and CPU -> a steady topic, whose flow moves from a worker
to a stream and back while the longest time without a record of a partition is taken -> Markdown in bench/results. Removes its regions.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import CopyCost, CopyFailedError, ProcessTree, measure_copy
from bench.mirror_process import MirrorProcess
from bench.mm2py_worker import change_flow, public_url, start_mm2py
from bench.stream import Arrivals, Stream
from bench.topics import Topics
from bench.workloads import WORKLOADS, Workload, fill
from tests.kit.kafka.reaper import REAPER

MASTER: Final = "local[2]"
SIZES: Final = {"1k": (1_000_000, 150_000), "100b": (6_000_000, 900_000)}
"""Records per workload, and in the quick form."""

STEADY: Final = "steady"
PARTITIONS: Final = 4
STEADY_S: Final = 20.0
TERM_S: Final = 8
TERMS: Final = 4
DEADLINE_S: Final = 300.0
TERM_ENDED: Final = "term ended"
RESULT: Final = Path(__file__).parent / "results" / "spark-stream.md"
_COLUMNS: Final = ("workload", "engine", "records/s", "CPU us/record", "PSS MiB")


@dataclass(frozen=True, slots=True)
class Moves:
    """Longest time without a record of one of the partitions, and CPU seconds per second at that rate."""

    worker_cpu: float
    stream_cpu: float
    worker_gap_s: float
    to_stream_s: float
    terms_s: float
    to_worker_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_stream", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a seventh of the records")
    parser.add_argument("--workloads", default="100b,1k", help="of 100b and 1k, or none")
    parser.add_argument("--rate", type=int, default=1_000, help="records per second while it moves")
    options = parser.parse_args(arguments)
    names = [it for it in options.workloads.split(",") if it != "none"]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="mm2py-stream-") as name, ExitStack() as stack:
        folder = Path(name)
        REAPER.watch_folder(folder)
        stack.callback(REAPER.forget_folder, folder)
        clusters = stack.enter_context(Clusters(folder))
        rows = [
            row
            for it in names
            for row in _throughput(folder, clusters, WORKLOADS[it], SIZES[it][bool(options.quick)])
        ]
        moves = _moves(folder, clusters, options.rate)
    text = _text(rows, moves, options.rate, load, quick=options.quick)
    sys.stdout.write(text)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(text, encoding="utf-8")
    return 0


# ---- a full topic


def _throughput(
    folder: Path, clusters: Clusters, workload: Workload, records: int
) -> list[tuple[str, ...]]:
    source, target = (Topics(it.bootstrap_servers) for it in (clusters.source, clusters.target))
    source.create(workload.topic, workload.partitions)
    fill(clusters.source.bootstrap_servers, workload.topic, workload, records)
    rows: list[tuple[str, ...]] = []
    for engine in ("worker", "spark"):
        alias = f"{engine}{workload.name}"
        copy = f"{alias}.{workload.topic}"
        file = _flow(folder, clusters, alias, workload.topic, engine)
        start = _stream if engine == "spark" else start_mm2py
        with start(file, folder / f"{alias}.log") as process:
            count = process.counting(partial(target.count, copy, workload.partitions))
            cost = measure_copy(ProcessTree(process.pid), count, records, deadline_s=DEADLINE_S)
        rows.append((workload.title, engine, *_cells(cost)))
        sys.stdout.write(" ".join(rows[-1]) + "\n")
        sys.stdout.flush()
        target.empty(copy, workload.partitions)
    source.empty(workload.topic, workload.partitions)
    return rows


def _cells(cost: CopyCost) -> tuple[str, ...]:
    return (
        f"{cost.records_per_s:,.0f}",
        f"{cost.cpu_us_per_record:.2f}",
        f"{cost.pss_bytes >> 20:,}",
    )


# ---- a flow that moves


def _moves(folder: Path, clusters: Clusters, rate: int) -> Moves:
    alias = "move"
    copy = f"{alias}.{STEADY}"
    Topics(clusters.source.bootstrap_servers).create(STEADY, PARTITIONS)
    # It exists before there is a mirror, so that its end can be read from.
    Topics(clusters.target.bootstrap_servers).create(copy, PARTITIONS)
    file = _flow(folder, clusters, alias, STEADY, "worker")
    with ExitStack() as stack:
        worker = stack.enter_context(start_mm2py(file, folder / "move-worker.log"))
        url = public_url(worker)
        stack.enter_context(Stream(clusters.source.bootstrap_servers, STEADY, PARTITIONS, rate))
        arrivals = stack.enter_context(
            Arrivals(clusters.target.bootstrap_servers, copy, PARTITIONS)
        )
        arrivals.wait_for_all(DEADLINE_S)
        tree = ProcessTree(worker.pid)
        worker_gap_s, worker_cpu = _steady(arrivals, tree)
        change_flow(url, alias, "B", {"flow.engine": "spark"})
        stream = stack.enter_context(
            _stream(file, folder / "move-stream.log", "--term", str(TERM_S))
        )
        _wait_terms(stream, 1)
        arrivals.wait_for_all(DEADLINE_S)
        to_stream_s = arrivals.take_longest_gap_s()
        _wait_terms(stream, 1 + TERMS)
        terms_s = arrivals.take_longest_gap_s()
        _, stream_cpu = _steady(arrivals, ProcessTree(stream.pid))
        arrivals.take_longest_gap_s()
        change_flow(url, alias, "B", {"flow.engine": "worker"})
        stream.wait(DEADLINE_S)
        arrivals.wait_for_all(DEADLINE_S)
        to_worker_s = arrivals.take_longest_gap_s()
    return Moves(worker_cpu, stream_cpu, worker_gap_s, to_stream_s, terms_s, to_worker_s)


def _steady(arrivals: Arrivals, tree: ProcessTree) -> tuple[float, float]:
    """Return the longest gap and CPU seconds per second of a while."""
    arrivals.take_longest_gap_s()
    cpu_s, began = tree.cpu_s(), time.monotonic()
    time.sleep(STEADY_S)
    cpu = (tree.cpu_s() - cpu_s) / (time.monotonic() - began)
    return arrivals.take_longest_gap_s(), cpu


def _wait_terms(stream: MirrorProcess, terms: int) -> None:
    until = time.monotonic() + DEADLINE_S
    while stream.log().count(TERM_ENDED) < terms:
        stream.check_running()
        if time.monotonic() > until:
            raise CopyFailedError(f"not {terms} terms within {DEADLINE_S:.0f} s:\n{stream.log()}")
        time.sleep(0.05)


def _flow(folder: Path, clusters: Clusters, alias: str, topic: str, engine: str) -> Path:
    file = folder / f"{alias}.properties"
    write_flow_file(
        file,
        source=(alias, clusters.source_endpoint()),
        target=("B", clusters.target_endpoint()),
        topics=topic,
    )
    with file.open("a", encoding="latin-1") as lines:
        lines.write(f"{alias}->B.flow.engine = {engine}\nemit.heartbeats.enabled = false\n")
    return file


def _stream(file: Path, log_file: Path, *options: str) -> MirrorProcess:
    command = [str(Path(sys.executable).parent / "mm2py"), "stream", str(file)]
    flow = f"{file.stem}->B"
    return MirrorProcess(
        "stream", [*command, "--flow", flow, "--master", MASTER, *options], log_file
    )


# ---- the result


def _text(
    rows: Sequence[tuple[str, ...]], moves: Moves, rate: int, load: float, *, quick: bool
) -> str:
    lines = ["# A stream on Spark beside the worker runtime", ""]
    if rows:
        lines += ["| " + " | ".join(_COLUMNS) + " |", "|---|---|" + "---:|" * (len(_COLUMNS) - 2)]
        lines += ["| " + " | ".join(row) + " |" for row in rows] + [""]
    lines += [
        f"| at {rate:,} records/s, {PARTITIONS} partitions | seconds |",
        "|---|---:|",
        f"| CPU per second, worker | {moves.worker_cpu:.2f} |",
        f"| CPU per second, stream | {moves.stream_cpu:.2f} |",
        f"| longest time without a record of a partition, worker | {moves.worker_gap_s:.1f} |",
        f"| the same while the flow moves to a stream | {moves.to_stream_s:.1f} |",
        f"| the same over {TERMS} terms of {TERM_S} s | {moves.terms_s:.1f} |",
        f"| the same while the flow moves back | {moves.to_worker_s:.1f} |",
        "",
        f"One run on {os.cpu_count()} cores, brokers included{', quick sizes' if quick else ''}; load average before the run {load:.1f}."
        f" Spark is {MASTER}. Rates are those behind the first fifth of the records; CPU is user and system time of the whole process tree"
        " (JVM, Python workers) without the brokers.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
