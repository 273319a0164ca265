"""The two applications of a worker: what users reach, and what only workers reach.

Flow: ``ErrorEdge`` -> ``Probes`` (public) -> ``RawPath`` -> Gate (public) or ``InternalGate`` ->
``PageFiles`` (public) -> ``Options`` -> routes. An ordinary worker has Connect's dialect at its
root. In the dedicated mode each flow has it under ``/{source}/{target}`` and
``/pairs/{source}/{target}``, and the root shows all flows as one. Failures: exception of a handler
-> Connect's ``{"error_code", "message"}``, secrets masked. ``HerderError`` by its status,
``ConfigError`` 400, ``RetriableError`` 503, anything unexpected 500. A ``ForwardError`` is
forwarded.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.errors import ConfigError, Mm2pyError, RetriableError
from mm2py.observability.logging import SecretMask
from mm2py.rest.answers import UNPROCESSABLE, error_response, framework_text
from mm2py.rest.internal_gate import NODE_SNAPSHOT_ROUTE, InternalGate
from mm2py.rest.page import PageFiles
from mm2py.rest.parts import RESERVED_ALIASES, SIGNED_FLOW, RestParts, RouteSpec, endpoint
from mm2py.rest.raw_path import RawPath, plain_segment
from mm2py.rest.refusals import refusal_text
from mm2py.rest.routes import connectors, worker
from mm2py.rest.routes.metrics import metrics_route
from mm2py.rest.routes.probes import Probes
from mm2py.runtime.errors import (
    CONFLICTING_OPERATION,
    NO_LEADER,
    STALE_CONFIGURATION,
    ForwardError,
    HerderError,
    NotFoundError,
)
from mm2py.runtime.herder.herder import Herder
from mm2py.types import ClusterAlias, FlowName

log = logging.getLogger(__name__)

DIALECT: Final[tuple[RouteSpec, ...]] = (*worker.ROUTES, *connectors.ROUTES)

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
    if parts.flows is not None:
        app = PageFiles(app)
    gated = app if parts.gate is None else parts.gate(app)
    return ErrorEdge(Probes(RawPath(gated), parts), parts.mask)


def own_app(parts: RestParts) -> ASGIApp:
    """Return what this process asks of itself: the users' API, without authentication."""
    return ErrorEdge(RawPath(_application(parts, DIALECT)), parts.mask)


def internal_app(parts: RestParts) -> ASGIApp:
    """Return what only workers of the same flows reach: these, and their own endpoints, signed."""
    app = _application(parts, (*DIALECT, NODE_SNAPSHOT_ROUTE))
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
        # The routes themselves: an included router is analysed again by each application.
        app.router.routes.extend(parts.flows.routes)
    app.router.routes.extend(at_root)
    if not parts.dedicated:
        app.router.routes.extend(endpoint(specs, "", herders.visible, parts))
        return _AnswersOptions(app, app.router.routes)
    app.router.routes.extend(endpoint(specs, "", herders.visible, parts, long_names=True))
    for prefix in (RESERVED_PAIR, PAIR):
        app.router.routes.extend(endpoint(specs, prefix, herders.of_pair, parts))
    return _AnswersOptions(app, app.router.routes)


@final
class _Herders:
    """Finds the herders that a request is about: for a signed one only those of its flow."""

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
class _AnswersOptions:
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
        # Connect's type is text/plain, without a charset.
        answer = Response(text, headers={"Allow": text, "Content-Type": "text/plain"})
        await answer(scope, receive, send)

    def _serves(self, scope: Scope, method: str) -> bool:
        asked = dict(scope, method=method)
        return any(route.matches(asked)[0] is Match.FULL for route in self._routes)


RETRY_AFTER_S: Final = "1"
UNAVAILABLE: Final = 503
_SOON: Final = frozenset({NO_LEADER, STALE_CONFIGURATION, CONFLICTING_OPERATION})
"""Refusals that end with the rebalance that is under way."""


def status_of(error: Mm2pyError) -> int:
    """Return the HTTP status of one of our errors."""
    if isinstance(error, HerderError):
        return error.status
    if isinstance(error, ConfigError):
        return 400
    return UNAVAILABLE if isinstance(error, RetriableError) else 500


@final
class _Handlers:
    def __init__(self, parts: RestParts) -> None:
        self._parts = parts

    async def ours(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Mm2pyError)
        if isinstance(error, ForwardError):
            try:
                return await self._parts.forward.send(error, request, request.state.herder)
            except HerderError as refusal:
                error = refusal
        status = status_of(error)
        # A herder's message is the body's text word for word; others say what to do as well.
        text = error.message if isinstance(error, HerderError) else str(error)
        soon = status == UNAVAILABLE or text in _SOON  # also what a leader has answered
        headers = {"Retry-After": RETRY_AFTER_S} if soon else {}
        return error_response(status, self._parts.mask.apply(text), headers)

    async def gone(self, request: Request, error: Exception) -> Response:
        return error_response(400, "The client went away in the middle of its request")

    async def defect(self, request: Request, error: Exception) -> Response:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return error_response(500, self._parts.mask.apply(text))

    async def framework(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = error.detail if error.status_code == UNPROCESSABLE else ""
        return error_response(error.status_code, text or framework_text(error.status_code))

    async def validation(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        text = refusal_text(error.errors())
        return error_response(UNPROCESSABLE, self._parts.mask.apply(text))


def install_handlers(app: FastAPI, parts: RestParts) -> None:
    """Make ``app`` answer failures in Connect's shape."""
    handlers = _Handlers(parts)
    app.add_exception_handler(Mm2pyError, handlers.ours)
    app.add_exception_handler(Exception, handlers.defect)
    app.add_exception_handler(ClientDisconnect, handlers.gone)
    app.add_exception_handler(HTTPException, handlers.framework)
    app.add_exception_handler(RequestValidationError, handlers.validation)


@final
class ErrorEdge:
    """ASGI middleware around everything: a defect is a 500 and a log line, no lost connection."""

    def __init__(self, app: ASGIApp, mask: SecretMask) -> None:
        self._app = app
        self._mask = mask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Mm2pyError as error:
            if started:
                raise
            text = error.message if isinstance(error, HerderError) else str(error)
            await error_response(status_of(error), self._mask.apply(text))(scope, receive, send)
        except Exception:
            # The application has answered already (`defect`), unless the defect is in a middleware.
            log.exception("rest request failed method=%s path=%s", scope["method"], scope["path"])
            if not started:
                await error_response(500, framework_text(500))(scope, receive, send)
