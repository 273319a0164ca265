"""Findings of a mirror maker file, the property files of vendors' guides, and a hub with many stores."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mm2py.config.catalog import Catalog
from mm2py.config.definitions import parse_config
from mm2py.config.derivation import Layout, Value
from mm2py.config.findings import LintFinding, Severity
from mm2py.config.jaas import parse_jaas
from mm2py.config.lint import findings_of, lint, load_checked
from mm2py.config.lint_keys import property_problem
from mm2py.config.mirror_maker import MirrorMakerConfig, option_names
from mm2py.config.properties import load
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.types import ClusterAlias, FlowName
from mm2py_connectors.config import CONNECTORS
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointConfig
from mm2py_connectors.mirror_source_config import MirrorSourceConfig

DATA = Path(__file__).parents[2] / "data" / "config"
EXAMPLE = Path(__file__).parents[3] / "examples" / "connect-mirror-maker.properties"
HEAD = "clusters = A, B\nA.bootstrap.servers = h:1\nB.bootstrap.servers = h:2\n"


@pytest.fixture
def say(tmp_path: Path) -> "Say":
    return Say(tmp_path / "mm2.properties")


class Say:
    """Lints ``HEAD`` and one more line, the fourth."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self, line: str) -> list[LintFinding]:
        self.path.write_bytes((HEAD + line + "\n").encode())
        return lint(self.path, CONNECTORS, environ={})

    def one(self, line: str) -> str:
        found = self.all(line)
        assert len(found) == 1, found
        assert found[0].line == 4
        return f"{found[0].severity.name}: {found[0].key}: {found[0].message}; {found[0].remedy}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topics.blacklist", "is an old name, which counts in a file alone: set topics.exclude"),
        ("refresh.topics.interval.ms", "is an old name.*: set refresh.topics.interval.seconds"),
        ("topiks", r"is not known: did you mean topics\?"),
        ("topics.exclude", ""),
    ],
)
def test_a_property_that_comes_over_rest_is_one_that_something_reads(name: str, said: str) -> None:
    catalog = Catalog(CONNECTORS, option_names(CONNECTORS), ())
    assert re.fullmatch(said, property_problem(catalog, name))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("A->B.enabled = true ", "WARNING: A->B.enabled: has a blank around 'true'"),
        ("connector.class = MirrorSourceConnector", "WARNING: .*has no effect: each connector"),
        ("A->B.name = mine", "WARNING: .*has no effect: each connector of a flow has a name"),
        ("A->B.enabled = false # passive", "ERROR: .*contains what looks like a comment"),
        ("A->B.replication.policy.separator = - ", "WARNING: .*is a part of the value, as in Java"),
        ("B.group.id = x ", "INFO: B.group.id: ends in a blank, which is left out"),
        ("rest.max.body.bytes = x", "ERROR: rest.max.body.bytes: must be a whole number"),
        ("rest.max.body.byte = 1", "WARNING: .*did you mean rest.max.body.bytes?"),
        ("task.host.processes = abc", "ERROR: .*must be a whole number"),
        ("task.host.processes = -1", "ERROR: .*must be at least 0"),
        ("task.host.processes = 1001", "ERROR: .*must be at most 1000"),
        ("task.host.processes =", "ERROR: .*must be a whole number"),
        ("dedicated.mode.enable.internal.rest = true", "INFO: .*has no effect: .*always use"),
        ("A->B.config.action.reload = none", "INFO: .*has no effect: .*report no changes"),
        ("B.worker.unsync.backoff.ms = 1", "INFO: .*has no effect: .*growing pauses"),
        ("ssl.client.auth = some", "ERROR: .*must be one of .*required"),
        ("task.host.process = 1", "WARNING: .*did you mean task.host.processes?"),
        (r"topics = .*   # IMPORTANT", "ERROR: topics: .*on a line of its own"),
        ("tasks.max = 4 # four", "ERROR: tasks.max: .*comment"),
        ("A.consumer.client.id = x # y", "WARNING: .*comment"),
        ("topics.blacklist = x", "WARNING: .*old name of topics.exclude.*write topics.exclude"),
        ("A->B.groups.blacklist = x", "WARNING: .*write A->B.groups.exclude"),
        (r"topics.exclude = .*[\-\.]internal", r"WARNING: .*effective pattern: '\.\*\[-\.\]internal'"),
        (r"topics = prom\..*", r"WARNING: .*'prom\.\.\*'; write two backslashes"),
        ("max.tasks = 2", "WARNING: .*did you mean tasks.max?"),
        ("readahead.queue.capacity = 500", "WARNING: .*no release of MirrorMaker 2 reads it"),
        ("heartbeats.enabled = false", "did you mean emit.heartbeats.enabled?"),
        ("retention.ms=1 day", "WARNING: retention.ms: is not known"),
        ("A.client.id = ${x:Y}", r"ERROR: A.client.id: \$\{x:Y\}: config provider 'x' is not declared"),
        ("groups = ''", "WARNING: groups: .* quote, as in Java, and match nothing"),
        ("A->B.topics = <topic>", "ERROR: .*placeholder"),
        ("A.consumer.client.rack = é", "WARNING: .*outside of ASCII"),
        ("Replication.factor=3", "WARNING: .*did you mean replication.factor?"),
        ("A.buffer.memory = 9", "WARNING: .*as in Java.*write A.producer.buffer.memory"),
        # keys in a place where they do nothing
        ("A.topics = x", "WARNING: .*write topics for all flows or A-><target>.topics"),
        ("use.defaults.from = source", "WARNING: .*write <source>-><target>.use.defaults.from"),
        ("transforms.x.type = y", "WARNING: .*write <source>-><target>.transforms.x.type"),
        ("producer.acks = all", "WARNING: .*write <cluster alias>.producer.acks"),
        ("linger.ms = 1", "WARNING: .*write <cluster alias>.producer.linger.ms"),
        ("offset.flush.interval.ms = 1", "WARNING: .*write <target>.offset.flush.interval.ms"),
        ("A->B.session.timeout.ms = 1", "WARNING: .*write B.session.timeout.ms"),
        ("A->C.enabled = true", r"ERROR: .*'C' is no cluster of this file \(A, B\)"),
        ("A->C.topics = x", "WARNING: .*'C' is no cluster"),
        ("C.bootstrap.servers = h:3", "WARNING: .*'C' is no cluster"),
        ("A -> B.enabled = true", "ERROR: A: a name ends at its first blank.*; write A->B.enabled = true"),
        ("A-> B.topics = x, y", "WARNING: A->: a name ends.*; write A->B.topics = x, y"),
        ("A->A.enabled = true", "WARNING: .*not mirrored to itself"),
        ("A->B.enable = true", "did you mean A->B.enabled?"),
        ("A->B.emit.heartbeats = false", "did you mean A->B.emit.heartbeats.enabled?"),
        ("sync.group.offsets.interval.ms = 30000", "write sync.group.offsets.interval.seconds = 30"),
        ("use.incremental.alter.configs = never", "WARNING: .*no effect any more"),
        # values
        ("tasks.max = 0", "ERROR: tasks.max: '0' must be at least 1"),
        ("tasks.max = many", "'many' must be a whole number of 32 bits; correct tasks.max, for example tasks.max = 1"),
        ("refresh.topics.interval.seconds = 0", "ERROR: .*must be at least 1 s"),
        ("replication.factor = -2", "ERROR: .*must be at least -1"),
        ("replication.factor = 0", "ERROR: .*must not be 0"),
        ("offset-syncs.topic.location = here", "ERROR: .*must be one of source, target"),
        ("A->B.enabled = yes", "ERROR: A->B.enabled: 'yes' must be true or false"),
        ("B.offset.flush.interval.ms = x", "ERROR: B.offset.flush.interval.ms: 'x' must be"),
        ("gap.policy = ignore", "ERROR: .*must be one of continue, fail"),
        ("topics = *.internal", r"ERROR: .*write \.\*\.internal instead"),
        ("groups.exclude = a{1,3}", "ERROR: .*a comma separates patterns"),
        ("topics = a,,b", "WARNING: .*empty item"),
        ("topics = (?x)a", "ERROR: .*not a group or flag"),
        ("replication.policy.class = com.acme.Policy", "ERROR: .*cannot be loaded here"),
        ("value.converter = org.acme.Json", "WARNING: .*copied as bytes"),
        ("key.converter = Jsonn", "WARNING: .*copied as bytes"),
        ("A->B.topic.filter.class = no.such:One", "ERROR: .*no.such:One: unknown class"),
        ("A->B.group.filter.class = no.such:One", "ERROR: .*unknown class"),
        ("A->B.config.property.filter.class = no.such:One", "ERROR: .*unknown class"),
        ("replication.policy.class = LegacyReplicationPolicy", "INFO: .*is taken as .*Identity"),
        # clients
        ("B.producer.acks = 1", "WARNING: .*acks=1 is taken as all"),
        ("B.producer.enable.idempotence = false", "WARNING: .*idempotence stays on"),
        ("B.producer.max.in.flight.requests.per.connection = 9", "WARNING: .*taken as 5"),
        ("B.producer.batch.size = 1", "INFO: .*has no effect"),
        ("A.consumer.interceptor.classes = x.Y", "WARNING: .*Java interceptors"),
        ("A.ssl.engine.factory.class = x.Y", "ERROR: .*is refused"),
        ("A.security.protocol = SASL_SSL", "ERROR: .*sasl.mechanism is missing"),
        ("B.consumer.security.protocol = sasl_plaintext", "ERROR: .*sasl.mechanism is missing"),
        ("A.consumer.auto.offset.reset = by_duration:P1D", "ERROR: .*must be one of earliest"),
        ("A.consumer.fetch.max.wait.msx = 1", "did you mean A.consumer.fetch.max.wait.ms?"),
        ("A->B.producer.override.compression.type = lzo", "ERROR: .*must be one of none, gzip"),
    ],
)  # fmt: skip
def test_a_line_gets_this_one_finding(say: Say, line: str, said: str) -> None:
    assert re.search(said, say.one(line)), say.one(line)


