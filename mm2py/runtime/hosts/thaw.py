"""What a process does first after a freeze, before it writes to any socket.

Flow: SIGCONT, or the end of each wait for sockets -> ``permit.check_all``. asyncio alone serves
ready sockets before expired timers, so a task would write for a membership that ended long ago.
"""

import asyncio
import selectors
import signal
from types import FrameType
from typing import final

from mm2py.client.permit import check_all


@final
class ThawSelector(selectors.DefaultSelector):
    """The selector of an event loop that checks all permits before it returns events.

    A paused container gets no SIGCONT; a process that is stopped and continued does.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        check_all()
        return events


def thawing_loop() -> asyncio.SelectorEventLoop:
    """Return the event loop of a process that writes for flows: a loop factory."""
    loop = asyncio.SelectorEventLoop(ThawSelector())
    signal.signal(signal.SIGCONT, _continued)
    return loop


def _continued(_signal: int, _frame: FrameType | None) -> None:
    check_all()
