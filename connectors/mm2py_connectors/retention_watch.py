"""When the source deletes what is not copied yet: by age and by size, for the partitions of one
task that are behind.

Flow: what the task sees of a partition each ``CHECK_S`` -> ``Course`` -> ``Forecast`` -> the
context. Nothing is asked while nothing is behind; then configs and sizes of the topics that are,
and where a copy stands still, how old its next record is.

A broker deletes whole segments: by age when the newest record of one is older than
``retention.ms``, by size when what is left has ``retention.bytes`` (Kafka's
UnifiedLog.deleteOldSegments). So a record is deleted at the forecast's time or later. Tiered
storage: the two limits are those of the whole log. A topic that is only compacted loses no record
by either.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple, final

from mm2py.api.context import TaskContext
from mm2py.clock import look_each
from mm2py.errors import FatalServerError, Mm2pyError, RetriableServerError, ServerError
from mm2py.observability.logging import some_of
from mm2py.observability.metrics import UNKNOWN, Forecast
from mm2py.observability.quantities import duration_text, size_text
from mm2py.protocol.configs import ConfigEntry
from mm2py.types import EARLIEST, TopicPartition
from mm2py_connectors.clients import AdminSession, MirrorAdmin

log = logging.getLogger(__name__)

CHECK_S: Final = 10.0
WINDOW_S: Final = 300.0
"""Rates are a mean over at most so long."""
LIMITS_S: Final = 120.0
"""How long configs and sizes of a topic are taken as they were."""
LEAST_CHANGE: Final = 0.05
"""A lag that grows by less than this part of what passes or is written seems to keep up."""
LEAST_CHANGE_S: Final = 5.0
AHEAD_MS: Final = 5_000
"""A clock that is further ahead is named."""
SOON_S: Final = 3600.0
"""A loss that is nearer makes the flow DEGRADED."""
LONGEST_TRANSACTION_S: Final = 900.0
"""``transaction.max.timeout.ms``: for so long a source may rightly give nothing to readers of
committed records."""
UNACKNOWLEDGED_S: Final = 120.0
"""``delivery.timeout.ms``: for longer no record waits for its acknowledgement by right, whether or
not more is written."""
NOTED_S: Final = 86_400.0
"""A loss that is nearer is reported."""
_ROUNDS: Final = 8
"""Of the search for a record's age: to 1/256 of ``retention.ms``."""
_MOST_NAMED: Final = 3
_MOST_DATED: Final = 500
"""Partitions whose age is searched in one look: each round is a request to each broker."""
_FARTHEST_MS: Final = 365 * 86_400_000
_STALLED_LOOKS: Final = 3
_POLICY: Final = "cleanup.policy"
_AGE: Final = "retention.ms"
_SIZE: Final = "retention.bytes"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a topic's retention deletes: ``age_ms`` and ``size_bytes`` of a partition; None is no
    limit."""

    age_ms: int | None
    size_bytes: int | None

    @classmethod
    def of(cls, entries: Iterable[ConfigEntry]) -> "Limits":
        age_ms = size_bytes = None
        for it in entries:
            # `compact` alone deletes nothing for its age or size.
            if it.name == _POLICY and "delete" not in (it.value or ""):
                return cls(None, None)
            # -1 is no limit, and no ``isdigit``.
            limit = int(it.value) if it.value and it.value.isdigit() else None
            if it.name == _AGE:
                age_ms = limit
            elif it.name == _SIZE:
                size_bytes = limit
        return cls(age_ms, size_bytes)


_NONE: Final = Limits(None, None)


class Sight(NamedTuple):
    """One look at a partition: the next offset to copy, the log's end, and when the next record was
    written (ms, -1 unknown). A tuple: thousands are made each look."""

    at_ms: int
    position: int
    end: int
    written_ms: int
    is_searched: bool = False
    """Whether ``written_ms`` was searched for: up to a part of the limit before its time."""

    @property
    def waiting(self) -> int:
        return max(0, self.end - self.position)


@final
class Course:
    """How one partition went on in the last minutes, since it was seen behind."""

    def __init__(self) -> None:
        self._sights: deque[Sight] = deque()
        self._dated = -1
        """The position whose record's age was asked for."""
        self.searched = 0
        """How often the age of a record was searched for."""
        self.since_ms = 0
        """When it came to its position."""

    @property
    def last(self) -> Sight:
        return self._sights[-1]

    @property
    def stands(self) -> bool:
        """Whether nothing was copied since the look before."""
        return len(self._sights) > 1 and self._sights[-2].position == self.last.position

    @property
    def is_known(self) -> bool:
        """Whether it was seen behind before: what arrives meanwhile is none."""
        return len(self._sights) > 1

    @property
    def is_stalled(self) -> bool:
        """Whether nothing was copied for two looks, though more was written."""
        if len(self._sights) < _STALLED_LOOKS:
            return False
        before = self._sights[-_STALLED_LOOKS]
        return before.position == self.last.position and before.end < self.last.end

    @property
    def wants_date(self) -> bool:
        """Whether it waits at a record of unknown age: the newest copied one may be much older."""
        return self.stands and self._dated != self.last.position

    def add(self, sight: Sight) -> None:
        """Take over a look; those that are too old are forgotten, and what is known of the next
        record's age is kept."""
        if self._sights and self.last.position == sight.position:
            last = self.last
            sight = sight._replace(written_ms=last.written_ms, is_searched=last.is_searched)
        else:
            self.since_ms = sight.at_ms
        self._sights.append(sight)
        while sight.at_ms - self._sights[0].at_ms > WINDOW_S * 1000:
            self._sights.popleft()

    def date(self, written_ms: int) -> None:
        """Note when the record was written that is the next to be copied."""
        self._dated = position = self.last.position
        for index, it in enumerate(self._sights):
            if it.position == position:
                self._sights[index] = it._replace(written_ms=written_ms, is_searched=True)

    def forecast(self, limits: Limits, record_bytes: float, ahead_ms: int = 0) -> Forecast | None:
        """Return when the first record is lost at the present rates, None where it is not in sight.

        ``record_bytes``: mean size of one offset in the source's log, -1 where it is not known.
        ``ahead_ms``: by how much the clock that retention goes by is ahead of that of our looks.
        """
        now = self._sights[-1]
        ways = [
            (in_s, name, limit)
            for in_s, name, limit in (
                (self._by_age(limits.age_ms, ahead_ms), _AGE, limits.age_ms),
                (self._by_size(limits.size_bytes, record_bytes), _SIZE, limits.size_bytes),
            )
            if in_s is not None and limit is not None
        ]
        if not ways:
            return None
        in_s, name, limit = min(ways)
        if in_s * 1000 > _FARTHEST_MS:
            return None
        size = round(now.waiting * record_bytes) if record_bytes >= 0 else UNKNOWN
        return Forecast(
            by=name,
            limit=limit,
            at_ms=now.at_ms + round(in_s * 1000),
            records=now.waiting,
            size_bytes=size,
        )

    def _by_age(self, limit_ms: int | None, ahead_ms: int) -> float | None:
        """Return in how many seconds the next record is as old as the limit."""
        now = self._sights[-1]
        if limit_ms is None or now.written_ms == UNKNOWN:
            return None
        age_ms = now.at_ms + ahead_ms - now.written_ms
        # A time that was searched for is compared with itself alone.
        alike = (
            it
            for it in self._sights
            if it.position == now.position or not (it.is_searched or now.is_searched)
        )
        first = next(it for it in alike if it.written_ms != UNKNOWN)
        took_s = (now.at_ms - first.at_ms) / 1000
        grew_s = took_s - (now.written_ms - first.written_ms) / 1000
        is_near = age_ms * 2 > limit_ms
        least = 0.0 if is_near else max(LEAST_CHANGE_S, LEAST_CHANGE * took_s)
        return _reach((limit_ms - age_ms) / 1000, grew_s, took_s, least)

    def _by_size(self, limit: int | None, record_bytes: float) -> float | None:
        """Return in how many seconds as much waits as the log may have."""
        if limit is None or record_bytes <= 0:
            return None
        first, now = self._sights[0], self._sights[-1]
        took_s = (now.at_ms - first.at_ms) / 1000
        is_near = now.waiting * record_bytes * 2 > limit
        least = 0.0 if is_near else LEAST_CHANGE * (now.end - first.end)
        grew = now.waiting - first.waiting
        return _reach(limit / record_bytes - now.waiting, grew, took_s, least)


