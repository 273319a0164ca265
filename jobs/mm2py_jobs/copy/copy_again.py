"""Copies of partitions that are made again: positions and offset maps go back, copies that are bad
are deleted.

Flow: reserved leases with ``again`` -> ``CopiesAgain`` -> leases whose lanes begin at their starts.
Runs between the reservation, so that no task of the flow copies the partition, and the lanes.

What is done is named by the lease before the first step (``begun``): each later driver does the
same steps again, and nothing else, so a crash may come between any two, and a driver that was
frozen does nothing that the next one has not done. What is begun is done to its end before the
partition is copied by anything, also when the job is cancelled.

Invariants, tests of the same names (the model with drivers that crash and freeze at any step:
tests/property/test_copies_again.py):

1. Copies are deleted only after the position is stored from which they are copied again, and only
   below the log end that the lease names.
2. A copy that continued since it was compared is left alone, unless it is to be deleted; one that
   is to be deleted is left alone where the source has lost records of its range since.
3. A map has nothing after the place where the copy continues: what was after it is gone from the
   target.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from mm2py.mirror.backfills import Lease, LeaseState
from mm2py.mirror.offset_map_pages import Mark, Page, Segment, next_start
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import NO_PRODUCER_ID, TopicPartition

log = logging.getLogger(__name__)


class CopiesAgain(Protocol):
    """What is asked of the target."""

    async def log_ends(
        self, copies: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]: ...
    async def source_starts(
        self, sources: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]: ...
    async def set_positions(self, positions: Mapping[TopicPartition, int]) -> None: ...
    async def delete_below(self, ends: Mapping[TopicPartition, int]) -> None: ...
    async def cut_maps(self, places: Mapping[TopicPartition, tuple[int, int]]) -> None: ...


def is_begun(lease: Lease) -> bool:
    """Whether a step may have been done: what is to be done is fixed."""
    return lease.again is not None and lease.again.below >= 0


async def begun(target: CopiesAgain, leases: Sequence[Lease]) -> list[Lease]:
    """Return leases that name what ``go_back`` will do, to be written before; copies that continued
    are left alone (2).

    Raises:
        ServerError: copies may not be deleted, or a cluster may not be asked.
    """
    waiting = {lease.copy for lease in leases if lease.again is not None and not is_begun(lease)}
    ends: Mapping[TopicPartition, int] = await target.log_ends(waiting) if waiting else {}
    deleted = {it.source for it in leases if it.copy in ends and it.again and it.again.deletes}
    starts: Mapping[TopicPartition, int] = await target.source_starts(deleted) if deleted else {}
    if deleted:
        # Deletes nothing: without the right to, the copy would be left without a way back.
        await target.delete_below({it.copy: 0 for it in leases if it.source in deleted})
    return [
        _begun(it, ends[it.copy], starts.get(it.source, 0)) if it.copy in ends else it
        for it in leases
    ]


def _begun(lease: Lease, end: int, source_start: int) -> Lease:
    again = lease.again
    if again is None or is_begun(lease):
        return lease
    if again.deletes and lease.start < source_start:
        cause = (
            f"the source has deleted its offsets {lease.start} to {source_start} since it was "
            f"compared, of which {lease.copy}"
            " may have the only copies; it was left alone: verify it again"
        )
    elif again.deletes or end == again.compared_to:
        return replace(lease, again=replace(again, below=end))
    else:
        cause = (
            f"{lease.copy} ended at {again.compared_to} when it was compared and ends at {end} "
            "now: what is missing cannot be put between; it was left alone"
        )
    return replace(lease, again=None, state=LeaseState.HANDED_OVER, cause=cause)


async def go_back(target: CopiesAgain, leases: Sequence[Lease]) -> list[Lease]:
    """Let copies begin again at the starts of their leases, those that are ``begun``; return all
    leases as they are then. ``Mm2pyError``: a step failed; all of them are to be repeated."""
    back = [(lease, lease.again) for lease in leases if lease.again is not None and is_begun(lease)]
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
        replace(lease, again=None, position=lease.start, target_start=-1, target_end=-1)
        if is_begun(lease)
        else lease
        for lease in leases
    ]


def cut_pages(pages: Mapping[int, Page], target_end: int, covered: int) -> tuple[Page, list[int]]:
    """Return the page that ends a map at a target offset (-1: at its beginning), and the numbers of
    pages to remove. It is written also where nothing is left: a late page of a former task would
    be the newest otherwise."""
    kept: list[Segment] = []
    start = next_start(pages[max(pages)].start, 0)
    for number in sorted(pages, reverse=True):
        kept = [
            _shortened(segment, target_end)
            for segment in pages[number].segments
            if segment.target < target_end or (segment.is_anchor and segment.target == target_end)
        ]
        if kept:
            page = replace(
                pages[number],
                covered=covered,
                position=covered,
                epoch=-1,
                segments=tuple(kept),
                start=start,
            )
            return page, [it for it in sorted(pages, reverse=True) if it > number]
    ids = pages[max(pages)].source_id, NO_TOPIC_ID
    page = Page(0, *ids, 0, -1, -1, NO_PRODUCER_ID, -1, (), start=start)
    return page, [it for it in sorted(pages, reverse=True) if it]


def _shortened(segment: Segment, target_end: int) -> Segment:
    if segment.mark is not Mark.COPIED:
        return segment
    return segment._replace(records=min(segment.records, target_end - segment.target))
