"""Stores in memory, a table whose posts the test answers, and records of mm2py's own topics."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.api.context import EventKind, LossEvent
from mm2py.client.fetch.log_reader import Reread
from mm2py.mirror.producer_ids import MirrorProducer
from mm2py.storage.config_fold import (
    ConfigEvent,
    ConnectorChanged,
    ConnectorRemoved,
    TargetChanged,
    TasksChanged,
)
from mm2py.storage.config_state import RestartRequest
from mm2py.storage.connect_json import LoggerLevel
from mm2py.storage.offset_backing_store import OffsetMap
from mm2py.storage.table import Entry, Handler
from mm2py.types import TopicPartition


@final
class MemoryOffsetBackingStore:
    """Newest value per key, in memory."""

    def __init__(self) -> None:
        self._offsets = OffsetMap()

    async def start(self) -> None:
        """Nothing to open."""

    async def stop(self) -> None:
        """Nothing to close; what was stored stays."""

    async def close(self) -> None:
        """As ``stop``, of a connector's own topic."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        return [self._offsets.get(key) for key in keys]

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        for key, value in values.items():
            self._offsets.put(key, value)

    async def entries(self, connector: str) -> Mapping[bytes, bytes]:
        """Return the stored keys and values of a connector, tombstones left out."""
        return self._offsets.of_connector(connector)


class HeldTable:
    """Nothing comes back by itself; a start fails while there are ``start_errors``."""

    topic = "held"

    def __init__(self) -> None:
        self.posted: list[tuple[Entry, asyncio.Future[int]]] = []
        self.start_errors: list[Exception] = []
        self.starts = 0

    async def start(self, handle: Handler, again: Reread | None = None) -> None:
        del again
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


class Heard(list[str]):
    """Listener that records its calls."""

    def __call__(self, event: ConfigEvent) -> None:
        match event:
            case ConnectorChanged(name):
                self.append(f"changed {name}")
            case ConnectorRemoved(name):
                self.append(f"removed {name}")
            case TasksChanged(connector):
                self.append(f"tasks {connector}")
            case TargetChanged(connector):
                self.append(f"target {connector}")
            case RestartRequest(connector, only_failed, include_tasks):
                self.append(f"restart {connector} {only_failed} {include_tasks}")
            case LoggerLevel(namespace, level):
                self.append(f"level {namespace} {level}")


ORDERS: Final = TopicPartition("orders", 0)


def an_event(
    first: int,
    last: int,
    partition: TopicPartition = ORDERS,
    kind: EventKind = EventKind.RETENTION,
    *,
    policy: str = "gap.policy=continue",
    cause: str = "deleted before it was copied",
    task: str = "MirrorSourceConnector-0",
) -> LossEvent:
    return LossEvent(
        kind=kind,
        partition=partition,
        first_offset=first,
        last_offset=last,
        policy=policy,
        cause=cause,
        task=task,
    )


def a_producer(
    producer_id: int, source: str = "A", source_cluster: str = "id-of-a"
) -> MirrorProducer:
    return MirrorProducer(
        producer_id=producer_id,
        flow=f"{source}->B",
        source=source,
        source_cluster=source_cluster,
        task="MirrorSourceConnector-0",
        worker="host-1/4711",
        time_ms=1_700_000_000_000,
    )
