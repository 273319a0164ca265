"""The Sender against a scripted broker that checks sequences as Kafka does; where a lane begins again."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from math import inf
from secrets import token_bytes
from typing import cast

import pytest

from mm2py.client.connect.admin import Admin
from mm2py.client.send import node, sender
from mm2py.client.send.lane import MergePlan, SenderLane
from mm2py.client.send.owner import LaneOwner
from mm2py.client.send.recovery import batches_of_producer
from mm2py.client.send.resume import LaneResume
from mm2py.client.send.tail import LaneTail
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import PartitionError, RetriableError
from mm2py.mirror.offset_map import TargetLoss
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.produce import acknowledgements
from mm2py.protocol.record_batch import HEADER, HEADER_BYTES, Codec, RecordBatch
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.protocol.topics import NO_TOPIC_ID
from mm2py.runtime.tasks.offset_maps import TaskOffsetMaps
from mm2py.storage.offset_map_store import NoMapStore
from mm2py.testing.waiting import eventually
from mm2py.types import LATEST, TopicPartition
from tests.kit.fakes.batches import CountedLease, sealed
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.broker_state import FakeCluster
from tests.unit.client.client_stage import (
    PRODUCE,
    SOURCE,
    Ids,
    SendRig,
    connected_to,
    signed,
    to_send,
)

LIST_OFFSETS, METADATA, EPOCH_ENDS = 2, 3, 23
KIP_951 = {PRODUCE: (3, 10)}
FIRST, SECOND = TopicPartition("copy", 0), TopicPartition("copy", 1)
OTHER = TopicPartition("bills", 0)
LONG_AGO_MS = 1_000_000


@asynccontextmanager
async def sending(
    broker: FakeBroker, *others: FakeBroker, compression_type: str = "", max_request_size: int = 0
) -> AsyncGenerator[SendRig]:
    async with connected_to(broker, *others) as cluster:
        rig = SendRig(
            broker, cluster, compression_type=compression_type, max_request_size=max_request_size
        )
        await rig.sender.start()
        try:
            yield rig
        finally:
            await rig.sender.close()


@pytest.fixture
@asynccontextmanager
async def rig() -> AsyncGenerator[SendRig]:
    async with FakeBroker(topics={"copy": 2}) as broker, sending(broker) as rig:
        yield rig


async def test_a_silent_broker_delays_the_first_records_of_no_other(rig: SendRig) -> None:
    async with FakeBroker(node_id=2, cluster=rig.broker.cluster) as silent:
        rig.broker.cluster.move_leader(FIRST, 2)
        hold = silent.hold(LIST_OFFSETS)
        rig.enqueue(FIRST)
        rig.enqueue(SECOND)
        await hold.arrived.wait()
        await eventually(lambda: [target for target, _, _ in rig.delivered] == [SECOND])
        assert rig.stored(FIRST) == []
        hold.release()
        await rig.flushed()
        assert rig.stored(FIRST) == [0]


@pytest.mark.parametrize("log_start", [0, 2], ids=["whole", "retention has passed our last record"])
async def test_rule_6_old_records_that_the_broker_forgot_are_looked_up_before_they_are_resent(
    rig: SendRig, log_start: int
) -> None:
    rig.enqueue(FIRST, stamp=LONG_AGO_MS)
    await rig.flushed()
    async with rig.backlog():
        rig.broker.fail_next(PRODUCE, "disconnect_after_apply")
        rig.enqueue(FIRST, 3, stamp=LONG_AGO_MS)
    while len(rig.broker.log(FIRST)) < 2:
        await rig.broker.cluster.wait_for_data(5)
    rig.broker.partition(FIRST).expire_producers()
    rig.broker.partition(FIRST).delete_before(log_start)
    await rig.flushed()
    assert rig.stored(FIRST) == [0, 1, 2, 3][bool(log_start) :]
    assert rig.delivered[-1] == (FIRST, 1, 1)
    assert rig.doubts == []


async def test_what_is_handed_over_together_leaves_at_once_in_one_request(rig: SendRig) -> None:
    rig.enqueue(FIRST)
    rig.enqueue(SECOND)
    await rig.flushed()
    connection, before = await rig.cluster.connection(1, "produce"), rig.broker.count(PRODUCE)
    rig.sender.enqueue_all((SOURCE, it, [to_send([b"1"], 1)]) for it in (FIRST, SECOND))
    assert connection.in_flight == 1
    await rig.flushed()
    assert rig.broker.count(PRODUCE) == before + 1
    assert rig.stored(FIRST) == rig.stored(SECOND) == [0, 1]


@pytest.mark.parametrize(
    "code",
    [codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.UNKNOWN_SERVER_ERROR],
    ids=["a sequence that is not expected: a new epoch", "a batch is not read: packed anew"],
)
async def test_what_the_target_refuses_once_is_cured(rig: SendRig, code: int) -> None:
    rig.enqueue(FIRST)
    await rig.flushed()
    rig.broker.fail_next(PRODUCE, code)
    for count in (3, 2, 1):
        rig.enqueue(FIRST, count)
    await rig.flushed()
    assert rig.stored(FIRST) == list(range(7))
    assert not rig.failed


async def test_one_record_above_the_limit_fails_its_partition_alone_and_behind_what_was_before_it(
    rig: SendRig,
) -> None:
    rig.broker.partition(FIRST).max_message_bytes = 1_000
    rig.sender.enqueue(SOURCE, FIRST, [to_send([b"0", b"1", b"2" + b"x" * 2_000, b"3"])])
    rig.sender.enqueue(SOURCE, FIRST, [to_send([b"4"], 4)])
    rig.enqueue(SECOND, 3)
    await rig.settled.wait()
    await rig.flushed()
    ((target, error),) = rig.failed
    assert target == FIRST
    assert isinstance(error, PartitionError)
    assert error.offset == 2
    assert "max.message.bytes of topic copy" in str(error)
    assert rig.stored(FIRST) == [0, 1]
    assert rig.stored(SECOND) == [0, 1, 2]


async def test_a_definite_refusal_fails_the_partition_in_the_brokers_words(rig: SendRig) -> None:
    rig.broker.fail_next(PRODUCE, codes.INVALID_RECORD, times=2)
    rig.enqueue(FIRST)
    await rig.settled.wait()
    assert "INVALID_RECORD" in str(rig.failed[0][1])
    rig.enqueue(FIRST)
    await rig.flushed()
    assert rig.stored(FIRST) == []


async def test_a_refused_permission_stalls_the_partition_until_it_is_given(rig: SendRig) -> None:
    rig.broker.fail_next(PRODUCE, codes.TOPIC_AUTHORIZATION_FAILED, times=6)
    rig.enqueue(FIRST)
    await rig.flushed()
    assert rig.stored(FIRST) == [0]
    assert rig.stalled == [(FIRST, True), (FIRST, False)]
    assert not rig.failed
    (cause,) = rig.causes
    for named in ("may not Write topic copy", "of cluster", "kafka-acls.sh", "--operation Write"):
        assert named in cause


async def test_what_is_refused_for_certain_is_given_back_and_sent_anew_when_it_is_offered_again(
    rig: SendRig,
) -> None:
    rig.enqueue(FIRST)
    await rig.flushed()
    rig.broker.fail_next(PRODUCE, codes.TOPIC_AUTHORIZATION_FAILED, times=6)
    for _ in range(3):
        rig.enqueue(FIRST)
    await eventually(lambda: rig.sender.returnable(FIRST) == (1, 3))
    rig.sender.give_back(FIRST)
    assert (rig.sender.buffered_bytes, rig.sender.backlog_bytes(FIRST)) == (0, 0)
    await rig.flushed()
    rig.go_back(FIRST, 1)
    rig.enqueue(FIRST, 5)  # other borders under the same sequences
    await rig.flushed()
    assert rig.stored(FIRST) == list(range(6))
    assert not rig.failed


async def test_what_may_be_in_the_log_is_not_given_back(rig: SendRig) -> None:
    rig.broker.fail_next(PRODUCE, codes.REQUEST_TIMED_OUT, times=6, apply=True)
    rig.enqueue(FIRST)
    await eventually(lambda: rig.broker.count(PRODUCE) > 3)
    assert rig.sender.returnable(FIRST) is None
    rig.enqueue(FIRST, 2)
    assert rig.sender.returnable(FIRST) == (1, 2)
    rig.sender.give_back(FIRST)
    rig.go_back(FIRST, 1)
    rig.enqueue(FIRST)
    await rig.flushed()
    assert rig.stored(FIRST) == [0, 1]


async def test_what_was_under_way_when_the_permit_ended_is_stored_once_later(rig: SendRig) -> None:
    rig.enqueue(SECOND)
    await rig.flushed()
    hold = rig.broker.hold(PRODUCE)
    rig.enqueue(FIRST)
    await hold.arrived.wait()
    rig.permit.revoke()
    rig.enqueue(FIRST)
    sent = rig.broker.count(PRODUCE)
    hold.release()
    assert not await rig.sender.flush(10)
    await asyncio.sleep(0.05)  # long enough for a retry, were there one
    assert rig.broker.count(PRODUCE) == sent, "retries wait for the permit"
    assert rig.delivered == [(SECOND, 0, 0)]
    rig.permit.grant(inf)
    await rig.flushed()
    assert rig.stored(FIRST) == [0, 1]
    assert rig.delivered == [(SECOND, 0, 0), (FIRST, 0, 0), (FIRST, 1, 1)]
    assert rig.sender.buffered_bytes == 0


async def test_what_was_queued_in_an_abandoned_term_never_leaves(rig: SendRig) -> None:
    rig.enqueue(FIRST)
    await rig.flushed()
    rig.permit.revoke()
    rig.enqueue(FIRST)
    rig.permit.abandon()
    sent = rig.broker.count(PRODUCE)
    rig.permit.grant(inf)
    assert not await rig.sender.flush(0.05)
    assert rig.broker.count(PRODUCE) == sent
    assert rig.stored(FIRST) == [0]


async def test_what_is_taken_back_is_no_fault_of_its_broker(
    rig: SendRig, caplog: pytest.LogCaptureFixture
) -> None:
    hold = rig.broker.hold(PRODUCE)
    rig.enqueue(FIRST)
    await eventually(lambda: rig.broker.count(PRODUCE) == 1)
    rig.sender.abandon(FIRST)
    hold.release()
    rig.enqueue(FIRST)
    await rig.flushed()
    assert "broker connection lost" not in caplog.text


async def test_rule_7_where_the_target_may_not_be_read_records_are_resent_and_named(
    rig: SendRig,
) -> None:
    rig.enqueue(FIRST, 2)
    await rig.flushed()
    # Forgotten by the broker: only its log could tell whether they were written.
    rig.broker.fail_next(PRODUCE, "disconnect_after_apply")
    rig.broker.fail_next(EPOCH_ENDS, codes.TOPIC_AUTHORIZATION_FAILED)
    rig.enqueue(FIRST, 3, stamp=LONG_AGO_MS)
    await rig.flushed()
    assert rig.doubts == [(SOURCE, 2, 4)]
    assert rig.failed == []
    rig.enqueue(FIRST, 1)
    await rig.flushed()
    assert rig.stored(FIRST)[-1] == 5
    assert rig.doubts == [(SOURCE, 2, 4)]


async def test_what_fails_or_may_be_doubled_is_named_with_its_own_source_where_several_share_a_target(
    rig: SendRig,
) -> None:
    rig.enqueue(FIRST, 2)
    await rig.flushed()
    rig.broker.fail_next(PRODUCE, "disconnect_after_apply")
    rig.broker.fail_next(EPOCH_ENDS, codes.TOPIC_AUTHORIZATION_FAILED)
    rig.enqueue(FIRST, stamp=LONG_AGO_MS)
    rig.sender.enqueue(OTHER, FIRST, [to_send([b"7"], 7, stamp=LONG_AGO_MS)])
    await rig.flushed()
    assert rig.doubts == [(SOURCE, 2, 2), (OTHER, 7, 7)]
    async with rig.backlog():
        rig.broker.fail_next(PRODUCE, codes.INVALID_RECORD, times=2)
        rig.enqueue(FIRST)
        rig.sender.enqueue(OTHER, FIRST, [to_send([b"8"], 8)])
    await rig.settled.wait()
    assert rig.failed_sources == [SOURCE], "not the one that came last"


async def test_what_was_sent_to_a_frozen_broker_goes_to_the_leaders_that_follow_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node, "SILENT_S", 0.1)
    monkeypatch.setattr(sender, "LOOK_S", 0.05)
    shared = FakeCluster()
    async with (
        FakeBroker(node_id=1, cluster=shared, topics={"copy": 2}) as frozen,
        FakeBroker(node_id=2, cluster=shared) as heir,
        sending(frozen, heir) as rig,
    ):
        for target in FIRST, SECOND:
            rig.enqueue(target)
        await rig.flushed()
        hold = frozen.hold(PRODUCE)
        for _ in range(3):
            for target in FIRST, SECOND:
                rig.enqueue(target)
            await asyncio.sleep(0)
        await hold.arrived.wait()
        shared.move_leader(FIRST, heir.node_id)
        asked = heir.count(METADATA) + frozen.count(METADATA)
        await eventually(lambda: heir.count(METADATA) + frozen.count(METADATA) > asked + 1)
        assert frozen.connections, "it leads a part of what waits there"
        assert rig.stored(FIRST) == [0]
        shared.move_leader(SECOND, heir.node_id)
        await rig.flushed()
        hold.release()
        assert [rig.stored(target) for target in (FIRST, SECOND)] == [[0, 1, 2, 3]] * 2
        assert rig.arrived == {FIRST: [0, 1, 2, 3], SECOND: [0, 1, 2, 3]}
        assert (rig.doubts, rig.failed) == ([], [])


async def test_partitions_that_wait_for_a_dead_broker_find_new_leaders_with_one_request() -> None:
    shared, partitions = FakeCluster(), 50
    async with (
        FakeBroker(node_id=1, cluster=shared, topics={"copy": partitions}) as dying,
        FakeBroker(node_id=2, cluster=shared) as heir,
        sending(dying, heir) as rig,
    ):
        targets = [TopicPartition("copy", number) for number in range(partitions)]
        for target in targets:
            rig.enqueue(target)
        await rig.flushed()
        await dying.stop()
        for target in targets:
            shared.move_leader(target, heir.node_id)
            rig.enqueue(target)  # each has its first batch since: nothing was in flight
        for _ in range(2):
            rig.enqueue(FIRST)
        asked = heir.count(METADATA)
        await rig.flushed()
        assert rig.stored(FIRST) == [0, 1, 2, 3]
        assert all(rig.stored(target) == [0, 1] for target in targets[1:])
        assert heir.count(METADATA) - asked < 10


async def test_a_flush_without_a_permit_waits_for_no_target_that_is_away(rig: SendRig) -> None:
    rig.enqueue(FIRST)
    await rig.flushed()
    hold = rig.broker.hold(PRODUCE)
    rig.enqueue(FIRST)
    await hold.arrived.wait()
    rig.permit.revoke()
    await rig.broker.stop()
    async with asyncio.timeout(2):
        assert not await rig.sender.flush(10)


async def test_at_the_end_nobody_waits_for_partitions_with_nothing_sent(rig: SendRig) -> None:
    rig.enqueue(FIRST)
    await rig.flushed()
    rig.enqueue(FIRST)
    rig.enqueue(TopicPartition("not-there-yet", 0), 3)
    assert not await rig.sender.flush(0.05)
    rig.sender.drop_unopened()
    await rig.flushed()
    assert (rig.stored(FIRST), rig.failed) == ([0, 1], [])


async def test_a_defect_in_handling_a_delivery_fails_its_partition_alone(rig: SendRig) -> None:
    rig.delivery_errors.append(MemoryError("no room for one more report"))
    async with rig.backlog():
        rig.enqueue(FIRST)
        rig.enqueue(SECOND)
    await rig.settled.wait()
    rig.enqueue(SECOND)
    await rig.flushed()
    ((failed, error),) = rig.failed
    assert "no room for one more report" in str(error)
    assert [target for target, _, _ in rig.delivered] == [
        {FIRST: SECOND, SECOND: FIRST}[failed]
    ] * (2 if failed == FIRST else 1)


async def test_an_answer_for_a_partition_that_was_not_sent_ends_the_connection_and_nothing_is_lost(
    rig: SendRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misnamed(_version: int, _body: memoryview) -> list[tuple[tuple[str, int], int]]:
        monkeypatch.setattr(node, "acknowledgements", acknowledgements)
        return [(("copy", 7), 0)]

    monkeypatch.setattr(node, "acknowledgements", misnamed)
    for _ in range(3):
        rig.enqueue(FIRST)
        rig.enqueue(SECOND)
    await rig.flushed()
    assert rig.stored(FIRST) == rig.stored(SECOND) == [0, 1, 2]
    assert not rig.failed


async def test_a_batch_that_cannot_be_recompressed_is_passed_on_as_it_is() -> None:
    async with (
        FakeBroker(topics={"copy": 2}) as broker,
        sending(broker, compression_type="lz4") as rig,
    ):
        garbage = bytearray(HEADER_BYTES) + b"this is no gzip stream"
        HEADER.pack_into(
            garbage, 0, 0, len(garbage) - 12, 0, 2, 0, int(Codec.GZIP), 0, 0, 0, -1, -1, -1, 1
        )
        stamp = SYSTEM_CLOCK.now_ms()
        batch = RecordBatch(sealed(garbage), 0, 0, 1, stamp, 0, int(Codec.GZIP), ((0, 1),), None)
        rig.sender.enqueue(SOURCE, FIRST, [batch])
        rig.enqueue(SECOND, 3)
        await rig.flushed()
        (stored,) = rig.broker.log(FIRST)
        assert stored[HEADER_BYTES:] == b"this is no gzip stream"
        assert rig.stored(SECOND) == [0, 1, 2]


def leased(number: int, lease: CountedLease) -> RecordBatch:
    batch = to_send([b"x"], number)
    batch.data, batch.lease = memoryview(batch.data), lease
    return batch


def test_what_waits_for_a_second_pins_no_receive_buffer_although_its_partition_moves() -> None:
    lane = SenderLane(FIRST, producer_id=7, epoch=0, max_in_flight=1)
    lane.opened(1, 0)
    leases = [CountedLease() for _ in range(7)]
    for number in range(6):
        lane.offer(SOURCE, [leased(number, leases[number])])
    lane.look_after()
    assert [lease.count for lease in leases] == [1] * 7, "it waits for less than a second"
    sent = lane.take()
    lane.acknowledged(sent, 0)
    lane.take()
    lane.offer(SOURCE, [leased(6, leases[6])])
    lane.look_after()
    counts = [lease.count for lease in leases]
    assert counts == [1, 1, 0, 0, 0, 0, 1], "delivered, under way, waiting, just queued"


def test_compressed_batches_are_packed_anew_only_where_those_in_flight_are_the_limit() -> None:
    plan = MergePlan(target=1_000_000, small=1_000_000, small_compressed=1_000_000)
    lane = SenderLane(FIRST, producer_id=7, epoch=0, max_in_flight=2)
    lane.opened(1, 0)
    for number in range(20):
        data = encode_batch([NewRecord(None, token_bytes(3000), (), 1)], Codec.LZ4)
        runs = ((number, 1),)
        attributes = int(Codec.LZ4)
        lane.offer(SOURCE, [RecordBatch(data, number, number, 1, 1, 0, attributes, runs, None)])
    first = lane.take(plan)
    assert first.batch.count == 1, "nothing is in flight yet: the network waits for us"
    lane.acknowledged(first, 0)
    second, third = lane.take(plan), lane.take(plan)
    assert (second.batch.count, third.batch.count) == (1, 1)
    lane.acknowledged(second, 1)
    assert lane.take(plan).batch.count == 17, "as many as may be were in flight: we wait for it"


async def test_the_leader_that_a_broker_names_is_used_without_asking_for_metadata() -> None:
    shared = FakeCluster()
    async with (
        FakeBroker(node_id=1, cluster=shared, topics={"copy": 2}, versions=KIP_951) as old,
        FakeBroker(node_id=2, cluster=shared, versions=KIP_951) as new,
        sending(old) as rig,
    ):
        rig.enqueue(FIRST)
        await rig.flushed()
        asked = old.count(METADATA) + new.count(METADATA)
        shared.move_leader(FIRST, new.node_id)
        for _ in range(3):
            rig.enqueue(FIRST)
        await rig.flushed()
        assert rig.stored(FIRST) == [0, 1, 2, 3]
        assert new.count(PRODUCE) > 0
        assert old.count(METADATA) + new.count(METADATA) == asked


@pytest.mark.parametrize("batches", [8, 64])
async def test_rule_6_where_the_target_lost_records_only_what_may_be_ours_is_read(
    rig: SendRig, batches: int
) -> None:
    for number in range(batches):
        data = encode_batch([NewRecord(None, bytes(100_000), (), 1)])
        sign(data, producer_id=7, producer_epoch=0, base_sequence=number)
        rig.broker.append(FIRST, bytes(data))
    async with connected_to(rig.broker) as cluster:
        found = await batches_of_producer(cluster, FIRST, 7, 0, 2 * batches, doubtful=2)
    assert list(found) == [batches - 2, batches - 1]


async def test_max_request_size_bounds_requests_and_larger_batches_are_split() -> None:
    async with (
        FakeBroker(topics={"copy": 2}) as broker,
        sending(broker, max_request_size=2_000) as rig,
    ):
        for _ in range(20):
            rig.enqueue(FIRST, 40, size=100)
            rig.enqueue(SECOND, 1, size=1_200)
        rig.enqueue(SECOND, 1, size=5_000)
        await rig.flushed()
        assert rig.stored(FIRST) == list(range(800))
        assert rig.stored(SECOND) == list(range(21))
        sizes = [len(data) for target in (FIRST, SECOND) for data in broker.log(target)]
        assert [size for size in sizes if size > 2_000] == [max(sizes)], "a large record goes alone"
        assert broker.count(PRODUCE) > sum(sizes) / 2_000
        assert not rig.failed


def writers(broker: FakeBroker) -> list[int]:
    return [HEADER.unpack_from(data)[9] for data in broker.log(FIRST)]


async def test_1_an_id_is_announced_before_its_first_batch_whatever_fails_meanwhile() -> None:
    published: list[int] = []
    refusals = [RetriableError("the topic is away")]

    async def announce(producer_id: int) -> None:
        if refusals:
            raise refusals.pop()
        assert producer_id not in writers(broker)
        published.append(producer_id)

    async with FakeBroker(topics={"copy": 2}) as broker, connected_to(broker) as cluster:
        rig = SendRig(broker, cluster, mirror_ids=Ids(announce))
        with pytest.raises(RetriableError):
            await rig.sender.start()
        assert broker.log(FIRST) == []
        await rig.sender.start()
        rig.enqueue(FIRST)
        await rig.flushed()
        # Later epochs are of the same id.
        for _ in range(2):
            rig.sender.abandon(FIRST)
            rig.enqueue(FIRST)
            await rig.flushed()
        assert len(published) == 1
        refusals.append(RetriableError("the topic is away again"))
        rig.broker.fail_next(PRODUCE, codes.INVALID_PRODUCER_EPOCH)
        rig.enqueue(FIRST)
        await rig.flushed()
        await rig.sender.close()
    assert len(published) == 2
    assert set(writers(broker)) == set(published)


# -- where a lane begins whose log ends after the last known copy, and what is said of copies that cannot be compared


class Owner:
    """A Sender that notes doubts."""

    def __init__(self) -> None:
        self.doubts: list[tuple[int, int]] = []

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(work)

    def doubted(self, _source: TopicPartition, first: int, last: int, _error: Exception) -> None:
        self.doubts.append((first, last))

    def recognised(self, *_: object) -> None:
        """Nothing is."""


@pytest.mark.parametrize(
    ("transactional", "kept", "doubts"),
    [(True, -1, []), (True, 7, [(0, 2)]), (False, -1, []), (False, 7, [(0, 2)])],
    ids=["aborted", "of a lane", "transactions before", "without transactions"],
)
async def test_a_tail_that_is_gone_is_no_doubt_where_all_of_it_was_aborted(
    transactional: bool, kept: int, doubts: list[tuple[int, int]]
) -> None:
    owner, maps = Owner(), TaskOffsetMaps(NoMapStore(), in_transactions=transactional)
    maps.of(SOURCE).anchor(0, 0)
    maps.of(SOURCE).writes_to(NO_TOPIC_ID, kept, 0)
    lane = SenderLane(FIRST, producer_id=9, epoch=0, max_in_flight=5, transactional=transactional)
    async with FakeBroker(topics={FIRST.topic: 1}) as broker, connected_to(broker) as cluster:
        broker.append(FIRST, signed(b"0", b"1", b"2"))
        broker.partition(FIRST).delete_before(3)
        lane.offer(SOURCE, [to_send([b"0", b"1", b"2"])])
        resume = LaneResume(cluster, maps, clock=SYSTEM_CLOCK, owner=cast("LaneOwner", owner))
        await cluster.metadata([FIRST.topic])
        ends = await Admin(cluster).list_offsets({FIRST: LATEST})
        tail = (await resume.look(broker.node_id, [lane], ends))[lane]
        assert isinstance(tail, LaneTail)
        # A marker after them fences the lane's producer.
        assert (await resume.compare(lane, tail)).log_end == broker.partition(FIRST).end
    assert owner.doubts == doubts


async def test_copies_under_a_former_name_count_for_no_other_topic_also_where_brokers_give_no_ids() -> (
    None
):
    losses: list[TargetLoss] = []
    owner, maps = Owner(), TaskOffsetMaps(NoMapStore())
    maps.on_loss = lambda _partition, loss: losses.append(loss)
    topics = {FIRST.topic: 1, OTHER.topic: 1}
    async with FakeBroker(topics=topics) as broker, connected_to(broker) as cluster:
        for topic in topics:
            broker.cluster.topics[topic].topic_id = NO_TOPIC_ID
        broker.append(OTHER, signed(b"0", b"1", b"2", b"3", b"4"))
        for copy in FIRST, FIRST, OTHER:  # the replication policy is another one then
            lane = SenderLane(copy, producer_id=9, epoch=0, max_in_flight=5, transactional=False)
            lane.offer(SOURCE, [to_send([b"3"])])
            resume = LaneResume(cluster, maps, clock=SYSTEM_CLOCK, owner=cast("LaneOwner", owner))
            await cluster.metadata([copy.topic])
            ends = await Admin(cluster).list_offsets({copy: LATEST})
            found = (await resume.look(broker.node_id, [lane], ends))[lane]
            if isinstance(found, LaneTail):
                await resume.compare(lane, found)
            if not broker.log(FIRST):
                maps.of(SOURCE).add(0, 3, 0)
                broker.append(FIRST, signed(b"0", b"1", b"2"))
    assert losses == [TargetLoss(0, 2, 0, 2)]


@pytest.mark.parametrize(
    ("now", "doubts"),
    [
        ((b"0+", b"1+", b"2+"), [(0, 2)]),
        ((b"0", b"1+", b"2+"), [(1, 2)]),
        ((b"0", b"1", b"2", b"3"), []),
        ((b"1", b"2", b"3"), []),  # the source has lost the first
    ],
)
async def test_a_tail_with_other_contents_is_doubted(
    now: tuple[bytes, ...], doubts: list[tuple[int, int]]
) -> None:
    """As transforms make them that were changed while the task was down: both are on the target."""
    owner, maps = Owner(), TaskOffsetMaps(NoMapStore())
    maps.of(SOURCE).anchor(0, 0)
    maps.of(SOURCE).writes_to(NO_TOPIC_ID, 7, 0)
    lane = SenderLane(FIRST, producer_id=9, epoch=0, max_in_flight=5)
    async with FakeBroker(topics={FIRST.topic: 1}) as broker, connected_to(broker) as cluster:
        written = bytearray(to_send([b"0", b"1", b"2"], stamp=5).data)
        sign(written, producer_id=7, producer_epoch=0, base_sequence=0)
        broker.append(FIRST, bytes(written))
        lane.offer(SOURCE, [to_send(list(now), stamp=5)])
        resume = LaneResume(cluster, maps, clock=SYSTEM_CLOCK, owner=cast("LaneOwner", owner))
        await cluster.metadata([FIRST.topic])
        ends = await Admin(cluster).list_offsets({FIRST: LATEST})
        tail = (await resume.look(broker.node_id, [lane], ends))[lane]
        assert isinstance(tail, LaneTail)
        await resume.compare(lane, tail)
    assert owner.doubts == doubts
