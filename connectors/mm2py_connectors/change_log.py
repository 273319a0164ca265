"""Remembers what is wrong per name and logs it once until it changes.

Flow: ``note`` / ``clear`` -> one WARNING or INFO per change -> ``entries`` for status.
"""

import logging
from collections.abc import Collection, Mapping
from typing import final


@final
class ChangeLog:
    """Problems by name (a topic, a partition, an ACL); ``key`` is what the log calls the name."""

    def __init__(self, log: logging.Logger, what: str, *, key: str = "name") -> None:
        self._log = log
        self._what, self._key = what, key
        self._entries: dict[str, str] = {}
        self._levels: dict[str, int] = {}

    @property
    def entries(self) -> Mapping[str, str]:
        return self._entries

    def note(self, name: str, problem: str, *, level: int = logging.WARNING) -> None:
        """Keep a problem; logged if it is new or another one. ``DEBUG``: many names may have it at
        once, and its owner reports all of them in one line."""
        if self._entries.get(name) != problem:
            self._log.log(level, "%s %s=%s cause=%s", self._what, self._key, name, problem)
        self._entries[name] = problem
        self._levels[name] = min(level, logging.INFO)

    def clear(self, name: str) -> None:
        """The problem is gone."""
        if self._entries.pop(name, None) is not None:
            self._log.log(self._levels[name], "solved: %s %s=%s", self._what, self._key, name)

    def keep_only(self, names: Collection[str]) -> None:
        for name in [name for name in self._entries if name not in names]:
            del self._entries[name], self._levels[name]
