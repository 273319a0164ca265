"""Java's reading of a property text: ``ConfigDef.parseType`` for the types that Kafka uses."""

import re
from enum import StrEnum
from typing import Final

from mm2py.errors import ConfigError

_TYPE_TEXT: Final = {
    "boolean": "true or false",
    "short": "a whole number between -32768 and 32767",
    "int": "a whole number of 32 bits",
    "long": "a whole number of 64 bits",
    "double": "a number",
}

JavaValue = bool | int | float | str | tuple[str, ...] | None


class JavaType(StrEnum):
    """``ConfigDef.Type``; ``PATTERNS`` is a LIST whose items are regular expressions."""

    BOOLEAN = "boolean"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    PATTERNS = "patterns"
    CLASS = "class"
    PASSWORD = "password"  # noqa: S105 -- the name of a type


_BITS: Final = {JavaType.SHORT: 15, JavaType.INT: 31, JavaType.LONG: 63}
# Integer.parseInt takes a sign but no underscores or blanks inside, which int() would take.
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
# As Double.parseDouble with its type letter (1.5d);
# NaN, Infinity and hexadecimal forms are refused.
_DOUBLE: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?")
_JAVA_TRIM: Final = "".join(chr(c) for c in range(0x21))
"""``String.trim`` removes every character up to and including the blank."""
_COMMA: Final = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")


def parse_list(text: str) -> tuple[str, ...]:
    """Split at commas, blanks around them removed; an empty text is an empty list."""
    trimmed = text.strip(_JAVA_TRIM)
    # As String.split with a limit: ``a,,b`` has an empty
    # item in the middle, and so has ``a,`` at its end.
    return tuple(_COMMA.split(trimmed)) if trimmed else ()


def parse_boolean_leniently(text: str | None, *, absent: bool) -> bool:
    """``Boolean.parseBoolean`` as the MM2 driver uses it, on the trimmed text.

    Java does not trim here, so that ``enabled = true`` with a trailing blank is false; that would
    copy nothing, so a flow switch is trimmed.
    """
    return absent if text is None else text.strip(_JAVA_TRIM).lower() == "true"


def parse_value(kind: JavaType, text: str) -> JavaValue:
    """Parse ``text`` as Java does; ``ConfigError``: the text is no value of this type; the message
    does not name the property."""
    trimmed = text.strip(_JAVA_TRIM)
    if kind is JavaType.BOOLEAN:
        # ConfigDef.parseType is strict here, other than Boolean.parseBoolean.
        if trimmed.lower() not in ("true", "false"):
            raise _refusal(kind)
        return trimmed.lower() == "true"
    if kind in _BITS:
        bits = _BITS[kind]
        if not _INTEGER.fullmatch(trimmed) or not -(1 << bits) <= int(trimmed) < 1 << bits:
            raise _refusal(kind)
        return int(trimmed)
    if kind is JavaType.DOUBLE:
        if not _DOUBLE.fullmatch(trimmed):
            raise _refusal(kind)
        return float(trimmed.rstrip("dDfF"))
    if kind in (JavaType.LIST, JavaType.PATTERNS):
        return parse_list(text)
    return trimmed


def invalid(name: str, value: JavaValue, reason: str) -> str:
    """Return Java's sentence for a wrong value."""
    return f"Invalid value {rendered(value)} for configuration {name}: {reason}"


def rendered(value: JavaValue) -> str:
    """Return a value as Java's texts show it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    # ``AbstractCollection.toString``.
    return f"[{', '.join(value)}]" if isinstance(value, tuple) else str(value)


def _refusal(kind: JavaType) -> ConfigError:
    return ConfigError(f"must be {_TYPE_TEXT[kind.value]}")
