"""One member of the consumer group: a thread that polls, hands records over, and commits what was
acknowledged.

Flow: ``ConfluentConsumer.messages`` -> handler -> ``RecordSender.send`` -> every commit interval,
at a revocation and at the end: ``RecordSender.flush`` -> commit of the source's offsets. The topics
come from ``subscribe``, which another thread calls.

Invariants, tests of the same names:

1. A position is committed only after a flush: no record before it is missing on the target, unless
   it was dropped by request.
2. What a partition has read is flushed and committed before another member of the group gets the
   partition, as far as the target answers within ``REVOKE_S``; what a member has lost is not
   committed.
3. A stream that waits for the target stays in its group: it polls with its partitions paused.
4. A record is passed on when its partition belongs to the stream at that moment: callbacks of the
   group run inside a poll, before and between the records that it returns.
5. A partition whose topic was deleted and created again is read from the beginning of the new one
   (``SinkPlaces``); Java's MirrorMaker 1 continues in the middle of it.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, cast, final

from confluent_kafka import Message

from mm2py.api.context import SourceGap
from mm2py.api.mirror_maker_1 import MessageHandler, MirrorRecord, OutgoingRecord, RebalanceListener
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.librdkafka import SettingValue
from mm2py.errors import FatalError, RetriableError
from mm2py.observability.logging import some_of
from mm2py.observability.metrics import UNKNOWN
from mm2py.runtime.tasks.sink_loop import AssignmentListener
from mm2py.runtime.tasks.sink_places import PlaceObserver, SinkPlaces
from mm2py.runtime.tasks.task_context import log_gap
from mm2py.types import TopicPartition
from mm2py_connectors.record_sender import RecordSender, SentRecord, mirrored
from mm2py_workers.group_consumer import AskSource, ConfluentConsumer

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
REVOKE_S: Final = 30.0
COMMIT_RETRY_S: Final = 0.1
LAG_S: Final = 1.0
CLOSE_S: Final = 15.0
_SHOWN: Final = 8


Handle = Callable[[Message], Sequence[OutgoingRecord]]
"""Turns a record into those for the target, in their order."""


def handled(handler: MessageHandler) -> Handle:
    """Return what calls a custom handler."""

    def handle(message: Message) -> Sequence[OutgoingRecord]:
        same = mirrored(message)
        return handler.handle(
            MirrorRecord(
                same.topic,
                message.partition() or 0,
                message.offset() or 0,
                same.key,
                same.value,
                same.headers,
                same.timestamp_ms,
            )
        )

    return handle


class _Logged(PlaceObserver):
    """Losses are in the log; there is no ledger."""

    def lost(self, gap: SourceGap) -> None:
        log_gap(gap)

    def incarnations(self) -> Mapping[TopicPartition, bytes]:
        return {}

    def began(self, partition: TopicPartition, topic_id: bytes) -> None: ...


@final
class Stream(AssignmentListener):
    """One consumer and its thread.

    Args:
        values: of librdkafka, the client id among them.
        sender: shared with other streams.
        handle: what becomes of a record; None: it is passed on as it is.
        listener: learns of assignments, or None.
        batch: most records of one poll (``max.poll.records``).
        commit_s: time between commits.
        source: asks the source.
        ended: called once when the thread ends, with the cause of a failure.
    """

    def __init__(
        self,
        values: Mapping[str, SettingValue],
        sender: RecordSender,
        handle: Handle | None,
        *,
        listener: RebalanceListener | None,
        batch: int,
        commit_s: float,
        source: AskSource,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self.name = str(values["client.id"])
        self._sender, self._handle, self._listener = sender, handle, listener
        self._commit_s, self._ended = commit_s, ended
        self._consumer = ConfluentConsumer(
            values, batch, self, source=source, waits_for_ticket=True
        )
        self._places = SinkPlaces(_Logged(), SYSTEM_CLOCK)
        self._unread: set[TopicPartition] = set()
        """Paused until their topic is known."""
        self._quiet: set[TopicPartition] = set()
        """Paused since the target is waited for."""
        self._stopping = threading.Event()
        self._topics: tuple[str, ...] = ()
        self._wanted: tuple[str, ...] = ()
        self._positions: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        self._early: list[Message] = []
        self._owned: set[TopicPartition] = set()
        self._passed_on: set[TopicPartition] = set()
        """Partitions that have stayed since what is passed on now was polled: one that came back is
        read again from its last commit."""
        self._moved: set[TopicPartition] = set()
        """Partitions whose position has changed since the last poll."""
        self._fatal: Exception | None = None
        self._waits_until_s: float | None = None
        self._stops_until_s: float | None = None
        self._waits_for_target = self._is_dealt = False
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.records = self.bytes = 0
        self.lag = UNKNOWN
        """Records between what was read and the ends of the partitions, as the last answers of
        brokers say."""

    def start(self) -> None:
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> None:
        self._wanted = tuple(topics)

    def stop(self) -> None:
        """Ask for the end: what was read is flushed and committed, as far as the target answers
        within ``CLOSE_S``."""
        self._stops_until_s = time.monotonic() + CLOSE_S
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came."""
        if self._thread.ident is None:  # never started
            self._consumer.close()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # ---- the thread

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            self._copy()
            with self._sender.hold(self._idle):
                self._commit()
        except Exception as error:  # noqa: BLE001 - the thread's edge: the process ends with it
            cause = error
        finally:
            self._consumer.close()
            self._ended(cause)

    def _copy(self) -> None:
        due_s = time.monotonic() + self._commit_s
        look_s = 0.0
        while not self._stopping.is_set():
            if self._topics != self._wanted:
                self._topics = self._wanted
                self._consumer.subscribe(self._topics)
            if not self._early:  # which was read at the positions of before
                self._read_on()
            messages = self._poll()
            self._passed_on = self._owned - self._unread
            with self._sender.hold(self._idle):
                self._pass_on(messages)
            if time.monotonic() >= due_s:
                with self._sender.hold(self._idle):
                    self._commit()
                due_s = time.monotonic() + self._commit_s
            if time.monotonic() >= look_s:
                self.lag = self._behind()
                look_s = time.monotonic() + LAG_S
            if self._fatal is not None:
                raise self._fatal

    def _begin_anew(self, among: Collection[TopicPartition] | None = None) -> None:
        """Forget positions in topics that were created again, and keep away from partitions whose
        topic is not known."""
        for place in self._places.check(self._consumer, among):
            self._forget_position(place)
        unsure = self._places.unsure & self._owned
        if unsure != self._unread:
            self._consumer.pause(unsure - self._unread)
            self._consumer.resume((self._unread - unsure) & self._owned)
            self._unread = unsure

    def _behind(self) -> int:
        """Return the lag, unknown before the group has given its part, and while a broker has not
        said where one ends or nothing was read of it."""
        # On this thread: a call of another waits as long as one poll follows the other.
        behind = 0 if self._is_dealt else UNKNOWN
        for place in self._owned:
            end = self._consumer.end(place)
            position = self._positions.get(place, 0 if end == 0 else -1)
            if end < 0 or position < 0:
                return UNKNOWN
            behind += max(0, end - position)
        return behind

    def _poll(self) -> Sequence[Message]:
        if not self._topics:
            self._stopping.wait(POLL_S)
            return ()
        early, self._early = self._early, []
        messages = early or self._consumer.messages(POLL_S)
        for topic, cause in self._consumer.refused().items():  # as in Java, it ends
            raise FatalError(f"the source cannot be read: {topic}: {cause}")
        return messages

    def _pass_on(self, messages: Sequence[Message]) -> None:
        sender, handle, idle, stays = self._sender, self._handle, self._idle, self._passed_on
        positions, checked, moved = self._positions, set[TopicPartition](), self._moved
        moved.clear()
        for message in messages:
            # A tuple is as good as a key, and costs less per record.
            place = cast("TopicPartition", (message.topic(), message.partition()))
            if place not in stays:
                continue  # revoked since it was polled: its owner reads it from the last commit
            offset = cast("int", message.offset())
            if offset != positions.get(place) and not self._follows(place, offset, checked):
                stays.discard(place)
                continue
            if handle is None:
                sender.forward(message, idle)
            else:
                for record in handle(message):
                    if place not in stays:
                        break
                    sender.send(SentRecord((place[0], place[1], offset), record), idle)
            if place in stays:  # a send may have waited, and seen a revocation
                positions[place] = self._uncommitted[place] = offset + 1
                moved.add(place)
            self.records += 1
            self.bytes += len(message)
        sender.serve(idle)
        if not self._early:
            self._note_ends()
        for place in moved:
            self._places.read_to(place, positions[place])

    def _follows(self, place: TopicPartition, offset: int, checked: set[TopicPartition]) -> bool:
        """Return whether a record may be taken; ``checked``: partitions with a hole already."""
        expected = self._positions.get(place)
        if expected is None:
            expected = self._places.next_offset(place, offset)
        if offset == expected or (offset > expected and place in checked):
            return True
        if not self._places.follows(self._consumer, TopicPartition(*place), expected, offset):
            return False
        checked.add(place)
        return True

    def _note_ends(self) -> None:
        """At a log's read end nothing is behind: transaction markers have offsets, too."""
        for place, end in self._consumer.reached().items():
            if (
                place in self._passed_on
                and self._positions.get(place) != end
                and self._follows(place, end, set())  # else the consumer was set to the end
            ):
                self._positions[place] = self._uncommitted[place] = end
                self._moved.add(place)

    def _commit(self) -> None:
        """Flush, then commit what was read; the caller holds the sender."""
        if not self._uncommitted and not self._places.pending:
            self._sender.serve(self._idle)
            return
        self._sender.flush(self._idle)
        self._places.acknowledged(tuple(self._places.pending))
        for place, offset in self._uncommitted.items():
            self._places.committed_to(place, offset)
        while self._uncommitted:
            try:
                refused = self._consumer.commit(self._uncommitted, self._places.ids)
            except RetriableError as error:
                log.warning(
                    "offsets are not committed yet, tried again stream=%s cause=%s",
                    self.name,
                    error.message,
                )
                self._idle()
                time.sleep(COMMIT_RETRY_S)
                self._forget_gone_topics()
                continue
            if refused:
                log.warning(
                    "offsets are not committed stream=%s partitions=%s cause=%s",
                    self.name,
                    _shown(refused),
                    next(iter(refused.values())),
                )
            for place in self._uncommitted.keys() - refused.keys():
                del self._uncommitted[place]
            self._forget_gone_topics()
            return

    def _forget_gone_topics(self) -> None:
        for place in [it for it in self._uncommitted if it[0] not in self._wanted]:
            del self._uncommitted[place]

    def _idle(self) -> None:
        """Stay in the group while the target is waited for; the caller holds the sender, or waits
        for it."""
        if self._waits_until_s is not None:  # inside a callback of the group: no poll within a poll
            if time.monotonic() > self._waits_until_s:
                raise TimeoutError
            return
        if self._stops_until_s is not None and time.monotonic() > self._stops_until_s:
            raise FatalError(
                "stopped before the target had acknowledged everything",
                remedy="the next start reads the rest again",
            )
        if not self._topics:
            return
        # Paused until the wait is over: each resume reads again what was read ahead.
        self._quiet |= self._owned
        self._consumer.pause(self._owned)
        self._waits_for_target = True
        try:
            more = self._consumer.messages(0)
            self._early += more  # not in one line: a revocation meanwhile makes it another list
        finally:
            self._waits_for_target = False

    def _read_on(self) -> None:
        """Read what was paused during the wait, once its topics are known to be the same."""
        waited, self._quiet = self._quiet, set()
        if waited:
            self._places.doubt(waited)
        self._begin_anew()
        self._consumer.resume(waited - self._unread)

    # ---- AssignmentListener, within a poll of this thread

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Pass their records on from now on."""
        log.info("partitions assigned stream=%s partitions=%s", self.name, _shown(partitions))
        self._owned.update(partitions)
        self._is_dealt = True
        self._places.assigned(partitions)
        self._begin_anew(partitions)
        self._sender.take(partitions, self)
        if self._listener is not None:
            self._listener.partitions_assigned(list(partitions))

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Flush and commit what was read of them."""
        log.info("partitions revoked stream=%s partitions=%s", self.name, _shown(partitions))
        if not self._finish():
            self._sender.give_up(partitions, self)
        self._forget(partitions)
        if self._listener is not None:
            self._listener.partitions_revoked(list(partitions))

    def _finish(self) -> bool:
        """Flush and commit what was read; return whether the target has acknowledged it in time,
        else others read it again."""
        if self._waits_for_target:
            log.warning("revoked while the target does not answer stream=%s", self.name)
            return False
        self._waits_until_s = time.monotonic() + REVOKE_S
        try:
            with self._sender.hold(self._idle):
                self._commit()
        except TimeoutError:
            log.warning(
                "not acknowledged within %.0f s, others read it again stream=%s",
                REVOKE_S,
                self.name,
            )
            return False
        except Exception as error:  # noqa: BLE001 - librdkafka calls this; the loop raises it
            self._fatal = error
            return False
        finally:
            self._waits_until_s = None
        return True

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Commit nothing of them: others have them already."""
        log.warning(
            "partitions lost, others read from the last commit stream=%s partitions=%s",
            self.name,
            _shown(partitions),
        )
        self._sender.give_up(partitions, self)
        self._forget(partitions)

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self._owned.difference_update(partitions)
        self._is_dealt = bool(self._owned)
        self._passed_on.difference_update(partitions)
        self._unread.difference_update(partitions)
        self._quiet.difference_update(partitions)
        self._places.left(partitions)
        # Polled while the target was waited for.
        self._early = [
            it
            for it in self._early
            if TopicPartition(it.topic() or "", it.partition() or 0) in self._owned
        ]
        for place in partitions:
            self._forget_position(place)

    def _forget_position(self, place: TopicPartition) -> None:
        self._positions.pop(place, None)
        self._uncommitted.pop(place, None)
        self._moved.discard(place)


def _shown(partitions: Collection[TopicPartition]) -> str:
    return some_of([str(partition) for partition in partitions], _SHOWN, ",")
