import asyncio
import logging
import shlex
import socket
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2py.client.connect.admin import Admin, ConfigOp
from mm2py.client.connect.broker_errors import BrokerError, BrokerErrors, Trouble, errors_of
from mm2py.client.connect.cluster import ADMIN, Cluster
from mm2py.client.connect.group_admin import UNKNOWN, GroupAdmin, GroupListing
from mm2py.client.connect.open_socket import AddressTurn, connect_socket
from mm2py.client.connect.pool import Outage, OutageLines
from mm2py.client.pacing import RequestPace
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import (
    UNREACHABLE,
    ConnectionFailedError,
    RequestTimedOutError,
    RetriableServerError,
    ServerError,
    UnsendableError,
    command_in,
    is_away,
)
from mm2py.protocol import admin_messages, messages
from mm2py.protocol.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from mm2py.protocol.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    THROTTLING_QUOTA_EXCEEDED,
    TOPIC_AUTHORIZATION_FAILED,
)
from mm2py.protocol.messages import init_producer_id, metadata
from mm2py.protocol.topics import NamedError, NewTopic
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually
from mm2py.types import EARLIEST, LATEST, TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.broker_api import REBOOTSTRAP_REQUIRED
from tests.kit.fakes.broker_state import FakeCluster
from tests.kit.lines.black_hole import BlackHole
from tests.unit.client.client_stage import cluster_of, connected_to

METADATA, LIST_OFFSETS, FIND_COORDINATOR, CREATE_TOPICS, INIT_PRODUCER_ID = 3, 2, 10, 19, 22
TP = TopicPartition("t", 0)


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[FakeBroker, Cluster]]:
    async with FakeBroker(topics={"t": 2}) as broker, connected_to(broker, alias="x") as cluster:
        yield broker, cluster


async def nobody() -> FakeBroker:
    """A broker that has stopped."""
    broker = await FakeBroker().start()
    await broker.stop()
    return broker


async def test_connect_tries_every_bootstrap_address_and_names_the_dead_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = await nobody()
    async with FakeBroker() as broker, connected_to(gone, broker, alias="x") as cluster:
        assert cluster.cluster_id == broker.cluster.cluster_id
        assert cluster.broker_ids == (1,)
        (said,) = [m for m in caplog.messages if "unreachable" in m]
        assert f"cluster=x address=127.0.0.1:{gone.port} " in said


async def test_a_cluster_of_which_no_address_answers_is_an_error_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = await nobody()
    cluster = cluster_of(gone, alias="x")
    for _ in range(3):
        with pytest.raises(
            ConnectionFailedError, match=rf"cluster x \(127.0.0.1:{gone.port}\).*Connection refused"
        ):
            await cluster.connect()
    await cluster.close()
    assert caplog.messages == []


