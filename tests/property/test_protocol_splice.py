"""Splicing keeps every record: read back with aiokafka's codec, which we did not write."""

import struct
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2py.protocol.batch_stage import classify, sign
from mm2py.protocol.record_batch import Codec, RecordBatch, crc32c
from mm2py.protocol.splice import merge, recompress, split
from tests.property.effort import examples

Key = bytes | None
BASE = 1_000_000


class Row(NamedTuple):
    """What must survive."""

    offset: int
    timestamp: int
    key: Key
    value: Key
    headers: tuple[tuple[str, Key], ...]


data = st.none() | st.binary(max_size=40) | st.binary(max_size=3).map(lambda part: part * 900)
rows = st.lists(
    st.tuples(
        st.integers(0, 3) | st.just(5000),  # hole before the record
        st.integers(0, 2**41),  # aiokafka writes -1 as "not set yet"
        data,
        data,
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    ),
    min_size=1,
    max_size=30,
)

relaxed = settings(max_examples=examples(60))
codecs = st.sampled_from(list(Codec))


def number(drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], base: int) -> list[Row]:
    found: list[Row] = []
    offset = base - 1
    for hole, timestamp, key, value, headers in drawn:
        offset += 1 + (hole if found else 0)
        found.append(Row(offset, timestamp, key, value, tuple(headers)))
    return found


def build(wanted: list[Row], codec: Codec, *, append_time: int | None = None) -> bytearray:
    base = wanted[0].offset
    builder = DefaultRecordBatchBuilder(2, int(codec), 0, 7, 3, 9, 10**9)
    for row in wanted:
        builder.append(
            row.offset - base, row.timestamp, row.key, row.value, headers=list(row.headers)
        )
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    struct.pack_into(">i", batch, 12, 5)
    if append_time is not None:
        batch[22] |= 0x08
        struct.pack_into(">q", batch, 35, append_time)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def read(batch: RecordBatch) -> list[Row]:
    """Sign as the Sender does, read with aiokafka, and map offsets back through the runs."""
    raw = bytearray(batch.data)
    sign(raw, producer_id=1, producer_epoch=2, base_sequence=3)
    theirs = DefaultRecordBatch(bytes(raw))
    assert theirs.validate_crc()
    assert theirs.attributes == int(batch.codec)
    assert (
        struct.unpack_from(">i", raw, 57)[0]
        == batch.count
        == struct.unpack_from(">i", raw, 23)[0] + 1
    )
    offsets = [offset for first, n in batch.runs for offset in range(first, first + n)]
    found = list(theirs)
    assert [record.offset for record in found] == list(range(batch.count))
    assert theirs.max_timestamp == max(record.timestamp for record in found) == batch.max_timestamp
    assert batch.base_offset == offsets[0]
    assert batch.last_offset >= offsets[-1]
    return [
        Row(offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for offset, record in zip(offsets, found, strict=True)
    ]


def stage(raw: bytearray, wanted_offset: int) -> RecordBatch:
    result = classify(memoryview(raw), wanted_offset, None)
    assert result.problem is None
    assert result.last_epoch == 5
    (batch,) = result.batches
    return batch


@relaxed
@given(rows, codecs, st.data())
def test_renumber_and_cut_keep_what_is_wanted(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], codec: Codec, pick: st.DataObject
) -> None:
    source = number(drawn, BASE)
    wanted_offset = pick.draw(st.integers(0, source[-1].offset - BASE)) + BASE
    batch = stage(build(source, codec), wanted_offset)
    assert read(batch) == [row for row in source if row.offset >= wanted_offset]
    assert batch.last_offset == source[-1].offset


@relaxed
@given(rows, codecs, st.integers(0, 2**41))
def test_log_append_time_goes_into_every_record(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], codec: Codec, append_time: int
) -> None:
    source = number(drawn, BASE)
    batch = stage(build(source, codec, append_time=append_time), 0)
    assert read(batch) == [row._replace(timestamp=append_time) for row in source]


@relaxed
@given(rows, codecs, st.integers(150, 4000))
def test_split_parts_fit_and_hold_everything_in_order(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], codec: Codec, most: int
) -> None:
    source = number(drawn, BASE)
    batch = stage(build(source, codec), 0)
    parts, too_large = split(batch, most)
    assert all(part.size <= most for part in parts)
    found = [row for part in parts for row in read(part)]
    assert found == source[: len(found)]
    if too_large is None:
        assert found == source
        assert parts[-1].last_offset == batch.last_offset
        following = [part.base_offset for part in parts[1:]]
        assert [part.last_offset + 1 for part in parts[:-1]] == following
    else:
        assert too_large.offset == source[len(found)].offset
        assert too_large.size_bytes > most


@relaxed
@given(st.lists(st.tuples(rows, codecs), min_size=1, max_size=5))
def test_merge_joins_everything_in_order(
    drawn: list[tuple[list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], Codec]],
) -> None:
    batches: list[RecordBatch] = []
    source: list[Row] = []
    for one, codec in drawn:
        more = number(one, source[-1].offset + 1 if source else BASE)
        batches.append(stage(build(more, codec), 0))
        source += more
    merged = merge(batches)
    assert read(merged) == source
    assert merged.codec in {batch.codec for batch in batches}
    assert (merged.base_offset, merged.last_offset) == (BASE, source[-1].offset)


@relaxed
@given(rows, codecs, codecs)
def test_recompress_changes_nothing_but_the_codec(
    drawn: list[tuple[int, int, Key, Key, list[tuple[str, Key]]]], before: Codec, after: Codec
) -> None:
    source = number(drawn, BASE)
    batch = stage(build(source, before), 0)
    changed = recompress(batch, after)
    assert changed.codec is after
    assert (changed.runs, changed.last_offset) == (batch.runs, batch.last_offset)
    assert read(changed) == source
