"""``make demo``: two real Kafka regions, active-active flows, traffic, consumer groups, a live table, then proof.

Flow: regions from jars -> mm2.properties (printed) -> ``demo_engine`` in this process, or ``demo_workers`` as
several; with ``--backfill`` history by ``demo_backfill``; producers, consumers and the comparison are child processes with confluent-kafka. ``DEMO_SECONDS`` set:
unattended, exit 0 if both regions are equal, else 1. Everything but the log files is removed at the end.
"""

import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn, TextIO

from rich.console import Console, Group
from rich.live import Live

from examples.demo.backfill import DemoBackfill
from examples.demo.engine import Engine, InProcess
from examples.demo.groups import GroupWatch
from examples.demo.traffic_process import DemoChild, TrafficProcess
from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask, configure_logging
from mm2py_jobs.spark.session import require_spark
from mm2py_workers.signals import StopSignal
from tests.kit.kafka.reaper import REAPER
from tests.kit.kafka.region import Region, start_regions

log = logging.getLogger(__name__)

MIN_FREE_BYTES: Final = 2 << 30
LOG_FILE: Final = Path(".mm2py") / "demo.log"
STARTS_S: Final = 60.0
"""How long the flows may take to run before the seconds count."""
PAGE_S: Final = 30.0
"""How long to wait for the page's address, which is shown first."""
CATCH_UP_S: Final = 45.0
VERIFY_TIMEOUT_S: Final = 180.0
MORE_S: Final = 1.0
"""How long the producers continue behind the consumers."""
LIVE_EVERY_S: Final = 0.5
PLAIN_EVERY_S: Final = 2.0

PROPERTIES: Final = """\
clusters = A, B
A.bootstrap.servers = {a}
B.bootstrap.servers = {b}

# active-active: each region gets the other's topics, named A.<topic> and B.<topic>
A->B.enabled = true
A->B.topics = .*
B->A.enabled = true
B->A.topics = .*

# groups move: committed offsets are translated and committed on the other side, every second
emit.checkpoints.interval.seconds = 1
A->B.sync.group.offsets.enabled = true
A->B.sync.group.offsets.interval.seconds = 1
B->A.sync.group.offsets.enabled = true
B->A.sync.group.offsets.interval.seconds = 1

{more}# one broker per region
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
"""


SHARED: Final = """\
# tasks to share between the workers that are started on this file
tasks.max = {workers}

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line and the environment say."""

    seconds: float | None = None
    rate: int = 3_000
    workers: int = 1
    """More than one: as many processes on one file, else the flows run in this one."""

    backfill: bool = False
    """A topic with history is copied by Spark while the flows run."""

    debug: bool = False


@dataclass(frozen=True, slots=True)
class _Stage:
    """What the running demo consists of."""

    options: DemoOptions
    screen: Console
    log_stream: TextIO
    regions: tuple[Region, Region]
    engine: Engine
    groups: GroupWatch
    stop: StopSignal
    backfill: DemoBackfill | None


