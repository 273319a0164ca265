"""The replication policy that a config names: Java's Default and Identity, Legacy, or a third party's class.

Flow: connector config -> ``policy_from_config`` -> names of remote and internal topics (``mm2py.api.policies``).
"""

from collections.abc import Mapping
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
from mm2py.mirror.plugin_class import build_plugin

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
        ConfigError: No such class.
    """
    name = canonical_class(config.get(POLICY_CLASS, DEFAULT_REPLICATION_POLICY))
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return built_in(config)
    policy = build_plugin(name, POLICY_CLASS, config, members=_MEMBERS, built_in=_SHORT_NAMES)
    return cast("ReplicationPolicy", policy)
