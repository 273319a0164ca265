"""Jobs on a standalone cluster of two workers that changes all the time: dynamic allocation from none on, speculation, decommissioning, kills.

Half of a history is in one partition. Executors, workers, machines that announce their end, and drivers go by turns while each job runs, and the same
command continues it. What is there at the end is read by confluent-kafka and pyarrow. The last test measures how the slots are used, from Spark's own event log.
"""

import hashlib
import itertools
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, cast, final

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.integration.mirror_process import Flow, until
from tests.integration.setups import Setup
from tests.integration.traffic import Sent, ends, write
from tests.kit.kafka.region import KafkaAddress
from tests.spark.backfill_process import BackfillProcess, Ended, cpu_s
from tests.spark.long_logs import Digest, digests, write_many
from tests.spark.standalone_cluster import QUICK_JVM, StandaloneCluster, StandaloneWorker

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.spark,
    pytest.mark.integration,
    pytest.mark.timeout(3_600),
]

log = logging.getLogger(__name__)

Headers = Sequence[Mapping[str, object]]

DURATION_S: Final = float(os.environ.get("MM2PY_CHAOS_CLUSTER_S", "600"))
"""Of the faults, for each job."""

RECORDS: Final = int(os.environ.get("MM2PY_CHAOS_CLUSTER_RECORDS", "2000000"))
SHARES: Final = (6, 1, 1, 1, 1, 1, 1)
"""Of the records, by partition."""

