"""A table over an internal topic: how the topic is created, opened as a whole, followed, and written."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf

import pytest

from mm2py.client.connect.admin import TopicDescription
from mm2py.client.fetch.log_reader import LogReader
from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.record_writer import RecordWriter
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ProducerSettings
from mm2py.errors import (
    ConfigError,
    ConnectionFailedError,
    FatalServerError,
    RequestTimedOutError,
    RetriableError,
    ServerError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol.acls import AclOperation
from mm2py.protocol.columns import partition_of
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.fetch import FETCH_KEY
from mm2py.protocol.produce import PRODUCE_KEY
from mm2py.protocol.records import Record, decode_batches
from mm2py.protocol.topics import NewTopic
from mm2py.storage.internal_topics import InternalTopic, InternalTopics
from mm2py.storage.privileged_writer import KafkaPrivilegedWriter
from mm2py.storage.table import KafkaTable
from mm2py.testing.waiting import eventually
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from mm2py_workers.flow_target import FlowTarget
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.client_stage import cluster_of, connected_to
from tests.unit.runtime.runtime_fakes import EagerClock

PARTITIONS = 5
INIT_PRODUCER_ID = 22


@dataclass
class Rig:
    broker: FakeBroker
    writer: RecordWriter
    new_reader: Callable[[], LogReader]
    table: KafkaTable
    restored: asyncio.Event
    seen: list[tuple[int, bytes | None, bytes | None]] = field(
        default_factory=list[tuple[int, bytes | None, bytes | None]]
    )

    async def start(self) -> None:
        await self.table.start(self.handle)

    def handle(self, partition: int, record: Record) -> None:
        self.seen.append((partition, record.key, record.value))

    def batches(self, partition: int) -> list[list[bytes | None]]:
        return [
            [record.key for record in batch.records]
            for data in self.broker.log(TopicPartition("t", partition))
            for batch in decode_batches(data)
        ]


@asynccontextmanager
async def rig(
    *,
    permit: Permit = UNLIMITED,
    follow: bool = True,
    started: bool = True,
    only_reads: bool = False,
) -> AsyncGenerator[Rig]:
    async with (
        FakeBroker(topics={"t": PARTITIONS}) as broker,
        rig_on(broker, permit=permit, follow=follow, only_reads=only_reads) as it,
    ):
        if started:
            await it.start()
        yield it


@asynccontextmanager
async def rig_on(
    broker: FakeBroker,
    *,
    permit: Permit = UNLIMITED,
    follow: bool = True,
    only_reads: bool = False,
) -> AsyncGenerator[Rig]:
    async with connected_to(broker) as cluster:
        producer = ProducerSettings(connection=cluster.settings)
        writer = RecordWriter(cluster, producer, clock=SYSTEM_CLOCK, permit=permit)

        def reader() -> LogReader:
            return LogReader(cluster, "t", clock=SYSTEM_CLOCK)

        restored = asyncio.Event()

        async def restore() -> None:
            restored.set()

        async def partitions() -> int:
            return PARTITIONS

        table = KafkaTable(
            "t",
            prepare=partitions,
            writer=writer,
            reader=reader,
            follow=follow,
            restore=restore,
            only_reads=only_reads,
        )
        try:
            yield Rig(broker, writer, reader, table, restored)
        finally:
            await table.stop()
            await writer.close()


@pytest.mark.parametrize("follow", [True, False])
async def test_records_before_and_after_the_start_are_handled(*, follow: bool) -> None:
    async with rig(follow=follow) as it:
        await it.table.post([(b"old", b"1")])
        await it.table.stop()
        await it.start()
        await it.table.post([(b"new", b"2")])
        await it.table.read_to_end(10)
        assert it.seen[-2:] == [
            (partition_of(b"old", PARTITIONS), b"old", b"1"),
            (partition_of(b"new", PARTITIONS), b"new", b"2"),
        ]


async def test_a_change_of_many_keys_is_one_batch_per_partition() -> None:
    async with rig() as it:
        keys = [b"key%d" % n for n in range(50)]
        await it.table.post([(key, b"v") for key in keys])
        for partition in range(PARTITIONS):
            own = [key for key in keys if partition_of(key, PARTITIONS) == partition]
            assert it.batches(partition) == [own]


async def test_a_table_neither_reads_nor_writes_before_a_start_that_may_be_repeated() -> None:
    class Failing:
        calls = 0

        async def __call__(self) -> int:
            self.calls += 1
            if self.calls == 1:
                raise ConnectionFailedError("away")
            return PARTITIONS

    async with rig(started=False) as it:
        prepare: Callable[[], Awaitable[int]] = Failing()
        table = KafkaTable("t", prepare=prepare, writer=it.writer, reader=it.new_reader)
        with pytest.raises(ConnectionFailedError):
            await table.start(it.handle)
        with pytest.raises(ConnectionFailedError, match="topic t is not open"):
            await table.read_to_end(1)
        with pytest.raises(ConnectionFailedError, match="topic t is not open"):
            await table.post([(b"k", None)])
        await table.start(it.handle)
        await table.post([(b"k", b"v")])
        await table.stop()
        await table.stop()


async def test_who_only_reads_needs_no_right_to_write_and_may_write_once_it_is_given() -> None:
    async with rig(only_reads=True) as it:
        assert not it.broker.count(INIT_PRODUCER_ID)
        it.broker.fail_next(INIT_PRODUCER_ID, codes.CLUSTER_AUTHORIZATION_FAILED)
        key, later = b"k", b"l"
        with pytest.raises(FatalServerError):
            await it.table.post([(key, b"refused")])
        posts = [it.table.post([(name, b"v")]) for name in (key, later)]
        await asyncio.gather(*posts)
        assert [it.batches(partition_of(name, PARTITIONS)) for name in (key, later)] == [
            [[key]],
            [[later]],
        ]
        assert it.broker.count(INIT_PRODUCER_ID) == 2


async def test_a_read_that_takes_too_long_says_so() -> None:
    async with rig() as it:
        it.broker.hold(2)  # ListOffsets
        with pytest.raises(RequestTimedOutError, match="was not read to its end"):
            await it.table.read_to_end(0.05)


async def test_a_cancelled_post_is_taken_back_before_what_follows() -> None:
    async with rig() as it:
        hold = it.broker.hold(PRODUCE_KEY)
        first = it.table.post([(b"k", b"first")])
        await hold.arrived.wait()
        first.cancel()
        await asyncio.sleep(0)
        hold.release()
        await it.table.post([(b"k", b"second")])
        await it.table.read_to_end(10)
        assert it.seen[-1][2] == b"second"


@pytest.mark.parametrize("is_taken_back", [True, False])
async def test_invariant_6_a_post_that_is_taken_back_or_waits_long_has_the_topic_looked_for(
    monkeypatch: pytest.MonkeyPatch, *, is_taken_back: bool
) -> None:
    monkeypatch.setattr("mm2py.storage.table.WAITS_S", 600)
    async with rig() as it:
        await it.table.post([(b"k", b"first")])
        assert not it.restored.is_set()
        if not is_taken_back:
            monkeypatch.setattr("mm2py.storage.table.WAITS_S", 0.01)
        hold = it.broker.hold(PRODUCE_KEY)
        post = it.table.post([(b"k", b"second")])
        await hold.arrived.wait()
        if is_taken_back:
            post.cancel()
        await asyncio.wait_for(it.restored.wait(), 10)
        hold.release()
        if not is_taken_back:
            await post


async def test_invariant_6_a_topic_that_is_gone_does_not_wait_for_a_post_if_it_can_be_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mm2py.client.fetch.log_reader.LEADER_CHANGE_S", 0)
    async with rig(started=False) as it:

        def handle_again(_partition: int, _records: Sequence[Record]) -> None:
            """Its owner could write the topic again."""

        for again in (None, handle_again):
            await it.table.start(it.handle, again)
            assert not it.restored.is_set()
            it.broker.fail_next(FETCH_KEY, codes.UNKNOWN_TOPIC_OR_PARTITION)
            await it.table.post([(b"k", b"v")])
            await it.table.read_to_end(10)
        await asyncio.wait_for(it.restored.wait(), 10)


async def test_a_stop_fails_what_is_not_acknowledged() -> None:
    async with rig() as it:
        hold = it.broker.hold(PRODUCE_KEY)
        answer = it.table.post([(b"k", b"v")])
        await hold.arrived.wait()
        await it.table.stop()
        with pytest.raises(ConnectionFailedError):
            await answer
        hold.release()


async def test_what_a_lost_member_had_posted_is_not_written_behind_its_successors_change() -> None:
    permit = Permit(SYSTEM_CLOCK)
    permit.grant(SYSTEM_CLOCK.monotonic() + 600)
    async with rig(permit=permit) as it:
        permit.revoke()
        lost = it.table.post([(b"position", b"100")])
        async with rig_on(it.broker) as successor:  # another worker's table
            await successor.start()
            await successor.table.post([(b"position", b"500")])
        permit.abandon()
        permit.grant(SYSTEM_CLOCK.monotonic() + 600)
        with pytest.raises(RetriableError, match="membership"):
            await lost
        await it.table.read_to_end(10)
        assert [value for _, _, value in it.seen] == [b"500"]


async def test_a_crash_of_the_follower_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def crash(_partition: int, _record: Record) -> None:
        raise RuntimeError("bug")

    async with rig(started=False) as it:
        await it.table.start(crash)
        await it.table.post([(b"k", b"v")])
        await eventually(lambda: "topic is followed no longer topic=t" in caplog.text)
        with pytest.raises(ConnectionFailedError):
            await it.table.read_to_end(1)


OFFSETS = InternalTopic(
    name="mm2-offsets.A.internal",
    purpose="offset.storage",
    partitions=25,
    replication_factor=3,
    configs={"min.insync.replicas": "2", "cleanup.policy": "delete"},
)


class FakeAdmin:
    """Topics in memory."""

    def __init__(
        self, policy: str | None = "compact", partitions: int = 0, refusal: int = 0
    ) -> None:
        self.policy = policy
        self.existing = partitions
        self.created: list[NewTopic] = []
        self.refusal = codes.server_error(refusal) if refusal else None
        self.blind = False
        self.refused: Mapping[str, ServerError] = {}
        self.requests = 0
        self.unreadable: ServerError | None = None
        self.topic_id = bytes(16)
        self.described = 0
        self.denied: ServerError | None = None
        self.hides: ServerError | None = None

    async def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, ServerError | None]:
        self.created += topics
        self.requests += 1
        if self.refusal is None or self.refusal.code == codes.TOPIC_ALREADY_EXISTS:
            self.existing = topics[0].partitions
        return {topic.name: self.refused.get(topic.name, self.refusal) for topic in topics}

    async def describe_topics(
        self, names: Sequence[str], *, rights: Sequence[AclOperation] = ()
    ) -> Mapping[str, TopicDescription]:
        self.described += 1
        if self.blind or not self.existing:
            return {}
        denied, partitions = self.denied if rights else None, tuple(range(self.existing))
        return {
            name: TopicDescription(name, self.topic_id, partitions, False, self.hides, denied)
            for name in names
            if name not in self.refused
        }

    async def describe_topic_configs(
        self, names: Sequence[str]
    ) -> Mapping[str, Sequence[ConfigEntry]]:
        if self.unreadable is not None:
            raise self.unreadable
        if self.policy is None:
            return {}
        return {name: (ConfigEntry("cleanup.policy", self.policy),) for name in names}


def topics_of(admin: FakeAdmin, *added: InternalTopic) -> InternalTopics:
    topics = InternalTopics(admin, clock=EagerClock())
    for topic in added:
        topics.add(topic)
    return topics


def _ensure(admin: FakeAdmin, topic: InternalTopic) -> int:
    return asyncio.run(topics_of(admin, topic).partitions(topic.name))


async def test_all_that_is_missing_is_made_in_one_request_and_asked_for_once() -> None:
    admin = FakeAdmin()
    names = [f"mm2-{kind}.A.internal" for kind in ("configs", "offsets", "status")]
    made = (
        InternalTopic(name=name, purpose="status.storage", partitions=1, replication_factor=1)
        for name in names
    )
    topics = topics_of(admin, *made)
    assert [await topics.partitions(name) for name in (*names, *names)] == [1] * 6
    assert admin.requests == 1
    assert [topic.name for topic in admin.created] == names


async def test_a_topic_that_cannot_be_used_does_not_keep_the_others_from_being_used() -> None:
    admin = FakeAdmin()
    ledger = InternalTopic(name="ledger", purpose="x", partitions=25, replication_factor=1)
    topics = topics_of(admin, OFFSETS, ledger)
    admin.refused = {"ledger": codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED)}
    assert await topics.partitions(OFFSETS.name) == 25
    with pytest.raises(ConfigError, match="ledger cannot be created"):
        await topics.partitions("ledger")


@pytest.mark.parametrize("right", ["Read", "Create"])
def test_a_missing_right_is_named_with_the_command_that_grants_it(right: str) -> None:
    denied = codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED, f"u may not {right}")
    denied.remedy = f"kafka-acls.sh --add --operation {right}"
    admin = FakeAdmin(partitions=0 if right == "Create" else 25)
    if right == "Create":
        admin.refusal = denied
    else:
        admin.denied, admin.hides = denied, codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ConfigError, match=f"u may not {right}") as refused:
        _ensure(admin, OFFSETS)
    assert denied.remedy in refused.value.remedy


def test_a_missing_topic_is_created_compacted_with_the_users_settings() -> None:
    admin = FakeAdmin()
    assert _ensure(admin, OFFSETS) == 25
    (topic,) = admin.created
    assert (topic.partitions, topic.replication_factor) == (25, 3)
    assert topic.configs == {"min.insync.replicas": "2", "cleanup.policy": "compact"}


@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact"])
def test_any_other_cleanup_policy_is_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match="must be exactly compact"):
        _ensure(FakeAdmin(policy, partitions=25), OFFSETS)


@pytest.mark.parametrize(
    ("refusal", "error", "said"),
    [
        (codes.INVALID_REPLICATION_FACTOR, RetriableError, r"offset\.storage\.replication\.factor"),
        (codes.TOPIC_AUTHORIZATION_FAILED, ConfigError, "create it by hand"),
    ],
)
def test_too_few_brokers_are_waited_for_and_another_refusal_says_what_to_do(
    refusal: int, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        _ensure(FakeAdmin(refusal=refusal), OFFSETS)


def test_a_topic_created_by_another_worker_meanwhile_is_fine() -> None:
    assert _ensure(FakeAdmin(refusal=codes.TOPIC_ALREADY_EXISTS), OFFSETS) == 25


def test_an_unreadable_policy_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    admin = FakeAdmin(partitions=25)
    admin.unreadable = codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED)
    assert _ensure(admin, OFFSETS) == 25
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("name", ["mm2-configs.A.internal", "mm2py-flows.A.internal"])
def test_a_topic_whose_order_counts_must_have_one_partition(name: str) -> None:
    """A change is one batch of the config topic, or of the flow's changes."""
    topic = InternalTopic(
        name=name, purpose="config.storage", partitions=1, replication_factor=1, ordered=True
    )
    with pytest.raises(ConfigError, match="exactly 1"):
        _ensure(FakeAdmin(partitions=3), topic)


