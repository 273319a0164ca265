"""What a Spark task of a backfill or a stream runs: one lane with real connections, in an event
loop of its own.

Flow: lane as JSON -> ``run_backfill_lane`` -> ``LaneRun`` over one ``InProcessTaskHost`` -> counts
as JSON. The data plane is that of a task host (``flow_parts``); its permit is the lane's lease.
"""

import asyncio
import os
import platform
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Final, final

from pydantic import TypeAdapter

from mm2py.client.permit import Permit
from mm2py.client.send.tail import Identical
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.definitions import parse_config
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ProtocolError
from mm2py.mirror.backfills import LeaseState, lane_id
from mm2py.mirror.offset_map_pages import Page
from mm2py.mirror.source_offsets import (
    mirrored_partition,
    next_offset,
    parse_source_offset_key,
    parse_source_offset_value,
)
from mm2py.mirror.start_positions import START_POSITIONS
from mm2py.observability.logging import log_scope
from mm2py.observability.metrics import FlowMeter, PartitionMeter
from mm2py.runtime.hosts.thaw import thawing_loop
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.offset_committer import OffsetStore
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.runtime.tasks.task_transactions import committed_reads
from mm2py.runtime.tasks.worker_task import COMMITS, WAITS
from mm2py.storage.offset_map_store import MapsOver, MapStore, StoredMap
from mm2py.types import ClusterAlias, FlowName, TaskId, TopicPartition
from mm2py_connectors.mirror_source_config import FlowRate, MirrorSourceConfig
from mm2py_connectors.partition_deal import (
    ASSIGNED_PARTITIONS,
    END_OFFSETS,
    format_ends,
    format_partitions,
)
from mm2py_jobs.copy.archive_order import ARCHIVE, TaskArchive, archive_plugins
from mm2py_jobs.copy.lanes import NO_PART, CopyProgress, LaneRun, Term
from mm2py_jobs.copy.lease import LaneLease
from mm2py_jobs.spark.session import log_without_secrets
from mm2py_workers.flow_parts import FlowParts
from mm2py_workers.flow_target import FlowTarget

