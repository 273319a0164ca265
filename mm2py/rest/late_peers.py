"""A ``PeerClient`` that is loaded at its first request.

Flow: herder -> ``LatePeerClient`` -> the real client, made at the first request. The HTTP libraries take
a quarter of a second to load; a worker that leads, or starts, does not wait for them.
"""

from collections.abc import Callable
from functools import cached_property
from typing import final

from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.herder.api import PeerClient
from mm2py.storage.config_state import SessionKey


@final
class LatePeerClient:
    """Makes its ``PeerClient`` when it is needed; ``make`` imports what that takes."""

    def __init__(self, make: Callable[[], PeerClient]) -> None:
        self._make = make

    @cached_property
    def _peers(self) -> PeerClient:
        return self._make()

    async def node_snapshot(self, url: str, key: SessionKey) -> NodeSnapshot:
        """Return what the member at ``url`` copies."""
        return await self._peers.node_snapshot(url, key)
