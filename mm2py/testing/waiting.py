"""Waiting in tests: for a condition, never for a time. A wait that fails quotes its condition."""

import asyncio
import inspect
from collections.abc import Callable


def quoted(condition: Callable[[], object]) -> str:
    """Return the lines of code of a condition."""
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):
        return repr(condition)


async def until(condition: Callable[[], bool], *, turns: int = 5_000) -> None:
    """Let the loop turn until ``condition`` holds: for code whose clock and network are fakes.

    Raises:
        AssertionError: it does not hold after ``turns``.
    """
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"not within {turns} turns of the loop: {quoted(condition)}")


async def eventually(condition: Callable[[], bool], *, within_s: float = 90) -> None:
    """Wait until ``condition`` holds: for code with a real clock or network.

    Raises:
        AssertionError: it does not hold after ``within_s``.
    """
    end = asyncio.get_running_loop().time() + within_s
    while not condition():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"not within {within_s} s: {quoted(condition)}")
        await asyncio.sleep(0.001)
