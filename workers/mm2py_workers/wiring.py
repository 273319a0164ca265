"""Composition root: the one place that builds real objects from a properties file.

Flow: ``MirrorMakerConfig`` -> ``FlowPlan`` per flow -> ``flow_parts.wire_flow`` -> ``Herder`` ->
all of them in one ``MirrorMaker``. It decides nothing that a test would want to change: that is
configuration.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, final

from mm2py.client.connect.admin import Admin
from mm2py.client.connect.cluster import Cluster
from mm2py.client.fetch.log_reader import LogReader
from mm2py.clock import Clock
from mm2py.config.catalog import Catalog
from mm2py.config.class_names import MIRROR_SOURCE_CONNECTOR, canonical_class
from mm2py.config.clients import ConnectionSettings, connection_settings
from mm2py.config.definitions import parse_config
from mm2py.config.lint_keys import property_problem
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.override_policy import ALL_OVERRIDES
from mm2py.config.rest_settings import RestSettings
from mm2py.config.secret_names import secrets_in
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError, Mm2pyError
from mm2py.flows.fleet import FleetParts, FlowFleet
from mm2py.flows.graph import Configs, file_cycle, source_configs
from mm2py.mirror.flow_overrides import FlowEntry, Presence, decode_flow_record, flows_topic
from mm2py.mirror.flow_state import enabled
from mm2py.mirror.producer_ids import LOOP_SUPPRESSION, Suppression, suppression_of
from mm2py.observability.loggers import ProcessLoggers
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import FlowMeter, Metrics
from mm2py.protocol.records import Record
from mm2py.runtime.group.request_signing import check_algorithms
from mm2py.runtime.herder.api import AskPeer
from mm2py.runtime.herder.herder import Herder
from mm2py.runtime.herder.mirror_maker import MirrorMaker
from mm2py.runtime.hosts.process import HostStarter
from mm2py.runtime.plugins.catalog import InstalledPlugins
from mm2py.runtime.plugins.plugins import Plugins
from mm2py.runtime.plugins.validation import ConfigValidator
from mm2py.storage.config_state import ConnectorConfig, texts_of
from mm2py.storage.flow_overrides_store import FlowOverridesStore
from mm2py.types import ClusterAlias, FlowName
from mm2py_workers.flow_parts import FlowPlan, NodeParts, wire_flow
from mm2py_workers.rest_node import RestNode
from mm2py_workers.served import Served
from mm2py_workers.task_host import PROCESSES, host_pool, host_processes, host_starter
from mm2py_workers.worker_place import WorkerPlace

log = logging.getLogger(__name__)

_LOOK_S: Final = 15.0
_FLOW_KEY: Final = b"flow"
REST_WAITS_S: Final = 5.0
"""Longest time that REST waits for the flows; a cluster may be away for hours."""


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the dedicated mode: its flows, and REST over them."""

    fleet: FlowFleet
    rest: RestNode
    served: Served
    watch: "FlowWatch"
    meters: tuple[FlowMeter, ...]
    clock: Clock
    place: WorkerPlace

    @property
    def maker(self) -> MirrorMaker:
        return self.fleet.maker

    def start(self) -> None:
        """Launch every flow, and the first task host; returns at once."""
        self.place.begin()
        if self.served.parts.pool is not None:
            self.served.parts.pool.start()
        self.fleet.start()

    async def serve(self) -> None:
        """Open REST when the flows have work: loading it takes the process most of a second."""
        # REST is served all the same: it shows why the flows do not begin.
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_WAITS_S):
                await asyncio.gather(*(meter.begun.wait() for meter in self.meters))
        await self.rest.serve(self.served)
        self.place.open(self.rest.public_urls)

    async def stop(self, timeout_s: float) -> bool:
        """Stop every flow, then REST; False if a flow had to be cut off after ``timeout_s``."""
        self.place.close()
        # Jobs of this process drain beside the flows, not after them.
        ending = asyncio.create_task(self.rest.close_jobs())
        clean = await self.fleet.stop(timeout_s)
        await ending
        await self.watch.close()
        # After the flows: health and status can be asked while they drain.
        await self.rest.stop()
        if self.served.parts.pool is not None:
            await self.served.parts.pool.close()
        return clean


