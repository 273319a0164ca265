"""A task host, forked from a process that a worker has (``mm2py.runtime.hosts.process``).

Flow: calls on the descriptor -> ``HostService`` -> tasks. Log lines go to the worker. It ends with the pipe.
``python -m mm2py_workers.task_host FD`` replaces the process that forks them.
"""

import asyncio
import logging
import os
import socket
import sys
from importlib.metadata import version
from typing import final

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.jaas import file_secrets
from mm2py.observability.loggers import ProcessLoggers
from mm2py.observability.logging import SecretMask
from mm2py.runtime.hosts.pipe import HostPipe
from mm2py.runtime.hosts.process import end_with_worker, serve_starts
from mm2py.runtime.hosts.reports import PipeLogHandler
from mm2py.runtime.hosts.service import FlowSpec, HostedFlow, HostService
from mm2py.runtime.hosts.thaw import thawing_loop
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.tasks.task_assembly import FlowReports
from mm2py.runtime.tasks.task_host import TaskWatcher
from mm2py_workers.hosted_flow import open_flow
from mm2py_workers.process_memory import keep_freed_memory, settle


def run_host(descriptor: int) -> None:
    """Serve the worker at the other end of a pipe."""
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
        if not self._begun:
            self._begun = True
            logging.getLogger().setLevel(level)

    def set(self, namespace: str, level: str) -> None:
        """Follow a change."""
        self._begun = True
        self._loggers.set(namespace, level)


if __name__ == "__main__":
    serve_starts(socket.socket(fileno=int(sys.argv[1])), run_host)
