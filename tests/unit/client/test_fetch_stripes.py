"""Partitions that lag on a distant broker are read over several connections, complete and in order."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from mm2py.client.fetch.fetcher import BUFFER_BYTES
from mm2py.protocol.error_codes import (
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
)
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import Outcome
from tests.kit.fakes.fetcher_rig import FETCH, FIRST, SECOND, Rig, fetching
from tests.kit.lines.delay_proxy import DelayProxy
from tests.property.effort import examples

ROUND_TRIP_S = 0.03
BATCH = 10
PAD = 1_000
BACKLOG = 4_000


@asynccontextmanager
async def distant(
    *,
    connections: int = 5,
    partitions: int = 2,
    round_trip_s: float = ROUND_TRIP_S,
    isolation: str = "read_uncommitted",
    versions: dict[int, tuple[int, int]] | None = None,
    partition_bytes: int = 1 << 20,
    set_in_file: bool = False,
    bytes_per_s: int = 0,
    buffer_bytes: int = BUFFER_BYTES,
) -> AsyncGenerator[Rig]:
    """A Fetcher and a broker with a long way between them."""
    with DelayProxy() as line:
        line.set_round_trip(round_trip_s)
        async with fetching(
            line=line,
            connections=connections,
            partitions=partitions,
            isolation=isolation,
            versions=versions,
            partition_bytes=partition_bytes,
            partition_bytes_set=set_in_file,
            bytes_per_s=bytes_per_s,
            buffer_bytes=buffer_bytes,
        ) as rig:
            yield rig


def backlog(rig: Rig, tp: TopicPartition, first: int, last: int, *, pad: int = PAD) -> None:
    for number in range(first, last, BATCH):
        rig.fill(tp, range(number, min(number + BATCH, last)), pad=pad)


def passed(rig: Rig, offset: int) -> bool:
    return rig.fetcher.position(FIRST) > offset


async def read_whole(rig: Rig, end: int, *tps: TopicPartition, start: int = 0) -> None:
    """Read these (FIRST) to their end, once and in order, and without a loss."""
    for tp in tps or (FIRST,):
        await rig.until(partial(ended, rig, tp, end))
        await rig.take()
        assert rig.read[tp] == list(range(start, end))
    assert (rig.gaps, rig.failed) == ([], [])


def ended(rig: Rig, tp: TopicPartition, end: int) -> bool:
    return rig.fetcher.position(tp) == end


@pytest.mark.parametrize(
    ("connections", "round_trip_s", "used"),
    [(1, ROUND_TRIP_S, 1), (5, ROUND_TRIP_S, 5), (5, 0.0, 1)],
    ids=["one is allowed", "five are allowed", "nearby one is enough"],
)
async def test_a_single_partition_is_read_over_as_many_connections_as_are_allowed_and_needed(
    connections: int, round_trip_s: float, used: int
) -> None:
    async with distant(connections=connections, round_trip_s=round_trip_s) as rig:
        backlog(rig, FIRST, 0, BACKLOG)
        await rig.fetcher.assign({FIRST: 0})
        before = rig.broker.connections
        await read_whole(rig, BACKLOG)
        assert rig.broker.connections - before == used


async def test_a_broker_that_only_seemed_distant_is_read_over_one_connection_again() -> None:
    with DelayProxy(round_trip_s=ROUND_TRIP_S) as line:
        async with fetching(line=line, connections=5) as rig:
            backlog(rig, FIRST, 0, 2 * BACKLOG)
            await rig.fetcher.assign({FIRST: 0})
            await rig.until(partial(passed, rig, 500))
            line.set_round_trip(0.0)
            end, rounds = 2 * BACKLOG, rig.broker.cluster.fetches
            await rig.until(lambda: rig.fetcher.position(FIRST) == end)
            # On a busy machine it may take several backlogs until an answer is quick.
            while any(epoch < 0 for epoch, _, _ in rounds):
                rounds.clear()
                end += BACKLOG
                backlog(rig, FIRST, end - BACKLOG, end)
                await rig.until(partial(passed, rig, end - 1))
            assert rig.read[FIRST] == list(range(end))


async def test_what_comes_after_the_backlog_is_read_in_the_session_again() -> None:
    async with distant() as rig:
        backlog(rig, FIRST, 0, BACKLOG)
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == BACKLOG)
        backlog(rig, FIRST, BACKLOG, BACKLOG + 20)
        await rig.until(lambda: rig.fetcher.position(FIRST) == BACKLOG + 20)
        rounds = rig.broker.cluster.fetches
        await rig.until(lambda: rounds[-1][0] > 0)
        assert rig.read[FIRST] == list(range(BACKLOG + 20))


@pytest.mark.parametrize("steps", [(1, 40, 3, 200, 10), (200, 1), (10, 10, 10, 400)])
async def test_batches_of_any_sizes_leave_neither_holes_nor_doubles(steps: tuple[int, ...]) -> None:
    async with distant() as rig:
        number = 0
        while number < BACKLOG:
            size = steps[number % len(steps)]
            rig.fill(FIRST, range(number, number + size), pad=50 + number % 3_000)
            number += size
        await rig.fetcher.assign({FIRST: 5})
        await read_whole(rig, number, start=5)


@pytest.mark.parametrize("set_in_file", [False, True])
async def test_batches_of_which_few_fit_into_an_answer_are_read_in_order(set_in_file: bool) -> None:
    async with distant(partition_bytes=100_000, set_in_file=set_in_file) as rig:
        backlog(rig, FIRST, 0, 400, pad=20_000)
        backlog(rig, SECOND, 0, 400, pad=5_000)
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await read_whole(rig, 400, FIRST, SECOND)


async def test_an_open_transaction_ends_the_stripes_before_it() -> None:
    async with distant(isolation="read_committed") as rig:
        backlog(rig, FIRST, 0, BACKLOG)
        rig.broker.partition(FIRST).open_transaction_at = BACKLOG - 100
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == BACKLOG - 100)
        rig.broker.partition(FIRST).open_transaction_at = -1
        rig.broker.cluster.wake()
        await read_whole(rig, BACKLOG)


async def test_many_partitions_that_lag_share_small_buffers_and_none_waits_for_ever() -> None:
    tps = [TopicPartition("t", number) for number in range(20)]
    async with distant(partitions=len(tps), buffer_bytes=2 << 20) as rig:
        for tp in tps:
            for number in range(0, 400, 20):
                # Stripe borders are guessed from what was read before, so sizes that change leave holes.
                rig.fill(
                    tp, range(number, number + 20), pad=100 + 97 * (number * tp.partition % 53)
                )
        await rig.fetcher.assign(dict.fromkeys(tps, 0))
        await read_whole(rig, 400, *tps)


@pytest.mark.fuzz
@pytest.mark.parametrize("turn", range(examples(2, share=0.002)))
async def test_no_fault_in_the_middle_loses_doubles_or_reorders(turn: int, seed: int) -> None:
    chance = random.Random(seed + turn)
    codes = (NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR)
    async with distant(round_trip_s=0.015) as rig:
        wanted: dict[TopicPartition, list[int]] = {}
        for tp in (FIRST, SECOND):
            number = 0
            while number < BACKLOG:
                size = chance.choice((1, 5, 20, 100))
                rig.fill(tp, range(number, number + size), pad=chance.choice((20, 500, 3_000)))
                number += size
            log = rig.broker.partition(tp)
            log.batches[:-1] = [batch for batch in log.batches[:-1] if chance.random() > 0.2]
            wanted[tp] = [
                n for it in log.batches for n in range(it.base_offset, it.last_offset + 1)
            ]
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        for _ in range(40):
            await rig.take()
            match chance.randrange(12):
                case 0:
                    await rig.broker.disconnect()
                case 1:
                    rig.broker.fail_next(FETCH, "disconnect", times=chance.randint(1, 3))
                case 2:
                    rig.broker.fail_next(FETCH, chance.choice(codes), times=chance.randint(1, 6))
                case 3:
                    rig.fetcher.pause([FIRST])
                case 4:
                    rig.broker.cluster.move_leader(SECOND, 1)
                case _:
                    rig.fetcher.resume([FIRST])
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: all(rig.read.get(tp, [])[-1:] == wanted[tp][-1:] for tp in wanted))
        assert rig.read == wanted
        assert (rig.gaps, rig.failed) == ([], [])


async def test_a_byte_rate_holds_for_all_connections_together() -> None:
    async with distant(bytes_per_s=2_000_000) as rig:
        backlog(rig, FIRST, 0, BACKLOG)
        clock = asyncio.get_running_loop()
        began = clock.time()
        await rig.fetcher.assign({FIRST: 0})
        await read_whole(rig, BACKLOG)
        assert BACKLOG * PAD / (clock.time() - began) < 2 * 2_000_000


async def test_holes_of_compaction_are_passed_over_and_nothing_else_is() -> None:
    async with distant() as rig:
        backlog(rig, FIRST, 0, BACKLOG)
        log = rig.broker.partition(FIRST)
        kept = [batch for batch in log.batches if batch.base_offset // 100 % 4 in (0, 3)]
        log.batches[:] = kept
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == BACKLOG)
        assert rig.read[FIRST] == [n for n in range(BACKLOG) if n // 100 % 4 in (0, 3)]
        assert (rig.gaps, rig.failed) == ([], [])


@asynccontextmanager
async def in_the_middle(versions: dict[int, tuple[int, int]] | None = None) -> AsyncGenerator[Rig]:
    """A rig that has read an eighth of what there is of FIRST."""
    async with distant(versions=versions) as rig:
        backlog(rig, FIRST, 0, 2 * BACKLOG)
        await rig.fetcher.assign({FIRST: 0})
        await rig.until(partial(passed, rig, BACKLOG // 4))
        yield rig


async def test_connections_that_die_in_the_middle_lose_and_double_nothing() -> None:
    async with in_the_middle() as rig:
        for reached in (500, 2_000, 4_000):
            await rig.until(partial(passed, rig, reached))
            await rig.broker.disconnect()
        await read_whole(rig, 2 * BACKLOG)


@pytest.mark.parametrize(
    ("outcome", "times"),
    [("disconnect", 1), (NOT_LEADER_OR_FOLLOWER, 3), (OFFSET_OUT_OF_RANGE, 3)],
    ids=["one connection dies", "no leader", "out of range"],
)
async def test_what_fails_ahead_of_the_position_is_asked_again(
    outcome: Outcome, times: int
) -> None:
    async with in_the_middle() as rig:
        rig.broker.fail_next(FETCH, outcome, times)
        await read_whole(rig, 2 * BACKLOG)


async def test_a_quota_in_the_middle_is_waited_for_on_all_connections_without_an_error() -> None:
    async with in_the_middle() as rig:
        before, cluster = rig.broker.connections, rig.broker.cluster
        sessions = [it for it in cluster.fetches if it[0] >= 0]
        cluster.throttle_ms, cluster.throttled = 5, 40
        await rig.until(lambda: not cluster.throttled)
        assert [it for it in cluster.fetches if it[0] >= 0] == sessions, "it is not handed back"
        cluster.throttle_ms = 0
        await read_whole(rig, 2 * BACKLOG)
        assert rig.broker.connections == before


async def test_a_broker_that_accepts_few_connections_is_read_over_those() -> None:
    async with distant() as rig:
        backlog(rig, FIRST, 0, 2 * BACKLOG)
        rig.broker.most_connections = rig.broker.connections + 3
        await rig.fetcher.assign({FIRST: 0})
        await read_whole(rig, 2 * BACKLOG)
        assert rig.broker.connections == rig.broker.most_connections
        assert rig.stalled == []


async def test_a_partition_that_is_held_keeps_its_place() -> None:
    async with in_the_middle() as rig:
        rig.fetcher.pause([FIRST])
        held = sum(map(len, rig.read.values()))
        for _ in range(4):
            await rig.take()
        assert sum(map(len, rig.read.values())) == held
        rig.fetcher.resume([FIRST])
        await read_whole(rig, 2 * BACKLOG)


async def test_a_topic_created_anew_in_the_middle_is_read_from_its_beginning() -> None:
    async with in_the_middle({FETCH: (4, 17)}) as rig:
        rig.broker.create_topic("t", 2)
        backlog(rig, FIRST, 0, BACKLOG)
        await rig.until(lambda: bool(rig.gaps) and rig.fetcher.position(FIRST) == BACKLOG)
        ((tp, first, last, cause),) = rig.gaps
        assert (tp, last, cause) == (FIRST, 2 * BACKLOG - 1, "recreated")
        assert rig.read[FIRST] == [*range(first), *range(BACKLOG)]


async def test_a_log_that_is_cut_in_the_middle_is_noticed_and_read_from_the_cut() -> None:
    async with in_the_middle() as rig:
        await rig.until(partial(passed, rig, BACKLOG // 2))
        cut = BACKLOG // 4
        rig.broker.partition(FIRST).truncate_to(cut)
        rig.broker.cluster.move_leader(FIRST, 1)
        backlog(rig, FIRST, cut, 2 * BACKLOG)
        await rig.until(lambda: rig.fetcher.position(FIRST) == 2 * BACKLOG)
        ((tp, first, last, cause),) = rig.gaps
        assert (tp, first, cause) == (FIRST, cut, "truncation")
        assert rig.read[FIRST] == [*range(last + 1), *range(cut, 2 * BACKLOG)]


async def test_a_fetcher_that_is_closed_in_the_middle_gives_all_buffers_back() -> None:
    async with in_the_middle() as rig:
        await rig.fetcher.close()
        await rig.cluster.close()
        await eventually(lambda: rig.cluster.pool.leased_bytes == 0)
