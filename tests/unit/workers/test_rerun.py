"""``mm2py rerun``: which offsets are copied, and what of a batch."""

import pytest

from mm2py.client.connect.admin import ListedOffset
from mm2py.client.fetch.range_reader import LogEnds
from mm2py.mirror.start_positions import Boundary
from mm2py.protocol.log_batches import log_batch
from mm2py.protocol.record_batch import Codec
from mm2py.protocol.records import NewRecord, decode_batches, encode_batch
from mm2py.types import TopicPartition
from mm2py_jobs.copy.rerun import cut, placed
from tests.kit.fakes.seal import sealed

TP = TopicPartition("t", 0)
LOG = LogEnds(10, 20)


@pytest.mark.parametrize(
    ("boundary", "listed", "edge", "offset"),
    [
        (Boundary(), None, LOG.start, 10),
        (Boundary(), None, LOG.end, 20),
        (Boundary(offset=15), None, LOG.start, 15),
        (Boundary(offset=3), None, LOG.start, 10),
        (Boundary(offset=99), None, LOG.end, 20),
        (Boundary(timestamp=5), ListedOffset(12), LOG.start, 12),
        (Boundary(timestamp=5), ListedOffset(-1), LOG.start, 20),
    ],
)
def test_a_range_is_what_the_log_has_of_it(
    boundary: Boundary, listed: ListedOffset | None, edge: int, offset: int
) -> None:
    assert placed(boundary, listed, LOG, edge) == offset


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("log", "values"),
    [
        (LogEnds(0, 100), [b"0", b"1", b"2", b"3"]),
        (LogEnds(12, 13), [b"2"]),
        (LogEnds(11, 100), [b"1", b"2", b"3"]),
        (LogEnds(0, 12), [b"0", b"1"]),
        (LogEnds(14, 20), []),
    ],
)
def test_a_batch_is_cut_where_the_range_ends_and_keeps_its_codec(
    log: LogEnds, values: list[bytes], codec: Codec
) -> None:
    records = [NewRecord(b"k", b"%d" % n, ((b"h", None),), 1_000 + n) for n in range(4)]
    data = bytearray(sealed(encode_batch(records, codec)))
    data[0:8] = (10).to_bytes(8, "big")
    found = cut(TP, log_batch(memoryview(data)), log)
    kept = [
        it for batch in found for one in decode_batches(sealed(batch.data)) for it in one.records
    ]
    assert [it.value for it in kept] == values
    assert [it.timestamp for it in kept] == [1_000 + int(value) for value in values]
    assert all(it.headers == ((b"h", None),) for it in kept)
    assert {batch.codec for batch in found} <= {codec}
