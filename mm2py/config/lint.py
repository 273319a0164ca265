"""Findings about a mirror maker file, each with its line: what ``mm2py lint`` prints.

Flow: file -> ``MirrorMakerConfig`` -> findings about keys, values, client properties and the
configs that follow from them. ``load_checked`` is how a process starts: it refuses the first error
and hands the rest out to be logged.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mm2py.config.catalog import Catalog, Scope
from mm2py.config.class_names import canonical_class, is_foreign_java_class
from mm2py.config.client_options import CLIENT_KEYS, MAX_IN_FLIGHT
from mm2py.config.client_properties import effective_client_properties, with_prefix
from mm2py.config.clients import check_security
from mm2py.config.definitions import (
    ConfigModel,
    ConnectorDefinition,
    Effect,
    Option,
    Problem,
    check_config,
    options_of,
    value_problem,
)
from mm2py.config.derivation import Effective, Value, cluster_props, texts
from mm2py.config.exactly_once import contradictions
from mm2py.config.findings import LintFinding, Severity, first_error, in_order
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import JavaType, parse_list
from mm2py.config.lint_keys import key_findings
from mm2py.config.mirror_maker import (
    FlowConfigs,
    MirrorMakerConfig,
    is_class_property,
    is_switch,
    is_unusable_converter,
)
from mm2py.config.properties import Property, load
from mm2py.config.providers import placeholders
from mm2py.config.secret_names import holds_a_secret
from mm2py.config.worker import ProcessConfig, RestOptions, WorkerConfig
from mm2py.errors import ConfigError
from mm2py.types import FlowName

_WORD: Final = re.compile(r"\w{4,}")
_SAFE_ACKS: Final = ("all", "-1")


def lint(
    path: Path | str,
    definitions: Sequence[ConnectorDefinition],
    *,
    environ: Mapping[str, str] | None = None,
) -> list[LintFinding]:
    """Return the findings of a file in file order; ``ConfigError``: the file cannot be read as a
    properties file at all."""
    return findings_of(MirrorMakerConfig(load(path), definitions, environ=environ))


def load_checked(
    path: Path | str,
    definitions: Sequence[ConnectorDefinition],
    *,
    environ: Mapping[str, str] | None = None,
) -> tuple[MirrorMakerConfig, list[LintFinding]]:
    """Read a file for a start: the config, and the findings to log once each. ``ConfigError``: the
    first error, with its file line and what to do."""
    config = MirrorMakerConfig(load(path), definitions, environ=environ)
    findings = findings_of(config)
    error = first_error(findings)
    if error is not None:
        raise error.as_error(config.path)
    return config, findings


def findings_of(config: MirrorMakerConfig) -> list[LintFinding]:
    """Return the findings of a file that is read already, as ``lint``."""
    catalog = Catalog(config.definitions, config.option_names, config.clusters)
    return in_order([_without_secrets(config, it) for it in _all_findings(config, catalog)])


def _without_secrets(config: MirrorMakerConfig, finding: LintFinding) -> LintFinding:
    """Return a finding without any word of a value that a config provider supplied: it may be a
    secret."""
    value = config.raw.get(finding.key)
    if value is None or not placeholders(value.text):
        return finding
    try:
        resolved = config.providers.resolve_text(value.text)
    except ConfigError:
        return finding  # it is about the provider
    # What the file has in clear is no secret; words below four letters are too common to mask.
    own = {"", value.text, value.text.strip(), *_WORD.findall(value.text)}
    words = {resolved, resolved.strip(), *_WORD.findall(resolved)} - own
    if not words:
        return finding
    ordered = sorted(words, key=len, reverse=True)
    choices = "|".join(map(re.escape, ordered))
    pattern = re.compile(rf"(?<!\w)(?:{choices})(?!\w)", re.IGNORECASE)
    message, remedy = (pattern.sub("********", it) for it in (finding.message, finding.remedy))
    return LintFinding(finding.severity, finding.line, finding.key, message, remedy)


def _all_findings(config: MirrorMakerConfig, catalog: Catalog) -> list[LintFinding]:
    findings = list(config.findings)
    if not config.clusters:
        return findings + _value_findings(config, catalog)
    findings += key_findings(config, catalog)
    if config.unreadable:
        return findings  # each check that reads the values would fail with it again
    findings += _value_findings(config, catalog)
    findings += _effect_findings(config, catalog)
    findings += security_findings(config)
    findings += _process_findings(config)
    told = {(f.line, f.key) for f in findings if f.severity is Severity.ERROR}
    for pair in config.telling_pairs:
        flow = config.flow_configs(pair)
        # One error per line, however many flows it reaches.
        findings += [f for f in _flow_findings(config, flow) if (f.line, f.key) not in told]
    of_several = (*_shared(config), *_one_alias(config))
    return [*findings, *_aliases(config), *_exactly_once(config), *of_several]


def _flow_findings(config: MirrorMakerConfig, flow: FlowConfigs) -> list[LintFinding]:
    findings = _model_findings(config, flow, WorkerConfig, flow.worker)
    for definition in config.definitions:
        effective = flow.connectors.get(definition.name)
        if effective is None:
            continue
        findings += _model_findings(config, flow, definition.model, effective)
        if definition.findings is not None:
            props = config.providers.resolve(texts(effective))
            findings += _findings(flow, effective, definition.findings(props))
    if flow.enabled:
        findings += _read_by_the_other(config, flow)
        findings += _topic_creation(flow)
    # Contradictions can be checked only where each value is right by itself.
    if flow.enabled and all(finding.severity is not Severity.ERROR for finding in findings):
        for effective in flow.connectors.values():
            findings += _contradictions(config, flow, effective)
    return findings


def _topic_creation(flow: FlowConfigs) -> Iterator[LintFinding]:
    """Name the first rule for topics that a worker would create (KIP-158)."""
    rules = [it for name, it in flow.copy.items() if name.startswith("topic.creation.")]
    for value in rules[:1]:
        yield LintFinding.warning(
            value,
            "topic.creation.* has no effect: copies have the partitions of their source, topics "
            "that a transform names are created by the target's brokers",
            "create such topics before, or set num.partitions and default.replication.factor of "
            "the target's brokers",
        )


def _read_by_the_other(config: MirrorMakerConfig, flow: FlowConfigs) -> list[LintFinding]:
    """Name what is set for the flow and read only by the connector that does not copy it
    (``copy.connector``)."""
    read: set[str] = set()
    others: set[str] = set()
    for definition in config.definitions:
        (read if definition.name in flow.connectors else others).update(
            options_of(definition.model)
        )
    message = f"has no effect: {flow.copy['name'].text} copies the flow and does not read it"
    return [
        LintFinding.warning(value, message)
        for name, value in config.layout.flows.get(flow.flow, {}).items()
        if name in others - read
    ]


def _contradictions(
    config: MirrorMakerConfig, flow: FlowConfigs, connector: Effective
) -> list[LintFinding]:
    resolve = config.providers.resolve
    try:
        problems = contradictions(resolve(texts(connector)), resolve(texts(flow.worker)))
    except ConfigError:
        return []  # a finding already, or a placeholder that is not resolved
    return _findings(flow, connector, _with_severity(problems))


def _model_findings(
    config: MirrorMakerConfig, flow: FlowConfigs, model: type[ConfigModel], effective: Effective
) -> list[LintFinding]:
    props = config.providers.resolve(texts(effective))
    problems = [
        problem
        for problem in check_config(model, props)
        # An unresolved value is a finding already, missing servers are one under their alias.
        if not placeholders(props.get(problem.name, "")) and problem.name != "bootstrap.servers"
    ]
    return _findings(flow, effective, _with_severity(problems))


def _with_severity(problems: Iterable[Problem]) -> Iterator[tuple[Severity, Problem]]:
    for problem in problems:
        # As in Java the dedicated mode leaves a refused checkpoint connector out and runs on.
        yield Severity.WARNING if problem.leaves_out else Severity.ERROR, problem


def _findings(
    flow: FlowConfigs, effective: Effective, problems: Iterable[tuple[Severity, Problem]]
) -> list[LintFinding]:
    findings: list[LintFinding] = []
    for severity, problem in problems:
        value = effective.get(problem.name, Value(""))
        # A placeholder's value may be a secret: it is not shown, the file's line is named.
        secret = problem.value is None or placeholders(value.text)
        shown = "" if secret else f"{problem.value!r} "
        key = value.key or f"{flow.flow}.{problem.name}"
        message = f"{shown}{problem.message}"
        findings.append(LintFinding(severity, value.line, key, message, problem.remedy))
    return findings


def _process_findings(config: MirrorMakerConfig) -> list[LintFinding]:
    props = config.providers.resolve(texts(config.raw))
    problems = [*check_config(ProcessConfig, props), *check_config(RestOptions, props)]
    return [
        LintFinding.error(config.raw[it.name], it.message, it.remedy or f"correct {it.name}")
        for it in problems
        if not placeholders(props[it.name])
    ]


def _effect_findings(config: MirrorMakerConfig, catalog: Catalog) -> list[LintFinding]:
    findings: list[LintFinding] = []
    for key, value in config.raw.items():
        scope = catalog.scope(key)
        entry = catalog.client_property(scope)
        if entry is None:
            option = catalog.option(scope)  # a wrong value of it is found by its model
            if option is not None and option.effect is Effect.WITHOUT_EFFECT:
                findings.append(LintFinding.info(value, f"has no effect: {option.doc}"))
            continue
        text = config.providers.resolve_text(value.text)
        problem = value_problem(entry, text)
        if problem and not placeholders(text) and entry.name != "bootstrap.servers":
            shown = "" if text != value.text else f"{value.text!r} "
            findings.append(LintFinding.error(value, f"{shown}{problem}", f"correct {key}"))
            continue
        if entry.effect is Effect.WITHOUT_EFFECT and config.copies_by_group:
            continue  # a group's clients are librdkafka's, which knows what the mirror's own does not need
        findings += [
            LintFinding(severity, value.line, key, message)
            for severity, message in _say(entry, text, by_group=config.copies_by_group)
        ]
    return findings


def _say(entry: Option, text: str, *, by_group: bool) -> list[tuple[Severity, str]]:
    if entry.effect is Effect.REFUSED:
        return [(Severity.ERROR, f"is refused: {entry.doc}")]
    if entry.effect is Effect.WITHOUT_EFFECT:
        return [(Severity.INFO, f"has no effect: {entry.doc}")]
    if (weaker := _WEAKER.get(entry.name)) is not None:
        value, message = text.strip(), weaker.by_group if by_group else weaker.ours
        return [] if weaker.is_safe(value) else [(Severity.WARNING, message.format(value))]
    if entry.effect is Effect.WARNED:
        return [(Severity.WARNING, f"has no effect: {entry.doc}")]
    return []


class _Weaker(NamedTuple):
    """A property of producers by which records may be lost, doubled or reordered."""

    is_safe: Callable[[str], bool]
    ours: str
    """What the mirror's own producer does with another value."""
    by_group: str
    """What MirrorSink's does: librdkafka obeys."""


