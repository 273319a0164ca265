"""Source offsets of one flow, in Connect's offset topic (``mm2-offsets.<source>.internal``).

Flow: ``set`` -> one batch per partition -> acknowledged; ``get`` -> topic read to its end -> newest value
(``offset_entries.py``). The newest record of a key wins, a tombstone included.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.protocol.records import Record
from mm2py.storage.offset_entries import OffsetMap
from mm2py.storage.table import Table, batched

log = logging.getLogger(__name__)

READ_S: Final = 60.0
"""Longest read to the end of the topic (``default.api.timeout.ms``)."""


@final
class KafkaOffsetBackingStore:
    """The offset topic of one flow (Java's class of the same name).

    Args:
        table: the offset topic.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._offsets = OffsetMap()

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that fails now."""
        self._offsets = OffsetMap()
        await self._table.start(self._take)
        log.info("source offsets ready topic=%s entries=%d", self._table.topic, len(self._offsets))

    async def stop(self) -> None:
        """Stop reading; safe before ``start`` and safe twice."""
        await self._table.stop()

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the newest value of each key; reads the topic to its end first."""
        await self._table.read_to_end(READ_S)
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write values, None as a tombstone; returns when all are acknowledged.

        Cancelled, it takes back what is not written yet.

        Raises:
            RetriableError: the membership was lost meanwhile, nothing of it will be written.
            PartitionError: the topic refused a record for good.
        """
        await asyncio.gather(
            *(self._table.post(batch) for batch in batched(tuple(values.items())) if batch)
        )

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector, tombstones left out; reads to the end first."""
        await self._table.read_to_end(READ_S)
        return self._offsets.of_connector(connector)

    def _take(self, _partition: int, record: Record) -> None:
        if record.key is not None:
            value = None if record.value is None else bytes(record.value)
            self._offsets.put(bytes(record.key), value)
