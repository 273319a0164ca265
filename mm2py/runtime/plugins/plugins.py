"""Finds connectors by entry point (group ``mm2py.connectors``).

Flow: ``connector.class`` -> ``Plugins.find`` -> the class that builds the connector. A name is Java's
class name, its last part, that without ``Connector``, or the entry point's name. Nothing is imported
before it is asked for.
"""

import logging
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast, final

from mm2py.api.connector import ConnectorFactory
from mm2py.config.class_names import canonical_class
from mm2py.errors import ConfigError

__all__ = ["Plugins"]

log = logging.getLogger(__name__)

GROUP: Final = "mm2py.connectors"
_ENDING: Final = "Connector"


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
        self._broken: dict[str, ConfigError] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entry points, sorted."""
        return tuple(sorted(self._entries))

    def factories(self) -> Sequence[ConnectorFactory]:
        """Return every connector that can be loaded, in the order of their Java names."""
        found = [self._load_or_none(name) for name in self._entries]
        return sorted((it for it in found if it is not None), key=lambda it: it.java_class)

    def find(self, connector_class: str) -> ConnectorFactory:
        """Return the factory of a connector class.

        Raises:
            ConfigError: none is installed under that name, or it cannot be imported.
        """
        wanted = canonical_class(connector_class)
        simple = wanted.rpartition(".")[2]
        for name in (wanted, simple, simple + _ENDING):
            if name in self._entries:
                factory = self._load(name)
                # A foreign class of the same simple name is another connector.
                if wanted in _names(name, factory):
                    return factory
        for name in self._entries:
            # One that is broken says nothing of the others.
            other = self._load_or_none(name)
            if other is not None and wanted in _names(name, other):
                return other
        raise ConfigError(
            f"connector.class={wanted}: no such connector is installed",
            remedy=f"use one of {', '.join(self.names) or '(none installed)'}, or install the package that"
            " brings it",
        )

    def _load_or_none(self, name: str) -> ConnectorFactory | None:
        try:
            return self._load(name)
        except ConfigError as error:
            if name not in self._broken:
                self._broken[name] = error
                log.warning("connector left out name=%s cause=%s", name, error)
            return None

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


def _names(entry: str, factory: ConnectorFactory) -> set[str]:
    simple = factory.java_class.rpartition(".")[2]
    return {
        factory.java_class,
        *(name for full in (entry, simple) for name in (full, full.removesuffix(_ENDING))),
    }
