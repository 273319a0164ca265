"""Dead, silent and new leaders, and positions that are looked up: many partitions at once."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.client.fetch.cursor import Cursor
from mm2py.client.fetch.losses import FetchLosses
from mm2py.client.fetch.node import FetchNode
from mm2py.client.fetch.stripes import PlainLease
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ConsumerSettings
from mm2py.protocol.fetch import FetchedPartition, FetchResponse
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.types import EARLIEST, TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.black_hole import BlackHole
from tests.unit.client.fetcher_rig import FETCH, FIRST, SECOND, Rig, fetching

LIST_OFFSETS = 2
MANY = [TopicPartition("t", index) for index in range(100)]


@asynccontextmanager
async def led_by_another(rig: Rig) -> AsyncGenerator[FakeBroker]:
    """A second broker that leads all of ``MANY`` and has delivered a record of each."""
    async with FakeBroker(node_id=2, cluster=rig.broker.cluster) as other:
        for tp in MANY:
            rig.broker.cluster.move_leader(tp, 2)
            rig.fill(tp, range(1))
        await rig.fetcher.assign(dict.fromkeys(MANY, 0))
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
async def test_partitions_of_a_leader_that_is_silent_move_before_its_request_times_out() -> None:
    async with fetching(partitions=len(MANY)) as rig, led_by_another(rig) as silent:
        hold = silent.hold(FETCH)
        await hold.arrived.wait()
        await read_from_the_first_broker(rig)


@pytest.mark.usefixtures("impatient")
async def test_partitions_of_a_leader_that_cannot_be_connected_move_before_the_attempt_ends() -> (
    None
):
    async with fetching(partitions=len(MANY)) as rig, led_by_another(rig) as gone:
        await gone.stop()
        with BlackHole("127.0.0.1", gone.port):
            await rig.until(lambda: bool(rig.stalled))
            await read_from_the_first_broker(rig)


async def test_a_silent_broker_delays_the_start_of_no_other() -> None:
    async with fetching() as rig, FakeBroker(node_id=2, cluster=rig.broker.cluster) as silent:
        rig.broker.cluster.move_leader(FIRST, 2)
        rig.fill(SECOND, range(2))
        hold = silent.hold(LIST_OFFSETS)
        await rig.fetcher.assign({FIRST: EARLIEST, SECOND: EARLIEST})
        await hold.arrived.wait()
        await rig.until(lambda: rig.read.get(SECOND) == [0, 1])
        hold.release()


async def test_the_start_of_all_partitions_of_a_broker_is_asked_with_one_request() -> None:
    async with fetching(partitions=len(MANY)) as rig:
        for tp in MANY:
            rig.fill(tp, range(1))
        await rig.fetcher.assign(dict.fromkeys(MANY, EARLIEST))
        await rig.until(lambda: len(rig.read) == len(MANY))
        assert rig.broker.count(LIST_OFFSETS) == 1


async def test_recreated_partitions_are_handled_together() -> None:
    async with fetching(partitions=len(MANY), versions={FETCH: (4, 17)}) as rig:
        for tp in MANY:
            rig.fill(tp, range(1))
        await rig.fetcher.assign(dict.fromkeys(MANY, 0))
        await rig.until(lambda: len(rig.read) == len(MANY))
        rig.broker.create_topic("t", len(MANY))
        for tp in MANY:
            rig.fill(tp, range(10, 12))
        await rig.until(lambda: all(rig.read[tp] == [0, 10, 11] for tp in MANY))
        assert rig.broker.count(LIST_OFFSETS) <= 4
        assert sorted(rig.gaps) == [(tp, 1, 0, "recreated") for tp in MANY]


# ---- clusters that report no topic ids for a while ----


async def test_a_leader_without_topic_ids_is_no_other_incarnation_of_a_kept_position() -> None:
    async with fetching(versions={FETCH: (4, 17)}) as rig:
        for number in range(5):
            rig.fill(FIRST, range(10 * number, 10 * number + 10))
        kept = rig.broker.cluster.topics["t"].topic_id
        rig.broker.cluster.topics["t"].topic_id = NO_TOPIC_ID
        await rig.fetcher.assign({FIRST: 40}, topic_ids={FIRST: kept})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 50)
        assert rig.read[FIRST] == list(range(40, 50))
        assert rig.gaps == []
        assert rig.fetcher.incarnation(FIRST) == kept


async def test_topic_ids_that_are_gone_for_a_while_copy_nothing_again() -> None:
    async with fetching(versions={FETCH: (4, 17)}) as rig:
        rig.fill(FIRST, range(5))
        await rig.fetcher.assign({FIRST: 0})
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


async def test_a_position_outside_the_log_of_a_leader_without_ids_is_a_truncation() -> None:
    async with fetching() as rig:
        rig.fill(FIRST, range(3))
        topic = rig.broker.cluster.topics["t"]
        kept, topic.topic_id = topic.topic_id, NO_TOPIC_ID
        await rig.fetcher.assign({FIRST: 9}, topic_ids={FIRST: kept})
        await rig.until(lambda: bool(rig.gaps))
        assert rig.gaps == [(FIRST, 3, 8, "truncation")]


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
