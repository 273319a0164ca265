"""Records that a failover did not copy, kept in quarantine topics of the target.

Flow: ``Tail`` -> the source's log, record by record ->
``mm2py-quarantine.<source>.<topic>.internal``: same partition, key, value, timestamp and headers,
plus a header with the source offset, by which a later run knows what is already kept.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from operator import itemgetter
from typing import Final

from mm2py.api.context import EventKind, LossEvent
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED
from mm2py.client.send.record_writer import RecordWriter
from mm2py.errors import ServerError
from mm2py.flows.flow_ledger import read_ledger
from mm2py.mirror.failovers import Tail, quarantine_topic
from mm2py.mirror.ledger import (
    IncarnationRecord,
    LedgerRecord,
    encode_ledger_record,
    ledger_topic,
    topic_id_text,
)
from mm2py.mirror.offset_ranges import outside
from mm2py.protocol.abort_filter import ABORT, marker_type
from mm2py.protocol.error_codes import TOPIC_ALREADY_EXISTS
from mm2py.protocol.records import NewRecord, Record, decode_batch
from mm2py.protocol.topics import NO_TOPIC_ID, NewTopic
from mm2py.types import TopicPartition
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.log.log_ends import log_ends
from mm2py_jobs.log.mirror_producers import producer_of
from mm2py_jobs.log.range_reader import RangeReader
from mm2py_workers.internal_stores import store_producer

SOURCE_OFFSET: Final = b"mm2py.source.offset"
"""Header of a quarantined record: its source offset, in decimal."""

SOURCE_TOPIC_ID: Final = b"mm2py.source.topic.id"
"""Header of a quarantined record: its source topic's id in Kafka's text form, if the source has ids
(2.8). A recreated topic has the same offsets again."""

SOURCE_TRANSACTION: Final = b"mm2py.source.transaction"
"""Header with the value ``open``, if the record's transaction was open when it was kept and the
flow reads committed records."""

Markers = Mapping[int, Sequence[tuple[int, int]]]
"""Offset and type of the transaction markers, by producer id, in the order of the log."""

_COMMIT: Final = 1
_OPEN: Final = -1
BATCH_RECORDS: Final = 500
BATCH_BYTES: Final = 256 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
"""``max.message.bytes`` of a quarantine topic: its batches are not compressed, the source's may
be."""


async def quarantine(clusters: FailoverClusters, tails: Sequence[Tail]) -> list[Tail]:
    """Keep the records of tails, each once; return the tails with their numbers of records.

    Raises:
        SourceAwayError: the source does not answer.
        PartitionError: the source has deleted records meanwhile.
    """
    topics = await clusters.topics()
    await _create(clusters, {tail.topic: len(topics.get(tail.topic, ())) for tail in tails})
    settings = store_producer(clusters.plan.props, clusters.name)
    writer = RecordWriter(clusters.target, settings, clock=clusters.clock, permit=UNLIMITED)
    try:
        await writer.start()
        return [await _keep(clusters, writer, tail) for tail in tails]
    finally:
        await writer.close()


async def _keep(clusters: FailoverClusters, writer: RecordWriter, tail: Tail) -> Tail:
    kept_in = TopicPartition(quarantine_topic(clusters.name.source, tail.topic), tail.partition)
    # The topic may also hold records of an earlier failover.
    topic_id = _id_text(clusters, tail.topic)
    records, first = 0, tail.start
    async for offset, of_id in _source_offsets(clusters.target, kept_in):
        if tail.start <= offset < tail.end and of_id in (topic_id, b""):
            records, first = records + 1, max(first, offset + 1)
    async with clusters.source() as source:
        log = (await log_ends(source, [tail.tp], read_committed=False))[tail.tp]
    begin = max(first, min(log.start, tail.end))
    if first < begin:
        tail = replace(tail, gone=(*tail.gone, (first, begin)))
        why = "deleted on the source before a failover kept it in quarantine"
        gone = loss(clusters, EventKind.RETENTION, tail.tp, (first, begin), why)
        await post_to_ledger(clusters, [gone])
    async with aclosing(_missing(clusters, tail, begin, log.end)) as parts:
        async for part in parts:
            await writer.write(kept_in, part)
            records += len(part)
    return replace(tail, records=records)


async def record_quarantined(clusters: FailoverClusters, tails: Sequence[Tail]) -> None:
    """Record in the ledger, once, what was kept: a flow that continues after it would call it
    skipped."""
    known = (await read_ledger(clusters.target, clusters.name)).quarantined.ranges
    why = "not copied before a failover, which was accepted"
    events = [
        loss(clusters, EventKind.QUARANTINED, it.tp, new, why)
        for it in tails
        for new in outside(it.start, it.end, [*it.gone, *known.get(it.tp, ())])
    ]
    await post_to_ledger(clusters, events)


def loss(
    clusters: FailoverClusters,
    kind: EventKind,
    tp: TopicPartition,
    offsets: tuple[int, int],
    cause: str,
    *,
    back: bool = False,
) -> LedgerRecord:
    """Return an event for the ledger of the flow, or of the flow back; the end of ``offsets`` is
    exclusive."""
    event = LossEvent(
        kind=kind,
        partition=tp,
        first_offset=offsets[0],
        last_offset=offsets[1] - 1,
        policy="",
        cause=cause,
        task="failover",
    )
    flow = clusters.back.name if back else clusters.name
    return LedgerRecord(event=event, flow=str(flow), time_ms=clusters.clock.now_ms())


async def post_to_ledger(
    clusters: FailoverClusters,
    records: Sequence[LedgerRecord | IncarnationRecord],
    *,
    back: bool = False,
) -> None:
    """Append records to the ledger of the flow, or of the flow back."""
    if not records:
        return
    tables, plan = (
        (clusters.source_tables, clusters.back) if back else (clusters.target_tables, clusters.plan)
    )
    factor = plan.worker.offset_storage_replication_factor
    table = tables.own_table(ledger_topic(plan.name.source), "delete", factor, follow=False)
    await table.start(lambda _partition, _record: None)
    try:
        await table.post([encode_ledger_record(it) for it in records])
    finally:
        await table.stop()


async def _missing(
    clusters: FailoverClusters, tail: Tail, first: int, log_end: int
) -> AsyncGenerator[list[NewRecord]]:
    """Yield the source's records of a tail from ``first`` on. Nothing is written in here, so that
    an error of the target is not taken for one of the source."""
    waiting: list[NewRecord] = []
    size = 0
    async with aclosing(_of_source(clusters, tail, first, log_end)) as records:
        async for record in records:
            # By record: what a compressed batch of the source has may exceed ``MAX_BYTES``.
            more = _size(record)
            if waiting and (len(waiting) >= BATCH_RECORDS or size + more > BATCH_BYTES):
                yield waiting
                waiting, size = [], 0
            waiting.append(record)
            size += more
    if waiting:
        yield waiting


async def _of_source(
    clusters: FailoverClusters, tail: Tail, first: int, log_end: int
) -> AsyncGenerator[NewRecord]:
    async with clusters.source() as source:
        topic_id = _id_text(clusters, tail.topic)
        reader = RangeReader(source, read_committed=False)
        looping = await clusters.source_looping()
        # A read_committed fetch ends at the first open transaction; committed records above it are
        # kept too.
        markers = await _markers(reader, tail.tp, first, log_end)
        async for batches in reader.read(tail.tp, first, tail.end):
            for batch in batches:
                end = end_of(batch, markers) if clusters.read_committed else _COMMIT
                if end == ABORT or producer_of(batch) in looping:
                    continue
                for record in decode_batch(batch.data, batch.runs).records:
                    if first <= record.offset < tail.end:
                        yield _in_quarantine(record, topic_id, is_open=end == _OPEN)


async def _markers(reader: RangeReader, tp: TopicPartition, first: int, end: int) -> Markers:
    markers: dict[int, list[tuple[int, int]]] = {}
    async for batches in reader.read(tp, first, end, markers=True):
        for batch in batches:
            if batch.is_marker:
                kind = marker_type(batch.data, batch.count)
                markers.setdefault(producer_of(batch), []).append((batch.base_offset, kind))
    return markers


def end_of(batch: LogBatch, markers: Markers) -> int:
    """Return the type of the marker that ends a batch's transaction; a batch without one is
    committed."""
    if not batch.is_transactional:
        return _COMMIT
    # KIP-98: a producer id has one transaction at a time, so the first marker behind a batch ends
    # it.
    ends = markers.get(producer_of(batch), ())
    at = bisect_right(ends, batch.last_offset, key=itemgetter(0))
    return ends[at][1] if at < len(ends) else _OPEN


def _id_text(clusters: FailoverClusters, topic: str) -> bytes:
    """Return the id of a source topic, empty if the source has none."""
    topic_id = clusters.source_ids.get(topic, NO_TOPIC_ID)
    return b"" if topic_id == NO_TOPIC_ID else topic_id_text(topic_id).encode()


def _in_quarantine(record: Record, topic_id: bytes, *, is_open: bool) -> NewRecord:
    marks = [(SOURCE_TOPIC_ID, topic_id)] if topic_id else []
    marks.append((SOURCE_OFFSET, str(record.offset).encode()))
    if is_open:
        marks.append((SOURCE_TRANSACTION, b"open"))
    return NewRecord(record.key, record.value, (*record.headers, *marks), record.timestamp)


def _size(record: NewRecord) -> int:
    headers = sum(len(name) + len(text or b"") for name, text in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


async def _source_offsets(
    cluster: Cluster, tp: TopicPartition
) -> AsyncGenerator[tuple[int, bytes]]:
    """Yield source offset and topic id of the records in a quarantine partition; earlier versions
    stored no id."""
    ends = (await log_ends(cluster, [tp], read_committed=False))[tp]
    reader = RangeReader(cluster, read_committed=False)
    async for batches in reader.read(tp, ends.start, ends.end):
        for record in (
            it for batch in batches for it in decode_batch(batch.data, batch.runs).records
        ):
            marks = dict(record.headers)
            if (offset := marks.get(SOURCE_OFFSET)) is not None:
                yield int(offset), marks.get(SOURCE_TOPIC_ID) or b""


async def _create(clusters: FailoverClusters, partitions: Mapping[str, int]) -> None:
    configs = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "max.message.bytes": str(MAX_BYTES),
    }
    new = [
        NewTopic(
            quarantine_topic(clusters.name.source, topic),
            count,
            clusters.replication_factor,
            configs=configs,
        )
        for topic, count in partitions.items()
    ]
    admin = Admin(clusters.target)
    for error in (await admin.create_topics(new)).values():
        if isinstance(error, ServerError) and error.code != TOPIC_ALREADY_EXISTS:
            raise error
    # A topic of an earlier failover has as many partitions as its source had then.
    there = await admin.describe_topics([it.name for it in new])
    few = {
        it.name: it.partitions
        for it in new
        if it.name in there and 0 < len(there[it.name].partitions) < it.partitions
    }
    for error in (await admin.create_partitions(few)).values():
        if error is not None:
            raise error
