"""The Kafka of the tests: its jar list and fetcher, its Java, and its region's parts."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mm2py.errors import ConfigError
from mm2py_jobs.spark.java import find_java
from tests.kit.kafka.jars import Jar, fetch, fetch_jars, jars_of
from tests.kit.kafka.region import Region

CONTENT = b"not really a jar"


def repository(root: Path, *names: str) -> tuple[list[Jar], str]:
    jars = [Jar(f"org.example.x:{name}:1.0", hashlib.sha256(CONTENT).hexdigest()) for name in names]
    for jar in jars:
        path = root / jar.repository_path
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT)
    return jars, root.as_uri()


def test_the_committed_list_has_a_sha256_for_every_jar_and_tools_include_the_broker() -> None:
    broker, tools = jars_of("broker"), jars_of("tools")
    assert set(broker) < set(tools)
    assert len({jar.file_name for jar in tools}) == len(tools)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 for jar in (*tools, *jars_of("compiler")))
    assert any(jar.coordinate == "org.apache.kafka:kafka_2.13:4.3.1" for jar in broker)


def test_fetch_puts_every_jar_into_the_cache_and_needs_the_repository_no_more(
    tmp_path: Path,
) -> None:
    jars, address = repository(tmp_path / "repo", "one", "two")
    paths = fetch(jars, tmp_path / "cache", address)
    assert [path.name for path in paths] == ["one-1.0.jar", "two-1.0.jar"]
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {p.name for p in paths}
    assert fetch(jars, tmp_path / "cache", "file:///nowhere") == paths


def test_fetch_replaces_a_damaged_jar_of_the_cache(tmp_path: Path) -> None:
    jars, address = repository(tmp_path / "repo", "one")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "one-1.0.jar").write_bytes(b"half")
    assert fetch(jars, tmp_path / "cache", address)[0].read_bytes() == CONTENT


def test_fetch_refuses_a_jar_whose_hash_differs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    jars, address = repository(tmp_path / "repo", "one")
    (tmp_path / "repo" / jars[0].repository_path).write_bytes(b"something else")
    with pytest.raises(ConfigError, match=r"one-1\.0\.jar has sha256 .* the pinned list says"):
        fetch(jars, tmp_path / "cache", address)
    assert list((tmp_path / "cache").iterdir()) == []


def test_several_fetchers_at_once_leave_one_whole_copy(tmp_path: Path) -> None:
    jars, address = repository(tmp_path / "repo", "one", "two", "three")
    together = threading.Barrier(4)

    def one() -> list[Path]:
        together.wait()
        return fetch(jars, tmp_path / "cache", address)

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(one) for _ in range(4)]
    assert all(path.read_bytes() == CONTENT for answer in answers for path in answer.result())
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_an_unpacked_kafka_replaces_the_pinned_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libs").mkdir()
    monkeypatch.setenv("MM2PY_KAFKA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"holds no libs/kafka_2\.\*\.jar"):
        fetch_jars("broker")
    (tmp_path / "libs" / "kafka_2.13-4.3.0.jar").touch()
    assert [path.name for path in fetch_jars("tools")] == ["kafka_2.13-4.3.0.jar"]


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "found"),
    [("21.0.2", ("home", 21)), ("1.8.0_302", ("path", 17)), ("11.0.2", ("path", 17))],
)
def test_java_home_wins_over_the_path_unless_it_is_too_old(
    tmp_path: Path, version: str, found: tuple[str, int]
) -> None:
    fake_java(tmp_path / "home", version)
    path = str(fake_java(tmp_path / "path", "17.0.1").parent)
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": path})
    assert (java.executable, java.major) == (tmp_path / found[0] / "bin" / "java", found[1])


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


def test_a_nearly_full_disk_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"region full: only \d+ MiB are free in .*TMPDIR"):
        Region("full", folder=tmp_path, min_free_bytes=1 << 62).start()
    assert list(tmp_path.iterdir()) == []
