"""Config models: names, Java's types, ranges, and one clear line for each refusal."""

from typing import Annotated

import pytest
from pydantic import ValidationError

from mm2py.config.definitions import (
    ConfigModel,
    Option,
    check_config,
    options_of,
    parse_config,
    property_name,
)
from mm2py.config.java_values import JavaType, parse_boolean_leniently, parse_list, parse_value
from mm2py.config.worker import DEDICATED_DEFAULTS, WorkerConfig
from mm2py.errors import ConfigError


class Sample(ConfigModel):
    """Options of every type."""

    offset_syncs_topic_location: Annotated[
        str, Option(JavaType.STRING, "Where.", choices=("source", "target"))
    ] = "source"
    count_max: Annotated[int, Option(JavaType.SHORT, "How many.", low=1, unit="s")] = 1
    switch: Annotated[bool, Option(JavaType.BOOLEAN, "Whether.")] = False
    items: Annotated[tuple[str, ...], Option(JavaType.LIST, "Which.")] = ("x",)
    password: Annotated[str, Option(JavaType.PASSWORD, "Secret.", choices=("a",))] = "a"  # noqa: S105 -- no secret
    needed: Annotated[str, Option(JavaType.CLASS, "What.")]


def test_a_field_is_named_by_its_java_property() -> None:
    assert property_name("emit_offset_syncs_enabled") == "emit.offset-syncs.enabled"
    assert list(options_of(Sample))[:2] == ["offset-syncs.topic.location", "count.max"]
    assert options_of(Sample)["items"].default == "x"
    assert options_of(Sample)["needed"].required


def test_texts_become_values_and_unknown_keys_are_left_alone() -> None:
    config = parse_config(
        Sample,
        {"needed": " a.B ", "count.max": " +7 ", "switch": " TRUE", "items": "a , b,", "x": "y"},
    )
    assert (config.needed, config.count_max, config.switch) == ("a.B", 7, True)
    assert config.items == ("a", "b", "")
    assert config.offset_syncs_topic_location == "source"


def test_a_config_is_frozen() -> None:
    config = parse_config(Sample, {"needed": "x"})
    with pytest.raises(ValidationError):
        config.count_max = 2


@pytest.mark.parametrize(
    ("props", "said"),
    [
        ({}, "mm2:7: needed: is missing; set needed"),
        ({"needed": "x", "count.max": "40000"}, "mm2:7: count.max=40000: must be a whole number"),
        ({"needed": "x", "count.max": "0"}, "mm2:7: count.max=0: must be at least 1 s"),
        ({"needed": "x", "count.max": "1_0"}, "count.max=1_0: must be a whole number"),
        ({"needed": "x", "switch": "on"}, "switch=on: must be true or false"),
        (
            {"needed": "x", "offset-syncs.topic.location": "sourc"},
            "offset-syncs.topic.location=sourc: must be one of source, target",
        ),
        ({"needed": "x", "password": "hunter2"}, r"password=\*\*\*\*\*\*\*\*: must be one of"),
    ],
)
def test_a_wrong_value_is_refused_by_property_value_and_place(
    props: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(Sample, props, lambda name: "mm2:7")
    assert len(check_config(Sample, props)) == 1


def test_a_list_is_split_at_commas_as_java_does() -> None:
    assert parse_list("") == parse_list("  ") == ()
    assert parse_list(" a ,b,, c ") == ("a", "b", "", "c")


def test_numbers_and_texts_are_read_as_java_does() -> None:
    assert parse_value(JavaType.LONG, "9223372036854775807") == (1 << 63) - 1
    assert parse_value(JavaType.DOUBLE, "0.5d") == 0.5
    for kind in (JavaType.STRING, JavaType.PASSWORD, JavaType.CLASS):
        assert parse_value(kind, " x y ") == "x y"
    with pytest.raises(ConfigError):
        parse_value(JavaType.LONG, "9223372036854775808")
    with pytest.raises(ConfigError):
        parse_value(JavaType.INT, "٣")


def test_the_driver_takes_anything_but_true_for_false() -> None:
    assert parse_boolean_leniently("True ", absent=False)
    assert not parse_boolean_leniently("yes", absent=True)
    assert parse_boolean_leniently(None, absent=True)


def test_the_worker_defaults_that_differ_from_javas_are_these_four() -> None:
    assert DEDICATED_DEFAULTS == {
        "offset.flush.interval.ms": ("1000", "60000"),
        "session.timeout.ms": ("6000", "10000"),
        "heartbeat.interval.ms": ("2000", "3000"),
        "scheduled.rebalance.max.delay.ms": ("3000", "300000"),
    }
    assert options_of(WorkerConfig)["offset.storage.partitions"].default == "25"