def run_demo(options: DemoOptions) -> int:
    """Run the demo; return the exit code.

    Raises:
        ConfigError: something the demo needs is missing (disk, Java, confluent-kafka).
    """
    _require(options)
    screen = Console(highlight=False, soft_wrap=True)
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with ExitStack() as stack:
            stream = stack.enter_context(_open_log())
            mask = SecretMask()
            configure_logging(stream, mask, debug=options.debug)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mm2py-demo-")))
            # SIGKILL leaves no time for clearing up; the watcher of the brokers does it then.
            REAPER.watch_folder(folder)
            stack.callback(REAPER.forget_folder, folder)
            screen.print("Starting two Kafka regions from jars ...")
            began = SYSTEM_CLOCK.monotonic()
            a = Region("A", folder=folder, min_free_bytes=MIN_FREE_BYTES)
            b = Region("B", folder=folder, min_free_bytes=MIN_FREE_BYTES)
            stack.callback(b.close)
            stack.callback(a.close)
            start_regions(a, b)
            screen.print(
                f"Regions A ({a.bootstrap_servers}) and B ({b.bootstrap_servers}) are up after"
                f" {SYSTEM_CLOCK.monotonic() - began:.1f} s. Log: {stream.name}"
            )
            path = folder / "mm2.properties"
            path.write_text(
                properties_text(a.bootstrap_servers, b.bootstrap_servers, options.workers)
            )
            screen.print(f"\n[bold]{path.name}[/bold]\n{path.read_text()}")
            return asyncio.run(_run(path, (a, b), options, screen, stream, mask))
    except KeyboardInterrupt:
        screen.print("Stopped.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def properties_text(a: str, b: str, workers: int = 1) -> str:
    """Return the demo's mm2.properties for two bootstrap addresses."""
    more = SHARED.format(workers=workers) if workers > 1 else ""
    return PROPERTIES.format(a=a, b=b, more=more)


def _require(options: DemoOptions) -> None:
    if options.backfill:
        require_spark()
    if find_spec("confluent_kafka") is None:
        raise ConfigError(
            "the demo's traffic needs confluent-kafka",
            remedy="run make demo, which installs it",
        )
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < MIN_FREE_BYTES:
        raise ConfigError(
            f"only {free >> 20} MiB are free in {tempfile.gettempdir()}, the demo wants"
            f" {MIN_FREE_BYTES >> 20} MiB",
            remedy="free some disk space or set TMPDIR to another disk",
        )


def _open_log() -> TextIO:
    try:
        LOG_FILE.parent.mkdir(exist_ok=True)
        return LOG_FILE.open("w", encoding="utf-8")
    except OSError:
        # A read-only working folder is no reason not to show the demo.
        path = Path(tempfile.gettempdir()) / "mm2py-demo.log"
        return path.open("w", encoding="utf-8")


def _terminated(number: int, _frame: object) -> NoReturn:
    """Unwind on SIGTERM while no event loop runs, so that brokers and folders go."""
    raise SystemExit(128 + number)


async def _run(
    path: Path,
    regions: tuple[Region, Region],
    options: DemoOptions,
    screen: Console,
    stream: TextIO,
    mask: SecretMask,
) -> int:
    engine = _engine(path, options, screen, stream, mask)
    with StopSignal() as stop:
        addresses = [(region.name, region.bootstrap_servers) for region in regions]
        groups = GroupWatch(addresses, SYSTEM_CLOCK)
        backfill = None
        if options.backfill:
            say = _sayer(screen)
            backfill = DemoBackfill(path, regions[0].bootstrap_servers, stream, say, SYSTEM_CLOCK)
        stage = _Stage(options, screen, stream, regions, engine, groups, stop, backfill)
        traffic = [TrafficProcess(name, servers, options.rate) for name, servers in addresses]
        consumers = [
            DemoChild(name, "consumer", "--bootstrap", servers) for name, servers in addresses
        ]
        try:
            code = await _play(stage, traffic, consumers)
        finally:
            for child in (*consumers, *(process.child for process in traffic)):
                await child.kill()
            if backfill is not None:
                await backfill.kill()
            await groups.close()
            screen.print("Stopping the flows ...")
            wrong = await engine.stop()
        for line in wrong:
            screen.print(line, markup=False)
        return 1 if wrong else code


def _engine(
    path: Path, options: DemoOptions, screen: Console, stream: TextIO, mask: SecretMask
) -> Engine:
    if options.workers == 1:
        return InProcess(path, mask)
    # Only here: it loads an HTTP client.
    from examples.demo.workers import WorkerProcesses, plan_kill

    return WorkerProcesses(
        path,
        options.workers,
        Path(stream.name).parent,
        kill_after_s=plan_kill(options.seconds),
        say=_sayer(screen),
        clock=SYSTEM_CLOCK,
    )


def _sayer(screen: Console) -> Callable[[str], None]:
    return lambda line: screen.print(line, markup=False)


async def _play(
    stage: _Stage, traffic: Sequence[TrafficProcess], consumers: Sequence[DemoChild]
) -> int:
    for child in (*(process.child for process in traffic), *consumers):
        await child.start(stage.log_stream)
    if stage.backfill is not None:
        await stage.backfill.start()
    await stage.engine.start()
    await _show_page(stage)
    if stage.backfill is not None:
        await stage.backfill.write_later()
    await _watch(stage, [*(process.child for process in traffic), *consumers])
    # Before the producers, so that each group has a next record.
    stage.screen.print("Stopping the consumer groups ...")
    ended = [await child.finish() for child in consumers]
    await _pause(stage.stop, MORE_S)
    stage.screen.print("Stopping the producers ...")
    counts = [await process.finish() for process in traffic]
    for process, count in zip(traffic, counts, strict=True):
        stage.screen.print(f"Region {process.region}: {count.written:,} records written")
    if stage.stop.asked or stage.options.seconds is None:
        return 0
    if any(count.failed for count in counts):
        stage.screen.print(f"The producers failed, see {stage.log_stream.name}")
        return 1
    if any(failed for _, failed in ended):
        stage.screen.print(f"A consumer failed, see {stage.log_stream.name}")
        return 1
    caught_up = await _catch_up(stage, {c.region: c.written for c in counts})
    equal = await _verify(stage)
    if stage.backfill is not None:
        equal = await stage.backfill.finish() and equal
    return 0 if caught_up and equal else 1


async def _show_page(stage: _Stage) -> None:
    """Print the address of the page as soon as a worker serves it; the demo runs without it too."""
    end = SYSTEM_CLOCK.monotonic() + PAGE_S
    while not stage.engine.page and SYSTEM_CLOCK.monotonic() < end and not stage.stop.asked:
        await _pause(stage.stop, 0.2)
        await stage.engine.look()
    if stage.engine.page:
        stage.screen.print(f"The page of both flows: {stage.engine.page}", markup=False)


async def _watch(stage: _Stage, children: Sequence[DemoChild]) -> None:
    """Show the table until time is up, which counts from when every flow runs, a stop is asked for, or something died."""
    seconds = stage.options.seconds if stage.options.seconds is not None else float("inf")
    end, runs = SYSTEM_CLOCK.monotonic() + STARTS_S + seconds, False
    terminal = stage.screen.is_terminal
    live = Live(console=stage.screen, auto_refresh=False) if terminal else None
    with ExitStack() as stack:
        if live is not None:
            stack.enter_context(live)
        while SYSTEM_CLOCK.monotonic() < end and not stage.stop.asked:
            await _pause(stage.stop, LIVE_EVERY_S if terminal else PLAIN_EVERY_S)
            await stage.engine.look()
            await stage.groups.look()
            if not runs and stage.engine.runs():
                end, runs = SYSTEM_CLOCK.monotonic() + seconds, True
            if live is not None:
                flows = stage.engine.render(
                    f"mm2py: A <-> B   {stage.engine.page}   (Ctrl-C stops)"
                )
                live.update(Group(flows, stage.groups.render()), refresh=True)
            else:
                _show_plainly(stage)
            if any(child.ended for child in children):
                stage.screen.print(
                    f"A producer or consumer ended early, see {stage.log_stream.name}"
                )
                return


async def _pause(stop: StopSignal, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _show_plainly(stage: _Stage) -> None:
    for line in (*stage.engine.plain(), *stage.groups.plain()):
        stage.screen.print(line, markup=False)


async def _catch_up(stage: _Stage, written: dict[str, int]) -> bool:
    """Wait until every flow runs, has copied what its source got, and reports no lag."""
    began = SYSTEM_CLOCK.monotonic()
    while SYSTEM_CLOCK.monotonic() - began < CATCH_UP_S and not stage.stop.asked:
        await stage.engine.look()
        if stage.engine.settled(written):
            stage.screen.print(
                f"Lag 0 on both flows {SYSTEM_CLOCK.monotonic() - began:.1f} s after the producers"
            )
            return True
        await _pause(stage.stop, 0.2)
    stage.screen.print(f"The flows did not catch up within {CATCH_UP_S:.0f} s")
    _show_plainly(stage)
    return False


async def _verify(stage: _Stage) -> bool:
    """Compare both regions in a child process; True if all is equal."""
    stage.screen.print("Comparing every record of both regions (confluent-kafka) ...")
    arguments = [f"{region.name}={region.bootstrap_servers}" for region in stage.regions]
    arguments.append("--groups")
    if stage.engine.kills:
        arguments.append(f"--kills={stage.engine.kills}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.demo.verify", *arguments, stderr=stage.log_stream
    )
    asked = asyncio.create_task(stage.stop.wait())
    ended = asyncio.create_task(process.wait())
    await asyncio.wait({asked, ended}, timeout=VERIFY_TIMEOUT_S, return_when="FIRST_COMPLETED")
    asked.cancel()
    if not ended.done():
        process.kill()
        await ended
        stage.screen.print("The comparison was cut off")
        return False
    return ended.result() == 0
