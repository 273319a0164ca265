"""Runs the table of checks over the flows of a file, each within its time, whatever a cluster does
meanwhile.

Flow: ``examine_file`` -> the clusters of all flows at once -> a few flows at a time: ``CHECKS`` in
order -> ``Result``. A check whose side is away is skipped with the cause. The time of a limit
stands still while a question waits for its turn.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.pacing import RequestPace, patience
from mm2py.clock import SYSTEM_CLOCK, Clock, each_of, together
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.clients import ConnectionSettings
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError, Mm2pyError
from mm2py.flows.graph import file_cycle
from mm2py.flows.views import held_name
from mm2py.mirror.flow_overrides import flows_topic
from mm2py.mirror.flow_state import enabled
from mm2py.mirror.two_clusters import IDS_OF_IMAGES
from mm2py.types import FlowName, TargetState
from mm2py_connectors.config import CONNECTORS
from mm2py_jobs.doctor import cluster_checks, flow_checks
from mm2py_jobs.doctor.examined import SIDES, Examined, Level, OpenedSide, Row, Side, some
from mm2py_jobs.doctor.load import load
from mm2py_jobs.open_flow import (
    FlowNow,
    admin_cluster,
    flow_in_force,
    flow_of_file,
    plan_of_file,
    target_state,
)
from mm2py_workers.flow_parts import FlowPlan

OPEN_S: Final = 8.0
"""For a cluster to answer, and for changes made over REST to be read."""
CHECK_S: Final = 8.0
PROBE_S: Final = 2.0
"""For a cluster that left a check without an answer."""
ALL_S: Final = 28.0
"""For a flow, and for all of a file where a cluster does not answer: a doctor who is waited for is
no help at night."""
PER_S: Final = 5
"""Requests to a broker within any second, of all flows together; logins are not counted."""
AT_ONCE: Final = 3
"""Flows of a file: the questions of more would wait for their turn for longer than a check may
take."""


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
    Check("versions", SIDES, cluster_checks.versions),
    Check("certificates", SIDES, cluster_checks.certificates),
    Check("clusters", SIDES, cluster_checks.one_cluster),
    Check("quotas", SIDES, cluster_checks.quotas),
    Check("clocks", SIDES, cluster_checks.clocks),
    Check("topics", ("source",), flow_checks.topics),
    Check("leaders", SIDES, cluster_checks.leaders),
    Check("rights", SIDES, cluster_checks.rights, is_of_copies=True),
    Check("gone topics", SIDES, flow_checks.gone_topics, is_of_copies=True),
    Check("names", ("source",), flow_checks.names, is_of_copies=True),
    Check("new copies", SIDES, flow_checks.new_copies, is_of_copies=True),
    Check("internal topics", SIDES, cluster_checks.internal_topics),
    Check("limits", SIDES, flow_checks.limits, is_of_copies=True),
    Check("partitions", SIDES, flow_checks.partitions, is_of_copies=True),
    Check("group rights", SIDES, cluster_checks.group_rights),
    Check("drift", SIDES, flow_checks.drift, is_of_copies=True),
    Check("rules", SIDES, flow_checks.acls, is_of_copies=True),
    Check("workers", ("target",), cluster_checks.workers),
    Check("groups", SIDES, flow_checks.groups),
    Check("transactions", ("source",), flow_checks.transactions),
    Check("bytes to copy", SIDES, flow_checks.disk, is_of_copies=True),
    Check("load", ("source",), load),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What one check of a flow found."""

    flow: str
    check: str
    row: Row

    def document(self) -> dict[str, str]:
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
    """What flows of a file share: turns, clusters with what they answered, and which did not
    answer, so that each silence costs its time once.

    Args:
        stack: closes the clusters.
    """

    def __init__(
        self, clock: Clock, stack: AsyncExitStack, pace: RequestPace | None = None
    ) -> None:
        self.pace = pace or RequestPace(PER_S, clock)
        self._clock, self._stack = clock, stack
        self._ends_at = clock.monotonic() + ALL_S
        self._opened: list[tuple[ConnectionSettings, OpenedSide, asyncio.Lock]] = []

    def left_s(self) -> float:
        """Return how long a flow may take: where a cluster does not answer, all flows together end
        in time."""
        if not any(it.away for _, it, _ in self._opened):
            return ALL_S
        return max(0.0, self._ends_at - self._clock.monotonic())

    async def side(self, name: FlowName, connector: Mapping[str, str], side: Side) -> OpenedSide:
        """Return one side of a flow; the first flow that has this cluster connects to it, within
        ``OPEN_S``. ``ConfigError``: a property of its client is wrong."""
        alias = name.source if side == "source" else name.target
        cluster = admin_cluster(connector, side, alias, role="doctor", clock=self._clock)
        settings = cluster.settings.model_copy(update={"client_id": ""})
        for known, opened, connecting in self._opened:
            if known == settings and opened.alias == str(alias):
                async with connecting:
                    return opened
        self._stack.push_async_callback(cluster.close)
        opened, connecting = OpenedSide(str(alias), Admin(cluster)), asyncio.Lock()
        self._opened.append((settings, opened, connecting))
        cluster.pace(self.pace)
        async with connecting:
            opened.away = await _within(OPEN_S, cluster.connect)
        return opened

    def twins(self) -> dict[str, tuple[str, str]]:
        """Return aliases whose cluster has another one as well, with that and the cluster's id."""
        first: dict[str, str] = {}
        found: dict[str, tuple[str, str]] = {}
        for _, opened, _ in self._opened:
            cluster_id = opened.admin.cluster.cluster_id
            if not cluster_id or cluster_id in IDS_OF_IMAGES:
                continue
            other = first.setdefault(cluster_id, opened.alias)
            if other != opened.alias:
                found[opened.alias] = other, cluster_id
        return found

    async def silent(self, opened: OpenedSide) -> bool:
        """Whether a cluster that answered before no longer does; all flows then leave it alone."""
        if not opened.away:
            opened.away = await _within(PROBE_S, partial(opened.admin.cluster.metadata, []))
        return bool(opened.away)


