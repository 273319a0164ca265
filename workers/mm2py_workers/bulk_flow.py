"""The flow that a bulk command is about, as its workers run it: the properties file, and what was changed over REST.

Flow: FILE + ``A->B`` -> ``flow_plan`` -> ``mm2py-flows.<source>.internal`` on the target -> ``source_connector`` -> a backfill;
``flow_sides`` for what reads both clusters. Only ``store_positions`` writes.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import connection_settings
from mm2py.config.java_values import parse_list
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.secret_names import names_a_secret
from mm2py.errors import ConfigError, RetriableError
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.mirror.source_offsets import (
    mirror_source_partition,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import FlowName, TopicPartition
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.config_commands import flow_named
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.flow_sides import FlowSides
from mm2py_workers.internal_stores import (
    FlowTables,
    HostedOffsets,
    offset_topic,
    store_producer,
)
from mm2py_workers.output import say
from mm2py_workers.wiring import derive_plan

SOURCE: Final = "MirrorSourceConnector"


def reads_committed(plan: FlowPlan, connector: Mapping[str, str]) -> bool:
    """Return whether a flow copies committed records alone: exactly once it does unless its consumer's level is set."""
    silent = "read_committed" if plan.worker.exactly_once else ""
    level = effective_client_properties(connector, "source", "consumer").get("isolation.level")
    return (level or silent).strip().lower() == "read_committed"


def flow_plan(path: Path, flow: str) -> FlowPlan:
    """Derive the configs of one flow of a file; ``A/B`` needs no quotes in a shell.

    Raises:
        UsageError: the file has no such clusters.
        ConfigError: the file is wrong, or a consumer group copies the flow.
    """
    config = MirrorMakerConfig.load(path, CONNECTORS)
    name = flow_named(config, flow if "->" in flow else flow.replace("/", "->", 1))
    runs = config.flow_enabled(name) or config.heartbeats_enabled(name)
    plan = derive_plan(config, name, Plugins(), by_file=runs)
    if SOURCE not in plan.connectors:
        raise ConfigError(
            f"flow {name} is copied by MirrorSinkConnector, which keeps neither positions nor an offset map of its own",
            remedy="this command needs copy.connector=source",
        )
    return plan


async def source_connector(
    plan: FlowPlan, tables: FlowTables, clock: Clock
) -> dict[str, str] | None:
    """Return the config of the flow's source connector as it is in force, placeholders resolved; None where there is no such flow now.

    Raises:
        RetriableError: the target does not answer.
    """
    topic = flows_topic(plan.name.source)
    if topic not in await Admin(tables.cluster).describe_topics([topic]):
        return plan.resolve(plan.connectors[SOURCE]) if plan.by_file else None
    overrides = FlowOverridesStore(
        tables.own_table(
            topic, "compact", plan.worker.offset_storage_replication_factor, follow=False
        ),
        plan.connectors,
        clock=clock,
        names_a_secret=names_a_secret,
        by_file=plan.by_file,
    )
    try:
        await overrides.start()
        config = overrides.effective().get(SOURCE)
    finally:
        await overrides.stop()
    return None if config is None else plan.resolve(config)


def refuse_transforms(flow: FlowName, connector: Mapping[str, str], reason: str) -> None:
    """Refuse what works with whole batches for a flow whose records pass transforms.

    Raises:
        ConfigError: they do.
    """
    if parse_list(connector.get("transforms", "")):
        raise ConfigError(
            f"records of flow {flow} pass transforms={connector['transforms']}: {reason}",
            remedy="let the flow's workers copy it, or remove transforms",
        )


async def store_positions(
    tables: FlowTables, plan: FlowPlan, positions: Mapping[TopicPartition, int]
) -> None:
    """Store where the copies of source partitions begin, as ``PUT /connectors/<name>/offsets`` does; -1 for nowhere.

    Nothing of the flow may copy them meanwhile.
    """
    offsets = HostedOffsets(
        tables, offset_topic(plan.props, plan.worker), transactional=plan.worker.exactly_once
    )
    try:
        await offsets.set(
            {
                source_offset_key(
                    SOURCE, mirror_source_partition(plan.name.source, partition)
                ): None if position < 0 else source_offset_value(source_offset(position - 1))
                for partition, position in positions.items()
            }
        )
    finally:
        await offsets.close()


def flow_sides(
    path: Path,
    flow: str,
    topics: str | None,
    *,
    needs_target: bool = True,
    as_they_are: str = "",
) -> FlowSides:
    """Return both clusters of a flow, with ``topics`` in place of those that it copies; it need not be enabled.

    Without ``needs_target`` the file alone counts where the target does not answer, which is printed.

    Raises:
        UsageError, ConfigError: there is no such flow; or its records pass transforms, and ``as_they_are`` is why that cannot be.
        RetriableError: the target does not answer.
    """
    plan = flow_plan(path, flow)
    connector: dict[str, str] | None = None
    try:
        connector = asyncio.run(_source_connector(plan, SYSTEM_CLOCK))
    except RetriableError as error:
        if needs_target:
            raise
        say(f"changes made over REST are not known, the file alone counts: {error}")
    if connector is None:
        connector = plan.resolve(plan.connectors[SOURCE])
    if as_they_are:
        refuse_transforms(plan.name, connector, as_they_are)
    return FlowSides.of_topics(plan.name, connector, plan.props, topics)


async def _source_connector(plan: FlowPlan, clock: Clock) -> dict[str, str] | None:
    settings = connection_settings(plan.props, scope=f"worker of {plan.name}")
    cluster = Cluster(settings, alias=plan.name.target, clock=clock)
    tables = FlowTables(
        cluster, store_producer(plan.props, plan.name), permit=UNLIMITED, clock=clock
    )
    try:
        await cluster.connect()
        return await source_connector(plan, tables, clock)
    finally:
        await tables.close()
        await cluster.close()
