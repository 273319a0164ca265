"""Every builder encodes and decodes in every version of its range; schemas, error codes and SASL."""

import struct
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from uuid import UUID

import pytest

from mm2py.errors import (
    AuthenticationError,
    FatalServerError,
    ProtocolError,
    RetriableServerError,
    UnsendableError,
)
from mm2py.protocol import error_codes
from mm2py.protocol import messages as m
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
    ControllerTime,
    ProducersOfPartition,
    controller_time,
    create_acls,
    delete_acls,
    describe_acls,
    describe_configs,
    describe_producers,
    incremental_alter_configs,
    list_transactions,
)
from mm2py.protocol.call import Call
from mm2py.protocol.configs import (
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
)
from mm2py.protocol.error_codes import RETRIABLE, error_name, server_error
from mm2py.protocol.sasl import SaslExchange
from mm2py.protocol.schema import QuietPackage, prepare_package
from mm2py.protocol.schema import admin_schema as adm
from mm2py.protocol.schema import consumer_schema as con
from mm2py.protocol.schema import metadata_schema as md
from mm2py.protocol.schema import producer_schema as prod
from mm2py.protocol.topics import (
    NO_TOPIC_ID,
    BrokerNode,
    CreatedTopic,
    EpochEnd,
    EpochQuery,
    NamedError,
    NewTopic,
    OffsetAnswer,
    OffsetQuery,
    PartitionMetadata,
    PartitionOutcome,
    ProducerIdResult,
    TopicMetadata,
    is_another_topic,
    named_id,
)
from mm2py.types import TopicPartition
from tests.unit.protocol.schema_library import answered, asked, body, in_every_version

ID = bytes(range(16))


def versions(call: Call[object]) -> range:
    return range(call.min_version, call.max_version + 1)


def test_every_request_starts_with_its_size_key_version_and_correlation_id() -> None:
    calls: list[Call[object]] = [
        m.api_versions(), m.metadata(None), m.metadata([]), m.metadata(["t"]),
        m.list_offsets([OffsetQuery("t", 0, -1)]), m.offset_for_leader_epoch([EpochQuery("t", 0, 1)]),
        m.create_topics([NewTopic("t", 1, 1)]), m.create_partitions({"t": 3}),
        m.delete_records({TopicPartition("t", 0): 5}), m.init_producer_id(),
        m.abort_markers({TopicPartition("t", 0): 5}, 7),
    ]  # fmt: skip
    for call in calls:
        for version in versions(call):
            raw = call.encode(version, 77, "me")
            size, key, sent, correlation_id = struct.unpack_from(">ihhi", raw)
            assert (size, key, sent, correlation_id) == (len(raw) - 4, call.api_key, version, 77)
        with pytest.raises(ValueError, match="is outside v"):
            call.encode(call.max_version + 1, 1, "me")


@in_every_version(range(5))
def test_api_versions_tells_ranges_and_finalized_features(version: int) -> None:
    answer = md.ApiVersionsResponse(
        error_code=0,
        api_keys=[md.ApiVersionsResponse.ApiVersion(api_key=3, min_version=0, max_version=13)],
        finalized_features=[
            md.ApiVersionsResponse.FinalizedFeatureKey(
                name="transaction.version", max_version_level=2, min_version_level=1
            )
        ],
    )
    found = answered(m.api_versions(), answer, version)
    assert (found.error_code, found.versions) == (0, {3: (0, 13)})
    expected = {"transaction.version": 2} if version >= 3 else {}
    assert found.features == expected


def test_api_versions_of_an_old_broker_is_read_in_its_first_layout() -> None:
    answer = md.ApiVersionsResponse(
        error_code=35,
        api_keys=[md.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)],
    )
    found = m.api_versions().decode(4, body(answer, 0))
    assert (found.error_code, found.versions) == (35, {18: (0, 2)})


