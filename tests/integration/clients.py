"""Our own clients on real brokers: ``connected`` to a region, or with the properties of a user."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from mm2py.client.connect.cluster import Cluster
from mm2py.config.clients import connection_settings
from tests.kit.kafka.region import KafkaAddress


@asynccontextmanager
async def connected(where: KafkaAddress | Mapping[str, str]) -> AsyncGenerator[Cluster]:
    """Connect to a region, or as the properties of a client say."""
    props = where if isinstance(where, Mapping) else {"bootstrap.servers": where.bootstrap_servers}
    settings = connection_settings({"client.id": "test", **props}, scope="cluster A")
    cluster = Cluster(settings, alias="A")
    try:
        await cluster.connect()
        yield cluster
    finally:
        await cluster.close()
