"""Source partitions of one task that are not read now: their target cannot drain, or somebody paused them.

Flow: backlog after each hand-over, acknowledgements, and the flow's pauses -> ``task.hold`` /
``task.release``. A partition is read again when neither reason is left.
"""

from collections.abc import Collection, Mapping
from typing import Final, final

from mm2py.api.task import BatchSourceTask
from mm2py.runtime.tasks.target_sender import TargetSender
from mm2py.types import TopicPartition

__all__ = ["HOLD_ABOVE_BYTES", "WHOLE_TOPIC", "HeldPartitions"]

HOLD_ABOVE_BYTES: Final = 4 << 20
"""A target partition with more unacknowledged than this, and than half of the free memory, is not fed any
further. One partition alone gets a third of ``buffer.memory``: over a WAN five requests in flight hold 5 MB,
and as much has to wait for their place. Many that are stuck get less, so that there is room for others."""

RELEASE_BELOW_BYTES: Final = 1 << 20
"""Fed again below this or a quarter of the free memory, before its window runs empty."""

WHOLE_TOPIC: Final = -1
"""Partition number that stands for a topic in a set of pauses."""


@final
class HeldPartitions:
    """Keeps both reasons apart.

    Args:
        task: is told what to hold and to release.
        sender: knows the backlogs.
        memory_bytes: ``buffer.memory``.
    """

    def __init__(self, task: BatchSourceTask, sender: TargetSender, memory_bytes: int) -> None:
        self._task = task
        self._sender = sender
        self._memory_bytes = memory_bytes
        self.full: dict[TopicPartition, TopicPartition] = {}
        """Source -> target of those whose target cannot drain; always the same object."""
        self._wanted: frozenset[TopicPartition] = frozenset()
        self._all = False
        self._paused: set[TopicPartition] = set()

    @property
    def paused(self) -> Collection[TopicPartition]:
        """Partitions of the task that somebody paused."""
        return self._paused

    def hold_full(self, targets: Mapping[TopicPartition, TopicPartition]) -> None:
        """Hold those of ``targets`` (by source) whose backlog is too large."""
        backlog, full = self._sender.backlog_bytes, self.full
        above = max(HOLD_ABOVE_BYTES, self._free_bytes() // 2)
        new = [s for s, target in targets.items() if s not in full and backlog(target) > above]
        if new:
            full.update((source, targets[source]) for source in new)
            self._hold([source for source in new if source not in self._paused])

    def drained(self, source: TopicPartition, target: TopicPartition) -> None:
        """Read a partition again when its backlog is small; called after an acknowledgement."""
        if source in self.full:
            below = max(RELEASE_BELOW_BYTES, self._free_bytes() // 4)
            if self._sender.backlog_bytes(target) < below:
                del self.full[source]
                if source not in self._paused:
                    self._task.release([source])

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

    def _hold(self, sources: list[TopicPartition]) -> None:
        if sources:
            self._task.hold(sources)

    def _free_bytes(self) -> int:
        return self._memory_bytes - self._sender.buffered_bytes
