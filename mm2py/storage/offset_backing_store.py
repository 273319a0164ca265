"""Source offsets of one flow, in Connect's offset topic (``mm2-offsets.<source>.internal``).

Flow: ``set`` -> one batch per partition (murmur2 of the key) -> acknowledged; ``get`` -> topic read to
its end -> newest value (``offset_entries.py``). The newest record of a key wins, a tombstone included.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, final

from mm2py.errors import RetriableError
from mm2py.protocol.records import NewRecord, Record
from mm2py.storage.offset_entries import OffsetMap
from mm2py.types import TopicPartition

__all__ = [
    "KafkaOffsetBackingStore",
    "LogEnd",
    "OffsetMap",
    "OffsetWriter",
    "RecordSink",
    "murmur2",
    "partition_of",
]

log = logging.getLogger(__name__)


class LogEnd(Protocol):
    """What the store needs of ``mm2py.client.log_reader.LogReader``."""

    async def read_to_end(self, handle: Callable[[int, Record], None]) -> None:
        """Hand every record that is new since the last call to ``handle(partition, record)``."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class RecordSink(Protocol):
    """What the store needs of ``mm2py.client.record_writer.RecordWriter``."""

    async def start(self) -> None:
        """Get a producer id."""
        ...

    async def write(self, tp: TopicPartition, records: Sequence[NewRecord]) -> int:
        """Write one batch and wait for its acknowledgement."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class OffsetWriter(RecordSink, Protocol):
    """A sink of positions, which must not write while the flow's membership is in doubt."""

    def suspend(self) -> None:
        """Send nothing from now on."""
        ...

    def resume(self) -> None:
        """Send again."""
        ...


@final
class KafkaOffsetBackingStore:
    """The offset topic of one flow (Java's class of the same name).

    Args:
        topic: name of the topic.
        prepare: makes sure that it exists, compacted, and returns its number of partitions.
        writer: makes the producer.
        reader: makes the reader.
    """

    def __init__(
        self,
        topic: str,
        *,
        prepare: Callable[[], Awaitable[int]],
        writer: Callable[[], OffsetWriter],
        reader: Callable[[], LogEnd],
    ) -> None:
        self._topic = topic
        self._prepare = prepare
        self._open_writer = writer
        self._open_reader = reader
        self._partitions = 0
        self._writer: OffsetWriter | None = None
        self._suspended = False
        self._reader: LogEnd | None = None
        self._offsets = OffsetMap()
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        """Open the producer and read the topic to its end; ``RetriableError`` when that fails now."""
        await self.stop()
        self._partitions = await self._prepare()
        self._offsets = OffsetMap()
        self._suspended = False
        self._writer, self._reader = self._open_writer(), self._open_reader()
        await self._writer.start()
        await self._read()
        log.info("source offsets read topic=%s entries=%d", self._topic, len(self._offsets))

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        writer, reader, self._writer, self._reader = self._writer, self._reader, None, None
        if writer is not None:
            await writer.close()
        if reader is not None:
            await reader.close()

    def suspend(self) -> None:
        """Write nothing from now on: what is under way waits, ``set`` refuses."""
        self._suspended = True
        if self._writer is not None:
            self._writer.suspend()

    def resume(self) -> None:
        """Write again, what waited first."""
        self._suspended = False
        if self._writer is not None:
            self._writer.resume()

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key; reads the topic to its end first."""
        await self._read()
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values, None as a tombstone; returns when all are acknowledged.

        Raises:
            RetriableError: nothing may be written now.
        """
        if self._writer is None:
            raise RuntimeError("the offset store is not started")
        if self._suspended:
            raise RetriableError(
                f"positions are not written to {self._topic} while the membership is in doubt"
            )
        writer = self._writer
        by_partition: dict[int, list[NewRecord]] = {}
        for key, value in values.items():
            record = NewRecord(key, value, (), -1)
            by_partition.setdefault(partition_of(key, self._partitions), []).append(record)
        await asyncio.gather(
            *(
                writer.write(TopicPartition(self._topic, partition), records)
                for partition, records in by_partition.items()
            )
        )

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector, tombstones left out; reads to the end first."""
        await self._read()
        return self._offsets.of_connector(connector)

    async def _read(self) -> None:
        if self._reader is None:
            raise RuntimeError("the offset store is not started")
        async with self._reading:
            await self._reader.read_to_end(self._take)

    def _take(self, partition: int, record: Record) -> None:
        if record.key is not None:
            self._offsets.put(
                bytes(record.key), None if record.value is None else bytes(record.value)
            )


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner chooses for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Hash as Java's ``Utils.murmur2``, as an unsigned 32-bit number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    length = len(data)
    value = (0x9747B28C ^ length) & mask
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little")
        k = k * multiplier & mask
        k ^= k >> 24
        k = k * multiplier & mask
        value = (value * multiplier & mask) ^ k
    if tail := data[whole:]:
        value ^= int.from_bytes(tail, "little")
        value = value * multiplier & mask
    value ^= value >> 13
    value = value * multiplier & mask
    return value ^ (value >> 15)
