"""Clusters, flows and derived configs of a mirror maker file (Kafka's MirrorMakerConfigTest)."""

from itertools import permutations
from pathlib import Path

import pytest

from mm2py.config.client_properties import (
    client_id,
    effective_client_properties,
    framework_producer_properties,
)
from mm2py.config.derivation import cluster_props, texts
from mm2py.config.findings import Severity
from mm2py.config.lint import findings_of
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.properties import parse
from mm2py.errors import ConfigError
from mm2py.types import ClusterAlias, FlowName
from mm2py_connectors.config import CONNECTORS

AB = FlowName(ClusterAlias("a"), ClusterAlias("b"))
BA = FlowName(ClusterAlias("b"), ClusterAlias("a"))
ENV = "config.providers=env\nconfig.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider"


HEAD = """clusters=a,b
a.bootstrap.servers=servers-one:1
b.bootstrap.servers=servers-two:2
"""


def config_of(*lines: str, environ: dict[str, str] | None = None) -> MirrorMakerConfig:
    return read(HEAD + "\n".join(lines), environ)


def read(text: str, environ: dict[str, str] | None = None) -> MirrorMakerConfig:
    file = parse(text.encode("iso-8859-1"), path="mm2.properties")
    return MirrorMakerConfig(file, CONNECTORS, environ=environ or {})


def source_of(config: MirrorMakerConfig, flow: FlowName = AB) -> dict[str, str]:
    return config.connector_configs(flow)["MirrorSourceConnector"]


DERIVED = {
    "a client key of a cluster reaches all its clients, the top level fills gaps": (
        "security.protocol=SASL_PLAINTEXT a.security.protocol=SSL a.producer.ssl.protocol=x",
        "a:security.protocol=SSL a:producer.security.protocol=SSL a:producer.ssl.protocol=x a:consumer.ssl.protocol"
        " b:security.protocol=SASL_PLAINTEXT b:admin.security.protocol=SASL_PLAINTEXT",
    ),
    "other client settings need an explicit client": (
        "a.request.timeout.ms=1", "a:consumer.request.timeout.ms",
    ),
    "the workers of a flow belong to its target": (
        "b.offset.flush.interval.ms=7 a.offset.flush.interval.ms=8",
        "worker:bootstrap.servers=servers-two:2 worker:offset.flush.interval.ms=7 worker:client.id=a->b worker:group.id=a-mm2"
        " worker:config.storage.topic=mm2-configs.a.internal worker:offset.storage.topic=mm2-offsets.a.internal"
        " worker:status.storage.topic=mm2-status.a.internal",
    ),
    "top-level storage keys beat those of the target": (
        "offset.storage.replication.factor=1 b.offset.storage.replication.factor=2",
        "worker:offset.storage.replication.factor=1",
    ),
    "flow keys and other top-level keys do not reach a worker": (
        "a->b.session.timeout.ms=1 exactly.once.source.support=enabled producer.acks=1",
        "worker:session.timeout.ms=6000 worker:exactly.once.source.support worker:producer.acks",
    ),
    "only defined names pass from the top level to a connector": (
        "tasks.max=100 topics=topic-1 groups=group-2 metric.reporters=x replication.policy.separator=__"
        " replication.policy.mine=y xxx=yyy use.defaults.from=source transforms.x.type=z"
        " topic.creation.default.partitions=1 producer.override.acks=1 exactly.once.support=required",
        "tasks.max=100 topics=topic-1 groups=group-2 metric.reporters=x replication.policy.separator=__"
        " replication.policy.mine=y xxx use.defaults.from transforms.x.type topic.creation.default.partitions"
        " producer.override.acks exactly.once.support",
    ),
    "a flow's prefix passes everything and wins": (
        "tasks.max=1 a->b.tasks.max=123 a->b.xxx=y a->b.use.defaults.from=source",
        "tasks.max=123 xxx=y use.defaults.from=source",
    ),
    "cluster keys become source and target keys": (
        "a.consumer.isolation.level=read_committed a.topics=x b.admin.y=z",
        "source.consumer.isolation.level=read_committed source.cluster.topics=x target.admin.y=z topics"
        " source.cluster.bootstrap.servers=servers-one:1 target.cluster.bootstrap.servers=servers-two:2",
    ),
    "a flow that does not say enabled is disabled": (
        "a->b.enabled=true", "enabled=true back:enabled=false",
    ),
    "old names work": (
        "topics.blacklist=x a->b.groups.blacklist=y", "topics.exclude=x groups.exclude=y topics.blacklist",
    ),
    "the new name wins over the old one": (
        "a->b.topics.blacklist=x topics.exclude=y topics.whitelist=z", "topics.exclude=y topics=z",
    ),
    "milliseconds of the seeds become whole seconds": (
        "a->b.sync.group.offsets.interval.ms=30000 refresh.topics.interval.ms=1500 emit.heartbeats.interval.ms=1",
        "sync.group.offsets.interval.seconds=30 refresh.topics.interval.seconds=2 emit.heartbeats.interval.seconds=1",
    ),
    "a converter that is none here leaves bytes bytes, also those of heartbeats": (
        "value.converter=io.confluent.connect.avro.AvroConverter a->b.key.converter=JsonConverter",
        "value.converter=org.apache.kafka.connect.converters.ByteArrayConverter key.converter=JsonConverter"
        " worker:value.converter=org.apache.kafka.connect.converters.ByteArrayConverter",
    ),
    "name and class are derived, also where the file has some": (
        "connector.class=MirrorHeartbeatConnector a->b.connector.class=x a->b.name=mine",
        "connector.class=org.apache.kafka.connect.mirror.MirrorSourceConnector name=MirrorSourceConnector",
    ),
    "our class names become Java's": (
        "replication.policy.class=LegacyReplicationPolicy topic.filter.class=DefaultTopicFilter",
        "replication.policy.class=org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
        " topic.filter.class=org.apache.kafka.connect.mirror.DefaultTopicFilter",
    ),
}  # fmt: skip
"""Claim -> lines of the file, what follows of the source connector a->b (else ``where:``); a key alone is not there."""


