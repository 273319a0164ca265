"""``python -m bench.spark_run``: backfill, verify and archive beside Spark's Kafka connector and a confluent-kafka loop in Spark tasks.

Flow: two one-node regions -> per workload a full topic -> each contender in a process of its own (``spark_job``), one after the other,
warm -> rate and CPU of its process tree -> table, JSON and Markdown in bench/results. Removes its regions and data.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self, final

from confluent_kafka import KafkaException
from rich import box
from rich.console import Console
from rich.table import Table

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import CopyFailedError, ProcessTree, measure_copy
from bench.spark_jars import CONNECTOR_VERSION
from bench.spark_job import DONE, MASTER, READY, SparkJob
from bench.topics import Topics
from bench.workloads import WORKLOADS, Workload, fill
from mm2py.embedded.reaper import REAPER
from mm2py.errors import Mm2pyError

__all__ = ["main"]

MIN_FREE_BYTES: Final = 8 << 30
DEADLINE_S: Final = 300.0
RESULTS: Final = Path(__file__).parent / "results"
SIZES: Final = {"1k": (1_000_000, 150_000), "100b": (6_000_000, 900_000)}
"""Records per workload, and in the quick form."""

WARM_UP_SHARE: Final = 10
GOALS: Final = {"1k": 3.0, "100b": 5.0}
DIGEST_GOAL: Final = 10.0
_TITLES: Final = {
    "mm2py": "mm2py backfill",
    "connector": f"Spark's Kafka connector {CONNECTOR_VERSION}",
    "confluent": "confluent-kafka in Spark tasks",
    "verify-1": "mm2py verify, tier 1",
    "verify-2": "mm2py verify, tier 2",
    "archive": "mm2py archive, batches",
}
COLUMNS: Final = (
    "workload", "contender", "records", "records/s", "MB/s", "CPU us/record", "rate ratio", "CPU ratio", "goal",
)  # fmt: skip
_METHOD: Final = """\
One run on {cpus} cores, brokers included; Python {python}, load average before the run {load:.1f}{quick}. Each contender has a session
on {master} of its own and has done the same job on a tenth of the records before; copies are measured behind their first fifth, the
other jobs from start to end. CPU is user and system time of the whole process tree (driver, JVM, Python workers) without the
brokers. 8 partitions, two lanes. Ratios of copies are mm2py to that contender; those of verify are tier 1 to tier 2, the record digest.
"""
_console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Measured:
    """One contender and one workload."""

    workload: str
    contender: str
    records: int
    wall_s: float
    cpu_s: float
    value_bytes: int

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.records / self.wall_s

    @property
    def cpu_us(self) -> float:
        """CPU per record."""
        return self.cpu_s * 1e6 / self.records


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

    def __init__(self, clusters: Clusters, folder: Path, *, quick: bool) -> None:
        self._clusters, self._folder, self._is_quick = clusters, folder, quick
        self._source = Topics(clusters.source.bootstrap_servers)
        self._target = Topics(clusters.target.bootstrap_servers)

    def measure(self, workload: Workload) -> list[Measured]:
        """Measure every contender on one workload."""
        records = SIZES[workload.name][self._is_quick]
        for topic, count in (
            (f"warm.{workload.name}", records // WARM_UP_SHARE),
            (workload.topic, records),
        ):
            self._source.create(topic, workload.partitions)
            fill(self._clusters.source.bootstrap_servers, topic, workload, count)
        found = [self._copy(kind, workload, records) for kind in ("confluent", "connector")]
        found += [self._copy("mm2py", workload, records, keep=True)]
        flow = "mm2py"
        for name, command in (
            ("verify-1", ["verify", "--tier", "1"]),
            ("verify-2", ["verify", "--tier", "2"]),
            ("archive", ["archive", "--to", str(self._folder / "archive")]),
        ):
            found.append(self._whole(name, command, workload, records, flow))
        shutil.rmtree(self._folder / "archive", ignore_errors=True)
        for topic in (workload.topic, f"warm.{workload.name}"):
            self._source.empty(topic, workload.partitions)
            self._target.empty(self._copy_name(flow, workload, topic), workload.partitions)
        return found

    def _copy(self, kind: str, workload: Workload, records: int, *, keep: bool = False) -> Measured:
        job = self._job(kind, workload, workload.topic, ["backfill", "run"])
        if kind != "mm2py":
            for each in (job, job.warm_up):
                assert each is not None
                self._target.create(each.copy, workload.partitions)
        with JobProcess(kind, job, self._log(kind, workload)) as process:
            process.go()
            cost = measure_copy(
                process.tree,
                lambda: self._target.count(job.copy, workload.partitions),
                records,
                deadline_s=DEADLINE_S,
            )
            process.read(DONE)
        if not keep:
            self._target.empty(job.copy, workload.partitions)
        return self._said(
            Measured(
                workload.name, kind, cost.records, cost.wall_s, cost.cpu_s, workload.value_bytes
            )
        )

    def _whole(
        self, name: str, command: Sequence[str], workload: Workload, records: int, flow: str
    ) -> Measured:
        job = self._job(flow, workload, workload.topic, command)
        with JobProcess("mm2py", job, self._log(name, workload)) as process:
            cpu_s, begun = process.tree.cpu_s(), time.monotonic()
            process.go()
            answer: Mapping[str, int] = json.loads(process.read(DONE))
            wall_s, cpu_s = time.monotonic() - begun, process.tree.cpu_s() - cpu_s
        done = answer.get("checked_records", answer.get("records", 0))
        if done != records:
            raise CopyFailedError(f"{name} has done {done} of {records} records")
        return self._said(
            Measured(workload.name, name, records, wall_s, cpu_s, workload.value_bytes)
        )

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
            ],
            warm_up=inner,
        )  # fmt: skip

    @staticmethod
    def _copy_name(kind: str, workload: Workload, topic: str) -> str:
        return f"{kind}{workload.name}.{topic}"

    def _log(self, name: str, workload: Workload) -> Path:
        return self._folder / f"spark-{name}-{workload.name}.log"

    @staticmethod
    def _said(measured: Measured) -> Measured:
        _console.print(
            f"{measured.workload}: {_TITLES[measured.contender]}: {measured.rate:,.0f} records/s,"
            f" {measured.cpu_us:.2f} us/record",
            highlight=False,
        )
        return measured


def _placed(command: Sequence[str], file: Path) -> list[str]:
    """Return a command with the properties file where it belongs."""
    words = 2 if command[0] == "backfill" else 1
    return [*command[:words], str(file), *command[words:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workloads asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a seventh of the records")
    parser.add_argument("--workloads", default="100b,1k", help="of 100b and 1k")
    parser.add_argument(
        "--name", default="", help="of the result files, default spark or spark-quick"
    )
    options = parser.parse_args(arguments)
    names = options.workloads.split(",")
    if unknown := set(names) - set(SIZES):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(SIZES)}")
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < MIN_FREE_BYTES:
        _console.print(
            f"the bench needs {MIN_FREE_BYTES >> 30} GiB in the temporary folder, {free >> 30} GiB are free;"
            " free some, or set TMPDIR to a larger disk"
        )
        return 1
    load = os.getloadavg()[0]
    try:
        with _folder() as folder, Clusters(folder) as clusters:
            bench = SparkBench(clusters, folder, quick=options.quick)
            measured = [it for name in names for it in bench.measure(WORKLOADS[name])]
    except (Mm2pyError, KafkaException, CopyFailedError, RuntimeError) as error:
        _console.print(f"bench: {error}", style="red", markup=False)
        return 1
    _show(measured)
    name = options.name or ("spark-quick" if options.quick else "spark")
    _write(measured, name, load, quick=options.quick)
    _console.print(f"written: bench/results/{name}.md and .json")
    return 0


@contextmanager
def _folder() -> Generator[Path]:
    """Give a folder for files and logs; the logs of a run that failed are kept."""
    with tempfile.TemporaryDirectory(prefix="mm2py-bench-") as name:
        REAPER.watch_folder(Path(name))
        try:
            yield Path(name)
        except BaseException:
            for log in Path(name).glob("spark-*.log"):
                shutil.copyfile(log, RESULTS / f"{log.name}.tmp")
            raise
        finally:
            REAPER.forget_folder(Path(name))


# ---- the table


def _cells(measured: Sequence[Measured]) -> list[list[str]]:
    by_name = {(it.workload, it.contender): it for it in measured}
    rows: list[list[str]] = []
    for it in measured:
        faster, slower = _pair(it, by_name)
        goal = ""
        if faster is not None:
            goal = f"{DIGEST_GOAL if it.contender == 'verify-2' else GOALS[it.workload]:.0f}x"
        rows.append(
            [
                WORKLOADS[it.workload].title,
                _TITLES[it.contender],
                f"{it.records:,}",
                f"{it.rate:,.0f}",
                f"{it.rate * it.value_bytes / 1e6:,.0f}",
                f"{it.cpu_us:.2f}",
                f"{faster.rate / slower.rate:.1f}x" if faster is not None else "",
                f"{slower.cpu_us / faster.cpu_us:.1f}x" if faster is not None else "",
                goal,
            ]
        )
    return rows


def _pair(
    it: Measured, by_name: Mapping[tuple[str, str], Measured]
) -> tuple[Measured | None, Measured]:
    """Return what a row is compared with: a copy with the backfill, the record digest with tier 1."""
    ours = {"connector": "mm2py", "confluent": "mm2py", "verify-2": "verify-1"}.get(
        it.contender, ""
    )
    return by_name.get((it.workload, ours)), it


def _show(measured: Sequence[Measured]) -> None:
    table = Table(title="Bulk work on Spark", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for index, heading in enumerate(COLUMNS):
        table.add_column(heading, justify="right" if index > 1 else "left")
    for row in _cells(measured):
        table.add_row(*row)
    Console(width=130).print(table)


def _write(measured: Sequence[Measured], name: str, load: float, *, quick: bool) -> None:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|" + "---:|" * (len(COLUMNS) - 2)]
    lines += ["| " + " | ".join(row) + " |" for row in _cells(measured)]
    method = _METHOD.format(
        cpus=os.cpu_count(),
        python=platform.python_version(),
        load=load,
        quick=", quick sizes" if quick else "",
        master=MASTER,
    )
    text = "\n".join(["# Bulk work on Spark, side by side", "", *lines, "", method])
    document = {
        "quick": quick,
        "load_average_before": round(load, 2),
        "rows": [asdict(it) for it in measured],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
