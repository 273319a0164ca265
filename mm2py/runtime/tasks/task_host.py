"""The interface to what runs tasks, and the host that runs them in this process.

Flow: herder -> ``start_task`` / ``stop_task`` -> ``WorkerTask``; state changes -> the herder.
``child_host`` puts hosts into child processes behind the same interface, so only plain data crosses
it.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, final
from weakref import WeakValueDictionary

from mm2py.api.task import Paced
from mm2py.observability.logging import log_scope
from mm2py.runtime.tasks.lifecycle import Status
from mm2py.types import State, TaskId, TopicPartition

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Everything a host needs to run a task; plain data, resolved texts.

    ``generation`` and ``version`` are the connector's: the group's generation at the start, and the
    plug-in's version for the status. ``configs`` is the generation of its task configs.
    """

    id: TaskId
    connector_config: Mapping[str, str]
    config: Mapping[str, str]
    paused: bool = False
    generation: int = 0
    version: str = ""
    configs: int = -1


TaskWatcher = Callable[[TaskId, Status], None]
"""Called on each change of a task's state."""


class HostedTask(Protocol):
    """A task as its host sees it: ``WorkerTask``, or ``WorkerSinkTask``."""

    @property
    def status(self) -> Status:
        """State of the task."""
        ...

    def start(self) -> None:
        """Launch it; returns at once."""
        ...

    async def stop(self, timeout_s: float) -> None:
        """End it in order; what is left after ``timeout_s`` is cut off."""
        ...

    def pause(self, *, paused: bool) -> None:
        """Stop reading, or continue."""
        ...

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Read none of these source partitions and all others; -1 is a whole topic."""
        ...

    def keep_out(self, partitions: frozenset[TopicPartition], /) -> bool:
        """Copy none of these; return False where the task must be started again for that."""
        ...


TaskBuilder = Callable[[TaskSpec, Callable[[Status], None]], HostedTask]
"""Builds a task that is not started yet; raises ``Mm2pyError`` when its config is wrong."""


class TaskHost(Protocol):
    """Runs the tasks of a flow on one node."""

    async def start_task(self, spec: TaskSpec) -> None:
        """Launch a task; a task of that name that still runs is stopped first. Failures are
        states."""
        ...

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        """Stop a task in order, cut it off after ``timeout_s``, and forget it."""
        ...

    def status(self, task: TaskId) -> Status | None:
        """State of a task, None for one the host does not know."""
        ...

    def tasks(self) -> tuple[TaskId, ...]:
        """Tasks the host knows, failed ones included."""
        ...

    def problems(self) -> Mapping[str, str]:
        """What hides the state of tasks, with the cause: a process that does not speak."""
        ...

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        """Pause or resume polling; what was sent is still acknowledged and committed (PAUSED /
        RUNNING)."""
        ...

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Name all paused source partitions of the flow, -1 for a whole topic, for later tasks
        too."""
        ...

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        """Copy none of these source partitions, in later tasks too; returns when no task here does
        any more.

        Those that are not among them any more are copied again from their stored positions.
        """
        ...

    async def close(self) -> None:
        """Stop all tasks and the host."""
        ...


@final
class InProcessTaskHost:
    """Runs tasks on the event loop of this process.

    Args:
        build: makes tasks.
        watcher: receives their states.
        graceful_s: how long a task may take to stop where the caller sets no limit.
    """

    def __init__(
        self,
        build: TaskBuilder,
        watcher: TaskWatcher,
        *,
        graceful_s: float,
    ) -> None:
        self._build = build
        self._watcher = watcher
        self._graceful_s = graceful_s
        self._tasks: dict[TaskId, HostedTask | None] = {}
        self._refused: dict[TaskId, Status] = {}
        # A lock lives as long as a call holds it or waits for it.
        self._turns: WeakValueDictionary[TaskId, asyncio.Lock] = WeakValueDictionary()
        self._held: frozenset[TopicPartition] = frozenset()
        self.kept_out: frozenset[TopicPartition] = frozenset()
        """What later tasks do not copy; ``keep_out`` has the present ones follow."""
        self._specs: dict[TaskId, TaskSpec] = {}

    async def start_task(self, spec: TaskSpec) -> None:
        async with self._turns.setdefault(spec.id, asyncio.Lock()):
            await self._start(spec)

    async def stop_task(self, task: TaskId, timeout_s: float) -> None:
        async with self._turns.setdefault(task, asyncio.Lock()):
            await self._end(task, timeout_s)

    def status(self, task: TaskId) -> Status | None:
        running = self._tasks.get(task)
        return running.status if running is not None else self._refused.get(task)

    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(self._tasks)

    def problems(self) -> Mapping[str, str]:
        return {}

    async def pause_task(self, task: TaskId, *, paused: bool) -> None:
        async with self._turns.setdefault(task, asyncio.Lock()):
            running = self._tasks.get(task)
            if running is not None:
                self._specs[task] = replace(self._specs[task], paused=paused)
                running.pause(paused=paused)

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        self._held = partitions
        for task in self._running():
            task.hold(partitions)

    def pace(self, bytes_per_s: int) -> None:
        """Let each task read so much per second from now on, where its config has a limit."""
        for task in self._running():
            if isinstance(task, Paced):
                task.pace(bytes_per_s)

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        """Copy none of these: a task that does is drained and started again without them."""
        self.kept_out = partitions
        await asyncio.gather(*(self._without_kept_out(task) for task in self.tasks()))

    async def _without_kept_out(self, task: TaskId) -> None:
        async with self._turns.setdefault(task, asyncio.Lock()):
            running = self._tasks.get(task)
            if running is None or running.keep_out(self.kept_out):
                return
            if running.status.state is State.FAILED:
                await running.stop(self._graceful_s)  # it may still write what it has read
                return
            log.info(
                "task is started again, a backfill copies some of its partitions task=%s", task
            )
            # In the same turn: between two of them it could be stopped for good.
            await self._start(self._specs[task])

    async def close(self) -> None:
        await asyncio.gather(*(self.stop_task(task, self._graceful_s) for task in self.tasks()))

    def _running(self) -> list[HostedTask]:
        return [task for task in self._tasks.values() if task is not None]

    async def _start(self, spec: TaskSpec) -> None:
        with log_scope(spec.id.connector, f"task-{spec.id.number}", below=1):
            await self._end(spec.id, self._graceful_s)
            try:
                # The status callback carries the id: the task itself does not know its host.
                task = self._build(spec, lambda status: self._watcher(spec.id, status))
            except Exception as error:  # plug-ins are built here
                self._tasks[spec.id] = None
                self._refused[spec.id] = Status(State.FAILED, error)
                log.exception("task cannot be built")
                self._watcher(spec.id, self._refused[spec.id])
                return
            self._tasks[spec.id], self._specs[spec.id] = task, spec
            # Before ``start``: a task must not read a partition that is paused or kept out even
            # once.
            task.hold(self._held)
            task.keep_out(self.kept_out)
            task.pause(paused=spec.paused)
            task.start()

    async def _end(self, task: TaskId, timeout_s: float) -> None:
        running = self._tasks.get(task)
        if running is not None:
            await running.stop(timeout_s)
        self._tasks.pop(task, None)
        self._specs.pop(task, None)
        self._refused.pop(task, None)
