"""Compares the records of a source partition with those of its copy, and names each difference by
its offsets.

Flow: two ``LogSide`` -> records that are alike by their bytes are passed undecoded -> else one by
one -> where they part, the nearest point from which both continue alike -> what lies before it, on
either side, is a region of ``differences.Findings`` -> when ``_CALM`` records in a row were equal
after it, by bytes again.

Invariants, tests of the same names:

1. Sequences that are equal record by record give no difference, whatever their batches are.
2. Each record that is on one side alone is in a difference; a record that is on both sides in order
   is in none.
3. What compaction may have removed is no difference: a record whose log has a later one of its key,
   a tombstone whose log has no older one.
4. Source records after the last one that was copied are counted as not copied yet, and are no
   difference.
5. Of keys whose record one side lacks about ``OPEN_KEYS`` are in memory, and each log is read once
   for them, whatever number there are; of places where only such records differ nothing is kept.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from difflib import SequenceMatcher
from itertools import islice, takewhile
from typing import Final, final

from mm2py_jobs.verify.differences import (
    MOST_PAIRS,
    CompareRules,
    Comparison,
    Findings,
    Kept,
    Region,
    classify,
)
from mm2py_jobs.verify.digests import part_hash, record_hash
from mm2py_jobs.verify.log_entries import LogEntry, LogSide, fields_of, pass_alike, pass_equal
from mm2py_jobs.verify.open_keys import Keys, OpenKeys

WINDOWS: Final = (64, 512, 4096, 32_768)
"""How far both sides are searched for a point from which they continue alike."""

_RUN: Final = 8
"""So many records in a row have to be equal there: one alone may be a repeated value."""

_CALM: Final = 4_096
"""Records decoded one by one after a difference: to compare by bytes again, a batch that is begun
is decoded a second time."""

_END: Final = 2**63 - 1
"""As the next offset of a side that has no more."""

_NO_ENTRY: Final = LogEntry(_END, 0, b"")

_SAME_TRIED: Final = 16
"""Places of equal records in a window that are tried for each record."""


async def compare(
    source: LogSide,
    target: LogSide,
    rules: CompareRules,
    logs: tuple[Keys, Keys] | None = None,
) -> Comparison:
    """Read both sides to their ends, and return what differs.

    ``logs``, of source and target, are asked about keys that compaction may have removed; not
    needed where neither side compacts.

    Raises:
        SpillError: the local disk does not take these keys.
        Mm2pyError: a side cannot be read.
    """
    return classify(await find(source, target, rules, logs), rules)


async def find(
    source: LogSide,
    target: LogSide,
    rules: CompareRules,
    logs: tuple[Keys, Keys] | None = None,
) -> Findings:
    """Read both sides to their ends, and return what one has alone; arguments and errors as
    ``compare``."""
    ours, theirs = map(OpenKeys, logs or (None, None))
    with closing(ours), closing(theirs):
        return await _Comparer(source, target, rules, ours, theirs).run()


@final
class _Comparer:
    def __init__(
        self,
        source: LogSide,
        target: LogSide,
        rules: CompareRules,
        on_source: OpenKeys,
        on_target: OpenKeys,
    ) -> None:
        self._source, self._target, self._rules = source, target, rules
        self._found = Findings()
        self._on_source, self._on_target = on_source, on_target
        self._kept = 0
        self._matched_at = 0
        """How many had matched when the last region was found."""
        self._parted_at = 0
        """How many had when both sides differed last, compaction included."""

    async def run(self) -> Findings:
        source, target = self._source, self._target
        while self._kept <= self._rules.most:
            # While keys are looked for, records are decoded: one of these may be the later record
            # of a key.
            waits = self._on_target.await_records or self._on_source.await_records
            if not waits and (passed := await pass_alike(source, target)):
                self._found.matched += passed
                continue
            more = await source.ensure(1), await target.ensure(1)
            if not all(more):
                await self._rest()
                break
            self._pass_equal()
            if source.entries and target.entries:
                await self._part()
            elif not waits and self._found.matched - self._parted_at >= _CALM:
                source.put_back()
                target.put_back()
        else:
            self._found.complete = False
        findings, most = self._found, self._rules.most
        for keys, named in (
            (self._on_target, findings.missing),
            (self._on_source, findings.extra),
        ):
            lost = await keys.lost(most + 1)
            named.extend(lost[:most])
            findings.complete = findings.complete and len(lost) <= most
        findings.to_end = bool(findings.regions) and self._matched_at == findings.matched
        return findings

    def _pass_equal(self) -> None:
        ours, theirs = self._source.entries, self._target.entries
        stamped, count = self._target.broker_stamped, 0
        for one, other in zip(ours, theirs, strict=False):
            if one.body != other.body or (one.timestamp != other.timestamp and not stamped):
                break
            count += 1
        self._passed(islice(ours, count))
        pass_equal(self._source, self._target, count, same_stamps=not stamped)
        self._found.matched += count

    def _passed(self, entries: Iterable[LogEntry]) -> None:
        """Look for keys of records that one side lacks among these, which both have."""
        waiting = [it for it in (self._on_target, self._on_source) if it.await_records]
        if not waiting:
            return
        for entry in entries:
            key = part_hash(fields_of(entry.body).key)
            if key is not None:
                for it in waiting:
                    it.passed(key)

    async def _part(self) -> None:
        """Both sides differ here: find where they continue alike."""
        compacts = self._rules.source_compacts or self._rules.target_compacts
        if compacts and any(alone := self._by_the_map()):
            await self._differs(*alone)
            return
        run = 1 if compacts else _RUN
        point: tuple[int, int] | None = None
        ours: list[object] = []
        theirs: list[object] = []
        for window in WINDOWS:
            more = [await self._source.ensure(window), await self._target.ensure(window)]
            ours = [self._content(it) for it in islice(self._source.entries, window)]
            theirs = [self._content(it) for it in islice(self._target.entries, window)]
            point = resync_point(ours, theirs, run)
            if point is not None or not any(more):
                break
        at_source, at_target = point or (len(ours), len(theirs))
        await self._differs(at_source, at_target)

    def _by_the_map(self) -> tuple[int, int]:
        """Return how many decoded records one side has before the next of the other; compaction
        leaves holes of any size."""
        ours, theirs = self._source.entries, self._target.entries
        expected = self._rules.expected
        first, place = theirs[0].offset, expected(ours[0].offset)
        if 0 <= place < first:
            return sum(1 for _ in takewhile(lambda it: 0 <= expected(it.offset) < first, ours)), 0
        return 0, sum(1 for _ in takewhile(lambda it: it.offset < place, theirs))

    def _content(self, entry: LogEntry) -> object:
        return entry.body if self._target.broker_stamped else (entry.timestamp, entry.body)

    async def _rest(self) -> None:
        source, target = self._source, self._target
        covered = self._rules.covered
        while await target.ensure(1) and self._kept <= self._rules.most:
            await self._differs(0, len(target.entries))
        while await source.ensure(1) and self._kept <= self._rules.most:
            first = source.entries[0].offset
            if covered is None or first >= covered:
                self._found.behind = first
                return
            await self._differs(sum(entry.offset < covered for entry in source.entries), 0)

    async def _differs(self, from_source: int, from_target: int) -> None:
        ours, theirs = self._source.take(from_source), self._target.take(from_target)
        await self._source.ensure(1)
        await self._target.ensure(1)
        begin = 0, 0
        for one, other, size in self._common(ours, theirs):
            self._region(ours[begin[0] : one], theirs[begin[1] : other], ours[one:], theirs[other:])
            self._found.matched += size
            self._passed(ours[one : one + size])
            begin = one + size, other + size

    def _common(self, ours: list[LogEntry], theirs: list[LogEntry]) -> list[tuple[int, int, int]]:
        """Return the stretches that both have in the same order, and the ends."""
        ends = [(len(ours), len(theirs), 0)]
        if not ours or not theirs or len(ours) * len(theirs) > MOST_PAIRS:
            return ends
        contents = [self._content(it) for it in ours], [self._content(it) for it in theirs]
        if len(ours) == len(theirs) and set(contents[0]) == set(contents[1]):
            return ends  # the same records in another order: each that moved is named
        matcher = SequenceMatcher(None, *contents, autojunk=False)
        return [(block.a, block.b, block.size) for block in matcher.get_matching_blocks()]

    def _region(
        self,
        ours: list[LogEntry],
        theirs: list[LogEntry],
        next_ours: list[LogEntry],
        next_theirs: list[LogEntry],
    ) -> None:
        """Keep what is on one side alone; the next entries are those after it."""
        if not ours and not theirs:
            return
        at_source = next(iter(next_ours or self._source.entries), _NO_ENTRY).offset
        at_target = next(iter(next_theirs or self._target.entries), _NO_ENTRY).offset
        region = Region(
            [self._keep(it, at_target) for it in ours], [self._keep(it, at_source) for it in theirs]
        )
        self._excuse(region)
        findings = self._found
        self._parted_at = findings.matched
        if not region.source and not region.target:
            return  # compaction leaves millions of such places (5)
        if self._matched_at == findings.matched and findings.regions:
            findings.regions[-1].source += region.source
            findings.regions[-1].target += region.target
        else:
            findings.from_start = findings.from_start or not findings.matched
            findings.regions.append(region)
        self._matched_at = findings.matched
        self._kept += len(region.source) + len(region.target)

    def _keep(self, entry: LogEntry, position: int) -> Kept:
        key, value, headers = fields_of(entry.body)
        stamp = 0 if self._target.broker_stamped else entry.timestamp
        hashed = record_hash(stamp, entry.body)
        return Kept(
            entry.offset,
            hashed,
            stamp,
            part_hash(key),
            part_hash(value),
            record_hash(0, headers),
            position,
        )

    def _excuse(self, region: Region) -> None:
        """Set aside what compaction may have removed on the other side (3)."""
        rules = self._rules
        here = {it.offset for it in region.target}
        altered = {it.offset for it in region.source if rules.expected(it.offset) in here}
        targets = {rules.expected(it) for it in altered}
        if rules.target_compacts:
            region.source = _set_aside(region.source, altered, self._on_target)
        if rules.source_compacts:
            region.target = _set_aside(region.target, targets, self._on_source)


def _set_aside(kept: list[Kept], altered: set[int], absent: OpenKeys) -> list[Kept]:
    left: list[Kept] = []
    for it in kept:
        if it.key is None or it.offset in altered:
            left.append(it)
        else:
            absent.put(it.key, it.offset, it.position, is_tombstone=it.value is None)
    return left


def resync_point(
    ours: Sequence[object], theirs: Sequence[object], run: int
) -> tuple[int, int] | None:
    """Return the nearest places from which both continue alike for ``run`` records; None if there
    are none."""
    places: dict[object, list[int]] = {}
    for place, content in enumerate(theirs):
        places_of = places.setdefault(content, [])
        if len(places_of) < _SAME_TRIED:
            places_of.append(place)
    best: tuple[int, int] | None = None
    for at, content in enumerate(ours):
        if best is not None and at >= sum(best):
            break
        for place in places.get(content, ()):
            nearer = best is None or at + place < sum(best)
            count = min(run, len(ours) - at, len(theirs) - place)
            if nearer and ours[at : at + count] == theirs[place : place + count]:
                best = at, place
    return best
