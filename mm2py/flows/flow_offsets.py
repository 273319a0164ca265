"""Groups and offsets of one flow on both of its clusters, read on demand: what
``/flows/{flow}/groups`` answers.

Flow: resolved config of the checkpoint (else source) connector -> one connection set per cluster
and request -> committed offsets of both sides, checkpoints, the exact map -> views. Reads only;
works on any worker.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Self, final

from mm2py.api.policies import ReplicationPolicy
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.connect.group_admin import Committed, GroupAdmin, GroupListing
from mm2py.client.connect.share_positions import SHARE_GROUPS, SHARE_TYPE, delivered_behind
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import Clock
from mm2py.config.client_properties import Side, effective_client_properties
from mm2py.config.clients import connection_settings
from mm2py.config.java_values import parse_boolean_leniently
from mm2py.errors import Mm2pyError
from mm2py.flows.view_models import Direction, GroupPartitionView, GroupView, TranslationView
from mm2py.mirror.checkpoints import Checkpoint, read_checkpoints
from mm2py.mirror.filters import group_filter_from_config, topic_filter_from_config
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.mirror.offset_lookup import Place, Translation
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.mirror.policies import naming, policy_from_config
from mm2py.mirror.shared_copies import shared_reason
from mm2py.mirror.two_clusters import ClusterEnd, refuse_one_cluster
from mm2py.observability.logging import some_of
from mm2py.protocol.groups import FetchedOffset
from mm2py.protocol.records import Record
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.types import LATEST, ClusterAlias, FlowName, TopicPartition

_PLACES: Final = {
    Place.COPIED: "the record was copied",
    Place.AT_END: "everything before it was copied; the next record will have this offset",
    Place.NEVER_EXISTED: "there is no copy of a record with this offset (compacted away, a "
    "transaction marker,"
    " aborted data, or before the source's first record); the next record is at the offset given",
    Place.LOST: "the record was lost (mm2py ledger FILE '{flow}' names the range); the next one "
    "is at the offset given",
    Place.EXPIRED: "both clusters have deleted it, by retention or on request, and the map does "
    "not hold it any more; the next record is at the offset given",
    Place.NOT_YET_COPIED: "it is not copied yet",
    Place.UNKNOWN: "it lies below the beginning of the map, or was passed without it: another "
    "program copied it, or the position was set after it; groups are placed by offset syncs there",
}
GROUPS_AT_ONCE: Final = 50
"""Between two pauses for the other work of the loop."""
NOT_COPIED: Final = TopicPartition("", -1)
SHARED: Final = "shared"
"""Place of a group in a copy that other flows write into, too."""

_FORMER: Final = (
    "the map is about another copy than the one that is there now: the copy was deleted or "
    "created again, or the replication policy"
    " names it anew; it is known again with the first record that is copied"
)
_NOT_YET: Final = "not copied or not checkpointed yet"
_NO_MAP: Final = "nothing of this partition was copied with an exact map"


@final
class FlowOffsets:
    """Groups and offsets of one flow; an asynchronous context manager.

    Args:
        flow: its name.
        config: resolved config of its checkpoint connector, else of its source connector.
        has_checkpoints: whether it has a checkpoint connector.
        clusters: source and target, where the caller has them open; they stay open.
    """

    def __init__(
        self,
        flow: FlowName,
        config: Mapping[str, str],
        clock: Clock,
        *,
        has_checkpoints: bool,
        clusters: tuple[Cluster, Cluster] | None = None,
    ) -> None:
        self._flow, self._config, self._clock = flow, config, clock
        self._has_checkpoints = has_checkpoints
        self._policy: ReplicationPolicy = policy_from_config(
            {"source.cluster.alias": flow.source, **config}
        )
        self._names = naming(flow, config)
        self._group_filter = group_filter_from_config(config)
        self._topics = topic_filter_from_config(config)
        self._owns = clusters is None
        self._source, self._target = clusters or (
            side_cluster(config, "source", flow.source, clock),
            side_cluster(config, "target", flow.target, clock),
        )
        self._map = OffsetMapReader(self._target, flow.source, clock=clock, copy_of=self._copy_name)
        self._has_map = self._target_has_shares = False
        self._copies: dict[TopicPartition, TopicPartition] = {}

    async def __aenter__(self) -> Self:
        """Reach the target and read its map's index; ``RetriableError`` while it is unreachable."""
        try:
            if self._owns:
                await self._target.connect()
            self._has_map = await self._exists(self._map.topic)
            if self._has_map:
                await self._map.read_to_end()
        # ``__aexit__`` is not called where ``__aenter__`` raises.
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._map.close()
        if self._owns:
            await self._source.close()
            await self._target.close()

    # -- single offsets -----------------------------------------------------------------------

    async def translate(
        self, partition: TopicPartition, offset: int, direction: Direction
    ) -> TranslationView:
        """Translate one offset of the source, or of a copy with ``to-source``.

        Raises:
            BadRequestError: the topic is no copy of this flow.
            NotFoundError: there is no such partition.
            RetriableError: a cluster does not answer.
        """
        read_at, there, cluster = partition, self._copy(partition), self._source
        if direction is Direction.TO_SOURCE:
            cluster, there = self._target, self._original(partition)
            read_at = there
        translation = await self._look(read_at, offset, direction)
        if translation is None or translation.place is Place.NOT_YET_COPIED:
            await self._check_exists(cluster, partition)
        place = "no-map" if translation is None else translation.place.value
        text = (
            _NO_MAP if translation is None else _PLACES[translation.place].format(flow=self._flow)
        )
        if translation is not None and self._map.is_former(read_at):
            text = _FORMER
        if translation is not None and translation.place is Place.NOT_YET_COPIED:
            text += await self._end_text(cluster, partition, offset)
        if others := self._map.sharers(read_at):
            text += f"; {shared_reason(str(there if read_at == partition else partition), others)}"
        return TranslationView(
            flow=str(self._flow),
            direction=direction,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            to_topic=there.topic,
            to_offset=None if translation is None or translation.offset < 0 else translation.offset,
            place=place,
            text=text,
        )

    async def _look(
        self, source: TopicPartition, offset: int, direction: Direction
    ) -> Translation | None:
        if not self._has_map:
            return None
        if direction is Direction.TO_SOURCE:
            return await self._map.to_source(source, offset)
        return await self._map.to_target(source, offset)

    async def _check_exists(self, cluster: Cluster, partition: TopicPartition) -> None:
        await cluster.connect()
        description = (await Admin(cluster).describe_topics([partition.topic])).get(partition.topic)
        if (
            description is None
            or description.error is not None
            or partition.partition not in description.partitions
        ):
            raise NotFoundError(f"There is no partition {partition} on {cluster.alias}")

    async def _end_text(self, cluster: Cluster, partition: TopicPartition, offset: int) -> str:
        listed = (await Admin(cluster).list_offsets({partition: LATEST})).get(partition)
        if listed is None or listed.error is not None or offset <= listed.offset:
            return ""
        return f"; no record has this offset yet, the log ends at {listed.offset}"

    def _copy(self, source: TopicPartition) -> TopicPartition:
        return TopicPartition(self._copy_name(source.topic), source.partition)

    def _copy_name(self, topic: str) -> str:
        # As `MirrorCheckpointTask.renameTopicPartition`: the copy of a topic of the target is that
        # topic.
        if self._policy.topic_source(topic) == self._names.target:
            return self._policy.original_topic(topic)
        return self._policy.remote_topic(self._names.source, topic)

    def _original(self, copy: TopicPartition) -> TopicPartition:
        name = self._policy.upstream_topic(copy.topic)
        source = TopicPartition(copy.topic if name is None else name, copy.partition)
        # A prefix can be taken off any name; only named back it is this flow's copy.
        if self._copy(source) != copy:
            raise BadRequestError(
                f"Topic {copy.topic} is no copy of {self._flow.source}: with "
                f"direction={Direction.TO_SOURCE} the topic is"
                f" that of the copy, such as {self._copy(copy).topic}"
            )
        return source

    async def _exists(self, topic: str) -> bool:
        described = (await Admin(self._target).describe_topics([topic])).get(topic)
        return described is not None and described.error is None

    # -- groups -------------------------------------------------------------------------------

    async def groups(self, names: Collection[str] | None, most: int) -> list[GroupView]:
        """Return the chosen groups of the source, or the named ones, sorted by name;
        ``RetriableError``: a cluster does not answer."""
        if self._owns:
            await self._source.connect()
        source, target = _AllGroups(self._source), _AllGroups(self._target)
        listed, there = await asyncio.gather(source.list(), target.list())
        chosen = {
            it: listed[it]
            for it in sorted(
                it
                for it in listed
                if (self._group_filter.should_replicate_group(it) if names is None else it in names)
            )[:most]
        }
        self._target_has_shares = await target.has_shares()
        chosen, there = await asyncio.gather(
            source.with_states(chosen),
            target.with_states({it: there[it] for it in chosen if it in there}),
        )
        # Asked with their types of the source: of another type they have no offsets there.
        at_source, at_target, checkpoints, behind = await asyncio.gather(
            source.offsets(chosen),
            target.offsets(chosen),
            self._checkpoints(frozenset(chosen)),
            source.delivered_behind(chosen),
        )
        views: list[GroupView] = []
        for number, (group, listing) in enumerate(chosen.items()):
            if not number % GROUPS_AT_ONCE:
                await asyncio.sleep(0)
            mine, theirs = at_source.get(group, {}), at_target.get(group, {})
            if isinstance(mine, Mm2pyError):
                problem = f"cannot be read: {mine}"
                views.append(self._view(listing, there.get(group), (), problem))
                continue
            parts = await self._partitions(
                mine,
                {} if isinstance(theirs, Mm2pyError) else theirs,
                checkpoints.get(group, {}),
                behind.get(group, {}),
            )
            if parts or names is not None:
                views.append(self._view(listing, there.get(group), parts, ""))
        return views

    async def group(self, name: str) -> GroupView:
        """Return one group with the numbers of its members.

        Raises:
            NotFoundError: neither cluster has it.
            RetriableError: a cluster does not answer.
        """
        views = await self.groups({name}, 1)
        if not views:
            raise NotFoundError(f"No group {name} on {self._flow.source}")
        (view,) = views
        counts = [await _members(Admin(it), name) for it in (self._source, self._target)]
        return view.model_copy(update={"members": counts[0], "members_there": counts[1]})

    async def _partitions(
        self,
        mine: Mapping[TopicPartition, FetchedOffset],
        theirs: Mapping[TopicPartition, FetchedOffset],
        checkpoints: Mapping[TopicPartition, Checkpoint],
        behind: Mapping[TopicPartition, int],
    ) -> tuple[GroupPartitionView, ...]:
        views: list[GroupPartitionView] = []
        for source, offset in sorted(mine.items()):
            copy = self._copies.get(source)
            if copy is None:
                chosen = self._topics.should_replicate_topic(source.topic)
                copy = self._copies[source] = self._copy(source) if chosen else NOT_COPIED
            if copy is NOT_COPIED:
                continue
            translation = await self._look(source, offset.offset, Direction.TO_TARGET)
            is_shared = bool(self._map.sharers(source))
            is_known = translation is not None and translation.offset >= 0 and not is_shared
            exact = translation.offset if translation is not None and is_known else None
            it = checkpoints.get(copy)
            # Checkpoints outlive a copy that was deleted: their offsets are of the former log.
            is_former = it is not None and self._map.is_of_former_copy(
                source, it.upstream, it.downstream
            )
            checkpoint = None if it is None or is_former or is_shared else it.downstream
            place = "no-map" if translation is None else translation.place.value
            synced = None if (at := theirs.get(copy)) is None else at.offset
            # A consumer that moves starts at the offset that its group has there; without one, all
            # that tools can set is the checkpoint (`RemoteClusterUtils.translateOffsets`).
            begins = checkpoint if synced is None else synced
            again = skipped = None
            if exact is not None and begins is not None:
                # A target delivers again what a share group acknowledged after its start.
                again = max(0, exact - begins) + behind.get(source, 0)
                skipped = max(0, begins - exact)
            reason = ""
            if place == Place.UNKNOWN and not is_shared:
                reason = _FORMER if self._map.is_former(source) else _PLACES[Place.UNKNOWN]
            index = self._map.index_of(source)
            if place == Place.NOT_YET_COPIED and not is_shared and index is not None:
                ahead = offset.offset - index.covered
                reason = (
                    f"the group is {ahead} offsets ahead of the copy, which ends at "
                    f"{index.target_end}: it reads them again there"
                )
                if begins is not None:
                    copied = max(0, index.target_end - begins)
                    again = copied + ahead + behind.get(source, 0)
                    skipped = max(0, begins - index.target_end)
                    if copied:
                        reason += f", after {copied} that are copied from {begins} on"
            views.append(
                GroupPartitionView(
                    topic=source.topic,
                    partition=source.partition,
                    target_topic=copy.topic,
                    committed=offset.offset,
                    exact=exact,
                    checkpoint=checkpoint,
                    committed_there=synced,
                    continues_at=begins,
                    reads_again=again,
                    skips=skipped,
                    place=SHARED if is_shared else place,
                    reason=reason,
                )
            )
        return tuple(views)

    def _view(
        self,
        mine: GroupListing,
        theirs: GroupListing | None,
        parts: Sequence[GroupPartitionView],
        problem: str,
    ) -> GroupView:
        return GroupView(
            flow=str(self._flow),
            group=mine.group_id,
            type=mine.group_type,
            state=mine.state,
            state_there="" if theirs is None else theirs.state,
            members=None,
            members_there=None,
            reads_again=_sum([part.reads_again for part in parts]),
            skips=_sum([part.skips for part in parts]),
            not_synced=problem or self._why_not(mine, theirs, parts),
            partitions=tuple(parts),
        )

    def _why_not(
        self, mine: GroupListing, theirs: GroupListing | None, parts: Sequence[GroupPartitionView]
    ) -> str:
        if not self._group_filter.should_replicate_group(mine.group_id):
            return "groups or groups.exclude leave it out"
        if not parts:
            return "it has no offset in a topic of the flow"
        problem = self._switched_off(is_share=_is_share(mine)) or self._shared(parts)
        if problem or theirs is None:
            return problem or _ahead(parts) or _without_place(parts)
        # One id cannot be a classic and a share group on one cluster (KIP-932).
        if _is_share(mine) != _is_share(theirs):
            return f"the target has a {theirs.group_type} group of this name"
        # As `MirrorCheckpointTask` (KIP-545), which syncs groups that are idle on the target alone.
        if theirs.has_members:
            return "it has members on the target: its offsets there are its own"
        return _ahead(parts) or _without_place(parts)

    def _shared(self, parts: Sequence[GroupPartitionView]) -> str:
        """Return why a group is not placed in copies that others write into; empty for none."""
        shared = [it for it in parts if it.place == SHARED]
        if not shared:
            return ""
        sources = (TopicPartition(it.topic, it.partition) for it in shared)
        others = sorted({alias for it in sources for alias in self._map.sharers(it)})
        copies = sorted({it.target_topic for it in shared})
        return shared_reason(some_of(copies, 3), others)

    def _switched_off(self, *, is_share: bool) -> str:
        if not self._has_checkpoints:
            return "the flow has no MirrorCheckpointConnector"
        for needed in ("emit.checkpoints.enabled", "emit.offset-syncs.enabled"):
            if not parse_boolean_leniently(self._config.get(needed), absent=True):
                return f"{needed} is false: the checkpoint connector does nothing"
        name = "sync.group.offsets.enabled"
        is_on = parse_boolean_leniently(self._config.get(name), absent=False)
        if not is_share:
            return "" if is_on else f"{name} is not set; checkpoints are written"
        chosen = self._config.get("sync.share.group.offsets.enabled")
        if not parse_boolean_leniently(chosen, absent=is_on):
            return (
                f"{name} is not set"
                if chosen is None
                else f"sync.share.group.offsets.enabled is {chosen}"
            )
        if not self._target_has_shares:
            return "the target has no share groups: it needs Kafka 4.2, or 4.1 with share.version=1"
        return ""

    async def _checkpoints(
        self, groups: Collection[str]
    ) -> Mapping[str, Mapping[TopicPartition, Checkpoint]]:
        topic = self._policy.checkpoints_topic(self._names.source)
        if not await self._exists(topic):
            return {}
        log = LogReader(self._target, topic, clock=self._clock)
        return await read_checkpoints(log, groups.__contains__)


