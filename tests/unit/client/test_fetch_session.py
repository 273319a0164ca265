"""Parts of the Fetcher: its sessions, and answers that are received in stripes."""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from mm2py.client.connect.metadata_cache import MetadataCache
from mm2py.client.fetch import node, stripes
from mm2py.client.fetch.cursor import Cursor, Lookup, Verdict
from mm2py.client.fetch.session import FetchSession
from mm2py.protocol import error_codes as codes
from mm2py.protocol.error_codes import (
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
)
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.topics import MetadataResult, PartitionMetadata, TopicMetadata
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import COMMIT, CountedLease, marker, stored_batch
from tests.kit.fakes.fetcher_rig import FETCH, FIRST, SECOND, Rig, fetching
from tests.kit.lines.delay_proxy import DelayProxy
from tests.property.effort import examples

CLIENT_QUOTAS = 48
LIMIT = 1 << 20


def cursors(count: int) -> dict[Cursor, None]:
    made = [Cursor(TopicPartition("t", index), 0, b"\x01" * 16) for index in range(count)]
    return dict.fromkeys(made)


def opened(mine: Iterable[Cursor]) -> FetchSession:
    session = FetchSession(enabled=True, by_name=False)
    session.plan(dict.fromkeys(mine), LIMIT)
    session.opened(7)
    return session


def test_only_a_partition_whose_position_moved_is_sent_again_and_in_an_idle_round_none() -> None:
    mine = cursors(3000)
    session = opened(mine)
    plan = session.plan(mine, LIMIT)
    assert (plan.session_id, plan.epoch, plan.partitions, plan.forgotten) == (7, 1, [], [])
    first, second, *_ = mine
    first.position = 5
    session.touch(first)
    session.touch(second)  # answered, but nothing moved
    plan = session.plan(mine, LIMIT)
    assert [(p.partition, p.position) for p in plan.partitions] == [(0, 5)]


def test_a_paused_partition_is_forgotten_and_a_resumed_one_comes_back() -> None:
    mine = cursors(2)
    session = opened(mine)
    first = next(iter(mine))
    first.paused = True
    session.touch(first)
    plan = session.plan(mine, LIMIT)
    assert [list(topic.partitions) for topic in plan.forgotten] == [[0]]
    assert session.size == 1
    session.opened(7)
    first.paused = False
    session.touch(first)
    assert [p.partition for p in session.plan(mine, LIMIT).partitions] == [0]


def test_a_new_cursor_for_the_same_partition_takes_over_without_being_forgotten() -> None:
    # A broker drops what is forgotten after it applied the changes of the same request.
    mine = cursors(1)
    session = opened(mine)
    old = next(iter(mine))
    new = Cursor(old.tp, 9, old.topic_id)
    session.touch(old)
    session.touch(new)
    plan = session.plan({new: None}, LIMIT)
    assert [(p.partition, p.position) for p in plan.partitions] == [(0, 9)]
    assert plan.forgotten == []
    found = session.answered(old.topic_id, 0)
    assert found is not None
    assert found.cursor is new
    # Of a new incarnation it is another partition, and the old one is forgotten.
    session.opened(7)
    new.restart(0, b"\x02" * 16)
    session.touch(new)
    plan = session.plan({new: None}, LIMIT)
    assert [p.topic_id for p in plan.partitions] == [b"\x02" * 16]
    assert [topic.topic_id for topic in plan.forgotten] == [old.topic_id]


@pytest.mark.parametrize(
    ("code", "closes"),
    [
        (codes.FETCH_SESSION_ID_NOT_FOUND, 0),
        (codes.INVALID_FETCH_SESSION_EPOCH, 7),
        (codes.FETCH_SESSION_TOPIC_ID_ERROR, 7),
    ],
)
def test_after_a_refused_session_everything_is_asked_for_anew(code: int, closes: int) -> None:
    mine = cursors(4)
    session = opened(mine)
    session.refused(code)
    plan = session.plan(mine, LIMIT)
    assert (plan.session_id, plan.epoch) == (closes, 0)
    assert len(plan.partitions) == 4
    session.opened(8)
    assert session.plan(mine, LIMIT).session_id == 8


