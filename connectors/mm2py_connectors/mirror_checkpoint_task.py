"""Task of the MirrorCheckpoint connector: where its groups would continue on the target, one record per change.

Flow: ``GroupWatch`` (committed offsets of the source) and ``OffsetTranslator`` (what is known of the copies) ->
``Checkpoint`` -> the worker writes it; with ``sync.group.offsets.enabled`` also ``GroupSync`` -> the target's groups.
At its start it reads the checkpoints written before (Java's ``MirrorCheckpointTask``, ``CheckpointStore``).
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Final, final

from mm2py.api.context import TaskContext
from mm2py.api.records import SourceRecord
from mm2py.api.task import SourceTask
from mm2py.clock import wait_or_stop
from mm2py.config.client_properties import ClientKind, Side, effective_client_properties
from mm2py.config.definitions import parse_config
from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint, encode_checkpoint
from mm2py.mirror.filters import group_filter_from_config, topic_filter_from_config
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.source_offsets import checkpoint_source_partition, source_offset
from mm2py.protocol.consumer_offsets import CONSUMER_OFFSETS
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition
from mm2py_connectors.clients import (
    ExactMap,
    GroupFactory,
    GroupSession,
    LogFactory,
    LogSession,
    MapFactory,
    Session,
    open_groups,
    open_log,
    open_map,
)
from mm2py_connectors.group_sync import GroupSync
from mm2py_connectors.group_watch import GroupShare, GroupWatch
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointTaskConfig
from mm2py_connectors.offset_translator import OffsetTranslator

__all__ = ["MirrorCheckpointTask"]

log = logging.getLogger(__name__)

LONGEST_POLL_S: Final = 1.0
"""The contract of ``SourceTask.poll``."""

PAUSED_AFTER_S: Final = 5.0
"""Without a poll for so long the task is paused, or its target takes no checkpoints: group offsets wait too."""

ON_CHANGE_S: Final = 0.4
"""Between two rounds of checkpoints where ``emit.checkpoints.interval.seconds`` is not set."""

GROUPS_PER_POLL: Final = 1_000
LONGEST_ROUND_S: Final = 0.5


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
        maps: MapFactory = open_map,
    ) -> None:
        self._props = dict(config)
        self._config = parse_config(MirrorCheckpointTaskConfig, config)
        self._policy = policy_from_config(config)
        self._topics = topic_filter_from_config(config)
        self._group_filter = group_filter_from_config(config)
        self._groups, self._logs, self._maps = groups, logs, maps
        self._context, self._clock = context, context.clock
        self._checkpoints_topic = self._policy.checkpoints_topic(self._config.source_cluster_alias)
        self._checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}
        self._share = self._own_share()
        self._translator: OffsetTranslator | None = None
        self._watch: GroupWatch | None = None
        self._sync: GroupSync | None = None
        self._opened_maps: list[ExactMap] = []
        self._sessions: list[Session] = []
        self._background: list[asyncio.Task[None]] = []
        self._stopping, self._news = asyncio.Event(), asyncio.Event()
        self._due = self._polled_at = 0.0

    async def start(self) -> None:
        """Connect; what has to be read is read in the background.

        Raises:
            RetriableError: a cluster is away.
        """
        config = self._config
        side: Side = "source" if config.offset_syncs_topic_location == "source" else "target"
        try:
            source = await self._open_groups("source")
            commits = await self._open_log("source", "commits-source", CONSUMER_OFFSETS)
            written = await self._open_log("target", "checkpoints-target", self._checkpoints_topic)
            syncs = await self._open_log(side, f"offset-syncs-{side}", self._syncs_topic())
            exact = await self._open_map("target", config.source_cluster_alias)
            back = None
            if not self._policy.detects_cycles:  # the target's own records are between the copies
                back = await self._open_map("source", config.target_cluster_alias)
            if config.sync_group_offsets_enabled:
                target = await self._open_groups("target")
                self._sync = GroupSync(
                    target.groups,
                    self._checkpoints,
                    context=self._context,
                    may_write=self._is_polled,
                )
        except BaseException:
            await self.stop()
            self._stopping.clear()
            raise
        watch = self._watch = GroupWatch(
            source.groups,
            commits.log,
            share=self._share,
            is_chosen=self._topics.should_replicate_topic,
            context=self._context,
            on_change=self._news.set,
        )
        translator = self._translator = OffsetTranslator(
            syncs.log,
            self._syncs_topic(),
            exact,
            back=back,
            context=self._context,
            on_moved=self._news.set,
        )
        self._run("offset syncs", self._follow(written, translator))
        self._run("commits", watch.follow())
        self._run("groups", watch.ask(config.refresh_groups_interval_seconds))
        if self._sync is not None:
            every_s = config.sync_group_offsets_interval_seconds
            self._run("group offsets", self._sync.run(every_s))

    async def poll(self) -> Sequence[SourceRecord]:
        """Wait for a change, at most a second, then return the checkpoints that it makes."""
        for each in self._background:
            if each.done():
                each.result()
        self._polled_at = now = self._clock.monotonic()
        if self._due > now:
            await wait_or_stop(self._clock, min(self._due - now, LONGEST_POLL_S), self._stopping)
        elif not self._news.is_set():
            await wait_or_stop(self._clock, LONGEST_POLL_S, self._news)
        now = self._clock.monotonic()
        translator, watch = self._translator, self._watch
        if translator is None or watch is None or not translator.is_ready:
            self._news.clear()  # set again by the translator when it is ready
            return ()
        if self._stopping.is_set() or now < self._due or not self._news.is_set():
            return ()
        return await self._round(translator, watch)

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        """Nothing is kept per record."""

    async def commit(self) -> None:
        """Nothing to commit."""

    async def stop(self) -> None:
        """End the poll and what runs in the background, close the connections."""
        self._stopping.set()
        self._news.set()
        background, self._background = self._background, []
        for each in background:
            each.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        maps, self._opened_maps = self._opened_maps, []
        for opened in maps:
            await opened.close()
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            await session.close()

    # -- what is opened -----------------------------------------------------------------------

    def _own_share(self) -> GroupShare:
        config = self._config
        return GroupShare(
            self._group_filter.should_replicate_group,
            index=config.task_index or 0,
            tasks=config.task_group_tasks,
            partitions=config.task_group_partitions,
            assigned=config.task_assigned_groups,
        )

    def _syncs_topic(self) -> str:
        config = self._config
        at_source = config.offset_syncs_topic_location == "source"
        other = config.target_cluster_alias if at_source else config.source_cluster_alias
        return self._policy.offset_syncs_topic(other)

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

    async def _open_map(self, side: Side, source_alias: str) -> ExactMap:
        props, alias = self._client(side, "consumer", f"offset-map-{side}-consumer")
        opened = self._maps(props, alias, source_alias, self._clock)
        self._sessions.append(opened.session)
        self._opened_maps.append(opened.map)
        await opened.session.connect()
        return opened.map

    def _run(self, name: str, work: Coroutine[None, None, None]) -> None:
        self._background.append(asyncio.create_task(work, name=name))

    def _is_polled(self) -> bool:
        return self._clock.monotonic() - self._polled_at < PAUSED_AFTER_S

    # -- what was written before ---------------------------------------------------------------

    async def _follow(self, written: LogSession, translator: OffsetTranslator) -> None:
        await translator.run(keeps_backlog=await self._load(written))

    async def _load(self, written: LogSession) -> bool:
        """Read the checkpoints of before; False where that is not possible."""

        def take(_partition: int, record: Record) -> None:
            if record.key is None or record.value is None:
                return
            try:
                found = decode_checkpoint(bytes(record.key), bytes(record.value))
            except ProtocolError as error:
                log.warning("checkpoint is ignored offset=%d cause=%s", record.offset, error)
                return
            if self._share.has(found.group):
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

    async def _round(self, translator: OffsetTranslator, watch: GroupWatch) -> list[SourceRecord]:
        self._news.clear()
        for group in watch.take_gone():
            self._checkpoints.pop(group, None)
            if self._sync is not None:
                self._sync.forget(group)
        groups = dict.fromkeys(watch.take_changed(GROUPS_PER_POLL))
        groups |= dict.fromkeys(self._moved_groups(translator, watch))
        changes: list[SourceRecord] = []
        end = self._clock.monotonic() + LONGEST_ROUND_S
        for group in tuple(groups):
            if self._clock.monotonic() > end:  # pages of the map had to be read
                watch.put_back(groups)
                break
            changes += map(self._record, await self._changes_of(group, watch, translator))
            del groups[group]
            if self._sync is not None:
                self._sync.want((group,))
        if watch.has_changes:
            self._news.set()
        elif changes:
            every_s = self._config.emit_checkpoints_interval_seconds or ON_CHANGE_S
            self._due = self._clock.monotonic() + every_s
        return changes

    def _moved_groups(self, translator: OffsetTranslator, watch: GroupWatch) -> Iterable[str]:
        """Return the groups with an offset of which more is known than when it was translated."""
        for source, lowest in translator.take_moved().items():
            for group in watch.groups_of(source):
                known = watch.offsets(group).get(source)
                if known is not None and known.offset >= lowest:
                    yield group

    async def _changes_of(
        self, group: str, watch: GroupWatch, translator: OffsetTranslator
    ) -> Sequence[Checkpoint]:
        known = self._checkpoints.get(group, {})
        changes: list[Checkpoint] = []
        for source, offset in tuple(watch.offsets(group).items()):
            downstream = await translator.translate(source, offset.offset)
            if downstream is None:
                continue
            target = TopicPartition(self._downstream(source.topic), source.partition)
            last = known.get(target)
            # It goes back only where the group went back.
            if last is None or offset.offset < last.upstream or downstream > last.downstream:
                known[target] = new = Checkpoint(
                    group, target, offset.offset, downstream, offset.metadata
                )
                changes.append(new)
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
