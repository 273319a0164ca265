"""``GET /metrics``: what it shows of fed meters, its names, and who may read it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mm2py.client.connect.broker_errors import BrokerError, Trouble, errors_of
from mm2py.client.connect.certificates import BROKER, REST, Shown, certificates_of
from mm2py.observability.checkpoint_ages import CheckpointAges, CheckpointKey
from mm2py.observability.metrics import Figure, Finding, FlowMeter, Forecast, Metrics, NodeSnapshot
from mm2py.rest.app import public_app
from mm2py.rest.jmx_values import jmx_value
from mm2py.rest.metric_families import FLOW_STATES
from mm2py.rest.parts import RestParts
from mm2py.runtime.herder.api import ConnectorInfo, ConnectorState, WorkState
from mm2py.runtime.herder.herder import Herder
from mm2py.testing.clock import FakeClock
from mm2py.types import FlowName, State, TaskId, TopicPartition
from tests.unit.rest.job_fakes import with_backfill
from tests.unit.rest.paper_worker import PaperWorker
from tests.unit.rest.rest_fakes import SOURCE, FakeHerder, Reply, ask, flow, parts_of, state

AB = flow("A", "B")
NAME = "MirrorSourceConnector"
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\| [^|]+ \| [^|]+ \|$", re.MULTILINE)
TOPIC = {"flow": "A->B", "topic": "t", "partition": "0"}
COPY = {"source": "A", "target": "B", "topic": "A.t", "partition": "0"}
PROMETHEUS = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5"


@dataclass(frozen=True)
class Scrape:
    """Types by name of the sample, and all samples."""

    types: dict[str, str] = field(default_factory=dict[str, str])
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(
        default_factory=dict[tuple[str, frozenset[tuple[str, str]]], float]
    )

    @classmethod
    def of(cls, reply: Reply) -> "Scrape":
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        scrape = cls()
        for family in text_string_to_metric_families(reply.content.decode()):
            total = "_total" if family.type == "counter" else ""
            scrape.types[family.name + total] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in scrape.samples
                scrape.samples[key] = sample.value
        return scrape

    def value(self, name: str, labels: Mapping[str, str]) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def labels_of(self, name: str) -> set[frozenset[str]]:
        return {frozenset(key for key, _ in labels) for at, labels in self.samples if at == name}


class MeteredHerder(FakeHerder):
    """A herder whose snapshot is that of a meter, with one source connector and two tasks."""

    def __init__(self, meter: FlowMeter, of: FlowName | None = AB) -> None:
        away = WorkState(State.RUNNING, "other:8083", None, "4.3.1")
        failed = WorkState(State.FAILED, "worker:8083", "x.Error: canary-value", "4.3.1")
        tasks = {0: failed, 1: away}
        config: dict[str, str | None] = {"connector.class": SOURCE, "x.password": "canary-value"}
        known: ConnectorState = state(NAME, tasks=tasks)
        super().__init__(of, configs={NAME: config}, states={NAME: known})
        self._meter = meter

    def node_snapshot(self) -> NodeSnapshot:
        return self._meter.node_snapshot(self.worker_id)

    @property
    def checkpoint_ages(self) -> tuple[CheckpointAges, ...]:
        return self._meter.checkpoints.all()


def fed(clock: FakeClock) -> FlowMeter:
    """A meter with one partition that copied 30 records, has 7 to go, and was caught up 4 s ago."""
    meter = FlowMeter(AB, clock)
    meter.state = "RUNNING"
    part = meter.partition(TopicPartition("t", 0))
    part.target, part.task = TopicPartition("A.t", 0), f"{NAME}-0"
    part.report_lag(0, clock.now_ms() - 9_000, clock.now_ms())
    clock.jump(4.0)
    part.records, part.bytes = 30, 3_000
    part.report_lag(7, clock.now_ms() - 8_000, clock.now_ms())
    for age_ms in (30, 10, 20):
        part.age.note(age_ms, clock.now_ms())
        part.latency.note(age_ms * 2, clock.now_ms())
    at_ms = clock.now_ms() + 43 * 60_000
    part.forecast = Forecast(by="retention.ms", limit=1, at_ms=at_ms, records=7, size_bytes=-1)
    found = Finding(task="c-0", what="groups in use on the target", text="g", count=3, harms=False)
    meter.note_finding(found)
    meter.checkpoints.note(CheckpointKey("c-0", "fed", TopicPartition("A.t", 0)), 40)
    for word, count in {"SYNCED": 4, "BEHIND": 2, "NOT_SYNCED": 1}.items():
        meter.note_figure(Figure(task="c-0", name=f"groups {word}", value=count))
        meter.note_figure(Figure(task="c-1", name=f"groups {word}", value=10))
    meter.count_event("retention", lost=5)
    meter.count_event("may-be-doubled", may_be_doubled=2)
    return meter


def dedicated(meter: FlowMeter) -> RestParts:
    herders: Mapping[FlowName | None, Herder] = {AB: MeteredHerder(meter)}
    return parts_of(herders, dedicated=True)


def scraped(parts: RestParts, query: str = "") -> Scrape:
    return Scrape.of(ask(public_app(parts), "GET", f"/metrics{query}"))


def test_a_fed_meter_is_shown_with_its_numbers() -> None:
    clock = FakeClock()
    scrape = scraped(dedicated(fed(clock)))
    for name, value in {
        "mm2py_records_replicated_total": 30,
        "mm2py_bytes_replicated_total": 3_000,
        "mm2py_source_lag_records": 7,
        "mm2py_rpo_seconds": 4.0,
        "mm2py_newest_record_timestamp_seconds": clock.now_ms() / 1000 - 8,
    }.items():
        assert scrape.value(name, TOPIC) == pytest.approx(value)
    for prefix, labels in (
        ("kafka_connect_mirror_mirrorsourceconnector", COPY),
        ("kafka_connect_mirror_source_connector", {**COPY, "destination": "B"}),
    ):
        assert scrape.value(f"{prefix}_record_count", labels) == 30
        assert scrape.value(f"{prefix}_byte_count", labels) == 3_000
        assert scrape.value(f"{prefix}_record_rate", labels) == pytest.approx(7.5)
        assert scrape.value(f"{prefix}_byte_rate", labels) == pytest.approx(750)
        for end, age_ms in {"": 20, "_min": 10, "_max": 30, "_avg": 20}.items():
            assert scrape.value(f"{prefix}_record_age_ms{end}", labels) == age_ms
            assert scrape.value(f"{prefix}_replication_latency_ms{end}", labels) == age_ms * 2
    client = f'"A->B|{NAME}-0|replication-consumer"'
    labels = {"clientid": client, "topic": "t", "partition": "0"}
    assert scrape.value("kafka_consumer_fetch_manager_records_lag", labels) == 7
    for end in ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds", "open_fds", "max_fds"):  # fmt: skip
        assert (scrape.value(f"process_{end}", {}) or 0) > 0, end


def test_by_topic_a_series_is_of_all_partitions_and_numbers_of_the_flow_stay() -> None:
    clock = FakeClock()
    meter = fed(clock)
    other = meter.partition(TopicPartition("t", 1))
    other.target, other.records, other.state = TopicPartition("A.t", 1), 5, "FAILED"
    other.report_lag(2, clock.now_ms(), clock.now_ms())
    other.latency.note(100, clock.now_ms())
    meter.partition(TopicPartition("u", 0)).report_lag(-1, -1, clock.now_ms())
    moved = meter.partition(TopicPartition("t", 2))
    moved.target, moved.records = TopicPartition("A.t", 2), 1_000
    meter.forget(moved.source)
    for number, lag in ((0, 100), (1, 0)):
        meter.partition(TopicPartition("v", number)).report_lag(lag, -1, clock.now_ms())
    scrape = scraped(dedicated(meter), "?by=topic")
    of = {"flow": "A->B", "topic": "t", "partition": ""}
    copy = {**COPY, "partition": ""}
    mirror = "kafka_connect_mirror_mirrorsourceconnector"
    for name, labels, value in (
        ("mm2py_records_replicated_total", of, 1_035),
        ("mm2py_source_lag_records", of, 9),
        ("mm2py_source_lag_records", {**of, "topic": "u"}, None),
        ("mm2py_rpo_seconds", of, 4),
        ("mm2py_source_lag_records", {**of, "topic": "v"}, 100),
        ("mm2py_rpo_seconds", {**of, "topic": "v"}, None),
        ("mm2py_partition_state", {**of, "state": "FAILED"}, 1),
        ("mm2py_failed_partitions", {"flow": "A->B"}, 1),
        ("mm2py_partitions", {"flow": "A->B", "state": "RUNNING"}, 4),
        (f"{mirror}_record_count", copy, 1_035),
        (f"{mirror}_replication_latency_ms_max", copy, 100),
        (f"{mirror}_replication_latency_ms_min", copy, 20),
    ):
        assert scrape.value(name, labels) == value, name
    numbers = {dict(labels).get("partition", "") for _, labels in scrape.samples}
    assert numbers == {""}
    assert ask(public_app(parts_of()), "GET", "/metrics?by=x").message == (
        "query.by: one of partition, topic"
    )


@pytest.mark.parametrize(("query", "partition"), [("", "0"), ("?by=topic", "")])
def test_partitions_that_are_copied_into_one_have_one_series_under_the_name_of_the_copy(
    query: str, partition: str
) -> None:
    meter = fed(FakeClock())
    merged = meter.partition(TopicPartition("merged", 3))
    merged.target, merged.records = TopicPartition("A.t", 0), 100

    def records() -> float | None:
        scrape = scraped(dedicated(meter), query)  # which refuses a series that it has seen
        name = "kafka_connect_mirror_mirrorsourceconnector_record_count"
        return scrape.value(name, COPY | {"partition": partition})

    assert records() == 30 + 100
    meter.forget(merged.source)
    assert records() == 30 + 100, "a counter that falls is a restart for Prometheus"
    meter.partition(merged.source).target = merged.target
    meter.partition(merged.source).records = 7
    assert records() == 30 + 100 + 7


def test_texts_of_labels_are_what_they_were() -> None:
    meter, topic = FlowMeter(flow("A\\n", 'B"'), FakeClock()), 'a\\"b\nc'
    meter.partition(TopicPartition(topic, 0)).records = 1
    herder = MeteredHerder(FlowMeter(AB, FakeClock()), None)
    scrape = scraped(replace(parts_of({None: herder}), meters=lambda: (meter,)))
    labels = {"flow": 'A\\n->B"', "topic": topic, "partition": "0"}
    assert scrape.value("mm2py_records_replicated_total", labels) == 1


@pytest.mark.parametrize(("query", "partition", "last"), [("", "0", 9), ("?by=topic", "", 20)])
def test_checkpoints_have_latency_by_group_and_copy(query: str, partition: str, last: int) -> None:
    clock = FakeClock()
    meter = fed(clock)
    note, at = meter.checkpoints.note, TopicPartition("A.t", 0)
    note(CheckpointKey("c-0", "billing", at), 5)
    note(CheckpointKey("c-1", "billing", at), 7)  # the group has moved to another task
    clock.jump(1.0)
    note(CheckpointKey("c-1", "billing", at), 9)
    clock.jump(1.0)
    note(CheckpointKey("c-1", "billing", TopicPartition("A.t", 1)), 20)
    scrape = scraped(dedicated(meter), query)
    labels = COPY | {"partition": partition, "group": "billing"}
    for prefix, more in (
        ("mirrorcheckpointconnector", {}),
        ("checkpoint_connector", {"destination": "B"}),
    ):
        name = f"kafka_connect_mirror_{prefix}_checkpoint_latency_ms"
        assert scrape.value(name, labels | more) == last
        assert scrape.value(f"{name}_min", labels | more) == 5
        assert scrape.value(f"{name}_max", labels | more) == last


def test_forecast_ledger_and_groups_of_a_flow_are_counted() -> None:
    scrape = scraped(dedicated(fed(FakeClock())))
    for name, labels, value in (
        ("mm2py_retention_overtakes_seconds", {}, 43 * 60),
        ("mm2py_ledger_events_total", {"kind": "retention"}, 1),
        ("mm2py_ledger_events_total", {"kind": "may-be-doubled"}, 1),
        ("mm2py_ledger_events_total", {"kind": "poisoned"}, 0),
        ("mm2py_records_lost_total", {}, 5),
        ("mm2py_records_maybe_doubled_total", {}, 2),
        # of all tasks, added up
        ("mm2py_groups", {"kind": "group", "state": "SYNCED"}, 14),
        ("mm2py_groups", {"kind": "group", "state": "BEHIND"}, 12),
        ("mm2py_groups", {"kind": "group", "state": "NOT_SYNCED"}, 11),
    ):
        assert scrape.value(name, {"flow": "A->B", **labels}) == value, (name, labels)


def test_a_paused_partition_shows_its_lag_and_heartbeats_count_under_no_name_of_a_topic() -> None:
    meter = fed(FakeClock())
    meter.partition(TopicPartition("t", 0)).paused = True
    meter.partition(TopicPartition("records for heartbeats", 0)).state = "HELD"
    reply = ask(public_app(dedicated(meter)), "GET", "/metrics")
    assert b"records for" not in reply.content
    scrape = Scrape.of(reply)
    assert scrape.value("mm2py_partitions", {"flow": "A->B", "state": "HELD"}) == 0
    assert scrape.value("mm2py_source_lag_records", TOPIC) == 7
    assert scrape.value("mm2py_rpo_seconds", TOPIC) == pytest.approx(4.0)
    assert scrape.value("mm2py_partition_state", {**TOPIC, "state": "PAUSED"}) == 1
    assert scrape.value("mm2py_partition_state", {**TOPIC, "state": "RUNNING"}) is None
    assert scrape.value("mm2py_partitions", {"flow": "A->B", "state": "PAUSED"}) == 1


@pytest.mark.parametrize("of", [AB, None])
def test_rebalances_lost_memberships_and_restarts_are_counted(of: FlowName | None) -> None:
    herder = MeteredHerder(fed(FakeClock()), of)
    herder.life.rebalances, herder.life.memberships_lost = 3, 1
    herder.life.count_restart("task")
    scrape = scraped(parts_of({of: herder}, dedicated=of is not None))
    at = {"flow": "A->B" if of else ""}
    assert scrape.value("mm2py_rebalances_total", at) == 3
    assert scrape.value("mm2py_memberships_lost_total", at) == 1
    restarts = {
        what: scrape.value("mm2py_restarts_total", {**at, "what": what})
        for what in ("flow", "connector", "task")
    }
    assert restarts == {"flow": 0, "connector": 0, "task": 1}


def test_numbers_that_are_not_known_have_no_sample() -> None:
    clock = FakeClock()
    meter = FlowMeter(AB, clock)
    meter.partition(TopicPartition("t", 0))
    late = meter.partition(TopicPartition("t", 1))
    late.report_lag(7, -1, clock.now_ms())
    scrape = scraped(dedicated(meter))
    assert scrape.value("mm2py_records_replicated_total", TOPIC) == 0
    assert scrape.value("mm2py_source_lag_records", TOPIC) is None
    assert scrape.value("mm2py_source_lag_records", {**TOPIC, "partition": "1"}) == 7
    for name in (
        "mm2py_rpo_seconds",
        "mm2py_newest_record_timestamp_seconds",
        "mm2py_certificate_expiry_timestamp_seconds",
        "kafka_connect_mirror_mirrorsourceconnector_record_count",
    ):
        assert scrape.labels_of(name) == set()


def test_a_lag_that_is_not_known_any_more_has_no_sample_and_its_age_grows() -> None:
    clock = FakeClock()
    meter = FlowMeter(AB, clock)
    part = meter.partition(TopicPartition("t", 0))
    part.report_lag(0, -1, clock.now_ms())
    clock.jump(70)
    part.report_lag(-1, -1, clock.now_ms())
    scrape = scraped(dedicated(meter))
    assert scrape.value("mm2py_source_lag_records", TOPIC) is None
    assert scrape.value("mm2py_rpo_seconds", TOPIC) == 70


def test_a_task_that_starts_again_has_not_caught_up_and_one_long_elsewhere_is_new() -> None:
    clock, source = FakeClock(), TopicPartition("t", 0)
    meter = FlowMeter(AB, clock)
    # A task that failed several times pauses for 60 s.
    for absent_s, age_s in ((5, 75), (65, 135), (130, 0)):
        meter.partition(source).report_lag(0, -1, clock.now_ms())
        clock.jump(70)
        meter.forget(source)
        clock.jump(absent_s)
        meter.partition(source).report_lag(9, -1, clock.now_ms())
        assert meter.partition(source).lag_ms(clock.now_ms()) == age_s * 1000
        meter.forget(source)
        clock.jump(130)


def test_an_age_that_another_process_does_not_know_is_not_known_here() -> None:
    clock, source = FakeClock(), TopicPartition("t", 0)
    here, there = FlowMeter(AB, clock), FlowMeter(AB, clock)
    there.partition(source).report_lag(9, -1, clock.now_ms())
    here.apply([there.partition(source).snapshot(clock.now_ms())])
    clock.jump(30)
    (shown,) = here.node_snapshot("w").partitions
    assert (shown.lag_records, shown.age_ms) == (9, None)


@pytest.mark.parametrize(
    ("name", "state", "lag", "sample"),
    [
        ("u", "RUNNING", 3, (8, None)),  # it was never seen without a lag
        ("u", "RUNNING", -1, (None, None)),
        ("u", "FAILED", -1, (5, 0)),
        ("u", "FAILED", 4, (9, None)),
        ('{"cluster": "A"}', "RUNNING", -1, (5, 0)),
    ],
)
def test_the_course_of_a_flow_has_the_lag_of_its_topics(
    name: str, state: str, lag: int, sample: tuple[int | None, int | None]
) -> None:
    clock = FakeClock()
    meter = FlowMeter(AB, clock)
    meter.partition(TopicPartition("t", 0)).report_lag(5, clock.now_ms(), clock.now_ms())
    other = meter.partition(TopicPartition(name, 0))
    other.report_lag(lag, -1, clock.now_ms())
    other.state = state
    found = meter.sample()
    assert (found.lag_records, found.lag_ms) == sample


def test_flow_connector_and_task_have_one_state_each_and_tasks_of_others_are_left_to_them() -> None:
    scrape = scraped(dedicated(fed(FakeClock())))
    connector = f"A->B.{NAME}"
    ones = {
        (name, dict(labels)["state"])
        for (name, labels), value in scrape.samples.items()
        if name.endswith(("flow_state", "connector_state", "task_state")) and value == 1
    }
    assert ones == {
        ("mm2py_flow_state", "FAILED"),
        ("mm2py_connector_state", "RUNNING"),
        ("mm2py_task_state", "FAILED"),
    }
    # As JMX writes a name that is not plain.
    quoted = {"connector": f'"{connector}"'}
    status = {**quoted, "task": "0", "status": "failed"}
    assert scrape.value("kafka_connect_connector_status", status) == 1
    counts = {
        word: scrape.value(f"kafka_connect_worker_connector_{word}_task_count", quoted)
        for word in ("total", "running", "paused", "failed", "unassigned", "restarting")
    }
    assert counts == {word: int(word in {"total", "failed"}) for word in counts}
    assert scrape.value("kafka_connect_worker_connector_count", {}) == 1
    assert scrape.value("kafka_connect_worker_task_count", {}) == 1
    tasks = {dict(labels)["task"] for name, labels in scrape.samples if name == "mm2py_task_state"}
    assert tasks == {"0"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [  # what Java's ``Sanitizer.jmxSanitize`` returns
        ("us-east_1.%a b\t", "us-east_1.%a b\t"),
        ("A->B", '"A->B"'),
        ('a"b\\c*d?e\nf', '"a\\"b\\\\c\\*d\\?e\\nf"'),
        ("ü", '"ü"'),
    ],
)
def test_a_value_under_javas_names_is_as_jmx_has_it(text: str, shown: str) -> None:
    assert jmx_value(text) == shown


def test_an_ordinary_worker_shows_the_meters_of_its_sources() -> None:
    clock = FakeClock()
    metrics = Metrics(clock)
    part = metrics.flow(flow("A", "group")).partition(TopicPartition("t", 0))
    part.records, part.target, part.task = 3, TopicPartition("A.t", 0), f"{NAME}-0"
    part.report_lag(0, -1, clock.now_ms())
    key = CheckpointKey("c-0", "billing", TopicPartition("A.t", 0))
    made = metrics.flow(flow("connect", "group"))
    made.checkpoints.note(key, 5)
    made.partition(TopicPartition("records for x", 0)).target = TopicPartition("x", 0)
    herder = MeteredHerder(FlowMeter(AB, clock), None)
    aliases = {"source.cluster.alias": "A", "target.cluster.alias": "B"}
    herder.configs[NAME] |= aliases
    herder.configs["c"] = {"connector.class": "MirrorCheckpointConnector", **aliases}
    parts = replace(parts_of({None: herder}), meters=metrics.meters)
    scrape = scraped(parts)
    labels = {**TOPIC, "flow": "A->group"}
    assert scrape.value("mm2py_records_replicated_total", labels) == 3
    running = {"flow": "", "connector": NAME, "state": "RUNNING"}
    assert scrape.value("mm2py_connector_state", running) == 1
    assert scrape.labels_of("mm2py_flow_state") == set()
    # Under Java's names the aliases are those of the connectors' configs.
    mirror, consumer = "kafka_connect_mirror_mirror", f'"A->B|{NAME}-0|replication-consumer"'
    for name, labels, value in (
        (f"{mirror}sourceconnector_record_count", COPY, 3),
        (f"{mirror}checkpointconnector_checkpoint_latency_ms", COPY | {"group": "billing"}, 5),
        ("kafka_connect_mirror_source_connector_record_count", COPY | {"destination": "B"}, 3),
        (
            "kafka_consumer_fetch_manager_records_lag",
            {"clientid": consumer, "topic": "t", "partition": "0"},
            0,
        ),
    ):
        assert scrape.value(name, labels) == value, name
    assert not [at for at, labels in scrape.samples if ("topic", "x") in labels]


class Uninstalled(FakeHerder):
    """A herder whose connectors have a class that is not installed."""

    def info_now(self, name: str) -> ConnectorInfo | None:
        return replace(self._info(name), type="unknown")


STANDS = WorkState(State.FAILED, "other:8083", "x.Error: no", "4.3.1")
RESTS = WorkState(State.PAUSED, "worker:8083", None, "4.3.1")
WRONG = Finding(task="c-0", what="stalled", text="why", count=1, harms=True)


def of_connect(
    of: type[FakeHerder] = FakeHerder, *, task: WorkState | None = None, **more: object
) -> FakeHerder:
    """A Connect worker with a connector that is no mirror, and a task of it."""
    config: dict[str, str | None] = {"connector.class": "x.Y"}
    tasks = None if task is None else {0: task}
    rests = replace(state("rests", tasks={0: RESTS}), connector=RESTS)
    states = {"c": state("c", tasks=tasks), "rests": rests}
    herder = of(None, configs={"c": config, "rests": config}, states=states)
    for name, value in more.items():
        setattr(herder, name, value)
    return herder


def in_state(word: str, **problems: str) -> FakeHerder:
    herder = of_connect()
    herder.snapshot = replace(herder.node_snapshot(), state=word, problems=problems)
    return herder


@pytest.mark.parametrize(
    ("herder", "finding", "expected"),
    [
        (of_connect(), None, "RUNNING"),
        (FakeHerder(None), None, "RUNNING"),
        (of_connect(waits="waits for the worker's cluster"), None, "WAITING"),
        (in_state("SUSPENDED"), None, "SUSPENDED"),
        (of_connect(task=STANDS), None, "FAILED"),
        (of_connect(Uninstalled, task=STANDS), None, "FAILED"),
        (of_connect(states={}), None, "UNASSIGNED"),
        # Of a task whose worker was killed: what it wrote last is RUNNING.
        (of_connect(without_owner={TaskId("c", 0)}), None, "UNASSIGNED"),
        (in_state("RUNNING", topic="t cannot be created"), None, "DEGRADED"),
        (of_connect(), WRONG, "DEGRADED"),
    ],
)
def test_a_connect_worker_says_what_alerts_look_for(
    herder: FakeHerder, finding: Finding | None, expected: str
) -> None:
    metrics = Metrics(FakeClock())
    if finding is not None:
        metrics.flow(flow("A", "group")).note_finding(finding)
    scrape = scraped(replace(parts_of({None: herder}), meters=metrics.meters))
    shown = {
        dict(labels)["state"]
        for (name, labels), value in scrape.samples.items()
        if name == "mm2py_worker_state" and value == 1
    }
    assert shown == {expected}


def test_the_page_lists_exactly_what_is_emitted_and_each_state_of_a_flow() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [it for it in FLOW_STATES if f"`{it}`" not in page] == []
    listed = {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(page)
    }
    herder = MeteredHerder(fed(FakeClock()))
    with_backfill(herder)
    parts = parts_of({AB: herder}, dedicated=True)
    certificates_of(parts.clock).note(Shown(REST), 1.0)
    certificates_of(parts.clock).note(Shown(BROKER, "B", "b1:9093"), 1_800_000_000.0)
    errors_of(parts.clock).add(BrokerError("A", "a:9092", Trouble.LOST), 2)
    scrape, other = scraped(parts), scraped(parts_of({None: FakeHerder(None)}))
    assert {name: kind for name, (kind, _) in listed.items()} == scrape.types
    assert {name: {labels} for name, (_, labels) in listed.items()} == {
        name: scrape.labels_of(name) or other.labels_of(name) for name in scrape.types
    }
    until = {"owner": "broker", "cluster": "B", "address": "b1:9093"}
    assert scrape.value("mm2py_certificate_expiry_timestamp_seconds", until) == 1_800_000_000.0


@pytest.mark.parametrize(
    ("query", "strimzi", "redpanda"),
    [
        ("", True, True),
        ("?compat=strimzi", True, False),
        ("?compat=redpanda", False, True),
        ("?compat=strimzi&compat=redpanda", True, True),
        ("?compat=none", False, False),
    ],
)
def test_compat_chooses_whose_names_are_added(query: str, strimzi: bool, redpanda: bool) -> None:
    types = scraped(dedicated(fed(FakeClock())), query).types
    assert ("kafka_connect_mirror_mirrorsourceconnector_record_count" in types) is strimzi
    assert ("kafka_connect_mirror_source_connector_record_count" in types) is redpanda
    assert any(name.startswith("kafka_") for name in types) is (strimzi or redpanda)
    assert "mm2py_source_lag_records" in types


def test_metrics_are_only_read_as_text_and_under_names_that_are_known() -> None:
    app = public_app(parts_of())
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert ask(app, method, "/metrics").status == 405
    for accept in (PROMETHEUS, "text/plain", "*/*"):
        assert Scrape.of(ask(app, "GET", "/metrics", headers={"Accept": accept})).types
    refused = ask(app, "GET", "/metrics?compat=ibm")
    assert (refused.status, "strimzi, redpanda, none" in refused.message) == (400, True)


@pytest.mark.parametrize("in_dedicated_mode", [True, False])
def test_a_real_herder_shows_its_connector(in_dedicated_mode: bool) -> None:
    with PaperWorker(dedicated=in_dedicated_mode) as worker:
        reply = worker.send(httpx.Request("GET", "http://worker/metrics"))
    scrape = Scrape.of(Reply(reply.status_code, reply.headers, reply.content))
    expected = "A->B.MirrorSourceConnector" if in_dedicated_mode else NAME
    connectors = {
        dict(labels)["connector"]
        for (name, labels), value in scrape.samples.items()
        if name == "mm2py_connector_state" and value == 1
    }
    assert connectors == {expected}


def test_the_newest_backfill_is_shown_by_the_worker_that_leads_the_flow() -> None:
    herder = MeteredHerder(fed(FakeClock()))
    with_backfill(herder)
    scrape = scraped(parts_of({AB: herder}, dedicated=True))
    of_flow = {"flow": "A->B"}
    for name, labels, value in (
        ("mm2py_backfill_state", {"state": "PAUSED"}, 1),
        ("mm2py_backfill_state", {"state": "RUNNING"}, 0),
        ("mm2py_backfill_records", {}, 80),
        ("mm2py_backfill_bytes", {}, 8_000),
        ("mm2py_backfill_offsets_left", {}, 60),
        ("mm2py_backfill_partitions", {"state": "COPYING"}, 1),
        ("mm2py_backfill_partitions", {"state": "HANDED_OVER"}, 1),
        ("mm2py_backfill_partitions", {"state": "RELEASED"}, 0),
    ):
        assert scrape.value(name, {**of_flow, **labels}) == value, (name, labels)
    herder.leading = False
    assert not scraped(parts_of({AB: herder}, dedicated=True)).labels_of("mm2py_backfill_state")
