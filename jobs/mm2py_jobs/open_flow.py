"""One flow as every job opens it: its plan, the config in force, both clusters and the stores on
its target.

Flow: FILE + ``A->B`` -> ``flow_plan`` -> ``OpenFlow``, which connects to the target and reads
``mm2py-flows.<source>.internal``, so that changes made over REST count -> ``admin`` of each side at
its first use. What Spark tasks have is in ``flow_sides`` and ``flow_target``. Only
``store_positions`` and writers of the stores change anything.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NamedTuple, Self, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import newest_records
from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK, Clock, closing
from mm2py.config.class_names import CHECKPOINT_NAME, SOURCE_NAME
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.java_values import parse_list
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError, ProtocolError, RetriableError
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.mirror.flow_state import enabled
from mm2py.mirror.source_offsets import (
    mirror_source_partition,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.mirror.two_clusters import ClusterEnd, refuse_one_cluster
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.storage.connect_json import TARGET, TargetPut, decode_config_record
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import ClusterAlias, FlowName, TargetState, TopicPartition
from mm2py_cli.config_commands import flow_named
from mm2py_cli.output import say
from mm2py_connectors.config import CONNECTORS
from mm2py_jobs.flow_sides import FlowSides
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.flow_target import FlowTarget
from mm2py_workers.internal_stores import (
    FlowTables,
    HostedOffsets,
    offset_topic,
    store_producer,
)
from mm2py_workers.wiring import derive_plan


def reads_committed(plan: FlowPlan, connector: Mapping[str, str]) -> bool:
    """Return whether a flow copies committed records alone: exactly once it does unless its
    consumer's level is set."""
    silent = "read_committed" if plan.worker.exactly_once else ""
    level = effective_client_properties(connector, "source", "consumer").get("isolation.level")
    return (level or silent).strip().lower() == "read_committed"


def plan_of_file(path: Path, flow: str) -> FlowPlan:
    """Derive the configs of one flow of a file, whatever copies it; ``A/B`` needs no quotes in a
    shell.

    Raises:
        UsageError: the file has no such clusters.
        ConfigError: the file is wrong.
    """
    config = MirrorMakerConfig.load(path, CONNECTORS)
    name = flow_named(config, flow)
    runs = config.flow_enabled(name) or config.heartbeats_enabled(name)
    return derive_plan(config, name, Plugins(), by_file=runs)


def flow_plan(path: Path, flow: str) -> FlowPlan:
    """Derive the configs of one flow of a file as ``plan_of_file``; ``ConfigError``: also where a
    consumer group copies the flow."""
    plan = plan_of_file(path, flow)
    name = plan.name
    if SOURCE_NAME not in plan.connectors:
        raise ConfigError(
            f"flow {name} is copied by MirrorSinkConnector, which keeps neither positions nor an "
            "offset map of its own",
            remedy="this command needs copy.connector=source",
        )
    return plan


class FlowNow(NamedTuple):
    """A flow as the file and the changes over REST make it.

    ``connector``: the source connector's config, placeholders resolved; None where there is no such
    flow now. ``checkpoints``: that of its checkpoint connector, None where it has none. ``held``:
    what was paused alone. ``state``: what it is to be, where that was asked for (``target_state``).
    """

    connector: dict[str, str] | None
    checkpoints: dict[str, str] | None = None
    held: frozenset[TopicPartition] = frozenset()
    state: TargetState = TargetState.STARTED


def flow_of_file(plan: FlowPlan) -> FlowNow:
    """Return the flow as its file has it, without changes made over REST; it may not be enabled."""
    return _now(plan, plan.connectors, frozenset())


def _now(
    plan: FlowPlan, configs: Mapping[str, Mapping[str, str]], held: frozenset[TopicPartition]
) -> FlowNow:
    source, checkpoints = (
        plan.resolve(configs[it]) if it in configs else None
        for it in (SOURCE_NAME, CHECKPOINT_NAME)
    )
    return FlowNow(source, checkpoints, held)


async def flow_in_force(plan: FlowPlan, target: Cluster, clock: Clock) -> FlowNow:
    """Read the flow as it is now; ``RetriableError``: the target does not answer."""
    topic = flows_topic(plan.name.source)
    if topic not in await Admin(target).describe_topics([topic]):
        return flow_of_file(plan) if plan.by_file else FlowNow(None)
    # Tables of its own: the first of others that is opened creates the topics of all.
    tables = FlowTables(
        target,
        store_producer(plan.props, plan.name),
        permit=UNLIMITED,
        clock=clock,
        only_reads=True,
    )
    overrides = FlowOverridesStore(
        tables.own_table(
            topic,
            "compact",
            plan.worker.offset_storage_replication_factor,
            follow=False,
            ordered=True,
        ),
        plan.connectors,
        clock=clock,
        by_file=plan.by_file,
    )
    try:
        await overrides.start()
        return _now(plan, overrides.effective(), overrides.held())
    finally:
        await overrides.stop()
        await tables.close()


async def target_state(plan: FlowPlan, target: Cluster, clock: Clock) -> tuple[TargetState, int]:
    """Return what a flow's source connector is to be and the offset of its record, -1 where there
    is none; read-only. ``RetriableError``: the target does not answer."""
    key = f"{TARGET}{SOURCE_NAME}".encode()
    records = await newest_records(target, plan.worker.config_storage_topic, clock)
    offset, value = records.get(key, (-1, None))
    with suppress(ProtocolError):  # a worker logs it
        put = decode_config_record(key, value)
        if isinstance(put, TargetPut) and put.state is not None:
            return put.state, offset
    return TargetState.STARTED, -1


