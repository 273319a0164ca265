"""Values as Java writes them: ``Object.toString``, and the text of ``SimpleHeaderConverter``.

Flow: value -> text. Both are pure; numbers have Java's forms (``1.0``, ``1.0E10``).
"""

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Final, cast

from mm2py.runtime.plugins.converters.converter import DataError, type_name

_LOW, _HIGH = 1e-3, 1e7
_DIGITS_OF_FLOAT32: Final = 9
_WORDS: Final = {None: "null", True: "true", False: "false"}


def java_float(value: float, *, single: bool = False) -> str:
    """Return a number as ``Double.toString``, or ``Float.toString`` where it is ``single``."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    shortest = _shortest_single(value) if single else repr(value)
    sign, digits, exponent = Decimal(shortest).as_tuple()
    assert isinstance(exponent, int), "it is finite"
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    text = "".join(map(str, digits)).rstrip("0") or "0"
    exponent += len(digits) - len(text)
    if _LOW <= abs(value) < _HIGH:
        plain = format(abs(Decimal(shortest)), "f")
        whole, _, part = plain.partition(".")
        return f"{minus}{whole}.{part.rstrip('0') or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{exponent + len(text) - 1}"


def java_string(value: object) -> str:
    """Return a value as ``toString`` of its Java counterpart.

    Raises:
        DataError: Java would write what means nothing to a reader, as for bytes.
    """
    match value:
        case str():
            return value
        case None | bool():
            return _WORDS[value]
        case int() | Decimal():
            return str(value)
        case float():
            return java_float(value)
        case Mapping():
            pairs = cast("Mapping[object, object]", value).items()
            return "{" + ", ".join(f"{java_string(k)}={java_string(v)}" for k, v in pairs) + "}"
        case list() | tuple():
            items = cast("Sequence[object]", value)
            return "[" + ", ".join(map(java_string, items)) + "]"
        case _:
            raise DataError(f"values of type {type_name(value)} have no text")


def header_text(value: object, *, inside: bool = False) -> str:
    """Return a value as ``Values.convertToString``; texts are quoted ``inside`` of others.

    Raises:
        DataError: it has no such text.
    """
    match value:
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"' if inside else value
        case bytes():
            text = base64.b64encode(value).decode()
            return f'"{text}"' if inside else text
        case Mapping():
            pairs = cast("Mapping[object, object]", value).items()
            return "{" + ",".join(f"{_inside(k)}:{_inside(v)}" for k, v in pairs) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_inside, cast("Sequence[object]", value))) + "]"
        case datetime() | date() | time():
            return _instant(value)
        case _:
            return java_string(value)


def _inside(value: object) -> str:
    return header_text(value, inside=True)


def _instant(value: date | time) -> str:
    """ISO 8601 in UTC with milliseconds; a date alone for a date, a time alone for a time."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, time):
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
    return value.isoformat()


def _shortest_single(value: float) -> str:
    packed = struct.pack(">f", value)
    for digits in range(1, _DIGITS_OF_FLOAT32):
        text = f"{value:.{digits}g}"
        if struct.pack(">f", float(text)) == packed:
            return text
    return f"{value:.{_DIGITS_OF_FLOAT32}g}"
