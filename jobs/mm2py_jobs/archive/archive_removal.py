"""Removes what an archive does not need: files of killed attempts, what a joined file takes the
place of, and what is too old.

Flow: the names in a partition's folder -> manifests of a range -> manifests go first, then files,
so that a kill leaves files that nothing names, for the next one to remove.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive_format import (
    PUBLISHED,
    STAGED,
    FileManifest,
    begins_of,
    begun_in,
    files_in,
    kind_of,
    manifest_at,
    manifests_in,
    partition_folder,
    range_of_chain,
    settled,
)
from mm2py_jobs.archive.archive_store import ArchiveStore, each

JOINED_FILE: Final = ".joined.parquet"
"""How the name of a file ends that was made of others: until its manifest is there it doubles them,
and only who joins removes it."""


def remove_doubled(store: ArchiveStore, tp: TopicPartition) -> None:
    """Remove files that a reader of all would have twice.

    Those that nothing names and others have archived are of attempts that were killed, or that
    published at the same time as a wider one. What is in a joined file was left by a join that was
    killed, or published by a run that was frozen until others had joined.
    """
    names = store.files(partition_folder(tp))
    begun = begun_in(names)
    joined = [
        (begun[bisect_right(begun, first) - 1], first, last + 1)
        for name, first, last in files_in(names)
        if JOINED_FILE in name and begun and begun[0] <= first
    ]
    for begins in crowded(names, joined):
        remove_replaced(store, tp, begins)
    _remove_unnamed(store, tp, [it for it in names if JOINED_FILE not in it])


def _remove_unnamed(store: ArchiveStore, tp: TopicPartition, names: Sequence[str]) -> None:
    """Only below the end of the chain: no run that still writes one can publish it there, or what
    is published counts in its place."""
    folder = partition_folder(tp)
    doubled: dict[str, tuple[int, int]] = {}
    widest, reach = "", (-1, -1)
    for name, first, last in files_in(names):
        if first <= reach[1]:
            doubled |= {name: (first, last), widest: reach}
        if last > reach[1]:
            widest, reach = name, (first, last)
    there = range_of_chain(store, tp) if doubled else None
    if there is None:
        return
    first, last = min(it for it, _ in doubled.values()), max(it for _, it in doubled.values())
    begun = [begins_of(it) for it in names if kind_of(it) in (PUBLISHED, STAGED)]
    # The file of the lowest one may be named by a manifest that begins with what was lost before
    # it.
    first = max((it for it in begun if it <= first), default=first)
    named = {it.file for it in manifests_in(store, tp, first, last + 1, (PUBLISHED,)).values()}
    staged = (it for it in names if kind_of(it) == STAGED and first <= begins_of(it) <= last)
    named |= {manifest_at(store, tp, it).file for it in staged}
    for name, (_, last) in doubled.items():
        if name not in named and last < there[1]:
            store.delete(f"{folder}/{name}")


def remove_replaced(store: ArchiveStore, tp: TopicPartition, begins: int) -> bool:
    """Remove the manifests, and then the files, that the widest manifest from ``begins`` on takes
    the place of; False where its own file is not there, and nothing is removed."""
    folder = partition_folder(tp)

    def replaced(names: Sequence[str]) -> tuple[bool, list[str], list[str]]:
        published = [it for it in names if kind_of(it) == PUBLISHED]
        same = {it: manifest_at(store, tp, it) for it in published if begins_of(it) == begins}
        if not same:
            return True, [], []
        counts = max(same, key=lambda it: same[it].end)
        first, end, file = same[counts].first, same[counts].end, same[counts].file
        # What is before may have lost records at its beginning, and its file in this range.
        low = max((it for it in map(begins_of, published) if it < begins), default=begins)
        others = [it for it in published if low <= begins_of(it) < end and it != counts]
        read = {it: manifest_at(store, tp, it) for it in others}
        manifests = [it for it, one in read.items() if one.begins >= begins and one.end <= end]
        spared = {file, *(one.file for it, one in read.items() if it not in manifests)}
        files = [it for it in files_within(names, first, end) if it not in spared]
        return file in names, manifests, files

    is_whole, manifests, files = settled(store, tp, replaced)
    if is_whole:
        for doomed in (manifests, files):
            each(lambda it: store.delete(f"{folder}/{it}"), doomed)
    return is_whole


def files_within(names: Sequence[str], begins: int, end: int) -> list[str]:
    """Return the files, whole or not, of a folder that have nothing outside of a range."""
    return [name for name, first, last in files_in(names) if begins <= first and last < end]


def crowded(names: Sequence[str], spans: Iterable[tuple[int, int, int]]) -> list[int]:
    """Return where manifests begin in whose range the folder has other manifests, or files;
    ``spans``: where each begins, and the first offset and end of its file."""
    firsts = sorted(first for _, first, _ in files_in(names))
    begun = sorted(begun_in(names))

    def count(at: Sequence[int], low: int, end: int) -> int:
        return bisect_left(at, end) - bisect_left(at, low)

    return [
        begins
        for begins, first, end in spans
        if count(begun, begins, end) > 1 or count(firsts, first, end) > 1
    ]


def count_from(names: Sequence[str], since: int) -> int:
    """Return how many manifests, or files where these are more, begin there or later."""
    files = sum(first >= since for _, first, _ in files_in(names))
    return max(files, sum(it >= since for it in begun_in(names)))


def remove_before(store: ArchiveStore, tp: TopicPartition, end: int) -> None:
    """Remove the manifests that end there or before, and all that is left of files before."""
    folder = partition_folder(tp)

    def older(names: Sequence[str]) -> tuple[list[str], set[str]]:
        begun = [it for it in names if kind_of(it) == PUBLISHED and begins_of(it) < end]
        read = {it: manifest_at(store, tp, it) for it in begun}
        manifests = sorted(
            (it for it, one in read.items() if one.end <= end),
            # A kill leaves a chain: what is within another one goes before that.
            key=lambda it: (read[it].end, -read[it].begins),
        )
        return manifests, {one.file for it, one in read.items() if it not in manifests}

    manifests, spared = settled(store, tp, older)
    for name in manifests:
        store.delete(f"{folder}/{name}")
    files = {
        name
        for name, first, last in files_in(store.files(folder))
        # A joined file that ends later was left by a killed run, before its manifest.
        if last < end or (first < end and JOINED_FILE in name)
    }
    each(lambda it: store.delete(f"{folder}/{it}"), files - spared)


def takes_back(store: ArchiveStore, tp: TopicPartition, manifest: FileManifest, end: int) -> bool:
    """Remove a manifest that was published when what follows it had been removed as too old, as of
    a run that was frozen: the chain would have a gap; return whether it is so.

    ``end``: up to where the same lane goes on publishing.
    """
    folder = partition_folder(tp)
    names = store.names(folder)
    begun = begun_in(names)
    behind = next((it for it in begun if it > manifest.begins), -1)
    if begun[:1] != [manifest.begins] or behind <= end:
        return False
    for name in names:
        is_there = kind_of(name) == PUBLISHED and begins_of(name) == manifest.begins
        if is_there and manifest_at(store, tp, name).file == manifest.file:
            store.delete(f"{folder}/{name}")
    return True
