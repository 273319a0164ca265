"""The last group sync of a failover: exact offsets of all groups of the source, written to the
target.

Flow: offsets of consumer groups and start offsets of share groups on the source -> the exact maps
of both directions -> offsets on the target -> ``moves_of`` -> OffsetCommit or
AlterShareGroupOffsets. Without the source: checkpoints on the target instead of the first two steps
(``_without_source``); share groups have none, and stay where group sync has left them.

A record of the source was either produced there, and the map of the flow has its copy; or it is a
copy made by the flow back, whose map has the original. So both maps are read, and the lower offset
counts: nothing is skipped. Below the beginning of the flow's map the group's checkpoint decides,
which comes from the offset syncs; likewise after a source topic was recreated, because the map is
of the former one. Where the map is of another copy than the one that is there now, nothing is known
of a partition: its checkpoints are of that copy too. If nothing was copied (the partition is empty,
or transforms drop all of it) a group continues at the beginning of the target's log: without an
offset there, ``auto.offset.reset=latest`` would skip what clients write to the target before the
group starts.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, final

from mm2py.client.connect.admin import Admin, ListedOffset, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import Committed, GroupAdmin, GroupCatalog
from mm2py.client.connect.share_positions import CONSUMER_GROUPS, SHARE_GROUPS, GroupRequests
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.parts import chunks
from mm2py.clock import Clock, together
from mm2py.config.mirror_options import GROUPS_EXCLUDE
from mm2py.errors import (
    ConnectionFailedError,
    Mm2pyError,
    RequestTimedOutError,
    RetriableError,
    ServerError,
)
from mm2py.mirror.checkpoints import Checkpoint, read_checkpoints
from mm2py.mirror.failovers import Failover, GroupMove
from mm2py.mirror.filters import TopicSelection, group_filter_from_config
from mm2py.mirror.flow_state import enabled
from mm2py.mirror.offset_lookup import PartitionIndex, Place, beside_own_records, is_past_unread
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.mirror.shared_copies import shared_reason
from mm2py.observability.logging import some_of
from mm2py.protocol.error_codes import GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, UNKNOWN_MEMBER_ID
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.protocol.topics import is_another_topic, named_id
from mm2py.types import EARLIEST, ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.flows import stop_record
from mm2py_jobs.failover.own_records import own_records
from mm2py_jobs.open_flow import flow_in_force

Offsets = Mapping[TopicPartition, OffsetToCommit]
Checkpoints = Mapping[str, Mapping[TopicPartition, Checkpoint]]

NOTHING_COPIED: Final = 1 << 62
"""An offset that means: the flow has no copies of the partition, so only the target's own records
count."""

SHOWN: Final = 5
"""Remarks on a group, most of which are about one partition each."""

EXCLUDED: Final = 20
"""Groups in the command that leaves them out."""

AT_ONCE: Final = 50
"""Commits under way: clients wait for thousands of groups."""

ANSWER_S: Final = 10.0
"""How long group coordinators may take to answer."""

AGAIN_S: Final = 0.5
_IN_USE: Final = "it has members on the target: its offsets there are its own"
_REFUSALS: Final = {
    # Of OffsetCommit without a member id, which is for groups without members.
    UNKNOWN_MEMBER_ID: _IN_USE,
    # Of AlterShareGroupOffsets (KIP-932).
    NON_EMPTY_GROUP: _IN_USE,
    GROUP_ID_NOT_FOUND: "a group of another type has this name on the target",
}


def moves_of(
    offsets: Offsets, there: Mapping[TopicPartition, FetchedOffset]
) -> list[OffsetToCommit]:
    """Return the offsets to commit: none on the target goes back."""
    return [
        offset
        for tp, offset in offsets.items()
        if (now := there.get(tp)) is None or now.offset < offset.offset
    ]


NO_PLACE: Final = "has no place there"
AHEAD: Final = "ahead of"
"""Words of remarks on a group that would read again or skip records."""


@dataclass(slots=True)
class Groups:
    """Groups of one kind: their offsets on the target, and why some have none."""

    requests: GroupRequests
    offsets: dict[str, dict[TopicPartition, OffsetToCommit]] = field(
        default_factory=dict[str, dict[TopicPartition, OffsetToCommit]]
    )
    left: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def leave(self, group: str, why: str) -> None:
        """Name a group with the reason why it has no offset in a partition."""
        self.offsets.setdefault(group, {})
        self.left.setdefault(group, []).append(why)


async def move_groups(
    clusters: FailoverClusters, *, source_there: bool, writes: bool = True
) -> list[GroupMove]:
    """Write the offsets of all selected groups to the target, once; a group with members there is
    left alone.

    Without ``writes`` only return what would be written.

    Raises:
        SourceAwayError: the source has become unreachable.
        RetriableError: the target does not answer, or not for some groups; the others are moved.
    """
    kinds = await _exact(clusters) if source_there else [await _without_source(clusters)]
    return await move_all(clusters, kinds, writes=writes)


async def move_all(
    clusters: FailoverClusters, kinds: Sequence[Groups], *, writes: bool
) -> list[GroupMove]:
    """Write the offsets of groups, as ``move_groups``, all kinds side by side; ``RetriableError``:
    some are not written; the others are, of whichever kind."""
    unanswered: dict[str, RetriableError] = {}
    moves = await together(*(_move_kind(clusters, it, unanswered, writes=writes) for it in kinds))
    if unanswered:
        raise _not_moved(clusters, unanswered, sum(len(it.offsets) for it in kinds))
    return [move for of_kind in moves for move in of_kind]


async def _move_kind(
    clusters: FailoverClusters,
    groups: Groups,
    unanswered: dict[str, RetriableError],
    *,
    writes: bool,
) -> list[GroupMove]:
    """Move the groups of one kind; those that are not written now are added to ``unanswered``."""
    target = GroupAdmin(clusters.target, groups.requests)
    offsets, left = groups.offsets, groups.left
    if not await target.are_supported():
        why = "the target has no share groups: it needs Kafka 4.2, or 4.1 with share.version=1"
        return [GroupMove(group=group, moved=0, left=(why,)) for group in sorted(offsets)]
    committed = await committed_of(target, list(offsets), clusters.clock)
    moves: list[GroupMove] = []
    names = sorted(offsets)
    writer = _Commits(target, await target.coordinators(names)) if writes else None
    for part in chunks(names, AT_ONCE):
        answers = await asyncio.gather(
            *(_move(writer, it, offsets[it], committed[it], left.get(it, [])) for it in part),
            return_exceptions=True,
        )
        for group, answer in zip(part, answers, strict=True):
            if isinstance(answer, RetriableError):
                # It holds up the groups of its coordinator, no others.
                unanswered[group] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                moves.append(replace(answer, left=_shown(answer.left)))
    return moves


def _not_moved(
    clusters: FailoverClusters, unanswered: Mapping[str, RetriableError], of: int
) -> RetriableError:
    """Return the error that names groups without an answer, and how to continue without them."""
    groups = sorted(unanswered)
    before = clusters.of_groups.get("groups.exclude", ",".join(GROUPS_EXCLUDE))
    leave_out = ",".join(filter(None, (before, *map(_quoted, groups[:EXCLUDED]))))
    more = "" if len(groups) <= EXCLUDED else f", the same for the {len(groups) - EXCLUDED} others"
    return RetriableError(
        f"offsets of {len(groups)} of {of} groups are not written on {clusters.name.target}, the"
        f" others are: {some_of(groups, SHOWN)}: {unanswered[groups[0]].message}",
        remedy="bring the coordinator back (kafka-consumer-groups.sh --describe --state names it) "
        "and run the failover again; or leave these groups where they are, they keep what group "
        f"sync wrote: mm2py flow set '{clusters.name.source}/{clusters.name.target}'"
        f" groups.exclude='{leave_out}'{more}, then run it again",
    )


def _quoted(group: str) -> str:
    # A comma would end the pattern in a list, an apostrophe the word in a shell.
    return re.escape(group).replace(",", ".").replace("'", ".")


def _shown(left: Sequence[str]) -> tuple[str, ...]:
    """Return what is left alone, shortened: all groups are in one record."""
    more = len(left) - SHOWN
    return (*left[:SHOWN], f"and {more} more: mm2py group describe") if more > 1 else tuple(left)


@dataclass(slots=True)
class _Commits:
    """Commits on the target; a coordinator that has not answered once is not asked again: each
    question takes up to ``request.timeout.ms``, and clients wait."""

    admin: GroupAdmin
    nodes: Mapping[str, int]
    _silent: dict[int, RetriableError] = field(default_factory=dict[int, RetriableError])

    async def commit(
        self, group: str, offsets: Sequence[OffsetToCommit]
    ) -> Mapping[TopicPartition, ServerError | None]:
        node = self.nodes.get(group)
        if node in self._silent:
            raise self._silent[node]
        try:
            return await self.admin.commit(group, offsets)
        except (ConnectionFailedError, RequestTimedOutError) as error:
            if node is not None:
                self._silent[node] = error
            raise


async def _move(
    target: _Commits | None, group: str, offsets: Offsets, there: Committed, left: Sequence[str]
) -> GroupMove:
    if isinstance(there, Mm2pyError):
        known = left if left and not offsets else (*left, str(there))
        return GroupMove(group=group, moved=0, left=tuple(known))
    moves = moves_of(offsets, there)
    ahead = [
        f"{tp} is at {there[tp].offset} there, {AHEAD} {offset.offset}"
        for tp, offset in offsets.items()
        if tp in there and there[tp].offset > offset.offset
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
    notes[:0] = dict.fromkeys(_REFUSALS.get(code, text) for code, text in refused.items())
    moved = sum(error is None for error in answers.values())
    return GroupMove(group=group, moved=moved, left=tuple(notes))


# ---- the source


class GroupQuestions(Protocol):
    """The questions to one cluster about its groups (``GroupAdmin``)."""

    async def list_groups(self) -> GroupCatalog: ...
    async def committed(self, groups: Collection[str], /) -> dict[str, Committed]: ...


async def committed_of(
    admin: GroupQuestions, groups: Collection[str], clock: Clock
) -> dict[str, Committed]:
    """Return the offsets of groups; retries coordinators that do not answer for a while, because
    their groups would stay behind."""
    offsets = await admin.committed(groups)
    deadline = clock.monotonic() + ANSWER_S
    while again := [it for it, answer in offsets.items() if isinstance(answer, RetriableError)]:
        if clock.monotonic() > deadline:
            break
        await clock.sleep(AGAIN_S)
        offsets |= await admin.committed(again)
    return offsets


async def groups_of(admin: GroupQuestions, clock: Clock) -> GroupCatalog:
    """Return the groups of a cluster; retries for a while if one of its brokers does not answer."""
    deadline = clock.monotonic() + ANSWER_S
    while (catalog := await admin.list_groups()).missing and clock.monotonic() <= deadline:
        await clock.sleep(AGAIN_S)
    return catalog


async def _exact(clusters: FailoverClusters) -> list[Groups]:
    maps = BothMaps(clusters)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(maps.close)
        await maps.read()
        return await exact_of(clusters, maps, await _read_checkpoints(clusters))


async def exact_of(
    clusters: FailoverClusters, maps: "BothMaps", checkpoints: Checkpoints
) -> list[Groups]:
    """Return where groups of each kind are by their offsets at the source; by their checkpoints,
    where those cannot be read."""
    selected = group_filter_from_config(clusters.of_groups)

    async def ask(admin: GroupAdmin) -> tuple[GroupCatalog, Mapping[str, Committed]]:
        catalog = await groups_of(admin, clusters.clock)
        names = [it for it in catalog.groups if selected.should_replicate_group(it)]
        return catalog, await committed_of(admin, names, clusters.clock)

    # Side by side, as clients wait: each question may take as long as coordinators may.
    async with clusters.source() as source:
        consumers, shares = await together(
            ask(GroupAdmin(source)), ask(GroupAdmin(source, SHARE_GROUPS))
        )
    # One after the other: both read the same maps.
    return [
        await _placed(Groups(CONSUMER_GROUPS), *consumers, maps, checkpoints),
        await _placed(Groups(SHARE_GROUPS), *shares, maps, {}),
    ]


async def _placed(
    groups: Groups,
    catalog: GroupCatalog,
    by_group: Mapping[str, Committed],
    maps: "BothMaps",
    checkpoints: Checkpoints,
) -> Groups:
    await place_all(groups, by_group, maps, checkpoints)
    unread = {it for it, committed in by_group.items() if isinstance(committed, Mm2pyError)}
    if groups.requests is CONSUMER_GROUPS and (catalog.missing or unread):
        # A broker that has these groups is gone: their last translated offsets are better than
        # none.
        listed = await maps.by_checkpoints(checkpoints)
        for group, offsets in listed.offsets.items():
            if group in unread:
                groups.leave(group, "it gets the offsets of its checkpoints")
            elif catalog.missing and group not in by_group:
                groups.leave(group, f"by its checkpoints, it is not listed: {catalog.missing}")
            else:
                continue
            groups.left[group] += listed.left.get(group, [])
            groups.offsets[group] = offsets
    return groups


async def place_all(
    groups: Groups, by_group: Mapping[str, Committed], maps: "Places", checkpoints: Checkpoints
) -> None:
    """Place groups by their offsets at the source, or name why that is not possible.

    Two topics of the source may be one on the target, where the flow keeps names and the flow back
    does not: then the lower place counts.
    """
    by_partition: list[tuple[TopicPartition, str, FetchedOffset]] = []
    for group, committed in by_group.items():
        if isinstance(committed, Mm2pyError):
            groups.leave(group, f"its offsets cannot be read: {committed}")
        else:
            by_partition += ((tp, group, offset) for tp, offset in committed.items())
    without = set[tuple[str, TopicPartition]]()
    # By partition: a page of a map is read and decoded once, however many groups there are.
    for tp, group, offset in sorted(by_partition, key=lambda it: it[:2]):
        copy = maps.other_side(tp)
        if copy is None:
            continue
        others, place = maps.sharers(tp), -1
        if not others:
            place = await maps.place(tp, offset.offset, checkpoints.get(group, {}).get(copy))
        if place < 0:
            why = shared_reason(str(copy), others) if others else maps.why_not(tp, copy)
            groups.leave(group, f"{tp} {offset.offset} {NO_PLACE}: {why}")
            without.add((group, copy))
            continue
        placed = groups.offsets.setdefault(group, {})
        if copy not in placed or place < placed[copy].offset:
            placed[copy] = OffsetToCommit(
                copy.topic, copy.partition, place, metadata=offset.metadata
            )
    for group, copy in without:
        groups.offsets[group].pop(copy, None)


class Places(Protocol):
    """Where offsets of the source are on the target (``BothMaps``)."""

    def other_side(self, tp: TopicPartition, /) -> TopicPartition | None: ...
    def sharers(self, tp: TopicPartition, /) -> Sequence[str]: ...
    async def place(
        self, tp: TopicPartition, offset: int, checkpoint: Checkpoint | None, /
    ) -> int: ...
    def why_not(self, tp: TopicPartition, copy: TopicPartition, /) -> str: ...


@final
class BothMaps:
    """The exact maps of the flow, on the target, and of the flow back, on the source."""

    def __init__(self, clusters: FailoverClusters) -> None:
        self._clusters = clusters
        self._forward = _forward_map(clusters)
        self._back: OffsetMapReader | None = None
        self._lost: Collection[TopicPartition] = ()
        self._lost_back: Collection[TopicPartition] = ()
        """Partitions with a stored position and no map, of the flow and of the flow back."""
        self._has_left = False
        """Whether clients left the target, by a failover of the flow back that stopped it."""
        self._kept: Mapping[TopicPartition, int] = {}
        """Where begins, in target partitions, what that failover has put into quarantine."""
        self._own: Mapping[TopicPartition, int] = {}
        """Where records of the target's own may begin in partitions of which the flow back has
        copied nothing."""
        self._ids: Mapping[ClusterAlias, Mapping[str, TopicDescription]] = {}
        """The current topics of both clusters."""
        self._begins: Mapping[TopicPartition, ListedOffset] = {}
        """Log starts of the target partitions."""

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
            stopped_at = await stop_record(source, clusters.back, clusters.clock)
            if stopped_at >= 0:
                store = await clusters.seen_source_store()
                left = None if store is None else store.failover
                self._has_left = has_left(left, self._copied_back, stopped_at)
                self._kept = {it.tp: it.start for it in left.tail} if left is not None else {}
        if clusters.keeps_names and not self._has_left:
            found = await own_records(clusters, await self._not_copied_back())
            self._own = {copy: it.may_begin for copy, it in found.items()}
        logs = self._copies_of(
            TopicPartition(topic, number)
            for topic, it in self._ids[clusters.name.source].items()
            for number in it.partitions
        )
        self._begins = await Admin(clusters.target).list_offsets(dict.fromkeys(logs, EARLIEST))

    def _copies_of(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the target partitions, of those that exist."""
        there = self._ids[self._clusters.name.target]
        return [
            copy
            for tp in partitions
            if (copy := self.other_side(tp)) is not None
            and copy.topic in there
            and copy.partition in there[copy.topic].partitions
        ]

    async def _not_copied_back(self) -> Mapping[TopicPartition, int]:
        """Return the copies of which a flow back, where there is one, has copied nothing, with how
        far it has read."""
        clusters = self._clusters
        async with clusters.source() as source:
            back = await flow_in_force(clusters.back, source, clusters.clock)
        config = back.connector
        if self._back is None or config is None or not enabled(config):
            return {}
        selection = TopicSelection.of(clusters.back.name, config)
        known = await clusters.known_back()
        return {
            copy: max(0, known.resume(copy))
            for copy in self._copies_of(self._forward.partitions())
            if self._back.index_of(copy) is None and selection.replicate(copy.topic)
        }

    def _copied_back(self, copy: TopicPartition) -> int:
        index = None if self._back is None else self._back.index_of(copy)
        return -1 if index is None else max(page.source_end for page in index.pages)

    async def close(self) -> None:
        await self._forward.close()
        if self._back is not None:
            await self._back.close()

    def sharers(self, tp: TopicPartition) -> Sequence[str]:
        """Return the sources of other flows that write into the copy of a source partition."""
        return self._forward.sharers(tp)

    async def by_checkpoints(self, by_group: Checkpoints) -> Groups:
        clusters = self._clusters
        groups = await by_checkpoints(clusters, by_group, self._forward)
        copied = {clusters.copy_of(tp) for tp in await clusters.copied()}
        reach_begins(groups, self._begins.keys() - copied, self._begins)
        return groups

    def other_side(self, tp: TopicPartition) -> TopicPartition | None:
        """Return the target partition that has the records of a source partition, None if the flows
        do not copy it."""
        clusters, back = self._clusters, self._clusters.back_policy
        if clusters.selection.replicate(tp.topic):
            return clusters.copy_of(tp)
        if back.detects_cycles and back.topic_source(tp.topic) == clusters.back.names.source:
            original = back.upstream_topic(tp.topic)
            return None if original is None else TopicPartition(original, tp.partition)
        return None

    async def place(self, tp: TopicPartition, offset: int, checkpoint: Checkpoint | None) -> int:
        """Return the target offset of the first record from a source offset on, -1 if unknown."""
        clusters = self._clusters
        if self._forward.is_former(tp):
            return -1  # its checkpoints are of the former copy too
        there = await self._copy_at(tp, offset)
        if there < 0:
            there = await self._by_checkpoint(tp, offset, checkpoint)
        copy = self.other_side(tp)
        assert copy is not None
        if clusters.comes_back(copy, tp):
            there = await self._beside_own_records(tp, copy, offset, there)
        begins = _begin(self._begins.get(copy))
        if there == NOTHING_COPIED:
            there = await self._by_checkpoint(tp, offset, checkpoint)
            return max(there, begins)
        return max(there, begins) if there >= 0 else -1

    def why_not(self, tp: TopicPartition, copy: TopicPartition) -> str:
        """Return why ``place`` knows none."""
        flow, index = self._clusters.name, self._forward.index_of(tp)
        back = FlowName(flow.target, flow.source)
        there = self._ids[flow.target].get(copy.topic)
        comes_back = self._clusters.comes_back(copy, tp)
        copied_back = self._back.index_of(copy) if self._back is not None and comes_back else None
        reasons = (
            (
                there is None or copy.partition not in there.partitions,
                f"{flow.target} has no partition {copy}",
            ),
            (
                self._forward.is_former(tp),
                f"{copy.topic} is another topic than the one that {flow} copied into, and has "
                "nothing of it yet",
            ),
            (
                index is not None and self._is_former(index, tp, copy),
                f"{tp.topic} was created again on {flow.source}, and nothing of it is copied yet",
            ),
            (
                comes_back and copy in self._lost_back,
                f"the offset map of {back} is lost, which tells what of {copy} the group has "
                "read; its next record makes it known",
            ),
            (
                copied_back is not None and self._is_former(copied_back, copy, tp, back=True),
                f"{copy.topic} was created again on {flow.target} or {flow.source}, and {back} "
                "has copied nothing of it yet",
            ),
            (
                tp in self._lost,
                f"the offset map of {flow} is lost, and no checkpoint of the group is at or "
                "below it",
            ),
        )
        below = (
            "it lies below the beginning of the offset map, and no checkpoint of the group "
            "is at or below it"
        )
        return next((reason for is_so, reason in reasons if is_so), below)

    async def _beside_own_records(
        self, tp: TopicPartition, copy: TopicPartition, offset: int, there: int
    ) -> int:
        """Return ``there``, or the target's first own record that a group at ``offset`` has not
        read, if that is lower."""
        assert self._back is not None
        async with self._clusters.source():
            own = await self._back.to_source(copy, offset)
        index = self._back.index_of(copy)
        if index is None and copy in self._lost_back:
            return -1
        if index is not None and self._is_former(index, copy, tp, back=True):
            if not self._has_left:
                return -1
            # It was written whole when the flow back stopped: the topics of now have no copies of
            # that flow.
            index, own = None, None
        covered = NOTHING_COPIED if index is None else index.covered
        if self._has_left and there != NOTHING_COPIED:
            # All records of the clients that left the target were copied, or kept: only copies
            # follow.
            reads_on = index is None or offset > index.target_end
            covered = NOTHING_COPIED if reads_on else self._kept.get(copy, NOTHING_COPIED)
        there = beside_own_records(there, own, covered)
        return min(there, self._own.get(copy, there)) if index is None else there

    async def _copy_at(self, tp: TopicPartition, offset: int) -> int:
        """Return the target offset by the flow's map, -1 if unknown."""
        if not self._clusters.selection.replicate(tp.topic):
            return NOTHING_COPIED
        copy, index = await self._forward.to_target(tp, offset), self._forward.index_of(tp)
        if copy is None or index is None:
            return -1 if tp in self._lost else NOTHING_COPIED
        if self._is_former(index, tp, self._clusters.copy_of(tp)):
            return -1
        # A group beyond the map has read everything in it.
        return index.target_end if copy.place is Place.NOT_YET_COPIED else copy.offset

    def _is_former(
        self, index: PartitionIndex, tp: TopicPartition, copy: TopicPartition, *, back: bool = False
    ) -> bool:
        """Whether a map belongs to another incarnation of its partition, or of the copy."""
        name = self._clusters.back.name if back else self._clusters.name
        sides = (
            (index.source_id, name.source, tp.topic),
            (index.target_id, name.target, copy.topic),
        )
        return any(
            topic in self._ids[cluster]
            and is_another_topic(mapped, named_id(topic, self._ids[cluster][topic].topic_id))
            for mapped, cluster, topic in sides
        )

    async def _by_checkpoint(
        self, tp: TopicPartition, offset: int, checkpoint: Checkpoint | None
    ) -> int:
        if checkpoint is None or checkpoint.upstream > offset:
            return -1
        if self._forward.is_of_former_copy(tp, checkpoint.upstream, checkpoint.downstream):
            return -1
        begins = await self._forward.beginning(tp)
        is_wrong = begins is not None and begins.is_past_unread(
            checkpoint.upstream, checkpoint.downstream
        )
        return -1 if is_wrong else checkpoint.downstream


