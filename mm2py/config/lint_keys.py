"""Findings about keys: unknown, misspelt, old, or in a place where they do nothing."""

import re
from typing import Final

from mm2py.config.catalog import DERIVED, NEVER_WORKED, REMOVED, Catalog, Scope, client_part
from mm2py.config.client_options import CLIENT_OPTIONS
from mm2py.config.derivation import Value
from mm2py.config.findings import LintFinding, Severity
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.old_names import modern_name

_FLOW_KEY: Final = re.compile(r"(.+?)\s*->\s*([^.]+)\.(.+)")
_CUT_KEY: Final = re.compile(r"(\S+?) ?-> ?(\S+?)(\s*[=:\s]\s*(.*))?")
_CLUSTER_KEY: Final = re.compile(r"([^.]+)\.(bootstrap\.servers)")


def key_findings(config: MirrorMakerConfig, catalog: Catalog) -> list[LintFinding]:
    """Return what is to say about the keys of a file."""
    return [
        LintFinding(severity, value.line, key, message, remedy)
        for key, value in config.raw.items()
        for severity, message, remedy in _verdict(config, catalog, key, value)
    ]


def property_problem(catalog: Catalog, name: str) -> str:
    """Return why a property of a flow's connectors would have no effect, empty where it has one.

    The rule of a file's ``A->B.`` lines, for properties that come another way.
    """
    scope = Scope("flow", "", name)
    modern = modern_name(name, "", catalog.connector_options)
    if modern is not None:
        return f"is an old name, which counts in a file alone: set {modern.name}"
    if catalog.is_flow_level(name):
        return ""
    if name in catalog.worker_options:
        return (
            "has no effect on a connector: write it into the file, a worker reads it at its start"
        )
    dead = _dead_name(scope)
    if not dead:
        return f"is not known: {_right_name(catalog, scope)}"
    return "; ".join(f"{message}: {remedy}" for _, message, remedy in dead)


_Verdict = list[tuple[Severity, str, str]]


def _warn(message: str, remedy: str = "") -> _Verdict:
    return [(Severity.WARNING, message, remedy)]


def _verdict(config: MirrorMakerConfig, catalog: Catalog, key: str, value: Value) -> _Verdict:
    scope = catalog.scope(key)
    if catalog.is_old_name(scope.name) and scope.kind != "cluster":
        return _old_name(config, catalog, scope, value)
    dead = _dead_name(scope)
    if dead:
        return dead
    if scope.kind == "flow":
        return _flow_key(catalog, scope)
    if scope.kind == "cluster":
        return _cluster_key(catalog, scope)
    return _top_key(config, catalog, scope, value)


def _dead_name(scope: Scope) -> _Verdict:
    if scope.name in NEVER_WORKED:
        return _warn(
            f"no release of MirrorMaker 2 reads it: {NEVER_WORKED[scope.name]}", "remove it"
        )
    if scope.name in DERIVED:
        return _warn(f"has no effect: {DERIVED[scope.name]}", "remove it")
    if scope.name in REMOVED:
        return _warn(f"has no effect any more: {REMOVED[scope.name]}", "remove it")
    return []


def _old_name(config: MirrorMakerConfig, catalog: Catalog, scope: Scope, value: Value) -> _Verdict:
    modern = modern_name(scope.name, value.text, catalog.connector_options)
    assert modern is not None
    # The new name wins over an old one in the merged config of a connector.
    winner = next(
        (k for k in (f"{scope.prefix}{modern.name}", modern.name) if k in config.raw), None
    )
    if winner is not None:
        return _warn(
            f"is left out: line {config.raw[winner].line} sets {winner}, and the new name wins",
            f"remove {scope.prefix}{scope.name}",
        )
    better = f"{scope.prefix}{modern.name}"
    if modern.value != value.text:
        better += f" = {modern.value}"
    return _warn(f"{modern.why}; it works here", f"write {better}")


