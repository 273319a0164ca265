"""Which connectors are found; what Connect's transforms and predicates make of records; converters, whose truth is what Kafka's own said (tests/java/Conversions.java)."""

import base64
import json
import logging
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final, cast

import pytest

from mm2py.api.records import SinkRecord, SourceRecord
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
from mm2py.config import java_regex
from mm2py.config.definitions import parse_config
from mm2py.config.framework import NUMBER_CONVERTERS, FrameworkConfig
from mm2py.config.java_regex import JavaPattern
from mm2py.errors import ConfigError, FatalError
from mm2py.runtime.plugins.catalog import InstalledPlugins
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
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.transforms.chain import TransformChain, steps_of
from mm2py.runtime.tasks.errant_records import ErrantRecords
from tests.unit.runtime.runtime_fakes import T0, EagerClock, a_record

GROUP = "mm2py.connectors"
SOURCE = "org.apache.kafka.connect.mirror.MirrorSourceConnector"
GOOD = EntryPoint("Mirror", "mm2py_connectors.mirror_source:MirrorSourceConnector", GROUP)
REASONS = {
    "no_library": "import ctypes\nctypes.CDLL('libnothere.so')\n",
    "no_python": "def broken(:\n",
    "own_error": "raise RuntimeError('no licence')\n",
    "ends": "raise SystemExit('needs another Python')\n",
    "no_module": "import no_such_module_at_all\n",
    "no_class": "",
    "no_connector": "class C: pass\n",
}


