"""``mm2py backfill`` as child processes of a worker: the JVM of Spark is theirs, and ends with
them.

Flow: ``plan``, ``run``, ``cancel`` -> ``mm2py backfill ... --order ID`` with a pipe as its standard
input -> its output, its last lines. A child ends in order when that pipe closes, however the worker
ends; ``close`` signals it and waits.
"""

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from mm2py.errors import ConfigError
from mm2py.mirror.backfills import Order
from mm2py.types import FlowName
from mm2py_jobs.copy.backfill_jobs import CommandEnd
from mm2py_jobs.spark.session import require_spark

log = logging.getLogger(__name__)

PLAN_S: Final = 60.0
"""Longest time for a plan, and for a cancel: of 10,000 partitions it takes seconds."""

CANCEL_S: Final = 180.0
CLOSE_S: Final = 20.0
"""How long drivers may take to end in order when the worker stops; their next run continues in any
case."""

LINGER_S: Final = 10.0
"""How long what a driver has started may keep its output open: the JVM ends within seconds, a
frozen Python worker does not."""

LOG_LINES: Final = 40
LINE_CHARS: Final = 2_000
CHUNK: Final = 65_536


@final
class BackfillChildren:
    """Implements ``mm2py_jobs.copy.backfill_jobs.BackfillCommands``.

    Args:
        file: the properties file of the worker.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.absolute()
        self._runs: dict[FlowName, asyncio.subprocess.Process] = {}
        self._open: set[asyncio.subprocess.Process] = set()

    @property
    def running(self) -> int:
        return len(self._open)

    async def missing(self, master: str) -> str:
        """Return why Spark cannot be used here, empty where it can."""
        try:
            require_spark()
            if not master.startswith("sc://"):
                await asyncio.to_thread(_check_java)
        except ConfigError as error:
            return f"Spark cannot be started on this worker: {error}"
        return ""

    async def plan(self, flow: FlowName, order: Order) -> CommandEnd:
        return await self._short("plan", flow, PLAN_S, _options(order))

    async def cancel(self, flow: FlowName) -> CommandEnd:
        """Give partitions back to the running flow."""
        return await self._short("cancel", flow, CANCEL_S, ())

    async def run(self, flow: FlowName, order: Order) -> CommandEnd:
        """Begin, or continue an unfinished one, to its end or to ``stop``."""
        try:
            process = await self._started("run", flow, _options(order))
        except OSError as error:
            return _not_started(error)
        self._runs[flow] = process
        try:
            return await self._ended(process, flow)
        finally:
            del self._runs[flow]

    def stop(self, flow: FlowName) -> None:
        """End a run in order, without waiting."""
        process = self._runs.get(flow)
        if process is not None:
            _signal(process, signal.SIGTERM)

    async def close(self) -> None:
        """End all in order; what has not ended within ``CLOSE_S`` is killed."""
        left = list(self._open)
        if not left:
            return
        for process in left:
            _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(it.wait() for it in left))
        for process in left:
            _kill(process)

    async def _short(
        self, name: str, flow: FlowName, limit_s: float, options: Sequence[str]
    ) -> CommandEnd:
        try:
            process = await self._started(name, flow, options)
        except OSError as error:
            return _not_started(error)
        try:
            async with asyncio.timeout(limit_s):
                return await self._ended(process, flow)
        except TimeoutError:
            return CommandEnd(1, "", (f"mm2py: no answer within {limit_s:.0f} s",))
        finally:
            _kill(process)

    async def _started(
        self, name: str, flow: FlowName, options: Sequence[str]
    ) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mm2py_cli", "backfill", name, str(self._file)),
            *(f"--flow={flow}", "--output=json", *options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # What a terminal sends to the worker's group is the worker's to pass on.
            start_new_session=True,
        )
        self._open.add(process)
        return process

    async def _ended(self, process: asyncio.subprocess.Process, flow: FlowName) -> CommandEnd:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: deque[str] = deque(maxlen=LOG_LINES)
        reading = asyncio.gather(process.stdout.read(), _read_lines(process.stderr, flow, lines))
        out = b""
        try:
            code = await process.wait()
            with suppress(TimeoutError):
                out, _ = await asyncio.wait_for(reading, LINGER_S)
            return CommandEnd(code, out.decode(errors="replace"), tuple(lines))
        finally:
            reading.cancel()
            self._open.discard(process)


def _check_java() -> None:
    # Only here: it loads rich and an HTTP client, which a worker without orders for Spark does not
    # need.
    from mm2py_jobs.spark.java import find_java

    find_java()


def _not_started(error: OSError) -> CommandEnd:
    return CommandEnd(1, "", (f"mm2py: the process cannot be started: {error}",))


def _options(order: Order) -> Sequence[str]:
    return (
        f"--topics={order.topics}",
        f"--from={order.start}",
        f"--to={order.end}",
        f"--master={order.master}",
        f"--rate-limit={order.rate_limit}",
        f"--order={order.id}",
        *(("--accept-expiry",) if order.accept_expiry else ()),
        *(("--skip-refused",) if order.skip_refused else ()),
        *(
            f"--{name}={number}"
            for name, number in (
                ("wait-executors", order.wait_executors_s),
                ("lanes", order.lanes),
                ("max-lanes-per-broker", order.max_lanes_per_broker),
            )
            if number
        ),
    )


async def _read_lines(stream: asyncio.StreamReader, flow: FlowName, lines: deque[str]) -> None:
    """Log what a child writes, and keep its last lines."""
    rest = b""
    while data := await stream.read(CHUNK):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[-LINE_CHARS:]
        for line in whole:
            text = line.decode(errors="replace")[:LINE_CHARS].rstrip()
            log.info("backfill of %s: %s", flow, text)
            lines.append(text)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a child that has not ended, and its JVM."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
