"""``sasl.jaas.config``: one login module with its options, read as Java's ``JaasConfig`` reads it;
and JAAS files.

Flow: property text, or the file that ``KAFKA_OPTS`` names -> ``LoginModule`` -> ``security``. Only
the four login modules of Kafka clients are known; others would be Java code to load
(CVE-2023-25194) and are refused.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from mm2py.errors import ConfigError

LOGIN_FILE: Final = "java.security.auth.login.config"
KRB5_CONF: Final = "java.security.krb5.conf"
_SECTION: Final = "KafkaClient"

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of all clients without a login."""

_PACKAGE: Final = "org.apache.kafka.common.security."
_FORM: Final = 'write <login module> required <option>="<value>" ...;'
_FORM_OF_OPTIONS: Final = (
    'write each option as <name>="<value>", in one pair of double quotes; '
    "a value of ${...} has none of its own"
)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_SECRET_OPTIONS: Final = re.compile(r"password|secret", re.IGNORECASE)

# java.io.StreamTokenizer as JaasConfig sets it up. A number is a token without text there.
_TOKEN: Final = re.compile(
    r"""(?P<blank>[\x00-\x20]+|/\*.*?(?:\*/|$)|//[^\r\n]*|/(?:.[^\r\n]*)?)
    |(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?P=quote)?
    |(?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]*)
    |(?P<number>[0-9.\-][0-9.]*)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
}  # fmt: skip
_CLASS: Final = re.compile(r"(?:[A-Za-z_$][\w$]*\.)+[\w$]*LoginModule", re.ASCII)
"""The only words of a wrong text that may be shown: any other one may be a part of a password."""
_LEAST_SECRET: Final = 4
_NO_SECRETS: Final = frozenset(
    ["username", "password", "clientId", "clientSecret", "scope", "true", "false"]
)
_QUOTED: Final = re.compile(r'[\\"\x00-\x1f]')


class LoginKind(StrEnum):
    """The credentials that a login module supplies."""

    PASSWORD = "password"  # noqa: S105 - the name of a kind
    OAUTH = "oauth"
    KERBEROS = "kerberos"


_MODULES: Final = {
    f"{_PACKAGE}plain.PlainLoginModule": LoginKind.PASSWORD,
    f"{_PACKAGE}scram.ScramLoginModule": LoginKind.PASSWORD,
    f"{_PACKAGE}oauthbearer.OAuthBearerLoginModule": LoginKind.OAUTH,
    "com.sun.security.auth.module.Krb5LoginModule": LoginKind.KERBEROS,
}


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry: what the module supplies, its class, its options."""

    kind: LoginKind
    name: str
    options: dict[str, str] = field(repr=False)

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(v for key, v in self.options.items() if _SECRET_OPTIONS.search(key) and v)

    def text(self) -> str:
        """Return it as the value of ``sasl.jaas.config``."""
        options = (
            f'{key}="{_QUOTED.sub(_escaped, option)}"' for key, option in self.options.items()
        )
        return " ".join((self.name, "required", *options)) + ";"


def parse_jaas(text: str) -> LoginModule:
    """Read the value of ``sasl.jaas.config``; messages quote nothing of it but the class of a login
    module. ``ConfigError``: not one entry of a known login module; does not name the property."""
    tokens = _tokens(text)
    entry = _entry(tokens, next(tokens, ("", None)))
    if next(tokens, None) is not None:
        if next(tokens, ("", None))[0].lower() in _FLAGS:
            raise ConfigError("has more than one login module", remedy="keep one entry")
        raise ConfigError(
            "has text after the semicolon that ends it",
            remedy='put a password with ";" in double quotes: password="..."',
        )
    return entry


def system_property(name: str, environ: Mapping[str, str]) -> str:
    """Return a ``-D`` option of ``KAFKA_OPTS``, as Kafka's scripts pass it to the JVM; empty where
    it is not set. ``ConfigError``: the quotes of ``KAFKA_OPTS`` do not match."""
    try:
        words = shlex.split(environ.get("KAFKA_OPTS", ""))
    except ValueError:
        raise ConfigError("KAFKA_OPTS: quotes do not match", remedy="correct KAFKA_OPTS") from None
    prefix = f"-D{name}="
    values = [word[len(prefix) :] for word in words if word.startswith(prefix)]
    # Of an option given twice the JVM takes the last.
    return values[-1] if values else ""


def login_of_file(environ: Mapping[str, str]) -> LoginModule | None:
    """Return the login module of section ``KafkaClient`` in the JAAS file that ``KAFKA_OPTS``
    names, None without a file.

    Raises:
        ConfigError: the file cannot be read, or has no such section with one known login module.
    """
    # A second equal sign asks the JVM to read no other file beside it.
    given = system_property(LOGIN_FILE, environ).removeprefix("=").removeprefix("file:")
    if not given:
        return None
    path = Path(given)
    try:
        return _section(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        raise ConfigError(
            f"the JAAS file {path} cannot be read: {reason}",
            remedy=f"correct {LOGIN_FILE} in KAFKA_OPTS, or set sasl.jaas.config",
        ) from None
    except ConfigError as error:
        raise ConfigError(f"the JAAS file {path} {error.message}", remedy=error.remedy) from None


def _section(text: str) -> LoginModule:
    """Read a file as ``sun.security.provider.ConfigFile``: any number of ``name { entry... };``."""
    tokens = _tokens(text)
    for number, (name, _) in enumerate(tokens, 1):
        if next(tokens, ("", None))[0] != "{":
            raise ConfigError(
                f"has no {{ after the name of section {number}",
                remedy=f"write {_SECTION} {{ ... }};",
            )
        if name == _SECTION:
            entry = _entry(tokens, next(tokens, ("", None)))
            if next(tokens, ("", None)) != ("}", None):
                raise ConfigError(
                    f"has more than one login module in {_SECTION}", remedy="keep one entry"
                )
            return entry
        # Another section, for instance of a broker: its login modules need not be known.
        while next(tokens, ("}", None)) != ("}", None):
            pass
        next(tokens, None)  # the semicolon
    raise ConfigError(f"has no section {_SECTION}", remedy=f"write {_SECTION} {{ ... }};")


def _entry(tokens: Iterator[tuple[str, str | None]], first: tuple[str, str | None]) -> LoginModule:
    name, value = first
    if not name:
        raise ConfigError("names no login module", remedy=_FORM)
    # Named in messages only if it looks like a class: anything else may be a password.
    if not _CLASS.fullmatch(name):
        raise ConfigError("does not begin with the class of a login module", remedy=_FORM)
    flag = next(tokens, ("", None))[0].lower()
    if flag not in _FLAGS:
        raise ConfigError(f"has no control flag after {name}", remedy=_FORM)
    options = _options(tokens)
    kind = _MODULES.get(name)
    if value is None or kind is None:
        known = ", ".join(name.removeprefix(_PACKAGE) for name in _MODULES)
        raise ConfigError(f"login module {name} is not known here", remedy=f"use one of {known}")
    return LoginModule(kind, name, options)


def jaas_secrets(text: str) -> frozenset[str]:
    """Return the passwords and client secrets inside a JAAS text, for masking: of one that is wrong
    each word after its first "="."""
    try:
        return parse_jaas(text).secrets
    except ConfigError:
        if not _CLASS.fullmatch(next(_tokens(text), ("", None))[0]):
            return frozenset()
        words = {word for word, _ in _tokens(text.partition("=")[2])} - _NO_SECRETS
        return frozenset(word for word in words if len(word) >= _LEAST_SECRET)


def file_secrets(environ: Mapping[str, str]) -> frozenset[str]:
    """Return those inside the JAAS file that ``KAFKA_OPTS`` names; none if it cannot be read."""
    try:
        login = login_of_file(environ)
    except ConfigError:
        return frozenset()
    return frozenset() if login is None else login.secrets


def _options(tokens: Iterator[tuple[str, str | None]]) -> dict[str, str]:
    options: dict[str, str] = {}
    for number, (key, named) in enumerate(tokens, 1):
        if (key, named) == (";", None):
            return options
        sign = next(tokens, ("", None))
        value = next(tokens, ("", None))[1] if sign == ("=", None) else None
        if named is None or value is None:
            raise ConfigError(
                f"has no name or no value for option {number}", remedy=_FORM_OF_OPTIONS
            )
        options[key] = value
    # An open quote or a "/" outside of quotes, which begins a comment, takes the semicolon along.
    remedy = (
        'put ";" at its end, behind the closing quote; a password with "/" has to be in '
        "double quotes"
    )
    raise ConfigError("does not end with a semicolon", remedy=remedy)


def principal_of(props: Mapping[str, str]) -> str:
    """Return the principal of a client with these properties, empty if its login does not tell
    it."""
    jaas = props.get("sasl.jaas.config", "")
    if jaas:
        try:
            name = parse_jaas(jaas).options.get("username", "")
        except ConfigError:
            return ""
        return f"User:{name}" if name else ""
    protocol = props.get("security.protocol", "PLAINTEXT").upper()
    # A certificate has its principal in a distinguished name, which brokers map by their own rules
    # (ssl.principal.mapping.rules), and Kerberos likewise: neither is known from here.
    return ANONYMOUS if protocol == "PLAINTEXT" else ""


def _tokens(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield (text, value): value is None for signs and bare numbers, which are no text for Java."""
    for match in _TOKEN.finditer(text):
        if match["quote"]:
            value = _ESCAPE.sub(_unescaped, match["quoted"])
            yield value, value
        elif match["word"]:
            yield match["word"], match["word"]
        elif match["number"] or match["sign"]:
            yield match["number"] or match["sign"], None


def _escaped(match: re.Match[str]) -> str:
    return f"\\{match[0]}" if match[0] in '\\"' else f"\\{ord(match[0]):03o}"


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)
