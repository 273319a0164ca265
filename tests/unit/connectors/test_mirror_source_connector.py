"""The MirrorSource connector: discovery, creation, refresh, dealing, jobs, and when loops are suppressed."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import ConfigError, ConnectionFailedError, FatalError, UnsupportedVersionError
from mm2py.mirror.producer_ids import PRODUCERS_TOPIC
from mm2py.protocol import error_codes as codes
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.error_codes import server_error
from mm2py.protocol.topics import NewTopic
from mm2py.testing.contexts import FakeConnectorContext
from mm2py.types import TopicPartition
from mm2py_connectors import mirror_source
from mm2py_connectors.mirror_source import SETTLES_S, SUPPRESSION_EVERY_S, MirrorSourceConnector
from mm2py_connectors.mirror_source_task import MirrorSourceTask
from mm2py_connectors.topic_upkeep import MEASURE_S
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.mirror_fakes import MirrorTaskContext, Region, flow_config

CONFIG = flow_config("MirrorSourceConnector", topics="t.*", replication_factor="1") | {
    "offset-syncs.topic.replication.factor": "1"
}
IDENTITY = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
SYNCS = NewTopic("mm2-offset-syncs.B.internal", 1, 1, {"cleanup.policy": "compact"})


class LoadedContext(FakeConnectorContext):
    """Knows how much comes by each partition, where the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: dict[TopicPartition, float] = {}

    def partition_rates(self) -> dict[TopicPartition, float]:
        return self.rates


class Bench:
    def __init__(self, region: Region, config: dict[str, str] | None = None) -> None:
        self.region = region
        self.context = LoadedContext()
        self.connector = MirrorSourceConnector(
            CONFIG | (config or {}),
            admins=region.open_admin,
            readers=region.open_reader,
            writers=region.open_writer,
        )

    def dealt(self, max_tasks: int = 3) -> list[str]:
        configs = self.connector.task_configs(max_tasks)
        return [config["task.assigned.partitions"] for config in configs]

    def new_topics(self) -> list[NewTopic]:
        return self.region.target.created


@asynccontextmanager
async def running(bench: Bench) -> AsyncGenerator[Bench]:
    await bench.connector.start(bench.context)
    await bench.context.clock.settle()
    try:
        yield bench
    finally:
        await bench.connector.stop()
        await bench.connector.stop()
    assert bench.region.all_closed
    assert not bench.context.failures


async def ran(region: Region, config: dict[str, str] | None = None) -> Bench:
    """Return what a connector has done that only started and stopped."""
    async with running(Bench(region, config)) as bench:
        return bench


async def test_start_creates_the_copies_and_the_offset_syncs_topic() -> None:
    bench = Bench(Region({"t1": 2, "t2": 1, "other": 1}))
    bench.region.source.configs["t1"] = (ConfigEntry("retention.ms", "5"),)
    async with running(bench):
        pass
    assert bench.new_topics() == [
        NewTopic("A.t1", 2, 1, {"retention.ms": "5"}),
        NewTopic("A.t2", 1, 1, {}),
    ]
    assert bench.region.source.created == [SYNCS]
    assert bench.dealt() == ["t1-0", "t1-1", "t2-0"]
    assert sorted(bench.region.client_ids) == [
        "A->B|MirrorSourceConnector|offset-syncs-source-admin",
        "A->B|MirrorSourceConnector|replication-source-admin",
        "A->B|MirrorSourceConnector|replication-target-admin",
    ]


async def test_the_deal_is_javas() -> None:
    bench = await ran(Region({"t0": 8, "t1": 2, "t2": 2}))
    assert bench.dealt() == ["t0-0,t0-3,t0-6,t1-1", "t0-1,t0-4,t0-7,t2-0", "t0-2,t0-5,t1-0,t2-1"]
    first = bench.connector.task_configs(3)[0]
    assert first["task.index"] == "0"
    assert first["task.class"] == "org.apache.kafka.connect.mirror.MirrorSourceTask"
    assert first["source.cluster.bootstrap.servers"] == "a:1"
    assert bench.dealt(1) == [",".join(f"t0-{n}" for n in range(8)) + ",t1-0,t1-1,t2-0,t2-1"]