def test_without_a_session_each_round_names_all_and_nobody_is_always_last() -> None:
    mine = {Cursor(TopicPartition(f"t{index}", 0), 0): None for index in range(3)}
    session = FetchSession(enabled=False, by_name=True)
    firsts: list[str] = []
    for _ in range(3):
        plan = session.plan(mine, LIMIT)
        session.opened(0)
        assert (plan.session_id, plan.epoch, len(plan.partitions)) == (0, -1, 3)
        firsts.append(plan.partitions[0].topic)
    assert sorted(firsts) == ["t0", "t1", "t2"]
    session = FetchSession(enabled=True, by_name=False)  # of a broker without a free slot
    for _ in range(2):
        plan = session.plan(mine, LIMIT)
        assert (plan.session_id, plan.epoch, len(plan.partitions)) == (0, 0, 3)
        session.opened(0)


# ---- through a broker ----


TP = TopicPartition("orders", 0)


def answer(
    *,
    code: int = 0,
    records: bytes | bytearray | None = None,
    diverging: tuple[int, int] | None = None,
    log_start: int = 0,
) -> FetchedPartition:
    view = None if records is None else memoryview(bytearray(records))
    return FetchedPartition(
        TP.topic, bytes(16), 0, code, 10, 10, log_start, [], -1, view, diverging, None
    )


def a_batch(base_offset: int, count: int) -> bytearray:
    return stored_batch(base_offset, count, epoch=4)


@pytest.mark.parametrize("on_disk", [True, False], ids=["at the broker", "on the way only"])
def test_a_damaged_batch_is_read_once_more_and_then_fails_the_partition(on_disk: bool) -> None:
    cursor, good = Cursor(TP, 5), a_batch(5, 3)
    damaged = good[:-1] + b"\1"
    assert cursor.take(answer(records=damaged), CountedLease())[0] is Verdict.GO_ON
    assert cursor.position == 5
    again = cursor.take(answer(records=damaged if on_disk else good), CountedLease())[0]
    assert again is (Verdict.FAILED if on_disk else Verdict.GO_ON)
    assert (cursor.position, "CRC" in cursor.cause, cursor.damaged) == (
        (5, True, True) if on_disk else (8, False, False)
    )


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (codes.OFFSET_OUT_OF_RANGE, Verdict.RESET),
        (codes.NOT_LEADER_OR_FOLLOWER, Verdict.MOVE),
        (codes.FENCED_LEADER_EPOCH, Verdict.MOVE),
        (codes.UNKNOWN_TOPIC_OR_PARTITION, Verdict.MOVE),
        (codes.UNKNOWN_TOPIC_ID, Verdict.RECREATED),
        (codes.TOPIC_AUTHORIZATION_FAILED, Verdict.REFUSED),
        (codes.CORRUPT_MESSAGE, Verdict.FAILED),
        (codes.UNSUPPORTED_COMPRESSION_TYPE, Verdict.FAILED),
        (codes.UNKNOWN_SERVER_ERROR, Verdict.UNCLEAR),
        (999, Verdict.UNCLEAR),
    ],
)
def test_error_codes_are_told_apart(code: int, verdict: Verdict) -> None:
    assert Cursor(TP, 0).take(answer(code=code), CountedLease())[0] is verdict


@pytest.mark.parametrize(
    "records",
    [a_batch(200, 1), marker(200, 5, COMMIT), marker(200, 5, COMMIT) + a_batch(201, 1)],
    ids=["data", "marker", "marker, then data"],
)
def test_what_is_deleted_while_it_is_read_is_a_loss_whatever_is_behind(records: bytearray) -> None:
    cursor = Cursor(TP, 100)
    verdict, _ = cursor.take(answer(records=records, log_start=200), CountedLease())
    assert verdict is Verdict.LOST
    assert cursor.lost == (100, 199)


def test_a_loss_is_told_before_the_damage_behind_what_was_read_after_it() -> None:
    cursor, overlapping = Cursor(TP, 100), a_batch(200, 1)
    verdict, result = cursor.take(
        answer(records=a_batch(200, 3) + overlapping, log_start=200), CountedLease()
    )
    assert result is not None
    assert [it.base_offset for it in result.batches] == [200]
    assert (verdict, cursor.lost, cursor.position) == (Verdict.LOST, (100, 199), 203)
    damaged = stored_batch(203, 1, epoch=4)
    damaged[16] = 9
    again, _ = cursor.take(answer(records=damaged, log_start=200), CountedLease())
    assert again is Verdict.FAILED


