"""The MirrorSink connector and its task: what is read, where it is written, and what may be committed."""

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from mm2py.api.context import WaitingPartition
from mm2py.api.records import SinkRecord
from mm2py.config.client_properties import sink_consumer_properties
from mm2py.errors import (
    ConnectionFailedError,
    FatalError,
    FatalServerError,
    RefusedRecordError,
    RetriableError,
)
from mm2py.protocol.error_codes import GROUP_AUTHORIZATION_FAILED, UNKNOWN_MEMBER_ID, server_error
from mm2py.protocol.topics import NewTopic
from mm2py.testing.clock import FakeClock
from mm2py.testing.contexts import FakeConnectorContext
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_sink import MirrorSinkConnector
from mm2py_connectors.mirror_sink_task import MirrorSinkTask
from mm2py_connectors.record_sender import Idle, Refused, SentRecord
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.mirror_fakes import Region, flow_config

CONFIG = flow_config("MirrorSinkConnector", topics="t.*", replication_factor="1") | {
    "connector.class": "MirrorSinkConnector"
}
T0, T1 = TopicPartition("t1", 0), TopicPartition("t1", 1)


@asynccontextmanager
async def running(
    region: Region, published: Sequence[Mapping[str, str]] = (), /, **more: str
) -> AsyncGenerator[tuple[MirrorSinkConnector, FakeConnectorContext]]:
    context = FakeConnectorContext()
    context.published = published
    connector = MirrorSinkConnector(
        CONFIG | flow_config(CONFIG["name"], **more),
        admins=region.open_admin,
        groups=region.open_groups if isinstance(region, GroupRegion) else GroupRegion().open_groups,
    )
    await connector.start(context)
    await context.clock.settle()
    try:
        yield connector, context
    finally:
        await connector.stop()
    assert region.all_closed
    assert not context.failures


async def test_every_task_reads_all_topics_and_copies_are_created() -> None:
    region = Region({"t1": 2, "t2": 1, "other": 1})
    async with running(region) as (connector, _):
        configs = connector.task_configs(2)
    assert region.target.created == [NewTopic("A.t1", 2, 1, {}), NewTopic("A.t2", 1, 1, {})]
    assert region.source.created == []
    assert [it["topics"] for it in configs] == ["t1,t2", "t1,t2"]
    assert [it["task.index"] for it in configs] == ["0", "1"]


async def test_a_topic_that_may_not_be_seen_any_more_is_a_problem_while_it_may_not() -> None:
    region = Region({"t1": 1, "t2": 1})
    region.source.denied["t2"] = server_error(29, "may not Describe")
    async with running(region) as (connector, context):
        assert connector.problems() == {}
        del region.source.topics["t2"]
        await context.clock.advance(10)
        assert topics_of(connector) == "t1"
        (problem,) = connector.problems().items()
        assert (problem[0], "may not Describe" in problem[1]) == ("topic t2 is not visible", True)
        region.source.topics["t2"] = 1
        await context.clock.advance(10)
        assert (topics_of(connector), connector.problems()) == ("t1,t2", {})


async def test_there_are_no_more_tasks_than_partitions_and_none_of_a_disabled_flow() -> None:
    async with running(Region({"t1": 2})) as (connector, _):
        assert len(connector.task_configs(5)) == 2
    async with running(Region({"t1": 2}), enabled="false") as (connector, _):
        assert connector.task_configs(5) == []


def test_the_consumer_is_connects_with_the_sources_own_properties() -> None:
    config = CONFIG | {
        "source.consumer.fetch.min.bytes": "7",
        "consumer.override.max.poll.records": "9",
        "task.index": "2",
    }
    source = MirrorSinkConnector.consumer_properties(config)
    props = sink_consumer_properties(
        {"bootstrap.servers": "b:1", "consumer.fetch.min.bytes": "1"}, config, source=source
    )
    assert props["bootstrap.servers"] == "a:1"
    assert props["group.id"] == "connect-MirrorSinkConnector"
    assert props["auto.offset.reset"] == "earliest"
    assert props["enable.auto.commit"] == "false"
    assert (props["fetch.min.bytes"], props["max.poll.records"]) == ("7", "9")
    assert props["client.id"] == "A->B|MirrorSinkConnector-2|mirror-sink-consumer"
    assert not [name for name in props if name.startswith("override.")]


