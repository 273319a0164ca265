"""The MirrorSource task: positions, renaming, failures, lag, offset syncs."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import pytest

from mm2py.api.context import PartitionState, SourceGap
from mm2py.api.records import SourceOffset
from mm2py.api.task import Delivery, Outgoing, Run
from mm2py.errors import ConfigError, ConnectionFailedError, PartitionError, ServerError, is_away
from mm2py.mirror.offset_syncs import decode_offset_sync
from mm2py.protocol.configs import ConfigEntry, ConfigSource
from mm2py.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, server_error
from mm2py.types import EARLIEST, LATEST, TopicPartition, start_at_offset, start_at_time
from mm2py_connectors.mirror_source_task import (
    CURRENT_S,
    HELD_LAG_S,
    UNKNOWN_AFTER_S,
    MirrorSourceTask,
)
from mm2py_connectors.retention_watch import CHECK_S
from tests.kit.fakes.batches import CountedLease, a_batch
from tests.kit.fakes.reader import FakeReader
from tests.unit.connectors.mirror_fakes import MirrorTaskContext, Region, flow_config

T0, T1, DASH = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("a-b", 2)
CONFIG = flow_config("MirrorSourceConnector", task_index="0") | {
    "task.assigned.partitions": "t-0,t-1,a-b-2"
}


class Bench:
    """A task over fakes."""

    def __init__(
        self, config: dict[str, str] | None = None, stored: dict[TopicPartition, int] | None = None
    ) -> None:
        self.region = Region({})
        self.context = MirrorTaskContext(stored)
        self.task = MirrorSourceTask(
            CONFIG | (config or {}),
            self.context,
            readers=self.region.open_reader,
            writers=self.region.open_writer,
            admins=self.region.open_admin,
        )

    @property
    def reader(self) -> FakeReader:
        return self.region.readers[-1]

    def syncs(self) -> list[tuple[int, int]]:
        found = [
            decode_offset_sync(record.key or b"", record.value or b"")
            for writer in self.region.writers
            for _, record in writer.records
        ]
        return [(sync.upstream, sync.downstream) for sync in found]


@asynccontextmanager
async def running(bench: Bench) -> AsyncGenerator[Bench]:
    await bench.task.start()
    await bench.context.clock.settle()
    try:
        yield bench
    finally:
        await bench.task.stop()
        await bench.task.stop()
    assert bench.region.all_closed


async def ran(
    config: dict[str, str] | None = None, stored: dict[TopicPartition, int] | None = None
) -> Bench:
    """Return what a task has done that only started and stopped."""
    async with running(Bench(config, stored)) as bench:
        return bench


async def a_second_later(bench: Bench) -> None:
    await bench.context.clock.advance(1.0)
    await bench.task.poll(1)


def delivery(source: TopicPartition, *runs: Run) -> Delivery:
    return Delivery(source, TopicPartition(f"A.{source.topic}", source.partition), runs, 100, 5)


async def test_start_resumes_one_past_the_committed_offset() -> None:
    bench = await ran({"flow.max.bytes.per.second": "1500"}, {T0: 41, T1: -1})
    # Offset 0 is a position, not the start of the log: what the source deletes from there on is a loss.
    assert bench.reader.positions == {T0: 42, T1: 0, DASH: EARLIEST}
    assert [it.bytes_per_s for it in bench.region.tuning] == [1500], "its part of the flow's rate"
    assert bench.region.client_ids == [
        "A->B|MirrorSourceConnector-0|replication-consumer",
        "A->B|MirrorSourceConnector-0|offset-syncs-source-producer",
    ]


async def test_where_the_copy_began_is_its_position_before_anything_is_copied() -> None:
    latest = {"consumer.auto.offset.reset": "latest"}
    async with running(Bench(latest, {T0: 0})) as bench:
        assert bench.reader.positions == {T0: 1, T1: LATEST, DASH: LATEST}
        bench.reader.began = {T1: 100}
        await bench.task.poll(1000)
        assert bench.context.covered == [(T1, 99)]
        # An empty log is a position too: what is written first must not be skipped after a restart.
        bench.reader.began |= {DASH: 0}
        bench.reader.answers = [[(DASH, [a_batch(0)])]]
        await bench.task.poll(1000)
        assert bench.context.covered == [(T1, 99), (DASH, -1)]
        await bench.task.poll(1000)
    assert bench.context.covered == [(T1, 99), (DASH, -1)]
    again = await ran(latest, {T0: 0, T1: 99, DASH: -1})
    assert again.reader.positions == {T0: 1, T1: 100, DASH: 0}


async def test_a_log_in_which_nothing_has_to_be_copied_is_covered_from_its_beginning() -> None:
    """Markers, aborted data or what mirrors wrote, all read before the first look: a failover waited for it."""
    bench = Bench(stored={T0: 0, DASH: 0})
    async with running(bench):
        bench.reader.began = {T1: 20}
        bench.reader.positions[T1] = 50
        await a_second_later(bench)
        assert bench.context.covered == []
        await a_second_later(bench)
        assert bench.context.covered == [(T1, 49)]


async def test_start_positions_count_where_nothing_is_stored_and_are_stored_at_once() -> None:
    rules = {"start.positions": "t:0=offset:7, t=latest, 1000", "task.late.partitions": "t-1"}
    ends = {"start.positions": "t=latest, earliest", "task.first.ends": f"t-1:44,{DASH}:3"}
    begun = (await ran(ends, {T0: 0})).reader.positions
    assert begun == {T0: 1, T1: start_at_offset(44), DASH: EARLIEST}
    async with running(Bench(rules)) as bench:
        assert bench.reader.positions == {
            T0: start_at_offset(7),
            T1: EARLIEST,
            DASH: start_at_time(1_000),
        }
        bench.reader.began = {T0: 7, DASH: 30}
        await bench.task.poll(1000)
        assert sorted(bench.context.covered) == [(DASH, 29), (T0, 6)]
    again = Bench(rules, {T0: 41})
    async with running(again):
        assert again.reader.positions[T0] == 42


@pytest.mark.parametrize("told", [{}, {"task.first.start.ms": "1700000000000"}])
async def test_an_age_is_counted_from_the_flows_start_if_it_is_told(told: dict[str, str]) -> None:
    bench = Bench({"start.positions": "1 hour ago"} | told, {DASH: 4})
    await bench.context.clock.advance(7_200)
    start_ms = bench.context.clock.now_ms()
    async with running(bench):
        first_ms = int(told.get("task.first.start.ms", start_ms))
        begun = start_at_time(first_ms - 3_600_000)
        assert bench.reader.positions == {T0: begun, T1: begun, DASH: 5}


async def test_positions_are_stored_with_their_leader_epoch_and_read_back() -> None:
    bench = Bench(stored={T0: 41})
    key = bench.task.source_partition(T1)
    bench.context.store(key, {"offset": 7, "epoch": "3@7"})
    edited = bench.task.source_partition(DASH)
    bench.context.store(edited, {"offset": 9, "epoch": "3@7"})
    async with running(bench):
        assert bench.reader.epochs == {T0: -1, T1: 3, DASH: -1}
        assert bench.task.source_offset(T1, 8) == {"offset": 8, "epoch": "3@8"}
        assert bench.task.source_offset(T0, 50) == {"offset": 50}


async def test_without_a_position_and_a_reset_policy_the_partition_fails_alone() -> None:
    bench = await ran({"source.consumer.auto.offset.reset": "none"}, {T0: 3, DASH: 4})
    assert bench.reader.positions == {T0: 4, DASH: 5}
    ((partition, state, cause),) = bench.context.states
    assert (partition, state) == (T1, PartitionState.FAILED)
    assert "auto.offset.reset" in cause


@pytest.mark.parametrize("reset", ["earliest", "latest"])
@pytest.mark.parametrize("stored", [{}, {"offset": "7"}, {"offset": -2}])
async def test_what_is_stored_and_no_position_fails_the_partition_and_is_not_taken_for_none(
    reset: str, stored: SourceOffset
) -> None:
    bench = Bench({"source.consumer.auto.offset.reset": reset}, {T0: 3, DASH: 4})
    bench.context.store(bench.task.source_partition(T1), stored)
    async with running(bench):
        assert bench.reader.positions == {T0: 4, DASH: 5}
        ((partition, state, cause),) = bench.context.states
        assert (partition, state) == (T1, PartitionState.FAILED)
        assert "PATCH .../offsets" in cause


async def test_start_lets_an_unreachable_source_be_retried_and_leaves_nothing_open() -> None:
    bench = Bench()
    bench.region.refuse_connect = 1
    with pytest.raises(ConnectionFailedError):
        await bench.task.start()
    assert bench.region.all_closed
    assert bench.reader.closed == 1
    async with running(bench):
        pass


async def test_a_doubled_partition_counts_once_and_a_broken_list_is_refused() -> None:
    bench = await ran({"task.assigned.partitions": "t-0, t-0"})
    assert bench.reader.positions == {T0: EARLIEST}
    with pytest.raises(ConfigError, match="is not topic-partition"):
        Bench({"task.assigned.partitions": "t0"})


async def test_poll_renames_the_topic_and_keeps_the_batch() -> None:
    bench = Bench()
    first, second = a_batch(0, 3), a_batch(3, 2)

    async with running(bench):
        bench.reader.answers = [[(T0, [first]), (DASH, [second])]]
        assert await bench.task.poll(1234) == [
            Outgoing(T0, TopicPartition("A.t", 0), [first]),
            Outgoing(DASH, TopicPartition("A.a-b", 2), [second]),
        ]
        assert await bench.task.poll(1) == []
        assert bench.reader.asked == [(1000, 1234), (1000, 1)]


@pytest.mark.parametrize(("limit", "paced"), [("1500", 700), ("0", 0)])
async def test_a_part_that_changes_is_the_readers_of_now_and_next(limit: str, paced: int) -> None:
    bench = Bench({"flow.max.bytes.per.second": limit})
    bench.task.pace(700)  # before it has read anything
    async with running(bench):
        assert [it.bytes_per_s for it in bench.region.tuning] == [paced]
        bench.task.pace(900)
        assert bench.reader.paces == [900]


async def test_the_lag_of_held_partitions_grows_without_a_poll() -> None:
    async with running(Bench()) as bench:
        bench.task.hold([T0])
        bench.reader.ends[T0] = 70
        await bench.context.clock.advance(HELD_LAG_S)
        assert bench.context.lags[T0][0] == 70
        bench.task.release([T0])
        await bench.context.clock.advance(10 * HELD_LAG_S)
        assert bench.reader.ends_asked == 1
        bench.task.hold([T0])
        await bench.context.clock.advance(HELD_LAG_S)
        assert bench.reader.ends_asked == 2


async def test_a_look_at_the_ends_that_fails_in_any_way_is_logged_and_the_next_one_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refresh() -> None:
        raise ValueError("a bug")

    async with running(Bench()) as bench:
        bench.task.hold([T0])
        bench.reader.ends[T0] = 70
        with monkeypatch.context() as broken:
            broken.setattr(bench.reader, "refresh_ends", refresh)
            await bench.context.clock.advance(HELD_LAG_S)
        assert "a bug" in caplog.text
        await bench.context.clock.advance(HELD_LAG_S)
        assert bench.context.lags[T0][0] == 70


async def test_what_a_failed_partition_does_not_copy_any_more_is_lag() -> None:
    async with running(Bench(stored={T0: 9})) as bench:
        bench.reader.answers = [[(T0, [a_batch(10, 5)])]]
        await bench.task.poll(1)
        bench.reader.lags[T0] = 0
        for partition in (T0, T1):
            error = PartitionError("too large", topic="t", partition=partition.partition)
            bench.task.failed(partition, error)
        assert bench.context.lags == {T0: (5, -1), T1: (-1, -1)}, "at once, not when it is asked"
        bench.reader.ends = {T0: 211, T1: 40}
        bench.reader.starts = {T1: 30}
        await bench.context.clock.advance(HELD_LAG_S)
        assert bench.context.lags == {T0: (201, -1), T1: (10, -1)}
        bench.reader.ends = {T0: 212}
        await bench.context.clock.advance(HELD_LAG_S)
        assert bench.context.lags[T0] == (202, -1)


async def test_a_partition_that_fails_while_others_are_asked_about_ends_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(stored={T0: 9})
    async with running(bench):
        bench.reader.starts, bench.reader.ends = {T1: 30}, {T0: 70, T1: 40}
        log_starts = bench.reader.log_starts

        async def one_more(partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
            bench.task.failed(T0, PartitionError("too large", topic="t", partition=0))
            return await log_starts(partitions)

        monkeypatch.setattr(bench.reader, "log_starts", one_more)
        bench.task.failed(T1, PartitionError("too large", topic="t", partition=1))
        await bench.context.clock.advance(2 * HELD_LAG_S)
        assert bench.context.lags == {T0: (60, -1), T1: (10, -1)}


@pytest.mark.parametrize("cause", ["recreated", "truncation"])
async def test_what_is_read_of_a_log_that_begins_lower_is_lag_until_it_is_acknowledged(
    cause: str,
) -> None:
    async with running(Bench(stored={T0: 9})) as bench:
        bench.reader.answers = [[(T0, [a_batch(10, 5)])], [(T0, [a_batch(2, 3)])]]
        await bench.task.poll(1)
        bench.task.delivered(delivery(T0, Run(10, 5, 0)))
        bench.reader.events.on_gap(SourceGap(T0, 15, 14, cause, "x"))
        bench.reader.ends, bench.reader.lags = {T0: 5}, {T0: 0}
        await bench.task.poll(1)
        await a_second_later(bench)
        assert bench.context.lags[T0][0] == 3
        bench.task.delivered(delivery(T0, Run(2, 3, 5)))
        await a_second_later(bench)
        assert bench.context.lags[T0][0] == 0


async def test_retention_is_forecast_of_a_partition_that_failed_while_it_kept_up() -> None:
    bench = Bench(stored={T0: 9})
    bench.region.source.topics = {"t": 2}
    policy = ConfigEntry("retention.ms", "60000", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    bench.region.source.configs["t"] = (policy,)
    async with running(bench):
        bench.reader.lags[T0] = 0
        await bench.context.clock.advance(2 * CHECK_S)
        assert bench.context.forecasts == {}
        bench.task.failed(T0, PartitionError("too large", topic="t", partition=0))
        bench.reader.ends = {T0: 11}
        await bench.context.clock.advance(3 * CHECK_S)
        said = bench.context.forecasts[T0]
        assert said is not None
        assert (said.by, said.records) == ("retention.ms", 1)


@pytest.mark.parametrize(
    ("acknowledged", "shown", "named"),
    [
        (False, False, "cluster B has not acknowledged"),
        (True, False, "it is not read"),
        (True, True, ""),
    ],
    ids=["unacknowledged", "acknowledged", "paused"],
)
async def test_what_is_held_until_its_target_has_room_is_named_when_it_stands_still(
    acknowledged: bool, shown: bool, named: str
) -> None:
    async with running(Bench(stored={T0: 9})) as bench:
        bench.reader.answers = [[(T0, [a_batch(10, 5)])]]
        await bench.task.poll(1)
        bench.task.hold([T0])
        if shown:
            bench.context.shown.add(T0)
        if acknowledged:
            bench.task.delivered(delivery(T0, Run(10, 5, 0)))
        for end in range(20, 24):
            bench.reader.ends[T0], bench.reader.lags[T0] = end, end - 15
            await bench.context.clock.advance(CHECK_S)
        text, *_ = bench.context.findings.get("stalled", ("",))
        assert (named in text) if named else not text


async def test_a_partition_given_up_is_dropped_and_its_buffers_are_returned() -> None:
    bench, lease = Bench(), CountedLease()
    async with running(bench):
        bench.task.failed(T0, PartitionError("too large", topic="t", partition=0))
        bench.reader.answers = [[(T0, [a_batch(0, 1, lease=lease)]), (T1, [a_batch(0, 1)])]]
        polled = await bench.task.poll(1)
        assert [out.source for out in polled] == [T1]
        assert bench.reader.dropped == [T0]
        assert lease.count == 0


async def test_what_was_read_behind_a_loss_alone_is_read_again() -> None:
    async with running(Bench()) as bench:
        bench.reader.answers = [[(T0, [a_batch(10, 5)])], [(T0, [a_batch(20, 5)])]]
        await bench.task.poll(1)
        bench.reader.events.on_gap(SourceGap(T0, 15, 19, "retention", "deleted"))
        await bench.task.poll(1)
        bench.task.hold([T0])
        assert not bench.task.read_again(T0, 10, 10), "the loss would be reported twice"
        assert not bench.task.read_again(T0, 20, 5), "what lies before it is under way"
        bench.task.delivered(delivery(T0, Run(10, 5, 0)))
        assert bench.task.read_again(T0, 20, 5)
        assert bench.reader.position(T0) == 20
        bench.task.release([T0])
        bench.reader.answers = [[(T0, [a_batch(20, 5)])]]
        assert await bench.task.poll(1)
    assert [(it.first_offset, it.last_offset) for it in bench.context.gaps] == [(15, 19)]


async def test_at_the_end_a_lost_tail_begins_at_what_was_not_delivered() -> None:
    async with running(Bench()) as bench:
        bench.reader.last_gaps = [
            SourceGap(T0, 25, 39, "recreated", "x"),
            SourceGap(T1, 5, 9, "recreated", "x"),
        ]
        bench.reader.answers = [[(T0, [a_batch(20, 5)])]]
        assert await bench.task.poll(1)
    gaps = [(gap.partition, gap.first_offset, gap.last_offset) for gap in bench.context.gaps]
    assert gaps == [(T0, 20, 39), (T1, 5, 9)]


@pytest.mark.parametrize(
    ("config", "first"),
    [({"recreate.policy": "stop"}, 15), ({"gap.policy": "FAIL"}, 15), ({}, 20)],
    ids=["stop", "fail", "continue"],
)
async def test_what_was_read_and_goes_with_a_partition_that_stops_is_lost_too(
    config: dict[str, str], first: int
) -> None:
    async with running(Bench(config)) as bench:
        bench.reader.answers = [[(T0, [a_batch(10, 5)])]]
        await bench.task.poll(1)
        bench.reader.unread = {T0: 5}
        bench.reader.events.on_gap(SourceGap(T0, 20, 29, "recreated", "new topic id"))
        (gap,) = bench.context.gaps
        assert (gap.first_offset, gap.last_offset, gap.under_way) == (first, 29, 10)
        bench.reader.unread, bench.reader.began = {T1: 3}, {T1: 7}
        bench.reader.events.on_gap(SourceGap(T1, 10, 9, "recreated", "new topic id"))
        assert bench.context.gaps[1].count == (3 if config else 0)


@pytest.mark.parametrize(("policy", "stops"), [("continue", False), ("stop", True)])
async def test_a_recreated_topic_stops_its_partition_if_asked_to_and_what_cannot_be_read_its_own(
    policy: str, stops: bool
) -> None:
    async with running(Bench({"recreate.policy": policy})) as bench:
        bench.reader.events.on_failed(T1, PartitionError("bad CRC", topic="t", partition=1))
        bench.reader.events.on_gap(SourceGap(T0, 5, 4, "recreated", "new topic id"))
        await bench.task.poll(1)
    assert set(bench.reader.dropped) == {T1} | ({T0} if stops else set())
    first, *others = bench.context.states
    assert first == (T1, PartitionState.FAILED, "t-1: bad CRC")
    assert [state for _, state, _ in others] == ([PartitionState.FAILED] if stops else [])


async def test_a_stalled_source_is_said_once_per_cause_and_when_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with running(Bench()) as bench:
        caplog.clear()
        away = ConnectionFailedError("broker 1 is away")
        for _ in range(3):
            for tp in (T0, T1):
                bench.reader.events.on_stalled(tp, away)
        await bench.context.clock.advance(0.5)
        for tp in (T0, T1, DASH):
            bench.reader.events.on_stalled(tp, None)
        await bench.context.clock.advance(0.5)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    why = "a broker of the source A does not answer: broker 1 is away"
    assert is_away(why)
    assert bench.context.states == [
        (T0, PartitionState.HELD, why),
        (T1, PartitionState.HELD, why),
        (T0, PartitionState.RUNNING, ""),
        (T1, PartitionState.RUNNING, ""),
    ]


async def test_lag_counts_what_is_read_but_not_acknowledged() -> None:
    async with running(Bench(stored={T0: 9})) as bench:
        bench.reader.lags = {T0: 50, T1: 7}
        bench.reader.answers = [[(T0, [a_batch(10, 20), a_batch(30, 5)])]]
        await bench.task.poll(1)
        await bench.task.poll(1)
        assert bench.context.lags == {T0: (50, -1), T1: (7, -1)}
        assert bench.context.lag_reports == 2, "once a second, not per poll"
        await a_second_later(bench)
        assert bench.context.lags[T0] == (75, -1)
        bench.task.delivered(delivery(T0, Run(10, 20, 100)))
        await a_second_later(bench)
        assert bench.context.lags[T0] == (55, 5)
        bench.task.delivered(delivery(T0, Run(30, 5, 120)))
        await a_second_later(bench)
        assert bench.context.lags[T0] == (50, 5)


async def test_while_nothing_is_answered_or_delivered_partitions_are_looked_at_seldom() -> None:
    async with running(Bench(stored={T0: 9})) as bench:
        bench.reader.lags = {T0: 50}
        bench.reader.answers = [[(T0, [a_batch(10, 20)])]]
        await bench.task.poll(1)
        bench.reader.quiet = True
        for _ in range(20):
            await a_second_later(bench)
        quiet = bench.context.lag_reports
        assert quiet <= 1 + 2 + 20 // 5
        bench.task.delivered(delivery(T0, Run(10, 20, 100)))
        await a_second_later(bench)
        assert bench.context.lag_reports == quiet + 1, "what arrives is seen in the next second"


async def test_a_partition_of_which_nothing_comes_is_not_looked_at_for_the_others() -> None:
    async with running(Bench(stored={T0: 9, T1: 9})) as bench:
        bench.reader.lags = {T0: 50, T1: 7}
        bench.reader.quiet = True
        for _ in range(5):
            await a_second_later(bench)
        bench.reader.lags = {T0: 60, T1: 8}
        bench.reader.news = {T0}
        await a_second_later(bench)
        assert bench.context.lags == {T0: (60, -1), T1: (7, -1)}
        for _ in range(5):
            await a_second_later(bench)
        assert bench.context.lags[T1] == (8, -1), "all of them, now and then"
        bench.reader.lags = {T0: 60}
        for _ in range(5):
            await a_second_later(bench)
        assert bench.context.lags[T1] == (-1, -1), "not known is reported as well"


async def test_a_lag_is_unknown_once_its_source_is_silent_and_not_reported_as_0_before() -> None:
    async with running(Bench(stored={T0: 9, T1: 9})) as bench:
        bench.reader.lags = {T0: 0, T1: 7}
        await bench.task.poll(1)
        reports = bench.context.lag_reports
        bench.reader.silent = {T0: CURRENT_S + 1, T1: CURRENT_S + 1}
        await a_second_later(bench)
        assert bench.context.lag_reports == reports + 1, "without lag it would count as copied"
        bench.reader.silent = {T0: UNKNOWN_AFTER_S + 1}
        await a_second_later(bench)
        assert bench.context.lags == {T0: (-1, -1), T1: (7, -1)}
        bench.reader.silent = {}
        await a_second_later(bench)
        assert bench.context.lags == {T0: (0, -1), T1: (7, -1)}


async def test_a_throttle_of_the_source_is_shown_with_the_time_that_is_left() -> None:
    async with running(Bench(stored={T0: 9})) as bench:
        bench.reader.throttled = {1: 40.2, 2: 0.5}
        await bench.context.clock.advance(HELD_LAG_S)
        text, _, harms = bench.context.findings["quota of the source"]
        assert "holds back what is read; time left: broker 1: 41 s (" in text
        assert not harms
        bench.reader.throttled = {2: 0.5}
        await bench.context.clock.advance(HELD_LAG_S)
        assert "quota of the source" not in bench.context.findings, "kept quotas pause for moments"


async def test_lags_stay_true_while_no_poll_comes() -> None:
    async with running(Bench(stored={T0: 9, T1: 9})) as bench:
        bench.reader.lags = {T0: 0, T1: 0}
        await bench.task.poll(1)
        bench.reader.silent = {T0: UNKNOWN_AFTER_S + 1}
        bench.reader.unread = {T1: 20}
        await bench.context.clock.advance(2 * HELD_LAG_S)
        assert bench.context.lags == {T0: (-1, -1), T1: (20, -1)}, "what was read lags, too"
        assert bench.reader.ends_asked == 0


async def test_offset_syncs_on_the_target_go_there_under_the_sources_name() -> None:
    async with running(Bench({"offset-syncs.topic.location": "target"})) as bench:
        bench.task.delivered(delivery(T0, Run(0, 1, 0)))
        ((tp, _),) = bench.region.writers[0].records
        assert tp.topic == "mm2-offset-syncs.A.internal"
        assert bench.region.client_ids[-1].endswith("|offset-syncs-target-producer")


async def test_without_offset_syncs_no_writer_is_opened() -> None:
    async with running(Bench({"emit.offset-syncs.enabled": "false"})) as bench:
        bench.task.delivered(delivery(T0, Run(0, 1, 0)))
        await bench.task.commit()
    assert bench.region.writers == []


def no_producer_id(bench: Bench, error: ServerError | None) -> None:
    bench.region.writers[0].start_error = error


def no_write(bench: Bench, error: ServerError | None) -> None:
    topic = "mm2-offset-syncs.B.internal"
    bench.region.source.unwritable_topics = {} if error is None else {topic: error}


@pytest.mark.parametrize("refuse", [no_producer_id, no_write])
async def test_a_source_that_refuses_offset_syncs_is_copied_all_the_same_and_named_before_there_is_one(
    refuse: Callable[[Bench, ServerError | None], None],
) -> None:
    bench = Bench()
    await bench.task.start()
    # The writer starts in the background: the refusal is in place before it runs.
    try:
        error = server_error(TOPIC_AUTHORIZATION_FAILED, "refused")
        error.remedy = "grant Write"
        refuse(bench, error)
        await bench.context.clock.advance(1)
        text, _, harms = bench.context.findings["offset syncs"]
        assert "grant Write; or set offset-syncs.topic.location=target" in text
        assert harms
        bench.reader.answers = [[(T0, [a_batch(0, 1)])]]
        assert len(await bench.task.poll(1)) == 1
        bench.task.delivered(delivery(T0, Run(0, 1, 0)))
        await bench.task.commit()
        await bench.context.clock.advance(10)
        assert bench.syncs() == []
        refuse(bench, None)
        await bench.context.clock.advance(11)
        assert bench.syncs() == [(0, 0)]
        assert bench.context.findings == {}
    finally:
        await bench.task.stop()


async def test_positions_are_tied_to_the_incarnation_they_belong_to() -> None:
    bench = Bench(stored={T0: 9})
    old, new = b"o" * 16, b"n" * 16
    bench.context.known_ids = {T0: old, T1: old}

    async with running(bench):
        assert bench.reader.topic_ids == {T0: old}, "without a position any incarnation will do"
        bench.reader.topic_ids[T1] = new
        await a_second_later(bench)
        await a_second_later(bench)
        assert sorted(bench.context.ids) == [(T0, old), (T1, new)]
        # Two records of the old one are under way, one is read, when the topic is another.
        bench.reader.answers = [[(T0, [a_batch(10, 2)])], [(T0, [a_batch(12, 1), a_batch(0, 3)])]]
        await bench.task.poll(1)
        bench.reader.unread[T0] = 1
        bench.reader.topic_ids[T0] = new
        bench.reader.events.on_gap(SourceGap(T0, 13, 12, "recreated", "new topic id", new))
        assert (bench.context.gaps[-1].topic_id, bench.context.gaps[-1].under_way) == (new, 3)
        await a_second_later(bench)
        for run in (Run(10, 2, 100), Run(12, 1, 102), Run(0, 1, 103), Run(1, 2, 104)):
            bench.task.delivered(delivery(T0, run))
        await a_second_later(bench)
        assert len(bench.context.ids) == 2, "the gap has named it"


async def test_a_position_that_names_its_topic_needs_no_ledger() -> None:
    bench = Bench()
    mine, noted = b"m" * 16, b"n" * 16
    bench.context.known_ids = {T0: noted, T1: noted}
    named: SourceOffset = {"offset": 9, "topic_id": f"{mine.hex()}@9"}
    edited: SourceOffset = {"offset": 7, "topic_id": f"{mine.hex()}@9"}
    for partition, stored in ((T0, named), (T1, edited)):
        bench.context.store(bench.task.source_partition(partition), stored)
    async with running(bench):
        assert bench.reader.topic_ids == {T0: mine, T1: noted}
        bench.reader.answers = [[(T0, [a_batch(10, 1)]), (T1, [a_batch(8, 1)])]]
        await bench.task.poll(1)
        assert bench.context.ids == [(T1, noted)]


async def test_what_a_backfill_copies_is_left_out_and_taken_over_behind_its_last_record() -> None:
    bench = Bench(stored={T1: 9})
    bench.context.kept_out = frozenset({T0})
    async with running(bench):
        assert bench.reader.positions == {T1: 10, DASH: EARLIEST}
        assert bench.context.left_out == {T0}
        bench.context.store(bench.task.source_partition(T0), {"offset": 99})
        await bench.task.take_over({T0, TopicPartition("not-ours", 0)})
        assert bench.reader.positions == {T1: 10, DASH: EARLIEST, T0: 100}


async def test_a_partition_is_read_up_to_its_end_and_covered_with_the_last_delivery() -> None:
    bench = Bench({"task.end.offsets": "t-0:8"})
    lease = CountedLease()
    async with running(bench):
        straddling = a_batch(4, 2), a_batch(6, 4), a_batch(10, 3, lease=lease)
        bench.reader.answers.append([(T0, list(straddling)), (T1, [a_batch(0, 20)])])
        handed = {out.source: out.batches for out in await bench.task.poll(1)}
        assert [batch.base_offset for batch in handed[T0]] == [4, 6]
        assert len(handed[T1]) == 1
        assert lease.count == 0
        await bench.task.poll(1)
        assert bench.reader.dropped == [T0]
        assert (T0, 9) not in bench.context.covered
        bench.task.delivered(delivery(T0, Run(4, 6, 0)))
        await bench.task.poll(1)
        assert (T0, 9) in bench.context.covered


@pytest.mark.parametrize("ends", ["t-0", "t-0:", "t-0:x", "t:5"])
def test_an_end_that_is_no_offset_is_refused(ends: str) -> None:
    with pytest.raises(ConfigError):
        Bench({"task.end.offsets": ends})
