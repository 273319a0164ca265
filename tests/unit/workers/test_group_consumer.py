"""What a poll returns when the group changes in the middle of it, at the end of a log, and when a login is refused."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ClassVar, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from mm2py.client.permit import UNLIMITED
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.class_names import (
    IDENTITY_REPLICATION_POLICY,
    MIRROR_HEARTBEAT_CONNECTOR,
    MIRROR_SOURCE_CONNECTOR,
)
from mm2py.errors import AuthenticationError, FatalError, Mm2pyError
from mm2py.mirror.producer_ids import MirrorProducer, decode_producer
from mm2py.runtime.tasks.sink_loop import AssignmentListener
from mm2py.runtime.tasks.sink_places import StoredPosition
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.types import ClusterAlias, FlowName, TaskId
from mm2py.types import TopicPartition as Partition
from mm2py_workers import group_consumer
from mm2py_workers.group_consumer import ConfluentConsumer, SourceAnswers
from mm2py_workers.target_senders import TargetSenders
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.broker_state import FakeCluster
from tests.unit.client.client_stage import connected_to
from tests.unit.workers.consumer_fakes import NoSource, Read

PLACE: Final = Partition("orders", 0)
LIST_OFFSETS: Final = 2
METADATA: Final = 3


class Moving:
    """A consumer whose partition goes and comes back while it is asked for more."""

    moves = True
    paused: ClassVar[set[tuple[str, int]]] = set()

    def __init__(self, _values: object) -> None:
        self._assign: Callable[..., None]
        self._revoke: Callable[..., None]

    def subscribe(
        self,
        _topics: list[str],
        on_assign: Callable[..., None],
        on_revoke: Callable[..., None],
        on_lost: Callable[..., None],
    ) -> None:
        del on_lost
        self._assign, self._revoke = on_assign, on_revoke

    def assign(self, _partitions: list[TopicPartition]) -> None: ...

    def pause(self, partitions: list[TopicPartition]) -> None:
        """As in librdkafka: it lasts until ``resume``, also while another member has the partition."""
        self.paused.update((it.topic, it.partition) for it in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self.paused.difference_update((it.topic, it.partition) for it in partitions)

    def poll(self, _timeout_s: float) -> Read:
        return read(5)

    def consume(self, _most: int, timeout: float) -> list[Read]:
        assert not timeout
        if not self.moves:
            return [read(6)]
        places = [TopicPartition(*PLACE)]
        self._revoke(self, places)
        self._assign(self, places)
        return [read(3), read(4), read(5)]


class Listener(AssignmentListener):
    def assigned(self, partitions: Collection[Partition]) -> None: ...

    def revoked(self, partitions: Collection[Partition]) -> None: ...

    def lost(self, partitions: Collection[Partition]) -> None: ...


def read(offset: int) -> Read:
    return Read(PLACE, offset)


def end(offset: int) -> Read:
    return Read(PLACE, offset, KafkaError._PARTITION_EOF)


class Scripted(Moving):
    """A consumer that returns what the test has put into ``script``: a poll each, a function is called first."""

    script: ClassVar[list[Sequence[Read | Callable[["Scripted"], None]]]] = []

    def poll(self, _timeout_s: float) -> Read | None:  # type: ignore[override]
        self._now: list[Read] = []
        if not self.script:
            return None
        for step in self.script.pop(0):
            if isinstance(step, Read):
                self._now.append(step)
            else:
                step(self)
        return self._now.pop(0) if self._now else None

    def consume(self, _most: int, timeout: float) -> list[Read]:
        assert not timeout
        return self._now

    def seek(self, _where: TopicPartition) -> None: ...

    def come(self) -> None:
        self._assign(self, [TopicPartition(*PLACE)])

    def revoke(self) -> None:
        self._revoke(self, [TopicPartition(*PLACE)])


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ConfluentConsumer:
    monkeypatch.setattr(group_consumer, "Consumer", Scripted)
    monkeypatch.setattr(Scripted, "script", [])
    monkeypatch.setattr(Moving, "paused", set[tuple[str, int]]())
    consumer = ConfluentConsumer({}, 10, Listener(), source=NoSource())
    consumer.subscribe(["orders"])
    return consumer


def test_the_end_of_a_log_is_told_once_with_records_before_it(scripted: ConfluentConsumer) -> None:
    Scripted.script += [[end(0)], [read(5), read(6), end(9)], [end(11)], []]
    assert scripted.poll(0.0) == []
    assert scripted.reached() == {}, "an empty log needs no position"
    assert [it.offset for it in scripted.poll(0.0)] == [5, 6]
    assert scripted.reached() == {PLACE: 9}
    assert scripted.poll(0.0) == []
    assert scripted.reached() == {PLACE: 11}
    assert scripted.poll(0.0) == []
    assert scripted.reached() == {}
    Scripted.script += [[read(5), end(6), read(6)], [end(7)], [read(7), end(8)]]
    assert [it.offset for it in scripted.poll(1)] == [5, 6]
    assert scripted.reached() == {}, "a record behind the end was returned"
    assert (scripted.poll(1), scripted.reached()) == ([], {PLACE: 7})
    assert [it.offset for it in scripted.poll(1)] == [7]
    assert scripted.reached() == {PLACE: 8}


def test_the_end_of_a_partition_gone_or_read_again_is_not_told(scripted: ConfluentConsumer) -> None:
    Scripted.script += [[end(9)], [Scripted.revoke], [end(9)]]
    scripted.poll(0.0)
    scripted.poll(0.0)
    assert scripted.reached() == {}
    scripted.poll(0.0)
    scripted.seek(PLACE, 3)
    assert scripted.reached() == {}


@pytest.mark.parametrize(
    ("mechanism", "waits", "fails"),
    [("GSSAPI", True, False), ("GSSAPI", False, True), ("PLAIN", True, True)],
)
def test_a_login_that_is_refused_fails_but_where_a_ticket_is_waited_for(
    scripted: ConfluentConsumer,
    monkeypatch: pytest.MonkeyPatch,
    mechanism: str,
    waits: bool,
    fails: bool,
) -> None:
    del scripted

    def has_kerberos(_values: object) -> None: ...

    monkeypatch.setattr(group_consumer, "check_kerberos", has_kerberos)
    given = {"sasl.mechanism": mechanism}
    consumer = ConfluentConsumer(given, 10, Listener(), source=NoSource(), waits_for_ticket=waits)
    refused = Read(PLACE, 0, KafkaError._AUTHENTICATION)
    Scripted.script += [[refused, read(5)]]
    if fails:
        with pytest.raises(AuthenticationError, match="refused the login"):
            consumer.messages(0.0)
    else:
        assert [it.offset() for it in consumer.messages(0.0)] == [5]


def test_a_header_that_the_library_cannot_read_is_named_with_its_record(
    scripted: ConfluentConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_it: Read) -> None:
        raise SystemError

    monkeypatch.setattr(Read, "headers", fails)
    Scripted.script += [[read(7)]]
    with pytest.raises(FatalError, match="orders-0 offset 7: the key of a header is no UTF-8"):
        scripted.poll(0.0)


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, 3])
def test_a_commit_that_all_partitions_refuse_is_no_commit_to_repeat(
    scripted: ConfluentConsumer, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuses(_it: Scripted, **_given: object) -> None:
        raise KafkaException(KafkaError(code))

    monkeypatch.setattr(Scripted, "commit", refuses, raising=False)
    assert scripted.commit({PLACE: 3}, {}).keys() == {PLACE}


INCONSISTENT_TOPIC_ID: Final = 103
HANDSHAKE: Final = "sasl_ssl://h:9093/1: SASL PLAIN mechanism handshake failed: "


@pytest.mark.parametrize(
    ("code", "text", "ends"),
    [
        (KafkaError._MAX_POLL_EXCEEDED, "exceeded by 316ms", False),
        (KafkaError.UNKNOWN, "Fetch from broker 1 failed: Unknown broker error", False),
        (KafkaError.KAFKA_STORAGE_ERROR, "Disk error", False),
        (KafkaError._UNKNOWN_PARTITION, "desired partition is no longer available", False),
        (INCONSISTENT_TOPIC_ID, "The log's topic ID did not match", False),
        (KafkaError._AUTHENTICATION, HANDSHAKE + "Local: Broker transport failure: ...", False),
        (KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: no route", False),
        (KafkaError._AUTHENTICATION, HANDSHAKE + "Broker: Unsupported SASL mechanism", True),
        (KafkaError._AUTHENTICATION, "SASL authentication error: Invalid username", True),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "not allowed", True),
        (KafkaError.INVALID_MSG, "corrupt", True),
    ],
)
def test_what_passes_as_in_java_does_not_end_a_consumer(
    scripted: ConfluentConsumer, code: int, text: str, ends: bool
) -> None:
    Scripted.script += [[Read(PLACE, 0, code, text), read(5)]]
    if ends:
        with pytest.raises(Mm2pyError, match=text.rsplit(": ", maxsplit=1)[-1]):
            scripted.messages(0.0)
    else:
        assert [it.offset() for it in scripted.messages(0.0)] == [5]


def test_a_topic_that_may_not_be_read_is_named_until_it_is_read_and_others_go_on(
    scripted: ConfluentConsumer,
) -> None:
    other = Partition("secret", 1)
    denied = Read(other, 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    Scripted.script += [[denied, read(5)], [Read(other, 3, KafkaError._PARTITION_EOF)]]
    assert [it.offset for it in scripted.poll(0.0)] == [5]
    assert list(scripted.refused()) == ["secret"]
    assert "grant the mirror's principal READ" in scripted.refused()["secret"]
    assert Scripted.paused == set(), "it was paused and resumed, to be asked for anew"
    scripted.poll(0.0)
    assert scripted.refused() == {}


def test_a_topic_that_may_not_be_seen_is_named_until_it_may_be(scripted: ConfluentConsumer) -> None:
    source = NoSource()
    del scripted
    consumer = ConfluentConsumer({}, 10, Listener(), source=source)
    Scripted.script += [[Read(Partition("secret", -1), 0, KafkaError.TOPIC_AUTHORIZATION_FAILED)]]
    assert consumer.poll(0.0) == []
    source.hides = {"secret"}
    assert list(consumer.refused()) == ["secret"]
    source.hides = ()
    assert consumer.refused() == {}


@pytest.mark.parametrize(("moves", "offsets"), [(True, [3, 4, 5]), (False, [5, 6])])
def test_a_record_of_before_a_partition_went_is_not_returned_in_front_of_what_is_read_again(
    monkeypatch: pytest.MonkeyPatch, moves: bool, offsets: list[int]
) -> None:
    monkeypatch.setattr(group_consumer, "Consumer", Moving)
    monkeypatch.setattr(Moving, "moves", moves)
    consumer = ConfluentConsumer({}, 10, Listener(), source=NoSource())
    consumer.subscribe(["orders"])
    assert [it.offset for it in consumer.poll(0.0)] == offsets


def test_a_partition_that_was_paused_is_read_when_it_returns(scripted: ConfluentConsumer) -> None:
    Scripted.script += [[Scripted.come], [read(5)], [Scripted.revoke], [Scripted.come], []]
    scripted.poll(0.0)
    scripted.poll(0.0)
    scripted.pause([PLACE])
    assert Scripted.paused == {PLACE}
    scripted.poll(0.0)
    scripted.poll(0.0)
    assert Scripted.paused == set()


class Coordinator(Moving):
    """Keeps what is committed, as the group's coordinator."""

    offsets: ClassVar[list[TopicPartition]] = []

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> list[TopicPartition]:
        assert not asynchronous
        Coordinator.offsets[:] = offsets
        return offsets

    def committed(self, _partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout
        return self.offsets


def test_a_position_that_a_group_sync_has_copied_to_another_cluster_names_no_topic_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_consumer, "Consumer", Coordinator)
    here = ConfluentConsumer({}, 10, Listener(), source=NoSource())
    there = ConfluentConsumer({}, 10, Listener(), source=NoSource("there"))
    topic_id = bytes(range(16))
    here.commit({PLACE: 7}, {PLACE: topic_id})
    assert here.committed([PLACE]) == {PLACE: StoredPosition(7, topic_id)}
    assert there.committed([PLACE]) == {PLACE: StoredPosition(7)}


