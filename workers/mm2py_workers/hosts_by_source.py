"""The tasks of an ordinary worker: one task host per source cluster, behind one interface.

Flow: ``TaskSpec`` -> alias of its source -> ``SourceHost``, opened at its first task -> its host. Two source
clusters may have topics of the same name, so each has its own meters and its own loss ledger.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from mm2py.runtime.tasks.lifecycle import Status
from mm2py.runtime.tasks.task_host import TaskHost, TaskSpec
from mm2py.storage.ledger_store import LedgerStore
from mm2py.types import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class SourceHost:
    """The task host of one source, and its ledger where its tasks copy partitions."""

    host: TaskHost
    ledger: LedgerStore | None


@final
class HostsBySource:
    """Implements ``TaskHost``.

    Args:
        source_of: names the source of a task.
        opened: makes the host of a source.
    """

    def __init__(
        self, source_of: Callable[[TaskSpec], str], opened: Callable[[str], SourceHost]
    ) -> None:
        self._source_of = source_of
        self._opened = opened
        self._hosts: dict[str, SourceHost] = {}
        self._place: dict[TaskId, TaskHost] = {}
        self._held: frozenset[TopicPartition] = frozenset()

    async def start_task(self, spec: TaskSpec) -> None:
        """Launch a task at its source's host."""
        host = self._host(self._source_of(spec))
        before = self._place.get(spec.id)
        if before is not None and before is not host:
            await before.stop_task(spec.id, 0)
        self._place[spec.id] = host
        await host.start_task(spec)

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        """Stop a task in order and forget it."""
        host = self._place.pop(task, None)
        if host is not None:
            await host.stop_task(task, timeout_s)

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        """Stop polling or continue."""
        host = self._place.get(task)
        if host is not None:
            await host.pause_task(task, paused=paused)

    def status(self, task: TaskId) -> Status | None:
        """State of a task."""
        host = self._place.get(task)
        return None if host is None else host.status(task)

    def tasks(self) -> tuple[TaskId, ...]:
        """Tasks that are known."""
        return tuple(self._place)

    def problems(self) -> Mapping[str, str]:
        """What hides the state of tasks, with the cause."""
        return {
            what: why for each in self._hosts.values() for what, why in each.host.problems().items()
        }

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Let every task read all but these."""
        self._held = partitions
        for each in self._hosts.values():
            each.host.hold(partitions)

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        """Let no task copy these; backfills are of flows of a mirror's file, so there are none."""
        await asyncio.gather(*(each.host.keep_out(partitions) for each in self._hosts.values()))

    async def close(self) -> None:
        """Stop all tasks, then close what they report to."""
        hosts = tuple(self._hosts.values())
        await asyncio.gather(*(each.host.close() for each in hosts))
        await asyncio.gather(*(each.ledger.stop() for each in hosts if each.ledger is not None))

    def _host(self, source: str) -> TaskHost:
        found = self._hosts.get(source)
        if found is None:
            found = self._hosts[source] = self._opened(source)
            if found.ledger is not None:
                found.ledger.start()
            if self._held:
                found.host.hold(self._held)
        return found.host
