"""Positions of a connector with an offset topic of its own (``offsets.storage.topic``, KIP-618), as
Java's ``ConnectorOffsetBackingStore``.

Flow: ``get`` -> its own topic, for what that has not the worker's; ``set`` -> its own topic -> a
copy in the worker's, for which nothing waits. Java reads its own topic first: positions that were
stored in the worker's alone would not count for it.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, final

from mm2py.errors import Mm2pyError
from mm2py.runtime.tasks.offset_committer import OffsetStore

log = logging.getLogger(__name__)

LAST_COPY_S: Final = 0.5
"""How long a task's end waits for the copy of its last positions."""


class OwnOffsets(OffsetStore, Protocol):
    """The offset store over a connector's own topic."""

    async def entries(self, connector: str) -> Mapping[bytes, bytes]: ...
    async def close(self) -> None: ...


@final
class OwnTopicOffsets(OffsetStore):
    """Both topics as one store.

    Args:
        own: over the connector's topic; closed here.
        worker: over the worker's.
    """

    def __init__(self, own: OwnOffsets, worker: OffsetStore) -> None:
        self._own, self._worker = own, worker
        self._to_copy: dict[bytes, bytes | None] = {}
        self._copying: asyncio.Task[None] | None = None

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        # ``ConnectorOffsetBackingStore``: the connector's own topic counts, the worker's only for
        # keys that it lacks.
        own, others = await asyncio.gather(self._own.get(keys), self._worker.get(keys))
        return [
            mine if mine is not None else other for mine, other in zip(own, others, strict=True)
        ]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        await self._own.set(values)
        self.copy(values)

    def copy(self, values: Mapping[bytes, bytes | None]) -> None:
        """Write positions of the own topic to the worker's too, best effort and concurrently."""
        self._to_copy |= values
        # One copy at a time, which takes in what came meanwhile: the worker's topic gets the newest
        # of each key.
        if self._copying is None or self._copying.done():
            self._copying = asyncio.create_task(self._copy())

    async def close(self) -> None:
        """Copy what is left, if that is soon done, and close the own store."""
        if self._copying is not None:
            # ``wait`` and no exception: a worker's topic that is unreachable must not hold up or
            # fail the task's end.
            await asyncio.wait({self._copying}, timeout=LAST_COPY_S)
            self._copying.cancel()
            await asyncio.wait({self._copying})
        await self._own.close()

    async def _copy(self) -> None:
        while self._to_copy:
            values, self._to_copy = self._to_copy, {}
            # A failure loses only the copy: Java reads the own topic first.
            try:
                await self._worker.set(values)
            except Mm2pyError as error:
                log.warning("positions are not copied to the worker's offset topic cause=%s", error)