async def test_a_leader_is_looked_up_once_by_all_and_again_after_it_moved() -> None:
    async with connected() as (broker, cluster):
        before = broker.count(METADATA)
        await asyncio.gather(*(cluster.leader(TopicPartition("t", n % 2)) for n in range(20)))
        asked = broker.count(METADATA)
        leader = await cluster.leader(TP)
        assert (leader.node_id, leader.epoch) == (1, 0)
        assert broker.count(METADATA) == asked == before + 1
        cluster.leader_moved(TP)
        assert cluster.known_leader(TP) is None
        assert (await cluster.leader(TP)).node_id == 1
        assert broker.count(METADATA) > asked
        for tp in (TopicPartition("no", 0), TopicPartition("t", 9)):
            with pytest.raises(RetriableServerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                await cluster.leader(tp)


async def test_a_cancelled_lookup_does_not_cancel_the_others() -> None:
    async with connected() as (broker, cluster):
        hold = broker.hold(METADATA)
        first, second = (asyncio.create_task(cluster.leader(TP)) for _ in range(2))
        await hold.arrived.wait()
        first.cancel()
        hold.release()
        assert (await second).node_id == 1
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_older_leader_epochs_are_ignored_and_named_leaders_are_taken() -> None:
    state = FakeCluster()
    async with (
        FakeBroker(cluster=state, topics={"t": 1}) as one,
        FakeBroker(cluster=state, node_id=2),
        connected_to(one) as cluster,
    ):
        assert (await cluster.leader(TP)).node_id == 1
        cluster.leader_moved(TP, 2, 3)  # what metadata does not know yet
        leader = await cluster.leader(TP)
        assert (leader.node_id, leader.epoch) == (2, 3)
        cluster.leader_moved(TP)
        with pytest.raises(RetriableServerError, match="LEADER_NOT_AVAILABLE"):
            await cluster.leader(TP)  # metadata still says epoch 0
        for _ in range(3):
            state.move_leader(TP, 2)
        leader = await cluster.leader(TP)
        assert (leader.node_id, leader.epoch) == (2, 3)


async def test_a_recreated_topic_may_start_at_epoch_zero_again() -> None:
    async with connected() as (broker, cluster):
        for _ in range(3):
            broker.cluster.move_leader(TP, 1)
        old = await cluster.leader(TP)
        broker.create_topic("t")
        cluster.leader_moved(TP)
        new = await cluster.leader(TP)
        assert (old.epoch, new.epoch) == (3, 0)
        assert old.topic_id != new.topic_id


async def test_calls_survive_a_lost_connection_and_retriable_codes_alone() -> None:
    async with connected() as (broker, cluster):
        broker.fail_next(INIT_PRODUCER_ID, "disconnect")
        broker.fail_next(INIT_PRODUCER_ID, 14, 2)
        answer = await cluster.call_any(init_producer_id(), code_of=lambda a: a.error_code)
        assert answer.producer_id > 0
        assert broker.count(INIT_PRODUCER_ID) == 4
        broker.fail_next(INIT_PRODUCER_ID, 31)
        answer = await cluster.call_any(init_producer_id(), code_of=lambda a: a.error_code)
        assert (answer.error_code, broker.count(INIT_PRODUCER_ID)) == (31, 5), "a fatal code"


async def test_calls_end_with_the_last_problem_after_the_api_timeout() -> None:
    async with FakeBroker() as broker, connected_to(broker, default_api_timeout_ms=500) as cluster:
        broker.fail_next(INIT_PRODUCER_ID, 15, 1000)
        with pytest.raises(RequestTimedOutError, match="500 ms: COORDINATOR_NOT_AVAILABLE"):
            await cluster.call_any(init_producer_id(), code_of=lambda a: a.error_code)


async def test_a_broker_that_comes_back_is_found_and_each_change_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "mm2py.client")

    async with connected() as (broker, cluster):
        await cluster.leader(TP)
        hold = broker.hold(METADATA)
        waiting = asyncio.create_task(cluster.call_any(metadata(())))
        await hold.arrived.wait()
        await broker.stop()
        with pytest.raises(ConnectionFailedError, match="refused"):
            await cluster.connection(1, "fetch")
        await broker.start()
        assert (await waiting).cluster_id == cluster.cluster_id
        assert (await cluster.connection(1, "fetch")).closed is False
        kinds = [message.split(" cluster=")[0] for message in caplog.messages]
        assert kinds.count("broker connection lost") == 1
        assert kinds.count("broker connected") == 2
        counts = errors_of(SYSTEM_CLOCK).counts
        address = f"127.0.0.1:{broker.port}"
        assert counts[BrokerError("x", address, Trouble.LOST)] == 1
        assert counts[BrokerError("x", address, Trouble.UNREACHABLE)] >= 1


def test_counted_trouble_is_taken_once_and_the_oldest_is_forgotten_first() -> None:
    errors = BrokerErrors()
    first, second = (BrokerError("x", f"b{n}:1", Trouble.REFUSED) for n in (1, 2))
    errors.add(first)
    errors.add(second, 2)
    assert errors.take() == ((first, 1), (second, 2))
    assert errors.take() == ()
    errors.add(first, 3)
    assert errors.take() == ((first, 3),)
    for number in range(999):
        errors.add(BrokerError("y", f"b{number}:1", Trouble.LOST))
    assert (first in errors.counts, second in errors.counts) == (True, False)
    assert len(errors.take()) == 999


