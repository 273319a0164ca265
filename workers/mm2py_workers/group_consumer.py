"""A member of a consumer group on confluent-kafka, for sink tasks and MirrorMaker 1; only their own
processes may load it.

Flow: settings of ``mm2py.config.librdkafka`` -> ``messages``, as MirrorMaker 1 passes them on, or
``poll`` -> ``SinkRecord`` with bytes. Callbacks of the group go to the listener from inside them
and ``close``.
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from math import inf
from typing import Final, Protocol, TypeVar, final

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from mm2py.api.records import SinkRecord
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import SILENT_S, Cluster
from mm2py.config.librdkafka import SettingValue
from mm2py.errors import AuthenticationError, FatalError, Mm2pyError, RetriableError
from mm2py.observability.logging import cause_text
from mm2py.protocol import error_codes as codes
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.sink_loop import AssignmentListener, GroupConsumer
from mm2py.runtime.tasks.sink_places import StoredPosition
from mm2py.types import TopicPartition as Partition
from mm2py_connectors.record_sender import LIBRDKAFKA, check_kerberos, no_text

log = logging.getLogger(__name__)

R = TypeVar("R")

LIST_S: Final = 10.0
ASK_S: Final = SILENT_S + 1.5
"""How long the thread waits for an answer: until another broker replaces a silent one."""
TOLD_EVERY_S: Final = 10.0
ENDS_S: Final = 1.5
"""How long a broker may take to return the ends of logs, within ``ASK_S``."""

_MOVED: Final = frozenset((
    "ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID",
    "_STATE", "_FENCED", "_ASSIGNMENT_LOST",
))  # fmt: skip
"""The group has changed: others read these partitions from what was committed before."""
_OF_PARTITIONS: Final = frozenset(
    (codes.UNKNOWN_TOPIC_OR_PARTITION, codes.TOPIC_AUTHORIZATION_FAILED)
)
"""Answers of a commit that are of single partitions; where all have one, librdkafka takes it for
the whole."""
_REFUSED: Final = frozenset(("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"))
_DENIED: Final = "TOPIC_AUTHORIZATION_FAILED"
_NOBODY_REFUSED: Final = re.compile(
    "SASL .* handshake failed: Local: |Failed to acquire SASL OAUTHBEARER token"
)
"""Of ``_REFUSED``, what is no broker's refusal: a login cut off, or no token from its endpoint."""
_PASSING: Final = frozenset((
    "_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION", "_WAIT_COORD",
))  # fmt: skip
_PASSING_CODES: Final = codes.RETRIABLE - {codes.CORRUPT_MESSAGE}
"""librdkafka tries these again by itself."""
_TOLD: Final = frozenset(("UNKNOWN", "_MAX_POLL_EXCEEDED", *_REFUSED))
"""Also retried by librdkafka, but logged: a broker that gives no cause (a tiered read that fails),
or a group that continued without this member, which joins it again."""
_EXISTS: Final = frozenset({0, codes.LEADER_NOT_AVAILABLE, codes.TOPIC_AUTHORIZATION_FAILED})
"""A topic that may not be described has no id, and is known by its name alone."""


class AskSource(Protocol):
    """What is asked of the cluster beside the consumer: what librdkafka does not return, or only
    behind its own reads."""

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        """Return the ids of those that exist; ``RetriableError``: not now."""
        ...

    def log_ends(
        self, partitions: Collection[Partition], *, read_committed: bool
    ) -> Mapping[Partition, int]:
        """Return where logs end, for readers of committed records or of all, as far as brokers
        answer; ``RetriableError``: not now."""
        ...

    def hidden(self, topics: Collection[str]) -> Collection[str]:
        """Return those that may not be described; ``RetriableError``: not now."""
        ...

    @property
    def cluster_id(self) -> str:
        """The cluster's id, empty before its first answer."""
        ...

    def close(self) -> None:
        """The consumer is closed."""
        ...


