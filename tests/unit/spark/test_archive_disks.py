"""Disks and stores of an archive that are full, take nothing away, or lose what another machine removes."""

import errno
import os
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pytest
from pyarrow import Table, parquet

from mm2py.errors import FatalError
from mm2py.testing.contexts import FakeTaskContext
from mm2py.testing.task_contract import ended
from mm2py_jobs.archive import archive_file, archive_store, archive_task
from mm2py_jobs.archive.archive_format import Shape, partition_folder
from mm2py_jobs.archive.archive_task import ArchiveTask
from mm2py_jobs.archive.archive_upkeep import Upkeep, keep_up
from mm2py_jobs.copy.archive_order import ArchivedCopy, TaskArchive
from mm2py_jobs.spark.session import OpenSession
from tests.kit.fakes.broker import FakeBroker
from tests.unit.spark import test_archive_plan
from tests.unit.spark.test_archive_dates import FIRST, N, write
from tests.unit.spark.test_archive_plan import Bucket, archived, store_in, store_over
from tests.unit.spark.test_archive_task import firsts
from tests.unit.spark.test_archive_upkeep import (
    FLOW,
    NOON_MS,
    T,
    a_file,
    batches_in,
    hourly,
    kept_up,
    ranges,
)
from tests.unit.spark.test_lanes_that_fail import OneSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

no_configs = test_archive_plan.no_configs

LOCAL: Final = r"cannot be written below /disk: .*No space left.* let spark.local.dir name another"


@pytest.mark.parametrize("group", [1_000, 1 << 20])
@pytest.mark.parametrize("shape", list(Shape))
async def test_a_full_local_disk_is_named_and_no_file_is_left_on_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shape: Shape,
    group: int,
) -> None:
    """With the larger group it is noticed only when the file is ended."""
    files: list[BufferedIOBase] = []

    def full() -> BufferedIOBase:
        files.append(Path("/dev/full").open("w+b"))  # noqa: SIM115 - that it is closed is the claim
        return files[-1]

    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk")
    monkeypatch.setattr(archive_file, "local_file", full)
    monkeypatch.setattr(archive_file, "GROUP_BYTES", group)
    monkeypatch.setattr("mm2py_jobs.spark.record_columns._ROWS", 10)
    async with FakeBroker(topics={"t": 1}) as broker:
        write(broker, [N] * 400)
        with pytest.raises(FatalError, match=LOCAL):
            await archived(broker, tmp_path, shape)
    assert files
    assert all(it.closed for it in files)
    assert "Exception ignored" not in capsys.readouterr().err


def test_a_full_local_disk_is_named_where_a_file_of_a_bucket_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_over(Bucket(), tmp_path, monkeypatch)
    (tmp_path / "f").write_bytes(b"x" * 10)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/disk")
    with Path("/dev/full").open("w+b", buffering=0) as full:
        monkeypatch.setattr(archive_store, "local_file", lambda: full)
        with pytest.raises(FatalError, match=LOCAL):
            store.opened("f")


async def test_a_date_whose_folder_another_run_removes_is_archived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment that it is there for the file, and the file."""
    opened, removed = Path.open, list[Path]()

    def open_later(path: Path, mode: str = "r") -> object:
        if path.parent.name == FIRST and mode == "wb" and len(removed) < 3:
            path.parent.rmdir()
            removed.append(path)
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", open_later)
    async with FakeBroker(topics={"t": 1}) as broker:
        write(broker, [N] * 2)
        row = (await archived(broker, tmp_path))["t-0"]
    assert (row["cause"], row["to"], len(removed)) == ("", 10, 3)
    assert len(batches_in(store_in(tmp_path))) == 2


async def test_readers_of_a_folder_leave_out_what_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark and pyarrow read each file of a folder that is not hidden."""
    datasets = pytest.importorskip("pyarrow.dataset")
    folder, rows = tmp_path / "A-B" / partition_folder(T) / FIRST, list[int]()

    def read(_number: int) -> None:
        if folder.exists():
            rows.append(datasets.dataset(str(folder)).count_rows())

    monkeypatch.setattr(os, "fsync", read)
    async with FakeBroker(topics={"t": 1}) as broker:
        for _ in range(2):
            write(broker, [N])
            await archived(broker, tmp_path)
    assert rows == sorted(rows)
    assert {*rows} == {0, 1, 2}


async def test_what_reads_a_file_that_another_machine_removes_goes_on_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS answers: a restore reads on in the file that has its records by now, a join says which one it was."""
    store = store_in(tmp_path)
    monkeypatch.setattr(archive_file, "GROUP_BYTES", 1)
    monkeypatch.setattr(archive_task, "GROUP_BYTES", 1)
    hourly(store, 3)
    kept_up(tmp_path)
    archive = TaskArchive(store.path, {"t": ArchivedCopy("t", "", "A.t")}, {T: 30}, {T: 0})
    context = FakeTaskContext()
    task = ArchiveTask(archive, "A", context)
    await task.start()
    begun: list[int] = []
    while not begun:
        polled = await ended(context, task.poll(1 << 20))
        begun = [it.base_offset for outgoing in polled for it in outgoing.batches]
    assert len(begun) < 6
    a_file(store, 30, [NOON_MS])
    read, fails = parquet.ParquetFile.read_row_group, [True]

    def stale(file: parquet.ParquetFile, number: int) -> Table:
        if number and fails:
            fails.pop()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return read(file, number)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", stale)
    (row,) = kept_up(tmp_path)
    assert "joined.parquet below" in str(row["cause"])
    assert "Stale file handle" in str(row["cause"])
    kept_up(tmp_path)
    assert ranges(store) == [(0, 35)]
    fails.append(True)
    assert [*begun, *(await firsts(context, task))[T]] == list(range(0, 30, 5))
    assert not fails
    await task.stop()


async def test_a_store_that_lets_nothing_be_removed_is_named_and_ends_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Bucket()
    store = store_over(system, tmp_path, monkeypatch)
    (tmp_path / partition_folder(T)).mkdir(parents=True)
    hourly(store, 3)

    def refused(path: str) -> None:
        raise PermissionError(errno.EACCES, "no", path)

    monkeypatch.setattr(system, "rm", refused)
    opened = OpenSession(cast("SparkSession", OneSlot()), owned=False)
    upkeep = Upkeep(oldest_ms=NOON_MS + 2)
    (row,) = keep_up(FLOW, "bucket://x", upkeep, lambda: opened)
    assert "json cannot be removed below bucket://x" in str(row["cause"])


def test_a_file_that_a_twin_has_written_outlives_a_failed_attempt_to_write_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two joins at once, which have one name for what both write."""

    class Refusing(BytesIO):
        def close(self) -> None:
            raise OSError("slow down")

    system = Bucket()
    store = store_over(system, tmp_path, monkeypatch)
    store.replace("m.json", b"joined")

    def refusing(_path: str, mode: str) -> BytesIO:
        assert mode == "wb"
        return Refusing()

    monkeypatch.setattr(system, "open", refusing)
    with pytest.raises(FatalError, match="slow down"):
        store.replace("m.json", b"joined")
    assert (tmp_path / "m.json").read_bytes() == b"joined"


def test_of_a_file_that_a_disk_takes_and_then_refuses_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NFS answers, on which a full disk is noticed at the end."""

    def refused(_number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(FatalError, match=rf"below {tmp_path}/A-B: .*No space left on device"):
        store_in(tmp_path).replace("m.json", b"whole")
    assert [it for it in tmp_path.rglob("*") if it.is_file()] == []
