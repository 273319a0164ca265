"""Fetch and Produce against the schema classes of kafka-python, every version both ways."""

import struct
from uuid import UUID

import pytest

from mm2py.errors import ProtocolError
from mm2py.protocol.fetch import (
    FETCH_VERSIONS,
    FetchedPartition,
    FetchPartition,
    ForgottenTopic,
    decode_fetch,
    encode_fetch,
)
from mm2py.protocol.produce import (
    ProducedPartition,
    RecordError,
    acknowledgements,
    decode_produce,
    encode_produce,
)
from mm2py.protocol.schema import consumer_schema as con
from mm2py.protocol.schema import producer_schema as prod
from mm2py.protocol.topics import NO_TOPIC_ID
from tests.unit.protocol.schema_library import body, in_every_version

VERSIONS = range(FETCH_VERSIONS[0], FETCH_VERSIONS[1] + 1)
A, B = bytes(range(16)), bytes(range(16, 32))
Topic = con.FetchResponse.FetchableTopicResponse
Part = Topic.PartitionData


@in_every_version(VERSIONS)
def test_a_request_reads_back_with_another_library(version: int) -> None:
    raw = encode_fetch(
        version,
        99,
        "client",
        partitions=[
            FetchPartition("a", A, 0, 2**40, 5, 4, 3, 1000),
            FetchPartition("b", B, 7, 1),
            FetchPartition("a", A, 1, 2),
        ],
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=2**30,
        isolation_level=1,
        session_id=11,
        session_epoch=12,
        forgotten=[ForgottenTopic("b", B, [1, 2])],
        rack_id="rack",
    )
    request = con.FetchRequest.decode(raw[4:], version=version, header=True)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 2**30)
    assert (request.replica_id, request.isolation_level) == (-1, 1)
    assert request.session_id == (11 if version >= 7 else 0)
    assert request.session_epoch == (12 if version >= 7 else -1)
    assert request.rack_id == ("rack" if version >= 11 else "")
    first, second = request.topics
    if version >= 13:
        assert (first.topic_id, second.topic_id) == (UUID(bytes=A), UUID(bytes=B))
    else:
        assert (first.topic, second.topic) == ("a", "b")
    part = first.partitions[0]
    assert [p.partition for p in first.partitions] == [0, 1]
    assert (part.fetch_offset, part.partition_max_bytes) == (2**40, 1000)
    assert part.current_leader_epoch == (5 if version >= 9 else -1)
    assert part.last_fetched_epoch == (4 if version >= 12 else -1)
    assert part.log_start_offset == (3 if version >= 5 else -1)
    forgotten = request.forgotten_topics_data
    assert [list(topic.partitions) for topic in forgotten] == ([[1, 2]] if version >= 7 else [])
    request.with_header(99, "client")
    assert request.encode(version, header=True, framed=True) == raw, "no byte more or less"


def answer(version: int) -> con.FetchResponse:
    aborted = [Part.AbortedTransaction(producer_id=n, first_offset=n + 1) for n in (5, 7)]
    full = Part(
        partition_index=3, error_code=0, high_watermark=2**40, last_stable_offset=2**39,
        log_start_offset=17, aborted_transactions=aborted, preferred_read_replica=2,
        records=b"r" * 200,
    )  # fmt: skip
    empty = Part(
        partition_index=4, error_code=6, high_watermark=-1, last_stable_offset=-1,
        log_start_offset=-1, aborted_transactions=None, preferred_read_replica=-1, records=None,
    )  # fmt: skip
    if version >= 12:
        empty.tags = {"diverging_epoch", "current_leader"}
        empty.diverging_epoch = Part.EpochEndOffset(epoch=1, end_offset=50)
        empty.current_leader = Part.LeaderIdAndEpoch(leader_id=3, leader_epoch=9)
    topic = (
        Topic(topic_id=UUID(bytes=A), partitions=[full, empty])
        if version >= 13
        else Topic(topic="a", partitions=[full, empty])
    )
    message = con.FetchResponse(
        throttle_time_ms=12, error_code=70, session_id=1234, responses=[topic, topic]
    )
    if version >= 16:
        message.tags = {"node_endpoints"}
        message.node_endpoints = [
            con.FetchResponse.NodeEndpoint(node_id=3, host="h", port=9092, rack="r")
        ]
    return message


