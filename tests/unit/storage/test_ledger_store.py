"""The ledger of a flow: written once, in order, as soon as the target takes it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from mm2py.api.context import EventKind
from mm2py.errors import ConfigError, ConnectionFailedError, Mm2pyError
from mm2py.mirror.ledger import (
    IncarnationRecord,
    LedgerRecord,
    decode_ledger_record,
    encode_incarnation,
    encode_ledger_record,
)
from mm2py.observability.metrics import Metrics
from mm2py.protocol.records import Record
from mm2py.storage.ledger_store import LedgerStore
from mm2py.storage.table import Entry, Handler
from mm2py.testing.waiting import until
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.kit.fakes.mirror_records import ORDERS, an_event
from tests.unit.runtime.runtime_fakes import EagerClock

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

    async def start(self, handle: Handler) -> None:
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
    snapshot = bench.meter.snapshot()
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
    assert bench.meter.snapshot().records_lost == 30


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
        assert await bench.store.flush(5)
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


async def test_recreations_that_end_alike_are_two_if_the_position_moved_on(bench: Bench) -> None:
    for number in range(2):
        assert bench.store.report(an_event(30, 29, kind=EventKind.RECREATED))
        assert bench.store.report(an_event(30, 29, kind=EventKind.RECREATED)), "found again"
        bench.store.note_incarnation(ORDERS, bytes([number] * 16))
        assert bench.store.report(an_event(5, 9))
        assert await bench.store.flush(5)
    assert len(bench.log.ranges()) == 4


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
    assert bench.meter.snapshot().events == {}
    async with running(bench.log) as bench:
        assert await bench.store.incarnations() == {ORDERS: OLD, BILLS: NEW}
        bench.store.note_incarnation(BILLS, NEW)
    assert len(bench.log.records) == 3


async def test_an_incarnation_that_another_program_has_noted_is_known_to_the_next_task() -> None:
    async with running() as bench:
        bench.store.note_incarnation(ORDERS, OLD)
        assert await bench.store.flush(10)
        noted = IncarnationRecord(partition=ORDERS, topic_id=NEW, flow=str(FLOW), time_ms=1)
        await bench.log.post([encode_incarnation(noted)])
        assert await bench.store.incarnations() == {ORDERS: NEW}
        bench.log.gate.clear()
        bench.store.note_incarnation(ORDERS, OLD)  # still to be written
        bench.log.write_at_once(encode_incarnation(noted))
        assert await bench.store.incarnations() == {ORDERS: OLD}
        bench.log.gate.set()


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


async def test_a_ledger_that_cannot_be_read_stops_no_task() -> None:
    log = Log()
    log.open_errors = [ConfigError("may not create it")] * 1000

    async with running(log) as bench:
        assert await bench.store.incarnations() == {}
