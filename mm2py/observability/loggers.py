"""Log levels by namespace, in Java's words, as ``/admin/loggers`` shows and sets them."""

from collections.abc import Mapping
from typing import Protocol

from mm2py.errors import ConfigError

__all__ = ["LoggerRegistry", "UnknownLevelError"]


class UnknownLevelError(ConfigError):
    """No such log level; its message is Connect's ``invalid log level 'X'.``."""

    def __init__(self, level: str) -> None:
        super().__init__(f"invalid log level '{level}'.")


class LoggerRegistry(Protocol):
    """Levels of this process; each comes with when it was changed last (ms), None for never."""

    def all(self) -> Mapping[str, tuple[str, int | None]]:
        """Return every logger with a level of its own."""
        ...

    def get(self, name: str) -> tuple[str, int | None] | None:
        """Return the level in force for one logger, None for one that does not exist."""
        ...

    def set(self, namespace: str, level: str) -> list[str]:
        """Set the level of a namespace; return the loggers that changed, sorted.

        Raises:
            UnknownLevelError: no such level.
        """
        ...
