"""Reads ranges of partitions inside Spark: in a task, where no event loop runs, one range after the other.

Flow: client properties -> ``Cluster`` -> ``RangeReader`` -> batches, as a plain iterator. Every call has a connection and an event
loop of its own, which end with it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.range_reader import OffsetsGoneError, RangeReader
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import connection_settings
from mm2py.protocol.log_batches import LogBatch
from mm2py.types import TopicPartition

T = TypeVar("T")


@asynccontextmanager
async def connected(properties: Mapping[str, str], *, alias: str) -> AsyncGenerator[Cluster]:
    """Connect to a cluster by its client properties, and close it at the end.

    Raises:
        ConfigError: a property is wrong.
        RetriableError: it cannot be reached now.
    """
    settings = connection_settings(properties, scope=f"cluster {alias}")
    cluster = Cluster(settings, alias=alias, clock=SYSTEM_CLOCK)
    try:
        await cluster.connect()
        yield cluster
    finally:
        await cluster.close()


def ask_cluster(
    properties: Mapping[str, str], question: Callable[[Cluster], Coroutine[None, None, T]]
) -> T:
    """Ask a cluster something, from code without an event loop."""

    async def ask() -> T:
        async with connected(properties, alias=properties.get("bootstrap.servers", "")) as cluster:
            return await question(cluster)

    return asyncio.run(ask())


def read_range(
    properties: Mapping[str, str],
    tp: TopicPartition,
    first: int,
    end: int,
    *,
    read_committed: bool,
    earliest: bool = False,
) -> Iterator[LogBatch]:
    """Yield the data batches of a range, with ``earliest`` from where the log begins by now; errors as ``RangeReader.read``."""

    async def batches() -> AsyncGenerator[list[LogBatch]]:
        async with connected(properties, alias=properties["bootstrap.servers"]) as cluster:
            reader = RangeReader(cluster, read_committed=read_committed)
            begin: int | None = first
            while begin is not None:
                try:
                    async for found in reader.read(tp, begin, end):
                        yield found
                    begin = None
                except OffsetsGoneError as gone:
                    if not earliest or gone.offset != begin or gone.log_start <= begin:
                        raise
                    begin = min(gone.log_start, end)

    with asyncio.Runner() as runner:
        pieces = batches()
        try:
            while True:
                try:
                    piece = runner.run(_next(pieces))
                except StopAsyncIteration:
                    return
                yield from piece
        finally:
            runner.run(pieces.aclose())


async def _next(pieces: AsyncGenerator[list[LogBatch]]) -> list[LogBatch]:
    return await anext(pieces)
