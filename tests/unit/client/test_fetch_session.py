"""Fetch sessions (KIP-227): what is sent again, what is forgotten, how one ends, and the cursor that drives it."""

from collections.abc import Iterable

import pytest

from mm2py.client.connect.metadata_cache import MetadataCache
from mm2py.client.fetch.cursor import Cursor, Lookup, Verdict
from mm2py.client.fetch.session import FetchSession
from mm2py.protocol import error_codes as codes
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.topics import MetadataResult, PartitionMetadata, TopicMetadata
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import COMMIT, CountedLease, marker, stored_batch
from tests.kit.fakes.fetcher_rig import FETCH, FIRST, SECOND, fetching

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
def test_what_is_deleted_while_it_is_read_is_a_loss_whatever_lies_behind_it(
    records: bytearray,
) -> None:
    cursor = Cursor(TP, 100)
    verdict, _ = cursor.take(answer(records=records, log_start=200), CountedLease())
    assert verdict is Verdict.LOST
    assert cursor.lost == (100, 199)


@pytest.mark.parametrize("unknown_between", [False, True])
def test_an_id_that_another_one_has_followed_never_comes_back(unknown_between: bool) -> None:
    old, new, newest = b"O" * 16, b"N" * 16, b"P" * 16
    cache, cursor = MetadataCache(), Cursor(TP, 500, old)

    def answered(topic_id: bytes, code: int = 0) -> None:
        """A broker answers Metadata, and the cursor looks for its leader."""
        partition = PartitionMetadata(0, 1, 0, (1,), (1,), 0)
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
