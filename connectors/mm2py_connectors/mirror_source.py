"""MirrorSource connector: finds topics, keeps their copies in step, deals partitions to tasks.

Flow: two admin clients -> scheduler jobs (create, ACLs, configs, refresh) -> ``ready`` partitions
-> ``task_configs`` -> ``MirrorSourceTask``. A partition without a copy on the target waits here and
is given to no task. Records are moved by the task, not here.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, final

from mm2py.api.connector import BESIDE, Connector
from mm2py.api.context import (
    ConnectorContext,
    PartitionRates,
    PublishedTasks,
    TaskContext,
    WaitingPartition,
)
from mm2py.api.task import BatchSourceTask
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.class_names import KAFKA_RELEASE, MIRROR_SOURCE_CONNECTOR
from mm2py.config.client_properties import Side, effective_client_properties
from mm2py.config.definitions import ConfigModel, parse_config
from mm2py.errors import RetriableError
from mm2py.mirror.offset_checks import Positions, check_mirror_offsets
from mm2py.mirror.producer_ids import (
    LOOP_SUPPRESSION,
    SOURCE_CLUSTER_ID,
    TARGET_CLUSTER_ID,
    Suppression,
)
from mm2py.mirror.start_positions import (
    FIRST_ENDS,
    FIRST_START,
    LATE_PARTITIONS,
    STREAMED_PARTITIONS,
    StartPositions,
    first_start_ms,
)
from mm2py.types import LATEST, TopicPartition
from mm2py_connectors.clients import (
    AdminFactory,
    AdminSession,
    MirrorAdmin,
    ReaderFactory,
    WriterFactory,
    open_admin,
    open_reader,
    open_writer,
)
from mm2py_connectors.internal_topics import create_compacted_topic, no_offset_syncs
from mm2py_connectors.loop_suppression import find_suppression
from mm2py_connectors.mirror_source_config import FlowRate, MirrorSourceConfig
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from mm2py_connectors.partition_deal import (
    ASSIGNED_PARTITIONS,
    PartitionDeal,
    format_partitions,
    parse_ends,
    parse_partitions,
)
from mm2py_connectors.topic_upkeep import TopicUpkeep

log = logging.getLogger(__name__)

TASK_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorSourceTask"
"""Value of ``task.class`` in task configs, so that a Java worker can start them."""

_RATE: Final = "flow.max.bytes.per.second"

OFFSET_SYNCS_EVERY_S: Final = 30.0

SUPPRESSION_EVERY_S: Final = 10.0
"""How often a source is asked again that did not let loops be suppressed."""

LONGEST_BESIDE: Final = 256 * 1024
"""Bytes of partitions in a deal that is kept beside Java's: it is one record, with them all."""

SETTLES_S: Final = 60.0
"""For so long a flow that starts for the first time is dealt anew, as Java would: heartbeats come
after it. Later the others keep their task."""

LONGEST_COLLECTION_S: Final = 30.0
"""New deals restart tasks: while topics keep appearing they wait longer and longer, up to this."""


