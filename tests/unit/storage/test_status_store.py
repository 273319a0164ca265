"""The stores of statuses and of offsets: records as Java writes them, rules of safe puts, newest value wins; the file, and known producer ids."""

import asyncio
import logging
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mm2py.errors import (
    ConfigError,
    PartitionError,
    ProtocolError,
    RequestTimedOutError,
    RetriableError,
)
from mm2py.mirror.producer_ids import decode_producer
from mm2py.protocol.columns import murmur2
from mm2py.protocol.records import Record
from mm2py.storage import producer_id_store
from mm2py.storage.memory import MemoryTable, MemoryTopic, memory_statuses
from mm2py.storage.offset_backing_store import (
    FileOffsetBackingStore,
    KafkaOffsetBackingStore,
    OffsetMap,
)
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.storage.status_backing_store import StatusBackingStore
from mm2py.storage.status_records import (
    StoredStatus,
    TopicUse,
    decode_status_record,
    status_key,
    status_value,
    topic_key,
    topic_value,
)
from mm2py.testing.waiting import eventually
from mm2py.types import State, TaskId
from tests.kit.fakes.stores import HeldTable, a_producer

TASK = TaskId("c-x", 1)
RUNNING = StoredStatus(state=State.RUNNING, worker_id="here:8083", generation=7, version="4.3.1")
FAILED = replace(RUNNING, state=State.FAILED, trace="boom")
PAUSED = replace(RUNNING, state=State.PAUSED)
THERE = replace(RUNNING, worker_id="there:8083")
USE = TopicUse("t", "c:x", 0, 1_700_000_000_000)


class Bench:
    def __init__(self) -> None:
        self.topic = MemoryTopic("statuses")
        self.store = memory_statuses(self.topic)

    async def flushed(self) -> None:
        assert await self.store.flush(5)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def other(self, work: str | TaskId, status: StoredStatus) -> None:
        """Another worker writes."""
        self.topic.append(status_key(work), status_value(status))

    def written(self) -> list[bytes | None]:
        return [record.key for record in self.topic.records]


@pytest.fixture
@asynccontextmanager
async def bench() -> AsyncGenerator[Bench]:
    bench = Bench()
    await bench.store.start()
    try:
        yield bench
    finally:
        await bench.store.stop()
        await bench.store.stop()


def test_records_are_javas() -> None:
    assert status_key("c-x") == b"status-connector-c-x"
    assert status_key(TASK) == b"status-task-c-x-1"
    assert status_value(RUNNING) == (
        b'{"state":"RUNNING","trace":null,"worker_id":"here:8083","generation":7,"version":"4.3.1"}'
    )
    assert status_value(replace(RUNNING, state=State.DESTROYED)) is None
    assert topic_key("c:x", "t") == b"status-topic-t:connector-c:x"
    assert topic_value(USE) == (
        b'{"topic":{"name":"t","connector":"c:x","task":0,"discoverTimestamp":1700000000000}}'
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, None),
        (b"else", b"{}"),
        (b"status-connector-", b"{}"),
        (b"status-task-c", None),
        (b"status-task--0", None),
        (b"status-topic-t", None),
        (b"status-topic-:connector-c", None),
        (b"status-topic-t:connector-", None),
        (b"status-topic-t:c", None),
        (b"status-topic-t:connector-c", b'{"topic":[]}'),
        (b"status-topic-t:connector-c", b'{"topic":{"name":"t","connector":"c","task":0}}'),
        (b"status-connector-c", b"{}"),
        (b"status-connector-c", b'{"state":"GOOD","worker_id":"w","generation":1}'),
        (b"status-connector-c", b'{"state":"RUNNING","worker_id":"w","generation":"1"}'),
        (b"status-connector-c", b'{"state":"RUNNING","generation":1}'),
        (b"status-connector-c", b'{"state":"RUNNING","worker_id":"w","generation":1,"trace":1}'),
    ],
)
def test_what_is_not_in_form_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        decode_status_record(key, value)


async def test_a_state_is_there_after_read_back_and_gone_after_its_tombstone(bench: Bench) -> None:
    bench.store.put("c-x", RUNNING)
    bench.store.put(TASK, FAILED)
    assert bench.store.get(TASK) is None
    await bench.flushed()
    assert bench.store.get("c-x") == RUNNING
    assert bench.store.tasks("c-x") == {1: FAILED}
    assert bench.store.connectors() == {"c-x"}
    bench.store.put(TASK, replace(RUNNING, state=State.DESTROYED))
    await bench.flushed()
    assert (bench.store.get(TASK), bench.store.tasks("c-x")) == (None, {})


async def test_the_tombstone_of_a_connector_drops_its_tasks(bench: Bench) -> None:
    bench.store.put("c-x", RUNNING)
    bench.store.put(TASK, RUNNING)
    bench.store.put("c-x", replace(RUNNING, state=State.DESTROYED))
    await bench.flushed()
    assert (bench.store.connectors(), bench.store.tasks("c-x")) == (frozenset(), {})


