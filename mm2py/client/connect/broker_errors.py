"""Counts of broker failures of all clients of a process.

Flow: ``ConnectionPool`` -> ``add``; in a task host ``take`` -> ``HostReports.broker_errors`` ->
``add`` in the worker -> ``GET /metrics``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, final

from mm2py.clock import PerClock

_MOST: Final = 1_000
"""Addresses come and go; the one counted longest ago is dropped first."""


class Trouble(StrEnum):
    """How a broker failed."""

    UNREACHABLE = "unreachable"
    """An attempt to connect failed."""
    REFUSED = "refused"
    """The login or a certificate was refused, by either side."""
    LOST = "lost"
    """A connection ended with requests under way, also where one had no answer in time."""


class BrokerError(NamedTuple):
    """One kind of trouble with one address of a cluster."""

    cluster: str
    address: str
    trouble: Trouble


@final
class BrokerErrors:
    """Counts since the process began."""

    def __init__(self) -> None:
        self._counts: dict[BrokerError, int] = {}
        self._taken: Counter[BrokerError] = Counter()

    @property
    def counts(self) -> Mapping[BrokerError, int]:
        return self._counts

    def add(self, error: BrokerError, times: int = 1) -> None:
        # Removed and added: a dict keeps the order of first insertion otherwise.
        self._counts[error] = self._counts.pop(error, 0) + times
        if len(self._counts) > _MOST:
            oldest = next(iter(self._counts))
            del self._counts[oldest], self._taken[oldest]

    def add_all(self, errors: Iterable[tuple[BrokerError, int]]) -> None:
        """Add the counts of another process."""
        for error, times in errors:
            self.add(error, times)

    def take(self) -> tuple[tuple[BrokerError, int], ...]:
        """Return the counts since the last call."""
        if self._taken == self._counts:
            return ()
        new = Counter(self._counts) - self._taken
        self._taken = Counter(self._counts)
        return tuple(new.items())


errors_of: Final = PerClock(BrokerErrors)
"""Counts of all clients with a clock."""
