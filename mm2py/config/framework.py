"""Options that Connect reads of every connector: types, defaults and places as in Java.

Flow: connector config -> ``parse_config(FrameworkConfig, ...)`` -> runtime; the same declarations
-> ``connect_definitions``. Java's documentation in our words.
"""

from typing import Annotated, Final

from mm2py.config.class_names import BYTE_ARRAY_CONVERTER, SIMPLE_HEADER_CONVERTER, canonical_class
from mm2py.config.definitions import ConfigModel, Effect, Option
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import JavaType, JavaValue, invalid
from mm2py.errors import ConfigError

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


def converter_class(name: str) -> str:
    """Return Java's full name of a converter."""
    return _SHORT_NAMES.get(name, canonical_class(name))


def converter_problem(name: str, role: str) -> str:
    """Return why a converter cannot be used in a role (key, value or header), empty for none."""
    full = converter_class(name)
    if full not in HEADER_CONVERTERS:
        return f"Class {name} could not be found."
    if role != "header" and full not in CONVERTERS:
        return f"Class {full} converts headers, not {role}s."
    return ""


def _aliases(name: str, value: JavaValue) -> str:
    if value is None:
        return invalid(name, None, "entry must be non null")
    if isinstance(value, tuple) and len(set(value)) < len(value):
        return invalid(name, value, "Duplicate alias provided.")
    return ""


def _not_empty(name: str, value: JavaValue) -> str:
    return invalid(name, value, "String must be non-empty") if value == "" else ""


def _clear_text(name: str, value: JavaValue) -> str:
    if not isinstance(value, str):
        return ""
    if not value:
        return invalid(name, value, "String may not be empty")
    control = [str(ord(c)) for c in value if ord(c) < 0x20 or 0x7F <= ord(c) <= 0x9F]
    if not control:
        return ""
    return invalid(
        name,
        value,
        "String may not contain control sequences but had the following ASCII chars: "
        + ", ".join(control),
    )


def _converter(role: str, order: int) -> Option:
    return Option(
        _CLASS, f"Converts {role}s of records, not of whole batches; not set: the worker's.",
        group="Common", order=order, width="SHORT", display=f"{role.capitalize()} converter class",
        class_problem=lambda name: converter_problem(name, role),
    )  # fmt: skip


def _version(role: str, order: int) -> Option:
    return Option(
        _STRING, "A plug-in has one version.", effect=Effect.WITHOUT_EFFECT,
        group="Common", order=order, width="SHORT", display=f"{role.capitalize()} converter version",
    )  # fmt: skip


class FrameworkConfig(ConfigModel):
    """Options of every connector (Java's ``ConnectorConfig``), in Java's order."""

    name: Annotated[str, Option(
        _STRING, "Name of the connector, unique in the group of workers.", required=True,
        checks=(_clear_text,), group="Common", order=1, width="MEDIUM", importance="HIGH",
        display="Connector name",
    )] = ""  # fmt: skip
    connector_class: Annotated[str, Option(
        _STRING, "Java's full class name, its last part, or that without Connector.", required=True,
        group="Common", order=2, width="LONG", importance="HIGH", display="Connector class",
    )] = ""  # fmt: skip
    connector_plugin_version: Annotated[str | None, Option(
        _STRING, "The version that the connector must have.", group="Common", order=3,
        width="MEDIUM", importance="MEDIUM", display="Connector version",
    )] = None  # fmt: skip
    tasks_max: Annotated[int, Option(
        _INT, "Most tasks of the connector.", low=1, nullable=False, group="Common", order=4,
        width="SHORT", importance="HIGH", display="Tasks max",
    )] = 1  # fmt: skip
    tasks_max_enforce: Annotated[bool, Option(
        _BOOLEAN, "Fail a connector that makes more tasks than tasks.max.", group="Common", order=5,
        width="SHORT", display="Enforce tasks max",
    )] = True  # fmt: skip
    key_converter: Annotated[str | None, _converter("key", 6)] = None
    key_converter_plugin_version: Annotated[str | None, _version("key", 7)] = None
    value_converter: Annotated[str | None, _converter("value", 8)] = None
    value_converter_plugin_version: Annotated[str | None, _version("value", 9)] = None
    header_converter: Annotated[str | None, _converter("header", 10)] = None
    header_converter_plugin_version: Annotated[str | None, _version("header", 11)] = None
    transforms: Annotated[tuple[str, ...], Option(
        _LIST, "Aliases of transforms, in order; a mirror's checkpoints and heartbeats pass none.",
        checks=(_aliases,), group="Transforms", order=12, width="LONG", display="Transforms",
    )] = ()  # fmt: skip
    predicates: Annotated[tuple[str, ...], Option(
        _LIST, "Aliases of predicates that transforms use.", checks=(_aliases,), group="Predicates",
        order=13, width="LONG", display="Predicates",
    )] = ()  # fmt: skip
    config_action_reload: Annotated[str, Option(
        _STRING, "Config providers report no changes, as Java's built-in ones.",
        effect=Effect.WITHOUT_EFFECT, choices=("none", "restart"), group="Common", order=14,
        width="MEDIUM", display="Reload Action",
    )] = "restart"  # fmt: skip
    errors_retry_timeout: Annotated[int, Option(
        _LONG, "How long in ms a transform or converter is retried on a record; -1 forever.",
        group="Error Handling", order=1, width="MEDIUM", importance="MEDIUM",
        display="Retry Timeout for Errors",
    )] = 0  # fmt: skip
    errors_retry_delay_max_ms: Annotated[int, Option(
        _LONG, "Longest pause in ms between two attempts on a record or restarts of a task.",
        group="Error Handling", order=2, width="MEDIUM", importance="MEDIUM",
        display="Maximum Delay Between Retries for Errors",
    )] = 60_000  # fmt: skip
    errors_tolerance: Annotated[str, Option(
        _STRING, "Records that cannot be converted: none fails the task, all skips them.",
        choices=("none", "all"), group="Error Handling", order=3, width="SHORT",
        importance="MEDIUM", display="Error Tolerance",
    )] = "none"  # fmt: skip
    errors_log_enable: Annotated[bool, Option(
        _BOOLEAN, "Log each skipped record, not only the first.", group="Error Handling", order=4,
        width="SHORT", importance="MEDIUM", display="Log Errors",
    )] = False  # fmt: skip
    errors_log_include_messages: Annotated[bool, Option(
        _BOOLEAN, "Log its source, key, value and headers too.", group="Error Handling", order=5,
        width="SHORT", importance="MEDIUM", display="Log Error Details",
    )] = False  # fmt: skip
    task_auto_restart: Annotated[bool | None, Option(
        _BOOLEAN, "Restart a failed task after growing pauses; not set: as the worker's option.",
        ours=True, java_default="never", importance="MEDIUM",
    )] = None  # fmt: skip


