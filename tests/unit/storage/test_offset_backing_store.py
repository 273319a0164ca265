"""The offset topic: partitions as Java chooses them, newest value wins, lookup by content."""

import pytest

from mm2py.storage.memory import MemoryOffsetBackingStore, MemoryTable, MemoryTopic
from mm2py.storage.offset_backing_store import KafkaOffsetBackingStore, OffsetMap
from mm2py.storage.table import murmur2

KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'
OTHER_ORDER = b'["MirrorSourceConnector", {"topic":"orders","partition":3,"cluster":"A"}]'


def _store(topic: MemoryTopic) -> KafkaOffsetBackingStore:
    return KafkaOffsetBackingStore(MemoryTable(topic))


def _topic() -> MemoryTopic:
    return MemoryTopic("mm2-offsets.A.internal")


async def test_a_commit_of_five_thousand_positions_is_read_back_whole() -> None:
    topic = _topic()
    store = _store(topic)
    await store.start()
    keys = [b'["c",{"cluster":"A","partition":%d,"topic":"orders"}]' % n for n in range(5_000)]
    await store.set({key: b'{"offset":%d}' % n for n, key in enumerate(keys)})
    assert await store.get(keys) == [b'{"offset":%d}' % n for n in range(5_000)]


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


async def test_a_written_value_is_read_back_after_a_restart() -> None:
    topic = _topic()
    store = _store(topic)
    await store.start()
    await store.set({KEY: b'{"offset":41}'})
    await store.stop()
    again = _store(topic)
    await again.start()
    assert await again.get([KEY, b'["x",{"a":1}]']) == [b'{"offset":41}', None]


async def test_get_sees_what_another_writer_added_meanwhile() -> None:
    topic = _topic()
    store = _store(topic)
    await store.start()
    topic.append(KEY, b'{"offset":7}')
    assert await store.get([KEY]) == [b'{"offset":7}']


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
    store = _store(_topic())
    await store.start()
    odd = b'["MirrorSourceConnector",{"note":null,"on":true,"rate":1.5}]'
    await store.set({KEY: b'{"offset":41}', odd: b"{}", b'["other",null]': b"{}"})
    await store.set({b'["MirrorSourceConnector",{"gone":1}]': b"{}"})
    await store.set({b'["MirrorSourceConnector",{"gone":1}]': None})
    assert await store.entries("MirrorSourceConnector") == {KEY: b'{"offset":41}', odd: b"{}"}
    assert await store.entries("unknown") == {}
