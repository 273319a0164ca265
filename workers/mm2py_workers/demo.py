"""``mm2py demo``: two real Kafka regions, active-active flows, traffic, a live table, then proof.

Flow: regions from jars -> mm2.properties (printed) -> the normal wiring in this process; producers and
the comparison run in child processes with confluent-kafka. ``DEMO_SECONDS`` set: unattended, exit 0 if
both regions are equal, else 1. Everything but the log file is removed at the end.
"""

import asyncio
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn, TextIO

from rich.console import Console
from rich.live import Live

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.lint import load_checked
from mm2py.embedded.reaper import REAPER
from mm2py.embedded.region import Region, start_regions
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask, configure_logging
from mm2py.observability.metrics import Metrics
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.connect_mirror_maker import DRAIN_TIMEOUT_S, announce
from mm2py_workers.demo_table import FlowTable
from mm2py_workers.demo_traffic_process import TrafficProcess
from mm2py_workers.garbage_collector import freeze_garbage_collector
from mm2py_workers.signals import StopSignal
from mm2py_workers.wiring import Node, build_node

__all__ = ["DemoOptions", "properties_text", "run_demo"]

log = logging.getLogger(__name__)

MIN_FREE_BYTES: Final = 2 << 30
LOG_FILE: Final = Path(".mm2py") / "demo.log"
CATCH_UP_S: Final = 45.0
VERIFY_TIMEOUT_S: Final = 180.0
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

# one broker per region
replication.factor = 1
heartbeats.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
config.storage.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line and the environment say."""

    seconds: float | None = None
    rate: int = 3_000
    debug: bool = False


@dataclass(frozen=True, slots=True)
class _Stage:
    """What the running demo consists of."""

    options: DemoOptions
    screen: Console
    log_stream: TextIO
    regions: tuple[Region, Region]
    node: Node
    metrics: Metrics
    table: FlowTable
    stop: StopSignal


def run_demo(options: DemoOptions) -> int:
    """Run the demo; return the exit code.

    Raises:
        ConfigError: something the demo needs is missing (disk, Java, confluent-kafka).
    """
    _require()
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
            path.write_text(properties_text(a.bootstrap_servers, b.bootstrap_servers))
            screen.print(f"\n[bold]{path.name}[/bold]\n{path.read_text()}")
            return asyncio.run(_run(path, (a, b), options, screen, stream, mask))
    except KeyboardInterrupt:
        screen.print("Stopped.")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def properties_text(a: str, b: str) -> str:
    """Return the demo's mm2.properties for two bootstrap addresses."""
    return PROPERTIES.format(a=a, b=b)


def _require() -> None:
    if find_spec("confluent_kafka") is None:
        raise ConfigError(
            "the demo's traffic needs confluent-kafka",
            remedy="install mm2py[demo], or run make demo",
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
    config, findings = load_checked(path, CONNECTORS)
    flows = config.flows()
    announce(config, flows, findings)
    metrics = Metrics(SYSTEM_CLOCK)
    node = build_node(config, flows, metrics=metrics, clock=SYSTEM_CLOCK, mask=mask)
    maker = node.maker
    with StopSignal() as stop:
        table = FlowTable(metrics, SYSTEM_CLOCK, maker.problems)
        stage = _Stage(options, screen, stream, regions, node, metrics, table, stop)
        traffic = [TrafficProcess(r.name, r.bootstrap_servers, options.rate) for r in regions]
        try:
            code = await _play(stage, traffic)
        finally:
            for process in traffic:
                await process.kill()
            screen.print("Stopping the flows ...")
            clean = await node.stop(DRAIN_TIMEOUT_S)
        failed = await maker.wait()
        for flow, error in failed.items():
            screen.print(f"Flow {flow} failed: {error}", markup=False)
        return code if clean and not failed else 1


async def _play(stage: _Stage, traffic: Sequence[TrafficProcess]) -> int:
    for process in traffic:
        await process.start(stage.log_stream)
    stage.node.start()
    await _watch(stage, traffic)
    stage.screen.print("Stopping the producers ...")
    counts = [await process.finish() for process in traffic]
    for process, count in zip(traffic, counts, strict=True):
        stage.screen.print(f"Region {process.region}: {count.written:,} records written")
    if stage.stop.asked or stage.options.seconds is None:
        return 0
    if any(count.failed for count in counts):
        stage.screen.print(f"The producers failed, see {stage.log_stream.name}")
        return 1
    caught_up = await _catch_up(stage, {c.region: c.written for c in counts})
    equal = await _verify(stage)
    return 0 if caught_up and equal else 1


async def _watch(stage: _Stage, traffic: Sequence[TrafficProcess]) -> None:
    """Show the table until time is up, a stop is asked for, or something died."""
    began = SYSTEM_CLOCK.monotonic()
    end = began + stage.options.seconds if stage.options.seconds is not None else float("inf")
    settle = began + 10.0
    terminal = stage.screen.is_terminal
    live = Live(console=stage.screen, auto_refresh=False) if terminal else None
    with ExitStack() as stack:
        if live is not None:
            stack.enter_context(live)
        while SYSTEM_CLOCK.monotonic() < end and not stage.stop.asked:
            await _pause(stage.stop, LIVE_EVERY_S if terminal else PLAIN_EVERY_S)
            if SYSTEM_CLOCK.monotonic() > settle:
                freeze_garbage_collector()
                settle = float("inf")
            if live is not None:
                live.update(stage.table.render("mm2py: A <-> B   (Ctrl-C stops)"), refresh=True)
            else:
                _show_plainly(stage)
            if any(process.ended for process in traffic):
                stage.screen.print(f"A producer ended early, see {stage.log_stream.name}")
                return


async def _pause(stop: StopSignal, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _show_plainly(stage: _Stage) -> None:
    for row in stage.table.update():
        stage.screen.print(row.plain(), markup=False)


async def _catch_up(stage: _Stage, written: dict[str, int]) -> bool:
    """Wait until every flow runs, has copied what its source got, and reports no lag."""
    began = SYSTEM_CLOCK.monotonic()
    while SYSTEM_CLOCK.monotonic() - began < CATCH_UP_S and not stage.stop.asked:
        behind = [
            snapshot
            for snapshot in stage.metrics.snapshots()
            if snapshot.state != "RUNNING"
            or snapshot.lag_records
            or snapshot.records < written[snapshot.flow.source]
        ]
        if not behind:
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
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mm2py_workers.demo_verify", *arguments, stderr=stage.log_stream
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
