"""What a lane of a restore reads; the names are the contract of tasks and the invariants of ``mm2py_jobs.archive.archive_task``."""

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from mm2py.api.context import PartitionState
from mm2py.api.task import BatchSourceTask, Delivery, Run
from mm2py.client.pacing import ByteRate
from mm2py.errors import ConfigError
from mm2py.mirror.backfills import Job, JobState
from mm2py.mirror.source_offsets import mirror_source_partition, source_offset
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.contexts import FakeTaskContext
from mm2py.testing.task_contract import BatchTaskContract, ended
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive import run_lane
from mm2py_jobs.archive.archive_format import (
    BATCHES,
    ArchivedTopic,
    ArchiveHead,
    FileManifest,
    Shape,
    batch_row,
    chain_of,
    manifest_stem,
    note_ranges,
    partition_folder,
    put_manifest,
    put_or_check,
)
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.archive_task import ArchiveTask
from mm2py_jobs.archive.restore import read_archive
from mm2py_jobs.archive.restore_runs import run_each
from mm2py_jobs.copy.archive_order import ArchivedCopy, TaskArchive
from mm2py_jobs.copy.backfill import STOPPED
from mm2py_jobs.log.log_batches import log_batch
from mm2py_jobs.spark.session import require_spark
from tests.kit.fakes.broker import FakeBroker

ONE, TWO = TopicPartition("one", 0), TopicPartition("two", 0)
BUDGET = 1 << 20


def delivery(source: TopicPartition, *runs: Run) -> Delivery:
    return Delivery(source, TopicPartition(f"A.{source.topic}", 0), runs, 0, 0)


def a_batch(first: int) -> bytearray:
    """Return five records from ``first`` on."""
    data = encode_batch([NewRecord(b"k", b"%d" % n) for n in range(5)])
    data[:8] = first.to_bytes(8)
    return data


def publish(
    store: ArchiveStore,
    tp: TopicPartition,
    first: int,
    end: int,
    batches: Sequence[bytearray] | None = None,
    *,
    lost_from: int = -1,
) -> Path:
    """Write a file with these batches, or with batches of five records; return where it is."""
    made = [a_batch(at) for at in range(first, end, 5)] if batches is None else batches
    logged = [log_batch(memoryview(it)) for it in made]
    rows = [batch_row(it) for it in logged]
    arrays = [
        pa.array(list(column), BATCHES.field(at).type)
        for at, column in enumerate(zip(*rows, strict=True))
    ]
    out = pa.BufferOutputStream()
    writer = parquet.ParquetWriter(out, BATCHES)
    writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=BATCHES))
    writer.close()
    data, name = out.getvalue().to_pybytes(), f"{first}-{end}.parquet"
    store.replace(f"{partition_folder(tp)}/{name}", data)
    manifest = FileManifest(
        topic=tp.topic,
        partition=tp.partition,
        first=first,
        end=end,
        records=sum(it.count for it in logged),
        size_bytes=len(data),
        file=name,
        sha256=sha256(data).hexdigest(),
        lost_from=lost_from,
    )
    put_manifest(store, manifest)
    return Path(store.path, partition_folder(tp), name)


def an_archive(path: Path) -> TaskArchive:
    store = ArchiveStore(str(path))
    for tp in (ONE, TWO):
        publish(store, tp, 0, 20)
        publish(store, tp, 20, 40)
    topics = {tp.topic: ArchivedCopy(tp.topic, "", f"A.{tp.topic}") for tp in (ONE, TWO)}
    return TaskArchive(str(path), topics, {ONE: 40, TWO: 40}, {ONE: 0, TWO: 0})


@pytest.fixture
def archive(tmp_path: Path) -> TaskArchive:
    return an_archive(tmp_path)


