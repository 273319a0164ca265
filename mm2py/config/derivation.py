"""Java's derivation of cluster, worker and connector configs from the one properties file.

Flow: file entries -> ``cluster_props`` -> ``worker_config`` and
``connector_config``, every value with its origin. Pure functions; nothing is parsed, checked
or resolved except where Java resolves, in the worker config.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple, final

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER
from mm2py.config.client_options import CLIENT_KEYS
from mm2py.config.old_names import modern_name
from mm2py.config.worker import DEDICATED_DEFAULTS
from mm2py.types import ClusterAlias, FlowName

WORKER_PREFIXES: Final = (
    "offset.storage",
    "config.storage",
    "status.storage",
    "key.converter",
    "value.converter",
    "header.converter",
    "task",
    "worker",
    "replication.policy",
)
"""Top-level properties that reach every worker; others need the target's alias in front."""
PROVIDER_PREFIX: Final = "config.providers"
_KINDS: Final = ("producer", "consumer", "admin")


class Value(NamedTuple):
    """A property text and where it comes from: ``line`` and ``key`` of the file, or a rule."""

    text: str
    key: str = ""
    line: int = 0
    rule: str = ""

    @property
    def origin(self) -> str:
        if not self.line:
            return self.rule
        return f"line {self.line}: {self.key}" + (f" ({self.rule})" if self.rule else "")


Effective = dict[str, Value]


def texts(effective: Mapping[str, Value]) -> dict[str, str]:
    """Return the plain texts."""
    return {key: value.text for key, value in effective.items()}


@final
class Layout:
    """The keys of a file by whom they are for, found in one pass: a config of a flow reads its own
    part only.

    Args:
        raw: the file.
        clusters: the aliases.
        top_level_names: what the ConfigDefs of the connectors define; other top-level properties do
            not reach a connector.
    """

    def __init__(
        self, raw: Mapping[str, Value], clusters: Collection[str], top_level_names: Collection[str]
    ) -> None:
        aliases = frozenset(clusters)
        self.top_level_names = top_level_names
        self.clusters: dict[str, Effective] = {alias: {} for alias in clusters}
        self.flows: dict[FlowName, Effective] = {}
        """Those of which the file has a property, in its order."""
        self.clients: Effective = {}
        self.workers: Effective = {}
        self.providers: Effective = {}
        self.connectors: Effective = {}
        for key, value in raw.items():
            for alias, name in owners(key, aliases):
                self.clusters[alias][name] = value
            for flow, name in flows_of(key, aliases):
                self.flows.setdefault(flow, {})[name] = value
            self._take_top_level(key, value)

    def _take_top_level(self, key: str, value: Value) -> None:
        is_provider = key.startswith(PROVIDER_PREFIX)
        if key in CLIENT_KEYS:
            self.clients[key] = value
        if key.startswith(WORKER_PREFIXES):
            self.workers[key] = value
        if is_provider:
            self.providers[key] = value
        if (
            is_provider
            or key.startswith("replication.policy")
            or key in self.top_level_names
            or modern_name(key, "", self.top_level_names) is not None
        ):
            self.connectors[key] = value


def owners(key: str, aliases: Collection[str]) -> Iterator[tuple[ClusterAlias, str]]:
    """Return each alias that a key begins with, and the rest of it; the shortest alias first."""
    at = key.find(".")
    while 0 <= at < len(key) - 1:
        # An alias may have dots: ``a`` and ``a.b`` may both own ``a.b.producer.acks``.
        if key[:at] in aliases:
            yield ClusterAlias(key[:at]), key[at + 1 :]
        at = key.find(".", at + 1)


def flows_of(key: str, aliases: Collection[str]) -> Iterator[tuple[FlowName, str]]:
    """Return each pair of aliases that a key begins with (``A->B.``), and the rest of it; the
    shortest first."""
    at = key.find("->")
    while at >= 0:
        if key[:at] in aliases:
            for target, name in owners(key[at + 2 :], aliases):
                yield FlowName(ClusterAlias(key[:at]), target), name
        at = key.find("->", at + 1)


