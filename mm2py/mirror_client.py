"""What a consumer asks a cluster about its mirrors: upstream clusters, remote topics, where groups
would continue.

Java's ``MirrorClient`` and ``RemoteClusterUtils``: topic names and checkpoints are read from one
cluster, and nothing else, so it works while the other one is gone, and on what a Java MirrorMaker
wrote. Flow: properties of the cluster (a bare ``bootstrap.servers`` suffices) -> ``MirrorClient``
-> answers; or one of the functions below, which do it in one call:

    offsets = translate_offsets({"bootstrap.servers": "b:9092"}, "A", "billing")

Where an mm2py flow wrote its exact map, ``exact_offsets`` and ``translate_offset`` answer without
any record read again.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, Self, TypeVar, final

from mm2py.api.policies import ReplicationPolicy
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.client_options import CLIENT_KEYS
from mm2py.config.client_properties import ClientKind, with_prefix
from mm2py.config.clients import connection_settings
from mm2py.errors import FatalError, FatalServerError
from mm2py.mirror.checkpoints import Checkpoint, read_checkpoints
from mm2py.mirror.filters import is_internal_name
from mm2py.mirror.offset_lookup import Translation, is_past_unread
from mm2py.mirror.offset_map_reader import OffsetMapReader
from mm2py.mirror.policies import policy_from_config
from mm2py.types import TopicPartition

T = TypeVar("T")


class RemoteOffset(NamedTuple):
    """Where a group would continue in a copy, with the metadata of its commit at the source."""

    offset: int
    metadata: str


def provenance(policy: ReplicationPolicy, topic: str) -> Iterator[str]:
    """Return the clusters that a topic came through, the nearest first; ends where one comes
    again."""
    seen: set[str] = set()
    name: str | None = topic
    while name is not None and (source := policy.topic_source(name)) is not None:
        if source in seen:
            return
        seen.add(source)
        yield source
        name = policy.upstream_topic(name)


def hop_count(policy: ReplicationPolicy, topic: str, alias: str) -> int:
    """Return over how many clusters ``topic`` came from ``alias``, -1 where it did not."""
    hops = list(provenance(policy, topic))
    return hops.index(alias) + 1 if alias in hops else -1


@final
class MirrorClient:
    """Questions to one cluster; an asynchronous context manager.

    Args:
        props: the cluster's properties as MirrorClientConfig knows them: connection, security and
            ``replication.policy.*``, also with the prefixes ``admin.`` and ``consumer.``.

    Raises:
        ConfigError: one of them is wrong.
    """

    def __init__(self, props: Mapping[str, str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.policy = policy_from_config(props)
        self._clock, alias = clock, props.get("bootstrap.servers", "")
        self._admin = Cluster(
            connection_settings(_of_client(props, "admin")), alias=alias, clock=clock
        )
        self._consumer = Cluster(
            connection_settings(_of_client(props, "consumer")), alias=alias, clock=clock
        )

    async def __aenter__(self) -> Self:
        """Reach a broker; ``ConnectionFailedError`` if none answers."""
        try:
            await self._admin.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; safe twice."""
        await self._admin.close()
        await self._consumer.close()

    async def replication_hops(self, alias: str) -> int:
        """Return over how many clusters records of ``alias`` come here, -1 if they do not (by
        heartbeats)."""
        counts = [hop_count(self.policy, topic, alias) for topic in await self.heartbeat_topics()]
        return min((hops for hops in counts if hops >= 0), default=-1)

    async def heartbeat_topics(self) -> set[str]:
        """Return the heartbeats topics, local and copied."""
        return {topic for topic in await self._topics() if self.policy.is_heartbeats_topic(topic)}

    async def checkpoint_topics(self) -> set[str]:
        """Return the checkpoints topics, one for each cluster whose groups are checkpointed
        here."""
        return {topic for topic in await self._topics() if self.policy.is_checkpoints_topic(topic)}

    async def upstream_clusters(self) -> set[str]:
        """Return the clusters whose records come here, directly or not (by heartbeats)."""
        topics = await self.heartbeat_topics()
        return {alias for topic in topics for alias in provenance(self.policy, topic)}

    async def remote_topics(self, alias: str | None = None) -> set[str]:
        """Return the copied topics, of every source or of ``alias`` alone."""
        sources = {topic: self.policy.topic_source(topic) for topic in await self._topics()}
        return {
            topic
            for topic, source in sources.items()
            if source is not None
            and alias in (None, source)
            and not self.policy.is_internal_topic(topic)
            and not is_internal_name(topic)
        }

    async def remote_consumer_offsets(
        self, groups: str | re.Pattern[str], alias: str
    ) -> dict[str, dict[TopicPartition, RemoteOffset]]:
        """Return where groups of the cluster ``alias`` would continue here, by group (KIP-1239).

        Left out, as far as the maps may be read, are checkpoints that would skip what a group has
        not read: in copies that other flows write into too, and those of copies that the cluster
        has lost, where others took their places.

        Args:
            groups: a group id, or a pattern that matches whole ids.
            alias: cluster that the groups belong to.

        Raises:
            FatalError: nothing checkpoints groups of ``alias`` here.
            RetriableError: the cluster does not answer.
        """
        checkpoints = await self._checkpoints(groups, alias)
        with suppress(FatalServerError):  # without the right to read maps all count
            async with self._map(alias) as offset_map:
                if offset_map is not None:
                    # By partition: a page of the map is read once, however many groups there are.
                    for tp, group in sorted(
                        (tp, it) for it in checkpoints for tp in checkpoints[it]
                    ):
                        it = checkpoints[group][tp]
                        if await _skips(offset_map, self._source(alias, tp), it):
                            del checkpoints[group][tp]
        return {
            group: {tp: RemoteOffset(it.downstream, it.metadata) for tp, it in of_group.items()}
            for group, of_group in checkpoints.items()
        }

    async def exact_consumer_offsets(
        self, groups: str | re.Pattern[str], alias: str
    ) -> dict[str, dict[TopicPartition, RemoteOffset]]:
        """Return where groups of ``alias`` would continue here without reading a record again.

        As ``remote_consumer_offsets``, with the exact map of the flow; a checkpoint of which it
        does not know is returned as it is. So is one of a copy that has its source's name: this
        cluster's own records may lie between the copies, and which of them a group has read is
        known to the map on the other cluster alone. The checkpoint was made with both maps
        (``mm2py group translate`` asks both). A partition of which the map is about another copy
        than the one that is there now is left out: so is its checkpoint; and so is a partition of a
        copy that other flows write into too, where a group would skip what it has not read of their
        sources.
        """
        checkpoints = await self._checkpoints(groups, alias)
        exact: dict[str, dict[TopicPartition, RemoteOffset]] = {}
        async with self._map(alias) as offset_map:
            for group, of_group in checkpoints.items():
                for tp, it in of_group.items():
                    source, offset = self._source(alias, tp), -1
                    if offset_map is not None:
                        if offset_map.is_former(source) or offset_map.sharers(source):
                            continue
                        if source != tp:
                            offset = await _exact(offset_map, source, it)
                        if offset < 0 and await _skips(offset_map, source, it):
                            continue
                    offset = it.downstream if offset < 0 else offset
                    exact.setdefault(group, {})[tp] = RemoteOffset(offset, it.metadata)
        return exact

    async def translate(
        self, alias: str, partition: TopicPartition, offset: int, *, to_source: bool = False
    ) -> Translation | None:
        """Translate an offset of a partition of ``alias`` exactly, or with ``to_source`` one of its
        copy here.

        ``partition`` is the one that the offset is of. None where no exact map knows the partition;
        ``place`` of the answer tells lost, never existed and not copied yet apart. The copy is the
        one that the replication policy names.

        Raises:
            RetriableError: the cluster does not answer.
        """
        async with self._map(alias) as offset_map:
            if offset_map is None:
                return None
            if to_source:
                return await offset_map.to_source(self._source(alias, partition), offset)
            return await offset_map.to_target(partition, offset)

    @asynccontextmanager
    async def _map(self, alias: str) -> AsyncGenerator[OffsetMapReader | None]:
        """Read the index of a flow's map; None where there is none."""
        await self._consumer.connect()
        reader = OffsetMapReader(
            self._consumer,
            alias,
            clock=self._clock,
            copy_of=lambda topic: self.policy.remote_topic(alias, topic),
        )
        if reader.topic not in await Admin(self._admin).describe_topics([reader.topic]):
            yield None
            return
        try:
            await reader.read_to_end()
            yield reader
        finally:
            await reader.close()

    def _source(self, alias: str, copy: TopicPartition) -> TopicPartition:
        if self.policy.topic_source(copy.topic) == alias:
            return copy._replace(topic=self.policy.upstream_topic(copy.topic) or copy.topic)
        return copy

    async def _checkpoints(
        self, groups: str | re.Pattern[str], alias: str
    ) -> dict[str, dict[TopicPartition, Checkpoint]]:
        topic = self.policy.checkpoints_topic(alias)
        if topic not in await Admin(self._admin).describe_topics([topic]):
            raise FatalError(
                f"there are no checkpoints of {alias} here: topic {topic} does not exist",
                remedy="name the alias that the mirror's file has for the source, and look whether"
                " its checkpoint connector runs",
            )

        def is_read(group: str) -> bool:
            return group == groups if isinstance(groups, str) else bool(groups.fullmatch(group))

        await self._consumer.connect()
        log = LogReader(self._consumer, topic, clock=self._clock)
        return await read_checkpoints(log, is_read)

    async def _topics(self) -> set[str]:
        return set(await Admin(self._admin).list_topics())


