"""Distance of a broker: the shortest round trip that any connection to its address has measured.

Flow: the pool gives each connection the ``RoundTrip`` of its address -> a new connection: ``ping``
a few times; each response, until one was quick -> ``RoundTrip.took`` -> ``is_distant`` decides how
much may be in flight. On a busy machine the first responses are late, and on a connection with
large requests in flight all of them are. Any quick response corrects that, also to a small request
on another connection, and the Sender pings a broker that seems distant each second.
"""

from math import inf
from typing import Final, final

DISTANT_S: Final = 0.01
"""Round trip from which a broker counts as distant, for the Sender and the Fetcher alike."""

FIRST_PINGS: Final = 3


@final
class RoundTrip:
    """The shortest time from a request to its response, of all connections to one address.

    A response proves that the broker is at most that far away.
    """

    __slots__ = ("is_distant", "least_s")

    def __init__(self) -> None:
        self.least_s = inf
        self.is_distant = True
        """Whether it is so long that large requests must be in flight to use the line."""

    def took(self, seconds: float) -> None:
        # The least, not a mean: a late response proves nothing, brokers hold a Fetch on purpose.
        self.least_s = min(self.least_s, seconds)
        self.is_distant = self.least_s >= DISTANT_S
