"""How far away a broker is: the shortest round trip that its connection has seen.

Flow: a new connection -> ``ping`` a few times; later each answer -> ``BrokerConnection.round_trip_s`` ->
``is_distant`` decides what may be in flight to or from it. On a busy machine the first answers are late; any quick answer
corrects that, and the Sender, whose requests are large, asks a broker that seems distant again each second.
"""

from typing import Final

from mm2py.client.connect.connection import BrokerConnection
from mm2py.protocol.messages import api_versions

__all__ = ["is_distant", "ping"]

DISTANT_S: Final = 0.01
"""Round trip from which a broker counts as distant, for the Sender and the Fetcher alike."""

FIRST_PINGS: Final = 3


async def ping(connection: BrokerConnection, times: int = FIRST_PINGS) -> None:
    """Ask for the API versions, an empty request, a few times."""
    for _ in range(times):
        await connection.call(api_versions())


def is_distant(connection: BrokerConnection) -> bool:
    """Whether a round trip to the broker takes long enough that what is in flight must be large."""
    return connection.round_trip_s >= DISTANT_S
