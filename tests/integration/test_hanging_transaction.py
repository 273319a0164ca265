"""A transaction that nobody ends, under read_committed: said after a minute, and nothing behind it is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Sent, assert_equal, ends, producer, wait_for_copy, write
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

Unique = Callable[[str], str]


def test_an_open_transaction_is_reported_holds_back_its_partition_alone_and_is_forgotten_at_its_end(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("hanging")
    create_topic(region_a, topic, 2)
    committed = {"{source}.consumer.isolation.level": "read_committed"}
    flow = write_flow(tmp_path, region_a, region_b, topic, committed)
    remote = flow.remote(topic)
    settings: dict[str, str | int] = {"transaction_timeout_ms": 170_000}
    client = producer(region_a, transactional_id=topic, **settings)
    client.init_transactions(60)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        write(region_a, topic, [Sent(n % 2, b"before %d" % n) for n in range(100)])
        until(lambda: ends(region_b, remote) == {0: 50, 1: 50}, 90, "the copy", alive=mirror)
        client.begin_transaction()
        client.produce(topic, value=b"open", partition=0)
        client.flush(60)
        write(region_a, topic, [Sent(n % 2, b"behind %d" % n) for n in range(100)])
        until(lambda: ends(region_b, remote) == {0: 50, 1: 100}, 90, "the others", alive=mirror)
        said = mirror.wait_for_log("a transaction is open", 90)
        assert f"({topic}-0)" in said
        assert "at offset 50 of" in said
        assert "find-hanging" in said
        assert ends(region_b, remote) == {0: 50, 1: 100}
        client.abort_transaction(60)
        assert_equal(*wait_for_copy(mirror, flow, topic, committed=True))
        assert ends(region_b, remote) == {0: 100, 1: 100}
        assert mirror.stop() == 0
        assert mirror.complaints() == [said]