@pytest.mark.parametrize(
    "line",
    [
        "A->B.topics: foo-.*, bar",
        "replication.factor = -1",
        "emit.checkpoints.enabled = true",
        "B.offset.storage.replication.factor = 1",
        "B.exactly.once.source.support = enabled",
        "A.consumer.fetch.max.bytes = 1",
        "B.producer.acks = all",
        "A->B.use.defaults.from = source",
        "A->B.topic.creation.default.partitions = 3",
        "A->B.transforms = x",
        "replication.policy.separator =",
        "#::::: banner :::::",
        "task.host.processes = 0",
        "ssl.client.auth = REQUIRED",
        "task.shutdown.graceful.timeout.ms = 1",
        "A->B.replication.policy.class = mm2py.mirror.policies:Mine",
        r"topics = a\\.b",
    ],
)
def test_a_line_that_means_what_it_says_gets_no_finding(say: Say, line: str) -> None:
    assert say.all(line) == []


SINK = "A->B.copy.connector = sink\nA->B.enabled = true\n"


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        ("topics.exclude = x\ntopics.blacklist = y", 5, "line 4 sets topics.exclude, and the new"),
        ("topics = a\ntopics = b", 4, "WARNING: .*line 5 sets it again"),
        ("A->B.enabled = true\nemit.checkpoints.enabled = false", 5, "WARNING: .*left out"),
        (f"{SINK}B.exactly.once.source.support = enabled", 4, "ERROR: .*copies at least once"),
        (f"{SINK}B.producer.acks = 1", 6, "WARNING: .*acks=1 is obeyed by MirrorSink"),
        (f"{SINK}B.producer.enable.idempotence = false", 6, "WARNING: .*is obeyed by MirrorSink"),
        (
            f"{SINK}B.producer.max.in.flight.requests.per.connection = 9",
            6,
            "WARNING: .*9 is obeyed",
        ),
    ],
    ids=[
        "the new name wins over the old one",
        "of a doubled key the last one counts",
        "without its checkpoints the flow runs",
        "a group copies at least once",
        "a group's producer obeys acks",
        "it obeys idempotence",
        "it obeys requests in flight",
    ],
)
def test_of_lines_in_conflict_this_one_is_told(say: Say, lines: str, line: int, said: str) -> None:
    (found,) = say.all(lines)
    assert found.line == line
    assert re.search(said, f"{found.severity.name}: {found.message}")


