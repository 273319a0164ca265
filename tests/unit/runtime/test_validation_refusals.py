"""What validation refuses because clients or connectors would, at the key it is about."""

import asyncio
from collections.abc import Mapping

import pytest

from mm2py.config.connect_definitions import ConfigInfos, ConfigKey, ConfigValue
from tests.unit.runtime.test_validation import GOOD, _validator  # pyright: ignore[reportPrivateUsage]


def infos_of(changes: Mapping[str, str | None]) -> ConfigInfos:
    return asyncio.run(_validator().validate({**GOOD, **changes}))


def entry(infos: ConfigInfos, name: str) -> tuple[ConfigKey | None, ConfigValue]:
    return next((key, it) for key, it in infos.configs if it is not None and it.name == name)


@pytest.mark.parametrize(
    ("name", "text"),
    [("acks", "bogus"), ("compression.type", "nope"), ("buffer.memory", "-5"), ("linger.ms", "x")],
)
def test_a_client_override_that_the_client_would_refuse_is_an_error_at_its_key(
    name: str, text: str
) -> None:
    infos = infos_of({f"producer.override.{name}": text})
    _, value = entry(infos, f"producer.override.{name}")
    assert infos.error_count == 1
    assert text in value.errors[0]


def test_overrides_have_the_defaults_and_importance_of_javas_producer() -> None:
    names = {"acks": "all", "compression.type": "zstd", "metric.reporters": "x"}
    infos = infos_of({f"producer.override.{name}": text for name, text in names.items()})
    found = {name: entry(infos, f"producer.override.{name}")[0] for name in names}
    assert {name: (key.default_value, key.importance) for name, key in found.items() if key} == {
        "acks": ("all", "LOW"),
        "compression.type": ("none", "HIGH"),
        "metric.reporters": ("org.apache.kafka.common.metrics.JmxReporter", "LOW"),
    }
    assert infos.error_count == 0


def test_a_mirror_defines_no_transaction_boundaries() -> None:
    _, value = entry(infos_of({"transaction.boundary": "connector"}), "transaction.boundary")
    assert "does not support connector-defined transaction boundaries" in value.errors[0]
    assert entry(infos_of({"transaction.boundary": "poll"}), "transaction.boundary")[1].errors == ()


def test_what_the_workers_exactly_once_support_does_not_allow_is_an_error_at_its_key() -> None:
    worker = {
        "bootstrap.servers": "h:1",
        "group.id": "A-mm2",
        "config.storage.topic": "c",
        "offset.storage.topic": "o",
        "status.storage.topic": "s",
        "exactly.once.source.support": "enabled",
    }
    validator = _validator(worker=worker)
    infos = asyncio.run(validator.validate({**GOOD, "offsets.identical": "require"}))
    _, value = entry(infos, "offsets.identical")
    assert infos.error_count == 1
    assert "is not possible: with exactly-once support" in value.errors[0]


def test_groups_of_a_connectors_own_converter_come_last() -> None:
    converter = "org.apache.kafka.connect.json.JsonConverter"
    groups = infos_of({"value.converter": converter}).groups
    assert set(groups[-2:]) == {"Serialization", "Schemas"}
    assert "Schemas" not in infos_of({}).groups


def test_a_mirror_does_not_promise_to_drop_records() -> None:
    _, value = entry(infos_of({"errors.tolerance": "all"}), "errors.tolerance")
    assert "drops no record here" in value.errors[0]
