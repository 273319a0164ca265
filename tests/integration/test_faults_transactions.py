"""T19, short: three of ten transactions are aborted, and one is left open by a producer that was killed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import assert_equal, copied, wait_for_copy
from tests.integration.transactions import abandon, is_aborted, kept, write_mixed
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic, NewRegion

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.timeout(300)]

TIMEOUT_MS = 3_000


def test_what_waits_behind_the_transaction_of_a_dead_producer_arrives_when_the_broker_aborts_it(
    new_region: NewRegion,
    region_b: KafkaAddress,
    unique: Callable[[str], str],
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    source = new_region("transactional", properties=often)
    topic = unique("abandoned")
    create_topic(source, topic, 2)
    properties = {"{source}.consumer.isolation.level": "read_committed"}
    flow = write_flow(tmp_path, source, region_b, topic, properties)
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        write_mixed(source, topic, 20, 20)
        abandon(source, topic, topic, TIMEOUT_MS)
        write_mixed(source, topic, 20, 30)
        wanted = kept(20, 20) + kept(20, 30)
        until(
            lambda: copied(flow, topic) >= wanted,
            90,
            lambda: f"{wanted} records, there are {copied(flow, topic)}",
            alive=mirror,
        )
        truth, copy = wait_for_copy(mirror, flow, topic, committed=True)
        assert_equal(truth, copy)
        values = [record.value for log in copy.values() for record in log.records]
        assert len(values) == wanted
        assert not any(map(is_aborted, values))
        assert mirror.stop() == 0
        assert not mirror.complaints()
