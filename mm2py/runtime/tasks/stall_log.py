"""Says that a target refuses partitions for now: one line per cause, however many partitions.

Flow: ``stalled`` / ``moving`` per partition -> collected for half a second -> one line per cause. A broken
connection stalls every partition of a task at once; a thousand equal lines would hide the cause.
"""

import asyncio
import logging
from typing import Final, final

from mm2py.types import TopicPartition

__all__ = ["StallLog"]

log = logging.getLogger(__name__)

COLLECT_S: Final = 0.5
EXAMPLES: Final = 3


@final
class StallLog:
    """Collects stalls of one task; needs a running event loop."""

    def __init__(self) -> None:
        self._stalled: dict[str, list[TopicPartition]] = {}
        self._moving: list[TopicPartition] = []
        self._told: set[TopicPartition] = set()
        self._timer: asyncio.TimerHandle | None = None

    def stalled(self, target: TopicPartition, error: Exception) -> None:
        """The target refuses a partition for now; it is retried without end."""
        self._stalled.setdefault(str(error), []).append(target)
        self._later()

    def moving(self, target: TopicPartition) -> None:
        """It takes the partition again."""
        for partitions in self._stalled.values():
            if target in partitions:
                # Over before anybody was told: a leader that moved, an epoch that was new.
                partitions.remove(target)
                return
        if target in self._told:
            self._moving.append(target)
            self._later()

    def close(self) -> None:
        """Say what is left to say."""
        if self._timer is not None:
            self._timer.cancel()
            self._tell()

    def _later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COLLECT_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        stalled, self._stalled = self._stalled, {}
        moving, self._moving = self._moving, []
        for cause, partitions in stalled.items():
            if partitions:
                self._told.update(partitions)
                log.warning(
                    "target refuses partitions, retrying without end partitions=%d (%s) cause=%s",
                    len(partitions),
                    _examples(partitions),
                    cause,
                )
        if moving:
            self._told.difference_update(moving)
            log.info(
                "target takes partitions again partitions=%d (%s)", len(moving), _examples(moving)
            )


def _examples(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:EXAMPLES]))
    return f"{shown}, ..." if len(partitions) > EXAMPLES else shown
