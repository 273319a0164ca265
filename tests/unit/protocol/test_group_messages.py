"""Coordinator requests in every version."""

import pytest
from kafka.protocol.api_message import ApiMessage

from mm2py.errors import ProtocolError
from mm2py.protocol import group_messages as g
from mm2py.protocol.group_messages import offset_commit
from mm2py.protocol.groups import (
    CoordinatorResult,
    CoordinatorType,
    DescribedGroup,
    FetchedOffset,
    FetchedOffsets,
    GroupMember,
    GroupProtocol,
    JoinedMember,
    JoinResult,
    ListedGroup,
    ListedGroups,
    OffsetToCommit,
    SyncResult,
)
from mm2py.protocol.schema import admin_schema as adm
from mm2py.protocol.schema import consumer_schema as con
from mm2py.protocol.schema import metadata_schema as md
from mm2py.protocol.topics import BrokerNode, PartitionOutcome
from mm2py.types import TopicPartition


def body(answer: ApiMessage, version: int) -> memoryview:
    answer.API_VERSION = version
    answer.with_header(7)
    return memoryview(answer.encode(header=True))[4:]


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_found_in_both_layouts(version: int) -> None:
    call = g.find_coordinator("grp")
    request = md.FindCoordinatorRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    assert (request.coordinator_keys if version >= 4 else [request.key]) == ["grp"]
    coordinator = md.FindCoordinatorResponse.Coordinator(
        key="grp", node_id=1, host="h", port=9092, error_code=0, error_message=None
    )
    answer = (
        md.FindCoordinatorResponse(coordinators=[coordinator])
        if version >= 4
        else md.FindCoordinatorResponse(error_code=0, node_id=1, host="h", port=9092)
    )
    found = call.decode(version, body(answer, version))
    assert found == CoordinatorResult(0, "", BrokerNode(1, "h", 9092))
    assert g.find_coordinator("t", CoordinatorType.TRANSACTION).min_version == 1


@pytest.mark.parametrize("version", range(1, 10))
def test_a_first_join_is_answered_with_a_member_id_to_join_with(version: int) -> None:
    call = g.join_group(
        "grp",
        "",
        protocol_type="connect",
        protocols=[GroupProtocol("sessioned", b"meta")],
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
    )
    request = con.JoinGroupRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    assert (request.protocol_type, request.member_id) == ("connect", "")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (10_000, 60_000)
    assert [(p.name, bytes(p.metadata or b"")) for p in request.protocols] == [
        ("sessioned", b"meta")
    ]
    answer = con.JoinGroupResponse(
        error_code=79, generation_id=-1, protocol_name="" if version < 7 else None, leader="",
        member_id="me-1", members=[],
    )  # fmt: skip
    found = call.decode(version, body(answer, version))
    assert found == JoinResult(79, -1, "", "", "me-1", (), False)


@pytest.mark.parametrize("version", range(1, 10))
def test_the_leader_sees_all_members(version: int) -> None:
    member = con.JoinGroupResponse.JoinGroupResponseMember(
        member_id="m", group_instance_id=None, metadata=b"meta"
    )
    answer = con.JoinGroupResponse(
        error_code=0, generation_id=4, protocol_type="connect", protocol_name="sessioned",
        leader="m", member_id="m", members=[member],
    )  # fmt: skip
    call = g.join_group(
        "grp", "m", protocol_type="connect", protocols=[GroupProtocol("sessioned", b"")],
        session_timeout_ms=1, rebalance_timeout_ms=1,
    )  # fmt: skip
    found = call.decode(version, body(answer, version))
    assert found.members == (JoinedMember("m", None, b"meta"),)
    assert (found.generation_id, found.protocol_name, found.leader) == (4, "sessioned", "m")