async def test_the_clients_of_a_process_share_a_line_about_a_broker_that_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeBroker() as broker:
        clusters = [cluster_of(broker, alias="x") for _ in range(3)]
        other = cluster_of(broker, alias="y")
        for cluster in (*clusters, other):
            await cluster.connect()
        await broker.stop()
        for again in range(2):
            for cluster in (*clusters, other):
                with pytest.raises(ConnectionFailedError):
                    await cluster.connection(1, f"fetch-{again}")
        said = [m.split(" address=")[0] for m in caplog.messages if "unreachable" in m]
        assert said == [f"broker unreachable, trying again cluster={alias}" for alias in "xy"]
        for cluster in (*clusters, other):
            await cluster.close()


def test_a_line_about_an_outage_is_due_each_10_s_and_tells_how_long_all_clients_saw_it() -> None:
    lines, away = OutageLines(), Outage("x", "b1", 9092)
    refused = Outage("x", "b1", 9092, "user mm is refused")
    assert lines.outage_s(away, 100.0, 100.0) == 0
    assert lines.outage_s(away, 105.0, 109.9) is None
    assert lines.outage_s(refused, 105.0, 109.9) == pytest.approx(4.9)
    assert lines.outage_s(away, 110.0, 110.0) == 10
    assert lines.due_at(away) == 120
    lines.back(away)
    assert lines.outage_s(away, 112.0, 112.0) == 0, "the next outage is said at once"
    assert lines.outage_s(away, 300.0, 300.0) == 0, "nobody has seen it for minutes"


async def test_connections_are_shared_per_broker_and_purpose() -> None:
    async with connected() as (_, cluster):
        one, two, other = await asyncio.gather(
            cluster.connection(1, "fetch"),
            cluster.connection(1, "fetch"),
            cluster.connection(1, "produce"),
        )
        assert one is two
        assert one is not other
        with pytest.raises(ConnectionFailedError, match="broker 9 is not in the metadata"):
            await cluster.connection(9, "fetch")


@pytest.mark.parametrize("accepts", [False, True])
async def test_a_name_with_a_dead_first_address_is_reached_at_the_next(
    accepts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two_addresses(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.2", "127.0.0.1")
        ]

    async with FakeBroker(topics={"t": 1}) as broker:
        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        with BlackHole("127.0.0.2", broker.port, accepts=accepts):
            cluster = cluster_of(broker, socket_connection_setup_timeout_ms=1000)
            if accepts:  # only the handshake shows that this address is dead
                with pytest.raises(ConnectionFailedError):
                    await cluster.connect()
            await cluster.connect()
            # The address that worked is the first one tried from then on.
            await cluster.connection(1, "fetch")
            await cluster.close()


async def test_a_name_that_leads_to_a_machines_own_services_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ["169.254.169.254", "127.0.0.1"]

    def addresses(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (it, port)) for it in found]

    async with FakeBroker(topics={"t": 1}) as broker:
        monkeypatch.setattr(socket, "getaddrinfo", addresses)
        cluster = cluster_of(broker, socket_connection_setup_timeout_ms=60_000)
        await cluster.connect()  # at the other address, without an attempt at the first
        await cluster.close()
        found.pop()
        again = cluster_of(broker, socket_connection_setup_timeout_ms=60_000)
        with pytest.raises(ConnectionFailedError, match="no address that brokers may have here"):
            await again.connect()
        await again.close()


