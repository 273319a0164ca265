"""Positions of a mirror as those of the flow that takes its place.

Flow: committed offsets of a MirrorMaker 1 group on the source, or source offsets of an operator's
connector on the target -> source offsets in ``mm2-offsets.<source>.internal`` on the target, in
Java's bytes, before the flow has run: its first start continues at the next record of each
partition. Nothing of the old mirror is changed, so it can be started again.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from mm2py.api.records import SourceOffset
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.clients import ConnectionSettings
from mm2py.config.findings import first_error
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.properties import parse
from mm2py.errors import ConfigError, Mm2pyError, ProtocolError
from mm2py.mirror.source_offsets import (
    mirror_source_partition,
    next_offset,
    not_a_position,
    parse_source_offset_key,
    parse_source_offset_value,
    partition_identity,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.protocol.records import Record
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore
from mm2py.types import FlowName, TopicPartition
from mm2py_connectors.config import CONNECTORS
from mm2py_migrate.from_strimzi import OperatorFlow
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.internal_stores import FlowTables, offset_topic, store_producer
from mm2py_workers.wiring import derive_plan


@dataclass(frozen=True, slots=True)
class Group:
    """A mirror's consumer group: ``connection`` of its cluster, ``matches`` of its topics."""

    name: str
    connection: ConnectionSettings
    matches: Callable[[str], bool]


def plan_of(text: str, flow: FlowName) -> FlowPlan:
    """Return a flow's plan, from its file's very text; ``ConfigError`` where that is wrong."""
    config = MirrorMakerConfig(
        parse(text.encode("latin-1"), path="the file of the flow"), CONNECTORS
    )
    error = first_error(config.findings)
    if error is not None:
        raise error.as_error(config.path)
    return derive_plan(config, flow, Plugins(), by_file=True)


async def carry_positions(plan: FlowPlan, group: Group) -> list[str]:
    """Store where the flow has to continue; return a line for each remark.

    Raises:
        ConfigError: the group has members or no offsets, the flow runs, or it has other positions
            already.
        RetriableError: a cluster does not answer; the same call completes what it has begun.
    """
    async with (
        Cluster(group.connection, alias=plan.name.source) as source,
        _target_of(plan) as target,
    ):
        committed = await _committed(source, group)
        chosen = {tp: offset for tp, offset in committed.items() if group.matches(tp.topic)}
        if not chosen:
            raise ConfigError(
                f"the consumer group {group.name} has committed no offset of these topics",
                remedy="check group.id and the topics, or leave --carry-positions out",
            )
        return [
            await _carried(target, plan, chosen, f"group {group.name}"),
            *(
                f"{tp.topic}-{tp.partition} of the group is none of these topics, and left out"
                for tp in sorted(committed.keys() - chosen.keys())
            ),
            *await _other_counts(source, target, {tp.topic for tp in chosen}),
        ]


def _target_of(plan: FlowPlan) -> Cluster:
    return Cluster.of(plan.props, alias=plan.name.target, scope=f"worker of {plan.name}")


async def carry_operator_positions(plan: FlowPlan, flow: OperatorFlow) -> list[str]:
    """Store where the flow has to continue; return a line for each remark.

    Raises:
        ConfigError: the operator's Connect cluster runs or has no positions of this mirror, the
            flow runs, or it has other positions already.
        RetriableError: the target does not answer; the same call completes what it has begun.
    """
    async with _target_of(plan) as target:
        await _refuse_members(target, flow.group_id, f"the Connect cluster {flow.group_id} runs")
        positions = await _of_connector(target, flow)
        if not positions:
            raise ConfigError(
                f"{flow.offsets_topic} on {flow.target} has no position of {flow.connector}",
                remedy="check group and topics of the resource, or leave --carry-positions out",
            )
        return [await _carried(target, plan, positions, flow.connector)]


