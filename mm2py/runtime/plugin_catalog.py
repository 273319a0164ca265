"""What is installed, as Connect's ``/connector-plugins`` shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mm2py.config.connect_definitions import ConfigKey

__all__ = ["PluginCatalog", "PluginInfo"]


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plug-in in one role (``source``, ``sink``, ``converter``, ...)."""

    java_class: str
    type: str
    version: str | None


class PluginCatalog(Protocol):
    """Plug-ins by class name, simple name or alias."""

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        """Return the plug-ins in Connect's order."""
        ...

    def definitions(self, plugin: str) -> Sequence[ConfigKey]:
        """Return the keys of a plug-in, its own first.

        Raises:
            NotFoundError: ``Unknown plugin p.``
        """
        ...

    def connector_type(self, config: Mapping[str, str | None]) -> str:
        """Return ``source``, ``sink``, or ``unknown`` where the class is not installed."""
        ...