RECORD_BYTES: Final = 110
READING: Final = str(RECORDS * RECORD_BYTES // 20)
"""Bytes per second, so that an undisturbed run takes this many seconds."""

FAULTS_OF_READING: Final = 3
"""In a run that begins anew each time: with more it would never end."""

LANES_CPU_S: Final = 1.0
FAST: Final = "100000000"
MOVES_WITHIN_S: Final = 900
"""Beside other processes on this machine: a driver, an executor and a survey have to start for it."""

FEW, ALTERED = 10_000, 7_777

SPARK_DEFAULTS: Final = """\
spark.cores.max 2
spark.decommission.enabled true
spark.driver.extraJavaOptions {quick}
spark.dynamicAllocation.enabled true
spark.dynamicAllocation.executorIdleTimeout 5s
spark.dynamicAllocation.minExecutors 0
spark.dynamicAllocation.shuffleTracking.enabled true
spark.eventLog.compress false
spark.eventLog.dir {events}
spark.eventLog.enabled true
spark.eventLog.rolling.enabled false
spark.executor.cores 1
spark.executor.extraJavaOptions {quick}
spark.executor.heartbeatInterval 4s
spark.executor.memory 512m
spark.network.timeout 20s
spark.network.timeoutInterval 5s
spark.speculation true
spark.speculation.multiplier 1.5
spark.speculation.quantile 0.5
"""


@final
class Place:
    """A cluster, and where its drivers find their settings and write their events."""

    def __init__(self, folder: Path, cluster: StandaloneCluster) -> None:
        self.cluster, self.events = cluster, folder / "events"
        self.events.mkdir()
        conf = folder / "spark-conf"
        conf.mkdir()
        defaults = SPARK_DEFAULTS.format(events=self.events, quick=" ".join(QUICK_JVM))
        (conf / "spark-defaults.conf").write_text(defaults)
        self._environ = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._cpu = dict[int, float]()

    def start(self, flow: Flow, words: Sequence[str], *options: str) -> BackfillProcess:
        """Start a command."""
        master = self.cluster.master
        return BackfillProcess(flow, *options, master=master, environ=self._environ, words=words)

    def run(self, flow: Flow, words: Sequence[str], *options: str) -> Ended:
        """Run a command to its end, without faults."""
        with self.start(flow, words, *options) as running:
            return running.wait(MOVES_WITHIN_S)

    def lanes_cpu_s(self) -> float:
        """Return what all lanes have used so far, those that are gone too."""
        for worker in self.cluster.workers:
            for pid in worker.lanes():  # which may be gone now
                self._cpu[pid] = max(self._cpu.get(pid, 0.0), cpu_s(pid))
        return sum(self._cpu.values())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with StandaloneCluster(tmp_path, workers=2) as cluster:
        yield Place(tmp_path, cluster)


def history(setup: Setup, name: str, *, on: KafkaAddress | None = None) -> str:
    """Write a topic of which one partition has half."""
    topic = setup.topic(name, len(SHARES), on=on, config={"retention.ms": "-1"})
    write_many(on or setup.a, topic, counts())
    return topic


def counts() -> list[int]:
    return [RECORDS * it // sum(SHARES) for it in SHARES]


def truth_of(setup: Setup, topic: str) -> dict[int, Digest]:
    """Return what ``history`` has written."""
    truth = digests(setup.a, topic)
    assert [truth[it].records for it in sorted(truth)] == counts()
    return truth


# ---- faults


@final
@dataclass(slots=True)
class Chaos:
    """Runs one command again and again, under faults by turns.

    ``moved`` grows with what the lanes have done, and a fault waits until it has by ``step``.
    """

    place: Place
    start: Callable[[], BackfillProcess]
    moved: Callable[[], float]
    step: float
    ended: list[Ended] = field(default_factory=list[Ended])
    faults: Counter[str] = field(default_factory=Counter[str])

    @property
    def answers(self) -> list[Ended]:
        """The runs that did not fail."""
        return [it for it in self.ended if it.code != 1]

    def run(
        self, within_s: float, *, of_a_run: int = sys.maxsize, runs: int = 0
    ) -> BackfillProcess:
        """Return the run that is left when the time is over and so many ``runs`` had an answer.

        ``of_a_run``: after so many faults a run is left to its end, and the next one starts.
        """
        deadline, running, left = time.monotonic() + within_s, self.start(), of_a_run
        turns = itertools.cycle(
            (self._executor, self._machine, self._driver, self._going, self._executor, self._worker)
        )
        workers = itertools.cycle(self.place.cluster.workers)
        while time.monotonic() < deadline or len(self.answers) < runs:
            if left and self._moves(running):
                left -= 1
                running = next(turns)(running, next(workers))
            else:
                self._end(running)
                running, left = self.start(), of_a_run
        log.warning(
            "faults %s, runs that ended %s", self.faults, Counter(it.code for it in self.ended)
        )
        return running

    def _moves(self, running: BackfillProcess) -> bool:
        """Wait for progress; return whether the run is still there then."""
        goal = self.moved() + self.step
        until(
            lambda: not running.is_running or self.moved() >= goal,
            MOVES_WITHIN_S,
            lambda: f"progress of the lanes, after {self.faults}: {running.said()[-3:]}",
        )
        return running.is_running

    def _end(self, running: BackfillProcess) -> None:
        with running:
            self.ended.append(running.wait(MOVES_WITHIN_S))
        ended = self.ended[-1]
        if ended.code == 1:
            log.warning("a run has ended: %s", ended.err.splitlines()[-1])

    def _executor(self, running: BackfillProcess, worker: StandaloneWorker) -> BackfillProcess:
        if not worker.kill_executor():
            worker = next(it for it in self.place.cluster.workers if it is not worker)
            worker.kill_executor()
        self.faults["executor"] += 1
        return running

    def _machine(self, running: BackfillProcess, worker: StandaloneWorker) -> BackfillProcess:
        worker.kill()
        self.faults["machine"] += 1
        self._moves(running)
        worker.start()
        worker.wait_ready()
        return running

    def _worker(self, running: BackfillProcess, worker: StandaloneWorker) -> BackfillProcess:
        worker.kill_alone()
        self.faults["worker alone"] += 1
        worker.start()
        worker.wait_ready()
        return running

    def _going(self, running: BackfillProcess, worker: StandaloneWorker) -> BackfillProcess:
        """A machine that announces its end, and dies while its lanes still run."""
        worker.decommission()
        self.faults["decommissioned"] += 1
        self._moves(running)
        worker.kill()
        worker.start()
        worker.wait_ready()
        return running

    def _driver(self, running: BackfillProcess, _worker: StandaloneWorker) -> BackfillProcess:
        """Kill a driver with all below it, the next time its JVM alone."""
        self.faults["driver"] += 1
        if self.faults["driver"] % 2:
            with running:
                running.kill()
        else:
            running.kill_jvm()
            self._end(running)
        return self.start()


def finished(running: BackfillProcess, run: Callable[[], Ended]) -> Ended:
    """End a slow run, and have a fast one complete what it has left."""
    with running:
        running.kill()
    ended = run()
    assert ended.code == 0, ended.err
    assert ended.report["state"] == "DONE"
    return ended


def pace() -> str:
    """Return the bytes per second with which a copy lasts as long as the faults and a half more."""
    return str(int(RECORDS * RECORD_BYTES / DURATION_S / 1.5))


def test_a_backfill_loses_and_doubles_nothing(setup: Setup, place: Place) -> None:
    topic = history(setup, "copied")
    flow = setup.flow(topic)
    words = "backfill", "run"
    copy = flow.remote(topic)

    def moved() -> float:
        return sum(ends(flow.target, copy).values())

    slow = "--rate-limit", pace()
    chaos = Chaos(place, lambda: place.start(flow, words, *slow), moved, RECORDS / 200)
    running = chaos.run(DURATION_S)
    finished(running, lambda: place.run(flow, words, "--rate-limit", FAST))
    assert digests(setup.b, copy) == truth_of(setup, topic)


def test_a_restore_loses_and_doubles_nothing(setup: Setup, place: Place) -> None:
    topic = history(setup, "restored")
    flow = setup.flow(topic)
    folder = str(setup.folder / "archive")
    archived = place.run(flow, ("archive",), "--to", folder)
    assert (archived.code, archived.report["records"]) == (0, sum(counts())), archived.err
    copy = flow.remote(topic)

    def moved() -> float:
        return sum(ends(flow.target, copy).values())

    options = "--from", folder, "--rate-limit"
    chaos = Chaos(
        place, lambda: place.start(flow, ("restore",), *options, pace()), moved, RECORDS / 200
    )
    running = chaos.run(DURATION_S)
    finished(running, lambda: place.run(flow, ("restore",), *options, FAST))
    assert digests(setup.b, copy) == truth_of(setup, topic)


def test_a_verify_finds_what_is_different_and_nothing_else(setup: Setup, place: Place) -> None:
    """A copy by the flow, and one by another program, of which a record in the middle is altered."""
    good, wrong = history(setup, "good"), setup.topic("wrong")
    flow = setup.flow(f"{good}, {wrong}")
    setup.create_topic(setup.b, flow.remote(wrong), 1)
    filled = place.run(flow, ("backfill", "run"), "--topics", good)
    assert (filled.code, filled.report["state"]) == (0, "DONE"), filled.err
    few = [Sent(0, b"%d" % it, timestamp_ms=1_700_000_000_000 + it) for it in range(FEW)]
    write(setup.a, wrong, few)
    write(
        setup.b,
        flow.remote(wrong),
        [*few[:ALTERED], few[ALTERED]._replace(value=b"!"), *few[ALTERED + 1 :]],
    )
    options = "--rate-limit", READING, "--topics"

    def is_equal(number: int) -> bool:
        return number % 2 == 0

    def start() -> BackfillProcess:
        topics = good if is_equal(len(chaos.answers)) else f"{good}, {wrong}"
        return place.start(flow, ("verify",), *options, topics)

    chaos = Chaos(place, start, place.lanes_cpu_s, LANES_CPU_S)
    with chaos.run(DURATION_S, of_a_run=FAULTS_OF_READING, runs=2) as running:
        running.kill()
    for number, ended in enumerate(chaos.answers):
        found = {(it["topic"], it["kind"], it["source_offset"]) for it in ended.rows("differences")}
        if is_equal(number):
            assert (ended.code, found, ended.report["equal"]) == (0, set(), True), ended.report
            assert ended.report["checked_records"] == sum(counts())
        else:
            assert (ended.code, found) == (4, {(wrong, "altered", ALTERED)}), ended.report
            # What is altered is not counted among those that were found equal.
            assert ended.report["checked_records"] == sum(counts()) + FEW - 1


def test_an_archive_has_each_record_once(setup: Setup, place: Place) -> None:
    topic = history(setup, "archived")
    flow = setup.flow(topic)
    truth = truth_of(setup, topic)

    def folder() -> Path:
        """Return another one after each run that has done all."""
        return setup.folder / f"archive-{len(chaos.answers)}"

    def start() -> BackfillProcess:
        options = "--shape", "records", "--rate-limit", READING, "--to", str(folder())
        return place.start(flow, ("archive",), *options)

    chaos = Chaos(place, start, place.lanes_cpu_s, LANES_CPU_S)
    with chaos.run(DURATION_S, of_a_run=FAULTS_OF_READING, runs=2) as running:
        running.kill()
    first: dict[int, pa.Table] = {}
    for ended in chaos.answers:
        assert ended.code == 0, ended.err
        rows = archived_rows(Path(str(ended.report["path"])) / f"topic={topic}")
        if not first:
            first = rows
            assert {it: digest_of(table) for it, table in rows.items()} == truth
        assert rows == first


def archived_rows(folder: Path) -> dict[int, pa.Table]:
    """Read the partitions of an archive of records with pyarrow, files that no manifest names too."""
    found: dict[int, pa.Table] = {}
    for part in folder.glob("partition=*"):
        files = sorted(part.rglob("*.parquet"), key=lambda it: int(it.name.partition("-")[0]))
        opened = (parquet.ParquetFile(pa.BufferReader(it.read_bytes())) for it in files)
        tables = (it.read(("offset", "timestamp", "key", "value", "headers")) for it in opened)
        batches = [batch for it in tables for batch in it.to_batches()]
        found[int(part.name.partition("=")[2])] = pa.Table.from_batches(batches)
    return found


def digest_of(table: pa.Table) -> Digest:
    """Return what ``digests`` returns of a topic."""
    content, end = hashlib.blake2b(digest_size=16), 0
    for batch in table.to_batches():
        for row in batch.to_pylist():
            stamp, headers = cast("datetime", row["timestamp"]), cast("Headers", row["headers"])
            named = [(it["key"], it["value"]) for it in headers]
            shown = (1, round(stamp.timestamp() * 1000)), row["key"], row["value"], named
            content.update(repr((row["offset"], *shown)).encode())
            end = int(str(row["offset"])) + 1
    return Digest(table.num_rows, end, content.hexdigest())


# ---- how the slots are used


class Use(NamedTuple):
    """Of the slots, by the attempts that Spark took an answer of.

    ``share``: of the time from the moment when all executors were there; ``tail``: the part of it after which a slot had nothing to do.
    """

    span_s: float
    longest_s: float
    share: float
    tail: float
    lanes: int
    speculative: int


def used(place: Place, slots: int = 2) -> Use:
    """Return what the newest event log has of its lanes."""
    newest = max(place.events.iterdir(), key=lambda it: it.stat().st_mtime)
    events = [json.loads(line) for line in newest.read_text().splitlines()]
    ended = [it for it in events if it["Event"] == "SparkListenerTaskEnd"]
    added = [it["Timestamp"] for it in events if it["Event"] == "SparkListenerExecutorAdded"]
    good = [it["Task Info"] for it in ended if it["Task End Reason"]["Reason"] == "Success"]
    times = [(it["Launch Time"], it["Finish Time"]) for it in good]
    end = max(finish for _, finish in times)
    begin = max(min(begun for begun, _ in times), *added[:slots])
    busy = sum(finish - max(begun, begin) for begun, finish in times if finish > begin)
    # The slot that was free first, for good: the last attempts of all slots end then or later.
    lasts = sorted((finish for _, finish in times), reverse=True)[:slots]
    return Use(
        span_s=(end - min(begun for begun, _ in times)) / 1000,
        longest_s=max(finish - begun for begun, finish in times) / 1000,
        share=busy / slots / (end - begin),
        tail=(end - lasts[-1]) / (end - begin),
        lanes=len(good),
        speculative=sum(it["Task Info"]["Speculative"] for it in ended),
    )


def test_a_skewed_history_uses_all_slots_and_its_copy_lasts_as_long_as_its_longest_partition(
    setup: Setup, place: Place
) -> None:
    topic, alone = history(setup, "skewed"), setup.topic("alone", config={"retention.ms": "-1"})
    write_many(setup.a, alone, counts()[:1])
    flow = setup.flow(f"{topic}, {alone}")
    # As fast as a lane, not as fast as two cores with two brokers are.
    lane_rate = RECORDS * RECORD_BYTES // 120

    def done(words: Sequence[str], *options: str) -> Use:
        ended = place.run(flow, words, *options)
        assert ended.code == 0, ended.err
        use = used(place)
        log.warning("%s: %s", " ".join(words), use)
        return use

    backfill = "backfill", "run"
    reference = done(backfill, "--topics", alone, "--rate-limit", str(lane_rate))
    copy = done(backfill, "--topics", topic, "--rate-limit", str(2 * lane_rate))
    log.warning("copy by its longest partition alone: %.3f", copy.span_s / reference.span_s)
    verify = done(("verify",), "--topics", topic)
    archive = done(("archive",), "--topics", topic, "--to", str(setup.folder / "archive"))
    log.warning("share of the slots: verify %.2f, archive %.2f", verify.share, archive.share)