@final
class SourceAnswers(AskSource):
    """Called by threads, answered by the event loop of the cluster.

    Args:
        cluster: our own client.
        ends: the cluster is closed with the consumer.
    """

    def __init__(self, cluster: Cluster, *, ends: bool = False) -> None:
        self._events = asyncio.get_running_loop()
        self._cluster, self._ends = cluster, ends

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        result = self._wait(self._cluster.metadata(tuple(topics)))
        return {
            topic.name: topic.topic_id for topic in result.topics if topic.error_code in _EXISTS
        }

    def log_ends(
        self, partitions: Collection[Partition], *, read_committed: bool
    ) -> Mapping[Partition, int]:
        ends = Admin(self._cluster).log_ends(
            partitions, within_s=ENDS_S, read_committed=read_committed
        )
        return self._wait(ends)

    def hidden(self, topics: Collection[str]) -> Collection[str]:
        result = self._wait(self._cluster.metadata(tuple(topics)))
        return {
            it.name for it in result.topics if it.error_code == codes.TOPIC_AUTHORIZATION_FAILED
        }

    @property
    def cluster_id(self) -> str:
        return self._cluster.cluster_id

    def close(self) -> None:
        if self._ends and not self._events.is_closed():
            asyncio.run_coroutine_threadsafe(self._cluster.close(), self._events)

    def _wait(self, answer: Coroutine[None, None, R]) -> R:
        found = asyncio.run_coroutine_threadsafe(answer, self._events)
        try:
            # The caller is a librdkafka thread or the task's: it may block, the event loop may not.
            return found.result(ASK_S)
        except TimeoutError:
            # Else the request continues in the loop for an answer that is not awaited.
            found.cancel()
            raise RetriableError("the source does not answer") from None
        except Mm2pyError as error:
            # What is refused here is refused to the consumer, which reports it.
            raise RetriableError(f"the source does not say: {error.message}") from error


