"""T19: transactions that are aborted, huge, left open by a producer that was killed, or never ended."""

import pytest

from tests.integration.memory_census import Census
from tests.integration.mirror_process import Mirror, until
from tests.integration.setups import Setup
from tests.integration.traffic import (
    Logs,
    Sent,
    assert_equal,
    copied,
    ends,
    producer,
    wait_for_copy,
    write,
)
from tests.integration.transactions import (
    ABORTED,
    abandon,
    is_aborted,
    kept,
    write_mixed,
    write_one,
)
from tests.kit.regions import NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

TIMEOUT_MS = 10_000
COMMITTED = {"{source}.consumer.isolation.level": "read_committed"}
HUGE = 200_000
MANY, EACH = 400, 250
MOST_MB = 150.0


def count_kept(copy: Logs) -> int:
    values = [record.value for log in copy.values() for record in log.records]
    assert not any(map(is_aborted, values))
    return len(values)


def test_what_waits_behind_the_transaction_of_a_dead_producer_arrives_when_the_broker_aborts_it(
    setup: Setup, new_region: NewRegion
) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    source = new_region("transactional", properties=often)
    topic = setup.topic("abandoned", 2, on=source)
    flow = setup.flow(topic, COMMITTED, source=source)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        write_mixed(source, topic, 20, 20)
        abandon(source, topic, topic, TIMEOUT_MS)
        write_mixed(source, topic, 20, 30, beside_open=True)
        wanted = kept(20, 20) + kept(20, 30)
        until(
            lambda: copied(flow, topic) >= wanted,
            90,
            lambda: f"{wanted} records, there are {copied(flow, topic)}",
            alive=mirror,
        )
        truth, copy = wait_for_copy(mirror, flow, topic, committed=True)
        assert_equal(truth, copy)
        assert count_kept(copy) == wanted
        assert mirror.stop() == 0
        assert not mirror.complaints()


@pytest.mark.chaos
def test_transactions_of_200_000_records_arrive_whole_or_not_at_all(setup: Setup) -> None:
    topic = setup.topic("huge", 2)
    flow = setup.flow(topic, COMMITTED)
    client = producer(setup.a, transactional_id=topic)
    client.init_transactions(30)
    padding = b"." * 200
    with Mirror(flow.file) as mirror, Census(mirror.pid) as census:
        mirror.wait_ready()
        for word, commit in ((ABORTED, False), (b"kept", True)):
            values = (b"%s %d %s" % (word, number, padding) for number in range(HUGE))
            write_one(client, topic, values, commit=commit)
        write_mixed(setup.a, topic, MANY, EACH)
        truth, copy = wait_for_copy(mirror, flow, topic, committed=True, timeout_s=120)
        assert_equal(truth, copy)
        assert count_kept(copy) == HUGE + kept(MANY, EACH)
        assert census.peak_mb < MOST_MB
        assert mirror.stop() == 0
        assert not mirror.complaints()


def test_an_open_transaction_is_reported_holds_back_its_partition_alone_and_is_forgotten_at_its_end(
    setup: Setup,
) -> None:
    topic = setup.topic("hanging", 2)
    flow = setup.flow(topic, COMMITTED)
    remote = flow.remote(topic)
    settings: dict[str, str | int] = {"transaction_timeout_ms": 170_000}
    client = producer(setup.a, transactional_id=topic, **settings)
    client.init_transactions(60)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        write(setup.a, topic, [Sent(n % 2, b"before %d" % n) for n in range(100)])
        until(lambda: ends(setup.b, remote) == {0: 50, 1: 50}, 90, "the copy", alive=mirror)
        client.begin_transaction()
        client.produce(topic, value=b"open", partition=0)
        client.flush(60)
        write(setup.a, topic, [Sent(n % 2, b"behind %d" % n) for n in range(100)])
        until(lambda: ends(setup.b, remote) == {0: 50, 1: 100}, 90, "the others", alive=mirror)
        said = mirror.wait_for_log("a transaction is open", 90)
        assert f"({topic}-0)" in said
        assert "at offset 50 of" in said
        assert "find-hanging" in said
        assert ends(setup.b, remote) == {0: 50, 1: 100}
        client.abort_transaction(60)
        assert_equal(*wait_for_copy(mirror, flow, topic, committed=True))
        assert ends(setup.b, remote) == {0: 100, 1: 100}
        assert mirror.stop() == 0
        assert mirror.complaints() == [said]
