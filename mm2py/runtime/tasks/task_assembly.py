"""Puts one worker task together from its spec.

Flow: ``TaskSpec`` -> connector (built anew, as a child process would) -> ``open_task`` -> adapter
where it returns records or has transforms -> ``WorkerTask``; of a sink -> ``open_sink_task`` ->
``WorkerSinkTask``. It opens no connection.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, cast, final

from mm2py.api.connector import Connector, SinkConnector
from mm2py.api.context import EventSink
from mm2py.api.records import SinkRecord
from mm2py.api.task import BatchSourceTask
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.tail import Identical
from mm2py.clock import Clock
from mm2py.config.class_names import (
    MIRROR_CHECKPOINT_CONNECTOR,
    MIRROR_HEARTBEAT_CONNECTOR,
    MIRROR_SINK_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
    canonical_class,
)
from mm2py.config.clients import ProducerSettings
from mm2py.config.definitions import parse_config
from mm2py.config.exactly_once import exactly_once_problems, raise_first
from mm2py.config.framework import SinkFrameworkConfig, TaskFrameworkConfig
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import parse_list
from mm2py.config.secret_names import secrets_in
from mm2py.errors import ConfigError
from mm2py.mirror.policies import policy_from_config
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter
from mm2py.runtime.plugins.catalog import plugin_type
from mm2py.runtime.plugins.converters.registry import RecordConverters
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.transforms.chain import TransformChain, steps_of
from mm2py.runtime.tasks.arrivals import SourceOrder
from mm2py.runtime.tasks.errant_records import DeadLetterQueue, ErrantRecords
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.offset_committer import OffsetCommitter, OffsetStore
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.runtime.tasks.own_offsets import OwnTopicOffsets
from mm2py.runtime.tasks.record_task import Conversion, RecordTaskAdapter
from mm2py.runtime.tasks.sink_loop import ConsumerFactory, Prepare, SinkSettings
from mm2py.runtime.tasks.target_sender import SenderFactory
from mm2py.runtime.tasks.task_context import NoLedger, WorkerTaskContext
from mm2py.runtime.tasks.task_host import HostedTask, TaskSpec
from mm2py.runtime.tasks.task_transactions import (
    StartGuard,
    TaskTransactions,
    TransactionMaps,
    Unguarded,
    committed_reads,
)
from mm2py.runtime.tasks.transformed_task import CopyTask, OrderedWorkerTask, TransformedTask
from mm2py.runtime.tasks.worker_sink_task import WorkerSinkContext, WorkerSinkTask
from mm2py.runtime.tasks.worker_task import COMMITS, TaskSettings, WorkerTask
from mm2py.storage.offset_map_store import MapStore, NoMapStore
from mm2py.types import FlowName, TaskId

_WITHOUT_TRANSFORMS: Final = (MIRROR_CHECKPOINT_CONNECTOR, MIRROR_HEARTBEAT_CONNECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReports:
    """Where a flow's tasks report to; ``events`` is the loss ledger, ``guard`` is asked before
    exactly-once tasks run."""

    meter: FlowMeter
    events: EventSink
    on_topic: Callable[[TaskId, str], None]
    guard: StartGuard = field(default_factory=Unguarded)


class SinkClients(Protocol):
    """What sink tasks read with, in a process that may load it."""

    def consumer(self, spec: TaskSpec, source: Mapping[str, str] | None) -> ConsumerFactory:
        """Return what joins a task's group; ``source``: the cluster that it reads, None for the
        worker's own. ``ConfigError``: a consumer property is wrong."""
        ...

    def dead_letters(self, spec: TaskSpec, config: SinkFrameworkConfig) -> DeadLetterQueue:
        """Return the dead letter queue that a config names; ``ConfigError``: a producer property is
        wrong."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskParts:
    """What all tasks of one flow share.

    ``sender`` makes the Sender of a task from its spec; ``settings`` come from the worker config,
    with what the task's ``producer`` has set filled in; ``events`` is the loss ledger; ``on_topic``
    is called at each task's first acknowledged record of a target topic. ``conversion`` reads from
    a connector's config how its ordinary records become bytes; ``maps`` keeps where copies are on
    the target. ``transactions`` builds what a task uses in place of ``sender``, ``store`` and
    ``maps`` with exactly-once support; ``own_offsets`` what one of a connector with an offset topic
    of its own has in place of ``store``. ``sinks`` is None in a process that must not load a sink
    task's consumer (confluent-kafka).
    """

    plugins: Plugins
    store: OffsetStore
    meter: FlowMeter
    clock: Clock
    sender: Callable[[TaskSpec], SenderFactory]
    producer: Callable[[TaskSpec], ProducerSettings]
    offset_flush_interval_ms: int
    offset_flush_timeout_ms: int
    graceful_timeout_ms: int
    target_name: str
    offsets_topic: str = ""
    events: EventSink = field(default_factory=NoLedger)
    on_topic: Callable[[TaskId, str], None] = lambda _task, _topic: None
    conversion: Callable[[Mapping[str, str]], Conversion] = lambda _connector: Conversion()
    permit: Permit = UNLIMITED
    maps: MapStore = field(default_factory=NoMapStore)
    transactions: (
        Callable[[TaskSpec, TaskFrameworkConfig, OwnTopicOffsets | None], TaskTransactions] | None
    ) = None
    own_offsets: Callable[[str | None], OwnTopicOffsets | None] = lambda _topic: None
    sinks: SinkClients | None = None
    flow: FlowName | None = None
    """None where the tasks' configs alone name clusters."""


