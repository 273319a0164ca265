"""Positions stored by hand: what Java's connectors refuse, in their words (kcr 2.3)."""

from collections.abc import Callable, Mapping

import pytest

from mm2py.errors import ConfigError
from mm2py.mirror.offset_checks import (
    Positions,
    check_heartbeat_offsets,
    check_mirror_offsets,
    hash_map_order,
    java_text,
)

PARTITION: Mapping[str, object] = {"topic": "t", "partition": 0, "cluster": "A"}
SHOWN = "{cluster=A, partition=0, topic=t}"
ALIASES: Mapping[str, object] = {"targetClusterAlias": "B", "sourceClusterAlias": "A"}


@pytest.mark.parametrize(
    ("members", "order"),
    [
        ({"topic": 1, "partition": 1, "cluster": 1}, ["cluster", "partition", "topic"]),
        ({"group": 1, "topic": 1, "partition": 1}, ["partition", "topic", "group"]),
        (
            {"targetClusterAlias": 1, "sourceClusterAlias": 1},
            ["sourceClusterAlias", "targetClusterAlias"],
        ),
    ],
)
def test_members_stand_in_the_order_of_a_hash_map(
    members: Mapping[str, int], order: list[str]
) -> None:
    assert list(hash_map_order(members)) == order


def test_large_maps_are_ordered_in_larger_tables() -> None:
    members = {chr(ord("a") + n): n for n in reversed(range(20))}
    assert list(hash_map_order(members)) == sorted(members)


def test_values_are_printed_as_java_does() -> None:
    assert java_text({"b": None, "a": True, "c": 1.5, "d": "x"}) == "{a=true, b=null, c=1.5, d=x}"


def test_right_positions_and_all_removals_pass() -> None:
    assert check_mirror_offsets(
        [(PARTITION, {"offset": 41, "more": "x"}), (None, None), ({"x": 1}, None)]
    )
    assert check_heartbeat_offsets([(ALIASES, {"offset": 0}), ({}, None)])


@pytest.mark.parametrize(
    ("check", "partition", "offset", "message"),
    [
        (check_mirror_offsets, None, {"offset": 1}, "Source partitions may not be null"),
        (
            check_mirror_offsets,
            {"cluster": "A", "partition": 0},
            {"offset": 1},
            "Source partition {cluster=A, partition=0} is missing the 'topic' key, which is required",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "cluster": None},
            {"offset": 1},
            "Source partition {cluster=null, partition=0, topic=t} has an invalid value null for the"
            " 'cluster' key, which must be a string",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "partition": "0"},
            {"offset": 1},
            f"Source partition {SHOWN} has an invalid value 0 for the 'partition' key, which must be"
            " an integer",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "partition": 2**31},
            {"offset": 1},
            "Source partition {cluster=A, partition=2147483648, topic=t} has an invalid value"
            " 2147483648 for the 'partition' key, which must be an integer",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "partition": -1},
            {"offset": 1},
            "Source partition {cluster=A, partition=-1, topic=t} has an invalid value -1 for the"
            " 'partition' key, which cannot be negative",
        ),
        (
            check_mirror_offsets,
            PARTITION,
            {"x": 1},
            f"Source offset {{x=1}} for source partition {SHOWN} is missing the 'offset' key, which"
            " is required",
        ),
        (
            check_mirror_offsets,
            PARTITION,
            {"offset": True},
            f"Source offset {{offset=true}} for source partition {SHOWN} has an invalid value true"
            " for the 'offset' key, which must be an integer",
        ),
        (
            check_mirror_offsets,
            PARTITION,
            {"offset": -1},
            f"Source offset {{offset=-1}} for source partition {SHOWN} has an invalid value -1 for"
            " the 'offset' key, which cannot be negative",
        ),
        (
            check_heartbeat_offsets,
            ALIASES,
            {"offset": 1},
            "Source offset {offset=1} for source partition {sourceClusterAlias=A,"
            " targetClusterAlias=B} has an invalid value 1 for the 'offset' key; the only accepted"
            " value is 0",
        ),
        (
            check_heartbeat_offsets,
            {"sourceClusterAlias": "A"},
            {"offset": 0},
            "Source partition {sourceClusterAlias=A} is missing the 'targetClusterAlias' key, which"
            " is required",
        ),
    ],
)
def test_wrong_positions_are_refused_in_javas_words(
    check: Callable[[Positions], bool],
    partition: Mapping[str, object] | None,
    offset: Mapping[str, object],
    message: str,
) -> None:
    with pytest.raises(ConfigError) as refused:
        check([(PARTITION, None), (partition, offset)])
    assert refused.value.message == message
