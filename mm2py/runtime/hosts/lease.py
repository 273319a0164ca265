"""How long the proof of a flow's membership is good for.

Flow: every confirmed heartbeat -> ``renew(valid_ms)``; nothing for that long -> ``changed`` and ``over``,
until the next ``renew``. Time runs on while the process is stopped: ``look`` finds it over before a timer can.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import final

__all__ = ["Lease"]

log = logging.getLogger(__name__)


@final
class Lease:
    """One lease; before its first ``renew`` nobody asked for one and it is not over.

    Args:
        changed: called when ``over`` has changed.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at = float("inf")
        self._over = False
        self._valid_ms: int | None = None

    @property
    def over(self) -> bool:
        """Whether nobody vouches for the membership now."""
        return self._over

    def renew(self, valid_ms: int) -> None:
        """Membership is proven for ``valid_ms`` from now on; without any left the lease is over."""
        self.end()
        if valid_ms <= 0:
            self._expire()
            return
        self._loop = asyncio.get_running_loop()
        self._valid_ms = valid_ms
        self._ends_at = self._loop.time() + valid_ms / 1000
        self._timer = self._loop.call_at(self._ends_at, self._expire)
        if self._over:
            self._over = False
            log.info("membership is proven again, tasks go on valid_ms=%d", valid_ms)
            self._changed()

    def again(self) -> None:
        """Membership is proven by other means: good for as long as the last time, if there was one."""
        if self._over and self._valid_ms is not None:
            self.renew(self._valid_ms)

    def look(self) -> None:
        """Find out now whether it is over: called where the process may have stood still, also by a signal."""
        if self._loop is not None and self._loop.time() >= self._ends_at:
            self.end()
            self._expire()

    def end(self) -> None:
        """Watch no more."""
        self._ends_at = float("inf")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self._ends_at = float("inf")
        if self._over:
            return
        self._over = True
        self._changed()
        # Not from within a signal, which may have come in the middle of another line.
        asyncio.get_running_loop().call_soon(
            log.warning, "nobody vouches for the membership any more, tasks are suspended"
        )
