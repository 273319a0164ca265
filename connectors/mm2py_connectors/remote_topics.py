"""Source topics of a flow and their copies: found, created, grown, never deleted.

Flow: list both clusters -> what is chosen -> create or grow what is missing -> ``ready``
partitions, whose copy can be written, and ``waiting`` ones with their cause
(``MirrorSourceConnector.refreshTopicPartitions`` and ``computeAndCreateTopicPartitions``). Dealing
partitions to tasks is not done here.
"""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, final

from mm2py.api.policies import ConfigPropertyFilter, ReplicationPolicy
from mm2py.client.connect.admin import TopicDescription
from mm2py.clock import SLACK_S, Clock
from mm2py.config.java_regex import PatternList
from mm2py.errors import Mm2pyError, RetriableError, ServerError
from mm2py.mirror.filters import TopicSelection, is_internal_name, what_is_gone, why_returned
from mm2py.mirror.offset_checks import described_order
from mm2py.observability.logging import some_of
from mm2py.protocol import error_codes as codes
from mm2py.protocol.topics import NewTopic
from mm2py.types import TopicPartition
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import MirrorAdmin
from mm2py_connectors.config_sync import new_topic_configs
from mm2py_connectors.internal_topics import COLLISION, FORMER_SEPARATOR, OTHER_TOPIC, collides

log = logging.getLogger(__name__)
T = TypeVar("T")

_CHECKPOINTS: Final = re.compile(r"([._-]+)checkpoints\1internal")
TARGET_CHECK_S: Final = 30.0
"""How often the target is listed also without changes, to detect deleted copies."""

FEW_PARTITIONS: Final = 1_000
"""So many are listed in some milliseconds and 50 KB."""

CERTAIN_S: Final = 2.5
"""Two lists that leave out a topic are at least so far apart."""

LOGGED_TOPICS: Final = 10
"""Up to this many topics are named one by one."""

