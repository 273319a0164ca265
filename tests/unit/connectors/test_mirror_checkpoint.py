"""The MirrorCheckpoint connector: its groups, its checkpoints, and the group offsets that it writes."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from mm2py.api.records import SourceRecord
from mm2py.errors import ConfigError, ConnectionFailedError, FatalError
from mm2py.mirror.checkpoints import GROUP_STATES, Checkpoint, decode_checkpoint
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.consumer_offsets import offsets_partition
from mm2py.protocol.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.topics import NewTopic
from mm2py.testing.contexts import FakeConnectorContext, FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_connectors.group_watch import GroupShare
from mm2py_connectors.mirror_checkpoint import MirrorCheckpointConnector
from mm2py_connectors.mirror_checkpoint_task import MirrorCheckpointTask
from tests.unit.connectors.group_fakes import GroupRegion, commit_record
from tests.unit.connectors.mirror_fakes import flow_config

CONFIG = flow_config("MirrorCheckpointConnector", checkpoints_topic_replication_factor="1")
SYNCS = ("A", "mm2-offset-syncs.B.internal")
WRITTEN = ("B", "A.checkpoints.internal")


def connector_of(region: GroupRegion, **changes: str) -> MirrorCheckpointConnector:
    config = CONFIG | flow_config(CONFIG["name"], **changes)
    return MirrorCheckpointConnector(
        config,
        admins=region.open_admin,
        groups=region.open_groups,
        logs=region.open_log,
        maps=region.open_map,
    )


class Bench:
    """One running task."""

    def __init__(self, region: GroupRegion, task: MirrorCheckpointTask, context: FakeTaskContext):
        self.region, self.task = region, task
        self.context, self.clock = context, context.clock
        self.syncs = region.log(*SYNCS)

    async def polled(self, seconds: float = 1.5) -> list[Checkpoint]:
        """Return the checkpoints of the next seconds."""
        return [
            decode_checkpoint(record.key, record.value)
            for record in await self.records(seconds)
            if isinstance(record.key, bytes) and isinstance(record.value, bytes)
        ]

    async def records(self, seconds: float) -> list[SourceRecord]:
        """Return their records."""
        end, records = self.clock.monotonic() + seconds, list[SourceRecord]()
        while self.clock.monotonic() < end:
            polling = asyncio.create_task(self.task.poll())
            while not polling.done():
                await self.clock.advance(0.1)
            records += polling.result()
            await self.clock.advance(0.1)
        return records

    async def idle(self, seconds: float) -> None:
        """Let time pass; there must be nothing to write."""
        assert await self.polled(seconds) == []


@asynccontextmanager
async def running(region: GroupRegion, **changes: str) -> AsyncGenerator[Bench]:
    config = CONFIG | flow_config(CONFIG["name"], task_index="0", **changes)
    context = FakeTaskContext("MirrorCheckpointConnector-0")
    task = MirrorCheckpointTask(
        config, context, groups=region.open_groups, logs=region.open_log, maps=region.open_map
    )
    await task.start()
    await context.clock.settle()
    yield Bench(region, task, context)
    await task.stop()
    assert region.all_closed


def copied(upstream: int, downstream: int, **groups: int) -> GroupRegion:
    """Return clusters with one offset sync of t-0, and groups by their offset in it."""
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, upstream, downstream)
    for group, offset in groups.items():
        region.at_source.put(group, t_0=offset)
    return region


def checkpoint(group: str, topic: str, partition: int, up: int, down: int) -> Checkpoint:
    return Checkpoint(group, TopicPartition(topic, partition), up, down, "")


# -- the connector --------------------------------------------------------------------------------


async def test_tasks_share_the_groups_by_their_partition_of_the_offsets_topic() -> None:
    region, context = GroupRegion(), FakeConnectorContext()
    for number in range(2_500):
        region.at_source.states[f"g{number}"] = "Empty"
    connector = connector_of(region)
    await connector.start(context)
    assert [it["task.group.tasks"] for it in connector.task_configs(50)] == ["3"] * 3
    (config,) = connector.task_configs(1)
    assert config == CONFIG | {
        "task.class": "org.apache.kafka.connect.mirror.MirrorCheckpointTask",
        "task.index": "0",
        "task.group.tasks": "1",
        "task.group.partitions": "50",
    }
    assert region.target.created == [
        NewTopic("A.checkpoints.internal", 1, 1, {"cleanup.policy": "compact"})
    ]
    await connector.stop()
    assert region.all_closed


@pytest.mark.parametrize(
    ("groups", "tasks", "dealt"),
    [
        pytest.param(
            "sums billing audit", 1, ["audit,sums,billing"], id="in-order-of-their-hashes"
        ),
        pytest.param("sums", 4, ["sums"], id="one-group"),
        pytest.param("sums billing audit", 2, None, id="another-number-of-tasks"),
        pytest.param("", 1, None, id="no-group"),
    ],
)
async def test_groups_are_dealt_as_java_would_where_the_number_of_tasks_is_the_same(
    groups: str, tasks: int, dealt: list[str] | None
) -> None:
    region = GroupRegion()
    for group in groups.split():
        region.at_source.put(group, t_0=5)
    region.at_source.put("reads-what-is-excluded", __own_0=5)
    connector = connector_of(region)
    await connector.start(FakeConnectorContext())
    configs = await connector.java_task_configs(tasks)
    await connector.stop()
    assert (configs is None) == (dealt is None)
    assert [it["task.assigned.groups"] for it in configs or ()] == (dealt or [])
    for config in configs or ():
        assert set(config) - set(CONFIG) == {"task.class", "task.index", "task.assigned.groups"}


@pytest.mark.parametrize("tasks", [1, 3, 10, 50])
def test_each_group_has_exactly_one_task(tasks: int) -> None:
    shares = [
        GroupShare(lambda _: True, index=index, tasks=tasks, partitions=50)
        for index in range(tasks)
    ]
    for group in ("billing", "a,b", "orders-éß", *(f"g{n}" for n in range(200))):
        (owner,) = [share for share in shares if share.has(group)]
        assert owner.reads(offsets_partition(group, 50), 50)
    assert not any(share.has("") for share in shares)  # no request can name it


@pytest.mark.parametrize(
    "name", ["enabled", "emit.checkpoints.enabled", "emit.offset-syncs.enabled"]
)
async def test_a_connector_that_is_to_write_no_checkpoints_has_no_tasks_and_names_the_cause(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    region = GroupRegion()
    region.at_source.put("g1", t_0=1)
    connector = connector_of(region, **{name: "false"})
    await connector.start(FakeConnectorContext())
    assert list(connector.task_configs(3)) == []
    assert region.sessions == []
    assert (f"cause={name}=false" in caplog.text) is (name != "enabled")
    await connector.stop()


async def test_new_groups_start_no_task_anew_until_there_are_a_thousand_more() -> None:
    region, context = GroupRegion(), FakeConnectorContext()
    region.at_source.states |= {f"g{number}": "Empty" for number in range(900)}
    connector = connector_of(region)
    await connector.start(context)
    assert context.reconfigurations == 1, "that of the topic"
    region.at_source.states |= {f"h{number}": "Empty" for number in range(100)}
    await context.clock.advance(600)
    assert context.reconfigurations == 1
    region.at_source.put("one more", t_0=1)
    await context.clock.advance(600)
    assert (context.reconfigurations, len(connector.task_configs(9))) == (2, 2)
    region.at_source.states.clear()
    await context.clock.advance(600)
    assert (context.reconfigurations, len(connector.task_configs(9))) == (2, 2), "never fewer"
    region.at_source.broken = ConnectionFailedError("away")
    await context.clock.advance(600)
    assert connector.problems() == {"count groups": "away"}
    await connector.stop()


@pytest.mark.parametrize(("policy", "is_wrong"), [("delete", True), ("compact", False)])
async def test_a_checkpoints_topic_with_deletion_is_a_problem(policy: str, is_wrong: bool) -> None:
    region = GroupRegion()
    region.target.configs["A.checkpoints.internal"] = (ConfigEntry("cleanup.policy", policy),)
    connector = connector_of(region)
    await connector.start(FakeConnectorContext())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found = connector.problems().get("check checkpoints topic", "")
    assert ("cleanup.policy=compact" in found) == is_wrong
    await connector.stop()


async def test_a_checkpoints_topic_that_was_deleted_is_created_again() -> None:
    region, context = GroupRegion(), FakeConnectorContext()
    connector = connector_of(region)
    await connector.start(context)
    await context.clock.advance(1)
    region.target.created.clear()
    await context.clock.advance(60)
    assert [it.name for it in region.target.created] == ["A.checkpoints.internal"]
    assert context.reconfigurations == 1
    await connector.stop()


async def test_a_source_that_is_away_is_tried_again_by_the_runtime() -> None:
    region = GroupRegion()
    region.at_source.broken = ConnectionFailedError("away")
    connector = connector_of(region)
    with pytest.raises(ConnectionFailedError):
        await connector.start(FakeConnectorContext())
    assert region.all_closed


async def test_only_offset_0_may_be_stored() -> None:
    where = {"group": "g", "topic": "A.t", "partition": 0}
    assert MirrorCheckpointConnector.check_offsets({}, [(where, {"offset": 0}), (None, None)])
    values: list[object] = ["nan", None, {}, 3.14, -420, "10", 10, 2**31]
    for wrong in values:
        with pytest.raises(ConfigError):
            MirrorCheckpointConnector.check_offsets({}, [(where, {"offset": wrong})])
    for key in where:
        broken = {name: value for name, value in where.items() if name != key}
        with pytest.raises(ConfigError):
            MirrorCheckpointConnector.check_offsets({}, [(broken, {"offset": 0})])


# -- checkpoints ----------------------------------------------------------------------------------


async def test_a_checkpoint_names_the_copy_and_where_it_would_continue() -> None:
    region = GroupRegion()
    syncs = region.log(*SYNCS)
    syncs.sync("topic1", 2, 3, 4)
    syncs.sync("B.topic5", 6, 7, 8)
    region.at_source.put("group9", topic1_2=10, topic1_3=10, metadata="m")
    region.at_source.put("group11", {"B.topic5_6": 12})
    region.at_source.put("group13", {"B.topic5_6": 7})
    async with running(region) as bench:
        assert await bench.polled() == [
            Checkpoint("group9", TopicPartition("A.topic1", 2), 10, 5, "m"),
            checkpoint("group11", "topic5", 6, 12, 9),
            checkpoint("group13", "topic5", 6, 7, 8),
        ]
        assert await bench.polled() == []


async def test_a_checkpoint_that_the_target_has_is_reported_with_the_time_since_its_poll() -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("topic1", 2, 3, 4)
    region.at_source.put("group9", topic1_2=10)
    async with running(region) as bench:
        polled = await bench.records(1.5)
        assert bench.context.checkpoints == {}
        made_ms = polled[0].timestamp_ms
        await bench.clock.advance(1.0)
        bench.task.delivered(polled[0], 0)
        took_ms = bench.clock.now_ms() - made_ms
        assert took_ms >= 1_000
        at = "group9", TopicPartition("A.topic1", 2)
        assert bench.context.checkpoints == {at: took_ms}


@pytest.mark.parametrize(("behind", "again"), [(0, ["g", "idle"]), (9, ["g"])])
async def test_in_a_topic_that_was_created_again_all_checkpoints_are_written_again(
    behind: int, again: list[str]
) -> None:
    """Else a group that commits nothing has none there, until its task starts again."""
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 12, 5)
    region.at_source.put("idle", t_0=13)
    region.at_source.put("g", t_0=12)
    async with running(region) as bench:
        for offset, record in enumerate(await bench.records(1.5), 7):
            bench.task.delivered(record, offset)
        bench.syncs.sync("t", 0, 14, 7)
        region.at_source.put("g", t_0=14)
        (record,) = await bench.records(1.5)
        bench.task.delivered(record, behind)
        bench.task.delivered(record, -1)  # the broker did not say where
        bench.syncs.sync("t", 0, 15, 8)
        region.at_source.put("g", t_0=15)
        assert sorted({it.group for it in await bench.polled(3)}) == again


async def test_checkpoints_go_back_only_with_their_group() -> None:
    region = GroupRegion()
    syncs = region.log(*SYNCS)
    syncs.sync("t", 0, 11, 4)
    syncs.sync("t", 0, 12, 5)
    region.at_source.put("g", t_0=13)
    async with running(region) as bench:
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 13, 6)]
        for upstream in range(13, 18):
            syncs.sync("t", 0, upstream, upstream - 7)
        assert await bench.polled() == []
        region.at_source.put("g", t_0=12)
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 12, 5)]


async def test_after_a_restart_checkpoints_continue_where_they_were() -> None:
    region = GroupRegion()
    syncs = region.log(*SYNCS)
    for upstream in (175, 275, 375, 475):
        syncs.sync("t", 0, upstream, upstream)
    written = region.log(*WRITTEN)
    written.append(b"", b"")
    written.append(b"\0\1g", None)
    written.checkpoint("other", "A.t", 0, 1, 1)
    written.checkpoint("g", "A.t", 0, 0, 0)
    written.checkpoint("g", "A.t", 0, 250, 201)
    region.at_source.put("g", t_0=250)
    async with running(region) as bench:
        assert await bench.polled() == []
        region.at_source.put("g", t_0=370)
        assert await bench.polled() == []
        region.at_source.put("g", t_0=400)
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 400, 376)]


async def test_without_the_old_checkpoints_only_the_last_sync_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    region = GroupRegion()
    syncs = region.log(*SYNCS)
    for upstream in (100, 200, 300):
        syncs.sync("t", 0, upstream, upstream)
    region.log(*WRITTEN).broken = [server_error(GROUP_AUTHORIZATION_FAILED, "no")]
    region.at_source.put("g", t_0=250)
    async with running(region) as bench:
        assert await bench.polled() == []
        region.at_source.put("g", t_0=301)
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 301, 301)]
    assert "checkpoints written before cannot be read" in caplog.text


async def test_offset_syncs_that_cannot_be_read_are_waited_for_or_fail_the_task() -> None:
    region = GroupRegion()
    syncs = region.log(*SYNCS)
    syncs.sync("t", 0, 5, 5)
    region.at_source.put("g", t_0=5)
    syncs.broken = [ConnectionFailedError("away")] * 2
    async with running(region) as bench:
        text, count, harms = bench.context.findings["offset syncs"]
        assert ("away" in text, count, harms) == (True, 1, True), "the flow is DEGRADED meanwhile"
        assert await bench.polled(5) == [checkpoint("g", "A.t", 0, 5, 5)]
        assert "offset syncs" not in bench.context.findings
        syncs.trouble(ConnectionFailedError("topic is gone"))
        assert "topic is gone" in bench.context.findings["offset syncs"][0]
        syncs.trouble(None)
        assert "offset syncs" not in bench.context.findings
    syncs.broken = [FatalError("not allowed")]
    async with running(region) as bench:
        with pytest.raises(FatalError, match="not allowed"):
            await bench.polled()


async def test_a_defect_leaves_nothing_of_the_task_running() -> None:
    region = copied(0, 0, g=5)
    region.map.put("t", 0, (0, 50, 0), covered=50)
    region.map.defects = [LookupError("defect")]
    async with running(region) as bench:
        with pytest.raises(LookupError):
            await bench.polled(10)
    assert not bench.syncs.is_followed


async def test_a_group_or_cluster_that_does_not_answer_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    region = copied(0, 0, g1=5, g2=5)
    region.at_source.errors["g1"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g1")
    region.at_source.broken = ConnectionFailedError("away")
    async with running(region) as bench:
        assert await bench.polled() == []
        assert "away" in bench.context.findings["groups of the source"][0]
        region.at_source.broken = None
        assert [it.group for it in await bench.polled(3)] == ["g2"]
        assert bench.context.findings.keys() == {"groups not read"}
        await bench.idle(2)
        del region.at_source.errors["g1"]
        assert [it.group for it in await bench.polled(3)] == ["g1"]
        assert bench.context.findings == {}
    assert caplog.text.count("group offsets cannot be read group=g1 cause=") == 1


async def test_6_a_coordinator_of_the_target_that_does_not_answer_delays_others_once() -> None:
    region = copied(0, 0, g1=5, g2=5)
    region.map.put("t", 0, (0, 50, 0), covered=50)
    async with running(region, sync_group_offsets_enabled="true") as bench:
        await bench.polled(3)
        region.at_target.silent["g1"] = partial(bench.clock.sleep, 30)
        region.at_source.put("g1", t_0=6)
        await bench.polled(45)
        for offset in (7, 8, 9):
            region.at_source.put("g2", t_0=offset)
            await bench.polled(5)
            assert region.at_target.commits[-1] == ("g2", {TopicPartition("A.t", 0): offset})
        region.at_target.silent.clear()
        await bench.polled(45)
        assert region.at_target.commits[-1] == ("g1", {TopicPartition("A.t", 0): 6})


async def test_5_a_coordinator_of_the_source_that_does_not_answer_delays_others_once() -> None:
    region = copied(0, 0, g1=5, g2=5)
    region.commits.broken = [FatalError("not allowed") for _ in range(99)]
    region.map.put("t", 0, (0, 50, 0), covered=50)
    async with running(region) as bench:
        await bench.polled(3)
        region.at_source.silent["g1"] = partial(bench.clock.sleep, 30)
        await bench.polled(45)
        assert "no answer" in bench.context.findings["groups of the source"][0]
        for offset in (7, 8, 9):
            region.at_source.put("g2", t_0=offset)
            assert [it.upstream for it in await bench.polled(5)] == [offset]
        region.at_source.silent.clear()
        region.at_source.put("g1", t_0=6)
        assert [it.upstream for it in await bench.polled(45)] == [6]
        assert "groups of the source" not in bench.context.findings


async def test_topics_that_are_not_chosen_and_offsets_before_all_syncs_have_no_checkpoint() -> None:
    region = GroupRegion()
    for topic in ("t1", "t2"):
        region.log(*SYNCS).sync(topic, 0, 10, 10)
    region.at_source.put("g", t1_0=12, t2_0=12, t1_1=3)
    region.at_source.put("early", t1_0=9)
    async with running(region, topics="t1") as bench:
        assert await bench.polled() == [checkpoint("g", "A.t1", 0, 12, 11)]


async def test_a_group_filter_that_lets_nothing_through_is_a_note() -> None:
    region = GroupRegion()
    region.at_source.put("billing", t_0=1)
    async with running(region, groups="biling") as bench:
        await bench.idle(1)
        text, _, harms = bench.context.findings["group filter"]
        assert ("'billing'" in text, harms) == (True, False)


async def test_a_set_interval_bounds_how_often_checkpoints_are_written() -> None:
    region = copied(0, 0)
    for upstream in range(100, 120):
        region.log(*SYNCS).sync("t", 0, upstream, upstream)
    region.at_source.put("g", t_0=100)
    async with running(region, emit_checkpoints_interval_seconds="60") as bench:
        assert [it.upstream for it in await bench.polled()] == [100], "the first ones at once"
        for upstream in (101, 102, 103):
            region.at_source.put("g", t_0=upstream)
            await bench.idle(15)
        assert [it.upstream for it in await bench.polled(20)] == [103]


async def test_groups_dealt_by_a_java_worker_are_the_tasks_alone() -> None:
    region = copied(5, 5, g1=5, g2=5)
    async with running(region, task_assigned_groups="g2") as bench:
        assert [it.group for it in await bench.polled()] == ["g2"]


async def test_where_the_exact_map_reaches_a_checkpoint_is_exact() -> None:
    region = copied(0, 0)
    region.map.put("t", 0, (0, 50, 0), (60, 40, 50), covered=100)
    region.at_source.put("inside", t_0=33)
    region.at_source.put("hole", t_0=55)
    region.at_source.put("end", t_0=100)
    region.at_source.put("beyond", t_0=120)
    async with running(region) as bench:
        found = {it.group: it.downstream for it in (await bench.polled(3))}
        assert found == {"inside": 33, "hole": 50, "end": 90, "beyond": 90}
        region.map.put("t", 0, (0, 50, 0), (60, 65, 50), covered=125)
        assert await bench.polled() == [checkpoint("beyond", "A.t", 0, 120, 110)]
        await bench.idle(3)


@pytest.mark.parametrize("follows", [True, False], ids=["log", "asked"])
async def test_a_group_in_a_topic_that_was_created_again_is_not_placed_by_its_former_offset(
    follows: bool,
) -> None:
    region, tp = GroupRegion(), TopicPartition("t", 0)
    if not follows:
        region.commits.broken = [FatalError("not allowed") for _ in range(99)]
    region.at_target.states["g"] = "Empty"
    region.log(*SYNCS).sync("t", 0, 0, 0)
    region.map.put("t", 0, (0, 320, 0), covered=320, source_id=bytes(15) + b"1")
    region.at_source.put("g", t_0=319)
    async with running(region, sync_group_offsets_enabled="true") as bench:
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 319, 319)]
        # The worker stood still; the map is what it sees first.
        region.at_source.log = None
        region.at_source.put("g", t_0=50)
        region.map.put("t", 0, (0, 400, 320), covered=400, source_id=bytes(15) + b"2")
        bench.syncs.sync("t", 0, 0, 320)
        found = await bench.polled(0.3)
        # Then its log of commits, from where it had been.
        for offset in (319, None, 20):
            region.commits.append(*commit_record("g", tp, offset))
            found += await bench.polled(0.3)
        found += await bench.polled()
        assert found == [checkpoint("g", "A.t", 0, 50, 370)]
        region.at_source.put("g", t_0=60)
        region.commits.append(*commit_record("g", tp, 60))
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 60, 380)]
    written = [offsets[TopicPartition("A.t", 0)] for _, offsets in region.at_target.commits]
    assert written == [319, 370, 380]


async def test_nothing_is_known_of_a_partition_whose_map_is_about_a_former_copy() -> None:
    region, tp = GroupRegion(), TopicPartition("t", 0)
    region.at_target.states["g"] = "Empty"
    for offset in (0, 147):
        region.log(*SYNCS).sync("t", 0, offset, offset)
    region.log(*WRITTEN).checkpoint("g", "A.t", 0, 148, 148)
    region.map.put("t", 0, (0, 148, 0), covered=148)
    region.map.former.add(tp)
    region.at_source.put("g", t_0=148)
    async with running(region, sync_group_offsets_enabled="true") as bench:
        await bench.idle(25)
        assert region.at_target.commits == []
        # The source task has noticed it: the new copy has none of the records.
        region.map.put("t", 0, (148, 0, 0), covered=148)
        region.map.former.clear()
        assert await bench.polled(7) == [checkpoint("g", "A.t", 0, 148, 0)]
        region.at_source.put("g", t_0=150)
        await bench.idle(3)
        region.map.put("t", 0, (148, 3, 0), covered=151)
        assert await bench.polled(4) == [checkpoint("g", "A.t", 0, 150, 2)]
    written = [offsets[TopicPartition("A.t", 0)] for _, offsets in region.at_target.commits]
    assert written == [0, 2]


async def test_nothing_is_translated_until_it_is_known_whether_there_is_a_map() -> None:
    region = copied(147, 147)
    region.map.put("t", 0, (0, 148, 0), covered=148)
    region.map.broken = [ConnectionFailedError("not now")] * 2
    region.map.former.add(TopicPartition("t", 0))
    region.at_source.put("g", t_0=148)
    async with running(region) as bench:
        assert "not now" in bench.context.findings["offset map"][0]
        await bench.idle(15)
        assert "offset map" not in bench.context.findings


# -- group offsets --------------------------------------------------------------------------------


@asynccontextmanager
async def synced(region: GroupRegion, seconds: float = 2) -> AsyncGenerator[Bench]:
    """Offsets written after the first checkpoints."""
    async with running(region, **{"sync.group.offsets.enabled": "true"}) as bench:
        await bench.polled(seconds)
        yield bench


def at(topic: str, **offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, int(key[1:])): offset for key, offset in offsets.items()}


@pytest.fixture
def region() -> GroupRegion:
    return with_a_group()


def with_a_group() -> GroupRegion:
    """Return clusters with a group in two partitions that are copied."""
    made = GroupRegion()
    made.log(*SYNCS).sync("t", 0, 101, 101)
    made.log(*SYNCS).sync("t", 1, 51, 51)
    made.at_source.put("g", t_0=101, t_1=51, metadata="m")
    return made


async def test_set_intervals_bound_how_often_group_offsets_are_written(region: GroupRegion) -> None:
    slow = {"sync.group.offsets.enabled": "true", "sync.group.offsets.interval.seconds": "60"}
    async with running(region, **slow) as bench:
        await bench.polled(2)
        written = len(region.at_target.commits)
        region.log(*SYNCS).sync("t", 0, 102, 102)
        region.at_source.put("g", t_0=102)
        assert len(await bench.polled(30)) == 1
        assert len(region.at_target.commits) == written
        await bench.idle(40)
        assert region.at_target.commits[-1] == ("g", at("A.t", _0=102))


async def test_groups_that_do_not_exist_get_all_their_offsets_once_and_again_when_they_expired(
    region: GroupRegion,
) -> None:
    async with synced(region) as bench:
        assert region.at_target.commits == [("g", at("A.t", _0=101, _1=51))]
        assert {it.metadata for it in region.at_target.offsets["g"].values()} == {"m"}
        await bench.idle(30)
        assert len(region.at_target.commits) == 1
        region.at_target.drop("g")
        await bench.idle(15)
        assert region.at_target.commits[1:] == [("g", at("A.t", _0=101, _1=51))]


async def test_a_group_that_was_deleted_at_the_source_is_left_alone(region: GroupRegion) -> None:
    async with synced(region) as bench:
        region.at_source.drop("g")
        await bench.idle(70)
        region.at_target.drop("g")
        await bench.idle(30)
    assert len(region.at_target.commits) == 1


async def test_offsets_of_idle_groups_never_go_back(region: GroupRegion) -> None:
    region.at_target.put("g", {"A.t_0": 100, "A.t_1": 52})
    async with synced(region):
        assert region.at_target.commits == [("g", at("A.t", _0=101))]


def taken_over(lag: int, group: str = "g") -> GroupRegion:
    """Another program has copied 3,392 records and a group so much less; the flow has copied 500 since."""
    region, made = GroupRegion(), 3_392 - lag
    syncs = region.log(*SYNCS)
    for at_ in range(0, 3_900, 100):
        syncs.sync("t", 0, at_, at_)
    region.map.put("t", 0, (3_392, 500, 3_392), covered=3_892)
    region.at_source.put(group, t_0=made)
    region.shares_at_source.put(group + "-share", t_0=made)
    return region


@pytest.mark.parametrize(("lag", "place"), [(3_103, 1), (1, 3_201), (0, 3_392), (-8, 3_400)])
async def test_a_group_below_the_map_is_placed_by_offset_syncs(lag: int, place: int) -> None:
    region = taken_over(lag)
    async with synced(region):
        assert region.at_target.commits == [("g", at("A.t", _0=place))]
        assert region.shares_at_target.commits == [("g-share", at("A.t", _0=place))]


@pytest.mark.parametrize(("now", "after"), [(3_392, 1), (3_393, 3_393)])
async def test_a_group_that_was_moved_past_unread_records_and_has_not_moved_since_is_set_back(
    now: int, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    region = taken_over(3_103)
    region.log("B", "A.checkpoints.internal").checkpoint("g", "A.t", 0, 289, now)
    region.at_target.put("g", {"A.t_0": now})
    async with synced(region) as bench:
        assert region.at_target.offsets["g"][TopicPartition("A.t", 0)].offset == after
        assert caplog.text.count("was set back on the target") == (after < now)
        # It is looked for at the start alone: in place of what was set, the group has its checkpoint.
        region.at_target.put("g", {"A.t_0": 3_392})
        region.at_source.put("g", t_0=290)
        await bench.idle(30)
        assert region.at_target.offsets["g"][TopicPartition("A.t", 0)].offset == max(3_392, after)


@pytest.mark.parametrize("checkpoint_at", [None, (289, 1), (3_392, 3_392)])
async def test_a_group_whose_members_read_to_the_beginning_of_the_map_is_not_set_back(
    checkpoint_at: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The map begins there because its topic was lost; no checkpoint says that the group was moved there."""
    region = taken_over(3_103)
    if checkpoint_at is not None:
        region.log(*WRITTEN).checkpoint("g", "A.t", 0, *checkpoint_at)
    region.at_target.put("g", {"A.t_0": 3_392})
    region.shares_at_target.put("g-share", {"A.t_0": 3_392})
    async with synced(region) as bench:
        await bench.polled(30)
    assert region.at_target.offsets["g"][TopicPartition("A.t", 0)].offset == 3_392
    assert region.shares_at_target.offsets["g-share"][TopicPartition("A.t", 0)].offset == 3_392
    assert "earlier version" not in caplog.text


