"""What the parts of a Sender ask of it: one object instead of a callback per event.

Flow: ``ProduceNode``, ``LaneOpening``, ``LaneRecovery`` and ``LaneLimits`` find out about a lane -> ``LaneOwner``,
which is ``Sender``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Protocol

from mm2py.client.send.lane import SenderLane, Sent
from mm2py.client.send.tail import Recognised
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition

Announce = Callable[[int], Awaitable[None]]
"""Makes a producer id known; ``Mm2pyError``: it cannot now, and the id is not used."""


class MirrorIds(Protocol):
    """The producer ids of mirrors that write to the target (``mm2py.storage.producer_id_store``)."""

    async def announce(self, producer_id: int) -> None:
        """Make an id known that is about to be used; ``Mm2pyError``: it cannot now, and is not used."""
        ...

    async def includes(self, producer_id: int) -> bool:
        """Return whether an id that was found in a log is a mirror's; ``Mm2pyError``: not known now."""
        ...


class LaneOwner(Protocol):
    """Decides what follows for a lane; implemented by ``mm2py.client.send.sender.Sender``."""

    async def new_producer(self) -> tuple[int, int]:
        """Return a new producer id and its epoch, announced; ``Mm2pyError``: not now."""
        ...

    async def announce(self, producer_id: int) -> None:
        """Announce an id that is about to be used; raises as ``new_producer``."""
        ...

    async def name_writer(
        self, target: TopicPartition, producer_id: int, first: int, last: int
    ) -> None:
        """Report who wrote these target offsets, unless it is a mirror."""
        ...

    def allowed(self) -> bool:
        """Whether anything may leave now."""
        ...

    def spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run something beside; it ends with the Sender."""
        ...

    def ready(self, lane: SenderLane) -> None:
        """It has something to send, to the broker that ``lane.leader`` names."""
        ...

    def follow(self, lane: SenderLane) -> None:
        """Its state changed."""
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
        """A batch was answered: error code (0 none), base offset, the broker's words and the record it named."""
        ...

    def lost(self, lane: SenderLane, sent: Sent, error: Exception) -> None:
        """There is no answer for a batch that could be used: mostly, the connection went away before it."""
        ...

    def delivered(self, lane: SenderLane, delivered: Sequence[Sent]) -> None:
        """These are in the target's log, oldest first."""
        ...

    def recognised(
        self, lane: SenderLane, parts: Sequence[Recognised], rest: RecordBatch | None
    ) -> None:
        """Of its first waiting batch these records are in the target's log already, and ``rest`` is not."""
        ...

    def stalled(self, lane: SenderLane, error: Exception) -> None:
        """It cannot move now, and is tried again."""
        ...

    def failed(self, lane: SenderLane, error: Exception) -> None:
        """It ends."""
        ...

    def doubted(self, source: TopicPartition, first: int, last: int, error: Exception) -> None:
        """Source offsets are sent again although they may be in the log (rule 7)."""
        ...

    def resized(self, by_bytes: int) -> None:
        """Cutting what waits changed its size."""
        ...
