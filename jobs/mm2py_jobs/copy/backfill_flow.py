"""A flow as a backfill sees it: its configs, both clusters, its topics, its backfill topic.

Flow: ``FlowPlan`` (``open_flow``) -> ``BackfillSession``, which opens connections -> ``Survey``,
``BackfillDriver``. Nothing is created but the backfill topic, by ``open_topic``.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, final

from mm2py.api.context import EventKind, LossEvent
from mm2py.client.connect.admin import NO_LOG, Admin, ConfigOp
from mm2py.client.fetch.log_reader import newest_values
from mm2py.client.send.transactions import fence_producers
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.definitions import parse_config
from mm2py.errors import (
    ConfigError,
    FatalError,
    FatalServerError,
    ProtocolError,
    RetriableError,
    ServerError,
)
from mm2py.flows.flow_ledger import read_ledger
from mm2py.mirror.backfills import Job, backfill_topic, driver_id
from mm2py.mirror.failovers import Failover
from mm2py.mirror.filters import (
    TopicSelection,
    config_property_filter_from_config,
)
from mm2py.observability.logging import level_name
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION, server_error
from mm2py.protocol.groups import DescribedGroup
from mm2py.storage.config_fold import ConfigFold
from mm2py.storage.connect_json import decode_config_record
from mm2py.storage.job_claim import JobClaim
from mm2py.types import EARLIEST, LATEST, TopicPartition
from mm2py_connectors.config_sync import config_operations
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_connectors.partition_deal import ASSIGNED_PARTITIONS
from mm2py_jobs.copy.backfill import BackfillDriver
from mm2py_jobs.copy.backfill_lane import BackfillLane
from mm2py_jobs.copy.copy_again import cut_pages
from mm2py_jobs.copy.known_maps import known_maps
from mm2py_jobs.copy.live_flow import unfinished_failover
from mm2py_jobs.copy.restored_flows import restored_elsewhere
from mm2py_jobs.copy.survey import Known, Survey, SurveyedTopics, known_copies
from mm2py_jobs.open_flow import OpenFlow, reads_committed, refuse_transforms, store_positions
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.internal_stores import HostedMaps

_QUIET: Final = {
    "refresh.topics.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "sync.topic.configs.enabled": "false",
}
"""The live flow's own jobs; here the connector only creates what is missing."""


@dataclass(frozen=True, slots=True)
class _Context:
    """Lent to the connector that creates topics."""

    clock: Clock

    def request_reconfiguration(self) -> None:
        """Nothing runs that could change."""

    def fail(self, error: Exception) -> None:
        """Loops are switched off."""
        raise error


