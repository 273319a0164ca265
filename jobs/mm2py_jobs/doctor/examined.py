"""One flow under examination: its configs, both clusters, and what several checks want to know, asked once.

Flow: ``Examined`` -> a check asks ``source_topics``, ``copies``, ``configs`` -> the clusters, at the first question. What a side does not
answer is its ``away`` text.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple, final

from mm2py.client.connect.admin import Admin, TopicDescription
from mm2py.client.connect.group_admin import GroupAdmin, GroupCatalog
from mm2py.clock import Clock
from mm2py.config.definitions import parse_config
from mm2py.mirror.policies import policy_from_config
from mm2py.observability.logging import some_of
from mm2py.protocol.configs import ConfigEntry
from mm2py.types import FlowName
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_jobs.flow_sides import FlowSides
from mm2py_workers.flow_parts import FlowPlan

Side = Literal["source", "target"]
SIDES: Final[tuple[Side, Side]] = ("source", "target")
SHOWN: Final = 5
"""Things of one kind that are named; the others are counted."""


class Level(StrEnum):
    """How bad it is; an error keeps something of the flow from working."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    ERROR = "error"


class Row(NamedTuple):
    """What one check found: one thing, with its cause and the command that mends it."""

    level: Level
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """One cluster; ``away`` is why it did not answer, empty where it did."""

    alias: str
    admin: Admin
    away: str = ""

    @property
    def servers(self) -> str:
        """For ``--bootstrap-server``."""
        return str(self.admin.cluster.settings.addresses)


@final
class Examined:
    """What the checks of one flow have; an answer is asked for once.

    Args:
        plan: of the flow's file.
        connector: config of its source connector in force, placeholders resolved.
        sides: both clusters.
    """

    def __init__(
        self,
        plan: FlowPlan,
        connector: Mapping[str, str],
        sides: Mapping[Side, Opened],
        clock: Clock,
    ) -> None:
        self.plan, self.connector, self.sides, self.clock = plan, connector, sides, clock
        self.config = parse_config(MirrorSourceConfig, connector)
        self.policy = policy_from_config(connector)
        self.names = FlowSides(plan.name, connector, plan.props)
        self._topics: dict[Side, Mapping[str, TopicDescription]] = {}
        self._configs: dict[Side, dict[str, tuple[ConfigEntry, ...]]] = {"source": {}, "target": {}}
        self._groups: dict[Side, GroupCatalog] = {}

    @property
    def flow(self) -> FlowName:
        """Its name."""
        return self.plan.name

    async def topics(self, side: Side) -> Mapping[str, TopicDescription]:
        """Return the topics of a cluster that our principal may see."""
        if side not in self._topics:
            self._topics[side] = await self.sides[side].admin.list_topics()
        return self._topics[side]

    async def chosen(self) -> dict[str, TopicDescription]:
        """Return the source topics that the flow copies, by name."""
        listed = await self.topics("source")
        return {name: listed[name] for name in sorted(listed) if self.names.chooses(name)}

    async def copies(self) -> dict[str, str]:
        """Return source topic to copy, of those copies that exist."""
        there = await self.topics("target")
        pairs = {topic: self.names.copy_of(topic) for topic in await self.chosen()}
        return {topic: copy for topic, copy in pairs.items() if copy in there}

    async def configs(self, side: Side, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the configs of topics, with the defaults of their cluster.

        Raises:
            ServerError: they may not be read.
        """
        return {
            name: {entry.name: entry.value or "" for entry in entries}
            for name, entries in (await self.entries(side, names)).items()
        }

    async def entries(
        self, side: Side, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...]]:
        """Return the configs of topics with where each comes from.

        Raises:
            ServerError: they may not be read.
        """
        known = self._configs[side]
        unknown = [name for name in names if name not in known]
        if unknown:
            known |= await self.sides[side].admin.describe_topic_configs(unknown)
        return {name: known[name] for name in names if name in known}

    async def groups(self, side: Side) -> GroupCatalog:
        """Return the groups of a cluster."""
        if side not in self._groups:
            self._groups[side] = await GroupAdmin(self.sides[side].admin.cluster).list_groups()
        return self._groups[side]


def some(names: Collection[str]) -> str:
    """Name a few things and count the others."""
    return some_of(sorted(names), SHOWN)
