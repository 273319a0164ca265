"""What Kafka's own ``MirrorMakerConfig`` and ConfigDefs say, beside what we derive and declare."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from mm2py.config.definitions import Option, options_of
from mm2py.config.mirror_maker import MirrorMakerConfig, option_names
from mm2py.config.old_names import modern_name
from mm2py.config.properties import parse
from mm2py.config.worker import DEDICATED_DEFAULTS
from mm2py.errors import ConfigError
from mm2py_connectors.config import CONNECTORS
from tests.kit.kafka.java import compile_java, run_java

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[1]
Configs = dict[str, dict[str, dict[str, str]]]


def generated_files(count: int) -> list[bytes]:
    """Files of keys in all scopes with values that Java and we read alike."""
    chance = random.Random(20_260_723)
    keys = [
        "enabled", "emit.heartbeats.enabled", "topics", "topics.exclude", "groups", "tasks.max",
        "replication.factor", "replication.policy.separator", "replication.policy.mine", "xxx",
        "offset.storage.replication.factor", "status.storage.topic", "task.x", "worker.y",
        "key.converter", "offset.flush.interval.ms", "exactly.once.source.support", "group.id",
        "client.id", "security.protocol", "ssl.key.password", "sasl.mechanism", "request.timeout.ms",
        "producer.acks", "producer.ssl.protocol", "consumer.isolation.level", "admin.timeout.ms",
        "consumer.poll.timeout.ms", "producer.override.linger.ms", "use.defaults.from",
        "transforms", "transforms.x.type", "topic.creation.default.partitions", "metric.reporters",
        "sync.topic.acls.enabled", "offset-syncs.topic.location", "errors.tolerance",
    ]  # fmt: skip
    special = {"security.protocol": "SSL"}
    files: list[bytes] = []
    for _ in range(count):
        aliases = ["a", "b", "c.d"][: chance.randint(1, 3)]
        prefixes = ["", "", *(f"{a}." for a in aliases)]
        prefixes += [f"{s}->{t}." for s in aliases for t in aliases]
        lines = [f"clusters = {', '.join(aliases)}"]
        lines += [f"{alias}.bootstrap.servers = {alias}:1" for alias in aliases]
        for _ in range(chance.randint(0, 25)):
            key = chance.choice(keys)
            value = "true" if chance.random() < 0.5 else "false"
            if not key.endswith("enabled"):
                value = special.get(key, chance.choice(["1", "x", "a, b", ""]))
            lines.append(f"{chance.choice(prefixes)}{key} = {value}")
        files.append("\n".join(lines).encode())
    return files


FILES = [
    *(path.read_bytes() for path in sorted((ROOT / "data" / "config").glob("seed_mm2_*"))),
    (ROOT.parent / "examples" / "connect-mirror-maker.properties").read_bytes(),
    *generated_files(150),
]


@dataclass(frozen=True)
class Truth:
    """What Java said of the connectors and of each of ``FILES``."""

    definitions: dict[str, dict[str, str]]
    files: list[Configs | str]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    into = tmp_path_factory.mktemp("classes")
    compile_java([ROOT / "java" / "MirrorConfigTruth.java"], into)
    lines = "\n".join(data.hex() for data in FILES)
    done = run_java(
        "org.apache.kafka.connect.mirror.MirrorConfigTruth",
        classpath=[into],
        stdin=lines + "\n",
        timeout_s=120,
    )
    answers = [json.loads(line) for line in done.check().splitlines() if line[:1] in '{"']
    return Truth(answers[0], answers[1:])


def test_every_option_of_kafkas_connectors_is_declared_with_its_type_and_default(
    truth: Truth,
) -> None:
    for definition in CONNECTORS:
        if definition.name == "MirrorSinkConnector":
            continue  # KIP-382 describes it, Kafka never had it
        ours = options_of(definition.model)
        java = truth.definitions[definition.name]
        missing = set(java) - set(ours) - option_names(CONNECTORS) - {"config.providers"}
        assert not missing, sorted(missing)
        for name, info in ours.items():
            if name in java and name not in ("name", "connector.class"):
                assert java[name] == described(info), name


def described(option: Option) -> str:
    kind = {"patterns": "list"}.get(option.type.value, option.type.value).upper()
    default = option.default if option.java_default is None else option.java_default
    return f"{kind} {'<required>' if option.required else default or ''}"


def without_ours(config: dict[str, str]) -> dict[str, str]:
    ours = {key: default for key, (default, _) in DEDICATED_DEFAULTS.items()}
    return {key: value for key, value in config.items() if ours.get(key) != value}


def test_workers_and_connectors_are_configured_as_kafka_does(truth: Truth) -> None:
    assert len(truth.files) == len(FILES)
    compared = 0
    for data, java in zip(FILES, truth.files, strict=True):
        config = MirrorMakerConfig(parse(data), CONNECTORS, environ={})
        try:
            flows = config.flows()
        except ConfigError:
            flows = ()
        if isinstance(java, str):
            assert not flows or config.findings, (data, java)
            continue
        assert {str(flow) for flow in flows} == set(java), data
        for flow in flows:
            derived = java[str(flow)]
            assert without_ours(config.worker_config(flow)) == without_ours(derived["worker"])
            for name, ours in config.connector_configs(flow).items():
                assert ours == as_we_read_it(derived[name], ours), (flow, name)
                compared += 1
    assert compared > 300


def as_we_read_it(java: dict[str, str], ours: dict[str, str]) -> dict[str, str]:
    """Java's config, switches trimmed and old names replaced by the new ones that we have."""
    kept = {
        key: value.strip() if key.endswith("enabled") else value
        for key, value in java.items()
        if modern_name(key, value, option_names(CONNECTORS)) is None
    }
    added = {key: ours[key] for key in set(ours) - set(kept)}
    assert set(added) <= {"topics.exclude", "sync.group.offsets.interval.seconds"}
    return kept | added
