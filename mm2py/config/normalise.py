"""The few values that are read otherwise than Java reads them, with a finding for each.

Flow: ``PropertiesFile`` -> entries with their lines. Switches are trimmed, because Java's flow
evaluation takes ``true`` with a blank after it for false and would copy nothing; names of built-in
classes become Java's. Everything else keeps its text. Old option names are handled where the
configs are derived, since there the new name wins.
"""

import re
from typing import Final

from mm2py.config.class_names import canonical_class
from mm2py.config.derivation import Value
from mm2py.config.findings import Finding, Severity
from mm2py.config.properties import PropertiesFile

_CLASSES: Final = (
    "replication.policy.class",
    "topic.filter.class",
    "group.filter.class",
    "config.property.filter.class",
    "forwarding.admin.class",
    "connector.class",
    "key.converter",
    "value.converter",
    "header.converter",
)

_FLOW_SWITCH: Final = re.compile(r".+->[^.]+\.enabled|(.+->[^.]+\.)?emit\.heartbeats\.enabled")
"""What Java reads as a switch of a flow, untrimmed; connectors trim theirs."""


def normalised(file: PropertiesFile) -> tuple[dict[str, Value], list[Finding]]:
    """Return the entries by key, and what was changed."""
    raw: dict[str, Value] = {}
    findings: list[Finding] = []
    for entry in file.entries:
        text = entry.value
        if is_switch(entry.key) and text != text.strip():
            text = text.strip()
            if _FLOW_SWITCH.fullmatch(entry.key):
                findings.append(
                    Finding(
                        Severity.WARNING,
                        entry.line,
                        entry.key,
                        f"has a blank around {text!r}, which is left out here; Java's flow switches "
                        "take it for false",
                        "remove the blank",
                    )
                )
        elif is_class_property(entry.key) and canonical_class(text) != text:
            text = canonical_class(text)
            if text != entry.value.strip():
                findings.append(
                    Finding(Severity.INFO, entry.line, entry.key, f"is taken as {text}")
                )
        raw[entry.key] = Value(text, entry.key, entry.line)
    return raw, findings


def is_switch(key: str) -> bool:
    """Whether the driver itself reads this key as a flow switch."""
    return key == "enabled" or key.endswith(".enabled")


def is_class_property(key: str) -> bool:
    """Whether the value is a class that has a Java name and one of ours."""
    return key.endswith(_CLASSES) and not key.startswith("config.providers")
