"""``python -m bench.migration``: what jobs over 10,000 partitions cost their driver, and an archive with as many files as 20 TB have.

Flow: two one-node regions -> topics with a few records in each partition -> each job as a process of its own -> when its first lane began, how
long it took, what driver and JVM needed, how many partitions its report has; the copies are
deleted before the restore. Then the archive is replaced by one whose partitions have
``--files`` manifests each, and is continued and planned for a restore. It fails above ``MOST_MEMORY`` or ``MOST_START_S``. Nothing has 20 TB:
a partition has few records, so that times are those of metadata, leases, manifests and reports.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, final

from confluent_kafka import KafkaError, Producer
from rich.console import Console

from bench.clusters import Clusters
from bench.flow_file import write_flow_file
from bench.measure import CopyFailedError, memory_by_kind
from bench.spark_job import MASTER
from bench.topics import Topics
from bench.workspace import RESULTS, bench_folder, room_and_load
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive import FILE_BYTES
from mm2py_jobs.archive.archive_format import (
    FileManifest,
    date_folder,
    manifest_stem,
    partition_folder,
)
from mm2py_jobs.archive.archive_store import ArchiveStore
from tests.kit.kafka.reaper import REAPER

MOST_MEMORY: Final = 1 << 30
MOST_START_S: Final = 60.0
DEADLINE_S: Final = 1_800.0
HEAP_MB: Final = 1_024
FLOW: Final = "A->B"
LANES: Final = "pyspark.daemon"
_PARTS: Final = {"java": "JVM", LANES: "lanes", "": "driver"}
_SAMPLE_S: Final = 0.5
_MB: Final = 1 << 20
_console = Console(stderr=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What a command took; ``start_s``: until its first lane began, -1 without lanes. Memory in bytes, the most of driver and JVM together."""

    name: str
    start_s: float
    wall_s: float
    driver_bytes: int
    jvm_bytes: int
    most_bytes: int
    partitions: int
    code: int

    def row(self) -> str:
        """Return a line of the table."""
        start = "" if self.start_s < 0 else f"{self.start_s:.0f} s"
        sizes = (self.driver_bytes, self.jvm_bytes, self.most_bytes)
        memory = " | ".join(f"{it / _MB:.0f} MB" for it in sizes)
        return f"| {self.name} | {start} | {self.wall_s:.0f} s | {memory} | {self.partitions:,} |"


@final
class Migration:
    """Runs the jobs over one pair of regions."""

    def __init__(self, clusters: Clusters, folder: Path, *, topics: int, partitions: int) -> None:
        self._folder, self._file = folder, folder / "flow.properties"
        self._clusters = clusters
        self._names = [f"m.{number:04d}" for number in range(topics)]
        self._partitions = partitions
        self.took: list[Took] = []
        write_flow_file(
            self._file,
            source=("A", clusters.source_endpoint()),
            target=("B", clusters.target_endpoint()),
            topics=r"m\..*",
        )

    def fill(self, records: int) -> None:
        """Write so many records to each partition."""
        servers = self._clusters.source.bootstrap_servers
        topics = Topics(servers)
        for begin in range(0, len(self._names), 10):
            topics.create_all(self._names[begin : begin + 10], self._partitions)
        self.write(records)

    def write(self, records: int) -> None:
        """Write so many more records to each partition."""
        producer = Producer(
            {
                "bootstrap.servers": self._clusters.source.bootstrap_servers,
                "linger.ms": 1000,
                "queue.buffering.max.messages": 2_000_000,
                # Until all partitions that were just created are known.
                "topic.metadata.propagation.max.ms": 300_000,
                "log_level": 2,
            }
        )
        taken = 0

        def count(error: KafkaError | None, _message: object) -> None:
            nonlocal taken
            taken += error is None

        for topic in self._names:
            for partition in range(self._partitions):
                for number in range(records):
                    producer.produce(topic, b"%d" % number * 20, None, partition, on_delivery=count)
            producer.poll(0)
        producer.flush(300)
        total = len(self._names) * self._partitions * records
        if taken != total:
            raise CopyFailedError(f"{taken} of {total} records were taken")

    def run(self, name: str, words: Sequence[str], *options: str, master: bool = True) -> None:
        """Run a command to its end, and keep what it took."""
        script = str(Path(sys.executable).with_name("mm2py"))
        arguments = [script, *words, str(self._file), "--flow", FLOW, "-o", "json", *options]
        if master:
            arguments += ["--master", MASTER]
        log = self._folder / f"{name.replace(' ', '-')}.log"
        began, start_s = time.monotonic(), -1.0
        most: dict[str, int] = {}
        together = 0
        with tempfile.TemporaryFile("w+") as out, log.open("w") as err:
            process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )
            REAPER.watch_process(process.pid)
            try:
                while process.poll() is None:
                    shares, counts = memory_by_kind(process.pid, _PARTS)
                    if start_s < 0 and counts["lanes"] > 1:  # the first one forks them
                        start_s = time.monotonic() - began
                    most = {it: max(most.get(it, 0), share) for it, share in shares.items()}
                    together = max(together, shares["driver"] + shares["JVM"])
                    if time.monotonic() - began > DEADLINE_S:
                        raise CopyFailedError(f"{name} has not ended after {DEADLINE_S:.0f} s")
                    time.sleep(_SAMPLE_S)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            wall_s = time.monotonic() - began
            out.seek(0)
            report = out.read()
        self.took.append(
            Took(
                name=name,
                start_s=start_s,
                wall_s=wall_s,
                driver_bytes=most.get("driver", 0),
                jvm_bytes=most.get("JVM", 0),
                most_bytes=together,
                partitions=_lines(report),
                code=process.returncode,
            )
        )
        _console.print(self.took[-1].row(), highlight=False, soft_wrap=True)
        if process.returncode != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            members = json.loads(report or "{}")
            refused = "\n".join(map(str, members.get("refused", [])[:3]))
            raise CopyFailedError(f"{name} ended with {process.returncode}:\n{tail}\n{refused}")

    def forget_copies(self) -> None:
        """Delete the copies, and wait until their logs are removed.

        One node has no maps of memory for as many restored logs beside them.
        """
        target = self._clusters.target
        topics, copies = Topics(target.bootstrap_servers), [f"A.{it}" for it in self._names]
        for begin in range(0, len(copies), 10):
            topics.delete_all(copies[begin : begin + 10])
        data, began = target.node(1).data_dir, time.monotonic()
        while any(data.glob("A.m.*")):
            if time.monotonic() - began > DEADLINE_S:
                raise CopyFailedError(f"copies are not removed after {DEADLINE_S:.0f} s")
            time.sleep(_SAMPLE_S)

    def age(self, root: Path, files: int) -> int:
        """Replace what is archived of each partition by as many files of full size as offsets allow; return their number.

        The manifests are whole, the files that they name are not there: only lanes read them.
        """
        store, written = ArchiveStore(str(root)), 0
        for topic in self._names:
            for partition in range(self._partitions):
                tp = TopicPartition(topic, partition)
                folder = root / partition_folder(tp)
                (last,) = folder.glob("*.json")
                end = int(json.loads(last.read_bytes())["end"])
                shutil.rmtree(folder)
                folder.mkdir()
                for at in range(min(files, end)):
                    begin, until = end * at // files, end * (at + 1) // files
                    manifest = FileManifest(
                        topic=topic,
                        partition=partition,
                        first=begin,
                        end=until,
                        records=until - begin,
                        size_bytes=FILE_BYTES,
                        file=f"{date_folder(at)}/{begin:020d}-{until - 1:020d}.{at:08x}.parquet",
                        sha256=f"{at:064x}",
                    )
                    name = f"{manifest_stem(tp, begin)}.json"
                    (Path(store.path) / name).write_bytes(manifest.to_bytes())
                    written += 1
        return written


