"""``security.protocol``, ``ssl.*`` and ``sasl.*`` as settings; what is missing or does not fit is
refused.

Flow: effective client properties -> ``tls_settings`` / ``sasl_settings`` -> ``clients``. The rules
are those of Java's ``DefaultSslEngineFactory`` and login modules; no store is opened here
(``key_material``), nothing connects.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mm2py.config.client_options import SecurityOptions
from mm2py.config.definitions import parse_config
from mm2py.config.jaas import LoginKind, LoginModule, login_of_file, parse_jaas
from mm2py.errors import ConfigError

_SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_GSSAPI: Final = "GSSAPI"
MECHANISMS: Final = ("PLAIN", *_SCRAM, "OAUTHBEARER", _GSSAPI)
_LOGIN_KINDS: Final = {"OAUTHBEARER": LoginKind.OAUTH, _GSSAPI: LoginKind.KERBEROS}
_STORE_TYPES: Final = ("JKS", "PKCS12", "PEM")
_PEM: Final = "PEM"

_OAUTH_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer."
_TOKEN_HANDLERS: Final = (
    f"{_OAUTH_PACKAGE}OAuthBearerLoginCallbackHandler",
    f"{_OAUTH_PACKAGE}secured.OAuthBearerLoginCallbackHandler",
)
_UNSECURED_HANDLER: Final = (
    f"{_OAUTH_PACKAGE}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
)
_STRING_CLAIM: Final = "unsecuredLoginStringClaim_"
_EXTENSIONS: Final = ("extension_", "unsecuredLoginExtension_")
_TOKEN_TIMEOUT_MS: Final = 10_000
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class SecurityProperties:
    """Parsed properties of one client; ``scope`` names their owner in messages."""

    options: SecurityOptions
    scope: str = ""

    def place(self, text: str) -> str:
        """Put the scope in front of a message."""
        return f"{self.scope}: {text}" if self.scope else text

    def wrong(self, name: str, problem: str, remedy: str = "") -> ConfigError:
        """Return the error for a property; never quotes its value."""
        return ConfigError(self.place(f"{name} {problem}"), remedy=remedy or f"correct {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """One store: a file, or PEM texts. ``name`` is ``ssl.truststore`` or ``ssl.keystore``."""

    name: str
    type: str
    location: str = ""
    password: str | None = field(default=None, repr=False)
    certificates: str = field(default="", repr=False)
    key: str = field(default="", repr=False)
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How to speak TLS; without a truststore the system's certificates are trusted."""

    truststore: StoreSettings | None = None
    keystore: StoreSettings | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthSettings:
    """Source of tokens: the client credentials grant, or an unsigned JWT."""

    token_endpoint_url: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    header_urlencode: bool = False
    claims: tuple[tuple[str, str], ...] = ()
    lifetime_s: int = 3_600
    extensions: tuple[tuple[str, str], ...] = ()
    refresh_window_factor: float = 0.8
    refresh_min_period_s: int = 60
    refresh_buffer_s: int = 300
    connect_timeout_ms: int = _TOKEN_TIMEOUT_MS
    read_timeout_ms: int = _TOKEN_TIMEOUT_MS
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000
    tls: TlsSettings = TlsSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class KerberosSettings:
    """Source of tickets; ``keytab`` and ``ticket_cache`` are paths, the cache first as in Java.

    ``ticket_cache`` is None where none is used, empty for the default one of the user.
    ``principal`` may be empty for a ticket cache. Renewal as in Java's ``KerberosLogin``: after
    ``renew_window_factor`` of a ticket's life plus a random part of up to ``renew_jitter``, at most
    every ``min_time_before_relogin_ms``. ``kinit_cmd`` renews tickets of a cache.
    """

    service_name: str
    principal: str = ""
    keytab: str = ""
    ticket_cache: str | None = None
    kinit_cmd: str = "/usr/bin/kinit"
    renew_window_factor: float = 0.8
    renew_jitter: float = 0.05
    min_time_before_relogin_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """How to log in."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    oauth: OAuthSettings | None = None
    kerberos: KerberosSettings | None = None


def tls_settings(read: SecurityProperties) -> TlsSettings:
    """Read ``ssl.*``; ``ConfigError``: two sources for one thing, half of a pair, or a value that
    is not known."""
    # Empty switches the check off; https is the default since 2.0 (KIP-294).
    algorithm = read.options.ssl_endpoint_identification_algorithm.lower()
    if algorithm not in ("", "https"):
        raise read.wrong(
            "ssl.endpoint.identification.algorithm",
            f"is {algorithm}, not https",
            "set it to https, or to nothing to switch the check of the host name off",
        )
    return TlsSettings(
        truststore=_truststore(read), keystore=_keystore(read), check_hostname=algorithm == "https"
    )


def _truststore(read: SecurityProperties) -> StoreSettings | None:
    kind = _store_type(read, "ssl.truststore.type", read.options.ssl_truststore_type)
    location = read.options.ssl_truststore_location or ""
    certificates = read.options.ssl_truststore_certificates or ""
    password = read.options.ssl_truststore_password
    if certificates:
        if kind != _PEM:
            raise read.wrong(
                "ssl.truststore.certificates", "is read as PEM only", "set ssl.truststore.type=PEM"
            )
        if location:
            raise read.wrong(
                "ssl.truststore.certificates",
                "and ssl.truststore.location are both set",
                "remove one of them",
            )
    elif not location:
        _refuse_lone_password(read, "ssl.truststore", password)
        return None
    return StoreSettings(
        name="ssl.truststore",
        type=kind,
        location=location,
        password=password,
        certificates=certificates,
    )


def _keystore(read: SecurityProperties) -> StoreSettings | None:
    kind = _store_type(read, "ssl.keystore.type", read.options.ssl_keystore_type)
    location = read.options.ssl_keystore_location or ""
    chain = read.options.ssl_keystore_certificate_chain or ""
    key = read.options.ssl_keystore_key or ""
    password = read.options.ssl_keystore_password
    if bool(chain) != bool(key):
        absent = "ssl.keystore.key" if chain else "ssl.keystore.certificate.chain"
        given = "ssl.keystore.certificate.chain" if chain else "ssl.keystore.key"
        raise read.wrong(given, f"is set, but no {absent}", f"set {absent}")
    if key and kind != _PEM:
        raise read.wrong("ssl.keystore.key", "is read as PEM only", "set ssl.keystore.type=PEM")
    if key and location:
        raise read.wrong(
            "ssl.keystore.key", "and ssl.keystore.location are both set", "remove one of them"
        )
    if not key and not location:
        _refuse_lone_password(read, "ssl.keystore", password)
        return None
    # DefaultSslEngineFactory refuses it too; a truststore alone may do without a password.
    if location and kind != _PEM and password is None:
        raise read.wrong("ssl.keystore.location", "needs a password", "set ssl.keystore.password")
    return StoreSettings(
        name="ssl.keystore",
        type=kind,
        location=location,
        password=password,
        certificates=chain,
        key=key,
        key_password=read.options.ssl_key_password,
    )


def _refuse_lone_password(read: SecurityProperties, store: str, password: str | None) -> None:
    if password is not None:
        raise read.wrong(
            f"{store}.password", f"is set, but no {store}.location", f"set {store}.location"
        )


def _store_type(read: SecurityProperties, name: str, given: str) -> str:
    kind = given.upper() or "JKS"
    if kind not in _STORE_TYPES:
        raise read.wrong(name, f"is {kind}", f"use one of {', '.join(_STORE_TYPES)}")
    return kind


def sasl_settings(read: SecurityProperties) -> SaslSettings:
    """Read ``sasl.*``; ``ConfigError``: no or an unknown mechanism, a login module that does not
    fit, missing options."""
    login = _login(read)
    mechanism = _mechanism(read, login)
    if login is None:
        raise read.wrong(
            "sasl.jaas.config",
            "is missing",
            "set it, or name a JAAS file: KAFKA_OPTS=-Djava.security.auth.login.config=FILE",
        )
    _refuse_java_classes(read)
    kind = _LOGIN_KINDS.get(mechanism, LoginKind.PASSWORD)
    # Java finds out at the first login.
    if login.kind is not kind:
        raise read.wrong(
            "sasl.jaas.config",
            f"names {login.name}, which does not fit sasl.mechanism={mechanism}",
            "change sasl.mechanism or the login module",
        )
    if kind is LoginKind.KERBEROS:
        return SaslSettings(mechanism=mechanism, kerberos=_kerberos(read, login))
    if kind is LoginKind.OAUTH:
        return SaslSettings(mechanism=mechanism, oauth=_oauth(read, login))
    return _password_login(read, mechanism, login)


def _login(read: SecurityProperties) -> LoginModule | None:
    """Return the login module of the property, else that of the JAAS file
    (``JaasContext.loadClientContext``)."""
    text = read.options.sasl_jaas_config
    try:
        return parse_jaas(text) if text else login_of_file(os.environ)
    except ConfigError as error:
        if not text:
            raise ConfigError(read.place(error.message), remedy=error.remedy) from None
        raise read.wrong("sasl.jaas.config", error.message, error.remedy) from None


def _mechanism(read: SecurityProperties, login: LoginModule | None) -> str:
    mechanism = read.options.sasl_mechanism
    choices = f"set it to one of {', '.join(MECHANISMS)}"
    if not mechanism:
        # Java's default mechanism: files that only name Krb5LoginModule rely on it.
        if login is not None and login.kind is LoginKind.KERBEROS:
            return _GSSAPI
        # With another login module Java's default can only fail.
        raise read.wrong("sasl.mechanism", "is missing (Java's default is GSSAPI)", choices)
    if mechanism not in MECHANISMS:
        raise read.wrong("sasl.mechanism", f"is {mechanism}, which is not known here", choices)
    return mechanism


def _kerberos(read: SecurityProperties, login: LoginModule) -> KerberosSettings:
    def is_on(option: str) -> bool:
        return login.options.get(option, "").strip().lower() == "true"

    where, options = "sasl.jaas.config", read.options
    principal, keytab = login.options.get("principal", ""), ""
    if is_on("useKeyTab"):
        # Krb5LoginModule takes both forms.
        keytab = login.options.get("keyTab", "").removeprefix("FILE:").removeprefix("file:")
        for name, given in (("keyTab", keytab), ("principal", principal)):
            if not given:
                raise read.wrong(
                    where, f"has useKeyTab=true, but no {name}", f'add {name}="..." to the module'
                )
    elif not is_on("useTicketCache"):
        raise read.wrong(
            where, "names neither a keytab nor the ticket cache",
            'add useKeyTab=true keyTab="..." principal="...", or useTicketCache=true',
        )  # fmt: skip
    ticket_cache = login.options.get("ticketCache", "") if is_on("useTicketCache") else None
    service, in_module = options.sasl_kerberos_service_name, login.options.get("serviceName")
    if service and in_module and service != in_module:
        raise read.wrong(
            "sasl.kerberos.service.name",
            f"is {service}, but serviceName of the login module {in_module}",
            "remove one of them",
        )
    if not service and not in_module:
        raise read.wrong(
            "sasl.kerberos.service.name", "is missing",
            "set it to the first part of the brokers' principal, in most installations kafka",
        )  # fmt: skip
    return KerberosSettings(
        service_name=service or in_module or "",
        principal=principal,
        keytab=keytab,
        ticket_cache=ticket_cache,
        kinit_cmd=options.sasl_kerberos_kinit_cmd or "",
        renew_window_factor=options.sasl_kerberos_ticket_renew_window_factor,
        renew_jitter=options.sasl_kerberos_ticket_renew_jitter,
        min_time_before_relogin_ms=options.sasl_kerberos_min_time_before_relogin,
    )


def _refuse_java_classes(read: SecurityProperties) -> None:
    options = read.options
    for name, given in (
        ("sasl.client.callback.handler.class", options.sasl_client_callback_handler_class),
        ("sasl.login.class", options.sasl_login_class),
    ):
        if given:
            raise read.wrong(name, "is Java code, which cannot be loaded here", f"remove {name}")


def _password_login(read: SecurityProperties, mechanism: str, login: LoginModule) -> SaslSettings:
    for option in ("username", "password"):
        if not login.options.get(option):
            raise read.wrong(
                "sasl.jaas.config", f"has no {option}", f'add {option}="..." before the semicolon'
            )
    # KIP-48: the token is the user name, and the exchange needs an extension.
    if mechanism in _SCRAM and login.options.get("tokenauth", "").strip().lower() == "true":
        raise read.wrong(
            "sasl.jaas.config", "logs in by delegation token, which is not supported",
            "use a user's name and password",
        )  # fmt: skip
    return SaslSettings(
        mechanism=mechanism, username=login.options["username"], password=login.options["password"]
    )


def _oauth(read: SecurityProperties, login: LoginModule) -> OAuthSettings:
    url = read.options.sasl_oauthbearer_token_endpoint_url or ""
    handler_name = "sasl.login.callback.handler.class"
    handler = read.options.sasl_login_callback_handler_class
    # An older and the newer name of one class; both are in files.
    if handler and handler not in (*_TOKEN_HANDLERS, _UNSECURED_HANDLER):
        raise read.wrong(
            handler_name, f"is {handler}: Java code, which cannot be loaded here",
            f"use {_TOKEN_HANDLERS[0]}",
        )  # fmt: skip
    if handler in _TOKEN_HANDLERS and not url:
        raise read.wrong(
            "sasl.oauthbearer.token.endpoint.url", "is missing", "set it to the token endpoint"
        )
    extensions = _extensions(read, login.options)
    if not url:
        return _unsecured(read, login.options, extensions)
    if not url.lower().startswith(("https://", "http://")):
        raise read.wrong(
            "sasl.oauthbearer.token.endpoint.url", "is no http or https address",
            "write https://host/path",
        )  # fmt: skip
    options = read.options
    client_id, client_secret = (
        _credential(read, name, given or login.options.get(option), option)
        for name, given, option in (
            ("client.id", options.sasl_oauthbearer_client_credentials_client_id, "clientId"),
            (
                "client.secret",
                options.sasl_oauthbearer_client_credentials_client_secret,
                "clientSecret",
            ),
        )
    )
    inside = read.place("sasl.jaas.config")
    own = parse_config(SecurityOptions, login.options, lambda _: inside)
    return OAuthSettings(
        token_endpoint_url=url,
        client_id=client_id,
        client_secret=client_secret,
        scope=options.sasl_oauthbearer_scope or login.options.get("scope", ""),
        header_urlencode=options.sasl_oauthbearer_header_urlencode,
        extensions=extensions,
        refresh_window_factor=options.sasl_login_refresh_window_factor,
        refresh_min_period_s=options.sasl_login_refresh_min_period_seconds,
        refresh_buffer_s=options.sasl_login_refresh_buffer_seconds,
        connect_timeout_ms=options.sasl_login_connect_timeout_ms or _TOKEN_TIMEOUT_MS,
        read_timeout_ms=options.sasl_login_read_timeout_ms or _TOKEN_TIMEOUT_MS,
        retry_backoff_ms=options.sasl_login_retry_backoff_ms,
        retry_backoff_max_ms=options.sasl_login_retry_backoff_max_ms,
        # As in Java the endpoint's own certificates are options of the login module.
        tls=tls_settings(SecurityProperties(own, inside)),
    )


def _credential(read: SecurityProperties, name: str, value: str | None, option: str) -> str:
    key = f"sasl.oauthbearer.client.credentials.{name}"
    if not value:
        raise read.wrong(
            key, "is missing", f'set it, or {option}="..." among the options in sasl.jaas.config'
        )
    return value


def _unsecured(
    read: SecurityProperties, options: Mapping[str, str], extensions: tuple[tuple[str, str], ...]
) -> OAuthSettings:
    claims = tuple(
        (key.removeprefix(_STRING_CLAIM), value)
        for key, value in options.items()
        if key.startswith(_STRING_CLAIM)
    )
    if not any(name == "sub" and value for name, value in claims):
        raise read.wrong(
            "sasl.oauthbearer.token.endpoint.url",
            "is missing, and the login module has no claims of its own",
            f"set it, or for tests without signatures the option {_STRING_CLAIM}sub",
        )
    lifetime = options.get("unsecuredLoginLifetimeSeconds", "3600").strip()
    if not lifetime.isdecimal() or int(lifetime) < 1:
        raise read.wrong("sasl.jaas.config", "has no number in unsecuredLoginLifetimeSeconds")
    return OAuthSettings(claims=claims, lifetime_s=int(lifetime), extensions=extensions)


def _extensions(
    read: SecurityProperties, options: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    extensions: list[tuple[str, str]] = []
    for key, value in options.items():
        prefix = next((p for p in _EXTENSIONS if key.startswith(p)), None)
        if prefix is None:
            continue
        name = key.removeprefix(prefix)
        # KIP-342, RFC 7628: letters only, and ``auth`` is the token's own key.
        if not _EXTENSION_NAME.fullmatch(name) or name == "auth":
            raise read.wrong(
                "sasl.jaas.config", f"has an extension {name!r}, not a name of letters"
            )
        extensions.append((name, value))
    return tuple(extensions)
