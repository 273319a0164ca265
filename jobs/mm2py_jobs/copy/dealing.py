"""Deals partitions to lanes, the largest first, each to the lane with the least; runs a lane
function over them."""

import heapq
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar, cast, final

from mm2py.client.pacing import ByteRate
from mm2py.clock import Clock
from mm2py.types import TopicPartition
from mm2py_jobs.copy.leaders import Leaders, LedPartition
from mm2py_jobs.copy.rate_desk import opened_desk
from mm2py_jobs.spark.gauges import Figures, gauges
from mm2py_jobs.spark.lane_gate import LaneGate
from mm2py_jobs.spark.session import LaneFunction, OpenSession, run_lanes

LANES_PER_SLOT: Final = 2

LANE_OFFSETS: Final = 4_000_000
"""Above it there are more lanes than that, so that all slots are used to the end: a task costs 50
ms, so many offsets seconds."""
PART_OFFSETS: Final = 500_000
"""A partition is not cut into smaller parts: each costs a task."""

MOST_LANES: Final = 1_000

T = TypeVar("T")


class ProgressSink(Protocol):
    """Takes how far lanes are (``mm2py_jobs.progress.ReportedProgress``)."""

    def plan(self, total: int) -> None: ...
    def follow(self, done: Callable[[], int]) -> None: ...


def deal(
    items: Sequence[T],
    lanes: int,
    weight: Callable[[T], int],
    group: Callable[[T], Hashable] = lambda _: None,
) -> list[list[T]]:
    """Return at most ``lanes`` lists, none of them empty, the heaviest first; items of different
    groups share one only where groups are more than lanes."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(group(item), []).append(item)

    def weight_of(part: Sequence[T]) -> int:
        return sum(max(1, weight(it)) for it in part)

    parts = sorted(groups.values(), key=weight_of, reverse=True)
    if len(parts) > lanes:
        last = max(0, lanes - 1)
        parts[last:] = [[it for part in parts[last:] for it in part]]
    counts = [1] * len(parts)
    # The next lane is for the group whose lanes have most, while it has items for one.
    largest: list[tuple[float, int]] = [(-weight_of(part), at) for at, part in enumerate(parts)]
    heapq.heapify(largest)
    spare = lanes - len(parts)
    while spare > 0 and largest:
        load, at = heapq.heappop(largest)
        if counts[at] < len(parts[at]):
            counts[at], spare = counts[at] + 1, spare - 1
            heapq.heappush(largest, (load * (counts[at] - 1) / counts[at], at))
    dealt = [
        lane
        for part, count in zip(parts, counts, strict=True)
        for lane in _dealt(part, count, weight)
    ]
    return sorted(dealt, key=lambda lane: sum(map(weight, lane)), reverse=True)


def _dealt(items: Sequence[T], lanes: int, weight: Callable[[T], int]) -> list[list[T]]:
    waiting: list[tuple[int, int]] = [(0, number) for number in range(min(lanes, len(items)))]
    dealt: list[list[T]] = [[] for _ in waiting]
    for item in sorted(items, key=weight, reverse=True):
        load, number = heapq.heappop(waiting)
        dealt[number].append(item)
        heapq.heappush(waiting, (load + max(1, weight(item)), number))
    return dealt


def lanes_for(total: int, each: int, slots: int, asked: int) -> int:
    """Return how many lanes at most: those that were asked for, else one for ``each`` of the
    ``total`` work, and more than slots.

    Their number follows the work, not the cluster: a cluster that grows with what waits has two
    slots at the start.
    """
    return asked or max(slots * LANES_PER_SLOT, min(MOST_LANES, total // each))


def offsets_of_part(total: int, opened: OpenSession) -> int:
    """Return how large the parts of partitions are: every lane has something, and none is too small
    for a task."""
    lanes = lanes_for(total, LANE_OFFSETS, opened.slots, opened.lanes)
    return max(PART_OFFSETS, min(total // lanes, LANE_OFFSETS))


def rate_of(lane: Mapping[str, object], clock: Clock) -> ByteRate | None:
    """Return how fast a lane may read one cluster; None: as fast as it can."""
    share = float(str(lane["rate"]))
    return ByteRate(share, clock) if share > 0 else None


@final
@dataclass(frozen=True, slots=True)
class DealtWork(Generic[T]):
    """What lanes are to read; ``weight`` of an item are its offsets, ``places`` the partitions that
    it reads, of ``clusters`` by side."""

    items: Sequence[T]
    weight: Callable[[T], int]
    places: Callable[[T], Sequence[LedPartition]] = lambda _: ()
    clusters: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])

    @property
    def total(self) -> int:
        return sum(map(self.weight, self.items))

    def dealt(self, opened: OpenSession) -> tuple[list[list[T]], LaneGate | None]:
        """Return the items of each lane, and what begins lanes where only so many may read from one
        broker."""
        most = lanes_for(self.total, LANE_OFFSETS, opened.slots, opened.lanes)
        if not opened.lanes_per_broker:
            return deal(self.items, most, self.weight), None
        leaders = Leaders(self.clusters, {it for item in self.items for it in self.places(item)})
        if not opened.lanes:
            most = max(most, len({leaders.brokers(self.places(it)) for it in self.items}))
        dealt = deal(self.items, most, self.weight, lambda it: leaders.brokers(self.places(it)))
        read = [[place for it in lane for place in self.places(it)] for lane in dealt]
        return dealt, leaders.gate(opened.lanes_per_broker, read)

    def partitions(self, lane: Sequence[T]) -> list[TopicPartition]:
        """Return the partitions of a lane, of a copy those of the source."""
        return [places[0].partition for places in map(self.places, lane) if places]


def answers_of(
    opened: OpenSession,
    function: LaneFunction,
    work: DealtWork[T],
    lane_of: Callable[[Sequence[T]], Mapping[str, object]],
    *,
    name: str,
    rate_limit: int = 0,
    progress: ProgressSink | None = None,
) -> list[dict[str, object]]:
    """Run ``function`` over ``work`` dealt to lanes; return all of ``partitions`` of its answers.

    ``name`` tags and describes the job; ``rate_limit`` are the bytes per second that all lanes may
    read of a cluster, 0 for any: each begins with a share of it as ``rate`` (``rate_of``), and
    follows ``desk`` (``part_of_rate``). ``progress`` follows the lanes by their weight, in offsets.
    Raises as ``run_lanes``.
    """
    dealt, gate = work.dealt(opened)
    weights, total = [sum(map(work.weight, lane)) for lane in dealt], work.total
    ended: Callable[[], Collection[int]] = tuple[int, ...]

    def done() -> int:
        return sum(weights[it] for it in ended())

    def follow(asked: Callable[[], Collection[int]]) -> None:
        nonlocal ended
        ended = asked

    if progress is not None:
        progress.plan(total)
        progress.follow(done)
    share = rate_limit / max(1, min(opened.slots, len(dealt)))
    with opened_desk(opened, rate_limit) as desk, gauges(opened, lambda: Figures(total, done())):
        answers = run_lanes(
            opened,
            function,
            [{**lane_of(lane), "rate": share, "desk": desk} for lane in dealt],
            tag=name,
            description=name,
            follow=follow,
            gate=gate,
            partitions=[work.partitions(lane) for lane in dealt],
        )
    return [
        it for answer in answers for it in cast("list[dict[str, object]]", answer["partitions"])
    ]
