"""The groups of one kind, with where they would continue on the target.

Flow: ``GroupWatch`` (offsets of the source) and ``OffsetTranslator`` (what is known of the copies)
-> ``renew`` -> the checkpoints that changed, which the task writes where groups of this kind have
checkpoints -> ``GroupSync``.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from mm2py.clock import Clock
from mm2py.mirror.checkpoints import Checkpoint
from mm2py.mirror.offset_lookup import Beginning
from mm2py.types import TopicPartition
from mm2py_connectors.group_sync import GroupSync
from mm2py_connectors.group_watch import GroupWatch
from mm2py_connectors.offset_translator import OffsetTranslator

log = logging.getLogger(__name__)

GROUPS_PER_ROUND: Final = 1_000
LONGEST_ROUND_S: Final = 0.5


@final
class TranslatedGroups:
    """Groups of one task.

    Args:
        watch: their offsets at the source.
        translator: of the flow.
        checkpoints: by group; those of before are put there by the caller, ``GroupSync`` reads
            them.
        copy_of: name of a source topic on the target.
    """

    def __init__(
        self,
        watch: GroupWatch,
        translator: OffsetTranslator,
        checkpoints: dict[str, dict[TopicPartition, Checkpoint]],
        *,
        copy_of: Callable[[str], str],
        clock: Clock,
    ) -> None:
        self.watch, self._translator = watch, translator
        self.sync: GroupSync | None = None
        """Writes their offsets to the target; None where that is off."""
        self._checkpoints, self._copy_of, self._clock = checkpoints, copy_of, clock
        self._placed: set[str] = set()
        """Groups that were translated since the start: what checkpoints of before say of others may
        not hold any more."""
        self._checked: set[str] = set()
        """Groups whose offsets on the target were compared with the maps since the start."""
        self._lost: dict[str, dict[TopicPartition, Checkpoint]] = {}
        """Places of groups in copies that are gone, until it is known where they continue: a group
        that still is there is set back."""

    @property
    def has_changes(self) -> bool:
        """Whether the source has changes that no round has taken yet."""
        return self.watch.has_changes

    async def renew(self, moved: Mapping[TopicPartition, int]) -> list[Checkpoint]:
        """Translate what changed, and what is behind ``moved`` (``OffsetTranslator.take_moved``),
        for half a second at most."""
        watch = self.watch
        self._leave_shared(moved)
        for group in watch.take_gone():
            self._checkpoints.pop(group, None)
            self._checked.discard(group)
            self._placed.discard(group)
            self._lost.pop(group, None)
            if self.sync is not None:
                self.sync.forget(group)
        groups = dict.fromkeys(watch.take_changed(GROUPS_PER_ROUND))
        groups |= dict.fromkeys(watch.groups_behind(moved))
        changes: list[Checkpoint] = []
        end = self._clock.monotonic() + LONGEST_ROUND_S
        for group in tuple(groups):
            if self._clock.monotonic() > end:  # pages of the map had to be read
                watch.put_back(groups)
                break
            changes += await self._changes_of(group)
            self._placed.add(group)
            del groups[group]
            if self.sync is not None:
                self.sync.want((group,))
        return changes

    def has_placed(self, group: str) -> bool:
        """Whether a group is at the source, and was translated since the start."""
        return group in self._placed

    async def check_copies(self, groups: Sequence[str]) -> None:
        """Forget checkpoints of these groups that are of other copies than those that are there
        now. ``Mm2pyError``: the copies on the target are not known now."""
        await self._translator.read_copies()
        for group in groups:
            await asyncio.sleep(0)  # there may be a thousand
            for source, offset in tuple(self.watch.offsets(group).items()):
                target = TopicPartition(self._copy_of(source.topic), source.partition)
                last = self._checkpoints.get(group, {}).get(target)
                if last is not None and await self._is_stale(source, offset.offset, None, last):
                    self._checkpoints.get(group, {}).pop(target, None)
                    self._lost.setdefault(group, {})[target] = last
                    self.watch.put_back((group,))

    def _leave_shared(self, moved: Mapping[TopicPartition, int]) -> None:
        """Forget groups' places in copies of several flows: the sync would write them again."""
        for source in filter(self._translator.is_shared, moved):
            target = TopicPartition(self._copy_of(source.topic), source.partition)
            for known in self._checkpoints.values():
                known.pop(target, None)

    async def _changes_of(self, group: str) -> Sequence[Checkpoint]:
        known = self._checkpoints.get(group, {})
        changes: list[Checkpoint] = []
        too_far = await self._left_behind(group, known)
        begins_of = await self._unread_below_maps(group)
        for source, offset in tuple(self.watch.offsets(group).items()):
            downstream = await self._translator.translate(source, offset.offset)
            if self.watch.is_former(group, source) or self._translator.is_shared(source):
                continue
            target = TopicPartition(self._copy_of(source.topic), source.partition)
            last, begins = known.get(target), begins_of.get(target)
            if last is not None and await self._is_stale(source, offset.offset, downstream, last):
                self._lost.setdefault(group, {})[target] = known.pop(target)
                last = None
            if (
                last is not None
                and begins is not None
                and begins.is_past_unread(last.upstream, last.downstream)
            ):
                # The offset there alone proves nothing: members that have read to the beginning of
                # the map may have left it.
                del known[target]
                last, too_far[target] = None, begins.target
                if downstream is None:
                    log.warning(
                        "group was moved past unread records by an earlier version, and where it "
                        "has read to is not known on the target: reset its offset there group=%s "
                        "partition=%s offset=%d",
                        group,
                        target,
                        begins.target,
                    )
            if downstream is None:
                continue
            too_far |= self._take_lost(group, target, offset.offset)
            # It goes back only where the group went back.
            if last is None or offset.offset < last.upstream or downstream > last.downstream:
                known[target] = new = Checkpoint(
                    group, target, offset.offset, downstream, offset.metadata
                )
                changes.append(new)
        # Where it has no offset in a chosen topic any more, it is its own there.
        copies = {it._replace(topic=self._copy_of(it.topic)) for it in self.watch.offsets(group)}
        known = {target: it for target, it in known.items() if target in copies}
        if known:
            self._checkpoints[group] = known
        else:
            self._checkpoints.pop(group, None)
        if self.sync is not None and too_far:
            self.sync.moved_too_far(group, too_far)
        return changes

    def _take_lost(
        self, group: str, target: TopicPartition, offset: int
    ) -> Mapping[TopicPartition, int]:
        """Return the place that a group lost, now that it has another one; none where it went back
        at the source: its owner decides what it reads again."""
        lost = self._lost.get(group, {}).pop(target, None)
        return {} if lost is None or offset < lost.upstream else {target: lost.downstream}

    async def _is_stale(
        self, source: TopicPartition, offset: int, downstream: int | None, last: Checkpoint
    ) -> bool:
        """Whether a checkpoint is of replaced copies, of which its group may not have read."""
        translator = self._translator
        if translator.is_of_former_copy(source, last.upstream, last.downstream):
            return True
        is_behind = downstream is None or downstream < last.downstream
        return is_behind and await translator.is_past_unread(source, offset, last.downstream)

    async def _left_behind(
        self, group: str, known: dict[TopicPartition, Checkpoint]
    ) -> dict[TopicPartition, int]:
        """Forget, once for each group since the start, its places in copies that the flow does not
        continue; return these."""
        places: dict[TopicPartition, int] = {}
        if group in self._checked or not self._translator.has_map:
            return places
        for source, offset in tuple(self.watch.offsets(group).items()):
            target = TopicPartition(self._copy_of(source.topic), source.partition)
            last = known.get(target)
            if (
                last is not None
                and offset.offset >= last.upstream
                and not self.watch.is_former(group, source)
                and await self._translator.is_left_behind(source, offset.offset, last.downstream)
            ):
                places[target] = known.pop(target).downstream
        return places

    async def _unread_below_maps(self, group: str) -> Mapping[TopicPartition, Beginning]:
        """Return, once for each group since the start, the partitions of the target in which it has
        not read up to the beginning of the map.

        An earlier version did not know that records below it were copied by another program, and
        moved groups to the beginning; a checkpoint shows where it did. Share groups have none:
        whether it did is unknown.
        """
        moved: dict[TopicPartition, Beginning] = {}
        if group in self._checked or not self._translator.has_map:
            return moved
        for source, offset in tuple(self.watch.offsets(group).items()):
            begins = await self._translator.beginning(source)
            if begins is not None and offset.offset < begins.source:
                moved[TopicPartition(self._copy_of(source.topic), source.partition)] = begins
        self._checked.add(group)
        return moved
