"""Task of the MirrorCheckpoint connector: where its groups would continue on the target, one record
per change.

Flow: ``TranslatedGroups`` -> ``Checkpoint`` -> the worker writes it; with
``sync.group.offsets.enabled`` also ``GroupSync`` -> the target's groups. At its start it reads the
checkpoints written before (Java's ``MirrorCheckpointTask``, ``CheckpointStore``). Share groups have
no checkpoints: the task has them for ``GroupSync`` alone, where both clusters have share groups.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Final, final

from mm2py.api.context import TaskContext, TaskOfFlow
from mm2py.api.records import SourceRecord
from mm2py.api.task import SourceTask
from mm2py.clock import Clock, cancelled, wait_or_stop
from mm2py.config.client_properties import ClientKind, Side, effective_client_properties
from mm2py.config.definitions import parse_config
from mm2py.errors import Mm2pyError, ProtocolError
from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint, encode_checkpoint
from mm2py.mirror.filters import group_filter_from_config, topic_filter_from_config
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.source_offsets import checkpoint_of, checkpoint_source_partition, source_offset
from mm2py.protocol.consumer_offsets import CONSUMER_OFFSETS
from mm2py.protocol.records import Record
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_connectors.clients import (
    CopyOf,
    ExactMap,
    GroupFactory,
    GroupSession,
    LogFactory,
    LogSession,
    MapFactory,
    MirrorGroups,
    Session,
    TopicLog,
    open_groups,
    open_log,
    open_map,
)
from mm2py_connectors.group_sync import GroupSync
from mm2py_connectors.group_watch import (
    CONSUMER_GROUP,
    CONSUMER_PACE,
    SHARE_GROUP,
    SHARE_PACE,
    GroupShare,
    GroupWatch,
)
from mm2py_connectors.mirror_checkpoint_config import MirrorCheckpointTaskConfig
from mm2py_connectors.offset_translator import FlowBack, OffsetTranslator
from mm2py_connectors.translated_groups import GROUPS_PER_ROUND, TranslatedGroups

log = logging.getLogger(__name__)

LONGEST_POLL_S: Final = 1.0
"""The contract of ``SourceTask.poll``."""

PAUSED_AFTER_S: Final = 5.0
"""Without a poll for so long the task, or its target, takes no checkpoints: offsets wait too."""

ON_CHANGE_S: Final = 0.4
"""Between two rounds of checkpoints where ``emit.checkpoints.interval.seconds`` is not set."""

SHARES_LOOK_S: Final = 600.0
"""How often to ask for share groups: brokers are upgraded and get features while they run."""
SHARES_RETRY_S: Final = 10.0


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
        own = context.flow if isinstance(context, TaskOfFlow) else None
        self._flow = own or FlowName(
            ClusterAlias(self._config.source_cluster_alias),
            ClusterAlias(self._config.target_cluster_alias),
        )
        self._checkpoints_topic = self._policy.checkpoints_topic(self._config.source_cluster_alias)
        self._checkpoints: dict[str, dict[TopicPartition, Checkpoint]] = {}
        self._share = self._own_share(self._config.task_group_partitions)
        self._translator: OffsetTranslator | None = None
        self._consumers: TranslatedGroups | None = None
        self._shares: TranslatedGroups | None = None
        self._opened_maps: list[ExactMap] = []
        self._sessions: list[Session] = []
        self._background: list[asyncio.Task[None]] = []
        self._stopping, self._news = asyncio.Event(), asyncio.Event()
        self._due = self._polled_at = 0.0
        self._newest_offset = -1
        """Where the last checkpoint is in its topic."""
        self._again: list[str] = []
        """Groups whose checkpoints went with a former topic."""
        self._has_renewed = False
        """Whether checkpoints of before were compared with what is known of the copies now."""

    async def start(self) -> None:
        """Connect; what has to be read is read in the background. ``RetriableError``: a cluster is
        unreachable."""
        config = self._config
        side: Side = "source" if config.offset_syncs_topic_location == "source" else "target"
        try:
            source = await self._open_groups("source")
            # A config of Java's form names groups, not our shares.
            if "task.group.partitions" not in self._props:
                self._share = self._own_share(await source.groups.offsets_partitions())
            commits = await self._open_log("source", "commits-source", CONSUMER_OFFSETS, folds=True)
            written = await self._open_log("target", "checkpoints-target", self._checkpoints_topic)
            syncs = await self._open_log(side, f"offset-syncs-{side}", self._syncs_topic())
            exact = await self._open_map("target", self._flow.source, self._copy_of)
            flow_back = None
            if not self._policy.detects_cycles:  # the target's own records are between the copies
                flow_back = await self._open_flow_back()
            syncs_groups = config.sync_group_offsets_enabled or config.syncs_share_groups
            target = await self._open_groups("target") if syncs_groups else None
        except BaseException:
            await self.stop()
            self._stopping.clear()
            raise
        translator = self._translator = OffsetTranslator(
            syncs.log,
            self._syncs_topic(),
            exact,
            back=flow_back,
            context=self._context,
            on_moved=self._news.set,
        )
        self._run("offset syncs", self._follow(written, translator))
        consumers = self._consumers = self._translated(
            source.groups,
            target.groups if target is not None and config.sync_group_offsets_enabled else None,
            translator,
            commits=commits.log,
        )
        self._run("commits", consumers.watch.follow())
        self._follow_groups(consumers, CONSUMER_GROUP)
        if target is not None and config.syncs_share_groups:
            self._shares = self._translated(source.share_groups, target.share_groups, translator)
            self._run("support", self._follow_share_groups(source, target, self._shares))

    async def poll(self) -> Sequence[SourceRecord]:
        """Wait for a change, at most a second, then return the checkpoints that it makes."""
        # Their errors are raised here: nothing awaits them.
        for each in self._background:
            if each.done():
                each.result()
        self._polled_at = now = self._clock.monotonic()
        if self._due > now:
            await wait_or_stop(self._clock, min(self._due - now, LONGEST_POLL_S), self._stopping)
        elif not self._news.is_set():
            await wait_or_stop(self._clock, LONGEST_POLL_S, self._news)
        now = self._clock.monotonic()
        translator = self._translator
        # Java emits nothing before its offset syncs were read to the end, either
        # (``OffsetSyncStore.readToEnd``).
        if translator is None or not translator.is_ready:
            self._news.clear()  # set again by the translator when it is ready
            return ()
        if self._stopping.is_set() or now < self._due or not self._news.is_set():
            return ()
        return await self._round(translator)

    def delivered(self, record: SourceRecord, target_offset: int) -> None:
        """Report the checkpoint's time, as Java does: from its poll, not the group's commit."""
        latency_ms = self._clock.now_ms() - record.timestamp_ms
        self._context.report_checkpoint(*checkpoint_of(record.source_partition), latency_ms)
        if target_offset < 0:
            return
        if target_offset < self._newest_offset:
            log.warning(
                "checkpoints are written again, their topic was created again or cut topic=%s",
                self._checkpoints_topic,
            )
            self._again = list(self._checkpoints)
            self._news.set()
        self._newest_offset = target_offset

    async def commit(self) -> None:
        """Nothing to commit."""

    async def stop(self) -> None:
        self._stopping.set()
        self._news.set()
        background, self._background = self._background, []
        await cancelled(*background)
        maps, self._opened_maps = self._opened_maps, []
        for opened in maps:
            await opened.close()
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            await session.close()

    # -- groups -------------------------------------------------------------------------------

    def _translated(
        self,
        source: MirrorGroups,
        target: MirrorGroups | None,
        translator: OffsetTranslator,
        *,
        commits: TopicLog | None = None,
    ) -> TranslatedGroups:
        """Build the groups of one kind: consumer groups have ``commits``, share groups none."""
        what, pace, checkpoints = CONSUMER_GROUP, CONSUMER_PACE, self._checkpoints
        if commits is None:
            what, pace, checkpoints = SHARE_GROUP, SHARE_PACE, {}
        watch = GroupWatch(
            source,
            commits,
            share=self._share,
            is_chosen=self._topics.should_replicate_topic,
            context=self._context,
            on_change=self._news.set,
            renewals=translator,
            what=what,
            pace=pace,
            kept=checkpoints,
        )
        groups = TranslatedGroups(
            watch, translator, checkpoints, copy_of=self._copy_of, clock=self._clock
        )
        if target is not None:
            groups.sync = GroupSync(
                target,
                checkpoints,
                context=self._context,
                # Not before the checkpoints of before were compared with the copies of now, and not
                # while the task is paused.
                may_write=lambda: self._has_renewed and self._is_polled() and translator.is_ready,
                is_placed=groups.has_placed,
                check_copies=groups.check_copies,
                what=what,
            )
        return groups

    def _follow_groups(self, groups: TranslatedGroups, what: str) -> None:
        config = self._config
        self._run(f"{what}s", groups.watch.ask(config.refresh_groups_interval_seconds))
        if groups.sync is not None:
            every_s = config.sync_group_offsets_interval_seconds
            self._run(f"{what} offsets", groups.sync.run(every_s))

    async def _follow_share_groups(
        self, source: GroupSession, target: GroupSession, groups: TranslatedGroups
    ) -> None:
        config = self._config
        clusters = {
            config.source_cluster_alias: source.share_groups,
            config.target_cluster_alias: target.share_groups,
        }
        await until_share_groups(clusters, self._clock)
        self._follow_groups(groups, SHARE_GROUP)

    # -- what is opened -----------------------------------------------------------------------

    def _own_share(self, partitions: int) -> GroupShare:
        config = self._config
        return GroupShare(
            self._group_filter.should_replicate_group,
            index=config.task_index or 0,
            tasks=config.task_group_tasks,
            partitions=partitions,
            assigned=config.task_assigned_groups,
        )

    def _syncs_topic(self, *, of_flow_back: bool = False) -> str:
        config = self._config
        at_source = (config.offset_syncs_topic_location == "source") is not of_flow_back
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

    async def _open_flow_back(self) -> FlowBack:
        at_source = self._config.offset_syncs_topic_location == "source"
        syncs = await self._open_log(
            "target" if at_source else "source",
            "offset-syncs-back",
            self._syncs_topic(of_flow_back=True),
            waits_for_topic=False,
        )
        back = await self._open_map("source", self._flow.target, self._copied_back_as, is_back=True)
        return FlowBack(back, syncs.log)

    async def _open_log(
        self,
        side: Side,
        what: str,
        topic: str,
        *,
        waits_for_topic: bool = True,
        folds: bool = False,
    ) -> LogSession:
        props, alias = self._client(side, "consumer", f"{what}-consumer")
        opened = self._logs(
            props, alias, topic, self._clock, waits_for_topic=waits_for_topic, folds=folds
        )
        self._sessions.append(opened.session)
        await opened.session.connect()
        return opened

    async def _open_map(
        self, side: Side, source_alias: str, copy_of: CopyOf, *, is_back: bool = False
    ) -> ExactMap:
        props, alias = self._client(side, "consumer", f"offset-map-{side}-consumer")
        opened = self._maps(
            props, alias, source_alias, self._clock, copy_of=copy_of, is_back=is_back
        )
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
                checkpoint = decode_checkpoint(bytes(record.key), bytes(record.value))
            except ProtocolError as error:
                log.warning("checkpoint is ignored offset=%d cause=%s", record.offset, error)
                return
            # Groups of other tasks, and of a filter of before, are in the topic too.
            if self._share.has(checkpoint.group):
                self._checkpoints.setdefault(checkpoint.group, {})[checkpoint.partition] = (
                    checkpoint
                )

        try:
            await written.log.read_to_end(take)
        except Mm2pyError as error:
            # Read in part they would be taken for all; Java's ``CheckpointStore`` falls back too.
            self._checkpoints.clear()
            log.warning(
                "checkpoints written before cannot be read: offsets older than the last offset "
                "sync are not translated topic=%s cause=%s",
                self._checkpoints_topic,
                error,
            )
            return False
        finally:
            await written.session.close()
        return True

    # -- what changed -------------------------------------------------------------------------

    async def _round(self, translator: OffsetTranslator) -> list[SourceRecord]:
        # Before anything is taken: what arrives from here on makes another round.
        self._news.clear()
        moved = translator.take_moved()
        changes: list[SourceRecord] = []
        if self._consumers is not None:
            changes = list(map(self._record, await self._consumers.renew(moved)))
        if self._shares is not None:
            await self._shares.renew(moved)
        self._has_renewed = True
        again, self._again = self._again[:GROUPS_PER_ROUND], self._again[GROUPS_PER_ROUND:]
        for group in again:
            changes += map(self._record, self._checkpoints.get(group, {}).values())
        kinds = (self._consumers, self._shares)
        if self._again or any(it is not None and it.has_changes for it in kinds):
            self._news.set()
        # An empty round does not wait: the next change is written at once.
        elif changes:
            every_s = self._config.emit_checkpoints_interval_seconds or ON_CHANGE_S
            self._due = self._clock.monotonic() + every_s
        return changes

    def _copy_of(self, topic: str) -> str:
        # A topic that came from the target: the group continues in the original
        # (``MirrorCheckpointTask.renameTopicPartition``).
        if self._policy.topic_source(topic) == self._config.target_cluster_alias:
            return self._policy.original_topic(topic)
        return self._policy.remote_topic(self._config.source_cluster_alias, topic)

    def _copied_back_as(self, topic: str) -> str:
        """Return the name of a topic's copy on the source: only those with the same name lie
        between its own records; heartbeats never do."""
        is_heartbeats = self._policy.is_heartbeats_topic(topic)
        alias = self._config.target_cluster_alias
        return self._policy.remote_topic(alias, topic) if is_heartbeats else topic

    def _record(self, checkpoint: Checkpoint) -> SourceRecord:
        key, value = encode_checkpoint(checkpoint)
        return SourceRecord(
            source_partition=checkpoint_source_partition(checkpoint.group, checkpoint.partition),
            # As Java: a checkpoint has no position of its own.
            source_offset=source_offset(0),
            topic=self._checkpoints_topic,
            partition=0,
            key=key,
            value=value,
            timestamp_ms=self._clock.now_ms(),
        )


async def until_share_groups(clusters: Mapping[str, MirrorGroups], clock: Clock) -> None:
    """Return when all clusters (by alias) support share groups; the others are logged once."""
    is_logged = False
    while True:
        try:
            lacking = [
                alias for alias, cluster in clusters.items() if not await cluster.are_supported()
            ]
        except Mm2pyError as error:
            log.debug("support of share groups is not known yet cause=%s", error)
            await clock.sleep(SHARES_RETRY_S)
            continue
        if not lacking:
            return
        if not is_logged:
            log.info(
                "share groups are not synced: needs Kafka 4.2, or 4.1 with share.version=1 "
                "clusters=%s",
                ",".join(lacking),
            )
            is_logged = True
        await clock.sleep(SHARES_LOOK_S)
