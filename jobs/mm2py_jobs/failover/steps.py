"""The steps of a failover, done on both clusters and to the flows: implements
``mm2py_jobs.failover.driver.Sides``.

Flow: ``FailoverDriver`` -> ``FailoverSides`` -> ACLs (``fence_of``), groups, positions and topics
of ``FailoverClusters``; flows over ``RestFlows``.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, final

from mm2py.api.context import EventKind
from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import each_of
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.jaas import principal_of
from mm2py.errors import (
    FatalError,
    Mm2pyError,
    RetriableError,
    ServerError,
    UnsupportedVersionError,
)
from mm2py.mirror.failovers import (
    Failover,
    Fence,
    GroupMove,
    LogPlace,
    OpenTransaction,
    Rule,
    Step,
    Tail,
    failover_topic,
)
from mm2py.mirror.ledger import SET_PAST, IncarnationRecord
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.offset_map_pages import Page
from mm2py.observability.logging import some_of
from mm2py.protocol.acls import Acl, AclOperation
from mm2py.protocol.admin_messages import ActiveProducer
from mm2py.protocol.error_codes import error_name
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic
from mm2py.storage.backfill_store import unfinished_job
from mm2py.types import LATEST, NO_PRODUCER_ID, FlowName, TopicPartition
from mm2py_jobs.copy.survey import copied_now
from mm2py_jobs.failover.clusters import FailoverClusters, ends_first
from mm2py_jobs.failover.driver import DriverProgress, FailoverStore, SourceAwayError
from mm2py_jobs.failover.fences import FencePlan, fence_of, rules_of_others
from mm2py_jobs.failover.flows import FlowAnswer, RestFlows, stop_record, stop_without_workers
from mm2py_jobs.failover.groups import move_groups
from mm2py_jobs.failover.own_records import OwnRecords, own_records
from mm2py_jobs.failover.quarantine import (
    loss,
    post_to_ledger,
    quarantine,
    record_quarantined,
)
from mm2py_jobs.log.log_ends import LogEnds, log_ends
from mm2py_jobs.log.mirror_producers import producer_of
from mm2py_jobs.log.open_transactions import first_stamps
from mm2py_jobs.log.range_reader import RangeReader
from mm2py_jobs.open_flow import store_positions
from mm2py_workers.internal_stores import HostedMaps

log = logging.getLogger(__name__)

STOP_S: Final = 45.0
"""How long a flow may take to stop or to begin."""

APPEARS_S: Final = 10.0
"""Within this time a worker that has just started knows the flows that were created over REST."""

REACH_S: Final = 10.0
"""Within this time a worker reaches the leader of a flow, unless something keeps it from that: a
round of the group is over sooner."""

LOOK_S: Final = 0.3
_AT_ONCE: Final = 8
"""Ranges of the source that are read side by side: each holds two pieces of ``FETCH_BYTES``."""
ANY_TOPIC: Final = ".*"
LEFT_OUT: Final = "not copied back, as it does not show whose records they are: "


@final
class FailoverSides:
    """Both sides of one flow.

    Args:
        clusters: open.
        control: the flows at a worker.
    """

    def __init__(self, clusters: FailoverClusters, control: RestFlows) -> None:
        self._clusters, self._control = clusters, control
        self._clock = clusters.clock
        self._back = FlowName(clusters.name.target, clusters.name.source)
        self._made: tuple[Rule, ...] = ()
        """ACLs that this process has created on the source."""
        self._lifted: set[str] = set()
        """The failovers whose fences on the target it has lifted."""
        self._opened = False
        """Whether it has lifted a fence on the source."""
        self._ends = CountedEnds()
        """The newest log ends, and those that count: mirrors alone have written above them."""

    # ---- the fence

    async def fence_plan(self) -> FencePlan:
        """Return the ACLs that would fence the source; ``SourceAwayError`` while it does not
        answer."""
        clusters = self._clusters
        topics = await clusters.topics()
        async with clusters.source() as source:
            # Before the rules: one that another failover removes meanwhile is not taken for a
            # user's.
            others = await rules_of_others(source, self._source_topic, clusters.clock)
            try:
                acls = await Admin(source).describe_topic_acls()
            except ServerError as error:
                if isinstance(error, RetriableError):
                    raise
                return FencePlan((), f"the rules of {clusters.name.source} cannot be read: {error}")
            missing = await _missing_right(source)
        if acls is None:
            note = f"cluster {clusters.name.source} has no authorizer: stop its producers yourself"
            return FencePlan((), note)
        plan = fence_of(
            acls,
            list(topics),
            self._principals(),
            mirror_writes=clusters.keeps_names,
            others=others,
        )
        if plan.rules and missing:
            return FencePlan((), "; ".join(it for it in (plan.note, missing) if it))
        return plan

    @property
    def _source_topic(self) -> str:
        """The topic on the source that has the record of its fence."""
        return failover_topic(self._back.source)

    def _principals(self) -> set[str]:
        clusters = self._clusters
        clients = (
            effective_client_properties(clusters.config, "source", "consumer"),
            effective_client_properties(clusters.config, "source", "admin"),
            clusters.back.props,
        )
        return {principal_of(client) for client in clients}

    async def fence(self, by: str) -> str:
        """Deny Write on the source, by ACLs that are recorded there before they are created; return
        the writers that no ACL blocks and why, empty for none."""
        plan = await self.fence_plan()
        if not plan.rules:
            return plan.note
        clusters, acls = self._clusters, [rule.acl for rule in plan.rules]
        self._made += plan.rules
        store = await clusters.source_store()
        async with clusters.source() as source:
            await store.write(Fence(by=by, rules=_all_rules(store.fence, plan.rules)))
            refused = _refusals(acls, await Admin(source).create_acls(acls))
        if refused:
            refused = f"refused (Alter on the cluster is needed): {refused}"
        return "; ".join(it for it in (plan.note, refused) if it)

    async def restore_fences(self) -> None:
        """Restore the recorded ACLs on both clusters, of which this process, which is superseded,
        may have created or removed some."""
        store = self._clusters.store
        while True:
            before = store.failover, store.fence
            if self._lifted and store.fence is not None and store.fence.by not in self._lifted:
                await Admin(self._clusters.target).create_acls(list(store.fence.acls))
            if store.failover is not None:
                with suppress(SourceAwayError):
                    await self._restore_source(store.failover)
            await store.refresh()
            if (store.failover, store.fence) == before:
                return

    async def _restore_source(self, failover: Failover) -> None:
        if failover.is_undone((await self._clusters.source_store()).failover):
            await self.lift_fence(source=True)
        elif self._opened and (failover.fenced or failover.step is Step.FENCE):
            # Derived from the current ACLs: the recorded rules may have been overwritten.
            await self.fence(failover.id)

    async def lift_fence(self, *, source: bool) -> None:
        """Remove the ACLs that a failover has created on the source, or on the target."""
        clusters = self._clusters
        if not source:
            await clusters.store.refresh()
            if clusters.store.fence is not None:
                self._lifted.add(clusters.store.fence.by)
            topic = failover_topic(clusters.name.source)
            await self._lift(clusters.store, clusters.target, topic, ())
            return
        self._opened = True
        store = await clusters.source_store()
        async with clusters.source() as cluster:
            await self._lift(store, cluster, self._source_topic, self._made)

    async def _lift(
        self, store: FailoverStore, cluster: Cluster, topic: str, made: Sequence[Rule]
    ) -> None:
        """Remove the recorded ACLs, and those that this process has created, except those of other
        failovers."""
        fence, admin = store.fence, Admin(cluster)
        ours = frozenset(_all_rules(fence, made))
        if not ours:
            return
        kept = ours & await rules_of_others(cluster, topic, self._clock)
        await self._remove(admin, ours - kept)
        await store.write(Fence(by="" if fence is None else fence.by))
        # Others may have recorded or lifted theirs meanwhile: the one that comes last finds the
        # record of the first.
        now = ours & await rules_of_others(cluster, topic, self._clock)
        await self._remove(admin, kept - now)
        if restored := now - kept:
            await admin.create_acls([rule.acl for rule in restored])

    async def _remove(self, admin: Admin, rules: Collection[Rule]) -> None:
        if not rules:
            return
        # Only existing ones: to remove what the cluster refused to create, or what was removed by
        # hand, may be refused too.
        ours = {rule.acl for rule in rules}
        acls = [acl for acl in await admin.describe_topic_acls() or () if acl in ours]
        refused = _refusals(acls, await admin.delete_acls(acls))
        if refused:
            raise FatalError(
                f"the rules that keep writers from {admin.cluster.alias} cannot be removed: "
                f"{refused}",
                remedy="grant Alter on the cluster, or remove them with kafka-acls, and run it "
                "again",
            )

    # ---- the copy

    async def unfinished_job(self) -> str:
        """Return the Spark job that copies the flow or reserves its partitions, or the failover of
        the flow back, and how to end it; empty for none."""
        return await self.spark_job() or await self._other_way()

    async def _other_way(self) -> str:
        """Return the failover of the flow back that another driver began at the same time: both
        would switch."""
        try:
            store = await self._clusters.seen_source_store()
        except SourceAwayError:
            return ""
        return ends_first(self._back, None if store is None else store.failover)

    async def spark_job(self) -> str:
        """Return the Spark job that has to end first: of the flow, and of the flow back where that
        is begun at positions of the failover."""
        clusters = self._clusters
        job = await unfinished_job(clusters.target, clusters.name, self._clock)
        if job:
            return job
        try:
            async with clusters.source() as source:
                job = await unfinished_job(source, self._back, self._clock)
        except SourceAwayError:
            return ""  # nothing can copy to it either
        back: FlowAnswer | None = None
        with suppress(Mm2pyError):  # a plan is made without workers, too
            back = await self._control.now(self._back) if job else None
        return "" if back is not None and back.copies else job

    async def progress(self) -> DriverProgress:
        """Return how far the copy is; ends do not count what only mirrors have written since the
        last call."""
        partitions = await self._clusters.partitions()
        async with self._clusters.source() as cluster:
            logs = await log_ends(cluster, partitions, read_committed=False)
            stable = await log_ends(cluster, partitions, read_committed=True)
            ends = await self._ends_of_others(cluster, logs)
            # After recreation and truncation.
            copied = await copied_now(
                Admin(cluster), await self._clusters.known(), self._clusters.source_ids, logs
            )
        return DriverProgress(ends, copied, {tp: it.end for tp, it in stable.items()})

    async def _ends_of_others(
        self, cluster: Cluster, logs: Mapping[TopicPartition, LogEnds]
    ) -> Mapping[TopicPartition, int]:
        looping: frozenset[int] | None = None
        turn = asyncio.Lock()

        async def are_of_mirrors(tp: TopicPartition, first: int, end: int) -> bool:
            nonlocal looping
            async with turn:
                if looping is None:
                    looping = await self._clusters.source_looping()
            return await _is_written_by(cluster, tp, first, end, looping)

        return await self._ends.counted(logs, are_of_mirrors)

    async def open_transactions(
        self, held: Mapping[TopicPartition, int], /
    ) -> Sequence[OpenTransaction]:
        """Return the open transactions, except mirrors', as far as the source's brokers disclose
        them."""
        if not held:
            return ()
        async with self._clusters.source() as cluster:
            looping, admin = await self._clusters.source_looping(), Admin(cluster)
            producers: Mapping[TopicPartition, Sequence[ActiveProducer]] = {}
            # KIP-664; brokers before 2.8 do not have it, and only the stable offset is known then.
            with suppress(UnsupportedVersionError):
                producers = await admin.describe_producers(held)
            ids = {
                it.producer_id
                for of_partition in producers.values()
                for it in of_partition
                if it.transaction_start >= 0
            }
            names = await admin.transactional_ids(ids)
            opened = [
                (tp, it)
                for tp, stable in sorted(held.items())
                for it in producers.get(tp, (ActiveProducer(NO_PRODUCER_ID, -1, -1, stable),))
                if it.transaction_start >= 0 and it.producer_id not in looping
            ]
            stamps = await first_stamps(cluster, [(tp, it.transaction_start) for tp, it in opened])
        transactions: list[OpenTransaction] = []
        for (tp, it), stamp in zip(opened, stamps, strict=True):
            name, coordinator = names.get(it.producer_id, ("", -1))
            transactions.append(
                OpenTransaction(
                    topic=tp.topic,
                    partition=tp.partition,
                    offset=it.transaction_start,
                    producer_id=it.producer_id,
                    epoch=it.epoch,
                    transactional_id=name,
                    coordinator=coordinator,
                    since_ms=-1 if stamp is None else stamp,
                )
            )
        return transactions

    async def target_ends(self) -> Sequence[LogPlace]:
        """Return the log ends of the copies; asks only the target."""
        clusters = self._clusters
        copied = [it for it in await clusters.copied() if clusters.counts(it.topic)]
        copies = [clusters.copy_of(it) for it in copied]
        there = await Admin(clusters.target).describe_topics({copy.topic for copy in copies})
        existing = [
            copy
            for copy in copies
            if copy.topic in there and copy.partition in there[copy.topic].partitions
        ]
        ends = await Admin(clusters.target).offsets(existing, LATEST)
        return [
            LogPlace(topic=tp.topic, partition=tp.partition, offset=ends[tp]) for tp in sorted(ends)
        ]

    async def move_groups(self) -> Sequence[GroupMove]:
        """Write the exact offsets of the source's groups to the target; from checkpoints if the
        source does not answer."""
        there = await self._clusters.is_source_there()
        return await move_groups(self._clusters, source_there=there)

    async def quarantine(self, tails: Sequence[Tail]) -> Sequence[Tail]:
        """Keep records that were not copied, each once; return the tails with their numbers."""
        return await quarantine(self._clusters, tails)

    async def pass_over(self, tails: Sequence[Tail]) -> None:
        """Move positions past the tails, never back."""
        clusters = self._clusters
        copied = (await self.progress()).copied
        positions = {tail.tp: tail.end for tail in tails if copied.get(tail.tp, 0) < tail.end}
        if positions:
            await store_positions(clusters.target_tables, clusters.plan, positions)
            await self._begin_incarnations(positions)
        # After the incarnations, which begin offsets anew; after a crash the step is repeated.
        await record_quarantined(clusters, tails)

    async def _begin_incarnations(self, partitions: Collection[TopicPartition]) -> None:
        """Assign stored positions and maps to the current incarnation of the source's topics, or
        the flow would start these from their beginning.

        The ledger is written last: until then everything belongs to the previous incarnation, and
        is done again.
        """
        clusters = self._clusters
        copies, ids = await clusters.known(), clusters.source_ids
        maps: dict[TopicPartition, list[Page]] = {}
        for tp in partitions:
            if (page := copies.pages.get(tp)) and is_another_topic(page.source_id, ids[tp.topic]):
                begun = PartitionMap(page)
                begun.identify(ids[tp.topic])
                maps[tp] = begun.take()
        worker = clusters.plan.worker
        factor = worker.offset_storage_replication_factor
        if maps:
            hosted = HostedMaps(
                clusters.target_tables,
                clusters.name.source,
                factor,
                transactional=worker.exactly_once,
            )
            try:
                await hosted.write(maps)
            finally:
                await hosted.close()
        records = [
            IncarnationRecord(
                partition=tp,
                topic_id=ids[tp.topic],
                flow=str(clusters.name),
                time_ms=self._clock.now_ms(),
            )
            for tp in partitions
            if is_another_topic(copies.incarnations.get(tp, NO_TOPIC_ID), ids[tp.topic])
        ]
        await post_to_ledger(clusters, records)

    async def own_records(
        self, ends_there: Sequence[LogPlace]
    ) -> Mapping[TopicPartition, OwnRecords]:
        """Return what of the copies the target has on its own, from where the flow back is on;
        nothing with prefixes, as it does not copy copies."""
        if not self._clusters.keeps_names:
            return {}
        copies = await self._clusters.known_back()
        back_at = {it.tp: max(0, copies.resume(it.tp)) for it in ends_there}
        return await own_records(self._clusters, back_at, {it.tp: it.offset for it in ends_there})

    async def divergence(self, ends_there: Sequence[LogPlace]) -> Sequence[LogPlace]:
        """Return where the flow back begins, by target partition: at the first record that is the
        target's own. What it leaves out without knowing whose it is, and what the flow had passed
        and no program copied, is in their ledgers then."""
        clusters, own = self._clusters, await self.own_records(ends_there)
        passed = [
            loss(clusters, EventKind.SKIPPED, it.source, offsets, SET_PAST)
            for it in own.values()
            for offsets in it.skipped
        ]
        left_out = [
            loss(clusters, EventKind.SKIPPED, copy, (first, end), LEFT_OUT + why, back=True)
            for copy, it in own.items()
            for first, end, why in it.unclear
        ]
        await post_to_ledger(clusters, passed)
        if left_out and begins_anew(await self._control.now(self._back)):
            async with clusters.source():
                await post_to_ledger(clusters, left_out, back=True)
        return [replace(it, offset=own[it.tp].first) for it in ends_there if it.tp in own]

    # ---- the flows

    async def unreached(self) -> Sequence[str]:
        """Return why the flow could not be stopped, or the flow back started, by the worker that is
        asked; asks it for dry runs of both, which take the way of the changes to the leaders."""
        found: list[str] = []
        for flow, change, ask in (
            (self._clusters.name, "stopped", self._rehearse_stop),
            (self._back, "started", self._rehearse_start),
        ):
            try:
                await self._within_reach(ask)
            except Mm2pyError as error:
                found.append(
                    f"flow {flow} cannot be {change} through the worker that is asked: "
                    f"{error.message}; ask one that reaches the leader of that flow over HTTP "
                    "(--url), as a user who may change it"
                )
        return found

    async def _within_reach(self, ask: Callable[[], Awaitable[None]]) -> None:
        deadline = self._clock.monotonic() + REACH_S
        while True:
            try:
                await ask()
            except RetriableError:
                if self._clock.monotonic() > deadline:
                    raise
                await self._clock.sleep(LOOK_S)
            else:
                return

    async def _rehearse_stop(self) -> None:
        flow = self._clusters.name
        now = await self._control.now(flow)
        # Workers that wait take no change: a target state is recorded instead (``_stop_it``).
        if now is not None and not now.is_waiting and not now.is_stopped:
            await self._control.stop(flow, dry_run=True)

    async def _rehearse_start(self) -> None:
        now = await self._control.now(self._back)
        if now is None or not (now.is_waiting or (now.copies and not now.is_broken)):
            await self._control.start(self._back, self._reverse_config(), dry_run=True)

    async def stop_flow(self) -> int:
        """Stop the flow; returns when none of its tasks copies, with the offset of the record that
        it is stopped by."""
        await self._stop_it()
        return await stop_record(self._clusters.target, self._clusters.plan, self._clock)

    async def _stop_it(self) -> None:
        """Stop the flow.

        Workers that wait for an unreachable source accept no change: then the target state is
        recorded, which they read when they begin.
        """
        clusters = self._clusters
        try:
            now = await self._control.now(clusters.name)
        except Mm2pyError:
            await stop_without_workers(clusters.target, clusters.plan, self._clock)
            raise
        if now is not None and not now.is_waiting:
            await self._stop(clusters.name)
            return
        await stop_without_workers(clusters.target, clusters.plan, self._clock)
        if now is None:
            # A worker that has just started does not know flows yet that were created over REST.
            now = await self._wait(clusters.name, lambda _: True, APPEARS_S)
            if now is not None and not now.is_waiting:
                await self._stop(clusters.name)

    async def _stop(self, flow: FlowName) -> None:
        now = await self._control.now(flow)
        if now is not None and not now.is_stopped:
            await self._control.stop(flow)
        now = await self._wait(flow, lambda it: it.is_stopped, STOP_S)
        if now is None:
            raise RetriableError(
                f"no worker knows flow {flow} any more: it is unknown whether it has stopped"
            )
        if not now.is_stopped:
            raise RetriableError(f"flow {flow} is {now.state} with {now.tasks} tasks, not stopped")

    async def _wait(
        self, flow: FlowName, is_so: Callable[[FlowAnswer], bool], longest_s: float
    ) -> FlowAnswer | None:
        """Return the flow as soon as a worker knows it and ``is_so`` is true, else its last state
        after ``longest_s``."""
        deadline = self._clock.monotonic() + longest_s
        while True:
            now = await self._control.now(flow)
            if (now is not None and is_so(now)) or self._clock.monotonic() > deadline:
                return now
            await self._clock.sleep(LOOK_S)

    async def start_reverse(self, starts: Sequence[LogPlace]) -> None:
        """Start the flow back, at ``starts`` if it does not run; returns when it copies."""
        back = self._back
        now = await self._control.now(back)
        if now is not None and now.is_waiting:
            raise RetriableError(f"the workers of flow {back} wait for a cluster")
        # One that failed as a whole has not begun: restarted, it would begin elsewhere.
        if begins_anew(now):
            if now is not None and now.enabled:
                await self._stop(back)
            await self._begin_back(starts)
            await self._control.start(back, self._reverse_config())
        now = await self._wait(back, lambda it: it.copies, STOP_S)
        if now is None or not now.copies:
            raise RetriableError(f"flow {back} does not run: {now and now.state}")

    async def _begin_back(self, starts: Sequence[LogPlace]) -> None:
        """Store the start positions, never back: an earlier driver may have started the flow
        back."""
        clusters = self._clusters
        if not starts:
            return
        copies = await clusters.known_back()
        positions = {
            start.tp: start.offset for start in starts if copies.resume(start.tp) < start.offset
        }
        if positions:
            async with clusters.source():
                await store_positions(clusters.source_tables, clusters.back, positions)

    def _reverse_config(self) -> Mapping[str, str]:
        """Return the config that the flow back is created with: the same topics, unless the file
        sets others for it."""
        topics = self._clusters.back.connectors[SOURCE_NAME].get("topics", ANY_TOPIC)
        forward = self._clusters.config.get("topics", ANY_TOPIC)
        return {} if topics != ANY_TOPIC or forward == ANY_TOPIC else {"topics": forward}


def begins_anew(back: FlowAnswer | None) -> bool:
    """Whether a failover sets where the flow back begins: one that copies is left where it is."""
    return back is None or not back.copies or back.is_broken


@final
class CountedEnds:
    """Log ends of the source that stand still while only mirrors write whose batches the flow
    drops."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, int] = {}
        self._counted: dict[TopicPartition, int] = {}

    async def counted(
        self,
        logs: Mapping[TopicPartition, LogEnds],
        are_of_mirrors: Callable[[TopicPartition, int, int], Awaitable[bool]],
    ) -> Mapping[TopicPartition, int]:
        """Return log ends, or the counted end of each log to which only mirrors have written since
        the last call.

        Args:
            logs: as they are now.
            are_of_mirrors: reads a range, and returns whether all of it is to be dropped; what it
                raises ends the call.
        """

        async def count(tp: TopicPartition) -> None:
            before, end = self._seen.get(tp), logs[tp].end
            if before == end:
                return
            by_mirrors = (
                before is not None and before < end and await are_of_mirrors(tp, before, end)
            )
            # Only now: after a failure the same range has to be read again.
            self._seen[tp] = end
            if not by_mirrors:
                self._counted[tp] = end

        await each_of(logs, count, at_once=_AT_ONCE)
        return {tp: self._counted[tp] for tp in logs}