@pytest.mark.parametrize(
    "text", [None, "", "by hand", "topic-id=AAECAwQFBgcICQoLDA0ODw", "topic-id=@here"]
)
def test_metadata_of_other_programs_names_no_topic(text: str | None) -> None:
    assert StoredPosition.committed_with(7, text, "here") == StoredPosition(7)


# -- whose producer ids are published


FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
SAME = {"replication.policy.class": IDENTITY_REPLICATION_POLICY}


def ignore(*_: object) -> None:
    """The test starts a Sender, and sends nothing."""


def spec(connector: str, **config: str) -> TaskSpec:
    props = {"connector.class": connector, "source.cluster.alias": "A", **config}
    return TaskSpec(
        id=TaskId("Some", 3),
        connector_config=props,
        config={**props, "task.source.cluster.id": "id-of-a"},
    )


async def test_a_broker_that_is_silent_is_replaced_by_another_while_the_thread_waits() -> None:
    shared = FakeCluster()
    async with (
        FakeBroker(cluster=shared, topics={"orders": 1}) as one,
        FakeBroker(node_id=2, cluster=shared),
        connected_to(one) as cluster,
    ):
        answers = SourceAnswers(cluster)
        known = await asyncio.to_thread(answers.topic_ids, ("orders",))
        one.hold(METADATA)
        assert await asyncio.to_thread(answers.topic_ids, ("orders",)) == known


