"""Writes translated offsets of groups to the target (``sync.group.offsets.enabled``).

Flow: ``want`` (groups with a new checkpoint) -> offsets of the group on the target ->
``offsets_to_sync`` -> OffsetCommit without a member, or AlterShareGroupOffsets. Besides, some
groups in turn: their offsets expire there, or are deleted, while nothing changes at the source.

Invariants (tests of the same names):

1. A group with members on the target is left alone: the broker refuses the commit
   (UNKNOWN_MEMBER_ID, for share groups NON_EMPTY_GROUP), whatever was known before.
2. Nothing is written for a group whose offsets on the target are not known, or that was not
   translated since the start.
3. An offset on the target never goes back, except once for a group without members that is still
   where a checkpoint shows that it was placed, past unread records: the target has lost the copies
   that it was placed by, or an earlier version or Java moved it too far.
4. Metadata of the commit at the source are kept.
5. Nothing is written while the task is paused: ``may_write`` is asked before each round.
6. A coordinator that does not answer delays the groups of others once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, final

from mm2py.api.context import TaskContext
from mm2py.client.connect.group_admin import Committed
from mm2py.clock import each_of, together, wait_or_stop
from mm2py.errors import Mm2pyError, RetriableError, ServerError
from mm2py.mirror.checkpoints import GROUP_STATES, Checkpoint
from mm2py.observability.logging import some_of
from mm2py.protocol.error_codes import (
    GROUP_ID_NOT_FOUND,
    NON_EMPTY_GROUP,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.types import TopicPartition
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import MirrorGroups

log = logging.getLogger(__name__)

AT_ONCE: Final = 50
"""Commits under way: thousands of groups must not flood the coordinators."""

ON_CHANGE_S: Final = 0.05
"""Between two rounds where ``sync.group.offsets.interval.seconds`` is not set: checkpoints have a
pace of their own."""

PER_ROUND: Final = 1_000
IN_TURN_S: Final = 10.0
IN_TURN: Final = 200
LOOK_AGAIN_S: Final = 1.0
AGAIN_S: Final = 10.0
"""After a refusal: a group that is in use, a topic that is not there yet."""

_IN_USE: Final = frozenset({UNKNOWN_MEMBER_ID, NON_EMPTY_GROUP})

Checkpoints = Mapping[str, Mapping[TopicPartition, Checkpoint]]


def offsets_to_sync(
    wanted: Mapping[TopicPartition, Checkpoint],
    committed: Mapping[TopicPartition, FetchedOffset],
    too_far: Mapping[TopicPartition, int],
) -> list[OffsetToCommit]:
    """Return what has to be committed so that a group is not behind its checkpoints, nor
    ``too_far`` still (3, 4)."""
    return [
        OffsetToCommit(tp.topic, tp.partition, it.downstream, metadata=it.metadata)
        for tp, it in wanted.items()
        # Java commits only forward too (``MirrorCheckpointTask.syncGroupOffset``).
        if (there := committed.get(tp)) is None
        or there.offset < it.downstream
        or (there.offset > it.downstream and there.offset == too_far.get(tp))
    ]


@final
class GroupSync:
    """Group offsets of one task.

    Args:
        target: the target's groups.
        checkpoints: of the task, by group; read anew in each round.
        context: time and findings.
        may_write: whether the task runs: a paused one writes nothing.
        check_copies: compares checkpoints of groups with the copies that are there now: where a
            group has no offset, its copy may have been created again since the last check, and its
            offset deleted with the former one.
        is_placed: whether the source has a group, and its checkpoints were compared with the maps
            since the start.
        what: the kind of groups, for findings and logs.
    """

    def __init__(
        self,
        target: MirrorGroups,
        checkpoints: Checkpoints,
        *,
        context: TaskContext,
        may_write: Callable[[], bool],
        is_placed: Callable[[str], bool],
        check_copies: Callable[[Sequence[str]], Awaitable[None]],
        what: str = "group",
    ) -> None:
        self._what = what
        self._target, self._checkpoints = target, checkpoints
        self._context, self._clock, self._may_write = context, context.clock, may_write
        self._is_placed, self._check_copies = is_placed, check_copies
        self._wanted: dict[str, None] = {}
        self._again: dict[str, float] = {}  # refused groups, and when to try them again
        self._in_use: set[str] = set()
        self._under_way: set[str] = set()
        """Wanted groups of a round that is not answered yet: a target may not answer for long."""
        self._too_far: dict[str, Mapping[TopicPartition, int]] = {}
        self._refusals = ChangeLog(log, f"{what} offsets are not synced", key="group")
        self._turns: list[str] = []
        self._turn_due = self._clock.monotonic() + IN_TURN_S
        self._wake = asyncio.Event()

    def want(self, groups: Iterable[str]) -> None:
        """Sync these groups in the next round; a refused one has its turn later."""
        self._wanted |= {
            group: None
            # A group without a checkpoint has nothing to write.
            for group in groups
            if group in self._checkpoints and group not in self._again
        }
        self._count()
        self._wake.set()

    def moved_too_far(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set back a group without members that is at one of these offsets of the target."""
        self._too_far[group] = {**self._too_far.get(group, {}), **offsets}

    def forget(self, group: str) -> None:
        """A group was deleted at the source: leave it alone."""
        self._wanted.pop(group, None)
        self._too_far.pop(group, None)
        self._clear(group)
        self._count()

    async def run(self, every_s: float | None) -> None:
        """Sync until cancelled: ``every_s`` seconds apart, or as soon as something changes.

        Refused groups are tried again beside the others, which need not wait for a coordinator that
        does not answer.
        """
        await together(self._sync(every_s), self._sync_again())

    async def _sync(self, every_s: float | None) -> None:
        while True:
            self._wake.clear()
            if not (self._wanted and self._may_write()):
                await wait_or_stop(self._clock, 1.0, self._wake)
            due = self._due() if self._may_write() else ()
            if due:
                await self._round(due)
            await self._clock.sleep((every_s if due else None) or ON_CHANGE_S)

    async def _sync_again(self) -> None:
        while True:
            await self._clock.sleep(LOOK_AGAIN_S)
            now = self._clock.monotonic()
            due = [it for it, at in self._again.items() if at <= now and it in self._checkpoints]
            if due and self._may_write():
                await self._round(due)

    def _due(self) -> list[str]:
        now = self._clock.monotonic()
        due = dict.fromkeys(islice(self._wanted, PER_ROUND))
        for group in due:
            del self._wanted[group]
        self._under_way |= due.keys() & self._checkpoints.keys()
        # Offsets expire there (``offsets.retention.minutes``) without a change at the source.
        if now >= self._turn_due:
            self._turn_due = now + IN_TURN_S
            self._turns = self._turns or list(filter(self._is_placed, self._checkpoints))
            turn, self._turns = self._turns[:IN_TURN], self._turns[IN_TURN:]
            due |= {it: None for it in turn if it not in self._again}
        return [it for it in due if it in self._checkpoints]

    async def _round(self, groups: Sequence[str]) -> None:
        if not groups:
            return
        answers = dict(await self._target.committed(groups))
        begin = [it for it in groups if self._has_more_than(it, answers.get(it, {}))]
        if begin:
            try:
                await self._check_copies(begin)
            except Mm2pyError as error:
                answers |= dict.fromkeys(begin, error)
        due: list[tuple[str, list[OffsetToCommit], Mapping[TopicPartition, int]]] = []
        for group in groups:
            answer, checkpoints = answers.get(group, {}), self._checkpoints.get(group, {})
            if isinstance(answer, Mm2pyError):
                self._refused(group, answer)  # (2)
                continue
            # Only where the group still is where it was moved to: a client may have moved it since.
            too_far = {
                tp: at
                for tp, at in self._too_far.pop(group, {}).items()
                if tp in answer and answer[tp].offset == at
            }
            if offsets := offsets_to_sync(checkpoints, answer, too_far):
                due.append((group, offsets, too_far))
            else:
                self._clear(group)
        await each_of(due, lambda it: self._commit(*it), at_once=AT_ONCE)
        self._under_way.difference_update(groups)
        self._report()

    def _has_more_than(self, group: str, committed: Committed) -> bool:
        """Whether there is a checkpoint of a group where it has no offset on the target."""
        if isinstance(committed, Mm2pyError):
            return False
        return not self._checkpoints.get(group, {}).keys() <= committed.keys()

    async def _commit(
        self, group: str, offsets: Sequence[OffsetToCommit], too_far: Mapping[TopicPartition, int]
    ) -> None:
        try:
            answers = await self._target.commit(group, offsets)
        except Mm2pyError as error:  # its coordinator does not answer, or may not be asked for
            self._keep_too_far(group, too_far)
            self._refused(group, error)
            return
        refused = {tp: error for tp, error in answers.items() if error is not None}
        codes = {error.code for error in refused.values()}
        # As in Java the broker decides: a member may join between a look and the commit.
        if codes & _IN_USE:
            self._refused(group, "it is in use on the target")
            self._in_use.add(group)  # (1)
        # KIP-848 brokers answer so for a group of another type.
        elif GROUP_ID_NOT_FOUND in codes:
            self._keep_too_far(group, too_far)
            self._refused(group, "a group of another type has this name on the target")
        elif refused:
            self._keep_too_far(group, too_far)
            self._refused(group, _cause(refused))
        else:
            for offset in offsets:
                before = too_far.get(TopicPartition(offset.topic, offset.partition))
                if before is not None and offset.offset < before:
                    log.warning(
                        "%s was set back on the target: where it had been placed is past unread records, as copies were lost"
                        " there, or an earlier version or Java placed it group=%s partition=%s-%d from=%d to=%d",
                        self._what, group, offset.topic, offset.partition, before, offset.offset,
                    )  # fmt: skip
            self._clear(group)

    def _keep_too_far(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Keep what a refused commit was to set back; what was found meanwhile is newer."""
        if offsets:
            self._too_far[group] = {**offsets, **self._too_far.get(group, {})}

    def _refused(self, group: str, cause: str | Mm2pyError) -> None:
        self._again[group] = self._clock.monotonic() + AGAIN_S
        self._wanted.pop(group, None)  # its turn has what changed meanwhile
        self._in_use.discard(group)  # a refusal for another cause is reported
        # A coordinator that moves has all of its groups with it.
        self._refusals.note(group, str(cause), quiet=isinstance(cause, RetriableError))

    def _clear(self, group: str) -> None:
        self._again.pop(group, None)
        self._in_use.discard(group)
        self._refusals.clear(group)

    def _report(self) -> None:
        used = sorted(self._in_use)
        self._context.report_finding(
            f"{self._what}s in use on the target",
            f"{some_of(used, 3)}: their offsets there are left alone while they have members"
            * bool(used),
            count=len(used),
            harms=False,
        )
        self._count()
        refused = {it: why for it, why in self._refusals.entries.items() if it not in self._in_use}
        text = ""
        if refused:
            group, cause = next(iter(refused.items()))
            text = f"{len(refused)} {self._what}s are not synced, such as {group!r}: {cause}"
        self._context.report_finding(f"{self._what}s not synced", text, count=len(refused))

    def _count(self) -> None:
        refused, used = len(self._again), len(self._in_use)
        behind = len((self._wanted.keys() | self._under_way) - self._again.keys())
        synced = max(0, len(self._checkpoints) - refused - behind)
        groups_by_state = (synced, behind, used, refused - used)
        for state, groups in zip(GROUP_STATES, groups_by_state, strict=True):
            self._context.report_figure(f"{self._what}s {state}", groups)


def _cause(refused: Mapping[TopicPartition, ServerError]) -> str:
    tp, error = next(iter(refused.items()))
    more = f" and {len(refused) - 1} partitions more" if len(refused) > 1 else ""
    absent = "; the copy is not on the target: it is created when its topic is found at the source"
    return f"{tp}{more}: {error}" + absent * (error.code == UNKNOWN_TOPIC_OR_PARTITION)
