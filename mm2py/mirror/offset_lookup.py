"""Looks offsets up in exact maps, both ways: which pages there are, and what they say.

Flow: records of ``mm2py-offset-map.<source>.internal`` -> ``MapIndex`` (a few numbers per page) -> ``PartitionIndex`` ->
``to_target``, ``to_source`` with the pages that they ask for -> ``Translation``. No I/O: a page that is not at hand is
asked for with ``PageMissingError``.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, final

from mm2py.errors import ProtocolError
from mm2py.mirror.offset_map import (
    Mark,
    Page,
    Segment,
    decode_page,
    decode_page_key,
)
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition

__all__ = [
    "MapIndex",
    "PageMissingError",
    "PageRef",
    "PartitionIndex",
    "Place",
    "Translation",
    "to_source",
    "to_target",
    "valid_segments",
]

log = logging.getLogger(__name__)

_NO_LIMIT: Final = 1 << 63


class Place(StrEnum):
    """What is known of the offset that was asked for."""

    COPIED = "copied"
    """A record that was copied."""
    AT_END = "at-end"
    """Behind everything that was copied: the position of a consumer that has read it all."""
    NEVER_EXISTED = "never-existed"
    """No record of the copy: before the first one, a hole of compaction, a marker, aborted data; on the target also
    another writer's record."""
    LOST = "lost"
    """The source lost it before or after it was copied, or the target lost the copy."""
    NOT_YET_COPIED = "not-yet-copied"
    """Behind the end of the map."""
    UNKNOWN = "unknown"
    """Passed without this map: another program copied it, or an operator set the position behind it."""


class Translation(NamedTuple):
    """Where a consumer continues on the other cluster: no record skipped, none read again. -1: not known (yet)."""

    place: Place
    offset: int


class PageRef(NamedTuple):
    """What is kept of a page: where it is in the topic, and the offsets that it speaks of."""

    number: int
    position: int
    source_first: int
    source_end: int
    target_first: int
    target_end: int
    cut: int
    """Lowest source offset that a cut in this page ended, ``_NO_LIMIT`` for none."""


class PageMissingError(LookupError):
    """A look-up needs a page that is not at hand."""

    def __init__(self, ref: PageRef) -> None:
        super().__init__(f"page {ref.number} of an offset map at {ref.position}")
        self.ref = ref


Pages = Callable[[PageRef], Page]
"""Returns a page, or raises ``PageMissingError``."""


@final
class PartitionIndex:
    """The pages of one partition's map, in the order of the target's log."""

    __slots__ = ("covered", "pages", "source_id", "target_id")

    def __init__(self) -> None:
        self.pages: list[PageRef] = []
        self.covered = 0
        self.source_id = self.target_id = b""

    @property
    def is_whole(self) -> bool:
        """Whether no page is missing between the first and the last; false only while the topic is being read."""
        return bool(self.pages) and self.pages[-1].number - self.pages[0].number + 1 == len(
            self.pages
        )

    def put(self, page: Page, position: int) -> None:
        """Take a page from ``position`` of the topic; it ends all with higher numbers."""
        self.drop(page.number)
        self.pages.append(_ref(page, position))
        self.covered = page.covered
        self.source_id, self.target_id = page.source_id, page.target_id

    def drop(self, number: int) -> None:
        """Forget the pages from ``number`` on."""
        while self.pages and self.pages[-1].number >= number:
            self.pages.pop()

    def forget(self, number: int) -> None:
        """Forget one page: the target has deleted what it speaks of."""
        self.pages = [ref for ref in self.pages if ref.number != number]

    def limits(self) -> list[int]:
        """Return for each page the source offset from which on its copies are of a history that was cut."""
        limits: list[int] = []
        limit = _NO_LIMIT
        for ref in reversed(self.pages):
            limits.append(limit)
            limit = min(limit, ref.cut)
        limits.reverse()
        return limits

    def page_of_target(self, target: int) -> PageRef:
        """Return the last page that begins below a target offset, else the first page."""
        at = bisect_right(self.pages, target - 1, key=_target_first)
        return self.pages[max(0, at - 1)]


