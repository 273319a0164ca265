"""The loop of one herder on one node (kcr 4.7), Connect's herder thread as one asyncio task.

Flow: clusters answer, topics exist, stores are read -> round of the group -> work starts and stops -> queued
requests, restarts, config changes -> wait for the next reason. While the membership is in doubt the permit
keeps everything from being written; lost, all work stops, and the group is joined anew with nothing owned.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Literal, TypeVar, final

from mm2py.clock import Clock
from mm2py.errors import RetriableError
from mm2py.observability.logging import log_scope
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin, Round
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.assigned_work import AssignedWork
from mm2py.runtime.herder.config_news import ConfigNews
from mm2py.runtime.herder.errors import ForeignMemberError
from mm2py.runtime.herder.leader_duties import LeaderDuties
from mm2py.runtime.herder.patience import Patience
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.runtime.herder.restart_plan import plan_restart
from mm2py.runtime.herder.work_states import connector_state
from mm2py.types import State, Work

__all__ = ["HerderLoop"]

log = logging.getLogger(__name__)

T = TypeVar("T")

STATUS_FLUSH_S: Final = 5.0
"""Longest wait for states to be written before work is handed over."""

LAST_FLUSH_S: Final = 1.0
QUIET_S: Final = 3.0
"""A topic that was just made, by us or another worker, is not visible on every broker at once."""


@final
class HerderLoop:
    """Runs one herder until it is stopped.

    Args:
        parts: the herder's.
        queue: requests to run between two rounds.
        work: what runs on this node.
        clock: time.
    """

    def __init__(
        self, parts: HerderParts, queue: HerderQueue, work: AssignedWork, *, clock: Clock
    ) -> None:
        self._parts, self._queue, self._work, self._clock = parts, queue, work, clock
        self._duties = LeaderDuties(parts, queue, clock=clock)
        self._news = ConfigNews(queue, parts.loggers)
        self._stop = asyncio.Event()
        self._owned = Work()
        self._must_join = True
        self._joined = False
        self._flow_began = False
        self._eager = parts.settings.connect_protocol.strip().lower() == "eager"
        self._permit = parts.membership.permit
        self._end_watch = self._permit.watch(self.note_state)
        self._signal: asyncio.Task[Rejoin | Lost] | None = None
        self.started = False
        """The first pass is over, the round included."""
        self.error: Exception | None = None
        """Why it ended by itself."""

    @property
    def rebalance_expected(self) -> bool:
        """A change was read that needs a round, which was not asked for yet."""
        return self._news.rebalance_expected

    def stop(self) -> None:
        """Begin an orderly stop; ``run`` returns when it is done."""
        self._stop.set()

    async def run(self) -> None:
        """Run; returns after ``stop``, or when it failed for good (``error``)."""
        parts = self._parts
        with log_scope(str(parts.meter.flow)):
            try:
                if await self._begin():
                    while not self._stop.is_set():
                        await self._tick()
            except Exception as error:  # the edge: one herder fails visibly, the others run
                self.error = error
                log.exception("flow failed")
            finally:
                parts.meter.state = "STOPPING"
                await self._end()
                parts.meter.state = "STOPPED" if self.error is None else "FAILED"

    def note_state(self) -> None:
        """Show the state of the work here as the flow's."""
        if not self._joined:
            return
        if not self._permit.valid:
            self._parts.meter.state = "SUSPENDED"
            return
        state = self._work.state()
        if state is not State.UNASSIGNED:
            self._parts.meter.state = state.value
        else:
            self._parts.meter.state = "STARTING" if self._owned else "STANDBY"

    # ---- start and end

    async def _begin(self) -> bool:
        parts = self._parts
        parts.meter.state = "WAITING"
        for what, connect in parts.clusters.items():
            if not await self._patiently(what, connect):
                return False
        with self._queue.stage("initializing and reading to the end of internal topics"):
            if not await self._patiently("the internal topics", parts.prepare, quiet_s=QUIET_S):
                return False
            stores: dict[str, Callable[[], Awaitable[None]]] = {
                "the config topic": lambda: parts.config.start(self._news),
                "the status topic": parts.status.start,
                "the offset store": parts.offsets.start,
            }
            if parts.overrides is not None:
                stores["the flow's overrides"] = parts.overrides.start
            opened = await asyncio.gather(
                *(self._patiently(what, start, quiet_s=QUIET_S) for what, start in stores.items())
            )
        if not all(opened):
            return False
        self._news.know(parts.config.snapshot().connectors)
        if parts.overrides is not None:
            parts.overrides.listen(self._overrides_changed)
            self._overrides_changed()
        return True

    async def _end(self) -> None:
        parts = self._parts
        self._queue.close()
        self._end_watch()
        self._drop_signal()
        for what, step in (
            ("stopping the work", self._stop_last),
            ("closing the task host", self._work.close),
            ("leaving the group", parts.membership.leave),
            ("closing the offset store", parts.offsets.stop),
            ("closing the status topic", parts.status.stop),
            ("closing the config topic", parts.config.stop),
            ("closing the flow", parts.close),
        ):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - the edge: the other steps still have to run
                log.warning("%s failed cause=%s", what, error)
        log.info("flow stopped, positions are committed as far as the target took them")

    def _overrides_changed(self) -> None:
        overrides = self._parts.overrides
        if overrides is not None:
            self._work.hold(overrides.held())
            self._duties.derive_again()

    # ---- one pass

    async def _tick(self) -> None:
        await self._follow_group()
        if self._stop.is_set():
            return
        self.started = True
        await self._queue.run_due()
        await self._carry_out_restarts()
        await self._apply_changes()
        if not self._must_join:
            await self._idle()

    async def _idle(self) -> None:
        """Wait for the group, for something in the queue, or for the stop."""
        with self._queue.stage("polling the group coordinator until interrupted"):
            if self._signal is None:
                self._signal = asyncio.ensure_future(self._parts.membership.signal())
            queued = asyncio.ensure_future(self._queue.wait())
            stopped = asyncio.ensure_future(self._stop.wait())
            waits: set[
                asyncio.Future[Rejoin | Lost] | asyncio.Future[None] | asyncio.Future[Literal[True]]
            ]
            waits = {self._signal, queued, stopped}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                queued.cancel()
                stopped.cancel()

    # ---- the group

    async def _follow_group(self) -> None:
        if self._signal is not None and self._signal.done():
            signal, self._signal = self._signal.result(), None
            if isinstance(signal, Lost):
                await self._lose(signal)
            else:
                log.info("the group rebalances reason=%s", signal.reason)
                self._must_join = True
        # The first worker of a group waits for the coordinator to be made.
        patience = Patience(self._clock, "the flow's group", self._stop, quiet_s=QUIET_S)
        while self._must_join and not self._stop.is_set():
            try:
                if await self._or_stop(self._round()):
                    self._must_join = False
                    patience.succeeded()
            except ForeignMemberError as error:
                log.warning("the group has members that are not ours cause=%s", error)
                await self._hand_over()
                await self._patiently("the flow's group", self._parts.membership.until_ours)
            except MembershipLostError as error:
                await self._lose(error.lost)
            except RetriableError as error:
                await patience.wait(error)

    async def _round(self) -> bool:
        """Take part in one round; False: another one is due at once."""
        # Whoever joins has read every commit that made others join: a partition that moves between
        # nodes is given up before the round in which it is taken.
        await self._read_config()
        await self._stop_stale()
        signal = self._signal.result() if self._signal is not None and self._signal.done() else None
        self._drop_signal()
        if isinstance(signal, Lost):
            # It came while the config was read: what runs here belongs to a membership that is over.
            raise MembershipLostError(signal)
        if self._eager:
            await self._hand_over()
        self._news.rebalance_expected = False
        with self._queue.stage("ensuring membership in the cluster"):
            outcome = await self._parts.membership.rejoin(
                self._owned, self._parts.config.snapshot().offset
            )
        return await self._settle(outcome)

    async def _settle(self, outcome: Round) -> bool:
        await self._stop_work(outcome.revoked)
        self._eager = not outcome.incremental
        kept = Work() if self._eager else self._owned
        self._owned = (kept | outcome.assigned) - outcome.revoked
        # Nothing, but where a member turned the group to the eager protocol.
        await self._stop_work(self._work.running - self._owned)
        config = self._parts.config
        if outcome.failed or config.snapshot().offset < outcome.config_offset:
            await self._read_config()
        if outcome.failed:
            raise RetriableError("the leader of the group has not read all of the config topic yet")
        # A partition may move from one of our tasks to another.
        await self._stop_stale()
        snapshot = config.snapshot()
        if snapshot.offset != outcome.config_offset:
            log.info(
                "the config topic went on during the round, another one follows offset=%d round=%d",
                snapshot.offset,
                outcome.config_offset,
            )
            return False
        await self._duties.enter(outcome, snapshot)
        await self._start_work(self._owned - self._work.running)
        return not outcome.revoked

    async def _start_work(self, work: Work) -> None:
        snapshot = self._parts.config.snapshot()
        if work and not self._flow_began:
            self._flow_began = True
            log.info("flow starts connectors=%s", ",".join(sorted(snapshot.connectors)))
        stage = f"starting {len(work)} connector(s) and task(s) after a rebalance"
        with self._queue.stage(stage):
            await self._work.start(work, snapshot)
        self._joined = True
        self.note_state()

    async def _stop_work(self, work: Work) -> None:
        """Stop work in order: positions committed, states written, before anybody else may start it."""
        if not work & self._work.running:
            return
        stage = f"stopping {len(work.connectors)} connector(s) and {len(work.tasks)} tasks"
        with self._queue.stage(stage):
            await self._work.stop(work, self._parts.config.snapshot())
        with self._queue.stage("flushing updates to the status topic"):
            # A target that is away must not hold up a stop.
            ending = self._stop.is_set() or not self._permit.valid
            await self._parts.status.flush(LAST_FLUSH_S if ending else STATUS_FLUSH_S)

    async def _stop_last(self) -> None:
        await self._stop_work(self._work.running)

    async def _hand_over(self) -> None:
        await self._stop_work(self._work.running)
        self._owned = Work()
        self._joined = False
        self._parts.meter.state = "WAITING"

    async def _lose(self, lost: Lost) -> None:
        log.warning("group membership lost, the flow stops and waits cause=%s", lost.reason)
        await self._hand_over()
        self._duties.resign()
        self._must_join = True

    def _drop_signal(self) -> None:
        if self._signal is not None:
            self._signal.cancel()
            self._signal = None

    # ---- restarts and changes

    async def _carry_out_restarts(self) -> None:
        snapshot = self._parts.config.snapshot()
        for name, request in self._news.take_restarts().items():
            state = connector_state(name, self._parts)
            if state is None or name not in snapshot.connectors:
                log.info("nothing to restart: the connector has no state connector=%s", name)
                continue
            plan = plan_restart(request, state) & self._work.running
            log.info(
                "restart connector=%s instances=%d tasks=%d",
                name,
                len(plan.connectors),
                len(plan.tasks),
            )
            if plan.connectors:
                await self._work.restart_connector(name, snapshot, announced=True)
            await self._work.restart_tasks(plan.tasks, snapshot, announced=True)

    async def _apply_changes(self) -> None:
        await self._stop_stale()
        updated, targets = self._news.take_updated(), self._news.take_targets()
        snapshot = self._parts.config.snapshot()
        for name in self._work.outdated(updated, snapshot):
            log.info("connector starts again with its new config connector=%s", name)
            await self._work.restart_connector(name, snapshot)
        for name in sorted(targets & snapshot.connectors.keys()):
            await self._work.set_target(name, snapshot.target(name))
        if self._news.rebalance_expected:
            self._must_join = True

    async def _stop_stale(self) -> None:
        """Stop tasks here that a commit has changed; they start after the round that follows."""
        while self._news.committed:
            committed = self._news.take_committed()
            await self._stop_work(self._work.changed(committed, self._parts.config.snapshot()))

    async def _read_config(self) -> None:
        with self._queue.stage("reading to the end of the config topic"):
            await self._parts.config.refresh(self._parts.settings.worker_sync_timeout_ms / 1000)

    # ---- waiting

    async def _patiently(
        self, what: str, attempt: Callable[[], Awaitable[None]], *, quiet_s: float = 0.0
    ) -> bool:
        """Try until it works; False when the herder is being stopped."""
        patience = Patience(self._clock, what, self._stop, quiet_s=quiet_s)
        while not self._stop.is_set():
            try:
                done = await self._or_stop(_completed(attempt))
            except RetriableError as error:
                await patience.wait(error)
                continue
            if done:
                patience.succeeded()
                return True
        return False

    async def _or_stop(self, work: Coroutine[object, object, T]) -> T | None:
        """Wait for ``work``, None (and it is cancelled) when the herder is stopped first."""
        running = asyncio.ensure_future(work)
        stopper = asyncio.ensure_future(self._stop.wait())
        waits: set[asyncio.Future[T] | asyncio.Future[Literal[True]]] = {running, stopper}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            stopper.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait({running})


async def _completed(attempt: Callable[[], Awaitable[None]]) -> bool:
    await attempt()
    return True
