"""Cuts what one request or batch cannot hold into several."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Cut items, in their order, into parts of ``most`` items; the last one may have fewer."""
    for start in range(0, len(items), most):
        yield items[start : start + most]


def parts_of(items: Sequence[T], weight: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Cut items, in their order, into parts that weigh at most ``most``, or are one item; of
    nothing there is one empty part."""
    part: list[T] = []
    total = 0
    for item in items:
        its = weight(item)
        if part and total + its > most:
            yield part
            part, total = [], 0
        part.append(item)
        total += its
    yield part
