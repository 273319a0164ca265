"""Rules for configs that come over REST; pure.

Flow: config of a request, texts of the worker's own file -> ``remote_problems`` -> 400. A key with
the same text as in the file is always accepted: it adds nothing. Everything else that loads code,
reads files, asks addresses, uses config providers or leads a flow to other clusters is refused
before anything resolves it.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from mm2py.config.broker_addresses import is_of_machine_services
from mm2py.config.class_names import (
    DEFAULT_CONFIG_PROPERTY_FILTER,
    DEFAULT_GROUP_FILTER,
    DEFAULT_REPLICATION_POLICY,
    DEFAULT_TOPIC_FILTER,
    IDENTITY_REPLICATION_POLICY,
    canonical_class,
)
from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.definitions import Problem
from mm2py.config.jaas import LoginModule, parse_jaas
from mm2py.config.java_values import parse_list
from mm2py.config.mirror_maker import COPY_CONNECTOR
from mm2py.config.providers import placeholders
from mm2py.errors import ConfigError

_BY_FILE: Final = "remove it, or write the same line into the worker's own file"
_CODE, _FILE, _URL = "would load code", "would read a file", "would ask an address"
# A key with any prefix (`source.cluster.`, `producer.override.`, ...) is checked by its end.
_DENIED: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), why)
    for pattern, why in (
        (r"(.*\.)?plugin\.library\.paths", _CODE),
        (r"(.*\.)?ssl\.engine\..*", _CODE),
        (r"(.*\.)?(ssl|security)\.providers?", _CODE),
        (r"(.*\.)?interceptor.*", _CODE),
        (r".*callback\.handler\.class", _CODE),
        (r"(.*\.)?sasl\.login\.class", _CODE),
        (r"(.*\.)?sasl\.oauthbearer\.jwt\..*\.class", _CODE),
        (r"(.*\.)?sasl\.kerberos\.kinit\.cmd", "would run a command"),
        (r"(.*\.)?debug", "would log what clients exchange"),
        (r".*\.file", _FILE),
        (r".*\.location", _FILE),
        (r"config\.providers(\..*)?", "would declare config providers"),
    )
)
# Any Python module can be named there, is imported,
# and what it names is called (mirror.plugin_class).
_LOADED: Final = re.compile(
    r"(.*\.)?(replication\.policy|(topic|group|config\.property)\.filter)\.class", re.IGNORECASE
)
_OURS: Final = frozenset(
    {
        DEFAULT_CONFIG_PROPERTY_FILTER,
        DEFAULT_GROUP_FILTER,
        DEFAULT_REPLICATION_POLICY,
        DEFAULT_TOPIC_FILTER,
        IDENTITY_REPLICATION_POLICY,
    }
)
_NO_FILE: Final = frozenset({"offset-syncs.topic.location"})
"""Ends like a path, but is ``source`` or ``target``."""

_CLUSTER: Final = re.compile(r"(source|target)\.cluster\.(?P<client>.*)", re.DOTALL)
_CLIENT: Final = re.compile(
    r"((source|target)\.(consumer|producer|admin)|(consumer|producer|admin)\.override)"
    r"\.(?P<client>.*)",
    re.DOTALL,
)
_BARE_CLIENT: Final = re.compile(r"(consumer|producer|admin)\.(?P<client>.*)", re.DOTALL)
_CONNECTION: Final = re.compile(r"bootstrap\.servers|security\..*|ssl\..*|sasl\..*")
_NOT_OF_CLIENTS: Final = frozenset({"alias", "poll.timeout.ms"})
"""Stand under a client's prefix, but are options of the mirror connectors."""

_OTHER_CLUSTER: Final = (
    "differs from the mirror maker file, which alone defines the clusters and how to reach them",
    "change the file on every node and restart, or leave the key out",
)
_METADATA_NAMES: Final = re.compile(r"(.*\.)?(metadata(\..*)?|instance-data(\..*)?)", re.IGNORECASE)
# Services such as nip.io resolve a name to the address inside it, 169-254-169-254 or a9fea9fe.
_LINK_LOCAL_INSIDE: Final = re.compile(
    r"(?:^|[.-])(?:169[.-]254[.-]\d{1,3}[.-]\d{1,3}|a9fe[0-9a-f]{4})(?:$|[.-])", re.IGNORECASE
)
_ODD_ADDRESS: Final = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+)){0,3}")
_PLAIN_NAME: Final = re.compile(r"[!-9;<>-~]+")
"""Printable ASCII but for ``=``, ``:`` and the blank: a name whose characters need no further
check."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters except tab and line ends."""


def remote_problems(
    config: Mapping[str, str | None],
    *,
    dedicated: bool,
    file_texts: Mapping[str, str],
    providers: Collection[str],
) -> list[Problem]:
    """Return why ``config`` is refused over REST; empty if it is accepted.

    Args:
        config: as it arrived, nothing resolved.
        dedicated: clusters and how to reach them come from the mirror maker file only.
        file_texts: dedicated: the connector's config as the file alone derives it, unresolved; else
            the texts of ``worker.properties``.
        providers: ``rest.config.providers.allow``.
    """
    rules = _Rules(dedicated=dedicated, providers=providers)
    return [
        Problem(key, None, message, remedy)
        for key, value in config.items()
        # A config that was read over REST may be sent back whole.
        if file_texts.get(key) != value
        for message, remedy in rules.of(key, value)
    ]