@pytest.fixture(params=REASONS)
def broken(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> EntryPoint:
    module = f"plugin_{request.param}"
    (tmp_path / f"{module}.py").write_text(REASONS[request.param])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    return EntryPoint("Broken", f"{module}:C", GROUP)


def test_a_plugin_that_cannot_be_imported_leaves_the_others_usable(broken: EntryPoint) -> None:
    plugins = Plugins([broken, GOOD])
    assert plugins.find("MirrorSourceConnector").java_class == SOURCE
    assert [it.java_class for it in plugins.factories()] == [SOURCE]
    # What a Java worker left in the topics and is not installed here.
    with pytest.raises(ConfigError, match="no such connector is installed"):
        plugins.find("org.example.Elsewhere")
    with pytest.raises(ConfigError, match=r"connector Broken .* (cannot be loaded|no connector)"):
        plugins.find("Broken")


def test_a_plugin_that_cannot_be_imported_is_listed_with_the_reason_and_logged_once(
    broken: EntryPoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    catalog = InstalledPlugins(Plugins([broken, GOOD]))
    for _ in range(2):
        good, bad = catalog.plugins(connectors_only=True)
        assert good.java_class == SOURCE
        assert (bad.java_class, bad.type, bad.version) == ("Broken", "unknown", None)
        assert bad.error.startswith("connector Broken (plugin_")
    assert len(caplog.records) == 1
    assert "connector left out name=Broken" in caplog.records[0].getMessage()


# ---- transforms


PACKAGE = "org.apache.kafka.connect.transforms."
RECORD = a_record(T0, 3)._replace(headers=(("h", b"1"), ("g", b"2"), ("h", b"3")))
AT_MS = 1_763_859_909_045
"""2025-11-23T01:05:09.045Z."""


def errant(tolerance: str) -> ErrantRecords:
    errors = parse_config(FrameworkConfig, {"errors.tolerance": tolerance})
    return ErrantRecords("files", 0, errors, clock=EagerClock())


def a_chain(config: Mapping[str, str]) -> TransformChain:
    return TransformChain(steps_of(config), errant("none").transformed)


def one(type_: str, **keys: str) -> TransformChain:
    own = {f"transforms.x.{name.replace('_', '.')}": text for name, text in keys.items()}
    return a_chain({"transforms": "x", "transforms.x.type": type_} | own)


def applied(chain: TransformChain, record: SinkRecord = RECORD) -> SinkRecord:
    made = chain.apply(record)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("pattern", "replacement", "topic", "expected"),
    [
        ("(.*)", "copy-$1", "t", "copy-t"),
        ("A\\.(.*)", "$1", "A.orders", "orders"),
        ("A\\.(.*)", "$1", "B.orders", "B.orders"),
        ("orders", "$0-$0", "orders", "orders-orders"),
        ("(?<name>[a-z]+)-(\\d+)", "${name}_$2", "t-12", "t_12"),
        ("(a)(b)?", "$1[$2]", "a", "a[]"),
        ("(t)", "\\$1$1", "t", "$1t"),
        ("(t)", "$10", "t", "t0"),
        ("t", "", "t", ""),
        ("(.*)", "$1", "t", "t"),
    ],
)
def test_regex_router_replaces_as_javas_matcher(
    pattern: str, replacement: str, topic: str, expected: str
) -> None:
    chain = one("RegexRouter", regex=pattern, replacement=replacement)
    assert applied(chain, RECORD._replace(topic=topic)).topic == expected


@pytest.mark.parametrize("replacement", ["$1", "${no}", "$", "a\\"])
def test_a_replacement_that_names_no_group_is_an_error_of_its_record(replacement: str) -> None:
    with pytest.raises(ConfigError, match="replacement"):
        JavaPattern("t").replaced("t", replacement)


def test_a_pattern_that_needs_too_long_to_replace_is_an_error_of_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def matches(_pattern: JavaPattern, _name: str) -> bool:
        return True

    pattern = JavaPattern("(a|aa)+(b|c?)")
    monkeypatch.setattr(JavaPattern, "matches", matches)
    monkeypatch.setattr(java_regex, "MATCH_TIMEOUT_S", 1e-9)
    with pytest.raises(ConfigError, match="needs more than"):
        pattern.replaced("a" * 10_000 + "d", "u")


@pytest.mark.parametrize(
    ("format_", "at_ms", "expected"),
    [
        ("yyyyMMdd", AT_MS, "t-20251123"),
        ("yy-M-d", AT_MS, "t-25-11-23"),
        ("yyyy.MM.dd'T'HHmmss.SSS", AT_MS, "t-2025.11.23T010509.045"),
        ("yyyy'o''clock'D", AT_MS, "t-2025o'clock327"),
        ("u.MMM.MMMMM", AT_MS, "t-7.Nov.November"),
        ("yyyyMMdd", 1_600_000_000_000_000, "t-526711225"),  # a year that datetime has not
    ],
)
def test_timestamp_router_names_topics_by_time(format_: str, at_ms: int, expected: str) -> None:
    chain = one("TimestampRouter", timestamp_format=format_)
    assert applied(chain, RECORD._replace(timestamp_ms=at_ms)).topic == expected


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("answer", [True, 1, False, None, ""])
def test_a_predicate_may_answer_what_is_true_or_false(answer: object, *, negate: bool) -> None:
    class Odd:
        def test(self, record: SinkRecord) -> bool:
            return cast("bool", answer)

        def close(self) -> None: ...

    (drop,) = steps_of({"transforms": "x", "transforms.x.type": "Filter"})
    step = replace(drop, predicate=Odd(), negate=negate)
    assert (step.apply(RECORD) is None) is (bool(answer) is not negate)


def test_timestamp_router_has_javas_default_and_refuses_what_it_cannot_write() -> None:
    stamped = RECORD._replace(timestamp_ms=AT_MS)
    assert applied(one(PACKAGE + "TimestampRouter"), stamped).topic == "t-20251123"
    assert applied(
        one("TimestampRouter", topic_format="x_${timestamp}_${topic}"), stamped
    ).topic == ("x_20251123_t")
    for wrong in ("yyyy z", "yyyy'"):
        with pytest.raises(ConfigError, match=r"timestamp\.format"):
            one("TimestampRouter", timestamp_format=wrong)
    with pytest.raises(FatalError, match="Timestamp missing on record"):
        one("TimestampRouter").apply(RECORD._replace(timestamp_ms=-1))


def test_headers_are_inserted_behind_and_dropped_by_name() -> None:
    made = applied(one("InsertHeader", header="dc", value_literal="Zürich"))
    assert made.headers == (*RECORD.headers, ("dc", "Zürich".encode()))
    made = applied(one("DropHeaders", headers="h, x"))
    assert made.headers == (("g", b"2"),)


@pytest.mark.parametrize(
    ("predicate", "own", "record", "holds"),
    [
        ("TopicNameMatches", {"pattern": "t|u"}, RECORD, True),
        ("TopicNameMatches", {"pattern": "t."}, RECORD, False),
        ("HasHeaderKey", {"name": "g"}, RECORD, True),
        ("HasHeaderKey", {"name": "x"}, RECORD, False),
        ("RecordIsTombstone", {}, RECORD, False),
        ("RecordIsTombstone", {}, RECORD._replace(value=None), True),
    ],
)
@pytest.mark.parametrize("negate", [False, True])
def test_a_predicate_chooses_the_records(
    predicate: str, own: Mapping[str, str], record: SinkRecord, *, holds: bool, negate: bool
) -> None:
    config = {
        "transforms": "drop",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "p",
        "transforms.drop.negate": str(negate).lower(),
        "predicates": "p",
        "predicates.p.type": PACKAGE + "predicates." + predicate,
    } | {f"predicates.p.{name}": text for name, text in own.items()}
    assert (a_chain(config).apply(record) is None) is (holds is not negate)


def test_transforms_are_applied_in_their_order_and_the_record_as_read_is_kept() -> None:
    chain = a_chain(
        {
            "transforms": "one,two",
            "transforms.one.type": "RegexRouter",
            "transforms.one.regex": "t",
            "transforms.one.replacement": "u",
            "transforms.two.type": "RegexRouter",
            "transforms.two.regex": "u",
            "transforms.two.replacement": "w",
        }
    )
    made = applied(chain)
    assert made.topic == "w"
    assert made.raw is RECORD
    assert (made.original_topic, made.original_partition) == T0
    other = RECORD._replace(topic="x")
    assert chain.apply(other) is other


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"transforms": "a"}, "transforms.a.type=: Class  could not be found"),
        ({"transforms": "a", "transforms.a.type": "no.Such"}, "Class no.Such could not be found"),
        (
            {"transforms": "a", "transforms.a.type": "Cast"},
            "Class Cast changes fields of structures",
        ),
        (
            {"transforms": "a", "transforms.a.type": PACKAGE + "InsertField$Value"},
            "InsertField$Value changes fields of structures",
        ),
        ({"transforms": "a", "transforms.a.type": "RegexRouter"}, "transforms.a.regex"),
        (
            {"transforms": "a", "transforms.a.type": "Filter", "transforms.a.predicate": "p"},
            "no predicate has this alias",
        ),
        ({"predicates": "p", "predicates.p.type": "HasHeaderKey"}, "predicates.p.name"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key(config: Mapping[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        steps_of(config)
    assert problem in str(caught.value)


# ---- converters


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
def test_json_that_does_not_fit_its_schema_is_refused(schema: Schema | None, value: object) -> None:
    with pytest.raises(DataError):
        JsonConverter().to_bytes(schema, value)


@pytest.mark.parametrize(
    ("value", "single", "text"),
    [
        (0.0, False, "0.0"),
        (-0.0, False, "-0.0"),
        (0.001, False, "0.001"),
        (9999999.0, False, "9999999.0"),
        (1e7, False, "1.0E7"),
        (-1.25e-7, False, "-1.25E-7"),
        (math.inf, False, "Infinity"),
        (-math.inf, False, "-Infinity"),
        (1.7976931348623157e308, False, "1.7976931348623157E308"),
        # A float is as short as its width allows.
        (struct.unpack(">f", struct.pack(">f", 1 / 3))[0], True, "0.33333334"),
        (16777216.0, True, "1.6777216E7"),
    ],
)
def test_numbers_have_javas_form(value: float, text: str, *, single: bool) -> None:
    assert java_float(value, single=single) == text


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
        ("Short", 40_000, DataError),
        ("Integer", 1.5, DataError),
        ("Integer", True, DataError),
        ("Boolean", 1, DataError),
        ("Long", "1", DataError),
        ("Float", 1e300, DataError),
    ],
)
def test_numbers_have_fixed_widths(
    kind: str, value: object, data: bytes | type[DataError] | None
) -> None:
    assert kind in NUMBER_FORMATS
    if isinstance(data, type):
        with pytest.raises(DataError, match=f"{kind}Converter"):
            NumberConverter(kind).to_bytes(None, value)
    else:
        assert NumberConverter(kind).to_bytes(None, value) == data
    with pytest.raises(DataError):
        NumberConverter(kind).to_bytes(TEXT, value)


def test_texts_are_encoded_as_java_does_and_bytes_pass_alone() -> None:
    assert StringConverter("ISO-8859-1").to_bytes(None, "é€") == b"\xe9?"
    assert StringConverter("UTF-16").to_bytes(None, "a") == b"\xfe\xff\x00a"
    assert StringConverter("UTF-32").to_bytes(None, "a") == b"\x00\x00\x00a"
    with pytest.raises(ConfigError, match=r"converter\.encoding=klingon"):
        StringConverter("klingon")
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


@pytest.mark.parametrize(
    ("own", "record", "expected"),
    [
        pytest.param(
            {}, _record("é", {"a": 1}, ("h", [1, "x"])), (b"\xe9", b'{"a":1}', ((b"h", b'[1,"x"]'),)), id="the worker's"
        ),
        pytest.param(
            {"key.converter": "StringConverter", "value.converter": "JsonConverter"}, _record("é", 1),
            ("é".encode(), b'{"schema":null,"payload":1}', ()), id="with its own keys only",
        ),
        pytest.param(
            {}, _record(b"\x00", b"\xff", ("raw", b"\x01"), (b"none", None)),
            (b"\x00", b"\xff", ((b"raw", b"\x01"), (b"none", None))), id="bytes without a schema as they are",
        ),
        pytest.param(
            {}, _record(None, None, ("h", SchemaAndValue(Schema(type=SchemaType.BYTES), b"\x01\x02\xff"))),
            (None, None, ((b"h", b"AQL/"),)), id="a header with a schema",
        ),
    ],
)  # fmt: skip
def test_a_record_is_converted_by_the_connectors_converters_else_the_workers(
    own: Mapping[str, str], record: SourceRecord, expected: object
) -> None:
    assert record_converters(WORKER, own).encoded(record) == expected


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
        (StringConverter("UTF-16"), b"\xff\xfea\x00", "a"),
        (StringConverter("UTF-16"), b"\x00a", "a"),
        (StringConverter("UTF-32"), b"\x00\x00\x00a", "a"),
        (NumberConverter("Integer"), struct.pack(">i", -5), -5),
        (NumberConverter("Long"), struct.pack(">q", 1 << 40), 1 << 40),
        (NumberConverter("Double"), struct.pack(">d", 0.5), 0.5),
        (NumberConverter("Boolean"), b"\x01", True),
        (JsonConverter(schemas=False), b'{"a":[1,null]}', {"a": [1, None]}),
        (JsonConverter(), WITH_SCHEMA, {"id": 7, "raw": b"\x01\x02", "all": [b"\x03"]}),
        (JsonConverter(), b'{"schema":null,"payload":{"a":1}}', {"a": 1}),
        (SimpleHeaderConverter(), b"12", 12),
        (SimpleHeaderConverter(), b"plain text", "plain text"),
        (SimpleHeaderConverter(), b"NaN", "NaN"),
        (SimpleHeaderConverter(), b"\xff", b"\xff"),
    ],
)
def test_a_converter_reads_what_it_writes(
    converter: Converter, data: bytes, expected: object
) -> None:
    assert converter.from_bytes(data) == expected
    assert converter.from_bytes(None) is None


