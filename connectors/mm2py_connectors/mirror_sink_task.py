"""One member of a MirrorSink's group: writes what it reads into the remote topics.

Flow: ``put`` -> remote topic of the replication policy, same partition -> ``RecordSender`` ->
``pre_commit`` waits for the acknowledgements -> the group's positions. Key, value, headers and
timestamp stay as they are. Loads confluent-kafka.

At least once: a position is allowed only when each record before it is acknowledged, or was
accepted by ``errors.*``. Order per partition: the producer is idempotent, and what failed goes
again before anything after it; what waits of a partition that goes is not sent any more. A
partition whose copy takes nothing for long keeps no other one waiting (``HeldRecords``).
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, cast, final

from mm2py.api.mirror_maker_1 import OutgoingRecord
from mm2py.api.records import SinkRecord
from mm2py.api.sink import SinkTask, SinkTaskContext
from mm2py.config.client_properties import effective_client_properties, with_prefix
from mm2py.config.definitions import parse_config
from mm2py.config.librdkafka import SettingValue, producer_settings, without_end
from mm2py.errors import PartitionError, RefusedRecordError, RetriableError
from mm2py.mirror.policies import policy_from_config
from mm2py.types import TopicPartition
from mm2py_connectors.held_records import HeldRecords, Stall, TargetSender
from mm2py_connectors.mirror_sink_config import MirrorSinkTaskConfig
from mm2py_connectors.record_sender import (
    RIGHTS,
    Idle,
    RecordSender,
    Refused,
    SentRecord,
    within,
)

PUT_S: Final = 5.0
"""How long one ``put`` waits for room; then the group must see that the task lives."""

FLUSH_S: Final = 5.0
"""How long ``pre_commit`` waits for acknowledgements (Java's ``offset.flush.timeout.ms``); at the
end of it nothing is committed."""

_NO_LIMITS: Final[Mapping[str, SettingValue]] = {
    "queue.buffering.max.kbytes": (1 << 31) - 1,
    "queue.buffering.max.messages": 0,
}
"""Of the producer of held partitions: what one of them has may not keep another one out."""
_BYTES: Final = (bytes, type(None))
_SENDER: Final = partial(RecordSender, waits_for=RIGHTS)


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
        sender: Callable[[Mapping[str, SettingValue], Refused], TargetSender] = _SENDER,
    ) -> None:
        parsed = parse_config(MirrorSinkTaskConfig, config)
        self._policy, self._alias = policy_from_config(config), parsed.source_cluster_alias
        props = {"acks": "all"} | effective_client_properties(
            config, "target", "producer", role="mirror-sink-producer", task_index=parsed.task_index
        )
        props |= with_prefix(config, "producer.override.")
        scope = f"producer of {context.task_id}"
        self._settings = producer_settings(without_end(props), scope=scope)
        self._context, self._make = context, sender
        self._sender: TargetSender | None = None
        values = {**self._settings.values, **_NO_LIMITS}
        self._held = HeldRecords(partial(sender, values, self._refused), context)
        self._stall = Stall(context)
        self._remote: dict[str, str] = {}
        self._handed: dict[TopicPartition, int] = {}
        """Of the batch that waits for room: how many records are with the producer. No offsets:
        those of a topic that was created again begin anew."""

    def start(self) -> None:
        self._sender = self._make(self._settings.values, self._refused)

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """Nothing is kept per partition."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        sender, held = self._opened, self._held
        held.serve()
        idle = self._watched(PUT_S, "the target takes no records now")
        if not records:
            sender.serve(idle)
            return
        handed, last, remote = dict(self._handed), None, self._remote
        try:
            for record in records:
                # After a `RetriableError` the same batch comes again.
                if handed and handed.get(place := _place(record)):
                    handed[place] -= 1
                    continue  # before the target ran out of room
                topic, partition, key, value, headers, at_ms, offset, read_from, number, _ = record
                named = remote.get(topic) or self._named(topic)
                if not (isinstance(value, _BYTES) and isinstance(key, _BYTES)):
                    raise _no_bytes(record)
                # A transform's topic may have other partitions: the key chooses, as in Java.
                out = OutgoingRecord(
                    named,
                    key,
                    value,
                    headers,  # type: ignore[arg-type] # they are bytes, as key and value
                    at_ms if at_ms >= 0 else None,
                    partition if topic == read_from else None,
                )
                sent = SentRecord((read_from, number, offset), out, record)
                if held.partitions and (read_from, number) in held.partitions:
                    held.add(sent)  # polled before they were held
                else:
                    sender.send(sent, idle)
                last = record
        except RetriableError:
            if last is not None:
                self._note_handed(records, last)
            self._hold_stuck()
            raise
        self._handed = {}

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return all positions but those of held partitions once everything else is acknowledged,
        none while the target does not answer."""
        held = self._held
        try:
            self._opened.flush(self._watched(FLUSH_S, "the target does not acknowledge"))
        except RetriableError:
            if not self._hold_stuck():
                return {}
        self._stall.over()
        return {place: offset for place, offset in offsets.items() if place not in held.partitions}

    def _watched(self, seconds: float, text: str) -> Idle:
        ends, sender, stall = (
            within(seconds, lambda: RetriableError(text)),
            self._opened,
            self._stall,
        )

        def idle() -> None:
            stall.seen(sender.waiting[0])
            ends()

        return idle

    def _hold_stuck(self) -> bool:
        """After a wait without an end: hold the partitions of what stands still, where that is what
        it waited for."""
        sender, held = self._opened, self._held
        if not (self._stall.waited() and held.has_room and sender.answers()):
            return False
        held.hold(sender.take_back())
        self._stall.over()
        return True

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what waits of them: their next owner reads it again, and older records must not
        arrive after its own."""
        if self._sender is not None:
            self._sender.give_up(partitions)
        self._held.give_up(partitions)
        for partition in partitions:
            self._handed.pop(partition, None)

    def stop(self) -> None:
        """End the producers; what is not acknowledged is read again."""
        self._held.close()
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


def _no_bytes(record: SinkRecord) -> RefusedRecordError:
    return RefusedRecordError(
        f"{_place(record)} offset {record.offset}: MirrorSink copies bytes, and key or value are "
        "of another type",
        remedy="let transforms keep bytes, or set key.converter and value.converter to "
        "ByteArrayConverter, and restart the task",
    )
