"""One ordinary worker as a process runs it: herder, task hosts, REST.

Flow: ``run`` -> the herder, and REST beside it -> a stop is asked for, or one of them failed -> drained and closed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import final

from mm2py.observability.metrics import Metrics
from mm2py.runtime.herder.herder import Herder
from mm2py_workers.node_parts import NodeParts
from mm2py_workers.rest_node import RestNode, Served
from mm2py_workers.signals import DRAIN_TIMEOUT_S, StopSignal

log = logging.getLogger(__name__)


@final
class ConnectWorker:
    """One ordinary worker: its herder, and REST over it."""

    def __init__(self, herder: Herder, rest: RestNode, node: NodeParts, metrics: Metrics) -> None:
        self.herder = herder
        self._rest = rest
        self._pool = node.pool
        self._served = Served(herders={None: herder}, parts=node, meters=metrics.meters)
        self.validator = node.validator

    async def run(
        self, stop: StopSignal, begin: Callable[[], Awaitable[None]] | None = None
    ) -> int:
        """Run until a stop is asked for, the herder failed or ``begin`` did; return the exit code."""
        if self._pool is not None:
            self._pool.start()
        herding = asyncio.create_task(self.herder.run(), name="worker")
        serving = asyncio.create_task(self._serve_and(begin), name="rest")
        asked = asyncio.create_task(stop.wait())
        # What begins with the worker and fails, ends it.
        serving.add_done_callback(lambda done: stop.ask() if _failed(done) else None)
        await asyncio.wait({herding, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        log.info("stopping: polling ends, what is under way is written and committed")
        serving.cancel()
        await asyncio.wait({serving})
        self.herder.stop()
        _, late = await asyncio.wait({herding}, timeout=DRAIN_TIMEOUT_S)
        if late:
            log.error("the worker did not stop in time and is cut off")
            herding.cancel()
            await asyncio.wait(late, timeout=1.0)
        await self._rest.stop()
        if self._pool is not None:
            await self._pool.close()
        if _failed(serving):
            await serving  # says why
        return 1 if late or (self.herder.failure is not None and not stop.asked) else 0

    async def abandon(self) -> None:
        """Close what was bound, without having run."""
        await self._rest.stop(timeout_s=0)

    async def _serve_and(self, begin: Callable[[], Awaitable[None]] | None) -> None:
        await self._rest.serve(self._served)
        if begin is not None:
            await begin()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None
