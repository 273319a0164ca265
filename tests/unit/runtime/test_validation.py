"""Validation of connector configs in Connect's order and words."""

import asyncio
import json
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypedDict, cast

import pytest

from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from mm2py.config.override_policy import ALL_OVERRIDES, OverridePolicy, override_policy
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.runtime.plugins.catalog import InstalledPlugins, PluginInfo
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator

SOURCE = "org.apache.kafka.connect.mirror.MirrorSourceConnector"
HEARTBEAT = "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector"
GOOD: Mapping[str, str | None] = {
    "name": "n",
    "connector.class": SOURCE,
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:1",
    "target.cluster.bootstrap.servers": "b:1",
}
PLUGINS = Plugins(
    EntryPoint(name, f"mm2py_connectors.{module}:{name}", "mm2py.connectors")
    for name, module in (
        ("MirrorSourceConnector", "mirror_source"),
        ("MirrorHeartbeatConnector", "mirror_heartbeat"),
    )
)


def _given(config: Mapping[str, str | None]) -> dict[str, str]:
    return {k: v.replace("${x:y}", "canary") for k, v in config.items() if v is not None}


def _validator(
    policy: OverridePolicy = ALL_OVERRIDES,
    *secrets: str,
    worker: Mapping[str, str] | None = None,
    plugins: Plugins = PLUGINS,
) -> ConfigValidator:
    mask = SecretMask(secrets)
    return ConfigValidator(
        plugins, resolve=_given, policy=policy, mask=mask, worker=lambda _: worker
    )


def _infos(
    changes: Mapping[str, str | None],
    *,
    policy: OverridePolicy = ALL_OVERRIDES,
    secrets: tuple[str, ...] = (),
) -> ConfigInfos:
    validator = _validator(policy, *secrets)
    return asyncio.run(validator.validate({**GOOD, **changes}))


def errors(found: ConfigInfos) -> dict[str, list[str]]:
    return {it.name: list(it.errors) for _, it in found.configs if it is not None and it.errors}


def _entry(infos: ConfigInfos, name: str) -> tuple[ConfigKey | None, ConfigValue]:
    return next((key, it) for key, it in infos.configs if it is not None and it.name == name)


def test_what_only_building_the_connector_finds_is_an_error_too() -> None:
    infos = _infos({"connector.class": HEARTBEAT, "replication.policy.class": "no.Such"})
    assert infos.error_count == 1
    assert "no.Such" in str(errors(infos))


def test_an_unknown_class_is_refused_with_what_there_is() -> None:
    with pytest.raises(BadRequestError) as caught:
        _infos({"connector.class": "com.other.MirrorSourceConnector"})
    assert caught.value.message == (
        "Failed to find any class that implements Connector and which name matches"
        f" com.other.MirrorSourceConnector, available connectors are: {HEARTBEAT}, {SOURCE}"
    )


def test_placeholders_are_resolved_and_secrets_hidden_everywhere() -> None:
    infos = _infos({"tasks.max": "${x:y}", "sasl.jaas.config": "${x:y}"}, secrets=("canary",))
    assert infos.error_count == 2
    assert "canary" not in repr(infos)
    assert _entry(infos, "sasl.jaas.config")[1].value == "[hidden]"


@pytest.mark.parametrize(
    ("policy", "allowed"),
    [
        (override_policy("All"), {"linger.ms", "sasl.mechanism"}),
        (override_policy("None"), set[str]()),
        (override_policy("Principal"), {"sasl.mechanism"}),
        (override_policy("Allowlist"), set[str]()),
        (override_policy("Allowlist", ("linger.ms",)), {"linger.ms"}),
        (override_policy("org.x.PrincipalConnectorClientConfigOverridePolicy"), {"sasl.mechanism"}),
    ],
)
def test_a_policy_allows_what_it_names(policy: OverridePolicy, allowed: set[str]) -> None:
    assert {key for key in ("linger.ms", "sasl.mechanism") if not policy.refusal(key)} == allowed
    with pytest.raises(ConfigError, match="no such policy"):
        override_policy("Most")


