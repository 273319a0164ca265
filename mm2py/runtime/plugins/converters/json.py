"""``JsonConverter``: JSON, with the schema around it unless ``schemas.enable=false``.

Flow: schema and value -> JSON text of both -> ``{"schema":…,"payload":…}``. Members are in Java's
order and numbers have Java's forms, so that both write the same bytes.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Final, cast, final

from mm2py.api.schema import DATE, DECIMAL, TIME, TIMESTAMP, Schema, SchemaType
from mm2py.config.framework import JSON_CONVERTER
from mm2py.runtime.plugins.converters.converter import DataError, java_float, parsed_json, type_name

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_BITS: Final = {
    SchemaType.INT8: 7,
    SchemaType.INT16: 15,
    SchemaType.INT32: 31,
    SchemaType.INT64: 63,
}


@final
class JsonConverter:
    """Implements ``Converter``.

    Args:
        schemas: write each value together with its schema (``schemas.enable``).
        numeric_decimals: write decimals as numbers, not as Base64 (``decimal.format``).
        fill_defaults: write the schema's default where there is no value.
    """

    java_class: str = JSON_CONVERTER

    def __init__(
        self, *, schemas: bool = True, numeric_decimals: bool = False, fill_defaults: bool = True
    ) -> None:
        self._schemas = schemas
        self._numeric_decimals = numeric_decimals
        self._fill_defaults = fill_defaults
        self._reader = _PayloadReader(fill_defaults)
        self._known: dict[int, tuple[Schema, str]] = {}
        self._logical: dict[str, Callable[[Schema, object], str]] = {
            DECIMAL: self._decimal,
            DATE: _date,
            TIME: _time,
            TIMESTAMP: _timestamp,
        }

    def to_bytes(self, schema: Schema | None, value: object) -> bytes | None:
        """Return the JSON; no schema and no value is a null record value."""
        if schema is None and value is None:
            return None
        payload = self._payload(schema, value)
        if self._schemas:
            around = "null" if schema is None else self._schema_once(schema)
            payload = f'{{"schema":{around},"payload":{payload}}}'
        try:
            return payload.encode()
        except UnicodeEncodeError:
            raise DataError("a text holds half a character, which no encoding can write") from None

    # ---- schemas

    def from_bytes(self, data: bytes | None) -> object:
        """Return the value; with schemas that of the payload, bytes of it decoded."""
        if data is None:
            return None
        try:
            envelope = parsed_json(data, exact=self._schemas)
        except ValueError as error:
            raise DataError(
                "Converting byte[] to Kafka Connect data failed due to serialization error: "
                f"{error}"
            ) from error
        if not self._schemas:
            return envelope
        if not isinstance(envelope, dict) or envelope.keys() != {"schema", "payload"}:
            raise DataError(
                'JsonConverter with schemas.enable requires "schema" and "payload" fields and may '
                "not contain additional fields. If you are trying to deserialize plain JSON data, "
                "set schemas.enable=false in your converter configuration."
            )
        whole = cast("Mapping[str, object]", envelope)
        return self._reader.read(whole["schema"], whole["payload"])

    def _schema_once(self, schema: Schema) -> str:
        # By identity: comparing schemas costs more than writing them.
        known = self._known.get(id(schema))
        if known is None:
            if len(self._known) >= 1_000:
                self._known.clear()
            # Kept with the schema, so that its id stays its own.
            known = self._known[id(schema)] = (schema, _object(self._described(schema)))
        return known[1]

    def _described(self, schema: Schema) -> dict[str, str]:
        """Return the members of a schema's JSON, in Java's order."""
        members = {"type": _text(schema.type.value)}
        if schema.type is SchemaType.ARRAY:
            members["items"] = self._of(schema.items, "items")
        elif schema.type is SchemaType.MAP:
            members["keys"] = self._of(schema.keys, "keys")
            members["values"] = self._of(schema.items, "values")
        elif schema.type is SchemaType.STRUCT:
            members["fields"] = _array(
                _object(self._described(each.schema) | {"field": _text(each.name)})
                for each in schema.fields
            )
        members["optional"] = "true" if schema.optional else "false"
        if schema.name is not None:
            members["name"] = _text(schema.name)
        if schema.version is not None:
            members["version"] = str(schema.version)
        if schema.doc is not None:
            members["doc"] = _text(schema.doc)
        if schema.parameters:
            members["parameters"] = _object({k: _text(v) for k, v in schema.parameters.items()})
        if schema.default is not None:
            members["default"] = self._payload(schema, schema.default)
        return members

    def _of(self, schema: Schema | None, what: str) -> str:
        if schema is None:
            raise DataError(f"a schema of an array or map has no {what}")
        return _object(self._described(schema))

    # ---- values

    def _payload(self, schema: Schema | None, value: object) -> str:
        if schema is None:
            return self._untyped(value)
        if value is None:
            if schema.default is not None and self._fill_defaults:
                return self._payload(schema, schema.default)
            if schema.optional:
                return "null"
            raise DataError(
                "Conversion error: null value for field that is required and has no default value"
            )
        logical = self._logical.get(schema.name or "")
        return self._typed(schema, value) if logical is None else logical(schema, value)

    def _untyped(self, value: object) -> str:
        match value:
            case None:
                return "null"
            case bool() | int() | float() | str() | bytes():
                return _scalar(value)
            case Mapping():
                pairs = cast("Mapping[object, object]", value)
                if all(isinstance(key, str) for key in pairs):
                    return _object({str(k): self._untyped(v) for k, v in pairs.items()})
                return _array(
                    _array((self._untyped(k), self._untyped(v))) for k, v in pairs.items()
                )
            case list() | tuple():
                return _array(map(self._untyped, cast("Sequence[object]", value)))
            case _:
                raise DataError(f"values of type {type_name(value)} need a schema")

    def _typed(self, schema: Schema, value: object) -> str:
        match schema.type, value:
            case SchemaType.STRUCT, Mapping():
                members = cast("Mapping[str, object]", value)
                return _object(
                    {
                        field.name: self._payload(field.schema, members.get(field.name))
                        for field in schema.fields
                    }
                )
            case SchemaType.ARRAY, list() | tuple():
                items = cast("Sequence[object]", value)
                return _array(self._payload(schema.items, it) for it in items)
            case SchemaType.MAP, Mapping():
                return self._map(schema, cast("Mapping[object, object]", value))
            case _:
                return _checked(schema.type, value)

    def _map(self, schema: Schema, pairs: Mapping[object, object]) -> str:
        if schema.keys is not None and schema.keys.type is SchemaType.STRING:
            return _object({str(k): self._payload(schema.items, v) for k, v in pairs.items()})
        return _array(
            _array((self._payload(schema.keys, k), self._payload(schema.items, v)))
            for k, v in pairs.items()
        )

    def _decimal(self, schema: Schema, value: object) -> str:
        if not isinstance(value, Decimal) or not value.is_finite():
            raise DataError(f"Invalid type for Decimal: {type_name(value)}")
        exponent = cast("int", value.as_tuple().exponent)
        if str(-exponent) != schema.parameters.get("scale", "").strip():
            raise DataError("Decimal value has mismatching scale for given Decimal schema")
        if self._numeric_decimals:
            return str(value)
        # Arithmetic would round to the 28 digits of the context.
        unscaled = int(Decimal((*value.as_tuple()[:2], 0)))
        width = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return _scalar(unscaled.to_bytes(width, "big", signed=True))


def _checked(kind: SchemaType, value: object) -> str:
    match kind, value:
        case SchemaType.BOOLEAN, bool():
            return _scalar(value)
        case SchemaType.STRING, str():
            return _scalar(value)
        case SchemaType.BYTES, bytes():
            return _scalar(value)
        case ((SchemaType.FLOAT32 | SchemaType.FLOAT64), int() | float()) if not isinstance(
            value, bool
        ):
            return _number(float(value), single=kind is SchemaType.FLOAT32)
        case _, int() if kind in _BITS and not isinstance(value, bool):
            limit = 1 << _BITS[kind]
            if -limit <= value < limit:
                return str(value)
        case _:
            pass
    raise DataError(f"Invalid type for {kind.name}: {type_name(value)}")


def _scalar(value: bool | float | str | bytes) -> str:  # noqa: FBT001 - a value, not a switch
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _number(value)
        case bytes():
            return _text(base64.b64encode(value).decode())
        case str():
            return _text(value)


def _number(value: float, *, single: bool = False) -> str:
    text = java_float(value, single=single)
    # Jackson quotes what is no JSON number.
    return f'"{text}"' if text[-1] in "Ny" else text


def _date(_schema: Schema, value: object) -> str:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise DataError(f"Invalid type for Date: {type_name(value)}")
    return str((value - _EPOCH.date()).days)


def _time(_schema: Schema, value: object) -> str:
    if not isinstance(value, time):
        raise DataError(f"Invalid type for Time: {type_name(value)}")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return str(seconds * 1000 + value.microsecond // 1000)


def _timestamp(_schema: Schema, value: object) -> str:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise DataError(f"Invalid type for Timestamp: {type_name(value)} (it needs a time zone)")
    return str((value - _EPOCH) // _MS)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(members: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{_text(name)}:{text}" for name, text in members.items()) + "}"


def _array(items: Iterable[str]) -> str:
    return "[" + ",".join(items) + "]"


# ---- the way back


@final
@dataclass(frozen=True, slots=True)
class _PayloadReader:
    """Reads payloads by their schema, both as JSON (``JsonConverter.convertToConnect``); floats of
    the payload are ``Decimal``."""

    fill_defaults: bool

    def read(self, schema: object, payload: object) -> object:
        """Return a payload in the types of ``mm2py.api.schema``; one of another JSON type than its
        schema's stays as it is. ``DataError``: it cannot be read."""
        if not isinstance(schema, Mapping):
            return _without_schema(payload)
        described = cast("Mapping[str, object]", schema)
        if payload is None:
            return self._absent(described)
        logical = _LOGICAL.get(str(described.get("name", "")))
        return self._typed(described, payload) if logical is None else logical(described, payload)

    def _typed(self, described: Mapping[str, object], payload: object) -> object:
        match described.get("type"), payload:
            case SchemaType.BYTES, str():
                return _bytes_of(payload)
            case SchemaType.ARRAY, list():
                items = described.get("items")
                return [self.read(items, it) for it in cast("list[object]", payload)]
            case SchemaType.MAP, _:
                return self._map(described, payload)
            case SchemaType.STRUCT, Mapping():
                return self._struct(described, cast("Mapping[str, object]", payload))
            case ((SchemaType.FLOAT32 | SchemaType.FLOAT64), int() | Decimal()):
                return float(payload)
            case _:
                return _without_schema(payload)

    def _absent(self, schema: Mapping[str, object]) -> object:
        default = schema.get("default")
        if default is not None and self.fill_defaults:
            return self.read(schema, default)
        if schema.get("optional") is True:
            return None
        kind = str(schema.get("type")).upper()
        raise DataError(f"Invalid null value for required {kind} field")

    def _struct(self, schema: Mapping[str, object], members: Mapping[str, object]) -> object:
        fields = cast("list[Mapping[str, object]]", schema.get("fields") or [])
        names = [str(field["field"]) for field in fields]
        pairs = zip(names, fields, strict=True)
        return {name: self.read(field, members.get(name)) for name, field in pairs}

    def _map(self, schema: Mapping[str, object], payload: object) -> object:
        """Return a map: of texts as an object, of other keys as pairs."""
        keys, items = schema.get("keys"), schema.get("values")
        if isinstance(payload, Mapping):
            pairs = cast("Mapping[str, object]", payload).items()
            return {name: self.read(items, it) for name, it in pairs}
        try:
            listed = cast("list[tuple[object, object]]", payload)
            return {self.read(keys, key): self.read(items, it) for key, it in listed}
        except (TypeError, ValueError):
            raise DataError(
                "Maps with non-string fields should be encoded as JSON array of tuples"
            ) from None


