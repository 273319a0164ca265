"""Joined and removed files of an archive, up to what each kill, twin and reader between two steps finds."""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from mm2py.errors import FatalError, UsageError
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.contexts import FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_jobs.archive import archive_upkeep
from mm2py_jobs.archive.archive_format import (
    BATCHES,
    ArchivedTopic,
    ArchiveHead,
    FileManifest,
    Shape,
    archived_batches,
    batch_row,
    chain_of,
    noted_joined,
    offset_at,
    partition_folder,
    put_manifest,
    put_or_check,
    range_of_chain,
)
from mm2py_jobs.archive.archive_removal import remove_doubled
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.archive_task import ArchiveTask
from mm2py_jobs.archive.archive_upkeep import Upkeep, keep_up, planned_upkeep
from mm2py_jobs.archive.restore import read_archive
from mm2py_jobs.copy.archive_order import ArchivedCopy, TaskArchive
from mm2py_jobs.job_options import ArchiveOptions
from mm2py_jobs.log.log_batches import log_batch
from mm2py_jobs.spark.place import SparkPlace
from mm2py_jobs.spark.session import OpenSession
from tests.kit.fakes.broker import FakeBroker
from tests.unit.spark import test_archive_plan
from tests.unit.spark.test_archive_plan import archived, refused, sides, store_in
from tests.unit.spark.test_archive_task import firsts
from tests.unit.spark.test_lanes_that_fail import OneSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T: Final = TopicPartition("t", 0)
DAY_MS: Final = 24 * 3_600_000
NOON_MS: Final = 20_000 * DAY_MS + DAY_MS // 2
JOIN: Final = Upkeep(joins=True)
FLOW: Final = sides(cast("FakeBroker", SimpleNamespace(port=1)))
STEPS: Final = ("delete", "replace")
"""Of a store, as an upkeep takes them."""
Row = dict[str, object]

no_configs = test_archive_plan.no_configs


class KilledError(FatalError):
    """The process ends here."""


