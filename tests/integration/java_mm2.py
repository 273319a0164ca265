"""The hand-over story: mm2py and the real Java MirrorMaker 2 take turns on one properties file.

Flow: ``Handover.reach(step)`` runs the steps up to that one, once; the evidence of each (records on the
target, logs, exit codes) stays for the tests. A JVM costs 11 to 30 s of CPU, hence one story for all claims.
"""

import enum
import re
import signal
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from bench.java_mm2 import QUICK_START_FLAGS, start_java
from bench.mirror_process import MirrorProcess
from bench.mm2py_worker import start_mm2py
from bench.topics import Topics
from tests.integration.mirror_process import until
from tests.integration.traffic import Sent, read, records_of, write
from tests.kit.kafka.java import run_java
from tests.kit.kafka.region import KafkaAddress

PARTITIONS: Final = 3
DEADLINE_S: Final = 240.0
JAVA_STOPPED: Final = 128 + signal.SIGTERM

Partitions = dict[int, list[bytes]]


class Step(enum.IntEnum):
    """What has happened, in this order."""

    OURS_COPIED_AND_STOPPED = 1
    JAVA_CONTINUED = 2
    OURS_WAITED = 3
    OURS_TOOK_OVER = 4
    JAVA_JOINED = 5
    ALL_STOPPED = 6


@final
class Handover:
    """One flow, one topic, one file; ``expected`` and ``copied`` hold the values per partition and step."""

    def __init__(
        self, source: KafkaAddress, target: KafkaAddress, folder: Path, unique: str
    ) -> None:
        # The aliases are in the names of groups and internal topics, so they keep this story apart.
        self.source_alias, self.target_alias = f"a{unique}", f"b{unique}"
        self.topic = "orders-" + unique
        self.source, self.target = source, target
        self.expected: dict[Step, Partitions] = {}
        self.copied: dict[Step, Partitions] = {}
        self.exit_codes: dict[str, int] = {}
        self.logs: dict[Step, str] = {}
        self.java_logs: list[str] = []
        self._folder = folder
        self._written: Partitions = {partition: [] for partition in range(PARTITIONS)}
        self._ours: MirrorProcess | None = None
        self._java: MirrorProcess | None = None
        self._starts = 0
        self._reached = 0
        self._failure: BaseException | None = None
        self._file = folder / "mm2.properties"
        self._write_file()
        # The others are dealt too: by name, in the order of Java's hash tables, or in another one.
        for name in (self.topic, *(f"{self.topic}-{it}" for it in ("eu", "us", "in", "za", "jp"))):
            Topics(source.bootstrap_servers).create(name, PARTITIONS)

    @property
    def remote_topic(self) -> str:
        """The copy's name on the target."""
        return f"{self.source_alias}.{self.topic}"

    def reach(self, step: Step) -> None:
        """Run the steps up to ``step`` that have not run yet; a step that failed fails again."""
        while self._reached < step:
            if self._failure is not None:
                raise self._failure
            following = Step(self._reached + 1)
            try:
                self._run(following)
            except BaseException as failure:
                self._failure = failure
                failure.add_note(f"in {following.name}; mm2py's log ends:\n{self._tail()}")
                raise
            self._reached = following

    def close(self) -> None:
        """End whatever runs."""
        for process in (self._ours, self._java):
            if process is not None:
                process.__exit__()

    def _run(self, step: Step) -> None:
        match step:
            case Step.OURS_COPIED_AND_STOPPED:
                self._produce(400)
                self._ours = self._start_ours()
                self._compare(step)
                self._wait_for_internal_records()
                self.exit_codes["ours"] = self._ours.stop()
            case Step.JAVA_CONTINUED:
                self._produce(50)  # while nobody copies
                self._java = self._start_java()
                self._compare(step)
            case Step.OURS_WAITED:
                self._ours = self._start_ours()
                self._wait_for_line(r"(?=.*\bwait)(?=.*127\.0\.0\.1)", "names the Java member")
                self._produce(50)
                self._compare(step)
            case Step.OURS_TOOK_OVER:
                assert self._java is not None
                self.exit_codes["java"] = self._java.stop()
                self.java_logs.append(self._java.log())
                self._produce(50)
                self._compare(step)
            case Step.JAVA_JOINED:
                assert self._ours is not None
                before = len(self._ours.log())
                self._java = self._start_java()
                self._wait_for_line("members that are not ours", "notices that Java joined", before)
                self._wait_for_line("waiting for the other members", "stops its flow", before)
                self._produce(50)
                self._compare(step)
            case Step.ALL_STOPPED:
                assert self._ours is not None
                assert self._java is not None
                self.exit_codes["ours, waiting"] = self._ours.stop()
                self.exit_codes["java, at the end"] = self._java.stop()
                self.java_logs.append(self._java.log())
        if self._ours is not None:
            self.logs[step] = self._ours.log()

    def _start_ours(self) -> MirrorProcess:
        self._starts += 1
        return start_mm2py(self._file, self._folder / f"mm2py-{self._starts}.log")

    def _start_java(self) -> MirrorProcess:
        self._starts += 1
        log_file = self._folder / f"java-{self._starts}.log"
        return start_java(self._file, log_file, jvm_flags=QUICK_START_FLAGS)

    def _produce(self, per_partition: int) -> None:
        for partition, values in self._written.items():
            more = range(len(values), len(values) + per_partition)
            new = [b"%d-%d" % (partition, number) for number in more]
            values.extend(new)
            write(self.source, self.topic, [Sent(partition, it, b"key") for it in new])

    def _compare(self, step: Step) -> None:
        """Keep what is on the target once the last record of every partition has arrived.

        A mirror copies a partition in order, so what it copied twice lies before that record.
        """
        expected = {partition: list(values) for partition, values in self._written.items()}

        def copied_last() -> bool:
            self.copied[step] = read_values(self.target, self.remote_topic)
            copied = self.copied[step]
            return all(copied[p][-1:] == expected[p][-1:] for p in expected)

        self.expected[step] = expected
        until(copied_last, DEADLINE_S, lambda: f"the last records arrive: {self._counts(step)}")

    def _counts(self, step: Step) -> str:
        return f"{ {p: len(values) for p, values in self.copied.get(step, {}).items()} }"

    def _wait_for_internal_records(self) -> None:
        def written() -> bool:
            syncs = records_of(self.source, self.syncs_topic)
            beats = records_of(self.target, "heartbeats")
            own = struct.pack(">h", len(self.source_alias)) + self.source_alias.encode()
            return bool(syncs) and any((beat.key or b"").startswith(own) for beat in beats)

        until(written, DEADLINE_S, "offset syncs and heartbeats")

    @property
    def syncs_topic(self) -> str:
        """The offset syncs, on the source."""
        return f"mm2-offset-syncs.{self.target_alias}.internal"

    def _wait_for_line(self, pattern: str, what: str, after: int = 0) -> None:
        flow = re.escape(f"{self.source_alias}->{self.target_alias}")
        wanted = re.compile(rf"^(?=.*{flow}).*{pattern}", re.MULTILINE)

        def logged() -> bool:
            assert self._ours is not None
            self._ours.check_running()
            return wanted.search(self._ours.log(), after) is not None

        until(logged, DEADLINE_S, f"mm2py {what}")

    def _tail(self) -> str:
        return "" if self._ours is None else "\n".join(self._ours.log().splitlines()[-25:])

    def _write_file(self) -> None:
        a, b = self.source_alias, self.target_alias
        clusters = {a: self.source, b: self.target}
        own = f"{a}->{b}.topics = {self.topic}.*", f"{a}->{b}.tasks.max = 2"
        write_file(self._file, clusters, *own, f"{b}->{a}.enabled = false")


