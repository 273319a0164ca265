"""Finds connectors by entry point (group ``mm2py.connectors``).

Flow: ``connector.class`` -> ``Plugins.find`` -> the class that builds the connector. A name is Java's
class name, Java's simple name, or the entry point's name. Nothing is imported before it is asked for.
"""

import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast, final

from mm2py.api.connector import ConnectorFactory
from mm2py.errors import ConfigError

__all__ = ["Plugins"]

log = logging.getLogger(__name__)

GROUP: Final = "mm2py.connectors"


@final
class Plugins:
    """Connectors that are installed.

    Args:
        installed: entry points to search; None: those of this Python environment.
    """

    def __init__(self, installed: Iterable[EntryPoint] | None = None) -> None:
        found = entry_points(group=GROUP) if installed is None else installed
        self._entries = {entry.name: entry for entry in found}
        self._loaded: dict[str, ConnectorFactory] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entry points, sorted."""
        return tuple(sorted(self._entries))

    def find(self, connector_class: str) -> ConnectorFactory:
        """Return the factory of a connector class.

        Raises:
            ConfigError: none is installed under that name, or it cannot be imported.
        """
        wanted = connector_class.strip()
        simple = wanted.rpartition(".")[2]
        for name in (wanted, simple):
            if name in self._entries:
                factory = self._load(name)
                # A foreign class of the same simple name is another connector.
                if wanted in (name, factory.java_class):
                    return factory
        for name in self._entries:
            factory = self._load(name)
            if factory.java_class == wanted:
                return factory
        raise ConfigError(
            f"connector.class={wanted}: no such connector is installed",
            remedy=f"use one of {', '.join(self.names) or '(none installed)'}, or install the package that"
            " brings it",
        )

    def _load(self, name: str) -> ConnectorFactory:
        factory = self._loaded.get(name)
        if factory is None:
            entry = self._entries[name]
            try:
                loaded: object = entry.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(
                    f"connector {name} ({entry.value}) cannot be loaded: {error}",
                    remedy="reinstall the package that brings it",
                ) from error
            if not callable(loaded) or not isinstance(getattr(loaded, "java_class", None), str):
                raise ConfigError(
                    f"connector {name} ({entry.value}) is no connector: it must be a class with java_class",
                    remedy="fix the entry point",
                )
            factory = self._loaded[name] = cast("ConnectorFactory", loaded)
        return factory
