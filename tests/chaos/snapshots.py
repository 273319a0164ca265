"""A topic as it is now, while it is written: every record below the log ends of the moment, none of them a hole."""

import hashlib
import time
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.integration.traffic import Log, Logs, Record, ends
from tests.kit.kafka.region import KafkaAddress

READ_TIMEOUT_S: Final = 240.0


def snapshot(region: KafkaAddress, topic: str, *, digests: bool = False) -> Logs:
    """Read the topic; with a digest in place of each value where gigabytes do not fit into the test."""
    now = {partition: end for partition, end in ends(region, topic).items() if end}
    settings = {"bootstrap.servers": region.bootstrap_servers, "group.id": "snapshot"}
    consumer = Consumer(settings | {"enable.auto.commit": "false", "log_level": "0"})
    logs: Logs = {partition: Log([], []) for partition in now}
    deadline = time.monotonic() + READ_TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in logs])
        while any(len(logs[p].records) < end for p, end in now.items()):
            assert time.monotonic() < deadline, f"{topic} was not read in time"
            for message in consumer.consume(2_000, timeout=0.2):
                assert message.error() is None, message.error()
                value = message.value() or b""
                if digests:
                    value = hashlib.blake2b(value, digest_size=12).digest()
                one = logs[message.partition() or 0]
                one.offsets.append(message.offset() or 0)
                one.records.append(Record(message.key(), value, (), message.timestamp()[1]))
    finally:
        consumer.close()
    return logs
