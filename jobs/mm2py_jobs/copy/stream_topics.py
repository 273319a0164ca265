"""The topics of a flow that a stream copies: the flow's own connector, which finds and creates
them, without tasks.

Flow: ``StreamTopics.start`` -> ``partitions`` -> the driver reserves them; ``changed`` when they
have to be asked again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, final

from mm2py.clock import Clock
from mm2py.errors import FatalError
from mm2py.mirror.start_positions import LATE_PARTITIONS
from mm2py.types import TopicPartition
from mm2py_cli.output import say
from mm2py_connectors.mirror_source import MirrorSourceConnector
from mm2py_connectors.partition_deal import ASSIGNED_PARTITIONS, parse_partitions
from mm2py_jobs.copy.backfill_flow import BackfillSession
from mm2py_jobs.copy.stream import StreamPartitions
from mm2py_workers.signals import StopSignal

LOOK_S: Final = 0.5

_HERE: Final = {"sync.topic.acls.enabled": "false", "sync.topic.configs.enabled": "false"}
"""Of the connector in this process: it creates topics and deals partitions. What else it does is
the workers' part."""


@final
class StreamTopics:
    """The flow's connector without tasks: creates copies and finds partitions; is its context,
    too."""

    def __init__(self, session: BackfillSession, clock: Clock) -> None:
        self._connector = MirrorSourceConnector({**session.flow.connector, **_HERE})
        self._session, self._clock = session, clock
        self._published: Sequence[Mapping[str, str]] = ()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self.task: Mapping[str, str] = {}
        """Config of the flow's tasks."""

    @property
    def clock(self) -> Clock:
        return self._clock

    def published_tasks(self) -> Sequence[Mapping[str, str]]:
        """Return what the flow had before: where copies begin at ``latest``, what is found now was
        written since, and is copied whole."""
        return self._published

    def request_reconfiguration(self) -> None:
        """Partitions have come or gone."""
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """A loop of the connector has failed for good."""
        self._failure = error
        self._changed.set()

    async def start(self, stop: StopSignal) -> bool:
        """Find partitions; wait for the first one. False where a stop signal came before."""
        self._published = await self._session.published_tasks()
        await self._connector.start(self)
        waiting = ""
        while not stop.asked:
            if self.partitions().chosen:
                return True
            if not waiting:
                waiting = "the flow has no partition that can be copied yet, waiting"
                say(waiting)
            await self._clock.sleep(LOOK_S)
        return False

    def partitions(self) -> StreamPartitions:
        """Return what the flow copies now."""
        if self._failure is not None:
            raise FatalError(f"topics are not looked for any more: {self._failure}")
        self._changed.clear()
        configs = self._connector.task_configs(1)
        if not configs:
            return StreamPartitions(frozenset())
        self.task = configs[0]
        chosen, late = (
            frozenset(_partitions(configs[0], key))
            for key in (ASSIGNED_PARTITIONS, LATE_PARTITIONS)
        )
        return StreamPartitions(chosen, late)

    async def changed(self) -> None:
        """Return when ``partitions`` has to be asked again."""
        await self._changed.wait()

    async def close(self) -> None:
        await self._connector.stop()


def _partitions(config: Mapping[str, str], key: str) -> list[TopicPartition]:
    return list(parse_partitions([it for it in config.get(key, "").split(",") if it]))