async def test_a_disabled_flow_touches_nothing() -> None:
    bench = await ran(Region({"t": 1}), {"enabled": "false"})
    assert bench.region.sessions == []
    assert bench.dealt() == []


async def test_an_unreachable_cluster_makes_the_runtime_try_again() -> None:
    bench = Bench(Region({"t": 1}))
    bench.region.refuse_connect = 2
    for _ in range(2):
        with pytest.raises(ConnectionFailedError):
            await bench.connector.start(bench.context)
        assert bench.region.all_closed
    async with running(bench):
        pass
    assert bench.dealt() == ["t-0"]


@pytest.mark.parametrize(
    ("others", "own", "found_s"),
    [(0, {}, 1), (1_000, {}, 3), (0, {"refresh.topics.interval.seconds": "5"}, 5)],
)
async def test_a_new_topic_is_found_within_a_second_where_there_are_few_and_appended_to_the_deal(
    others: int, own: dict[str, str], found_s: int
) -> None:
    topics = {"t5": 2} | {f"other{number}": 1 for number in range(others)}
    async with running(Bench(Region(topics), own)) as bench:
        bench.region.source.topics["t1"] = 1
        await bench.context.clock.advance(found_s - 0.1)
        assert bench.context.reconfigurations == 0
        await bench.context.clock.advance(0.2)
        assert bench.context.reconfigurations == 1
        assert bench.dealt() == ["t5-0", "t5-1", "t1-0"]
        await bench.context.clock.advance(60)
        assert bench.context.reconfigurations == 1, "only a changed set restarts tasks"


@pytest.mark.parametrize("every_s", [1, 2, 2.5, 4])
async def test_topics_that_keep_appearing_are_collected(every_s: float) -> None:
    bench = Bench(Region({"t": 1}))
    clock = bench.context.clock
    async with running(bench):
        for number in range(60):
            bench.region.source.topics[f"t{number}"] = 1
            await clock.advance(every_s)
        assert 2 <= bench.context.reconfigurations <= 4 + 2 * every_s
        await clock.advance(60)
        restarts = bench.context.reconfigurations
        assert len(",".join(bench.dealt()).split(",")) == 61
        bench.region.source.topics["tz"] = 1
        await clock.advance(3)
        assert bench.context.reconfigurations == restarts + 1


async def test_what_java_would_deal_is_known_though_partitions_kept_their_tasks() -> None:
    region = Region({"t1": 2})
    bench, java = Bench(region), await ran(Region({"t1": 2, "t5": 2}))
    async with running(bench):
        await bench.context.clock.advance(SETTLES_S)
        region.source.topics["t5"] = 2
        await bench.context.clock.advance(5)
        assert bench.dealt(2) == ["t1-0,t5-0", "t1-1,t5-1"]
        wanted = java.dealt(2)
        assert wanted == ["t5-0,t1-0", "t5-1,t1-1"]
        dealt = await bench.connector.java_task_configs(2)
        assert [it["task.assigned.partitions"] for it in dealt] == wanted


