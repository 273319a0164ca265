"""A herder that fails: it starts again with growing pauses, shows its error, and can be changed meanwhile."""

import asyncio

import pytest

from mm2py.errors import ConfigError, ConnectionFailedError, Mm2pyError
from mm2py.protocol.error_codes import server_error
from mm2py.runtime.errors import HerderError, HerderFailedError
from mm2py.runtime.group.membership import Lost, Rejoin
from mm2py.runtime.herder.herder import CHANGE_S
from mm2py.testing.waiting import until
from tests.unit.runtime.herder_fakes import CONFIG, Cluster, Node

GROUP_AUTHORIZATION_FAILED = 30


def refused() -> Mm2pyError:
    return server_error(GROUP_AUTHORIZATION_FAILED, "joining group A-mm2")


async def fails(node: Node, times: int = 1) -> None:
    """Let the next rounds be refused for a reason that is not retriable."""
    node.membership.rejoin_errors = [refused()] * times  # type: ignore[list-item]  # any error of a join
    node.membership.tell(Rejoin("a worker joined"))
    await until(lambda: node.herder.failure is not None)


def test_a_flow_that_met_a_fatal_error_runs_again_once_its_cause_is_gone() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        node = cluster.node().start()
        await node.put()
        await node.runs("c-0", "c-1")
        await fails(node)
        await until(lambda: not node.host.running)
        assert node.meter.state == "FAILED"
        assert "joining group A-mm2" in node.herder.problems()[0]
        assert node.host.closed is False
        await cluster.clock.advance(1.1)
        await node.runs("c-0", "c-1")
        await until(lambda: node.meter.state == "RUNNING")
        assert (node.herder.failure, list(node.herder.problems())) == (None, [])
        assert len(node.hosts) == 1
        await node.stop()
        assert node.meter.state == "STOPPED"

    asyncio.run(scenario())


def test_a_failed_flow_refuses_requests_with_its_error() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        node = cluster.node().start()
        await node.put()
        await node.runs("c-0", "c-1")
        await fails(node)
        herder = node.herder
        for asked in (
            herder.info("c"),
            herder.put_config("c", CONFIG, actor="t"),
            herder.pause("c", actor="t"),
            herder.stop_connector("c", actor="t"),
        ):
            with pytest.raises(HerderFailedError, match="joining group A-mm2") as caught:
                await asked
            assert caught.value.status == 503
        with pytest.raises(HerderFailedError):
            herder.member_urls()
        health = await herder.health()
        assert (health.status, "joining group A-mm2" in health.message) == ("unhealthy", True)
        assert herder.connectors() == ("c",)
        await node.stop()

    asyncio.run(scenario())


def test_a_flow_that_waits_for_a_cluster_says_so_at_once_wherever_it_is_asked() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        node = cluster.node()
        node.errors["target"] = [ConnectionFailedError("user mm is refused")] * 3
        node.start()
        herder = node.herder
        await until(lambda: "user mm is refused" in herder.not_ready)
        asked = [herder.node_snapshot().problems["flow"], (await herder.health()).message]
        for ask in (herder.member_urls, herder.member_urls):
            with pytest.raises(HerderError, match="user mm is refused") as caught:
                ask()
            assert (type(caught.value), caught.value.status) == (HerderError, 503)
        assert all("waits for target cluster B at b1:9092" in text for text in asked)
        assert (await herder.health()).status == "starting"
        await cluster.clock.advance(5)
        await until(lambda: node.meter.state == "STANDBY")
        assert (herder.not_ready, dict(herder.node_snapshot().problems)) == ("", {})
        node.membership.tell(Lost("no heartbeat for 10 s"))
        await until(lambda: "no heartbeat for 10 s" in herder.not_ready)
        await until(lambda: not herder.not_ready)
        await node.stop()

    asyncio.run(scenario())


def test_the_pauses_between_two_starts_grow_to_a_minute() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        node = cluster.node().start()
        await until(lambda: node.meter.state == "STANDBY")
        await fails(node, times=100)
        tries: list[int] = []
        for _ in range(9):
            left = len(node.membership.rejoin_errors)
            seconds = 0
            while len(node.membership.rejoin_errors) == left:
                await cluster.clock.advance(1)
                seconds += 1
            tries.append(seconds)
        assert tries == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        await node.stop()

    asyncio.run(scenario())


def test_a_change_of_the_overrides_starts_a_failed_flow_at_once() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        node = cluster.node(effective={"c": CONFIG | {"name": "c"}}).start()
        await node.runs("c-0", "c-1")
        await fails(node, times=5)
        await cluster.clock.advance(8)
        assert node.herder.failure is not None
        node.membership.rejoin_errors.clear()
        assert node.overrides is not None
        node.overrides.wanted["c"] = CONFIG | {"name": "c", "work": "5"}
        node.overrides.changed()
        await until(lambda: [s.config["p"] for s in node.host.running.values()] == ["5"])
        assert node.overrides.started == 1, "it stays open while the flow starts again"
        await node.stop()

    asyncio.run(scenario())


def test_a_failed_flow_takes_changes_while_no_worker_is_in_its_group() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        node = cluster.node().start()
        await until(lambda: node.meter.state == "STANDBY")
        await fails(node, times=5)
        valid = [node.membership.permit.valid]
        await node.herder.accept_changes()
        valid.append(node.membership.permit.valid)
        await cluster.clock.advance(CHANGE_S)
        valid.append(node.membership.permit.valid)
        assert valid == [False, True, False]
        other = cluster.node("n2").start()
        await until(lambda: other.meter.state == "STANDBY")
        with pytest.raises(HerderFailedError):
            await node.herder.accept_changes()
        await node.stop()
        await other.stop()

    asyncio.run(scenario())


def test_a_stop_ends_the_pause_of_a_failed_flow() -> None:
    async def scenario() -> None:
        node = Cluster().node().start()
        await until(lambda: node.meter.state == "STANDBY")
        await fails(node)
        await node.stop()
        assert node.events[-1] == "close"
        assert node.host.closed

    asyncio.run(scenario())


def test_a_topic_that_is_wrong_at_the_first_start_ends_the_herder_and_later_is_waited_for() -> None:
    async def scenario() -> None:
        first = Cluster().node()
        first.errors["prepare"] = [ConfigError("wrong cleanup policy")]
        first.start()
        assert first.life is not None
        await first.life
        assert isinstance(first.herder.failure, ConfigError)
        cluster = Cluster()
        later = cluster.node().start()
        await until(lambda: later.meter.state == "STANDBY")
        later.errors["prepare"] = [ConfigError("wrong cleanup policy")]
        await fails(later)
        await cluster.clock.advance(1.1)
        await until(lambda: isinstance(later.herder.failure, ConfigError))
        await cluster.clock.advance(2.1)
        await until(lambda: later.meter.state == "STANDBY")
        await later.stop()

    asyncio.run(scenario())


def test_a_defect_fails_the_flow_visibly_and_it_starts_again() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        node = cluster.node().start()
        await node.put()
        await node.runs("c-0", "c-1")
        node.membership.rejoin_errors = [KeyError("x")]  # type: ignore[list-item]  # a defect
        node.membership.tell(Rejoin("a worker joined"))
        await until(lambda: node.herder.failure is not None)
        assert str(node.herder.failure).startswith("KeyError: 'x'")
        await cluster.clock.advance(1.1)
        await node.runs("c-0", "c-1")
        await node.stop()

    asyncio.run(scenario())
