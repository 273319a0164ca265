"""What arrives as a path, and what routes see of it.

Flow: raw path of the request line -> segments, each percent-decoded once, its matrix parameters cut
off -> ``scope["path"]``. An encoded slash inside a segment stays one name (``SLASH``). ``HEAD`` is
served as ``GET`` without its body. Nothing is ever redirected. A message with two lengths is
refused.
"""

from typing import Final, final
from urllib.parse import quote, unquote_to_bytes

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.rest.answers import error_response

SLASH: Final = "\ufdd0"
"""Placeholder of a slash inside a segment: a noncharacter, which no name can hold."""

LOCATION_SAFE: Final = "!$&'()*+,=:@"
"""May stand in a path segment as it is (RFC 3986); ``;`` may too, but would cut the name off."""


def plain_segment(text: str) -> str:
    """Return a path parameter as the client meant it."""
    return text.replace(SLASH, "/")


def encoded_segment(text: str) -> str:
    """Return a name as one segment of a path."""
    # Clients take a plain ``..`` for the segment before it, and leave out ``.``.
    return quote(text, safe=LOCATION_SAFE) if text.strip(".") else text.replace(".", "%2E")


def canonical_target(scope: Scope) -> str:
    """Return a path that ``RawPath`` has seen, encoded in one way for the next hop."""
    path: str = scope["path"]
    return "/".join(encoded_segment(plain_segment(segment)) for segment in path.split("/"))


@final
class RawPath:
    """ASGI middleware: gives routes one spelling of a path, and serves ``HEAD``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            # A proxy may read the one, h11 the other (RFC 9112 6.1): a request smuggled.
            text = "A request has Content-Length or Transfer-Encoding, not both"
            await error_response(400, text, {"Connection": "close"})(scope, receive, send)
            return
        path: str = scope["path"]
        raw: bytes = scope.get("raw_path") or quote(path).encode()
        inner = dict(scope, path=_decoded(raw))
        if scope["method"] != "HEAD":
            await self._app(inner, receive, send)
            return
        inner["method"] = "GET"
        await self._app(inner, receive, _Headless(send))


def _decoded(raw: bytes) -> str:
    # Empty segments are dropped: a trailing slash means nothing, and clients join paths with two.
    names = (_segment(part) for part in raw.split(b"/"))
    return "/" + "/".join(name for name in names if name)


def _segment(part: bytes) -> str:
    # Decoded once: gate and routes must not see two different paths.
    text = unquote_to_bytes(part.split(b";", 1)[0]).decode("utf-8", "replace")
    return text.replace("/", SLASH)


@final
class _Headless:
    """A ``send`` that drops bodies and keeps headers."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            message = dict(message, body=b"")
        await self._send(message)
