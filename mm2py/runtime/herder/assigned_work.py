"""Connectors and tasks that are assigned to this node: start, stop, restart, and their states.

Flow: herder -> ``start`` / ``stop`` -> connectors here, tasks in the task host -> states -> status
store. A failed task is FAILED with its trace first, and runs again after a growing pause
(``task.auto.restart``). It decides nothing about assignment and writes no config.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from mm2py.api.connector import AnyConnector
from mm2py.api.context import WaitingPartition
from mm2py.client.backoff import doubled
from mm2py.clock import Clock
from mm2py.config.class_names import SOURCE_NAME
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.errors import (
    ConfigError,
    Mm2pyError,
    PartitionError,
    RefusedRecordError,
    RetriableError,
)
from mm2py.observability.logging import cause_text, log_scope
from mm2py.observability.metrics import Finding
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.task_forms import TaskForms
from mm2py.runtime.herder.worker_connector import ConnectorFacts, TaskConfigs, WorkerConnector
from mm2py.runtime.tasks.lifecycle import Status, trace_of
from mm2py.runtime.tasks.task_host import TaskSpec
from mm2py.runtime.tasks.task_transactions import StartGuard
from mm2py.storage.config_state import ConfigSnapshot, ConnectorConfig
from mm2py.storage.status_records import StoredStatus
from mm2py.types import State, TargetState, TaskId, TopicPartition, Work

log = logging.getLogger(__name__)

FIRST_RESTART_S: Final = 1.0
SHORTEST_RESTART_S: Final = 0.1
STEADY_S: Final = 300.0
"""A task that ran this long before it failed starts again with the shortest pause."""

PROVEN_S: Final = 60.0
"""A task that failed more than once is shown as a problem until it has run this long."""

FOR_JAVA_S: Final = 2.0
"""What a connector may take at the end of its group to find what Java's would deal."""

LONGEST_WAIT_S: Final = 30.0
"""How long tasks wait for configs that are made of a changed connector config."""

Publish = Callable[[str, ConnectorConfig, Sequence[Mapping[str, str]]], Awaitable[None]]
"""Takes a connector's name, its raw config and the task configs it made of it."""

_SAFE: Final = frozenset({State.UNASSIGNED, State.FAILED})
"""States that must not overwrite what a newer owner wrote (Connect's ``putSafe``)."""


@dataclass(slots=True, eq=False)
class _Task:
    """One assigned task: raw configs for comparing, and when it may run again after a failure."""

    config: ConnectorConfig
    connector: ConnectorConfig
    count: int = 1
    """Tasks of the connector."""
    generation: int = -1
    """Of the connector's task configs, as this worker counts commits."""
    framework: FrameworkConfig = field(default_factory=FrameworkConfig)
    refused: Status | None = None
    state: State | None = None
    stopping: bool = False
    launching: bool = False
    failures: int = 0
    cause: str = ""
    running_since: float = math.inf  # never ran
    timer: asyncio.Task[None] | None = field(default=None)


