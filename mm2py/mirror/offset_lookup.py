"""Looks offsets up in exact maps, both ways: which pages there are, and what they say.

Flow: records of ``mm2py-offset-map.<source>.internal`` -> ``MapIndex`` (a few numbers per page) ->
``PartitionIndex`` -> ``to_target``, ``to_source`` with the pages that they ask for ->
``Translation``. No I/O: a page that is not at hand is asked for with ``PageMissingError``.

Invariants, tests of the same names (tests/property/test_offset_map.py):

1. An answer skips no record, in either direction: each one that a consumer has not read is at the
   offset returned, after it, or not copied yet.
2. Below the beginning of a map both directions answer UNKNOWN, whatever made it begin there, except
   for a record that was copied again since, or where both logs have deleted what lay there
   (EXPIRED). A map also begins after the pages that compaction removed for late ones of a former
   task.
"""

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, final

from mm2py.errors import ProtocolError
from mm2py.mirror.offset_map_pages import (
    Mark,
    Page,
    PageHead,
    PageRef,
    Segment,
    decode_head,
    decode_page_key,
    is_late,
)
from mm2py.protocol.records import Record
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import TopicPartition

log = logging.getLogger(__name__)

_NO_LIMIT: Final = 1 << 63
_number: Final = attrgetter("number")
_end_of: Final = attrgetter("source_end")
_target_end: Final = attrgetter("target_end")
_target_first: Final = attrgetter("target_first")


class Place(StrEnum):
    """What is known of the offset that was asked for."""

    COPIED = "copied"
    """A record that was copied."""
    AT_END = "at-end"
    """After everything that was copied: the position of a consumer that has read it all."""
    NEVER_EXISTED = "never-existed"
    """No record of the copy: before the first one, a hole of compaction, a marker, aborted data; on
    the target also another writer's record."""
    LOST = "lost"
    """The source lost it before or after it was copied, or the target lost the copy."""
    EXPIRED = "expired"
    """Gone from both logs since, by retention or deletion; whether there was a record, the map does
    not hold any more."""
    NOT_YET_COPIED = "not-yet-copied"
    """After the end of the map."""
    UNKNOWN = "unknown"
    """Passed without this map: it lies below the map's beginning, another program copied it, or an
    operator set the position after it."""


class Translation(NamedTuple):
    """Where a consumer continues on the other cluster: no record skipped, none read again. -1: not
    known (yet)."""

    place: Place
    offset: int


class Beginning(NamedTuple):
    """Where a map begins: of records below ``source``, and of the target's log below ``target``, it
    knows nothing."""

    source: int
    target: int

    def is_past_unread(self, upstream: int, downstream: int) -> bool:
        """Whether a group at ``upstream`` was moved to ``downstream`` past what lies below, as
        earlier versions did."""
        return upstream < self.source and downstream == self.target


class PageMissingError(LookupError):
    """A look-up needs a page that is not at hand."""

    def __init__(self, ref: PageRef) -> None:
        super().__init__(f"page {ref.number} of an offset map at {ref.position}")
        self.ref = ref


Pages = Callable[[PageRef], Page]
"""Returns a page, or raises ``PageMissingError``."""


class _PageOrder(NamedTuple):
    """Whether the source offsets of pages rise from page to page, and the limit of each."""

    ascends: bool
    limits: list[int]


