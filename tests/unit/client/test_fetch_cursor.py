"""What an answer does to a cursor."""

import struct

import pytest

from mm2py.client.connect.metadata_cache import MetadataCache
from mm2py.client.fetch.cursor import Cursor, Lookup, Verdict
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import ATTRIBUTES_OFFSET, CRC, CRC_OFFSET, crc32c
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.protocol.topics import MetadataResult, PartitionMetadata, TopicMetadata
from mm2py.types import TopicPartition

TP = TopicPartition("orders", 0)


class CountingLease:
    """Counts references as a pooled buffer does."""

    held_bytes = 1 << 22

    def __init__(self) -> None:
        self.references = 1

    def retain(self) -> None:
        self.references += 1

    def release(self) -> None:
        self.references -= 1

    def copied(self, size_bytes: int) -> "CountingLease":
        return CountingLease()


def answer(
    *,
    code: int = 0,
    records: bytes | bytearray | None = None,
    diverging: tuple[int, int] | None = None,
    log_start: int = 0,
) -> FetchedPartition:
    return FetchedPartition(
        topic=TP.topic,
        topic_id=bytes(16),
        partition=0,
        error_code=code,
        high_watermark=10,
        last_stable_offset=10,
        log_start_offset=log_start,
        aborted=[],
        preferred_read_replica=-1,
        records=None if records is None else memoryview(bytearray(records)),
        diverging=diverging,
        current_leader=None,
    )


def a_batch(base_offset: int, count: int) -> bytearray:
    data = encode_batch([NewRecord(None, b"v", (), 1_000 + i) for i in range(count)])
    data[0:8] = base_offset.to_bytes(8, "big")
    data[12:16] = (4).to_bytes(4, "big")
    return data


def test_a_batch_moves_the_position_behind_its_last_offset_and_keeps_its_epoch() -> None:
    cursor, lease = Cursor(TP, 5), CountingLease()
    verdict, result = cursor.take(answer(records=a_batch(5, 3)), lease)
    assert verdict is Verdict.GO_ON
    assert result is not None
    assert [(b.base_offset, b.count) for b in result.batches] == [(5, 3)]
    assert (cursor.position, cursor.last_epoch) == (8, 4)
    assert lease.references == 2


def test_a_damaged_batch_is_read_once_more_and_then_fails_the_partition() -> None:
    cursor = Cursor(TP, 5)
    damaged = a_batch(5, 3)
    damaged[-1] ^= 1
    assert cursor.take(answer(records=damaged), CountingLease())[0] is Verdict.GO_ON
    assert cursor.position == 5
    assert cursor.take(answer(records=damaged), CountingLease())[0] is Verdict.FAILED
    assert "CRC" in cursor.cause
    assert cursor.damaged


def test_a_batch_that_was_damaged_on_the_way_only_is_taken_the_second_time() -> None:
    cursor = Cursor(TP, 5)
    good = a_batch(5, 3)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    cursor.take(answer(records=damaged), CountingLease())
    assert cursor.take(answer(records=good), CountingLease())[0] is Verdict.GO_ON
    assert cursor.position == 8


def test_a_diverging_epoch_says_where_the_log_was_cut() -> None:
    cursor = Cursor(TP, 9)
    verdict, _ = cursor.take(answer(diverging=(3, 6)), CountingLease())
    assert verdict is Verdict.TRUNCATED
    assert cursor.diverged_to == 6


def test_error_codes_are_told_apart() -> None:
    expected = {
        codes.OFFSET_OUT_OF_RANGE: Verdict.RESET,
        codes.NOT_LEADER_OR_FOLLOWER: Verdict.MOVE,
        codes.FENCED_LEADER_EPOCH: Verdict.MOVE,
        codes.UNKNOWN_TOPIC_OR_PARTITION: Verdict.MOVE,
        codes.UNKNOWN_TOPIC_ID: Verdict.RECREATED,
        codes.TOPIC_AUTHORIZATION_FAILED: Verdict.REFUSED,
        codes.CORRUPT_MESSAGE: Verdict.FAILED,
        codes.UNSUPPORTED_COMPRESSION_TYPE: Verdict.FAILED,
        codes.UNKNOWN_SERVER_ERROR: Verdict.UNCLEAR,
        999: Verdict.UNCLEAR,
    }
    for code, verdict in expected.items():
        assert Cursor(TP, 0).take(answer(code=code), CountingLease())[0] is verdict


def a_marker(base_offset: int) -> bytes:
    data = encode_batch([NewRecord(struct.pack(">hh", 0, 1), b"v", (), 1)])
    sign(data, producer_id=5, producer_epoch=0, base_sequence=-1, transactional=True)
    data[0:8] = base_offset.to_bytes(8, "big")
    data[22] |= 0x20
    CRC.pack_into(data, CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))
    return bytes(data)


@pytest.mark.parametrize(
    "records",
    [bytes(a_batch(200, 1)), a_marker(200), a_marker(200) + bytes(a_batch(201, 1))],
    ids=["data", "marker", "marker, then data"],
)
def test_what_is_deleted_while_it_is_read_is_a_loss_whatever_lies_behind_it(records: bytes) -> None:
    cursor = Cursor(TP, 100)
    verdict, _ = cursor.take(answer(records=records, log_start=200), CountingLease())
    assert verdict is Verdict.LOST
    assert cursor.lost == (100, 199)


@pytest.mark.parametrize("unknown_between", [False, True])
def test_an_id_that_another_one_has_followed_never_comes_back(unknown_between: bool) -> None:
    old, new, newest = b"O" * 16, b"N" * 16, b"P" * 16
    cache, cursor = MetadataCache(), Cursor(TP, 500, old)

    def answered(topic_id: bytes, code: int = 0) -> None:
        """A broker answers Metadata, and the cursor looks for its leader."""
        partition = PartitionMetadata(0, 1, 0, (1,), (1,), 0)
        topic = TopicMetadata(TP.topic, topic_id, False, (partition,), code)
        cache.update(MetadataResult((), "c", 1, (topic,), 0, 0), 0.0)
        leader = cache.leader(TP)
        if leader is not None:
            cursor.led_by(leader)
        if cursor.lookup is Lookup.BEGINNING:
            cursor.restart(0, cursor.next_id)

    answered(old)
    if unknown_between:
        answered(old, codes.UNKNOWN_TOPIC_OR_PARTITION)
        answered(old)  # a broker that had only not heard of it yet
        assert cache.leader(TP) is not None
    answered(new)
    cursor.seek(300)  # so many records of the new one are copied
    for topic_id in (old, new):
        answered(topic_id)
        assert cursor.position == 300
    answered(newest)
    assert cursor.position == 0
