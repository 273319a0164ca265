"""The demo's table, properties and topics."""

import asyncio
import io
from collections import deque
from pathlib import Path

import pytest
from rich.console import Console

from examples.demo.demo import properties_text
from examples.demo.table import FlowTable
from examples.demo.topics import TOPICS
from examples.demo.verify import Comparison, Counts, Side
from examples.demo.verify_records import Difference
from examples.demo.workers import FIRST_KILL_S, FlowSeen, plan_kill
from mm2py.config.lint import load_checked
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_connectors.config import CONNECTORS

FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


def test_rates_are_over_the_last_seconds() -> None:
    clock = FakeClock()
    metrics = Metrics(clock)
    meter = metrics.flow(FLOW)
    partition = meter.partition(TopicPartition("orders", 0))
    table = FlowTable(metrics, clock)
    table.update()
    _move(clock, 2.0)
    partition.records, partition.bytes = 1_000, 2_000_000
    meter.state = "RUNNING"
    (row,) = table.update()
    assert (row.records_per_s, row.bytes_per_s) == (500, 1_000_000)
    assert "500 records/s" in row.plain()
    assert "1.0 MB/s" in row.plain()


def test_the_table_shows_failed_partitions() -> None:
    clock = FakeClock()
    metrics = Metrics(clock)
    partition = metrics.flow(FLOW).partition(TopicPartition("orders", 0))
    partition.state, partition.cause = "FAILED", "too large"
    out = io.StringIO()
    Console(width=120, file=out).print(FlowTable(metrics, clock).render("title"))
    text = out.getvalue()
    assert "A->B" in text
    assert "too large" in text


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


def test_the_demos_topics_show_every_case() -> None:
    assert {topic.codec for topic in TOPICS} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert any(not topic.keyed for topic in TOPICS)
    assert any(topic.tombstones for topic in TOPICS)
    assert any(topic.headers for topic in TOPICS)
    assert any(topic.years_old for topic in TOPICS)
    assert abs(sum(topic.share for topic in TOPICS) - 1) < 1e-9


def test_the_demos_file_gives_each_of_several_workers_a_task() -> None:
    assert "\ntasks.max = 3\n" in properties_text("a:1", "b:1", 3)
    assert "tasks.max" not in properties_text("a:1", "b:1")


def test_one_of_several_workers_is_killed_only_where_it_has_the_time_to_come_back() -> None:
    assert plan_kill(None) is None
    assert plan_kill(20) is None
    assert plan_kill(60) == FIRST_KILL_S


def test_the_table_of_several_workers_names_the_running_source_tasks() -> None:
    tasks = [
        {"number": 0, "state": "RUNNING", "worker": "h:1"},
        {"number": 1, "state": "FAILED", "worker": "h:1"},
        {"number": 2, "state": "RUNNING", "worker": "h:1"},
        {"number": 3, "state": "RUNNING", "worker": "h:2"},
    ]
    connectors = [
        {"name": "MirrorSourceConnector", "tasks": tasks},
        {"name": "MirrorHeartbeatConnector", "tasks": tasks[:1]},
    ]
    seen = FlowSeen.model_validate(
        {
            "flow": "A->B",
            "state": "RUNNING",
            "lag_records": None,
            "lag_ms": None,
            "records_per_s": None,
            "bytes_per_s": None,
            "records_lost": 0,
            "connectors": connectors,
            "incomplete": [],
        }
    )
    assert (seen.tasks_of("h:1"), seen.tasks_of("h:2"), seen.tasks_of("h:3")) == ("0 2", "3", "")


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


def _move(clock: FakeClock, seconds: float) -> None:
    asyncio.run(clock.advance(seconds))
