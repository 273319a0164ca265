"""Composition root: the one place that builds real objects from a properties file.

Flow: ``MirrorMakerConfig`` -> ``FlowPlan`` per flow -> ``flow_wiring`` -> ``DistributedHerder`` -> all of them in one
``MirrorMaker``. It decides nothing that a test would want to change: that is configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mm2py.clock import Clock
from mm2py.config.clients import connection_settings
from mm2py.config.definitions import parse_config
from mm2py.config.java_values import parse_boolean_leniently
from mm2py.config.mirror_maker import MirrorMakerConfig
from mm2py.config.override_policy import ALL_OVERRIDES
from mm2py.config.rest_settings import RestSettings
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.observability.loggers import ProcessLoggers
from mm2py.observability.logging import SecretMask
from mm2py.observability.metrics import Metrics
from mm2py.runtime.distributed_herder import DistributedHerder
from mm2py.runtime.mirror_maker import MirrorMaker
from mm2py.runtime.plugin_catalog import InstalledPlugins
from mm2py.runtime.plugins import Plugins
from mm2py.runtime.validation import ConfigValidator
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName
from mm2py_workers.flow_wiring import wire_flow
from mm2py_workers.host_wiring import PROCESSES, host_pool, host_processes
from mm2py_workers.node_parts import FlowPlan, NodeParts
from mm2py_workers.rest_node import RestNode, Served

__all__ = ["Node", "build_node"]

REST_STOP_S: Final = 1.0

_SOURCE: Final = "MirrorSourceConnector"
_REST_KEYS: Final = (
    "access.control.", "admin.listeners", "internal.listener", "listeners", "response.http.", "rest.",
    "ssl.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the dedicated mode: its flows, and REST over them."""

    maker: MirrorMaker
    rest: RestNode
    served: Served

    def start(self) -> None:
        """Launch every flow, and the first task host; returns at once."""
        if self.served.parts.pool is not None:
            self.served.parts.pool.start()
        self.maker.start()

    async def serve(self) -> None:
        """Open REST; the flows need not wait for it."""
        await self.rest.serve(self.served)

    async def stop(self, timeout_s: float) -> bool:
        """Stop every flow, then REST; False if a flow had to be cut off after ``timeout_s``."""
        clean = await self.maker.stop(timeout_s)
        await self.rest.stop(REST_STOP_S)
        if self.served.parts.pool is not None:
            await self.served.parts.pool.close()
        return clean


def build_node(
    config: MirrorMakerConfig,
    flows: tuple[FlowName, ...],
    *,
    metrics: Metrics,
    clock: Clock,
    mask: SecretMask,
    insecure: bool = False,
    plugins: Plugins | None = None,
) -> Node:
    """Build every flow; binds the internal listener and opens no connection.

    Raises:
        ConfigError: a derived config cannot be run, or a listener not be used.
    """
    found = plugins or Plugins()
    plans = {name: _derive(config, name, found) for name in flows}
    targets = [
        address
        for plan in plans.values()
        for address in connection_settings(
            plan.props, scope=f"worker of {plan.name}"
        ).bootstrap_servers
    ]
    rest = RestNode.bind(_rest_settings(config, insecure=insecure), targets)

    def file_texts(flow: FlowName | None, connector: str) -> Mapping[str, str]:
        plan = plans.get(flow) if flow is not None else None
        return {} if plan is None else plan.connectors.get(connector, {})

    pool = host_pool(host_processes(config.resolved(_texts(config, (PROCESSES,)))), clock)
    parts = NodeParts(
        url=rest.url,
        worker_id=rest.worker_id,
        plugins=found,
        catalog=InstalledPlugins(found),
        validator=ConfigValidator(
            found, resolve=lambda raw: _resolved(config, raw), policy=ALL_OVERRIDES, mask=mask
        ),
        loggers=ProcessLoggers(clock, None if pool is None else pool.set_level),
        mask=mask,
        peers=rest.peers,
        file_texts=file_texts,
        clock=clock,
        pool=pool,
    )
    wired = {name: wire_flow(plan, parts, metrics.flow(name)) for name, plan in plans.items()}
    herders = {name: DistributedHerder(flow.parts, clock=clock) for name, flow in wired.items()}
    served = Served(
        herders=dict(herders.items()),
        overrides={name: flow.overrides for name, flow in wired.items()},
        parts=parts,
    )
    return Node(MirrorMaker(herders), rest, served)


def _derive(config: MirrorMakerConfig, name: FlowName, plugins: Plugins) -> FlowPlan:
    props = config.worker_config(name)
    try:
        worker = parse_config(WorkerConfig, props)
    except ConfigError as error:
        raise ConfigError(
            f"{config.path}: flow {name}: {error.message}", remedy=error.remedy
        ) from None
    connectors = {
        connector: raw
        for connector, raw in config.connector_configs(name).items()
        # Connectors of later parts are named by ``later_parts`` and not started.
        if connector in plugins.names
    }
    restart = _resolved(config, connectors.get(_SOURCE, {})).get("task.auto.restart")
    return FlowPlan(
        name=name,
        props=props,
        worker=worker,
        connectors=connectors,
        resolve=lambda raw: _resolved(config, raw),
        auto_restart=parse_boolean_leniently(restart, absent=True),
    )


def _resolved(config: MirrorMakerConfig, raw: ConnectorConfig) -> dict[str, str]:
    return config.resolved({key: text for key, text in raw.items() if text is not None})


def _texts(config: MirrorMakerConfig, beginnings: tuple[str, ...]) -> dict[str, str]:
    return {key: it.text for key, it in config.raw.items() if key.startswith(beginnings)}


def _rest_settings(config: MirrorMakerConfig, *, insecure: bool) -> RestSettings:
    def origin(name: str) -> str:
        value = config.raw.get(name)
        return str(config.path) if value is None else f"{config.path}:{value.line}"

    return RestSettings.of_flow_file(
        config.resolved(_texts(config, _REST_KEYS)), insecure=insecure, origin=origin
    )
