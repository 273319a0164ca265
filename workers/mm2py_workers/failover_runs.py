"""What ``mm2py failover``, ``failback`` and ``drill`` do: connections, checks, driver, report.

Flow: ``FailoverOrder`` -> ``FailoverClusters`` -> ``plan_failover`` -> refused, or ``FailoverDriver`` -> the record, printed -> exit code.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.clock import SYSTEM_CLOCK
from mm2py.flows.failover import FailoverDriver, FailoverRefusedError, FailoverRequest
from mm2py.flows.flow_control import FlowControl
from mm2py.mirror.backfills import new_id
from mm2py.mirror.failovers import Failover, FailoverKind, Step, failover_topic
from mm2py.types import FlowName
from mm2py_workers.bulk_flow import flow_plan
from mm2py_workers.failover_clusters import FailoverClusters
from mm2py_workers.failover_control import RestFlows
from mm2py_workers.failover_drill import rehearse
from mm2py_workers.failover_plan import FailoverPlan, plan_failover
from mm2py_workers.failover_sides import FailoverSides
from mm2py_workers.failover_views import print_drill, print_failover, print_plan
from mm2py_workers.output import OK, UNHEALTHY, Printer, say
from mm2py_workers.rest_access import Access

__all__ = ["LEFT_BEHIND", "Action", "FailoverOrder", "run_drill", "run_order"]

LEFT_BEHIND: Final = 4
"""Switched, but the source is gone: what it has not given away is listed by a later run."""


class Action(StrEnum):
    """What a command is asked to do."""

    PLAN = "plan"
    EXECUTE = "execute"
    STATUS = "status"
    CANCEL = "cancel"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverOrder:
    """The arguments; ``accept_loss`` is -1 where it was not given."""

    file: Path
    flow: str
    kind: FailoverKind
    action: Action
    dry_run: bool
    accept_loss: int
    unplanned: bool
    settle_s: float
    drain_s: float


def run_order(order: FailoverOrder, access: Access, printer: Printer) -> int:
    """Do what is asked for; return the exit code."""
    try:
        return asyncio.run(_run_order(order, access, printer))
    except FailoverRefusedError as error:
        say(f"mm2py: {error}")
        return UNHEALTHY


async def _run_order(order: FailoverOrder, access: Access, printer: Printer) -> int:
    async with _opened(order.file, order.flow, order.kind, access) as (clusters, sides, control):
        if order.kind is FailoverKind.FAILBACK and order.action is not Action.STATUS:
            await _need_failover(clusters)
        if order.action is Action.STATUS:
            return await _status(clusters, printer)
        if order.action is Action.CANCEL:
            return await _cancel(order, clusters, sides, printer)
        await _open_store(clusters, creates=False)
        plan = await plan_failover(clusters, sides, control, str(order.kind))
        refusals = refusals_of(plan, order)
        if order.action is Action.PLAN or order.dry_run:
            print_plan(printer, plan)
            for text in refusals if order.action is Action.EXECUTE else ():
                say(f"refused: {text}")
            return UNHEALTHY if refusals and order.action is Action.EXECUTE else OK
        if refusals:
            raise FailoverRefusedError("; ".join(refusals))
        return await _execute(order, clusters, sides, printer)


async def _execute(
    order: FailoverOrder, clusters: FailoverClusters, sides: FailoverSides, printer: Printer
) -> int:
    await _open_store(clusters, creates=True)
    driver = FailoverDriver(
        clusters.store,
        sides,
        name=str(clusters.name),
        clock=clusters.clock,
        settle_s=order.settle_s,
        drain_s=order.drain_s,
        report=_say_step,
    )
    failover = await driver.run(
        FailoverRequest(
            id=new_id(clusters.clock.now_ms()),
            kind=order.kind,
            accept_loss=order.accept_loss,
            unplanned=order.unplanned,
        )
    )
    print_failover(printer, failover)
    if failover.step is Step.DONE:
        return OK
    say(
        f"{clusters.name.source} is gone: run the command again when it is back, which lists and keeps what was not copied"
    )
    return LEFT_BEHIND


def refusals_of(plan: FailoverPlan, order: FailoverOrder) -> Sequence[str]:
    """Return why a failover must not begin; nothing for one that was begun."""
    if plan.unfinished:
        return ()
    found: list[str] = []
    if not plan.source_reachable and not order.unplanned:
        found.append("the source does not answer; if it is gone, use --unplanned")
    if plan.source_reachable and order.unplanned:
        found.append("the source answers: leave --unplanned out, nothing has to be lost")
    lost = plan.would_lose
    if lost > max(0, order.accept_loss) or (order.unplanned and order.accept_loss < 0):
        found.append(
            f"{lost} offsets would not be copied, as far as they are known: see --plan; --accept-loss {lost} accepts that"
        )
    if not plan.state and not order.unplanned:
        found.append("no worker answers: give its address with --url or MM2PY_URL")
    return found


async def _status(clusters: FailoverClusters, printer: Printer) -> int:
    await _open_store(clusters, creates=False)
    failover = clusters.store.failover
    if failover is None:
        if printer.is_table:
            say(f"there was no failover of {clusters.name}")
        else:
            printer.document(None)
        return OK
    print_failover(printer, failover)
    return OK if failover.step.is_over else UNHEALTHY


async def _cancel(
    order: FailoverOrder, clusters: FailoverClusters, sides: FailoverSides, printer: Printer
) -> int:
    await _open_store(clusters, creates=False)
    failover = clusters.store.failover
    if failover is None or failover.step.is_over:
        raise FailoverRefusedError(f"there is no unfinished failover of {clusters.name}")
    if order.dry_run:
        if failover.step.is_switched:
            raise FailoverRefusedError(f"it is at {failover.step}: clients may have written")
        print_failover(printer, failover)
        say("the rules that it has made would be removed")
        return OK
    driver = FailoverDriver(
        clusters.store, sides, name=str(clusters.name), clock=clusters.clock, report=_say_step
    )
    print_failover(printer, await driver.cancel())
    return OK


async def _need_failover(clusters: FailoverClusters) -> None:
    """Refuse a way back without a way there, or from one that is not over."""
    topic = failover_topic(clusters.name.target)
    async with clusters.source() as source:
        known = topic in await Admin(source).describe_topics([topic])
    there = (await clusters.source_store()).failover if known else None
    if there is None or there.step is Step.CANCELLED:
        raise FailoverRefusedError(
            f"clients of {FlowName(clusters.name.target, clusters.name.source)} were not failed over"
        )
    if not there.step.is_over:
        raise FailoverRefusedError(
            f"{there.kind} {there.id} of {there.flow} is at {there.step}",
            remedy="run mm2py failover --execute to its end first",
        )


def run_drill(
    file: Path, flow: str, access: Access, report: Path, settle_s: float, printer: Printer
) -> int:
    """Rehearse; return the exit code."""
    return asyncio.run(_run_drill(file, flow, access, report, settle_s, printer))


async def _run_drill(
    file: Path, flow: str, access: Access, report: Path, settle_s: float, printer: Printer
) -> int:
    async with _opened(file, flow, FailoverKind.FAILOVER, access) as (clusters, sides, control):
        await _open_store(clusters, creates=False)
        found = await rehearse(clusters, sides, control, settle_s)
    document = found.document()
    await asyncio.to_thread(report.write_text, json.dumps(document, indent=2) + "\n", "utf-8")
    print_drill(printer, found)
    say(f"report: {report}")
    return OK if found.is_ready else UNHEALTHY


# ---- opening


@asynccontextmanager
async def _opened(
    file: Path, flow: str, kind: FailoverKind, access: Access
) -> AsyncGenerator[tuple[FailoverClusters, FailoverSides, FlowControl]]:
    plan = flow_plan(file, flow)
    back = flow_plan(file, str(FlowName(plan.name.target, plan.name.source)))
    if kind is FailoverKind.FAILBACK:
        plan, back = back, plan
    rest = access.client()
    try:
        async with FailoverClusters(plan, back, SYSTEM_CLOCK) as clusters:
            control = RestFlows(rest)
            yield clusters, FailoverSides(clusters, control), control
    finally:
        rest.close()


async def _open_store(clusters: FailoverClusters, *, creates: bool) -> None:
    """Read the failover topic; a plan does not create it."""
    topic = failover_topic(clusters.name.source)
    if creates or topic in await Admin(clusters.target).describe_topics([topic]):
        await clusters.store.start()


def _say_step(failover: Failover) -> None:
    missing = f", {failover.missing} offsets not copied" if failover.missing > 0 else ""
    say(f"{failover.flow} {failover.kind} {failover.id}: {failover.step}{missing}")
