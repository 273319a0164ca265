"""Keeps the tasks of this worker away from partitions that a backfill copies, and gives them back.

Flow: record of the backfill topic -> ``kept_out`` -> task host -> no task here copies it ->
``notice`` -> the backfill begins; handed over -> the task that has the partition continues at its
stored position.

Invariants, tests of the same names:

1. A task is started only after the topic was read to its end, and never copies what was kept out
   then.
2. A notice is written only after no task of this worker copies what was reserved before it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol, final

from mm2py.client.backoff import Backoff
from mm2py.clock import Clock, cancelled
from mm2py.errors import Mm2pyError
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

FIRST_RETRY_MS: Final = 200
LONGEST_RETRY_MS: Final = 10_000


class Backfills(Protocol):
    """Partitions of the flow that a backfill copies (``mm2py.storage.backfill_store``)."""

    @property
    def reserved(self) -> int:
        """Offset after the newest record that reserves a partition."""
        ...

    def listen(self, changed: Callable[[], None]) -> None: ...
    def kept_out(self) -> Collection[TopicPartition]: ...
    async def notice(self, worker: str, offset: int) -> None: ...


@final
class BackfillWatch:
    """Follows the backfills of one flow on one worker.

    Args:
        backfills: the topic; ``open`` begins to listen, its owner starts and stops it.
        keep_out: lets the tasks of this worker copy none of these; returns when that is so.
        worker: name of this worker in its notices.
    """

    def __init__(
        self,
        backfills: Backfills,
        keep_out: Callable[[frozenset[TopicPartition]], Awaitable[None]],
        worker: str,
        *,
        clock: Clock,
    ) -> None:
        self._backfills, self._keep_out, self._worker = backfills, keep_out, worker
        self._clock = clock
        self._changed = asyncio.Event()
        self._kept_out: frozenset[TopicPartition] = frozenset()
        self._due = self._noticed = 0
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Act on the topic as it is, then on every change; called before tasks are started."""
        # Before the first look: a record that is read in between must not be missed.
        self._backfills.listen(self._changed.set)
        self._noticed = 0
        self._changed.set()
        # Awaited by the opening: invariant 1.
        await self._follow()
        self._running = asyncio.create_task(self._run(), name="backfills")

    async def close(self) -> None:
        """Act on nothing more; safe twice."""
        running, self._running = self._running, None
        await cancelled(running)

    async def _run(self) -> None:
        backoff = Backoff(FIRST_RETRY_MS, LONGEST_RETRY_MS)
        while True:
            try:
                # After ``_follow`` of the turn before: no task copies them any more (2).
                await self._write_notice()
                await self._changed.wait()
                await self._follow()
            except Exception as error:  # without it partitions are neither released nor taken over
                is_known = isinstance(error, Mm2pyError)
                log.warning(
                    "backfill is followed again after a pause cause=%s",
                    error,
                    exc_info=None if is_known else error,
                )
                self._changed.set()
                await self._clock.sleep(backoff.next_s())
            else:
                backoff.reset()

    async def _follow(self) -> None:
        # Before the values are read, and both are read without an await between.
        self._changed.clear()
        reserved, kept_out = self._backfills.reserved, frozenset(self._backfills.kept_out())
        if kept_out != self._kept_out:
            log.info(
                "partitions are left to a backfill partitions=%d returned=%d",
                len(kept_out),
                len(self._kept_out - kept_out),
            )
            await self._keep_out(kept_out)
            self._kept_out = kept_out
        # The offset that was read together with ``kept_out``, not the newest by now: later
        # reservations are not obeyed yet.
        self._due = reserved

    async def _write_notice(self) -> None:
        # With nothing kept out no driver waits for this worker.
        if self._due > self._noticed and self._kept_out:
            await self._backfills.notice(self._worker, self._due)
        self._noticed = self._due