def test_plugins_are_listed_with_their_roles_and_versions() -> None:
    catalog = InstalledPlugins(PLUGINS)
    connectors = [PluginInfo(HEARTBEAT, "source", "4.3.1"), PluginInfo(SOURCE, "source", "4.3.1")]
    assert list(catalog.plugins(connectors_only=True)) == connectors
    others = list(catalog.plugins(connectors_only=False))[2:]
    assert [it.type for it in others] == [
        *["transformation"] * 5, *["predicate"] * 3, *["converter"] * 9, *["header_converter"] * 10,
    ]  # fmt: skip
    assert others[3] == PluginInfo(
        "org.apache.kafka.connect.transforms.RegexRouter", "transformation", "4.3.1"
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [(SOURCE, "source"), ("MirrorHeartbeat", "source"), ("x.Y", "unknown"), (None, "unknown")],
)
def test_the_type_of_a_connector_is_unknown_where_its_class_is(text: str | None, kind: str) -> None:
    catalog = InstalledPlugins(PLUGINS)
    assert catalog.connector_type({"connector.class": text}) == kind
    assert catalog.connector_type({}) == "unknown"


def test_definitions_are_found_by_every_name_of_a_plugin() -> None:
    catalog = InstalledPlugins(PLUGINS)
    keys = catalog.definitions(SOURCE)
    assert (
        keys == catalog.definitions("MirrorSource") == catalog.definitions("MirrorSourceConnector")
    )
    assert len(keys) == len({key.name for key in keys})
    assert keys[0].name == "name"
    assert [key.name for key in catalog.definitions("ByteArrayConverter")] == ["converter.type"]
    long = catalog.definitions("org.apache.kafka.connect.transforms.RegexRouter")
    assert [(it.name, it.required) for it in long] == [("regex", True), ("replacement", True)]
    assert catalog.definitions("RegexRouter") == long
    assert catalog.definitions("Filter") == []
    assert [it.name for it in catalog.definitions("HasHeaderKey")] == ["name"]


def test_unknown_plugins_and_other_kinds_are_told_apart() -> None:
    catalog = InstalledPlugins(PLUGINS)
    with pytest.raises(NotFoundError) as unknown:
        catalog.definitions("no.Such")
    assert unknown.value.message == "Unknown plugin no.Such."
    with pytest.raises(BadRequestError, match=r"^Invalid plugin class FileConfigProvider\. Valid"):
        catalog.definitions("FileConfigProvider")


@pytest.mark.parametrize("secret", ["canary-env-4711", "4q", "x"])
def test_what_a_config_provider_puts_in_is_never_quoted(secret: str) -> None:
    def resolve(config: Mapping[str, str | None]) -> dict[str, str]:
        return {k: v.replace("${env:S}", secret) for k, v in config.items() if v is not None}

    validator = ConfigValidator(PLUGINS, resolve=resolve, policy=ALL_OVERRIDES, mask=SecretMask())
    for key in ("offset.lag.max", "topics", "offset-syncs.topic.location", "producer.override.linger.ms"):  # fmt: skip
        infos = asyncio.run(validator.validate({**GOOD, key: "${env:S}"}))
        _, value = _entry(infos, key)
        assert value.value in (None, "[hidden]")
        assert f" {secret} " not in str(errors(infos))


def test_secrets_of_a_validated_config_are_hidden_in_its_answer_alone() -> None:
    mask = SecretMask()
    validator = ConfigValidator(PLUGINS, resolve=_given, policy=ALL_OVERRIDES, mask=mask)
    for number in range(3):
        config = {**GOOD, "x.password": f"canary-{number}", "topics.exclude": f"canary-{number}"}
        infos = asyncio.run(validator.validate(config))
        assert _entry(infos, "topics.exclude")[1].value == "[hidden]"
        assert mask.apply(f"canary-{number}") == f"canary-{number}"


def test_a_config_that_fits_no_record_is_refused_with_size_and_limit() -> None:
    with pytest.raises(BadRequestError, match=r"would have \d+ bytes, at most 900000 fit a record"):
        _infos({"a.note": "x" * 500_000, "b.note": "y" * 500_000})


@pytest.mark.parametrize("topics", ["," * 500_000, "a," * 250_000, "${" + ":" * 500_000])
def test_a_list_of_patterns_that_is_too_long_is_refused_before_any_is_compiled(topics: str) -> None:
    infos = _infos({"topics": topics})
    error = errors(infos)["topics"][-1]
    assert "characters together, at most 65536 are allowed" in error
    assert len(error) < 300


# ---- keys that Connect knows and this product refuses


