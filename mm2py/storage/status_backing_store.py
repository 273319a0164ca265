"""The store of states that every worker sees (Java's ``StatusBackingStore``).

Flow: ``put`` -> posted to the status topic -> read back by all -> ``get``. Nothing waits for a write except
``flush``.
"""

from collections.abc import Mapping
from typing import Protocol

from mm2py.storage.status_records import StoredStatus, TopicUse
from mm2py.types import TaskId

__all__ = ["StatusBackingStore"]


class StatusBackingStore(Protocol):
    """States of one group's connectors and tasks; a plain text names a connector."""

    async def start(self) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now."""
        ...

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        ...

    def put(self, work: str | TaskId, status: StoredStatus, *, safe: bool = False) -> None:
        """Post a state and return; DESTROYED removes it.

        ``safe``: only if no other worker has written a newer one meanwhile (Java's ``putSafe``).
        """
        ...

    async def flush(self, timeout_s: float) -> bool:
        """Wait until everything posted is acknowledged; False when that takes longer."""
        ...

    def get(self, work: str | TaskId) -> StoredStatus | None:
        """Return the state read last, None where there is none."""
        ...

    def tasks(self, connector: str) -> Mapping[int, StoredStatus]:
        """Return the states of a connector's tasks by number."""
        ...

    def connectors(self) -> frozenset[str]:
        """Return the connectors with a state."""
        ...

    def put_topic(self, use: TopicUse) -> None:
        """Post that a connector uses a topic."""
        ...

    def topics(self, connector: str) -> Mapping[str, TopicUse]:
        """Return the topics a connector uses, by name."""
        ...

    def delete_topics(self, connector: str) -> None:
        """Forget which topics a connector uses."""
        ...