async def test_a_group_with_members_is_not_set_back() -> None:
    region = taken_over(3_103)
    region.log(*WRITTEN).checkpoint("g", "A.t", 0, 289, 3_392)
    region.at_target.put("g", {"A.t_0": 3_392})
    refusal = server_error(UNKNOWN_MEMBER_ID, "refused")
    region.at_target.refusals = dict.fromkeys(at("A.t", _0=1), refusal)
    async with synced(region) as bench:
        region.at_target.refusals.clear()
        await bench.idle(30)
        assert region.at_target.offsets["g"][TopicPartition("A.t", 0)].offset == 3_392


async def test_where_a_group_that_was_moved_too_far_had_read_to_may_not_be_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    region = taken_over(3_103)
    region.log(*SYNCS).records.clear()
    region.log("B", "A.checkpoints.internal").checkpoint("g", "A.t", 0, 289, 3_392)
    async with synced(region):
        assert region.at_target.commits == []
        assert "reset its offset there group=g" in caplog.text


def groups_by_state(bench: Bench) -> tuple[int, ...]:
    return tuple(bench.context.figures[f"groups {state}"] for state in GROUP_STATES)


async def test_groups_in_use_are_left_alone_reported_and_synced_when_they_are_idle(
    region: GroupRegion, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = server_error(UNKNOWN_MEMBER_ID, "refused")
    region.at_target.refusals = dict.fromkeys(at("A.t", _0=1, _1=1), refusal)
    async with synced(region) as bench:
        assert region.at_target.offsets.get("g") is None
        text, count, harms = bench.context.findings["groups in use on the target"]
        assert (text.startswith("g: "), count, harms) == (True, 1, False)
        assert groups_by_state(bench) == (0, 0, 1, 0)
        await bench.idle(30)
        assert 3 <= len(region.at_target.commits) <= 5, "tried now and then"
        region.at_target.refusals.clear()
        await bench.idle(15)
        assert region.at_target.commits[-1] == ("g", at("A.t", _0=101, _1=51))
        assert bench.context.findings == {}
        assert groups_by_state(bench) == (1, 0, 0, 0)
    assert caplog.text.count("it is in use on the target") == 1


async def test_a_group_that_was_in_use_and_is_refused_for_another_cause_is_told(
    region: GroupRegion,
) -> None:
    refusal = server_error(UNKNOWN_MEMBER_ID, "refused")
    region.at_target.refusals = dict.fromkeys(at("A.t", _0=1, _1=1), refusal)
    async with synced(region) as bench:
        region.at_target.errors["g"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g")
        await bench.idle(15)
        assert groups_by_state(bench) == (0, 0, 0, 1)
        assert set(bench.context.findings) == {"groups not synced"}


async def test_groups_whose_offsets_are_not_known_are_left_alone(region: GroupRegion) -> None:
    region.at_target.put("g", {"A.t_0": 200})
    region.at_target.errors["g"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g")
    async with synced(region) as bench:
        assert region.at_target.commits == []
        text, _, harms = bench.context.findings["groups not synced"]
        assert (str(region.at_target.errors["g"]) in text, harms) == (True, True)
        assert groups_by_state(bench) == (0, 0, 0, 1)


async def test_a_refused_partition_is_logged_once_and_costs_the_others_nothing(
    region: GroupRegion, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = server_error(UNKNOWN_TOPIC_OR_PARTITION, "refused")
    region.at_target.refusals[TopicPartition("A.t", 0)] = refusal
    async with synced(region) as bench:
        assert {tp.partition for tp in region.at_target.offsets["g"]} == {1}
        await bench.idle(12)
    assert len(region.at_target.commits) > 1, "it is tried again"
    assert caplog.text.count("group offsets are not synced group=g cause=A.t-0") == 1


async def test_a_group_whose_coordinator_may_not_be_asked_for_costs_the_others_nothing(
    region: GroupRegion, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"g{number:03d}" for number in range(120)]
    for name in names:
        region.at_source.put(name, t_0=101)
    region.at_target.unwritable["g000"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g000")
    async with synced(region):
        assert {group for group, _ in region.at_target.commits} == {*names[1:], "g"}
    assert "group=g000" in caplog.text


async def test_a_coordinator_that_moves_with_many_groups_is_one_line(
    region: GroupRegion, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    names = [f"g{number:03d}" for number in range(120)]
    for name in names:
        region.at_source.put(name, t_0=101)
        region.at_target.errors[name] = server_error(NOT_COORDINATOR, "offsets")
    async with synced(region) as bench:
        assert bench.context.findings["groups not synced"][1] == len(names)
        region.at_target.errors.clear()
        await bench.idle(40)
        assert "groups not synced" not in bench.context.findings
    assert {group for group, _ in region.at_target.commits} == {*names, "g"}
    assert "group=g1" not in caplog.text


async def test_nothing_is_written_while_the_task_is_paused(region: GroupRegion) -> None:
    async with synced(region) as bench:
        written = len(region.at_target.commits)
        region.log(*SYNCS).sync("t", 0, 102, 102)
        region.at_source.put("g", t_0=102)
        await bench.clock.advance(6)  # without a poll
        region.at_target.drop("g")
        await bench.clock.advance(60)
        assert len(region.at_target.commits) == written
        await bench.polled(3)
        assert region.at_target.offsets["g"][TopicPartition("A.t", 0)].offset == 102


async def test_where_another_flow_writes_into_the_same_copy_no_group_has_a_place() -> None:
    region, tp = GroupRegion(), TopicPartition("t", 0)
    region.at_target.states["g"] = "Empty"
    region.log(*SYNCS).sync("t", 0, 0, 0)
    region.log(*WRITTEN).checkpoint("g", "A.t", 0, 40, 90)
    region.map.put("t", 0, (0, 100, 50), covered=100)
    region.map.put("t", 1, (0, 100, 0), covered=100)
    region.map.shared[tp] = ("C",)
    region.at_source.put("g", t_0=50, t_1=50)
    async with running(region, sync_group_offsets_enabled="true") as bench:
        assert await bench.polled() == [checkpoint("g", "A.t", 1, 50, 50)], "the other partition"
        await bench.idle(30)
        assert region.at_target.commits == [("g", at("A.t", _1=50))]
        finding, _, harms = bench.context.findings["copies of several flows"]
        assert ("flows from C write into t too" in finding, harms) == (True, False)
        # The other flow has moved to another topic.
        region.map.shared.clear()
        assert await bench.polled(7) == [checkpoint("g", "A.t", 0, 50, 100)]
        assert "copies of several flows" not in bench.context.findings
        # And it comes back: what was synced stays, nothing more is written.
        region.map.shared[tp] = ("C",)
        await bench.idle(7)
        region.at_source.put("g", t_0=60)
        await bench.idle(25)
    written = [offsets for _, offsets in region.at_target.commits]
    assert written == [at("A.t", _1=50), at("A.t", _0=100)]
