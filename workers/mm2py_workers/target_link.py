"""The way of one task to its target: a cluster of its own and the Sender on it.

Flow: worker task -> ``TargetLink`` -> ``Sender`` -> target. Each task has its own connections and client
id, as in Java (``connector-producer-<connector>-<task>``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from mm2py.client.connect.cluster import Cluster
from mm2py.client.permit import Permit
from mm2py.client.send.sender import Sender
from mm2py.clock import Clock
from mm2py.config.client_properties import framework_producer_properties
from mm2py.config.clients import ProducerSettings, producer_settings
from mm2py.protocol.record_batch import RecordBatch
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.runtime.tasks.worker_task import OnDelivered, OnDoubt, OnFailed, OnStalled, SenderFactory
from mm2py.types import TopicPartition

__all__ = ["TargetLink", "TargetLinks"]


@final
class TargetLink:
    """A Sender together with the connections it needs; a ``TargetSender``."""

    def __init__(
        self,
        settings: ProducerSettings,
        alias: str,
        clock: Clock,
        permit: Permit,
        callbacks: tuple[OnDelivered, OnFailed, OnStalled, OnDoubt],
    ) -> None:
        on_delivered, on_failed, on_stalled, on_doubt = callbacks
        self._cluster = Cluster(settings.connection, alias=alias, clock=clock)
        self._sender = Sender(
            self._cluster,
            settings,
            clock=clock,
            on_delivered=on_delivered,
            on_failed=on_failed,
            on_stalled=on_stalled,
            on_doubt=on_doubt,
            permit=permit,
        )
        # Bound once: the task calls it for every batch.
        self.enqueue: Callable[[TopicPartition, TopicPartition, Sequence[RecordBatch]], None] = (
            self._sender.enqueue
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes waiting or in flight."""
        return self._sender.buffered_bytes

    async def start(self) -> None:
        """Connect and get a producer id; ``RetriableError`` while the target is away."""
        await self._cluster.connect()
        await self._sender.start()

    def backlog_bytes(self, target: TopicPartition) -> int:
        """Bytes of one target partition that are not acknowledged."""
        return self._sender.backlog_bytes(target)

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything that was sent is acknowledged; False when time ran out."""
        self._sender.drop_unopened()
        return await self._sender.flush(timeout_s)

    async def close(self) -> None:
        """Drop what is not acknowledged and close the connections."""
        await self._sender.close()
        await self._cluster.close()


@final
class TargetLinks:
    """Makes the links of one flow's tasks."""

    def __init__(
        self, worker_props: Mapping[str, str], alias: str, clock: Clock, permit: Permit
    ) -> None:
        self._worker_props = worker_props
        self._alias = alias
        self._clock = clock
        self._permit = permit

    def buffer_memory(self, spec: TaskSpec) -> int:
        """Return ``buffer.memory`` of a task's producer, in bytes."""
        return self._settings(spec).buffer_memory

    def sender(self, spec: TaskSpec) -> SenderFactory:
        """Return what makes the Sender of a task.

        Raises:
            ConfigError: a producer property is wrong.
        """
        settings = self._settings(spec)

        def make(
            on_delivered: OnDelivered,
            on_failed: OnFailed,
            on_stalled: OnStalled,
            on_doubt: OnDoubt,
        ) -> TargetLink:
            callbacks = (on_delivered, on_failed, on_stalled, on_doubt)
            return TargetLink(settings, self._alias, self._clock, self._permit, callbacks)

        return make

    def _settings(self, spec: TaskSpec) -> ProducerSettings:
        props = framework_producer_properties(
            self._worker_props, spec.connector_config, task_index=spec.id.number
        )
        return producer_settings(props, scope=f"producer of {spec.id} to cluster {self._alias}")