@final
class ConfluentConsumer(GroupConsumer):
    """Implements ``GroupConsumer``.

    Args:
        values: of librdkafka, with group and client id; automatic commits are off.
        batch: most records of one poll (``max.poll.records``).
        listener: called inside ``poll`` and ``close``.
        source: the same cluster over connections of our own: those of the consumer wait while a
            quota holds its reads back.
        waits_for_ticket: a login by Kerberos that is refused is no failure.
    """

    def __init__(
        self,
        values: Mapping[str, SettingValue],
        batch: int,
        listener: AssignmentListener,
        *,
        source: AskSource,
        waits_for_ticket: bool = False,
    ) -> None:
        check_kerberos(values)
        self._batch, self._listener, self._source = batch, listener, source
        self._read_committed = values.get("isolation.level") == "read_committed"
        self._failure: Mm2pyError | None = None
        self._told_s = -inf
        self._left: set[Partition] = set()
        """Partitions that went while the records after the first one were asked for."""
        self._reached: dict[Partition, int] = {}
        self._refused: dict[Partition, str] = {}
        """Why partitions may not be read, until something is read of them; -1 is a topic that may
        not be described."""
        self._paused: set[Partition] = set()
        """In librdkafka's eyes, which keeps a partition paused that goes and comes back."""
        self._incremental = values.get("partition.assignment.strategy") == "cooperative-sticky"
        self._waits_for_ticket = waits_for_ticket and values.get("sasl.mechanism") == "GSSAPI"
        self._consumer = Consumer(
            # Log ends come as events: markers and compacted records are no messages.
            {**values, "enable.partition.eof": True, "error_cb": self._noted, "logger": LIBRDKAFKA}
        )

    def subscribe(self, topics: Sequence[str]) -> None:
        for place in [it for it in self._refused if it.topic not in topics]:
            del self._refused[place]
        if not topics:
            self._consumer.unsubscribe()
            return
        self._consumer.subscribe(
            list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def topics(self) -> Collection[str]:
        try:
            return tuple(self._consumer.list_topics(timeout=LIST_S).topics)
        except KafkaException as error:
            raise RetriableError(f"the cluster does not answer: {cause_text(error)}") from error

    def poll(self, timeout_s: float) -> Sequence[SinkRecord]:
        return [_record(message) for message in self.messages(timeout_s)]

    def messages(self, timeout_s: float) -> list[Message]:
        """Return the next messages; the broker is waited for only for the first."""
        first = self._consumer.poll(timeout_s)
        taken: list[Message] = []
        if first is not None:
            # A rebalance may run inside ``consume``: what it takes away must not be returned with
            # the records of before.
            self._left.clear()
            more = self._consumer.consume(self._batch - 1, timeout=0) if self._batch > 1 else []
            # What came back in this call begins at the last commit, and follows again.
            is_stale = _place(first) in self._left
            taken = [it for it in (more if is_stale else [first, *more]) if self._is_record(it)]
        if self._failure is not None:
            raise self._failure
        return taken

    def reached(self) -> Mapping[Partition, int]:
        """Return the ends of logs reached since the last call: control records count, too."""
        reached, self._reached = self._reached, {}
        return reached

    def refused(self) -> Mapping[str, str]:
        named = {it.topic for it in self._refused if it.partition < 0}
        try:
            shown = named.difference(self._source.hidden(named)) if named else named
        except RetriableError:
            shown = set[str]()
        for topic in shown:  # another member may have got it
            self._refused.pop(Partition(topic, -1), None)
        # librdkafka retries by itself, but reports a known end again only after a resume.
        again = {it for it in self._refused if it.partition >= 0} - self._paused
        self.pause(again)
        self.resume(again)
        return {place.topic: cause for place, cause in self._refused.items()}

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, bytes]:
        return self._source.topic_ids(topics)

    def commit(
        self, positions: Mapping[Partition, int], topic_ids: Mapping[Partition, bytes]
    ) -> Mapping[Partition, str]:
        stored = {
            it: StoredPosition(offset, topic_ids.get(it, NO_TOPIC_ID))
            for it, offset in positions.items()
        }
        cluster_id = self._source.cluster_id
        offsets = [
            TopicPartition(*place, at.offset, at.metadata(cluster_id))
            for place, at in stored.items()
        ]
        try:
            # Synchronous: in a revocation the partitions go as soon as the callback returns.
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or ()
        except KafkaException as error:
            failed: object = error.args[0]
            assert isinstance(failed, KafkaError)
            # Not an error of the task: the next poll brings the new assignment.
            if failed.name() in _MOVED:
                text = f"the group has changed, others commit: {failed.str()}"
                return dict.fromkeys(positions, text)
            if failed.code() in _OF_PARTITIONS:
                return dict.fromkeys(positions, failed.str())
            raise RetriableError(f"{failed.name()}: {failed.str()}") from error
        return {
            Partition(answer.topic, answer.partition): answer.error.str()
            for answer in answers
            if answer.error is not None
        }

    def pause(self, partitions: Collection[Partition]) -> None:
        new = set(partitions) - self._paused
        if new:
            self._paused |= new
            self._consumer.pause(_theirs(new))

    def resume(self, partitions: Collection[Partition]) -> None:
        paused = self._paused.intersection(partitions)
        if paused:
            # No others: librdkafka would fetch again what it has prefetched of them.
            self._paused -= paused
            self._consumer.resume(_theirs(paused))

    def seek(self, partition: Partition, offset: int) -> None:
        self._reached.pop(partition, None)
        try:
            # librdkafka refuses a seek just after the assignment, before it fetches.
            self._consumer.seek(TopicPartition(*partition, offset))
        except KafkaException as error:
            raise RetriableError(f"{partition} is not read yet: {cause_text(error)}") from error

    def start(self, partition: Partition) -> int:
        try:
            start, _ = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        except KafkaException:
            return -1
        return start

    def end(self, partition: Partition) -> int:
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        except KafkaException:
            return -1
        return end

    def ends(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        try:
            return self._source.log_ends(partitions, read_committed=self._read_committed)
        except RetriableError:
            return {}

    def committed(self, partitions: Collection[Partition]) -> Mapping[Partition, StoredPosition]:
        try:
            answers = self._consumer.committed(_theirs(partitions), timeout=ASK_S)
        except KafkaException as error:
            raise RetriableError(f"the group does not answer: {cause_text(error)}") from error
        cluster_id = self._source.cluster_id
        return {
            Partition(answer.topic, answer.partition): StoredPosition.committed_with(
                answer.offset, answer.metadata, cluster_id
            )
            for answer in answers
            # -1001 (OFFSET_INVALID): nothing is committed.
            if answer.error is None and answer.offset >= 0
        }

    def close(self) -> None:
        try:
            self._consumer.close()
        except (KafkaException, RuntimeError) as error:
            log.warning("the consumer did not close in order cause=%s", cause_text(error))
        self._source.close()

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            if self._refused:
                self._refused.pop(_place(message), None)
            if self._reached:  # the record is behind that end, and its position the newer one
                self._reached.pop(_place(message), None)
            return True
        if error.name() == "_PARTITION_EOF":
            end = message.offset()
            self._refused.pop(_place(message), None)
            if end:  # an empty log needs no position
                self._reached[_place(message)] = end
        elif error.name() == _DENIED and message.topic():
            topic, partition = message.topic() or "", message.partition()
            self._refused[Partition(topic, -1 if partition is None else partition)] = (
                f"{_DENIED}: {error.str()}; grant the mirror's principal READ and DESCRIBE on "
                "that topic"
            )
        else:
            self._noted(error)
        return False

    def _noted(self, error: KafkaError) -> None:
        """Keep an error that ends the consumer; librdkafka continues by itself after the others."""
        name, text = error.name(), error.str()
        failure: Mm2pyError | None = None
        if name in _REFUSED:
            # kinit is run again, and a ticket may come.
            if not (self._waits_for_ticket or _NOBODY_REFUSED.search(text)):
                failure = AuthenticationError(f"the source refused the login: {text}")
        # What may not pass ends the consumer: silence would look like an idle topic.
        elif error.fatal() or not (
            name in _PASSING | _TOLD or error.code() in _PASSING_CODES or error.retriable()
        ):
            failure = FatalError(f"the source cannot be read: {name}: {text}")
        if failure is not None:
            self._failure = self._failure or failure
        elif name in _TOLD and time.monotonic() >= self._told_s + TOLD_EVERY_S:
            self._told_s = time.monotonic()
            log.warning("the source is not read for a moment, tried again cause=%s", text)
        else:
            log.debug("the source does not answer cause=%s", text)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # KIP-429: with cooperative-sticky the callback has only what is new.
        if self._incremental:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        self.resume(_ours(partitions))  # before the listener, which may want to pause them
        self._listener.assigned(_ours(partitions))

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._listener.revoked(self._gone(partitions))

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._listener.lost(self._gone(partitions))

    def _gone(self, partitions: list[TopicPartition]) -> list[Partition]:
        gone = _ours(partitions)
        self._left.update(gone)
        for partition in gone:
            self._reached.pop(partition, None)
            self._refused.pop(partition, None)
        return gone


def _record(message: Message) -> SinkRecord:
    # Written for what it costs per record: each call of the library's is one of C.
    topic, partition = message.topic() or "", message.partition() or 0
    kind, at_ms = message.timestamp()
    try:
        headers: Sequence[tuple[str, object]] = message.headers() or ()  # type: ignore[assignment] # its stub has str for the bytes
    except SystemError:
        raise no_text(message) from None
    return SinkRecord(
        topic,
        partition,
        message.key(),
        message.value(),
        headers,
        at_ms if kind != TIMESTAMP_NOT_AVAILABLE else -1,
        message.offset() or 0,
        topic,
        partition,
    )


def _place(message: Message) -> Partition:
    return Partition(message.topic() or "", message.partition() or 0)


def _ours(partitions: Sequence[TopicPartition]) -> list[Partition]:
    return [Partition(partition.topic, partition.partition) for partition in partitions]


def _theirs(partitions: Collection[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]
