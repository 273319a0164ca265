"""Topics, configs, ACLs, offsets and groups of one cluster (what Java's ``Admin`` does for MM2).

Flow: method -> ``Cluster.call_*`` -> one result per name. A refusal that concerns one name is a
value of the result; one that concerns the whole request is raised. Codes that Kafka marks as
retriable are retried until ``default.api.timeout.ms``, as Java's ``Admin`` does.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeVar, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.connect.metadata_cache import by_node
from mm2py.client.parts import chunks, parts_of
from mm2py.clock import together
from mm2py.errors import (
    Mm2pyError,
    RetriableError,
    RetriableServerError,
    ServerError,
    UnsendableError,
    UnsupportedVersionError,
)
from mm2py.protocol import admin_messages, group_messages, messages
from mm2py.protocol.acls import Acl, AclOperation
from mm2py.protocol.admin_messages import ActiveProducer, ClientQuota
from mm2py.protocol.configs import ConfigEntry, ConfigOperation, ConfigResource, ConfigResourceType
from mm2py.protocol.consumer_offsets import CONSUMER_OFFSETS
from mm2py.protocol.error_codes import (
    GROUP_ID_NOT_FOUND,
    INVALID_REQUEST,
    NETWORK_EXCEPTION,
    RETRIABLE,
    SECURITY_DISABLED,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.groups import DescribedGroup
from mm2py.protocol.topics import (
    CreatedTopic,
    EpochEnd,
    EpochQuery,
    MetadataResult,
    NamedError,
    NewTopic,
    OffsetAnswer,
    OffsetQuery,
    TopicMetadata,
)
from mm2py.types import EARLIEST, LATEST, MAX_TIMESTAMP, TopicPartition

log = logging.getLogger(__name__)

K = TypeVar("K")
T = TypeVar("T")

NO_LOG: Final = -1
"""Log start of a partition that does not exist."""

_FIND_COORDINATOR, _OF_3_0 = 10, 4
_FORMAT: Final = {"message.format.version": "0.11.0"}
_LIST_OFFSETS_RETRIES = 2
_RECORDS_PER_REQUEST = 4_000
"""Metadata records per CreateTopics or CreatePartitions; a KRaft controller refuses 10,001."""
_NAMES_PER_REQUEST = 500
"""Topics per Metadata or DescribeConfigs request: keeps one answer below a few megabytes."""
_ACLS_PER_REQUEST = 1_000
"""A KRaft controller refuses 10,001 at once."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic; ``error`` is set where the cluster could not describe it."""

    name: str
    topic_id: bytes
    partitions: tuple[int, ...]
    internal: bool
    error: ServerError | None = None
    refused: ServerError | None = None
    """The missing right, where rights were asked for."""


