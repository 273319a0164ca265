"""What a failover does on both clusters and to the flows: implements ``mm2py_jobs.failover.failover.Sides``.

Flow: ``FailoverDriver`` -> ``FailoverSides`` -> ACLs, groups, positions and topics of ``FailoverClusters``; flows over ``RestFlows``.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.config.client_properties import effective_client_properties
from mm2py.errors import FatalError, Mm2pyError, RetriableError, ServerError
from mm2py.mirror.failovers import (
    Failover,
    Fence,
    GroupMove,
    OpenTransaction,
    Place,
    Rule,
    Step,
    Tail,
)
from mm2py.observability.logging import some_of
from mm2py.protocol.acls import Acl
from mm2py.protocol.error_codes import error_name
from mm2py.storage.backfill_store import unfinished_job
from mm2py.types import LATEST, FlowName, State, TopicPartition
from mm2py_jobs.failover.failover import Progress, SourceAwayError
from mm2py_jobs.failover.failover_clusters import FailoverClusters
from mm2py_jobs.failover.failover_control import FlowNow, RestFlows
from mm2py_jobs.failover.failover_groups import move_groups
from mm2py_jobs.failover.failover_stop import stop_without_workers
from mm2py_jobs.failover.failover_store import FailoverStore
from mm2py_jobs.failover.failover_tail import quarantine, reverse_starts
from mm2py_jobs.failover.fence import FencePlan, fence_of, principal_of
from mm2py_workers.bulk_flow import SOURCE, store_positions

STOP_S: Final = 45.0
"""How long a flow may take to stop or to begin."""

APPEARS_S: Final = 10.0
"""Within which a worker that has begun knows the flows that were added over REST."""

LOOK_S: Final = 0.3
ANY_TOPIC: Final = ".*"


@final
class FailoverSides:
    """Both sides of one flow.

    Args:
        clusters: open.
        control: of the workers.
    """

    def __init__(self, clusters: FailoverClusters, control: RestFlows) -> None:
        self._clusters, self._control = clusters, control
        self._clock = clusters.clock
        self._back = FlowName(clusters.name.target, clusters.name.source)
        self._made: tuple[Rule, ...] = ()
        """Rules that this process has made on the source."""
        self._lifted: set[str] = set()
        """Who had made the fences on the target that it has lifted."""
        self._opened = False
        """Whether it has lifted one on the source."""

    # ---- the fence

    async def fence_plan(self) -> FencePlan:
        """Return which rules would keep writers from the source; ``SourceAwayError`` while it does not answer."""
        clusters = self._clusters
        topics = await clusters.topics()
        async with clusters.source() as source:
            try:
                acls = await Admin(source).describe_topic_acls()
            except ServerError as error:
                if isinstance(error, RetriableError):
                    raise
                return FencePlan((), f"the rules of {clusters.name.source} cannot be read: {error}")
        if acls is None:
            note = f"cluster {clusters.name.source} has no authorizer: stop its producers yourself"
            return FencePlan((), note)
        return fence_of(acls, list(topics), self._principals(), mirror_writes=clusters.keeps_names)

    def _principals(self) -> set[str]:
        clusters = self._clusters
        clients = (
            effective_client_properties(clusters.config, "source", "consumer"),
            effective_client_properties(clusters.config, "source", "admin"),
            clusters.back.props,
        )
        return {principal_of(it) for it in clients}

    async def fence(self, by: str) -> str:
        """Deny Write on the source by ACLs where possible; the rules are recorded on it before they are made."""
        plan = await self.fence_plan()
        if not plan.rules:
            return plan.note
        clusters, acls = self._clusters, [it.acl for it in plan.rules]
        self._made += plan.rules
        store = await clusters.source_store()
        async with clusters.source() as source:
            await store.put_fence(Fence(by=by, rules=_all_rules(store.fence, plan.rules)))
            refused = _refusals(acls, await Admin(source).create_acls(acls))
        if refused:
            refused = f"refused (Alter on the cluster is needed): {refused}"
        return "; ".join(it for it in (plan.note, refused) if it)

    async def restore_fences(self) -> None:
        """Bring the rules that this process has made or removed to what the records say."""
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
            # By the ACLs of now: the record of the rules is what may have been overwritten.
            await self.fence(failover.id)

    async def lift_fence(self, *, source: bool) -> None:
        """Remove the rules that a failover has made on the source, or on the target."""
        clusters = self._clusters
        if not source:
            await clusters.store.refresh()
            if clusters.store.fence is not None:
                self._lifted.add(clusters.store.fence.by)
            await self._lift(clusters.store, Admin(clusters.target), ())
            return
        self._opened = True
        store = await clusters.source_store()
        async with clusters.source() as cluster:
            await self._lift(store, Admin(cluster), self._made)

    async def _lift(self, store: FailoverStore, admin: Admin, made: Sequence[Rule]) -> None:
        """Remove the rules that are recorded, and those that this process has made."""
        fence = store.fence
        wanted = {it.acl for it in _all_rules(fence, made)}
        if not wanted:
            return
        # Not those that the cluster refused to make, or that were removed by hand: to remove them may be refused as well.
        acls = [it for it in await admin.describe_topic_acls() or () if it in wanted]
        refused = _refusals(acls, await admin.delete_acls(acls))
        if refused:
            raise FatalError(
                f"the rules that keep writers from {admin.cluster.alias} cannot be removed: {refused}",
                remedy="grant Alter on the cluster, or remove them with kafka-acls, and run it again",
            )
        await store.put_fence(Fence(by="" if fence is None else fence.by))

    # ---- the copy

    async def unfinished_job(self) -> str:
        """Return the job of Spark that has to end first: of the flow, or of the flow back where that is to begin at other positions."""
        clusters = self._clusters
        if job := await unfinished_job(clusters.target, clusters.name, self._clock):
            return job
        now = None
        with suppress(Mm2pyError):  # no worker answers: nothing is known to copy
            now = await self._control.now(self._back)
        if now is None or not now.copies:
            with suppress(SourceAwayError):
                async with clusters.source() as source:
                    return await unfinished_job(source, self._back, self._clock)
        return ""

    async def progress(self) -> Progress:
        """Return how far the copy is."""
        return await self._clusters.progress()

    async def open_transactions(
        self, held: Mapping[TopicPartition, int], /
    ) -> Sequence[OpenTransaction]:
        """Name open transactions of the source."""
        return await self._clusters.open_transactions(held)

    async def target_ends(self) -> Sequence[Place]:
        """Return where the logs of the copies end, by what the target has."""
        clusters = self._clusters
        copies = [clusters.copy_of(it) for it in await clusters.copied()]
        there = await Admin(clusters.target).describe_topics({it.topic for it in copies})
        known = [
            it for it in copies if it.topic in there and it.partition in there[it.topic].partitions
        ]
        found = await Admin(clusters.target).list_offsets(dict.fromkeys(known, LATEST))
        for answer in found.values():
            if answer.error is not None:
                raise answer.error
        return [
            Place(topic=tp.topic, partition=tp.partition, offset=it.offset)
            for tp, it in sorted(found.items())
        ]

    async def move_groups(self) -> Sequence[GroupMove]:
        """Write exact offsets of groups to the target."""
        there = await self._clusters.is_source_there()
        return await move_groups(self._clusters, source_there=there)

    async def quarantine(self, tails: Sequence[Tail]) -> Sequence[Tail]:
        """Keep what was not copied."""
        return await quarantine(self._clusters, tails)

    async def pass_over(self, tails: Sequence[Tail]) -> None:
        """Let the flow continue behind tails, but where it is further already."""
        clusters = self._clusters
        copied = (await clusters.progress()).copied
        positions = {it.tp: it.end for it in tails if copied.get(it.tp, 0) < it.end}
        if positions:
            await store_positions(clusters.target_tables, clusters.plan, positions)
            await clusters.begin_incarnations(positions)

    async def divergence(self, ends_there: Sequence[Place]) -> Sequence[Place]:
        """Return where the flow back begins."""
        known = await self._clusters.known_back()
        back_at = {it.tp: max(0, known.resume(it.tp)) for it in ends_there}
        return await reverse_starts(self._clusters, ends_there, back_at)

    # ---- the flows

    async def stop_flow(self) -> None:
        """Stop the flow; returns when nothing of it copies.

        Workers that wait for a source that is gone take no change: then the record is written that they find when they begin.
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
            # A worker that has begun a moment ago looks for flows that were added over REST.
            now = await self._wait(clusters.name, lambda _: True, APPEARS_S)
            if now is not None and not now.is_waiting:
                await self._stop(clusters.name)

    async def _stop(self, flow: FlowName) -> None:
        """Stop a flow that there is."""
        now = await self._control.now(flow)
        if now is not None and not now.is_stopped and now.state != State.STOPPED:
            await self._control.stop(flow)
        now = await self._wait(flow, lambda it: it.is_stopped, STOP_S)
        if now is None:
            raise RetriableError(
                f"no worker knows flow {flow} any more, whether it has stopped is not known"
            )
        if not now.is_stopped:
            raise RetriableError(f"flow {flow} is {now.state} with {now.tasks} tasks, not stopped")

    async def _wait(
        self, flow: FlowName, is_so: Callable[[FlowNow], bool], longest_s: float
    ) -> FlowNow | None:
        """Return a flow as soon as a worker knows it and it is so, or else as it is after a time."""
        deadline = self._clock.monotonic() + longest_s
        while True:
            now = await self._control.now(flow)
            if (now is not None and is_so(now)) or self._clock.monotonic() > deadline:
                return now
            await self._clock.sleep(LOOK_S)

    async def start_reverse(self, starts: Sequence[Place]) -> None:
        """Let the flow back copy."""
        back = self._back
        now = await self._control.now(back)
        if now is not None and now.is_waiting:
            raise RetriableError(f"the workers of flow {back} wait for a cluster")
        if now is None or not now.copies:
            if now is not None and now.enabled:
                await self._stop(back)
            await self._begin_back(starts)
            await self._control.start(back, self._reverse_config())
        now = await self._wait(back, lambda it: it.copies, STOP_S)
        if now is None or not now.copies:
            raise RetriableError(f"flow {back} does not run: {now and now.state}")

    async def _begin_back(self, starts: Sequence[Place]) -> None:
        """Store where the flow back begins, but where it is further already: a driver before this one may have started it."""
        clusters = self._clusters
        known = await self._clusters.known_back() if starts else None
        positions = {
            it.tp: it.offset
            for it in starts
            if known is not None and known.resume(it.tp) < it.offset
        }
        if positions:
            async with clusters.source():
                await store_positions(clusters.source_tables, clusters.back, positions)

    def _reverse_config(self) -> Mapping[str, str]:
        """Return what the flow back is created with: the same topics, unless the file names others for it."""
        topics = self._clusters.back.connectors[SOURCE].get("topics", ANY_TOPIC)
        forward = self._clusters.config.get("topics", ANY_TOPIC)
        return {} if topics != ANY_TOPIC or forward == ANY_TOPIC else {"topics": forward}


def _all_rules(fence: Fence | None, more: Sequence[Rule]) -> tuple[Rule, ...]:
    return tuple(dict.fromkeys((*(fence.rules if fence is not None else ()), *more)))


def _refusals(acls: Sequence[Acl], answers: Sequence[ServerError | None]) -> str:
    """Name what was refused, by codes: the broker's own message shows its request as Java prints objects."""
    found = [
        f"{acl.principal} on {acl.resource_name}: {error_name(error.code)}"
        for acl, error in zip(acls, answers, strict=True)
        if error is not None
    ]
    return some_of(found, 3, "; ")