async def _within(seconds: float, ask: Callable[[], Awaitable[object]]) -> str:
    """Ask; return why there was no answer in time, or nothing."""
    try:
        with patience() as deadlines:
            async with deadlines.within(seconds):
                await ask()
    except Mm2pyError as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {seconds:.0f} s"
    return ""


async def examine_file(
    path: Path,
    flows: Sequence[str],
    clock: Clock = SYSTEM_CLOCK,
    pace: RequestPace | None = None,
) -> list[Result]:
    """Examine flows of a file; ``pace`` is shared by several calls."""
    known: list[list[Result]] = []
    plans: list[FlowPlan] = []
    for flow in flows:
        try:
            plan = plan_of_file(path, flow)
        except ConfigError as error:
            known.append([_of_config(flow, Level.ERROR, error.message, error.remedy)])
            continue
        if SOURCE_NAME in plan.connectors:
            plans.append(plan)
        else:
            text = "a consumer group copies it (copy.connector=sink): not examined"
            known.append([_of_config(flow, Level.SKIPPED, text)])
    # Many patterns take half a second, which a worker's loop does not have.
    known.append(await asyncio.to_thread(_circle, path, [plan.name for plan in plans]))
    async with AsyncExitStack() as stack:
        shared = Shared(clock, stack, pace)
        await together(*(_reach(plan, shared) for plan in plans))
        known += await each_of(
            plans, lambda plan: examine_plan(plan, clock, shared), at_once=AT_ONCE
        )
        known.append(list(_twins(plans, shared)))
    return [it for results in known for it in results]


def _of_config(flow: str, level: Level, text: str, remedy: str = "") -> Result:
    return Result(flow, "config", Row(level, text, remedy))


