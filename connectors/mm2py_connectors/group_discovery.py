"""Which consumer groups of the source are checkpointed (Java's ``MirrorCheckpointConnector.findConsumerGroups``).

Flow: ListGroups -> group filter -> committed offsets -> topic filter -> names. Only groups that are not chosen yet
are asked for their offsets, a share of them at a time, so that a look costs little with thousands of groups.
"""

import logging
from itertools import islice
from typing import Final, final

from mm2py.api.policies import GroupFilter, TopicFilter
from mm2py.client.connect.group_admin import GroupListing
from mm2py.errors import Mm2pyError, RetriableError
from mm2py_connectors.change_log import ChangeLog
from mm2py_connectors.clients import MirrorGroups

__all__ = ["GroupDiscovery"]

log = logging.getLogger(__name__)

ASKED_AT_ONCE: Final = 1_000


@final
class GroupDiscovery:
    """The chosen groups of one flow."""

    def __init__(
        self, groups: MirrorGroups, group_filter: GroupFilter, topics: TopicFilter
    ) -> None:
        self._groups, self._group_filter, self._topics = groups, group_filter, topics
        self._chosen: set[str] = set()
        self._others: dict[str, None] = {}  # asked before, the one asked longest ago first
        self._refusals = ChangeLog(log, "group is not checkpointed", key="group")

    def chosen(self) -> list[str]:
        """Return the chosen groups by name."""
        return sorted(self._chosen)

    async def refresh(self) -> bool:
        """Look for groups; True when the choice is another one.

        Raises:
            Mm2pyError: groups cannot be listed now.
        """
        before = set(self._chosen)
        catalog = await self._groups.list_groups()
        listed = {it: at for it, at in catalog.groups.items() if self._accepts(it)}
        if not catalog.missing:
            self._chosen &= listed.keys()
            self._others = {it: None for it in self._others if it in listed}
        new = [it for it in listed if it not in self._chosen and it not in self._others]
        again = list(islice(self._others, max(0, ASKED_AT_ONCE - len(new))))
        await self._ask(listed, [*new, *(it for it in again if it in listed)])
        return before != self._chosen

    def _accepts(self, group: str) -> bool:
        if not self._group_filter.should_replicate_group(group):
            return False
        if "," in group:
            self._refusals.note(group, "task configs list groups by comma")
            return False
        return True

    async def _ask(self, listed: dict[str, GroupListing], names: list[str]) -> None:
        answers = await self._groups.committed({it: listed[it].node_id for it in names})
        for name in names:
            answer = answers.get(name)
            self._others.pop(name, None)
            if isinstance(answer, RetriableError) or answer is None:
                continue  # unknown: it counts as new at the next look
            if isinstance(answer, Mm2pyError):
                self._refusals.note(name, str(answer))
            elif any(self._topics.should_replicate_topic(tp.topic) for tp in answer):
                self._chosen.add(name)
                continue
            self._others[name] = None
