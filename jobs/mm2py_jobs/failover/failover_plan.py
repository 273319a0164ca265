"""What a failover would do, asked of both clusters and of a worker; changes nothing.

Flow: ``FailoverClusters``, ``RestFlows`` -> topics with lag and drift, groups, writers, the fence -> ``FailoverPlan``. Where the source
is gone: what the target and the worker know of it.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.config.class_names import MIRROR_CHECKPOINT_CONNECTOR, canonical_class
from mm2py.errors import Mm2pyError, RetriableError, ServerError, UnsupportedVersionError
from mm2py.flows.flow_offsets import FlowOffsets
from mm2py.flows.states import enabled
from mm2py.flows.view_models import GroupView
from mm2py.mirror.failovers import FailoverKind, OpenTransaction, Tail, quarantine_topic
from mm2py.mirror.filters import config_property_filter_from_config
from mm2py.observability.logging import some_of
from mm2py.protocol.acls import Acl
from mm2py.protocol.configs import ConfigEntry
from mm2py.types import FlowName, TopicPartition
from mm2py_connectors.acl_sync import remote_acls
from mm2py_connectors.config_sync import config_operations
from mm2py_jobs.failover.failover import Progress, SourceAwayError
from mm2py_jobs.failover.failover_clusters import FailoverClusters, first_stamp
from mm2py_jobs.failover.failover_control import FlowNow, RestFlows
from mm2py_jobs.failover.failover_sides import FailoverSides
from mm2py_jobs.failover.failover_views import FailoverPlan, GroupRow, TopicRow, WriterRow
from mm2py_jobs.failover.fence import FencePlan
from mm2py_workers.bulk_flow import source_connector

MOST_GROUPS: Final = 10_000
RECENT_MS: Final = 10 * 60_000
"""A producer that has not written for so long is not shown as a writer."""

_SHOWN: Final = 3


@dataclass(slots=True)
class _Found:
    problems: list[str] = field(default_factory=list[str])
    by_topic: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def note(self, topic: str, text: str) -> None:
        self.by_topic.setdefault(topic, []).append(text)

    @contextmanager
    def noting(self, what: str) -> Generator[None]:
        """Note what a cluster refuses to tell."""
        try:
            yield
        except ServerError as error:
            if isinstance(error, RetriableError):
                raise
            self.problems.append(f"{what}: {error}")


async def plan_failover(
    clusters: FailoverClusters, sides: FailoverSides, control: RestFlows, kind: FailoverKind
) -> FailoverPlan:
    """Return the plan.

    Raises:
        RetriableError: the target does not answer.
    """
    found = _Found()
    now, back = await _flows(clusters.name, control, found)
    if clusters.config.get("transforms"):
        found.problems.append(
            f"records pass transforms={clusters.config['transforms']}: what these drop or send elsewhere is not in the copies, nor copied back"
        )
    try:
        progress = await clusters.progress()
        opened = await clusters.open_transactions(progress.held)
        stuck = await control.not_copied(clusters.name)
        topics = _Source(clusters, found, opened, stuck)
        rows, awaited = await topics.topics(progress, now), topics.awaited
        groups = await _groups(clusters, found)
        writers = await _writers(clusters, found)
        await _look_at_the_way_back(clusters, found, kind)
        fence = await sides.fence_plan()
        there = True
    except SourceAwayError as error:
        found.problems.append(
            f"{error}; groups and writers are not known, groups would get the offsets of their checkpoints"
        )
        there, fence, groups, writers = False, FencePlan((), ""), [], []
        opened, awaited = (), 0
        rows = await _known(clusters, control)
    unfinished = await _unfinished(clusters)
    job = await sides.unfinished_job()
    return FailoverPlan(
        flow=str(clusters.name),
        kind=str(kind),
        at_ms=clusters.clock.now_ms(),
        source_reachable=there,
        state="" if now is None else now.state,
        reverse_state="" if back is None or not back.enabled else back.state,
        would_lose=sum(it.would_lose or 0 for it in rows),
        fence_rules=len(fence.rules),
        fence_note=fence.note,
        quarantine=tuple(
            quarantine_topic(clusters.name.source, it.topic) for it in rows if it.would_lose
        ),
        unfinished=unfinished,
        jobs=(job,) if job else (),
        problems=tuple(found.problems),
        topics=tuple(rows),
        groups=tuple(groups),
        awaited=awaited,
        writers=None if writers is None else tuple(writers),
        transactions=tuple(opened),
    )


async def _flows(
    name: FlowName, control: RestFlows, found: _Found
) -> tuple[FlowNow | None, FlowNow | None]:
    try:
        now = await control.now(name)
        back = await control.now(FlowName(name.target, name.source))
    except Mm2pyError as error:
        found.problems.append(f"no worker answers, so nothing is known to copy: {error}")
        return None, None
    if now is None:
        found.problems.append(
            f"the worker that was asked does not know flow {name}: nothing is known to copy"
        )
    elif not now.copies:
        state = now.state if now.enabled else "not there"
        found.problems.append(f"flow {name} is {state}: what is not copied stays behind")
    if now is not None:
        # What is held drains only once its cause is gone.
        found.problems += [f"flow {name}: {text}" for text in now.errors[:_SHOWN]]
    return now, back


async def _look_at_the_way_back(
    clusters: FailoverClusters, found: _Found, kind: FailoverKind
) -> None:
    """Name the topics that a flow back which exists leaves out; for a failback also those that it alone copies."""
    async with clusters.source():
        config = await source_connector(clusters.back, clusters.source_tables, clusters.clock)
    if config is None or not enabled(config):
        return
    name, back = clusters.name, clusters.back.name
    selection = clusters.selection_of(back, config)
    names = await clusters.topics(lambda _: True)
    here = [it for it in names if clusters.selection.replicate(it)]
    for flow, left in (
        (back, [it for it in here if not selection.replicate(it)]),
        (name, [it for it in names if it not in here and selection.replicate(it)]),
    ):
        if left and (flow is back or kind is FailoverKind.FAILBACK):
            found.problems.append(
                f"flow {flow} copies no {some_of(left, _SHOWN)}: what clients write there on {flow.source} stays there;"
                f" mm2py flow set {flow.source}/{flow.target} topics=..."
            )


async def _unfinished(clusters: FailoverClusters) -> str:
    failover = clusters.store.failover
    if failover is None or failover.step.is_over:
        return ""
    return f"{failover.kind} {failover.id} is at {failover.step}: --execute continues it"


async def _known(clusters: FailoverClusters, control: RestFlows) -> list[TopicRow]:
    """Return what is known of a source that is gone: how far each partition was copied, and the lag that workers saw last."""
    lags = await control.lag(clusters.name)
    copied: dict[str, dict[int, int]] = {}
    for tp, offset in (await clusters.copied()).items():
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
class _Source:
    """What both clusters say of the topics."""

    def __init__(
        self,
        clusters: FailoverClusters,
        found: _Found,
        opened: Sequence[OpenTransaction],
        stuck: Mapping[TopicPartition, str],
    ) -> None:
        self._clusters, self._found = clusters, found
        self._opened, self._stuck = opened, stuck
        self.awaited = 0
        """Offsets that would be lost, but for the end of a transaction that is open."""

    async def topics(self, progress: Progress, now: FlowNow | None) -> list[TopicRow]:
        names = sorted({tp.topic for tp in progress.ends})
        for tp, cause in sorted(self._stuck.items()):
            self._found.note(tp.topic, f"partition {tp.partition} is {cause}")
        await self._look_at_copies(progress)
        await self._look_at_configs(names)
        await self._look_at_acls()
        return [await self._row(name, progress, now) for name in names]

    async def _row(self, name: str, progress: Progress, now: FlowNow | None) -> TopicRow:
        clusters = self._clusters
        tails = [it for it in progress.tails() if it.topic == name]
        lag = sum(it.end - it.start for it in tails)
        return TopicRow(
            topic=name,
            copy=clusters.copy_of(TopicPartition(name, 0)).topic,
            partitions=sum(tp.topic == name for tp in progress.ends),
            lag_records=lag,
            lag_ms=await self._age(tails),
            would_lose=sum(self._lost(it, progress, now) for it in tails),
            copied_to={
                tp.partition: at for tp, at in sorted(progress.copied.items()) if tp.topic == name
            },
            problems=tuple(self._found.by_topic.get(name, ())),
        )

    def _lost(self, tail: Tail, progress: Progress, now: FlowNow | None) -> int:
        opened = [it for it in self._opened if (it.topic, it.partition) == tail.tp]
        waits = bool(opened) and self._clusters.read_committed
        if not _is_copied(tail, now) or (tail.tp in self._stuck and not waits):
            return tail.end - tail.start
        if not waits:
            return 0
        lost = tail.end - max(tail.start, progress.stable[tail.tp])
        if not any(it.hangs(self._clusters.clock.now_ms()) for it in opened):
            self.awaited += lost
        return lost

    async def _age(self, tails: Sequence[Tail]) -> int | None:
        """Return the age of the oldest record that is not copied, in ms; 0 where all are."""
        ages = [0]
        for tail in tails:
            async with self._clusters.source() as source:
                stamp = await first_stamp(source, tail.tp, tail.start)
            if stamp is None:
                return None
            ages.append(max(0, self._clusters.clock.now_ms() - stamp))
        return max(ages)

    async def _look_at_copies(self, progress: Progress) -> None:
        clusters = self._clusters
        copies = {tp: clusters.copy_of(tp) for tp in progress.ends}
        there = await Admin(clusters.target).describe_topics({it.topic for it in copies.values()})
        for tp, copy in copies.items():
            known = there.get(copy.topic)
            if known is None:
                if tp.partition == 0:
                    self._found.note(
                        tp.topic, f"topic {copy.topic} is missing on {clusters.name.target}"
                    )
            elif known.error is None and tp.partition not in known.partitions:
                self._found.note(tp.topic, f"partition {copy} is missing on {clusters.name.target}")

    async def _look_at_configs(self, names: Sequence[str]) -> None:
        clusters = self._clusters
        chosen = config_property_filter_from_config(clusters.config)
        copies = {it: clusters.copy_of(TopicPartition(it, 0)).topic for it in names}
        here: Mapping[str, Sequence[ConfigEntry]] = {}
        with self._found.noting("configs cannot be compared"):
            there = await Admin(clusters.target).describe_topic_configs(set(copies.values()))
            async with clusters.source() as source:
                here = await Admin(source).describe_topic_configs(names)
        for name, entries in here.items():
            of_copy = {it.name: it.value for it in there.get(copies[name], ())}
            for op in config_operations(entries, chosen) if of_copy else ():
                if op.op == "SET" and of_copy.get(op.name) != op.value:
                    self._found.note(
                        name, f"{op.name} is {op.value}, of the copy {of_copy.get(op.name)}"
                    )

    async def _look_at_acls(self) -> None:
        clusters = self._clusters
        here = there = None
        with self._found.noting("ACLs cannot be compared"):
            async with clusters.source() as source:
                here = await Admin(source).describe_topic_acls()
            there = await Admin(clusters.target).describe_topic_acls()
        if here is None or there is None:
            return
        store = await clusters.seen_source_store()
        fence = frozenset[Acl]() if store is None or store.fence is None else store.fence.acls
        wanted = remote_acls(
            (it for it in here if it not in fence),
            selection=clusters.selection,
            policy=clusters.policy,
            source_alias=clusters.name.source,
        )
        originals = {
            clusters.policy.remote_topic(clusters.name.source, it.resource_name): it.resource_name
            for it in here
        }
        for acl in set(wanted) - set(there):
            topic = originals.get(acl.resource_name, acl.resource_name)
            self._found.note(
                topic, f"{acl.principal} has no {acl.operation.name} on {acl.resource_name} there"
            )


def _is_copied(tail: Tail, now: FlowNow | None) -> bool:
    """Whether a tail is going to be copied: the flow runs, and this part of it is not paused."""
    if now is None or not now.copies or now.failed:
        return False
    return not {tail.topic, f"{tail.topic}-{tail.partition}"} & set(now.paused)


async def _groups(clusters: FailoverClusters, found: _Found) -> list[GroupRow]:
    plan = clusters.plan
    name = next(
        (
            it
            for it, raw in plan.connectors.items()
            if canonical_class(raw.get("connector.class", "")) == MIRROR_CHECKPOINT_CONNECTOR
        ),
        None,
    )
    config = clusters.config if name is None else plan.resolve(plan.connectors[name])
    offsets = FlowOffsets(clusters.name, config, clusters.clock, has_checkpoints=name is not None)
    views: Sequence[GroupView] = ()
    with found.noting("groups cannot be read"):
        async with clusters.source(), offsets:
            views = await offsets.groups(None, MOST_GROUPS)
    return [
        GroupRow(
            group=it.group,
            state=it.state,
            state_there=it.state_there,
            reads_again=it.reads_again,
            skips=it.skips,
            not_synced=it.not_synced,
            type=it.type,
        )
        for it in views
    ]


async def _writers(clusters: FailoverClusters, found: _Found) -> list[WriterRow] | None:
    partitions = await clusters.partitions()
    async with clusters.source() as source:
        looping = await clusters.source_looping()
        try:
            answers = await Admin(source).describe_producers(partitions)
        except UnsupportedVersionError:
            found.problems.append("writers are not known: DescribeProducers needs Kafka 2.8")
            return None
    now = clusters.clock.now_ms()
    return [
        WriterRow(
            topic=tp.topic,
            partition=tp.partition,
            producer_id=it.producer_id,
            age_ms=None if it.last_timestamp < 0 else max(0, now - it.last_timestamp),
            in_transaction=it.transaction_start >= 0,
        )
        for tp, producers in sorted(answers.items())
        for it in producers
        if it.producer_id not in looping
        and (it.transaction_start >= 0 or now - it.last_timestamp < RECENT_MS)
    ]
