"""Brokers older than the pinned ones, on either side: MM2PY_OLD_KAFKA_HOME names an unpacked Kafka (3.3 or newer).

Only what a version changes is tried here: creation and configs of topics, membership, copies, a restart.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mm2py.embedded.region import KafkaAddress, Region
from tests.integration.cluster_changes import configs_of, grow, topics_of
from tests.integration.conftest import CreateTopic
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Sent, assert_equal, producer, wait_for_copy, write

OLD = "MM2PY_OLD_KAFKA_HOME"
NEW = "MM2PY_KAFKA_HOME"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not os.environ.get(OLD), reason=f"{OLD} names no unpacked older Kafka"),
]

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def old_region() -> Iterator[Region]:
    region = Region("old")
    pinned = os.environ.get(NEW)
    os.environ[NEW] = os.environ[OLD]
    try:
        region.start()
    finally:
        if pinned is None:
            del os.environ[NEW]
        else:
            os.environ[NEW] = pinned
    try:
        yield region
    finally:
        region.close()


@pytest.mark.parametrize("old_side", ["source", "target"])
def test_an_older_broker_is_mirrored_like_a_new_one(
    old_region: Region,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    old_side: str,
) -> None:
    pair: tuple[KafkaAddress, KafkaAddress] = (old_region, region_b)
    source, target = pair if old_side == "source" else (region_b, old_region)
    topic = unique("old")
    create_topic(source, topic, 2, config={"max.message.bytes": "70000", "retention.ms": "-1"})
    properties = {
        "refresh.topics.interval.seconds": "1",
        "sync.topic.configs.interval.seconds": "1",
        "{source}.consumer.isolation.level": "read_committed",
    }
    flow = write_flow(tmp_path, source, target, topic, properties)
    remote = flow.remote(topic)
    for codec in ("none", "gzip", "lz4", "zstd"):
        write(source, topic, [Sent(n % 2, b"%d" % n) for n in range(200)], compression_type=codec)
    with Mirror(flow.file) as mirror:
        wait_for_copy(mirror, flow, topic)
        until(
            lambda: configs_of(target, remote)["max.message.bytes"] == "70000",
            90,
            "the topic's configs",
            alive=mirror,
        )
        grow(source, topic, 4)
        until(lambda: topics_of(target)[remote] == 4, 90, "new partitions", alive=mirror)
        client = producer(source, transactional_id=topic)
        client.init_transactions(60)
        for end in ("abort", "commit"):
            client.begin_transaction()
            client.produce(topic, value=end.encode(), partition=3)
            client.flush(60)
            if end == "abort":
                client.abort_transaction(60)
            else:
                client.commit_transaction(60)
        assert_equal(*wait_for_copy(mirror, flow, topic, committed=True))
        assert mirror.stop() == 0
        assert not mirror.complaints()
    write(source, topic, [Sent(n % 4, b"later %d" % n) for n in range(200)])
    with Mirror(flow.file, name="restarted") as mirror:
        assert_equal(*wait_for_copy(mirror, flow, topic, committed=True))
        assert mirror.stop() == 0
        assert not mirror.complaints()