def build_node(
    config: MirrorMakerConfig,
    *,
    metrics: Metrics,
    clock: Clock,
    mask: SecretMask,
    insecure: bool = False,
    targets: Collection[str] | None = None,
    starter: HostStarter | None = None,
) -> Node:
    """Build every flow; binds the internal listener and opens no connection.

    Args:
        config: the file.
        metrics: counts of all flows.
        clock: time.
        mask: gets secrets that are found later.
        insecure: ``--insecure``.
        targets: whose flows this process may run at all; None for all clusters. Those of the file
            begin at once.
        starter: of task hosts, forked already; None starts one when it is needed.

    Raises:
        ConfigError: a derived config cannot be run, or a listener not be used.
    """
    installed, flows = Plugins(), config.flows(targets)
    plans = _Plans(config, installed, flows, mask)
    addresses = [
        address
        for name in flows
        for address in connection_settings(
            plans.of(name).props, scope=f"worker of {name}"
        ).bootstrap_servers
    ]
    # Before any port is bound.
    cycle = file_cycle(config, plans.resolve)
    if cycle is not None:
        raise ConfigError(
            f"{config.path}: records would be copied in a circle: {cycle}", remedy=cycle.remedy
        )
    rest = RestNode.bind(RestSettings.of_config(config, insecure=insecure), addresses)

    pool = host_pool(processes_of(config), starter or host_starter(clock))
    parts = NodeParts(
        url=rest.url,
        worker_id=rest.worker_id,
        plugins=installed,
        catalog=InstalledPlugins(installed),
        validator=ConfigValidator(
            installed,
            resolve=lambda raw: _resolved(config, raw),
            policy=ALL_OVERRIDES,
            mask=mask,
            worker=plans.worker_of,
        ),
        loggers=ProcessLoggers(clock, None if pool is None else pool.set_level),
        mask=mask,
        peers=rest.peers,
        file_texts=plans.texts,
        clock=clock,
        pool=pool,
    )

    def build(name: FlowName) -> tuple[Herder, FlowOverridesStore, AskPeer]:
        wired, overrides = wire_flow(plans.of(name), parts, metrics.flow(name))
        mask.add(config.secrets)  # deriving resolves placeholders
        return Herder(wired, clock=clock), overrides, parts.peers(name)

    def changed(flow: FlowName) -> Configs | None:
        node = fleet.nodes.get(flow)
        return None if node is None else node.overrides.effective()

    watch = FlowWatch(plans.target, clock)
    pairs = {pair: None for pair in config.pairs if targets is None or pair.target in targets}
    fleet = FlowFleet(
        FleetParts(
            pairs=pairs,
            by_file=flows,
            build=build,
            file=lambda name: plans.of(name).connectors,
            added=watch.added,
            elsewhere={
                name: source_configs(plans.of(name).connectors)
                for name in config.enabled_pairs
                if name not in pairs
            },
            resolve=plans.resolve,
        ),
        clock=clock,
    )
    plans.changed = changed
    catalog = Catalog(config.definitions, config.option_names, config.clusters)
    served = Served(
        herders=fleet.herders,
        parts=parts,
        fleet=fleet,
        property_problem=lambda name: property_problem(catalog, name),
        readers=catalog.readers,
        file=Path(config.path),
    )
    meters = tuple(metrics.flow(name) for name in flows)
    return Node(fleet, rest, served, watch, meters, clock, WorkerPlace(config.path))


def processes_of(config: MirrorMakerConfig) -> int:
    """Return how many task hosts the file asks for, see ``host_processes``."""
    return host_processes(
        config.resolved({it: config.raw[it].text for it in (PROCESSES,) if it in config.raw})
    )


