"""What a restart request restarts (kcr 1.7, 4.9).

Flow: flags of a request, states from the status store -> the pieces of work to restart, and the answer that
shows them RESTARTING. Pure; every worker makes the same plan and carries out its own part.
"""

from dataclasses import replace

from mm2py.runtime.herder.api import ConnectorState
from mm2py.storage.config_state import RestartRequest
from mm2py.types import State, TaskId, Work

__all__ = ["merge_restarts", "plan_restart", "with_restarting"]


def merge_restarts(waiting: RestartRequest | None, new: RestartRequest) -> RestartRequest:
    """Return the request of the two that reaches further; waiting ones of a connector become one."""
    return new if waiting is None or new.impact >= waiting.impact else waiting


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
