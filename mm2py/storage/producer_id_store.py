"""Publishes the producer ids of a flow's tasks on its target, before their first use.

Flow: ``Sender.new_producer`` -> ``publish`` -> a record in ``mm2py-producers.internal``, acknowledged -> data.
"""

import asyncio
from typing import Final, final

from mm2py.errors import RequestTimedOutError
from mm2py.mirror.producer_ids import MirrorProducer, encode_producer
from mm2py.protocol.records import Record
from mm2py.storage.table import Table

__all__ = ["ProducerIdStore"]

PUBLISH_S: Final = 10.0
"""Longest wait for one acknowledgement; the caller tries again, with another id."""


@final
class ProducerIdStore:
    """The topic of producer ids, opened at the first publication; its owner closes the table's writer."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._turn = asyncio.Lock()
        self._open = False

    async def publish(self, producer: MirrorProducer) -> None:
        """Write one id; it may be used when this returns.

        Raises:
            Mm2pyError: the topic cannot be created, checked or written now, or the membership was lost.
        """
        try:
            async with asyncio.timeout(PUBLISH_S):
                async with self._turn:
                    if not self._open:
                        await self._table.start(_ignore)
                        self._open = True
                await self._table.post([encode_producer(producer)])
        except TimeoutError:
            raise RequestTimedOutError(
                f"producer id {producer.producer_id} could not be published in topic"
                f" {self._table.topic} within {PUBLISH_S:g} s",
                remedy="check that the brokers that lead it can be reached, and Write on it is granted",
            ) from None

    async def close(self) -> None:
        """Close the table; safe twice."""
        self._open = False
        await self._table.stop()


def _ignore(_partition: int, _record: Record) -> None:
    """Who reads the ids reads them on the cluster that it copies from."""
