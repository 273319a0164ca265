"""A Connect worker on its own (``connect-standalone-py worker.properties [connector …]``).

Flow: arguments -> all files checked -> listeners bound -> herder runs, REST is served -> the files' connectors are
created -> SIGTERM -> drained, exit 0. Offsets are in a file; connectors made over REST end with the process.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, NoReturn

from mm2py.clock import SYSTEM_CLOCK
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.runtime.errors import HerderError
from mm2py.runtime.herder.api import Validator
from mm2py_workers.connect_arguments import (
    CommandParser,
    ProblemsError,
    WorkerOptions,
    run_program,
)
from mm2py_workers.connect_distributed import announce, run_worker
from mm2py_workers.connect_wiring import ConnectWorker, build_standalone
from mm2py_workers.connector_files import ConnectorFile, load_connector_file
from mm2py_workers.worker_file import load_worker_file

log = logging.getLogger(__name__)

PROGRAM: Final = "connect-standalone-py"
ACTOR: Final = "command line"


class _Options(WorkerOptions):
    """What the command line said."""

    connectors: list[str]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    run_program(PROGRAM, arguments, _parse, _run)


def _parse(words: Sequence[str]) -> _Options:
    parser = CommandParser(
        PROGRAM,
        "Run a Kafka Connect worker on its own; its source offsets are kept in a file.",
        "worker.properties",
    )
    parser.add_argument(
        "connectors",
        nargs="*",
        metavar="CONNECTOR",
        help="connector to create: properties, or JSON (a config, or the body of POST /connectors)",
    )
    return parser.parse_args(words, namespace=_Options())


async def _run(options: _Options, mask: SecretMask) -> int:
    file = load_worker_file(options.file, standalone=True, insecure=options.insecure)
    mask.add(file.secrets())
    connectors = _loaded(options.connectors)
    announce(file)
    worker = build_standalone(file, metrics=Metrics(SYSTEM_CLOCK), clock=SYSTEM_CLOCK, mask=mask)
    try:
        await _check(connectors, worker.validator)
    except ConfigError:
        await worker.abandon()
        raise
    return await run_worker(worker, partial(_create, connectors, worker))


def _loaded(paths: Sequence[str]) -> list[ConnectorFile]:
    """Read the connectors' files; everything that is wrong is told."""
    found: dict[str, ConnectorFile] = {}
    problems: list[ConfigError] = []
    for path in paths:
        try:
            each = load_connector_file(path)
        except ConfigError as error:
            problems.append(error)
            continue
        if each.name in found:
            problems.append(
                ConfigError(
                    f"{each.path}: name={each.name} is that of {found[each.name].path} too",
                    remedy="give each connector a name of its own",
                )
            )
        found[each.name] = each
    if problems:
        raise ProblemsError(problems)
    return list(found.values())


async def _check(connectors: Sequence[ConnectorFile], validator: Validator) -> None:
    """Refuse wrong configs before anything runs."""
    problems: list[ConfigError] = []
    for each in connectors:
        try:
            infos = await validator.validate(each.config)
        except HerderError as error:
            problems.append(ConfigError(f"{each.path}: {error.message}"))
            continue
        problems += [
            ConfigError(f"{each.path}: {value.name}: {error}")
            for _, value in infos.configs
            if value is not None
            for error in value.errors
        ]
    if problems:
        raise ProblemsError(problems)


async def _create(connectors: Sequence[ConnectorFile], worker: ConnectWorker) -> None:
    if connectors:
        # However long the cluster is away: each look waits ten seconds at most.
        while (await worker.herder.health()).status == "starting":
            continue
    for each in connectors:
        await worker.herder.create(each.name, each.config, each.target, actor=ACTOR)
        log.info("connector created from its file connector=%s file=%s", each.name, each.path)


if __name__ == "__main__":
    main()
