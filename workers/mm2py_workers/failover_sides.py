"""What a failover does on both clusters and to the flows: implements ``mm2py.flows.failover.Sides``.

Flow: ``FailoverDriver`` -> ``FailoverSides`` -> ACLs, groups, positions and topics of ``FailoverClusters``; flows over ``FlowControl``.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.config.client_properties import effective_client_properties
from mm2py.errors import FatalError, Mm2pyError, RetriableError, ServerError
from mm2py.flows.failover import FailoverRefusedError, Progress
from mm2py.flows.fence import FencePlan, fence_of, principal_of
from mm2py.flows.flow_control import FlowControl
from mm2py.mirror.failovers import Fence, GroupMove, Place, Tail
from mm2py.protocol.acls import Acl
from mm2py.spark.survey import CopiesReader
from mm2py.storage.failover_store import FailoverStore
from mm2py.types import LATEST, FlowName, State, TopicPartition
from mm2py_workers.bulk_flow import SOURCE, store_positions
from mm2py_workers.failover_clusters import FailoverClusters
from mm2py_workers.failover_groups import move_groups
from mm2py_workers.failover_stop import stop_without_workers
from mm2py_workers.failover_tail import quarantine, reverse_starts

__all__ = ["FailoverSides"]

STOP_S: Final = 45.0
"""How long a flow may take to stop or to begin."""

LOOK_S: Final = 0.3
ANY_TOPIC: Final = ".*"


@final
class FailoverSides:
    """Both sides of one flow.

    Args:
        clusters: open.
        control: of the workers.
    """

    def __init__(self, clusters: FailoverClusters, control: FlowControl) -> None:
        self._clusters, self._control = clusters, control
        self._clock = clusters.clock
        self._back = FlowName(clusters.name.target, clusters.name.source)

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
        return {principal_of(it) for it in clients} - {""}

    async def fence(self, by: str) -> str:
        """Keep writers from the source where ACLs allow; the rules are recorded on it before they are made."""
        plan = await self.fence_plan()
        if not plan.rules:
            return plan.note
        store = await self._clusters.source_store()
        before = store.fence
        await store.put_fence(
            Fence(
                by=by, rules=tuple(dict.fromkeys((*(before.rules if before else ()), *plan.rules)))
            )
        )
        async with self._clusters.source() as source:
            admin, acls = Admin(source), [it.acl for it in plan.rules]
            refused = _refusals(acls, await admin.create_acls(acls))
            await store.refresh()
            if store.fence is None:
                # Another driver has lifted it while this one stood still: what came late goes too.
                await admin.delete_acls(acls)
                raise FailoverRefusedError("the fence was lifted by another driver meanwhile")
        return "; ".join(it for it in (plan.note, refused) if it)

    async def lift_fence(self, *, source: bool) -> None:
        """Remove the rules that a failover has made on the source, or on the target."""
        if not source:
            await self._lift(self._clusters.store, Admin(self._clusters.target))
            return
        store = await self._clusters.source_store()
        async with self._clusters.source() as cluster:
            await self._lift(store, Admin(cluster))

    async def _lift(self, store: FailoverStore, admin: Admin) -> None:
        await store.refresh()
        fence = store.fence
        if fence is None:
            return
        acls = [it.acl for it in fence.rules]
        refused = _refusals(acls, await admin.delete_acls(acls))
        if refused:
            raise FatalError(
                f"the rules that keep writers from {admin.cluster.alias} cannot be removed: {refused}",
                remedy="grant Alter on the cluster, or remove them with kafka-acls, and run it again",
            )
        await store.put_fence(Fence(by=fence.by))

    # ---- the copy

    async def progress(self) -> Progress:
        """Return how far the copy is."""
        return await self._clusters.progress()

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
        """Let the flow continue behind tails."""
        clusters = self._clusters
        await self._need_stopped(clusters.name)
        positions = {it.tp: it.end for it in tails}
        await store_positions(clusters.target_tables, clusters.plan, positions)

    async def divergence(self, ends_there: Sequence[Place]) -> Sequence[Place]:
        """Return where the flow back begins."""
        clusters = self._clusters
        async with clusters.source() as source:
            reader = CopiesReader(
                Admin(source),
                clusters.name.target,
                clusters.back.worker.offset_storage_topic,
                self._clock,
            )
            try:
                known = await reader.read()
            finally:
                await reader.close()
        back_at: Mapping[TopicPartition, int] = {
            it.tp: max(0, known.resume(it.tp)) for it in ends_there
        }
        return await reverse_starts(clusters, ends_there, back_at)

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
        if now is not None and now.is_waiting:
            await stop_without_workers(clusters.target, clusters.plan, self._clock)
        else:
            await self._stop(clusters.name)

    async def _stop(self, flow: FlowName) -> None:
        now = await self._control.now(flow)
        if now is None or now.is_stopped:
            return
        if now.state != State.STOPPED:
            await self._control.stop(flow)
        deadline = self._clock.monotonic() + STOP_S
        while (now := await self._control.now(flow)) is not None and not now.is_stopped:
            if self._clock.monotonic() > deadline:
                raise RetriableError(
                    f"flow {flow} is {now.state} with {now.tasks} tasks, not stopped"
                )
            await self._clock.sleep(LOOK_S)

    async def _need_stopped(self, flow: FlowName) -> None:
        now = await self._control.now(flow)
        if now is not None and not now.is_stopped:
            raise RetriableError(f"flow {flow} is {now.state}: positions wait until it is stopped")

    async def start_reverse(self, starts: Sequence[Place]) -> None:
        """Let the flow back copy."""
        clusters, back = self._clusters, self._back
        now = await self._control.now(back)
        if now is not None and now.is_waiting:
            raise RetriableError(f"the workers of flow {back} wait for a cluster")
        if now is None or not now.is_wanted:
            if now is not None and now.enabled:
                await self._stop(back)
            if starts:
                async with clusters.source():
                    positions = {it.tp: it.offset for it in starts}
                    await store_positions(clusters.source_tables, clusters.back, positions)
            await self._control.start(back, self._reverse_config())
        deadline = self._clock.monotonic() + STOP_S
        while (now := await self._control.now(back)) is None or not now.is_wanted:
            if self._clock.monotonic() > deadline:
                raise RetriableError(f"flow {back} does not run: {now and now.state}")
            await self._clock.sleep(LOOK_S)

    def _reverse_config(self) -> Mapping[str, str]:
        """Return what the flow back is created with: the same topics, unless the file names others for it."""
        topics = self._clusters.back.connectors[SOURCE].get("topics", ANY_TOPIC)
        forward = self._clusters.config.get("topics", ANY_TOPIC)
        return {} if topics != ANY_TOPIC or forward == ANY_TOPIC else {"topics": forward}


def _refusals(acls: Sequence[Acl], answers: Sequence[ServerError | None]) -> str:
    found = [
        f"{acl.principal} on {acl.resource_name}: {error}"
        for acl, error in zip(acls, answers, strict=True)
        if error is not None
    ]
    return "; ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
