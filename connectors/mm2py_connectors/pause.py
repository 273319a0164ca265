"""A pause of a task that its stop ends.

Flow: ``clock.sleep`` beside the stop event, whichever comes first.
"""

import asyncio

from mm2py.clock import Clock

__all__ = ["pause"]


async def pause(clock: Clock, seconds: float, stop: asyncio.Event) -> None:
    """Wait ``seconds``, or until ``stop`` is set."""
    sleep = asyncio.ensure_future(clock.sleep(seconds))
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({sleep, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for waiter in (sleep, stopped):
            waiter.cancel()
