"""States of a connector and its tasks as every worker reads them from the status store.

Flow: ``StoredStatus`` -> ``WorkState`` -> ``ConnectorState``. Reads only.
"""

from mm2py.runtime.herder.api import ConnectorInfo, ConnectorState, HerderParts, WorkState
from mm2py.storage.status_records import StoredStatus

__all__ = ["connector_info", "connector_state", "work_state"]


def work_state(stored: StoredStatus) -> WorkState:
    """Return a stored state as it is shown; an empty trace is none."""
    return WorkState(stored.state, stored.worker_id, stored.trace or None, stored.version)


def connector_state(name: str, parts: HerderParts) -> ConnectorState | None:
    """Return all states of a connector, None while nobody has written one."""
    connector = parts.status.get(name)
    if connector is None:
        return None
    tasks = parts.status.tasks(name)
    return ConnectorState(
        name,
        work_state(connector),
        {number: work_state(tasks[number]) for number in sorted(tasks)},
        parts.catalog.connector_type(parts.config.snapshot().connectors.get(name, {})),
    )


def connector_info(name: str, parts: HerderParts) -> ConnectorInfo | None:
    """Return a connector with its raw config, None where this node has read none."""
    snapshot = parts.config.snapshot()
    config = snapshot.connectors.get(name)
    if config is None:
        return None
    return ConnectorInfo(name, config, snapshot.tasks(name), parts.catalog.connector_type(config))
