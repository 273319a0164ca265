import asyncio

from mm2py.testing.clock import FakeClock


def test_sleepers_wake_in_order_and_see_their_own_time() -> None:
    async def run() -> list[tuple[str, float]]:
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
        return seen

    assert asyncio.run(run()) == [("a", 1), ("a", 2), ("b", 3), ("b", 6)]


def test_both_clocks_move_together() -> None:
    async def run() -> None:
        clock = FakeClock(1000)
        await clock.advance(2.5)
        assert clock.now_ms() == 3500

    asyncio.run(run())


def test_a_cancelled_sleeper_is_forgotten() -> None:
    async def run() -> None:
        clock = FakeClock()
        task = asyncio.create_task(clock.sleep(1))
        await clock.settle()
        task.cancel()
        await clock.settle()
        assert clock.sleepers == 0
        await clock.advance(2)

    asyncio.run(run())
