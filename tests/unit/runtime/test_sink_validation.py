"""What validation says of sink connectors: topics, groups, transforms, in Connect's words."""

import asyncio
from collections.abc import Mapping
from importlib.metadata import EntryPoint

import pytest

from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from mm2py.config.override_policy import override_policy
from mm2py.observability.logging import SecretMask
from mm2py.runtime.plugins.catalog import InstalledPlugins
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator

ENTRIES = [
    EntryPoint("MirrorSinkConnector", "mm2py_connectors.mirror_sink:MirrorSinkConnector", "x"),
    EntryPoint("FileSinkConnector", "tests.unit.runtime.test_sink_validation:FileSink", "x"),
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


def infos(config: Mapping[str, str | None]) -> ConfigInfos:
    validator = ConfigValidator(
        Plugins(ENTRIES),
        resolve=lambda raw: {key: text for key, text in raw.items() if text is not None},
        policy=override_policy("All"),
        mask=SecretMask(),
        worker=lambda _: WORKER,
    )
    return asyncio.run(validator.validate(config))


def entry(found: ConfigInfos, name: str) -> tuple[ConfigKey | None, ConfigValue | None]:
    return next(
        (key, value) for key, value in found.configs if value is not None and value.name == name
    )


def errors(found: ConfigInfos) -> dict[str, list[str]]:
    return {it.name: list(it.errors) for _, it in found.configs if it is not None and it.errors}


def test_a_sink_needs_topics_or_a_pattern_and_not_both() -> None:
    assert infos(FILES).error_count == 0
    both = "topics and topics.regex are mutually exclusive options, but both are set."
    for config, text in (
        (FILES | {"topics.regex": "t.*"}, both),
        ({**FILES, "topics": ""}, "Must configure one of topics or topics.regex"),
    ):
        found = errors(infos(config))
        assert found.keys() == {"topics", "topics.regex"}
        assert all(text in it[0] for it in found.values())


def test_the_dead_letter_queue_is_no_topic_of_the_connector() -> None:
    dead = {"errors.deadletterqueue.topic.name": "t"}
    (text,) = errors(infos(FILES | dead))["topics"]
    assert (
        "The DLQ topic 't' may not be included in the list of topics ('topics=[t]') consumed by the connector"
        in text
    )
    pattern = {"name": "n", "connector.class": "FileSinkConnector", "topics.regex": "t|u"}
    (text,) = errors(infos(pattern | dead))["topics.regex"]
    assert (
        "The DLQ topic 't' may not be matched by the regex for the topics ('topics.regex=t|u') consumed by"
        in text
    )


def test_a_group_of_the_workers_is_refused_at_the_key_that_names_it() -> None:
    clash = errors(infos(FILES | {"consumer.override.group.id": "workers"}))
    assert clash == {
        "consumer.override.group.id": [
            "Consumer group workers conflicts with Connect worker group workers"
        ]
    }


def test_mirror_sinks_topics_are_patterns_and_may_be_left_out() -> None:
    assert infos(MIRROR).error_count == 0
    key, value = entry(infos(MIRROR | {"topics": "a.*,b"}), "topics")
    assert key is not None
    assert value is not None
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


@pytest.mark.parametrize(
    ("more", "key", "text"),
    [
        ({"transforms": "r"}, "transforms.r.type", "Missing required configuration"),
        (
            {"transforms": "r", "transforms.r.type": "no.Such"},
            "transforms.r.type",
            "Invalid value no.Such for configuration transforms.r.type: Class no.Such could not be found.",
        ),
        (
            {
                "transforms": "r",
                "transforms.r.type": "RegexRouter",
                "transforms.r.replacement": "x",
            },
            "transforms.r.regex",
            'Missing required configuration "transforms.r.regex" which has no default value.',
        ),
        (
            {
                "predicates": "p",
                "predicates.p.type": "TopicNameMatches",
                "predicates.p.pattern": "(",
            },
            "predicates.p.pattern",
            "Invalid value ( for configuration pattern: Invalid regex: ",
        ),
        (
            {"transforms": "f", "transforms.f.type": "Filter", "transforms.f.predicate": "p"},
            "transforms.f.predicate",
            "not among the predicates []",
        ),
        ({"transforms": "a,a"}, "transforms", "Duplicate alias provided."),
    ],
)
def test_what_is_wrong_with_a_transform_is_said_at_its_key(
    more: Mapping[str, str], key: str, text: str
) -> None:
    found = infos({**FILES, **more})
    assert text in errors(found)[key][0]


def test_the_keys_of_a_transform_are_found_by_both_of_its_names() -> None:
    catalog = InstalledPlugins(Plugins(ENTRIES))
    long = catalog.definitions("org.apache.kafka.connect.transforms.RegexRouter")
    assert [it.name for it in long] == ["regex", "replacement"]
    assert all(it.required for it in long)
    assert catalog.definitions("RegexRouter") == long
    assert catalog.definitions("Filter") == []
    assert [it.name for it in catalog.definitions("HasHeaderKey")] == ["name"]


def test_overrides_of_the_clients_that_a_sink_uses_are_checked() -> None:
    own = {"consumer.override.max.poll.records": "x", "producer.override.linger.ms": "x"}
    assert set(errors(infos(FILES | own))) == {"consumer.override.max.poll.records"}
    dead = FILES | own | {"errors.deadletterqueue.topic.name": "d"}
    assert set(errors(infos(dead))) == set(own)