FIRST_NUMBER: Final = 10_000
"""Of a lane's task, which is part of its client ids; the live flow's tasks count from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillLane:
    """A lane as it travels to its task; the configs are resolved, secrets included.

    Without partitions it is the lanes' common part, and as a lane it only has its process import
    what later ones need.
    """

    source: str
    target: str
    job: str
    run: int
    worker: Mapping[str, str]
    connector: Mapping[str, str]
    task: Mapping[str, str]
    lane: int = -1
    partitions: Sequence[tuple[str, int]] = ()
    term: Term | None = None
    rate: int = 0
    """Bytes per second of all lanes together, 0: no limit."""
    log_level: str = "WARNING"
    careful: bool = False
    """Whether its process is expected to die (``mm2py_jobs.spark.session.tried``)."""
    lost: str = ""
    """Why its partitions are given up."""

    @property
    def is_restore(self) -> bool:
        return ARCHIVE in self.task

    @property
    def flow(self) -> FlowName:
        return FlowName(ClusterAlias(self.source), ClusterAlias(self.target))


_LANES: Final = TypeAdapter(BackfillLane)


def dealt_lanes(
    common: BackfillLane, lanes: Sequence[Sequence[TopicPartition]], *, rate_limit: int = 0
) -> list[dict[str, object]]:
    """Return the lanes of a run as JSON; they share the limit in bytes per second, 0: that of the
    flow."""
    options = parse_config(MirrorSourceConfig, common.connector)
    return [
        asdict(
            replace(
                common,
                lane=number,
                rate=rate_limit or options.flow_max_bytes_per_second,
                partitions=[(it.topic, it.partition) for it in lane],
            )
        )
        for number, lane in enumerate(lanes)
    ]


def run_backfill_lane(lane: Mapping[str, object]) -> Mapping[str, object]:
    """Run one lane to its end; what ``mm2py_jobs.spark.session.run_lanes`` and
    ``mm2py_jobs.spark.stream_query`` call."""
    spec = _LANES.validate_python(lane)
    log_without_secrets(spec.worker, spec.connector, spec.task, level=spec.log_level)
    if not spec.partitions:
        return {"lane": spec.lane, "parts": [asdict(NO_PART)]}
    with (
        log_scope(f"backfill lane-{spec.lane}"),
        asyncio.Runner(loop_factory=thawing_loop) as runner,
    ):
        return runner.run(_run(spec, SYSTEM_CLOCK))


async def _run(spec: BackfillLane, clock: Clock) -> Mapping[str, object]:
    target = FlowTarget(spec.flow, spec.worker, clock)
    permit = Permit(clock)
    copy = _TaskCopy(spec, permit, clock)
    try:
        await target.open()
        if spec.term is not None:
            await target.follow_pauses(copy.hold)
        lease = LaneLease(
            target.jobs,
            target.writer(lane_id(str(spec.flow), spec.lane)),
            permit,
            job=spec.job,
            run=spec.run,
            lane=spec.lane,
            attempt=f"{platform.node()}/{os.getpid()}/{secrets.token_hex(3)}",
            clock=clock,
        )
        partitions = [TopicPartition(*each) for each in spec.partitions]
        run = LaneRun(
            partitions,
            lease,
            copy,
            target.jobs,
            run=spec.run,
            clock=clock,
            # The flow would copy to the end of a topic whose beginning is not restored yet.
            given_up=LeaseState.RESERVED if spec.is_restore else LeaseState.RELEASED,
            term=spec.term,
        )
        ended = await (run.give_up(spec.lost) if spec.lost else run.run())
        return {"lane": spec.lane, **asdict(ended)}
    finally:
        await copy.close()
        await target.close()


@final
class _TaskCopy:
    """Implements ``mm2py_jobs.copy.lanes.LaneCopy``: a source task in this process."""

    def __init__(self, spec: BackfillLane, permit: Permit, clock: Clock) -> None:
        flow = spec.flow
        self._spec = spec
        self.is_limited = spec.rate > 0
        given = parse_config(WorkerConfig, spec.worker)
        parts = FlowParts.of(
            flow,
            # Its task writes without transactions: sequences and the map keep it exact.
            {**spec.worker, "exactly.once.source.support": "disabled"},
            plugins=archive_plugins() if spec.is_restore else Plugins(),
            permit=permit,
            clock=clock,
        )
        # The topics hold what the live flow's tasks write in transactions.
        self._parts = parts = replace(parts, transactional=given.exactly_once)
        self._offsets, self._maps = parts.offsets(), parts.maps()
        self._seen_offsets = ObservedOffsets(self._offsets)
        self._seen_maps = ObservedMaps(self._maps)
        self._meter = FlowMeter(flow, clock)
        self._ledger = parts.ledger(self._meter)
        self._task = TaskId(SOURCE_NAME, FIRST_NUMBER + spec.lane)
        self._copied: dict[TopicPartition, tuple[int, int]] = {}
        self._lags: dict[TopicPartition, int] = {}
        self._failed = set[TopicPartition]()
        self._causes: dict[TopicPartition, str] = {}
        self._meter.on_forget = self._forgotten
        reports = FlowReports(
            meter=self._meter, events=self._ledger, on_topic=lambda _task, _topic: None
        )
        self._host = parts.host(
            parts.assembly(self._seen_offsets, self._seen_maps, reports),
            lambda _task, _status: None,
        )
        self._connector = {**spec.connector, "exactly.once.support": "requested"}
        if given.exactly_once:
            # The flow's tasks ignore it, a lane does not: a stored producer id tells that what
            # follows the map was not aborted.
            self._connector["offsets.identical"] = Identical.PREFER.value
        self._config = committed_reads(spec.task) if given.exactly_once else spec.task

    async def start(self, ends: Mapping[TopicPartition, int], sharing: int) -> None:
        """Copy these up to their ends, from their stored positions on, with one of so many parts of
        the rate; a task that runs is replaced."""
        await self._parts.tables.cluster.connect()
        self._ledger.start()
        for partition in ends:
            self._failed.discard(partition)
            self._causes.pop(partition, None)
        rate = FlowRate.parts(self._spec.rate, sharing)
        config = {**self._config, **rate, ASSIGNED_PARTITIONS: format_partitions(list(ends))}
        if self._spec.term is None:
            # Where nothing is stored the history is what is wanted.
            config["source.consumer.auto.offset.reset"] = "earliest"
            config[START_POSITIONS] = ""
            config[END_OFFSETS] = format_ends(ends)
        if self._spec.is_restore:
            archive = TaskArchive.parse(self._config[ARCHIVE])
            config[ARCHIVE] = archive._replace(ends=ends).to_text()
        await self._host.start_task(
            TaskSpec(id=self._task, connector_config=self._connector, config=config)
        )

    def share(self, sharing: int) -> None:
        self._host.pace(max(1, self._spec.rate // sharing))

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Read none of these partitions and all others of the lane; -1 is a whole topic."""
        self._host.hold(partitions)

    async def pause(self, *, paused: bool) -> None:
        await self._host.pause_task(self._task, paused=paused)

    def status(self) -> Status | None:
        return self._host.status(self._task)

    def progress(self, partition: TopicPartition) -> CopyProgress:
        meter = self._meter.partition(partition)
        records, size_bytes = self._copied.get(partition, (0, 0))
        lag = meter.lag_records
        return CopyProgress(
            position=self._seen_offsets.positions.get(partition, -1),
            target_start=self._seen_maps.target_starts.get(partition, -1),
            target_end=self._seen_maps.target_ends.get(partition, -1),
            records=records + meter.records,
            bytes=size_bytes + meter.bytes,
            lag=lag if lag >= 0 else self._lags.get(partition, -1),
            failed=meter.state == "FAILED" or partition in self._failed,
            cause=meter.cause or self._whole_cause() or self._causes.get(partition, ""),
        )

    def _whole_cause(self) -> str:
        """Return why the task as a whole does not start, read or store positions: no partition of
        it has that as its cause."""
        told = {it.what: it.text for it in self._meter.findings}
        return told.get(WAITS) or told.get(COMMITS, "")

    async def stop(self, timeout_s: float) -> None:
        """Deliver what was read, store positions, close; safe twice."""
        await self._host.stop_task(self._task, timeout_s)

    async def close(self) -> None:
        await self._host.close()
        await self._ledger.stop()
        await self._maps.close()
        await self._offsets.close()
        await self._parts.close()

    def _forgotten(self, meter: PartitionMeter) -> None:
        """Keep what a task's meters had when it ended."""
        source = meter.source
        records, size_bytes = self._copied.get(source, (0, 0))
        self._copied[source] = records + meter.records, size_bytes + meter.bytes
        self._lags[source] = meter.lag_records
        self._causes[source] = meter.cause
        if meter.state == "FAILED":
            self._failed.add(source)


