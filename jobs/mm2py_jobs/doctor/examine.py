"""Runs the table of checks over one flow, each within its time, whatever a cluster does meanwhile.

Flow: ``examine(plan)`` -> both clusters side by side -> ``CHECKS`` in order -> ``Result``. A check whose side is away is skipped with the cause.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.pacing import RequestPace
from mm2py.clock import SYSTEM_CLOCK, Clock
from mm2py.config.clients import ConnectionSettings
from mm2py.errors import ConfigError, Mm2pyError
from mm2py_jobs.doctor import cluster_checks, flow_checks
from mm2py_jobs.doctor.examined import SIDES, Examined, Level, Opened, Row, Side
from mm2py_jobs.open_flow import FlowNow, admin_cluster, flow_in_force, plan_of_file
from mm2py_workers.flow_parts import FlowPlan
from mm2py_workers.flow_target import SOURCE, FlowTarget

OPEN_S: Final = 8.0
"""For a cluster to answer, and for changes made over REST to be read."""
CHECK_S: Final = 8.0
ALL_S: Final = 28.0
"""For a flow: a doctor who is waited for is no help at night."""
PER_S: Final = 5
"""Requests to a broker within any second, of all flows together; logins are not counted."""
AT_ONCE: Final = 3
"""Flows of a file: the questions of more would wait for their turn for longer than a check may take."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question: ``needs`` are the sides that have to answer."""

    name: str
    needs: tuple[Side, ...]
    run: Callable[[Examined], AsyncIterator[Row]]
    is_of_copies: bool = False
    """Whether it judges copies by the names that the policy gives them."""


