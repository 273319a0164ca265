"""Bytes of heartbeats, offset syncs and source offsets, and checks of edited offsets, as Java has them."""

from collections.abc import Callable, Mapping

import pytest

from mm2py.errors import ConfigError, ProtocolError
from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint, encode_checkpoint
from mm2py.mirror.heartbeats import Heartbeat, decode_heartbeat, encode_heartbeat
from mm2py.mirror.offset_checks import (
    Positions,
    check_heartbeat_offsets,
    check_mirror_offsets,
    hash_map_order,
    java_text,
)
from mm2py.mirror.offset_syncs import OffsetSync, decode_offset_sync, encode_offset_sync
from mm2py.mirror.source_offsets import (
    heartbeat_source_partition,
    mirror_source_partition,
    next_offset,
    parse_source_offset_key,
    parse_source_offset_value,
    partition_identity,
    source_offset,
    source_offset_key,
    source_offset_value,
)
from mm2py.types import TopicPartition


@pytest.mark.parametrize(
    ("sync", "key", "value"),
    [
        (
            OffsetSync(TopicPartition("topic-1", 2), 3, 4),
            "00 07 74 6f 70 69 63 2d 31 00 00 00 02",
            "00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 04",
        ),
        (
            OffsetSync(TopicPartition("orders", 7), 1234567, 1234001),
            "00 06 6f 72 64 65 72 73 00 00 00 07",
            "00 00 00 00 00 12 d6 87 00 00 00 00 00 12 d4 51",
        ),
    ],
)
def test_offset_syncs_have_javas_bytes(sync: OffsetSync, key: str, value: str) -> None:
    assert encode_offset_sync(sync) == (bytes.fromhex(key), bytes.fromhex(value))
    assert decode_offset_sync(bytes.fromhex(key), bytes.fromhex(value) + b"more") == sync


@pytest.mark.parametrize(
    ("checkpoint", "key", "value"),
    [
        (
            Checkpoint("group-1", TopicPartition("A.orders", 3), 1000, 901, ""),
            "00 07 67 72 6f 75 70 2d 31 00 08 41 2e 6f 72 64 65 72 73 00 00 00 03",
            "00 00 00 00 00 00 00 00 03 e8 00 00 00 00 00 00 03 85 00 00",
        ),
        (
            Checkpoint("g", TopicPartition("t", 0), 4, 5, "metadata-6"),
            "00 01 67 00 01 74 00 00 00 00",
            "00 00 00 00 00 00 00 00 00 04 00 00 00 00 00 00 00 05 00 0a 6d 65 74 61 64 61 74 61 2d 36",
        ),
    ],
)
def test_checkpoints_have_javas_bytes(checkpoint: Checkpoint, key: str, value: str) -> None:
    assert encode_checkpoint(checkpoint) == (bytes.fromhex(key), bytes.fromhex(value))
    assert decode_checkpoint(bytes.fromhex(key), bytes.fromhex(value) + b"more") == checkpoint


def test_heartbeats_have_javas_bytes() -> None:
    beat = Heartbeat("A", "B", 1700000000000)
    key, value = encode_heartbeat(beat)
    assert key == bytes.fromhex("00 01 41 00 01 42")
    assert value == bytes.fromhex("00 00 00 00 01 8b cf e5 68 00")
    assert decode_heartbeat(key, value) == beat


@pytest.mark.parametrize(
    ("decode", "key", "value"),
    [
        (decode_checkpoint, "0001", "0000"),
        (decode_checkpoint, "00016700017400000000", "0000"),
        (decode_checkpoint, "000167000174", "00000000000000000004000000000000000500 00"),
        (decode_checkpoint, "00016700017400000000", "00010000000000000004000000000000000500 00"),
        (decode_checkpoint, "00016700017400000000", "00000000000000000004000000000000000500"),
        (decode_heartbeat, "0001", "0000"),
        (decode_heartbeat, "00", ""),
        (decode_heartbeat, "0001410001", "00"),
        (decode_heartbeat, "ffff", "00000000018bcfe56800"),
        (decode_heartbeat, "000141000142", "00000000"),
        (decode_heartbeat, "000141000142", "00010000018bcfe56800"),
        (decode_heartbeat, "0001ff000142", "00000000018bcfe56800"),
        (decode_offset_sync, "000174000000", "00000000000000010000000000000002"),
        (decode_offset_sync, "00017400000000", "000000000000000100000000000000"),
    ],
)
def test_broken_records_are_refused(
    decode: Callable[[bytes, bytes], object], key: str, value: str
) -> None:
    with pytest.raises(ProtocolError):
        decode(bytes.fromhex(key), bytes.fromhex(value))


def test_source_offset_keys_have_javas_member_order() -> None:
    mirror = mirror_source_partition("A", TopicPartition("orders", 3))
    beat = heartbeat_source_partition("A", "B")
    assert source_offset_key("MirrorSourceConnector", mirror) == (
        b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'
    )
    assert source_offset_key("MirrorHeartbeatConnector", beat) == (
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]'
    )
    assert source_offset_value(source_offset(41)) == b'{"offset":41}'
    assert source_offset_value(source_offset(41, 3)) == b'{"offset":41,"epoch":"3@41"}'
    assert source_offset_value(None) is None


def test_aliases_beyond_ascii_are_written_as_utf8() -> None:
    partition = mirror_source_partition("Zürich", TopicPartition("t", 0))
    assert "Zürich".encode() in source_offset_key("c", partition)


