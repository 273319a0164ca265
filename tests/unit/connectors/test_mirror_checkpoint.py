"""The MirrorCheckpoint connector: its groups, its checkpoints, and the group offsets that it writes."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from mm2py.api.context import PartitionState
from mm2py.errors import ConfigError, ConnectionFailedError, FatalError
from mm2py.mirror.checkpoints import Checkpoint, decode_checkpoint
from mm2py.protocol.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    server_error,
)
from mm2py.protocol.topics import NewTopic
from mm2py.testing.contexts import FakeConnectorContext, FakeTaskContext
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_checkpoint import MirrorCheckpointConnector
from mm2py_connectors.mirror_checkpoint_task import MirrorCheckpointTask
from tests.unit.connectors.group_fakes import FakeGroups, GroupRegion

CONFIG = {
    "name": "MirrorCheckpointConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:1",
    "target.cluster.bootstrap.servers": "b:1",
    "checkpoints.topic.replication.factor": "1",
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
}
SYNCS = ("A", "mm2-offset-syncs.B.internal")
WRITTEN = ("B", "A.checkpoints.internal")


def connector_of(region: GroupRegion, **changes: str) -> MirrorCheckpointConnector:
    config = CONFIG | {key.replace("_", "."): value for key, value in changes.items()}
    return MirrorCheckpointConnector(
        config, admins=region.open_admin, groups=region.open_groups, logs=region.open_log
    )


class Bench:
    """One running task."""

    def __init__(self, region: GroupRegion, task: MirrorCheckpointTask, context: FakeTaskContext):
        self.region, self.task = region, task
        self.context, self.clock = context, context.clock
        self.syncs = region.log(*SYNCS)

    async def polled(self) -> list[Checkpoint]:
        """Return the checkpoints of the next interval."""
        await self.clock.advance(1)
        return [
            decode_checkpoint(record.key, record.value)
            for record in await self.task.poll()
            if isinstance(record.key, bytes) and isinstance(record.value, bytes)
        ]


@asynccontextmanager
async def running(
    region: GroupRegion, groups: Sequence[str], **changes: str
) -> AsyncGenerator[Bench]:
    config = CONFIG | {"task.assigned.groups": ",".join(groups), "task.index": "0"}
    config |= {key.replace("_", "."): value for key, value in changes.items()}
    context = FakeTaskContext("MirrorCheckpointConnector-0")
    task = MirrorCheckpointTask(config, context, groups=region.open_groups, logs=region.open_log)
    await task.start()
    await context.clock.settle()
    yield Bench(region, task, context)
    await task.stop()
    assert region.all_closed


def checkpoint(group: str, topic: str, partition: int, up: int, down: int) -> Checkpoint:
    return Checkpoint(group, TopicPartition(topic, partition), up, down, "")


# -- the connector --------------------------------------------------------------------------------


async def test_groups_with_offsets_of_chosen_topics_are_dealt_in_order() -> None:
    region, context = GroupRegion(), FakeConnectorContext()
    region.at_source.put("g1", t1_0=1, t2_0=1)
    region.at_source.put("g2", t2_0=1, t3_0=1)
    region.at_source.put("g3", t3_0=1)
    region.at_source.put("connect-x", t2_0=1)
    region.at_source.put("g5,g6", t2_0=1)
    connector = connector_of(region, topics="t2")
    await connector.start(context)
    assert region.at_source.asked == [{"g1", "g2", "g3"}]
    assert [it["task.assigned.groups"] for it in connector.task_configs(5)] == ["g1", "g2"]
    (config,) = connector.task_configs(1)
    assert config == CONFIG | {
        "topics": "t2",
        "task.class": "org.apache.kafka.connect.mirror.MirrorCheckpointTask",
        "task.index": "0",
        "task.assigned.groups": "g1,g2",
    }
    assert region.target.created == [
        NewTopic("A.checkpoints.internal", 1, 1, {"cleanup.policy": "compact"})
    ]
    await connector.stop()
    assert region.all_closed


@pytest.mark.parametrize("tasks", [1, 3, 4, 10, 11, 50])
async def test_parts_differ_by_one_at_most(tasks: int) -> None:
    region = GroupRegion()
    names = [f"g{number:02d}" for number in range(11)]
    for name in names:
        region.at_source.put(name, t_0=1)
    connector = connector_of(region)
    await connector.start(FakeConnectorContext())
    parts = [it["task.assigned.groups"].split(",") for it in connector.task_configs(tasks)]
    assert [name for part in parts for name in part] == names
    sizes = [len(part) for part in parts]
    assert (len(parts), sizes, max(sizes) - min(sizes) <= 1) == (
        min(tasks, 11),
        sorted(sizes, reverse=True),
        True,
    )
    await connector.stop()


async def test_a_disabled_flow_has_no_tasks_and_opens_nothing() -> None:
    region = GroupRegion()
    region.at_source.put("g1", t_0=1)
    connector = connector_of(region, enabled="false")
    await connector.start(FakeConnectorContext())
    assert list(connector.task_configs(3)) == []
    assert region.sessions == []


async def test_new_groups_are_found_and_known_ones_not_asked_again() -> None:
    region, context = GroupRegion(), FakeConnectorContext()
    region.at_source.put("g1", t_0=1)
    region.at_source.states["empty"] = "Empty"
    connector = connector_of(region)
    await connector.start(context)
    region.at_source.put("g2", t_0=1)
    await context.clock.advance(6)
    assert context.reconfigurations == 2  # the first one is that of the topic
    region.at_source.missing = "broker 2 is away"
    del region.at_source.states["g1"]
    await context.clock.advance(5)
    assert [it["task.assigned.groups"] for it in connector.task_configs(1)] == ["g1,g2"]
    region.at_source.missing = ""
    await context.clock.advance(5)
    assert [it["task.assigned.groups"] for it in connector.task_configs(1)] == ["g2"]
    assert region.at_source.asked[1:] == [{"g2", "empty"}, {"empty"}, {"empty"}]
    region.at_source.broken = ConnectionFailedError("away")
    await context.clock.advance(5)
    assert connector.problems() == {"refresh groups": "away"}
    await connector.stop()


async def test_groups_that_keep_coming_start_the_tasks_anew_once_per_checkpoint_interval() -> None:
    region, context = GroupRegion(), FakeConnectorContext()
    connector = connector_of(region, emit_checkpoints_interval_seconds="60")
    await connector.start(context)
    asked: list[int] = []
    for number in range(24):
        region.at_source.put(f"g{number}", t_0=1)
        await context.clock.advance(5)
        asked.append(context.reconfigurations)
    assert asked == [2] * 12 + [3] * 12, "the first one is that of the topic"
    await context.clock.advance(60)
    assert context.reconfigurations == 4, "those that came last"
    await context.clock.advance(60)
    assert context.reconfigurations == 4
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
    async with running(region, ["group9", "group11", "group13", "gone"]) as bench:
        assert await bench.polled() == [
            Checkpoint("group9", TopicPartition("A.topic1", 2), 10, 5, "m"),
            checkpoint("group11", "topic5", 6, 12, 9),
            checkpoint("group13", "topic5", 6, 7, 8),
        ]
        assert await bench.polled() == []


async def test_checkpoints_go_back_only_with_their_group() -> None:
    region = GroupRegion()
    syncs = region.log(*SYNCS)
    syncs.sync("t", 0, 11, 4)
    syncs.sync("t", 0, 12, 5)
    region.at_source.put("g", t_0=13)
    async with running(region, ["g"]) as bench:
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
    async with running(region, ["g"]) as bench:
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
    async with running(region, ["g"]) as bench:
        assert await bench.polled() == []
        region.at_source.put("g", t_0=301)
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 301, 301)]
    assert "checkpoints written before cannot be read" in caplog.text


async def test_offset_syncs_that_cannot_be_read_are_waited_for_or_fail_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    region = GroupRegion()
    syncs = region.log(*SYNCS)
    syncs.sync("t", 0, 5, 5)
    region.at_source.put("g", t_0=5)
    syncs.broken = [ConnectionFailedError("away")] * 2
    async with running(region, ["g"]) as bench:
        assert await bench.polled() == []
        await bench.clock.advance(5)
        assert await bench.polled() == [checkpoint("g", "A.t", 0, 5, 5)]
        # A name that no topic can have: the flow's lag does not wait for it.
        shown = TopicPartition(f"offset syncs of {SYNCS[1]}", 0)
        held, works = (shown, PartitionState.HELD, "away"), (shown, PartitionState.RUNNING, "")
        assert bench.context.states == [held, held, works], "the flow is DEGRADED meanwhile"
    line = f"offset syncs cannot be read, no group is checkpointed topic={SYNCS[1]} cause=away"
    assert caplog.text.count(line) == 1
    syncs.broken = [FatalError("not allowed")]
    async with running(region, ["g"]) as bench:
        with pytest.raises(FatalError, match="not allowed"):
            await bench.polled()


async def test_a_group_or_cluster_that_does_not_answer_costs_the_others_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    region = GroupRegion()
    region.log(*SYNCS).sync("t", 0, 0, 0)
    region.at_source.put("g1", t_0=5)
    region.at_source.put("g2", t_0=5)
    region.at_source.errors["g1"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g1")
    async with running(region, ["g1", "g2"]) as bench:
        region.at_source.broken = ConnectionFailedError("away")
        assert await bench.polled() == []
        region.at_source.broken = None
        assert [it.group for it in await bench.polled()] == ["g2"]
        assert await bench.polled() == []
        del region.at_source.errors["g1"]
        assert [it.group for it in await bench.polled()] == ["g1"]
    assert caplog.text.count("group is not checkpointed group=g1 cause=") == 1


async def test_topics_that_are_not_chosen_and_offsets_before_all_syncs_have_no_checkpoint() -> None:
    region = GroupRegion()
    for topic in ("t1", "t2"):
        region.log(*SYNCS).sync(topic, 0, 10, 10)
    region.at_source.put("g", t1_0=12, t2_0=12, t1_1=3)
    region.at_source.put("early", t1_0=9)
    async with running(region, ["g", "early"], topics="t1") as bench:
        assert await bench.polled() == [checkpoint("g", "A.t1", 0, 12, 11)]


# -- group offsets --------------------------------------------------------------------------------


@asynccontextmanager
async def synced(region: GroupRegion, groups: Sequence[str]) -> AsyncGenerator[FakeGroups]:
    """Offsets written after one checkpoint of each group and one sync."""
    async with running(region, groups, **{"sync.group.offsets.enabled": "true"}) as bench:
        await bench.polled()
        await bench.clock.advance(2)
        yield region.at_target
        await bench.clock.advance(2)


def at(topic: str, **offsets: int) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, int(key[1:])): offset for key, offset in offsets.items()}


@pytest.fixture
def region() -> GroupRegion:
    made = GroupRegion()
    made.log(*SYNCS).sync("t", 0, 101, 101)
    made.log(*SYNCS).sync("t", 1, 51, 51)
    made.at_source.put("g", t_0=101, t_1=51, metadata="m")
    return made


async def test_a_task_that_starts_anew_does_not_wait_an_interval_again(region: GroupRegion) -> None:
    slow = dict.fromkeys(
        ("emit_checkpoints_interval_seconds", "sync_group_offsets_interval_seconds"), "60"
    )
    async with running(region, ["g"], sync_group_offsets_enabled="true", **slow) as bench:
        assert [it.upstream for it in await bench.polled()] == [101, 51]
        await bench.clock.settle()
        assert region.at_target.commits == [("g", at("A.t", _0=101, _1=51))]
        region.at_source.put("g", t_0=102)
        await bench.clock.advance(60)
        assert [it.upstream for it in await bench.polled()] == [102]


async def test_groups_that_do_not_exist_get_all_their_offsets_once(region: GroupRegion) -> None:
    async with synced(region, ["g"]) as target:
        assert target.commits == [("g", at("A.t", _0=101, _1=51))]
        assert {it.metadata for it in target.offsets["g"].values()} == {"m"}
    assert len(region.at_target.commits) == 1


async def test_offsets_of_idle_groups_never_go_back(region: GroupRegion) -> None:
    region.at_target.put("g", {"A.t_0": 100, "A.t_1": 52})
    async with synced(region, ["g"]) as target:
        assert target.commits == [("g", at("A.t", _0=101))]


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "Assigning", ""])
async def test_groups_in_use_are_left_alone(
    region: GroupRegion, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    region.at_target.put("g", {"A.t_0": 1}, state=state)
    async with synced(region, ["g"]) as target:
        assert target.commits == []
    assert caplog.text.count("it is in use on the target") == 1


async def test_groups_whose_state_is_not_known_are_left_alone(region: GroupRegion) -> None:
    region.at_target.missing = "broker 2 is away"
    async with synced(region, ["g"]) as target:
        assert target.commits == []


async def test_groups_whose_offsets_are_not_known_are_left_alone(region: GroupRegion) -> None:
    region.at_target.put("g", {"A.t_0": 200})
    region.at_target.errors["g"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g")
    async with synced(region, ["g"]) as target:
        assert target.commits == []


@pytest.mark.parametrize(
    ("code", "words"),
    [(UNKNOWN_MEMBER_ID, "in use on the target"), (UNKNOWN_TOPIC_OR_PARTITION, "A.t-0")],
)
async def test_a_refused_partition_is_logged_once_and_costs_the_others_nothing(
    region: GroupRegion, code: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    region.at_target.refusals[TopicPartition("A.t", 0)] = server_error(code, "refused")
    async with synced(region, ["g"]) as target:
        assert {tp.partition for tp in target.offsets["g"]} == {1}
    assert len(region.at_target.commits) > 1, "it is tried again"
    assert caplog.text.count(words) == 1


async def test_a_group_whose_coordinator_may_not_be_asked_for_costs_the_others_nothing(
    region: GroupRegion, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"g{number:03d}" for number in range(120)]
    for name in names:
        region.at_source.put(name, t_0=101)
    region.at_target.unwritable["g000"] = server_error(GROUP_AUTHORIZATION_FAILED, "group g000")
    async with synced(region, names) as target:
        assert {group for group, _ in target.commits} == set(names[1:])
    assert "group=g000" in caplog.text


async def test_without_the_property_no_group_is_written(region: GroupRegion) -> None:
    async with running(region, ["g"]) as bench:
        assert len(await bench.polled()) == 2
        await bench.clock.advance(5)
    assert region.at_target.commits == []