def test_topics_that_are_read_by_offset_or_have_several_writers_must_have_one_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    added: list[InternalTopic] = []

    def add(_topics: InternalTopics, topic: InternalTopic) -> None:
        added.append(topic)

    monkeypatch.setattr(InternalTopics, "add", add)
    topics = {f"{kind}.storage.topic": f"mm2-{kind}" for kind in ("config", "offset", "status")}
    worker = {"bootstrap.servers": "localhost:1", "group.id": "A-mm2", **topics}
    target = FlowTarget(FlowName(ClusterAlias("A"), ClusterAlias("B")), worker, SYSTEM_CLOCK)
    target.tables.offset_map("A", 1)
    assert [(it.name, it.ordered) for it in added] == [
        ("mm2py-backfill.A.internal", True),
        ("mm2py-offset-map.A.internal", True),
    ]


def test_a_topic_that_stays_invisible_is_tried_again_later() -> None:
    admin = FakeAdmin()
    admin.blind = True
    with pytest.raises(RetriableError, match="not visible"):
        _ensure(admin, OFFSETS)


async def test_a_topic_that_was_deleted_is_created_again() -> None:
    admin = FakeAdmin()
    topics = topics_of(admin, OFFSETS)
    await topics.partitions(OFFSETS.name)
    await topics.restore(OFFSETS.name)  # it is there
    admin.existing = 0
    await topics.restore(OFFSETS.name)
    assert [topic.name for topic in admin.created] == [OFFSETS.name] * 2


