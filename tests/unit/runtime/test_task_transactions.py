"""Boundaries, isolation and the offset topic of tasks with exactly-once support."""

import logging

import pytest

from mm2py.runtime.tasks.task_transactions import (
    committed_reads,
)


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
