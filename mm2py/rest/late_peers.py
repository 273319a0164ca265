"""A ``PeerClient`` that costs nothing until somebody is asked.

Flow: herder -> ``LatePeerClient`` -> the real client, made at the first question. The HTTP libraries take
a quarter of a second to load; a worker that leads, or starts, does not wait for them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import final

from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.herder.api import PeerClient
from mm2py.storage.config_state import SessionKey

__all__ = ["LatePeerClient"]


@final
class LatePeerClient:
    """Makes its ``PeerClient`` when it is needed; ``make`` imports what that takes."""

    def __init__(self, make: Callable[[], PeerClient]) -> None:
        self._make = make

    @cached_property
    def _peers(self) -> PeerClient:
        return self._make()

    async def post_tasks(
        self, url: str, connector: str, configs: Sequence[Mapping[str, str]], key: SessionKey
    ) -> None:
        """Hand a connector's task configs to the leader at ``url``."""
        await self._peers.post_tasks(url, connector, configs, key)

    async def put_fence(self, url: str, connector: str, key: SessionKey) -> None:
        """Let the leader at ``url`` fence the producers of a connector's earlier tasks."""
        await self._peers.put_fence(url, connector, key)

    async def node_snapshot(self, url: str, key: SessionKey) -> NodeSnapshot:
        """Return what the member at ``url`` copies."""
        return await self._peers.node_snapshot(url, key)
