"""Copies of partitions that are made again: positions and offset maps go back, copies that are bad are deleted.

Flow: reserved leases with ``again`` -> ``CopiesAgain`` -> leases whose lanes begin at their starts. Runs between the reservation, so
that no task of the flow copies the partition, and the lanes.

What is done is named by the lease before the first step (``begun``): each later driver does the same steps again, and nothing else, so a crash may
come between any two, and a driver that was frozen does nothing that the next one has not done. What is begun is done to its end
before the partition is copied by anything, also when the job is cancelled.

Invariants, tests of the same names (the model with drivers that crash and freeze at any step: tests/property/test_copies_again.py):

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


def is_begun(lease: Lease) -> bool:
    """Whether a step may have been done: what is to be done is fixed."""
    return lease.again is not None and lease.again.below >= 0


async def begun(target: CopiesAgain, leases: Sequence[Lease]) -> list[Lease]:
    """Return leases that name what ``go_back`` will do, to be written before; copies that went on are left alone (2)."""
    waiting = {it.copy for it in leases if it.again is not None and not is_begun(it)}
    ends: Mapping[TopicPartition, int] = await target.log_ends(waiting) if waiting else {}
    return [_begun(it, ends[it.copy]) if it.copy in ends else it for it in leases]


def _begun(lease: Lease, end: int) -> Lease:
    again = lease.again
    if again is None or is_begun(lease):
        return lease
    if again.deletes or end == again.compared_to:
        return replace(lease, again=replace(again, below=end))
    cause = (
        f"{lease.copy} ended at {again.compared_to} when it was compared and ends at {end} now: what is missing cannot"
        " be put between; it was left alone"
    )
    return replace(lease, again=None, state=LeaseState.HANDED_OVER, cause=cause)


async def go_back(target: CopiesAgain, leases: Sequence[Lease]) -> list[Lease]:
    """Let copies begin again at the starts of their leases, those that are ``begun``; return all leases as they are then.

    Raises:
        Mm2pyError: a step failed; all of them are to be repeated.
    """
    back = [(it, it.again) for it in leases if it.again is not None and is_begun(it)]
    if not back:
        return list(leases)
    await target.set_positions({it.source: it.start for it, _ in back})
    deleted = {it.copy: again.below for it, again in back if again.deletes}
    if deleted:
        log.warning(
            "copies are deleted, and copied again partitions=%s", ", ".join(map(str, deleted))
        )
        await target.delete_below(deleted)
    await target.cut_maps(
        {it.source: (-1 if again.deletes else again.below, it.start) for it, again in back}
    )
    return [
        replace(it, again=None, position=it.start, target_start=-1, target_end=-1)
        if is_begun(it)
        else it
        for it in leases
    ]


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
