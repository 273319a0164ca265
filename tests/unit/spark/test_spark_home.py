"""Spark's home as links: one folder for each process that lives, none of those that were killed."""

import shutil
import tempfile
from pathlib import Path

import pytest

from mm2py_jobs.spark.spark_home import PREFIX, own_folder, remove_abandoned


def left_by_another(place: Path, name: str) -> Path:
    folder = place / f"{PREFIX}{name}"
    folder.mkdir()
    (folder / "jars").symlink_to(place)
    return folder


def test_what_a_killed_driver_left_is_removed_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_another(tmp_path, "dead")
    mine = own_folder(tmp_path)
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]
    theirs = left_by_another(tmp_path, "theirs")
    monkeypatch.setattr("os.geteuid", lambda: theirs.stat().st_uid + 1)
    remove_abandoned(tmp_path)
    assert set(tmp_path.iterdir()) == {mine, theirs}


def test_a_folder_that_is_taken_for_an_abandoned_one_before_it_is_locked_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, mkdtemp = list[Path](), tempfile.mkdtemp

    def made_and_removed(prefix: str, dir: Path) -> str:  # noqa: A002 - as declared there
        folder = mkdtemp(prefix=prefix, dir=dir)
        if not made:
            shutil.rmtree(folder)
        made.append(Path(folder))
        return folder

    monkeypatch.setattr("tempfile.mkdtemp", made_and_removed)
    assert own_folder(tmp_path) == made[1]
    assert list(tmp_path.iterdir()) == [made[1]]