# ---- what the task has stored, seen when the target acknowledged it


@final
class ObservedOffsets:
    """Implements ``OffsetStore`` over another."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self.positions: dict[TopicPartition, int] = {}
        """By source partition the next offset to copy; everything below it is stored as copied."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        values = await self._store.get(keys)
        for key, value in zip(keys, values, strict=True):
            self._note(key, value)
        return values

    async def set(self, values: Mapping[bytes, bytes | None]) -> None:
        await self._store.set(values)
        for key, value in values.items():
            self._note(key, value)

    def _note(self, key: bytes, value: bytes | None) -> None:
        partition, position = mirrored_partition(parse_source_offset_key(key)[1]), -1
        with suppress(ProtocolError):  # the task says so
            position = next_offset(parse_source_offset_value(value))
        if partition is not None and position >= 0:
            self.positions[partition] = position


@final
class ObservedMaps(MapsOver):
    """Implements ``MapStore`` over another."""

    def __init__(self, store: MapStore) -> None:
        super().__init__(store)
        self.target_starts: dict[TopicPartition, int] = {}
        """By source partition where copies begin, those of a former attempt of the lane too: where
        the flow had any before, the lease names it."""
        self.target_ends: dict[TopicPartition, int] = {}
        """By source partition the target offset after the newest copy that the map has."""

    async def load(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, StoredMap]:
        maps = await super().load(partitions)
        for partition, stored in maps.items():
            self._note(partition, stored.page)
        return maps

    async def write(self, pages: Mapping[TopicPartition, Sequence[Page]]) -> None:
        await super().write(pages)
        for partition, changed in pages.items():
            for page in changed:
                self._note(partition, page)

    def _note(self, partition: TopicPartition, page: Page) -> None:
        if page.segments:
            self.target_starts.setdefault(partition, page.segments[0].target)
            self.target_ends[partition] = page.segments[-1].target_end
