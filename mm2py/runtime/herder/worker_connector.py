"""One connector of this node: started, paused or stopped as its target state demands.

Flow: ``start`` -> connector's loops -> ``request_reconfiguration`` -> ``task_configs`` ->
``apply``. Start and publication are tried again without end; FAILED is final but for STOPPED, and
where a config provider had no value: that is tried again too. A connector that fails takes no other
with it; it is cut off when it does not stop within Connect's 5 s.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final, runtime_checkable

from mm2py.api.connector import AnyConnector
from mm2py.api.context import WaitingPartition
from mm2py.client.backoff import doubled
from mm2py.clock import Clock, or_stop, wait_or_stop
from mm2py.config.definitions import parse_config
from mm2py.config.framework import FrameworkConfig
from mm2py.config.providers import placeholders
from mm2py.errors import ConfigError, RetriableError
from mm2py.observability.logging import cause_text
from mm2py.runtime.patience import Patience
from mm2py.runtime.tasks.lifecycle import Lifecycle, Status
from mm2py.types import State, TargetState, TopicPartition

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
"""Fixed in Connect too (``Worker.CONNECTOR_GRACEFUL_SHUTDOWN_TIMEOUT_MS``)."""

FIRST_RESOLVE_S: Final = 1.0
"""First pause before a config is resolved again; each is twice the last, up to
``LONGEST_RETRY_S``."""

FIRST_RETRY_S: Final = 0.25
LONGEST_RETRY_S: Final = 60.0
"""Pauses between attempts to publish task configs (Java's
``ExponentialBackoff(250, 2, 60000, 0)``)."""

TaskConfigs = Sequence[Mapping[str, str]]
Resolve = Callable[[Mapping[str, str | None]], Mapping[str, str]]
ApplyTasks = Callable[[TaskConfigs], Awaitable[None]]


@runtime_checkable
class _ReportsProblems(Protocol):
    """A connector that reports what is wrong while it runs."""

    def problems(self) -> Mapping[str, str]: ...


@runtime_checkable
class _ReportsNotes(Protocol):
    """A connector that reports what is worth knowing though nothing is wrong."""

    def notes(self) -> Mapping[str, str]: ...


@runtime_checkable
class _ReportsBacklog(Protocol):
    """A connector that knows the source partitions without a copy, and what waits there."""

    def backlog(self) -> Mapping[TopicPartition, WaitingPartition]: ...


@runtime_checkable
class _DealsAsJava(Protocol):
    """A connector that knows what Java's would deal to its tasks if it started now."""

    async def java_task_configs(self, max_tasks: int) -> TaskConfigs | None: ...


@dataclass(frozen=True, slots=True)
class ConnectorFacts:
    """What a connector may ask about its flow: bytes per second by source partition, task configs
    in force, partitions kept out."""

    rates: Callable[[], Mapping[TopicPartition, float]]
    published: Callable[[], TaskConfigs]
    kept_out: Callable[[], Collection[TopicPartition]]


