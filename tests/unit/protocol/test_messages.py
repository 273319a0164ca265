"""Every builder encodes and decodes in every version of its range."""

import struct
from uuid import UUID

import pytest
from kafka.protocol.api_message import ApiMessage

from mm2py.errors import ProtocolError
from mm2py.protocol import messages as m
from mm2py.protocol.call import Call
from mm2py.protocol.schema import admin_schema as adm
from mm2py.protocol.schema import consumer_schema as con
from mm2py.protocol.schema import metadata_schema as md
from mm2py.protocol.schema import producer_schema as prod
from mm2py.protocol.topics import (
    NO_TOPIC_ID,
    BrokerNode,
    CreatedTopic,
    DeletedRecords,
    EpochEnd,
    EpochQuery,
    FinalizedFeature,
    ListedOffset,
    NamedError,
    NewTopic,
    OffsetQuery,
    PartitionMetadata,
    ProducerIdResult,
    TopicMetadata,
)
from mm2py.types import TopicPartition

ID = bytes(range(16))


def body(answer: ApiMessage, version: int) -> memoryview:
    answer.API_VERSION = version
    answer.with_header(7)
    return memoryview(answer.encode(header=True))[4:]


def versions(call: Call[object]) -> range:
    return range(call.min_version, call.max_version + 1)


def test_every_request_starts_with_its_size_key_version_and_correlation_id() -> None:
    calls: list[Call[object]] = [
        m.api_versions(), m.metadata(None), m.metadata([]), m.metadata(["t"]),
        m.list_offsets([OffsetQuery("t", 0, -1)]), m.offset_for_leader_epoch([EpochQuery("t", 0, 1)]),
        m.create_topics([NewTopic("t", 1, 1)]), m.create_partitions({"t": 3}), m.delete_topics(["t"]),
        m.delete_records({TopicPartition("t", 0): 5}), m.init_producer_id(),
    ]  # fmt: skip
    for call in calls:
        for version in versions(call):
            raw = call.encode(version, 77, "me")
            size, key, sent, correlation_id = struct.unpack_from(">ihhi", raw)
            assert (size, key, sent, correlation_id) == (len(raw) - 4, call.api_key, version, 77)
        with pytest.raises(ValueError, match="is outside v"):
            call.encode(call.max_version + 1, 1, "me")


@pytest.mark.parametrize("version", range(5))
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
    found = m.api_versions().decode(version, body(answer, version))
    assert (found.error_code, found.versions) == (0, {3: (0, 13)})
    expected = (FinalizedFeature("transaction.version", 1, 2),) if version >= 3 else ()
    assert found.finalized_features == expected


def test_api_versions_of_an_old_broker_is_read_in_its_first_layout() -> None:
    answer = md.ApiVersionsResponse(
        error_code=35,
        api_keys=[md.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)],
    )
    found = m.api_versions().decode(4, body(answer, 0))
    assert (found.error_code, found.versions) == (35, {18: (0, 2)})


@pytest.mark.parametrize("version", range(1, 14))
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
    found = m.metadata(None).decode(version, body(answer, version))
    assert found.brokers == (BrokerNode(1, "h", 9092, "r"),)
    assert found.cluster_id == ("c" if version >= 2 else None)
    epoch, topic_id = (5 if version >= 7 else -1), (ID if version >= 10 else NO_TOPIC_ID)
    assert found.topics == (
        TopicMetadata("t", topic_id, True, (PartitionMetadata(2, 1, epoch, (1, 2), (1,), 9),), 0),
        TopicMetadata("gone", NO_TOPIC_ID, False, (), 3),
    )
    assert (found.controller_id, found.error_code) == (1, 0)


@pytest.mark.parametrize("version", range(4, 14))
def test_metadata_never_creates_topics_unless_asked(version: int) -> None:
    raw = m.metadata(["t"]).encode(version, 1, "me")
    request = md.MetadataRequest.decode(raw[4:], version=version, header=True)
    assert request.allow_auto_topic_creation is False
    assert request.topics is not None
    assert [topic.name for topic in request.topics] == ["t"]
    assert m.metadata(["t"]).min_version == 4
    everything = m.metadata(None).encode(version, 1, "me")
    assert md.MetadataRequest.decode(everything[4:], version=version, header=True).topics is None


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_groups_by_topic_and_is_read(version: int) -> None:
    call = m.list_offsets(
        [OffsetQuery("b", 1, -2), OffsetQuery("a", 0, 5), OffsetQuery("b", 2, -1)]
    )
    raw = call.encode(version, 1, "me")
    request = con.ListOffsetsRequest.decode(raw[4:], version=version, header=True)
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
    assert call.decode(version, body(answer, version)) == (ListedOffset("b", 1, 0, 5, 77, epoch),)


