"""What differs between a partition and its copy: records that one side has alone, and what kind of
difference each of them is.

Flow: ``Findings`` of one comparison, or of parts of it that were read apart -> ``join`` ->
``classify`` -> ``Comparison``. Findings travel as JSON; no record is in them, only hashes of its
parts.

Invariants, tests of the same names: 1 parts of a comparison, cut where the offset map has a record,
have the same differences as the whole; 2 a cut through a difference is no difference of its own:
what both parts have at the cut is matched again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Final, NamedTuple, Self, cast, final

MOST_PAIRS: Final = 4_000_000
"""Of records between two points that are searched for the longest common stretches; the time grows
with them."""


class DifferenceKind(StrEnum):
    """What is different."""

    MISSING = "missing"
    EXTRA = "extra"
    ALTERED = "altered"
    REORDERED = "reordered"


class Difference(NamedTuple):
    """One record that differs; ``fields`` of an altered one are those that do. -1: it is not on
    that side."""

    kind: DifferenceKind
    source_offset: int
    target_offset: int
    fields: tuple[str, ...] = ()


class Kept(NamedTuple):
    """What is kept of a record that is on one side alone: hashes of it and its parts; ``position``
    is the next offset of the other side."""

    offset: int
    hashed: int
    timestamp: int
    key: int | None
    value: int | None
    headers: int
    position: int


@final
@dataclass(slots=True)
class Region:
    """Records between two points where both sides are alike."""

    source: list[Kept] = field(default_factory=list[Kept])
    target: list[Kept] = field(default_factory=list[Kept])


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRules:
    """How a partition is compared.

    ``covered``: source offsets below it were copied, as the offset map knows; None without a map.
    ``expected``: where the map has a source offset on the target, -1 unknown. ``most`` differences
    are collected before it ends.
    """

    covered: int | None
    source_compacts: bool = False
    target_compacts: bool = False
    expected: Callable[[int], int] = lambda _offset: -1
    most: int = 10_000


@final
@dataclass(slots=True)
class Findings:
    """What a comparison has found so far.

    ``from_start`` and ``to_end``: no record matched before the first region, after the last one.
    ``behind``: the first source offset that is not copied yet, -1 for none. ``missing`` and
    ``extra``: records of a side that compacts on the other one, which does not explain them.
    """

    matched: int = 0
    _: KW_ONLY
    regions: list[Region] = field(default_factory=list[Region])
    from_start: bool = False
    to_end: bool = False
    complete: bool = True
    behind: int = -1
    missing: list[int] = field(default_factory=list[int])
    extra: list[int] = field(default_factory=list[int])

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> Self:
        """Read what ``to_json`` returned, after JSON."""
        rows = cast("Sequence[Mapping[str, Sequence[Sequence[int]]]]", document["regions"])
        regions = [
            Region(*([Kept(*it) for it in row[side]] for side in ("source", "target")))
            for row in rows
        ]
        return cls(**{**document, "regions": regions})  # type: ignore[arg-type] # the members are those of to_json


@final
@dataclass(slots=True)
class Comparison:
    """The outcome for one partition; members as of ``Findings``.

    ``tail``: the target has nothing after the copy of the record before this source offset, though
    this one was copied; -1: it has.
    """

    matched: int = 0
    _: KW_ONLY
    differences: list[Difference] = field(default_factory=list[Difference])
    complete: bool = True
    behind: int = -1
    tail: int = -1


def join(parts: Sequence[Findings]) -> Findings:
    """Return the findings of parts that follow each other as those of the whole."""
    whole = Findings()
    for part in parts:
        whole.matched += part.matched
        whole.complete = whole.complete and part.complete
        whole.behind = max(whole.behind, part.behind)
        whole.missing += part.missing
        whole.extra += part.extra
        regions, to_end = list(part.regions), part.to_end
        if regions and part.from_start and whole.to_end:
            around, left = _over_a_cut(whole, whole.regions.pop(), regions.pop(0))
            whole.regions += around
            to_end = to_end and (left or bool(regions))
        whole.regions += regions
        if part.matched or part.regions:
            whole.to_end = to_end
    return whole


def _over_a_cut(whole: Findings, before: Region, behind: Region) -> tuple[list[Region], bool]:
    """Return what lies around a cut without what both sides have there in the same order (2), and
    whether any of it is at the end."""
    source, target = before.source + behind.source, before.target + behind.target
    ours, theirs = [it.hashed for it in source], [it.hashed for it in target]
    moved = ours != theirs and sorted(ours) == sorted(theirs)
    if moved or len(source) * len(target) > MOST_PAIRS:
        return [Region(source, target)], True  # each that moved is named
    regions: list[Region] = []
    one, other, left = 0, 0, False
    for at, to, size in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        left = at > one or to > other
        if left:
            regions.append(Region(source[one:at], target[other:to]))
        whole.matched += size
        one, other = at + size, to + size
    return regions, left


def classify(findings: Findings, rules: CompareRules) -> Comparison:
    """Return the differences."""
    return _Classifier(findings, rules).run()


@final
class _Classifier:
    def __init__(self, findings: Findings, rules: CompareRules) -> None:
        self._found, self._rules = findings, rules
        self._differences: list[Difference] = []
        self._behind = findings.behind
        self._tail = -1

    def run(self) -> Comparison:
        findings = self._found
        moved = self._moved()
        for region in findings.regions:
            source = [it for it in region.source if it.offset not in moved[0]]
            target = [it for it in region.target if it.offset not in moved[1]]
            late: list[Kept] = []
            if region is findings.regions[-1] and findings.to_end:
                late = [it for it in source if it.offset >= (self._rules.covered or 0)]
                source = source[: len(source) - len(late)]
                if source and not region.target:
                    self._tail = source[0].offset
            late = self._pair(late, target, by_place=False)
            if late:
                self._behind = late[0].offset
            source = self._pair(source, target, by_place=True)
            self._report([it.offset for it in source], [it.offset for it in target])
        self._report(findings.missing, findings.extra)
        self._differences.sort(key=lambda it: (max(it.source_offset, it.target_offset), it.kind))
        return Comparison(
            findings.matched,
            differences=self._differences,
            complete=findings.complete,
            behind=self._behind,
            tail=self._tail,
        )

    def _pair(self, source: list[Kept], target: list[Kept], *, by_place: bool) -> list[Kept]:
        """Report altered records, and take them from ``target``; return the others of
        ``source``."""
        expected = self._rules.expected
        rules: list[tuple[_Mark, _Mark]] = [(mark, mark) for mark in _SAME_RECORD]
        rules.append((lambda it: expected(it.offset), lambda it: it.offset))
        for ours, theirs in rules:
            places: dict[object, list[Kept]] = {}
            for it in reversed(target):
                places.setdefault(theirs(it), []).append(it)
            left: list[Kept] = []
            paired: set[int] = set()
            for it in source:
                same = places.get(ours(it))
                if same and ours(it) is not None:
                    other = same.pop()
                    paired.add(other.offset)
                    self._differences.append(_altered(it, other))
                else:
                    left.append(it)
            source = left
            target[:] = [it for it in target if it.offset not in paired]
        if by_place and len(source) == len(target):
            self._differences += map(_altered, source, target)
            target.clear()
            return []
        return source

    def _report(self, missing: Sequence[int], extra: Sequence[int]) -> None:
        differences = self._differences
        differences += (Difference(DifferenceKind.MISSING, it, -1) for it in missing)
        differences += (Difference(DifferenceKind.EXTRA, -1, it) for it in extra)

    def _moved(self) -> tuple[set[int], set[int]]:
        """Report records that both sides have at different places; return their offsets."""
        places: dict[int, list[int]] = {}
        for region in self._found.regions:
            for kept in region.target:
                places.setdefault(kept.hashed, []).append(kept.offset)
        moved: tuple[set[int], set[int]] = (set(), set())
        for region in self._found.regions:
            for kept in region.source:
                if places.get(kept.hashed):
                    there = places[kept.hashed].pop(0)
                    moved[0].add(kept.offset)
                    moved[1].add(there)
                    self._differences.append(
                        Difference(DifferenceKind.REORDERED, kept.offset, there)
                    )
        return moved


_Mark = Callable[[Kept], object]

_SAME_RECORD: Final[tuple[_Mark, ...]] = (
    lambda it: None if it.key is None else (it.key, it.timestamp),
    lambda it: (it.key, it.value, it.headers),
    lambda it: (it.timestamp, it.value),
)
"""What makes a record on one side the altered form of one on the other."""


def _altered(one: Kept, other: Kept) -> Difference:
    names = ("key", "value", "headers", "timestamp")
    fields = tuple(name for name in names if getattr(one, name) != getattr(other, name))
    return Difference(DifferenceKind.ALTERED, one.offset, other.offset, fields)
