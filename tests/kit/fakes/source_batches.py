"""Batches as a reader of a source hands them out."""

from collections.abc import Sequence

from mm2py.protocol.record_batch import Codec, RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch


def source_batch(
    offsets: Sequence[int],
    records: Sequence[NewRecord],
    codec: Codec = Codec.NONE,
    *,
    leader_epoch: int = 0,
) -> RecordBatch:
    """Return a batch of records that have these offsets at the source."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and offset == sum(runs[-1]):
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((offset, 1))
    data, newest = encode_batch(records, codec), max(it.timestamp for it in records)
    ends, count = (offsets[0], offsets[-1]), len(offsets)
    return RecordBatch(data, *ends, count, newest, leader_epoch, int(codec), tuple(runs), None)
