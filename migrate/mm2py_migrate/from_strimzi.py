"""``KafkaMirrorMaker2`` resources of the Strimzi operator as one MirrorMaker 2 file.

Flow: resources as parsed YAML -> ``mirror_maker_2_file`` -> ``TranslatedFile``. Both shapes:
``spec.clusters`` and ``spec.connectCluster`` (v1beta2), ``spec.target`` and
``spec.mirrors[].source`` (v1, late v1beta2). Kubernetes secrets become
``${dir:<secrets>/<name>:<key>}``: a folder with a folder for each secret, as pods mount them. What
has no counterpart is a remark. Source: the operator's ``KafkaMirrorMaker2Connectors``, which turns
the resource into connectors.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, cast, final

from mm2py.config.class_names import IDENTITY_REPLICATION_POLICY, PROVIDER_PACKAGE
from mm2py.errors import ConfigError
from mm2py_migrate.written_file import TranslatedFile, WrittenFile

KIND: Final = "KafkaMirrorMaker2"
_PROVIDERS: Final = {
    "dir": f"{PROVIDER_PACKAGE}DirectoryConfigProvider",
    "env": f"{PROVIDER_PACKAGE}EnvVarConfigProvider",
    "file": f"{PROVIDER_PACKAGE}FileConfigProvider",
}
_OPERATORS_PROVIDERS: Final = {"strimzidir": "dir", "strimzienv": "env", "strimzifile": "file"}
_KUBERNETES: Final = re.compile(r"\$\{(?:strimzi)?(secrets|configmaps):[^/:}]+/([^:}]+):([^}]+)\}")
_OWN: Final = re.compile(r"\$\{(strimzi(?:dir|env|file)):([^}]+)\}")
_USED: Final = re.compile(r"\$\{(dir|env|file):")
_CONNECTORS: Final = ("sourceConnector", "checkpointConnector", "heartbeatConnector")
_PATTERNS: Final = (
    ("topics", ("topicsPattern",)),
    ("topics.exclude", ("topicsExcludePattern", "topicsBlacklistPattern")),
    ("groups", ("groupsPattern",)),
    ("groups.exclude", ("groupsExcludePattern", "groupsBlacklistPattern")),
)
_READ_OF_SPEC: Final = frozenset(("clusters", "connectCluster", "mirrors", "target"))
_READ_OF_MIRROR: Final = frozenset(
    ("source", "sourceCluster", "targetCluster", *_CONNECTORS, *chain(*dict(_PATTERNS).values()))
)
_READ_OF_CLUSTER: Final = frozenset((
    "alias", "authentication", "bootstrapServers", "config", "tls", "configStorageTopic", "groupId",
    "offsetStorageTopic", "statusStorageTopic",
))  # fmt: skip
_CONNECT_CLUSTER: Final = (
    ("groupId", "group.id", "mirrormaker2-cluster"),
    ("offsetStorageTopic", "offset.storage.topic", "mirrormaker2-cluster-offsets"),
)
"""Member of the target, property of its ``config``, and the operator's default."""
_NOT_CARRIED: Final = (
    "positions of the operator's connectors are not carried over: stop the mirror and repeat this "
    "with --carry-positions, else the flows start at auto.offset.reset"
)
_CONNECT_PROPERTIES: Final = frozenset(
    ("group.id", "config.storage.topic", "offset.storage.topic", "status.storage.topic")
)
_INSTEAD: Final = {
    "replicas": "start that many workers on this file, they share the work",
    "metricsConfig": "every worker answers GET /metrics",
    "rack": "set <source>.consumer.client.rack",
    "logging": "levels are options of the command and of PUT /admin/loggers",
    "externalConfiguration": "${env:...} and ${dir:...} read what the pod has",
    "template": "give the workers' pods what it says",
}
"""By member of ``spec``; the others describe pods and JVMs, and are only named."""
_LOGINS: Final = {
    "plain": ("PLAIN", "plain.PlainLoginModule"),
    "scram-sha-256": ("SCRAM-SHA-256", "scram.ScramLoginModule"),
    "scram-sha-512": ("SCRAM-SHA-512", "scram.ScramLoginModule"),
}
_CA_FILE: Final = "ca.crt"
_OAUTH_MODULE: Final = "oauthbearer.OAuthBearerLoginModule"
_READ_OF_OAUTH: Final = frozenset(("clientId", "clientSecret", "scope", "tokenEndpointUri", "type"))

