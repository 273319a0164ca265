"""Producer ids are published, acknowledged, before their caller may use them."""

import asyncio
from collections.abc import Sequence

import pytest

from mm2py.errors import ConfigError, RequestTimedOutError
from mm2py.mirror.producer_ids import MirrorProducer, decode_producer
from mm2py.storage import producer_id_store
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.producer_id_store import ProducerIdStore
from mm2py.storage.table import Entry, Handler
from mm2py.testing.waiting import eventually


def producer(producer_id: int) -> MirrorProducer:
    return MirrorProducer(
        producer_id=producer_id,
        flow="A->B",
        source="A",
        source_cluster="id",
        task="t-0",
        worker="w",
        time_ms=1,
    )


class SlowTable:
    """A table whose answers are given by the test."""

    topic = "mm2py-producers.internal"

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[int]] = []
        self.start_errors: list[Exception] = []
        self.starts = 0

    async def start(self, handle: Handler) -> None:
        del handle
        if self.start_errors:
            raise self.start_errors.pop()
        self.starts += 1

    async def stop(self) -> None:
        """Nothing to close."""

    async def read_to_end(self, timeout_s: float) -> None:
        """Not used."""

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        assert len(entries) == 1
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


async def test_a_published_id_is_in_the_topic() -> None:
    topic = MemoryTopic("mm2py-producers.internal")
    store = ProducerIdStore(MemoryTable(topic))
    await asyncio.gather(store.publish(producer(1)), store.publish(producer(2)))
    await store.close()
    found = [decode_producer(it.key, it.value or b"") for it in topic.records]
    assert found == [producer(1), producer(2)]


async def test_it_returns_with_the_acknowledgement_and_not_before() -> None:
    table = SlowTable()
    publishing = asyncio.create_task(ProducerIdStore(table).publish(producer(1)))
    await eventually(lambda: bool(table.answers))
    assert not publishing.done()
    table.answers[0].set_result(0)
    await publishing


async def test_an_id_that_is_not_acknowledged_in_time_is_taken_back_and_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_id_store, "PUBLISH_S", 0.01)
    table = SlowTable()
    with pytest.raises(RequestTimedOutError, match="producer id 1 could not be published"):
        await ProducerIdStore(table).publish(producer(1))
    assert table.answers[0].cancelled()


async def test_a_topic_that_cannot_be_used_is_named_and_opened_again_by_the_next_call() -> None:
    table = SlowTable()
    table.start_errors.append(ConfigError("not compacted"))
    store = ProducerIdStore(table)
    with pytest.raises(ConfigError, match="not compacted"):
        await store.publish(producer(1))
    again = asyncio.create_task(store.publish(producer(2)))
    await eventually(lambda: bool(table.answers))
    table.answers[0].set_result(0)
    await again
    assert table.starts == 1


async def test_ids_of_all_mirrors_of_the_target_are_known_also_new_ones() -> None:
    topic = MemoryTopic("mm2py-producers.internal")
    store, other = ProducerIdStore(MemoryTable(topic)), ProducerIdStore(MemoryTable(topic))
    await other.publish(producer(1))
    assert await store.includes(1)
    assert not await store.includes(5)
    await other.publish(producer(2))
    assert await store.includes(2)
    reads = len(topic.records)
    assert not await store.includes(5)  # it never will be: it was used before it was asked for
    assert len(topic.records) == reads
