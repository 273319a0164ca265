"""Records as columns in Arrow's layout, and rows of columns as records; no object per record.

Flow: payloads of batches -> ``columns`` -> buffers of a column each; buffers of columns ->
``spread`` (the partition that Java's partitioner chooses) and ``pack`` -> payload of a batch. All
three are those of the C kernel where it was built. ``mm2py_jobs.spark`` makes Arrow's arrays of
the buffers, without a copy.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, final

from mm2py.protocol.kernel import Bytes, Columns, Filled, Given, Part, native
from mm2py.protocol.record_bytes import MAX_INT64, append_record, damaged, walk
from mm2py.protocol.records import record_body, record_fields

_MAX_INT32: Final = 2**31 - 1
_MOST_RECORD_BYTES: Final = _MAX_INT32 // 2


@final
class _Filled:
    """A column that grows."""

    def __init__(self) -> None:
        self.ends, self._there, self._data = array("i", [0]), list[bool](), bytearray()

    def add(self, value: bytes | None) -> None:
        self._there.append(value is not None)
        self._data += value or b""
        if len(self._data) > _MAX_INT32:
            raise damaged("more records than columns of 2 GiB can hold")
        self.ends.append(len(self._data))

    @property
    def rows(self) -> int:
        return len(self._there)

    def buffers(self) -> Filled:
        bits = bytearray((self.rows + 7) // 8)
        for row, is_there in enumerate(self._there):
            bits[row >> 3] |= is_there << (row & 7)
        return bytearray(self.ends.tobytes()), bits, self._data


def plain_columns(parts: Sequence[Part], end: int, /) -> Columns:
    """Return the records of all parts whose offsets are below ``end``, and not below the first of
    their part. A timestamp that is not in 64 bits is -1; a header's key that is null is empty.

    Raises:
        ProtocolError: the records are damaged, or a column would be larger than 2 GiB; ValueError
            where it is the C kernel's.
    """
    offsets, stamps, kinds, header_ends = array("q"), array("q"), array("i"), array("i", [0])
    keys, values, names, texts = (_Filled() for _ in range(4))
    for payload, count, base, stamp, is_append, first, runs in parts:
        content, known = bytes(payload), _offsets(runs)
        for span in walk(content, count):
            offset = next(known, -1) if runs else base + span.offset_delta
            if not 0 <= offset <= MAX_INT64:
                raise damaged("an offset is impossible, or the runs do not count the records")
            key, value, headers = record_fields(content, span)
            if not first <= offset < end:
                continue
            offsets.append(offset)
            at = stamp if is_append else stamp + span.timestamp_delta
            stamps.append(at if ~MAX_INT64 <= at <= MAX_INT64 else -1)
            kinds.append(int(is_append))
            keys.add(key)
            values.add(value)
            for name, text in headers:
                names.add(name)
                texts.add(text)
            header_ends.append(names.rows)
    plain = [bytearray(it.tobytes()) for it in (offsets, stamps, kinds, header_ends)]
    filled = [it.buffers() for it in (keys, values, names, texts)]
    return plain[0], plain[1], plain[2], filled[0], filled[1], plain[3], filled[2], filled[3]


def _offsets(runs: Sequence[tuple[int, int]]) -> Iterator[int]:
    return chain.from_iterable(range(first, first + count) for first, count in runs)


@final
class _Given:
    """Looks values up in a column; one that is not given has none."""

    def __init__(self, given: Given | None) -> None:
        self._bits, ends, self._data, self._first, self.rows = given or (None, b"", None, 0, -1)
        self._ends = memoryview(ends).cast("B")[: len(ends) // 4 * 4].cast("i")
        last = self._first + self.rows
        bits = (last + 7) // 8 if self._bits is None else len(self._bits)
        if given is not None and (
            not (0 <= self._first <= _MAX_INT32 and 0 <= self.rows <= _MAX_INT32)
            or (self.rows and len(self._ends) < last + 1)
            or bits < (last + 7) // 8
        ):
            raise damaged("a column is shorter than its rows")

    def has(self, row: int) -> bool:
        if self.rows < 0:
            return False
        if not 0 <= row < self.rows:
            raise damaged("a row lies outside of its column")
        at = self._first + row
        return self._bits is None or bool(self._bits[at >> 3] >> (at & 7) & 1)

    def span(self, row: int, most: int) -> tuple[int, int]:
        begin, end = self._ends[self._first + row], self._ends[self._first + row + 1]
        if not 0 <= begin <= end <= most:
            raise damaged("a value lies outside of its column")
        return begin, end

    def value(self, row: int) -> bytes | None:
        if not self.has(row):
            return None
        data = b"" if self._data is None else self._data
        begin, end = self.span(row, len(data))
        return bytes(data[begin:end])


def plain_pack(  # noqa: PLR0913 - positional, as one call per batch
    order: Bytes,
    start: int,
    limit: int,
    reserve: int,
    keys: Given | None,
    values: Given,
    headers: Given | None,
    names: Given | None,
    texts: Given | None,
    /,
) -> tuple[bytearray, int]:
    """Return a payload behind ``reserve`` zero bytes, and how many rows it has.

    Those that ``order`` (uint64) names, from its place ``start`` on: as many as fit into ``limit``
    bytes, one at least. All have the timestamp of the batch.

    Raises:
        ProtocolError: columns and rows do not fit together, a header has no key, or a record is
            larger than 1 GiB; ValueError where it is the C kernel's.
    """
    key_column, value_column, list_column = _Given(keys), _Given(values), _Given(headers)
    name_column, text_column = _Given(names), _Given(texts)
    rows, out, count = memoryview(order).cast("B").cast("Q"), bytearray(reserve), 0
    for row in rows[start:]:
        if not 0 <= row < value_column.rows:
            raise damaged("a row lies outside of its column")
        key, value = key_column.value(row), value_column.value(row)
        found = list[tuple[bytes, bytes | None]]()
        if row < list_column.rows and list_column.has(row):
            for at in range(*list_column.span(row, name_column.rows)):
                name, text = name_column.value(at), text_column.value(at)
                if name is None:
                    raise damaged("a header has no key")
                found.append((name, text))
        before = len(out)
        append_record(out, record_body(key, value, found), 0, count)
        if len(out) - before > _MOST_RECORD_BYTES:
            raise damaged("a record is larger than 1 GiB")
        if count and len(out) - reserve > limit:
            del out[before:]
            break
        count += 1
    return out, count


def plain_spread(keys: Given, partitions: int, /) -> bytearray:
    """Return for each key the partition that Java's default partitioner chooses, as int32; -1
    where there is none.

    Raises:
        ProtocolError: the column is shorter than its rows, or there is no partition; ValueError
            where it is the C kernel's.
    """
    if not 1 <= partitions <= _MAX_INT32:
        raise damaged("a topic has at least one partition")
    column = _Given(keys)
    found = (column.value(row) for row in range(column.rows))
    return bytearray(
        array("i", (-1 if it is None else partition_of(it, partitions) for it in found)).tobytes()
    )


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Java's default partitioner chooses for a key."""
    # ``Utils.toPositive``: the sign bit is cut, not negated. Connect's topics
    # may be read by Java workers, and keys of one partition stay in order.
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """Hash as Java's ``Utils.murmur2``, as an unsigned 32-bit number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    length = len(data)
    value = (0x9747B28C ^ length) & mask
    whole = length & ~3
    for at in range(0, whole, 4):
        # Java's shifts keep 32 bits by themselves, here each step is masked.
        k = int.from_bytes(data[at : at + 4], "little")
        k = k * multiplier & mask
        k ^= k >> 24
        k = k * multiplier & mask
        value = (value * multiplier & mask) ^ k
    if tail := data[whole:]:
        # Java's switch falls through its cases: the bytes of the rest, the lowest first.
        value ^= int.from_bytes(tail, "little")
        value = value * multiplier & mask
    value ^= value >> 13
    value = value * multiplier & mask
    return value ^ (value >> 15)


columns: Final = plain_columns if native is None else native.columns
pack: Final = plain_pack if native is None else native.pack
spread: Final = plain_spread if native is None else native.spread
