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
        self._quiet: set[str] = set()

    @property
    def entries(self) -> Mapping[str, str]:
        return self._entries

    def note(self, name: str, problem: str, *, quiet: bool = False) -> None:
        """Keep a problem; logged if it is new or another one. ``quiet``: at DEBUG alone, as many
        names may have it at once, and its owner reports all of them in one line."""
        if self._entries.get(name) != problem:
            level = logging.DEBUG if quiet else logging.WARNING
            self._log.log(level, "%s %s=%s cause=%s", self._what, self._key, name, problem)
        self._entries[name] = problem
        (self._quiet.add if quiet else self._quiet.discard)(name)

    def clear(self, name: str) -> None:
        """The problem is gone."""
        if self._entries.pop(name, None) is not None:
            level = logging.DEBUG if name in self._quiet else logging.INFO
            self._log.log(level, "solved: %s %s=%s", self._what, self._key, name)
        self._quiet.discard(name)

    def keep_only(self, names: Collection[str]) -> None:
        for name in [name for name in self._entries if name not in names]:
            del self._entries[name]
        self._quiet.intersection_update(names)
