"""What exactly-once support does not allow together, and how long a transaction stays open."""

import pytest

from mm2py.config.definitions import parse_config
from mm2py.config.exactly_once import (
    POLL_MS,
    contradictions,
    exactly_once_problems,
    raise_first,
    transaction_interval_ms,
)
from mm2py.config.framework import SourceFrameworkConfig, TaskFrameworkConfig
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError

WORKER = WorkerConfig.model_validate(
    {
        "bootstrap_servers": ("b:1",),
        "group_id": "A-mm2",
        "config_storage_topic": "c",
        "offset_storage_topic": "o",
        "status_storage_topic": "s",
        "offset_flush_interval_ms": 750,
    }
)


@pytest.mark.parametrize(
    ("config", "interval_ms"),
    [
        ({}, POLL_MS),
        ({"transaction.boundary": "POLL"}, POLL_MS),
        ({"transaction.boundary": "interval"}, 750),
        ({"transaction.boundary": "interval", "transaction.boundary.interval.ms": "40"}, 40),
    ],
)
def test_a_boundary_says_how_long_a_transaction_stays_open(
    config: dict[str, str], interval_ms: int
) -> None:
    assert (
        transaction_interval_ms(parse_config(SourceFrameworkConfig, config), WORKER) == interval_ms
    )


ENABLED = {
    "bootstrap.servers": "h:1",
    "group.id": "A-mm2",
    "config.storage.topic": "c",
    "offset.storage.topic": "o",
    "status.storage.topic": "s",
    "exactly.once.source.support": "enabled",
}


@pytest.mark.parametrize(
    ("connector", "worker", "name"),
    [
        ({"offsets.identical": "REQUIRE"}, ENABLED, "offsets.identical"),
        ({"transaction.boundary": "connector"}, ENABLED, "transaction.boundary"),
        (
            {"transaction.boundary": "interval", "transaction.boundary.interval.ms": "60000"},
            ENABLED,
            "transaction.boundary.interval.ms",
        ),
        (
            {"producer.override.transaction.timeout.ms": "100"},
            ENABLED,
            "transaction.boundary.interval.ms",
        ),
        (
            {"exactly.once.support": "required"},
            ENABLED | {"exactly.once.source.support": "preparing"},
            "exactly.once.support",
        ),
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
        (
            {"offsets.identical": "require", "transaction.boundary": "connector"},
            ENABLED | {"exactly.once.source.support": "preparing"},
        ),
    ],
)
def test_settings_that_work_together_are_not(
    connector: dict[str, str], worker: dict[str, str]
) -> None:
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
        (
            SINK | {"copy.connector": "sink"},
            ENABLED | {"exactly.once.source.support": "preparing"},
            "",
        ),
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


def test_a_task_without_transactions_is_refused_only_where_they_are_required() -> None:
    options = parse_config(TaskFrameworkConfig, {"offsets.identical": "require"})
    assert exactly_once_problems(options, enabled=False) == []
