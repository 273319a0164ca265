"""Coordinator requests in every version, and the formats that members and consumers put into groups."""

import pytest

from mm2py.client.connect.share_positions import CONSUMER_GROUPS, SHARE_GROUPS
from mm2py.errors import ProtocolError, UnsendableError
from mm2py.protocol import group_messages as g
from mm2py.protocol.call import Call
from mm2py.protocol.connect_group import (
    CONFIG_MISMATCH,
    CONNECTOR_ITSELF,
    Assignment,
    ConnectorTasks,
    WorkerMetadata,
    connector_tasks,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
    is_ours,
    offers,
    version_of,
    work_of,
)
from mm2py.protocol.consumer_offsets import decode_offset_commit, offsets_partition
from mm2py.protocol.group_messages import offset_commit
from mm2py.protocol.groups import (
    CoordinatorResult,
    CoordinatorType,
    DescribedGroup,
    DescribedMember,
    FetchedOffset,
    FetchedOffsets,
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
from mm2py.protocol.share_offsets import (
    ShareOffset,
    ShareOffsets,
    alter_share_offsets,
    describe_share_offsets,
)
from mm2py.protocol.topics import BrokerNode, PartitionOutcome
from mm2py.types import TaskId, TopicPartition, Work
from tests.unit.protocol.schema_library import answered, asked, body, in_every_version


@in_every_version(range(7))
def test_the_coordinator_is_found_in_both_layouts(version: int) -> None:
    call = g.find_coordinator("grp")
    request = asked(call, md.FindCoordinatorRequest, version)
    assert (request.coordinator_keys if version >= 4 else [request.key]) == ["grp"]
    coordinator = md.FindCoordinatorResponse.Coordinator(
        key="grp", node_id=1, host="h", port=9092, error_code=0, error_message=None
    )
    answer = (
        md.FindCoordinatorResponse(coordinators=[coordinator])
        if version >= 4
        else md.FindCoordinatorResponse(error_code=0, node_id=1, host="h", port=9092)
    )
    found = answered(call, answer, version)
    assert found == CoordinatorResult(0, "", BrokerNode(1, "h", 9092))
    assert g.find_coordinator("t", CoordinatorType.TRANSACTION).min_version == 1


@in_every_version(range(1, 10))
def test_a_first_join_is_answered_with_a_member_id_to_join_with(version: int) -> None:
    call = joining("connect", GroupProtocol("sessioned", b"meta"))
    request = asked(call, con.JoinGroupRequest, version)
    assert (request.protocol_type, request.member_id) == ("connect", "")
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (10_000, 60_000)
    assert [(p.name, bytes(p.metadata or b"")) for p in request.protocols] == [
        ("sessioned", b"meta")
    ]
    answer = con.JoinGroupResponse(
        error_code=79, generation_id=-1, protocol_name="" if version < 7 else None, leader="",
        member_id="me-1", members=[],
    )  # fmt: skip
    found = answered(call, answer, version)
    assert found == JoinResult(79, -1, "", "", "me-1", ())


@in_every_version(range(1, 10))
def test_the_leader_sees_all_members(version: int) -> None:
    member = con.JoinGroupResponse.JoinGroupResponseMember(
        member_id="m", group_instance_id=None, metadata=b"meta"
    )
    answer = con.JoinGroupResponse(
        error_code=0, generation_id=4, protocol_type="connect", protocol_name="sessioned",
        leader="m", member_id="m", members=[member],
    )  # fmt: skip
    found = answered(joining("connect", GroupProtocol("sessioned", b"")), answer, version)
    assert found.members == (JoinedMember("m", b"meta"),)
    assert (found.generation_id, found.protocol_name, found.leader) == (4, "sessioned", "m")


@in_every_version(range(6))
def test_sync_hands_in_assignments_and_gets_ones_own(version: int) -> None:
    work = {"m": b"a", "n": b"b"}
    call = g.sync_group("grp", 4, "m", protocol_type="connect", protocol_name="p", assignments=work)
    request = asked(call, con.SyncGroupRequest, version)
    assert {a.member_id: bytes(a.assignment or b"") for a in request.assignments} == work
    answer = con.SyncGroupResponse(error_code=0, assignment=b"mine", protocol_name="p")
    found = answered(call, answer, version)
    assert found == SyncResult(0, b"mine")


@in_every_version(range(5))
def test_a_heartbeat_gives_the_error_code(version: int) -> None:
    call = g.heartbeat("grp", 4, "m")
    answer = con.HeartbeatResponse(error_code=27)
    assert answered(call, answer, version) == 27
    request = asked(call, con.HeartbeatRequest, version)
    assert (request.group_id, request.generation_id, request.member_id) == ("grp", 4, "m")


@in_every_version(range(6))
def test_leaving_names_the_member_in_every_version(version: int) -> None:
    call = g.leave_group("grp", "m")
    request = asked(call, con.LeaveGroupRequest, version)
    named = [m.member_id for m in request.members] if version >= 3 else [request.member_id]
    assert named == ["m"]
    member = con.LeaveGroupResponse.MemberResponse(
        member_id="m", group_instance_id=None, error_code=25
    )
    answer = con.LeaveGroupResponse(error_code=0, members=[member])
    assert answered(call, answer, version) == (25 if version >= 3 else 0)


@in_every_version(range(7))
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
    found = answered(call, adm.DescribeGroupsResponse(groups=[group]), version)
    assert found == (
        DescribedGroup(
            "grp", 0, "", "Stable", "consumer", "range",
            (DescribedMember("m", "c", "/h", b"x", b"y"),),
        ),
    )  # fmt: skip
    request = asked(call, adm.DescribeGroupsRequest, version)
    assert request.groups == ["grp"]


@in_every_version(range(6))
def test_groups_are_listed(version: int) -> None:
    group = adm.ListGroupsResponse.ListedGroup(
        group_id="grp", protocol_type="consumer", group_state="Stable", group_type="classic"
    )
    call = g.list_groups()
    found = answered(call, adm.ListGroupsResponse(error_code=0, groups=[group]), version)
    state, kind = ("Stable" if version >= 4 else ""), ("classic" if version >= 5 else "")
    assert found == ListedGroups(0, (ListedGroup("grp", "consumer", state, kind),))
    assert len(call.encode(version, 1, "me")) > 10
    assert g.list_groups(["share"]).min_version == 5


@in_every_version(range(2, 10))
def test_committed_offsets_are_fetched_in_both_layouts(version: int) -> None:
    call = g.offset_fetch("grp")
    request = asked(call, con.OffsetFetchRequest, version)
    assert (request.groups[0].topics if version >= 8 else request.topics) is None, "all of them"
    if version >= 8:
        group = con.OffsetFetchResponse.OffsetFetchResponseGroup
        topic = group.OffsetFetchResponseTopics
        part = topic.OffsetFetchResponsePartitions(
            partition_index=1, committed_offset=7, committed_leader_epoch=3, metadata="",
            error_code=0,
        )  # fmt: skip
        answer = con.OffsetFetchResponse(
            groups=[group(group_id="grp", topics=[topic(name="t", partitions=[part])])]
        )
    else:
        old = con.OffsetFetchResponse.OffsetFetchResponseTopic
        old_part = old.OffsetFetchResponsePartition(
            partition_index=1, committed_offset=7, committed_leader_epoch=3, metadata="",
            error_code=0,
        )  # fmt: skip
        answer = con.OffsetFetchResponse(topics=[old(name="t", partitions=[old_part])])
    epoch = 3 if version >= 5 else -1
    found = answered(call, answer, version)
    assert found == FetchedOffsets(0, (FetchedOffset("t", 1, 7, epoch, "", 0),))


@in_every_version(range(2, 10))
def test_offsets_are_committed_below_the_version_that_needs_topic_ids(version: int) -> None:
    call = offset_commit(
        "grp", [OffsetToCommit("t", 1, 7, 3, "note"), OffsetToCommit("u" * 200, 0, 1 << 40)]
    )
    raw = call.encode(version, 1, "me")
    assert int.from_bytes(raw[:4]) == len(raw) - 4
    request = asked(call, con.OffsetCommitRequest, version)
    topic, other = request.topics
    (part,) = topic.partitions
    assert (topic.name, part.partition_index, part.committed_offset) == ("t", 1, 7)
    epoch = 3 if version >= 6 else -1
    assert (part.committed_metadata, part.committed_leader_epoch) == ("note", epoch)
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


def joining(protocol_type: str, *protocols: GroupProtocol) -> Call[JoinResult]:
    return g.join_group(
        "grp", "", protocol_type=protocol_type, protocols=protocols, session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
    )  # fmt: skip


def test_missing_names_are_refused_before_they_are_sent() -> None:
    for build in (
        lambda: g.find_coordinator(""),
        lambda: g.heartbeat("grp", 1, ""),
        lambda: joining(""),
        lambda: joining("c"),
    ):
        with pytest.raises(UnsendableError, match="a request needs"):
            build()


URL = "http://h:1/"
URL_BYTES = b"\x00\x0bhttp://h:1/"
OFFSET_5 = b"\x00" * 7 + b"\x05"

EAGER = (
    b"\x00\x00\x00\x00"  # version 0, error 0
    + b"\x00\x02m1"
    + URL_BYTES
    + OFFSET_5
    + b"\x00\x00\x00\x01\x00\x01c\x00\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x03"
)
INCREMENTAL = (
    b"\x00\x02\x00\x01"  # version 2, error 1
    + b"\x00\x02m1"
    + URL_BYTES
    + OFFSET_5
    + b"\x00\x00\x00\x00"
    + b"\x00\x00\x00\x01\x00\x01c\x00\x00\x00\x01\x00\x00\x00\x00"
    + b"\x00\x00\x01\x2c"
)


C_3, C_0 = ConnectorTasks("c", (CONNECTOR_ITSELF, 3)), ConnectorTasks("c", (0,))
ONE_REVOKED = Assignment(2, "m1", URL, 5, (), (C_0,), 300, 1)


@pytest.mark.parametrize(
    ("protocol", "kind", "commits", "shares"),
    [
        ("consumer", "", True, False),
        ("consumer", "Classic", True, False),
        ("", "Classic", True, False),
        ("consumer", "Consumer", True, False),
        ("streams", "Streams", True, False),
        ("connect", "Classic", False, False),
        ("share", "Share", False, True),
    ],
)
def test_groups_that_commit_offsets_are_told_from_share_groups_and_workers(
    protocol: str, kind: str, commits: bool, shares: bool
) -> None:
    group = ListedGroup("g", protocol, "Empty", kind)
    assert (CONSUMER_GROUPS.is_one(group), SHARE_GROUPS.is_one(group)) == (commits, shares)


@pytest.mark.parametrize(
    ("data", "assignment"),
    [(EAGER, Assignment(0, "m1", URL, 5, (C_3,))), (INCREMENTAL, ONE_REVOKED)],
    ids=["eager", "incremental"],
)
def test_an_assignment_has_these_bytes(data: bytes, assignment: Assignment) -> None:
    assert encode_assignment(assignment) == data
    assert decode_assignment(data) == assignment


def test_null_lists_of_java_read_as_empty() -> None:
    data = b"\x00\x01\x00\x00\x00\x00\x00\x00" + OFFSET_5 + b"\xff" * 8 + b"\x00" * 4
    assert decode_assignment(data) == Assignment(1, "", "", 5)


@pytest.mark.parametrize(
    ("metadata", "data"),
    [
        (WorkerMetadata(0, URL, -1), b"\x00\x00" + URL_BYTES + b"\xff" * 8),
        (WorkerMetadata(2, URL, 5), b"\x00\x02" + URL_BYTES + OFFSET_5 + b"\xff\xff\xff\xff"),
        (
            WorkerMetadata(1, URL, 5, ONE_REVOKED),
            b"\x00\x01" + URL_BYTES + OFFSET_5 + len(INCREMENTAL).to_bytes(4, "big") + INCREMENTAL,
        ),
    ],
    ids=["eager", "sessioned without work ends in a null", "sessioned carries its assignment"],
)
def test_worker_metadata_has_these_bytes(metadata: WorkerMetadata, data: bytes) -> None:
    assert encode_metadata(metadata) == data
    assert decode_metadata(data) == metadata


@pytest.mark.parametrize("size", range(len(INCREMENTAL)))
def test_a_cut_assignment_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="only Connect workers use this group"):
        decode_assignment(INCREMENTAL[:size])


