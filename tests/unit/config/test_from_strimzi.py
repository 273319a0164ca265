"""KafkaMirrorMaker2 resources in both shapes as a properties file: clusters, security, flows, and what has no property."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner, Result

from mm2py.config.findings import Severity
from mm2py.config.lint import lint
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.properties import parse
from mm2py.errors import ConfigError
from mm2py.types import ClusterAlias, FlowName
from mm2py_cli.app import app
from mm2py_connectors.config import CONNECTORS
from mm2py_migrate.from_strimzi import mirror_maker_2_file, operator_flows
from mm2py_migrate.written_file import TranslatedFile

OLD: Final = """
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaMirrorMaker2
metadata: {name: mirror}
spec:
  version: 4.0.0
  replicas: 3
  connectCluster: east
  clusters:
    - alias: west
      bootstrapServers: west:9093
      tls:
        trustedCertificates:
          - {secretName: west-ca, certificate: ca.crt}
          - {secretName: west-old-ca, pattern: "*.crt"}
      authentication:
        type: scram-sha-512
        username: mirror
        passwordSecret: {secretName: west-user, password: password}
    - alias: east
      bootstrapServers: east:9093
      tls: {trustedCertificates: [{secretName: east-ca, certificate: ca.crt}]}
      authentication:
        type: tls
        certificateAndKey: {secretName: east-user, certificate: user.crt, key: user.key}
      config: {config.storage.replication.factor: -1}
  mirrors:
    - sourceCluster: west
      targetCluster: east
      topicsPattern: "orders|clicks\\\\.v[0-9]+"
      topicsBlacklistPattern: .*-tmp
      groupsPattern: .*
      groupsExcludePattern: dev-.*
      sourceConnector:
        tasksMax: 10
        autoRestart: {enabled: true, maxRestarts: 5}
        config:
          replication.factor: -1
          sync.topic.acls.enabled: false
          replication.policy.class: io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy
          consumer.client.id: ${strimzienv:CLIENT}
      checkpointConnector:
        tasksMax: 2
        config: {sync.group.offsets.enabled: true, replication.factor: 3}
  resources: {limits: {memory: 2Gi}}
"""
NEW: Final = """
apiVersion: kafka.strimzi.io/v1
kind: KafkaMirrorMaker2
spec:
  target:
    alias: hub
    groupId: mirror
    configStorageTopic: mirror-configs
    offsetStorageTopic: mirror-offsets
    statusStorageTopic: mirror-status
    bootstrapServers: hub:9092
  mirrors:
    - source:
        alias: one
        bootstrapServers: one:9092
        authentication:
          type: plain
          username: u
          passwordSecret: {secretName: one-user, password: pw}
      sourceConnector: {tasksMax: 2, state: paused}
      heartbeatConnector: {config: {heartbeats.topic.replication.factor: 1}}
    - source:
        alias: two
        bootstrapServers: two:9092
        authentication:
          type: custom
          sasl: true
          config:
            sasl.mechanism: PLAIN
            sasl.jaas.config: org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="${strimzisecrets:ns/two-user:pw}";
      checkpointConnector: {}
"""
OAUTH: Final = """
      authentication:
        type: oauth
        clientId: mirror
        clientSecret: {secretName: idp, key: secret}
        tokenEndpointUri: https://idp/token
        scope: kafka
        tlsTrustedCertificates: [{secretName: idp-ca, certificate: ca.crt}]