async def test_a_topic_that_is_gone_or_gets_another_policy_while_it_is_used_is_named() -> None:
    admin = FakeAdmin()
    topics = topics_of(admin, OFFSETS)
    assert await topics.unfit() == {}
    await topics.partitions(OFFSETS.name)
    assert await topics.unfit() == {}
    admin.denied, before = codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED), admin.described
    assert await topics.unfit() == {OFFSETS.name: admin.denied}
    assert admin.described == before + 1, "rights and descriptions are one question"
    admin.policy, admin.denied = "compact,delete", None
    assert "must be exactly compact" in str((await topics.unfit())[OFFSETS.name])
    admin.existing = 0
    assert "was deleted" in str((await topics.unfit())[OFFSETS.name])
    assert len(admin.created) == 2, "tasks that commit in transactions wait for it"
    admin.existing, admin.policy = 25, "compact"
    admin.unreadable = codes.server_error(codes.TOPIC_AUTHORIZATION_FAILED)
    assert [await topics.unfit() for _ in range(2)] == [{}, {}]


@pytest.mark.parametrize(
    ("purpose", "renamable", "named"),
    [
        ("config.storage", True, 1),
        ("offset.storage", True, 1),
        ("status.storage", True, 0),
        ("offset.storage", False, 0),
    ],
)
async def test_configs_and_positions_whose_topic_was_made_again_are_named(
    purpose: str, named: int, *, renamable: bool
) -> None:
    """Workers of before and of after do not agree about what it holds."""
    admin, topic = FakeAdmin(), replace(OFFSETS, purpose=purpose, renamable=renamable)
    admin.topic_id = b"1" * 16
    topics = topics_of(admin, topic)
    await topics.partitions(topic.name)
    admin.topic_id = b"2" * 16
    assert len(await topics.unfit()) == named
    await topics.restore(topic.name)
    assert len(await topics.unfit()) == named