def _is_true(text: str) -> bool:
    return text.lower() == "true"


def _keeps_order(in_flight: str) -> bool:
    return int(in_flight) <= MAX_IN_FLIGHT


_WEAKER: Final[Mapping[str, _Weaker]] = {
    "acks": _Weaker(
        _SAFE_ACKS.__contains__,
        "acks={} is taken as all: less loses records",
        "acks={} is obeyed by MirrorSink: a leader that fails loses records that count as copied",
    ),
    "enable.idempotence": _Weaker(
        _is_true,
        "idempotence stays on: a retry without it doubles or reorders records",
        "is obeyed by MirrorSink: a retry doubles or reorders records",
    ),
    "max.in.flight.requests.per.connection": _Weaker(
        _keeps_order,
        f"{{}} is taken as {MAX_IN_FLIGHT}, the most that keeps the order of retries",
        "{} is obeyed by MirrorSink, without idempotence: a retry doubles or reorders records",
    ),
}


def _exactly_once(config: MirrorMakerConfig) -> list[LintFinding]:
    """Warn of exactly-once support that reaches less than it seems to."""
    findings: list[LintFinding] = []
    enabled = config.enabled_pairs
    for target in config.clusters:
        value = config.raw.get(f"{target}.exactly.once.source.support")
        if value is None or value.text.strip().lower() != "enabled":
            continue
        writers = [it for it in enabled if it.target == target]
        if not writers and any(it.source == target for it in enabled):
            message = f"has no effect: flows read {target}, none that is enabled writes it"
            findings.append(LintFinding.warning(value, message, "set it for the target"))
        for flow in writers:
            source = config.providers.resolve(texts(config.flow_configs(flow).copy))
            level = effective_client_properties(source, "source", "consumer").get("isolation.level")
            if level is not None and level.strip().lower() != "read_committed":
                message = (
                    f"records of aborted transactions of {flow.source} are copied by {flow}, "
                    f"once each: isolation.level={level}"
                )
                remedy = f"remove it, or set {flow.source}.consumer.isolation.level=read_committed"
                findings.append(LintFinding.warning(value, message, remedy))
    return findings


