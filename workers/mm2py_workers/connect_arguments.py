"""Command lines of the programs that run workers: how they are read, and how a process ends.

Flow: words -> ``CommandParser`` -> options -> ``run_program`` -> exit code: 0 orderly end, 1
failure, 2 wrong usage. One clear line on stderr per problem, a stack trace only with ``--debug``.
"""

import argparse
import asyncio
import logging
import os
import resource
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Final, NoReturn, TypeVar, final

from mm2py.config.broker_addresses import broker_networks
from mm2py.config.jaas import file_secrets
from mm2py.errors import ConfigError, Mm2pyError, UsageError
from mm2py.observability.logging import SecretMask, configure_logging
from mm2py.runtime.hosts.thaw import thawing_loop

log = logging.getLogger(__name__)

TEXT: Final = "text"
JSON: Final = "json"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


class ProgramOptions(argparse.Namespace):
    """What every program's command line can say."""

    debug: bool
    log_level: str
    log_format: str = TEXT
    """``TEXT`` or ``JSON``."""


class WorkerOptions(ProgramOptions):
    """What the command line of a worker can say."""

    file: str
    insecure: bool


OptionsT = TypeVar("OptionsT", bound=ProgramOptions)


@final
class CommandParser(argparse.ArgumentParser):
    """The options that all have; wrong usage is one line and exit code 2."""

    def __init__(self, program: str, description: str, file: str) -> None:
        super().__init__(prog=program, description=description)
        self.add_argument("file", metavar="FILE", help=file)
        self.add_argument(
            "--log-level", choices=_LEVELS, default="INFO", type=str.upper, help="default: INFO"
        )
        self.add_argument(
            "--log-format",
            choices=(TEXT, JSON),
            default=TEXT,
            help="lines to read, or one JSON object per line (default: text)",
        )
        self.add_argument(
            "--insecure",
            action="store_true",
            help="let everybody use REST who reaches its listeners, without authentication",
        )
        self.add_argument("--debug", action="store_true", help="log level DEBUG, with stack traces")
        installed = f"{program} {version('mm2py')}"
        self.add_argument("--version", action="version", version=installed)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")


@final
class ProblemsError(ConfigError):
    """Everything that is wrong with the files of a program, one line each."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


def run_program(
    program: str,
    words: Sequence[str] | None,
    parse: Callable[[Sequence[str]], OptionsT],
    begin: Callable[[OptionsT, SecretMask], Coroutine[object, object, int]],
) -> NoReturn:
    """Run a program and end the process with its exit code.

    ``begin`` is called while this process has no thread and no loop: it reads the files, forks what
    is to be forked (``task_host.forked_starter``) and returns what the loop runs.
    """
    mask = SecretMask(file_secrets(os.environ))
    try:
        options = parse(sys.argv[1:] if words is None else list(words))
    except UsageError as error:
        _complain(program, error, mask)
        sys.exit(2)
    as_json = options.log_format == JSON
    configure_logging(
        sys.stderr, mask, level=options.log_level, debug=options.debug, as_json=as_json
    )
    _raise_descriptor_limit()
    try:
        broker_networks()  # refused at the start, not by each connection
        work = begin(options, mask)
        with asyncio.Runner(loop_factory=thawing_loop) as runner:
            code = runner.run(work)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the process's edge: one line, the trace with --debug
        _complain(program, error, mask, options)
        code = 2 if isinstance(error, UsageError) else 1
    sys.exit(code)


def _raise_descriptor_limit() -> None:
    """Use as many open files as allowed, as Java: a task needs nine, and the limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # some systems refuse what they allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _complain(
    program: str, error: Exception, mask: SecretMask, options: ProgramOptions | None = None
) -> None:
    if options is not None and options.debug:
        log.debug("the process ends because of", exc_info=error)
    for problem in error.problems if isinstance(error, ProblemsError) else (error,):
        text = (
            str(problem)
            if isinstance(problem, Mm2pyError)
            else f"{type(problem).__name__}: {problem}"
        )
        kind = (
            "bad configuration: "
            if isinstance(problem, ConfigError) and not isinstance(problem, UsageError)
            else ""
        )
        line = f"{program}: {kind}{mask.apply(' '.join(text.split()))}"
        if options is not None and options.log_format == JSON:
            log.error("%s", line)
        else:
            sys.stderr.write(f"{line}\n")
