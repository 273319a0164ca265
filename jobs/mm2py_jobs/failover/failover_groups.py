"""The last group sync of a failover: exact offsets of all groups of the source, written to the target.

Flow: offsets of consumer groups and start offsets of share groups on the source -> the exact maps of both directions -> offsets on the
target -> ``moves_of`` -> OffsetCommit or AlterShareGroupOffsets. Without the source: checkpoints on the target in place of the first
two steps; share groups have none, so those stay where group sync has left them. A partition of which nothing was copied has no checkpoint:
a group that has one of the same topic begins at the beginning of its log.

A record of the source is native there, and the map of the flow knows its copy; or it is itself a copy of the flow back, whose map knows
the original. So both maps are asked, and the lower place counts: nothing is skipped. Below the beginning of the flow's map the group's
checkpoint decides, which came from the offset syncs; so it does where a topic was created again since, of which the map knows nothing.
Where nothing was copied (the partition is empty, or transforms drop all of it) a group continues at the beginning of the target's log:
without an offset there, ``auto.offset.reset=latest`` would skip what clients write to the target before the group comes.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from mm2py.client.connect.admin import Admin, ListedOffset, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import Committed, GroupAdmin, GroupCatalog
from mm2py.client.connect.group_requests import CONSUMER_GROUPS, SHARE_GROUPS, GroupRequests
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import Clock
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.mirror.checkpoint_log import read_checkpoints
from mm2py.mirror.checkpoints import Checkpoint
from mm2py.mirror.failovers import GroupMove
from mm2py.mirror.filters import group_filter_from_config
from mm2py.mirror.offset_lookup import PartitionIndex, Place, beside_own_records
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.protocol.error_codes import GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, UNKNOWN_MEMBER_ID
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.types import EARLIEST, ClusterAlias, TopicPartition
from mm2py_jobs.copy.survey import is_another
from mm2py_jobs.failover.failover_clusters import FailoverClusters
from mm2py_jobs.failover.failover_stop import is_stopped_on_record

Offsets = Mapping[TopicPartition, OffsetToCommit]
Checkpoints = Mapping[str, Mapping[TopicPartition, Checkpoint]]

NOTHING_COPIED: Final = 1 << 62
"""As a place: the flow has no copies of the partition, and only the target's own records count."""

ANSWER_S: Final = 10.0
"""How long brokers that coordinate groups may take to answer."""

AGAIN_S: Final = 0.5
_IN_USE: Final = "it has members on the target: its offsets there are its own"
_REFUSALS: Final = {
    UNKNOWN_MEMBER_ID: _IN_USE,
    NON_EMPTY_GROUP: _IN_USE,
    GROUP_ID_NOT_FOUND: "a group of another type has this name on the target",
}


def moves_of(
    wanted: Offsets, there: Mapping[TopicPartition, FetchedOffset]
) -> list[OffsetToCommit]:
    """Return what is to be committed: an offset on the target never goes back."""
    return [
        it for tp, it in wanted.items() if (now := there.get(tp)) is None or now.offset < it.offset
    ]


@dataclass(slots=True)
class _Groups:
    """Groups of one kind: where they continue on the target, and what could not be placed there."""

    requests: GroupRequests
    wanted: dict[str, dict[TopicPartition, OffsetToCommit]] = field(
        default_factory=dict[str, dict[TopicPartition, OffsetToCommit]]
    )
    left: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def leave(self, group: str, why: str) -> None:
        self.wanted.setdefault(group, {})
        self.left.setdefault(group, []).append(why)


async def move_groups(
    clusters: FailoverClusters, *, source_there: bool, writes: bool = True
) -> list[GroupMove]:
    """Write the offsets of all chosen groups to the target, once; a group that is in use there is left alone.

    Without ``writes`` only say what would be written.

    Raises:
        SourceAwayError: the source went away meanwhile.
        RetriableError: the target does not answer.
    """
    kinds = (
        await _exact(clusters)
        if source_there
        else [await _by_checkpoints(clusters, await _read_checkpoints(clusters))]
    )
    return [move for groups in kinds for move in await _move_all(clusters, groups, writes=writes)]


