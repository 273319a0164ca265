"""Every failure as Connect's error body, secrets masked.

Flow: exception of a handler -> status and text -> ``{"error_code", "message"}``. ``HerderError`` by its
status, ``ConfigError`` 400, ``RetriableError`` 503, what nobody expected 500. A ``ForwardError`` is sent on.
"""

import logging
from typing import Final, final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.errors import ConfigError, Mm2pyError, RetriableError
from mm2py.observability.logging import SecretMask
from mm2py.rest.answers import error_response, framework_text
from mm2py.rest.parts import RestParts
from mm2py.runtime.errors import (
    CONFLICTING_OPERATION,
    NO_LEADER,
    STALE_CONFIGURATION,
    ForwardError,
    HerderError,
    WorkerUnreachableError,
)

log = logging.getLogger(__name__)

UNPROCESSABLE: Final = 422
RETRY_AFTER_S: Final = "1"
_SOON: Final = frozenset({NO_LEADER, STALE_CONFIGURATION, CONFLICTING_OPERATION})
"""Refusals that end with the rebalance that is under way."""


def status_of(error: Mm2pyError) -> int:
    """Return the HTTP status of one of our errors."""
    if isinstance(error, HerderError):
        return error.status
    if isinstance(error, ConfigError):
        return 400
    return 503 if isinstance(error, RetriableError) else 500


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
        soon = isinstance(error, RetriableError | WorkerUnreachableError) or text in _SOON
        headers = {"Retry-After": RETRY_AFTER_S} if soon else {}
        return error_response(status, self._parts.mask.apply(text), headers)

    async def gone(self, request: Request, error: Exception) -> Response:
        del request, error
        return error_response(400, "The client went away in the middle of its request")

    async def defect(self, request: Request, error: Exception) -> Response:
        del request
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return error_response(500, self._parts.mask.apply(text))

    async def framework(self, request: Request, error: Exception) -> Response:
        del request
        assert isinstance(error, HTTPException)
        text = error.detail if error.status_code == UNPROCESSABLE else ""
        return error_response(error.status_code, text or framework_text(error.status_code))

    async def validation(self, request: Request, error: Exception) -> Response:
        del request
        assert isinstance(error, RequestValidationError)
        problems = [
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}"
            for item in error.errors()
        ]
        return error_response(UNPROCESSABLE, self._parts.mask.apply("; ".join(problems)))


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
    """ASGI middleware around everything: a defect is one 500 and one log line, not a lost connection."""

    def __init__(self, app: ASGIApp, mask: SecretMask) -> None:
        self._app = app
        self._mask = mask

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
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