def a_file(
    store: ArchiveStore, first: int, stamps: Sequence[int], *, lost: int = 0, cut: int = 0
) -> FileManifest:
    """Publish a file with a batch of five records for each timestamp, as a run of the archive does.

    ``lost`` offsets before it were gone; its manifest is about what follows the first ``cut``.
    """
    rows: list[tuple[object, ...]] = []
    for at, stamp in enumerate(stamps):
        base = first + 5 * at
        data = encode_batch([NewRecord(b"k", b"%d" % (base + it), (), stamp) for it in range(5)])
        rows.append(batch_row(log_batch(memoryview(bytearray(base.to_bytes(8) + bytes(data)[8:])))))
    out = pa.BufferOutputStream()
    writer = parquet.ParquetWriter(out, BATCHES, compression="zstd")
    if rows:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(list(it), BATCHES.field(at).type) for at, it in enumerate(columns)]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=BATCHES))
    writer.close()
    content, end = out.getvalue().to_pybytes(), first + 5 * max(1, len(stamps))
    manifest = FileManifest(
        topic="t",
        partition=0,
        first=first + cut,
        end=end,
        records=5 * len(stamps) - cut,
        size_bytes=len(content),
        file=f"{first + cut:020d}-{end - 1:020d}.{first:x}.parquet",
        sha256=sha256(content).hexdigest(),
        lost_from=first + cut - lost if lost else -1,
        mirrors=[(first // 20, "a", "id", first)],
    )
    store.replace(f"{partition_folder(T)}/{manifest.file}", content)
    assert put_manifest(store, manifest)
    return manifest


def hourly(store: ArchiveStore, files: int = 6) -> None:
    for number in range(files):
        a_file(store, 10 * number, [NOON_MS + number] * 2)


def rows_in(file: Path) -> list[Row]:
    opened = parquet.ParquetFile(pa.BufferReader(file.read_bytes()))
    groups = map(opened.read_row_group, range(opened.num_row_groups))
    return [row for group in groups for row in group.to_pylist()]


def kept_up(path: Path, upkeep: Upkeep = JOIN) -> list[Row]:
    opened = OpenSession(cast("SparkSession", OneSlot()), owned=False)
    return keep_up(FLOW, str(path), upkeep, lambda: opened)


def batches_in(store: ArchiveStore) -> list[bytes]:
    """Return the batches that a restore of all would send, in its order."""
    return [
        bytes(batch.data)
        for manifest in chain_of(store, T)
        for batch in archived_batches(store, manifest)
        if batch.last_offset >= manifest.first
    ]


def ranges(store: ArchiveStore) -> list[tuple[int, int]]:
    return [(it.begins, it.end) for it in chain_of(store, T)]


def files(store: ArchiveStore) -> list[str]:
    return [it for it in store.files(partition_folder(T)) if ".parquet" in it]


def assert_tidy(store: ArchiveStore) -> None:
    """Each manifest and file of a partition counts."""
    named = [it.file for it in chain_of(store, T)]
    assert sorted(named) == files(store)
    assert len(store.files(partition_folder(T))) == 2 * len(named)


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("shape", list(Shape))
async def test_many_runs_leave_one_file_of_a_date_with_the_same_rows_and_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Shape, *, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", refused)

    def rows() -> list[Row]:
        folder = tmp_path / "A-B" / partition_folder(T)
        return [row for it in sorted(folder.rglob("*.parquet")) for row in rows_in(it)]

    async with FakeBroker(topics={"t": 1}) as broker:
        store = store_in(tmp_path)
        batch = encode_batch([NewRecord(b"k", b"%d" % it, (), NOON_MS) for it in range(5)])
        for end in range(5, 35, 5):
            broker.append(T, bytes(batch))
            row = (await archived(broker, tmp_path, shape))["t-0"]
            assert (row["from"], row["to"]) == (end - 5, end)
        before = rows()
        (planned,) = planned_upkeep(FLOW, str(tmp_path), JOIN)
        assert len(files(store)) == planned["joined"] == 6
        assert kept_up(tmp_path) == [planned]
        assert rows() == before
        assert ranges(store) == [(0, 30)]
        assert_tidy(store)
        assert (planned_upkeep(FLOW, str(tmp_path), JOIN), kept_up(tmp_path)) == ([], [])
        broker.append(T, bytes(batch))
        assert (await archived(broker, tmp_path, shape))["t-0"]["from"] == 30
        assert rows()[: -5 if shape is Shape.RECORDS else -1] == before
        assert kept_up(tmp_path)[0]["joined"] == 2
        assert ranges(store) == [(0, 35)]
        assert (await archived(broker, tmp_path, shape)) == {}


LATER_MS: Final = NOON_MS + DAY_MS


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([[NOON_MS], [NOON_MS + 1], [LATER_MS], [LATER_MS]], [(0, 10), (10, 20)]),
        # A date is that of the latest record so far: an older one behind it does not begin one.
        ([[NOON_MS], [LATER_MS], [NOON_MS], [-1], [LATER_MS]], [(0, 5), (5, 25)]),
        ([[-1], [-1], []], [(0, 15)]),
        ([[-1], [NOON_MS], [NOON_MS]], [(0, 5), (5, 15)]),
        ([[NOON_MS] * 3, [NOON_MS] * 2, [NOON_MS]], [(0, 15), (15, 30)]),
        ([[NOON_MS] * 4, [NOON_MS] * 4, [NOON_MS] * 4], [(0, 20), (20, 40), (40, 60)]),
    ],
)
def test_neighbours_of_a_date_are_joined_up_to_the_size_of_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stamps: Sequence[Sequence[int]],
    expected: Sequence[tuple[int, int]],
) -> None:
    store, first = store_in(tmp_path), 0
    for batches in stamps:
        first = a_file(store, first, batches).end
    sizes = [archive_upkeep.footer_of(store, it).bytes for it in chain_of(store, T)]
    if len(stamps) == 3 and len(stamps[0]) > 2:
        monkeypatch.setattr(archive_upkeep, "FILE_BYTES", sizes[0] + sizes[1] - 1)
    before = batches_in(store)
    kept_up(tmp_path)
    assert ranges(store) == list(expected)
    assert batches_in(store) == before
    assert noted_joined(store, "t") == {0: expected[-1][0]}
    assert kept_up(tmp_path) == []


