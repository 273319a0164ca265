"""Copies of partitions that are made again: positions and offset maps go back, copies that are bad are deleted.

Flow: reserved leases with ``again`` -> ``CopiesAgain`` -> leases whose lanes begin at their starts. Runs between the reservation, so
that no task of the flow copies the partition, and the lanes.

Invariants, tests of the same names; a crash may come between any two steps, and the next run does all of them again:

1. Copies are deleted only after the position is stored from which they are copied again, and only below the log end that the lease names.
2. A copy that went on since it was compared is left alone, unless it is deleted.
3. A map has nothing behind the place where the copy goes on: what was behind is gone from the target.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from mm2py.mirror.backfills import Lease, LeaseState
from mm2py.mirror.offset_map import Mark, Page, Segment
from mm2py.types import TopicPartition

__all__ = ["CopiesAgain", "cut_pages", "go_back", "with_log_ends"]

log = logging.getLogger(__name__)


class CopiesAgain(Protocol):
    """What is asked of the target."""

    async def log_ends(self, copies: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return where the logs of target partitions end."""
        ...

    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Store where the copies of source partitions begin."""
        ...

    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None:
        """Delete the records of target partitions below offsets."""
        ...

    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Let the maps of source partitions end at (target offset, source offset)."""
        ...


async def with_log_ends(target: CopiesAgain, leases: Sequence[Lease]) -> list[Lease]:
    """Return leases with what is to be deleted of their copies; written before ``go_back``, so that each run deletes the same."""
    waiting = {it.copy: it for it in leases if it.again is not None and it.again.deletes}
    if not waiting:
        return list(leases)
    ends = await target.log_ends(waiting)
    return [
        replace(it, again=replace(it.again, below=ends[it.copy]))
        if it.again is not None and it.again.deletes and it.again.below < 0
        else it
        for it in leases
    ]


async def go_back(target: CopiesAgain, leases: Sequence[Lease]) -> list[Lease]:
    """Let copies begin again at the starts of their leases, those with ``again``; return all leases as they are then.

    Raises:
        Mm2pyError: a step failed; the next run repeats it.
    """
    waiting = [it for it in leases if it.again is not None]
    if not waiting:
        return list(leases)
    ends = await target.log_ends([it.copy for it in waiting])
    moved = {
        it.source
        for it in waiting
        if it.again is not None and (it.again.deletes or ends[it.copy] == it.again.compared_to)
    }
    back = [it for it in waiting if it.source in moved]
    deleted = {it.copy: it.again.below for it in back if it.again is not None and it.again.deletes}
    if back:
        await target.set_positions({it.source: it.start for it in back})
    if deleted:
        log.warning(
            "copies are deleted, and copied again partitions=%s", ", ".join(map(str, deleted))
        )
        await target.delete_below(deleted)
    if back:
        await target.cut_maps(
            {it.source: (-1 if it.copy in deleted else ends[it.copy], it.start) for it in back}
        )
    return [_begun(it, ends, went_back=it.source in moved) for it in leases]


def _begun(lease: Lease, ends: Mapping[TopicPartition, int], *, went_back: bool) -> Lease:
    if lease.again is None:
        return lease
    if went_back:
        return replace(lease, again=None, position=lease.start, target_start=-1, target_end=-1)
    cause = (
        f"{lease.copy} ended at {lease.again.compared_to} when it was compared and ends at {ends[lease.copy]} now: what"
        " is missing cannot be put between; it was left alone"
    )
    return replace(lease, again=None, state=LeaseState.HANDED_OVER, cause=cause)


def cut_pages(
    pages: Mapping[int, Page], target_end: int, covered: int
) -> tuple[Page | None, list[int]]:
    """Return the page that ends a map at a target offset (-1: at its beginning), and the numbers of pages to remove."""
    kept: list[Segment] = []
    for number in sorted(pages, reverse=True):
        kept = [
            _shortened(it, target_end)
            for it in pages[number].segments
            if it.target < target_end or (it.is_anchor and it.target == target_end)
        ]
        if kept:
            page = replace(
                pages[number], covered=covered, position=covered, epoch=-1, segments=tuple(kept)
            )
            return page, [it for it in sorted(pages, reverse=True) if it > number]
    return None, sorted(pages, reverse=True)


def _shortened(segment: Segment, target_end: int) -> Segment:
    if segment.mark is not Mark.COPIED:
        return segment
    return segment._replace(records=min(segment.records, target_end - segment.target))
