"""Requests about configs, log directories, ACLs and producers.

Flow: a builder (``describe_configs(...)``) -> ``Call`` -> bytes -> broker -> bytes -> one value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mm2py.errors import UnsendableError
from mm2py.protocol.acls import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    AclsResult,
    PatternType,
)
from mm2py.protocol.call import Call
from mm2py.protocol.configs import (
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    DescribedConfigs,
)
from mm2py.protocol.schema import admin_schema, by_topic, optional, required, schema_call
from mm2py.protocol.topics import NamedError
from mm2py.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ActiveProducer:
    """One idempotent or transactional producer, as the partition's leader remembers it
    (DescribeProducers, KIP-664).

    ``last_timestamp`` (ms) is that of its last batch, -1 if unknown. ``transaction_start`` is the
    offset where its open transaction begins, -1 for none. Producers without idempotence are not
    remembered.
    """

    producer_id: int
    epoch: int
    last_timestamp: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class ProducersOfPartition:
    """The producers of one partition."""

    partition: TopicPartition
    error_code: int
    producers: tuple[ActiveProducer, ...]


def describe_configs(
    resources: Sequence[ConfigResource],
    *,
    keys: Sequence[str] | None = None,
) -> Call[tuple[DescribedConfigs, ...]]:
    """Read configs, all of them or only ``keys``; configs of a broker must be asked of that
    broker."""
    names = None if keys is None else list(keys)
    for resource in resources:
        required(resource.name, "resource name")

    def request() -> admin_schema.DescribeConfigsRequest:
        return admin_schema.DescribeConfigsRequest(
            resources=[
                admin_schema.DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=int(resource.resource_type),
                    resource_name=resource.name,
                    configuration_keys=names,
                )
                for resource in resources
            ],
            # What a value overrides (KIP-226), and what it means (v3, KIP-569): long answers.
            include_synonyms=False,
            include_documentation=False,
        )

    def convert(answer: admin_schema.DescribeConfigsResponse) -> tuple[DescribedConfigs, ...]:
        return tuple(
            DescribedConfigs(
                ConfigResource(ConfigResourceType(result.resource_type), result.resource_name),
                result.error_code,
                result.error_message or "",
                tuple(_entry(config) for config in result.configs),
            )
            for result in answer.results
        )

    # v1 names the source of each value (KIP-226).
    return schema_call(request, admin_schema.DescribeConfigsResponse, convert, (1, 4))


def _entry(
    config: admin_schema.DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult,
) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        ConfigSource(config.config_source),
        config.read_only,
        config.is_sensitive,
    )


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The folders of one broker: sizes of replicas in bytes, those without one left out; ``free``
    bytes of all, None before 3.3 (KIP-827)."""

    sizes: Mapping[TopicPartition, int]
    free: int | None


