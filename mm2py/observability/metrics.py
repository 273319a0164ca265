"""Counters of a running mirror: per source partition, summed per flow.

Flow: worker tasks add to a ``PartitionMeter`` per acknowledged batch -> ``FlowMeter.snapshot`` ->
tables, status lines, ``GET /metrics``. Plain integers on one event loop: no locks, no I/O.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from operator import add
from typing import Final, Generic, NamedTuple, TypeVar, final

from pydantic import TypeAdapter, ValidationError

from mm2py.clock import Clock
from mm2py.errors import ProtocolError
from mm2py.observability.ages import Ages, AgeWindow
from mm2py.observability.checkpoint_ages import CheckpointMeter
from mm2py.types import FlowName, TopicPartition, names_a_topic

UNKNOWN = -1
"""A lag, timestamp or rate that is not reported yet."""


RATE_MARK_MS: Final = 5_000
"""Rates are a mean over one to two of these."""

SHORTEST_RATE_MS: Final = 1_000
"""A rate over less is no rate."""

AHEAD_MS: Final = 5_000
"""A record's time that is further ahead is no write time: made up, or of a wrong clock."""

RESTARTS_MS: Final = 120_000
"""A partition that comes back within this time is as old as it was: its task was started again. The
pause before that is up to 60 s (``errors.retry.delay.max.ms``), and the start takes its time."""

KEPT_OUT: Final = (
    "a backfill or a stream on Spark copies this partition, the flow's workers continue behind it"
)
"""The cause of a partition that is HELD for a job."""

MOST_GONE: Final = 1_000
"""Topics without a partition on this node whose counts are kept, for when one comes back; later
they begin at 0, as after a restart."""

_Mark = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """When the source deletes the first record of a partition that is not copied yet, at the rates
    of the last minutes.

    ``by``: the topic's property that does it, ``limit`` its value; ``at_ms`` since the epoch, in
    the past where it has begun. ``records`` offsets wait, of ``size_bytes`` in the source's log, -1
    where brokers do not disclose that.
    """

    by: str
    limit: int
    at_ms: int
    records: int
    size_bytes: int