@pytest.mark.parametrize("claim", DERIVED)
def test_lines_of_the_file_become(claim: str) -> None:
    lines, expected = DERIVED[claim]
    config = config_of(*lines.split())
    found = {
        "source": source_of(config),
        "back": source_of(config, BA),
        "worker": config.worker_config(AB),
        "a": texts(cluster_props(config.layout, "a")),
        "b": texts(cluster_props(config.layout, "b")),
    }
    for item in expected.split():
        name, _, value = item.partition("=")
        where, _, key = name.rpartition(":")
        assert found[where or "source"].get(key) == (value or None), item


def test_worker_configs_are_resolved_and_connector_configs_keep_their_placeholders() -> None:
    config = config_of(
        ENV,
        "b.ssl.key.password=${env:S}",
        "b->a.topics=${env:T}",
        environ={"S": "secret2", "T": "t"},
    )
    assert config.worker_config(AB)["producer.ssl.key.password"] == "secret2"
    raw = source_of(config, BA)
    assert raw["source.cluster.ssl.key.password"] == "${env:S}"
    assert raw["topics"] == "${env:T}"
    assert config.resolved(raw)["topics"] == "t"
    assert config.secrets == {"secret2", "t"}


PUT_IN = f"""{ENV}
clusters=${{env:ALL}}
bootstrap.servers=h:1
a->b.enabled=${{env:ON}}
emit.heartbeats.enabled=${{env:BEATS}}
b->a.copy.connector=${{env:COPIES}}
"""


def test_what_the_driver_reads_itself_may_come_from_a_provider_as_in_java() -> None:
    config = read(PUT_IN, {"ALL": "a, b", "ON": "TRUE\n", "BEATS": "false", "COPIES": "sink"})
    assert config.findings == []
    assert (config.flows(), config.enabled_pairs) == ((AB,), (AB,))
    assert source_of(config)["enabled"] == "TRUE"
    assert "MirrorSinkConnector" in config.connector_configs(BA)
    assert config.secrets == frozenset(), "no log hides each true"


