"""Connectors and tasks of one flow on this node.

Flow: herder -> ``start`` -> connectors -> task configs -> task host; a task whose config did not change
keeps running; a failed one is restarted after a growing pause (``task.auto.restart``).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import ConfigError, PartitionError
from mm2py.observability.logging import log_scope
from mm2py.runtime.lifecycle import Status
from mm2py.runtime.plugins import Plugins
from mm2py.runtime.task_host import TaskRunner, TaskSpec, TaskWatcher
from mm2py.runtime.worker_connector import WorkerConnector
from mm2py.types import State, TaskId

__all__ = ["STEADY_S", "Worker", "WorkerSettings"]

log = logging.getLogger(__name__)

FIRST_RESTART_S: Final = 1.0
LONGEST_RESTART_S: Final = 60.0
STEADY_S: Final = 300.0
"""A task that ran this long before it failed starts again with the shortest pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Worker properties; defaults are Connect's but for ``task_auto_restart`` (ours)."""

    graceful_timeout_ms: int = 5_000
    task_auto_restart: bool = True


@dataclass(slots=True)
class _Restarts:
    """When a failed task may run again."""

    failures: int = 0
    running_since: float = math.inf  # it has not run yet
    timer: asyncio.Task[None] | None = field(default=None)


@final
class Worker:
    """Runs connectors and their tasks; one object per term of group membership.

    Args:
        plugins: finds connector classes.
        host: makes the task host, given who watches its tasks.
        on_change: called when the state of a connector or task changed.
    """

    def __init__(
        self,
        plugins: Plugins,
        host: Callable[[TaskWatcher], TaskRunner],
        *,
        settings: WorkerSettings,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._plugins = plugins
        self._settings = settings
        self._clock = clock
        self._on_change = on_change
        self._host = host(self._task_changed)
        self._connectors: dict[str, WorkerConnector] = {}
        self._specs: dict[TaskId, TaskSpec] = {}
        self._restarts: dict[TaskId, _Restarts] = {}
        self._stopping = False

    def start(self, connectors: Mapping[str, Mapping[str, str]]) -> None:
        """Launch connectors, name -> complete config; returns at once."""
        for name, config in connectors.items():
            with log_scope(name, below=1):
                connector = WorkerConnector(
                    lambda config: self._plugins.find(config.get("connector.class", ""))(config),
                    config,
                    apply=self._applier(name, config),
                    on_status=lambda _: self._on_change(),
                    clock=self._clock,
                )
                self._connectors[name] = connector
                connector.start()

    async def stop(self) -> None:
        """Stop tasks and connectors, all in parallel, within the graceful time."""
        self._stopping = True
        for restart in self._restarts.values():
            if restart.timer is not None:
                restart.timer.cancel()
        graceful_s = self._settings.graceful_timeout_ms / 1000
        await asyncio.gather(
            *(self._host.stop_task(task, graceful_s) for task in self._host.tasks()),
            *(connector.stop() for connector in self._connectors.values()),
        )
        # A reconfiguration under way may have started one meanwhile.
        await asyncio.gather(*(self._host.stop_task(t, graceful_s) for t in self._host.tasks()))

    def suspend(self) -> None:
        """Let no task poll, send or commit until ``resume``; connectors go on looking around."""
        self._host.suspend()

    def resume(self) -> None:
        """Let tasks go on."""
        self._host.resume()

    def connector_status(self) -> Mapping[str, Status]:
        """State of each connector by name."""
        return {name: connector.status for name, connector in self._connectors.items()}

    def task_status(self) -> Mapping[TaskId, Status]:
        """State of each task."""
        states = ((task, self._host.status(task)) for task in self._specs)
        return {task: status for task, status in states if status is not None}

    def problems(self) -> Sequence[str]:
        """What is wrong now, one line each: failed connectors and tasks, and what connectors tell."""
        found = [f"task {task}: {s.cause}" for task, s in self.task_status().items() if s.cause]
        for name, connector in self._connectors.items():
            if connector.status.cause is not None:
                found.append(f"{name}: {connector.status.cause}")
            found += [f"{name}: {what}: {cause}" for what, cause in connector.problems().items()]
        return found

    def state(self) -> State:
        """One word for the whole: FAILED if anything is, RUNNING when every connector is."""
        states = [status.state for status in self.connector_status().values()]
        states += [status.state for status in self.task_status().values()]
        if State.FAILED in states:
            return State.FAILED
        return State.RUNNING if states and set(states) == {State.RUNNING} else State.UNASSIGNED

    def _applier(
        self, name: str, connector_config: Mapping[str, str]
    ) -> "Callable[[Sequence[Mapping[str, str]]], asyncio.Future[None]]":
        def apply(configs: Sequence[Mapping[str, str]]) -> "asyncio.Future[None]":
            # A connector that ends does not wait for it, and must not cut it off half way.
            return asyncio.shield(self._apply(name, connector_config, configs))

        return apply

    async def _apply(
        self,
        name: str,
        connector_config: Mapping[str, str],
        configs: Sequence[Mapping[str, str]],
    ) -> None:
        wanted = {
            TaskId(name, index): TaskSpec(
                id=TaskId(name, index), connector_config=connector_config, config=dict(config)
            )
            for index, config in enumerate(configs)
        }
        running = [task for task in self._specs if task.connector == name]
        gone = [task for task in running if wanted.get(task) != self._specs[task]]
        new = [task for task in wanted if task in gone or task not in self._specs]
        if not gone and not new:
            return
        log.info(
            "tasks of connector=%s tasks=%d started=%d stopped=%d",
            name,
            len(wanted),
            len(new),
            len(gone),
        )
        graceful_s = self._settings.graceful_timeout_ms / 1000
        # All end before the first begins: a partition may move from one task to another.
        await asyncio.gather(*(self._host.stop_task(task, graceful_s) for task in gone))
        for task in gone:
            del self._specs[task]
            self._forget_restart(task)
        for task in new:
            if self._stopping:
                return
            self._specs[task] = wanted[task]
            await self._host.start_task(wanted[task])

    def _task_changed(self, task: TaskId, status: Status) -> None:
        self._on_change()
        if status.state is State.RUNNING:
            self._restarts.setdefault(task, _Restarts()).running_since = self._clock.monotonic()
        elif status.state is State.FAILED and self._may_restart(status.cause):
            self._plan_restart(task)

    def _may_restart(self, cause: Exception | None) -> bool:
        # A wrong config or a refused record is still there after a restart.
        curable = not isinstance(cause, ConfigError | PartitionError)
        return curable and self._settings.task_auto_restart and not self._stopping

    def _plan_restart(self, task: TaskId) -> None:
        spec = self._specs.get(task)
        if spec is None:
            return
        restart = self._restarts.setdefault(task, _Restarts())
        if self._clock.monotonic() - restart.running_since > STEADY_S:
            restart.failures = 0
        restart.running_since = math.inf
        pause = min(LONGEST_RESTART_S, FIRST_RESTART_S * 2 ** min(restart.failures, 10))
        restart.failures += 1
        log.info(
            "task will be restarted task=%s pause_s=%.0f failures=%d", task, pause, restart.failures
        )
        restart.timer = asyncio.ensure_future(self._restart_after(spec, pause))

    async def _restart_after(self, spec: TaskSpec, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        if not self._stopping and self._specs.get(spec.id) is spec:
            await self._host.start_task(spec)

    def _forget_restart(self, task: TaskId) -> None:
        restart = self._restarts.pop(task, None)
        if restart is not None and restart.timer is not None:
            restart.timer.cancel()
