"""Stores of a flow over logs in memory: its overrides, its backfills, and its ledger, written once, in order, as soon as the target takes it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.api.context import EventKind
from mm2py.client.fetch.log_reader import Reread
from mm2py.errors import (
    ConfigError,
    ConnectionFailedError,
    FatalError,
    Mm2pyError,
    RequestTimedOutError,
    RetriableError,
)
from mm2py.flows.edits import deleted, patched
from mm2py.flows.views import held_name
from mm2py.mirror.backfills import (
    Job,
    JobState,
    Lease,
    LeaseState,
    Notice,
    Wanted,
    Wish,
    decode_backfill,
    encode_backfill,
)
from mm2py.mirror.flow_overrides import Presence
from mm2py.mirror.ledger import LedgerRecord, decode_ledger_record, encode_ledger_record
from mm2py.observability.metrics import Metrics
from mm2py.protocol.records import Record
from mm2py.storage.backfill_store import BackfillStore, decoded_backfills
from mm2py.storage.connect_json import ConnectorPut, decode_config_record
from mm2py.storage.flow_overrides_store import HISTORY_KEPT, Edit, FlowOverridesStore, held_edit
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.memory import MemoryTable, MemoryTopic
from mm2py.storage.table import Entry, Handler
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import until
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.kit.fakes.stores import ORDERS, HeldTable, an_event
from tests.unit.runtime.runtime_fakes import EagerClock
from tests.unit.spark.driver_fakes import lease_of

SOURCE = "MirrorSourceConnector"
BEAT = "MirrorHeartbeatConnector"
FILE = {
    SOURCE: {"name": SOURCE, "topics": ".*", "tasks.max": "2", "a.password": "canary"},
    BEAT: {"name": BEAT},
}
CAUGHT_UP = {**FILE, SOURCE: {**FILE[SOURCE], "topics": "b"}}
"""The file after a change over REST was written into it."""


def on(
    topic: MemoryTopic, file: Mapping[str, Mapping[str, str]] | None = None, *, by_file: bool = True
) -> FlowOverridesStore:
    return FlowOverridesStore(
        MemoryTable(topic), FILE if file is None else file, clock=FakeClock(), by_file=by_file
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
        assert again.state.overrides(SOURCE)["topics"].revision.by == "anna"
        await again.stop()


@pytest.mark.parametrize(
    ("switches", "put", "presence"),
    [
        (("false", "false"), "true", Presence.ADDED),
        (("false", "false"), None, Presence.ADDED),  # Java's default, as in a config of POST /connectors
        (("false", "false"), "false", None),
        (("true", "false"), "true", None),  # a flow of the file ends with it
    ],
)  # fmt: skip
async def test_what_lets_a_pair_copy_that_the_file_has_for_heartbeats_only_is_a_flow(
    switches: tuple[str, str], put: str | None, presence: Presence | None
) -> None:
    """So it exists after a restart too, where the file does not run the pair any more."""
    topic = MemoryTopic("mm2py-flows.A.internal")
    file = {
        name: {"name": name, "enabled": it}
        for name, it in zip((SOURCE, BEAT), switches, strict=True)
    }
    store = on(topic, file)
    await store.start()
    await change(store, topics="x", enabled=put)
    await store.stop()
    again = on(topic, file, by_file=False)
    await again.start()
    assert (again.state.presence, again.state.present) == (presence, presence is Presence.ADDED)
    await again.stop()


@pytest.mark.parametrize(("number", "counted"), [(2**63 - 1, 0), (-1, 0), (10**15 - 1, 10**15 - 1)])
async def test_a_revision_that_nobody_counted_makes_no_later_change_unreadable(
    number: int, counted: int
) -> None:
    async with started() as (store, topic):
        value = b'\x01{"at":1,"by":"x","revision":%d,"value":"7"}' % number
        topic.append(f"override:{SOURCE}:tasks.max".encode(), value)
        await store.refresh(1)
        assert store.state.revision == counted
        if counted:
            with pytest.raises(ConfigError, match="tombstone for the key of each record with it"):
                await change(store, topics="x")
            return
        assert "tasks.max (revision" in next(iter(store.problems().values()))
        await change(store, topics="x")
        assert (store.state.revision, store.effective()[SOURCE]["topics"]) == (1, "x")


async def test_a_secret_is_refused_and_nothing_is_written() -> None:
    async with started() as (store, topic):
        with pytest.raises(ConfigError, match=r"a\.password"):
            await change(store, a_password="other", topics="x")  # noqa: S106
        assert topic.records == []
        await change(store, a_password="${file:/secrets:p}")  # noqa: S106
        assert b"canary" not in b"".join(record.value or b"" for record in topic.records)


async def test_a_change_that_fits_no_batch_is_refused_and_nothing_is_written() -> None:
    """Its line of the history has the texts of before and after; a broker would refuse all of it, as a defect."""
    async with started() as (store, topic):
        await change(store, transforms="x" * 400_000)
        before = len(topic.records)
        with pytest.raises(ConfigError, match=r"needs 12[0-9]{5} bytes .* at most 900000 fit"):
            await change(store, transforms="y" * 400_000)
        assert len(topic.records) == before
        await change(store, transforms=None)
        await change(store, transforms="y" * 400_000)


async def test_a_config_that_leaves_out_how_a_cluster_is_reached_is_refused() -> None:
    """A PUT without ``security.protocol`` would send everything in clear; a PATCH may not take it away either."""
    key = "source.cluster.security.protocol"
    topic = MemoryTopic("mm2py-flows.A.internal")
    store = on(topic, {SOURCE: {"topics": ".*", "tasks.max": "1", key: "SSL"}})
    await store.start()
    before = store.effective()[SOURCE]
    for was in (before, None):
        with pytest.raises(ConfigError, match=f"is left without {key}"):
            await store.record(SOURCE, was, {"topics": "x"}, actor="anna")
    assert topic.records == []
    await store.record(SOURCE, before, {"topics": "x", key: "SSL"}, actor="anna")
    assert store.effective()[SOURCE] == {"topics": "x", key: "SSL"}
    await store.stop()


async def test_topics_and_partitions_are_held_and_a_resumed_topic_frees_its_partitions() -> None:
    async with started() as (store, _):
        whole, one = TopicPartition("orders", -1), TopicPartition("orders", 3)
        other = TopicPartition("else", 0)
        for partition in (whole, one, other):
            edit = held_edit(partition, paused=True)
            await store.edit("pause", held_name(partition), edit, actor="anna")
        assert store.held() == {whole, one, other}
        await store.edit("resume", "orders", held_edit(whole, paused=False), actor="anna")
        assert store.held() == {other}
        assert [line.target for line in store.state.history()] == [
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
        assert len(store.state.history()) == HISTORY_KEPT
        again = on(topic)
        await again.start()
        assert again.state.history() == store.state.history()
        await again.edit("restart", "A->B", lambda now: now, notes=(), actor="anna")
        assert again.state.history()[0].revision.number == HISTORY_KEPT + 4
        await again.stop()


async def test_a_record_of_a_later_version_is_left_alone() -> None:
    async with started() as (store, topic):
        topic.append(b"override:c:p", b"\x09{}")
        topic.append(None, b"x")
        await asyncio.sleep(0)
        assert store.effective() == FILE


@pytest.mark.parametrize(
    "back",
    [
        patched({SOURCE: {"topics": None}}, CAUGHT_UP),
        deleted(CAUGHT_UP),
        None,  # to revision 0
    ],
)
async def test_what_returned_to_the_file_follows_one_that_had_caught_up(back: Edit | None) -> None:
    """People write changes into the file, as the guide says; the entries beside it stay until they are taken back."""
    topic = MemoryTopic("mm2py-flows.A.internal")
    store = on(topic)
    await store.start()
    await change(store, topics="b")
    await store.stop()
    caught_up = on(topic, CAUGHT_UP)
    await caught_up.start()
    then = caught_up.state.at(0)
    assert then is not None
    number = await caught_up.edit("back", "A->B", back or (lambda _: then), actor="anna")
    assert number == 2
    assert ("b", "b") in [(it.before, it.after) for it in caught_up.state.history()[0].changes]
    await caught_up.stop()
    later = on(topic, {**FILE, SOURCE: {**FILE[SOURCE], "topics": "c"}})
    await later.start()
    assert later.state.picture().configs[SOURCE]["topics"] == "c"
    await later.stop()


async def test_another_change_takes_nothing_back_that_the_file_of_this_worker_has_too() -> None:
    """Files are changed worker by worker: the next leader may still have the old one."""
    topic = MemoryTopic("mm2py-flows.A.internal")
    first = on(topic)
    await first.start()
    await change(first, topics="b")
    changed = on(topic, CAUGHT_UP)
    await changed.start()
    await change(changed, tasks_max="7")
    await first.refresh(1)
    assert first.effective()[SOURCE]["topics"] == "b"
    for store in (first, changed):
        await store.stop()


@pytest.mark.parametrize("kept", [0, 2, 5, 100])
@pytest.mark.parametrize("by", ["leader", "change"])
async def test_changes_outlive_a_topic_that_is_created_again_or_loses_its_end(
    kept: int, by: str
) -> None:
    async with started() as (store, topic):
        follower, one = on(topic), TopicPartition("orders", 0)
        await follower.start()
        for paused in (True, False):
            edit = held_edit(one, paused=paused)
            await store.edit("hold", "orders-0", edit, actor="anna")
        await change(store, topics="orders.*", tasks_max=None)
        await change(store, BEAT, tasks_max="2")
        await follower.refresh(1)
        told: list[int] = []
        store.listen(lambda: told.append(1))
        topic.recreate(kept)
        lost = kept < 100
        assert [bool(it.problems()) for it in (store, follower)] == [lost, lost]
        assert (bool(told), store.effective()[SOURCE]["topics"]) == (True, "orders.*")
        if by == "leader":
            await store.restore()
        else:
            await change(store, BEAT, tasks_max="3")
        await follower.refresh(1)
        assert [it.problems() for it in (store, follower)] == [{}, {}]
        again = on(topic)
        await again.start()
        for it in (again, follower):
            assert (it.effective(), it.held()) == (store.effective(), frozenset())
            assert it.state.history() == store.state.history()
            assert len(it.state.history()) == (4 if by == "leader" else 5)
            await it.stop()


class LateTable:
    """Hands on what others wrote only when it is read to the end, as where a broker is slow."""

    def __init__(self, topic: MemoryTopic) -> None:
        self._inner, self.topic = MemoryTable(topic), topic.name
        self._log = topic

    async def start(self, handle: Handler, again: Reread | None = None) -> None:
        await self._inner.start(handle, again)
        self._log.followers.remove(self._inner)

    async def stop(self) -> None:
        await self._inner.stop()

    async def read_to_end(self, timeout_s: float) -> None:
        self._log.followers.append(self._inner)
        await self._inner.read_to_end(timeout_s)
        self._log.followers.remove(self._inner)

    def post(self, entries: Sequence[Entry]) -> "asyncio.Future[int]":
        return self._inner.post(entries)


async def test_a_new_leader_changes_what_the_former_one_wrote_last() -> None:
    topic = MemoryTopic("mm2py-flows.A.internal")
    former = on(topic)
    late = FlowOverridesStore(LateTable(topic), FILE, clock=FakeClock())
    await former.start()
    await late.start()
    await change(former, topics="orders")
    edit = patched({SOURCE: {"tasks.max": "7"}}, FILE)
    assert await late.edit("change", SOURCE, edit, actor="ben") == 2
    assert late.effective()[SOURCE]["topics"] == "orders"
    assert [line.revision.number for line in late.state.history()] == [2, 1]
    await former.stop()


async def test_no_way_leads_back_over_a_change_whose_line_cannot_be_read() -> None:
    """Without it, its change would be taken for one of before."""
    async with started() as (store, topic):
        for tasks in ("3", "4", "5"):
            await change(store, tasks_max=tasks)
        topic.append(b"history:000000000002", b"\x02{}")
        await store.refresh(1)
        after_two = store.state.at(2)
        assert after_two is not None
        assert after_two.configs[SOURCE]["tasks.max"] == "4"
        assert store.state.at(1) is None
        topic.append(b"history:000000000004", b"\x02{}")
        await change(store, tasks_max="6")
        assert store.state.revision == 5
        assert store.state.at(3) is None


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


@pytest.mark.parametrize(
    "value", [b"", b"hello", b'{"value":"a"}', b"\xff\xfe", b"\x00a", b"\x01{"]
)
async def test_a_stray_record_keeps_no_flow_from_starting(value: bytes) -> None:
    async with started() as (_, topic):
        for key in (None, b"", b"\xff", b"order-7", b"override:x:topics"):
            topic.append(key, value)
        store = on(topic)
        await store.start()
        assert store.state.revision == 0
        assert list(store.problems()) == [f"topic {topic.name}"]
        assert "override:x:topics (" in store.problems()[f"topic {topic.name}"]
        assert "order-7" not in store.problems()[f"topic {topic.name}"]
        topic.append(b"override:x:topics", None)
        await store.refresh(1)
        assert not store.problems()


JOB = Job(id="one", state=JobState.RUNNING, run=1, lanes=1)
TP = TopicPartition("t", 0)
LEASE = lease_of(TP, job="one", end=9)


@pytest.mark.parametrize("written", [b"header ?", b"header \\udcff"])
def test_half_of_a_character_makes_no_record_unreadable_and_no_answer_fail(written: bytes) -> None:
    """Names of headers may be any bytes, and are in what a transform says of its failure."""
    key, value = encode_backfill(replace(LEASE, cause="header \udcff"))
    read = decode_backfill(key, value.replace(b"header ?", written))
    assert isinstance(read, Lease)
    assert read.cause == "header ?"
    event = an_event(1, 1, TP, EventKind.POISONED, cause="header \udcff")
    key, value = encode_ledger_record(LedgerRecord(event=event, flow="A->B", time_ms=1))
    known = decode_ledger_record(key, value.replace(b"header ?", written))
    assert isinstance(known, LedgerRecord)
    assert known.event.cause == "header ?"
    config = decode_config_record(b"connector-c", b'{"properties":{"a":"%b"}}' % written)
    assert config == ConnectorPut("c", {"a": "header ?"})


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


# ---- the ledger


FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))
BILLS = TopicPartition("bills", 1)


class Log:
    """Implements ``Table``, read at the start and when asked for."""

    topic = "mm2py-ledger.A.internal"

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.batches: list[int] = []
        self.write_errors: list[Mm2pyError] = []
        self.open_errors: list[Mm2pyError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = 0
        self._handle: Handler | None = None
        self._read = 0

    async def start(self, handle: Handler, again: Reread | None = None) -> None:
        del again
        if self.open_errors:
            raise self.open_errors.pop(0)
        self._handle, self._read = handle, 0
        await self.read_to_end(0)

    async def stop(self) -> None:
        self.closed += 1

    async def read_to_end(self, timeout_s: float) -> None:
        assert self._handle is not None
        while self._read < len(self.records):
            self._read += 1
            self._handle(0, self.records[self._read - 1])

    def post(self, entries: Sequence[Entry]) -> asyncio.Future[int]:
        return asyncio.ensure_future(self._write(entries))

    def write_at_once(self, entry: Entry) -> None:
        self.records.append(Record(len(self.records), 1, *entry))

    async def _write(self, entries: Sequence[Entry]) -> int:
        await self.gate.wait()
        if self.write_errors:
            raise self.write_errors.pop(0)
        self.batches.append(len(entries))
        for entry in entries:
            self.write_at_once(entry)
        return 0

    def ranges(self) -> list[tuple[str, str, int, int]]:
        decoded = [decode_ledger_record(it.key, it.value) for it in self.records]
        events = [it.event for it in decoded if isinstance(it, LedgerRecord)]
        return [
            (it.kind.value, str(it.partition), it.first_offset, it.last_offset) for it in events
        ]


class Bench:
    def __init__(self, log: Log | None = None) -> None:
        self.log = log or Log()
        self.clock = EagerClock()
        self.meter = Metrics(self.clock).flow(FLOW)
        self.store = LedgerStore(self.log, meter=self.meter, clock=self.clock)


@asynccontextmanager
async def running(log: Log | None = None) -> AsyncGenerator[Bench]:
    bench = Bench(log)
    bench.store.start()
    try:
        yield bench
    finally:
        await bench.store.stop()


@pytest.fixture
def bench() -> AbstractAsyncContextManager[Bench]:
    return running()


OLD, NEW = bytes(range(16)), bytes(range(1, 17))


async def test_an_event_is_written_once_and_counted(bench: Bench) -> None:
    assert bench.store.report(an_event(10, 19))
    assert not bench.store.report(an_event(10, 19))
    assert list(bench.store.unwritten()) == [ORDERS]
    assert await bench.store.flush(5)
    assert not bench.store.unwritten()
    assert not bench.store.report(an_event(10, 19))
    assert bench.store.report(an_event(30, 39, kind=EventKind.MAY_BE_DOUBLED))
    assert await bench.store.flush(5)
    assert bench.log.ranges() == [
        ("retention", "orders-0", 10, 19),
        ("may-be-doubled", "orders-0", 30, 39),
    ]
    snapshot = bench.meter.node_snapshot("me")
    assert snapshot.events == {"retention": 1, "may-be-doubled": 1}
    assert (snapshot.records_lost, snapshot.records_may_be_doubled) == (10, 10)


async def test_a_restart_writes_only_what_is_new() -> None:
    async with running() as bench:
        bench.store.report(an_event(10, 19))
        assert await bench.store.flush(5)
    async with running(bench.log) as bench:
        assert bench.store.report(an_event(10, 29))
        assert await bench.store.flush(5)
        assert bench.store.report(an_event(10, 29, BILLS))
        assert await bench.store.flush(5)
    assert bench.log.ranges() == [
        ("retention", "orders-0", 10, 19),
        ("retention", "orders-0", 20, 29),
        ("retention", "bills-1", 10, 29),
    ]
    assert bench.meter.node_snapshot("me").records_lost == 30


async def test_events_of_another_flow_are_not_ours() -> None:
    log = Log()
    other = LedgerRecord(event=an_event(10, 19), flow="A->C", time_ms=1)
    log.write_at_once(encode_ledger_record(other))
    async with running(log) as bench:
        bench.store.report(an_event(10, 19))
        assert await bench.store.flush(5)
    assert len(log.records) == 2


async def test_positions_wait_while_the_target_is_away_and_the_trouble_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()
    log.open_errors = [ConnectionFailedError("away")] * 5
    log.write_errors = [ConnectionFailedError("away again")]

    caplog.set_level(logging.INFO)
    async with running(log) as bench:
        bench.store.report(an_event(10, 19))
        await until(lambda: len(log.open_errors) < 3)
        assert list(bench.store.unwritten()) == [ORDERS]
        (shown,) = bench.meter.findings
        assert (shown.count, "away" in shown.text) == (1, True)
        assert await bench.store.flush(5)
        await until(lambda: not bench.meter.findings)
    assert log.ranges() == [("retention", "orders-0", 10, 19)]
    assert caplog.text.count("ledger cannot be written") == 1
    assert caplog.text.count("ledger works again") == 1


async def test_a_partition_waits_until_its_last_event_is_acknowledged(bench: Bench) -> None:
    await until(lambda: bench.store.report(an_event(0, 1)) or True)
    assert await bench.store.flush(5)
    bench.log.gate.clear()
    bench.store.report(an_event(10, 19))
    bench.store.report(an_event(30, 39))
    bench.store.report(an_event(10, 19, BILLS))
    assert set(bench.store.unwritten()) == {ORDERS, BILLS}
    assert not await bench.store.flush(0.01)
    bench.log.gate.set()
    assert await bench.store.flush(5)
    assert len(bench.log.records) == 4


@pytest.mark.parametrize("opens", [True, False])
async def test_what_retention_takes_while_nothing_is_written_is_one_range(*, opens: bool) -> None:
    """A ledger whose topic is refused, or takes nothing, for a day: as many ranges as there are, not as there were looks."""
    log = Log()
    errors = log.write_errors if opens else log.open_errors
    errors += [ConnectionFailedError("away")] * 1_000

    async def tried(before: int) -> None:
        await until(lambda: len(errors) < before)

    async with running(log) as bench:
        for first in range(0, 200, 10):
            bench.store.report(an_event(first, first + 9))
            bench.store.report(an_event(2 * first, 2 * first + 9, BILLS))
            await tried(len(errors))
        errors.clear()
        assert await bench.store.flush(5)
    ranges = log.ranges()
    assert ("retention", "orders-0", 0, 199) in ranges
    assert len(ranges) == 21, "what was copied between is not in it"
    assert bench.meter.node_snapshot("me").records_lost == 400


async def test_what_was_not_written_at_the_end_is_said(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.open_errors = [ConfigError("may not create it")] * 1000

    async with running(log) as bench:
        bench.store.report(an_event(10, 19))
        await until(lambda: len(log.open_errors) < 999)
    assert "will be noticed again topic=mm2py-ledger.A.internal events=1" in caplog.text


async def test_later_versions_are_left_alone_and_told(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.write_at_once((b"orders-0", b"\x02later"))
    async with running(log) as bench:
        bench.store.report(an_event(10, 19))
        assert await bench.store.flush(5)
    assert log.records[0].value == b"\x02later"
    assert "of a version that this program does not know" in caplog.text


async def test_incarnations_are_kept_across_restarts_and_are_no_events() -> None:
    async with running() as bench:
        assert await bench.store.incarnations() == {}
        bench.store.note_incarnation(ORDERS, OLD)
        bench.store.note_incarnation(BILLS, OLD)
        bench.store.note_incarnation(BILLS, OLD)
        bench.store.note_incarnation(BILLS, NEW)
        assert not bench.store.unwritten()
        assert await bench.store.incarnations() == {ORDERS: OLD, BILLS: NEW}
    assert len(bench.log.records) == 3
    assert bench.log.ranges() == []
    assert bench.meter.node_snapshot("me").events == {}
    async with running(bench.log) as bench:
        assert await bench.store.incarnations() == {ORDERS: OLD, BILLS: NEW}
        bench.store.note_incarnation(BILLS, NEW)
    assert len(bench.log.records) == 3


async def test_recreations_that_end_alike_are_two_if_the_position_moved_on(bench: Bench) -> None:
    for number in range(2):
        assert bench.store.report(an_event(30, 29, kind=EventKind.RECREATED))
        assert bench.store.report(an_event(30, 29, kind=EventKind.RECREATED)), "found again"
        bench.store.note_incarnation(ORDERS, bytes([number] * 16))
        assert bench.store.report(an_event(5, 9))
        assert await bench.store.flush(5)
    assert len(bench.log.ranges()) == 4


async def test_what_another_worker_has_noted_meanwhile_is_known() -> None:
    same_topic = Log()
    async with running() as bench, running(same_topic) as other:
        same_topic.records = bench.log.records
        bench.store.note_incarnation(ORDERS, OLD)
        assert await bench.store.flush(5)
        assert await other.store.incarnations() == {ORDERS: OLD}
        bench.store.note_incarnation(ORDERS, NEW)
        assert await bench.store.flush(5)
        assert await other.store.incarnations() == {ORDERS: NEW}
        # It takes the partition over: what it is about to write is newer than what is there.
        same_topic.gate.clear()
        other.store.note_incarnation(ORDERS, OLD)
        bench.store.note_incarnation(BILLS, NEW)
        assert await bench.store.flush(5)
        assert await other.store.incarnations() == {ORDERS: OLD, BILLS: NEW}
        same_topic.gate.set()
        # A loss that the map keeps is reported by each start.
        lost = an_event(10, 19, kind=EventKind.TARGET_LOST)
        bench.store.report(lost)
        assert await bench.store.flush(5)
        other.store.report(replace(lost, again=True))
        other.store.report(replace(lost, again=True, last_offset=24))
        assert await other.store.flush(5)
    kind = EventKind.TARGET_LOST.value
    assert bench.log.ranges() == [(kind, "orders-0", 10, 19), (kind, "orders-0", 20, 24)]


async def test_a_ledger_that_cannot_be_read_stops_no_task() -> None:
    log = Log()
    log.open_errors = [ConfigError("may not create it")] * 1000

    async with running(log) as bench:
        assert await bench.store.incarnations() == {}