Node = Mapping[str, object]
Lines = dict[str, dict[str, str]]
"""Properties of each cluster, or of each flow."""


@dataclass(frozen=True, slots=True)
class OperatorFlow:
    """Where the operator's Connect cluster, which is on the target, keeps the positions of a
    mirror.

    What ``own_topic`` has (``offsets.storage.topic`` of the source connector, empty for none)
    counts before ``offsets_topic``.
    """

    source: str
    target: str
    group_id: str
    offsets_topic: str
    own_topic: str = ""

    @property
    def connector(self) -> str:
        """What the operator calls its source connector."""
        return f"{self.source}->{self.target}.MirrorSourceConnector"


def mirror_maker_2_file(*resources: object, secrets: str, carries: bool = False) -> TranslatedFile:
    """Return the file of resources; ``secrets`` is the folder that has a folder for each
    Kubernetes secret.

    With ``carries`` the positions are carried over beside the file, which then does not ask for
    that. ``ConfigError``: one is no such resource, or lacks clusters, brokers or mirrors; or two of
    them have one flow, or one alias for two clusters.
    """
    file, clusters, flows = WrittenFile(), Lines(), Lines()
    for resource in resources:
        imported = _Import(_spec(resource), secrets.rstrip("/"), file)
        for alias, lines in imported.clusters().items():
            _join(clusters.setdefault(alias, {}), lines)
        for flow, lines in imported.flows().items():
            if flow in flows:
                raise ConfigError(
                    f"two resources mirror {flow}, and one file has one flow of that name",
                    remedy="give one of them the topics of both, or its source another alias",
                )
            flows[flow] = lines
    if not carries:
        file.remark(_NOT_CARRIED)
    _write(file, clusters, flows)
    return file.done()


def _join(lines: dict[str, str], more: Mapping[str, str]) -> None:
    """Add what another resource has for the same alias."""
    for name, value in more.items():
        if lines.setdefault(name, value) != value:
            raise ConfigError(
                f"two resources have different values of {name}",
                remedy="make them the same, give one cluster another alias, or import each "
                "resource into a file of its own",
            )


def operator_flows(*resources: object) -> list[OperatorFlow]:
    """Return the mirrors of resources that copy; ``ConfigError``: see ``mirror_maker_2_file``."""
    return [
        flow
        for resource in resources
        for flow in _Import(_spec(resource), "", WrittenFile()).operator_flows()
    ]


def _spec(resource: object) -> "Node":
    top = _node(resource, "the file")
    if top.get("kind") != KIND:
        raise ConfigError(
            f"kind is {top.get('kind')!r}, not {KIND}", remedy="name the file of the mirror"
        )
    return _node(top.get("spec"), "spec")


@dataclass(frozen=True, slots=True)
class _MirrorSpec:
    source: str
    target: str
    spec: Node


