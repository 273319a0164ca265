"""Stores of flow overrides and of backfills, over logs in memory."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.errors import ConfigError, FatalError, RequestTimedOutError, RetriableError
from mm2py.mirror.backfills import (
    Job,
    JobState,
    LeaseState,
    Notice,
    Wanted,
    Wish,
    encode_backfill,
)
from mm2py.mirror.flow_overrides import Change
from mm2py.storage.backfill_store import BackfillStore, decoded_backfills
from mm2py.storage.flow_overrides_store import HISTORY_KEPT, FlowOverridesStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import TopicPartition
from tests.unit.spark.driver_fakes import lease_of
from tests.unit.storage.held_table import HeldTable

SOURCE = "MirrorSourceConnector"
BEAT = "MirrorHeartbeatConnector"
FILE = {
    SOURCE: {"name": SOURCE, "topics": ".*", "tasks.max": "2", "a.pw": "canary"},
    BEAT: {"name": BEAT},
}


def on(
    topic: MemoryTopic, file: Mapping[str, Mapping[str, str]] | None = None
) -> FlowOverridesStore:
    return FlowOverridesStore(
        MemoryTable(topic),
        FILE if file is None else file,
        clock=FakeClock(),
        names_a_secret=lambda key: "pw" in key,
    )


@asynccontextmanager
async def started() -> AsyncGenerator[tuple[FlowOverridesStore, MemoryTopic]]:
    topic = MemoryTopic("mm2py-flows.A.internal")
    store = on(topic)
    await store.start()
    yield store, topic
    await store.stop()


async def change(store: FlowOverridesStore, name: str = SOURCE, **patch: str | None) -> None:
    before = store.effective().get(name)
    wanted = {**(before or {}), **{key.replace("_", "."): text for key, text in patch.items()}}
    after = {key: text for key, text in wanted.items() if text is not None}
    await store.record(name, before, after, actor="anna")


async def test_a_change_survives_a_restart_and_the_rest_follows_the_file() -> None:
    async with started() as (store, topic):
        await change(store, topics="orders.*", tasks_max=None)
        newer = {SOURCE: {"topics": ".*", "tasks.max": "9", "rate": "5"}}
        again = on(topic, newer)
        await again.start()
        assert again.effective()[SOURCE] == {"topics": "orders.*", "rate": "5"}
        assert again.overrides(SOURCE)["topics"].revision.by == "anna"
        await again.stop()


async def test_the_history_says_who_changed_what() -> None:
    async with started() as (store, _):
        await change(store, topics="orders.*", tasks_max=None, new="1")
        (line,) = store.history()
        assert (line.action, line.target, line.revision.number) == ("change", SOURCE, 1)
        assert line.changes == (
            Change(key=f"override:{SOURCE}:new", before=None, after="1"),
            Change(key=f"override:{SOURCE}:tasks.max", before="2", after=None),
            Change(key=f"override:{SOURCE}:topics", before=".*", after="orders.*"),
        )


async def test_connectors_come_and_go_beside_the_file() -> None:
    async with started() as (store, _):
        await store.record("mine", None, {"x": "1"}, actor="anna")
        await store.record(BEAT, FILE[BEAT], None, actor="anna")
        assert set(store.effective()) == {SOURCE, "mine"}
        await store.record("mine", {"x": "1"}, None, actor="anna")
        await store.record(BEAT, None, FILE[BEAT], actor="anna")
        assert store.effective() == FILE
        assert [line.action for line in store.history()] == ["create", "delete", "delete", "create"]


async def test_a_secret_is_refused_and_nothing_is_written() -> None:
    async with started() as (store, topic):
        with pytest.raises(ConfigError, match=r"a\.pw"):
            await change(store, a_pw="other", topics="x")
        assert topic.records == []
        await change(store, a_pw="${file:/secrets:p}")
        assert b"canary" not in b"".join(record.value or b"" for record in topic.records)


async def test_topics_and_partitions_are_held_and_a_resumed_topic_frees_its_partitions() -> None:
    async with started() as (store, _):
        whole, one = TopicPartition("orders", -1), TopicPartition("orders", 3)
        other = TopicPartition("else", 0)
        for partition in (whole, one, other):
            await store.hold(partition, paused=True, actor="anna")
        assert store.held() == {whole, one, other}
        await store.hold(whole, paused=False, actor="anna")
        assert store.held() == {other}
        assert [line.target for line in store.history()] == [
            "orders", "else-0", "orders-3", "orders",
        ]  # fmt: skip


async def test_other_workers_are_told_of_changes_but_not_of_history() -> None:
    async with started() as (store, topic):
        other, told = on(topic), list[int]()
        await other.start()
        other.listen(lambda: told.append(1))
        await store.edit("restart", "A->B", lambda now: now, notes=(), actor="anna")
        await asyncio.sleep(0)
        assert told == []
        await change(store, topics="x")
        await asyncio.sleep(0)
        assert told == [1]
        assert other.effective()[SOURCE]["topics"] == "x"
        await other.stop()


async def test_the_history_is_bounded_and_revisions_go_on_after_a_restart() -> None:
    async with started() as (store, topic):
        for _ in range(HISTORY_KEPT + 3):
            await store.edit("restart", "A->B", lambda now: now, notes=(), actor="anna")
        assert len(store.history()) == HISTORY_KEPT
        again = on(topic)
        await again.start()
        assert again.history() == store.history()
        await again.edit("restart", "A->B", lambda now: now, notes=(), actor="anna")
        assert again.history()[0].revision.number == HISTORY_KEPT + 4
        await again.stop()


async def test_a_record_of_a_later_version_is_left_alone() -> None:
    async with started() as (store, topic):
        topic.append(b"override:c:p", b"\x09{}")
        topic.append(None, b"x")
        await asyncio.sleep(0)
        assert store.effective() == FILE


async def test_a_change_that_nobody_acknowledges_has_an_unknown_outcome() -> None:
    store = FlowOverridesStore(HeldTable(), FILE, clock=FakeClock(), write_s=0.01)
    await store.start()
    with pytest.raises(RequestTimedOutError, match="whether it was written is unknown"):
        await store.edit("restart", "A->B", lambda now: now, notes=(), actor="anna")


async def test_a_setting_of_a_newer_version_is_refused_until_it_is_taken_back() -> None:
    """Ignored, compaction would decide: with the older record still in the log the topic stays paused."""
    key, value = b"hold:t", b'\x02{"at":1,"by":"a","revision":1,"until":9}'
    async with started() as (store, topic):
        topic.append(b"history:000000000001", value)
        await store.refresh(1)
        store.check_readable()
        topic.append(key, value)
        await store.refresh(1)
        with pytest.raises(RetriableError, match=r"newer version of this program \(key hold:t"):
            store.check_readable()
        with pytest.raises(RetriableError, match="run that version here"):
            await on(topic).start()
        topic.append(key, None)
        await store.refresh(1)
        store.check_readable()
        await on(topic).start()


JOB = Job(id="one", state=JobState.RUNNING, run=1, lanes=1)
TP = TopicPartition("t", 0)
LEASE = lease_of(TP, job="one", end=9)


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
