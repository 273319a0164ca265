"""Task of the MirrorCheckpoint connector: where its groups would continue on the target, one record per change.

Flow: committed offsets of the source -> ``OffsetSyncStore.translate`` -> ``Checkpoint`` -> the worker writes it; with
``sync.group.offsets.enabled`` also ``GroupSync`` -> the target's groups. At its start it reads the checkpoints written
before, then all offset syncs, and follows them (Java's ``MirrorCheckpointTask``, ``CheckpointStore``).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.api.context import PartitionState, TaskContext
from mm2py.api.records import SourceRecord
from mm2py.api.task import SourceTask
from mm2py.client.backoff import Backoff
from mm2py.client.fetch.log_reader import RecordHandler
from mm2py.clock import wait_or_stop
from mm2py.config.client_properties import ClientKind, Side, effective_client_properties
from mm2py.config.definitions import parse_config
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError
from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint, encode_checkpoint
from mm2py.mirror.filters import topic_filter_from_config
from mm2py.mirror.offset_sync_store import OffsetSyncStore
from mm2py.mirror.offset_syncs import decode_offset_sync
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.source_offsets import checkpoint_source_partition, source_offset
from mm2py.protocol.groups import FetchedOffset
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import (
    GroupFactory,
    GroupSession,
    LogFactory,
    LogSession,
    Session,
    open_groups,
    open_log,
)
from mm2py_connectors.group_sync import GroupSync
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointTaskConfig
from mm2py_connectors.scheduler import Scheduler

__all__ = ["MirrorCheckpointTask"]

log = logging.getLogger(__name__)

LONGEST_POLL_S: Final = 1.0
"""The contract of ``SourceTask.poll``."""

_RETRY_MS: Final = 1_000
_LONGEST_RETRY_MS: Final = 60_000


@final
class MirrorCheckpointTask(SourceTask):
    """Checkpoints of the groups that the task has."""

    def __init__(
        self,
        config: Mapping[str, str],
        context: TaskContext,
        *,
        groups: GroupFactory = open_groups,
        logs: LogFactory = open_log,
    ) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorCheckpointTaskConfig, config)
        self._policy = policy_from_config(config)
        self._topics = topic_filter_from_config(config)
        self._groups, self._logs = groups, logs
        self._context, self._clock = context, context.clock
        self._checkpoints_topic = self._policy.checkpoints_topic(self._config.source_cluster_alias)
        at_source = self._config.offset_syncs_topic_location == "source"
        other = (
            self._config.target_cluster_alias if at_source else self._config.source_cluster_alias
        )
        self._syncs_topic = self._policy.offset_syncs_topic(other)
        self._checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}
        self._syncs: OffsetSyncStore | None = None  # once its backlog was read
        self._sessions: list[Session] = []
        self._source: GroupSession | None = None
        self._sync: GroupSync | None = None
        self._scheduler: Scheduler | None = None
        self._following: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._failure: Exception | None = None
        self._unread = ChangeLog(
            log, "offset syncs cannot be read, no group is checkpointed", key="topic"
        )
        self._unlisted = ChangeLog(log, "groups of the source cannot be listed", key="cluster")
        self._refusals = ChangeLog(log, "group is not checkpointed", key="group")
        self._due = 0.0

    async def start(self) -> None:
        """Connect; what has to be read is read in the background.

        Raises:
            RetriableError: a cluster is away.
        """
        config = self._config
        try:
            self._source = await self._open_groups("source")
            written = await self._open_log("target", "checkpoints-target", self._checkpoints_topic)
            side: Side = "source" if config.offset_syncs_topic_location == "source" else "target"
            syncs = await self._open_log(side, f"offset-syncs-{side}", self._syncs_topic)
            if config.sync_group_offsets_enabled:
                target = await self._open_groups("target")
                self._sync = GroupSync(target.groups, self._checkpoints)
        except BaseException:
            await self.stop()
            self._stopping.clear()
            raise
        self._following = asyncio.create_task(self._follow(written, syncs), name="offset syncs")
        # At once, other than in Java: tasks start anew with each new group, and would write nothing while groups come.
        self._due = self._clock.monotonic()

    async def poll(self) -> Sequence[SourceRecord]:
        """Wait for the next interval, at most a second at a time, then return what changed."""
        if self._failure is not None:
            raise self._failure
        if self._following is not None and self._following.done():
            self._following.result()
        wait_s = self._due - self._clock.monotonic()
        if wait_s > 0:
            await wait_or_stop(self._clock, min(wait_s, LONGEST_POLL_S), self._stopping)
        now = self._clock.monotonic()
        if self._stopping.is_set() or now < self._due:
            return ()
        if self._syncs is None:
            self._due = now + LONGEST_POLL_S
            return ()
        self._due = max(self._due + self._config.emit_checkpoints_interval_seconds, now)
        changes = await self._changes(self._syncs)
        self._begin_sync()
        return changes

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        """Nothing is kept per record."""

    async def commit(self) -> None:
        """Nothing to commit."""

    async def stop(self) -> None:
        """End the poll and what runs in the background, close the connections."""
        self._stopping.set()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            await scheduler.close()
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            await session.close()

    # -- what is opened -----------------------------------------------------------------------

    def _client(self, side: Side, kind: ClientKind, role: str) -> tuple[dict[str, str], str]:
        props = effective_client_properties(
            self._props, side, kind, role=role, task_index=self._config.task_index
        )
        config = self._config
        alias = config.source_cluster_alias if side == "source" else config.target_cluster_alias
        return props, alias

    async def _open_groups(self, side: Side) -> GroupSession:
        opened = self._groups(*self._client(side, "admin", f"checkpoint-{side}-admin"), self._clock)
        self._sessions.append(opened.session)
        await opened.session.connect()
        return opened

    async def _open_log(self, side: Side, what: str, topic: str) -> LogSession:
        props, alias = self._client(side, "consumer", f"{what}-consumer")
        opened = self._logs(props, alias, topic, self._clock)
        self._sessions.append(opened.session)
        await opened.session.connect()
        return opened

    def _begin_sync(self) -> None:
        """Sync group offsets from now on, once there are checkpoints to do it by."""
        if self._sync is not None and self._scheduler is None and not self._stopping.is_set():
            self._scheduler = Scheduler(
                self._clock, timeout_ms=self._config.admin_timeout_ms, fail=self._fail
            )
            every_s = self._config.sync_group_offsets_interval_seconds
            self._scheduler.repeat("sync group offsets", self._sync.run, every_s)

    def _fail(self, error: Exception) -> None:
        self._failure = error

    # -- what is read -------------------------------------------------------------------------

    async def _follow(self, written: LogSession, syncs: LogSession) -> None:
        store = OffsetSyncStore(keeps_backlog=await self._load(written))

        def take(_partition: int, record: Record) -> None:
            if record.key is None or record.value is None:
                return
            try:
                store.add(decode_offset_sync(bytes(record.key), bytes(record.value)))
            except ProtocolError as error:
                log.warning("offset sync is ignored offset=%d cause=%s", record.offset, error)

        await self._read(syncs, take)
        store.read_to_end()
        self._syncs = store
        await syncs.log.tail(take)

    async def _read(self, syncs: LogSession, take: RecordHandler) -> None:
        """Read all offset syncs of now, however long that takes; meanwhile the flow shows why it does not checkpoint."""
        backoff = Backoff(_RETRY_MS, _LONGEST_RETRY_MS)
        # No name that a topic can have: it must not count as a partition of the flow, whose lag would stay unknown.
        shown = TopicPartition(f"offset syncs of {self._syncs_topic}", 0)
        while True:
            try:
                await syncs.log.read_to_end(take)
            except RetriableError as error:
                self._unread.note(self._syncs_topic, str(error))
                self._context.partition_state(shown, PartitionState.HELD, error)
                await self._clock.sleep(backoff.next_s())
            else:
                break
        if self._unread.entries:
            self._unread.clear(self._syncs_topic)
            self._context.partition_state(shown, PartitionState.RUNNING)

    async def _load(self, written: LogSession) -> bool:
        """Read the checkpoints of before; False where that is not possible."""
        assigned = set(self._config.task_assigned_groups)

        def take(_partition: int, record: Record) -> None:
            if record.key is None or record.value is None:
                return
            try:
                found = decode_checkpoint(bytes(record.key), bytes(record.value))
            except ProtocolError as error:
                log.warning("checkpoint is ignored offset=%d cause=%s", record.offset, error)
                return
            if found.group in assigned:
                self._checkpoints.setdefault(found.group, {})[found.partition] = found

        try:
            await written.log.read_to_end(take)
        except Mm2pyError as error:
            self._checkpoints.clear()
            log.warning(
                "checkpoints written before cannot be read: offsets older than the last offset sync are not"
                " translated topic=%s cause=%s",
                self._checkpoints_topic,
                error,
            )
            return False
        finally:
            await written.session.close()
        return True

    # -- what changed -------------------------------------------------------------------------

    async def _changes(self, syncs: OffsetSyncStore) -> list[SourceRecord]:
        assert self._source is not None
        groups = self._source.groups
        try:
            listed = (await groups.list_groups()).groups
            assigned = [it for it in self._config.task_assigned_groups if it in listed]
            committed = await groups.committed({it: listed[it].node_id for it in assigned})
        except RetriableError as error:
            self._unlisted.note(self._config.source_cluster_alias, str(error))
            return []
        self._unlisted.clear(self._config.source_cluster_alias)
        changes: list[SourceRecord] = []
        for group in assigned:
            answer = committed.get(group, {})
            if isinstance(answer, Mm2pyError):
                self._refusals.note(group, str(answer))
            else:
                self._refusals.clear(group)
                changes += self._changes_of(group, answer, syncs)
        return changes

    def _changes_of(
        self, group: str, committed: Mapping[TopicPartition, FetchedOffset], syncs: OffsetSyncStore
    ) -> list[SourceRecord]:
        known = self._checkpoints.get(group, {})
        changes: list[SourceRecord] = []
        for source, offset in committed.items():
            if not self._topics.should_replicate_topic(source.topic):
                continue
            downstream = syncs.translate(source, offset.offset)
            if downstream is None or downstream < 0:
                continue
            target = TopicPartition(self._downstream(source.topic), source.partition)
            last = known.get(target)
            # It goes back only where the group went back.
            if last is None or offset.offset < last.upstream or downstream > last.downstream:
                new = Checkpoint(group, target, offset.offset, downstream, offset.metadata)
                known[target] = new
                changes.append(self._record(new))
        if known:
            self._checkpoints[group] = known
        return changes

    def _downstream(self, topic: str) -> str:
        if self._policy.topic_source(topic) == self._config.target_cluster_alias:
            return self._policy.original_topic(topic)
        return self._policy.remote_topic(self._config.source_cluster_alias, topic)

    def _record(self, checkpoint: Checkpoint) -> SourceRecord:
        key, value = encode_checkpoint(checkpoint)
        return SourceRecord(
            source_partition=checkpoint_source_partition(checkpoint.group, checkpoint.partition),
            source_offset=source_offset(0),
            topic=self._checkpoints_topic,
            partition=0,
            key=key,
            value=value,
            timestamp_ms=self._clock.now_ms(),
        )
