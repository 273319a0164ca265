"""Keeps an archive's files few and young: joins the small ones that many runs leave, and removes
those whose records are too old.

Flow: names of files on the driver -> lanes of partitions -> chain of manifests and footers of files
-> neighbours of one date, up to ``FILE_BYTES`` of log -> one file, its manifest, and only then the
others go. No cluster is asked, and rows are copied as they are.

Invariants; a kill, a twin, a run of the archive or a reader may be between any two steps:

1. A manifest is written when its file is whole, and counts at once: it is wider than those that it
   takes the place of.
2. Nothing is removed but what is within the range of one manifest whose own file is there, and what
   ends before the chain that retention leaves. That begins later, and has no gap.
3. The names of a joined file and its manifest have the digest of its bytes: of two runs at once one
   writes what the other has written.
4. The last file stays, however old: the next run of the archive continues behind it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from io import BufferedIOBase
from typing import Final, NamedTuple, cast, final

from pyarrow import parquet

from mm2py.client.parts import chunks
from mm2py.errors import ConfigError, FatalError, PartitionError
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive import FILE_BYTES, archive_root
from mm2py_jobs.archive.archive_file import GroupedRows
from mm2py_jobs.archive.archive_format import (
    BATCHES,
    FileManifest,
    begun_in,
    chain_in,
    date_folder,
    day_of,
    digest_of,
    manifest_stem,
    note_joined,
    noted_joined,
    partition_folder,
    publish_staged,
    rows_of,
    settled,
    topics_in,
    whole_file,
)
from mm2py_jobs.archive.archive_removal import (
    JOINED_FILE,
    count_from,
    crowded,
    remove_before,
    remove_replaced,
)
from mm2py_jobs.archive.archive_store import ArchiveStore, each
from mm2py_jobs.copy.dealing import DealtWork, answers_of
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.spark.record_columns import ARROW_SCHEMA
from mm2py_jobs.spark.session import OpenSession

_AT_ONCE: Final = 16
"""Partitions whose manifests a lane has in memory."""
_OPENED: Final = 32
"""Files that a join has open."""
_STAMPS: Final = {"max_timestamp": 1, "timestamp": 1_000}
"""Columns of either shape with the time of a row, and how many of its units are a ms."""
_OFFSETS: Final = ("base_offset", "offset")
"""Columns of either shape with the first offset of a row."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What is to be done: files are joined, those with nothing from ``oldest_ms`` on are removed,
    -1: none."""

    joins: bool = False
    oldest_ms: int = -1

    @property
    def is_asked(self) -> bool:
        return self.joins or self.oldest_ms >= 0


class _Waiting(NamedTuple):
    """A partition; files before ``since`` are joined already."""

    topic: str
    partition: int
    since: int
    files: int


class Footer(NamedTuple):
    """What a file has: bytes of log, its first offset and latest timestamp (-1: none)."""

    bytes: int
    first: int
    newest: int


@final
@dataclass(slots=True)
class _Found:
    """What is to be done with a partition; files before ``begins`` are left of a killed run."""

    tp: TopicPartition
    since: int
    begins: int = 0
    expired: list[FileManifest] = field(default_factory=list[FileManifest])
    groups: list[list[FileManifest]] = field(default_factory=list[list[FileManifest]])
    cause: str = ""

    @property
    def joins(self) -> list[list[FileManifest]]:
        return [it for it in self.groups if len(it) > 1]

    def row(self) -> dict[str, object]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "joined": sum(map(len, self.joins)),
            "into": len(self.joins),
            "bytes": sum(it.size_bytes for group in self.joins for it in group),
            "removed": len(self.expired),
            "removed_to": self.expired[-1].end if self.expired else -1,
            "cause": self.cause,
        }


def planned_upkeep(flow: FlowSides, path: str, upkeep: Upkeep) -> list[dict[str, object]]:
    """Return what ``keep_up`` would do now, by partition; changes nothing. ``FatalError``: the
    archive cannot be read."""
    store = ArchiveStore(archive_root(path, flow.flow))
    waiting = _waiting(flow, store, upkeep)
    found = each(lambda it: _look(store, it, upkeep, writes=False), waiting)
    return [it.row() for it in found if it.joins or it.expired or it.cause]


def keep_up(
    flow: FlowSides, path: str, upkeep: Upkeep, open_spark: Callable[[], OpenSession]
) -> list[dict[str, object]]:
    """Join and remove files of the flow's topics; return what was done, by partition.

    Raises:
        FatalError: the archive cannot be read, or Spark failed.
    """
    root = archive_root(path, flow.flow)
    store = ArchiveStore(root)
    waiting = _waiting(flow, store, upkeep)
    if not waiting:
        return []
    with open_spark() as opened:
        answers = answers_of(
            opened,
            run_lane,
            DealtWork(waiting, lambda it: it.files),
            lambda lane: {
                "path": root,
                "joins": upkeep.joins,
                "oldest_ms": upkeep.oldest_ms,
                "partitions": lane,
                "lost": "",
            },
            name=f"archive upkeep {flow.flow}",
        )
    positions: dict[str, dict[int, int]] = {}
    for answer in answers:
        at = int(str(answer.pop("since")))
        positions.setdefault(str(answer["topic"]), {})[int(str(answer["partition"]))] = at
    each(lambda topic: note_joined(store, topic, positions[topic]), positions)
    answers.sort(key=lambda it: (str(it["topic"]), int(str(it["partition"]))))
    return [it for it in answers if it["joined"] or it["removed"] or it["cause"]]


def _waiting(flow: FlowSides, store: ArchiveStore, upkeep: Upkeep) -> list[_Waiting]:
    """Return the partitions with more than one file to look at; reads no manifest."""
    topics = [it for it in topics_in(store) if flow.chooses(it)]
    known = each(lambda it: noted_joined(store, it), topics)
    folders = each(lambda it: store.names(f"topic={it}"), topics)
    partitions = [
        _Waiting(topic, number, joined.get(number, 0), 0)
        for topic, joined, names in zip(topics, known, folders, strict=True)
        for number in sorted(
            int(it.removeprefix("partition=")) for it in names if it.startswith("partition=")
        )
    ]

    def counted(it: _Waiting) -> _Waiting:
        names = store.files(partition_folder(TopicPartition(it.topic, it.partition)))
        return it._replace(files=count_from(names, 0 if upkeep.oldest_ms >= 0 else it.since))

    return [it for it in each(counted, partitions) if it.files > 1]


def _look(store: ArchiveStore, waiting: _Waiting, upkeep: Upkeep, *, writes: bool) -> _Found:
    tp = TopicPartition(waiting.topic, waiting.partition)
    found = _Found(tp, waiting.since)
    try:
        if writes:
            publish_staged(store, tp)
        if upkeep.oldest_ms >= 0:
            found.begins, found.expired = settled(
                store, tp, lambda names: _expired(store, chain_in(store, tp, names), upkeep)
            )
        if upkeep.joins:
            since = max([waiting.since, *(it.end for it in found.expired)])
            found.groups = settled(
                store, tp, lambda names: _groups(store, names, chain_in(store, tp, names, since))
            )
    except (ConfigError, FatalError, PartitionError) as error:
        found.cause = str(error)
    return found


def _expired(
    store: ArchiveStore, chain: Iterable[FileManifest], upkeep: Upkeep
) -> tuple[int, list[FileManifest]]:
    """Return where a chain begins, and its first files whose records are all too old, as Kafka
    counts segments; records without a timestamp stay."""
    begins = 0
    last: FileManifest | None = None
    found: list[FileManifest] = []
    for manifest in chain:
        if last is None:
            begins = manifest.begins
        else:
            footer = footer_of(store, last)
            if footer.bytes and not 0 <= footer.newest < upkeep.oldest_ms:
                break
            found.append(last)
        last = manifest
    return begins, found


def _groups(
    store: ArchiveStore, names: Sequence[str], chain: Iterable[FileManifest]
) -> list[list[FileManifest]]:
    """Return the files of a chain; neighbours that become one are together.

    The date of a file is that of its latest record, and that of a joined one is its first file's:
    dates do not go back, but where the size of a file ends one. What was lost before a file can
    only be said at the beginning of one. A manifest that counts from where the one before it ends,
    as of two runs at once, stays: another one cannot begin there.
    """
    groups: list[list[FileManifest]] = []
    size, date, is_open, begun = 0, "", False, {*begun_in(names)}
    for manifest in chain:
        footer = footer_of(store, manifest)
        size += footer.bytes
        if (
            is_open
            and _date_of(manifest, footer) <= date
            and size <= FILE_BYTES
            and manifest.lost_from < 0
            and (not footer.bytes or footer.first >= manifest.first)
        ):
            groups[-1].append(manifest)
            continue
        groups.append([manifest])
        size, date, is_open = footer.bytes, _date_of(manifest, footer), manifest.begins in begun
    return groups


def _date_of(manifest: FileManifest, footer: Footer) -> str:
    """Return the date of a file as its folder has it, empty for none, or else that of its latest
    record: a footer does not show which is the latest of those that have a date."""
    folder = manifest.file.rpartition("/")[0] or date_folder(day_of(footer.newest))
    return "" if folder == date_folder(-1) else folder


def footer_of(store: ArchiveStore, manifest: FileManifest) -> Footer:
    """Read the footer of a file; ``FatalError``: it cannot be read."""
    tp = TopicPartition(manifest.topic, manifest.partition)
    metadata = store.footer(f"{partition_folder(tp)}/{manifest.file}")
    size, first, newest = 0, -1, -1
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        size += group.total_byte_size
        for column in map(group.column, range(group.num_columns)):
            name, known = column.path_in_schema, column.statistics
            if known is None or not known.has_min_max:
                continue
            if name in _STAMPS:
                newest = max(newest, known.max_raw // _STAMPS[name])
            elif name in _OFFSETS and first < 0:
                first = known.min_raw
    return Footer(size, first, newest)


# ---- in a task


def run_lane(lane: Mapping[str, object]) -> dict[str, object]:
    """Keep up the partitions of a lane; runs in a Spark task."""
    store = ArchiveStore(str(lane["path"]))
    upkeep = Upkeep(joins=bool(lane["joins"]), oldest_ms=int(str(lane["oldest_ms"])))
    rows = cast("Sequence[tuple[str, int, int, int]]", lane["partitions"])
    answers: list[dict[str, object]] = []
    for chunk in chunks(rows, _AT_ONCE):
        part = [_Waiting(*it) for it in chunk]
        if lane["lost"]:
            found = [_Found(TopicPartition(*it[:2]), it.since) for it in part]
        else:
            found = each(lambda it: _look(store, it, upkeep, writes=True), part)
        for it in found:
            if lane["lost"]:
                it.cause = f"{it.tp}: {lane['lost']}"
            elif not it.cause:
                _keep_up(store, it)
            answers.append({**it.row(), "since": it.since})
    return {"partitions": answers}


def _keep_up(store: ArchiveStore, found: _Found) -> None:
    """Do what was found; what could not be done is left out of it, with the cause."""
    begins, tp = found.begins, found.tp
    expired, groups, joins = found.expired, found.groups, found.joins
    found.expired, found.groups = [], []
    try:
        if expired or begins:
            remove_before(store, tp, expired[-1].end if expired else begins)
            found.expired = expired
        spans = [(it.begins, it.first, it.end) for group in groups for it in group]
        for begins in crowded(store.files(partition_folder(tp)), spans):
            remove_replaced(store, tp, begins)
        for group in joins:
            if _join(store, tp, group):
                found.groups.append(group)
    except (ConfigError, FatalError, PartitionError) as error:
        found.cause = str(error)
    else:
        # One that another run has joined is looked at again: that may be killed before it has
        # removed what is in it.
        if groups and len(found.groups) == len(joins):
            found.since = groups[-1][0].begins


def _join(store: ArchiveStore, tp: TopicPartition, group: Sequence[FileManifest]) -> bool:
    """Put one file in the place of several; False where another run has done something with them
    meanwhile."""
    try:
        data = _joined(store, group)
    except FatalError:
        if _are_there(store, tp, group):
            raise
        return False
    with data:
        return _put(store, tp, group, data)


def _are_there(store: ArchiveStore, tp: TopicPartition, group: Sequence[FileManifest]) -> bool:
    """Whether no other run has removed manifests of a group."""
    return {it.begins for it in group}.issubset(begun_in(store.files(partition_folder(tp))))


def _put(
    store: ArchiveStore, tp: TopicPartition, group: Sequence[FileManifest], data: BufferedIOBase
) -> bool:
    size, digest = digest_of(data)
    first, end = group[0].first, group[-1].end
    folder, slash, _ = group[0].file.rpartition("/")
    manifest = replace(
        group[0],
        end=end,
        records=sum(it.records for it in group),
        size_bytes=size,
        file=f"{folder}{slash}{first:020d}-{end - 1:020d}.{digest[:16]}{JOINED_FILE}",
        sha256=digest,
        # Of a producer the last offset counts.
        mirrors=[*{it[0]: it for one in group for it in one.mirrors}.values()],
    )
    file = f"{partition_folder(tp)}/{manifest.file}"
    name = f"{manifest_stem(tp, manifest.begins)}.{digest[:16]}.json"
    if not store.exists(file):
        store.replace(file, data)
    if not _are_there(store, tp, group):
        return False
    store.replace(name, manifest.to_bytes())
    if remove_replaced(store, tp, manifest.begins):
        return True
    store.delete(name)
    raise PartitionError(
        f"another run has removed {manifest.file} while it was written",
        topic=tp.topic,
        partition=tp.partition,
        offset=first,
        remedy="nothing is lost; let one run at a time keep up an archive",
    )


def _joined(store: ArchiveStore, group: Sequence[FileManifest]) -> BufferedIOBase:
    """Return the Parquet file of the rows of all."""
    out: GroupedRows | None = None
    with ExitStack() as undone:
        for part in chunks(group, _OPENED):
            with ExitStack() as opened:
                found = each(lambda it: opened.enter_context(whole_file(store, it)), part)
                files = [parquet.ParquetFile(it) for it in found]
                if out is None:
                    schema = BATCHES if "batch" in files[0].schema_arrow.names else ARROW_SCHEMA
                    filled = [it.metadata.row_group(0) for it in files if it.num_row_groups]
                    packs = any(it.column(0).compression == "ZSTD" for it in filled)
                    out = GroupedRows(schema, packs=packs)
                    undone.callback(out.close)
                for manifest, file in zip(part, files, strict=True):
                    for rows in rows_of(store, manifest, file):
                        out.add(rows)
        assert out is not None
        data = out.end()
        undone.pop_all()
    return data
