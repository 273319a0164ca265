"""Reads the tail of a target partition to find out which batches of ours are in it (sender rules 5-7).

Flow: log end (OffsetForLeaderEpoch) -> Fetch from our last known record until the high watermark has
reached that end -> batch headers -> ours. It decodes headers only.
"""

from typing import Final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.partition_fetch import fetch_partition
from mm2py.protocol import error_codes as codes
from mm2py.protocol import messages
from mm2py.protocol.log_offsets import EpochQuery, OffsetQuery
from mm2py.protocol.record_batch import HEADER, HEADER_BYTES, Bytes
from mm2py.types import EARLIEST, TopicPartition

__all__ = ["batches_of_producer"]

FETCH_BYTES: Final = 4 * 1024 * 1024


async def batches_of_producer(
    cluster: Cluster, tp: TopicPartition, producer_id: int, epoch: int, from_offset: int
) -> dict[int, int]:
    """Return base sequence -> base offset of every batch of (``producer_id``, ``epoch``) in the log.

    Reads from ``from_offset`` (the log end before our first batch, or the offset behind our last
    acknowledged one; from the log start where that is -1, or not in the log any more) to the log end as of the
    call, which is found by OffsetForLeaderEpoch because ListOffsets and Fetch stop at a lagging high watermark.

    Raises:
        RetriableError: the leader is away or changed; ask again.
        FatalServerError: the partition may not be read.
    """
    leader = await cluster.leader(tp)
    query = EpochQuery(tp.topic, tp.partition, leader.epoch, leader.epoch)
    (end,) = await cluster.call_leader(tp, messages.offset_for_leader_epoch([query]))
    if end.error_code or end.end_offset < 0:
        # An unknown epoch answers -1 without an error (real-broker.md 7): as good as a moved leader.
        cluster.leader_moved(tp)
        raise codes.server_error(end.error_code or codes.FENCED_LEADER_EPOCH, f"log end of {tp}")
    found: dict[int, int] = {}
    position = from_offset
    start = await _log_start(cluster, tp, leader.epoch)
    if not start <= position <= end.end_offset:
        position = start
    while position < end.end_offset:
        fetched = await fetch_partition(cluster, tp, position, max_bytes=FETCH_BYTES)
        position = max(position, fetched.log_start_offset)
        position = _note_ours(fetched.records, position, (producer_id, epoch), found)
    return found


async def _log_start(cluster: Cluster, tp: TopicPartition, leader_epoch: int) -> int:
    query = OffsetQuery(tp.topic, tp.partition, EARLIEST, leader_epoch)
    (start,) = await cluster.call_leader(tp, messages.list_offsets([query]))
    if start.error_code:
        cluster.leader_moved(tp)
        raise codes.server_error(start.error_code, f"log start of {tp}")
    return start.offset


def _note_ours(
    record_set: Bytes | None, position: int, producer: tuple[int, int], found: dict[int, int]
) -> int:
    """Add the batches of ``producer`` to ``found``; return the offset behind the last whole batch."""
    at, end = 0, 0 if record_set is None else len(record_set)
    while record_set is not None and end - at >= HEADER_BYTES:
        fields = HEADER.unpack_from(record_set, at)
        base_offset, length, last_delta = fields[0], fields[1] + 12, fields[6]
        if end - at < length:
            break
        if fields[9:11] == producer:
            found[fields[11]] = base_offset
        position = base_offset + last_delta + 1
        at += length
    return position