async def test_names_that_no_server_resolves_keep_no_other_broker_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, asked, resolve = threading.Event(), Counter[str](), socket.getaddrinfo

    def slow(host: str, port: int, *more: Any, **options: Any) -> Any:
        asked[host] += 1
        if host.endswith(".dead"):
            over.wait(100)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return resolve(host, port, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    turn = AddressTurn()
    async with FakeBroker(topics={"t": 1}) as broker:
        settings = cluster_of(broker).settings
        names = [f"broker{number}.dead" for number in range(40)]
        waiting = [
            asyncio.ensure_future(connect_socket(name, 9092, settings, turn)) for name in 3 * names
        ]
        try:
            async with asyncio.timeout(60), connected_to(broker):
                assert not any(it.done() for it in waiting)
        finally:
            over.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(it, ConnectionFailedError) for it in found)
        assert [asked[name] for name in names] == [1] * len(names)


async def test_metadata_that_a_broker_refuses_are_not_taken_for_a_cluster_without_topics() -> None:
    async with connected() as (broker, cluster):
        await cluster.leader(TP)
        broker.fail_next(METADATA, REBOOTSTRAP_REQUIRED)
        assert [topic.name for topic in (await cluster.metadata()).topics] == ["t"]
        broker.fail_next(METADATA, REBOOTSTRAP_REQUIRED)
        cluster.leader_moved(TP)
        with pytest.raises(ConnectionFailedError, match="REBOOTSTRAP_REQUIRED"):
            await cluster.leader(TP)
        assert (await cluster.leader(TP)).node_id == broker.node_id


ANY: tuple[tuple[int, Callable[[Cluster], Awaitable[object]]], ...] = (
    (FIND_COORDINATOR, lambda cluster: cluster.coordinator("g")),
    (FIND_COORDINATOR, lambda cluster: cluster.coordinators(["g"])),
    (INIT_PRODUCER_ID, lambda cluster: cluster.call_any(init_producer_id())),
)


