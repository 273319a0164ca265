"""The offset topic of a flow as its worker config describes it; shared by workers and task hosts."""

from collections.abc import Mapping

from mm2py.config.client_properties import with_prefix
from mm2py.config.clients import ProducerSettings, producer_settings
from mm2py.config.worker import WorkerConfig
from mm2py.storage.internal_topics import InternalTopic
from mm2py.types import FlowName

__all__ = ["offset_topic", "store_producer", "topic_configs"]

_KNOWN = ("topic", "partitions", "replication.factor")


def offset_topic(props: Mapping[str, str], worker: WorkerConfig) -> InternalTopic:
    """Return the topic with its configs."""
    return InternalTopic(
        name=worker.offset_storage_topic,
        purpose="offset.storage",
        partitions=worker.offset_storage_partitions,
        replication_factor=worker.offset_storage_replication_factor,
        configs=topic_configs(props, "offset.storage."),
    )


def topic_configs(props: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return what is said about a topic's configs (``config.storage.``, ``offset.storage.``, ...)."""
    return {key: value for key, value in with_prefix(props, prefix).items() if key not in _KNOWN}


def store_producer(props: Mapping[str, str], flow: FlowName) -> ProducerSettings:
    """Return the producer of Connect's stores: it takes top-level client keys, not ``producer.*``."""
    known = {key: props[key] for key in ("bootstrap.servers", "client.id") if key in props}
    return producer_settings(known, scope=f"offset store of {flow}")
