"""The format of archives (docs/reference/jobs.md): names of files, manifests, and the Parquet rows
of the shape ``batches``.

Layout below ``<path>/<source>-<target>``: ``manifest.json`` (whose, which shape), per topic
``topic=<t>/topic.json`` (id, partitions, configs) and ``ranges.json`` (how far its partitions are),
per file of a partition ``<first>.json`` in its folder, and the Parquet file that it names in that
of its date. The manifests of a partition are a chain: each begins where the one before it ended,
and has the digest of its file. Of those that begin at the same offset, as writers leave them in a
store without hard links (``<first>.<token>.json``), the widest counts, and the file of another one
is removed; one that begins inside of it counts from where it ends. Of what is archived ahead of its
turn they are ``<first>.staged`` until the chain has reached them: nobody reads it before that. One
that takes the place of several (``archive_upkeep``) is there before they are removed; readers that
miss one of them list the folder again. No I/O but through ``ArchiveStore``.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from enum import StrEnum
from functools import partial
from hashlib import file_digest
from io import BufferedIOBase
from itertools import groupby
from operator import attrgetter
from typing import Final, Self, TypeVar, cast, final

import pyarrow as pa
from pyarrow import parquet
from pydantic import TypeAdapter, ValidationError

from mm2py.errors import ConfigError, FatalError, PartitionError, ProtocolError
from mm2py.mirror.backfills import NO_END
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive_store import DATE, ArchiveStore
from mm2py_jobs.log.log_batches import LogBatch, log_batch

VERSION: Final = 2
_WITHOUT_DATES: Final = 1
"""Version whose files are all in the folder of their partition, also those that are added."""
PUBLISHED: Final = "json"
STAGED: Final = "staged"
_RANGES: Final = "ranges.json"
_JOINED: Final = "joined.json"
_WHOSE: Final = ("version", "flow", "source_cluster", "shape", "topic", "topic_id")
"""Members of a head that are the same in each run of an archive."""

_DAY_MS: Final = 24 * 3_600 * 1_000
_EPOCH: Final = date(1970, 1, 1).toordinal()
_NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
"""What Hive, Spark, DuckDB and pyarrow read as null."""
_FILE: Final = re.compile(rf"(?:{DATE}[\w-]+/)?[^/]+")
_SPAN: Final = re.compile(rf"(?:{DATE}[^/]+/)?\.?(\d+)-(\d+)\..*\.parquet(?:\.\w+\.tmp)?")
"""Of a file, also one that is not whole."""

T = TypeVar("T")

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

    @property
    def is_dated(self) -> bool:
        """Whether files are in folders of their dates."""
        return self.version > _WITHOUT_DATES


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
        if not _FILE.fullmatch(manifest.file):
            raise ConfigError(f"{name} is damaged: its file is in another folder")
        return manifest


_MANIFEST: Final = TypeAdapter(FileManifest)


def partition_folder(tp: TopicPartition) -> str:
    """Return where the files of a partition are."""
    return f"topic={tp.topic}/partition={tp.partition}"


def day_of(timestamp_ms: int) -> int:
    """Return the date of a timestamp in UTC, as days since 1970; -1: it has none, or one after the
    year 9999, as of a writer that counts microseconds."""
    day = timestamp_ms // _DAY_MS
    return day if 0 <= day <= date.max.toordinal() - _EPOCH else -1


def date_folder(day: int) -> str:
    """Return the folder of the files of a date, within that of their partition."""
    return f"{DATE}{_NO_DATE if day < 0 else date.fromordinal(_EPOCH + day)}"


def manifest_stem(tp: TopicPartition, begins: int) -> str:
    """Return the name, without its kind, of the manifest that speaks from ``begins`` on: two
    writers of the same range meet there."""
    return f"{partition_folder(tp)}/{begins:020d}"


def put_manifest(store: ArchiveStore, manifest: FileManifest, *, staged: bool = False) -> bool:
    """Publish a manifest, or stage it until the chain has reached it; False where another one
    begins there."""
    tp = TopicPartition(manifest.topic, manifest.partition)
    kind = STAGED if staged else PUBLISHED
    return store.publish(manifest_stem(tp, manifest.begins), kind, manifest.to_bytes())


def settled(store: ArchiveStore, tp: TopicPartition, read: Callable[[list[str]], T]) -> T:
    """Return what ``read`` makes of the names in the folder of a partition; it is called again
    where it fails and other names are there by now: files were joined meanwhile."""
    names = store.files(partition_folder(tp))
    while True:
        try:
            return read(names)
        except (FatalError, PartitionError):
            before, names = names, store.files(partition_folder(tp))
            if names == before:
                raise


def manifests_in(
    store: ArchiveStore,
    tp: TopicPartition,
    first: int,
    end: int,
    kinds: Collection[str] = (PUBLISHED, STAGED),
) -> dict[int, FileManifest]:
    """Return the manifests that begin in a range, by where they do, the widest of several; reads no
    others."""

    def read(names: Sequence[str]) -> dict[int, FileManifest]:
        found: dict[int, FileManifest] = {}
        for name in names:
            if kind_of(name) in kinds and first <= begins_of(name) < end:
                manifest = manifest_at(store, tp, name)
                other = found.get(manifest.begins)
                if other is None or other.end < manifest.end:
                    found[manifest.begins] = manifest
        return found

    return settled(store, tp, read)


def begins_of(name: str) -> int:
    """Return from where on a manifest of a name speaks."""
    return int(name.partition(".")[0])


def kind_of(name: str) -> str:
    """Return what the name of a file ends with."""
    return name.rpartition(".")[2]


def begun_in(names: Iterable[str]) -> list[int]:
    """Return where the published manifests of a folder begin, in its order."""
    return [begins_of(it) for it in names if kind_of(it) == PUBLISHED]


def files_in(names: Iterable[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the files of a folder, whole or not, with their first and last offset."""
    for name in names:
        if match := _SPAN.fullmatch(name):
            yield name, int(match[1]), int(match[2])


