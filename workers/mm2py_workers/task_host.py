"""Task hosts: child processes in which a worker's tasks live, as the worker starts them and as they
run.

Flow: ``task.host.processes`` -> ``host_pool``, one for all flows of a worker -> a host, forked from
a process that the worker has (``mm2py.runtime.hosts.process``) -> calls on its descriptor ->
``HostService`` -> ``open_flow`` -> tasks. Positions and maps go to the target from here and never
cross the pipe; log lines go to the worker. A host ends with its pipe.
``python -m mm2py_workers.task_host FD`` replaces the process that forks them.
"""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Final, final

from mm2py.client.permit import Permit
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.definitions import parse_config
from mm2py.config.jaas import file_secrets
from mm2py.config.secret_names import secrets_in
from mm2py.config.worker import ProcessConfig
from mm2py.observability.loggers import ProcessLoggers
from mm2py.observability.logging import SecretMask
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.pool import HostPool
from mm2py.runtime.hosts.process import HostStarter, end_with_worker, serve_starts
from mm2py.runtime.hosts.reports import PipeLogHandler
from mm2py.runtime.hosts.service import FlowSpec, HostedFlow, HostService
from mm2py.runtime.hosts.thaw import thawing_loop
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import HostedTask, InProcessTaskHost, TaskSpec, TaskWatcher
from mm2py.storage.offset_map_store import NoMapStore
from mm2py_workers.flow_parts import FlowParts
from mm2py_workers.internal_stores import HostedMaps, HostedOffsets
from mm2py_workers.process_memory import give_back, keep_freed_memory, settle
from mm2py_workers.sink_clients import KafkaSinkClients

PROCESSES: Final = "task.host.processes"
STARTER_COMMAND: Final = (sys.executable, "-P", "-m", "mm2py_workers.task_host")
"""``-P``: ``-m`` alone would import from the working directory first, where others may write."""


def host_processes(props: Mapping[str, str]) -> int:
    """Return how many child processes tasks may use, one per core by default; 0: they live in this
    process. ``ConfigError``: the value is no such number."""
    given = parse_config(ProcessConfig, props).task_host_processes
    return len(os.sched_getaffinity(0)) if given is None else given


def host_starter(clock: Clock) -> HostStarter:
    """Return what starts task hosts; see ``HostStarter.fork_now``."""
    return HostStarter(STARTER_COMMAND, version=version("mm2py"), clock=clock)


def forked_starter(processes: int, clock: Clock) -> HostStarter:
    """Return what starts task hosts, forked if needed; called without a thread or loop."""
    starter = host_starter(clock)
    if processes:
        give_back()  # each host would have its own copy of what is free
        starter.fork_now(run_host)
    return starter


def host_pool(processes: int, starter: HostStarter) -> HostPool | None:
    """Return this process's pool, which owns ``starter``; None where tasks live in it."""
    if processes:
        return HostPool(processes, starter)
    keep_freed_memory()  # as each task host does
    return None


# ---- in the host


def run_host(descriptor: int) -> None:
    """Serve the worker at the other end of a pipe."""
    # First: from here on the process cannot outlive its worker, whatever else fails.
    end_with_worker(descriptor)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=thawing_loop) as runner:
        runner.run(_serve(descriptor))


async def _serve(descriptor: int) -> None:
    pipe = await HostPipe.over(socket.socket(fileno=descriptor))
    mask = SecretMask(file_secrets(os.environ))
    _log_into(pipe, mask)
    plugins, levels = Plugins(), _Levels()

    def build(spec: FlowSpec, reports: FlowReports, watcher: TaskWatcher) -> HostedFlow:
        levels.begin(spec.log_level)
        return open_flow(spec, reports, watcher, plugins=plugins, mask=mask, clock=SYSTEM_CLOCK)

    service = HostService(
        pipe, build, set_level=levels.set, version=version("mm2py"), clock=SYSTEM_CLOCK
    )
    settled = asyncio.create_task(settle(SYSTEM_CLOCK))
    try:
        await service.run()
    finally:
        settled.cancel()


def _log_into(pipe: HostPipe, mask: SecretMask) -> None:
    root = logging.getLogger()
    root.handlers[:] = [PipeLogHandler(pipe.channel(0), mask)]
    root.setLevel(logging.INFO)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


@final
class _Levels:
    """Log levels as the worker has them: what it started with, and what was set since."""

    def __init__(self) -> None:
        self._loggers = ProcessLoggers(SYSTEM_CLOCK)
        self._begun = False

    def begin(self, level: str) -> None:
        """Take the level of the worker's start, unless one was set already."""
        # A level that was set before the first flow opened counts, not that of the worker's start.
        if not self._begun:
            self._begun = True
            logging.getLogger().setLevel(level)

    def set(self, namespace: str, level: str) -> None:
        self._begun = True
        self._loggers.set(namespace, level)


@final
class _HostedFlow:
    """Implements ``mm2py.runtime.hosts.service.HostedFlow``."""

    def __init__(
        self,
        host: InProcessTaskHost,
        parts: FlowParts,
        offsets: HostedOffsets,
        maps: HostedMaps | None,
    ) -> None:
        self.host, self.permit = host, parts.tables.permit
        self._parts, self._offsets, self._maps = parts, offsets, maps
        # Beside the tasks, which wait for them.
        offsets.opening.begin()
        if maps is not None:
            maps.opening.begin()

    async def close(self) -> None:
        await self._offsets.close()
        if self._maps is not None:
            await self._maps.close()
        await self._parts.close()


def open_flow(
    spec: FlowSpec,
    reports: FlowReports,
    watcher: TaskWatcher,
    *,
    plugins: Plugins,
    mask: SecretMask,
    clock: Clock,
) -> _HostedFlow:
    """Build a flow; connections open in the background. ``ConfigError``: its worker config cannot
    be run."""
    # Before anything is built: its errors may quote the config.
    mask.add(secrets_in(spec.worker))
    parts = FlowParts.of(
        spec.flow,
        spec.worker,
        plugins=plugins,
        permit=Permit(clock),
        clock=clock,
        copies=spec.copies,
    )
    offsets = parts.offsets()
    maps = parts.maps() if spec.copies else None
    sinks = KafkaSinkClients(spec.worker, spec.flow.target, clock)
    assembly = parts.assembly(offsets, maps or NoMapStore(), reports, sinks)

    def build(task: TaskSpec, on_status: Callable[[Status], None]) -> HostedTask:
        # Before anything is logged: a connector may have secrets that the file lacks.
        mask.add(secrets_in(task.connector_config, task.config))
        return assembly(task, on_status)

    return _HostedFlow(parts.host(build, watcher), parts, offsets, maps)


if __name__ == "__main__":
    serve_starts(socket.socket(fileno=int(sys.argv[1])), run_host)
