"""The demo with several workers: processes on one file, as on several machines, and one of them dies.

Flow: ``start`` -> processes ``mm2py_workers.connect_mirror_maker`` -> their logs tell where REST is -> ``look`` asks
one of them for ``/flows`` -> table. Whoever dies comes back after a while; unattended, one is killed.
"""

import asyncio
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from examples.demo.engine import page_below
from examples.demo.table import duration_text, size_text
from mm2py.clock import Clock
from mm2py_workers.signals import DRAIN_TIMEOUT_S
from tests.kit.kafka.reaper import REAPER

RETURN_S: Final = 10.0
"""How long a worker that died stays away: longer than the others wait for it."""

FIRST_KILL_S: Final = 12.0
STEADY_S: Final = 3.0
SHORTEST_WITH_KILL_S: Final = 40.0
ASK_S: Final = 2.0
_LISTENS: Final = re.compile(r"rest listens public=(\S+?)(?:,\S+)? internal=https?://([^/\s]+)/")
_STYLES: Final = {"RUNNING": "green", "FAILED": "bold red"}


class _Task(BaseModel):
    number: int
    state: str
    worker: str


class _Connector(BaseModel):
    name: str
    tasks: tuple[_Task, ...]


class FlowSeen(BaseModel):
    """What ``/flows`` says of one flow, as far as it is shown."""

    flow: str
    state: str
    lag_records: int | None
    lag_ms: int | None
    records_per_s: float | None
    bytes_per_s: float | None
    records_lost: int
    connectors: tuple[_Connector, ...]
    incomplete: tuple[str, ...]

    def tasks_of(self, worker: str) -> str:
        """Name the source tasks that run on a worker, as ``0 2``."""
        return " ".join(
            str(task.number)
            for connector in self.connectors
            if connector.name == "MirrorSourceConnector"
            for task in connector.tasks
            if task.worker == worker and task.state == "RUNNING"
        )


_FLOWS: Final = TypeAdapter(list[FlowSeen])


@dataclass(slots=True, eq=False)
class Worker:
    """One process of the group."""

    name: str
    log_file: Path
    process: asyncio.subprocess.Process
    public: str = ""
    owner: str = ""
    """``host:port``: its name in statuses."""

    gone_at: float | None = None

    @property
    def state(self) -> str:
        """One word for the table."""
        if self.gone_at is not None:
            return "KILLED"
        return "RUNNING" if self.public else "STARTING"


def plan_kill(seconds: float | None) -> float | None:
    """Return after how many seconds one worker is killed; None where there is no time to come back."""
    return FIRST_KILL_S if seconds is not None and seconds >= SHORTEST_WITH_KILL_S else None


