"""``mm2py doctor FILE [A/B]``, without the command line around it: 0 no error, 3 there is one."""

import asyncio
from pathlib import Path

from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError
from mm2py_cli.output import OK, UNHEALTHY, Column, Printer
from mm2py_connectors.config import CONNECTORS
from mm2py_jobs.doctor.examine import Result, examine
from mm2py_jobs.doctor.examined import Level, Row
from mm2py_jobs.open_flow import plan_of_file
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.flow_target import SOURCE

_COLUMNS = (
    Column.text("FLOW", "flow"),
    Column.text("CHECK", "check"),
    Column.text("LEVEL", "level"),
    Column.text("FINDING", "finding"),
    Column.text("REMEDY", "remedy"),
)


def examine_file(path: Path, flow: str | None, printer: Printer, *, is_whole: bool) -> int:
    """Examine the flows that a file enables, or one; print what was found (``is_whole``: also what is well), return the exit code.

    Raises:
        ConfigError: the file is wrong, or enables nothing.
    """
    results = asyncio.run(_examine(path, _flows(path, flow)))
    shown = [it.document() for it in results if is_whole or it.row.level is not Level.OK]
    printer.rows(shown, shown, _COLUMNS, "nothing is wrong")
    return UNHEALTHY if any(it.row.level is Level.ERROR for it in results) else OK


def _flows(path: Path, flow: str | None) -> list[str]:
    if flow is not None:
        return [flow]
    config = MirrorMakerConfig.load(path, CONNECTORS)
    enabled = [str(it) for it in config.flows() if config.flow_enabled(it)]
    if not enabled:
        raise ConfigError(f"{path}: no flow is enabled", remedy="set A->B.enabled = true, or name a flow")  # fmt: skip
    return enabled


async def _examine(path: Path, flows: list[str]) -> list[Result]:
    """Examine flows side by side: a cluster that is silent costs its time once."""
    known: list[Result] = []
    plans: list[FlowPlan] = []
    for flow in flows:
        try:
            plan = plan_of_file(path, flow)
        except ConfigError as error:
            known.append(Result(flow, "config", Row(Level.ERROR, error.message, error.remedy)))
            continue
        if SOURCE in plan.connectors:
            plans.append(plan)
        else:
            known.append(
                Result(
                    flow,
                    "config",
                    Row(
                        Level.SKIPPED,
                        "a consumer group copies it (copy.connector=sink): not examined",
                    ),
                )
            )
    for results in await asyncio.gather(*map(examine, plans)):
        known += results
    return known
