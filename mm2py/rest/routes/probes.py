"""``GET /livez`` and ``GET /readyz``: what an orchestrator asks, at once and without credentials.

Flow: request -> ``Probes``, before the gate -> status from what herders know now. Both answer one
word: the cause is in ``GET /health``, behind authentication. Neither asks a cluster, another worker
or a herder's loop.
"""

from typing import Final, final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.flows.states import decisive
from mm2py.rest.answers import json_response
from mm2py.rest.parts import RestParts

LIVE: Final = "/livez"
READY: Final = "/readyz"
_READS: Final = frozenset({"GET", "HEAD"})


@final
class Probes:
    """ASGI middleware outside of authentication: an orchestrator has no password."""

    def __init__(self, app: ASGIApp, parts: RestParts) -> None:
        self._app, self._parts = app, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http" and scope["method"] in _READS:
            if scope["path"] == LIVE:
                answer = json_response({"status": "alive"})
            elif scope["path"] == READY:
                answer = self._ready()
        await answer(scope, receive, send)

    def _ready(self) -> Response:
        """Ready once each flow that decides is in its group: a rolling upgrade waits for it."""
        herders = decisive(self._parts.herders()).values()
        if herders and all(it.failure is None and not it.not_ready for it in herders):
            return json_response({"status": "ready"})
        return json_response({"status": "not ready", "message": "GET /health has the cause"}, 503)
