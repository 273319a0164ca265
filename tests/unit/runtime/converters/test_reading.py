"""Bytes back to values, for sinks: what each converter reads, and what it refuses."""

import struct

import pytest

from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import FatalError
from mm2py.runtime.plugins.converters.converter import (
    Converter,
    DataError,
    NumberConverter,
    SimpleHeaderConverter,
    StringConverter,
)
from mm2py.runtime.plugins.converters.json import JsonConverter
from mm2py.runtime.plugins.converters.registry import BYTES_ONLY, record_converters
from mm2py.runtime.tasks.errant_records import ErrantRecords
from tests.unit.runtime.runtime_fakes import EagerClock
from tests.unit.runtime.sink_fakes import T0, a_record

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