def test_bytes_of_another_protocol_are_refused() -> None:
    with pytest.raises(ProtocolError, match="worker metadata"):
        decode_metadata(b"\x00\x03\x00\x02\xff\xfe")


@pytest.mark.parametrize(
    ("protocol", "names"),
    [
        (
            "sessioned",
            "mm2py-sessioned mm2py-compatible mm2py-default sessioned compatible default",
        ),
        ("compatible", "mm2py-compatible mm2py-default compatible default"),
        ("eager", "mm2py-default default"),
    ],
)
def test_our_names_are_offered_before_javas_with_the_same_bytes(protocol: str, names: str) -> None:
    allocation = Assignment(2, "m1", URL, 5, (C_0,))
    offered = {
        it.name: it.metadata for it in offers(protocol, WorkerMetadata(2, URL, 5, allocation))
    }
    assert " ".join(offered) == names
    for name, data in offered.items():
        assert data == offered[name.removeprefix("mm2py-")]
        read = decode_metadata(data)
        assert read.version == version_of(name)
        assert (read.allocation is None) == (read.version == 0)
        assert read.allocation is None or read.allocation.version == read.version


def test_an_unknown_protocol_is_not_offered() -> None:
    with pytest.raises(ValueError, match="no Connect protocol"):
        offers("default", WorkerMetadata(2, URL, 5))


