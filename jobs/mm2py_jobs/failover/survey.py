"""Asks both clusters and a worker what a failover would do, and how long its steps would take;
changes nothing.

Flow: ``FailoverClusters``, ``FailoverSides``, ``RestFlows`` -> topics with lag and drift, groups,
writers, the fence -> ``FailoverPlan``; if the source is gone, from what the target and the worker
know of it. ``time_plan`` asks the questions of each step besides -> ``TimedPlan``.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, final

from mm2py.api.context import PartitionState
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import ADMIN
from mm2py.client.send.transactions import takes_jobs
from mm2py.config.class_names import SOURCE_NAME
from mm2py.errors import (
    Mm2pyError,
    PartitionError,
    ProtocolError,
    RetriableError,
    ServerError,
    UnsupportedVersionError,
)
from mm2py.flows.flow_offsets import FlowOffsets
from mm2py.flows.view_models import GroupView
from mm2py.mirror.failovers import FailoverKind, OpenTransaction, Tail, quarantine_topic
from mm2py.mirror.filters import TopicSelection, config_property_filter_from_config
from mm2py.mirror.flow_state import enabled
from mm2py.mirror.offset_ranges import outside
from mm2py.observability.logging import some_of
from mm2py.protocol.acls import Acl
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.topics import is_another_topic
from mm2py.types import LATEST, FlowName, TopicPartition
from mm2py_connectors.acl_sync import own_principals, remote_acls
from mm2py_connectors.config_sync import config_operations
from mm2py_jobs.copy.known_maps import KnownMap, lost_copies, not_copied
from mm2py_jobs.copy.survey import Known
from mm2py_jobs.copy_limits import limits_of
from mm2py_jobs.failover.clusters import FailoverClusters
from mm2py_jobs.failover.driver import DriverProgress, SourceAwayError
from mm2py_jobs.failover.fences import FencePlan
from mm2py_jobs.failover.flows import FlowAnswer, RestFlows
from mm2py_jobs.failover.groups import AHEAD, NO_PLACE, move_groups
from mm2py_jobs.failover.own_records import OwnRecords, has_records
from mm2py_jobs.failover.plan import (
    FailoverPlan,
    FailoverRequest,
    GroupRow,
    TimedPlan,
    TimedStep,
    TopicRow,
    WriterRow,
)
from mm2py_jobs.failover.steps import FailoverSides, begins_anew
from mm2py_jobs.log.log_ends import LogEnds, log_ends
from mm2py_jobs.log.open_transactions import first_stamps
from mm2py_jobs.open_flow import flow_in_force

T = TypeVar("T")

MOST_GROUPS: Final = 10_000
RECENT_MS: Final = 10 * 60_000
"""A producer whose last batch is older is not listed as a writer."""

_SHOWN: Final = 3


@dataclass(slots=True)
class _Problems:
    of_flow: list[str] = field(default_factory=list[str])
    by_topic: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    gaps: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def note(self, topic: str, text: str, *, is_gap: bool = False) -> None:
        (self.gaps if is_gap else self.by_topic).setdefault(topic, []).append(text)

    @contextmanager
    def noting(self, what: str, texts: list[str] | None = None) -> Generator[None]:
        """Note what a cluster does not permit to read, in ``texts`` or as a problem of the flow."""
        try:
            yield
        except (ServerError, PartitionError, ProtocolError) as error:
            if isinstance(error, RetriableError):
                raise
            (self.of_flow if texts is None else texts).append(f"{what}: {error}")


async def plan_failover(
    clusters: FailoverClusters, sides: FailoverSides, control: RestFlows, kind: FailoverKind
) -> FailoverPlan:
    """Return the plan; ``RetriableError``: the target does not answer."""
    problems, source_ms, unplaced = _Problems(), clusters.clock.now_ms(), list[str]()
    now, back = await _flows(clusters.name, control, problems)
    if clusters.config.get("transforms"):
        problems.of_flow.append(
            f"records pass transforms={clusters.config['transforms']}: what these drop or send "
            "elsewhere is not in the copies, nor copied back"
        )
    try:
        progress = await sides.progress()
        opened = await sides.open_transactions(progress.held)
        source_ms = await time_of_transactions(clusters, opened)
        stuck = await control.not_copied(clusters.name, () if now is None else now.failed_tasks)
        own: Mapping[TopicPartition, OwnRecords] = {}
        with problems.noting("which records are not copies cannot be read"):
            own = await sides.own_records(await sides.target_ends())
        if begins_anew(back):
            _note_unclear(clusters, problems, own)
        topics = _SurveyedSource(clusters, problems, opened, stuck, source_ms, own)
        rows, awaited = await topics.topics(progress, now), topics.awaited
        groups = await _groups(clusters, problems)
        with problems.noting("groups cannot be placed", unplaced):
            unplaced += await _unplaced(clusters)
        writers = await _writers(clusters, problems)
        await _check_flow_back(clusters, problems, kind)
        await check_way_back(clusters, problems.of_flow, kind)
        fence = await sides.fence_plan()
        unreached = () if now is None else tuple(await sides.unreached())
        there = True
    except SourceAwayError as error:
        problems.of_flow.append(
            f"{error}; groups and writers are unknown, groups would get the offsets of their "
            "checkpoints"
        )
        there, fence, groups, writers = False, FencePlan((), ""), [], []
        opened, awaited, unreached = (), 0, ()
        rows = await _last_known(clusters, control)
    job = await sides.spark_job()
    would_lose = sum(row.would_lose or 0 for row in rows)
    return FailoverPlan(
        flow=str(clusters.name),
        kind=str(kind),
        at_ms=clusters.clock.now_ms(),
        source_ms=source_ms,
        source_reachable=there,
        state="" if now is None else now.state,
        reverse_state="" if back is None or not back.enabled else back.state,
        would_lose=would_lose,
        copied_first=sum(row.lag_records or 0 for row in rows) - would_lose if there else 0,
        fence_rules=len(fence.rules),
        fence_note=fence.note,
        quarantine=tuple(
            quarantine_topic(clusters.name.source, row.topic) for row in rows if row.would_lose
        ),
        unfinished=_unfinished(clusters),
        resting=() if now is None else tuple(not_copying(clusters.name, now)),
        unplaced=tuple(unplaced),
        jobs=(job,) if job else (),
        unreached=unreached,
        problems=tuple(problems.of_flow),
        topics=tuple(rows),
        groups=tuple(groups),
        awaited=awaited,
        writers=None if writers is None else tuple(writers),
        transactions=tuple(opened),
    )


def _note_unclear(
    clusters: FailoverClusters, problems: _Problems, own: Mapping[TopicPartition, OwnRecords]
) -> None:
    back = clusters.back.name
    for copy, records in own.items():
        for it in records.unclear:
            problems.note(
                records.source.topic,
                f"offsets {it.first} to {it.end} of {copy} on {back.source} may be of its own "
                f"clients, or copied by another program: {it.why}; {back} leaves them out. To have "
                f"them copied, set its position to {it.first - 1} when it runs",
            )


async def time_of_transactions(
    clusters: FailoverClusters, opened: Sequence[OpenTransaction]
) -> int:
    """Return the time that says which of them hang: the source's controller is asked where one does
    by our clock, which may be ahead."""
    now_ms = clusters.clock.now_ms()
    if any(it.hangs(now_ms) for it in opened):
        with suppress(Mm2pyError):  # brokers before 3.3, or without the right to ask
            async with clusters.source() as source:
                told_ms = await Admin(source).controller_time_ms()
            return min(now_ms, told_ms) if told_ms >= 0 else now_ms
    return now_ms


async def _flows(
    name: FlowName, control: RestFlows, problems: _Problems
) -> tuple[FlowAnswer | None, FlowAnswer | None]:
    try:
        now = await control.now(name)
        back = await control.now(FlowName(name.target, name.source))
    except Mm2pyError as error:
        problems.of_flow.append(f"no worker answered: cannot tell what is being copied: {error}")
        return None, None
    if now is None:
        problems.of_flow.append(
            f"the worker does not know flow {name}: cannot tell what is being copied"
        )
    else:
        # A held partition drains only after its cause is removed.
        problems.of_flow += [f"flow {name}: {text}" for text in now.errors[:_SHOWN]]
    return now, back


def not_copying(name: FlowName, now: FlowAnswer) -> list[str]:
    """Return what of a flow does not copy, or rests, also while there is nothing to copy."""
    texts, stays = list[str](), "what is not copied stays behind"
    resumes = f"{stays}; mm2py flow resume '{name}'"
    if not now.copies or now.is_broken:
        state = now.state if now.enabled else "not there"
        if now.source_rests:
            state = f"{state}, its {SOURCE_NAME} is paused or stopped"
        texts.append(f"flow {name} is {state}: {resumes if now.rests else stays}")
    if now.paused:
        paused = some_of(now.paused, _SHOWN)
        texts.append(f"{paused} of flow {name} is paused: {resumes} --all-topics")
    return texts


async def _check_flow_back(
    clusters: FailoverClusters, problems: _Problems, kind: FailoverKind
) -> None:
    """Note topics that an existing flow back does not copy, and for a failback also those that only
    it copies."""
    async with clusters.source() as source:
        in_force = await flow_in_force(clusters.back, source, clusters.clock)
    config = in_force.connector
    if config is None or not enabled(config):
        return
    name, back = clusters.name, clusters.back.name
    selection = TopicSelection.of(back, config)
    names = await clusters.topics(lambda _: True)
    here = [it for it in names if clusters.selection.replicate(it)]
    for flow, left in (
        (back, [it for it in here if not selection.replicate(it)]),
        (name, [it for it in names if it not in here and selection.replicate(it)]),
    ):
        if left and (flow is back or kind is FailoverKind.FAILBACK):
            problems.of_flow.append(
                f"flow {flow} copies no {some_of(left, _SHOWN)}: what clients write there on "
                f"{flow.source} stays there; mm2py flow set {flow.source}/{flow.target} topics=..."
            )


async def check_way_back(
    clusters: FailoverClusters, problems: list[str], kind: FailoverKind
) -> None:
    """Note a source that is too old for the driver of a failback, which writes to it in
    transactions."""
    if kind is FailoverKind.FAILBACK:
        return
    async with clusters.source() as source:
        for node in source.broker_ids:
            with suppress(Mm2pyError):  # one that does not answer now says nothing
                connection = await source.connection(node, ADMIN)
                if not takes_jobs(connection.versions):
                    problems.append(
                        f"brokers of {clusters.name.source} are older than Kafka 2.5: mm2py "
                        "failback will not return clients there; upgrade them first, or move "
                        "clients back by hand"
                    )
                    return


def _unfinished(clusters: FailoverClusters) -> str:
    failover = clusters.store.failover
    if failover is None or failover.step.is_over:
        return ""
    return f"{failover.kind} {failover.id} is at {failover.step}: --execute continues it"


async def _last_known(clusters: FailoverClusters, control: RestFlows) -> list[TopicRow]:
    """Return the rows of a source that is gone: stored positions, and the lag that workers saw
    last."""
    lags = await control.lag(clusters.name)
    copied: dict[str, dict[int, int]] = {}
    for tp, offset in (await clusters.copied()).items():
        if clusters.counts(tp.topic):
            copied.setdefault(tp.topic, {})[tp.partition] = offset
    return [
        TopicRow(
            topic=topic,
            copy=clusters.copy_of(TopicPartition(topic, 0)).topic,
            partitions=len(parts),
            lag_records=lags.get(topic),
            lag_ms=None,
            would_lose=lags.get(topic),
            copied_to=dict(sorted(parts.items())),
        )
        for topic, parts in sorted(copied.items())
    ]


@final
class _SurveyedSource:
    """The flow's topics on both clusters."""

    def __init__(
        self,
        clusters: FailoverClusters,
        problems: _Problems,
        opened: Sequence[OpenTransaction],
        stuck: Mapping[TopicPartition, str] | None,
        source_ms: int,
        own: Mapping[TopicPartition, OwnRecords],
    ) -> None:
        self._clusters, self._problems, self._source_ms = clusters, problems, source_ms
        self._opened, self._stuck, self._own = opened, stuck, own
        self._ages: Mapping[str, int | None] = {}
        """Of the oldest record that is not copied, by topic, in ms; None: not known."""
        self.awaited = 0
        """Offsets that would be lost if the drain did not wait for open transactions."""

    async def topics(self, progress: DriverProgress, now: FlowAnswer | None) -> list[TopicRow]:
        names = sorted({tp.topic for tp in progress.ends})
        for tp, cause in sorted((self._stuck or {}).items()):
            self._problems.note(tp.topic, f"partition {tp.partition} is {cause}")
        await self._check_copies(progress)
        await self._check_maps(progress)
        await self._check_configs(names)
        await self._check_acls()
        tails = defaultdict[str, list[Tail]](list)
        for tail in progress.tails():
            tails[tail.topic].append(tail)
        parts = defaultdict[str, list[TopicPartition]](list)
        for tp in sorted(progress.ends):
            parts[tp.topic].append(tp)
        self._ages = await self._asked_ages(progress.tails())
        return [self._row(it, parts[it], tails[it], progress, now) for it in names]

    def _row(
        self,
        name: str,
        parts: Sequence[TopicPartition],
        tails: Sequence[Tail],
        progress: DriverProgress,
        now: FlowAnswer | None,
    ) -> TopicRow:
        clusters = self._clusters
        gaps = tuple(self._problems.gaps.get(name, ()))
        return TopicRow(
            topic=name,
            copy=clusters.copy_of(TopicPartition(name, 0)).topic,
            partitions=len(parts),
            lag_records=sum(tail.end - tail.start for tail in tails),
            lag_ms=self._ages.get(name, 0),
            would_lose=sum(self._lost(tail, progress, now) for tail in tails),
            copied_to={it.partition: progress.copied[it] for it in parts if it in progress.copied},
            problems=(*gaps, *self._problems.by_topic.get(name, ())),
            gaps=gaps,
        )

    def _lost(self, tail: Tail, progress: DriverProgress, now: FlowAnswer | None) -> int:
        opened = [it for it in self._opened if (it.topic, it.partition) == tail.tp]
        waits = bool(opened) and self._clusters.read_committed
        if stays_behind(tail, now, self._stuck, waits=waits):
            return tail.end - tail.start
        if not waits:
            return 0
        lost = tail.end - max(tail.start, progress.stable[tail.tp])
        if not any(it.hangs(self._source_ms) for it in opened):
            self.awaited += lost
        return lost

    async def _asked_ages(self, tails: Sequence[Tail]) -> Mapping[str, int | None]:
        if not tails:
            return {}
        async with self._clusters.source() as source:
            stamps = await first_stamps(source, [(it.tp, it.start) for it in tails])
        ages, now_ms = dict[str, int | None](), self._clusters.clock.now_ms()
        for tail, stamp in zip(tails, stamps, strict=True):
            oldest = ages.get(tail.topic, 0)
            ages[tail.topic] = (
                None if stamp is None or oldest is None else max(oldest, now_ms - stamp)
            )
        return ages

    async def _check_copies(self, progress: DriverProgress) -> None:
        clusters = self._clusters
        copies = {tp: clusters.copy_of(tp) for tp in progress.ends}
        there = await Admin(clusters.target).describe_topics({it.topic for it in copies.values()})
        back = Known({}, {})
        with self._problems.noting("copies of the flow back cannot be read"):
            back = await clusters.known_back()
        for tp, copy in copies.items():
            topic = there.get(copy.topic)
            if topic is None:
                if tp.partition == 0:
                    self._problems.note(
                        tp.topic,
                        f"topic {copy.topic} is missing on {clusters.name.target}",
                        is_gap=True,
                    )
            elif topic.error is None and tp.partition not in topic.partitions:
                self._problems.note(
                    tp.topic,
                    f"partition {copy} is missing on {clusters.name.target}",
                    is_gap=True,
                )
            elif tp.partition == 0 and is_another_topic(back.incarnation(copy), topic.topic_id):
                self._problems.note(
                    tp.topic,
                    f"topic {copy.topic} was created again on {clusters.name.target} since "
                    f"{clusters.back.name} copied it:"
                    f" what clients wrote there before is on {clusters.name.source} alone",
                )

    async def _check_maps(self, progress: DriverProgress) -> None:
        """Note what was copied and is not on the target any more, or was skipped, though the source
        has it: clients would not find it there."""
        clusters = self._clusters
        known = await clusters.known()
        maps = {tp: it for tp, it in known.maps.items() if tp in progress.ends}
        known = replace(known, maps=maps)
        lost = {tp: ranges for tp, it in known.maps.items() if (ranges := lost_copies(it))}
        passed = [
            tp
            for tp, it in known.maps.items()
            if known.passed(tp)
            and not is_another_topic(it.newest.source_id, clusters.source_ids[tp.topic])
        ]
        async with clusters.source() as source:
            logs = await log_ends(source, [*{*lost, *passed}], read_committed=False)
        await self._check_passed(known, {tp: logs[tp] for tp in passed})
        for tp, ranges in lost.items():
            start = logs[tp].start
            offsets = sum(max(0, end - max(first, start)) for first, end in ranges)
            if offsets:
                self._problems.note(
                    tp.topic,
                    f"{offsets} offsets of partition {tp.partition} were copied and then lost by "
                    f"{clusters.name.target} (target-lost in mm2py ledger FILE '{clusters.name}'): "
                    f"only {clusters.name.source} has them; mm2py verify FILE --flow "
                    f"'{clusters.name}' says how they are copied again",
                    is_gap=True,
                )

    async def _check_passed(self, known: Known, logs: Mapping[TopicPartition, LogEnds]) -> None:
        """Note what positions were set past. It is no gap: who set them has accepted it."""
        if not logs:
            return
        clusters = self._clusters
        copies = {tp: clusters.copy_of(tp) for tp in logs}
        ends = await Admin(clusters.target).list_offsets(dict.fromkeys(copies.values(), LATEST))
        async with clusters.source() as source:
            back: Mapping[TopicPartition, KnownMap] = {}
            if clusters.keeps_names:
                back = (await clusters.known_back()).maps
            looping = await clusters.source_looping()
            for tp, copy in copies.items():
                # What the flow back has copied was on the target before.
                came_back = back[copy].target_spans() if copy in back else ()
                none = self._own[copy].skipped if copy in self._own else ()
                passed = {
                    it: not it.room or any(a <= it.first and it.end <= b for a, b in none)
                    for it in known.passed(tp, ends[copy].offset)
                }
                passed = {
                    it: sure for it, sure in passed.items() if sure or it.room < it.end - it.first
                }
                ranges = [
                    left
                    for it in passed
                    for left in not_copied(
                        max(it.first, logs[tp].start), min(it.end, logs[tp].end), came_back
                    )
                ]
                kept, before = known.quarantined.get(tp, ()), _offsets(ranges)
                ranges = [left for it in ranges for left in outside(*it, kept)]
                if in_quarantine := before - _offsets(ranges):
                    self._problems.note(
                        tp.topic,
                        f"{in_quarantine} offsets of partition {tp.partition} were not copied "
                        "before a failover, which was accepted: their records are in "
                        f"{quarantine_topic(clusters.name.source, tp.topic)}",
                    )
                if await has_records(source, tp, ranges, looping):
                    self._note_passed(tp, _offsets(ranges), is_sure=all(passed.values()))

    def _note_passed(self, tp: TopicPartition, offsets: int, *, is_sure: bool) -> None:
        name = self._clusters.name
        self._problems.note(
            tp.topic,
            f"{offsets} offsets of partition {tp.partition} were not copied, as its position was "
            f"set past them: {name.target} does not have them"
            if is_sure
            else f"up to {offsets} offsets of partition {tp.partition} were not copied: its "
            "position was set past them, or another program copied them; mm2py verify FILE --flow "
            f"'{name}' names them",
        )

    async def _check_configs(self, names: Sequence[str]) -> None:
        clusters = self._clusters
        synced = config_property_filter_from_config(clusters.config)
        copies = {it: clusters.copy_of(TopicPartition(it, 0)).topic for it in names}
        here: Mapping[str, Sequence[ConfigEntry]] = {}
        with self._problems.noting("configs cannot be compared"):
            there = await Admin(clusters.target).describe_topic_configs(set(copies.values()))
            async with clusters.source() as source:
                here = await Admin(source).describe_topic_configs(names)
        for name, entries in here.items():
            of_copy = {it.name: it.value or "" for it in there.get(copies[name], ())}
            differ = dict[str, str]()
            for op in config_operations(entries, synced) if of_copy else ():
                if op.op == "SET" and of_copy.get(op.name) != op.value:
                    differ[op.name] = f"{op.name} is {op.value}, of the copy {of_copy.get(op.name)}"
            for limit in limits_of({it.name: it.value or "" for it in entries}, of_copy):
                differ.setdefault(limit.key, f"the copy {limit.text}")
            for text in differ.values():
                self._problems.note(name, text)

    async def _check_acls(self) -> None:
        clusters = self._clusters
        here = there = None
        with self._problems.noting("ACLs cannot be compared"):
            async with clusters.source() as source:
                here = await Admin(source).describe_topic_acls()
            there = await Admin(clusters.target).describe_topic_acls()
        if here is None or there is None:
            return
        store = await clusters.seen_source_store()
        fence = frozenset[Acl]() if store is None or store.fence is None else store.fence.acls
        synced = remote_acls(
            (it for it in here if it not in fence),
            selection=clusters.selection,
            policy=clusters.policy,
            source_alias=clusters.names.source,
            own=own_principals(clusters.config),
        )
        originals = {
            clusters.policy.remote_topic(clusters.names.source, it.resource_name): it.resource_name
            for it in here
        }
        for acl in set(synced) - set(there):
            topic = originals.get(acl.resource_name, acl.resource_name)
            self._problems.note(
                topic, f"{acl.principal} has no {acl.operation.name} on {acl.resource_name} there"
            )