@in_every_version(range(1, 14))
def test_metadata_is_read(version: int) -> None:
    topic_type = md.MetadataResponse.MetadataResponseTopic
    part = topic_type.MetadataResponsePartition(
        error_code=9, partition_index=2, leader_id=1, leader_epoch=5,
        replica_nodes=[1, 2], isr_nodes=[1], offline_replicas=[2],
    )  # fmt: skip
    topics = [
        topic_type(name="t", topic_id=UUID(bytes=ID), is_internal=True, partitions=[part]),
        topic_type(name="gone", error_code=3, topic_id=None, is_internal=False, partitions=[]),
    ]
    answer = md.MetadataResponse(
        throttle_time_ms=4,
        brokers=[
            md.MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9092, rack="r")
        ],
        cluster_id="c",
        controller_id=1,
        topics=topics,
    )
    found = answered(m.metadata(None), answer, version)
    assert found.brokers == (BrokerNode(1, "h", 9092, "r"),)
    assert found.cluster_id == ("c" if version >= 2 else None)
    epoch, topic_id = (5 if version >= 7 else -1), (ID if version >= 10 else NO_TOPIC_ID)
    assert found.topics == (
        TopicMetadata("t", topic_id, True, (PartitionMetadata(2, 1, epoch, 9, in_sync=1),), 0),
        TopicMetadata("gone", NO_TOPIC_ID, False, (), 3),
    )
    assert (found.controller_id, found.error_code) == (1, 0)


@in_every_version(range(4, 14))
def test_metadata_never_creates_topics_unless_asked(version: int) -> None:
    request = asked(m.metadata(["t"]), md.MetadataRequest, version)
    assert request.allow_auto_topic_creation is False
    assert request.topics is not None
    assert [topic.name for topic in request.topics] == ["t"]
    assert m.metadata(["t"]).min_version == 4
    assert asked(m.metadata(None), md.MetadataRequest, version).topics is None


@in_every_version(range(1, 12))
def test_list_offsets_groups_by_topic_and_is_read(version: int) -> None:
    call = m.list_offsets(
        [OffsetQuery("b", 1, -2), OffsetQuery("a", 0, 5), OffsetQuery("b", 2, -1)]
    )
    request = asked(call, con.ListOffsetsRequest, version)
    assert request.replica_id == -1
    assert [
        (topic.name, [(part.partition_index, part.timestamp) for part in topic.partitions])
        for topic in request.topics
    ] == [("a", [(0, 5)]), ("b", [(1, -2), (2, -1)])]
    kind = con.ListOffsetsResponse.ListOffsetsTopicResponse
    part = kind.ListOffsetsPartitionResponse(
        partition_index=1, error_code=0, timestamp=5, offset=77, leader_epoch=3
    )
    answer = con.ListOffsetsResponse(topics=[kind(name="b", partitions=[part])])
    epoch = 3 if version >= 4 else -1
    assert answered(call, answer, version) == (OffsetAnswer("b", 1, 0, 5, 77, epoch),)


def test_list_offsets_needs_newer_versions_for_newer_questions() -> None:
    assert m.list_offsets([OffsetQuery("t", 0, -3)]).min_version == 7
    assert m.list_offsets([OffsetQuery("t", 0, -1)], isolation_level=1).min_version == 2
    assert m.list_offsets([]).min_version == 1


@in_every_version([2, 3, 4])
def test_ends_of_epochs_are_read(version: int) -> None:
    call = m.offset_for_leader_epoch([EpochQuery("t", 1, 4, 6)])
    request = asked(call, con.OffsetForLeaderEpochRequest, version)
    part = request.topics[0].partitions[0]
    assert (part.partition, part.leader_epoch, part.current_leader_epoch) == (1, 4, 6)
    assert request.replica_id == (-1 if version >= 3 else -2)
    kind = con.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    end = kind.EpochEndOffset(error_code=0, partition=1, leader_epoch=4, end_offset=99)
    answer = con.OffsetForLeaderEpochResponse(topics=[kind(topic="t", partitions=[end])])
    assert answered(call, answer, version) == (EpochEnd("t", 1, 0, 4, 99),)


@in_every_version(range(2, 8))
def test_create_topics_sends_configs_and_reads_each_outcome(version: int) -> None:
    call = m.create_topics([NewTopic("t", 3, 2, {"a": "b"})], validate_only=True)
    request = asked(call, adm.CreateTopicsRequest, version)
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t", 3, 2)
    assert [(config.name, config.value) for config in topic.configs] == [("a", "b")]
    assert request.validate_only is True
    config = adm.CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs
    result = adm.CreateTopicsResponse.CreatableTopicResult(
        name="t", topic_id=UUID(bytes=ID), error_code=36, error_message="exists",
        num_partitions=3, replication_factor=2, configs=[config(name="a", value="b")],
    )  # fmt: skip
    found = answered(call, adm.CreateTopicsResponse(topics=[result]), version)
    more = (3, 2, {"a": "b"}) if version >= 5 else (-1, -1, dict[str, str]())
    topic_id = ID if version >= 7 else NO_TOPIC_ID
    assert found == (CreatedTopic("t", topic_id, 36, "exists", *more),)
    assert m.create_topics([NewTopic("t")]).min_version == 4


