"""What the stores need of a compacted topic, whether it is Kafka's or in memory.

Flow: ``post`` -> the topic -> read back by everybody -> the handler given at construction.
"""

import asyncio
from typing import Protocol

__all__ = ["RecordLog"]


class RecordLog(Protocol):
    """One compacted topic that is read from its beginning and followed (Java's ``KafkaBasedLog``)."""

    @property
    def topic(self) -> str:
        """Name of the topic, for messages."""
        ...

    async def start(self) -> None:
        """Read to the end, then follow; ``RetriableError`` when that cannot be done now."""
        ...

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        ...

    async def read_to_end(self, timeout_s: float) -> None:
        """Wait until all that is in the topic now was handled; ``RequestTimedOutError``."""
        ...

    def post(self, key: bytes, value: bytes | None) -> "asyncio.Future[int]":
        """Write a record behind those posted before; the result is its offset, once acknowledged.

        Nobody has to wait for the result.
        """
        ...
