"""From a connector's task configs to the config topic (kcr 3.3).

Flow: connector, which runs on the leader -> ``publish`` -> completed, compared with what is stored -> commit record
-> every worker. It raises what went wrong; the connector tries again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, final

from mm2py.clock import Clock, wait_or_stop
from mm2py.config.providers import placeholders
from mm2py.errors import ConfigError, RetriableError
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.storage.config_state import ConfigSnapshot, ConnectorConfig
from mm2py.types import TargetState

LEADER_WAIT_S: Final = 10.0


@final
class TaskPublication:
    """Publishes the task configs of connectors that run on this node, which leads."""

    def __init__(
        self,
        parts: HerderParts,
        queue: HerderQueue,
        *,
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._queue = queue
        self._clock = clock
        self._leader_changed = asyncio.Event()
        self._published: dict[str, tuple[ConnectorConfig, Sequence[Mapping[str, str]]]] = {}
        """Per connector: its raw config, and the task configs that are in force since."""

    def look_again(self) -> None:
        """A round is over: this worker may lead now."""
        self._leader_changed.set()

    def forget(self, name: str) -> None:
        """The connector's target state changed: a stop takes its task configs away, and it publishes anew."""
        self._published.pop(name, None)

    def overwritten(self, name: str, snapshot: ConfigSnapshot) -> bool:
        """Return whether other task configs are in force than those published here last."""
        made_of, configs = self._published.get(name, ({}, ()))
        return _current(name, made_of, snapshot) and _differs(name, configs, snapshot)

    async def publish(
        self, name: str, made_of: ConnectorConfig, configs: Sequence[Mapping[str, str]]
    ) -> None:
        """Bring task configs into force if they differ from those that are.

        ``made_of`` is the raw config of the connector that made them: when another one is in force by
        now, or the connector is not to run, nothing is written.
        """
        parts = self._parts
        self._published.pop(name, None)
        await self._until_led()
        snapshot = parts.config.snapshot()
        if not _current(name, made_of, snapshot):
            return
        wanted = [self._completed(made_of, config) for config in configs]
        if _differs(name, wanted, snapshot):
            await self._queue.submit(partial(self._store, name, made_of, wanted))
        self._published[name] = made_of, wanted

    async def _store(
        self, name: str, made_of: ConnectorConfig, wanted: Sequence[Mapping[str, str]]
    ) -> None:
        """Write task configs; runs in the queue, as everything that the leader writes."""
        parts, snapshot = self._parts, self._parts.config.snapshot()
        if not _current(name, made_of, snapshot) or not _differs(name, wanted, snapshot):
            return
        if not (parts.membership.permit.valid and parts.membership.is_leader):
            raise RetriableError(
                f"connector {name} runs on a worker that does not lead the group, only the leader writes task"
                " configs",
                remedy="the next rebalance moves it; bring all workers to one version if it does not",
            )
        what = f"writing {len(wanted)} task configs for connector {name} to the config topic"
        with self._queue.stage(what):
            await parts.config.put_tasks(name, wanted)

    async def _until_led(self) -> None:
        """Wait for the end of a round, which is not worth a warning."""
        until_s = self._clock.monotonic() + LEADER_WAIT_S
        while (
            not self._parts.membership.is_leader
            and (left_s := until_s - self._clock.monotonic()) > 0
        ):
            self._leader_changed.clear()
            await wait_or_stop(self._clock, left_s, self._leader_changed)

    def _completed(self, raw: ConnectorConfig, config: Mapping[str, str]) -> dict[str, str]:
        """Add Java's task class, and put placeholders back where resolved secrets would be stored."""
        whole = dict(config)
        if "task.class" not in whole:
            task_class = self._task_class(raw)
            if task_class is not None:
                whole["task.class"] = task_class
        for key, text in raw.items():
            if key in whole and text is not None and placeholders(text):
                whole[key] = text
        return whole

    def _task_class(self, raw: ConnectorConfig) -> str | None:
        try:
            java_class = self._parts.node.plugins.find(raw.get("connector.class") or "").java_class
        except ConfigError:
            return None
        stem, found, rest = java_class.rpartition("Connector")
        return f"{stem}Task{rest}" if found else java_class


def _current(name: str, made_of: ConnectorConfig, snapshot: ConfigSnapshot) -> bool:
    stored = snapshot.connectors.get(name)
    return stored == made_of and snapshot.target(name) is TargetState.STARTED


def _differs(name: str, wanted: Sequence[Mapping[str, str]], snapshot: ConfigSnapshot) -> bool:
    """Whether tasks, or the connector config they run with, are not the committed ones."""
    stored = [snapshot.task_configs.get(task) for task in snapshot.tasks(name)]
    if name in snapshot.inconsistent or stored != [dict(config) for config in wanted]:
        return True
    if name not in snapshot.generations:  # nothing was ever committed
        return bool(wanted)
    # Converters and other keys of the framework reach tasks by the connector config alone.
    return snapshot.applied.get(name) != snapshot.connectors.get(name)
