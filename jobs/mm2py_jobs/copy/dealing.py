"""Deals partitions to lanes, the largest first, each to the lane with the least; runs a lane function over them."""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol, TypeVar, cast

from mm2py.client.pacing import ByteRate
from mm2py.clock import Clock
from mm2py_jobs.spark.session import LaneFunction, OpenSession, run_lanes

LANES_PER_SLOT: Final = 2

LANE_OFFSETS: Final = 4_000_000
"""Above it there are more lanes than that, so that a long job tells how far it is: a task costs 50 ms, so many offsets seconds."""
_MOST_LANES: Final = 1_000

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

    ``name`` tags and describes the job; ``rate_limit`` are the bytes per second that all lanes may read of a cluster, 0 for any: each gets
    its share of it as ``rate`` (``rate_of``). ``told`` follows the lanes by their weight, in offsets. Raises as ``run_lanes``.
    """
    total = sum(map(weight, items))
    most = max(opened.slots * LANES_PER_SLOT, min(_MOST_LANES, total // LANE_OFFSETS))
    dealt = deal(items, most, weight)
    weights = [sum(map(weight, lane)) for lane in dealt]

    def follow(ended: Callable[[], Collection[int]]) -> None:
        if told is not None:
            told.follow(lambda: sum(weights[it] for it in ended()))

    if told is not None:
        told.plan(total)
    share = rate_limit / max(1, min(opened.slots, len(dealt)))
    lanes = [{**lane_of(lane), "rate": share} for lane in dealt]
    answers = run_lanes(opened, function, lanes, tag=name, description=name, follow=follow)
    return [
        it for answer in answers for it in cast("list[dict[str, object]]", answer["partitions"])
    ]