def describe_log_dirs(topics: Mapping[str, Sequence[int]]) -> Call[LogDirs]:
    """Read the sizes of replicas on one broker, and how much it can take."""
    for topic in topics:
        required(topic, "topic")

    def request() -> admin_schema.DescribeLogDirsRequest:
        kind = admin_schema.DescribeLogDirsRequest.DescribableLogDirTopic
        return admin_schema.DescribeLogDirsRequest(
            topics=[kind(topic=name, partitions=list(each)) for name, each in topics.items()]
        )

    def convert(answer: admin_schema.DescribeLogDirsResponse) -> LogDirs:
        sizes = {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for folder in answer.results
            for topic in folder.topics
            for each in topic.partitions
            # A replica that is moved between log dirs exists twice (KIP-113).
            if not each.is_future_key
        }
        # -1 (UNKNOWN_VOLUME_BYTES) where a broker does not disclose it.
        free = [-1 if it.usable_bytes is None else it.usable_bytes for it in answer.results]
        return LogDirs(sizes, sum(free) if free and min(free) >= 0 else None)

    # v4 has total and usable bytes (KIP-827).
    return schema_call(request, admin_schema.DescribeLogDirsResponse, convert, (1, 4))


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """One quota (KIP-546): ``entity`` by type (user, client-id, ip), None is the default of that
    type; ``values`` by name, in bytes or percent."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClientQuotas:
    """All quotas of clients, or why they may not be read."""

    error_code: int
    error_message: str | None
    quotas: tuple[ClientQuota, ...]


def describe_client_quotas() -> Call[ClientQuotas]:
    """Read the quotas of all clients."""

    def request() -> admin_schema.DescribeClientQuotasRequest:
        return admin_schema.DescribeClientQuotasRequest(components=[], strict=False)

    def convert(answer: admin_schema.DescribeClientQuotasResponse) -> ClientQuotas:
        quotas = [
            ClientQuota(
                {it.entity_type: it.entity_name for it in entry.entity},
                {it.key: it.value for it in entry.values},
            )
            for entry in answer.entries or []
        ]
        return ClientQuotas(answer.error_code, answer.error_message, tuple(quotas))

    # ``strict=False`` with no component matches every entity.
    return schema_call(request, admin_schema.DescribeClientQuotasResponse, convert, (0, 1))


def incremental_alter_configs(
    changes: Mapping[ConfigResource, Sequence[tuple[str, ConfigOperation, str | None]]],
) -> Call[tuple[NamedError, ...]]:
    """Set or delete single configs (KIP-339); each change is (name, operation, value)."""
    for resource, operations in changes.items():
        required(resource.name, "resource name")
        for name, operation, value in operations:
            required(name, "config name")
            optional(value, f"value of config {name}")
            if value is None and operation is not ConfigOperation.DELETE:
                raise UnsendableError(f"config {name!r} needs a value to {operation.name.lower()}")

    def request() -> admin_schema.IncrementalAlterConfigsRequest:
        kind = admin_schema.IncrementalAlterConfigsRequest.AlterConfigsResource
        return admin_schema.IncrementalAlterConfigsRequest(
            resources=[
                kind(
                    resource_type=int(resource.resource_type),
                    resource_name=resource.name,
                    configs=[
                        kind.AlterableConfig(
                            name=name, config_operation=int(operation), value=value
                        )
                        for name, operation, value in operations
                    ],
                )
                for resource, operations in changes.items()
            ],
            validate_only=False,
        )

    def convert(answer: admin_schema.IncrementalAlterConfigsResponse) -> tuple[NamedError, ...]:
        return tuple(
            NamedError(result.resource_name, result.error_code, result.error_message or "")
            for result in answer.responses
        )

    return schema_call(request, admin_schema.IncrementalAlterConfigsResponse, convert, (0, 1))


def describe_acls() -> Call[AclsResult]:
    """Read the ACLs of topics; None and ANY match everything."""

    def request() -> admin_schema.DescribeAclsRequest:
        return admin_schema.DescribeAclsRequest(
            resource_type_filter=int(AclResourceType.TOPIC),
            resource_name_filter=None,
            pattern_type_filter=int(PatternType.ANY),
            principal_filter=None,
            host_filter=None,
            operation=int(AclOperation.ANY),
            permission_type=int(AclPermission.ANY),
        )

    def convert(answer: admin_schema.DescribeAclsResponse) -> AclsResult:
        acls = tuple(
            Acl(
                AclResourceType(resource.resource_type),
                resource.resource_name,
                PatternType(resource.pattern_type),
                rule.principal,
                rule.host,
                AclOperation(rule.operation),
                AclPermission(rule.permission_type),
            )
            for resource in answer.resources
            for rule in resource.acls
        )
        return AclsResult(answer.error_code, answer.error_message or "", acls)

    # v1 has the pattern type (KIP-290), as of ``create_acls``.
    return schema_call(request, admin_schema.DescribeAclsResponse, convert, (1, 3))


def create_acls(acls: Sequence[Acl]) -> Call[tuple[NamedError, ...]]:
    """Create ACLs; the results are in the order of ``acls`` and carry the resource's name.

    An ACL with UNKNOWN or ANY is refused here: created on the target, it would grant more than the
    source's did.
    """
    _exact(acls)

    def request() -> admin_schema.CreateAclsRequest:
        return admin_schema.CreateAclsRequest(
            creations=[
                admin_schema.CreateAclsRequest.AclCreation(
                    resource_type=int(acl.resource_type),
                    resource_name=acl.resource_name,
                    resource_pattern_type=int(acl.pattern_type),
                    principal=acl.principal,
                    host=acl.host,
                    operation=int(acl.operation),
                    permission_type=int(acl.permission),
                )
                for acl in acls
            ]
        )

    def convert(answer: admin_schema.CreateAclsResponse) -> tuple[NamedError, ...]:
        return tuple(
            NamedError(acl.resource_name, result.error_code, result.error_message or "")
            for acl, result in zip(acls, answer.results, strict=True)
        )

    # v1 has the pattern type (KIP-290); without it a prefixed ACL would become a literal one.
    return schema_call(request, admin_schema.CreateAclsResponse, convert, (1, 3))


def delete_acls(acls: Sequence[Acl]) -> Call[tuple[NamedError, ...]]:
    """Delete exactly these ACLs; the results are in the order of ``acls``, without an error for one
    that does not exist.

    An ACL with UNKNOWN or ANY is refused here: as a filter it would match others too.
    """
    _exact(acls)

    def request() -> admin_schema.DeleteAclsRequest:
        return admin_schema.DeleteAclsRequest(
            filters=[
                admin_schema.DeleteAclsRequest.DeleteAclsFilter(
                    resource_type_filter=int(acl.resource_type),
                    resource_name_filter=acl.resource_name,
                    pattern_type_filter=int(acl.pattern_type),
                    principal_filter=acl.principal,
                    host_filter=acl.host,
                    operation=int(acl.operation),
                    permission_type=int(acl.permission),
                )
                for acl in acls
            ]
        )

    def convert(answer: admin_schema.DeleteAclsResponse) -> tuple[NamedError, ...]:
        return tuple(
            NamedError(acl.resource_name, result.error_code, result.error_message or "")
            for acl, result in zip(acls, answer.filter_results, strict=True)
        )

    # v1 has the pattern type (KIP-290), as of ``create_acls``.
    return schema_call(request, admin_schema.DeleteAclsResponse, convert, (1, 3))


def describe_producers(
    partitions: Sequence[TopicPartition],
) -> Call[tuple[ProducersOfPartition, ...]]:
    """List the producers of partitions (KIP-664); must be sent to their leader."""
    topics = by_topic((required(tp.topic, "topic"), tp.partition) for tp in partitions)

    def request() -> admin_schema.DescribeProducersRequest:
        kind = admin_schema.DescribeProducersRequest.TopicRequest
        return admin_schema.DescribeProducersRequest(
            topics=[kind(name=topic, partition_indexes=list(parts)) for topic, parts in topics]
        )

    def convert(
        answer: admin_schema.DescribeProducersResponse,
    ) -> tuple[ProducersOfPartition, ...]:
        return tuple(
            ProducersOfPartition(
                TopicPartition(topic.name, part.partition_index),
                part.error_code,
                tuple(
                    ActiveProducer(
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.last_timestamp,
                        producer.current_txn_start_offset,
                    )
                    for producer in part.active_producers
                ),
            )
            for topic in answer.topics
            for part in topic.partitions
        )

    return schema_call(request, admin_schema.DescribeProducersResponse, convert, (0, 0))


@dataclass(frozen=True, slots=True)
class ControllerTime:
    """The clock of the active controller, ms since the epoch; -1 with an error."""

    error_code: int
    now_ms: int


_METADATA_LOG: Final = "__cluster_metadata"


def controller_time() -> Call[ControllerTime]:
    """Read the active controller's clock: it leads the metadata quorum, and is up to date now by
    its own account (DescribeQuorum, KIP-836)."""
    kind = admin_schema.DescribeQuorumRequest.TopicData

    def request() -> admin_schema.DescribeQuorumRequest:
        parts = [kind.PartitionData(partition_index=0)]
        return admin_schema.DescribeQuorumRequest(
            topics=[kind(topic_name=_METADATA_LOG, partitions=parts)]
        )

    def convert(answer: admin_schema.DescribeQuorumResponse) -> ControllerTime:
        parts = [part for topic in answer.topics for part in topic.partitions]
        leaders = [
            # The leader reports itself as caught up at its present time.
            voter.last_caught_up_timestamp
            for part in parts
            for voter in part.current_voters
            if voter.replica_id == part.leader_id
        ]
        codes = [answer.error_code, *(part.error_code for part in parts)]
        return ControllerTime(next(filter(None, codes), 0), max(leaders, default=-1))

    # v1 has the timestamps of voters (KIP-836).
    return schema_call(request, admin_schema.DescribeQuorumResponse, convert, (1, 1))


def list_transactions(producer_ids: Sequence[int]) -> Call[Mapping[int, str]]:
    """List the transactional ids of producers that a broker coordinates (KIP-664), those that the
    caller may describe."""
    asked = list(producer_ids)

    def request() -> admin_schema.ListTransactionsRequest:
        return admin_schema.ListTransactionsRequest(state_filters=[], producer_id_filters=asked)

    def convert(answer: admin_schema.ListTransactionsResponse) -> Mapping[int, str]:
        return {state.producer_id: state.transactional_id for state in answer.transaction_states}

    # v1 adds a filter by duration (KIP-994).
    return schema_call(request, admin_schema.ListTransactionsResponse, convert, (0, 0))


def _exact(acls: Sequence[Acl]) -> None:
    for acl in acls:
        required(acl.resource_name, "resource name")
        required(acl.principal, "principal")
        required(acl.host, "host")
        # 0 is UNKNOWN, 1 ANY, in all four enums.
        if min(acl.resource_type, acl.pattern_type, acl.operation, acl.permission) < 2:
            raise UnsendableError(f"an ACL with UNKNOWN or ANY is none of a cluster: {acl}")