def test_the_effective_pattern_of_quoted_lists_is_shown(say: Say) -> None:
    found = say.all('topics.blacklist="*.internal,__.*"')
    remedy = "write topics.blacklist = .*.internal, __.*"
    assert any("match nothing" in f.message and f.remedy == remedy for f in found)


@pytest.mark.parametrize(
    ("chosen", "key", "reads"),
    [
        ("sink", "gap.policy=fail", False),
        ("sink", "loop.suppression=on", False),
        ("sink", "start.positions=latest", True),
        ("sink", "errors.deadletterqueue.topic.name=dead", True),
        ("source", "errors.deadletterqueue.topic.name=dead", False),
        ("source", "gap.policy=fail", True),
    ],
)
def test_what_the_other_one_reads_is_told(say: Say, chosen: str, key: str, reads: bool) -> None:
    found = say.all(f"A->B.{key}\nA->B.enabled=true\nA->B.copy.connector={chosen}")
    told = [(f.line, "does not read it" in f.message) for f in found]
    assert told == ([] if reads else [(4, True)])


def test_exactly_once_support_of_a_flow_that_a_group_copies_is_an_error(say: Say) -> None:
    found = say.all(f"{SINK}A->B.exactly.once.support = required")[0]
    assert (found.severity, found.line) == (Severity.ERROR, 6)
    assert "copies at least once" in found.message