@pytest.mark.parametrize("version", range(6))
def test_sync_hands_in_assignments_and_gets_ones_own(version: int) -> None:
    call = g.sync_group(
        "grp",
        4,
        "m",
        protocol_type="connect",
        protocol_name="p",
        assignments={"m": b"a", "n": b"b"},
    )
    request = con.SyncGroupRequest.decode(
        call.encode(version, 1, "me")[4:], version=version, header=True
    )
    assert [(a.member_id, bytes(a.assignment or b"")) for a in request.assignments] == [
        ("m", b"a"),
        ("n", b"b"),
    ]
    answer = con.SyncGroupResponse(error_code=0, assignment=b"mine", protocol_name="p")
    found = call.decode(version, body(answer, version))
    assert found == SyncResult(0, "p" if version >= 5 else "", b"mine")


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_gives_the_error_code(version: int) -> None:
    call = g.heartbeat("grp", 4, "m")
    answer = con.HeartbeatResponse(error_code=27)
    assert call.decode(version, body(answer, version)) == 27
    raw = call.encode(version, 1, "me")
    request = con.HeartbeatRequest.decode(raw[4:], version=version, header=True)
    assert (request.group_id, request.generation_id, request.member_id) == ("grp", 4, "m")
    assert g.heartbeat("grp", 4, "m", group_instance_id="i").min_version == 3


@pytest.mark.parametrize("version", range(6))
def test_leaving_names_the_member_in_every_version(version: int) -> None:
    call = g.leave_group("grp", "m", reason="stopping")
    raw = call.encode(version, 1, "me")
    request = con.LeaveGroupRequest.decode(raw[4:], version=version, header=True)
    named = [m.member_id for m in request.members] if version >= 3 else [request.member_id]
    assert named == ["m"]
    member = con.LeaveGroupResponse.MemberResponse(
        member_id="m", group_instance_id=None, error_code=25
    )
    answer = con.LeaveGroupResponse(error_code=0, members=[member])
    assert call.decode(version, body(answer, version)) == (25 if version >= 3 else 0)


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described(version: int) -> None:
    kind = adm.DescribeGroupsResponse.DescribedGroup
    member = kind.DescribedGroupMember(
        member_id="m", group_instance_id=None, client_id="c", client_host="/h",
        member_metadata=b"x", member_assignment=b"y",
    )  # fmt: skip
    group = kind(
        error_code=0, group_id="grp", group_state="Stable", protocol_type="consumer",
        protocol_data="range", members=[member],
    )  # fmt: skip
    call = g.describe_groups(["grp"])
    found = call.decode(version, body(adm.DescribeGroupsResponse(groups=[group]), version))
    assert found == (
        DescribedGroup(
            "grp", 0, "", "Stable", "consumer", "range",
            (GroupMember("m", None, "c", "/h", b"x", b"y"),),
        ),
    )  # fmt: skip
    raw = call.encode(version, 1, "me")
    request = adm.DescribeGroupsRequest.decode(raw[4:], version=version, header=True)
    assert request.groups == ["grp"]


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(version: int) -> None:
    group = adm.ListGroupsResponse.ListedGroup(
        group_id="grp", protocol_type="consumer", group_state="Stable", group_type="classic"
    )
    call = g.list_groups()
    found = call.decode(
        version, body(adm.ListGroupsResponse(error_code=0, groups=[group]), version)
    )
    state, kind = ("Stable" if version >= 4 else ""), ("classic" if version >= 5 else "")
    assert found == ListedGroups(0, (ListedGroup("grp", "consumer", state, kind),))
    assert len(call.encode(version, 1, "me")) > 10
    assert g.list_groups(["Stable"]).min_version == 4


