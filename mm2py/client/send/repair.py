"""Replacements of a batch that the target definitely refused: smaller, recompressed or re-encoded.

Flow: ``Sent`` with its error -> ``repaired`` -> batches of the same records, or the partition's
error. The record count never changes, so later sequence ranges stay valid.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from mm2py.client.send.lane import TOO_LARGE, Sent
from mm2py.errors import OversizedRecordError, PartitionError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.record_batch import Codec, RecordBatch
from mm2py.protocol.splice import recompress, repack, split
from mm2py.types import TopicPartition

REMEDIES: Final = {
    codes.INVALID_TIMESTAMP: "raise message.timestamp.after.max.ms (1 hour by default since "
    "Kafka 4.0) or "
    "message.timestamp.before.max.ms of topic {topic} on the target, or set its "
    "message.timestamp.type to "
    "LogAppendTime",
    codes.INVALID_RECORD: "compare the record with the settings of topic {topic} on the target: "
    "one "
    "with cleanup.policy=compact takes no record without a key",
    codes.UNSUPPORTED_FOR_MESSAGE_FORMAT: "topic {topic} on the target still has a message "
    "format older than "
    "0.11, which knows no idempotent producers: set its message.format.version to 0.11.0 or "
    "newer (or remove "
    "log.message.format.version from its brokers)",
}
"""Remedies for Produce errors; more specific than those of ``error_codes``."""


class Repair(NamedTuple):
    """Batches to send instead; ``limit_bytes`` is the limit for later ones, 0 if the size was not
    the reason."""

    batches: list[RecordBatch]
    limit_bytes: int = 0


async def repaired(
    sent: Sent, target: TopicPartition, limit_of: Callable[[str], Awaitable[int]]
) -> Repair:
    """Return the replacement; ``limit_of`` requests a topic's ``max.message.bytes``.

    Raises:
        PartitionError: a single record is too large, or the broker named the record at fault.
    """
    if sent.code in TOO_LARGE:
        return await _smaller(sent, target, limit_of)
    # zstd needs Kafka 2.1 and Produce 7 (KIP-110); every broker has gzip.
    if sent.code == codes.UNSUPPORTED_COMPRESSION_TYPE:
        return Repair([recompress(sent.batch, Codec.GZIP)])
    # KIP-467 (Kafka 2.4) names the record at fault; before, only the batch is refused.
    if sent.bad_record > 0:
        return Repair(_apart(sent, target))
    if sent.bad_record == 0 or sent.code == codes.INVALID_TIMESTAMP:
        raise refusal(sent, target)
    # Records as older clients wrote them (field widths, header) may be refused by newer checks.
    return Repair([repack(sent.batch)])


async def _smaller(
    sent: Sent, target: TopicPartition, limit_of: Callable[[str], Awaitable[int]]
) -> Repair:
    batch, size = sent.batch, len(sent.batch.data)
    max_bytes = await limit_of(target.topic)
    # Unknown, or the topic's own compression.type makes the
    # batch larger on the broker: halves find the limit.
    limit = max_bytes if 0 < max_bytes < size else size // 2 + 1
    result = split(batch, limit)
    too_large = result.too_large
    if too_large is not None and batch.count > 1:
        # Cut so that the record is alone: those before it
        # are still sent, then it is refused by itself.
        result = split(batch, max(limit, too_large.size_bytes))
    if result.too_large is None and len(result.parts) > 1:
        return Repair(result.parts, limit)
    offset, needed = (batch.base_offset, size) if too_large is None else too_large
    takes = f"{max_bytes} bytes" if max_bytes else "less"
    raise OversizedRecordError(
        f"one record needs a batch of {needed} bytes, the target takes {takes} "
        f"({codes.error_name(sent.code)})",
        topic=sent.source.topic,
        partition=sent.source.partition,
        offset=offset,
        remedy=f"raise max.message.bytes of topic {target.topic} on the target",
        needed_bytes=needed,
        limit_bytes=max_bytes,
    ) from codes.server_error(sent.code, sent.message)


def _apart(sent: Sent, target: TopicPartition) -> list[RecordBatch]:
    """Cut until the record that the broker named is the first of its part: those before it are
    still sent."""
    done: list[RecordBatch] = []
    part, index = sent.batch, sent.bad_record
    behind: list[RecordBatch] = []
    while index:
        halves = _halves(part)
        if len(halves) < 2:
            raise refusal(sent, target)
        while index >= halves[0].count:
            index -= halves[0].count
            done.append(halves.pop(0))
        part, behind = halves[0], [*halves[1:], *behind]
    return [*done, part, *behind]


def _halves(batch: RecordBatch) -> list[RecordBatch]:
    """Cut in two or more parts, for any sizes of records; a single record stays."""
    size = len(batch.data)
    result = split(batch, size // 2 + 1)
    while result.too_large is not None and result.too_large.size_bytes < size:
        result = split(batch, result.too_large.size_bytes)
    return [batch] if result.too_large is not None else result.parts


def refusal(sent: Sent, target: TopicPartition) -> PartitionError:
    """Return the error of a batch that cannot be repaired, with the record at fault."""
    cause = codes.server_error(sent.code, sent.message)
    remedy = REMEDIES.get(sent.code, "").format(topic=target.topic)
    text = f"{target} on the target refused a batch: {cause.message}"
    (topic, partition), offset = sent.source, source_offset(sent.batch, max(sent.bad_record, 0))
    remedy = remedy or cause.remedy or "change the target topic or the record"
    error = (
        OversizedRecordError(
            text,
            topic=topic,
            partition=partition,
            offset=offset,
            remedy=remedy,
            needed_bytes=len(sent.batch.data),
        )
        if sent.code in TOO_LARGE
        else PartitionError(text, topic=topic, partition=partition, offset=offset, remedy=remedy)
    )
    error.__cause__ = cause  # set here since it is not always raised; the ledger records its code
    return error


def source_offset(batch: RecordBatch, index: int) -> int:
    """Return the source offset of the record at ``index`` of a batch."""
    for first, count in batch.runs:
        if index < count:
            return first + index
        index -= count
    return batch.last_offset
