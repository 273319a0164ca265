"""Which converters a task's records pass: the connector's own, else the worker's.

Flow: worker and connector config -> ``record_converters`` -> ``RecordConverters`` -> bytes of a
``SourceRecord``. Bytes without a schema are already serialized and are passed on.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, final

from mm2py.api.records import SinkRecord, SourceRecord
from mm2py.api.schema import Schema, SchemaAndValue
from mm2py.config.class_names import BYTE_ARRAY_CONVERTER, SIMPLE_HEADER_CONVERTER
from mm2py.config.client_properties import with_prefix
from mm2py.config.definitions import parse_config
from mm2py.config.framework import (
    JSON_CONVERTER,
    NUMBER_CONVERTERS,
    STRING_CONVERTER,
    JsonConverterConfig,
    StringConverterConfig,
    converter_class,
    converter_problem,
)
from mm2py.errors import ConfigError
from mm2py.runtime.plugins.converters.converter import (
    ByteArrayConverter,
    Converter,
    DataError,
    NumberConverter,
    SimpleHeaderConverter,
    StringConverter,
)
from mm2py.runtime.plugins.converters.json import JsonConverter

HEADER_NAMES: Final = "surrogateescape"
"""Error handler of their encoding: any bytes survive ``str``, UTF-8 or not."""


class Encoded(NamedTuple):
    """A record's bytes."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


_Factory = Callable[[Mapping[str, str], Callable[[str], str]], Converter]
"""Makes a converter from its own keys; the second returns a key's full name, for errors."""


@final
@dataclass(frozen=True, slots=True)
class RecordConverters:
    """The three converters of one task."""

    key: Converter
    value: Converter
    header: Converter

    @property
    def are_bytes(self) -> bool:
        return all(isinstance(it, ByteArrayConverter) for it in (self.key, self.value, self.header))

    def encoded(self, record: SourceRecord) -> Encoded:
        """Return the bytes of a record; as ``encoded_parts``."""
        schemas = record.key_schema, record.value_schema
        return self.encoded_parts(record.key, record.value, record.headers, *schemas)

    def encoded_parts(
        self,
        key: object,
        value: object,
        with_headers: Iterable[tuple[bytes | str, object]],
        key_schema: Schema | None = None,
        value_schema: Schema | None = None,
    ) -> Encoded:
        """Return the bytes of key, value and headers; ``DataError``: one of them cannot be
        converted; the message names it."""
        headers: list[tuple[bytes, bytes | None]] = []
        for name, header in with_headers:
            schema = None
            if isinstance(header, SchemaAndValue):
                schema, header = header.schema, header.value  # noqa: PLW2901 - unpacked
            raw = name if isinstance(name, bytes) else name.encode(errors=HEADER_NAMES)
            headers.append((raw, _bytes(self.header, schema, header, "a header")))
        return Encoded(
            _bytes(self.key, key_schema, key, "the key"),
            _bytes(self.value, value_schema, value, "the value"),
            tuple(headers),
        )

    def decoded_key(self, record: SinkRecord) -> SinkRecord:
        """Return a record that was read with its key converted; ``DataError``: that cannot be."""
        return record._replace(key=self.key.from_bytes(_raw(record.key)))

    def decoded_value(self, record: SinkRecord) -> SinkRecord:
        """Return a record that was read with its value converted; ``DataError``: that cannot be."""
        return record._replace(value=self.value.from_bytes(_raw(record.value)))

    def decoded_headers(self, record: SinkRecord) -> SinkRecord:
        """Return a read record with converted headers; ``DataError``: that cannot be."""
        convert = self.header.from_bytes
        headers = tuple((name, convert(_raw(value))) for name, value in record.headers)
        return record._replace(headers=headers) if headers else record


def _raw(value: object) -> bytes | None:
    assert value is None or isinstance(value, bytes), "what was read is bytes"
    return value


BYTES_ONLY: Final = RecordConverters(
    ByteArrayConverter(), ByteArrayConverter(), ByteArrayConverter()
)
"""The default: bytes stay bytes."""


def _bytes(converter: Converter, schema: Schema | None, value: object, what: str) -> bytes | None:
    if schema is None and (value is None or isinstance(value, bytes)):
        return value
    try:
        return converter.to_bytes(schema, value)
    except DataError as error:
        raise DataError(
            f"{what} cannot be converted: {error.message}", remedy=error.remedy
        ) from error


def record_converters(worker: Mapping[str, str], connector: Mapping[str, str]) -> RecordConverters:
    """Return the converters of a connector's tasks; ``ConfigError``: a converter, or one of its
    keys, is wrong."""
    return RecordConverters(*(_converter(role, worker, connector) for role in _DEFAULTS))


_DEFAULTS: Final = {
    "key": BYTE_ARRAY_CONVERTER,
    "value": BYTE_ARRAY_CONVERTER,
    "header": SIMPLE_HEADER_CONVERTER,
}


def _converter(role: str, worker: Mapping[str, str], connector: Mapping[str, str]) -> Converter:
    name = f"{role}.converter"
    # A connector that names a converter brings its keys too; the worker's are not mixed in.
    props = connector if connector.get(name, "").strip() else worker
    class_name = props.get(name, "").strip() or _DEFAULTS[role]
    problem = converter_problem(class_name, role)
    if problem:
        raise ConfigError(
            f"{name}={class_name}: {problem}", remedy="name a converter of Kafka Connect"
        )
    full = converter_class(class_name)
    prefix = f"{role}.converter."
    return _FACTORIES[full](with_prefix(props, prefix), lambda key: prefix + key)


def _string(own: Mapping[str, str], origin: Callable[[str], str]) -> Converter:
    return StringConverter(parse_config(StringConverterConfig, own, origin).converter_encoding)


def _json(own: Mapping[str, str], origin: Callable[[str], str]) -> Converter:
    config = parse_config(JsonConverterConfig, own, origin)
    return JsonConverter(
        schemas=config.schemas_enable,
        numeric_decimals=config.decimal_format.lower() == "numeric",
        fill_defaults=config.replace_null_with_default,
    )


def _number(full: str) -> _Factory:
    kind = full.rpartition(".")[2].removesuffix("Converter")
    return lambda _own, _origin: NumberConverter(kind)


_FACTORIES: Final[Mapping[str, _Factory]] = {
    BYTE_ARRAY_CONVERTER: lambda _own, _origin: ByteArrayConverter(),
    STRING_CONVERTER: _string,
    JSON_CONVERTER: _json,
    SIMPLE_HEADER_CONVERTER: lambda _own, _origin: SimpleHeaderConverter(),
    **{name: _number(name) for name in NUMBER_CONVERTERS},
}
