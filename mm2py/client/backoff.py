"""Retry schedules: exponential, capped, with jitter (Java's ``ExponentialBackoff``)."""

import math
import random
from collections.abc import Callable
from typing import Final, final

_JITTER: Final = 0.2
"""Java's ``RECONNECT_BACKOFF_JITTER``: clients that failed together do not reconnect together."""

_MAX_EXPONENT: Final = 32


def doubled(first: float, longest: float, failures: int) -> float:
    """Return the pause after so many failures before this one, in the unit of ``first`` and
    ``longest``: without jitter, as Connect has it of what one worker tries again."""
    # ldexp raises OverflowError for large exponents: failures grow without end.
    return min(math.ldexp(first, min(failures, _MAX_EXPONENT)), longest)


@final
class Backoff:
    """How long to wait before the next attempt; remembers how many have failed."""

    __slots__ = ("_initial_ms", "_max_ms", "_random", "failures")

    def __init__(
        self,
        initial_ms: int,
        max_ms: int,
        *,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max(initial_ms, max_ms)
        self._random = random
        self.failures = 0

    def next_s(self) -> float:
        """Count one more failure and return the pause before the next attempt, in seconds."""
        pause_ms = doubled(self._initial_ms, self._max_ms, self.failures)
        self.failures += 1
        spread = 1 - _JITTER + 2 * _JITTER * self._random()
        return pause_ms * spread / 1000

    def reset(self) -> None:
        """Start over after a success."""
        self.failures = 0
