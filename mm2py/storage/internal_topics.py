"""Internal topics: created with their cleanup policy by the first worker, checked by every one.

Flow: ``InternalTopic`` -> ``InternalTopics`` -> CreateTopics, then DescribeConfigs (Java:
``TopicAdmin``). It writes no records.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from mm2py.client.connect.admin import TopicDescription
from mm2py.clock import Clock
from mm2py.errors import ConfigError, FatalServerError, Mm2pyError, RetriableError, ServerError
from mm2py.protocol import error_codes as codes
from mm2py.protocol.acls import AclOperation
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.topics import NO_TOPIC_ID, NewTopic, is_another_topic

log = logging.getLogger(__name__)

COMPACT: Final = "compact"
POSITIONS: Final = "offset.storage"
STATES: Final = "status.storage"
VISIBLE_WITHIN_S: Final = 10.0
LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """One internal topic as the worker config asks for it.

    ``partitions`` and ``replication_factor`` of -1 mean the broker's default. ``purpose`` is the
    config prefix (``offset.storage``), named in messages; with ``renamable`` it has a property for
    the name.
    """

    name: str
    purpose: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    cleanup_policy: str = COMPACT
    renamable: bool = True
    ordered: bool = False
    """Whether it must have one partition."""


class TopicAdmin(Protocol):
    """The methods used of ``mm2py.client.connect.admin.Admin``."""

    async def create_topics(
        self, topics: Sequence[NewTopic]
    ) -> Mapping[str, ServerError | None]: ...
    async def describe_topics(
        self, names: Sequence[str], *, rights: Sequence[AclOperation] = ()
    ) -> Mapping[str, TopicDescription]: ...
    async def describe_topic_configs(
        self, names: Sequence[str]
    ) -> Mapping[str, Sequence[ConfigEntry]]: ...


@final
class InternalTopics:
    """One flow's internal topics on one cluster; all that are missing are made in one request."""

    def __init__(self, admin: TopicAdmin, *, clock: Clock) -> None:
        self._admin, self._clock = admin, clock
        self._topics: dict[str, InternalTopic] = {}
        self._partitions: dict[str, int] = {}
        self._ids: dict[str, bytes] = {}
        self._errors: dict[str, Exception] = {}
        self._hidden: set[str] = set()
        """Topics whose policy may not be read."""
        self._turn = asyncio.Lock()

    def add(self, topic: InternalTopic) -> None:
        """Name a topic that the flow will need."""
        self._topics[topic.name] = topic

    async def partitions(self, name: str) -> int:
        """Create what is missing of all topics, check them, and return one topic's number of
        partitions.

        Raises:
            ConfigError: this one exists with another cleanup policy, or the target refuses to
                create it.
            RetriableError: not now (too few brokers, no answer); a later call asks again.
        """
        # The stores of a flow start side by side: one of them creates and checks for all.
        async with self._turn:
            if name not in self._partitions and name not in self._errors:
                await self._ensure()
            if name in self._errors:
                # Raised once: the next call looks again, the operator may have repaired it.
                raise self._errors.pop(name)
            return self._partitions[name]

    async def restore(self, name: str) -> None:
        """Create a topic that was deleted since; raises as ``partitions``."""
        known = self._partitions.pop(name, 0)
        try:
            await self.partitions(name)
        finally:
            if known:  # one that cannot be created now is still in use (``unfit``)
                self._partitions.setdefault(name, known)

    async def unfit(self) -> Mapping[str, Mm2pyError]:
        """Return which topics may not be read or written, are gone since they were used, or are not
        as they must be any more; creates that of positions alone. ``RetriableError``: no answer."""
        used = [topic for topic in self._topics.values() if topic.name in self._partitions]
        rights = (AclOperation.WRITE, AclOperation.READ)
        descriptions = await self._admin.describe_topics([*self._topics], rights=rights)
        errors: dict[str, Mm2pyError] = {
            name: it.refused for name, it in descriptions.items() if it.refused is not None
        }
        asked = (descriptions.keys() & self._partitions.keys()) - self._hidden
        policies = await _policies(self._admin, sorted(asked))
        self._hidden |= asked - policies.keys()
        for topic in used:
            description = descriptions.get(topic.name)
            policy = policies.get(topic.name, topic.cleanup_policy)
            try:
                if description is None:
                    raise _gone(topic, "deleted")
                # Ours are written again by who uses them, states by the next state.
                is_kept = topic.renamable and topic.purpose != STATES
                if is_kept and is_another_topic(description.topic_id, self._ids[topic.name]):
                    raise _gone(topic, "deleted and created again")
                _checked(topic, description, policy)
            except RetriableError:
                continue  # its leader moves
            except Mm2pyError as error:
                errors[topic.name] = error
            # Tasks that commit in transactions wait for it: none of their posts is taken back.
            if description is None and topic.renamable and topic.purpose == POSITIONS:
                with suppress(Mm2pyError):  # named already
                    await self.restore(topic.name)
        return errors

    async def _ensure(self) -> None:
        wanted = [t for t in self._topics.values() if t.name not in self._partitions]
        # For the command that grants what is missing: to read implies to describe.
        rights = (AclOperation.READ,)
        names = [topic.name for topic in wanted]
        descriptions = dict(await self._admin.describe_topics(names, rights=rights))
        missing = [topic for topic in wanted if topic.name not in descriptions]
        if missing:
            self._errors |= await _create(self._admin, missing)
            made = [topic.name for topic in missing if topic.name not in self._errors]
            descriptions |= await self._visible(made)
        there = [topic for topic in wanted if topic.name in descriptions]
        policies = await _policies(self._admin, [topic.name for topic in there])
        for topic in wanted:
            if topic.name in self._errors:
                continue
            try:
                description = descriptions.get(topic.name)
                self._partitions[topic.name] = _checked(
                    topic, description, policies.get(topic.name)
                )
                # The first one: what was read is of it, also where a post has made another.
                self._ids.setdefault(
                    topic.name, NO_TOPIC_ID if description is None else description.topic_id
                )
            except Mm2pyError as error:
                self._errors[topic.name] = error

    async def _visible(self, names: Sequence[str]) -> Mapping[str, TopicDescription]:
        """Wait for topics that were just made: the asked broker may not know of them yet."""
        descriptions: dict[str, TopicDescription] = {}
        deadline = self._clock.monotonic() + VISIBLE_WITHIN_S
        # CreateTopics is answered by the controller; other brokers learn of the topic later.
        while left := [name for name in names if name not in descriptions]:
            descriptions |= await self._admin.describe_topics(left)
            if len(descriptions) == len(names) or self._clock.monotonic() >= deadline:
                break
            await self._clock.sleep(LOOK_EVERY_S)
        return descriptions


