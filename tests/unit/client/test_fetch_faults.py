"""Losses, leaders, followers, routes and quotas, as the Fetcher tells them apart."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf

import pytest

from mm2py.client import pacing
from mm2py.client.fetch import cursor as cursor_module
from mm2py.client.fetch.cursor import Cursor
from mm2py.client.fetch.fetcher import OpenTransactions
from mm2py.client.fetch.losses import FetchLosses
from mm2py.client.fetch.node import FetchNode
from mm2py.client.fetch.stripes import PlainLease
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConsumerSettings
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import Origins, StageResult, classify
from mm2py.protocol.fetch import FetchedPartition, FetchResponse
from mm2py.protocol.record_batch import BufferLease
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.testing.waiting import eventually
from mm2py.types import EARLIEST, TopicPartition
from tests.kit.fakes.batches import sealed
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.broker_log import PartitionLog
from tests.kit.fakes.fetcher_rig import FETCH, FIRST, SECOND, Rig, fetching
from tests.kit.lines.black_hole import BlackHole

BY_ID = {FETCH: (4, 17)}
with_and_without_epochs = pytest.mark.parametrize(
    "versions", [{FETCH: (4, 12)}, BY_ID, {FETCH: (4, 11)}]
)


@with_and_without_epochs
async def test_a_log_that_was_cut_and_grew_again_is_a_truncation_with_its_exact_range(
    versions: dict[int, tuple[int, int]],
) -> None:
    async with fetching(versions=versions) as rig:
        rig.fill(FIRST, range(4))
        rig.fill(FIRST, range(4, 8))
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 8)
        rig.broker.partition(FIRST).truncate_to(4)
        rig.broker.cluster.move_leader(FIRST, 1)
        rig.fill(FIRST, range(100, 110))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 14)
        assert rig.gaps == [(FIRST, 4, 7, "truncation")]
        assert rig.read[FIRST][8:] == list(range(100, 110))
        assert rig.failed == []


def test_a_truncation_goes_back_to_where_our_own_history_leaves_the_leaders() -> None:
    cursor = Cursor(FIRST, 30)
    cursor.epochs = [(0, 0), (3, 20)]
    cursor.last_epoch = 3
    # The leader's epoch 2 ends at 28, but what we have from 20 on is of epoch 3.
    assert cursor.diverged(2, 28) == 20
    assert cursor.diverged(3, 25) == 25
    cursor.seek(20)
    assert (cursor.last_epoch, cursor.epochs) == (0, [(0, 0)])


async def test_a_position_gets_no_incarnation_before_a_log_has_it() -> None:
    """A task that restarts in between would take the new topic for the old one, cut: its records would be skipped."""
    async with fetching(versions=BY_ID) as rig:
        rig.fill(FIRST, range(3))
        hold = rig.broker.hold(FETCH)
        rig.fetcher.add({FIRST: 5})
        await rig.until(hold.arrived.is_set)
        assert rig.fetcher.incarnation(FIRST) == NO_TOPIC_ID
        hold.release()
        await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
        assert rig.gaps == [(FIRST, 5, 4, "recreated")]
        assert rig.fetcher.incarnation(FIRST) == rig.broker.cluster.topics["t"].topic_id


@pytest.mark.parametrize("deleted_first", [True, False])
async def test_a_partition_that_a_recreated_topic_lacks_is_a_loss(deleted_first: bool) -> None:
    async with fetching(versions=BY_ID, buffer_bytes=1 << 16, partition_bytes=1) as rig:
        for number in range(3):
            rig.fill(SECOND, range(number, number + 1), pad=20_000)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        # The buffers are full with one batch, so the rest is not read while it is under way.
        ((_, (batch,)),) = await rig.fetcher.fetch(max_wait_ms=5_000, max_bytes=1 << 24)
        if deleted_first:
            del rig.broker.cluster.topics["t"]
        else:
            rig.broker.create_topic("t", 1)
        assert batch.lease is not None
        batch.lease.release()
        await rig.until(lambda: SECOND in [tp for tp, _ in rig.stalled])
        if deleted_first:
            rig.broker.create_topic("t", 1)
        rig.fill(FIRST, range(100, 110))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 10 and len(rig.gaps) == 2)
        assert sorted(rig.gaps) == [(FIRST, 0, -1, "recreated"), (SECOND, 1, 2, "recreated")]
        # When it gets the number after all, that is the beginning of the new incarnation.
        topic = rig.broker.cluster.topics["t"]
        topic.logs[1], topic.leaders[1] = PartitionLog(), rig.broker.node_id
        rig.fill(SECOND, range(200, 203))
        await rig.until(lambda: rig.fetcher.position(SECOND) == 3)
        assert rig.read == {FIRST: list(range(100, 110)), SECOND: [200, 201, 202]}
        assert (len(rig.gaps), rig.failed) == (2, [])
        # What it had by then can be lost as of any other.
        rig.broker.create_topic("t", 1)
        await rig.until(lambda: len(rig.gaps) == 4)
        assert (SECOND, 3, 2, "recreated") in rig.gaps


async def test_a_partition_whose_number_comes_back_names_its_new_topic_and_loses_nothing() -> None:
    async with fetching(versions=BY_ID) as rig:
        rig.fill(SECOND, range(3))
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: rig.fetcher.position(SECOND) == 3)
        rig.broker.create_topic("t", 1)
        await rig.until(lambda: len(rig.gaps) == 2)
        rig.broker.create_topic("t", 2)
        rig.fill(SECOND, range(200, 205))
        await rig.until(lambda: rig.fetcher.position(SECOND) == 5)
        assert rig.returned == [(SECOND, rig.broker.cluster.topics["t"].topic_id)]
        assert [gap for gap in rig.gaps if gap[0] == SECOND] == [(SECOND, 3, 2, "recreated")]


@pytest.mark.parametrize("handed_out", [True, False])
async def test_a_reader_that_ends_reports_what_it_did_not_hand_out(handed_out: bool) -> None:
    async with fetching(versions=BY_ID, buffer_bytes=1 << 16, partition_bytes=1) as rig:
        for number in range(3):
            rig.fill(SECOND, range(number, number + 1), pad=20_000)
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        assert await rig.fetcher.fetch(max_wait_ms=0, max_bytes=1 << 24) == []
        await eventually(lambda: rig.fetcher.position(SECOND) == 1)
        if handed_out:
            assert len(await rig.fetcher.fetch(max_wait_ms=0, max_bytes=1 << 24)) == 1
        await rig.fetcher.look_back()
        assert rig.gaps == []
        rig.broker.create_topic("t", 1)
        await rig.fetcher.look_back()
        assert rig.gaps == [(SECOND, int(handed_out), 2, "recreated")]


@pytest.mark.parametrize("lost", [0, 7])
async def test_a_topic_that_was_recreated_while_nobody_read_is_told_by_the_kept_id_and_what_it_lost(
    lost: int,
) -> None:
    async with fetching(versions=BY_ID) as rig:
        old = rig.broker.cluster.topics["t"].topic_id
        rig.broker.create_topic("t", 2)
        rig.fill(FIRST, range(100, 110))
        rig.broker.partition(FIRST).delete_before(lost)
        rig.fetcher.add({FIRST: 4}, topic_ids={FIRST: old})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 10)
        assert rig.read[FIRST] == list(range(100 + lost, 110))
        deleted = [(FIRST, 0, lost - 1, "retention")] if lost else []
        assert rig.gaps == [(FIRST, 4, 3, "recreated"), *deleted]


@with_and_without_epochs
@pytest.mark.parametrize("grown_to", [8, 14])
async def test_a_log_that_was_cut_while_it_was_not_read_is_told_by_the_epoch_that_was_kept(
    versions: dict[int, tuple[int, int]], grown_to: int
) -> None:
    async with fetching(versions=versions) as rig:
        rig.fill(FIRST, range(4))
        rig.broker.cluster.move_leader(FIRST, 1)
        rig.fill(FIRST, range(4, 10))
        kept = rig.broker.cluster.topics["t"].topic_id
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 10)
        epoch = rig.fetcher.epoch_at(FIRST, 9)
        assert (rig.fetcher.epoch_at(FIRST, 3), epoch) == (epoch - 1, epoch)
        rig.fetcher.drop(FIRST)
        rig.read.clear()
        rig.broker.partition(FIRST).truncate_to(4)
        rig.broker.cluster.move_leader(FIRST, 1)
        rig.fill(FIRST, range(100, 100 + grown_to - 4))
        rig.fetcher.add({FIRST: 10}, topic_ids={FIRST: kept}, epochs={FIRST: epoch})
        await rig.until(lambda: rig.fetcher.position(FIRST) == grown_to)
        assert rig.gaps == [(FIRST, 4, 9, "truncation")]
        assert rig.read[FIRST] == list(range(100, 100 + grown_to - 4))


async def test_an_epoch_that_was_kept_cuts_nothing_from_a_log_that_is_whole() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(4))
        epoch = rig.broker.partition(FIRST).leader_epoch
        rig.broker.cluster.move_leader(FIRST, 1)
        rig.fill(FIRST, range(4, 10))
        rig.fetcher.add({FIRST: 3}, epochs={FIRST: epoch})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 10)
        assert (rig.read[FIRST], rig.gaps) == (list(range(3, 10)), [])


@pytest.mark.parametrize("named", [True, False], ids=["leader has ids", "leader has no ids"])
async def test_a_position_beyond_the_end_of_its_incarnation_is_a_truncation(named: bool) -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(3))
        topic = rig.broker.cluster.topics["t"]
        kept = topic.topic_id
        topic.topic_id = kept if named else NO_TOPIC_ID
        rig.fetcher.add({FIRST: 9}, topic_ids={FIRST: kept})
        await rig.until(lambda: bool(rig.gaps))
        assert rig.gaps == [(FIRST, 3, 8, "truncation")]
        rig.fill(FIRST, range(3, 5))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 5)
        assert rig.read[FIRST] == [3, 4]
        assert rig.fetcher.incarnation(FIRST) == kept


@pytest.mark.parametrize("cause", ["retention", "recreated"])
async def test_a_partition_given_up_in_answer_to_a_gap_stays_given_up(cause: str) -> None:
    async with fetching(versions=BY_ID) as rig:
        rig.on_gap = lambda tp: rig.fetcher.drop(tp) if tp == FIRST else None
        rig.fill(FIRST, range(4))
        rig.fill(FIRST, range(4, 8))
        if cause == "retention":
            rig.broker.partition(FIRST).delete_before(4)
            rig.fetcher.add({FIRST: 1, SECOND: 0})
        else:
            rig.fetcher.add({FIRST: 8, SECOND: 0})
            await rig.until(lambda: rig.fetcher.lag(FIRST) == 0)
            rig.broker.create_topic("t", 2)
            rig.fill(FIRST, range(100, 110))
        await rig.until(lambda: FIRST in [gap[0] for gap in rig.gaps])
        rig.fill(SECOND, range(2))
        await rig.until(lambda: SECOND in rig.read)
        assert [gap[3] for gap in rig.gaps if gap[0] == FIRST] == [cause]
        assert FIRST not in rig.read
        assert rig.fetcher.position(FIRST) == -1


async def test_offsets_without_records_move_the_position_and_are_no_loss() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(2))
        log = rig.broker.partition(FIRST)
        rig.broker.partition(FIRST).put(log.batches[0].data, 10)  # a hole of compaction before it
        empty = bytearray(log.batches[0].data[:61])
        empty[57:61] = bytes(4)
        empty[8:12] = (49).to_bytes(4, "big")
        log.put(bytes(sealed(empty)), 12)  # an empty batch at the end, as compaction leaves it
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.lag(FIRST) == 0)
        assert rig.fetcher.position(FIRST) == log.end
        assert rig.read[FIRST] == [0, 1, 0, 1]
        assert rig.gaps == []


# ---- followers ----


async def test_a_near_replica_is_read_and_the_leader_asked_again_later() -> None:
    async with fetching(rack="east", max_age_ms=200) as rig:
        follower = FakeBroker(node_id=2, cluster=rig.broker.cluster)
        async with follower:
            rig.broker.cluster.nearest[FIRST] = 2
            rig.fill(FIRST, range(3))
            rig.fetcher.add({FIRST: 0})
            await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
            assert follower.count(FETCH) >= 1
            rig.broker.cluster.nearest.clear()
            rig.broker.cluster.nearest[FIRST] = 2
            asked = rig.broker.count(FETCH)
            await rig.until(lambda: rig.broker.count(FETCH) > asked)
            assert rig.read[FIRST] == [0, 1, 2]
            assert rig.gaps == []


async def test_a_follower_that_dies_costs_nothing_but_time() -> None:
    async with fetching(rack="east") as rig:
        follower = await FakeBroker(node_id=2, cluster=rig.broker.cluster).start()
        rig.broker.cluster.nearest[FIRST] = 2
        rig.fill(FIRST, range(3))
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
        rig.broker.cluster.nearest.clear()
        await follower.stop()
        rig.fill(FIRST, range(3, 6))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 6)
        assert rig.read[FIRST] == [0, 1, 2, 3, 4, 5]
        assert rig.failed == []


@pytest.mark.parametrize("code", [codes.UNKNOWN_SERVER_ERROR, 999])
async def test_an_error_without_a_cause_is_asked_again_and_fails_the_partition_only_when_it_lasts(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(5))
        rig.broker.fail_next(FETCH, code, 3)
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.read.get(FIRST) == [0, 1, 2, 3, 4])
        assert FIRST in [tp for tp, _ in rig.stalled]
        assert rig.failed == []
        monkeypatch.setattr("mm2py.client.fetch.fetcher.UNCLEAR_S", 0.05)
        rig.broker.fail_next(FETCH, code, 100_000)
        await rig.until(lambda: bool(rig.failed))
        ((failed, error),) = rig.failed
        assert failed == FIRST
        assert f"({code})" in str(error)


async def test_a_topic_that_does_not_exist_is_waited_for_and_holds_up_nobody() -> None:
    missing = TopicPartition("later", 0)

    async with fetching() as rig:
        rig.fetcher.add({missing: 0, FIRST: 0})
        for number in range(5):
            rig.fill(FIRST, range(number, number + 1))
            rig.broker.cluster.move_leader(FIRST, 1)
            await rig.until(lambda: rig.fetcher.position(FIRST) == number + 1)  # noqa: B023 - awaited here
        assert missing in [tp for tp, _ in rig.stalled]
        rig.broker.create_topic("later")
        rig.fill(missing, range(3))
        await rig.until(lambda: rig.read.get(missing) == [0, 1, 2])
        assert rig.gaps == []


# ---- pace ----


async def test_a_throttled_connection_is_left_alone_for_as_long_as_the_broker_asked() -> None:
    async with fetching() as rig:
        rig.fetcher.add({FIRST: 0})
        rig.broker.cluster.throttle_ms = 400
        began = time.monotonic()
        rig.fill(FIRST, range(1))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 1)
        asked = rig.broker.count(FETCH)
        rig.fill(FIRST, range(1, 2))
        await rig.until(lambda: rig.broker.count(FETCH) > asked)
        assert time.monotonic() - began > 0.25


@pytest.mark.parametrize("begun", [True, False])
async def test_a_quota_that_lets_nothing_be_read_is_told_and_lag_grows_meanwhile(
    begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response without anything is not one that says that there is nothing."""
    monkeypatch.setattr(pacing, "WITHHELD_S", 0.5)
    async with fetching() as rig:
        fetcher, cluster = rig.fetcher, rig.broker.cluster
        if begun:
            fetcher.add({FIRST: 0})
            await rig.until(lambda: fetcher.silent_s(FIRST) < 0.2 and fetcher.lag(FIRST) == 0)
        cluster.withholds, cluster.throttle_ms = True, 50
        if not begun:
            fetcher.add({FIRST: 0})
        asked = rig.broker.count(FETCH)
        await rig.until(lambda: rig.broker.count(FETCH) > asked + 2)
        await rig.until(lambda: fetcher.silent_s(FIRST) > 0.4)
        rig.fill(FIRST, range(3))
        before = fetcher.silent_s(FIRST)
        await fetcher.refresh_ends()
        assert fetcher.lag(FIRST) == 3
        assert fetcher.silent_s(FIRST) < before
        await rig.until(lambda: bool(rig.stalled))
        assert "consumer_byte_rate" in str(rig.stalled[-1][1])
        assert not rig.read
        rig.read_again.clear()
        cluster.withholds, cluster.throttle_ms = False, 0
        await rig.until(lambda: rig.read.get(FIRST) == [0, 1, 2])
        await rig.until(lambda: rig.read_again[-1:] == [FIRST])
        await rig.until(lambda: fetcher.silent_s(FIRST) < 0.2)


