"""Whether copies behind a position that has no topic id are of the topic that was archived.

MirrorMaker 2 of Java stores no id, and a position that was set over REST has none. What is left to
compare are the last records before the position: the archive has them, and if the topic is the same
the target has copies. Flow: archive -> those records -> the target's log from their timestamps on.
"""

import asyncio
from collections import deque
from collections.abc import Collection
from contextlib import aclosing
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.errors import ConfigError, FatalError, PartitionError, ProtocolError
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive_format import archived_batches, chain_of
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.verify.compare import WINDOWS
from mm2py_jobs.verify.log_entries import LogEntry, OffsetRange, entries_of
from mm2py_jobs.verify.verify import PartitionLog

LAST: Final = 1_000
"""Records that are looked for: some of them may have been passed by hand."""
_SEARCHED: Final = WINDOWS[-1]
"""Offsets of the target; as many as verify searches for a record."""


async def is_copied(
    target: Cluster, copy: TopicPartition, store: ArchiveStore, source: TopicPartition, end: int
) -> bool | None:
    """Whether ``copy`` has any of the last archived records of ``source`` below offset ``end``;
    None where that does not show: none is archived there, or the target may have deleted or changed
    them.

    Raises:
        RetriableError: the target does not answer.
    """
    try:
        last = await asyncio.to_thread(_last_below, store, source, end)
        return await _has_any(target, copy, last) if last else None
    except (ConfigError, FatalError, PartitionError, ProtocolError):
        return None  # its lane says why it cannot be read


def _last_below(store: ArchiveStore, tp: TopicPartition, end: int) -> Collection[LogEntry]:
    """Return the last records below an offset that one file has."""
    for manifest in reversed([it for it in chain_of(store, tp) if it.first < end and it.records]):
        last = deque[LogEntry](maxlen=LAST)
        for batch in archived_batches(store, manifest):
            if batch.base_offset >= end:
                break
            last += (it for it in entries_of(batch) if manifest.first <= it.offset < end)
        if last:
            return last
    return ()


async def _has_any(
    target: Cluster, copy: TopicPartition, wanted: Collection[LogEntry]
) -> bool | None:
    configs = (await Admin(target).describe_topic_configs([copy.topic])).get(copy.topic, ())
    values = {it.name: it.value or "" for it in configs}
    compacts = "compact" in values.get("cleanup.policy", "")
    if compacts or values.get("message.timestamp.type") == "LogAppendTime":
        return None
    log, same = PartitionLog(target, copy, read_committed=True), {it[1:] for it in wanted}
    there = await log.ends()
    oldest = min(it.timestamp for it in wanted)
    begin = there.start
    if oldest >= 0:  # a record may have no timestamp
        begin = await log.offset_at(oldest, OffsetRange(there.start, there.end))
    end = min(there.end, begin + _SEARCHED)
    async with aclosing(log.read([OffsetRange(begin, end)])) as pieces:
        async for _, batches in pieces:
            if any(it.is_log_append for it in batches):
                return None
            if any(it[1:] in same for batch in batches for it in entries_of(batch)):
                return True
    return None if there.start or end < there.end else False
