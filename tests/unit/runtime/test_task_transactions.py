"""Boundaries, isolation and the offset topic of tasks with exactly-once support."""

import logging

import pytest

from mm2py.config.definitions import parse_config
from mm2py.config.framework import SourceFrameworkConfig
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.runtime.tasks.task_transactions import (
    POLL_MS,
    committed_reads,
    transaction_interval_ms,
)

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


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"transaction.boundary": "connector"}, "does not define transaction boundaries"),
    ],
)
def test_a_boundary_that_cannot_be_is_refused(config: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        transaction_interval_ms(parse_config(SourceFrameworkConfig, config), WORKER)


def test_a_mirrors_source_is_read_committed_unless_the_user_says_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    alias = {"source.cluster.alias": "A"}
    key = "source.consumer.isolation.level"
    assert committed_reads(alias)[key] == "read_committed"
    for name in ("consumer.isolation.level", key):
        assert committed_reads({**alias, name: "read_committed"}) == {
            **alias,
            name: "read_committed",
        }
    assert not caplog.records
    assert committed_reads({**alias, key: "read_uncommitted"})[key] == "read_uncommitted"
    assert "records of aborted transactions" in caplog.text
    assert committed_reads({"file": "x"}) == {"file": "x"}, (
        "a third party's task reads what it reads"
    )
