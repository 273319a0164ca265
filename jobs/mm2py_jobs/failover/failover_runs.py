"""What ``mm2py failover``, ``failback`` and ``drill`` do: checks, driver, report, exit code.

Flow: ``FailoverOrder`` -> ``failover_work.opened`` -> plan -> refused, or executed -> the record, printed.
"""

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, final

from mm2py.mirror.backfills import new_id
from mm2py.mirror.failovers import Failover, Step
from mm2py.observability.logging import some_of
from mm2py_jobs.failover.failover import FailoverRefusedError, FailoverRequest
from mm2py_jobs.failover.failover_control import FlowsApi, NoWorkerApi, RestFlows
from mm2py_jobs.failover.failover_drill import rehearse
from mm2py_jobs.failover.failover_tables import print_drill, print_failover, print_plan
from mm2py_jobs.failover.failover_views import FailoverPlan
from mm2py_jobs.failover.failover_work import FailoverWork, opened
from mm2py_workers.output import OK, UNHEALTHY, Printer, say
from mm2py_workers.rest_access import Access
from mm2py_workers.rest_client import RemoteApi
from mm2py_workers.worker_place import NoWorkerError

LEFT_BEHIND: Final = 4
"""Switched, but the source is gone: what it has not given away is listed by a later run."""


class Action(StrEnum):
    """What a command is asked to do."""

    PLAN = "plan"
    EXECUTE = "execute"
    STATUS = "status"
    CANCEL = "cancel"
    DRILL = "drill"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverOrder:
    """The arguments; ``request`` has no id yet, ``report`` is of a drill."""

    file: Path
    flow: str
    action: Action
    request: FailoverRequest
    dry_run: bool = False
    report: Path = Path()


def run_order(order: FailoverOrder, access: Access, printer: Printer) -> int:
    """Do what is asked for; return the exit code."""
    try:
        return asyncio.run(_run_order(order, access, printer))
    except FailoverRefusedError as error:
        say(f"mm2py: {error}")
        return UNHEALTHY


async def _run_order(order: FailoverOrder, access: Access, printer: Printer) -> int:
    with _worker_of(access) as api:
        async with opened(order.file, order.flow, order.request.kind, RestFlows(api)) as work:
            return await _run_action(order, work, printer)


@contextmanager
def _worker_of(access: Access) -> Generator[FlowsApi]:
    """Yield a worker's API; without one each request fails as one that is not answered, and a plan is shown all the same."""
    try:
        client = access.client()
    except NoWorkerError as error:
        yield NoWorkerApi(error)
        return
    with client as rest:
        yield RemoteApi(rest)


async def _run_action(order: FailoverOrder, work: FailoverWork, printer: Printer) -> int:
    match order.action:
        case Action.STATUS:
            return await _status(order, work, printer)
        case Action.CANCEL:
            failover = await work.cancel(_say_step, dry_run=order.dry_run)
            print_failover(printer, failover)
            if order.dry_run:
                say("the rules that it has made would be removed")
            return OK
        case Action.PLAN:
            return await _plan(order, work, printer)
        case Action.EXECUTE:
            return await _execute(order, work, printer)
        case Action.DRILL:
            return await _rehearse(order, work, printer)


async def _plan(order: FailoverOrder, work: FailoverWork, printer: Printer) -> int:
    plan = await work.plan()
    refusals = plan.refusals(order.request, await work.newest())
    print_plan(printer, plan, order.request.accept_loss)
    for text in refusals:
        say(f"would be refused: {text}")
    return UNHEALTHY if refusals else OK


async def _execute(order: FailoverOrder, work: FailoverWork, printer: Printer) -> int:
    if order.dry_run:
        return await _plan(order, work, printer)
    request = replace(order.request, id=new_id(work.clusters.clock.now_ms()))

    def planned(plan: FailoverPlan) -> None:
        for text in plan.remarks(request.accept_loss):
            say(text)

    begun = await work.newest()
    if (
        begun is not None
        and not begun.step.is_over
        and 0 <= request.accept_loss < begun.accept_loss
    ):
        say(
            f"{begun.accept_loss} offsets were accepted before: a smaller number takes nothing back"
        )
    failover = await work.execute(request, _say_step, planned)
    print_failover(printer, failover)
    if failover.step is Step.DONE:
        return OK
    say(
        f"{work.clusters.name.source} is gone: run the command again when it is back, which lists and keeps what was not copied"
    )
    return LEFT_BEHIND


async def _status(order: FailoverOrder, work: FailoverWork, printer: Printer) -> int:
    failover = await work.newest()
    if failover is not None:
        print_failover(printer, failover)
        return OK if failover.step.is_over else UNHEALTHY
    if printer.is_table:
        say(f"there was no {order.request.kind} of {order.flow}")
    else:
        printer.document(None)
    return OK


async def _rehearse(order: FailoverOrder, work: FailoverWork, printer: Printer) -> int:
    found = await rehearse(work, order.request.settle_s)
    text = json.dumps(found.document(), indent=2) + "\n"
    await asyncio.to_thread(order.report.write_text, text, "utf-8")
    print_drill(printer, found)
    say(f"report: {order.report}")
    return OK if found.is_ready else UNHEALTHY


def _say_step(failover: Failover) -> None:
    notes = f", {failover.missing} offsets not copied" if failover.missing > 0 else ""
    if failover.step is Step.DRAIN and failover.transactions:
        notes += f", waits: {some_of(list(map(str, failover.transactions)), 1, '; ')}"
    if failover.step is Step.SWITCH and failover.switched_ms:
        notes += f", clients may write to {failover.flow.partition('->')[2]}"
    say(f"{failover.flow} {failover.kind} {failover.id}: {failover.step}{notes}")