async def _create(admin: TopicAdmin, topics: Sequence[InternalTopic]) -> dict[str, Exception]:
    """Create topics in one request; return the errors of those that do not exist now."""
    answers = await admin.create_topics([_new(topic) for topic in topics])
    errors: dict[str, Exception] = {}
    created: list[InternalTopic] = []
    for topic in topics:
        error = answers.get(topic.name)
        if error is None:
            created.append(topic)
        # Another worker was faster; it is checked like one that was there.
        elif error.code != codes.TOPIC_ALREADY_EXISTS:
            errors[topic.name] = _refused(topic, error)
    if created:
        log.info("internal topics created topics=%s", ",".join(topic.name for topic in created))
    return errors


def _new(topic: InternalTopic) -> NewTopic:
    configs = {name: value for name, value in topic.configs.items() if name != "cleanup.policy"}
    if len(configs) != len(topic.configs):
        log.warning(
            "property is ignored, the topic needs another value property=%s.cleanup.policy "
            "needed=%s",
            topic.purpose,
            topic.cleanup_policy,
        )
    configs["cleanup.policy"] = topic.cleanup_policy
    return NewTopic(topic.name, topic.partitions, topic.replication_factor, configs)


def _refused(topic: InternalTopic, error: ServerError) -> Exception:
    if error.code == codes.INVALID_REPLICATION_FACTOR:
        # Connect retries this while the worker starts: brokers may still be on their way.
        return RetriableError(
            f"internal topic {topic.name} cannot be created: {error.message}",
            remedy=f"set {topic.purpose}.replication.factor to at most the number of brokers of the"
            " target, or start more brokers",
        )
    if isinstance(error, FatalServerError):
        return ConfigError(
            f"internal topic {topic.name} cannot be created on the target: {error.message}",
            remedy=f"create it by hand with cleanup.policy={topic.cleanup_policy}, or give this "
            f"user the right to: {error.remedy}",
        )
    return error


def _checked(topic: InternalTopic, description: TopicDescription | None, policy: str | None) -> int:
    """Return the number of partitions of a topic that can be used."""
    if description is None:
        raise RetriableError(f"internal topic {topic.name} is not visible on the target yet")
    if description.error is not None:
        raise _unusable(topic, description.refused or description.error)
    # No right to DescribeConfigs: Java continues likewise.
    if policy is None:
        log.warning("cleanup policy cannot be read and is not checked topic=%s", topic.name)
    # ``compact,delete`` as well: retention would delete the only record
    # of a key (Java's TopicAdmin.verifyTopicCleanupPolicyOnlyCompact).
    elif policy.replace(" ", "") != topic.cleanup_policy:
        elsewhere = f", or name another one in {topic.purpose}.topic" if topic.renamable else ""
        raise ConfigError(
            f"topic {topic.name} has cleanup.policy={policy}, it must be exactly"
            f" {topic.cleanup_policy}, or records that are needed would be deleted in time",
            remedy=f"alter the topic to cleanup.policy={topic.cleanup_policy}{elsewhere}",
        )
    if topic.ordered and len(description.partitions) != 1:
        raise ConfigError(
            f"topic {topic.name} has {len(description.partitions)} partitions, it must have "
            "exactly 1: the order of its records is the truth",
            remedy="name another topic in config.storage.topic"
            if topic.renamable
            else "delete the topic, it is created again (what it holds is lost)",
        )
    return len(description.partitions)


def _gone(topic: InternalTopic, what: str) -> ConfigError:
    return ConfigError(
        f"internal topic {topic.name} was {what}: workers that run still know what it held, those "
        "that are started do not",
        remedy="before a worker is restarted, see docs/guide/changes.md, An internal topic is gone",
    )


def _unusable(topic: InternalTopic, error: ServerError) -> Mm2pyError:
    if isinstance(error, RetriableError):
        return error
    return ConfigError(
        f"internal topic {topic.name} cannot be used on the target: {error.message}",
        remedy=f"give this user the rights to read and write it: {error.remedy}",
    )


async def _policies(admin: TopicAdmin, names: Sequence[str]) -> dict[str, str]:
    if not names:
        return {}
    try:
        configs = await admin.describe_topic_configs(names)
    except FatalServerError as error:
        if len(names) > 1:  # the refusal may be of one of them
            each = [await _policies(admin, [name]) for name in names]
            return {name: policy for policies in each for name, policy in policies.items()}
        log.info("cleanup policy may not be read topic=%s cause=%s", names[0], error)
        return {}
    return {
        name: entry.value
        for name, entries in configs.items()
        for entry in entries
        if entry.name == "cleanup.policy" and entry.value is not None
    }