@pytest.mark.parametrize(
    ("known", "passes"),
    [
        (None, True),
        (replace(RUNNING, generation=9), True),
        (replace(THERE, generation=7), True),
        (replace(THERE, generation=8), False),
    ],
)
async def test_a_safe_put_gives_way_to_a_newer_state_of_another_worker(
    bench: Bench, known: StoredStatus | None, passes: bool
) -> None:
    if known is not None:
        bench.other(TASK, known)
        await bench.flushed()
    bench.store.put(TASK, FAILED, safe=True)
    await bench.flushed()
    assert bench.store.get(TASK) == (FAILED if passes else known)
    bench.store.put(TASK, FAILED)
    await bench.flushed()
    assert bench.store.get(TASK) == FAILED


async def test_a_late_unassigned_of_a_task_is_ignored_under_running(bench: Bench) -> None:
    unassigned = replace(THERE, state=State.UNASSIGNED)
    bench.other(TASK, RUNNING)
    bench.other("c-x", RUNNING)
    bench.other(TASK, unassigned)
    bench.other("c-x", unassigned)
    await bench.flushed()
    assert bench.store.get(TASK) == RUNNING
    assert bench.store.get("c-x") == unassigned
    newer = replace(unassigned, generation=8)
    bench.other(TASK, newer)
    await bench.flushed()
    assert bench.store.get(TASK) == newer


async def test_topics_are_of_a_connector_and_forgotten_even_before_read_back(bench: Bench) -> None:
    bench.store.put_topic(USE)
    bench.store.put_topic(replace(USE, connector="d"))
    await bench.flushed()
    assert bench.store.topics("c:x") == {"t": USE}
    bench.store.put_topic(replace(USE, topic="u"))
    bench.store.delete_topics("c:x")
    await bench.flushed()
    assert bench.store.topics("c:x") == {}
    assert set(bench.store.topics("d")) == {"t"}


async def test_states_put_before_the_start_are_written_after_it() -> None:
    store = memory_statuses()
    store.put(TASK, RUNNING)
    assert not await store.flush(0.01)
    await store.start()
    assert await store.flush(5)
    await store.stop()


async def test_damaged_records_are_ignored(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench.other(TASK, RUNNING)
    bench.topic.append(status_key(TASK), b"{}")
    bench.topic.append(b"else", None)
    await bench.flushed()
    assert bench.store.get(TASK) == RUNNING
    assert caplog.text.count("status record is ignored topic=statuses partition=0") == 2


async def test_a_safe_put_that_waits_is_taken_back_for_a_newer_state_and_errors_stop_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = HeldTable()
    store = StatusBackingStore(table)
    await store.start()
    store.put("c", RUNNING)
    store.put(TASK, FAILED, safe=True)
    store.put(TASK, RUNNING)
    # The cluster was away, and meanwhile the task runs elsewhere.
    newer = replace(THERE, generation=8)
    table.handle(0, Record(0, 1, status_key(TASK), status_value(newer)))
    (_, first), (_, safe), (last, unsafe) = table.posted
    first.set_exception(PartitionError("refused", topic="statuses", partition=0))
    assert safe.cancelled()
    assert last == (status_key(TASK), status_value(RUNNING))
    assert not await store.flush(0.01)
    unsafe.set_result(1)
    assert await store.flush(5)
    await store.stop()
    assert "state was not written topic=held" in caplog.text


async def test_a_lost_write_is_a_problem_and_posted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every display reads states from here: without that a paused flow stays RUNNING there."""
    monkeypatch.setattr("mm2py.storage.status_backing_store.WRITE_S", 0.2)
    table = HeldTable()
    store = StatusBackingStore(table)
    await store.start()
    store.put("c", RUNNING)
    store.put(TASK, RUNNING)
    store.put("c", PAUSED)
    (_, stale), (_, task), (_, paused) = table.posted
    task.set_exception(PartitionError("no leave", topic="statuses", partition=0))
    await eventually(lambda: len(table.posted) == 5, within_s=60)
    assert stale.cancelled()
    assert paused.cancelled(), "posts that are late are taken back, so that the topic is looked for"
    assert "no leave" in store.problems()["topic held"]
    assert "not acknowledged within" in store.problems()["topic held"]
    again = dict(table.posted[3:])
    assert set(again) == {
        (status_key("c"), status_value(PAUSED)),
        (status_key(TASK), status_value(RUNNING)),
    }, "the older state of c is not written behind the newer one"
    for answer in again.values():
        answer.set_result(1)
    await asyncio.sleep(0)
    assert store.problems() == {}
    # Refused, and meanwhile another worker has the task.
    store.put(TASK, FAILED)
    table.posted[-1][1].set_exception(PartitionError("no leave", topic="statuses", partition=0))
    table.handle(0, Record(0, 1, status_key(TASK), status_value(replace(THERE, generation=8))))
    await eventually(lambda: store.problems() == {}, within_s=60)
    assert len(table.posted) == 6
    await store.stop()


# ---- offsets: partitions as Java chooses them, the file, and known producer ids


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
    topic.append(b"a stray line", b"x")
    assert await store.includes(1)
    assert not await store.includes(5)
    assert not await store.includes(-1)
    await other.publish(a_producer(2))
    assert await store.includes(2)
    reads = len(topic.records)
    assert not await store.includes(5)  # it never will be: it was used before it was asked for
    assert len(topic.records) == reads