async def test_a_hot_partition_does_not_starve_the_others() -> None:
    async with fetching(partitions=12) as rig:
        tps = [TopicPartition("t", index) for index in range(12)]
        for number in range(60):
            rig.fill(tps[0], range(number, number + 1), pad=200_000)
        for tp in tps[1:]:
            rig.fill(tp, range(1))
        rig.fetcher.add(dict.fromkeys(tps, 0))
        await rig.until(lambda: all(rig.fetcher.position(tp) == 1 for tp in tps[1:]))
        assert rig.fetcher.position(tps[0]) < 30


# ---- read committed ----


def test_a_transaction_that_never_ends_is_reported_once_after_its_timeout_and_one_that_ends_not() -> (
    None
):
    watch = OpenTransactions(timeout_s=60)
    cursor = Cursor(FIRST, 5)
    cursor.node = 1
    cursor.last_stable_offset, cursor.high_watermark = 5, 8
    for now in (0.0, 30.0, 59.0):
        cursor.high_watermark += 1
        assert watch.check([cursor], now) == []
    ((held_back, cause),) = watch.check([cursor], 60.0)
    assert held_back is cursor
    assert "transaction is open at offset 5" in str(cause)
    assert watch.check([cursor], 61.0) == []
    cursor.last_stable_offset = 9
    assert watch.check([cursor], 62.0) == [(cursor, None)]
    cursor.high_watermark = 1000
    for now in range(90, 600, 30):
        cursor.last_stable_offset = now
        assert watch.check([cursor], float(now)) == [], "it moves"


