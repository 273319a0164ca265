"""The loop of one sink task: read as a member of a group, put, commit.

Flow: ``GroupConsumer.poll`` -> ``Prepare`` (converters, transforms, ``errors.*``) ->
``SinkTask.put``; every ``offset.flush.interval.ms``, at a revocation and at the end
``SinkTask.pre_commit`` -> ``GroupConsumer.commit`` (Java's ``WorkerSinkTask``). All of it on one
thread; knows no Kafka client and no event loop.

Invariants, tests of the same names:

1. A position is committed only when ``pre_commit`` allowed it, and never past a record that was not
   put.
2. What a partition has read is committed before another member gets it; what was lost is not
   committed.
3. A record is put when its partition belongs to the task at that moment: callbacks of the group run
   inside a poll.
4. A task that cannot put stays in its group: it polls with its partitions paused, and the same
   records are put again.
5. A partition whose topic was deleted and created again is read from the beginning of the new one
   (``SinkPlaces``).
6. A position waits while the loss ledger has an event of its partition that is not acknowledged.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol, final

from mm2py.api.records import SinkRecord
from mm2py.api.sink import SinkTask
from mm2py.client.backoff import Backoff
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.clock import Clock
from mm2py.errors import RetriableError
from mm2py.observability.logging import cause_text, some_of
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.errant_records import TaskEndsError
from mm2py.runtime.tasks.sink_places import PlacedConsumer, PlaceObserver, SinkPlaces
from mm2py.types import State, TopicPartition

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
RETRY_MS: Final = 100
LONGEST_RETRY_MS: Final = 10_000
STANDSTILL_S: Final = 10.0
"""After so long without an acknowledgement of what was read, the flow is shown as DEGRADED."""
OUTSIDE_S: Final = 30.0
"""After so long without an assignment too: a rebalance after the end of a member takes less, unless
the group waits for one that is frozen."""
OUTSIDE: Final = (
    "the group has given this task no partitions: its coordinator is not available, or another "
    "member has not joined again, which may take it max.poll.interval.ms"
)
LOOK_AGAIN_S: Final = 5.0
"""Interval for asking brokers where quiet and paused partitions end, and for positions that this
task has not committed."""

Positions = Mapping[TopicPartition, int]
Prepare = Callable[[SinkRecord], SinkRecord | None]
"""Converts and transforms a record that was read; None drops it. An error fails the task."""


class AssignmentListener(Protocol):
    """Receives changes of the assignment; called inside the consumer's ``poll`` and ``close``."""

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions were given; none of their records has been returned."""
        ...

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions are about to go; they may be committed until the end of this call."""
        ...

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Partitions have gone: another member may have them already."""
        ...


class GroupConsumer(PlacedConsumer, Protocol):
    """One member of the task's group; every method is called by the task's thread."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from the next poll on."""
        ...

    def topics(self) -> Collection[str]:
        """Return the topics of the cluster; ``RetriableError`` while it does not answer."""
        ...

    def poll(self, timeout_s: float) -> Sequence[SinkRecord]:
        """Return the next records, empty when nothing came in time; any error is final."""
        ...

    def reached(self) -> Positions:
        """Return the ends of logs that were reached since the last call: ``poll`` has returned all
        records before them."""
        ...

    def refused(self) -> Mapping[str, str]:
        """Return the topics that may not be read, with cause and remedy, and ask for them again;
        others are read meanwhile."""
        ...

    def commit(
        self, positions: Positions, topic_ids: Mapping[TopicPartition, bytes]
    ) -> Mapping[TopicPartition, str]:
        """Commit, and return why those of single partitions were not taken. ``RetriableError``:
        none was, not now."""
        ...

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these."""
        ...

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of these again."""
        ...

    def end(self, partition: TopicPartition) -> int:
        """Return the partition's end of the last Fetch response, however old that is, -1 before
        one."""
        ...

    def ends(self, partitions: Collection[TopicPartition]) -> Positions:
        """Ask brokers where logs end; those of brokers that do not answer are left out."""
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


