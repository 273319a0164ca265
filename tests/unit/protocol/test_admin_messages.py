"""Config, ACL and producer requests in every version."""

from dataclasses import replace

import pytest
from kafka.protocol.api_message import ApiMessage

from mm2py.protocol.acls import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    AclsResult,
    PatternType,
)
from mm2py.protocol.admin_messages import (
    ActiveProducer,
    ProducersOfPartition,
    create_acls,
    delete_acls,
    describe_acls,
    describe_configs,
    describe_producers,
    incremental_alter_configs,
    list_transactions,
)
from mm2py.protocol.configs import (
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigSynonym,
)
from mm2py.protocol.schema import admin_schema as adm
from mm2py.protocol.topics import NamedError
from mm2py.types import TopicPartition

TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")
RULE = Acl(
    AclResourceType.TOPIC,
    "t",
    PatternType.PREFIXED,
    "User:a",
    "*",
    AclOperation.READ,
    AclPermission.ALLOW,
)


def body(answer: ApiMessage, version: int) -> memoryview:
    answer.API_VERSION = version
    answer.with_header(7)
    return memoryview(answer.encode(header=True))[4:]


@pytest.mark.parametrize("version", range(1, 5))
def test_configs_are_asked_for_and_read_with_source_and_synonyms(version: int) -> None:
    call = describe_configs([TOPIC], keys=["cleanup.policy"], include_synonyms=True)
    request = adm.DescribeConfigsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name) == (2, "t")
    assert resource.configuration_keys == ["cleanup.policy"]
    assert request.include_synonyms is True
    kind = adm.DescribeConfigsResponse.DescribeConfigsResult
    config = kind.DescribeConfigsResourceResult
    entries = [
        config(
            name="cleanup.policy", value="compact", read_only=True, config_source=1,
            is_sensitive=False, config_type=0, documentation=None,
            synonyms=[config.DescribeConfigsSynonym(name="log.cleanup.policy", value="d", source=4)],
        ),
        config(
            name="x", value=None, read_only=False, config_source=5, is_sensitive=True,
            synonyms=[], config_type=0, documentation=None,
        ),
        config(
            name="new", value="1", read_only=False, config_source=99, is_sensitive=False,
            synonyms=[], config_type=0, documentation=None,
        ),
    ]  # fmt: skip
    answer = adm.DescribeConfigsResponse(
        results=[
            kind(
                error_code=0,
                error_message=None,
                resource_type=2,
                resource_name="t",
                configs=entries,
            )
        ]
    )
    (found,) = call.decode(version, body(answer, version))
    assert (found.resource, found.error_code, found.error_message) == (TOPIC, 0, "")
    synonym = ConfigSynonym("log.cleanup.policy", "d", ConfigSource.STATIC_BROKER_CONFIG)
    assert found.entries == (
        ConfigEntry(
            "cleanup.policy", "compact", ConfigSource.DYNAMIC_TOPIC_CONFIG, True, False, (synonym,)
        ),
        ConfigEntry("x", None, ConfigSource.DEFAULT_CONFIG, False, True),
        ConfigEntry("new", "1", ConfigSource.UNKNOWN, False, False),
    )
    assert [entry.is_default for entry in found.entries] == [False, True, False]


def test_all_configs_are_asked_for_with_null_and_not_with_an_empty_list() -> None:
    raw = describe_configs([TOPIC]).encode(4, 1, "me")
    request = adm.DescribeConfigsRequest.decode(raw[4:], version=4, header=True)
    assert request.resources[0].configuration_keys is None


@pytest.mark.parametrize("version", range(2))
def test_single_configs_are_set_and_deleted(version: int) -> None:
    call = incremental_alter_configs(
        {TOPIC: [("a", ConfigOperation.SET, "1"), ("b", ConfigOperation.DELETE, None)]},
        validate_only=True,
    )
    request = adm.IncrementalAlterConfigsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    (resource,) = request.resources
    assert [(c.name, c.config_operation, c.value) for c in resource.configs] == [
        ("a", 0, "1"),
        ("b", 1, None),
    ]
    assert request.validate_only is True
    result = adm.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=40, error_message="bad", resource_type=2, resource_name="t"
    )
    answer = adm.IncrementalAlterConfigsResponse(responses=[result])
    assert call.decode(version, body(answer, version)) == (NamedError("t", 40, "bad"),)


def test_setting_a_config_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' needs a value to set"):
        incremental_alter_configs({TOPIC: [("a", ConfigOperation.SET, None)]})