async def _move_all(
    clusters: FailoverClusters, groups: _Groups, *, writes: bool
) -> list[GroupMove]:
    target = GroupAdmin(clusters.target, groups.requests)
    wanted, left = groups.wanted, groups.left
    if not await target.are_supported():
        why = "the target has no share groups: it needs Kafka 4.2, or 4.1 with share.version=1"
        return [GroupMove(group=it, moved=0, left=(why,)) for it in sorted(wanted)]
    committed = await committed_of(target, list(wanted), clusters.clock)
    return [
        await _move(
            target if writes else None, group, wanted[group], committed[group], left.get(group, [])
        )
        for group in sorted(wanted)
    ]


async def _move(
    target: GroupAdmin | None, group: str, wanted: Offsets, there: Committed, left: Sequence[str]
) -> GroupMove:
    if isinstance(there, Mm2pyError):
        return GroupMove(group=group, moved=0, left=(*left, str(there)))
    moves = moves_of(wanted, there)
    ahead = [
        f"{tp} is at {there[tp].offset} there, ahead of {it.offset}"
        for tp, it in wanted.items()
        if tp in there and there[tp].offset > it.offset
    ]
    notes = [*left, *ahead]
    if not moves or target is None:
        return GroupMove(group=group, moved=len(moves), left=tuple(notes))
    try:
        answers = await target.commit(group, moves)
    except RetriableError:
        raise
    except Mm2pyError as error:
        return GroupMove(group=group, moved=0, left=(*notes, str(error)))
    refused = {error.code: str(error) for error in answers.values() if error is not None}
    notes += dict.fromkeys(_REFUSALS.get(code, text) for code, text in refused.items())
    moved = sum(error is None for error in answers.values())
    return GroupMove(group=group, moved=moved, left=tuple(notes))


# ---- the source


class GroupQuestions(Protocol):
    """What is asked of one cluster's groups (``GroupAdmin``)."""

    async def list_groups(self) -> GroupCatalog:
        """Return the groups of this kind."""
        ...

    async def committed(self, groups: Collection[str], /) -> dict[str, Committed]:
        """Return the offsets of groups; an error is the group's value."""
        ...


async def committed_of(
    admin: GroupQuestions, groups: Collection[str], clock: Clock
) -> dict[str, Committed]:
    """Return the offsets of groups; asked again for a while where a coordinator does not answer: such a group would stay behind."""
    found = await admin.committed(groups)
    deadline = clock.monotonic() + ANSWER_S
    while again := [it for it, answer in found.items() if isinstance(answer, RetriableError)]:
        if clock.monotonic() > deadline:
            break
        await clock.sleep(AGAIN_S)
        found |= await admin.committed(again)
    return found


async def groups_of(admin: GroupQuestions, clock: Clock) -> GroupCatalog:
    """Return the groups of a cluster; asked again for a while where one of its brokers does not answer."""
    deadline = clock.monotonic() + ANSWER_S
    while (found := await admin.list_groups()).missing and clock.monotonic() <= deadline:
        await clock.sleep(AGAIN_S)
    return found


async def _exact(clusters: FailoverClusters) -> list[_Groups]:
    maps = _Maps(clusters)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(maps.close)
        await maps.read()
        checkpoints = await _read_checkpoints(clusters)
        return [
            await _exact_of(clusters, CONSUMER_GROUPS, maps, checkpoints),
            await _exact_of(clusters, SHARE_GROUPS, maps, {}),
        ]


