"""Lets a flow continue behind what was restored: its positions and exact offset map, as if it had copied the archive itself.

Flow: report of restore -> per partition a map of the source offsets of the archive -> ``mm2py-offset-map.<source>.internal`` -> position ->
``mm2-offsets.<source>.internal``. Only for topics with the names of the flow's copies, and never over a position or map that is there.
"""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import parse_config
from mm2py.config.worker import WorkerConfig
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.source_offsets import (
    mirror_source_partition,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.spark.flow_sides import FlowSides
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.types import TopicPartition
from mm2py_workers.internal_stores import FlowTables, offset_topic, store_producer
from mm2py_workers.output import Row, rows_of

__all__ = ["hand_over"]

_CONNECTOR: Final = "MirrorSourceConnector"


async def hand_over(flow: FlowSides, report: Mapping[str, object]) -> list[str]:
    """Write maps, then positions; return one line for each partition that has a position already.

    Raises:
        Mm2pyError: the target cannot be read or written.
    """
    rows = {
        TopicPartition(str(row["topic"]), int(str(row["partition"]))): row
        for row in rows_of(report, "partitions")
        if row["target_topic"] == flow.copy_of(str(row["topic"]))
    }
    if not rows:
        return []
    settings = connection_settings(flow.target, scope=f"worker of {flow.flow}")
    cluster = Cluster(settings, alias=flow.flow.target, clock=SYSTEM_CLOCK)
    producer = store_producer(flow.target, flow.flow)
    tables = FlowTables(cluster, producer, permit=UNLIMITED, clock=SYSTEM_CLOCK)
    worker = parse_config(WorkerConfig, flow.target)
    table = tables.table(
        offset_topic(flow.target, worker), follow=False, transactional=worker.exactly_once
    )
    offsets = KafkaOffsetBackingStore(table)
    maps = tables.offset_map(
        flow.flow.source,
        worker.offset_storage_replication_factor,
        transactional=worker.exactly_once,
    )
    try:
        await cluster.connect()
        await offsets.start()
        await maps.start()
        described = await Admin(cluster).describe_topics(
            {str(it["target_topic"]) for it in rows.values()}
        )
        keys = {tp: _key(flow, tp) for tp in rows}
        stored = dict(zip(rows, await offsets.get(list(keys.values())), strict=True))
        mapped = await maps.load(list(rows))
        fresh = {tp for tp in rows if stored[tp] is None and tp not in mapped}
        pages = {
            tp: _map_of(row, described[str(row["target_topic"])].topic_id).take()
            for tp, row in rows.items()
            if tp in fresh
        }
        await maps.write(pages)
        last = {tp: int(str(rows[tp]["source_to"])) - 1 for tp in fresh}
        await offsets.set(
            {keys[tp]: source_offset_value(source_offset(it)) for tp, it in last.items()}
        )
    finally:
        await maps.stop()
        await offsets.stop()
        await tables.close()
        await cluster.close()
    return [
        f"{tp}: {flow.flow} has a position for it already, which stays as it is"
        for tp in rows
        if tp not in fresh
    ]


def _key(flow: FlowSides, tp: TopicPartition) -> bytes:
    return source_offset_key(_CONNECTOR, mirror_source_partition(flow.flow.source, tp))


def _map_of(row: Row, target_id: bytes) -> PartitionMap:
    """Return the map of a restored partition: the archive's offsets, one after the other from offset 0 on."""
    found, end, target = PartitionMap(), int(str(row["source_to"])), 0
    source_id = bytes.fromhex(str(row["source_topic_id"]))
    found.identify(source_id or NO_TOPIC_ID)
    runs = cast("Sequence[tuple[int, int]]", row["source_runs"])
    found.anchor(runs[0][0] if runs else end, 0)
    found.writes_to(target_id, -1, 0)
    for first, count in runs:
        found.add(first, count, target)
        target += count
    found.cover(end)
    found.position = end
    return found
