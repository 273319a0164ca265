"""SASL on the wire: the two requests, and the messages of a mechanism (kafka-python's) behind one
class.

Flow: ``sasl_handshake`` -> ``SaslExchange.message`` -> ``sasl_authenticate`` ->
``SaslExchange.take``, until it is done. Knows no connection, no properties and no token endpoint.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from mm2py.errors import AuthenticationError
from mm2py.protocol.call import Call
from mm2py.protocol.schema import schema_call

with warnings.catch_warnings():
    # The library reads its schemas with a function that Python 3.11 and 3.12 deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import sasl as sasl_schema

if TYPE_CHECKING:
    from kafka.net.sasl.abc import SaslMechanism

MIN_ITERATIONS: Final = 4_096
"""As Java's ``ScramMechanism``: with fewer, an impostor broker could crack the proof offline."""

MAX_ITERATIONS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """Response to a handshake; ``mechanisms`` are those that the listener has enabled."""

    error_code: int
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuthenticateResult:
    """One response of an exchange; ``session_lifetime_ms`` is 0 where the session does not end
    (KIP-368)."""

    error_code: int
    error_message: str
    auth_bytes: bytes = field(repr=False)
    session_lifetime_ms: int


def sasl_handshake(mechanism: str) -> Call[HandshakeResult]:
    """Name the mechanism; v1 announces that the exchange is made of SaslAuthenticate requests
    (KIP-152)."""

    def convert(answer: sasl_schema.SaslHandshakeResponse) -> HandshakeResult:
        return HandshakeResult(answer.error_code, tuple(answer.mechanisms))

    def request() -> sasl_schema.SaslHandshakeRequest:
        return sasl_schema.SaslHandshakeRequest(mechanism=mechanism)

    # With v0 the tokens would follow as bare frames, whose errors only close the connection.
    return schema_call(request, sasl_schema.SaslHandshakeResponse, convert, (1, 1))


def sasl_authenticate(auth_bytes: bytes) -> Call[AuthenticateResult]:
    """Send one message of the exchange."""

    def convert(answer: sasl_schema.SaslAuthenticateResponse) -> AuthenticateResult:
        return AuthenticateResult(
            answer.error_code,
            answer.error_message or "",
            bytes(answer.auth_bytes),
            answer.session_lifetime_ms or 0,
        )

    def request() -> sasl_schema.SaslAuthenticateRequest:
        return sasl_schema.SaslAuthenticateRequest(auth_bytes=auth_bytes)

    # v1 has the session's lifetime (KIP-368).
    return schema_call(request, sasl_schema.SaslAuthenticateResponse, convert, (0, 2))


@final
class SaslExchange:
    """The client's side of one login; not reusable."""

    def __init__(self, mechanism: "SaslMechanism", name: str) -> None:
        self._mechanism = mechanism
        self._name = name

    @classmethod
    def with_password(cls, mechanism: str, username: str, password: str) -> "SaslExchange":
        """Begin PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; both texts must not be empty."""
        if mechanism.startswith("SCRAM"):
            # RFC 5802 saslname; the library sends the name as it gets it.
            username = username.replace("=", "=3D").replace(",", "=2C")
        made = _mechanism(mechanism)(
            sasl_mechanism=mechanism, sasl_plain_username=username, sasl_plain_password=password
        )
        return cls(made, mechanism)

    @classmethod
    def with_token(cls, token: str, extensions: Mapping[str, str]) -> "SaslExchange":
        """Begin OAUTHBEARER."""
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):
            def token(self) -> str:
                return token

            def extensions(self) -> dict[str, str]:
                return dict(extensions)

        made = _mechanism("OAUTHBEARER")(sasl_oauth_token_provider=Provider())
        return cls(made, "OAUTHBEARER")

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to send."""
        return self._mechanism.is_done()

    def message(self) -> bytes:
        return self._mechanism.auth_bytes()

    def take(self, answer: bytes) -> None:
        """Take the broker's response to the last message; it must have no error code.

        Raises:
            AuthenticationError: it violates the mechanism; for SCRAM also: the broker does not
                prove that it knows the password, or asks for a proof that is easy to crack.
        """
        if self._name.startswith("SCRAM"):
            _check_iterations(answer)
        try:
            self._mechanism.receive(answer)
            is_wrong = self._mechanism.is_done() and not self._mechanism.is_authenticated()
        # The library's parsing of an answer that is not of the mechanism.
        except (ValueError, KeyError):
            is_wrong = True
        if is_wrong:
            raise AuthenticationError(
                f"the broker's side of the {self._name} exchange is wrong",
                remedy="check that bootstrap.servers names the right cluster, and sasl.jaas.config",
            )


def _check_iterations(answer: bytes) -> None:
    """Refuse iteration counts that Java refuses, and those that would take minutes."""
    for field_ in answer.split(b","):
        count = field_[2:]
        if field_.startswith(b"i=") and count.isdigit():
            # Longer texts are too many iterations; int() need not read them.
            iterations = int(count[:12])
            if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
                raise AuthenticationError(
                    f"the broker asks for {iterations} SCRAM iterations, {MIN_ITERATIONS} to"
                    f" {MAX_ITERATIONS} are accepted",
                    remedy="set the user's SCRAM credentials with at least 4096 iterations, and "
                    "check"
                    " that bootstrap.servers names the right cluster",
                )


def _mechanism(name: str) -> "type[SaslMechanism]":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # Its package loads a whole client: imported only by flows that log in.
        from kafka.net.sasl import get_sasl_mechanism

        return get_sasl_mechanism(name)
