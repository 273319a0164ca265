"""The store of connector configs (Java's ``ConfigBackingStore``).

Flow: ``put_...`` -> records of the config topic -> read back -> ``snapshot`` and the ``ConfigListener``.
Who may write is decided by the herder, not here.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from mm2py.storage.config_state import ConfigListener, ConfigSnapshot, RestartRequest, SessionKey
from mm2py.types import TargetState

__all__ = ["ConfigBackingStore"]


class ConfigBackingStore(Protocol):
    """Connector configs of one group.

    Every ``put_...`` and ``remove_connector`` returns when its record was read back; after 30 s it raises
    ``RequestTimedOutError``, and whether it was written is unknown.
    """

    async def start(self, listener: ConfigListener) -> None:
        """Read the topic to its end; ``RetriableError`` when that cannot be done now."""
        ...

    async def stop(self) -> None:
        """Close connections; safe before ``start`` and safe twice."""
        ...

    def snapshot(self) -> ConfigSnapshot:
        """Return what has been read so far."""
        ...

    async def refresh(self, timeout_s: float) -> None:
        """Read to the end of now; ``RequestTimedOutError`` when that takes longer."""
        ...

    async def put_connector(
        self, name: str, config: Mapping[str, str | None], target: TargetState | None = None
    ) -> None:
        """Write a connector config; ``target`` is written before it."""
        ...

    async def remove_connector(self, name: str) -> None:
        """Write the tombstones of a connector and of its target state."""
        ...

    async def put_tasks(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        """Write all task configs of a connector and their commit; none is a commit of 0 tasks."""
        ...

    async def put_target(self, name: str, state: TargetState) -> None:
        """Write what a connector is wanted to be."""
        ...

    async def put_restart(self, request: RestartRequest) -> None:
        """Ask every worker for a restart."""
        ...

    async def put_session_key(self, key: SessionKey) -> None:
        """Hand a new session key to every worker."""
        ...

    async def put_fenced(self, name: str, task_count: int) -> None:
        """Note for how many tasks earlier producers are fenced (Java's task count record)."""
        ...

    async def put_logger_level(self, namespace: str, level: str) -> None:
        """Set a log level on every worker."""
        ...
