"""The interface of a Sender towards its parts: one object instead of a callback per event.

Flow: ``ProduceNode``, ``LaneOpening``, ``LaneRecovery``, ``LaneLimits`` and ``Transactions`` handle
an event of a lane -> ``LaneOwner``, which is ``Sender``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Protocol

from mm2py.client.send.lane import SenderLane, Sent
from mm2py.client.send.tail import Recognised
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition

Announce = Callable[[int], Awaitable[None]]
"""Publishes a producer id before its first use; after an ``Mm2pyError`` the id is not used."""


class MirrorIds(Protocol):
    """The producer ids of mirrors that write to the target
    (``mm2py.storage.producer_id_store``)."""

    async def announce(self, producer_id: int) -> None:
        """Publish an id that is about to be used; after an ``Mm2pyError`` it is not used."""
        ...

    async def includes(self, producer_id: int) -> bool:
        """Whether a producer id in a log is a mirror's; ``Mm2pyError`` if that cannot be determined
        now."""
        ...


class LaneOwner(Protocol):
    """Handles the events of lanes; implemented by ``mm2py.client.send.sender.Sender``."""

    async def new_producer(self) -> tuple[int, int]:
        """Return a new producer id and its epoch, announced; ``Mm2pyError``: not now."""
        ...

    async def announce(self, producer_id: int) -> None:
        """Announce an id that is about to be used; raises as ``new_producer``."""
        ...

    async def name_writer(
        self, target: TopicPartition, producer_id: int, first: int, last: int, *, may_be_own: bool
    ) -> None:
        """Report another writer of target offsets, unless it is a mirror; one that ``may_be_own``
        only where mirrors are known."""
        ...

    def allowed(self) -> bool:
        """Whether anything may be sent now."""
        ...

    def spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run a background task that ends with the Sender."""
        ...

    def ready(self, lane: SenderLane) -> None:
        """Send what the lane has to its leader."""
        ...

    def follow(self, lane: SenderLane) -> None:
        """Act on the lane's new state."""
        ...

    def withdraw(self, lane: SenderLane) -> None:
        """Defer what was definitely refused to another transaction."""
        ...

    def answered(
        self,
        lane: SenderLane,
        sent: Sent,
        code: int,
        base_offset: int,
        text: str = "",
        bad_record: int = -1,
    ) -> None:
        """Settle a batch with its response: error code (0 none), base offset, the broker's message
        and the named record."""
        ...

    def throttled(self) -> None:
        """Report for how long brokers take nothing because of a quota: it is long, has changed or
        is over."""
        ...

    def lost(self, lane: SenderLane, sent: Sent, error: Exception) -> None:
        """Settle a batch without a usable response, in most cases because the connection was
        lost."""
        ...

    def delivered(self, lane: SenderLane, delivered: Sequence[Sent]) -> None:
        """Report batches that are in the target's log, oldest first, and release their buffers."""
        ...

    def recognised(
        self, lane: SenderLane, parts: Sequence[Recognised], rest: RecordBatch | None
    ) -> None:
        """Report the records of the first waiting batch that are in the target's log already; keep
        ``rest``."""
        ...

    def stalled(self, lane: SenderLane, error: Exception) -> None:
        """Report that a lane cannot make progress now and is retried."""
        ...

    def failed(self, lane: SenderLane, error: Exception) -> None:
        """End a lane."""
        ...

    def doubted(self, source: TopicPartition, first: int, last: int, error: Exception) -> None:
        """Report source offsets that are sent again although they may be in the log (rule 7)."""
        ...

    def resized(self, by_bytes: int) -> None:
        """Account for a change of the queue's size by cutting."""
        ...