def test_an_alias_with_the_separator_in_it_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("clusters=dc.1\nbootstrap.servers=h:1\n")
    assert "contains the separator '.'" in lint(file, CONNECTORS)[0].message


@pytest.mark.parametrize("name", ["group.id", "config.storage.topic", "status.storage.topic"])
def test_flows_to_one_cluster_with_one_group_or_config_topic_are_refused(
    tmp_path: Path, name: str
) -> None:
    """Their connectors have the same names: Java runs for all what one of them wrote last."""
    file = tmp_path / "mm2.properties"
    hub = (
        "clusters=A,B,C\nbootstrap.servers=h:1\nemit.heartbeats.enabled=false\nA->C.enabled=true\n"
    )
    file.write_text(f"{hub}C.{name}=mine\n")
    assert lint(file, CONNECTORS) == []
    file.write_text(f"{hub}B->C.enabled=true\nC.{name}=mine\n")
    (found,) = lint(file, CONNECTORS)
    assert (found.severity, found.line, found.key) == (Severity.ERROR, 6, f"C.{name}")
    assert f"flows A->C, B->C would have one {name} on C" in found.message
    file.write_text(f"{hub}B->C.enabled=true\nC.offset.storage.topic=mine\n")
    assert lint(file, CONNECTORS) == [], "positions have the source's alias"