@in_every_version(range(4))
def test_create_partitions_sends_the_total(version: int) -> None:
    call = m.create_partitions({"t": 7})
    request = asked(call, adm.CreatePartitionsRequest, version)
    assert [(topic.name, topic.count, topic.assignments) for topic in request.topics] == [
        ("t", 7, None)
    ]
    result = adm.CreatePartitionsResponse.CreatePartitionsTopicResult(name="t", error_code=37)
    answer = adm.CreatePartitionsResponse(results=[result])
    assert answered(call, answer, version) == (NamedError("t", 37),)


@in_every_version(range(3))
def test_delete_records_is_sent_and_read(version: int) -> None:
    call = m.delete_records({TopicPartition("t", 1): 50})
    request = asked(call, adm.DeleteRecordsRequest, version)
    assert request.topics[0].partitions[0].offset == 50
    kind = adm.DeleteRecordsResponse.DeleteRecordsTopicResult
    part = kind.DeleteRecordsPartitionResult(partition_index=1, low_watermark=50, error_code=0)
    answer = adm.DeleteRecordsResponse(topics=[kind(name="t", partitions=[part])])
    assert answered(call, answer, version) == (PartitionOutcome("t", 1, 0),)


@in_every_version(range(6))
def test_init_producer_id_is_read(version: int) -> None:
    answer = prod.InitProducerIdResponse(error_code=0, producer_id=2**40, producer_epoch=3)
    assert answered(m.init_producer_id(), answer, version) == ProducerIdResult(0, 2**40, 3)
    assert m.init_producer_id("tid", producer_id=5, producer_epoch=1).min_version == 3


def test_a_cut_answer_is_a_protocol_error() -> None:
    broker = md.MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=9092, rack="r")
    for version in (1, 13):
        raw = body(md.MetadataResponse(brokers=[broker], cluster_id="c", topics=[]), version)
        for end in range(len(raw)):
            with pytest.raises(ProtocolError, match="Metadata v"):
                m.metadata(None).decode(version, raw[:end])


def test_tagged_fields_in_a_response_header_are_skipped() -> None:
    raw = body(md.MetadataResponse(brokers=[], cluster_id="c", topics=[]), 12)
    tagged = memoryview(b"\x01\x05\x03abc" + bytes(raw[1:]))
    assert m.metadata(None).decode(12, tagged).cluster_id == "c"


def test_empty_names_are_refused_before_they_are_sent() -> None:
    for build in (
        lambda: m.metadata([""]),
        lambda: m.list_offsets([OffsetQuery("", 0, -1)]),
        lambda: m.create_topics([NewTopic("")]),
        lambda: m.init_producer_id(""),
    ):
        with pytest.raises(UnsendableError, match="a request needs a"):
            build()


TOPIC = ConfigResource(ConfigResourceType.TOPIC, "t")
RULE = Acl(
    AclResourceType.TOPIC, "t", PatternType.PREFIXED, "User:a", "*", AclOperation.READ,
    AclPermission.ALLOW,
)  # fmt: skip


@in_every_version(range(1, 5))
def test_configs_are_asked_for_and_read_with_their_source(version: int) -> None:
    call = describe_configs([TOPIC], keys=["cleanup.policy"])
    request = asked(call, adm.DescribeConfigsRequest, version)
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name) == (2, "t")
    assert resource.configuration_keys == ["cleanup.policy"]
    kind = adm.DescribeConfigsResponse.DescribeConfigsResult
    config = kind.DescribeConfigsResourceResult
    rows = [
        ("cleanup.policy", "compact", True, 1, False),
        ("x", None, False, 5, True),
        ("new", "1", False, 99, False),
    ]
    entries = [
        config(
            name=name, value=value, read_only=read_only, config_source=source, is_sensitive=secret,
            synonyms=[], config_type=0, documentation=None,
        )
        for name, value, read_only, source, secret in rows
    ]  # fmt: skip
    result = kind(
        error_code=0, error_message=None, resource_type=2, resource_name="t", configs=entries
    )
    (found,) = answered(call, adm.DescribeConfigsResponse(results=[result]), version)
    assert (found.resource, found.error_code, found.error_message) == (TOPIC, 0, "")
    assert found.entries == (
        ConfigEntry("cleanup.policy", "compact", ConfigSource.DYNAMIC_TOPIC_CONFIG, True, False),
        ConfigEntry("x", None, ConfigSource.DEFAULT_CONFIG, False, True),
        ConfigEntry("new", "1", ConfigSource.UNKNOWN, False, False),
    )
    assert [entry.is_default for entry in found.entries] == [False, True, False]


