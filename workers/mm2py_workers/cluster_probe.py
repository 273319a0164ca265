"""Finds out whether a cluster answers, without keeping a connection to it.

Flow: ``connect`` -> a cluster that lives until it answers once. Failed attempts share one object, so that
the client's log says once that a broker is away.
"""

from typing import final

from mm2py.client.connect.cluster import Cluster
from mm2py.clock import Clock
from mm2py.config.clients import ConnectionSettings


@final
class ClusterProbe:
    """Asks one cluster for a sign of life."""

    def __init__(self, settings: ConnectionSettings, alias: str, clock: Clock) -> None:
        self._settings = settings
        self._alias = alias
        self._clock = clock
        self._cluster: Cluster | None = None

    async def connect(self) -> None:
        """Return when the cluster answers; ``ConnectionFailedError`` when it does not."""
        if self._cluster is None:
            self._cluster = Cluster(self._settings, alias=self._alias, clock=self._clock)
        await self._cluster.connect()
        await self.close()

    async def close(self) -> None:
        """Close what an attempt left; safe twice."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.close()
