"""Retries with growing pauses until a resource is available, with a log line every 10 s.

Flow: ``attempt`` -> a ``RetriableError`` -> ``Patience.wait`` -> the next attempt. There is no last
attempt; the caller ends it by setting the stop event. The last cause is in ``waits`` until an
attempt succeeds, for displays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final, final

from mm2py.client.backoff import doubled
from mm2py.clock import Clock, or_stop, wait_or_stop
from mm2py.errors import RetriableError

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
LOG_EVERY_S: Final = 10.0


async def attempt(
    what: str,
    work: Callable[[], Awaitable[None]],
    stop: asyncio.Event,
    clock: Clock,
    *,
    quiet_s: float = 0.0,
    waits: MutableMapping[str, str] | None = None,
) -> bool:
    """Try ``work`` until it raises no ``RetriableError``; False when ``stop`` is set first."""
    patience = Patience(clock, what, stop, quiet_s=quiet_s, waits=waits)
    while not stop.is_set():
        try:
            done = await or_stop(_completed(work), stop)
        except RetriableError as error:
            await patience.wait(error)
            continue
        if done:
            patience.succeeded()
            return True
    return False


async def _completed(work: Callable[[], Awaitable[None]]) -> bool:
    await work()
    return True


@final
class Patience:
    """The pauses between attempts at one thing, and their lines in the log.

    Args:
        clock: time.
        what: what is being tried, for the log: ``target cluster B at b1:9092``.
        stop: ends a pause at once.
        quiet_s: no line for what lasts no longer than this.
        waits: what is being tried -> how long it has failed and why, while it does.
    """

    def __init__(
        self,
        clock: Clock,
        what: str,
        stop: asyncio.Event,
        *,
        quiet_s: float = 0.0,
        waits: MutableMapping[str, str] | None = None,
    ) -> None:
        self._clock = clock
        self._what = what
        self._stop = stop
        self._quiet_s = quiet_s
        self._waits: MutableMapping[str, str] = {} if waits is None else waits
        self._logged = False
        self.failures = 0
        """Since it worked last."""
        self._since = 0.0
        self._logged_at = 0.0

    async def wait(self, error: RetriableError) -> bool:
        """Log if it is due, pause, and return whether to try again (False: stopping)."""
        now = self._clock.monotonic()
        if self.failures == 0:
            self._since = now
        if now - self._since >= self._quiet_s:
            self._waits[self._what] = (
                f"waits for {self._what}, {now - self._since:.0f} s now: {error}"
            )
        due = not self._logged or now - self._logged_at >= LOG_EVERY_S
        if due and now - self._since >= self._quiet_s:
            self._logged, self._logged_at = True, now
            log.warning(
                "waiting for=%s waited_s=%.0f cause=%s", self._what, now - self._since, error
            )
        pause = doubled(FIRST_PAUSE_S, LONGEST_PAUSE_S, self.failures)
        self.failures += 1
        return not await wait_or_stop(self._clock, pause, self._stop)

    def lasting(self, for_s: float) -> str:
        """Return what has been tried in vain for so long, empty where nothing was."""
        lasts = self.failures and self._clock.monotonic() - self._since >= for_s
        return f"waits for {self._what}" if lasts else ""

    def succeeded(self) -> None:
        """Note that it worked: logged after a logged failure; pauses are short again."""
        if self._logged:
            log.info(
                "back again what=%s waited_s=%.0f",
                self._what,
                self._clock.monotonic() - self._since,
            )
        self._waits.pop(self._what, None)
        self.failures = 0
        self._logged = False
