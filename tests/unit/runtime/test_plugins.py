"""Which connectors are found, and what Kafka Connect's transforms and predicates make of records."""

import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import cast

import pytest

from mm2py.api.records import SinkRecord
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.config.java_regex import JavaPattern
from mm2py.errors import ConfigError, FatalError
from mm2py.runtime.plugins.catalog import InstalledPlugins
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


def a_chain(config: Mapping[str, str], tolerance: str = "none") -> TransformChain:
    errors = parse_config(FrameworkConfig, {"errors.tolerance": tolerance})
    errant = ErrantRecords("sink", 0, errors, clock=EagerClock())
    return TransformChain(steps_of(config), errant.transformed)


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
        ("t", "", "t", "t"),
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


@pytest.mark.parametrize(
    ("format_", "expected"),
    [
        ("yyyyMMdd", "t-20251123"),
        ("yy-M-d", "t-25-11-23"),
        ("yyyy.MM.dd'T'HHmmss.SSS", "t-2025.11.23T010509.045"),
        ("yyyy'o''clock'D", "t-2025o'clock327"),
    ],
)
def test_timestamp_router_names_topics_by_the_time_of_the_record(
    format_: str, expected: str
) -> None:
    chain = one("TimestampRouter", timestamp_format=format_)
    assert applied(chain, RECORD._replace(timestamp_ms=AT_MS)).topic == expected


def test_timestamp_router_names_years_that_datetime_has_not() -> None:
    micros = RECORD._replace(timestamp_ms=1_600_000_000_000_000)
    assert applied(one("TimestampRouter"), micros).topic == "t-526711225"


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("answer", [True, 1, False, None, ""])
def test_a_predicate_may_answer_anything_that_is_true_or_false(
    answer: object, *, negate: bool
) -> None:
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


def test_a_record_without_a_timestamp_is_an_error_that_tolerance_decides() -> None:
    config = {"transforms": "x", "transforms.x.type": "TimestampRouter"}
    bare = RECORD._replace(timestamp_ms=-1)
    with pytest.raises(FatalError, match="Timestamp missing on record"):
        a_chain(config).apply(bare)
    assert a_chain(config, "all").apply(bare) is None


def test_headers_are_inserted_behind_and_dropped_by_name() -> None:
    made = applied(one("InsertHeader", header="dc", value_literal="Zürich"))
    assert made.headers == (*RECORD.headers, ("dc", "Zürich".encode()))
    made = applied(one("DropHeaders", headers="h, x"))
    assert made.headers == (("g", b"2"),)


def test_a_filter_without_a_predicate_drops_everything() -> None:
    assert one("Filter").apply(RECORD) is None


@pytest.mark.parametrize(
    ("predicate", "own", "holds"),
    [
        ("TopicNameMatches", {"pattern": "t|u"}, True),
        ("TopicNameMatches", {"pattern": "t."}, False),
        ("HasHeaderKey", {"name": "g"}, True),
        ("HasHeaderKey", {"name": "x"}, False),
        ("RecordIsTombstone", {}, False),
    ],
)
@pytest.mark.parametrize("negate", [False, True])
def test_a_predicate_chooses_the_records(
    predicate: str, own: Mapping[str, str], *, holds: bool, negate: bool
) -> None:
    config = {
        "transforms": "drop",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "p",
        "transforms.drop.negate": str(negate).lower(),
        "predicates": "p",
        "predicates.p.type": PACKAGE + "predicates." + predicate,
    } | {f"predicates.p.{name}": text for name, text in own.items()}
    assert (a_chain(config).apply(RECORD) is None) is (holds is not negate)


def test_a_tombstone_is_told_by_its_value() -> None:
    config = {
        "transforms": "f", "transforms.f.type": "Filter", "transforms.f.predicate": "p",
        "predicates": "p", "predicates.p.type": "RecordIsTombstone",
    }  # fmt: skip
    assert a_chain(config).apply(RECORD._replace(value=None)) is None
    assert a_chain(config).apply(RECORD) is RECORD


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


def test_an_error_of_a_later_step_keeps_the_record_as_it_was_read() -> None:
    kept: list[SinkRecord] = []

    class Queue:
        async def create(self) -> None: ...
        def send(self, record: SinkRecord, headers: object) -> None:
            kept.append(record)

        def flush(self) -> None: ...
        def close(self) -> None: ...

    errors = parse_config(FrameworkConfig, {"errors.tolerance": "all"})
    errant = ErrantRecords("sink", 0, errors, clock=EagerClock(), queue=Queue())
    config = {
        "transforms": "a,b", "transforms.a.type": "InsertHeader", "transforms.a.header": "n",
        "transforms.a.value.literal": "1", "transforms.b.type": "TimestampRouter",
    }  # fmt: skip
    bare = RECORD._replace(timestamp_ms=-1)
    assert TransformChain(steps_of(config), errant.transformed).apply(bare) is None
    assert kept == [bare]


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


def test_what_is_not_configured_costs_nothing() -> None:
    assert steps_of({}) == ()
