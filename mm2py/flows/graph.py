"""Would records run in a circle? Same-name cycles over the configs of all flows.

Flow: config of each flow's source connector -> flows that keep names -> names that may exist ->
cycles. A flow whose names carry their provenance, which no router takes away, stops cycles by
itself, and one that suppresses loops (``loop.suppression``), or whose transforms drop what the
other one marks, does not pass on what came from its target. Patterns are tried on sample names and
on those that are known; two patterns that meet only in an unknown name are not found.
"""

import asyncio
import logging
import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar, final

from mm2py.config.class_names import COPY_CONNECTORS, MIRROR_SINK_CONNECTOR, canonical_class
from mm2py.config.client_properties import with_prefix
from mm2py.config.java_values import parse_boolean_leniently, parse_list
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.errors import ConfigError, RetriableError
from mm2py.mirror.filters import TopicSelection
from mm2py.mirror.flow_state import enabled
from mm2py.mirror.policies import policy_from_config
from mm2py.mirror.producer_ids import Suppression, suppression_of
from mm2py.mirror.routed_names import SAMPLE, final_name, keeps_names, sample_names
from mm2py.runtime.errors import BadRequestError, ForbiddenError
from mm2py.runtime.herder.api import AskPeer
from mm2py.runtime.herder.herder import Herder
from mm2py.storage.config_state import ConnectorConfig, texts_of
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import ClusterAlias, FlowName

log = logging.getLogger(__name__)
_K = TypeVar("_K")

REFRESH_S: Final = 5.0
"""How long the other flows' topics may take to be read before a change is taken without them."""

MOST_NAMES: Final = 5_000
"""Names tried at most: a change over REST must not hold up the event loop."""

MOST_S: Final = 0.5
"""Of the processor, for all names and patterns together: a pattern may need 0.1 s on each name
before it is refused alone."""

CPU_S: Final[Callable[[], float]] = time.thread_time
"""Where the machine is busy with other things, that is no fault of patterns."""

QUICK_S: Final = 0.0002
"""What a name costs a flow whose patterns do not backtrack, at most; it is not counted."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """Flows that hand ``topic`` round under the same name, in order; ``by_group``: those of them
    that MirrorSink copies."""

    flows: tuple[FlowName, ...]
    topic: str
    by_group: tuple[FlowName, ...] = ()

    def __str__(self) -> str:
        return f"{_joined(self.flows)} (topic {self.topic})"

    @property
    def remedy(self) -> str:
        """What an operator can do; MirrorSink's copies do not show their writer, unless its
        transforms mark them."""
        start = (
            "exclude the topic in one of these flows, use a replication policy that renames "
            "topics, or"
        )
        if not self.by_group:
            return (
                f"{start} let each of them suppress loops (loop.suppression=on; all where three or "
                "more clusters are all connected)"
            )
        return (
            f"{start} set copy.connector=source for {_joined(self.by_group)} (loops are then "
            "suppressed); transforms that mark"
            " copies by a header and drop what is marked do as well (docs/reference/copying.md)"
        )


def _joined(flows: Collection[FlowName]) -> str:
    return ", ".join(map(str, flows))


_ROUTERS: Final = ("RegexRouter", "TimestampRouter")
_PACKAGES: Final = (
    "",
    "org.apache.kafka.connect.transforms",
    "org.apache.kafka.connect.transforms.predicates",
)


@dataclass(frozen=True, slots=True)
class HeaderMarks:
    """``put``: headers that each copy has; ``dropped``: headers whose records are not copied."""

    put: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()


def header_marks(config: Mapping[str, str]) -> HeaderMarks:
    """Read a connector's transforms in order; one that is not built in may remove any header."""
    put: set[str] = set()
    dropped: set[str] = set()
    removed: set[str] = set()
    knows_headers = True
    for alias in parse_list(config.get("transforms", "")):
        own = with_prefix(config, f"transforms.{alias}.")
        kind = _bare(own.get("type", ""))
        if kind == "InsertHeader":
            # With a predicate it marks some records alone.
            if not own.get("predicate", "").strip():
                put.add(own.get("header", "").strip())
        elif kind == "DropHeaders":
            removed.update(parse_list(own.get("headers", "")))
            put -= removed
        elif kind == "Filter":
            # A header that an earlier transform removes never reaches this predicate.
            header = _chosen_by(config, own)
            if header and header not in removed and knows_headers:
                dropped.add(header)
        elif kind not in _ROUTERS:
            # It may replace all headers: what was put before counts no more, what comes after does.
            put.clear()
            knows_headers = False
    return HeaderMarks(frozenset(put), frozenset(dropped))