@pytest.mark.parametrize("version", range(1, 10))
def test_committed_offsets_are_fetched_in_both_layouts(version: int) -> None:
    call = g.offset_fetch("grp", [TopicPartition("t", 1), TopicPartition("t", 0)])
    raw = call.encode(version, 1, "me")
    request = con.OffsetFetchRequest.decode(raw[4:], version=version, header=True)
    topics = request.groups[0].topics if version >= 8 else request.topics
    assert topics is not None
    assert [(t.name, t.partition_indexes) for t in topics] == [("t", [1, 0])]
    if version >= 8:
        group = con.OffsetFetchResponse.OffsetFetchResponseGroup
        topic = group.OffsetFetchResponseTopics
        part = topic.OffsetFetchResponsePartitions(
            partition_index=1,
            committed_offset=7,
            committed_leader_epoch=3,
            metadata="",
            error_code=0,
        )
        answer = con.OffsetFetchResponse(
            groups=[group(group_id="grp", topics=[topic(name="t", partitions=[part])])]
        )
    else:
        old = con.OffsetFetchResponse.OffsetFetchResponseTopic
        old_part = old.OffsetFetchResponsePartition(
            partition_index=1,
            committed_offset=7,
            committed_leader_epoch=3,
            metadata="",
            error_code=0,
        )
        answer = con.OffsetFetchResponse(topics=[old(name="t", partitions=[old_part])])
    epoch = 3 if version >= 5 else -1
    found = call.decode(version, body(answer, version))
    assert found == FetchedOffsets(0, (FetchedOffset("t", 1, 7, epoch, "", 0),))


@pytest.mark.parametrize("version", range(2, 10))
def test_all_offsets_of_a_group_are_asked_for_with_null(version: int) -> None:
    raw = g.offset_fetch("grp").encode(version, 1, "me")
    request = con.OffsetFetchRequest.decode(raw[4:], version=version, header=True)
    assert (request.groups[0].topics if version >= 8 else request.topics) is None
    assert g.offset_fetch("grp", require_stable=True).min_version == 7


@pytest.mark.parametrize("version", range(2, 10))
def test_offsets_are_committed_below_the_version_that_needs_topic_ids(version: int) -> None:
    call = offset_commit(
        "grp", [OffsetToCommit("t", 1, 7, 3, "note"), OffsetToCommit("u" * 200, 0, 1 << 40)]
    )
    raw = call.encode(version, 1, "me")
    assert int.from_bytes(raw[:4]) == len(raw) - 4
    request = con.OffsetCommitRequest.decode(raw[4:], version=version, header=True)
    topic, other = request.topics
    (part,) = topic.partitions
    assert (topic.name, part.partition_index, part.committed_offset) == ("t", 1, 7)
    assert (part.committed_metadata, part.committed_leader_epoch) == (
        "note",
        3 if version >= 6 else -1,
    )
    assert (other.name, other.partitions[0].committed_offset) == ("u" * 200, 1 << 40)
    assert (request.group_id, request.group_instance_id) == ("grp", None)
    assert (request.generation_id_or_member_epoch, request.member_id) == (-1, "")
    kind = con.OffsetCommitResponse.OffsetCommitResponseTopic
    outcome = kind.OffsetCommitResponsePartition(partition_index=1, error_code=25)
    answer = con.OffsetCommitResponse(topics=[kind(name="t", partitions=[outcome])])
    found = body(answer, version)
    assert call.decode(version, found) == (PartitionOutcome("t", 1, 25),)
    with pytest.raises(ProtocolError):
        call.decode(version, found[:-3])
    assert call.max_version == 9


def test_missing_names_are_refused_before_they_are_sent() -> None:
    for build in (
        lambda: g.find_coordinator(""),
        lambda: g.heartbeat("grp", 1, ""),
        lambda: g.offset_fetch("grp", [TopicPartition("", 0)]),
        lambda: g.join_group(
            "grp", "", protocol_type="", protocols=[], session_timeout_ms=1, rebalance_timeout_ms=1
        ),
        lambda: g.join_group(
            "grp", "", protocol_type="c", protocols=[], session_timeout_ms=1, rebalance_timeout_ms=1
        ),
    ):
        with pytest.raises(ValueError, match="a request needs"):
            build()
