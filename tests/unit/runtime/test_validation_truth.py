"""The validator beside Kafka's own herder, on the cases of ``validation_cases.json``.

``tests/java/ValidationTruth.java`` printed the answers on Kafka 4.3.1.
"""

import asyncio
import json
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TypedDict, cast

import pytest

from mm2py.config.connect_definitions import ConfigInfos
from mm2py.config.override_policy import override_policy
from mm2py.observability.logging import SecretMask
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator

SOURCE = "org.apache.kafka.connect.mirror.MirrorSourceConnector"
GOOD: Mapping[str, str | None] = {
    "name": "n",
    "connector.class": SOURCE,
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:1",
    "target.cluster.bootstrap.servers": "b:1",
}
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


def _infos(case: Case) -> ConfigInfos:
    entry = EntryPoint(
        "MirrorSourceConnector",
        "mm2py_connectors.mirror_source:MirrorSourceConnector",
        "mm2py.connectors",
    )
    validator = ConfigValidator(
        Plugins([entry]),
        resolve=lambda config: {k: v for k, v in config.items() if v is not None},
        policy=POLICIES[case["policy"]],
        mask=SecretMask(),
    )
    return asyncio.run(validator.validate({**GOOD, **case["changes"]}))


@pytest.mark.parametrize("case", CASES[1:], ids=lambda case: ",".join(case["changes"]))
def test_configs_are_judged_as_kafkas_herder_does(case: Case) -> None:
    infos, java = _infos(case), case["answer"]
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
    names = [key.name for key, _ in _infos(CASES[0]).configs if key is not None]
    java = [row[0] for row in CASES[0]["answer"]["configs"]]
    assert len(java) == 118
    assert names[: len(java)] == java