@final
class WorkerProcesses:
    """An ``Engine`` of several workers.

    Args:
        file: the properties file that all of them read.
        count: how many.
        logs: folder for one log file each.
        kill_after_s: when one of them is killed, None: never.
        say: shows a line to the user.
    """

    def __init__(
        self,
        file: Path,
        count: int,
        logs: Path,
        *,
        kill_after_s: float | None,
        say: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._file, self._logs, self._say, self._clock = file, logs, say, clock
        self._names = [f"worker-{number}" for number in range(1, count + 1)]
        self._kill_after_s = kill_after_s
        self._kill_at: float | None = None
        self._workers: dict[str, Worker] = {}
        self._flows: Sequence[FlowSeen] = ()
        self._http = httpx.AsyncClient(timeout=ASK_S)
        self.kills = 0

    @property
    def page(self) -> str:
        """Address of the page at the first worker that serves REST."""
        return page_below(next((it.public for it in self._workers.values() if it.public), ""))

    async def start(self) -> None:
        """Start every process."""
        for name in self._names:
            await self._launch(name)
        if self._kill_after_s is not None:
            self._kill_at = self._clock.monotonic() + self._kill_after_s
        pids = ", ".join(f"{it.name} (pid {it.process.pid})" for it in self._workers.values())
        self._say(f"Started {pids} on one file; kill -9 any, it comes back after {RETURN_S:.0f} s")

    async def look(self) -> None:
        """Note who died, start again who was away long enough, ask for the flows."""
        for worker in list(self._workers.values()):
            if worker.gone_at is None and worker.process.returncode is not None:
                self._died(worker)
            elif worker.gone_at is not None and self._clock.monotonic() > worker.gone_at + RETURN_S:
                await self._launch(worker.name)
                self._say(f"{worker.name} comes back")
            elif not worker.public:
                _find_rest(worker)
        if self._kill_at is not None and self._clock.monotonic() > self._kill_at:
            await self._kill_one()
        await self._ask()

    def plain(self) -> Sequence[str]:
        """Return one line per flow."""
        return [f"{_numbers(seen)}  {seen.state}  {self._places(seen)}" for seen in self._flows]

    def render(self, title: str) -> RenderableType:
        """Return the flows, and below them who runs what."""
        flows = Table(title=title, title_justify="left", min_width=88)
        for name in ("flow", "records/s", "bytes/s", "lag (records)", "lag (time)", "state"):
            flows.add_column(name, justify="left" if name in {"flow", "state"} else "right")
        for seen in self._flows:
            flows.add_row(
                seen.flow,
                f"{seen.records_per_s or 0:,.0f}",
                size_text(seen.bytes_per_s or 0).strip(),
                f"{seen.lag_records or 0:,}",
                duration_text(seen.lag_ms or 0),
                Text(seen.state, style=_STYLES.get(seen.state, "yellow")),
            )
        workers = Table(min_width=88)
        for name in ("worker", "pid", "state", *(f"tasks of {it.flow}" for it in self._flows)):
            workers.add_column(name)
        for worker in self._workers.values():
            workers.add_row(
                worker.name,
                str(worker.process.pid),
                Text(worker.state, style=_STYLES.get(worker.state, "yellow")),
                *(seen.tasks_of(worker.owner) for seen in self._flows),
            )
        return Group(flows, workers)

    def runs(self) -> bool:
        """Whether every flow runs."""
        return bool(self._flows) and all(it.state == "RUNNING" for it in self._flows)

    def settled(self, written: Mapping[str, int]) -> bool:
        """Whether every flow runs on workers that answer, and reports no lag."""
        is_whole = len(self._flows) == len(written) and self.runs()
        return is_whole and all(it.lag_records == 0 and not it.incomplete for it in self._flows)

    async def stop(self) -> Sequence[str]:
        """Stop every process in order; return which did not end well."""
        living = [it for it in self._workers.values() if it.process.returncode is None]
        for worker in living:
            worker.process.terminate()
        ended = [asyncio.ensure_future(worker.process.wait()) for worker in living]
        if ended:
            await asyncio.wait(ended, timeout=DRAIN_TIMEOUT_S + 5)
        for worker in living:
            if worker.process.returncode is None:
                worker.process.kill()
                await worker.process.wait()
            REAPER.forget_process(worker.process.pid)
        await self._http.aclose()
        return [
            f"{it.name} ended with {it.process.returncode}, see {it.log_file}"
            for it in living
            if it.process.returncode != 0
        ]

    # ---- processes

    async def _launch(self, name: str) -> None:
        log_file = self._logs / f"demo-{name}.log"
        log_file.unlink(missing_ok=True)  # it would tell where the one before listened
        with log_file.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "mm2py_workers.connect_mirror_maker",
                str(self._file),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                # Ctrl-C is for the demo, which stops its workers itself.
                start_new_session=True,
            )
        REAPER.watch_process(process.pid)
        self._workers[name] = Worker(name, log_file, process)

    def _died(self, worker: Worker) -> None:
        worker.gone_at, worker.public = self._clock.monotonic(), ""
        REAPER.forget_process(worker.process.pid)
        self.kills += 1
        self._say(f"{worker.name} died, its tasks move to the others")

    async def _kill_one(self) -> None:
        """Kill the worker with the most tasks, once everything runs."""
        busy = {
            worker: sum(len(seen.tasks_of(worker.owner)) for seen in self._flows)
            for worker in self._workers.values()
            if worker.public
        }
        if len(busy) < len(self._names) or not self.runs():
            self._kill_at = self._clock.monotonic() + STEADY_S  # now it would show nothing
            return
        self._kill_at = None
        victim = max(busy, key=lambda worker: busy[worker])
        self._say(f"kill -9 {victim.process.pid} ({victim.name})")
        victim.process.send_signal(signal.SIGKILL)
        await victim.process.wait()
        self._died(victim)

    # ---- REST

    async def _ask(self) -> None:
        for worker in self._workers.values():
            if worker.public:
                try:
                    answer = await self._http.get(f"{worker.public}flows")
                    answer.raise_for_status()
                    self._flows = sorted(_FLOWS.validate_json(answer.content), key=_by_name)
                except (httpx.HTTPError, ValidationError):
                    continue  # it was killed meanwhile, or is starting
                return

    def _places(self, seen: FlowSeen) -> str:
        return "  ".join(
            f"{worker.name}: {seen.tasks_of(worker.owner) or '-'}"
            if worker.state == "RUNNING"
            else f"{worker.name}: {worker.state}"
            for worker in self._workers.values()
        )


def _find_rest(worker: Worker) -> None:
    found = _LISTENS.search(worker.log_file.read_text(encoding="utf-8", errors="replace"))
    if found is not None:
        worker.public, worker.owner = found[1], found[2]


def _numbers(seen: FlowSeen) -> str:
    line = (
        f"{seen.flow}  {seen.records_per_s or 0:>8,.0f} records/s  {size_text(seen.bytes_per_s or 0)}/s"
        f"  lag {seen.lag_records or 0:,} records, {duration_text(seen.lag_ms or 0)}"
    )
    return f"{line}; {seen.records_lost:,} records lost" if seen.records_lost else line


def _by_name(seen: FlowSeen) -> str:
    return seen.flow
