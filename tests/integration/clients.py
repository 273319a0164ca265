"""Our own clients on real brokers: ``connected`` to a region, or with the properties of a user; one connection that is ``in_use``."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.clock import closing
from mm2py.config.clients import connection_settings
from mm2py.protocol.buffers import BufferPool
from mm2py.protocol.messages import metadata
from tests.kit.kafka.region import KafkaAddress


@asynccontextmanager
async def connected(where: KafkaAddress | Mapping[str, str]) -> AsyncGenerator[Cluster]:
    """Connect to a region, or as the properties of a client say."""
    props = where if isinstance(where, Mapping) else {"bootstrap.servers": where.bootstrap_servers}
    settings = connection_settings({"client.id": "test", **props}, scope="cluster A")
    async with closing(Cluster(settings, alias="A")) as cluster:
        await cluster.connect()
        yield cluster


async def opened(props: Mapping[str, str]) -> BrokerConnection:
    """Open one connection, to the first broker of the properties."""
    settings = connection_settings({"client.id": "test", **props})
    (host, port), *_ = settings.bootstrap_servers
    return await BrokerConnection.open(host, port, settings, BufferPool())


async def in_use(connection: BrokerConnection, seconds: float) -> None:
    """Ask all the time, from four sides; then the connection is still open."""
    end = time.monotonic() + seconds

    async def ask() -> None:
        while time.monotonic() < end:
            await connection.call(metadata(()))

    await asyncio.gather(*(ask() for _ in range(4)))
    assert not connection.closed