@pytest.mark.parametrize("unknown_between", [False, True])
def test_an_id_that_another_one_has_followed_never_comes_back(unknown_between: bool) -> None:
    old, new, newest = b"O" * 16, b"N" * 16, b"P" * 16
    cache, cursor = MetadataCache(), Cursor(TP, 500, old)

    def answered(topic_id: bytes, code: int = 0) -> None:
        """A broker answers Metadata, and the cursor looks for its leader."""
        partition = PartitionMetadata(0, 1, 0, 0)
        topic = TopicMetadata(TP.topic, topic_id, False, (partition,), code)
        cache.update(MetadataResult((), "c", 1, (topic,), 0, 0), 0.0)
        leader = cache.leader(TP)
        if leader is not None:
            cursor.led_by(leader)
        if cursor.lookup is Lookup.BEGINNING:
            cursor.restart(0, cursor.next_id)

    answered(old)
    if unknown_between:
        answered(old, codes.UNKNOWN_TOPIC_OR_PARTITION)
        answered(old)  # a broker that had only not heard of it yet
        assert cache.leader(TP) is not None
    answered(new)
    cursor.seek(300)  # so many records of the new one are copied
    for topic_id in (old, new):
        answered(topic_id)
        assert cursor.position == 300
    answered(newest)
    assert cursor.position == 0


# -- partitions that lag on a distant broker are read over several connections, complete and in order


ROUND_TRIP_S = 0.03
BATCH = 10
PAD = 1_000
BACKLOG = 4_000


@asynccontextmanager
async def distant(
    *, round_trip_s: float = ROUND_TRIP_S, connections: int = 5, **settings: Any
) -> AsyncGenerator[Rig]:
    """A Fetcher and a broker with a long way between them; ``settings`` as of ``fetching``."""
    with DelayProxy(round_trip_s=round_trip_s) as line:
        async with fetching(line=line, connections=connections, **settings) as rig:
            yield rig


def backlog(rig: Rig, tp: TopicPartition, first: int, last: int, *, pad: int = PAD) -> None:
    for number in range(first, last, BATCH):
        rig.fill(tp, range(number, min(number + BATCH, last)), pad=pad)


def passed(rig: Rig, offset: int) -> bool:
    return rig.fetcher.position(FIRST) > offset


async def read_whole(rig: Rig, end: int, *tps: TopicPartition) -> None:
    """Read these (FIRST) to their end, once and in order, and without a loss."""
    for tp in tps or (FIRST,):
        await rig.until(partial(ended, rig, tp, end))
        await rig.take()
        assert rig.read[tp] == list(range(end))
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
        rig.fetcher.add({FIRST: 0})
        before = rig.broker.connections
        await read_whole(rig, BACKLOG)
        assert rig.broker.connections - before == used


async def test_a_broker_that_only_seemed_distant_is_read_over_one_connection_again() -> None:
    with DelayProxy(round_trip_s=ROUND_TRIP_S) as line:
        async with fetching(line=line, connections=5) as rig:
            backlog(rig, FIRST, 0, 2 * BACKLOG)
            rig.fetcher.add({FIRST: 0})
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
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == BACKLOG)
        backlog(rig, FIRST, BACKLOG, BACKLOG + 20)
        await rig.until(lambda: rig.fetcher.position(FIRST) == BACKLOG + 20)
        rounds = rig.broker.cluster.fetches
        await rig.until(lambda: rounds[-1][0] > 0)
        assert rig.read[FIRST] == list(range(BACKLOG + 20))


@pytest.mark.parametrize("set_in_file", [False, True])
async def test_batches_of_which_few_fit_into_an_answer_are_read_in_order(set_in_file: bool) -> None:
    async with distant(partition_bytes=100_000, partition_bytes_set=set_in_file) as rig:
        backlog(rig, FIRST, 0, 400, pad=20_000)
        backlog(rig, SECOND, 0, 400, pad=5_000)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await read_whole(rig, 400, FIRST, SECOND)