def has_left(
    left: Failover | None, copied_back: Callable[[TopicPartition], int], stopped_at: int
) -> bool:
    """Whether a flow back that is stopped has copied all that clients wrote to the target, and none
    write there now.

    Only the failover that moved them proves that. One that a user stopped, or resumed since and
    stopped again, has left records behind that groups have not read.

    Args:
        left: the newest failover of the flow back.
        copied_back: the offset after the last record of a partition that the flow back has copied;
            what it dropped may be behind it.
        stopped_at: the record that it is stopped by; another one than that failover's is of a user,
            whatever was copied before.
    """
    if left is None or not left.step.is_switched or left.stopped_at not in (-1, stopped_at):
        return False
    ends = {it.tp: it.offset for it in left.ends} | {it.tp: it.end for it in left.tail}
    return all(copied_back(tp) <= end for tp, end in ends.items())


def _forward_map(clusters: FailoverClusters) -> OffsetMapReader:
    return OffsetMapReader(
        clusters.target,
        clusters.name.source,
        clock=clusters.clock,
        copy_of=lambda topic: clusters.copy_of(TopicPartition(topic, 0)).topic,
    )


async def _read(cluster: Cluster, reader: OffsetMapReader) -> None:
    if reader.topic in await Admin(cluster).describe_topics([reader.topic]):
        await reader.read_to_end()


