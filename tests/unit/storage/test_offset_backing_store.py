"""Stores of offsets: partitions as Java chooses them, newest value wins; the file, and known producer ids."""

import asyncio
import stat
from pathlib import Path

import pytest

from mm2py.errors import ConfigError, RequestTimedOutError, RetriableError
from mm2py.mirror.producer_ids import decode_producer
from mm2py.storage import producer_id_store
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.offset_backing_store import (
    FileOffsetBackingStore,
    KafkaOffsetBackingStore,
    OffsetMap,
)
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.storage.table import murmur2
from mm2py.testing.waiting import eventually
from tests.kit.fakes.mirror_records import a_producer
from tests.kit.fakes.offset_store import MemoryOffsetBackingStore
from tests.unit.storage.held_table import HeldTable

KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"orders"}]'
OTHER_ORDER = b'["MirrorSourceConnector", {"topic":"orders","partition":3,"cluster":"A"}]'


def _topic() -> MemoryTopic:
    return MemoryTopic("mm2-offsets.A.internal")


async def _started(topic: MemoryTopic) -> KafkaOffsetBackingStore:
    store = KafkaOffsetBackingStore(MemoryTable(topic))
    await store.start()
    return store


async def test_a_commit_of_five_thousand_positions_is_read_back_whole() -> None:
    store = await _started(_topic())
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
    store = await _started(topic)
    await store.set({KEY: b'{"offset":41}'})
    await store.stop()
    again = await _started(topic)
    assert await again.get([KEY, b'["x",{"a":1}]']) == [b'{"offset":41}', None]


async def test_get_sees_what_another_writer_added_meanwhile() -> None:
    topic = _topic()
    store = await _started(topic)
    topic.append(KEY, b'{"offset":7}')
    assert await store.get([KEY]) == [b'{"offset":7}']


def test_a_key_is_found_by_content_when_another_writer_ordered_it_otherwise() -> None:
    offsets = OffsetMap()
    offsets.put(OTHER_ORDER, b'{"offset":1}')
    assert offsets.get(KEY) == b'{"offset":1}'
    offsets.put(KEY, b'{"offset":2}')
    assert offsets.get(KEY) == b'{"offset":2}', "the exact bytes win"


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
    store = await _started(_topic())
    odd = b'["MirrorSourceConnector",{"note":null,"on":true,"rate":1.5}]'
    await store.set({KEY: b'{"offset":41}', odd: b"{}", b'["other",null]': b"{}"})
    await store.set({b'["MirrorSourceConnector",{"gone":1}]': b"{}"})
    await store.set({b'["MirrorSourceConnector",{"gone":1}]': None})
    assert await store.entries("MirrorSourceConnector") == {KEY: b'{"offset":41}', odd: b"{}"}
    assert await store.entries("unknown") == {}


SMALL_KEY = b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"gr\xc3\xb6\xc3\x9fe"}]'
OTHER = b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]'


async def opened(path: Path) -> FileOffsetBackingStore:
    store = FileOffsetBackingStore(path)
    await store.start()
    return store


async def test_offsets_are_there_after_a_restart_and_tombstones_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = await opened(path)
    assert await store.get([SMALL_KEY]) == [None]
    await store.set({SMALL_KEY: b'{"offset":1}', OTHER: b'{"offset":0}'})
    await store.set({SMALL_KEY: b'{"offset":2}'})
    await store.set({OTHER: None})
    await store.stop()
    again = await opened(path)
    assert await again.get([SMALL_KEY, OTHER]) == [b'{"offset":2}', None]
    assert await again.entries("MirrorSourceConnector") == {SMALL_KEY: b'{"offset":2}'}
    assert [entry.name for entry in tmp_path.iterdir()] == ["offsets.json"]
    assert stat.S_IMODE((tmp_path / "offsets.json").stat().st_mode) == 0o600


async def test_a_failed_write_leaves_the_old_file_and_the_old_values(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    store = await opened(path)
    await store.set({SMALL_KEY: b'{"offset":1}'})
    (tmp_path / ".offsets.json.new").mkdir()
    with pytest.raises(RetriableError, match=r"offsets cannot be written to .*offsets\.json"):
        await store.set({SMALL_KEY: b'{"offset":2}'})
    assert await store.get([SMALL_KEY]) == [b'{"offset":1}']
    assert await (await opened(path)).get([SMALL_KEY]) == [b'{"offset":1}']
    (tmp_path / ".offsets.json.new").rmdir()
    await store.set({SMALL_KEY: b'{"offset":2}'})


@pytest.mark.parametrize(
    "content",
    [
        b"\xac\xed\x00\x05sr",
        b"",
        b"[]",
        b"{}",
        b'{"format":"mm2py-offsets-2","offsets":{}}',
        b'{"format":"mm2py-offsets-1","offsets":{"a":1}}',
    ],
)
async def test_a_file_of_another_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no offset file of mm2py"):
        await opened(path)
    assert path.read_bytes() == content


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"offset\.storage\.file\.filename=.* cannot be read"):
        await opened(tmp_path)


async def test_a_published_id_is_in_the_topic() -> None:
    topic = MemoryTopic("mm2py-producers.internal")
    store = ProducerIdStore(MemoryTable(topic))
    await asyncio.gather(store.publish(a_producer(1)), store.publish(a_producer(2)))
    await store.close()
    found = [decode_producer(it.key, it.value or b"") for it in topic.records]
    assert found == [a_producer(1), a_producer(2)]


async def test_it_returns_with_the_acknowledgement_and_not_before() -> None:
    table = HeldTable()
    publishing = asyncio.create_task(ProducerIdStore(table).publish(a_producer(1)))
    await eventually(lambda: bool(table.posted))
    assert not publishing.done()
    table.posted[0][1].set_result(0)
    await publishing


async def test_an_id_without_acknowledgement_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_id_store, "PUBLISH_S", 0.01)
    table = HeldTable()
    with pytest.raises(RequestTimedOutError, match="producer id 1 could not be published"):
        await ProducerIdStore(table).publish(a_producer(1))
    assert table.posted[0][1].cancelled()


async def test_a_topic_that_cannot_be_used_is_named_and_opened_again_by_the_next_call() -> None:
    table = HeldTable()
    table.start_errors.append(ConfigError("not compacted"))
    store = ProducerIdStore(table)
    with pytest.raises(ConfigError, match="not compacted"):
        await store.publish(a_producer(1))
    again = asyncio.create_task(store.publish(a_producer(2)))
    await eventually(lambda: bool(table.posted))
    table.posted[0][1].set_result(0)
    await again
    assert table.starts == 1


async def test_ids_of_all_mirrors_of_the_target_are_known_also_new_ones() -> None:
    topic = MemoryTopic("mm2py-producers.internal")
    store, other = ProducerIdStore(MemoryTable(topic)), ProducerIdStore(MemoryTable(topic))
    await other.publish(a_producer(1))
    assert await store.includes(1)
    assert not await store.includes(5)
    await other.publish(a_producer(2))
    assert await store.includes(2)
    reads = len(topic.records)
    assert not await store.includes(5)  # it never will be: it was used before it was asked for
    assert len(topic.records) == reads