def _aliases(config: MirrorMakerConfig) -> list[LintFinding]:
    separator = config.raw.get("replication.policy.separator", Value(".")).text
    return [
        LintFinding.warning(
            config.raw["clusters"],
            f"alias {alias!r} contains the separator {separator!r}: the source of its remote "
            "topics cannot be derived from their names",
            "choose another alias or replication.policy.separator",
        )
        for alias in config.clusters
        if separator and separator in alias
    ]


_OF_ONE_FLOW: Final = ("group.id", "config.storage.topic", "status.storage.topic")
"""Worker properties that no two flows may have in common: their connectors have the same names.
Positions are kept by the source's alias."""


def _shared(config: MirrorMakerConfig) -> Iterator[LintFinding]:
    """Refuse a group or a topic of several flows: they run each other's connectors, and all but the
    one that wrote its config last copy nothing."""
    layout = config.layout
    # ``workerConfig``: a property at top level overrides the target's own.
    given = {
        (target, name): value
        for target in config.clusters
        for name in _OF_ONE_FLOW
        if (value := layout.workers.get(name) or layout.clusters[target].get(name)) is not None
    }
    if not given:
        return
    try:
        flows = config.flows()
    except ConfigError:
        return  # the start names it
    for (target, name), value in given.items():
        to = [str(it) for it in flows if it.target == target]
        if len(to) > 1:
            yield LintFinding.error(
                value,
                f"flows {', '.join(to)} would have one {name} on {target}: each runs the "
                "connectors of the one that wrote them last, and the others copy nothing",
                "remove it: each flow has its own by default",
            )


