"""A producer for what consumer groups read: records in their order, each acknowledged or named.

Flow: ``hold`` -> ``send`` of what was polled -> librdkafka -> ``flush`` before a commit.
MirrorSink, its dead letter queue and MirrorMaker 1 write with it; only their own processes may load
this module. What failed is sent again here: librdkafka fails a whole batch where one record of it
is too large for the topic, so the records of a failed batch go again, each alone, and only the one
that fails alone is refused. What only lay behind it, or waited for a topic, goes again in batches:
alone, a record costs a round trip.

Invariants, tests of the same names:

1. After ``flush`` returned, each record that was sent is acknowledged or was refused.
2. A record is refused only when it failed alone, for a cause that another try does not change.
3. Of one source partition, records are acknowledged in their order, also around a refused one, as
   long as the producer is idempotent (Java's default): librdkafka then stops at the first failure
   (``enable.gapless.guarantee``). After ``give_up`` a request of the producer before may still
   arrive: a step back, as after a kill.
4. Once a refusal was not accepted (``refused`` raised), nothing is sent and nothing counts as
   flushed.
5. After ``give_up`` nothing of its partitions is handed to the target but what is in a request
   already; else records that another member has written already would be written over by older
   ones. Invariant 1 holds for all others.
6. A call that ``idle`` has ended is continued by the next one: nothing is sent again for that.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import Final, NamedTuple, cast, final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, KafkaError, KafkaException, Message, Producer

from mm2py.api.mirror_maker_1 import Headers, OutgoingRecord
from mm2py.client.connect.kerberos import use_java_krb5_conf
from mm2py.config.librdkafka import KEYTAB, PRINCIPAL, SettingValue
from mm2py.errors import ConfigError, FatalError

log = logging.getLogger(__name__)

FLUSH_S: Final = 0.5
"""How long one wait lasts before the streams that wait show that they live."""
RETRY_S: Final = 1.0
ANSWER_S: Final = 3.0
"""It lists all topics."""
FULL_S: Final = 0.1
SAID_EVERY_S: Final = 30.0
SMALL_BATCH: Final = 16_384
"""Java's default of ``batch.size``."""

Idle = Callable[[], None]
"""Called while a stream waits for the target; keeps its place in the group. Raises where the stream
has to end."""


def within(seconds: float, error: Callable[[], Exception]) -> Idle:
    """Return what raises an ``error`` of its own once so many seconds have passed."""
    until_s = time.monotonic() + seconds

    def idle() -> None:
        if time.monotonic() > until_s:
            raise error()

    return idle


_TRANSIENT: Final = frozenset((
    "_ALL_BROKERS_DOWN", "_PURGE_INFLIGHT", "_PURGE_QUEUE", "_TIMED_OUT", "_TRANSPORT",
    "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING", "LEADER_NOT_AVAILABLE", "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID",
    "UNKNOWN_TOPIC_OR_PART",
))  # fmt: skip
"""Java's producer waits for the topic, and for its brokers, as long as ``max.block.ms``: without a
limit. What was purged is ours. A broker that has lost the state of an idempotent producer takes the
records from a new one."""

RIGHTS: Final = ("CLUSTER_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED")
"""A right that is missing concerns all records of a topic, or all of them (before 2.8, for an
idempotent producer): for ``waits_for``."""

_BEHIND: Final = frozenset(("_FATAL", "_GAPLESS_GUARANTEE", "_PURGE_INFLIGHT", "_PURGE_QUEUE"))
"""Not about the record itself: another one has stopped the producer, or a partition was revoked."""
_UNKNOWN: Final = frozenset(("_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART"))

_PURGED: Final = KafkaError(KafkaError._PURGE_QUEUE)  # noqa: SLF001 - its name for a constant


def _not_expected(record: logging.LogRecord) -> bool:
    # That it stops at a gap is what we ask for, see invariant 3; the property is called
    # experimental at each start.
    return not re.search("Gap-less ordering|enable.gapless.guarantee", record.getMessage())


