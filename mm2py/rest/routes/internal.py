"""What only workers ask each other: lag and rates of a node.

Flow: signed request, verified by ``internal_gate`` -> herder.
"""

from typing import Final

from starlette.responses import Response

from mm2py.rest.parts import Call, RouteSpec

NODE_SNAPSHOT: Final = "/mm2py/node-snapshot"


async def node_snapshot(call: Call) -> Response:
    """``GET /mm2py/node-snapshot``: what this node copies."""
    return Response(call.herder.node_snapshot().to_json(), media_type="application/json")


ROUTES: Final[tuple[RouteSpec, ...]] = (("GET", NODE_SNAPSHOT, node_snapshot),)
