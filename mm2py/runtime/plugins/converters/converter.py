"""The converter contract, and every converter of Kafka Connect but the one of JSON.

Flow: value and schema of a record -> ``Converter`` -> bytes, or ``DataError``; for sinks the way
back. All are pure; texts have Java's forms (``1.0``, ``1.0E10``), because consumers compare them
with what Java wrote.
"""

import base64
import codecs
import json
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Final, NoReturn, Protocol, cast, final

from mm2py.api.schema import Schema, SchemaType
from mm2py.config.class_names import BYTE_ARRAY_CONVERTER, SIMPLE_HEADER_CONVERTER
from mm2py.config.framework import STRING_CONVERTER
from mm2py.errors import ConfigError, FatalError


class DataError(FatalError):
    """A value that a converter cannot turn into bytes, or bytes that it cannot read (Java's
    ``DataException``)."""


class Converter(Protocol):
    """Turns data into bytes, in the role of a key, value or header converter."""

    @property
    def java_class(self) -> str: ...

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the bytes of a value; ``DataError``: it cannot be converted."""
        ...

    def from_bytes(self, data: bytes | None) -> object:
        """Return the value of a record's bytes (Java's ``toConnectData``, without the schema).
        ``DataError``: they are not what this converter writes."""
        ...


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def parsed_json(data: bytes | str, *, exact: bool = False) -> object:
    """Return the value of a JSON text; ``exact``: numbers with a fraction are ``Decimal``.
    ``ValueError`` for what is none."""
    parse_float = Decimal if exact else float
    return cast("object", json.loads(data, parse_float=parse_float, parse_constant=_no_constant))


def type_name(value: object) -> str:
    """Return the type of a value, for messages: never the value itself."""
    return type(value).__name__


@final
class ByteArrayConverter:
    """Implements ``Converter``."""

    java_class: str = BYTE_ARRAY_CONVERTER

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        if schema is not None and schema.type is not SchemaType.BYTES:
            raise DataError(f"Invalid schema type for ByteArrayConverter: {schema.type.name}")
        if value is None or isinstance(value, bytes):
            return value
        raise DataError(
            f"ByteArrayConverter is not compatible with values of type {type_name(value)}",
            remedy="name another converter in key.converter, value.converter or header.converter",
        )

    def from_bytes(self, data: bytes | None) -> bytes | None:
        return data


NUMBER_FORMATS: Final = {
    "Boolean": (SchemaType.BOOLEAN, ">?"),
    "Short": (SchemaType.INT16, ">h"),
    "Integer": (SchemaType.INT32, ">i"),
    "Long": (SchemaType.INT64, ">q"),
    "Float": (SchemaType.FLOAT32, ">f"),
    "Double": (SchemaType.FLOAT64, ">d"),
}
"""Name before ``Converter`` -> what it converts, and how."""


@final
class NumberConverter:
    """Implements ``Converter`` for one width.

    Args:
        kind: a key of ``NUMBER_FORMATS``.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.java_class: str = f"org.apache.kafka.connect.converters.{kind}Converter"
        self._type, self._format = NUMBER_FORMATS[kind]

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        if schema is not None and schema.type is not self._type:
            raise DataError(f"Invalid schema type for {self._kind}Converter: {schema.type.name}")
        if value is None:
            return None
        types = (bool,) if self._kind == "Boolean" else (int, float)
        # Python's bool is an int.
        if isinstance(value, bool) is not (self._kind == "Boolean") or not isinstance(value, types):
            raise DataError(f"{self._kind}Converter cannot convert {type_name(value)}")
        try:
            return struct.pack(self._format, value)
        except (struct.error, OverflowError):
            raise DataError(
                f"{self._kind}Converter cannot convert this {type_name(value)}: it is out of range "
                "or no whole number"
            ) from None

    def from_bytes(self, data: bytes | None) -> bool | int | float | None:
        if data is None:
            return None
        size = struct.calcsize(self._format)
        if len(data) != size or (self._kind == "Boolean" and data > b"\1"):
            raise DataError(
                f"{self._kind}Converter cannot read these {len(data)} bytes, it has {size}"
            )
        (value,) = struct.unpack(self._format, data)
        return cast("bool | int | float", value)


# ---- values as Java writes them: Object.toString, and the text of SimpleHeaderConverter


_LOW, _HIGH = 1e-3, 1e7
_DIGITS_OF_FLOAT32: Final = 9
_WORDS: Final = {None: "null", True: "true", False: "false"}


def java_float(value: float, *, single: bool = False) -> str:
    """Return a number as ``Double.toString``, or ``Float.toString`` where it is ``single``."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    # Python's repr is the shortest text of the double, as Java's since 19 (JDK-4511638).
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
    """Return a value as ``toString`` of its Java counterpart; ``DataError``: Java would write what
    means nothing to a reader, as for bytes."""
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
    ``DataError``: it has no such text."""
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


_MARKS: Final = {"utf-16": b"\xfe\xff", "utf-32": b""}
"""What Java writes before texts of character sets without a byte order in their names: they are
big-endian, Python's this machine's."""
_ENDIAN_MARKS: Final = (codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE, codecs.BOM_UTF32_BE)


@final
class StringConverter:
    """Implements ``Converter``.

    Args:
        encoding: Java's name of a character set.

    Raises:
        ConfigError: it is unknown.
    """

    java_class: str = STRING_CONVERTER

    def __init__(self, encoding: str = "UTF-8") -> None:
        try:
            self._encoding = codecs.lookup(encoding.strip()).name
        except LookupError:
            raise ConfigError(
                f"converter.encoding={encoding}: no such character set", remedy="use UTF-8"
            ) from None

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the encoded text; what the character set lacks becomes ``?``."""
        if value is None:
            return None
        text = java_string(value)
        mark = _MARKS.get(self._encoding)
        if mark is not None:
            return mark + text.encode(f"{self._encoding}-be", "replace")
        return text.encode(self._encoding, "replace")

    def from_bytes(self, data: bytes | None) -> str | None:
        """Return the text; as in Java, bytes that are none become the replacement character."""
        if data is None:
            return None
        bare = self._encoding in _MARKS and not data.startswith(_ENDIAN_MARKS)
        return data.decode(f"{self._encoding}-be" if bare else self._encoding, "replace")


@final
class SimpleHeaderConverter:
    """Implements ``Converter`` for headers."""

    java_class: str = SIMPLE_HEADER_CONVERTER

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        if value is None:
            return None
        return header_text(_whole(schema, value)).encode("utf-8", "replace")

    def from_bytes(self, data: bytes | None) -> object:
        """Return what the text looks like: a truth value, a number, JSON's array or map, a text."""
        if data is None:
            return None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data  # Java's falls back to the bytes, too
        try:
            return parsed_json(text)
        except ValueError:
            return text


def _whole(schema: Schema | None, value: object) -> object:
    """Return a struct with all of its fields, in the order of its schema."""
    if schema is None or schema.type is not SchemaType.STRUCT or not isinstance(value, Mapping):
        return value
    members = cast("Mapping[str, object]", value)
    return {
        field.name: _whole(field.schema, members.get(field.name, field.schema.default))
        for field in schema.fields
    }
