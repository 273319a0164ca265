"""Partitions that are held and released while others are idle: nobody waits for an idle long poll."""

from mm2py.testing.waiting import eventually
from tests.kit.lines.delay_proxy import DelayProxy
from tests.unit.client.fetcher_rig import FETCH, FIRST, SECOND, fetching

LIST_OFFSETS = 2
LONG_MS = 60_000
"""Longer than any test: an idle long poll that is waited for shows as a timeout of the test."""


async def test_a_released_partition_does_not_wait_for_the_long_poll_of_idle_ones() -> None:
    async with fetching(max_wait_ms=LONG_MS) as rig:
        rig.fill(FIRST, range(1))
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 1)
        rig.fetcher.pause([FIRST])
        rig.fill(SECOND, range(1))  # ends the poll that was under way with both
        await rig.until(lambda: rig.fetcher.position(SECOND) == 1)
        asked = rig.broker.count(FETCH)
        await rig.until(lambda: rig.broker.count(FETCH) > asked)  # of the idle one alone
        rig.fetcher.resume([FIRST])
        rig.fill(FIRST, range(1, 2))
        await rig.until(lambda: rig.read[FIRST] == [0, 1])


async def test_the_end_of_a_paused_partition_is_asked_for_once_per_call() -> None:
    async with fetching(max_wait_ms=LONG_MS) as rig:
        rig.fill(FIRST, range(2))
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await rig.until(lambda: rig.fetcher.position(FIRST) == 2)
        asked = rig.broker.count(LIST_OFFSETS)
        await rig.fetcher.refresh_ends()
        assert rig.broker.count(LIST_OFFSETS) == asked, "nothing is paused"
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(2, 9))
        await rig.fetcher.refresh_ends()
        assert rig.fetcher.lag(FIRST) == 7
        assert rig.broker.count(LIST_OFFSETS) == asked + 1


async def test_what_was_under_way_when_its_partition_was_held_is_kept_and_not_read_twice() -> None:
    async with fetching() as rig:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        assert await rig.fetcher.fetch(max_wait_ms=0, max_bytes=1 << 24) == []
        await eventually(lambda: rig.broker.count(FETCH) > 0)
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(3), pad=40_000)
        await eventually(lambda: rig.fetcher.position(FIRST) == 3)
        assert rig.cluster.pool.leased_bytes == 1 << 17, "the buffer that it fills"
        assert rig.fetcher.waiting(FIRST) == 3
        await rig.take()
        assert FIRST not in rig.read
        served = sum(size for partition, size in rig.broker.cluster.served if partition == 0)
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: FIRST in rig.read)
        assert rig.read[FIRST] == [0, 1, 2]
        assert served == sum(size for part, size in rig.broker.cluster.served if part == 0)


async def test_what_does_not_fit_beside_what_is_kept_is_read_again() -> None:
    async with fetching(buffer_bytes=200_000) as rig:
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        assert await rig.fetcher.fetch(max_wait_ms=0, max_bytes=1 << 24) == []
        await eventually(lambda: rig.broker.count(FETCH) > 0)
        rig.fetcher.pause([FIRST])
        asked = rig.broker.count(FETCH)
        rig.fill(FIRST, range(3), pad=40_000)
        await eventually(lambda: rig.broker.count(FETCH) > asked)
        assert rig.fetcher.position(FIRST) == 0
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: FIRST in rig.read)
        assert rig.read[FIRST] == [0, 1, 2]


async def test_a_held_partition_is_read_again_from_an_offset_behind_what_was_kept_back() -> None:
    async with fetching() as rig:
        for number in range(4):
            rig.fill(FIRST, range(number, number + 1), pad=40_000)
        await rig.fetcher.assign({FIRST: 0, SECOND: 0})
        await rig.until(lambda: rig.read.get(FIRST) == [0, 1, 2, 3])
        assert not rig.fetcher.rewind(FIRST, 1), "it is not held"
        rig.fetcher.pause([FIRST])
        rig.fill(FIRST, range(4, 6), pad=40_000)  # some of it may be kept back
        assert rig.fetcher.rewind(FIRST, 1)
        assert rig.fetcher.waiting(FIRST) == 0
        assert rig.fetcher.position(FIRST) == 1
        rig.fetcher.resume([FIRST])
        await rig.until(lambda: len(rig.read[FIRST]) >= 9)
        assert rig.read[FIRST] == [0, 1, 2, 3, 1, 2, 3, 4, 5]
        assert rig.gaps == []
        await eventually(lambda: rig.cluster.pool.leased_bytes == 0)


async def test_the_round_trip_is_measured_and_one_partition_gets_larger_answers_over_a_long_one() -> (
    None
):
    with DelayProxy(round_trip_s=0.03) as line:
        async with fetching(line=line) as rig:
            for number in range(20):
                rig.fill(FIRST, range(number, number + 1), pad=900_000)
            await rig.fetcher.assign({FIRST: 0})
            await rig.until(lambda: rig.fetcher.position(FIRST) == 20)
            assert rig.read[FIRST] == list(range(20))
            assert max(size for _, size in rig.broker.cluster.served) > 3 << 20
