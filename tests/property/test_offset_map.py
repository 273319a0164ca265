"""The exact map answers like a dictionary of every record, whatever happened to both logs."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mm2py.mirror.offset_lookup import (
    MapIndex,
    PageMissingError,
    PartitionIndex,
    Place,
    own_from,
    to_source,
    to_target,
)
from mm2py.mirror.offset_map import PartitionMap
from mm2py.mirror.offset_map_pages import (
    PAGE_SEGMENTS,
    Mark,
    Page,
    PageRef,
    Segment,
    decode_page,
    decode_page_key,
    encode_page,
    encode_page_key,
)
from mm2py.protocol.records import Record
from mm2py.types import TopicPartition
from tests.property.effort import examples

PARTITION = TopicPartition("orders", 3)
OLD, NEW = b"o" * 16, b"n" * 16


@dataclass
class Brute:
    """Every record of both logs, one by one."""

    newest: dict[int, int] = field(default_factory=dict[int, int])
    """Source offset of the present history -> its newest copy."""
    copies: dict[int, int] = field(default_factory=dict[int, int])
    """Target offset -> source offset, of any history."""
    gone: dict[int, int] = field(default_factory=dict[int, int])
    """Target offset of a copy whose source record was cut -> where the source continues."""
    lost: set[int] = field(default_factory=set[int])
    perhaps: set[int] = field(default_factory=set[int])
    """Offsets without a record between lost ones, which the map need not know apart."""
    unknown: set[int] = field(default_factory=set[int])
    source: int = 0
    target: int = 0
    covered: int = 0
    others: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Copies of the present history by another program: target offset, source offset."""
    begins: int = 0
    holes: set[int] = field(default_factory=set[int])
    """Offsets that were no record when the copy passed them, or whose copy by another program the target lost."""
    end: int = 0
    """Of the present history, as far as it was ever read."""

    @property
    def began(self) -> bool:
        return bool(self.copies)

    def copy(self, records: int) -> tuple[int, int, int]:
        run = self.source, records, self.target
        self.end = max(self.end, self.source + records)
        for _ in range(records):
            self.newest[self.source] = self.target
            self.copies[self.target] = self.source
            self.source, self.target = self.source + 1, self.target + 1
        self.covered = max(self.covered, self.source)
        return run

    def by_others(self, records: int) -> None:
        """Another program copies the next records."""
        self.end = max(self.end, self.source + records)
        for step in range(records):
            self.others.append((self.target + step, self.source + step))
        self.source, self.target = self.source + records, self.target + records

    def furthest(self) -> list[tuple[int, int]]:
        """Return the copied records of the present history below the position, each with its last copy; they ascend."""
        last: dict[int, int] = {}
        for target, source in self.present():
            if source < self.source:
                last[source] = max(target, last.get(source, -1))
        return sorted(last.items())

    def present(self) -> list[tuple[int, int]]:
        """Return all copies of records that the present history has: target offset, source offset."""
        own = [(target, it) for target, it in self.copies.items() if target not in self.gone]
        return [it for it in own + self.others if it[1] not in self.lost | self.holes]

    def cut_source(self, at: int) -> None:
        for offset in [it for it in self.newest if it >= at]:
            del self.newest[offset]
        for target, source in self.copies.items():
            if source >= at and target not in self.gone:
                self.gone[target] = at
            elif target in self.gone:
                self.gone[target] = min(self.gone[target], at)
        self.lost = {it for it in self.lost if it < at}
        self.unknown = {it for it in self.unknown if it < at}
        self.others = [it for it in self.others if it[1] < at]
        self.covered = min(self.covered, at)
        self.source = self.end = at

    def cut_target(self, at: int) -> None:
        cut = {source: target for target, source in self.copies.items() if target >= at}
        self.lost |= {it for it, target in cut.items() if target not in self.gone}
        self.perhaps |= {*range(min(cut), max(cut) + 1)} - self.lost
        self.copies = {target: it for target, it in self.copies.items() if target < at}
        self.gone = {target: it for target, it in self.gone.items() if target < at}
        self.holes |= {source for target, source in self.others if target >= at}
        self.others = [it for it in self.others if it[0] < at]
        self.newest = {}
        for target in sorted(self.copies):
            if target not in self.gone:
                self.newest[self.copies[target]] = target
        self.target = at