ConsumerFactory = Callable[[AssignmentListener], GroupConsumer]


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """What was committed of one partition since the last report, the group's lag and the log's end
    (-1: unknown)."""

    records: int
    size_bytes: int
    newest_ms: int
    lag_records: int
    end: int = -1
    held: str = ""
    """Why the task holds it."""


class SinkObserver(PlaceObserver, Protocol):
    """Receives state and progress; called on the task's thread."""

    def state(self, state: State) -> None:
        """The task runs, or is paused."""
        ...

    def progress(self, made: Mapping[TopicPartition, SinkProgress]) -> None:
        """What was committed since the last call, with every partition that the task has."""
        ...

    def standstill(self, cause: str) -> None:
        """Nothing that was read is being acknowledged, or partitions are not read, with the cause;
        an empty one ends the standstill."""
        ...

    def unwritten(self) -> Collection[TopicPartition]:
        """Return the partitions whose losses are not on record yet. May block for a moment."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """``topics`` are read, or with ``chosen`` those of the cluster that it accepts, listed every
    ``look_s``."""

    topics: tuple[str, ...] = ()
    chosen: Callable[[str], bool] | None = None
    look_s: float = 5.0
    commit_s: float = 1.0


@dataclass(slots=True)
class _Count:
    records: int = 0
    size_bytes: int = 0
    newest_ms: int = -1

    def add(self, record: SinkRecord) -> None:
        self.records += 1
        key, value, at_ms = record.key, record.value, record.timestamp_ms
        if isinstance(value, bytes):
            self.size_bytes += len(value)
        if isinstance(key, bytes):
            self.size_bytes += len(key)
        if at_ms > self.newest_ms:
            self.newest_ms = at_ms

    def join(self, other: "_Count") -> None:
        self.records += other.records
        self.size_bytes += other.size_bytes
        self.newest_ms = max(self.newest_ms, other.newest_ms)


@final
class SinkLoop:
    """One life of a sink task; ``run`` is its thread.

    Args:
        task: what takes the records.
        consumer: opens the member of the group, on the thread.
        prepare: None where records are put as they were read.
        settle: waits until records that were left out are kept; called before each commit.
        permit: without it nothing is read: the worker may not be a member of its own group any
            more.
    """

    def __init__(
        self,
        task: SinkTask,
        consumer: ConsumerFactory,
        settings: SinkSettings,
        observer: SinkObserver,
        *,
        clock: Clock,
        prepare: Prepare | None = None,
        settle: Callable[[], None] = lambda: None,
        permit: Permit = UNLIMITED,
    ) -> None:
        self._task, self._open, self._settings = task, consumer, settings
        self._observer, self._clock, self._permit = observer, clock, permit
        self._prepare, self._settle = prepare, settle
        self.stopping = threading.Event()
        self.paused = False
        self.user_held: frozenset[TopicPartition] = frozenset()
        """Source partitions paused by a user; -1 is a whole topic."""
        self._consumer: GroupConsumer | None = None
        self._subscribed: tuple[str, ...] = ()
        self._owned: set[TopicPartition] = set()
        self._outside_at: float | None = None
        """Since when the group has given nothing; None once it has, be it no partition."""
        self._places = SinkPlaces(observer, clock)
        # Partitions that are paused at the consumer, and quiet ones whose broker did not say where
        # they end: what the consumer keeps of its last answer may be old by now.
        self._silent, self._unheard = set[TopicPartition](), set[TopicPartition]()
        self._held: set[TopicPartition] = set()
        """Those among them that must not be read."""
        self._task_held: dict[TopicPartition, str] = {}
        self._batch: list[SinkRecord] = []
        self._ends: dict[TopicPartition, int] = {}
        """The offset after the last record of each partition in the batch, dropped records
        included."""
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._first: dict[TopicPartition, int] = {}
        self._rewinds: dict[TopicPartition, int] = {}
        self._counts: dict[TopicPartition, _Count] = {}
        """Of each partition what was read and is not committed."""
        self._ready: dict[TopicPartition, _Count] = {}
        """What was committed and is not reported."""
        self._asked_at = self._heard_at = -inf
        self._moved_at: float | None = None
        """When something was committed last, while more waits for it."""
        self._cause = ""
        # What was reported of a standstill; topics that may not be read, and why.
        self._told, self._refused = "", dict[str, str]()
        self._failure: Exception | None = None
        self._retries = Backoff(RETRY_MS, LONGEST_RETRY_MS)
        self._retry_at = 0.0
        self._retry_after_ms: int | None = None
        self._commit_wanted = False
        self._commit_at = self._look_at = 0.0
        self._state: State | None = None

    # ---- what the task's context asks

    @property
    def owned(self) -> Collection[TopicPartition]:
        return self._owned

    def is_paused(self, partition: TopicPartition) -> bool:
        """Whether a user has paused the task, the topic or the partition."""
        held = self.user_held
        return self.paused or partition in held or TopicPartition(partition.topic, -1) in held

    def request_commit(self) -> None:
        self._commit_wanted = True

    def retry_after(self, delay_ms: int) -> None:
        self._retry_after_ms = delay_ms

    def rewind(self, offsets: Positions) -> None:
        self._rewinds.update(offsets)

    def hold(self, partitions: Collection[TopicPartition], cause: str = "") -> None:
        self._task_held.update(dict.fromkeys(partitions, cause))

    def release(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            self._task_held.pop(partition, None)

    # ---- the thread

    def run(self) -> None:
        """Run until ``stopping`` is set; any error of the task or the consumer is raised after the
        task has ended in order."""
        tried = False
        try:
            self._until_resumed()
            while not self.stopping.is_set():
                tried = True
                if self.start():
                    break
            # What was polled with a record that is still tried again is not put, and read again by
            # its next owner. Java commits past such a record at the end of a task; here its next
            # owner reads it again (1).
            with suppress(TaskEndsError):
                while not self.stopping.is_set():
                    self.turn()
        finally:
            self._end(tried=tried)

    def _until_resumed(self) -> None:
        """A task that is paused before its start opens nothing until it is resumed (Connect's
        rule)."""
        while self.paused and not self.stopping.is_set():
            self._report_state()
            self.stopping.wait(POLL_S)

    def start(self) -> bool:
        """Start the task and open its consumer; False where that has to be tried again."""
        try:
            self._task.start()
        except RetriableError as error:
            log.warning("the task cannot start yet, tried again cause=%s", cause_text(error))
            now = self._clock.monotonic()
            # The clock of the standstill runs from the first failed start.
            self._moved_at = now if self._moved_at is None else self._moved_at
            if not self._told and now - self._moved_at >= STANDSTILL_S:
                self._told = f"the task cannot start yet: {cause_text(error)}"
                self._observer.standstill(self._told)
            self.stopping.wait(self._retries.next_s())
            return False
        self._retries.reset()
        self._moved_at = None
        self._consumer = self._open(self)
        self._commit_at = self._clock.monotonic() + self._settings.commit_s
        return True

    def turn(self) -> None:
        """Poll once, put what came, and commit where that is due."""
        consumer = self._opened
        self._subscribe(consumer)
        now = self._clock.monotonic()
        # Before the poll: a rebalance inside it commits what is due anyway, and must not find
        # positions of a turn before.
        if self._commit_wanted or now >= self._commit_at:
            self._commit_wanted = False
            self._commit_at = now + self._settings.commit_s
            self._commit()
            self._report_progress(consumer)
            self._report_standstill(now)
        # After the commit and before the poll: nothing is in the batch that a seek could tear
        # apart.
        self._apply_rewinds(consumer)
        # But what waits for the target: it is of the former topic, and is put before that is left.
        if not self._batch:
            self._begin_anew(consumer)
        self._apply_pauses(consumer)
        self._report_state()
        # A pattern that matches nothing yet: there is nothing to join the group for.
        if not self._subscribed:
            self.stopping.wait(POLL_S)
            return
        # Also while nothing may be put: without polls the member exceeds ``max.poll.interval.ms``
        # and is removed (4).
        until_s = self._retry_at or self._commit_at
        polled = consumer.poll(max(0.0, min(POLL_S, until_s - self._clock.monotonic())))
        # Of a callback inside this poll; what was polled with it is read again.
        if self._failure is not None:
            raise self._failure
        self._take(polled)
        # Java's ``pausedForRedelivery``: the batch stays, its partitions are paused meanwhile.
        if self._clock.monotonic() >= self._retry_at:
            self._put()

    @property
    def _opened(self) -> GroupConsumer:
        assert self._consumer is not None
        return self._consumer

    def _subscribe(self, consumer: GroupConsumer) -> None:
        topics, chosen = self._settings.topics, self._settings.chosen
        # ``topics.regex``: listed here, as librdkafka's patterns are not Java's.
        if chosen is not None:
            if self._clock.monotonic() < self._look_at:
                return
            self._look_at = self._clock.monotonic() + self._settings.look_s
            try:
                topics = tuple(sorted(filter(chosen, consumer.topics())))
            except RetriableError as error:
                log.warning("topics cannot be listed, tried again cause=%s", cause_text(error))
                return
        if topics != self._subscribed:
            consumer.subscribe(topics)
            if not (topics and self._subscribed):
                self._outside_at = self._clock.monotonic() if topics else None
            self._subscribed = topics

    def _take(self, polled: Sequence[SinkRecord]) -> None:
        # Records of one partition come in stretches; what is per stretch costs nothing per record.
        topic, number, end, checked = "", -1, -1, inf
        place, count = TopicPartition(topic, number), _Count()
        is_owned, prepare, batch = False, self._prepare, self._batch
        places, unsure = self._places, self._places.unsure
        for record in polled:
            if record.original_partition != number or record.original_topic != topic:
                if is_owned:
                    self._read_to(place, end)
                topic, number = record.original_topic, record.original_partition
                place = TopicPartition(topic, number)
                # Else revoked since it was polled: its new owner reads it from the last commit. Or
                # it is read again.
                is_owned = place in self._owned and place not in unsure
                if is_owned:
                    self._first.setdefault(place, record.offset)
                    end, checked = places.next_offset(place, record.offset), inf
                    count = self._counts.setdefault(place, _Count())
            if not is_owned:
                continue
            offset = record.offset
            # A gap: markers and compaction leave one as a loss does; the log start offset tells
            # which (``follows``).
            if offset != end and (offset < end or checked > end):
                # Not taken: the rest of this stretch is read again once the topic's id is known.
                if not places.follows(self._opened, place, end, offset):
                    self._ends[place], is_owned = end, False
                    continue
                checked = end  # the log began below it when all of this was fetched: gaps above it are no loss either
            end = offset + 1
            count.add(record)
            made = record if prepare is None else prepare(record)
            if made is not None:
                batch.append(made)
        if is_owned:
            self._read_to(place, end)
        self._note_ends()

    def _note_ends(self) -> None:
        # Markers of transactions and what compaction has removed are read when the log's end is.
        places = self._places
        for place, end in self._opened.reached().items():
            if place not in self._owned or place in places.unsure:
                continue
            # The end is reached without a last record where markers or compacted records come last.
            expected = places.next_offset(place, end)
            if end != expected and not places.follows(self._opened, place, expected, end):
                continue  # a consumer that was set to the end has read nothing
            if self._positions.get(place) != end:
                self._read_to(place, end)

    def _read_to(self, place: TopicPartition, end: int) -> None:
        self._ends[place] = end
        self._places.read_to(place, end)

    def _put(self) -> None:
        batch = self._batch
        try:
            # Called with an empty batch too, as ``WorkerSinkTask.deliverMessages`` does: a task may
            # flush by time.
            self._task.put(batch)
        except RetriableError as error:
            pause_s = self._retries.next_s()
            if self._retry_after_ms is not None:
                pause_s = self._retry_after_ms / 1000
            self._cause = cause_text(error)
            # One line per series of retries.
            if not self._retry_at:
                text = "records cannot be put yet, tried again records=%d cause=%s"
                log.warning(text, len(batch), self._cause)
            self._retry_at = self._clock.monotonic() + pause_s
            return
        finally:
            self._retry_after_ms = None
        if self._retry_at:
            self._retry_at = 0.0
            self._retries.reset()
        # Only after the task took them: these may be committed from now on (1).
        if self._ends:
            self._positions.update(self._ends)
            self._batch, self._ends = [], {}

    # ---- positions

    def _commit(self, *, closing: bool = False) -> None:
        """Commit what the task allows; ``closing``: what cannot be committed is read again by the
        next owner."""
        places = self._places
        # Nothing new to commit: ``pre_commit`` is not called then, as Java would at every interval.
        if self._positions.items() <= self._committed.items() and not places.pending:
            return
        try:
            # The ends of former topics too, so that the task says what of them has arrived.
            allowed = self._task.pre_commit({**places.pending, **self._positions})
        except RetriableError as error:
            self._cause = cause_text(error)
            log.warning("nothing is committed, partitions are read again cause=%s", self._cause)
            if not closing:
                self._read_again()
            return
        former = places.pending.keys() - self._positions.keys()
        # Of a former topic no offset can be committed: its acknowledgement only settles the loss.
        places.acknowledged(allowed.keys())
        delivered = {
            tp: offset
            for tp, offset in allowed.items()
            if tp not in former and self._may_commit(tp, offset)
        }
        positions = self._on_record(delivered)
        if not positions:
            return
        try:
            # A position past a record that is only on its way to the dead letter queue would lose
            # it at a crash.
            self._settle()
            # With the topic ids as metadata: the group itself remembers which incarnation it has
            # read.
            refused = self._opened.commit(positions, places.ids)
        except RetriableError as error:
            self._cause = cause_text(error)
            log.warning("positions are not committed yet cause=%s", self._cause)
            return
        taken = {tp: offset for tp, offset in positions.items() if tp not in refused}
        if taken:
            self._note_committed(taken)
        if refused:
            self._cause = next(iter(refused.values()))
            log.warning(
                "positions are not committed partitions=%s cause=%s", _shown(refused), self._cause
            )

    def _on_record(self, positions: Positions) -> Positions:
        """Leave out those behind a loss that a kill would leave without a record (6)."""
        unwritten = self._observer.unwritten() if positions else ()
        if not unwritten:
            return positions
        self._cause = "a loss of the source is not in the ledger yet"
        return {tp: offset for tp, offset in positions.items() if tp not in unwritten}

    def _note_committed(self, positions: Positions) -> None:
        self._committed.update(positions)
        self._moved_at, self._cause = None, ""
        for partition, offset in positions.items():
            self._places.committed_to(partition, offset)
            # Of a batch that waits, more was counted than is committed.
            # The counts of a batch that is put again would be reported twice otherwise.
            if not self._ends and offset == self._positions.get(partition):
                count = self._counts.pop(partition, None)
                if count is not None:
                    self._ready.setdefault(partition, _Count()).join(count)

    def _may_commit(self, partition: TopicPartition, offset: int) -> bool:
        if partition not in self._owned or self._committed.get(partition) == offset:
            return False
        # As ``WorkerSinkTask.commitOffsets``, which ignores such offsets with a warning.
        if offset > self._positions.get(partition, -1):
            log.warning(
                "commit of an offset beyond delivered records ignored partition=%s offset=%d",
                partition,
                offset,
            )
            return False
        return True

    def _read_again(self) -> None:
        # Java rewinds to the last committed offsets when ``preCommit`` fails.
        for partition in self._positions:
            start = self._committed.get(partition, self._first.get(partition))
            if start is not None:
                self._rewinds[partition] = start

    def _apply_rewinds(self, consumer: GroupConsumer) -> None:
        rewinds, self._rewinds = self._rewinds, {}
        for partition, offset in rewinds.items():
            # It may have been revoked since the task asked.
            if partition in self._owned:
                try:
                    consumer.seek(partition, offset)
                except RetriableError:  # just assigned
                    self._rewinds[partition] = offset
                    continue
                self._forget(partition)
                self._first[partition] = offset
                self._places.read_to(partition, offset)

    def _begin_anew(
        self, consumer: GroupConsumer, among: Collection[TopicPartition] | None = None
    ) -> None:
        """Forget positions of recreated topics, after their pending records were put."""
        # The committed offset is of the former topic: comparing with it would skip the start of the
        # new one.
        for partition in self._places.check(consumer, among):
            self._committed.pop(partition, None)
            self._forget_positions(partition)

    def _forget(self, partition: TopicPartition) -> None:
        self._batch = [
            it for it in self._batch if (it.original_topic, it.original_partition) != partition
        ]
        self._counts.pop(partition, None)
        self._forget_positions(partition)
        # The lag has to be computed again at the next report.
        self._asked_at = -inf
        if self._retry_at and not self._batch:
            self._retry_at = 0.0

    def _forget_positions(self, partition: TopicPartition) -> None:
        for by_partition in (self._ends, self._positions, self._first):
            by_partition.pop(partition, None)

    # ---- pauses and reports

    def _apply_pauses(self, consumer: GroupConsumer) -> None:
        # All are paused at the consumer, which continues polling.
        if self.paused or self._retry_at or not self._permit.valid:
            held = set(self._owned)
        else:
            held = {it for it in self._owned if it in self._task_held or self.is_paused(it)}
        # While held no answer of Fetch could show that the topic was deleted and created again.
        back = (self._held - held) & self._owned
        self._held = held
        if back:  # their topic may be another one by now
            self._places.doubt(back)
            self._begin_anew(consumer)
        silent = held | self._places.unsure
        # Only the difference: each call goes through librdkafka's queues.
        if silent != self._silent:
            consumer.pause(silent - self._silent)
            consumer.resume(self._silent - silent)
            self._silent = silent

    def _report_state(self) -> None:
        state = State.PAUSED if self.paused else State.RUNNING
        if state is not self._state:
            self._state = state
            self._observer.state(state)

    def _report_progress(self, consumer: GroupConsumer) -> None:
        now = self._clock.monotonic()
        asks = now >= self._asked_at + LOOK_AGAIN_S
        if asks:
            self._asked_at = now
            self._look_up_committed(consumer)
            self._note_refused(consumer.refused())
        counts, self._ready = self._ready, {}
        told: Positions = {}
        if asks:
            # Of the others the last Fetch response has the end.
            quiet = self._owned - counts.keys()
            told = consumer.ends(quiet) if quiet else {}
            self._unheard = quiet - told.keys()
        self._unheard.difference_update(counts)
        if not self._unheard:
            self._heard_at = now
        made: dict[TopicPartition, SinkProgress] = {}
        for partition in self._owned:
            count = counts.get(partition) or _Count()
            is_silent = partition in self._silent
            if is_silent and not asks and not count.records:
                continue  # what was reported last is as good
            end = -1
            if partition not in self._unheard:
                end = told[partition] if partition in told else consumer.end(partition)
            lag = self._lag(partition, end)
            self._places.ends_at(partition, end)
            made[partition] = SinkProgress(
                count.records,
                count.size_bytes,
                count.newest_ms,
                lag,
                end,
                self._task_held.get(partition, ""),
            )
        self._observer.progress(made)

    def _look_up_committed(self, consumer: GroupConsumer) -> None:
        """Look up committed positions of partitions where this task has committed none, so that
        idle ones have a lag too."""
        ids = self._places.ids
        unknown = (self._owned & ids.keys()) - self._committed.keys()
        if not unknown:
            return
        try:
            for partition, stored in consumer.committed(unknown).items():
                # A position of another incarnation says nothing about the lag in this one.
                if stored.topic_id in (NO_TOPIC_ID, ids[partition]):
                    self._committed[partition] = stored.offset
        except RetriableError as error:
            log.debug("positions of the group are not known yet cause=%s", cause_text(error))

    def _note_refused(self, refused: Mapping[str, str]) -> None:
        if new := refused.keys() - self._refused.keys():
            log.warning(
                "topics may not be read, the others are copied and these are tried again "
                "topics=%s cause=%s",
                some_of(sorted(new), 8, ","),
                refused[min(new)],
            )
        self._refused = dict(refused)

    def _lag(self, partition: TopicPartition, end: int) -> int:
        """Return the group's lag, -1 where it is unknown."""
        position = self._committed.get(partition, self._first.get(partition, -1))
        if position < 0:
            return 0 if end == 0 else -1
        return max(0, end - position) if end >= 0 else -1

    def _report_standstill(self, now: float) -> None:
        """Report when nothing is acknowledged although records were read, the group gives nothing,
        or partitions must not be read for long."""
        late = self._positions.items() - self._committed.items()
        waits = bool(self._retry_at) or any(not self._task_held.get(tp) for tp, _ in late)
        if not waits:
            self._moved_at, self._cause = None, ""
        elif self._moved_at is None:
            self._moved_at = now
        late_s = 0.0 if self._moved_at is None else now - self._moved_at
        text = ""
        if late_s >= STANDSTILL_S:
            cause = self._cause or "the target does not acknowledge; the task's log says more"
            text = f"nothing of what was read is acknowledged: {cause}"
        elif self._unheard and now - self._heard_at >= STANDSTILL_S:
            text = (
                f"{_shown(self._unheard)}: the source does not say where they end, what waits "
                "there is not known"
            )
        elif self._outside_at is not None and now - self._outside_at >= OUTSIDE_S:
            text = OUTSIDE
        elif self._places.cause:
            text = (
                f"{len(self._places.unsure)} partitions are not read before the ids of their "
                f"topics are known: {self._places.cause}"
            )
        if self._refused:
            names = some_of(sorted(self._refused), 8, ",")
            refused = f"{names}: may not be read, tried again: {min(self._refused.values())}"
            text = f"{text}; {refused}" if text else refused
        if text != self._told:
            self._told = text
            self._observer.standstill(text)

    # ---- AssignmentListener

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Let the task open them."""
        log.info("partitions assigned partitions=%s", _shown(partitions))
        self._owned.update(partitions)
        self._outside_at = None
        self._places.assigned(partitions)
        self._asked_at = -inf
        self.release(partitions)
        # Java's ``onPartitionsAssigned``: open before the first record of a partition is put.
        self._guarded(lambda: self._task.open(partitions))
        # Inside the callback, before the first fetch from a position that may be of another topic.
        self._guarded(lambda: self._begin_anew(self._opened, partitions))
        self._apply_pauses(self._opened)

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Commit what the task allows, and let it close them."""
        log.info("partitions revoked partitions=%s", _shown(partitions))
        # librdkafka calls back also for what was lost before.
        if self._owned.intersection(partitions):
            # (2) The broker waits for this callback before it gives the partitions away.
            self._guarded(lambda: self._commit(closing=True))
            self._leave(partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Let the task close them; nothing is committed."""
        log.warning(
            "partitions lost, others read from the last commit partitions=%s", _shown(partitions)
        )
        # KIP-429's ``onPartitionsLost``: a commit now could overwrite the new owner's.
        self._leave(partitions)

    def _leave(self, partitions: Collection[TopicPartition]) -> None:
        self._guarded(lambda: self._task.close(partitions))
        self._places.left(partitions)
        for partition in partitions:
            self._owned.discard(partition)
            self._silent.discard(partition)
            self._held.discard(partition)
            self._forget(partition)
            self._committed.pop(partition, None)
            self._ready.pop(partition, None)
        if not self._owned:
            self._outside_at = self._clock.monotonic()

    def _guarded(self, call: Callable[[], None]) -> None:
        """Run a callback of the group: it is called inside a client, so its error is kept and
        raised by the next turn."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - kept, and raised by the turn that polled
            if self._failure is None:
                self._failure = error

    # ---- the end

    def _end(self, *, tried: bool) -> None:
        steps: list[Callable[[], None]] = []
        consumer = self._consumer
        if consumer is not None:
            # Commit while still a member, close the partitions, stop the task, leave: Java's order.
            steps += [self._last_commit, lambda: self._leave(tuple(self._owned))]
        if tried:
            steps.append(self._task.stop)
        if consumer is not None:
            steps.append(consumer.close)
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the thread's edge: the task still ends in order
                log.warning("the task did not end in order cause=%s", cause_text(error))

    def _last_commit(self) -> None:
        if self._owned and self._permit.valid:
            self._commit(closing=True)
            self._report_progress(self._opened)


def _shown(partitions: Collection[TopicPartition]) -> str:
    return some_of(sorted(map(str, partitions)), 8, ",")
