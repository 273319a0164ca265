"""What Connect says of one value: its type, then its checks, in Java's words (``ConfigDef``).

Flow: ``Definition`` and a config -> ``check_value`` -> ``ConfigValue``. Values of keys that hold
secrets appear neither in the answer nor in an error.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from mm2py.config.connect_definitions import ConfigKey, ConfigValue
from mm2py.config.java_regex import PatternList
from mm2py.config.java_values import JavaType, JavaValue, parse_value
from mm2py.config.secret_names import names_a_secret
from mm2py.errors import ConfigError

__all__ = [
    "HIDDEN",
    "Check",
    "Definition",
    "aliases",
    "at_least",
    "check_value",
    "clear_text",
    "compiles",
    "free_list",
    "invalid",
    "items_of",
    "java_type",
    "not_empty",
    "one_of",
]

HIDDEN: Final = "[hidden]"
_SHOWN_CHARS: Final = 200

Check = Callable[[str, JavaValue], str]
"""Gets name and value (None: no value), returns the whole error text, empty where all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A key and how its values are checked.

    ``classes`` says of a CLASS value why it cannot be used, empty where it can.
    """

    key: ConfigKey
    kind: JavaType
    checks: tuple[Check, ...] = ()
    classes: Callable[[str], str] | None = None

    @property
    def secret(self) -> bool:
        """Whether its values must not be shown."""
        return self.kind is JavaType.PASSWORD or names_a_secret(self.key.name)


def java_type(kind: JavaType) -> str:
    """Return Java's word for a type."""
    return "LIST" if kind is JavaType.PATTERNS else kind.value.upper()


def check_value(definition: Definition, props: Mapping[str, str | None]) -> ConfigValue:
    """Return a key's value as Connect shows it, and what is wrong with it."""
    key = definition.key
    name = key.name
    if name not in props:
        missing = f'Missing required configuration "{name}" which has no default value.'
        return ConfigValue(
            name=name, value=key.default_value, errors=(missing,) if key.required else ()
        )
    text, value, errors = props[name], None, list[str]()
    if text is not None:
        value, refusal = _parsed(definition, text)
        if refusal:
            errors.append(invalid(name, HIDDEN if definition.secret else text, refusal))
    errors.extend(filter(None, (check(name, value) for check in definition.checks)))
    if definition.secret:
        # A check's text holds the value it refuses.
        errors = [_without(error, text) for error in errors]
    return ConfigValue(name=name, value=_shown(definition, value), errors=tuple(errors))


def invalid(name: str, value: JavaValue, reason: str) -> str:
    """Return Java's sentence for a wrong value."""
    return f"Invalid value {_rendered(value)} for configuration {name}: {reason}"


def at_least(
    low: float | None,
    high: float | None = None,
    *,
    nullable: bool = False,
    never: Collection[int] = (),
) -> Check:
    """Numbers between two bounds (``ConfigDef.Range``); ``nullable`` where Java has no such check."""

    def check(name: str, value: JavaValue) -> str:
        if value is None:
            return "" if nullable else invalid(name, None, "Value must be non-null")
        if not isinstance(value, int | float):
            return ""
        if low is not None and value < low:
            return invalid(name, value, f"Value must be at least {_rendered(low)}")
        if high is not None and value > high:
            return invalid(name, value, f"Value must be no more than {_rendered(high)}")
        return invalid(name, value, f"Value must not be {value}") if value in never else ""

    return check


def one_of(choices: Collection[str], *, any_case: bool = False) -> Check:
    """One of some words (``ValidString``, ``CaseInsensitiveValidString``); none is not one of them."""
    how = " (case insensitive)" if any_case else ""
    reason = f"String must be one of{how}: {', '.join(choices)}"
    known = {word.upper() for word in choices} if any_case else set(choices)

    def check(name: str, value: JavaValue) -> str:
        found = isinstance(value, str) and (value.upper() if any_case else value) in known
        return "" if found else invalid(name, value, reason)

    return check


def free_list(name: str, value: JavaValue) -> str:
    """Lists without empty and without repeated items (``ValidList.anyNonDuplicateValues``)."""
    if value is None:
        return f"Configuration '{name}' values must not be null."
    if isinstance(value, tuple):
        if not all(value):
            return f"Configuration '{name}' values must not be empty."
        if len(set(value)) < len(value):
            return f"Configuration '{name}' values must not be duplicated."
    return ""


def items_of(*choices: str) -> Check:
    """Lists that hold at least one of some words (``ValidList.in``)."""

    def check(name: str, value: JavaValue) -> str:
        problem = free_list(name, value)
        if problem or not isinstance(value, tuple):
            return problem
        if not value:
            return (
                f"Configuration '{name}' must not be empty."
                f" Valid values include: [{', '.join(choices)}]"
            )
        wrong = next((item for item in value if item not in choices), None)
        return "" if wrong is None else one_of(choices)(name, wrong)

    return check


def aliases(name: str, value: JavaValue) -> str:
    """Lists of unique aliases."""
    if value is None:
        return invalid(name, None, "entry must be non null")
    if isinstance(value, tuple) and len(set(value)) < len(value):
        return invalid(name, value, "Duplicate alias provided.")
    return ""


def not_empty(name: str, value: JavaValue) -> str:
    """Texts that are not empty (``ConfigDef.NonEmptyString``)."""
    return invalid(name, value, "String must be non-empty") if value == "" else ""


def clear_text(name: str, value: JavaValue) -> str:
    """Texts without control characters that are not empty."""
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


def compiles(name: str, value: JavaValue) -> str:
    """Lists of patterns; Java finds a wrong one only when the connector starts."""
    patterns = value if isinstance(value, tuple) else ()
    try:
        PatternList(patterns)
    except ConfigError as error:
        text = ",".join(patterns)
        shown = text if len(text) <= _SHOWN_CHARS else f"of {len(patterns)} patterns"
        return invalid(name, shown, f"Invalid regex: {error.message}")
    return ""


def _parsed(definition: Definition, text: str) -> tuple[JavaValue, str]:
    kind = definition.kind
    try:
        value = parse_value(kind, text)
    except ConfigError:
        if kind is JavaType.BOOLEAN:
            return None, "Expected value to be either true or false"
        return None, f"Not a number of type {java_type(kind)}"
    reason = definition.classes(str(value)) if definition.classes is not None else ""
    return (None, reason) if reason else (value, "")


def _shown(definition: Definition, value: JavaValue) -> str | None:
    if value is None:
        return None
    if definition.secret:
        return HIDDEN
    return ",".join(value) if isinstance(value, tuple) else _rendered(value)


def _rendered(value: JavaValue) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)


def _without(error: str, text: str | None) -> str:
    return error.replace(text, HIDDEN) if text else error
