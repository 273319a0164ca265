"""What runs of ``mm2py stream`` outside of its driver: the plan of a term, beside Spark's driver, and its lanes, in tasks.

Flow: ``StreamSpec`` -> ``plan_term`` (leases of the stream, ends of the source's logs) -> lanes as JSON -> ``run_backfill_lane``.
Connections are opened for each plan: a term is tens of seconds long.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import connection_settings
from mm2py.errors import FatalError
from mm2py.mirror.backfills import Lease
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.spark.lanes import Term
from mm2py.spark.stream import PlannedTerm, deal_term
from mm2py.types import LATEST, ClusterAlias, FlowName, TopicPartition
from mm2py_workers.backfill_lane import BackfillLane, LaneConnections

__all__ = ["StreamSpec", "plan_term"]

IDLE_S: Final = 0.5
"""Pause where there is nothing to deal: Spark asks again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A run of a stream as it travels to its planner; the configs are resolved, secrets included."""

    source: str
    target: str
    job: str
    run: int
    lanes: int
    seconds: float
    worker: Mapping[str, str]
    connector: Mapping[str, str]
    task: Mapping[str, str]
    log_level: str = "WARNING"

    @property
    def flow(self) -> FlowName:
        """The flow."""
        return FlowName(ClusterAlias(self.source), ClusterAlias(self.target))


def plan_term(spec: StreamSpec, term: int, most_bytes: int) -> PlannedTerm:
    """Plan a term as of now; the function of ``mm2py.spark.stream_query``.

    Raises:
        FatalError: another run of the stream has taken over.
        RetriableError: a cluster does not answer.
    """
    return asyncio.run(_plan_term(spec, term, most_bytes, SYSTEM_CLOCK))


async def _plan_term(spec: StreamSpec, term: int, most_bytes: int, clock: Clock) -> PlannedTerm:
    connections = LaneConnections(spec.flow, spec.worker, clock)
    try:
        await connections.open()
        job, leases = connections.store.job, connections.store.kept_out()
        if job is None or (job.id, job.run) != (spec.job, spec.run):
            raise FatalError(f"stream {spec.job}, run {spec.run}: another run has taken over")
        ends = await _log_ends(spec, leases, clock) if job.state.is_copied and leases else {}
        dealt = deal_term(leases, ends, spec.lanes, term)
    finally:
        await connections.close()
    if not dealt:
        await clock.sleep(IDLE_S)
        return PlannedTerm()
    until_ms = clock.now_ms() + round(spec.seconds * 1000)
    share = -(-most_bytes // len(dealt))
    lanes = [
        asdict(
            BackfillLane(
                source=spec.source,
                target=spec.target,
                job=spec.job,
                run=spec.run,
                lane=number,
                worker=spec.worker,
                connector=spec.connector,
                task={**spec.task, **_rate(spec, len(dealt))},
                partitions=[(it.topic, it.partition) for it in lane],
                term=Term(job.turn, spec.seconds, until_ms, share),
                log_level=spec.log_level,
            )
        )
        for number, lane in enumerate(dealt)
    ]
    shown: dict[str, dict[str, int]] = {}
    for tp, end in ends.items():
        shown.setdefault(tp.topic, {})[str(tp.partition)] = end
    return PlannedTerm(lanes, shown)


async def _log_ends(
    spec: StreamSpec, leases: Mapping[TopicPartition, Lease], clock: Clock
) -> dict[TopicPartition, int]:
    """Return where logs end; a partition whose end is not known now is copied, one that is gone is left out."""
    props = effective_client_properties(spec.connector, "source", "admin", role="stream")
    settings = connection_settings(props, scope=f"cluster {spec.source}")
    cluster = Cluster(settings, alias=spec.source, clock=clock)
    try:
        await cluster.connect()
        admin = Admin(cluster)
        topics = await admin.describe_topics({it.topic for it in leases})
        found = await admin.list_offsets({tp: LATEST for tp in leases if tp.topic in topics})
    finally:
        await cluster.close()
    return {
        tp: max(0, leases[tp].position) if it.error is not None else it.offset
        for tp, it in found.items()
        if it.error is None or it.error.code != UNKNOWN_TOPIC_OR_PARTITION
    }


def _rate(spec: StreamSpec, lanes: int) -> dict[str, str]:
    """Share the flow's byte rate among lanes."""
    limit = int(spec.connector.get("flow.max.bytes.per.second", "0") or 0)
    return {"flow.max.bytes.per.second": str(max(1, limit // lanes))} if limit else {}