CHECKS: Final = (
    Check("brokers", SIDES, cluster_checks.brokers),
    Check("certificates", SIDES, cluster_checks.certificates),
    Check("clusters", SIDES, cluster_checks.one_cluster),
    Check("quotas", SIDES, cluster_checks.quotas),
    Check("clocks", SIDES, cluster_checks.clocks),
    Check("topics", ("source",), flow_checks.topics),
    Check("rights", SIDES, cluster_checks.rights, is_of_copies=True),
    Check("names", ("source",), flow_checks.names, is_of_copies=True),
    Check("new copies", SIDES, flow_checks.new_copies, is_of_copies=True),
    Check("internal topics", SIDES, cluster_checks.internal_topics),
    Check("limits", SIDES, flow_checks.limits, is_of_copies=True),
    Check("partitions", SIDES, flow_checks.partitions, is_of_copies=True),
    Check("group rights", ("source",), cluster_checks.group_rights),
    Check("drift", SIDES, flow_checks.drift, is_of_copies=True),
    Check("workers", ("target",), cluster_checks.workers),
    Check("groups", SIDES, flow_checks.groups),
    Check("transactions", ("source",), flow_checks.transactions),
    Check("bytes to copy", SIDES, flow_checks.disk, is_of_copies=True),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What one check of a flow found."""

    flow: str
    check: str
    row: Row

    def document(self) -> dict[str, str]:
        """Return it as JSON and tables show it."""
        level, text, remedy = self.row
        return {
            "flow": self.flow,
            "check": self.check,
            "level": str(level),
            "finding": text,
            "remedy": remedy,
        }


@final
class Shared:
    """What flows of a file share: turns, and which clusters did not answer, so that each silence costs its time once."""

    def __init__(self, clock: Clock, pace: RequestPace | None = None) -> None:
        self._pace = pace or RequestPace(PER_S, clock)
        self._away: list[tuple[ConnectionSettings, str]] = []

    async def open(self, cluster: Cluster, ask: Callable[[], Awaitable[object]]) -> str:
        """Connect and ask within ``OPEN_S``; return why there is no answer, or nothing."""
        settings = cluster.settings.model_copy(update={"client_id": ""})
        for other, cause in self._away:
            if other == settings:
                return cause
        cluster.pace(self._pace)
        connected = False
        try:
            async with asyncio.timeout(OPEN_S):
                await cluster.connect()
                connected = True
                await ask()
        except (Mm2pyError, TimeoutError) as error:
            cause = str(error) if isinstance(error, Mm2pyError) else f"no answer within {OPEN_S:.0f} s"  # fmt: skip
            if not connected:  # what is refused later says nothing of others who ask something else
                self._away.append((settings, cause))
            return cause
        return ""


async def examine_file(
    path: Path,
    flows: Sequence[str],
    clock: Clock = SYSTEM_CLOCK,
    pace: RequestPace | None = None,
) -> list[Result]:
    """Examine flows of a file, a few at once; ``pace`` is that of whoever asks several times."""
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
    shared, at_once = Shared(clock, pace), asyncio.Semaphore(AT_ONCE)

    async def one(plan: FlowPlan) -> list[Result]:
        async with at_once:
            return await examine(plan, clock, shared)

    for results in await asyncio.gather(*map(one, plans)):
        known += results
    return known


async def examine(
    plan: FlowPlan, clock: Clock = SYSTEM_CLOCK, shared: Shared | None = None
) -> list[Result]:
    """Examine one flow; changes nothing, and ends within ``ALL_S`` whatever the clusters do."""
    name = str(plan.name)
    try:
        return await _examined(plan, clock, shared or Shared(clock))
    except (
        ConfigError
    ) as error:  # of the clients: a file that cannot be read, a property that is wrong
        return [Result(name, "config", Row(Level.ERROR, error.message, error.remedy))]


async def _examined(plan: FlowPlan, clock: Clock, shared: Shared) -> list[Result]:
    results: list[Result] = []
    name = str(plan.name)
    try:
        async with asyncio.timeout(ALL_S), AsyncExitStack() as opened:
            found, row = await _opened(plan, clock, shared, opened)
            results += [Result(name, "clusters", it) for it in row]
            for check in CHECKS:
                results += [Result(name, check.name, it) for it in await _rows(check, found)]
    except TimeoutError:
        done = {it.check for it in results}
        results += [
            Result(name, it.name, Row(Level.SKIPPED, f"not begun within {ALL_S:.0f} s"))
            for it in CHECKS
            if it.name not in done
        ]
    return results


async def _opened(
    plan: FlowPlan, clock: Clock, shared: Shared, stack: AsyncExitStack
) -> tuple[Examined, list[Row]]:
    """Open both sides, each for as long as ``OPEN_S``; one that does not answer has the cause."""
    connector: Mapping[str, str] = plan.resolve(plan.connectors[SOURCE])
    rows: list[Row] = []
    target = FlowTarget(plan.name, plan.props, clock)
    stack.push_async_callback(target.close)

    async def in_force() -> None:
        nonlocal connector
        now: FlowNow = await flow_in_force(plan, target.tables, clock)
        connector = now.connector or connector

    if cause := await shared.open(target.cluster, in_force):
        rows.append(Row(Level.WARNING, f"changes made over REST are not known, the file alone counts: {cause}"))  # fmt: skip
    opened = await asyncio.gather(
        *(_side(plan, connector, it, clock, shared, stack) for it in SIDES)
    )
    sides = dict(zip(SIDES, opened, strict=True))
    rows += cluster_checks.away(sides)
    return Examined(plan, connector, sides, clock), rows


async def _side(
    plan: FlowPlan,
    connector: Mapping[str, str],
    side: Side,
    clock: Clock,
    shared: Shared,
    stack: AsyncExitStack,
) -> Opened:
    alias = plan.name.source if side == "source" else plan.name.target
    cluster = admin_cluster(connector, side, alias, role="doctor", clock=clock)
    stack.push_async_callback(cluster.close)
    cause = await shared.open(cluster, partial(cluster.metadata, []))
    away = f"{side} cluster {alias} does not answer: {cause}" if cause else ""
    return Opened(str(alias), Admin(cluster), away)


async def _rows(check: Check, flow: Examined) -> list[Row]:
    if check.is_of_copies and flow.connector.get("transforms"):
        return [Row(Level.SKIPPED, "transforms may send records elsewhere: copies are not known")]
    away = [it for it in check.needs if flow.sides[it].away]
    if away:
        return [Row(Level.SKIPPED, f"{', '.join(away)} does not answer")]
    rows: list[Row] = []
    try:
        async with asyncio.timeout(CHECK_S):
            async for row in check.run(flow):
                rows.append(row)  # noqa: PERF401 - what was found before an error counts
    except TimeoutError:
        rows.append(Row(Level.SKIPPED, f"no answer within {CHECK_S:.0f} s"))
    except ConfigError as error:
        rows.append(Row(Level.ERROR, error.message, error.remedy))
    except Mm2pyError as error:
        rows.append(Row(Level.WARNING, f"could not be checked: {error.message}", error.remedy))
    return rows or [Row(Level.OK, "nothing to check")]
