"""What sink tasks read with, and where their dead letters go: confluent-kafka, loaded when a task
needs it.

Flow: ``TaskAssembly`` -> ``KafkaSinkClients`` -> ``mm2py_workers.group_consumer``,
``mm2py_workers.dead_letters``. Java's properties become librdkafka's in
``mm2py.config.librdkafka``.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final, final

from mm2py.client.connect.cluster import Cluster
from mm2py.clock import Clock
from mm2py.config.client_properties import framework_producer_properties, sink_consumer_properties
from mm2py.config.framework import SinkFrameworkConfig
from mm2py.config.librdkafka import consumer_settings, producer_settings, without_end
from mm2py.errors import ConfigError
from mm2py.runtime.tasks.errant_records import DeadLetterQueue
from mm2py.runtime.tasks.sink_loop import ConsumerFactory
from mm2py.runtime.tasks.task_assembly import SinkClients
from mm2py.runtime.tasks.task_host import TaskSpec

log = logging.getLogger(__name__)

MAX_POLL_RECORDS: Final = "500"
"""Java's default of ``max.poll.records``."""


@final
class KafkaSinkClients(SinkClients):
    """Implements ``SinkClients`` for the tasks of one flow or worker; messages name ``cluster``."""

    def __init__(self, worker: Mapping[str, str], cluster: str, clock: Clock) -> None:
        self._worker, self._cluster, self._clock = worker, cluster, clock

    def consumer(self, spec: TaskSpec, source: Mapping[str, str] | None) -> ConsumerFactory:
        props = sink_consumer_properties(
            self._worker, spec.connector_config, task_index=spec.id.number, source=source
        )
        settings = consumer_settings(props, scope=f"consumer of {spec.id}")
        for remark in settings.remarks:
            log.info("%s", remark)
        try:
            from mm2py_workers.group_consumer import ConfluentConsumer, SourceAnswers
        except ImportError as error:
            raise _missing(error) from error
        batch = int(props.get("max.poll.records", MAX_POLL_RECORDS))
        source_cluster = Cluster(settings.connection, alias="source", clock=self._clock)
        asked = SourceAnswers(source_cluster, ends=True)
        return partial(ConfluentConsumer, settings.values, batch, source=asked)

    def dead_letters(self, spec: TaskSpec, config: SinkFrameworkConfig) -> DeadLetterQueue:
        props = framework_producer_properties(
            self._worker, spec.connector_config, task_index=spec.id.number
        )
        props["client.id"] = f"connector-dlq-producer-{spec.id}"
        settings = producer_settings(without_end(props), scope=f"dead letter queue of {spec.id}")
        try:
            from mm2py_workers.dead_letters import DeadLetterTopic
        except ImportError as error:
            raise _missing(error) from error
        return DeadLetterTopic(
            config.errors_deadletterqueue_topic_name,
            config.errors_deadletterqueue_topic_replication_factor,
            settings,
            cluster=self._cluster,
            clock=self._clock,
        )


def _missing(error: ImportError) -> ConfigError:
    return ConfigError(
        f"sink connectors need confluent-kafka, which cannot be imported: {error}",
        remedy="install the extra: pip install 'mm2py[sink]'",
    )
