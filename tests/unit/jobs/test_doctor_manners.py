"""What the doctor's flows share: a cluster is connected to once, one that is silent is not asked for the next flow, and all end in time."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConnectionFailedError, FatalServerError, Mm2pyError, RetriableError
from mm2py.testing.clock import FakeClock
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_jobs.doctor import cluster_checks, examine, flow_checks
from mm2py_jobs.doctor.examine import ALL_S, Shared
from mm2py_jobs.doctor.examined import SIDES, Examined, Level, Once
from tests.kit.fakes.broker import FakeBroker
from tests.kit.kafka.ports import free_ports

METADATA = 3
FIRST, SECOND = (FlowName(ClusterAlias(it), ClusterAlias("B")) for it in ("A", "C"))


@asynccontextmanager
async def shared() -> AsyncGenerator[Shared]:
    async with AsyncExitStack() as stack:
        yield Shared(SYSTEM_CLOCK, stack)


def properties(port: int) -> dict[str, str]:
    return {
        f"{side}.cluster.bootstrap.servers": f"127.0.0.1:{port}" for side in ("source", "target")
    }


async def test_flows_share_the_cluster_that_both_have_and_one_that_is_away_is_known_to_be() -> None:
    (port,) = free_ports(1)
    async with shared() as opened, FakeBroker() as broker:
        assert opened.left_s() == ALL_S
        well = await asyncio.gather(
            *(opened.side(it, properties(broker.port), "target") for it in (FIRST, SECOND))
        )
        assert well[0] is well[1]
        assert not well[0].away
        away = await opened.side(FIRST, properties(port), "source")
        assert f"127.0.0.1:{port}" in away.away
        assert await opened.side(FIRST, properties(port), "source") is away
        assert (await opened.side(SECOND, properties(port), "source")).alias == "C"
        assert 0 < opened.left_s() < ALL_S, "all flows together end in time"


async def test_a_cluster_that_falls_silent_during_a_check_is_left_alone_by_all_flows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examine, "PROBE_S", 0.2)
    async with shared() as opened, FakeBroker() as broker:
        side = await opened.side(FIRST, properties(broker.port), "target")
        assert not await opened.silent(side)
        broker.hold(METADATA)
        assert await opened.silent(side)
        assert "no answer within" in side.away
        assert (await opened.side(SECOND, properties(broker.port), "target")).away == side.away


async def test_topics_that_a_policy_of_ones_own_gives_one_name_are_refused() -> None:
    class Flow:
        """What the check asks."""

        names = SimpleNamespace(copy_of=str.lower)

        async def chosen(self) -> dict[str, object]:
            return {"Orders": 0, "orders": 0, "other": 0}

    rows = [row async for row in flow_checks.names(cast("Examined", Flow()))]
    assert [(it.level, it.text) for it in rows] == [
        (Level.ERROR, "Orders, orders would be copied into one topic, orders")
    ]
    assert "topics.exclude" in rows[0].remedy


async def test_a_question_is_asked_once_and_again_only_where_it_failed() -> None:
    asked = list[str]()

    async def ask() -> str:
        asked.append("question")
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise RetriableError("not now")
        return "answer"

    once = Once(ask)
    answers = await asyncio.gather(once(), once(), once(), return_exceptions=True)
    assert [str(it) for it in answers] == ["not now", "answer", "answer"]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            -1,
            "no clock is apart",
        ),  # a quorum whose leader is no voter, or a broker that leaves the time out
        (ConnectionFailedError("closed by the broker"), "no clock is apart"),
        (FatalServerError(31, "CLUSTER_AUTHORIZATION_FAILED"), "no clock is apart"),
        (1_000_000 - 10_000, "clock is 10 s behind this machine's"),
    ],
)
async def test_a_controller_that_does_not_tell_its_time_keeps_no_other_clock_from_being_judged(
    told: int | Mm2pyError, said: str
) -> None:
    async def tells() -> int:
        if isinstance(told, Mm2pyError):
            raise told
        return told

    async def nothing(*_: object) -> dict[TopicPartition, int]:
        return {}

    admin = SimpleNamespace(controller_time_ms=tells, newest_times=nothing)
    side = SimpleNamespace(alias="A", admin=admin, commits=nothing)
    clock = FakeClock(1_000_000)
    flow = SimpleNamespace(sides=dict.fromkeys(SIDES, side), clock=clock, chosen=nothing)
    rows = [row async for row in cluster_checks.clocks(cast("Examined", flow))]
    assert [said in it.text for it in rows] == [True, True]