@pytest.mark.parametrize(
    ("name", "ours"),
    [("mm2py-sessioned", True), ("sessioned", False), ("mm2py-range", False), ("", False)],
)
def test_only_our_names_say_that_all_members_are_ours(name: str, ours: bool) -> None:
    assert is_ours(name) is ours


def test_a_protocol_of_somebody_else_has_no_version() -> None:
    with pytest.raises(ProtocolError, match="'range', which is not a protocol of Connect"):
        version_of("range")


def test_work_is_written_connector_by_connector_and_read_back() -> None:
    work = Work(frozenset({"b", "a"}), frozenset({TaskId("c", 2), TaskId("a", 10), TaskId("a", 9)}))
    written = connector_tasks(work)
    assert written == (
        ConnectorTasks("a", (-1, 9, 10)),
        ConnectorTasks("b", (-1,)),
        ConnectorTasks("c", (2,)),
    )
    assert work_of(written) == work
    assert CONFIG_MISMATCH == 1


KEY = bytes.fromhex("0001 0001 67 0004 742e2d31 00000002")
TP = TopicPartition("t.-1", 2)


@pytest.mark.parametrize(
    ("value", "epoch", "metadata"),
    [
        ("0000 000000000000002a 0001 6d 0000000000000001", -1, "m"),
        ("0001 000000000000002a 0001 6d 0000000000000001 0000000000000002", -1, "m"),
        ("0002 000000000000002a 0000 0000000000000001", -1, ""),
        ("0003 000000000000002a 00000007 0001 6d 0000000000000001", 7, "m"),
        ("0004 000000000000002a 00000007 02 6d 0000000000000001 00", 7, "m"),
        (f"0004 000000000000002a 00000007 ac02 {'6d' * 299} 0000000000000001 00", 7, "m" * 299),
    ],
)
def test_every_version_of_a_commit(value: str, epoch: int, metadata: str) -> None:
    found = decode_offset_commit(KEY, bytes.fromhex(value))
    assert found is not None
    assert (found.group, found.partition) == ("g", TP)
    assert found.offset == FetchedOffset("t.-1", 2, 42, epoch, metadata, 0)


