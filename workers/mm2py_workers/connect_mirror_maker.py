"""Dedicated mode: every flow of one properties file (``connect-mirror-maker-py FILE``).

Flow: arguments -> file checked -> findings and flows logged -> flows run -> SIGTERM -> drained, exit 0.
Exit codes: 0 orderly end, 1 failure, 2 wrong usage. One clear line on stderr, a stack trace only with
``--debug``.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import Final, NoReturn, TextIO, final

from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.findings import Finding, Severity
from mm2py.config.jaas import jaas_secrets
from mm2py.config.lint import load_checked
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError, Mm2pyError, UsageError
from mm2py.observability.logging import SecretMask, configure_logging
from mm2py.observability.metrics import Metrics
from mm2py.types import FlowName
from mm2py_connectors.config import CONNECTORS
from mm2py_workers.garbage_collector import freeze_garbage_collector
from mm2py_workers.secret_names import names_a_secret
from mm2py_workers.signals import StopSignal
from mm2py_workers.wiring import Node, build_node

__all__ = ["announce", "main", "run_flows", "secrets_of"]

log = logging.getLogger(__name__)

PROGRAM: Final = "connect-mirror-maker-py"
DRAIN_TIMEOUT_S: Final = 25.0
"""Orderly stop of everything; leaves 5 s of the 30 that service managers give by default."""

SETTLE_S: Final = 5.0
"""After this long what start-up made is there and the garbage collector is told to forget it."""

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


@final
class _Parser(argparse.ArgumentParser):
    """Wrong usage is one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"see {PROGRAM} --help")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    mask = SecretMask()
    try:
        options = _parse(words)
    except UsageError as error:
        _complain(error, mask)
        sys.exit(2)
    configure_logging(sys.stderr, mask, level=options.log_level, debug=options.debug)
    try:
        code = asyncio.run(_run(options, mask))
    except UsageError as error:
        _complain(error, mask, debug=options.debug)
        code = 2
    except Mm2pyError as error:
        _complain(error, mask, debug=options.debug)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the process's edge: one line, the trace with --debug
        _complain(error, mask, debug=options.debug)
        code = 1
    sys.exit(code)


class _Options(argparse.Namespace):
    """What the command line said."""

    file: str
    clusters: list[str] | None
    debug: bool
    log_level: str
    insecure: bool


def _parse(words: Sequence[str]) -> _Options:
    parser = _Parser(
        prog=PROGRAM, description="Replicate between Kafka clusters as MirrorMaker 2 does."
    )
    parser.add_argument("file", metavar="FILE", help="mm2.properties")
    parser.add_argument(
        "--clusters",
        nargs="+",
        metavar="ALIAS",
        help="run only the flows whose target is one of these (default: all)",
    )
    parser.add_argument(
        "--log-level", choices=_LEVELS, default="INFO", type=str.upper, help="default: INFO"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="let everybody use REST who reaches its listeners, without authentication",
    )
    parser.add_argument("--debug", action="store_true", help="log level DEBUG, with stack traces")
    return parser.parse_args(words, namespace=_Options())


async def _run(options: _Options, mask: SecretMask) -> int:
    config, findings = load_checked(options.file, CONNECTORS)
    mask.add(secrets_of(config))
    flows = config.flows(options.clusters)
    announce(config, flows, findings)
    metrics = Metrics(SYSTEM_CLOCK)
    node = build_node(
        config, flows, metrics=metrics, clock=SYSTEM_CLOCK, mask=mask, insecure=options.insecure
    )
    # Deriving resolves placeholders, and with them secrets.
    mask.add(secrets_of(config))
    with StopSignal() as stop:
        return await run_flows(node, stop, SYSTEM_CLOCK)


async def run_flows(node: Node, stop: StopSignal, clock: Clock) -> int:
    """Run until a stop is asked for or every flow failed; return the exit code."""
    maker = node.maker
    node.start()
    settled = asyncio.create_task(_settle(clock))
    serving = asyncio.create_task(node.serve())
    asked = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(maker.wait())
    await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (settled, asked, serving):
        task.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    if stop.asked:
        log.info("stopping: polling ends, what is under way is written and committed")
    clean = await node.stop(DRAIN_TIMEOUT_S)
    failed = await ended
    if failed and not stop.asked:
        log.error("every flow failed, the process ends flows=%s", ",".join(map(str, failed)))
        return 1
    log.info("stopped")
    return 0 if clean else 1


async def _settle(clock: Clock) -> None:
    await clock.sleep(SETTLE_S)
    freeze_garbage_collector()


def announce(
    config: MirrorMakerConfig, flows: Sequence[FlowName], findings: Sequence[Finding]
) -> None:
    """Log once what the file means: findings, flows, and what later parts will bring."""
    for finding in findings:
        level = logging.INFO if finding.severity is Severity.INFO else logging.WARNING
        log.log(level, "%s", finding.describe(config.path))
    for flow in flows:
        if config.flow_enabled(flow):
            log.info("flow=%s replicates", flow)
        else:
            log.info("flow=%s is disabled, only its heartbeats run (emit.heartbeats.enabled)", flow)
    lines = dict.fromkeys(
        line for flow in flows if config.flow_enabled(flow) for line in config.later_parts(flow)
    )
    for line in lines:
        log.warning("not in this version: %s", line)


def secrets_of(config: MirrorMakerConfig) -> frozenset[str]:
    """Return every secret the config knows: what providers put in, and passwords in clear text."""
    clear = {
        value.text
        for key, value in config.raw.items()
        if names_a_secret(key) and "${" not in value.text
    }
    whole = config.secrets | clear
    # The log may quote a password without the JAAS text around it.
    return whole.union(*map(jaas_secrets, whole))


def _complain(
    error: Exception, mask: SecretMask, *, debug: bool = False, stream: TextIO | None = None
) -> None:
    out = stream or sys.stderr
    if debug:
        log.debug("the process ends because of", exc_info=error)
    text = str(error) if isinstance(error, Mm2pyError) else f"{type(error).__name__}: {error}"
    kind = (
        "bad configuration: "
        if isinstance(error, ConfigError) and not isinstance(error, UsageError)
        else ""
    )
    out.write(f"{PROGRAM}: {kind}{mask.apply(' '.join(text.split()))}\n")


if __name__ == "__main__":
    main()