async def _read_checkpoints(clusters: FailoverClusters) -> Checkpoints:
    topic = clusters.policy.checkpoints_topic(clusters.names.source)
    if topic not in await Admin(clusters.target).describe_topics([topic]):
        return {}
    return await read_checkpoints(LogReader(clusters.target, topic, clock=clusters.clock))


async def _without_source(clusters: FailoverClusters) -> Groups:
    """Return the groups by their checkpoints; where the flow has no copies of a partition, a group
    of its topic begins at the target's log start."""
    forward = _forward_map(clusters)
    try:
        await _read(clusters.target, forward)
        groups = await by_checkpoints(clusters, await _read_checkpoints(clusters), forward)
    finally:
        await forward.close()
    topics = {tp.topic for offsets in groups.offsets.values() for tp in offsets}
    described = await Admin(clusters.target).describe_topics(topics)
    copied = {clusters.copy_of(tp) for tp in await clusters.copied()}
    empty = [
        tp
        for topic, it in described.items()
        for tp in (TopicPartition(topic, number) for number in it.partitions)
        if tp not in copied
    ]
    placed = {tp for offsets in groups.offsets.values() for tp in offsets}
    begins = await Admin(clusters.target).list_offsets(dict.fromkeys({*empty, *placed}, EARLIEST))
    reach_begins(groups, empty, begins)
    return groups


