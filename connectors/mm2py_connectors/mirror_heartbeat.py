"""MirrorHeartbeat connector: one record per interval in the target's ``heartbeats`` topic.

Flow: clock -> ``SourceRecord`` -> the worker writes it. It works for disabled flows too,
since other flows copy these records and so measure the way (Java's ``MirrorHeartbeatConnector``).
"""

import asyncio
import logging
import struct
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, final

from mm2py.api.connector import Connector
from mm2py.api.context import ConnectorContext, TaskContext
from mm2py.api.records import SourceRecord
from mm2py.api.task import SourceTask
from mm2py.clock import Clock, wait_or_stop
from mm2py.config.class_names import KAFKA_RELEASE, MIRROR_HEARTBEAT_CONNECTOR
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.definitions import ConfigModel, parse_config
from mm2py.mirror.offset_checks import Positions, check_heartbeat_offsets
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.source_offsets import heartbeat_source_partition, source_offset
from mm2py.protocol.wire import record_string
from mm2py_connectors.clients import AdminFactory, AdminSession, open_admin
from mm2py_connectors.internal_topics import create_compacted_topic
from mm2py_connectors.mirror_heartbeat_config import MirrorHeartbeatConfig
from mm2py_connectors.scheduler import Scheduler

log = logging.getLogger(__name__)

TASK_CLASS: Final = "org.apache.kafka.connect.mirror.MirrorHeartbeatTask"
CHECKED_EVERY_S: Final = 60
LONGEST_POLL_S: Final = 1.0
"""The contract of ``SourceTask.poll``."""
HEARTBEAT_VERSION: Final = 0
_VALUE: Final = struct.Struct(">hq")


@final
class MirrorHeartbeatConnector(Connector):
    """Creates the topic, again where it was deleted, and runs one task, which starts when the
    topic is there."""

    java_class: ClassVar[str] = MIRROR_HEARTBEAT_CONNECTOR
    plugin_version: ClassVar[str] = KAFKA_RELEASE
    config_model: ClassVar[type[ConfigModel]] = MirrorHeartbeatConfig

    def __init__(self, config: Mapping[str, str], *, admins: AdminFactory = open_admin) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorHeartbeatConfig, config)
        self._topic = policy_from_config(config).heartbeats_topic()
        self._admins = admins
        self._opened: AdminSession | None = None
        self._scheduler: Scheduler | None = None
        self._context: ConnectorContext | None = None
        self._topic_ready = False

    @staticmethod
    def check_offsets(_config: Mapping[str, str], offsets: Positions) -> bool:
        return check_heartbeat_offsets(offsets)

    async def start(self, context: ConnectorContext) -> None:
        """Create the heartbeats topic; ``RetriableError`` while the target is unreachable."""
        if not self._config.emit_heartbeats_enabled:
            log.info("heartbeats are off")
            return
        self._context = context
        props = effective_client_properties(
            self._props, "target", "admin", role="heartbeats-target-admin"
        )
        try:
            opened = self._admins(props, self._config.target_cluster_alias, context.clock)
            self._opened = opened
            await opened.session.connect()
            scheduler = Scheduler(
                context.clock, timeout_ms=self._config.admin_timeout_ms, fail=context.fail
            )
            self._scheduler = scheduler
            await scheduler.ensure("create heartbeats topic", self._create_topic)
            scheduler.repeat(
                "check heartbeats topic", self._check_topic, CHECKED_EVERY_S, delayed=True
            )
        except BaseException:
            await self.stop()
            raise

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return the connector's own config for one task, none before the topic exists."""
        if not self._topic_ready or max_tasks < 1:
            return []
        return [self._props | {"task.class": TASK_CLASS}]

    def open_task(self, config: Mapping[str, str], context: TaskContext) -> SourceTask:
        """Build the task; ``ConfigError`` when its config is wrong."""
        return MirrorHeartbeatTask(config, context.clock)

    async def stop(self) -> None:
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            await scheduler.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.session.close()

    def problems(self) -> Mapping[str, str]:
        """Jobs whose last run failed, with the cause."""
        return {} if self._scheduler is None else dict(self._scheduler.problems)

    async def _create_topic(self) -> None:
        if self._opened is None or self._context is None:
            return
        await create_compacted_topic(
            self._opened.admin,
            self._topic,
            replication_factor=self._config.heartbeats_topic_replication_factor,
            factor_property="heartbeats.topic.replication.factor",
            side="target",
            alias=self._config.target_cluster_alias,
        )
        if not self._topic_ready:
            self._topic_ready = True
            self._context.request_reconfiguration()

    async def _check_topic(self) -> None:
        if self._topic_ready:
            await self._create_topic()


@final
class MirrorHeartbeatTask(SourceTask):
    """Returns one record after each interval."""

    def __init__(self, config: Mapping[str, str], clock: Clock) -> None:
        parsed = parse_config(MirrorHeartbeatConfig, config)
        self._source = parsed.source_cluster_alias
        self._target = parsed.target_cluster_alias
        self._interval_s = parsed.emit_heartbeats_interval_seconds
        self._topic = policy_from_config(config).heartbeats_topic()
        self._clock = clock
        self._due = 0.0
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """The first beat comes after one interval, as in Java."""
        self._due = self._clock.monotonic() + self._interval_s

    async def poll(self) -> Sequence[SourceRecord]:
        """Wait for the next beat, at most a second at a time."""
        wait_s = self._due - self._clock.monotonic()
        if wait_s > 0:
            await wait_or_stop(self._clock, min(wait_s, LONGEST_POLL_S), self._stopping)
        now = self._clock.monotonic()
        if self._stopping.is_set() or now < self._due:
            return ()
        # No burst after a freeze: beats that were missed are not made up for.
        self._due = max(self._due + self._interval_s, now)
        now_ms = self._clock.now_ms()
        key, value = encode_heartbeat(self._source, self._target, now_ms)
        return (
            SourceRecord(
                source_partition=heartbeat_source_partition(self._source, self._target),
                source_offset=source_offset(0),
                topic=self._topic,
                partition=0,
                key=key,
                value=value,
                timestamp_ms=now_ms,
            ),
        )

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        """Nothing is kept per record."""

    async def commit(self) -> None:
        """Nothing to commit."""

    async def stop(self) -> None:
        self._stopping.set()


def encode_heartbeat(source: str, target: str, timestamp_ms: int) -> tuple[bytes, bytes]:
    """Return key and value of one beat of the flow from ``source`` to ``target`` (Java's
    ``Heartbeat``); the record's timestamp is the value's."""
    return record_string(source) + record_string(target), _VALUE.pack(
        HEARTBEAT_VERSION, timestamp_ms
    )