async def test_a_moved_leader_hides_no_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mm2py.client.fetch.fetcher._CHECK_S", 0.0)
    at_once = partial(OpenTransactions, timeout_s=0.0)
    monkeypatch.setattr("mm2py.client.fetch.fetcher.OpenTransactions", at_once)
    async with fetching(isolation="read_committed") as rig:
        rig.fill(FIRST, range(1))
        rig.fill(FIRST, range(1, 3))
        rig.broker.partition(FIRST).open_transaction_at = 1
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: bool(rig.stalled))
        told, rig.read_again = len(rig.stalled), []
        rig.broker.fail_next(FETCH, codes.NOT_LEADER_OR_FOLLOWER)
        rig.broker.cluster.wake()
        await rig.until(lambda: len(rig.stalled) > told)
        assert "transaction is open" in str(rig.stalled[-1][1])
        assert rig.read_again == []
        rig.broker.partition(FIRST).open_transaction_at = -1
        rig.broker.cluster.wake()
        await rig.until(lambda: rig.read_again == [FIRST])


async def test_read_committed_waits_at_an_open_transaction_and_lag_counts_what_is_above() -> None:
    async with fetching(isolation="read_committed") as rig:
        rig.fill(FIRST, range(3))
        rig.fill(FIRST, range(3, 6))
        rig.broker.partition(FIRST).open_transaction_at = 3
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.lag(FIRST) == 3)
        assert rig.read[FIRST] == [0, 1, 2]
        rig.broker.partition(FIRST).open_transaction_at = -1
        rig.broker.cluster.wake()
        await rig.until(lambda: rig.fetcher.position(FIRST) == 6)