def _flow_key(catalog: Catalog, scope: Scope) -> _Verdict:
    assert scope.flow is not None
    if scope.flow.source == scope.flow.target:
        return _warn("a cluster is not mirrored to itself, so this has no effect", "remove it")
    if catalog.is_flow_level(scope.name):
        return []
    if catalog.is_worker_only(scope.name):
        return _warn(
            "has no effect here: a flow's worker is configured by its target",
            f"write {scope.flow.target}.{scope.name}",
        )
    return _unknown(catalog, scope)


def _cluster_key(catalog: Catalog, scope: Scope) -> _Verdict:
    if catalog.is_cluster_level(scope.name):
        return []
    if scope.name in CLIENT_OPTIONS:
        return _warn(
            "reaches no consumer or producer, as in Java: only connection and security settings "
            "are handed to all clients of a cluster",
            f"write {scope.prefix}{_kinds(scope.name)}.{scope.name}",
        )
    if catalog.is_flow_level(scope.name):
        alias = scope.prefix.removesuffix(".")
        return _warn(
            "has no effect under a cluster alias, as in Java",
            f"write {scope.name} for all flows or {alias}-><target>.{scope.name} for one",
        )
    return _unknown(catalog, scope)


def _top_key(config: MirrorMakerConfig, catalog: Catalog, scope: Scope, value: Value) -> _Verdict:
    if catalog.is_top_level(scope.name):
        return []
    if catalog.is_worker_only(scope.name):
        return _warn(
            "does not reach a worker from top level, as in Java", f"write <target>.{scope.name}"
        )
    strange = _strange_alias(config, scope.name, value)
    if strange:
        return strange
    place = _right_place(catalog, scope.name)
    if place:
        return _warn("has no effect at top level, as in Java", f"write {place}")
    return _unknown(catalog, scope)


def _right_place(catalog: Catalog, name: str) -> str:
    client = client_part(name)
    if client is not None and client[1] in CLIENT_OPTIONS:
        return f"<cluster alias>.{name}"
    if name in CLIENT_OPTIONS:
        return f"<cluster alias>.{_kinds(name)}.{name}"
    return f"<source>-><target>.{name}" if catalog.is_flow_level(name) else ""


def _strange_alias(config: MirrorMakerConfig, name: str, value: Value) -> _Verdict:
    known = ", ".join(config.clusters)
    cut = _CUT_KEY.fullmatch(f"{name} {value.text}")
    if cut is not None and cut[1] in config.clusters and not _FLOW_KEY.fullmatch(name):
        whole = f"{cut[1]}->{cut[2]}"
        on = whole.endswith(".enabled") and (cut[4] or "").strip().lower() == "true"
        return [
            (
                Severity.ERROR if on else Severity.WARNING,
                f"a name ends at its first blank, so this sets {name!r} and nothing of a flow",
                f"write {whole}{cut[3] or ''}",
            )
        ]
    match = _FLOW_KEY.fullmatch(name)
    if match is not None:
        strange = [a for a in (match[1], match[2]) if a not in config.clusters]
        if not strange:
            return _warn("a blank inside of the key hides it", f"write {match[1]}->{match[2]}.")
        # A flow that is switched on and cannot run would copy nothing in silence.
        on = match[3] == "enabled" and value.text.strip().lower() == "true"
        return [
            (
                Severity.ERROR if on else Severity.WARNING,
                f"{strange[0]!r} is no cluster of this file ({known})",
                "add it to clusters or correct the key",
            )
        ]
    cluster = _CLUSTER_KEY.fullmatch(name)
    if cluster is not None:
        return _warn(
            f"{cluster[1]!r} is no cluster of this file ({known})",
            "add it to clusters or remove the line",
        )
    return []


def _kinds(name: str) -> str:
    kinds = CLIENT_OPTIONS[name].kinds.split(", ")
    return kinds[0] if len(kinds) == 1 else f"{{{','.join(kinds)}}}"


def _unknown(catalog: Catalog, scope: Scope) -> _Verdict:
    return _warn("is not known and has no effect, as in Java", _right_name(catalog, scope))


def _right_name(catalog: Catalog, scope: Scope) -> str:
    near = catalog.nearest(scope)
    return f"did you mean {scope.prefix}{near}?" if near else "remove it or correct its name"