@pytest.mark.parametrize(("key", "ask"), ANY, ids=["coordinator", "coordinators", "any broker"])
async def test_any_broker_is_asked_where_the_one_that_is_connected_is_silent(
    key: int, ask: Callable[[Cluster], Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mm2py.client.connect.cluster.SILENT_S", 0.05)
    shared = FakeCluster()
    async with (
        FakeBroker(node_id=1, cluster=shared) as silent,
        FakeBroker(node_id=2, cluster=shared),
        connected_to(silent) as cluster,
    ):
        hold = silent.hold(key)
        async with asyncio.timeout(4):
            assert await ask(cluster)
        hold.release()


async def test_metadata_come_from_another_broker_where_the_one_that_is_connected_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py.client.connect.cluster.SILENT_S", 0.05)
    shared = FakeCluster()
    async with (
        FakeBroker(node_id=1, cluster=shared, topics={"t": 2}) as silent,
        FakeBroker(node_id=2, cluster=shared) as other,
        connected_to(silent) as cluster,
    ):
        hold = silent.hold(METADATA)
        assert [topic.name for topic in (await cluster.metadata(["t"])).topics] == ["t"]
        assert (await cluster.leader(TP)).node_id == 1
        asked = silent.count(METADATA)
        # It is asked last from then on, until it answers.
        await cluster.metadata(["t"])
        assert (silent.count(METADATA), other.count(METADATA)) == (asked, 2)
        hold.release()


async def test_a_silent_broker_keeps_no_end_of_a_log_on_another_one_back() -> None:
    shared = FakeCluster()
    async with (
        FakeBroker(node_id=1, cluster=shared, topics={"t": 2}) as broker,
        FakeBroker(node_id=2, cluster=shared) as silent,
        connected_to(broker) as cluster,
    ):
        shared.move_leader(TopicPartition("t", 1), 2)
        hold = silent.hold(LIST_OFFSETS)
        both = [TP, TopicPartition("t", 1)]
        assert await Admin(cluster).log_ends(both, within_s=0.5) == {TP: 0}
        hold.release()


async def test_a_question_without_an_answer_is_told_long_before_it_times_out() -> None:
    async with connected() as (broker, cluster):
        assert cluster.unanswered(0) == ""
        hold = broker.hold(METADATA)
        asking = asyncio.create_task(cluster.metadata(["t"]))
        await eventually(lambda: cluster.unanswered(0.05) != "")
        silent = cluster.unanswered(0.05)
        assert silent.endswith("has answered for 0.05 s")
        assert is_away(silent)
        await broker.stop()
        await eventually(lambda: UNREACHABLE in cluster.unanswered(0.05))
        assert cluster.unanswered(3600) == ""
        hold.release()
        await broker.start()
        await asking
        assert cluster.unanswered(0) == ""


async def test_a_request_that_waits_for_its_turn_is_no_silent_broker_and_ends_late() -> None:
    shared = FakeCluster()
    async with (
        FakeBroker(node_id=1, cluster=shared, topics={"t": 2}) as asked,
        FakeBroker(node_id=2, cluster=shared) as other,
    ):
        cluster = cluster_of(asked, default_api_timeout_ms=3_000)
        cluster.pace(RequestPace(5, SYSTEM_CLOCK))
        async with cluster:
            await asyncio.gather(*(cluster.metadata(["t"]) for _ in range(22)))
            assert (asked.count(METADATA), other.count(METADATA)) == (1 + 22, 0)


async def test_close_cancels_attempts_and_is_final() -> None:
    async with connected() as (_, cluster):
        await cluster.close()
        with pytest.raises(ConnectionFailedError, match="is closed"):
            await cluster.connection(1, "fetch")


async def test_many_partitions_without_a_leader_cost_one_question_a_round() -> None:
    async with connected() as (broker, cluster):
        broker.create_topic("new", 50)
        missing = [TopicPartition("new", n) for n in range(50)]
        for tp in missing:
            broker.cluster.move_leader(tp, -1)
        asked = len([key for key, _ in broker.requests if key == METADATA])
        listed = await Admin(cluster).list_offsets(dict.fromkeys([TP, *missing], LATEST))
        assert listed[TP].error is None
        assert all(isinstance(listed[tp].error, RetriableServerError) for tp in missing)
        assert len([key for key, _ in broker.requests if key == METADATA]) <= asked + 4


async def test_offsets_are_asked_again_when_the_leader_moved_and_come_without_a_pause_where_it_has_not() -> (
    None
):
    async with connected() as (broker, cluster):
        broker.fail_next(LIST_OFFSETS, 6)
        broker.fail_next(LIST_OFFSETS, "disconnect")
        asked = {TP: LATEST, TopicPartition("t", 1): EARLIEST, TopicPartition("no", 0): LATEST}
        listed = await Admin(cluster).list_offsets(asked)
        assert [listed[tp].offset for tp in asked] == [0, 0, -1]
        error = listed[TopicPartition("no", 0)].error
        assert error is not None
        assert error.code == 3
        broker.fail_next(LIST_OFFSETS, "disconnect", 10)
        error = (await Admin(cluster).list_offsets({TP: LATEST}))[TP].error
        assert isinstance(error, RetriableServerError)
        assert error.name == "NETWORK_EXCEPTION", "it stays away"
    async with (
        FakeBroker(topics={"t": 2}) as broker,
        # The clock does not move, so any pause would last for ever.
        connected_to(broker, clock=FakeClock()) as cluster,
        asyncio.timeout(90),
    ):
        assert (await Admin(cluster).list_offsets({TP: LATEST}))[TP].offset == 0


async def test_a_silent_broker_delays_the_question_to_no_other() -> None:
    shared = FakeCluster()
    async with (
        FakeBroker(node_id=1, cluster=shared, topics={"t": 2}) as broker,
        FakeBroker(node_id=2, cluster=shared) as silent,
        connected_to(broker) as cluster,
    ):
        shared.move_leader(TP, 2)
        hold = silent.hold(LIST_OFFSETS)
        asked = dict.fromkeys([TP, TopicPartition("t", 1)], LATEST)
        listing = asyncio.create_task(Admin(cluster).list_offsets(asked))
        await eventually(lambda: broker.count(LIST_OFFSETS) == 1)
        hold.release()
        assert {found.offset for found in (await listing).values()} == {0}


async def test_topic_creation_is_retried_at_a_new_controller_and_refusals_are_values() -> None:
    async with connected() as (broker, cluster):
        broker.fail_next(CREATE_TOPICS, 41)
        admin = Admin(cluster)
        assert await admin.create_topics([NewTopic("new", 2, 1)]) == {"new": None}
        again = (await admin.create_topics([NewTopic("new", 2, 1)]))["new"]
        assert again is not None
        assert again.code == 36
        listed = await admin.list_topics()
        assert listed["new"].partitions == (0, 1)
        assert await admin.list_topics() is listed, "an answer of the same bytes is not read again"
        await admin.create_topics([NewTopic("newer", 1, 1)])
        assert "newer" in await admin.list_topics()


async def test_what_a_quota_puts_off_is_a_value_for_who_asks_again_and_others_wait_for_it() -> None:
    async with connected() as (broker, cluster):
        admin, new = Admin(cluster), [NewTopic("new", 2, 1)]
        broker.fail_next(CREATE_TOPICS, THROTTLING_QUOTA_EXCEEDED)
        error = (await admin.create_topics(new, at_once=True))["new"]
        assert isinstance(error, RetriableServerError)
        assert broker.count(CREATE_TOPICS) == 1
        broker.fail_next(CREATE_TOPICS, THROTTLING_QUOTA_EXCEEDED)
        assert await admin.create_topics(new) == {"new": None}
        assert broker.count(CREATE_TOPICS) == 3


async def test_growth_that_is_denied_names_its_right_and_many_acls_are_more_than_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (_, cluster):
        sent: list[int] = []

        async def deny(call: object, **_: object) -> tuple[NamedError, ...]:
            sent.append(len(cast("list[object]", call)) if isinstance(call, list) else 1)
            return (NamedError("t", TOPIC_AUTHORIZATION_FAILED, ""),) * sent[-1]

        monkeypatch.setattr(cluster, "call_controller", deny)
        monkeypatch.setattr(admin_messages, "create_acls", list)
        denied = (await Admin(cluster).create_partitions({"t": 3}))["t"]
        assert denied is not None
        assert "--operation Alter --topic t" in denied.remedy
        read = AclOperation.READ, AclPermission.ALLOW
        rules = [
            Acl(AclResourceType.TOPIC, f"t{it}", PatternType.LITERAL, "User:u", "*", *read)
            for it in range(2_001)
        ]
        assert len(await Admin(cluster).create_acls(rules)) == 2_001
        assert sent == [1, 1_000, 1_000, 1]


REQUEST = "Request Request(processor=1, session=Session@3496c7dd) is not authorized."
"""As brokers explain a missing right on the cluster, each time with another session."""
RULE = Acl(AclResourceType.TOPIC, "t", PatternType.LITERAL, "User:u", "*", AclOperation.READ, AclPermission.ALLOW)  # fmt: skip


async def _rules(admin: Admin) -> Mapping[str, ServerError]:
    try:
        await admin.describe_topic_acls()
    except ServerError as error:
        return {"": error}
    return {}


Errors = Mapping[str, object] | Mapping[TopicPartition, object] | list[ServerError | None]
DENIED: Mapping[str, tuple[int, Callable[[Admin], Awaitable[Errors]]]] = {
    "DescribeConfigs --topic t": (TOPIC_AUTHORIZATION_FAILED, lambda it: it.read_topic_configs("t")),
    "AlterConfigs --topic t": (TOPIC_AUTHORIZATION_FAILED, lambda it: it.alter_topic_configs({"t": ()})),
    "Describe --cluster": (CLUSTER_AUTHORIZATION_FAILED, _rules),
    "Alter --cluster": (CLUSTER_AUTHORIZATION_FAILED, lambda it: it.delete_acls([RULE])),
    "Read --topic t": (TOPIC_AUTHORIZATION_FAILED, lambda it: GroupAdmin(it.cluster).commit("g", ())),
    "Read --group g": (GROUP_AUTHORIZATION_FAILED, lambda it: GroupAdmin(it.cluster).commit("g", ())),
}  # fmt: skip


@pytest.mark.parametrize("right", DENIED)
async def test_a_missing_right_is_named_with_the_command_that_grants_it(
    monkeypatch: pytest.MonkeyPatch, right: str
) -> None:
    code, ask = DENIED[right]
    answer = SimpleNamespace(
        name="t", topic="t", partition=0, resource=SimpleNamespace(name="t"), entries=(), acls=(),
        error_code=code, error_message=REQUEST,
    )  # fmt: skip

    async def deny(*_: object, **options: object) -> object:
        return answer if "code_of" in options and right == "Describe --cluster" else (answer,)

    async def coordinator(*_: object) -> SimpleNamespace:
        return SimpleNamespace(call=deny)

    async with connected() as (_, cluster):
        for name in ("call_any", "call_controller"):
            monkeypatch.setattr(cluster, name, deny)
        monkeypatch.setattr(cluster, "coordinator", coordinator)
        found = await ask(Admin(cluster))
    (error,) = found if isinstance(found, list) else found.values()
    assert command_in(str(error)).endswith(f"--operation {right}")
    assert "Request(" not in str(error)


async def test_coordinators_of_many_groups_are_kept_and_old_brokers_asked_one_by_one() -> None:
    find_coordinator, refused = 10, 30
    async with connected() as (broker, cluster):
        cluster.coordinator_found("known", 7)
        broker.fail_next(find_coordinator, refused, 1)
        found = await cluster.coordinators(["known", "secret", "a", "b"])
        node = found["a"]
        assert found == {"known": 7, "secret": found["secret"], "a": node, "b": node}
        assert isinstance(found["secret"], ServerError)
        assert "may not Read group secret of cluster" in found["secret"].message
        assert "--operation Read --group secret" in str(found["secret"].remedy)
        asked = broker.count(find_coordinator)
        assert (await cluster.coordinators(["a", "b"]), asked) == ({"a": node, "b": node}, 3)
        assert broker.count(find_coordinator) == asked
        cluster.coordinator_moved("a")
        await cluster.coordinators(["a", "b"])
        assert broker.count(find_coordinator) == asked + 1


async def test_a_group_without_a_name_has_no_coordinator_and_the_others_have_theirs() -> None:
    async with connected() as (_, cluster):
        cluster.coordinator_found("", 7)  # as brokers list it
        found = await cluster.coordinators(["", "a", "x" * 40_000, "\udcff"])
        assert isinstance(found["a"], int)
        assert all(isinstance(found[it], UnsendableError) for it in found if it != "a")
        committed = await GroupAdmin(cluster).committed([""])
        assert isinstance(committed[""], UnsendableError)
        listed = {"": GroupListing("", 1, "")}
        assert (await GroupAdmin(cluster).with_states(listed))[""].state == UNKNOWN


async def test_what_no_request_can_carry_is_refused_by_itself() -> None:
    async with connected() as (_, cluster):
        admin = Admin(cluster)
        long = NewTopic("long", 1, 1, {"c": "x" * 40_000})
        topics = await admin.create_topics([long, NewTopic("new", 1, 1)])
        assert topics["new"] is None
        configs = await admin.alter_topic_configs({"t": [ConfigOp("c", "SET", "x" * 40_000)]})
        of_t = (AclResourceType.TOPIC, "t", PatternType.LITERAL)
        nobody = Acl(*of_t, "", "*", AclOperation.READ, AclPermission.ALLOW)
        (rule,) = await admin.create_acls([nobody])
        for error in (topics["long"], configs["t"], rule):
            assert error is not None
            assert "INVALID_REQUEST" in str(error)


async def test_a_quick_answer_on_one_connection_tells_the_others_that_the_broker_is_near() -> None:
    async with connected() as (broker, cluster):
        busy = await cluster.connection(broker.node_id, "produce")
        # Its pings wait behind large requests.
        busy.round_trip.least_s, busy.round_trip.is_distant = 5.0, True
        other = await cluster.connection(broker.node_id, ADMIN)
        await other.ping()
        assert busy.round_trip.least_s < 5.0
        assert not busy.round_trip.is_distant
        assert busy.round_trip is other.round_trip


async def test_a_topic_that_may_not_be_described_may_have_been_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (_, cluster):
        (there,) = (await cluster.metadata(["t"])).topics
        denied = replace(there, name="gone", error_code=TOPIC_AUTHORIZATION_FAILED, partitions=())

        async def answer(_cluster: Cluster, _topics: object, **_more: object) -> SimpleNamespace:
            return SimpleNamespace(topics=(there, denied))

        monkeypatch.setattr(Cluster, "metadata", answer)
        hidden = await Admin(cluster).denied_topics(["gone", "t"])
    assert list(hidden) == ["gone"]
    assert "may not Describe topic gone of cluster x" in str(hidden["gone"])
    assert str(hidden["gone"]).endswith("if gone was deleted, name it in topics.exclude")


@pytest.mark.parametrize(
    ("granted", "missing"),
    [
        ({AclOperation.READ, AclOperation.WRITE}, ""),
        ({AclOperation.READ}, "Write"),
        ({AclOperation.WRITE}, "Read"),
        (set[AclOperation](), "Write"),
        (None, ""),
    ],
)
async def test_the_first_right_that_a_topic_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, granted: set[AclOperation] | None, missing: str
) -> None:
    async with connected() as (_, cluster):
        (there,) = (await cluster.metadata(["t"])).topics
        operations = None if granted is None else frozenset(map(int, granted))
        found = SimpleNamespace(topics=(replace(there, operations=operations),))

        async def answer(_cluster: Cluster, _topics: object, **_more: object) -> SimpleNamespace:
            return found

        monkeypatch.setattr(Cluster, "metadata", answer)
        rights = (AclOperation.WRITE, AclOperation.READ)
        refused = (await Admin(cluster).describe_topics(["t"], rights=rights))["t"].refused
    assert (refused is not None) == bool(missing)
    assert refused is None or f"may not {missing} topic t" in refused.message


@pytest.mark.parametrize(
    ("group", "has_command"),
    [
        ("shop", True),
        ("x'; y", True),
        ("$(z)", True),
        ("kafka-acls.sh --group $(z)", True),
        ("a;kafka-x.sh --$(z)", True),
        ("kafka-acls.sh --$(z)'", False),  # its quote runs into that of the command
    ],
)
async def test_a_command_that_grants_has_only_words(group: str, has_command: bool) -> None:
    """A group may have any name, and the command is copied into a shell."""
    async with FakeBroker() as broker, cluster_of(broker) as cluster:
        command = command_in(str(cluster.denied(GROUP_AUTHORIZATION_FAILED, "Read", group)))
    assert shlex.join(shlex.split(command)) == command
    assert shlex.split(command)[-2:] == (["--group", group] if has_command else [])


async def test_topics_are_made_and_grow_in_requests_that_a_controller_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 10,001 records of metadata it takes none: a restore of 100 topics with 100 partitions each made no topic."""
    asked: list[int] = []

    class Controller:
        broker_ids = (1,)

        async def connection(self, _node: int, _use: str) -> None:
            raise ConnectionFailedError("not asked for formats")

        async def call_controller(self, count: int, code_of: object) -> Sequence[object]:
            asked.append(count)
            return ()

    def created(topics: Sequence[NewTopic], **_: object) -> int:
        return sum(1 + it.partitions for it in topics)

    def grown(totals: Mapping[str, int]) -> int:
        return sum(totals.values())

    monkeypatch.setattr(messages, "create_topics", created)
    monkeypatch.setattr(messages, "create_partitions", grown)
    admin = Admin(cast("Cluster", Controller()))
    await admin.create_topics([NewTopic(f"t{number}", 100, 1) for number in range(100)])
    await admin.create_partitions({f"t{number}": 1_500 for number in range(5)})
    assert asked == [39 * 101, 39 * 101, 22 * 101, 3_000, 3_000, 1_500]
