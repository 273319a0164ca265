"""Requests between workers are signed with the group's session key.

Flow: leader makes a key -> config topic -> ``sign_request`` at the sender -> ``verify_request`` at
the receiver. It covers method, path, query, caller, time, a nonce and the digest of the body, and
is checked before the body is read. Java's form (``InternalRequestSignature``) covers the body
alone; no worker of ours sends or takes it.
"""

import hmac
import secrets
from base64 import b64encode
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, final

from mm2py.errors import ConfigError
from mm2py.runtime.errors import SignatureError
from mm2py.storage.config_state import SessionKey

REQUEST_HEADER: Final = "X-Mm2py-Authorization"
CALLER_HEADER: Final = "X-Mm2py-Caller"
STAMP_HEADER: Final = "X-Mm2py-Stamp"
"""``time_ms;nonce;sha256 of the body;host:port of the receiver``, ``;life`` where that is known."""
TERMS_HEADER: Final = "X-Mm2py-Terms"
"""Of a refusal: ``time_ms;life;signature``, what the request has to be signed with in place of the
sender's time. Signed for the nonce of that request: who only forwards could else have a request
signed for a time of their choice."""

WINDOW_MS: Final = 60_000
"""How long a signed request is valid, by the receiver's clock; a sender with another clock signs
once more by that."""

_ALGORITHMS: Final = {
    "hmacmd5": 512,
    "hmacsha1": 512,
    "hmacsha224": 224,
    "hmacsha256": 256,
    "hmacsha384": 384,
    "hmacsha512": 512,
}
"""Java's names, which it reads in any case: bits of a key that its ``KeyGenerator`` makes."""

NO_SESSION_KEY: Final = (
    "This worker is still starting up and has not been able to read a session key from the config"
    " topic yet"
)
_INVALID: Final = "Internal request contained invalid signature."


def is_available(algorithm: str) -> bool:
    """Return whether we can sign with an algorithm of Java's name."""
    return algorithm.lower() in _ALGORITHMS


def check_algorithms(signature: str, verification: Collection[str]) -> None:
    """Check ``inter.worker.signature.algorithm`` and ``inter.worker.verification.algorithms``.

    Raises:
        ConfigError: one is not available, or own signatures would be refused by others with this
            config.
    """
    supported = "HmacSHA256, HmacSHA384, HmacSHA512, HmacSHA224, HmacSHA1 or HmacMD5"
    for prop, names in (
        ("inter.worker.verification.algorithms", verification),
        ("inter.worker.signature.algorithm", (signature,)),
    ):
        wrong = [name for name in names if not is_available(name)]
        if wrong or not names:
            raise ConfigError(
                f"{prop}={','.join(names)}: no such algorithm", remedy=f"use {supported}"
            )
    if signature not in verification:
        raise ConfigError(
            f"inter.worker.signature.algorithm={signature} is not in"
            f" inter.worker.verification.algorithms={','.join(verification)}",
            remedy="add it there on all workers",
        )