class Stored:
    """Pages as the topic has them: encoded, the newest of each key; of an old version they do not say where the map began."""

    def __init__(self, *, old: bool) -> None:
        self.records: list[Record] = []
        self._old = old
        self._read = dict[PageRef, Page]()

    def write(self, pages: list[Page]) -> None:
        for it in pages:
            page = it
            if self._old and len(it.segments) > 1 and it.segments[0].is_anchor:
                page = replace(it, segments=it.segments[1:])
            key = encode_page_key(PARTITION, page.number)
            value = encode_page(page)
            self.records.append(Record(len(self.records), 0, key, value))

    def clear(self) -> None:
        self.records.clear()
        self._read.clear()

    def index(self) -> PartitionIndex | None:
        newest = {record.key: record for record in self.records}
        index = MapIndex()
        for record in self.records:
            if newest[record.key] is record:  # as compaction leaves them
                index.take(record)
        assert not index.strange
        return index.of(PARTITION)

    def page(self, ref: PageRef) -> Page:
        """Return a page, which is decoded once for all the questions about it."""
        if ref not in self._read:
            value = self.records[ref.position].value
            if value is None:
                raise PageMissingError(ref)
            self._read[ref] = decode_page(ref.number, value)
        return self._read[ref]


class Play:
    """One partition that lives through everything; its map begins at any source offset, in a target that has any records.

    Args:
        by_others: how many records another program has copied before.
        passed: how many none has copied, because the copy begins behind them.
        there: how many records of others the target has.
        old: the pages are those of a version that did not keep where a map begins.
    """

    def __init__(
        self, by_others: int = 0, passed: int = 0, there: int = 0, *, old: bool = False
    ) -> None:
        self.brute, self.stored = Brute(), Stored(old=old)
        self.is_exact = not old
        self.map = PartitionMap()
        self.map.identify(OLD)
        self.brute.by_others(by_others)
        self.passed = range(self.brute.source, self.brute.source + passed)
        self.brute.source += passed
        self.brute.target += there
        self.brute.begins = self.brute.source
        self.run_from, self.is_new = self.brute.source, True
        self.map.begin_at(self.brute.source)
        self.map.anchor(self.map.begins, self.brute.target)
        self.began_again: set[int] = set()
        """Target offsets from which records were copied behind a position that was set back."""

    def copy(self, hole: int, records: int, foreign: int) -> None:
        brute = self.brute
        brute.holes.update(range(brute.source, brute.source + hole))
        brute.source += hole
        brute.target += foreign
        assert self.map.add(*brute.copy(records)) is None
        self.is_new = False

    def again(self, back: int) -> None:
        """A kill: the newest records are copied again."""
        self.commit()
        self.restore()
        self.brute.source = max(self.run_from, self.brute.source - back)

    def go_back(self, back: int) -> None:
        """A start finds a position that was set back; what is covered is lower in the next page, too."""
        brute = self.brute
        if self.map.is_empty:
            return
        brute.source = brute.covered = self.run_from = max(0, brute.covered - back)
        if self.is_new:
            brute.begins = brute.source  # nothing was copied from the first beginning
        self.map.go_back(brute.source)
        self.map.anchor(brute.source, brute.target)
        self.began_again.add(brute.target)
        assert self.map.covered == brute.source
        self.commit()
        self.restore()
        assert self.map.covered == brute.source

    def lose_source(self, records: int) -> None:
        brute, self.is_new = self.brute, False
        self.map.note(Segment(brute.source, records, 0, Mark.SOURCE_LOST))
        brute.lost.update(range(brute.source, brute.source + records))
        brute.source += records

    def pass_by(self, records: int) -> None:
        brute, self.is_new = self.brute, False
        self.map.note(Segment(brute.source, records, 0, Mark.UNKNOWN))
        brute.unknown.update(range(brute.source, brute.source + records))
        brute.covered = max(brute.covered, brute.source + records)
        brute.by_others(records)

    def cut_source(self, back: int) -> None:
        brute, self.is_new = self.brute, False
        at = max(0, brute.source - back)
        self.map.note(Segment(at, 0, 0, Mark.SOURCE_CUT))
        brute.cut_source(at)

    def cut_target(self, back: int) -> None:
        """Noticed by the next record that lands below."""
        brute = self.brute
        first = min(brute.copies, default=brute.target)
        at = max(first, brute.target - back)
        if not any(target >= at for target in brute.copies):
            return
        brute.cut_target(at)
        loss = self.map.add(*brute.copy(1))
        assert loss is not None
        self.deepen()

    def deepen(self) -> None:
        if self.map.cut_below >= 0:
            index = self.stored.index()
            assert index is not None
            ref = index.page_of_target(self.map.cut_below)
            self.map.rebase(self.stored.page(ref))

    def cover(self, more: int) -> None:
        if self.brute.began:
            self.brute.holes.update(range(self.brute.source, self.brute.source + more))
            self.brute.source += more
            self.brute.covered = max(self.brute.covered, self.brute.source)
            self.map.cover(self.brute.source)

    def lose_pages(self) -> None:
        """The topic of the map is deleted."""
        self.commit()
        self.is_exact = False
        self.stored.clear()
        self.map.lose_pages()

    def commit(self) -> None:
        self.stored.write(self.map.take())

    def restore(self) -> None:
        index = self.stored.index()
        self.map = (
            PartitionMap(self.stored.page(index.pages[-1])) if index is not None else PartitionMap()
        )
        self.map.identify(OLD)

    def check(self) -> None:
        self.commit()
        brute, index = self.brute, self.stored.index()
        if index is None:
            assert not brute.copies
            return
        self.check_nothing_is_skipped(index)
        if self.is_exact:
            self.check_pages(index)
            self.check_to_target(index)
            self.check_to_source(index)
            self.check_own(index)

    def check_nothing_is_skipped(self, index: PartitionIndex) -> None:
        """Ask for every offset of both logs: what a consumer has not read is there from the answer on."""
        brute = self.brute
        lowest, furthest = 1 << 62, brute.furthest()
        for offset in range(brute.source + 2, -1, -1):
            while furthest and furthest[-1][0] >= offset:
                lowest = min(lowest, furthest.pop()[1])
            found = to_target(index, offset, self.stored.page)
            assert found.offset <= lowest, f"{offset} of the source to {found}"
        first = {source: target for target, source in sorted(brute.present(), reverse=True)}
        # What the copy had begun behind was not to be read on the target, whatever is copied later.
        unread = sorted(
            (it for it in first.items() if it[0] not in self.passed), key=lambda it: it[1]
        )
        lowest = max(brute.source, brute.end)  # it is not copied yet
        for offset in range(brute.target + 2, -1, -1):
            while unread and unread[-1][1] >= offset:
                lowest = min(lowest, unread.pop()[0])
            found = to_source(index, offset, self.stored.page)
            assert found.offset <= lowest, f"{offset} of the target to {found}"

    def check_pages(self, index: PartitionIndex) -> None:
        pages = [self.stored.page(ref) for ref in index.pages]
        assert all(len(page.segments) == PAGE_SEGMENTS for page in pages[:-1])
        segments = [it for page in pages for it in page.segments]
        for before, after in pairwise(segments):
            assert before.target_end <= after.target
            dense = before.source_end == after.source and before.target_end == after.target
            is_apart = after.target in self.began_again
            assert is_apart or not (before.mark is after.mark is Mark.COPIED and dense)

    @staticmethod
    def some(offsets: list[int]) -> list[int]:
        """Leave most of a long stretch out: what happens beside it is what differs."""
        return offsets if len(offsets) < 60 else offsets[:20] + offsets[20:-20:17] + offsets[-20:]

    def check_to_target(self, index: PartitionIndex) -> None:
        brute = self.brute
        known = sorted(brute.newest)
        wanted = {0, brute.source, brute.source + 1, brute.covered, brute.covered + 1}
        wanted.update(it + step for it in self.some(known) for step in (-1, 0, 1))
        wanted.update(brute.lost, brute.unknown)
        for offset in wanted:
            found = to_target(index, offset, self.stored.page)
            at = bisect_left(known, offset)
            behind = brute.newest[known[at]] if at < len(known) else -1
            if offset in brute.newest:
                assert found == (Place.COPIED, brute.newest[offset])
            elif offset < brute.begins:
                assert found == (Place.UNKNOWN, -1)
            elif found.place is Place.UNKNOWN:
                assert found.offset == -1
                assert any(it >= offset and (behind < 0 or it < known[at]) for it in brute.unknown)
            else:
                assert offset not in brute.unknown - brute.lost - brute.perhaps
                if behind < 0 and offset <= brute.covered and brute.copies:
                    # Behind the copies, or where the copy begins again behind others.
                    assert found.offset in (max(brute.copies) + 1, brute.target)
                    behind = found.offset
                if behind < 0 and offset <= brute.covered:
                    continue  # everything is lost; the end of the copies is where it was
                assert found.offset == behind
                if offset not in brute.perhaps:
                    assert (found.place is Place.LOST) == (offset in brute.lost)
                if found.place is not Place.LOST:
                    assert (found.place is Place.NOT_YET_COPIED) == (behind < 0)

    def check_to_source(self, index: PartitionIndex) -> None:
        brute = self.brute
        targets = sorted(brute.copies)
        for offset in {0, *(it + step for it in self.some(targets) for step in (-1, 0, 1))}:
            found = to_source(index, offset, self.stored.page)
            if offset in brute.gone:
                assert found == (Place.LOST, brute.gone[offset])
            elif offset in brute.copies:
                assert found == (Place.COPIED, brute.copies[offset])
            elif found.place is not Place.UNKNOWN:
                at = bisect_left(targets, offset)
                if at < len(targets):
                    behind = targets[at]
                    source = min(brute.copies[behind], brute.gone.get(behind, 1 << 62))
                    assert found == (Place.NEVER_EXISTED, source)
                else:
                    assert found.place is (
                        Place.AT_END if targets and offset == targets[-1] + 1 else found.place
                    )

    def check_own(self, index: PartitionIndex) -> None:
        copies, end = self.brute.copies, self.brute.target + 2
        for offset in {0, *(it + step for it in self.some(sorted(copies)) for step in (0, 1))}:
            found = own_from(index, self.stored.page, begin=offset, end=end)
            own = (it for it in range(offset, end) if it not in copies)
            assert found == next(own, end)