def test_a_deleted_offset_and_records_that_are_no_commits() -> None:
    deleted = decode_offset_commit(KEY, None)
    assert deleted is not None
    assert deleted.offset is None
    assert decode_offset_commit(bytes.fromhex("0002 0001 67"), b"") is None
    assert decode_offset_commit(bytes.fromhex("0005 0001 67 0001 6d"), b"x") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (KEY[:9], b"\0\0"),
        (KEY[:-1], None),
        (KEY, b"\0\5" + bytes(20)),
        (KEY, b"\0\3\0"),
        (KEY, bytes.fromhex("0004 000000000000002a 00000007 00")),
        (KEY, bytes.fromhex("0004 000000000000002a 00000007 ff")),
        (KEY, bytes.fromhex("0002 000000000000002a 0005 6d")),
    ],
)
def test_damaged_records_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode_offset_commit(key, value)


@pytest.mark.parametrize(
    ("group", "hash_code"),
    [("billing", -109829509), ("polygenelubricants", -2147483648), ("é😀", 1996812), ("", 0)],
)
def test_the_partition_of_a_group_is_javas(group: str, hash_code: int) -> None:
    positive = 0 if hash_code == -(1 << 31) else abs(hash_code)
    assert [offsets_partition(group, n) for n in (50, 7)] == [positive % 50, positive % 7]