def new_session_key(
    now_ms: int, algorithm: str = "HmacSHA256", former: SessionKey | None = None
) -> SessionKey:
    """Make a random key of the algorithm's own size in place of a ``former`` one; ``ConfigError``:
    the algorithm is unknown."""
    if not is_available(algorithm):
        raise ConfigError(
            f"inter.worker.key.generation.algorithm={algorithm}: not available",
            remedy="use HmacSHA256",
        )
    # As many bytes as Java's ``KeyGenerator`` makes, whose size a Java leader compares
    # (``checkForKeyRotation``).
    key = secrets.token_bytes(_ALGORITHMS[algorithm.lower()] // 8)
    return SessionKey(key, algorithm, now_ms, b"" if former is None else former.lasting)


def rotation_due(key: SessionKey, now_ms: int, ttl_ms: int, algorithm: str) -> bool:
    """Return whether the leader has to make a new key: too old, made by a clock that was ahead so
    far, or not as configured."""
    # Java looks at the age alone: a clock ahead would postpone the rotation by as much.
    return key.algorithm != algorithm or abs(now_ms - key.created_ms) >= ttl_ms


def sign_request(
    key: SessionKey,
    method: str,
    raw_target: str,
    caller: str,
    body: bytes,
    now_ms: int,
    *,
    receiver: str = "",
    life: str = "",
) -> dict[str, str]:
    """Return our three headers.

    ``raw_target`` is path and query as sent, ``caller`` ``name;role``, ``receiver`` host and port
    of the worker as the group's metadata have them, ``life`` which of its lives is meant, as far as
    it was told. ``ValueError``: ``caller`` is not valid in a header.
    """
    # A line break in a header would let a caller add headers of his own.
    if not caller.isprintable():
        raise ValueError("a caller's name holds control characters")
    stamp = f"{now_ms};{secrets.token_hex(16)};{sha256(body).hexdigest()};{receiver}{life and f';{life}'}"
    return {
        REQUEST_HEADER: _signature(key, method, raw_target, caller, stamp),
        CALLER_HEADER: caller,
        STAMP_HEADER: stamp,
    }


@dataclass(frozen=True, slots=True)
class SignedHead:
    """What the verified head of a request carries; ``body_sha256`` is that of the body to come."""

    caller: str
    time_ms: int
    nonce: str
    body_sha256: str
    receiver: str
    life: str = ""

    def check_body(self, body: bytes) -> None:
        """Compare the body with what was signed; ``SignatureError``: 403, it is another."""
        if sha256(body).hexdigest() != self.body_sha256:
            raise SignatureError(_INVALID, status=403)


def verify_request(
    headers: Mapping[str, str], method: str, raw_target: str, key: SessionKey | None
) -> SignedHead:
    """Check our signature of a request's head, before its body is read; the caller may be trusted
    then. ``SignatureError``: 403, or 503 while no session key is known."""
    signature, caller, stamp = (
        _header(headers, name) for name in (REQUEST_HEADER, CALLER_HEADER, STAMP_HEADER)
    )
    if signature is None or caller is None or stamp is None:
        raise SignatureError("Internal request missing required signature", status=403)
    if key is None:
        raise SignatureError(NO_SESSION_KEY, status=503)
    expected = _signature(key, method, raw_target, caller, stamp)
    # In constant time, and before anything of the stamp is parsed.
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise SignatureError(_INVALID, status=403)
    time_ms, nonce, digest, receiver, *life = stamp.split(";")
    return SignedHead(caller, int(time_ms), nonce, digest, receiver, *life)


def sign_terms(key: SessionKey, nonce: str, now_ms: int, life: str) -> dict[str, str]:
    """Return the header that answers the request of ``nonce`` with this worker's time and life."""
    terms = f"{now_ms};{life}"
    return {TERMS_HEADER: f"{terms};{_terms_signature(key, nonce, terms)}"}


def read_terms(
    answer: Mapping[str, str], signed: Mapping[str, str], key: SessionKey
) -> tuple[int, str] | None:
    """Return time and life in the answer to a ``signed`` request; None where there are none, or not
    of a worker that has the key."""
    terms, _, signature = answer.get(TERMS_HEADER, "").rpartition(";")
    nonce = signed[STAMP_HEADER].split(";")[1]
    if not hmac.compare_digest(signature.encode(), _terms_signature(key, nonce, terms).encode()):
        return None
    time_ms, _, life = terms.partition(";")
    return int(time_ms), life


class TermsError(SignatureError):
    """A request was signed by another clock, or may have been served in this worker's former life:
    403, with ``sign_terms``."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=403)


@final
class SeenRequests:
    """Nonces of the last minute, so that a signed request is served once.

    ``receiver`` is host and port of this worker; "" takes requests that were signed for others too.
    ``started_ms`` is when its life began: what its former one has served may come again, so until a
    minute later requests must name this one.
    """

    def __init__(self, receiver: str = "", started_ms: int = 0) -> None:
        self._receiver, self._started_ms = receiver, started_ms
        self.life: str = secrets.token_hex(8)
        self._until_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._until_ms)

    def take(self, head: SignedHead, now_ms: int) -> None:
        """Remember a request whose signature is right.

        Raises:
            SignatureError: 403, it was served before, or signed for another worker.
            TermsError: it was signed too long ago or ahead, or may have been served in a former
                life.
        """
        if self._receiver and head.receiver != self._receiver:
            raise SignatureError(
                f"Internal request was signed for {head.receiver}, this is {self._receiver}",
                status=403,
            )
        if abs(now_ms - head.time_ms) > WINDOW_MS:
            raise TermsError(
                f"Internal request was signed {(now_ms - head.time_ms) / 1000:.0f} s ago, at most"
                f" {WINDOW_MS // 1000} s are allowed: set the clocks of all workers"
            )
        # The former life took nothing that was signed for later than its end and the window.
        if head.time_ms <= self._started_ms + WINDOW_MS and head.life != self.life:
            raise TermsError("Internal request was not signed for this life of the worker")
        # Insertion order is about the order of expiry; one that expires late only waits longer.
        # Expired nonces leave at each request: no timer, and no more of them than a minute brings.
        while self._until_ms and next(iter(self._until_ms.values())) < now_ms:
            del self._until_ms[next(iter(self._until_ms))]
        if head.nonce in self._until_ms:
            raise SignatureError("Internal request was sent again", status=403)
        self._until_ms[head.nonce] = head.time_ms + WINDOW_MS


def _signature(key: SessionKey, method: str, raw_target: str, caller: str, stamp: str) -> str:
    # No part can hold a newline: no two requests have the same text.
    head = f"{method.upper()}\n{raw_target}\n{caller}\n{stamp}"
    return b64encode(hmac.new(key.key, head.encode(), "sha256").digest()).decode()


def _terms_signature(key: SessionKey, nonce: str, terms: str) -> str:
    # A request's text begins with its method, in capitals.
    return b64encode(
        hmac.new(key.key, f"terms\n{nonce}\n{terms}".encode(), "sha256").digest()
    ).decode()


def _header(headers: Mapping[str, str], name: str) -> str | None:
    header = headers.get(name)
    if header is not None:
        return header
    return next((value for key, value in headers.items() if key.lower() == name.lower()), None)