def write_file(file: Path, clusters: Mapping[str, KafkaAddress], *own: str) -> None:
    """Write a file that both mirrors run: one flow between two single nodes, and ``own`` lines."""
    a, b = clusters
    lines = [
        f"clusters = {a}, {b}",
        *(f"{it}.bootstrap.servers = {at.bootstrap_servers}" for it, at in clusters.items()),
        f"{a}->{b}.enabled = true",
        "replication.factor = 1",
        "offset-syncs.topic.replication.factor = 1",
        "heartbeats.topic.replication.factor = 1",
        "checkpoints.topic.replication.factor = 1",
        "offset.storage.replication.factor = 1",
        "status.storage.replication.factor = 1",
        "config.storage.replication.factor = 1",
        *own,
    ]
    file.write_text("\n".join(lines) + "\n", encoding="latin-1")


def read_values(region: KafkaAddress, topic: str) -> Partitions:
    """Return the values of every partition in order; empty where the topic does not exist."""
    logs = read(region, topic, timeout_s=DEADLINE_S)
    return {
        number: [it.value or b"" for it in logs[number].records] if number in logs else []
        for number in range(PARTITIONS)
    }


def formatted_by_java(region: KafkaAddress, topic: str, formatter: str, count: int) -> list[str]:
    """Print the first ``count`` records of a topic with one of MirrorMaker's own formatters."""
    printed = run_java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        region.bootstrap_servers,
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "earliest",
        "--max-messages",
        str(count),
        "--timeout-ms",
        "30000",
        "--formatter",
        f"org.apache.kafka.connect.mirror.formatters.{formatter}",
        timeout_s=90,
    )
    return [line for line in printed.check().splitlines() if "{" in line]
