"""Fetcher: record batches from partition leaders, with positions; leader moves and losses are
distinguished.

Flow: ``add`` -> FetchRoutes -> one FetchNode per broker -> ``fetch`` returns what has arrived. Per
partition the batches are in offset order. Control, empty and aborted batches never leave here
(protocol/batch_stage.py). What the source lost is reported as a ``SourceGap``, never skipped in
silence.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, final

from mm2py.api.context import SourceGap
from mm2py.client.backoff import Backoff
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.cursor import Cursor, Lookup, Verdict
from mm2py.client.fetch.losses import FetchLosses
from mm2py.client.fetch.owner import BatchOrigins
from mm2py.client.fetch.partition_fetch import READ_COMMITTED, isolation_of
from mm2py.client.fetch.routes import FetchRoutes
from mm2py.client.pacing import ByteRate
from mm2py.clock import Arrival, Clock, cancelled
from mm2py.config.clients import ConsumerSettings
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import StageResult
from mm2py.protocol.buffers import CountedCopy
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import BufferLease, RecordBatch
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 32 * 1024 * 1024
"""Limit of what is read and not settled, in receive buffers and copies of them: default of
``buffer.memory``."""

_PARKED_PART: Final = 8
"""At most an eighth of the memory is used for data of paused partitions, so that the others can
continue."""

_REST_PART: Final = 8
"""If at most an eighth of a response's bytes still use the receive buffer, they are copied out of
it."""

_CHECK_S: Final = 1.0
"""Interval of checks of followers, open transactions and unused receive buffers."""

ENDS_S: Final = 2.0
"""How long to wait for log ends from one broker."""

UNCLEAR_S: Final = 300.0
"""How long a broker may return errors without a cause (for instance of a tiered read) before the
partition fails: the Java consumer retries for ever, which only its lag shows."""

Fetched = tuple[TopicPartition, list[RecordBatch]]


def _ignore_stall(_tp: TopicPartition, _error: Exception | None) -> None:
    """Default: ignore stalls."""


@final
class Fetcher:
    """Reads a set of partitions of one cluster.

    ``on_gap`` reports lost records; ``on_failed`` ends one partition; ``on_stalled(tp, error)``
    reports one that cannot be read now and is retried, with ``None`` that it is read again. All on
    the loop. ``bytes_per_s`` limits the reads of all partitions together, 0 for no limit. While
    records trickle they wait up to ``linger_ms`` for others. ``origins`` decides which batches of
    other mirrors are dropped.
    """

    def __init__(  # noqa: PLR0913 - one keyword per event and per limit of reading
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        *,
        clock: Clock,
        buffer_bytes: int = BUFFER_BYTES,
        bytes_per_s: int = 0,
        linger_ms: int = 0,
        on_gap: Callable[[SourceGap], None],
        on_failed: Callable[[TopicPartition, Exception], None],
        on_stalled: Callable[[TopicPartition, Exception | None], None] = _ignore_stall,
        origins: BatchOrigins | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._on_gap, self._on_failed, self._on_stalled = on_gap, on_failed, on_stalled
        self._origins = origins
        self._known_origins = None if origins is None else origins.known
        self._losses = FetchLosses(settings.auto_offset_reset, owner=self)
        self._rate = ByteRate(bytes_per_s, clock) if bytes_per_s > 0 else None
        self._routes = FetchRoutes(
            cluster,
            settings,
            clock=clock,
            owner=self,
            losses=self._losses,
            rate=self._rate,
            linger_ms=linger_ms,
        )
        # Under read_uncommitted nothing waits for the last stable offset.
        self._open = OpenTransactions() if isolation_of(settings) == READ_COMMITTED else None
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = Arrival()
        self._batches: list[Fetched] = []
        self._parked: dict[TopicPartition, list[RecordBatch]] = {}
        self._buffer_bytes = buffer_bytes
        self._max_wait_s = settings.fetch_max_wait_ms / 1000
        cluster.pool.keep_at_most(buffer_bytes)
        self._room = 0
        self._is_short = False  # something could not be asked for, for lack of memory
        self._next_check = 0.0
        self._answered: set[TopicPartition] = set()
        # A buffer that returns is room for the next Fetch;
        # without this a full pool would wait for a poll.
        cluster.pool.on_release.add(self.freed)

    def add(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[TopicPartition, bytes] | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Read these partitions besides the others; EARLIEST and LATEST are looked up in the
        background.

        ``topic_ids`` names the incarnation of the topic that a position belongs to, if it was
        stored: another one is then copied from its beginning. Without it a topic that was recreated
        while it was not read is only noticed if it is shorter than the position. ``epochs`` has the
        leader epoch of the record before the position, by which a truncated log is noticed
        (KIP-320).
        """
        ids, known = topic_ids or {}, epochs or {}
        new = [
            Cursor(tp, position, ids.get(tp, NO_TOPIC_ID), known.get(tp, -1))
            for tp, position in positions.items()
        ]
        self._cursors |= {cursor.tp: cursor for cursor in new}
        for cursor in new:
            self._routes.seek(cursor)

    def pace(self, bytes_per_s: int) -> None:
        """Read at another rate from now on; only where there is a limit."""
        if self._rate is not None:
            self._rate.change(bytes_per_s)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Leave these out of the next Fetch, and hold back their batches that have arrived.

        Those are copied out of the receive buffers, so that the buffers return to the pool.
        """
        paused: set[TopicPartition] = set()
        for tp in partitions:
            cursor = self._cursors.get(tp)
            if cursor is not None and not cursor.paused:
                # What the node knows of its end now would be lost with the pause.
                cursor.known_until(self._routes.known_at(cursor, self._clock.monotonic()))
                cursor.pause()
                self._routes.touch(cursor)
                paused.add(tp)
        if not paused or not self._batches:
            return
        waiting, self._batches = self._batches, []
        for tp, batches in waiting:
            if tp not in paused:
                self._batches.append((tp, batches))
                continue
            self._park(tp, batches)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch these again."""
        for tp in partitions:
            cursor = self._cursors.get(tp)
            if cursor is None or not cursor.paused:
                continue
            cursor.resume()
            cursor.joined(self._clock.monotonic())
            parked = self._parked.pop(tp, None)
            # Before the partition is fetched again: order within it is kept.
            if parked:
                self._batches.append((tp, parked))
                self._arrived.set()
            self._routes.touch(cursor)

    def rewind(self, tp: TopicPartition, position: int) -> bool:
        """Read a paused partition again from an earlier offset of its current log; return whether
        that is possible now."""
        cursor = self._cursors.get(tp)
        # Only while nothing else moves the position.
        if cursor is None or cursor.failed or not cursor.paused or cursor.lookup is not Lookup.NONE:
            return False
        self._discard((tp,))
        # Back to where the response was requested: none of its batches was kept.
        cursor.seek(position)
        self._routes.read_again(cursor)
        return True

    @property
    def is_short(self) -> bool:
        """Whether a broker was not asked for lack of memory since the last ``fetch`` began to wait
        and since a buffer returned."""
        return self._is_short

    async def fetch(self, *, max_wait_ms: int, max_bytes: int) -> list[Fetched]:
        """Return what has arrived, after at most ``max_wait_ms``; empty when nothing has.

        ``max_bytes`` is the room left for data that is read but not yet delivered: what is
        returned, and what arrives until the next call, uses it up, and without room no Fetch is
        sent. Each batch holds a reference to its receive buffer.
        """
        self._room = max_bytes
        for _, waiting in self._batches:
            self._room -= sum(len(batch.data) for batch in waiting)
        now = self._clock.monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_S
            self._look_after(now)
        if not self._batches:
            self.freed()
            await self._arrived.wait(max_wait_ms / 1000)
        batches, self._batches = self._batches, []
        return batches

    def take_answered(self) -> set[TopicPartition]:
        """Return the partitions that brokers answered for since the last call: only their positions
        and ends changed."""
        answered, self._answered = self._answered, set()
        return answered

    def position(self, tp: TopicPartition) -> int:
        """Next offset to fetch of ``tp``; negative while unknown."""
        cursor = self._cursors.get(tp)
        return cursor.position if cursor is not None else -1

    def began_at(self, tp: TopicPartition) -> int:
        """Offset after EARLIEST or LATEST, -1 while unknown or where an offset was assigned."""
        cursor = self._cursors.get(tp)
        return cursor.started_at if cursor is not None else -1

    def epoch_at(self, tp: TopicPartition, offset: int) -> int:
        """Leader epoch that the record at ``offset`` was read under, -1 while unknown."""
        cursor = self._cursors.get(tp)
        return cursor.epoch_at(offset) if cursor is not None else -1

    def incarnation(self, tp: TopicPartition) -> bytes:
        """Topic id that the position of ``tp`` belongs to, all zero while unknown."""
        cursor = self._cursors.get(tp)
        return cursor.topic_id if cursor is not None and cursor.identified else NO_TOPIC_ID

    def waiting(self, tp: TopicPartition) -> int:
        """Records of ``tp`` that were read and not returned by ``fetch`` yet."""
        read = [batches for source, batches in self._batches if source == tp]
        read.append(self._parked.get(tp, []))
        return sum(batch.count for batches in read for batch in batches)

    def lag(self, tp: TopicPartition) -> int:
        """Offsets between our position and the end of the log, those above an open transaction too;
        -1 while unknown."""
        cursor = self._cursors.get(tp)
        if cursor is None or cursor.denied or min(cursor.position, cursor.high_watermark) < 0:
            return -1
        parked = self._parked.get(tp)
        position = parked[0].base_offset if parked else cursor.position
        return max(0, cursor.high_watermark - position)

    def end(self, tp: TopicPartition) -> int:
        """Log end of ``tp``, offsets above an open transaction included; -1 while unknown."""
        cursor = self._cursors.get(tp)
        return -1 if cursor is None else cursor.high_watermark

    def throttled_s(self) -> Mapping[int, float]:
        """Return how long brokers are not fetched from because of a quota, by node id."""
        left = {node.node_id: node.throttle.remaining_s() for node in self._routes.nodes.values()}
        return {node_id: left_s for node_id, left_s in left.items() if left_s > 0}

    def silent_s(self, tp: TopicPartition) -> float:
        """Return for how long it is not known where the log of ``tp`` ends; about 0 while its
        broker answers."""
        cursor = self._cursors.get(tp)
        if cursor is None:
            return inf
        now = self._clock.monotonic()
        return max(0.0, now - self._routes.known_at(cursor, now) - self._max_wait_s)

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where logs begin, of any partitions of the cluster, as ``Admin.log_starts``."""
        return await Admin(self._cluster).log_starts(partitions)

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where logs end, of any partitions of the cluster; those without an answer are left
        out."""
        return await Admin(self._cluster).log_ends(partitions, within_s=ENDS_S)

    async def refresh_ends(self) -> None:
        """Look up the log ends that no Fetch response has, of partitions that are paused, throttled
        or without room, with one request per leader.

        Raises:
            Mm2pyError: the cluster does not answer.
        """

        def ends_unseen(cursor: Cursor) -> bool:
            return cursor.paused or self._routes.is_blind(cursor)

        unknown = {
            tp: it for tp, it in self._cursors.items() if it.position >= 0 and ends_unseen(it)
        }
        if not unknown:
            return
        asked_at = self._clock.monotonic()
        for tp, end in (await self.log_ends(unknown)).items():
            cursor = unknown[tp]
            if ends_unseen(cursor) and not cursor.failed:
                cursor.ends_at(end, asked_at)

    def drop(self, tp: TopicPartition) -> None:
        """Stop reading one partition; nothing of it is returned any more."""
        cursor = self._cursors.pop(tp, None)
        if cursor is not None:
            cursor.fail()
            self._routes.leave(cursor)
            self._discard((tp,))

    async def look_back(self) -> None:
        """Report, before the end, what was lost because a topic was recreated.

        A later reader knows its position and the old id, but not the end of the old log.

        Raises:
            Mm2pyError: the cluster does not answer.
        """
        behind = {
            cursor: first
            for cursor in self._cursors.values()
            if not cursor.failed
            and cursor.topic_id != NO_TOPIC_ID
            and 0 <= (first := self._first_unread(cursor)) < cursor.high_watermark
        }
        if not behind:
            return
        await self._cluster.metadata(sorted({cursor.tp.topic for cursor in behind}))
        for cursor, first in behind.items():
            known = self._cluster.known_topic_id(cursor.tp.topic)
            # The ids differ: its old log was deleted with the records from ``first`` on.
            if known is not None and is_another_topic(cursor.topic_id, known):
                cursor.fail()
                self._losses.left_behind(cursor, first)

    async def close(self) -> None:
        """Stop fetching; safe twice."""
        await cancelled(*self._tasks)
        self._cluster.pool.on_release.discard(self.freed)
        for cursor in self._cursors.values():
            self._routes.leave(cursor)
        self._discard(self._cursors)

    # -- FetchOwner: what may be asked -------------------------------------------------------------

    def room_bytes(self) -> int:
        """Return the memory that is neither read nor asked for, or less where the caller of
        ``fetch`` has less room: at most ``most_bytes``."""
        held = self._cluster.pool.leased_bytes
        for node in self._routes.nodes.values():
            held += node.asked_bytes + node.stripes.asked_bytes
        return min(self._room, self._buffer_bytes - held, self.most_bytes())

    def room_to_ask(self) -> int:
        room = self.room_bytes()
        self._is_short = self._is_short or room <= 0
        return room

    def wake(self) -> None:
        self._routes.wake()

    def answered(self, *, short: bool) -> None:
        if self._batches:
            # Who waits for them sees the buffer of a long one as free if no batch uses it.
            (self._arrived.now if short else self._arrived.set)()
        self.freed()

    def freed(self) -> None:
        """Look again for memory where there was too little."""
        if self._is_short:
            self._is_short = False
            self._routes.wake()

    def most_bytes(self) -> int:
        """Return what one broker's response may fill: half of the buffers, divided among the busy
        brokers."""
        # The other half is for responses that are not settled yet.
        busy = 0
        for node in self._routes.nodes.values():
            busy += bool(node.cursors)
        return self._buffer_bytes // 2 // max(1, busy)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    # -- FetchOwner: answers -----------------------------------------------------------------------

    def fetched(self, cursor: Cursor, part: FetchedPartition, lease: BufferLease) -> None:
        self._answered.add(cursor.tp)
        if cursor.paused and not self._can_park(part):
            return  # it is fetched again later
        position, attempts = cursor.position, cursor.attempts
        result: StageResult | None = None
        try:
            verdict, result = cursor.take(part, lease, self._known_origins)
            if result is not None and self._origins is not None:
                self._origins.classified(cursor.tp, result.batches, result.looped)
        except Exception as error:
            _release(() if result is None else result.batches)
            # A defect, or lack of memory: the other partitions of the response are not affected.
            if not attempts:
                log.exception("data cannot be handled, it is read again partition=%s", cursor.tp)
            cursor.seek(position)
            cursor.attempts = attempts
            problem = ProtocolError(f"data of {cursor.tp} cannot be handled: {error!r}")
            self.lost([cursor], problem)
            return
        if verdict is Verdict.LOST:
            self._losses.skipped(cursor)
        if result is not None and result.batches:
            self._keep(cursor, result.batches)
        if cursor.failed:
            return
        # Producers of unknown origin: nothing is read on until it is
        # known whose they are, or a batch of a loop could be copied.
        if result is not None and result.unknown:
            self._routes.leave(cursor)
            self.spawn(self._find_origins(cursor, result.unknown))
        elif verdict is not Verdict.GO_ON:
            self._follow(cursor, verdict, part)

    def caught_up(self, cursor: Cursor) -> None:
        self._routes.touch(cursor)

    def lost(self, cursors: Collection[Cursor], error: Exception) -> None:
        for cursor in cursors:
            self.stalled(cursor.tp, error)
            cursor.refused()
            self._routes.seek(cursor, pause=True)

    def gap(self, gap: SourceGap) -> None:
        self._on_gap(gap)

    def failed(self, tp: TopicPartition, error: Exception) -> None:
        self._on_failed(tp, error)

    def stalled(self, tp: TopicPartition, error: Exception | None) -> None:
        if error is None and self._open is not None:
            error = self._open.cause(self._cursors.get(tp))  # of several one may last
        self._on_stalled(tp, error)

    # -- inside ------------------------------------------------------------------------------------

    def _keep(self, cursor: Cursor, batches: list[RecordBatch]) -> None:
        """Keep batches for ``fetch``, or for the end of the pause."""
        if cursor.paused:
            self._park(cursor.tp, batches)
        else:
            self._room -= self._count(batches)
            self._batches.append((cursor.tp, batches))
        if cursor.failed:  # failed in answer to what was skipped
            self._discard((cursor.tp,))

    def _count(self, batches: Collection[RecordBatch]) -> int:
        """Count the bytes of joined batches as read, and return those of all."""
        total = viewed = 0
        for batch in batches:
            size = len(batch.data)
            total += size
            if batch.lease is None:  # joined
                batch.lease = CountedCopy(self._cluster.pool, size)
            else:
                viewed += size
        if _REST_PART * viewed <= total:
            # The few that were not joined: they alone would keep the whole receive buffer.
            for batch in batches:
                batch.detach()
        return total

    async def _find_origins(self, cursor: Cursor, producers: Collection[int]) -> None:
        """Look up the origin of producers, then continue with their batches."""
        origins = self._origins
        assert origins is not None
        settings = self._cluster.settings
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        while not cursor.failed:
            try:
                await origins.find(producers)
            except Mm2pyError as error:
                self.stalled(cursor.tp, error)
                await self._clock.sleep(backoff.next_s())
            else:
                self._routes.seek(cursor)
                return

    def _can_park(self, part: FetchedPartition) -> bool:
        """Whether data that was in flight when its partition was paused can be kept: over a WAN it
        cost a round trip."""
        parked = sum(len(b.data) for batches in self._parked.values() for b in batches)
        return _PARKED_PART * (parked + len(part.records or b"")) <= self._buffer_bytes

    def _park(self, tp: TopicPartition, batches: list[RecordBatch]) -> None:
        for batch in batches:
            batch.detach()
        self._parked.setdefault(tp, []).extend(batches)

    def _follow(self, cursor: Cursor, verdict: Verdict, part: FetchedPartition) -> None:
        routes = self._routes
        match verdict:
            case Verdict.MOVE | Verdict.RECREATED:
                # A broker that refuses repeatedly is asked with pauses only.
                cursor.refused()
                routes.seek(cursor, part.current_leader, pause=cursor.attempts > 1)
            case Verdict.REPLICA:
                routes.read_from(cursor, cursor.replica)
            case Verdict.LEADER:
                # The leader may name the same follower again at once, so there is a pause.
                cursor.refused()
                routes.seek(cursor, pause=True)
            case Verdict.RESET:
                cursor.out_of_range()
                cursor.refused()
                routes.seek(cursor, pause=cursor.attempts > 1)
            case Verdict.TRUNCATED:
                self._losses.truncated(cursor, cursor.diverged_to)
            case Verdict.UNCLEAR if cursor.unclear_for_s(self._clock.monotonic()) >= UNCLEAR_S:
                routes.leave(cursor)
                self._losses.give_up(cursor, f"{cursor.cause} for {UNCLEAR_S:.0f} s")
            case Verdict.REFUSED | Verdict.UNCLEAR:
                cursor.refused()
                cursor.denied = True
                denied = self._cluster.denied(part.error_code, "Read", cursor.tp.topic)
                error = denied or codes.server_error(part.error_code, f"reading {cursor.tp}")
                self.stalled(cursor.tp, error)
                routes.seek(cursor, pause=True)
            case Verdict.FAILED:
                routes.leave(cursor)
                self._losses.give_up(cursor, cursor.cause)
            case _:
                return

    def _look_after(self, now: float) -> None:
        self._cluster.pool.drop_unused()
        self._routes.recheck(now)
        if self._open is not None:
            for cursor, error in self._open.check(self._cursors.values(), now):
                self.stalled(cursor.tp, error)

    def _discard(self, partitions: Collection[TopicPartition]) -> None:
        """Release the batches of these partitions that were not returned."""
        kept: list[Fetched] = []
        for tp, batches in self._batches:
            if tp not in partitions:
                kept.append((tp, batches))
                continue
            _release(batches)
        self._batches = kept
        for tp in [tp for tp in self._parked if tp in partitions]:
            _release(self._parked.pop(tp))

    def _first_unread(self, cursor: Cursor) -> int:
        kept = [b for tp, batches in self._batches if tp == cursor.tp for b in batches]
        kept += self._parked.get(cursor.tp, [])
        return kept[0].base_offset if kept else cursor.position

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all partitions after a defect in the Fetcher: it must not look like an idle
        source."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("fetcher stopped by a defect", exc_info=error)
            for cursor in list(self._cursors.values()):
                if not cursor.failed:
                    self._routes.leave(cursor)
                    self._losses.give_up(cursor, f"internal error: {error!r}")


