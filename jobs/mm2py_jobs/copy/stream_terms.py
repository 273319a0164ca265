"""What runs of ``mm2py stream`` outside of its driver: the plan of a term, beside Spark's driver,
and its lanes, in tasks.

Flow: ``StreamSpec`` -> ``plan_term`` (leases of the stream, ends of the source's logs) -> lanes as
JSON -> ``run_backfill_lane``. Connections are opened for each plan: a term is tens of seconds long.
Before partitions are reserved, lanes are without any.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.clock import SYSTEM_CLOCK, Clock, closing
from mm2py.config.client_properties import effective_client_properties
from mm2py.errors import FatalError, RetriableError
from mm2py.mirror.backfills import Lease
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.types import LATEST, TopicPartition
from mm2py_jobs.copy.backfill_lane import BackfillLane, dealt_lanes
from mm2py_jobs.copy.lanes import Term
from mm2py_jobs.copy.stream import PlannedTerm, deal_term, is_lost
from mm2py_workers.flow_target import FlowTarget

log = logging.getLogger(__name__)

_IMPATIENT: Final = {"default.api.timeout.ms": "10000"}
"""No lane copies while the next term is planned."""

IDLE_S: Final = 0.5
"""Pause where there is nothing to deal: Spark asks again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A run of a stream as it travels to its planner.

    Args:
        lane: what its lanes have in common.
        seconds: how long a term is.
    """

    lane: BackfillLane
    seconds: float


def plan_term(spec: StreamSpec, term: int, most_bytes: int) -> PlannedTerm:
    """Plan a term as of now; the function of ``mm2py_jobs.spark.stream_query``. ``FatalError``:
    another run of the stream has taken over."""
    return asyncio.run(planned_term(spec, term, most_bytes, SYSTEM_CLOCK))


async def planned_term(spec: StreamSpec, term: int, most_bytes: int, clock: Clock) -> PlannedTerm:
    """Plan a term; one without lanes while the target does not answer, however long: raised, that
    would end the query."""
    try:
        return await _planned(spec, term, most_bytes, clock)
    except RetriableError as error:
        log.warning("no term can be planned now cause=%s", error)
        await clock.sleep(IDLE_S)
        return PlannedTerm()


async def _planned(spec: StreamSpec, term: int, most_bytes: int, clock: Clock) -> PlannedTerm:
    lane = spec.lane
    async with closing(FlowTarget(lane.flow, lane.worker, clock)) as target:
        await target.open()
        job, leases = target.jobs.job, target.jobs.kept_out()
        if job is None or (job.id, job.run) != (lane.job, lane.run):
            raise FatalError(f"stream {lane.job}, run {lane.run}: another run has taken over")
        if not job.turn and job.state.is_copied:
            # The live flow copies meanwhile: once this has run, lanes can begin within a second.
            return PlannedTerm(dealt_lanes(lane, [()] * job.slots))
        ends: Mapping[TopicPartition, int] = {}
        waits = ""
        if job.state.is_copied and leases:
            ends, waits = await _ends_or_why(lane, leases, clock)
        dealt = deal_term(leases, ends, job.slots, term)
        copied = sum(lease.bytes for lease in target.jobs.leases.values())
    if not dealt:
        await clock.sleep(IDLE_S)
        return PlannedTerm()
    until_ms = clock.now_ms() + round(spec.seconds * 1000)
    limit = copied + most_bytes if most_bytes else 0
    common = replace(lane, term=Term(job.turn, spec.seconds, until_ms, limit, waits))
    shown: dict[str, dict[str, int]] = {}
    for tp, end in ends.items() if not waits else ():
        shown.setdefault(tp.topic, {})[str(tp.partition)] = end
    careful = [any(is_lost(leases[tp]) for tp in partitions) for partitions in dealt]
    lanes = [
        {**it, "careful": each}
        for it, each in zip(dealt_lanes(common, dealt), careful, strict=True)
    ]
    return PlannedTerm(lanes, shown)


async def _ends_or_why(
    lane: BackfillLane, leases: Mapping[TopicPartition, Lease], clock: Clock
) -> tuple[Mapping[TopicPartition, int], str]:
    """Return where logs end; where the source does not say so now, the positions and why: lanes
    wait for it, have the cause in their leases, and go on at once when it is back."""
    try:
        return await log_ends(lane, leases, clock), ""
    except RetriableError as error:
        log.warning("lanes are dealt without the ends of logs cause=%s", error)
        return {tp: max(0, lease.position) for tp, lease in leases.items()}, str(error)


async def log_ends(
    lane: BackfillLane, leases: Mapping[TopicPartition, Lease], clock: Clock
) -> dict[TopicPartition, int]:
    """Return where logs end; a partition whose end is not known now is copied, one that is gone is
    left out."""
    props = effective_client_properties(lane.connector, "source", "admin", role="stream")
    async with Cluster.of({**props, **_IMPATIENT}, alias=lane.source, clock=clock) as cluster:
        admin = Admin(cluster)
        topics = await admin.describe_topics({lease.topic for lease in leases})
        listed = await admin.list_offsets({tp: LATEST for tp in leases if tp.topic in topics})
    return {
        tp: max(0, leases[tp].position) if it.error is not None else it.offset
        for tp, it in listed.items()
        if it.error is None or it.error.code != UNKNOWN_TOPIC_OR_PARTITION
    }
