"""The format of archives (docs/reference/jobs.md): names of files, manifests, and the Parquet rows
of the shape ``batches``.

Layout below ``<path>/<source>-<target>``: ``manifest.json`` (whose, which shape), per topic
``topic=<t>/topic.json`` (id, partitions, configs) and ``ranges.json`` (how far its partitions are),
per file of a partition ``<first>.json`` beside the Parquet file that it names. The manifests of a
partition are a chain: each begins where the one before it ended, and has the digest of its file. Of
those that begin at the same offset, as writers leave them in a store without hard links
(``<first>.<token>.json``), the widest counts, and the file of another one is removed; one that
begins inside of it counts from where it ends. Of what is archived ahead of its turn they are
``<first>.staged`` until the chain has reached them: nobody reads it before that. No I/O but through
``ArchiveStore``.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from itertools import groupby
from operator import attrgetter
from typing import Final, Self, cast, final

import pyarrow as pa
from pyarrow import parquet
from pydantic import TypeAdapter, ValidationError

from mm2py.errors import ConfigError, FatalError, PartitionError, ProtocolError
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.log.log_batches import LogBatch, log_batch

VERSION: Final = 1
_PUBLISHED: Final = "json"
_STAGED: Final = "staged"
_RANGES: Final = "ranges.json"
_FILE: Final = re.compile(r"(\d+)-(\d+)\..*\.parquet")
_WHOSE: Final = ("version", "flow", "source_cluster", "shape", "topic", "topic_id")
"""Members of a head that are the same in each run of an archive."""

BATCHES: Final = pa.schema(
    [
        pa.field("base_offset", pa.int64()),
        pa.field("last_offset", pa.int64()),
        pa.field("records", pa.int32()),
        pa.field("first_timestamp", pa.int64()),
        pa.field("max_timestamp", pa.int64()),
        pa.field("attributes", pa.int32()),
        pa.field("runs", pa.string()),
        pa.field("batch", pa.large_binary()),
    ]
)
"""One row per batch; ``runs`` is JSON for batches that were converted from old formats, else
empty."""


class Shape(StrEnum):
    """What a row of an archive is."""

    BATCHES = "batches"
    """A batch of the log, byte for byte: can be restored."""
    RECORDS = "records"
    """A record, with the columns of ``format("mm2py")``: can be queried."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveHead:
    """``manifest.json``: whose archive it is."""

    flow: str
    source_cluster: str
    shape: Shape
    version: int = VERSION


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    """``topic.json``: what a topic was when its archive began; ``begins`` and ``ends``: where the
    logs of its partitions did, not in archives of earlier versions."""

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]
    begins: Mapping[str, int] = field(default_factory=dict[str, int])
    ends: Mapping[str, int] = field(default_factory=dict[str, int])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileManifest:
    """``<first>.json``: one file of a partition, which has what there was of
    ``first <= offset < end``.

    Offsets from ``lost_from`` to ``first`` were gone from the source before they were archived; -1
    for none. ``mirrors`` are the producers of mirrors that wrote batches of it: id, alias and id of
    the cluster that they read, and the last offset.
    """

    topic: str
    partition: int
    first: int
    end: int
    records: int
    size_bytes: int
    file: str
    sha256: str
    lost_from: int = -1
    mirrors: Sequence[tuple[int, str, str, int]] = ()

    @property
    def begins(self) -> int:
        """The offset from which on it speaks."""
        return self.first if self.lost_from < 0 else self.lost_from

    def after(self, end: int) -> Self:
        """Return what it speaks of from ``end`` on; its file has more."""
        lost_from = end if end < self.first else -1
        return replace(self, first=max(self.first, end), lost_from=lost_from)

    def to_bytes(self) -> bytes:
        members = asdict(self)
        if not self.mirrors:
            del members["mirrors"]  # as versions before it wrote
        return _document(members)

    @classmethod
    def parse(cls, data: bytes, name: str) -> "FileManifest":
        """Read the file; members that it does not know are ignored. ``ConfigError``: it is none."""
        try:
            manifest = _MANIFEST.validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"{name} is damaged: {where} {first['msg']}") from None
        if "/" in manifest.file:
            raise ConfigError(f"{name} is damaged: its file is in another folder")
        return manifest


