"""The gate in front of the public API: authentication, authorization, size of the body; headers of
all answers.

Flow: request -> host and origin -> caller (401) -> role (403) -> body, only then read (413) ->
application, with the caller in its scope. Signed requests of other workers have ``internal_gate``.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from ipaddress import ip_address
from typing import Final, final
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.header_rules import HeaderRule
from mm2py.config.limits import MAX_NAME_CHARS
from mm2py.config.rest_settings import RestSettings, is_loopback
from mm2py.rest.answers import error_response, framework_text
from mm2py.rest.credentials import Caller, RestCredentials, claimed_name
from mm2py.rest.listener_tls import CERTIFICATE_NAME
from mm2py.rest.page import PAGE_HEADER, is_of_page
from mm2py.rest.parts import CALLER, RESERVED_ALIASES
from mm2py.rest.raw_path import plain_segment
from mm2py.rest.request_body import BodyReader, replayed

log = logging.getLogger(__name__)

_READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_UNAUTHORIZED: Final = "User cannot access the resource."
_BASIC: Final = 'Basic realm="mm2py", charset="UTF-8"'
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_POLICY_VIOLATION: Final = 1008
ACCESS_HEADER: Final = "X-Mm2py-Access"
"""Of answers to the page: ``change``, or ``read`` for a caller who may only read."""
USER_HEADER: Final = "X-Mm2py-User"
"""Of answers to the page: the caller's name, percent-encoded."""
BODIES_AT_ONCE: Final = 16
LOGIN_LOG_S: Final = 10.0
LOGIN_TRIES: Final = 20
"""Wrong passwords of one user, or wrong tokens, from one address at once; then one more each
``LOGIN_PAUSE_S``."""

LOGIN_PAUSE_S: Final = 3.0
MOST_LOGINS: Final = 1_000
"""Pairs of address and user that are remembered; the one that failed longest ago is forgotten."""

_TOLD: Final = frozenset(
    {"topic", "partition", "revision", "dry_run", "all_topics", "only_failed", "kind", "accept_loss", "unplanned"}
)  # fmt: skip
"""Parameters that the log has beside a path; any other may hold what nobody should read."""

