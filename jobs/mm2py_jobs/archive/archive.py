"""Archive: the log of a flow's source topics as Parquet files, continued by each run.

Flow: ends of the logs and chains of manifests on the driver -> lanes of partitions, large ones in
parts -> ``RangeReader`` -> Parquet file -> its manifest, put-if-absent -> the next one. Whatever is
killed leaves whole files with manifests, and orphans that nothing names; the next run continues
after the last manifest. An attempt that lost a manifest to another one continues behind it: with
speculation Spark takes the answer of the first of two that ends. The manifests of a part that is
ahead of its turn are staged, and published when the chain has reached them, by a later run where
this one was killed: that archives only what lies between.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Final, NamedTuple, cast, final

from mm2py.client.connect.admin import Admin, TopicDescription
from mm2py.client.connect.cluster import Cluster
from mm2py.client.pacing import ByteRate
from mm2py.errors import (
    ConfigError,
    FatalError,
    FatalServerError,
    PartitionError,
    ProtocolError,
    RetriableError,
    ServerError,
)
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.topics import is_another_topic
from mm2py.types import EARLIEST, LATEST, FlowName, TopicPartition
from mm2py_jobs.archive.archive_file import ArchiveFile
from mm2py_jobs.archive.archive_format import (
    VERSION,
    ArchivedTopic,
    ArchiveHead,
    FileManifest,
    Shape,
    date_folder,
    day_of,
    digest_of,
    head_of,
    manifests_in,
    note_ranges,
    partition_folder,
    publish_staged,
    put_manifest,
    put_or_check,
    range_of_chain,
    topic_of,
    topics_in,
)
from mm2py_jobs.archive.archive_removal import remove_doubled, takes_back
from mm2py_jobs.archive.archive_store import ArchiveStore, each
from mm2py_jobs.copy.dealing import DealtWork, ProgressSink, answers_of, offsets_of_part, rate_of
from mm2py_jobs.copy.leaders import LedPartition
from mm2py_jobs.copy.rate_desk import part_of_rate
from mm2py_jobs.flow_sides import FlowSides
from mm2py_jobs.log.log_batches import LogBatch
from mm2py_jobs.log.log_ends import LogEnds, listed_offsets
from mm2py_jobs.log.mirror_producers import mirror_producers
from mm2py_jobs.log.open_transactions import hanging
from mm2py_jobs.log.range_reader import OffsetsGoneError, RangeReader
from mm2py_jobs.spark.session import OpenSession, log_without_secrets

log = logging.getLogger(__name__)

FILE_BYTES: Final = 256 * 1024 * 1024
"""Of a log in one file, which is on the local disk of its task while it is written."""

DATES: Final = 100
"""How many files a run makes of a partition because dates rise; then one for each MiB of log."""

TRIES: Final = 3
"""How often a partition is read that cannot be read now, the others of its lane meanwhile; each try
lasts ``default.api.timeout.ms``."""

_MIB: Final = 1024 * 1024
_ALL: Final = 2**63 - 1


class _ArchiveRange(NamedTuple):
    """What is to be archived: partition, first, end, and what was lost before it (-1: nothing).

    ``is_part``: the partition has others, or was left with some; ``staged``: it is ahead of its
    turn.
    """

    topic: str
    partition: int
    first: int
    end: int
    lost_from: int
    is_part: bool = False
    staged: bool = False

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.first


def archive_root(path: str, flow: FlowName) -> str:
    """Return where the archive of a flow is below a path, before the options of a URL."""
    folder, *options = path.split("?", 1) if "://" in path else (path,)
    return "?".join((f"{folder.rstrip('/')}/{flow.source}-{flow.target}", *options))


def planned(flow: FlowSides, path: str, shape: Shape) -> dict[str, object]:
    """Return what ``archive_flow`` would archive now, and what cannot be; writes nothing.

    Raises:
        ConfigError: the folder has another archive.
        Mm2pyError: the source does not answer.
    """
    root = archive_root(path, flow.flow)
    store = ArchiveStore(root)
    plan = asyncio.run(_plan(flow, store, shape, writes=False))
    waiting: list[dict[str, object]] = [
        {
            "topic": it.topic,
            "partition": it.partition,
            "from": it.first,
            "to": it.end,
            "lost_from": it.lost_from,
            "cause": plan.held.get(it.source, ""),
        }
        for it in plan.ranges
        if it.size or it.lost_from >= 0
    ]
    refused = _refusals(plan, store, shape)
    return {"flow": str(flow.flow), "path": root, "partitions": [*waiting, *refused]}


def archive_flow(
    flow: FlowSides,
    path: str,
    shape: Shape,
    open_spark: Callable[[], OpenSession],
    *,
    rate_limit: int = 0,
    progress: ProgressSink | None = None,
) -> dict[str, object]:
    """Archive what there is of the flow's topics and is not archived yet; return the report.

    Lanes read at most ``rate_limit`` bytes per second together, 0: as fast as they can;
    ``progress`` gets how far they are.

    Raises:
        ConfigError: the folder has another archive.
        Mm2pyError: the source cannot be read, or the archive not written; what was published stays.
    """
    root = archive_root(path, flow.flow)
    store = ArchiveStore(root)
    plan = asyncio.run(_plan(flow, store, shape, writes=True))
    answers: list[dict[str, object]] = []
    waiting = [it for it in plan.ranges if it.size or it.lost_from >= 0]
    if waiting:
        with open_spark() as opened:
            common: dict[str, object] = {
                "source": flow.source,
                "alias": flow.flow.source,
                "read_committed": flow.read_committed,
                "finds_mirrors": flow.suppresses_loops,
                "path": root,
                "shape": shape.value,
                "is_dated": plan.is_dated,
                "lost": "",
            }
            size = offsets_of_part(sum(it.size for it in waiting), opened)
            parts = asyncio.run(_cut(flow, waiting, size))
            answers = answers_of(
                opened,
                run_lane,
                DealtWork(
                    parts,
                    lambda it: it.size,
                    lambda it: (LedPartition("source", it.source),),
                    {"source": flow.source},
                ),
                lambda lane: common | {"partitions": lane},
                name=f"archive {flow.flow}",
                rate_limit=rate_limit,
                progress=progress,
            )
        answers = _joined(store, parts, answers)
    _note_ranges(plan, store, {it.source for it in waiting})
    for answer in answers:
        held = plan.held.get(TopicPartition(str(answer["topic"]), int(str(answer["partition"]))))
        answer["cause"] = answer["cause"] or held or ""
    answers += _refusals(plan, store, shape)
    answers.sort(key=lambda it: (str(it["topic"]), int(str(it["partition"]))))
    return {
        "flow": str(flow.flow),
        "path": root,
        "shape": shape.value,
        "records": sum(int(str(answer["records"])) for answer in answers),
        "bytes": sum(int(str(answer["bytes"])) for answer in answers),
        "partitions": answers,
    }


@final
@dataclass(slots=True)
class _ArchivePlan:
    """What is to be archived; why others cannot be (partition -1: the whole topic), and up to where
    they are archived; the ranges of all chains; behind which transactions that hang nothing is
    archived (``held``); whether files are in folders of their dates."""

    is_dated: bool
    ranges: list[_ArchiveRange] = field(default_factory=list[_ArchiveRange])
    refused: dict[TopicPartition, tuple[int, str]] = field(
        default_factory=dict[TopicPartition, tuple[int, str]]
    )
    chains: dict[TopicPartition, tuple[int, int]] = field(
        default_factory=dict[TopicPartition, tuple[int, int]]
    )
    held: Mapping[TopicPartition, str] = field(default_factory=dict[TopicPartition, str])


async def _plan(
    flow: FlowSides, store: ArchiveStore, shape: Shape, *, writes: bool
) -> _ArchivePlan:
    """Return what is to be archived; a topic or partition that cannot be keeps no other from it."""
    version = head_of(store).version if store.exists("manifest.json") else VERSION
    async with Cluster.of(flow.source, alias=flow.flow.source) as source:
        admin = Admin(source)
        listed = await admin.list_topics()
        hidden = await admin.denied_topics(flow.unlisted(listed, topics_in(store)))
        topics = flow.chosen(listed, hidden)
        described = await admin.describe_topics(topics)
        configs = await admin.read_topic_configs(topics)
        head = ArchiveHead(
            flow=str(flow.flow), source_cluster=source.cluster_id, shape=shape, version=version
        )
        plan = _ArchivePlan(head.is_dated)
        put_or_check(store, "manifest.json", head, writes=writes)
        partitions = [
            TopicPartition(name, partition)
            for name, topic in described.items()
            for partition in sorted(topic.partitions)
        ]
        ends = await source_ends(admin, partitions, read_committed=flow.read_committed)
        if flow.read_committed:
            plan.held = await hanging(source, ends)
    plan.refused |= {TopicPartition(topic, -1): (0, str(it)) for topic, it in hidden.items()}
    logs = {
        name: {it: ends[TopicPartition(name, it)] for it in sorted(topic.partitions)}
        for name, topic in described.items()
    }

    def put(name: str) -> str:
        try:
            _put_topic(store, described[name], configs.get(name, ()), logs[name], writes=writes)
        except (ConfigError, ServerError) as error:
            return str(error)
        return ""

    causes = dict(zip(logs, each(put, logs), strict=True))
    plan.refused |= {TopicPartition(name, -1): (0, it) for name, it in causes.items() if it}
    archived = {*topics_in(store)}
    known = [it for it in logs if not causes[it] and it in archived]
    begun = dict(zip(known, each(lambda it: topic_of(store, it).begins, known), strict=True))
    there = [
        (TopicPartition(name, number), log_ends, begun.get(name, {}).get(str(number), -1))
        for name, found in logs.items()
        if not causes[name]
        for number, log_ends in found.items()
    ]
    for (tp, *_), looked in zip(
        there, each(lambda it: _look(store, *it, writes=writes), there), strict=True
    ):
        _plan_partition(plan, tp, looked)
    return plan


async def source_ends(
    admin: Admin, partitions: Sequence[TopicPartition], *, read_committed: bool
) -> dict[TopicPartition, LogEnds | ServerError]:
    """Return where logs begin and end, or why that is not known when no more leaders are
    elected."""
    clock = admin.cluster.clock
    starts = await listed_offsets(admin, clock, dict.fromkeys(partitions, EARLIEST))
    ends = await listed_offsets(
        admin, clock, dict.fromkeys(partitions, LATEST), read_committed=read_committed
    )
    return {
        tp: starts[tp].error or ends[tp].error or LogEnds(starts[tp].offset, ends[tp].offset)
        for tp in partitions
    }


def _put_topic(
    store: ArchiveStore,
    topic: TopicDescription,
    configs: Sequence[ConfigEntry] | ServerError,
    logs: Mapping[int, LogEnds | ServerError],
    *,
    writes: bool,
) -> None:
    """Publish what a topic is, or compare it with what it was when its archive began.

    Raises:
        ConfigError: it is another one.
        ServerError: it cannot be described.
    """
    if topic.error is not None:
        raise topic.error
    if isinstance(configs, ServerError):
        raise configs
    known = {str(it): log for it, log in logs.items() if isinstance(log, LogEnds)}
    archived = ArchivedTopic(
        topic=topic.name,
        topic_id=topic.topic_id.hex(),
        partitions=len(topic.partitions),
        configs={it.name: it.value or "" for it in configs if not it.is_default},
        begins={it: log.start for it, log in known.items()},
        ends={it: log.end for it, log in known.items()},
    )
    put_or_check(store, f"topic={topic.name}/topic.json", archived, writes=writes)


class _Looked(NamedTuple):
    """What is archived of a partition, and what its log has besides; ``cause``: why nothing can be
    added at ``done``."""

    done: int
    chain: tuple[int, int] | None = None
    missing: Sequence[_ArchiveRange] = ()
    cause: str = ""


def _look(
    store: ArchiveStore, tp: TopicPartition, log: LogEnds | ServerError, begun: int, *, writes: bool
) -> _Looked:
    """Look for what is new of a partition: of what is archived the newest manifest alone is read.

    ``begun``: where its log began when the archive did, -1 where that is not known.
    """
    if isinstance(log, ServerError):
        return _Looked(0, cause=str(log))
    try:
        waits = writes and publish_staged(store, tp, log.start)
        chain = range_of_chain(store, tp)
        done = (begun if 0 <= begun < log.start else log.start) if chain is None else chain[1]
        ahead = manifests_in(store, tp, done, _ALL) if waits else {}
    except (ConfigError, PartitionError) as error:
        return _Looked(0, cause=str(error))
    last = max(done, *(it.end for it in ahead.values()), 0)
    if last > log.end:
        cause = (
            f"the archive ends at offset {last}, the log at {log.end}: its records are gone "
            "from the source; archive to another folder"
        )
        return _Looked(done, chain, cause=cause)
    staged = sorted((it.begins, it.end) for it in ahead.values())
    return _Looked(done, chain, missing_of(tp, done, log, staged))


def _plan_partition(plan: _ArchivePlan, tp: TopicPartition, looked: _Looked) -> None:
    if looked.chain is not None:
        plan.chains[tp] = looked.chain
    plan.ranges += looked.missing
    cause = looked.cause
    if tp in plan.held and not any(it.size or it.lost_from >= 0 for it in looked.missing):
        cause = cause or plan.held[tp]
    if cause:
        plan.refused[tp] = looked.done, cause


def missing_of(
    tp: TopicPartition, done: int, there: LogEnds, ahead: Sequence[tuple[int, int]]
) -> list[_ArchiveRange]:
    """Return what an archive up to ``done``, with ranges ahead of it that a former run has left,
    lacks of a log."""
    found: list[_ArchiveRange] = []
    at = done
    for begins, end in (*ahead, (there.end, there.end)):
        if at <= begins:
            first = min(max(at, there.start), begins)
            lost_from = at if at < first else -1
            found.append(_ArchiveRange(*tp, first, begins, lost_from, bool(ahead), at != done))
        at = max(at, end)
    return found


async def _cut(flow: FlowSides, ranges: Sequence[_ArchiveRange], size: int) -> list[_ArchiveRange]:
    """Cut what is larger than ``size`` into parts, each from the beginning of a batch on."""
    async with Cluster.of(flow.source, alias=flow.flow.source) as source:
        reader = RangeReader(source, read_committed=False)
        return [part for it in ranges for part in await _parts_of(reader, it, size)]


async def _parts_of(reader: RangeReader, whole: _ArchiveRange, size: int) -> list[_ArchiveRange]:
    count, firsts = max(1, whole.size // size), [whole.first]
    for number in range(1, count):
        near = whole.first + whole.size * number // count
        at = await _batch_at(reader, whole.source, near, whole.end)
        if at < 0:
            break
        if firsts[-1] < at < whole.end:
            firsts.append(at)
    ends = [*firsts[1:], whole.end]
    return [
        whole
        if first == whole.first and end == whole.end
        else whole._replace(
            first=first,
            end=end,
            lost_from=whole.lost_from if first == whole.first else -1,
            is_part=True,
            staged=whole.staged or first != whole.first,
        )
        for first, end in zip(firsts, ends, strict=True)
    ]


async def _batch_at(reader: RangeReader, tp: TopicPartition, offset: int, end: int) -> int:
    """Return where the batch with an offset begins, or the next one; -1 where a log cannot be cut
    there.

    A file has whole batches: one that two files have would be restored twice.
    """
    try:
        async with aclosing(reader.read(tp, offset, end, markers=True)) as pieces:
            async for batches in pieces:
                # A converted one begins where it was asked for.
                return -1 if batches[0].runs else batches[0].base_offset
    except (PartitionError, ProtocolError, FatalServerError, RetriableError) as error:
        # Its lane says why, in the report.
        log.info("partition is archived in one part partition=%s cause=%s", tp, error)
    return -1


def _joined(
    store: ArchiveStore, parts: Sequence[_ArchiveRange], answers: Sequence[dict[str, object]]
) -> list[dict[str, object]]:
    """Publish what was archived ahead of its turn; return one answer about each partition."""
    ends = {it.source: it.end for it in sorted(parts) if it.is_part}
    found: dict[TopicPartition, list[dict[str, object]]] = {}
    for answer in answers:
        tp = TopicPartition(str(answer["topic"]), int(str(answer["partition"])))
        found.setdefault(tp, []).append(answer)
    for tp, end in ends.items():
        causes = [str(it["cause"]) for it in found[tp] if it["cause"]]
        to = -1
        try:
            publish_staged(store, tp)
            _, to = range_of_chain(store, tp) or (-1, -1)
        except (ConfigError, PartitionError) as error:
            causes.append(str(error))
        if to < end and not causes:
            causes.append("another run has archived it meanwhile; run the same command again")
        first, *others = sorted(found[tp], key=lambda it: int(str(it["from"])))
        for other in others:
            for name in ("records", "bytes", "files"):
                first[name] = int(str(first[name])) + int(str(other[name]))
            if first["lost_from"] == -1:
                first["lost_from"] = other["lost_from"]
            first["lost_to"] = max(int(str(first["lost_to"])), int(str(other["lost_to"])))
        found[tp] = [{**first, "to": to, "cause": "; ".join(dict.fromkeys(causes))}]
    return [it for answers in found.values() for it in answers]


def _note_ranges(
    plan: _ArchivePlan, store: ArchiveStore, archived: Collection[TopicPartition]
) -> None:
    """Keep how far partitions are now, and remove what killed attempts have left of them."""

    def noted(tp: TopicPartition) -> tuple[int, int] | None:
        if tp not in archived:
            return plan.chains.get(tp)
        try:
            remove_doubled(store, tp)
            return range_of_chain(store, tp)
        except (ConfigError, FatalError, PartitionError) as error:
            log.warning("files of a partition are not looked at partition=%s cause=%s", tp, error)
            return plan.chains.get(tp)

    partitions = sorted({*plan.chains, *archived})
    ranges: dict[str, dict[int, tuple[int, int]]] = {}
    for tp, chain in zip(partitions, each(noted, partitions), strict=True):
        if chain is not None:
            ranges.setdefault(tp.topic, {})[tp.partition] = chain
    each(lambda topic: note_ranges(store, topic, ranges[topic]), ranges)


def _refusals(plan: _ArchivePlan, store: ArchiveStore, shape: Shape) -> list[dict[str, object]]:
    """Return the answers about what is not archived; partition -1 is the whole topic."""
    return [
        _PartitionArchive(store, shape, _ArchiveRange(*tp, done, done, -1)).answer(cause)
        for tp, (done, cause) in plan.refused.items()
    ]


# ---- in a task


def run_lane(lane: Mapping[str, object]) -> dict[str, object]:
    """Archive the partitions of a lane; runs in a Spark task."""
    return asyncio.run(_run_lane(lane))


async def _run_lane(lane: Mapping[str, object]) -> dict[str, object]:
    store, shape = ArchiveStore(str(lane["path"])), Shape(str(lane["shape"]))
    answers: list[dict[str, object]] = []
    properties = cast("Mapping[str, str]", lane["source"])
    log_without_secrets(properties)
    async with Cluster.of(properties, alias=str(lane["alias"])) as source:
        rate = rate_of(lane, source.clock)
        async with part_of_rate(lane, [rate]):
            rows = cast("Sequence[tuple[str, int, int, int, int, bool, bool]]", lane["partitions"])
            waiting = deque((row, TRIES) for row in rows)
            while waiting:
                row, tries = waiting.popleft()
                copied = _PartitionArchive(
                    store,
                    shape,
                    _ArchiveRange(*row),
                    finds_mirrors=bool(lane["finds_mirrors"]),
                    is_dated=bool(lane["is_dated"]),
                    rate=rate,
                )
                cause = f"{row[0]}-{row[1]}: {lane['lost']}" if lane.get("lost") else ""
                try:
                    if not cause:
                        await copied.run(source, read_committed=bool(lane["read_committed"]))
                except (PartitionError, ProtocolError, FatalServerError, ConfigError) as error:
                    cause = str(error)  # of this partition alone
                except RetriableError as error:
                    await Admin(source).list_topics()  # where that fails it is of them all
                    if tries > 1:
                        waiting.append((row, tries - 1))
                        continue
                    cause = str(error)
                answers.append(copied.answer(cause))
    return {"partitions": answers}


class _TakenError(PartitionError):
    """Another attempt, or another run, has archived the same range meanwhile."""


@final
class _PartitionArchive:
    """Writes the files of one partition."""

    def __init__(
        self,
        store: ArchiveStore,
        shape: Shape,
        ranges: _ArchiveRange,
        *,
        finds_mirrors: bool = False,
        is_dated: bool = True,
        rate: ByteRate | None = None,
    ) -> None:
        self._rate = rate
        self._store, self._shape, self._finds_mirrors = store, shape, finds_mirrors
        self._is_dated = is_dated
        self._range, self._tp = ranges, ranges.source
        self._end, self._lost_from = ranges.end, ranges.lost_from
        self._from = self._first = ranges.first
        self._lost_at_start, self._lost_to = ranges.lost_from, ranges.first
        self._records = self._bytes = self._files = 0
        self._dates = self._log_bytes = 0
        self._file = ArchiveFile(self._tp, shape, ranges.first, ranges.end)
        self._source: Cluster | None = None

    async def run(self, source: Cluster, *, read_committed: bool) -> None:
        """Archive up to the end what the source still has when it is read.

        Raises:
            PartitionError: the topic is another one.
            ProtocolError: a batch is damaged.
            FatalError: a file cannot be written.
        """
        self._continue()
        self._source = source
        reader = RangeReader(source, read_committed=read_committed, rate=self._rate)
        while True:
            begins = self._first, self._lost_from
            try:
                await self._archive(reader)
                break
            except _TakenError:
                self._continue()
                if (self._first, self._lost_from) == begins:
                    raise
            finally:
                self._file.close()
        if self._range.is_part:
            publish_staged(self._store, self._tp)

    async def _archive(self, reader: RangeReader) -> None:
        gone: OffsetsGoneError | None = None
        while gone is None or await self._skip(gone):
            try:
                await self._read(reader)
            except OffsetsGoneError as error:
                gone = error
            else:
                break
        if self._first < self._end or self._lost_from >= 0:
            await self._publish(self._end)

    async def _read(self, reader: RangeReader) -> None:
        async with aclosing(reader.read(self._tp, self._first, self._end)) as pieces:
            async for batches in pieces:
                for batch in batches:
                    if self._is_later(batch):
                        await self._publish(batch.base_offset)
                    self._file.add(batch)
                    if self._file.log_bytes >= FILE_BYTES:
                        await self._publish(batch.last_offset + 1)

    def _is_later(self, batch: LogBatch) -> bool:
        """Whether a batch begins a file as its date is later than that of the file before it.

        One that is earlier does not, so that dates which alternate make no file each; nor do dates
        that rise all the time once there are many small files.
        """
        file = self._file
        is_later = file.log_bytes > 0 and day_of(batch.max_timestamp) > file.day
        if is_later and self._dates < DATES + (self._log_bytes + file.log_bytes) // _MIB:
            self._dates += 1
            return True
        return False

    async def _skip(self, gone: OffsetsGoneError) -> bool:
        """Continue where the log begins by now, as the manifest has it; False after the end."""
        if gone.log_start <= gone.offset:
            raise gone  # the log has become shorter
        if self._first < gone.offset:
            await self._publish(gone.offset)
        if self._lost_from < 0:
            self._lost_from = gone.offset
        self._begin(min(gone.log_start, self._end), self._lost_from)
        self._note_lost(self._lost_from, self._first)
        return self._first < self._end

    def answer(self, cause: str) -> dict[str, object]:
        """Return what was archived; ``cause``: why not all of it."""
        return {
            "topic": self._tp.topic,
            "partition": self._tp.partition,
            "from": self._from,
            "to": self._end if not cause else self._first,
            "lost_from": self._lost_at_start,
            "lost_to": self._lost_to if self._lost_at_start >= 0 else -1,
            "cause": cause,
            "records": self._records,
            "bytes": self._bytes,
            "files": self._files,
        }

    def _continue(self) -> None:
        """Begin after what another attempt of this lane has published."""
        begins: int = self._first if self._lost_from < 0 else self._lost_from
        known = manifests_in(self._store, self._tp, begins, self._end)
        self._begin(self._first, self._lost_from)
        while (manifest := known.get(begins)) is not None:
            self._records += manifest.records
            self._bytes += manifest.size_bytes
            self._files += 1
            if manifest.lost_from >= 0:
                self._note_lost(manifest.lost_from, manifest.first)
            begins = manifest.end
            self._begin(begins, -1)

    def _begin(self, first: int, lost_from: int) -> None:
        """Begin the next file, with what was lost before it."""
        self._file.close()
        self._first, self._lost_from = first, lost_from
        self._file = ArchiveFile(self._tp, self._shape, first, self._end)

    def _note_lost(self, lost_from: int, lost_to: int) -> None:
        if self._lost_at_start < 0:
            self._lost_at_start = lost_from
        self._lost_to = lost_to

    async def _publish(self, end: int) -> None:
        """Write what was read, if it is of the topic that the archive is of: asked after the
        reading."""
        assert self._source is not None
        planned = bytes.fromhex(topic_of(self._store, self._tp.topic).topic_id)
        described = await Admin(self._source).describe_topics([self._tp.topic])
        description = described.get(self._tp.topic)
        if description is None or is_another_topic(planned, description.topic_id):
            raise PartitionError(
                "the topic was deleted and created again while it was archived",
                topic=self._tp.topic,
                partition=self._tp.partition,
                offset=self._first,
                remedy="the archive has what was read before; archive the new topic to another "
                "folder",
            )
        with closing(self._file) as file:
            data = file.end()
            size, digest = digest_of(data)
            name = f"{self._first:020d}-{end - 1:020d}.{secrets.token_hex(4)}.parquet"
            manifest = FileManifest(
                topic=self._tp.topic,
                partition=self._tp.partition,
                first=self._first,
                end=end,
                records=file.records,
                size_bytes=size,
                file=f"{date_folder(file.day)}/{name}" if self._is_dated else name,
                sha256=digest,
                lost_from=self._lost_from,
                mirrors=await self._mirrors(file.last_offsets) if self._finds_mirrors else (),
            )
            path = f"{partition_folder(self._tp)}/{manifest.file}"
            # Other parts of the task, such as Fetch requests, go on while the store writes.
            is_new = await asyncio.to_thread(self._put, path, data, manifest)
        if not is_new:
            raise _TakenError(
                f"another run has archived from offset {manifest.begins} on meanwhile",
                topic=self._tp.topic,
                partition=self._tp.partition,
                offset=manifest.begins,
                remedy="run the same command again; it continues behind that",
            )
        self._log_bytes += file.log_bytes
        self._begin(end, -1)
        self._records += manifest.records
        self._bytes += size
        self._files += 1

    def _put(self, path: str, data: BufferedIOBase, manifest: FileManifest) -> bool:
        """Write a file, and its manifest; False where another run has archived its range."""
        try:
            self._store.replace(path, data)
        except FatalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False  # removed while it was written, as what no manifest can name any more
            raise
        staged = self._range.staged
        is_new = put_manifest(self._store, manifest, staged=staged)
        if is_new and not staged:
            is_new = not takes_back(self._store, self._tp, manifest, self._end)
        if not is_new:
            self._store.delete(path)
        return is_new

    async def _mirrors(self, last: Mapping[int, int]) -> Sequence[tuple[int, str, str, int]]:
        """Return which mirrors wrote batches; asked after the reading, as an id is published before
        it writes."""
        assert self._source is not None
        if not last:
            return ()
        return [
            (it.producer_id, it.source, it.source_cluster, last[it.producer_id])
            for it in await mirror_producers(self._source, self._source.clock)
            if it.producer_id in last
        ]