def _reach(left: float, grew: float, took_s: float, least: float) -> float | None:
    """Return in how many seconds nothing is left, at the rate of what was seen."""
    if left <= 0:
        # What is older than the limit may go at any time, unless the copy gains on it.
        return 0.0 if grew >= 0 else None
    return None if grew <= least or took_s <= 0 else left * took_s / grew


@final
class AheadClock:
    """By how much the source's clock is ahead for certain: brokers delete that much earlier."""

    def __init__(self) -> None:
        self.ms = 0
        self._newest: Mapping[TopicPartition, int] = {}
        self.wants_more = False
        """Whether one look is known: only what rose since is of a clock that runs so now."""

    def look(self, newest: Mapping[TopicPartition, int], now_ms: int) -> None:
        """Take over the newest stamps of commits: one that a broker gave when its clock was wrong
        stays, and does not rise."""
        risen = [at for tp, at in newest.items() if at > self._newest.get(tp, inf)]
        self.ms = max(0, max(risen, default=0) - now_ms)
        self.wants_more = not self._newest and bool(newest)
        self._newest = newest

    def forget(self) -> None:
        """A question failed: what was known may be so no more."""
        self.ms, self._newest, self.wants_more = 0, {}, False


# -- one task --------------------------------------------------------------------------------------

