"""The exact maps of a flow, whole, as jobs read them.

Flow: the map topic on the target -> ``KnownMaps`` -> ``KnownMap`` of each partition.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ProtocolError
from mm2py.mirror.offset_lookup import MapIndex, valid_segments
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.offset_map_pages import (
    Mark,
    Page,
    Segment,
    decode_page,
    decode_page_key,
    offset_map_topic,
)
from mm2py.mirror.offset_ranges import outside
from mm2py.protocol.records import Record
from mm2py.types import ClusterAlias, TopicPartition

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class KnownMap:
    """The whole map of one partition."""

    pages: dict[int, Page] = field(default_factory=dict[int, Page])

    def put(self, page: Page) -> None:
        """Take a page; it ends all with higher numbers."""
        self.pages = {number: it for number, it in self.pages.items() if number < page.number}
        self.pages[page.number] = page

    @property
    def newest(self) -> Page:
        """The page that grows."""
        return self.pages[max(self.pages)]

    def segments(self) -> list[tuple[Segment, int]]:
        """Return the segments with the source offset that ends each, in the order of the target's
        log."""
        found = [
            segment for number in sorted(self.pages) for segment in self.pages[number].segments
        ]
        return valid_segments(tuple(found))

    def segments_to(self, position: int) -> list[tuple[Segment, int]]:
        """Return ``segments``, and as unknown what a stored position was set past that the map does
        not have yet."""
        segments, newest = self.segments(), PartitionMap(self.newest)
        # Below where the map begins nothing is known.
        first = max(newest.covered, segments[0][0].source if segments else 0)
        if first < position and newest.is_set(position):
            at = max(0, newest.target_end)
            segments.append((Segment(first, position - first, at, Mark.UNKNOWN), position))
        return segments

    def target_spans(self) -> list[tuple[Segment, int]]:
        """Return the target offsets of all copies as if they were source offsets, as
        ``not_copied`` takes them."""
        return [
            (Segment(it.target, it.records, it.source), it.target_end)
            for it, _ in self.segments()
            if it.mark is Mark.COPIED
        ]


@final
class KnownMaps:
    """The maps of a flow by the records of their topic, which count as in ``MapIndex``; without
    ``whole`` the first and the newest page of each."""

    def __init__(self, *, whole: bool = True) -> None:
        self._index, self._whole = MapIndex(), whole
        self._maps: dict[TopicPartition, KnownMap] = {}

    def take(self, _partition: int, record: Record) -> None:
        """Take the next record; one that is damaged or of a later version is ignored."""
        try:
            partition, number = decode_page_key(record.key)
            page = None if record.value is None else decode_page(number, bytes(record.value))
        except ProtocolError as error:
            log.warning("record of the offset map is ignored cause=%s", error)
            return
        counts = self._index.take(record) is not None
        known = self._maps.setdefault(partition, KnownMap())
        if page is None:
            known.pages.pop(number, None)
        elif counts:
            known.put(page)
            if not self._whole:
                known.pages = {it: known.pages[it] for it in (0, number) if it in known.pages}

    def known(self) -> Mapping[TopicPartition, KnownMap]:
        """Return the maps of partitions that have one."""
        return {partition: it for partition, it in self._maps.items() if it.pages}


def lost_copies(known: KnownMap) -> list[tuple[int, int]]:
    """Return the ranges of source offsets that were copied, then lost by the target, and not copied
    again."""
    segments = known.segments()
    return [
        lost
        for behind, (segment, end) in enumerate(segments, 1)
        if segment.mark is Mark.TARGET_LOST
        for lost in not_copied(segment.source, end, segments[behind:])
    ]


class Passed(NamedTuple):
    """Source offsets from ``first`` to ``end`` that were passed without the map: the position was
    set past them, or another program copied them.

    ``room``: target offsets between the copies before and after them; none was copied where there
    is no room.
    """

    first: int
    end: int
    room: int

    def may_lack_copies(self, source: TopicPartition, copy: TopicPartition) -> bool:
        """Whether the target may not have all of it: with the same names the room may be full of
        the target's own records."""
        return source == copy or self.room < self.end - self.first


def passed_over(known: KnownMap, position: int, log_end: int) -> list[Passed]:
    """Return what was passed without the map and has no copies in it.

    Args:
        known: the map.
        position: where the copy continues by what is stored, which the map may not know yet.
        log_end: where the target's log ends.
    """
    segments, found = known.segments_to(position), list[Passed]()
    for behind, (segment, end) in enumerate(segments, 1):
        if segment.mark is Mark.UNKNOWN:
            copies = (it.target for it, _ in segments[behind:] if it.mark is Mark.COPIED)
            room = max(0, next(copies, log_end) - segment.target)
            found += (Passed(*it, room) for it in not_copied(segment.source, end, segments))
    return found


def not_copied(
    first: int, end: int, segments: Sequence[tuple[Segment, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of source offsets of which ``segments`` have no copies."""
    copied = ((it.source, limit) for it, limit in segments if it.mark is Mark.COPIED)
    yield from outside(first, end, copied)


async def known_maps(target: Cluster, source: ClusterAlias) -> Mapping[TopicPartition, KnownMap]:
    """Read the maps of a flow to their end; none where there is no such topic. ``Mm2pyError``: the
    topic cannot be read."""
    topic, maps = offset_map_topic(source), KnownMaps()
    if topic not in await Admin(target).describe_topics([topic]):
        return {}
    reader = LogReader(target, topic, clock=SYSTEM_CLOCK, waits_for_transactions=True)
    await reader.read_to_end(maps.take)
    return maps.known()
