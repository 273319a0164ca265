"""The real link to a group's coordinator, against a scripted cluster."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.group.coordinator import CoordinatorLink
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConnectionFailedError, FatalServerError, RetriableError
from mm2py.protocol.call import Call
from mm2py.protocol.error_codes import NONE, NOT_COORDINATOR, UNKNOWN_MEMBER_ID
from mm2py.protocol.groups import DescribedGroup, GroupProtocol, JoinResult, SyncResult

OFFERS = (GroupProtocol("p", b""),)


class Connection:
    def __init__(self, cluster: "ScriptedCluster", purpose: str) -> None:
        self._cluster, self.purpose = cluster, purpose
        self.dropped = ""

    def discard(self, reason: str) -> None:
        self.dropped = reason

    async def call(self, call: Call[object], *, timeout_ms: int | None = None) -> object:
        cluster = self._cluster
        cluster.calls.append((call.name, self.purpose, timeout_ms))
        answer = cluster.answers[call.name]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer


class ScriptedCluster:
    """Answers by request name; None never answers."""

    settings = ConnectionSettings(bootstrap_servers=(("b", 1),))

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.calls: list[tuple[str, str, int | None]] = []
        self.connections: list[Connection] = []
        self.moved = 0

    async def coordinator(self, _group_id: str, purpose: str = "coordinator") -> Connection:
        self.connections.append(Connection(self, purpose))
        return self.connections[-1]

    def coordinator_moved(self, _group_id: str) -> None:
        self.moved += 1

    async def call_coordinator(
        self, _group_id: str, call: Call[object], *, code_of: Callable[[int], int]
    ) -> object:
        assert code_of(NOT_COORDINATOR)
        assert not code_of(UNKNOWN_MEMBER_ID), "who is no member any more has left"
        return await Connection(self, "leave").call(call)


def joined(code: int) -> JoinResult:
    return JoinResult(code, 1, "p", "m", "m", (), skip_assignment=False)


def described(code: int, state: str = "Stable") -> tuple[DescribedGroup, ...]:
    return (DescribedGroup("g", code, "", state, "connect", "p", ()),)


def scripted() -> tuple[ScriptedCluster, CoordinatorLink]:
    cluster = ScriptedCluster()
    return cluster, CoordinatorLink(cast("Cluster", cluster), "g")


async def test_heartbeats_do_not_queue_behind_a_join_that_waits() -> None:
    cluster, link = scripted()
    cluster.answers = {"JoinGroup": joined(NONE), "Heartbeat": NONE}
    await link.join("m", OFFERS, 6_000, 60_000)
    assert await link.heartbeat("m", 1, 6_000) == NONE
    (_, joins, join_ms), (_, beats, beat_ms) = cluster.calls
    assert joins != beats
    assert join_ms == 60_000 + cluster.settings.request_timeout_ms
    assert beat_ms == 6_000


async def test_the_connection_of_a_round_is_closed_when_it_is_done_or_given_up() -> None:
    cluster, link = scripted()
    cluster.answers = {"SyncGroup": SyncResult(NONE, "p", b""), "JoinGroup": None}
    await link.sync("m", 1, "p", {})
    assert cluster.connections[-1].dropped == "the round is done"
    joining = asyncio.create_task(link.join("m", OFFERS, 6_000, 60_000))
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.gather(joining, return_exceptions=True)
    assert cluster.connections[-1].dropped == "the round was given up"


async def test_a_coordinator_that_moved_or_is_away_is_looked_for_again() -> None:
    cluster, link = scripted()
    cluster.answers = {
        "JoinGroup": joined(NOT_COORDINATOR),
        "SyncGroup": SyncResult(NOT_COORDINATOR, "", b""),
        "Heartbeat": NOT_COORDINATOR,
        "DescribeGroups": described(NOT_COORDINATOR),
    }
    attempts: list[Callable[[], Awaitable[object]]] = [
        lambda: link.join("m", OFFERS, 6_000, 60_000),
        lambda: link.sync("m", 1, "p", {}),
        lambda: link.heartbeat("m", 1, 6_000),
        link.describe,
    ]
    for attempt in attempts:
        with pytest.raises(RetriableError, match="NOT_COORDINATOR"):
            await attempt()
    cluster.answers = dict.fromkeys(cluster.answers, ConnectionFailedError("reset"))
    for attempt in attempts:
        with pytest.raises(RetriableError, match="reset"):
            await attempt()
    assert cluster.moved == 8


async def test_codes_about_the_membership_stay_codes() -> None:
    cluster, link = scripted()
    cluster.answers = {
        "JoinGroup": joined(UNKNOWN_MEMBER_ID),
        "Heartbeat": UNKNOWN_MEMBER_ID,
    }
    assert (await link.join("m", OFFERS, 6_000, 60_000)).error_code == UNKNOWN_MEMBER_ID
    assert await link.heartbeat("m", 1, 6_000) == UNKNOWN_MEMBER_ID
    assert cluster.moved == 0


async def test_a_group_that_does_not_exist_is_dead_and_one_that_is_secret_is_an_error() -> None:
    cluster, link = scripted()
    cluster.answers = {"DescribeGroups": described(69, state="")}
    assert (await link.describe()).state == "Dead"
    cluster.answers = {"DescribeGroups": described(30)}
    with pytest.raises(FatalServerError, match="GROUP_AUTHORIZATION_FAILED"):
        await link.describe()


async def test_leaving_closes_the_connections_and_does_not_wait_for_a_silent_coordinator(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, link = scripted()
    cluster.answers = {"Heartbeat": NONE, "LeaveGroup": None}
    await link.heartbeat("m", 1, 6_000)
    await link.leave("m", 0.01)
    assert cluster.connections[0].dropped == "left the group"
    await link.leave("", 0.01)
    assert [name for name, _, _ in cluster.calls] == ["Heartbeat", "LeaveGroup"]
    assert "left without an answer" in caplog.text
