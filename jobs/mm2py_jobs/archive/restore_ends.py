"""Where a restored partition ends (``--to``), and what of the archive it leaves out.

Flow: chain of manifests, each as it is read -> the file with the end, by the newest timestamp of
its footer -> ``RestoredChain``. Of a file at a time the records are read, and only of the one where
the end is. What is damaged behind the end does not matter.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from mm2py.errors import Mm2pyError
from mm2py.mirror.start_positions import Boundary
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive_format import (
    FileManifest,
    archived_batches,
    chain_in,
    chain_of,
    settled,
)
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.archive.archive_upkeep import footer_of
from mm2py_jobs.log.log_batches import records_in
from mm2py_jobs.verify.log_entries import entries_of

UNKNOWN: Final = -1


class RestoredChain(NamedTuple):
    """The manifests of what is restored of a partition, where the archive begins, and the exclusive
    end.

    ``is_cut``: the end is the one that was asked for, not the archive's. ``left_out`` are the
    archived records from there on, ``UNKNOWN`` where their manifests cannot be read.
    """

    files: Sequence[FileManifest]
    begins: int
    end: int
    is_cut: bool
    left_out: int


def restored_chain(store: ArchiveStore, tp: TopicPartition, to: Boundary) -> RestoredChain:
    """Return what of a partition is restored.

    A time ends it as offsetsForTimes does (KIP-79): before the first record in log order that is
    not older.

    Raises:
        ConfigError, PartitionError, ProtocolError: what lies before the end is damaged.
        FatalError: a file cannot be read.
    """

    def read(names: Sequence[str]) -> RestoredChain:
        files: list[FileManifest] = []
        manifests = chain_in(store, tp, names)
        for manifest in manifests:
            stop = _stop_in(store, manifest, to)
            if stop < 0:
                files.append(manifest)
                continue
            files += [manifest] if manifest.begins < stop else []
            begun = (files or [manifest])[0].first
            left_out = _left_out(store, manifest, stop, manifests)
            return RestoredChain(files, begun, stop, is_cut=True, left_out=left_out)
        first, end = (files[0].first, files[-1].end) if files else (0, 0)
        return RestoredChain(files, first, end, is_cut=to.offset == end, left_out=0)

    return settled(store, tp, read)


def _stop_in(store: ArchiveStore, manifest: FileManifest, to: Boundary) -> int:
    """Return the end if it lies in a file, or in the gap before it; else -1."""
    if to.offset is not None:
        return to.offset if to.offset < manifest.end else -1
    timestamp = to.timestamp
    if timestamp is None or not manifest.records or footer_of(store, manifest).newest < timestamp:
        return -1
    for batch in archived_batches(store, manifest):
        if batch.max_timestamp < timestamp:
            continue
        for it in entries_of(batch):
            if manifest.first <= it.offset and it.timestamp >= timestamp:
                return it.offset
    return -1


def _left_out(
    store: ArchiveStore, manifest: FileManifest, stop: int, behind: Iterable[FileManifest]
) -> int:
    with suppress(Mm2pyError):
        return _records_of(store, manifest, stop, manifest.end) + sum(it.records for it in behind)
    return UNKNOWN


def archived_records(store: ArchiveStore, tp: TopicPartition, first: int, end: int) -> int:
    """Return how many records are archived of ``first <= offset < end``; raises as ``chain_of`` and
    ``archived_batches``."""
    chain = chain_of(store, tp, until=end)
    return sum(_records_of(store, it, first, end) for it in chain if it.end > first)


def _records_of(store: ArchiveStore, manifest: FileManifest, first: int, end: int) -> int:
    if first <= manifest.first and manifest.end <= end:
        return manifest.records
    first, end = max(first, manifest.first), min(end, manifest.end)
    if not manifest.records or first >= end:
        return 0
    batches = archived_batches(store, manifest)
    return sum(records_in(it, first, end) for it in batches if it.last_offset >= first)