GONE_S: Final = 86_400.0
"""For so long a topic that is gone on the source is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTopics:
    """What decides about the topics of one flow."""

    selection: TopicSelection
    policy: ReplicationPolicy
    property_filter: ConfigPropertyFilter
    source_alias: str
    target_alias: str
    replication_factor: int
    wanted: Sequence[str] = ()
    """The value of ``topics``, where the default filter reads it."""

    def remote_topic(self, topic: str) -> str:
        return self.policy.remote_topic(self.source_alias, topic)


@final
class RemoteTopics:
    """Keeps the copies of one flow's topics in step with the source.

    Args:
        many_s: how often many topics are listed, and topics that the target refused are tried
            again; 0: at each ``refresh``.
        patience_s: for how long one ``refresh`` waits for creations, and for growth; what has no
            answer by then waits.
        looks: ``refresh.topics.enabled``: without it the source is listed once, and only copies
            that are missing are tried again.
    """

    def __init__(
        self,
        source: MirrorAdmin,
        target: MirrorAdmin,
        flow: FlowTopics,
        *,
        many_s: float,
        patience_s: float,
        looks: bool,
        clock: Clock,
    ) -> None:
        self._source_admin = source
        self._target_admin = target
        self._flow = flow
        self._many_s, self._patience_s, self._looks = many_s, patience_s, looks
        self._clock = clock
        self._listed: Mapping[str, TopicDescription] | None = None
        self._many = False
        self._source: dict[str, int] = {}
        self._remote: dict[str, int] = {}
        self._shrunk: dict[str, tuple[int, float]] = {}
        self._gone: dict[str, float] = {}
        self._absent: Sequence[str] = ()
        self._internal_copies: Sequence[str] = ()
        self._former_checkpoints: Sequence[str] = ()
        self._returned: Sequence[str] = ()
        self._left_out: Mapping[str, str] = {}
        self._next_list = self._next_target_check = -math.inf
        # Why copies could not be made that the target did not refuse; and what it says to have
        # though it does not list it.
        self._put_off = ""
        self._unseen: set[str] = set()
        self._refusals = ChangeLog(log, "remote topic cannot be created or grown, it waits")
        self._hidden = ChangeLog(log, "topic of the source is not visible, it is not copied")
        self._on_target: Collection[str] = ()

    @property
    def remote_topics(self) -> Mapping[str, str]:
        """Source topic to its copy, where that exists."""
        pairs = ((topic, self._flow.remote_topic(topic)) for topic in self._source)
        return {topic: remote for topic, remote in pairs if remote in self._remote}

    def ready(self) -> list[TopicPartition]:
        """Return the source partitions whose copy can be written, by topic and number."""
        return [
            # Up to the smaller of both counts: the copy may have to grow first.
            TopicPartition(topic, partition)
            for topic, count in self._source.items()
            for partition in range(min(count, self._copied(topic)))
        ]

    def waiting(self) -> Mapping[TopicPartition, str]:
        """Return the source partitions that have no copy yet, with the cause."""
        causes = self._refusals.entries
        return {
            TopicPartition(topic, partition): causes.get(
                self._flow.remote_topic(topic),
                self._put_off or "its remote topic is about to be created",
            )
            for topic, count in self._source.items()
            for partition in range(self._copied(topic), count)
        }

    @property
    def hidden(self) -> Mapping[str, str]:
        """Copied topics that may not be described any more, with the missing right."""
        return {it: cause for it, cause in self._hidden.entries.items() if it in self._gone}

    def notes(self) -> Mapping[str, str]:
        """Return what an operator may not expect: names of ``topics`` that the source lacks, topics
        that went away."""
        found: dict[str, str] = {}
        if all(map(self._flow.policy.is_heartbeats_topic, self._source)):
            selection = (
                f"topics={','.join(self._flow.wanted)}" if self._flow.wanted else "the filter"
            )
            found["topics"] = (
                f"{selection} matches no topic of the source that this principal may see"
            )
        elif self._absent:
            found["topics"] = (
                "not on the source, or not visible to this principal: "
                f"{some_of(self._absent, LOGGED_TOPICS)}"
            )
        if self._left_out:
            shown = [f"{name} ({reason})" for name, reason in self._left_out.items()]
            found["topics that are left out"] = some_of(shown, LOGGED_TOPICS)
        if self._internal_copies:
            found["copies of internal topics"] = (
                f"{some_of(self._internal_copies, LOGGED_TOPICS)}: an earlier version or Java "
                "copied them, they may hold the passwords of clusters and are not copied any more; "
                f"delete them on {self._flow.target_alias}"
            )
        if self._former_checkpoints:
            own = self._flow.policy.checkpoints_topic(self._flow.source_alias)
            found["checkpoints of another separator"] = (
                f"{some_of(self._former_checkpoints, LOGGED_TOPICS)} beside {own}: the separator "
                "was changed, and nothing writes them any more; delete them on "
                f"{self._flow.target_alias} when no client of MirrorClient reads them, or set "
                "replication.policy.separator back"
            )
        if self._returned:
            found["came from the source"] = self._why_returned()
        hidden = self._hidden.entries
        if former := [it for it in hidden if it not in self._gone]:
            found["not visible on the source"] = (
                f"{some_of(former, LOGGED_TOPICS)}: has a copy, of this flow or of another one: "
                f"{hidden[former[0]]}"
            )
        gone = [
            it
            for it, since in self._gone.items()
            if it not in self._source
            and it not in hidden
            and self._clock.monotonic() - since < GONE_S
        ]
        if gone:
            copies = {it: self._flow.remote_topic(it) for it in gone}
            found["gone on the source"] = what_is_gone(copies, LOGGED_TOPICS)
        return found

    def _why_returned(self) -> str:
        return why_returned(self._returned, self._flow.source_alias, LOGGED_TOPICS)

    async def refresh(self) -> bool:
        """List the source's topics, and the target's where they can matter, and create what is
        missing.

        What cannot be created now waits with the cause, and holds up neither other copies nor the
        start of the flow.

        Returns:
            Whether ``ready`` and ``waiting`` may have changed.

        Raises:
            RetriableError: A cluster cannot be listed now.
        """
        now = self._clock.monotonic()
        if now < self._next_list:
            return False
        looks = self._looks or self._listed is None
        if not looks and not self._missing():
            return False
        changed = looks and await self._list_source()
        self._next_list = now + (self._many_s - SLACK_S if self._many else 0)
        if not changed and now < self._next_target_check:
            return False
        self._next_target_check = now  # also where the target cannot be asked
        before, self._remote = self._remote, await self._list_target()
        problems: list[str] = []
        # Creation and growth each within the patience: a target that puts off one (quota, KIP-599)
        # must not keep the other waiting.
        existed = await self._tried(self._create_missing, problems) or ()
        if await self._tried(self._grow_short, problems) or existed:
            # Another client created or grew a topic: only the target knows its partitions.
            self._remote |= await self._list_target()
        await self._find_unseen(existed, before)
        await self._find_hidden()
        put_off, self._put_off = self._put_off, problems[0] if problems else ""
        if self._put_off not in ("", put_off):
            log.warning("remote topics cannot be created or grown now cause=%s", self._put_off)
        self._next_target_check = now + (
            self._many_s - SLACK_S if self._missing() else TARGET_CHECK_S
        )
        return True

    async def _tried(self, make: Callable[[], Awaitable[T]], problems: list[str]) -> T | None:
        """Create or grow within the patience; None, and one more problem, where it fails now."""
        try:
            async with asyncio.timeout(self._patience_s):
                return await make()
        except RetriableError as error:
            problem = str(error)
        except TimeoutError:
            problem = f"{self._flow.target_alias} has not answered within {self._patience_s:g} s"
        problems.append(f"{problem}; it is tried again at every refresh")
        return None

    async def _find_unseen(self, existed: Collection[str], before: Mapping[str, int]) -> None:
        """Keep copies that a list has left out though they exist; name those that no list has: at
        once where a right is missing, else unless they are a moment old."""
        unseen = {it for it in existed if it not in self._remote}
        self._remote |= {it: before[it] for it in unseen if it in before}
        unlisted = unseen - self._remote.keys()
        for remote, missing in (await self._unwritable(unlisted)).items():
            self._refusals.note(remote, f"{remote} exists, but not for this principal: {missing}")
            unlisted.remove(remote)
        for remote in unlisted & self._unseen:
            alias = self._flow.target_alias
            self._refusals.note(
                remote, f"{remote} exists on {alias}, but in no list: is {alias} deleting it? wait"
            )
        self._unseen = unseen

    async def _unwritable(self, copies: Collection[str]) -> Mapping[str, ServerError]:
        try:
            return await self._target_admin.unwritable(copies) if copies else {}
        except RetriableError as error:
            log.debug("it is not known why copies are not visible cause=%s", error)
            return {}

    async def _find_hidden(self) -> None:
        """Distinguish topics that may not be described from deleted ones: lists have neither."""
        copied = self._flow.selection.gone(self._listed or (), self._on_target)
        gone = {it for it in self._gone if it not in self._source} | copied.keys()
        denied: Mapping[str, ServerError] = {}
        try:
            if gone:
                denied = await self._source_admin.denied_topics(gone)
        except Mm2pyError as error:
            log.debug("it is not known which topics are gone cause=%s", error)
            return
        for topic in [it for it in self._hidden.entries if it not in denied]:
            self._hidden.clear(topic)
        for topic, missing in denied.items():
            self._hidden.note(topic, str(missing))

    def is_on_source(self, topic: str) -> bool:
        """Whether the last list of the source has a topic."""
        return topic in (self._listed or ())

    async def _list_source(self) -> bool:
        listed = await self._source_admin.list_topics()
        # The admin client returns the same object for an answer with the same bytes.
        if listed is self._listed and not self._shrunk:
            return False
        self._listed = listed
        self._many = sum(len(it.partitions) for it in listed.values()) > FEW_PARTITIONS
        self._flow.selection.learn(listed)
        partitions = {
            topic: len(listed[topic].partitions)
            # Java's order of partitions decides how they are dealt to tasks.
            for topic in described_order([*listed], self._flow.selection.replicate)
        }
        self._absent = _absent(self._flow.selection, listed)
        self._left_out = self._flow.selection.left_out(
            it.name for it in listed.values() if not it.internal
        )
        returned = self._flow.selection.returned(listed)
        if returned != self._returned:
            self._returned = returned
            if returned:
                log.warning("topics are left out: %s", self._why_returned())
        # Logged as gone, but not given up by one list alone.
        gone = self._keep_once(partitions)
        self._gone |= dict.fromkeys(gone, self._clock.monotonic())
        changed = partitions != self._source
        if changed:
            new = partitions.keys() - self._source.keys()
            log.info(
                "source topics changed topics=%d new=%d (%s) gone=%d (%s)",
                len(partitions),
                len(new),
                some_of(sorted(new), LOGGED_TOPICS),
                len(gone),
                some_of(sorted(gone), LOGGED_TOPICS),
            )
        self._source = partitions
        return changed

    def _keep_once(self, topics: dict[str, int]) -> set[str]:
        """Keep what one list leaves out, and return the topics that two lists left out,
        ``CERTAIN_S`` apart.

        A broker that just started may answer with an old list. And of a topic that was created
        again with fewer partitions, the task that has the others needs the time to put into the
        ledger what they lost.
        """
        less = {
            topic: topics.get(topic, 0)
            for topic, count in self._source.items()
            if topics.get(topic, 0) < count
        }
        now = self._clock.monotonic()
        since = {
            topic: self._shrunk[topic][1] if self._shrunk.get(topic, (-1,))[0] == count else now
            for topic, count in less.items()
        }
        certain = {topic for topic, began in since.items() if now - began >= CERTAIN_S}
        self._shrunk = {it: (less[it], began) for it, began in since.items() if it not in certain}
        topics |= {topic: self._source[topic] for topic in self._shrunk}
        return certain - topics.keys()

    async def _list_target(self) -> dict[str, int]:
        self._on_target = listed = await self._target_admin.list_topics()
        self._find_left_over(listed)
        partitions: dict[str, int] = {}
        for topic, count in self._source.items():
            remote = self._flow.remote_topic(topic)
            if remote in listed:
                partitions[remote] = len(listed[remote].partitions)
                if partitions[remote] >= count:
                    # It was created or grown meanwhile.
                    self._refusals.clear(remote)
        self._refusals.keep_only({self._flow.remote_topic(topic) for topic in self._source})
        return partitions

    def _find_left_over(self, listed: Collection[str]) -> None:
        """Find what earlier versions, Java or another separator left: names with their source."""
        flow, policy = self._flow, self._flow.policy
        self._internal_copies = sorted(
            it
            for it in listed
            if policy.topic_source(it) == flow.source_alias
            # A policy that keeps names says so of all: topics there are the flows' own.
            and (upstream := policy.upstream_topic(it)) not in (None, it)
            and is_internal_name(upstream)
        )
        own = policy.checkpoints_topic(flow.source_alias)
        self._former_checkpoints = sorted(
            it
            for it in listed
            if it.startswith(flow.source_alias)
            and it != own
            and _CHECKPOINTS.fullmatch(it.removeprefix(flow.source_alias))
        )

    def _copied(self, topic: str) -> int:
        return self._remote.get(self._flow.remote_topic(topic), 0)

    def _missing(self) -> bool:
        return any(self._copied(topic) < count for topic, count in self._source.items())

    async def _create_missing(self) -> Collection[str]:
        """Create topics; return those that existed already."""
        missing = [t for t in self._source if self._flow.remote_topic(t) not in self._remote]
        if not missing:
            return ()
        existed: list[str] = []
        request = await self._new_topics(missing)
        # KIP-599: THROTTLING_QUOTA_EXCEEDED of creations is tried again at the next refresh.
        results = await self._target_admin.create_topics(request, at_once=True)
        created: list[NewTopic] = []
        for topic in request:
            error = results.get(topic.name)
            if error is None:
                created.append(topic)
            # By another task, flow or client: its partitions are asked for.
            elif error.code == codes.TOPIC_ALREADY_EXISTS:
                existed.append(topic.name)
            else:
                self._refuse(topic.name, error)
        self._take(created)
        return existed

    async def _new_topics(self, topics: Sequence[str]) -> list[NewTopic]:
        """Return what to create; a topic whose configs may not be read waits alone."""
        new_topics: list[NewTopic] = []
        for topic, configs in (await self._configs(topics)).items():
            remote = self._flow.remote_topic(topic)
            if isinstance(configs, ServerError):
                self._refuse(remote, configs, reading=topic)
                continue
            new_topics.append(
                NewTopic(remote, self._source[topic], self._flow.replication_factor, configs)
            )
        return new_topics

    async def _configs(self, topics: Sequence[str]) -> dict[str, dict[str, str] | ServerError]:
        described = await self._source_admin.read_topic_configs(topics)
        property_filter = self._flow.property_filter
        configs: dict[str, dict[str, str] | ServerError] = {}
        for topic, answer in described.items():
            if isinstance(answer, RetriableError):
                raise answer
            if isinstance(answer, ServerError):
                configs[topic] = answer
            else:
                configs[topic] = new_topic_configs(answer, property_filter)
        return configs

    async def _grow_short(self) -> bool:
        """Grow topics to the source's partitions; whether it was done already."""
        short = {
            remote: count
            for topic, count in self._source.items()
            if 0 < self._remote.get(remote := self._flow.remote_topic(topic), 0) < count
        }
        already = False
        results = await self._target_admin.create_partitions(short, at_once=True)
        for remote, error in results.items():
            if error is None:
                log.info("remote topic grown topic=%s partitions=%d", remote, short[remote])
                self._remote[remote] = short[remote]
                self._refusals.clear(remote)
            # It has as many, or more: another program was faster.
            elif error.code == codes.INVALID_PARTITIONS:
                already = True
            else:
                self._refuse(remote, error)
        return already

    def _take(self, created: Collection[NewTopic]) -> None:
        for topic in created:
            self._remote[topic.name] = topic.partitions
            self._refusals.clear(topic.name)
            if len(created) <= LOGGED_TOPICS:
                log.info(
                    "remote topic created topic=%s partitions=%d replication_factor=%d cluster=%s",
                    topic.name,
                    topic.partitions,
                    topic.replication_factor,
                    self._flow.target_alias,
                )
        if len(created) > LOGGED_TOPICS:
            log.info(
                "remote topics created topics=%d cluster=%s", len(created), self._flow.target_alias
            )

    def _refuse(self, remote: str, error: ServerError, *, reading: str = "") -> None:
        if reading:
            problem = f"configs of {reading} on {self._flow.source_alias} cannot be read: {error}"
        elif error.code == codes.TOPIC_AUTHORIZATION_FAILED and error.remedy:
            problem = str(error)
        else:
            problem = f"{error.message} on {self._flow.target_alias}: {self._remedy(error)}"
        self._refusals.note(remote, problem)

    def _remedy(self, error: ServerError) -> str:
        code = error.code
        if collides(error):
            if self._flow.policy.detects_cycles:
                return COLLISION + FORMER_SEPARATOR
            # A copy that keeps the name has no separator in it.
            return OTHER_TOPIC
        if code == codes.POLICY_VIOLATION and "xcessively large" in error.message:
            return (
                "it has more partitions than a controller creates at once: create it by hand "
                "with 5,000, and add the others in steps"
            )
        if code == codes.INVALID_REPLICATION_FACTOR and self._flow.replication_factor < 1:
            return (
                "set replication.factor, or the brokers' default.replication.factor, which -1 "
                "stands for, to at most the number of brokers there"
            )
        if code == codes.INVALID_REPLICATION_FACTOR:
            return (
                f"set replication.factor (now {self._flow.replication_factor}) to at most the "
                "number of brokers there"
            )
        return _REMEDIES.get(code, "it is tried again at every refresh")


_REMEDIES: Final[Mapping[int, str]] = {
    codes.POLICY_VIOLATION: (
        "its create.topic.policy refuses the topic: adapt replication.factor, or name the config in"
        " config.properties.exclude"
    ),
    codes.INVALID_CONFIG: "name the config in config.properties.exclude, or change it at the "
    "source",
    codes.INVALID_TOPIC_EXCEPTION: (
        "its name is not possible there: change replication.policy.separator or the cluster alias, "
        "or name the topic in topics.exclude"
    ),
    codes.TOPIC_AUTHORIZATION_FAILED: "grant Create on the topic, or create it by hand",
    codes.CLUSTER_AUTHORIZATION_FAILED: "grant Create on the cluster, or create the topic by hand",
}


def _absent(selection: TopicSelection, listed: Collection[str]) -> Sequence[str]:
    """Return the names of ``topics`` that no topic has; a dot may also stand for any character."""
    return [
        name
        for name in selection.unlisted(listed)
        if "." not in name or not any(map(PatternList((name,)).matches, listed))
    ]
