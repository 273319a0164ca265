"""``python -m bench.run``: two one-node regions, the same topics copied by Java MirrorMaker 2 and by mm2py.

Flow: regions -> Java started once -> per workload: warm Java up, fill the topic, Java copies it (measured),
mm2py copies it (measured) -> table, JSON and Markdown in bench/results. Removes its regions and data.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from rich.console import Console

from bench.java_contender import JavaContender
from bench.measure import CopyCost
from bench.mm2py_contender import Mm2pyContender
from bench.report import Outcome, show, write_files
from bench.topics import Topics
from bench.workloads import WORKLOADS, Workload, batch_shape, fill
from mm2py.embedded.region import Region, start_regions
from mm2py.errors import Mm2pyError

__all__ = ["main"]

MIN_FREE_BYTES: Final = 5 << 30
QUIET_LOAD: Final = 1.0
RESULTS: Final = Path(__file__).parent / "results"
# The data of a workload must be gone soon after it was deleted, not after the broker's five minutes.
_BROKER_PROPERTIES: Final = {
    "log.retention.check.interval.ms": "5000",
    "log.segment.delete.delay.ms": "1000",
}
_console = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workloads asked for; return the exit code."""
    options = _parser().parse_args(arguments)
    free_bytes = shutil.disk_usage(tempfile.gettempdir()).free
    if free_bytes < MIN_FREE_BYTES:
        _console.print(
            f"the bench needs 5 GiB in the temporary folder, {free_bytes >> 30} GiB are free; "
            "free some, or set TMPDIR to a larger disk"
        )
        return 1
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        _console.print(f"load average {load:.1f}: wait for a quiet machine to get clean figures")
    try:
        outcomes = _run(options)
    except (Mm2pyError, KafkaException, RuntimeError) as error:
        _console.print(f"bench: {error}", style="red", markup=False)
        return 1
    show(outcomes)
    name = options.name or ("quick" if options.quick else "latest")
    write_files(outcomes, RESULTS, name, load=load)
    _console.print(f"written: bench/results/{name}.md and .json")
    return 0


def _run(options: argparse.Namespace) -> list[Outcome]:
    source = Region("bench-source", properties=_BROKER_PROPERTIES, heap_mb=512)
    target = Region("bench-target", properties=_BROKER_PROPERTIES, heap_mb=512)
    with ExitStack() as stack:
        stack.callback(source.close)
        stack.callback(target.close)
        folder = stack.enter_context(_folder())
        start_regions(source, target)
        java = None
        if options.only != "mm2py":
            java = stack.enter_context(JavaContender(source, target, folder, quick=options.quick))
            _console.print("Java MirrorMaker 2 started")
        ours = None
        if options.only != "java":
            ours = Mm2pyContender(source, target, folder)
        return [
            _measure(WORKLOADS[name], options, source, java, ours) for name in options.workloads
        ]


@contextmanager
def _folder() -> Generator[Path]:
    """Give a folder for files and logs; the logs of a run that failed are kept."""
    with tempfile.TemporaryDirectory(prefix="mm2py-bench-") as name:
        try:
            yield Path(name)
        except BaseException:
            RESULTS.mkdir(exist_ok=True)
            for log in Path(name).glob("*.log"):
                shutil.copyfile(log, RESULTS / f"{log.name}.tmp")
                _console.print(f"kept: bench/results/{log.name}.tmp")
            raise


def _measure(
    workload: Workload,
    options: argparse.Namespace,
    source: Region,
    java: JavaContender | None,
    ours: Mm2pyContender | None,
) -> Outcome:
    topics = Topics(source.bootstrap_servers)
    topic = f"bench.{workload.name}"
    records = workload.quick_records if options.quick else workload.records
    trail: list[float] = []
    if java is not None:
        trail = java.warm_up(workload)
        _say(workload, "Java warm", ", ".join(f"{us:.1f}" for us in trail) + " us/record")
        java.wait_for_a_refresh()
    topics.create(topic, workload.partitions)
    fill(source.bootstrap_servers, topic, workload, records)
    shape = batch_shape(source.nodes[0].data_dir, topic)
    _say(workload, "filled", f"{shape.records} records, {shape.mean_bytes:.0f} bytes per batch")
    java_cost = None
    if java is not None:
        java_cost = java.copy(topic, workload, records)
        _say(workload, "Java", f"{java_cost.cpu_us_per_record:.2f} us/record")
    runs: list[CopyCost] = []
    for number in range(options.repeats if ours is not None else 0):
        assert ours is not None
        profile = None
        if options.profile:
            profile = RESULTS / f"profile-{workload.name}.tmp"
        cost = ours.copy(topic, workload, records, profile_to=profile)
        runs.append(cost)
        _say(workload, f"mm2py run {number + 1}", f"{cost.cpu_us_per_record:.3f} us/record")
    topics.empty(topic, workload.partitions)
    return Outcome(workload, shape, java_cost, trail, runs)


def _say(workload: Workload, what: str, text: str) -> None:
    _console.print(f"{workload.name}: {what}: {text}", highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the data, less warm-up")
    parser.add_argument(
        "--workloads",
        nargs="+",
        choices=list(WORKLOADS),
        default=list(WORKLOADS),
        metavar="NAME",
        help=f"which of {', '.join(WORKLOADS)}; all by default",
    )
    parser.add_argument("--only", choices=("java", "mm2py"), help="leave the other one out")
    parser.add_argument("--repeats", type=int, default=3, help="runs of mm2py; the median counts")
    parser.add_argument("--name", default="", help="of the result files, default latest or quick")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="run mm2py under the sampling profiler: bench/results/profile-NAME.tmp and .folded",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
