"""What arrives on the target is what the source holds: every kind of record, batch and topic."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mm2py.clock import SYSTEM_CLOCK
from tests.integration.cluster_changes import configs_of, grow
from tests.integration.main_job import (
    CODECS,
    PARTITIONS,
    every_kind_of_record_and_codec_is_copied,
    kinds,
    processes,
)
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import (
    Logs,
    Sent,
    assert_equal,
    producer,
    read,
    wait_for_copy,
    write,
)
from tests.kit.kafka.region import KafkaAddress
from tests.kit.regions import CreateTopic, NewRegion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

Unique = Callable[[str], str]


def test_every_kind_of_record_and_codec_arrives_unchanged(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("kinds")
    create_topic(region_a, topic, PARTITIONS)
    flow = write_flow(tmp_path, region_a, region_b, topic)
    every_kind_of_record_and_codec_is_copied(flow, topic, processes)


@pytest.mark.parametrize("isolation", ["", "read_committed"])
def test_transactions_are_copied_as_the_isolation_level_says(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
    isolation: str,
) -> None:
    topic = unique("transactions")
    create_topic(region_a, topic, 2)
    properties = {"{source}.consumer.isolation.level": isolation} if isolation else {}
    flow = write_flow(tmp_path, region_a, region_b, topic, properties)
    client = producer(region_a, transactional_id=secrets.token_hex(4))
    client.init_transactions(60)
    for turn in range(12):
        client.begin_transaction()
        for number in range(20):
            value = b"%d-%d" % (turn, number)
            client.produce(topic, value=value, partition=number % 2)
        if turn % 3 == 1:
            client.flush(60)
            client.abort_transaction(60)
        else:
            client.commit_transaction(60)
    with Mirror(flow.file) as mirror:
        committed = isolation == "read_committed"
        truth, copy = wait_for_copy(mirror, flow, topic, committed=committed)
        assert_equal(truth, copy)
        # Aborted records are copied only by default; the copy is not transactional in any case.
        assert sum(len(log.records) for log in copy.values()) == (160 if committed else 240)
        assert all(log.offsets == list(range(len(log.offsets))) for log in copy.values())
        assert mirror.stop() == 0


def test_a_compacted_topic_arrives_without_its_holes(
    new_region: NewRegion,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    source = new_region("compacting", properties={"log.cleaner.backoff.ms": "100"})
    topic = unique("compacted")
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "60000",
        "min.cleanable.dirty.ratio": "0.001",
    }
    create_topic(source, topic, 2, config=config)
    hours_ago = SYSTEM_CLOCK.now_ms() - 20 * 3_600_000
    for turn in range(6):
        # Segments roll by the time in the records.
        at = hours_ago + turn * 3_600_000
        some = (
            Sent(number % 2, b"%d-%d" % (turn, number), b"%d" % (number % (20 + 7 * turn)), (), at)
            for number in range(600)
        )
        write(source, topic, some, compression_type=CODECS[turn % 5])

    def compacted_log() -> Logs | None:
        logs = read(source, topic)
        is_short = max(len(log.records) for log in logs.values()) < 800
        has_holes = any(
            b - a > 1
            for log in logs.values()
            for a, b in zip(log.offsets, log.offsets[1:], strict=False)
        )
        return logs if is_short and has_holes else None

    until(compacted_log, 90, "compaction of the source")
    flow = write_flow(tmp_path, source, region_b, topic, {"sync.topic.configs.enabled": "false"})
    # Delete, so that the target does not compact the copy while we compare.
    create_topic(region_b, flow.remote(topic), 2)
    with Mirror(flow.file) as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        assert not mirror.lines("lost|gap")
        assert mirror.stop() == 0


def test_a_log_append_time_topic_keeps_the_times_its_source_gave(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    topic = unique("append-time")
    create_topic(region_a, topic, 2, config={"message.timestamp.type": "LogAppendTime"})
    for codec in CODECS:
        write(region_a, topic, kinds_for(2, 200), compression_type=codec)
    flow = write_flow(tmp_path, region_a, region_b, topic)
    with Mirror(flow.file) as mirror:
        truth, copy = wait_for_copy(mirror, flow, topic)
        assert_equal(truth, copy)
        stamps = {record.timestamp_ms for log in copy.values() for record in log.records}
        assert min(stamps) > SYSTEM_CLOCK.now_ms() - 600_000
        assert mirror.stop() == 0


def kinds_for(partitions: int, count: int) -> Iterator[Sent]:
    for sent in kinds(count, seed=count):
        yield sent._replace(partition=sent.partition % partitions)


def test_new_partitions_and_new_topics_arrive_from_their_first_record(
    region_a: KafkaAddress,
    region_b: KafkaAddress,
    unique: Unique,
    create_topic: CreateTopic,
    tmp_path: Path,
) -> None:
    prefix = unique("grow")
    old, new = f"{prefix}-old", f"{prefix}-new"
    create_topic(region_a, old, 2)
    flow = write_flow(tmp_path, region_a, region_b, f"{prefix}-.*")
    write(region_a, old, kinds_for(2, 100))
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        grow(region_a, old, 5)
        create_topic(region_a, new, 3, config={"retention.ms": "-1", "max.message.bytes": "77777"})
        write(region_a, old, kinds_for(5, 200))
        write(region_a, new, kinds_for(3, 200))
        # The refresh is due every 5 s; the rest is for a machine under load.
        for topic in (old, new):
            truth, copy = wait_for_copy(mirror, flow, topic, timeout_s=90)
            assert_equal(truth, copy)
        assert configs_of(region_b, flow.remote(new))["max.message.bytes"] == "77777"
        assert mirror.stop() == 0
        assert not mirror.complaints()