CONFIGS = TopicPartition("mm2-configs.A.internal", 0)


class Leader:
    """A worker that leads, as it believes."""

    def __init__(self, broker: FakeBroker) -> None:
        self.cluster = cluster_of(broker)
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.writer = KafkaPrivilegedWriter(
            self.cluster,
            ProducerSettings(connection=self.cluster.settings),
            "connect-cluster-A-mm2",
            CONFIGS,
            permit=self.permit,
            clock=SYSTEM_CLOCK,
        )

    async def close(self) -> None:
        await self.writer.close()
        await self.cluster.close()


@asynccontextmanager
async def leading() -> AsyncGenerator[tuple[Leader, FakeBroker]]:
    async with FakeBroker(topics={CONFIGS.topic: 1}, versions={0: (3, 11)}) as broker:
        leader = Leader(broker)
        yield leader, broker
        await leader.close()


async def test_each_change_is_one_transaction() -> None:
    async with leading() as (leader, broker):
        with pytest.raises(RetriableError, match="can be safely retried"):
            await leader.writer.write([(b"connector-c", b"{}")])
        await leader.writer.claim()
        await leader.writer.write([(b"task-c-0", b"{}"), (b"commit-c", b"{}")])
        await leader.writer.write([(b"connector-c", b"{}")])
        committed = broker.cluster.transactions.committed
        assert [it.base_offset for it in committed] == [0, 3]
        # The leases of a backfill of 10,000 partitions, say: more than a broker takes in a batch, and no marker between them.
        await leader.writer.write([(b"%d" % number, b"x" * 999) for number in range(2_000)])
        first, *others = committed[2:]
        assert [it.base_offset - first.base_offset for it in others] == [898, 1795]


