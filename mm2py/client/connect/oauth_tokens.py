"""Tokens for OAUTHBEARER: the client credentials grant over http(s), or an unsigned JWT.

Flow: ``TokenSource.token`` -> cached token, or a request to the token endpoint in a thread ->
token. The first token is fetched when a login needs one; it is renewed when most of its lifetime is
over, or brokers refuse it. As in Java renewal does not wait for a login, and a valid token is used
even while the endpoint fails (``renewal``). Instants are monotonic: a wall clock that is set back
would keep a token that has expired.
"""

import asyncio
import base64
import json
import logging
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field, replace
from email.message import Message
from http.client import HTTPException
from typing import IO, Final, cast, final

from mm2py.client.backoff import Backoff
from mm2py.client.connect.renewal import RETRY_S, Renewal, in_own_thread
from mm2py.client.connect.tls import TlsContexts
from mm2py.clock import Clock
from mm2py.config.security import OAuthSettings
from mm2py.errors import AuthenticationError, ConnectionFailedError, Mm2pyError

log = logging.getLogger(__name__)

_LARGEST_BYTES: Final = 1 << 20
_LONGEST_S: Final = 1 << 53
"""More is none that a clock reaches, and may not fit a float."""
_CREDENTIALS_REMEDY: Final = "check clientId, clientSecret and scope in sasl.jaas.config"
_URL_REMEDY: Final = "check sasl.oauthbearer.token.endpoint.url"
_REFUSALS: Final = (400, 401, 403)
_SERVER_TROUBLE: Final = 500
_NOT_NOW: Final = (408, 429)
"""A timeout, and too many requests: asked again, as in Java's ``HttpJwtRetriever``."""
_LONGEST_TIMER_S: Final = 86_400.0
_SLOW_TIMEOUTS: Final = 3
"""Limit in read timeouts: an endpoint that sends a byte now and then is too slow."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token: when it came, when it expires (at once where that is unknown) and when to fetch the
    next one."""

    value: str = field(repr=False)
    fetched_s: float
    expires_s: float
    renew_s: float


@final
class TokenSource:
    """The tokens of one client."""

    def __init__(self, settings: OAuthSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._contexts = TlsContexts(settings.tls)
        self._renewal = Renewal(self._renew)
        self._kept: Token | None = None
        self._retry_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def token(self) -> Token:
        """Return a token that is valid now.

        Raises:
            AuthenticationError: the endpoint refuses the client, or answers without a token.
            ConnectionFailedError: it does not answer within ``sasl.login.retry.backoff.max.ms``.
        """
        now = self._clock.monotonic()
        kept = self._kept
        if kept is None or now >= kept.expires_s:
            await self._renewal.finished()
        elif now >= max(kept.renew_s, self._retry_s):
            await self._renewal.tried()
        assert self._kept is not None
        return self._kept

    async def _renew(self) -> None:
        try:
            self._kept = await self._fetch()
        except Mm2pyError as error:
            now, kept = self._clock.monotonic(), self._kept
            if kept is None or now >= kept.expires_s:
                raise
            self._retry_s = now + RETRY_S
            self._plan()
            log.warning(
                "token not renewed, the last one is still valid for_s=%d cause=%s",
                kept.expires_s - now, error,
            )  # fmt: skip
        else:
            self._plan()

    def _plan(self) -> None:
        """Renew at the next time, as Java's thread does: the next login may come while the endpoint
        is away."""
        kept, now = self._kept, self._clock.monotonic()
        if kept is None or self._closed or now >= kept.expires_s:
            return
        due_s = max(kept.renew_s, self._retry_s)
        if now >= due_s:
            self._renewal.begin()
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(due_s - now, _LONGEST_TIMER_S), self._plan)

    def close(self) -> None:
        """Renew only what logins ask for."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def refused(self) -> None:
        """Fetch a new token before a later login: the issuer's keys were changed, or the token
        ended before its time."""
        kept = self._kept
        if kept is not None:
            again_s = kept.fetched_s + self._settings.refresh_min_period_s
            self._kept = replace(kept, renew_s=min(kept.renew_s, again_s))

    async def _fetch(self) -> Token:
        settings = self._settings
        if not settings.token_endpoint_url:
            now_s = self._clock.now_ms() // 1000
            return self._timed(_unsecured(settings, now_s), settings.lifetime_s)
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        until = self._clock.monotonic() + settings.retry_backoff_max_ms / 1000
        while True:
            try:
                return self._read(await self._answer())
            except ConnectionFailedError:
                pause_s = backoff.next_s()
                # sasl.login.retry.backoff.max.ms bounds all attempts together, as in Java's Retry.
                if self._clock.monotonic() + pause_s > until:
                    raise
                await self._clock.sleep(pause_s)

    async def _answer(self) -> bytes:
        timeout_s = _SLOW_TIMEOUTS * self._timeout_s
        context = self._contexts.current()
        try:
            async with asyncio.timeout(timeout_s):
                return await in_own_thread(lambda: self._ask(context))  # urllib blocks
        except TimeoutError:
            raise ConnectionFailedError(
                f"token endpoint {_shown(self._settings.token_endpoint_url)} does not answer "
                f"within {timeout_s:g} s",
                remedy=_URL_REMEDY,
            ) from None

    @property
    def _timeout_s(self) -> float:
        return max(self._settings.connect_timeout_ms, self._settings.read_timeout_ms) / 1000

    def _ask(self, context: ssl.SSLContext) -> bytes:
        settings = self._settings
        url = settings.token_endpoint_url
        opener = urllib.request.build_opener(
            # HTTP_PROXY of the environment applies: build_opener adds a ProxyHandler.
            urllib.request.HTTPSHandler(context=context),
            _NoRedirect(),
        )
        try:
            with opener.open(_request(settings), timeout=self._timeout_s) as response:
                return cast("bytes", response.read(_LARGEST_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(url, error) from None
        except (OSError, HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(cause, ssl.SSLCertVerificationError):
                raise AuthenticationError(
                    f"the certificate of the token endpoint {_shown(url)} is not trusted "
                    f"({cause.verify_message})",
                    remedy="set ssl.truststore.location among the options in sasl.jaas.config",
                ) from None
            raise ConnectionFailedError(
                f"token endpoint {_shown(url)} does not answer: {cause}", remedy=_URL_REMEDY
            ) from None

    def _read(self, answer: bytes) -> Token:
        url = _shown(self._settings.token_endpoint_url)
        fields = _fields(answer)
        value = fields.get("access_token")
        # A control character would end the token in the SASL message (RFC 7628 separates by 0x01).
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise AuthenticationError(
                f"token endpoint {url} answers without an access_token", remedy=_URL_REMEDY
            )
        expires_s, lasts = _claim(value, "exp"), fields.get("expires_in")
        # Java knows only the claim: where its clock is behind the issuer's, it renews a token that
        # brokers refuse by then.
        if isinstance(lasts, int) and lasts > 0:
            return self._timed(value, lasts)
        return self._timed(
            value, 0 if expires_s is None else expires_s - self._clock.now_ms() / 1000
        )

    def _timed(self, value: str, lasts_s: float) -> Token:
        """Add when to renew (``ExpiringCredentialRefreshingLogin.refreshMs``)."""
        settings, now = self._settings, self._clock.monotonic()
        lasts_s = min(max(lasts_s, 0), _LONGEST_S)
        renew_s = lasts_s * settings.refresh_window_factor
        least_s, rest_s = settings.refresh_min_period_s, settings.refresh_buffer_s
        # Only if the token lives longer than both together; otherwise Java ignores them, too.
        if least_s + rest_s <= lasts_s:
            renew_s = max(min(renew_s, lasts_s - rest_s), least_s)
        return Token(value.strip(), now, now + lasts_s, now + renew_s)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would send the client secret to another host."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> None:
        """Return None: the response's status is the error then."""


