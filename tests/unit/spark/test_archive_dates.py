"""Dates of archived files: in which folder each is, how many there are at most, and archives that began without such folders."""

import asyncio
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from mm2py.errors import ConfigError, FatalError
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.contexts import FakeTaskContext
from mm2py_jobs.archive import archive, archive_file, archive_task
from mm2py_jobs.archive.archive_format import (
    ArchiveHead,
    FileManifest,
    Shape,
    chain_of,
    date_folder,
    day_of,
    head_of,
    partition_folder,
    put_or_check,
)
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.archive_task import ArchiveTask
from mm2py_jobs.archive.archive_upkeep import Upkeep
from mm2py_jobs.copy.archive_order import ArchivedCopy, TaskArchive
from tests.kit.fakes.broker import FakeBroker
from tests.unit.spark import test_archive_plan
from tests.unit.spark.test_archive_plan import Remembering, archived, store_in, store_over
from tests.unit.spark.test_archive_upkeep import DAY_MS, NOON_MS, T, batches_in, kept_up

no_configs = test_archive_plan.no_configs

FIRST, SECOND, NONE = "date=2024-10-04", "date=2024-10-05", "date=__HIVE_DEFAULT_PARTITION__"
"""Dates of ``NOON_MS`` and of the day after it."""
N, L = NOON_MS, NOON_MS + DAY_MS
MICROS: Final = NOON_MS * 1_000
FAR: Final = 60_000 * DAY_MS
"""Of a clock that is a century ahead."""


def write(broker: FakeBroker, stamps: Sequence[int]) -> None:
    """Append a batch of five records for each timestamp."""
    for stamp in stamps:
        batch = encode_batch([NewRecord(b"k", b"v" * 40, (), stamp) for _ in range(5)])
        broker.append(T, bytes(batch))


