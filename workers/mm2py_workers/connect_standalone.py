"""A Connect worker on its own (``connect-standalone-py worker.properties [connector …]``).

Flow: arguments -> all files checked -> listeners bound -> herder runs, REST is served -> the files'
connectors are created -> SIGTERM -> drained, exit 0. Offsets are in a file; connectors made over
REST end with the process.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, cast

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.properties import parse
from mm2py.errors import ConfigError
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.runtime.errors import HerderError
from mm2py.runtime.herder.api import Validator
from mm2py.types import INITIAL_STATES, TargetState
from mm2py_workers.connect_arguments import CommandParser, ProblemsError, WorkerOptions, run_program
from mm2py_workers.connect_distributed import announce, run_worker
from mm2py_workers.connect_wiring import ConnectWorker, build_standalone
from mm2py_workers.worker_file import load_worker_file

log = logging.getLogger(__name__)

PROGRAM: Final = "connect-standalone-py"
ACTOR: Final = "command line"
LOOK_S: Final = 0.5

_BODY = frozenset({"name", "config", "initial_state"})


# ---- connectors' files: JSON (a config, or the body of ``POST /connectors``) or properties


@dataclass(frozen=True, slots=True)
class ConnectorFile:
    """One connector; ``target`` is None where the file has no initial state."""

    path: Path
    name: str
    config: Mapping[str, str]
    target: TargetState | None


def load_connector_file(path: Path | str) -> ConnectorFile:
    """Read a connector's config; ``ConfigError``: the file cannot be read, or is neither form of
    JSON nor properties with a name."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"connector file {file} cannot be read: {error.strerror}", remedy="check the path"
        ) from None
    content = _json(data)
    if content is None:
        config = dict(parse(data, path=str(file)).values)
        return ConnectorFile(file, _name(file, config), config, None)
    target: TargetState | None = None
    # As `ConnectStandalone`: a flat config, or the body of `POST /connectors`.
    if isinstance(content.get("config"), dict) and content.keys() <= _BODY:
        target = _target(file, content.get("initial_state"))
        config = _texts(file, cast("dict[str, object]", content["config"]))
        given = content.get("name")
        config = {"name": str(given), **config} if given is not None else config
        if given is not None and config["name"] != given:
            raise ConfigError(
                f"{file}: name is {given}, but config has name={config['name']}",
                remedy="write the same name in both places, or leave it out of config",
            )
    else:
        config = _texts(file, content)
    return ConnectorFile(file, _name(file, config), config, target)


def _json(data: bytes) -> dict[str, object] | None:
    try:
        content = cast("object", json.loads(data))
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", content) if isinstance(content, dict) else None


def _texts(file: Path, content: Mapping[str, object]) -> dict[str, str]:
    config: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, bool):
            config[key] = "true" if value else "false"
        elif isinstance(value, str | int | float):
            config[key] = str(value)
        else:
            raise ConfigError(
                f"{file}: {key} is no text, number or boolean", remedy="write it as a text"
            )
    return config


def _name(file: Path, config: Mapping[str, str]) -> str:
    name = config.get("name", "").strip()
    if not name:
        raise ConfigError(f"{file}: name is missing", remedy="set name to the connector's name")
    return name


def _target(file: Path, state: object) -> TargetState | None:
    if state is None:
        return None
    target = INITIAL_STATES.get(str(state).upper())
    if target is None:
        raise ConfigError(
            f"{file}: initial_state={state} is no state",
            remedy=f"use {', '.join(INITIAL_STATES)}",
        )
    return target


# ---- the program


class _StandaloneOptions(WorkerOptions):
    """The arguments of the command line."""

    connectors: list[str]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    run_program(PROGRAM, arguments, _parse, _run)


def _parse(words: Sequence[str]) -> _StandaloneOptions:
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
    return parser.parse_args(words, namespace=_StandaloneOptions())


async def _run(options: _StandaloneOptions, mask: SecretMask) -> int:
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
    """Read the connectors' files; every problem is reported."""
    files: dict[str, ConnectorFile] = {}
    problems: list[ConfigError] = []
    for path in paths:
        try:
            each = load_connector_file(path)
        except ConfigError as error:
            problems.append(error)
            continue
        if each.name in files:
            problems.append(
                ConfigError(
                    f"{each.path}: name={each.name} is that of {files[each.name].path} too",
                    remedy="give each connector a name of its own",
                )
            )
        files[each.name] = each
    if problems:
        raise ProblemsError(problems)
    return list(files.values())


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
        # However long the cluster is away: each check waits ten seconds at most.
        while (await worker.herder.health()).status == "starting":
            await SYSTEM_CLOCK.sleep(LOOK_S)
    for each in connectors:
        await worker.herder.create(each.name, each.config, each.target, actor=ACTOR)
        log.info("connector created from its file connector=%s file=%s", each.name, each.path)


if __name__ == "__main__":
    main()
