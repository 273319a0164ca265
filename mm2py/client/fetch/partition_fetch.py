"""One Fetch of one partition, for readers that are not on the hot path: log look-ups and internal topics.

Flow: ``fetch_partition`` -> Fetch to the leader -> ``FetchedPartition`` with its own copy of the records.
"""

from dataclasses import replace
from typing import Final

from mm2py.client.connect.cluster import Cluster
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import RequestTimedOutError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.fetch import (
    FETCH_KEY,
    FetchedPartition,
    FetchPartition,
    decode_fetch,
    encode_fetch,
)
from mm2py.protocol.record_batch import BufferLease
from mm2py.types import TopicPartition

__all__ = ["READ_COMMITTED", "READ_UNCOMMITTED", "fetch_partition", "isolation_of"]

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


def isolation_of(settings: ConsumerSettings) -> int:
    """Return ``isolation.level`` as requests have it."""
    return READ_COMMITTED if settings.isolation_level == "read_committed" else READ_UNCOMMITTED


async def fetch_partition(
    cluster: Cluster,
    tp: TopicPartition,
    position: int,
    *,
    max_bytes: int,
    max_wait_ms: int = 500,
    isolation_level: int = READ_UNCOMMITTED,
) -> FetchedPartition:
    """Fetch from ``position`` of ``tp``; the records are copied out of the receive buffer.

    Raises:
        RetriableServerError: the leader moved or is away (it is forgotten here): ask again.
        FatalServerError: the partition may not be read, or ``position`` is out of range (code 1).
        ConnectionFailedError: the connection was lost.
    """
    leader = await cluster.leader(tp)
    connection = await cluster.connection(leader.node_id, "read")
    version = connection.negotiated(FETCH_KEY, 4, 12, "Fetch")
    correlation_id = connection.next_correlation_id()
    frame = encode_fetch(
        version,
        correlation_id,
        cluster.settings.client_id,
        partitions=[
            FetchPartition(
                topic=tp.topic,
                topic_id=leader.topic_id,
                partition=tp.partition,
                position=position,
                current_leader_epoch=leader.epoch,
                max_bytes=max_bytes,
            )
        ],
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
    )

    def take(body: memoryview, _lease: BufferLease | None) -> FetchedPartition:
        fetched = decode_fetch(version, body).partitions[0]
        if fetched.records is not None:  # copied, so nothing is kept of the receive buffer
            fetched = replace(fetched, records=memoryview(bytearray(fetched.records)))
        return fetched

    try:
        fetched = await connection.exchange((frame,), correlation_id, take)
    except RequestTimedOutError:
        cluster.leader_moved(tp)
        raise
    if fetched.error_code:
        if fetched.error_code in codes.RETRIABLE:
            cluster.leader_moved(tp)
        raise codes.server_error(fetched.error_code, f"reading {tp} at {position}")
    return fetched
