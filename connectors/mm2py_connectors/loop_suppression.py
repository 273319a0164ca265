"""Loop suppression of one flow: which batches of its source other mirrors wrote there.

Flow: connector: ``find_suppression`` -> task configs. Task: ``LoopFilter.open`` reads
``mm2py-producers.internal`` of the source -> a batch of an unknown id -> ``find`` reads what is new
-> copied or dropped -> counted. The rules are in ``mm2py.mirror.producer_ids``. It reads on demand:
without new producers there is no request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, final

from mm2py.api.context import TaskContext
from mm2py.client.fetch.log_reader import RecordHandler
from mm2py.client.fetch.owner import BatchOrigins
from mm2py.errors import FatalError, FatalServerError, Mm2pyError, ProtocolError
from mm2py.mirror.producer_ids import (
    PRODUCERS_TOPIC,
    ProducerOrigins,
    Suppression,
    decode_producer,
    published_id,
    suppression_of,
)
from mm2py.protocol.batch_stage import Origins
from mm2py.protocol.record_batch import HEADER, RecordBatch
from mm2py.protocol.records import Record
from mm2py.types import NO_PRODUCER_ID, TopicPartition
from mm2py_connectors.clients import MirrorAdmin, Session
from mm2py_connectors.conflicts import ConflictWatch
from mm2py_connectors.internal_topics import create_compacted_topic

log = logging.getLogger(__name__)

_COUNT: Final = 12
"""Field of ``HEADER``: number of records."""

_REMEDY: Final = (
    f"grant Create, Describe and Read on topic {PRODUCERS_TOPIC} of the source, or create it there "
    "with one partition and cleanup.policy=compact"
)


async def find_suppression(
    config: Mapping[str, str], source: MirrorAdmin, *, replication_factor: int
) -> tuple[Suppression, str]:
    """Return what is in force for a connector's tasks, and why that is less than ``auto`` would
    like.

    Raises:
        FatalError: it is asked for and cannot be.
        RetriableError: the source does not answer now.
    """
    chosen = suppression_of(config)
    if chosen is Suppression.OFF:
        return chosen, ""
    cause = ""
    try:
        # Only CreateTopics knows for certain: a broker's metadata may be older than the topic.
        refusal = await create_compacted_topic(
            source,
            PRODUCERS_TOPIC,
            replication_factor=replication_factor,
            factor_property="offset-syncs.topic.replication.factor",
            side="source",
            alias=config.get("source.cluster.alias", ""),
        )
        # May be forbidden to create, and there: the mirror that writes to this cluster made it.
        if refusal is not None and PRODUCERS_TOPIC not in await source.list_topics():
            cause = f"topic {PRODUCERS_TOPIC} of the source may not be created or seen"
    except FatalError as error:
        cause = error.message
    if not cause:
        return Suppression.ON if chosen is Suppression.AUTO else chosen, ""
    # Asked for by name: copying loops silently would be worse than not starting.
    if chosen is not Suppression.AUTO:
        raise FatalError(f"loop.suppression={chosen} is not possible: {cause}", remedy=_REMEDY)
    return Suppression.OFF, f"loops are not suppressed: {cause}; {_REMEDY}"


async def compacted_topics(admin: MirrorAdmin, topics: Collection[str]) -> frozenset[str]:
    """Return the compacted ones of ``topics``; none where their configs may not be read."""
    try:
        configs = await admin.describe_topic_configs(topics)
    except Mm2pyError as error:
        log.info("conflicts are not counted, topic configs cannot be read cause=%s", error)
        return frozenset()
    return frozenset(
        topic
        for topic, entries in configs.items()
        for entry in entries
        if entry.name == "cleanup.policy" and "compact" in (entry.value or "")
    )


@final
class LoopFilter(BatchOrigins):
    """Implements ``BatchOrigins`` for one task; the session is its own, ``read`` hands on every id
    that is new since its last call."""

    def __init__(
        self,
        session: Session,
        read: Callable[[RecordHandler], Awaitable[None]],
        origins: ProducerOrigins,
        context: TaskContext,
        conflicts: ConflictWatch,
    ) -> None:
        self._session, self._read_new = session, read
        self._origins, self._context = origins, context
        self.conflicts = conflicts
        self._turn = asyncio.Lock()
        self._asked: set[int] = set()
        self._unreadable: dict[int, ProtocolError] = {}
        """Ids of mirrors with unreadable records: nothing says whether to copy their batches."""

    @property
    def known(self) -> Origins:
        return self._origins.known

    async def open(self) -> None:
        """Read all ids that are published.

        Raises:
            RetriableError: the source does not answer now.
            FatalError: the topic may not be read.
        """
        await self._session.connect()
        await self._read()

    async def find(self, producers: Collection[int]) -> None:
        """Read what was published since; calls during a read share the next one (invariant 2)."""
        self._asked.update(producers)
        async with self._turn:
            # After the lock: callers that came during the read before share this one.
            asked, self._asked = self._asked, set()
            if not asked:
                return  # a read that began after this call has found them
            try:
                await self._read()
            except BaseException:
                self._asked |= asked
                raise
            unknown = asked & self._unreadable.keys()
            # The read began after these batches were fetched (invariant 2).
            self._origins.judge(asked - unknown)
            if unknown:
                raise ProtocolError(
                    f"batches of producer id {min(unknown)} are there, and its record in topic "
                    f"{PRODUCERS_TOPIC} cannot be read: {self._unreadable[min(unknown)].message}",
                    remedy="use the version of mm2py that wrote it, or delete the record to have "
                    "them copied",
                )

    def classified(
        self, tp: TopicPartition, copied: Sequence[RecordBatch], looped: Sequence[memoryview]
    ) -> None:
        """Count what was not copied, and conflicts with what is."""
        conflicts = self.conflicts.classified(tp, copied, looped)
        if looped:
            records = sum(HEADER.unpack_from(batch)[_COUNT] for batch in looped)
            self._context.report_looped(tp, records, conflicts)

    async def close(self) -> None:
        await self._session.close()

    async def _read(self) -> None:
        try:
            await self._read_new(self._learn)
        except FatalServerError as error:
            raise FatalError(
                f"topic {PRODUCERS_TOPIC} of the source cannot be read, so loops cannot be "
                f"suppressed: {error}",
                remedy=_REMEDY,
            ) from error

    def _learn(self, _partition: int, record: Record) -> None:
        producer_id = published_id(record.key)
        self._unreadable.pop(producer_id, None)
        try:
            if record.value is not None:
                self._origins.learn(decode_producer(record.key, record.value))
        except ProtocolError as error:
            log.warning(
                "record is ignored topic=%s offset=%d cause=%s",
                PRODUCERS_TOPIC,
                record.offset,
                error,
            )
            if producer_id != NO_PRODUCER_ID:
                self._unreadable[producer_id] = error
