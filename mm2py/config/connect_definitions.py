"""How Connect describes the keys of a config, and what it answers about each value, in Java's words
(``ConfigDef``).

Flow: ``Option`` -> ``described`` -> ``ConfigKey``; ``Option`` and a config -> ``check_value`` ->
``ConfigValue`` -> ``ConfigInfos``, the answer of validate, or the text of a refusal. Types,
importance and width are Java's words. Values of keys that hold secrets appear neither in an answer
nor in an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mm2py.config.class_names import canonical_class, is_foreign_java_class
from mm2py.config.client_options import CLIENT_OPTIONS, SECURITY_OPTIONS
from mm2py.config.definitions import ConfigModel, Effect, Option, options_of, refusal_of
from mm2py.config.framework import FrameworkConfig, SinkFrameworkConfig, SourceFrameworkConfig
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import JavaType, JavaValue, invalid, parse_value, rendered
from mm2py.config.secret_names import names_a_secret
from mm2py.config.worker import ProcessConfig
from mm2py.errors import ConfigError

HIDDEN: Final = "[hidden]"
_SHOWN_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """Definition of one key (Java's ``ConfigKeyInfo``)."""

    name: str
    type: str
    required: bool
    default_value: str | None
    importance: str
    documentation: str
    group: str | None
    order_in_group: int
    width: str
    display_name: str
    dependents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """Value and errors of one key (Java's ``ConfigValueInfo``)."""

    name: str
    value: str | None
    recommended_values: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    visible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfos:
    """Outcome of a validation (Java's class of the same name)."""

    name: str
    error_count: int
    groups: tuple[str, ...]
    configs: tuple[tuple[ConfigKey | None, ConfigValue | None], ...]

    def errors(self) -> list[str]:
        return [e for _, value in self.configs if value is not None for e in value.errors]

    def refusal(self) -> str | None:
        """Return the text that refuses the config, None where nothing is wrong.

        ``{connectorType}`` is literally part of it, as in Java.
        """
        if self.error_count == 0:
            return None
        lines = [
            "Connector configuration is invalid and contains the following"
            f" {self.error_count} error(s):",
            *self.errors(),
            "You can also find the above list of errors at the endpoint"
            " `/connector-plugins/{connectorType}/config/validate`",
        ]
        return "\n".join(lines)


def _javas(model: type[ConfigModel]) -> tuple[Option, ...]:
    return tuple(option for option in options_of(model).values() if not option.ours)


COMMON_KEYS: Final = _javas(FrameworkConfig)
"""The keys that Connect reads of every connector, in Java's order."""

_KEYS: Final = {"source": _javas(SourceFrameworkConfig), "sink": _javas(SinkFrameworkConfig)}
# As the hash set of Java's case-insensitive check has them.
_PROTOCOLS: Final = ("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT")
_CLIENT_KEYS: Final = (
    replace(SECURITY_OPTIONS["security.protocol"], choices=_PROTOCOLS),
    options_of(ProcessConfig)["config.providers"],
    *(option for name, option in SECURITY_OPTIONS.items() if name != "security.protocol"),
)
"""The client keys that Java lists with the mirror connectors, in Java's order."""


def connector_keys(plugin_type: str) -> Sequence[Option]:
    """Return the keys that Connect reads of a connector of this type, in Java's order."""
    return _KEYS.get(plugin_type, COMMON_KEYS)


def own_keys(model: type[ConfigModel]) -> Sequence[Option]:
    """Return the keys that a connector defines itself, Java's before ours; Connect's own ones are
    left out.

    A connector that knows both ends of a flow also lists the client keys, as in Java.
    """
    common = {option.name for option in COMMON_KEYS}
    own = [option for name, option in options_of(model).items() if name not in common]
    names = [option.name for option in own]
    if "source.cluster.alias" in names:
        behind = names.index("metric.reporters") + 1
        own[behind:behind] = _CLIENT_KEYS
    return sorted(own, key=lambda option: option.ours)


def override_option(name: str) -> Option | None:
    """Return a client property as Java's producer and admin client check it, None for none."""
    option = CLIENT_OPTIONS.get(name)
    return None if option is None else replace(option, any_case=False, nullable=False)


def described(option: Option, prefix: str = "") -> ConfigKey:
    """Return Connect's description of an option; ``prefix`` is put in front of its name."""
    default = option.default
    if option.kinds and option.java_default is not None:
        default = option.java_default  # of a client: what Java's client does where nothing is set
    secret = option.type is JavaType.PASSWORD
    return ConfigKey(
        name=prefix + option.name,
        type=_type_word(option.type),
        required=option.required,
        default_value=HIDDEN if default and secret else default,
        importance=option.importance,
        documentation=_documentation(option),
        group=option.group,
        order_in_group=option.order,
        width=option.width,
        display_name=option.display or option.name,
    )


def check_value(
    option: Option, props: Mapping[str, str | None], *, prefix: str = ""
) -> ConfigValue:
    """Return a key's value as Connect shows it, and what is wrong with it."""
    name = prefix + option.name
    if name not in props:
        missing = f'Missing required configuration "{name}" which has no default value.'
        default = described(option).default_value
        return ConfigValue(name=name, value=default, errors=(missing,) if option.required else ())
    secret = option.type is JavaType.PASSWORD or names_a_secret(name)
    text, value, errors = props[name], None, list[str]()
    if text is not None:
        value, problem = _parsed(option, text)
        if problem:
            errors.append(invalid(name, HIDDEN if secret else text, problem))
    errors.extend(filter(None, _problems(option, name, value)))
    if secret and text:
        # A check's text holds the value it refuses.
        errors = [error.replace(text, HIDDEN) for error in errors]
    return ConfigValue(name=name, value=_shown(value, secret=secret), errors=tuple(errors))


def _problems(option: Option, name: str, value: JavaValue) -> list[str]:
    further = [check(name, value) for check in option.checks]
    if option.type in (JavaType.LIST, JavaType.PATTERNS):
        return further or _list_problems(option, name, value)
    bounded = option.low is not None or option.high is not None
    if value is None and bounded and not option.nullable:
        return [invalid(name, None, "Value must be non-null"), *further]
    # Java's list of choices does not hold null.
    refusal = refusal_of(option, "null" if value is None and option.choices else value)
    if refusal is None:
        return further
    return [invalid(name, None if value is None else refusal.value, refusal.java), *further]


def _list_problems(option: Option, name: str, value: JavaValue) -> list[str]:
    problems = [_list_problem(option, name, value)]
    if option.type is JavaType.PATTERNS and isinstance(value, tuple):
        problems.append(_pattern_problem(name, value))
    return problems


def _list_problem(option: Option, name: str, value: JavaValue) -> str:
    """Lists without empty and without repeated items (``ValidList``)."""
    if value is None:
        return f"Configuration '{name}' values must not be null."
    items = value if isinstance(value, tuple) else ()
    if not all(items):
        return f"Configuration '{name}' values must not be empty."
    if len(set(items)) < len(items):
        return f"Configuration '{name}' values must not be duplicated."
    if option.choices and not items:
        words = ", ".join(option.choices)
        return f"Configuration '{name}' must not be empty. Valid values include: [{words}]"
    refusal = refusal_of(option, items)
    if refusal is not None:
        return invalid(name, refusal.value, refusal.java)
    return ""


def _pattern_problem(name: str, patterns: tuple[str, ...]) -> str:
    """Java finds a wrong pattern only when the connector starts."""
    try:
        PatternList(patterns)
    except ConfigError as error:
        text = ",".join(patterns)
        shown = text if len(text) <= _SHOWN_CHARS else f"of {len(patterns)} patterns"
        return invalid(name, shown, f"Invalid regex: {error.message}")
    return ""


def _parsed(option: Option, text: str) -> tuple[JavaValue, str]:
    try:
        value = parse_value(option.type, text)
    except ConfigError:
        if option.type is JavaType.BOOLEAN:
            return None, "Expected value to be either true or false"
        return None, f"Not a number of type {_type_word(option.type)}"
    if option.type is JavaType.CLASS and option.class_problem is not None:
        problem = option.class_problem(str(value))
        return (None, problem) if problem else (value, "")
    if option.type is JavaType.CLASS and value and is_foreign_java_class(str(value)):
        return None, f"Class {canonical_class(str(value))} could not be found."
    return value, ""


def _shown(value: JavaValue, *, secret: bool) -> str | None:
    if value is None:
        return None
    if secret:
        return HIDDEN
    return ",".join(value) if isinstance(value, tuple) else rendered(value)


def _type_word(kind: JavaType) -> str:
    return "LIST" if kind is JavaType.PATTERNS else kind.value.upper()


def _documentation(option: Option) -> str:
    parts = [option.doc]
    if option.effect is not Effect.HONOURED and not option.kinds:
        parts.insert(0, f"{option.effect.value.capitalize()}.")
    if option.unit:
        parts.append(f"Unit: {option.unit}.")
    if option.java_default is not None and not option.ours and not option.kinds:
        parts.append(f"Java's default: {option.java_default}.")
    return " ".join(parts)