async def _exact_of(
    clusters: FailoverClusters, requests: GroupRequests, maps: "_Maps", checkpoints: Checkpoints
) -> _Groups:
    chosen, found = group_filter_from_config(clusters.config), _Groups(requests)
    async with clusters.source() as source:
        admin = GroupAdmin(source, requests)
        catalog = await groups_of(admin, clusters.clock)
        names = [it for it in catalog.groups if chosen.should_replicate_group(it)]
        by_group = await committed_of(admin, names, clusters.clock)
    for group, committed in by_group.items():
        if isinstance(committed, Mm2pyError):
            found.leave(group, f"its offsets cannot be read: {committed}")
            continue
        for tp, offset in committed.items():
            copy = maps.other_side(tp)
            if copy is None:
                continue
            checkpoint = checkpoints.get(group, {}).get(copy)
            place = await maps.place(tp, offset.offset, checkpoint)
            if place < 0:
                found.leave(group, f"{tp} {offset.offset} has no place there")
                continue
            found.wanted.setdefault(group, {})[copy] = OffsetToCommit(
                copy.topic, copy.partition, place, metadata=offset.metadata
            )
    if catalog.missing and requests is CONSUMER_GROUPS:
        # Those of a broker that is gone: what was last translated is better than nothing.
        for group, offsets in (await _by_checkpoints(clusters, checkpoints)).wanted.items():
            if group not in by_group and chosen.should_replicate_group(group):
                found.leave(group, f"by its checkpoints, it is not listed: {catalog.missing}")
                found.wanted[group] = offsets
    return found


@final
class _Maps:
    """The exact maps of the flow, on the target, and of the flow back, on the source."""

    def __init__(self, clusters: FailoverClusters) -> None:
        self._clusters = clusters
        self._forward = OffsetMapReader(clusters.target, clusters.name.source, clock=clusters.clock)
        self._back: OffsetMapReader | None = None
        self._lost: Collection[TopicPartition] = ()
        self._lost_back: Collection[TopicPartition] = ()
        """Partitions that the flow, and the flow back, copies without having a map of them."""
        self._back_is_stopped = False
        self._ids: Mapping[ClusterAlias, Mapping[str, TopicDescription]] = {}
        """The topics of both clusters as they are now."""
        self._begins: Mapping[TopicPartition, ListedOffset] = {}
        """Where the target's logs begin of which the flow's map has nothing."""

    async def read(self) -> None:
        clusters = self._clusters
        await _read(clusters.target, self._forward)
        self._lost = (await clusters.known()).without_map
        self._lost_back = (await clusters.known_back()).without_map
        async with clusters.source() as source:
            self._ids = {
                clusters.name.source: await Admin(source).list_topics(),
                clusters.name.target: await Admin(clusters.target).list_topics(),
            }
            self._back = OffsetMapReader(source, clusters.name.target, clock=clusters.clock)
            await _read(source, self._back)
            self._back_is_stopped = await is_stopped_on_record(
                source, clusters.back, clusters.clock
            )
        there = self._ids[clusters.name.target]
        logs = [
            copy
            for topic, it in self._ids[clusters.name.source].items()
            for tp in (TopicPartition(topic, number) for number in it.partitions)
            if self._forward.index_of(tp) is None
            and (copy := self.other_side(tp)) is not None
            and copy.topic in there
            and copy.partition in there[copy.topic].partitions
        ]
        self._begins = await Admin(clusters.target).list_offsets(dict.fromkeys(logs, EARLIEST))

    async def close(self) -> None:
        await self._forward.close()
        if self._back is not None:
            await self._back.close()

    def other_side(self, tp: TopicPartition) -> TopicPartition | None:
        """Return where the records of a source partition are on the target; None where the flows do not copy it."""
        clusters, policy = self._clusters, self._clusters.policy
        if clusters.selection.replicate(tp.topic):
            return clusters.copy_of(tp)
        if not clusters.keeps_names and policy.topic_source(tp.topic) == clusters.name.target:
            original = policy.upstream_topic(tp.topic)
            return None if original is None else TopicPartition(original, tp.partition)
        return None

    async def place(self, tp: TopicPartition, offset: int, checkpoint: Checkpoint | None) -> int:
        """Return the offset on the target of the first record from a source offset on; -1 unknown."""
        clusters = self._clusters
        found = await self._copy_at(tp, offset)
        if found < 0:
            found = await self._by_checkpoint(tp, offset, checkpoint)
        if found != NOTHING_COPIED and not clusters.keeps_names:
            return found
        copy = self.other_side(tp)
        assert copy is not None
        assert self._back is not None
        async with clusters.source():
            own = await self._back.to_source(copy, offset)
        index = self._back.index_of(copy)
        if index is None and copy in self._lost_back:
            return -1
        if index is not None and self._is_former(index, copy, tp, back=True):
            return -1
        covered = NOTHING_COPIED if index is None else index.covered
        if self._back_is_stopped and found != NOTHING_COPIED:
            # Clients left the target then, and all of their records were copied: only copies follow.
            covered = NOTHING_COPIED
        found = beside_own_records(found, own, covered)
        if found != NOTHING_COPIED:
            return found
        found = await self._by_checkpoint(tp, offset, checkpoint)
        begin = self._begins.get(copy)
        return begin.offset if found < 0 and begin is not None and begin.error is None else found

    async def _copy_at(self, tp: TopicPartition, offset: int) -> int:
        """Return where the flow's map has an offset, -1 where it does not know."""
        if not self._clusters.selection.replicate(tp.topic):
            return NOTHING_COPIED
        found, index = await self._forward.to_target(tp, offset), self._forward.index_of(tp)
        if found is None or index is None:
            return -1 if tp in self._lost else NOTHING_COPIED
        if self._is_former(index, tp, self._clusters.copy_of(tp)):
            return -1
        # A group beyond the map has read all that it knows of.
        return index.target_end if found.place is Place.NOT_YET_COPIED else found.offset

    def _is_former(
        self, index: PartitionIndex, tp: TopicPartition, copy: TopicPartition, *, back: bool = False
    ) -> bool:
        """Whether a map is of another incarnation of the partition that it is of, or of its copy."""
        name = self._clusters.back.name if back else self._clusters.name
        sides = (
            (index.source_id, name.source, tp.topic),
            (index.target_id, name.target, copy.topic),
        )
        return any(
            topic in self._ids[cluster] and is_another(known, self._ids[cluster][topic].topic_id)
            for known, cluster, topic in sides
        )

    async def _by_checkpoint(
        self, tp: TopicPartition, offset: int, checkpoint: Checkpoint | None
    ) -> int:
        if checkpoint is None or checkpoint.upstream > offset:
            return -1
        begins = await self._forward.beginning(tp)
        is_wrong = begins is not None and begins.is_past_unread(
            checkpoint.upstream, checkpoint.downstream
        )
        return -1 if is_wrong else checkpoint.downstream