STEPS = st.one_of(
    st.tuples(st.just("copy"), st.integers(0, 3), st.integers(1, 4), st.integers(0, 2)),
    st.tuples(st.just("copy"), st.just(0), st.integers(1, 5), st.just(0)),
    st.tuples(st.just("many"), st.integers(1, 300)),
    st.tuples(st.just("again"), st.integers(0, 12)),
    st.tuples(st.just("go_back"), st.integers(0, 12)),
    st.tuples(st.just("go_back"), st.integers(300, 900)),
    st.tuples(st.just("lose_source"), st.integers(1, 5)),
    st.tuples(st.just("pass_by"), st.integers(1, 5)),
    st.tuples(st.just("cut_source"), st.integers(0, 12)),
    st.tuples(st.just("cut_target"), st.integers(1, 12)),
    st.tuples(st.just("cut_target"), st.integers(300, 900)),
    st.tuples(st.just("cover"), st.integers(0, 3)),
    st.tuples(st.just("lose_pages")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("restore")),
)


BEGINNINGS = st.one_of(
    st.just((0, 0, 0)),
    st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.integers(0, 400), st.integers(0, 5), st.integers(0, 400)),
)


@pytest.mark.timeout(600)  # 20 s on two cores that nothing else uses
@settings(max_examples=examples(100))
@given(begins=BEGINNINGS, old=st.booleans(), steps=st.lists(STEPS, max_size=25))
@example(begins=(0, 0, 0), old=False, steps=[("copy", 0, 1, 0), ("go_back", 1), ("copy", 1, 1, 0)])
@example(begins=(3392, 0, 0), old=True, steps=[("copy", 0, 5, 0)])
@example(
    begins=(40, 0, 0), old=False, steps=[("copy", 0, 4, 0), ("go_back", 30), ("copy", 0, 1, 0)]
)
def test_every_offset_is_found_under_its_newest_copy_and_every_copy_leads_back(
    begins: tuple[int, int, int], old: bool, steps: list[tuple[str | int, ...]]
) -> None:
    """Wherever the map begins, an answer skips no record (``offset_lookup`` 1, 2)."""
    play = Play(*begins, old=old)
    for name, *numbers in steps:
        if name == "many":
            for _ in range(int(numbers[0])):
                play.copy(1, 1, 0)
        elif name == "restore":
            play.commit()
            play.restore()
        else:
            getattr(play, str(name))(*numbers)
    play.check()


