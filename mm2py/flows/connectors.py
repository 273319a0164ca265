"""Connectors of one flow and their states, as a herder knows them now.

Flow: ``Herder`` -> names and words. Reads only.
"""

from collections.abc import Mapping
from typing import Final

from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.config.java_values import parse_boolean_leniently
from mm2py.runtime.herder.errors import ForbiddenError, NotFoundError
from mm2py.runtime.herder.herder import Herder
from mm2py.types import State, TaskId, TopicPartition

__all__ = [
    "enabled",
    "owners_of",
    "runnable",
    "source_connector",
    "state_of",
    "topics_of",
    "work_state",
    "works_of",
]

_BAD: Final = (State.FAILED.value, State.RESTARTING.value, State.UNASSIGNED.value)
_ASSIGNED: Final = "task.assigned.partitions"


def enabled(config: Mapping[str, str | None]) -> bool:
    """Tell whether a source connector with this config copies topics."""
    return parse_boolean_leniently(config.get("enabled"), absent=True)


def work_state(herder: Herder) -> str:
    """Return the worst state of a flow's connectors and tasks, UNASSIGNED where there are none."""
    words = [state for name in runnable(herder) for _, state in works_of(herder, name)]
    worst = next((word for word in _BAD if word in words), None)
    if worst is not None or not words:
        return worst or State.UNASSIGNED.value
    whole = {state_of(herder, name) for name in runnable(herder)}
    return (whole.pop() if len(whole) == 1 else None) or State.RUNNING.value


async def owners_of(herder: Herder, name: str, part: TopicPartition) -> list[TaskId]:
    """Return the tasks of a connector that have a partition, or with number -1 any of a topic.

    Raises:
        HerderError: the tasks are not known now.
    """
    found: list[TaskId] = []
    for task, config in await herder.task_configs(name):
        items = (it.strip() for it in (config.get(_ASSIGNED) or "").split(","))
        if any(it == str(part) or _is_of(it, part) for it in items):
            found.append(task)
    return found


def _is_of(item: str, part: TopicPartition) -> bool:
    return part.partition < 0 and item.rpartition("-")[0] == part.topic


def runnable(herder: Herder) -> list[str]:
    """Return the connectors whose class is installed: a Java worker may have left others."""
    infos = (herder.info_now(name) for name in sorted(herder.connectors()))
    return [info.name for info in infos if info is not None and info.type != "unknown"]


def source_connector(herder: Herder) -> str | None:
    """Return the connector that copies records, None where there is none."""
    for name in herder.connectors():
        info = herder.info_now(name)
        text = "" if info is None else info.config.get("connector.class") or ""
        if canonical_class(text) == MIRROR_SOURCE_CONNECTOR:
            return name
    return None


def state_of(herder: Herder, name: str) -> str | None:
    """Return the state of a connector, None while it has none."""
    try:
        return herder.status(name).connector.state.value
    except NotFoundError:
        return None


def topics_of(herder: Herder, name: str) -> tuple[str, ...]:
    """Return target topics a connector wrote to, none where that is not tracked."""
    try:
        return herder.topics(name)
    except ForbiddenError:
        return ()


def works_of(herder: Herder, name: str) -> list[tuple[str, str]]:
    """Return name and state of a connector and of its tasks."""
    info = herder.info_now(name)
    tasks = () if info is None else info.tasks
    works = [(name, state_of(herder, name) or State.UNASSIGNED.value)]
    return works + [(str(task), _task_state(herder, task)) for task in tasks]


def _task_state(herder: Herder, task: TaskId) -> str:
    try:
        return herder.task_status(task).state.value
    except NotFoundError:
        return State.UNASSIGNED.value
