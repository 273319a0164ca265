"""The last group sync of a failover: exact offsets of all groups of the source, written to the target.

Flow: offsets committed on the source -> the exact maps of both directions -> offsets on the target -> ``moves_of`` -> OffsetCommit. Without
the source: its checkpoints on the target in place of the first two steps.

A record of the source is native there, and the map of the flow knows its copy; or it is itself a copy of the flow back, whose map knows
the original. So both maps are asked, and the lower place counts: nothing is skipped.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, final

from mm2py.api.policies import GroupFilter
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import Committed, GroupAdmin
from mm2py.client.fetch.log_reader import LogReader
from mm2py.errors import Mm2pyError, RetriableError
from mm2py.mirror.checkpoint_log import read_checkpoints
from mm2py.mirror.failovers import GroupMove
from mm2py.mirror.filters import group_filter_from_config
from mm2py.mirror.offset_lookup import Place, Translation
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.protocol.error_codes import UNKNOWN_MEMBER_ID
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.types import TopicPartition
from mm2py_workers.failover_clusters import FailoverClusters

__all__ = ["move_groups", "moves_of", "place_of"]

Offsets = Mapping[TopicPartition, OffsetToCommit]

_KNOWN: Final = frozenset({Place.COPIED, Place.AT_END})


def place_of(forward: Translation | None, back: Translation | None) -> int:
    """Return where a consumer continues on the target, given what the map of the flow and of the flow back say; -1 unknown."""
    for found in (forward, back):
        if found is not None and found.place is Place.COPIED:
            return found.offset
    known = [it.offset for it in (forward, back) if it is not None and it.offset >= 0]
    return min(known, default=-1)


def moves_of(
    wanted: Offsets, there: Mapping[TopicPartition, FetchedOffset]
) -> list[OffsetToCommit]:
    """Return what is to be committed: an offset on the target never goes back."""
    return [
        it for tp, it in wanted.items() if (now := there.get(tp)) is None or now.offset < it.offset
    ]


async def move_groups(
    clusters: FailoverClusters, *, source_there: bool, writes: bool = True
) -> list[GroupMove]:
    """Write the offsets of all chosen groups to the target, once; a group that is in use there is left alone.

    Without ``writes`` only say what would be written.

    Raises:
        SourceAwayError: the source went away meanwhile.
        RetriableError: the target does not answer.
    """
    chosen = group_filter_from_config(clusters.config)
    wanted, left = (
        await _exact(clusters, chosen) if source_there else (await _checkpoints(clusters), {})
    )
    target = GroupAdmin(clusters.target)
    committed = await target.committed(list(wanted))
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
    if UNKNOWN_MEMBER_ID in refused:
        notes.append("it has members on the target: its offsets there are its own")
    else:
        notes += refused.values()
    moved = sum(error is None for error in answers.values())
    return GroupMove(group=group, moved=moved, left=tuple(notes))


async def _exact(
    clusters: FailoverClusters, chosen: GroupFilter
) -> tuple[dict[str, dict[TopicPartition, OffsetToCommit]], dict[str, list[str]]]:
    wanted: dict[str, dict[TopicPartition, OffsetToCommit]] = {}
    left: dict[str, list[str]] = {}
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(clusters.source())
        admin = GroupAdmin(source)
        names = [
            it for it in (await admin.list_groups()).groups if chosen.should_replicate_group(it)
        ]
        maps = _Maps(clusters, source)
        stack.push_async_callback(maps.close)
        await maps.read()
        for group, committed in (await admin.committed(names)).items():
            if isinstance(committed, Mm2pyError):
                wanted[group], left[group] = {}, [f"its offsets cannot be read: {committed}"]
                continue
            for tp, offset in committed.items():
                copy = maps.other_side(tp)
                if copy is None:
                    continue
                place = await maps.place(tp, offset.offset)
                of_group = wanted.setdefault(group, {})
                if place < 0:
                    left.setdefault(group, []).append(f"{tp} {offset.offset} has no place there")
                else:
                    of_group[copy] = OffsetToCommit(
                        copy.topic, copy.partition, place, metadata=offset.metadata
                    )
    return wanted, left


@final
class _Maps:
    """The exact maps of the flow, on the target, and of the flow back, on the source."""

    def __init__(self, clusters: FailoverClusters, source: Cluster) -> None:
        self._clusters = clusters
        name, clock = clusters.name, clusters.clock
        self._forward = OffsetMapReader(clusters.target, name.source, clock=clock)
        self._back = OffsetMapReader(source, name.target, clock=clock)
        self._readers = ((clusters.target, self._forward), (source, self._back))

    async def read(self) -> None:
        for cluster, reader in self._readers:
            if reader.topic in await Admin(cluster).describe_topics([reader.topic]):
                await reader.read_to_end()

    async def close(self) -> None:
        for _, reader in self._readers:
            await reader.close()

    def other_side(self, tp: TopicPartition) -> TopicPartition | None:
        """Return where the records of a source partition are on the target; None where the flows do not copy it."""
        clusters, policy = self._clusters, self._clusters.policy
        if clusters.selection.replicate(tp.topic):
            return clusters.copy_of(tp)
        if not clusters.keeps_names and policy.topic_source(tp.topic) == clusters.name.target:
            original = policy.upstream_topic(tp.topic)
            return None if original is None else TopicPartition(original, tp.partition)
        return None

    async def place(self, tp: TopicPartition, offset: int) -> int:
        """Return the offset on the target of the first record from a source offset on; -1 unknown."""
        clusters = self._clusters
        forward = back = None
        if clusters.selection.replicate(tp.topic):
            forward = await self._forward.to_target(tp, offset)
        if clusters.keeps_names or forward is None:
            original = self.other_side(tp)
            assert original is not None
            back = await self._back.to_source(original, offset)
        return place_of(forward, back)


async def _checkpoints(
    clusters: FailoverClusters,
) -> dict[str, dict[TopicPartition, OffsetToCommit]]:
    topic = clusters.policy.checkpoints_topic(clusters.name.source)
    if topic not in await Admin(clusters.target).describe_topics([topic]):
        return {}
    found = await read_checkpoints(LogReader(clusters.target, topic, clock=clusters.clock))
    return {
        group: {
            tp: OffsetToCommit(tp.topic, tp.partition, it.downstream, metadata=it.metadata)
            for tp, it in checkpoints.items()
        }
        for group, checkpoints in found.items()
    }
