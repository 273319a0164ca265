"""Fetch sessions: what is sent again, what is forgotten, and how a session ends (KIP-227)."""

from collections.abc import Iterable

import pytest

from mm2py.client.fetch.cursor import Cursor
from mm2py.client.fetch.session import FetchSession
from mm2py.protocol import error_codes as codes
from mm2py.types import TopicPartition
from tests.unit.client.fetcher_rig import FETCH, FIRST, SECOND, fetching

LIMIT = 1 << 20


def cursors(count: int) -> dict[Cursor, None]:
    made = [Cursor(TopicPartition("t", index), 0, b"\x01" * 16) for index in range(count)]
    return dict.fromkeys(made)


def opened(mine: Iterable[Cursor]) -> FetchSession:
    session = FetchSession(enabled=True, by_name=False)
    session.plan(dict.fromkeys(mine), LIMIT)
    session.opened(7)
    return session


def test_an_idle_round_names_no_partition() -> None:
    mine = cursors(3000)
    session = opened(mine)
    plan = session.plan(mine, LIMIT)
    assert (plan.session_id, plan.epoch) == (7, 1)
    assert plan.partitions == []
    assert plan.forgotten == []


def test_only_a_partition_whose_position_moved_is_sent_again() -> None:
    mine = cursors(3)
    session = opened(mine)
    first, second, _ = mine
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
    found = session.asked(old.topic_id, 0)
    assert found is not None
    assert found.cursor is new


def test_a_new_incarnation_is_a_new_partition_and_the_old_one_is_forgotten() -> None:
    mine = cursors(1)
    session = opened(mine)
    cursor = next(iter(mine))
    cursor.restart(0, b"\x02" * 16)
    session.touch(cursor)
    plan = session.plan(mine, LIMIT)
    assert [p.topic_id for p in plan.partitions] == [b"\x02" * 16]
    assert [topic.topic_id for topic in plan.forgotten] == [b"\x01" * 16]


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


def test_a_broker_without_a_free_slot_gets_full_requests() -> None:
    mine = cursors(2)
    session = FetchSession(enabled=True, by_name=False)
    for _ in range(2):
        plan = session.plan(mine, LIMIT)
        assert (plan.session_id, plan.epoch, len(plan.partitions)) == (0, 0, 2)
        session.opened(0)


# ---- through a broker ----


@pytest.mark.parametrize("version", [4, 7, 12, 13, 17])
async def test_batches_arrive_in_order_under_every_kind_of_session(version: int) -> None:
    async with fetching(versions={FETCH: (4, version)}) as rig:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        for number in range(4):
            rig.fill(FIRST, range(number, number + 1))
            rig.fill(SECOND, range(number, number + 1))
            await rig.until(lambda: rig.fetcher.position(FIRST) == number + 1)  # noqa: B023 - awaited here
        await rig.until(lambda: rig.fetcher.position(SECOND) == 4)
        assert rig.read == {FIRST: [0, 1, 2, 3], SECOND: [0, 1, 2, 3]}
        assert {asked for key, asked in rig.broker.requests if key == FETCH} == {version}


async def test_an_idle_partition_is_named_once() -> None:
    async with fetching() as rig:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        for number in range(5):
            rig.fill(FIRST, range(number, number + 1))
            await rig.until(lambda: rig.fetcher.position(FIRST) == number + 1)  # noqa: B023 - awaited here
        epochs = [epoch for epoch, _, _ in rig.broker.cluster.fetches]
        assert epochs == sorted(epochs)
        assert max(named for epoch, named, _ in rig.broker.cluster.fetches if epoch > 0) == 1


async def test_a_broker_that_forgot_the_session_gets_a_full_fetch_and_nothing_is_lost_or_doubled() -> (
    None
):
    async with fetching() as rig:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        for number in range(3):
            rig.fill(FIRST, range(number, number + 1))
            await rig.until(lambda: rig.fetcher.position(FIRST) == number + 1)  # noqa: B023 - awaited here
            rig.broker.cluster.sessions.clear()
        assert rig.read[FIRST] == [0, 1, 2]
        assert sum(1 for epoch, _, _ in rig.broker.cluster.fetches if epoch == 0) >= 2
        assert rig.stalled == []


async def test_pausing_and_resuming_between_answers_loses_nothing() -> None:
    async with fetching() as rig:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        for number in range(10):
            rig.fetcher.pause([FIRST])
            rig.fill(FIRST, range(number, number + 1))
            rig.fill(SECOND, range(number, number + 1))
            await rig.until(lambda: rig.fetcher.position(SECOND) == number + 1)  # noqa: B023 - awaited here
            rig.fetcher.resume([FIRST])
            await rig.take()
        await rig.until(lambda: len(rig.read.get(FIRST, ())) == 10)
        assert rig.read == {FIRST: list(range(10)), SECOND: list(range(10))}
