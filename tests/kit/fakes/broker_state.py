"""What the brokers of one fake cluster share: topics, leaders, logs, producer ids, Fetch sessions (KIP-227); and a request to one."""

import asyncio
import random
import secrets
from dataclasses import dataclass, field
from struct import pack_into
from typing import Final, NamedTuple, TypeAlias, final

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.protocol.record_batch import CONTROL_FLAG, HEADER, HEADER_BYTES, TRANSACTIONAL_FLAG
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import sealed
from tests.kit.fakes.broker_log import AppendResult, PartitionLog
from tests.kit.fakes.broker_transactions import FakeTransactions, Stored
from tests.kit.fakes.wire import AnswerWriter, RequestReader

_ATTRIBUTES: Final = 22
_PRODUCER: Final = 43
"""Where a batch has its producer id, and the epoch after it."""


def _marker(producer_id: int = -1, epoch: int = -1) -> bytes:
    batch = encode_batch([NewRecord(bytes(4), bytes(6), (), -1)])
    batch[_ATTRIBUTES] |= CONTROL_FLAG | TRANSACTIONAL_FLAG
    pack_into(">qh", batch, _PRODUCER, producer_id, epoch)
    return bytes(sealed(batch))


Key: TypeAlias = tuple[str | bytes, int]
"""Topic name or id, and partition."""


class Wanted(NamedTuple):
    """One partition as a client asks for it."""

    topic: str | bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(slots=True)
class FakeSession:
    """One client's partitions; the order is the order of service."""

    node_id: int
    epoch: int = 1
    wanted: dict[Key, Wanted] = field(default_factory=dict[Key, Wanted])
    told: dict[Key, tuple[int, int, int]] = field(default_factory=dict[Key, tuple[int, int, int]])


@dataclass(slots=True)
class FakeTopic:
    """One topic: its logs and who leads them."""

    name: str
    topic_id: bytes
    logs: dict[int, PartitionLog] = field(default_factory=dict[int, PartitionLog])
    leaders: dict[int, int] = field(default_factory=dict[int, int])


@final
class FakeCluster:
    """State of one cluster, shared by its brokers."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.cluster_id = secrets.token_urlsafe(16)
        self.topics: dict[str, FakeTopic] = {}
        self.brokers: dict[int, tuple[str, int]] = {}
        self.clock = clock
        self.sessions: dict[int, FakeSession] = {}
        """Fetch sessions by id; ``clear`` is what a restart does to them."""
        self.last_session_id = 0
        self.fetches: list[tuple[int, int, int]] = []
        """(session epoch, partitions named, partitions forgotten) of each Fetch."""
        self.waits: list[tuple[int, int]] = []
        """(max wait in ms, min bytes) of each Fetch."""
        self.served: list[tuple[int, int]] = []
        """(partition, bytes) of each read, empty ones too."""
        self.throttle_ms = 0
        """What every Fetch answer asks the client to wait."""
        self.produce_throttle_ms = 0
        """The same of every Produce answer."""
        self.quotas: dict[str, float] = {}
        """Bytes per second that are told of clients; nothing is held to them."""
        self.throttled = 0
        """So many of the next Fetches without a session are answered with that alone, as by a broker whose quota is exceeded."""
        self.withholds = False
        """Every Fetch is answered with the throttle alone, and a session knows of it."""
        self.nearest: dict[TopicPartition, int] = {}
        """Follower that the leader names to a client with a rack, and which serves it."""
        self.follower_codes: list[int] = []
        """Codes of the follower's next answers."""
        self.transactions = FakeTransactions()
        self._next_producer_id = 1000
        self._grown: asyncio.Event | None = None

    def create_topic(self, name: str, partitions: int, leader: int) -> None:
        """Create or replace a topic."""
        topic = FakeTopic(name, random.randbytes(16))
        for index in range(partitions):
            topic.logs[index] = PartitionLog()
            topic.leaders[index] = leader
        self.topics[name] = topic

    def move_leader(self, tp: TopicPartition, node_id: int) -> None:
        """Make another broker lead a partition (-1: nobody); the epoch rises."""
        topic = self.topics[tp.topic]
        topic.leaders[tp.partition] = node_id
        topic.logs[tp.partition].leader_epoch += 1

    def find(self, topic: str, partition: int) -> PartitionLog | None:
        """Return a log, None where there is none."""
        found = self.topics.get(topic)
        return None if found is None else found.logs.get(partition)

    def leads(self, node_id: int, topic: str, partition: int) -> bool:
        """Whether a broker leads a partition."""
        return self.topics[topic].leaders[partition] == node_id

    def append(self, tp: TopicPartition, data: bytes, version: int = 9) -> AppendResult:
        """Store a produced batch and wake who waits for data."""
        log = self.topics[tp.topic].logs[tp.partition]
        header = HEADER.unpack_from(data) if len(data) >= HEADER_BYTES else None
        transactional = header is not None and bool(header[5] & TRANSACTIONAL_FLAG)
        if header is not None and transactional:
            code = self.transactions.check(header[9], header[10], tp, version)
            if code:
                return AppendResult(code)
        result = log.append(data, self.clock.now_ms())
        if header is not None and transactional and not result.error_code:
            self.transactions.stored(header[9], Stored(tp, result.base_offset, data))
        self.wake()
        return result

    def write_markers(self) -> None:
        """Let the logs of ended transactions grow by their markers, control batches of one record."""
        while self.transactions.markers:
            self.write_marker(self.transactions.markers.pop())

    def write_marker(self, tp: TopicPartition, producer_id: int = -1, epoch: int = -1) -> None:
        """Append a control batch of one record; only a producer of ours counts."""
        log = self.topics_log(tp)
        log.put(_marker(producer_id, epoch), log.end)
        self.wake()

    def topics_log(self, tp: TopicPartition) -> PartitionLog:
        """Return the log of a partition that exists."""
        return self.topics[tp.topic].logs[tp.partition]

    def wake(self) -> None:
        """Let those who wait for data look again."""
        if self._grown is not None:
            self._grown.set()
            self._grown = None

    async def wait_for_data(self, seconds: float) -> None:
        """Wait until something was appended, at most ``seconds``."""
        if self._grown is None:
            self._grown = asyncio.Event()
        grown = self._grown
        try:
            async with asyncio.timeout(seconds):
                await grown.wait()
        except TimeoutError:
            return

    def new_producer_id(self) -> int:
        """Hand out a producer id."""
        self._next_producer_id += 1
        return self._next_producer_id


@dataclass(slots=True)
class Request:
    """One request; ``forced`` is the scripted code, -2 for none."""

    api_key: int
    version: int
    cluster: FakeCluster
    node_id: int
    reader: RequestReader
    forced: int = -2
    apply: bool = True

    @property
    def answer(self) -> AnswerWriter:
        """A writer for the answer in the request's version."""
        return AnswerWriter(flexible=self.reader.flexible)