_EXACTLY_ONCE: Final = "Exactly Once Support"


class SourceFrameworkConfig(FrameworkConfig):
    """Further options of every source connector (Java's ``SourceConnectorConfig``)."""

    topic_creation_groups: Annotated[tuple[str, ...], Option(
        _LIST, "Rules for topics that the worker creates: it creates none.", effect=Effect.WARNED,
        checks=(_aliases,), group="Topic Creation", order=1, width="LONG",
        display="Topic Creation Groups",
    )] = ()  # fmt: skip
    exactly_once_support: Annotated[str, Option(
        _STRING, "required refuses to run without exactly-once support.",
        choices=("REQUIRED", "REQUESTED"), any_case=True, group=_EXACTLY_ONCE, order=2,
        width="SHORT", importance="MEDIUM", display="Exactly once support",
    )] = "requested"  # fmt: skip
    transaction_boundary: Annotated[
        str,
        Option(
            _STRING, "When a transaction ends: 100 ms after its first record, or by interval; connector is refused.",
            choices=("INTERVAL", "POLL", "CONNECTOR"), any_case=True,
            group=_EXACTLY_ONCE, order=3, width="SHORT", importance="MEDIUM",
            display="Transaction Boundary",
        ),
    ] = "poll"  # fmt: skip
    transaction_boundary_interval_ms: Annotated[int | None, Option(
        _LONG, "Time between transactions where the boundary is interval.", low=0,
        group=_EXACTLY_ONCE, order=4, width="SHORT", display="Transaction boundary interval",
    )] = None  # fmt: skip
    offsets_storage_topic: Annotated[
        str | None,
        Option(
            _STRING, "Topic on the target for this connector's positions, which the worker's has a copy of; not set: the worker's.",
            checks=(_not_empty,),
            group="offsets.topic", order=1, width="LONG", display="Offsets topic",
        ),
    ] = None  # fmt: skip


class LossPolicies(ConfigModel):
    """Policies for partitions that lost records or cannot be copied; read by the worker."""

    gap_policy: Annotated[
        str,
        Option(
            _STRING, "Records lost before they were copied: continue after the gap and report it, or fail the partition.",
            choices=("continue", "fail"), any_case=True, ours=True,
            java_default="continue in silence", importance="MEDIUM",
        ),
    ] = "continue"  # fmt: skip
    recreate_policy: Annotated[
        str,
        Option(
            _STRING, "A recreated source topic: copy it from its start and report the loss, or stop the partition.",
            choices=("continue", "stop"), any_case=True, ours=True,
            java_default="continue in silence", importance="MEDIUM",
        ),
    ] = "continue"  # fmt: skip
    partition_failure_policy: Annotated[str, Option(
        _STRING, "A partition that cannot be copied: isolate it, or fail its task.",
        choices=("isolate", "fail"), any_case=True, ours=True, java_default="fail",
        importance="MEDIUM",
    )] = "isolate"  # fmt: skip
    offsets_identical: Annotated[
        str,
        Option(
            _STRING, "prefer: one lasting producer id per partition, so that late writes duplicate nothing and offsets are equal where "
            "possible; require: stop a partition where they are not; off: a producer id per task. No effect in transactions.",
            choices=("prefer", "require", "off"), any_case=True, ours=True,
            java_default="other offsets", importance="MEDIUM",
        ),
    ] = "prefer"  # fmt: skip