def _release(batches: Iterable[RecordBatch]) -> None:
    for batch in batches:
        if batch.lease is not None:
            batch.lease.release()


TRANSACTION_TIMEOUT_S: Final = 60.0
"""Java's ``transaction.timeout.ms``: a broker aborts an open transaction after that, so a stable
offset that does not move for longer is either a producer with a longer timeout or a hanging
transaction."""


@dataclass(slots=True)
class _Standing:
    stable: int
    since: float
    cause: Exception | None = None
    """The error that was reported."""


@final
class OpenTransactions:
    """Detects open transactions that hold back the last stable offset under ``read_committed``.

    It never ends one: that is for the operator. Checked once a second; a change is reported once
    per partition.
    """

    def __init__(self, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._standing: dict[Cursor, _Standing] = {}

    def check(self, cursors: Iterable[Cursor], now: float) -> list[tuple[Cursor, Exception | None]]:
        """Return the cursors that are newly held back (with the cause) or not any more (None);
        ``now`` is monotonic."""
        changed: list[tuple[Cursor, Exception | None]] = []
        known, self._standing = self._standing, {}
        for cursor in cursors:
            stable = cursor.last_stable_offset
            standing = known.pop(cursor, None)
            # At the high watermark: nothing is open. A paused partition's offsets are old.
            if not 0 <= stable < cursor.high_watermark or cursor.paused:
                if standing is not None and standing.cause is not None:
                    changed.append((cursor, None))
                continue
            if cursor.node < 0:  # between two brokers nothing new is learned
                if standing is not None:
                    self._standing[cursor] = standing
                continue
            if standing is None or standing.stable != stable:
                if standing is not None and standing.cause is not None:
                    changed.append((cursor, None))
                # The stable offset has moved: another transaction holds it now.
                standing = _Standing(stable, now)
            elif standing.cause is None and now - standing.since >= self._timeout_s:
                standing.cause = self._describe(cursor, now - standing.since)
                changed.append((cursor, standing.cause))
            self._standing[cursor] = standing
        return changed

    def cause(self, cursor: Cursor | None) -> Exception | None:
        """Return what was reported of a partition that is held back still."""
        standing = None if cursor is None else self._standing.get(cursor)
        return None if standing is None else standing.cause

    @staticmethod
    def _describe(cursor: Cursor, seconds: float) -> Exception:
        return RetriableError(
            f"a transaction is open at offset {cursor.last_stable_offset} of {cursor.tp} for "
            f"{int(seconds)} s; {cursor.high_watermark - cursor.last_stable_offset} offsets behind "
            "it may not be read under isolation.level=read_committed",
            remedy="if its producer is gone, find and abort it with kafka-transactions.sh "
            "find-hanging and abort",
        )