def test_all_configs_are_asked_for_with_null_and_not_with_an_empty_list() -> None:
    request = asked(describe_configs([TOPIC]), adm.DescribeConfigsRequest, 4)
    assert request.resources[0].configuration_keys is None


@in_every_version(range(2))
def test_single_configs_are_set_and_deleted(version: int) -> None:
    call = incremental_alter_configs(
        {TOPIC: [("a", ConfigOperation.SET, "1"), ("b", ConfigOperation.DELETE, None)]}
    )
    request = asked(call, adm.IncrementalAlterConfigsRequest, version)
    (resource,) = request.resources
    assert [(c.name, c.config_operation, c.value) for c in resource.configs] == [
        ("a", 0, "1"),
        ("b", 1, None),
    ]
    result = adm.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=40, error_message="bad", resource_type=2, resource_name="t"
    )
    answer = adm.IncrementalAlterConfigsResponse(responses=[result])
    assert answered(call, answer, version) == (NamedError("t", 40, "bad"),)


def test_setting_a_config_to_nothing_is_refused() -> None:
    with pytest.raises(UnsendableError, match="'a' needs a value to set"):
        incremental_alter_configs({TOPIC: [("a", ConfigOperation.SET, None)]})


@in_every_version(range(1, 4))
def test_acls_of_topics_are_found(version: int) -> None:
    call = describe_acls()
    request = asked(call, adm.DescribeAclsRequest, version)
    assert (request.resource_type_filter, request.pattern_type_filter) == (2, 1)
    assert (request.operation, request.permission_type) == (1, 1)
    named = request.resource_name_filter, request.principal_filter, request.host_filter
    assert named == (None, None, None)
    kind = adm.DescribeAclsResponse.DescribeAclsResource
    rules = [
        kind.AclDescription(principal="User:a", host="*", operation=3, permission_type=3),
        kind.AclDescription(principal="User:b", host="*", operation=77, permission_type=2),
    ]
    resource = kind(resource_type=2, resource_name="t", pattern_type=4, acls=rules)
    answer = adm.DescribeAclsResponse(error_code=0, error_message=None, resources=[resource])
    found = answered(call, answer, version)
    unknown = replace(RULE, principal="User:b", operation=AclOperation.UNKNOWN)
    unknown = replace(unknown, permission=AclPermission.DENY)
    assert found == AclsResult(0, "", (RULE, unknown))


@in_every_version(range(1, 4))
def test_acls_are_created_and_answered_in_order(version: int) -> None:
    call = create_acls([RULE])
    request = asked(call, adm.CreateAclsRequest, version)
    (creation,) = request.creations
    assert (creation.resource_type, creation.resource_name) == (2, "t")
    assert (creation.resource_pattern_type, creation.operation) == (4, 3)
    assert (creation.principal, creation.host, creation.permission_type) == ("User:a", "*", 3)
    result = adm.CreateAclsResponse.AclCreationResult(error_code=54, error_message="off")
    answer = adm.CreateAclsResponse(results=[result])
    assert answered(call, answer, version) == (NamedError("t", 54, "off"),)


def test_a_rule_that_was_not_understood_is_never_created() -> None:
    with pytest.raises(UnsendableError, match="is none of a cluster"):
        create_acls([replace(RULE, operation=AclOperation.UNKNOWN)])


@in_every_version(range(1, 4))
def test_exactly_the_named_acls_are_deleted(version: int) -> None:
    call = delete_acls([RULE])
    request = asked(call, adm.DeleteAclsRequest, version)
    (only,) = request.filters
    assert (only.resource_type_filter, only.resource_name_filter) == (2, "t")
    assert (only.pattern_type_filter, only.operation, only.permission_type) == (4, 3, 3)
    assert (only.principal_filter, only.host_filter) == ("User:a", "*")
    result = adm.DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=31, error_message="no", matching_acls=[]
    )
    answer = adm.DeleteAclsResponse(filter_results=[result])
    assert answered(call, answer, version) == (NamedError("t", 31, "no"),)
    with pytest.raises(UnsendableError, match="is none of a cluster"):
        delete_acls([replace(RULE, operation=AclOperation.ANY)])