def _pattern(name: str, value: JavaValue) -> str:
    if not isinstance(value, str) or not value:
        return ""
    try:
        PatternList((value,))
    except ConfigError as error:
        return invalid(name, value, f"Invalid regex: {error.message}")
    return ""


class SinkFrameworkConfig(FrameworkConfig):
    """Options of every sink connector (Java's ``SinkConnectorConfig``), besides the common keys."""

    topics: Annotated[tuple[str, ...], Option(
        _LIST, "Topics that the tasks read, by their names; this or topics.regex.", group="Common",
        order=4, width="LONG", importance="HIGH", display="Topics",
    )] = ()  # fmt: skip
    topics_regex: Annotated[str, Option(
        _STRING, "Java pattern for the whole name of topics to read.", checks=(_pattern,),
        group="Common", order=4, width="LONG", importance="HIGH", display="Topics regex",
    )] = ""  # fmt: skip
    errors_deadletterqueue_topic_name: Annotated[str, Option(
        _STRING,
        "Topic on the worker's cluster for records that cannot be processed; not set: none.",
        group="Error Handling", order=6, width="MEDIUM", importance="MEDIUM",
        display="Dead Letter Queue Topic Name",
    )] = ""  # fmt: skip
    errors_deadletterqueue_topic_replication_factor: Annotated[int, Option(
        JavaType.SHORT, "Replication factor of that topic.", group="Error Handling", order=7,
        width="MEDIUM", importance="MEDIUM", display="Dead Letter Queue Topic Replication Factor",
    )] = 3  # fmt: skip
    errors_deadletterqueue_context_headers_enable: Annotated[bool, Option(
        _BOOLEAN, "Add headers with the record's origin and error.", group="Error Handling",
        order=8, width="MEDIUM", importance="MEDIUM", display="Enable Error Context Headers",
    )] = False  # fmt: skip


class TaskFrameworkConfig(LossPolicies, SourceFrameworkConfig):
    """Options of a source task that the worker reads."""


class TaskConfig(ConfigModel):
    """Properties that Connect adds to the config of every task."""

    task_class: Annotated[
        str | None,
        Option(_CLASS, "Class of the task; Java's name, so that a Java worker can take over."),
    ] = None


class ConverterConfig(ConfigModel):
    """Options of every configurable converter (Java's ``ConverterConfig``)."""

    converter_type: Annotated[str | None, Option(
        _STRING, "What it converts; the worker sets it.", required=True,
        choices=("key", "value", "header"), effect=Effect.WITHOUT_EFFECT,
    )] = None  # fmt: skip


class JsonConverterConfig(ConverterConfig):
    """Keys of JsonConverter."""

    schemas_enable: Annotated[bool, Option(
        _BOOLEAN, "Write each value together with its schema.", group="Schemas", order=0,
        width="MEDIUM", importance="HIGH", display="Enable Schemas",
    )] = True  # fmt: skip
    schemas_cache_size: Annotated[int, Option(
        _INT, "Most schemas that are kept translated; here they are not kept.",
        effect=Effect.WITHOUT_EFFECT, group="Schemas", order=1, width="MEDIUM", importance="HIGH",
        display="Schema Cache Size",
    )] = 1_000  # fmt: skip
    schema_content: Annotated[str | None, Option(
        _STRING, "Schema of all values that are read; without effect on writing.",
        effect=Effect.WITHOUT_EFFECT, group="Schemas", order=2, width="MEDIUM", importance="HIGH",
        display="Schema Content",
    )] = None  # fmt: skip
    decimal_format: Annotated[str, Option(
        _STRING, "How decimal numbers are written: BASE64, or NUMERIC.",
        choices=("BASE64", "NUMERIC"), any_case=True, group="Serialization", order=0,
        width="MEDIUM", display="Decimal Format",
    )] = "BASE64"  # fmt: skip
    replace_null_with_default: Annotated[bool, Option(
        _BOOLEAN, "Write the schema's default where there is no value.", group="Serialization",
        order=1, width="MEDIUM", display="Replace null with default",
    )] = True  # fmt: skip


class StringConverterConfig(ConverterConfig):
    """Keys of StringConverter."""

    converter_encoding: Annotated[str, Option(
        _STRING, "Character set of texts.", width="MEDIUM", importance="HIGH", display="Encoding",
    )] = "UTF-8"  # fmt: skip


CONVERTER_CONFIGS: Final[dict[str, type[ConverterConfig]]] = {
    BYTE_ARRAY_CONVERTER: ConverterConfig,
    JSON_CONVERTER: JsonConverterConfig,
    STRING_CONVERTER: StringConverterConfig,
}
"""The configs of the converters that have keys."""
