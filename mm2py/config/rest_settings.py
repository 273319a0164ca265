"""REST listeners, authentication and authorization, and refusals at start.

Flow: top-level texts of a mirror maker file or of ``worker.properties`` -> ``RestOptions`` (Java's
names) -> ``RestSettings``. ``_public`` has the rule of the public listener: an address that other
machines reach needs authentication. Opens no socket and no file.
"""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeVar
from urllib.parse import urlsplit

from mm2py.config.client_options import SecurityOptions
from mm2py.config.definitions import parse_config
from mm2py.config.header_rules import HeaderRule, allowed_methods, allowed_origins, header_rules
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.security import SecurityProperties, TlsSettings, tls_settings
from mm2py.config.worker import DEFAULT_PORT, MAX_PORT, RestOptions
from mm2py.errors import ConfigError

BASIC_AUTH_EXTENSION: Final = (
    "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
)
_FILE_KEYS: Final = (
    "access.control.", "admin.listeners", "config.providers.", "internal.listener", "listeners",
    "response.http.", "rest.", "ssl.",
)  # fmt: skip
_HTTPS_PREFIX: Final = "listeners.https."
_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
# AbstractConfig's listener pattern (RestServer), without its negative ports.
_LISTENER: Final = re.compile(r"([A-Za-z]+)://\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]{1,5})/?")
_T = TypeVar("_T")
_Origin = Callable[[str], str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """One address to listen on.

    ``host`` "" means all interfaces, ``port`` 0 any free one. ``signed_only``: only requests of
    other workers are served there. ``or_free_port``: if the port is taken, another is used.
    """

    scheme: str
    host: str
    port: int
    signed_only: bool = False
    or_free_port: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS of the https listeners; ``client_auth`` is none, requested or required."""

    stores: TlsSettings
    client_auth: str = "none"
    protocols: tuple[str, ...] = _PROTOCOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class RestSettings:
    """Settings of the REST server; ``notices`` are to be logged once each.

    ``internal_given``: the file has ``internal.listener``; else its address follows the advertised
    one.
    """

    listeners: tuple[ListenAddress, ...]
    internal: ListenAddress
    tls: ListenerTls | None
    options: RestOptions
    insecure: bool
    notices: tuple[str, ...]
    internal_given: bool = False
    allowed_origins: frozenset[str] = frozenset()
    allowed_methods: str = ""
    header_rules: tuple[HeaderRule, ...] = ()

    @classmethod
    def of_flow_file(
        cls, props: Mapping[str, str], *, insecure: bool = False, origin: _Origin = None
    ) -> "RestSettings":
        """Read a mirror maker file: ``props`` are its top-level texts, placeholders resolved.

        Addresses that other machines reach serve signed requests only, unless users can be
        distinguished. ``ConfigError``: the listeners of the file cannot be served.
        """
        return _settings(props, insecure=insecure, origin=origin, dedicated=True)

    @classmethod
    def of_config(cls, config: MirrorMakerConfig, *, insecure: bool = False) -> "RestSettings":
        """Read a mirror maker file, as ``of_flow_file``."""

        def origin(name: str) -> str:
            value = config.raw.get(name)
            return str(config.path) if value is None else f"{config.path}:{value.line}"

        texts = {key: it.text for key, it in config.raw.items() if key.startswith(_FILE_KEYS)}
        return cls.of_flow_file(config.resolved(texts), insecure=insecure, origin=origin)

    @classmethod
    def of_worker(
        cls, props: Mapping[str, str], *, insecure: bool = False, origin: _Origin = None
    ) -> "RestSettings":
        """Read ``worker.properties``, placeholders resolved; ``ConfigError``: the listeners of the
        file cannot be served, or other machines could use it without authentication."""
        return _settings(props, insecure=insecure, origin=origin, dedicated=False)

    @property
    def max_body_bytes(self) -> int:
        """Longest body of a user's request."""
        return self.options.rest_max_body_bytes

    @property
    def providers_allowed(self) -> frozenset[str]:
        """Config providers that a config sent over REST may use."""
        return frozenset(self.options.rest_config_providers_allow)

    @property
    def spark_masters(self) -> frozenset[str]:
        return frozenset(self.options.rest_spark_masters)

    @property
    def read_only_users(self) -> frozenset[str]:
        return frozenset(self.options.rest_read_only_users)

    @property
    def admin_endpoints(self) -> bool:
        return self.options.admin_listeners != ()

    @property
    def certificates_count(self) -> bool:
        """Whether a client certificate authenticates its user."""
        return self.tls is not None and self.tls.client_auth != "none"

    @property
    def authenticated(self) -> bool:
        """Whether callers of the public listeners must say who they are."""
        return _has_files(self.options) or self.certificates_count

    @property
    def own_hosts(self) -> frozenset[str]:
        """Host names, in lower case, under which this server may be asked."""
        names = [address.host for address in self.listeners]
        names.append(self.options.rest_advertised_host_name.strip())
        return frozenset(name.lower() for name in names if name)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``; a name other than localhost may lead anywhere."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def advertised_url(settings: RestSettings, bound: list[str] | tuple[str, ...], local: str) -> str:
    """Return the advertised URL: ``http://host:port/``.

    ``bound`` are the URLs of the public listeners as they were opened; ``local`` is this machine's
    address for a listener on all interfaces.
    """
    options = settings.options
    by_scheme = {url.scheme: url for url in map(urlsplit, reversed(bound))}
    scheme = options.rest_advertised_listener
    if scheme not in by_scheme:
        scheme = "http" if "http" in by_scheme else "https"
    url = by_scheme[scheme]
    host = options.rest_advertised_host_name.strip() or url.hostname or ""
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 -- compared with, not bound
        host = local
    port = options.rest_advertised_port if options.rest_advertised_port is not None else url.port
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"


def _settings(
    props: Mapping[str, str], *, insecure: bool, origin: _Origin, dedicated: bool
) -> RestSettings:
    options = parse_config(RestOptions, props, origin)
    refuse = _Refusals(origin)
    notices = _unsupported(options, refuse, dedicated=dedicated)
    _check_providers(options, props, refuse)
    given = "listeners" in props
    addresses = refuse.addresses("listeners", options.listeners)
    internal = refuse.addresses("internal.listener", (options.internal_listener,))[0]
    tls = None
    if any(address.scheme == "https" for address in (*addresses, internal)):
        key = "internal.listener" if internal.scheme == "https" else "listeners"
        with refuse.placed(key):
            tls = _tls(props, notices)
    insecure = insecure or options.rest_insecure
    if not given:
        addresses = [replace(address, or_free_port=True) for address in addresses]
    public = _Public(options, tls, insecure=insecure, notices=notices)
    opened = public.dedicated(addresses) if dedicated else public.ordinary(addresses, refuse)
    settings = RestSettings(
        listeners=tuple(opened),
        internal=internal,
        tls=tls,
        options=options,
        insecure=insecure,
        notices=tuple(notices),
        internal_given="internal.listener" in props,
        allowed_origins=refuse.read(
            "access.control.allow.origin", allowed_origins, options.access_control_allow_origin
        ),
        allowed_methods=refuse.read(
            "access.control.allow.methods", allowed_methods, options.access_control_allow_methods
        ),
        header_rules=refuse.read(
            "response.http.headers.config", header_rules, options.response_http_headers_config
        ),
    )
    _check_names(settings, refuse)
    return settings


def _has_files(options: RestOptions) -> bool:
    return bool(options.rest_basic_auth_file.strip() or options.rest_bearer_tokens_file.strip())


class _Refusals:
    """Errors that name the place of a property."""

    def __init__(self, origin: _Origin) -> None:
        self._origin = origin

    def __call__(self, name: str, problem: str, remedy: str) -> ConfigError:
        place = self._origin(name) if self._origin is not None else ""
        return ConfigError(f"{place}: {name} {problem}" if place else f"{name} {problem}",
                           remedy=remedy)  # fmt: skip

    def read(self, name: str, reader: Callable[[str], _T], text: str) -> _T:
        """Return what ``reader`` makes of the property ``name``."""
        try:
            return reader(text)
        except ConfigError as error:
            raise self(name, error.message, error.remedy) from None

    @contextmanager
    def placed(self, name: str) -> Generator[None]:
        """Put the place of ``name`` in front of what is refused inside."""
        try:
            yield
        except ConfigError as error:
            place = self._origin(name) if self._origin is not None else ""
            text = f"{place}: {error.message}" if place else error.message
            raise ConfigError(text, remedy=error.remedy) from None

    def addresses(self, name: str, texts: tuple[str, ...]) -> list[ListenAddress]:
        form = "write http://<host>:<port> or https://<host>:<port>"
        if not texts:
            raise self(name, "is empty", form)
        listening: list[ListenAddress] = []
        for text in texts:
            match = _LISTENER.fullmatch(text.strip())
            if match is None or int(match[3]) > MAX_PORT:
                raise self(name, f"has {text.strip()!r}, which is no listener", form)
            if match[1].lower() not in ("http", "https"):
                raise self(name, f"asks for {match[1]}, not http or https", form)
            listening.append(
                ListenAddress(scheme=match[1].lower(), host=match[2], port=int(match[3]))
            )
        return listening


class _Public:
    """Addresses that are opened for users: the rule of the public listener."""

    def __init__(
        self, options: RestOptions, tls: ListenerTls | None, *, insecure: bool, notices: list[str]
    ) -> None:
        self._files = _has_files(options)
        self._certificates = tls is not None and tls.client_auth != "none"
        self._insecure, self._notices = insecure, notices

    def ordinary(self, addresses: list[ListenAddress], refuse: _Refusals) -> list[ListenAddress]:
        """An ordinary worker is not started where any client could change it."""
        for address in addresses:
            if self._open_to_all(address):
                raise refuse(
                    "listeners",
                    f"has {address}, which other machines reach, and no authentication is set",
                    "set rest.basic.auth.file, rest.bearer.tokens.file or (https) "
                    "ssl.client.auth=required, listen on 127.0.0.1, or start with --insecure",
                )
        self._warn(addresses)
        return addresses

    def dedicated(self, addresses: list[ListenAddress]) -> list[ListenAddress]:
        """Files written for Java MM2 start: what is open to all serves other workers only."""
        opened = [replace(a, signed_only=self._open_to_all(a)) for a in addresses]
        self._notices += [
            f"listener {address} is reachable from other machines without authentication: it "
            "serves signed requests of other workers only; set rest.basic.auth.file or "
            "rest.bearer.tokens.file to use it, or start with --insecure"
            for address in opened
            if address.signed_only
        ]
        if all(address.signed_only for address in opened):
            opened.append(
                ListenAddress(scheme="http", host="127.0.0.1", port=DEFAULT_PORT, or_free_port=True)
            )
        self._warn([address for address in opened if not address.signed_only])
        return opened

    def _open_to_all(self, address: ListenAddress) -> bool:
        told_apart = self._files or (self._certificates and address.scheme == "https")
        return not (is_loopback(address.host) or told_apart or self._insecure)

    def _warn(self, addresses: list[ListenAddress]) -> None:
        for address in addresses:
            if is_loopback(address.host):
                continue
            if not self._files and not self._certificates:
                self._notices.append(
                    f"listener {address}: every client that reaches it may change everything "
                    "(insecure)"
                )
            elif address.scheme == "http" and self._files:
                self._notices.append(
                    f"listener {address}: passwords and tokens cross the network in clear; use "
                    "https"
                )


def _unsupported(options: RestOptions, refuse: _Refusals, *, dedicated: bool) -> list[str]:
    if options.admin_listeners and not dedicated:
        raise refuse(
            "admin.listeners",
            "names addresses of their own for /admin, which this version does not open",
            "remove it, or leave its value empty to switch /admin off",
        )
    for extension in options.rest_extension_classes:
        if extension != BASIC_AUTH_EXTENSION:
            raise refuse(
                "rest.extension.classes",
                f"names {extension}: Java code, which cannot be loaded here",
                f"remove it; for basic authentication name {BASIC_AUTH_EXTENSION}",
            )
        if not options.rest_basic_auth_file.strip():
            raise refuse(
                "rest.extension.classes",
                "asks for basic authentication, whose users stand in a file of their own here",
                "set rest.basic.auth.file to the file that the JAAS entry KafkaConnect names",
            )
    # A dedicated Java MM2 reads this only with its internal REST on: a file keeps starting.
    return ["admin.listeners has no effect in this version"] if options.admin_listeners else []


def _check_providers(options: RestOptions, props: Mapping[str, str], refuse: _Refusals) -> None:
    """Bound what REST callers may have resolved, or it is every file and the environment."""
    for name in options.rest_config_providers_allow:
        kind = props.get(f"config.providers.{name}.class", "").strip()
        bound = "allowlist.pattern" if kind.endswith("EnvVarConfigProvider") else "allowed.paths"
        key = f"config.providers.{name}.param.{bound}"
        if not props.get(key, "").strip():
            raise refuse(
                "rest.config.providers.allow",
                f"names {name}, of which callers could read everything",
                f"set {key} to what they may use",
            )


def _tls(props: Mapping[str, str], notices: list[str]) -> ListenerTls:
    # As in Java (SSLUtils): one key with the prefix, and only those with it count.
    prefixed = {
        key.removeprefix(_HTTPS_PREFIX): text
        for key, text in props.items()
        if key.startswith(_HTTPS_PREFIX)
    }
    scope = _HTTPS_PREFIX.rstrip(".") if prefixed else "listeners"
    given = parse_config(SecurityOptions, prefixed or props, lambda _: scope)
    read = SecurityProperties(given, scope)
    stores = tls_settings(read)
    if stores.keystore is None:
        raise read.wrong(
            "ssl.keystore.location", "is missing, which https needs", "set ssl.keystore.location"
        )
    client_auth = parse_config(RestOptions, prefixed or props, lambda _: scope).ssl_client_auth
    client_auth = client_auth or "none"
    if client_auth != "none" and stores.truststore is None:
        raise read.wrong(
            "ssl.truststore.location",
            f"is missing, which ssl.client.auth={client_auth} needs",
            "set it to the authorities whose client certificates count",
        )
    protocols = tuple(filter(None, given.ssl_enabled_protocols)) or _PROTOCOLS
    for protocol in protocols:
        if protocol not in _PROTOCOLS:
            raise read.wrong("ssl.enabled.protocols", f"may name {', '.join(_PROTOCOLS)} only")
    if given.ssl_cipher_suites:
        notices.append("ssl.cipher.suites has no effect on listeners: OpenSSL's defaults are used")
    return ListenerTls(stores=stores, client_auth=client_auth, protocols=protocols)


def _check_names(settings: RestSettings, refuse: _Refusals) -> None:
    scheme = settings.options.rest_advertised_listener
    schemes = {address.scheme for address in settings.listeners}
    if scheme and scheme not in schemes:
        raise refuse(
            "rest.advertised.listener",
            f"is {scheme}, but listeners has no such address",
            f"add an address with {scheme} to listeners, or remove it",
        )
    if settings.read_only_users and not settings.authenticated:
        raise refuse(
            "rest.read.only.users",
            "names users, but authentication is off",
            "set rest.basic.auth.file or rest.bearer.tokens.file",
        )
