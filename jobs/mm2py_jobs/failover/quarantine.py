"""Records that a failover did not copy, kept in quarantine topics of the target; and where the flow
back begins.

Flow: ``Tail`` -> the source's log, record by record ->
``mm2py-quarantine.<source>.<topic>.internal``: same partition, key, value, timestamp and headers,
plus a header with the source offset, by which a later run knows what is already kept.
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from operator import itemgetter
from typing import Final

from mm2py.api.context import EventKind, LossEvent
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED
from mm2py.client.send.record_writer import RecordWriter
from mm2py.clock import each_of
from mm2py.errors import PartitionError, ProtocolError, ServerError
from mm2py.flows.flow_ledger import read_ledger
from mm2py.mirror.failovers import LogPlace, Tail, quarantine_topic
from mm2py.mirror.ledger import (
    IncarnationRecord,
    LedgerRecord,
    encode_ledger_record,
    ledger_topic,
    topic_id_text,
)
from mm2py.mirror.offset_lookup import beginning_of
from mm2py.mirror.offset_map_pages import Mark, Segment
from mm2py.protocol.abort_filter import ABORT, marker_type
from mm2py.protocol.error_codes import TOPIC_ALREADY_EXISTS
from mm2py.protocol.records import NewRecord, Record, decode_batch
from mm2py.protocol.topics import NO_TOPIC_ID, NewTopic
from mm2py.types import TopicPartition
from mm2py_jobs.copy.known_maps import known_maps, outside
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

MOST_HOLES: Final = 1_000
"""Gaps between copies that are searched in a partition; after so many the flow back begins at the
next one, and drops copies itself."""
HOLE_BYTES: Final = 64 * 1024
"""Of one read: each commit of an exactly-once flow leaves a gap of one marker."""
_AT_ONCE: Final = 32
"""Partitions whose gaps are searched at the same time: clients wait for a failover."""


# ---- quarantine


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
        gone = _event(clusters, EventKind.RETENTION, tail, (first, begin), why)
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
        _event(clusters, EventKind.QUARANTINED, it, new, why)
        for it in tails
        for new in outside(it.start, it.end, [*it.gone, *known.get(it.tp, ())])
    ]
    await post_to_ledger(clusters, events)


def _event(
    clusters: FailoverClusters, kind: EventKind, tail: Tail, offsets: tuple[int, int], cause: str
) -> LedgerRecord:
    event = LossEvent(
        kind=kind,
        partition=tail.tp,
        first_offset=offsets[0],
        last_offset=offsets[1] - 1,
        policy="",
        cause=cause,
        task="failover",
    )
    return LedgerRecord(event=event, flow=str(clusters.name), time_ms=clusters.clock.now_ms())


async def post_to_ledger(
    clusters: FailoverClusters, records: Sequence[LedgerRecord | IncarnationRecord]
) -> None:
    """Append records to the flow's ledger."""
    if not records:
        return
    factor = clusters.plan.worker.offset_storage_replication_factor
    table = clusters.target_tables.own_table(
        ledger_topic(clusters.name.source), "delete", factor, follow=False
    )
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


# ---- where the flow back begins


async def reverse_starts(
    clusters: FailoverClusters,
    ends_there: Sequence[LogPlace],
    back_at: Mapping[TopicPartition, int],
) -> list[LogPlace]:
    """Return where the flow back begins in topics with the same name on both clusters.

    That is the first record after ``back_at``, its previous position, that the flow back copies;
    without a map of the copy, the end that it had before clients wrote there. With prefixes nothing
    is needed: the flow back does not copy copies.
    """
    if not clusters.keeps_names or not ends_there:
        return []
    looks = {it.tp: back_at.get(it.tp, 0) for it in ends_there}
    found = await first_own_records(clusters, looks, below=False)
    return [replace(it, offset=found.get(it.tp, max(looks[it.tp], it.offset))) for it in ends_there]


async def _first_own(
    clusters: FailoverClusters,
    looks: Sequence[tuple[TopicPartition, Sequence[tuple[int, int]], int]],
) -> dict[TopicPartition, int]:
    """Look between copies: partition, target ranges of the copies, and where to begin -> the first
    record from there on that no mirror wrote, else the end of the copies."""
    reader = RangeReader(clusters.target, read_committed=False, fetch_bytes=HOLE_BYTES)
    looping = await clusters.target_looping()

    async def first_of(look: tuple[TopicPartition, Sequence[tuple[int, int]], int]) -> int:
        tp, spans, at = look
        for number, (first, end) in enumerate(outside(at, spans[-1][1], spans)):
            if number == MOST_HOLES:
                return first
            async for batches in reader.read(tp, first, end):
                for batch in batches:
                    if producer_of(batch) not in looping:
                        return max(first, batch.base_offset)
        return max(at, spans[-1][1])

    found = await each_of(looks, first_of, at_once=_AT_ONCE)
    return {tp: offset for (tp, _, _), offset in zip(looks, found, strict=True)}


async def has_records(
    source: Cluster,
    tp: TopicPartition,
    ranges: Sequence[tuple[int, int]],
    looping: Collection[int],
) -> bool:
    """Whether there is a record in these ranges that the flow would copy, or one that cannot be
    read; ``looping`` are producers whose batches it drops."""
    reader = RangeReader(source, read_committed=False, fetch_bytes=HOLE_BYTES)
    try:
        for first, end in ranges:
            async for batches in reader.read(tp, first, end):
                if any(producer_of(it) not in looping for it in batches):
                    return True
    except (PartitionError, ProtocolError):
        return True
    return False


async def first_own_records(
    clusters: FailoverClusters, back_at: Mapping[TopicPartition, int], *, below: bool = True
) -> Mapping[TopicPartition, int]:
    """Return the first record of the target's own beside copies with the same name, at or after
    where the flow back is, else the end of the copies; ``below`` the first copy, too."""
    if not back_at:
        return {}
    of_source = await known_maps(clusters.target, clusters.name.source)
    maps = {clusters.copy_of(tp): it for tp, it in of_source.items()}
    logs = await log_ends(clusters.target, list(back_at), read_committed=False)
    looks: list[tuple[TopicPartition, Sequence[tuple[int, int]], int]] = []
    for tp, at in back_at.items():
        segments = [it for it, _ in maps[tp].segments()] if tp in maps else []
        if spans := spans_of(segments):
            # Another program's copies are below the first one of a copy that it had begun.
            least = 0 if below and not beginning_of(segments[0]).source else spans[0][0]
            least = max(least, logs[tp].start)
            looks.append((tp, spans, max(at, least)))
    return await _first_own(clusters, looks)


def spans_of(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Return the target ranges of copies, including those of another program between ours: it wrote
    no more records than it passed."""
    spans: list[tuple[int, int]] = []
    passed = 0
    for segment in segments:
        if segment.mark is Mark.UNKNOWN:
            passed += segment.records
        elif segment.mark is Mark.COPIED:
            end = spans[-1][1] if spans else segment.target
            spans.append(
                (end if segment.target - end <= passed else segment.target, segment.target_end)
            )
            passed = 0
    return spans
