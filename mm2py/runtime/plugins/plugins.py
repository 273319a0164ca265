"""Finds connectors by entry point (group ``mm2py.connectors``).

Flow: ``connector.class`` -> ``Plugins.find`` -> the class that builds the connector. A name is
Java's class name, its last part, that without ``Connector``, or the entry point's name. Nothing is
imported before it is asked for; what cannot be imported is logged once and hurts no other.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast, final

from mm2py.api.connector import ConnectorFactory
from mm2py.config.class_names import canonical_class
from mm2py.errors import ConfigError

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
        entries = entry_points(group=GROUP) if installed is None else installed
        self._entries = {entry.name: entry for entry in entries}
        self._loaded: dict[str, ConnectorFactory] = {}
        self._broken: dict[str, ConfigError] = {}

    @property
    def broken(self) -> Mapping[str, str]:
        """Entry points that could not be loaded when they were asked for, and why."""
        return {name: error.message for name, error in self._broken.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._entries))

    def factories(self) -> Sequence[ConnectorFactory]:
        """Return every connector that can be loaded, in the order of their Java names."""
        loaded = [self._load_or_none(name) for name in self._entries]
        return sorted((it for it in loaded if it is not None), key=lambda it: it.java_class)

    def find(self, connector_class: str) -> ConnectorFactory:
        """Return the factory of a connector class; ``ConfigError``: none is installed under that
        name, or it cannot be imported."""
        class_name = canonical_class(connector_class)
        simple = class_name.rpartition(".")[2]
        # The entry point's name first: only that one is imported, not every plug-in.
        for name in (class_name, simple, simple + _ENDING):
            if name in self._entries:
                factory = self._load(name)
                # A foreign class of the same simple name is another connector.
                if class_name in _names(name, factory):
                    return factory
        for name in self._entries:
            # A broken plug-in does not affect the others.
            other = self._load_or_none(name)
            if other is not None and class_name in _names(name, other):
                return other
        raise ConfigError(
            f"connector.class={class_name}: no such connector is installed",
            remedy=f"use one of {', '.join(self.names) or '(none installed)'}, or install the "
            "package that brings it",
        )

    def _load_or_none(self, name: str) -> ConnectorFactory | None:
        try:
            return self._load(name)
        except ConfigError:
            return None

    def _load(self, name: str) -> ConnectorFactory:
        if name in self._broken:
            raise self._broken[name]
        if name not in self._loaded:
            try:
                self._loaded[name] = _imported(self._entries[name])
            except ConfigError as error:
                self._broken[name] = error
                log.warning("connector left out name=%s cause=%s", name, error)
                raise
        return self._loaded[name]


def _imported(entry: EntryPoint) -> ConnectorFactory:
    try:
        loaded: object = entry.load()
        is_connector = callable(loaded) and isinstance(getattr(loaded, "java_class", None), str)
    except (Exception, SystemExit) as error:  # the package's own code runs here
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"connector {entry.name} ({entry.value}) cannot be loaded: {cause}",
            remedy="reinstall the package that brings it",
        ) from error
    if not is_connector:
        raise ConfigError(
            f"connector {entry.name} ({entry.value}) is no connector: it must be a class with "
            "java_class",
            remedy="fix the entry point",
        )
    return cast("ConnectorFactory", loaded)


def _names(entry: str, factory: ConnectorFactory) -> set[str]:
    simple = factory.java_class.rpartition(".")[2]
    return {
        factory.java_class,
        *(name for full in (entry, simple) for name in (full, full.removesuffix(_ENDING))),
    }