@in_every_version(VERSIONS)
def test_an_answer_of_another_library_is_read(version: int) -> None:
    found = decode_fetch(version, body(answer(version), version))
    topic, topic_id = ("", A) if version >= 13 else ("a", NO_TOPIC_ID)
    five, flexible = version >= 5, version >= 12
    assert found.throttle_ms == 12
    assert (found.error_code, found.session_id) == ((70, 1234) if version >= 7 else (0, 0))
    start, replica = (17 if five else -1), (2 if version >= 11 else -1)
    aborted, records = [(5, 6), (7, 8)], memoryview(b"r" * 200)
    full = FetchedPartition(topic, topic_id, 3, 0, 2**40, 2**39, start, aborted, replica, records)
    cut, leader = ((1, 50), (3, 9)) if flexible else (None, None)
    empty = FetchedPartition(topic, topic_id, 4, 6, -1, -1, -1, [], -1, None, cut, leader)
    assert found.partitions == [full, empty, full, empty]


@in_every_version(VERSIONS)
def test_records_are_a_writable_view_of_the_buffer(version: int) -> None:
    raw = body(answer(version), version)
    records = decode_fetch(version, raw).partitions[0].records
    assert records is not None
    records[0] = 0x21
    assert bytes(raw).count(b"!" + b"r" * 199) == 1


@in_every_version(VERSIONS)
def test_a_cut_answer_is_a_protocol_error(version: int) -> None:
    raw = body(answer(version), version)
    for end in range(len(raw)):
        with pytest.raises(ProtocolError, match="cannot be read"):
            decode_fetch(version, raw[:end])


def test_tags_without_meaning_for_us_change_nothing() -> None:
    message = answer(12)
    parts = [part for topic in message.responses for part in topic.partitions]
    full, empty = parts[:2]
    full.tags = {"snapshot_id"}
    full.snapshot_id = Part.SnapshotId(end_offset=1, epoch=2)
    empty.diverging_epoch = Part.EpochEndOffset(epoch=-1, end_offset=-1)
    found = decode_fetch(12, body(message, 12)).partitions
    assert [part.diverging for part in found] == [None] * 4


PRODUCE = range(3, 13)
ProduceTopic = prod.ProduceResponse.TopicProduceResponse
ProducePart = ProduceTopic.PartitionProduceResponse


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("size", [1, 126, 127, 16_382, 16_383, 300_000])
def test_a_produce_request_reads_back_with_another_library(version: int, size: int) -> None:
    one, two, three = bytearray(b"x" * size), memoryview(bytearray(b"yy")), bytearray(b"z")
    parts = encode_produce(
        version,
        77,
        "me",
        {("a", 0): one, ("b", 3): two, ("a", 5): three},
        transactional_id="tid" if version % 2 else None,
        timeout_ms=1234,
    )
    assert one is parts[1], "batches are not copied"
    raw = b"".join(parts)
    assert struct.unpack(">ihhih", raw[:14]) == (len(raw) - 4, 0, version, 77, 2)
    request = prod.ProduceRequest.decode(raw[4:], version=version, header=True)
    assert (request.acks, request.timeout_ms) == (-1, 1234)
    assert request.transactional_id == ("tid" if version % 2 else None)
    found = {
        (t.name, p.index): bytes(p.records or b"")
        for t in request.topic_data
        for p in t.partition_data
    }
    assert found == {("a", 0): one, ("a", 5): three, ("b", 3): two}
    request.with_header(77, "me")
    assert request.encode(version, header=True, framed=True) == raw, "no byte more or less"


def produced(
    index: int, code: int, base: int = -1, time_ms: int = -1, start: int = -1
) -> ProducePart:
    return ProducePart(
        index=index, error_code=code, base_offset=base, log_append_time_ms=time_ms,
        log_start_offset=start,
    )  # fmt: skip


