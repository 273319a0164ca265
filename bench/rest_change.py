"""``python -m bench.rest_change``: one worker, two flows; how late is one of them while the other one is changed over REST?

Flow: regions -> one process with both directions -> streams into both -> age of every record of the untouched
flow on arrival, before and while changes are made -> seconds. Removes its regions and data.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.mm2py_worker import change_flow, public_url, start_mm2py
from bench.stream import Arrivals, Stream
from bench.topics import Topics
from tests.kit.kafka.reaper import REAPER

ONE: Final = "bench-source"
TWO: Final = "bench-target"
TOPIC: Final = "steady"
PARTITIONS: Final = 4
CHANGES: Final = 20
PAUSE_S: Final = 2.0
QUIET_S: Final = 20.0
START_S: Final = 60.0
QUIET_LOAD: Final = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.rest_change", description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="records per second of each flow")
    options = parser.parse_args(arguments)
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        sys.stdout.write(
            f"load average {load:.1f}: wait for a quiet machine to get clean figures\n"
        )
    with tempfile.TemporaryDirectory(prefix="mm2py-change-") as name, ExitStack() as stack:
        folder = Path(name)
        REAPER.watch_folder(folder)
        stack.callback(REAPER.forget_folder, folder)
        before, during, bumps = _measure(folder, stack, options.rate)
    sys.stdout.write(
        f"age of the untouched flow's records on arrival at {options.rate:,} records/s\n"
        f"  before:                 {_line(before)}\n"
        f"  while {CHANGES} changes are made: {_line(during)}\n"
        f"  highest after each change: {' '.join(map(str, bumps))} ms\n"
        f"largest lag bump: {(during[-1] - before[len(before) // 2]) / 1000:.2f} s\n"
    )
    return 0


def _measure(
    folder: Path, stack: ExitStack, rate: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Return ages in ms before and while the other flow is changed, sorted; the highest of each change."""
    clusters = stack.enter_context(Clusters(folder))
    one, two = clusters.source.bootstrap_servers, clusters.target.bootstrap_servers
    for servers, copy_of in ((one, TWO), (two, ONE)):
        Topics(servers).create_all([TOPIC, f"{copy_of}.{TOPIC}"], PARTITIONS)
    file = folder / "change.properties"
    write_flow_file(
        file,
        source=(ONE, clusters.source_endpoint()),
        target=(TWO, clusters.target_endpoint()),
        topics=TOPIC,
    )
    with file.open("a", encoding="latin-1") as lines:
        lines.write(f"{TWO}->{ONE}.enabled = true\n{TWO}->{ONE}.topics = {TOPIC}\n")
    worker = stack.enter_context(start_mm2py(file, folder / "change.log"))
    url = public_url(worker)
    stack.enter_context(Stream(one, TOPIC, PARTITIONS, rate))
    stack.enter_context(Stream(two, TOPIC, PARTITIONS, rate))
    untouched = stack.enter_context(Arrivals(two, f"{ONE}.{TOPIC}", PARTITIONS))
    changed = stack.enter_context(Arrivals(one, f"{TWO}.{TOPIC}", PARTITIONS))
    untouched.wait_for_all(START_S)
    changed.wait_for_all(START_S)
    time.sleep(QUIET_S)  # what the streams wrote before the flows ran is behind them
    untouched.take_ages_ms()
    time.sleep(QUIET_S)
    before = untouched.take_ages_ms()
    found: list[Sequence[int]] = []
    for number in range(CHANGES):
        # Another number of tasks every time: connector, round of the group and all tasks start anew.
        config = {"tasks.max": str(number % 3 + 2), "refresh.topics.interval.seconds": "7"}
        change_flow(url, TWO, ONE, config)
        time.sleep(PAUSE_S)
        found.append(untouched.take_ages_ms())
    changed.wait_for_all(START_S)
    during = sorted(age_ms for ages_ms in found for age_ms in ages_ms)
    return before, during, [ages_ms[-1] for ages_ms in found if ages_ms]


def _line(ages_ms: Sequence[int]) -> str:
    shares = (ages_ms[len(ages_ms) // 2], ages_ms[int(len(ages_ms) * 0.99)], ages_ms[-1])
    return "p50 {:d} ms, p99 {:d} ms, highest {:d} ms".format(*shares)


if __name__ == "__main__":
    sys.exit(main())