OVERRIDE = "producer.override."
SYNCS = {"emit.offset-syncs.enabled": "false", "offset-syncs.topic.location": "target"}


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        ({OVERRIDE + "acks": "bogus"}, OVERRIDE + "acks", "bogus"),
        ({OVERRIDE + "compression.type": "nope"}, OVERRIDE + "compression.type", "nope"),
        ({OVERRIDE + "buffer.memory": "-5"}, OVERRIDE + "buffer.memory", "-5"),
        ({OVERRIDE + "linger.ms": "x"}, OVERRIDE + "linger.ms", "x"),
        ({"transaction.boundary": "connector"}, "transaction.boundary", "connector-defined"),
        ({"errors.tolerance": "all"}, "errors.tolerance", "drops no record here"),
        (SYNCS, "emit.offset-syncs.enabled", "Invalid value false for configuration emit.off"),
    ],
)
def test_what_a_client_or_a_mirror_would_refuse_is_an_error_at_its_key(
    changes: dict[str, str], key: str, text: str
) -> None:
    found = errors(_infos(changes))
    assert list(found) == [key]
    assert text in found[key][0]


def test_overrides_have_the_defaults_and_importance_of_javas_producer() -> None:
    names = {"acks": "all", "compression.type": "zstd", "metric.reporters": "x"}
    infos = _infos({f"producer.override.{name}": text for name, text in names.items()})
    found = {name: _entry(infos, f"producer.override.{name}")[0] for name in names}
    assert {name: (key.default_value, key.importance) for name, key in found.items() if key} == {
        "acks": ("all", "LOW"),
        "compression.type": ("none", "HIGH"),
        "metric.reporters": ("org.apache.kafka.common.metrics.JmxReporter", "LOW"),
    }
    assert infos.error_count == 0


def test_what_the_workers_exactly_once_support_does_not_allow_is_an_error_at_its_key() -> None:
    validator = _validator(worker=WORKER | {"exactly.once.source.support": "enabled"})
    infos = asyncio.run(validator.validate({**GOOD, "offsets.identical": "require"}))
    _, value = _entry(infos, "offsets.identical")
    assert infos.error_count == 1
    assert "is not possible: with exactly-once support" in value.errors[0]


# ---- the answers of a Java worker


POLICIES = {"All": override_policy("All"), "Pri": override_policy("Principal")}
STRICTER = "source.cluster.alias"
"""Null is no error in Java, and the connector then fails."""
FEWER_KEYS = "connector.plugin.version"


class Answer(TypedDict):
    """What Java said; the first case lists all keys, others only those that are special."""

    name: str
    error_count: int
    groups: list[str]
    configs: list[tuple[str, bool, str | None, list[str], bool, str | None]]


class Case(TypedDict):
    """Changes to ``GOOD`` and Java's answer."""

    policy: str
    changes: dict[str, str | None]
    answer: Answer


CASES = cast(
    "list[Case]",
    json.loads(
        (Path(__file__).parents[2] / "data" / "config" / "validation_cases.json").read_text()
    ),
)


def _answers(case: Case) -> ConfigInfos:
    return _infos(case["changes"], policy=POLICIES[case["policy"]])


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: ",".join(case["changes"]))
def test_configs_are_judged_as_kafkas_herder_does(case: Case) -> None:
    infos, java = _answers(case), case["answer"]
    found = {
        value.name: (
            key is None,
            value.value,
            list(value.errors),
            value.visible,
            key and key.display_name,
        )
        for key, value in infos.configs
        if value is not None
    }
    stricter = int(STRICTER in case["changes"])
    assert (infos.name, infos.error_count) == (java["name"], java["error_count"] + stricter)
    # Java shows only the keys of every connector where no such version is there; ours shows all.
    shown = len(java["groups"]) if FEWER_KEYS in case["changes"] else None
    assert list(infos.groups)[:shown] == java["groups"]
    for name, *expected in java["configs"]:
        assert list(found[name]) == expected, name
    wrong = {name for name, (_, _, errors, _, _) in found.items() if errors}
    assert wrong - {STRICTER} == {row[0] for row in java["configs"] if row[3]}


def test_keys_are_listed_in_connects_order_and_ours_behind() -> None:
    names = [key.name for key, _ in _answers(CASES[0]).configs if key is not None]
    java = [row[0] for row in CASES[0]["answer"]["configs"]]
    assert len(java) == 118
    assert names[: len(java)] == java


# ---- sinks