def replication_hops(props: Mapping[str, str], alias: str) -> int:
    """Return ``MirrorClient.replication_hops``."""
    return _asked(props, lambda client: client.replication_hops(alias))


def heartbeat_topics(props: Mapping[str, str]) -> set[str]:
    """Return ``MirrorClient.heartbeat_topics``."""
    return _asked(props, MirrorClient.heartbeat_topics)


def checkpoint_topics(props: Mapping[str, str]) -> set[str]:
    """Return ``MirrorClient.checkpoint_topics``."""
    return _asked(props, MirrorClient.checkpoint_topics)


def upstream_clusters(props: Mapping[str, str]) -> set[str]:
    """Return ``MirrorClient.upstream_clusters``."""
    return _asked(props, MirrorClient.upstream_clusters)


def remote_topics(props: Mapping[str, str], alias: str | None = None) -> set[str]:
    """Return ``MirrorClient.remote_topics``."""
    return _asked(props, lambda client: client.remote_topics(alias))


def translate_offsets(
    props: Mapping[str, str], remote_alias: str, group: str
) -> dict[TopicPartition, RemoteOffset]:
    """Return where ``group`` of the cluster ``remote_alias`` would continue on the cluster of
    ``props``.

    Empty where the group has no checkpoint.

    Raises:
        Mm2pyError: as ``MirrorClient.remote_consumer_offsets``.
    """
    positions = _asked(props, lambda client: client.remote_consumer_offsets(group, remote_alias))
    return positions.get(group, {})