@pytest.mark.parametrize("version", range(1, 4))
def test_acls_are_found_by_filter(version: int) -> None:
    call = describe_acls(AclResourceType.TOPIC, pattern_type=PatternType.LITERAL)
    request = adm.DescribeAclsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    assert (request.resource_type_filter, request.pattern_type_filter) == (2, 3)
    assert (request.operation, request.permission_type) == (1, 1)
    assert (request.resource_name_filter, request.principal_filter, request.host_filter) == (
        None,
        None,
        None,
    )
    kind = adm.DescribeAclsResponse.DescribeAclsResource
    rules = [
        kind.AclDescription(principal="User:a", host="*", operation=3, permission_type=3),
        kind.AclDescription(principal="User:b", host="*", operation=77, permission_type=2),
    ]
    resource = kind(resource_type=2, resource_name="t", pattern_type=4, acls=rules)
    answer = adm.DescribeAclsResponse(error_code=0, error_message=None, resources=[resource])
    found = call.decode(version, body(answer, version))
    unknown = Acl(
        AclResourceType.TOPIC, "t", PatternType.PREFIXED, "User:b", "*", AclOperation.UNKNOWN,
        AclPermission.DENY,
    )  # fmt: skip
    assert found == AclsResult(0, "", (RULE, unknown))


@pytest.mark.parametrize("version", range(1, 4))
def test_acls_are_created_and_answered_in_order(version: int) -> None:
    call = create_acls([RULE])
    request = adm.CreateAclsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    (creation,) = request.creations
    assert (creation.resource_type, creation.resource_name) == (2, "t")
    assert (creation.resource_pattern_type, creation.operation) == (4, 3)
    assert (creation.principal, creation.host, creation.permission_type) == ("User:a", "*", 3)
    result = adm.CreateAclsResponse.AclCreationResult(error_code=54, error_message="off")
    answer = adm.CreateAclsResponse(results=[result])
    assert call.decode(version, body(answer, version)) == (NamedError("t", 54, "off"),)


def test_a_rule_that_was_not_understood_is_never_created() -> None:
    unknown = Acl(
        AclResourceType.TOPIC, "t", PatternType.LITERAL, "User:b", "*", AclOperation.UNKNOWN,
        AclPermission.ALLOW,
    )  # fmt: skip
    with pytest.raises(ValueError, match="is none of a cluster"):
        create_acls([unknown])


@pytest.mark.parametrize("version", range(1, 4))
def test_exactly_the_named_acls_are_deleted(version: int) -> None:
    call = delete_acls([RULE])
    request = adm.DeleteAclsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    (asked,) = request.filters
    assert (asked.resource_type_filter, asked.resource_name_filter) == (2, "t")
    assert (asked.pattern_type_filter, asked.operation, asked.permission_type) == (4, 3, 3)
    assert (asked.principal_filter, asked.host_filter) == ("User:a", "*")
    result = adm.DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=31, error_message="no", matching_acls=[]
    )
    answer = adm.DeleteAclsResponse(filter_results=[result])
    assert call.decode(version, body(answer, version)) == (NamedError("t", 31, "no"),)
    with pytest.raises(ValueError, match="is none of a cluster"):
        delete_acls([replace(RULE, operation=AclOperation.ANY)])


def test_producers_of_partitions_are_described() -> None:
    tp = TopicPartition("t", 1)
    call = describe_producers([tp])
    kind = adm.DescribeProducersResponse.TopicResponse
    state = kind.PartitionResponse.ProducerState(
        producer_id=9,
        producer_epoch=0,
        last_sequence=4,
        last_timestamp=1_000,
        coordinator_epoch=0,
        current_txn_start_offset=-1,
    )
    part = kind.PartitionResponse(
        partition_index=1, error_code=0, error_message=None, active_producers=[state]
    )
    answer = adm.DescribeProducersResponse(topics=[kind(name="t", partitions=[part])])
    found = call.decode(0, body(answer, 0))
    assert found == (ProducersOfPartition(tp, 0, (ActiveProducer(9, 0, 1_000, -1),)),)


def test_transactional_ids_of_producers_are_listed() -> None:
    call = list_transactions([9])
    request = adm.ListTransactionsRequest.decode(
        call.encode(0, 1, "me")[4:], version=0, header=True
    )
    assert request.producer_id_filters == [9]
    kind = adm.ListTransactionsResponse.TransactionState
    state = kind(transactional_id="till", producer_id=9, transaction_state="Ongoing")
    answer = adm.ListTransactionsResponse(error_code=0, transaction_states=[state])
    assert call.decode(0, body(answer, 0)) == {9: "till"}