def _one_alias(config: MirrorMakerConfig) -> Iterator[LintFinding]:
    """Warn of flows to one target whose copies and checkpoints have the alias of one source."""
    if not any(key.endswith(_SOURCE_ALIAS) for key in config.raw):
        return  # each has its own
    flows: dict[tuple[str, str], dict[FlowName, Value]] = {}
    for flow in config.enabled_pairs:
        value = config.flow_configs(flow).copy[_SOURCE_ALIAS]
        flows.setdefault((flow.target, value.text), {})[flow] = value
    for (_, alias), values in flows.items():
        if len(values) > 1:
            yield LintFinding.warning(
                max(values.values(), key=lambda it: it.line),  # a derived one has no line
                f"flows {', '.join(map(str, values))} have one {_SOURCE_ALIAS}, {alias!r}: they "
                "write into one topic of checkpoints, where the last one counts, and topics of one "
                "name are copied into one",
                "remove it, or set emit.checkpoints.enabled=false for all of them but one",
            )


_SOURCE_ALIAS: Final = "source.cluster.alias"
_CLIENTS: Final = ("", "consumer.", "producer.", "admin.")


def security_findings(config: MirrorMakerConfig) -> list[LintFinding]:
    """Return an error for each login or store that cannot be used; one per line."""
    findings: dict[tuple[int, str], LintFinding] = {}
    for alias in config.clusters:
        props = cluster_props(config.layout, alias)
        resolved = config.providers.resolve(texts(props))
        for prefix in _CLIENTS:
            own = with_prefix(resolved, prefix) if prefix else resolved
            finding = _login_finding(alias, prefix, own, props)
            if finding is not None:
                findings.setdefault((finding.line, finding.key), finding)
    return list(findings.values())


