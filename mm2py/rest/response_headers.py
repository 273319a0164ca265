"""Headers that the worker's file puts on every answer: for pages of other origins, and the user's own.

Flow: answer of the application, refusals included -> its start with more headers. What a page of another
origin may change is decided by ``security.Gate``.
"""

from email.utils import formatdate
from typing import Final, final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.clock import Clock
from mm2py.config.header_rules import HeaderRule

_PREFLIGHT_AGE_S: Final = "60"


@final
class CrossOrigin:
    """ASGI middleware: answers as Jetty's cross-origin handler does for Connect (kcr 1.14)."""

    def __init__(
        self, app: ASGIApp, origins: frozenset[str], methods: str, headers: str = "Content-Type"
    ) -> None:
        self._app, self._origins, self._methods, self._headers = app, origins, methods, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Headers(scope=scope)
        origin = request.get("origin", "")
        allowed = bool(origin) and ("*" in self._origins or origin.lower() in self._origins)
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in request

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("Origin")
                if allowed:
                    headers["Access-Control-Allow-Origin"] = origin
                if allowed and preflight:
                    headers["Access-Control-Allow-Methods"] = self._methods
                    headers["Access-Control-Allow-Headers"] = self._headers
                    headers["Access-Control-Max-Age"] = _PREFLIGHT_AGE_S
            await send(message)

        await self._app(scope, receive, answer)


@final
class RuledHeaders:
    """ASGI middleware: ``response.http.headers.config``."""

    def __init__(self, app: ASGIApp, rules: tuple[HeaderRule, ...], clock: Clock) -> None:
        self._app, self._rules, self._clock = app, rules, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for rule in self._rules:
                    self._apply(rule, headers)
            await send(message)

        await self._app(scope, receive, answer)

    def _apply(self, rule: HeaderRule, headers: MutableHeaders) -> None:
        value = rule.value
        if rule.action.endswith("Date"):
            value = formatdate((self._clock.now_ms() + int(value)) / 1000, usegmt=True)
        if rule.action.startswith("set"):
            headers[rule.name] = value
        else:
            headers.append(rule.name, value)
