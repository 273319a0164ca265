"""Would records run in a circle? Same-name cycles over the configs of all flows.

Flow: config of each flow's source connector -> flows that keep names -> names that may exist -> cycles. A flow
whose names carry their provenance stops cycles by itself. Patterns are tried on sample names and on those that
are known; two patterns that meet only in a name nobody has seen are not found.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mm2py.clock import SYSTEM_CLOCK
from mm2py.config.java_values import parse_list
from mm2py.errors import ConfigError
from mm2py.flows.connectors import enabled
from mm2py.mirror.filters import DEFAULT_TOPICS, topic_filter_from_config
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.topic_selection import TopicSelection
from mm2py.types import FlowName

__all__ = ["Cycle", "copies", "new_cycles", "same_name_cycles"]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_ANY: Final = ("mm2py-sample", "")
_REPEATS: Final = re.compile(r"(?:\.|\\[wdS]|\[[^\]]*\])(?:[*+?]|\{[^}]*\})?")
MOST_NAMES: Final = 5_000
"""Names tried at most: a change over REST must not hold up the event loop."""

MOST_S: Final = 0.5
"""For all names and patterns together: a pattern may need 0.1 s on each name before it is refused alone."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """Flows that hand ``topic`` round under the same name, in order."""

    flows: tuple[FlowName, ...]
    topic: str

    def __str__(self) -> str:
        return f"{', '.join(str(flow) for flow in self.flows)} (topic {self.topic})"


@dataclass(frozen=True, slots=True)
class _Edge:
    flow: FlowName
    selection: TopicSelection

    def carries(self, topic: str) -> bool:
        return self.selection.replicate(topic)


def same_name_cycles(
    configs: Mapping[FlowName, Mapping[str, str]], topics: Collection[str] = ()
) -> tuple[Cycle, ...]:
    """Return one cycle per set of flows that close one.

    Args:
        configs: the source connector's config of each flow.
        topics: names that are known to exist.

    Raises:
        ConfigError: a pattern, filter or policy cannot be used.
    """
    return _one_each(_circles(configs, _names([configs], topics)))


def new_cycles(
    before: Mapping[FlowName, Mapping[str, str]],
    after: Mapping[FlowName, Mapping[str, str]],
    topics: Collection[str] = (),
) -> tuple[Cycle, ...]:
    """Return the cycles that a change would close; those that were there before are not its fault."""
    names = _names([after, before], topics)
    wanted = _circles(after, names)
    if not wanted:
        return ()
    try:
        there = _circles(before, names)
    except ConfigError:
        there = {}
    return _one_each({key: cycle for key, cycle in wanted.items() if key not in there})


_Circles = dict[tuple[frozenset[FlowName], str], Cycle]


def _circles(configs: Mapping[FlowName, Mapping[str, str]], names: Collection[str]) -> _Circles:
    edges = [edge for flow, config in configs.items() if (edge := _edge(flow, config)) is not None]
    if not edges:
        return {}
    rings: dict[tuple[FlowName, ...], list[tuple[FlowName, ...]]] = {}
    found: _Circles = {}
    deadline = SYSTEM_CLOCK.monotonic() + MOST_S
    for topic in names:
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise ConfigError(
                f"the topic patterns of all flows need more than {MOST_S:g} s on {len(names)} names",
                remedy="write them without nested repetitions such as (a+)+",
            )
        carrying = tuple(edge.flow for edge in edges if edge.carries(topic))
        if carrying not in rings:
            rings[carrying] = list(_rings(carrying))
        for flows in rings[carrying]:
            found.setdefault((frozenset(flows), topic), Cycle(flows, topic))
    return found


def _one_each(circles: _Circles) -> tuple[Cycle, ...]:
    """Return the first topic of each set of flows."""
    found: dict[frozenset[FlowName], Cycle] = {}
    for (flows, _), cycle in circles.items():
        found.setdefault(flows, cycle)
    return tuple(found.values())


def copies(flow: FlowName, config: Mapping[str, str], topic: str) -> bool:
    """Tell whether a source connector with this config copies a topic; ``ConfigError``: it cannot be used."""
    aliased = {"source.cluster.alias": flow.source, "target.cluster.alias": flow.target, **config}
    return _selection(flow, aliased, heartbeats=True).replicate(topic)


def _selection(flow: FlowName, aliased: Mapping[str, str], *, heartbeats: bool) -> TopicSelection:
    return TopicSelection(
        policy_from_config(aliased),
        topic_filter_from_config(aliased),
        source_alias=flow.source,
        target_alias=flow.target,
        replicate_heartbeats=heartbeats,
    )


def _edge(flow: FlowName, config: Mapping[str, str]) -> _Edge | None:
    aliased = {"source.cluster.alias": flow.source, "target.cluster.alias": flow.target, **config}
    policy = policy_from_config(aliased)
    if policy.detects_cycles or not enabled(config):
        return None
    selection = _selection(flow, aliased, heartbeats=False)
    # An empty separator has no provenance either, but no name comes back the same.
    sample = _ANY[0]
    return _Edge(flow, selection) if policy.remote_topic(flow.source, sample) == sample else None


def _rings(flows: tuple[FlowName, ...]) -> Iterator[tuple[FlowName, ...]]:
    """Return every ring of flows once; each begins at its smallest cluster."""
    for start in sorted({flow.source for flow in flows}):
        paths: list[tuple[FlowName, ...]] = [(flow,) for flow in flows if flow.source == start]
        while paths:
            path = paths.pop()
            if path[-1].target == start:
                yield path
                continue
            visited = {flow.source for flow in path}
            paths += [
                (*path, flow)
                for flow in flows
                if flow.source == path[-1].target
                and flow.source not in visited
                and flow.target >= start
            ]


def _names(
    versions: Sequence[Mapping[FlowName, Mapping[str, str]]], topics: Collection[str]
) -> Collection[str]:
    samples: dict[str, None] = {_ANY[0]: None}
    for config in (config for version in versions for config in version.values()):
        for pattern in parse_list(config.get("topics", DEFAULT_TOPICS)):
            samples.update(dict.fromkeys(_samples(pattern)))
    samples.update(dict.fromkeys(sorted(topics)))
    return list(samples)[:MOST_NAMES]


def _samples(pattern: str) -> Iterator[str]:
    """Return names that a pattern is likely to mean; whether it does is asked of the filter."""
    for part in pattern.replace("(?:", "").replace("(", "").replace(")", "").split("|"):
        for filling in ("x", "0", *_ANY):
            name = _REPEATS.sub(filling, part.replace("\\.", "\0")).replace("\0", ".")
            name = name.strip("^$")
            if _NAME.fullmatch(name):
                yield name
