"""How far away a broker is: the shortest of a few round trips of an empty request.

Flow: a new connection -> ``measure_round_trip_s`` -> ``DISTANT_S`` decides what may be in flight to or from it.
Data requests are not measured: their answer time grows with their size and the broker's load.
"""

from typing import Final

from mm2py.client.connect.connection import BrokerConnection
from mm2py.clock import Clock
from mm2py.protocol.messages import api_versions

__all__ = ["DISTANT_S", "measure_round_trip_s"]

DISTANT_S: Final = 0.01
"""Round trip from which a broker counts as distant, for the Sender and the Fetcher alike."""

_PINGS: Final = 3


async def measure_round_trip_s(connection: BrokerConnection, clock: Clock) -> float:
    """Ask for the API versions a few times and return the shortest time, in seconds."""
    shortest_s = float("inf")
    for _ in range(_PINGS):
        began = clock.monotonic()
        await connection.call(api_versions())
        shortest_s = min(shortest_s, clock.monotonic() - began)
    return shortest_s
