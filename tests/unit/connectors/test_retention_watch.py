"""Retention is forecast for what is behind: by age and by size, never late, and not for a copy that keeps up."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from mm2py.errors import FatalServerError, RetriableServerError
from mm2py.observability.metrics import Forecast
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py.testing.clock import FakeClock
from mm2py.testing.contexts import FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_connectors.clients import AdminSession
from mm2py_connectors.retention_watch import (
    CHECK_S,
    LONGEST_TRANSACTION_S,
    UNACKNOWLEDGED_S,
    Course,
    Limits,
    RetentionWatch,
    Sight,
)
from tests.unit.connectors.mirror_fakes import FakeAdmin, FakeSession

TP = TopicPartition("orders", 7)
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
BEHIND = 100, 1000, START_MS


def entries(**configs: str) -> tuple[ConfigEntry, ...]:
    return tuple(
        ConfigEntry(name.replace("_", "."), value, ConfigSource.DYNAMIC_TOPIC_CONFIG)
        for name, value in configs.items()
    )


@pytest.mark.parametrize(
    ("configs", "limits"),
    [
        ({"retention_ms": "60000", "retention_bytes": "-1"}, (60_000, None)),
        ({"retention_ms": "-1", "retention_bytes": "500"}, (None, 500)),
        ({"cleanup_policy": "compact", "retention_ms": "60000"}, (None, None)),
        ({"cleanup_policy": "compact,delete", "retention_ms": "60000"}, (60_000, None)),
        ({}, (None, None)),
    ],
    ids=["age", "size", "compacted", "both", "unknown"],
)
def test_limits_are_those_by_which_the_broker_deletes(
    configs: dict[str, str], limits: tuple[int | None, int | None]
) -> None:
    known = Limits.of(entries(**configs))
    assert (known.age_ms, known.size_bytes) == limits


@pytest.mark.parametrize(
    ("copied", "written", "age_s", "limits", "record_bytes", "expected"),
    [
        # Per second: offsets copied, offsets written; how old the next record is at the first look.
        (0, 100, 0, Limits(HOUR_MS, None), -1, ("retention.ms", 3570)),
        (50, 100, 1770, Limits(HOUR_MS, None), -1, ("retention.ms", 3630)),
        (99, 100, 10, Limits(HOUR_MS, None), -1, None),
        (100, 100, 3000, Limits(HOUR_MS, None), -1, None),
        (0, 100, 4000, Limits(HOUR_MS, None), -1, ("retention.ms", 0)),
        (0, 100, 0, Limits(None, 1_000_000), 10, ("retention.bytes", 960)),
        (90, 100, 0, Limits(None, 1_000_000), 10, ("retention.bytes", 9870)),
        (0, 100, 0, Limits(HOUR_MS, 1_000_000), 10, ("retention.bytes", 960)),
        (0, 100, 0, Limits(HOUR_MS, 1_000_000), -1, ("retention.ms", 3570)),
        (0, 100, 0, Limits(None, None), 10, None),
        (120, 100, 3000, Limits(HOUR_MS, 1_000_000), 10, None),
    ],
    ids=["stands", "half", "noise", "steady", "late", "size", "size-slow", "size-first", "no-size", "none", "catches-up"],
)  # fmt: skip
def test_a_forecast_is_what_the_last_minutes_lead_to(
    copied: int,
    written: int,
    age_s: int,
    limits: Limits,
    record_bytes: float,
    expected: tuple[str, int] | None,
) -> None:
    course = Course()
    for second in range(0, 31, 10):
        end = 1000 + second * written
        at_ms = START_MS + second * 1000
        position = second * copied
        # A record that was written at `written` per second is that much younger.
        written_ms = START_MS - age_s * 1000 + position * 1000 // written
        course.add(Sight(at_ms=at_ms, position=position, end=end, written_ms=written_ms))
    said = course.forecast(limits, record_bytes)
    now_ms = START_MS + 30_000
    found = said and (said.by, round((said.at_ms - now_ms) / 1000))
    assert found == expected
    assert said is None or (said.records, said.limit > 0) == (course.last.waiting, True)


@dataclass
class Bench:
    clock: FakeClock
    context: FakeTaskContext
    admin: FakeAdmin
    session: FakeSession
    seen: dict[TopicPartition, tuple[int, int, int]] = field(
        default_factory=dict[TopicPartition, tuple[int, int, int]]
    )
    why: str = ""
    may_last: bool = False
    partitions: list[TopicPartition] = field(default_factory=lambda: [TP])

    async def checks(self, count: int, written: int = 0) -> Forecast | None:
        """Let so many checks pass, ``written`` records arriving before each; return the last forecast."""
        for _ in range(count):
            self.seen = {tp: (at, end + written, ms) for tp, (at, end, ms) in self.seen.items()}
            await self.clock.advance(CHECK_S)
        return self.context.forecasts.get(TP)


@asynccontextmanager
async def watch() -> AsyncGenerator[Bench]:
    context, admin, session = FakeTaskContext(), FakeAdmin({"orders": 8}), FakeSession()
    bench = Bench(context.clock, context, admin, session)
    admin.configs["orders"] = entries(retention_ms=str(HOUR_MS), retention_bytes="-1")
    admin.logs[TP] = [START_MS] * 2000
    bench.seen[TP] = BEHIND

    def look(tp: TopicPartition) -> tuple[int, int, int] | None:
        return bench.seen.get(tp)

    found = RetentionWatch(
        lambda: AdminSession(session, admin), look, lambda _: (bench.why, bench.may_last), context
    )
    running = asyncio.create_task(found.run(lambda: bench.partitions))
    await context.clock.settle()
    try:
        yield bench
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_nothing_is_asked_while_nothing_is_behind() -> None:
    async with watch() as bench:
        bench.seen[TP] = (100, 100, START_MS)
        assert await bench.checks(5) is None
        assert (bench.session.connected, bench.context.findings) == (0, {})


async def test_a_copy_that_stands_is_told_at_the_second_look_and_until_it_has_caught_up() -> None:
    async with watch() as bench:
        # The last copied record is old, those that wait are of the last seconds: an idle topic that got a burst.
        bench.admin.logs[TP] = [START_MS - HOUR_MS * 3 // 4] * 100 + [START_MS - 1000] * 900
        bench.seen[TP] = (100, 1000, START_MS - HOUR_MS * 3 // 4)
        said = await bench.checks(3, written=10)
        assert said is not None
        # To a part of the limit, and never late.
        assert 0 <= START_MS - 1000 + HOUR_MS - said.at_ms <= HOUR_MS / 200
        text, count, harms = bench.context.findings["retention"]
        assert "retention.ms=3600000 of the source overtakes orders-7 in" in text
        assert (count, harms) == (1, True)
        bench.seen[TP] = (1030, 1030, bench.clock.now_ms())
        assert await bench.checks(1) is None
        assert bench.context.findings == {}
    assert bench.session.closed == bench.session.connected == 1


DENIED = FatalServerError(29, "TOPIC_AUTHORIZATION_FAILED")
DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("stamps", "known_ms"),
    [
        # By partition of the commits, after the start: at the first question (20 s), at the next one (30 s).
        (([20_000], [30_000]), 0),
        (([615_000], [630_000]), 600_000),
        (([615_000], [615_000]), 0),
        (([DAY_MS, 15_000], [DAY_MS, 25_000]), 0),
        ((list[int](), [630_000]), 0),
        (([615_000], DENIED), 0),
        ((DENIED,), 0),
    ],
    ids=["right", "ahead", "idle", "was ahead", "new", "lost", "denied"],
)
async def test_a_source_whose_clock_is_ahead_for_certain_deletes_earlier_and_that_is_said(
    stamps: Sequence[list[int] | FatalServerError], known_ms: int
) -> None:
    async with watch() as bench:
        bench.admin.commits += [
            {TopicPartition("commits", n): START_MS + at for n, at in enumerate(it)}
            if isinstance(it, list)
            else it
            for it in stamps
        ]
        said = await bench.checks(3)
        assert said is not None
        assert 0 <= START_MS + HOUR_MS - known_ms - said.at_ms <= HOUR_MS / 200
        text, *_ = bench.context.findings["retention"]
        assert ("is 10.0 min ahead of this machine's" in text) is (known_ms > 0)


async def test_a_loss_that_is_far_is_told_and_does_no_harm() -> None:
    async with watch() as bench:
        bench.admin.configs["orders"] = entries(retention_ms=str(20 * HOUR_MS))
        assert await bench.checks(3) is not None
        assert not bench.context.findings["retention"][2]
        # A source that does not answer any more deletes by time all the same.
        before = bench.context.forecasts[TP]
        bench.seen.clear()
        after = await bench.checks(3)
        assert before is not None
        assert after is not None
        assert abs(after.at_ms - before.at_ms) < 1000


async def test_by_size_the_mean_of_the_log_counts() -> None:
    async with watch() as bench:
        bench.admin.configs["orders"] = entries(retention_ms="-1", retention_bytes="1000000")
        bench.admin.log_start, bench.admin.sizes = 0, {TP: 100_000}
        bench.seen[TP] = (100, 990, START_MS)
        said = await bench.checks(3, written=10)
        assert said is not None
        assert (said.by, said.records) == ("retention.bytes", 920)
        assert 90 * said.records < said.size_bytes < 100 * said.records


async def test_what_stands_still_though_more_arrives_is_named() -> None:
    async with watch() as bench:
        bench.why = "the target acknowledges nothing"
        await bench.checks(3)
        assert "stalled" not in bench.context.findings  # nothing arrives either
        await bench.checks(1, written=1)
        assert bench.context.findings["stalled"] == (
            "nothing is copied of orders-7: the target acknowledges nothing",
            1,
            True,
        )
        bench.seen[TP] = (101, 1001, START_MS)
        await bench.checks(1, written=1)
        assert "stalled" not in bench.context.findings


async def test_readers_of_committed_records_may_wait_as_long_as_a_transaction_may_last() -> None:
    async with watch() as bench:
        bench.why, bench.may_last = "a transaction is open", True
        await bench.checks(4, written=1)
        assert not bench.context.findings["stalled"][2]
        await bench.checks(round(LONGEST_TRANSACTION_S / CHECK_S), written=1)
        assert bench.context.findings["stalled"][2]


async def test_what_stands_still_for_long_is_named_though_nothing_more_is_written() -> None:
    async with watch() as bench:
        bench.why, bench.may_last = "a transaction is open", True
        bench.seen[TP] = (100, 1000, -1)
        await bench.checks(round(LONGEST_TRANSACTION_S / CHECK_S))
        assert "stalled" not in bench.context.findings
        await bench.checks(2)
        assert bench.context.findings["stalled"] == (
            "nothing is copied of orders-7: a transaction is open",
            1,
            True,
        )


async def test_what_is_not_acknowledged_is_named_though_nothing_more_is_written() -> None:
    async with watch() as bench:
        bench.why = "the target acknowledges nothing"
        await bench.checks(round(UNACKNOWLEDGED_S / CHECK_S))
        assert "stalled" not in bench.context.findings
        await bench.checks(1)
        assert bench.context.findings["stalled"][1:] == (1, True)


async def test_what_waits_for_the_end_of_its_transaction_does_not_stand_still() -> None:
    async with watch() as bench:
        bench.why, bench.context.commit_s = "the target acknowledges nothing", 50.0
        await bench.checks(6, written=1)
        assert "stalled" not in bench.context.findings
        await bench.checks(1, written=1)
        assert "stalled" in bench.context.findings


async def test_a_thousand_topics_are_one_question_and_an_unreadable_one_hides_none() -> None:
    async with watch() as bench:
        names = [f"t-{number:04d}" for number in range(1_000)]
        bench.admin.topics |= dict.fromkeys(names, 1)
        bench.admin.configs |= dict.fromkeys(names, entries(retention_ms=str(HOUR_MS)))
        bench.admin.unreadable[names[617]] = FatalServerError(29, "TOPIC_AUTHORIZATION_FAILED")
        bench.partitions[:] = [TopicPartition(name, 0) for name in names]
        bench.seen |= dict.fromkeys(bench.partitions, BEHIND)
        bench.admin.logs |= dict.fromkeys(bench.partitions, [START_MS] * 2000)
        await bench.checks(3)
        assert bench.admin.described == [tuple(names)]
        assert [it for it in bench.context.forecasts.values() if it is None] == [None]
        assert f"records of {names[617]} before" in bench.context.findings["retention not known"][0]


async def test_an_answer_that_does_not_come_is_asked_for_again_at_the_next_look() -> None:
    async with watch() as bench:
        bench.admin.unreadable["orders"] = RetriableServerError(7, "REQUEST_TIMED_OUT")
        assert await bench.checks(3) is None
        assert "REQUEST_TIMED_OUT" in bench.context.findings["retention not known"][0]
        bench.admin.unreadable.clear()
        assert await bench.checks(2) is not None
        assert "retention not known" not in bench.context.findings


async def test_what_no_age_limits_does_not_keep_others_from_being_dated() -> None:
    async with watch() as bench:
        bench.admin.topics["kept"] = 1000
        bench.admin.configs["kept"] = entries(retention_ms="-1", retention_bytes="-1")
        kept = [TopicPartition("kept", number) for number in range(1000)]
        bench.partitions[:0] = kept
        bench.seen |= dict.fromkeys([*kept, TP], (100, 1000, -1))
        assert await bench.checks(4) is not None


async def test_sizes_that_may_not_be_read_are_told_and_cost_no_forecast_by_age() -> None:
    async with watch() as bench:
        bench.admin.configs["orders"] = entries(retention_ms=str(HOUR_MS), retention_bytes="5000")
        bench.admin.sizes_refusal = FatalServerError(31, "CLUSTER_AUTHORIZATION_FAILED")
        assert await bench.checks(5) is not None
        assert "sizes may not be read" in bench.context.findings["retention not known"][0]


def test_a_time_that_was_searched_for_is_no_growth() -> None:
    course = Course()
    for second, position in ((0, 100), (10, 100)):
        at_ms = START_MS + second * 1000
        course.add(Sight(at_ms=at_ms, position=position, end=5000, written_ms=START_MS))
    course.date(START_MS - 39 * 60_000)  # to a 256th of seven days
    limits = Limits(7 * 24 * HOUR_MS, None)
    stood = course.forecast(limits, -1)
    assert stood is not None
    assert stood.at_ms > START_MS + 6 * 24 * HOUR_MS
    at_ms = START_MS + 20_000
    course.add(Sight(at_ms=at_ms, position=4000, end=5000, written_ms=at_ms - 1000))
    assert course.forecast(limits, -1) is None


@pytest.mark.parametrize(
    ("first", "last", "limits"),
    [
        # Catches up from the oldest segment, of which some records are beyond the limit.
        ((0, 9000, -90_000_000), (5000, 9010, -7_200_000), Limits(HOUR_MS, None)),
        ((0, 9_000, 0), (5_000, 9_010, 0), Limits(None, 1000)),
        # Kafka's largest limit: no year of which a calendar knows.
        ((0, 9_000, 0), (0, 9_010, 0), Limits((1 << 63) - 1, None)),
    ],
    ids=["age", "size", "for ever"],
)
def test_nothing_is_forecast_of_what_catches_up_or_is_beyond_a_year(
    first: tuple[int, int, int], last: tuple[int, int, int], limits: Limits
) -> None:
    course = Course()
    for second, (position, end, age_ms) in ((0, first), (30, last)):
        at_ms = START_MS + second * 1000
        written_ms = START_MS + age_ms
        course.add(Sight(at_ms=at_ms, position=position, end=end, written_ms=written_ms))
    assert course.forecast(limits, 10) is None
