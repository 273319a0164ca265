"""What a task of ``df.write.format("mm2py")`` sends, refuses and waits for, against a scripted broker."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pyarrow as pa
import pytest

from mm2py.client.connect.connection import BrokerConnection
from mm2py.clock import SYSTEM_CLOCK, Clock, closing
from mm2py.errors import AuthenticationError, FatalError
from mm2py.protocol.columns import partition_of
from mm2py.protocol.records import Record, decode_batches
from mm2py.testing.waiting import eventually
from mm2py.types import TopicPartition
from mm2py_jobs.spark.row_sender import RowSender
from mm2py_jobs.spark.sink_rows import SinkRows
from tests.kit.fakes.broker import FakeBroker
from tests.kit.fakes.late_clock import LateClock

PRODUCE = 0
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TEXT_TYPES = [(pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())]


class Rig(NamedTuple):
    """A sender and its broker."""

    broker: FakeBroker
    sender: RowSender

    async def send(self, batch: pa.RecordBatch, topic: str | None = None) -> None:
        names = [it for it in batch.schema.names if it != "other"]
        await self.sender.take(SinkRows(batch, names, topic=topic, first=self.sender.rows))

    async def write(self, batch: pa.RecordBatch, topic: str) -> None:
        await self.send(batch, topic)
        await self.sender.finish()

    def records(self, topic: str, partition: int) -> list[Record]:
        log = self.broker.log(TopicPartition(topic, partition))
        return [it for data in log for batch in decode_batches(data) for it in batch.records]

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        return [it.value for it in self.records(topic, partition)]


@asynccontextmanager
async def sending(clock: Clock = SYSTEM_CLOCK, **topics: int) -> AsyncGenerator[Rig]:
    async with (
        FakeBroker(topics=topics) as broker,
        closing(
            RowSender({"bootstrap.servers": f"127.0.0.1:{broker.port}"}, 120, clock=clock)
        ) as sender,
    ):
        yield Rig(broker, sender)


def rows(*values: bytes, **columns: list[object] | pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})


@pytest.mark.parametrize("stuck", [False, True])
async def test_the_time_that_rows_take_to_come_is_no_time_that_the_target_takes_nothing(
    *, stuck: bool
) -> None:
    clock = LateClock()
    async with sending(clock, t=1) as rig:
        await rig.send(rows(b"v"), "t")
        await rig.sender.finish()
        clock.ahead_s += 200  # longer than delivery.timeout.ms
        hold = rig.broker.hold(PRODUCE)
        if not stuck:
            hold.release()
        await rig.send(rows(b"w"), "t")
        if stuck:
            await hold.arrived.wait()
            clock.ahead_s += 121
            with pytest.raises(FatalError, match="the target has taken nothing for 120 s"):
                await rig.sender.finish()
            return
        await rig.sender.finish()
        assert rig.values("t", 0) == [b"v", b"w"]


@pytest.mark.parametrize("writes", [False, True])
async def test_a_login_that_is_refused_ends_the_task_at_once_by_name(
    monkeypatch: pytest.MonkeyPatch, *, writes: bool
) -> None:
    async def refuse(*_: object, **_named: object) -> BrokerConnection:
        raise AuthenticationError("b1:9092 refused the login of user mm")

    async with sending(t=1) as rig:
        if writes:
            await rig.send(rows(b"v"), "t")
            await rig.sender.finish()
        monkeypatch.setattr(BrokerConnection, "open", refuse)
        await rig.broker.disconnect()
        with pytest.raises(FatalError, match="refused the login of user mm"):
            await rig.write(rows(b"w"), "t")


async def test_a_quota_that_holds_rows_back_for_longer_is_named() -> None:
    clock = LateClock()
    async with sending(clock, t=1) as rig:
        rig.broker.cluster.produce_throttle_ms = 500_000
        await rig.send(rows(b"v"), "t")
        await rig.sender.finish()
        await rig.send(rows(b"w"), "t")
        clock.ahead_s += 121
        with pytest.raises(
            FatalError, match=r"1 records wait: a quota .* back for [45]\d\d s more"
        ):
            await rig.sender.finish()


@pytest.mark.parametrize("types", TEXT_TYPES)
@pytest.mark.parametrize("from_row", [0, 1])
async def test_rows_are_records_whatever_types_their_columns_have(
    types: tuple[pa.DataType, pa.DataType], from_row: int
) -> None:
    text, binary = types
    columns = {
        "other": pa.array([0, 1, 2, 3]),
        "key": pa.array(["cut off", "\u00e9", None, ""], text),
        "value": pa.array([b"", b"\xff", b"", None], binary),
        "topic": pa.array(["t", "t", "u", "t"], text),
        "partition": pa.array([0, None, 0, 2], pa.int32()),
        "headers": pa.array([[{"key": "x", "value": b""}], None, [], [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]], HEADERS),
    }  # fmt: skip
    batch = pa.RecordBatch.from_arrays([*columns.values()], [*columns])
    at = partition_of("\u00e9".encode(), 3)
    async with sending(t=3, u=1) as rig:
        await rig.send(batch.slice(1) if from_row else batch)
        await rig.sender.finish()
        found = {
            tp: [(it.key, it.value, it.headers) for it in rig.records(*tp)]
            for tp in [("t", 0), ("t", 1), ("t", 2), ("u", 0)]
        }
        expected: dict[tuple[str, int], list[object]] = {tp: [] for tp in found}
        if not from_row:
            expected["t", 0].append((b"cut off", b"", ((b"x", b""),)))
        expected["t", at].append(("\u00e9".encode(), b"\xff", ()))
        expected["u", 0].append((None, b"", ()))
        expected["t", 2].append((b"", None, ((b"h", b"1"), (b"n", None))))
        assert found == expected
        assert rig.sender.rows == 4 - from_row


async def test_rows_of_a_key_keep_their_order_and_those_without_are_dealt_out() -> None:
    keys: list[object] = [None if n % 2 else b"k%d" % (n % 8) for n in range(4000)]
    batch = rows(*(b"%04d" % n * 400 for n in range(4000)), key=keys)
    async with sending(t=3) as rig:
        await rig.send(batch, "t")
        await rig.sender.finish()
        found = {number: rig.records("t", number) for number in range(3)}
        for number, records in found.items():
            assert any(it.key is None for it in records)
            for key in {it.key for it in records} - {None}:
                values = [it.value or b"" for it in records if it.key == key]
                assert number == partition_of(key or b"", 3)
                assert values == sorted(values)
        assert sum(map(len, found.values())) == 4000


async def test_a_row_that_is_refused_is_named_by_its_number_in_the_task() -> None:
    async with sending(t=2) as rig:
        rig.broker.partition(TopicPartition("t", 1)).max_message_bytes = 2000
        numbers: list[object] = [0, 1, 0, 1, 1]
        await rig.send(rows(*[b"v"] * 5, partition=numbers), "t")
        batch = rows(b"v", b"v", b"v", b"x" * 5000, b"v", partition=numbers)
        # Either may be the one that learns of it.
        found = await asyncio.gather(rig.send(batch, "t"), return_exceptions=True)
        if not isinstance(found[0], FatalError):
            found = await asyncio.gather(rig.sender.finish(), return_exceptions=True)
        assert str(found[0]).startswith("row 8 of this task was not taken by topic t: ")
        assert "MESSAGE_TOO_LARGE" in str(found[0])


@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"topic": ["t", None]}, "row 1 has no topic"),
        ({"topic": ["", "t"]}, "row 0 has no topic"),
        ({"topic": ["t", "u"], "partition": [None, -1]}, "row 1 has the partition -1"),
        ({"topic": ["t", "u"], "partition": [1, 1]}, "row 1 of this task names partition 1 of topic u, which has 1"),
    ],
)  # fmt: skip
async def test_a_row_without_a_place_is_named(columns: dict[str, list[object]], cause: str) -> None:
    numbers = columns.get("partition")
    typed = dict(columns) | ({"partition": pa.array(numbers, pa.int32())} if numbers else {})
    async with sending(t=2, u=1) as rig:
        with pytest.raises(FatalError, match=cause):
            await rig.send(rows(b"v", b"w", **typed))


async def test_a_topic_that_comes_later_is_waited_for_and_a_partition_too() -> None:
    async with sending(t=1) as rig:
        sent = asyncio.ensure_future(rig.send(rows(b"v"), "late"))
        await eventually(lambda: rig.broker.count(3) > 2)
        rig.broker.create_topic("late", 1)
        await sent
        await rig.sender.finish()
        assert rig.values("late", 0) == [b"v"]