async def _is_written_by(
    cluster: Cluster, tp: TopicPartition, first: int, end: int, producers: frozenset[int]
) -> bool:
    """Whether all batches of a range are of these producers."""
    if not producers:
        return False
    reader = RangeReader(cluster, read_committed=False)
    written = [producer_of(it) async for part in reader.read(tp, first, end) for it in part]
    return producers.issuperset(written)


async def _missing_right(source: Cluster) -> str:
    """Return that no rule can be made on a cluster, with the command that lets us; empty where it
    can, and where brokers do not disclose it."""
    try:
        rights = await Admin(source).cluster_rights()
    except UnsupportedVersionError:
        return ""
    if rights is None or AclOperation.ALTER in rights:
        return ""
    return (
        f"Alter on cluster {source.alias} is missing, so writers are not fenced: "
        f"{source.granting('Alter', '--cluster')}"
    )


def _all_rules(fence: Fence | None, more: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(dict.fromkeys((*(fence.rules if fence is not None else ()), *more)))


def _refusals(acls: Sequence[Acl], answers: Sequence[ServerError | None]) -> str:
    """Describe refused ACLs by error code: the broker's message is a Java ``toString``."""
    refused = [
        f"{acl.principal} on {acl.resource_name}: {error_name(error.code)}"
        for acl, error in zip(acls, answers, strict=True)
        if error is not None
    ]
    return some_of(refused, 3, "; ")