_MANIFEST: Final = TypeAdapter(FileManifest)


def partition_folder(tp: TopicPartition) -> str:
    """Return where the files of a partition are."""
    return f"topic={tp.topic}/partition={tp.partition}"


def manifest_stem(tp: TopicPartition, begins: int) -> str:
    """Return the name, without its kind, of the manifest that speaks from ``begins`` on: two
    writers of the same range meet there."""
    return f"{partition_folder(tp)}/{begins:020d}"


def put_manifest(store: ArchiveStore, manifest: FileManifest, *, staged: bool = False) -> bool:
    """Publish a manifest, or stage it until the chain has reached it; False where another one
    begins there."""
    tp = TopicPartition(manifest.topic, manifest.partition)
    kind = _STAGED if staged else _PUBLISHED
    return store.publish(manifest_stem(tp, manifest.begins), kind, manifest.to_bytes())


def manifests_in(
    store: ArchiveStore,
    tp: TopicPartition,
    first: int,
    end: int,
    kinds: Collection[str] = (_PUBLISHED, _STAGED),
) -> dict[int, FileManifest]:
    """Return the manifests that begin in a range, by where they do, the widest of several; reads no
    others."""
    found: dict[int, FileManifest] = {}
    for name in store.names(partition_folder(tp)):
        if _kind(name) in kinds and first <= _begins(name) < end:
            manifest = _manifest(store, tp, name)
            other = found.get(manifest.begins)
            if other is None or other.end < manifest.end:
                found[manifest.begins] = manifest
    return found


def _begins(name: str) -> int:
    return int(name.partition(".")[0])


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _begins_at(name: str, kind: str, begins: int) -> bool:
    return _kind(name) == kind and _begins(name) == begins


def _manifest(store: ArchiveStore, tp: TopicPartition, name: str) -> FileManifest:
    """Read a manifest.

    Raises:
        ConfigError: it is damaged.
        PartitionError: it is of another partition, or does not begin where its name says.
    """
    path = f"{partition_folder(tp)}/{name}"
    manifest = FileManifest.parse(store.read(path), path)
    if (manifest.topic, manifest.partition) != tp or manifest.begins != _begins(name):
        raise _broken(tp, path, manifest, _begins(name))
    return manifest


def _broken(tp: TopicPartition, path: str, manifest: FileManifest, expected: int) -> PartitionError:
    return PartitionError(
        f"manifest {path} speaks of {manifest.topic}-{manifest.partition} from offset "
        f"{manifest.begins}, expected {expected}",
        topic=tp.topic,
        partition=tp.partition,
        offset=expected,
        remedy="files of the archive are missing or were changed; copy it anew from where it was "
        "kept",
    )


def range_of_chain(store: ArchiveStore, tp: TopicPartition) -> tuple[int, int] | None:
    """Return from where to where (exclusive) a partition is archived, None for not at all; reads
    its last manifest alone.

    Raises:
        ConfigError: that is damaged.
        PartitionError: it is of another partition.
    """
    names = [it for it in store.names(partition_folder(tp)) if _kind(it) == _PUBLISHED]
    if not names:
        return None
    last = (it for it in names if _begins_at(it, _PUBLISHED, _begins(names[-1])))
    return _begins(names[0]), max(_manifest(store, tp, it).end for it in last)


def range_by_names(store: ArchiveStore, tp: TopicPartition) -> tuple[int, int]:
    """Return from where to where a partition is archived, at least where its last manifest cannot
    be read."""
    with suppress(ConfigError, PartitionError):
        return range_of_chain(store, tp) or (0, 0)
    firsts = [_begins(it) for it in store.names(partition_folder(tp)) if _kind(it) == _PUBLISHED]
    return firsts[0], firsts[-1] + 1


