"""Looks offsets up in exact maps, both ways: which pages there are, and what they say.

Flow: records of ``mm2py-offset-map.<source>.internal`` -> ``MapIndex`` (a few numbers per page) -> ``PartitionIndex`` ->
``to_target``, ``to_source`` with the pages that they ask for -> ``Translation``. No I/O: a page that is not at hand is
asked for with ``PageMissingError``.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple, final

from mm2py.errors import ProtocolError
from mm2py.mirror.offset_map import (
    Mark,
    Page,
    PageHead,
    PageRef,
    Segment,
    decode_head,
    decode_page_key,
)
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition

__all__ = [
    "MapIndex",
    "PageMissingError",
    "PartitionIndex",
    "Place",
    "Translation",
    "to_source",
    "to_target",
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
    EXPIRED = "expired"
    """Gone from both logs since, by retention or deletion; whether there was a record, the map does not hold any more."""
    NOT_YET_COPIED = "not-yet-copied"
    """Behind the end of the map."""
    UNKNOWN = "unknown"
    """Passed without this map: another program copied it, or an operator set the position behind it."""


class Translation(NamedTuple):
    """Where a consumer continues on the other cluster: no record skipped, none read again. -1: not known (yet)."""

    place: Place
    offset: int


class PageMissingError(LookupError):
    """A look-up needs a page that is not at hand."""

    def __init__(self, ref: PageRef) -> None:
        super().__init__(f"page {ref.number} of an offset map at {ref.position}")
        self.ref = ref


Pages = Callable[[PageRef], Page]
"""Returns a page, or raises ``PageMissingError``."""


class _Order(NamedTuple):
    """Whether the source offsets of pages rise from page to page, and the limit of each."""

    ascends: bool
    limits: list[int]


@final
class PartitionIndex:
    """The pages of one partition's map, in the order of the target's log."""

    __slots__ = ("_order", "covered", "pages", "source_id", "target_id")

    def __init__(self) -> None:
        self._order: _Order | None = None
        self.pages: list[PageRef] = []
        self.covered = 0
        self.source_id = self.target_id = b""

    @property
    def is_whole(self) -> bool:
        """Whether no page is missing between the first and the last; false only while the topic is being read."""
        return bool(self.pages) and self.pages[-1].number - self.pages[0].number + 1 == len(
            self.pages
        )

    def put(self, number: int, head: PageHead, position: int) -> PageRef:
        """Take a page from ``position`` of the topic; it ends all with higher numbers."""
        self.drop(number)
        self._order = None
        ref = PageRef(number, position, *head.span)
        self.pages.append(ref)
        self.covered = head.covered
        self.source_id, self.target_id = head.source_id, head.target_id
        return ref

    def drop(self, number: int) -> None:
        """Forget the pages from ``number`` on."""
        while self.pages and self.pages[-1].number >= number:
            self.pages.pop()

    def forget(self, number: int) -> None:
        """Forget one page, which has expired."""
        self._order = None
        if self.pages and self.pages[0].number == number:
            del self.pages[0]
        else:
            self.pages = [ref for ref in self.pages if ref.number != number]

    def is_expired(self, source_offset: int) -> bool:
        """Whether a source offset is below everything that pages speak of, and pages before those have expired."""
        if not self.pages[0].number:
            return False
        return all(source_offset < ref.source_first for ref in self.pages if ref.source_first >= 0)

    def limits(self) -> list[int]:
        """Return for each page the source offset from which on its copies are of a history that was cut."""
        return self._ordered().limits

    def reached(self, wanted: int) -> list[int]:
        """Return the pages that speak of a source offset or of later ones, those that may have the lowest first."""
        ascends, limits = self._ordered()
        if ascends:
            return list(range(bisect_right(self.pages, wanted, key=_end_of), len(self.pages)))
        found = [
            (max(wanted, ref.source_first), at)
            for at, ref in enumerate(self.pages)
            if min(ref.source_end, limits[at]) > wanted
        ]
        return [at for _, at in sorted(found)]

    def _ordered(self) -> "_Order":
        if self._order is None:
            limits: list[int] = []
            limit, later, ascends = _NO_LIMIT, _NO_LIMIT, True
            for ref in reversed(self.pages):
                limits.append(limit)
                if ref.cut >= 0:
                    limit = min(limit, ref.cut)
                ascends = ascends and ref.cut < 0 <= ref.source_first and ref.source_end <= later
                later = ref.source_first
            limits.reverse()
            self._order = _Order(ascends, limits)
        return self._order

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

    def take(self, record: Record) -> tuple[TopicPartition, PageRef] | None:
        """Take the next record of the topic and return its page; one that cannot be read is counted only."""
        try:
            partition, number = decode_page_key(record.key)
            head = decode_head(record.value) if record.value is not None else None
        except ProtocolError as error:
            self.strange += 1
            log.debug(
                "record of the offset map is ignored offset=%d cause=%s", record.offset, error
            )
            return None
        if head is None:
            self.forget(partition, (number,))
            return None
        index = self.partitions.get(partition)
        if index is None:
            index = self.partitions[partition] = PartitionIndex()
        return partition, index.put(number, head, record.offset)

    def forget(self, partition: TopicPartition, numbers: Iterable[int]) -> None:
        """Forget pages that were removed from the topic, oldest first."""
        index = self.partitions.get(partition)
        if index is None:
            return
        for number in numbers:
            index.forget(number)
        if not index.pages:
            del self.partitions[partition]

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
        wanted, segments = self.wanted, _valid(page, limit, self.wanted)
        for segment, end in segments:
            first = segment.source
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
            if page.ascends:
                return  # what follows is higher


def to_target(index: PartitionIndex, source_offset: int, pages: Pages) -> Translation:
    """Translate a source offset: the target offset of the first copied record at or behind it.

    Raises:
        PageMissingError: a page is needed.
    """
    wanted, search = source_offset, _Search(source_offset)
    limits = index.limits()
    for at in index.reached(wanted):
        if max(wanted, index.pages[at].source_first) > search.source:
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
        return Place.EXPIRED if index.is_expired(wanted) else Place.NEVER_EXISTED
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
        for segment, limit in _valid(pages(refs[number]), limits[number]):
            if segment.mark is Mark.UNKNOWN and segment.target <= target_offset:
                unknown = True
            if segment.mark is not Mark.COPIED:
                continue
            if segment.target_end <= target_offset:
                unknown = False
                continue
            found = _copy_at(segment, limit, target_offset, unknown=unknown)
            if refs[0].number and target_offset < refs[0].target_first:
                return Translation(Place.EXPIRED, found.offset)
            return found
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
        for segment, limit in reversed(list(_valid(pages(index.pages[at]), limits[at]))):
            if segment.mark is Mark.COPIED:
                return min(segment.source_end, limit)
    return index.covered


# ---- both


def _valid(page: Page, limit: int, wanted: int = -1) -> "Iterable[tuple[Segment, int]]":
    """Return segments with the source offset that ends each: its own end, or a later cut before it.

    Those that end at ``wanted`` or before it may be left out.
    """
    if page.ascends:
        first = bisect_right(page.segments, wanted, key=_end_of)
        return (
            (segment, min(segment.source_end, limit))
            for segment in islice(page.segments, first, None)
        )
    found: list[tuple[Segment, int]] = []
    for segment in reversed(page.segments):
        if segment.mark is Mark.SOURCE_CUT:
            limit = min(limit, segment.source)
        else:
            found.append((segment, min(segment.source_end, limit)))
    found.reverse()
    return found


def _end_of(part: PageRef | Segment) -> int:
    return part.source_end


def _target_first(ref: PageRef) -> int:
    return ref.target_first