DESCRIBE = (
    "0000001f005a000{}0000000700026d6500"  # size, key, version, correlation id, client id
    "030862696c6c696e6700000467c3bc000000"  # "billing" and "gü", all topics
)
ALTER = (
    "0000004f005b00000000000700026d65000862696c6c696e67"
    "03076f726465727303000000000000000000001267000000000300000100000000000000"  # 0: 4711, 3: 2 ** 40
    "066f7468657202000000010000000000000000000000"  # 1: 0
)
DESCRIBED = (
    (
        "0000000003030862696c6c696e6702076f7264657273000000000000000100000000000000020300000000"
        "00000000000012670000000500000000000000"
        "03ffffffffffffffff00000000000f0561776179000000000000056e6f6e6501001e036e6f0000"
    ),
    (
        "0000000003030862696c6c696e6702076f7264657273000000000000000100000000000000020300000000"
        "000000000000126700000005000000000000000c00000000000000"
        "03ffffffffffffffff00000000ffffffffffffffff000f0561776179000000000000056e6f6e6501001e036e6f0000"
    ),
)
ALTERED = (
    "000000000300000002076f726465727300000000000000010000000000000002"
    "03000000000000000000000003000305676f6e65000000"
)
NOT_EMPTY = "00000000030044185468652067726f7570206973206e6f7420656d7074792e0100"

OFFSETS = [
    OffsetToCommit("other", 1, 0),
    OffsetToCommit("orders", 0, 4711),
    OffsetToCommit("orders", 3, 1 << 40),
]


def answer(text: str) -> memoryview:
    return memoryview(bytes.fromhex(text))


@in_every_version([0, 1])
def test_start_offsets_of_all_topics_are_asked_for_as_java_does(version: int) -> None:
    call = describe_share_offsets(["billing", "gü"])
    assert (call.api_key, call.min_version, call.max_version) == (90, 0, 1)
    assert call.encode(version, 7, "me").hex() == DESCRIBE.format(version)


@pytest.mark.parametrize(("version", "lag"), [(0, -1), (1, 12)])
def test_start_offsets_are_read_with_their_lag_if_there_is_one(version: int, lag: int) -> None:
    call = describe_share_offsets(["billing", "none"])
    assert call.decode(version, answer(DESCRIBED[version])) == {
        "billing": ShareOffsets(
            0, (ShareOffset("orders", 0, 4711, lag, 0), ShareOffset("orders", 3, -1, -1, 15))
        ),
        "none": ShareOffsets(30, ()),
    }


def test_start_offsets_are_set_as_java_does() -> None:
    call = alter_share_offsets("billing", OFFSETS)
    assert (call.api_key, call.min_version, call.max_version) == (91, 0, 0)
    assert call.encode(0, 7, "me").hex() == ALTER
    assert call.decode(0, answer(ALTERED)) == (
        PartitionOutcome("orders", 0, 0),
        PartitionOutcome("orders", 3, 3),
    )


def test_an_error_of_the_group_is_that_of_each_partition() -> None:
    assert alter_share_offsets("billing", OFFSETS).decode(0, answer(NOT_EMPTY)) == tuple(
        PartitionOutcome(it.topic, it.partition, 68) for it in OFFSETS
    )


def test_a_group_without_a_name_is_refused() -> None:
    for build in (lambda: describe_share_offsets([""]), lambda: alter_share_offsets("", OFFSETS)):
        with pytest.raises(UnsendableError, match="group"):
            build()


@pytest.mark.parametrize(("version", "whole"), [(0, DESCRIBED[0]), (1, DESCRIBED[1]), (0, ALTERED)])
def test_answers_that_end_early_are_errors(version: int, whole: str) -> None:
    call = alter_share_offsets("billing", OFFSETS) if whole is ALTERED else None
    for end in range(len(whole) // 2 - 1):
        with pytest.raises(ProtocolError):
            (call or describe_share_offsets(["billing"])).decode(version, answer(whole)[:end])
