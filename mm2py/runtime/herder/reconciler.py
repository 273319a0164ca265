"""Compares what should run on this node with what is published and what runs, and repairs the difference.

Flow: configs, target states, assigned work / committed task configs / host and connectors -> missing work starts,
unknown tasks stop, task configs that are not in force are published again. Events normally keep the three equal;
this finds what a lost event, a half-done change or a stale leader has left. It decides nothing about assignment.
"""

import logging
from typing import final

from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.runtime.herder.task_publication import TaskPublication
from mm2py.types import Work

log = logging.getLogger(__name__)


@final
class Reconciler:
    """Called by the herder's loop between two rounds, when nothing is being started or stopped."""

    def __init__(
        self, parts: HerderParts, work: AssignedWork, publication: TaskPublication
    ) -> None:
        self._parts, self._work, self._publication = parts, work, publication

    async def compare(self, owned: Work) -> None:
        """Repair what differs; costs a few set operations where nothing does."""
        snapshot = self._parts.config.snapshot()
        configured = Work(
            frozenset(owned.connectors & snapshot.connectors.keys()),
            frozenset(owned.tasks & snapshot.task_configs.keys()),
        )
        running = self._work.running
        missing, surplus = configured - running, running - owned
        if missing or surplus:
            log.warning(
                "what runs here is not what is assigned, it is repaired missing=%s surplus=%s",
                missing,
                surplus,
            )
            await self._work.stop(surplus, snapshot)
            await self._work.start(missing, snapshot)
        await self._work.repair_host()
        for name in sorted(self._work.running.connectors):
            if self._publication.overwritten(name, snapshot):
                log.warning(
                    "task configs in force are not those that the connector made, they are published"
                    " again connector=%s",
                    name,
                )
                self._work.reconfigure(name)