@final
class PartitionIndex:
    """The pages of one partition's map, in the order of the target's log."""

    __slots__ = (
        "_order", "covered", "late", "pages", "position", "source_id", "start", "target_id",
    )  # fmt: skip

    def __init__(self) -> None:
        self._order: _PageOrder | None = None
        self.pages: list[PageRef] = []
        self.covered = self.position = self.start = 0
        self.source_id = self.target_id = b""
        self.late: int = _NO_LIMIT
        """Lowest number of a page that compaction removes for a late one of a former task."""

    @property
    def unordered(self) -> int:
        """Lowest number of a page that is not before the next one in the topic, or will not be
        after its compaction."""
        refs = zip(self.pages, islice(self.pages, 1, None), strict=False)
        return min(
            self.late,
            next((it.number for it, after in refs if it.position > after.position), _NO_LIMIT),
        )

    @property
    def is_whole(self) -> bool:
        """Whether no page is missing between the first and the last; false only while the topic is
        being read."""
        return bool(self.pages) and self.pages[-1].number - self.pages[0].number + 1 == len(
            self.pages
        )

    @property
    def is_cut(self) -> bool:
        """Whether what is before its first page may be a page that compaction removed for a late
        one, and is not expired."""
        return self.late < self.pages[0].number

    def after_hole(self) -> "PartitionIndex | None":
        """Return the map after the last page that is missing; None while a record that comes may
        still have that page."""
        at = len(self.pages) - 1
        while at > 0 and self.pages[at - 1].number + 1 == self.pages[at].number:
            at -= 1
        rest = PartitionIndex()
        rest.pages, rest.late, rest.start = self.pages[at:], self.late, self.start
        rest.covered, rest.position = self.covered, self.position
        rest.source_id, rest.target_id = self.source_id, self.target_id
        return rest if rest.pages and rest.is_cut else None

    @property
    def target_end(self) -> int:
        """The target offset after all that was copied."""
        return self.pages[-1].target_end

    @property
    def passed(self) -> int:
        """The source offset below which nothing is copied any more: it is covered, or the copy
        begins behind it."""
        return self.covered if self.has_segments else max(self.covered, self.position)

    @property
    def has_segments(self) -> bool:
        """Whether anything was copied or lost; a page without segments only has how far nothing had
        to be copied."""
        return len(self.pages) > 1 or self.pages[0].source_first >= 0

    def put(self, number: int, head: PageHead, position: int) -> PageRef:
        """Take a page from ``position`` of the topic; it ends all with higher numbers."""
        # A page ends all with higher numbers: those before it in the topic are of a map that was
        # cut back or started over.
        self.drop(number)
        self._order = None
        ref = PageRef(number, position, *head.span)
        self.pages.append(ref)
        self.covered, self.position, self.start = head.covered, head.position, head.start
        self.source_id, self.target_id = head.source_id, head.target_id
        if number <= self.late:
            self.late = _NO_LIMIT
        return ref

    def put_again(self, number: int, head: PageHead, position: int) -> bool:
        """Take a page in place of one that speaks of the same offsets and has others after it: it
        was written again, and ends none. False: it is another one."""
        at = bisect_left(self.pages, number, key=_number)
        # Earlier builds, which name no start, write such a page to cut the map there.
        if at + 1 >= len(self.pages) or not head.start or head.source_id != self.source_id:
            return False
        ref = PageRef(number, position, *head.span)
        if ref != self.pages[at]._replace(position=position):
            return False
        self.pages[at] = ref
        # It would be ignored where compaction has left those before it, with a higher start.
        if is_late(head.start, self.start):
            self.late = min(self.late, number)
            return True
        # Its task may be killed before the newest page: the next one must begin above it.
        self.start = head.start
        if number == self.late:
            self.late += 1
        return True

    def drop(self, number: int) -> None:
        while self.pages and self.pages[-1].number >= number:
            self.pages.pop()

    def forget(self, number: int) -> None:
        self._order = None
        if self.pages and self.pages[0].number == number:
            # The common case without a scan: pages expire from the oldest on.
            del self.pages[0]
        else:
            self.pages = [ref for ref in self.pages if ref.number != number]

    def is_expired(self, source_offset: int) -> bool:
        """Whether a source offset is below everything that pages speak of, and pages before those
        have expired."""
        # Page 0 is still there, so nothing has expired; below it is the beginning of the map, which
        # is unknown, not expired.
        if not self.pages[0].number or self.is_cut:
            return False
        return all(source_offset < ref.source_first for ref in self.pages if ref.source_first >= 0)

    def limits(self) -> list[int]:
        """Return for each page the source offset from which on its copies are of a history that was
        cut."""
        return self._ordered().limits

    def reached(self, offset: int) -> list[int]:
        """Return the pages that speak of a source offset or of later ones, those that may have the
        lowest first."""
        ascends, limits = self._ordered()
        # Nearly every map: a bisection instead of a scan over all pages.
        if ascends:
            return list(range(bisect_right(self.pages, offset, key=_end_of), len(self.pages)))
        found = [
            (max(offset, ref.source_first), at)
            for at, ref in enumerate(self.pages)
            # Copied again or cut: a later page may have lower source offsets than an earlier one,
            # so all are looked at, lowest first.
            if min(ref.source_end, limits[at]) > offset
        ]
        return [at for _, at in sorted(found)]

    def _ordered(self) -> "_PageOrder":
        if self._order is None:
            limits: list[int] = []
            limit, later, ascends = _NO_LIMIT, _NO_LIMIT, True
            # Backwards, because a cut invalidates what lies before it in the map, not after it.
            for ref in reversed(self.pages):
                limits.append(limit)
                if ref.cut >= 0:
                    limit = min(limit, ref.cut)
                ascends = ascends and ref.cut < 0 <= ref.source_first and ref.source_end <= later
                later = ref.source_first
            limits.reverse()
            self._order = _PageOrder(ascends, limits)
        return self._order

    def page_of_target(self, target: int) -> PageRef:
        """Return the last page that begins below a target offset, else the first page."""
        # Target offsets only rise (invariant 2 of the map), so the page is found by its first one.
        at = bisect_right(self.pages, target - 1, key=_target_first)
        return self.pages[max(0, at - 1)]