def test_what_was_lost_or_is_in_two_files_is_still_said(tmp_path: Path) -> None:
    """A log that began amid a batch; two runs at once on a bucket."""
    store = store_in(tmp_path)
    for number in range(2):
        a_file(store, 10 * number, [NOON_MS] * 2)
    a_file(store, 30, [NOON_MS] * 2, lost=13, cut=3)
    a_file(store, 40, [NOON_MS] * 2)
    a_file(store, 45, [NOON_MS] * 3)
    a_file(store, 60, [NOON_MS] * 2)
    a_file(store, 70, [NOON_MS] * 2)
    a_file(store, 90, [NOON_MS] * 2, lost=10)
    before, records = batches_in(store), sum(it.records for it in chain_of(store, T))
    assert kept_up(tmp_path)[0]["into"] == 3
    assert ranges(store) == [(0, 20), (20, 50), (50, 60), (60, 80), (80, 100)]
    assert [(it.lost_from, it.first) for it in chain_of(store, T)[1:3]] == [(20, 33), (-1, 50)]
    assert batches_in(store) == before
    assert sum(it.records for it in chain_of(store, T)) == records
    assert [it.mirrors for it in chain_of(store, T)][:2] == [
        [(0, "a", "id", 10)],
        [(1, "a", "id", 30), (2, "a", "id", 40)],
    ]
    assert kept_up(tmp_path) == []


def test_a_further_join_reads_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_in(tmp_path)
    for day in range(5):
        for number in range(2):
            a_file(store, 10 * day + 5 * number, [NOON_MS + day * DAY_MS])
    kept_up(tmp_path)
    reads = test_archive_plan.Reads(monkeypatch)
    assert kept_up(tmp_path) == []
    a_file(store, 50, [NOON_MS + 4 * DAY_MS])
    assert kept_up(tmp_path)[0]["joined"] == 2
    read = [it.rpartition("/")[2] for it in reads.names if "partition=" in it]
    assert {int(it[:20]) for it in read} == {30, 40, 50}
    assert ranges(store) == [(0, 10), (10, 20), (20, 30), (30, 40), (40, 55)]


