"""One flow under examination: its configs, both clusters, and what several checks want to know,
asked once.

Flow: ``Examined`` -> a check asks ``source_topics``, ``copies``, ``configs`` -> the clusters, at
the first question. What a side does not answer is its ``away`` text.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from enum import StrEnum
from typing import Final, Generic, Literal, NamedTuple, TypeVar, final

from mm2py.client.connect.admin import Admin, TopicDescription
from mm2py.client.connect.group_admin import GroupAdmin
from mm2py.client.pacing import RequestPace
from mm2py.clock import Clock
from mm2py.config.definitions import parse_config
from mm2py.config.java_values import parse_boolean_leniently
from mm2py.errors import ServerError
from mm2py.mirror.filters import config_property_filter_from_config
from mm2py.mirror.policies import naming, policy_from_config
from mm2py.observability.logging import some_of
from mm2py.protocol.configs import ConfigEntry
from mm2py.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED
from mm2py.protocol.topics import NewTopic
from mm2py.types import LONGEST_TOPIC_NAME, FlowName
from mm2py_connectors.config_sync import new_topic_configs
from mm2py_connectors.mirror_source_config import MirrorSourceConfig
from mm2py_jobs.flow_sides import FlowSides
from mm2py_workers.flow_parts import FlowPlan

T = TypeVar("T")
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

    def row(self, text: str, remedy: str = "") -> "Row":
        return Row(self, text, remedy)


class Row(NamedTuple):
    """What one check found: one thing, with its cause and the command that mends it."""

    level: Level
    text: str
    remedy: str


@final
class Once(Generic[T]):
    """A question that is asked once, also where several flows ask it at the same time; one that
    failed is asked again."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask, self._turn = ask, asyncio.Lock()
        self._answer: tuple[()] | tuple[T] = ()

    async def __call__(self) -> T:
        async with self._turn:
            if not self._answer:
                self._answer = (await self._ask(),)
            return self._answer[0]


@final
class OpenedSide:
    """One cluster as one or more flows see it; ``away`` is why it does not answer, empty where it
    does.

    What is not of one flow alone is asked once for all.
    """

    def __init__(self, alias: str, admin: Admin) -> None:
        self.alias, self.admin, self.away = alias, admin, ""
        self.topics = Once(admin.list_topics)
        self.groups = Once(GroupAdmin(admin.cluster).list_groups)
        self.quotas = Once(admin.client_quotas)
        self.commits = Once(admin.newest_commits)
        self.free_bytes = Once(admin.free_bytes)
        self.acls = Once(admin.describe_topic_acls)
        self.rights = Once(admin.cluster_rights)
        self.entries: dict[str, tuple[ConfigEntry, ...]] = {}
        """Configs of topics that were asked for."""

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
        checkpoints: that of its checkpoint connector; None where it has none.
        sides: both clusters.
        pace: turns of what a check asks over clients of its own.
    """

    def __init__(
        self,
        plan: FlowPlan,
        connector: Mapping[str, str],
        checkpoints: Mapping[str, str] | None,
        sides: Mapping[Side, OpenedSide],
        clock: Clock,
        pace: RequestPace,
    ) -> None:
        self.plan, self.connector, self.sides = plan, connector, sides
        self.has_checkpoints = checkpoints is not None
        self.of_groups = connector if checkpoints is None else checkpoints
        self.clock, self.pace = clock, pace
        self.config = parse_config(MirrorSourceConfig, connector)
        self.policy = policy_from_config(connector)
        self.names = FlowSides(plan.name, connector, plan.props)
        self.aliases = naming(plan.name, connector)
        """Those that name its copies."""

    @property
    def flow(self) -> FlowName:
        return self.plan.name

    @property
    def syncs_groups(self) -> bool:
        """Whether it writes the offsets of groups to the target."""
        return parse_boolean_leniently(
            self.of_groups.get("sync.group.offsets.enabled"), absent=False
        )

    @property
    def syncs_share_groups(self) -> bool:
        """The same of the start offsets of share groups."""
        chosen = self.of_groups.get("sync.share.group.offsets.enabled")
        return parse_boolean_leniently(chosen, absent=self.syncs_groups)

    async def topics(self, side: Side) -> Mapping[str, TopicDescription]:
        """Return the topics of a cluster that our principal may see."""
        return await self.sides[side].topics()

    async def chosen(self) -> dict[str, TopicDescription]:
        listed = await self.topics("source")
        return {name: listed[name] for name in sorted(listed) if self.names.chooses(name)}

    async def copies(self) -> dict[str, str]:
        """Return source topic to copy, of those copies that exist."""
        there = await self.topics("target")
        pairs = {topic: self.names.copy_of(topic) for topic in await self.chosen()}
        return {topic: copy for topic, copy in pairs.items() if copy in there}

    async def new_copies(self) -> dict[str, str]:
        """Return source topic to copy, of those copies that are yet to be created and can be."""
        there = await self.topics("target")
        pairs = {topic: self.names.copy_of(topic) for topic in await self.chosen()}
        return {
            topic: copy
            for topic, copy in pairs.items()
            if copy not in there and len(copy) <= LONGEST_TOPIC_NAME
        }

    async def new_topics(self) -> list[NewTopic]:
        """Return what the flow would create, without configs."""
        chosen, factor = await self.chosen(), self.config.replication_factor
        return [
            NewTopic(copy, len(chosen[topic].partitions), factor)
            for topic, copy in (await self.new_copies()).items()
        ]

    async def configs_of_new_copies(self) -> dict[str, dict[str, str]]:
        """Return what the copies that are yet to be created would have: what the source's topics
        set themselves over the defaults of the target.

        Nothing where the defaults are not known, because topics cannot be created or the brokers
        are too old to tell.
        """
        new = await self.new_topics()
        if not new:
            return {}
        try:
            defaults = await self.sides["target"].admin.new_topic_configs(new[0])
        except ServerError:
            return {}  # named by the check of new copies
        wanted = config_property_filter_from_config(self.connector)
        pairs = await self.new_copies()
        entries = await self.entries("source", pairs) if defaults else {}
        return {
            pairs[topic]: {**defaults, **new_topic_configs(of_topic, wanted)}
            for topic, of_topic in entries.items()
        }

    async def configs(self, side: Side, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the configs of topics, with the defaults of their cluster, as ``entries``."""
        return {
            name: {entry.name: entry.value or "" for entry in entries}
            for name, entries in (await self.entries(side, names)).items()
        }

    async def entries(
        self, side: Side, names: Collection[str]
    ) -> dict[str, tuple[ConfigEntry, ...]]:
        """Return the configs of topics with where each comes from; those that may not be read are
        left out, the check of rights names them. ``ServerError``: they cannot be read."""
        known = self.sides[side].entries
        unknown = [name for name in names if name not in known]
        answers = await self.sides[side].admin.read_topic_configs(unknown) if unknown else {}
        for name, answer in answers.items():
            if not isinstance(answer, ServerError):
                known[name] = answer
            elif answer.code != TOPIC_AUTHORIZATION_FAILED:
                raise answer
        return {name: known[name] for name in names if name in known}


def some(names: Collection[str]) -> str:
    """Name a few things and count the others."""
    return some_of(sorted(names), SHOWN)
