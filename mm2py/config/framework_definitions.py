"""The keys that Connect itself reads of every connector: types, defaults and places as Java has them.

Flow: this table -> ``connector_keys`` -> validation and ``/connector-plugins/{plugin}/config``.
What Java's documentation says is said here in our words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER, SIMPLE_HEADER_CONVERTER, canonical_class
from mm2py.config.connect_definitions import ConfigKey
from mm2py.config.connect_values import (
    Check,
    Definition,
    aliases,
    at_least,
    clear_text,
    invalid,
    java_type,
    not_empty,
    one_of,
)
from mm2py.config.java_values import JavaType, JavaValue

__all__ = [
    "COMMON_KEYS",
    "CONVERTERS",
    "CONVERTER_KEYS",
    "HEADER_CONVERTERS",
    "JSON_CONVERTER",
    "NUMBER_CONVERTERS",
    "SOURCE_KEYS",
    "STRING_CONVERTER",
    "connector_keys",
    "converter_class",
    "converter_problem",
]

_BOOLEAN, _INT, _LONG, _STRING, _LIST, _CLASS = (
    JavaType.BOOLEAN,
    JavaType.INT,
    JavaType.LONG,
    JavaType.STRING,
    JavaType.LIST,
    JavaType.CLASS,
)

_CONNECT: Final = "org.apache.kafka.connect."
STRING_CONVERTER: Final = _CONNECT + "storage.StringConverter"
JSON_CONVERTER: Final = _CONNECT + "json.JsonConverter"
NUMBER_CONVERTERS: Final = tuple(
    f"{_CONNECT}converters.{kind}Converter"
    for kind in ("Boolean", "Double", "Float", "Integer", "Long", "Short")
)
CONVERTERS: Final = (BYTE_ARRAY_CONVERTER, JSON_CONVERTER, STRING_CONVERTER, *NUMBER_CONVERTERS)
"""Converters of keys and values; each converts headers too."""

HEADER_CONVERTERS: Final = (*CONVERTERS, SIMPLE_HEADER_CONVERTER)
_SHORT_NAMES: Final = {name.rpartition(".")[2]: name for name in HEADER_CONVERTERS}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a key stands among the others."""

    group: str
    order: int
    width: str
    importance: str


def _key(
    name: str,
    kind: JavaType,
    default: str | None,
    place: _Place,
    display_and_doc: tuple[str, str],
    *checks: Check,
    required: bool = False,
    classes: Callable[[str], str] | None = None,
) -> Definition:
    key = ConfigKey(
        name=name,
        type=java_type(kind),
        required=required,
        default_value=default,
        importance=place.importance,
        documentation=display_and_doc[1],
        group=place.group,
        order_in_group=place.order,
        width=place.width,
        display_name=display_and_doc[0],
    )
    return Definition(key=key, kind=kind, checks=checks, classes=classes)


def _common(order: int, width: str, importance: str = "LOW") -> _Place:
    return _Place("Common", order, width, importance)


def _errors(order: int, width: str) -> _Place:
    return _Place("Error Handling", order, width, "MEDIUM")


def converter_problem(name: str, role: str) -> str:
    """Say why a converter cannot be used in a role (key, value or header), empty where it can."""
    full = converter_class(name)
    if full not in HEADER_CONVERTERS:
        return f"Class {name} could not be found."
    if role != "header" and full not in CONVERTERS:
        return f"Class {full} converts headers, not {role}s."
    return ""


def _converter(which: str, order: int) -> tuple[Definition, Definition]:
    shown = which.capitalize()
    return (
        _key(
            f"{which}.converter", _CLASS, None, _common(order, "SHORT"),
            (f"{shown} converter class", f"Converts the {which}s of records; unset: the worker's."),
            classes=lambda name: converter_problem(name, which),
        ),
        _key(
            f"{which}.converter.plugin.version", _STRING, None, _common(order + 1, "SHORT"),
            (f"{shown} converter version", "Without effect: plug-ins have one version."),
        ),
    )  # fmt: skip


def _none_yet(name: str, value: JavaValue) -> str:
    if not isinstance(value, tuple) or not value:
        return ""
    return invalid(name, value, f"{name} come with part 5; remove them, records stay unchanged")


COMMON_KEYS: Final[tuple[Definition, ...]] = (
    _key(
        "name", _STRING, None, _common(1, "MEDIUM", "HIGH"),
        ("Connector name", "Name of the connector, unique in the group of workers."),
        clear_text, required=True,
    ),
    _key(
        "connector.class", _STRING, None, _common(2, "LONG", "HIGH"),
        ("Connector class", "Class of the connector: Java's full name, its last part, or that without"
         " Connector."),
        required=True,
    ),
    _key(
        "connector.plugin.version", _STRING, None, _common(3, "MEDIUM", "MEDIUM"),
        ("Connector version", "Without effect: plug-ins have one version."),
    ),
    _key(
        "tasks.max", _INT, "1", _common(4, "SHORT", "HIGH"),
        ("Tasks max", "Most tasks of the connector."), at_least(1),
    ),
    _key(
        "tasks.max.enforce", _BOOLEAN, "true", _common(5, "SHORT"),
        ("Enforce tasks max", "Fail a connector that makes more tasks than tasks.max."),
    ),
    *_converter("key", 6),
    *_converter("value", 8),
    *_converter("header", 10),
    _key(
        "transforms", _LIST, "", _Place("Transforms", 12, "LONG", "LOW"),
        ("Transforms", "Aliases of the transforms that records pass; they come with part 5."),
        aliases, _none_yet,
    ),
    _key(
        "predicates", _LIST, "", _Place("Predicates", 13, "LONG", "LOW"),
        ("Predicates", "Aliases of the predicates of transforms; they come with part 5."),
        aliases, _none_yet,
    ),
    _key(
        "config.action.reload", _STRING, "restart", _common(14, "MEDIUM"),
        ("Reload Action", "Whether a changed value of a config provider restarts the connector."),
        one_of(("none", "restart")),
    ),
    _key(
        "errors.retry.timeout", _LONG, "0", _errors(1, "MEDIUM"),
        ("Retry Timeout for Errors",
         "Longest time in ms a failed operation on a record is tried again; -1 without end."),
    ),
    _key(
        "errors.retry.delay.max.ms", _LONG, "60000", _errors(2, "MEDIUM"),
        ("Maximum Delay Between Retries for Errors",
         "Longest pause in ms between two tries, and between two restarts of a failed task."),
    ),
    _key(
        "errors.tolerance", _STRING, "none", _errors(3, "SHORT"),
        ("Error Tolerance", "Records that cannot be handled: none fails the task, all leaves them out."),
        one_of(("none", "all")),
    ),
    _key(
        "errors.log.enable", _BOOLEAN, "false", _errors(4, "SHORT"),
        ("Log Errors", "Log each failed operation, also a tolerated one."),
    ),
    _key(
        "errors.log.include.messages", _BOOLEAN, "false", _errors(5, "SHORT"),
        ("Log Error Details", "Log which record an operation failed on."),
    ),
)  # fmt: skip
"""Of every connector."""