def test_a_third_partys_sink_reads_the_workers_own_cluster() -> None:
    worker = {
        "bootstrap.servers": "w:1",
        "consumer.fetch.min.bytes": "5",
        "consumer.override.x": "no",
    }
    config = {"name": "files", "consumer.override.group.id": "mine"}
    props = sink_consumer_properties(worker, config, task_index=1)
    assert props == {
        "bootstrap.servers": "w:1",
        "group.id": "mine",
        "auto.offset.reset": "earliest",
        "client.id": "connector-consumer-files-1",
        "fetch.min.bytes": "5",
        "enable.auto.commit": "false",
    }


class Target:
    """A ``RecordSender`` in memory with room for ``room`` records, acknowledged by ``flush`` unless ``away`` or ``stuck``."""

    def __init__(self) -> None:
        self.room, self.away = 100, False
        self.stuck: set[tuple[str, int]] = set()
        self.pending: list[SentRecord] = []
        self.clock = FakeClock()
        self.second: Target | None = None
        self.reachable = True
        self.sent: list[SentRecord] = []
        self.refusals: dict[int, str] = {}
        self.refused: Refused = lambda _sent, _text: None
        self.closed = False
        self.given_up: list[tuple[str, int]] = []

    def __call__(self, values: Mapping[str, object], refused: Refused) -> "Target":
        assert values["bootstrap.servers"] == "b:1"
        assert values["enable.idempotence"]
        assert values["acks"] == -1
        if "queue.buffering.max.messages" in values:
            assert self.second is None or self.second.closed
            self.second = Target()
            self.second.stuck, self.second.clock = self.stuck, self.clock
            return self.second
        self.refused = refused
        return self

    @property
    def waiting(self) -> tuple[int, str]:
        return len(self.pending), ""

    def answers(self) -> bool:
        return self.reachable

    def take_back(self) -> Sequence[tuple[SentRecord, str]]:
        back, self.pending = self.pending, []
        return [(it, "no leader") for it in back]

    def written(self, place: TopicPartition) -> list[int]:
        return [it.place[2] for it in self.sent if it.place[:2] == place and it not in self.pending]

    def send(self, sent: SentRecord, idle: Idle, /) -> None:
        if len(self.sent) >= self.room:
            idle()
            self.clock.jump(5)
            raise RetriableError("full")
        self.sent.append(sent)
        self.pending.append(sent)

    def serve(self, idle: Idle, /) -> None:
        self.pending = [it for it in self.pending if it.place[:2] in self.stuck]

    def flush(self, idle: Idle, /) -> None:
        if self.away:
            raise RetriableError("away")
        self.serve(idle)
        if self.pending:
            idle()
            self.clock.jump(5)
            raise RetriableError("not acknowledged")
        for sent in self.sent:
            text = self.refusals.pop(sent.place[2], None)
            if text is not None:
                self.refused(sent, text)

    def give_up(self, partitions: Collection[tuple[str, int]], /) -> None:
        self.given_up += partitions
        self.pending = [it for it in self.pending if it.place[:2] not in partitions]

    def close(self) -> None:
        self.closed = True


