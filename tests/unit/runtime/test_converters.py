"""Converters write what Java's write; the truth is what Kafka's own said (tests/java/Conversions.java)."""

import base64
import json
import math
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Final, cast

import pytest

from mm2py.api.records import SourceRecord
from mm2py.api.schema import (
    DATE,
    DECIMAL,
    TIME,
    TIMESTAMP,
    Field,
    Schema,
    SchemaAndValue,
    SchemaType,
)
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import ConfigError, FatalError
from mm2py.runtime.plugins.converters.converter import (
    NUMBER_FORMATS,
    ByteArrayConverter,
    Converter,
    DataError,
    NumberConverter,
    SimpleHeaderConverter,
    StringConverter,
    java_float,
)
from mm2py.runtime.plugins.converters.json import JsonConverter
from mm2py.runtime.plugins.converters.registry import BYTES_ONLY, record_converters
from mm2py.runtime.tasks.errant_records import ErrantRecords
from tests.unit.runtime.runtime_fakes import T0, EagerClock, a_record

TRUTH: Final = cast(
    "Mapping[str, Mapping[str, str | None]]",
    json.loads((Path(__file__).parents[2] / "data" / "conversions.json").read_text()),
)
REFUSED: Final = "refused"
TEXT: Final = Schema(type=SchemaType.STRING)
POINT: Final = Schema(
    type=SchemaType.STRUCT,
    name="geo.Point",
    version=2,
    doc='a "point"',
    fields=(
        Field("x", Schema(type=SchemaType.INT32)),
        Field("label", Schema(type=SchemaType.STRING, optional=True)),
        Field("w", Schema(type=SchemaType.FLOAT64, default=1.5)),
    ),
)
BY_NAME: Final = Schema(type=SchemaType.MAP, keys=TEXT, items=Schema(type=SchemaType.BOOLEAN))
BY_NUMBER: Final = Schema(type=SchemaType.MAP, keys=Schema(type=SchemaType.INT32), items=TEXT)
NUMBERS: Final = Schema(type=SchemaType.ARRAY, optional=True, items=Schema(type=SchemaType.INT64))


def _decimal(scale: str) -> Schema:
    return Schema(type=SchemaType.BYTES, name=DECIMAL, version=1, parameters={"scale": scale})


CASES: Final[Mapping[str, tuple[Schema | None, object]]] = {
    "null": (None, None),
    "optional null": (Schema(type=SchemaType.STRING, optional=True), None),
    "text": (TEXT, 'hé "x"'),
    "bare text": (None, "plain"),
    "number": (None, 5),
    "double": (Schema(type=SchemaType.FLOAT64), 1.0e10),
    "small double": (None, 1.5e-5),
    "plain double": (None, 123456.75),
    "float": (Schema(type=SchemaType.FLOAT32), 1.1),
    "nan": (None, math.nan),
    "boolean": (Schema(type=SchemaType.BOOLEAN), True),
    "bytes": (Schema(type=SchemaType.BYTES), b"\x01\x02\xff"),
    "struct": (POINT, {"x": 7}),
    "array": (NUMBERS, [1, -2]),
    "map by name": (BY_NAME, {"on": True}),
    "map by number": (BY_NUMBER, {1: "one"}),
    "bare map": (None, {"a": [1, 2.5, None, True], "b": 'q"\\\né\u0007'}),
    "bare map by number": (None, {1: "one"}),
    "decimal": (_decimal("2"), Decimal("-12.34")),
    "decimal of 2 bytes": (_decimal("0"), Decimal(128)),
    "date": (Schema(type=SchemaType.INT32, name=DATE, version=1), date(1971, 1, 1)),
    "time": (Schema(type=SchemaType.INT32, name=TIME, version=1), time(1, 2, 3, 4000)),
    "timestamp": (
        Schema(type=SchemaType.INT64, name=TIMESTAMP, version=1),
        datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC),
    ),
    "default": (
        Schema(type=SchemaType.INT16, optional=True, default=3, parameters={"p": "v"}),
        None,
    ),
}
CONVERTERS: Final[Mapping[str, Converter]] = {
    "enveloped": JsonConverter(),
    "bare": JsonConverter(schemas=False),
    "numeric": JsonConverter(schemas=False, numeric_decimals=True),
    "unfilled": JsonConverter(schemas=False, fill_defaults=False),
    "string": StringConverter(),
    "header": SimpleHeaderConverter(),
}
# Java's text of a struct names a class of its own.
OTHERWISE: Final = {("struct", "string")}


def test_every_case_of_the_truth_is_compared() -> None:
    assert list(CASES) == list(TRUTH)