"""


def imported(text: str, secrets: str = "/secrets") -> TranslatedFile:
    return mirror_maker_2_file(yaml.safe_load(text), secrets=secrets)


def values_of(found: TranslatedFile) -> dict[str, str]:
    return dict(parse(found.text.encode("latin-1")).values)


def test_clusters_of_the_old_shape_with_tls_and_a_login() -> None:
    values = values_of(imported(OLD))
    assert values["clusters"] == "west, east"
    assert values["west.bootstrap.servers"] == "west:9093"
    assert values["west.security.protocol"] == "SASL_SSL"
    assert values["west.sasl.mechanism"] == "SCRAM-SHA-512"
    assert 'password="${dir:/secrets/west-user:password}"' in values["west.sasl.jaas.config"]
    trusted = values["west.ssl.truststore.certificates"]
    assert trusted == "${dir:/secrets/west-ca:ca.crt}\n${dir:/secrets/west-old-ca:ca.crt}"
    assert values["east.security.protocol"] == "SSL"
    assert values["east.ssl.keystore.key"] == "${dir:/secrets/east-user:user.key}"
    assert values["east.config.storage.replication.factor"] == "-1"
    assert values["config.providers"] == "dir,env"


def test_the_flow_of_the_old_shape() -> None:
    found = imported(OLD)
    values = values_of(found)
    flow = {name[len("west->east.") :]: value for name, value in values.items() if "->" in name}
    assert flow["enabled"] == "true"
    assert flow["topics"] == r"orders|clicks\.v[0-9]+"
    assert flow["topics.exclude"] == ".*-tmp"
    assert (flow["groups"], flow["groups.exclude"]) == (".*", "dev-.*")
    assert (flow["tasks.max"], flow["task.auto.restart"]) == ("10", "true")
    assert flow["sync.topic.acls.enabled"] == "false"
    assert flow["sync.group.offsets.enabled"] == "true"
    assert flow["replication.policy.class"].startswith("org.apache.kafka.")
    assert flow["consumer.client.id"] == "${env:CLIENT}"
    assert flow["emit.heartbeats.enabled"] == "false"
    assert "emit.checkpoints.enabled" not in flow


@pytest.mark.parametrize(
    "said",
    [
        "spec.replicas has no property: start that many workers",
        "spec.resources has no property",
        "autoRestart.maxRestarts has no property: pauses grow",
        "of the certificates *.crt, ca.crt is taken",
        "checkpointConnector: replication.factor=3 is left out, the flow has replication.factor=-1",
        "repeat this with --carry-positions",
    ],
)
def test_what_has_no_property_is_said(said: str) -> None:
    assert [it for it in imported(OLD).remarks if said in it]


def test_the_new_shape_has_one_target_and_a_source_per_mirror() -> None:
    found = imported(NEW)
    values = values_of(found)
    assert values["clusters"] == "one, hub, two"
    assert values["one.security.protocol"] == "SASL_PLAINTEXT"
    assert values["one->hub.enabled"] == "true"
    assert values["one->hub.emit.checkpoints.enabled"] == "false"
    assert values["one->hub.emit.heartbeats.enabled"] == "true"
    assert values["two->hub.enabled"] == "false", "it has no source connector"
    assert values["two.sasl.mechanism"] == "PLAIN"
    assert "${dir:/secrets/two-user:pw}" in values["two.sasl.jaas.config"]
    assert [it for it in found.remarks if "mm2py flow pause one/hub" in it]
    assert [it for it in found.remarks if "repeat this with --carry-positions" in it]
    assert "hub.group.id" not in values


def test_oauth_by_client_id_and_secret_is_carried_over() -> None:
    resource = yaml.safe_load(NEW)
    resource["spec"]["mirrors"][0]["source"] |= yaml.safe_load(OAUTH)
    found = mirror_maker_2_file(resource, secrets="/secrets/")
    values = values_of(found)
    assert values["one.sasl.mechanism"] == "OAUTHBEARER"
    assert values["one.sasl.oauthbearer.token.endpoint.url"] == "https://idp/token"
    assert (
        'clientSecret="${dir:/secrets/idp:secret}" scope="kafka"' in values["one.sasl.jaas.config"]
    )
    assert [it for it in found.remarks if "authentication.tlsTrustedCertificates" in it]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("kind",), "Kafka", "kind is 'Kafka'"),
        (("spec",), None, "spec is not a map"),
        (("spec", "mirrors"), [], r"spec\.mirrors is empty"),
        (("spec", "mirrors"), {}, r"spec\.mirrors is not a list"),
        (("spec", "clusters"), [], "names the cluster 'west'"),
        (("spec", "clusters", 0, "bootstrapServers"), None, "cluster west: bootstrapServers is missing"),
        (("spec", "clusters", 0, "authentication", "username"), None, "username is missing"),
    ],
)  # fmt: skip
def test_a_wrong_resource_is_refused(path: tuple[Any, ...], value: object, said: str) -> None:
    resource = yaml.safe_load(OLD)
    place = resource
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match=said):
        mirror_maker_2_file(resource, secrets="/secrets")


def secrets_of(folder: Path) -> str:
    for name in ("west-ca/ca.crt", "west-old-ca/ca.crt", "west-user/password", "east-ca/ca.crt",
                 "east-user/user.crt", "east-user/user.key", "one-user/pw", "two-user/pw"):  # fmt: skip
        file = folder / "secrets" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("text of a secret")
    return str(folder / "secrets")


@pytest.mark.parametrize("text", [OLD, NEW])
def test_lint_accepts_what_is_printed(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(imported(text, secrets_of(tmp_path)).text)
    environ = {"CLIENT": "mirror"}
    errors = [
        it
        for it in lint(file, CONNECTORS, environ=environ)
        # The texts of this test are no certificates.
        if it.severity is Severity.ERROR and "ssl." not in it.key
    ]
    assert errors == []


def test_connectors_get_what_the_operator_gave_them(tmp_path: Path) -> None:
    file = tmp_path / "mm2.properties"
    file.write_text(imported(OLD, secrets_of(tmp_path)).text)
    config = MirrorMakerConfig.load(file, CONNECTORS, environ={"CLIENT": "mirror"})
    flow = FlowName(ClusterAlias("west"), ClusterAlias("east"))
    assert config.flows() == (flow,), "the way back is no flow"
    source = config.resolved(config.connector_configs(flow)["MirrorSourceConnector"])
    assert source["source.cluster.bootstrap.servers"] == "west:9093"
    assert source["source.cluster.security.protocol"] == "SASL_SSL"
    assert source["tasks.max"] == "10"
    assert config.worker_config(flow)["config.storage.replication.factor"] == "-1"


def test_where_the_operator_keeps_positions_is_what_the_resource_says_else_its_defaults() -> None:
    (old,) = operator_flows(yaml.safe_load(OLD))
    assert (old.connector, old.group_id, old.offsets_topic) == (
        "west->east.MirrorSourceConnector",
        "mirrormaker2-cluster",
        "mirrormaker2-cluster-offsets",
    )
    new = operator_flows(yaml.safe_load(NEW))
    assert {(it.group_id, it.offsets_topic) for it in new} == {("mirror", "mirror-offsets")}


def test_group_and_topics_of_the_operator_are_not_those_of_the_flows() -> None:
    named = {
        "group.id": "own",
        "config.storage.topic": "own-configs",
        "offset.storage.topic": "own-offsets",
        "status.storage.topic": "own-status",
    }
    resource: dict[str, Any] = yaml.safe_load(OLD)
    resource["spec"]["clusters"][1]["config"] = named
    (flow,) = operator_flows(resource)
    assert (flow.group_id, flow.offsets_topic) == ("own", "own-offsets")
    found = mirror_maker_2_file(resource, secrets="/s")
    assert "= own" not in found.text
    assert len([it for it in found.remarks if "has its own group and topics" in it]) == len(named)


def test_a_file_beside_carried_positions_does_not_ask_for_them() -> None:
    found = mirror_maker_2_file(yaml.safe_load(OLD), secrets="/s", carries=True)
    assert not [it for it in found.remarks if "--carry-positions" in it]


# -- ``mm2py migrate`` and ``mm2py import``


RESOURCE = """
kind: KafkaMirrorMaker2
spec:
  version: 4.0.0
  target: {alias: b, bootstrapServers: "b:1"}
  mirrors:
    - source: {alias: a, bootstrapServers: "a:1"}
      sourceConnector: {}