@pytest.mark.parametrize(
    "line", ["source.cluster.alias=", "A->C.source.cluster.alias=B", "B->C.source.cluster.alias=A"]
)
def test_sources_with_one_alias_are_told_to_share_a_topic_of_checkpoints(
    tmp_path: Path, line: str
) -> None:
    """An empty one keeps the names of topics, with an empty separator, as some guides have it."""
    file = tmp_path / "mm2.properties"
    one = f"clusters=A,B,C\nbootstrap.servers=h:1\nemit.heartbeats.enabled=false\nA->C.enabled=true\n{line}\n"
    file.write_text(one)
    assert [it for it in lint(file, CONNECTORS) if "one source" in it.message] == []
    file.write_text(f"{one}B->C.enabled=true\n")
    (found,) = lint(file, CONNECTORS)
    assert (found.severity, found.line) == (Severity.WARNING, 5)
    assert "flows A->C, B->C have one source.cluster.alias" in found.message


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("offsets.identical=require\nB.exactly.once.source.support=enabled",
         "ERROR: offsets.identical: 'require' is not possible"),
        ("A->B.exactly.once.support=required\nA.consumer.isolation.level=read_committed",
         "ERROR: A->B.exactly.once.support: 'required' is not possible"),
        (
            "A.exactly.once.source.support=enabled",
            "WARNING: A.exactly.once.source.support: has no effect: flows read A, none that is enabled writes it",
        ),
        ("B.exactly.once.source.support=enabled\nA.consumer.isolation.level=read_uncommitted",
         "WARNING: B.exactly.once.source.support: records of aborted transactions of A are copied"),
    ],
)  # fmt: skip
def test_what_exactly_once_does_not_allow_is_named(say: Say, lines: str, said: str) -> None:
    (found,) = say.all(f"A->B.enabled=true\n{lines}")
    assert f"{found.severity.name}: {found.key}: {found.message}".startswith(said)
    assert found.line >= 5
    assert found.remedy


def test_a_contradiction_about_offset_syncs_is_refused(say: Say) -> None:
    found = say.all("emit.offset-syncs.enabled=false\noffset-syncs.topic.replication.factor=1")
    assert Severity.ERROR in [f.severity for f in found]


def test_a_secret_is_not_shown(say: Say, tmp_path: Path) -> None:
    found = say.all('A.ssl.keystore.password = hunter2\\.x \nA.sasl.jaas.config = hunter2 "#x" ')
    assert found
    assert not any("hunter2" in f.message + f.remedy for f in found)
    provider = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    file = tmp_path / "env.properties"
    file.write_text(
        f"{HEAD}config.providers=env\nconfig.providers.env.class={provider}\ntasks.max=${{env:S}}\n"
    )
    found = lint(file, CONNECTORS, environ={"S": "hunter2"})
    assert [f.severity for f in found] == [Severity.ERROR]
    assert "hunter2" not in found[0].message


def test_load_checked_raises_the_first_error_and_hands_out_the_rest(say: Say) -> None:
    say.all("tasks.max=0")
    with pytest.raises(ConfigError, match=r"mm2\.properties:4: tasks\.max: '0' must be at least 1"):
        load_checked(say.path, CONNECTORS)
    say.all("max.tasks=2")
    config, findings = load_checked(say.path, CONNECTORS)
    assert config.clusters == ("A", "B")
    assert [f.key for f in findings] == ["max.tasks"]


def test_the_example_has_no_findings() -> None:
    assert lint(EXAMPLE, CONNECTORS) == []


def test_a_secrets_file_that_is_missing_is_told_with_the_line_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = A, B\nA.bootstrap.servers = a:9092\nB.bootstrap.servers = b:9092\n"
        "A->B.enabled = true\nconfig.providers = file\n"
        "config.providers.file.class = FileConfigProvider\n"
        "A.ssl.key.password = ${file:/nowhere/secrets:key}\n"
    )
    with pytest.raises(ConfigError, match=r":7: A\.ssl\.key\.password: .*/nowhere/secrets"):
        load_checked(file, CONNECTORS)


# ---- seeds


def seed_findings(name: str) -> tuple[MirrorMakerConfig, set[tuple[str, str]]]:
    config, findings = load_checked(DATA / f"seed_{name}.properties", CONNECTORS)
    return config, {(f.severity.name, f.key) for f in findings}


