"""Source partitions of one task that are not read now: their target cannot drain, or they are paused.

Flow: backlog after each hand-over, acknowledgements, and the flow's pauses -> ``task.hold`` /
``task.release``. A partition is read again when neither reason is left.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, final

from mm2py.api.task import BatchSourceTask, Outgoing
from mm2py.runtime.tasks.target_sender import TargetSender
from mm2py.types import TopicPartition

__all__ = ["WHOLE_TOPIC", "HeldPartitions"]

WHOLE_TOPIC: Final = -1
"""Partition number for all of a topic in a set of pauses."""


@final
class HeldPartitions:
    """Keeps both reasons apart.

    When the memory was full for a moment, every partition is held that has more than its share: ``buffer.memory``
    / (2 x partitions of the task). What is held then counts no more, and the others have at most half of the
    memory, so that they can go on however many are held.

    Args:
        task: holds and releases what it is asked to.
        sender: knows the backlogs.
        memory_bytes: ``buffer.memory``.
        partitions: how many partitions the task has.
    """

    def __init__(
        self,
        task: BatchSourceTask,
        sender: TargetSender,
        memory_bytes: int,
        partitions: Callable[[], int],
    ) -> None:
        self._task = task
        self._sender = sender
        self._memory_bytes = memory_bytes
        self._partitions = partitions
        # Polling again for a few free KiB would shred the fetches; an eighth keeps both sides busy.
        self._least_bytes = max(1, memory_bytes // 8)
        self.full: dict[TopicPartition, TopicPartition] = {}
        """Source -> target of those whose target cannot drain; always the same object."""
        self._wanted: frozenset[TopicPartition] = frozenset()
        self._all = False
        self._paused: set[TopicPartition] = set()

    @property
    def paused(self) -> Collection[TopicPartition]:
        """Partitions of the task that are paused."""
        return self._paused

    def room_bytes(self) -> int:
        """Return how many bytes may be read now; 0 while there is too little memory for another poll."""
        free = self._memory_bytes - self._sender.buffered_bytes
        if free >= self._least_bytes:
            return free
        if not 0 < len(self.full) < self._partitions():
            return 0
        held = sum(map(self._sender.backlog_bytes, self.full.values()))
        others = self._sender.buffered_bytes - held
        return self._least_bytes if others <= self._memory_bytes // 2 else 0

    def hold_full(self, handed_over: Sequence[Outgoing]) -> None:
        """Hold partitions that were just handed over and whose backlog is too large.

        One partition alone gets a third of the memory: over a WAN five requests in flight hold 5 MB, and as much
        has to wait for their place.
        """
        buffered = self._sender.buffered_bytes
        allowed = max(self._least_bytes, (self._memory_bytes - buffered) // 2)
        if buffered > allowed:
            self._hold_above(allowed, [(source, target) for source, target, _ in handed_over])

    def hold_above_share(self, pairs: Iterable[tuple[TopicPartition, TopicPartition]]) -> None:
        """Hold those of ``pairs`` (source, target) whose target has more than its share: the memory is full."""
        share = self._memory_bytes // (2 * max(1, self._partitions()))
        self._hold_above(share, pairs)

    def hold_stalled(self, source: TopicPartition, target: TopicPartition) -> None:
        """Hold a partition whose target takes nothing for now; its next acknowledgements release it."""
        self._hold_above(0, [(source, target)])

    def drained(self, source: TopicPartition, target: TopicPartition) -> None:
        """Read a partition again when its backlog is small; called after an acknowledgement."""
        if source in self.full:
            free = self._memory_bytes - self._sender.buffered_bytes
            # Before its window runs empty.
            if self._sender.backlog_bytes(target) < max(self._least_bytes // 4, free // 4):
                del self.full[source]
                if source not in self._paused:
                    self._task.release([source])

    def drained_at(self, target: TopicPartition) -> None:
        """As ``drained``, for all source partitions that are held because of a target partition that they share."""
        for source in [it for it, held_by in self.full.items() if held_by == target]:
            self.drained(source, target)

    def given_up(self, source: TopicPartition) -> None:
        """Forget a partition that failed: it is not read any more."""
        self.full.pop(source, None)

    def pause(self, wanted: frozenset[TopicPartition]) -> None:
        """Take the complete set of the flow's pauses; ``look`` acts on it."""
        self._wanted = wanted

    def pause_all(self, *, paused: bool) -> None:
        """Pause every partition, or only those of ``pause``; ``look`` acts on it."""
        self._all = paused

    def look(self, partitions: Collection[TopicPartition]) -> None:
        """Hold and release so that of the task's ``partitions`` exactly the paused ones stand."""
        wanted = self._wanted
        paused = {
            p
            for p in partitions
            if self._all or p in wanted or p._replace(partition=WHOLE_TOPIC) in wanted
        }
        new, over = paused - self._paused, self._paused - paused
        self._paused = paused
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
        self._hold([source for source in new if source not in self._paused])

    def _hold(self, sources: list[TopicPartition]) -> None:
        if sources:
            self._task.hold(sources)
