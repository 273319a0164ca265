"""Periodic jobs of one connector, one at a time (Java's ``Scheduler``).

Flow: ``repeat`` -> job -> error or success -> log on change, ``problems`` for status -> next
period. A job that fails is tried again at its next period; the connector stays RUNNING, as in Java,
but the error is kept where the operator sees it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, final

from mm2py.clock import Clock, cancelled
from mm2py.errors import Mm2pyError, UnsupportedVersionError

log = logging.getLogger(__name__)

Job = Callable[[], Awaitable[None]]

RETRY_S: Final = 10.0


@final
class Scheduler:
    """Runs the jobs of one connector.

    Args:
        clock: Time of the periods.
        timeout_ms: ``admin.timeout.ms``, the bound of one job.
        fail: Called with an error that no retry can help against: one of ours, or a target that is
            too old.
    """

    def __init__(self, clock: Clock, *, timeout_ms: int, fail: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._timeout_s = timeout_ms / 1000
        self._fail = fail
        self._turn = asyncio.Lock()
        self._loops: set[asyncio.Task[None]] = set()
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """What went wrong in the last run of each job, by job name; empty when all is well."""
        return self._problems

    async def run(self, name: str, job: Job) -> None:
        """Run ``job`` now and wait for it; its failure is logged and kept."""
        # Java's ``Scheduler`` has one thread: jobs of a connector never overlap.
        async with self._turn:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await job()
            # Trying again would not make the brokers newer.
            except UnsupportedVersionError:
                raise
            except TimeoutError:
                self._failed(
                    name, f"took longer than admin.timeout.ms={self._timeout_s * 1000:.0f}"
                )
            except Mm2pyError as error:
                self._failed(name, str(error))
            else:
                if self._problems.pop(name, None) is not None:
                    log.info("job works again job=%s", name)

    def repeat(self, name: str, job: Job, every_s: float, *, delayed: bool = False) -> None:
        """Run ``job`` every ``every_s`` seconds until ``close``, first now or after one period."""
        self._launch(name, self._repeat(name, job, every_s, delayed=delayed))

    async def ensure(self, name: str, job: Job) -> None:
        """Run ``job`` now and wait for it, then every ``RETRY_S`` seconds until a success."""
        await self.run(name, job)
        if name in self._problems:
            self._launch(name, self._retry(name, job))

    async def close(self) -> None:
        await cancelled(*self._loops)

    def _launch(self, name: str, work: Coroutine[None, None, None]) -> None:
        loop = asyncio.create_task(work, name=name)
        self._loops.add(loop)
        loop.add_done_callback(self._ended)

    async def _retry(self, name: str, job: Job) -> None:
        while name in self._problems:
            await self._clock.sleep(RETRY_S)
            await self.run(name, job)

    async def _repeat(self, name: str, job: Job, every_s: float, *, delayed: bool) -> None:
        due = self._clock.monotonic() + (every_s if delayed else 0)
        while True:
            await self._clock.sleep(due - self._clock.monotonic())
            await self.run(name, job)
            # Fixed rate, but what was missed is not made up for.
            due = max(due + every_s, self._clock.monotonic())

    def _failed(self, name: str, problem: str) -> None:
        if self._problems.get(name) != problem:
            log.warning("job failed and is tried again job=%s cause=%s", name, problem)
        self._problems[name] = problem

    def _ended(self, loop: asyncio.Task[None]) -> None:
        self._loops.discard(loop)
        error = None if loop.cancelled() else loop.exception()
        if isinstance(error, Exception):
            self._fail(error)
