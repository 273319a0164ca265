"""The offset topic: partitions as Java chooses them, newest value wins, lookup by content."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from mm2py.errors import FatalError, RetriableError
from mm2py.protocol.records import NewRecord, Record
from mm2py.storage.memory import MemoryOffsetBackingStore
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore, murmur2, partition_of
from mm2py.storage.offset_entries import OffsetMap
from mm2py.types import TopicPartition

KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'
OTHER_ORDER = b'["MirrorSourceConnector", {"topic":"orders","partition":3,"cluster":"A"}]'


class Log:
    """A topic in memory: writer and reader of it."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes | None, bytes | None]] = []
        self.position = 0
        self.events: list[str] = []
        self.refuse: Exception | None = None

    async def start(self) -> None:
        self.events.append("start")

    async def close(self) -> None:
        self.events.append("close")

    def suspend(self) -> None:
        self.events.append("suspend")

    def resume(self) -> None:
        self.events.append("resume")

    async def write(self, tp: TopicPartition, records: Sequence[NewRecord]) -> int:
        await asyncio.sleep(0)
        if self.refuse is not None:
            raise self.refuse
        base = len(self.records)
        self.records += [(tp.partition, record.key, record.value) for record in records]
        return base

    async def read_to_end(self, handle: Callable[[int, Record], None]) -> None:
        await asyncio.sleep(0)
        while self.position < len(self.records):
            partition, key, value = self.records[self.position]
            handle(partition, Record(self.position, 0, key, value, ()))
            self.position += 1


def _store(log: Log, partitions: int = 25) -> KafkaOffsetBackingStore:
    async def prepare() -> int:
        log.position = 0
        return partitions

    return KafkaOffsetBackingStore(
        "mm2-offsets.A.internal", prepare=prepare, writer=lambda: log, reader=lambda: log
    )


# Answers of org.apache.kafka.common.utils.Utils.murmur2, from Kafka's own UtilsTest.
@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


async def test_a_suspended_store_refuses_positions_and_goes_on_afterwards() -> None:
    log = Log()
    store = _store(log)
    await store.start()
    store.suspend()
    with pytest.raises(RetriableError, match="membership is in doubt"):
        await store.set({KEY: b'{"offset":41}'})
    store.resume()
    await store.set({KEY: b'{"offset":42}'})
    assert log.events == ["start", "suspend", "resume"]
    assert [value for _, _, value in log.records] == [b'{"offset":42}']


async def test_a_written_value_is_read_back_after_a_restart() -> None:
    log = Log()
    store = _store(log)
    await store.start()
    await store.set({KEY: b'{"offset":41}'})
    assert log.records == [(partition_of(KEY, 25), KEY, b'{"offset":41}')]
    await store.stop()
    again = _store(log)
    await again.start()
    assert await again.get([KEY, b'["x",{"a":1}]']) == [b'{"offset":41}', None]


async def test_get_sees_what_another_writer_added_meanwhile() -> None:
    log = Log()
    store = _store(log)
    await store.start()
    log.records.append((0, KEY, b'{"offset":7}'))
    assert await store.get([KEY]) == [b'{"offset":7}']


async def test_values_go_out_as_one_batch_per_partition() -> None:
    log = Log()
    store = _store(log, partitions=1)
    await store.start()
    keys = [b'["c",{"p":%d}]' % number for number in range(5)]
    await store.set(dict.fromkeys(keys, b"{}"))
    assert [key for _, key, _ in log.records] == keys


async def test_a_refused_write_is_the_callers_error() -> None:
    log = Log()
    store = _store(log)
    await store.start()
    log.refuse = FatalError("not authorised")
    with pytest.raises(FatalError):
        await store.set({KEY: b"{}"})


async def test_stop_is_safe_twice_and_start_reopens() -> None:
    log = Log()
    store = _store(log)
    await store.stop()
    await store.start()
    await store.stop()
    await store.stop()
    await store.start()
    assert log.events == ["start", "close", "close", "start"]


def test_a_key_is_found_by_content_when_another_writer_ordered_it_otherwise() -> None:
    offsets = OffsetMap()
    offsets.put(OTHER_ORDER, b'{"offset":1}')
    assert offsets.get(KEY) == b'{"offset":1}'
    offsets.put(KEY, b'{"offset":2}')
    assert offsets.get(KEY) == b'{"offset":2}', "the exact bytes win"


def test_a_tombstone_ends_a_value() -> None:
    offsets = OffsetMap()
    offsets.put(KEY, b'{"offset":1}')
    offsets.put(KEY, None)
    assert offsets.get(KEY) is None


@pytest.mark.parametrize("key", [b"", b"{}", b'["only one"]', b"\xff", b'[1,{"a":1}]'])
def test_malformed_keys_are_named_and_skipped(key: bytes, caplog: pytest.LogCaptureFixture) -> None:
    offsets = OffsetMap()
    offsets.put(key, b"{}")
    assert len(offsets) == 0
    assert "offset record is ignored" in caplog.text


async def test_the_memory_store_keeps_the_same_contract() -> None:
    store = MemoryOffsetBackingStore()
    await store.start()
    await store.set({OTHER_ORDER: b'{"offset":1}'})
    assert await store.get([KEY]) == [b'{"offset":1}']
    await store.set({OTHER_ORDER: None})
    assert await store.get([KEY]) == [None]
    await store.stop()


async def test_the_entries_of_a_connector_are_listed_as_stored_without_tombstones() -> None:
    log = Log()
    store = _store(log)
    await store.start()
    odd = b'["MirrorSourceConnector",{"note":null,"on":true,"rate":1.5}]'
    await store.set({KEY: b'{"offset":41}', odd: b"{}", b'["other",null]': b"{}"})
    await store.set({b'["MirrorSourceConnector",{"gone":1}]': b"{}"})
    await store.set({b'["MirrorSourceConnector",{"gone":1}]': None})
    assert await store.entries("MirrorSourceConnector") == {KEY: b'{"offset":41}', odd: b"{}"}
    assert await store.entries("unknown") == {}