async def _read(cluster: Cluster, reader: OffsetMapReader) -> None:
    if reader.topic in await Admin(cluster).describe_topics([reader.topic]):
        await reader.read_to_end()


async def _read_checkpoints(clusters: FailoverClusters) -> Checkpoints:
    topic = clusters.policy.checkpoints_topic(clusters.name.source)
    if topic not in await Admin(clusters.target).describe_topics([topic]):
        return {}
    return await read_checkpoints(LogReader(clusters.target, topic, clock=clusters.clock))


async def _by_checkpoints(clusters: FailoverClusters, by_group: Checkpoints) -> _Groups:
    groups = _Groups(CONSUMER_GROUPS)
    for group, checkpoints in by_group.items():
        groups.wanted[group] = {
            tp: OffsetToCommit(tp.topic, tp.partition, it.downstream, metadata=it.metadata)
            for tp, it in checkpoints.items()
        }
    beginnings = await _beginnings_of_empty(
        clusters, {tp.topic for checkpoints in by_group.values() for tp in checkpoints}
    )
    for offsets in groups.wanted.values():
        read = {tp.topic for tp in offsets}
        for tp, offset in beginnings.items():
            if tp.topic in read and tp not in offsets:
                offsets[tp] = OffsetToCommit(tp.topic, tp.partition, offset)
    return groups


async def _beginnings_of_empty(
    clusters: FailoverClusters, topics: Collection[str]
) -> Mapping[TopicPartition, int]:
    """Return where the logs of target partitions begin of which the flow has copied nothing."""
    copied = {clusters.copy_of(tp) for tp, end in (await clusters.copied()).items() if end > 0}
    admin = Admin(clusters.target)
    described = await admin.describe_topics(topics)
    empty = [
        tp
        for topic, description in described.items()
        for tp in (TopicPartition(topic, number) for number in description.partitions)
        if tp not in copied
    ]
    logs = await admin.list_offsets(dict.fromkeys(empty, EARLIEST))
    return {tp: log.offset for tp, log in logs.items() if log.error is None}
