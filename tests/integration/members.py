"""A member of a group, of the classic protocol or of KIP-848's, that reads some records, commits and leaves."""

from confluent_kafka import Consumer, TopicPartition

from tests.integration.mirror_process import until
from tests.kit.kafka.region import KafkaAddress

KIP_848 = {"group.protocol": "consumer"}
"""Settings of a member by the protocol of KIP-848."""


def read_some(
    region: KafkaAddress, topic: str, group: str, records: int, **settings: str
) -> list[bytes]:
    """Return the values of the next records of partition 0; the group has committed behind them."""
    member = Consumer(
        {
            "bootstrap.servers": region.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
            **settings,
        }
    )
    member.subscribe([topic])
    values: list[bytes] = []
    last = [-1]

    def read_more() -> bool:
        for it in member.consume(records - len(values), 1.0):
            assert it.error() is None, it.error()
            values.append(it.value() or b"")
            last[0] = it.offset() or 0
        return len(values) >= records

    until(read_more, 90, lambda: f"{records} records for {group}, {len(values)} read")
    place = TopicPartition(topic, 0, last[0] + 1)
    member.commit(offsets=[place], asynchronous=False)
    member.close()
    return values
