"""What only workers ask each other: task configs for the leader, fencing, lag and rates of a node.

Flow: signed request -> herder. The first two are Java's and may carry Java's signature of the body, which
is verified here; every other signature was verified before (``internal_gate``).
"""

from typing import Final, cast

from starlette.responses import Response

from mm2py.rest.answers import empty
from mm2py.rest.bodies import config_map, read_json
from mm2py.rest.parts import Call, RouteSpec
from mm2py.runtime.group.request_signing import verify_body
from mm2py.runtime.herder.errors import BadRequestError

__all__ = ["NODE_SNAPSHOT", "ROUTES"]

NODE_SNAPSHOT: Final = "/mm2py/node-snapshot"


async def _verify(call: Call) -> None:
    if not call.signed:
        verify_body(
            call.request.headers,
            await call.request.body(),
            call.connector().herder.session_key(),
            call.parts.verification(call.connector().herder.flow),
        )


async def put_tasks(call: Call) -> Response:
    """``POST .../tasks``: what a connector's owner wants its tasks to be."""
    await _verify(call)
    body = await read_json(call.request)
    if not isinstance(body, list):
        raise BadRequestError("Task configs have to be a JSON array")
    configs = [_task_config(item) for item in cast("list[object]", body)]
    connector = call.connector()
    await connector.herder.put_task_configs(connector.own, configs)
    return empty(204)


def _task_config(item: object) -> dict[str, str]:
    return {key: value for key, value in config_map(item).items() if value is not None}


async def fence(call: Call) -> Response:
    """``PUT .../fence``."""
    await _verify(call)
    connector = call.connector()
    await connector.herder.fence(connector.own)
    return empty(204)


async def node_snapshot(call: Call) -> Response:
    """``GET /mm2py/node-snapshot``: what this node copies."""
    return Response(call.herder.node_snapshot().to_json(), media_type="application/json")


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("POST", "/connectors/{connector}/tasks", put_tasks),
    ("PUT", "/connectors/{connector}/fence", fence),
    ("GET", NODE_SNAPSHOT, node_snapshot),
)
