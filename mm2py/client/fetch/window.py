"""How much one Fetch asks for: as little as is enough nearby, as much as a long round trip needs. No I/O.

Flow: ``opened`` -> ``answer_bytes`` / ``partition_bytes`` -> ``answered`` (with the connection's round trip) -> larger
or smaller. One Fetch is under way per broker, so a partition gets at most one answer per round trip.
"""

from typing import Final, final

from mm2py.client.connect.round_trip import DISTANT_S
from mm2py.config.clients import ConsumerSettings

__all__ = ["ANSWER_BYTES", "FetchWindow"]

_MARGIN_BYTES: Final = 64 * 1024
"""Left for an answer's framing: receive buffers are powers of two, one byte more costs double."""

_ANSWER_STEP: Final = 4 * 1024 * 1024
ANSWER_BYTES: Final = _ANSWER_STEP - _MARGIN_BYTES
"""Nearby: with its framing it fills a 4 MiB buffer; larger answers gain nothing (real-broker.md 8)
and push the data out of the CPU's cache before it is sent on."""

_MOST_ANSWER: Final = 16 * 1024 * 1024
_MOST_PARTITION: Final = 8 * 1024 * 1024 - _MARGIN_BYTES
"""Distant: an answer costs a round trip and its own transfer. The Sender keeps 5 MiB in flight per round
trip (five largest batches); 8 MiB per answer matches that as long as the transfer and the handling take
no more than 0.6 of a round trip, and fit the 10.7 MiB that one partition may hold (a third of
``buffer.memory``)."""

_MOST_GROWTH: Final = 8

_ENOUGH_S: Final = 0.25
"""An answer whose transfer alone takes longer than this, and than a round trip, loses little by the wait
before it: larger ones would only keep other partitions waiting behind it."""

_TOO_LONG_S: Final = 1.0
"""Transfer time from which the next answer is smaller: far below ``request.timeout.ms`` on a line that
became slow, and nobody waits long behind one answer."""


@final
class FetchWindow:
    """Limits of the next Fetch to one broker.

    Nearby the configured limits hold. Over a round trip of 10 ms or more they double with each answer that
    used half of what one partition may have, while its transfer is short, and halve when it took too long.
    A ``max.partition.fetch.bytes`` that was set is never exceeded; ``fetch.max.bytes`` neither.
    """

    __slots__ = ("_growth", "_settings")

    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self._growth = 1

    @property
    def partition_bytes(self) -> int:
        """Limit of one partition in the next answer."""
        least = self._settings.max_partition_fetch_bytes
        if self._settings.max_partition_fetch_bytes_set or least >= _MOST_PARTITION:
            return least
        return min(least * self._growth, _MOST_PARTITION)

    def answer_bytes(self, most: int) -> int:
        """Limit of the whole next answer; above the nearby one only as far as ``most`` allows."""
        size = min(_ANSWER_STEP * self._growth, _MOST_ANSWER)
        while size > most and size > _ANSWER_STEP:
            size //= 2
        return min(size - _MARGIN_BYTES, self._settings.fetch_max_bytes)

    def opened(self) -> None:
        """A connection was opened; nothing is known of its speed yet."""
        self._growth = 1

    def answered(self, size_bytes: int, took_s: float, round_trip_s: float) -> None:
        """Take the size of an answer, the time since its Fetch was sent, and the shortest round trip."""
        if round_trip_s < DISTANT_S:
            self._growth = 1
            return
        if 2 * size_bytes < self.partition_bytes:
            return
        transfer_s = took_s - round_trip_s
        if transfer_s > max(_TOO_LONG_S, round_trip_s):
            self._growth = max(1, self._growth // 2)
        elif transfer_s <= max(_ENOUGH_S, round_trip_s):
            self._growth = min(_MOST_GROWTH, self._growth * 2)
