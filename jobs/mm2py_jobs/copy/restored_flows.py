"""Flows under which topics are restored that are not copies: their names, and what those of other
flows write.

Flow: ``renamed_flow`` -> positions, map and backfill topic of its own; ``restored_elsewhere`` ->
the driver refuses a second writer.
"""

from collections.abc import Mapping
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.clock import Clock
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.definitions import parse_config
from mm2py.config.worker import WorkerConfig
from mm2py.mirror.backfills import Job, Lease, backfill_topic
from mm2py.storage.backfill_store import newest_backfills
from mm2py.storage.config_state import texts_of
from mm2py.types import ClusterAlias, FlowName
from mm2py_workers.flow_parts import FlowPlan

_RENAMED: Final = ".restored"


def is_renamed(flow: FlowName) -> bool:
    """Whether a flow is a ``renamed_flow``."""
    return flow.source.endswith(_RENAMED)


def renamed_flow(flow: FlowName) -> FlowName:
    """Return the flow under which topics are restored that are not copies of ``flow``."""
    return FlowName(ClusterAlias(f"{flow.source}{_RENAMED}"), flow.target)


def renamed_plan(plan: FlowPlan, connector: Mapping[str, str]) -> FlowPlan:
    """Return the flow that restores under other names: it has no workers, and internal topics of
    its own."""
    name = renamed_flow(plan.name)
    props = {
        **plan.props,
        "group.id": f"{name.source}-mm2",
        "offset.storage.topic": f"mm2-offsets.{name.source}.internal",
    }
    return FlowPlan(
        name=name,
        props=props,
        worker=parse_config(WorkerConfig, props),
        connectors={SOURCE_NAME: {**connector, "source.cluster.alias": name.source}},
        resolve=texts_of,
        by_file=True,
    )


async def restored_elsewhere(target: Admin, flow: FlowName, clock: Clock) -> dict[str, str]:
    """Return topics that unfinished restores of other flows write under other names, with what to
    call each restore."""
    own, restored = backfill_topic(flow.source), dict[str, str]()
    beginning, end = backfill_topic(f"\0{_RENAMED}").split("\0")
    for topic in await target.list_topics():
        if topic == own or not (topic.startswith(beginning) and topic.endswith(end)):
            continue
        records = await newest_backfills(target.cluster, topic, clock)
        job = records.get(b"job")
        if not isinstance(job, Job) or job.state.is_over:
            continue
        other = FlowName(ClusterAlias(topic[len(beginning) : -len(end)]), flow.target)
        for record in records.values():
            if isinstance(record, Lease) and record.job == job.id:
                restored[record.topic] = f"restore {job.id} of {job.archive} of {other}"
    return restored