def folders(store: ArchiveStore) -> list[tuple[str, int, int]]:
    """Return the folder, the first batch and the last batch (exclusive) of each file."""
    return [(it.file.rpartition("/")[0], it.first // 5, it.end // 5) for it in chain_of(store, T)]


@pytest.mark.parametrize(
    ("timestamp", "folder"),
    [
        (0, "date=1970-01-01"),
        (DAY_MS - 1, "date=1970-01-01"),
        (DAY_MS, "date=1970-01-02"),
        (253_402_300_799_999, "date=9999-12-31"),
        (253_402_300_800_000, NONE),
        (-1, NONE),
    ],
)
def test_a_date_is_that_of_utc_and_has_four_digits_of_a_year(timestamp: int, folder: str) -> None:
    assert date_folder(day_of(timestamp)) == folder


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        ([N, N, L, L], [(FIRST, 0, 2), (SECOND, 2, 4)]),
        # An earlier date begins no file: dates that alternate make two.
        ([N, L] * 20, [(FIRST, 0, 1), (SECOND, 1, 40)]),
        ([-1, -1, N, -1, N], [(NONE, 0, 2), (FIRST, 2, 5)]),
        ([MICROS, MICROS + 10**12], [(NONE, 0, 2)]),
        # A clock that is ahead makes one file, not of all that comes.
        ([N, FAR, N, N, N, N, L], [(FIRST, 0, 1), ("date=2134-04-11", 1, 5), (FIRST, 5, 6), (SECOND, 6, 7)]),
        # As many dates as a run makes files for, and the rest.
        ([N + DAY_MS * it for it in range(9)], [
            *((f"date=2024-10-{4 + it:02d}", it, it + 1) for it in range(3)),
            ("date=2024-10-10", 3, 7), ("date=2024-10-12", 7, 9),
        ]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", list(Shape))
async def test_a_run_has_a_file_of_each_date_and_no_file_of_each_odd_timestamp(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: Shape,
    stamps: Sequence[int],
    expected: Sequence[tuple[str, int, int]],
) -> None:
    size = len(encode_batch([NewRecord(b"k", b"v" * 40, (), N) for _ in range(5)]))
    monkeypatch.setattr(archive, "DATES", 3)
    if len(stamps) < 10:
        monkeypatch.setattr(archive, "FILE_BYTES", 4 * size)
    async with FakeBroker(topics={"t": 1}) as broker:
        write(broker, stamps)
        await archived(broker, tmp_path, shape)
    store = store_in(tmp_path)
    assert folders(store) == list(expected)
    if shape is Shape.RECORDS:
        rows = rows_of(tmp_path)
        assert [offset for offset, _, _ in rows] == list(range(5 * len(stamps)))
        # No record is younger than the date of its file.
        days = [(day_of(stamp), date) for _, stamp, date in rows]
        assert all(
            day < 0 or (date is not None and date_folder(day) <= f"date={date}")
            for day, date in days
        )


def rows_of(path: Path) -> list[tuple[int, int, str | None]]:
    """Return offset, timestamp in ms and date of the rows that pyarrow reads by the layout."""
    files = sorted(map(str, Path(path, "A-B").rglob("*.parquet")))
    dataset = pytest.importorskip("pyarrow.dataset")
    dates = dataset.partitioning(pa.schema([pa.field("date", pa.string())]), flavor="hive")
    table = dataset.dataset(files, partitioning=dates).to_table()
    stamps = (
        -1 if it is None else it // 1_000 for it in table["timestamp"].cast("int64").to_pylist()
    )
    return sorted(zip(table["offset"].to_pylist(), stamps, table["date"].to_pylist(), strict=True))


async def test_files_of_one_date_are_joined_in_its_folder_and_others_read_only_those(
    tmp_path: Path,
) -> None:
    """A run at noon has two dates: what is left of the former one, and what is new."""
    async with FakeBroker(topics={"t": 1}) as broker:
        for day in range(3):
            write(broker, [N + day * DAY_MS - 1, N + day * DAY_MS + DAY_MS // 2])
            await archived(broker, tmp_path, Shape.RECORDS)
    store = store_in(tmp_path)
    assert len(chain_of(store, T)) == 6
    kept_up(tmp_path)
    third = "date=2024-10-06"
    joined = [(FIRST, 0, 1), (SECOND, 1, 3), (third, 3, 5), ("date=2024-10-07", 5, 6)]
    assert folders(store) == joined
    kept_up(tmp_path)
    assert folders(store) == joined
    kept_up(tmp_path, Upkeep(oldest_ms=N))
    assert {it.name for it in Path(store.path).rglob("date=*")} == {it[0] for it in joined[1:]}
    duckdb = pytest.importorskip("duckdb")
    files = f"{store.path}/topic=*/partition=*/date=*/*.parquet"
    query = "SELECT \"offset\" FROM read_parquet(?, hive_partitioning=true) WHERE date = '2024-10-06' ORDER BY 1"
    assert duckdb.execute(query, [files]).fetchall() == [(it,) for it in range(15, 25)]
    plan = duckdb.execute(f"EXPLAIN ANALYZE {query}", [files]).fetchall()
    assert "1/3" in str(plan).replace(" ", "")


async def test_a_joined_file_has_no_record_that_is_younger_than_its_folder(tmp_path: Path) -> None:
    """The latest timestamp of the second file has no date, another one has."""
    async with FakeBroker(topics={"t": 1}) as broker:
        for stamps in ([MICROS], [N, MICROS], [MICROS], [L]):
            write(broker, stamps)
            await archived(broker, tmp_path)
    kept_up(tmp_path)
    assert folders(store_in(tmp_path)) == [(NONE, 0, 1), (FIRST, 1, 4), (SECOND, 4, 5)]


async def test_an_archive_that_began_without_dates_is_continued_and_joined_without(
    tmp_path: Path,
) -> None:
    """Its readers look for files in the folders of partitions."""
    store = store_in(tmp_path)
    async with FakeBroker(topics={"t": 1}) as broker:
        head = ArchiveHead(
            flow="A->B", source_cluster=broker.cluster.cluster_id, shape=Shape.BATCHES, version=1
        )
        put_or_check(store, "manifest.json", head)
        for day in range(2):
            write(broker, [N + day * DAY_MS] * 2)
            await archived(broker, tmp_path)
            write(broker, [N + day * DAY_MS] * 2)
            await archived(broker, tmp_path)
    before = batches_in(store)
    kept_up(tmp_path)
    assert folders(store) == [("", 0, 4), ("", 4, 8)]
    assert batches_in(store) == before
    assert head_of(store).version == 1


# ---- parts of files


@pytest.mark.parametrize("shape", list(Shape))
async def test_a_file_is_written_joined_and_restored_a_row_group_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    store = store_in(tmp_path)
    monkeypatch.setattr(archive_file, "GROUP_BYTES", 1_000)
    monkeypatch.setattr(archive_task, "GROUP_BYTES", 1_000)
    monkeypatch.setattr("mm2py_jobs.spark.record_columns._ROWS", 10)
    async with FakeBroker(topics={"t": 1}) as broker:
        for _ in range(3):
            write(broker, [N] * 20)
            await archived(broker, tmp_path, shape)

    def most_rows() -> int:
        files = [
            parquet.ParquetFile(pa.BufferReader(it.read_bytes()))
            for it in Path(store.path).rglob("*.parquet")
        ]
        groups = [
            it.metadata.row_group(n).num_rows for it in files for n in range(it.num_row_groups)
        ]
        return max(groups)

    few = 5 if shape is Shape.BATCHES else 20
    assert most_rows() <= few
    kept_up(tmp_path)
    assert folders(store) == [(FIRST, 0, 60)]
    assert most_rows() <= few
    if shape is Shape.RECORDS:
        return
    planned = TaskArchive(store.path, {"t": ArchivedCopy("t", "", "A.t")}, {T: 300}, {T: 0})
    context = FakeTaskContext()
    task = ArchiveTask(planned, "A", context)
    await task.start()
    found: list[int] = []
    async with asyncio.timeout(90):
        while len(found) < 60:
            for outgoing in await task.poll(1 << 20):
                assert len(outgoing.batches) <= few
                found += [it.base_offset for it in outgoing.batches]
    assert found == list(range(0, 300, 5))
    await task.stop()


async def test_a_part_that_a_killed_run_left_is_removed_and_no_run_stops_at_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = store_in(tmp_path), f"{partition_folder(T)}/{FIRST}"
    part = f"{folder}/{0:020d}-{9:020d}.ab.parquet.cd.tmp"
    removed: list[Path] = []

    def synced(_number: int) -> None:
        if not removed:  # as another run does, which has archived its range
            removed.extend(it for it in tmp_path.rglob("*.parquet.*.tmp") if it.name not in part)
            for it in removed:
                it.unlink()

    async with FakeBroker(topics={"t": 1}) as broker:
        write(broker, [N] * 4)
        store.replace(part, b"PAR1")
        monkeypatch.setattr(os, "fsync", synced)
        row = (await archived(broker, tmp_path))["t-0"]
        assert "another run has archived" in str(row["cause"])
        assert (await archived(broker, tmp_path))["t-0"]["to"] == 20
    assert sorted(store.files(partition_folder(T))) == [
        f"{0:020d}.json",
        chain_of(store, T)[0].file,
    ]


class Broken(BytesIO):
    """A local disk that cannot be read to its end."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError("no more")
        return super().read(min(size or 1, 4))


@pytest.mark.parametrize("protocol", ["file", "sftp", "s3"])
def test_of_a_file_that_cannot_be_written_to_its_end_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    """A store without parts of files has those that were closed."""
    monkeypatch.setattr(Remembering, "protocol", protocol)
    (tmp_path / "f").mkdir()
    store = (
        ArchiveStore(str(tmp_path))
        if protocol == "file"
        else store_over(Remembering(), tmp_path, monkeypatch)
    )
    with pytest.raises(FatalError):
        store.replace("f/x.parquet", Broken(b"PAR1 and more"))
    assert store.files("f") == []


@pytest.mark.parametrize("file", ["../x.parquet", "date=../x.parquet", "other/x.parquet"])
def test_a_manifest_names_no_file_outside_of_its_folders(file: str) -> None:
    manifest = FileManifest(
        topic="t", partition=0, first=0, end=5, records=5, size_bytes=1, file=file, sha256=""
    )
    with pytest.raises(ConfigError, match="its file is in another folder"):
        FileManifest.parse(manifest.to_bytes(), "m")
