"""What a host reports to its worker, and what it does first after a freeze."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mm2py.api.context import LossEvent
from mm2py.client.permit import Permit
from mm2py.observability.ages import Ages
from mm2py.observability.checkpoint_ages import CheckpointAges, CheckpointKey
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Figure, Finding, FlowMeter, Forecast, PartitionSnapshot
from mm2py.runtime.hosts.pipe import LONGEST_LINE, Channel, HostPipe
from mm2py.runtime.hosts.reports import AGES_EVERY, LedgerRelay, MeterRelay, PipeLogHandler
from mm2py.runtime.hosts.thaw import thawing_loop
from mm2py.testing.clock import FakeClock
from mm2py.testing.waiting import eventually as until
from mm2py.types import ClusterAlias, FlowName, TopicPartition
from tests.kit.fakes.stores import an_event

ORDERS, RETURNS = TopicPartition("orders", 0), TopicPartition("returns", 0)
FLOW = FlowName(ClusterAlias("A"), ClusterAlias("B"))


class Worker:
    """The other end of the pipe: a log, and a ledger that writes when it is let."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: list[LossEvent] = []
        self.held_back: tuple[TopicPartition, ...] = ()
        self.asked = 0
        self.wrote = asyncio.Event()
        self.meter = FlowMeter(FLOW, FakeClock())

    def log_line(self, level: str, logger: str, scope: str, text: str) -> None:
        self.lines.append(f"{level} {logger} {text}")

    def happened(self, event: LossEvent) -> None:
        self.events.append(event)

    def measured(
        self, partitions: tuple[PartitionSnapshot, ...], gone: tuple[PartitionSnapshot, ...]
    ) -> None:
        self.meter.apply(partitions, gone)

    def found(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            self.meter.note_finding(finding)

    def figured(self, figures: tuple[Figure, ...]) -> None:
        for figure in figures:
            self.meter.note_figure(figure)

    def checkpointed(self, ages: tuple[CheckpointAges, ...]) -> None:
        for each in ages:
            self.meter.checkpoints.take(each)

    async def written(self) -> tuple[TopicPartition, ...]:
        self.asked += 1
        await self.wrote.wait()
        self.wrote.clear()
        return self.held_back


class Host:
    """The end of a host, and the worker at the other one."""

    def __init__(self, worker: Worker, pipe: HostPipe) -> None:
        self.worker, self.pipe, self.channel = worker, pipe, pipe.channel(0)
        self.clock, self.there = FakeClock(), worker.meter
        self.meter = FlowMeter(FLOW, self.clock)
        self.relay = MeterRelay(self.meter, self.clock, self.channel)


@pytest.fixture
@asynccontextmanager
async def host() -> AsyncGenerator[Host]:
    near, far = [await HostPipe.over(end) for end in socket.socketpair()]
    worker = Worker()
    far.channel(0).serve(
        worker.log_line,
        worker.happened,
        worker.written,
        worker.measured,
        worker.found,
        worker.figured,
        worker.checkpointed,
    )
    listening = [asyncio.create_task(end.listen()) for end in (near, far)]
    yield Host(worker, near)
    await near.close()
    await far.close()
    await asyncio.gather(*listening)


async def test_no_log_call_raises_into_its_caller(host: Host) -> None:
    logger = logging.getLogger("plugin")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = PipeLogHandler(host.channel, SecretMask(["hunter2"]))
    logger.addHandler(handler)
    logger.info("%d rows of hunter2", "x")
    logger.info("name %s", "\udcff")
    logger.info("%s", object.__new__(Unprintable))
    logger.info("password=%s", "hunter2")
    logger.info("%s", "x" * (LONGEST_LINE + 1))
    await until(lambda: len(host.worker.lines) == 5)
    assert host.worker.lines.pop() == f"INFO plugin {'x' * LONGEST_LINE}"
    assert host.worker.lines == [
        "INFO plugin '%d rows of [hidden]' cannot be formatted: TypeError: %d format: a real"
        " number is required, not str",
        "INFO plugin name \\udcff",
        "INFO plugin '%s' cannot be formatted: RuntimeError: no text",
        "INFO plugin password=[hidden]",
    ]
    host.pipe.hang_up()
    logger.info("into a closed host.pipe")
    logger.removeHandler(handler)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


async def test_partitions_wait_for_the_ledger_each_for_its_own_events(host: Host) -> None:
    worker = host.worker
    ledger = LedgerRelay(host.channel)
    assert ledger.report(an_event(1, 1, ORDERS))
    assert not ledger.report(an_event(1, 1, ORDERS)), "the same again"
    assert ledger.report(an_event(1, 1, RETURNS))
    assert set(ledger.unwritten()) == {ORDERS, RETURNS}
    await until(lambda: worker.asked == 1)
    assert ledger.report(an_event(2, 2, ORDERS))
    worker.wrote.set()
    await until(lambda: worker.asked == 2)
    assert set(ledger.unwritten()) == {ORDERS}, "reported behind the question"
    worker.held_back = (ORDERS,)
    worker.wrote.set()
    await until(lambda: worker.asked == 3)
    assert not await ledger.flush(0.001)
    worker.held_back = ()
    worker.wrote.set()
    assert await ledger.flush(5)
    assert not ledger.unwritten()
    assert [(it.partition, it.first_offset) for it in worker.events] == [
        (ORDERS, 1),
        (RETURNS, 1),
        (ORDERS, 2),
    ]


async def test_a_forecast_that_is_withdrawn_reaches_the_worker(host: Host) -> None:
    relay, part = host.relay, host.meter.partition(ORDERS)
    part.forecast = Forecast(by="retention.ms", limit=1, at_ms=1, records=1, size_bytes=-1)
    assert relay.send()
    await until(lambda: host.there.partition(ORDERS).forecast == part.forecast)
    part.forecast = None
    assert relay.send()
    await until(lambda: host.there.partition(ORDERS).forecast is None)


async def test_ages_reach_the_worker_with_each_fifth_report(host: Host) -> None:
    relay, now_ms = host.relay, host.clock.now_ms()
    part, there = host.meter.partition(ORDERS), host.there.partition(ORDERS)
    assert relay.send()
    part.records = 1
    part.age.note(7, now_ms)
    part.latency.note(9, now_ms)
    assert relay.send()
    await until(lambda: there.records == 1)
    assert there.age.ages(now_ms) is None
    assert [relay.send() for _ in range(4)] == [False, False, False, True]
    await until(lambda: there.age.ages(now_ms) == Ages(7, now_ms, 7, 7, 7.0))
    assert there.latency.ages(now_ms) == Ages(9, now_ms, 9, 9, 9.0)
    assert [relay.send() for _ in range(5)] == [False] * 5


async def test_findings_and_figures_of_tasks_reach_the_worker_and_end_with_them(host: Host) -> None:
    meter, relay, there = host.meter, host.relay, host.there
    ends = Finding(task="c-0", what="groups not read", text="two", count=2, harms=True)
    stays = Finding(task="c-1", what="commits", text="slow", count=1, harms=False)
    figures = [Figure(task=f"c-{it}", name="groups SYNCED", value=it) for it in range(2)]
    for finding, figure in zip((ends, stays), figures, strict=True):
        meter.note_finding(finding)
        meter.note_figure(figure)
    assert relay.send()
    await until(lambda: (there.findings, there.figures) == ((ends, stays), tuple(figures)))
    assert not relay.send(), "nothing has changed"
    changed = replace(figures[1], value=5)
    meter.note_figure(changed)
    meter.forget_task("c-0")
    assert relay.send()
    await until(lambda: (there.findings, there.figures) == ((stays,), (changed,)))


async def test_latencies_of_checkpoints_reach_the_worker_once_each(host: Host) -> None:
    meter, relay = host.meter, host.relay
    key = CheckpointKey("c-0", "billing", ORDERS)
    for latency_ms in (10, 30):
        meter.checkpoints.note(key, latency_ms)
    assert relay.send()
    await until(lambda: host.there.checkpoints.all() == meter.checkpoints.all())
    ((shown, ages),) = host.there.checkpoints.all()
    assert (shown, ages.last, ages.least, ages.greatest, ages.mean) == (key, 30, 10, 30, 20)
    assert not any(relay.send() for _ in range(AGES_EVERY)), "nothing has changed"
    host.there.forget_task("c-0")
    assert host.there.checkpoints.all() == ()


async def test_a_worker_that_has_closed_the_flow_leaves_positions(host: Host) -> None:
    ledger = LedgerRelay(Channel(host.channel.pipe, 9))
    ledger.report(an_event(1, 1, ORDERS))
    assert not await ledger.flush(0.02)
    assert set(ledger.unwritten()) == {ORDERS}


# ---- a process that was frozen


@pytest.fixture
def _signals() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - pytest finds it
    before = signal.getsignal(signal.SIGCONT)
    yield
    signal.signal(signal.SIGCONT, before)


def play_thaw(scenario: Callable[[FakeClock, Permit], Coroutine[None, None, None]]) -> list[bool]:
    """Return what a watcher saw of a permit for 6 s, True for valid."""
    seen: list[bool] = []

    async def run() -> None:
        clock = FakeClock()
        permit = Permit(clock)
        permit.watch(lambda: seen.append(permit.valid))
        permit.grant(clock.monotonic() + 6)
        await scenario(clock, permit)

    with asyncio.Runner(loop_factory=thawing_loop) as runner:
        runner.run(run())
    return seen


@pytest.mark.usefixtures("_signals")
def test_a_frozen_process_finds_its_permit_over_before_it_serves_a_socket() -> None:
    seen: list[bool] = []

    async def scenario(clock: FakeClock, permit: Permit) -> None:
        here, there = socket.socketpair()
        with here, there:
            served = asyncio.Event()

            def serve() -> None:
                seen.append(permit.was_valid)
                served.set()

            loop = asyncio.get_running_loop()
            loop.add_reader(here, serve)
            there.send(b"x")
            clock.jump(7.0)
            await served.wait()
            loop.remove_reader(here)

    assert play_thaw(scenario) == [True, False]
    assert seen == [False], "watchers were called before"


@pytest.mark.usefixtures("_signals")
def test_a_process_that_is_continued_looks_at_once() -> None:
    seen: list[bool] = []

    async def scenario(clock: FakeClock, permit: Permit) -> None:
        signal.raise_signal(signal.SIGCONT)
        seen.append(permit.was_valid)
        clock.jump(7.0)
        signal.raise_signal(signal.SIGCONT)
        seen.append(permit.was_valid)

    assert play_thaw(scenario) == [True, False]
    assert seen == [True, False], "without a turn of the loop"
