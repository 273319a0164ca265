"""Java's derivation of cluster, worker and connector configs from the one properties file.

Flow: file entries -> ``cluster_props`` -> ``worker_config`` and
``connector_config``, every value with its origin. Pure functions; nothing is parsed, checked
or resolved except where Java resolves, in the worker config.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER
from mm2py.config.client_options import CLIENT_KEYS
from mm2py.config.client_properties import with_prefix
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
        """Where the value comes from, for a reader of ``config explain``."""
        if not self.line:
            return self.rule
        return f"line {self.line}: {self.key}" + (f" ({self.rule})" if self.rule else "")


Effective = dict[str, Value]


def texts(effective: Mapping[str, Value]) -> dict[str, str]:
    """Return the plain texts."""
    return {key: value.text for key, value in effective.items()}


def cluster_props(raw: Mapping[str, Value], alias: str) -> Effective:
    """``MirrorMakerConfig.clusterProps``: own keys, then the client keys spread to all clients."""
    props = with_prefix(raw, f"{alias}.")
    for name in CLIENT_KEYS:
        if name in props:
            for kind in _KINDS:
                props.setdefault(f"{kind}.{name}", props[name])
    for name in CLIENT_KEYS:
        if name in raw:
            for kind in _KINDS:
                props.setdefault(f"{kind}.{name}", raw[name])
            props.setdefault(name, raw[name])
    return props


def worker_config(
    raw: Mapping[str, Value], flow: FlowName, resolve: Callable[[str], str]
) -> Effective:
    """``MirrorMakerConfig.workerConfig``, with our defaults where the file is silent."""
    props = cluster_props(raw, flow.target)
    props |= {key: value for key, value in raw.items() if key.startswith(WORKER_PREFIXES)}
    props = {key: value._replace(text=resolve(value.text)) for key, value in props.items()}
    props |= {key: value for key, value in raw.items() if key.startswith(PROVIDER_PREFIX)}
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


def connector_config(
    raw: Mapping[str, Value],
    flow: FlowName,
    connector: tuple[str, str],
    top_level_names: Collection[str],
) -> Effective:
    """``MirrorMakerConfig.connectorBaseConfig`` of ``connector`` (name, Java class), unresolved.

    ``top_level_names`` are the names that the ConfigDefs of the connectors define; other top-level
    properties do not reach a connector. Old names of options then take the place of the new ones
    where those are absent.
    """
    props = {
        key: value
        for key, value in raw.items()
        if key in top_level_names or modern_name(key, "", top_level_names) is not None
    }
    props |= {
        key: value
        for key, value in raw.items()
        if key.startswith((PROVIDER_PREFIX, "replication.policy"))
    }
    props |= _cluster_part(raw, flow.source, "source")
    props |= _cluster_part(raw, flow.target, "target")
    name, java_class = connector
    for key, text in (
        ("name", name),
        ("connector.class", java_class),
        ("source.cluster.alias", flow.source),
        ("target.cluster.alias", flow.target),
    ):
        props.setdefault(key, Value(text, rule="derived from the flow"))
    props |= with_prefix(raw, f"{flow}.")
    props.setdefault("enabled", Value("false", rule="the flow does not set it"))
    return _modernised(props, top_level_names)


def _cluster_part(raw: Mapping[str, Value], alias: ClusterAlias, side: str) -> Effective:
    return {
        f"{side}.{key}" if key.startswith(_KINDS) else f"{side}.cluster.{key}": value
        for key, value in cluster_props(raw, alias).items()
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