async def firsts(
    context: FakeTaskContext, task: BatchSourceTask, polls: int = 20
) -> dict[TopicPartition, list[int]]:
    """Return what is handed out, and deliver it from target offset 0 on."""
    found: dict[TopicPartition, list[int]] = {}
    at: dict[TopicPartition, int] = {}
    for _ in range(polls):
        for outgoing in await ended(context, task.poll(BUDGET)):
            runs: list[Run] = []
            for batch in outgoing.batches:
                found.setdefault(outgoing.source, []).append(batch.base_offset)
                target = at.get(outgoing.source, 0)
                at[outgoing.source] = target + batch.count
                runs.append(Run(batch.base_offset, batch.count, target))
            task.delivered(delivery(outgoing.source, *runs))
    return found


class TestArchiveTask(BatchTaskContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def _folder(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            yield

    def open_task(self, context: FakeTaskContext) -> BatchSourceTask:
        return ArchiveTask(an_archive(self.folder), "A", context)


@pytest.mark.parametrize(
    ("stored", "end", "expected"),
    [(-1, 40, range(0, 40, 5)), (24, 40, range(25, 40, 5)), (19, 20, range(0))],
)
async def test_batches_leave_in_order_from_the_stored_position_on_and_none_behind_the_end(
    archive: TaskArchive, stored: int, end: int, expected: Sequence[int]
) -> None:
    context = FakeTaskContext()
    if stored >= 0:
        context.store(mirror_source_partition("A", ONE), source_offset(stored))
    task = ArchiveTask(archive._replace(ends={ONE: end}), "A", context)
    await task.start()
    assert (await firsts(context, task)).get(ONE, []) == list(expected)
    assert context.covered == [(ONE, end - 1)]
    await task.stop()


async def test_a_file_whose_digest_is_wrong_fails_its_partition_alone(archive: TaskArchive) -> None:
    file = Path(archive.path, partition_folder(ONE), "20-40.parquet")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    context = FakeTaskContext()
    task = ArchiveTask(archive, "A", context)
    await task.start()
    found = await firsts(context, task, 60)
    assert found == {ONE: [0, 5, 10, 15], TWO: list(range(0, 40, 5))}
    ((partition, state, cause),) = context.states
    assert (partition, state) == (ONE, PartitionState.FAILED)
    assert "20-40.parquet has" in cause
    assert context.covered == [(TWO, 39)]
    await task.stop()


async def test_a_partition_is_covered_when_everything_is_delivered(archive: TaskArchive) -> None:
    context = FakeTaskContext()
    task = ArchiveTask(archive._replace(ends={ONE: 40}), "A", context)
    await task.start()
    outgoing = [it for _ in range(10) for it in await ended(context, task.poll(BUDGET))]
    assert sum(len(it.batches) for it in outgoing) == 8
    assert context.covered == []
    task.delivered(delivery(ONE, Run(0, 40, 0)))
    await ended(context, task.poll(BUDGET))
    assert context.covered == [(ONE, 39)]
    await task.stop()


async def test_records_that_do_not_follow_end_their_partition(archive: TaskArchive) -> None:
    context = FakeTaskContext()
    task = ArchiveTask(archive._replace(ends={ONE: 40}), "A", context)
    await task.start()
    (outgoing,) = await ended(context, task.poll(BUDGET))
    task.delivered(delivery(outgoing.source, Run(0, 5, 0), Run(5, 5, 6)))
    ((_, state, cause),) = context.states
    assert state is PartitionState.FAILED
    assert "stored at offset 6 of A.one-0, expected 5" in cause
    assert not await ended(context, task.poll(BUDGET))
    await task.stop()


@pytest.mark.parametrize(
    ("gone", "stored"), [("first", 4), ("first", -1), ("last", 4), ("last", 39), ("both", 19)]
)
async def test_a_partition_whose_files_are_gone_since_it_was_planned_is_not_restored(
    archive: TaskArchive, gone: str, stored: int
) -> None:
    for name in ("first", "last"):
        if gone in (name, "both"):
            begins = {"first": 0, "last": 20}[name]
            Path(archive.path, f"{manifest_stem(ONE, begins)}.json").unlink()
    context = FakeTaskContext()
    if stored >= 0:
        context.store(mirror_source_partition("A", ONE), source_offset(stored))
    task = ArchiveTask(archive, "A", context)
    await task.start()
    found = await firsts(context, task, 60)
    assert found == {TWO: list(range(0, 40, 5))}
    ((partition, state, cause),) = context.states
    assert (partition, state) == (ONE, PartitionState.FAILED)
    assert "were to be restored, the archive has" in cause
    assert context.covered == [(TWO, 39)]
    await task.stop()


async def test_what_two_files_have_leaves_once(tmp_path: Path) -> None:
    """As two writers of a store without hard links leave it."""
    store = ArchiveStore(str(tmp_path))
    for first, end in ((0, 20), (10, 40), (15, 30), (40, 50)):
        publish(store, ONE, first, end)
    topics = {ONE.topic: ArchivedCopy(ONE.topic, "", "A.one")}
    context = FakeTaskContext()
    archive = TaskArchive(str(tmp_path), topics, {ONE: 50}, {ONE: 0})
    task = ArchiveTask(TaskArchive.parse(archive.to_text()), "A", context)
    await task.start()
    assert (await firsts(context, task)) == {ONE: list(range(0, 50, 5))}
    assert context.covered == [(ONE, 49)]
    await task.stop()


async def test_a_rate_limits_what_is_handed_out(archive: TaskArchive) -> None:
    context = FakeTaskContext()
    size = len(a_batch(0))
    rate = ByteRate(size, context.clock)
    task = ArchiveTask(archive._replace(ends={ONE: 40}), "A", context, rate)
    await task.start()
    begun = context.clock.monotonic()
    for _ in range(200):
        await ended(context, task.poll(1))
    task.delivered(delivery(ONE, Run(0, 40, 0)))
    await ended(context, task.poll(1))
    assert context.covered
    assert context.clock.monotonic() - begun >= 7
    await task.stop()


# -- what people do with jobs on a machine without Spark


_CODE = """
import sys
for name in ("pyspark", "pyarrow", "pandas"):
    sys.modules[name] = None
"""


def _without_spark(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _CODE + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)


async def archived(store: ArchiveStore, broker: FakeBroker, end: int) -> dict[str, object]:
    """Archive ``t-0`` up to an end, as a lane does; return the answer about it."""
    lane = {
        "path": store.path,
        "shape": "batches",
        "source": {"bootstrap.servers": f"127.0.0.1:{broker.port}"},
        "alias": "A",
        "partitions": [("t", 0, 0, end, -1)],
        "finds_mirrors": False,
        "is_dated": True,
        "read_committed": False,
        "rate": 0,
    }
    (answer,) = cast("list[dict[str, object]]", (await asyncio.to_thread(run_lane, lane))["partitions"])  # fmt: skip
    return answer


async def test_the_slower_one_of_two_attempts_of_a_lane_continues_behind_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``spark.speculation``: the first answer counts, also that of the attempt that came second with each file."""
    tp = TopicPartition("t", 0)

    put, waiting = ArchiveStore.publish, [manifest_stem(tp, 0)]

    def put_behind(store: ArchiveStore, stem: str, kind: str, data: bytes) -> bool:
        """The other attempt has published the first file while this one read it."""
        if stem in waiting:
            waiting.remove(stem)
            publish(store, tp, 0, 10)
        return put(store, stem, kind, data)

    monkeypatch.setattr(ArchiveStore, "publish", put_behind)
    store = ArchiveStore(str(tmp_path))
    async with FakeBroker(topics={"t": 1}) as broker:
        for _ in range(4):
            broker.append(tp, bytes(a_batch(0)))
        topic_id = broker.cluster.topics["t"].topic_id.hex()
        stored = ArchivedTopic(topic="t", topic_id=topic_id, partitions=1, configs={}, begins={})
        put_or_check(store, "topic=t/topic.json", stored)
        answer = await archived(store, broker, 20)
    assert (answer["to"], answer["cause"], answer["records"], answer["files"]) == (20, "", 20, 2)
    assert [(it.first, it.end) for it in chain_of(store, tp)] == [(0, 10), (10, 20)]


async def test_what_one_attempt_found_lost_is_reported_by_the_next_one_too(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    ranges = (("first", 0, 20, -1), ("end", 50, 100, 20))
    for name, first, end, lost_from in ranges:
        manifest = FileManifest(
            topic="t", partition=0, first=first, end=end, records=0, size_bytes=0, file=name, sha256="", lost_from=lost_from
        )  # fmt: skip
        put_manifest(store, manifest)
    async with FakeBroker(topics={"t": 1}) as broker:
        answer = await archived(store, broker, 100)
    assert (answer["to"], answer["files"], answer["cause"]) == (100, 2, "")
    assert (answer["lost_from"], answer["lost_to"]) == (20, 50)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"later": [1]}, ""),
        ({"end": "later"}, "end Input should be a valid integer"),
        ({"mirrors": [[7, "A"]]}, "mirrors"),
        ({"file": "../../topic=other/0-20.parquet"}, "its file is in another folder"),
    ],
)
def test_a_manifest_of_a_later_version_is_read_and_a_damaged_one_is_named(
    tmp_path: Path, changed: Mapping[str, object], said: str
) -> None:
    store = ArchiveStore(str(tmp_path))
    publish(store, ONE, 0, 20)
    data = store.read(f"{manifest_stem(ONE, 0)}.json")
    (manifest,) = chain_of(store, ONE)
    assert FileManifest.parse(data, "m") == manifest
    other = json.dumps(json.loads(data) | changed).encode()
    if not said:
        assert FileManifest.parse(other, "m") == manifest
        return
    with pytest.raises(ConfigError, match=f"^m is damaged: .*{said}"):
        FileManifest.parse(other, "m")


@pytest.mark.parametrize(
    ("begins", "ends", "noted", "left", "lost"),
    [
        ({"0": 0}, {}, None, True, 20),
        ({"0": 20}, {}, None, True, 0),
        ({}, {}, None, True, 0),
        ({"0": 0}, {"0": 45}, None, True, 25),
        ({"0": 20}, {"0": 30}, None, True, 0),  # it went on
        ({"0": 20}, {"0": 30}, (20, 90), True, 50),  # its last files are gone
        ({"0": 5}, {"0": 40}, None, False, 35),
        ({"0": 5}, {"0": 5}, None, False, 0),
        ({"0": 5}, {"0": 5}, (5, 40), False, 35),  # it was empty at first
        ({}, {}, (7, 40), False, 33),  # of a partition that came later
    ],
)
def test_files_that_are_gone_from_an_archive_are_named(
    tmp_path: Path,
    begins: dict[str, int],
    ends: dict[str, int],
    noted: tuple[int, int] | None,
    lost: int,
    *,
    left: bool,
) -> None:
    store = ArchiveStore(str(tmp_path))
    head = ArchiveHead(flow="A->B", source_cluster="a", shape=Shape.BATCHES)
    put_or_check(store, "manifest.json", head)
    topic = ArchivedTopic(
        topic="one", topic_id="", partitions=1, configs={}, begins=begins, ends=ends
    )
    put_or_check(store, "topic=one/topic.json", topic)
    if left:
        publish(store, ONE, 20, 40)
    if noted is not None:
        note_ranges(store, "one", {0: noted})
        note_ranges(store, "one", {0: (20, 30)})  # of a run that was slower
    (log,) = read_archive(store, lambda _: True, lambda name: f"A.{name}")
    assert (log.begins, log.end, log.lost) == ((20, 40, lost) if left else (0, 0, lost))


@pytest.mark.parametrize(
    ("hurt", "missing", "end"), [(20, True, 60), (20, False, 60), (40, False, 41)]
)
def test_a_partition_with_a_broken_chain_is_planned_and_fails_alone(
    tmp_path: Path, hurt: int, end: int, *, missing: bool
) -> None:
    """Left out of the plan it would not be reserved, and the flow copied on behind what is archived."""
    store = ArchiveStore(str(tmp_path))
    put_or_check(store, "manifest.json", ArchiveHead(flow="A->B", source_cluster="a", shape=Shape.BATCHES))  # fmt: skip
    for tp in (ONE, TWO):
        topic = ArchivedTopic(topic=tp.topic, topic_id="", partitions=1, configs={})
        put_or_check(store, f"topic={tp.topic}/topic.json", topic)
        for first in (0, 20, 40):
            publish(store, tp, first, first + 20)
    manifest = Path(store.path, manifest_stem(ONE, hurt)).with_suffix(".json")
    manifest.write_bytes(manifest.read_bytes()[:9])
    if missing:
        manifest.unlink()
    logs = {it.topic.topic: it for it in read_archive(store, lambda _: True, lambda name: name)}
    one, two = logs[ONE.topic], logs[TWO.topic]
    assert (one.begins, one.end, bool(one.broken)) == (0, end, True)
    assert (two.begins, two.end, two.broken) == (0, 60, "")


def test_many_partitions_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, the 320,000 manifests of 20 TB in an object store take hours."""
    store, count = ArchiveStore(str(tmp_path)), 8
    put_or_check(store, "manifest.json", ArchiveHead(flow="A->B", source_cluster="a", shape=Shape.BATCHES))  # fmt: skip
    topic = ArchivedTopic(topic="one", topic_id="", partitions=count, configs={})
    put_or_check(store, "topic=one/topic.json", topic)
    for number in range(count):
        publish(store, TopicPartition("one", number), 0, 20 + number)
    together, read = threading.Barrier(count, timeout=90), ArchiveStore.read

    def waiting(store: ArchiveStore, name: str) -> bytes:
        if "partition=" in name:
            together.wait()
        return read(store, name)

    monkeypatch.setattr(ArchiveStore, "read", waiting)
    logs = read_archive(store, lambda _: True, lambda name: name)
    assert [(it.partition, it.end) for it in logs] == [(it, 20 + it) for it in range(count)]


def test_what_a_killed_run_has_archived_ahead_is_named(tmp_path: Path) -> None:
    store = ArchiveStore(str(tmp_path))
    put_or_check(store, "manifest.json", ArchiveHead(flow="A->B", source_cluster="a", shape=Shape.BATCHES))  # fmt: skip
    topic = ArchivedTopic(topic="one", topic_id="", partitions=1, configs={})
    put_or_check(store, "topic=one/topic.json", topic)
    publish(store, ONE, 0, 20)
    for first, end in ((20, 40), (60, 80)):
        publish(store, ONE, first, end)
        stem = Path(store.path, manifest_stem(ONE, first))
        stem.with_suffix(".json").rename(stem.with_suffix(".staged"))
    (log,) = read_archive(store, lambda _: True, lambda name: f"A.{name}")
    assert (log.end, log.records, log.ahead) == (40, 40, 20)  # the first one is due


async def test_a_restore_that_is_stopped_or_cancelled_begins_no_further_part() -> None:
    def run(job: Job) -> Callable[[], Awaitable[Job]]:
        async def ended() -> Job:
            return job

        return ended

    done = Job(id="j", state=JobState.DONE, run=1, lanes=1)
    damaged = replace(done, state=JobState.FAILED, cause="1 partitions are not copied")
    assert await run_each([run(damaged), run(done)]) == [damaged, done]
    for state, cause in ((JobState.FAILED, STOPPED), (JobState.CANCELLED, "cancelled")):
        ended = replace(done, state=state, cause=cause)
        assert await run_each([run(ended), run(done)]) == [ended]


def test_status_and_cancel_of_jobs_load_neither_pyspark_nor_pyarrow() -> None:
    done = _without_spark(
        "import mm2py_jobs.copy.backfill_runs\nimport mm2py_jobs.copy.stream_runs\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["stream", "archive"])
def test_a_command_that_needs_spark_names_the_extra(tmp_path: Path, command: str) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n")
    given = [command, str(file), "--flow", "A->B"]
    if command == "archive":
        given += ["--to", str(tmp_path)]
    done = _without_spark("from mm2py_cli.entry import mm2py\nmm2py()\n", *given)
    assert done.returncode == 1
    assert "mm2py[spark]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_module_is_named_with_extra(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"no module named {module}") as refused:
        require_spark()
    assert "mm2py[spark]" in str(refused.value.remedy)