async def test_an_open_transaction_ends_the_stripes_before_it() -> None:
    async with distant(isolation="read_committed") as rig:
        backlog(rig, FIRST, 0, BACKLOG)
        rig.broker.partition(FIRST).open_transaction_at = BACKLOG - 100
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == BACKLOG - 100)
        rig.broker.partition(FIRST).open_transaction_at = -1
        rig.broker.cluster.wake()
        await read_whole(rig, BACKLOG)


async def test_a_partition_that_stays_paused_keeps_no_buffers_behind_a_stripe_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause = "mm2py.client.fetch.fetcher._CHECK_S"
    monkeypatch.setattr(pause, 3_600)
    async with distant() as rig:
        backlog(rig, FIRST, 0, 3 * BACKLOG)
        rig.fetcher.add({FIRST: 0})
        await rig.until(partial(passed, rig, 2_000))
        before, hold = rig.broker.count(FETCH), rig.broker.hold(FETCH)
        await rig.until(lambda: rig.broker.count(FETCH) >= before + 2)
        rig.fetcher.pause([FIRST])

        def behind() -> int:
            """Bytes in use besides the copies that the paused partition keeps."""
            parked = rig.fetcher._parked.get(FIRST, [])  # pyright: ignore[reportPrivateUsage]
            return rig.cluster.pool.leased_bytes - sum(len(it.data) for it in parked)

        rig.broker.fail_next(FETCH, "disconnect")
        hold.release()
        await rig.until(lambda: behind() > 0)
        monkeypatch.setattr(pause, 0.3)
        rig.fetcher._next_check = 0  # pyright: ignore[reportPrivateUsage]
        await rig.until(lambda: behind() == 0)
        rig.fetcher.resume([FIRST])
        await read_whole(rig, 3 * BACKLOG)


async def test_many_partitions_that_lag_share_small_buffers_and_none_waits_for_ever() -> None:
    tps = [TopicPartition("t", number) for number in range(20)]
    async with distant(partitions=len(tps), buffer_bytes=2 << 20) as rig:
        for tp in tps:
            for number in range(0, 400, 20):
                # Stripe borders are guessed from what was read before, so sizes that change leave holes.
                rig.fill(
                    tp, range(number, number + 20), pad=100 + 97 * (number * tp.partition % 53)
                )
        rig.fetcher.add(dict.fromkeys(tps, 0))
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
        rig.fetcher.add({FIRST: 0, SECOND: 0})
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
        rig.fetcher.add({FIRST: 0})
        await read_whole(rig, BACKLOG)
        assert BACKLOG * PAD / (clock.time() - began) < 2 * 2_000_000


@asynccontextmanager
async def in_the_middle(versions: dict[int, tuple[int, int]] | None = None) -> AsyncGenerator[Rig]:
    """A rig that has read an eighth of what there is of FIRST."""
    async with distant(versions=versions) as rig:
        backlog(rig, FIRST, 0, 2 * BACKLOG)
        rig.fetcher.add({FIRST: 0})
        await rig.until(partial(passed, rig, BACKLOG // 4))
        yield rig


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


async def test_a_quota_that_was_lifted_is_not_waited_for_where_all_is_read_in_stripes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (node, stripes):
        monkeypatch.setattr(module, "QUOTAS_EVERY_S", 0.5)  # an answer has so long
    async with in_the_middle() as rig:
        cluster = rig.broker.cluster
        cluster.quotas["client"] = 1.0
        cluster.throttle_ms, cluster.throttled = 600_000, 1_000
        await rig.until(lambda: rig.broker.count(CLIENT_QUOTAS) > 1)
        cluster.quotas.clear()
        cluster.throttle_ms = cluster.throttled = 0
        await read_whole(rig, 2 * BACKLOG)


async def test_a_broker_that_accepts_few_connections_is_read_over_those() -> None:
    async with distant() as rig:
        backlog(rig, FIRST, 0, 2 * BACKLOG)
        rig.broker.most_connections = rig.broker.connections + 3
        rig.fetcher.add({FIRST: 0})
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
