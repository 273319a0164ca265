"""Fetches for readers that are not on the hot path: log look-ups and pages of internal topics.

Flow: ``fetch_partition`` -> Fetch to the leader -> ``FetchedPartition`` with its own copy of the
records. ``PartitionReads`` does the same for many partitions: what waits for one broker is sent as
one Fetch.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.pacing import Throttle, quota_holds
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError, RequestTimedOutError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.fetch import (
    FETCH_KEY,
    FETCH_VERSIONS,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    decode_fetch,
    encode_fetch,
)
from mm2py.protocol.record_batch import BufferLease
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

BY_NAME: Final = 12
"""Newest version that names topics; ids (v13) matter to the mirror, not here."""
MAX_WAIT_MS: Final = 500
ANSWER_BYTES: Final = 8 * 1024 * 1024
PARTITION_BYTES: Final = 1024 * 1024
"""Limit of one partition in a response with others; raised if its next batch is larger."""
MOST_PARTITIONS: Final = 2_000
"""In one request."""


def isolation_of(settings: ConsumerSettings) -> int:
    """Return ``isolation.level`` as a number for requests."""
    return READ_COMMITTED if settings.isolation_level == "read_committed" else READ_UNCOMMITTED


async def fetch_partition(
    cluster: Cluster,
    tp: TopicPartition,
    position: int,
    *,
    max_bytes: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> FetchedPartition:
    """Fetch from ``position`` of ``tp``; the records are copied out of the receive buffer.

    Raises:
        RetriableServerError: the leader moved or is unavailable (it is forgotten here): retry.
        FatalServerError: the partition may not be read, or ``position`` is out of range (code 1).
        ConnectionFailedError: the connection was lost.
    """
    node_id = (await cluster.leader(tp)).node_id
    answers = await _fetch(
        cluster,
        node_id,
        [_asked(cluster, tp, position, max_bytes)],
        max_bytes=max_bytes,
        isolation_level=isolation_level,
    )
    if not answers:
        raise codes.server_error(codes.UNKNOWN_TOPIC_OR_PARTITION, f"reading {tp} at {position}")
    _check(cluster, tp, position, answers[0])
    return answers[0]


@dataclass(slots=True, eq=False)
class _Read:
    """A read that is not answered yet."""

    tp: TopicPartition
    position: int
    answer: "asyncio.Future[FetchedPartition]"
    max_bytes: int = PARTITION_BYTES


@final
class PartitionReads:
    """Reads positions of many partitions of one cluster, uncommitted records too, with one Fetch
    per broker at a time.

    Args:
        cluster: its owner connects and closes it.
        spawn: runs a background task that ends with the callers of ``read``.
    """

    def __init__(
        self,
        cluster: Cluster,
        spawn: Callable[[Coroutine[None, None, None]], "asyncio.Task[None]"],
    ) -> None:
        self._cluster, self._spawn = cluster, spawn
        self._waiting: dict[int, deque[_Read]] = {}

    async def read(self, tp: TopicPartition, position: int) -> FetchedPartition:
        """Fetch from a position on, at least one batch if there is one; raises as
        ``fetch_partition``."""
        leader = await self._cluster.leader(tp)
        read = _Read(tp, position, asyncio.get_running_loop().create_future())
        waiting = self._waiting.get(leader.node_id)
        # One task per broker while there are reads, which takes all that wait into its next Fetch.
        if waiting is None:
            waiting = self._waiting[leader.node_id] = deque()
            self._spawn(self._serve(leader.node_id, waiting))
        waiting.append(read)
        return await read.answer

    async def _serve(self, node_id: int, waiting: deque[_Read]) -> None:
        """Answer the reads of one broker until none is left."""
        try:
            while waiting:
                await self._answer(node_id, waiting)
        finally:
            del self._waiting[node_id]
            for read in waiting:
                read.answer.cancel()

    async def _answer(self, node_id: int, waiting: deque[_Read]) -> None:
        reads = _next_reads(waiting)
        asked = [_asked(self._cluster, it.tp, it.position, it.max_bytes) for it in reads.values()]
        try:
            answers = await _fetch(self._cluster, node_id, asked, max_bytes=ANSWER_BYTES)
        except Mm2pyError as error:
            _fail(reads.values(), error)
            return
        # Cancelled: otherwise the callers would wait for ever.
        except BaseException:
            waiting.extend(reads.values())  # which ``_serve`` cancels
            raise
        # A broker returns a batch that exceeds a limit
        # only as the first one of its answer (KIP-74).
        empty_is_final = not any(answer.records for answer in answers)
        for fetched in answers:
            read = reads.pop(TopicPartition(fetched.topic, fetched.partition), None)
            if read is None or read.answer.done():
                continue
            behind = fetched.high_watermark > read.position and not fetched.records
            if not fetched.error_code and behind and not empty_is_final:
                read.max_bytes = min(2 * read.max_bytes, ANSWER_BYTES)
                # First in the next request, where a broker returns one batch of any size (KIP-74).
                waiting.appendleft(read)
                continue
            try:
                _check(self._cluster, read.tp, read.position, fetched)
            except Mm2pyError as error:
                read.answer.set_exception(error)
            else:
                read.answer.set_result(fetched)
        if reads:
            _fail(reads.values(), codes.server_error(codes.UNKNOWN_TOPIC_OR_PARTITION, "Fetch"))


def _next_reads(waiting: deque[_Read]) -> dict[TopicPartition, _Read]:
    """Remove and return the reads of the next request: one per partition, none that were
    cancelled."""
    reads: dict[TopicPartition, _Read] = {}
    for _ in range(len(waiting)):
        read = waiting.popleft()
        if read.answer.done():
            continue
        # A Fetch has each partition once: two positions of one take two requests.
        if read.tp in reads or len(reads) == MOST_PARTITIONS:
            waiting.append(read)
        else:
            reads[read.tp] = read
    return reads


def _fail(reads: Iterable[_Read], error: Mm2pyError) -> None:
    for read in reads:
        if not read.answer.done():
            read.answer.set_exception(error)


def _asked(cluster: Cluster, tp: TopicPartition, position: int, max_bytes: int) -> FetchPartition:
    leader = cluster.known_leader(tp)
    return FetchPartition(
        topic=tp.topic,
        topic_id=NO_TOPIC_ID,
        partition=tp.partition,
        position=position,
        current_leader_epoch=-1 if leader is None else leader.epoch,
        max_bytes=max_bytes,
    )


async def _fetch(
    cluster: Cluster,
    node_id: int,
    asked: Sequence[FetchPartition],
    *,
    max_bytes: int,
    isolation_level: int = READ_UNCOMMITTED,
) -> list[FetchedPartition]:
    """Send one Fetch to a broker, again after each throttle: an answer of a broker whose quota is
    exceeded has no partitions (KIP-219)."""
    throttle, is_reported = Throttle(cluster.clock), False
    while True:
        answer = await _exchange(
            cluster,
            node_id,
            asked,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
        )
        if answer.partitions or answer.throttle_ms <= 0:
            return answer.partitions
        throttle.honour(answer.throttle_ms, withheld=True)
        if not is_reported and throttle.is_reportable():
            is_reported = True
            log.warning("reads wait cause=%s", quota_holds(node_id, cluster.settings.client_id))
        await cluster.clock.sleep(throttle.remaining_s())


async def _exchange(
    cluster: Cluster,
    node_id: int,
    asked: Sequence[FetchPartition],
    *,
    max_bytes: int,
    isolation_level: int,
) -> FetchResponse:
    # A connection of its own: a long-poll Fetch would hold
    # up what waits behind it (brokers answer in order).
    connection = await cluster.connection(node_id, "read")
    try:
        answer = await exchange_fetch(
            connection, cluster.settings.client_id, asked, MAX_WAIT_MS, max_bytes, isolation_level
        )
    except RequestTimedOutError:
        for it in asked:
            cluster.leader_moved(TopicPartition(it.topic, it.partition))
        raise
    if answer.error_code:
        raise codes.server_error(answer.error_code, f"Fetch of {cluster}")
    connection.put_off(answer.throttle_ms)
    return answer


async def exchange_fetch(
    connection: BrokerConnection,
    client_id: str,
    asked: Sequence[FetchPartition],
    max_wait_ms: int,
    max_bytes: int,
    isolation_level: int,
) -> FetchResponse:
    """Send one Fetch without a session, and copy the records out of the receive buffer; raises as
    ``BrokerConnection.call``."""
    version = connection.negotiated(FETCH_KEY, FETCH_VERSIONS[0], BY_NAME, "Fetch")
    correlation_id = connection.next_correlation_id()
    frame = encode_fetch(
        version,
        correlation_id,
        client_id,
        partitions=asked,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
    )

    def take(body: memoryview, _lease: BufferLease | None) -> FetchResponse:
        answer = decode_fetch(version, body)
        for partition in answer.partitions:
            if partition.records is not None:
                partition.records = memoryview(bytearray(partition.records))
        return answer

    return await connection.exchange((frame,), correlation_id, take)


def _check(cluster: Cluster, tp: TopicPartition, position: int, fetched: FetchedPartition) -> None:
    if fetched.error_code:
        if fetched.error_code in codes.RETRIABLE:
            cluster.leader_moved(tp)
        raise codes.server_error(fetched.error_code, f"reading {tp} at {position}")