def test_the_guide_of_hdinsight_runs_with_its_quotes_told() -> None:
    config, said = seed_findings("mm2_guide")
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
        seed_findings("mm2_guide_ssl")


def test_the_migration_guide_with_its_brokers_in_a_comment_is_refused_by_name() -> None:
    said = r"first\.properties:2: source\.bootstrap\.servers: is missing"
    with pytest.raises(ConfigError, match=said):
        seed_findings("mm2_migration_first")


@pytest.mark.parametrize("name", ["mm2_migration_final", "mm2_migration_steps"])
def test_the_migration_guide_runs_both_ways_and_syncs_groups_every_30_seconds(name: str) -> None:
    config, said = seed_findings(name)
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
        seed_findings(name)


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
    } | {"topics", *special}
    assert not any("is not known" in f.message for f in findings)


def test_the_advice_for_a_backslash_in_a_login_leads_to_the_password(say: Say) -> None:
    login = (
        "A.security.protocol = SASL_SSL\nA.sasl.mechanism = PLAIN\nA.sasl.jaas.config ="
        ' org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="a{}b";'
    )
    (found,) = [it for it in say.all(login.format("\\")) if "backslash" in it.message]
    assert found.remedy == "write four backslashes for one"
    assert say.all(login.format("\\" * 4)) == []
    text = MirrorMakerConfig(load(say.path), CONNECTORS).raw["A.sasl.jaas.config"].text
    assert parse_jaas(text).secrets == {"a\\b"}


def test_an_exclude_that_lets_internal_topics_through_is_named(say: Say) -> None:
    flow = "A->B.enabled = true\nA->B.topics = .*\nreplication.policy.separator = _\n"
    assert say.all(flow) == []
    (found,) = say.all(f"{flow}A->B.topics.exclude = secret.*")
    assert (found.severity, found.line) == (Severity.WARNING, 7)
    assert "lets internal topics through, such as mm2-configs.B.internal" in found.message
    assert (
        say.all(f"{flow}A->B.topics.exclude = secret.*, mm2.*internal, .*checkpoints.internal")
        == []
    )
    assert say.all(f"{flow}A->B.topics.exclude = secret.*".replace("= .*", "= orders")) == []
    assert say.all("A->B.enabled = true\nA->B.topics.exclude = secret.*") == []


def test_names_of_topics_that_are_never_copied_are_named_with_the_reason(say: Say) -> None:
    flow = "A->B.enabled = true\nA->B.topics = orders, __state, B.clicks, x.checkpoints.internal\n"
    found = [it for it in say.all(flow) if "never copied" in it.message]
    assert {(it.severity, it.key) for it in found} == {(Severity.WARNING, "A->B.topics")}
    assert [it.message.split("; ")[0] for it in found] == [
        "names B.clicks, never copied: its name says that it came from a cluster of this flow",
        "names __state, never copied: topics.exclude leaves it out",
        "names x.checkpoints.internal, never copied: it is the name of an internal topic of a mirror, and these are never copied",
    ]
    assert say.all("A->B.enabled = true\nA->B.topics = orders, ord.*, __.*") == []


@pytest.mark.parametrize(("password", "form"), [("x${MY_PW}", "${NAME}"), ("$MY_PW", "$NAME")])
def test_a_variable_of_a_shell_is_named_and_those_of_providers_and_routers_are_not(
    say: Say, password: str, form: str
) -> None:
    login = (
        "A.security.protocol = SASL_SSL\nA.sasl.mechanism = PLAIN\nA.sasl.jaas.config ="
        ' org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{}";'
    )
    (found,) = say.all(login.format(password))
    assert (found.severity, found.key) == (Severity.WARNING, "A.sasl.jaas.config")
    assert f"has a {form} that stays as it is: variables of a shell are not" in found.message
    assert "${env:NAME}" in found.remedy
    assert "MY_PW" not in found.message + found.remedy
    for own in ("a$b{c}", "x$MY_PW", "$My-pw"):
        assert say.all(login.format(own)) == []
    router = "A->B.transforms = r\nA->B.transforms.r.replacement = x${name}\n"
    found_of_router = say.all(f"A->B.enabled = true\n{router}")
    assert not any("shell" in it.message for it in found_of_router)


