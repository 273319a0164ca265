"""Orderly shutdown: the first SIGTERM, SIGINT or SIGHUP asks for it, a second SIGTERM or SIGINT
ends the process at once.

A terminal that is closed may send SIGHUP twice, and ``nohup`` has it ignored: that stays so. Flow:
signal -> ``StopSignal.wait`` returns -> the caller drains and commits. Nothing else touches
signals.
"""

import asyncio
import os
import signal
from typing import Final, Self, final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

DRAIN_TIMEOUT_S: Final = 25.0
"""Orderly stop of everything; leaves 5 s of the 30 that service managers give by default."""


@final
class StopSignal:
    """Catches stop signals of this process while it is entered; needs a running event loop."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask for a stop, as a signal would."""
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._before = {number: signal.getsignal(number) for number in SIGNALS}
        if self._before[signal.SIGHUP] is signal.SIG_IGN:
            del self._before[signal.SIGHUP]
        for number in self._before:
            loop.add_signal_handler(number, self._caught, number)
        return self

    def __exit__(self, *_exception: object) -> None:
        loop = asyncio.get_running_loop()
        for number, handler in self._before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def _caught(self, number: signal.Signals) -> None:
        if self._asked.is_set() and number is not signal.SIGHUP:
            # As a shell reports a process ended by SIGTERM (143) or SIGINT (130).
            os._exit(128 + number)
        self._asked.set()
