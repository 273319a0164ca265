"""Reads an exact range of offsets of one partition, batch by batch, unchanged.

Flow: (partition, first, end) -> one Fetch after the other, the next one in flight while a piece is
processed -> ``walk_log`` -> lists of ``LogBatch``. For bounded reads of whole ranges (Spark,
verify, archive): no group, no stored position. Lost offsets of the range are an error with the
current log start, never skipped.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.partition_fetch import READ_COMMITTED, READ_UNCOMMITTED, fetch_partition
from mm2py.client.pacing import ByteRate
from mm2py.clock import cancelled
from mm2py.errors import (
    PartitionError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
    ServerError,
)
from mm2py.protocol.error_codes import OFFSET_OUT_OF_RANGE
from mm2py.protocol.fetch import FetchedPartition
from mm2py.types import TopicPartition
from mm2py_jobs.log.log_batches import LogBatch, walk_log
from mm2py_jobs.log.log_ends import log_ends

FETCH_BYTES: Final = 4 * 1024 * 1024


@final
class OffsetsGoneError(PartitionError):
    """Offsets of a range are not in the log (any more): ``offset`` is the next one to read,
    ``log_start`` the log start."""

    log_start = 0


@final
class RangeReader:
    """Reads ranges of one cluster, over connections that its owner opens and closes; ``rate`` is
    paid after each fetch, of up to ``fetch_bytes``."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        read_committed: bool,
        rate: ByteRate | None = None,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        self._cluster, self._rate, self._fetch_bytes = cluster, rate, fetch_bytes
        self._isolation = READ_COMMITTED if read_committed else READ_UNCOMMITTED

    async def read(
        self, tp: TopicPartition, first: int, end: int, *, markers: bool = False
    ) -> AsyncGenerator[list[LogBatch]]:
        """Yield the data batches with offsets in ``first <= offset < end``, in order; with
        ``markers`` also transaction markers.

        The first and the last batch may have offsets outside of the range. ``end`` must be readable
        already.

        Raises:
            OffsetsGoneError: offsets of the range are not in the log (any more).
            RetriableError: nothing could be read for ``default.api.timeout.ms``.
            ServerError: the partition may not be read.
            ProtocolError: a batch is damaged; names partition and offset.
        """
        position = first
        fetching = asyncio.create_task(self._fetch(tp, position, end)) if first < end else None
        try:
            while fetching is not None:
                fetched = await fetching
                fetching = None
                records = fetched.records
                assert records is not None
                try:
                    walk = walk_log(records, position, fetched.aborted, markers=markers)
                except ProtocolError as error:
                    raise ProtocolError(
                        f"{tp} of {self._cluster} from offset {position}: {error.message}"
                    ) from error
                if walk.next_offset <= position:
                    raise ProtocolError(f"{tp} of {self._cluster}: no whole batch at {position}")
                position = walk.next_offset
                if position < end:
                    fetching = asyncio.create_task(self._fetch(tp, position, end))
                batches = [batch for batch in walk.batches if batch.base_offset < end]
                if batches:
                    yield batches
        finally:
            await cancelled(fetching)

    async def _fetch(self, tp: TopicPartition, position: int, end: int) -> FetchedPartition:
        """Fetch until there is data, however often the leader moves."""
        settings, clock = self._cluster.settings, self._cluster.clock
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        deadline = clock.monotonic() + settings.default_api_timeout_ms / 1000
        while True:
            cause: Exception | None = None
            try:
                fetched = await fetch_partition(
                    self._cluster,
                    tp,
                    position,
                    max_bytes=self._fetch_bytes,
                    isolation_level=self._isolation,
                )
                if fetched.records:
                    if self._rate is not None:
                        self._rate.spend(len(fetched.records))
                        while pause_s := self._rate.delay_s():
                            await clock.sleep(pause_s)
                    return fetched
            except RetriableError as error:
                cause = error
            except ServerError as error:
                if error.code == OFFSET_OUT_OF_RANGE:
                    raise await self._gone(tp, position, end) from error
                raise
            if clock.monotonic() >= deadline:
                if cause is None:  # the log ends here: it was cut, or the topic is another one
                    raise await self._gone(tp, position, end)
                raise RequestTimedOutError(
                    f"{tp} of {self._cluster} could not be read from offset {position} to {end} for"
                    f" {settings.default_api_timeout_ms} ms: {cause}"
                ) from cause
            await clock.sleep(backoff.next_s())

    async def _gone(self, tp: TopicPartition, position: int, end: int) -> OffsetsGoneError:
        read_committed = self._isolation == READ_COMMITTED
        ends = (await log_ends(self._cluster, [tp], read_committed=read_committed))[tp]
        error = OffsetsGoneError(
            f"offsets {position} to {end} were to be read, the log of {self._cluster} has "
            f"{ends.start} to {ends.end}",
            topic=tp.topic,
            partition=tp.partition,
            offset=position,
            remedy="the records were deleted meanwhile (retention, a deleted topic); ask for the "
            "range that is there",
        )
        error.log_start = ends.start
        return error
