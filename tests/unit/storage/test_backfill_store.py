"""The fold over the backfill topic: which partitions the live flow must not copy, and which worker has noticed."""

from dataclasses import replace

import pytest

from mm2py.errors import FatalError
from mm2py.mirror.backfills import (
    Job,
    JobState,
    Lease,
    LeaseState,
    Notice,
    Wanted,
    Wish,
    encode_backfill,
)
from mm2py.storage.backfill_store import BackfillStore, decoded_backfills
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.waiting import until
from mm2py.types import TopicPartition

JOB = Job(id="one", state=JobState.RUNNING, run=1, lanes=1)
LEASE = Lease(
    topic="t", partition=0, job="one", run=1, state=LeaseState.RESERVED, start=0, end=9, position=0
)
TP = TopicPartition("t", 0)


async def _store(topic: MemoryTopic) -> BackfillStore:
    store = BackfillStore(MemoryTable(topic))
    await store.start()
    return store


async def test_partitions_of_lanes_are_kept_from_the_live_flow_until_they_are_handed_over() -> None:
    topic = MemoryTopic("backfill")
    driver, worker = await _store(topic), await _store(topic)
    changes: list[int] = []
    worker.listen(lambda: changes.append(worker.offset))
    await driver.post([JOB, LEASE])
    await until(lambda: set(worker.kept_out()) == {TP})
    await driver.post([replace(LEASE, state=LeaseState.COPYING)])
    await until(lambda: worker.leases[TP].state is LeaseState.COPYING)
    assert set(worker.kept_out()) == {TP}
    await driver.post([replace(LEASE, state=LeaseState.HANDED_OVER)])
    await until(lambda: not worker.kept_out())
    assert changes == [1, 2, 3, 4]


async def test_partitions_of_an_older_job_or_of_one_that_is_over_are_not_kept_out() -> None:
    topic = MemoryTopic("backfill")
    store = await _store(topic)
    await store.post([JOB, LEASE, replace(JOB, id="two")])
    await store.refresh()
    assert store.kept_out() == {}
    await store.post([replace(JOB, state=JobState.CANCELLED)])
    await store.refresh()
    assert store.leases.keys() == {TP}
    assert store.kept_out() == {}


async def test_a_wish_counts_for_its_job_only() -> None:
    store = await _store(MemoryTopic("backfill"))
    await store.post([JOB, Wish(job="another", wanted=Wanted.CANCEL)])
    await store.refresh()
    assert store.wanted.value == "RUN"
    await store.post([Wish(job="one", wanted=Wanted.PAUSE)])
    await store.refresh()
    assert store.wanted.value == "PAUSE"


async def test_notices_are_forgotten_together() -> None:
    store = await _store(MemoryTopic("backfill"))
    await store.post([Notice(worker="w", offset=3)])
    await store.refresh()
    assert store.noticed("w") == 3
    assert store.noticed("other") == -1
    await store.forget_notices()
    await store.refresh()
    assert store.noticed("w") == -1


async def test_a_damaged_record_is_passed() -> None:
    topic = MemoryTopic("backfill")
    topic.append(b"job", b"\x09")
    topic.append(*encode_backfill(JOB))
    store = await _store(topic)
    assert store.job == JOB
    assert store.offset == 2


async def test_a_job_of_a_newer_version_is_not_taken_for_no_job() -> None:
    topic = MemoryTopic("backfill")
    store = await _store(topic)
    await store.post([JOB, LEASE])
    topic.append(b"job", b"\x02{}")
    await store.refresh()
    assert store.unreadable is not None
    assert set(store.kept_out()) == {TP}  # what was reserved stays so
    key, value = encode_backfill(LEASE)
    with pytest.raises(FatalError, match="use the version of mm2py that wrote it"):
        decoded_backfills("backfill", {key: value, b"job": b"\x02{}"})
    assert decoded_backfills("backfill", {key: b"\x02{}"}) == {}
    await store.post([replace(JOB, state=JobState.DONE)])
    await store.refresh()
    assert store.unreadable is None
