"""Whether copies behind a position that has no topic id are of the topic that was archived.

MirrorMaker 2 of Java stores no id, and a position that was set over REST has none. What is left to
compare are the last records before the position: the archive has them, and if the topic is the same
the target has copies. Flow: archive -> those records -> the target's log from their timestamps on.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import aclosing
from itertools import chain
from typing import Final, NamedTuple

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.errors import ConfigError, FatalError, PartitionError, ProtocolError
from mm2py.types import TopicPartition
from mm2py_jobs.archive.archive_format import archived_batches, chain_in, settled
from mm2py_jobs.archive.archive_store import ArchiveStore
from mm2py_jobs.verify.compare import WINDOWS
from mm2py_jobs.verify.log_entries import LogEntry, OffsetRange, entries_of
from mm2py_jobs.verify.verify import PartitionLog

LAST: Final = 1_000
"""Records that are looked for: some of them may have been passed by hand."""
_SEARCHED: Final = WINDOWS[-1]
"""Offsets of the target; as many as verify searches for a record."""


class Reach(NamedTuple):
    """How far copies reach, in offsets of the source: after the last of some archived records that
    has one, -1 for none; and after the last of all."""

    copied: int
    end: int


async def copied_reach(
    target: Cluster, copy: TopicPartition, store: ArchiveStore, source: TopicPartition, end: int
) -> Reach | None:
    """Return how many of the last archived records of ``source`` below offset ``end`` are in
    ``copy``; None where that does not show: none is archived there, or the target may have deleted
    or changed them.

    Raises:
        RetriableError: the target does not answer.
    """
    try:
        last = await asyncio.to_thread(_last_below, store, source, end)
        return await _reach(target, copy, last) if last else None
    except (ConfigError, FatalError, PartitionError, ProtocolError):
        return None  # its lane says why it cannot be read


def _last_below(store: ArchiveStore, tp: TopicPartition, end: int) -> Sequence[LogEntry]:
    """Return the last records below an offset that one file has."""

    def read(names: Sequence[str]) -> Sequence[LogEntry]:
        there = [it for it in chain_in(store, tp, names) if it.first < end and it.records]
        for manifest in reversed(there):
            last = deque[LogEntry](maxlen=LAST)
            for batch in archived_batches(store, manifest):
                if batch.base_offset >= end:
                    break
                last += (it for it in entries_of(batch) if manifest.first <= it.offset < end)
            if last:
                return list(last)
        return ()

    return settled(store, tp, read)


async def _reach(target: Cluster, copy: TopicPartition, wanted: Sequence[LogEntry]) -> Reach | None:
    configs = (await Admin(target).describe_topic_configs([copy.topic])).get(copy.topic, ())
    values = {it.name: it.value or "" for it in configs}
    compacts = "compact" in values.get("cleanup.policy", "")
    if compacts or values.get("message.timestamp.type") == "LogAppendTime":
        return None
    log = PartitionLog(target, copy, read_committed=True)
    last, ends = wanted[-1].offset + 1, defaultdict[tuple[int, bytes], deque[int]](deque)
    for it in wanted:
        ends[it.timestamp, it.body].append(it.offset + 1)
    there = await log.ends()
    oldest = min(it.timestamp for it in wanted)
    begin = there.start
    if oldest >= 0:  # a record may have no timestamp
        begin = await log.offset_at(oldest, OffsetRange(there.start, there.end))
    end, copied = min(there.end, begin + _SEARCHED), -1
    async with aclosing(log.read([OffsetRange(begin, end)])) as pieces:
        async for _, batches in pieces:
            if any(it.is_log_append for it in batches):
                return None
            for entry in chain.from_iterable(map(entries_of, batches)):
                # Of equal records the first ones are there.
                if alike := ends.get((entry.timestamp, entry.body)):
                    copied = max(copied, alike.popleft())
            if copied == last:
                break
    if copied < 0 and (there.start or end < there.end):
        return None
    # The others may lie behind what was searched.
    return Reach(copied if end == there.end else last, last)