async def test_a_newer_leader_fences_the_writer_of_the_older_one() -> None:
    async with leading() as (older, broker):
        newer = Leader(broker)
        await older.writer.claim()
        await newer.writer.claim()
        with pytest.raises(RetriableError, match="Failed to write to config topic"):
            await older.writer.write([(b"connector-c", b"old")])
        assert not older.writer.claimed
        await newer.writer.write([(b"connector-c", b"new")])
        assert len(broker.cluster.transactions.committed) == 1
        await older.writer.claim()
        await older.writer.write([(b"connector-c", b"again")])
        await newer.close()


async def test_the_right_ends_with_the_membership() -> None:
    async with leading() as (leader, _):
        await leader.writer.claim()
        leader.permit.abandon()
        leader.permit.grant(inf)
        assert not leader.writer.claimed
        with pytest.raises(RetriableError):
            await leader.writer.write([(b"connector-c", b"{}")])


async def test_a_write_ends_as_soon_as_the_membership_is_in_doubt() -> None:
    """The herder waits for it, and only the herder can join again: a write that waited for that would wait for ever."""
    async with leading() as (leader, broker):
        await leader.writer.claim()
        hold = broker.hold(PRODUCE_KEY)
        writing = asyncio.create_task(leader.writer.write([(b"connector-c", b"{}")]))
        await hold.arrived.wait()
        leader.permit.revoke()
        with pytest.raises(RetriableError, match="can be safely"):
            await asyncio.wait_for(writing, 90)
        hold.release()
        assert not leader.writer.claimed


@pytest.mark.parametrize("claims", [True, False])
async def test_nothing_is_begun_while_the_membership_is_in_doubt(claims: bool) -> None:
    async with leading() as (leader, broker):
        await leader.writer.claim()
        leader.permit.revoke()
        work = leader.writer.claim() if claims else leader.writer.write([(b"connector-c", b"{}")])
        with pytest.raises(RetriableError):
            await asyncio.wait_for(work, 90)
        leader.permit.grant(inf)
        await leader.writer.claim()
        await leader.writer.write([(b"connector-c", b"{}")])
        assert len(broker.cluster.transactions.committed) == 1