def _begins_at(name: str, kind: str, begins: int) -> bool:
    return kind_of(name) == kind and begins_of(name) == begins


def manifest_at(store: ArchiveStore, tp: TopicPartition, name: str) -> FileManifest:
    """Read a manifest.

    Raises:
        ConfigError: it is damaged.
        PartitionError: it is of another partition, or does not begin where its name says.
    """
    path = f"{partition_folder(tp)}/{name}"
    manifest = FileManifest.parse(store.read(path), path)
    if (manifest.topic, manifest.partition) != tp or manifest.begins != begins_of(name):
        raise _broken(tp, path, manifest, begins_of(name))
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
    its last manifest alone, or where a file before it ends later also that one's: a run that was
    frozen has published the last within a range that others have joined.

    Raises:
        ConfigError: that is damaged.
        PartitionError: it is of another partition.
    """

    def read(names: Sequence[str]) -> tuple[int, int] | None:
        begun = begun_in(names)
        if not begun:
            return None
        end = max(it.end for it in _begun_at(store, tp, begun[-1], names))
        wider = {
            begun[bisect_right(begun, first) - 1]
            for _, first, last in files_in(names)
            if begun[0] <= first < begun[-1] and last >= end
        }
        others = (it.end for begins in wider for it in _begun_at(store, tp, begins, names))
        return begun[0], max([end, *others])

    return settled(store, tp, read)


def range_by_names(store: ArchiveStore, tp: TopicPartition) -> tuple[int, int]:
    """Return from where to where a partition is archived, at least where its last manifest cannot
    be read."""
    with suppress(ConfigError, PartitionError):
        return range_of_chain(store, tp) or (0, 0)
    begun = begun_in(store.files(partition_folder(tp)))
    return begun[0], begun[-1] + 1


def _begun_at(
    store: ArchiveStore, tp: TopicPartition, begins: int, names: Sequence[str]
) -> list[FileManifest]:
    return [manifest_at(store, tp, it) for it in names if _begins_at(it, PUBLISHED, begins)]


def publish_staged(store: ArchiveStore, tp: TopicPartition, log_start: int = -1) -> bool:
    """Publish what was archived ahead of its turn, as far as the chain reaches it by now; return
    whether any is still staged.

    What another run has archived meanwhile is removed; a run may also have continued behind what is
    staged here. Two may do this at once. ``log_start``: a chain may begin with what is staged if
    the log has nothing before it any more.
    """
    folder = partition_folder(tp)
    waiting = [it for it in store.files(folder) if kind_of(it) == STAGED]
    there = range_of_chain(store, tp) if waiting else None
    end = -1 if there is None else there[1]
    if waiting and end < 0 and begins_of(waiting[0]) <= log_start:
        end = begins_of(waiting[0])
    for number, name in enumerate(waiting):
        if begins_of(name) > end:
            return True
        try:
            manifest = manifest_at(store, tp, name)
        except FatalError:
            return number + 1 < len(waiting)  # another one is doing it
        is_there = manifest.end <= end and _has_all(store, tp, manifest)
        is_there = is_there or not put_manifest(store, manifest)
        begun = partial(_begun_at, store, tp, manifest.begins)
        if is_there and manifest not in settled(store, tp, begun):
            store.delete(f"{folder}/{manifest.file}")
        else:
            end = max(end, manifest.end)
        store.delete(f"{folder}/{name}")
    return False


def _has_all(store: ArchiveStore, tp: TopicPartition, staged: FileManifest) -> bool:
    """Whether published manifests have all of what one has that is staged."""
    begun = begun_in(store.files(partition_folder(tp)))
    low = begun[max(0, bisect_right(begun, staged.begins) - 1)]
    end = staged.begins
    for begins, it in manifests_in(store, tp, low, staged.end, (PUBLISHED,)).items():
        end = max(end, it.end) if begins <= end else end
    return end >= staged.end


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
    if members.get("version") not in {_WITHOUT_DATES, VERSION}:
        raise ConfigError(f"{store.path} has an archive of version {members.get('version')}")
    try:
        shape = Shape(str(members["shape"]))
        return ArchiveHead(
            flow=str(members["flow"]),
            source_cluster=str(members["source_cluster"]),
            shape=shape,
            version=int(str(members["version"])),
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


def chain_of(
    store: ArchiveStore, tp: TopicPartition, since: int = 0, until: int = NO_END
) -> list[FileManifest]:
    """Return the manifests of a partition, in order, also those that wait to be published; what two
    of them have is left out of the later one. Those that begin before ``since`` are not read, nor
    those from ``until`` on.

    Raises:
        ConfigError: one is damaged.
        PartitionError: one is missing between others, or is not of this partition.
    """
    return settled(store, tp, lambda names: list(chain_in(store, tp, names, since, until)))


def chain_in(
    store: ArchiveStore,
    tp: TopicPartition,
    names: Sequence[str],
    since: int = 0,
    until: int = NO_END,
) -> Iterator[FileManifest]:
    """Yield ``chain_of``, each manifest as it is read, of the names of a folder."""
    kinds = (PUBLISHED, STAGED)
    there = [it for it in names if kind_of(it) in kinds and since <= begins_of(it) < until]
    end = -1
    for begins, same in groupby(there, begins_of):
        read = [it for it in same if kind_of(it) == PUBLISHED or 0 <= begins <= end]
        if not read:
            continue
        manifest = max((manifest_at(store, tp, it) for it in read), key=attrgetter("end"))
        edge = begins if end < 0 else end
        if begins > edge:
            raise _broken(tp, f"{partition_folder(tp)}/{read[0]}", manifest, edge)
        if manifest.end > edge:
            yield manifest if begins == edge else manifest.after(edge)
            end = manifest.end


def records_ahead(store: ArchiveStore, tp: TopicPartition, end: int) -> int:
    """Return how many records are archived ahead of a chain that ends there, which no restore
    reads."""
    names = (it for it in store.files(partition_folder(tp)) if kind_of(it) == STAGED)
    return sum(manifest_at(store, tp, it).records for it in names if begins_of(it) >= end)


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


def note_joined(store: ArchiveStore, topic: str, positions: Mapping[int, int]) -> None:
    """Keep from which offset on the files of partitions may still be joined."""
    known = noted_joined(store, topic)
    if (joined := {**known, **positions}) != known:
        document = {str(it): joined[it] for it in sorted(joined)}
        store.replace(f"topic={topic}/{_JOINED}", _document(document))


def noted_joined(store: ArchiveStore, topic: str) -> dict[int, int]:
    """Return what ``note_joined`` kept; nothing where it cannot be read: all files are looked at
    then."""
    name = f"topic={topic}/{_JOINED}"
    try:
        members = _members(store.read(name), name) if store.exists(name) else {}
        return {int(it): int(str(offset)) for it, offset in members.items()}
    except (ConfigError, FatalError, ValueError):
        return {}


def offset_at(store: ArchiveStore, tp: TopicPartition, timestamp: int, until: int = NO_END) -> int:
    """Return the offset of the first batch with a record that is not older, the archive's end if
    there is none; of files that begin before ``until``.

    By halves, as a broker's index has it: of a chain of thousands of files a few are opened, and
    these two columns of them.
    """

    def young(manifest: FileManifest, names: Sequence[str]) -> list[int]:
        try:
            columns = store.columns(
                f"{partition_folder(tp)}/{manifest.file}", ("base_offset", "max_timestamp")
            )
        except FatalError:
            if store.files(partition_folder(tp)) != names:
                raise
            return [manifest.first]  # damaged, which its lane reports
        rows = cast("Sequence[Mapping[str, int]]", columns)
        return [row["base_offset"] for row in rows if row["max_timestamp"] >= timestamp]

    def read(names: Sequence[str]) -> int:
        chain = list(chain_in(store, tp, names, until=until))
        files = [it for it in chain if it.records]
        at = bisect_left(files, 1, key=lambda it: bool(young(it, names)))
        if at < len(files):
            return young(files[at], names)[0]
        return chain[-1].end if chain else 0

    return settled(store, tp, read)


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


def digest_of(file: BufferedIOBase) -> tuple[int, str]:
    """Return the size and the SHA-256 of a local file."""
    file.seek(0)
    digest = file_digest(file, "sha256").hexdigest()
    return file.tell(), digest


def whole_file(store: ArchiveStore, manifest: FileManifest) -> BufferedIOBase:
    """Return a file of the local disk with the bytes of an archived one; ``PartitionError``: they
    are not those of its manifest."""
    name = _path_of(manifest)
    file = store.opened(name)
    with store.reading(name):
        size, digest = digest_of(file)
    if (size, digest) != (manifest.size_bytes, manifest.sha256):
        file.close()
        raise _damaged(
            manifest,
            f"{name} has {size} bytes with digest {digest}, its manifest "
            f"{manifest.size_bytes} with {manifest.sha256}",
        )
    return file


def archived_batches(store: ArchiveStore, manifest: FileManifest) -> Iterator[LogBatch]:
    """Yield the batches of a file whose digest is right, a row group in memory at a time;
    ``PartitionError``: the file or a batch is not what its manifest has."""
    with whole_file(store, manifest) as opened:
        if not manifest.size_bytes:
            return
        for rows in rows_of(store, manifest, parquet.ParquetFile(opened)):
            runs, batches = rows.column("runs").to_pylist(), rows.column("batch").to_pylist()
            for text, content in zip(runs, batches, strict=True):
                yield _restored(manifest, str(text), cast("bytes", content))


def rows_of(
    store: ArchiveStore, manifest: FileManifest, file: parquet.ParquetFile
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, a row group in memory at a time; ``FatalError``: they cannot be
    read, as on NFS when another machine has removed the file."""
    for number in range(file.num_row_groups):
        with store.reading(_path_of(manifest)):
            found = file.read_row_group(number).to_batches()
        yield from found


def _path_of(manifest: FileManifest) -> str:
    tp = TopicPartition(manifest.topic, manifest.partition)
    return f"{partition_folder(tp)}/{manifest.file}"


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
