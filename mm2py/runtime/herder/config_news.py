"""Changes read from the config topic that the herder's loop has not handled yet.

Flow: config store -> ``ConfigListener`` methods (note and wake, nothing more) -> the herder's loop takes them.
"""

import logging
from collections.abc import Iterable
from typing import final

from mm2py.errors import ConfigError
from mm2py.observability.loggers import LoggerRegistry
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_state import RestartRequest

log = logging.getLogger(__name__)


@final
class ConfigNews:
    """Collects changes until they are taken; implements ``ConfigListener``."""

    def __init__(
        self, queue: HerderQueue, loggers: LoggerRegistry, store: ConfigBackingStore
    ) -> None:
        self._queue = queue
        self._store = store
        self._loggers = loggers
        self._known: set[str] = set()
        self._updated: set[str] = set()
        self._targets: set[str] = set()
        self._committed: set[str] = set()
        self._restarts: dict[str, RestartRequest] = {}
        self.rebalance_expected = False
        """A change was read that needs a round, which was not asked for yet."""

    @property
    def committed(self) -> bool:
        """Whether commits of task configs wait to be taken."""
        return bool(self._committed)

    def know(self, connectors: Iterable[str]) -> None:
        """Note which connectors were there at the start."""
        self._known.update(connectors)

    def take_updated(self) -> set[str]:
        """Return connectors whose config was written again."""
        taken, self._updated = self._updated, set()
        return taken

    def take_targets(self) -> set[str]:
        """Return connectors whose target state changed."""
        taken, self._targets = self._targets, set()
        return taken

    def take_committed(self) -> set[str]:
        """Return connectors with newly committed task configs."""
        taken, self._committed = self._committed, set()
        return taken

    def take_restarts(self) -> dict[str, RestartRequest]:
        """Return the widest restart request of each connector."""
        taken, self._restarts = self._restarts, {}
        return taken

    # ---- ConfigListener

    def connector_changed(self, name: str) -> None:
        """A config was read: it acts in place where the connector runs; a new one needs a round."""
        self._updated.add(name)
        if name not in self._known:
            self._known.add(name)
            self.rebalance_expected = True
        self._queue.wake()

    def connector_removed(self, name: str) -> None:
        """A connector is gone: a round takes its work away."""
        self._known.discard(name)
        self._updated.discard(name)
        self.rebalance_expected = True
        self._queue.wake()

    def tasks_changed(self, connector: str) -> None:
        """Task configs were committed: changed tasks stop, a round starts them again.

        An incomplete commit changes nothing here: tasks continue until the connector's owner has
        published its task configs again.
        """
        if connector not in self._store.snapshot().inconsistent:
            self._committed.add(connector)
            self.rebalance_expected = True
        self._queue.wake()

    def target_changed(self, connector: str) -> None:
        """A connector is to pause, stop or run; no round."""
        self._targets.add(connector)
        self._queue.wake()

    def restart_requested(self, request: RestartRequest) -> None:
        """A restart was requested; each worker does its part."""
        waiting = self._restarts.get(request.connector)
        self._restarts[request.connector] = merge_restarts(waiting, request)
        self._queue.wake()

    def logger_level_changed(self, namespace: str, level: str) -> None:
        """A level was set for every worker."""
        try:
            self._loggers.set(namespace, level)
        except ConfigError as error:
            log.warning("log level is not set logger=%s cause=%s", namespace, error)


def merge_restarts(waiting: RestartRequest | None, new: RestartRequest) -> RestartRequest:
    """Return the request of the two that reaches further; waiting ones of a connector become one."""
    return new if waiting is None or new.impact >= waiting.impact else waiting
