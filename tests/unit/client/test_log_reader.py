"""An internal topic is read to its end, and followed: what is new arrives by itself, and trouble passes."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.client import pacing
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch import partition_fetch
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.fetch.partition_fetch import PartitionReads, fetch_partition
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import (
    ConnectionFailedError,
    FatalServerError,
    Mm2pyError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
    RetriableServerError,
)
from mm2py.protocol.error_codes import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from mm2py.protocol.records import NewRecord, Record, decode_batches, encode_batch
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import COMMIT, marker
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.late_clock import LateClock
from tests.unit.client.client_stage import connected_to, signed

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
DENIED = r"TOPIC_AUTHORIZATION_FAILED.*--operation Read --topic log"
Seen = list[tuple[int, int, bytes | None]]
TP, OTHER = TopicPartition("log", 0), TopicPartition("log", 1)


def batch(*values: str) -> bytes:
    return signed(*(value.encode() for value in values))


@asynccontextmanager
async def log_reader(
    *, api_timeout_ms: int = 5000, topic: str = "log", waits_for_topic: bool = True
) -> AsyncGenerator[tuple[FakeBroker, LogReader]]:
    async with (
        FakeBroker(topics={"log": 2}) as broker,
        connected_to(broker, alias="x", default_api_timeout_ms=api_timeout_ms) as cluster,
    ):
        reader = LogReader(cluster, topic, clock=SYSTEM_CLOCK, waits_for_topic=waits_for_topic)
        yield broker, reader


async def read(reader: LogReader) -> Seen:
    seen: Seen = []

    def handle(partition: int, record: Record) -> None:
        seen.append((partition, record.offset, record.value))

    await reader.read_to_end(handle)
    return sorted(seen)


def values(seen: Seen) -> Sequence[bytes | None]:
    return [value for _, _, value in seen]


@pytest.mark.parametrize(
    ("stored", "start", "end", "expected", "fetches"),
    [
        ([], 0, 0, [], 0),
        ([(3, batch("a")), (10, batch("b"))], 0, 20, [(3, b"a"), (10, b"b")], None),
        (
            [(0, batch("a")), (1, bytes(marker(1, 7, COMMIT))), (2, batch("b"))],
            0,
            3,
            [(0, b"a"), (2, b"b")],
            None,
        ),
        ([(0, batch("a", "b", "c"))], 1, 3, [(1, b"b"), (2, b"c")], None),
    ],
    ids=["empty: not fetched", "holes of compaction", "control batches", "begins inside a batch"],
)
async def test_a_topic_is_read_to_its_end(
    stored: list[tuple[int, bytes]],
    start: int,
    end: int,
    expected: list[tuple[int, bytes]],
    fetches: int | None,
) -> None:
    async with log_reader() as (broker, reader):
        log = broker.partition(TP)
        for offset, data in stored:
            log.put(data, offset)
        log.end = end
        log.delete_before(start)
        assert await read(reader) == [(0, *it) for it in expected]
        assert fetches in {None, broker.count(FETCH)}
        assert await read(reader) == []


async def test_cleanup_that_overtakes_the_reader_sends_it_to_the_log_start() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        assert values(await read(reader)) == [b"a"]
        for value in "bcd":
            broker.append(TP, batch(value))
        broker.partition(TP).delete_before(3)
        assert values(await read(reader)) == [b"d"]


async def test_lost_connections_and_moved_leaders_are_survived() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a", "b"))
        broker.fail_next(METADATA, 3)
        broker.fail_next(LIST_OFFSETS, 6)
        broker.fail_next(LIST_OFFSETS, "disconnect")
        for outcome in (6, 74, 3):
            broker.fail_next(FETCH, outcome)
        broker.fail_next(FETCH, "disconnect", 2)
        assert values(await read(reader)) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("api", "code", "error", "said"),
    [
        *((api, 29, FatalServerError, DENIED) for api in (FETCH, LIST_OFFSETS, METADATA)),
        (FETCH, 6, RequestTimedOutError, "500 ms: NOT_LEADER_OR_FOLLOWER"),
    ],
)
async def test_what_cannot_be_read_ends_the_read_with_its_cause(
    api: int, code: int, error: type[Exception], said: str
) -> None:
    async with log_reader(api_timeout_ms=500) as (broker, reader):
        broker.append(TP, batch("a"))
        broker.fail_next(api, code, 10_000)
        with pytest.raises(error, match=said):
            await read(reader)


async def test_a_damaged_batch_is_named() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        broker.partition(TP).put(batch("b")[:-1] + b"\1", 1)
        with pytest.raises(ProtocolError, match=r"log-0 of cluster x .* from offset 1"):
            await read(reader)


async def test_many_batches_take_several_fetches() -> None:
    async with log_reader() as (broker, reader):
        for n in range(60):
            broker.append(TP, batch(f"{n:03}" + "x" * 50_000))
        assert [value and value[:3] for value in values(await read(reader))] == [
            f"{n:03}".encode() for n in range(60)
        ]
        assert broker.count(FETCH) > 2


async def test_nothing_is_asked_while_a_quota_mutes_the_connection() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        broker.cluster.withholds, broker.cluster.throttle_ms = True, 400
        began = time.monotonic()
        reading = asyncio.create_task(read(reader))
        await eventually(lambda: broker.count(FETCH) == 1)
        broker.cluster.withholds = False
        assert values(await reading) == [b"a"]
        assert time.monotonic() - began > 0.25


async def test_a_topic_that_need_not_exist_is_not_waited_for() -> None:
    async with log_reader(topic="missing", waits_for_topic=False) as (_, reader):
        with pytest.raises(RetriableServerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await read(reader)


async def test_a_topic_that_was_created_again_is_read_from_its_beginning() -> None:
    async with log_reader() as (broker, reader):
        broker.append(TP, batch("a"))
        broker.append(TP, batch("b"))
        assert values(await read(reader)) == [b"a", b"b"]
        broker.create_topic("log", 2)
        broker.append(TP, batch("c"))
        assert values(await read(reader)) == [b"c"]


async def test_a_cut_log_is_handed_on_again_whole_where_the_newest_of_a_key_counts() -> None:
    """A follower of jobs would copy what a lane copies, by what counted before."""
    rows = ("job", "one"), ("lease", "a"), ("job", "two"), ("job", "three")
    async with FakeBroker(topics={"log": 2}) as broker, connected_to(broker, alias="x") as cluster:
        for key, value in rows:
            record = NewRecord(key.encode(), value.encode(), timestamp=1)
            broker.append(TP, bytes(encode_batch([record])))
        reader = LogReader(cluster, "log", clock=SYSTEM_CLOCK, folds=True)
        assert values(await read(reader)) == [b"one", b"a", b"two", b"three"]
        log = broker.partition(TP)
        log.batches.pop()  # an unclean election
        log.end -= 1
        assert values(await read(reader)) == [b"a", b"two"]
        broker.append(TP, bytes(encode_batch([NewRecord(None, b"c"), NewRecord(None, b"d")])))
        assert values(await read(reader)) == [b"c", b"d"]


class Bench:
    def __init__(self, broker: FakeBroker, cluster: Cluster) -> None:
        self.clock = LateClock()
        self.broker, self.reader = broker, LogReader(cluster, "log", clock=self.clock)
        self.seen: list[bytes | None] = []
        self.reports: list[str] = []

    def handle(self, _partition: int, record: Record) -> None:
        self.seen.append(record.value)

    def report(self, error: Mm2pyError | None) -> None:
        self.reports.append("well" if error is None else "trouble")

    async def saw(self, *values: bytes) -> None:
        await eventually(lambda: self.seen == list(values))


@asynccontextmanager
async def running(work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncGenerator[Bench]:
    async with (
        FakeBroker(topics={"log": 2}) as broker,
        # A third of the timeout is the longest poll.
        connected_to(broker, alias="x", request_timeout_ms=1_500) as cluster,
    ):
        bench = Bench(broker, cluster)
        broker.append(TP, batch("a"))
        await bench.reader.read_to_end(bench.handle)
        async with running(bench.reader.tail(bench.handle, on_trouble=bench.report)):
            yield bench


async def test_the_end_is_reached_when_all_that_was_there_was_handed_on_and_an_idle_topic_asked_seldom(
    bench: Bench,
) -> None:
    await bench.reader.reach_end()
    before = bench.broker.count(FETCH)
    await asyncio.sleep(0.3)
    assert bench.broker.count(FETCH) - before < 12
    bench.broker.append(TP, batch("b"))
    bench.broker.append(OTHER, batch("c"))
    await asyncio.gather(bench.reader.reach_end(), bench.reader.reach_end())
    assert sorted(value or b"" for value in bench.seen) == [b"a", b"b", b"c"]
    bench.broker.partition(TP).end = 20  # compacted away
    await bench.reader.reach_end()
    assert len(bench.seen) == 3


async def test_trouble_is_logged_once_told_again_where_its_kind_changes_and_passes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mm2py.client.fetch.log_reader")
    bench.broker.fail_next(FETCH, "disconnect", 2)
    bench.broker.fail_next(FETCH, 6, 3)
    bench.broker.fail_next(FETCH, 29, 2)
    bench.broker.append(TP, batch("b"))
    await bench.saw(b"a", b"b")
    await eventually(lambda: bench.reports == ["trouble"] * 3 + ["well"])
    assert caplog.text.count("topic cannot be followed topic=log") == 1
    assert caplog.text.count("topic is followed again topic=log") == 1


@pytest.mark.parametrize("code", [FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER])
async def test_a_leader_that_moves_is_logged_only_when_it_takes_long(
    bench: Bench, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    caplog.set_level(logging.INFO, "mm2py.client.fetch.log_reader")
    bench.broker.fail_next(FETCH, code, 3)
    bench.broker.append(TP, batch("b"))
    await bench.saw(b"a", b"b")
    bench.clock.ahead_s += 60.0  # trouble that was over does not count
    bench.broker.fail_next(FETCH, code, 3)
    bench.broker.append(TP, batch("c"))
    await bench.saw(b"a", b"b", b"c")
    assert caplog.messages == []
    asked = bench.broker.count(FETCH)
    bench.broker.append(TP, batch("d"))  # ends the long poll, as brokers do that lead no longer
    await bench.saw(b"a", b"b", b"c", b"d")
    bench.broker.fail_next(FETCH, code, 1_000_000)
    bench.broker.append(TP, batch("e"))
    await eventually(lambda: bench.broker.count(FETCH) > asked + 6)
    assert caplog.messages == []
    bench.clock.ahead_s += 5.0
    await eventually(lambda: len(caplog.messages) == 1)
    assert caplog.messages[0].startswith("topic cannot be followed topic=log")


async def test_a_damaged_batch_holds_the_follower_up_until_it_is_gone(bench: Bench) -> None:
    bench.broker.partition(TP).put(batch("b")[:-1] + b"\1", 1)
    bench.broker.append(TP, batch("c"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await bench.reader.reach_end()
    bench.broker.partition(TP).delete_before(2)
    await bench.saw(b"a", b"c")


async def test_a_log_that_starts_at_its_end_hands_on_new_records_of_chosen_partitions() -> None:
    async with FakeBroker(topics={"log": 3}) as broker, connected_to(broker) as cluster:
        reader, seen = LogReader(cluster, "log", clock=SYSTEM_CLOCK), list[bytes | None]()
        broker.append(TP, batch("old"))
        count = await reader.start_at_end(lambda number, of: number != 1 and of == 3)
        async with running(reader.tail(lambda _, record: seen.append(record.value))):
            broker.append(OTHER, batch("not chosen"))
            broker.append(TP, batch("new"))
            broker.append(TopicPartition("log", 2), batch("newer"))
            await eventually(lambda: {b"new", b"newer"} <= set(seen))
        assert (count, sorted(it or b"" for it in seen)) == (3, [b"new", b"newer"])


async def test_a_log_that_is_cut_twice_is_handed_on_when_its_new_end_is_reached() -> None:
    async with (
        FakeBroker(topics={"log": 1}) as broker,
        connected_to(broker, alias="x", request_timeout_ms=1_500) as cluster,
    ):
        for value in "abcdef":
            broker.append(TP, batch(value))
        reader, seen = LogReader(cluster, "log", clock=LateClock(), folds=True), [b""]
        cuts = [4, 2]

        def handle(_partition: int, record: Record) -> None:
            seen.append(record.value or b"")

        def cut() -> None:
            log = broker.partition(TP)
            log.end = cuts.pop(0)
            del log.batches[log.end :]

        await reader.read_to_end(handle)
        reset = reader._reset  # pyright: ignore[reportPrivateUsage]  # between its end and its first Fetch

        async def cut_after(tp: TopicPartition) -> None:
            await reset(tp)
            if cuts:
                cut()

        reader._reset = cut_after  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]
        cut()
        async with running(reader.tail(handle)):
            await eventually(lambda: seen[7:] == [b"b"])


async def test_what_is_left_of_a_log_is_handed_on_as_one_where_that_is_asked_for() -> None:
    async with (
        FakeBroker(topics={"log": 1}) as broker,
        connected_to(broker, alias="x", request_timeout_ms=1_500) as cluster,
    ):
        for value in "abc":
            broker.append(TP, batch(value))
        reader = LogReader(cluster, "log", clock=LateClock(), folds=True)
        left: list[list[bytes | None]] = []
        reader.on_again = lambda _, records: left.append([it.value for it in records])
        await read(reader)
        async with running(reader.tail(lambda _, __: None)):
            log = broker.partition(TP)
            log.batches.pop()
            log.end -= 1
            await eventually(lambda: left == [[b"b"]])
            broker.create_topic("log", 1)
            broker.fail_next(FETCH, UNKNOWN_TOPIC_OR_PARTITION, 1)
            await eventually(lambda: left == [[b"b"], []])


async def test_a_topic_that_was_created_again_is_followed_from_its_beginning(bench: Bench) -> None:
    bench.broker.append(TP, batch("b"))
    await bench.saw(b"a", b"b")
    bench.broker.create_topic("log", 2)
    bench.broker.append(TP, batch("c"))
    bench.broker.append(TP, batch("d"))
    bench.broker.append(TP, batch("e"))  # its end is behind the position in the old one
    bench.broker.fail_next(FETCH, UNKNOWN_TOPIC_OR_PARTITION, 1)
    await eventually(lambda: bench.seen[-3:] == [b"c", b"d", b"e"])


# -- many partitions of one broker are read with one Fetch at a time, whatever their batches' sizes


PARTITIONS = [TopicPartition(f"t{topic}", number) for topic in range(20) for number in range(3)]


class Rig:
    """Reads at a fake broker."""

    def __init__(self, broker: FakeBroker, cluster: Cluster) -> None:
        self.broker, self.cluster, self.tasks = broker, cluster, set[asyncio.Task[None]]()
        self.reads = PartitionReads(cluster, self._spawn)

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def value(self, tp: TopicPartition, position: int) -> bytes | None:
        fetched = await self.reads.read(tp, position)
        found = [
            it.value for batch in decode_batches(fetched.records or b"") for it in batch.records
        ]
        return None if not found else bytes(found[0] or b"")

    @property
    def fetches(self) -> int:
        return self.broker.count(FETCH)


@asynccontextmanager
async def rig() -> AsyncGenerator[Rig]:
    async with (
        FakeBroker(topics={tp.topic: 3 for tp in PARTITIONS}) as broker,
        connected_to(broker) as cluster,
    ):
        await cluster.metadata(sorted({tp.topic for tp in PARTITIONS}))
        made = Rig(broker, cluster)
        try:
            yield made
        finally:
            for task in made.tasks:
                task.cancel()
            await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_a_read_waits_for_a_quota_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pacing, "WITHHELD_S", 0.1)
    async with rig() as it:
        tp, state = PARTITIONS[0], it.broker.cluster
        it.broker.append(tp, signed(b"late"))
        state.withholds, state.throttle_ms = True, 20
        reading = asyncio.create_task(it.value(tp, 0))
        await eventually(lambda: "consumer_byte_rate" in caplog.text)
        state.withholds = False
        assert await reading == b"late"
        assert caplog.text.count("consumer_byte_rate") == 1


async def test_batches_beyond_the_limits_are_all_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_fetch, "ANSWER_BYTES", 1_000)
    async with rig() as it:
        for tp in PARTITIONS[::2]:
            it.broker.append(tp, signed(bytes(3_000)))
        values = await asyncio.gather(*(it.value(tp, 0) for tp in PARTITIONS[::2]))
        assert values == [bytes(3_000)] * 30
        assert it.fetches == 30  # a broker returns one such batch at a time


async def test_reads_that_wait_for_one_broker_go_out_together_and_an_error_concerns_its_partition_only() -> (
    None
):
    async with rig() as it:
        for number, tp in enumerate(PARTITIONS[1:]):
            it.broker.append(tp, signed(b"%d" % number))
        values = await asyncio.gather(*(it.value(tp, 0) for tp in PARTITIONS))
        assert values == [None, *(b"%d" % number for number in range(len(PARTITIONS) - 1))]
        assert it.fetches == 1
        it.broker.append(PARTITIONS[1], signed(b"b"))
        both = await asyncio.gather(it.value(PARTITIONS[1], 0), it.value(PARTITIONS[1], 1))
        assert list(both) == [b"0", b"b"], "of one partition"
        found = await asyncio.gather(
            it.value(PARTITIONS[0], 7), it.value(PARTITIONS[1], 0), return_exceptions=True
        )
        assert (type(found[0]), found[1]) == (FatalServerError, b"0")


async def test_a_broker_whose_quota_is_exceeded_is_asked_again_after_the_throttle() -> None:
    async with rig() as it:
        for tp in PARTITIONS[:2]:
            it.broker.append(tp, signed(b"x"))
        it.broker.cluster.throttle_ms = 20
        it.broker.cluster.throttled = 2
        assert await asyncio.gather(*(it.value(tp, 0) for tp in PARTITIONS[:2])) == [b"x", b"x"]
        it.broker.cluster.throttled = 2
        fetched = await fetch_partition(it.cluster, PARTITIONS[0], 0, max_bytes=1_000)
        assert fetched.records
        assert it.fetches == 6


async def test_what_a_broker_cannot_answer_is_an_error_of_each_read() -> None:
    async with rig() as it:
        it.broker.fail_next(FETCH, NOT_LEADER_OR_FOLLOWER)
        found = await asyncio.gather(
            *(it.value(tp, 0) for tp in PARTITIONS), return_exceptions=True
        )
        assert all(isinstance(error, RetriableError) for error in found)
        await it.broker.stop()
        with pytest.raises(ConnectionFailedError):
            await it.value(PARTITIONS[0], 0)


async def test_a_caller_that_leaves_does_not_hold_up_the_others() -> None:
    async with rig() as it:
        hold = it.broker.hold(FETCH)
        first = asyncio.create_task(it.value(PARTITIONS[0], 0))
        await hold.arrived.wait()
        leaving = asyncio.create_task(it.value(PARTITIONS[1], 0))
        staying = asyncio.create_task(it.value(PARTITIONS[2], 0))
        await asyncio.sleep(0)
        leaving.cancel()
        first.cancel()
        it.broker.append(PARTITIONS[2], signed(b"x"))
        hold.release()
        assert await staying == b"x"