def _enveloped(kind: str, payload: bytes, name: str = "") -> bytes:
    schema = json.dumps({"type": kind, **({"name": name} if name else {})}).encode()
    return b'{"schema":%b,"payload":%b}' % (schema, payload)


# What a schema adds, and what JSON has no form for without one.
READ: Final[Mapping[str, object]] = {
    "struct": {"x": 7, "label": None, "w": 1.5},
    "default": 3,
    "nan": "NaN",
    "bare map by number": [[1, "one"]],
}
LONG: Final = Decimal("-1234567890123456789012345678901234567890.12")


@pytest.mark.parametrize("case", list(CASES))
def test_javas_json_with_its_schema_is_read_as_it_was(case: str) -> None:
    written = TRUTH[case]["enveloped"]
    read = JsonConverter().from_bytes(None if written is None else base64.b64decode(written))
    expected = READ.get(case, CASES[case][1])
    assert (read, type(read)) == (expected, type(expected))


def test_a_number_for_a_decimal_is_read_as_it_was_written() -> None:
    schema = b'{"type":"bytes","name":"org.apache.kafka.connect.data.Decimal","parameters":{"scale":"2"}}'
    read = JsonConverter().from_bytes(b'{"schema":%b,"payload":1.10}' % schema)
    assert str(read) == "1.10"
    assert JsonConverter().from_bytes(JsonConverter().to_bytes(_decimal("2"), LONG)) == LONG
    bare = JsonConverter().from_bytes(b'{"schema":null,"payload":{"a":[1.5]}}')
    assert repr(bare) == "{'a': [1.5]}"


