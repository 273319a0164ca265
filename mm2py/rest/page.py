"""The page at ``/ui``: the files of the folder ``ui``, and where a browser that asks for ``/`` is
sent.

Flow: request -> ``PageFiles`` -> a file, or the API inside it. The files are static and hold no
data: the page reads the API with the rights of its caller. Its headers allow nothing from
elsewhere, no inline script or style, no frame.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, final

from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2py.rest.answers import error_response, framework_text

PAGE: Final = "/ui"
DOCS: Final = "/docs"
"""Leads to the API's description on the page, which needs no internet."""
PAGE_HEADER: Final = "X-Mm2py-Page"
"""The page's own requests have it: browsers ask for a password only where a 401 names a scheme."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # A text of the API can become markup nowhere: innerHTML and the like raise an error.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for again each time, and 304 while it is the same
}
_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "md": "text/plain",
    "LICENSE": "text/plain",
}
_INDEX: Final = "index.html"


@cache
def page_files() -> Mapping[str, bytes]:
    """Return the files of the page by their path below ``/ui/``."""
    return dict(_below(files("mm2py.rest") / "ui", ""))


def _below(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _below(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _TYPES:
            found.append((prefix + entry.name, entry.read_bytes()))
    return found


def prefers_html(headers: Headers) -> bool:
    """Whether a request is a browser's for a page: it accepts HTML, and rather than JSON."""
    weights = {"text/html": 0.0, "application/json": 0.0}
    for item in ",".join(headers.getlist("accept")).lower().split(","):
        kind, *parameters = (part.strip() for part in item.split(";"))
        if kind in weights:
            weights[kind] = max(weights[kind], _weight(parameters))
    return weights["text/html"] > weights["application/json"]


def _weight(parameters: list[str]) -> float:
    text = next((it[2:] for it in parameters if it.startswith("q=")), "1")
    try:
        return float(text)
    except ValueError:
        return 0.0


def is_of_page(path: str, headers: Headers) -> bool:
    """Whether a browser shows the answer, or the page at ``/ui`` asks for it."""
    return _is_page(path) or PAGE_HEADER in headers or prefers_html(headers)


def _is_page(path: str) -> bool:
    return path == PAGE or path.startswith(f"{PAGE}/")


@final
class PageFiles:
    """ASGI middleware that serves ``/ui``, and redirects browsers there; inside ``RawPath``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _answer(scope) if scope["type"] == "http" else None
        await (answer or self._app)(scope, receive, send)


def _answer(scope: Scope) -> Response | None:
    path: str = scope["path"]
    if _is_page(path):
        return _file(scope, path)
    if path == DOCS and scope["method"] == "GET":
        return RedirectResponse("ui/#/api", 303)
    if path == "/" and scope["method"] == "GET" and prefers_html(Headers(scope=scope)):
        # Relative, as all addresses of the page: a proxy may have it below a path of its own.
        return RedirectResponse("ui/", 303, {"Vary": "Accept"})
    return None


def _file(scope: Scope, path: str) -> Response:
    if scope["method"] == "OPTIONS":
        return Response(headers={"Allow": "HEAD, GET, OPTIONS"})
    if scope["method"] != "GET":
        return error_response(405, framework_text(405))
    raw: bytes = scope.get("raw_path") or b"/ui/"
    if path == PAGE and not raw.partition(b"?")[0].endswith(b"/"):
        return RedirectResponse("ui/", 303)
    name = path.removeprefix(PAGE).lstrip("/") or _INDEX
    content = page_files().get(name)
    if content is None:
        return error_response(404, framework_text(404))
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}
    if tag in Headers(scope=scope).get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])