def _request(settings: OAuthSettings) -> urllib.request.Request:
    pair = (settings.client_id, settings.client_secret)
    if settings.header_urlencode:
        # RFC 6749 section 2.3.1; off by default, as in Java (KIP-1025).
        pair = (urllib.parse.quote_plus(pair[0]), urllib.parse.quote_plus(pair[1]))
    body = {"grant_type": "client_credentials"}
    if settings.scope:
        body["scope"] = settings.scope
    return urllib.request.Request(  # noqa: S310 - settings allow http and https only
        settings.token_endpoint_url,
        data=urllib.parse.urlencode(body).encode(),
        headers={
            "Authorization": "Basic " + base64.b64encode(":".join(pair).encode()).decode(),
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        },
        method="POST",
    )


def _refusal(
    url: str, error: urllib.error.HTTPError
) -> AuthenticationError | ConnectionFailedError:
    if error.code >= _SERVER_TROUBLE or error.code in _NOT_NOW:
        return ConnectionFailedError(
            f"token endpoint {_shown(url)} answers HTTP {error.code}", remedy=_URL_REMEDY
        )
    fields = _fields(error.read(_LARGEST_BYTES))
    description = str(fields.get("error_description") or fields.get("error") or "")
    cause = f": {' '.join(description.split())[:200]}" if description else ""
    return AuthenticationError(
        f"token endpoint {_shown(url)} refused the client with HTTP {error.code}{cause}",
        remedy=_CREDENTIALS_REMEDY if error.code in _REFUSALS else _URL_REMEDY,
    )


def _shown(url: str) -> str:
    """Return the address without user and query, which may hold secrets."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _claim(token: str, name: str) -> float | None:
    """Return a number from a JWT's claims; None for an opaque token. Only brokers verify the
    token."""
    parts = token.strip().split(".")
    if len(parts) != 3:
        return None
    try:
        # JWTs leave the padding out (RFC 7515).
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
    except ValueError:
        return None
    value = _fields(claims).get(name)
    return float(min(value, _LONGEST_S)) if isinstance(value, int | float) else None


def _unsecured(settings: OAuthSettings, now_s: int) -> str:
    """``OAuthBearerUnsecuredLoginCallbackHandler``: a JWT without signature, for tests."""
    claims = {"iat": now_s, "exp": now_s + settings.lifetime_s, **dict(settings.claims)}
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    encoded = (base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    return ".".join((*encoded, ""))


def _fields(text: bytes) -> dict[str, object]:
    """Return a JSON object's fields; none for anything else."""
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", parsed) if isinstance(parsed, dict) else {}