def test_keys_are_read_by_content_whatever_their_order() -> None:
    name, partition = parse_source_offset_key(b'["c", {"topic":"t", "partition":0, "cluster":"A"}]')
    ours = mirror_source_partition("A", TopicPartition("t", 0))
    assert name == "c"
    assert partition_identity(partition) == partition_identity(ours)


@pytest.mark.parametrize(
    "key", [b"", b"[]", b'["c"]', b'["c",3]', b'[1,{"a":1}]', b'["c",{"a":null}]', b"\xff", b'"c"']
)
def test_keys_that_are_not_source_offsets_are_refused(key: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_source_offset_key(key)


@pytest.mark.parametrize(
    ("value", "following"),
    [
        (None, -1),
        (b'{"offset":41}', 42),
        (b'{"offset":-1}', 0),
        (b"{}", -1),
        (b"null", -1),
        (b'{"offset":-5}', -1),
    ],
)
def test_a_copy_continues_after_the_stored_offset(value: bytes | None, following: int) -> None:
    assert next_offset(parse_source_offset_value(value)) == following


def test_a_value_that_is_no_map_is_refused() -> None:
    for value in (b"3", b'{"offset":1.5}', b'{"offset":true}', b"{"):
        with pytest.raises(ProtocolError):
            parse_source_offset_value(value)


PARTITION: Mapping[str, object] = {"topic": "t", "partition": 0, "cluster": "A"}
SHOWN = "{cluster=A, partition=0, topic=t}"
ALIASES: Mapping[str, object] = {"targetClusterAlias": "B", "sourceClusterAlias": "A"}


@pytest.mark.parametrize(
    ("members", "order"),
    [
        ({"topic": 1, "partition": 1, "cluster": 1}, ["cluster", "partition", "topic"]),
        ({"group": 1, "topic": 1, "partition": 1}, ["partition", "topic", "group"]),
        (
            {"targetClusterAlias": 1, "sourceClusterAlias": 1},
            ["sourceClusterAlias", "targetClusterAlias"],
        ),
    ],
)
def test_members_have_the_order_of_a_hash_map(members: Mapping[str, int], order: list[str]) -> None:
    assert list(hash_map_order(members)) == order


def test_large_maps_are_ordered_in_larger_tables() -> None:
    members = {chr(ord("a") + n): n for n in reversed(range(20))}
    assert list(hash_map_order(members)) == sorted(members)


def test_values_are_printed_as_java_does() -> None:
    assert java_text({"b": None, "a": True, "c": 1.5, "d": "x"}) == "{a=true, b=null, c=1.5, d=x}"


def test_right_positions_and_all_removals_pass() -> None:
    assert check_mirror_offsets(
        [(PARTITION, {"offset": 41, "more": "x"}), (None, None), ({"x": 1}, None)]
    )
    assert check_heartbeat_offsets([(ALIASES, {"offset": 0}), ({}, None)])


@pytest.mark.parametrize(
    ("check", "partition", "offset", "message"),
    [
        (check_mirror_offsets, None, {"offset": 1}, "Source partitions may not be null"),
        (
            check_mirror_offsets,
            {"cluster": "A", "partition": 0},
            {"offset": 1},
            "Source partition {cluster=A, partition=0} is missing the 'topic' key, which is required",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "cluster": None},
            {"offset": 1},
            "Source partition {cluster=null, partition=0, topic=t} has an invalid value null for the"
            " 'cluster' key, which must be a string",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "partition": "0"},
            {"offset": 1},
            f"Source partition {SHOWN} has an invalid value 0 for the 'partition' key, which must be"
            " an integer",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "partition": 2**31},
            {"offset": 1},
            "Source partition {cluster=A, partition=2147483648, topic=t} has an invalid value"
            " 2147483648 for the 'partition' key, which must be an integer",
        ),
        (
            check_mirror_offsets,
            {**PARTITION, "partition": -1},
            {"offset": 1},
            "Source partition {cluster=A, partition=-1, topic=t} has an invalid value -1 for the"
            " 'partition' key, which cannot be negative",
        ),
        (
            check_mirror_offsets,
            PARTITION,
            {"x": 1},
            f"Source offset {{x=1}} for source partition {SHOWN} is missing the 'offset' key, which"
            " is required",
        ),
        (
            check_mirror_offsets,
            PARTITION,
            {"offset": True},
            f"Source offset {{offset=true}} for source partition {SHOWN} has an invalid value true"
            " for the 'offset' key, which must be an integer",
        ),
        (
            check_mirror_offsets,
            PARTITION,
            {"offset": -1},
            f"Source offset {{offset=-1}} for source partition {SHOWN} has an invalid value -1 for"
            " the 'offset' key, which cannot be negative",
        ),
        (
            check_heartbeat_offsets,
            ALIASES,
            {"offset": 1},
            "Source offset {offset=1} for source partition {sourceClusterAlias=A,"
            " targetClusterAlias=B} has an invalid value 1 for the 'offset' key; the only accepted"
            " value is 0",
        ),
        (
            check_heartbeat_offsets,
            {"sourceClusterAlias": "A"},
            {"offset": 0},
            "Source partition {sourceClusterAlias=A} is missing the 'targetClusterAlias' key, which"
            " is required",
        ),
    ],
)
def test_wrong_positions_are_refused_in_javas_words(
    check: Callable[[Positions], bool],
    partition: Mapping[str, object] | None,
    offset: Mapping[str, object],
    message: str,
) -> None:
    with pytest.raises(ConfigError) as refused:
        check([(PARTITION, None), (partition, offset)])
    assert refused.value.message == message
