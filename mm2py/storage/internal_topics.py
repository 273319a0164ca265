"""Internal topics: created with their cleanup policy by the first worker, checked by every one.

Flow: ``InternalTopic`` -> ``ensure_topic`` -> CreateTopics, then DescribeConfigs (Java: ``TopicAdmin``).
It writes no records.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from mm2py.client.admin import TopicDescription
from mm2py.clock import Clock
from mm2py.errors import ConfigError, FatalServerError, RetriableError, ServerError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.topics import NewTopic

__all__ = ["InternalTopic", "TopicAdmin", "ensure_topic"]

log = logging.getLogger(__name__)

COMPACT: Final = "compact"
VISIBLE_WITHIN_S: Final = 3.0
LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """One internal topic as the worker config asks for it.

    ``partitions`` and ``replication_factor`` of -1 mean the broker's default. ``purpose`` is the config
    prefix (``offset.storage``), named in messages; with ``renamable`` it has a property for the name.
    """

    name: str
    purpose: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    cleanup_policy: str = COMPACT
    renamable: bool = True


class TopicAdmin(Protocol):
    """What is needed of ``mm2py.client.admin.Admin``."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, ServerError | None]:
        """Create topics; the error of each, None where it worked."""
        ...

    async def describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicDescription]:
        """Describe those that exist."""
        ...

    async def describe_topic_configs(
        self, names: Sequence[str]
    ) -> Mapping[str, Sequence[ConfigEntry]]:
        """Read topic configs."""
        ...


async def ensure_topic(admin: TopicAdmin, topic: InternalTopic, *, clock: Clock) -> int:
    """Create a topic if it is missing, check its cleanup policy, return its number of partitions.

    Raises:
        ConfigError: it exists with another cleanup policy, or the target refuses to create it.
        RetriableError: not now (too few brokers, no answer).
    """
    found = (await admin.describe_topics([topic.name])).get(topic.name)
    if found is None:
        await _create(admin, topic)
        # The broker that is asked may not know of the new topic yet.
        deadline = clock.monotonic() + VISIBLE_WITHIN_S
        while found is None and clock.monotonic() < deadline:
            await clock.sleep(LOOK_EVERY_S)
            found = (await admin.describe_topics([topic.name])).get(topic.name)
    if found is None:
        raise RetriableError(f"internal topic {topic.name} is not visible on the target yet")
    if found.error is not None:
        raise _unusable(topic, found.error)
    await _check_policy(admin, topic)
    if topic.purpose == "config.storage" and len(found.partitions) != 1:
        raise ConfigError(
            f"topic {topic.name} (config.storage.topic) has {len(found.partitions)} partitions, it must"
            " have exactly 1: the order of its records is the truth",
            remedy="name another topic in config.storage.topic",
        )
    return len(found.partitions)


async def _create(admin: TopicAdmin, topic: InternalTopic) -> None:
    configs = {name: value for name, value in topic.configs.items() if name != "cleanup.policy"}
    if len(configs) != len(topic.configs):
        log.warning(
            "property is ignored, the topic needs another value property=%s.cleanup.policy needed=%s",
            topic.purpose,
            topic.cleanup_policy,
        )
    configs["cleanup.policy"] = topic.cleanup_policy
    new = NewTopic(topic.name, topic.partitions, topic.replication_factor, configs)
    error = (await admin.create_topics([new])).get(topic.name)
    if error is None:
        log.info(
            "internal topic created topic=%s partitions=%d replication_factor=%d",
            topic.name,
            topic.partitions,
            topic.replication_factor,
        )
    elif error.code == codes.INVALID_REPLICATION_FACTOR:
        # Connect retries this while the worker starts: brokers may still be on their way.
        raise RetriableError(
            f"internal topic {topic.name} cannot be created: {error}",
            remedy=f"set {topic.purpose}.replication.factor to at most the number of brokers of the"
            " target, or start more brokers",
        )
    elif isinstance(error, FatalServerError) and error.code != codes.TOPIC_ALREADY_EXISTS:
        raise ConfigError(
            f"internal topic {topic.name} cannot be created on the target: {error}",
            remedy=f"create it by hand with cleanup.policy={topic.cleanup_policy}, or give this user"
            " the right to",
        )
    elif error.code != codes.TOPIC_ALREADY_EXISTS:
        raise error


def _unusable(topic: InternalTopic, error: ServerError) -> Exception:
    if isinstance(error, RetriableError):
        return error
    return ConfigError(
        f"internal topic {topic.name} cannot be used on the target: {error}",
        remedy="give this user the rights to describe, read and write it",
    )


async def _check_policy(admin: TopicAdmin, topic: InternalTopic) -> None:
    try:
        entries = (await admin.describe_topic_configs([topic.name])).get(topic.name, ())
    except FatalServerError as error:
        log.warning(
            "cleanup policy cannot be read, start goes on topic=%s cause=%s", topic.name, error
        )
        return
    policy = next((entry.value for entry in entries if entry.name == "cleanup.policy"), None)
    if policy is None:
        log.warning("cleanup policy cannot be read, start goes on topic=%s", topic.name)
    elif policy.replace(" ", "") != topic.cleanup_policy:
        elsewhere = f", or name another one in {topic.purpose}.topic" if topic.renamable else ""
        raise ConfigError(
            f"topic {topic.name} has cleanup.policy={policy}, it must be exactly"
            f" {topic.cleanup_policy}, or records that are needed would be deleted in time",
            remedy=f"alter the topic to cleanup.policy={topic.cleanup_policy}{elsewhere}",
        )