def test_producers_of_partitions_are_described() -> None:
    tp = TopicPartition("t", 1)
    call = describe_producers([tp])
    kind = adm.DescribeProducersResponse.TopicResponse
    state = kind.PartitionResponse.ProducerState(
        producer_id=9, producer_epoch=0, last_sequence=4, last_timestamp=1_000,
        coordinator_epoch=0, current_txn_start_offset=-1,
    )  # fmt: skip
    part = kind.PartitionResponse(
        partition_index=1, error_code=0, error_message=None, active_producers=[state]
    )
    answer = adm.DescribeProducersResponse(topics=[kind(name="t", partitions=[part])])
    found = answered(call, answer, 0)
    assert found == (ProducersOfPartition(tp, 0, (ActiveProducer(9, 0, 1_000, -1),)),)


def test_the_controllers_clock_is_that_of_the_quorums_leader() -> None:
    call = controller_time()
    (asked_for,) = asked(call, adm.DescribeQuorumRequest, 1).topics
    assert asked_for.topic_name == "__cluster_metadata"
    kind = adm.DescribeQuorumResponse.TopicData
    state = kind.PartitionData.ReplicaState

    def answer(code: int = 0, of_partition: int = 0) -> ControllerTime:
        voters = [
            state(replica_id=it, last_caught_up_timestamp=1_000 * it, last_fetch_timestamp=-1)
            for it in (2, 1)
        ]
        part = kind.PartitionData(
            partition_index=0, error_code=of_partition, leader_id=1, leader_epoch=4,
            high_watermark=9, current_voters=[] if of_partition else voters, observers=[],
        )  # fmt: skip
        topics = [] if code else [kind(topic_name="__cluster_metadata", partitions=[part])]
        return answered(call, adm.DescribeQuorumResponse(error_code=code, topics=topics), 1)

    assert (answer(), answer(31), answer(0, 6)) == (
        ControllerTime(0, 1_000), ControllerTime(31, -1), ControllerTime(6, -1),
    )  # fmt: skip


def test_transactional_ids_of_producers_are_listed() -> None:
    call = list_transactions([9])
    request = asked(call, adm.ListTransactionsRequest, 0)
    assert request.producer_id_filters == [9]
    kind = adm.ListTransactionsResponse.TransactionState
    state = kind(transactional_id="till", producer_id=9, transaction_state="Ongoing")
    answer = adm.ListTransactionsResponse(error_code=0, transaction_states=[state])
    assert answered(call, answer, 0) == {9: "till"}


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_only_the_schemas_of_the_library_are_loaded_and_who_asks_for_the_client_gets_it() -> None:
    code = "import sys, mm2py.protocol.messages; print('kafka.net' in sys.modules)\n"
    assert run(code + "import kafka; print(kafka.KafkaProducer.__name__)") == "False\nKafkaProducer"


def test_a_library_that_is_loaded_already_is_used_as_it_is() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import kafka, mm2py.protocol.messages as m; print(m.metadata(None).api_key, kafka.KafkaProducer.__name__)"
    )
    assert run(code) == "3 KafkaProducer"


def test_a_quiet_package_loads_the_real_one_when_a_name_is_missing() -> None:
    package = QuietPackage("colorsys")
    package.__spec__ = find_spec("colorsys")
    assert callable(package.rgb_to_hsv)
    with pytest.raises(AttributeError, match="__version__"):
        _ = package.__version__
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = QuietPackage("nothing").no_such_name


def test_preparing_twice_changes_nothing() -> None:
    before = sys.modules["kafka"]
    prepare_package()
    assert sys.modules["kafka"] is before


def test_every_constant_has_the_name_of_its_code() -> None:
    codes = {name: it for name, it in vars(error_codes).items() if isinstance(it, int)}
    assert len(codes) > 50
    assert {name: error_name(it) for name, it in codes.items()} == {name: name for name in codes}