@dataclass(frozen=True, slots=True)
class ConfigOp:
    """One incremental change of a topic config; ``DELETE`` restores the cluster's default."""

    name: str
    op: Literal["SET", "DELETE"]
    value: str | None = None


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """Offset of a timestamp in a partition; ``offset`` -1 where no such record exists."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1
    error: ServerError | None = None


@final
class Admin:
    """Administration over the connections of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._listed: tuple[MetadataResult, Mapping[str, TopicDescription]] | None = None

    # ---- topics ----

    async def list_topics(self) -> Mapping[str, TopicDescription]:
        """Return all topics but the brokers' own (``__consumer_offsets``, ...); the same object
        while nothing changed."""
        metadata = await self.cluster.metadata(None)
        # The same object while nothing changed: callers
        # compare by identity, once a refresh interval.
        if self._listed is None or self._listed[0] is not metadata:
            topics = {
                topic.name: _description(topic)
                for topic in metadata.topics
                if not topic.is_internal and not topic.error_code
            }
            self._listed = metadata, topics
        return self._listed[1]

    async def describe_topics(
        self, names: Iterable[str], *, rights: Sequence[AclOperation] = ()
    ) -> dict[str, TopicDescription]:
        """Return the topics that exist; one that may not be described carries its error, and the
        first of ``rights`` that is missing, where the cluster discloses it."""
        wanted = list(names)
        try:
            topics = await self._topics(wanted, operations=bool(rights))
        except UnsupportedVersionError:
            if not rights:
                raise
            return await self.describe_topics(wanted)
        return {
            topic.name: _description(topic, self._refusal(topic, rights))
            for topic in topics
            if topic.error_code != UNKNOWN_TOPIC_OR_PARTITION
        }

    async def denied_topics(self, names: Iterable[str]) -> dict[str, ServerError]:
        """Return which topics may not be described, with the right that is missing; ``list_topics``
        has no trace of them."""
        denied: dict[str, ServerError] = {}
        for name, topic in (await self.describe_topics(names)).items():
            code = 0 if topic.error is None else topic.error.code
            error = self.cluster.denied(code, "Describe", name)
            if error is not None:
                # Brokers answer the same of a topic that does
                # not exist to those who may not describe it.
                error.remedy += f"; if {name} was deleted, name it in topics.exclude"
                denied[name] = error
        return denied

    async def topic_rights(self, names: Iterable[str]) -> dict[str, frozenset[AclOperation]]:
        """Return what our principal may do with topics that it may describe; all where the cluster
        has no authorizer.

        Raises:
            UnsupportedVersionError: brokers before 2.3 do not disclose them (KIP-430).
        """
        return {
            topic.name: frozenset(map(AclOperation, topic.operations))
            for topic in await self._topics(names, operations=True)
            if not topic.error_code and topic.operations is not None
        }

    async def unwritable(self, topics: Collection[str]) -> dict[str, ServerError]:
        """Return the topics that our principal may not write, with the missing right.

        Empty where the cluster does not disclose rights.
        """
        described = await self.describe_topics(topics, rights=(AclOperation.WRITE,))
        return {name: it.refused for name, it in described.items() if it.refused is not None}

    async def cluster_rights(self) -> frozenset[AclOperation] | None:
        """Return our principal's rights on the cluster, all without an authorizer, None if unknown.

        Raises:
            UnsupportedVersionError: as ``topic_rights``.
        """
        answer = await self.cluster.call_any(messages.metadata([], cluster_operations=True))
        return (
            None if answer.operations is None else frozenset(map(AclOperation, answer.operations))
        )

    async def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        at_once: bool = False,
    ) -> dict[str, ServerError | None]:
        """Create topics, or only ask whether they could be; returns None or the error per name (36:
        it exists already).

        ``at_once``: what a quota of controller mutations puts off (KIP-599) is such an error, not
        waited for.
        """
        if not topics:
            return {}
        if await self._formats_are_old():
            topics = [replace(topic, configs={**_FORMAT, **topic.configs}) for topic in topics]
        refused = _unsendable({it.name: partial(messages.create_topics, [it]) for it in topics})
        topics = [topic for topic in topics if topic.name not in refused]
        if not topics:
            return {**refused}
        created = [
            answer
            for part in parts_of(topics, _records_of, _RECORDS_PER_REQUEST)
            for answer in await self.cluster.call_controller(
                messages.create_topics(part, validate_only=validate_only),
                code_of=partial(_creation_code, at_once=at_once),
            )
        ]
        return {**refused} | {
            topic.name: self.cluster.denied(topic.error_code, "Create", topic.name)
            or _error(topic.error_code, topic.error_message, topic.name)
            for topic in created
        }

    async def new_topic_configs(self, topic: NewTopic) -> Mapping[str, str]:
        """Return the configs that a topic would have, the brokers' defaults included; empty before
        2.4 (KIP-525) and where that may not be known.

        Raises:
            ServerError: it could not be created.
        """
        call = messages.create_topics([topic], validate_only=True)
        (answer,) = await self.cluster.call_controller(
            call, code_of=lambda answers: _retriable_code(it.error_code for it in answers)
        )
        error = _error(answer.error_code, answer.error_message, topic.name)
        if error is not None:
            raise error
        return answer.configs

    async def _formats_are_old(self) -> bool:
        """Whether new topics would get a message format older than 0.11, without producer ids;
        possible before 3.0."""
        node_id = next(iter(self.cluster.broker_ids), -1)
        broker = ConfigResource(ConfigResourceType.BROKER, str(node_id))
        try:
            connection = await self.cluster.connection(node_id, ADMIN)
            # FindCoordinator 4 came with Kafka 3.0, which
            # assumes the newest format by default (KIP-724).
            if connection.versions.get(_FIND_COORDINATOR, (0, _OF_3_0))[1] >= _OF_3_0:
                return False
            call = admin_messages.describe_configs([broker], keys=["log.message.format.version"])
            formats = [
                entry.value or "" for each in await connection.call(call) for entry in each.entries
            ]
        except Mm2pyError:
            return False  # the creation fails on its own, or the Sender refuses the topic and names its format
        return any(it.startswith(("0.8", "0.9", "0.10")) for it in formats)

    async def create_partitions(
        self, totals: Mapping[str, int], *, at_once: bool = False
    ) -> dict[str, ServerError | None]:
        """Increase topics to a total number of partitions; returns None or the error per name.
        ``at_once`` as ``create_topics``."""
        if not totals:
            return {}
        grown = [
            answer
            for part in parts_of([*totals], totals.__getitem__, _RECORDS_PER_REQUEST)
            for answer in await self.cluster.call_controller(
                messages.create_partitions({it: totals[it] for it in part}),
                code_of=partial(_creation_code, at_once=at_once),
            )
        ]
        return {
            a.name: self.cluster.denied(a.error_code, "Alter", a.name)
            or _error(a.error_code, a.error_message, a.name)
            for a in grown
        }

    # ---- configs ----

    async def describe_topic_configs(
        self, names: Iterable[str]
    ) -> dict[str, tuple[ConfigEntry, ...]]:
        """Return the configs of topics; topics that do not exist are left out.

        Raises:
            ServerError: a topic's configs may not be read.
        """
        described: dict[str, tuple[ConfigEntry, ...]] = {}
        for name, answer in (await self.read_topic_configs(names)).items():
            if isinstance(answer, ServerError):
                raise answer
            described[name] = answer
        return described

    async def read_topic_configs(
        self, names: Iterable[str]
    ) -> dict[str, tuple[ConfigEntry, ...] | ServerError]:
        """Return the configs of each topic, or why they may not be read; topics that do not exist
        are left out."""
        described: dict[str, tuple[ConfigEntry, ...] | ServerError] = {}
        for chunk in chunks(sorted(set(names)), _NAMES_PER_REQUEST):
            call = admin_messages.describe_configs([_topic(name) for name in chunk])
            for answer in await self.cluster.call_any(call):
                if answer.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                name = answer.resource.name
                error = self.cluster.denied(answer.error_code, "DescribeConfigs", name) or _error(
                    answer.error_code, answer.error_message, name
                )
                described[name] = answer.entries if error is None else error
        return described

    async def alter_topic_configs(
        self, changes: Mapping[str, Sequence[ConfigOp]]
    ) -> dict[str, ServerError | None]:
        """Change topic configs incrementally (KIP-339); returns None or the error per name."""
        altered = {_topic(name): [*map(_operation, ops)] for name, ops in changes.items()}
        alter = admin_messages.incremental_alter_configs
        refused = _unsendable({it.name: partial(alter, {it: ops}) for it, ops in altered.items()})
        altered = {it: ops for it, ops in altered.items() if it.name not in refused}
        if not altered:
            return {**refused}
        call = alter(altered)
        answers = await self.cluster.call_controller(call, code_of=_first_retriable)
        return {**refused} | {
            it.name: self.cluster.denied(it.error_code, "AlterConfigs", it.name)
            or _error(it.error_code, it.error_message, it.name)
            for it in answers
        }

    async def partition_sizes(
        self, topics: Mapping[str, Sequence[int]]
    ) -> Mapping[TopicPartition, int]:
        """Return the size of each partition's largest replica; partitions whose size brokers do not
        disclose are left out."""
        sizes: dict[TopicPartition, int] = {}
        for each in await self._log_dirs(topics):
            for partition, size in each.sizes.items():
                sizes[partition] = max(size, sizes.get(partition, 0))
        return sizes

    async def free_bytes(self) -> int | None:
        """Return how much all brokers together can take; None where one of them does not disclose
        it (before 3.3)."""
        free = [each.free for each in await self._log_dirs({})]
        known = [it for it in free if it is not None]
        return sum(known) if known and len(known) == len(free) else None

    async def client_quotas(self) -> tuple[ClientQuota, ...]:
        """Return the quotas of all clients.

        Raises:
            ServerError: they may not be read.
            UnsupportedVersionError: brokers before 2.6 (KIP-546).
        """
        answer = await self.cluster.call_any(admin_messages.describe_client_quotas())
        error = _error(answer.error_code, answer.error_message or "", "DescribeClientQuotas")
        if error is not None:
            raise error
        return answer.quotas

    async def _log_dirs(self, topics: Mapping[str, Sequence[int]]) -> list[admin_messages.LogDirs]:
        await self.cluster.refresh_brokers()
        found: list[admin_messages.LogDirs] = []
        # A broker describes its own log dirs alone.
        for node_id in self.cluster.broker_ids:
            connection = await self.cluster.connection(node_id, ADMIN)
            found.append(await connection.call(admin_messages.describe_log_dirs(topics)))
        return found

    # ---- ACLs ----

    async def describe_topic_acls(self) -> tuple[Acl, ...] | None:
        """Return all ACLs of topics, None where the cluster has no authorizer.

        Raises:
            ServerError: they may not be read.
        """
        found = await self.cluster.call_any(
            admin_messages.describe_acls(), code_of=lambda answer: answer.error_code
        )
        # authorizer.class.name is not set.
        if found.error_code == SECURITY_DISABLED:
            return None
        error = self.cluster.denied_here(found.error_code, "Describe") or _error(
            found.error_code, found.error_message, "DescribeAcls"
        )
        if error is not None:
            raise error
        return found.acls

    async def create_acls(self, acls: Sequence[Acl]) -> list[ServerError | None]:
        """Create ACLs; returns None or the error for each, in order."""
        refused = _unsendable({it: partial(admin_messages.create_acls, [it]) for it in acls})
        created: dict[Acl, ServerError | None] = {**refused}
        for sent in chunks([acl for acl in acls if acl not in refused], _ACLS_PER_REQUEST):
            answers = await self.cluster.call_controller(admin_messages.create_acls(sent))
            created |= dict(zip(sent, self._altered(answers), strict=True))
        return [created[acl] for acl in acls]

    async def delete_acls(self, acls: Sequence[Acl]) -> list[ServerError | None]:
        """Delete exactly these ACLs; returns None or the error for each, in order."""
        if not acls:
            return []
        return self._altered(await self.cluster.call_controller(admin_messages.delete_acls(acls)))

    def _altered(self, answers: Iterable[NamedError]) -> list[ServerError | None]:
        return [
            self.cluster.denied_here(it.error_code, "Alter")
            or _error(it.error_code, it.error_message, it.name)
            for it in answers
        ]

    # ---- producers ----

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """Return the producers of partitions, as their leaders remember them; partitions without an
        answer are left out.

        Raises:
            UnsupportedVersionError: a broker is older than 2.8.
        """
        producers: dict[TopicPartition, tuple[ActiveProducer, ...]] = {}
        for node_id, asked in by_node(await self.cluster.leaders(partitions))[0].items():
            connection = await self.cluster.connection(node_id, ADMIN)
            for answer in await connection.call(admin_messages.describe_producers(asked)):
                if not answer.error_code:
                    producers[answer.partition] = answer.producers
        return producers

    async def transactional_ids(self, producer_ids: Collection[int]) -> dict[int, tuple[str, int]]:
        """Return transactional id and coordinator of producers; those that brokers (3.0 or newer)
        do not disclose are left out."""
        ids: dict[int, tuple[str, int]] = {}
        for node_id in self.cluster.broker_ids if producer_ids else ():
            connection = await self.cluster.connection(node_id, ADMIN)
            # Rolling upgrade: ids of newer brokers are still found.
            with suppress(UnsupportedVersionError):
                answer = await connection.call(admin_messages.list_transactions([*producer_ids]))
                ids |= {it: (name, node_id) for it, name in answer.items()}
        return ids

    # ---- offsets and groups ----

    async def delete_records(self, below: Mapping[TopicPartition, int]) -> None:
        """Delete the records of partitions below offsets.

        Raises:
            ServerError: one partition refused; others may have been done.
        """
        for tp, offset in below.items():
            (answer,) = await self.cluster.call_leader(
                tp,
                messages.delete_records({tp: offset}),
                code_of=lambda answers: answers[0].error_code,
            )
            error = _error(answer.error_code, "", f"records of {tp} below {offset} are not deleted")
            if error is not None:
                raise error

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, ListedOffset]:
        """Find offsets by timestamp (EARLIEST, LATEST or ms), asking all leaders concurrently.

        A moved leader is looked up again a few times. The result has every partition; one
        without an offset carries its ``error``, retriable or not, so that the others need not wait.
        """
        settings = self.cluster.settings
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        listed = await self._list_once(timestamps, read_committed=read_committed)
        # Only failed look-ups are repeated; leaders of the rest may move meanwhile.
        for _ in range(_LIST_OFFSETS_RETRIES):
            again = {
                tp: timestamps[tp]
                for tp, offset in listed.items()
                if isinstance(offset.error, RetriableServerError)
            }
            if not again:
                break
            await self.cluster.clock.sleep(backoff.next_s())
            listed |= await self._list_once(again, read_committed=read_committed)
        return listed

    async def offsets(
        self, partitions: Iterable[TopicPartition], at: int, *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition at a timestamp (EARLIEST, LATEST or ms).

        Raises:
            Mm2pyError: one of them has none.
        """
        listed = await self.list_offsets(
            dict.fromkeys(partitions, at), read_committed=read_committed
        )
        for answer in listed.values():
            if answer.error is not None:
                raise answer.error
        return {tp: answer.offset for tp, answer in listed.items()}

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, EpochEnd]:
        """Return the ends of leader epochs in their leaders' logs (KIP-320).

        Raises:
            RetriableError: a leader is not available.
        """
        led, unled = by_node(await self.cluster.leaders(epochs))
        for error in unled.values():
            raise error
        ends: dict[TopicPartition, EpochEnd] = {}
        for node_id, asked in led.items():
            connection = await self.cluster.connection(node_id, ADMIN)
            queries = [EpochQuery(*tp, epochs[tp]) for tp in asked]
            for it in await connection.call(messages.offset_for_leader_epoch(queries)):
                tp = TopicPartition(it.topic, it.partition)
                if it.error_code:
                    self.cluster.leader_moved(tp)
                    raise server_error(it.error_code, f"OffsetForLeaderEpoch of {tp}")
                ends[tp] = it
        return ends

    async def log_ends(
        self, partitions: Iterable[TopicPartition], *, within_s: float, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return where logs end, as far as leaders answer in time: one that is silent keeps no
        answer of the others back."""
        wanted = dict.fromkeys(partitions, LATEST)
        listed = await self._list_once(wanted, read_committed=read_committed, within_s=within_s)
        return {tp: it.offset for tp, it in listed.items() if it.error is None}

    async def log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return log starts, ``NO_LOG`` for a partition that does not exist; partitions without an
        answer are left out."""
        starts: dict[TopicPartition, int] = {}
        for tp, listed in (await self.list_offsets(dict.fromkeys(partitions, EARLIEST))).items():
            if listed.error is None:
                starts[tp] = listed.offset
            elif listed.error.code == UNKNOWN_TOPIC_OR_PARTITION:
                starts[tp] = NO_LOG
        return starts

    async def newest_times(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Return the largest timestamp of each partition that has records and may be seen
        (KIP-734), ms since the epoch.

        Raises:
            UnsupportedVersionError: brokers before 3.0.
        """
        found = (await self.cluster.metadata(topics)).topics
        wanted = [TopicPartition(it.name, part.partition) for it in found for part in it.partitions]
        return await self._times(wanted, MAX_TIMESTAMP)

    async def newest_commits(self) -> dict[TopicPartition, int]:
        """Return the largest stamp that brokers gave commits of groups, ms by their clocks; one of
        a clock that was wrong stays.

        Raises:
            UnsupportedVersionError: as ``newest_times``.
        """
        return await self.newest_times([CONSUMER_OFFSETS])

    async def controller_time_ms(self) -> int:
        """Return the active controller's time in ms since the epoch, -1 if unknown; one request.

        Raises:
            RetriableError: no response. Some managed brokers close the connection on this request.
            ServerError: our principal has no Describe on the cluster.
            UnsupportedVersionError: brokers before 3.3.
        """
        connection = await self.cluster.controller()
        answer = await connection.call(admin_messages.controller_time())
        error = _error(answer.error_code, "", "the metadata quorum")
        if error is not None:
            raise error
        return answer.now_ms

    async def first_times(self, topics: Mapping[str, Iterable[int]]) -> dict[TopicPartition, int]:
        """Return the time of the first record of partitions that have one with a time, ms since the
        epoch."""
        wanted = [
            TopicPartition(it, number) for it, numbers in topics.items() for number in numbers
        ]
        return await self._times(wanted, 0)

    async def _times(
        self, partitions: Iterable[TopicPartition], at: int
    ) -> dict[TopicPartition, int]:
        listed = await self.list_offsets(dict.fromkeys(partitions, at))
        return {
            tp: it.timestamp for tp, it in listed.items() if it.error is None and it.offset >= 0
        }

    async def list_offsets_at(
        self,
        node_id: int,
        timestamps: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
    ) -> dict[TopicPartition, ListedOffset]:
        """Look up partitions at their leader, once; a failed connection is the error of each."""
        queries = [
            # With the epoch a deposed leader refuses with
            # FENCED_LEADER_EPOCH instead of an old offset (KIP-320).
            OffsetQuery(tp.topic, tp.partition, at, leader.epoch if leader is not None else -1)
            for tp, at in timestamps.items()
            for leader in (self.cluster.known_leader(tp),)
        ]
        try:
            connection = await self.cluster.connection(node_id, ADMIN)
            answers = await connection.call(
                messages.list_offsets(queries, isolation_level=int(read_committed))
            )
        except RetriableError as error:
            failed = ListedOffset(-1, error=_as_server_error(error))
            listed = dict.fromkeys(timestamps, failed)
        else:
            absent = ListedOffset(-1, error=server_error(UNKNOWN_TOPIC_OR_PARTITION))
            listed = dict.fromkeys(timestamps, absent) | dict(map(_listed, answers))
        for tp, offset in listed.items():
            if isinstance(offset.error, RetriableServerError):
                self.cluster.leader_moved(tp)
        return listed

    async def describe_group(self, group_id: str) -> DescribedGroup:
        """Return the state and members of a group.

        Raises:
            ServerError: it may not be described.
        """
        call = group_messages.describe_groups([group_id])
        (group,) = await self.cluster.call_coordinator(
            group_id, call, code_of=lambda groups: _retriable_code(g.error_code for g in groups)
        )
        return described(group)

    # ---- inside ----

    async def _topics(
        self, names: Iterable[str], *, operations: bool = False
    ) -> list[TopicMetadata]:
        return [
            topic
            for chunk in chunks(sorted(set(names)), _NAMES_PER_REQUEST)
            for topic in (await self.cluster.metadata(chunk, operations=operations)).topics
        ]

    def _refusal(self, topic: TopicMetadata, rights: Sequence[AclOperation]) -> ServerError | None:
        granted = rights if topic.operations is None else topic.operations
        missing = rights if topic.error_code else [it for it in rights if it not in granted]
        if not missing:
            return None
        code = topic.error_code or TOPIC_AUTHORIZATION_FAILED
        return self.cluster.denied(code, missing[0].name.capitalize(), topic.name)

    async def _list_once(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        read_committed: bool,
        within_s: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        led, unled = by_node(await self.cluster.leaders(wanted))
        listed = {it: ListedOffset(-1, error=_as_server_error(why)) for it, why in unled.items()}

        async def ask(node_id: int, asked: Iterable[TopicPartition]) -> None:
            times = {it: wanted[it] for it in asked}
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    listed.update(
                        await self.list_offsets_at(node_id, times, read_committed=read_committed)
                    )

        await together(*(ask(*each) for each in led.items()))
        return listed


def described(group: DescribedGroup) -> DescribedGroup:
    """Return a group, Dead where it does not exist; ``ServerError``: it may not be described."""
    # DescribeGroups 6 has this error for a group that
    # does not exist (KIP-1043); before, it was Dead.
    if group.error_code and group.error_code != GROUP_ID_NOT_FOUND:
        raise server_error(group.error_code, f"group {group.group_id}")
    return replace(group, state=group.state or "Dead")


def _description(topic: TopicMetadata, refused: ServerError | None = None) -> TopicDescription:
    return TopicDescription(
        topic.name,
        topic.topic_id,
        tuple(sorted(partition.partition for partition in topic.partitions)),
        topic.is_internal,
        _error(topic.error_code, "", topic.name),
        refused,
    )


def _listed(answer: OffsetAnswer) -> tuple[TopicPartition, ListedOffset]:
    tp = TopicPartition(answer.topic, answer.partition)
    error = _error(answer.error_code, "", f"ListOffsets of {tp}")
    return tp, ListedOffset(answer.offset, answer.timestamp, answer.leader_epoch, error)


def _topic(name: str) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC, name)


def _operation(op: ConfigOp) -> tuple[str, ConfigOperation, str | None]:
    return op.name, ConfigOperation[op.op], op.value


def _error(code: int, message: str, subject: str) -> ServerError | None:
    if not code:
        return None
    return server_error(code, f"{subject}: {message}" if message else subject)


def _as_server_error(error: Mm2pyError) -> ServerError:
    """Return an error as a ``ServerError``; a lost connection has code 13, as in Java."""
    return error if isinstance(error, ServerError) else server_error(NETWORK_EXCEPTION, str(error))


def _unsendable(calls: Mapping[K, Callable[[], object]]) -> dict[K, ServerError]:
    """Return what no request can carry, as the broker's refusal of that one: the others are sent
    without it."""
    refused: dict[K, ServerError] = {}
    for it, build in calls.items():
        try:
            build()
        except UnsendableError as error:
            refused[it] = server_error(INVALID_REQUEST, str(error))
    return refused


def _retriable_code(codes: Iterable[int]) -> int:
    """Return the code to retry a whole request for: the first one, if all are retriable."""
    all_codes = list(codes)
    # If some succeeded, a repeat would answer TOPIC_ALREADY_EXISTS for them.
    return all_codes[0] if all_codes and all(code in RETRIABLE for code in all_codes) else 0


def _records_of(topic: NewTopic) -> int:
    # As ReplicationControlManager writes them: one per topic, partition and config.
    return 1 + topic.partitions + len(topic.configs)


def _creation_code(answers: Iterable[CreatedTopic | NamedError], *, at_once: bool) -> int:
    code = _retriable_code(a.error_code for a in answers)
    return 0 if at_once and code == THROTTLING_QUOTA_EXCEEDED else code


def _first_retriable(answers: Iterable[NamedError]) -> int:
    return _retriable_code(a.error_code for a in answers)
