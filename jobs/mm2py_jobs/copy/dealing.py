"""Deals partitions to lanes, the largest first, each to the lane with the least; runs a lane function over them."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

from mm2py.client.pacing import ByteRate
from mm2py.clock import Clock
from mm2py_jobs.spark.session import LaneFunction, OpenSession, run_lanes

LANES_PER_SLOT: Final = 2

T = TypeVar("T")


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
) -> list[dict[str, object]]:
    """Run ``function`` over ``items`` dealt to lanes; return all of ``partitions`` of its answers.

    ``name`` tags and describes the job; ``rate_limit`` are the bytes per second that all lanes may read of a cluster, 0 for any: each gets
    its share of it as ``rate`` (``rate_of``). Raises as ``run_lanes``.
    """
    dealt = deal(items, opened.slots * LANES_PER_SLOT, weight)
    share = rate_limit / max(1, min(opened.slots, len(dealt)))
    lanes = [{**lane_of(lane), "rate": share} for lane in dealt]
    answers = run_lanes(opened, function, lanes, tag=name, description=name)
    return [
        it for answer in answers for it in cast("list[dict[str, object]]", answer["partitions"])
    ]
