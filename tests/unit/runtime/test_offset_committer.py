"""Invariants 1-4 and 7 of the committer, and the bytes it writes."""

import asyncio
from collections.abc import Callable

import pytest

from mm2py.api.context import SourceGap
from mm2py.api.records import SourcePartition
from mm2py.errors import ConnectionFailedError
from mm2py.mirror.source_offsets import source_offset
from mm2py.runtime.tasks.offset_committer import OffsetCommitter
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.types import TopicPartition
from tests.unit.runtime.runtime_fakes import FakeStore

ORDERS = TopicPartition("orders", 3)
OLD, NEW = b"o" * 16, b"n" * 16
KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'


def _source_partition(tp: TopicPartition) -> SourcePartition:
    return {"cluster": "A", "partition": tp.partition, "topic": tp.topic}


def _ignore(_cause: str) -> None:
    pass


def _committer(
    store: FakeStore,
    timeout_ms: int = 5_000,
    on_failure: Callable[[str], None] = _ignore,
    maps: TaskOffsetMaps | None = None,
) -> OffsetCommitter:
    return OffsetCommitter(
        store,
        "MirrorSourceConnector",
        source_partition=_source_partition,
        source_offset=lambda _partition, position: source_offset(position),
        timeout_ms=timeout_ms,
        on_failure=on_failure,
        maps=maps,
    )


async def test_key_and_value_are_javas_bytes() -> None:
    store = FakeStore()
    committer = _committer(store)
    committer.acknowledged(ORDERS, 41)
    assert await committer.commit()
    assert store.writes == [{KEY: b'{"offset":41}'}]


async def test_invariant_1_the_position_is_the_last_acknowledged_record() -> None:
    store = FakeStore()
    committer = _committer(store)
    for position in (1, 2, 7):
        committer.acknowledged(ORDERS, position)
    await committer.commit()
    assert store.written() == {KEY: b'{"offset":7}'}


async def test_invariant_2_a_position_never_passes_a_failure() -> None:
    store = FakeStore()
    committer = _committer(store)
    committer.acknowledged(ORDERS, 1)
    committer.failed(ORDERS)
    committer.acknowledged(ORDERS, 9)
    await committer.commit()
    assert store.written() == {KEY: b'{"offset":1}'}


async def test_invariant_3_a_failed_commit_keeps_its_positions_and_newer_ones_win() -> None:
    store = FakeStore()
    store.errors = [ConnectionFailedError("away")] * 2
    reports: list[str] = []
    committer = _committer(store, on_failure=reports.append)
    other = TopicPartition("bills", 0)
    committer.acknowledged(ORDERS, 1)
    committer.acknowledged(other, 5)
    assert not await committer.commit()
    committer.acknowledged(ORDERS, 2)
    assert not await committer.commit()
    assert await committer.commit()
    assert store.written()[KEY] == b'{"offset":2}'
    assert len(store.written()) == 2
    assert len(reports) == 2, "once down, once up"
    assert reports[0] == "away: positions are stored later"
    assert "away" in reports[0]
    assert not reports[1]


async def test_invariant_4_an_unchanged_position_is_not_written_again() -> None:
    store = FakeStore()
    committer = _committer(store)
    committer.acknowledged(ORDERS, 1)
    assert await committer.commit()
    assert await committer.commit()
    assert len(store.writes) == 1


async def test_invariant_4_a_value_that_is_stored_is_not_written_again() -> None:
    store = FakeStore()
    committer = OffsetCommitter(
        store,
        "MirrorHeartbeatConnector",
        source_partition=_source_partition,
        source_offset=lambda _partition, _position: source_offset(0),
        timeout_ms=5_000,
    )
    for position in (1, 2, 3):
        committer.acknowledged(ORDERS, position)
        assert await committer.commit()
    assert (len(store.writes), committer.pending) == (1, {})


async def test_few_records_are_counted_from_what_is_written() -> None:
    store = FakeStore()
    committer = _committer(store)
    assert committer.has_few(100)
    committer.acknowledged(ORDERS, 5)
    assert not committer.has_few(100), "a first position is written at once"
    await committer.commit()
    committer.acknowledged(ORDERS, 104)
    assert committer.has_few(100)
    committer.acknowledged(ORDERS, 105)
    assert not committer.has_few(100)
    committer.acknowledged(ORDERS, 4)
    assert not committer.has_few(100), "a position that goes back is written at once"


async def test_a_commit_that_hangs_is_bounded_and_stays_pending() -> None:
    store = FakeStore()
    store.hangs = True
    committer = _committer(store, timeout_ms=10)
    committer.acknowledged(ORDERS, 1)
    assert not await committer.commit()
    assert committer.pending == {ORDERS: 1}