# -- a hub with many stores


class Counted(Mapping[str, Value]):
    """The keys of a file; counts how often all of them are gone through."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values, self.passes = dict(values), 0

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        self.passes += 1
        return iter(self._values)


def hub(folder: Path, stores: int, *more: str) -> MirrorMakerConfig:
    """Read the file of a hub into which each store is copied."""
    names = ["hub", *(f"s{number}" for number in range(stores))]
    lines = [f"clusters = {', '.join(names)}", "emit.heartbeats.enabled = false"]
    lines += [f"{name}.bootstrap.servers = {name}:9092" for name in names]
    for name in names[1:]:
        lines += [f"{name}->hub.enabled = true", f"{name}->hub.topics = a.*"]
    file = folder / "mm2.properties"
    file.write_text("\n".join([*lines, *more]))
    return MirrorMakerConfig(load(file), CONNECTORS, environ={})


def passes(config: MirrorMakerConfig) -> int:
    """Return how often lint and the configs of all flows go through the file."""
    counted = Counted(config.raw)
    config.raw = counted
    config.layout = Layout(counted, config.clusters, config.option_names)
    assert findings_of(config) == []
    assert [config.flow_configs(it).enabled for it in config.flows()] == [True] * (
        len(config.clusters) - 1
    )
    return counted.passes


def test_the_file_is_gone_through_as_often_for_300_clusters_as_for_three(tmp_path: Path) -> None:
    few, many = hub(tmp_path, 2), hub(tmp_path, 299)
    assert 0 < passes(few) < 20
    assert passes(hub(tmp_path, 2)) == passes(many)
    assert len(many.telling_pairs) <= 2 * 300


@pytest.mark.parametrize(
    "line",
    [
        "s7.offset.storage.replication.factor = x",
        "s7.consumer.fetch.max.bytes = x",
        "s7.sasl.jaas.config = x",
        "s7.security.protocol = x",
        "s7->hub.replication.factor = x",
        "s7->s8.replication.factor = x",
        "hub->s7.tasks.max = x",
        "replication.factor = x",
    ],
)
def test_what_is_wrong_of_one_of_many_clusters_is_found(tmp_path: Path, line: str) -> None:
    secured = ("s7.security.protocol = SASL_SSL", "s7.sasl.mechanism = PLAIN") * ("jaas" in line)
    found = [
        it for it in findings_of(hub(tmp_path, 12, *secured, line)) if it.severity is Severity.ERROR
    ]
    assert {it.key for it in found} == {line.partition(" ")[0]}


def test_the_longest_alias_owns_a_key() -> None:
    clusters = [ClusterAlias(it) for it in ("a", "a.b", "a-", "b", "b.topics")]
    catalog = Catalog(CONNECTORS, frozenset(), clusters)
    for key, flow, name in (
        ("a->b.enabled", ("a", "b"), "enabled"),
        ("a.b->b.enabled", ("a.b", "b"), "enabled"),
        ("a->b.topics.exclude", ("a", "b.topics"), "exclude"),
        ("a-->b.enabled", ("a-", "b"), "enabled"),
        ("a->a.enabled", ("a", "a"), "enabled"),
    ):
        scope = catalog.scope(key)
        assert (scope.flow, scope.name) == (FlowName(*map(ClusterAlias, flow)), name)
    assert catalog.scope("a.b.x").prefix == "a.b."
    assert catalog.scope("a.b.").prefix == "a."
    assert catalog.scope("c->b.enabled").kind == "top"
