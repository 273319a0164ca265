"""Headers by which one flow knows the copies of another: what ``transforms`` say of every record.

Flow: connector config -> ``header_marks`` -> ``graph``: a flow that drops the records with a header that the flow before it puts
on all of its copies passes none of them on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mm2py.config.client_properties import with_prefix
from mm2py.config.java_values import parse_boolean_leniently, parse_list

_ROUTERS: Final = ("RegexRouter", "TimestampRouter")
_PACKAGES: Final = (
    "",
    "org.apache.kafka.connect.transforms",
    "org.apache.kafka.connect.transforms.predicates",
)


@dataclass(frozen=True, slots=True)
class HeaderMarks:
    """``put``: headers that each copy has; ``dropped``: headers whose records are not copied."""

    put: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()


def header_marks(config: Mapping[str, str]) -> HeaderMarks:
    """Read the transforms of a connector in their order; one that is not built in may remove any header."""
    put: set[str] = set()
    dropped: set[str] = set()
    removed: set[str] = set()
    knows_headers = True
    for alias in parse_list(config.get("transforms", "")):
        own = with_prefix(config, f"transforms.{alias}.")
        kind = _bare(own.get("type", ""))
        if kind == "InsertHeader":
            # With a predicate it marks some records alone.
            if not own.get("predicate", "").strip():
                put.add(own.get("header", "").strip())
        elif kind == "DropHeaders":
            removed.update(parse_list(own.get("headers", "")))
            put -= removed
        elif kind == "Filter":
            header = _chosen_by(config, own)
            if header and header not in removed and knows_headers:
                dropped.add(header)
        elif kind not in _ROUTERS:
            put.clear()
            knows_headers = False
    return HeaderMarks(frozenset(put), frozenset(dropped))


def _chosen_by(config: Mapping[str, str], step: Mapping[str, str]) -> str:
    """Return the header whose records a step is applied to, empty where it is another choice."""
    alias = step.get("predicate", "").strip()
    predicate = with_prefix(config, f"predicates.{alias}.")
    negated = parse_boolean_leniently(step.get("negate"), absent=False)
    if negated or _bare(predicate.get("type", "")) != "HasHeaderKey":
        return ""
    return predicate.get("name", "").strip()


def _bare(class_name: str) -> str:
    package, _, name = class_name.strip().rpartition(".")
    return name if package in _PACKAGES else class_name