async def test_a_broker_that_does_not_answer_keeps_no_end_of_another_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_consumer, "ENDS_S", 0.2)
    frozen, live = Partition("orders", 0), Partition("orders", 1)
    shared = FakeCluster()
    async with (
        FakeBroker(cluster=shared, topics={"orders": 2}) as one,
        FakeBroker(node_id=2, cluster=shared),
        connected_to(one) as cluster,
    ):
        shared.move_leader(live, 2)
        answers = SourceAnswers(cluster)

        async def told(*places: Partition) -> dict[Partition, int]:
            async with asyncio.timeout(90):
                while True:
                    ends = await asyncio.to_thread(
                        answers.log_ends, (frozen, live), read_committed=False
                    )
                    if set(places) <= ends.keys():
                        return dict(ends)

        assert await told(frozen, live) == {frozen: 0, live: 0}
        one.hold(LIST_OFFSETS)
        assert await told(live) == {live: 0}


@asynccontextmanager
async def published(task: TaskSpec) -> AsyncGenerator[list[MirrorProducer]]:
    """Start the Sender of a task; what is in the topic of ids then."""
    topic = MemoryTopic("mm2py-producers.internal")
    async with FakeBroker(topics={"t": 1}) as broker:
        props = {"bootstrap.servers": f"127.0.0.1:{broker.port}"}
        store = ProducerIdStore(MemoryTable(topic))
        senders = TargetSenders(props, FLOW, store, clock=SYSTEM_CLOCK, permit=UNLIMITED)
        sender = senders.sender(task)(ignore, ignore, ignore, ignore, None)
        await sender.start()
        try:
            yield [decode_producer(it.key, it.value or b"") for it in topic.records]
        finally:
            await sender.close()
            await store.close()


@pytest.mark.parametrize(
    "allowed", [{}, {"loop.suppression": "off"}], ids=["", "cannot drop loops"]
)
async def test_the_id_of_a_mirror_that_keeps_names_is_published_at_its_start(
    allowed: dict[str, str],
) -> None:
    """The connector's config says what is wanted; the task's what its source allows."""
    task = spec(MIRROR_SOURCE_CONNECTOR, **SAME)
    async with published(replace(task, config={**task.config, **allowed})) as (found,):
        assert found.producer_id > 0
        assert (found.flow, found.source, found.source_cluster) == ("A->B", "A", "id-of-a")
        assert (found.task, bool(found.worker)) == ("Some-3", True)


@pytest.mark.parametrize(
    "task",
    [
        spec(MIRROR_SOURCE_CONNECTOR),
        spec(MIRROR_SOURCE_CONNECTOR, **SAME, **{"loop.suppression": "off"}),
        spec(MIRROR_HEARTBEAT_CONNECTOR, **SAME),
        spec("a.third.party.Connector", **SAME),
    ],
)
async def test_other_ids_are_not_published(task: TaskSpec) -> None:
    async with published(task) as found:
        assert found == []