@pytest.mark.parametrize("frozen", [True, False])
async def test_how_long_the_end_of_a_log_is_not_known_is_told(frozen: bool) -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(3))
        fetcher = rig.fetcher
        fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: fetcher.lag(FIRST) == fetcher.lag(SECOND) == 0)
        await rig.until(lambda: max(fetcher.silent_s(FIRST), fetcher.silent_s(SECOND)) < 0.2)
        assert fetcher.silent_s(TopicPartition("other", 0)) == inf
        hold = rig.broker.hold(FETCH) if frozen else None
        if hold is None:
            await rig.broker.stop()
        await rig.until(lambda: min(fetcher.silent_s(FIRST), fetcher.silent_s(SECOND)) > 0.7)
        assert fetcher.silent_s(FIRST) < 10
        if hold is None:
            await rig.broker.start()
        else:
            hold.release()
        await rig.until(lambda: max(fetcher.silent_s(FIRST), fetcher.silent_s(SECOND)) < 0.2)


async def test_a_defect_that_comes_again_with_one_partition_holds_that_partition_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled = False

    def defective(
        records: memoryview,
        position: int,
        lease: BufferLease | None,
        *,
        aborted: Sequence[tuple[int, int]] = (),
        origins: Origins | None = None,
    ) -> StageResult:
        if b"666" in bytes(records) and not handled:
            raise RuntimeError("a defect")
        return classify(records, position, lease, aborted=aborted, origins=origins)

    async with fetching() as rig:
        monkeypatch.setattr(cursor_module, "classify", defective)
        rig.fill(FIRST, range(5))
        rig.fill(FIRST, range(666, 667))
        rig.fill(SECOND, range(1))
        rig.fetcher.add({FIRST: 0, SECOND: 0})
        await rig.until(lambda: len(rig.stalled) > 2)
        rig.fill(SECOND, range(1, 2))
        await rig.until(lambda: rig.fetcher.position(SECOND) == 2)
        assert {tp for tp, _ in rig.stalled} == {FIRST}
        assert "a defect" in str(rig.stalled[-1][1])
        assert (rig.fetcher.position(FIRST), rig.failed) == (0, [])
        handled = True
        await rig.until(lambda: rig.fetcher.position(FIRST) == 6)
        assert rig.read[FIRST] == [*range(5), 666]