@pytest.mark.parametrize(
    ("converter", "data", "problem"),
    [
        (JsonConverter(), b"null", 'requires "schema" and "payload" fields'),
        (JsonConverter(schemas=False), b"NaN", "serialization error"),
        (JsonConverter(), _enveloped("int32", b"null"), "Invalid null value for required INT32"),
        (JsonConverter(), _enveloped("bytes", b'"?"'), "Invalid bytes field"),
        (JsonConverter(), _enveloped("int32", b'"x"', DATE), "Invalid type for Date"),
        (JsonConverter(), _enveloped("int64", b"1" * 19, TIMESTAMP), "Invalid type for Timestamp"),
        (NumberConverter("Integer"), b"\x00", "cannot read these 1 bytes, it has 4"),
        (NumberConverter("Boolean"), b"\x02", "cannot read"),
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


def test_what_cannot_be_converted_is_named_and_left_out_if_tolerated() -> None:
    converters = record_converters({}, {"value.converter": JSON})
    read = a_record(T0, 3, b"no JSON")
    with pytest.raises(
        FatalError,
        match=r"t-0 offset 3: .*VALUE_CONVERTER by org\.apache\.kafka\.connect\.json\.JsonConverter",
    ):
        errant("none").converted(converters, read)
    assert errant("all").converted(converters, read) is None
    for name in NUMBER_CONVERTERS:
        assert record_converters({}, {"key.converter": name}).key.java_class == name
