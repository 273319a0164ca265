"""One member of a MirrorSink's group: writes what it reads into the remote topics.

Flow: ``put`` -> remote topic of the replication policy, same partition -> ``RecordSender`` -> ``pre_commit`` waits for the
acknowledgements -> the group's positions. Key, value, headers and timestamp stay as they are. Loads confluent-kafka.

At least once: a position is allowed only when each record before it is acknowledged, or was accepted by ``errors.*``. Order per
partition: the producer is idempotent, and what failed goes again before anything after it; what waits of a partition that goes is
not sent any more.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, cast, final

from mm2py.api.mirror_maker_1 import OutgoingRecord
from mm2py.api.records import SinkRecord
from mm2py.api.sink import SinkTask, SinkTaskContext
from mm2py.config.client_properties import effective_client_properties, with_prefix
from mm2py.config.definitions import parse_config
from mm2py.config.librdkafka import Value, producer_settings
from mm2py.errors import FatalError, PartitionError, RetriableError
from mm2py.mirror.policies import policy_from_config
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_sink_config import MirrorSinkTaskConfig
from mm2py_connectors.record_sender import Idle, RecordSender, Refused, SentRecord, within

PUT_S: Final = 5.0
"""How long one ``put`` waits for room; then the group must see that the task lives."""

FLUSH_S: Final = 5.0
"""How long ``pre_commit`` waits for acknowledgements (Java's ``offset.flush.timeout.ms``); at the end of it nothing is committed."""

_BYTES: Final = (bytes, type(None))
_INT_MAX: Final = str((1 << 31) - 1)


class TargetSender(Protocol):
    """What the task needs of a ``RecordSender``; see there."""

    def send(self, sent: SentRecord, idle: Idle, /) -> None:
        """Hand a record over."""
        ...

    def serve(self, idle: Idle, /) -> None:
        """Handle what has failed since the last call."""
        ...

    def flush(self, idle: Idle, /) -> None:
        """Wait until everything is acknowledged or refused."""
        ...

    def give_up(self, partitions: Collection[tuple[str, int]], /) -> None:
        """Send nothing more of these."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@final
class MirrorSinkTask(SinkTask):
    """Implements ``SinkTask``.

    Args:
        sender: makes the producer from librdkafka's values and what is called for a refused record.
    """

    def __init__(
        self,
        config: Mapping[str, str],
        context: SinkTaskContext,
        *,
        sender: Callable[[Mapping[str, Value], Refused], TargetSender] = RecordSender,
    ) -> None:
        parsed = parse_config(MirrorSinkTaskConfig, config)
        self._policy, self._alias = policy_from_config(config), parsed.source_cluster_alias
        props = {"acks": "all", "delivery.timeout.ms": _INT_MAX}
        props |= effective_client_properties(
            config, "target", "producer", role="mirror-sink-producer", task_index=parsed.task_index
        )
        props |= with_prefix(config, "producer.override.")
        self._settings = producer_settings(props, scope=f"producer of {context.task_id}")
        self._context, self._make = context, sender
        self._sender: TargetSender | None = None
        self._remote: dict[str, str] = {}
        self._handed: dict[TopicPartition, int] = {}
        """Of the batch that waits for room: how many records are with the producer. No offsets: those of a topic that was
        created again begin anew."""

    def start(self) -> None:
        self._sender = self._make(self._settings.values, self._refused)

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is kept per partition."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        sender = self._opened
        idle = within(PUT_S, lambda: RetriableError("the target takes no records now"))
        if not records:
            sender.serve(idle)
            return
        handed, last, remote = dict(self._handed), None, self._remote
        try:
            for record in records:
                if handed and handed.get(place := _place(record)):
                    handed[place] -= 1
                    continue  # before the target ran out of room
                topic, partition, key, value, headers, at_ms, offset, read_from, number, _ = record
                named = remote.get(topic) or self._named(topic)
                if not (isinstance(value, _BYTES) and isinstance(key, _BYTES)):
                    raise _no_bytes(record)
                # A topic that a transform has named may have other partitions: the key chooses, as Java's partitioner.
                out = OutgoingRecord(
                    named,
                    key,
                    value,
                    headers,  # type: ignore[arg-type] # they are bytes, as key and value
                    at_ms if at_ms >= 0 else None,
                    partition if topic == read_from else None,
                )
                sender.send(SentRecord((read_from, number, offset), out, record), idle)
                last = record
        except RetriableError:
            if last is not None:
                self._note_handed(records, last)
            raise
        self._handed = {}

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return all positions once everything is acknowledged, none while the target does not answer."""
        try:
            self._opened.flush(
                within(FLUSH_S, lambda: RetriableError("the target does not acknowledge"))
            )
        except RetriableError:
            return {}
        return offsets

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what waits of them: their next owner reads it again, and older records must not arrive after its own."""
        if self._sender is not None:
            self._sender.give_up(partitions)
        for partition in partitions:
            self._handed.pop(partition, None)

    def stop(self) -> None:
        """End the producer; what is not acknowledged is read again."""
        if self._sender is not None:
            self._sender.close()

    @property
    def _opened(self) -> TargetSender:
        assert self._sender is not None
        return self._sender

    def _named(self, topic: str) -> str:
        remote = self._remote[topic] = self._policy.remote_topic(self._alias, topic)
        return remote

    def _note_handed(self, records: Sequence[SinkRecord], last: SinkRecord) -> None:
        count = next(at for at, record in enumerate(records, 1) if record is last)
        self._handed = Counter(map(_place, records[:count]))

    def _refused(self, sent: SentRecord, text: str) -> None:
        topic, partition, offset = sent.place
        error = PartitionError(text, topic=topic, partition=partition, offset=offset)
        self._context.report(cast("SinkRecord", sent.origin), error)


def _place(record: SinkRecord) -> TopicPartition:
    return TopicPartition(record.original_topic, record.original_partition)


def _no_bytes(record: SinkRecord) -> FatalError:
    return FatalError(
        f"{_place(record)} offset {record.offset}: MirrorSink copies bytes, and key or value are of another type",
        remedy="let transforms keep bytes, or set key.converter and value.converter to ByteArrayConverter",
    )
