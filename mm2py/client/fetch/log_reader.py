"""Reads a small compacted topic from its beginning to its end, and then follows it (Java's
``KafkaBasedLog``).

Flow: ListOffsets (the current end) -> Fetch from each leader -> ``handle(partition, record)``; with
``tail`` one long poll per leader at a time. ``start_at_end`` is for topics of which only new
records matter. Committed records only, as Connect reads its topics: control batches and aborted
transactions are skipped, holes of compaction are stepped over. No group, no commits.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.connection import BrokerConnection
from mm2py.client.fetch.partition_fetch import READ_COMMITTED, exchange_fetch
from mm2py.client.pacing import Throttle
from mm2py.client.stall_log import LEADER_CHANGE_S, is_leader_change
from mm2py.clock import Clock, cancelled
from mm2py.errors import (
    ConnectionFailedError,
    Mm2pyError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
)
from mm2py.protocol.abort_filter import AbortFilter
from mm2py.protocol.error_codes import (
    NONE,
    OFFSET_NOT_AVAILABLE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.fetch import FetchedPartition, FetchPartition, FetchResponse
from mm2py.protocol.records import Record, decode_batches
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import EARLIEST, LATEST, TopicPartition

log = logging.getLogger(__name__)

RecordHandler = Callable[[int, Record], None]

Reread = Callable[[int, Sequence[Record]], None]
"""Takes a partition, and the newest record of each key of its log."""

Trouble = Callable[[Mm2pyError | None], None]
"""Called when a followed topic cannot be read for a while, and with None when it is read again."""

_PURPOSE: Final = "log-reader"
_MAX_WAIT_MS: Final = 500
_TAIL_WAIT_MS: Final = 10_000
"""Longest wait of the broker for new records; it answers earlier if there are some, or if it is not
the leader any more."""
_TAIL_REST_S: Final = 0.05
"""Pause after an empty response that arrived early, as throttled clients get."""

_MAX_BYTES: Final = 8 * 1024 * 1024
_PARTITION_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Again:
    """Records of a log that is read again, up to an end; a record without a key is its own key."""

    end: int
    newest: dict[bytes | int, Record] = field(default_factory=dict[bytes | int, Record])

    def take(self, record: Record) -> None:
        """Take the next record in place of the one before of its key."""
        key = record.offset if record.key is None else record.key
        # Removed first: a dict keeps the place of a key that is only overwritten.
        self.newest.pop(key, None)
        self.newest[key] = record


@final
class LogReader:
    """All partitions of one topic, read over the cluster's connections.

    With ``waits_for_transactions`` the end is the high watermark instead of the last stable offset:
    an open transaction hides records that other producers committed after it, and our own commit is
    answered before its marker is written. Without ``waits_for_topic`` a missing topic is an error
    at once. ``begin`` has for partitions the offset where ``read_to_end`` begins, in place of the
    log start; one that is behind the end of the log, which was cut then, begins at its start. With
    ``folds`` only the newest record of a key counts: a log that has to be read again is passed on
    in one step when its end is reached, the newest of each key alone, so that no handler acts on
    outdated records.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        clock: Clock,
        waits_for_transactions: bool = False,
        waits_for_topic: bool = True,
        begin: Mapping[int, int] | None = None,
        folds: bool = False,
    ) -> None:
        self._begin = begin or {}
        self._folds = folds
        self._again: dict[TopicPartition, _Again] = {}
        self._read_committed_ends = not waits_for_transactions
        self._waits_for_topic = waits_for_topic
        self._cluster, self._topic, self._clock = cluster, topic, clock
        self._throttle = Throttle(clock)
        self._admin = Admin(cluster)
        self._positions: dict[TopicPartition, int] = {}
        self._topic_id: bytes | None = None
        self._backoff = Backoff(
            cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms
        )
        self._deadline = 0.0
        self._closed = False
        self._moved = asyncio.Event()
        self._troubled_s: float | None = None  # since when
        self._told: type[Mm2pyError] | None = None  # the kind of error that ``on_trouble`` had last
        self._logged = False
        self._on_trouble: Trouble | None = None
        self._rest_s = 0.0
        self.on_again: Reread | None = None
        """With ``folds``: takes a log that was read again, an empty one too, in place of the
        handler."""

    async def start_at_end(self, is_read: Callable[[int, int], bool]) -> int:
        """Start ``tail`` at the last stable offset of partitions where ``is_read(number, count)``.

        Returns the topic's number of partitions. May be called again after a failure.

        Raises:
            RetriableError: nothing could be read for ``default.api.timeout.ms``.
            ServerError: the topic may not be read.
        """
        self._progress()
        partitions = await self._partitions()
        chosen = [tp for tp in partitions if is_read(tp.partition, len(partitions))]
        self._positions = await self._offsets(chosen, LATEST)
        return len(partitions)

    async def read_to_end(self, handle: RecordHandler) -> None:
        """Pass every record up to the current end to ``handle``, in offset order per partition.

        The first call starts at the log start, later ones continue where the last one ended, also
        after an error. Partitions added after the first call are not read, as in Java.

        Raises:
            RetriableError: nothing could be read for ``default.api.timeout.ms``.
            ServerError: the topic may not be read.
            ProtocolError: a batch is damaged; names partition and offset.
        """
        self._progress()
        if not self._positions:
            partitions = await self._partitions()
            starts = await self._offsets(partitions, EARLIEST)
            self._positions = {
                tp: max(start, self._begin.get(tp.partition, start)) for tp, start in starts.items()
            }
        ends = await self._offsets(self._positions, LATEST)
        # The log was cut, or the topic recreated, since the last read: Fetch would
        # answer OFFSET_OUT_OF_RANGE, or wait until it has grown past the position.
        for tp in [tp for tp, end in ends.items() if self._positions[tp] > end]:
            await self._reset(tp)
        while behind := [
            tp for tp, end in ends.items() if self._positions[tp] < self._wanted(tp, end)
        ]:
            before = [self._positions[tp] for tp in behind]
            try:
                await self._read_once(behind, ends, handle)
            except RetriableError as error:
                await self._pause(error)
            else:
                # No error and no progress: a new leader's high
                # watermark may lag behind the end that was listed.
                if before == [self._positions[tp] for tp in behind]:
                    await self._pause(
                        server_error(OFFSET_NOT_AVAILABLE, f"{behind[0]} ends before its end")
                    )

    async def tail(
        self, handle: RecordHandler, *, on_trouble: Trouble | None = None, rest_s: float = 0.0
    ) -> None:
        """Pass on new records until cancelled; call ``read_to_end`` or ``start_at_end`` first.

        Every error is retried with growing pauses, and logged once; ``on_trouble`` is called for
        each new kind. A leader change counts only if it takes long. Each leader has a connection of
        its own: a long poll would block other requests. ``rest_s`` is a pause after each response
        with records, which limits the requests for a busy topic.
        """
        self._on_trouble, self._rest_s = on_trouble, rest_s
        backoff = Backoff(
            self._cluster.settings.retry_backoff_ms, self._cluster.settings.retry_backoff_max_ms
        )
        while True:
            try:
                await self._follow(handle, backoff)
            except Mm2pyError as error:
                self._note_trouble(error)
                for tp in self._positions:
                    self._cluster.leader_moved(tp)
                await self._clock.sleep(backoff.next_s())

    async def reach_end(self) -> None:
        """Wait until a running ``tail`` has passed on everything up to the current end; raises as
        ``read_to_end``."""
        ends = await self._offsets(tuple(self._positions), LATEST)
        while any(self._positions[tp] < end for tp, end in ends.items()):
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        """End a read in progress; the connections belong to the cluster."""
        self._closed = True

    # ---- where ----

    async def _partitions(self) -> list[TopicPartition]:
        while True:
            topics = (await self._cluster.metadata([self._topic])).topics
            if topics and not topics[0].error_code:
                return [TopicPartition(self._topic, p.partition) for p in topics[0].partitions]
            code = topics[0].error_code if topics else 3
            denied = self._cluster.denied(code, "Read", self._topic)
            error = denied or server_error(code, f"topic {self._topic}")
            missing = code == UNKNOWN_TOPIC_OR_PARTITION and not self._waits_for_topic
            if missing or not isinstance(error, RetriableError):
                raise error
            await self._pause(error)

    async def _offsets(
        self, partitions: Iterable[TopicPartition], at: int
    ) -> dict[TopicPartition, int]:
        offsets: dict[TopicPartition, int] = {}
        missing = set(partitions)
        while missing:
            problem: RetriableError | None = None
            answers = await self._admin.list_offsets(
                dict.fromkeys(missing, at), read_committed=self._read_committed_ends
            )
            for tp, listed in answers.items():
                if listed.error is None:
                    offsets[tp] = listed.offset
                    missing.discard(tp)
                elif isinstance(listed.error, RetriableError):
                    problem = listed.error
                else:
                    code = listed.error.code
                    raise self._cluster.denied(code, "Read", tp.topic) or listed.error
            if problem is not None:
                await self._pause(problem)
        self._progress()
        return offsets

    def _progress(self) -> None:
        limit_ms = self._cluster.settings.default_api_timeout_ms
        self._deadline = self._clock.monotonic() + limit_ms / 1000
        self._backoff.reset()

    async def _pause(self, error: Exception) -> None:
        if self._closed:
            raise ConnectionFailedError(f"the reader of topic {self._topic} was closed")
        if self._clock.monotonic() >= self._deadline:
            limit_ms = self._cluster.settings.default_api_timeout_ms
            raise RequestTimedOutError(
                f"topic {self._topic} of {self._cluster} could not be read for {limit_ms} ms: "
                f"{error}"
            ) from error
        await self._clock.sleep(self._backoff.next_s())

    # ---- following ----

    async def _follow(self, handle: RecordHandler, backoff: Backoff) -> None:
        """Long-poll every leader until a leader changes or a request fails."""
        leaders: dict[int, list[TopicPartition]] = {}
        for tp in self._positions:
            leaders.setdefault((await self._cluster.leader(tp)).node_id, []).append(tp)
        before, self._topic_id = self._topic_id, self._cluster.known_topic_id(self._topic)
        if before not in (None, self._topic_id):  # recreated: everything in it is new
            for tp in tuple(self._positions):
                await self._reset(tp)
        polls = [
            asyncio.create_task(self._follow_node(node_id, partitions, handle, backoff))
            for node_id, partitions in leaders.items()
        ]
        try:
            done, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
            for poll in done:
                poll.result()
        finally:
            await cancelled(*polls)

    async def _follow_node(
        self,
        node_id: int,
        partitions: Sequence[TopicPartition],
        handle: RecordHandler,
        backoff: Backoff,
    ) -> None:
        while True:
            asked: list[FetchPartition] = []
            for tp in partitions:
                leader = await self._cluster.leader(tp)
                if leader.node_id != node_id:
                    return
                asked.append(self._asked(tp, leader.epoch))
            before = [self._positions[tp] for tp in partitions]
            began = self._clock.monotonic()
            connection = await self._cluster.connection(node_id, f"tail {self._topic}")
            # Well below the time-out: a broker that is only busy must not look like a lost one.
            longest_ms = min(_TAIL_WAIT_MS, self._cluster.settings.request_timeout_ms // 3)
            answer = await self._fetch(connection, asked, longest_ms)
            problem = await self._take(answer, None, handle)
            if problem is not None:
                raise problem
            self._trouble_passed()
            backoff.reset()
            if before != [self._positions[tp] for tp in partitions]:
                if self._rest_s:
                    await self._clock.sleep(self._rest_s)
                continue
            # Records, but none beyond the position: the next response would be the same.
            if any(part.records for part in answer.partitions):
                raise server_error(OFFSET_NOT_AVAILABLE, f"nothing usable came of {asked[0].topic}")
            if self._clock.monotonic() - began < _TAIL_REST_S:
                await self._clock.sleep(_TAIL_REST_S)

    def _trouble_passed(self) -> None:
        self._troubled_s = self._told = None
        if self._logged:
            self._logged = False
            log.info("topic is followed again topic=%s", self._topic)
            if self._on_trouble is not None:
                self._on_trouble(None)

    def _note_trouble(self, error: Mm2pyError) -> None:
        now = self._clock.monotonic()
        if self._troubled_s is None:
            self._troubled_s = now
        if not self._logged and (
            not is_leader_change(error) or now - self._troubled_s >= LEADER_CHANGE_S
        ):
            self._logged = True
            log.warning("topic cannot be followed topic=%s cause=%s", self._topic, error)
        # Displays show the present cause: an unreachable broker, then a topic that is gone with it.
        if self._logged and self._on_trouble is not None and type(error) is not self._told:
            self._told = type(error)
            self._on_trouble(error)

    # ---- reading ----

    async def _read_once(
        self,
        behind: list[TopicPartition],
        ends: Mapping[TopicPartition, int],
        handle: RecordHandler,
    ) -> None:
        """Send one Fetch to every leader concerned, one after the other."""
        by_node: dict[int, list[FetchPartition]] = {}
        for tp in behind:
            leader = await self._cluster.leader(tp)
            by_node.setdefault(leader.node_id, []).append(self._asked(tp, leader.epoch))
        problem: RetriableError | None = None
        for node_id, partitions in by_node.items():
            try:
                connection = await self._cluster.connection(node_id, _PURPOSE)
                answer = await self._fetch(connection, partitions, _MAX_WAIT_MS)
            except RetriableError as error:
                for asked in partitions:
                    self._cluster.leader_moved(TopicPartition(asked.topic, asked.partition))
                problem = error
            else:
                problem = await self._take(answer, ends, handle) or problem
        if problem is not None:
            raise problem

    def _asked(self, tp: TopicPartition, leader_epoch: int) -> FetchPartition:
        return FetchPartition(
            topic=tp.topic,
            topic_id=NO_TOPIC_ID,
            partition=tp.partition,
            position=self._positions[tp],
            current_leader_epoch=leader_epoch,
            max_bytes=_PARTITION_BYTES,
        )

    async def _fetch(
        self, connection: BrokerConnection, partitions: list[FetchPartition], max_wait_ms: int
    ) -> FetchResponse:
        pause_s = self._throttle.remaining_s()
        if pause_s > 0:  # muted for longer than a request may take, the connection would seem lost
            await self._clock.sleep(pause_s)
        if connection.pace is not None:
            await connection.pace.turn(connection.address)
        client_id = self._cluster.settings.client_id
        answer = await exchange_fetch(
            connection, client_id, partitions, max_wait_ms, _MAX_BYTES, READ_COMMITTED
        )
        self._throttle.honour(answer.throttle_ms)
        return answer

    async def _take(
        self,
        answer: FetchResponse,
        ends: Mapping[TopicPartition, int] | None,
        handle: RecordHandler,
    ) -> RetriableError | None:
        """Pass the records on and advance positions; returns an error worth a retry.

        Without ``ends`` the end is taken from the response.
        """
        if answer.error_code:
            raise server_error(answer.error_code, f"Fetch of topic {self._topic}")
        problem: RetriableError | None = None
        nothing = not any(part.records or part.error_code for part in answer.partitions)
        for part in answer.partitions:
            tp = TopicPartition(part.topic, part.partition)
            if part.error_code == OFFSET_OUT_OF_RANGE:
                await self._reset(tp)
            elif part.error_code != NONE:
                error = self._cluster.denied(part.error_code, "Read", tp.topic) or server_error(
                    part.error_code, f"Fetch of {tp}"
                )
                if not isinstance(error, RetriableError):
                    raise error
                self._cluster.leader_moved(tp, *(part.current_leader or ()))
                problem = error
            elif part.records:
                await self._hand_on(tp, part, handle)
            elif part.high_watermark < self._wanted(tp, -1):  # it was cut once more
                await self._reset(tp)
            elif nothing and _readable_end(part) >= (
                end := self._wanted(tp, _end_of(tp, part, ends))
            ):
                # Brokers skip holes inside the log, so an empty response below the last
                # stable offset means that everything from here to the end was compacted away.
                self._move(tp, max(end, self._positions[tp]))
                self._hand_on_again(tp, handle)
        return problem

    async def _hand_on(
        self, tp: TopicPartition, part: FetchedPartition, handle: RecordHandler
    ) -> None:
        assert part.records is not None
        position = self._positions[tp]
        aborts = AbortFilter(part.aborted)
        try:
            for batch in decode_batches(part.records):
                aborts.enter(batch.last_offset)
                if batch.is_control:  # the marker that ends a transaction
                    aborts.ended(batch.producer_id)
                # Brokers return the batch that contains the position, from its beginning.
                if batch.last_offset < position:
                    continue
                skipped = batch.is_control or (
                    batch.is_transactional and aborts.covers(batch.producer_id)
                )
                again = self._again.get(tp)
                for record in () if skipped else batch.records:
                    if record.offset < position:
                        continue
                    if again is None:
                        handle(tp.partition, record)
                    else:
                        again.take(record)
                position = batch.last_offset + 1
                self._move(tp, position)
                self._hand_on_again(tp, handle)
                await asyncio.sleep(0)  # a topic may be long: let other tasks run
        except ProtocolError as error:
            raise ProtocolError(
                f"{tp} of {self._cluster} from offset {position}: {error.message}",
                remedy=error.remedy,
            ) from error
        self._progress()

    def _wanted(self, tp: TopicPartition, end: int) -> int:
        """Return the end of a read; a log that is read again may have grown meanwhile."""
        again = self._again.get(tp)
        return end if again is None else max(end, again.end)

    def _hand_on_again(self, tp: TopicPartition, handle: RecordHandler) -> None:
        """Pass on a log that was read again, in one step, once its end is reached."""
        again = self._again.get(tp)
        if again is None or self._positions[tp] < again.end:
            return
        del self._again[tp]
        records = tuple(again.newest.values())
        if self.on_again is not None:
            self.on_again(tp.partition, records)
            return
        for record in records:
            handle(tp.partition, record)

    async def _reset(self, tp: TopicPartition) -> None:
        """Restart at the log start after deletion, truncation or a new topic
        (auto.offset.reset=earliest)."""
        old = self._positions[tp]
        self._again.pop(tp, None)
        end = (await self._offsets((tp,), LATEST))[tp] if self._folds else -1
        start = (await self._offsets((tp,), EARLIEST))[tp]
        if start < end:
            self._again[tp] = _Again(end)
        self._move(tp, start)
        log.warning(
            "position out of range, reading again from the log start partition=%s position=%d "
            "start=%d",
            tp,
            old,
            self._positions[tp],
        )
        if self._folds and tp not in self._again and self.on_again is not None:
            self.on_again(tp.partition, ())

    def _move(self, tp: TopicPartition, position: int) -> None:
        if self._positions[tp] != position:
            self._positions[tp] = position
            self._moved.set()


def _end_of(
    tp: TopicPartition, part: FetchedPartition, ends: Mapping[TopicPartition, int] | None
) -> int:
    return _readable_end(part) if ends is None else ends[tp]


def _readable_end(part: FetchedPartition) -> int:
    """Return the end of committed records; brokers that do not return it have no transactions."""
    return part.last_stable_offset if part.last_stable_offset >= 0 else part.high_watermark


async def newest_values(cluster: Cluster, topic: str, clock: Clock) -> dict[bytes, bytes]:
    """Return the newest committed value per key of a compacted topic after open transactions; empty
    without such a topic.

    Raises:
        RetriableError: the cluster does not answer.
    """
    records = await newest_records(cluster, topic, clock)
    return {key: value for key, (_, value) in records.items()}


async def newest_records(
    cluster: Cluster, topic: str, clock: Clock
) -> dict[bytes, tuple[int, bytes]]:
    """Return offset and value as ``newest_values``, of a topic with one partition."""
    newest: dict[bytes, tuple[int, bytes]] = {}
    if topic not in await Admin(cluster).describe_topics([topic]):
        return newest

    def take(_partition: int, record: Record) -> None:
        key = bytes(record.key or b"")
        newest.pop(key, None)
        if record.value is not None:
            newest[key] = record.offset, bytes(record.value)

    await LogReader(cluster, topic, clock=clock, waits_for_transactions=True).read_to_end(take)
    return newest
