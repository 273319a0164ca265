"""Requests of one herder, run one after the other on its loop (Connect's herder thread).

Flow: a caller -> ``submit`` (waits for the result, 90 s) -> ``run_due`` in the herder's loop, in
the order of submission -> the caller. Internal work comes by ``post``, also for later. ``stage``
records what the loop is doing; a caller that times out gets it in its error (KIP-1017's worker
stages).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar, final

from mm2py.clock import Clock, wait_or_stop
from mm2py.observability.logging import cause_text
from mm2py.runtime.errors import WORKER_ENDS, HerderError, HerderTimeoutError

log = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 90.0
"""Java's ``RestServer.DEFAULT_REST_REQUEST_TIMEOUT_MS``."""

HEALTH_TIMEOUT_S: Final = 10.0
"""Java's ``RestServer.DEFAULT_HEALTH_CHECK_TIMEOUT_MS``: a loop silent for longer is stuck."""

HEALTH_ANSWER_S: Final = 0.8
"""A health check is answered within this time, busy or not: probes time out after a second."""

_FIRST_STAGE: Final = "awaiting startup"


def _never() -> bool:
    return False


@dataclass(slots=True)
class _LoopStage:
    text: str
    began_ms: int
    completed_ms: int | None = None

    def summary(self) -> str:
        if self.completed_ms is None:
            return f"The worker is currently {self.text}, which began at {_instant(self.began_ms)}."
        return (
            f"The last operation the worker completed was {self.text}, which began at"
            f" {_instant(self.began_ms)} and completed at {_instant(self.completed_ms)}."
        )


@dataclass(slots=True, eq=False)
class _Request:
    run: Callable[[], Awaitable[None]]
    due_s: float
    wanted: Callable[[], bool] = lambda: True
    refuse: Callable[[], None] = lambda: None


@final
class HerderQueue:
    """Requests that wait for the herder's loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._requests: list[_Request] = []
        self._taken: list[_Request] = []
        self._woken = asyncio.Event()
        self._refusal: HerderError | None = None
        self._stage = _LoopStage(_FIRST_STAGE, clock.now_ms())

    @property
    def stage_summary(self) -> str:
        """What the loop is doing, or did last, as one sentence."""
        return self._stage.summary()

    @property
    def waits_s(self) -> float:
        """How long the first due request has waited, caller or not; 0 without any."""
        now = self._clock.monotonic()
        # Requests under way count too: a loop that hangs in one is stuck.
        return now - min((now, *(it.due_s for it in (*self._taken, *self._requests))))

    @contextmanager
    def stage(self, text: str) -> Generator[None]:
        """Note what the loop is busy with while the block runs."""
        # A local name: the end of a nested stage must not complete the outer one's.
        stage = self._stage = _LoopStage(text, self._clock.now_ms())
        try:
            yield
        finally:
            stage.completed_ms = self._clock.now_ms()

    async def submit(
        self, work: Callable[[], Awaitable[T]], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> T:
        """Run ``work`` on the loop and return its result; one that was not begun in time never
        runs.

        Raises:
            HerderTimeoutError: it took too long.
            HerderError: the queue is closed.
        """
        if self._refusal is not None:
            raise self._refusal
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                value = await work()
            except Exception as error:  # noqa: BLE001 - handed to the caller
                if result.done():
                    log.warning(
                        "a request failed after its caller had gone cause=%s", cause_text(error)
                    )
                else:
                    result.set_exception(error)
            else:
                if not result.done():
                    result.set_result(value)
            # ``result`` is open only where the herder's task was cancelled in ``work``.
            finally:
                refuse()  # the loop was cancelled

        def refuse() -> None:
            if not result.done():
                result.set_exception(self._refusal or HerderError(WORKER_ENDS))

        now = self._clock.monotonic()
        # A caller that has gone is not served: its change would happen unseen.
        self._add(_Request(run, now, lambda: not result.done(), refuse))
        timer = asyncio.ensure_future(self._clock.sleep(timeout_s))
        try:
            waits: set[asyncio.Future[T] | asyncio.Future[None]] = {result, timer}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                # It may still be under way; Java answers 500 with the stage (KAFKA-15563).
                raise HerderTimeoutError(self.stage_summary)
            return result.result()
        finally:
            timer.cancel()
            result.cancel()

    def post(self, work: Callable[[], Awaitable[None]], *, delay_s: float = 0.0) -> None:
        """Let the loop run ``work`` when ``delay_s`` have passed; it handles its own errors."""
        self._add(_Request(work, self._clock.monotonic() + delay_s))

    def wake(self) -> None:
        """Let the loop make a round now."""
        self._woken.set()

    async def run_due(self, hold: Callable[[], bool] = _never) -> None:
        """Run what is due at this call, in its order; the rest waits once ``hold()``."""
        # Before the list is read: what is added after this wakes the next turn.
        self._woken.clear()
        now = self._clock.monotonic()
        due = self._taken = [request for request in self._requests if request.due_s <= now]
        self._requests = [request for request in self._requests if request.due_s > now]
        try:
            # ``hold`` before each: the next may have to wait for a round of the last.
            while due and not hold():
                try:
                    if due[0].wanted():
                        await due[0].run()
                finally:
                    del due[0]
        finally:
            # What was not run and what came, in the order of submission; at a cancel too.
            self._requests, self._taken = due + self._requests, []

    async def wait(self) -> None:
        """Return when there is something to do: a request, a wake-up, a delay that is over."""
        if not self._requests:
            await self._woken.wait()
            return
        pause = min(request.due_s for request in self._requests) - self._clock.monotonic()
        if pause <= 0:
            return
        await wait_or_stop(self._clock, pause, self._woken)

    def open(self) -> None:
        """Take requests again."""
        self._refusal = None

    def close(self, refusal: HerderError) -> None:
        """Refuse what waits and what comes with ``refusal``; delayed work is dropped."""
        self._refusal = refusal
        refused, self._requests = self._requests, []
        # Posted work has no caller; its ``refuse`` does nothing.
        for request in refused:
            request.refuse()

    def _add(self, request: _Request) -> None:
        self._requests.append(request)
        self._woken.set()


def _instant(at_ms: int) -> str:
    """Write a time as ``java.time.Instant`` prints it."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    # Java prints milliseconds only where there are some.
    return at.strftime("%Y-%m-%dT%H:%M:%S") + (f".{at_ms % 1000:03d}Z" if at_ms % 1000 else "Z")