class Steps:
    """Lets something happen before or after one of the steps that a store takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.is_before = 0, False
        self.event: Callable[[], object] = lambda: None
        for name in STEPS:
            monkeypatch.setattr(ArchiveStore, name, self._stepped(getattr(ArchiveStore, name)))

    def at(self, step: int, event: Callable[[], object], *, is_before: bool = False) -> None:
        self.left, self.event, self.is_before = step, event, is_before

    def _stepped(self, step: Callable[..., object]) -> Callable[..., object]:
        def taken(*arguments: object) -> object:
            self.left -= 1
            is_now = not self.left
            if is_now and self.is_before:
                self.event()
            done = step(*arguments)
            if is_now and not self.is_before:
                self.event()
            return done

        return taken


def killed() -> None:
    raise KilledError("killed")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(archive_upkeep, "each", in_order)
    monkeypatch.setattr("mm2py_jobs.archive.archive_removal.each", in_order)
    return Steps(monkeypatch)


def in_order(work: Callable[[object], object], items: Sequence[object]) -> list[object]:
    return [work(it) for it in items]


STEP_COUNT: Final = 15
"""File, manifest, six manifests and six files that go, and the note."""


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("step", range(1, STEP_COUNT + 1))
def test_a_join_that_is_killed_at_any_step_leaves_an_archive_that_reads_the_same(
    tmp_path: Path, steps: Steps, step: int, *, is_before: bool
) -> None:
    store = store_in(tmp_path)
    hourly(store)
    before = batches_in(store)
    steps.at(step, killed, is_before=is_before)
    try:
        causes = {row["cause"] for row in kept_up(tmp_path)}
    except KilledError:
        causes = {"killed"}
    assert causes == {"killed"}
    assert batches_in(store) == before
    assert range_of_chain(store, T) == (0, 60)
    a_file(store, 60, [NOON_MS] * 2)
    kept_up(tmp_path)
    assert batches_in(store)[: len(before)] == before
    assert ranges(store) == [(0, 70)]
    assert_tidy(store)


def test_a_part_of_a_file_that_a_killed_join_was_writing_is_removed_by_the_next_one(
    tmp_path: Path,
) -> None:
    store = store_in(tmp_path)
    hourly(store)
    name = f"{partition_folder(T)}/{0:020d}-{59:020d}.ab.joined.parquet.cd.tmp"
    store.replace(name, b"PAR1")
    kept_up(tmp_path)
    assert_tidy(store)


@pytest.mark.parametrize("other", ["join", "removal", "orphans", "restore"])
@pytest.mark.parametrize("step", range(1, STEP_COUNT + 1))
def test_beside_a_join_others_do_their_work_between_any_two_steps(
    tmp_path: Path, steps: Steps, step: int, other: str
) -> None:
    """Runs of the archive are in ``tests/property/test_archive_courses.py``."""
    store = store_in(tmp_path)
    hourly(store)
    before, ended = batches_in(store), list[object]()

    def run() -> None:
        if other == "join":
            ended.append([it["cause"] for it in kept_up(tmp_path) if it["cause"]])
        elif other == "removal":
            ended.append(kept_up(tmp_path, Upkeep(oldest_ms=NOON_MS)))
        elif other == "orphans":  # as a run of the archive does at its end
            remove_doubled(store, T)
            ended.append([])
        else:
            ended.append([] if batches_in(store) == before else ["other batches"])

    steps.at(step, run)
    assert [it["cause"] for it in kept_up(tmp_path) if it["cause"]] == []
    assert ended == [[]]
    assert batches_in(store) == before
    kept_up(tmp_path)
    assert ranges(store) == [(0, 60)]
    assert_tidy(store)


@pytest.mark.parametrize("step", range(1, STEP_COUNT))
def test_what_a_twin_that_is_killed_has_left_is_removed_by_the_next_join(
    tmp_path: Path, steps: Steps, step: int
) -> None:
    """The join beside it finds that others have done its work, and not that they have not ended it."""
    store = store_in(tmp_path)
    hourly(store)
    a_file(store, 60, [LATER_MS])  # from where on the next join looks
    before = batches_in(store)

    def run_twin() -> None:
        steps.at(step, killed)
        with suppress(KilledError):
            kept_up(tmp_path)

    steps.at(1, run_twin)
    kept_up(tmp_path)
    steps.left = 0
    kept_up(tmp_path)
    assert batches_in(store) == before
    assert ranges(store) == [(0, 60), (60, 65)]
    assert_tidy(store)


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("step", ["replace", "publish"])
@pytest.mark.parametrize(
    ("upkeep", "stamp", "expected"),
    [
        (JOIN, NOON_MS, [(0, 25)]),
        (JOIN, LATER_MS, [(0, 20), (20, 25)]),
        (Upkeep(oldest_ms=LATER_MS), LATER_MS, [(20, 25)]),
    ],
)
async def test_what_a_frozen_run_publishes_that_others_have_joined_or_removed_breaks_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    upkeep: Upkeep,
    stamp: int,
    expected: Sequence[tuple[int, int]],
    step: str,
    *,
    has_links: bool,
) -> None:
    """Before its file, or between that and its manifest; it is killed after that, or not."""
    store, publish = store_in(tmp_path), ArchiveStore.publish
    frozen = getattr(ArchiveStore, step)
    if not has_links:
        monkeypatch.setattr(os, "link", refused)

    async with FakeBroker(topics={"t": 1}) as broker:

        def write(count: int, stamp: int) -> None:
            for _ in range(count):
                batch = encode_batch([NewRecord(b"k", b"v", (), stamp) for _ in range(5)])
                broker.append(T, bytes(batch))

        def published(*arguments: object) -> object:
            done = publish(*arguments)  # type: ignore[arg-type]
            if upkeep is JOIN:
                raise KilledError("killed")
            return done

        def run_others(*arguments: object) -> object:
            monkeypatch.setattr(ArchiveStore, step, frozen)
            monkeypatch.setattr(ArchiveStore, "publish", publish)
            for it in (NOON_MS, stamp):
                write(1, it)
                asyncio.run(archived(broker, tmp_path, Shape.RECORDS))
            kept_up(tmp_path, upkeep)
            monkeypatch.setattr(ArchiveStore, "publish", published)
            return (published if step == "publish" else frozen)(*arguments)

        write(1, NOON_MS)
        await archived(broker, tmp_path, Shape.RECORDS)
        write(2, NOON_MS)
        monkeypatch.setattr(ArchiveStore, step, run_others)
        with suppress(FatalError):
            await archived(broker, tmp_path, Shape.RECORDS)
        monkeypatch.setattr(ArchiveStore, "publish", publish)
        assert ranges(store) == expected
        write(1, LATER_MS)
        row = (await archived(broker, tmp_path, Shape.RECORDS))["t-0"]
    assert (row["from"], row["to"]) == (25, 30)
    folder = tmp_path / "A-B" / partition_folder(T)
    rows = [row["offset"] for it in sorted(folder.rglob("*.parquet")) for row in rows_in(it)]
    assert rows == [*range(expected[0][0], 30)]
    assert_tidy(store)


def test_a_join_whose_file_another_program_has_removed_leaves_what_was_there(
    tmp_path: Path, steps: Steps
) -> None:
    store = store_in(tmp_path)
    hourly(store)
    before = batches_in(store)

    def remove() -> None:
        (joined,) = (it for it in files(store) if ".joined." in it)
        store.delete(f"{partition_folder(T)}/{joined}")

    steps.at(1, remove)
    (row,) = kept_up(tmp_path)
    assert "another run has removed" in str(row["cause"])
    assert batches_in(store) == before
    assert kept_up(tmp_path)[0]["joined"] == 6


async def test_a_restore_that_has_begun_reads_on_in_the_files_that_were_joined(
    tmp_path: Path,
) -> None:
    store = store_in(tmp_path)
    hourly(store)
    archive = TaskArchive(store.path, {"t": ArchivedCopy("t", "", "A.t")}, {T: 60}, {T: 0})
    context = FakeTaskContext()
    task = ArchiveTask(archive, "A", context)
    await task.start()
    begun = (await firsts(context, task, 2))[T]
    assert 0 < len(begun) < 12
    kept_up(tmp_path)
    rest = (await firsts(context, task))[T]
    assert [*begun, *rest] == list(range(0, 60, 5))
    await task.stop()


async def test_a_restore_whose_next_file_was_too_old_meanwhile_says_so(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    hourly(store)
    archive = TaskArchive(store.path, {"t": ArchivedCopy("t", "", "A.t")}, {T: 60}, {T: 0})
    context = FakeTaskContext()
    task = ArchiveTask(archive, "A", context)
    await task.start()
    kept_up(tmp_path, Upkeep(oldest_ms=NOON_MS + 3))
    assert await firsts(context, task) == {}
    ((_, _, cause),) = context.states
    assert "offsets 0 to 60 were to be restored, the archive has 30 to 60" in str(cause)
    await task.stop()


@pytest.mark.parametrize("what", ["chain", "range", "offset"])
def test_a_reader_that_listed_the_files_before_they_were_joined_lists_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    store = store_in(tmp_path)
    hourly(store)
    read: dict[str, Callable[[], object]] = {
        "chain": lambda: batches_in(store),
        "range": lambda: range_of_chain(store, T),
        "offset": lambda: offset_at(store, T, NOON_MS + 3),
    }
    expected, listed_files, is_joined = read[what](), ArchiveStore.files, False

    def listed(store: ArchiveStore, folder: str) -> list[str]:
        nonlocal is_joined
        found = listed_files(store, folder)
        if not is_joined:
            is_joined = True
            kept_up(tmp_path)
        return found

    monkeypatch.setattr(ArchiveStore, "files", listed)
    assert read[what]() == expected
    assert len(chain_of(store, T)) == 1


def test_a_damaged_file_is_not_joined_and_stops_its_partition_alone(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    hourly(store)
    file = f"{partition_folder(T)}/{chain_of(store, T)[2].file}"
    data = bytearray(store.read(file))
    data[8] ^= 1
    store.replace(file, bytes(data))
    (row,) = kept_up(tmp_path)
    assert "its manifest" in str(row["cause"])
    assert len(files(store)) == 6


# ---- retention


def aged(store: ArchiveStore, stamps: Sequence[int]) -> None:
    """Publish a file of ten records for each timestamp, in days; None is a file without records."""
    for number, stamp in enumerate(stamps):
        a_file(store, 10 * number, [stamp * DAY_MS if stamp > 0 else -1] * 2)


@pytest.mark.parametrize(
    ("days", "begins"),
    [
        ([1, 2, 3, 9], 30),
        ([1, 2, 3, 4], 30),  # the last file stays
        ([1, 9, 2, 9], 10),  # as Kafka's segments: none is removed from between others
        ([9, 1, 2, 9], 0),
        ([0, 1, 9], 0),  # without timestamps
        ([1, 0, 9], 10),
        ([1], 0),
    ],
)
def test_the_first_files_are_removed_whose_records_are_all_too_old(
    tmp_path: Path, days: Sequence[int], begins: int
) -> None:
    store, upkeep = store_in(tmp_path), Upkeep(oldest_ms=5 * DAY_MS)
    aged(store, days)
    end = 10 * len(days)
    planned = planned_upkeep(FLOW, str(tmp_path), upkeep)
    assert [it["removed"] for it in planned] == ([begins // 10] if begins else [])
    assert kept_up(tmp_path, upkeep) == planned
    assert range_of_chain(store, T) == (begins, end)
    assert kept_up(tmp_path, upkeep) == []
    assert_tidy(store)


def test_a_first_file_without_records_keeps_none_of_those_behind_it(tmp_path: Path) -> None:
    """As of a log that was empty when it was archived, after some was lost."""
    store = store_in(tmp_path)
    for first, stamps in ((0, []), (5, [DAY_MS]), (10, [9 * DAY_MS])):
        a_file(store, first, stamps)
    (row,) = kept_up(tmp_path, Upkeep(oldest_ms=5 * DAY_MS))
    assert (row["removed"], range_of_chain(store, T)) == (2, (10, 15))
    assert_tidy(store)


@pytest.mark.parametrize("step", range(1, 7))
def test_a_removal_that_is_killed_at_any_step_leaves_a_chain_without_a_gap(
    tmp_path: Path, steps: Steps, step: int
) -> None:
    store, upkeep = store_in(tmp_path), Upkeep(oldest_ms=5 * DAY_MS)
    aged(store, [1, 2, 3, 9, 9])
    left = f"{partition_folder(T)}/{0:020d}-{39:020d}.ab.joined.parquet"
    store.replace(left, b"of a join that was killed before its manifest")
    steps.at(step, killed)
    kept_up(tmp_path, upkeep)
    reach = range_of_chain(store, T)
    assert reach is not None
    assert (ranges(store)[0][0], ranges(store)[-1][1]) == reach
    assert len(batches_in(store)) == (50 - reach[0]) // 5
    kept_up(tmp_path, upkeep)
    assert range_of_chain(store, T) == (30, 50)
    assert_tidy(store)


def test_a_restore_says_what_the_archive_has_removed(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    put_or_check(
        store, "manifest.json", ArchiveHead(flow="A->B", source_cluster="a", shape=Shape.BATCHES)
    )
    topic = ArchivedTopic(
        topic="t", topic_id="", partitions=1, configs={}, begins={"0": 0}, ends={"0": 40}
    )
    put_or_check(store, "topic=t/topic.json", topic)
    aged(store, [1, 2, 9, 9])
    kept_up(tmp_path, Upkeep(joins=True, oldest_ms=5 * DAY_MS))
    assert ranges(store) == [(20, 40)]
    (log,) = read_archive(store, lambda _: True, lambda name: name)
    assert (log.begins, log.end, log.lost, log.broken) == (20, 40, 20, "")


def test_an_age_that_is_none_is_refused() -> None:
    def options(keep: str) -> ArchiveOptions:
        return ArchiveOptions(
            file=Path("f"), flow="A->B", folder="/backup", keep=keep, place=SparkPlace()
        )

    assert options("").oldest_ms(NOON_MS) == -1
    assert options("90 days").oldest_ms(NOON_MS) == NOON_MS - 90 * DAY_MS
    with pytest.raises(UsageError, match=r"--keep 90 parsecs is no age; write --keep '90 days'"):
        options("90 parsecs").oldest_ms(NOON_MS)