@pytest.mark.parametrize("most", [mirror_source.LONGEST_BESIDE, 9])
async def test_a_deal_by_load_is_kept_beside_javas_and_is_the_next_workers(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The flow begins in the middle: partitions are known, and of those found later each knows that it is late."""
    monkeypatch.setattr(mirror_source, "LONGEST_BESIDE", most)
    latest = {"source.consumer.auto.offset.reset": "latest"}
    bench = Bench(Region({"t1": 3}), latest)
    async with running(bench):
        bench.region.source.topics["t1"] = 4
        await bench.context.clock.advance(5)
        bench.context.rates = {TopicPartition("t1", n): 900.0 if n % 2 else 1.0 for n in range(4)}
        ours = bench.dealt(2)
        assert ours == ["t1-3,t1-0", "t1-1,t1-2"]
        dealt = await bench.connector.java_task_configs(2)
    java = ["t1-0,t1-2", "t1-1,t1-3"]
    assert [it["task.assigned.partitions"] for it in dealt] == java
    kept = [it.get("beside:task.assigned.partitions") for it in dealt]
    assert kept == (ours if most > 9 else [None, None])
    late = [it.get("beside:task.late.partitions") for it in dealt]
    assert late == (["t1-3", None] if most > 9 else [None, "t1-3"])
    again = Bench(bench.region, latest)
    again.context.published = [
        {**it, **{name.removeprefix("beside:"): text for name, text in it.items()}} for it in dealt
    ]
    async with running(again):
        assert again.dealt(2) == (ours if most > 9 else java)


async def test_where_copies_begin_at_the_end_a_partition_found_later_begins_at_its_start() -> None:
    latest = {"source.consumer.auto.offset.reset": "latest", "topics": "t.*"}
    async with running(Bench(Region({"t1": 2}), latest)) as bench:
        configs = bench.connector.task_configs(3)
        assert [config.get("task.late.partitions") for config in configs] == [None, None]
        bench.region.source.topics |= {"t1": 3, "t2": 1}
        await bench.context.clock.advance(5)
        configs = bench.connector.task_configs(2)
    late = [config.get("task.late.partitions") for config in configs]
    assert late == ["t1-2", "t2-0"]
    # A connector that starts again knows it from the task configs in force, and changes none.
    again = Bench(bench.region, latest)
    again.context.published = configs
    async with running(again):
        assert again.connector.task_configs(2) == configs
    # And what was found while it did not run is late too.
    bench.region.source.topics |= {"t3": 1}
    async with running(again):
        late = [config.get("task.late.partitions") for config in again.connector.task_configs(2)]
    assert late == ["t1-2,t3-0", "t2-0"]
    # Lanes on Spark publish no task configs: what they had is told beside them, or alone.
    streamed = Bench(bench.region, latest)
    streamed.context.published = [{"task.streamed.partitions": "t1-0,t2-0"}]
    async with running(streamed):
        late = [it.get("task.late.partitions") for it in streamed.connector.task_configs(2)]
    assert late == ["t1-2,t3-0", "t1-1"]


async def test_a_copy_that_is_refused_at_the_first_start_begins_where_the_log_ended_then() -> None:
    """Else what comes while an operator mends the refusal is in no position and no count: lost."""
    latest = {"source.consumer.auto.offset.reset": "latest", "topics": "t.*"}
    region = Region({"t1": 1, "t2": 2})
    region.target.refuse["A.t2"] = server_error(29, "no right to create")
    region.source.logs[TopicPartition("t2", 1)] = [1, 2, 3]
    async with running(Bench(region, latest)) as bench:
        first = bench.connector.task_configs(2)
    assert [it.get("task.first.ends") for it in first] == ["t2-0:0,t2-1:3"]
    again = Bench(region, latest)
    again.context.published = first
    region.source.logs[TopicPartition("t2", 1)] += [4]
    async with running(again):
        assert again.connector.task_configs(2) == first, "a restart keeps it"
        region.target.refuse.clear()
        await again.context.clock.advance(5)
        dealt = again.connector.task_configs(2)
        java = await again.connector.java_task_configs(2)
    assert [it["task.first.ends"] for it in dealt] == ["t2-1:3", "t2-0:0"]
    assert [it["beside:task.first.ends"] for it in java] == ["t2-1:3", "t2-0:0"]
    assert not any("task.late.partitions" in it for it in dealt)


async def test_a_first_start_that_finds_nothing_is_known_as_the_first_all_the_same() -> None:
    """Else a topic that appears while the flow is down begins at its end, and what it has is lost."""
    latest = {"source.consumer.auto.offset.reset": "latest", "topics": "t.*"}
    region = Region({"other": 1})
    async with running(Bench(region, latest)) as bench:
        first = bench.connector.task_configs(2)
    assert [it["task.assigned.partitions"] for it in first] == [""]
    region.source.topics |= {"t1": 1}
    again = Bench(region, latest)
    again.context.published = first
    async with running(again):
        dealt = again.connector.task_configs(2)
    assert [it["task.late.partitions"] for it in dealt] == ["t1-0"]


async def test_ages_are_counted_from_the_flows_first_start_also_after_restarts() -> None:
    """Else a topic that appears while the flow is down for longer than the age begins behind its first records."""
    ages = {"start.positions": "t.*=1 hour ago", "topics": "t.*"}
    region = Region({"t1": 1})
    async with running(Bench(region, ages)) as bench:
        first = bench.connector.task_configs(1)
        told = await bench.connector.java_task_configs(1)
        began = str(bench.context.clock.now_ms())
    assert [it["task.first.start.ms"] for it in first] == [began]
    assert [it["beside:task.first.start.ms"] for it in told] == [began], "Java ignores it there"
    assert "task.first.start.ms" not in told[0]
    again = Bench(region, ages)
    again.context.published = first
    await again.context.clock.advance(7_200)
    region.source.topics["t2"] = 1
    async with running(again):
        (config,) = again.connector.task_configs(1)
    assert config["task.assigned.partitions"] == "t1-0,t2-0"
    assert config["task.first.start.ms"] == began
    # What an earlier build or Java published does not tell it: it counts from here on.
    late = Bench(region, ages)
    late.context.published = [{"task.assigned.partitions": "t1-0"}]
    async with running(late):
        assert late.connector.task_configs(1)[0]["task.first.start.ms"] == began
    plain = await ran(region, ages | {"start.positions": "t.*=1000"})
    assert "task.first.start.ms" not in plain.connector.task_configs(1)[0], "Java's config"


@pytest.mark.parametrize(
    ("topics", "said"),
    [
        ("t1", ""),
        ("t1,o.*", ""),
        ("ordes", "topics=ordes matches no topic"),
        ("x.*", "topics=x.* matches no topic"),
        ("t1, pya, t[12]", "not on the source, or not visible to this principal: pya"),
        ("t1, x(a,b,c)y, (pya,t2)", ""),
        ("t1, pya, pay.eu, t.", "not on the source, or not visible to this principal: pay.eu, pya"),
    ],
)
async def test_what_topics_names_and_the_source_lacks_is_noted(topics: str, said: str) -> None:
    async with running(Bench(Region({"t1": 1, "heartbeats": 1}), {"topics": topics})) as bench:
        notes = bench.connector.notes()
        assert (said in notes.get("topics", ""), bool(notes)) == (True, bool(said))
        bench.region.source.topics |= dict.fromkeys(("ordes", "pya", "pay.eu", "xy"), 1)
        await bench.context.clock.advance(6.1)
        assert not bench.connector.notes()


async def test_a_deleted_topic_is_given_up_after_two_looks_and_its_copy_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(Region({"t1": 1, "t2": 1, "t3": 1, "t4": 1}))
    caplog.set_level(logging.INFO)

    async with running(bench):
        assert bench.dealt() == ["t4-0,t3-0", "t1-0", "t2-0"], "as Java lists them"
        await bench.context.clock.advance(SETTLES_S)
        del bench.region.source.topics["t4"]
        await bench.context.clock.advance(3.1)
        assert bench.context.reconfigurations == 0
        await bench.context.clock.advance(3)
        assert bench.context.reconfigurations == 1
        assert bench.dealt() == ["t3-0", "t1-0", "t2-0"], "the others keep their task"
        assert "A.t4" in bench.region.target.topics
        assert bench.connector.notes() == {
            "gone on the source": "t4; not copied any more, copies stay: A.t4"
        }
        assert "new=0 () gone=1 (t4)" in caplog.text
        bench.region.source.topics["t4"] = 1
        await bench.context.clock.advance(6.1)
        assert not bench.connector.notes()


@pytest.mark.parametrize("policy", ["Default", "Identity"])
async def test_the_topics_that_the_flows_live_by_are_no_copies_to_delete(policy: str) -> None:
    region = Region({"t1": 1})
    stores = (
        "mm2-configs.A",
        "mm2-offsets.A",
        "mm2py-offset-map.A",
        "mm2py-producers",
        "A.checkpoints",
    )
    region.target.topics |= {f"{it}.internal": 1 for it in stores}
    kind = f"org.apache.kafka.connect.mirror.{policy}ReplicationPolicy"
    async with running(Bench(region, {"replication.policy.class": kind})) as bench:
        assert not bench.connector.notes()


async def test_a_topic_that_is_gone_on_the_source_is_named_for_a_day() -> None:
    async with running(
        Bench(Region({"t1": 1, "t2": 1}), {"refresh.topics.interval.seconds": "20000"})
    ) as bench:
        del bench.region.source.topics["t1"]
        await bench.context.clock.advance(40_001)
        assert "t1" in bench.connector.notes()["gone on the source"]
        await bench.context.clock.advance(86_300)
        assert "t1" in bench.connector.notes()["gone on the source"]
        await bench.context.clock.advance(20_101)
        assert not bench.connector.notes()


async def test_a_topic_created_again_with_fewer_partitions_loses_others() -> None:
    async with running(Bench(Region({"t": 3}))) as bench:
        topics = bench.region.source.topics
        del topics["t"]
        await bench.context.clock.advance(3.1)
        topics["t"] = 2
        await bench.context.clock.advance(3)
        # Its task gets an interval to say what the third partition lost.
        assert bench.context.reconfigurations == 0
        await bench.context.clock.advance(3)
        assert bench.context.reconfigurations == 1
        assert bench.dealt() == ["t-0", "t-1"]


async def test_without_refresh_nothing_is_looked_for_but_what_waits_is_dealt_later() -> None:
    bench = Bench(Region({"t": 1}), {"refresh.topics.enabled": "false"})
    bench.region.target.refuse["A.t"] = server_error(44, "not here")
    async with running(bench):
        listings = bench.region.source.listings
        bench.region.target.refuse.clear()
        await bench.context.clock.advance(100)
        assert (bench.dealt(), bench.region.source.listings) == (["t-0"], listings)


async def test_copies_of_internal_topics_and_checkpoints_of_another_separator_are_named() -> None:
    region = Region({"t1": 1})
    region.target.topics |= {"A_mm2-configs.B.internal": 1, "A_mm2py-flows.B.internal": 1}
    region.target.topics |= {"A.checkpoints.internal": 1, "A_checkpoints_internal": 1}
    region.target.topics |= {"A_t1": 1, "C_mm2-configs.B.internal": 1}
    async with running(Bench(region, {"replication.policy.separator": "_"})) as bench:
        copies, former = bench.connector.notes().values()
        assert copies.startswith("A_mm2-configs.B.internal, A_mm2py-flows.B.internal: ")
        assert "passwords" in copies
        assert copies.endswith("delete them on B")
        assert former.startswith("A.checkpoints.internal beside A_checkpoints_internal: ")


async def test_a_copy_that_the_target_refuses_waits_alone_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(Region({"t1": 2, "t2": 1}), {"replication.factor": "2"})
    bench.region.target.refuse["A.t1"] = server_error(38, "only 1 broker is registered")
    async with running(bench):
        assert bench.dealt() == ["t2-0"]
        waiting = bench.connector.waiting()
        assert set(waiting) == {TopicPartition("t1", 0), TopicPartition("t1", 1)}
        cause = waiting[TopicPartition("t1", 0)]
        assert "INVALID_REPLICATION_FACTOR" in cause
        assert "set replication.factor (now 2)" in cause
        assert bench.connector.problems() == {"topic t1 waits": cause}
        await bench.context.clock.advance(30)
        lines = [record.getMessage() for record in caplog.records if "A.t1" in record.getMessage()]
        assert len(lines) == 1
        bench.region.target.refuse.clear()
        await bench.context.clock.advance(4)
        assert bench.dealt() == ["t1-0", "t1-1", "t2-0"], (
            "a flow's first minute: as Java lists them"
        )
        assert bench.connector.waiting() == {}


@pytest.mark.parametrize(
    ("config", "copy", "separator"), [({}, "A.t1", True), (IDENTITY, "t1", False)]
)
async def test_only_where_the_separator_is_in_its_name_a_copy_is_to_be_cured_by_it(
    config: dict[str, str], copy: str, separator: bool
) -> None:
    region = Region({"t1": 1})
    region.target.refuse[copy] = server_error(17, f"Topic '{copy}' collides with existing topics")
    cause = (await ran(region, config)).connector.waiting()[TopicPartition("t1", 0)]
    assert "delete that topic" in cause
    assert ("separator" in cause) is separator


async def test_topics_that_only_look_internal_are_a_note_and_a_mirrors_own_are_none() -> None:
    names = (".t", "t", "__t", "mm2-offset-syncs.C.internal", "C.checkpoints.internal")
    async with running(
        Bench(Region(dict.fromkeys(names, 1)), {"topics": ".*", "topics.exclude": "x"})
    ) as bench:
        assert bench.dealt() == ["t-0"]
        note = bench.connector.notes()["topics that are left out"]
        assert [it.split(" (")[0] for it in note.split("), ")] == [".t", "__t"]


async def test_what_waits_in_topics_without_a_copy_is_measured() -> None:
    t1, t2 = TopicPartition("t1", 0), TopicPartition("t2", 0)
    bench = Bench(Region({"t1": 1, "t2": 1, "t3": 1}))
    for remote in ("A.t1", "A.t2"):
        bench.region.target.refuse[remote] = server_error(44, "not here")
    bench.region.source.logs, bench.region.source.log_start = {t1: [500, 400, 900]}, 1_000
    async with running(bench):
        await bench.context.clock.advance(MEASURE_S)
        found = bench.connector.backlog()
        assert {it: (w.lag_records, w.oldest_ms) for it, w in found.items()} == {
            t1: (3, 500),
            t2: (0, -1),
        }
        assert "not here" in found[t1].cause
        bench.region.target.refuse.clear()
        await bench.context.clock.advance(MEASURE_S)
        assert bench.connector.backlog() == {}


async def test_what_waits_is_not_known_where_a_flow_does_not_begin_at_the_beginning() -> None:
    bench = Bench(Region({"t1": 1}), {"start.positions": "latest"})
    bench.region.target.refuse["A.t1"] = server_error(44, "not here")
    bench.region.source.logs = {TopicPartition("t1", 0): [500]}
    async with running(bench):
        await bench.context.clock.advance(MEASURE_S)
        (waiting,) = bench.connector.backlog().values()
        assert (waiting.lag_records, waiting.oldest_ms) == (-1, -1)


async def test_refused_configs_and_acls_are_findings_and_copying_continues() -> None:
    bench = Bench(Region({"t1": 1, "t2": 1}))
    bench.region.source.configs["t1"] = (ConfigEntry("segment.ms", "7"),)
    bench.region.target.refuse_configs["segment.ms"] = server_error(44, "not here")
    bench.region.source.acls = [
        Acl(
            AclResourceType.TOPIC,
            "t1",
            PatternType.LITERAL,
            "User:u",
            "*",
            AclOperation.READ,
            AclPermission.ALLOW,
        )
    ]
    bench.region.target.acl_answers = [server_error(31, "no Alter")]
    async with running(bench):
        await bench.context.clock.advance(1)
        (problem,) = bench.connector.problems().items()
        assert problem[0] == "configs of A.t1"
        assert "segment.ms: " in problem[1]
        assert "config.properties.exclude" in problem[1]
        assert "no Alter" in bench.connector.notes()["ACLs"]
        assert bench.dealt() == ["t1-0", "t2-0"]


async def test_a_topic_whose_configs_may_not_be_read_waits_alone() -> None:
    bench = Bench(Region({"t1": 1, "t2": 1, "t3": 1}))
    bench.region.source.unreadable["t2"] = server_error(29, "may not DescribeConfigs topic t2")
    async with running(bench):
        pass
    assert bench.dealt() == ["t1-0", "t3-0"]
    assert "DescribeConfigs" in bench.connector.waiting()[TopicPartition("t2", 0)]


async def test_a_copy_that_somebody_else_just_created_is_used() -> None:
    bench = Bench(Region({"t": 2}))
    bench.region.target.refuse["A.t"] = server_error(36, "exists")
    async with running(bench):
        bench.region.target.topics["A.t"] = 2
        await bench.context.clock.advance(4)
        assert bench.dealt() == ["t-0", "t-1"]


async def test_a_missing_offset_syncs_topic_stops_no_copy(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Region({"t": 1}), {"offset-syncs.topic.replication.factor": "3"})
    bench.region.source.refuse[SYNCS.name] = server_error(38, "1 broker")
    async with running(bench):
        assert bench.dealt() == ["t-0"]
        (problem,) = bench.connector.problems().values()
        assert "set offset-syncs.topic.replication.factor (now 3)" in problem
        await bench.context.clock.advance(200)
        assert caplog.text.count("offset-syncs.topic.replication.factor") == 1
        bench.region.source.refuse.clear()
        await bench.context.clock.advance(31)
        assert bench.connector.problems() == {}
        assert [topic.name for topic in bench.region.source.created] == [SYNCS.name]


@pytest.mark.parametrize(
    ("code", "seen"), [(29, False), (31, False), *((it, True) for it in (29, 31, 35, 36))]
)
async def test_an_offset_syncs_topic_that_may_not_be_created_is_named_unless_it_is_seen(
    code: int, *, seen: bool
) -> None:
    bench = Bench(Region({"t": 1} | ({SYNCS.name: 1} if seen else {})))
    refusal = bench.region.source.refuse[SYNCS.name] = server_error(code, "no")
    refusal.remedy = "grant Create"
    async with running(bench):
        assert bench.dealt() == ["t-0"]
        if seen:
            assert bench.connector.problems() == {}
            return
        (problem,) = bench.connector.problems().values()
        assert problem.startswith(f"topic {SYNCS.name} of the source cannot be written")
        assert problem.endswith("grant Create; or set offset-syncs.topic.location=target")
        del bench.region.source.refuse[SYNCS.name]
        await bench.context.clock.advance(31)
        assert bench.connector.problems() == {}


async def test_offset_syncs_live_on_the_target_where_the_user_wants_them() -> None:
    bench = await ran(Region({"t": 1}), {"offset-syncs.topic.location": "target"})
    assert bench.region.source.created == []
    assert "mm2-offset-syncs.A.internal" in bench.region.target.topics


async def test_without_offset_syncs_their_topic_is_not_created() -> None:
    config = {"emit.offset-syncs.enabled": "false"}
    props = {k: v for k, v in CONFIG.items() if k != "offset-syncs.topic.replication.factor"}
    region = Region({"t": 1})
    connector = MirrorSourceConnector(props | config, admins=region.open_admin)

    await connector.start(FakeConnectorContext())
    await connector.stop()
    assert region.source.created == []


@pytest.mark.parametrize(
    ("limit", "partitions", "shares"),
    [("3000", 8, ["1000"] * 3), ("3000", 2, ["1500"] * 2), ("0", 8, ["0"] * 3)],
)
async def test_tasks_of_a_flow_share_a_rate(limit: str, partitions: int, shares: list[str]) -> None:
    bench = await ran(Region({"t": partitions}), {"flow.max.bytes.per.second": limit})
    configs = bench.connector.task_configs(3)
    assert [config["flow.max.bytes.per.second"] for config in configs] == shares


async def test_a_failing_job_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Region({"t": 1}))
    caplog.set_level("INFO")

    async with running(bench):
        bench.region.source.broken = ConnectionFailedError("A is away")
        await bench.context.clock.advance(20)
        assert bench.connector.problems() == {"refresh topics": "A is away"}
        assert caplog.text.count("A is away") == 1
        bench.region.source.broken = None
        await bench.context.clock.advance(4)
        assert bench.connector.problems() == {}
        assert caplog.text.count("job works again") == 1
        bench.region.sessions[0].silent = "A is silent"
        assert bench.connector.problems() == {"connections": "A is silent"}


async def test_a_target_that_is_too_old_fails_the_connector() -> None:
    async with running(Bench(Region({"t": 1}))) as bench:
        bench.region.source.broken = UnsupportedVersionError("no such request")
        await bench.context.clock.advance(4)
        assert len(bench.context.failures) == 1
        bench.context.failures.clear()


def test_a_wrong_config_is_refused_before_anything_is_opened() -> None:
    for wrong in (
        {"replication.factor": "many"},
        {"topics": "[a"},
        {"replication.policy.class": "com.acme.Policy"},
        {"offset-syncs.topic.location": "moon"},
    ):
        region = Region({})
        with pytest.raises(ConfigError):
            Bench(region, wrong)
        assert not region.sessions


# -- loop suppression -----------------------------------------------------------------------------

PRODUCERS = NewTopic(PRODUCERS_TOPIC, 1, 1, {"cleanup.policy": "compact"})


def refusing(topics: dict[str, int]) -> Region:
    """Return a source that does not let the topic of ids be created."""
    region = Region(topics)
    region.source.refuse[PRODUCERS_TOPIC] = server_error(codes.TOPIC_AUTHORIZATION_FAILED, "no")
    return region


async def test_a_flow_that_keeps_names_creates_the_topic_of_ids() -> None:
    bench = await ran(Region({"t": 1}), IDENTITY)
    assert PRODUCERS in bench.region.source.created
    (config,) = bench.connector.task_configs(1)
    assert config["loop.suppression"] == "on"
    assert config["task.source.cluster.id"] == "id of a:1"
    assert config["task.target.cluster.id"] == "id of b:1"
    assert bench.connector.problems() == {}


async def test_loops_are_suppressed_as_soon_as_the_source_has_the_topic_of_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a flow back creates it that was added later: without the ids of this flow its records went round for ever."""
    bench = Bench(refusing({"t": 1}), IDENTITY)
    async with running(bench):
        await bench.context.clock.advance(2 * SUPPRESSION_EVERY_S)
        assert list(bench.connector.problems()) == ["loop suppression"]
        assert bench.connector.task_configs(1)[0]["loop.suppression"] == "off"
        assert caplog.text.count("loops are not suppressed") == 1
        before = bench.context.reconfigurations
        bench.region.source.topics[PRODUCERS_TOPIC] = 1
        await bench.context.clock.advance(2 * SUPPRESSION_EVERY_S)
        assert bench.context.reconfigurations == before + 1
        assert bench.connector.task_configs(1)[0]["loop.suppression"] == "on"
        assert bench.connector.problems() == {}


async def test_a_flow_whose_source_is_its_target_is_refused_before_anything_is_created() -> None:
    bench = Bench(Region({"t1": 1}))
    bench.region.cluster_id = "kLmN-1"
    with pytest.raises(ConfigError, match="A at a:1 and B at b:1 are one cluster, kLmN-1") as error:
        await bench.connector.start(bench.context)
    assert error.value.remedy
    assert bench.region.source.created == bench.region.target.created == []
    assert bench.region.all_closed


@pytest.mark.parametrize("found", [{"loop.suppression": "on"}, IDENTITY], ids=["told", "by-itself"])
async def test_a_task_reads_all_ids_before_its_first_batch_and_fails_where_it_may_not(
    found: dict[str, str],
) -> None:
    """What our connector has found is in the config; of Java's form the task finds it by itself."""
    region = GroupRegion()
    config = CONFIG | {"task.index": "0", "task.assigned.partitions": "t-0"} | found

    def task() -> MirrorSourceTask:
        return MirrorSourceTask(
            config,
            MirrorTaskContext(),
            readers=region.open_reader,
            writers=region.open_writer,
            logs=region.open_log,
            admins=region.open_admin,
        )

    log = region.log("A", PRODUCERS_TOPIC)
    log.append(b"900", b'\x01{"flow":"B->A","source":"B"}')
    log.append(b"901", b'\x01{"flow":"C->A","source":"C"}')
    log.append(b"902", None)
    first = task()
    await first.start()
    origins = region.readers[-1].events.origins
    assert origins is not None
    assert (origins.known.looping, origins.known.passing) == ({900}, {901})
    await first.stop()
    log.broken.append(server_error(codes.TOPIC_AUTHORIZATION_FAILED, "no"))
    second = task()
    with pytest.raises(FatalError, match="loops cannot be suppressed"):
        await second.start()
    await second.stop()
    assert region.all_closed
