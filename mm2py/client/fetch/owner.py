"""The interface of a Fetcher towards its parts (one object instead of a callback per event), and of
loop suppression.

Flow: ``FetchNode``, ``Stripes``, ``FetchRoutes`` and ``FetchLosses`` handle an event of a partition
-> ``FetchOwner``, which is ``Fetcher``. A batch of an unknown producer id -> ``BatchOrigins.find``
-> fetched again, and copied or dropped.
"""

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Protocol

from mm2py.api.context import SourceGap
from mm2py.client.fetch.cursor import Cursor
from mm2py.protocol.batch_stage import Origins
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import BufferLease, RecordBatch
from mm2py.types import TopicPartition


class FetchOwner(Protocol):
    """Handles the events of partitions; implemented by ``mm2py.client.fetch.fetcher.Fetcher``."""

    def spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run a background task that ends with the Fetcher."""
        ...

    def room_bytes(self) -> int:
        """Return the memory for the next response, at most ``most_bytes``; if not positive, no
        Fetch is sent."""
        ...

    def room_to_ask(self) -> int:
        """As ``room_bytes``, of a broker that would be asked now: without room it is woken when
        there is."""
        ...

    def wake(self) -> None:
        """Check again what may be asked for."""
        ...

    def answered(self, *, short: bool) -> None:
        """Hand out what a response had, and check for room again where there was none.

        Called by the loop, not by a task: who waits for the batches of a ``short`` one, which has
        no receive buffer, continues inside of this call.
        """
        ...

    def most_bytes(self) -> int:
        """Return the limit of one broker's response, given the other brokers that are fetched
        from."""
        ...

    def fetched(self, cursor: Cursor, part: FetchedPartition, lease: BufferLease) -> None:
        """Handle the response for one partition; each batch kept of it takes a reference of
        ``lease``."""
        ...

    def caught_up(self, cursor: Cursor) -> None:
        """Read a partition in the session of its broker again, instead of in stripes."""
        ...

    def lost(self, cursors: Collection[Cursor], error: Exception) -> None:
        """Look up leaders again, after a pause: the broker is unreachable, or refused a lookup of
        these partitions."""
        ...

    def gap(self, gap: SourceGap) -> None:
        """Report records that the source has lost."""
        ...

    def failed(self, tp: TopicPartition, error: Exception) -> None:
        """Report the end of one partition."""
        ...

    def stalled(self, tp: TopicPartition, error: Exception | None) -> None:
        """Report a partition that cannot be read now and is retried; None: it is read again."""
        ...


class BatchOrigins(Protocol):
    """Decides which batches of a cluster are copied, by their producer ids."""

    @property
    def known(self) -> Origins:
        """Ids of known origin; always the same object."""
        ...

    async def find(self, producers: Collection[int]) -> None:
        """Look up the origin of these ids, of batches that were read before the call, and add them
        to ``known``.

        Raises:
            Mm2pyError: the lookup failed; retry.
        """
        ...

    def classified(
        self, tp: TopicPartition, copied: Sequence[RecordBatch], looped: Sequence[memoryview]
    ) -> None:
        """Observe the batches of one response that are copied, and those that are dropped, whole.

        Their bytes are valid only during the call.
        """
        ...