@final
class MapIndex:
    """Fold over the topic: the index of every partition."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionIndex] = {}
        self.strange = 0
        """Records of versions that this program does not know, or damaged ones."""

    def take(self, record: Record) -> tuple[TopicPartition, Page] | None:
        """Take the next record of the topic and return its page; one that cannot be read is counted only."""
        try:
            partition, number = decode_page_key(record.key)
            page = decode_page(number, record.value) if record.value is not None else None
        except ProtocolError as error:
            self.strange += 1
            log.debug(
                "record of the offset map is ignored offset=%d cause=%s", record.offset, error
            )
            return None
        index = self.partitions.get(partition)
        if index is None:
            index = self.partitions[partition] = PartitionIndex()
        if page is None:
            index.forget(number)
            return None
        index.put(page, record.offset)
        return partition, page

    def of(self, partition: TopicPartition) -> PartitionIndex | None:
        """Return the map of a source partition; None where there is none that can be used."""
        index = self.partitions.get(partition)
        return index if index is not None and index.is_whole else None


# ---- source -> target


@dataclass(slots=True)
class _Search:
    """The lowest copied source offset from ``wanted`` on, its newest copy, and what lies at ``wanted``."""

    wanted: int
    source: int = _NO_LIMIT
    target: int = -1
    page: int = -1
    mark: Mark | None = None

    def look(self, page: Page, limit: int) -> None:
        """Look through a page; of two copies the one that is later in the map wins."""
        for segment, end in valid_segments(page.segments, limit):
            first, wanted = segment.source, self.wanted
            if end <= max(first, wanted):
                continue
            if segment.mark is not Mark.COPIED:
                if first <= wanted:
                    self.mark = segment.mark
                continue
            source = max(first, wanted)
            if source < self.source or (source == self.source and page.number >= self.page):
                self.source, self.target = source, segment.target + source - first
                self.page = page.number


def to_target(index: PartitionIndex, source_offset: int, pages: Pages) -> Translation:
    """Translate a source offset: the target offset of the first copied record at or behind it.

    Raises:
        PageMissingError: a page is needed.
    """
    wanted, search = source_offset, _Search(source_offset)
    limits = index.limits()
    reached = [
        (max(wanted, ref.source_first), at)
        for at, ref in enumerate(index.pages)
        if min(ref.source_end, limits[at]) > wanted
    ]
    # Those that may have the lowest offset first.
    for lowest, at in sorted(reached):
        if lowest > search.source:
            break
        search.look(pages(index.pages[at]), limits[at])
    if search.source == wanted:
        return Translation(Place.COPIED, search.target)
    return Translation(_place(index, wanted, search), _behind(index, wanted, search))


def _place(index: PartitionIndex, wanted: int, search: _Search) -> Place:
    if search.mark is Mark.UNKNOWN:
        return Place.UNKNOWN
    if search.mark is not None:
        return Place.LOST
    if search.target >= 0 or wanted < index.covered:
        first = index.pages[0]
        # The map's first pages are dropped when the target has deleted what they speak of.
        return Place.LOST if first.number and wanted < first.source_first else Place.NEVER_EXISTED
    return Place.AT_END if wanted == index.covered else Place.NOT_YET_COPIED


def _behind(index: PartitionIndex, wanted: int, search: _Search) -> int:
    """Return where the records behind ``wanted`` begin on the target, or will."""
    if search.mark is Mark.UNKNOWN:
        return -1
    if search.target >= 0:
        return search.target
    return index.pages[-1].target_end if wanted <= index.covered else -1


# ---- target -> source


def to_source(index: PartitionIndex, target_offset: int, pages: Pages) -> Translation:
    """Translate a target offset: the source offset of the first copy at or behind it.

    Raises:
        PageMissingError: a page is needed.
    """
    refs, limits = index.pages, index.limits()
    end = refs[-1].target_end
    at = max(0, bisect_right(refs, target_offset, key=_target_first) - 1)
    unknown = False
    for number in range(at, len(refs)):
        for segment, limit in valid_segments(pages(refs[number]).segments, limits[number]):
            if segment.mark is Mark.UNKNOWN and segment.target <= target_offset:
                unknown = True
            if segment.mark is not Mark.COPIED:
                continue
            if segment.target_end <= target_offset:
                unknown = False
                continue
            return _copy_at(segment, limit, target_offset, unknown=unknown)
    if target_offset > end:
        return Translation(Place.NOT_YET_COPIED, -1)
    if unknown:
        return Translation(Place.UNKNOWN, -1)
    return Translation(Place.AT_END, _source_end(index, pages, limits))


def _copy_at(segment: Segment, limit: int, target_offset: int, *, unknown: bool) -> Translation:
    """Answer with the first copy that ends behind the offset."""
    if segment.target > target_offset:
        if unknown:
            return Translation(Place.UNKNOWN, -1)
        return Translation(Place.NEVER_EXISTED, min(segment.source, limit))
    source = segment.source + target_offset - segment.target
    if source >= limit:
        return Translation(Place.LOST, limit)  # the source continues there with other records
    return Translation(Place.COPIED, source)


def _source_end(index: PartitionIndex, pages: Pages, limits: list[int]) -> int:
    """Return the source offset behind the newest copy."""
    for at in range(len(index.pages) - 1, -1, -1):
        for segment, limit in reversed(
            list(valid_segments(pages(index.pages[at]).segments, limits[at]))
        ):
            if segment.mark is Mark.COPIED:
                return min(segment.source_end, limit)
    return index.covered


# ---- both


def valid_segments(
    segments: tuple[Segment, ...], limit: int = _NO_LIMIT
) -> "list[tuple[Segment, int]]":
    """Return segments with the source offset that ends each: its own end, or a later cut before it."""
    found: list[tuple[Segment, int]] = []
    for segment in reversed(segments):
        if segment.mark is Mark.SOURCE_CUT:
            limit = min(limit, segment.source)
        else:
            found.append((segment, min(segment.source_end, limit)))
    found.reverse()
    return found


def _ref(page: Page, position: int) -> PageRef:
    segments = page.segments
    spans = [it for it in segments if it.mark is not Mark.SOURCE_CUT]
    cuts = (it.source for it in segments if it.mark is Mark.SOURCE_CUT)
    return PageRef(
        page.number,
        position,
        min((it.source for it in spans), default=_NO_LIMIT),
        max((it.source_end for it in spans), default=-1),
        segments[0].target if segments else 0,
        segments[-1].target_end if segments else 0,
        min(cuts, default=_NO_LIMIT),
    )


def _target_first(ref: PageRef) -> int:
    return ref.target_first
