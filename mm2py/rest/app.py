"""The two applications of a worker: what users reach, and what only workers reach.

Flow: ``ErrorEdge`` -> ``RawPath`` -> Gate (public) or ``InternalGate`` -> ``Options`` -> routes.
An ordinary worker has Connect's dialect at its root. In the dedicated mode each flow has it under
``/{source}/{target}`` and ``/pairs/{source}/{target}``, and the root shows all flows as one.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.rest.answers import error_response, framework_text
from mm2py.rest.errors import ErrorEdge, install_handlers
from mm2py.rest.internal_gate import InternalGate
from mm2py.rest.parts import (
    RESERVED_ALIASES,
    SIGNED_FLOW,
    RestParts,
    RouteSpec,
    endpoint,
)
from mm2py.rest.raw_path import RawPath, plain_segment
from mm2py.rest.routes import admin, connectors, internal, lifecycle, offsets, plugins, root
from mm2py.rest.routes.metrics import metrics_route
from mm2py.runtime.errors import NotFoundError
from mm2py.runtime.herder.herder import Herder
from mm2py.types import ClusterAlias, FlowName

log = logging.getLogger(__name__)

DIALECT: Final[tuple[RouteSpec, ...]] = (
    *root.ROUTES,
    *connectors.ROUTES,
    *lifecycle.ROUTES,
    *offsets.ROUTES,
    *plugins.ROUTES,
    *admin.ROUTES,
)

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
PAIR: Final = "/{source}/{target}"
RESERVED_PAIR: Final = "/pairs/{source}/{target}"


def public_app(parts: RestParts) -> ASGIApp:
    """Return what users reach."""
    for flow in parts.herders():
        if flow is not None and flow.source in RESERVED_ALIASES:
            log.warning(
                "alias is a word of the API, rest has the flow under /pairs/%s/%s only flow=%s",
                flow.source,
                flow.target,
                flow,
            )
    app: ASGIApp = _application(parts, DIALECT, at_root=[metrics_route(parts)])
    gated = app if parts.gate is None else parts.gate(app)
    return ErrorEdge(RawPath(gated), parts.mask)


def own_app(parts: RestParts) -> ASGIApp:
    """Return what this process asks of itself: the users' API, whoever is named in the scope."""
    return ErrorEdge(RawPath(_application(parts, DIALECT)), parts.mask)


def internal_app(parts: RestParts) -> ASGIApp:
    """Return what only workers of the same flows reach: the same, and their own endpoints, signed."""
    app = _application(parts, (*DIALECT, *internal.ROUTES))
    return ErrorEdge(RawPath(InternalGate(app, parts)), parts.mask)


def _application(
    parts: RestParts, specs: tuple[RouteSpec, ...], at_root: Sequence[Route] = ()
) -> ASGIApp:
    herders = _Herders(parts)
    app = FastAPI(
        title="mm2py",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url=None if parts.flows is None else "/openapi.json",
    )
    install_handlers(app, parts)
    if parts.flows is not None:
        app.include_router(parts.flows)
    app.router.routes.extend(at_root)
    if not parts.dedicated:
        app.router.routes.extend(endpoint(specs, "", herders.visible, parts))
        return _Options(app, app.router.routes)
    app.router.routes.extend(endpoint(specs, "", herders.visible, parts, long_names=True))
    for prefix in (RESERVED_PAIR, PAIR):
        app.router.routes.extend(endpoint(specs, prefix, herders.of_pair, parts))
    return _Options(app, app.router.routes)


@final
class _Herders:
    """Finds the herders that a request is about; a signed request sees the flow that signed it, no other."""

    def __init__(self, parts: RestParts) -> None:
        self._parts = parts

    def visible(self, request: Request) -> Mapping[FlowName | None, Herder]:
        herders = self._parts.herders()
        if SIGNED_FLOW not in request.scope:
            return herders
        signed: FlowName | None = request.scope[SIGNED_FLOW]
        return {flow: herder for flow, herder in herders.items() if flow == signed}

    def of_pair(self, request: Request) -> Mapping[FlowName | None, Herder]:
        source, target = (
            plain_segment(str(request.path_params[end])) for end in ("source", "target")
        )
        reserved = str(request.scope["path"]).startswith("/pairs/")
        if source in RESERVED_ALIASES and not reserved:
            raise HTTPException(404)
        flow = FlowName(ClusterAlias(source), ClusterAlias(target))
        herder = self.visible(request).get(flow)
        if herder is None:
            raise NotFoundError(
                f"No replication flow found for source '{source}' and target '{target}'"
            )
        return {flow: herder}


@final
class _Options:
    """ASGI middleware that answers ``OPTIONS`` with the methods of the path, as plain text."""

    def __init__(self, app: ASGIApp, routes: list[BaseRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            await self._app(scope, receive, send)
            return
        methods = [method for method in METHODS if self._serves(scope, method)]
        if not methods:
            await error_response(404, framework_text(404))(scope, receive, send)
            return
        if "GET" in methods:
            methods.insert(0, "HEAD")
        text = ", ".join([*methods, "OPTIONS"])
        # Connect's type is text/plain as it stands, without a charset.
        answer = Response(text, headers={"Allow": text, "Content-Type": "text/plain"})
        await answer(scope, receive, send)

    def _serves(self, scope: Scope, method: str) -> bool:
        asked = dict(scope, method=method)
        return any(route.matches(asked)[0] is Match.FULL for route in self._routes)
