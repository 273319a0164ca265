"""An ordinary Connect worker of a group (``connect-distributed-py worker.properties``).

Flow: arguments -> file checked -> listeners bound -> herder runs, REST is served -> SIGTERM ->
drained, exit 0.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import closing
from typing import Final, NoReturn

from mm2py.clock import SYSTEM_CLOCK
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.runtime.hosts.process import HostStarter
from mm2py_workers.connect_arguments import CommandParser, WorkerOptions, run_program
from mm2py_workers.connect_wiring import ConnectWorker, build_distributed
from mm2py_workers.process_memory import settle
from mm2py_workers.signals import StopSignal
from mm2py_workers.task_host import forked_starter, host_processes
from mm2py_workers.worker_file import WorkerFile, load_worker_file

log = logging.getLogger(__name__)

PROGRAM: Final = "connect-distributed-py"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    run_program(PROGRAM, arguments, _parse, _begin)


def _parse(words: Sequence[str]) -> WorkerOptions:
    parser = CommandParser(
        PROGRAM,
        "Run a Kafka Connect worker; workers with the same group.id share its connectors, which"
        " are created over REST.",
        "worker.properties",
    )
    return parser.parse_args(words, namespace=WorkerOptions())


def _begin(options: WorkerOptions, mask: SecretMask) -> Coroutine[object, object, int]:
    file = load_worker_file(options.file, standalone=False, insecure=options.insecure)
    mask.add(file.secrets())
    announce(file)
    return _run(file, mask, forked_starter(host_processes(file.props), SYSTEM_CLOCK))


async def _run(file: WorkerFile, mask: SecretMask, starter: HostStarter) -> int:
    with closing(starter):
        worker = build_distributed(
            file, metrics=Metrics(SYSTEM_CLOCK), clock=SYSTEM_CLOCK, mask=mask, starter=starter
        )
        return await run_worker(worker)


def announce(file: WorkerFile) -> None:
    """Log once what in a file does not do what it seems to say."""
    for entry in file.file.duplicates:
        log.warning(
            "property is given twice, the last one counts file=%s property=%s",
            file.file.where(entry.line),
            entry.key,
        )
    for notice in file.notices:
        log.warning("%s", notice)


async def run_worker(
    worker: ConnectWorker, begin: Callable[[], Awaitable[None]] | None = None
) -> int:
    """Run a worker until a signal asks for its end; ``begin`` is called when REST is served."""
    settled = asyncio.create_task(settle(SYSTEM_CLOCK))
    try:
        with StopSignal() as stop:
            return await worker.run(stop, begin)
    finally:
        settled.cancel()


if __name__ == "__main__":
    main()