@pytest.mark.parametrize("how", list(CONVERTERS))
@pytest.mark.parametrize("case", list(CASES))
def test_a_value_becomes_javas_bytes(case: str, how: str) -> None:
    if (case, how) in OTHERWISE:
        return
    expected = TRUTH[case][how]
    schema, value = CASES[case]
    if expected == REFUSED:
        with pytest.raises(DataError):
            CONVERTERS[how].to_bytes(schema, value)
    else:
        wanted = None if expected is None else base64.b64decode(expected)
        assert CONVERTERS[how].to_bytes(schema, value) == wanted


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Schema(type=SchemaType.INT8), 128),
        (Schema(type=SchemaType.INT32), "7"),
        (Schema(type=SchemaType.INT32), True),
        (TEXT, 7),
        (TEXT, None),
        (_decimal("2"), Decimal("1.234")),
        (_decimal("2"), 1.5),
        (POINT, [1]),
        (Schema(type=SchemaType.ARRAY), [1]),
        (Schema(type=SchemaType.INT64, name=TIMESTAMP), datetime(2023, 1, 1)),  # noqa: DTZ001 - the case
        (None, Decimal(1)),
        (None, object()),
        (None, "\ud800"),
    ],
)
def test_json_of_what_is_not_what_its_schema_says_is_refused(
    schema: Schema | None, value: object
) -> None:
    with pytest.raises(DataError):
        JsonConverter().to_bytes(schema, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (0.001, "0.001"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-1.25e-7, "-1.25E-7"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_numbers_have_javas_form(value: float, text: str) -> None:
    assert java_float(value) == text


def test_a_float_is_as_short_as_its_width_allows() -> None:
    (third,) = struct.unpack(">f", struct.pack(">f", 1 / 3))
    assert java_float(third, single=True) == "0.33333334"
    assert java_float(16777216.0, single=True) == "1.6777216E7"


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        ("Boolean", True, b"\x01"),
        ("Boolean", False, b"\x00"),
        ("Short", -2, b"\xff\xfe"),
        ("Integer", 7, b"\x00\x00\x00\x07"),
        ("Long", 1, b"\x00" * 7 + b"\x01"),
        ("Float", 1.5, b"\x3f\xc0\x00\x00"),
        ("Double", 1.5, b"\x3f\xf8" + b"\x00" * 6),
        ("Long", None, None),
    ],
)
def test_numbers_have_fixed_widths(kind: str, value: object, data: bytes | None) -> None:
    assert NumberConverter(kind).to_bytes(None, value) == data
    with pytest.raises(DataError):
        NumberConverter(kind).to_bytes(TEXT, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("Short", 40_000),
        ("Integer", 1.5),
        ("Integer", True),
        ("Boolean", 1),
        ("Long", "1"),
        ("Float", 1e300),
    ],
)
def test_what_a_number_converter_cannot_hold_is_refused(kind: str, value: object) -> None:
    assert kind in NUMBER_FORMATS
    with pytest.raises(DataError, match=f"{kind}Converter"):
        NumberConverter(kind).to_bytes(None, value)


def test_texts_are_encoded_as_java_does() -> None:
    assert StringConverter("ISO-8859-1").to_bytes(None, "é€") == b"\xe9?"
    assert StringConverter("UTF-16").to_bytes(None, "a") == b"\xfe\xff\x00a"
    with pytest.raises(ConfigError, match=r"converter\.encoding=klingon"):
        StringConverter("klingon")


def test_bytes_pass_their_converter_and_nothing_else_does() -> None:
    assert ByteArrayConverter().to_bytes(None, b"x") == b"x"
    for schema, value in ((None, "x"), (TEXT, None)):
        with pytest.raises(DataError):
            ByteArrayConverter().to_bytes(schema, value)


def _record(key: object, value: object, *headers: tuple[bytes | str, object]) -> SourceRecord:
    return SourceRecord(
        source_partition={}, source_offset={}, topic="t", partition=0,
        key=key, value=value, headers=headers,
    )  # fmt: skip


WORKER: Final = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "key.converter.converter.encoding": "ISO-8859-1",
    "value.converter": "JsonConverter",
    "value.converter.schemas.enable": "false",
}


def test_a_connector_without_converters_has_the_workers() -> None:
    found = record_converters(WORKER, {}).encoded(_record("é", {"a": 1}, ("h", [1, "x"])))
    assert found == (b"\xe9", b'{"a":1}', ((b"h", b'[1,"x"]'),))


def test_a_connectors_converter_brings_its_own_keys_only() -> None:
    own = {"key.converter": "StringConverter", "value.converter": "JsonConverter"}
    found = record_converters(WORKER, own).encoded(_record("é", 1))
    assert found == ("é".encode(), b'{"schema":null,"payload":1}', ())


def test_bytes_without_a_schema_are_sent_as_they_are() -> None:
    record = _record(b"\x00", b"\xff", ("raw", b"\x01"), (b"none", None))
    found = record_converters(WORKER, {}).encoded(record)
    assert found == (b"\x00", b"\xff", ((b"raw", b"\x01"), (b"none", None)))


