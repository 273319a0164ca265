"""Batches that no producer of ours or Java's makes: written as they are, or damaged where they lie on the disk."""

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mm2py.clock import SYSTEM_CLOCK
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.produce import PRODUCE_KEY, decode_produce, encode_produce
from mm2py.protocol.record_batch import HEADER, HEADER_BYTES
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition
from tests.integration.clients import connected
from tests.kit.kafka.region import KafkaAddress, Region

OLDEST: Final = 9
NEWEST: Final = 12
"""The last version that names topics."""
_PREFIX: Final = struct.Struct(">qi")  # base offset, and the length of what follows


def plain_batch(values: Sequence[bytes]) -> bytearray:
    """Return an uncompressed batch of small records."""
    now = SYSTEM_CLOCK.now_ms()
    return encode_batch([NewRecord(None, value, (), now) for value in values])


def odd_batch(values: Sequence[bytes]) -> bytearray:
    """Return one whose records all have the offset delta 0, which a broker takes and we cannot join."""
    data = plain_batch(values)
    position = HEADER_BYTES
    for _ in values:
        assert data[position] < 0x80, "small records have a size of one byte"
        size = data[position] >> 1
        # Size, attributes, timestamp delta, offset delta: one byte each.
        data[position + 3] = 0
        position += 1 + size
    return data


def write_raw(region: KafkaAddress, tp: TopicPartition, batches: Sequence[bytearray]) -> None:
    """Write each batch with a request of its own and wait for its acknowledgement."""

    async def write() -> None:
        async with connected(region) as cluster:
            leader = await cluster.leader(tp)
            connection = await cluster.connection(leader.node_id, "produce")
            version = connection.negotiated(PRODUCE_KEY, OLDEST, NEWEST, "Produce")
            for data in batches:
                sign(data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
                number = connection.next_correlation_id()
                answer = await connection.exchange(
                    encode_produce(version, number, "raw", {(tp.topic, tp.partition): data}),
                    number,
                    lambda body, _lease: decode_produce(version, body),
                )
                (result,) = answer.partitions
                assert result.error_code == 0, result

    asyncio.run(write())


def damage(region: Region, tp: TopicPartition, offset: int) -> tuple[int, int]:
    """Change a byte of the batch that holds ``offset``, in the broker's log; return its first and last offset."""
    log: Path = region.node(1).data_dir / f"{tp.topic}-{tp.partition}" / f"{0:020}.log"
    with log.open("r+b") as file:
        position = 0
        while head := file.read(HEADER_BYTES):
            header = HEADER.unpack(head)
            first, length, last = header[0], header[1], header[0] + header[6]
            if first <= offset <= last:
                file.seek(-1 + position + _PREFIX.size + length)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 0x01]))
                return first, last
            position += _PREFIX.size + length
            file.seek(position)
    raise AssertionError(f"offset {offset} is not in {log}")