def test_a_secret_in_the_place_of_a_switch_is_in_no_finding() -> None:
    config = read(PUT_IN, {"ALL": "a, b", "ON": "hunter2", "BEATS": "true", "COPIES": "source"})
    assert not config.flow_enabled(AB)
    findings = findings_of(config)
    errors = {(it.line, it.key) for it in findings if it.severity is Severity.ERROR}
    assert (errors, "hunter2" in str(findings)) == ({(5, "a->b.enabled")}, False)


def test_connectors_are_named_by_class_and_alias() -> None:
    configs = config_of().connector_configs(AB)
    for name, config in configs.items():
        assert config["name"] == name
        assert config["connector.class"] == f"org.apache.kafka.connect.mirror.{name}"
        assert (config["source.cluster.alias"], config["target.cluster.alias"]) == ("a", "b")
    assert set(configs) == {f"Mirror{it}Connector" for it in ("Source", "Heartbeat", "Checkpoint")}


def test_a_source_consumer_gets_cluster_generic_and_specific_keys_in_this_order() -> None:
    connector = {
        "name": "ConnectorName",
        "source.cluster.alias": "source1",
        "target.cluster.alias": "target2",
        "source.cluster.bootstrap.servers": "h:1",
        "source.cluster.topics": "dropped",
        "consumer.max.poll.interval.ms": "120000",
        "consumer.fetch.min.bytes": "1",
        "source.consumer.fetch.min.bytes": "2",
    }
    assert effective_client_properties(connector, "source", "consumer", role="test") == {
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "max.poll.interval.ms": "120000",
        "fetch.min.bytes": "2",
        "bootstrap.servers": "h:1",
        "client.id": "source1->target2|ConnectorName|test",
    }
    latest = connector | {"consumer.auto.offset.reset": "latest"}
    assert (
        effective_client_properties(latest, "source", "consumer")["auto.offset.reset"] == "latest"
    )


def test_a_producer_and_an_admin_get_exactly_what_was_set_for_them() -> None:
    connector = {"source.producer.acks": "1", "admin.connections.max.idle.ms": "10000"}
    assert effective_client_properties(connector, "source", "producer") == {"acks": "1"}
    assert effective_client_properties(connector, "target", "admin") == {
        "connections.max.idle.ms": "10000"
    }


def test_the_client_id_of_a_user_comes_first_and_a_task_has_its_number() -> None:
    config = source_of(config_of("a.consumer.client.id=mine"))
    props = effective_client_properties(
        config, "source", "consumer", role="replication-consumer", task_index=0
    )
    assert props["client.id"] == "mine|a->b|MirrorSourceConnector-0|replication-consumer"
    assert client_id(config, "r") == "a->b|MirrorSourceConnector|r"


def test_the_producer_of_records_is_the_workers_with_the_flows_overrides() -> None:
    config = config_of(
        "b.producer.linger.ms=1", "b.producer.buffer.memory=2", "a->b.producer.buffer.memory=3",
        "a->b.producer.override.buffer.memory=4", "a.producer.max.request.size=5",
    )  # fmt: skip
    props = framework_producer_properties(config.worker_config(AB), source_of(config), task_index=2)
    assert props["bootstrap.servers"] == "servers-two:2"
    assert (props["linger.ms"], props["buffer.memory"], props["acks"]) == ("1", "4", "all")
    assert props["client.id"] == "connector-producer-MirrorSourceConnector-2"
    assert "max.request.size" not in props


def test_every_value_knows_the_line_or_the_rule_it_comes_from() -> None:
    flow = config_of("topics=x", "a->b.enabled=true").flow_configs(AB)
    source = flow.connectors["MirrorSourceConnector"]
    assert source["topics"].origin == "line 4: topics"
    assert source["source.cluster.bootstrap.servers"].origin == "line 2: a.bootstrap.servers"
    assert source["name"].origin == "derived from the flow"
    assert flow.worker["session.timeout.ms"].origin == "our default (Java: 10000)"


