"""Sums per flow, and what lag in time means."""

from mm2py.observability.metrics import MOST_GONE, Metrics
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.unit.runtime.runtime_fakes import EagerClock

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


def test_of_topics_without_a_partition_here_the_counts_of_the_newest_are_kept() -> None:
    meter = Metrics(FakeClock(NOW)).flow(FLOW)

    def forgotten(topic: str, number: int = 0) -> None:
        meter.partition(TopicPartition(topic, number)).records = 1
        meter.forget(TopicPartition(topic, number))

    def counted(topic: str) -> int:
        meter.partition(TopicPartition(topic, 9))
        gone = meter.node_snapshot("w").gone
        return gone[topic].records if topic in gone else 0

    forgotten("stays")
    meter.partition(TopicPartition("stays", 1))
    for number in range(3 * MOST_GONE):
        forgotten(f"goes-{number}")
    assert set(meter.node_snapshot("w").gone) == {"stays"}, "no other topic is shown"
    forgotten("stays", 2)
    newest, first = f"goes-{3 * MOST_GONE - 1}", "goes-0"
    assert (counted("stays"), counted(newest), counted(first)) == (2, 1, 0)


class Counted(str):
    """A name that counts how often something is looked up by it."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()


def test_what_a_partition_costs_that_leaves_does_not_grow_with_the_topics_that_stay() -> None:
    meter, topics = Metrics(FakeClock(NOW)).flow(FLOW), 3 * MOST_GONE
    for number in range(topics):
        for partition in (0, 1):
            meter.partition(TopicPartition(Counted(number), partition))
    Counted.looks = 0
    for number in range(topics):
        meter.forget(TopicPartition(Counted(number), 0))
    assert Counted.looks < 40 * topics


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


def test_while_the_lag_is_not_known_its_age_grows_from_when_it_was_and_is_unknown_without() -> None:
    clock = EagerClock()
    there, here = Metrics(clock).flow(FLOW), Metrics(clock).flow(FLOW)
    partition = there.partition(ORDERS)
    partition.report_lag(-1, -1, clock.now_ms())
    (snapshot,) = there.node_snapshot("x").partitions
    assert snapshot.age_ms is None
    clock.seconds += 60
    partition.report_lag(0, 1_000, clock.now_ms())
    clock.seconds += 30
    assert there.node_snapshot("x").partitions[0].age_ms == 0
    partition.report_lag(-1, 1_000, clock.now_ms())
    here.apply(there.node_snapshot("x").partitions)
    clock.seconds += 15
    for each in (there, here):  # the other process does not hear of what has not changed
        (snapshot,) = each.node_snapshot("x").partitions
        assert (snapshot.lag_records, snapshot.age_ms) == (-1, 45_000)


def test_failed_partitions_are_named_with_their_cause() -> None:
    meter = Metrics(FakeClock(NOW)).flow(FLOW)
    partition = meter.partition(ORDERS)
    partition.state, partition.cause = "FAILED", "too large"
    assert meter.snapshot().failed == ("orders-0: too large",)


def test_rates_are_means_over_the_last_seconds_and_unknown_before() -> None:
    clock = EagerClock()
    meter = Metrics(clock).flow(FLOW)
    partition = meter.partition(ORDERS)
    (first,) = meter.node_snapshot("me").partitions
    assert (first.records_per_s, first.bytes_per_s) == (-1, -1)
    assert meter.rates() == {}
    for second in range(1, 31):
        partition.records += 10 if second <= 15 else 0
        partition.bytes += 1_000 if second <= 15 else 0
        clock.seconds += 1
        partition.report_lag(0, 1, clock.now_ms())
        (now,) = meter.node_snapshot("me").partitions
        if 2 <= second <= 15:
            assert (now.records_per_s, now.bytes_per_s) == (10, 1_000)
            assert meter.rates() == {ORDERS: 1_000}
        elif second >= 26:
            assert now.records_per_s == 0


def test_what_another_process_counted_is_taken_over_and_stays_in_the_sums() -> None:
    clock = EagerClock()
    here, there = Metrics(clock).flow(FLOW), Metrics(clock).flow(FLOW)
    counted = there.partition(ORDERS)
    counted.task, counted.records, counted.bytes = "c-0", 5, 50
    counted.target = TopicPartition("A.orders", 0)
    counted.report_lag(0, 1, clock.now_ms())
    here.apply(there.node_snapshot("x").partitions)
    clock.seconds += 3_600
    counted.report_lag(0, 1, clock.now_ms())
    clock.seconds += 1
    counted.report_lag(1, 1, clock.now_ms())
    here.apply(there.node_snapshot("x").partitions)
    (partition,) = here.node_snapshot("x").partitions
    assert (partition.task, partition.records, partition.lag_records) == ("c-0", 5, 1)
    assert partition.lag_ms == 1_000, "the hour without a change is no lag"
    here.forget_task("c-0")
    snapshot = here.snapshot()
    assert (snapshot.records, snapshot.size_bytes, snapshot.partitions) == (5, 50, 0)