@final
class _Plans:
    """What the file makes of each pair of clusters, derived when it is asked for."""

    def __init__(
        self,
        config: MirrorMakerConfig,
        plugins: Plugins,
        by_file: Collection[FlowName],
        mask: SecretMask,
    ) -> None:
        self._config, self._plugins, self._by_file = config, plugins, by_file
        self._mask = mask
        self._plans: dict[FlowName, FlowPlan] = {}
        self.pairs = frozenset(config.pairs)
        self.changed: Callable[[FlowName], Configs | None] = lambda _: None
        """Returns the connectors in force of a flow of this process, None for others."""

    def of(self, name: FlowName) -> FlowPlan:
        """Return the plan of a pair; ``ConfigError``: it cannot be run."""
        plan = self._plans.get(name)
        if plan is None:
            derived = derive_plan(
                self._config,
                name,
                self._plugins,
                by_file=name in self._by_file,
                changed=self._changed,
            )
            resolve = partial(self._masked, derived.resolve)
            plan = self._plans[name] = replace(derived, resolve=resolve)
        return plan

    def _changed(self, flow: FlowName) -> Configs | None:
        return self.changed(flow)  # the flows are built of the plans

    def worker_of(self, connector: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the worker config of a connector config's flow; None where there is none."""
        aliases = (connector.get(f"{side}.cluster.alias", "") for side in ("source", "target"))
        name = FlowName(*map(ClusterAlias, aliases))
        return self.of(name).props if name in self.pairs else None

    def resolve(self, raw: ConnectorConfig) -> dict[str, str]:
        """Replace the placeholders of what runs; its secrets are hidden from then on."""
        return self._masked(partial(_resolved, self._config), raw)

    def _masked(
        self, resolve: Callable[[ConnectorConfig], dict[str, str]], raw: ConnectorConfig
    ) -> dict[str, str]:
        resolved = resolve(raw)
        self._mask.add(self._config.secrets | secrets_in(resolved))
        return resolved

    def texts(self, flow: FlowName | None, connector: str) -> Mapping[str, str]:
        """Return a connector's config as the file has it, empty where it has none."""
        if flow is None or flow not in self.pairs:
            return {}
        return self.of(flow).connectors.get(connector, {})

    def target(self, name: FlowName) -> ConnectionSettings:
        return connection_settings(self.of(name).props, scope=f"worker of {name}")


def derive_plan(
    config: MirrorMakerConfig,
    name: FlowName,
    plugins: Plugins,
    *,
    by_file: bool,
    changed: Callable[[FlowName], Configs | None] = lambda _: None,
) -> FlowPlan:
    """Derive what one flow is made from; ``by_file``: whether the file enables it; ``changed``:
    connectors in force, where not the file's. ``ConfigError``: it cannot be run."""
    props = config.worker_config(name)
    try:
        worker = parse_config(WorkerConfig, props)
        check_algorithms(
            worker.inter_worker_signature_algorithm, worker.inter_worker_verification_algorithms
        )
    except ConfigError as error:
        raise ConfigError(
            f"{config.path}: flow {name}: {error.message}", remedy=error.remedy
        ) from None
    connectors = {
        connector: raw
        for connector, raw in config.connector_configs(name).items()
        # What is not installed is not started.
        if connector in plugins.names
    }
    # What is between two flows and an endless circle is not left to what a cluster allows. It is no
    # part of the config that is published: a Java worker would write that again without it, and
    # start every task again.
    back = FlowName(name.target, name.source)

    def comes_back() -> bool:
        there = changed(back)
        if there is None:
            there = config.connector_configs(back) if config.flow_enabled(back) else {}
        try:
            return any(
                _is_auto(_resolved(config, it)) for it in source_configs(there) if _copies(it)
            )
        except ConfigError:
            return True  # it may run where it can be resolved

    def resolve(raw: ConnectorConfig) -> dict[str, str]:
        resolved = _resolved(config, raw)
        if _copies(resolved) and _is_auto(resolved) and comes_back():
            resolved[LOOP_SUPPRESSION] = Suppression.ON.value
        return resolved

    return FlowPlan(
        name=name,
        props=props,
        worker=worker,
        connectors=connectors,
        resolve=resolve,
        by_file=by_file,
    )


def _copies(connector: Mapping[str, str]) -> bool:
    is_source = canonical_class(connector.get("connector.class", "")) == MIRROR_SOURCE_CONNECTOR
    return is_source and enabled(connector)


def _is_auto(connector: Mapping[str, str]) -> bool:
    """Whether a connector copies under source names, and suppresses loops where it may."""
    return suppression_of(connector) is Suppression.AUTO


def _resolved(config: MirrorMakerConfig, raw: ConnectorConfig) -> dict[str, str]:
    return config.resolved(texts_of(raw))


@dataclass(slots=True)
class _Target:
    """One cluster, and what was read of the flows to it."""

    cluster: Cluster
    readers: dict[FlowName, LogReader] = field(default_factory=dict[FlowName, LogReader])
    added: set[FlowName] = field(default_factory=set[FlowName])


@final
class FlowWatch:
    """Looks for flows that were added on other nodes, or before this one was started.

    It keeps one connection per target that has pairs without a flow, and asks whether
    ``mm2py-flows.<source>.internal`` exists there; a look reads on from where the last one ended
    and creates nothing.
    """

    def __init__(self, settings: Callable[[FlowName], ConnectionSettings], clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._targets: dict[ClusterAlias, _Target] = {}
        self._silent: set[ClusterAlias] = set()

    async def added(self, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        """Return those of ``pairs`` that were added; none of a target that is unreachable."""
        by_target = defaultdict[ClusterAlias, list[FlowName]](list)
        for pair in pairs:
            by_target[pair.target].append(pair)
        counts = await asyncio.gather(*(self._at(*it) for it in by_target.items()))
        return [pair for part in counts for pair in part]

    async def close(self) -> None:
        for target in list(self._targets):
            await self._drop(target)

    async def _at(self, target: ClusterAlias, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        try:
            async with asyncio.timeout(_LOOK_S):
                descriptions = await self._look(target, pairs)
        except ConfigError:
            return ()  # a pair that cannot be run: reported when it is asked for
        except (Mm2pyError, TimeoutError) as error:
            # A connection in an unknown state is not asked again.
            await self._drop(target)
            if target not in self._silent:
                self._silent.add(target)
                # The flows of that cluster report it already.
                log.info(
                    "flows that were added cannot be looked for now target=%s cause=%s",
                    target,
                    error,
                )
            return ()
        self._silent.discard(target)
        return descriptions

    async def _look(self, target: ClusterAlias, pairs: Sequence[FlowName]) -> Collection[FlowName]:
        there = self._targets.get(target)
        if there is None:
            cluster = Cluster(self._settings(pairs[0]), alias=target, clock=self._clock)
            there = self._targets[target] = _Target(cluster)
            await cluster.connect()
        topics = {pair: flows_topic(pair.source) for pair in pairs}
        exist = await Admin(there.cluster).describe_topics(list(topics.values()))
        for pair, topic in topics.items():
            description = exist.get(topic)
            if description is not None and description.error is None:
                reader = there.readers.get(pair)
                if reader is None:
                    reader = LogReader(there.cluster, topic, clock=self._clock)
                    there.readers[pair] = reader
                await reader.read_to_end(_note(pair, there.added))
        return [pair for pair in pairs if pair in there.added]

    async def _drop(self, target: ClusterAlias) -> None:
        there = self._targets.pop(target, None)
        if there is not None:
            for reader in there.readers.values():
                await reader.close()
            await there.cluster.close()


def _note(pair: FlowName, added: set[FlowName]) -> Callable[[int, Record], None]:
    def handle(_partition: int, record: Record) -> None:
        if record.key != _FLOW_KEY:
            return
        entry = None if record.value is None else decode_flow_record(record.key, record.value)
        if isinstance(entry, FlowEntry) and entry.state is Presence.ADDED:
            added.add(pair)
        else:
            added.discard(pair)

    return handle
