"""Where the records of one task landed lately, so that a target that loses them again is noticed.

Flow: acknowledged runs, in order -> ``add`` -> the source offsets whose copies are gone. An unclean election on
the target, or a target topic that was deleted and created again, shows only in that its offsets go back.
"""

from collections import deque
from typing import Final, NamedTuple, final

from mm2py.api.task import Run
from mm2py.types import TopicPartition

__all__ = ["TargetHistory", "TargetLoss"]

KEPT_RUNS: Final = 64
"""Runs of equal shift per partition; most partitions have one for the life of their task."""


class TargetLoss(NamedTuple):
    """What a target partition had acknowledged and lost; the source offsets are as far as they are known."""

    first_source: int
    last_source: int
    first_target: int
    last_target: int


@final
class TargetHistory:
    """Keeps the last runs of each source partition."""

    def __init__(self) -> None:
        self._runs: dict[TopicPartition, deque[Run]] = {}

    def add(self, partition: TopicPartition, run: Run) -> TargetLoss | None:
        """Note a run that was acknowledged; return what the target lost before it took this one."""
        runs = self._runs.get(partition)
        if runs is None:
            runs = self._runs[partition] = deque(maxlen=KEPT_RUNS)
        if run.target_offset < 0:
            return None  # the broker does not say where
        if not runs:
            runs.append(run)
            return None
        source, records, target = runs[-1]
        end = target + records
        if run.target_offset > end:
            runs.append(run)
        elif run.target_offset < end:
            loss = _lost(runs, run.target_offset, end)
            runs.append(run)
            return loss
        elif run.source_offset == source + records:
            runs[-1] = Run(source, records + run.records, target)
        else:
            runs.append(run)
        return None


def _lost(runs: deque[Run], from_target: int, end: int) -> TargetLoss:
    """Cut ``runs`` at a target offset; return what was behind it."""
    first, last = -1, -1
    while runs and runs[-1].target_offset + runs[-1].records > from_target:
        source, records, target = runs.pop()
        kept = max(0, from_target - target)
        first = source + kept
        last = max(last, source + records - 1)
        if kept:
            runs.append(Run(source, kept, target))
    return TargetLoss(first, last, from_target, end - 1)
