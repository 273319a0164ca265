"""The mirror maker file: clusters, flows, and the configs that follow from it.

Flow: ``properties`` -> normalised entries -> ``derivation`` -> configs of workers and connectors.
Building never fails; ``load`` refuses a file that cannot be run. What a line means differently from
``lint`` reports what it seems to mean. Knows no connector: their options come as an argument.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER, COPY_CONNECTORS, canonical_class
from mm2py.config.client_options import CLIENT_KEYS
from mm2py.config.clients import parse_bootstrap_servers
from mm2py.config.definitions import ConnectorDefinition, options_of
from mm2py.config.derivation import (
    PROVIDER_PREFIX,
    Effective,
    Layout,
    Value,
    connector_config,
    flows_of,
    texts,
    worker_config,
)
from mm2py.config.findings import LintFinding, Severity, first_error
from mm2py.config.framework import converter_problem
from mm2py.config.java_values import parse_boolean_leniently, parse_list
from mm2py.config.properties import PropertiesFile, load
from mm2py.config.providers import Providers, placeholders
from mm2py.errors import ConfigError, UsageError
from mm2py.types import ClusterAlias, FlowName

HEARTBEATS_SWITCH: Final = "emit.heartbeats.enabled"
COPY_CONNECTOR: Final = "copy.connector"
CONSUMER_OVERRIDE: Final = "consumer.override."
EMIT_CHECKPOINTS: Final = "emit.checkpoints.enabled"
_SINK: Final = "sink"
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# An alias becomes the first part of topic names and a part of group and client ids.
_ALIAS: Final = re.compile(r"[a-zA-Z0-9._-]+")
_CLASSES: Final = (
    "replication.policy.class",
    "topic.filter.class",
    "group.filter.class",
    "config.property.filter.class",
    "forwarding.admin.class",
    "key.converter",
    "value.converter",
    "header.converter",
)

_ALIASES: Final = re.compile(r"[a-zA-Z0-9._,\s-]+")
_WORD: Final = re.compile(r"true|false|source|sink", re.IGNORECASE)
_FLOW_SWITCH: Final = re.compile(r".+->[^.]+\.enabled|(.+->[^.]+\.)?emit\.heartbeats\.enabled")
"""Switches of a flow, which Java reads untrimmed; connectors trim theirs."""


@dataclass(frozen=True, slots=True)
class FlowConfigs:
    """Everything that is derived for one flow, with origins; for ``config explain`` and lint."""

    flow: FlowName
    enabled: bool
    worker: Effective
    connectors: Mapping[str, Effective]

    @property
    def copy(self) -> Effective:
        """The config of the connector that copies records."""
        return next(
            connector
            for connector in self.connectors.values()
            if connector["connector.class"].text in COPY_CONNECTORS
        )


def option_names(definitions: Sequence[ConnectorDefinition]) -> frozenset[str]:
    """Return the names that the connectors' ConfigDefs define: what top level may hand them."""
    names = set(CLIENT_KEYS) - {"bootstrap.servers"}
    for definition in definitions:
        names |= set(options_of(definition.model)) - set(definition.extra_names)
    return frozenset(names)


