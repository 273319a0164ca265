"""Ranges of offsets: first offset and exclusive end."""

from collections.abc import Iterable, Iterator


def outside(first: int, end: int, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of offsets that are in none of these ``ranges``."""
    for low, high in sorted(ranges):
        if low < end and first < high:
            if first < low:
                yield first, low
            first = high
    if first < end:
        yield first, end