def _login_finding(
    alias: str, prefix: str, own: Mapping[str, str], props: Mapping[str, Value]
) -> LintFinding | None:
    security = {key: own[key] for key in CLIENT_KEYS if key in own}
    if any(placeholders(text) for text in security.values()):
        return None  # reported as unresolved
    try:
        check_security(security)
    except ConfigError as error:
        # Every refusal begins with the property that it is about; a missing one has no line.
        name = error.message.split(maxsplit=1)[0].rstrip(":")
        cause = props.get(f"{prefix}{name}") or props.get(f"{prefix}security.protocol", Value(""))
        key = cause.key or f"{alias}.{prefix}{name}"
        return LintFinding(Severity.ERROR, cause.line, key, error.message, error.remedy)
    return None


# ---- the text of values: comments, quotes, blanks, backslashes, patterns, classes


_COMMENT: Final = re.compile(r"(^|\s)#")
_PLACEHOLDER: Final = re.compile(r"\s*<[^<>]+>\s*")
_VARIABLES: Final = {
    "${NAME}": re.compile(r"\$\{[A-Za-z_]\w*\}", re.ASCII),
    # A password may have a dollar: a whole value or option, in capital letters.
    "$NAME": re.compile(r"""(?:^|=\s*["']?)\$[A-Z_][A-Z0-9_]*(?=["';\s]|$)"""),
}
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES: Final = frozenset("tnrfu\\ :=#!")
_QUOTES: Final = ('"', "'")
_FREE_TEXT: Final = (None, JavaType.STRING, JavaType.PASSWORD)
# Choosing other topics or names than the user's class would is worse than not starting.
_DECIDING_CLASSES: Final = (
    "replication.policy.class",
    "topic.filter.class",
    "group.filter.class",
    "config.property.filter.class",
)


def _value_findings(config: MirrorMakerConfig, catalog: Catalog) -> list[LintFinding]:
    """Return what is to say about the values of a file."""
    findings = [
        LintFinding.warning(
            entry,
            f"line {config.raw[entry.key].line} sets it again, and the last one counts",
            "remove one of the two",
        )
        for entry in config.file.duplicates
    ]
    for entry in config.file.entries:
        scope = catalog.scope(entry.key)
        kind = catalog.java_type(scope)
        if _COMMENT.search(entry.value):
            findings.append(_comment(entry, kind))
        else:
            findings += _placeholder(entry)
            findings += _shell_variable(entry, kind)
            findings += _blanks(entry, kind)
            findings += _quotes(entry, kind)
            findings += _backslashes(entry, kind)
            findings += _patterns(config, scope, entry, kind)
            findings += _classes(entry)
        findings += _characters(entry)
    return findings


def _shown(entry: Property, kind: JavaType | None) -> str:
    secret = kind is JavaType.PASSWORD or holds_a_secret(entry.key, entry.value)
    return "********" if secret else repr(entry.value)


def _comment(entry: Property, kind: JavaType | None) -> LintFinding:
    typed = kind not in _FREE_TEXT or is_switch(entry.key)
    found = LintFinding.error if typed else LintFinding.warning
    return found(
        entry,
        f"{_shown(entry, kind)} contains what looks like a comment; in a properties file it is a "
        "part of the value",
        "put the comment on a line of its own",
    )


def _placeholder(entry: Property) -> Iterator[LintFinding]:
    if _PLACEHOLDER.fullmatch(entry.value) or re.search(r"<[^<>=]*>", entry.key):
        message = "contains a placeholder <...> of a guide or template"
        yield LintFinding.error(entry, message, "replace it by the real text")


