"""What a process does first when it was frozen and continues: before any socket is written to.

Flow: SIGCONT, or the end of each wait for sockets -> ``permit.check_all``. asyncio alone would serve the sockets
first and its timers behind them, so a task would write for a membership that is long over.
"""

import asyncio
import selectors
import signal
from types import FrameType
from typing import final

from mm2py.client.permit import check_all


@final
class ThawSelector(selectors.DefaultSelector):
    """The selector of an event loop that looks at all permits before events are handed out.

    A container that is paused gets no signal; a process that is stopped in the middle of its work does.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
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
