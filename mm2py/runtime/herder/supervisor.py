"""The life of a herder: opening, its loop, closing, and a new start after a failure.

Flow: clusters answer, topics exist, stores are read -> ``HerderLoop.turn`` until a stop or an error
-> work stopped, group left, stores closed -> after an error a pause (1 s, doubling to 60 s), then
all of it again. Only a wrong file or topic at the very first start ends the herder: it is refused
as any other wrong configuration.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, final

from mm2py.client.backoff import doubled
from mm2py.clock import Clock, cancelled, wait_or_stop
from mm2py.errors import NO_ANSWER, ConfigError, FatalError, Mm2pyError
from mm2py.observability.logging import cause_text, log_scope
from mm2py.runtime.errors import WORKER_ENDS, HerderError, HerderFailedError
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.runtime.herder.backfill_watch import BackfillWatch
from mm2py.runtime.herder.fencing import Fencing
from mm2py.runtime.herder.leader_duties import TaskPublication
from mm2py.runtime.herder.limit_watch import LimitWatch
from mm2py.runtime.herder.loop import QUIET_S, HerderLoop
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.runtime.herder.stream_watch import StreamWatch
from mm2py.runtime.herder.trace_watch import TraceWatch
from mm2py.runtime.patience import attempt
from mm2py.storage.backfill_store import BackfillStore
from mm2py.types import TaskId

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
_SUSPENDED: Final = "SUSPENDED"
_NO_ANSWER: Final = f"the target {NO_ANSWER} the flow's group: nothing is copied until it does"
RIGHTS_EVERY_S: Final = 10.0
TOPICS_EVERY_S: Final = 60.0
STEADY_S: Final = 300.0
"""A herder that ran this long before it failed starts again with the shortest pause."""


@final
class Supervisor:
    """Runs one herder until it is stopped.

    Args:
        parts: the herder's.
        queue: requests to run between two rounds; closed while the herder does not run.
        clock: time.
    """

    def __init__(self, parts: HerderParts, queue: HerderQueue, *, clock: Clock) -> None:
        self._parts, self._queue, self._clock = parts, queue, clock
        self.publication = TaskPublication(parts, queue, clock=clock)
        self.fencing = Fencing(parts, queue, lambda: self.work.running, clock=clock)
        self.work = AssignedWork(
            parts, self.publication.publish, self.fencing, clock=clock, on_change=self._note_state
        )
        self._watch = (
            None
            if parts.backfills is None
            else BackfillWatch(
                parts.backfills, self.work.keep_out, parts.node.worker_id, clock=clock
            )
        )
        self._streams = (
            None
            if parts.backfills is None or parts.take_back is None
            else StreamWatch(parts.backfills, parts.config.snapshot, parts.take_back, clock=clock)
        )
        self._limits = LimitWatch(
            parts.meter, self.work, parts.topic_limits, self._restart_tasks, clock=clock
        )
        self._traces = TraceWatch(parts.meter, self.work, parts.status, clock=clock)
        self._unfit: Mapping[str, str] = {}
        self._asking: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._retry = asyncio.Event()
        self._failures = 0
        self._opening: asyncio.Task[bool] | None = None
        self._waits: dict[str, str] = {}
        self.loop = self._new_loop()
        self.failure: Mm2pyError | None = None
        """Why the herder does not run: None while it does, and until its first failure."""

    def stop(self) -> None:
        """Begin an orderly stop; ``run`` returns when it is done."""
        self._stop.set()
        self._retry.set()

    async def run(self) -> None:
        meter = self._parts.meter
        with log_scope(str(meter.flow)):
            try:
                while not self._stop.is_set():
                    began_s = self._clock.monotonic()
                    ran = await self._live()
                    # A wrong config at the first start ends the flow; REST may cure later ones.
                    if self.failure is None or (
                        isinstance(self.failure, ConfigError) and not ran and not self._failures
                    ):
                        break
                    # A flow that ran for long has a new trouble, not the old one.
                    if ran and self._clock.monotonic() - began_s > STEADY_S:
                        self._failures = 0
                    await self._pause(self.failure)
            finally:
                await self._close()
                meter.state = "STOPPED" if self.failure is None else "FAILED"

    def problems(self) -> Sequence[str]:
        if self.failure is not None:
            return (str(self.failure),)
        streams = () if self._streams is None else self._streams.problems().values()
        duties = (f"{what}: {cause}" for what, cause in self.loop.duties.problems().items())
        return (*self.work.problems(), *streams, *duties)

    def not_ready(self) -> str:
        """What this node waits for before it is in its group, with the cause; empty after."""
        return self.waiting() or ("" if self.loop.started else "is starting")

    def waiting(self) -> str:
        """What has been tried in vain until now, with the cause."""
        return "; ".join(self._waits.values())

    def idles(self) -> str:
        """Why nothing is done here without a failure: its wait, or its group's state."""
        # SUSPENDED lasts as long as heartbeats are not confirmed.
        if self.waiting() or self._parts.meter.state != _SUSPENDED:
            return self.waiting()
        return f"is {_SUSPENDED}: {self._silence()}"

    def _silence(self) -> str:
        cause = self._parts.membership.permit.cause
        return f"{_NO_ANSWER}: {cause}" if cause else _NO_ANSWER

    def reported(self) -> Mapping[str, str]:
        """What keeps work from being done, with the cause."""
        states = {
            **self.work.reported(),
            **self.fencing.problems(),
            **self._parts.config.problems(),
            **self._parts.status.problems(),
            **self._unfit,
        }
        if self._waits:
            states["flow"] = self.waiting()
        elif self._parts.meter.state == _SUSPENDED:
            states["flow"] = self._silence()
        if self._parts.overrides is not None:
            states |= self._parts.overrides.problems()
        if self._streams is not None:
            states |= self._streams.problems()
        states |= self.loop.duties.problems()
        return states

    # ---- one life

    async def _live(self) -> bool:
        """Open, run until the stop or a ``failure``, close; return whether the loop began."""
        # Each life has a fresh loop: nothing of a failed one can leak into the next.
        loop = self.loop = self._new_loop()
        try:
            if await self._open(loop):
                while not self._stop.is_set():
                    await loop.turn()
                    if self.failure is not None and not self._stop.is_set():
                        log.info("flow runs again")
                        self.failure = None
                        loop.note_state()
        except Exception as error:  # noqa: BLE001 - the edge: one herder fails visibly, the others run
            self.failure = self._shown(error)
        finally:
            await self._end(loop)
        return loop.started

    def _new_loop(self) -> HerderLoop:
        parts, queue = self._parts, self._queue
        return HerderLoop(
            parts,
            queue,
            self.work,
            self.publication,
            self.fencing,
            self._stop,
            clock=self._clock,
            waits=self._waits,
        )

    def _shown(self, error: Exception) -> Mm2pyError:
        if isinstance(error, Mm2pyError):
            log.error("flow failed cause=%s", error)
            return error
        log.error("flow failed", exc_info=error)
        return FatalError(f"{type(error).__name__}: {error}", remedy="report it with its log")

    async def _open(self, loop: HerderLoop) -> bool:
        parts = self._parts
        if self.failure is None:
            parts.meter.state = "WAITING"
        for what, connect in parts.clusters.items():
            if not await attempt(what, connect, self._stop, self._clock, waits=self._waits):
                return False
        with self._queue.stage("initializing and reading to the end of internal topics"):
            if not await self._patiently("the internal topics", parts.prepare):
                return False
            if not await self._read_stores(loop):
                return False
        if parts.overrides is not None:
            parts.overrides.listen(self._overrides_changed)
            self._overrides_changed()
        if self._watch is not None:
            await self._watch.open()
        if self._streams is not None:
            self._streams.open()
        self._queue.open()
        self._traces.open()
        self._asking = asyncio.create_task(self._watch_topics(), name="internal topics")
        loop.enter()
        return True

    async def _watch_topics(self) -> None:
        """Name the internal topics that may not be written, are gone, or lose their records: an
        idle flow may write its first record to one after days, and only a start reads all."""
        while True:
            with suppress(Mm2pyError):  # the target is away, which others report
                unfit = await self._parts.unfit()
                before = self._unfit
                self._unfit = {f"topic {it}": str(error) for it, error in unfit.items()}
                for topic, cause in self._unfit.items() - before.items():
                    log.error("%s cannot be used as it is cause=%s", topic, cause)
            await self._clock.sleep(RIGHTS_EVERY_S if self._unfit else TOPICS_EVERY_S)

    async def _read_stores(self, loop: HerderLoop) -> bool:
        parts = self._parts
        steps = {
            "the config topic": lambda: parts.config.start(loop.changes.note),
            "the status topic": parts.status.start,
            "the offset store": parts.offsets.start,
        }
        if parts.backfills is not None:
            steps["the backfill topic"] = partial(self._read_backfills, parts.backfills)
        reading = [asyncio.ensure_future(self._patiently(*step)) for step in steps.items()]
        waits = [*reading, *self._reading_overrides()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_EXCEPTION)
            for each in waits:
                if each.done():
                    each.result()
            return all(each.result() for each in waits)
        finally:
            # Otherwise a store could be opened after it was closed.
            await cancelled(*reading)

    async def _read_backfills(self, backfills: BackfillStore) -> None:
        """Read the topic; where it may not be created there is no backfill, and none begins without
        this worker's notice."""
        try:
            await backfills.start()
        except ConfigError as error:
            log.warning("history of this flow cannot be copied by a backfill cause=%s", error)

    def _reading_overrides(self) -> Sequence["asyncio.Task[bool]"]:
        """Read the overrides once: they stay open through all lives, to be changed."""
        overrides, opening = self._parts.overrides, self._opening
        if overrides is None:
            return ()
        # A cancelled or failed attempt is begun again, a running or successful one is shared.
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = asyncio.create_task(self._patiently("the flow's overrides", overrides.start))
            self._opening = opening
        return (opening,)

    async def _patiently(self, what: str, start: Callable[[], Awaitable[None]]) -> bool:
        return await attempt(
            what, start, self._stop, self._clock, quiet_s=QUIET_S, waits=self._waits
        )

    def _note_state(self) -> None:
        if self.failure is None and not self._stop.is_set():
            self.loop.note_state()

    def _overrides_changed(self) -> None:
        overrides = self._parts.overrides
        if overrides is not None:
            self.work.hold(overrides.held())
            # On the leader the change has to reach the config topic; elsewhere this does nothing.
            self.loop.duties.derive_again()
        self._queue.wake()
        # It may be the cure of the failure that the pause is for.
        self._retry.set()

    def _restart_tasks(self, tasks: frozenset[TaskId]) -> None:
        async def restart() -> None:
            await self.work.restart_tasks(tasks, self._parts.config.snapshot(), announced=True)

        self._queue.post(restart)

    async def _end(self, loop: HerderLoop) -> None:
        parts = self._parts
        self._waits.clear()
        await self._limits.close()
        self._traces.close()
        if self._asking is not None:
            self._asking.cancel()
        # Before the work stops: REST requests are answered now, not after its time.
        if self._stop.is_set():
            parts.meter.state = "STOPPING"
            self._queue.close(HerderError(WORKER_ENDS))
        elif self.failure is not None:
            parts.meter.state = "FAILED"
            self._queue.close(HerderFailedError(self.failure))
        if self._watch is not None:
            await self._watch.close()
        if self._streams is not None:
            await self._streams.close()
        # Work before the group: a successor may start as soon as this member has left. Stores last:
        # stopping writes states.
        await self._steps(
            ("stopping the work", loop.stop_work),
            ("leaving the group", parts.membership.leave),
            ("closing the offset store", parts.offsets.stop),
            ("closing the status topic", parts.status.stop),
            ("closing the config topic", parts.config.stop),
        )
        if parts.backfills is not None:
            await self._steps(("closing the backfill topic", parts.backfills.stop))

    async def _pause(self, failure: Mm2pyError) -> None:
        pause_s = doubled(FIRST_PAUSE_S, LONGEST_PAUSE_S, self._failures)
        self._failures += 1
        self._parts.meter.state = "FAILED"
        if self._stop.is_set():
            return
        log.warning("flow is started again pause_s=%.0f cause=%s", pause_s, failure)
        self._retry.clear()
        # A change of the overrides may be the remedy: it ends the pause.
        await wait_or_stop(self._clock, pause_s, self._retry)
        if not self._stop.is_set():
            self._parts.meter.life.count_restart("flow")

    async def _close(self) -> None:
        await cancelled(self._opening)
        # At the very end: a flow that starts again keeps its host's processes.
        await self._steps(
            ("closing the task host", self.work.close), ("closing the flow", self._parts.close)
        )
        log.info("flow stopped, positions are committed as far as the target took them")

    async def _steps(self, *steps: tuple[str, Callable[[], Awaitable[None]]]) -> None:
        for what, step in steps:
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the edge: the other steps still have to run
                log.warning("%s failed cause=%s", what, cause_text(error))
