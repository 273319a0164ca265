"""The command line of ``mirror-maker-py``: the options of ``kafka.tools.MirrorMaker`` from 0.8 to
3.9.

Flow: words -> ``read_arguments`` -> ``Arguments``. ``--option value`` and ``--option=value`` are
the same, as is each spelling that some release had; wrong usage ends with exit code 2.
"""

import argparse
from collections.abc import Sequence
from typing import Final, NoReturn, final

from mm2py.errors import UsageError
from mm2py_workers.connect_arguments import ProgramOptions

PROGRAM: Final = "mirror-maker-py"
COMMIT_MS: Final = 60_000
"""Time between commits, as Java has it."""
_MOST_MS: Final = 2**63 - 1


class Arguments(ProgramOptions):
    """The arguments of the command line; times in milliseconds."""

    consumer_config: str
    producer_config: str
    include: str
    whitelist: str
    blacklist: str
    num_streams: int
    num_producers: int
    queue_size: int | None
    offset_commit_interval_ms: int
    abort_on_send_failure: bool
    message_handler: str
    message_handler_args: str | None
    rebalance_listener: str
    rebalance_listener_args: str | None


def read_arguments(words: Sequence[str]) -> Arguments:
    """Read the command line; ``UsageError``: an option is unknown, given twice, has no or a wrong
    value, or is missing."""
    return _parser().parse_args(list(words), namespace=Arguments())


@final
class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {self.prog} --help")


@final
class _SingleOption(argparse.Action):
    """Keeps a value; a second one is refused, as in Java: either could be meant."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        given: set[str] = namespace.__dict__.setdefault("_given", set())
        if self.dest in given:
            raise UsageError(
                f"{option_string} is given twice", remedy="start one process per source cluster"
            )
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        description="Copy topics through a consumer group, as the legacy MirrorMaker 1 does "
        "(kafka.tools.MirrorMaker).",
    )

    def option(*names: str, **rest: object) -> None:
        parser.add_argument(*names, action=_SingleOption, **rest)  # type: ignore[arg-type] # as add_argument's own

    option("--consumer.config", dest="consumer_config", required=True, metavar="FILE",
           help="properties of the consumer of the source cluster")  # fmt: skip
    option("--producer.config", dest="producer_config", required=True, metavar="FILE",
           help="properties of the producer of the target cluster")  # fmt: skip
    option("--include", dest="include", default="", metavar="REGEX",
           help="topics to mirror: a Java regular expression, a comma is an alternative")  # fmt: skip
    option("--whitelist", "--white-list", dest="whitelist", default="", metavar="REGEX",
           help="the old name of --include")  # fmt: skip
    option(
        "--blacklist",
        "--black-list",
        "--exclude",
        dest="blacklist",
        default="",
        metavar="REGEX",
        help="topics to leave out, all others are mirrored",
    )
    option("--num.streams", dest="num_streams", type=_at_least_one, default=1, metavar="N",
           help="members of the consumer group (default: 1)")  # fmt: skip
    option("--num.producers", dest="num_producers", type=_at_least_one, default=1, metavar="N",
           help="producers that the streams share (default: 1)")  # fmt: skip
    option("--queue.size", dest="queue_size", type=_at_least_one, metavar="N",
           help="most records between consumers and producer")  # fmt: skip
    option(
        "--offset.commit.interval.ms",
        dest="offset_commit_interval_ms",
        type=_at_least_one,
        default=COMMIT_MS,
        metavar="MS",
        help="time between commits (default: 60000)",
    )
    option(
        "--abort.on.send.failure",
        "--abort.on.send.fail",
        "--abortOnSendFail",
        dest="abort_on_send_failure",
        type=_flag,
        nargs="?",
        const=True,
        default=True,
        metavar="true|false",
        help="end when a record is refused (default: true), or drop it and count it",
    )
    option("--message.handler", dest="message_handler", default="", metavar="NAME",
           help="entry point in mm2py.message_handlers")  # fmt: skip
    option(
        "--message.handler.args", dest="message_handler_args", metavar="TEXT", help="its argument"
    )
    option("--consumer.rebalance.listener", dest="rebalance_listener", default="", metavar="NAME",
           help="entry point in mm2py.rebalance_listeners")  # fmt: skip
    option(
        "--rebalance.listener.args",
        dest="rebalance_listener_args",
        metavar="TEXT",
        help="its argument",
    )
    parser.add_argument("--new.consumer", action="store_true", help="accepted, no effect")
    parser.add_argument(
        "--log-level",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        default="INFO",
        type=str.upper,
        help="default: INFO",
    )
    parser.add_argument("--debug", action="store_true", help="log level DEBUG, with stack traces")
    parser.add_argument("--version", action="version", version=_version())
    return parser


def _version() -> str:
    from importlib.metadata import version

    return f"{PROGRAM} {version('mm2py')}"


def _at_least_one(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= _MOST_MS:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return number


def _flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text} is neither true nor false")
    return text.strip().lower() == "true"
