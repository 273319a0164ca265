"""Copies of exactly-once flows: each record of the source once, as a read_committed consumer sees both sides."""

from collections.abc import Mapping
from typing import Final

from tests.integration.mirror_process import Flow, Running, until
from tests.integration.traffic import Logs, assert_equal, ends, read

__all__ = ["ENABLED", "assert_each_once", "committed_copy", "wait_for_committed", "wait_for_more"]

ENABLED: Final[Mapping[str, str]] = {
    "{target}.exactly.once.source.support": "enabled",
    "{target}.session.timeout.ms": "4000",
    "{target}.heartbeat.interval.ms": "1000",
    "{target}.scheduled.rebalance.max.delay.ms": "1000",
}
"""Properties of a flow with exactly-once support whose dead workers count as dead soon."""


def committed_copy(flow: Flow, topic: str) -> Logs:
    """Return the copy as a consumer with ``read_committed`` sees it."""
    return read(flow.target, flow.remote(topic), committed=True)


def wait_for_committed(
    mirror: Running, flow: Flow, topic: str, *, timeout_s: float = 120.0
) -> tuple[Logs, Logs]:
    """Wait until the last record of every source partition is a committed one on the target; both logs."""
    truth = read(flow.source, topic, committed=True)
    copy: Logs = {}

    def arrived() -> bool:
        nonlocal copy
        copy = committed_copy(flow, topic)
        return bool(copy) and all(
            copy[p].records[-1:] == log.records[-1:] for p, log in truth.items() if log.records
        )

    def described() -> str:
        return f"copy of {topic}: wanted {_sizes(truth)}, there are {_sizes(copy)}"

    until(arrived, timeout_s, described, alive=mirror)
    return truth, copy


def assert_each_once(mirror: Running, flow: Flow, topic: str) -> int:
    """0 lost, 0 doubled, in order; return the number of records."""
    truth, copy = wait_for_committed(mirror, flow, topic)
    assert_equal(truth, copy)
    return sum(_sizes(truth).values())


def wait_for_more(mirror: Running, flow: Flow, topic: str) -> None:
    """Wait until records are committed on the target that were not there before."""
    before = sum(ends(flow.target, flow.remote(topic)).values())
    # More than the markers of a transaction that was aborted.
    until(
        lambda: sum(ends(flow.target, flow.remote(topic)).values()) > before + 100,
        90,
        "the copy to continue",
        alive=mirror,
    )


def _sizes(logs: Logs) -> dict[int, int]:
    return {partition: len(log.records) for partition, log in logs.items()}
