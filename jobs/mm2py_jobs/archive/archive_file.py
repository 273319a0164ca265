"""A Parquet file of an archive on the local disk of its task, while it is written: no task needs
the memory of a whole one.

Flow: batches of a log, or rows of other files -> row groups of ``GROUP_BYTES`` -> a local file
without a name, which the system frees however the process ends -> ``ArchiveStore.replace``, when
its end, its date and its digest are known.
"""

from collections.abc import Sequence
from contextlib import suppress
from io import BufferedIOBase
from typing import Final, final

import pyarrow as pa
from pyarrow import parquet

from mm2py.protocol.record_batch import Codec
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive_format import BATCHES, Shape, batch_row, day_of
from mm2py_jobs.archive.archive_store import local_file, on_local_disk
from mm2py_jobs.log.log_batches import LogBatch, records_in
from mm2py_jobs.log.mirror_producers import producer_of
from mm2py_jobs.spark.record_columns import ARROW_SCHEMA, RecordColumns

GROUP_BYTES: Final = 8 * 1024 * 1024


@final
class GroupedRows:
    """A Parquet file whose row groups are written as they fill; raises ``FatalError``: the local
    disk takes no more."""

    def __init__(self, schema: pa.Schema, *, packs: bool) -> None:
        with on_local_disk():
            self.file: Final = local_file()
        codec = "zstd" if packs else "none"
        self._writer = parquet.ParquetWriter(self.file, schema, compression=codec)
        self._waiting: list[pa.RecordBatch] = []
        self._size = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._size += rows.nbytes
        if self._size >= GROUP_BYTES:
            self._flush()

    def end(self) -> BufferedIOBase:
        """Return the whole file."""
        self._flush()
        with on_local_disk():
            self._writer.close()
            self.file.flush()
        return self.file

    def close(self) -> None:
        """Free the disk."""
        self._writer.is_open = False  # its finalizer would write to the closed file
        with suppress(OSError):  # of what a full disk has not taken
            self.file.close()

    def _flush(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting:
            with on_local_disk():
                self._writer.write_table(pa.Table.from_batches(waiting).combine_chunks())


@final
class ArchiveFile:
    """What there is of ``first <= offset < end`` of a log.

    ``day`` is the latest date of its batches, ``last_offsets`` by the ids of their producers.
    """

    def __init__(self, tp: TopicPartition, shape: Shape, first: int, end: int) -> None:
        self._shape, self._first, self._end = shape, first, end
        self._columns = RecordColumns(tp, first, end)
        self._waiting: list[LogBatch] = []
        self._held = 0
        self._out: GroupedRows | None = None
        self.log_bytes = self.records = 0
        self.day = -1
        self.last_offsets: dict[int, int] = {}

    def add(self, batch: LogBatch) -> None:
        """Add the next batch.

        Raises:
            ProtocolError: a record is damaged.
            FatalError: the local disk takes no more.
        """
        # What is compressed already is not compressed again.
        out = self._opened(packs=batch.codec is Codec.NONE)
        self.log_bytes += len(batch.data)
        self.records += records_in(batch, self._first, self._end)
        self.day = max(self.day, day_of(batch.max_timestamp))
        self.last_offsets[producer_of(batch)] = batch.last_offset
        if self._shape is Shape.RECORDS:
            for rows in self._columns.take(batch):
                out.add(rows)
            return
        self._waiting.append(batch)
        self._held += len(batch.data)
        if self._held >= GROUP_BYTES:
            self._pack(out)

    def end(self) -> BufferedIOBase:
        """Return the whole file; raises as ``add``."""
        out = self._opened(packs=True)
        if self._shape is Shape.RECORDS:
            for rows in self._columns.rest():
                out.add(rows)
        elif self._waiting:
            self._pack(out)
        return out.end()

    def close(self) -> None:
        """Free the disk; may be called again."""
        if self._out is not None:
            self._out.close()

    def _opened(self, *, packs: bool) -> GroupedRows:
        if self._out is None:
            if self._shape is Shape.RECORDS:
                self._out = GroupedRows(ARROW_SCHEMA, packs=True)
            else:
                self._out = GroupedRows(BATCHES, packs=packs)
        return self._out

    def _pack(self, out: GroupedRows) -> None:
        batches, self._waiting, self._held = self._waiting, [], 0
        out.add(_batch_rows(batches))


def _batch_rows(batches: Sequence[LogBatch]) -> pa.RecordBatch:
    columns = zip(*map(batch_row, batches), strict=True)
    arrays = [pa.array(list(column), BATCHES.field(at).type) for at, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=BATCHES)
