"""Source partitions of one task that are not read now: their target does not accept records, or
they are paused.

Flow: backlog after each hand-over, acknowledgements, and the flow's pauses -> ``task.hold`` /
``task.release``. A partition is read again when neither reason is left.

Invariants (the model is in tests/unit/runtime/test_worker_task.py):

1. Nothing is read without room in ``buffer.memory``, for any number of held partitions.
2. No partition blocks the others for ever: while the memory is full, partitions whose target
   accepts nothing return the batches that are certainly not in its log, and read them again later,
   each time after a longer pause. Only a task that ``ReadsAgain`` does, one with transforms where
   nothing of them has left.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, final

from mm2py.api.task import BatchSourceTask, Outgoing, ReadsAgain
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.runtime.tasks.target_sender import TaskSender
from mm2py.types import TopicPartition

WHOLE_TOPIC: Final = -1
"""Partition number for all of a topic in a set of pauses."""

STUCK_S: Final = 5.0
"""A target partition that accepted nothing for this long may be stuck for hours; a slow one accepts
something."""

LONGEST_REST_S: Final = 20.0
"""Longest pause before a partition that returned its batches is read again."""


@final
class HeldPartitions:
    """Tracks both reasons separately.

    While the memory is full, every partition that uses more than its share is held:
    ``buffer.memory`` / (2 x partitions of the task). Batches of a task that cannot read them again
    (``ReadsAgain``) stay in the Sender.

    Args:
        task: holds and releases what it is asked to.
        sender: knows the backlogs.
        memory_bytes: ``buffer.memory``.
        partitions: how many partitions the task has.
    """

    def __init__(
        self,
        task: BatchSourceTask,
        sender: TaskSender,
        memory_bytes: int,
        partitions: Callable[[], int],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._task = task
        self._sender = sender
        self._memory_bytes = memory_bytes
        self._partitions = partitions
        self._clock = clock
        # Polling again for a few free KiB would shred the fetches; an eighth keeps both sides busy.
        self._least_bytes = max(1, memory_bytes // 8)
        self.full: dict[TopicPartition, TopicPartition] = {}
        """Source -> target of partitions whose target does not drain; always the same object, which
        the hot path keeps."""
        self._moved_at: dict[TopicPartition, float] = {}
        """For those in ``full``: when the target last accepted something, or when they were
        held."""
        self.resting: dict[TopicPartition, float] = {}
        """For those in ``full`` that have returned all batches: until when they rest."""
        self._rest_s: dict[TopicPartition, float] = {}
        self._wanted: frozenset[TopicPartition] = frozenset()
        self._all = False
        self._paused: set[TopicPartition] = set()

    @property
    def paused(self) -> Collection[TopicPartition]:
        return self._paused

    def room_bytes(self) -> int:
        """Return how many bytes may be read now; 0 while there is too little memory for another
        poll."""
        free = self._memory_bytes - self._sender.buffered_bytes
        # Two eighths, so that one poll fills an eighth and leaves one for what is in flight.
        return free if free >= 2 * self._least_bytes else 0

    def hold_full(self, handed_over: Sequence[Outgoing]) -> None:
        """Hold partitions that were just handed over and whose backlog is too large.

        One partition alone gets a third of the memory: over a WAN five requests in flight hold 5
        MB, and as much has to wait for their place.
        """
        buffered = self._sender.buffered_bytes
        allowed = max(self._least_bytes, (self._memory_bytes - buffered) // 2)
        if buffered > allowed:
            self._hold_above(allowed, [(source, target) for source, target, _ in handed_over])

    def hold_above_share(self, pairs: Iterable[tuple[TopicPartition, TopicPartition]]) -> None:
        """The memory is full, by the Sender's count or the task's: hold those of ``pairs`` (source,
        target) with more than their share; the stuck ones give back."""
        share = self._memory_bytes // (2 * max(1, self._partitions()))
        self._hold_above(share, pairs)
        stuck_since = self._clock.monotonic() - STUCK_S
        if isinstance(self._task, ReadsAgain):
            for source, target in self.full.items():
                # A slow target still accepts something now and then; giving back would only make it
                # read twice.
                if self._moved_at[source] <= stuck_since:
                    self._give_back(self._task, source, target)

    def read_rested(self) -> None:
        """Read those again that gave back what they had, once their pause is over."""
        if not self.resting:
            return
        now = self._clock.monotonic()
        over = [source for source, until in self.resting.items() if until <= now]
        # Forgotten before ``release``: the task may return batches for it at once.
        for source in over:
            self.forget(source)
        self._task.release([source for source in over if source not in self._paused])

    def hold_stalled(self, source: TopicPartition, target: TopicPartition) -> None:
        """Hold a partition whose target takes nothing for now; its next acknowledgements release
        it."""
        self._hold_above(0, [(source, target)])
        if source in self.full:
            # The Sender has said that the target refuses: no need to wait STUCK_S to see it.
            self._moved_at[source] = -math.inf

    def drained(self, source: TopicPartition, target: TopicPartition) -> None:
        """Read a partition again when its backlog is small; called after an acknowledgement."""
        if source in self.full:
            self._moved_at[source] = self._clock.monotonic()
            # It accepts again: the next rest is short again.
            self._rest_s.pop(source, None)
            free = self._memory_bytes - self._sender.buffered_bytes
            # Before its window runs empty.
            if self._sender.backlog_bytes(target) < max(self._least_bytes // 4, free // 4):
                self.forget(source)
                if source not in self._paused:
                    self._task.release([source])

    def drained_at(self, target: TopicPartition) -> None:
        """As ``drained``, for all source partitions that are held because of a target partition
        that they share."""
        for source in [it for it, held_by in self.full.items() if held_by == target]:
            self.drained(source, target)

    def forget(self, source: TopicPartition) -> None:
        """Stop holding a partition for its target: that drains again, or the partition failed and
        is not read any more."""
        for by_source in (self.full, self._moved_at, self.resting):
            by_source.pop(source, None)

    def pause(self, paused: frozenset[TopicPartition]) -> None:
        """Take the complete set of the flow's pauses; ``look`` acts on it."""
        self._wanted = paused

    def pause_all(self, *, paused: bool) -> None:
        """Pause every partition, or only those of ``pause``; ``look`` acts on it."""
        self._all = paused

    def look(self, partitions: Collection[TopicPartition]) -> None:
        """Hold and release so that of the task's ``partitions`` exactly the paused ones are not
        read."""
        wanted = self._wanted
        paused = {
            p
            for p in partitions
            if self._all or p in wanted or p._replace(partition=WHOLE_TOPIC) in wanted
        }
        new, over = paused - self._paused, self._paused - paused
        self._paused = paused
        # Those that are full are held already, for the other reason.
        self._hold([source for source in new if source not in self.full])
        freed = [source for source in over if source not in self.full]
        if freed:
            self._task.release(freed)

    def _hold_above(
        self, allowed_bytes: int, pairs: Iterable[tuple[TopicPartition, TopicPartition]]
    ) -> None:
        backlog, full = self._sender.backlog_bytes, self.full
        new = {
            s: target for s, target in pairs if s not in full and backlog(target) > allowed_bytes
        }
        full.update(new)
        self._moved_at.update(dict.fromkeys(new, self._clock.monotonic()))
        # Both reasons lead to one call: a plug-in must not get a second hold.
        self._hold([source for source in new if source not in self._paused])

    def _give_back(self, task: ReadsAgain, source: TopicPartition, target: TopicPartition) -> None:
        returned = self._sender.returnable(target)
        # The task first: only if it can go back to that offset may the Sender drop the batches.
        if returned is None or not task.read_again(source, *returned):
            return
        self._sender.give_back(target)
        if not self._sender.backlog_bytes(target):  # else an acknowledgement is awaited
            rest_s = self._rest_s[source] = min(2 * self._rest_s.get(source, 0.5), LONGEST_REST_S)
            self.resting[source] = self._clock.monotonic() + rest_s

    def _hold(self, sources: list[TopicPartition]) -> None:
        if sources:
            self._task.hold(sources)