_EXACTLY_ONCE: Final = "Exactly Once Support"
SOURCE_KEYS: Final[tuple[Definition, ...]] = (
    _key(
        "topic.creation.groups", _LIST, "", _Place("Topic Creation", 1, "LONG", "LOW"),
        ("Topic Creation Groups", "Groups of rules for topics that the worker creates; part 5."), aliases,
    ),
    _key(
        "exactly.once.support", _STRING, "requested", _Place(_EXACTLY_ONCE, 2, "SHORT", "MEDIUM"),
        ("Exactly once support", "required refuses to run the connector without exactly-once mode."),
        one_of(("REQUIRED", "REQUESTED"), any_case=True),
    ),
    _key(
        "transaction.boundary", _STRING, "poll", _Place(_EXACTLY_ONCE, 3, "SHORT", "MEDIUM"),
        ("Transaction Boundary", "When a transaction ends in exactly-once mode."),
        one_of(("INTERVAL", "POLL", "CONNECTOR"), any_case=True),
    ),
    _key(
        "transaction.boundary.interval.ms", _LONG, None,
        _Place(_EXACTLY_ONCE, 4, "SHORT", "LOW"),
        ("Transaction boundary interval", "Time between transactions where the boundary is interval."),
        at_least(0, nullable=True),
    ),
    _key(
        "offsets.storage.topic", _STRING, None, _Place("offsets.topic", 1, "LONG", "LOW"),
        ("Offsets topic", "Topic on the target for this connector's source offsets; unset: the"
         " worker's."),
        not_empty,
    ),
)  # fmt: skip
"""Of source connectors, besides the common ones."""


def connector_keys(plugin_type: str) -> Sequence[Definition]:
    """Return the keys that Connect reads of a connector of this type, in Java's order."""
    return COMMON_KEYS + SOURCE_KEYS if plugin_type == "source" else COMMON_KEYS


def _converter_key(
    name: str, default: str | None, display: str, width: str, doc: str, *checks: Check
) -> Definition:
    key = ConfigKey(
        name=name,
        type=java_type(_STRING),
        required=default is None,
        default_value=default,
        importance="LOW" if default is None else "HIGH",
        documentation=doc,
        group=None,
        order_in_group=-1,
        width=width,
        display_name=display,
    )
    return Definition(key=key, kind=_STRING, checks=checks)


_CONVERTER_TYPE: Final = _converter_key(
    "converter.type", None, "converter.type", "NONE",
    "What it converts; whoever makes it for a worker or connector sets this.",
    one_of(("key", "value", "header")),
)  # fmt: skip
CONVERTER_KEYS: Final = {
    BYTE_ARRAY_CONVERTER: (_CONVERTER_TYPE,),
    JSON_CONVERTER: (
        _CONVERTER_TYPE,
        _key(
            "schemas.enable", _BOOLEAN, "true", _Place("Schemas", 0, "MEDIUM", "HIGH"),
            ("Enable Schemas", "Write each value together with its schema."),
        ),
        _key(
            "schemas.cache.size", _INT, "1000", _Place("Schemas", 1, "MEDIUM", "HIGH"),
            ("Schema Cache Size", "Most schemas that are kept translated."),
        ),
        _key(
            "schema.content", _STRING, None, _Place("Schemas", 2, "MEDIUM", "HIGH"),
            ("Schema Content", "Schema of all values that are read; without effect on writing."),
        ),
        _key(
            "decimal.format", _STRING, "BASE64", _Place("Serialization", 0, "MEDIUM", "LOW"),
            ("Decimal Format", "How decimal numbers are written: BASE64, or NUMERIC."),
            one_of(("BASE64", "NUMERIC"), any_case=True),
        ),
        _key(
            "replace.null.with.default", _BOOLEAN, "true",
            _Place("Serialization", 1, "MEDIUM", "LOW"),
            ("Replace null with default", "Write the schema's default where there is no value."),
        ),
    ),
    STRING_CONVERTER: (
        _CONVERTER_TYPE,
        _converter_key(
            "converter.encoding", "UTF-8", "Encoding", "MEDIUM", "Character set of texts."
        ),
    ),
}  # fmt: skip
"""Keys of the converters that have some."""


def converter_class(name: str) -> str:
    """Return Java's full name of a converter."""
    return _SHORT_NAMES.get(name, canonical_class(name))
