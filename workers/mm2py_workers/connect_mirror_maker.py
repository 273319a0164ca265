"""Dedicated mode: every flow of one properties file (``connect-mirror-maker-py FILE``).

Flow: arguments -> file checked -> findings and flows logged -> flows run -> SIGTERM -> drained,
exit 0. Exit codes: 0 orderly end, 1 failure, 2 wrong usage. One clear line on stderr, a stack trace
only with ``--debug``.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import closing
from typing import Final, NoReturn

from mm2py.clock import SYSTEM_CLOCK, Clock, cancelled
from mm2py.config.findings import LintFinding, Severity
from mm2py.config.jaas import jaas_secrets
from mm2py.config.lint import load_checked
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.providers import placeholders
from mm2py.config.secret_names import secrets_in
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.runtime.hosts.process import HostStarter
from mm2py.types import FlowName
from mm2py_workers.checked_connectors import CHECKED_CONNECTORS
from mm2py_workers.connect_arguments import CommandParser, WorkerOptions, run_program
from mm2py_workers.process_memory import settle
from mm2py_workers.signals import DRAIN_TIMEOUT_S, StopSignal
from mm2py_workers.task_host import forked_starter
from mm2py_workers.wiring import Node, build_node, processes_of

log = logging.getLogger(__name__)

PROGRAM: Final = "connect-mirror-maker-py"
LOGGED_FLOWS: Final = 10
"""Up to this many disabled flows are logged one by one."""


class _MirrorMakerOptions(WorkerOptions):
    """The arguments of the command line."""

    clusters: list[str] | None


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code."""
    run_program(PROGRAM, arguments, _parse, _begin)


def _parse(words: Sequence[str]) -> _MirrorMakerOptions:
    parser = CommandParser(
        PROGRAM, "Replicate between Kafka clusters as MirrorMaker 2 does.", "mm2.properties"
    )
    parser.add_argument(
        "--clusters",
        nargs="+",
        metavar="ALIAS",
        help="run only the flows whose target is one of these (default: all)",
    )
    return parser.parse_args(words, namespace=_MirrorMakerOptions())


def _begin(options: _MirrorMakerOptions, mask: SecretMask) -> Coroutine[object, object, int]:
    config, findings = load_checked(options.file, CHECKED_CONNECTORS)
    mask.add(secrets_of(config))
    announce(config, config.flows(options.clusters), findings)
    return _run(options, config, mask, forked_starter(processes_of(config), SYSTEM_CLOCK))


async def _run(
    options: _MirrorMakerOptions, config: MirrorMakerConfig, mask: SecretMask, starter: HostStarter
) -> int:
    with closing(starter), StopSignal() as stop:
        node = build_node(
            config,
            metrics=Metrics(SYSTEM_CLOCK),
            clock=SYSTEM_CLOCK,
            mask=mask,
            insecure=options.insecure,
            targets=options.clusters,
            starter=starter,
        )
        # Deriving resolves placeholders, and with them secrets.
        mask.add(secrets_of(config))
        return await run_flows(node, stop, SYSTEM_CLOCK)


async def run_flows(node: Node, stop: StopSignal, clock: Clock) -> int:
    """Run until a stop is asked for or every flow failed; return the exit code."""
    maker = node.maker
    node.start()
    settled = asyncio.create_task(settle(clock))
    serving = asyncio.create_task(node.serve())
    asked = asyncio.create_task(stop.wait())
    ended = asyncio.create_task(maker.wait())
    await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
    await cancelled(settled, asked, serving)
    if stop.asked:
        log.info("stopping: polling ends, what is under way is written and committed")
    clean = await node.stop(DRAIN_TIMEOUT_S)
    failed = await ended
    if failed and not stop.asked:
        log.error("every flow failed, the process ends flows=%s", ",".join(map(str, failed)))
        return 1
    log.info("stopped")
    return 0 if clean else 1


def announce(
    config: MirrorMakerConfig, flows: Sequence[FlowName], findings: Sequence[LintFinding]
) -> None:
    """Log once what the file means: findings and flows."""
    for finding in findings:
        level = logging.INFO if finding.severity is Severity.INFO else logging.WARNING
        log.log(level, "%s", finding.describe(config.path))
    idle: list[FlowName] = []
    for flow in flows:
        if config.flow_enabled(flow):
            log.info("flow=%s replicates", flow)
        else:
            idle.append(flow)
    text = "flow=%s is disabled, only its heartbeats run (emit.heartbeats.enabled)"
    for flow in idle[:LOGGED_FLOWS]:
        log.info(text, flow)
    if idle[LOGGED_FLOWS:]:
        log.info("as do those of %d more disabled flows", len(idle) - LOGGED_FLOWS)


def secrets_of(config: MirrorMakerConfig) -> frozenset[str]:
    """Return every secret the config knows: what providers put in, and passwords in clear text."""
    clear = {key: it.text for key, it in config.raw.items() if not placeholders(it.text)}
    # The log may quote a password without the JAAS text around it.
    return secrets_in(clear).union(config.secrets, *map(jaas_secrets, config.secrets))


if __name__ == "__main__":
    main()
