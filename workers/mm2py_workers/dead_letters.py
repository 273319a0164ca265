"""The dead letter queue of a sink task: a topic on the worker's cluster
(``DeadLetterQueueReporter``).

Flow: ``ErrantRecords`` -> ``send`` -> ``RecordSender``; ``flush`` before positions are committed.
Loads confluent-kafka.
"""

import logging
from typing import Final, cast, final

from mm2py.api.mirror_maker_1 import Headers, OutgoingRecord
from mm2py.api.records import SinkRecord
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import Clock, closing
from mm2py.config.librdkafka import Settings
from mm2py.errors import FatalError, RefusedRecordError, RetriableError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.topics import NewTopic
from mm2py.runtime.tasks.errant_records import DeadLetterQueue
from mm2py_connectors.record_sender import RIGHTS, RecordSender, SentRecord, within

log = logging.getLogger(__name__)

FLUSH_S: Final = 10.0
"""How long a commit waits for the cluster; it is tried again then."""
SEND_S: Final = 60.0
"""How long a record waits for room before its task fails: nothing else may overtake it."""


@final
class DeadLetterTopic(DeadLetterQueue):
    """Implements ``DeadLetterQueue``; the producer is opened with the first record."""

    def __init__(
        self, topic: str, replication_factor: int, settings: Settings, *, cluster: str, clock: Clock
    ) -> None:
        self._topic, self._replication_factor = topic, replication_factor
        self._settings, self._cluster, self._clock = settings, cluster, clock
        self._sender: RecordSender | None = None

    async def create(self) -> None:
        """Create the topic where it is missing; one that exists stays as it is."""
        async with closing(
            Cluster(self._settings.connection, alias=self._cluster, clock=self._clock)
        ) as cluster:
            await cluster.connect()
            new_topic = NewTopic(self._topic, 1, self._replication_factor)
            error = (await Admin(cluster).create_topics([new_topic])).get(self._topic)
        if error is None:
            log.info("dead letter queue created topic=%s", self._topic)
        elif isinstance(error, RetriableError):
            raise error
        elif error.code != codes.TOPIC_ALREADY_EXISTS:
            raise FatalError(
                f"dead letter queue {self._topic} cannot be created on {self._cluster}: "
                f"{error.message}",
                remedy="create it by hand, or correct "
                f"errors.deadletterqueue.topic.replication.factor (now {self._replication_factor})",
            ) from error

    def send(self, record: SinkRecord, headers: tuple[tuple[str, bytes], ...]) -> None:
        if self._sender is None:
            self._sender = RecordSender(self._settings.values, _refused, waits_for=RIGHTS)
        place = record.original_topic, record.original_partition, record.offset
        kept = OutgoingRecord(
            self._topic,
            cast("bytes | None", record.key),
            cast("bytes | None", record.value),
            (*cast("Headers", record.headers), *headers),
            None if record.timestamp_ms < 0 else record.timestamp_ms,
        )
        name = self._topic
        refuse = within(SEND_S, lambda: FatalError(f"dead letter queue {name} takes no records"))
        self._sender.send(SentRecord(place, kept), refuse)

    def flush(self) -> None:
        sender = self._sender
        if sender is None:
            return

        def late() -> RetriableError:
            cause = sender.waiting[1]
            text = f"dead letter queue {self._topic} takes no records now"
            return RetriableError(f"{text}: {cause}" if cause else text)

        sender.flush(within(FLUSH_S, late))

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()


def _refused(_sent: SentRecord, text: str) -> None:
    raise RefusedRecordError(
        f"the dead letter queue refuses a record: {text}",
        remedy="let its topic take what the source topic takes (max.message.bytes), or drop such "
        "records, and restart the task",
    )
