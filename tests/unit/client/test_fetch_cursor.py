"""What an answer does to a cursor."""

from mm2py.client.fetch.cursor import Cursor, Verdict
from mm2py.protocol import error_codes as codes
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition

TP = TopicPartition("orders", 0)


class CountingLease:
    """Counts references as a pooled buffer does."""

    def __init__(self) -> None:
        self.references = 1

    def retain(self) -> None:
        self.references += 1

    def release(self) -> None:
        self.references -= 1


def answer(
    *,
    code: int = 0,
    records: bytes | bytearray | None = None,
    diverging: tuple[int, int] | None = None,
) -> FetchedPartition:
    return FetchedPartition(
        topic=TP.topic,
        topic_id=bytes(16),
        partition=0,
        error_code=code,
        high_watermark=10,
        last_stable_offset=10,
        log_start_offset=0,
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
