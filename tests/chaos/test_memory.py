"""Memory is flat while the target is frozen half of the time: ``MM2PY_CHAOS_MEMORY_S=600`` for ten minutes."""

import hashlib
import logging
import os
import time
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from mm2py.embedded.region import KafkaAddress
from tests.chaos.census import Census, rise
from tests.chaos.conftest import CreateTopic, Rig, Unique
from tests.chaos.throughput import wait_s
from tests.integration.mirror_process import Mirror, until, write_flow
from tests.integration.traffic import Load, Log, Logs, Record, assert_resumed, copied, ends

DURATION_S: Final = float(os.environ.get("MM2PY_CHAOS_MEMORY_S", "120"))

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.integration,
    pytest.mark.timeout(DURATION_S * 2 + 400),
]

log = logging.getLogger(__name__)

PARTITIONS = 4
RATE = 2_000
VALUE_BYTES = 2_000
HALVES_S = (6.0, 15.0)
"""Frozen and not, for as long each: within a session and longer than one. The buffers are full after eight."""
MOST_GROWTH_MB = 20.0
READ_TIMEOUT_S = 240.0


def digests(region: KafkaAddress, topic: str) -> Logs:
    """Return the log with a digest in place of each value: gigabytes do not fit into the test."""
    now = {partition: end for partition, end in ends(region, topic).items() if end}
    settings = {"bootstrap.servers": region.bootstrap_servers, "group.id": "digests"}
    consumer = Consumer(settings | {"enable.auto.commit": "false", "log_level": "0"})
    logs: Logs = {partition: Log([], []) for partition in now}
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in logs])
        while any(len(logs[p].records) < end for p, end in now.items()):
            assert time.monotonic() < deadline, f"{topic} was not read in time"
            for message in consumer.consume(2_000, timeout=0.5):
                assert message.error() is None, message.error()
                digest = hashlib.blake2b(message.value() or b"", digest_size=12).digest()
                one = logs[message.partition() or 0]
                one.offsets.append(message.offset() or 0)
                one.records.append(Record(message.key(), digest, (), message.timestamp()[1]))
    finally:
        consumer.close()
    return logs


def test_memory_is_flat_while_the_target_is_frozen_half_of_the_time(
    rig: Rig, unique: Unique, create_topic: CreateTopic, tmp_path: Path
) -> None:
    topic = unique("frozen")
    source, target = rig.source.region, rig.target.region
    create_topic(source, topic, PARTITIONS)
    flow = write_flow(tmp_path, source, target, topic)
    turns = 0
    with Mirror(flow.file) as mirror:
        mirror.wait_ready()
        with (
            Load(source, topic, PARTITIONS, rate=RATE, value_bytes=VALUE_BYTES) as load,
            Census(mirror.pid) as census,
        ):
            end = time.monotonic() + DURATION_S
            while time.monotonic() < end:
                half_s = HALVES_S[turns % len(HALVES_S)]
                turns += 1
                wait_s(load, half_s)
                target.freeze()
                try:
                    wait_s(load, half_s)
                finally:
                    target.thaw()
        growth = census.growth_mb()
        log.warning(
            "memory over %.0f s, frozen %d times: at most %.0f MiB, the line through the last half "
            "rises by %.1f MiB (%.0f MiB per hour), through the last quarter by %.1f MiB; %s",
            DURATION_S,
            turns,
            census.peak_mb,
            growth,
            census.mb_per_hour(),
            rise(census.used_mb[-len(census.used_mb) // 4 :]),
            [round(value) for value in census.used_mb[:: max(len(census.used_mb) // 60, 1)]],
        )
        wanted = ends(source, topic)

        def arrived() -> bool:
            now = ends(target, flow.remote(topic))
            return all(now.get(partition, 0) >= end for partition, end in wanted.items())

        until(arrived, 180, lambda: f"{wanted}, {ends(target, flow.remote(topic))}", alive=mirror)
        assert mirror.stop() == 0
    # A coordinator that was frozen for longer than a session may take us for dead when it wakes.
    truth, copy = digests(source, topic), digests(target, flow.remote(topic))
    doubled = assert_resumed(truth, copy, rewinds=turns)
    log.warning("memory: %d records on the target, %d doubled", copied(flow, topic), doubled)
    assert growth < MOST_GROWTH_MB