def _circle(path: Path, examined: Sequence[FlowName]) -> list[Result]:
    """Return the circle of the file's flows that refuses the start, where one that is examined is
    in it."""
    with suppress(ConfigError):  # its flow names it
        config = MirrorMakerConfig.load(path, CONNECTORS)
        cycle = file_cycle(config, config.resolved)
        if cycle is not None and (named := [it for it in cycle.flows if it in examined]):
            text = f"records would be copied in a circle: {cycle}"
            return [_of_config(str(named[0]), Level.ERROR, text, cycle.remedy)]
    return []


def _twins(plans: Sequence[FlowPlan], shared: Shared) -> Iterator[Result]:
    """Name clusters that flows of the file have under two aliases; those of one flow are an error
    of its own."""
    for alias, (other, cluster_id) in shared.twins().items():
        users = [plan.name for plan in plans if alias in (plan.name.source, plan.name.target)]
        if users and other not in (users[0].source, users[0].target):
            text = (
                f"{alias} and {other} are one cluster, id {cluster_id}: its topics are copied "
                "under both names, and the names do not stop circles"
            )
            row = Level.WARNING.row(text, "give the cluster one alias in all flows")
            yield Result(str(users[0]), "clusters", row)


async def _reach(plan: FlowPlan, shared: Shared) -> None:
    """Connect to both sides by the file."""
    with suppress(ConfigError):  # its flow names it
        connector = plan.resolve(plan.connectors[SOURCE_NAME])
        await asyncio.gather(*(shared.side(plan.name, connector, it) for it in SIDES))


async def examine_plan(plan: FlowPlan, clock: Clock, shared: Shared) -> list[Result]:
    """Examine one flow; changes nothing, and ends within ``ALL_S`` and its turns whatever the
    clusters do."""
    results: list[Result] = []
    name = str(plan.name)
    try:
        with patience() as deadlines:
            async with deadlines.within(shared.left_s()):
                found, rows = await _opened(plan, clock, shared)
                results += [Result(name, "clusters", it) for it in rows]
                for check in CHECKS:
                    rows = await _rows(check, found, shared)
                    results += [Result(name, check.name, it) for it in rows]
    except (
        ConfigError
    ) as error:  # of the clients: a file that cannot be read, a property that is wrong
        return [_of_config(name, Level.ERROR, error.message, error.remedy)]
    except TimeoutError:
        done = {it.check for it in results}
        results += [
            Result(name, it.name, Level.SKIPPED.row(f"not begun within {ALL_S:.0f} s"))
            for it in CHECKS
            if it.name not in done
        ]
    return list(_told_once(results))


def _told_once(results: Sequence[Result]) -> Iterator[Result]:
    """Return what several checks found once, and the checks that were skipped for one reason in
    one row: a silent cluster is one finding, not twenty."""
    skipped: dict[Row, list[Result]] = {}
    rows: set[Row] = set()
    for it in results:
        if it.row.level is Level.SKIPPED:
            skipped.setdefault(it.row, []).append(it)
        elif it.row.level is Level.OK or it.row not in rows:
            rows.add(it.row)
            yield it
    for row, (first, *more) in skipped.items():
        if not more:
            yield first
            continue
        names = ", ".join(it.check for it in (first, *more))
        text = f"{row.text}: not checked: {names}"
        yield Result(first.flow, "clusters", row._replace(text=text))


