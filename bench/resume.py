"""``python -m bench.resume``: three workers on one file, one is killed (SIGKILL): after how long are its partitions copied on?

Flow: regions -> three processes -> a stream of records -> kill, time until each partition that stood still goes
on, start another one; so often as asked -> lowest, median and highest seconds. Removes its regions and data.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import CopyFailedError
from bench.mirror_process import MirrorProcess
from bench.mm2py_worker import start_mm2py
from bench.stream import Arrivals, Stream
from bench.topics import Topics
from tests.kit.kafka.reaper import REAPER

TOPIC: Final = "resume"
PARTITIONS: Final = 6
WORKERS: Final = 3
START_S: Final = 90.0
QUIET_LOAD: Final = 1.0
STANDSTILL_S: Final = 1.0
"""A partition without a record for so long stands still."""

SETTLE_S: Final = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.resume", description=__doc__)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--rate", type=int, default=1_000, help="records per second")
    options = parser.parse_args(arguments)
    if (load := os.getloadavg()[0]) > QUIET_LOAD:
        sys.stdout.write(
            f"load average {load:.1f}: wait for a quiet machine to get clean figures\n"
        )
    with tempfile.TemporaryDirectory(prefix="mm2py-resume-") as name, ExitStack() as stack:
        folder = Path(name)
        REAPER.watch_folder(folder)
        stack.callback(REAPER.forget_folder, folder)
        found_s = _measure(folder, stack, options.tries, options.rate)
    sys.stdout.write(
        f"time to resume after SIGKILL of one of {WORKERS} workers, {len(found_s)} tries at"
        f" {options.rate:,} records/s: lowest {min(found_s):.1f} s, median"
        f" {statistics.median(found_s):.1f} s, highest {max(found_s):.1f} s\n"
    )
    return 0


def _measure(folder: Path, stack: ExitStack, tries: int, rate: int) -> list[float]:
    clusters = stack.enter_context(Clusters(folder))
    source, target = clusters.source.bootstrap_servers, clusters.target.bootstrap_servers
    Topics(source).create(TOPIC, PARTITIONS)
    # It exists before there is a mirror, so that its end can be read from.
    copy = f"bench-source.{TOPIC}"
    Topics(target).create(copy, PARTITIONS)
    file = folder / "resume.properties"
    write_flow_file(
        file,
        source=("bench-source", clusters.source_endpoint()),
        target=("bench-target", clusters.target_endpoint()),
        topics=TOPIC,
    )
    with file.open("a", encoding="latin-1") as lines:
        # One task each: a heartbeat task would be some worker's share.
        lines.write(f"tasks.max = {WORKERS}\nemit.heartbeats.enabled = false\n")
    workers = [_start(stack, file, number) for number in range(WORKERS)]
    stack.enter_context(Stream(source, TOPIC, PARTITIONS, rate))
    arrivals = stack.enter_context(Arrivals(target, copy, PARTITIONS))
    found_s: list[float] = []
    for number in range(tries):
        _until_each_has_a_task(workers)
        arrivals.wait_for_all(START_S)
        time.sleep(SETTLE_S)
        found_s.append(_kill(workers.pop(0), arrivals))
        sys.stdout.write(f"try {number + 1}: {found_s[-1]:.1f} s\n")
        sys.stdout.flush()
        if number + 1 < tries:
            workers.append(_start(stack, file, WORKERS + number))
    return found_s


def _start(stack: ExitStack, file: Path, number: int) -> MirrorProcess:
    log_file = file.with_name(f"worker-{number}.log")
    return stack.enter_context(start_mm2py(file, log_file))


def _until_each_has_a_task(workers: Sequence[MirrorProcess]) -> None:
    give_up = time.monotonic() + START_S
    while not all(_tasks(worker) == 1 for worker in workers):
        for worker in workers:
            worker.check_running()
        if time.monotonic() > give_up:
            raise CopyFailedError(f"tasks by worker: {[_tasks(worker) for worker in workers]}")
        time.sleep(0.1)


def _tasks(worker: MirrorProcess) -> int:
    """Return how many source tasks run in a worker, by its log."""
    log = worker.log().split("MirrorSourceConnector|task-")[1:]
    started = sum("] source task started" in line.split("\n")[0] for line in log)
    return started - sum("] task state=UNASSIGNED" in line.split("\n")[0] for line in log)


def _kill(worker: MirrorProcess, arrivals: Arrivals) -> float:
    """Kill one, and return after how many seconds its last partition went on."""
    killed_s = time.monotonic()
    worker.kill()
    still: set[int] = set()
    while not still:
        time.sleep(STANDSTILL_S / 10)
        now = time.monotonic()
        if now > killed_s + START_S:
            raise CopyFailedError("no partition stood still")
        still = {p for p, at in arrivals.last_s().items() if now - at > STANDSTILL_S}
    time.sleep(STANDSTILL_S)
    still |= {p for p, at in arrivals.last_s().items() if time.monotonic() - at > STANDSTILL_S}
    waiting_since = time.monotonic()
    while True:
        last_s = arrivals.last_s()
        if all(last_s[p] > waiting_since for p in still):
            return max(last_s[p] for p in still) - killed_s
        if time.monotonic() > killed_s + START_S:
            raise CopyFailedError(f"partitions {sorted(still)} are not copied any more")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
