"""``mm2py lint FILE`` and ``mm2py config explain FILE [A/B]``, without the command line around
them.

Flow: file -> ``mm2py.config`` -> lines on standard output, exit code as result: 0 runs, 1 refused,
2 wrong usage. Run as a module it writes docs/reference/config.md to standard output. Secrets are
masked.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from mm2py.config.client_properties import (
    ClientKind,
    Side,
    effective_client_properties,
    framework_producer_properties,
)
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import ConfigModel, options_of, parse_config
from mm2py.config.derivation import Effective, Value, texts
from mm2py.config.findings import LintFinding, Severity, first_error, in_order
from mm2py.config.lint import findings_of
from mm2py.config.mirror_maker import FlowConfigs, MirrorMakerConfig
from mm2py.config.properties import load
from mm2py.config.providers import placeholders
from mm2py.config.rest_settings import RestSettings
from mm2py.config.secret_names import holds_a_secret
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError, UsageError
from mm2py.flows.graph import file_cycle, file_meetings
from mm2py.observability.logging import some_of
from mm2py.runtime.group.request_signing import check_algorithms
from mm2py.types import ClusterAlias, FlowName
from mm2py_cli.config_reference import render
from mm2py_cli.rest_access import flow_name
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS

_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "dim"}
_CLIENTS: Final[tuple[tuple[Side, ClientKind], ...]] = (
    ("source", "consumer"),
    ("source", "producer"),
    ("source", "admin"),
    ("target", "admin"),
)
_MASK: Final = "********"


def lint_file(path: Path | str, *, console: Console | None = None) -> int:
    """Print the findings of a file, worst last in the count; return the exit code."""
    out = console or Console(highlight=False)
    try:
        config = MirrorMakerConfig(load(path), CHECKED_CONNECTORS)
        findings = findings_of(config)
        if first_error(findings) is None:
            findings += [*_circles(config), *_meetings(config)]
            findings = in_order(findings + _nothing_to_do(config) + _rest_files(config))
    except ConfigError as error:
        _print(out, f"error    {error}", _STYLES[Severity.ERROR])
        return 1
    for finding in findings:
        _print(
            out,
            f"{finding.severity.name.lower():8} {finding.describe(str(path))}",
            _STYLES[finding.severity],
        )
    errors, warnings, _ = (
        sum(f.severity is s for f in findings) for s in sorted(Severity, reverse=True)
    )
    refusal = "" if errors else _refused_at_start(config)
    if refusal:
        errors = 1
        _print(out, f"error    {refusal}", _STYLES[Severity.ERROR])
    verdict = "it would not start" if errors else "it would start"
    _print(out, f"{path}: errors: {errors}, warnings: {warnings}; {verdict}", "")
    return 1 if errors else 0


def _refused_at_start(config: MirrorMakerConfig) -> str:
    """Return the error of a start that no finding is about: flows, listeners."""
    try:
        config.flows()
        RestSettings.of_config(config)
        for flow in config.telling_pairs:
            props = config.worker_config(flow)
            worker = parse_config(WorkerConfig, props)
            check_algorithms(
                worker.inter_worker_signature_algorithm, worker.inter_worker_verification_algorithms
            )
            connection_settings(props, scope=f"worker of {flow}")
    except ConfigError as error:
        return str(error)
    return ""


def _rest_files(config: MirrorMakerConfig) -> list[LintFinding]:
    """Warn of files without which REST is not served."""
    keys = ("rest.basic.auth.file", "rest.bearer.tokens.file")
    message = "is no file on this machine: REST would not be served, the flows would run"
    return [
        LintFinding.warning(value, message)
        for value in (config.raw[key] for key in keys if key in config.raw)
        if not placeholders(value.text) and not Path(value.text).is_file()
    ]


def _circles(config: MirrorMakerConfig) -> list[LintFinding]:
    """Return the circle that refuses the start, at the line of the first flow in it."""
    cycle = file_cycle(config, config.resolved)
    if cycle is None:
        return []
    entry = config.raw[f"{cycle.flows[0]}.enabled"]
    message = f"records would be copied in a circle: {cycle}"
    return [LintFinding.error(entry, message, cycle.remedy)]


def _meetings(config: MirrorMakerConfig) -> list[LintFinding]:
    """Warn where flows write into one topic: groups are not placed there."""
    return [
        LintFinding(
            Severity.WARNING,
            config.raw[key].line if (key := f"{meeting.flows[0]}.enabled") in config.raw else 0,
            key,
            f"{some_of([*map(str, meeting.flows)], 3)} write into one topic (topic "
            f"{meeting.topic}): no group is checkpointed or synced"
            " there, it would skip or read again what it has not read of the other sources",
            "use a replication policy that renames topics, or other topics for each flow",
        )
        for meeting in file_meetings(config, config.resolved)
    ]


def _nothing_to_do(config: MirrorMakerConfig) -> list[LintFinding]:
    """Warn where nothing is copied, or a cluster would be copied to itself."""
    rows: list[tuple[str, str]] = []
    if len(config.clusters) > 1 and not config.enabled_pairs:
        first = config.pairs[0]
        rows.append(("no flow is enabled: nothing is copied", f"set {first}.enabled = true"))
    by_address = defaultdict[str, list[str]](list)
    for alias in config.clusters:
        if (value := config.raw.get(f"{alias}.bootstrap.servers")) is not None:
            by_address[value.text].append(alias)
    rows += [
        (f"{some_of(aliases, 5)} have the same bootstrap.servers", "give each cluster its own")
        for aliases in by_address.values()
        if len(aliases) > 1
    ]
    return [LintFinding.warning(config.raw["clusters"], *row) for row in rows]


def explain_file(
    path: Path | str, flow: str | None = None, *, console: Console | None = None
) -> int:
    """Print every effective property and where it came from; return the exit code."""
    out = console or Console(highlight=False)
    try:
        config = MirrorMakerConfig.load(path, CONNECTORS)
        flows = config.flows() if flow is None else (flow_named(config, flow),)
        for name in flows:
            _explain(out, config, config.flow_configs(name))
    except ConfigError as error:
        _print(out, f"error    {error}", _STYLES[Severity.ERROR])
        return 2 if isinstance(error, UsageError) else 1
    return 0


def reference_text() -> str:
    """Return the text of docs/reference/config.md."""
    return render(CONNECTORS)


def flow_named(config: MirrorMakerConfig, text: str) -> FlowName:
    """Return the flow that ``A->B`` or ``A/B`` names; ``UsageError`` without such clusters."""
    source, _, target = flow_name(text).partition("->")
    flow = FlowName(ClusterAlias(source), ClusterAlias(target))
    if source == target or not set(flow) <= set(config.clusters):
        raise UsageError(
            f"{text!r} is no flow of {config.path}",
            remedy=f"write <source>/<target> with two of {', '.join(config.clusters)}",
        )
    return flow


def _explain(out: Console, config: MirrorMakerConfig, flow: FlowConfigs) -> None:
    state = "replicates" if flow.enabled else "heartbeats only"
    _print(out, f"{flow.flow}: {state}", "bold")
    worker = _as_written(config, flow.worker)
    _section(out, f"{flow.flow} worker", _with_defaults(worker, WorkerConfig))
    for definition in config.definitions:
        effective = flow.connectors.get(definition.name)
        if effective is None:
            continue
        title = f"{flow.flow} {definition.name}"
        _section(out, title, _with_defaults(effective, definition.model))
    source = flow.copy
    for side, kind in _CLIENTS:
        props = effective_client_properties(texts(source), side, kind)
        origins = effective_client_properties(_origins(source), side, kind)
        _section(out, f"{flow.flow} {side} {kind}", _joined(props, origins))
    props = framework_producer_properties(texts(worker), texts(source))
    origins = framework_producer_properties(
        _origins(worker), _origins(source) | {"name": source["name"].text}
    )
    _section(out, f"{flow.flow} producer of records", _joined(props, origins))


def _as_written(config: MirrorMakerConfig, effective: Effective) -> Effective:
    """Put placeholders back, so that what a provider holds is never shown."""
    return {
        key: config.raw[value.key]
        if value.line and placeholders(config.raw[value.key].text)
        else value
        for key, value in effective.items()
    }


def _origins(effective: Effective) -> dict[str, str]:
    return {key: value.origin for key, value in effective.items()}


def _joined(props: Mapping[str, str], origins: Mapping[str, str]) -> Effective:
    # A property that the rules themselves set has the same text in both.
    return {
        key: Value(text, rule="fixed by the derivation" if origins[key] == text else origins[key])
        for key, text in props.items()
    }


def _with_defaults(effective: Effective, model: type[ConfigModel]) -> Effective:
    result = dict(effective)
    for name, option in options_of(model).items():
        java = option.java_default
        rule = "default" if java is None else f"our default (Java: {java})"
        if option.default is not None:
            result.setdefault(name, Value(option.default, rule=rule))
    return result


def _section(out: Console, title: str, props: Effective) -> None:
    _print(out, title, "bold")
    for key in sorted(props):
        value = props[key]
        line = Text(f"  {key} = {_shown(key, value.text)}")
        line.append(f"    # {value.origin}", style="dim")
        out.print(line, soft_wrap=True)


def _shown(key: str, text: str) -> str:
    """Hide a secret but not its source; a provider's user may stand beside a clear password."""
    if not holds_a_secret(key, text):
        return text
    found = [it.text for it in placeholders(text)]
    return text if found == [text] else " ".join([_MASK, *found])


def _print(out: Console, text: str, style: str) -> None:
    out.print(Text(text, style=style), soft_wrap=True)


if __name__ == "__main__":
    sys.stdout.write(reference_text())
