"""Removes from the offset map what nothing can ask for any more: pages below both logs, maps of deleted topics.

Flow: every ten minutes -> partitions with older pages -> where both logs begin -> ``TaskOffsetMaps.prune`` -> tombstones;
task 0 also looks at the partitions that it does not copy -> ``TaskOffsetMaps.remove``.

Invariants, tests of the same names:

1. A page is removed only when its source offsets lie below the start of the source's log and its target offsets below
   that of the target's, and only by the task that copies the partition; its newest page stays.
2. Pages leave oldest first, so what is left is a whole map at any moment.
3. A map is removed as a whole only when the partition existed on neither cluster at two looks in a row, by task 0.
4. Nothing is removed without the permit, and at most ``MOST_PAGES`` at a time.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final, final

from mm2py.api.task import CopiedLogs
from mm2py.client.connect.admin import NO_LOG
from mm2py.client.permit import Permit
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.runtime.tasks.target_sender import TargetSender
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

LOOK_S: Final = 600.0
MORE_S: Final = 10.0
"""Pause while there is more to remove."""
MOST_PAGES: Final = 2_000
TIMEOUT_S: Final = 60.0


@final
class MapPruning:
    """Prunes the maps of one task.

    Args:
        maps: the task's.
        logs: where the source's logs begin.
        sender: where the target's do.
    """

    def __init__(
        self,
        maps: TaskOffsetMaps,
        logs: CopiedLogs,
        sender: TargetSender,
        *,
        permit: Permit,
        clock: Clock,
    ) -> None:
        self._maps, self._logs, self._sender = maps, logs, sender
        self._permit, self._clock = permit, clock
        self._absent: frozenset[TopicPartition] = frozenset()

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        pause_s = LOOK_S
        while True:
            await self._clock.sleep(pause_s)
            pause_s = LOOK_S
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    removed = await self.look()
            except (Mm2pyError, TimeoutError) as error:
                log.debug("offset map cannot be pruned now cause=%s", error)
                continue
            if removed:
                log.info("expired pages were removed from the offset map pages=%d", removed)
            if removed >= MOST_PAGES:
                pause_s = MORE_S

    async def look(self) -> int:
        """Remove what has expired by now; return how many pages.

        Raises:
            Mm2pyError: not now.
        """
        if not self._permit.valid:
            return 0
        removed = 0
        if older := self._maps.with_older_pages():
            starts = {
                partition: both
                for partition, both in (await self._starts(older)).items()
                if NO_LOG not in both
            }
            if self._permit.valid:
                removed = await self._maps.prune(starts, MOST_PAGES)
        if self._maps.sweeps and removed < MOST_PAGES:
            removed += await self._sweep(MOST_PAGES - removed)
        return removed

    async def _sweep(self, most: int) -> int:
        others = self._maps.of_other_tasks()
        if not others:
            return 0
        starts = await self._starts(others)
        absent = frozenset(it for it, both in starts.items() if both == (NO_LOG, NO_LOG))
        gone, self._absent = absent & self._absent, absent
        if not gone or not self._permit.valid:
            return 0
        return await self._maps.remove(gone, most)

    async def _starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return where the logs of partitions and of their copies begin, of those where both are known."""
        targets = {partition: self._logs.target_of(partition) for partition in partitions}
        sources = await self._logs.log_starts(partitions)
        copies = await self._sender.log_starts(targets.values())
        return {
            partition: (sources[partition], copies[target])
            for partition, target in targets.items()
            if partition in sources and target in copies
        }
