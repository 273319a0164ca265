"""A member of a consumer group on confluent-kafka, for sink tasks; only a task's own process may load it.

Flow: settings of ``mm2py.config.librdkafka`` -> ``open_consumer`` -> ``poll`` -> ``SinkRecord`` with bytes. Callbacks of the
group go to the task's loop from inside ``poll`` and ``close``.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final, final

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from mm2py.api.records import SinkRecord
from mm2py.config.librdkafka import Value
from mm2py.errors import AuthenticationError, FatalError, Mm2pyError, RetriableError
from mm2py.observability.logging import cause_text
from mm2py.runtime.tasks.sink_loop import AssignmentListener, GroupConsumer
from mm2py.types import TopicPartition as Partition
from mm2py_connectors.record_sender import LIBRDKAFKA, check_kerberos

__all__ = ["MOVED", "ConfluentConsumer", "consumer_failure"]

log = logging.getLogger(__name__)

LIST_S: Final = 10.0
ASK_S: Final = 2.0
"""How long an answer that is only shown is waited for."""

MOVED: Final = frozenset(
    ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID", "_STATE", "_FENCED",
     "_ASSIGNMENT_LOST")
)  # fmt: skip
"""The group has changed: others read these partitions from what was committed before."""
_REFUSED: Final = frozenset(("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"))
_PASSING: Final = frozenset(
    ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_PARTITION_EOF", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC",
     "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "_WAIT_COORD", "LEADER_NOT_AVAILABLE")
)  # fmt: skip
"""librdkafka tries these again by itself."""


def consumer_failure(error: KafkaError) -> Mm2pyError | None:
    """Return what an error of a consumer ends it with, None where librdkafka goes on by itself."""
    if error.name() in _REFUSED:
        return AuthenticationError(f"the source refused the login: {error.str()}")
    if error.fatal() or not (error.name() in _PASSING or error.retriable()):
        return FatalError(f"the source cannot be read: {error.name()}: {error.str()}")
    return None


@final
class ConfluentConsumer(GroupConsumer):
    """Implements ``GroupConsumer``.

    Args:
        values: of librdkafka, with group and client id; automatic commits are off.
        batch: most records of one poll (``max.poll.records``).
        listener: called inside ``poll`` and ``close``.
    """

    def __init__(
        self, values: Mapping[str, Value], batch: int, listener: AssignmentListener
    ) -> None:
        check_kerberos(values)
        self._batch, self._listener = batch, listener
        self._failure: Mm2pyError | None = None
        self._left: set[Partition] = set()
        """Partitions that went while the records behind the first one were asked for."""
        self._incremental = values.get("partition.assignment.strategy") == "cooperative-sticky"
        self._consumer = Consumer({**values, "error_cb": self._noted, "logger": LIBRDKAFKA})

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from the next poll on."""
        if not topics:
            self._consumer.unsubscribe()
            return
        self._consumer.subscribe(
            list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def topics(self) -> Collection[str]:
        """Return the topics of the cluster."""
        try:
            return tuple(self._consumer.list_topics(timeout=LIST_S).topics)
        except KafkaException as error:
            raise RetriableError(f"the cluster does not answer: {cause_text(error)}") from error

    def poll(self, timeout_s: float) -> Sequence[SinkRecord]:
        """Return the next records; the first has waited for the broker, the others are there or come next time."""
        first = self._consumer.poll(timeout_s)
        records: list[SinkRecord] = []
        if first is not None:
            self._left.clear()
            more = self._consumer.consume(self._batch - 1, timeout=0) if self._batch > 1 else []
            # What came back in the same call begins at the last commit: the record is among what follows.
            is_stale = (first.topic() or "", first.partition() or 0) in self._left
            self._read(more if is_stale else [first, *more], records)
        if self._failure is not None:
            raise self._failure
        return records

    def commit(self, positions: Mapping[Partition, int]) -> bool:
        """Commit, and wait for the answer."""
        offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or ()
        except KafkaException as error:
            failed: object = error.args[0]
            assert isinstance(failed, KafkaError)
            if failed.name() in MOVED:
                log.warning("the group has changed, others commit cause=%s", failed.str())
                return False
            raise RetriableError(f"{failed.name()}: {failed.str()}") from error
        refused = [it for it in answers if it.error is not None]
        if refused:
            first = refused[0]
            raise RetriableError(
                f"{len(refused)} offsets were refused, of {first.topic}-{first.partition}: {first.error}"
            )
        return True

    def pause(self, partitions: Collection[Partition]) -> None:
        """Return no records of these."""
        if partitions:
            self._consumer.pause(_theirs(partitions))

    def resume(self, partitions: Collection[Partition]) -> None:
        """Return records of these again."""
        if partitions:
            self._consumer.resume(_theirs(partitions))

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on from this offset."""
        self._consumer.seek(TopicPartition(*partition, offset))

    def end(self, partition: Partition, *, ask: bool) -> int:
        """Return the end as the last Fetch said, or as the broker says now."""
        try:
            _, end = (
                self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=ASK_S)
                if ask
                else self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
            )
        except KafkaException:
            return -1
        return end

    def committed(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Ask the group's coordinator."""
        try:
            found = self._consumer.committed(_theirs(partitions), timeout=ASK_S)
        except KafkaException as error:
            raise RetriableError(f"the group does not answer: {cause_text(error)}") from error
        return {
            Partition(it.topic, it.partition): it.offset
            for it in found
            if it.error is None and it.offset >= 0
        }

    def close(self) -> None:
        """Leave the group."""
        try:
            self._consumer.close()
        except (KafkaException, RuntimeError) as error:
            log.warning("the consumer did not close in order cause=%s", cause_text(error))

    def _read(self, messages: Sequence[Message], records: list[SinkRecord]) -> None:
        # Written for what it costs per record: each call of the library's is one of C.
        for message in messages:
            error = message.error()
            if error is not None:
                self._noted(error)
                continue
            topic, partition = message.topic() or "", message.partition() or 0
            kind, at_ms = message.timestamp()
            headers: Sequence[tuple[str, object]] = message.headers() or ()  # type: ignore[assignment] # its stub has str for the bytes
            records.append(
                SinkRecord(
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
            )

    def _noted(self, error: KafkaError) -> None:
        failure = consumer_failure(error)
        if failure is None:
            log.debug("the source does not answer cause=%s", error.str())
        elif self._failure is None:
            self._failure = failure

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Before the listener, which may want to pause them: an assignment resumes what it names.
        if self._incremental:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        self._listener.assigned(_ours(partitions))

    def _revoked(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._left.update(_ours(partitions))
        self._listener.revoked(_ours(partitions))

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._left.update(_ours(partitions))
        self._listener.lost(_ours(partitions))


def _ours(partitions: Sequence[TopicPartition]) -> list[Partition]:
    return [Partition(it.topic, it.partition) for it in partitions]


def _theirs(partitions: Collection[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*it) for it in partitions]
