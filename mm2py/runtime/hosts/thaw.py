"""What a process does first when it was frozen and goes on: before any socket is written to.

Flow: SIGCONT, or the end of each wait for sockets -> ``look``. asyncio alone would serve the sockets first and
its timers behind them, so a task would send for a membership that is long over.
"""

import selectors
import signal
from collections.abc import Callable
from types import FrameType
from typing import final

__all__ = ["ThawSelector"]


def _nothing() -> None:
    """Nobody watches yet."""


@final
class ThawSelector(selectors.DefaultSelector):
    """The selector of an event loop; ``watch`` says who looks."""

    def __init__(self) -> None:
        super().__init__()
        self._look: Callable[[], None] = _nothing

    def watch(self, look: Callable[[], None]) -> None:
        """Call ``look``, which must be quick, before events are handed out and when the process is continued.

        A container that is paused gets no signal; a process that is stopped in the middle of its work does.
        """
        self._look = look
        signal.signal(signal.SIGCONT, self._continued)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events."""
        found = super().select(timeout)
        self._look()
        return found

    def _continued(self, _signal: int, _frame: FrameType | None) -> None:
        self._look()
