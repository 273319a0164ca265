"""One running connector: start with retries, reconfigure on request, stop within Connect's 5 s.

Flow: ``start`` -> connector's loops -> ``request_reconfiguration`` -> the worker asks ``task_configs``.
A connector that fails takes no other with it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, final, runtime_checkable

from mm2py.api.connector import Connector
from mm2py.clock import Clock
from mm2py.errors import ConfigError, RetriableError
from mm2py.runtime.lifecycle import Lifecycle, Status
from mm2py.runtime.patience import Patience
from mm2py.types import State

__all__ = ["WorkerConnector"]

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
"""Fixed in Connect too (``Worker.CONNECTOR_GRACEFUL_SHUTDOWN_TIMEOUT_MS``)."""

TaskConfigs = Sequence[Mapping[str, str]]
ApplyTasks = Callable[[TaskConfigs], Awaitable[None]]


@runtime_checkable
class _TellsProblems(Protocol):
    """A connector that knows what is wrong while it runs."""

    def problems(self) -> Mapping[str, str]: ...


@final
class WorkerConnector:
    """Runs one connector; implements ``mm2py.api.context.ConnectorContext`` for it.

    Args:
        build: makes the connector from its config; ``ConfigError`` makes it FAILED.
        config: complete, resolved config.
        apply: takes the task configs after each (re)configuration.
        on_status: told each change of state.
    """

    def __init__(
        self,
        build: Callable[[Mapping[str, str]], Connector],
        config: Mapping[str, str],
        *,
        apply: ApplyTasks,
        on_status: Callable[[Status], None],
        clock: Clock,
    ) -> None:
        self._build = build
        self._config = config
        self._apply = apply
        self._clock = clock
        self._lifecycle = Lifecycle("connector", on_status)
        self._wanted = asyncio.Event()
        self._stop = asyncio.Event()
        self._connector: Connector | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def clock(self) -> Clock:
        """Time."""
        return self._clock

    @property
    def status(self) -> Status:
        """State of the connector."""
        return self._lifecycle.status

    def problems(self) -> Mapping[str, str]:
        """What is wrong though the connector runs, with the cause; none where it cannot tell."""
        connector: object = self._connector
        return connector.problems() if isinstance(connector, _TellsProblems) else {}

    def request_reconfiguration(self) -> None:
        """Ask for new task configs; several requests before the next look are one."""
        self._wanted.set()

    def fail(self, error: Exception) -> None:
        """Make the connector FAILED; its tasks go on with what they have (Connect's rule)."""
        self._lifecycle.to(State.FAILED, error)

    def start(self) -> None:
        """Launch it; returns at once."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the loops and close the connector; cut off after Connect's 5 s."""
        running = self._running
        self._stop.set()
        self._wanted.set()
        if running is None:
            return
        done, _ = await asyncio.wait({running}, timeout=STOP_TIMEOUT_S)
        if not done:
            log.warning(
                "connector did not stop in time and is cut off timeout_s=%.0f", STOP_TIMEOUT_S
            )
            running.cancel()
            await asyncio.wait({running}, timeout=1.0)

    async def _run(self) -> None:
        try:
            self._connector = self._build(self._config)
            if await self._start(self._connector):
                self._lifecycle.to(State.RUNNING)
                self._wanted.set()
                await self._reconfigure_forever(self._connector)
        except Exception as error:  # noqa: BLE001 - the worker's edge: fails the connector visibly
            self._lifecycle.to(State.FAILED, error)
        finally:
            await self._close()

    async def _start(self, connector: Connector) -> bool:
        patience = Patience(self._clock, "the connector's start", self._stop)
        while not self._stop.is_set():
            try:
                await connector.start(self)
            except RetriableError as error:
                await patience.wait(error)
            else:
                patience.succeeded()
                return True
        return False

    async def _reconfigure_forever(self, connector: Connector) -> None:
        while not self._stop.is_set():
            await self._wanted.wait()
            self._wanted.clear()
            if self._stop.is_set() or self.status.state is not State.RUNNING:
                continue
            await self._apply(self._task_configs(connector))

    def _task_configs(self, connector: Connector) -> TaskConfigs:
        limit = _tasks_max(self._config)
        configs = connector.task_configs(limit)
        if len(configs) <= limit:
            return configs
        text = (
            f"the connector has generated {len(configs)} tasks, which is greater than {limit}, the"
            " maximum number of tasks it is configured to create"
        )
        if self._config.get("tasks.max.enforce", "true").strip().lower() == "true":
            raise ConfigError(text, remedy="raise tasks.max or repair the connector")
        log.warning("%s; tasks.max.enforce=false lets them run", text)
        return configs

    async def _close(self) -> None:
        try:
            if self._connector is not None:
                await self._connector.stop()
        except Exception as error:  # noqa: BLE001 - the worker's edge: an error in stop is a state
            self._lifecycle.to(State.FAILED, error)
        if self.status.state is not State.FAILED:
            self._lifecycle.to(State.UNASSIGNED)


def _tasks_max(config: Mapping[str, str]) -> int:
    text = config.get("tasks.max", "1").strip()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(
            f"tasks.max={text}: must be a whole number of at least 1", remedy="correct the property"
        )
    return int(text)