async def test_a_cancelled_commit_stays_pending() -> None:
    store = FakeStore()
    store.hangs = True
    committer = _committer(store)
    committer.acknowledged(ORDERS, 1)
    commit = asyncio.create_task(committer.commit())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert committer.pending == {ORDERS: 1}


async def test_invariant_5_a_position_waits_for_the_ledger_record_before_it() -> None:
    store = FakeStore()
    unwritten = {ORDERS}
    committer = OffsetCommitter(
        store,
        "MirrorSourceConnector",
        source_partition=_source_partition,
        source_offset=lambda _partition, position: source_offset(position),
        timeout_ms=5_000,
        withheld=lambda: unwritten,
    )
    bills = TopicPartition("bills", 0)
    committer.acknowledged(ORDERS, 41)
    committer.acknowledged(bills, 7)
    assert await committer.commit()
    assert KEY not in store.written()
    assert len(store.written()) == 1
    committer.acknowledged(ORDERS, 42)
    unwritten.clear()
    assert await committer.commit()
    assert store.written()[KEY] == b'{"offset":42}'


async def test_invariant_7_a_position_is_stored_with_the_id_of_the_topic_it_is_in() -> None:
    store, maps = FakeStore(), TaskOffsetMaps(NoMapStore())
    unwritten = {ORDERS}
    noted: list[bytes] = []
    committer = OffsetCommitter(
        store,
        "MirrorSourceConnector",
        source_partition=_source_partition,
        source_offset=lambda _partition, position: source_offset(position),
        timeout_ms=5_000,
        withheld=lambda: unwritten,
        maps=maps,
    )
    committer.on_topic_id = lambda _partition, topic_id: noted.append(topic_id)
    maps.identify(ORDERS, OLD)
    maps.of(ORDERS).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)
    # The topic is created again, with nothing of it acknowledged yet: what is pending is the old one's.
    maps.note_gap(SourceGap(ORDERS, 10, 9, "recreated", "", NEW))
    await committer.commit()
    assert noted == [], "its position is withheld"
    unwritten.clear()
    store.errors = [ConnectionFailedError("away")]
    assert not await committer.commit()
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":9,"topic_id":"%s@9"}' % OLD.hex().encode()}
    maps.of(ORDERS).add(0, 3, 10)
    committer.acknowledged(ORDERS, 2)
    assert not committer.has_few(100), "the first one of a topic is written at once"
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":2,"topic_id":"%s@2"}' % NEW.hex().encode()}
    assert noted == [OLD, NEW]


@pytest.mark.parametrize("passed", [0, 3])
async def test_invariant_7_the_last_record_of_a_topic_is_not_a_position_in_the_next_one(
    passed: int,
) -> None:
    store, maps = FakeStore(), TaskOffsetMaps(NoMapStore())
    committer = _committer(store, maps=maps)
    maps.identify(ORDERS, OLD)
    gap = SourceGap(ORDERS, 10, 9, "recreated", "", NEW)
    gap.under_way = 10
    maps.note_gap(gap)
    # All that was under way arrives, and nothing of the new topic: a start from here must not leave out its first records.
    maps.of(ORDERS).add(0, 10 - passed, 0)
    if passed:
        maps.of(ORDERS).passed(passed, 10)
    committer.acknowledged(ORDERS, 9)
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":9,"topic_id":"%s@9"}' % OLD.hex().encode()}
    found = maps.of(ORDERS)
    assert (found.source_id, found.covered) == (NEW, 0)
    maps.cover(ORDERS, 1)
    committer.acknowledged(ORDERS, 1)
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":1,"topic_id":"%s@1"}' % NEW.hex().encode()}


async def test_a_partition_that_failed_keeps_the_topic_of_its_last_position() -> None:
    store, maps = FakeStore(), TaskOffsetMaps(NoMapStore())
    committer = _committer(store, maps=maps)
    maps.identify(ORDERS, OLD)
    maps.of(ORDERS).add(0, 10, 0)
    committer.acknowledged(ORDERS, 9)
    committer.failed(ORDERS)
    maps.note_gap(SourceGap(ORDERS, 10, 9, "recreated", "", NEW))
    maps.of(ORDERS).add(0, 3, 10)
    committer.acknowledged(ORDERS, 2)
    assert await committer.commit()
    assert store.written() == {KEY: b'{"offset":9,"topic_id":"%s@9"}' % OLD.hex().encode()}
