"""Publishes the producer ids of a flow's tasks on its target before their first use, and knows
those of all its mirrors.

Flow: ``Sender.new_producer`` -> ``publish`` -> a record in ``mm2py-producers.internal``,
acknowledged -> data. An id that was found in a log -> ``includes`` -> the topic read to its end,
once per id: an id that is not in it then never will be.
"""

import asyncio
from typing import Final, final

from mm2py.errors import RequestTimedOutError
from mm2py.mirror.producer_ids import MirrorProducer, encode_producer, published_id
from mm2py.protocol.records import Record
from mm2py.storage.table import Table
from mm2py.types import NO_PRODUCER_ID

PUBLISH_S: Final = 10.0
"""Longest wait for one acknowledgement; the caller tries again, with another id."""


@final
class ProducerIdStore:
    """The topic of producer ids, opened at the first publication; the writer is its owner's."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._turn = asyncio.Lock()
        self._open = False
        self._mirrors: set[int] = set()
        self._others: set[int] = set()

    async def publish(self, producer: MirrorProducer) -> None:
        """Write one id; it may be used when this returns. ``Mm2pyError``: the topic cannot be
        created, checked or written now, or the membership was lost."""
        try:
            async with asyncio.timeout(PUBLISH_S):
                await self._opened()
                await self._table.post([encode_producer(producer)])
        except TimeoutError:
            raise RequestTimedOutError(
                f"producer id {producer.producer_id} could not be published in topic"
                f" {self._table.topic} within {PUBLISH_S:g} s",
                remedy="check that the brokers that lead it can be reached, and Write on it is "
                "granted",
            ) from None

    async def includes(self, producer_id: int) -> bool:
        """Return whether an id that was found in a log of the target is a mirror's; ``Mm2pyError``:
        the topic cannot be read now."""
        if producer_id not in self._mirrors and producer_id not in self._others:
            await self._opened()
            await self._table.read_to_end(PUBLISH_S)
            if producer_id not in self._mirrors:
                # For good: an id is published before its first
                # batch, and the read began after that was seen.
                self._others.add(producer_id)
        return producer_id in self._mirrors

    async def _opened(self) -> None:
        # Tasks of a flow start at once: one of them opens the table, the others wait for it.
        async with self._turn:
            if not self._open:
                await self._table.start(self._take)
                self._open = True

    def _take(self, _partition: int, record: Record) -> None:
        producer_id = published_id(record.key)
        if producer_id != NO_PRODUCER_ID:
            self._mirrors.add(producer_id)

    async def close(self) -> None:
        """Close the table; safe twice."""
        self._open = False
        await self._table.stop()