@final
class TaskAssembly:
    """Builds tasks; an instance is a ``TaskBuilder``."""

    def __init__(self, parts: TaskParts) -> None:
        self._parts = parts

    def __call__(self, spec: TaskSpec, on_status: Callable[[Status], None]) -> HostedTask:
        """Build a task that is not started yet; ``Mm2pyError``: its config is wrong."""
        factory = self._parts.plugins.find(spec.connector_config.get("connector.class", ""))
        if plugin_type(factory) == "sink":
            return self._sink(spec, on_status)
        return self._source(spec, on_status)

    def _sink(self, spec: TaskSpec, on_status: Callable[[Status], None]) -> WorkerSinkTask:
        parts, config = self._parts, spec.connector_config
        # confluent-kafka starts threads of librdkafka: it is loaded in task hosts alone.
        if parts.sinks is None:
            raise ConfigError(
                f"task {spec.id} takes records from a consumer group, which needs a process of "
                "its own",
                remedy="set task.host.processes to at least 1",
            )
        factory = parts.plugins.find(config.get("connector.class", ""))
        framework = parse_config(SinkFrameworkConfig, config)
        source: Callable[[Mapping[str, str]], Mapping[str, str]] | None = getattr(
            factory, "consumer_properties", None
        )
        errant = ErrantRecords(
            spec.id.connector,
            spec.id.number,
            framework,
            clock=parts.clock,
            queue=(
                parts.sinks.dead_letters(spec, framework)
                if framework.errors_deadletterqueue_topic_name
                else None
            ),
            context_headers=framework.errors_deadletterqueue_context_headers_enable,
            mask=SecretMask(secrets_in(config, spec.config)),
        )
        context = WorkerSinkContext(str(spec.id), parts.clock, errant)
        steps = steps_of(config)
        chain = TransformChain(steps, errant.transformed)
        converters = parts.conversion(config).converters
        # MirrorSink takes bytes as they are: no converter is called per record.
        takes_bytes = getattr(factory, "takes_bytes", False) or converters.are_bytes
        connector = cast("SinkConnector", factory(config))
        return WorkerSinkTask(
            connector.open_sink_task(spec.config, context),
            parts.sinks.consumer(spec, None if source is None else source(spec.config)),
            context=context,
            settings=_sink_settings(spec, framework, parts.offset_flush_interval_ms),
            errant=errant,
            prepare=_prepare(errant, None if takes_bytes else converters, chain if steps else None),
            end_prepare=chain.close,
            meter=parts.meter,
            on_status=on_status,
            on_topic=lambda topic: parts.on_topic(spec.id, topic),
            events=(
                parts.events
                if canonical_class(config.get("connector.class", "")) == MIRROR_SINK_CONNECTOR
                else None
            ),
            permit=parts.permit,
        )

    def _source(self, spec: TaskSpec, on_status: Callable[[Status], None]) -> WorkerTask:
        parts, config = self._parts, spec.connector_config
        framework = parse_config(TaskFrameworkConfig, config)
        copies = canonical_class(framework.connector_class) == MIRROR_SOURCE_CONNECTOR
        # Connect's ``exactly.once.support=required`` and transaction boundaries, checked before
        # anything is opened.
        raise_first(exactly_once_problems(framework, enabled=parts.transactions is not None))
        own = parts.own_offsets(framework.offsets_storage_topic)
        transactions = (
            None if parts.transactions is None else parts.transactions(spec, framework, own)
        )
        # In a transaction positions are records of it (KIP-618), whichever topic they go to.
        store = transactions or own or parts.store
        kept = parts.maps if transactions is None else TransactionMaps(parts.maps, transactions)
        errant = ErrantRecords(spec.id.connector, spec.id.number, framework, clock=parts.clock)
        chain = _source_chain(config, errant)
        routes = copies and chain is not None and chain.routes
        maps = TaskOffsetMaps(
            kept if copies else NoMapStore(),
            # A transaction leaves a marker in the target's log, and has a producer id of its own.
            Identical(framework.offsets_identical) if transactions is None else Identical.OFF,
            # One task of the flow, so that no two remove the same pages.
            sweeps=spec.id.number == 0,
            shares_targets=routes,
            in_transactions=transactions is not None,
        )
        context = WorkerTaskContext(
            spec.id.connector,
            str(spec.id),
            store=store,
            meter=parts.meter,
            clock=parts.clock,
            events=parts.events,
            policies=framework,
            maps=maps,
        )
        context.flow = parts.flow
        connector = cast("Connector", parts.plugins.find(framework.connector_class)(config))
        opened = connector.open_task(
            # Java copies records of aborted transactions here too; ours reads committed ones where
            # the user is silent.
            spec.config if transactions is None else committed_reads(spec.config),
            context,
        )
        adapter: RecordTaskAdapter | None = None
        order: SourceOrder | None = None
        task: BatchSourceTask
        if not isinstance(opened, BatchSourceTask):
            task = adapter = RecordTaskAdapter(
                opened,
                parts.clock,
                parts.conversion(config),
                chain=chain,
                stopping=errant.stopping,
            )
        elif chain is None:
            task = opened
        elif copies:
            order = SourceOrder()
            task = TransformedTask(
                cast("CopyTask", opened),
                chain,
                converters=parts.conversion(config).converters,
                errant=errant,
                order=order,
                context=context,
                is_internal=policy_from_config(config).is_mm2_internal_topic,
            )
        else:
            raise ConfigError(
                f"transforms={config['transforms']}: {framework.connector_class} moves whole "
                "batches",
                remedy="remove them",
            )
        committer = OffsetCommitter(
            store,
            spec.id.connector,
            source_partition=task.source_partition,
            source_offset=task.source_offset,
            # ``offset.flush.timeout.ms`` bounds a flush; a transaction is bounded by
            # ``transaction.timeout.ms``.
            timeout_ms=None if transactions else parts.offset_flush_timeout_ms,
            withheld=context.withheld,
            maps=maps,
            on_failure=partial(context.report_finding, COMMITS),
        )
        committer.on_topic_id = context.note_topic_id
        if adapter is not None:
            adapter.commit_through(committer.acknowledged)
            context.without_ledger()
        producer = parts.producer(spec)
        settings = TaskSettings(
            buffer_memory_bytes=producer.buffer_memory,
            linger_ms=producer.linger_ms,
            offset_flush_interval_ms=parts.offset_flush_interval_ms,
            graceful_timeout_ms=parts.graceful_timeout_ms,
            # A refused record of a foreign task cannot be isolated, nor one of a target partition
            # that transforms let several sources write to: Connect fails the task.
            fail_on_partition_failure=adapter is not None
            or routes
            or framework.partition_failure_policy == "fail",
            target_name=parts.target_name,
            offsets_topic=framework.offsets_storage_topic or parts.offsets_topic,
        )
        worker = (WorkerTask if order is None else OrderedWorkerTask)(
            task,
            context=context,
            sender=transactions.sender if transactions else parts.sender(spec),
            committer=committer,
            settings=settings,
            on_status=on_status,
            acknowledged=adapter.acknowledged if adapter is not None else None,
            on_topic=lambda topic: parts.on_topic(spec.id, topic),
            permit=parts.permit,
            transactions=transactions,
            own_offsets=own,
        )
        if isinstance(worker, OrderedWorkerTask) and order is not None:
            worker.follow(order)
        return worker