def _shell_variable(entry: Property, kind: JavaType | None) -> Iterator[LintFinding]:
    """Name a variable that a shell or a template was to replace; the text is not quoted, it may be
    in a password."""
    form = next((form for form, it in _VARIABLES.items() if it.search(entry.value)), "")
    # Routers have named groups.
    if not form or kind is JavaType.PATTERNS or "transforms." in entry.key:
        return
    yield LintFinding.warning(
        entry,
        f"has a {form} that stays as it is: variables of a shell are not replaced in the file",
        "write ${env:NAME}, with config.providers = env and config.providers.env.class ="
        " org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    )


def _blanks(entry: Property, kind: JavaType | None) -> Iterator[LintFinding]:
    if entry.value == entry.value.rstrip() or is_switch(entry.key):
        return
    remedy = "remove the blank"
    # What no ConfigDef reads is not trimmed; the replication policy reads its separator itself.
    raw = kind is None or entry.key.endswith("replication.policy.separator")
    if raw and not is_class_property(entry.key):
        message = "ends in a blank, which is a part of the value, as in Java"
        yield LintFinding.warning(entry, message, remedy)
    else:
        yield LintFinding.info(entry, "ends in a blank, which is left out", remedy)


def _quotes(entry: Property, kind: JavaType | None) -> Iterator[LintFinding]:
    text = entry.value.strip()
    if len(text) < 2 or text[0] not in _QUOTES or text[-1] != text[0]:
        return
    if kind is JavaType.PATTERNS:
        items = [f".{it}" if it.startswith("*") else it for it in parse_list(text[1:-1])]
        message = "the patterns begin and end with a quote, as in Java, and match nothing"
        yield LintFinding.warning(entry, message, f"write {entry.key} = {', '.join(items)}")
    elif kind is not JavaType.PASSWORD:
        message = "the quotes are a part of the value, as in Java"
        yield LintFinding.warning(entry, message, "remove the quotes")


def _backslashes(entry: Property, kind: JavaType | None) -> Iterator[LintFinding]:
    if any(it not in _KNOWN_ESCAPES for it in _ESCAPE.findall(entry.raw_value)):
        what = "effective pattern" if kind is JavaType.PATTERNS else "effective value"
        yield LintFinding.warning(
            entry,
            f"a single backslash is dropped, as in Java; {what}: {_shown(entry, kind)}",
            # Inside its quotes JAAS drops one as well.
            f"write {'four' if entry.key.endswith('jaas.config') else 'two'} backslashes for one",
        )


def _patterns(
    config: MirrorMakerConfig, scope: Scope, entry: Property, kind: JavaType | None
) -> Iterator[LintFinding]:
    if kind not in (JavaType.LIST, JavaType.PATTERNS):
        return
    items = parse_list(entry.value)
    if "" in items:
        message = "has an empty item between its commas"
        yield LintFinding.warning(entry, message, "remove the comma")
    if kind is not JavaType.PATTERNS or scope.kind == "cluster":
        return
    try:
        PatternList.of(config.providers.resolve_text(entry.value))
    except ConfigError as error:
        remedy = error.remedy
        globs = [item for item in items if item.startswith("*")]
        if globs:
            remedy = f"write .{globs[0]} instead of {globs[0]}: these are Java patterns"
        yield LintFinding.error(entry, error.message, remedy)


def _classes(entry: Property) -> Iterator[LintFinding]:
    unusable = is_unusable_converter(entry.key, entry.value)
    if not unusable and not (is_class_property(entry.key) and is_foreign_java_class(entry.value)):
        return
    name = canonical_class(entry.value)
    if entry.key.endswith(_DECIDING_CLASSES):
        message = f"the Java class {name} cannot be loaded here"
        remedy = "use a built-in class, or a Python class as package.module:Class"
        yield LintFinding.error(entry, message, remedy)
    else:
        message = f"the class {name} has no effect: keys, values and headers are copied as bytes"
        yield LintFinding.warning(entry, message, "remove it")


def _characters(entry: Property) -> Iterator[LintFinding]:
    if not (entry.value.isascii() and entry.key.isascii()):
        message = "has characters outside of ASCII, which are read as ISO-8859-1, as in Java"
        yield LintFinding.warning(entry, message, "write them as \\uXXXX")
