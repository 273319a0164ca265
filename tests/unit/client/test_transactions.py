"""Transactions of a producer on a fake broker, by the invariants of ``mm2py.client.send.transactions``; posts of a writer."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from math import inf

import pytest

from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.node import CALM_ANSWERS
from mm2py.client.send.owner import Announce
from mm2py.client.send.record_writer import Post, RecordWriter
from mm2py.client.send.sender import Sender
from mm2py.client.send.transactions import Transactions, check_transactions, fence_producers
from mm2py.clock import SYSTEM_CLOCK, closing
from mm2py.config.clients import ProducerSettings
from mm2py.errors import (
    ConfigError,
    FatalServerError,
    PartitionError,
    ProducerFencedError,
    RetriableError,
    TransactionAbortedError,
    command_in,
)
from mm2py.protocol.error_codes import (
    CONCURRENT_TRANSACTIONS,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from mm2py.protocol.records import NewRecord, decode_batches
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker, Outcome
from tests.unit.client.client_stage import cluster_of, connected_to, to_send

PRODUCE, FIND, INIT, ADD, END = 0, 10, 22, 24, 26
IMPLICIT = {PRODUCE: (3, 12), 18: (0, 4)}
NAME = "A-mm2-c-0"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OFFSETS = TopicPartition("offsets", 0)


class Rig:
    """One transactional producer: data through ``sender``, positions through ``writer``."""

    def __init__(self, broker: FakeBroker, announce: Announce | None = None) -> None:
        self.broker = broker
        self.cluster = cluster_of(broker, default_api_timeout_ms=2_000)
        settings = ProducerSettings(connection=self.cluster.settings)
        self.permit = Permit(SYSTEM_CLOCK, until_s=inf)
        self.broken: list[Exception] = []
        self.landed: list[int] = []
        self.failed: list[Exception] = []
        self.stalled: list[tuple[TopicPartition, Exception | None]] = []
        self.transactions = Transactions(
            self.cluster, NAME, timeout_ms=60_000, clock=SYSTEM_CLOCK, announce=announce,
            permit=self.permit,
        )  # fmt: skip
        self.transactions.on_broken(self.broken.append)
        self.sender = Sender(
            self.cluster,
            settings,
            clock=SYSTEM_CLOCK,
            on_delivered=lambda _s, _t, _b, offset: self.landed.append(offset),
            on_failed=lambda _s, _t, error: self.failed.append(error),
            on_stalled=lambda target, error: self.stalled.append((target, error)),
            permit=self.permit,
            transactions=self.transactions,
        )
        self.writer = RecordWriter(
            self.cluster, settings, clock=SYSTEM_CLOCK, permit=self.permit,
            transactions=self.transactions,
        )  # fmt: skip

    async def start(self) -> None:
        await self.sender.start()
        await self.writer.start()

    def send(self, target: TopicPartition, *values: bytes) -> None:
        source = TopicPartition("s", target.partition)
        self.sender.enqueue(source, target, [to_send(values, stamp=1_000)])

    async def store(self, target: TopicPartition, *values: bytes) -> None:
        """Send a batch, and wait until it is stored."""
        count = len(self.landed)
        self.send(target, *values)
        await eventually(lambda: len(self.landed) > count)

    async def commit(self, position: bytes = b"1") -> None:
        await self.transactions.settle()
        await self.writer.write(OFFSETS, [NewRecord(b"k", position, (), -1)])
        await self.transactions.commit()

    def committed(self) -> Sequence[TopicPartition]:
        return [stored.partition for stored in self.broker.cluster.transactions.committed]

    async def close(self) -> None:
        await self.sender.close()
        await self.transactions.close()
        await self.writer.close()
        await self.cluster.close()


@asynccontextmanager
async def rig(*, implicit: bool = True, started: bool = True) -> AsyncGenerator[Rig]:
    versions = IMPLICIT if implicit else {PRODUCE: (3, 11)}
    async with FakeBroker(topics={"t": 2, "offsets": 1}, versions=versions) as broker:
        if implicit:
            broker.cluster.transactions.features = {"transaction.version": 2}
        async with closing(Rig(broker)) as one:
            if started:
                await one.start()
            yield one


generations = pytest.mark.parametrize("implicit", [False, True], ids=["v1", "v2"])


async def test_1_no_batch_leaves_before_its_partition_was_added() -> None:
    async with rig(implicit=False) as one:
        hold = one.broker.hold(ADD)
        one.send(T0, b"a")
        await hold.arrived.wait()
        assert one.broker.count(PRODUCE) == 0
        hold.release()
        await eventually(lambda: len(one.landed) == 1)
        await one.commit()
        await one.store(T0, b"b")
        assert one.broker.count(ADD) >= 2, "each transaction adds its partitions"


async def test_a_partition_that_may_not_be_added_holds_no_other_up() -> None:
    async with rig(implicit=False) as one:
        one.broker.cluster.transactions.refusals[T1] = TOPIC_AUTHORIZATION_FAILED
        for _ in range(3):  # each transaction adds its partitions
            one.send(T1, b"refused")
            await one.store(T0, b"a")
            await one.commit()
        assert one.committed().count(T0) == 3
        assert T1 not in one.committed()
        assert [it for it, _ in one.stalled] == [T1]
        one.broker.cluster.transactions.refusals.clear()
        await eventually(lambda: len(one.landed) == 6)
        await one.commit()
        assert one.committed().count(T1) == 3


@generations
async def test_2_what_is_refused_for_certain_waits_for_a_later_transaction(implicit: bool) -> None:
    async with rig(implicit=implicit) as one:
        await one.store(T1, b"before")
        await one.commit()
        one.broker.partition(T1).refusal = TOPIC_AUTHORIZATION_FAILED
        one.send(T1, b"1")
        one.send(T1, b"2")
        for _ in range(3):
            await one.store(T0, b"a")
            async with asyncio.timeout(90):
                await one.commit()
        assert (one.committed().count(T0), one.committed().count(T1)) == (3, 1)
        assert [it for it, _ in one.stalled] == [T1]
        one.broker.partition(T1).refusal = 0
        await eventually(lambda: len(one.landed) == 6)
        await one.commit()
        values = [
            record.value
            for stored in one.broker.cluster.transactions.committed
            for batch in decode_batches(memoryview(stored.data))
            for record in batch.records
            if stored.partition == T1
        ]
        assert values == [b"before", b"1", b"2"]
        assert one.sender.buffered_bytes == 0


@generations
async def test_a_topic_that_is_gone_amid_a_transaction_keeps_no_other_partition_from_being_committed(
    implicit: bool,
) -> None:
    async with rig(implicit=implicit) as one:
        one.broker.create_topic("gone")
        gone = TopicPartition("gone", 0)
        await one.store(gone, b"before")
        await one.commit()
        hold = one.broker.hold(PRODUCE)
        one.send(gone, b"1")
        await hold.arrived.wait()
        del one.broker.cluster.topics["gone"]
        hold.release()
        for _ in range(2):
            await one.store(T0, b"a")
            async with asyncio.timeout(90):
                await one.commit()
        assert one.committed().count(T0) == 2
        assert one.broken == []
        one.broker.create_topic("gone")
        await eventually(lambda: len(one.landed) == 4)


@generations
async def test_2_a_commit_waits_for_every_batch_that_left(implicit: bool) -> None:
    async with rig(implicit=implicit) as one:
        await one.store(T0, b"a")
        hold = one.broker.hold(PRODUCE)
        one.send(T1, b"b")
        await hold.arrived.wait()
        commit = asyncio.ensure_future(one.commit())
        one.send(T0, b"next")
        await asyncio.sleep(0.02)
        assert one.broker.count(END) == 0
        hold.release()
        await commit
        assert sorted(one.committed()) == sorted([T0, T1, OFFSETS])
        await eventually(lambda: len(one.landed) == 3)
        await one.commit()
        assert one.committed().count(T0) == 2


async def test_3_positions_leave_behind_all_data() -> None:
    async with rig() as one:
        writing = asyncio.ensure_future(one.writer.write(OFFSETS, [NewRecord(b"k", b"1", (), -1)]))
        await one.store(T0, b"a")
        assert not writing.done()
        await one.transactions.settle()
        await writing
        await one.transactions.commit()
        assert one.committed() == [T0, OFFSETS]


@generations
async def test_4_a_fenced_producer_writes_and_commits_nothing_more(implicit: bool) -> None:
    async with rig(implicit=implicit) as one:
        await one.store(T0, b"a")
        newer = Rig(one.broker)
        await newer.start()
        one.send(T0, b"b")
        with pytest.raises(ProducerFencedError, match=NAME):
            await one.commit()
        assert one.transactions.broken
        assert [type(error) for error in one.broken] == [ProducerFencedError]
        before = one.broker.count(PRODUCE)
        one.send(T1, b"c")
        await newer.store(T0, b"again")
        await newer.commit()
        assert one.broker.count(PRODUCE) == before + 2
        assert one.committed() == [T0, OFFSETS]
        await newer.close()


@pytest.mark.parametrize(
    ("implicit", "error", "text"),
    [
        (True, TransactionAbortedError, "copied again"),
        (False, ProducerFencedError, "or its coordinator timed the transaction out"),
    ],
)
async def test_our_own_time_out_is_told_as_far_as_the_coordinator_tells_it_from_fencing(
    implicit: bool, error: type[Exception], text: str
) -> None:
    async with rig(implicit=implicit) as one:
        await one.store(T0, b"a")
        one.broker.cluster.transactions.forgets_epochs = not implicit
        one.broker.cluster.transactions.time_out(NAME)
        one.send(T0, b"b")
        with pytest.raises(error, match=text):
            await one.commit()
        assert one.committed() == []


@generations
@pytest.mark.parametrize("lost", ["disconnect", "disconnect_after_apply"])
async def test_5_a_commit_of_unknown_outcome_is_repeated(implicit: bool, lost: Outcome) -> None:
    async with rig(implicit=implicit) as one:
        await one.store(T0, b"a")
        one.broker.fail_next(END, lost)
        await one.commit()
        await one.store(T0, b"b")
        await one.commit()
        assert one.committed() == [T0, OFFSETS, T0, OFFSETS]


async def test_6_nothing_is_committed_without_the_permit() -> None:
    async with rig() as one:
        await one.store(T0, b"a")
        await one.transactions.settle()
        await one.writer.write(OFFSETS, [NewRecord(b"k", b"1", (), -1)])
        one.permit.revoke()
        commit = asyncio.ensure_future(one.transactions.commit())
        await asyncio.sleep(0.02)
        assert one.broker.count(END) == 0
        one.permit.grant(inf)
        await commit
        assert one.committed() == [T0, OFFSETS]


async def test_a_coordinator_that_moves_is_found_again() -> None:
    async with rig() as one, FakeBroker(node_id=2, cluster=one.broker.cluster, versions=IMPLICIT):
        await one.store(T0, b"a")
        one.broker.cluster.transactions.coordinator = 2
        await one.commit()
        assert one.committed() == [T0, OFFSETS]
        one.broker.cluster.transactions.coordinator = 1


async def test_a_missing_grant_is_named() -> None:
    async with rig(started=False) as one:
        one.broker.fail_next(INIT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(FatalServerError, match=f"TransactionalId {NAME}") as refused:
            await one.start()
        command = command_in(str(refused.value))
        assert command.startswith("kafka-acls.sh --bootstrap-server ")
        assert command.endswith(f"--operation Write --operation Describe --transactional-id {NAME}")
        one.broker.fail_next(FIND, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(ConfigError, match="grant the mirror's user Write and Describe"):
            await check_transactions(one.cluster, "connect-cluster-A-mm2")


async def test_brokers_before_2_5_are_refused() -> None:
    async with FakeBroker(versions={INIT: (0, 2)}) as broker:
        one = Rig(broker)
        with pytest.raises(ConfigError, match=r"brokers of Kafka 2\.5 or newer"):
            await check_transactions(one.cluster, "x")
        await one.close()


async def test_an_orderly_end_aborts_what_is_open() -> None:
    async with rig() as one:
        await one.store(T0, b"a")
        await one.close()
        assert [it.partition for it in one.broker.cluster.transactions.aborted] == [T0]


async def test_producers_are_fenced_by_name() -> None:
    async with rig() as one:
        await one.store(T0, b"a")
        other = Rig(one.broker)
        await fence_producers(other.cluster, [NAME, "x"], clock=SYSTEM_CLOCK, timeout_ms=1_000)
        await other.close()
        with pytest.raises(ProducerFencedError):
            await one.commit()
        assert one.committed() == []


async def test_none_is_fenced_after_an_error_of_another_and_none_leaves_a_watcher() -> None:
    """The round is over: tasks of another leader may have the ids by then."""
    watchers = UNLIMITED._watchers  # pyright: ignore[reportPrivateUsage]
    async with rig() as one:
        await one.store(T0, b"a")
        clock, before = FakeClock(), len(watchers)
        one.broker.fail_next(INIT, CONCURRENT_TRANSACTIONS)
        one.broker.fail_next(INIT, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(FatalServerError):
            await fence_producers(one.cluster, [NAME, "x", "y"], clock=clock, timeout_ms=1_000)
        assert (clock.sleepers, len(watchers)) == (0, before)
        await clock.advance(10)
        await one.commit()
        assert one.committed() == [T0, OFFSETS]


async def test_an_id_is_announced_before_it_is_used_also_the_one_that_follows_the_last_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announced: list[int] = []
    refusals = [RetriableError("the topic is away")]

    async def announce(producer_id: int) -> None:
        if refusals:
            raise refusals.pop()
        announced.append(producer_id)

    async with FakeBroker(topics={"t": 1, "offsets": 1}, versions=IMPLICIT) as broker:
        broker.cluster.transactions.features = {"transaction.version": 2}
        one = Rig(broker, announce)
        with pytest.raises(RetriableError):
            await one.transactions.start()
        assert one.transactions.producer_id == -1
        await one.start()
        first = one.transactions.producer_id
        one.send(T0, b"a")
        await eventually(lambda: one.landed == [0])

        def following(_name: str) -> tuple[int, int]:
            return first + 50, 0

        monkeypatch.setattr(broker.cluster.transactions, "current", following)
        refusals.append(RetriableError("the topic is away again"))
        await one.commit()
        assert announced == [first, first + 50]
        assert one.transactions.producer_id == first + 50
        assert one.broken == []
        await one.close()


async def test_one_request_is_in_flight_until_answers_come_without_a_throttle() -> None:
    async with rig() as it:
        await it.store(T0, b"a")
        await it.store(T1, b"a")
        leader = await it.cluster.leader(T0)
        connection = await it.cluster.connection(leader.node_id, "produce")
        for throttle_ms, most in ((5, 1), (0, 2)):
            it.broker.cluster.produce_throttle_ms = throttle_ms
            for _ in range(CALM_ANSWERS):
                await it.store(T0, b"b")
            hold = it.broker.hold(PRODUCE)
            it.send(T0, b"c")
            await hold.arrived.wait()
            count = len(it.landed)
            it.send(T1, b"c")
            if most == 1:
                for _ in range(50):
                    await asyncio.sleep(0)
                assert connection.in_flight == 1
            else:
                await eventually(lambda: connection.in_flight == 2)
            hold.release()
            await eventually(lambda: len(it.landed) == count + 2)  # noqa: B023


# -- each post is answered once, whole, in order, whatever becomes of the batches around it


TP = TopicPartition("configs", 0)
METADATA = 3


class WriterRig:
    def __init__(self, broker: FakeBroker, writer: RecordWriter) -> None:
        self.broker, self.writer = broker, writer
        self.answers: dict[str, list[int | Exception]] = {}

    def post(self, name: str, records: int = 1, value: bytes = b"v") -> Post:
        self.answers[name] = []
        batch = [NewRecord(f"{name}-{n}".encode(), value, (), -1) for n in range(records)]
        return self.writer.post(TP, batch, self.answers[name].append)

    def stored(self) -> list[str]:
        batches = (batch for data in self.broker.log(TP) for batch in decode_batches(data))
        return [(record.key or b"").decode() for batch in batches for record in batch.records]


@asynccontextmanager
async def writing(
    *, in_flight: int = 5, permit: Permit = UNLIMITED, max_bytes: int = 0
) -> AsyncGenerator[WriterRig]:
    async with FakeBroker(topics={TP.topic: 1}) as broker, connected_to(broker) as cluster:
        if max_bytes:
            broker.partition(TP).max_message_bytes = max_bytes
        producer = ProducerSettings(
            connection=cluster.settings, max_in_flight_requests_per_connection=in_flight
        )
        writer = RecordWriter(cluster, producer, clock=SYSTEM_CLOCK, permit=permit)
        await writer.start()
        try:
            yield WriterRig(broker, writer)
        finally:
            await writer.close()


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("posts", [1, 10, 11, 50, 200])
async def test_each_of_many_posts_is_answered_with_its_offset(posts: int, in_flight: int) -> None:
    async with writing(in_flight=in_flight) as it:
        for n in range(posts):
            it.post(f"post{n}", records=1 + n % 3)
        assert await it.writer.flush(10)
        offsets = count()
        expected = [[next(offsets) for _ in range(1 + n % 3)][:1] for n in range(posts)]
        assert [it.answers[f"post{n}"] for n in range(posts)] == expected


async def test_a_post_that_is_too_large_fails_alone_and_whole() -> None:
    async with writing(max_bytes=1_000) as it:
        it.post("before")
        it.post("large", records=40, value=b"v" * 100)
        later = [f"later{n}" for n in range(6)]
        for name in later:
            it.post(name)
        assert await it.writer.flush(10)
        assert it.stored() == ["before-0", *(f"{name}-0" for name in later)]
        (error,) = it.answers["large"]
        assert isinstance(error, PartitionError)
        assert [it.answers[name] for name in later] == [[n + 1] for n in range(6)]


async def test_a_post_that_is_taken_back_while_it_waits_is_never_written() -> None:
    async with writing(in_flight=1) as it:
        hold = it.broker.hold(PRODUCE)
        it.post("under way")
        await hold.arrived.wait()
        waiting = it.post("waiting")
        it.post("behind")
        it.writer.take_back(waiting)
        hold.release()
        assert await it.writer.flush(10)
        assert "waiting-0" not in it.stored()
        assert it.answers["waiting"] == []
        assert len(it.answers["behind"]) == len(it.answers["under way"]) == 1


async def test_a_post_that_is_taken_back_under_way_is_not_written_behind_what_follows() -> None:
    async with writing() as it:
        hold = it.broker.hold(PRODUCE)
        held = it.post("held")
        await hold.arrived.wait()
        it.writer.take_back(held)
        hold.release()
        it.post("next")
        assert await it.writer.flush(10)
        assert it.stored()[-1] == "next-0"
        assert it.answers["held"] == []


@pytest.mark.parametrize("refused", [NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS])
async def test_a_post_that_is_taken_back_while_it_waits_for_a_retry_harms_no_other(
    refused: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with writing() as it:
        it.broker.fail_next(PRODUCE, refused)
        sent = it.broker.hold(PRODUCE)
        held = it.post("held")
        await sent.arrived.wait()
        looks_up = it.broker.hold(METADATA)  # a retry asks for the leader first
        sent.release()
        await looks_up.arrived.wait()
        it.writer.take_back(held)
        looks_up.release()
        it.post("next")
        assert await it.writer.flush(10)
        await asyncio.sleep(0.05)  # the retry that was under way ends: nothing shows when
        assert it.answers["next"] == [0]
        assert "defect" not in caplog.text


async def test_nothing_that_was_posted_in_a_lost_term_is_written_in_the_next_one() -> None:
    permit = Permit(SYSTEM_CLOCK)
    async with writing(permit=permit) as it:
        it.post("of a member")
        permit.revoke()
        it.post("in doubt")
        permit.abandon()
        for name in ("of a member", "in doubt"):
            (error,) = it.answers[name]
            assert isinstance(error, RetriableError)
        permit.grant(SYSTEM_CLOCK.monotonic() + 60)
        assert await it.writer.write(TP, [NewRecord(b"k", b"new", (), -1)]) == 0
        assert it.stored() == ["k"]


async def test_what_waits_for_the_permit_is_written_when_it_is_granted() -> None:
    permit = Permit(SYSTEM_CLOCK)
    async with writing(permit=permit) as it:
        it.post("waiting")
        assert not await it.writer.flush(0)
        assert it.stored() == []
        permit.grant(SYSTEM_CLOCK.monotonic() + 60)
        assert await it.writer.flush(10)
        assert it.answers["waiting"] == [0]


async def test_a_closed_writer_fails_every_post_once() -> None:
    async with writing() as it:
        hold = it.broker.hold(PRODUCE)
        it.post("under way")
        await hold.arrived.wait()
        await it.writer.close()
        hold.release()
        (error,) = it.answers["under way"]
        assert isinstance(error, RetriableError)


async def test_invariant_5_a_topic_that_may_not_be_written_fails_its_posts_not_later_ones() -> None:
    async with writing() as it:
        it.broker.fail_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED, 5)
        it.post("first")
        it.post("second")
        await eventually(lambda: all(it.answers.values()))
        for (answer,) in it.answers.values():
            assert isinstance(answer, FatalServerError)
            assert TP.topic in str(answer)
        await it.writer.write(TP, [NewRecord(b"third", b"v", (), -1)])
        assert it.stored() == ["third"]
