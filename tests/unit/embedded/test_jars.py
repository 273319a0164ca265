"""The jar list and its fetcher, against a repository of files."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mm2py.errors import ConfigError, RetriableError
from tests.kit.kafka.jars import Jar, fetch, fetch_jars, jars_of

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


def test_fetch_says_what_to_set_when_the_repository_cannot_be_reached(tmp_path: Path) -> None:
    jars, _ = repository(tmp_path / "repo", "one")
    with pytest.raises(
        RetriableError, match=r"cannot fetch org\.example\.x:one:1\.0.*MM2PY_KAFKA_HOME"
    ):
        fetch(jars, tmp_path / "cache", (tmp_path / "empty").as_uri())


def test_fetch_refuses_an_address_without_a_scheme(tmp_path: Path) -> None:
    jars, _ = repository(tmp_path / "repo", "one")
    with pytest.raises(ConfigError, match="no https, http or file address"):
        fetch(jars, tmp_path / "cache", "nexus/maven2")


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