def _is_share(group: GroupListing) -> bool:
    return group.group_type == SHARE_TYPE


@final
class _AllGroups:
    """Groups of all kinds on one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumers = GroupAdmin(cluster)
        self._shares = GroupAdmin(cluster, SHARE_GROUPS)

    async def list(self) -> Mapping[str, GroupListing]:
        consumers, shares = await self._consumers.list_groups(), await self._shares.list_groups()
        return {**consumers.groups, **shares.groups}

    async def with_states(self, groups: Mapping[str, GroupListing]) -> dict[str, GroupListing]:
        return await self._consumers.with_states(groups)

    async def offsets(self, groups: Mapping[str, GroupListing]) -> Mapping[str, Committed]:
        """Return the offsets of groups, each read as the type that its listing has."""
        shares = [name for name, group in groups.items() if _is_share(group)]
        consumers = [name for name, group in groups.items() if not _is_share(group)]
        committed = await self._consumers.committed(consumers)
        if shares and await self.has_shares():
            committed |= await self._shares.committed(shares)
        return committed

    async def delivered_behind(
        self, groups: Mapping[str, GroupListing]
    ) -> Mapping[str, Mapping[TopicPartition, int]]:
        """Return what share groups have acknowledged after their offsets."""
        shares = [name for name, group in groups.items() if _is_share(group)]
        if not shares or not await self.has_shares():
            return {}
        return await delivered_behind(self._shares.cluster, shares)

    async def has_shares(self) -> bool:
        return await self._shares.are_supported()


def side_cluster(
    config: Mapping[str, str], side: Side, alias: ClusterAlias, clock: Clock
) -> Cluster:
    """Return one cluster of a flow by the resolved config of its connector, not connected yet."""
    props = effective_client_properties(config, side, "admin", role="offsets")
    return Cluster(connection_settings(props), alias=alias, clock=clock)


async def source_topics(flow: FlowName, config: Mapping[str, str], clock: Clock) -> Collection[str]:
    """Return the topics of a flow's source by the resolved config of its connector; ``Mm2pyError``:
    it does not answer, or the config cannot be used."""
    cluster = side_cluster(config, "source", flow.source, clock)
    async with cluster as source:
        return (await Admin(source).list_topics()).keys()


async def stored_changes(
    flow: FlowName, config: Mapping[str, str], clock: Clock
) -> Sequence[Record]:
    """Return what the target keeps of changes of a flow, by the resolved config of its connector.

    Raises:
        ConfigError: its source is its target.
        Mm2pyError: a cluster does not answer, or the config cannot be used.
    """
    source_end = side_cluster(config, "source", flow.source, clock)
    target_end = side_cluster(config, "target", flow.target, clock)
    async with source_end as source, target_end as target:
        refuse_one_cluster(ClusterEnd.of(source), ClusterEnd.of(target))
        records, topic = list[Record](), flows_topic(flow.source)
        description = (await Admin(target).describe_topics([topic])).get(topic)
        if description is not None and description.error is None:
            log = LogReader(target, topic, clock=clock)
            await log.read_to_end(lambda _, record: records.append(record))
        return records


async def _members(admin: Admin, group: str) -> int | None:
    """Return how many members a classic group has; None where the cluster does not say."""
    try:
        described = await admin.describe_group(group)
    except Mm2pyError:
        return None
    return len(described.members) if described.state not in {"", "Dead"} else None


def _ahead(parts: Sequence[GroupPartitionView]) -> str:
    """Return why a group whose offsets on the target are ahead stays there; empty for none."""
    it = next((part for part in parts if part.skips and part.committed_there is not None), None)
    if it is None:
        return ""
    return (
        f"its offset of {it.target_topic}-{it.partition} on the target is {it.committed_there}, "
        f"ahead of {it.exact}, and offsets there never go back: the source's was set back, or the "
        "copy was deleted. To follow the source, delete the group on the target"
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    summands = [number for number in numbers if number is not None]
    return sum(summands) if numbers and len(summands) == len(numbers) else None


def _without_place(parts: Sequence[GroupPartitionView]) -> str:
    """Return which partitions have no offset for the target yet, and why the first has none; empty
    where all have one."""
    without = [part for part in parts if part.continues_at is None]
    names = [f"{part.topic}-{part.partition}" for part in without]
    return f"{some_of(names, 1)}: {without[0].reason or _NOT_YET}" if names else ""
