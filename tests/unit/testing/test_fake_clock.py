import asyncio

from mm2py.testing.clock import FakeClock


async def test_sleepers_wake_in_order_and_see_their_own_time() -> None:
    clock, seen = FakeClock(), list[tuple[str, float]]()
    start = clock.monotonic()

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic() - start))
        await clock.sleep(seconds)
        seen.append((name, clock.monotonic() - start))

    async with asyncio.TaskGroup() as group:
        group.create_task(sleeper("b", 3))
        group.create_task(sleeper("a", 1))
        await clock.settle()
        assert clock.sleepers == 2
        await clock.advance(10)
    assert seen == [("a", 1), ("a", 2), ("b", 3), ("b", 6)]


async def test_both_clocks_move_together() -> None:
    clock = FakeClock(1000)
    await clock.advance(2.5)
    assert clock.now_ms() == 3500


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = FakeClock()
    task = asyncio.create_task(clock.sleep(1))
    await clock.settle()
    task.cancel()
    await clock.settle()
    assert clock.sleepers == 0
    await clock.advance(2)