_principals: Final[dict[str, str]] = {}
"""Of this process: whose tickets kinit puts into its cache."""

LIBRDKAFKA: Final = logging.getLogger("librdkafka")
"""Log lines of the library, in our log."""
LIBRDKAFKA.addFilter(_not_expected)


def check_kerberos(values: Mapping[str, SettingValue]) -> None:
    """Check that the library can log in by Kerberos, where its settings ask for that.

    Raises:
        ConfigError: it was built without, as the wheels of confluent-kafka are; or this process
            logs in as another principal already.
    """
    if values.get("sasl.mechanism") != "GSSAPI":
        return
    use_java_krb5_conf()
    try:
        Producer({"builtin.features": "sasl_gssapi", "log_level": 0})
    except KafkaException:
        raise ConfigError(
            "confluent-kafka's librdkafka was built without Kerberos (GSSAPI), as that of its "
            "wheels is",
            remedy="build both as docs/guide/security.md shows, or mirror with MirrorSource",
        ) from None
    # kinit runs for a keytab alone.
    if values.keys() >= {KEYTAB, PRINCIPAL}:
        _check_principal(next(str(it) for name, it in values.items() if name == PRINCIPAL))


def _check_principal(principal: str) -> None:
    known = _principals.setdefault("keytab", principal)
    if known != principal:
        raise ConfigError(
            f"source and target are logged in to as {known} and {principal}: librdkafka has the "
            "tickets of one of them, in the cache of the process",
            remedy="give both clusters one principal, or mirror with MirrorSource",
        )


class SentRecord(NamedTuple):
    """A record under way, and the topic, partition and offset that it came from; ``origin`` is
    whose it is."""

    place: tuple[str, int, int]
    record: OutgoingRecord
    origin: object = None


Refused = Callable[[SentRecord, str], None]
"""Takes a record that the target does not take, and the cause with its place; raises ``FatalError``
to end the sender."""


def mirrored(message: Message) -> OutgoingRecord:
    """Return the record itself with all its parts; the key chooses the partition."""
    kind, at_ms = message.timestamp()
    try:
        headers = message.headers()
    except SystemError:
        raise no_text(message) from None
    return OutgoingRecord(
        message.topic() or "",
        message.key(),
        message.value(),
        cast("Headers", headers or ()),
        None if kind == TIMESTAMP_NOT_AVAILABLE else at_ms,
    )


def no_text(message: Message) -> FatalError:
    """Return what is wrong with a record whose headers the library has failed to return."""
    return FatalError(
        f"{message.topic()}-{message.partition()} offset {message.offset()}: the key of a header "
        "is no UTF-8, which confluent-kafka cannot read",
        remedy="copy with MirrorSource, which passes bytes on, or set the group's offset past "
        "the record",
    )


@dataclass(slots=True)
class _FailedRecord:
    sent: SentRecord
    number: int
    """In the order of the hand-over: offsets of a recreated topic start again."""
    error: KafkaError
    is_alone: bool
    """It failed in a request of its own."""