@settings(max_examples=examples(100))
@given(
    ahead=st.lists(st.integers(1, 5), max_size=6),
    mark=st.sampled_from([Mark.SOURCE_LOST, Mark.SOURCE_CUT, Mark.UNKNOWN]),
)
def test_a_mark_takes_its_place_behind_what_was_under_way(ahead: list[int], mark: Mark) -> None:
    at_once, later = PartitionMap(), PartitionMap()
    for maps in (at_once, later):
        maps.add(0, 2, 0)
    under_way = sum(ahead)
    noted = Segment(2 + under_way if mark is not Mark.SOURCE_CUT else 1, 3, 0, mark)
    later.note(noted, under_way)
    offset = 2
    for records in ahead:
        at_once.add(offset, records, offset)
        offset += records
    # One acknowledgement may hold records of both sides of the mark.
    later.add(2, under_way, 2) if under_way else None
    at_once.note(noted)
    for maps in (at_once, later):
        maps.add(offset + 3, 1, offset)
    assert at_once.take() == later.take()


OFFSETS = st.integers(0, (1 << 55) - 1)


@given(
    number=st.integers(0, (1 << 31) - 1),
    partition=st.integers(0, (1 << 31) - 1),
    topic=st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    covered=OFFSETS,
    spans=st.lists(
        st.tuples(OFFSETS, st.integers(0, 1 << 31), st.integers(0, 1 << 31), st.sampled_from(Mark)),
        max_size=PAGE_SEGMENTS,
    ),
)
def test_a_page_is_read_as_it_was_written(
    number: int, partition: int, topic: str, covered: int, spans: list[tuple[int, int, int, Mark]]
) -> None:
    segments: list[Segment] = []
    target = 0
    for source, records, hole, mark in spans:
        segments.append(Segment(source, records, target + hole, mark))
        target = segments[-1].target_end
    page = Page(number, OLD, NEW, covered, covered - 1, -1, 7, number, tuple(segments))
    assert decode_page(number, encode_page(page) + b"later versions add") == page
    key = encode_page_key(TopicPartition(topic, partition), number)
    assert decode_page_key(key) == (TopicPartition(topic, partition), number)


@given(key=st.none() | st.binary(), value=st.none() | st.binary())
def test_no_bytes_break_the_fold(key: bytes | None, value: bytes | None) -> None:
    index = MapIndex()
    for version in (b"", b"\x01"):
        index.take(Record(0, 0, key and version + key, None if value is None else version + value))