def exact_offsets(
    props: Mapping[str, str], remote_alias: str, group: str
) -> dict[TopicPartition, RemoteOffset]:
    """Return where ``group`` of ``remote_alias`` would continue on the cluster of ``props``,
    exactly.

    Empty where the group has no checkpoint.

    Raises:
        Mm2pyError: as ``MirrorClient.exact_consumer_offsets``.
    """
    positions = _asked(props, lambda client: client.exact_consumer_offsets(group, remote_alias))
    return positions.get(group, {})


def translate_offset(
    props: Mapping[str, str],
    remote_alias: str,
    partition: TopicPartition,
    offset: int,
    *,
    to_source: bool = False,
) -> Translation | None:
    """Return ``MirrorClient.translate``."""
    return _asked(
        props,
        lambda client: client.translate(remote_alias, partition, offset, to_source=to_source),
    )


def _asked(props: Mapping[str, str], question: Callable[[MirrorClient], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with MirrorClient(props) as client:
            return await question(client)

    return asyncio.run(ask())


async def _skips(offset_map: OffsetMapReader, source: TopicPartition, it: Checkpoint) -> bool:
    """Whether a group would skip records behind its checkpoint: of another source, or where lost
    copies were."""
    return (
        bool(offset_map.sharers(source))
        or offset_map.is_of_former_copy(source, it.upstream, it.downstream)
        or await is_past_unread(offset_map, source, it.upstream, it.downstream)
    )


async def _exact(offset_map: OffsetMapReader, source: TopicPartition, it: Checkpoint) -> int:
    """Return where the record of a checkpoint is, -1 where the checkpoint itself counts.

    One before all that the map knows may be of a topic that was deleted and created again since,
    and its offset that of another record.
    """
    index, begins = offset_map.index_of(source), await offset_map.beginning(source)
    if index is None or begins is None:
        return -1
    first = index.pages[0]
    if it.downstream <= first.target_first and first.number and not index.is_cut:
        return first.target_first  # both clusters have deleted what was before
    if it.downstream <= first.target_first and not begins.source:
        return -1
    place = await offset_map.to_target(source, it.upstream)
    return -1 if place is None else place.offset


def _of_client(props: Mapping[str, str], kind: ClientKind) -> dict[str, str]:
    own = with_prefix(props, f"{kind}.")
    return {key: value for key, value in {**props, **own}.items() if key in CLIENT_KEYS}
