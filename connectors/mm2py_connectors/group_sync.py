"""Writes translated offsets of groups to the target (``sync.group.offsets.enabled``).

Flow: checkpoints by group -> state and offsets of the group on the target -> ``offsets_to_sync`` -> OffsetCommit without
a member. Rules: 1 a group with members on the target is left alone; 2 nor is one whose state is not known;
3 an offset there never goes back; 4 metadata are kept. The broker enforces 1 once more (UNKNOWN_MEMBER_ID).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.errors import Mm2pyError, ServerError
from mm2py.mirror.checkpoints import Checkpoint
from mm2py.protocol.error_codes import UNKNOWN_MEMBER_ID
from mm2py.protocol.groups import FetchedOffset, OffsetToCommit
from mm2py.types import TopicPartition
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import MirrorGroups

__all__ = ["GroupSync", "offsets_to_sync"]

log = logging.getLogger(__name__)

AT_ONCE: Final = 50
"""Commits under way: thousands of groups must not flood the coordinators."""

Checkpoints = Mapping[str, Mapping[TopicPartition, Checkpoint]]


def offsets_to_sync(
    wanted: Mapping[TopicPartition, Checkpoint],
    found: Mapping[TopicPartition, FetchedOffset],
) -> list[OffsetToCommit]:
    """Return what has to be committed so that a group is not behind its checkpoints."""
    return [
        OffsetToCommit(tp.topic, tp.partition, it.downstream, metadata=it.metadata)
        for tp, it in wanted.items()
        if (there := found.get(tp)) is None or there.offset < it.downstream
    ]


@final
class GroupSync:
    """Group offsets of one task."""

    def __init__(self, target: MirrorGroups, checkpoints: Checkpoints) -> None:
        self._target, self._checkpoints = target, checkpoints
        self._refusals = ChangeLog(log, "group offsets are not synced", key="group")

    async def run(self) -> None:
        """Write what is behind.

        Raises:
            Mm2pyError: the target's groups cannot be listed.
        """
        if not self._checkpoints:
            return
        catalog = await self._target.list_groups()
        wanted = dict(self._checkpoints)
        idle: dict[str, int] = {}
        due: list[tuple[str, list[OffsetToCommit]]] = []
        for group, parts in wanted.items():
            listing = catalog.groups.get(group)
            if listing is not None and listing.is_idle:
                idle[group] = listing.node_id
            elif listing is not None:
                self._refusals.note(group, f"it is in use on the target (state {listing.state})")
            elif catalog.missing:
                self._refusals.note(
                    group, f"its state on the target is not known: {catalog.missing}"
                )
            else:
                due.append((group, offsets_to_sync(parts, {})))
        for group, answer in (await self._target.committed(idle)).items():
            if isinstance(answer, Mm2pyError):
                self._refusals.note(group, str(answer))
            elif offsets := offsets_to_sync(wanted[group], answer):
                due.append((group, offsets))
            else:
                self._refusals.clear(group)
        for start in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._commit(*it) for it in due[start : start + AT_ONCE]))

    async def _commit(self, group: str, offsets: Sequence[OffsetToCommit]) -> None:
        try:
            answers = await self._target.commit(group, offsets)
        except Mm2pyError as error:  # its coordinator does not answer, or may not be asked for
            self._refusals.note(group, str(error))
            return
        refused = {tp: error for tp, error in answers.items() if error is not None}
        if refused:
            self._refusals.note(group, _cause(refused))
        else:
            self._refusals.clear(group)


def _cause(refused: Mapping[TopicPartition, ServerError]) -> str:
    tp, error = next(iter(refused.items()))
    if error.code == UNKNOWN_MEMBER_ID:
        return "it is in use on the target"
    more = f" and {len(refused) - 1} partitions more" if len(refused) > 1 else ""
    return f"{tp}{more}: {error}"