def publish_staged(store: ArchiveStore, tp: TopicPartition, log_start: int = -1) -> bool:
    """Publish what was archived ahead of its turn, as far as the chain reaches it by now; return
    whether any is still staged.

    What another run has archived meanwhile is removed. Two may do this at once. ``log_start``: a
    chain may begin with what is staged if the log has nothing before it any more.
    """
    folder = partition_folder(tp)
    waiting = [it for it in store.names(folder) if _kind(it) == _STAGED]
    there = range_of_chain(store, tp) if waiting else None
    end = -1 if there is None else there[1]
    if waiting and end < 0 and _begins(waiting[0]) <= log_start:
        end = _begins(waiting[0])
    for number, name in enumerate(waiting):
        if _begins(name) > end:
            return True
        try:
            manifest = _manifest(store, tp, name)
        except FatalError:
            return number + 1 < len(waiting)  # another one is doing it
        if manifest.end <= end or not put_manifest(store, manifest):
            begun = (
                it for it in store.names(folder) if _begins_at(it, _PUBLISHED, manifest.begins)
            )
            if all(_manifest(store, tp, it) != manifest for it in begun):
                store.delete(f"{folder}/{manifest.file}")
                store.delete(f"{folder}/{name}")
                continue
        end = max(end, manifest.end)
        store.delete(f"{folder}/{name}")
    return False


def remove_unnamed(store: ArchiveStore, tp: TopicPartition) -> None:
    """Remove files that nothing names and others have archived: a reader of all has them twice.

    They are of attempts that were killed, or that published at the same time as a wider one.

    Only below the end of the chain: nobody who still writes one can publish it there, or what is
    published counts in its place.
    """
    folder = partition_folder(tp)
    names = store.names(folder)
    doubled: dict[str, tuple[int, int]] = {}
    widest, reach = "", (-1, -1)
    for name in names:
        if match := _FILE.fullmatch(name):
            span = int(match[1]), int(match[2])
            if span[0] <= reach[1]:
                doubled |= {name: span, widest: reach}
            if span[1] > reach[1]:
                widest, reach = name, span
    there = range_of_chain(store, tp) if doubled else None
    if there is None:
        return
    first, last = min(it for it, _ in doubled.values()), max(it for _, it in doubled.values())
    begun = [_begins(it) for it in names if _kind(it) in (_PUBLISHED, _STAGED)]
    # The file of the lowest one may be named by a manifest that begins with what was lost before
    # it.
    first = max((it for it in begun if it <= first), default=first)
    named = {it.file for it in manifests_in(store, tp, first, last + 1, (_PUBLISHED,)).values()}
    staged = (it for it in names if _kind(it) == _STAGED and first <= _begins(it) <= last)
    named |= {_manifest(store, tp, it).file for it in staged}
    for name, (_, last) in doubled.items():
        if name not in named and last < there[1]:
            store.delete(f"{folder}/{name}")


def put_or_check(
    store: ArchiveStore, name: str, stored: ArchiveHead | ArchivedTopic, *, writes: bool = True
) -> None:
    """Publish a head if it ``writes``, or compare it with the one that is there.

    Raises:
        ConfigError: the archive there is another one, or a run with other settings has begun to
            write it.
        FatalError: it cannot be written.
    """
    document = asdict(stored)

    def agrees(claim: bytes) -> bool:
        try:
            return not _other_in(_members(claim, name), document)
        except ConfigError:
            return True  # who has not written all of its claim has not looked for ours yet

    if store.put_if_absent(name, _document(document), agrees) if writes else not store.exists(name):
        return
    there = _members(store.read(name), name)
    if member := _other_in(there, document):
        raise ConfigError(
            f"{store.path} has an archive with {member}={there.get(member)} in {name}, not "
            f"{document.get(member)}",
            remedy="archive to another folder",
        )


