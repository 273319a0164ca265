"""``python -m bench.sink``: CPU per record of what copies record by record beside Java's MirrorSource and a plain confluent-kafka loop, in one run.

Flow: two one-node regions -> Java warmed up -> per workload Java, the loop, MirrorSink, mm2py's MirrorSource without and with transforms copy the
same topic from its start -> a table. All of them are measured by the rule of ``bench.measure``; MirrorSink has one task, as the loop is one process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.clusters import Clusters
from bench.java_contender import JavaContender
from bench.measure import CopyCost, ProcessTree, measure_copy
from bench.mm2py_contender import COPY_DEADLINE_S, Mm2pyContender
from bench.topics import Topics
from bench.workloads import WORKLOADS, Workload, fill

DEFAULT: Final = ("1k", "100b")
_SET: Final = "MM2PY_BENCH_SET"
_OURS: Final = {
    "MirrorSink": "copy.connector=sink",
    "MirrorSource": "",
    "MirrorSource, Filter that drops nothing": (
        "{flow}.transforms=t {flow}.transforms.t.type=Filter {flow}.transforms.t.predicate=p"
        " {flow}.predicates=p {flow}.predicates.p.type=RecordIsTombstone"
    ),
    "MirrorSource, InsertHeader": (
        "{flow}.transforms=t {flow}.transforms.t.type=InsertHeader {flow}.transforms.t.header=copied"
        " {flow}.transforms.t.value.literal=yes"
    ),
}
"""What of ours is measured, and by which properties."""
_console = Console()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the workloads asked for and print a table; return the exit code."""
    parser = argparse.ArgumentParser(prog="bench.sink")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--quick", action="store_true", help="fewer records, Java less warm")
    parser.add_argument("--no-java", action="store_true")
    options = parser.parse_args(arguments)
    chosen = options.workloads or DEFAULT
    if not set(chosen) <= WORKLOADS.keys():
        parser.error(f"workloads are {', '.join(WORKLOADS)}")
    table = Table("workload", "mirror", "us/record", "records/s", "MB of memory")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mm2py-bench-sink-")))
        clusters = stack.enter_context(Clusters(folder))
        java: JavaContender | None = None
        if not options.no_java:
            java = stack.enter_context(JavaContender(clusters, folder, quick=options.quick))
        ours = Mm2pyContender(clusters, folder)
        for name in chosen:
            costs = _measured(clusters, java, ours, WORKLOADS[name], quick=options.quick)
            for mirror, cost in costs.items():
                table.add_row(
                    name,
                    mirror,
                    f"{cost.cpu_us_per_record:.2f}",
                    f"{cost.records_per_s:,.0f}",
                    f"{cost.pss_bytes / 1e6:.0f}",
                )
    _console.print(table)
    return 0


def _measured(
    clusters: Clusters,
    java: JavaContender | None,
    ours: Mm2pyContender,
    workload: Workload,
    *,
    quick: bool,
) -> dict[str, CopyCost]:
    records = workload.quick_records if quick else workload.records
    topics = Topics(clusters.source.bootstrap_servers)
    costs: dict[str, CopyCost] = {}

    def filled() -> None:
        topics.create(workload.topic, workload.partitions)
        fill(clusters.source.bootstrap_servers, workload.topic, workload, records)

    if java is None:
        filled()
    else:
        java.warm_up(workload)
        java.wait_for_a_refresh()
        filled()
        costs["Java MirrorSource"] = java.copy(workload.topic, workload, records)
    costs["confluent-kafka loop"] = _loop(clusters, workload, records)
    for name, properties in _OURS.items():
        with _set(properties):
            costs[f"mm2py {name}"] = ours.copy(workload.topic, workload, records)
    topics.empty(workload.topic, workload.partitions)
    return costs


def _loop(clusters: Clusters, workload: Workload, records: int) -> CopyCost:
    target, copy = Topics(clusters.target.bootstrap_servers), f"loop.{workload.topic}"
    target.create(copy, workload.partitions)
    command = [
        sys.executable, "-m", "bench.plain_loop", clusters.source.bootstrap_servers,
        clusters.target.bootstrap_servers, workload.topic, copy, f"loop-{workload.name}",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        cost = measure_copy(
            ProcessTree(process.pid),
            lambda: target.count(copy, workload.partitions),
            records,
            deadline_s=COPY_DEADLINE_S,
        )
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait(60)
    target.empty(copy, workload.partitions)
    return cost


@contextmanager
def _set(added: str) -> Generator[None]:
    before = os.environ.get(_SET)
    os.environ[_SET] = f"{before or ''} {added}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SET]
        else:
            os.environ[_SET] = before


if __name__ == "__main__":
    sys.exit(main())