def reach_begins(
    groups: Groups, empty: Collection[TopicPartition], begins: Mapping[TopicPartition, ListedOffset]
) -> None:
    """Let groups begin where the target's log does, where it has deleted their offsets, and in
    ``empty`` partitions of their topics, which have no copies: ``auto.offset.reset=latest`` would
    skip what is there."""
    for offsets in groups.offsets.values():
        of_group = {tp.topic for tp in offsets}
        for tp, it in offsets.items():
            offsets[tp] = replace(it, offset=max(it.offset, _begin(begins.get(tp))))
        for tp in empty:
            begin = _begin(begins.get(tp))
            if begin >= 0 and tp.topic in of_group and tp not in offsets:
                offsets[tp] = OffsetToCommit(tp.topic, tp.partition, begin)


def _begin(listed: ListedOffset | None) -> int:
    return -1 if listed is None or listed.error is not None else listed.offset


async def by_checkpoints(
    clusters: FailoverClusters, by_group: Checkpoints, forward: OffsetMapReader
) -> Groups:
    """Return where groups are by their checkpoints: those that are chosen now, in copies of topics
    that are, with nothing unread before it."""
    groups = Groups(CONSUMER_GROUPS)
    sources = _Sources(clusters, {*await clusters.copied(), *forward.partitions()})
    selected = group_filter_from_config(clusters.of_groups)
    chosen = [it for it in by_group if selected.should_replicate_group(it)]
    # By partition: a page of the map is read and decoded once, however many groups there are.
    for tp, group in sorted((tp, name) for name in chosen for tp in by_group[name]):
        it, source = by_group[group][tp], sources.of(tp)
        if source is None or not clusters.selection.replicate(source.topic):
            continue
        if forward.is_of_former_copy(source, it.upstream, it.downstream):
            groups.leave(group, f"{tp} {it.downstream} is of a former copy")
        elif others := forward.sharers(source):
            groups.leave(group, f"{tp} {NO_PLACE}: {shared_reason(str(tp), others)}")
        elif await is_past_unread(forward, source, it.upstream, it.downstream):
            why = f"{clusters.name.target} lost copies since, and has other records there"
            groups.leave(group, f"{tp} {it.downstream} {NO_PLACE}: {why}")
        else:
            groups.offsets.setdefault(group, {})[tp] = OffsetToCommit(
                tp.topic, tp.partition, it.downstream, metadata=it.metadata
            )
    return groups


@final
class _Sources:
    """Of which source partition a partition of the target is the copy."""

    def __init__(self, clusters: FailoverClusters, copied: Collection[TopicPartition]) -> None:
        self._clusters = clusters
        self._copied = {clusters.copy_of(tp): tp for tp in copied}

    def of(self, copy: TopicPartition) -> TopicPartition | None:
        """Return it; None where the flow does not write there."""
        clusters, policy = self._clusters, self._clusters.policy
        if copy in self._copied:
            return self._copied[copy]
        if policy.topic_source(copy.topic) != clusters.names.source:
            return None
        source = copy._replace(topic=policy.upstream_topic(copy.topic) or copy.topic)
        return source if clusters.copy_of(source) == copy else None
