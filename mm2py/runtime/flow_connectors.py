"""Connectors of one flow and their states, as a herder knows them now.

Flow: ``Herder`` -> names and words. Reads only.
"""

from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.runtime.herder_api import Herder
from mm2py.runtime.herder_errors import ForbiddenError, NotFoundError
from mm2py.types import State, TaskId

__all__ = ["runnable", "source_connector", "state_of", "topics_of", "works_of"]


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
