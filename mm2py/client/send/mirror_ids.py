"""Which producer ids are a mirror's: published before their first use, and asked for when they stand in a log."""

from collections.abc import Awaitable, Callable
from typing import Protocol

Announce = Callable[[int], Awaitable[None]]
"""Publishes a producer id before its first use; after an ``Mm2pyError`` the id is not used."""


class MirrorIds(Protocol):
    """The producer ids of mirrors that write to the target (``mm2py.storage.producer_id_store``)."""

    async def announce(self, producer_id: int) -> None:
        """Publish an id that is about to be used; after an ``Mm2pyError`` it is not used."""
        ...

    async def includes(self, producer_id: int) -> bool:
        """Whether a producer id in a log is a mirror's; ``Mm2pyError`` if that cannot be determined now."""
        ...
