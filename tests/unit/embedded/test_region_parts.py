"""Ports, properties and disk checks of an embedded region, without a broker."""

import socket
from pathlib import Path

import jproperties
import pytest

from mm2py.errors import ConfigError
from tests.kit.kafka.ports import HOST, brokers_listed, free_ports
from tests.kit.kafka.region import ForeignRegion, KafkaAddress, Region
from tests.kit.kafka.server_properties import Listener, NodePorts, server_properties

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


def test_old_records_are_kept_unless_the_caller_says_otherwise(tmp_path: Path) -> None:
    ours = read(server_properties(NODES[0], NODES[:1], tmp_path, {}))
    theirs = read(server_properties(NODES[0], NODES[:1], tmp_path, {"log.retention.ms": "60000"}))
    assert ours["log.retention.ms"] == "-1"
    assert theirs["log.retention.ms"] == "60000"


def test_values_with_special_characters_are_read_back_as_given(tmp_path: Path) -> None:
    extra = {"a": " C:\\kafka", "b": "müller\nx"}
    properties = read(server_properties(NODES[0], NODES[:1], tmp_path, extra))
    assert (properties["a"], properties["b"]) == (extra["a"], extra["b"])


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