def test_names_and_retriable_flags_agree_with_another_table() -> None:
    from kafka import errors as theirs  # after our schemas, which load less of it

    renamed = {
        4: "invalidfetchrequest", 6: "notleaderforpartition", 10: "messagesizetoolarge", 2: "corruptrecord",
        39: "invalidreplicationassignment", 13: "networkexception", 40: "invalidconfiguration",
    }  # fmt: skip
    for code in range(1, 121):  # above it knows none
        other = theirs.for_code(code)
        spelled = error_name(code).replace("_", "").lower().removesuffix("exception")
        name = renamed.get(code, spelled.removesuffix("error"))
        assert other.__name__.lower().removesuffix("error") == name
        # kafka-python does not retry CORRUPT_MESSAGE, Java does.
        assert (code in RETRIABLE) == (other.retriable or code == 2), code


def test_server_error_says_whether_a_retry_helps() -> None:
    again = server_error(6)
    assert isinstance(again, RetriableServerError)
    assert (again.code, str(again)) == (6, "NOT_LEADER_OR_FOLLOWER (6)")
    final = server_error(10, "too big")
    assert isinstance(final, FatalServerError)
    assert str(final).startswith("MESSAGE_TOO_LARGE (10): too big; raise max.message.bytes")
    assert "bring its brokers back" in str(server_error(19))


def test_a_code_newer_than_the_table_is_fatal_and_keeps_its_number() -> None:
    error = server_error(4711)
    assert isinstance(error, FatalServerError)
    assert error.name == "ERROR_4711"
    assert error_name(-1) == "UNKNOWN_SERVER_ERROR"


def test_a_session_timeout_that_is_refused_names_the_brokers_limits() -> None:
    assert "group.max.session.timeout.ms" in server_error(26).remedy


def test_plain_is_one_message_that_an_empty_answer_ends() -> None:
    exchange = SaslExchange.with_password("PLAIN", "u=,", "p,=ä")
    assert exchange.message() == "u=,\0u=,\0p,=ä".encode()
    exchange.take(b"")
    assert exchange.is_done


def test_scram_names_are_escaped() -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-256", "a=b,c", "p")
    assert exchange.message().startswith(b"n,,n=a=3Db=2Cc,r=")


@pytest.mark.parametrize(
    "answer", [b"", b"junk", b"e=unknown-user", b"r=other,s=c2FsdA==,i=4096", b"r=,i=4096", b"\xff"]
)
def test_a_scram_answer_that_is_no_challenge_is_refused(answer: bytes) -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-512", "u", "p")
    exchange.message()
    with pytest.raises(AuthenticationError, match="SCRAM-SHA-512 exchange is wrong"):
        exchange.take(answer)


def test_a_broker_that_does_not_know_the_password_is_refused() -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-256", "u", "p")
    nonce = exchange.message().split(b"r=")[1]
    exchange.take(b"r=" + nonce + b"more,s=c2FsdA==,i=4096")
    assert b",p=" in exchange.message()
    with pytest.raises(AuthenticationError):
        exchange.take(b"v=AAAA")


def test_a_refused_token_is_answered_before_the_broker_gives_its_error() -> None:
    exchange = SaslExchange.with_token("t", {"logicalCluster": "lkc"})
    assert exchange.message() == b"n,,\x01auth=Bearer t\x01logicalCluster=lkc\x01\x01"
    exchange.take(b'{"status":"invalid_token"}')
    assert not exchange.is_done
    assert exchange.message() == b"\x01"


@pytest.mark.parametrize("count", [b"0", b"1", b"4095", b"1000001", b"9" * 5_000])
def test_a_broker_that_asks_for_a_weak_or_an_endless_proof_gets_none(count: bytes) -> None:
    exchange = SaslExchange.with_password("SCRAM-SHA-256", "u", "p")
    nonce = exchange.message().rpartition(b"r=")[2]
    with pytest.raises(AuthenticationError, match="SCRAM iterations, 4096 to 1000000"):
        exchange.take(b"r=" + nonce + b"more,s=c2FsdA==,i=" + count)


@pytest.mark.parametrize(
    ("known", "now", "is_another"),
    [
        (named_id("a", None), named_id("b", NO_TOPIC_ID), True),
        (named_id("a", None), named_id("a", NO_TOPIC_ID), False),
        (named_id("a", None), named_id("b", ID), False),  # the brokers were upgraded
        (named_id("a", None), NO_TOPIC_ID, False),
        (named_id("a", ID), named_id("b", ID), False),
    ],
)
def test_a_topic_of_brokers_without_ids_is_another_one_by_its_name_alone(
    known: bytes, now: bytes, *, is_another: bool
) -> None:
    assert is_another_topic(known, now) is is_another_topic(now, known) is is_another
    assert len(known) == len(NO_TOPIC_ID)
