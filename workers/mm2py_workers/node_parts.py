"""What all flows of one process share, and what one flow is made from.

Flow: properties file -> ``FlowPlan`` per flow, ``NodeParts`` once -> ``flow_wiring``, ``rest_wiring``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mm2py.clock import Clock
from mm2py.config.worker import WorkerConfig
from mm2py.errors import ConfigError
from mm2py.runtime.herder.api import HerderNode, PeerClient
from mm2py.runtime.hosts.pool import HostPool
from mm2py.storage.config_state import ConnectorConfig
from mm2py.types import FlowName


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """One flow's configs: resolved for the worker, raw (placeholders kept) for the connectors.

    ``resolve`` replaces placeholders of a connector's or task's config. Without ``by_file`` only what people
    say over REST makes it a flow.
    """

    name: FlowName
    props: Mapping[str, str]
    worker: WorkerConfig
    connectors: Mapping[str, Mapping[str, str]]
    resolve: Callable[[ConnectorConfig], dict[str, str]]
    by_file: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts(HerderNode):
    """What a process adds to what its herders share; ``url`` is where other workers reach it.

    ``peers`` asks them. ``file_texts`` gives a connector's config as its file says it, which a remote config may repeat. Without a
    ``pool`` tasks live in this process.
    """

    url: str
    peers: Callable[[FlowName | None], PeerClient]
    file_texts: Callable[[FlowName | None, str], Mapping[str, str]]
    clock: Clock
    pool: HostPool | None = None

    def runnable(self, connector_class: str) -> bool:
        """Tell whether a connector class is installed here."""
        try:
            self.plugins.find(connector_class)
        except ConfigError:
            return False
        return True
