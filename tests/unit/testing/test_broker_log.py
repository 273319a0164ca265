from mm2py.protocol.batch_stage import sign
from mm2py.protocol.record_batch import HEADER, HEADER_BYTES
from tests.kit.fakes.broker_log import PartitionLog


def batch(count: int = 1, *, producer_id: int = 7, epoch: int = 0, sequence: int = 0) -> bytes:
    """A signed batch of ``count`` records; the fake never looks inside."""
    data = bytearray(HEADER_BYTES + 10 * count)
    length = len(data) - 12
    HEADER.pack_into(data, 0, 0, length, -1, 2, 0, 0, count - 1, 0, 0, -1, -1, -1, count)
    sign(data, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return bytes(data)


def codes(log: PartitionLog, *batches: bytes) -> list[int]:
    return [log.append(data, 5).error_code for data in batches]


def test_consecutive_sequences_are_stored_at_consecutive_offsets() -> None:
    log = PartitionLog()
    assert [log.append(batch(3, sequence=n), 5).base_offset for n in (0, 3, 6)] == [0, 3, 6]
    assert log.end == 9
    assert [HEADER.unpack_from(stored.data)[0] for stored in log.batches] == [0, 3, 6]


def test_a_gap_an_overlap_and_a_restart_of_the_sequence_are_refused() -> None:
    log = PartitionLog()
    assert codes(log, batch(3), batch(3, sequence=4), batch(3, sequence=2), batch(4)) == [
        0,
        45,
        45,
        45,
    ]
    assert log.end == 3


def test_the_last_five_batches_are_recognised_with_their_offset_and_a_time() -> None:
    log = PartitionLog()
    batches = [batch(sequence=n) for n in range(6)]
    codes(log, *batches)
    for n in range(1, 6):
        assert log.append(batches[n], 5) == (0, n, 5)
    assert log.append(batches[0], 5).error_code == 45
    assert log.end == 6


def test_the_first_batch_without_state_may_have_any_sequence() -> None:
    log = PartitionLog()
    assert codes(log, batch(sequence=1000), batch(sequence=0), batch(sequence=1001)) == [0, 45, 0]


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    log = PartitionLog()
    first = batch()
    assert codes(log, first, batch(epoch=1, sequence=1), batch(epoch=1), first) == [0, 45, 0, 47]
