"""Version, cluster and health of this worker (``RootResource``).

The version is Kafka's, because clients take features from it; ours is in ``commit``. At the root of the dedicated
mode it is that of all flows: all clusters, and the worst health.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from mm2py.rest.answers import json_response
from mm2py.rest.parts import Call, RouteSpec
from mm2py.runtime.herder.api import Health
from mm2py.runtime.herder.herder import Herder

HEALTH_STATUS: Final[Mapping[str, int]] = {"healthy": 200, "starting": 503, "unhealthy": 500}
SEVERITY: Final = tuple(HEALTH_STATUS)


async def root(call: Call) -> Response:
    """``GET /``."""
    return json_response(
        {
            "version": call.parts.version,
            "commit": call.parts.commit,
            "kafka_cluster_id": ",".join(sorted({each.cluster_id for each in _asked(call)})),
        }
    )


async def health(call: Call) -> Response:
    """``GET /health``."""
    found = await asyncio.gather(*(herder.health() for herder in _asked(call)))
    worst = _worst(call, found)
    body = {"status": worst.status, "message": call.parts.mask.apply(worst.message)}
    return json_response(body, HEALTH_STATUS[worst.status])


def _asked(call: Call) -> Sequence[Herder]:
    return list(call.herders.values()) if call.long_names else [call.herder]


def _worst(call: Call, found: Sequence[Health]) -> Health:
    if not found:
        return Health("starting", "Worker is still starting up.")
    worst = max((each.status for each in found), key=SEVERITY.index)
    if not call.long_names or worst == SEVERITY[0]:
        return found[0]
    texts = [
        f"{flow}: {each.message}"
        for flow, each in zip(call.herders, found, strict=True)
        if each.status == worst
    ]
    return Health(worst, " ".join(texts))


ROUTES: Final[tuple[RouteSpec, ...]] = (
    ("GET", "/", root),
    ("GET", "/health", health),
)