@final
class MapIndex:
    """Fold over the topic: the index of every partition."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionIndex] = {}
        self.on_anew: Callable[[TopicPartition], None] = lambda _: None
        """Called when a map begins anew, for another incarnation of the source topic, or goes
        back."""
        self._source_ids: dict[TopicPartition, bytes] = {}
        self.strange = 0
        """Records of versions that this program does not know, or damaged ones."""

    def take(self, record: Record) -> tuple[TopicPartition, PageRef] | None:
        """Take the next record of the topic and return its page; one that cannot be read is counted
        only."""
        try:
            partition, number = decode_page_key(record.key)
            head = decode_head(record.value) if record.value is not None else None
        except ProtocolError as error:
            # The reader continues: one damaged or newer record must not stop the translation of all
            # other partitions.
            self.strange += 1
            log.debug(
                "record of the offset map is ignored offset=%d cause=%s", record.offset, error
            )
            return None
        if head is None:
            self.forget(partition, (number,))
            return None
        index = self.partitions.get(partition)
        # A start writes pages again in their order: it may be killed after any of them.
        if index is not None and index.put_again(number, head, record.offset):
            return None
        if index is not None and is_late(head.start, index.start):
            index.late = min(index.late, number)
            log.info(
                "page of the offset map came late from a former task, it is ignored partition=%s "
                "page=%d offset=%d",
                partition,
                number,
                record.offset,
            )
            return None
        return partition, self.put(partition, number, head, record.offset)

    def put(self, partition: TopicPartition, number: int, head: PageHead, position: int) -> PageRef:
        """Take a page of a partition from ``position`` of the topic."""
        index = self.partitions.setdefault(partition, PartitionIndex())
        before, now = self._source_ids.get(partition, head.source_id), head.source_id
        # Covered offsets of one history only rise; lower means that the copy went back, and an
        # unknown id (zeros) proves nothing.
        is_anew = head.covered < index.covered or (now not in (before, NO_TOPIC_ID))
        if now != NO_TOPIC_ID:
            self._source_ids[partition] = now
        ref = index.put(number, head, position)
        if is_anew:
            self.on_anew(partition)
        return ref

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
        # While the topic is read from its start, compaction has left gaps that later records fill;
        # translating then would skip copies.
        return index if index is None or index.is_whole else index.after_hole()


# ---- where the map begins


def beginning(index: PartitionIndex, pages: Pages) -> Beginning:
    """Return where the first segment of the map begins; zeros once its first page has expired, with
    both logs.

    A copy that began with the source's log has its beginning at source offset 0, whatever its first
    record is.

    Raises:
        PageMissingError: a page is needed.
    """
    if index.is_cut:
        firsts = [it.source_first for it in index.pages if it.source_first >= 0]
        return Beginning(min(firsts, default=index.covered), index.pages[0].target_first)
    # Expired in both logs: no consumer can have an offset there any more.
    if index.pages[0].number:
        return Beginning(0, 0)
    segments = pages(index.pages[0]).segments
    return beginning_of(segments[0]) if segments else Beginning(0, 0)


def beginning_of(first: Segment) -> Beginning:
    """Return where a map begins whose first segment this is."""
    # What another program copied has no known place, so the map begins after it.
    is_unknown = first.mark is Mark.UNKNOWN
    return Beginning(first.source_end if is_unknown else first.source, first.target)


# ---- source -> target


@dataclass(slots=True)
class _Search:
    """The lowest copied source offset from ``offset`` on, its newest copy, what lies at ``offset``,
    the lowest unknown offset."""

    offset: int
    source: int = _NO_LIMIT
    target: int = -1
    page: int = -1
    mark: Mark | None = None
    unknown: int = _NO_LIMIT

    def look(self, page: Page, limit: int) -> None:
        """Look through a page; of two copies the one that is later in the map wins."""
        offset = self.offset
        for segment, end in _valid(page, limit, offset):
            first = segment.source
            # A later cut may leave nothing of a segment (end before its first offset).
            if end <= max(first, offset):
                continue
            if segment.mark is not Mark.COPIED:
                # Remembered only: a copy at or below it answers first (``to_target``).
                if segment.mark is Mark.UNKNOWN:
                    self.unknown = min(self.unknown, max(first, offset))
                elif first <= offset:
                    self.mark = segment.mark
                continue
            source = max(first, offset)
            if source < self.source or (source == self.source and page.number >= self.page):
                self.source, self.target = source, segment.target + source - first
                self.page = page.number
            if page.ascends:
                return  # what follows is higher


def to_target(index: PartitionIndex, source_offset: int, pages: Pages) -> Translation:
    """Translate a source offset: the target offset of the first copied record at or after it;
    ``PageMissingError``: a page is needed."""
    offset, search = source_offset, _Search(source_offset)
    limits = index.limits()
    for at in index.reached(offset):
        # Pages come lowest first: the rest can only have higher offsets than the one found.
        if max(offset, index.pages[at].source_first) > search.source:
            break
        search.look(pages(index.pages[at]), limits[at])
    if search.source == offset:
        return Translation(Place.COPIED, search.target)
    # UNKNOWN rather than the next known copy: records between may be on the target at offsets that
    # this map never had, and a group placed after them would skip them.
    if search.unknown < search.source or offset < beginning(index, pages).source:
        return Translation(Place.UNKNOWN, -1)
    return Translation(_place(index, offset, search), _behind(index, offset, search))


def _place(index: PartitionIndex, offset: int, search: _Search) -> Place:
    if search.mark is not None:
        return Place.LOST
    # Covered without a copy: compaction removed it, or it is a transaction marker, for which
    # nothing is written.
    if search.target >= 0 or offset < index.covered:
        return Place.EXPIRED if index.is_expired(offset) else Place.NEVER_EXISTED
    return Place.AT_END if offset == index.covered else Place.NOT_YET_COPIED


def _behind(index: PartitionIndex, offset: int, search: _Search) -> int:
    """Return where the records after ``offset`` begin on the target, or will."""
    if search.target >= 0:
        return search.target
    # At the end: the next copied record lands there or later. Beyond the end nothing may be
    # promised.
    return index.target_end if offset <= index.covered else -1


# ---- target -> source


def to_source(index: PartitionIndex, target_offset: int, pages: Pages) -> Translation:
    """Translate a target offset: the source offset of the first copy at or after it;
    ``PageMissingError``: a page is needed."""
    refs, limits = index.pages, index.limits()
    # Below the map's beginning copies of another program may lie; a map that began with the
    # source's log (0) has none before it.
    if target_offset < refs[0].target_first and (index.is_cut or beginning(index, pages).source):
        return Translation(Place.UNKNOWN, -1)
    end = index.target_end
    at = max(0, bisect_right(refs, target_offset, key=_target_first) - 1)
    unknown = False
    for number in range(at, len(refs)):
        for segment, limit in _at_target(pages(refs[number]), limits[number], target_offset):
            unknown = unknown or segment.mark is Mark.UNKNOWN
            # An anchor after the offset says where the next copy begins at the earliest, not that
            # it exists.
            if segment.mark is not Mark.COPIED or (
                not segment.records and segment.target > target_offset
            ):
                continue
            if segment.target_end <= target_offset:
                # An unknown range before a known copy is settled: the offset asked for lies after
                # both.
                unknown = False
                continue
            copy = _copy_at(segment, limit, target_offset, unknown=unknown)
            if refs[0].number and target_offset < refs[0].target_first:
                return Translation(Place.EXPIRED, copy.offset)
            return copy
    if target_offset > end:
        return Translation(Place.NOT_YET_COPIED, -1)
    if unknown:
        return Translation(Place.UNKNOWN, -1)
    return Translation(Place.AT_END, _source_end(index, pages, limits))


def _copy_at(segment: Segment, limit: int, target_offset: int, *, unknown: bool) -> Translation:
    """Answer with the first copy that ends after the offset."""
    if segment.target > target_offset:
        # Between the offset and the next copy other records were passed without the map.
        if unknown:
            return Translation(Place.UNKNOWN, -1)
        return Translation(Place.NEVER_EXISTED, min(segment.source, limit))
    source = segment.source + target_offset - segment.target
    if source >= limit:
        return Translation(Place.LOST, limit)  # the source continues there with other records
    return Translation(Place.COPIED, source)


def _source_end(index: PartitionIndex, pages: Pages, limits: list[int]) -> int:
    """Return the source offset after the newest copy."""
    for at in range(len(index.pages) - 1, -1, -1):
        for segment, limit in reversed(list(_valid(pages(index.pages[at]), limits[at]))):
            if segment.mark is Mark.COPIED:
                return min(segment.source_end, limit)
    return index.covered


# ---- both


class Translator(Protocol):
    """An exact map that answers in both directions (``OffsetMapReader``)."""

    async def to_target(
        self, partition: TopicPartition, source_offset: int, /
    ) -> Translation | None: ...
    async def to_source(
        self, partition: TopicPartition, target_offset: int, /
    ) -> Translation | None: ...


async def is_past_unread(
    exact: Translator, partition: TopicPartition, upstream: int, downstream: int
) -> bool:
    """Whether an earlier translation is past records that a group at ``upstream`` has not read: the
    target lost copies, and others took their places; ``Mm2pyError``: as the map."""
    # Two look-ups, because a lower target offset alone may be a copy that was made again: only the
    # way back shows whether unread records lie between.
    copy = await exact.to_target(partition, upstream)
    if copy is None or copy.place is Place.NOT_YET_COPIED or not 0 <= copy.offset < downstream:
        return False
    there = await exact.to_source(partition, downstream)
    return there is not None and there.offset > upstream


def own_from(index: PartitionIndex, pages: Pages, *, begin: int, end: int) -> int:
    """Return the first target offset from ``begin`` on that no copy has, at most ``end``: the
    target's own records may begin there, or a marker has it. Below the map's beginning that is any
    offset: what another program copied is not told from them.

    Raises:
        PageMissingError: a page is needed.
    """
    refs, at = index.pages, begin
    if refs[0].number and not index.is_cut:
        at = max(at, refs[0].target_first)  # below it both logs have deleted what was there
    for ref in refs[max(0, bisect_right(refs, at, key=_target_first) - 1) :]:
        for segment in pages(ref).segments:
            if segment.mark is not Mark.COPIED:
                continue
            if at >= end or segment.target > at:
                return min(at, end)
            at = max(at, segment.target_end)
    return min(at, end)


def beside_own_records(offset: int, own: Translation | None, own_covered: int) -> int:
    """Return where a consumer continues on a target that has records of its own beside the copies,
    -1 unknown.

    ``offset`` is where the flow has the offset, -1 unknown; ``own`` is the answer of the flow
    back's map for the same offset, None where it has none, and ``own_covered`` is where that flow
    has covered the target's log.
    """
    if own is None:
        return offset
    if own.place is Place.COPIED:
        return own.offset  # the source's later records were copied after it was read there
    if own.place is Place.UNKNOWN or offset < 0:
        return -1
    if own.place in (Place.AT_END, Place.NOT_YET_COPIED):
        return min(offset, own_covered)  # every copy of the target's own records is read
    return min(offset, own.offset)


def _valid(page: Page, limit: int, after: int = -1) -> "Iterable[tuple[Segment, int]]":
    """Return segments as ``valid_segments``; those that end at ``after`` or before it may be left
    out."""
    if page.ascends:
        first = bisect_right(page.segments, after, key=_end_of)
        return (
            (segment, min(segment.source_end, limit))
            for segment in islice(page.segments, first, None)
        )
    return valid_segments(page.segments, limit)


def _at_target(page: Page, limit: int, target: int) -> "Iterable[tuple[Segment, int]]":
    """Return segments as ``valid_segments``; those before the last copy that ends at ``target`` or
    before it may be left out."""
    if not page.ascends:
        return valid_segments(page.segments, limit)
    first = bisect_right(page.segments, target, key=_target_end)
    # Marks share the target offset of the copy before them: go back to that copy, or its mark would
    # be answered without it.
    while first and page.segments[first - 1].mark is not Mark.COPIED:
        first -= 1
    return (
        (segment, min(segment.source_end, limit))
        for segment in islice(page.segments, max(0, first - 1), None)
    )


def valid_segments(
    segments: tuple[Segment, ...], limit: int = _NO_LIMIT
) -> "list[tuple[Segment, int]]":
    """Return segments with the source offset that ends each: its own end, or a later cut before
    it."""
    valid: list[tuple[Segment, int]] = []
    # A cut (TRUNCATION of the source) ends every segment before it in the map whose offsets reach
    # beyond it.
    for segment in reversed(segments):
        if segment.mark is Mark.SOURCE_CUT:
            limit = min(limit, segment.source)
        else:
            valid.append((segment, min(segment.source_end, limit)))
    valid.reverse()
    return valid
