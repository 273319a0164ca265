"""``python -m bench.spark_run``: backfill, verify and archive, and ``format("mm2py")`` for reads, writes and streams, beside Spark's
Kafka connector and confluent-kafka loops in Spark tasks.

Flow: two one-node regions -> per workload a full topic -> each contender in a process of its own (``spark_job``), one after the other,
warm -> rate and CPU of its process tree, as a whole and inside -> ``spark_report``. Removes its regions and data.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Self, final

from confluent_kafka import KafkaException
from rich.console import Console

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import CopyFailedError, ProcessTree, measure_copy
from bench.spark_job import DONE, LANES, MASTER, READY, JobEnd, SparkJob
from bench.spark_report import ROWS, Cost, Measured, show, write
from bench.topics import Topics
from bench.workloads import WORKLOADS, Workload, fill
from bench.workspace import RESULTS, bench_folder, room_and_load
from mm2py.errors import Mm2pyError
from tests.kit.kafka.reaper import REAPER

MIN_FREE_BYTES: Final = 8 << 30
DEADLINE_S: Final = 900.0
SIZES: Final = {"1k": (1_000_000, 300_000), "100b": (6_000_000, 2_000_000)}
"""Records per workload, and in the quick form."""

WARM_UP_SHARE: Final = 10
_console = Console(stderr=True)


@final
class JobProcess:
    """A contender that waits for its turn."""

    def __init__(self, kind: str, job: SparkJob, log_file: Path) -> None:
        self._log_file = log_file
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark_job", kind, job.text()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                # Spark's workers import the loop of a contender by name.
                env={**os.environ, "PYTHONPATH": str(RESULTS.parents[1])},
            )
        REAPER.watch_process(self._process.pid)
        self.tree = ProcessTree(self._process.pid)

    def __enter__(self) -> Self:
        self.read(READY)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def read(self, prefix: str) -> str:
        """Wait for a line; return what follows its prefix."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(prefix):
                return line[len(prefix) :]
        tail = self._log_file.read_text("utf-8", errors="replace").splitlines()[-15:]
        raise CopyFailedError("the contender has ended:\n" + "\n".join(tail))


