"""Members of groups of each kind, which read some records, commit and leave; and where a group is."""

from contextlib import closing
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from tests.integration.mirror_process import until
from tests.integration.test_share_groups import Shares, start_offsets
from tests.integration.traffic import committed
from tests.kit.kafka.region import KafkaAddress

READ_OF_60: Final = {"classic": 20, "kip848": 21, "share": 60}
"""Kinds of groups, with how much each is to read of 60 records: a share group takes what it gets."""
KIP_848: Final = {"group.protocol": "consumer"}
"""Settings of a member by the protocol of KIP-848."""


def read_some(
    region: KafkaAddress, topic: str, group: str, records: int, **settings: str
) -> list[int]:
    """Return the numbers in the next records of partition 0; the group has committed behind them."""
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
    found: list[tuple[int, int]] = []

    def read_more() -> bool:
        for it in member.consume(records - len(found), 1.0):
            assert it.error() is None, it.error()
            found.append((it.offset() or 0, int(it.value() or b"-1")))
        return len(found) >= records

    until(read_more, 90, lambda: f"{records} records for {group}, {len(found)} read")
    place = TopicPartition(topic, 0, found[-1][0] + 1)
    member.commit(offsets=[place], asynchronous=False)
    member.close()
    return [number for _, number in found]


def read_next(region: KafkaAddress, topic: str, group: str, kind: str, records: int) -> list[int]:
    """Let a group of a kind read on, and return the numbers."""
    if kind != "share":
        return read_some(region, topic, group, records, **(KIP_848 if kind == "kip848" else {}))
    with closing(Shares(region, topic, group)) as member:
        return member.read(records)


def place_of(region: KafkaAddress, topic: str, group: str, kind: str) -> int:
    """Return where a group of a kind is in partition 0; negative for nowhere."""
    if kind == "share":
        return start_offsets(region, group).get((topic, 0), -1)
    return committed(region, group, topic)[0]
