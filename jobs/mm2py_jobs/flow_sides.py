"""Both clusters of a flow for bulk jobs: how to reach them, which topics are meant, and how the
copies are named.

Flow: resolved configs of MirrorSourceConnector and of the worker -> ``FlowSides`` -> client
properties that are sent to tasks, names of copies. Asks no cluster, and loads no more than a Spark
task needs.
"""

from collections.abc import Collection, Mapping
from typing import final

from mm2py.config.client_properties import effective_client_properties
from mm2py.config.clients import consumer_settings
from mm2py.errors import ConfigError
from mm2py.mirror.filters import TopicSelection
from mm2py.mirror.policies import naming
from mm2py.mirror.producer_ids import Suppression, suppression_of
from mm2py.types import FlowName


@final
class FlowSides:
    """A flow as bulk jobs see it.

    Args:
        flow: its name.
        connector: config of its MirrorSourceConnector, placeholders resolved; ``topics`` chooses
            them.
        worker: config of its worker: how the target is reached.
    """

    def __init__(
        self, flow: FlowName, connector: Mapping[str, str], worker: Mapping[str, str]
    ) -> None:
        self.flow = flow
        self.source = effective_client_properties(connector, "source", "consumer")
        self.target = dict(worker)
        self.names = naming(flow, connector)
        """The aliases that its copies and positions are named with."""
        settings = consumer_settings(self.source, scope=f"consumer of {flow}")
        self.suppresses_loops = suppression_of(connector) is not Suppression.OFF
        self.read_committed = settings.isolation_level == "read_committed"
        self.keeps_offsets = connector.get("offsets.identical", "").strip().lower() == "require"
        """Whether a copy must have the offset of its record."""
        self.selection = TopicSelection.of(flow, connector)
        self.chooses, self.copy_of = self.selection.replicate, self.selection.copy_of
        self.unlisted = self.selection.unlisted

    def chosen(self, topics: Mapping[str, object], hidden: Collection[str] = ()) -> list[str]:
        """Return the chosen ones of the source's topics; ``hidden`` are chosen ones that it does
        not list. ``ConfigError``: there are none."""
        names = sorted(name for name in topics if self.chooses(name))
        if not names and not hidden:
            raise ConfigError(
                f"{self.flow}: cluster {self.flow.source} has none of the topics that are meant",
                remedy="name them with --topics",
            )
        return names
