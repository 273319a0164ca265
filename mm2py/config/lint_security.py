"""Findings about logins and key stores: what ``clients`` would refuse at the start, with its line.

Flow: each cluster's derived client properties -> ``check_security`` -> findings.
"""

from collections.abc import Mapping
from typing import Final

from mm2py.config.client_options import CLIENT_KEYS
from mm2py.config.client_properties import with_prefix
from mm2py.config.clients import check_security
from mm2py.config.derivation import Value, cluster_props, texts
from mm2py.config.findings import Finding, Severity
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.providers import placeholders
from mm2py.errors import ConfigError

_CLIENTS: Final = ("", "consumer.", "producer.", "admin.")


def security_findings(config: MirrorMakerConfig) -> list[Finding]:
    """Return an error for each login or store that cannot be used; one line is told wrong once."""
    found: dict[tuple[int, str], Finding] = {}
    for alias in config.clusters:
        props = cluster_props(config.raw, alias)
        resolved = config.providers.resolve(texts(props))
        for prefix in _CLIENTS:
            own = with_prefix(resolved, prefix) if prefix else resolved
            finding = _finding(alias, prefix, own, props)
            if finding is not None:
                found.setdefault((finding.line, finding.key), finding)
    return list(found.values())


def _finding(
    alias: str, prefix: str, own: Mapping[str, str], props: Mapping[str, Value]
) -> Finding | None:
    security = {key: own[key] for key in CLIENT_KEYS if key in own}
    if any(placeholders(text) for text in security.values()):
        return None  # told as unresolved
    try:
        check_security(security)
    except ConfigError as error:
        # Every refusal begins with the property that it is about; a missing one has no line.
        name = error.message.split(maxsplit=1)[0].rstrip(":")
        cause = props.get(f"{prefix}{name}") or props.get(f"{prefix}security.protocol", Value(""))
        key = cause.key or f"{alias}.{prefix}{name}"
        return Finding(Severity.ERROR, cause.line, key, error.message, error.remedy)
    return None