@final
class AssignedWork:
    """The work of this node in its group.

    Args:
        parts: the herder's.
        publish: takes task configs of connectors that run here.
        guard: what tasks with exactly-once support ask before they run.
        on_change: called when the state of a connector or task changed.
    """

    def __init__(
        self,
        parts: HerderParts,
        publish: Publish,
        guard: StartGuard,
        *,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._publish = publish
        self._clock = clock
        self._on_change = on_change
        self._graceful_s = parts.settings.task_shutdown_graceful_timeout_ms / 1000
        self._connectors: dict[str, WorkerConnector] = {}
        self._configs: dict[str, ConnectorConfig] = {}
        self._tasks: dict[TaskId, _Task] = {}
        self._paused: set[str] = set()
        self._outdated: dict[str, tuple[ConnectorConfig, float]] = {}
        """Per connector whose config was changed: that config, and since when it is known that its
        tasks have none of it."""
        self._waiting: frozenset[TaskId] = frozenset()
        self._exactly_once = parts.settings.exactly_once
        self._permit = parts.membership.permit
        self._term = self._permit.term
        self._forms = TaskForms(parts.node.plugins, parts.cluster_ids)
        self._host = parts.hosts(self._task_changed, guard)

    @property
    def running(self) -> Work:
        """Connectors and tasks that were started and not stopped, failed ones included."""
        return Work(frozenset(self._connectors), frozenset(self._tasks))

    async def start(self, work: Work, snapshot: ConfigSnapshot) -> None:
        """Launch what is configured of ``work``; failures are states."""
        # States are written for this membership only (``_put``).
        self._term = self._permit.term
        for name in sorted(work.connectors & snapshot.connectors.keys()):
            self._start_connector(name, snapshot)
        await asyncio.gather(*(self._start_task(task, snapshot) for task in sorted(work.tasks)))

    async def start_due(self, work: Work, snapshot: ConfigSnapshot) -> None:
        """Launch what of ``work`` is due; what waits is UNASSIGNED, and ``reported``."""
        due = self.due(work, snapshot)
        self._waiting = frozenset()
        self._let_wait((work.tasks & snapshot.task_configs.keys()) - due.tasks)
        await self.start(due, snapshot)

    def due(self, work: Work, snapshot: ConfigSnapshot) -> Work:
        """Return what of ``work`` is configured and may start.

        A task waits where its config was made of another connector config than the one in force: it
        would copy what the user has changed, for the moment until the connector publishes. Java
        starts it. So it is here after ``LONGEST_WAIT_S``: a connector that cannot publish does not
        keep its tasks from what they did before.
        """
        # Since it is known, not since this call: rounds may follow each other.
        now, known = self._clock.monotonic(), self._outdated
        self._outdated = {
            name: known[name] if name in known and known[name][0] == config else (config, now)
            for name, config in snapshot.connectors.items()
            # A stopped or paused connector publishes nothing: its tasks would wait in vain.
            if snapshot.applied.get(name, config) != config
            and snapshot.target(name) is TargetState.STARTED
        }
        wait = {it for it, (_, at) in self._outdated.items() if now - at < LONGEST_WAIT_S}
        configured = work.tasks & snapshot.task_configs.keys()
        return Work(
            work.connectors & snapshot.connectors.keys(),
            frozenset(it for it in configured if it.connector not in wait),
        )

    def _let_wait(self, tasks: frozenset[TaskId]) -> None:
        self._waiting |= tasks
        for task in tasks:
            self._put(task, Status(State.UNASSIGNED))

    @property
    def waits(self) -> bool:
        """Whether tasks wait for configs that are made of a changed connector config."""
        return self._term == self._permit.term and not self._waiting <= self._tasks.keys()

    async def stop(self, work: Work, snapshot: ConfigSnapshot) -> None:
        """Stop and forget work, all in parallel within the graceful time.

        Topics in use are forgotten for connectors that are not configured any more.
        """
        # A round may revoke what was never started here.
        work &= self.running
        # Marked before the first await, so that a report in between plans no restart.
        for task in work.tasks:
            # A failure that is reported while it stops plans no restart.
            self._tasks[task].stopping = True
            self._cancel_restart(self._tasks[task])
        # In parallel, as Java's ``startAndStop``: slow plug-ins must not add up.
        await asyncio.gather(
            *(self._host.stop_task(task, self._graceful_s) for task in sorted(work.tasks)),
            *(self._connectors[name].stop() for name in work.connectors),
        )
        # A task that was refused is in no host, which would report its end.
        for task in work.tasks:
            if self._tasks.pop(task).refused is not None:
                self._put(task, Status(State.UNASSIGNED))
        for name in work.connectors:
            del self._connectors[name], self._configs[name]
            # KIP-558: active topics are reset when a connector is deleted.
            if name not in snapshot.connectors:
                self._parts.status.delete_topics(name)
        self._on_change()

    def changed(self, connectors: Iterable[str], snapshot: ConfigSnapshot) -> Work:
        """Return the tasks that a commit has changed or taken away; unchanged ones run on.

        With exactly-once support all of them: before tasks of the new configs start, every producer
        is fenced.
        """
        names = frozenset(connectors)
        current = {task for name in names for task in snapshot.tasks(name)}
        stale = (
            task
            for task, entry in self._tasks.items()
            if task.connector in names
            and (
                self._exactly_once
                or task not in current
                or not self._is_as_started(task, entry, snapshot)
                or _in_force(task.connector, snapshot) != entry.connector
            )
        )
        return Work(tasks=frozenset(stale))

    def _is_as_started(self, task: TaskId, entry: _Task, snapshot: ConfigSnapshot) -> bool:
        # Java compares nothing and stops every task of the connector; unchanged ones run on here.
        config = snapshot.task_configs.get(task)
        if config is None or config == entry.config:
            return config is not None
        # The number of tasks is part of what a mirror's task computes for itself
        # (``TaskForms.in_force``).
        if len(snapshot.tasks(task.connector)) != entry.count or not self._forms.same(
            config, entry.config, entry.connector
        ):
            return False
        entry.config = config  # the next commit may differ from it in what only this one tells
        return True

    async def for_java(self) -> Mapping[str, tuple[ConnectorConfig, TaskConfigs]]:
        """Return what Java's connectors would deal now, with the configs of those that run here;
        without what takes too long."""

        async def ask(name: str) -> TaskConfigs | None:
            try:
                async with asyncio.timeout(FOR_JAVA_S):
                    return await self._connectors[name].java_task_configs()
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the work still has to be stopped
                log.info(
                    "what Java would deal is not known connector=%s cause=%s",
                    name,
                    cause_text(error),
                )
                return None

        names = sorted(self._connectors)
        dealt = await asyncio.gather(*map(ask, names))
        return {
            name: (self._configs[name], configs)
            for name, configs in zip(names, dealt, strict=True)
            if configs is not None
        }

    def outdated(self, connectors: Iterable[str], snapshot: ConfigSnapshot) -> list[str]:
        """Return which of these connectors run here with a config that was written again since."""
        configs = snapshot.connectors
        return [
            name
            for name in sorted(connectors)
            # An equal config counts too, as in Connect; one read before the start does not.
            if name in self._configs
            and name in configs
            and self._configs[name] is not configs[name]
        ]

    async def restart_connector(
        self, name: str, snapshot: ConfigSnapshot, *, announced: bool = False
    ) -> None:
        """Stop a connector that runs here and start it with its config of now."""
        await self._connectors[name].stop()
        del self._connectors[name], self._configs[name]
        # After the stop, whose UNASSIGNED would overwrite it.
        if announced:
            self._put(name, Status(State.RESTARTING))
        if name in snapshot.connectors:
            self._parts.meter.life.count_restart("connector")
            self._start_connector(name, snapshot)

    async def repair_host(self) -> None:
        """Stop tasks of the host that are unknown here, start those that the host has lost."""
        # The host lives through losses of the membership and restarts of child processes; this
        # object's records may differ from it.
        there = frozenset(self._host.tasks())
        for task in sorted(there - self._tasks.keys()):
            log.warning("stopping a task that is not assigned here task=%s", task)
            await self._host.stop_task(task, self._graceful_s)
        for task, entry in list(self._tasks.items()):
            waits = entry.refused or entry.timer or entry.launching or entry.state is State.FAILED
            if task not in there and not waits:
                log.warning("starting an assigned task that does not run task=%s", task)
                await self._launch(task, entry)

    def repair_states(self) -> None:
        """Write states again where others are published, as by a former worker."""
        shown: list[tuple[str | TaskId, Status]] = [
            *self.connector_status().items(),
            *self.task_status().items(),
        ]
        for work, status in shown:
            # As Java's ``putSafe``: a worker that lost the work may have written last.
            stored = self._parts.status.get(work)
            there = None if stored is None else (stored.state, stored.worker_id)
            # UNASSIGNED must not overwrite anybody (``_SAFE``).
            if status.state is State.UNASSIGNED or there == (
                status.state,
                self._parts.node.worker_id,
            ):
                continue
            log.warning(
                "published state differs from that of the work here, writing it again work=%s", work
            )
            self._put(work, status)

    def reconfigure(self, name: str) -> None:
        """Let a connector that runs here make and publish its task configs again."""
        self._connectors[name].request_reconfiguration()

    async def comes_up(self, name: str, within_s: float) -> bool:
        """Return whether a connector that was just started here does not fail; a slow one counts as
        up."""
        connector = self._connectors.get(name)
        if connector is None:
            return True
        # ``asyncio.wait`` leaves the loser running, hence the cancels.
        settling = asyncio.ensure_future(connector.settled())
        timer = asyncio.ensure_future(self._clock.sleep(within_s))
        waits: set[asyncio.Future[State] | asyncio.Future[None]] = {settling, timer}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return connector.status.state is not State.FAILED
        finally:
            timer.cancel()
            settling.cancel()

    async def restart_tasks(
        self, tasks: Iterable[TaskId], snapshot: ConfigSnapshot, *, announced: bool = False
    ) -> None:
        """Stop tasks that run here and start them with their configs of now."""
        chosen = Work(tasks=frozenset(tasks)) & self.running
        # Stop, announce, start: the order in which Java's ``doRestartConnectorAndTasks`` acts.
        await self.stop(chosen, snapshot)
        for task in chosen.tasks:
            self._parts.meter.life.count_restart("task")
            if announced:
                self._put(task, Status(State.RESTARTING))
        await self.start(chosen, snapshot)

    async def set_target(self, name: str, target: TargetState) -> None:
        """Start, pause or stop a connector that runs here; its tasks here pause and resume."""
        self._note_target(name, target)
        if name in self._connectors:
            self._connectors[name].set_target(target)
            # A stop and a resume that were read at once leave it running, but took its tasks away.
            self._connectors[name].request_reconfiguration()
        paused = target is TargetState.PAUSED
        if target is TargetState.STOPPED:
            return  # the commit of no tasks stops them
        snapshot = self._parts.config.snapshot()
        here = Work(tasks=frozenset(it for it in self._tasks if it.connector == name))
        changed = here - self.due(here, snapshot)  # while it was paused
        await self.stop(changed, snapshot)
        self._let_wait(changed.tasks & snapshot.task_configs.keys())
        tasks = [t for t, entry in self._tasks.items() if t.connector == name and not entry.refused]
        await asyncio.gather(*(self._host.pause_task(task, paused=paused) for task in tasks))

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Pause exactly these source partitions, -1 for whole topics."""
        self._host.hold(partitions)

    async def keep_out(self, partitions: frozenset[TopicPartition]) -> None:
        """Let no task here copy these source partitions; returns when that is so."""
        await self._host.keep_out(partitions)

    async def close(self) -> None:
        """Close the task host; the work was stopped before."""
        await self._host.close()

    def connector_status(self) -> Mapping[str, Status]:
        return {name: connector.status for name, connector in self._connectors.items()}

    def task_status(self) -> Mapping[TaskId, Status]:
        states = (
            (task, entry.refused or self._host.status(task)) for task, entry in self._tasks.items()
        )
        return {task: status for task, status in states if status is not None}

    def problems(self) -> Sequence[str]:
        """What is wrong now, one line each: failed connectors and tasks, and problems that
        connectors report."""
        found = [f"task {task}: {s.cause}" for task, s in self.task_status().items() if s.cause]
        for name, connector in self._connectors.items():
            if connector.status.cause is not None:
                found.append(f"{name}: {connector.status.cause}")
        return found + [f"{where}: {cause}" for where, cause in self.reported().items()]

    def reported(self) -> Mapping[str, str]:
        """What running connectors report, with the cause, and incomplete commits."""
        problems = {
            f"{name}: {what}": cause
            for name, connector in self._connectors.items()
            for what, cause in connector.problems().items()
        }
        for name in self._parts.config.snapshot().inconsistent & self._connectors.keys():
            problems[name] = "its stored task configs are incomplete, they are published again"
        for task, entry in self._tasks.items():
            if entry.state is State.RUNNING and self._is_unproven(entry):
                problems[str(task)] = (
                    f"it runs again after {entry.failures} failures, the last one: {entry.cause}"
                )
        if self.waits:
            for task in sorted(self._waiting - self._tasks.keys()):
                problems[str(task)] = (
                    f"it waits for a config that {task.connector} makes of its changed one, after "
                    f"{LONGEST_WAIT_S:.0f} s it runs with the former one"
                )
        return problems | dict(self._host.problems())

    def notes(self) -> Sequence[Finding]:
        return [
            Finding(task=name, what=what, text=text, count=1, harms=False)
            for name, connector in self._connectors.items()
            for what, text in connector.notes().items()
        ]

    def backlog(self) -> Mapping[TopicPartition, WaitingPartition]:
        """Return the source partitions that no task has, because their copy does not exist, and
        what waits in them."""
        return {
            partition: waiting
            for connector in self._connectors.values()
            for partition, waiting in connector.backlog().items()
        }

    def _is_unproven(self, entry: _Task) -> bool:
        """Whether a task failed several times and has not run for ``PROVEN_S`` since."""
        return entry.failures > 1 and self._clock.monotonic() - entry.running_since < PROVEN_S

    def state(self) -> State:
        """Aggregate state: FAILED if anything is, UNASSIGNED while anything has not started yet."""
        states = {status.state for status in self.connector_status().values()}
        states |= {status.state for status in self.task_status().values()}
        if State.FAILED in states:
            return State.FAILED
        if not states or not states <= {State.RUNNING, State.PAUSED, State.STOPPED}:
            return State.UNASSIGNED
        return next(s for s in (State.RUNNING, State.PAUSED, State.STOPPED) if s in states)

    # ---- connectors

    def _start_connector(self, name: str, snapshot: ConfigSnapshot) -> None:
        config, target = snapshot.connectors[name], snapshot.target(name)
        self._note_target(name, target)
        self._begin(name)

        def changed(status: Status) -> None:
            if (
                self._connectors.get(name) is connector
            ):  # else it was cut off, and reports that too late
                self._put(name, status)
                self._on_change()

        # Its tasks of asyncio inherit the scope from the context in which they are created.
        with log_scope(name, below=1):
            connector = WorkerConnector(
                self._build,
                config,
                apply=partial(self._publish, name, config),
                on_status=changed,
                clock=self._clock,
                target=target,
                resolve=self._parts.resolve,
                facts=ConnectorFacts(
                    self._parts.meter.rates, partial(self._published, name), self._kept_out
                ),
            )
            self._connectors[name], self._configs[name] = connector, config
            connector.start()

    def _published(self, name: str) -> Sequence[Mapping[str, str]]:
        backfills = self._parts.backfills
        streamed = backfills.streamed() if backfills is not None and name == SOURCE_NAME else ()
        return [*self._parts.config.snapshot().published(name), *streamed]

    def _kept_out(self) -> Collection[TopicPartition]:
        backfills = self._parts.backfills
        return () if backfills is None else backfills.in_backfill()

    def _build(self, config: Mapping[str, str]) -> AnyConnector:
        return self._parts.node.plugins.find(config.get("connector.class", ""))(config)

    def _note_target(self, name: str, target: TargetState) -> None:
        if target is TargetState.PAUSED:
            self._paused.add(name)
        else:
            self._paused.discard(name)

    # ---- tasks

    async def _start_task(self, task: TaskId, snapshot: ConfigSnapshot) -> None:
        config = snapshot.task_configs.get(task)
        # The round's commit may be replaced: the next round starts what is in force then.
        if config is None or task not in snapshot.tasks(task.connector):
            return
        self._note_target(task.connector, snapshot.target(task.connector))
        self._begin(task)
        entry = self._tasks[task] = _Task(
            config,
            _in_force(task.connector, snapshot),
            count=len(snapshot.tasks(task.connector)),
            generation=snapshot.generations.get(task.connector, -1),
        )
        await self._launch(task, entry)

    async def _launch(self, task: TaskId, entry: _Task) -> None:
        # ``repair_host`` sees the task missing in the host while this awaits; without the mark it
        # would start a second one.
        entry.refused, entry.launching = None, True
        try:
            # At each launch: a provider may have another secret, the reason of a restart.
            connector, own = self._resolved(entry)
            entry.framework = parse_config(FrameworkConfig, connector)
            spec = TaskSpec(
                id=task,
                connector_config=connector,
                config=self._forms.in_force(own, connector, entry.count),
                paused=task.connector in self._paused,
                generation=self._parts.membership.generation,
                version=self._version(connector) or "",
                configs=entry.generation,
            )
            await self._host.start_task(spec)
        except Exception as error:
            # A placeholder that cannot be resolved, a host that cannot start, or a defect: no one
            # else would start it again.
            if not isinstance(error, Mm2pyError):
                log.exception("task cannot be started task=%s", task)
            entry.refused = Status(State.FAILED, error)
            self._task_changed(task, entry.refused)
        finally:
            entry.launching = False

    def _resolved(self, entry: _Task) -> tuple[dict[str, str], dict[str, str]]:
        try:
            return self._parts.resolve(entry.connector), self._parts.resolve(entry.config)
        except ConfigError as error:
            # The stored config is right: a file of secrets that is replaced comes back.
            raise RetriableError(error.message, remedy=error.remedy) from error

    def _task_changed(self, task: TaskId, status: Status) -> None:
        # Stopped and forgotten: a late report of its host.
        entry = self._tasks.get(task)
        if entry is None:
            return
        entry.state = status.state
        self._put(task, status)
        self._on_change()
        if status.state is State.RUNNING:
            entry.running_since = self._clock.monotonic()
        elif (
            status.state is State.FAILED
            and not entry.stopping
            and self._may_restart(entry, status.cause)
        ):
            self._plan_restart(task, entry, status.cause)

    def _may_restart(self, entry: _Task, cause: Exception | None) -> bool:
        restarts = entry.framework.task_auto_restart
        if restarts is None:
            restarts = self._parts.settings.task_auto_restart
        # A wrong config or a refused record is still there after a restart.
        return restarts and not isinstance(cause, ConfigError | PartitionError | RefusedRecordError)

    def _plan_restart(self, task: TaskId, entry: _Task, cause: Exception | None) -> None:
        self._cancel_restart(entry)
        # Inf while it never ran: the difference is negative, and failures add up.
        if self._clock.monotonic() - entry.running_since > STEADY_S:
            entry.failures = 0
        entry.running_since = math.inf
        longest = max(entry.framework.errors_retry_delay_max_ms / 1000, SHORTEST_RESTART_S)
        pause = doubled(FIRST_RESTART_S, longest, entry.failures)
        entry.failures += 1
        entry.cause = self._parts.node.mask.apply(str(cause))
        log.info(
            "task will be restarted task=%s pause_s=%.0f failures=%d", task, pause, entry.failures
        )
        entry.timer = asyncio.ensure_future(self._restart_after(task, entry, pause))

    async def _restart_after(self, task: TaskId, entry: _Task, pause_s: float) -> None:
        await self._clock.sleep(pause_s)
        # Stopped, or started again with another config, during the pause.
        if self._tasks.get(task) is not entry:
            return
        entry.timer = None
        self._parts.meter.life.count_restart("task")
        # The last failure is shown while it starts.
        last = self._parts.status.get(task)
        self._put(task, Status(State.RESTARTING), trace=None if last is None else last.trace)
        await self._launch(task, entry)

    def _cancel_restart(self, entry: _Task) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    # ---- states

    def masked(self, trace: str) -> str:
        """Return a text as ``explain`` publishes it, without secrets."""
        return self._parts.node.mask.apply(trace)

    def explain(self, work: str | TaskId, trace: str) -> None:
        """Publish why RUNNING work here is done in part; empty where it is done."""
        trace = self.masked(trace)
        self._put(work, Status(State.RUNNING), trace=trace or None)

    def _begin(self, work: str | TaskId) -> None:
        """What ran in a process that was killed does not run before it has started here, however
        long that takes."""
        # A killed worker's last word is RUNNING, which readers of the status topic would believe.
        stored = self._parts.status.get(work)
        if stored is not None and stored.state is State.RUNNING:
            self._put(work, Status(State.UNASSIGNED))

    def _put(self, work: str | TaskId, status: Status, *, trace: str | None = None) -> None:
        if self._permit.term != self._term:
            return  # the work was lost with its membership: another worker's states count
        if status.cause is not None:
            trace = self._parts.node.mask.apply(trace_of(status.cause))
        stored = StoredStatus(
            state=status.state,
            trace=trace,
            worker_id=self._parts.node.worker_id,
            generation=self._parts.membership.generation,
            version=self._version_of(work),
        )
        # Without a permit another worker may own the work: then no state of ours may replace its.
        safe = status.state in _SAFE or not self._permit.valid
        self._parts.status.put(work, stored, safe=safe)

    def _version_of(self, work: str | TaskId) -> str | None:
        name = work.connector if isinstance(work, TaskId) else work
        config = self._parts.config.snapshot().connectors.get(name)
        return None if config is None else self._version(config)

    def _version(self, config: ConnectorConfig) -> str | None:
        try:
            factory: object = self._parts.node.plugins.find(config.get("connector.class") or "")
        except ConfigError:
            return None
        version: object = getattr(factory, "plugin_version", None)
        return version if isinstance(version, str) else None


def _in_force(connector: str, snapshot: ConfigSnapshot) -> ConnectorConfig:
    """Return the connector config that the task configs were made of."""
    applied = snapshot.applied.get(connector)
    return snapshot.connectors.get(connector, {}) if applied is None else applied
