"""Authentication of the connections of one cluster: TLS context and SASL login.

Flow: ``ConnectionSettings`` -> ``Credentials`` -> ``BrokerConnection`` (at its start, and again
before a session ends, KIP-368). One object serves all connections of a cluster, data, group and
admin alike.
"""

import ssl
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

from mm2py.client.connect.renewal import in_own_thread
from mm2py.client.connect.tls import TlsContexts
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.clients import ConnectionSettings
from mm2py.config.security import KerberosSettings, OAuthSettings, SaslSettings
from mm2py.errors import AuthenticationError
from mm2py.protocol.call import Call
from mm2py.protocol.error_codes import error_name
from mm2py.protocol.sasl import SaslExchange, sasl_authenticate, sasl_handshake

if TYPE_CHECKING:
    from mm2py.client.connect.kerberos import KerberosExchange, KerberosLogin
    from mm2py.client.connect.oauth_tokens import TokenSource

R = TypeVar("R")

_UNSUPPORTED_MECHANISM: Final = 33
_ILLEGAL_STATE: Final = 34


class _Ask(Protocol):
    def __call__(self, call: Call[R], /) -> Awaitable[R]: ...


@final
class Credentials:
    """TLS context and logins of one cluster; without either under PLAINTEXT."""

    def __init__(self, settings: ConnectionSettings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._sasl = settings.sasl
        self._contexts = None if settings.tls is None else TlsContexts(settings.tls)
        oauth = None if settings.sasl is None else settings.sasl.oauth
        self._tokens = None if oauth is None else _token_source(oauth, clock)
        kerberos = None if settings.sasl is None else settings.sasl.kerberos
        self._kerberos = None if kerberos is None else _kerberos_login(kerberos, clock)
        self._plain_protocol = "PLAINTEXT" if settings.tls is None else "SSL"
        self.greeted: set[str] = set()
        """Addresses that answered ApiVersions: the TLS part of security.protocol is right."""
        self.served: set[str] = set()
        """Addresses that answered more than that: its SASL part is right too."""

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for the next connection, None without TLS.

        Raises:
            ConfigError: a key store cannot be used.
        """
        return None if self._contexts is None else self._contexts.current()

    @property
    def own_expires_s(self) -> float | None:
        """Expiry of our own certificate, None while none was shown to a broker."""
        return None if self._contexts is None else self._contexts.own_expires_s

    def close(self) -> None:
        """Stop renewing in the background; safe twice."""
        if self._tokens is not None:
            self._tokens.close()

    async def prepare(self, host: str) -> None:
        """Get the token or ticket for a login at ``host`` before a connection has to wait for it.

        Raises:
            AuthenticationError: the token endpoint or the Kerberos server refuses the client.
            ConnectionFailedError: it does not answer.
            ConfigError: Kerberos' library or keytab is missing.
        """
        if self._tokens is not None:
            await self._tokens.token()
        if self._kerberos is not None:
            await self._kerberos.prepare(host)

    async def log_in(self, ask: _Ask, host: str, address: str) -> int:
        """Log in on a connection to ``host`` and return the session's length in ms, 0 for no end.

        Raises:
            AuthenticationError: the broker refused the mechanism or the login.
        """
        sasl = self._sasl
        if sasl is None:
            return 0
        # KIP-152: with SaslHandshake 1 tokens travel as
        # SaslAuthenticate requests, whose errors have a text.
        offered = await ask(sasl_handshake(sasl.mechanism))
        if offered.error_code:
            raise self._refused_mechanism(sasl, address, offered.error_code, offered.mechanisms)
        # Not earlier: the response may wait for a Fetch, and
        # a Kerberos authenticator is only valid for minutes.
        exchange = await self._exchange(sasl, host)
        lifetime_ms = 0
        try:
            while not exchange.is_done:
                answer = await ask(sasl_authenticate(exchange.message()))
                if answer.error_code:
                    raise _refused_login(sasl, address, answer.error_code, answer.error_message)
                # The broker chooses how often SCRAM hashes; Kerberos is a library that may block.
                await in_own_thread(partial(exchange.take, answer.auth_bytes))
                # KIP-368: after connections.max.reauth.ms the broker
                # closes a connection that has not logged in again.
                lifetime_ms = answer.session_lifetime_ms
        except AuthenticationError:
            for login in (self._kerberos, self._tokens):
                if login is not None:
                    login.refused()
            raise
        return lifetime_ms

    async def _exchange(self, sasl: SaslSettings, host: str) -> "SaslExchange | KerberosExchange":
        if self._kerberos is not None:
            return await self._kerberos.exchange(host)
        if self._tokens is None or sasl.oauth is None:
            return SaslExchange.with_password(sasl.mechanism, sasl.username, sasl.password)
        token = await self._tokens.token()
        return SaslExchange.with_token(token.value, dict(sasl.oauth.extensions))

    def _refused_mechanism(
        self, sasl: SaslSettings, address: str, code: int, offered: tuple[str, ...]
    ) -> AuthenticationError:
        # A PLAINTEXT or SSL listener answers SaslHandshake so.
        if code == _ILLEGAL_STATE:
            return AuthenticationError(
                f"the listener at {address} has no SASL",
                remedy=f"set security.protocol={self._plain_protocol}, or name the SASL port in "
                "bootstrap.servers",
            )
        if code == _UNSUPPORTED_MECHANISM:
            return AuthenticationError(
                f"{address} does not take sasl.mechanism={sasl.mechanism}, "
                f"only {', '.join(offered) or 'none'}",
                remedy="set sasl.mechanism to one of these, with its login module",
            )
        return AuthenticationError(
            f"{address} refused the SASL handshake: {error_name(code)} ({code})",
            remedy="check security.protocol and sasl.mechanism",
        )


def _token_source(oauth: OAuthSettings, clock: Clock) -> "TokenSource":
    from mm2py.client.connect.oauth_tokens import (
        TokenSource,  # loads an HTTP client, which other mechanisms do not need
    )

    return TokenSource(oauth, clock)


def _kerberos_login(kerberos: KerberosSettings, clock: Clock) -> "KerberosLogin":
    from mm2py.client.connect.kerberos import KerberosLogin

    return KerberosLogin(kerberos, clock)


def _refused_login(
    sasl: SaslSettings, address: str, code: int, message: str
) -> AuthenticationError:
    if sasl.kerberos is not None:
        who = f"principal {sasl.kerberos.principal}" if sasl.kerberos.principal else "the ticket"
        remedy = (
            "check that the broker's keytab has the newest key of "
            f"{sasl.kerberos.service_name}/{address.rpartition(':')[0]}, "
            "sasl.kerberos.service.name, and the clocks of both machines"
        )
    elif sasl.oauth is None:
        who = f"user {sasl.username}"
        remedy = "check username and password in sasl.jaas.config, and the user on the broker"
    else:
        who = f"the token of client {sasl.oauth.client_id}" if sasl.oauth.client_id else "the token"
        remedy = "check scope in sasl.jaas.config and what the broker expects of tokens"
    return AuthenticationError(
        f"{address} refused the login of {who} by {sasl.mechanism}: "
        f"{message or error_name(code)} ({code})",
        remedy=remedy,
    )
