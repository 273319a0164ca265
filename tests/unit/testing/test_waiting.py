import asyncio

import pytest

from mm2py.testing.waiting import eventually, until


async def test_a_condition_ends_the_wait() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    await until(done.is_set)
    done.clear()
    asyncio.get_running_loop().call_later(0.002, done.set)
    await eventually(done.is_set)


async def test_a_wait_that_fails_quotes_its_condition() -> None:
    number = 1
    with pytest.raises(AssertionError, match=r"not within 3 turns .*lambda: number > 1"):
        await until(lambda: number > 1, turns=3)
    with pytest.raises(AssertionError, match=r"not within 0 s: .*lambda: number > 2"):
        await eventually(lambda: number > 2, within_s=0)