@final
class PartitionMeter:
    """What one source partition has done; its counters only grow while it is assigned."""

    __slots__ = (
        "_marks",
        "_seen_end",
        "age",
        "bytes",
        "caught_up_ms",
        "cause",
        "conflicts",
        "forecast",
        "lag_records",
        "latency",
        "looped",
        "newest_ms",
        "paused",
        "records",
        "source",
        "state",
        "target",
        "task",
    )

    def __init__(self, source: TopicPartition) -> None:
        self.source = source
        self.target: TopicPartition | None = None
        self.task = ""
        self.records = 0
        self.bytes = 0
        self.looped = 0
        """Records that were not copied because another mirror wrote them to the source."""
        self.conflicts = 0
        """Those of them that are in conflict with a local record of the same key."""
        self.lag_records = UNKNOWN
        self.newest_ms = UNKNOWN
        self.caught_up_ms = UNKNOWN
        """Wall clock of a moment up to which all is known to be copied: the lag was 0, or what the
        log had then is copied by now."""
        self.state = "RUNNING"
        self.paused = False
        self.cause = ""
        self.forecast: Forecast | None = None
        self.age, self.latency = AgeWindow(), AgeWindow()
        """How old the newest record was when it was read, and when its copy was acknowledged."""
        # When, records and bytes: twice, up to RATE_MARK_MS apart, the older at most twice that.
        self._marks: tuple[_Mark, _Mark] | None = None
        # When the log was seen to end where, and is not copied up to there since.
        self._seen_end = (UNKNOWN, 0)

    def report_lag(self, lag_records: int, newest_ms: int, now_ms: int, end: int = UNKNOWN) -> None:
        """Note the distance to the source's end, now ``end``, and the newest copied timestamp."""
        self.lag_records = lag_records
        if now_ms < self.caught_up_ms:  # the clock was set back: nothing is known of the future
            self.caught_up_ms, self.newest_ms = now_ms, min(self.newest_ms, now_ms)
        self._note_newest(newest_ms, now_ms)
        if lag_records == 0:
            self.caught_up_ms, self._seen_end = now_ms, (now_ms, 0)
        elif lag_records > 0 and end >= 0:
            # The copy has passed the end seen then: nothing from before is missing.
            at_ms, seen = self._seen_end
            if end - lag_records >= seen:
                self.caught_up_ms = max(self.caught_up_ms, at_ms)
            if end - lag_records >= seen or end < seen:  # or it is another log
                self._seen_end = now_ms, end
        self._mark(now_ms)

    def note_copied(self, newest_ms: int, now_ms: int) -> None:
        """Note the newest timestamp of records whose copies are acknowledged."""
        self._note_newest(newest_ms, now_ms)
        self.latency.note(now_ms - newest_ms, now_ms)

    def _note_newest(self, newest_ms: int, now_ms: int) -> None:
        if self.newest_ms < newest_ms <= now_ms + AHEAD_MS:
            self.newest_ms = newest_ms

    def lag_ms(self, now_ms: int) -> int:
        """Return how old the oldest record not yet copied can be at most, 0 when nothing lags, or
        nothing is known.

        Everything still to copy arrived after the partition was last caught up, so that moment
        bounds the answer where record timestamps are old or made up, and where the lag is not known
        any more. Of what a job copies nothing is known here.
        """
        if self.lag_records == 0 or self.cause == KEPT_OUT:
            return 0
        known = [at for at in (self.newest_ms, self.caught_up_ms) if at != UNKNOWN]
        return max(0, now_ms - max(known)) if known else 0

    def snapshot(self, now_ms: int, *, ages: bool = True) -> "PartitionSnapshot":
        records_per_s, bytes_per_s = self._rates(now_ms)
        return PartitionSnapshot(
            source=self.source,
            target=self.target,
            task=self.task,
            state=self.shown_state,
            cause=self.cause,
            records=self.records,
            size_bytes=self.bytes,
            lag_records=self.lag_records,
            lag_ms=self.lag_ms(now_ms),
            newest_ms=self.newest_ms,
            records_per_s=records_per_s,
            bytes_per_s=bytes_per_s,
            looped=self.looped,
            conflicts=self.conflicts,
            forecast=self.forecast,
            age=self.age.ages(now_ms) if ages else None,
            latency=self.latency.ages(now_ms) if ages else None,
        )

    @property
    def shown_state(self) -> str:
        """Its state for displays: a pause hides all but a failure."""
        return "PAUSED" if self.paused and self.state != "FAILED" else self.state

    def bytes_per_s(self, now_ms: int) -> float:
        """Return the mean of the last seconds, -1 where it is not known."""
        return self._rates(now_ms)[1]

    def apply(self, said: "PartitionSnapshot", now_ms: int) -> None:
        """Take over what another process counted."""
        self.target, self.task = said.target, said.task
        self.state, self.cause = said.state, said.cause
        self.records, self.bytes = said.records, said.size_bytes
        self.looped, self.conflicts = said.looped, said.conflicts
        self.forecast = said.forecast
        self.age.take(said.age)
        self.latency.take(said.latency)
        if said.age_ms is not None:
            # Its lag in time is the age of the moment that the other process knows.
            self.caught_up_ms = max(self.caught_up_ms, now_ms - said.age_ms)
        self.report_lag(said.lag_records, said.newest_ms, now_ms)

    def _mark(self, now_ms: int) -> None:
        mark = (now_ms, self.records, self.bytes)
        if self._marks is None:
            self._marks = (mark, mark)
        elif now_ms - self._marks[1][0] >= RATE_MARK_MS:
            self._marks = (self._marks[1], mark)

    def _rates(self, now_ms: int) -> tuple[float, float]:
        self._mark(now_ms)
        at_ms, records, size_bytes = self._marks[0] if self._marks is not None else (now_ms, 0, 0)
        took_ms = now_ms - at_ms
        if took_ms < SHORTEST_RATE_MS:
            return float(UNKNOWN), float(UNKNOWN)
        return (self.records - records) * 1000 / took_ms, (self.bytes - size_bytes) * 1000 / took_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSample:
    """One node's part of a flow at one moment, cheap enough to be kept; lags are None where one of
    them is not known.

    ``records`` and ``size_bytes`` are counted since the process started.
    """

    at_ms: int
    lag_records: int | None
    lag_ms: int | None
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSnapshot:
    """One source partition at one moment; plain data, rates are the mean of the last 10 s."""

    source: TopicPartition
    target: TopicPartition | None
    task: str
    state: str
    cause: str
    records: int
    size_bytes: int
    lag_records: int
    lag_ms: int
    newest_ms: int
    records_per_s: float
    bytes_per_s: float
    looped: int = 0
    conflicts: int = 0
    forecast: Forecast | None = None
    age: Ages | None = None
    latency: Ages | None = None

    @classmethod
    def unmeasured(
        cls,
        source: TopicPartition,
        *,
        state: str,
        task: str = "",
        cause: str = "",
        lag_records: int = UNKNOWN,
        lag_ms: int = 0,
    ) -> "PartitionSnapshot":
        """Return a partition that no task counts."""
        return cls(
            source=source,
            target=None,
            task=task,
            state=state,
            cause=cause,
            records=0,
            size_bytes=0,
            lag_records=lag_records,
            lag_ms=lag_ms,
            newest_ms=UNKNOWN,
            records_per_s=UNKNOWN,
            bytes_per_s=UNKNOWN,
        )

    @property
    def age_ms(self) -> int | None:
        """``lag_ms``, None where it is not known; it grows while the lag is not known any more.

        A partition that lags and was never seen without a lag has 0 ms as well.
        """
        return _age(self.lag_records, self.newest_ms, self.lag_ms)


