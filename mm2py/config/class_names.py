"""Java's class names for what this product has built in, and the names of ours that mean the same.

Configs carry Java's names, so that a Java worker can start from our topics; our names and bare
class names are aliases on input. ``LegacyReplicationPolicy``, a name from vendors' guides, keeps
topic names as MirrorMaker 1 did and so is Identity.
"""

from typing import Final

_MIRROR: Final = "org.apache.kafka.connect.mirror."

KAFKA_RELEASE: Final = "4.3.1"
"""The Kafka whose plug-ins the built-in ones stand for; shown as their version."""

SOURCE_NAME: Final = "MirrorSourceConnector"
SINK_NAME: Final = "MirrorSinkConnector"
CHECKPOINT_NAME: Final = "MirrorCheckpointConnector"
HEARTBEAT_NAME: Final = "MirrorHeartbeatConnector"
"""Names of the connectors that a file derives for a flow."""
COPY_NAMES: Final = (SOURCE_NAME, SINK_NAME)

MIRROR_SOURCE_CONNECTOR: Final = _MIRROR + SOURCE_NAME
MIRROR_SINK_CONNECTOR: Final = _MIRROR + SINK_NAME
"""Named by KIP-382; Apache's release has no such class."""
COPY_CONNECTORS: Final = (MIRROR_SOURCE_CONNECTOR, MIRROR_SINK_CONNECTOR)
"""A flow's records are copied by one of them."""
MIRROR_CHECKPOINT_CONNECTOR: Final = _MIRROR + CHECKPOINT_NAME
MIRROR_HEARTBEAT_CONNECTOR: Final = _MIRROR + HEARTBEAT_NAME
DEFAULT_REPLICATION_POLICY: Final = _MIRROR + "DefaultReplicationPolicy"
IDENTITY_REPLICATION_POLICY: Final = _MIRROR + "IdentityReplicationPolicy"
DEFAULT_TOPIC_FILTER: Final = _MIRROR + "DefaultTopicFilter"
DEFAULT_GROUP_FILTER: Final = _MIRROR + "DefaultGroupFilter"
DEFAULT_CONFIG_PROPERTY_FILTER: Final = _MIRROR + "DefaultConfigPropertyFilter"
FORWARDING_ADMIN: Final = "org.apache.kafka.clients.admin.ForwardingAdmin"
BYTE_ARRAY_CONVERTER: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
PROVIDER_PACKAGE: Final = "org.apache.kafka.common.config.provider."
SIMPLE_HEADER_CONVERTER: Final = "org.apache.kafka.connect.storage.SimpleHeaderConverter"

_BUILT_IN: Final = (
    MIRROR_SOURCE_CONNECTOR,
    MIRROR_SINK_CONNECTOR,
    MIRROR_CHECKPOINT_CONNECTOR,
    MIRROR_HEARTBEAT_CONNECTOR,
    DEFAULT_REPLICATION_POLICY,
    IDENTITY_REPLICATION_POLICY,
    DEFAULT_TOPIC_FILTER,
    DEFAULT_GROUP_FILTER,
    DEFAULT_CONFIG_PROPERTY_FILTER,
    FORWARDING_ADMIN,
    BYTE_ARRAY_CONVERTER,
)
_BY_BARE_NAME: Final = {name.rpartition(".")[2]: name for name in _BUILT_IN} | {
    "LegacyReplicationPolicy": IDENTITY_REPLICATION_POLICY
}
_OUR_PACKAGES: Final = ("mm2py.", "mm2py_connectors.")
_JAVA_ROOTS: Final = ("org.", "com.", "io.", "net.")


def canonical_class(name: str) -> str:
    """Return Java's name of a built-in class; other names are returned trimmed."""
    trimmed = name.strip()
    # ``module:Class`` is Python's form, ``module.Class`` Java's.
    package, _, bare = trimmed.replace(":", ".").rpartition(".")
    ours = not package or f"{package}.".startswith(_OUR_PACKAGES)
    if bare in _BY_BARE_NAME and (ours or f"{package}." == _MIRROR):
        return _BY_BARE_NAME[bare]
    return trimmed


def is_foreign_java_class(name: str) -> bool:
    """Whether ``name`` is a Java class that this product has no counterpart of."""
    canonical = canonical_class(name)
    return canonical.startswith(_JAVA_ROOTS) and ":" not in canonical and canonical not in _BUILT_IN