def cluster_props(layout: Layout, alias: str) -> Effective:
    """``MirrorMakerConfig.clusterProps``: own keys, then the client keys spread to all clients."""
    props, raw = dict(layout.clusters.get(alias, {})), layout.clients
    for name in CLIENT_KEYS:
        if name in props:
            for kind in _KINDS:
                # Own keys first: ``B.ssl.*`` reaches producer,
                # consumer and admin of B before the top level does.
                props.setdefault(f"{kind}.{name}", props[name])
    for name in CLIENT_KEYS:
        if name in raw:
            for kind in _KINDS:
                props.setdefault(f"{kind}.{name}", raw[name])
            props.setdefault(name, raw[name])
    return props


def worker_config(layout: Layout, flow: FlowName, resolve: Callable[[str], str]) -> Effective:
    """``MirrorMakerConfig.workerConfig``, with our defaults where the file is silent."""
    # The worker runs beside the target: its topics and its group are there.
    props = cluster_props(layout, flow.target) | layout.workers
    # Java resolves the worker's config here, and a connector's in the worker, at each start.
    props = {key: value._replace(text=resolve(value.text)) for key, value in props.items()}
    props |= layout.providers
    derived = {
        "client.id": str(flow),
        "group.id": f"{flow.source}-mm2",
        "offset.storage.topic": f"mm2-offsets.{flow.source}.internal",
        "status.storage.topic": f"mm2-status.{flow.source}.internal",
        "config.storage.topic": f"mm2-configs.{flow.source}.internal",
        "key.converter": BYTE_ARRAY_CONVERTER,
        "value.converter": BYTE_ARRAY_CONVERTER,
        "header.converter": BYTE_ARRAY_CONVERTER,
    }
    for key, text in derived.items():
        props.setdefault(key, Value(text, rule="derived from the flow"))
    for key, (ours, java) in DEDICATED_DEFAULTS.items():
        props.setdefault(key, Value(ours, rule=f"our default (Java: {java})"))
    return props


def connector_config(layout: Layout, flow: FlowName, connector: tuple[str, str]) -> Effective:
    """``MirrorMakerConfig.connectorBaseConfig`` of ``connector`` (name, Java class), unresolved.

    Name and class are not the file's to choose: in Java one class for all three connectors copies
    three times. Old names of options take the place of the new ones where those are absent.
    """
    props = layout.connectors | _cluster_part(layout, flow.source, "source")
    props |= _cluster_part(layout, flow.target, "target")
    for key, alias in (
        ("source.cluster.alias", flow.source),
        ("target.cluster.alias", flow.target),
    ):
        props.setdefault(key, Value(alias, rule="derived from the flow"))
    # After the clusters' parts: a flow's own line wins.
    props |= layout.flows.get(flow, {})
    for key, text in zip(("name", "connector.class"), connector, strict=True):
        props[key] = Value(text, rule="derived from the flow")
    props.setdefault("enabled", Value("false", rule="the flow does not set it"))
    return _modernised(props, layout.top_level_names)


def _cluster_part(layout: Layout, alias: ClusterAlias, side: str) -> Effective:
    return {
        # As connectorBaseConfig: ``source.producer.acks``,
        # but ``source.cluster.bootstrap.servers``.
        f"{side}.{key}" if key.startswith(_KINDS) else f"{side}.cluster.{key}": value
        for key, value in cluster_props(layout, alias).items()
    }


def _modernised(props: Effective, options: Collection[str]) -> Effective:
    result: Effective = {}
    old: Effective = {}
    for key, value in props.items():
        modern = modern_name(key, value.text, options)
        if modern is None:
            result[key] = value
        else:
            old[modern.name] = value._replace(text=modern.value, rule=f"taken as {modern.name}")
    for key, value in old.items():
        result.setdefault(key, value)
    return result