class Context:
    """A ``SinkTaskContext`` that keeps what is reported."""

    def __init__(self, report: Callable[[SinkRecord, Exception], None] | None = None) -> None:
        self.clock, self.task_id = FakeClock(), "sink-0"
        self.assignment: Collection[TopicPartition] = ()
        self.reported: list[tuple[int, str]] = []
        self.held: dict[TopicPartition, str] = {}
        self._report = report

    def report(self, record: SinkRecord, error: Exception) -> None:
        self.reported.append((record.offset, str(error)))
        if self._report is not None:
            self._report(record, error)

    def rewind(self, offsets: Mapping[TopicPartition, int]) -> None: ...
    def hold(self, partitions: Collection[TopicPartition], cause: str = "") -> None:
        self.held.update(dict.fromkeys(partitions, cause))

    def release(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            del self.held[partition]

    def retry_after(self, delay_ms: int) -> None: ...
    def request_commit(self) -> None: ...


def a_task(target: Target, context: Context | None = None) -> MirrorSinkTask:
    config = CONFIG | {"topics": "t1", "task.index": "0"}
    task = MirrorSinkTask(config, context or Context(), sender=target)
    task.start()
    task.open([T0, T1])
    return task


def record(place: TopicPartition, offset: int, *, timestamp_ms: int = 5) -> SinkRecord:
    headers = (("h", b"1"), ("h", None))
    return SinkRecord(*place, b"k", None, headers, timestamp_ms, offset, *place)


def test_a_record_that_a_transform_has_renamed_goes_where_its_key_belongs() -> None:
    target = Target()
    a_task(target).put([record(T1, 7)._replace(topic="t1-2026")])
    assert (target.sent[0].record.topic, target.sent[0].record.partition) == ("A.t1-2026", None)
    assert target.sent[0].place == ("t1", 1, 7)


def test_nothing_may_be_committed_while_the_target_does_not_acknowledge() -> None:
    target = Target()
    task = a_task(target)
    task.put([record(T0, 0)])
    target.away = True
    assert task.pre_commit({T0: 1}) == {}
    target.away = False
    assert task.pre_commit({T0: 1}) == {T0: 1}


def a_held_partition() -> tuple[Target, Context, MirrorSinkTask]:
    """One whose copy takes nothing since its first record."""
    target, context = Target(), Context()
    target.clock = context.clock
    task = a_task(target, context)
    target.stuck.add(T0)
    task.put([record(T0, 0), record(T1, 0)])
    allowed = [task.pre_commit({T0: 1, T1: 1}) for _ in range(3)]
    assert allowed == [{}, {}, {T1: 1}]
    assert list(context.held) == [T0]
    assert "no leader" in context.held[T0]
    return target, context, task


def test_a_copy_that_takes_nothing_keeps_no_other_partition_waiting() -> None:
    target, context, task = a_held_partition()
    # T0 was polled before it was held.
    task.put([record(T0, 1), record(T1, 1)])
    assert task.pre_commit({T0: 2, T1: 2}) == {T1: 2}
    second = target.second
    assert second is not None
    assert second.written(T0) == []
    target.stuck.clear()
    for _ in range(2):
        context.clock.jump(5)
        task.put([])
    assert (second.written(T0), second.closed, context.held) == ([0, 1], True, {})
    task.put([record(T0, 2)])
    assert task.pre_commit({T0: 3, T1: 2}) == {T0: 3, T1: 2}
    assert target.written(T0)[-1] == 2


def test_a_copy_that_takes_not_even_the_first_record_is_held_while_records_are_put() -> None:
    target, context = Target(), Context()
    target.clock = context.clock
    task = a_task(target, context)
    target.stuck.add(T0)
    target.room = 1
    batch = [record(T0, 0), record(T0, 1), record(T1, 0)]
    for _ in range(3):
        with pytest.raises(RetriableError):
            task.put(batch)
    assert list(context.held) == [T0]
    target.room = 100
    task.put(batch)
    assert task.pre_commit({T0: 2, T1: 1}) == {T1: 1}
    target.stuck.clear()
    for _ in range(2):
        context.clock.jump(5)
        task.put([])
    second = target.second
    assert second is not None
    assert (second.written(T0), target.written(T1), context.held) == ([0, 1], [0], {})


def test_of_held_partitions_each_is_read_again_once_its_copy_takes_records() -> None:
    target, context, task = a_held_partition()
    target.stuck.add(T1)
    task.put([record(T1, 1)])
    for _ in range(3):
        task.pre_commit({T0: 1, T1: 2})
    assert context.held.keys() == {T0, T1}
    target.stuck.discard(T1)
    for _ in range(8):
        context.clock.jump(5)
        task.put([])
    assert context.held.keys() == {T0}
    assert task.pre_commit({T0: 1, T1: 2}) == {T1: 2}


def test_no_partition_is_held_while_the_target_is_away() -> None:
    target, context = Target(), Context()
    target.clock, target.reachable = context.clock, False
    target.stuck.add(T0)
    task = a_task(target, context)
    task.put([record(T0, 0)])
    assert [task.pre_commit({T0: 1}) for _ in range(6)] == [{}] * 6
    assert context.held == {}


def test_a_held_partition_that_goes_is_read_from_the_last_commit_by_its_next_owner() -> None:
    target, context, task = a_held_partition()
    context.clock.jump(5)
    task.put([])
    second = target.second
    assert second is not None
    task.close([T0])
    assert (second.given_up, second.closed) == ([T0], True)
    task.put([record(T0, 0)])
    assert target.sent[-1].place == (*T0, 0)


@pytest.mark.parametrize(
    ("batch", "rooms"),
    [
        ([(T0, 0), (T1, 5), (T0, 1), (T1, 6)], (2, 3)),
        ([(T0, 98), (T0, 99), (T0, 0), (T0, 1)], (1, 3)),
    ],
    ids=["two partitions", "a topic that was created again"],
)
def test_records_that_had_room_are_not_sent_twice_when_the_batch_is_put_again(
    batch: list[tuple[TopicPartition, int]], rooms: tuple[int, ...]
) -> None:
    target = Target()
    task = a_task(target)
    records = [record(*it) for it in batch]
    for room in rooms:
        target.room = room
        with pytest.raises(RetriableError):
            task.put(records)
    target.room = 100
    task.put(records)
    assert [it.place for it in target.sent] == [(*place, offset) for place, offset in batch]
    task.put(records[:1])  # read again after a rewind: it is sent
    assert len(target.sent) == 5


def test_a_partition_that_comes_back_is_sent_from_where_it_is_read() -> None:
    target = Target()
    task = a_task(target)
    target.room = 1
    with pytest.raises(RetriableError):
        task.put([record(T0, 0), record(T0, 1)])
    task.close([T0])
    target.room = 100
    task.put([record(T0, 0), record(T0, 1)])
    assert target.given_up == [T0]
    assert [it.place[2] for it in target.sent] == [0, 0, 1]


@pytest.mark.parametrize(("retries", "kept"), [("3", None), ("0", 0)])
def test_an_outage_refuses_no_record_after_a_time_or_some_tries(
    retries: str, kept: int | None
) -> None:
    made: list[Mapping[str, object]] = []

    def sender(values: Mapping[str, object], _refused: Refused) -> Target:
        made.append(values)
        return Target()

    config = CONFIG | {"topics": "t1", "task.index": "0", "target.producer.retries": retries}
    limit = {"producer.override.delivery.timeout.ms": "1500"}
    MirrorSinkTask(config | limit, Context(), sender=sender).start()
    assert (made[0]["delivery.timeout.ms"], made[0].get("retries")) == (2**31 - 1, kept)


def test_a_refused_record_is_reported_with_its_place_and_what_the_target_said() -> None:
    target, context = Target(), Context()
    target.refusals = {1: "too large"}
    task = a_task(target, context)
    task.put([record(T0, 0), record(T0, 1)])
    assert task.pre_commit({T0: 2}) == {T0: 2}
    assert context.reported == [(1, "t1-0 at offset 1: too large")]


def test_a_refusal_that_is_not_tolerated_fails_the_task_before_a_position_is_allowed() -> None:
    def fail(_record: SinkRecord, error: Exception) -> None:
        raise FatalError(str(error))

    target = Target()
    target.refusals = {0: "too large"}
    task = a_task(target, Context(fail))
    task.put([record(T0, 0)])
    with pytest.raises(FatalError, match="too large"):
        task.pre_commit({T0: 1})


def test_what_is_no_bytes_is_refused_with_the_converter_to_set() -> None:
    with pytest.raises(RefusedRecordError, match="ByteArrayConverter"):
        a_task(Target()).put([record(T0, 0)._replace(value="text")])


# -- start.positions: what the group is given before a member reads, and what waits for that --------

GROUP = "connect-MirrorSinkConnector"
OLD = TopicPartition("t2", 0)


def a_region(**topics: int) -> GroupRegion:
    """Return a source whose partitions have records of 1000, 2000 .. 9000 ms at offsets 50 to 58."""
    region = GroupRegion()
    region.source.topics = dict(topics)
    region.source.log_start = 50
    for topic, count in topics.items():
        for number in range(count):
            region.source.logs[TopicPartition(topic, number)] = list(range(1_000, 10_000, 1_000))
    return region


def starting(
    region: GroupRegion, rules: str, **more: str
) -> AbstractAsyncContextManager[tuple[MirrorSinkConnector, FakeConnectorContext]]:
    more |= {"start.positions": rules, "refresh.topics.interval.seconds": "5"}
    return running(region, **more)


async def next_look(context: FakeConnectorContext) -> None:
    await context.clock.advance(5)
    await context.clock.settle()


def have_members(region: GroupRegion, *partitions: TopicPartition) -> None:
    """The group does not let its offsets be set from outside."""
    error = server_error(UNKNOWN_MEMBER_ID)
    region.at_source.refusals = dict.fromkeys(partitions, error)


def topics_of(connector: MirrorSinkConnector) -> str:
    configs = connector.task_configs(1)
    return configs[0]["topics"] if configs else ""


@pytest.mark.parametrize(
    ("rule", "offset"),
    [
        ("earliest", 50),
        ("latest", 59),
        ("offset:55", 55),
        ("offset:3", 50),
        ("offset:99", 59),
        ("3500", 53),
        ("1", 50),
        ("9001", 59),
        ("t1=52, latest", 50),
        ("t1:1=offset:52, t1:0=offset:51", 51),
    ],
)
async def test_the_group_stands_where_the_first_rule_says_at_first(rule: str, offset: int) -> None:
    region = a_region(t1=1)
    async with starting(region, rule) as (connector, _):
        assert region.at_source.commits == [(GROUP, {T0: offset})]
        assert topics_of(connector) == "t1"


async def test_one_commit_sets_all_partitions_that_have_a_rule() -> None:
    region = a_region(t1=2, t2=1)
    async with starting(region, "t1=latest") as (_, context):
        assert region.at_source.commits == [(GROUP, {T0: 59, T1: 59})]
        sessions = len(region.sessions)
        await next_look(context)
        assert len(region.sessions) == sessions, "nothing new, nothing asked"


async def test_positions_that_are_there_stay_and_what_is_new_is_later_than_latest() -> None:
    region = a_region(t1=2)
    region.at_source.put(GROUP, t1_0=7)
    async with starting(region, "latest"):
        assert region.at_source.commits == [(GROUP, {T1: 50})]


async def test_an_age_is_counted_from_the_first_start_also_after_a_restart() -> None:
    region, ages = a_region(t1=1), {"start.positions": "1 hour ago"}
    told = {"task.first.start.ms": "3603500"}
    async with running(region, [told], **ages) as (connector, _):
        assert region.at_source.commits == [(GROUP, {T0: 53})]
        assert connector.task_configs(1)[0].items() >= told.items()
    async with running(region, **ages) as (connector, context):
        began = connector.task_configs(1)[0]["task.first.start.ms"]
        assert began == str(context.clock.now_ms())


async def test_a_topic_that_cannot_begin_where_it_should_waits() -> None:
    region = a_region(t1=1)
    async with starting(region, "t2=4000") as (connector, context):
        have_members(region, OLD)
        region.source.topics["t2"] = 1
        region.source.logs[OLD] = list(range(1_000, 10_000, 1_000))
        for _ in range(3):
            await next_look(context)
            assert topics_of(connector) == "t1"
        (cause,) = connector.waiting().values()
        assert "offset 53 (start.positions) while group connect-MirrorSinkConnector has" in cause
        assert "stop the connector, and resume it" in cause
        assert "topic t2 waits" in connector.problems()
        assert connector.backlog() == {OLD: WaitingPartition(cause)}, "else the flow has no lag"
        asked = context.reconfigurations
        region.at_source.refusals = {}
        await next_look(context)
        assert region.at_source.commits[-1] == (GROUP, {OLD: 53})
        assert (topics_of(connector), connector.waiting()) == ("t1,t2", {})
        assert connector.backlog() == {}
        assert context.reconfigurations == asked + 1


async def test_a_new_partition_of_a_topic_that_is_copied_does_not_hold_it_back() -> None:
    region = a_region(t1=2)
    region.at_source.put(GROUP, t1_0=7)
    have_members(region, T1)
    async with starting(region, "offset:55") as (connector, _):
        assert topics_of(connector) == "t1"


@pytest.mark.parametrize(("reset", "waits"), [("latest", False), ("earliest", True)])
async def test_what_the_consumer_would_do_by_itself_does_not_wait(reset: str, waits: bool) -> None:
    region = a_region(t1=1)
    have_members(region, T0)
    own = {"consumer.override.auto.offset.reset": reset}
    async with starting(region, "offset:99", **own) as (connector, _):
        assert bool(connector.waiting()) is waits


@pytest.mark.parametrize("are_there", [0, 9], ids=["empty", "with records"])
async def test_with_latest_a_topic_that_comes_later_begins_at_its_first_record(
    are_there: int,
) -> None:
    """Or waits: its members would begin at its end, behind what was written before they came."""
    latest = {"consumer.override.auto.offset.reset": "latest"}
    region = a_region(t1=1)
    region.source.topics["other"] = 1
    async with running(region, **latest, **{"refresh.topics.interval.seconds": "5"}) as (
        connector,
        context,
    ):
        # Also what is idle: what comes while the flow is down is not skipped.
        assert region.at_source.commits == [(GROUP, {T0: 59})]
        region.at_source.put(GROUP, t1_0=59)
        have_members(region, OLD)
        region.source.topics["t2"] = 1
        region.source.logs[OLD] = list(range(are_there))
        await next_look(context)
        assert topics_of(connector) == "t1"
        (cause,) = connector.waiting().values()
        assert "offset 50 (auto.offset.reset) while group connect-MirrorSinkConnector has" in cause
        region.at_source.refusals = {}
        await next_look(context)
        assert region.at_source.commits[-1] == (GROUP, {OLD: 50})
        assert topics_of(connector) == "t1,t2"


async def test_with_latest_what_an_earlier_build_read_without_a_position_begins_at_its_end() -> (
    None
):
    region, latest = a_region(t1=2), {"consumer.override.auto.offset.reset": "latest"}
    region.at_source.put(GROUP, t1_0=7)
    async with running(region, [{"topics": "t1"}], **latest):
        assert region.at_source.commits == [(GROUP, {T1: 59})]


@pytest.mark.parametrize("rules", ["", "latest"], ids=["auto.offset.reset", "a rule"])
async def test_a_partition_without_a_leader_keeps_no_other_topic_waiting(rules: str) -> None:
    region, latest = a_region(t1=1, t2=1), {"consumer.override.auto.offset.reset": "latest"}
    region.source.leaderless = {OLD}
    async with starting(region, rules, **latest) as (connector, context):
        assert region.at_source.commits == [(GROUP, {T0: 59})]
        (waiting,) = connector.waiting().items()
        assert (waiting[0], "LEADER_NOT_AVAILABLE" in waiting[1]) == (OLD, True)
        assert topics_of(connector) == "t1"
        region.source.leaderless = set()
        await next_look(context)
        assert region.at_source.commits[1:] == [(GROUP, {OLD: 50})]
        assert topics_of(connector) == "t1,t2"


async def test_a_start_without_an_answer_is_tried_again_and_a_refusal_fails_it() -> None:
    region = a_region(t1=1)
    region.at_source.broken = ConnectionFailedError("nobody answers")
    with pytest.raises(RetriableError):
        async with starting(region, "latest"):
            pass
    assert region.all_closed
    region.at_source.broken = None
    region.at_source.refusals = {T0: server_error(GROUP_AUTHORIZATION_FAILED)}
    with pytest.raises(FatalServerError, match="GROUP_AUTHORIZATION_FAILED"):
        async with starting(region, "latest"):
            pass


@pytest.mark.parametrize("text", ["orders=soon", "=latest", "t:x=latest"])
def test_an_item_that_is_no_rule_is_refused_by_validation(text: str) -> None:
    model = MirrorSinkConnector.config_model
    (problem,) = model.cross_check({"start.positions": text})
    assert problem.name == "start.positions"


def test_the_end_closes_the_producer() -> None:
    target = Target()
    a_task(target).stop()
    assert target.closed
    MirrorSinkTask(CONFIG, Context(), sender=target).stop()