async def _opened(plan: FlowPlan, clock: Clock, shared: Shared) -> tuple[Examined, list[Row]]:
    """Open both sides; one that does not answer has the cause."""
    connector: Mapping[str, str] = plan.resolve(plan.connectors[SOURCE_NAME])
    checkpoints = flow_of_file(plan).checkpoints
    opened = await asyncio.gather(*(shared.side(plan.name, connector, it) for it in SIDES))
    rows: list[Row] = []
    cause, now = await _in_force(plan, opened[1], clock, shared)
    was_enabled = enabled(connector)
    if now is not None and now.connector is not None:
        checkpoints = now.checkpoints
    if now is not None and now.connector not in (None, connector):
        connector = now.connector or connector
        opened = await asyncio.gather(*(shared.side(plan.name, connector, it) for it in SIDES))
    if cause:
        rows.append(
            Level.WARNING.row(
                f"changes made over REST are not known, the file alone counts: {cause}",
            )
        )
    if was_enabled and now is not None and not enabled(now.connector or {"enabled": "false"}):
        rows.append(
            Level.WARNING.row(
                "the file enables it, and a change over REST took it away or disabled it: nothing "
                "is copied",
                f"mm2py flow history '{plan.name}' has who did it; mm2py flow rollback "
                f"'{plan.name}' 0 returns to the file",
            )
        )
    elif not enabled(connector):
        rows.append(
            Level.WARNING.row(
                "the flow is not enabled: nothing is copied",
                f"set {plan.name}.enabled = true in the file, or mm2py flow create '{plan.name}'",
            )
        )
    rows += [] if now is None else _resting(plan.name, now)
    sides = dict(zip(SIDES, opened, strict=True))
    rows += cluster_checks.away(sides)
    return Examined(plan, connector, checkpoints, sides, clock, shared.pace), rows


def _resting(name: FlowName, now: FlowNow) -> Iterator[Row]:
    """Name what copies nothing because somebody asked for it."""
    if now.state is not TargetState.STARTED:
        yield Level.WARNING.row(
            f"the flow is {now.state.value}: nothing is copied",
            f"mm2py flow history '{name}' has who did it; mm2py flow resume '{name}' ends it, where "
            f"no failover stopped it: mm2py failover FILE --flow '{name}' --status",
        )
    if now.held:
        yield Level.WARNING.row(
            f"paused, and not copied: {some([held_name(it) for it in now.held])}",
            f"mm2py flow resume '{name}' --all-topics",
        )


async def _in_force(
    plan: FlowPlan, opened: OpenedSide, clock: Clock, shared: Shared
) -> tuple[str, FlowNow | None]:
    """Return the flow with the changes made over REST, None where there are none, or why they are
    not known."""
    if opened.away:
        return "the target does not answer", None
    scope, found = f"worker of {plan.name}", list[FlowNow]()
    target = Cluster.of(plan.props, alias=plan.name.target, scope=scope, clock=clock)
    target.pace(shared.pace)

    async def read() -> None:
        if flows_topic(plan.name.source) in await opened.topics():
            await target.connect()
            now = await flow_in_force(plan, target, clock)
            state, _ = await target_state(plan, target, clock)
            found.append(now._replace(state=state))

    try:
        cause = await _within(OPEN_S, read)
    finally:
        await target.close()
    return cause, found[0] if found else None


async def _rows(check: Check, flow: Examined, shared: Shared) -> list[Row]:
    if check.is_of_copies and flow.connector.get("transforms"):
        return [Level.SKIPPED.row("transforms may send records elsewhere: copies are not known")]
    away = [it for it in check.needs if flow.sides[it].away]
    if away:
        return [Level.SKIPPED.row(f"{', '.join(away)} does not answer")]
    rows: list[Row] = []
    try:
        with patience() as deadlines:
            async with deadlines.within(CHECK_S):
                async for row in check.run(flow):
                    rows.append(row)  # noqa: PERF401 - what was found before an error counts
    except TimeoutError:
        rows.append(Level.SKIPPED.row(f"no answer within {CHECK_S:.0f} s"))
        for side in check.needs:
            if await shared.silent(flow.sides[side]):
                rows += cluster_checks.away({side: flow.sides[side]})
    except ConfigError as error:
        rows.append(Level.ERROR.row(error.message, error.remedy))
    except Mm2pyError as error:
        rows.append(Level.WARNING.row(f"could not be checked: {error.message}", error.remedy))
    return rows or [Level.OK.row("nothing to check")]
