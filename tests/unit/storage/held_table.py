"""A ``Table`` whose posts the test answers."""

import asyncio
from collections.abc import Sequence

from mm2py.storage.table import Entry, Handler


class HeldTable:
    """Nothing comes back by itself; a start fails while there are ``start_errors``."""

    topic = "held"

    def __init__(self) -> None:
        self.posted: list[tuple[Entry, asyncio.Future[int]]] = []
        self.start_errors: list[Exception] = []
        self.starts = 0

    async def start(self, handle: Handler) -> None:
        if self.start_errors:
            raise self.start_errors.pop()
        self.handle = handle
        self.starts += 1

    async def stop(self) -> None:
        """Nothing to close."""

    async def read_to_end(self, timeout_s: float) -> None:
        """Nothing to read."""

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.posted.append((entries[0], answer))
        return answer