ENTRIES = [
    EntryPoint("MirrorSinkConnector", "mm2py_connectors.mirror_sink:MirrorSinkConnector", "x"),
    EntryPoint("FileSinkConnector", "tests.unit.runtime.test_validation:FileSink", "x"),
]
FILES = {"name": "files", "connector.class": "FileSinkConnector", "topics": "t"}
WORKER = {
    "bootstrap.servers": "w:1",
    "group.id": "workers",
    "config.storage.topic": "c",
    "offset.storage.topic": "o",
    "status.storage.topic": "s",
}
MIRROR = {
    "name": "m",
    "connector.class": "MirrorSinkConnector",
    "source.cluster.alias": "A",
    "source.cluster.bootstrap.servers": "a:1",
    "target.cluster.bootstrap.servers": "b:1",
}


class FileSink:
    """A third party's sink without a model of its keys."""

    java_class = "com.example.FileSinkConnector"
    plugin_type = "sink"

    def __init__(self, config: Mapping[str, str]) -> None:
        self.config = config


def infos(config: Mapping[str, str | None], worker: Mapping[str, str] = WORKER) -> ConfigInfos:
    return asyncio.run(_validator(worker=worker, plugins=Plugins(ENTRIES)).validate(config))


BOTH = "topics and topics.regex are mutually exclusive options, but both are set."
NONE = "Must configure one of topics or topics.regex"
DEAD = {"errors.deadletterqueue.topic.name": "t"}
OWN = {"consumer.override.max.poll.records": "x", "producer.override.linger.ms": "x"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"topics.regex": "t.*"}, {"topics": BOTH, "topics.regex": BOTH}),
        ({"topics": ""}, {"topics": NONE, "topics.regex": NONE}),
        (
            DEAD,
            {"topics": "The DLQ topic 't' may not be included in the list of topics ('topics=[t]') consumed by the connector"},
        ),
        (
            DEAD | {"topics": None, "topics.regex": "t|u"},
            {"topics.regex": "The DLQ topic 't' may not be matched by the regex for the topics ('topics.regex=t|u') consumed by"},
        ),
        (
            {"consumer.override.group.id": "workers"},
            {"consumer.override.group.id": "Consumer group workers conflicts with Connect worker group workers"},
        ),
        # Of the clients that it uses.
        (OWN, {"consumer.override.max.poll.records": ""}),
        (OWN | DEAD | {"topics": "u"}, dict.fromkeys(OWN, "")),
    ],
)  # fmt: skip
def test_what_a_sink_is_refused_is_an_error_at_its_key(
    config: Mapping[str, str | None], expected: Mapping[str, str]
) -> None:
    given = {key: text for key, text in {**FILES, **config}.items() if text is not None}
    found = errors(infos(given))
    assert found.keys() == expected.keys()
    assert all(text in found[key][0] for key, text in expected.items())


def test_mirror_sinks_topics_are_patterns_and_may_be_left_out() -> None:
    assert infos(MIRROR).error_count == 0
    key, value = _entry(infos(MIRROR | {"topics": "a.*,b"}), "topics")
    assert key is not None
    assert value.errors == ()
    assert "patterns" in key.documentation


def test_each_transform_has_its_keys_in_a_group_of_its_own() -> None:
    config = FILES | {
        "transforms": "r",
        "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.r.regex": "t",
        "transforms.r.replacement": "u",
        "transforms.r.predicate": "p",
        "predicates": "p",
        "predicates.p.type": "TopicNameMatches",
        "predicates.p.pattern": "t",
    }
    found = infos(config)
    assert found.error_count == 0
    assert found.groups[-2:] == ("Transforms: r", "Predicates: p")
    keys = [
        (key.name, key.type, key.order_in_group, key.importance, key.width, key.display_name)
        for key, _ in found.configs
        if key is not None and key.group == "Transforms: r"
    ]
    assert keys == [
        ("transforms.r.type", "CLASS", 0, "HIGH", "LONG", "Transformation type for r"),
        (
            "transforms.r.plugin.version",
            "STRING",
            1,
            "HIGH",
            "LONG",
            "Transformation version for r",
        ),
        ("transforms.r.regex", "STRING", 2, "HIGH", "NONE", "regex"),
        ("transforms.r.replacement", "STRING", 3, "HIGH", "NONE", "replacement"),
        ("transforms.r.negate", "BOOLEAN", -1, "MEDIUM", "NONE", "negate"),
        ("transforms.r.predicate", "STRING", -1, "MEDIUM", "NONE", "predicate"),
    ]