async def test_the_lag_of_a_partition_that_may_not_be_read_is_not_known() -> None:
    """Records may wait there, and an alert on a lag above 0 would stay silent."""
    async with fetching() as rig:
        rig.fill(FIRST, range(3))
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.lag(FIRST) == 0)
        rig.broker.fail_next(FETCH, codes.TOPIC_AUTHORIZATION_FAILED, 1_000)
        rig.fill(FIRST, range(3, 6))
        await rig.until(lambda: rig.fetcher.lag(FIRST) == -1)


LIST_OFFSETS = 2
MANY = [TopicPartition("t", index) for index in range(100)]


@asynccontextmanager
async def led_by_another(rig: Rig) -> AsyncGenerator[FakeBroker]:
    """A second broker that leads all of ``MANY`` and has delivered a record of each."""
    async with FakeBroker(node_id=2, cluster=rig.broker.cluster) as other:
        for tp in MANY:
            rig.broker.cluster.move_leader(tp, 2)
            rig.fill(tp, range(1))
        rig.fetcher.add(dict.fromkeys(MANY, 0))
        await rig.until(lambda: len(rig.read) == len(MANY))
        yield other


async def read_from_the_first_broker(rig: Rig) -> None:
    for tp in MANY:
        rig.broker.cluster.move_leader(tp, 1)
        rig.fill(tp, range(1, 2))
    await rig.until(lambda: all(rig.read[tp] == [0, 1] for tp in MANY))
    assert (rig.gaps, rig.failed) == ([], [])


