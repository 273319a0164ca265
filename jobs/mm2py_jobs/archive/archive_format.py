"""The format of archives (docs/reference/jobs.md): names of files, manifests, and the Parquet rows of the shape ``batches``.

Layout below ``<path>/<source>-<target>``: ``manifest.json`` (whose, which shape), per topic ``topic=<t>/topic.json`` (id, partitions, configs), per
file of a partition ``<first>.json`` beside the Parquet file that it names. The manifests of a partition are a chain: each begins where the
one before it ended, and has the digest of its file. Of what is archived ahead of its turn they are ``<first>.staged`` until the chain has reached
them: nobody reads it before. No I/O but through ``ArchiveStore``.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final, cast, final

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
"""One row per batch; ``runs`` is JSON for batches that were converted from old formats, else empty."""


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
    """``topic.json``: what a topic was when its archive began; ``begins`` and ``ends``: where the logs of its partitions did, not in archives of earlier versions."""

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]
    begins: Mapping[str, int] = field(default_factory=dict[str, int])
    ends: Mapping[str, int] = field(default_factory=dict[str, int])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FileManifest:
    """``<first>.json``: one file of a partition, which has what there was of ``first <= offset < end``.

    Offsets from ``lost_from`` to ``first`` were gone from the source before they were archived; -1 for none. ``mirrors`` are the
    producers of mirrors that wrote batches of it: id, alias and id of the cluster that they read, and the last offset.
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

    def to_bytes(self) -> bytes:
        """Return the file."""
        members = asdict(self)
        if not self.mirrors:
            del members["mirrors"]  # as versions before it wrote
        return _document(members)

    @classmethod
    def parse(cls, data: bytes, name: str) -> "FileManifest":
        """Read the file; members that it does not know are ignored.

        Raises:
            ConfigError: it is none.
        """
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


def manifest_name(tp: TopicPartition, begins: int) -> str:
    """Return the name of the manifest that speaks from ``begins`` on: two writers of the same range meet there."""
    return f"{partition_folder(tp)}/{begins:020d}.{_PUBLISHED}"


def staged_name(tp: TopicPartition, begins: int) -> str:
    """Return the name of a manifest that waits until the chain has reached it."""
    return f"{partition_folder(tp)}/{begins:020d}.{_STAGED}"


def manifests_in(
    store: ArchiveStore, tp: TopicPartition, first: int, end: int
) -> dict[int, FileManifest]:
    """Return the manifests that begin in a range, by where they do, published or staged; reads no others."""
    folder = partition_folder(tp)
    found: dict[int, FileManifest] = {}
    for name in store.names(folder):
        begins, _, kind = name.partition(".")
        if kind in (_PUBLISHED, _STAGED) and first <= int(begins) < end:
            manifest = FileManifest.parse(store.read(f"{folder}/{name}"), name)
            found.setdefault(manifest.begins, manifest)  # the published one first
    return found


def end_of_chain(store: ArchiveStore, tp: TopicPartition) -> int:
    """Return up to where a partition is archived, -1 for not at all; reads its last manifest alone."""
    names = [it for it in store.names(partition_folder(tp)) if it.endswith(f".{_PUBLISHED}")]
    if not names:
        return -1
    return FileManifest.parse(store.read(f"{partition_folder(tp)}/{names[-1]}"), names[-1]).end


def publish_staged(store: ArchiveStore, tp: TopicPartition, log_start: int = -1) -> bool:
    """Publish what was archived ahead of its turn, as far as the chain reaches it by now; return whether any is still staged.

    What another run has archived meanwhile is removed. Two may do this at once. ``log_start``: a chain may begin with what is staged if the
    log has nothing before it any more.
    """
    names = store.names(partition_folder(tp))
    waiting = [int(it.partition(".")[0]) for it in names if it.endswith(f".{_STAGED}")]
    end = end_of_chain(store, tp) if waiting else -1
    if waiting and end < 0 and waiting[0] <= log_start:
        end = waiting[0]
    for number, begins in enumerate(waiting):
        if begins > end:
            return True
        name, published = staged_name(tp, begins), manifest_name(tp, begins)
        try:
            data = store.read(name)
        except FatalError:
            return number + 1 < len(waiting)  # another one is doing it
        manifest = FileManifest.parse(data, name)
        if begins == end and store.put_if_absent(published, data):
            end = manifest.end
        elif not store.exists(published) or store.read(published) != data:
            store.delete(f"{partition_folder(tp)}/{manifest.file}")
        else:
            end = max(end, manifest.end)
        store.delete(name)
    return False


def put_or_check(
    store: ArchiveStore, name: str, stored: ArchiveHead | ArchivedTopic, *, writes: bool = True
) -> None:
    """Publish a head if it ``writes``, or compare it with the one that is there.

    Raises:
        ConfigError: the archive there is another one.
    """
    document = asdict(stored)
    if store.put_if_absent(name, _document(document)) if writes else not store.exists(name):
        return
    there = _members(store.read(name), name)
    for member in ("version", "flow", "source_cluster", "shape", "topic", "topic_id"):
        if there.get(member) != document.get(member):
            raise ConfigError(
                f"{store.path} has an archive with {member}={there.get(member)} in {name}, not {document.get(member)}",
                remedy="archive to another folder",
            )


def head_of(store: ArchiveStore) -> ArchiveHead:
    """Return whose archive it is.

    Raises:
        ConfigError: there is none.
    """
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
    """Return what a topic was when its archive began.

    Raises:
        ConfigError: its file is damaged.
    """
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
    """Return the manifests of a partition, in order.

    Raises:
        PartitionError: one is missing between others, or is not of this partition.
    """
    chain: list[FileManifest] = []
    for name in store.names(partition_folder(tp)):
        if not name.endswith(".json"):
            continue
        path = f"{partition_folder(tp)}/{name}"
        manifest = FileManifest.parse(store.read(path), path)
        expected = chain[-1].end if chain else manifest.begins
        if (manifest.topic, manifest.partition) != tp or manifest.begins != expected:
            raise PartitionError(
                f"manifest {path} speaks of {manifest.topic}-{manifest.partition} from offset {manifest.begins}, expected {expected}",
                topic=tp.topic,
                partition=tp.partition,
                offset=expected,
                remedy="files of the archive are missing or were changed; copy it anew from where it was kept",
            )
        chain.append(manifest)
    return chain


def offset_at(store: ArchiveStore, tp: TopicPartition, timestamp: int) -> int:
    """Return the offset of the first batch with a record that is not older, the archive's end if there is none.

    By halves, as a broker's index has it: of a chain of thousands of files a few are opened, and these two columns of them.
    """
    chain = chain_of(store, tp)
    files = [it for it in chain if it.size_bytes]

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
    """Yield the batches of a file whose digest is right.

    Raises:
        PartitionError: the file or a batch is not what its manifest has.
    """
    tp = TopicPartition(manifest.topic, manifest.partition)
    name = f"{partition_folder(tp)}/{manifest.file}"
    data = store.read(name)
    digest = sha256(data).hexdigest()
    if (len(data), digest) != (manifest.size_bytes, manifest.sha256):
        raise _damaged(
            manifest,
            f"{name} has {len(data)} bytes with digest {digest}, its manifest {manifest.size_bytes} with {manifest.sha256}",
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