def _chosen_by(config: Mapping[str, str], step: Mapping[str, str]) -> str:
    """Return the header whose records a step is applied to, empty where it is another choice."""
    alias = step.get("predicate", "").strip()
    predicate = with_prefix(config, f"predicates.{alias}.")
    negated = parse_boolean_leniently(step.get("negate"), absent=False)
    if negated or _bare(predicate.get("type", "")) != "HasHeaderKey":
        return ""
    return predicate.get("name", "").strip()


def _bare(class_name: str) -> str:
    package, _, name = class_name.strip().rpartition(".")
    return name if package in _PACKAGES else class_name


@dataclass(frozen=True, slots=True, eq=False)
class _Edge:
    flow: FlowName
    selection: TopicSelection
    suppression: Suppression
    marks: HeaderMarks
    by_group: bool
    final_name: Callable[[str], str] | None
    """Of a topic's copy, where its policy alone does not keep names."""

    def carries(self, topic: str) -> bool:
        if not self.selection.replicate(topic):
            return False
        return self.final_name is None or self.final_name(topic) == topic

    def is_as(self, other: "_Edge") -> bool:
        """Whether it is the same flow, and passes on what ``other`` does of a topic of both."""
        return (self.flow, self.suppression, self.marks) == (
            other.flow,
            other.suppression,
            other.marks,
        )

    def passes_on(self, before: "_Edge") -> bool:
        """Whether it copies what ``before`` wrote to its source."""
        if self.marks.dropped & before.marks.put:
            return False
        if before.suppression is Suppression.OFF or self.suppression is Suppression.OFF:
            return True  # the ids are not published, or nothing is dropped
        if self.suppression is Suppression.ALL:
            return False
        return before.flow.source != self.flow.target


Configs = Mapping[str, Mapping[str, str]]
"""Connector -> its config."""

Sources = Mapping[FlowName, Sequence[Mapping[str, str]]]
"""Flow -> configs of its source connectors."""


def source_configs(connectors: Configs) -> Sequence[Mapping[str, str]]:
    """Return the configs of those connectors that copy records."""
    return [
        config
        for config in connectors.values()
        if canonical_class(config.get("connector.class", "")) in COPY_CONNECTORS
    ]


