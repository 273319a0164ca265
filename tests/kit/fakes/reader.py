"""Readers of a source in memory: one that answers what the test says, one that holds logs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from mm2py.api.context import SourceGap
from mm2py.client.fetch.owner import BatchOrigins
from mm2py.protocol.record_batch import RecordBatch
from mm2py.types import TopicPartition

Fetched = list[tuple[TopicPartition, list[RecordBatch]]]


class Events(Protocol):
    """What a reader reports to."""

    @property
    def on_gap(self) -> Callable[[SourceGap], None]: ...

    @property
    def on_failed(self) -> Callable[[TopicPartition, Exception], None]: ...

    @property
    def on_stalled(self) -> Callable[[TopicPartition, Exception | None], None]:
        """Takes a stall and, with None, its end."""
        ...

    @property
    def origins(self) -> BatchOrigins | None:
        """Decides what is dropped as a loop."""
        ...


class FakeReader:
    """Answers ``answers`` in turn, whatever it is asked, and keeps what it was told."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.news: set[TopicPartition] = set()
        """Partitions that the next fetch is answered for, also where it is ``quiet``."""
        self._answered: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.lags: dict[TopicPartition, int] = {}
        self.silent: dict[TopicPartition, float] = {}
        """Seconds for which it is not known where logs end."""
        self.throttled: dict[int, float] = {}
        self.topic_ids: dict[TopicPartition, bytes] = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.began: dict[TopicPartition, int] = {}
        self.unread: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.quiet = False
        """Whether a fetch is answered without a partition, as by a broker where nothing happens."""
        self.dropped: list[TopicPartition] = []
        self.last_gaps: list[SourceGap] = []
        self.answers: list[Fetched] = []
        self.asked: list[tuple[int, int]] = []
        self.paces: list[int] = []
        self.closed = 0
        self.ends_asked = 0
        self.ends: dict[TopicPartition, int] = {}
        self.starts: dict[TopicPartition, int] = {}

    def add(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[TopicPartition, bytes] | None = None,
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.positions |= positions
        self.topic_ids |= topic_ids or {}
        self.epochs |= epochs or {}

    def began_at(self, tp: TopicPartition) -> int:
        return self.began.get(tp, -1)

    def epoch_at(self, tp: TopicPartition, offset: int) -> int:
        return self.epochs.get(tp, -1)

    def incarnation(self, tp: TopicPartition) -> bytes:
        return self.topic_ids.get(tp, bytes(16))

    async def look_back(self) -> None:
        for gap in self.last_gaps:
            self.events.on_gap(gap)

    def waiting(self, tp: TopicPartition) -> int:
        return self.unread.get(tp, 0)

    def pace(self, bytes_per_s: int) -> None:
        self.paces.append(bytes_per_s)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused -= set(partitions)

    def take_answered(self) -> set[TopicPartition]:
        """Return every partition, unless the fetches since the last call were quiet."""
        answered, self._answered = self._answered, set()
        return answered

    async def fetch(self, *, max_wait_ms: int, max_bytes: int) -> Fetched:
        self.asked.append((max_wait_ms, max_bytes))
        self._answered |= self.news
        self.news = set()
        if not self.quiet:
            self._answered |= self.positions.keys() | self.lags.keys()
        fetched = self._next(max_bytes)
        for tp, batches in fetched:
            self.positions[tp] = batches[-1].last_offset + 1
        return fetched

    def _next(self, max_bytes: int) -> Fetched:
        return self.answers.pop(0) if self.answers else []

    def position(self, tp: TopicPartition) -> int:
        return self.positions.get(tp, -1)

    def lag(self, tp: TopicPartition) -> int:
        return self.lags.get(tp, -1)

    def end(self, tp: TopicPartition) -> int:
        """Return where a log ends, as far as its lag is known."""
        return self.position(tp) + self.lags[tp] if tp in self.lags else -1

    def throttled_s(self) -> Mapping[int, float]:
        return self.throttled

    def silent_s(self, tp: TopicPartition) -> float:
        return self.silent.get(tp, 0.0)

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {tp: self.starts[tp] for tp in partitions if tp in self.starts}

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {tp: self.ends[tp] for tp in partitions if tp in self.ends}

    async def refresh_ends(self) -> None:
        self.ends_asked += bool(self.paused)
        for tp in self.paused:
            self.lags[tp] = self.ends.get(tp, -1)

    is_short = False

    def rewind(self, tp: TopicPartition, position: int) -> bool:
        self.positions[tp] = position
        return True

    def drop(self, tp: TopicPartition) -> None:
        self.dropped.append(tp)

    async def close(self) -> None:
        self.closed += 1


class LogsReader(FakeReader):
    """Reads logs of batches from the assigned positions; leaves paused and dropped partitions alone."""

    def __init__(
        self, events: Events, logs: Mapping[TopicPartition, Sequence[RecordBatch]]
    ) -> None:
        super().__init__(events)
        self._logs = logs

    def _next(self, max_bytes: int) -> Fetched:
        for tp, position in self.positions.items():
            if tp not in self.paused and tp not in self.dropped:
                for batch in self._logs.get(tp, ()):
                    if batch.base_offset >= position:
                        return [(tp, [batch])]
        return []
