"""Configs of topics and brokers as a cluster describes and alters them.

Flow: response -> ``admin_messages`` -> one of these -> the client. Properties files are read by
``mm2py.config``.
"""

from dataclasses import dataclass
from enum import IntEnum


class LenientEnum(IntEnum):
    """Base of Kafka's enums, which grow with releases: a value newer than ours reads as UNKNOWN, as
    in Java."""

    @classmethod
    def _missing_(cls, value: object) -> IntEnum | None:
        # None lets Enum raise ValueError: an enum without UNKNOWN stays strict.
        unknown: IntEnum | None = cls.__members__.get("UNKNOWN")
        return unknown


class ConfigResourceType(LenientEnum):
    """``org.apache.kafka.common.config.ConfigResource.Type``."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    # KIP-714.
    CLIENT_METRICS = 16
    # KIP-848: configs of groups.
    GROUP = 32


class ConfigSource(LenientEnum):
    """Origin of a config's value (``DescribeConfigsResponse.ConfigSource``)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class ConfigOperation(IntEnum):
    """``AlterConfigOp.OpType``."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """The owner of a config; brokers are named by their id as text."""

    resource_type: ConfigResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config; ``value`` is None where it is sensitive."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG
    is_read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        """Whether the value is the broker's default (Java's ``ConfigEntry.isDefault``)."""
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True)
class DescribedConfigs:
    """All configs of one resource."""

    resource: ConfigResource
    error_code: int
    error_message: str
    entries: tuple[ConfigEntry, ...]
