"""Which topics, topic configs and groups are replicated: Java's default filters, and third
parties'.

Flow: connector config -> ``topic_filter_from_config`` / ``group_filter_from_config`` /
``config_property_filter_from_config`` -> yes or no per name. Excludes win; patterns match whole
names. ``TopicSelection`` is the complete decision on a topic, for data, configs and ACLs alike:
filter, heartbeats, internal names, cycles (``MirrorSourceConnector.shouldReplicateTopic``). Listing
topics is not done here.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, Self, TypeVar, cast, final

from mm2py.api.policies import ConfigPropertyFilter, GroupFilter, ReplicationPolicy, TopicFilter
from mm2py.config.class_names import (
    DEFAULT_CONFIG_PROPERTY_FILTER,
    DEFAULT_GROUP_FILTER,
    DEFAULT_TOPIC_FILTER,
    canonical_class,
)
from mm2py.config.definitions import parse_config
from mm2py.config.java_regex import PatternList
from mm2py.config.mirror_options import (
    ConfigPropertyFilterConfig,
    GroupFilterConfig,
    TopicFilterConfig,
)
from mm2py.errors import ConfigError
from mm2py.mirror.policies import build_plugin, naming, policy_from_config
from mm2py.observability.logging import some_of
from mm2py.types import FlowName

F = TypeVar("F")

_INTERNAL: Final = re.compile(
    r".*mm2-(?:configs|offsets|status)\..+\.internal|.*mm2-offset-syncs.+internal"
    r"|.*mm2py-(?:[a-z-]+\..+|producers)\.internal|.+([.-])checkpoints\1internal"
)
"""With any prefix: copies that a mirror with another separator made hold the same."""

_STORES: Final = re.compile(r"mm2-(?:configs|offsets|status)\.(.+)\.internal")
"""Connect's topics of a flow, on its target like its checkpoints; with the alias of the source."""

_CHECKPOINTS: Final = re.compile(r"([._-]+)checkpoints\1internal")


def is_internal_name(topic: str) -> bool:
    """Whether a name is that of a topic of MirrorMaker 2 or mm2py, whatever the separator of its
    flow.

    Checkpoints under other separators are known by aliases alone (``TopicSelection``): users have
    such names. Java names ``mm2-configs`` with dots whatever ``replication.policy.separator`` is,
    and recognises it by that separator: with another one it copies it, the passwords of both
    clusters included.
    """
    return _INTERNAL.fullmatch(topic) is not None


class DefaultTopicFilter:
    """``topics`` without ``topics.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        read = parse_config(TopicFilterConfig, config)
        self._include = _patterns("topics", read.topics)
        self._exclude = _patterns("topics.exclude", read.topics_exclude)
        self.names = self._include.names

    def should_replicate_topic(self, topic: str) -> bool:
        return self._include.matches(topic) and not self._exclude.matches(topic)

    def excludes(self, topic: str) -> bool:
        """Whether ``topics`` has it and ``topics.exclude`` leaves it out."""
        return self._include.matches(topic) and self._exclude.matches(topic)


class DefaultGroupFilter:
    """``groups`` without ``groups.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        read = parse_config(GroupFilterConfig, config)
        self._include = _patterns("groups", read.groups)
        self._exclude = _patterns("groups.exclude", read.groups_exclude)

    def should_replicate_group(self, group: str) -> bool:
        return self._include.matches(group) and not self._exclude.matches(group)


class DefaultConfigPropertyFilter:
    """Everything but ``config.properties.exclude``."""

    def __init__(self, config: Mapping[str, str]) -> None:
        read = parse_config(ConfigPropertyFilterConfig, config)
        self._exclude = _patterns("config.properties.exclude", read.config_properties_exclude)
        # Java compares the exact text; anything else means the target's defaults.
        self._source_defaults = read.use_defaults_from == "source"

    def should_replicate_config_property(self, name: str) -> bool:
        return not self._exclude.matches(name)

    def should_replicate_source_default(self, name: str) -> bool:
        return self._source_defaults


def topic_filter_from_config(config: Mapping[str, str]) -> TopicFilter:
    """Build the filter that ``topic.filter.class`` names; ``ConfigError`` if there is none."""
    name = parse_config(TopicFilterConfig, config).topic_filter_class
    names = "topic.filter.class", name, DEFAULT_TOPIC_FILTER
    return _filter(config, names, DefaultTopicFilter, "should_replicate_topic")


def group_filter_from_config(config: Mapping[str, str]) -> GroupFilter:
    """Build the filter that ``group.filter.class`` names; ``ConfigError`` if there is none."""
    name = parse_config(GroupFilterConfig, config).group_filter_class
    names = "group.filter.class", name, DEFAULT_GROUP_FILTER
    return _filter(config, names, DefaultGroupFilter, "should_replicate_group")