def _offsets(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - first for first, end in ranges)


def stays_behind(
    tail: Tail, now: FlowAnswer | None, stuck: Mapping[TopicPartition, str] | None, *, waits: bool
) -> bool:
    """Tell whether nothing is going to copy a tail: of what does copy, it is ordinary lag.

    ``stuck``: state and cause of partitions, None if not known; ``waits``: committed records wait
    for an open transaction.
    """
    if now is None or not now.copies or now.is_broken or (now.failed and stuck is None):
        return True
    if {tail.topic, f"{tail.topic}-{tail.partition}"} & set(now.paused):
        return True
    cause = (stuck or {}).get(tail.tp, "")
    # What waits for a transaction is held, too, and goes on by itself.
    return bool(cause) and not (waits and cause.startswith(PartitionState.HELD))


async def _groups(clusters: FailoverClusters, problems: _Problems) -> list[GroupRow]:
    offsets = FlowOffsets(
        clusters.name,
        clusters.of_groups,
        clusters.clock,
        has_checkpoints=clusters.checkpoints is not None,
    )
    views: Sequence[GroupView] = ()
    with problems.noting("groups cannot be read"):
        async with clusters.source(), offsets:
            views = await offsets.groups(None, MOST_GROUPS)
    return [
        GroupRow(
            group=view.group,
            state=view.state,
            state_there=view.state_there,
            reads_again=view.reads_again,
            skips=view.skips,
            not_synced=view.not_synced,
            type=view.type,
        )
        for view in views
    ]


