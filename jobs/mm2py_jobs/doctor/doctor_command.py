"""``mm2py doctor FILE [A/B]``, without the command line around it: 0 no error, 3 there is one."""

import asyncio
from pathlib import Path

from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError
from mm2py_cli.config_commands import flow_named
from mm2py_cli.output import OK, UNHEALTHY, Column, Printer
from mm2py_connectors.config import CONNECTORS
from mm2py_jobs.doctor.examine import examine_file
from mm2py_jobs.doctor.examined import Level

_COLUMNS = (
    Column.text("FLOW", "flow"),
    Column.text("CHECK", "check"),
    Column.text("LEVEL", "level"),
    Column.text("FINDING", "finding"),
    Column.text("REMEDY", "remedy"),
)


def print_examination(path: Path, flow: str | None, printer: Printer, *, is_whole: bool) -> int:
    """Examine the flows that a file enables, or one; print what was found (``is_whole``: also what
    is well), return the exit code.

    Raises:
        ConfigError: the file is wrong, or enables nothing.
        UsageError: it has no such clusters.
    """
    results = asyncio.run(examine_file(path, _flows(path, flow)))
    shown = [it.document() for it in results if is_whole or it.row.level is not Level.OK]
    printer.rows(shown, shown, _COLUMNS, "nothing is wrong")
    return UNHEALTHY if any(it.row.level is Level.ERROR for it in results) else OK


def _flows(path: Path, flow: str | None) -> list[str]:
    config = MirrorMakerConfig.load(path, CONNECTORS)
    if flow is not None:
        return [str(flow_named(config, flow))]
    enabled = [str(it) for it in config.flows() if config.flow_enabled(it)]
    if not enabled:
        raise ConfigError(
            f"{path}: no flow is enabled", remedy="set A->B.enabled = true, or name a flow"
        )
    return enabled