def config_property_filter_from_config(config: Mapping[str, str]) -> ConfigPropertyFilter:
    """Build the filter that ``config.property.filter.class`` names; ``ConfigError`` if none."""
    name = parse_config(ConfigPropertyFilterConfig, config).config_property_filter_class
    names = "config.property.filter.class", name, DEFAULT_CONFIG_PROPERTY_FILTER
    members = "should_replicate_config_property", "should_replicate_source_default"
    return _filter(config, names, DefaultConfigPropertyFilter, *members)


def _filter(
    config: Mapping[str, str],
    names: tuple[str, str, str],
    ours: Callable[[Mapping[str, str]], F],
    *members: str,
) -> F:
    """Build the filter that a property names; ``names``: the property, its value, Java's default,
    which is ``ours``."""
    key, given, default = names
    name, short = canonical_class(given), default.rpartition(".")[2]
    if name == default:
        return ours(config)
    return cast("F", build_plugin(name, key, config, members=members, built_in=(short,)))


def _patterns(name: str, items: tuple[str, ...]) -> PatternList:
    try:
        return PatternList(items)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}", remedy=error.remedy) from error


def why_returned(topics: Sequence[str], source: str, most: int) -> str:
    """Describe why ``TopicSelection.returned`` topics are not copied."""
    return (
        f"{some_of(topics, most)} of {source}: not copied (copies that were made before stay), "
        f"because the name says that it came from {source}, and a mirror whose file calls another "
        f"cluster {source} would feed this one for ever (KAFKA-9914); give each cluster one alias "
        "in all files, and topics that clients write other names"
    )


def what_is_gone(gone: Mapping[str, str], most: int) -> str:
    """Describe what happens to ``TopicSelection.gone`` topics."""
    copies = some_of([*gone.values()], most)
    return f"{some_of([*gone], most)}; not copied any more, copies stay: {copies}"


