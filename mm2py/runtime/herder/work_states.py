"""States of a connector and its tasks as every worker reads them, and what a restart request
selects (KIP-745).

Flow: ``StoredStatus`` -> ``WorkState`` -> ``ConnectorState`` -> ``plan_restart``. Reads only; every
worker makes the same plan and carries out its own part.
"""

from dataclasses import replace

from mm2py.runtime.herder.api import ConnectorInfo, ConnectorState, HerderParts, WorkState
from mm2py.storage.config_state import RestartRequest
from mm2py.storage.status_records import StoredStatus
from mm2py.types import State, TaskId, Work


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


def plan_restart(request: RestartRequest, state: ConnectorState) -> Work:
    """Return what the request selects of a connector in ``state``."""

    def selected(now: State) -> bool:
        # KIP-745: ``onlyFailed`` concerns connector and tasks alike.
        return not request.only_failed or now is State.FAILED

    # As in Java the connector instance is in the plan whether or not ``includeTasks`` is set.
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
