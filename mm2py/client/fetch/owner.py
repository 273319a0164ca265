"""What the parts of a Fetcher ask of it: one object instead of a callback per event.

Flow: ``FetchNode``, ``Stripes``, ``FetchRoutes`` and ``FetchLosses`` find out about a partition -> ``FetchOwner``,
which is ``Fetcher``.
"""

import asyncio
from collections.abc import Collection, Coroutine
from typing import Protocol

from mm2py.api.context import SourceGap
from mm2py.client.fetch.cursor import Cursor
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import BufferLease
from mm2py.types import TopicPartition


class FetchOwner(Protocol):
    """Decides what follows for a partition; implemented by ``mm2py.client.fetch.fetcher.Fetcher``."""

    def spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run something beside; it ends with the Fetcher."""
        ...

    def room_bytes(self) -> int:
        """Free memory for what is asked for next; not above zero: no Fetch leaves."""
        ...

    def wake(self) -> None:
        """There may be room again: less came than was asked for."""
        ...

    def most_bytes(self) -> int:
        """What one answer may have beside those of other brokers that are asked at the same time."""
        ...

    def fetched(self, cursor: Cursor, part: FetchedPartition, lease: BufferLease) -> None:
        """The answer for one partition came; each batch kept of it takes a reference of ``lease``."""
        ...

    def caught_up(self, cursor: Cursor) -> None:
        """It is not read in stripes any more, but in the session of its broker."""
        ...

    def lost(self, cursors: Collection[Cursor], error: Exception) -> None:
        """Their broker is away, or it refused a look-up of these partitions."""
        ...

    def gap(self, gap: SourceGap) -> None:
        """Records are gone from the source."""
        ...

    def failed(self, tp: TopicPartition, error: Exception) -> None:
        """It ends."""
        ...

    def stalled(self, tp: TopicPartition, error: Exception | None) -> None:
        """It cannot be read now and is tried again; None: it can."""
        ...
