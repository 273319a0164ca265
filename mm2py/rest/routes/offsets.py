"""Stored positions of a connector: read, alter, reset.

Flow: call -> entries -> herder (which demands STOPPED) -> entries or ``{"message"}``.
"""

from typing import Final

from starlette.responses import Response

from mm2py.rest.answers import json_response
from mm2py.rest.bodies import offset_entries, read_json
from mm2py.rest.dialect_models import offsets_json
from mm2py.rest.parts import Call, RouteSpec


async def get_offsets(call: Call) -> Response:
    """``GET .../offsets``."""
    connector = call.connector()
    return json_response(offsets_json(await connector.herder.offsets(connector.own)))


async def alter_offsets(call: Call) -> Response:
    """``PATCH .../offsets``: only the named partitions change."""
    entries = offset_entries(await read_json(call.request, numbers_as_written=False))
    connector = call.connector()
    return json_response({"message": await connector.herder.alter_offsets(connector.own, entries)})


async def reset_offsets(call: Call) -> Response:
    """``DELETE .../offsets``."""
    connector = call.connector()
    return json_response({"message": await connector.herder.reset_offsets(connector.own)})


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/connectors/{connector}/offsets", get_offsets),
    ("PATCH", "/connectors/{connector}/offsets", alter_offsets),
    ("DELETE", "/connectors/{connector}/offsets", reset_offsets),
)