@final
class _Import:
    """One resource; what has no counterpart becomes remarks of ``file``."""

    def __init__(self, spec: Node, secrets: str, file: WrittenFile) -> None:
        self._spec, self._secrets, self._file = spec, secrets, file
        self._clusters: dict[str, Node] = {}
        self._mirrors = list(self._all_mirrors())
        if not self._mirrors:
            raise ConfigError("spec.mirrors is empty", remedy="name a mirror")

    def clusters(self) -> Lines:
        for name in self._spec:
            if name not in _READ_OF_SPEC:
                self._no_counterpart(f"spec.{name}", _INSTEAD.get(name, ""))
        return {alias: self._cluster(alias, it) for alias, it in self._clusters.items()}

    def flows(self) -> Lines:
        return {f"{it.source}->{it.target}": self._flow(it) for it in self._mirrors}

    def operator_flows(self) -> list[OperatorFlow]:
        """Return the mirrors that copy, with where their positions are."""
        return [
            OperatorFlow(
                mirror.source, mirror.target, *self._connect_of(mirror.target), _own_topic(mirror)
            )
            for mirror in self._mirrors
            if mirror.spec.get("sourceConnector") is not None
        ]

    def _connect_of(self, target: str) -> tuple[str, str]:
        """Return group and offsets topic of the operator's Connect cluster: named by the target, by
        its properties, or the operator's own."""
        cluster = self._clusters[target]
        config = _node(cluster.get("config") or {}, f"cluster {target}.config")
        named = (
            (cluster.get(member), config.get(name), own) for member, name, own in _CONNECT_CLUSTER
        )
        group_id, topic = (str(next(filter(None, it))) for it in named)
        return group_id, topic

    # ---- clusters and mirrors, in both shapes

    def _all_mirrors(self) -> Iterator[_MirrorSpec]:
        target = self._spec.get("target")
        listed = _nodes(self._spec.get("clusters"), "spec.clusters")
        self._clusters |= {_text(it, "alias", "spec.clusters"): it for it in listed}
        for at, spec in enumerate(_nodes(self._spec.get("mirrors"), "spec.mirrors")):
            place = f"spec.mirrors[{at}]"
            for name in spec:
                if name not in _READ_OF_MIRROR:
                    self._no_counterpart(f"{place}.{name}")
            if target is None:
                source, to = (_text(spec, f"{side}Cluster", place) for side in ("source", "target"))
                yield _MirrorSpec(self._known(source), self._known(to), spec)
                continue
            ends = [_node(spec.get("source"), f"{place}.source"), _node(target, "spec.target")]
            source, to = (_text(end, "alias", place) for end in ends)
            self._clusters |= {source: ends[0], to: ends[1]}
            yield _MirrorSpec(source, to, spec)

    def _known(self, alias: str) -> str:
        if alias not in self._clusters:
            raise ConfigError(
                f"a mirror names the cluster {alias!r}, which spec.clusters does not have",
                remedy=f"use one of {', '.join(self._clusters) or 'spec.clusters'}",
            )
        return alias

    def _cluster(self, alias: str, cluster: Node) -> dict[str, str]:
        place = f"cluster {alias}"
        lines = {"bootstrap.servers": _text(cluster, "bootstrapServers", place)}
        protocol = "PLAINTEXT" if cluster.get("tls") is None else "SSL"
        if cluster.get("tls") is not None:
            lines |= self._trusted(_node(cluster["tls"], f"{place}.tls"), place)
        if cluster.get("authentication") is not None:
            login = self._login(_node(cluster["authentication"], f"{place}.authentication"), place)
            if "sasl.mechanism" in login:
                protocol = "SASL_SSL" if protocol == "SSL" else "SASL_PLAINTEXT"
            lines |= login
        if protocol != "PLAINTEXT":
            lines["security.protocol"] = protocol
        lines |= self._config(cluster, place)
        for name in _CONNECT_PROPERTIES & lines.keys():
            # With them a flow would run the operator's connectors beside its own.
            del lines[name]
            self._file.remark(
                f"{place}: {name} is left out, each flow has its own group and topics"
            )
        for name in cluster:
            if name not in _READ_OF_CLUSTER:
                self._no_counterpart(f"{place}.{name}")
        return {f"{alias}.{name}": value for name, value in lines.items()}

    # ---- security

    def _trusted(self, tls: Node, place: str) -> dict[str, str]:
        certificates: list[str] = []
        for node in _nodes(tls.get("trustedCertificates"), f"{place}.tls.trustedCertificates"):
            certificate = node.get("certificate")
            if certificate is None:
                certificate = _CA_FILE
                self._file.remark(
                    f"{place}: of the certificates {node.get('pattern')}, {_CA_FILE} is taken"
                )
            secret = _text(node, "secretName", f"{place}.tls")
            certificates.append(self._secret(secret, str(certificate)))
        if not certificates:
            return {}
        return {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": "\n".join(certificates),
        }

    def _login(self, login: Node, place: str) -> dict[str, str]:
        kind = str(login.get("type"))
        if kind == "tls":
            pair = _node(login.get("certificateAndKey"), f"{place}.certificateAndKey")
            return {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": self._of_secret(pair, "certificate", place),
                "ssl.keystore.key": self._of_secret(pair, "key", place),
            }
        if kind in _LOGINS:
            mechanism, module = _LOGINS[kind]
            password = _node(login.get("passwordSecret"), f"{place}.passwordSecret")
            options = {
                "username": _text(login, "username", place),
                "password": self._of_secret(password, "password", place),
            }
            return {"sasl.mechanism": mechanism, "sasl.jaas.config": _jaas(module, options)}
        if kind == "oauth" and "tokenEndpointUri" in login and "clientSecret" in login:
            return self._oauth(login, place)
        if kind == "custom":
            return self._config(login, f"{place}.authentication")
        self._no_counterpart(
            f"{place}.authentication of type {kind}", "write its sasl.* properties"
        )
        return {}

    def _oauth(self, login: Node, place: str) -> dict[str, str]:
        secret = _node(login["clientSecret"], f"{place}.clientSecret")
        options = {
            "clientId": _text(login, "clientId", place),
            "clientSecret": self._of_secret(secret, "key", place),
        }
        if "scope" in login:
            options["scope"] = str(login["scope"])
        for name in login:
            if name not in _READ_OF_OAUTH:
                self._no_counterpart(f"{place}.authentication.{name}")
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": _text(login, "tokenEndpointUri", place),
            "sasl.jaas.config": _jaas(_OAUTH_MODULE, options),
        }

    def _of_secret(self, secret: Node, member: str, place: str) -> str:
        """Return the placeholder of the key that ``member`` of a reference to a secret names."""
        return self._secret(_text(secret, "secretName", place), _text(secret, member, place))

    def _secret(self, name: str, key: str) -> str:
        return f"${{dir:{self._secrets}/{name}:{key}}}"

    # ---- flows

    def _flow(self, mirror: _MirrorSpec) -> dict[str, str]:
        flow = f"{mirror.source}->{mirror.target}"
        lines: dict[str, str] = {}
        for name in _CONNECTORS:
            if mirror.spec.get(name) is not None:
                self._add(lines, self._connector(mirror.spec, name, flow), f"{flow} {name}")
        lines["enabled"] = "true" if mirror.spec.get("sourceConnector") is not None else "false"
        if lines["enabled"] == "false":
            self._file.remark(
                f"{flow} has no sourceConnector: it copies nothing, and is not enabled"
            )
        if mirror.spec.get("checkpointConnector") is None:
            lines["emit.checkpoints.enabled"] = "false"
        lines["emit.heartbeats.enabled"] = str("heartbeatConnector" in mirror.spec).lower()
        for property_name, members in _PATTERNS:
            for member in members:
                if mirror.spec.get(member) is not None:
                    lines[property_name] = str(mirror.spec[member])
                    break
        return {f"{flow}.{name}": value for name, value in lines.items()}

    def _add(self, lines: dict[str, str], more: Mapping[str, str], place: str) -> None:
        """Add what a connector of a flow has; all of them read the same lines."""
        for name, value in more.items():
            if lines.setdefault(name, value) != value:
                self._file.remark(
                    f"{place}: {name}={value} is left out, the flow has {name}={lines[name]} for "
                    "all its connectors"
                )

    def _connector(self, mirror: Node, name: str, flow: str) -> dict[str, str]:
        place = f"{flow} {name}"
        connector = _node(mirror[name], place)
        lines = self._config(connector, place)
        if lines.get("replication.policy.class", "").startswith("io.strimzi."):
            lines["replication.policy.class"] = IDENTITY_REPLICATION_POLICY
        for member, value in connector.items():
            if member == "tasksMax":
                lines["tasks.max"] = str(value)
            elif member == "autoRestart":
                restart = _node(value, f"{place}.autoRestart")
                lines["task.auto.restart"] = str(restart.get("enabled", True)).lower()
                if "maxRestarts" in restart:
                    self._no_counterpart(f"{place}.autoRestart.maxRestarts", "pauses grow instead")
            elif member in ("pause", "state"):
                if value not in (False, "running"):
                    self._no_counterpart(
                        f"{place}.{member}", f"mm2py flow pause {flow.replace('->', '/')}"
                    )
            elif member != "config":
                self._no_counterpart(f"{place}.{member}")
        # One task does what these have, unless the source connector sets more.
        if name != "sourceConnector" and "tasksMax" in connector:
            del lines["tasks.max"]
        return lines

    # ---- values

    def _config(self, owner: Node, place: str) -> dict[str, str]:
        """Return a ``config`` member's properties as texts, with our placeholders."""
        lines: dict[str, str] = {}
        for name, value in _node(owner.get("config") or {}, f"{place}.config").items():
            if name.startswith("config.providers"):
                self._file.remark(f"{place}: {name} is left out, the file declares its own")
                continue
            text = str(value).lower() if isinstance(value, bool) else str(value)
            lines[name] = self._placeholders(text)
        return lines

    def _placeholders(self, text: str) -> str:
        text = _KUBERNETES.sub(lambda it: self._secret(it[2], it[3]), text)
        return _OWN.sub(lambda it: f"${{{_OPERATORS_PROVIDERS[it[1]]}:{it[2]}}}", text)

    def _no_counterpart(self, place: str, instead: str = "") -> None:
        self._file.remark(f"{place} has no property" + (f": {instead}" if instead else ""))