@final
class BackfillSession:
    """One flow with open connections; implements ``mm2py_jobs.copy.live_flow.BackfillFlow``.

    What changes the flow or its target leaves only with the permit of ``claim``, which the driver
    has that was built over it.
    """

    def __init__(self, plan: FlowPlan, clock: Clock = SYSTEM_CLOCK) -> None:
        self.flow = OpenFlow(plan, role="backfill", clock=clock)
        self.name, self.store = plan.name, self.flow.target.jobs
        self._plan, self._clock = plan, clock
        self._target = self.flow.target.cluster
        self.claim = JobClaim(
            self.store,
            self.flow.target.writer(driver_id(str(plan.name))),
            self.fence,
            name=str(plan.name),
            clock=clock,
        )
        self._tables = self.flow.target.permitted_tables(self.claim.permit)

    @property
    def clusters(self) -> Mapping[str, Mapping[str, str]]:
        source = effective_client_properties(self.flow.connector, "source", "consumer")
        return {"source": source, "target": self._plan.props}

    @property
    def driver(self) -> BackfillDriver:
        return BackfillDriver(self.claim, self.store, self, name=str(self.name), clock=self._clock)

    async def __aenter__(self) -> "BackfillSession":
        """Connect to the target; raises as ``OpenFlow``."""
        await self.flow.__aenter__()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        self.claim.permit.abandon()
        await self.flow.__aexit__()

    # ---- what is there

    async def survey(self) -> Survey:
        """Return what plans; connects to the source and reads which topics the flow copies.

        Raises:
            ConfigError: it does not copy.
            RetriableError: the source does not answer.
        """
        flow, connector = self.flow, self.flow.connector
        if not flow.copies:
            raise ConfigError(
                f"flow {self.name} is not enabled, or was deleted over REST",
                remedy=f"set {self.name}.enabled = true, or create it with POST /flows",
            )
        refuse_transforms(
            self.name, connector, "Spark copies whole batches, which would arrive as they are"
        )
        source = await flow.admin("source")
        options = parse_config(MirrorSourceConfig, connector)
        selection = TopicSelection.of(
            self.name, connector, replicate_heartbeats=options.heartbeats_replication_enabled
        )
        listed = await source.list_topics()
        copies = {
            topic: selection.copy_of(topic)
            for topic in sorted(listed)
            if selection.replicate(topic)
        }
        topics = replace(self._topics(copies), unlisted=partial(selection.unlisted, listed))
        return Survey(source, await flow.admin("target"), topics, clock=self._clock)

    @property
    def trouble(self) -> str:
        """Why the records of the driver are not stored now, empty where they are."""
        if not self.claim.is_unconfirmed:
            return ""
        cause = self._target.unreached
        return f"{self._target} confirms no record of the driver{cause and ': '}{cause}"

    async def open_topic(self) -> None:
        """Read the backfill topic; it is created where it does not exist."""
        await (self.store.refresh() if self.store.live else self.store.start())

    async def open_if_there(self) -> None:
        """Read the backfill topic if there ever was a job of the flow."""
        topic = backfill_topic(self.name.source)
        if topic in await Admin(self._target).describe_topics([topic]):
            await self.open_topic()

    def lane(self, job: Job, task: Mapping[str, str]) -> BackfillLane:
        return BackfillLane(
            source=self.name.source,
            target=self.name.target,
            job=job.id,
            run=job.run,
            worker=self._plan.props,
            connector=self.flow.connector,
            task=task,
            log_level=level_name(),
        )

    async def prepare_topics(self) -> Mapping[str, str]:
        """Create missing copies as the live flow does; return the config of its tasks.
        ``FatalError``: the flow has nothing to copy."""
        connector = MirrorSourceConnector({**self.flow.connector, **_QUIET})
        try:
            await connector.start(_Context(self._clock))
            configs = connector.task_configs(1)
        finally:
            await connector.stop()
        if not any(it[ASSIGNED_PARTITIONS] for it in configs):
            raise FatalError(f"the flow {self.name} has no partition that can be copied")
        return configs[0]

    async def lost(self) -> list[LossEvent]:
        """Return what the source had deleted of the newest job's ranges before it was copied."""
        leases, found = self.store.leases, dict[TopicPartition, list[LossEvent]]()
        for record in (await read_ledger(self._target, self.name)).records:
            event = record.event
            lease = leases.get(event.partition)
            if event.kind is EventKind.RECREATED:
                found.pop(event.partition, None)  # offsets began anew
            elif lease is None or event.kind is not EventKind.RETENTION:
                continue
            elif lease.start <= event.first_offset < lease.end:
                found.setdefault(event.partition, []).append(event)
        return [event for tp in sorted(found) for event in found[tp]]

    async def published_tasks(self) -> Sequence[Mapping[str, str]]:
        """Return the task configs that workers of the flow have published, and what its streams
        had: none before the flow's first start."""
        topic, fold = self._plan.worker.config_storage_topic, ConfigFold()
        for record in (await newest_values(self._target, topic, self._clock)).items():
            with suppress(ProtocolError):  # a worker logs it
                fold.take(decode_config_record(*record))
        return [*fold.snapshot().published(SOURCE_NAME), *self.store.streamed()]

    # ---- BackfillFlow

    async def group(self) -> DescribedGroup:
        return await Admin(self._target).describe_group(self._plan.worker.group_id)

    async def known(self, partitions: Collection[TopicPartition], *, whole: bool = False) -> Known:
        target, topics = Admin(self._target), self._topics({})
        return await known_copies(target, topics, partitions, self._clock, whole=whole)

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store where copies begin, as ``PATCH /connectors/<name>/offsets`` (KIP-875) does; -1 for
        nowhere."""
        await store_positions(self._tables, self._plan, positions)

    async def unfinished_failover(self) -> Failover | None:
        """Return the failover of the flow that is under way."""
        return await unfinished_failover(self._target, self.name, self._clock)

    async def restored_elsewhere(self) -> Mapping[str, str]:
        """Return topics that unfinished restores of other flows write, with what to call each
        restore."""
        return await restored_elsewhere((await self.flow.admin("target")), self.name, self._clock)

    async def fence(self, transactional_ids: Sequence[str]) -> None:
        await fence_producers(self._target, transactional_ids, clock=self._clock, timeout_ms=10_000)

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> Mapping[str, ServerError | None]:
        """Change topic configs of the target; a refusal of what they are already is none."""
        self._check_permit()
        return await altered_configs(await self.flow.admin("target"), changes)

    async def log_ends(self, copies: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return await (await self.flow.admin("target")).offsets(copies, LATEST)

    async def source_starts(
        self, sources: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return await (await self.flow.admin("source")).offsets(sources, EARLIEST)

    async def known_starts(
        self, sources: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return where the logs of source partitions begin, of those whose leaders say so now."""
        starts = await (await self.flow.admin("source")).log_starts(sources)
        return {tp: start for tp, start in starts.items() if start != NO_LOG}

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        self._check_permit()
        await (await self.flow.admin("target")).delete_records(ends)

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Let the maps of source partitions end at (target offset, source offset)."""
        worker = self._plan.worker
        maps = HostedMaps(
            self._tables,
            self.name.source,
            worker.offset_storage_replication_factor,
            transactional=worker.exactly_once,
        )
        known = await known_maps(self._target, self.name.source)
        try:
            for partition, (target_end, source) in places.items():
                if partition not in known:
                    continue
                page, removed = cut_pages(known[partition].pages, target_end, source)
                await maps.write({partition: [page]})
                if removed:
                    await maps.remove({partition: removed})
        finally:
            await maps.close()

    # ---- inside

    def _check_permit(self) -> None:
        if not self.claim.permit.valid:
            raise RetriableError(
                "the driver's records are not confirmed, another one may take over"
            )

    def _topics(self, copies: Mapping[str, str]) -> SurveyedTopics:
        filtered = config_property_filter_from_config(self.flow.connector)
        syncs = parse_config(MirrorSourceConfig, self.flow.connector).sync_topic_configs_enabled
        return SurveyedTopics(
            self.name,
            copies,
            self._plan.worker.offset_storage_topic,
            names=self._plan.names,
            read_committed=reads_committed(self._plan, self.flow.connector),
            synced=lambda entries: config_operations(entries, filtered) if syncs else (),
            held=self.flow.held,
        )


async def altered_configs(
    target: Admin, changes: Mapping[str, Sequence[ConfigOp]]
) -> Mapping[str, ServerError | None]:
    """Change topic configs; a refusal of what they are already is none, and topics that are gone
    say so at once."""
    try:
        altered = await target.alter_topic_configs(changes)
    except RetriableError:
        # A request whose topics are all unknown is repeated until its time is over.
        if not changes or await target.describe_topics(changes):
            raise
        return {topic: server_error(UNKNOWN_TOPIC_OR_PARTITION, topic) for topic in changes}
    refused = [
        topic
        for topic, error in altered.items()
        if error is not None and error.code != UNKNOWN_TOPIC_OR_PARTITION
    ]
    with suppress(FatalServerError):
        for topic, entries in (await target.describe_topic_configs(refused)).items():
            if all(is_so(change, entries) for change in changes[topic]):
                altered[topic] = None
    return altered


def is_so(change: ConfigOp, entries: Sequence[ConfigEntry]) -> bool:
    """Whether a topic's config is as a change would make it."""
    own = {it.name: it.value for it in entries if it.source is ConfigSource.DYNAMIC_TOPIC_CONFIG}
    return own.get(change.name) == (change.value if change.op == "SET" else None)
