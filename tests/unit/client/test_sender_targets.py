"""What a Sender says about its targets: other writers, and limits of the topics."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.partition_fetch import READ_COMMITTED
from mm2py.client.send import node, sender, tail
from mm2py.client.send.lane import MergePlan, SenderLane, Sent
from mm2py.client.send.limits import TargetLimits
from mm2py.client.send.sender import FOREIGN_LOOK_S
from mm2py.client.send.tail import NO_PRODUCER, Behind, Identical, KeptProducer, LogEnd
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import (
    ConnectionFailedError,
    ServerError,
    TargetMovedError,
    UnsupportedVersionError,
)
from mm2py.protocol import error_codes as codes
from mm2py.protocol.batch_stage import sign
from mm2py.protocol.configs import ConfigEntry, ConfigResource, ConfigResourceType, DescribedConfigs
from mm2py.protocol.fetch import FetchedPartition
from mm2py.protocol.record_batch import HEADER
from mm2py.protocol.records import NewRecord, encode_batch
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.batches import ABORT, COMMIT, TRANSACTIONAL, marker, stored_batch
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.late_clock import LateClock
from tests.kit.lines.delay_proxy import DelayProxy
from tests.unit.client.client_stage import MIRROR, Ids, SendRig, connected_to

TARGET = TopicPartition("orders", 0)
APPLICATION = MIRROR + 1
NAMED = "another program writes"


class Copied:
    """Copies are known up to a target offset."""

    identical = Identical.PREFER
    asks = False
    """Whether copies behind the known ones are counted."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.passed = -1
        self.begun: list[LogEnd] = []
        self.replaced: list[KeptProducer] = []
        self.behind: list[Behind] = []

    def target_end(self, source: TopicPartition, topic_id: bytes) -> int:
        del source, topic_id
        return self.end

    def passed_from(self, source: TopicPartition, topic_id: bytes) -> int:
        del source, topic_id
        return self.passed

    def producer(self, source: TopicPartition) -> KeptProducer:
        del source
        return NO_PRODUCER

    def opens(self, source: TopicPartition) -> bool:
        del source
        return self.asks

    def count(self, source: TopicPartition, behind: Behind) -> None:
        del source
        self.behind.append(behind)

    async def replace_producer(self, source: TopicPartition, producer: KeptProducer) -> None:
        del source
        self.replaced.append(producer)

    async def begin(self, ends: Mapping[TopicPartition, LogEnd]) -> None:
        self.begun += ends.values()