@final
class TopicSelection:
    """The decision for one flow."""

    def __init__(
        self,
        policy: ReplicationPolicy,
        topic_filter: TopicFilter,
        *,
        source_alias: str,
        target_alias: str,
        replicate_heartbeats: bool = True,
    ) -> None:
        self._policy = policy
        self._filter = topic_filter
        self._source_alias = source_alias
        self._target_alias = target_alias
        self._replicate_heartbeats = replicate_heartbeats
        # Grows with what ``learn`` finds; the flow's own two are always known.
        self._aliases = {source_alias, target_alias}

    @classmethod
    def of(
        cls, flow: FlowName, connector: Mapping[str, str], *, replicate_heartbeats: bool = False
    ) -> Self:
        """Build it for a flow by the config of its source connector; ``ConfigError``: it cannot be
        used."""
        names = naming(flow, connector)
        return cls(
            policy_from_config(connector),
            topic_filter_from_config(connector),
            source_alias=names.source,
            target_alias=names.target,
            replicate_heartbeats=replicate_heartbeats,
        )

    def copy_of(self, topic: str) -> str:
        return self._policy.remote_topic(self._source_alias, topic)

    def learn(self, listed: Iterable[str]) -> None:
        """Take the aliases of other flows from the topics of the source: the name of a mirror's
        topics is beside its checkpoints."""
        # ``mm2-configs.<source>.internal`` names the source of a mirror that writes to this
        # cluster.
        named = map(_STORES.fullmatch, listed)
        self._aliases.update(it[1] for it in named if it is not None)

    def replicate(self, topic: str) -> bool:
        return (
            self._chosen(topic)
            and not self.is_internal(topic)
            and not self.is_cycle(topic)
            and not self._feeds_itself(topic)
        )

    def is_internal(self, topic: str) -> bool:
        """Whether a topic is a mirror's own, or a copy of one: whatever the filter and the
        separator, it is never copied."""
        return self._policy.is_internal_topic(topic) or self._is_own(topic)

    def _is_own(self, topic: str) -> bool:
        return any(
            # Also the names before each hop: a copy of an internal topic, made by an older mirror,
            # is one too.
            is_internal_name(it) or self._is_checkpoints(it)
            for it in (topic, *self._originals(topic))
        )

    def _is_checkpoints(self, topic: str) -> bool:
        """Whether a topic has the checkpoints of one of the flow's clusters, or of a mirror's that
        writes to the source, under any separator."""
        return topic.endswith("internal") and any(
            topic.startswith(alias) and _CHECKPOINTS.fullmatch(topic.removeprefix(alias))
            for alias in self._aliases
        )

    def unlisted(self, listed: Collection[str], copied: Iterable[str] = ()) -> list[str]:
        """Return topics that are to be copied and that the source does not list: of those that
        ``topics`` names and of ``copied`` ones.

        They do not exist, or may not be described: brokers leave such topics out of their lists.
        """
        # Only Java's filter tells its literal names; a third party's is asked topic by topic.
        named = self._filter.names if isinstance(self._filter, DefaultTopicFilter) else ()
        return sorted(it for it in {*named, *copied}.difference(listed) if self.replicate(it))

    def left_out(self, listed: Iterable[str] = ()) -> Mapping[str, str]:
        """Return what can never be copied, with the reason: names of ``topics``, and of ``listed``
        what only looks like an internal topic."""
        chosen = self._filter
        named = chosen.names if isinstance(chosen, DefaultTopicFilter) else frozenset[str]()
        alike = {
            it
            for it in listed
            if self._policy.is_internal_topic(it) and self._chosen(it) and not self._is_own(it)
        }
        reasons = {it: self._why_never(it) for it in sorted(named | alike)}
        return {it: reason for it, reason in reasons.items() if reason}

    def _why_never(self, topic: str) -> str:
        chosen = self._filter
        if not self._chosen(topic):
            # A filter of a third party gives no reason.
            is_excluded = isinstance(chosen, DefaultTopicFilter) and chosen.excludes(topic)
            return "topics.exclude leaves it out" if is_excluded else ""
        if self._is_own(topic):
            return "it is the name of an internal topic of a mirror, and these are never copied"
        if self.is_internal(topic):
            return "a name that begins with . or __ is an internal topic's, as in Java"
        if self.is_cycle(topic):
            return "its name says that it came from a cluster of this flow"
        return ""

    def is_cycle(self, topic: str) -> bool:
        """Whether the target is anywhere in the topic's chain of sources, or the source itself
        (KAFKA-9914, as Kafka 4.4)."""
        return self._is_from_target(topic) or self._is_from_source(topic)

    def returned(self, topics: Iterable[str]) -> list[str]:
        """Return topics that are not copied only because their names carry the source as a hop."""
        return sorted(
            it
            for it in topics
            if self._is_from_source(it)
            # From the target it is a plain cycle, as in every release of Java: nothing to report.
            and not self._is_from_target(it)
            and not self._policy.is_heartbeats_topic(it)
            and not self._policy.is_internal_topic(it)
            and self._chosen(it)
        )

    def gone(self, listed: Collection[str], there: Iterable[str]) -> dict[str, str]:
        """Return source topics that are not ``listed`` any more though they are to be copied, with
        their copies among ``there``.

        A policy that keeps names does not distinguish copies from the target's topics: none is
        found.
        """
        found: dict[str, str] = {}
        for copy in there:
            # Another flow's copy, or the target's own topic; so are this flow's checkpoints, whose
            # name is that of a copy.
            if self._policy.topic_source(copy) != self._source_alias or self.is_internal(copy):
                continue
            topic = self._policy.upstream_topic(copy)
            if topic is None or topic in listed or self._policy.is_heartbeats_topic(topic):
                continue
            # The way back alone does not prove a copy: the name has to come out of the topic again.
            is_copy = topic != copy == self._policy.remote_topic(self._source_alias, topic)
            if is_copy and self.replicate(topic):
                found[topic] = copy
        return found

    def _is_from_target(self, topic: str) -> bool:
        return any(source == self._target_alias for source, _ in self._sources(topic))

    def _is_from_source(self, topic: str) -> bool:
        """Whether a hop is the flow's source: another flow, whose file has other aliases, brought
        the topic back.

        A policy that keeps names answers with the source for every topic: that is no hop.
        """
        return any(
            source == self._source_alias and upstream for source, upstream in self._sources(topic)
        )

    def _sources(self, topic: str) -> Iterator[tuple[str, str]]:
        """Return the aliases in a topic's name, the last hop first, each with the name before that
        hop, empty where it was the same."""
        seen, source = topic, self._policy.topic_source(topic)
        while source is not None:
            # A policy of a third party may answer with the same name for ever: that ends the chain.
            upstream = self._policy.upstream_topic(seen)
            if upstream is None or upstream == seen:
                yield source, ""
                return
            yield source, upstream
            seen, source = upstream, self._policy.topic_source(upstream)

    def _originals(self, topic: str) -> Iterator[str]:
        """Return a topic's names before each hop, the last one first."""
        return (upstream for _, upstream in self._sources(topic) if upstream)

    def _chosen(self, topic: str) -> bool:
        return self._filter.should_replicate_topic(topic) or (
            # As ``MirrorSourceConnector.shouldReplicateTopic``: heartbeats of any hop pass whatever
            # the filter says.
            self._replicate_heartbeats and self._policy.is_heartbeats_topic(topic)
        )

    def _feeds_itself(self, topic: str) -> bool:
        """Whether a heartbeats topic would be copied onto itself; unlike others it is copied
        whatever the filter selects."""
        if not self._policy.is_heartbeats_topic(topic):
            return False
        # Without provenance in names (empty separator and alias) two flows would copy one topic
        # back and forth.
        heartbeats = self._policy.heartbeats_topic()
        return (
            topic == heartbeats
            and self._policy.remote_topic(self._source_alias, topic) == heartbeats
        )
