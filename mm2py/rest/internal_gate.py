"""Access to the internal listener: workers of the same flow, by signature.

Flow: head of a request -> signature of ``X-Mm2py-Authorization`` with the session key of the flow
it names -> body -> application, with caller and flow in the scope. Everything else is refused, its
body unread and its connection closed; also Java's signature, which covers neither path nor time.
``NODE_SNAPSHOT_ROUTE`` is served here only.
"""

from typing import Final, final
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.rest.answers import error_response
from mm2py.rest.credentials import Caller
from mm2py.rest.parts import CALLER, SIGNED_FLOW, RestCall, RestParts, RouteSpec
from mm2py.rest.request_body import CLOSE, BodyReader, replayed
from mm2py.runtime.errors import HerderError, SignatureError
from mm2py.runtime.group.request_signing import (
    REQUEST_HEADER,
    SeenRequests,
    TermsError,
    sign_terms,
    verify_request,
)
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName

FLOW_HEADER: Final = "X-Mm2py-Flow"
"""Names the flow whose key signed; not signed itself, another flow has another key."""

BODY_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""More than any public listener takes: what was taken there is sent on."""


def caller_text(caller: Caller) -> str:
    """Return the value of the caller header; ASCII."""
    return f"{quote(caller.name)};{'operator' if caller.operator else 'reader'}"


def _caller(text: str) -> Caller:
    name, _, role = text.partition(";")
    return Caller(unquote(name), role == "operator")


def flow_text(flow: FlowName | None) -> str:
    """Return the value of the flow header; ASCII, empty for an ordinary worker."""
    return "" if flow is None else f"{quote(flow.source, safe='')}/{quote(flow.target, safe='')}"


@final
class InternalGate:
    """ASGI middleware of the internal listener; ``RawPath`` is outside of it."""

    def __init__(self, app: ASGIApp, parts: RestParts) -> None:
        self._app = app
        self._parts = parts
        self._seen = SeenRequests(parts.address, parts.started_ms)
        self._bodies = BodyReader(BODY_LIMIT_BYTES, at_once=8)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._admitted(scope, receive)
        except HerderError as error:
            answer = error_response(error.status, error.message, CLOSE)
        if isinstance(answer, Response):
            await answer(scope, receive, send)
            return
        inner, body = answer
        await self._app(inner, replayed(body, receive), send)

    async def _admitted(self, scope: Scope, receive: Receive) -> tuple[Scope, bytes] | Response:
        """Return the request with its caller and its body, or the refusal."""
        headers = Headers(scope=scope)
        if REQUEST_HEADER not in headers:
            raise SignatureError("Internal request missing required signature", status=403)
        herder = self._signer(headers.get(FLOW_HEADER, ""))
        key, now_ms = herder.session_key(), self._parts.clock.now_ms()
        head = verify_request(headers, scope["method"], _target(scope), key)
        assert key is not None
        try:
            # After the signature, so that a caller without the key cannot fill the list of nonces;
            # before the body, so that a replay costs nothing.
            self._seen.take(head, now_ms)
        except TermsError as error:
            terms = sign_terms(key, head.nonce, now_ms, self._seen.life)
            return error_response(error.status, error.message, {**CLOSE, **terms})
        body = await self._bodies.read(scope, receive)
        if isinstance(body, Response):
            return body
        # The signature covers the digest: the body is compared once it was read.
        head.check_body(body)
        return dict(scope, **{CALLER: _caller(head.caller), SIGNED_FLOW: herder.flow}), body

    def _signer(self, text: str) -> Herder:
        for flow, herder in self._parts.herders().items():
            if flow_text(flow) == text:
                return herder
        raise SignatureError(
            "This worker does not run the flow that signed the request, or is still starting up",
            status=503,
        )


def _target(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope.get("query_string", b"")
    return (raw + b"?" + query if query else raw).decode("latin-1")


NODE_SNAPSHOT: Final = "/mm2py/node-snapshot"


async def node_snapshot(call: RestCall) -> Response:
    """``GET /mm2py/node-snapshot``: what this node copies."""
    return Response(call.herder.node_snapshot().to_json(), media_type="application/json")


NODE_SNAPSHOT_ROUTE: Final[RouteSpec] = ("GET", NODE_SNAPSHOT, node_snapshot)
