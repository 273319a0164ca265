"""The replication policy that a config names: Java's Default and Identity, Legacy, or a third
party's class.

Flow: connector config -> ``policy_from_config`` -> names of remote and internal topics
(``mm2py.api.policies``); ``package.module:Class`` or ``package.module.Class`` -> ``build_plugin``
-> an object, or a ``ConfigError`` that names what to write instead. Java names of built-in classes
are resolved by the callers.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, cast

from mm2py.api.policies import (
    DefaultReplicationPolicy,
    IdentityReplicationPolicy,
    ReplicationPolicy,
)
from mm2py.config.class_names import (
    DEFAULT_REPLICATION_POLICY,
    IDENTITY_REPLICATION_POLICY,
    canonical_class,
)
from mm2py.errors import ConfigError
from mm2py.types import ClusterAlias, FlowName, is_topic_name

POLICY_CLASS: Final = "replication.policy.class"
_BUILT_IN: Final[Mapping[str, type[DefaultReplicationPolicy]]] = {
    DEFAULT_REPLICATION_POLICY: DefaultReplicationPolicy,
    IDENTITY_REPLICATION_POLICY: IdentityReplicationPolicy,
}
_SHORT_NAMES: Final = (
    DefaultReplicationPolicy.__name__,
    IdentityReplicationPolicy.__name__,
    "LegacyReplicationPolicy",
)

_MEMBERS: Final = (
    "checkpoints_topic",
    "detects_cycles",
    "heartbeats_topic",
    "is_checkpoints_topic",
    "is_heartbeats_topic",
    "is_internal_topic",
    "is_mm2_internal_topic",
    "offset_syncs_topic",
    "original_topic",
    "remote_topic",
    "topic_source",
    "upstream_topic",
)


def policy_from_config(config: Mapping[str, str]) -> ReplicationPolicy:
    """Build the policy that ``replication.policy.class`` names, from the connector's config.

    Java's class names, their simple names and ``package.module:Class`` of Python are accepted; a
    Python class is called with the config and may extend ``DefaultReplicationPolicy``.

    Raises:
        ConfigError: no such class, or its names break a rule.
    """
    name = canonical_class(config.get(POLICY_CLASS, DEFAULT_REPLICATION_POLICY))
    built_in = _BUILT_IN.get(name)
    # Ours are not tested against the rules: their tests do that.
    if built_in is not None:
        return built_in(config)
    policy = cast(
        "ReplicationPolicy",
        build_plugin(name, POLICY_CLASS, config, members=_MEMBERS, built_in=_SHORT_NAMES),
    )
    problem = _broken_rule(policy)
    if problem:
        raise ConfigError(
            f"{POLICY_CLASS}={name}: {problem}",
            remedy="see the rules of a policy in docs/reference/extend.md",
        )
    return policy


def naming(flow: FlowName, connector: Mapping[str, str]) -> FlowName:
    """Return the aliases that name a flow's copies, positions and Java's internal topics.

    They are the flow's own, unless its file has ``source.cluster.alias`` or
    ``target.cluster.alias``: ``MirrorMakerConfig.connectorBaseConfig`` puts the flow's only where
    these are absent. An empty one with an empty separator keeps names. Our own topics have the
    flow's.
    """
    return FlowName(
        ClusterAlias(connector.get("source.cluster.alias", flow.source)),
        ClusterAlias(connector.get("target.cluster.alias", flow.target)),
    )


def _broken_rule(policy: ReplicationPolicy) -> str:
    """Return which rule the names of two sample topics break, empty for none."""
    alias, copies = "source", dict[str, str]()
    # Two names, so that a policy that maps every topic to one is found before it mixes their
    # records.
    for topic in "orders", "order-items":
        try:
            copy = cast("object", policy.remote_topic(alias, topic))
            source = policy.topic_source(str(copy))
        except Exception as error:  # noqa: BLE001 - a third party's code
            return f"for topic {topic} of {alias} it raises {error!r}"
        if not is_topic_name(copy):
            return f"{copy!r}, the copy of {topic} of {alias}, is no legal name of a topic"
        if copy in copies:
            return f"{copies[copy]} and {topic} of {alias} share the copy {copy}"
        if source not in (None, alias):
            return f"topic_source({copy!r}) is {source!r}, of a copy from {alias}"
        copies[copy] = topic
    return ""


def build_plugin(
    class_name: str,
    property_name: str,
    config: Mapping[str, str],
    *,
    members: tuple[str, ...],
    built_in: tuple[str, ...],
) -> object:
    """Build the object that ``property_name`` names, from the whole connector config.

    Args:
        class_name: ``package.module:Class`` or ``package.module.Class``.
        property_name: The property that has it, for messages.
        config: Given to the class as its only argument.
        members: What the object must offer.
        built_in: Short names of our own classes, for the remedy.

    Raises:
        ConfigError: The class cannot be imported, built, or lacks a member.
    """
    plugin_class = _find_class(class_name, property_name, built_in)
    try:
        plugin = plugin_class(config)
    except ConfigError:
        # The plug-in's own ConfigError already says what to correct.
        raise
    except Exception as error:
        raise ConfigError(
            f"{property_name}={class_name}: building it failed: {error!r}",
            remedy="the class is called with one argument, the connector's config",
        ) from error
    # ``hasattr`` and no base class: a policy of a third party need not extend ours.
    missing = [name for name in members if not hasattr(plugin, name)]
    if missing:
        raise ConfigError(
            f"{property_name}={class_name}: it lacks {', '.join(missing)}",
            remedy="see the contracts in mm2py.api.policies",
        )
    return plugin


def _find_class(
    class_name: str, property_name: str, built_in: tuple[str, ...]
) -> Callable[[Mapping[str, str]], object]:
    # Without a colon the last dot separates, as in a Java class name.
    module_name, colon, attribute = class_name.partition(":")
    if not colon:
        module_name, _, attribute = class_name.rpartition(".")
    remedy = (
        f"use one of {', '.join(built_in)} or name a Python class as package.module:Class; "
        "Java classes of third parties cannot be loaded and have to be ported"
    )
    if not module_name or not attribute:
        raise ConfigError(f"{property_name}={class_name}: unknown class", remedy=remedy)
    try:
        module = import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{property_name}={class_name}: unknown class ({error})", remedy=remedy
        ) from error
    except Exception as error:  # the module's own code runs here
        raise ConfigError(
            f"{property_name}={class_name}: importing {module_name} failed: {error!r}",
            remedy="correct the module",
        ) from error
    # An attribute that is no class but callable is accepted: a factory function.
    value: object = getattr(module, attribute, None)
    if not callable(value):
        raise ConfigError(
            f"{property_name}={class_name}: module {module_name} has no class {attribute}",
            remedy=remedy,
        )
    return value
