"""Reads the flows of this process: what ``/flows`` answers.

Flow: request -> herder, overrides and members of the flow -> views. Numbers of all members are the
leader's to collect: ``ForwardError`` elsewhere. ``flow_changes`` changes them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, final
from urllib.parse import urlsplit

from mm2py.api.policies import ReplicationPolicy
from mm2py.clock import Clock
from mm2py.config.class_names import COPY_CONNECTORS, MIRROR_CHECKPOINT_CONNECTOR, canonical_class
from mm2py.errors import ConfigError
from mm2py.flows.fleet import Since
from mm2py.flows.flow_ledger import KeptLedger
from mm2py.flows.flow_offsets import FlowOffsets, side_cluster, source_topics, stored_changes
from mm2py.flows.graph import FlowNode, source_configs
from mm2py.flows.states import ConnectorWork, assigned_now, picture_at, read_flow, unfinished_job
from mm2py.flows.view_models import (
    ClusterView,
    ConfigView,
    Direction,
    FlowView,
    ForecastView,
    GroupView,
    HistoryView,
    LedgerView,
    PartitionView,
    PropertyView,
    SampleView,
    TopicView,
    TranslationView,
)
from mm2py.flows.views import (
    CopyName,
    FlowMembers,
    flow_view,
    forecast_views,
    history_view,
    partition_views,
    sample_views,
    shown_value,
    topic_views,
)
from mm2py.mirror.backfills import JobKind
from mm2py.mirror.flow_overrides import OverrideEntry, Presence
from mm2py.mirror.flow_state import FlowState, enabled
from mm2py.mirror.policies import naming, policy_from_config
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowSample, NodeSnapshot
from mm2py.protocol.records import Record
from mm2py.runtime.errors import HerderError, NotFoundError
from mm2py.runtime.herder.api import Validator
from mm2py.storage.config_state import ConnectorConfig
from mm2py.storage.flow_overrides_store import ChangeGuard
from mm2py.types import FlowName, State, TopicPartition

MEMBER_S: Final = 2.0
"""How long a member may take to report what it copies; a longer time is an error of the flow."""
READS_AT_ONCE: Final = 2
"""Requests that read the clusters: each opens connections and reads internal topics."""
NO_TARGET: Final = "this worker runs no flow to it (--clusters): ask one that does"


class Fleet(Protocol):
    """The flows of this node; ``mm2py.flows.fleet.FlowFleet``."""

    @property
    def nodes(self) -> Mapping[FlowName, FlowNode]: ...

    @property
    def pairs(self) -> Collection[FlowName]: ...

    def file(self, flow: FlowName, /) -> Mapping[str, Mapping[str, str]]:
        """Return the connectors' configs of the file."""
        ...

    def since(self, flow: FlowName, state: str, /) -> Since:
        """Return since when a flow is shown in this state, as far as this node has seen."""
        ...

    def samples(self, flow: FlowName, /) -> Sequence[FlowSample]:
        """Return the sums of what this node copied of a flow in the last hour, the oldest first."""
        ...

    def resolve(self, config: Mapping[str, str], /) -> Mapping[str, str]:
        """Return a connector's config with its placeholders replaced."""
        ...

    def guard(self, flow: FlowName, /) -> ChangeGuard:
        """Return what every change of a flow has to pass."""
        ...

    async def open(self, flow: FlowName, /) -> FlowNode:
        """Return a flow of ``pairs``, started if it does not run yet."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowServiceParts:
    """What ``/flows`` needs.

    ``remote_refusal(flow, connector, properties)`` returns why properties are refused over REST;
    ``property_problem`` why a property would have no effect, empty where it has one; ``readers``
    names the connectors that a property is for, none where it is for all. ``source_topics`` lists a
    source; ``stored_changes`` reads what is kept of a flow that does not run here. ``changing`` is
    held by changes of a flow here and over Connect's paths.
    """

    fleet: Fleet
    validator: Validator
    mask: SecretMask
    clock: Clock
    remote_refusal: Callable[[FlowName | None, str, ConnectorConfig], str | None]
    property_problem: Callable[[str], str]
    readers: Callable[[str], Sequence[str]]
    source_topics: Callable[[FlowName, Mapping[str, str], Clock], Awaitable[Collection[str]]] = (
        source_topics
    )
    stored_changes: Callable[[FlowName, Mapping[str, str], Clock], Awaitable[Sequence[Record]]] = (
        stored_changes
    )
    changing: dict[FlowName | None, asyncio.Lock] = field(
        default_factory=dict[FlowName | None, asyncio.Lock]
    )


@final
class FlowService:
    """Reads the flows of this process."""

    def __init__(self, parts: FlowServiceParts) -> None:
        self._parts = parts
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._ledgers: dict[FlowName, KeptLedger] = {}

    def flows(self) -> Mapping[FlowName, FlowNode]:
        """Return the flows of this node by name, but for deleted ones."""
        nodes = self._parts.fleet.nodes
        return {flow: node for flow, node in nodes.items() if node.overrides.state.present}

    def clusters(self) -> list[ClusterView]:
        """Return the clusters between which flows may run here."""
        targets, sources = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for source, target in sorted(self._parts.fleet.pairs):
            targets[source].append(target)
            sources[target].append(source)
        return [
            ClusterView(
                alias=alias,
                targets=tuple(targets[alias]),
                sources=tuple(sources[alias]),
                note="" if sources[alias] else NO_TARGET,
            )
            for alias in sorted({*targets, *sources})
        ]

    def find(self, name: str) -> FlowName:
        """Return the flow that is written ``A->B``; ``NotFoundError``: there is none."""
        for flow, node in self._parts.fleet.nodes.items():
            if str(flow) == name and node.overrides.state.present:
                return flow
            if str(flow) == name and node.overrides.state.presence is Presence.DELETED:
                raise NotFoundError(
                    f"No flow {name}: it was deleted over REST; mm2py flow create '{name}' "
                    "brings it back"
                )
        flows = ", ".join(sorted(str(flow) for flow in self.flows())) or "none"
        raise NotFoundError(f"No flow {name}; flows of this worker: {flows}")

    # ---- groups and offsets, read from the clusters by whichever worker is asked

    async def translate(
        self, flow: FlowName, partition: TopicPartition, offset: int, direction: Direction
    ) -> TranslationView:
        """Return where an offset is on the other cluster; errors as of
        ``FlowOffsets.translate``."""
        async with self._reads, self._offsets(flow) as offsets:
            return await offsets.translate(partition, offset, direction)

    async def groups(self, flow: FlowName, most: int) -> list[GroupView]:
        """Return a flow's chosen groups; ``RetriableError`` while a cluster is unreachable."""
        async with self._reads, self._offsets(flow) as offsets:
            return await offsets.groups(None, most)

    async def group(self, flow: FlowName, name: str) -> GroupView:
        """Return one group of a flow's source; ``NotFoundError`` where there is none."""
        async with self._reads, self._offsets(flow) as offsets:
            return await offsets.group(name)

    async def ledger(self, flow: FlowName, most: int) -> LedgerView:
        """Return what a flow lost, stopped at or may have doubled; ``RetriableError`` while its
        target is unreachable."""
        config, _ = self._config_of(flow)
        cluster = side_cluster(config, "target", flow.target, self._parts.clock)
        kept = self._ledgers.setdefault(flow, KeptLedger(flow))
        async with self._reads, cluster as target:
            await kept.read(target)
            # Read as a whole for this answer, and not kept: the memory of a worker stays bounded.
            if not kept.has(most):
                kept = KeptLedger(flow, most)
                await kept.read(target)
        return kept.view(most, self._parts.mask.apply)

    def _offsets(self, flow: FlowName) -> FlowOffsets:
        config, has_checkpoints = self._config_of(flow)
        return FlowOffsets(flow, config, self._parts.clock, has_checkpoints=has_checkpoints)

    def _config_of(self, flow: FlowName) -> tuple[dict[str, str], bool]:
        """Return the resolved config of the checkpoint connector, else of the source connector, and
        whether there is the former."""
        herder = self._node(flow).herder
        work = read_flow(herder)
        by_class = {
            canonical_class(connector.info.config.get("connector.class") or ""): connector.name
            for connector in work.connectors
        }
        classes = (MIRROR_CHECKPOINT_CONNECTOR, *COPY_CONNECTORS)
        name = next((by_class[cls] for cls in classes if cls in by_class), None)
        # Configs that are not read yet are not missing: 503 is asked again, 404 is believed.
        if name is None and herder.not_ready:
            raise HerderError(f"Flow {flow} {herder.not_ready}", status=503)
        if name is None:
            raise NotFoundError(f"Flow {flow} has no connector that copies records or checkpoints")
        return herder.resolved_config(name), MIRROR_CHECKPOINT_CONNECTOR in by_class

    # ---- reading; numbers of all members are the leader's to collect

    async def describe(self, flow: FlowName) -> FlowView:
        """Return one flow; ``ForwardError`` where another worker leads it."""
        return self._view(flow, await self._members(flow))

    def describe_here(self, flow: FlowName, leader: str | None, reason: str) -> FlowView:
        """Return one flow with the numbers of this node alone, and why there are no others.

        ``leader`` is the URL of a leader that does not answer; None where it is not known, as in a
        rebalance.
        """
        here = replace(self._here(flow), incomplete=(f"leader {leader or 'unknown'}: {reason}",))
        return self._view(flow, replace(here, silent={leader: reason}) if leader else here)

    async def partitions(self, flow: FlowName, topic: str | None = None) -> list[PartitionView]:
        """Return all partitions, or one topic's; ``ForwardError`` where another worker leads."""
        members = await self._members(flow)
        return partition_views(flow, members, self._parts.mask, self._copy_name(flow), topic)

    async def stuck_tasks(self, flow: FlowName) -> frozenset[str]:
        """Return the tasks with a failed partition; ``ForwardError`` where another worker leads."""
        members = await self._members(flow)
        return frozenset(it.task for _, it in members.partitions() if it.state == State.FAILED)

    async def forecast(self, flow: FlowName) -> list[ForecastView]:
        """Return when retention overtakes which partitions; ``ForwardError`` where another worker
        leads the flow."""
        return forecast_views(flow, await self._members(flow), self._parts.clock.now_ms())

    def samples(self, flow: FlowName) -> list[SampleView]:
        """Return how this worker's part of a flow went in the last hour, the oldest first."""
        return sample_views(self._parts.fleet.samples(flow))

    async def topics(self, flow: FlowName) -> list[TopicView]:
        """Return lag and rates by topic; ``ForwardError`` where another worker leads the flow."""
        return topic_views(flow, await self._members(flow), self._copy_name(flow))

    def topics_here(self, flow: FlowName) -> list[TopicView]:
        """Return lag and rates by topic of this node alone."""
        return topic_views(flow, self._here(flow), self._copy_name(flow))

    def history(self, flow: FlowName) -> list[HistoryView]:
        """Return who changed what, newest first."""
        entries = self._node(flow).overrides.state.history()
        return [history_view(flow, it, self._parts.mask) for it in entries]

    def config(self, flow: FlowName, revision: int | None = None) -> list[ConfigView]:
        """Return every property in force, or that was after a revision, and where it comes from.

        Secrets are hidden. ``NotFoundError``: the history does not reach that revision.
        """
        node = self._node(flow)
        state = node.overrides.state
        if revision is not None:
            then = picture_at(flow, state, revision).configs
            return [self._config_view(state, name, then[name], {}) for name in sorted(then)]
        infos = (node.herder.info_now(name) for name in sorted(node.herder.connectors()))
        return [
            self._config_view(state, it.name, it.config, state.overrides(it.name))
            for it in infos
            if it is not None
        ]

    def _view(self, flow: FlowName, members: FlowMembers) -> FlowView:
        node = self._node(flow)
        work = read_flow(node.herder)
        policy = self._policy(flow, work.source)
        is_heartbeats = () if policy is None else (policy.is_heartbeats_topic,)
        view = flow_view(flow, work, members, node.overrides, self._parts.mask, *is_heartbeats)
        if not work.connectors and node.herder.not_ready:
            # The configs are not read yet: what the file wants.
            configs = source_configs(self._parts.fleet.file(flow))
            view = view.model_copy(update={"enabled": any(map(enabled, configs))})
        backfill = unfinished_job(node.herder)
        if backfill is not None and backfill.kind is JobKind.BACKFILL:
            kept = 0 if node.herder.backfills is None else len(node.herder.backfills.kept_out())
            note = (
                f"backfill {backfill.id} is {backfill.state.value}, it has its partitions "
                f"({kept}) whatever the state of the flow"
            )
            view = view.model_copy(update={"notes": (*view.notes, note)})
        since = self._parts.fleet.since(flow, view.state)
        return view.model_copy(update={"since_ms": since.at_ms, "pending": node.herder.pending})

    def _config_view(
        self,
        state: FlowState,
        name: str,
        config: ConnectorConfig,
        changed: Mapping[str, OverrideEntry],
    ) -> ConfigView:
        file, properties = state.file.get(name, {}), list[PropertyView]()
        for key in sorted({*config, *changed, *file}):
            entry = changed.get(key)
            properties.append(
                PropertyView(
                    key=key,
                    value=shown_value(key, config.get(key), self._parts.mask),
                    file_value=shown_value(key, file.get(key), self._parts.mask),
                    changed_by=None if entry is None else entry.revision.by,
                    changed_at_ms=None if entry is None else entry.revision.at_ms,
                    revision=None if entry is None else entry.revision.number,
                )
            )
        return ConfigView(connector=name, properties=tuple(properties))

    def _copy_name(self, flow: FlowName) -> CopyName:
        """Return how the flow's policy names copies: tasks report it with the first record only."""
        source = read_flow(self._node(flow).herder).source
        policy = self._policy(flow, source)
        if policy is None or source is None:
            return lambda _: None
        alias = naming(flow, self._node(flow).herder.resolved(source.info.config)).source
        return lambda topic: policy.remote_topic(alias, topic)

    def _policy(self, flow: FlowName, source: ConnectorWork | None) -> ReplicationPolicy | None:
        """Return the policy that names a flow's topics, None where that is not known."""
        if source is None:
            return None
        try:
            config = self._node(flow).herder.resolved(source.info.config)
            return policy_from_config({"source.cluster.alias": flow.source, **config})
        except ConfigError:
            return None

    def _here(self, flow: FlowName) -> FlowMembers:
        herder = self._node(flow).herder
        return FlowMembers(snapshots=(herder.node_snapshot(),), assigned=assigned_now(herder))

    async def _members(self, flow: FlowName) -> FlowMembers:
        herder, peers = self._node(flow).herder, self._node(flow).peers
        here = self._here(flow)
        if herder.failure is not None or herder.not_ready:
            return here
        urls = [url for url in herder.member_urls() if urlsplit(url).netloc != herder.worker_id]
        key = herder.session_key()
        # Members answer requests only that are signed with the group's session key (KIP-507).
        if key is None:
            return replace(here, incomplete=tuple(urls))

        async def ask(url: str) -> NodeSnapshot | str:
            try:
                async with asyncio.timeout(MEMBER_S):
                    return await peers(url, key)
            except TimeoutError:
                return f"no answer within {MEMBER_S:g} s"
            except HerderError as error:
                return error.message

        snapshots = {snapshot.worker: snapshot for snapshot in here.snapshots}
        silent: dict[str, str] = {}
        for url, answer in zip(urls, await asyncio.gather(*map(ask, urls)), strict=True):
            if isinstance(answer, str):
                silent[url] = answer
            else:
                snapshots.setdefault(answer.worker, answer)
        # Read again: who answered may have measured what was assigned meanwhile.
        return FlowMembers(
            snapshots=tuple(snapshots.values()),
            assigned=assigned_now(herder),
            incomplete=tuple(silent),
            silent=silent,
        )

    def _node(self, flow: FlowName) -> FlowNode:
        # Not by ``flows``: it looks at each flow, and all of them are described at once.
        node = self._parts.fleet.nodes.get(flow)
        if node is None or not node.overrides.state.present:
            raise NotFoundError(f"No flow {flow}")
        return node