@final
class MirrorSourceConnector(Connector):
    """Copies the chosen topics of one flow; ``enabled=false`` makes it do nothing at all."""

    java_class: ClassVar[str] = MIRROR_SOURCE_CONNECTOR
    exactly_once_support: ClassVar[bool] = True
    plugin_version: ClassVar[str] = KAFKA_RELEASE
    config_model: ClassVar[type[ConfigModel]] = MirrorSourceConfig

    def __init__(
        self,
        config: Mapping[str, str],
        *,
        admins: AdminFactory = open_admin,
        readers: ReaderFactory = open_reader,
        writers: WriterFactory = open_writer,
    ) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorSourceConfig, config)
        self._readers, self._writers = readers, writers
        self._upkeep = TopicUpkeep(
            self._props,
            self._config,
            heartbeats=self._config.heartbeats_replication_enabled,
            admins=admins,
        )
        self._deal = PartitionDeal()
        # Where partitions begin at latest: those that the first start of the flow found.
        self._early: frozenset[TopicPartition] | None = None
        # Where the logs of those ended that waited for their copy: what follows is copied.
        self._ended: dict[TopicPartition, int] = {}
        # What ages are counted from, for tasks that start later too; -1 where none is asked for.
        self._first_start_ms = -1
        # A connector that came here from another worker knows rates of this one alone: weighing its
        # first deal by them would restart tasks that were not changed.
        self._came = True
        self._dealt_anew = False
        self._collection_s = self._collects_until = self._changed_at = 0.0
        self._settles_at = -math.inf
        self._context: ConnectorContext | None = None
        # What tasks must know to suppress loops; and why none are suppressed that could be.
        self._suppression: dict[str, str] = {}
        self._not_suppressed = ""
        self._has_syncs_topic = False

    @staticmethod
    def check_offsets(_config: Mapping[str, str], offsets: Positions) -> bool:
        return check_mirror_offsets(offsets)

    async def start(self, context: ConnectorContext) -> None:
        """Create what is missing, then start; ``RetriableError`` for an unreachable cluster."""
        config = self._config
        # As Java: a disabled flow creates nothing, not even the offset-syncs topic.
        if not config.enabled:
            log.info("flow is disabled, nothing is copied")
            return
        self._context = context
        try:
            source, target = await self._upkeep.open(context)
            topics = self._upkeep.topics
            if config.emit_offset_syncs_enabled:
                job = "create offset-syncs topic", self._create_offset_syncs_topic
                await self._upkeep.scheduler.run(*job)
                # A source that is rebuilt has lost it, while the flow goes on.
                self._upkeep.scheduler.repeat(*job, OFFSET_SYNCS_EVERY_S, delayed=True)
            # Before the first task config: a task that starts without it would copy loops until the
            # next reconfiguration.
            await self._suppress_loops(source, target)
            if self._not_suppressed:
                again = partial(self._suppress_again, source, target)
                self._upkeep.scheduler.repeat(
                    "suppress loops", again, SUPPRESSION_EVERY_S, delayed=True
                )
            # Before ``task_configs`` is asked: Java loads its partitions in ``start`` too.
            await topics.refresh()
            self._deal.update(topics.ready())
            published = _published(context, ASSIGNED_PARTITIONS)
            # After a restart of the worker: without it every partition would be dealt again and
            # every task restarted.
            self._deal.continue_with(published)
            if not any(published):
                self._settles_at = context.clock.monotonic() + SETTLES_S
            if begins_at_end(self._props, SYSTEM_CLOCK):
                await self._find_early(context, source.admin)
            self._first_start_ms = first_start_ms(
                config.start_positions, _tasks(context), context.clock
            )
            self._upkeep.begin(source, target, self._refresh)
        except BaseException:
            # A failed start is tried again with new sessions; these would stay open.
            await self.stop()
            raise
        log.info(
            "source connector started topics=%d partitions=%d waiting=%d",
            len(topics.remote_topics),
            len(self._deal.partitions),
            len(topics.waiting()),
        )

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Deal the known partitions as Java, unless one task has far more to copy than another."""
        context: object = self._context
        rates = context.partition_rates() if isinstance(context, PartitionRates) else None
        # Rates of tasks on other workers are not known here: an incomplete picture would move
        # partitions for nothing.
        if self._came and rates and not self._deal.partitions <= rates.keys():
            rates = None
        hands = self._deal.deal(max_tasks, rates)
        # Without a task config the next start would take itself for the flow's first.
        if not hands and (self._early is not None or self._first_start_ms >= 0):
            hands.append([])
        rate = FlowRate.parts(self._config.flow_max_bytes_per_second, len(hands))
        return [
            {**config, **told}
            for config, told in zip(
                self._dealt(hands, self._suppression | rate), self._begins(hands), strict=True
            )
        ]

    async def java_task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Deal all partitions from the beginning, as Java's connector does when it starts; beside
        it is the deal that ours continue with."""
        deal = PartitionDeal()
        if self._context is not None:
            deal.update(self._upkeep.topics.ready())
        hands, ours = deal.deal(max_tasks), self._deal.deal(max_tasks)
        # The config topic's ``max.message.bytes`` bounds one record.
        length = sum(len(str(partition)) + 1 for partition in deal.partitions)
        if deal.partitions != self._deal.partitions or length > LONGEST_BESIDE:
            ours = hands
        # The order within a task means nothing; only another deal is worth keeping.
        kept = list(map(frozenset, ours)) != list(map(frozenset, hands))
        return [
            config
            | ({BESIDE + ASSIGNED_PARTITIONS: format_partitions(hand)} if kept else {})
            | {BESIDE + name: text for name, text in told.items()}
            for config, hand, told in zip(
                self._dealt(hands, {}), ours, self._begins(ours), strict=True
            )
        ]

    @staticmethod
    def java_task_config(
        config: Mapping[str, str], connector: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """Leave out what is found for our tasks: whose batches loop, and their part of the rate."""
        plain = {
            name: text
            for name, text in config.items()
            if name not in (SOURCE_CLUSTER_ID, TARGET_CLUSTER_ID, LOOP_SUPPRESSION, _RATE)
        }
        of_connector = {name: connector.get(name) for name in (LOOP_SUPPRESSION, _RATE)}
        return plain | {name: text for name, text in of_connector.items() if text is not None}

    @staticmethod
    def task_config_in_force(
        config: Mapping[str, str],
        connector: Mapping[str, str],
        tasks: int,
        clusters: tuple[str, str],
    ) -> Mapping[str, str]:
        """Add the ids of source and target, and the task's part of the rate; whose batches loop the
        task finds by itself."""
        limit = parse_config(FlowRate, connector).flow_max_bytes_per_second
        ids = dict(zip((SOURCE_CLUSTER_ID, TARGET_CLUSTER_ID), clusters, strict=True))
        return {**ids, **config, **FlowRate.parts(limit, tasks)}

    def _dealt(
        self, hands: Sequence[Sequence[TopicPartition]], told: Mapping[str, str]
    ) -> Sequence[dict[str, str]]:
        return [
            {
                **self._props,
                **told,
                "task.class": TASK_CLASS,
                ASSIGNED_PARTITIONS: format_partitions(partitions),
                "task.index": str(index),
            }
            for index, partitions in enumerate(hands)
        ]

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> BatchSourceTask:
        """Build one task; ``ConfigError`` when its config is wrong."""
        return MirrorSourceTask(config, context, readers=self._readers, writers=self._writers)

    async def stop(self) -> None:
        await self._upkeep.close()

    def waiting(self) -> Mapping[TopicPartition, str]:
        """Source partitions that no task has, because their copy does not exist, with the cause."""
        return self._upkeep.waiting()

    def backlog(self) -> Mapping[TopicPartition, WaitingPartition]:
        """Return what waits in source partitions whose copy does not exist."""
        return self._upkeep.backlog()

    def notes(self) -> Mapping[str, str]:
        """What is worth knowing of the topics though nothing is wrong."""
        return self._upkeep.notes()

    def problems(self) -> Mapping[str, str]:
        """Jobs whose last run failed and topics that wait for their copy, with the cause."""
        found = dict(self._upkeep.problems())
        if self._not_suppressed:
            found["loop suppression"] = self._not_suppressed
        return found

    async def _suppress_loops(self, source: AdminSession, target: AdminSession) -> None:
        before = self._not_suppressed
        suppression, self._not_suppressed = await find_suppression(
            self._props,
            source.admin,
            replication_factor=self._config.offset_syncs_topic_replication_factor,
        )
        # Nothing to tell: the config stays byte for byte what a Java worker would compute.
        if suppression is Suppression.OFF and self._not_suppressed == before:
            return  # the tasks' configs stay as they are, at first as Java makes them
        if self._not_suppressed:
            log.warning("%s", self._not_suppressed)
        self._suppression = {
            LOOP_SUPPRESSION: suppression,
            SOURCE_CLUSTER_ID: source.session.cluster_id,
            TARGET_CLUSTER_ID: target.session.cluster_id,
        }
        log.info(
            "batches of mirrors on the source loop.suppression=%s policy=%s",
            suppression,
            type(self._upkeep.policy).__name__,
        )

    async def _suppress_again(self, source: AdminSession, target: AdminSession) -> None:
        """Suppress loops as soon as the source lets us: a flow back that is added later needs the
        ids of this one's producers."""
        if self._not_suppressed and self._context is not None:
            await self._suppress_loops(source, target)
            # Only a change is worth new task configs, which restart the tasks.
            if not self._not_suppressed:
                self._context.request_reconfiguration()

    async def _find_early(self, context: ConnectorContext, source: MirrorAdmin) -> None:
        """Find what begins at ``latest``, with the log ends of what cannot be copied yet."""
        early = _early(context)
        # A later start: what the first one found is in the published task configs.
        if early is not None:
            self._ended = {
                tp: end
                for config in _tasks(context)
                for tp, end in parse_ends(_items(config.get(FIRST_ENDS, ""))).items()
            }
            self._early = early.union(self._ended)
            return
        # Copies may take long; ``latest`` means the flow's first start, not the copy's.
        asked = dict.fromkeys(self._upkeep.topics.waiting(), LATEST)
        if asked:
            consumer = effective_client_properties(
                self._props, "source", "consumer", role="replication-consumer"
            )
            # As the task will read: the last stable offset, not the high watermark.
            committed = consumer.get("isolation.level") == "read_committed"
            listed = await source.list_offsets(asked, read_committed=committed)
            # One whose end is not known begins at its first record, as all that are found later.
            self._ended = {tp: it.offset for tp, it in listed.items() if it.error is None}
        self._early = self._deal.partitions.union(self._ended)

    def _begins(self, hands: Sequence[Sequence[TopicPartition]]) -> Sequence[dict[str, str]]:
        """Name for each task the partitions that do not begin at the end of their log though they
        are to begin at ``latest``, and what ages are counted from.

        The first task keeps the ends of what waits still, for the next start.
        """
        early, dealt = self._early, {it for hand in hands for it in hand}
        begins: list[dict[str, str]] = []
        for hand in hands:
            late = [] if early is None else [it for it in hand if it not in early]
            waiting = [] if begins else [it for it in self._ended if it not in dealt]
            ended = [f"{it}:{self._ended[it]}" for it in (*hand, *waiting) if it in self._ended]
            told = {LATE_PARTITIONS: format_partitions(late)} if late else {}
            if ended:
                told[FIRST_ENDS] = ",".join(ended)
            if self._first_start_ms >= 0:
                told[FIRST_START] = str(self._first_start_ms)
            begins.append(told)
        return begins

    async def _refresh(self) -> None:
        if self._context is None:
            return
        now = self._context.clock.monotonic()
        if await self._upkeep.topics.refresh():
            ready = self._upkeep.topics.ready()
            # While the flow settles, a deal as Java would make it: heartbeats and other flows'
            # copies appear after it.
            if self._deal.update(ready, anew=now < self._settles_at):
                self._dealt_anew, self._changed_at = True, now
        # Java reconfigures at each refresh that finds a new partition; here topics that appear one
        # by one cost one restart of the tasks, not many.
        if now < self._collects_until:
            return
        if not self._dealt_anew:
            if now - self._changed_at >= self._collection_s:
                self._collection_s = 0.0
            return
        self._dealt_anew = self._came = False
        self._collects_until = now + self._collection_s
        self._collection_s = min(
            LONGEST_COLLECTION_S, 2 * (self._collection_s or self._upkeep.refresh_s)
        )
        self._context.request_reconfiguration()

    async def _create_offset_syncs_topic(self) -> None:
        if self._context is None:
            return
        config = self._config
        at_source = config.offset_syncs_topic_location == "source"
        host, other = config.source_cluster_alias, config.target_cluster_alias
        # The topic carries the alias of the cluster that does not host it (KIP-716).
        if not at_source:
            host, other = other, host
        side: Side = "source" if at_source else "target"
        topic = self._upkeep.policy.offset_syncs_topic(other)
        if self._upkeep.topics.is_on_source(topic) if at_source else self._has_syncs_topic:
            return
        opened = await self._upkeep.session(side, f"offset-syncs-{side}-admin")
        try:
            refusal = await create_compacted_topic(
                opened.admin,
                topic,
                replication_factor=config.offset_syncs_topic_replication_factor,
                factor_property="offset-syncs.topic.replication.factor",
                side=side,
                alias=host,
            )
            # Whoever may write a topic sees it; whether this one may be written, tasks report.
            if refusal is not None and topic not in await opened.admin.list_topics():
                raise RetriableError(no_offset_syncs(topic, refusal, side))
            self._has_syncs_topic = True
        finally:
            await self._upkeep.end(opened)


def begins_at_end(config: Mapping[str, str], clock: Clock) -> bool:
    """Return whether partitions without a stored position begin at the end of their logs."""
    props = effective_client_properties(config, "source", "consumer", role="replication-consumer")
    starts = StartPositions.parse(parse_config(MirrorSourceConfig, config).start_positions, clock)
    return props["auto.offset.reset"] == "latest" or starts.has_latest


def _early(context: object) -> frozenset[TopicPartition] | None:
    """Return what partitions a flow's first start found, None where this is the first."""
    dealt, streamed, late = (
        {partition for hand in _published(context, key) for partition in hand}
        for key in (ASSIGNED_PARTITIONS, STREAMED_PARTITIONS, LATE_PARTITIONS)
    )
    return frozenset((dealt | streamed) - late) if _tasks(context) else None


def _published(context: object, key: str) -> list[tuple[TopicPartition, ...]]:
    """Return the partitions that the published config of each task names."""
    return [parse_partitions(_items(it[key])) for it in _tasks(context) if key in it]


def _tasks(context: object) -> Sequence[Mapping[str, str]]:
    return context.published_tasks() if isinstance(context, PublishedTasks) else ()


def _items(text: str) -> list[str]:
    return text.split(",") if text else []
