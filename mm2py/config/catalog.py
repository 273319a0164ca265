"""The properties that a mirror maker file can contain, with their types.

Flow: a key of the file -> ``Scope`` (top level, cluster, flow) and name -> ``Known`` or None. Lint
asks it for types, for the right place of a key and for the nearest known name.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mm2py.config.client_options import CLIENT_KEYS, CLIENT_OPTIONS
from mm2py.config.definitions import ConnectorDefinition, Option, options_of
from mm2py.config.derivation import PROVIDER_PREFIX, WORKER_PREFIXES, flows_of, owners
from mm2py.config.framework import SourceFrameworkConfig
from mm2py.config.java_values import JavaType
from mm2py.config.old_names import modern_name
from mm2py.config.worker import ProcessConfig, RestOptions, WorkerConfig
from mm2py.types import ClusterAlias, FlowName

PROCESS_OPTIONS: Final[Mapping[str, Option]] = options_of(ProcessConfig)
"""Keys that the process itself reads, at top level."""

REST_OPTIONS: Final[Mapping[str, Option]] = options_of(RestOptions)
"""Keys of the REST server, at top level."""

_REST_PREFIXES: Final = ("listeners.https.", "admin.listeners.https.")

NEVER_WORKED: Final[Mapping[str, str]] = {
    "readahead.queue.capacity": "buffer.memory of the producer bounds what is read ahead",
    "heartbeats.topic.retention.ms": "the topic is compacted",
    "checkpoints.topic.retention.ms": "the topic is compacted",
    "offset.syncs.topic.retention.ms": "the topic is compacted",
}
"""Names of the design document of MirrorMaker 2 (KIP-382) that no release reads."""

DERIVED: Final[Mapping[str, str]] = {
    "name": "each connector of a flow has a name of its own",
    "connector.class": "each connector of a flow is of a class of its own, and copy.connector "
    "chooses what copies",
}
"""Names that a file has no say in."""

REMOVED: Final[Mapping[str, str]] = {
    "use.incremental.alter.configs": "configs are always altered incrementally",
    "add.source.alias.to.metrics": "metrics always carry the source alias",
    "auto.include.jmx.reporter": "metrics are exported by this product's own exporter",
    "internal.key.converter": "internal topics always use JSON",
    "internal.value.converter": "internal topics always use JSON",
}
"""Names that Java knew once."""

_FLOW_PREFIXES: Final = (
    "transforms.",
    "predicates.",
    "topic.creation.",
    "replication.policy.",
    "key.converter.",
    "value.converter.",
    "header.converter.",
    PROVIDER_PREFIX,
)
_CLIENT_PREFIXES: Final = tuple(
    f"{side}{kind}.{override}"
    for side in ("", "source.", "target.")
    for kind in ("consumer", "producer", "admin")
    for override in ("override.", "")
)


@dataclass(frozen=True, slots=True)
class Scope:
    """Scope of a key of the file: ``prefix`` is ``A.``, ``A->B.`` or empty."""

    kind: Literal["top", "cluster", "flow"]
    prefix: str
    name: str
    flow: FlowName | None = None


def client_part(name: str) -> tuple[str, str] | None:
    """Split ``consumer.fetch.max.bytes`` into its prefix and the client property."""
    for prefix in _CLIENT_PREFIXES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return prefix, name[len(prefix) :]
    return None


class Catalog:
    """All names that are known, for one set of connectors and clusters."""

    def __init__(
        self,
        definitions: Sequence[ConnectorDefinition],
        top_level_names: frozenset[str],
        clusters: Sequence[ClusterAlias],
    ) -> None:
        self.top_level_names = top_level_names
        self.connector_options: dict[str, Option] = {}
        self._readers: dict[str, list[str]] = {}
        self._connectors = len(definitions)
        for definition in definitions:
            for name, info in options_of(definition.model).items():
                self.connector_options.setdefault(name, info)
                self._readers.setdefault(name, []).append(definition.name)
        self.flow_options = dict(options_of(SourceFrameworkConfig)) | self.connector_options
        """Java hands those of source connectors to a connector only with a flow prefix."""
        self.worker_options = options_of(WorkerConfig)
        self._clusters = frozenset(clusters)

    def scope(self, key: str) -> Scope:
        """Return the scope of a key; the longest alias wins."""
        flow, name = max(
            flows_of(key, self._clusters),
            key=lambda it: (len(it[0].source), len(it[0].target)),
            default=(None, ""),
        )
        if flow is not None:
            return Scope("flow", f"{flow}.", name, flow)
        if not self.is_top_level(key):
            for alias, name in reversed([*owners(key, self._clusters)]):
                return Scope("cluster", f"{alias}.", name)
        return Scope("top", "", key)

    def is_top_level(self, name: str) -> bool:
        return (
            name in PROCESS_OPTIONS
            or name in REST_OPTIONS
            or name in CLIENT_KEYS
            or name in self.top_level_names
            or name.startswith((*_REST_PREFIXES, PROVIDER_PREFIX))
            or self._reaches_workers(name)
            or self.is_old_name(name)
        )

    def is_cluster_level(self, name: str) -> bool:
        """Whether the name has an effect under a cluster alias."""
        client = client_part(name)
        return (
            name in CLIENT_KEYS
            or name in self.worker_options
            or name == "forwarding.admin.class"
            or name.startswith(("replication.policy.", PROVIDER_PREFIX))
            or self._reaches_workers(name)
            or (client is not None and client[1] in CLIENT_OPTIONS)
        )

    def is_flow_level(self, name: str) -> bool:
        """Whether the name has an effect under ``A->B.``."""
        client = client_part(name)
        side = name.removeprefix("source.cluster.").removeprefix("target.cluster.")
        return (
            name in self.flow_options
            or name in self.top_level_names
            or name.startswith(_FLOW_PREFIXES)
            or self.is_old_name(name)
            or (side != name and side in CLIENT_KEYS)
            or (client is not None and client[1] in CLIENT_OPTIONS)
        )

    def readers(self, name: str) -> Sequence[str]:
        """Return the connectors that a name is for; none where all or none of them have it."""
        named = self._readers.get(name, ())
        return named if len(named) < self._connectors else ()

    def is_old_name(self, name: str) -> bool:
        """Whether the name is an old or mistaken one that works all the same."""
        return modern_name(name, "", self.connector_options) is not None

    def is_worker_only(self, name: str) -> bool:
        """Whether only the worker reads the name, so that it needs the target's alias."""
        return name in self.worker_options and name not in self.connector_options

    def java_type(self, scope: Scope) -> JavaType | None:
        """Return the type of a key's value, None if it is not known."""
        option = self.client_property(scope) or self.option(scope)
        return None if option is None else option.type

    def option(self, scope: Scope) -> Option | None:
        """Return the option of a process, worker or connector that a key sets, None for none."""
        modern = modern_name(scope.name, "", self.connector_options)
        name = scope.name if modern is None else modern.name
        top = PROCESS_OPTIONS.get(name) or REST_OPTIONS.get(name)
        if scope.kind == "top" and top is not None:
            return top
        option = None if scope.kind == "cluster" else self.flow_options.get(name)
        return option or self.worker_options.get(name)

    def client_property(self, scope: Scope) -> Option | None:
        """Return the client property that a key sets, None if it sets none."""
        name = scope.name
        if scope.kind != "top":
            client = client_part(name)
            if client is not None and name not in self.connector_options:
                return CLIENT_OPTIONS.get(client[1])
            if scope.kind == "flow":
                name = name.removeprefix("source.cluster.").removeprefix("target.cluster.")
        return CLIENT_OPTIONS.get(name) if name in CLIENT_KEYS else None

    def nearest(self, scope: Scope) -> str:
        """Return the known name that is most like the scope's, empty if none is near."""
        candidates = self._candidates(scope)
        lowered = scope.name.strip().lower().replace("_", ".")
        by_lower = {name.lower(): name for name in candidates}
        if lowered in by_lower:
            return by_lower[lowered]
        # A beginning (`emit.heartbeats`) or an end (`heartbeats.enabled`) of a switch, a lost `d`.
        for switch in (f"{lowered}.enabled", f"{lowered}d", f"emit.{lowered}"):
            if switch in by_lower:
                return by_lower[switch]
        parts = sorted(lowered.split("."))
        swapped = [name for name in candidates if sorted(name.split(".")) == parts]
        near = difflib.get_close_matches(lowered, list(by_lower), n=1, cutoff=0.8)
        if swapped:
            return swapped[0]
        return by_lower[near[0]] if near else ""

    def _candidates(self, scope: Scope) -> list[str]:
        if scope.kind == "top":
            return [
                *PROCESS_OPTIONS,
                *REST_OPTIONS,
                *self.top_level_names,
                *self.worker_options,
                *CLIENT_KEYS,
            ]
        if scope.kind == "flow":
            return list(self.flow_options)
        client = client_part(scope.name)
        if client is not None:
            return [client[0] + name for name in CLIENT_OPTIONS]
        return [*CLIENT_KEYS, *self.worker_options]

    def _reaches_workers(self, name: str) -> bool:
        if not name.startswith(WORKER_PREFIXES):
            return False
        # `task` and `worker` are prefixes of many words; their options are all known.
        return name in self.worker_options or not name.startswith(("task", "worker"))
