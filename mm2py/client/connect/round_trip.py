"""How far away a broker is: the shortest round trip that any connection to its address has seen.

Flow: the pool lends each connection the ``RoundTrip`` of its address -> a new connection: ``ping`` a few times; later each
answer -> ``RoundTrip.took`` -> ``is_distant`` decides what may be in flight to or from it. On a busy machine the first answers
are late, and on a connection with large requests under way all of them are: any quick answer corrects that, be it to a small
request on another connection, and the Sender asks a broker that seems distant again each second.
"""

from math import inf
from typing import TYPE_CHECKING, Final, final

from mm2py.protocol.messages import api_versions

if TYPE_CHECKING:
    from mm2py.client.connect.connection import BrokerConnection

DISTANT_S: Final = 0.01
"""Round trip from which a broker counts as distant, for the Sender and the Fetcher alike."""

FIRST_PINGS: Final = 3


@final
class RoundTrip:
    """The shortest time from a request to its answer, of all connections to one address.

    Any answer proves that the broker is no farther away.
    """

    __slots__ = ("least_s",)

    def __init__(self) -> None:
        self.least_s = inf

    def took(self, seconds: float) -> None:
        """An answer took that long."""
        self.least_s = min(self.least_s, seconds)


async def ping(connection: "BrokerConnection", times: int = FIRST_PINGS) -> None:
    """Ask for the API versions, an empty request, a few times."""
    for _ in range(times):
        await connection.call(api_versions())


def is_distant(connection: "BrokerConnection") -> bool:
    """Whether a round trip to the broker takes long enough that what is in flight must be large."""
    return connection.round_trip.least_s >= DISTANT_S