@final
class WorkerConnector:
    """Runs one connector; implements ``mm2py.api.context.ConnectorContext`` for it.

    Args:
        build: makes the connector from its config; ``ConfigError`` makes it FAILED.
        config: complete config; ``resolve`` makes it what the connector gets, at each start. While
            it raises ``ConfigError`` the connector is FAILED, and it is tried again with growing
            pauses (1 s to 60 s).
        apply: takes the task configs after each (re)configuration; what it raises is tried again
            with growing pauses (250 ms to 60 s), a ``ConfigError`` fails the connector.
        on_status: called at each change of state.
        target: the state it is to have; ``set_target`` changes it.
        facts: what it may ask about its flow.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, str]], AnyConnector],
        config: Mapping[str, str | None],
        *,
        apply: ApplyTasks,
        on_status: Callable[[Status], None],
        clock: Clock,
        target: TargetState,
        resolve: Resolve,
        facts: ConnectorFacts,
    ) -> None:
        self._build = build
        self._config = config
        self._resolve = resolve
        self._resolved: Mapping[str, str] = {}
        self._target = target
        self._apply = apply
        self._facts = facts
        self._clock = clock
        self._on_status = on_status
        self._lifecycle = Lifecycle("connector", self._status_changed)
        self._settled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = False
        self._connector: AnyConnector | None = None
        self._unpublished = ""
        self._waits: dict[str, str] = {}
        """Why it does not start, while that is tried again."""
        self._unresolved = False
        """Whether it is FAILED because its config could not be resolved."""
        self._running: asyncio.Task[None] | None = None

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def status(self) -> Status:
        return self._lifecycle.status

    async def settled(self) -> State:
        """Return the first state that it reaches after ``start``."""
        await self._settled.wait()
        return self.status.state

    def problems(self) -> Mapping[str, str]:
        """What is wrong though the connector runs, with the cause, and why it does not start; none
        where it does not report any."""
        connector: object = self._connector
        problems = dict(connector.problems()) if isinstance(connector, _ReportsProblems) else {}
        problems |= self._waits
        if self._unpublished:
            problems["task configs are not published yet"] = self._unpublished
        return problems

    def notes(self) -> Mapping[str, str]:
        """What is worth knowing though nothing is wrong, where the connector reports it."""
        connector: object = self._connector
        return connector.notes() if isinstance(connector, _ReportsNotes) else {}

    def backlog(self) -> Mapping[TopicPartition, WaitingPartition]:
        """Return the partitions without a task and copy, and what waits in them."""
        connector: object = self._connector
        return connector.backlog() if isinstance(connector, _ReportsBacklog) else {}

    async def java_task_configs(self) -> TaskConfigs | None:
        """Return what Java's connector would make if it started now; None where that is not known,
        or it does not run."""
        connector: object = self._connector
        if self.status.state is not State.RUNNING or not isinstance(connector, _DealsAsJava):
            return None
        limit = parse_config(FrameworkConfig, self._resolved).tasks_max
        configs = await connector.java_task_configs(limit)
        # What only this worker adds to the connector's config, or sets there, is none of Java's;
        # placeholders are put back later.
        ours = self._resolved.keys() - self._config.keys()
        written = {
            name: text
            for name, text in self._config.items()
            if text is not None and text != self._resolved.get(name) and not placeholders(text)
        }
        return configs and [
            {name: written.get(name, text) for name, text in config.items() if name not in ours}
            for config in configs
        ]

    def request_reconfiguration(self) -> None:
        """Ask for new task configs; several requests before the next look are one."""
        self._wanted.set()

    def partition_rates(self) -> Mapping[TopicPartition, float]:
        return self._facts.rates()

    def published_tasks(self) -> TaskConfigs:
        return self._facts.published()

    @property
    def kept_out(self) -> Collection[TopicPartition]:
        return self._facts.kept_out()

    def fail(self, error: Exception) -> None:
        """Make the connector FAILED; its tasks continue with what they have (Connect's rule)."""
        self._lifecycle.to(State.FAILED, error)

    def set_target(self, target: TargetState) -> None:
        """Start, pause or stop it in the background; a FAILED one takes only STOPPED (Connect's
        rule), but for one whose config could not be resolved."""
        if target is not self._target:
            self._target = target
            self._changed.set()

    def start(self) -> None:
        """Launch it; returns at once."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the loops and close the connector; cut off after Connect's 5 s."""
        running = self._running
        self._stopping = True
        self._changed.set()
        if running is None:
            return
        # As ``Worker.awaitStopConnector``; a plug-in may swallow the cancel: a second limit.
        done, _ = await asyncio.wait({running}, timeout=STOP_TIMEOUT_S)
        if not done:
            log.warning(
                "connector did not stop in time and is cut off timeout_s=%.0f", STOP_TIMEOUT_S
            )
            running.cancel()
            await asyncio.wait({running}, timeout=1.0)
            self._lifecycle.to(State.UNASSIGNED)

    def _status_changed(self, status: Status) -> None:
        self._settled.set()
        self._on_status(status)

    async def _run(self) -> None:
        while not self._stopping:
            # Before the target is read: a change after it is seen by the next turn.
            self._changed.clear()
            # Only a restart (another object) or a value that is back ends FAILED.
            failed = self.status.state is State.FAILED and not self._unresolved
            if self._target is TargetState.STARTED and not failed:
                await self._run_started()
                continue
            # KIP-875: also from FAILED, so that a broken connector's positions can be edited.
            if self._target is TargetState.STOPPED:
                self._lifecycle.to(State.STOPPED)
            elif self.status.state is not State.FAILED:
                self._lifecycle.to(State.PAUSED)
            await self._changed.wait()
        if self.status.state is not State.FAILED:
            self._lifecycle.to(State.UNASSIGNED)

    async def _run_started(self) -> None:
        """Run one connector instance until it fails, is stopped, or its target state changes."""
        try:
            if not await self._resolve_config():
                return
            self._connector = self._build(self._resolved)
            if await self._start(self._connector):
                # Until then no task exists: RUNNING alone would look healthy.
                if not self._facts.published():
                    self._unpublished = "the connector has just started"
                self._lifecycle.to(State.RUNNING)
                self._wanted.set()
                await self._reconfigure(self._connector)
        except Exception as error:  # noqa: BLE001 - the worker's edge: fails the connector visibly
            self._lifecycle.to(State.FAILED, error)
        finally:
            self._unpublished = ""
            self._waits.clear()
            await self._close()

    async def _resolve_config(self) -> bool:
        """Resolve the config, at each start: config providers may have new values.

        It is tried again until they have any: the config is right, or it would not be stored, and a
        file of secrets that is being replaced comes back. False where the target state changed.
        """
        failures = 0
        while not self._changed.is_set():
            try:
                self._resolved = self._resolve(self._config)
            except ConfigError as error:
                self._unresolved = True
                self._lifecycle.to(State.FAILED, error)
            else:
                self._unresolved = False
                if self.status.state is State.FAILED:
                    self._lifecycle.to(State.RESTARTING)
                return True
            pause = doubled(FIRST_RESOLVE_S, LONGEST_RETRY_S, failures)
            failures += 1
            await wait_or_stop(self._clock, pause, self._changed)
        return False

    async def _start(self, connector: AnyConnector) -> bool:
        patience = Patience(self._clock, "the connector's start", self._changed, waits=self._waits)
        while not self._changed.is_set():
            try:
                await connector.start(self)
            except RetriableError as error:
                await patience.wait(error)
            else:
                patience.succeeded()
                return True
        return False

    async def _reconfigure(self, connector: AnyConnector) -> None:
        failures = 0
        while not self._changed.is_set():
            await or_stop(self._wanted.wait(), self._changed)
            # Before the configs are made: what is requested meanwhile leads to another look.
            self._wanted.clear()
            if self._changed.is_set() or self.status.state is not State.RUNNING:
                continue
            try:
                await or_stop(self._apply(self._task_configs(connector)), self._changed)
            # More tasks than ``tasks.max`` (KIP-1004): trying again would not change that.
            except ConfigError:
                raise
            except Exception as error:  # noqa: BLE001 - Connect's rule: tried again without end
                pause = doubled(FIRST_RETRY_S, LONGEST_RETRY_S, failures)
                failures += 1
                self._unpublished = cause_text(error)
                log.warning(
                    "task configs are not published yet, tried again retry_s=%.2f cause=%s",
                    pause,
                    self._unpublished,
                )
                await wait_or_stop(self._clock, pause, self._changed)
                self._wanted.set()
            else:
                failures = 0
                if not self._changed.is_set():
                    self._unpublished = ""

    def _task_configs(self, connector: AnyConnector) -> TaskConfigs:
        framework = parse_config(FrameworkConfig, self._resolved)
        limit = framework.tasks_max
        configs = connector.task_configs(limit)
        if len(configs) <= limit:
            return configs
        text = (
            f"the connector has generated {len(configs)} tasks, which is greater than {limit}, the"
            " maximum number of tasks it is configured to create"
        )
        # KIP-1004; before Kafka 3.8 connectors could exceed it unnoticed.
        if framework.tasks_max_enforce:
            raise ConfigError(text, remedy="raise tasks.max or repair the connector")
        log.warning("%s; tasks.max.enforce=false lets them run", text)
        return configs

    async def _close(self) -> None:
        connector, self._connector = self._connector, None
        try:
            if connector is not None:
                await connector.stop()
        except Exception as error:  # noqa: BLE001 - the worker's edge: an error in stop is a state
            # It is to be STOPPED: an error of its ``stop`` must not keep it from that.
            if self._target is TargetState.STOPPED and not self._stopping:
                log.warning("connector did not stop in order cause=%s", cause_text(error))
            else:
                self._lifecycle.to(State.FAILED, error)
