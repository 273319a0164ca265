"""The MirrorCheckpoint connector: its groups, its checkpoints, and the group offsets that it writes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from mm2py.api.records import SourceRecord
from mm2py.errors import ConfigError, ConnectionFailedError, FatalError
from mm2py.mirror.checkpoints import GROUP_STATES, Checkpoint, decode_checkpoint
from mm2py.mirror.offset_map import Mark, Segment
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.consumer_offsets import offsets_partition
from mm2py.protocol.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.topics import NewTopic
from mm2py.testing.contexts import FakeConnectorContext, FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_connectors import offset_translator
from mm2py_connectors.group_watch import GroupShare
from mm2py_connectors.mirror_checkpoint import MirrorCheckpointConnector
from mm2py_connectors.mirror_checkpoint_task import MirrorCheckpointTask
from tests.unit.connectors.group_fakes import GroupRegion, commit_record
from tests.unit.connectors.mirror_fakes import flow_config

CONFIG = flow_config("MirrorCheckpointConnector", checkpoints_topic_replication_factor="1")
SYNCS = ("A", "mm2-offset-syncs.B.internal")
WRITTEN = ("B", "A.checkpoints.internal")
SAME_NAMES = {"replication.policy.class": "IdentityReplicationPolicy"}


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
async def test_a_checkpoints_topic_that_is_deleted_from_is_a_problem(
    policy: str, is_wrong: bool
) -> None:
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


@pytest.mark.parametrize(
    "names", ["DefaultReplicationPolicy", "IdentityReplicationPolicy"], ids=["prefix", "same"]
)
@pytest.mark.parametrize(
    ("segments", "place"),
    [
        # The target lost 50 records; before anybody looked 100 others took their places.
        ([(0, 150, 0), Segment(150, 50, 150, Mark.TARGET_LOST), (200, 100, 150)], 150),
        # Its topic was deleted and created again.
        ([Segment(0, 200, 0, Mark.TARGET_LOST), (200, 300, 0)], 0),
    ],
    ids=["cut", "deleted"],
)
async def test_a_checkpoint_goes_back_where_the_target_lost_what_it_was_placed_by(
    monkeypatch: pytest.MonkeyPatch,
    segments: list[tuple[int, int, int] | Segment],
    place: int,
    names: str,
) -> None:
    monkeypatch.setattr(offset_translator, "PLACED_AGAIN_S", 5.0)
    region = copied(0, 0, idle=190, moves=190)
    region.map.put("t", 0, (0, 200, 0), covered=200)
    async with running(region, **{"replication.policy.class": names}) as bench:
        assert {it.downstream for it in await bench.polled(3)} == {190}
        region.map.put("t", 0, *segments, covered=500)
        region.at_source.put("moves", t_0=195)
        newest = {it.group: it.downstream for it in await bench.polled(8)}
        assert newest == {"idle": place, "moves": place}
        await bench.idle(3)


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


async def test_with_the_same_names_both_ways_no_record_of_the_targets_own_is_skipped() -> None:
    region = copied(0, 0)
    # The target has 30 records of its own from 50 on; 10 of them are on the source.
    region.map.put("t", 0, (0, 50, 0), (60, 40, 80), covered=100)
    region.map_back.put("t", 0, (0, 0, 50), (50, 10, 50), covered=60)
    region.at_source.put("before", t_0=33)
    region.at_source.put("among", t_0=55)
    region.at_source.put("behind", t_0=80)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        found = {it.group: it.downstream for it in (await bench.polled(3))}
        assert found == {"before": 33, "among": 55, "behind": 60}
        region.at_source.put("behind", t_0=115)
        region.map_back.put("t", 0, (0, 0, 50), (50, 10, 50), (60, 20, 100), covered=120)
        found = {it.group: it.downstream for it in (await bench.polled(3))}
        assert found["behind"] == 75, "5 of them are not read yet"
        region.map.put("t", 0, (0, 50, 0), (60, 40, 80), (120, 10, 120), covered=130)
        region.at_source.put("behind", t_0=130)
        found = {it.group: it.downstream for it in (await bench.polled(3))}
        assert found["behind"] == 120, "not past what the flow back covers"
        region.map_back.put("t", 0, (0, 0, 50), (50, 10, 50), (60, 20, 100), covered=130)
        assert [it.downstream for it in await bench.polled(3)] == [130]


async def test_a_map_of_the_flow_back_about_a_former_topic_of_the_source_places_no_group() -> None:
    region, tp = GroupRegion(), TopicPartition("t", 0)
    region.log(*SYNCS).sync("t", 0, 0, 0)
    # The source's topic was created again: what the flow back had copied is gone, and has other offsets.
    region.map.put("t", 0, (0, 10, 100), covered=10)
    region.map_back.put("t", 0, (500, 50, 0), covered=550)
    region.map_back.former.add(tp)
    region.at_source.put("g", t_0=5)
    async with running(region, **SAME_NAMES) as bench:
        await bench.idle(3)
        # The flow back has copied 10 records into the new one.
        region.map_back.put("t", 0, (0, 0, 8), (600, 10, 8), covered=610)
        region.map_back.former.clear()
        assert [it.downstream for it in await bench.polled(8)] == [105]


async def test_a_map_of_the_flow_back_about_a_former_topic_of_the_target_places_no_group() -> None:
    region, old, new = GroupRegion(), bytes(15) + b"1", bytes(15) + b"2"
    region.log(*SYNCS).sync("t", 0, 0, 0)
    # The target's topic was created again and has 100 copies; the flow back had read to 3,050 in the former one.
    region.map.put("t", 0, (0, 100, 0), covered=100, target_id=new)
    region.map_back.put("t", 0, (3000, 50, 60), covered=3050, source_id=old)
    region.at_source.put("g", t_0=65)
    async with running(region, **SAME_NAMES) as bench:
        await bench.idle(3)
        region.map_back.put("t", 0, (0, 0, 110), covered=100, source_id=new)
        assert [it.downstream for it in await bench.polled(8)] == [65]


async def test_a_flow_back_that_renames_has_no_say_where_groups_are() -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    region.map.put("t", 0, (0, 100, 0), covered=100)
    region.map_back.put("t", 0, (500, 50, 0), covered=550)  # into B.t
    region.map_back.former.add(TopicPartition("t", 0))
    region.map_back.elsewhere.add(TopicPartition("t", 0))
    region.at_source.put("g", t_0=5)
    async with running(region, **SAME_NAMES) as bench:
        assert [it.downstream for it in await bench.polled(3)] == [5]


@pytest.mark.parametrize(
    ("copies", "covered", "places"),
    [
        # t was paused for the flow back before its first record; clients wrote 10 to the target meanwhile.
        ([(0, 20, 0), (20, 10, 30)], None, {"early": 10, "late": 20}),
        ([(0, 20, 10)], None, {"early": 0, "late": 0}),
        # It was paused after it had read, and copied nothing of, what the flow had written.
        ([(0, 20, 0), (20, 10, 30)], 20, {"early": 10, "late": 20}),
        ([(0, 20, 0), (21, 9, 21)], 25, {"early": 10, "late": 30}),
        # All of the target is the flow's own: nothing waits for the flow back.
        ([(0, 30, 0)], None, {"early": 10, "late": 30}),
    ],
)
async def test_with_the_same_names_both_ways_groups_wait_for_a_flow_back_that_has_copied_nothing(
    copies: list[tuple[int, int, int]], covered: int | None, places: dict[str, int]
) -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    region.map.put("t", 0, *copies, covered=30)
    region.map.unread = [ConnectionFailedError("not now")] * 2
    region.map_back.put("other", 0, (0, 5, 0), covered=5)
    if covered is not None:
        region.map_back.put("t", 0, covered=covered)
    region.at_source.put("early", t_0=10)
    region.at_source.put("late", t_0=30)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        assert {it.group: it.downstream for it in await bench.polled(3)} == places
        end = copies[-1][1] + copies[-1][2]
        region.map_back.put("t", 0, covered=end)
        found = places | {it.group: it.downstream for it in await bench.polled(3)}
        assert found["late"] == end, "it has read all, and nothing of that was to be copied"


async def test_a_frozen_leader_of_a_copy_holds_up_the_checkpoints_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_translator, "ASKED_S", 0)
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    for topic in "t", "u":
        region.map.put(topic, 0, (0, 30, 0), covered=30)
    region.map_back.put("other", 0, (0, 5, 0), covered=5)
    answer = region.map.frozen[TopicPartition("t", 0)] = asyncio.Event()
    region.at_source.put("frozen", t_0=30)
    region.at_source.put("other", u_0=30)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        assert [it.group for it in await bench.polled(3)] == ["other"]
        answer.set()
        assert {it.group: it.downstream for it in await bench.polled(3)} == {"frozen": 30}


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


async def test_groups_that_do_not_exist_get_all_their_offsets_once(region: GroupRegion) -> None:
    async with synced(region) as bench:
        assert region.at_target.commits == [("g", at("A.t", _0=101, _1=51))]
        assert {it.metadata for it in region.at_target.offsets["g"].values()} == {"m"}
        await bench.idle(30)
    assert len(region.at_target.commits) == 1


async def test_offsets_that_expired_on_the_target_are_written_again(region: GroupRegion) -> None:
    async with synced(region) as bench:
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


async def test_a_group_that_was_deleted_at_the_source_while_no_task_ran_does_not_come_back(
    region: GroupRegion,
) -> None:
    region.log(*WRITTEN).checkpoint("deleted", "A.t", 0, 50, 50)
    async with synced(region) as bench:
        await bench.idle(70)
        assert {group for group, _ in region.at_target.commits} == {"g"}
        assert bench.context.figures["groups SYNCED"] == 1


async def test_a_log_of_commits_that_is_read_again_moves_no_group_to_where_it_was_before(
    region: GroupRegion,
) -> None:
    region.at_source.put("g", t_0=101, t_1=40)
    region.at_source.put("g", t_1=5)  # reset
    region.log(*SYNCS).sync("t", 1, 40, 40)
    async with synced(region) as bench:
        for _ in region.commits.again():  # the source elected a leader that was behind
            await bench.polled(0.5)
        written = [offsets for _, offsets in region.at_target.commits]
        assert not [it for it in written if it.get(TopicPartition("A.t", 1), 0) > 5], written


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


async def test_groups_whose_offsets_are_not_known_are_left_alone(region: GroupRegion) -> None:
    region.at_target.put("g", {"A.t_0": 200})
    region.at_target.errors["g"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g")
    async with synced(region) as bench:
        assert region.at_target.commits == []
        text, _, harms = bench.context.findings["groups not synced"]
        assert ("READ on the groups" in text, harms) == (True, True)
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


async def test_with_the_same_names_both_ways_a_lost_map_of_the_flow_back_leaves_offsets_unknown() -> (
    None
):
    region = GroupRegion()
    # Each side had 20 records of its own first: who has read those of the source has read none of the target's.
    region.map.put("t", 0, (0, 20, 20), covered=40)
    region.log("B", "mm2-offset-syncs.A.internal").sync("t", 0, 0, 20)
    region.at_source.put("early", t_0=20)
    region.at_source.put("late", t_0=40)
    region.map.put("u", 0, (0, 20, 0), covered=20)
    region.at_source.put("copied-nothing-back", u_0=20)
    names = {"replication.policy.class": "IdentityReplicationPolicy"}
    async with running(region, **names) as bench:
        assert [it.group for it in await bench.polled(3)] == ["copied-nothing-back"]
        region.map_back.put("t", 0, (40, 1, 40), covered=41)
        assert await bench.polled(12) == [
            Checkpoint("late", TopicPartition("t", 0), 40, 40, metadata="")
        ]
