"""What to send instead of a batch that the target definitely refused: smaller, recompressed or packed anew.

Flow: ``Sent`` with its refusal -> ``repaired`` -> batches of the same records, or the partition's error.
The record count never changes, so the sequence ranges behind stay as they are.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mm2py.client.sender_lane import TOO_LARGE, Sent
from mm2py.errors import PartitionError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.record_batch import Codec, RecordBatch
from mm2py.protocol.splice import recompress, repack, split
from mm2py.types import TopicPartition

__all__ = ["Repair", "refusal", "repaired", "source_offset"]


class Repair(NamedTuple):
    """Batches to send instead; ``limit_bytes`` is the target's limit where it said so, else 0."""

    batches: list[RecordBatch]
    limit_bytes: int = 0


async def repaired(
    sent: Sent, target: TopicPartition, limit_of: Callable[[str], Awaitable[int]]
) -> Repair:
    """Return what to send instead; ``limit_of`` asks for a topic's ``max.message.bytes``.

    Raises:
        PartitionError: a single record is too large, or the refusal named the record at fault.
    """
    if sent.code in TOO_LARGE:
        return await _smaller(sent, target, limit_of)
    if sent.code == codes.UNSUPPORTED_COMPRESSION_TYPE:
        return Repair([recompress(sent.batch, Codec.GZIP)])
    if sent.bad_record >= 0:
        raise refusal(sent, target)
    return Repair([repack(sent.batch)])


async def _smaller(
    sent: Sent, target: TopicPartition, limit_of: Callable[[str], Awaitable[int]]
) -> Repair:
    batch, size = sent.batch, len(sent.batch.data)
    told = await limit_of(target.topic)
    # Unknown, or the target's own codec makes the batch larger than it came: halves find the limit.
    limit = told if 0 < told < size else size // 2 + 1
    result = split(batch, limit)
    too_large = result.too_large
    if too_large is not None and batch.count > 1:
        # Cut so that the record stands alone: those before it still go, then it is refused by itself.
        result = split(batch, max(limit, too_large.size_bytes))
    if result.too_large is None and len(result.parts) > 1:
        return Repair(result.parts, told if told < size else 0)
    offset, needed = (batch.base_offset, size) if too_large is None else too_large
    takes = f"{told} bytes" if told else "less"
    raise PartitionError(
        f"one record needs a batch of {needed} bytes, the target takes {takes} "
        f"({codes.error_name(sent.code)})",
        topic=sent.source.topic,
        partition=sent.source.partition,
        offset=offset,
        remedy=f"raise max.message.bytes of topic {target.topic} on the target, then restart",
    ) from codes.server_error(sent.code, sent.message)


def refusal(sent: Sent, target: TopicPartition) -> PartitionError:
    """Return the error of a batch that nothing can make acceptable, with the record at fault."""
    said = codes.server_error(sent.code, sent.message)
    error = PartitionError(
        f"{target} on the target refused a batch: {said.message}",
        topic=sent.source.topic,
        partition=sent.source.partition,
        offset=source_offset(sent.batch, max(sent.bad_record, 0)),
        remedy=said.remedy or "change the target topic or the record, then restart the flow",
    )
    error.__cause__ = (
        said  # returned, not always raised; the ledger tells refusals apart by their code
    )
    return error


def source_offset(batch: RecordBatch, index: int) -> int:
    """Return the source offset of the record at ``index`` of a batch."""
    for first, count in batch.runs:
        if index < count:
            return first + index
        index -= count
    return batch.last_offset
