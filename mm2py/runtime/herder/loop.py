"""The loop of one herder on one node: Connect's herder thread as one asyncio task.

Flow: round of the group -> work starts and stops -> queued requests, restarts, config changes
(``ConfigChanges``) -> what runs is compared with what should run -> wait for the next reason. While
the membership is in doubt the permit blocks every write; once it is lost, all work stops, and the
worker joins anew with nothing owned.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableMapping
from typing import Final, Literal, final

from mm2py.clock import Clock, or_stop
from mm2py.errors import ConfigError, RetriableError, ServerError
from mm2py.observability.loggers import LoggerRegistry
from mm2py.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mm2py.runtime.errors import ForeignMemberError
from mm2py.runtime.group.membership import Lost, MembershipLostError, Rejoin, Round
from mm2py.runtime.herder.api import HerderParts
from mm2py.runtime.herder.assigned_work import LONGEST_WAIT_S, AssignedWork
from mm2py.runtime.herder.fencing import Fencing
from mm2py.runtime.herder.leader_duties import LeaderDuties, TaskPublication
from mm2py.runtime.herder.queue import HerderQueue
from mm2py.runtime.herder.work_states import connector_state, plan_restart
from mm2py.runtime.patience import Patience, attempt
from mm2py.storage.config_backing_store import ConfigBackingStore
from mm2py.storage.config_fold import (
    ConfigEvent,
    ConnectorChanged,
    ConnectorRemoved,
    TargetChanged,
    TasksChanged,
)
from mm2py.storage.config_state import RestartRequest
from mm2py.storage.connect_json import LoggerLevel
from mm2py.types import State, Work

log = logging.getLogger(__name__)


# ---- changes read from the config topic


@final
class ConfigChanges:
    """Changes read from the config topic that the loop has not handled yet.

    ``note`` notes and wakes, nothing more: it runs inside of the store's reader, where a wait would
    hold up the fold.
    """

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
        return bool(self._committed)

    @property
    def noted(self) -> bool:
        """Whether anything was read that is not handled yet."""
        unhandled = self._updated or self._targets or self._committed or self._restarts
        return bool(unhandled) or self.rebalance_expected

    def know(self, connectors: Iterable[str]) -> None:
        """Note which connectors were there at the start."""
        self._known.update(connectors)

    def take_updated(self) -> set[str]:
        """Return connectors whose config was written again."""
        taken, self._updated = self._updated, set()
        return taken

    def take_targets(self) -> set[str]:
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

    def note(self, event: ConfigEvent) -> None:
        """Note what was read; a ``ConfigListener``."""
        match event:
            # Java's ``onConnectorConfigUpdate``: only a new connector rebalances.
            case ConnectorChanged(name):
                # It acts in place where the connector runs; a new one needs a round.
                self._updated.add(name)
                if name not in self._known:
                    self._known.add(name)
                    self.rebalance_expected = True
            case ConnectorRemoved(name):
                self._known.discard(name)
                self._updated.discard(name)
                self.rebalance_expected = True  # a round takes its work away
            case TasksChanged(name):
                # Changed tasks stop, a round starts them again. An incomplete commit changes
                # nothing here: tasks continue until the connector's owner has published its task
                # configs again. An incomplete commit stays so when compaction has removed task
                # records before their commit was read.
                if name not in self._store.snapshot().inconsistent:
                    self._committed.add(name)
                    self.rebalance_expected = True
            case TargetChanged(name):
                self._targets.add(name)  # to pause, stop or run needs no round
            case RestartRequest(name):
                # KIP-745: a plan is made when the request is handled, from the states of then.
                self._restarts[name] = merge_restarts(self._restarts.get(name), event)
            case LoggerLevel(namespace, level):
                self._set_level(namespace, level)
                # Handled at once: no turn is needed.
                return
        self._queue.wake()

    def _set_level(self, namespace: str, level: str) -> None:
        try:
            self._loggers.set(namespace, level)
        except ConfigError as error:
            log.warning("log level is not set logger=%s cause=%s", namespace, error)


def merge_restarts(waiting: RestartRequest | None, new: RestartRequest) -> RestartRequest:
    """Return the request that reaches further; a connector's waiting ones become one."""
    # As ``DistributedHerder.onRestartRequest``: a connector's request of highest impact counts.
    return new if waiting is None or new.impact >= waiting.impact else waiting