class MirrorMakerConfig:
    """One properties file as MirrorMaker 2 understands it."""

    def __init__(
        self,
        file: PropertiesFile,
        definitions: Sequence[ConnectorDefinition],
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.file = file
        self.path: Final = file.path
        self.definitions = tuple(definitions)
        self.option_names = option_names(definitions)
        raw, findings = normalised(file)
        self.raw: Mapping[str, Value] = raw
        try:
            self.providers = Providers.of(
                texts(self.raw), os.environ if environ is None else environ
            )
        except ConfigError as error:
            self.providers = Providers.of({}, {})
            findings.append(self._provider_finding(error))
        # Before the layout: aliases decide which keys are prefixes of a cluster or a flow.
        self._put_in(raw, _ALIASES, lambda key: key == "clusters")
        self.clusters = tuple(
            ClusterAlias(name) for name in dict.fromkeys(parse_list(self._text("clusters"))) if name
        )
        self._put_in(raw, _WORD, partial(_is_read_here, frozenset(self.clusters)))
        self.layout = Layout(self.raw, self.clusters, self.option_names)
        self.unreadable = False
        """Whether a config provider cannot read what a ``${...}`` names; the finding names it."""
        self.findings = [*findings, *self._structure()]
        """Findings of loading: what was normalised, and what refuses the start."""

    @classmethod
    def load(
        cls,
        path: Path | str,
        definitions: Sequence[ConnectorDefinition],
        *,
        environ: Mapping[str, str] | None = None,
    ) -> "MirrorMakerConfig":
        """Read a file and refuse what cannot be run at all; ``ConfigError``: unreadable file, no
        clusters, no bootstrap servers, unresolved ``${...}``."""
        config = cls(load(path), definitions, environ=environ)
        error = first_error(config.findings)
        if error is not None:
            raise error.as_error(config.path)
        return config

    @property
    def secrets(self) -> frozenset[str]:
        """Texts that config providers put in so far; logs mask them."""
        return self.providers.secrets

    @cached_property
    def pairs(self) -> tuple[FlowName, ...]:
        """Every ordered pair of clusters, whether or not it is a flow; their number is the square
        of that of the clusters."""
        return tuple(
            FlowName(source, target)
            for source in self.clusters
            for target in self.clusters
            if source != target
        )

    @cached_property
    def named_pairs(self) -> tuple[FlowName, ...]:
        """The pairs of which the file has a property, in the order of ``pairs``."""
        return self._ordered(flow for flow in self.layout.flows if flow.source != flow.target)

    @cached_property
    def enabled_pairs(self) -> tuple[FlowName, ...]:
        """The pairs that replicate topics, in the order of ``pairs``."""
        return tuple(filter(self.flow_enabled, self.named_pairs))

    @cached_property
    def _connected(self) -> frozenset[FlowName]:
        """Both directions of each pair of clusters of which one is enabled."""
        reverse = (FlowName(it.target, it.source) for it in self.enabled_pairs)
        return frozenset((*self.enabled_pairs, *reverse))

    @cached_property
    def telling_pairs(self) -> tuple[FlowName, ...]:
        """Pairs that between them read every property: the named ones, and of the others as many as
        have each cluster on each side."""
        pairs = dict.fromkeys(self.named_pairs)
        sources, targets = {it.source for it in pairs}, {it.target for it in pairs}
        for alias, other in pairwise((*self.clusters, *self.clusters[:1])):
            if other != alias and not (alias in sources and other in targets):
                pairs[FlowName(alias, other)] = None
        return tuple(pairs)

    def flow_enabled(self, flow: FlowName) -> bool:
        value = self.raw.get(f"{flow}.enabled")
        # Without a switch a flow is off, as in MirrorMakerConfig.clusterPairs.
        return value is not None and parse_boolean_leniently(value.text, absent=False)

    @cached_property
    def copies_by_group(self) -> bool:
        """Whether a flow is copied by MirrorSink."""
        return any(self._copies(flow) == _SINK for flow in self.telling_pairs)

    def heartbeats_enabled(self, flow: FlowName) -> bool:
        """Whether heartbeats alone keep a worker for the flow: true by default for both directions
        of a pair of which one is enabled.

        Java starts every ordered pair; the heartbeats of clusters that no flow connects say nothing
        of any flow, and their number is the square of that of the clusters. A pair's own switch
        starts it all the same, and a file that enables nothing runs as in Java.
        """
        own = self.raw.get(f"{flow}.{HEARTBEATS_SWITCH}")
        value = own or self.raw.get(HEARTBEATS_SWITCH)
        if value is not None and not parse_boolean_leniently(value.text, absent=True):
            return False
        return own is not None or not self.enabled_pairs or flow in self._connected

    def flows(self, targets: Collection[str] | None = None) -> tuple[FlowName, ...]:
        """Return the flows that get a worker, optionally only those to ``targets``.

        Raises:
            UsageError: a target is no cluster of the file.
            ConfigError: no flow is left.
        """
        for target in targets or ():
            if target not in self.clusters:
                raise UsageError(
                    f"--clusters {target}: {self.path} has no such cluster",
                    remedy=f"its clusters are {', '.join(self.clusters)}",
                )
        candidates = self.pairs
        if self.enabled_pairs:
            candidates = self._ordered(self._connected.union(self.named_pairs))
        flows = tuple(
            flow
            for flow in candidates
            if (not targets or flow.target in targets)
            and (self.flow_enabled(flow) or self.heartbeats_enabled(flow))
        )
        if not flows:
            raise ConfigError(
                f"{self.path}: no replication flows"
                + (f" to {', '.join(sorted(targets))}" if targets else ""),
                remedy="name at least two clusters and set <source>-><target>.enabled=true",
            )
        return flows

    def _ordered(self, flows: Iterable[FlowName]) -> tuple[FlowName, ...]:
        rank = {alias: number for number, alias in enumerate(self.clusters)}
        return tuple(sorted(flows, key=lambda it: (rank[it.source], rank[it.target])))

    def worker_config(self, flow: FlowName) -> dict[str, str]:
        """Return the worker config of a flow, placeholders resolved."""
        return texts(self._worker(flow))

    def connector_configs(self, flow: FlowName) -> dict[str, dict[str, str]]:
        """Return the connector configs of a flow by connector name, placeholders kept."""
        return {name: texts(config) for name, config in self._connectors(flow).items()}

    def resolved(self, config: Mapping[str, str]) -> dict[str, str]:
        """Replace the placeholders of a config; ``ConfigError``: one cannot be resolved."""
        result: dict[str, str] = {}
        for key, text in config.items():
            result[key], problem = self.providers.resolve_or_explain(text)
            if problem and not key.startswith(PROVIDER_PREFIX):
                raise ConfigError(f"{key}: {problem}", remedy=self.providers.remedy(text))
        return result

    def flow_configs(self, flow: FlowName) -> FlowConfigs:
        """Return everything derived for a flow, with the origin of every value."""
        return FlowConfigs(
            flow, self.flow_enabled(flow), self._worker(flow), self._connectors(flow)
        )

    def _worker(self, flow: FlowName) -> Effective:
        return worker_config(self.layout, flow, self.providers.resolve_text)

    def _connectors(self, flow: FlowName) -> dict[str, Effective]:
        copies = self._copies(flow)
        connectors: dict[str, Effective] = {}
        for definition in self.definitions:
            if definition.copies not in ("", copies):
                continue
            props = connector_config(self.layout, flow, (definition.name, definition.java_class))
            if copies == _SINK and EMIT_CHECKPOINTS in options_of(definition.model):
                # Nothing is known of the copies' offsets, so
                # there is nothing to translate groups with.
                props["enabled"] = Value("false", rule=f"{COPY_CONNECTOR}={_SINK}")
            if definition.copies == _SINK:
                # The flows of one source have connectors of
                # one name: each needs a group of its own.
                group = Value(f"connect-{flow}.{definition.name}", rule="derived from the flow")
                props.setdefault(f"{CONSUMER_OVERRIDE}group.id", group)
            connectors[definition.name] = props
        return connectors

    def _copies(self, flow: FlowName) -> str:
        """Return which connector copies the flow; the option's own check refuses a wrong word."""
        chosen = self.raw.get(f"{flow}.{COPY_CONNECTOR}") or self.raw.get(COPY_CONNECTOR)
        is_sink = chosen is not None and chosen.text.strip().lower() == _SINK
        return _SINK if is_sink else "source"

    def _put_in(
        self, raw: dict[str, Value], form: re.Pattern[str], chosen: Callable[[str], bool]
    ) -> None:
        """Replace the placeholders of what this class reads itself, as Java's driver does, where
        the text has its form and is no secret."""
        for key, value in raw.items():
            if placeholders(value.text) and chosen(key):
                with suppress(ConfigError):  # reported by `_unresolved`
                    text = self.providers.plain(value.text).strip()
                    if form.fullmatch(text):
                        raw[key] = value._replace(text=text)

    def _text(self, key: str) -> str:
        value = self.raw.get(key)
        return "" if value is None else value.text

    def _structure(self) -> list[LintFinding]:
        if not self.clusters:
            return [self._no_clusters()]
        findings = [*self._named_twice(), *self._bad_aliases()]
        findings += [*self._bad_protocol(), *self._unresolved()]
        for alias in self.clusters:
            findings += self._bad_bootstrap(alias)
        return findings

    def _no_clusters(self) -> LintFinding:
        entry = self.raw.get("clusters")
        other = next((k for k in self.raw if k.strip().lower() == "clusters"), "")
        remedy = "name the clusters, for example clusters = A, B"
        if entry is None and other:
            remedy = f"write clusters instead of {other!r}"
        problem = "is missing" if entry is None else "names no cluster"
        line = entry.line if entry else self.raw[other].line if other else 0
        return LintFinding(Severity.ERROR, line, "clusters", problem, remedy)

    def _named_twice(self) -> list[LintFinding]:
        names = parse_list(self._text("clusters"))
        entry, remedy = self.raw["clusters"], "name each cluster once, for example clusters = A, B"
        return [
            LintFinding.error(entry, f"names {it} twice", remedy)
            for it in self.clusters
            if names.count(it) > 1
        ]

    def _bad_aliases(self) -> Iterator[LintFinding]:
        for alias in self.clusters:
            if not _ALIAS.fullmatch(alias):
                remedy = (
                    "use letters, digits, '.', '_' and '-': the alias becomes a part of topic names"
                )
                if "<" in alias:
                    remedy = "replace the placeholder by a name"
                yield LintFinding.error(
                    self.raw["clusters"], f"{alias!r} is no cluster alias", remedy
                )

    def _bad_protocol(self) -> Iterator[LintFinding]:
        value = self.raw.get("security.protocol")
        if value is None or value.text.upper() in _PROTOCOLS or placeholders(value.text):
            return
        message = f"{value.text!r} is no security protocol"
        yield LintFinding.error(value, message, f"use one of {', '.join(_PROTOCOLS)}")

    def _unresolved(self) -> Iterator[LintFinding]:
        for key, value in self.raw.items():
            if key.startswith(PROVIDER_PREFIX) or not placeholders(value.text):
                continue
            try:
                _, problem = self.providers.resolve_or_explain(value.text)
                remedy = self.providers.remedy(value.text)
            except ConfigError as error:
                problem, remedy = error.message, error.remedy
                self.unreadable = True
            if problem:
                yield LintFinding.error(value, problem, remedy)

    def _bad_bootstrap(self, alias: str) -> Iterator[LintFinding]:
        name = f"{alias}.bootstrap.servers"
        # As MirrorMakerConfig.clusterProps: a key without an alias is every cluster's default.
        value = self.raw.get(name) or self.raw.get("bootstrap.servers")
        if value is None:
            yield LintFinding(
                Severity.ERROR,
                self.raw["clusters"].line,
                name,
                f"is missing; clusters names {alias!r}",
                f"set {name} = host1:9092,host2:9092",
            )
            return
        try:
            text = self.providers.resolve_text(value.text)
            if not placeholders(text):
                parse_bootstrap_servers(text)
        except ConfigError as error:
            yield LintFinding.error(value, error.message, error.remedy)

    def _provider_finding(self, error: ConfigError) -> LintFinding:
        key = re.split(r"[= ]", error.message, maxsplit=1)[0]
        value = self.raw.get(key) or self.raw.get(PROVIDER_PREFIX)
        message = error.message[len(key) :].lstrip("=: ") or "is missing"
        return LintFinding(Severity.ERROR, value.line if value else 0, key, message, error.remedy)


# ---- values that are read otherwise than Java reads them


def normalised(file: PropertiesFile) -> tuple[dict[str, Value], list[LintFinding]]:
    """Return the entries by key, and a finding for each of the few values that are read otherwise
    than Java reads them.

    Switches are trimmed, because Java's flow evaluation takes ``true`` with a blank after it for
    false and would copy nothing; names of built-in classes become Java's. Everything else keeps its
    text. Old option names are handled where the configs are derived, since there the new name wins.
    """
    raw: dict[str, Value] = {}
    findings: list[LintFinding] = []
    for entry in file.entries:
        text = entry.value
        if is_switch(entry.key) and text != text.strip():
            text = text.strip()
            if _FLOW_SWITCH.fullmatch(entry.key):
                message = (
                    f"has a blank around {text!r}, which is left out here; Java's flow switches "
                    "take it for false"
                )
                findings.append(LintFinding.warning(entry, message, "remove the blank"))
        elif is_unusable_converter(entry.key, text):
            text = BYTE_ARRAY_CONVERTER  # as lint says of it
        elif is_class_property(entry.key) and canonical_class(text) != text:
            text = canonical_class(text)
            if text != entry.value.strip():
                findings.append(LintFinding.info(entry, f"is taken as {text}"))
        raw[entry.key] = Value(text, entry.key, entry.line)
    return raw, findings


def _is_read_here(aliases: Collection[str], key: str) -> bool:
    """Whether the driver itself reads this key, before there is a connector."""
    names = (HEARTBEATS_SWITCH, COPY_CONNECTOR)
    return key in names or any(name in ("enabled", *names) for _, name in flows_of(key, aliases))


def is_switch(key: str) -> bool:
    """Whether the driver itself reads this key as a flow switch."""
    return key == "enabled" or key.endswith(".enabled")


def is_unusable_converter(key: str, text: str) -> bool:
    """Whether a property names a converter that is none here: in a mirror's file bytes stay bytes,
    heartbeats and checkpoints too."""
    role = next((it for it in ("key", "value", "header") if key.endswith(f"{it}.converter")), "")
    return bool(role) and not placeholders(text) and converter_problem(text.strip(), role) != ""


def is_class_property(key: str) -> bool:
    """Whether the value is a class that has a Java name and one of ours."""
    return key.endswith(_CLASSES) and not key.startswith("config.providers")