async def _of_connector(target: Cluster, flow: OperatorFlow) -> dict[TopicPartition, int]:
    """Return the next offsets of a connector in the offsets topic of a Connect cluster, and in its
    own, which counts first. ``PartitionError``: what is stored as a position is none."""
    values: dict[TopicPartition, bytes | None] = {}

    def take(_partition: int, record: Record) -> None:
        try:
            connector, source = parse_source_offset_key(bytes(record.key or b""))
        except ProtocolError:
            return  # not of Connect
        topic, number = source.get("topic"), source.get("partition")
        if connector != flow.connector or not isinstance(topic, str) or not isinstance(number, int):
            return
        values[TopicPartition(topic, number)] = (
            None if record.value is None else bytes(record.value)
        )

    topics = [it for it in (flow.offsets_topic, flow.own_topic) if it]
    present = await Admin(target).describe_topics(topics)
    for topic in (it for it in topics if it in present):
        log = LogReader(target, topic, clock=SYSTEM_CLOCK, waits_for_transactions=True)
        await log.read_to_end(take)
    positions: dict[TopicPartition, int] = {}
    for partition, value in values.items():
        stored: SourceOffset | None = {}
        with suppress(ProtocolError):
            stored = parse_source_offset_value(value)
        if stored is None:
            continue
        positions[partition] = next_offset(stored)
        if positions[partition] < 0:
            raise not_a_position(partition)
    return positions


async def _committed(source: Cluster, group: Group) -> dict[TopicPartition, int]:
    await _refuse_members(source, group.name, f"the consumer group {group.name} has members")
    committed = (await GroupAdmin(source).committed([group.name]))[group.name]
    if isinstance(committed, Mm2pyError):
        raise committed
    return {tp: it.offset for tp, it in committed.items() if it.offset >= 0}


async def _refuse_members(cluster: Cluster, group_id: str, problem: str) -> None:
    members = (await Admin(cluster).describe_group(group_id)).members
    if members:
        clients = ", ".join(sorted({member.client_id for member in members}))
        raise ConfigError(
            f"{problem}: {clients}", remedy="stop it in order (SIGTERM), then repeat this command"
        )


async def _carried(
    target: Cluster, plan: FlowPlan, committed: Mapping[TopicPartition, int], of: str
) -> str:
    """Store positions of a flow that does not run; return a line about it."""
    await _refuse_members(target, plan.worker.group_id, f"the flow {plan.name} runs")
    await _store(target, plan, committed)
    topics = {tp.topic for tp in committed}
    return (
        f"{len(committed)} partitions of {len(topics)} topics continue at the next record of {of}"
    )


async def _store(target: Cluster, plan: FlowPlan, committed: Mapping[TopicPartition, int]) -> None:
    tables = FlowTables(
        target, store_producer(plan.props, plan.name), permit=UNLIMITED, clock=SYSTEM_CLOCK
    )
    topic = offset_topic(plan.props, plan.worker)
    store = KafkaOffsetBackingStore(
        tables.table(topic, follow=False, transactional=plan.worker.exactly_once)
    )
    values: dict[bytes, bytes | None] = {}
    for tp, offset in sorted(committed.items()):
        key = source_offset_key(SOURCE_NAME, mirror_source_partition(plan.names.source, tp))
        # A source offset is the last copied record, a committed offset the next to read.
        values[key] = source_offset_value(source_offset(offset - 1))
    try:
        await tables.prepare(topic.name)
        await store.start()
        stored = await store.entries(SOURCE_NAME)
        if not _by_content(stored).items() <= _by_content(values).items():
            raise ConfigError(
                f"{topic.name} has other positions of {plan.name} already",
                remedy="change them over REST (PATCH /connectors/.../offsets), or name the "
                "clusters otherwise",
            )
        await store.set(values)
    finally:
        await store.stop()
        await tables.close()


def _by_content(stored: Mapping[bytes, bytes | None]) -> dict[object, bytes | None]:
    return {
        partition_identity(parse_source_offset_key(key)[1]): value for key, value in stored.items()
    }


async def _other_counts(source: Cluster, target: Cluster, topics: set[str]) -> list[str]:
    """Name the topics whose keys go to other partitions than before: MirrorMaker 1 dealt them by
    the target's count."""
    here = await Admin(source).describe_topics(topics)
    there = await Admin(target).describe_topics(topics)
    counts = {
        name: (len(here[name].partitions), len(there[name].partitions))
        for name in sorted(topics)
        if name in here and name in there
    }
    return [
        f"{name} has {ours} partitions on the source and {theirs} on the target: from now on each "
        "record keeps its partition, so keys go to other partitions than before"
        for name, (ours, theirs) in counts.items()
        if ours != theirs
    ]
