"""The pages of an exact offset map, as they are stored (docs/reference/formats.md): values and
their bytes.

Flow: ``Page`` -> ``encode_page`` -> ``mm2py-offset-map.<source>.internal`` -> ``decode_page``, or
``decode_head`` alone, which has the offsets that the page speaks of. No I/O; what the pages say is
decided in ``mm2py.mirror.offset_map``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct, error
from typing import Final, NamedTuple

from mm2py.errors import ProtocolError
from mm2py.protocol.record_bytes import read_varint, varint
from mm2py.types import TopicPartition

MAP_VERSION: Final = 1
PAGE_SEGMENTS: Final = 256
"""Most segments of a page: one record of the topic, about a kilobyte where every record has a hole
after it."""

_TAIL: Final = Struct(">ii")
_ID_BYTES: Final = 16
_START: Final = Struct(">4sQ")
_START_MARK: Final = b"\xffst\x00"
_AT_ZERO: Final = b"\xffst\x01"
"""The same of a page whose position is 0: earlier builds take the stored ``{"offset":-1}`` for
none, as Java does, and would copy again what a page with 0 has."""
START_BITS: Final = 20
"""Low bits of ``Page.start``, which are random: of two tasks with one number the first one in the
topic counts."""
_MARK_BITS: Final = 3
_HEAD_NUMBERS: Final = 10


def ending_producer(producer_id: int) -> int:
    """Return how a page has a producer id that ends with its process, or the id of what a page
    has; -1 stays."""
    return -2 - producer_id


def offset_map_topic(source_alias: str) -> str:
    """Return the name of the map's topic on the target; no mirror replicates it
    (``mm2*.internal``)."""
    return f"mm2py-offset-map.{source_alias}.internal"


def next_start(start: int, token: int) -> int:
    """Return the ``Page.start`` of a task that begins with a page of this one."""
    return ((start >> START_BITS) + 1 << START_BITS) | token


def is_late(start: int, newest: int) -> bool:
    """Whether a page with this ``Page.start`` is of a task before the one that wrote the newest, or
    lost to it."""
    return 0 < start != newest and start >> START_BITS <= newest >> START_BITS


class Mark(IntEnum):
    """The meaning of a segment for its source offsets."""

    COPIED = 0
    SOURCE_LOST = 1
    """Gone from the source before they were copied."""
    TARGET_LOST = 2
    """Copied, then lost by the target."""
    SOURCE_CUT = 3
    """From here on the source has other records than those copied before; no offsets of its own."""
    UNKNOWN = 4
    """Passed without us: another program copied them, or the position was set after them."""


class Segment(NamedTuple):
    """``records`` source offsets from ``source`` on; a copy begins at ``target``, a mark was
    noticed there."""

    source: int
    records: int
    target: int
    mark: Mark = Mark.COPIED

    @property
    def source_end(self) -> int:
        """The source offset after it."""
        return self.source + self.records

    @property
    def is_anchor(self) -> bool:
        """Whether it only marks where the copy begins."""
        return not self.records and self.mark is Mark.COPIED

    # Marks have no length on the target, so a mark and the copy after it may begin at one target
    # offset: the order of the segments decides there, never the offset alone.
    @property
    def target_end(self) -> int:
        """The target offset after it; a mark has no offsets on the target."""
        return self.target + self.records if self.mark is Mark.COPIED else self.target


class Span(NamedTuple):
    """The offsets that a page speaks of; source offsets are -1 where it has none."""

    source_first: int
    source_end: int
    target_first: int
    target_end: int
    cut: int
    """Lowest source offset from which on the page has a cut, -1 for none."""


class PageRef(NamedTuple):
    """What is kept of a page: where it is in the topic (-1: written since), and its ``Span``."""

    number: int
    position: int
    source_first: int
    source_end: int
    target_first: int
    target_end: int
    cut: int


class PageHead(NamedTuple):
    """A page without its segments."""

    source_id: bytes
    target_id: bytes
    covered: int
    position: int
    epoch: int
    producer_id: int
    producer_from: int
    span: Span
    start: int


@dataclass(frozen=True, slots=True)
class Page:
    """Up to ``PAGE_SEGMENTS`` segments of a partition's map, in the order of the target's log.

    A page ends all pages with higher numbers: the map was cut there, or begun anew. Below
    ``covered`` everything is copied or needs no copy. ``position`` is where the copy would have
    continued when the page was written: the stored position, -1 for none; ``epoch`` is the leader
    epoch of the record before ``covered``, -1 unknown. The copies from target offset
    ``producer_from`` on are written with ``producer_id``, -1 for one that is not known; below that
    it is the ``ending_producer`` of one that ends with its process.
    The topic ids are those of the topics' incarnations; where a cluster has none, zeros for the
    source and the ``named_id`` for the target.
    ``start`` is above that of the page that its task began with, 0 unknown: a page of a task that
    is gone may reach the topic after those of its successor (``is_late``).
    """

    number: int
    source_id: bytes
    target_id: bytes
    covered: int
    position: int
    epoch: int
    producer_id: int
    producer_from: int
    segments: tuple[Segment, ...]
    ascends: bool = field(default=False, compare=False)
    """Known, of a page that was read, not to fall back to lower source offsets and to have no cut:
    most pages."""
    start: int = field(default=0, compare=False)

    @property
    def only_begins(self) -> bool:
        """Whether it has nothing but the position where the copy begins."""
        return self.position > 0 and not (self.covered or self.segments)


def span_of(segments: Sequence[Segment]) -> Span:
    """Return the offsets that segments speak of."""
    cuts = [segment.source for segment in segments if segment.mark is Mark.SOURCE_CUT]
    others = [segment for segment in segments if segment.mark is not Mark.SOURCE_CUT]
    return Span(
        # Stored with the page, so that an index over thousands of partitions needs heads only
        # (``decode_head``).
        min((other.source for other in others), default=-1),
        max((other.source_end for other in others), default=-1),
        segments[0].target if segments else 0,
        segments[-1].target_end if segments else 0,
        min(cuts, default=-1),
    )


def encode_page_key(partition: TopicPartition, number: int) -> bytes:
    """Return the key of a page: version, topic, partition, number."""
    topic = partition.topic.encode()
    size = len(topic).to_bytes(2)
    return bytes((MAP_VERSION,)) + size + topic + _TAIL.pack(partition.partition, number)


def decode_page_key(key: bytes | None) -> tuple[TopicPartition, int]:
    """Read a key; ``ProtocolError``: it is none of this version."""
    if not key or key[0] != MAP_VERSION:
        raise ProtocolError("no key of version 1 of the offset map")
    end = 3 + int.from_bytes(key[1:3])
    try:
        topic = key[3:end].decode()
        partition, number = _TAIL.unpack(key[end:])
    except (error, UnicodeDecodeError) as cause:
        raise ProtocolError(f"damaged key of the offset map: {cause}") from None
    if number < 0 or partition < 0:
        raise ProtocolError("a key of the offset map has a negative number")
    return TopicPartition(topic, partition), number


def encode_page(page: Page) -> bytes:
    """Return the value of a page; each number as the difference from what is expected."""
    out = bytearray((MAP_VERSION,))
    out += page.source_id
    out += page.target_id
    out += varint(page.covered)
    at_zero = page.start > 0 == page.position
    out += varint(-1 if at_zero else page.position)
    out += varint(page.epoch)
    out += varint(page.producer_id)
    out += varint(page.producer_from)
    span = span_of(page.segments)
    out += varint(span.source_first)
    out += varint(span.source_end - span.source_first)
    out += varint(span.target_first)
    out += varint(span.target_end - span.target_first)
    out += varint(span.cut)
    out += varint(len(page.segments))
    source_end = target_end = 0
    for segment in page.segments:
        source, records, target, mark = segment
        # Differences: a run right after its predecessor costs a few bytes instead of three 64-bit
        # numbers.
        out += varint(((source - source_end) << _MARK_BITS) | mark)
        out += varint(records)
        out += varint(target - target_end)
        source_end, target_end = source + records, segment.target_end
    # At the end: earlier builds ignore it, and readers of heads need no segment for it.
    if page.start:
        out += _START.pack(_AT_ZERO if at_zero else _START_MARK, page.start)
    return bytes(out)


def decode_head(value: bytes) -> PageHead:
    """Read the value of a page up to its segments; ``ProtocolError``: it is damaged, or of a
    version that this program does not know."""
    return _read_head(value)[0]


def decode_page(number: int, value: bytes) -> Page:
    """Read the value of page ``number``; what follows the segments is ignored. ``ProtocolError``:
    it is damaged, or of a version that this program does not know."""
    head, at = _read_head(value)
    segments: list[Segment] = []
    try:
        count, at = read_varint(value, at)
        source_end, target_end, ascends = 0, 0, True
        for _ in range(count):
            # An offset and a mark: more than the 64 bits of an offset alone.
            offset, at = read_varint(value, at, wide=True)
            records, at = read_varint(value, at)
            shift, at = read_varint(value, at)
            mark = Mark(offset & ((1 << _MARK_BITS) - 1))
            segment = Segment(
                source_end + (offset >> _MARK_BITS), records, target_end + shift, mark
            )
            source_end, target_end = segment.source_end, segment.target_end
            ascends = ascends and offset >= 0 and mark is not Mark.SOURCE_CUT
            segments.append(segment)
    except (IndexError, ValueError) as cause:
        raise ProtocolError(f"damaged page of the offset map: {cause}") from None
    page = Page(number, *head[:-2], tuple(segments), ascends, head.start)
    # A page that was damaged in a way that still decodes must not translate: the head was written
    # from the same segments, so the two have to agree.
    if not _is_sound(segments, head.covered) or span_of(segments) != head.span:
        raise ProtocolError("damaged page of the offset map: its offsets are impossible")
    return page


def _read_head(value: bytes) -> tuple[PageHead, int]:
    """Return a page's head, and where its segments begin."""
    if not value or value[0] != MAP_VERSION:
        raise ProtocolError("no page of version 1 of the offset map")
    at = 1 + 2 * _ID_BYTES
    numbers: list[int] = []
    try:
        for _ in range(_HEAD_NUMBERS):
            number, at = read_varint(value, at)
            numbers.append(number)
    except (IndexError, ValueError) as cause:
        raise ProtocolError(f"damaged page of the offset map: {cause}") from None
    source_first, sources, target_first, targets, cut = numbers[5:]
    span = Span(source_first, source_first + sources, target_first, target_first + targets, cut)
    ids = value[1 : 1 + _ID_BYTES], value[1 + _ID_BYTES : 1 + 2 * _ID_BYTES]
    covered, position, epoch, producer_id, producer_from = numbers[:5]
    start = 0
    mark = value[-_START.size :][: len(_START_MARK)] if len(value) >= at + _START.size else b""
    if mark in (_START_MARK, _AT_ZERO):
        _, start = _START.unpack_from(value, len(value) - _START.size)
        position = 0 if mark == _AT_ZERO else position
    return PageHead(*ids, covered, position, epoch, producer_id, producer_from, span, start), at


def _is_sound(segments: Sequence[Segment], covered: int) -> bool:
    target_end = 0
    for segment in segments:
        # Equal is sound: marks have no length there.
        if segment.source < 0 or segment.records < 0 or segment.target < target_end:
            return False
        target_end = segment.target_end
    return covered >= 0
