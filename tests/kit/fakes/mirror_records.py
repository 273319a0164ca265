"""Records of mm2py's own topics with defaults for what a test does not ask about."""

from typing import Final

from mm2py.api.context import EventKind, LossEvent
from mm2py.mirror.producer_ids import MirrorProducer
from mm2py.types import TopicPartition

ORDERS: Final = TopicPartition("orders", 0)


def an_event(
    first: int,
    last: int,
    partition: TopicPartition = ORDERS,
    kind: EventKind = EventKind.RETENTION,
    *,
    policy: str = "gap.policy=continue",
    cause: str = "deleted before it was copied",
    task: str = "MirrorSourceConnector-0",
) -> LossEvent:
    return LossEvent(
        kind=kind,
        partition=partition,
        first_offset=first,
        last_offset=last,
        policy=policy,
        cause=cause,
        task=task,
    )


def a_producer(
    producer_id: int, source: str = "A", source_cluster: str = "id-of-a"
) -> MirrorProducer:
    return MirrorProducer(
        producer_id=producer_id,
        flow=f"{source}->B",
        source=source,
        source_cluster=source_cluster,
        task="MirrorSourceConnector-0",
        worker="host-1/4711",
        time_ms=1_700_000_000_000,
    )
