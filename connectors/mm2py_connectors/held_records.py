"""Records of source partitions whose copy takes nothing now: they wait in a producer of their own,
the others go on.

Flow: ``MirrorSinkTask`` finds that the same records wait for long -> ``hold`` takes them over, and
their partitions are not read -> ``serve`` hands them to the second producer, again and again -> a
partition that waits no more is read on.

Order: what is read of a held partition later goes behind what waits of it (``add``). At least once:
no position of a held partition may be committed. Nothing is read again, so a topic of the source
that is created again meanwhile loses nothing.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, Protocol, final

from mm2py.api.sink import SinkTaskContext
from mm2py.errors import RetriableError
from mm2py.observability.logging import some_of
from mm2py.types import TopicPartition
from mm2py_connectors.record_sender import Idle, SentRecord, within

log = logging.getLogger(__name__)

SERVE_EVERY_S: Final = 5.0
STALL_S: Final = 2.0
STALLS: Final = 3
"""A copy takes nothing when the same records waited for ``STALL_S`` in so many waits in a row."""
MOST_BYTES: Final = 64 << 20
"""No more partitions are held once so much waits; all others then wait with them."""
_CAUSE: Final = "no leader, or too few replicas in sync, as it seems"


class TargetSender(Protocol):
    """What is needed of a ``RecordSender``; see there."""

    @property
    def waiting(self) -> tuple[int, str]: ...
    def send(self, sent: SentRecord, idle: Idle, /) -> None: ...
    def serve(self, idle: Idle, /) -> None: ...
    def flush(self, idle: Idle, /) -> None: ...
    def take_back(self) -> Sequence[tuple[SentRecord, str]]: ...
    def answers(self) -> bool: ...
    def give_up(self, partitions: Collection[tuple[str, int]], /) -> None: ...
    def close(self) -> None: ...


@final
class Stall:
    """Whether the records that a sender has stand still; ``seen`` is called during waits."""

    def __init__(self, context: SinkTaskContext) -> None:
        self._context, self._clock = context, context.clock
        self._count, self._since_s, self._stalls = -1, 0.0, 0

    def seen(self, count: int) -> None:
        # Any acknowledgement is movement, also that of another partition.
        if count != self._count:
            self._count, self._since_s = count, self._clock.monotonic()

    def waited(self) -> bool:
        """A wait has ended without all acknowledgements; return whether that is a standstill."""
        stands = self._clock.monotonic() - self._since_s >= STALL_S
        self._stalls = self._stalls + 1 if stands else 0
        if 0 < self._stalls < STALLS:
            self._context.request_commit()  # which waits again
        return self._stalls >= STALLS

    def over(self) -> None:
        self._count, self._stalls = -1, 0


@final
class HeldRecords:
    """Held partitions of one task, and their records.

    Args:
        sender: makes the second producer.
    """

    def __init__(self, sender: Callable[[], TargetSender], context: SinkTaskContext) -> None:
        self._make, self._context = sender, context
        self._sender: TargetSender | None = None
        self.partitions: set[TopicPartition] = set()
        self._waiting: deque[SentRecord] = deque()
        """Not with the second producer yet."""
        self._bytes = 0
        self._stall = Stall(context)
        self._before = 0
        """So many records waited when it was last known which."""
        self._serve_at_s = 0.0

    @property
    def has_room(self) -> bool:
        return self._bytes < MOST_BYTES

    def hold(self, records: Sequence[tuple[SentRecord, str]]) -> None:
        """Take over what waits; its partitions are not read."""
        causes: dict[TopicPartition, str] = {}
        for sent, cause in records:
            place = TopicPartition(*sent.place[:2])
            causes[place] = causes.get(place) or cause
            self.add(sent)
        for place, cause in causes.items():
            text = f"its copy takes no records, tried again: {cause or _CAUSE}"
            self._context.hold((place,), text)
            log.warning(
                "partition is held, the others are copied partition=%s cause=%s", place, text
            )
        self.partitions |= causes.keys()

    def add(self, sent: SentRecord) -> None:
        """Keep a record of a held partition, behind those that wait."""
        self._waiting.append(sent)
        self._bytes += len(sent.record.value or b"") + len(sent.record.key or b"")

    def serve(self) -> None:
        """Try again, where that is due, and release what waits no more; ``FatalError``: a record
        was refused, and that is not accepted."""
        now = self._context.clock.monotonic()
        # Each try may block for as long as librdkafka's queue is full.
        if not self.partitions or now < self._serve_at_s:
            return
        # Made when first needed: a producer is a thread and a set of connections.
        sender = self._sender = self._sender or self._make()
        idle = within(0, lambda: RetriableError("the target takes no records now"))
        with suppress(RetriableError):
            sender.serve(idle)
            while self._waiting:
                # Taken off only after the hand-over: a time-out in between loses nothing.
                sender.send(self._waiting[0], idle)
                self._waiting.popleft()
                self._before += 1
        self._serve_at_s = self._context.clock.monotonic() + SERVE_EVERY_S
        self._look(sender)

    def _look(self, sender: TargetSender) -> None:
        count, _ = sender.waiting
        # All through: the second producer has done its work.
        if not count and not self._waiting:
            sender.close()
            self._sender, self._bytes, self._before = None, 0, 0
            self._release(self.partitions.copy())
            return
        self._stall.seen(count)
        # Some have gone, others wait still.
        if count < self._before and self._stall.waited() and sender.answers():
            rest = [sent for sent, _ in sender.take_back()]
            # In front, in their order: they were sent before those that still wait.
            self._waiting.extendleft(reversed(rest))
            self._before = 0
            self._stall.over()
            self._release(self.partitions - {TopicPartition(*it.place[:2]) for it in self._waiting})

    def _release(self, partitions: Collection[TopicPartition]) -> None:
        self.partitions.difference_update(partitions)
        self._context.release(partitions)
        if partitions:
            log.info(
                "held partitions are copied again partitions=%s",
                some_of([*map(str, partitions)], 8),
            )

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        gone = self.partitions.intersection(partitions)
        if not gone:
            return
        if self._sender is not None:
            self._sender.give_up(gone)
        self._waiting = deque(it for it in self._waiting if it.place[:2] not in gone)
        self.partitions -= gone
        if not self.partitions:
            self.close()

    def close(self) -> None:
        """End the second producer; what waits is read again."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        self._bytes, self._before = 0, 0
        self._stall.over()