@final
class SparkBench:
    """Runs contenders over one pair of regions."""

    def __init__(
        self, clusters: Clusters, folder: Path, measures: Collection[str], *, quick: bool
    ) -> None:
        self._measures = measures
        self._clusters, self._folder, self._is_quick = clusters, folder, quick
        self._source = Topics(clusters.source.bootstrap_servers)
        self._target = Topics(clusters.target.bootstrap_servers)
        pids = (region.node(1).pid for region in (clusters.source, clusters.target))
        self._brokers = [ProcessTree(pid) for pid in pids if pid is not None]

    def measure(self, workload: Workload) -> list[Measured]:
        """Measure every contender on one workload."""
        records = SIZES[workload.name][self._is_quick]
        for topic, count in (
            (f"warm.{workload.name}", records // WARM_UP_SHARE),
            (workload.topic, records),
        ):
            self._source.create(topic, workload.partitions)
            fill(self._clusters.source.bootstrap_servers, topic, workload, count)
        measured: list[Measured] = []
        if "jobs" in self._measures:
            measured += [self._copy(kind, workload, records) for kind in ("confluent", "connector")]
            measured += [self._copy("mm2py", workload, records, keep=True)]
            for name, command in (
                ("verify-1", ["verify", "--tier", "1"]),
                ("verify-2", ["verify", "--tier", "2"]),
                ("archive", ["archive", "--to", str(self._folder / "archive")]),
            ):
                measured.append(self._in_lanes(name, command, workload, records))
            shutil.rmtree(self._folder / "archive", ignore_errors=True)
        if "rows" in self._measures:
            measured += [self._through_rows(kind, workload, records) for kind in ROWS]
        for topic in (workload.topic, f"warm.{workload.name}"):
            self._source.empty(topic, workload.partitions)
            if "jobs" in self._measures:
                self._target.empty(self._copy_name("mm2py", workload, topic), workload.partitions)
        return measured

    def _copy(self, kind: str, workload: Workload, records: int, *, keep: bool = False) -> Measured:
        job = self._job(kind, workload, workload.topic, ["backfill", "run"])
        if kind != "mm2py":
            for each in (job, job.warm_up):
                assert each is not None
                self._target.create(each.copy, workload.partitions)
        with JobProcess(kind, job, self._log(kind, workload)) as process:
            whole = self._begin(process)
            cost = measure_copy(
                process.tree,
                lambda: self._target.count(job.copy, workload.partitions),
                records,
                deadline_s=DEADLINE_S,
            )
            process.read(DONE)
            measured = whole.end(
                workload, kind, records, Cost(cost.records, cost.wall_s, cost.cpu_s)
            )
        if not keep:
            self._target.empty(job.copy, workload.partitions)
        return measured

    def _in_lanes(
        self, name: str, command: Sequence[str], workload: Workload, records: int
    ) -> Measured:
        job = self._job("mm2py", workload, workload.topic, command)
        with JobProcess("mm2py", job, self._log(name, workload)) as process:
            whole = self._begin(process)
            end = JobEnd(**json.loads(process.read(DONE)))
            if end.records != records:
                raise CopyFailedError(f"{name} has done {end.records} of {records} records")
            inside = Cost(records, end.lane_seconds / LANES, end.lane_cpu_seconds)
            return whole.end(workload, name, records, inside)

    def _through_rows(self, kind: str, workload: Workload, records: int) -> Measured:
        """Measure a reader or writer of rows; what it writes is counted and removed."""
        job = self._job(kind, workload, workload.topic, [])
        writes = not kind.startswith("read-")
        for each in (job, job.warm_up) if writes else ():
            assert each is not None
            self._target.create(each.copy, workload.partitions)
        with JobProcess(kind, job, self._log(kind, workload)) as process:
            whole = self._begin(process)
            end = JobEnd(**json.loads(process.read(DONE)))
            measured = whole.end(workload, kind, records, None)
        there = self._target.count(job.copy, workload.partitions) if writes else end.records
        if there != records:
            raise CopyFailedError(f"{kind} has done {there} of {records} records")
        if writes:
            self._target.empty(job.copy, workload.partitions)
        return measured

    def _begin(self, process: JobProcess) -> "_Whole":
        return _Whole(process, self._brokers)

    def _job(self, kind: str, workload: Workload, topic: str, command: Sequence[str]) -> SparkJob:
        """Return a job over a topic, and over its small one to warm up."""
        alias = f"{kind}{workload.name}"
        inner = (
            None
            if topic.startswith("warm.")
            else self._job(kind, workload, f"warm.{workload.name}", command)
        )
        file = self._folder / f"{alias}.properties"
        write_flow_file(
            file,
            source=(alias, self._clusters.source_endpoint()),
            target=("B", self._clusters.target_endpoint()),
            topics=".*",
        )
        return SparkJob(
            source=self._clusters.source.bootstrap_servers,
            target=self._clusters.target.bootstrap_servers,
            topic=topic,
            copy=self._copy_name(kind, workload, topic),
            ends=list(self._source.end_offsets(topic, workload.partitions)),
            command=[
                *_placed(command, file),
                "--flow", f"{alias}->B", "--topics", topic.replace(".", r"\."), "--master", MASTER,
            ] if command else [],
            value_bytes=workload.value_bytes,
            warm_up=inner,
        )  # fmt: skip

    @staticmethod
    def _copy_name(kind: str, workload: Workload, topic: str) -> str:
        return f"{kind}{workload.name}.{topic}"

    def _log(self, name: str, workload: Workload) -> Path:
        return self._folder / f"spark-{name}-{workload.name}.log"


@final
class _Whole:
    """The cost of a job that begins now."""

    def __init__(self, process: JobProcess, brokers: Sequence[ProcessTree]) -> None:
        self._tree, self._brokers = process.tree, brokers
        self._cpu_s, self._broker_cpu_s = self._tree.cpu_s(), self._of_brokers()
        self._begun_s = time.monotonic()
        process.go()

    def end(
        self, workload: Workload, contender: str, records: int, inside: Cost | None
    ) -> Measured:
        """Return what was measured; the job has ended, its processes have not."""
        wall_s, cpu_s = time.monotonic() - self._begun_s, self._tree.cpu_s() - self._cpu_s
        measured = Measured(
            workload.name,
            contender,
            workload.value_bytes,
            Cost(records, wall_s, cpu_s),
            inside,
            self._of_brokers() - self._broker_cpu_s,
            self._tree.memory()[1],
        )
        _console.print(measured.text, highlight=False, soft_wrap=True)
        return measured

    def _of_brokers(self) -> float:
        return sum(it.cpu_s() for it in self._brokers)


def _placed(command: Sequence[str], file: Path) -> list[str]:
    """Return a command with the properties file where it belongs."""
    words = 2 if command[0] == "backfill" else 1
    return [*command[:words], str(file), *command[words:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workloads asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a third of the records")
    parser.add_argument("--workloads", default="100b,1k", help="of 100b and 1k")
    parser.add_argument(
        "--name", default="", help="of the result files, default spark or spark-quick"
    )
    parser.add_argument("--measures", default="jobs,rows", help="of jobs and rows")
    options = parser.parse_args(arguments)
    names, measures = options.workloads.split(","), options.measures.split(",")
    for asked, known in ((names, SIZES), (measures, ("jobs", "rows"))):
        if unknown := set(asked) - set(known):
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    load = room_and_load(_console, MIN_FREE_BYTES)
    if load is None:
        return 1
    try:
        with bench_folder(_console) as folder, Clusters(folder) as clusters:
            bench = SparkBench(clusters, folder, measures, quick=options.quick)
            measured = [it for name in names for it in bench.measure(WORKLOADS[name])]
    except (Mm2pyError, KafkaException, CopyFailedError, RuntimeError) as error:
        _console.print(f"bench: {error}", style="red", markup=False)
        return 1
    show(measured)
    name = options.name or ("spark-quick" if options.quick else "spark")
    write(measured, RESULTS, name, load, quick=options.quick)
    _console.print(f"written: bench/results/{name}.md and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
