"""Sums per flow, and what lag in time means."""

from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
ORDERS = TopicPartition("orders", 0)
NOW = 1_700_000_000_000


def test_a_forgotten_partition_keeps_its_part_of_the_sums() -> None:
    meter = Metrics(FakeClock(NOW)).flow(FLOW)
    partition = meter.partition(ORDERS)
    partition.records, partition.bytes = 7, 700
    partition.report_lag(5, NOW - 10, NOW)
    meter.forget(ORDERS)
    snapshot = meter.snapshot()
    assert (snapshot.records, snapshot.size_bytes) == (7, 700)
    assert (snapshot.partitions, snapshot.lag_records) == (0, 0)


def test_lag_in_time_is_zero_when_nothing_lags_however_old_the_records() -> None:
    meter = Metrics(FakeClock(NOW)).flow(FLOW)
    meter.partition(ORDERS).report_lag(0, 1_000, NOW)
    assert meter.snapshot().lag_ms == 0


def test_lag_in_time_is_bounded_by_the_moment_the_partition_was_caught_up() -> None:
    clock = FakeClock(NOW)
    partition = Metrics(clock).flow(FLOW).partition(ORDERS)
    partition.report_lag(0, 1_000, NOW - 2_000)
    partition.report_lag(9, 1_000, NOW - 1_000)
    assert partition.lag_ms(NOW) == 2_000
    partition.report_lag(9, NOW - 500, NOW)
    assert partition.lag_ms(NOW) == 500


def test_failed_partitions_are_named_with_their_cause() -> None:
    meter = Metrics(FakeClock(NOW)).flow(FLOW)
    partition = meter.partition(ORDERS)
    partition.state, partition.cause = "FAILED", "too large"
    assert meter.snapshot().failed == ("orders-0: too large",)