def _source_chain(config: Mapping[str, str], errant: ErrantRecords) -> TransformChain | None:
    """Return what the records of a source connector pass, None for nothing.

    A mirror's checkpoints and heartbeats pass nothing: what transforms a flow has are for the
    records that it copies.

    Raises:
        ConfigError: a transform or predicate is wrong.
    """
    if canonical_class(config.get("connector.class", "")) in _WITHOUT_TRANSFORMS:
        return None
    steps = steps_of(config)
    return TransformChain(steps, errant.transformed) if steps else None


def _prepare(
    errant: ErrantRecords, converters: RecordConverters | None, chain: TransformChain | None
) -> Prepare | None:
    if converters is None:
        return None if chain is None else chain.apply

    def prepare(record: SinkRecord) -> SinkRecord | None:
        made = errant.converted(converters, record)
        return made if made is None or chain is None else chain.apply(made)

    return prepare


def _sink_settings(spec: TaskSpec, framework: SinkFrameworkConfig, flush_ms: int) -> SinkSettings:
    """Return which topics a task reads: those of its own config, else the connector's."""
    own = parse_list(spec.config.get("topics", ""))
    chosen = None
    if not own and framework.topics_regex:
        chosen = PatternList((framework.topics_regex,)).matches
    return SinkSettings(
        topics=tuple(own) or framework.topics, chosen=chosen, commit_s=flush_ms / 1000
    )