def refusal_text(problems: Sequence[Problem]) -> str | None:
    """Return the problems as one answer of REST, None where there are none; quotes no value."""
    if not problems:
        return None
    lines = [f"{_printable(p.name)} {p.message}: {p.remedy}" for p in problems]
    return "Configuration may not be set over REST: " + "; ".join(lines)


class _Rules:
    def __init__(self, *, dedicated: bool, providers: Collection[str]) -> None:
        self._dedicated, self._providers = dedicated, providers

    def of(self, key: str, value: str | None) -> Iterator[tuple[str, str]]:
        """Yield message and remedy of each rule that a key breaks; None takes a text of the file
        away."""
        if value is None:
            if self._dedicated and reaches_a_cluster(key):
                yield _OTHER_CLUSTER
            return
        if not _PLAIN_NAME.fullmatch(key) and (not key or any(map(_is_separator, key))):
            yield "is no property name", "leave out blanks, control characters, '=' and ':'"
            return
        if _CONTROL.search(value):
            yield "holds control characters", "remove them"
        yield from self._placeholders(value)
        if self._dedicated and key == COPY_CONNECTOR:
            yield (
                "chooses which connectors a flow has, when a worker starts",
                "change the file on every node and restart",
            )
        denied = _denied(key)
        if denied:
            yield denied, _BY_FILE
            return
        if _LOADED.fullmatch(key) and canonical_class(value) not in _OURS:
            yield _CODE, f"name a built-in class, {_BY_FILE}"
            return
        yield from self._client(key, value)

    def _placeholders(self, value: str) -> Iterator[tuple[str, str]]:
        # As ConfigTransformer finds them: what is not seen here is not resolved later either.
        for placeholder in placeholders(value):
            if placeholder.provider not in self._providers:
                yield (
                    "uses a config provider",
                    "write the value, add the provider to rest.config.providers.allow, or write "
                    "the same line into the worker's own file",
                )
                return

    def _client(self, key: str, value: str) -> Iterator[tuple[str, str]]:
        if self._dedicated and reaches_a_cluster(key):
            yield _OTHER_CLUSTER
            return
        match = _CLUSTER.fullmatch(key) or _CLIENT.fullmatch(key)
        if match is None and self._dedicated:
            match = _BARE_CLIENT.fullmatch(
                key
            )  # elsewhere a plug-in may have such names of its own
        if match is not None and match["client"] not in (CLIENT_OPTIONS.keys() | _NOT_OF_CLIENTS):
            yield "is no known property of a Kafka client", _BY_FILE
        # CVE-2023-25194: JndiLoginModule in a connector config ran code in Connect workers.
        if key.endswith("sasl.jaas.config"):
            yield from _jaas(value)
        if key.endswith("bootstrap.servers") and any(
            map(_hands_out_secrets, set(parse_list(value)))
        ):
            yield "names an address of a machine's own services", "name brokers"


def reaches_a_cluster(key: str) -> bool:
    """Whether a connector's property defines a flow's clusters, or how to reach them."""
    client = _CLIENT.fullmatch(key) or _BARE_CLIENT.fullmatch(key)
    return _CLUSTER.fullmatch(key) is not None or (
        client is not None and _CONNECTION.fullmatch(client["client"]) is not None
    )


def _denied(key: str) -> str:
    if key in _NO_FILE:
        return ""
    # sasl.oauthbearer.*.url and later names of the kind: the worker
    # would send requests to addresses of the caller's choice (SSRF).
    lower = key.lower()
    if "url" in lower.partition("oauthbearer")[2]:
        return _URL
    return next((why for pattern, why in _DENIED if pattern.fullmatch(key)), "")


def _jaas(value: str) -> Iterator[tuple[str, str]]:
    if [found.text for found in placeholders(value)] == [value.strip()]:
        return  # an allowed provider's; clients refuse unknown modules when they read it
    try:
        module: LoginModule = parse_jaas(value)
    except ConfigError:
        # Not that error's text: it quotes words of the
        # value, which may be a password in the wrong place.
        yield (
            "is not one entry of a login module that is known here",
            "name PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule with its options",
        )
        return
    for option in module.options:
        # OAuth's login module takes stores for its token endpoint as options.
        if option.lower() in ("keytab", "ticketcache") or _denied(option):
            yield "has an option that would read a file or ask an address", _BY_FILE


def _hands_out_secrets(server: str) -> bool:
    # Names are not looked up here, they may lead elsewhere
    # a moment later: each connection looks again.
    host = server.rpartition("://")[2].rpartition(":")[0].strip("[]").rstrip(".")
    try:
        address = ip_address(host)
    except ValueError:
        # 0xa9fea9fe and the like: resolvers take them for addresses, no broker is written so.
        return (
            _ODD_ADDRESS.fullmatch(host) is not None
            or _METADATA_NAMES.fullmatch(host) is not None
            or _LINK_LOCAL_INSIDE.search(host) is not None
        )
    return is_of_machine_services(address)


def _is_separator(char: str) -> bool:
    return char in "=:" or char.isspace() or unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp")


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name) or "''"
