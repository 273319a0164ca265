"""Who answers here, and whether it is well (``RootResource``).

The version is Kafka's, because clients take features from it; ours stands in ``commit``.
"""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from mm2py.rest.answers import json_response
from mm2py.rest.parts import Call, RouteSpec

__all__ = ["ROUTES"]

HEALTH_STATUS: Final[Mapping[str, int]] = {"healthy": 200, "starting": 503, "unhealthy": 500}


async def root(call: Call) -> Response:
    """``GET /``."""
    return json_response(
        {
            "version": call.parts.version,
            "commit": call.parts.commit,
            "kafka_cluster_id": call.herder.cluster_id,
        }
    )


async def health(call: Call) -> Response:
    """``GET /health``."""
    said = await call.herder.health()
    body = {"status": said.status, "message": call.parts.mask.apply(said.message)}
    return json_response(body, HEALTH_STATUS[said.status])


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/", root),
    ("GET", "/health", health),
)