@pytest.mark.parametrize("key", ["copy.connector", "a->b.copy.connector"])
def test_the_copy_of_a_flow_is_chosen_for_all_or_for_one(key: str) -> None:
    config = config_of(f"{key}=sink", "a->b.enabled=true")
    connectors = config.connector_configs(AB)
    assert "MirrorSourceConnector" not in connectors
    sink = connectors["MirrorSinkConnector"]
    assert sink["connector.class"] == "org.apache.kafka.connect.mirror.MirrorSinkConnector"
    assert sink["consumer.override.group.id"] == "connect-a->b.MirrorSinkConnector"
    assert sink["source.cluster.bootstrap.servers"]
    assert sink["enabled"] == "true"
    assert connectors["MirrorCheckpointConnector"]["enabled"] == "false"
    back = config.connector_configs(BA)
    assert ("MirrorSinkConnector" in back) is (key == "copy.connector")


def test_a_flow_that_does_not_choose_is_copied_by_the_source_connector() -> None:
    connectors = config_of("a->b.enabled=true").connector_configs(AB)
    assert "MirrorSourceConnector" in connectors
    assert "MirrorSinkConnector" not in connectors
    mine = config_of("a->b.copy.connector=sink", "a->b.consumer.override.group.id=mine")
    group = mine.connector_configs(AB)["MirrorSinkConnector"]["consumer.override.group.id"]
    assert group == "mine"


# ---- mirror maker flows


def with_clusters(names: str, *lines: str) -> MirrorMakerConfig:
    servers = [f"{n.strip()}.bootstrap.servers=h:1" for n in names.split(",")]
    return read("\n".join([f"clusters={names}", *servers, *lines]))


def flow(text: str) -> FlowName:
    source, _, target = text.partition("->")
    return FlowName(ClusterAlias(source), ClusterAlias(target))


def names_of(config: MirrorMakerConfig, targets: list[str] | None = None) -> set[str]:
    return {str(f) for f in config.flows(targets)}


def test_heartbeats_off_everywhere_and_nothing_enabled_leaves_no_flow() -> None:
    config = with_clusters("a,b", "emit.heartbeats.enabled=false")
    with pytest.raises(ConfigError, match="no replication flows"):
        config.flows()


ALL_PAIRS = {f"{source}->{target}" for source, target in permutations("abc", 2)}
BEATS = "emit.heartbeats.enabled"
NO_BEATS = f"{BEATS}=false c->a.enabled=false"


@pytest.mark.parametrize(
    ("names", "switches", "run"),
    [
        ("a, b, c", "", ALL_PAIRS),
        ("a,b,c", f"a->b.{BEATS}=false a->c.{BEATS}=false", ALL_PAIRS - {"a->b", "a->c"}),
        ("a,b,c", "a->b.enabled=true", {"a->b", "b->a"}),
        ("a,b,c", f"a->b.enabled=true a->c.{BEATS}=true", {"a->b", "b->a", "a->c"}),
        ("a,b,c", f"a->b.enabled=true b->a.{BEATS}=false", {"a->b"}),
        ("a,b,c", f"a->b.enabled=true b->c.enabled=false {BEATS}=true", {"a->b", "b->a"}),
        ("a,b,c,d", f"{NO_BEATS} a->b.enabled=true d->c.enabled=true", {"a->b", "d->c"}),
        ("a,b,c", f"{NO_BEATS} a->b.enabled=true b->a.{BEATS}=true", {"a->b", "b->a"}),
    ],
    ids=[
        "every ordered pair by default",
        "without the heartbeats of two of six pairs",
        "clusters that no enabled flow connects do not run for their heartbeats",
        "but where the pair says so",
        "an enabled flow and no way back",
        "one that is disabled by itself",
        "flows that are enabled stay when heartbeats are off",
        "as does one that keeps its heartbeats",
    ],
)
def test_these_flows_run(names: str, switches: str, run: set[str]) -> None:
    assert names_of(with_clusters(names, *switches.split())) == run


def test_clusters_keeps_the_flows_to_the_named_targets() -> None:
    config = with_clusters("a,b,c")
    assert names_of(config, ["b"]) == {"a->b", "c->b"}
    assert names_of(config, ["b", "c"]) == {"a->b", "c->b", "a->c", "b->c"}


@pytest.mark.parametrize("text", ["true", "TRUE", "true ", "\\ttrue"])
def test_a_flow_switch_is_trimmed_and_any_case(text: str) -> None:
    assert with_clusters("a,b", f"a->b.enabled={text}").flow_enabled(flow("a->b"))