def _write(file: WrittenFile, clusters: Lines, flows: Lines) -> None:
    file.comment(f"From {KIND} resources")
    file.put("clusters", ", ".join(clusters))
    values = [it for lines in (*clusters.values(), *flows.values()) for it in lines.values()]
    used = sorted({name for value in values for name in _USED.findall(value)})
    if used:
        file.put("config.providers", ",".join(used))
    for name in used:
        file.put(f"config.providers.{name}.class", _PROVIDERS[name])
    # Without it the way back would be a second flow, only for heartbeats.
    file.put("emit.heartbeats.enabled", "false")
    titled = {f"Cluster {alias}": lines for alias, lines in clusters.items()} | flows
    for title, lines in titled.items():
        file.comment(title)
        for name, value in lines.items():
            file.put(name, value)


def _own_topic(mirror: _MirrorSpec) -> str:
    place = f"{mirror.source}->{mirror.target} sourceConnector"
    connector = _node(mirror.spec["sourceConnector"], place)
    config = _node(connector.get("config") or {}, f"{place}.config")
    return str(config.get("offsets.storage.topic") or "")


def _jaas(module: str, options: Mapping[str, str]) -> str:
    quoted = (f'{name}="{value}"' for name, value in options.items())
    return f"org.apache.kafka.common.security.{module} required {' '.join(quoted)};"


def _node(value: object, place: str) -> Node:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place} is not a map", remedy=f"give a {KIND} resource as YAML")
    return cast("Node", value)


def _nodes(value: object, place: str) -> Sequence[Node]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ConfigError(f"{place} is not a list", remedy=f"give a {KIND} resource as YAML")
    items = cast("list[object]", value)
    return [_node(it, f"{place}[{at}]") for at, it in enumerate(items)]


def _text(node: Node, name: str, place: str) -> str:
    value = node.get(name)
    if not isinstance(value, str | int) or not str(value):
        raise ConfigError(f"{place}: {name} is missing", remedy=f"set {name}")
    return str(value)
