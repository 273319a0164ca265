"""What is installed, as Connect's ``/connector-plugins`` shows it.

Flow: ``Plugins`` -> ``InstalledPlugins`` -> plug-ins and the keys of each, Connect's own among
them.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, final

from mm2py.api.connector import ConnectorFactory
from mm2py.config.class_names import KAFKA_RELEASE, canonical_class
from mm2py.config.connect_definitions import (
    COMMON_KEYS,
    ConfigKey,
    connector_keys,
    described,
    own_keys,
)
from mm2py.config.definitions import ConfigModel, Option, options_of
from mm2py.config.framework import CONVERTER_CONFIGS, CONVERTERS, HEADER_CONVERTERS
from mm2py.errors import ConfigError
from mm2py.runtime.errors import BadRequestError, NotFoundError
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.transforms.chain import Kind, find, installed, java_class, model_of

_OTHER_KINDS: Final = frozenset(
    (
        *(f"{it}ConfigProvider" for it in ("File", "Directory", "EnvVar")),
        *(
            f"{it}ConnectorClientConfigOverridePolicy"
            for it in ("All", "Allowlist", "None", "Principal")
        ),
        "BasicAuthSecurityRestExtension",
    )
)


def version_problem(plugin: str, requested: str, installed_version: str) -> str:
    """Return Java's message where another version than the requested one is installed, else an
    empty text; ranges pass."""
    requested = requested.strip()
    if not requested or requested == installed_version or requested.startswith(("[", "(")):
        return ""
    return (
        f"Plugin {plugin} not found that matches the version range [{requested},{requested}], "
        f"available versions: [{installed_version}]"
    )


_KINDS: Final[Mapping[str, Kind]] = {"transformation": "transforms", "predicate": "predicates"}
_CONVERTERS: Final = {"converter": CONVERTERS, "header_converter": HEADER_CONVERTERS}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One plug-in in one role (``source``, ``sink``, ``converter``, ...).

    ``error``: why it cannot be imported; its role is ``unknown`` then, its class the entry point's
    name.
    """

    java_class: str
    type: str
    version: str | None
    error: str = ""


class PluginCatalog(Protocol):
    """Plug-ins by class name, simple name or alias."""

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        """Return the plug-ins in Connect's order."""
        ...

    def definitions(self, plugin: str) -> Sequence[ConfigKey]:
        """Return the keys of a plug-in, its own first.

        Raises:
            NotFoundError: ``Unknown plugin p.``
            BadRequestError: a plug-in of a kind that has no keys here.
        """
        ...

    def connector_type(self, config: Mapping[str, str | None]) -> str:
        """Return ``source``, ``sink``, or ``unknown`` where the class is not installed."""
        ...


@final
class InstalledPlugins:
    """``PluginCatalog`` over the connectors that are installed and the built-in converters."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins

    def plugins(self, *, connectors_only: bool) -> Sequence[PluginInfo]:
        """Return sinks, sources, what cannot be imported, transforms, predicates, converters and
        header converters."""
        listed = [
            PluginInfo(factory.java_class, plugin_type(factory), _version(factory))
            for factory in self._plugins.factories()
        ]
        listed.sort(key=lambda it: it.type)
        listed += [
            PluginInfo(name, "unknown", None, error)
            for name, error in sorted(self._plugins.broken.items())
        ]
        if not connectors_only:
            listed += [
                PluginInfo(java_class(it), role, _version(it))
                for role, kind in _KINDS.items()
                for it in installed(kind)
            ]
            listed += [
                PluginInfo(name, role, KAFKA_RELEASE)
                for role, names in _CONVERTERS.items()
                for name in sorted(names)
            ]
        return listed

    def definitions(self, plugin: str) -> Sequence[ConfigKey]:
        for kind in _KINDS.values():
            with suppress(ConfigError):
                return _described(model_of(find(kind, plugin)))
        for name in HEADER_CONVERTERS:
            if plugin in (name, name.rpartition(".")[2]):
                return _described(CONVERTER_CONFIGS.get(name))
        if plugin.rpartition(".")[2] in _OTHER_KINDS:
            raise BadRequestError(
                f"Invalid plugin class {plugin}. Valid types are sink, source, converter,"
                " header_converter, transformation, predicate."
            )
        try:
            factory = self._plugins.find(plugin)
        except ConfigError as error:
            raise NotFoundError(f"Unknown plugin {plugin}.") from error
        return [described(option) for option in _listed(factory)]

    def connector_type(self, config: Mapping[str, str | None]) -> str:
        try:
            return plugin_type(self._plugins.find(canonical_class(config["connector.class"] or "")))
        except (ConfigError, KeyError):
            return "unknown"


def _described(model: type[ConfigModel] | None) -> Sequence[ConfigKey]:
    return [] if model is None else [described(option) for option in options_of(model).values()]


def plugin_type(factory: ConnectorFactory) -> str:
    """Return ``source`` or ``sink``."""
    kind: object = getattr(factory, "plugin_type", None)
    return kind if isinstance(kind, str) else "source"


def checked_keys(factory: ConnectorFactory) -> Sequence[Option]:
    """Return what a config of this connector is checked for: Connect's keys, then its own.

    What it defines anew is its own: the ``topics`` of MirrorSink are patterns.
    """
    own = _own(factory)
    names = {option.name for option in own}
    return (*(key for key in connector_keys(plugin_type(factory)) if key.name not in names), *own)


def _listed(factory: ConnectorFactory) -> Sequence[Option]:
    """Return its own keys, then Connect's others, as Connect lists them."""
    model, own = model_of(factory), _own(factory)
    if model is not None and "name" in options_of(model):
        # As Java's mirror connectors, which define the common keys again in front of theirs.
        own = (*COMMON_KEYS, *own)
    names = {option.name for option in own}
    rest = connector_keys(plugin_type(factory))
    return (*own, *(it for it in rest if it.name not in names))


def _own(factory: ConnectorFactory) -> Sequence[Option]:
    model = model_of(factory)
    return () if model is None else own_keys(model)


def _version(factory: object) -> str | None:
    version: object = getattr(factory, "plugin_version", None)
    return version if isinstance(version, str) else None
