"""The Sender of one task: its producer settings, and connections of its own.

Flow: task spec -> ``TargetSenders`` -> ``Sender`` -> target. Each task has its own connections and
client id, as in Java (``connector-producer-<connector>-<task>``). The producer ids of mirror tasks
are published first.
"""

import os
import platform
from collections.abc import Mapping
from typing import final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.client.send.owner import MirrorIds
from mm2py.client.send.sender import Sender
from mm2py.client.send.tail import CopiedSoFar
from mm2py.clock import Clock
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.config.client_properties import framework_producer_properties
from mm2py.config.clients import ProducerSettings, producer_settings
from mm2py.config.exactly_once import interval_problem, raise_first, transaction_interval_ms
from mm2py.config.framework import TaskFrameworkConfig
from mm2py.config.worker import WorkerConfig
from mm2py.mirror.producer_ids import SOURCE_CLUSTER_ID, MirrorProducer, Suppression, suppression_of
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.own_offsets import OwnTopicOffsets
from mm2py.runtime.tasks.target_sender import (
    OnDelivered,
    OnDoubt,
    OnFailed,
    OnStalled,
    SenderFactory,
)
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.runtime.tasks.task_transactions import StartGuard, Starts, TaskTransactions
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.types import FlowName, TaskId


@final
class TargetSenders:
    """Makes the Senders of one flow's tasks."""

    def __init__(
        self,
        worker_props: Mapping[str, str],
        flow: FlowName,
        producers: ProducerIdStore,
        *,
        clock: Clock,
        permit: Permit,
    ) -> None:
        self._worker_props = worker_props
        self._flow = flow
        self._producers = producers
        self._clock = clock
        self._permit = permit
        self._starts: dict[TaskId, Starts] = {}

    def producer(self, spec: TaskSpec) -> ProducerSettings:
        """Return how a task's producer writes; ``ConfigError``: a producer property is wrong."""
        props = framework_producer_properties(
            self._worker_props, spec.connector_config, task_index=spec.id.number
        )
        return producer_settings(
            props, scope=f"producer of {spec.id} to cluster {self._flow.target}"
        )

    def sender(self, spec: TaskSpec) -> SenderFactory:
        """Return what makes the Sender of a task; ``ConfigError``: a producer property is wrong."""
        settings = self.producer(spec)
        mirror_ids = self._mirror_ids(spec)

        def make(
            on_delivered: OnDelivered,
            on_failed: OnFailed,
            on_stalled: OnStalled,
            on_doubt: OnDoubt,
            copied: CopiedSoFar | None,
        ) -> Sender:
            return Sender(
                Cluster(settings.connection, alias=self._flow.target, clock=self._clock),
                settings,
                clock=self._clock,
                on_delivered=on_delivered,
                on_failed=on_failed,
                on_stalled=on_stalled,
                on_doubt=on_doubt,
                mirror_ids=mirror_ids,
                permit=self._permit,
                owns_cluster=True,
                copied=copied,
            )

        return make

    def transactions(
        self,
        spec: TaskSpec,
        framework: TaskFrameworkConfig,
        worker: WorkerConfig,
        store: OffsetStore,
        own: OwnTopicOffsets | None,
        guard: StartGuard,
    ) -> TaskTransactions:
        """Return what a task has in place of ``sender`` with exactly-once support; ``own`` has the
        positions of a connector with a topic of its own.

        Raises:
            ConfigError: a producer property, or one of ``transaction.boundary``, is wrong.
        """
        settings, mirror_ids = self.producer(spec), self._mirror_ids(spec)
        interval_ms = transaction_interval_ms(framework, worker)
        raise_first(interval_problem(interval_ms, settings.transaction_timeout_ms))
        topic = framework.offsets_storage_topic or worker.offset_storage_topic
        return TaskTransactions(
            Cluster(settings.connection, alias=self._flow.target, clock=self._clock),
            settings,
            # As `Worker.taskTransactionalId`: tasks of Java's workers fence these, and are fenced.
            f"{worker.group_id}-{spec.id}",
            store=store,
            topic=topic,
            own=own,
            fence=lambda: guard.fence(spec.id),
            verify=lambda: guard.verify(spec.id, spec.configs),
            announce=None if mirror_ids is None else mirror_ids.announce,
            interval_s=interval_ms / 1000,
            clock=self._clock,
            permit=self._permit,
            starts=self._starts.setdefault(spec.id, Starts()),
        )

    def _mirror_ids(self, spec: TaskSpec) -> MirrorIds | None:
        """Return what publishes a mirror task's ids; other writers' are the cluster's own."""
        config = spec.connector_config
        mirrors = canonical_class(config.get("connector.class", "")) == MIRROR_SOURCE_CONNECTOR
        if not mirrors or suppression_of(config) is Suppression.OFF:
            return None
        return _TaskIds(self._producers, self._flow, spec, self._clock)


@final
class _TaskIds(MirrorIds):
    """The ids of one task among those of all mirrors."""

    def __init__(
        self, store: ProducerIdStore, flow: FlowName, spec: TaskSpec, clock: Clock
    ) -> None:
        self._store, self._flow, self._spec, self._clock = store, flow, spec, clock

    async def announce(self, producer_id: int) -> None:
        await self._store.publish(
            MirrorProducer(
                producer_id=producer_id,
                flow=str(self._flow),
                source=self._spec.config.get("source.cluster.alias", self._flow.source),
                source_cluster=self._spec.config.get(SOURCE_CLUSTER_ID, ""),
                task=str(self._spec.id),
                worker=f"{platform.node()}/{os.getpid()}",
                time_ms=self._clock.now_ms(),
            )
        )

    async def includes(self, producer_id: int) -> bool:
        return await self._store.includes(producer_id)
