"""The three stores of one Connect group on a real broker, as the composition root builds them."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConnectionSettings, ProducerSettings, parse_bootstrap_servers
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.internal_topics import InternalTopic
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.storage.table import KafkaTable
from mm2py_workers.internal_stores import FlowTables
from tests.kit.fakes.stores import Heard

PARTITIONS = {"configs": 1, "statuses": 5, "offsets": 25}


@dataclass
class Stores:
    """One worker's view of the topics ``<prefix>-configs``, ``-statuses`` and ``-offsets``."""

    config: ConfigBackingStore
    status: StatusBackingStore
    offsets: KafkaOffsetBackingStore
    news: Heard


@asynccontextmanager
async def open_stores(bootstrap_servers: str, prefix: str) -> AsyncGenerator[Stores]:
    """Create the topics where they are missing and open the stores."""
    settings = ConnectionSettings(bootstrap_servers=parse_bootstrap_servers(bootstrap_servers))
    cluster = Cluster(settings, alias="a")
    tables = FlowTables(
        cluster, ProducerSettings(connection=settings), permit=UNLIMITED, clock=SYSTEM_CLOCK
    )

    def table(kind: str, *, follow: bool = True) -> KafkaTable:
        purpose = {"configs": "config", "statuses": "status", "offsets": "offset"}[kind]
        topic = InternalTopic(
            name=f"{prefix}-{kind}",
            purpose=f"{purpose}.storage",
            partitions=PARTITIONS[kind],
            replication_factor=1,
        )
        return tables.table(topic, follow=follow)

    stores = Stores(
        ConfigBackingStore(table("configs")),
        StatusBackingStore(table("statuses")),
        KafkaOffsetBackingStore(table("offsets", follow=False)),
        Heard(),
    )
    try:
        await cluster.connect()
        await stores.config.start(stores.news)
        await stores.status.start()
        await stores.offsets.start()
        yield stores
    finally:
        await stores.config.stop()
        await stores.status.stop()
        await stores.offsets.stop()
        await tables.close()
        await cluster.close()


async def eventually(condition: Callable[[], object], what: str, *, timeout_s: float = 90) -> None:
    """Wait for something that another process brings about."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - other processes signal nothing
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {timeout_s} s") from None