def _lines(report: str) -> int:
    members = cast("Mapping[str, list[object]]", json.loads(report or "{}"))
    return len(members.get("partitions", []))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write; return the exit code, 1 where a bound is passed or a command failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.migration", description=__doc__)
    parser.add_argument("--topics", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--files", type=int, default=8, help="of a partition of the large archive")
    options = parser.parse_args(arguments)
    if room_and_load(_console, 12 << 30) is None:
        return 1
    total = options.topics * options.partitions
    with bench_folder(_console) as folder, Clusters(folder, heap_mb=HEAP_MB) as clusters:
        jobs = Migration(clusters, folder, topics=options.topics, partitions=options.partitions)
        archive = folder / "archive"
        to = "--to", str(archive)
        took = jobs.took
        try:
            jobs.fill(options.files)
            jobs.run("backfill plan", ("job", "backfill", "plan"))
            jobs.run("backfill", ("job", "backfill", "run"))
            jobs.run("backfill status", ("job", "backfill", "status"), master=False)
            jobs.run("verify", ("job", "verify", "run"))
            jobs.run("archive", ("job", "archive", "run"), *to)
            jobs.forget_copies()
            rename = "--from", str(archive), "--rename", "(.*)=again.$1"
            jobs.run("restore", ("job", "restore", "run"), *rename)
            written = jobs.age(archive / "A-B", options.files)
            _console.print(f"{written:,} manifests stand for {written * FILE_BYTES / 1e12:.1f} TB")
            jobs.run("archive, nothing new", ("job", "archive", "run"), *to)
            jobs.write(1)
            jobs.run("archive, a record each", ("job", "archive", "run"), *to)
            plan = "--from", str(archive), "--rename", "(.*)=third.$1"
            jobs.run("restore plan", ("job", "restore", "plan"), *plan)
        except CopyFailedError as error:
            _console.print(f"bench: {error}", style="red", markup=False)
    text = _text(took, total)
    sys.stdout.write(text)
    (RESULTS / "migration.md").write_text(text, encoding="utf-8")
    wrong = [it.name for it in took if it.most_bytes > MOST_MEMORY or it.start_s > MOST_START_S]
    wrong += [it.name for it in took if it.code]
    for name in wrong:
        _console.print(f"bench: {name} failed, or needs too much", style="red", markup=False)
    return 1 if wrong else 0


def _text(took: Sequence[Took], total: int) -> str:
    lines = [
        f"# Jobs over {total:,} partitions",
        "",
        f"`python -m bench.migration`, `--master {MASTER}`, brokers on the same two cores. Memory is proportional, the most of each.",
        "",
        "| job | first lane after | whole | driver | JVM | both | partitions in its report |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(it.row() for it in took),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
