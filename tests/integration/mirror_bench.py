"""What the tests of the mirror connectors share: contexts, an independent reader and writer, a copier."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from mm2py.api.context import PartitionState, SourceGap
from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.api.task import BatchSourceTask, Delivery, Run
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.send.sender import Sender
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.clients import producer_settings
from mm2py.observability.metrics import Forecast
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition
from tests.integration.clients import connected
from tests.integration.traffic import producer
from tests.kit.kafka.region import KafkaAddress

Line = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


class Context:
    """Lent to connector and task alike."""

    kept_out: frozenset[TopicPartition] = frozenset()
    buffer_bytes = 32 << 20
    linger_ms = 0

    def leave_out(self, partitions: Collection[TopicPartition]) -> None:
        assert not partitions

    def __init__(self, stored: Mapping[TopicPartition, int] | None = None) -> None:
        self.clock: Clock = SYSTEM_CLOCK
        self.task_id = "MirrorSourceConnector-0"
        self.stored = dict(stored or {})
        self.reconfigurations = 0
        self.failures: list[Exception] = []
        self.states: list[tuple[TopicPartition, PartitionState, Exception | None]] = []
        self.gaps: list[SourceGap] = []
        self.lags: dict[TopicPartition, int] = {}

    def request_reconfiguration(self) -> None:
        self.reconfigurations += 1

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    async def committed_offsets(
        self, partitions: Sequence[SourcePartition]
    ) -> Sequence[SourceOffset | None]:
        keys = [TopicPartition(str(p["topic"]), int(p["partition"])) for p in partitions]
        return [{"offset": self.stored[tp]} if tp in self.stored else None for tp in keys]

    def partition_state(
        self, partition: TopicPartition, state: PartitionState, cause: Exception | None = None
    ) -> None:
        self.states.append((partition, state, cause))

    def report_gap(self, gap: SourceGap) -> None:
        self.gaps.append(gap)

    async def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return {}

    def report_incarnation(self, partition: TopicPartition, topic_id: bytes) -> None:
        """Incarnations are not kept here."""

    def report_looped(self, partition: TopicPartition, records: int, conflicts: int) -> None:
        """Nothing loops here."""

    def report_covered(
        self, partition: TopicPartition, offset: int, *, begins: bool = False
    ) -> None:
        """Positions are not stored here."""

    def report_finding(self, what: str, text: str, *, count: int = 1, harms: bool = True) -> None:
        pass

    def report_forecast(self, partition: TopicPartition, forecast: Forecast | None) -> None:
        """Retention is not watched here."""

    def report_figure(self, name: str, value: int) -> None:
        """There is no scrape here."""

    def report_checkpoint(self, group: str, partition: TopicPartition, latency_ms: int) -> None:
        """There is no checkpoint here."""

    def report_lag(
        self, partition: TopicPartition, lag_records: int, newest_ms: int, end: int = -1
    ) -> None:
        self.lags[partition] = lag_records


def config_of(
    regions: tuple[KafkaAddress, KafkaAddress], topics: str, **more: str
) -> dict[str, str]:
    a, b = regions
    config = {
        "name": "MirrorSourceConnector",
        "enabled": "true",
        "topics": topics,
        "heartbeats.replication.enabled": "false",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": a.bootstrap_servers,
        "target.cluster.bootstrap.servers": b.bootstrap_servers,
        "replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "sync.topic.configs.interval.seconds": "1",
    }
    return config | {name.replace("_", "."): value for name, value in more.items()}


@asynccontextmanager
async def admin_of(region: KafkaAddress) -> AsyncGenerator[Admin]:
    async with connected(region) as cluster:
        yield Admin(cluster)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 90) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - a broker offers no event to wait for
            await asyncio.sleep(0.05)


async def config_values(admin: Admin, topic: str) -> dict[str, str | None]:
    described = await admin.describe_topic_configs([topic])
    return {entry.name: entry.value for entry in described.get(topic, ())}


def write(region: KafkaAddress, topic: str, partition: int, count: int, **config: str) -> None:
    client = producer(region, **config)
    for number in range(count):
        client.produce(
            topic,
            value=None if number % 10 == 9 else b"value-%d" % number,
            key=b"key-%d" % number,
            partition=partition,
            headers=[("h", b"%d" % number), ("h", None)],
            timestamp=1_700_000_000_000 + number,
        )
    assert client.flush(60) == 0


def read(region: KafkaAddress, topic: str, partition: int, count: int) -> list[Line]:
    """Return the first ``count`` records, fewer if the partition has no more."""
    consumer = Consumer(
        {
            "bootstrap.servers": region.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
        }
    )
    try:
        place = ConfluentPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=90)
        consumer.assign([place])
        lines: list[Line] = []
        deadline = time.monotonic() + 90
        while len(lines) < min(count, end) and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is None:
                continue
            assert message.error() is None, message.error()
            given = message.headers() or []
            pairs = given.items() if isinstance(given, dict) else given
            headers = tuple((name, _raw(value)) for name, value in pairs)
            lines.append(
                (_raw(message.key()), _raw(message.value()), headers, message.timestamp()[1])
            )
        return lines
    finally:
        consumer.close()


def _raw(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


class Copier:
    """Polls a task and sends what it returns, as a worker does."""

    def __init__(self, task: BatchSourceTask, region: KafkaAddress) -> None:
        self.task = task
        self.copied: dict[TopicPartition, int] = {}
        self.errors: list[Exception] = []
        settings = producer_settings({"bootstrap.servers": region.bootstrap_servers})
        self.cluster = Cluster(settings.connection, alias="B")
        self.sender = Sender(
            self.cluster,
            settings,
            clock=SYSTEM_CLOCK,
            on_delivered=self._delivered,
            on_failed=self._failed,
        )

    async def copy(self, wanted: Mapping[TopicPartition, int], seconds: float = 30) -> None:
        """Run until the last offsets of ``wanted`` are acknowledged."""
        await self.cluster.connect()
        await self.sender.start()
        try:
            await self.task.start()
            async with asyncio.timeout(seconds):
                while any(self.copied.get(tp, -1) < last for tp, last in wanted.items()):
                    assert not self.errors
                    for source, target, batches in await self.task.poll(16 << 20):
                        self.sender.enqueue(source, target, batches)
            await self.task.commit()
        finally:
            await self.task.stop()
            await self.sender.close()
            await self.cluster.close()

    def _delivered(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base: int
    ) -> None:
        runs: list[Run] = []
        for first, count in batch.runs:
            runs.append(Run(first, count, base))
            base += count
        self.copied[source] = batch.last_offset
        self.task.delivered(Delivery(source, target, tuple(runs), batch.size, batch.max_timestamp))

    def _failed(self, source: TopicPartition, target: TopicPartition, error: Exception) -> None:
        self.errors.append(error)