def file_cycle(
    config: MirrorMakerConfig, resolve: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> Cycle | None:
    """Return a cycle of the flows that a file enables; ``resolve`` replaces the placeholders of a
    connector's config. ``ConfigError``: a pattern, filter or policy cannot be used."""
    return next(iter(new_cycles({}, _enabled_sources(config, resolve))), None)


class Meeting(NamedTuple):
    """Flows that write ``topic`` of their sources into one topic of their target."""

    flows: tuple[FlowName, ...]
    topic: str


def file_meetings(
    config: MirrorMakerConfig, resolve: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> Sequence[Meeting]:
    """Return the flows of a file that meet in a topic, once per target; arguments and errors as of
    ``file_cycle``.

    Only flows that keep names can meet.
    """
    sources = _enabled_sources(config, resolve)
    by_target: dict[ClusterAlias, list[_Edge]] = {}
    for flow, configs in sources.items():
        for it in configs:
            edge = _edge(flow, it)
            if edge is not None:
                by_target.setdefault(flow.target, []).append(edge)
    meetings: list[Meeting] = []
    for edges in by_target.values():
        names = _names([sources], ()) if len(edges) > 1 else ()
        for topic in names:
            flows = tuple(edge.flow for edge in edges if edge.carries(topic))
            if len(flows) > 1:
                meetings.append(Meeting(flows, topic))
                break
    return meetings


def _enabled_sources(
    config: MirrorMakerConfig, resolve: Callable[[Mapping[str, str]], Mapping[str, str]]
) -> Sources:
    return {
        pair: [resolve(it) for it in source_configs(config.connector_configs(pair))]
        for pair in config.enabled_pairs
    }


def new_cycles(before: Sources, after: Sources, topics: Collection[str] = ()) -> tuple[Cycle, ...]:
    """Return cycles that a change would close, one for each set of flows that meet in a topic;
    earlier ones are not its fault.

    Args:
        before: what is in force.
        after: what is to be.
        topics: names that are known to exist.

    Raises:
        ConfigError: a pattern, filter or policy cannot be used.
    """
    names = _names([after, before], topics)
    edges, circles, effort = _edges(after), dict[frozenset[FlowName], Cycle](), _Effort(len(names))
    old: Sequence[_Edge] = ()
    # A config in force may have become unusable; all cycles then count as new ones.
    with suppress(ConfigError):
        old = _edges(before)
    changed = [it for it in edges if before.get(it.flow) != after[it.flow]]
    former = [it for it in old if it.flow in {edge.flow for edge in changed}]
    cores: dict[Sequence[_Edge], Sequence[_Edge]] = {}
    rings: dict[tuple[Sequence[_Edge], Sequence[_Edge]], Sequence[_Edge]] = {}
    for topic in names:
        # Only what a changed flow begins to carry, or carries otherwise, can close a circle: the
        # others are not tried for the rest.
        carrying, was = effort.carrying(changed, topic), effort.carrying(former, topic)
        if all(any(it.is_as(edge) for edge in was) for it in carrying):
            continue
        if len(changed) < len(edges):
            carrying = effort.carrying(edges, topic)
        # Thousands of topics are carried by the same flows: one search for each set of flows.
        if carrying not in cores:
            cores[carrying] = _core(carrying)
        if not cores[carrying]:
            continue
        key = carrying, effort.carrying(old, topic)
        if key not in rings:
            rings[key] = _new_ring(cores[carrying], key[1])
        flows = tuple(edge.flow for edge in rings[key])
        by_group = tuple(edge.flow for edge in rings[key] if edge.by_group)
        if flows:
            circles.setdefault(frozenset(flows), Cycle(flows, topic, by_group))
    return tuple(circles.values())


def _edges(sources: Sources) -> Sequence[_Edge]:
    pairs = ((flow, config) for flow, configs in sources.items() for config in configs)
    return [edge for flow, config in pairs if (edge := _edge(flow, config)) is not None]


@final
class _Effort:
    """Bounds the time that patterns backtrack; many flows and names are no fault of theirs."""

    def __init__(self, names: int) -> None:
        self._names, self._spent_s = names, 0.0

    def carrying(self, edges: Sequence[_Edge], topic: str) -> tuple[_Edge, ...]:
        """Return the flows that carry a topic; ``ConfigError``: patterns have backtracked for too
        long, on this name and those before it."""
        carrying: list[_Edge] = []
        for edge in edges:
            began_s = CPU_S()
            if edge.carries(topic):
                carrying.append(edge)
            self._spent_s += max(0.0, CPU_S() - began_s - QUICK_S)
        if self._spent_s > MOST_S:
            raise ConfigError(
                f"the topic patterns of all flows need more than {MOST_S:g} s on {self._names} "
                "names",
                remedy="write them without nested repetitions such as (a+)+",
            )
        return tuple(carrying)


def copies(flow: FlowName, config: Mapping[str, str], topic: str) -> bool:
    """Return whether a source connector with this config copies a topic; ``ConfigError``: the
    config cannot be used."""
    aliased = {"source.cluster.alias": flow.source, "target.cluster.alias": flow.target, **config}
    return TopicSelection.of(flow, aliased, replicate_heartbeats=True).replicate(topic)


def chosen(flow: FlowName, config: Mapping[str, str], topics: Collection[str]) -> set[str]:
    """Return those of the source's topics that a source connector with this config copies;
    ``ConfigError``: it cannot be used."""
    if not enabled(config):
        return set()
    aliased = {"source.cluster.alias": flow.source, "target.cluster.alias": flow.target, **config}
    selection = TopicSelection.of(flow, aliased)
    selection.learn(topics)
    return {topic for topic in topics if selection.replicate(topic)}


def _edge(flow: FlowName, config: Mapping[str, str]) -> _Edge | None:
    aliased = {"source.cluster.alias": flow.source, "target.cluster.alias": flow.target, **config}
    policy = policy_from_config(aliased)
    if not enabled(config):
        return None
    by_group = canonical_class(config.get("connector.class", "")) == MIRROR_SINK_CONNECTOR
    named: Callable[[str], str] | None = None
    # An empty separator has no provenance either, but no name comes back the same.
    if (
        policy.detects_cycles
        or policy.remote_topic(aliased["source.cluster.alias"], SAMPLE) != SAMPLE
    ):
        if by_group or not keeps_names(aliased):  # a group's records are routed before the policy
            return None
        named = final_name(aliased)
    selection = TopicSelection.of(flow, aliased)
    marks = header_marks(config)
    return _Edge(flow, selection, suppression_of(aliased), marks, by_group, named)


def _new_ring(core: Sequence[_Edge], before: Sequence[_Edge]) -> Sequence[_Edge]:
    """Return one ring of a core, of flows that pass on what they get and did not all do so before,
    empty for none.

    It begins at its smallest cluster. One of many is enough to refuse a change: clusters that are
    all connected have more rings than can be listed. A cluster may be visited twice, by flows that
    stop some records and pass others on.
    """
    old, leaving = _by(before, lambda it: it.flow), _by(core, lambda it: it.flow.source)

    def is_new(first: _Edge, then: _Edge) -> bool:
        pairs = ((a, b) for a in old.get(first.flow, ()) for b in old.get(then.flow, ()))
        return not any(b.passes_on(a) for a, b in pairs)

    for first in sorted(core, key=lambda it: it.flow):
        # The shortest way from a new step after this flow back to it.
        came = {
            it: first
            for it in leaving[first.flow.target]
            if it.passes_on(first) and is_new(first, it)
        }
        ahead = list(came)
        # Breadth first: the list grows while it is walked, which Python's `for` follows.
        for edge in ahead:
            for it in leaving[edge.flow.target]:
                if it not in came and it.passes_on(edge):
                    came[it] = edge
                    ahead.append(it)
        if first in came:
            ring = [first]
            while (edge := came[ring[0]]) is not first:
                ring.insert(0, edge)
            start = min(range(len(ring)), key=lambda at: ring[at].flow.source)
            return (*ring[start:], *ring[:start])
    return ()


def _by(edges: Iterable[_Edge], key: Callable[[_Edge], _K]) -> Mapping[_K, Sequence[_Edge]]:
    found: dict[_K, list[_Edge]] = {}
    for edge in edges:
        found.setdefault(key(edge), []).append(edge)
    return found


def _core(edges: Sequence[_Edge]) -> Sequence[_Edge]:
    """Return the flows of all circles, and those between circles: what nothing passes on to, or
    that passes on to nothing, is in none."""
    left = edges
    while True:
        leaving, coming = _by(left, lambda it: it.flow.source), _by(left, lambda it: it.flow.target)
        kept = [
            edge
            for edge in left
            if any(it.passes_on(edge) for it in leaving.get(edge.flow.target, ()))
            and any(edge.passes_on(it) for it in coming.get(edge.flow.source, ()))
        ]
        if len(kept) == len(left):
            return kept
        left = kept


def _names(versions: Sequence[Sources], topics: Collection[str]) -> Collection[str]:
    samples: dict[str, None] = {SAMPLE: None}
    for config in (it for version in versions for configs in version.values() for it in configs):
        samples.update(dict.fromkeys(sample_names(config)))
    samples.update(dict.fromkeys(sorted(topics)))
    # Samples of the patterns come first: names of a large cluster must not crowd them out.
    return list(samples)[:MOST_NAMES]


_Connectors = Mapping[str, ConnectorConfig]
_Resolve = Callable[[ConnectorConfig], Mapping[str, str]]


def check_connectors(before: _Connectors, after: _Connectors, resolve: _Resolve = texts_of) -> None:
    """Refuse a change of an ordinary worker's connectors that closes a circle among them;
    ``resolve`` replaces placeholders. ``BadRequestError``: it does."""
    _refuse(new_cycles(_by_aliases(before, resolve), _by_aliases(after, resolve)))


def _by_aliases(connectors: _Connectors, resolve: _Resolve) -> Sources:
    """Group what copies records by the clusters that it names; what cannot be used as it is copies
    nothing."""
    by_flow: dict[FlowName, list[Mapping[str, str]]] = {}
    for config in connectors.values():
        if canonical_class(config.get("connector.class") or "") not in COPY_CONNECTORS:
            continue
        with suppress(ConfigError):
            texts = resolve(config)
            aliases = (
                texts.get("source.cluster.alias", ""),
                texts.get("target.cluster.alias", "target"),
            )
            flow = FlowName(*map(ClusterAlias, aliases))
            if _edge(flow, texts) is not None:
                by_flow.setdefault(flow, []).append(texts)
    return by_flow


def _refuse(cycles: Sequence[Cycle]) -> None:
    if cycles:
        raise BadRequestError(
            f"The change would copy records in a circle: {cycles[0]}; {cycles[0].remedy}"
        )


# -- the guard of every change ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FlowNode:
    """One flow on this node; ``peers`` asks its other members."""

    herder: Herder
    overrides: FlowOverridesStore
    peers: AskPeer


@final
class CircleGuard:
    """Refuses changes of one flow that would copy records in a circle; a ``ChangeGuard``.

    Args:
        flow: the flow that changes.
        nodes: all flows of this process, by name.
        elsewhere: source connectors' configs of flows that only other processes run.
        resolve: replaces the placeholders of a connector's config; ``ConfigError`` where one has no
            value.
        being_written: source connectors' configs of changes that are being written, by flow; shared
            by the guards of a process.
    """

    def __init__(
        self,
        flow: FlowName,
        nodes: Callable[[], Mapping[FlowName, FlowNode]],
        elsewhere: Sources,
        resolve: Callable[[Mapping[str, str]], Mapping[str, str]] = dict[str, str],
        being_written: MutableMapping[FlowName, Sequence[Mapping[str, str]]] | None = None,
    ) -> None:
        self._flow, self._nodes, self._elsewhere = flow, nodes, elsewhere
        self._resolve = resolve
        self._being_written: MutableMapping[FlowName, Sequence[Mapping[str, str]]]
        self._being_written = {} if being_written is None else being_written

    def check(self, before: Configs, after: Configs) -> None:
        """Raise ``BadRequestError`` for a closed circle, ``ConfigError`` for a bad pattern."""
        old, new = source_configs(before), source_configs(after)
        if old == new or not new:
            return
        # Only the flow that changes has to resolve: a placeholder without a value elsewhere is not
        # the fault of this change.
        others = {name: self._usable(it) for name, it in self._elsewhere.items()}
        topics: set[str] = set()
        for other, node in self._nodes().items():
            for name in node.herder.connectors():
                with suppress(ForbiddenError):  # topics are not tracked
                    topics.update(node.herder.topics(name))
            if other != self._flow:
                # Whether a change that is being written will be kept is not known: both count.
                configs = source_configs(node.overrides.effective())
                others[other] = self._usable((*configs, *self._being_written.get(other, ())))
        before_it = {**others, self._flow: self._usable(old)}
        after_it = {**others, self._flow: [self._resolve(it) for it in new]}
        _refuse(new_cycles(before_it, after_it, topics))

    @contextmanager
    def under_way(self, after: Configs) -> Generator[None]:
        self._being_written[self._flow] = source_configs(after)
        try:
            yield
        finally:
            del self._being_written[self._flow]

    def _usable(self, configs: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
        """Return resolved configs; what has a placeholder without a value cannot run here."""
        found: list[Mapping[str, str]] = []
        for config in configs:
            with suppress(ConfigError):
                found.append(self._resolve(config))
        return found

    async def refresh(self, before: Configs, after: Configs) -> bool:
        """Read the other flows' changes to their end where a circle is possible; whether to check
        again.

        Flows may have different leaders: two changes that are safe each may close a circle
        together.
        """
        new = source_configs(after)
        edges = (_edge(self._flow, it) for it in self._usable(new))
        if source_configs(before) == new or all(it is None for it in edges):
            return False
        others = [
            (name, node.overrides)
            for name, node in self._nodes().items()
            if name != self._flow and node.overrides.live
        ]
        results = await asyncio.gather(
            *(store.refresh(REFRESH_S) for _, store in others), return_exceptions=True
        )
        for (name, _), result in zip(others, results, strict=True):
            if isinstance(result, RetriableError):
                log.warning(
                    "changes of another flow cannot be read now, a circle with it may be missed"
                    " flow=%s other=%s cause=%s",
                    self._flow,
                    name,
                    result,
                )
            elif isinstance(result, BaseException):
                raise result
        return bool(others)
