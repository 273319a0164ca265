"""Committed offsets of the groups of one task, as they change at the source.

Flow: ``__consumer_offsets``, followed from its end where it may be read -> ``_take``; new groups,
what the log left open, and some groups a second in turn -> ``committed`` -> ``_apply`` ->
``take_changed``. Where the log may not be read, and for share groups, which are not in it, groups
that changed lately are asked every second and the others in turn.

Invariants (tests of the same names):

1. The log only moves an offset forward; one that goes back or is deleted is asked for.
2. A fetched offset does not replace one that was read from the log after the request was sent.
3. The number of groups asked per second is bounded, however many there are.
4. A group is forgotten only when a complete list of groups is without it.
5. A coordinator that does not answer delays the groups of others once.
6. Once the map of a partition has begun anew (its topic was created again), an offset counts there
   only if the coordinator was asked for it since: what was known, and what a log that is behind
   still brings, is of the former topic.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple, Protocol, final

from mm2py.api.context import TaskContext
from mm2py.clock import together, wait_or_stop
from mm2py.errors import Mm2pyError, ProtocolError, RetriableError, ServerError
from mm2py.protocol.consumer_offsets import (
    CONSUMER_OFFSETS,
    GroupCommit,
    decode_offset_commit,
    offsets_partition,
)
from mm2py.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from mm2py.protocol.groups import FetchedOffset
from mm2py.protocol.records import Record
from mm2py.protocol.schema import unsendable
from mm2py.types import TopicPartition
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import MirrorGroups, TopicLog

log = logging.getLogger(__name__)

LOG_REST_S: Final = 0.2
"""Between two answers with commits: bounds the requests for a busy log."""
LOG_RETRY_S: Final = 60.0
ROUND_S: Final = 1.0
SHORTEST_ROUND_S: Final = 0.2
LISTED_WITH_LOG_S: Final = 60.0
"""The log shows new groups itself; the list is for deleted ones and what the log could miss."""

LATELY_S: Final = 60.0
IN_TURN_WITH_LOG: Final = 20
CONSUMER_GROUP: Final = "group"
SHARE_GROUP: Final = "share group"


class Pace(NamedTuple):
    """How many groups are asked for in a round of about a second: new ones, those that changed
    lately, others in turn."""

    new: int
    lately: int
    in_turn: int


CONSUMER_PACE: Final = Pace(1_000, 500, 200)
SHARE_PACE: Final = Pace(100, 50, 50)
"""A start offset costs the broker about 1 ms: it reads the state of each partition."""

NOT_FOLLOWED: Final = (
    "commits are read by asking group by group (slower with thousands of "
    "groups): {} of {} cannot be followed: {}"
)
_REMEDIES: Final[Mapping[int, str]] = {
    TOPIC_AUTHORIZATION_FAILED: "; grant the mirror's principal READ and DESCRIBE on that topic "
    "to have them at once",
    UNKNOWN_TOPIC_OR_PARTITION: "; there is no such topic while the source has no consumer "
    "group: then nothing is to be done",
}


class Renewals(Protocol):
    """What is known of partitions whose topic was created again (``OffsetTranslator``)."""

    @property
    def renewals(self) -> int:
        """How many times the map of a partition has begun anew."""
        ...

    def renewed(self, source: TopicPartition, /) -> int: ...


@final
class GroupShare:
    """Which groups a task has: those in each ``tasks``-th partition of ``__consumer_offsets``.

    ``assigned`` are the groups that a Java worker, or one of before, has dealt to the task: it has
    these alone.
    """

    def __init__(
        self,
        accepts: Callable[[str], bool],
        *,
        index: int = 0,
        tasks: int = 1,
        partitions: int = 50,
        assigned: Collection[str] = (),
    ) -> None:
        self._accepts = accepts
        self._index, self._tasks, self._partitions = index, tasks, partitions
        self._assigned = frozenset(assigned)
        self._known: dict[str, bool] = {}

    def has(self, group: str) -> bool:
        known = self._known.get(group)
        if known is None:
            known = self._known[group] = self._decide(group)
        return known

    def is_chosen(self, group: str) -> bool:
        """Whether the filter lets a group through, whichever task has it."""
        return group in self._assigned if self._assigned else self._accepts(group)

    def reads(self, partition: int, count: int) -> bool:
        """Whether the task has groups in a partition of ``__consumer_offsets``."""
        if self._assigned:
            return any(offsets_partition(it, count) == partition for it in self._assigned)
        # The source has another ``offsets.topic.num.partitions`` than seen: read everything.
        return count != self._partitions or partition % self._tasks == self._index

    def renew(self) -> None:
        """Ask the filter again for each group: a plug-in may have changed its mind."""
        self._known.clear()

    def _decide(self, group: str) -> bool:
        if not self.is_chosen(group) or unsendable([group], "group"):
            return False
        if self._assigned:
            return True
        # Kafka's own hash: one coordinator's groups, and so one log partition, are one task's.
        return offsets_partition(group, self._partitions) % self._tasks == self._index


@final
class GroupWatch:
    """The groups of one task with their offsets in chosen topics.

    Args:
        source: the source's groups.
        commits: its ``__consumer_offsets``, for ``follow``; None for share groups.
        share: which groups the task has.
        is_chosen: whether a topic's offsets count.
        context: time and findings.
        on_change: called when there is something for ``take_changed``.
        renewals: of the flow's map.
        what: the kind of groups, for findings and logs.
        pace: how many are asked.
        kept: groups of before, that have checkpoints; those that the source has deleted since are
            gone, too.
    """

    def __init__(  # noqa: PLR0913 - one keyword per part
        self,
        source: MirrorGroups,
        commits: TopicLog | None,
        *,
        share: GroupShare,
        is_chosen: Callable[[str], bool],
        context: TaskContext,
        on_change: Callable[[], None],
        renewals: Renewals,
        what: str = CONSUMER_GROUP,
        pace: Pace = CONSUMER_PACE,
        kept: Collection[str] = (),
    ) -> None:
        self._source, self._commits, self._share = source, commits, share
        self._what, self._pace, self._renewals, self._kept = what, pace, renewals, kept
        self._topic_choice, self._topics = is_chosen, dict[str, bool]()
        self._context, self._clock, self._on_change = context, context.clock, on_change
        self._offsets: dict[str, dict[TopicPartition, FetchedOffset]] = {}
        self._groups_of: dict[TopicPartition, set[str]] = {}
        self._as_of: dict[str, int] = {}  # renewals when the group was asked last
        self._turns: dict[str, None] = {}  # known groups, the one asked longest ago first
        self._stale: dict[str, None] = {}  # to be asked as soon as possible
        self._lately: dict[str, float] = {}  # when a fetched offset was another one
        self._seen: dict[str, float] = {}  # when the log named a group last
        self._changed: dict[str, None] = {}
        self._gone: set[str] = set()
        self._refusals = ChangeLog(log, f"{what} offsets cannot be read", key="group")
        self._asked = set[str]()  # under way
        self._silent: dict[str, Mm2pyError] = {}  # groups whose coordinator did not answer
        self._follows = False
        self._wake = asyncio.Event()

    # -- what is known ------------------------------------------------------------------------

    def offsets(self, group: str) -> Mapping[TopicPartition, FetchedOffset]:
        """Return the committed offsets of a group in chosen topics."""
        return self._offsets.get(group, {})

    def groups_of(self, partition: TopicPartition) -> Collection[str]:
        """Return the groups that have an offset in a source partition."""
        return self._groups_of.get(partition, ())

    def groups_behind(self, moved: Mapping[TopicPartition, int]) -> Iterator[str]:
        """Return the groups with an offset at or after a source partition's given one."""
        for source, lowest in moved.items():
            for group in self.groups_of(source):
                known = self.offsets(group).get(source)
                if known is not None and known.offset >= lowest:
                    yield group

    def is_former(self, group: str, partition: TopicPartition) -> bool:
        """Whether the offset of a group in a source partition is of a topic that is gone; then it
        is forgotten and asked for (6)."""
        if self._renewals.renewed(partition) <= self._as_of.get(group, 0):
            return False
        if self._offsets.get(group, {}).pop(partition, None) is not None:
            self._leave(group, partition)
        self._ask_soon(group)
        return True

    def take_changed(self, most: int) -> list[str]:
        """Return groups that changed since they were last returned, at most ``most`` of them."""
        taken = list(islice(self._changed, most))
        for group in taken:
            del self._changed[group]
        return taken

    def put_back(self, groups: Iterable[str]) -> None:
        """Return these with the next changes again."""
        self._changed |= {group: None for group in groups if group in self._offsets}
        self._on_change()

    def take_gone(self) -> set[str]:
        """Return groups that exist no longer, once."""
        gone, self._gone = self._gone, set()
        return gone

    @property
    def has_changes(self) -> bool:
        return bool(self._changed or self._gone)

    # -- the log of commits -------------------------------------------------------------------

    async def follow(self) -> None:
        """Follow the source's commits until cancelled; retried where they may not be read."""
        while self._commits is not None:
            try:
                # From the end: what was committed before is asked of the coordinators.
                await self._commits.start_at_end(self._share.reads)
                self._log_trouble(None)
                await self._commits.tail(
                    self._take, on_trouble=self._log_trouble, rest_s=LOG_REST_S
                )
            except Mm2pyError as error:
                self._log_trouble(error)
            await self._clock.sleep(LOG_RETRY_S)

    def _log_trouble(self, error: Mm2pyError | None) -> None:
        if error is None:
            if not self._follows:
                # Whatever was committed before the log was followed has to be asked once.
                self._stale |= dict.fromkeys((*self._offsets, *self._asked))
            self._follows = True
            self._context.report_finding("commits", "", harms=False)
        else:
            self._follows = False
            text = NOT_FOLLOWED.format(CONSUMER_OFFSETS, "the source", error) + _remedy(error)
            self._context.report_finding("commits", text, harms=False)
        self._wake.set()

    def _take(self, _partition: int, record: Record) -> None:
        if record.key is None:
            return
        try:
            commit = decode_offset_commit(record.key, record.value)
        except ProtocolError as error:
            self._log_trouble(error)
            return
        if commit is not None and self._share.has(commit.group):
            self._seen[commit.group] = self._clock.monotonic()
            self._take_commit(commit)

    def _take_commit(self, commit: GroupCommit) -> None:
        group, tp, offset = commit
        known = self._offsets.get(group)
        if known is not None and not self._is_topic(tp.topic):
            return
        before = None if known is None else known.get(tp)
        if (
            known is None
            or offset is None
            # The log may still bring commits of the former topic.
            or self._renewals.renewed(tp)
            # Set back on purpose, or a commit that the log brings late: only the coordinator knows.
            or (before and offset.offset < before.offset)
        ):
            self._ask_soon(group)
        elif before is None or offset.offset > before.offset:
            known[tp] = offset
            self._groups_of.setdefault(tp, set()).add(group)
            self._note_changed(group)

    def _ask_soon(self, group: str) -> None:
        self._stale[group] = None
        self._wake.set()

    # -- asking -------------------------------------------------------------------------------

    async def ask(self, refresh_s: float) -> None:
        """Ask for groups and offsets until cancelled; without the log, list each ``refresh_s``."""
        await together(self._ask_all(refresh_s), self._ask_silent())

    async def _ask_silent(self) -> None:
        """Ask for groups again whose coordinator did not answer, beside the others (5)."""
        while True:
            await self._clock.sleep(ROUND_S)
            await self._ask(list(islice(self._silent, self._pace.new)))

    async def _ask_all(self, refresh_s: float) -> None:
        listed_at = float("-inf")
        while True:
            every_s = max(refresh_s, LISTED_WITH_LOG_S) if self._follows else refresh_s
            try:
                if self._clock.monotonic() - listed_at >= every_s:
                    listed_at = self._clock.monotonic()
                    await self._list()
                await self._ask(self._due())
            except Mm2pyError as error:
                listed_at = float("-inf")
                self._context.report_finding(
                    f"{self._what}s of the source", f"cannot be listed or asked: {error}"
                )
                await self._clock.sleep(ROUND_S)
            else:
                problem = next(iter(self._silent.values()), None)
                text = "" if problem is None else f"cannot be asked: {problem}"
                self._context.report_finding(f"{self._what}s of the source", text)
                await self._clock.sleep(SHORTEST_ROUND_S)
                if not self._stale:
                    self._wake.clear()
                    await wait_or_stop(self._clock, ROUND_S - SHORTEST_ROUND_S, self._wake)

    async def _list(self) -> None:
        catalog = await self._source.list_groups()
        self._share.renew()
        self._topics.clear()
        mine = [it for it in catalog.groups if self._share.has(it)]
        self._stale |= {it: None for it in mine if it not in self._offsets}
        # A broker that did not answer may have the groups that seem to be gone.
        if not catalog.missing:
            for group in {*self._offsets, *self._silent, *self._kept}.difference(mine):
                self._forget(group)
        self._report_unsendable(filter(self._share.is_chosen, catalog.groups))
        if self._what == CONSUMER_GROUP:
            self._report_choice(catalog.groups.keys())

    def _report_unsendable(self, chosen: Iterable[str]) -> None:
        reasons = unsendable(chosen, "group")
        text = ""
        if reasons:
            group, cause = next(iter(reasons.items()))
            text = f"{len(reasons)} {self._what}s are not synced, such as {group!r}: {cause}"
        topic = f"{self._what}s without a usable name"
        self._context.report_finding(topic, text, count=len(reasons), harms=False)

    def _report_choice(self, listed: Collection[str]) -> None:
        chosen = any(map(self._share.is_chosen, listed))
        text = (
            f"groups and groups.exclude let none of the {len(listed)} consumer groups of the "
            f"source through, such as {min(listed)!r}: name those that are to fail over in groups"
            if listed and not chosen
            else ""
        )
        self._context.report_finding("group filter", text, harms=False)

    def _due(self) -> list[str]:
        """Return the groups to ask in this round (3)."""

        def first(groups: Iterable[str], most: int) -> dict[str, None]:
            return dict.fromkeys(islice((it for it in groups if it not in self._silent), most))

        due = first(self._stale, self._pace.new)
        if not self._follows:
            since = self._clock.monotonic() - LATELY_S
            self._lately = {it: at for it, at in self._lately.items() if at >= since}
            due |= first(self._lately, self._pace.lately)
        due |= first(self._turns, IN_TURN_WITH_LOG if self._follows else self._pace.in_turn)
        return list(due)

    async def _ask(self, groups: Collection[str]) -> None:
        if not groups:
            return
        began, as_of = self._clock.monotonic(), self._renewals.renewals
        for group in groups:
            self._stale.pop(group, None)
        self._asked.update(groups)
        silent = self._silent.keys() & groups
        answers = await self._source.committed(groups)
        self._asked.difference_update(groups)
        for group in groups:
            if self._silent.pop(group, None) is None and group in silent:
                continue  # it was forgotten meanwhile
            answer = answers.get(group, {})
            self._turns.pop(group, None)
            self._turns[group] = None
            if isinstance(answer, RetriableError):
                self._silent[group] = answer
            elif isinstance(answer, Mm2pyError):
                self._refusals.note(group, str(answer))
                self._offsets.setdefault(group, {})
            elif group in self._offsets and self._seen.get(group, began - 1) >= began:
                self._stale[group] = None  # (2)
            else:
                self._refusals.clear(group)
                self._as_of[group] = as_of
                self._apply(group, answer)
        self._report_refusals()

    def _report_refusals(self) -> None:
        refused = self._refusals.entries
        text = ""
        if refused:
            group, cause = next(iter(refused.items()))
            count = len(refused)
            text = (
                f"the offsets of {count} {self._what}s cannot be read, such as {group!r}: {cause}"
            )
        self._context.report_finding(f"{self._what}s not read", text, count=len(refused))

    def _apply(self, group: str, fetched: Mapping[TopicPartition, FetchedOffset]) -> None:
        now = {tp: it for tp, it in fetched.items() if self._is_topic(tp.topic)}
        before = self._offsets.get(group)
        self._offsets[group] = now
        for tp in (before or {}).keys() - now.keys():
            self._leave(group, tp)
        for tp in now:
            self._groups_of.setdefault(tp, set()).add(group)
        if now != before and (now or before):
            if before is not None:
                self._lately[group] = self._clock.monotonic()
            self._note_changed(group)

    def _forget(self, group: str) -> None:
        for tp in self._offsets.pop(group, ()):
            self._leave(group, tp)
        for known in (
            self._turns,
            self._stale,
            self._silent,
            self._lately,
            self._seen,
            self._as_of,
        ):
            known.pop(group, None)
        self._changed.pop(group, None)
        self._refusals.clear(group)
        self._gone.add(group)
        self._on_change()

    def _leave(self, group: str, tp: TopicPartition) -> None:
        others = self._groups_of.get(tp)
        if others is not None:
            others.discard(group)
            if not others:
                del self._groups_of[tp]

    def _note_changed(self, group: str) -> None:
        self._changed[group] = None
        self._on_change()

    def _is_topic(self, topic: str) -> bool:
        chosen = self._topics.get(topic)
        if chosen is None:
            chosen = self._topics[topic] = self._topic_choice(topic)
        return chosen


def _remedy(error: Mm2pyError) -> str:
    """Return what to do about it: nothing where the source is away, or reading has paused."""
    cause = error if isinstance(error, ServerError) else error.__cause__
    return _REMEDIES.get(cause.code, "") if isinstance(cause, ServerError) else ""
