"""Each post is answered once, whole, in order, whatever becomes of the batches around it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from mm2py.client.permit import UNLIMITED, Permit
from mm2py.client.send.record_writer import Post, RecordWriter
from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.clients import ProducerSettings
from mm2py.errors import FatalServerError, PartitionError, RetriableError
from mm2py.protocol.error_codes import (
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
)
from mm2py.protocol.produce import PRODUCE_KEY as PRODUCE
from mm2py.protocol.records import NewRecord, decode_batches
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from tests.kit.fakes.broker import FakeBroker
from tests.unit.client.client_stage import connected_to

TP = TopicPartition("configs", 0)
METADATA = 3


class Rig:
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
async def rig(
    *, in_flight: int = 5, permit: Permit = UNLIMITED, max_bytes: int = 0
) -> AsyncGenerator[Rig]:
    async with FakeBroker(topics={TP.topic: 1}) as broker, connected_to(broker) as cluster:
        if max_bytes:
            broker.partition(TP).max_message_bytes = max_bytes
        producer = ProducerSettings(
            connection=cluster.settings, max_in_flight_requests_per_connection=in_flight
        )
        writer = RecordWriter(cluster, producer, clock=SYSTEM_CLOCK, permit=permit)
        await writer.start()
        try:
            yield Rig(broker, writer)
        finally:
            await writer.close()


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("posts", [1, 10, 11, 50, 200])
async def test_each_of_many_posts_at_once_is_answered_with_its_own_offset(
    posts: int, in_flight: int
) -> None:
    async with rig(in_flight=in_flight) as it:
        for n in range(posts):
            it.post(f"post{n}", records=1 + n % 3)
        assert await it.writer.flush(10)
        offsets = count()
        expected = [[next(offsets) for _ in range(1 + n % 3)][:1] for n in range(posts)]
        assert [it.answers[f"post{n}"] for n in range(posts)] == expected


async def test_a_post_that_is_too_large_fails_alone_and_whole() -> None:
    async with rig(max_bytes=1_000) as it:
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


async def test_what_follows_a_refused_post_is_stored_and_no_duplicate_of_what_went_before() -> None:
    async with rig(max_bytes=1_000) as it:
        assert await it.writer.write(TP, [NewRecord(b"k", b"one", (), -1)]) == 0
        with pytest.raises(PartitionError):
            await it.writer.write(TP, [NewRecord(b"k", b"x" * 3_000, (), -1)])
        assert await it.writer.write(TP, [NewRecord(b"k", b"three", (), -1)]) == 1
        assert it.stored() == ["k", "k"]


async def test_a_post_that_is_taken_back_while_it_waits_is_never_written() -> None:
    async with rig(in_flight=1) as it:
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
    async with rig() as it:
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
    async with rig() as it:
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
    async with rig(permit=permit) as it:
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
    async with rig(permit=permit) as it:
        it.post("waiting")
        assert not await it.writer.flush(0)
        assert it.stored() == []
        permit.grant(SYSTEM_CLOCK.monotonic() + 60)
        assert await it.writer.flush(10)
        assert it.answers["waiting"] == [0]


async def test_a_closed_writer_fails_every_post_once() -> None:
    async with rig() as it:
        hold = it.broker.hold(PRODUCE)
        it.post("under way")
        await hold.arrived.wait()
        await it.writer.close()
        hold.release()
        (error,) = it.answers["under way"]
        assert isinstance(error, RetriableError)


async def test_invariant_5_a_topic_that_may_not_be_written_fails_its_posts_and_is_tried_anew() -> (
    None
):
    async with rig() as it:
        it.broker.fail_next(PRODUCE, TOPIC_AUTHORIZATION_FAILED, 5)
        it.post("first")
        it.post("second")
        await eventually(lambda: all(it.answers.values()))
        for (answer,) in it.answers.values():
            assert isinstance(answer, FatalServerError)
            assert TP.topic in str(answer)
        await it.writer.write(TP, [NewRecord(b"third", b"v", (), -1)])
        assert it.stored() == ["third"]
