"""Log levels by namespace, in Java's words, as ``/admin/loggers`` shows and sets them.

Flow: a namespace and a level -> ``logging``. Java's package names work too: the namespace then is a
logger of its own, and the part of ours that does the same work follows it.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol, final

from mm2py.clock import Clock
from mm2py.errors import ConfigError

log = logging.getLogger(__name__)

ROOT: Final = "root"
OFF: Final = 1_000
_LEVELS: Final[Mapping[str, int]] = {
    "OFF": OFF,
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
    "ALL": 1,
}
"""The highest first: a level between two of them counts as the lower one."""

_COUNTERPARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "org.apache.kafka": ("mm2py", "mm2py_connectors", "mm2py_workers"),
    "org.apache.kafka.clients": ("mm2py.client", "mm2py.protocol"),
    "org.apache.kafka.connect": ("mm2py", "mm2py_connectors", "mm2py_workers"),
    "org.apache.kafka.connect.mirror": ("mm2py.mirror", "mm2py_connectors"),
    "org.apache.kafka.connect.runtime": ("mm2py.runtime",),
    "org.apache.kafka.connect.runtime.rest": ("mm2py.rest",),
    "org.apache.kafka.connect.storage": ("mm2py.storage",),
}
"""Java's packages and the packages of ours that do their work."""


class UnknownLevelError(ConfigError):
    """No such log level; its message is Connect's ``invalid log level 'X'.``."""

    def __init__(self, level: str) -> None:
        super().__init__(f"invalid log level '{level}'.")


def known_level(word: str) -> str:
    """Return a level in capitals; ``UnknownLevelError``: there is no such level."""
    if word.upper() not in _LEVELS:
        raise UnknownLevelError(word)
    return word.upper()


class LoggerRegistry(Protocol):
    """Levels of this process; each comes with when it was changed last (ms), None for never."""

    def all(self) -> Mapping[str, tuple[str, int | None]]:
        """Return every known logger with the level in force, sorted by name."""
        ...

    def get(self, name: str) -> tuple[str, int | None] | None:
        """Return the level in force for one logger, None for one that does not exist."""
        ...

    def set(self, namespace: str, level: str) -> list[str]:
        """Set the level of a namespace; return the loggers that changed; ``UnknownLevelError``."""
        ...


@final
class ProcessLoggers:
    """``LoggerRegistry`` over this process's ``logging`` (Connect's ``Loggers``).

    Args:
        clock: the time of each change of a level.
        follow: called with every level that is set, for processes that log through this one.
    """

    def __init__(self, clock: Clock, follow: Callable[[str, str], None] | None = None) -> None:
        self._clock = clock
        self._follow = follow
        self._modified_ms: dict[str, int] = {}

    def all(self) -> Mapping[str, tuple[str, int | None]]:
        return {name: self._described(name) for name in sorted(_known())}

    def get(self, name: str) -> tuple[str, int | None] | None:
        return self._described(name) if name in _known() else None

    def set(self, namespace: str, level: str) -> list[str]:
        """Set the level of a namespace and of all known loggers that begin with it.

        An unknown namespace becomes a logger. Those whose level in force is the new one already are
        left alone and not returned.
        """
        word = known_level(level.strip())
        logging.getLogger(namespace)
        known = _known()
        # Decided before the first is set: a child would inherit the new level and seem unchanged.
        changed = sorted(
            name
            for name in known
            if _hit(name, namespace) and _word(known[name].getEffectiveLevel()) != word
        )
        now_ms = self._clock.now_ms()
        for name in changed:
            known[name].setLevel(_LEVELS[word])
            self._modified_ms[name] = now_ms
        if changed:
            log.info(
                "log level set namespace=%s level=%s loggers=%d", namespace, word, len(changed)
            )
        if self._follow is not None:
            self._follow(namespace, word)
        return changed

    def _described(self, name: str) -> tuple[str, int | None]:
        level = logging.getLogger("" if name == ROOT else name).getEffectiveLevel()
        return _word(level), self._modified_ms.get(name)


def _known() -> dict[str, logging.Logger]:
    # `loggerDict` also has a `PlaceHolder` for each parent that was never asked for.
    loggers = {
        name: logger
        for name, logger in logging.Logger.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
    }
    return loggers | {ROOT: logging.getLogger()}


def _hit(name: str, namespace: str) -> bool:
    """Return whether a namespace covers a logger: by plain prefix, as Connect decides it."""
    if namespace == ROOT:
        return True
    prefixes = (namespace, *_COUNTERPARTS.get(namespace.rstrip("."), ()))
    return name != ROOT and name.startswith(prefixes)


def _word(level: int) -> str:
    return next((word for word, least in _LEVELS.items() if level >= least), "ALL")
