"""The demo's table, properties and topics."""

from collections import deque
from pathlib import Path

import pytest

from examples.demo.demo import properties_text
from examples.demo.table import FlowTable
from examples.demo.verify import Comparison, Counts, Side
from examples.demo.verify_records import Difference
from mm2py.config.lint import load_checked
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_connectors.config import CONNECTORS

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


def test_a_row_says_what_is_wrong_and_how_much_was_lost() -> None:
    clock = FakeClock()
    metrics = Metrics(clock)
    meter = metrics.flow(FLOW)
    table = FlowTable(metrics, clock, lambda flow: [f"{flow.source}: away"] * 7)
    assert metrics.snapshots()[0].records_lost == 0
    meter.count_event("gap", lost=1_200, may_be_doubled=3)
    (row,) = table.update()
    assert row.wrongs() == [
        "1,200 records lost (mm2py ledger FILE 'A->B' names them)",
        "3 records may be doubled",
        *["A: away"] * 3,
        "and 4 more",
    ]
    assert row.plain().endswith("STARTING; " + "; ".join(row.wrongs()))


def test_the_demos_file_has_two_flows_and_no_findings(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(properties_text("127.0.0.1:1", "127.0.0.1:2"))
    config, findings = load_checked(path, CONNECTORS)
    assert findings == []
    assert [str(flow) for flow in config.flows()] == ["A->B", "B->A"]
    assert all(config.flow_enabled(flow) for flow in config.flows())


@pytest.mark.parametrize(
    ("copy", "kills", "doubled"),
    [
        ("abcdef", 0, 0),
        ("abcdef", 1, 0),
        ("abcbcdef", 1, 2),
        ("abcdefdef", 1, 3),
        ("abbcdeef", 2, 2),
    ],
)
def test_a_copy_may_repeat_a_tail_once_per_killed_worker(
    copy: str, kills: int, doubled: int
) -> None:
    counts = _compared("abcdef", copy, kills)
    assert (counts.records, counts.doubled) == (6, doubled)


@pytest.mark.parametrize(
    ("copy", "kills", "words"),
    [
        ("abcbcdef", 0, "offset 3: key differs"),
        ("abbcdeef", 1, "offset 5: key differs"),
        ("abcbcef", 1, "offset 3: key differs"),
        ("abdef", 1, "offset 2: key differs"),
        ("abcdefx", 0, "goes on behind the end of A"),
    ],
)
def test_what_is_lost_changed_or_doubled_too_often_is_a_difference(
    copy: str, kills: int, words: str
) -> None:
    with pytest.raises(Difference, match=words):
        _compared("abcdef", copy, kills)


def _compared(source: str, copy: str, kills: int) -> Counts:
    counts = Counts()
    sides = (_side("A", "t", source), _side("B", "A.t", copy))
    Comparison(*sides, counts, kills).compare()
    return counts


def _side(region: str, topic: str, keys: str) -> Side:
    records = ((n, (key.encode(), b"v", (), (1, 0))) for n, key in enumerate(keys))
    return Side(region, TopicPartition(topic, 0), deque(records), len(keys))