def test_a_switch_that_is_not_true_is_off() -> None:
    config = with_clusters("a,b", "a->b.enabled=yes")
    assert not config.flow_enabled(flow("a->b"))
    assert not config.flow_enabled(flow("b->a"))


def refused(text: str, environ: dict[str, str] | None = None) -> str:
    config = read(text, environ)
    errors = [f for f in config.findings if f.severity.name == "ERROR"]
    assert errors
    return str(errors[0].as_error(config.path))


TWO = "clusters=a,b\na.bootstrap.servers=h:1\n"
ONE = "clusters=a\nbootstrap.servers=h:1\n"
PROVIDER = "config.providers=v\nconfig.providers.v.class=x.Y"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=1", "clusters: is missing"),
        ("Clusters=A,B", "write clusters instead of 'Clusters'"),
        ("clusters=", "mm2.properties:1: clusters: names no cluster"),
        (TWO, "mm2.properties:1: b.bootstrap.servers: "),
        (f"{TWO}b.bootstrap.servers=", "mm2.properties:3: b.bootstrap.servers: "),
        (f"{TWO}b.bootstrap.servers= , ", "mm2.properties:3: b.bootstrap.servers"),
        ("clusters=<source>,b\nbootstrap.servers=h:1", "is no cluster alias"),
        ("clusters=a/b,b\nbootstrap.servers=h:1", "is no cluster alias"),
        ("clusters=dc 1,b\nbootstrap.servers=h:1", "is no cluster alias"),
        (f"{ONE}security.protocol=abc", "is no security protocol"),
        (
            f"{ONE}{ENV}\na.client.id=${{env:X}}",
            ":5: a.client.id: ${env:X} is not found; set the var",
        ),
        (f"{ONE}{ENV}\na.client.id=${{vault:a:b}}", ":5: a.client.id: ${vault:a:b}: config prov"),
        (ONE + PROVIDER, ":4: config.providers.v.class: x.Y: not a config provider"),
    ],
)
def test_what_no_flow_can_run_with_is_refused_with_its_line(text: str, said: str) -> None:
    assert said in refused(text)


def test_top_level_bootstrap_servers_serve_every_cluster() -> None:
    config = read("clusters=a,b\nbootstrap.servers=h:1\nb.bootstrap.servers=i:2")
    assert texts(cluster_props(config.layout, "a"))["bootstrap.servers"] == "h:1"
    assert texts(cluster_props(config.layout, "b"))["bootstrap.servers"] == "i:2"
    assert config.findings == []


def test_the_case_of_a_security_protocol_does_not_matter() -> None:
    assert read(f"{ONE}security.protocol=sasl_ssl").findings == []


def test_what_the_value_of_a_variable_contains_is_text_and_in_no_message() -> None:
    text = f"clusters=a,b\nbootstrap.servers=h:1\n{ENV}\na->b.enabled=true\na.sasl.jaas.config=${{env:PW}}"
    config = read(text, environ={"PW": "x${env:hunter2}"})
    assert config.findings == []
    assert config.resolved({"p": "${env:PW}"}) == {"p": "x${env:hunter2}"}


def test_what_no_colon_makes_a_placeholder_is_text() -> None:
    """``TimestampRouter`` as every guide writes it; Java's ``ConfigTransformer`` leaves it too."""
    text = "clusters=a,b\nbootstrap.servers=h:1\na->b.enabled=true\na->b.transforms=x\n"
    text += "a->b.transforms.x.type=org.apache.kafka.connect.transforms.TimestampRouter\n"
    config = read(text + "a->b.transforms.x.topic.format=${topic}-${timestamp}")
    assert config.findings == []
    resolved = config.resolved({"transforms.x.topic.format": "${topic}-${timestamp}"})
    assert resolved == {"transforms.x.topic.format": "${topic}-${timestamp}"}


def test_load_raises_the_first_error_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = A, B\nA.bootstrap.servers = h:1\n")
    with pytest.raises(ConfigError, match=r"mm2\.properties:1: B\.bootstrap\.servers: is missing"):
        MirrorMakerConfig.load(file, CONNECTORS)