@final
class RecordSender:
    """One producer; every method is called by the stream that holds it.

    Args:
        values: of librdkafka.
        refused: accepts that a record is dropped, or raises.
        is_sync: wait for each record's acknowledgement.
        waits_for: names of errors that refuse no record, beside those that pass by themselves:
            retried until they are resolved.
    """

    def __init__(
        self,
        values: Mapping[str, SettingValue],
        refused: Refused,
        *,
        is_sync: bool = False,
        waits_for: Collection[str] = (),
    ) -> None:
        check_kerberos(values)
        self._values: dict[str, object] = {
            **values,
            "delivery.report.only.error": True,
            "error_cb": _ignored,  # each record that is concerned fails with it
            "logger": LIBRDKAFKA,
        }
        self._refused, self._is_sync = refused, is_sync
        self._transient = _TRANSIENT.union(waits_for)
        self._gate = threading.Lock()
        self._failures: list[_FailedRecord] = []
        self._numbers = count()
        self._refusal: FatalError | None = None
        self._producer = self._gapless()
        self._alone: Producer | None = None
        """Of a recovery that is under way, also between two calls: what was refused goes through
        it, each record alone."""
        self._stopped: Producer | None = None
        self._stop_cause: KafkaError | None = None
        self._leaving: deque[tuple[str, int]] = deque()
        """Source partitions that were given up, and whose records are not taken out yet."""
        self._given_up: set[tuple[str, int]] = set()
        """Those whose records were taken out since the present call began."""
        self._readers: dict[tuple[str, int], object] = {}
        self._handing = threading.Lock()
        """Between a look at ``_leaving`` and its hand-over, nothing is given up."""
        self._again_s = -1.0
        """When the pause before the next try ends, also after ``idle`` ended the call; -1: none."""
        self._said_s = -inf
        self.dropped = 0

    @property
    def waiting(self) -> tuple[int, str]:
        """How many records are neither acknowledged nor refused, and why the first of them failed,
        where one did."""
        failed = self._failures
        producers = [it for it in (self._producer, self._alone) if it is not None]
        cause = f"{failed[0].sent.place[0]}: {failed[0].error.str()}" if failed else ""
        return sum(map(len, producers)) + len(failed), cause

    @contextmanager
    def hold(self, idle: Idle) -> Generator[None]:
        """Hold the producer while the block runs; other streams wait, and stay alive meanwhile."""
        # A lock with a time-out: while another stream recovers, this one polls its group.
        while not self._gate.acquire(timeout=FLUSH_S):
            idle()
        try:
            yield
        finally:
            self._gate.release()

    def send(self, sent: SentRecord, idle: Idle) -> None:
        """Hand a record over; ``FatalError``: see ``flush``."""
        plain = self._refusal is None and not self._failures and self._alone is None
        if plain and not self._is_sync and not self._given_up:
            topic, key, value, headers, timestamp_ms, chosen = sent.record
            listed = _listed(headers) if headers else None
            partition, at_ms = -1 if chosen is None else chosen, timestamp_ms or 0
            failed = partial(self._failed, sent, next(self._numbers))
            try:
                if not self._leaving:  # as in ``forward``, and by position too
                    self._producer.produce(
                        topic, value, key, partition, failed, None, at_ms, listed
                    )
                    return
            except (BufferError, KafkaException):
                pass
        self._send(sent, idle)

    def _send(self, sent: SentRecord, idle: Idle) -> None:
        self._check()
        self._recover(idle)
        self._produce(self._producer, sent, next(self._numbers), idle)
        if self._is_sync:
            self.flush(idle)

    def forward(self, source: Message, idle: Idle) -> None:
        """Hand over a record as it is: ``send`` of ``mirrored``, without an object for each record.
        ``FatalError``: see ``flush``."""
        plain = self._refusal is None and not self._failures and self._alone is None
        if plain and not self._is_sync and not self._given_up:
            kind, at_ms = source.timestamp()
            topic = source.topic() or ""
            value = source.value()
            key = source.key()
            try:
                headers = source.headers()
            except SystemError:
                raise no_text(source) from None
            failed = partial(self._not_forwarded, source, next(self._numbers))
            try:
                # Without ``_handing``, which takes a tenth of the time: from this look until the
                # record is with the library no other thread gets the interpreter.
                if not self._leaving:
                    # By position: its keywords take half a microsecond more.
                    self._producer.produce(
                        topic,
                        value,
                        key,
                        -1,
                        failed,
                        None,
                        0 if kind == TIMESTAMP_NOT_AVAILABLE else at_ms,
                        headers,
                    )
                    return
            except (BufferError, KafkaException):
                pass  # that is for what sends one record after the other
        self._send(_as_it_is(source), idle)

    def serve(self, idle: Idle) -> None:
        """Handle what has failed since the last call; raises as ``flush``."""
        self._check()
        self._poll(self._producer, 0)
        self._recover(idle)

    def flush(self, idle: Idle) -> None:
        """Wait until everything that was sent is acknowledged or refused; ``FatalError``: a record
        was refused, and ``refused`` does not accept it."""
        self._check()
        self._wait(self._producer, idle)
        while self._recovers:
            self._recover(idle)
            self._wait(self._producer, idle)

    def take(self, partitions: Collection[tuple[str, int]], reader: object) -> None:
        """Note who reads these source partitions from now on, where several readers share the
        sender; any thread may call it."""
        with self._handing:
            self._readers.update(dict.fromkeys(partitions, reader))

    def give_up(self, partitions: Collection[tuple[str, int]], reader: object = None) -> None:
        """Send nothing more of these source partitions: others read them from the last commit, and
        write them.

        Records of other partitions that wait are sent again, each alone. Any thread may call it,
        also while another one holds the sender, and inside ``idle``. What another reader has taken
        since stays: its records come after those of this one.
        """
        with self._handing:
            # Also where nothing seems to wait: the sender's thread may hold records.
            gone = [
                partition
                for partition in partitions
                if self._readers.get(partition, reader) is reader
            ]
            if not gone:
                return
            self._leaving.extend(gone)
            for producer in (self._producer, self._alone):
                if producer is not None:
                    # Purged records fail with _PURGE_QUEUE or _PURGE_INFLIGHT; those of other
                    # partitions are sent again.
                    producer.purge(blocking=False)

    def take_back(self) -> Sequence[tuple[SentRecord, str]]:
        """Return what is neither acknowledged nor refused, in order, with what is known of the
        cause, and send none of it.

        What is in a request may be written still. ``FatalError``: see ``flush``.
        """
        self._check()
        self._purge()
        back, self._failures = sorted(self._failures, key=lambda it: it.number), []
        return [
            (
                it.sent,
                "" if it.error.name() in _BEHIND else f"{it.sent.record.topic}: {it.error.str()}",
            )
            for it in back
        ]

    def answers(self) -> bool:
        """Return whether the cluster answers, within ``ANSWER_S``."""
        try:
            self._producer.list_topics(None, ANSWER_S)
        except KafkaException:
            return False
        return True

    def close(self) -> None:
        """End it; what is not acknowledged is dropped, and read again by the next start."""
        for producer in (self._producer, self._alone):
            if producer is not None:
                producer.purge()

    # ---- inside

    @property
    def _recovers(self) -> bool:
        return bool(self._failures) or self._alone is not None

    def _check(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._take_out()
        # Nothing of theirs is left: what is sent from now on was read again.
        self._given_up.clear()

    def _take_out(self) -> None:
        """Take given-up partitions' records out of what is under way; the others failed."""
        if not self._leaving:
            return
        while self._leaving:
            self._given_up.add(self._leaving.popleft())
        if not (self._failures or self._alone is not None or len(self._producer)):
            return  # there was nothing to purge
        self._purge()
        self._failures = self._staying(self._failures)

    def _purge(self) -> None:
        for producer in (self._producer, self._alone):
            while producer is not None and len(producer):
                producer.purge(blocking=False)
                self._poll(producer, FULL_S)
        # A producer that was purged has gaps in its sequences: a new one begins cleanly.
        self._producer, self._alone = self._gapless(), None

    def _staying(self, failures: list[_FailedRecord]) -> list[_FailedRecord]:
        return [failure for failure in failures if failure.sent.place[:2] not in self._given_up]

    def _gapless(self) -> Producer:
        idempotent = bool(self._values.get("enable.idempotence"))
        # ``enable.gapless.guarantee`` needs idempotence; else ``max.in.flight`` decides.
        return Producer({**self._values, "enable.gapless.guarantee": idempotent})

    def _produce(self, producer: Producer, sent: SentRecord, number: int, idle: Idle) -> None:
        topic, key, value, headers, timestamp_ms, partition = sent.record
        listed = _listed(headers) if headers else None
        failed = partial(self._failed, sent, number, is_alone=producer is self._alone)
        while not self._given_up or sent.place[:2] not in self._given_up:
            try:
                with self._handing:
                    # After a purge it would overtake what was purged, and is sent again.
                    if not self._leaving:
                        producer.produce(
                            topic,
                            value,
                            key,
                            on_delivery=failed,
                            timestamp=timestamp_ms or 0,
                            headers=listed,
                            partition=-1 if partition is None else partition,
                        )
                        return
            # librdkafka's queue is full: serve callbacks until there is room.
            except BufferError:
                if not self._poll(producer, FULL_S):
                    idle()
            except KafkaException as error:
                failed(_cause(error))
                return
            self._take_out()
            # Replaced by a purge meanwhile: what waits goes through the new one, in order.
            if producer not in (self._producer, self._alone):
                self._failed(sent, number, _PURGED)
                return

    def _failed(
        self,
        sent: SentRecord,
        number: int,
        error: KafkaError | None,
        _message: Message | None = None,
        *,
        is_alone: bool = False,
    ) -> None:
        if error is not None and sent.place[:2] not in self._given_up:
            self._failures.append(_FailedRecord(sent, number, error, is_alone))

    def _not_forwarded(
        self, source: Message, number: int, error: KafkaError | None, message: Message
    ) -> None:
        if error is not None:
            self._failed(_as_it_is(source), number, error, message)

    def _wait(self, producer: Producer, idle: Idle) -> None:
        # Not its flush(): called back with a fatal error pending, it loses the failure.
        idle_s = time.monotonic() + FLUSH_S
        while len(producer):
            if producer is self._stopped:
                # What was handed over while it stopped is in none of its purges.
                producer.purge(in_flight=False, blocking=False)
            self._poll(producer, FULL_S)
            if time.monotonic() >= idle_s:
                idle_s = time.monotonic() + FLUSH_S
                idle()
            self._take_out()

    def _poll(self, producer: Producer, timeout_s: float) -> int:
        """Serve callbacks; a producer stopped at a gap logs it once, then fails its records."""
        try:
            return producer.poll(timeout_s)
        except KafkaException as error:
            cause = _cause(error)
            if not cause.fatal():
                raise
            self._stopped, self._stop_cause = producer, cause
            return 1

    def _recover(self, idle: Idle) -> None:
        """Send again what failed, in the source's order. Continues after ``idle`` raised."""
        while self._recovers:
            # All of it: only when nothing is under way is the order of what failed known.
            self._wait(self._producer, idle)
            self._fit_batches()
            self._send_alone(idle)
            waits = [it for it in self._failures if it.error.name() not in _BEHIND]
            if waits:
                if time.monotonic() - self._said_s > SAID_EVERY_S:
                    self._said_s = time.monotonic()
                    log.warning(
                        "the target does not take records yet, tried again records=%d cause=%s",
                        len(self._failures), waits[0].error.str(),
                    )  # fmt: skip
                self._pause(idle)
                self._look_up(waits)
            self._send_batches(idle)

    def _look_up(self, waits: Sequence[_FailedRecord]) -> None:
        """Ask for topics and partitions that were not there: by itself the library would after
        ``metadata.max.age.ms``."""
        topics = {it.sent.record.topic for it in waits if it.error.name() in _UNKNOWN}
        if topics:
            only = topics.pop() if len(topics) == 1 else None
            with suppress(KafkaException):  # asked again after the next pause
                self._producer.list_topics(only, RETRY_S)

    def _fit_batches(self) -> None:
        """Build smaller batches from now on where a topic did not take one: each that is refused
        costs a request per record."""
        size = int(cast("int", self._values.get("batch.size", SMALL_BATCH)))
        too_large = [
            failure for failure in self._failures if failure.error.name() == "MSG_SIZE_TOO_LARGE"
        ]
        if too_large and size > SMALL_BATCH:
            self._values["batch.size"] = SMALL_BATCH
            log.warning(
                "a batch was too large for topic %s, batch.size=%d from now on",
                too_large[0].sent.record.topic,
                SMALL_BATCH,
            )

    def _send_alone(self, idle: Idle) -> None:
        """Send what may be refused, each record alone, with what lies before it in its source
        partition; refuse what fails again."""
        again = self._to_send_alone()
        if self._alone is None:
            if not again:
                return
            # One message per batch: the broker's answer is then about this record alone.
            self._alone = Producer({**self._values, "batch.num.messages": 1, "linger.ms": 0})
        alone = self._alone
        self._hand_over(alone, again, idle)
        self._wait(alone, idle)
        self._judge()
        self._producer, self._alone = self._gapless(), None

    def _to_send_alone(self) -> list[_FailedRecord]:
        last: dict[tuple[str, int], int] = {}
        no_refusal = self._transient | _BEHIND
        for failure in self._failures:
            if failure.error.name() not in no_refusal:
                place = failure.sent.place[:2]
                last[place] = max(last.get(place, -1), failure.number)
        # A producer that stops blaming no record would stop again: this finds the record.
        is_unclear = (
            self._alone is None
            and self._stopped is self._producer
            and all(it.error.name() in _BEHIND for it in self._failures)
        )
        return [
            it
            for it in self._failures
            if not it.is_alone and (is_unclear or it.number <= last.get(it.sent.place[:2], -1))
        ]

    def _send_batches(self, idle: Idle) -> None:
        if self._stopped is self._producer:
            self._producer = self._gapless()
        self._hand_over(self._producer, self._failures, idle)

    def _hand_over(self, producer: Producer, failures: Sequence[_FailedRecord], idle: Idle) -> None:
        """Hand over in the order of the source. What is left where ``idle`` raises, or partitions
        were given up, has still failed."""
        ordered = sorted(failures, key=lambda it: it.number)
        numbers = {it.number for it in ordered}
        self._failures = [it for it in self._failures if it.number not in numbers]
        handed = 0
        try:
            for failure in ordered:
                if producer not in (self._producer, self._alone):
                    break
                self._produce(producer, failure.sent, failure.number, idle)
                handed += 1
        finally:
            self._failures += self._staying(ordered[handed:])

    def _judge(self) -> None:
        """Refuse what failed alone, but for a cause that passes."""
        refused: set[int] = set()
        cause = self._stop_cause if self._stopped is self._alone else None
        alone = [it for it in self._failures if it.is_alone]
        try:
            for failure in sorted(alone, key=lambda it: it.number):
                if cause is not None and failure.error.name() in _BEHIND:
                    failure.error = cause
                # It may pass: tried again with the others.
                if failure.error.name() in self._transient:
                    failure.is_alone = False
                else:
                    self._refuse(failure)
                    refused.add(failure.number)
        finally:
            self._failures = [it for it in self._failures if it.number not in refused]

    def _pause(self, idle: Idle) -> None:
        if self._again_s < 0:
            self._again_s = time.monotonic() + RETRY_S
        while time.monotonic() < self._again_s:
            time.sleep(FULL_S)
            idle()
            self._take_out()
        self._again_s = -1.0

    def _refuse(self, failure: _FailedRecord) -> None:
        (topic, partition, offset), error = failure.sent.place, failure.error
        text = (
            f"{topic}-{partition} offset {offset} was not taken by the target: "
            f"{error.name()}: {error.str()}"
        )
        try:
            self._refused(failure.sent, text)
        except FatalError as refusal:
            self._refusal = refusal
            raise
        self.dropped += 1


def _listed(headers: Headers) -> list[tuple[str, str | bytes | None]]:
    # It takes lists alone, and nothing in place of an empty one.
    return cast("list[tuple[str, str | bytes | None]]", list(headers))


def _as_it_is(source: Message) -> SentRecord:
    place = source.topic() or "", source.partition() or 0, source.offset() or 0
    return SentRecord(place, mirrored(source))


def _ignored(_error: KafkaError) -> None:
    pass


def _cause(error: KafkaException) -> KafkaError:
    cause: object = error.args[0]
    assert isinstance(cause, KafkaError)
    return cause
