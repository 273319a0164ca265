"""Names that routers of a flow give to its topics, as far as the config alone tells.

Flow: connector config -> ``topic_routes`` -> ``graph``: a router that takes the prefix of a replication policy away takes away what
tells copies from originals. A router that a predicate applies to some records of a topic, and one that goes by time, are not looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from mm2py.config.client_properties import with_prefix
from mm2py.config.java_regex import JavaPattern
from mm2py.config.java_values import parse_boolean_leniently, parse_list
from mm2py.errors import ConfigError

__all__ = ["TopicRoute", "renamed", "topic_routes"]

_PACKAGE: Final = "org.apache.kafka.connect.transforms."


@final
@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One RegexRouter; ``chosen``: names that it is applied to, None for all, or with ``negate`` all others."""

    pattern: JavaPattern
    replacement: str
    chosen: JavaPattern | None
    negate: bool

    def apply(self, topic: str) -> str:
        """Return the new name of a topic; empty where there is none, which each of its records will say."""
        try:
            if self.chosen is not None and self.chosen.matches(topic) is self.negate:
                return topic
            return self.pattern.replaced(topic, self.replacement) or topic
        except ConfigError:
            return ""


def topic_routes(config: Mapping[str, str]) -> Sequence[TopicRoute]:
    """Return the routers of a connector in their order.

    Raises:
        ConfigError: a pattern cannot be read.
    """
    found: list[TopicRoute] = []
    for alias in parse_list(config.get("transforms", "")):
        own = with_prefix(config, f"transforms.{alias}.")
        if own.get("type", "").strip().removeprefix(_PACKAGE) != "RegexRouter":
            continue
        chosen: JavaPattern | None = None
        if wanted := own.get("predicate", "").strip():
            predicate = with_prefix(config, f"predicates.{wanted}.")
            kind = predicate.get("type", "").strip().removeprefix(_PACKAGE)
            if kind.removeprefix("predicates.") != "TopicNameMatches":
                continue
            chosen = JavaPattern(predicate.get("pattern", ""))
        negate = parse_boolean_leniently(own.get("negate"), absent=False)
        pattern = JavaPattern(own.get("regex", ""))
        found.append(TopicRoute(pattern, own.get("replacement", ""), chosen, negate))
    return found


def renamed(topic: str, routes: Sequence[TopicRoute]) -> str:
    """Return the name of a topic behind all of them."""
    for route in routes:
        topic = route.apply(topic)
    return topic