def test_a_header_may_have_a_schema() -> None:
    schema = Schema(type=SchemaType.BYTES)
    record = _record(None, None, ("h", SchemaAndValue(schema, b"\x01\x02\xff")))
    assert record_converters({}, {}).encoded(record).headers == ((b"h", b"AQL/"),)


def test_what_cannot_be_converted_says_which_part_and_not_what_it_holds() -> None:
    with pytest.raises(DataError, match="the value cannot be converted") as refused:
        record_converters({}, {}).encoded(_record(None, "hunter2"))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"key.converter": "io.confluent.connect.avro.AvroConverter"}, "could not be found"),
        ({"value.converter": "SimpleHeaderConverter"}, "converts headers, not values"),
        (
            {"value.converter": "JsonConverter", "value.converter.schemas.enable": "maybe"},
            "value.converter.schemas.enable",
        ),
        ({"header.converter": "JsonConverter", "header.converter.decimal.format": "HEX"}, "HEX"),
    ],
)
def test_a_wrong_converter_is_refused_by_name(config: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        record_converters(config, {})
    with pytest.raises(ConfigError, match=text):
        record_converters({}, config)


# ---- the way back, for sinks


JSON = "org.apache.kafka.connect.json.JsonConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
WITH_SCHEMA = (
    b'{"schema":{"type":"struct","fields":[{"field":"id","type":"int32"},{"field":"raw","type":"bytes"},'
    b'{"field":"all","type":"array","items":{"type":"bytes"}}]},"payload":{"id":7,"raw":"AQI=","all":["Aw=="]}}'
)


@pytest.mark.parametrize(
    ("converter", "data", "expected"),
    [
        (StringConverter(), "Zürich".encode(), "Zürich"),
        (StringConverter("UTF-16"), b"\xfe\xff\x00a", "a"),
        (NumberConverter("Integer"), struct.pack(">i", -5), -5),
        (NumberConverter("Long"), struct.pack(">q", 1 << 40), 1 << 40),
        (NumberConverter("Double"), struct.pack(">d", 0.5), 0.5),
        (NumberConverter("Boolean"), b"\x01", True),
        (JsonConverter(schemas=False), b'{"a":[1,null]}', {"a": [1, None]}),
        (JsonConverter(), WITH_SCHEMA, {"id": 7, "raw": b"\x01\x02", "all": [b"\x03"]}),
        (JsonConverter(), b'{"schema":null,"payload":{"a":1}}', {"a": 1}),
        (SimpleHeaderConverter(), b"12", 12),
        (SimpleHeaderConverter(), b"plain text", "plain text"),
        (SimpleHeaderConverter(), b"\xff", b"\xff"),
    ],
)
def test_a_converter_reads_what_it_writes(
    converter: Converter, data: bytes, expected: object
) -> None:
    assert converter.from_bytes(data) == expected
    assert converter.from_bytes(None) is None


@pytest.mark.parametrize(
    ("converter", "data", "problem"),
    [
        (NumberConverter("Integer"), b"\x00", "cannot read 1 bytes, it has 4"),
        (JsonConverter(), b"{", "serialization error"),
        (JsonConverter(), b'{"a":1}', 'requires "schema" and "payload" fields'),
        (JsonConverter(), b"[1]", 'requires "schema" and "payload" fields'),
    ],
)
def test_bytes_that_it_does_not_write_are_refused(
    converter: Converter, data: bytes, problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        converter.from_bytes(data)


def errant(tolerance: str) -> ErrantRecords:
    errors = parse_config(FrameworkConfig, {"errors.tolerance": tolerance})
    return ErrantRecords("files", 0, errors, clock=EagerClock())


def test_a_sinks_record_is_converted_by_the_connectors_converters_else_the_workers() -> None:
    worker = {"key.converter": STRING, "value.converter": STRING}
    connector = {"value.converter": JSON, "value.converter.schemas.enable": "false"}
    converters = record_converters(worker, connector)
    read = a_record(T0, 3, b'{"n":1}')._replace(headers=(("h", b"5"),))
    made = errant("none").converted(converters, read)
    assert made is not None
    assert (made.key, made.value, made.headers) == ("k", {"n": 1}, (("h", 5),))
    assert made.raw is read
    assert not converters.are_bytes
    assert BYTES_ONLY.are_bytes


def test_what_cannot_be_converted_is_named_with_its_part_and_left_out_where_that_is_tolerated() -> (
    None
):
    converters = record_converters({}, {"value.converter": JSON})
    read = a_record(T0, 3, b"no JSON")
    with pytest.raises(FatalError, match=r"t-0 offset 3: .*VALUE_CONVERTER by JsonConverter"):
        errant("none").converted(converters, read)
    assert errant("all").converted(converters, read) is None
