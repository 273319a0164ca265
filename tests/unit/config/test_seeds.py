"""The property files of the vendors' guides load, or are refused, with the findings expected."""

from pathlib import Path

import pytest

from mm2py.config.definitions import parse_config
from mm2py.config.findings import Severity
from mm2py.config.lint import load_checked
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py_connectors.config import CONNECTORS
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_source_config import MirrorSourceConfig

DATA = Path(__file__).parents[2] / "data" / "config"


def findings_of(name: str) -> tuple[MirrorMakerConfig, set[tuple[str, str]]]:
    config, findings = load_checked(DATA / f"seed_{name}.properties", CONNECTORS)
    return config, {(f.severity.name, f.key) for f in findings}


def test_the_guide_of_hdinsight_runs_with_its_quotes_told() -> None:
    config, said = findings_of("mm2_guide")
    # The last line ends in blanks, which a number may have.
    assert said == {("WARNING", "topics.blacklist"), ("INFO", "config.storage.replication.factor")}
    flow, back = config.flows()
    assert (config.flow_enabled(flow), config.flow_enabled(back)) == (True, False)
    source = parse_config(
        MirrorSourceConfig, config.connector_configs(flow)["MirrorSourceConnector"]
    )
    assert source.topics == ("toa.evehicles-latest-dev",)
    assert source.topics_exclude == ('"*.internal', '__.*"')
    assert source.replication_factor == 3
    worker = parse_config(WorkerConfig, config.worker_config(flow))
    assert worker.offset_storage_replication_factor == 1
    assert worker.bootstrap_servers[0] == "wn0-dest-kafka.bx.internal.cloudapp.net:9092"


def test_the_security_lines_of_the_guide_ask_to_replace_their_placeholders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The guide has the JAAS file exported to KAFKA_OPTS.
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        "KafkaClient { com.sun.security.auth.module.Krb5LoginModule required\n"
        "useTicketCache=true serviceName=kafka; };",
        encoding="ascii",
    )
    monkeypatch.setenv("KAFKA_OPTS", f"-Djava.security.auth.login.config={jaas}")
    with pytest.raises(
        ConfigError, match=r":29: destination\.ssl\.truststore\.password: contains a placeholder"
    ):
        findings_of("mm2_guide_ssl")


def test_the_migration_guide_with_its_brokers_in_a_comment_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"first\.properties:2: source\.bootstrap\.servers: is missing"
    ):
        findings_of("mm2_migration_first")


@pytest.mark.parametrize("name", ["mm2_migration_final", "mm2_migration_steps"])
def test_the_migration_guide_runs_both_ways_and_syncs_groups_every_30_seconds(name: str) -> None:
    config, said = findings_of(name)
    one, two = config.clusters
    expected = {
        ("WARNING", "topics.blacklist"),
        ("WARNING", "Replication.factor"),
        ("WARNING", f"{one}->{two}.sync.group.offsets.interval.ms"),
        ("WARNING", f"{two}->{one}.sync.group.offsets.interval.ms"),
    }
    assert expected <= said
    assert not [s for s in said if s[0] == Severity.ERROR.name]
    for flow in config.flows():
        assert config.flow_enabled(flow)
        connectors = config.connector_configs(flow)
        checkpoint = parse_config(MirrorCheckpointConfig, connectors["MirrorCheckpointConnector"])
        assert checkpoint.sync_group_offsets_enabled
        assert checkpoint.sync_group_offsets_interval_seconds == 30
        # Replication.factor is another key than replication.factor: Java's default stays.
        source = parse_config(MirrorSourceConfig, connectors["MirrorSourceConnector"])
        assert source.replication_factor == 2


@pytest.mark.parametrize(
    "name",
    ["mm1_hdp_consumer", "mm1_hdp_producer", "mm1_hdinsight_consumer", "mm1_hdinsight_producer", "mm1_cloudera_producer"],
)  # fmt: skip
def test_a_client_file_of_mirror_maker_1_is_no_mirror_maker_2_file(name: str) -> None:
    with pytest.raises(ConfigError, match="clusters: is missing"):
        findings_of(name)


def test_every_property_of_the_guides_table_is_known_or_told(tmp_path: Path) -> None:
    names = [
        "topics", "topics.blacklist", "groups", "groups.blacklist", "sync.topic.configs.enabled",
        "sync.topic.acls.enabled", "emit.heartbeats.enabled", "emit.heartbeats.interval.seconds",
        "emit.checkpoints.enabled", "emit.checkpoints.interval.seconds", "refresh.topics.enabled",
        "refresh.topics.interval.seconds", "refresh.groups.enabled",
        "refresh.groups.interval.seconds", "readahead.queue.capacity", "replication.policy.class",
        "heartbeats.topic.retention.ms", "checkpoints.topic.retention.ms",
        "offset.syncs.topic.retention.ms", "replication.factor",
    ]  # fmt: skip
    special = {"replication.policy.class": "LegacyReplicationPolicy"}
    lines = [f"{n}={special.get(n, 'true' if n.endswith('enabled') else '5')}" for n in names]
    file = tmp_path / "table.properties"
    file.write_text("clusters=a,b\nbootstrap.servers=h:1\n" + "\n".join(lines))
    _, findings = load_checked(file, CONNECTORS)
    told = {f.key for f in findings}
    assert told == {
        n for n in names if "retention" in n or "blacklist" in n or "readahead" in n
    } | set(special)
    assert not any("is not known" in f.message for f in findings)
