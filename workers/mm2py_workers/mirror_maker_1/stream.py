"""One member of the consumer group: a thread that polls, hands records over, and commits what was acknowledged.

Flow: ``run`` -> poll -> handler -> ``RecordSender.send`` -> every commit interval, at a revocation and at the end: ``RecordSender.flush`` ->
commit of the source's offsets. The topics come from ``subscribe``, which another thread calls.

Invariants, tests of the same names:

1. A position is committed only behind a flush: no record before it is missing on the target, unless it was dropped by request.
2. What a partition has read is flushed and committed before another member of the group gets the partition, as far as the
   target answers within ``REVOKE_S``; what a member has lost is not committed.
3. A stream that waits for the target stays in its group: it polls with its partitions paused.
4. A record is passed on when its partition belongs to the stream at that moment: callbacks of the group run inside a poll, before and
   between the records that it returns.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, cast, final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from mm2py.api.mirror_maker_1 import (
    MessageHandler,
    MirrorRecord,
    OutgoingRecord,
    RebalanceListener,
)
from mm2py.config.librdkafka import Value
from mm2py.errors import AuthenticationError, FatalError
from mm2py.observability.logging import some_of
from mm2py.types import TopicPartition as Partition
from mm2py_connectors.record_sender import LIBRDKAFKA, RecordSender, Sent, mirrored
from mm2py_workers.group_consumer import MOVED, consumer_failure

__all__ = ["Handle", "Stream", "handled"]

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
REVOKE_S: Final = 30.0
COMMIT_RETRY_S: Final = 0.1
CLOSE_S: Final = 15.0
_SHOWN: Final = 8

_Place = tuple[str, int]


class Handle(Protocol):
    """Turns a record into those for the target."""

    def __call__(self, message: Message, /) -> Sequence[OutgoingRecord]:
        """Return them in their order."""
        ...


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


@final
class Stream:
    """One consumer and its thread.

    Args:
        values: of librdkafka, the client id among them.
        sender: shared with other streams.
        handle: what becomes of a record; None: it is passed on as it is.
        listener: learns of assignments, or None.
        batch: most records of one poll (``max.poll.records``).
        commit_s: time between commits.
        ended: called once when the thread ends, with the cause of a failure.
    """

    def __init__(
        self,
        values: Mapping[str, Value],
        sender: RecordSender,
        handle: Handle | None,
        *,
        listener: RebalanceListener | None,
        batch: int,
        commit_s: float,
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self.name = str(values["client.id"])
        self._sender, self._handle, self._listener = sender, handle, listener
        self._batch, self._commit_s, self._ended = batch, commit_s, ended
        self._consumer = Consumer({**values, "error_cb": self._error, "logger": LIBRDKAFKA})
        self._by_ticket = values.get("sasl.mechanism") == "GSSAPI"
        self._stopping = threading.Event()
        self._topics: tuple[str, ...] = ()
        self._wanted: tuple[str, ...] = ()
        self._positions: dict[_Place, int] = {}
        self._uncommitted: dict[_Place, int] = {}
        self._early: list[Message] = []
        self._owned: set[_Place] = set()
        self._fatal: Exception | None = None
        self._waits_until_s: float | None = None
        self._stops_until_s: float | None = None
        self._waits_for_target = False
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.records = self.bytes = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from the next poll on."""
        self._wanted = tuple(topics)

    def stop(self) -> None:
        """Ask for the end: what was read is flushed and committed, as far as the target answers within ``CLOSE_S``."""
        self._stops_until_s = time.monotonic() + CLOSE_S
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came."""
        if self._thread.ident is None:  # never started
            self._consumer.close()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def lag(self) -> int:
        """Records between what was read and the ends of the partitions, as the last answers of brokers say."""
        total = 0
        for place, position in tuple(self._positions.items()):
            try:
                _, end = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            except (KafkaException, RuntimeError):  # it is closed meanwhile
                return total
            total += max(0, end - position)  # a negative end: not known yet
        return total

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
            try:
                self._consumer.close()
            except (KafkaException, RuntimeError) as error:
                log.warning(
                    "the consumer did not close in order stream=%s cause=%s", self.name, error
                )
            self._ended(cause)

    def _copy(self) -> None:
        due_s = time.monotonic() + self._commit_s
        while not self._stopping.is_set():
            self._subscribe()
            messages = self._poll()
            with self._sender.hold(self._idle):
                self._pass_on(messages)
            if time.monotonic() >= due_s:
                with self._sender.hold(self._idle):
                    self._commit()
                due_s = time.monotonic() + self._commit_s
            if self._fatal is not None:
                raise self._fatal

    def _subscribe(self) -> None:
        wanted = self._wanted
        if wanted == self._topics:
            return
        self._topics = wanted
        if wanted:
            self._consumer.subscribe(
                list(wanted), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        else:
            self._consumer.unsubscribe()

    def _poll(self) -> list[Message]:
        if not self._topics:
            self._stopping.wait(POLL_S)
            return []
        early, self._early = self._early, []
        if early:
            return early
        first = self._consumer.poll(POLL_S)
        if first is None:
            return []
        # The first has waited for the broker; the others are there, or will be in the next round.
        return (
            [first, *self._consumer.consume(self._batch - 1, timeout=0)]
            if self._batch > 1
            else [first]
        )

    def _pass_on(self, messages: Sequence[Message]) -> None:
        sender, handle, idle, owned = self._sender, self._handle, self._idle, self._owned
        for message in messages:
            error = message.error()
            if error is not None:
                self._error(error)
                continue
            place = cast("_Place", (message.topic(), message.partition()))
            if place not in owned:
                continue  # revoked since it was polled: its new owner reads it from the last commit
            if handle is None:
                sender.forward(message, idle)
            else:
                for record in handle(message):
                    sender.send(Sent((*place, cast("int", message.offset())), record), idle)
            if place in owned:  # a send may have waited, and seen a revocation
                self._positions[place] = self._uncommitted[place] = (
                    cast("int", message.offset()) + 1
                )
            self.records += 1
            self.bytes += len(message)
        sender.serve(idle)

    def _commit(self) -> None:
        """Flush, then commit what was read; the caller holds the sender."""
        if not self._uncommitted:
            self._sender.serve(self._idle)
            return
        self._sender.flush(self._idle)
        while self._uncommitted:
            try:
                self._commit_once()
            except KafkaException as error:
                failed: object = error.args[0]
                assert isinstance(failed, KafkaError)
                if failed.name() in MOVED:
                    log.warning(
                        "the group has changed, others commit stream=%s cause=%s",
                        self.name,
                        failed.str(),
                    )
                    return
                log.warning(
                    "offsets are not committed yet, tried again stream=%s cause=%s",
                    self.name,
                    failed.str(),
                )
                self._idle()
                time.sleep(COMMIT_RETRY_S)
                for place in [it for it in self._uncommitted if it[0] not in self._wanted]:
                    del self._uncommitted[place]  # its topic is gone
            else:
                self._uncommitted.clear()

    def _commit_once(self) -> None:
        offsets = [TopicPartition(*place, offset) for place, offset in self._uncommitted.items()]
        for it in self._consumer.commit(offsets=offsets, asynchronous=False) or ():
            if it.error is not None:
                log.warning(
                    "offset not committed stream=%s partition=%s-%d cause=%s",
                    self.name,
                    it.topic,
                    it.partition,
                    it.error,
                )

    def _idle(self) -> None:
        """Stay in the group while the target is waited for; the caller holds the sender, or waits for it."""
        if self._waits_until_s is not None:  # inside a callback of the group: no poll within a poll
            if time.monotonic() > self._waits_until_s:
                raise TimeoutError
            return
        if self._stops_until_s is not None and time.monotonic() > self._stops_until_s:
            raise FatalError(
                "stopped before the target had acknowledged everything",
                remedy="the next start reads the rest again",
            )
        assigned = self._consumer.assignment()
        if not assigned:
            return
        self._consumer.pause(assigned)
        self._waits_for_target = True
        try:
            early = self._consumer.poll(0)
        finally:
            self._waits_for_target = False
            self._consumer.resume([it for it in self._consumer.assignment() if it in assigned])
        if early is not None:
            self._early.append(early)

    # ---- callbacks of the group, within a poll of this thread

    def _assigned(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.info("partitions assigned stream=%s partitions=%s", self.name, _shown(partitions))
        self._owned |= _places(partitions)
        if self._listener is not None:
            self._listener.partitions_assigned(_ours(partitions))

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.info("partitions revoked stream=%s partitions=%s", self.name, _shown(partitions))
        if self._waits_for_target:
            # What was sent is not acknowledged: others read it again from the last commit.
            log.warning("revoked while the target does not answer stream=%s", self.name)
        else:
            self._finish()
        self._forget(partitions)
        if self._listener is not None:
            self._listener.partitions_revoked(_ours(partitions))

    def _finish(self) -> None:
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
        except Exception as error:  # noqa: BLE001 - librdkafka calls this; the loop raises it
            self._fatal = error
        finally:
            self._waits_until_s = None

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        log.warning(
            "partitions lost, others read from the last commit stream=%s partitions=%s",
            self.name,
            _shown(partitions),
        )
        self._forget(partitions)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        places = _places(partitions)
        self._owned -= places
        for place in places:
            self._positions.pop(place, None)
            self._uncommitted.pop(place, None)

    def _error(self, error: KafkaError) -> None:
        failure = consumer_failure(error)
        if isinstance(failure, AuthenticationError) and self._by_ticket:
            # kinit is run again, and a ticket may come: what it was refused for is in the library's lines.
            log.warning("the source refuses the login, tried again stream=%s", self.name)
        elif failure is not None:
            self._fatal = failure
        else:
            log.debug("the source does not answer stream=%s cause=%s", self.name, error.str())


def _places(partitions: Sequence[TopicPartition]) -> set[_Place]:
    return {(it.topic, it.partition) for it in partitions}


def _shown(partitions: Sequence[TopicPartition]) -> str:
    return some_of([f"{it.topic}-{it.partition}" for it in partitions], _SHOWN, ",")


def _ours(partitions: Sequence[TopicPartition]) -> list[Partition]:
    return [Partition(it.topic, it.partition) for it in partitions]
