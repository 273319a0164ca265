"""What the status topic says of connectors, tasks and the topics they use.

Flow: records of the topic -> ``StoredStatus`` and ``TopicUse``. No I/O.
"""

from dataclasses import dataclass

from mm2py.types import State

__all__ = ["StoredStatus", "TopicUse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStatus:
    """State of a connector or task, by whom and of which generation it was written."""

    state: State
    trace: str | None = None
    worker_id: str
    generation: int
    version: str | None = None


@dataclass(frozen=True, slots=True)
class TopicUse:
    """A connector's task wrote to or read from a topic for the first time."""

    topic: str
    connector: str
    task: int
    discovered_ms: int