def _other_in(there: Mapping[str, object], document: Mapping[str, object]) -> str:
    """Return the member of a head that makes it the one of another archive, empty if none does."""
    return next((it for it in _WHOSE if there.get(it) != document.get(it)), "")


def head_of(store: ArchiveStore) -> ArchiveHead:
    """Return whose archive it is; ``ConfigError``: there is none."""
    if not store.exists("manifest.json"):
        raise ConfigError(f"{store.path} has no archive: there is no manifest.json")
    members = _members(store.read("manifest.json"), "manifest.json")
    if members.get("version") != VERSION:
        raise ConfigError(f"{store.path} has an archive of version {members.get('version')}")
    try:
        shape = Shape(str(members["shape"]))
        return ArchiveHead(
            flow=str(members["flow"]), source_cluster=str(members["source_cluster"]), shape=shape
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{store.path}: manifest.json is damaged: {error}") from error


def topics_in(store: ArchiveStore) -> list[str]:
    """Return the topics that an archive has."""
    folders = store.names("")
    return [it.removeprefix("topic=") for it in folders if it.startswith("topic=")]


def topic_of(store: ArchiveStore, topic: str) -> ArchivedTopic:
    """Return what a topic was when its archive began; ``ConfigError``: its file is damaged."""
    name = f"topic={topic}/topic.json"
    members = _members(store.read(name), name)
    try:
        return ArchivedTopic(
            topic=str(members["topic"]),
            topic_id=str(members["topic_id"]),
            partitions=int(str(members["partitions"])),
            configs=cast("dict[str, str]", members["configs"]),
            begins=cast("dict[str, int]", members.get("begins", {})),
            ends=cast("dict[str, int]", members.get("ends", {})),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{store.path}: {name} is damaged: {error}") from error


def chain_of(store: ArchiveStore, tp: TopicPartition) -> list[FileManifest]:
    """Return the manifests of a partition, in order, also those that wait to be published; what two
    of them have is left out of the later one.

    Raises:
        ConfigError: one is damaged.
        PartitionError: one is missing between others, or is not of this partition.
    """
    chain: list[FileManifest] = []
    folder = partition_folder(tp)
    names = [it for it in store.names(folder) if _kind(it) in (_PUBLISHED, _STAGED)]
    for begins, same in groupby(names, _begins):
        end = chain[-1].end if chain else begins
        read = [it for it in same if _kind(it) == _PUBLISHED or (chain and begins <= end)]
        if not read:
            continue
        manifest = max((_manifest(store, tp, it) for it in read), key=attrgetter("end"))
        if begins > end:
            raise _broken(tp, f"{folder}/{read[0]}", manifest, end)
        if manifest.end > end:
            chain.append(manifest if begins == end else manifest.after(end))
    return chain


def records_ahead(store: ArchiveStore, tp: TopicPartition, end: int) -> int:
    """Return how many records are archived ahead of a chain that ends there, which no restore
    reads."""
    names = (it for it in store.names(partition_folder(tp)) if _kind(it) == _STAGED)
    return sum(_manifest(store, tp, it).records for it in names if _begins(it) >= end)


def note_ranges(store: ArchiveStore, topic: str, ranges: Mapping[int, tuple[int, int]]) -> None:
    """Keep from where to where partitions are archived: what is gone from the end of a chain is
    missed by nothing else."""
    known = noted_ranges(store, topic)
    joined = dict(known)
    for partition, (begins, end) in ranges.items():
        before = known.get(partition, (begins, end))
        joined[partition] = min(begins, before[0]), max(end, before[1])
    if joined != known:
        document = {str(it): list(joined[it]) for it in sorted(joined)}
        store.replace(f"topic={topic}/{_RANGES}", _document(document))


def noted_ranges(store: ArchiveStore, topic: str) -> dict[int, tuple[int, int]]:
    """Return what ``note_ranges`` kept; nothing where that is damaged, or of an earlier version."""
    name = f"topic={topic}/{_RANGES}"
    for is_last in (False, True):  # another run may replace it while it is read
        if not store.exists(name):
            return {}
        try:
            members = cast("dict[str, list[int]]", _members(store.read(name), name))
            return {int(it): (int(begins), int(end)) for it, (begins, end) in members.items()}
        except FatalError:
            if is_last:
                raise
        except (ConfigError, ValueError, TypeError):
            continue  # the next run writes it anew
    return {}


def offset_at(store: ArchiveStore, tp: TopicPartition, timestamp: int) -> int:
    """Return the offset of the first batch with a record that is not older, the archive's end if
    there is none.

    By halves, as a broker's index has it: of a chain of thousands of files a few are opened, and
    these two columns of them.
    """
    chain = chain_of(store, tp)
    files = [it for it in chain if it.records]

    def young(manifest: FileManifest) -> list[int]:
        try:
            columns = store.columns(
                f"{partition_folder(tp)}/{manifest.file}", ("base_offset", "max_timestamp")
            )
        except FatalError:
            return [manifest.first]  # damaged, which its lane reports
        rows = cast("Sequence[Mapping[str, int]]", columns)
        return [row["base_offset"] for row in rows if row["max_timestamp"] >= timestamp]

    at = bisect_left(files, 1, key=lambda it: bool(young(it)))
    if at < len(files):
        return young(files[at])[0]
    return chain[-1].end if chain else 0


def batch_row(batch: LogBatch) -> tuple[object, ...]:
    """Return the columns of ``BATCHES`` for a batch."""
    return (
        batch.base_offset,
        batch.last_offset,
        batch.count,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.attributes,
        json.dumps(batch.runs) if batch.runs else "",
        bytes(batch.data),
    )


def archived_batches(store: ArchiveStore, manifest: FileManifest) -> Iterator[LogBatch]:
    """Yield the batches of a file whose digest is right; ``PartitionError``: the file or a batch is
    not what its manifest has."""
    tp = TopicPartition(manifest.topic, manifest.partition)
    name = f"{partition_folder(tp)}/{manifest.file}"
    data = store.read(name)
    digest = sha256(data).hexdigest()
    if (len(data), digest) != (manifest.size_bytes, manifest.sha256):
        raise _damaged(
            manifest,
            f"{name} has {len(data)} bytes with digest {digest}, its manifest "
            f"{manifest.size_bytes} with {manifest.sha256}",
        )
    if not data:
        return
    file = parquet.ParquetFile(pa.BufferReader(data))
    for group in range(file.num_row_groups):
        for rows in file.read_row_group(group).to_batches():
            runs, batches = rows.column("runs").to_pylist(), rows.column("batch").to_pylist()
            for text, content in zip(runs, batches, strict=True):
                yield _restored(manifest, str(text), cast("bytes", content))


def _restored(manifest: FileManifest, runs: str, content: bytes) -> LogBatch:
    try:
        batch = log_batch(memoryview(bytearray(content)))
    except ProtocolError as error:
        raise _damaged(manifest, error.message) from error
    if not runs:
        return batch
    pairs = tuple((first, count) for first, count in cast("list[list[int]]", json.loads(runs)))
    return LogBatch(
        batch.data,
        pairs[0][0],
        sum(pairs[-1]) - 1,
        batch.count,
        batch.attributes,
        batch.base_timestamp,
        batch.max_timestamp,
        pairs,
    )


def _damaged(manifest: FileManifest, text: str) -> PartitionError:
    return PartitionError(
        text,
        topic=manifest.topic,
        partition=manifest.partition,
        offset=manifest.first,
        remedy="the archive is damaged; copy it anew from where it was kept",
    )


def _document(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, indent=1, sort_keys=True).encode() + b"\n"


def _members(data: bytes, name: str) -> dict[str, object]:
    try:
        document: object = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{name} is no manifest: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{name} is no manifest")
    return cast("dict[str, object]", document)