async def test_all_partitions_of_a_dead_leader_come_back_together() -> None:
    async with fetching(partitions=len(MANY), reconnect_ms=100) as rig, led_by_another(rig) as dead:
        await dead.stop()
        # The cluster names the dead broker until its session ends.
        await rig.until(lambda: len(rig.stalled) >= 3 * len(MANY))
        await read_from_the_first_broker(rig)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a broker for silent after a moment."""
    monkeypatch.setattr("mm2py.client.fetch.routes.SILENT_S", 0.1)
    monkeypatch.setattr("mm2py.client.fetch.fetcher._CHECK_S", 0.05)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("reached", [True, False])
async def test_partitions_of_a_leader_that_is_silent_or_not_reached_move_before_a_time_out(
    *, reached: bool
) -> None:
    async with fetching(partitions=len(MANY)) as rig, led_by_another(rig) as leader:
        if reached:
            hold = leader.hold(FETCH)
            await hold.arrived.wait()
            await read_from_the_first_broker(rig)
            return
        await leader.stop()
        with BlackHole("127.0.0.1", leader.port):
            await rig.until(lambda: bool(rig.stalled))
            await read_from_the_first_broker(rig)


async def test_a_silent_broker_delays_the_start_of_no_other() -> None:
    async with fetching() as rig, FakeBroker(node_id=2, cluster=rig.broker.cluster) as silent:
        rig.broker.cluster.move_leader(FIRST, 2)
        rig.fill(SECOND, range(2))
        hold = silent.hold(LIST_OFFSETS)
        rig.fetcher.add({FIRST: EARLIEST, SECOND: EARLIEST})
        await hold.arrived.wait()
        await rig.until(lambda: rig.read.get(SECOND) == [0, 1])
        hold.release()


async def test_the_start_of_all_partitions_of_a_broker_is_asked_with_one_request() -> None:
    async with fetching(partitions=len(MANY)) as rig:
        for tp in MANY:
            rig.fill(tp, range(1))
        rig.fetcher.add(dict.fromkeys(MANY, EARLIEST))
        await rig.until(lambda: len(rig.read) == len(MANY))
        assert rig.broker.count(LIST_OFFSETS) == 1


async def test_recreated_partitions_are_handled_together() -> None:
    async with fetching(partitions=len(MANY), versions=BY_ID) as rig:
        for tp in MANY:
            rig.fill(tp, range(1))
        rig.fetcher.add(dict.fromkeys(MANY, 0))
        await rig.until(lambda: len(rig.read) == len(MANY))
        rig.broker.create_topic("t", len(MANY))
        for tp in MANY:
            rig.fill(tp, range(10, 12))
        await rig.until(lambda: all(rig.read[tp] == [0, 10, 11] for tp in MANY))
        assert rig.broker.count(LIST_OFFSETS) <= 4
        assert sorted(rig.gaps) == [(tp, 1, 0, "recreated") for tp in MANY]


# ---- clusters that report no topic ids for a while ----


async def test_topic_ids_that_are_gone_for_a_while_copy_nothing_again() -> None:
    async with fetching(versions=BY_ID) as rig:
        rig.fill(FIRST, range(5))
        rig.fetcher.add({FIRST: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 5)
        topic = rig.broker.cluster.topics["t"]
        kept, topic.topic_id = topic.topic_id, NO_TOPIC_ID
        rig.fill(FIRST, range(5, 6))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 6)
        topic.topic_id = kept
        rig.broker.cluster.move_leader(FIRST, 1)
        rig.fill(FIRST, range(6, 7))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 7)
        assert rig.read[FIRST] == list(range(7))
        assert (rig.gaps, rig.failed) == ([], [])
        # What was recreated meanwhile is noticed when the ids are back.
        topic.topic_id = NO_TOPIC_ID
        rig.broker.cluster.move_leader(FIRST, 1)
        rig.fill(FIRST, range(7, 8))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 8)
        rig.broker.create_topic("t", 2)
        rig.fill(FIRST, range(100, 103))
        await rig.until(lambda: rig.fetcher.position(FIRST) == 3)
        assert rig.read[FIRST] == [*range(8), 100, 101, 102]
        assert rig.gaps == [(FIRST, 8, 7, "recreated")]


async def test_an_answer_about_another_incarnation_is_ignored() -> None:
    async with fetching() as rig:
        settings = ConsumerSettings(connection=rig.cluster.settings)
        owner, losses = rig.fetcher, FetchLosses("earliest", owner=rig.fetcher)
        node = FetchNode(1, rig.cluster, settings, clock=SYSTEM_CLOCK, owner=owner, losses=losses)
        cursor = Cursor(FIRST, 0, b"\x01" * 16)
        node.add(cursor)
        node._session.plan([cursor], 100)  # pyright: ignore[reportPrivateUsage]
        part = FetchedPartition("t", NO_TOPIC_ID, 0, 0, 5, 5, 0, [], -1, memoryview(b"x"))
        answer = FetchResponse(0, 0, 0, [part])
        node._take(answer, PlainLease())  # pyright: ignore[reportPrivateUsage]
        assert cursor.high_watermark == 5
        cursor.restart(0, b"\x02" * 16)
        node._take(answer, PlainLease())  # pyright: ignore[reportPrivateUsage]
        assert cursor.high_watermark == -1
