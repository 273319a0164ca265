"""``start.positions``: where the copy of a partition begins if the flow has stored no offset;
boundaries as users write them.

Flow: ``orders=latest, clicks.*=24 hours ago, audit:0=offset:1500,
2026-01-31T00:00:00Z`` -> ``StartPositions`` -> a start position of ``mm2py.types``. The first rule
that matches a partition counts; one without a topic matches all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self, final

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.java_regex import JavaPattern
from mm2py.errors import ConfigError, UsageError
from mm2py.types import EARLIEST, LATEST, TopicPartition, start_at_offset, start_at_time

LATE_PARTITIONS: Final = "task.late.partitions"
"""Of a task config: those of its partitions that were found after the first start of the flow.
Published beside the commit of task configs where they are as Java's connector makes them."""

FIRST_ENDS: Final = "task.first.ends"
"""Of a task config: ``topic-partition:offset`` of those that waited for their copy when the flow
first started, the end of their logs then: what ``latest`` is for them. Published as those are."""

STREAMED_PARTITIONS: Final = "task.streamed.partitions"
"""Beside published task configs, in none of them: what lanes on Spark copied since a stream of the
flow first ran, which is a first start too."""

FIRST_START: Final = "task.first.start.ms"
"""Of a task config: when the flow first started with an age among its positions, in ms since the
epoch; published as those are."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """``--from`` or ``--to``: the start or end of the log (both None), a timestamp in ms, or an
    offset."""

    timestamp: int | None = None
    offset: int | None = None

    def placed(self, by_time: int, low: int, high: int, edge: int) -> int:
        """Return its offset in a log from ``low`` to ``high``; ``edge`` where it is the log's own
        end.

        ``by_time`` is what the log has at the timestamp; -1: no record is so late.
        """
        if self.offset is not None:
            return min(max(self.offset, low), high)
        if self.timestamp is not None:
            return min(max(by_time, low), high) if by_time >= 0 else high
        return edge


_AGO: Final = re.compile(r"(\d{1,9}) *(second|minute|hour|day|week)s? +ago", re.IGNORECASE)
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}


def age_ms(text: str) -> int:
    """Return how long ``24 hours ago`` is, in ms; -1: it is no age."""
    ago = _AGO.fullmatch(text)
    return -1 if ago is None else int(ago[1]) * _SECONDS[ago[2].lower()] * 1000


def parse_boundary(
    text: str, name: str, edge: str, *, clock: Clock = SYSTEM_CLOCK, since_ms: int = -1
) -> Boundary:
    """Read ``earliest`` (``now``), a timestamp in ms since the epoch or ISO 8601, ``N hours ago``,
    or ``offset:N``.

    An age is counted from ``since_ms``; -1: from now.

    Raises:
        UsageError: it is none of them.
    """
    if text == edge:
        return Boundary()
    number = text.removeprefix("offset:")
    # ``isdecimal`` alone takes digits of other scripts.
    if number.isascii() and number.isdecimal() and int(number) < 1 << 63:
        return Boundary(timestamp=int(text)) if number == text else Boundary(offset=int(number))
    if (age := age_ms(text)) >= 0:
        # An age is fixed at the first start: a task that restarts a week later must not begin a
        # week later.
        from_ms = clock.now_ms() if since_ms < 0 else since_ms
        return Boundary(timestamp=max(0, from_ms - age))
    try:
        moment = datetime.fromisoformat(text)
        # Without a zone it is UTC, on every worker: the local zone would make two workers begin at
        # different offsets.
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return Boundary(timestamp=int(moment.timestamp() * 1000))
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name} {text!r} is not understood",
            remedy=f"write {edge}, a timestamp (2026-01-31T00:00:00Z or ms since the epoch), 24 "
            "hours ago, or offset:N",
        ) from None


START_POSITIONS: Final = "start.positions"
_LATEST: Final = "latest"
_EARLIEST: Final = "earliest"


@dataclass(frozen=True, slots=True)
class _StartRule:
    pattern: JavaPattern | None
    partition: int | None
    position: int
    is_age: bool

    def matches(self, tp: TopicPartition) -> bool:
        if self.partition is not None and self.partition != tp.partition:
            return False
        return self.pattern is None or self.pattern.matches(tp.topic)


@final
class StartPositions:
    """The rules of one flow; ages are relative to ``since_ms``, or to the time of parsing."""

    def __init__(self, rules: Sequence[_StartRule]) -> None:
        self._rules = tuple(rules)

    @classmethod
    def parse(cls, items: Sequence[str], clock: Clock, since_ms: int = -1) -> Self:
        """Read the items of the property; ``ConfigError``: an item is no rule; does not name the
        property."""
        return cls([_rule(item, clock, since_ms) for item in items])

    @property
    def has_latest(self) -> bool:
        """Whether a rule starts partitions at the end of their log."""
        return any(rule.position == LATEST for rule in self._rules)

    @property
    def has_age(self) -> bool:
        """Whether a rule starts partitions at an age."""
        return any(rule.is_age for rule in self._rules)

    def of(self, tp: TopicPartition) -> int | None:
        return next((rule.position for rule in self._rules if rule.matches(tp)), None)


def first_start_ms(
    items: Sequence[str], published: Iterable[Mapping[str, str]], clock: Clock
) -> int:
    """Return what ages among the items are counted from: now where no published task config tells
    it, -1 without an age."""
    if not StartPositions.parse(items, clock).has_age:
        return -1
    # The earliest: a second worker may have published its own now before it read the first one's.
    told = {int(text) for it in published if (text := it.get(FIRST_START, "")).isdecimal()}
    return min(told, default=clock.now_ms())


def _rule(item: str, clock: Clock, since_ms: int) -> _StartRule:
    # From the right: a pattern may contain an equals sign, a position cannot.
    topic, sign, text = item.rpartition("=")
    topic, text = topic.strip(), text.strip()
    if sign and not topic:
        raise ConfigError(f"item {item!r} names no topic", remedy="write topic=position")
    # No topic has a colon in its name.
    name, colon, number = topic.partition(":")
    if colon and not (number.isascii() and number.isdecimal()):
        raise ConfigError(f"item {item!r} names no partition", remedy="write topic:0=position")
    pattern = JavaPattern(name) if sign else None
    position = _position(text, clock, since_ms)
    return _StartRule(pattern, int(number) if colon else None, position, bool(_AGO.fullmatch(text)))


def _position(text: str, clock: Clock, since_ms: int) -> int:
    if text == _LATEST:
        return LATEST
    try:
        boundary = parse_boundary(text, "position", _EARLIEST, clock=clock, since_ms=since_ms)
    except UsageError:
        raise ConfigError(
            f"position {text!r} is not understood",
            remedy="write earliest, latest, a timestamp (2026-01-31T00:00:00Z or ms since the "
            "epoch), 24 hours ago, or offset:N",
        ) from None
    if boundary.offset is not None:
        return start_at_offset(boundary.offset)
    return EARLIEST if boundary.timestamp is None else start_at_time(boundary.timestamp)
