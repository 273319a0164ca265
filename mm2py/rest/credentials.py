"""Authentication: passwords, bearer tokens and client certificates against the worker's files.

Flow: ``RestSettings`` -> files, read once at start -> ``RestCredentials.caller``. Secrets are
compared in constant time and leave this module only for the log mask.
"""

import base64
import binascii
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, final

from mm2py.config.properties import PropertiesFile, load
from mm2py.config.rest_settings import RestSettings
from mm2py.errors import ConfigError

_BASIC_FILE: Final = "rest.basic.auth.file"
_TOKEN_FILE: Final = "rest.bearer.tokens.file"  # noqa: S105 -- the name of a property


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller of a request; operators may change and see anything, others read."""

    name: str
    operator: bool


ANONYMOUS: Final = Caller("anonymous", operator=True)
"""The caller where authentication is off."""


@final
class RestCredentials:
    """Users by password, token and certificate."""

    def __init__(
        self,
        users: Mapping[str, str],
        tokens: Mapping[str, str],
        *,
        certificates: bool = False,
        read_only: Collection[str] = (),
    ) -> None:
        self._users = {name: _bytes(password) for name, password in users.items()}
        self._tokens = {name: _bytes(token) for name, token in tokens.items()}
        self._certificates = certificates
        self._read_only = frozenset(read_only)

    @classmethod
    def read(cls, settings: RestSettings) -> "RestCredentials":
        """Read the files that ``settings`` name; ``ConfigError``: a file cannot be read, is empty,
        or does not know a read-only user."""
        options = settings.options
        users = _entries(_BASIC_FILE, options.rest_basic_auth_file.strip())
        tokens = _entries(_TOKEN_FILE, options.rest_bearer_tokens_file.strip())
        if len(set(tokens.values())) < len(tokens):
            raise ConfigError(
                f"{_TOKEN_FILE}: two names have the same token",
                remedy="give each a token of its own",
            )
        for name in sorted(settings.read_only_users - users.keys() - tokens.keys()):
            # A mistyped name would leave its user an operator; certificates' names are unknown.
            if not settings.certificates_count:
                raise ConfigError(
                    f"rest.read.only.users names {name}, whom no file knows",
                    remedy=f"correct the name, or add it to {_BASIC_FILE} or {_TOKEN_FILE}",
                )
        return cls(
            users,
            tokens,
            certificates=settings.certificates_count,
            read_only=settings.read_only_users,
        )

    @property
    def required(self) -> bool:
        return bool(self._users or self._tokens or self._certificates)

    @property
    def by_password(self) -> bool:
        """Whether a name and a password can admit a caller."""
        return bool(self._users)

    @property
    def secrets(self) -> frozenset[str]:
        """Passwords and tokens, to be masked in logs and answers."""
        return frozenset(
            secret.decode() for secret in (*self._users.values(), *self._tokens.values())
        )

    def caller(self, authorization: str | None, certificate: str | None) -> Caller | None:
        """Return the caller with this ``Authorization`` header or certificate name, None if the
        credentials are wrong."""
        if not self.required:
            return ANONYMOUS
        name = self._named(authorization or "")
        if name is None and self._certificates:
            name = certificate
        return None if name is None else Caller(name, operator=name not in self._read_only)

    def _named(self, authorization: str) -> str | None:
        scheme, _, rest = authorization.strip().partition(" ")
        if scheme.lower() == "basic":
            return self._by_password(rest.strip())
        if scheme.lower() == "bearer":
            return self._by_token(rest.strip())
        return None

    def _by_password(self, encoded: str) -> str | None:
        name, colon, password = _decoded(encoded).partition(":")
        # An unknown name takes as long as a wrong password.
        matches = hmac.compare_digest(self._users.get(name, b"\xff"), _bytes(password))
        return name if colon and matches and name in self._users else None

    def _by_token(self, token: str) -> str | None:
        given = _bytes(token)
        names = [name for name, held in self._tokens.items() if hmac.compare_digest(held, given)]
        return names[0] if names else None


def claimed_name(authorization: str) -> str:
    """Return the user that a header names, empty for a token; failed logins are counted by it."""
    scheme, _, rest = authorization.strip().partition(" ")
    return _decoded(rest.strip()).partition(":")[0] if scheme.lower() == "basic" else ""


def _decoded(encoded: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _entries(prop: str, path: str) -> Mapping[str, str]:
    if not path:
        return {}
    try:
        file: PropertiesFile = load(path)
    except ConfigError as error:
        raise ConfigError(f"{prop}: {error.message}", remedy=error.remedy) from None
    if not file.entries:
        # Java's login module admits every caller then, and logs it.
        raise ConfigError(f"{prop}: {path} names no user", remedy="add a line user=secret")
    for entry in file.entries:
        if not entry.key or not entry.value.strip():
            raise ConfigError(
                f"{prop}: {file.where(entry.line)} has no {'secret' if entry.key else 'name'}",
                remedy="write name=secret",
            )
    return file.values