def _age(lag_records: int, newest_ms: int, lag_ms: int) -> int | None:
    dated = lag_records == 0 or (lag_records > 0 and newest_ms != UNKNOWN)
    return lag_ms if dated or lag_ms > 0 else None


class Lag(NamedTuple):
    """How far behind a partition, topic or flow is; None is not known."""

    records: int | None
    ms: int | None


def lag_of(parts: Iterable[tuple[int, int | None, str]]) -> Lag:
    """Return the lag of many partitions, given as lag in records, age and state: the sum and the
    largest.

    Each is None while one of them is not known. A partition that failed counts once it was
    measured.
    """
    # A partition that failed before it was measured would hide the lag of all others.
    counted = [(lag, age_ms) for lag, age_ms, state in parts if lag >= 0 or state != "FAILED"]
    ages = [age_ms for _, age_ms in counted if age_ms is not None]
    return Lag(
        sum(lag for lag, _ in counted) if counted and all(lag >= 0 for lag, _ in counted) else None,
        max(ages) if ages and len(ages) == len(counted) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a running task reports besides the states of its partitions.

    ``what`` is its name, the same for all tasks; ``count`` how many things it is about. One that
    ``harms`` makes the flow DEGRADED.
    """

    task: str
    what: str
    text: str
    count: int
    harms: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number that a running task reports for ``GET /metrics``; ``name`` is from a small set of
    names.

    ``value`` is None where it is withdrawn.
    """

    task: str
    name: str
    value: int | None


class TopicCounts(NamedTuple):
    """What a topic's partitions counted that are this node's no more, so that sums never fall."""

    records: int = 0
    size_bytes: int = 0
    looped: int = 0
    conflicts: int = 0

    @classmethod
    def of(cls, meter: PartitionMeter) -> "TopicCounts":
        return cls(meter.records, meter.bytes, meter.looped, meter.conflicts)

    def plus(self, other: "TopicCounts") -> "TopicCounts":
        return TopicCounts(*map(add, self, other))


_K = TypeVar("_K", bound=Hashable)


@final
class _FormerCounts(Generic[_K]):
    """Counts of former partitions: of all keys that are here still, and of the ``MOST_GONE`` newest
    others."""

    def __init__(self) -> None:
        self.counts: dict[_K, TopicCounts] = {}
        """In order of the last partition that went."""
        self._most = 2 * MOST_GONE

    def add(self, key: _K, meter: PartitionMeter, here: Callable[[], Collection[_K]]) -> None:
        """Add a partition's; ``here`` is asked when what is kept has doubled."""
        self.counts[key] = self.counts.pop(key, TopicCounts()).plus(TopicCounts.of(meter))
        if len(self.counts) > self._most:
            kept = {*islice(reversed(self.counts), MOST_GONE), *here()}
            self.counts = {key: it for key, it in self.counts.items() if key in kept}
            self._most = 2 * max(MOST_GONE, len(self.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversized:
    """A partition that FAILED at a record for which the target topic's ``max.message.bytes`` is too
    small; sizes are of batches."""

    task: str
    source: TopicPartition
    target: str
    needed_bytes: int
    limit_bytes: int


@dataclass(slots=True)
class LifeCounts:
    """What happened to the flow's part on this node since the process started."""

    rebalances: int = 0
    """Rounds of the group that this node completed."""
    memberships_lost: int = 0
    restarts: dict[str, int] = field(default_factory=dict[str, int])
    """By what was started again: flow, connector or task; whatever the reason."""

    def count_restart(self, what: str) -> None:
        """Count one more start of something that had run."""
        self.restarts[what] = self.restarts.get(what, 0) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSnapshot:
    """What one node copies of one flow; ``events`` counts the loss ledger by kind.

    ``problems`` is what connectors report though they run (a topic that cannot be created), with
    the cause; ``findings`` and ``figures`` are those of tasks.
    """

    worker: str
    flow: FlowName
    at_ms: int
    state: str
    partitions: tuple[PartitionSnapshot, ...]
    events: Mapping[str, int]
    records_lost: int
    records_may_be_doubled: int = 0
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    findings: tuple[Finding, ...] = ()
    figures: tuple[Figure, ...] = ()
    gone: Mapping[str, TopicCounts] = field(default_factory=dict[str, TopicCounts])
    """By source topic."""
    gone_copies: Mapping[TopicPartition, TopicCounts] = field(
        default_factory=dict[TopicPartition, TopicCounts]
    )
    """By copy: several partitions may be copied into one. Only for this node's own metrics."""

    def to_json(self) -> bytes:
        """Return it for the way to another node, without ``gone_copies``."""
        return _node_snapshots().dump_json(self, exclude={"gone_copies"})

    @classmethod
    def from_json(cls, data: bytes) -> "NodeSnapshot":
        """Read what ``to_json`` made; ``ProtocolError``: these bytes are none."""
        try:
            return _node_snapshots().validate_json(data)
        except ValidationError as error:
            raise ProtocolError(
                f"node snapshot of {len(data)} bytes cannot be read: {error.error_count()} "
                "problems",
                remedy="run the same version on every node",
            ) from error


@cache
def _node_snapshots() -> TypeAdapter[NodeSnapshot]:
    return TypeAdapter(NodeSnapshot)


@final
class FlowMeter:
    """Counters of one flow."""

    def __init__(self, flow: FlowName, clock: Clock) -> None:
        self.flow = flow
        self._state = "STARTING"
        self.begun = asyncio.Event()
        """Set when the flow has reached its clusters and knows its work, or has failed."""
        self.on_forget: Callable[[PartitionMeter], None] | None = None
        """Called with each partition that is dropped, and its last counts."""
        self.on_oversized: Callable[[Oversized], None] | None = None
        """Called when a partition failed for a record's size; None where no limit is watched."""
        self._clock = clock
        self._partitions: dict[TopicPartition, PartitionMeter] = {}
        self._gone_records = 0
        self._gone_bytes = 0
        self._gone = _FormerCounts[str]()
        self._gone_copies = _FormerCounts[TopicPartition]()
        self._dropped: dict[TopicPartition, tuple[int, PartitionMeter]] = {}
        """Meters of partitions that no task has for less than ``RESTARTS_MS``, with when that
        began; the oldest first."""
        self._events: dict[str, int] = {}
        self._records_lost = 0
        self._records_may_be_doubled = 0
        self._findings: dict[tuple[str, str], Finding] = {}
        self._figures: dict[tuple[str, str], Figure] = {}
        self.checkpoints = CheckpointMeter(clock)
        """How long checkpoints of this process's tasks took."""
        self.life = LifeCounts()
        """Counted by the flow's herder in this process."""

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(self._figures.values())

    def note_figure(self, figure: Figure) -> None:
        """Take over a number of a task, until it reports another one or ends."""
        key = (figure.task, figure.name)
        if figure.value is None:
            self._figures.pop(key, None)
        else:
            self._figures[key] = figure

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._findings.values())

    def note_finding(self, finding: Finding) -> None:
        """Take over what a task reports; without a text the finding is withdrawn."""
        key = (finding.task, finding.what)
        if finding.text:
            self._findings[key] = finding
        else:
            self._findings.pop(key, None)

    @property
    def state(self) -> str:
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        self._state = state
        if state not in {"STARTING", "WAITING"}:
            self.begun.set()

    @property
    def partitions(self) -> tuple[PartitionMeter, ...]:
        return tuple(self._partitions.values())

    def partition(self, source: TopicPartition) -> PartitionMeter:
        """Return the meter of a partition, new at its first use."""
        meter = self._partitions.get(source)
        if meter is None:
            meter = self._partitions[source] = PartitionMeter(source)
            at_ms, before = self._dropped.pop(source, (0, None))
            # A restarted task has not measured: its lag would begin at 0 ms.
            if before is not None and self._clock.now_ms() - at_ms <= RESTARTS_MS:
                meter.newest_ms, meter.caught_up_ms = before.newest_ms, before.caught_up_ms
        return meter

    def forget(self, source: TopicPartition) -> None:
        """Drop a partition that no task owns any more; the flow's sums keep what it copied."""
        meter = self._partitions.pop(source, None)
        if meter is not None:
            now_ms = self._clock.now_ms()
            while self._dropped:
                oldest, (at_ms, _) = next(iter(self._dropped.items()))
                if now_ms - at_ms <= RESTARTS_MS:
                    break
                del self._dropped[oldest]
            self._dropped[source] = now_ms, meter
            self._gone_records += meter.records
            self._gone_bytes += meter.bytes
            self._gone.add(source.topic, meter, self._topics)
            if meter.target is not None:
                self._gone_copies.add(meter.target, meter, self._copies_here)
            if self.on_forget is not None:
                self.on_forget(meter)

    def _topics(self) -> set[str]:
        return {source.topic for source in self._partitions}

    def _copies_here(self) -> list[TopicPartition]:
        """Return copies of former partitions of which the topic has others here: only those are
        shown."""
        gone = self._gone_copies.counts
        targets = (meter.target for meter in self._partitions.values()) if gone else ()
        here = {it.topic for it in targets if it is not None}
        return [it for it in gone if it.topic in here]

    def forget_task(self, task: str) -> None:
        """Drop the partitions of a task that ended in another process."""
        for source in [p for p, meter in self._partitions.items() if meter.task == task]:
            self.forget(source)
        self.forget_findings(task)

    def forget_findings(self, task: str) -> None:
        """Drop the findings, figures and checkpoints of a task that ended."""
        for key in [key for key in self._findings if key[0] == task]:
            del self._findings[key]
        for key in [key for key in self._figures if key[0] == task]:
            del self._figures[key]
        self.checkpoints.forget(task)

    def apply(
        self, partitions: Iterable[PartitionSnapshot], gone: Iterable[PartitionSnapshot] = ()
    ) -> None:
        """Take over what another process counted; ``gone`` are last counts, from before."""
        now_ms = self._clock.now_ms()
        for said in gone:
            known = self._partitions.get(said.source)
            # Otherwise the partition is another task's by now.
            if known is None or known.task == said.task:
                self.partition(said.source).apply(said, now_ms)
                self.forget(said.source)
        for said in partitions:
            self.partition(said.source).apply(said, now_ms)

    def rates(self) -> Mapping[TopicPartition, float]:
        """Return bytes per second by source partition, without those that are not known yet."""
        now_ms = self._clock.now_ms()
        measured = ((p, meter.bytes_per_s(now_ms)) for p, meter in self._partitions.items())
        return {partition: rate for partition, rate in measured if rate >= 0}

    def node_snapshot(self, worker: str) -> NodeSnapshot:
        """Return what this node copies of the flow now; ``worker`` names it."""
        now_ms = self._clock.now_ms()
        return NodeSnapshot(
            worker=worker,
            flow=self.flow,
            at_ms=now_ms,
            state=self.state,
            partitions=tuple(meter.snapshot(now_ms) for meter in self._partitions.values()),
            events=dict(self._events),
            records_lost=self._records_lost,
            records_may_be_doubled=self._records_may_be_doubled,
            findings=self.findings,
            figures=self.figures,
            gone=self._gone_here(),
            gone_copies={it: self._gone_copies.counts[it] for it in self._copies_here()},
        )

    def _gone_here(self) -> dict[str, TopicCounts]:
        """Return the counts of former partitions of topics with others here, which are shown."""
        gone = self._gone.counts
        here = self._topics() if gone else ()
        return {topic: gone[topic] for topic in here if topic in gone}

    def count_event(self, kind: str, *, lost: int = 0, may_be_doubled: int = 0) -> None:
        """Count one event of the loss ledger and the source offsets it is about."""
        self._events[kind] = self._events.get(kind, 0) + 1
        self._records_lost += lost
        self._records_may_be_doubled += may_be_doubled

    def sample(self, waiting: Iterable[PartitionSnapshot] = ()) -> FlowSample:
        """Return its sums, for the course of the last hour; what waits for its copy only lags."""
        now_ms = self._clock.now_ms()
        meters = self._partitions.values()
        # Heartbeats and third parties' sources have no lag.
        measured = (
            (it.lag_records, _age(it.lag_records, it.newest_ms, it.lag_ms(now_ms)), it.state)
            for it in meters
            if names_a_topic(it.source.topic)
        )
        lag = lag_of((*measured, *((it.lag_records, it.age_ms, it.state) for it in waiting)))
        return FlowSample(
            at_ms=now_ms,
            lag_records=lag.records,
            lag_ms=lag.ms,
            records=self._gone_records + sum(meter.records for meter in meters),
            size_bytes=self._gone_bytes + sum(meter.bytes for meter in meters),
        )


@final
class Metrics:
    """All flows of the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flows: dict[FlowName, FlowMeter] = {}

    def flow(self, name: FlowName) -> FlowMeter:
        """Return the meter of a flow, new at its first use."""
        meter = self._flows.get(name)
        if meter is None:
            meter = self._flows[name] = FlowMeter(name, self._clock)
        return meter

    def meters(self) -> tuple[FlowMeter, ...]:
        """Return the meters of all flows, in the order they were created."""
        return tuple(self._flows.values())