# ---- the loop


STATUS_FLUSH_S: Final = 5.0
"""Longest wait for states to be written before work is handed over."""

LAST_FLUSH_S: Final = 1.0
_GROUP: Final = "the flow's group"
QUIET_S: Final = 3.0
"""A topic that was just created is not visible on every broker at once."""

COMPARE_EVERY_S: Final = 60.0
"""Longest time between two comparisons of what runs with what should run; events make it sooner."""


@final
class HerderLoop:
    """The turns of one herder between its opening and its closing (``Supervisor``).

    Args:
        parts: the herder's.
        queue: requests to run between two rounds.
        work: what runs on this node.
        publication: task configs of connectors that run on this node.
        fencing: of producers before tasks with exactly-once support start.
        stop: set when the herder is to stop; ends every wait.
        clock: time.
        waits: what it waits for, with the cause, for displays.
    """

    def __init__(
        self,
        parts: HerderParts,
        queue: HerderQueue,
        work: AssignedWork,
        publication: TaskPublication,
        fencing: Fencing,
        stop: asyncio.Event,
        *,
        clock: Clock,
        waits: MutableMapping[str, str],
    ) -> None:
        self._waits = waits
        self._parts, self._queue, self._work, self._clock = parts, queue, work, clock
        self._publication, self._fencing = publication, fencing
        self._stop = stop
        self._owned = Work()
        self._must_join = True
        self._joined = False
        self._at_work = True
        """Whether a turn is under way, and not its wait."""
        self._cluster_id = ""
        self._flow_began = False
        self._eager = parts.settings.connect_protocol.strip().lower() == "eager"
        self._permit = parts.membership.permit
        self._watches: list[Callable[[], None]] = []
        self._signal: asyncio.Task[Rejoin | Lost] | None = None
        self.duties = LeaderDuties(parts, queue, clock=clock)
        self.changes = ConfigChanges(queue, parts.node.loggers, parts.config)
        self.started = False
        """The first turn is over, the round included."""

    @property
    def rebalance_expected(self) -> bool:
        """A change was read that needs a round, which was not asked for yet."""
        return self.changes.rebalance_expected

    @property
    def pending(self) -> bool:
        """Whether a change was read that tasks have not taken yet; complete where the connectors
        run, which is the leader."""
        if self._at_work or self._must_join or self.changes.noted:
            return True
        snapshot = self._parts.config.snapshot()
        return any(
            status.state is not State.FAILED and self._publication.is_due(name, snapshot)
            for name, status in self._work.connector_status().items()
        )

    def enter(self) -> None:
        """Begin with what the stores hold; they have been read to their ends."""
        self._cluster_id = self._parts.cluster_id()
        self._watches.append(self._permit.watch(self.note_state))
        self.changes.know(self._parts.config.snapshot().connectors)
        self._compare_later()

    async def turn(self) -> None:
        """Handle all that is due; return after the next event, or for a due round."""
        # A newer version's record may change this flow: nothing starts or is written.
        self._check_settings()
        await self._follow_group()
        if self._stop.is_set():
            return
        self.started = True
        # Java's order in ``tick``: membership, requests, restarts, config updates, group poll.
        await self._queue.run_due(self._holds_requests)
        self._check_settings()  # again: run_due has cleared the wake-up, which may have announced a new setting
        await self._carry_out_restarts()
        await self._apply_changes()
        self._publication.look_again()
        # With a round due the assignment may be about to change: comparing with it would start work
        # that is taken away at once.
        if not self._must_join:
            self.duties.compare(self._parts.config.snapshot())
            self._fencing.compare(self._parts.config.snapshot())
            await self._repair()
            await self._idle()

    def _check_settings(self) -> None:
        if self._parts.overrides is not None:
            self._parts.overrides.check_readable()

    async def stop_work(self) -> None:
        """Stop everything that runs here, at the end of the herder's life."""
        # First, so that states of the work that stops are not reported as the flow's.
        while self._watches:
            self._watches.pop()()
        # Asked while the membership and the permit are still valid; a herder that only restarts
        # leaves the tasks' form as it is.
        ends = self._stop.is_set() and self._publication.may_hand_over
        # Before the work stops: the connector that makes the configs has to run.
        dealt = await self._work.for_java() if ends else None
        self._drop_signal()
        self._resign()
        await self._stop_work(self._work.running)
        # After it: a Java worker may start these tasks as soon as it has read them (invariant 17).
        if dealt is not None and await self._publication.is_last():
            with self._queue.stage("leaving task configs as Java would make them"):
                await self._publication.hand_over(dealt)

    def note_state(self) -> None:
        """Show the state of the work here as the flow's."""
        if not self._joined:
            return
        # The work runs, but may not write: heartbeats are not confirmed.
        if not self._permit.valid:
            self._parts.meter.state = "SUSPENDED"
            return
        state = self._work.state()
        if state is not State.UNASSIGNED:
            self._parts.meter.state = state.value
        else:
            self._parts.meter.state = "STARTING" if self._owned else "STANDBY"

    def _holds_requests(self) -> bool:
        """With a solo membership requests wait for the round that an earlier one made necessary.

        In a group they are refused instead: the round depends on other workers.
        """
        return self._parts.membership.solo and (self._must_join or self.changes.rebalance_expected)

    async def _idle(self) -> None:
        """Wait for a signal of the group, a queued request or the stop."""
        with self._queue.stage("polling the group coordinator until interrupted"):
            # Kept over turns: a cancel at each request could lose a signal just set.
            if self._signal is None:
                self._signal = asyncio.ensure_future(self._parts.membership.signal())
            queued = asyncio.ensure_future(self._queue.wait())
            stopped = asyncio.ensure_future(self._stop.wait())
            waits: set[
                asyncio.Future[Rejoin | Lost] | asyncio.Future[None] | asyncio.Future[Literal[True]]
            ]
            waits = {self._signal, queued, stopped}
            self._at_work = False
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            # The signal is not cancelled: it is awaited again in the next turn.
            finally:
                self._at_work = True
                queued.cancel()
                stopped.cancel()

    def _compare_later(self) -> None:
        """Schedule the next comparison: most turns are events', this bounds the rest."""

        async def again() -> None:
            if self._joined and not self._must_join and self._permit.valid:
                # A status record that was lost, or written by a worker that had frozen, is
                # corrected within a minute.
                self._work.repair_states()
                self.duties.forget_states(self._parts.config.snapshot())
            self._compare_later()

        self._queue.post(again, delay_s=COMPARE_EVERY_S)

    # ---- the group

    async def _follow_group(self) -> None:
        # ``result`` is final: the next ``_idle`` asks again.
        if self._signal is not None and self._signal.done():
            signal, self._signal = self._signal.result(), None
            if isinstance(signal, Lost):
                await self._lose(signal)
            else:
                log.info("the group rebalances reason=%s", signal.reason)
                self._must_join = True
        # The first worker of a group waits for the coordinator to be made.
        patience = Patience(self._clock, _GROUP, self._stop, quiet_s=QUIET_S, waits=self._waits)
        # A loop: each failed round leaves the reason for it standing.
        while self._must_join and not self._stop.is_set():
            try:
                # A stop must not wait for a JoinGroup, which lasts up to the rebalance timeout.
                if await or_stop(self._round(), self._stop):
                    self._must_join = False
                    patience.succeeded()
            # First stop, then wait outside of a group with Java workers (invariant 11).
            except ForeignMemberError as error:
                log.warning("the group has members that are not ours cause=%s", error)
                await self._hand_over()
                await attempt(
                    _GROUP,
                    self._parts.membership.until_ours,
                    self._stop,
                    self._clock,
                    waits=self._waits,
                )
            # The coordinator has given the work away: stop before any further attempt.
            except MembershipLostError as error:
                await self._lose(error.lost)
            # Work goes on meanwhile: a coordinator that cannot be reached is no reason to stop, the
            # permit bounds the time.
            except RetriableError as error:
                await patience.wait(self._rebuilt(error) or error)

    def _rebuilt(self, error: RetriableError) -> RetriableError | None:
        """Return what only a restart of the worker cures: its stores hold what a former cluster had
        at these addresses."""
        before, now = self._cluster_id, self._parts.cluster_id()
        cause = error.__cause__
        if now != before:
            what = f"its cluster id was {before or 'unknown'} and is {now}"
        elif isinstance(cause, ServerError) and cause.code == UNKNOWN_TOPIC_OR_PARTITION:
            what = str(cause)
        else:
            return None
        return RetriableError(
            "the flow's config topic is gone: it was deleted, the target was rebuilt, or another "
            f"cluster has its address: {what}",
            remedy="restart the flow's workers, which make the internal topics again and copy from "
            "the beginning what has no stored position there",
        )

    async def _round(self) -> bool:
        """Take part in one round; False: another one is due at once."""
        # A member that joins has read every commit that made others join, and has stopped what
        # those changed; a commit that comes while the members join makes the leader refuse the
        # round (`RoundLeader.plan`). Java reads only after a failed round; here every member joins
        # with what the others may have read already.
        await self._read_config()
        await self._stop_stale()
        signal = self._signal.result() if self._signal is not None and self._signal.done() else None
        self._drop_signal()
        if isinstance(signal, Lost):
            # It came during the read: what runs here is of a membership that is over.
            raise MembershipLostError(signal)
        # In the eager protocol a member owns nothing while it joins.
        if self._eager:
            await self._hand_over()
        # Before the await: a change that is read during the round makes another one.
        self.changes.rebalance_expected = False
        # Java's words (``TickThreadStage``), which REST names when a request times out.
        with self._queue.stage("ensuring membership in the cluster"):
            outcome = await self._parts.membership.rejoin(
                self._owned, self._parts.config.snapshot().offset, self.duties.unwritten
            )
        return await self._settle(outcome)

    async def _settle(self, outcome: Round) -> bool:
        # Revoked work first: its owner waits for the next round, after all have stopped.
        await self._stop_work(outcome.revoked)
        self._eager = not outcome.incremental
        kept = Work() if self._eager else self._owned
        # Also what could not be started yet: a later turn starts it (``_repair``).
        self._owned = (kept | outcome.assigned) - outcome.revoked
        self._parts.meter.life.rebalances += 1
        # Only a fall-back to the eager protocol leaves anything to stop.
        await self._stop_work(self._work.running - self._owned)
        config = self._parts.config
        # Java's cases 1 and 2b of ``handleRebalanceCompleted``.
        if outcome.failed or config.snapshot().offset < outcome.config_offset:
            await self._read_config()
        if outcome.failed:
            # What a new leader writes now is read by all members before the next round.
            await self.duties.enter(outcome, config.snapshot())
            raise _refused(outcome.config_offset, config.snapshot().offset)
        # A partition may move from one of our tasks to another.
        await self._stop_stale()
        snapshot = config.snapshot()
        # Past it: the plan may be outdated. As in Java nothing starts, the worker rejoins.
        if snapshot.offset != outcome.config_offset:
            log.info(
                "configs were written during the round, another one follows offset=%d round=%d",
                snapshot.offset,
                outcome.config_offset,
            )
            return False
        await self.duties.enter(outcome, snapshot)
        await self._start_work(self._owned - self._work.running)
        # KIP-415: after a revocation all rejoin, so that the revoked work finds its new owner.
        return not outcome.revoked

    async def _start_work(self, work: Work) -> None:
        snapshot = self._parts.config.snapshot()
        if work and not self._flow_began:
            self._flow_began = True
            log.info("flow starts connectors=%s", ",".join(sorted(snapshot.connectors)))
        stage = f"starting {len(work)} connector(s) and task(s) after a rebalance"
        with self._queue.stage(stage):
            await self._work.start_due(work, snapshot)
        self._look_again_at_what_waits()
        self._joined = True
        self.note_state()

    def _look_again_at_what_waits(self) -> None:
        if self._work.waits:
            self._queue.post(_look_again, delay_s=LONGEST_WAIT_S)

    async def _stop_work(self, work: Work) -> None:
        """Stop work in order: positions and states written, before another may start it."""
        if not work & self._work.running:
            return
        stage = f"stopping {len(work.connectors)} connector(s) and {len(work.tasks)} tasks"
        with self._queue.stage(stage):
            await self._work.stop(work, self._parts.config.snapshot())
        with self._queue.stage("flushing updates to the status topic"):
            # An unreachable target must not delay a stop.
            # Without a permit nothing is written anyway.
            ending = self._stop.is_set() or not self._permit.valid
            await self._parts.status.flush(LAST_FLUSH_S if ending else STATUS_FLUSH_S)

    async def _hand_over(self) -> None:
        await self._stop_work(self._work.running)
        self._owned = Work()
        self._joined = False
        self._parts.meter.state = "WAITING"

    async def _lose(self, lost: Lost) -> None:
        log.warning("group membership lost, the flow stops and waits cause=%s", lost.reason)
        self._parts.meter.life.memberships_lost += 1
        self._waits[_GROUP] = f"has lost its group, nothing is copied: {lost.reason}"
        # Before ``_hand_over`` awaits: a queued duty must not run for a past leader.
        self._resign()
        await self._hand_over()
        self._must_join = True

    def _resign(self) -> None:
        self.duties.resign()
        self._fencing.resign()

    def _drop_signal(self) -> None:
        if self._signal is not None:
            self._signal.cancel()
            self._signal = None

    # ---- restarts and changes

    async def _carry_out_restarts(self) -> None:
        snapshot = self._parts.config.snapshot()
        # The states of now, as Java's ``doRestartConnectorAndTasks``.
        for name, request in self.changes.take_restarts().items():
            state = connector_state(name, self._parts)
            if state is None or name not in snapshot.connectors:
                log.info("nothing to restart: the connector has no state connector=%s", name)
                continue
            # Each worker carries out its own part of the plan.
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
        # Before connectors: a started one publishes, and the former tasks have to stop.
        await self._stop_stale()
        updated, targets = self.changes.take_updated(), self.changes.take_targets()
        snapshot = self._parts.config.snapshot()
        for name in self._work.outdated(updated, snapshot):
            log.info("connector starts again with its new config connector=%s", name)
            await self._work.restart_connector(name, snapshot)
        # A removed connector has lost its target record with it.
        for name in sorted(targets & snapshot.connectors.keys()):
            self._publication.forget(name)
            await self._work.set_target(name, snapshot.target(name))
        if targets:
            self._look_again_at_what_waits()
        if self.changes.rebalance_expected:
            self._must_join = True

    async def _stop_stale(self) -> None:
        """Stop tasks here that a commit has changed; they start after the round that follows."""
        # A loop: stopping awaits, and another commit may be read meanwhile.
        while self.changes.committed:
            committed = self.changes.take_committed()
            await self._stop_work(self._work.changed(committed, self._parts.config.snapshot()))

    # ---- what runs, compared with what should run

    async def _repair(self) -> None:
        """Reconcile after a lost event, an interrupted change or a stale leader; assigns nothing.

        Called between two rounds, when nothing is being started or stopped. Costs a few set
        operations where nothing differs.
        """
        snapshot, owned = self._parts.config.snapshot(), self._owned
        running = self._work.running
        missing, surplus = self._work.due(owned, snapshot) - running, running - owned
        # A defect or a lost event, never the usual way: hence the warning.
        if missing or surplus:
            log.warning(
                "running work differs from the assignment, reconciling missing=%s surplus=%s",
                missing,
                surplus,
            )
            # Before the start: a task that has moved must not run twice.
            await self._work.stop(surplus, snapshot)
            await self._work.start(missing, snapshot)
        await self._work.repair_host()
        for name in sorted(self._work.running.connectors):
            if self._publication.overwritten(name, snapshot):
                log.warning(
                    "task configs in force differ from those of the connector, publishing them"
                    " again connector=%s",
                    name,
                )
                self._work.reconfigure(name)

    async def _read_config(self) -> None:
        with self._queue.stage("reading to the end of the config topic"):
            # A time-out is a RetriableError: the round is not joined with an old offset.
            await self._parts.config.refresh(self._parts.settings.worker_sync_timeout_ms / 1000)


def _refused(needed: int, read: int) -> RetriableError:
    """Return why a round was refused: the topic was ``read`` to its end after it, and the round
    needs offset ``needed``."""
    if read < needed:
        return RetriableError(
            f"a worker of the group has read the config topic up to offset {needed}, and it ends at"
            f" {read}: it was deleted and created again, or has lost its end; no work is dealt "
            "until all workers have read the same",
            remedy="restart all workers of the flow, not one alone: docs/guide/changes.md, An "
            "internal topic is gone, says what is lost with it",
        )
    return RetriableError(
        "not every member of the group had read the same configs, or its leader had to write others"
    )


async def _look_again() -> None:
    """Do nothing: a request makes a turn, which compares what runs with what should."""
