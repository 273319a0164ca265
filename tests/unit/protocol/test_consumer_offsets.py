"""Records of ``__consumer_offsets`` in the bytes that brokers write."""

import pytest

from mm2py.errors import ProtocolError
from mm2py.protocol.consumer_offsets import decode_offset_commit, offsets_partition
from mm2py.protocol.groups import FetchedOffset
from mm2py.types import TopicPartition

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
