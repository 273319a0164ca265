"""Who may speak on the internal listener: workers of the same flow, by signature.

Flow: request -> signature of ``X-Mm2py-Authorization`` with the session key of the flow it names -> caller
and flow in the scope. Java's two endpoints pass unchecked: their handlers check Java's signature of the
body. Everything else is a 403.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final
from urllib.parse import quote, unquote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.rest.answers import error_response
from mm2py.rest.parts import CALLER, SIGNED_FLOW, RestParts, WhoCalls
from mm2py.runtime.group.request_signing import CALLER_HEADER, REQUEST_HEADER, verify_request
from mm2py.runtime.herder.errors import HerderError, SignatureError
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName

__all__ = [
    "FLOW_HEADER",
    "InternalGate",
    "SignedCaller",
    "caller_text",
    "flow_text",
]

FLOW_HEADER: Final = "X-Mm2py-Flow"
"""Names the flow whose key signed; not signed itself, another flow has another key."""

BODY_LIMIT_BYTES: Final = 16 * 1024 * 1024
"""Task configs of a flow with many topics are long; this only bounds what a stranger can make us hold."""

UNSIGNED: Final = "Internal request missing required signature"
JAVA_ENDPOINTS: Final = frozenset({("POST", "tasks"), ("PUT", "fence")})


@dataclass(frozen=True, slots=True)
class SignedCaller:
    """Who asked the worker that sent the request on."""

    name: str
    operator: bool


def caller_text(caller: WhoCalls) -> str:
    """Return the value of the caller header; ASCII."""
    return f"{quote(caller.name)};{'operator' if caller.operator else 'reader'}"


def _caller(text: str) -> SignedCaller:
    name, _, role = text.partition(";")
    return SignedCaller(unquote(name), role == "operator")


def flow_text(flow: FlowName | None) -> str:
    """Return the value of the flow header; ASCII, empty for an ordinary worker."""
    return "" if flow is None else f"{quote(flow.source, safe='')}/{quote(flow.target, safe='')}"


@final
class InternalGate:
    """ASGI middleware of the internal listener; ``RawPath`` is outside of it."""

    def __init__(self, app: ASGIApp, parts: RestParts) -> None:
        self._app = app
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Verify one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if REQUEST_HEADER not in headers and not _is_java_endpoint(scope):
            await error_response(403, UNSIGNED)(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            await error_response(413, "HTTP 413 Content Too Large")(scope, receive, send)
            return
        try:
            inner = self._verified(scope, headers, body)
        except HerderError as error:
            await error_response(error.status, error.message)(scope, receive, send)
            return
        await self._app(inner, _Replay(body, receive), send)

    def _verified(self, scope: Scope, headers: Mapping[str, str], body: bytes) -> Scope:
        if REQUEST_HEADER not in headers:
            return scope
        herder = self._signer(headers.get(FLOW_HEADER, ""))
        verify_request(headers, scope["method"], _target(scope), body, herder.session_key())
        caller = _caller(headers.get(CALLER_HEADER, ""))
        return dict(scope, **{CALLER: caller, SIGNED_FLOW: herder.flow})

    def _signer(self, text: str) -> Herder:
        for flow, herder in self._parts.herders().items():
            if flow_text(flow) == text:
                return herder
        raise SignatureError(
            "This worker does not run the flow that signed the request, or is still starting up",
            status=503,
        )


def _is_java_endpoint(scope: Scope) -> bool:
    path: str = scope["path"]
    segments = path.split("/")
    return len(segments) > 3 and (
        (scope["method"], segments[-1]) in JAVA_ENDPOINTS and segments[-3] == "connectors"
    )


def _target(scope: Scope) -> str:
    """Return path and query as they stood in the request line."""
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    query: bytes = scope.get("query_string", b"")
    return (raw + b"?" + query if query else raw).decode("latin-1")


async def _body(receive: Receive) -> bytes | None:
    """Return the whole body, None where it is too long."""
    chunks: list[bytes] = []
    size_bytes, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        chunk: bytes = message.get("body", b"")
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > BODY_LIMIT_BYTES:
            return None
        more = message.get("more_body", False)
    return b"".join(chunks)


@final
class _Replay:
    """A ``receive`` that gives the body once more."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}
