"""Keys as Connect describes them beside Kafka's recorded answers, exactly-once rules, and docs/reference/config.md."""

import json
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.connect_definitions import (
    COMMON_KEYS,
    HIDDEN,
    check_value,
    connector_keys,
    described,
    own_keys,
)
from mm2py.config.definitions import Option, options_of, parse_config
from mm2py.config.exactly_once import POLL_MS, contradictions, raise_first, transaction_interval_ms
from mm2py.config.framework import CONVERTER_CONFIGS, SourceFrameworkConfig
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py_cli.config_commands import reference_text
from mm2py_connectors.config import CONNECTORS

TRUTH = json.loads(
    (Path(__file__).parents[2] / "data" / "config" / "connect_definitions.json").read_text()
)
MODELS = {it.name: it.model for it in CONNECTORS if it.copies != "sink"}
"""The connectors that Java has, too."""

NOT_JAVAS: Final = {
    "MirrorSourceConnector": {"use.defaults.from"},
    "MirrorCheckpointConnector": {"topics", "topics.exclude"},
    "MirrorHeartbeatConnector": set[str](),
}
"""Keys that ours read and Java's connector does not define, besides those marked as ours."""

OTHER_DEFAULTS: Final = {
    "config.properties.exclude",
    "refresh.topics.interval.seconds",
    "refresh.groups.interval.seconds",
    "emit.checkpoints.interval.seconds",
    "sync.group.offsets.interval.seconds",
    "metric.reporters",
}
STRICTER: Final = {
    ("replication.factor", "40000"),
    ("replication.factor", "0"),
    ("offset-syncs.topic.replication.factor", "0"),
    ("topics", "["),
    ("offset.lag.max", "-1"),
    ("sync.topic.configs.interval.seconds", "0"),
    ("refresh.topics.interval.seconds", "-5"),
    ("consumer.poll.timeout.ms", "-1"),
    ("admin.timeout.ms", "0"),
}
"""Values that Java takes and then cannot run with, or runs in another way than it says."""
CLASSES: Final = {"replication.policy.class", "topic.filter.class", "forwarding.admin.class"}
"""Plug-ins of ours need no dotted package, so an unknown name is found out when it is built."""


LATER: Final = "are applied by sink connectors"


class JavaKey(NamedTuple):
    """One row of the truth."""

    name: str
    type: str
    required: bool
    default: str | None
    importance: str
    group: str | None
    order: int
    width: str
    display_name: str
    dependents: list[str]


def java_keys(which: str) -> list[JavaKey]:
    return [JavaKey(*row) for row in TRUTH[which]]


def as_java(option: Option) -> JavaKey:
    key = described(option)
    what = key.name, key.type, key.required, key.default_value, key.importance
    shown = key.group, key.order_in_group, key.width, key.display_name, list(key.dependents)
    return JavaKey(*what, *shown)


def listed(name: str) -> list[Option]:
    own = own_keys(MODELS[name])
    names = {it.name for it in own}
    return [
        *COMMON_KEYS,
        *own,
        *(it for it in connector_keys("source")[len(COMMON_KEYS) :] if it.name not in names),
    ]


def ours(name: str) -> set[str]:
    return {key for key, info in options_of(MODELS[name]).items() if info.ours} | NOT_JAVAS[name]


def test_connects_own_keys_are_described_as_in_java() -> None:
    assert [as_java(it) for it in connector_keys("source")] == java_keys("source framework")
    assert len(connector_keys("source")) == 24
    assert [as_java(it) for it in connector_keys("sink")] == java_keys("sink framework")


@pytest.mark.parametrize(
    ("name", "count"), [(n, c) for n, c in zip(MODELS, (118, 102, 113), strict=True)]
)
def test_a_mirror_connector_has_javas_keys_and_ours(name: str, count: int) -> None:
    java = {key.name: key for key in java_keys(name)}
    java |= {key.name: key for key in java_keys("source framework")}
    found = {it.name: as_java(it) for it in listed(name)}
    assert len(java) == count
    assert set(found) - set(java) == ours(name)
    for key, expected in java.items():
        if key in OTHER_DEFAULTS:
            assert found[key] == expected._replace(default=found[key].default)
        else:
            assert found[key] == expected


@pytest.mark.parametrize("name", ["MirrorSourceConnector", "MirrorHeartbeatConnector"])
def test_keys_stand_in_javas_order_and_ours_behind_the_connectors(name: str) -> None:
    java = [key.name for key in java_keys(name)]
    found = [it.name for it in listed(name)]
    assert [key for key in found if key in set(java)] == java
    first_of_ours = min((found.index(key) for key in ours(name)), default=len(java))
    assert first_of_ours >= len(java)


@pytest.mark.parametrize("name", list(CONVERTER_CONFIGS))
def test_a_converters_keys_are_javas(name: str) -> None:
    found = [as_java(it) for it in options_of(CONVERTER_CONFIGS[name]).values()]
    assert found == java_keys(name.rpartition(".")[2])


@pytest.mark.parametrize(("connector", "name", "text", "shown", "errors"), TRUTH["wrong"])
def test_a_value_is_judged_and_shown_in_javas_words(
    connector: str, name: str, text: str | None, shown: str | None, errors: list[str]
) -> None:
    definition = next(it for it in listed(connector) if it.name == name)
    value = check_value(definition, {name: text})
    if name in CLASSES and errors:
        assert value.errors == ()
    elif (name, text) in STRICTER:
        assert errors == []
        assert value.errors
    else:
        # Transforms are refused for being there at all, besides.
        found = [f"{name}: {error}" for error in value.errors if LATER not in error]
        assert found == errors
        assert value.value == shown


