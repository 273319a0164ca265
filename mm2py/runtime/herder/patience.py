"""Waiting for something that will come back: growing pauses, one line at once and one every 10 s.

Flow: a ``RetriableError`` -> ``Patience.wait`` -> the caller tries again. It never gives up; the
caller ends it by setting the stop event.
"""

import asyncio
import logging
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import RetriableError

__all__ = ["Patience", "wait_or_stop"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
SAY_EVERY_S: Final = 10.0


async def wait_or_stop(clock: Clock, seconds: float, stop: asyncio.Event) -> bool:
    """Wait ``seconds`` or until ``stop`` is set; return whether it was set."""
    if stop.is_set():
        return True
    sleeper = asyncio.ensure_future(clock.sleep(seconds))
    stopper = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({sleeper, stopper}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleeper.cancel()
        stopper.cancel()
    return stop.is_set()


@final
class Patience:
    """The pauses between attempts at one thing, and what the log says about them.

    Args:
        clock: time.
        what: what is being tried, for the log: ``target cluster B at b1:9092``.
        stop: ends a pause at once.
        quiet_s: what lasts no longer than this is not worth a line.
    """

    def __init__(
        self, clock: Clock, what: str, stop: asyncio.Event, *, quiet_s: float = 0.0
    ) -> None:
        self._clock = clock
        self._what = what
        self._stop = stop
        self._quiet_s = quiet_s
        self._told = False
        self._failures = 0
        self._since = 0.0
        self._said = 0.0

    async def wait(self, error: RetriableError) -> bool:
        """Log if it is due, pause, and return whether to try again (False: stopping)."""
        now = self._clock.monotonic()
        if self._failures == 0:
            self._since = now
        due = not self._told or now - self._said >= SAY_EVERY_S
        if due and now - self._since >= self._quiet_s:
            self._told, self._said = True, now
            log.warning(
                "waiting for=%s waited_s=%.0f cause=%s", self._what, now - self._since, error
            )
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 10))
        self._failures += 1
        return not await wait_or_stop(self._clock, pause, self._stop)

    def succeeded(self) -> None:
        """Note that it worked: says so if somebody was told about the trouble, and starts afresh."""
        if self._told:
            log.info(
                "back again what=%s waited_s=%.0f",
                self._what,
                self._clock.monotonic() - self._since,
            )
        self._failures = 0
        self._told = False
