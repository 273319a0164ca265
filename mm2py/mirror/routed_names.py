"""Names that the copies of a flow's topics have after its routers, as far as the config alone
shows.

Flow: connector config -> ``final_name`` -> ``keeps_names`` -> ``loop.suppression``, and the graph
of all flows: a router that takes the prefix of a replication policy away removes what identifies
copies. A router that a predicate applies to some records of a topic, and one that depends on time,
are not checked. Patterns are tried on sample names.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from mm2py.config.client_properties import with_prefix
from mm2py.config.definitions import parse_config
from mm2py.config.java_regex import JavaPattern
from mm2py.config.java_values import parse_boolean_leniently, parse_list
from mm2py.config.mirror_options import TopicFilterConfig
from mm2py.errors import ConfigError
from mm2py.mirror.policies import policy_from_config
from mm2py.types import is_topic_name

SAMPLE: Final = "mm2py-sample"
"""A name that any pattern for all topics takes."""

_REPEATS: Final = re.compile(r"(?:\.|\\[wdS]|\[[^\]]*\])(?:[*+?]|\{[^}]*\})?")
_PACKAGE: Final = "org.apache.kafka.connect.transforms."


@final
@dataclass(frozen=True, slots=True)
class _Route:
    """One RegexRouter; ``chosen``: names that it is applied to, None for all, or with ``negate``
    all others."""

    pattern: JavaPattern
    replacement: str
    chosen: JavaPattern | None
    negate: bool

    def apply(self, topic: str) -> str:
        """Return the new name of a topic; empty for none: each of its records fails then."""
        try:
            if self.chosen is not None and self.chosen.matches(topic) is self.negate:
                return topic
            renamed = self.pattern.replaced(topic, self.replacement)
        # A replacement with a group that the pattern lacks fails in Java when a record comes, not
        # at the start; here as well.
        except ConfigError:
            return ""
        return topic if renamed is None else renamed


def _routes(config: Mapping[str, str]) -> Sequence[_Route]:
    """Return the routers of a connector in their order; ``ConfigError``: a pattern cannot be
    read."""
    routes: list[_Route] = []
    for alias in parse_list(config.get("transforms", "")):
        own = with_prefix(config, f"transforms.{alias}.")
        # Other routers (TimestampRouter, a third party's) depend on the record: what they do to a
        # name is not known here.
        if own.get("type", "").strip().removeprefix(_PACKAGE) != "RegexRouter":
            continue
        chosen: JavaPattern | None = None
        if wanted := own.get("predicate", "").strip():
            predicate = with_prefix(config, f"predicates.{wanted}.")
            kind = predicate.get("type", "").strip().removeprefix(_PACKAGE)
            # Any other predicate sees the record; such a router may or may not apply, and counts as
            # absent.
            if kind.removeprefix("predicates.") != "TopicNameMatches":
                continue
            chosen = JavaPattern(predicate.get("pattern", ""))
        negate = parse_boolean_leniently(own.get("negate"), absent=False)
        pattern = JavaPattern(own.get("regex", ""))
        routes.append(_Route(pattern, own.get("replacement", ""), chosen, negate))
    return routes


def _renamed(topic: str, routes: Sequence[_Route]) -> str:
    for route in routes:
        topic = route.apply(topic)
    return topic


def final_name(config: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function for the name of a topic's copy, by policy and routers; ``config`` names the
    source's alias. ``ConfigError``: a pattern cannot be read, or there is no such policy."""
    policy, routes = policy_from_config(config), _routes(config)
    alias = config.get("source.cluster.alias", "")
    return lambda topic: _renamed(policy.remote_topic(alias, topic), routes)


def keeps_names(config: Mapping[str, str]) -> bool:
    """Whether routers give copies the names of what they are copies of; as ``final_name``."""
    # Without routers the policy alone decides, and that is asked elsewhere (``detects_cycles``).
    if not _routes(config):
        return False
    named = final_name(config)
    return any(named(name) == name for name in sample_names(config))


def sample_names(config: Mapping[str, str]) -> Iterator[str]:
    """Return names that the patterns of a flow are likely to mean; whether they do is asked of
    them. ``ConfigError``: a pattern of a router cannot be read."""
    for pattern in parse_config(TopicFilterConfig, config).topics:
        yield from _samples(pattern)
    routes = _routes(config)
    patterns = (it for route in routes for it in (route.pattern, route.chosen) if it is not None)
    yield from (
        _renamed(sample, routes) for pattern in patterns for sample in _samples(pattern.text)
    )


def _samples(pattern: str) -> Iterator[str]:
    # Not a generator of all matches: a few candidates by cheap rewriting, of which each is then
    # matched for real.
    for part in pattern.replace("(?:", "").replace("(", "").replace(")", "").split("|"):
        for filling in ("x", "0", SAMPLE, ""):
            name = _REPEATS.sub(filling, part.replace("\\.", "\0")).replace("\0", ".")
            name = name.strip("^$")
            if is_topic_name(name):
                yield name