"""


WAY_BACK = """
kind: KafkaMirrorMaker2
spec:
  target: {alias: a, bootstrapServers: "a:1", config: {config.storage.replication.factor: 2}}
  mirrors:
    - source: {alias: b, bootstrapServers: "b:1"}
      sourceConnector: {}
    - source: {alias: c, bootstrapServers: "c:1"}
      sourceConnector: {}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    Path("c").write_text("metadata.broker.list=a:1\ngroup.id=g\n")
    Path("p").write_text("bootstrap.servers=b:1\n")
    return ["--consumer.config", "c", "--producer.config=p"]


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, words, input=stdin)


@pytest.mark.parametrize("script", [[], ["kafka-run-class.sh", "kafka.tools.MirrorMaker"]])
def test_a_command_line_is_taken_as_it_is(files: list[str], script: list[str]) -> None:
    found = run("migrate", "mm1", *script, *files, "--whitelist", "x", "--num.streams", "2")
    assert found.exit_code == 0
    assert "source->target.topics = x\n" in found.stdout
    assert "tasks.max = 2\n" in found.stdout
    assert "metadata.broker.list is taken as bootstrap.servers" in found.stderr
    assert "positions of group g are not carried over" in found.stderr
    assert found.stderr not in found.stdout


def test_names_of_clusters_and_a_file_can_be_given(files: list[str]) -> None:
    names = ("--source", "old", "--target", "new", "--to", "out.properties")
    found = run("migrate", "mm1", *files, "--whitelist", "x", *names)
    assert (found.exit_code, found.stdout) == (0, "")
    assert "old->new.enabled = true\n" in Path("out.properties").read_text()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--num.producers", "2"), "--num.producers has no property"),
        (("--queue.size", "5"), "--queue.size has no property"),
        (("--offset.commit.interval.ms", "5"), "--offset.commit.interval.ms has no property"),
        (("--abort.on.send.failure", "false"), "--abort.on.send.failure false has no property"),
        (("--message.handler", "a.B"), "--message.handler a.B has no property"),
        (("--consumer.rebalance.listener", "a.B"), "listener a.B has no property"),
        (("--new.consumer",), ""),
    ],
)
def test_each_option_is_carried_over_or_named(
    files: list[str], option: tuple[str, ...], said: str
) -> None:
    found = run("migrate", "mm1", *files, "--whitelist", "x", *option)
    assert found.exit_code == 0
    assert said in found.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--whitelist", "x", "--no.such.option", "1"), 2),
        (("--whitelist", "x", "--target", "source"), 2),
        ((), 1),
        (("--whitelist", "x", "--blacklist", "y"), 1),
    ],
)
def test_what_mm1_refuses_is_refused(files: list[str], words: tuple[str, ...], code: int) -> None:
    found = run("migrate", "mm1", *files, *words)
    assert found.exit_code == code
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1