async def _unplaced(clusters: FailoverClusters) -> list[str]:
    """Return which groups would read again, or skip records, and where."""
    return [
        f"group {move.group}: {text}"
        for move in await move_groups(clusters, source_there=True, writes=False)
        for text in move.left
        if NO_PLACE in text or AHEAD in text
    ]


async def _writers(clusters: FailoverClusters, problems: _Problems) -> list[WriterRow] | None:
    partitions = await clusters.partitions()
    async with clusters.source() as source:
        looping = await clusters.source_looping()
        try:
            answers = await Admin(source).describe_producers(partitions)
        except UnsupportedVersionError:
            problems.of_flow.append("writers are unknown: DescribeProducers needs Kafka 2.8")
            return None
    now = clusters.clock.now_ms()
    return [
        WriterRow(
            topic=tp.topic,
            partition=tp.partition,
            producer_id=producer.producer_id,
            age_ms=None if producer.last_timestamp < 0 else max(0, now - producer.last_timestamp),
            in_transaction=producer.transaction_start >= 0,
        )
        for tp, producers in sorted(answers.items())
        for producer in producers
        if producer.producer_id not in looping
        and (producer.transaction_start >= 0 or now - producer.last_timestamp < RECENT_MS)
    ]


# ---- times


async def time_plan(
    clusters: FailoverClusters,
    sides: FailoverSides,
    ask_plan: Callable[[], Awaitable[FailoverPlan]],
    request: FailoverRequest,
    asks: Callable[[str], None] = lambda _: None,
) -> TimedPlan:
    """Ask the questions of each step, and time them; ``asks`` is called with the name of each.
    ``RetriableError``: a cluster does not answer."""
    clock, at_ms = clusters.clock, clusters.clock.now_ms()
    steps: list[TimedStep] = []

    async def timed(step: str, question: Awaitable[T], describe: Callable[[T], str]) -> T:
        asks(step)
        began_s = clock.monotonic()
        answer = await question
        ms = round((clock.monotonic() - began_s) * 1000)
        steps.append(TimedStep(step=step, ms=ms, found=describe(answer)))
        return answer

    plan = await timed(
        "PLAN",
        ask_plan(),
        lambda it: (
            f"{len(it.topics)} topics, {len(it.groups)} groups, {len(it.writers or ())} writers"
        ),
    )
    reasons = [*plan.not_ready(request, clusters.store.failover)]
    gap_ms = 0
    if plan.source_reachable:
        await timed("FENCE", sides.fence_plan(), lambda it: f"{len(it.rules)} rules. {it.note}")
        first = await timed(
            "DRAIN",
            sides.progress(),
            lambda it: (
                f"{it.missing} offsets behind, {len(it.held)} partitions with open transactions"
            ),
        )
        await timed(
            "GROUPS",
            move_groups(clusters, source_there=True, writes=False),
            lambda it: f"{len(it)} groups, {sum(bool(move.left) for move in it)} with a remark",
        )
        await clock.sleep(request.settle_s)
        last = await timed(
            "VERIFY",
            sides.progress(),
            lambda it: "log ends do not move" if it.ends == first.ends else "a producer is active",
        )
        ends = await timed(
            "SWITCH", sides.target_ends(), lambda it: f"{len(it)} partitions of copies"
        )
        gap_ms = round(1000 * request.settle_s) + sum(it.ms for it in steps if it.step != "PLAN")
        await timed(
            "REVERSE",
            sides.own_records(ends),
            lambda it: f"the flow back would begin at {len(it)} places",
        )
        reasons += [
            str(transaction)
            for transaction in await sides.open_transactions(last.held)
            if first.held.get(TopicPartition(transaction.topic, transaction.partition))
            == transaction.offset
        ]
        if last.ends != first.ends and not plan.fence_rules:
            reasons.append(
                f"a producer is active on the source that no ACL would block: {plan.fence_note}"
            )
    return TimedPlan(
        flow=plan.flow,
        at_ms=at_ms,
        plan=plan,
        steps=tuple(steps),
        reasons=tuple(reasons),
        ready=not reasons,
        gap_ms=gap_ms,
    )
