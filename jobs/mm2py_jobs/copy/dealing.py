"""Deals partitions to lanes, the largest first, each to the lane with the least; runs a lane function over them."""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar, cast

from mm2py.client.pacing import ByteRate
from mm2py.clock import Clock
from mm2py_jobs.copy.rate_desk import opened_desk
from mm2py_jobs.spark.session import LaneFunction, OpenSession, run_lanes

LANES_PER_SLOT: Final = 2

LANE_OFFSETS: Final = 4_000_000
"""Above it there are more lanes than that, so that all slots are used to the end: a task costs 50 ms, so many offsets seconds."""
PART_OFFSETS: Final = 500_000
"""A partition is not cut into smaller parts: each costs a task."""

MOST_LANES: Final = 1_000

T = TypeVar("T")


class Told(Protocol):
    """Who is told how far lanes are (``mm2py_jobs.progress.Telling``)."""

    def plan(self, total: int) -> None:
        """Say how many offsets are to be read."""
        ...

    def follow(self, done: Callable[[], int]) -> None:
        """Ask ``done`` for the offsets that are read, at any time and in any thread."""
        ...


def deal(items: Sequence[T], lanes: int, weight: Callable[[T], int]) -> list[list[T]]:
    """Return at most ``lanes`` lists, none of them empty."""
    waiting: list[tuple[int, int]] = [(0, number) for number in range(min(lanes, len(items)))]
    dealt: list[list[T]] = [[] for _ in waiting]
    for item in sorted(items, key=weight, reverse=True):
        load, number = heapq.heappop(waiting)
        dealt[number].append(item)
        heapq.heappush(waiting, (load + max(1, weight(item)), number))
    return dealt


def lanes_for(total: int, each: int, slots: int, asked: int) -> int:
    """Return how many lanes at most: those that were asked for, else one for ``each`` of the ``total`` work, and more than slots.

    Their number follows the work, not the cluster: a cluster that grows with what waits has two slots at the start.
    """
    return asked or max(slots * LANES_PER_SLOT, min(MOST_LANES, total // each))


def offsets_of_part(total: int, opened: OpenSession) -> int:
    """Return how large the parts of partitions are: every lane has something, and none is too small for a task."""
    lanes = lanes_for(total, LANE_OFFSETS, opened.slots, opened.lanes)
    return max(PART_OFFSETS, min(total // lanes, LANE_OFFSETS))


def rate_of(lane: Mapping[str, object], clock: Clock) -> ByteRate | None:
    """Return how fast a lane may read one cluster; None: as fast as it can."""
    share = float(str(lane["rate"]))
    return ByteRate(share, clock) if share > 0 else None


def answers_of(
    opened: OpenSession,
    function: LaneFunction,
    items: Sequence[T],
    weight: Callable[[T], int],
    lane_of: Callable[[Sequence[T]], Mapping[str, object]],
    *,
    name: str,
    rate_limit: int = 0,
    told: Told | None = None,
) -> list[dict[str, object]]:
    """Run ``function`` over ``items`` dealt to lanes; return all of ``partitions`` of its answers.

    ``name`` tags and describes the job; ``rate_limit`` are the bytes per second that all lanes may read of a cluster, 0 for any: each begins
    with a share of it as ``rate`` (``rate_of``), and follows ``desk`` (``part_of_rate``). ``told`` follows the lanes by their weight, in offsets. Raises as ``run_lanes``.
    """
    total = sum(map(weight, items))
    dealt = deal(items, lanes_for(total, LANE_OFFSETS, opened.slots, opened.lanes), weight)
    weights = [sum(map(weight, lane)) for lane in dealt]

    def follow(ended: Callable[[], Collection[int]]) -> None:
        if told is not None:
            told.follow(lambda: sum(weights[it] for it in ended()))

    if told is not None:
        told.plan(total)
    share = rate_limit / max(1, min(opened.slots, len(dealt)))
    with opened_desk(opened, rate_limit) as desk:
        lanes = [{**lane_of(lane), "rate": share, "desk": desk} for lane in dealt]
        answers = run_lanes(opened, function, lanes, tag=name, description=name, follow=follow)
    return [
        it for answer in answers for it in cast("list[dict[str, object]]", answer["partitions"])
    ]
