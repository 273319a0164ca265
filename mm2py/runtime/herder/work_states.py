"""States of a connector and its tasks as every worker reads them, and what a restart request selects (KIP-745).

Flow: ``StoredStatus`` -> ``WorkState`` -> ``ConnectorState`` -> ``plan_restart``. Reads only; every worker makes the
same plan and carries out its own part.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mm2py.api.context import PartitionState
from mm2py.observability.metrics import NodeSnapshot
from mm2py.runtime.herder.api import ConnectorInfo, ConnectorState, HerderParts, WorkState
from mm2py.runtime.tasks.task_context import KEPT_OUT
from mm2py.storage.config_state import RestartRequest
from mm2py.storage.status_records import StoredStatus
from mm2py.types import State, TaskId, Work

MOST_CAUSES: Final = 20
_NOT_COPIED: Final = frozenset({PartitionState.FAILED.value, PartitionState.HELD.value})


def work_state(stored: StoredStatus) -> WorkState:
    """Return a stored state as it is shown; an empty trace is none."""
    return WorkState(stored.state, stored.worker_id, stored.trace or None, stored.version)


def connector_state(name: str, parts: HerderParts) -> ConnectorState | None:
    """Return all states of a connector, None while none was written."""
    connector = parts.status.get(name)
    if connector is None:
        return None
    tasks = parts.status.tasks(name)
    return ConnectorState(
        name,
        work_state(connector),
        {number: work_state(tasks[number]) for number in sorted(tasks)},
        parts.node.catalog.connector_type(parts.config.snapshot().connectors.get(name, {})),
    )


def connector_info(name: str, parts: HerderParts) -> ConnectorInfo | None:
    """Return a connector with its raw config, None where this node has read none."""
    snapshot = parts.config.snapshot()
    config = snapshot.connectors.get(name)
    if config is None:
        return None
    return ConnectorInfo(
        name, config, snapshot.tasks(name), parts.node.catalog.connector_type(config)
    )


def with_causes(state: ConnectorState, node: NodeSnapshot) -> ConnectorState:
    """Return ``state`` with what ``node`` does not copy as the trace of RUNNING work: Connect has no state for work that is done in part."""

    def caused(work: WorkState, causes: Sequence[str]) -> WorkState:
        if work.state is not State.RUNNING or not causes:
            return work
        more = [f"{len(causes) - MOST_CAUSES} more"] if len(causes) > MOST_CAUSES else []
        return replace(work, trace="\n".join([*causes[:MOST_CAUSES], *more]))

    tasks = {
        number: caused(task, _causes(str(TaskId(state.name, number)), node))
        for number, task in state.tasks.items()
    }
    own = f"{state.name}: "
    problems = [
        f"{where.removeprefix(own)}: {cause}"
        for where, cause in node.problems.items()
        if where.startswith(own)
    ]
    return replace(state, connector=caused(state.connector, problems), tasks=tasks)


def _causes(task: str, node: NodeSnapshot) -> list[str]:
    findings = [f"{it.what}: {it.text}" for it in node.findings if it.harms and it.task == task]
    stuck = [
        f"{it.source} is {it.state}: {it.cause}"
        for it in node.partitions
        if it.task == task and it.state in _NOT_COPIED and it.cause != KEPT_OUT
    ]
    return findings + stuck


def plan_restart(request: RestartRequest, state: ConnectorState) -> Work:
    """Return what the request selects of a connector in ``state``."""

    def selected(now: State) -> bool:
        return not request.only_failed or now is State.FAILED

    connectors = {request.connector} if selected(state.connector.state) else set[str]()
    tasks = (number for number, task in state.tasks.items() if selected(task.state))
    return Work(
        frozenset(connectors),
        frozenset(TaskId(request.connector, number) for number in tasks)
        if request.include_tasks
        else frozenset(),
    )


def with_restarting(state: ConnectorState, plan: Work) -> ConnectorState:
    """Return ``state`` with RESTARTING on what the plan selects; traces and versions stay."""
    connector = state.connector
    if state.name in plan.connectors:
        connector = replace(connector, state=State.RESTARTING)
    tasks = {
        number: replace(task, state=State.RESTARTING)
        if TaskId(state.name, number) in plan.tasks
        else task
        for number, task in state.tasks.items()
    }
    return replace(state, connector=connector, tasks=tasks)