def test_a_name_that_no_topic_can_have_is_refused(files: list[str]) -> None:
    found = run("migrate", "mm1", *files, "--whitelist", "x", "--source", "a b")
    assert found.exit_code == 2
    assert "'a b' is no name of a cluster" in found.stderr


def test_the_checker_says_what_takes_the_place_of_zookeeper() -> None:
    found = run("consumer-offset-checker", "--group", "g", "--zkconnect", "zk:2181", "--topic", "t")
    assert found.exit_code == 2
    assert "--zkconnect names ZooKeeper" in found.stderr
    assert "--bootstrap-server HOST:9092" in found.stderr


def test_a_resource_is_read_from_standard_input() -> None:
    found = run("import", "strimzi", "-", stdin=RESOURCE)
    assert found.exit_code == 0
    assert "a->b.enabled = true\n" in found.stdout
    assert "spec.version has no property" in found.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is no YAML"),
        ("kind: Kafka", "has no resource of kind KafkaMirrorMaker2"),
        (f"{RESOURCE}\n---\n{RESOURCE}", "two resources mirror a->b"),
        (f"{RESOURCE}\n---\n{WAY_BACK.replace('a:1', 'a:2')}", "different values of a.bootstrap.servers"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_resources_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mirror.yaml"
    file.write_text(text)
    found = run("import", "strimzi", str(file))
    assert (found.exit_code, found.stdout) == (1, "")
    assert said in found.stderr


def test_several_resources_are_one_file_with_the_flows_of_all() -> None:
    """The operator has one resource for each target: a pair of clusters has two."""
    found = run("import", "strimzi", "-", stdin=f"{RESOURCE}\n---\n{WAY_BACK}")
    assert found.exit_code == 0, found.stderr
    values = dict(parse(found.stdout.encode("latin-1")).values)
    assert values["clusters"] == "a, b, c"
    switches = [it for it in values if "->" in it and it.count(".") == 1 and "enabled" in it]
    assert switches == ["a->b.enabled", "b->a.enabled", "c->a.enabled"]
    assert values["a.config.storage.replication.factor"] == "2"
    assert found.stderr.count("repeat this with --carry-positions") == 1
    carried = operator_flows(*map(yaml.safe_load, (RESOURCE, WAY_BACK)))
    assert [(it.source, it.target) for it in carried] == [("a", "b"), ("b", "a"), ("c", "a")]


def test_one_resource_among_others_is_found(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(f"kind: Kafka\n---\n{RESOURCE}")
    assert run("import", "strimzi", str(file)).exit_code == 0


def test_a_list_is_opened(tmp_path: Path) -> None:
    items = "".join(f"  {line}\n" for line in RESOURCE.strip().splitlines())
    file = tmp_path / "list.yaml"
    text = f"apiVersion: v1\nkind: List\nitems:\n-{items[1:]}- kind: Kafka\n"
    file.write_text(text)
    found = run("import", "strimzi", str(file))
    assert found.exit_code == 0, found.stderr
    assert "a->b.enabled = true\n" in found.stdout
    file.write_text(f"{text}-{items[1:]}")
    assert "two resources mirror a->b" in run("import", "strimzi", str(file)).stderr
