"""The contract of a connector: one entry point, its configuration, its loops and its tasks."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Protocol

from mm2py.api.context import ConnectorContext, TaskContext
from mm2py.api.records import SourceOffset, SourcePartition
from mm2py.api.sink import SinkTask, SinkTaskContext
from mm2py.api.task import BatchSourceTask, SourceTask
from mm2py.config.definitions import ConfigModel

BESIDE: Final = "beside:"
"""Begins properties of ``java_task_configs`` that Java's connector would not make: they are kept
where only ours read them, and replace those of the name behind it."""


class AnyConnector(Protocol):
    """One running connector (Java's ``Connector``); built from its complete, resolved config."""

    async def start(self, context: ConnectorContext) -> None:
        """Start the monitoring loops; returns when the first round is done.

        ``RetriableError`` makes the runtime call it again after a pause; any other error fails it.
        """
        ...

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return one config per task, at most ``max_tasks``, without I/O; empty means no work."""
        ...

    async def stop(self) -> None:
        """End the loops and close connections; safe before ``start`` and safe twice."""
        ...


class Connector(AnyConnector, Protocol):
    """A connector whose tasks bring records to the target (Java's ``SourceConnector``)."""

    def open_task(
        self, config: Mapping[str, str], context: TaskContext
    ) -> BatchSourceTask | SourceTask:
        """Build one task from its config; no I/O."""
        ...


class SinkConnector(AnyConnector, Protocol):
    """A connector whose tasks take what a consumer group reads (Java's ``SinkConnector``);
    ``plugin_type`` is ``sink``.

    The tasks share the topics that the config names (``topics``, ``topics.regex``), or those that
    stand as ``topics`` in the task config.
    """

    def open_sink_task(self, config: Mapping[str, str], context: SinkTaskContext) -> SinkTask:
        """Build one task from its config; no I/O. Called in the process that the task has for
        itself."""
        ...


class ConnectorFactory(Protocol):
    """The class that an entry point of group ``mm2py.connectors`` names; it builds connectors."""

    java_class: ClassVar[str]
    """Java's class name, as used in configs and ``/connector-plugins``."""

    def __call__(self, config: Mapping[str, str]) -> AnyConnector:
        """Build a connector from its resolved properties; ``ConfigError`` when they are wrong."""
        ...


class DescribedConnectorFactory(ConnectorFactory, Protocol):
    """Optional attributes of a connector class beyond ``ConnectorFactory``.

    Each member is optional by itself: the runtime reads it with ``getattr``.
    """

    plugin_type: ClassVar[str]
    """``source`` (what counts without it) or ``sink``."""

    plugin_version: ClassVar[str]
    """Shown in statuses and ``/connector-plugins``."""

    config_model: ClassVar[type[ConfigModel]]
    """Its options, for validation and ``/connector-plugins/{plugin}/config``."""

    exactly_once_support: ClassVar[bool]
    """Whether it can copy exactly once, with what its ``config_model`` checks; unknown without
    it."""

    @staticmethod
    def check_offsets(
        config: Mapping[str, str],
        offsets: Sequence[tuple[SourcePartition | None, SourceOffset | None]],
    ) -> bool:
        """Check positions before they are stored (Java's ``alterOffsets``).

        Returns whether they take effect for certain; ``ConfigError`` refuses them.
        """
        ...

    @staticmethod
    def java_task_config(
        config: Mapping[str, str], connector: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        """Return a task config as Java's connector would make it of the same ``connector`` config.

        With it ``task_config_in_force`` adds again, at each start of a task, what this leaves out.
        """
        ...

    @staticmethod
    def task_config_in_force(
        config: Mapping[str, str],
        connector: Mapping[str, str],
        tasks: int,
        clusters: tuple[str, str],
    ) -> Mapping[str, str]:
        """Return what a task of ``tasks`` runs with, whichever form its config has; ``clusters``
        are Kafka's ids of source and target."""
        ...

    takes_bytes: ClassVar[bool]
    """Of a sink: whether its tasks get bytes, regardless of the converters; otherwise converted
    records."""

    @staticmethod
    def consumer_properties(config: Mapping[str, str]) -> Mapping[str, str]:
        """Of a sink: return the properties of the consumer of the cluster that its tasks read.

        Without it they read the worker's own cluster, as in Connect.
        """
        ...