Progress = Callable[[TopicPartition], tuple[int, int, int] | None]
"""Next offset to copy, the log's end and the newest copied timestamp (ms, -1 unknown); None while
that is not known."""


@final
class RetentionWatch:
    """Forecasts of one task's partitions; a partition that keeps up has none."""

    def __init__(
        self,
        open_admin: Callable[[], AdminSession],
        progress: Progress,
        why_stalled: Callable[[TopicPartition], tuple[str, bool]],
        context: TaskContext,
    ) -> None:
        self._open_admin = open_admin
        self._progress = progress
        self._why_stalled = why_stalled
        self._context = context
        self._session: AdminSession | None = None
        self._courses: dict[TopicPartition, Course] = {}
        self._limits: dict[str, Limits] = {}
        self._record_bytes: dict[TopicPartition, float] = {}
        self._asked_at: dict[str, float] = {}
        """When a topic's limits were asked for; those of before count until the next answer."""
        self._ahead = AheadClock()
        self._refusal = ""
        """Why the last look learned nothing."""
        self._refused: dict[str, str] = {}
        """By topic: why its limits or sizes may not be read."""

    async def run(self, partitions: Callable[[], Collection[TopicPartition]]) -> None:
        """Look each ``CHECK_S`` until cancelled, and close the connection then, if any."""
        cannot = "retention of what is behind cannot be watched"
        try:
            await look_each(
                self._context.clock, CHECK_S, lambda: self._check(partitions()), log, cannot
            )
        finally:
            session, self._session = self._session, None
            if session is not None:
                await session.session.close()

    async def _check(self, partitions: Collection[TopicPartition]) -> None:
        self._look(partitions)
        behind = [tp for tp, course in self._courses.items() if course.is_known]
        # First: a source that does not answer must not put it off.
        self._report_stalled(behind)
        try:
            async with asyncio.timeout(CHECK_S):
                await self._learn(behind)
            self._refusal = ""
        except (Mm2pyError, TimeoutError) as error:
            # What is known stays, and ages: an absent source deletes nothing copyable.
            self._refusal = str(error) or f"no answer within {CHECK_S:.0f} s"
            log.debug("retention of what is behind is not known cause=%r", error)
        except Exception:
            self._report(behind)
            raise
        self._report(behind)

    def _look(self, partitions: Collection[TopicPartition]) -> None:
        now_ms = self._context.clock.now_ms()
        for tp in self._courses.keys() - set(partitions):
            self._forget(tp)
        for tp in partitions:
            course, seen = self._courses.get(tp), self._progress(tp)
            if seen is None and course is not None:
                # As far as one can see it has not moved.
                seen = course.last.position, course.last.end, UNKNOWN
            if seen is None:
                continue
            position, end, newest_ms = seen
            if position >= end:
                self._forget(tp)
                continue
            sight = Sight(at_ms=now_ms, position=position, end=end, written_ms=newest_ms)
            self._courses.setdefault(tp, Course()).add(sight)

    def _forget(self, tp: TopicPartition) -> None:
        if self._courses.pop(tp, None) is not None:
            self._record_bytes.pop(tp, None)
            self._context.report_forecast(tp, None)

    # -- what only the source knows ----------------------------------------------------------------

    async def _learn(self, behind: Collection[TopicPartition]) -> None:
        now = self._context.clock.monotonic()
        topics = {tp.topic for tp in behind}
        unknown = {it for it in topics if now - self._asked_at.get(it, -inf) > LIMITS_S}

        def undated() -> list[TopicPartition]:
            # What no age limits is not searched for, nor in the way of the others.
            limits = self._limits
            wanted = [tp for tp in behind if limits.get(tp.topic, _NONE).age_ms is not None]
            return sorted(
                (tp for tp in wanted if self._courses[tp].wants_date),
                key=lambda tp: self._courses[tp].searched,
            )

        def unmeasured() -> list[TopicPartition]:
            limited = [it for it in behind if self._limits.get(it.topic, _NONE).size_bytes]
            known = self._record_bytes.keys()
            return [
                it
                for it in limited
                if it.topic in unknown or not (it in known or it.topic in self._refused)
            ]

        if not (unknown or self._ahead.wants_more or undated() or unmeasured()):
            return
        admin = await self._admin()
        if unknown:
            await self._read_limits(sorted(unknown), now, admin)
        if unknown or self._ahead.wants_more:
            try:
                self._ahead.look(await admin.newest_commits(), self._context.clock.now_ms())
            except Mm2pyError:  # brokers before 3.0 do not tell, nor do rights that are missing
                self._ahead.forget()
        await self._measure(unmeasured(), admin)
        await self._date(undated()[:_MOST_DATED], admin)

    async def _read_limits(self, topics: Sequence[str], now: float, admin: MirrorAdmin) -> None:
        """Learn the limits of topics; one that may not be read hides no other."""
        configs = await admin.read_topic_configs(topics)
        later = {
            topic: answer
            for topic, answer in configs.items()
            if isinstance(answer, RetriableServerError)
        }
        for topic in topics:
            answer = configs.get(topic, ())
            if topic in later:
                continue  # it is asked for again by the next look
            self._asked_at[topic] = now
            self._refused.pop(topic, None)
            if isinstance(answer, ServerError):
                self._limits.pop(topic, None)
                self._refused[topic] = str(answer)
            elif topic in configs:
                self._limits[topic] = Limits.of(answer)
        if later:
            raise next(iter(later.values()))

    async def _admin(self) -> MirrorAdmin:
        if self._session is None:
            opened = self._open_admin()
            try:
                await opened.session.connect()
            # Also `CancelledError`, the end of a look's time: it is not kept half open.
            except BaseException:
                await opened.session.close()
                raise
            self._session = opened
        return self._session.admin

    async def _measure(self, limited: Sequence[TopicPartition], admin: MirrorAdmin) -> None:
        """Learn the mean size of an offset; unknown where the broker does not disclose sizes."""
        if not limited:
            return
        topics: dict[str, list[int]] = {}
        for tp in limited:
            topics.setdefault(tp.topic, []).append(tp.partition)
        try:
            sizes = await admin.partition_sizes(topics)
        except FatalServerError as error:
            self._refused |= dict.fromkeys(topics, f"sizes may not be read: {error}")
            return
        starts = await admin.list_offsets(dict.fromkeys(limited, EARLIEST))
        for tp in limited:
            if tp in sizes and starts[tp].error is None:
                # Bytes per offset, holes included: what waits is counted in offsets too.
                offsets = self._courses[tp].last.end - starts[tp].offset
                self._record_bytes[tp] = sizes[tp] / max(1, offsets)

    async def _date(self, undated: Collection[TopicPartition], admin: MirrorAdmin) -> None:
        """Find when the awaited records were written: where time ends for those below."""
        now_ms = self._context.clock.now_ms() + self._ahead.ms
        for tp in undated:
            self._courses[tp].searched += 1
        spans = {
            tp: (now_ms - limit, now_ms)
            for tp in undated
            if (limit := self._limits.get(tp.topic, _NONE).age_ms) is not None
        }
        # Bisection over time by ListOffsets: no record is read.
        for _ in range(_ROUNDS if spans else 0):
            middles = {tp: (low + high) // 2 for tp, (low, high) in spans.items()}
            for tp, found in (await admin.list_offsets(middles)).items():
                if found.error is not None:
                    del spans[tp]  # the others need not wait for it
                    continue
                low, high = spans[tp]
                # The first record of that time or later comes behind: this one is older.
                is_older = not 0 <= found.offset <= self._courses[tp].last.position
                spans[tp] = (low, middles[tp]) if is_older else (middles[tp], high)
        for tp, (low, _) in spans.items():
            self._courses[tp].date(low)

    # -- reports -----------------------------------------------------------------------------------

    def _report(self, behind: Collection[TopicPartition]) -> None:
        now_ms = self._context.clock.now_ms()
        told: dict[TopicPartition, Forecast] = {}
        for tp in behind:
            limits = self._limits.get(tp.topic)
            size = self._record_bytes.get(tp, UNKNOWN)
            forecast = (
                None if limits is None else self._courses[tp].forecast(limits, size, self._ahead.ms)
            )
            self._context.report_forecast(tp, forecast)
            if forecast is not None and forecast.at_ms - now_ms < NOTED_S * 1000:
                told[tp] = forecast
        first = min(told.items(), key=lambda it: it[1].at_ms, default=None)
        text = "" if first is None else _text(*first, others=len(told) - 1, now_ms=now_ms)
        if text and self._ahead.ms > AHEAD_MS:
            text += (
                "; the source's clock, which retention goes by, is "
                f"{duration_text(self._ahead.ms)} ahead of this machine's, which is counted"
            )
        is_soon = first is not None and first[1].at_ms - now_ms < SOON_S * 1000
        self._context.report_finding("retention", text, count=len(told), harms=is_soon)
        topics = {tp.topic for tp in behind}
        whys = {it: self._refused[it] for it in sorted(topics) if it in self._refused}
        if self._refusal:
            whys |= dict.fromkeys(sorted(topics - self._limits.keys() - whys.keys()), self._refusal)
        text = ""
        if whys:
            text = (
                f"whether the source deletes records of {some_of([*whys], _MOST_NAMED)} "
                f"before they are copied is not known whole: {next(iter(whys.values()))}"
            )
        self._context.report_finding("retention not known", text, count=len(whys), harms=False)

    def _report_stalled(self, behind: Collection[TopicPartition]) -> None:
        """Name partitions of which nothing is copied though more arrives, or for long; paused, held
        and failed ones have a state of their own."""
        now_ms = self._context.clock.now_ms()
        stalled: dict[str, str] = {}
        harms = False
        for tp in behind:
            course = self._courses[tp]
            stands_s = (now_ms - course.since_ms) / 1000
            is_late = stands_s > LONGEST_TRANSACTION_S
            # What is in a transaction is delivered at its end.
            least_s = 0.0 if course.is_stalled else UNACKNOWLEDGED_S
            if stands_s < max(least_s, self._context.commit_s + CHECK_S):
                continue
            why, may_last = self._why_stalled(tp)
            # Where nothing more is written it may wait for its turn: in a first copy of much
            # history, for minutes.
            if why and (course.is_stalled or is_late or not may_last):
                stalled[str(tp)] = why
                harms |= is_late or not may_last
        names = some_of(sorted(stalled), _MOST_NAMED)
        text = f"nothing is copied of {names}: {next(iter(stalled.values()))}" if stalled else ""
        self._context.report_finding("stalled", text, count=len(stalled), harms=harms)


def _text(tp: TopicPartition, forecast: Forecast, *, others: int, now_ms: int) -> str:
    """Return what is lost when, formatted for display."""
    waiting = f"{forecast.records} records"
    if forecast.size_bytes != UNKNOWN:
        waiting += f" ({size_text(forecast.size_bytes)})"
    left_s = (forecast.at_ms - now_ms) / 1000
    when = f"in {duration_text(round(left_s * 1000))}" if left_s > 0 else "now"
    more = f", and {others} more partitions after it" if others else ""
    return (
        f"at this rate {forecast.by}={forecast.limit} of the source overtakes {tp} {when}{more}; "
        f"{waiting} of it are not copied:"
        f" raise {forecast.by} of {tp.topic} on the source, or see why the copy is slow (mm2py lag)"
    )