def test_list_offsets_needs_newer_versions_for_newer_questions() -> None:
    assert m.list_offsets([OffsetQuery("t", 0, -3)]).min_version == 7
    assert m.list_offsets([OffsetQuery("t", 0, -1)], isolation_level=1).min_version == 2
    assert m.list_offsets([]).min_version == 1


@pytest.mark.parametrize("version", [2, 3, 4])
def test_ends_of_epochs_are_read(version: int) -> None:
    call = m.offset_for_leader_epoch([EpochQuery("t", 1, 4, 6)])
    request = con.OffsetForLeaderEpochRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    part = request.topics[0].partitions[0]
    assert (part.partition, part.leader_epoch, part.current_leader_epoch) == (1, 4, 6)
    assert request.replica_id == (-1 if version >= 3 else -2)
    kind = con.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
    end = kind.EpochEndOffset(error_code=0, partition=1, leader_epoch=4, end_offset=99)
    answer = con.OffsetForLeaderEpochResponse(topics=[kind(topic="t", partitions=[end])])
    assert call.decode(version, body(answer, version)) == (EpochEnd("t", 1, 0, 4, 99),)


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_sends_configs_and_reads_each_outcome(version: int) -> None:
    call = m.create_topics([NewTopic("t", 3, 2, {"a": "b"})], validate_only=True, timeout_ms=9)
    request = adm.CreateTopicsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    (topic,) = request.topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t", 3, 2)
    assert [(config.name, config.value) for config in topic.configs] == [("a", "b")]
    assert (request.validate_only, request.timeout_ms) == (True, 9)
    result = adm.CreateTopicsResponse.CreatableTopicResult(
        name="t", topic_id=UUID(bytes=ID), error_code=36, error_message="exists",
        num_partitions=3, replication_factor=2, configs=None,
    )  # fmt: skip
    found = call.decode(version, body(adm.CreateTopicsResponse(topics=[result]), version))
    counts = (3, 2) if version >= 5 else (-1, -1)
    topic_id = ID if version >= 7 else NO_TOPIC_ID
    assert found == (CreatedTopic("t", topic_id, 36, "exists", *counts),)
    assert m.create_topics([NewTopic("t")]).min_version == 4


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_sends_the_total(version: int) -> None:
    call = m.create_partitions({"t": 7})
    request = adm.CreatePartitionsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    assert [(topic.name, topic.count, topic.assignments) for topic in request.topics] == [
        ("t", 7, None)
    ]
    result = adm.CreatePartitionsResponse.CreatePartitionsTopicResult(name="t", error_code=37)
    answer = adm.CreatePartitionsResponse(results=[result])
    assert call.decode(version, body(answer, version)) == (NamedError("t", 37),)


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_sends_names_in_every_version(version: int) -> None:
    call = m.delete_topics(["t"])
    request = adm.DeleteTopicsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    names = [topic.name for topic in request.topics] if version >= 6 else request.topic_names
    assert names == ["t"]
    result = adm.DeleteTopicsResponse.DeletableTopicResult(name="t", error_code=3)
    answer = adm.DeleteTopicsResponse(responses=[result])
    assert call.decode(version, body(answer, version)) == (NamedError("t", 3),)


@pytest.mark.parametrize("version", range(3))
def test_delete_records_is_sent_and_read(version: int) -> None:
    call = m.delete_records({TopicPartition("t", 1): 50})
    request = adm.DeleteRecordsRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    assert request.topics[0].partitions[0].offset == 50
    kind = adm.DeleteRecordsResponse.DeleteRecordsTopicResult
    part = kind.DeleteRecordsPartitionResult(partition_index=1, low_watermark=50, error_code=0)
    answer = adm.DeleteRecordsResponse(topics=[kind(name="t", partitions=[part])])
    assert call.decode(version, body(answer, version)) == (DeletedRecords("t", 1, 50, 0),)


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_is_read(version: int) -> None:
    answer = prod.InitProducerIdResponse(error_code=0, producer_id=2**40, producer_epoch=3)
    assert m.init_producer_id().decode(version, body(answer, version)) == ProducerIdResult(
        0, 2**40, 3
    )
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
        with pytest.raises(ValueError, match="a request needs a"):
            build()
