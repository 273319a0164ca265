"""Rows of an Arrow batch as records of partitions, column by column; no object of Python per row.

Flow: columns of ``format("mm2py")`` -> ``SinkRows`` -> topics, partitions and an order of the rows
by pyarrow -> ``pack`` reads key, value and headers from Arrow's own buffers -> payload of a batch.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, cast, final

import pyarrow as pa
import pyarrow.compute as pc

from mm2py.errors import FatalError
from mm2py.protocol.columns import pack, spread
from mm2py.protocol.kernel import Given
from mm2py.protocol.record_batch import HEADER_BYTES

_HALF: Final = 32
_LOWER: Final = 2**_HALF - 1


class RowGroup(NamedTuple):
    """Rows of one partition in their order; partition -1: any, as they have no key."""

    topic: str
    partition: int
    order: memoryview
    """Of uint64: their numbers in the Arrow batch."""


@final
class SinkRows:
    """The columns of an Arrow batch that a sink writes.

    Args:
        batch: the rows.
        columns: names of those of its columns that are written.
        topic: of all rows; None: the column ``topic`` has it.
        first: the number of the first row in its task, for messages.

    Raises:
        FatalError: a row has no topic, or a negative partition.
    """

    def __init__(
        self, batch: pa.RecordBatch, columns: Collection[str], *, topic: str | None, first: int
    ) -> None:
        there = {name: batch.column(name) for name in columns}
        self.count, self.first = batch.num_rows, first
        self._values = _given(_binary(there["value"]))
        self._keys = _given(_binary(there["key"])) if "key" in there else None
        self._headers = self._names = self._texts = None
        if "headers" in there:
            headers = cast("pa.ListArray", there["headers"])
            names, texts = cast("pa.StructArray", headers.values).flatten()
            self._headers = _given(headers, has_bytes=False)
            self._names, self._texts = _given(_binary(names)), _given(_binary(texts))
        self._partitions: pa.Array | None = None
        if "partition" in there:
            self._partitions = there["partition"].cast(pa.int32())
            row = _first_true(pc.less(self._partitions, 0))
            if row >= 0:
                raise FatalError(
                    f"row {first + row} has the partition {self._partitions[row].as_py()}"
                )
        if topic is not None:
            self.topics = [topic]
            self._codes = pa.repeat(pa.scalar(0, pa.int32()), self.count)
        else:
            self._codes, self.topics = self._coded(there["topic"].cast(pa.string()))

    def _coded(self, names: pa.Array) -> tuple[pa.Array, list[str]]:
        is_missing = pc.if_else(pc.is_null(names), True, pc.equal(pc.binary_length(names), 0))  # noqa: FBT003 - a value
        row = _first_true(is_missing)
        if row >= 0:
            raise FatalError(
                f"row {self.first + row} has no topic",
                remedy="fill the column topic, or set the option topic",
            )
        coded = cast("pa.DictionaryArray", names.dictionary_encode())
        return coded.indices, cast("list[str]", coded.dictionary.to_pylist())

    def beyond(self, partitions: Mapping[str, int]) -> tuple[int, str, int] | None:
        """Return the first row that names a partition which its topic does not have, with topic
        and partition."""
        if self._partitions is None:
            return None
        row = _first_true(pc.greater_equal(self._partitions, self._most(partitions)))
        if row < 0:
            return None
        topic = self.topics[cast("int", self._codes[row].as_py())]
        return self.first + row, topic, cast("int", self._partitions[row].as_py())

    def groups(self, partitions: Mapping[str, int]) -> list[RowGroup]:
        """Return the rows by partition: the one that a row names, or Java's for its key.

        ``partitions`` has the number of partitions of each topic.
        """
        chosen = self._by_key(partitions)
        if self._partitions is not None:
            chosen = pc.coalesce(self._partitions, chosen)
        places = pc.add(
            pc.multiply(self._codes.cast(pa.int64()), 2**_HALF), pc.add(chosen.cast(pa.int64()), 1)
        )
        # A stable sort: rows of a partition stay in their order.
        sorted_rows = pc.sort_indices(places).buffers()[1]
        assert sorted_rows is not None, "a batch has rows"
        order = memoryview(sorted_rows).cast("B").cast("Q")
        found, begin = list[RowGroup](), 0
        sizes = dict(zip(*(it.to_pylist() for it in places.value_counts().flatten()), strict=True))
        for place, size in sorted(cast("dict[int, int]", sizes).items()):
            topic = self.topics[place >> _HALF]
            found.append(RowGroup(topic, (place & _LOWER) - 1, order[begin : begin + size]))
            begin += size
        return found

    def pack(self, order: memoryview, start: int, limit: int) -> tuple[bytearray, int]:
        """Return the records of ``order`` from its place ``start`` on behind room for a header, and
        how many fit into ``limit`` bytes: one at least.

        Raises:
            FatalError: a header has no key, or a record is larger than 1 GiB.
        """
        try:
            return pack(
                order, start, limit, HEADER_BYTES,
                self._keys, self._values, self._headers, self._names, self._texts,
            )  # fmt: skip
        except ValueError as error:  # the C kernel knows none of our errors
            row = self.first + order[start]
            raise FatalError(f"row {row} of this task, or one behind it: {error}") from None

    def _most(self, partitions: Mapping[str, int]) -> pa.Array:
        counts = pa.array([partitions[it] for it in self.topics], pa.int32())
        return pc.take(counts, self._codes)

    def _by_key(self, partitions: Mapping[str, int]) -> pa.Array:
        keys = self._keys
        if keys is None:
            return pa.repeat(pa.scalar(-1, pa.int32()), self.count)
        sizes = {partitions[it] for it in self.topics}
        spreads = {
            size: pa.Array.from_buffers(pa.int32(), self.count, [None, pa.py_buffer(spread(keys, size))])
            for size in sizes
        }  # fmt: skip
        _, chosen = spreads.popitem()
        if spreads:
            most = self._most(partitions)
            for size, found in spreads.items():
                chosen = pc.if_else(pc.equal(most, size), found, chosen)
        return chosen


def _first_true(mask: pa.Array) -> int:
    return cast("int", pc.index(mask, True).as_py())


def _binary(column: pa.Array) -> pa.Array:
    """Return bytes with ends of 32 bits, also of text: its UTF-8."""
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _given(column: pa.Array, *, has_bytes: bool = True) -> Given:
    bits, ends, *rest = (None if it is None else memoryview(it) for it in column.buffers()[: 2 + has_bytes])  # fmt: skip
    data = rest[0] if has_bytes else None
    return bits, b"" if ends is None else ends, data, column.offset, len(column)
