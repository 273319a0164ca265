"""Deals partitions to lanes: the largest first, each to the lane with the least."""

import heapq
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["deal"]

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