def _without_schema(payload: object) -> object:
    match payload:
        case Decimal():
            return float(payload)
        case list():
            return [_without_schema(it) for it in cast("list[object]", payload)]
        case Mapping():
            pairs = cast("Mapping[str, object]", payload).items()
            return {name: _without_schema(it) for name, it in pairs}
        case _:
            return payload


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise DataError("Invalid bytes field") from None


def _read_decimal(schema: Mapping[str, object], payload: object) -> object:
    if isinstance(payload, int | Decimal) and not isinstance(payload, bool):
        return Decimal(payload)
    parameters = cast("Mapping[str, str]", schema.get("parameters") or {})
    try:
        scale = int(parameters["scale"])
        unscaled = int.from_bytes(_bytes_of(cast("str", payload)), signed=True)
        # Arithmetic would round to the 28 digits of the context.
        return Decimal(f"{unscaled}E{-scale}")
    except (TypeError, ValueError, KeyError):
        raise DataError("Invalid bytes for Decimal field") from None


def _instant(name: str, made: Callable[[int], object]) -> Callable[[object, object], object]:
    def read(_schema: object, payload: object) -> object:
        try:
            if isinstance(payload, int) and not isinstance(payload, bool):
                return made(payload)
        except OverflowError:  # Python's years end with 9999
            pass
        raise DataError(f"Invalid type for {name}, underlying representation should be integer")

    return read


_LOGICAL: Final[Mapping[str, Callable[[Mapping[str, object], object], object]]] = {
    DECIMAL: _read_decimal,
    DATE: _instant("Date", lambda days: _EPOCH.date() + timedelta(days)),
    TIME: _instant("Time", lambda ms: (_EPOCH + ms * _MS).time()),
    TIMESTAMP: _instant("Timestamp", lambda ms: _EPOCH + ms * _MS),
}
