"""All flows of one properties file on one node (Java's ``MirrorMaker``).

Flow: ``start`` -> one herder per flow, side by side -> ``stop`` in parallel. A flow that cannot be
started at all leaves the others running; the process ends by itself only when none is left.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import final

from mm2py.errors import Mm2pyError
from mm2py.runtime.herder.herder import Herder
from mm2py.types import FlowName

log = logging.getLogger(__name__)


@final
class MirrorMaker:
    """Runs herders."""

    def __init__(self, herders: Mapping[FlowName, Herder]) -> None:
        self._herders = dict(herders)
        self._running: dict[FlowName, asyncio.Task[None]] = {}

    def problems(self, flow: FlowName) -> Sequence[str]:
        """What is wrong with a flow now, one line each."""
        return self._herders[flow].problems()

    def start(self) -> None:
        for flow, herder in self._herders.items():
            self._launch(flow, herder)

    @property
    def ended(self) -> Collection[FlowName]:
        return [flow for flow, task in self._running.items() if task.done()]

    def add(self, flow: FlowName, herder: Herder) -> None:
        """Launch one more flow; returns at once."""
        self._herders[flow] = herder
        self._launch(flow, herder)

    async def remove(self, flow: FlowName, timeout_s: float) -> None:
        """Stop one flow and forget it."""
        herder, task = self._herders.pop(flow), self._running.pop(flow, None)
        herder.stop()
        if task is not None:
            await _ended([task], timeout_s)

    async def wait(self) -> Mapping[FlowName, Mm2pyError]:
        """Wait until no flow runs any more; return what failed."""
        # A loop: flows may be added while others end.
        while running := [task for task in self._running.values() if not task.done()]:
            await asyncio.wait(running)
        return {
            flow: herder.failure
            for flow, herder in self._herders.items()
            if herder.failure is not None
        }

    async def stop(self, timeout_s: float) -> bool:
        """Stop every flow in parallel; False if one had to be cut off after ``timeout_s``."""
        for herder in self._herders.values():
            herder.stop()
        return await _ended(list(self._running.values()), timeout_s)

    def _launch(self, flow: FlowName, herder: Herder) -> None:
        self._running[flow] = asyncio.create_task(herder.run(), name=str(flow))


async def _ended(tasks: Sequence[asyncio.Task[None]], timeout_s: float) -> bool:
    running = [task for task in tasks if not task.done()]
    if not running:
        return True
    # All in parallel against one deadline.
    _, late = await asyncio.wait(running, timeout=timeout_s)
    for task in late:
        log.error("flow did not stop in time and is cut off flow=%s", task.get_name())
        task.cancel()
    if late:
        # A cancelled herder still closes its sockets.
        await asyncio.wait(late, timeout=1.0)
    return not late
