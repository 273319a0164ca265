"""The demo's table, properties and topics."""

import asyncio
import io
from pathlib import Path

from rich.console import Console

from mm2py.config.lint import load_checked
from mm2py.observability.metrics import Metrics
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.demo import properties_text
from mm2py_workers.demo_table import FlowTable
from mm2py_workers.demo_topics import TOPICS

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
        "1,200 records lost (mm2py ledger names them)",
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


def _move(clock: FakeClock, seconds: float) -> None:
    asyncio.run(clock.advance(seconds))
