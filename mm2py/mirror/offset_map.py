"""The exact offset map of one source partition: where each of its records is on the target.

Flow: acknowledged runs and losses, in the order of the target's log -> ``PartitionMap`` -> ``Page``
per 256 segments (``mm2py.mirror.offset_map_pages``) -> ``mm2py.mirror.offset_lookup``. No I/O.

Invariants, tests of the same names:

1. Every record that was added is found under its newest target offset, and every target offset of
   it leads back.
2. Target offsets only rise from segment to segment; source offsets fall where records were copied
   again or the source's log was cut.
3. A run that continues the one before it on both sides grows it, unless a position was set back
   between: a dense partition is one run.
4. A page that is full never changes, except when the target lost what it holds.
5. A mark (a loss, a cut, another incarnation) takes its place after the records that were under way
   when it was noticed, and not before the next record or write: what is acknowledged until then
   belongs to ``source_id`` as it is.
6. Only the oldest pages expire: no offset that they speak of is in either log any more, and all
   later pages speak of higher source offsets, so an offset below them all is known to be expired.
7. Where a copy begins again at a lower source offset, nothing after that counts as covered, also in
   the page that is written then, and what covers more grows from there.
8. The first segment is where the map begins: a copy that began with the source's log has it at
   source offset 0, one that began at a position there. What the logs held below is not known
   (``mm2py.mirror.offset_lookup``).
9. The map of another incarnation begins where the known copies of the one before end on the target:
   what a task that was killed had copied of it lies after that.
10. Each page is true without those behind it, as where a task is killed between the writes of two
   pages: it covers nothing that only a later one has, and names the producer id of what follows it.
11. What a task that is gone wrote reaches the topics late without effect. Its pages have a lower
    ``start`` than those of its successor. Its position names its topic (without ids: its epoch),
    which one that was set does not, and is lower than what the map covers.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from mm2py.mirror.offset_map_pages import (
    PAGE_SEGMENTS,
    Mark,
    Page,
    PageRef,
    Segment,
    next_start,
    span_of,
)
from mm2py.protocol.topics import NO_TOPIC_ID, is_another_topic
from mm2py.types import NO_PRODUCER_ID

_SLOW: Final = -2
"""As the next source offset: no run continues the last one, because a mark waits for its place."""

_BEGUN: Final = Page(0, NO_TOPIC_ID, NO_TOPIC_ID, 0, -1, -1, NO_PRODUCER_ID, -1, ())
"""Of a partition without any."""


class TargetLoss(NamedTuple):
    """What a target partition had acknowledged and lost; the source offsets are as far as they are
    known."""

    first_source: int
    last_source: int
    first_target: int
    last_target: int


@final
class PartitionMap:
    """The end of one partition's map, which grows; full pages leave with ``take``.

    Args:
        page: the newest page of the topic; None begins a map.
        older: the pages before it.
        token: random, of the task.
    """

    __slots__ = (
        "_covered", "_former_producer", "_next_source", "_next_target", "_number", "_older", "_pending", "_records",
        "_segments", "_source", "_target", "begins", "changed", "cut_below", "epoch", "former_end", "position",
        "producer_from", "producer_id", "source_id", "start", "target_id",
    )  # fmt: skip

    def __init__(
        self, page: Page | None = None, older: Sequence[PageRef] = (), token: int = 0
    ) -> None:
        self._older: list[PageRef] = list(older)
        page = page or _BEGUN
        self.source_id, self.target_id = page.source_id, page.target_id
        self._number, self._covered = page.number, page.covered
        self.start = next_start(page.start, token)
        self.position = page.position
        """Where the copy continues by the stored position; -1 for none."""
        self.epoch = page.epoch
        """Leader epoch of the record before ``covered``; -1 unknown."""
        self.producer_id: int = page.producer_id
        """What the copies are written with, as ``Page`` has it."""
        self.producer_from = page.producer_from
        """Target offset where it began to write."""
        self._former_producer = NO_PRODUCER_ID, -1
        """The same of the one that wrote before it, if since the start."""
        self.begins: int = page.position if page.only_begins else 0
        """Source offset where the copy begins, of an empty map: what the logs hold below is not
        known (8)."""
        self.former_end = -1
        """Target offset after the last known copy of the incarnation before; those of this one come
        after it. -1 for none."""
        # The run that grows; no records: none does.
        # The run is kept in five plain fields, not in a Segment: ``add`` is called per batch and
        # grows it in place.
        self._source: int = 0
        self._records: int = 0
        self._target: int = 0
        self._next_source: int = _SLOW
        self._next_target: int = -1
        self._segments: list[Segment] = []
        self._pending: deque[tuple[int, Segment | bytes]] = deque()
        self.changed: bool = False
        """Whether ``take`` would return anything."""
        if page.segments:
            # Where only losses of the source precede the first copy, ``anchor`` fixes the target
            # offset when the log's end is known; until then it is unknown, not 0.
            if not _precedes_copies(page):
                self._next_target = page.segments[-1].target_end
            self._reopen(list(page.segments))
        self.cut_below = -1
        """Target offset from which on earlier pages are lost too: ``rebase`` takes the page that
        has it."""

    # ---- what is known

    @property
    def is_empty(self) -> bool:
        """Nothing was copied yet, and nothing lost."""
        return not (self._records or self._segments)

    @property
    def has_content(self) -> bool:
        """Whether a page would have anything: copies, losses, or where the copy begins."""
        return not self.is_empty or self._covered > 0 or self.begins > 0

    def is_set(self, stored: int, topic_id: bytes = NO_TOPIC_ID, epoch: int = -1) -> bool:
        """Whether another program or an operator set the stored position (-1: none), given the
        topic id and the leader epoch that are stored with it: the map was not written with it."""
        # (11) A task wrote it, after it had written a map that covers it.
        is_tied = topic_id != NO_TOPIC_ID or epoch >= 0
        is_ours = is_tied and topic_id == self.source_id and not 0 <= self.epoch < epoch
        if is_ours and stored < self.covered:
            return False
        # Two values are our own: the position of the map's last write, and what the map covers,
        # which a commit may have stored after that write and before a crash.
        is_known = self.covered or not self.is_empty
        return bool(is_known) and stored not in (self.position, self.covered)

    def resume(self, stored: int, topic_id: bytes = NO_TOPIC_ID, epoch: int = -1) -> int:
        """Return where the copy continues, given the stored position (-1: none): after all that is
        covered, unless it was set; as ``is_set``."""
        if not self.covered or self.is_set(stored, topic_id, epoch):
            return stored
        return max(stored, self.covered)

    def is_of_another(self, target_id: bytes) -> bool:
        """Whether the copies are in a target topic of another id than this one, as far as both are
        known."""
        return is_another_topic(self.target_id, target_id)

    @property
    def target_end(self) -> int:
        """The target offset after the newest copy; -1 before the first one."""
        return self._next_target

    @property
    def covered(self) -> int:
        """Everything below this source offset is copied or needs no copy."""
        # The growing run is not folded into ``_covered``, which would be one more store per batch.
        end = self._source + self._records if self._records else 0
        return max(self._covered, end)

    @property
    def ends_with_copy(self) -> bool:
        """Whether nothing was noted after the newest copy."""
        last = self._segments[-1] if self._segments else None
        is_copy = last is not None and last.mark is Mark.COPIED and not last.is_anchor
        return not self._pending and (bool(self._records) or is_copy)

    def lost_from(self, position: int) -> list[Segment]:
        """Return what the source had lost from an offset on, as far as the open page has it."""
        return [
            it for it in self._segments if it.mark is Mark.SOURCE_LOST and it.source_end > position
        ]

    @property
    def target_loss(self) -> tuple[int, int] | None:
        """The first and last source offset of what the target lost last, as far as the open page
        has it."""
        marks = [it for it in self._segments if it.mark is Mark.TARGET_LOST]
        newest = [it for it in marks if it.target == marks[-1].target]
        if not newest:
            return None
        return min(it.source for it in newest), max(it.source_end for it in newest) - 1

    @property
    def skipped(self) -> tuple[int, int] | None:
        """The first and last source offset of what was passed last, where the next copy followed
        the one before it on the target, as far as the open page has it: no program copied them."""
        grows = Segment(self._source, self._records, self._target)
        behind = grows if self._records else None
        for it in reversed(self._segments):
            if it.mark is Mark.UNKNOWN:
                is_next = behind is not None and behind.target == it.target
                return (it.source, it.source_end - 1) if is_next else None
            if it.mark is Mark.COPIED:
                behind = it
        return None

    @property
    def passed_from(self) -> int:
        """The target offset after the newest copy where source offsets were passed after it, -1
        where none were."""
        segments = self._segments[self._marks_from() :]
        is_passed = any(it.mark is Mark.UNKNOWN for it in segments)
        return self._next_target if is_passed and not self._records else -1

    def _marks_from(self) -> int:
        """Return where the marks begin that were noted after the newest copy or anchor."""
        at = len(self._segments)
        while at and self._segments[at - 1].mark is not Mark.COPIED:
            at -= 1
        return at

    @property
    def older(self) -> Sequence[PageRef]:
        """The pages before the one that grows, which may expire."""
        return self._older

    def expired(self, source_start: int, target_start: int) -> list[int]:
        """Return the pages that nothing can ask for any more, oldest first, given where both logs
        begin (6)."""
        # The segments that were lost are still in older pages; which pages expire is known after
        # ``rebase``.
        if self.cut_below >= 0:
            return []
        lowest = self._source if self._records else -1
        for segment in self._segments:
            # A cut has no offsets of its own (Mark), so it is not evidence that a lower offset is
            # still asked for.
            if segment.mark is not Mark.SOURCE_CUT and not 0 <= lowest <= segment.source:
                lowest = segment.source
        found: list[int] = []
        for ref in reversed(self._older):
            below = source_start if lowest < 0 else min(source_start, lowest)
            if ref.source_end <= below and ref.target_end <= target_start:
                found.append(ref.number)
            # Only an unbroken sequence from the oldest page on may go (6): an expired page between
            # two others keeps its place.
            else:
                found.clear()
            if ref.source_first >= 0 and not 0 <= lowest <= ref.source_first:
                lowest = ref.source_first
        found.reverse()
        return found

    def forget(self, number: int) -> None:
        """Older pages up to this one are not in the topic any more; none of them, where the map
        began anew meanwhile."""
        # Pruning awaits the broker: the map may have started over at page 0 meanwhile, and the
        # numbers then name other pages.
        if number < self._number:
            self._older = [ref for ref in self._older if ref.number > number]

    # ---- what happens

    def add(self, source: int, records: int, target: int) -> TargetLoss | None:
        """Note records that were acknowledged; return what the target lost before it took them. Hot
        path."""
        self.changed = True
        if source == self._next_source and target == self._next_target:
            self._records += records
            self._next_source = source + records
            self._next_target = target + records
            return None
        return self._begin(source, records, target)

    def passed(self, records: int, end: int) -> None:
        """Records that were under way have no copy, up to source offset ``end``: marks that wait
        for them (5) do no longer."""
        # Records without a copy were counted as under way when the mark was noted: taken off here,
        # or the mark would wait for records that never arrive.
        while self._pending and self._pending[0][0] < records:
            left, segment = self._pending.popleft()
            records -= left
            self._place(segment)
        if self._pending:
            left, segment = self._pending[0]
            self._pending[0] = (left - records, segment)
        self._cover(end)

    def anchor(self, source: int, target: int) -> None:
        """The copy begins: the first record from a source offset on lands at a target offset or
        after it (8)."""
        # A copy that continues exactly at the run's end on both sides is the same run (3): no
        # anchor may end it.
        if self._records and (source, target) == (self._source + self._records, self._next_target):
            return
        self._close()
        # A start that copied nothing left its anchor; two in a row would make a beginning that no
        # record follows.
        if self._segments and self._segments[-1].is_anchor:
            self._segments.pop()
        self._segments.append(Segment(source, 0, target))
        self._next_target = target
        self.changed = True

    def follow(self, target: int) -> None:
        """No record lies between the newest copy and a target offset: what was noted there is
        followed by the copy from that offset on."""
        for at in range(self._marks_from(), len(self._segments)):
            self._segments[at] = self._segments[at]._replace(target=target)

    def writes_to(self, target_id: bytes, producer_id: int, log_end: int) -> None:
        """Name the target topic's incarnation, and the producer id of the copies after the end of
        its log."""
        if producer_id != self.producer_id:
            if log_end != self.producer_from:  # else it wrote nothing
                self._former_producer = self.producer_id, self.producer_from
            self.producer_id, self.producer_from = producer_id, log_end
            self.changed = True
        if target_id != self.target_id:
            self.target_id = target_id
            self.changed = True

    def follows(self, stored: int, topic_id: bytes) -> bool:
        """Whether it has copies of an incarnation after that of the stored position: the next
        position was not stored any more."""
        # A crash between the write of the map and that of the position leaves the map one
        # incarnation ahead; the stored position then belongs to the topic before.
        is_ahead = self.covered > 0 and stored == self.position
        return is_ahead and is_another_topic(topic_id, self.source_id)

    def begin_at(self, position: int) -> None:
        """The copy begins at a position of which the map, which is empty, knows nothing (8)."""
        # Written before there is any copy: a flow the other way asks what this one passes. What was
        # covered before a position was set stays until then: less would be another topic's map.
        self.changed = self.changed or (position != self.begins and not self._covered)
        self.begins, self._covered = position, 0

    def begin_after(self, position: int) -> None:
        """The copy begins at a position that no stored one led to, after what was copied before."""
        end = max((it.source_end for it in self._segments if it.mark is Mark.COPIED), default=0)
        first = max(end, self.covered)
        if first < position:
            self.note(Segment(first, position - first, 0, Mark.UNKNOWN))

    def cover(self, position: int) -> None:
        """Everything below this source offset is copied or needs no copy."""
        self._settle()
        self._cover(position)

    def _cover(self, position: int) -> None:
        # An empty map that begins at a position knows nothing below it (8): covering that would
        # turn unknown offsets into copied ones.
        if position > self._covered and not (self.is_empty and self.begins):
            self.changed = self.changed or position > self.covered
            self._covered = position

    def go_back(self, position: int) -> None:
        """The copy begins again at a source offset that was covered (7)."""
        # Drained and reopened rather than cut: what was copied below stays in the map and can still
        # be looked up, newest copy first (1).
        segments = self._drain()
        self._covered, self.epoch = max(position, 0), -1
        self._reopen(segments)
        self.changed = True

    def note(self, segment: Segment | bytes, under_way: int = 0) -> None:
        """Put a mark after the next ``under_way`` records; a topic id begins the map of that
        incarnation."""
        # Counts in the queue are relative to the mark before it, so that each acknowledgement only
        # has to decrement the first.
        before = sum(left for left, _ in self._pending)
        self._pending.append((max(0, under_way - before), segment))
        # Leaves the fast path of ``add`` until the mark is placed: the run may not grow across it
        # (5).
        self._next_source = _SLOW
        self._settle()

    def identify(self, source_id: bytes) -> None:
        """Name the incarnation of the source topic; another one than before begins the map anew."""
        self._settle()
        # Zeros are what brokers before KIP-516 (2.8) answer: an unknown id proves no other
        # incarnation.
        if source_id == self.source_id or source_id == NO_TOPIC_ID:
            return
        # The first id of a map that was kept without one names it; only a second, different one is
        # a topic that was created again.
        if self.source_id != NO_TOPIC_ID and (self.covered or not self.is_empty):
            self._restart()
            self.changed = True
        self.source_id = source_id
        self.changed = self.changed or not self.is_empty

    def lose_target(self, from_target: int) -> TargetLoss | None:
        """Cut the map where the target's log ends now; return what was after it."""
        if self.is_empty or from_target >= self._next_target:
            return None
        self._close()
        end, first, last = self._next_target, -1, -1
        segments = self._segments
        # The loss reaches below the open page, and this class does no I/O: the caller reads that
        # page and calls ``rebase``.
        if self._number and from_target < segments[0].target:
            self.cut_below = from_target if self.cut_below < 0 else min(from_target, self.cut_below)
        behind: list[Segment] = []
        while segments and segments[-1].target_end > from_target:
            behind.append(segments.pop())
        for source, records, target, mark in reversed(behind):
            # Marks survive the loss: that the source lost a range stays true wherever the target's
            # log ends.
            if mark is not Mark.COPIED or not records:
                segments.append(Segment(source, records, from_target, mark))
                continue
            kept = max(0, from_target - target)
            if kept:
                segments.append(Segment(source, kept, target))
            if kept == records:
                continue
            first = source + kept if first < 0 else min(first, source + kept)
            last = max(last, source + records - 1)
            _append_lost(segments, source + kept, source + records, from_target)
        self._next_target = from_target
        self.target_id = NO_TOPIC_ID  # perhaps the topic was created again
        self.changed = True
        if all(segment.is_anchor for segment in segments) and not self._number:
            return None  # nothing was copied yet
        return TargetLoss(first, last, from_target, end - 1)

    def rebase(self, page: Page | None) -> TargetLoss | None:
        """Continue in the last earlier page that begins below ``cut_below``, or else in the first
        one; None: it is gone."""
        # ``lose_target`` is run again, now within the earlier page; segments of the newer page are
        # put behind it afterwards.
        at, self.cut_below = self.cut_below, -1
        behind = self._drain()
        self._number = page.number if page is not None else 0
        self._older = [ref for ref in self._older if ref.number < self._number]
        self._segments = list(page.segments) if page is not None else []
        self._next_target = self._segments[-1].target_end if self._segments else -1
        target_id = self.target_id
        loss = self.lose_target(at)
        self.target_id = target_id  # known since
        self.cut_below = -1  # pages before this one end below it
        if loss is not None and loss.first_source >= 0:
            # The pages between were lost as a whole.
            last = loss.last_source
            if behind and behind[0].mark is Mark.TARGET_LOST:
                last = max(last, behind[0].source - 1)
            lost = self._segments[-1]
            self._segments[-1] = lost._replace(records=last - lost.source + 1)
            loss = loss._replace(last_source=last)
        self._segments += behind
        if behind:
            self._next_target = behind[-1].target_end
        self.changed = True
        return loss

    def take(self) -> list[Page]:
        """Return the pages that changed since the last call, oldest first; not while ``cut_below``
        is set."""
        if not self.changed:
            return []
        self._settle()
        self.changed = False
        segments = self._drain()
        pages: list[Page] = []
        while True:
            part, segments = segments[:PAGE_SEGMENTS], segments[PAGE_SEGMENTS:]
            pages.append(self._page(part, segments))
            if not segments:
                break
            self._older.append(PageRef(self._number, -1, *span_of(pages[-1].segments)))
            self._number += 1
        self._reopen(list(pages[-1].segments))
        return pages

    def lose_pages(self) -> None:
        """The topic of the map was deleted: begin it anew with the open page; what earlier ones had
        is unknown."""
        if self.is_empty:
            return
        self._number, self._older = 0, []
        self.changed = True

    def again(self) -> None:
        """What was taken was not written: the open page is changed still."""
        self.changed = True

    # ---- inside

    def _page(self, segments: list[Segment], behind: list[Segment]) -> Page:
        """Return the page of some segments, with those that are left for later ones (10)."""
        covered, epoch = self._covered, self.epoch
        producer = self.producer_id, self.producer_from
        # What the target lost is covered all the same.
        follows = next((it for it in behind if it.mark is not Mark.TARGET_LOST), None)
        if follows is not None:
            covered, epoch = min(covered, follows.source), -1
            if follows.target < self.producer_from:
                producer = self._former_producer
        position = self.position if segments or not self.begins else self.begins
        ids, start = (self.source_id, self.target_id), self.start
        return Page(
            self._number, *ids, covered, position, epoch, *producer, tuple(segments), start=start
        )

    def _begin(self, source: int, records: int, target: int) -> TargetLoss | None:
        """Begin a run, after what is due before it."""
        # An acknowledged offset below the map's end proves that the target lost its tail (unclean
        # leader election) or that the topic was created again: no log gives one offset twice.
        loss = self.lose_target(target) if target >= 0 else None
        while self._pending and self._pending[0][0] < records:
            # A batch may span the place of a mark: it is split there.
            left, segment = self._pending.popleft()
            if left:
                self._run(source, left, target)
                source, records = source + left, records - left
                target = target + left if target >= 0 else target
            self._place(segment)
        if self._pending:
            left, segment = self._pending[0]
            self._pending[0] = (left - records, segment)
        self._run(source, records, target)
        return loss

    def _run(self, source: int, records: int, target: int) -> None:
        grows = self._records and source == self._source + self._records
        if grows and target == self._next_target:
            self._records += records
        elif target < 0:
            # The broker did not name the offset.
            # Base offset -1: a duplicate whose metadata the broker has forgotten
            # (DUPLICATE_SEQUENCE_NUMBER). The records are there, their offsets are not known.
            self._close()
            self._segments.append(Segment(source, records, max(self._next_target, 0), Mark.UNKNOWN))
            self._covered = max(self._covered, source + records)
        else:
            self._close()
            anchor = self._segments[-1] if self._segments else None
            # The first anchor stays as the beginning of the map (8) where the first record lies
            # above it; any other only held the place until its first record arrived.
            is_beginning = not self._number and len(self._segments) == 1
            if (
                anchor is not None
                and anchor.is_anchor
                and (anchor.source >= source or not is_beginning)
            ):
                self._segments.pop()
            self._source, self._records, self._target = source, records, target
        if target >= 0:
            self._next_target = target + records
        self._next_source = source + records if self._records and not self._pending else _SLOW

    def _settle(self) -> None:
        """Place the marks that wait for no record any more: not before the last one of them was
        acknowledged in its own topic."""
        while self._pending and not self._pending[0][0]:
            self._place(self._pending.popleft()[1])

    def _place(self, segment: Segment | bytes) -> None:
        self.changed = True
        if isinstance(segment, bytes):
            self._restart()
            # The new incarnation's copies follow those of the old one in the same target log (9).
            self.source_id = segment
            if self.former_end >= 0:
                self.anchor(0, self.former_end)
            return
        source, records, _, mark = segment
        if self.is_empty and mark is not Mark.SOURCE_LOST:
            # An empty map has no copies that a cut or an unknown range could be about; only the
            # covered offset goes back.
            self._covered = min(self._covered, source)
            return  # nothing was copied that it could concern
        self._close()
        self._segments.append(Segment(source, records, max(self._next_target, 0), mark))
        if mark is Mark.SOURCE_CUT:
            self._covered = min(self._covered, source)
        elif mark is Mark.UNKNOWN:
            self._covered = max(self._covered, source + records)

    def _restart(self) -> None:
        if self._next_target >= 0:
            self.former_end = self._next_target
        self._records = self._covered = self._number = self.begins = 0
        self.epoch = -1
        self._segments, self._older = [], []
        self._next_source, self._next_target, self.cut_below = _SLOW, -1, -1
        self.source_id = NO_TOPIC_ID

    def _close(self) -> None:
        """End the run that grows."""
        if self._records:
            self._segments.append(Segment(self._source, self._records, self._target))
            self._covered = max(self._covered, self._source + self._records)
            self._records = 0
            self._next_source = _SLOW

    def _drain(self) -> list[Segment]:
        self._close()
        segments, self._segments = self._segments, []
        return segments

    def _reopen(self, segments: list[Segment]) -> None:
        """Continue with these; the last run may grow, unless the copy began again below its end
        (7)."""
        last = segments[-1] if segments else None
        if (
            last is not None
            and last.mark is Mark.COPIED
            and not last.is_anchor
            # Beyond ``_covered`` the copy began again below the run's end (7): growing that run
            # would claim the offsets between as copied.
            and last.source_end <= self._covered
        ):
            self._source, self._records, self._target, _ = segments.pop()
            if not self._pending:
                self._next_source = self._source + self._records
        self._segments = segments


def _precedes_copies(page: Page) -> bool:
    """Whether there is nothing but what the source had lost before the first copy: where that lands
    is not known."""
    # A later page has at least one copy before it, even if all of its own segments are losses.
    return not page.number and all(
        segment.mark is Mark.SOURCE_LOST and not segment.target for segment in page.segments
    )


def _append_lost(segments: list[Segment], first: int, end: int, target: int) -> None:
    """Add a stretch that the target lost; what lies between it and the one before it had no
    record."""
    # Joined, because a loss that covers many short runs would otherwise become as many segments.
    if segments and segments[-1].mark is Mark.TARGET_LOST and segments[-1].source_end <= first:
        first = segments.pop().source
    segments.append(Segment(first, end - first, target, Mark.TARGET_LOST))
