"""Flows under which topics are restored that are not copies: their names, and what those of other flows write.

Flow: ``renamed_flow`` -> positions, map and backfill topic of its own; ``restored_elsewhere`` -> the driver refuses a second writer.
"""

from contextlib import suppress
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.mirror.backfills import BackfillRecord, Job, Lease, backfill_topic, decode_backfill
from mm2py.protocol.records import Record
from mm2py.types import ClusterAlias, FlowName

_RENAMED: Final = ".restored"


def is_renamed(flow: FlowName) -> bool:
    """Whether a flow is a ``renamed_flow``."""
    return flow.source.endswith(_RENAMED)


def renamed_flow(flow: FlowName) -> FlowName:
    """Return the flow under which topics are restored that are not copies of ``flow``."""
    return FlowName(ClusterAlias(f"{flow.source}{_RENAMED}"), flow.target)


async def restored_elsewhere(target: Admin, flow: FlowName, clock: Clock) -> dict[str, str]:
    """Return topics that unfinished restores of other flows write under other names, with what to call each restore."""
    own, found = backfill_topic(flow.source), dict[str, str]()
    beginning, end = backfill_topic(f"\0{_RENAMED}").split("\0")
    for topic in await target.list_topics():
        if topic == own or not (topic.startswith(beginning) and topic.endswith(end)):
            continue
        records = await _newest(target, topic, clock)
        job = records.get(b"job")
        if not isinstance(job, Job) or job.state.is_over:
            continue
        other = FlowName(ClusterAlias(topic[len(beginning) : -len(end)]), flow.target)
        for it in records.values():
            if isinstance(it, Lease) and it.job == job.id:
                found[it.topic] = f"restore {job.id} of {job.archive} of {other}"
    return found


async def _newest(target: Admin, topic: str, clock: Clock) -> dict[bytes, BackfillRecord]:
    """Return the newest record of each key of another flow's backfill topic."""
    found: dict[bytes, BackfillRecord] = {}

    def take(_partition: int, record: Record) -> None:
        key = bytes(record.key or b"")
        found.pop(key, None)
        if record.value is not None:
            with suppress(ProtocolError):  # of another version
                found[key] = decode_backfill(key, bytes(record.value))

    reader = LogReader(target.cluster, topic, clock=clock, waits_for_transactions=True)
    try:
        await reader.read_to_end(take)
    finally:
        await reader.close()
    return found