_PREFLIGHT: Final = Caller("preflight", operator=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRules:
    """What the gate allows.

    ``origins``: other origins whose pages may send changes, ``*`` for all.
    ``own_hosts``: names by which an API without authentication may be asked besides addresses and
    localhost; None switches the check off.
    """

    max_body_bytes: int
    admin_endpoints: bool = True
    origins: frozenset[str] = frozenset()
    own_hosts: frozenset[str] | None = None


def gate_for(
    settings: RestSettings, credentials: RestCredentials, *, clock: Clock = SYSTEM_CLOCK
) -> Callable[[ASGIApp], ASGIApp]:
    """Return what wraps the public application: the gate, and headers for all its answers."""
    rules = GateRules(
        max_body_bytes=settings.max_body_bytes,
        admin_endpoints=settings.admin_endpoints,
        origins=settings.allowed_origins,
        own_hosts=None if settings.authenticated or settings.insecure else settings.own_hosts,
    )

    def wrap(app: ASGIApp) -> ASGIApp:
        gate: ASGIApp = Gate(app, credentials, rules, clock=clock)
        if settings.allowed_origins:
            headers = "Content-Type, Authorization" if credentials.required else "Content-Type"
            methods = settings.allowed_methods
            gate = CrossOrigin(gate, settings.allowed_origins, methods, headers)
        return RuledHeaders(gate, settings.header_rules, clock) if settings.header_rules else gate

    return wrap


@final
class Gate:
    """ASGI middleware of the public listeners, inside ``RawPath``: both judge the same path."""

    def __init__(
        self,
        app: ASGIApp,
        credentials: RestCredentials,
        rules: GateRules,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._app = app
        self._bodies = BodyReader(
            rules.max_body_bytes, at_once=BODIES_AT_ONCE, limit_name="rest.max.body.bytes"
        )
        self._credentials = credentials
        self._rules = rules
        self._failures = _FailedLogins(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
            return
        headers = Headers(scope=scope)
        given = headers.get("authorization")
        # Before the check: a right guess, too, is refused while its address and name have to wait.
        wait_s = 0 if given is None else self._failures.wait_s(scope, given)
        if wait_s:
            text = "Too many wrong passwords or tokens"
            answer = error_response(429, text, {"Retry-After": str(wait_s)})
            await answer(scope, receive, send)
            return
        caller = self._credentials.caller(given, _certificate(scope))
        if caller is None and given is not None:
            self._failures.note(scope, given)
        if caller is None and _is_preflight(scope, headers, self._rules.origins):
            caller = _PREFLIGHT  # browsers send no credentials with it; it is answered with methods alone
        refusal = self._refusal(scope, headers, caller)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        assert caller is not None
        inner = dict(scope, **{CALLER: caller})
        if PAGE_HEADER in headers:
            send = _told_access(send, caller)
        if scope["method"] not in _READS:
            send = _Audited(send, scope, caller)
        # Last: no body is read for a caller who may not send one.
        body = await self._bodies.read(scope, receive)
        if isinstance(body, Response):
            await body(scope, receive, send)
            return
        await self._app(inner, replayed(body, receive), send)

    def _refusal(self, scope: Scope, headers: Headers, caller: Caller | None) -> Response | None:
        reads = scope["method"] in _READS
        # DNS rebinding: another site's page asks under its own name for this address.
        if self._rules.own_hosts is not None and not _is_own(headers, self._rules.own_hosts):
            return error_response(
                403,
                "This host name is not one of this worker's: set rest.advertised.host.name to it, "
                "or ask by address",
            )
        # Before the credentials: a browser adds Basic ones to requests of foreign pages, too.
        if not reads and not _may_change(headers, self._rules.origins):
            return error_response(403, "A page of another web site may not change anything here")
        if caller is None:
            return error_response(401, _UNAUTHORIZED, self._challenge(scope, headers))
        if not reads and not caller.operator:
            return error_response(
                403, f"User {caller.name} may only read (rest.read.only.users): ask an operator"
            )
        if not self._rules.admin_endpoints and _asks_admin(scope):
            return error_response(404, framework_text(404))
        return None

    def _challenge(self, scope: Scope, headers: Headers) -> Mapping[str, str]:
        """Let a browser ask for the password; others get Connect's answer, without a scheme."""
        asks = self._credentials.by_password and is_of_page(scope["path"], headers)
        return {"WWW-Authenticate": _BASIC} if asks else {}


def _told_access(send: Send, caller: Caller) -> Send:
    """Add caller and rights to answers to the page, which hides buttons that would be refused."""

    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            told = MutableHeaders(scope=message)
            told[ACCESS_HEADER] = "change" if caller.operator else "read"
            told[USER_HEADER] = quote(caller.name)
        await send(message)

    return tell


@final
class _FailedLogins:
    """Limits and logs wrong passwords and tokens: one at once, then one line per ten seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._count = 0
        self._logged_at: float | None = None
        # Address and user -> failures that count, and when that was.
        self._tries: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def wait_s(self, scope: Scope, authorization: str) -> int:
        """Return the seconds until these credentials may be checked; 0: now."""
        surplus = self._counted(_login_key(scope, authorization)) + 1 - LOGIN_TRIES
        return math.ceil(max(0.0, surplus) * LOGIN_PAUSE_S)

    def _counted(self, key: tuple[str, str]) -> float:
        tries, at = self._tries.get(key, (0.0, 0.0))
        return max(0.0, tries - (self._clock.monotonic() - at) / LOGIN_PAUSE_S)

    def note(self, scope: Scope, authorization: str) -> None:
        """Count a request whose credentials are wrong."""
        self._count += 1
        now = self._clock.monotonic()
        key = _login_key(scope, authorization)
        self._tries[key] = self._counted(key) + 1, now
        self._tries.move_to_end(key)
        # Bounded: an attacker chooses user names at will.
        if len(self._tries) > MOST_LOGINS:
            self._tries.popitem(last=False)
        if self._logged_at is not None and now - self._logged_at < LOGIN_LOG_S:
            return
        address, port = scope.get("client") or ("unknown", 0)
        log.warning(
            "rest login failed client=%s:%s method=%s path=%s failures=%d",
            address,
            port,
            scope["method"],
            plain_segment(scope["path"]),
            self._count,
        )
        self._logged_at, self._count = now, 0


def _login_key(scope: Scope, authorization: str) -> tuple[str, str]:
    address, _ = scope.get("client") or ("unknown", 0)
    return address, claimed_name(authorization)[:MAX_NAME_CHARS]


@final
class _Audited:
    """A ``send`` that logs the caller and the change, once its status is known."""

    def __init__(self, send: Send, scope: Scope, caller: Caller) -> None:
        self._send, self._scope, self._caller = send, scope, caller

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            log.info(
                "rest change caller=%s method=%s path=%s status=%d",
                self._caller.name,
                self._scope["method"],
                plain_segment(self._scope["path"]) + _told_query(self._scope),
                message["status"],
            )
        await self._send(message)


def _told_query(scope: Scope) -> str:
    """Return the logged parameters of a change: which part of a flow, or a dry run."""
    query: bytes = scope.get("query_string", b"")
    told = [f"{key}={text}" for key, text in parse_qsl(query.decode("latin-1")) if key in _TOLD]
    return f"?{'&'.join(told)}" if told else ""


def _certificate(scope: Scope) -> str | None:
    name: object = scope.get("state", {}).get(CERTIFICATE_NAME)
    return name if isinstance(name, str) else None


def _asks_admin(scope: Scope) -> bool:
    """Whether a path is below ``/admin``, or below that of one flow."""
    path: str = scope["path"]
    names = [part for part in path.split("/") if part]
    if names[:1] == ["pairs"]:
        return names[3:4] == ["admin"]
    of_pair = names[2:3] if names and names[0] not in RESERVED_ALIASES else []
    return "admin" in (*names[:1], *of_pair)


def _is_own(headers: Headers, own_hosts: frozenset[str]) -> bool:
    """Whether the request means this server: a web page may lead its own name to our address.

    Against DNS rebinding, which makes a foreign page the same origin as an API on localhost.
    """
    host = _hostname(headers.get("host", ""))
    if host is None:
        return False
    # Without a Host header it is an HTTP/1.0 program, no browser.
    if host in own_hosts or host in ("", "localhost") or host.endswith(".localhost"):
        return True
    # Rebinding needs a name that its owner can lead elsewhere; an address is itself.
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _hostname(authority: str) -> str | None:
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return None


def _may_change(headers: Headers, origins: frozenset[str]) -> bool:
    """Whether no web page sent this (programs send neither header), or one that may."""
    origin = headers.get("origin", "").lower()
    if origin and (origin in origins or "*" in origins):
        return True
    same_site = headers.get("sec-fetch-site", "none").lower() in ("same-origin", "none")
    if not origin:
        return same_site
    scheme, _, page = origin.partition("://")
    asked, there = (_host_and_port(scheme, it) for it in (headers.get("host", ""), page))
    if asked is None or there is None:
        return False
    if asked != there:
        # localhost and 127.0.0.1 are two sites for a browser, and one port of this machine.
        return asked[1] == there[1] and is_loopback(asked[0]) and is_loopback(there[0])
    return same_site


def _is_preflight(scope: Scope, headers: Headers, origins: frozenset[str]) -> bool:
    allowed = "*" in origins or headers.get("origin", "").lower() in origins
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers and allowed


def _host_and_port(scheme: str, authority: str) -> tuple[str, int | None] | None:
    try:
        url = urlsplit(f"//{authority}")
        port = url.port
    except ValueError:
        return None
    return (url.hostname, port or _DEFAULT_PORTS.get(scheme)) if url.hostname else None


_PREFLIGHT_AGE_S: Final = "60"


@final
class CrossOrigin:
    """ASGI middleware: answers as Jetty's cross-origin handler does for Connect."""

    def __init__(
        self, app: ASGIApp, origins: frozenset[str], methods: str, headers: str = "Content-Type"
    ) -> None:
        self._app, self._origins, self._methods, self._headers = app, origins, methods, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Headers(scope=scope)
        origin = request.get("origin", "")
        allowed = bool(origin) and ("*" in self._origins or origin.lower() in self._origins)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.add_vary_header("Origin")
                if allowed:
                    headers["Access-Control-Allow-Origin"] = origin
                if allowed and _is_preflight(scope, request, self._origins):
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
