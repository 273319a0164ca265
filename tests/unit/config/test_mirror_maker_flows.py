"""Clusters and flows of a mirror maker file (``MirrorMakerConfigTest`` of Kafka and the refusals)."""

from itertools import permutations
from pathlib import Path

import pytest

from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.properties import parse
from mm2py.errors import ConfigError, UsageError
from mm2py.types import ClusterAlias, FlowName
from mm2py_connectors.config import CONNECTORS


def config_of(text: str, environ: dict[str, str] | None = None) -> MirrorMakerConfig:
    file = parse(text.encode("iso-8859-1"), path="mm2.properties")
    return MirrorMakerConfig(file, CONNECTORS, environ=environ or {})


def with_clusters(names: str, *lines: str) -> MirrorMakerConfig:
    servers = [f"{n.strip()}.bootstrap.servers=h:1" for n in names.split(",")]
    return config_of("\n".join([f"clusters={names}", *servers, *lines]))


def flow(text: str) -> FlowName:
    source, _, target = text.partition("->")
    return FlowName(ClusterAlias(source), ClusterAlias(target))


def names_of(config: MirrorMakerConfig, targets: list[str] | None = None) -> set[str]:
    return {str(f) for f in config.flows(targets)}


def test_every_ordered_pair_is_a_flow_by_default() -> None:
    assert names_of(with_clusters("a, b, c")) == {f"{s}->{t}" for s, t in permutations("abc", 2)}


def test_heartbeats_off_everywhere_and_nothing_enabled_leaves_no_flow() -> None:
    config = with_clusters("a,b", "emit.heartbeats.enabled=false")
    with pytest.raises(ConfigError, match="no replication flows"):
        config.flows()


def test_heartbeats_off_for_two_of_six_pairs_leaves_four() -> None:
    config = with_clusters(
        "a,b,c", "a->b.emit.heartbeats.enabled=false", "a->c.emit.heartbeats.enabled=false"
    )
    assert names_of(config) == {"b->a", "b->c", "c->a", "c->b"}


def test_enabled_flows_stay_when_heartbeats_are_off_everywhere() -> None:
    config = with_clusters(
        "a,b,c,d,e,f",
        "emit.heartbeats.enabled=false",
        "a->b.enabled=true",
        "a->c.enabled=true",
        "d->e.enabled=true",
        "b->a.enabled=false",
        "e->d.enabled=false",
    )
    assert names_of(config) == {"a->b", "a->c", "d->e"}


def test_one_pair_may_keep_its_heartbeats() -> None:
    config = with_clusters(
        "a,b,c",
        "emit.heartbeats.enabled=false",
        "a->b.enabled=true",
        "c->b.enabled=true",
        "b->a.emit.heartbeats.enabled=true",
    )
    assert names_of(config) == {"a->b", "c->b", "b->a"}


def test_clusters_keeps_the_flows_to_the_named_targets() -> None:
    config = with_clusters("a,b,c")
    assert names_of(config, ["b"]) == {"a->b", "c->b"}
    assert names_of(config, ["b", "c"]) == {"a->b", "c->b", "a->c", "b->c"}


def test_an_unknown_cluster_on_the_command_line_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match=r"--clusters z: .* its clusters are a, b"):
        with_clusters("a,b").flows(["z"])


@pytest.mark.parametrize("text", ["true", "TRUE", "true ", "\\ttrue"])
def test_a_flow_switch_is_trimmed_and_any_case(text: str) -> None:
    assert with_clusters("a,b", f"a->b.enabled={text}").flow_enabled(flow("a->b"))


def test_a_switch_that_is_not_true_is_off() -> None:
    config = with_clusters("a,b", "a->b.enabled=yes")
    assert not config.flow_enabled(flow("a->b"))
    assert not config.flow_enabled(flow("b->a"))


def refused(text: str, environ: dict[str, str] | None = None) -> str:
    config = config_of(text, environ)
    errors = [f for f in config.findings if f.severity.name == "ERROR"]
    assert errors
    return str(errors[0].as_error(config.path))


def test_a_file_without_clusters_is_refused_and_the_near_key_named() -> None:
    assert "clusters: is missing" in refused("a=1")
    assert "write clusters instead of 'Clusters'" in refused("Clusters=A,B")
    assert "mm2.properties:1: clusters: names no cluster" in refused("clusters=")


@pytest.mark.parametrize("line", ["", "b.bootstrap.servers=", "b.bootstrap.servers= , "])
def test_a_cluster_without_brokers_is_refused_by_its_property(line: str) -> None:
    said = refused(f"clusters=a,b\na.bootstrap.servers=h:1\n{line}")
    assert "b.bootstrap.servers" in said
    assert "mm2.properties:" in said


def test_top_level_bootstrap_servers_serve_every_cluster() -> None:
    config = config_of("clusters=a,b\nbootstrap.servers=h:1\nb.bootstrap.servers=i:2")
    assert config.cluster_props("a")["bootstrap.servers"] == "h:1"
    assert config.cluster_props("b")["bootstrap.servers"] == "i:2"
    assert config.findings == []


@pytest.mark.parametrize("alias", ["<source>", "a/b", "dc 1"])
def test_an_alias_that_is_no_part_of_a_topic_name_is_refused(alias: str) -> None:
    assert "is no cluster alias" in refused(f"clusters={alias},b\nbootstrap.servers=h:1")


def test_an_unknown_security_protocol_is_refused_and_case_does_not_matter() -> None:
    text = "clusters=a\nbootstrap.servers=h:1\nsecurity.protocol="
    assert "is no security protocol" in refused(text + "abc")
    assert config_of(text + "sasl_ssl").findings == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("${env:X}", r"${env:X} is not found"),
        ("${vault:a:b}", r"config provider 'vault' is not declared"),
    ],
)
def test_an_unresolved_variable_is_refused_with_its_line(value: str, said: str) -> None:
    text = (
        "clusters=a\nbootstrap.servers=h:1\nconfig.providers=env\nconfig.providers.env.class="
        "org.apache.kafka.common.config.provider.EnvVarConfigProvider\n" + f"a.client.id={value}"
    )
    message = refused(text)
    assert said in message
    assert "mm2.properties:5: a.client.id" in message


def test_what_no_colon_makes_a_placeholder_is_text() -> None:
    """``TimestampRouter`` as every guide writes it; Java's ``ConfigTransformer`` leaves it too."""
    text = "clusters=a,b\nbootstrap.servers=h:1\na->b.enabled=true\na->b.transforms=x\n"
    text += "a->b.transforms.x.type=org.apache.kafka.connect.transforms.TimestampRouter\n"
    config = config_of(text + "a->b.transforms.x.topic.format=${topic}-${timestamp}")
    assert config.findings == []
    resolved = config.resolved({"transforms.x.topic.format": "${topic}-${timestamp}"})
    assert resolved == {"transforms.x.topic.format": "${topic}-${timestamp}"}


def test_an_unknown_config_provider_class_is_refused_with_its_line() -> None:
    message = refused(
        "clusters=a\na.bootstrap.servers=h:1\nconfig.providers=v\nconfig.providers.v.class=x.Y"
    )
    assert message.startswith(
        "mm2.properties:4: config.providers.v.class: x.Y: not a config provider"
    )


def test_load_raises_the_first_error_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = h:1\n")
    with pytest.raises(ConfigError, match=r"mm2\.properties:1: B\.bootstrap\.servers: is missing"):
        MirrorMakerConfig.load(file, CONNECTORS)
