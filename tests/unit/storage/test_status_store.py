"""The status store: records as Java writes them, rules of safe puts and of reading."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.errors import PartitionError, ProtocolError
from mm2py.protocol.records import Record
from mm2py.storage.memory import MemoryTopic, memory_statuses
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
from tests.unit.storage.held_table import HeldTable

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
