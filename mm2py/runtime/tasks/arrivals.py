"""What the target acknowledged, gathered for a moment: one report for many batches of a partition.

Flow: ``add`` per acknowledged batch -> runs of equal shift grow -> ``report(Delivery)`` per source partition.
A batch costs a few integer steps here; positions, meters and offset syncs cost once per report. Who must
know the present state (a commit, a failure) calls ``flush`` first.
"""

import asyncio
from collections.abc import Callable
from typing import Final, final

from mm2py.api.task import Delivery, Run
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition

GATHER_S: Final = 0.005
"""How long an acknowledgement may wait to be reported: nothing that reads positions is as quick as this."""


@final
class _Landed:
    """What arrived of one source partition; the last run is still growing."""

    __slots__ = (
        "base", "count", "first", "newest_ms", "next_source", "next_target", "runs", "size_bytes",
        "target",
    )  # fmt: skip

    def __init__(self, target: TopicPartition) -> None:
        self.target = target
        self.runs: list[Run] = []
        self.first = self.base = 0
        self.count = 0
        self.next_source = self.next_target = -1
        self.size_bytes = 0
        self.newest_ms = -1

    def grow(self, first: int, count: int, base: int) -> None:
        """Add one run; it continues the last one when neither side has a hole between them."""
        if first == self.next_source and base == self.next_target:
            self.count += count
        else:
            if self.count:
                self.runs.append(Run(self.first, self.count, self.base))
            self.first, self.count, self.base = first, count, base
        self.next_source = first + count
        self.next_target = base + count

    def delivery(self, source: TopicPartition, passed: int = 0, through: int = -1) -> Delivery:
        """Return everything as one report."""
        if self.count:
            self.runs.append(Run(self.first, self.count, self.base))
        size, newest = self.size_bytes, self.newest_ms
        return Delivery(source, self.target, tuple(self.runs), size, newest, passed, through)


@final
class Arrivals:
    """Gathers acknowledgements and passes them on, in source order per partition, each once.

    ``report(delivery)`` must not raise. Without ``by_itself`` it reports at ``flush`` alone.
    """

    def __init__(self, report: Callable[[Delivery], None], *, by_itself: bool = True) -> None:
        self._report = report
        self._by_itself = by_itself
        self._landed: dict[TopicPartition, _Landed] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self, source: TopicPartition, target: TopicPartition, batch: RecordBatch, base_offset: int
    ) -> None:
        """Note one batch; ``base_offset`` is where its first record is on the target. Hot path."""
        landed = self._landed.get(source) or self._begin(source, target)
        for first, count in batch.runs:
            landed.grow(first, count, base_offset)
            base_offset += count
        landed.size_bytes += len(batch.data)
        if batch.max_timestamp > landed.newest_ms:
            landed.newest_ms = batch.max_timestamp

    def passes(
        self, source: TopicPartition, target: TopicPartition, records: int, through: int
    ) -> None:
        """Report records without a copy on ``target`` now, behind what was gathered: up to source offset ``through`` all is done."""
        landed = self._landed.pop(source, None) or _Landed(target)
        self._report(landed.delivery(source, records, through))

    def _begin(self, source: TopicPartition, target: TopicPartition) -> _Landed:
        landed = self._landed[source] = _Landed(target)
        if self._timer is None and self._by_itself:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.flush)
        return landed

    @property
    def waiting(self) -> bool:
        """Whether ``flush`` would report anything."""
        return bool(self._landed)

    def flush(self) -> None:
        """Report now what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._landed = self._landed, {}
        for source, landed in gathered.items():
            self._report(landed.delivery(source))

    def close(self) -> None:
        """Forget what was not reported: its task is over, and it will be copied again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._landed.clear()