def test_an_absent_value_is_shown_as_its_default_and_a_required_one_is_missing() -> None:
    by_name = {it.name: it for it in COMMON_KEYS}
    assert check_value(by_name["tasks.max"], {}).value == "1"
    missing = check_value(by_name["name"], {})
    assert missing.errors == ('Missing required configuration "name" which has no default value.',)


def test_a_secret_appears_neither_as_a_value_nor_in_an_error() -> None:
    by_name = {it.name: it for it in listed("MirrorSourceConnector")}
    for name in ("ssl.key.password", "sasl.jaas.config", "ssl.keystore.certificate.chain"):
        value = check_value(by_name[name], {name: "canary"})
        assert value.value == HIDDEN
        assert value.errors == ()


@pytest.mark.parametrize("name", ["transforms", "predicates"])
@pytest.mark.parametrize("kind", ["source", "sink"])
def test_transforms_are_taken_of_every_kind_of_connector(name: str, kind: str) -> None:
    definition = next(it for it in connector_keys(kind) if it.name == name)
    assert check_value(definition, {name: "a"}).errors == ()
    (error,) = check_value(definition, {name: "a,a"}).errors
    assert "Duplicate alias provided." in error


@pytest.mark.parametrize(
    "text", ["ByteArrayConverter", "org.apache.kafka.connect.storage.StringConverter"]
)
def test_converters_that_pass_bytes_on_are_taken(text: str) -> None:
    definition = next(it for it in COMMON_KEYS if it.name == "key.converter")
    assert check_value(definition, {"key.converter": text}).errors == ()


# ---- exactly once

ENABLED = {
    "bootstrap.servers": "b:1",
    "group.id": "A-mm2",
    "config.storage.topic": "c",
    "offset.storage.topic": "o",
    "status.storage.topic": "s",
    "exactly.once.source.support": "enabled",
}
PREPARING = ENABLED | {"exactly.once.source.support": "preparing"}
BOUNDARY = "transaction.boundary"
WORKER = parse_config(WorkerConfig, ENABLED | {"offset.flush.interval.ms": "750"})


@pytest.mark.parametrize(
    ("config", "interval_ms"),
    [
        ({}, POLL_MS),
        ({"transaction.boundary": "POLL"}, POLL_MS),
        ({"transaction.boundary": "interval"}, 750),
        ({"transaction.boundary": "interval", "transaction.boundary.interval.ms": "40"}, 40),
    ],
)
def test_a_boundary_limits_how_long_it_is_open(config: dict[str, str], interval_ms: int) -> None:
    assert (
        transaction_interval_ms(parse_config(SourceFrameworkConfig, config), WORKER) == interval_ms
    )


@pytest.mark.parametrize(
    ("connector", "worker", "name"),
    [
        ({"offsets.identical": "REQUIRE"}, ENABLED, "offsets.identical"),
        ({"transaction.boundary": "connector"}, ENABLED, "transaction.boundary"),
        (
            {BOUNDARY: "interval", f"{BOUNDARY}.interval.ms": "60000"},
            ENABLED,
            f"{BOUNDARY}.interval.ms",
        ),
        ({"producer.override.transaction.timeout.ms": "100"}, ENABLED, f"{BOUNDARY}.interval.ms"),
        ({"exactly.once.support": "required"}, PREPARING, "exactly.once.support"),
    ],
)
def test_settings_that_exactly_once_does_not_allow_together_are_refused(
    connector: dict[str, str], worker: dict[str, str], name: str
) -> None:
    (problem,) = contradictions(connector, worker)
    assert (problem.name, bool(problem.remedy)) == (name, True)
    with pytest.raises(ConfigError, match=f"{name}=.* is not possible"):
        raise_first([problem])


@pytest.mark.parametrize(
    ("connector", "worker"),
    [
        ({"offsets.identical": "prefer", "exactly.once.support": "required"}, ENABLED),
        ({"transaction.boundary": "interval"}, ENABLED),
        ({"offsets.identical": "require", BOUNDARY: "connector"}, PREPARING),
    ],
)
def test_what_works_together_is_taken(connector: dict[str, str], worker: dict[str, str]) -> None:
    assert contradictions(connector, worker) == []


SINK = {"connector.class": "MirrorSinkConnector"}


@pytest.mark.parametrize(
    ("connector", "worker", "name"),
    [
        (SINK | {"copy.connector": "sink"}, ENABLED, "copy.connector"),
        (SINK | {"exactly.once.support": "required"}, ENABLED, "exactly.once.support"),
        (
            SINK | {"exactly.once.support": "REQUIRED"},
            ENABLED | {"exactly.once.source.support": "disabled"},
            "exactly.once.support",
        ),
        # On a Connect worker it is for source connectors.
        (SINK | {"exactly.once.support": "requested"}, ENABLED, ""),
        (SINK | {"copy.connector": "sink"}, PREPARING, ""),
    ],
)
def test_a_flow_that_is_copied_by_a_group_is_at_least_once(
    connector: dict[str, str], worker: dict[str, str], name: str
) -> None:
    found = contradictions(connector, worker)
    assert [it.name for it in found] == ([name] if name else [])
    assert all(
        "at least once" in it.message and "copy.connector=source" in it.remedy for it in found
    )


# ---- config reference

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "config.md"


def test_the_committed_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_text(), (
        "python -m mm2py_cli.config_commands > docs/reference/config.md"
    )


def test_the_page_names_every_property() -> None:
    page = reference_text()
    names = [*CLIENT_OPTIONS, *options_of(WorkerConfig)]
    for definition in CONNECTORS:
        names += options_of(definition.model)
    assert not [name for name in names if f"`{name}`" not in page]
