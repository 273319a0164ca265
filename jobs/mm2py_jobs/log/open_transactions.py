"""Since when transactions of a log are open, by its records: each broker tells them, also one
before 2.8."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.partition_fetch import fetch_partition
from mm2py.clock import each_of
from mm2py.errors import Mm2pyError, ServerError
from mm2py.mirror.failovers import HANGS_MS
from mm2py.observability.quantities import utc_text
from mm2py.protocol.records import decode_batches
from mm2py.types import LATEST, TopicPartition
from mm2py_jobs.log.log_ends import LogEnds

log = logging.getLogger(__name__)

_FIRST_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 32


async def first_stamp(source: Cluster, tp: TopicPartition, start: int) -> int | None:
    """Return the timestamp of the first record from an offset on, None if unknown."""
    fetched = await fetch_partition(source, tp, start, max_bytes=_FIRST_BYTES)
    for batch in decode_batches(fetched.records) if fetched.records is not None else ():
        for record in batch.records:
            if record.offset >= start and not batch.is_control:
                return record.timestamp if record.timestamp >= 0 else None
    return None


async def first_stamps(
    source: Cluster, places: Sequence[tuple[TopicPartition, int]]
) -> list[int | None]:
    """Return ``first_stamp`` of each place, many at once: there may be thousands, and clients wait
    for a failover."""
    return await each_of(places, lambda it: first_stamp(source, *it), at_once=_AT_ONCE)


async def hanging(
    source: Cluster, ends: Mapping[TopicPartition, LogEnds | ServerError]
) -> dict[TopicPartition, str]:
    """Return why readers of committed records, for whom logs end there, get nothing more of
    partitions: a transaction there is open for longer than any coordinator allows."""
    stable = {tp: it.end for tp, it in ends.items() if isinstance(it, LogEnds)}
    latest = await Admin(source).list_offsets(dict.fromkeys(stable, LATEST))
    opened = {tp: start for tp, start in stable.items() if start < latest[tp].offset}

    async def cause(place: tuple[TopicPartition, int]) -> str:
        tp, start = place
        try:
            since_ms = await first_stamp(source, tp, start)
        except Mm2pyError as error:
            log.info(
                "since when a transaction is open is not known partition=%s cause=%s", tp, error
            )
            return ""
        if since_ms is None or source.clock.now_ms() - since_ms <= HANGS_MS:
            return ""
        return (
            f"{tp}: a transaction is open at offset {start} since {utc_text(since_ms)} and may "
            "hang: nothing behind it can be read with read_committed, and retention deletes it; "
            "kafka-transactions.sh find-hanging and abort end it"
        )

    causes = await each_of(opened.items(), cause, at_once=_AT_ONCE)
    return {tp: text for tp, text in zip(opened, causes, strict=True) if text}