def refuse_transforms(flow: FlowName, connector: Mapping[str, str], reason: str) -> None:
    """Refuse what works with whole batches for a flow whose records pass transforms;
    ``ConfigError``: they do."""
    if parse_list(connector.get("transforms", "")):
        raise ConfigError(
            f"records of flow {flow} pass transforms={connector['transforms']}: {reason}",
            remedy="let the flow's workers copy it, or remove transforms",
        )


async def store_positions(
    tables: FlowTables, plan: FlowPlan, positions: Mapping[TopicPartition, int]
) -> None:
    """Store where the copies of source partitions begin, as ``PATCH /connectors/<name>/offsets``
    (KIP-875) does; -1 for nowhere.

    Nothing of the flow may copy them meanwhile.
    """
    async with closing(
        HostedOffsets(
            tables, offset_topic(plan.props, plan.worker), transactional=plan.worker.exactly_once
        )
    ) as offsets:
        await offsets.set(
            {
                source_offset_key(
                    SOURCE_NAME, mirror_source_partition(plan.names.source, partition)
                ): None if position < 0 else source_offset_value(source_offset(position - 1))
                for partition, position in positions.items()
            }
        )


# ---- clusters and stores


def admin_cluster(
    connector: Mapping[str, str],
    side: str,
    alias: ClusterAlias,
    *,
    role: str,
    clock: Clock,
    more: Mapping[str, str] | None = None,
) -> Cluster:
    """Return the "source" or "target" of a flow by the admin properties of its connector; ``more``
    wins over them."""
    properties = effective_client_properties(
        connector, "source" if side == "source" else "target", "admin", role=role
    )
    return Cluster.of({**properties, **(more or {})}, alias=alias, clock=clock)


@final
class OpenFlow:
    """One flow, opened: an asynchronous context manager that connects to the target.

    Args:
        plan: of its file.
        role: of the admin clients, in their client ids.
    """

    def __init__(self, plan: FlowPlan, *, role: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.plan, self.clock = plan, clock
        self.name = plan.name
        self.target = FlowTarget(plan.name, plan.props, clock)
        self.connector: Mapping[str, str] = {}
        """Config of the source connector as it was in force when the flow was opened, placeholders
        resolved."""
        self.held = frozenset[TopicPartition]()
        """Topics (partition -1) and partitions that were paused alone then."""
        self.copies = False
        """Whether the flow is enabled, and was not deleted over REST."""
        self._role, self._opened = role, AsyncExitStack()
        self._admins: dict[str, Cluster] = {}

    async def __aenter__(self) -> Self:
        """Connect to the target and read changes made over REST; ``RetriableError``: it does not
        answer."""
        async with AsyncExitStack() as opening:
            opening.push_async_callback(self.target.close)
            await self.target.cluster.connect()
            self.connector, self.copies, self.held = await self._now()
            self._opened = opening.pop_all()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._opened.aclose()

    async def is_unchanged(self) -> bool:
        """Tell whether the flow is as when it was opened: its config, and that it copies;
        ``RetriableError``: the target does not answer."""
        return (await self._now())[:2] == (self.connector, self.copies)

    async def _now(self) -> tuple[Mapping[str, str], bool, frozenset[TopicPartition]]:
        now = await flow_in_force(self.plan, self.target.cluster, self.clock)
        copies = now.connector is not None and enabled(now.connector)
        return now.connector or _of_file(self.plan), copies, now.held

    async def admin(self, side: str) -> Admin:
        """Return the administration of the "source" or "target", connected at the first call.

        Raises:
            RetriableError: it does not answer.
            ConfigError: the source is the target.
        """
        if side not in self._admins:
            alias = self.name.source if side == "source" else self.name.target
            cluster = admin_cluster(self.connector, side, alias, role=self._role, clock=self.clock)
            opened = await self._opened.enter_async_context(cluster)
            if side == "source":
                refuse_one_cluster(ClusterEnd.of(opened), ClusterEnd.of(self.target.cluster))
            self._admins[side] = opened
        return Admin(self._admins[side])


def flow_sides(
    path: Path,
    flow: str,
    topics: str | None,
    *,
    needs_target: bool = True,
    as_they_are: str = "",
) -> FlowSides:
    """Return both clusters of a flow, with ``topics`` in place of those that it copies; it need not
    be enabled.

    Without ``needs_target`` the file alone counts where the target does not answer, which is
    printed.

    Raises:
        UsageError, ConfigError: there is no such flow; or its records pass transforms, and
            ``as_they_are`` is why that cannot be.
        RetriableError: the target does not answer.
    """
    plan = flow_plan(path, flow)

    async def in_force() -> Mapping[str, str]:
        async with OpenFlow(plan, role="job") as flow:
            return flow.connector

    try:
        connector = asyncio.run(in_force())
    except RetriableError as error:
        if needs_target:
            raise
        say(f"changes made over REST are not known, the file alone counts: {error}")
        connector = _of_file(plan)
    if as_they_are:
        refuse_transforms(plan.name, connector, as_they_are)
    if reads_committed(plan, connector):
        connector = {**connector, "source.consumer.isolation.level": "read_committed"}
    if topics is not None:
        connector = {**connector, "topics": topics}
    return FlowSides(plan.name, connector, plan.props)


def _of_file(plan: FlowPlan) -> Mapping[str, str]:
    return plan.resolve(plan.connectors[SOURCE_NAME])