class Rig(SendRig):
    """A Sender whose target others write to."""

    def __init__(self, broker: FakeBroker, cluster: Cluster, end: int, ids: Ids | None) -> None:
        self.clock = LateClock()
        self.copied = Copied(end)
        super().__init__(broker, cluster, clock=self.clock, mirror_ids=ids, copied=self.copied)
        self._sequences: dict[int, int] = {}

    def other(self, producer_id: int, value: bytes = b"theirs") -> None:
        """Let another producer write."""
        data = encode_batch([NewRecord(None, value, (), SYSTEM_CLOCK.now_ms())])
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + 1
        sign(data, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
        self.broker.append(TARGET, bytes(data))

    async def copy(self) -> None:
        """Copy one record."""
        self.enqueue(TARGET)
        await self.flushed()


@asynccontextmanager
async def rig(ids: Ids | None, *, end: int = 0, written_before: int = -1) -> AsyncGenerator[Rig]:
    async with FakeBroker(topics={TARGET.topic: 1}) as broker, connected_to(broker) as cluster:
        made = Rig(broker, cluster, end, ids)
        if written_before >= 0:
            made.other(written_before)
        await made.sender.start()
        try:
            yield made
            assert not made.failed
        finally:
            await made.sender.close()


async def test_a_target_that_lost_what_it_acknowledged_is_named_and_its_log_is_not_read() -> None:
    async with rig(None) as made:
        for _ in range(10):
            await made.copy()
        made.broker.partition(TARGET).truncate_to(6)
        made.broker.fail_next(0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
        reads = made.broker.count(1)
        await made.copy()
        ((_, error),) = made.failed
        made.failed.clear()
        assert isinstance(
            error, TargetMovedError
        )  # the task starts again, and reports what is lost
        assert "ends below offset 10, up to which it had acknowledged records" in str(error)
        assert made.broker.count(1) == reads


async def test_a_lasting_id_has_no_second_epoch_where_the_next_id_comes_late() -> None:
    """And the next one is stored when it writes: what that writes would count as another's at the next start."""
    announced: list[int] = []

    async def announce(producer_id: int) -> None:
        announced.append(producer_id)
        if len(announced) == 2:
            raise ConnectionFailedError("not now")

    async with rig(Ids(announce)) as made:
        await made.copy()
        made.broker.fail_next(0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
        await made.copy()
        await made.copy()
        assert made.copied.replaced == [KeptProducer(announced[-1], 1, lasts=False)]
        writers = [HEADER.unpack_from(it)[9:12] for it in made.broker.log(TARGET)]
    assert writers == [(announced[0], 0, 0), (announced[-1], 0, 0), (announced[-1], 0, 1)]
    assert len(set(announced)) == len(announced) == 3


async def test_a_client_without_a_producer_id_is_no_predecessor() -> None:
    """A lane that continued its id would send without sequences, and double what it repeats."""
    async with rig(None) as made:
        made.other(-1)
        await made.copy()
        theirs, ours = (HEADER.unpack_from(it)[9] for it in made.broker.log(TARGET))
    assert (theirs, ours >= 0) == (-1, True)


class Kept(Copied):
    """Copies of a predecessor whose producer id is known."""

    def producer(self, source: TopicPartition) -> KeptProducer:
        del source
        return KeptProducer(MIRROR, 0)


async def test_copies_behind_the_known_ones_are_counted_without_a_batch_to_send() -> None:
    async with FakeBroker(topics={TARGET.topic: 1}) as broker, connected_to(broker) as cluster:
        copied = Kept(1)
        copied.asks = True
        made = SendRig(broker, cluster, copied=copied)
        for sequence, writer in enumerate((MIRROR, MIRROR, APPLICATION, MIRROR)):
            data = encode_batch([NewRecord(None, b"before", (), SYSTEM_CLOCK.now_ms())])
            at = 0 if writer != MIRROR else min(sequence, 2)
            sign(data, producer_id=writer, producer_epoch=0, base_sequence=at)
            broker.append(TARGET, bytes(data))
        await made.sender.start()
        made.sender.enqueue(TARGET, TARGET, ())
        await eventually(lambda: copied.behind == [Behind(2)])
        await made.sender.close()


MARKER, STORED = bytes(marker(0, 7, COMMIT)), bytes(stored_batch(0))


@pytest.mark.parametrize(
    ("log", "passed", "follows"),
    [
        ({0: STORED, 1: MARKER, 2: MARKER}, 1, True),
        ({0: STORED, 1: MARKER, 2: MARKER}, -1, False),
        ({0: STORED, 1: MARKER, 2: MARKER}, 3, False),  # nothing lies between
        ({0: MARKER, 1: MARKER, 2: STORED, 3: MARKER}, 0, False),
        ({0: MARKER, 1: MARKER, 3: MARKER}, 0, False),  # compaction may have taken a copy
        ({1: MARKER}, 0, False),  # so may retention
    ],
)
async def test_markers_behind_what_a_position_was_set_past_are_no_copies_of_another_program(
    log: dict[int, bytes], passed: int, *, follows: bool
) -> None:
    async with FakeBroker(topics={TARGET.topic: 1}) as broker, connected_to(broker) as cluster:
        copied = Copied(-1)
        copied.passed = passed
        for at, batch in log.items():
            broker.partition(TARGET).put(batch, at)
        broker.partition(TARGET).delete_before(min(log))
        made = SendRig(broker, cluster, copied=copied)
        await made.sender.start()
        made.enqueue(TARGET)
        await made.flushed()
        await made.sender.close()
    assert [(it.offset, it.follows_copies) for it in copied.begun] == [(max(log) + 1, follows)]


@pytest.mark.parametrize(
    ("last", "is_empty"),
    [
        (marker(40, 7, COMMIT), True),
        (stored_batch(40), False),
        (stored_batch(40, flags=TRANSACTIONAL, producer=7), False),  # of the next transaction
    ],
)
async def test_what_was_aborted_behind_the_copies_is_no_record(
    monkeypatch: pytest.MonkeyPatch, last: bytearray, *, is_empty: bool
) -> None:
    """As of a task that met a record which cannot be copied, again and again."""
    aborted = (stored_batch(it, 2, flags=TRANSACTIONAL, producer=7) for it in range(6, 38, 2))
    log = [marker(5, 7, COMMIT), *aborted, marker(38, 7, ABORT), marker(39, 8, ABORT), last]
    asked: list[int] = []

    async def fetch(*where: Any, max_bytes: int, isolation_level: int) -> FetchedPartition:
        assert isolation_level == READ_COMMITTED
        *_, at = where
        asked.append(at)
        there = [it for it in log if int.from_bytes(it[:8]) >= at]
        records = memoryview(b"".join(there[: 1 if max_bytes == 1 else None]))
        return FetchedPartition("t", bytes(16), 0, 0, 99, 99, 0, [(7, 6)], -1, records)

    monkeypatch.setattr(tail, "fetch_partition", fetch)
    assert await tail.has_no_record(cast("Cluster", None), TARGET, 5, 41) == is_empty
    assert asked == [5, 6], "one batch first"


async def test_a_log_that_cannot_be_read_at_the_start_keeps_no_other_partition_waiting() -> None:
    other = TARGET._replace(partition=1)
    async with FakeBroker(topics={TARGET.topic: 2}) as broker, connected_to(broker) as cluster:
        for target in (TARGET, other):
            data = encode_batch([NewRecord(None, b"before", (), SYSTEM_CLOCK.now_ms())])
            sign(data, producer_id=MIRROR, producer_epoch=0, base_sequence=0)
            broker.append(target, bytes(data))
        made = SendRig(broker, cluster, copied=Kept(1))
        await made.sender.start()
        hold = broker.hold(1)
        made.enqueue(TARGET)
        made.enqueue(other)
        await hold.arrived.wait()
        broker.cluster.move_leader(TARGET, -1)
        hold.release()
        await eventually(lambda: [it for it, _, _ in made.delivered] == [other])
        broker.cluster.move_leader(TARGET, 1)
        await made.flushed()
        last = [HEADER.unpack_from(broker.log(it)[-1])[9:12] for it in (TARGET, other)]
        assert last == [(MIRROR, 0, 1)] * 2, "both continue the predecessor's sequences"
        await made.sender.close()


async def test_a_mirror_is_not_named_and_an_application_behind_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = Ids()
    with caplog.at_level(logging.INFO):
        async with rig(ids) as it:
            await it.copy()
            it.other(MIRROR)
            await it.copy()
            await eventually(lambda: ids.asked == [MIRROR])
            it.other(APPLICATION)
            await it.copy()  # too early to look again
            it.clock.ahead_s += 2 * FOREIGN_LOOK_S
            it.other(APPLICATION)
            await it.copy()
            await eventually(lambda: NAMED in caplog.text)
            it.clock.ahead_s += 2 * FOREIGN_LOOK_S
            it.other(APPLICATION)
            await it.copy()
    assert ids.asked == [MIRROR, APPLICATION]
    (record,) = [it for it in caplog.records if NAMED in it.message]
    assert f"producer_id={APPLICATION}" in record.message
    assert record.levelno == logging.INFO  # names are the same both ways


@pytest.mark.parametrize("known", [False, True])
async def test_a_writer_is_named_where_mirrors_are_not_known(
    caplog: pytest.LogCaptureFixture, *, known: bool
) -> None:
    ids = Ids()
    ids.error = ConnectionFailedError("away")
    async with rig(ids if known else None) as it:
        await it.copy()
        it.other(MIRROR)
        with caplog.at_level(logging.INFO):
            await it.copy()
            await eventually(lambda: NAMED in caplog.text)


@pytest.mark.parametrize(
    ("writer", "known", "named"),
    # Where mirrors are not known, a map without a producer id has own copies behind it: of a router.
    [(MIRROR, True, 0), (APPLICATION, True, 1), (APPLICATION, False, 0)],
)
async def test_what_others_wrote_behind_the_map_is_named_once_unless_it_is_a_mirrors(
    writer: int, *, known: bool, named: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = Ids()
    with caplog.at_level(logging.INFO):
        async with rig(ids if known else None, written_before=writer) as it:
            await asyncio.gather(*(it.copy() for _ in range(3)))
            assert len(it.arrived[TARGET]) == 3
    assert caplog.text.count(NAMED) == named
    assert ids.asked == ([writer] if known else [])


def described(topic: str, size: int, code: int = 0) -> DescribedConfigs:
    entry = ConfigEntry("max.message.bytes", str(size))
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    return DescribedConfigs(resource, code, "", () if code else (entry,))


class Brokers:
    """Answer DescribeConfigs with what is scripted, after ``answering`` is set."""

    def __init__(self, *answers: Sequence[DescribedConfigs] | Exception) -> None:
        self.answers = list(answers)
        self.answering = asyncio.Event()
        self.answering.set()
        self.asked = 0

    def denied(self, code: int, operation: str, name: str) -> ServerError | None:
        is_one = code == codes.TOPIC_AUTHORIZATION_FAILED
        return codes.server_error(code, f"may not {operation} topic {name}") if is_one else None

    async def call_any(self, _call: Any) -> Sequence[DescribedConfigs]:
        self.asked += 1
        await self.answering.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def limits_of(brokers: Brokers) -> TargetLimits:
    return TargetLimits(cast("Cluster", brokers), SYSTEM_CLOCK)


async def test_a_second_caller_waits_for_the_question_and_a_refusal_asks_again() -> None:
    brokers = Brokers([described("t", 70_000)], [described("t", 80_000)])
    brokers.answering.clear()
    limits = limits_of(brokers)
    first = asyncio.create_task(limits.learn_sizes(["t"]))
    second = asyncio.create_task(limits.learn_sizes(["t"]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not second.done()
    brokers.answering.set()
    await asyncio.gather(first, second)
    assert limits.max_message_bytes("t") == 70_000
    assert brokers.asked == 1
    await limits.learn_sizes(["t"])
    assert brokers.asked == 1
    await limits.learn_sizes(["t"], max_age_s=0)
    assert limits.max_message_bytes("t") == 80_000


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        ([described("t", 0, codes.UNKNOWN_TOPIC_OR_PARTITION)], 70_000),
        (ConnectionFailedError("gone"), 70_000),
        ([described("t", 0, codes.TOPIC_AUTHORIZATION_FAILED)], 0),
        (UnsupportedVersionError("DescribeConfigs is not offered"), 0),
    ],
    ids=["topic not known yet", "no answer", "no right", "not offered"],
)
async def test_a_topic_is_asked_for_again_unless_its_limit_may_not_be_read(
    answer: list[DescribedConfigs] | Exception, size: int
) -> None:
    limits = limits_of(Brokers(answer, [described("t", 70_000)]))
    await limits.learn_sizes(["t"])
    assert (limits.is_old("t"), limits.max_message_bytes("t")) == (size > 0, 0)
    await limits.learn_sizes(["t"])
    assert limits.max_message_bytes("t") == size


async def test_limits_that_may_not_be_read_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    hidden = [described(it, 0, codes.TOPIC_AUTHORIZATION_FAILED) for it in ("t", "u")]
    limits = limits_of(Brokers(hidden, hidden))
    for _ in range(2):
        await limits.learn_sizes(["t", "u"], max_age_s=-1)
    (told,) = (it.getMessage() for it in caplog.records)
    assert "topics=t, u cause=" in told
    assert "may not DescribeConfigs topic t" in told


# -- partitions that lag on a distant target are dealt over several connections; each keeps its order


TARGETS = [TopicPartition("copy", number) for number in range(6)]
BATCHES = 120
RECORDS = 10
PAD = 1_000


class DistantRig(SendRig):
    """A Sender with a long way to one fake broker."""

    def enqueue_all(self) -> None:
        """Queue the records of one more turn for each target."""
        for target in TARGETS:
            for _ in range(BATCHES):
                self.enqueue(target, RECORDS, size=PAD)

    @property
    def connections(self) -> int:
        """How many connections there are to send by."""
        open_now = self.cluster._connections._open  # pyright: ignore[reportPrivateUsage]
        return sum(1 for _, purpose in open_now if purpose.startswith("produce"))

    def is_complete(self, rounds: int = 1) -> bool:
        whole = list(range(rounds * BATCHES * RECORDS))
        return all(self.stored(it) == self.arrived[it] == whole for it in TARGETS)


@asynccontextmanager
async def distant(
    *, connections: int = 5, round_trip_s: float = 0.03
) -> AsyncGenerator[DistantRig]:
    """Lanes are looked after ten times a round trip, and lag with little."""
    with pytest.MonkeyPatch.context() as patch, DelayProxy(round_trip_s=round_trip_s) as line:
        patch.setattr(sender, "LOOK_S", 0.003)
        patch.setattr(sender, "DEAL_BYTES", 1)
        async with FakeBroker(topics={"copy": len(TARGETS)}) as broker:
            port = line.front(broker.port)
            broker.cluster.brokers[broker.node_id] = ("127.0.0.1", port)
            async with connected_to(port, default_api_timeout_ms=60_000) as cluster:
                rig = DistantRig(broker, cluster, produce_connections_max=connections)
                await rig.sender.start()
                try:
                    yield rig
                finally:
                    await rig.sender.close()


async def test_partitions_that_lag_are_dealt_over_several_connections_each_in_order() -> None:
    async with distant() as rig:
        rig.enqueue_all()
        await eventually(lambda: rig.connections == 5)
        rig.enqueue_all()
        assert await rig.sender.flush(20)
        assert rig.is_complete(2)
        assert (rig.failed, rig.stalled) == ([], [])


@pytest.mark.parametrize(("connections", "round_trip_s"), [(1, 0.03), (5, 0.0)])
async def test_nearby_or_where_the_user_says_so_one_connection_is_enough(
    connections: int, round_trip_s: float
) -> None:
    async with distant(connections=connections, round_trip_s=round_trip_s) as rig:
        rig.enqueue_all()
        assert await rig.sender.flush(20)
        assert rig.is_complete()
        assert rig.connections == 1


async def test_connections_that_die_in_the_middle_lose_and_double_nothing() -> None:
    async with distant() as rig:
        for _ in range(3):
            rig.enqueue_all()
            await eventually(lambda: rig.connections >= 3)
            await rig.broker.disconnect()
        assert await rig.sender.flush(20)
        assert rig.is_complete(3)
        assert rig.failed == []


async def test_a_broker_that_accepts_few_connections_is_sent_everything_over_those() -> None:
    async with distant() as rig:
        rig.broker.most_connections = rig.broker.connections + 2
        rig.enqueue_all()
        await eventually(lambda: rig.broker.connections == rig.broker.most_connections)
        rig.enqueue_all()
        assert await rig.sender.flush(20)
        assert rig.is_complete(2)
        assert (rig.failed, rig.stalled) == ([], [])


async def test_while_a_broker_is_asked_whether_it_is_distant_no_compressed_batch_is_packed_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[MergePlan | None] = []
    take = SenderLane.take

    def noted(lane: SenderLane, plan: MergePlan | None = None) -> Sent:
        plans.append(plan)
        return take(lane, plan)

    monkeypatch.setattr(SenderLane, "take", noted)
    async with distant() as rig, asyncio.timeout(90):
        rounds = 0
        while not {node.ASKED, node.DISTANT} <= set(plans):
            rig.enqueue_all()
            rounds += 1
            assert await rig.sender.flush(20)
        assert rig.is_complete(rounds)
    assert node.ASKED.small_compressed == node.LOCAL.small_compressed