def produce_answer(version: int) -> prod.ProduceResponse:
    refused, moved = produced(4, 87), produced(9, 6)
    refused.error_message = "refused"
    refused.record_errors = [
        ProducePart.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
        for index, text in ((2, "null key"), (3, None))
    ]
    parts = [produced(1, 0, 2**40, 17, 5), refused, moved]
    topic = ProduceTopic(name="a", partition_responses=parts)
    message = prod.ProduceResponse(responses=[topic], throttle_time_ms=12)
    if version >= 10:
        moved.tags = {"current_leader"}
        moved.current_leader = ProducePart.LeaderIdAndEpoch(leader_id=3, leader_epoch=8)
        message.tags = {"node_endpoints"}
        message.node_endpoints = [
            prod.ProduceResponse.NodeEndpoint(node_id=3, host="h", port=9092, rack=None)
        ]
    return message


@in_every_version(PRODUCE)
def test_a_produce_answer_of_another_library_is_read(version: int) -> None:
    found = decode_produce(version, body(produce_answer(version), version))
    five, eight, ten = version >= 5, version >= 8, version >= 10
    errors = (RecordError(2, "null key"), RecordError(3, "")) if eight else ()
    assert found.throttle_ms == 12
    assert found.partitions == [
        ProducedPartition("a", 1, 0, 2**40, 17, 5 if five else -1),
        ProducedPartition("a", 4, 87, -1, -1, -1, errors, "refused" if eight else ""),
        ProducedPartition("a", 9, 6, -1, -1, -1, current_leader=(3, 8) if ten else None),
    ]


@in_every_version(PRODUCE)
def test_a_cut_produce_answer_is_a_protocol_error(version: int) -> None:
    raw = body(produce_answer(version), version)
    for end in range(len(raw)):
        with pytest.raises(ProtocolError, match="cannot be read"):
            decode_produce(version, raw[:end])


def plain(
    version: int, partitions: int, topics: int = 2, *, error: int = 0, throttle: int = 0
) -> memoryview:
    parts = [
        [produced(p, 0, 1_000 * t + p, start=3) for p in range(partitions)] for t in range(topics)
    ]
    parts[-1][-1].error_code = error
    responses = [
        ProduceTopic(name=f"topic-{t}", partition_responses=it) for t, it in enumerate(parts)
    ]
    return body(prod.ProduceResponse(responses=responses, throttle_time_ms=throttle), version)


@pytest.mark.parametrize("version", [9, 10, 11, 12])
@pytest.mark.parametrize("partitions", [1, 5, 200])
def test_the_short_way_reads_what_the_complete_reader_reads(version: int, partitions: int) -> None:
    raw = plain(version, partitions)
    found = decode_produce(version, raw).partitions
    assert acknowledgements(version, raw) == [
        ((part.topic, part.partition), part.base_offset) for part in found
    ]


@in_every_version(PRODUCE)
def test_the_short_way_leaves_everything_else_to_the_complete_reader(version: int) -> None:
    assert acknowledgements(version, body(produce_answer(version), version)) is None


def test_the_short_way_sees_one_error_one_throttle_and_each_cut() -> None:
    assert acknowledgements(12, plain(12, 3, error=6)) is None
    assert acknowledgements(12, plain(12, 3, throttle=1)) is None
    whole = plain(12, 3)
    for end in range(len(whole)):
        assert acknowledgements(12, whole[:end]) is None


def test_a_count_that_no_answer_could_hold_costs_no_memory() -> None:
    raw = memoryview(b"\0\x02\x02t" + b"\xff\xff\xff\xff\x0f" + bytes(40))
    assert acknowledgements(12, raw) is None
    with pytest.raises(ProtocolError):
        decode_produce(12, raw)
    with pytest.raises(ProtocolError):
        decode_produce(8, memoryview(b"\0\0\0\x01\0\x01t\x7f\xff\xff\xff" + bytes(40)))
