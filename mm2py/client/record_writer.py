"""Writes small records of our own (source offsets, offset syncs, heartbeats) and tells where they landed.

Flow: ``write``/``post`` -> one uncompressed batch -> Sender -> ``done``. Order per partition is kept.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

from mm2py.client.cluster import Cluster
from mm2py.client.sender import Sender
from mm2py.clock import Clock
from mm2py.config.clients import ProducerSettings
from mm2py.errors import ConnectionFailedError
from mm2py.protocol.record_batch import RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.types import TopicPartition

__all__ = ["RecordWriter"]

Done = Callable[[int | Exception], None]


@final
class RecordWriter:
    """An idempotent producer for records that we make ourselves."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, *, clock: Clock) -> None:
        self._sender = Sender(
            cluster,
            settings,
            clock=clock,
            on_delivered=self._delivered,
            on_failed=self._failed,
            on_stalled=self._note_stall,
        )
        self._clock = clock
        self._waiting: dict[TopicPartition, dict[int, Done]] = {}
        self._stalled: dict[TopicPartition, Exception] = {}
        self._next_token = 0

    async def start(self) -> None:
        """Get a producer id; ``RetriableError`` when the cluster cannot give one now."""
        await self._sender.start()

    async def write(self, tp: TopicPartition, records: Sequence[NewRecord]) -> int:
        """Write ``records`` as one batch and return the offset of the first.

        Waits as long as the cluster refuses for a passing reason.

        Raises:
            PartitionError: the cluster refused the records for good.
        """
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(result: int | Exception) -> None:
            if answer.done():
                return
            if isinstance(result, int):
                answer.set_result(result)
            else:
                answer.set_exception(result)

        self.post(tp, records, done)
        return await answer

    def post(self, tp: TopicPartition, records: Sequence[NewRecord], done: Done) -> None:
        """Write ``records`` as one batch; ``done`` gets the first offset, or the error, later."""
        now_ms = self._clock.now_ms()
        stamped = [r if r.timestamp >= 0 else replace(r, timestamp=now_ms) for r in records]
        data = encode_batch(stamped)
        token = self._next_token
        self._next_token += 1
        newest = max(record.timestamp for record in stamped)
        runs = ((token, len(stamped)),)
        batch = RecordBatch(data, token, token, len(stamped), newest, -1, 0, runs, None)
        self._waiting.setdefault(tp, {})[token] = done
        self._sender.enqueue(tp, tp, (batch,))

    def stalled(self, tp: TopicPartition) -> Exception | None:
        """Return why ``tp`` takes nothing at the moment, None when it does."""
        return self._stalled.get(tp)

    def suspend(self) -> None:
        """Send nothing from now on; what is posted waits."""
        self._sender.suspend()

    def resume(self) -> None:
        """Send again, what waits first."""
        self._sender.resume()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged; False when that takes longer than ``timeout_s``."""
        return await self._sender.flush(timeout_s)

    async def close(self) -> None:
        """Stop at once; what is not acknowledged is reported as cancelled."""
        await self._sender.close()
        waiting, self._waiting = self._waiting, {}
        for by_token in waiting.values():
            for done in by_token.values():
                done(ConnectionFailedError("the writer was closed before the answer came"))

    def _delivered(
        self, _source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        done = self._waiting[target].pop(batch.base_offset)
        done(base_offset)

    def _failed(self, _source: TopicPartition, target: TopicPartition, error: Exception) -> None:
        """The partition is given up: tell everybody who waits, and let a later write try afresh."""
        self._sender.abandon(target)
        for done in self._waiting.pop(target, {}).values():
            done(error)

    def _note_stall(self, target: TopicPartition, error: Exception | None) -> None:
        if error is None:
            self._stalled.pop(target, None)
        else:
            self._stalled[target] = error
