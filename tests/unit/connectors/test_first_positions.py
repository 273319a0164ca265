"""``start.positions`` of a MirrorSink: what its group is given before a member reads, and what waits for that."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from mm2py.errors import ConnectionFailedError, FatalServerError, RetriableError
from mm2py.protocol.error_codes import (
    GROUP_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    server_error,
)
from mm2py.testing.contexts import FakeConnectorContext
from mm2py.types import TopicPartition
from mm2py_connectors.mirror_sink import MirrorSinkConnector
from tests.unit.connectors.group_fakes import GroupRegion
from tests.unit.connectors.test_mirror_sink import CONFIG

GROUP = "connect-MirrorSinkConnector"
T0, T1, OLD = TopicPartition("t1", 0), TopicPartition("t1", 1), TopicPartition("t2", 0)


def a_region(**topics: int) -> GroupRegion:
    """Return a source whose partitions have records of 1000, 2000 .. 9000 ms at offsets 50 to 58."""
    region = GroupRegion()
    region.source.topics = dict(topics)
    region.source.log_start = 50
    for topic, count in topics.items():
        for number in range(count):
            region.source.logs[TopicPartition(topic, number)] = list(range(1_000, 10_000, 1_000))
    return region


@asynccontextmanager
async def running(
    region: GroupRegion, rules: str, **more: str
) -> AsyncGenerator[tuple[MirrorSinkConnector, FakeConnectorContext]]:
    context = FakeConnectorContext()
    config = CONFIG | {"start.positions": rules, "refresh.topics.interval.seconds": "5", **more}
    connector = MirrorSinkConnector(config, admins=region.open_admin, groups=region.open_groups)
    await connector.start(context)
    await context.clock.settle()
    try:
        yield connector, context
    finally:
        await connector.stop()
    assert region.all_closed
    assert not context.failures


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
async def test_the_group_stands_where_the_first_rule_says_before_a_task_is_dealt(
    rule: str, offset: int
) -> None:
    region = a_region(t1=1)
    async with running(region, rule) as (connector, _):
        assert region.at_source.commits == [(GROUP, {T0: offset})]
        assert topics_of(connector) == "t1"


async def test_all_partitions_are_set_by_one_commit_and_those_without_a_rule_are_left_alone() -> (
    None
):
    region = a_region(t1=2, t2=1)
    async with running(region, "t1=latest") as (_, context):
        assert region.at_source.commits == [(GROUP, {T0: 59, T1: 59})]
        sessions = len(region.sessions)
        await next_look(context)
        assert len(region.sessions) == sessions, "nothing new, nothing asked"


async def test_a_group_with_a_name_of_its_own_gets_them() -> None:
    region = a_region(t1=1)
    async with running(region, "latest", **{"consumer.override.group.id": "mine"}):
        assert region.at_source.commits == [("mine", {T0: 59})]


async def test_without_rules_no_group_is_asked() -> None:
    region = a_region(t1=2)
    async with running(region, "") as (connector, _):
        assert topics_of(connector) == "t1"
    assert region.at_source.asked == []


async def test_positions_that_are_there_stay_and_what_is_new_is_later_than_latest() -> None:
    region = a_region(t1=2)
    region.at_source.put(GROUP, t1_0=7)
    async with running(region, "latest"):
        assert region.at_source.commits == [(GROUP, {T1: 50})]


async def test_a_topic_that_appears_later_begins_at_its_first_record_where_the_rule_is_latest() -> (
    None
):
    region = a_region(t1=1)
    async with running(region, "latest") as (connector, context):
        have_members(region, OLD)
        region.source.topics["t2"] = 1
        region.source.logs[OLD] = [5]
        await next_look(context)
        # auto.offset.reset=earliest does what the refused commit would.
        assert topics_of(connector) == "t1,t2"
        assert connector.waiting() == {}


async def test_a_topic_that_cannot_begin_where_it_should_waits_until_the_group_has_no_members() -> (
    None
):
    region = a_region(t1=1)
    async with running(region, "t2=4000") as (connector, context):
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
        asked = context.reconfigurations
        region.at_source.refusals = {}
        await next_look(context)
        assert region.at_source.commits[-1] == (GROUP, {OLD: 53})
        assert (topics_of(connector), connector.waiting()) == ("t1,t2", {})
        assert context.reconfigurations == asked + 1


async def test_a_new_partition_of_a_topic_that_is_copied_does_not_hold_it_back() -> None:
    region = a_region(t1=2)
    region.at_source.put(GROUP, t1_0=7)
    have_members(region, T1)
    async with running(region, "offset:55") as (connector, _):
        assert topics_of(connector) == "t1"


@pytest.mark.parametrize(("reset", "waits"), [("latest", False), ("earliest", True)])
async def test_what_the_consumer_would_do_by_itself_does_not_wait(reset: str, waits: bool) -> None:
    region = a_region(t1=1)
    have_members(region, T0)
    own = {"consumer.override.auto.offset.reset": reset}
    async with running(region, "offset:99", **own) as (connector, _):
        assert bool(connector.waiting()) is waits


async def test_a_start_without_an_answer_is_tried_again_and_a_refusal_fails_it() -> None:
    region = a_region(t1=1)
    region.at_source.broken = ConnectionFailedError("nobody answers")
    with pytest.raises(RetriableError):
        async with running(region, "latest"):
            pass
    assert region.all_closed
    region.at_source.broken = None
    region.at_source.refusals = {T0: server_error(GROUP_AUTHORIZATION_FAILED)}
    with pytest.raises(FatalServerError, match="GROUP_AUTHORIZATION_FAILED"):
        async with running(region, "latest"):
            pass


@pytest.mark.parametrize("text", ["orders=soon", "=latest", "t:x=latest"])
def test_an_item_that_is_no_rule_is_refused_by_validation(text: str) -> None:
    model = MirrorSinkConnector.config_model
    (problem,) = model.cross_check({"start.positions": text})
    assert problem.name == "start.positions"
